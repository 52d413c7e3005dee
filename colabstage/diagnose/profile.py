"""`profile_loader`: where the time of a training loop goes, and what to change."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.advice import advise
from colabstage.diagnose.keeping import kept_attributes, kept_randomness
from colabstage.diagnose.measure import Wishes, measure
from colabstage.diagnose.report import LoaderProfile
from colabstage.diagnose.subject import subject_of
from colabstage.diagnose.training import kept_training
from colabstage.diagnose.verdict import judge
from colabstage.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def profile_loader(
    loader: Iterable[Any] | object,
    step: Callable[[Any], object] | None = None,
    *,
    seconds: float = 10.0,
    device: Any = None,
) -> LoaderProfile:
    """Measure where the time of a training loop goes, and say what to change.

    >>> profile_loader(loader, train_step)  # doctest: +SKIP
    >>> profile_loader(loader, train_step).advice[0].argument  # doctest: +SKIP
    'DataLoader(..., num_workers=2, persistent_workers=True)'

    The loader is run alone, then with the step, then the step on one batch again and again, each for a part of
    `seconds`. Nothing is put around functions: while the loader runs alone, a thread looks at Python's stacks a few
    hundred times a second and tells the stages from them (see `diagnose.naming`); a tf.data pipeline is measured link
    by link. The gains that advice promises are computed from these times (see `diagnose.model`).

    Everything is left as it was: random numbers, the dataset's attributes, the loader's place, its worker processes,
    and what the step trains, wherever it is reached from the step: closures, globals, partials, dicts, lists,
    attributes, functions that it calls. The profile's notes name what was found, or say that nothing was. Only what a
    step does elsewhere (files that it writes) stays done, and the batches of a loader that can be iterated only once
    are gone. A loop over one of our loaders that is running ends.

    Args:
        loader: any iterable of batches: a `Loader` or a `DataLoader`, a Keras `PyDataset`, a `tf.data.Dataset`, or any
            other object that can be iterated over.
        step: called with each batch, as the training loop would; without it only the loader is measured.
        seconds: about how long to measure; slow loaders take three batches of each run at least.
        device: where batches go before the step, if the loader does not bring them there.

    Raises:
        OptionError: the loader cannot be iterated over or has no batches, or an argument cannot work.
    """
    _check(step, seconds)
    with ExitStack() as stack:
        stack.enter_context(kept_randomness())
        subject = subject_of(loader)
        stack.enter_context(kept_attributes(subject.roots))
        put_back = stack.enter_context(kept_training(step))
        measured = measure(subject, Wishes(step, float(seconds), device))
    if put_back:
        subject.notes.append(put_back)
    facts = measured.facts
    return LoaderProfile(facts, judge(facts), advise(facts), measured.spans, tuple(subject.notes))


def _check(step: object, seconds: float) -> None:
    if step is not None and not callable(step):
        msg = f"step={step!r} cannot be called; expected a function of one batch."
        raise OptionError(msg)
    if not seconds > 0:
        msg = f"seconds={seconds!r} cannot work; expected a number above 0."
        raise OptionError(msg)

"""`resumable`: run the same cell again, on a new machine, and the training continues where it was."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar

from colabstage.io.packages import refuse_import

try:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
except ImportError as error:
    refuse_import("torch", "resumable needs", error)

from colabstage.errors import ColabstageError, DamagedPackError, OptionError, WorkersLostError, kind_of, said_by
from colabstage.h5.manifest import manifest_path
from colabstage.io.arguments import absolute_path, check_argument, whole_number
from colabstage.io.boundary import public, raise_stopped, typed_errors
from colabstage.io.display import resolve_progress
from colabstage.io.files import make_folder, temporary_folder
from colabstage.io.progress import SYSTEM_CLOCK, Progress
from colabstage.io.report import Report, Shown, facts, in_notebook
from colabstage.io.units import format_bytes, format_duration, listed
from colabstage.io.workspace import open_spool, remove_own, sweep_orphans
from colabstage.load.loader import Loader
from colabstage.machine.mounts import drive_root, lost_with_machine, require_drive, run_watched, run_with_one_remount
from colabstage.runs.callbacks import Loop, as_part
from colabstage.runs.lease import NAME, Heartbeat, Lease, wait_until_free
from colabstage.runs.listing import COPY, PLACES, Version, list_versions, plot_history
from colabstage.runs.saver import END_S, Job, Saved, Saver
from colabstage.runs.state import (
    ROWS,
    Copier,
    check_parts,
    dataset_digest,
    frozen_in,
    has_unsaved,
    held_by,
    is_scheduled,
    kind_of_part,
    load_parts,
    names_of,
    numbers_of,
    plain_numbers,
    random_state,
    set_random_state,
    trains_more,
    unwrapped,
    what_differs,
)
from colabstage.stage.publish import restore_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType, TracebackType

    T = TypeVar("T")

_FORMAT = 1
_UNITS_S = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_EVERY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", re.IGNORECASE)
# The number of steps for which the history gets a row; epochs, saves and `log` add rows of their own.
_ROW_STEPS = 100
_SHOWN_S = 2.0
_AGAIN_S = 60.0
_LATE_STEPS = 2


def read_interval(given: object) -> tuple[int | None, float]:
    """Read `"10 min"`, `"500 steps"`, or a number of seconds as the number of steps, if any, or of seconds; an
    OptionError for anything else."""
    match = _EVERY.fullmatch(given) if isinstance(given, str) else None
    number: Any = float(match[1]) if match else given
    unit = match[2].lower() if match else "s"
    if match and unit == "step" and number.is_integer() and number >= 1:
        return int(number), 0.0
    if isinstance(number, int | float) and not isinstance(number, bool) and number >= 0 and unit in _UNITS_S:
        return None, number * _UNITS_S[unit]
    msg = f'every={given!r} is not an interval; expected "10 min", "30 s", "500 steps", or a number of seconds.'
    raise OptionError(msg)


@public(writes=("folder",))
def resumable(
    folder: str | os.PathLike[str],
    *,
    loader: Any = None,
    every: str | float = "10 min",
    keep: int = 2,
    take_over: bool = False,
    progress: bool | Progress = True,
    **parts: Any,
) -> Run:
    """Save a training in the background, and resume it after its last saved step, on this or another machine.

    >>> with resumable("/content/drive/MyDrive/runs/first", model=model, optimizer=optimizer, loader=train) as run:
    ...     for epoch in run.epochs(30):  # doctest: +SKIP
    ...         for x, y in train:
    ...             loss = train_step(x, y)
    ...             run.step(loss=loss)
    ...         run.log(accuracy=evaluate(model))

    The block begins with the newest complete version in `folder`: all parts, the loader's position, the state of
    random number generators, counters and history. A damaged or incompletely uploaded version is passed over, and the
    one before is restored. While the training runs, a step waits only for a copy of the tensors.

    SIGTERM and Ctrl-C save a version at the end of the step; a second Ctrl-C exits at once. An exception saves nothing
    new, because what it left half done would be restored. If saving fails (a full disk, Drive's quota, a dead mount),
    the training continues, and saving is tried again.

    Args:
        folder: where versions are saved, usually on a mounted Drive; created if needed. One folder holds one run.
        loader: what the training iterates over: a loader of `make_loader`, or any with `state_dict` and
            `load_state_dict`. Without it, versions are saved between epochs only.
        every: how often a version is saved: `"10 min"`, `"500 steps"`, a number of seconds.
        keep: how many versions stay, 1 or more. Older ones are removed once a newer one is complete, and emptied first,
            because Drive's trash counts towards the quota.
        take_over: begin although another session seems to train; that one stops at its next step.
        progress: `True` prints a line at the beginning and for each version (in a notebook one line that changes);
            `False` for silence.
        **parts: what is saved and restored, by name: `model=`, `optimizer=`, `scheduler=`, `scaler=`, `ema=`, anything
            with `state_dict` and `load_state_dict`; random generators of your own; or a `Trainer` of Lightning or
            Hugging Face, or a Keras model, which resume by `run.checkpoint` and `run.callback`.

    Returns:
        A `Run`, a context manager.

    Raises:
        OptionError: an argument cannot work. On entering the block: the saved version is of another model, loader or
            dataset; nothing has changed then.
        RunInUseError: another session trains with this folder.
        DamagedPackError: versions were saved, and none of them can be restored.
        DriveNotMountedError: `folder` is on Drive, and none is mounted there.
        TargetExistsError: `folder` has a file `run.json` of something else.
        WorkersLostError: another rank of a distributed training failed or ended. What one rank refuses, all refuse.
    """
    keep = whole_number("keep", keep, least=1)
    check_argument("take_over", take_over, "switch")
    parts = {name: as_part(unwrapped(part)) for name, part in parts.items()}
    check_parts(parts)
    if loader is not None:
        check_parts({"loader": loader})
    place = absolute_path(folder, "folder")
    require_drive(place)
    return Run(place, parts, loader, read_interval(every), keep, take_over=take_over, progress=progress)


class Run(Shown):
    """A training that continues; made by `resumable`.

    Attributes:
        folder: where its versions are.
        epoch: the epoch it is in, from 0.
        steps: steps that were done, in all sessions.
        history: what was logged, a dict for each row, with `session`, `epoch`, `step` and `time` (seconds since 1970).
        checkpoint: what a `Trainer` that is a part goes on from: Lightning's `fit(ckpt_path=run.checkpoint)`, Hugging
            Face's `train(resume_from_checkpoint=run.checkpoint)`; `None` where it begins anew.
        callback: for a Keras model that is a part: `fit(initial_epoch=run.epoch, callbacks=[run.callback])`.
        resumed_from: the version that was restored, `None` where it began anew.
        notes: sentences about what happened: versions passed over, times without a save.
    """

    def __init__(
        self,
        folder: Path,
        parts: Mapping[str, Any],
        loader: Any,
        every: tuple[int | None, float],
        keep: int,
        *,
        take_over: bool = False,
        progress: bool | Progress = True,
    ) -> None:
        self.folder = folder
        self.epoch = 0
        self.steps = 0
        self.history: list[dict[str, Any]] = []
        self.checkpoint: str | None = None
        self.callback: Any = None
        self.resumed_from: Version | None = None
        self.notes: list[str] = []
        self._parts, self._loader, (self._every_steps, self._every_s), self._keep = dict(parts), loader, every, keep
        self._take_over, self._progress, self._clock = take_over, progress, SYSTEM_CLOCK
        self._shown = _Shown(progress)
        self._copier = Copier()
        self._saver: Saver | None = None
        self._newest: Saved | None = None
        self._digest = ""
        self._carried: dict[str, Any] = {}
        self._session = self._saves = 0
        # The sum of each value, and the number of steps that had it.
        self._sums: dict[str, tuple[Any, int]] = {}
        self._summed = 0
        # Who counts the epochs: a loop over `epochs`, or one that calls `end_epoch`; otherwise the loader.
        self._counts = False
        # The number of steps at which its epoch began, where that is known.
        self._edge: int | None = None
        self._numbers: dict[str, Any] = {}
        # The models' plain numbers at the very first step, but for those that each epoch begins anew; and the epoch in
        # which they were last looked at.
        self._plain_began: dict[str, float] = {}
        self._plain_epoch: int | None = None
        self._pass: int | None = None
        self._saved: tuple[int, int, int] = self._place()
        self._interval_began = 0.0
        self._random: Mapping[str, Any] | None = None
        # Until the first step: the parameters that the restored version did not train.
        self._frozen: list[str] | None = None
        # Where the loader was at the last step, or where the epoch began.
        self._stepped: Any = None
        self._stop: int | None = None
        self._at_once = self._has_stopped = False
        self._late = 0
        self._noticed = weakref.WeakSet[torch.optim.Optimizer]()
        self._stack = contextlib.ExitStack()
        self._is_open = False

    def __enter__(self) -> Self:
        if self._is_open:
            msg = "This run is already open. Call resumable(…) again for another one."
            raise OptionError(msg)
        with typed_errors(reads=[], writes=[self.folder]), contextlib.ExitStack() as stack:
            # Removes what a killed session has left here.
            local = stack.enter_context(open_spool(temporary_folder() / "run"))
            local.mkdir(mode=0o700)
            for loop in self._loops():
                loop.local = local
            # What cannot be saved is refused now, and not when the first version is due.
            states, _ = self._states(), random_state()
            self._numbers = self._settings()
            empty = [name for name, part in self._parts.items() if not states[name] and has_unsaved(part)]
            self.notes += [f"{name} has an empty state_dict(), so nothing of it is saved." for name in empty]
            self._copier.give_back(states)
            stack.callback(self._leave)
            (version, self._session), *_ = _on_each_rank(lambda: self._choose(local))
            _on_each_rank(lambda: self._begin(version, local))
            stack.enter_context(self._signals())
            self._counts = bool(self._loops())
            self._edge = self.steps if self._counts else None
            for loop in self._loops():
                stack.callback(loop.join(self))
                self.checkpoint, self.callback = loop.checkpoint, loop.callback
            if not self._loops():  # which have optimizer and loader in themselves
                stack.callback(register_optimizer_step_post_hook(self._notice_optimizer).remove)
                self._stepped = self._loader_place()
            if self._random is not None:  # for loops over anything but `epochs`, which does it again
                set_random_state(self._random, rank=_rank())
            self._interval_began = self._clock.now()
            self._shown.line(self._began())
            self._stack, self._is_open = stack.pop_all(), True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            # What an exception has left half done is no state to go on from.
            if error is None and not self._is_saved():
                self.save()
            self._tell_saved()
        if error is None and not self._has_stopped:
            self._end_on_signal()

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the remaining epochs of `number`, from 0; the first of them may be half done.

        If a run has done all of them, yield nothing and say so.
        """
        number = whole_number("number", number)
        self._check_open()
        self._counts = True
        if self.epoch >= number:
            self._shown.line(f"All {number} epochs are done; nothing is left to train. {self}")
        try:
            while (epoch := self.epoch) < number:
                self._edge = self.steps
                self.restore_random()
                yield epoch
                # The loop may have ended it itself.
                if self.epoch == epoch:
                    self.end_epoch()
        finally:
            # An epoch that is left by `break` is done where the loader's is.
            self._counts = False

    def end_epoch(self) -> None:
        """Count a finished epoch, and save a version if one is due; for loops that do not iterate over `epochs`."""
        self._check_open()
        # A library's loop may have caught the interrupt, and returned in the middle of an epoch.
        if self._has_stopped:
            self._end_on_signal()
        self._counts = True
        last = self._stepped
        has_more = last is not None and self._loader_place() != last
        if has_more and self._plain_epoch is None and not last["batches_done"]:
            self._note("Batches were read without run.step(), so no step is counted. Call it last in the loop.")
        # Gradients of the last batches wait for the next step, and are in no state.
        waits = has_more and self.steps != self._edge and last["batches_done"] < len(self._loader)
        self._end_row()
        # A pass that the loop has left early, as with `islice`, is over.
        if last is not None and self._loader.state_dict()["batches_done"]:
            self._loader.set_epoch(self._loader.epoch + 1)
        self.epoch, self._edge, self._pass = self.epoch + 1, self.steps, getattr(self._loader, "epoch", None)
        self._stepped = None if last is None else self._loader.state_dict()
        if not self._loops() and not waits:
            self._between()

    def restore_random(self) -> None:
        """Set the random generators to the restored state, once: before the first step of a loop that does not iterate
        over `epochs`. Building objects until then may draw random numbers."""
        if self._random is not None:
            set_random_state(self._random, rank=_rank())
            self._random = None

    def step(self, **values: Any) -> None:
        """Count a step that is done, and save a version if one is due. Call it last in the loop.

        Args:
            **values: numbers, or tensors of one number, whose means become rows of the history.

        Raises:
            RunInUseError: another session has taken the run over.
        """
        _check_numbers(values)
        self._check_open()
        self._follow_loader()
        self._check_place()
        self.steps += 1
        self._summed += 1
        for name, value in values.items():
            # Added up on its device, because reading a number from a GPU waits for everything that is queued.
            # A sum of a hundred bfloat16 would be off by percents, and of float16 infinite.
            is_tensor = isinstance(value, torch.Tensor)
            wide = torch.promote_types(value.dtype, torch.float32) if is_tensor else None
            number = value.detach().to(wide) if is_tensor else _plain_number(value)
            so_far, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = so_far + number, count + 1
        if self._summed >= _ROW_STEPS:
            self._end_row()
        self._shown.changing(self)
        if not self._loops():
            self._between(after_step=True)

    def log(self, **values: Any) -> None:
        """Add a row of numbers to the history, such as what was measured after an epoch."""
        _check_numbers(values)
        self._check_open()
        self._end_row()
        self.history.append(self._row(values))
        # What counts the epochs counts this one before it is saved; otherwise the next session would repeat it.
        if self._stop is not None and not self._counts:
            self._between()

    def save(self) -> None:
        """Save a version now, and wait until it is in the folder and was read back.

        Raises:
            ColabstageError: it could not be saved; see `publish_file`.
        """
        self._check_open()
        saver = self._saver
        if saver is None:
            return
        with contextlib.suppress(Exception):
            saver.wait()
        saver.save(self._job(), resolve_progress(self._progress))
        saver.wait()
        self._tell_saved()

    @property
    def saving(self) -> bool:
        """Return whether a version is on its way."""
        return self._saver is not None and self._saver.busy

    def plot(self, *names: str) -> Any:
        """Draw the history: a line for each of these columns, all by default, over the steps, with a mark where a
        session began. Returns a matplotlib `Figure`."""
        return plot_history(self.history, names)

    def shown(self) -> Report:
        return Report(f"Run in '{self.folder}'", (facts(self._facts()),))

    def _facts(self) -> Iterator[tuple[str, str]]:
        """Yield names and values: how far it is, what it logged last, and the state of its versions."""
        yield "epoch", f"{self.epoch}, step {self.steps:,}"
        last = {name: value for row in self.history[-2:] for name, value in row.items() if name not in PLACES}
        yield from ((name, f"{value:.4g}") for name, value in last.items())
        saver = self._saver
        newest = saver.newest if saver is not None else self._newest
        if newest is not None:
            yield "saved", _show_saved(newest)
        elif self.resumed_from is not None:
            yield "restored", f"from {self.resumed_from.name}"
        if saver is None:
            return
        if saver.began is not None:
            yield "saving", f"since {time.strftime('%H:%M:%S', time.localtime(saver.began))}"
        elif saver.problem:
            yield "problem", saver.problem
        elif self._every_steps is not None:
            yield "next save", f"after {max(0, self._saved[1] + self._every_steps - self.steps):,} steps"
        else:
            left_s = self._interval_began + self._every_s - self._clock.now()
            yield "next save", f"in {format_duration(max(0.0, left_s))}"

    def _notice_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note an optimizer that trains the run's models, or its schedule, that is in none of the parts, the first time
        that it steps."""
        if optimizer in self._noticed:
            return
        self._noticed.add(optimizer)
        held, kind, what = held_by(self._parts.values()), type(optimizer).__name__, ""
        if any(optimizer is one for one in held):
            if not any(getattr(one, "optimizer", None) is optimizer for one in held) and is_scheduled(optimizer):
                what = f"The schedule of the {kind}"
        elif trains_more(self._parts, optimizer):
            what = f"The {kind} that trains the model"
        if what:
            self._note(f"{what} is no part of the run, so each session begins with a new one.")

    def _loader_place(self) -> Any:
        """Return where the loader is, if it is of `make_loader`: after the last batch until the epoch is counted, so
        that the next session does what comes after them."""
        place: Any = self._loader.state_dict() if isinstance(self._loader, Loader) else None
        last = self._stepped if self._counts else None
        if last is not None and place["epoch"] > last["epoch"] and not place["batches_done"]:
            return {**place, "epoch": last["epoch"], "batches_done": len(self._loader)}
        return place

    def _check_place(self) -> None:
        """Note at a step what would be another training after the next restart: a loop that does not read the run's
        loader, or more than one pass of it in an epoch, and parameters that the restored version trained and this
        session does not. By now the loop has thawed what it thaws by the epoch."""
        before, place, is_first = self._stepped, self._loader_place(), self._plain_epoch is None
        self._stepped = None if before is None else place
        if before is not None and place["epoch"] != before["epoch"] and before["batches_done"]:
            if is_first and before["batches_done"] < len(self._loader):
                self._note(
                    f"Epoch {before['epoch']} of loader= was not continued: other code has iterated over it, as by "
                    "next(iter(loader)), since it was restored. Look at batches of a loader of their own."
                )
            elif self._counts and place["batches_done"]:
                self._note(
                    "An epoch continues with batches of the next one of loader=, so a session that resumes in one "
                    "trains on more of them. End it with the loader; a loop that counts batches has "
                    'len(loader) - loader.state_dict()["batches_done"] left.'
                )
        elif before is not None and place == before and is_first:
            self._note(
                "loader= has given no batch before this step, so the loop reads another, and where it is in its epoch "
                "is not known. Iterate over the one that resumable() got."
            )
        if self._plain_epoch != self.epoch:
            self._look_at_plain(is_first=is_first)
        then, self._frozen = self._frozen, None
        now = frozen_in(self._parts) if then is not None else []
        if lost := [name for name in now if name not in set(then or ())]:
            self._note(
                f"Frozen in this session, but not where the saved one ended: {listed(lost, 3)}. Decide by run.epoch "
                "what is frozen; versions do not include it."
            )

    def _look_at_plain(self, *, is_first: bool) -> None:
        """Note plain attributes that have begun again with the session; called at the first step of each epoch."""
        self._plain_epoch = self.epoch
        plain = plain_numbers(self._parts)
        again = [name for name, value in plain.items() if value == self._plain_began.get(name)]
        if not is_first:
            # A count of this epoch's batches, or a setting.
            for name in again:
                del self._plain_began[name]
            return
        self._plain_began = {**plain, **self._plain_began}
        if again:
            self._note(
                f"Not restored: {listed(again, 3)}. Training changes them, but plain attributes are no part of a "
                "state_dict(); set them by run.steps, or make them buffers of their modules."
            )

    def _begin(self, version: Version | None, local: Path) -> None:
        """Restore a version, if there is one, and hold the run."""
        if version is not None:
            file = local / version.name
            # The first rank has had it since it was chosen.
            if _rank():
                restore_file(self.folder / version.name, file, progress=False)
            content = torch.load(file, map_location="cpu", weights_only=True)
            remove_own(file)
            self._load(content, version)
        if _rank() == 0:
            place = self._session, version.name if version is not None else "", self.epoch, self.steps
            heartbeat = Heartbeat(self.folder, *place)
            self._saver = Saver(self.folder, heartbeat, local, keep=self._keep, restored=version)
            run_watched(heartbeat.begin, self.folder)

    def _choose(self, local: Path) -> tuple[Version | None, int]:
        """Return the version to restore, which is then in `local`, and this session's number; only the first rank
        chooses."""
        if _rank():
            return None, 0
        with typed_errors(reads=[self.folder], writes=[]):
            before, there, copies = run_with_one_remount(self._look, self.folder)
        noted = before.newest if before is not None else ""
        if lost := lost_with_machine(self.folder):
            self.notes.append(f"{lost}. To resume on another one, give a folder on a mounted Drive.")
        if noted and noted not in [version.name for version in there]:
            self.notes.append(f"{noted} was passed over: it is noted in '{NAME}', but not in the folder.")
        version = self._newest_whole(there, local)
        # If the very first session died while a version was on its way, nothing is missing.
        if version is None and copies:
            self.notes.append(
                f"It has {listed(copies, 3)} from elsewhere: copy each version with its '.pt.json', by their own names."
            )
        if version is None and (noted or any(there.values()) or copies):
            msg = (
                f"No version in '{self.folder}' can be restored. {' '.join(self.notes)} Remount Drive if the folder is "
                "there, and try again. To train from the beginning, choose another folder."
            )
            raise DamagedPackError(msg)
        return version, max([before.session if before else 0, *(one.session for one in there)]) + 1

    def _look(self) -> tuple[Lease | None, dict[Version, bool], list[str]]:
        """Return the previous session's lease, once it has left, which versions are complete, the newest first, and
        where no session has been the names of copies."""
        # Without its Drive, the folder would be created on the local disk.
        require_drive(self.folder)
        make_folder(self.folder)
        before = wait_until_free(self.folder, take_over=self._take_over, clock=self._clock, notice=self._shown.line)
        # What killed sessions left half copied or half removed; Drive's trash keeps the size of what is removed.
        sweep_orphans(self.folder, prefix="session-", empty=drive_root(self.folder) is not None)
        there = list_versions(self.folder, [before.newest] if before is not None and before.newest else [])
        # What is in them is compared when one is restored.
        files = {version: self.folder / version.name for version in there}
        complete = {one: file.is_file() and manifest_path(file).is_file() for one, file in files.items()}
        entries = self.folder.iterdir() if before is None else ()
        return before, complete, sorted(entry.name for entry in entries if COPY.fullmatch(entry.name))

    def _newest_whole(self, there: Mapping[Version, bool], local: Path) -> Version | None:
        progress = resolve_progress(self._progress)
        for version, complete in there.items():
            if not complete:
                self.notes.append(f"{version.name} was passed over: it was not saved completely.")
                continue
            try:
                restore_file(self.folder / version.name, local / version.name, progress=progress)
            except DamagedPackError as error:
                self.notes.append(f"{version.name} was passed over: {said_by(error)}.")
                continue
            return version
        return None

    def _load(self, content: Mapping[str, Any], version: Version) -> None:
        if content.get("format") != _FORMAT:
            msg = (
                f"'{self.folder / version.name}' has format {content.get('format')!r}; this colabstage reads {_FORMAT}."
            )
            raise OptionError(msg)
        parts = self._all_parts()
        try:
            self._check_dataset(content["dataset"])
            # Files that earlier versions wrote have no names.
            self.notes += load_parts(parts, content["kinds"], content["parts"], content.get("names", {}))
        except OptionError as error:
            kept = str(self.folder / version.name)
            msg = f"{error} What was saved, such as weights for that one, is in torch.load({kept!r})['parts']."
            raise OptionError(msg) from error
        self._carried = {name: content["parts"][name] for name, part in parts.items() if not part.state_dict()}
        # Files that earlier versions wrote have none.
        given, self._numbers = self._numbers, content.get("numbers", {})
        self.resumed_from = version
        self.notes += self._compare(given)
        counters = content["counters"]
        self.epoch, self.steps = counters["epoch"], counters["steps"]
        edge = counters.get("edge")
        if (again := 0 if edge is None else self.steps - edge) and not self._knows_place():
            self.notes.append(
                f"Epoch {self.epoch} begins again, with weights that had {again:,} of its steps: the session before "
                "left it early, and without loader= where it was is not known."
            )
        self.history = [dict(row) for row in content["history"]]
        self._saved = self._place()
        self._pass = getattr(self._loader, "epoch", None)
        self._random = content["random"]
        self._frozen, self._plain_began = content.get("frozen"), content.get("plain", {})

    def _check_dataset(self, then: str) -> None:
        now = dataset_digest(self._loader)
        if now and then and now.startswith(ROWS) == then.startswith(ROWS) and now != then:
            msg = (
                "The dataset of the loader is not the one that this run was trained with, so the rows that are left "
                "are others: its source has changed, or an option, such as image_size, splits or seed. Use the one "
                "from before, or begin a new run in another folder."
            )
            raise OptionError(msg)

    def _settings(self) -> dict[str, Any]:
        return numbers_of(self._all_parts())

    def _compare(self, given: Mapping[str, Any]) -> list[str]:
        """Return sentences about what the restored run keeps although the program has another, and what is another from
        here on; a new run begins with what is given."""
        now, self._numbers = self._settings(), self._numbers if self.resumed_from else dict(given)
        said = what_differs(given, self._numbers, now)
        self._numbers |= {name: now[name] for name in self._numbers if name in given and now.get(name) == given[name]}
        return said

    def _all_parts(self) -> dict[str, Any]:
        # Last, because the loader continues from there once it is loaded.
        return self._parts if self._loader is None else {**self._parts, "loader": self._loader}

    def _loops(self) -> list[Loop]:
        return [part for part in self._parts.values() if isinstance(part, Loop)]

    def _knows_place(self) -> bool:
        """Return whether the state includes the position in an epoch, so that it may be saved in the middle of one."""
        return self._loader is not None or any(loop.knows_place for loop in self._loops())

    def _states(self) -> dict[str, Any]:
        # A gradient scaler that is disabled here has none, and may go on from the restored one on the next machine.
        states = {name: part.state_dict() or self._carried.get(name, {}) for name, part in self._all_parts().items()}
        return self._copier.copy(states)

    def _between(self, *, after_step: bool = False) -> None:
        """Do what may be done while the state is complete: stop, or save a version that is due. A loop of another
        library calls this itself, once its callbacks and its evaluation are through with a step or an epoch."""
        saver = self._saver
        if after_step and not self._knows_place():
            return
        if saver is None:
            # The first rank may get its signal a step later, and can save only after a step that all ranks do.
            self._late += self._stop is not None
            if self._late > _LATE_STEPS:
                self._end_on_signal()
            return
        if saver.heartbeat.lost is not None:
            raise saver.heartbeat.lost
        if self._stop is not None:
            try:
                if not self._is_saved():
                    self.save()
            except Exception as error:  # noqa: BLE001 - the signal is obeyed all the same
                self._note(f"The end was not saved: {said_by(error)}")
            self._end_on_signal()
        # Resumed after the last batch of an epoch, the loop would get no batch, and have no loss to print after it.
        place = self._loader_place() if after_step and self._counts else None
        ends = place is not None and place["batches_done"] >= len(self._loader)
        if not ends and not saver.busy and self._is_due(failed=bool(saver.problem)):
            self._tell_saved()
            saver.save(self._job())
            self._interval_began = self._clock.now()

    def _is_due(self, *, failed: bool) -> bool:
        if self._every_steps is not None and not failed:
            return self.steps - self._saved[1] >= self._every_steps
        if self._place() == self._saved:
            return False
        # A disk that was full, or a mount that was dead, may recover much sooner.
        wait_s = min(_AGAIN_S, self._every_s or _AGAIN_S) if failed else self._every_s
        return self._clock.now() >= self._interval_began + wait_s

    def _is_saved(self) -> bool:
        """Return whether everything done is in the folder, after waiting for what is on its way to arrive or fail."""
        self._follow_loader()
        if self._saver is None or self._place() != self._saved:
            return self._saver is None
        with contextlib.suppress(Exception):  # it is tried again, and then raised
            self._saver.wait()
            return True
        return False

    def _place(self) -> tuple[int, int, int]:
        return self.epoch, self.steps, len(self.history)

    def _follow_loader(self) -> None:
        """Count epochs as the loader does, where the loop does not: `for epoch in range(run.epoch, 30)`."""
        now = getattr(self._loader, "epoch", None)
        if not self._counts and self._pass is not None and now != self._pass:
            self._end_row()
            self.epoch += 1
        if not self._counts or self._pass is None:
            self._pass = now

    def _job(self) -> Job:
        self._follow_loader()
        self._end_row()
        parts, states, place = self._all_parts(), self._states(), self._loader_place()
        states |= {} if place is None else {"loader": place}
        # Once, because a large pack has a long list of hashes. An arriving pack has none before its end.
        self._digest = self._digest or dataset_digest(self._loader)
        # What training changes is no setting.
        now = self._settings()
        self._numbers = {name: value for name, value in self._numbers.items() if now.get(name, value) == value}
        content = {
            "format": _FORMAT,
            "parts": states,
            "kinds": {name: kind_of_part(part) for name, part in parts.items()},
            "dataset": self._digest,
            "names": names_of(self._parts),
            "frozen": frozen_in(self._parts),
            "plain": dict(self._plain_began.items() - plain_numbers(self._parts).items()),
            "numbers": self._numbers,
            "random": random_state(),
            "counters": {"epoch": self.epoch, "steps": self.steps, "edge": self._edge},
            "history": [dict(row) for row in self.history],
        }
        self._saved = self._place()
        self._saves += 1
        version = Version(self._session, self._saves, self.steps)
        return Job(version, content, lambda: self._copier.give_back(states))

    def _row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        numbers = {name: _plain_number(value) for name, value in values.items()}
        return {"session": self._session, "epoch": self.epoch, "step": self.steps, "time": time.time(), **numbers}

    def _end_row(self) -> None:
        if self._sums:
            self.history.append(self._row({name: total / count for name, (total, count) in self._sums.items()}))
        self._sums, self._summed = {}, 0

    def _tell_saved(self) -> None:
        saver = self._saver
        if saver is None:
            return
        if saver.problem:
            self._note(saver.problem)
        elif saver.newest is not None:
            note = f"{saver.newest.version.name} is {saver.newest.proof}."
            if not saver.newest.proved and note not in self.notes:
                self.notes.append(note)
            self._shown.saved(self, f"Saved {_show_saved(saver.newest)}.")

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
            self._shown.line(sentence)

    def _began(self) -> str:
        if self.resumed_from is None:
            begun = f"Begins in '{self.folder}'."
        else:
            begun = f"Resumes in epoch {self.epoch} after step {self.steps:,}, from {self.resumed_from.name}."
        return " ".join([begun, *self.notes])

    def _check_open(self) -> None:
        if not self._is_open:
            msg = (
                f"The run in '{self.folder}' is not open: nothing is restored, and nothing would be saved. Write the "
                "loop inside the block that begins with: with resumable(…) as run:"
            )
            raise OptionError(msg)

    def _leave(self) -> None:
        saver, self._saver, self._is_open = self._saver, None, False
        if saver is not None:
            self._newest = saver.newest
            saver.close(patience_s=0.0 if self._at_once else END_S)
        self._shown.changing(self, last=True)

    def _end_on_signal(self) -> None:
        self._has_stopped = self._stop is not None
        if self._stop == signal.SIGINT:
            raise_stopped(KeyboardInterrupt(), "What was saved is kept; running this again continues from there.")
        if self._stop is not None:
            raise SystemExit(128 + self._stop)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Let a signal end the run at a point where its state is complete; a second Ctrl-C ends it at once."""
        process = os.getpid()
        # A run may be entered again after it was interrupted.
        self._stop, self._at_once, self._has_stopped = None, False, False

        def note(number: int, _: FrameType | None) -> None:
            # A forked process, such as a pool's, has no run to save, and must end.
            if os.getpid() != process:
                signal.signal(number, before[signal.Signals(number)])
                signal.raise_signal(number)
            if self._stop is not None and number == signal.SIGINT:
                self._at_once = True
                raise KeyboardInterrupt
            self._stop = number
            place = "step" if self._knows_place() else "epoch"
            # The signal may arrive in the middle of another line.
            with contextlib.suppress(RuntimeError):
                self._shown.line(f"Saves and stops after this {place}; press Ctrl-C again to leave at once.")

        # Other threads cannot receive any.
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, note) or signal.SIG_DFL for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Shown:
    """What the user sees: lines, and in a notebook one that changes."""

    def __init__(self, progress: bool | Progress) -> None:
        self._wanted = not resolve_progress(progress).is_silent
        self._display: Any = None
        self._next_s = 0.0
        self._last = ""

    def saved(self, run: Run, text: str) -> None:
        """Say once that a version was saved: in a notebook in the line that changes."""
        if self._display is not None:
            self.changing(run, last=True)
        elif text != self._last:
            self.line(text)

    def line(self, text: str) -> None:
        if self._wanted:
            self._last = text
            # Notebooks show stderr on red.
            stream = sys.stdout if in_notebook() else sys.stderr
            stream.write(text + "\n")

    def changing(self, run: Run, *, last: bool = False) -> None:
        """Show how far the run is, every two seconds, in a notebook; at the `last`, how it ended."""
        now = time.monotonic()
        if self._display is not None and (last or now >= self._next_s):
            self._display.update(run)
        elif self._display is None and self._wanted and not last and in_notebook():
            from IPython.display import display

            self._display = display(run, display_id=True)  # type: ignore[no-untyped-call]
        else:
            return
        self._next_s = now + _SHOWN_S


def _check_numbers(values: Mapping[str, Any]) -> None:
    """Refuse values that cannot become part of a row of means, before a whole epoch is trained."""
    for name, value in values.items():
        if name in PLACES:
            msg = f"{name}= is a column that each row of the history has already. Use another name."
            raise OptionError(msg)
        if not _is_number(value):
            count = value.numel() if isinstance(value, torch.Tensor) else getattr(value, "size", 1)
            what = kind_of(value) if count == 1 else f"{kind_of(value)} of {count:,} numbers"
            msg = f"{name}= is {what}; expected a number that a float holds, or a tensor of one, such as loss.mean()."
            raise OptionError(msg)


def _is_number(value: Any) -> bool:
    # The number of a tensor is not read before it is needed: a GPU's is still being computed.
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    try:
        return hasattr(value, "__float__") and isinstance(_plain_number(value), float)
    except (TypeError, ValueError, OverflowError):
        return False


def _plain_number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _show_saved(saved: Saved) -> str:
    proof = {"uploaded": "in the cloud, by its MD5", "read back": "read back"}.get(saved.proof, saved.proof)
    at = time.strftime("%H:%M:%S", time.localtime(saved.at))
    return f"step {saved.version.step:,} at {at} ({format_bytes(saved.nbytes)}, {proof})"


def _rank() -> int:
    return torch.distributed.get_rank() if _is_distributed() else 0


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _on_each_rank(work: Callable[[], T]) -> list[T]:
    """Do work on each rank, and return the results of all, the first rank's first."""
    if not _is_distributed():
        return [work()]
    result: T | None = None
    error: Exception | None = None
    try:
        result = work()
    except Exception as failed:  # noqa: BLE001 - it is raised below, once the others know of it
        error = failed
    known = error
    # Errors of other libraries may not be picklable.
    if error is not None and not isinstance(error, ColabstageError):
        known = WorkersLostError(f"Rank {_rank()} of the training failed: {said_by(error)}")
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    try:
        torch.distributed.all_gather_object(gathered, (result, known))
    except RuntimeError as lost:
        msg = f"Another rank of this training has ended or does not answer: {said_by(lost)} Its own output says why."
        raise WorkersLostError(msg) from lost
    for one in (error, *(other for _, other in gathered)):
        if one is not None:
            raise one
    return [one for one, _ in gathered]

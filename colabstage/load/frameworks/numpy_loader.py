"""`to_numpy`: a split as batches of numpy arrays, for JAX and for loops of any kind, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from colabstage.io.arguments import whole_number
from colabstage.io.boundary import public
from colabstage.io.progress import Demand
from colabstage.load.ahead import Ahead, Iterated, Iteration
from colabstage.load.frameworks.arrays import ArrayBatches
from colabstage.load.plan import ArrayOptions

if TYPE_CHECKING:
    from colabstage.h5.parts import Files
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.frameworks.arrays import Batch
    from colabstage.load.plan import ArrayArguments, LoaderPlan
    from colabstage.load.reading.reader import SplitReader


class NumpyLoader(Iterated):
    """Iterate over batches of numpy arrays, read ahead by a thread; each iteration is the next epoch. Made by
    `to_numpy`.

    Attributes:
        plan: how batches are read, and why.
    """

    def __init__(self, batches: ArrayBatches) -> None:
        self.plan: LoaderPlan = batches.plan
        self._batches, self._epoch = batches, 0

    def __len__(self) -> int:
        """Count the batches in an epoch."""
        return len(self._batches)

    def __iter__(self) -> Iteration[Batch]:
        """Begin the next epoch."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        demand = Demand()
        source = self._batches.stream(epoch, 0, demand)
        ahead = Ahead(source, self.plan.prefetch.value, "colabstage-ahead", demand)
        return self._begun(Iteration(ahead, lambda one: (one,), self._batches.finish))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, to continue training after a restart.

        Raises:
            OptionError: `epoch` is not an integer of 0 or more.
        """
        self._epoch = whole_number("epoch", epoch)


@public(ArrayOptions, remedies={"batch_size": 'Write to_numpy(data["train"], 64); training depends on it.'})
def to_numpy(
    dataset: dataset_h5 | SplitReader | Files,
    batch_size: int,
    *,
    split: str | None = None,
    **arguments: Unpack[ArrayArguments],
) -> NumpyLoader:
    """Make batches of numpy arrays, with the samples of `make_loader` for the same seed, epoch and batch size.

    >>> for x, y in to_numpy("data.h5", 64, dtype="float32"):  # doctest: +SKIP
    ...     state = train_step(state, x, y)  # a function that `jax.jit` has compiled, say

    A batch is `(x, y)` as `to_keras` gives it: x `(B, H, W, C)`, y int64 `(B,)` for classes. You may keep and change
    it.

    Needs nothing beside numpy and h5py.

    Args:
        dataset, batch_size, split: as in `to_keras`.
        **arguments: those of `ArrayOptions`.

    Returns:
        An iterable with `len`, `set_epoch` and `close`; each iteration is the next epoch.

    Raises:
        OptionError: an argument is invalid, or samples are not arrays of one shape.
        SourceNotFoundError, PackFormatError, SplitNotFoundError: the file or the split cannot be read.
    """
    return NumpyLoader(ArrayBatches(dataset, batch_size, ArrayOptions(**arguments), split=split))

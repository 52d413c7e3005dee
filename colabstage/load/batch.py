"""Make batches as numpy arrays, for every framework: rows are read into reused memory, and small batches in groups."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from colabstage.errors import OptionError
from colabstage.h5.schema import BOXES, LABELS
from colabstage.io.pipeline import ThreadPool
from colabstage.load.reading.memory import Block, BufferPool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation
    from colabstage.load.augment import CroppedInputs
    from colabstage.load.reading.reader import SplitReader

    # What reads x.
    Inputs: TypeAlias = SplitReader | CroppedInputs

T = TypeVar("T")

# The form of boxes in a batch.
Ragged = Literal["list", "pad"]

LENGTHS = "lengths"
# The value of white in each integer dtype that images have.
_WHITE = {"uint8": 255.0, "uint16": 65535.0}
# Grey, colour, and colour with transparency: two values per pixel are not an image.
_CHANNELS = (1, 3, 4)

# A waiting consumer wakes within a tenth of this. If it keeps its batches, this many waits in vain are tolerated.
_HAND_OVER_S = 0.0005
_PATIENCE = 3
# Three buffers of this size fit into the processor's caches as well as two.
_LARGE_BYTES = 4 * 1024 * 1024


class Group(NamedTuple):
    """Consecutive batches that were read at once."""

    x: Any
    y: Any
    rows: list[NDArray[np.intp]]

    def parts(self) -> Iterator[tuple[Any, Any, NDArray[np.intp]]]:
        """Yield x, y and the rows of each batch."""
        if len(self.rows) == 1:
            yield self.x, self.y, self.rows[0]
            return
        start = 0
        for rows in self.rows:
            stop = start + len(rows)
            yield self.x[start:stop], self.y[start:stop], rows
            start = stop


class Batcher:
    def __init__(
        self,
        reader: SplitReader,
        *,
        workers: int,
        together: int = 1,
        idle: int = 2,
        allocate: Callable[[int], Block] | None = None,
    ) -> None:
        """Take `together`, the batches in a group, which share a block of memory; `idle`: blocks that are kept for
        reuse; `allocate`: makes a block, for example of pinned memory."""
        self.reader = reader
        self._workers, self._together = workers, together
        # Two pools, because their blocks have different sizes.
        self._inputs, self._targets = BufferPool(idle, allocate), BufferPool(idle, allocate)

    def groups(
        self,
        batches: Iterable[NDArray[np.intp]],
        cancellation: Cancellation,
        make: Callable[[Group], T],
        inputs: Inputs | None = None,
    ) -> Generator[T]:
        """Read the rows of each batch, group after group, and yield what `make` makes of each; first load the file into
        memory if it should be there. `inputs` reads x; the reader by default."""
        inputs = inputs or self.reader
        self.reader.warm_up(cancellation)
        # A consumer that waits for a batch drops the one before as soon as it comes, and the processor's caches may
        # still hold that one: so two buffers take turns, where a third would come from memory.
        patience = _PATIENCE if inputs.row_shape is not None and self._together == 1 else 0
        made: deque[T] = deque()
        waiting = iter(batches)
        with ThreadPool(self._workers, cancellation) as pool:
            while group := list(islice(waiting, self._together)):
                rows = group[0] if len(group) == 1 else np.concatenate(group)
                # No name here may refer to a batch: it would occupy a buffer while the next one is made.
                made.append(make(Group(*self.read(rows, pool, inputs), group)))
                hand_over = patience > 0 and pool.urgent and len(rows) * inputs.row_bytes >= _LARGE_BYTES
                if hand_over:
                    self._inputs.expect_return()
                yield made.popleft()
                if hand_over and not self._inputs.await_return(_HAND_OVER_S):
                    patience -= 1

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, inputs: Inputs | None = None) -> tuple[Any, Any]:
        """Read x and y of rows, into reused memory if they share one shape."""
        reader, inputs = self.reader, inputs or self.reader
        x = y = None
        if inputs.row_shape is not None:
            x = self._inputs.borrow((len(rows), *inputs.row_shape), inputs.row_dtype)
        if reader.target_shape is not None and reader.target_dtype is not None:
            y = self._targets.borrow((len(rows), *reader.target_shape), reader.target_dtype)
        return inputs.read_x(rows, x, pool=pool), reader.read_y(rows, y, pool=pool)

    def borrow(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self._inputs.borrow(shape, dtype)


def white_of(dtype: object) -> float:
    """Return the value by which x of a dtype of numpy's or torch's is divided when it becomes fractions: that of white
    in images, otherwise 1. Raises OptionError for complex numbers, which would lose their imaginary part."""
    name = str(dtype).removeprefix("torch.")
    if name.startswith("complex"):
        msg = (
            f"x is {name}, and dtype= or Normalize would drop its imaginary part. Leave them out, or give the dataset "
            "a transform that makes real numbers of it, such as transform=abs."
        )
        raise OptionError(msg)
    return _WHITE.get(name, 1.0)


def is_image_shape(shape: tuple[int, ...] | None) -> bool:
    """Return whether rows of this shape are images `(H, W, C)` of 1, 3 or 4 channels. `None`, many shapes, counts
    too."""
    return shape is None or (len(shape) == 3 and shape[-1] in _CHANNELS)


def target_array(y: NDArray[Any]) -> NDArray[Any]:
    """Return targets as losses expect them: int64 if each is one integer, `(B,)` or `(B, 1)`, otherwise as stored.
    Raises OptionError if a number exceeds int64."""
    if y.dtype.kind not in "iu" or y.shape[1:] not in ((), (1,)):
        return y
    if y.dtype.kind == "u" and int(y.max(initial=0)) > np.iinfo(np.int64).max:
        msg = (
            f"The targets have {int(y.max())}, and batches have int64, which ends before. Give the dataset a "
            "target_transform that makes smaller numbers of them: target_transform=lambda y: y - 2**63."
        )
        raise OptionError(msg)
    return y.astype(np.int64, copy=False)


def pad_boxes(targets: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Pad the boxes of B rows, with at most M boxes each, to columns `(B, M, …)`, with -1 for signed integers and 0 for
    everything else, and `lengths`, int64 `(B,)`. Labels become int64 where their type has no -1, since 0 is a class."""
    lengths = np.array([len(target[BOXES]) for target in targets], np.int64)
    most = int(lengths.max(initial=0))
    padded: dict[str, NDArray[Any]] = {}
    for name in targets[0]:
        columns = [np.asarray(target[name]) for target in targets]
        dtype = columns[0].dtype
        if name == LABELS and dtype.kind in "bu":
            dtype = np.dtype(np.int64)
        # -1 is not a class; a loss with ignore_index=-1 skips it.
        padded[name] = np.full((len(targets), most, *columns[0].shape[1:]), -1 if dtype.kind == "i" else 0, dtype)
        for row, column in enumerate(columns):
            padded[name][row, : lengths[row]] = column
    return {**padded, LENGTHS: lengths}

"""Make batches of torch tensors in reused host memory, convert nested batches, and apply the last steps to them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from colabstage.errors import OptionError
from colabstage.h5.schema import BOXES, LABELS
from colabstage.io.pipeline import ThreadPool
from colabstage.load.calling import apply_transform, collate_results
from colabstage.load.prefetch import HEARTBEAT, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import DTypeLike, NDArray

    from colabstage.io.progress import Cancellation
    from colabstage.load.augment import CroppedInputs
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.epoch import BatchPlace
    from colabstage.load.reading.memory import BufferPool
    from colabstage.load.reading.reader import SplitReader
    from colabstage.load.reading.rows import TargetBatch


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Rebuild a batch with `change` applied to every element that is not a list, tuple or mapping.

    Containers keep their types; keys of mappings stay. What has a method `to` of its own, such as torch's
    `PackedSequence`, counts as one thing, whatever it derives from.
    """
    if not isinstance(batch, list | tuple | Mapping) or moves_itself(batch):
        return change(batch)
    filled: Any
    if isinstance(batch, Mapping):
        values = {key: map_leaves(value, change) for key, value in batch.items()}
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return values if type(batch) is dict else type(batch)(values)  # type: ignore[call-arg]
        # A copy keeps what else there is in a mapping, such as a defaultdict's factory, and in a subclass of list.
        filled = copy.copy(batch)
        filled.update(values)
        return filled
    parts = [map_leaves(part, change) for part in batch]
    if type(batch) is list:
        return parts
    if isinstance(batch, list):
        filled = copy.copy(batch)
        filled[:] = parts
        return filled
    return batch._make(parts) if hasattr(batch, "_make") else type(batch)(parts)


def moves_itself(thing: object) -> bool:
    """Tell whether an object that is not a tensor has a method to move it to a device."""
    return not isinstance(thing, torch.Tensor) and callable(getattr(thing, "to", None))


# What a batch is where each row has its own number of boxes or values.
Ragged = Literal["list", "pad"]

VALUES = "values"
LENGTHS = "lengths"

# Whole range of the integers that images come in.
WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
_MOST_CHANNELS = 4
_IMAGE_AXES = 3


# A consumer that waits wakes in a tenth of this. One that keeps its batches is waited for in vain so many times.
_HAND_OVER_S = 0.0005
_PATIENCE = 3
# Three of these are in the processor's caches as well as two.
_LARGE_BYTES = 4 * 1024 * 1024


def host_batches(
    dataset: dataset_h5,
    batches: Iterable[NDArray[np.intp]],
    *,
    workers: int,
    buffers: BufferPool,
    targets: BufferPool | None = None,
    ragged: Ragged = "list",
    together: int = 1,
    inputs: SplitReader | CroppedInputs | None = None,
    cancellation: Cancellation | None = None,
) -> Generator[tuple[Any, Any] | Heartbeat]:
    """Read batch after batch, once the file is in memory if it is to be.

    Args:
        dataset: where from.
        batches: rows of each batch, intp `(B,)`.
        workers: threads that copy or decode at once.
        buffers: memory of inputs of one shape.
        targets: that of targets of one shape; each has memory of its own by default.
        ragged: what boxes are handed on as.
        together: batches that are read at once, of rows and targets of one shape each: for small ones, of which each
            would cost more than its copy. They share their memory, without overlapping.
        inputs: what x is read by; the dataset's own reader by default.
        cancellation: stops the reading, also inside a batch.

    Yields:
        `(x, y)`, as `make_loader` describes them, in host memory and of the stored dtype; heartbeats before the first.
        Where the dataset has transforms, arrays as they are stored instead: what `batch_of` takes, in the caller's
        thread.
    """
    reader = dataset.reader
    inputs = reader if inputs is None else inputs
    for _ in reader.warm_up():
        yield HEARTBEAT
    with ThreadPool(workers, cancellation) as pool:

        def read(rows: NDArray[np.intp]) -> tuple[Any, Any]:
            x = y = None
            if inputs.row_shape is not None:
                x = buffers.borrow((len(rows), *inputs.row_shape), inputs.row_dtype)
            if targets is not None and reader.target_shape is not None and reader.target_dtype is not None:
                y = targets.borrow((len(rows), *reader.target_shape), reader.target_dtype)
            return inputs.read_x(rows, x, pool=pool), reader.read_y(rows, y, pool=pool)

        def make(rows: NDArray[np.intp]) -> tuple[Any, Any]:
            x, y = read(rows)
            return (x, y) if dataset.per_sample else (input_tensors(x, ragged), target_tensors(y, ragged))

        waiting = iter(batches)
        if together > 1:
            while group := list(islice(waiting, together)):
                yield from _each_batch(*read(np.concatenate(group)), group)
        # Whoever waits for a batch lets go of the one before it as soon as it comes, which the processor's caches may
        # still hold: so two buffers serve by turns, where the third would come from memory.
        patience = _PATIENCE if inputs.row_shape is not None else 0
        made: deque[tuple[Any, Any]] = deque()
        for rows in waiting:
            # Nothing here may keep a name on a batch: it would occupy a buffer while the next one is made.
            made.append(make(rows))
            hand_over = patience > 0 and pool.urgent and len(rows) * inputs.row_bytes >= _LARGE_BYTES
            if hand_over:
                buffers.expect_return()
            yield made.popleft()
            if hand_over and not buffers.await_return(_HAND_OVER_S):
                patience -= 1


def _each_batch(
    x: NDArray[Any], y: NDArray[Any], group: Sequence[NDArray[np.intp]]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batches of a group, whose rows follow each other in `x` and `y`."""
    # Converted once for the group, not for each batch.
    y, start = target_array(y), 0
    made: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
    for rows in group:
        stop = start + len(rows)
        # Each is a tensor of its own over its part: one that is saved or sent takes nothing of the others along.
        made.append((input_tensor(x[start:stop]), torch.from_numpy(y[start:stop])))
        start = stop
    del x, y
    # The last one that is handed out releases the group's memory.
    while made:
        yield made.popleft()


# Bytes read between two looks at whether anybody still waits.
_PART_BYTES = 64 * 1024 * 1024
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that are in memory at the same time."""

    rows: NDArray[np.intp]
    """Ascending."""
    x: NDArray[Any] | list[NDArray[Any]]
    """Inputs of each, in that order."""
    y: Any
    """Targets of each, in that order."""

    def take(self, rows: NDArray[np.intp], x: NDArray[Any] | None) -> tuple[Any, Any]:
        """Copy some rows' inputs, into `x` where there is one, and their targets."""
        # The window was read in ascending order, as a disk likes it.
        places = np.searchsorted(self.rows, rows)
        return _take(self.x, places, x), _take(self.y, places, None)


def _take(values: Any, places: NDArray[np.intp], out: NDArray[Any] | None) -> Any:
    if isinstance(values, np.ndarray):
        return np.take(values, places, axis=0, out=out, mode="clip")
    return [values[place] for place in places.tolist()]


def group_by_window(
    batches: Sequence[NDArray[np.intp]], rows_before: int, window_rows: int
) -> list[list[NDArray[np.intp]]]:
    """Group batches by the window that their rows are in. Windows hold whole batches.

    Args:
        batches: rows of the batches that are left.
        rows_before: how many rows of the epoch come before them.
        window_rows: how many rows make up a window, counted from the epoch's first.
    """
    groups: dict[int, list[NDArray[np.intp]]] = {}
    for rows in batches:
        groups.setdefault(rows_before // window_rows, []).append(rows)
        rows_before += len(rows)
    return list(groups.values())


class WindowReader:
    """Read windows, one ahead of the one in use, into two buffers that take turns: all the memory that is taken."""

    def __init__(
        self,
        reader: SplitReader,
        inputs: SplitReader | CroppedInputs,
        pool: ThreadPool,
        windows: list[NDArray[np.intp]],
    ) -> None:
        """Take `inputs`, what x is read by; y is read by `reader`."""
        self._reader = reader
        self._inputs = inputs
        self._pool = pool
        self._windows = windows
        self._buffers: list[NDArray[Any] | None] = [None, None]
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1, "colabstage-window")
        self._next: deque[Future[Window]] = deque()
        self._begin(0)

    def windows(self) -> Generator[Window | Heartbeat]:
        """Yield each window when it is there, heartbeats while it is not. One that was yielded is overwritten by the
        next but one."""
        for number in range(len(self._windows)):
            # Into the buffer of the window before, which is in use no more; and before this one is there, so that the
            # disk is not idle until this thread has taken notice of it.
            self._begin(number + 1)
            while self._next and not self._next[0].done():
                yield HEARTBEAT
                wait([self._next[0]], timeout=_LOOK_S)
            if not self._next:
                return
            window = self._next.popleft().result()
            yield window
            del window

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._next.clear()

    def _begin(self, number: int) -> None:
        """Have a window read after those that were begun before it."""
        if number < len(self._windows):
            self._next.append(self._thread.submit(self._read, number))

    def _read(self, number: int) -> Window:
        rows, inputs = self._windows[number], self._inputs
        x = self._buffer(number % 2, len(rows))
        step = max(1, _PART_BYTES // max(1, inputs.row_bytes))
        images: list[NDArray[Any]] = []
        for start in range(0, len(rows), step):
            # A window may take minutes, and nobody should wait for one that is not wanted.
            if self._stop.is_set():
                break
            part = rows[start : start + step]
            if x is None:
                images += inputs.read_x(part, None, pool=self._pool)
            else:
                inputs.read_x(part, x[start : start + len(part)], pool=self._pool)
        return Window(rows, images if x is None else x, self._reader.read_y(rows, pool=self._pool))

    def _buffer(self, turn: int, count: int) -> NDArray[Any] | None:
        shape = self._inputs.row_shape
        if shape is None:
            return None
        buffer = self._buffers[turn]
        # The last window is shorter and fits into the buffer of a whole one.
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[turn] = np.empty((count, *shape), self._inputs.row_dtype)
        return buffer[:count]


def window_batches(
    dataset: dataset_h5,
    batches: Sequence[NDArray[np.intp]],
    rows_before: int,
    window_rows: int,
    *,
    workers: int,
    buffers: BufferPool,
    ragged: Ragged,
    inputs: SplitReader | CroppedInputs,
    cancellation: Cancellation,
) -> Generator[tuple[Any, Any] | Heartbeat]:
    """Make batches out of windows: as `host_batches`, for batches in the order of `WindowOrder`.

    Args:
        rows_before: how many rows of the epoch come before these batches.
        window_rows: how many rows make up a window.
        inputs: what x is read by.
        cancellation: stops the reading, also inside a window.
    """
    groups = group_by_window(batches, rows_before, window_rows)
    windows = [np.sort(np.concatenate(group)) for group in groups]
    with (
        ThreadPool(workers, cancellation) as pool,
        closing(WindowReader(dataset.reader, inputs, pool, windows)) as ahead,
    ):
        waiting = iter(groups)
        for window in ahead.windows():
            if isinstance(window, Heartbeat):
                yield HEARTBEAT
                continue
            for rows in next(waiting):
                shape = inputs.row_shape
                out = None if shape is None else buffers.borrow((len(rows), *shape), inputs.row_dtype)
                # Transforms are not called in this thread: see `host_batches`.
                yield (
                    window.take(rows, out) if dataset.per_sample else batch_of(dataset, *window.take(rows, out), ragged)
                )
                del out


def batch_of(dataset: dataset_h5, x: Any, y: Any, ragged: Ragged) -> tuple[Any, Any]:
    """Make the batch of what was read of some rows: by the dataset's transforms, where it has any, which are called as
    a stock `DataLoader` calls them: in this thread, for one sample after the other. A side without one is what it is in
    batches without transforms."""
    if not dataset.per_sample:
        return input_tensors(x, ragged), target_tensors(y, ragged)
    samples = [dataset.sample(*parts) for parts in zip(x, y, strict=True)]
    xs, ys = (list(side) for side in zip(*samples, strict=True))
    # As a stock DataLoader stacks what a transform returns, so that code moves here unchanged.
    made_x = input_tensors(x, ragged) if dataset.transform is None else collate_results("transform", xs)
    if dataset.target_transform is None:
        return made_x, target_tensors(y, ragged)
    if dataset.reader.has_boxes:
        # It may have made something else of the dicts; that is handed on as it is.
        are_boxes = all(isinstance(target, dict) for target in ys)
        return made_x, target_tensors(ys, ragged if are_boxes else "list")
    return made_x, collate_results("target_transform", ys)


def is_image_shape(shape: tuple[int, ...] | None) -> bool:
    """Tell whether rows of this shape are images `(H, W, C)`, to be handed on as `(C, H, W)`: three axes, the last one
    at most 4 long. So are rows of many shapes that have three axes."""
    return shape is None or (len(shape) == 3 and 1 <= shape[-1] <= _MOST_CHANNELS)


def input_tensors(x: NDArray[Any] | list[Any], ragged: Ragged) -> Any:
    """Return inputs of a batch as tensors; images of their own sizes in a list of `(C, H, W)`, rows of variable length
    as `ragged` says, texts as they are."""
    if not isinstance(x, list):
        return input_tensor(x)
    parts = _tensors(x)
    # Images `(H, W, C)` among what has shapes of its own.
    return _ragged(
        [
            part.permute(2, 0, 1) if isinstance(part, torch.Tensor) and part.dim() == _IMAGE_AXES else part
            for part in parts
        ],
        ragged,
    )


def input_tensor(x: NDArray[Any]) -> torch.Tensor:
    """Return inputs as a tensor over the same memory; images `(B, H, W, C)` as a `(B, C, H, W)` view
    (`channels_last`)."""
    tensor = torch.from_numpy(x)
    return tensor.permute(0, 3, 1, 2) if is_image_shape(x.shape[1:]) else tensor


def target_tensors(y: TargetBatch, ragged: Ragged) -> Any:
    """Return targets of a batch as tensors; those of rows with shapes of their own in a list, boxes and rows of any
    length as `ragged` says."""
    if not isinstance(y, list):
        return target_tensor(y)
    return _ragged(_tensors(y), ragged)


def _tensors(values: list[Any]) -> list[Any]:
    def convert(part: Any) -> Any:
        return torch.from_numpy(part) if isinstance(part, np.ndarray) else part

    return [map_leaves(value, convert) for value in values]


def _ragged(rows: list[Any], ragged: Ragged) -> Any:
    if ragged == "list":
        return rows
    if all(isinstance(row, dict) for row in rows):
        return pad_targets(rows)
    # Images and masks of their own sizes, and texts, stay a list.
    return pad_values(rows) if all(isinstance(row, torch.Tensor) and row.dim() == 1 for row in rows) else rows


def pad_targets(targets: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pad boxes of B rows, of M at most, to tensors of one shape.

    Returns:
        Every column as `(B, M, …)`, filled up with -1 for signed integers and with 0 for everything else, and
        `lengths`, int64 `(B,)`: how many of each row are real. Labels become int64 where their type has no -1, since 0
        is a class.
    """
    padded = {
        name: _pad_rows([_as_int64(target[name]) if name == LABELS else target[name] for target in targets])
        for name in targets[0]
    }
    return {**padded, LENGTHS: torch.tensor([len(target[BOXES]) for target in targets])}


def _as_int64(labels: torch.Tensor) -> torch.Tensor:
    return labels if labels.is_floating_point() or labels.dtype in _SIGNED else labels.long()


def pad_values(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pad B rows of variable length, of M at most, to tensors of one shape.

    Returns:
        `values`, `(B, M)`, filled up with -1 for signed integers and with 0 for everything else, and `lengths`, int64
        `(B,)`: how many of each row are real.
    """
    return {VALUES: _pad_rows(rows), LENGTHS: torch.tensor([len(row) for row in rows])}


def _pad_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=filler_of(rows[0].dtype))


def filler_of(dtype: torch.dtype) -> int:
    """Return the padding value: -1 for signed integers, 0 for everything else."""
    # -1 is not a class, so a loss with ignore_index=-1 skips it; 0 would be the first class.
    return -1 if dtype in _SIGNED else 0


def target_tensor(y: NDArray[Any]) -> torch.Tensor:
    """Return targets as a tensor: int64 where each is one integer, as losses expect them; as stored otherwise."""
    return torch.from_numpy(target_array(y))


def target_array(y: NDArray[Any]) -> NDArray[Any]:
    """Return targets as `target_tensor` gives them, still in numpy."""
    return y.astype(np.int64) if y.ndim == 1 and y.dtype.kind in "iu" else y


def torch_dtype(dtype: torch.dtype | DTypeLike | None) -> torch.dtype | None:
    """Return the floating-point dtype that is meant by torch's, numpy's or a name of it; `None` for `None`.

    Raises:
        OptionError: it is none.
    """
    if dtype is None:
        return None
    name: object = dtype
    if not isinstance(dtype, str | torch.dtype):
        # numpy's have the names of torch's.
        with suppress(TypeError):
            name = np.dtype(dtype).name
    # As Keras has it, and as torch prints it.
    found = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else name
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        msg = (
            f'dtype={dtype!r} is not a floating-point dtype; expected one such as torch.float32 or "float32". Leave it '
            "out for batches as they are stored."
        )
        raise OptionError(msg)
    return found


def scale_to(x: Any, dtype: torch.dtype) -> Any:
    """Convert tensors, also in lists, to a floating-point dtype on the device they are on; uint8 and uint16 become
    [0, 1], other values stay. Of padded rows the values are converted; texts stay."""
    if isinstance(x, list):
        return [scale_to(part, dtype) for part in x]
    if isinstance(x, dict) and VALUES in x:
        return {**x, VALUES: scale_to(x[VALUES], dtype)}
    # A text is nobody's number.
    if isinstance(x, str):
        return x
    white = WHITE.get(x.dtype)
    if white is None:
        # Floats and wide integers say nothing of a range that they come in.
        return x.to(dtype)
    # 65535 is beyond float16, so its range is divided first.
    wide = torch.float32 if x.dtype == torch.uint16 else dtype
    scaled = x.to(wide)
    # CUDA multiplies by the reciprocal of a number, which differs in the last bit from the division that CPUs do.
    divisor = white if not x.is_cuda else torch.full((), white, dtype=wide, device=x.device)
    return scaled.div_(divisor).to(dtype)


def move_to(x: Any, device: torch.device) -> Any:
    """Copy tensors, also in lists and dicts, to a device; those that are there already stay."""
    return map_leaves(x, lambda part: part.to(device) if isinstance(part, torch.Tensor) else part)


def map_batches(
    batches: Generator[tuple[Any, ...] | Heartbeat], change: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> Generator[tuple[Any, ...] | Heartbeat]:
    """Yield the batches, each changed where it is made: in the thread that prepares them."""

    def changed(batch: tuple[Any, ...] | Heartbeat) -> tuple[Any, ...] | Heartbeat:
        return batch if isinstance(batch, Heartbeat) else change(batch)

    try:
        # Not a loop: its variable would keep a batch alive while the next one is made.
        yield from map(changed, batches)
    finally:
        batches.close()


def pin(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a batch with its tensors in pinned memory, which a GPU can copy from asynchronously."""
    pinned: tuple[Any, ...] = map_leaves(
        batch, lambda leaf: leaf.pin_memory() if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" else leaf
    )
    return pinned


@dataclass(frozen=True, slots=True)
class Finish:
    """Apply the last steps, dtype and batch transform, to batches `(x, y)` or `(x, y, index)`."""

    dtype: torch.dtype | None
    """Of x, `None` to leave it."""
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None
    """Of `(x, y)`."""

    def scale(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the batch with x in its dtype, on the device that it is on."""
        return batch if self.dtype is None else (scale_to(batch[0], self.dtype), *batch[1:])

    def transform(self, batch: tuple[Any, ...], place: BatchPlace | None = None) -> Any:
        """Return the batch as the caller gets it: `(x, y)`, or `((x, y), index)`. `place`: where it stands, if that is
        known, for transforms that take it."""
        # With `return_index` the batch has a third part.
        x, y, *index = batch
        sample, change = (x, y), self.batch_transform
        if change is not None:
            sample = apply_transform(change, x, y, place)
        return (sample, index[0]) if index else sample

    def collate(self, batch: tuple[Any, ...]) -> Any:
        """Finish what frameworks get that build loaders of our parts: it is in host memory by then. Stands where they
        expect a `collate_fn`."""
        return self.transform(self.scale(batch))

"""Read rows that are not plain arrays: image and mask files, which are decoded, boxes, and rows of variable length.

Image files are mostly stored as one long dataset of bytes with the offset of each row. HDF5 files from other tools hold
numbers and texts of variable length as pointers into a heap that only HDF5 can follow. A row costs 40 to 120 µs if 64
are read at random places, 5 µs if one call reads 1,024, and 2 to 5 µs if all are read front to back. So the rows of a
batch are read together, and rows that fit into memory are read into it once.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import DamagedPackError, DecodeError, PackFormatError
from colabstage.h5.schema import BOXES
from colabstage.h5.untrusted import reading_contents
from colabstage.images.decode import (
    PixelRoom,
    Scratch,
    decode_image_into,
    decode_sized,
    probe_image,
)
from colabstage.images.geometry import MaskOptions, fit_boxes
from colabstage.images.masks import decode_mask
from colabstage.images.region import WholeImage, decode_region, decode_whole, region_factor
from colabstage.images.resample import can_torch_resize, scale_by_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from colabstage.images.geometry import ColorMode, ImageOptions
    from colabstage.images.region import Crop
    from colabstage.images.resample import Resizer
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.engines import RowEngine, StorageFacts
    from colabstage.load.reading.memory import KeptImages, KeptSlot, Key, Room

# Key of kept images in the form that `EncodedRows.read` returns; for images that crops are cut from, the scale factor.
_FINAL = -1


def resize_into(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Resize uint8 `(h, w, C)` into `out`, `(H, W, C)`, by the antialiased bilinear filter. Safe in threads.

    torch's filter for bytes is used if torch is there: it agrees with Pillow's within one grey level of 255 and takes a
    quarter of its time, because it needs no copies to and from four channels (benchmarks/read_jpeg.py).
    """
    # Packing has resized the image already.
    if pixels.shape == out.shape:
        out[...] = pixels
        return
    try:
        # A contiguous copy made by numpy: torch would copy with several threads, which costs a hundred times as much
        # while the cores decode other images.
        scale_by_torch(np.ascontiguousarray(pixels), out)
    except ImportError:
        from PIL import Image

        height, width, channels = out.shape
        image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels))
        out[...] = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).reshape(out.shape)


def check_offsets(offsets: NDArray[np.int64], count: int, label: str, what: str) -> None:
    """Make sure that offsets ascend and stay within the `count` values that they divide; `what` names these values.

    Raises:
        DamagedPackError: they do not.
    """
    if len(offsets) and (offsets[0] < 0 or offsets[-1] > count or bool((np.diff(offsets) < 0).any())):
        msg = f"The offsets of {label} do not ascend inside its {count:,} {what}. Stage or copy the file again."
        raise DamagedPackError(msg)


class EncodedRows:
    """Decode image or mask files when they are read. Safe in threads."""

    def __init__(
        self,
        label: str,
        read_bytes: Callable[[int], bytes],
        count: int,
        options: ImageOptions | MaskOptions,
        *,
        resizer: Resizer = "pillow",
        slot: KeptSlot | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Take `label`, the name of the dataset in messages. `read_bytes`: returns the image file of one of `count`
        rows; called from several threads at once. `options`: what images or masks are decoded to. `resizer`: resizes
        images; Pillow does if torch cannot. `slot`: where decoded images are kept, if they are. `check`: raises an
        error if the HDF5 file has changed since it was opened."""
        self._label = label
        self.read_bytes = read_bytes
        self._options = options
        resizes = not isinstance(options, MaskOptions) and options.size is not None
        self._resizer: Resizer = "torch" if resizer == "torch" and resizes and can_torch_resize() else "pillow"
        self._slot, self._check = slot, check
        self._own = threading.local()
        self._room = PixelRoom()
        # Height and width of each row's image, 0 until its header has been read.
        self._sizes = np.zeros((count, 2), np.int32)

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> Any:
        """Decode rows into `out`, `(len(rows), H, W, C)` (masks `(len(rows), H, W)`), if all have one size and dtype.
        Without `out`, return a list of arrays, each of its own size.

        Raises:
            DecodeError: a row is broken; the message names it.
            CancelledError: the pool was told to stop.
        """
        images: list[NDArray[Any]] = [np.empty(0)] * len(rows)
        number, kept = self._find_kept()

        def decode(place: int) -> None:
            row = int(rows[place])
            key = (number, row, _FINAL)
            found = None if kept is None else kept.find(key)
            if found is not None:
                if out is None:
                    # A copy, because the caller may change it.
                    images[place] = found.pixels.copy()
                else:
                    out[place] = found.pixels
                return
            try:
                if out is None:
                    images[place] = self._decode(row)
                else:
                    self._decode_into(row, out[place])
            except DecodeError as error:
                raise self._named(row, error) from error
            if kept is not None:
                kept.keep(key, images[place] if out is None else out[place])

        pool.each(len(rows), decode)
        return images if out is None else out

    def decode_crops(
        self, rows: NDArray[np.intp], crops: NDArray[np.int64], out: NDArray[np.uint8], pool: ThreadPool
    ) -> None:
        """Decode a part of each row, resized by the antialiased bilinear filter, into `out`.

        Args:
            rows: `(B,)`.
            crops: int64 `(B, 4)`: top, left, height and width of each part in the upright image, in pixels.
            out: uint8 `(B, H, W, C)`, C-contiguous; 3 channels, or 1 for images that are decoded to grayscale.
            pool: threads that share the work.

        Raises:
            DecodeError: a row is broken; the message names it.
            CancelledError: the pool was told to stop.
        """
        if isinstance(self._options, MaskOptions):
            msg = f"{self._label} holds masks; only images are cropped when they are read."
            raise TypeError(msg)
        mode, (height, width) = self._options.color_mode, out.shape[1:3]
        number, kept = self._find_kept()
        # Converted together: an element of an array, taken singly, is a slow numpy object.
        numbers, parts = rows.tolist(), [tuple(crop) for crop in crops.tolist()]

        def cut(place: int) -> None:
            row, scratch = numbers[place], self._scratch().decoded
            factor = region_factor(parts[place], (height, width))
            try:
                found = None if kept is None else kept.find((number, row, factor)) or kept.find((number, row, 0))
                if found is not None:
                    part = WholeImage(found.pixels, *found.facts).cut(parts[place])
                else:
                    data = self.read_bytes(row)
                    whole = None
                    if kept is not None:
                        whole = self._keep_whole(kept, (number, row, factor), data, mode, parts[place])
                    if whole is None:
                        part = decode_region(data, mode, parts[place], (height, width), scratch=scratch)
                    else:
                        part = whole.cut(parts[place])
            except DecodeError as error:
                raise self._named(row, error) from error
            resize_into(part, out[place])

        pool.each(len(rows), cut)

    def _keep_whole(self, kept: KeptImages, key: Key, data: bytes, mode: ColorMode, crop: Crop) -> WholeImage | None:
        """Decode a whole image and keep it for crops at the scale factor in `key`; `None` if it is not to be kept."""
        number, row, factor = key
        height, width = self._sizes[row].tolist()
        if not kept.fits(-(-height // factor) * -(-width // factor) * (1 if mode == "grayscale" else 3)):
            return None
        # Decoded directly into the memory in which it is kept: a copy would add a tenth of the time.
        rooms: list[Room] = []

        def reserve(nbytes: int) -> NDArray[np.uint8] | None:
            room = kept.reserve(nbytes)
            if room is None:
                return None
            rooms.append(room)
            return room.memory

        whole = None
        try:
            with self._room.room_for(data):
                whole = decode_whole(data, mode, crop, factor, reserve=reserve)
        finally:
            # For some files only decoding shows that they are not to be kept.
            if whole is None and rooms:
                kept.give_back(rooms[0])
        if whole is not None:
            key, facts = (number, row, whole.factor), (whole.factor, whole.header)
            if rooms:
                # Perhaps that of another thread, which has decoded the same image: the room of ours is the next one's.
                return WholeImage(kept.put(rooms[0], key, whole.pixels, facts).pixels, *facts)
            kept.keep(key, whole.pixels, facts)
        return whole

    def _find_kept(self) -> tuple[int, KeptImages | None]:
        """Return the number of this field among kept images, and the kept images, `None` if there are none."""
        kept = None if self._slot is None else self._slot.kept
        if self._slot is None or kept is None:
            return 0, None
        kept.attend()
        # Kept images come from the file that was opened. Reading would notice that it has changed; this must too.
        if self._check is not None:
            self._check()
        return self._slot.number, kept

    def decoded_lengths(self, rows: NDArray[np.intp]) -> list[int]:
        """Return the lengths in bytes of rows once they are decoded at their own sizes, from the headers of their
        files. Broken rows are left out."""
        lengths = []
        for row in rows:
            # An estimate can do without a broken row; reading will name it.
            with contextlib.suppress(DecodeError):
                facts = probe_image(self.read_bytes(int(row)))
                lengths.append(facts.height * facts.width * facts.channels * facts.dtype.itemsize)
        return lengths

    def own_sizes(self, rows: NDArray[np.intp], pool: ThreadPool) -> NDArray[np.int64]:
        """Return height and width of the upright images, int64 `(len(rows), 2)`, from the headers of their files.

        Raises:
            DecodeError: a row is broken; the message names it.
            CancelledError: the pool was told to stop.
        """
        # Each header is read only once, because crops and boxes need the sizes in every epoch.
        for row in rows[self._sizes[rows, 0] == 0].tolist():
            pool.cancellation.check()
            try:
                facts = probe_image(self.read_bytes(row))
            except DecodeError as error:
                raise self._named(row, error) from error
            self._sizes[row] = facts.height, facts.width
        return self._sizes[rows].astype(np.int64)

    def _decode(self, row: int) -> NDArray[Any]:
        data = self.read_bytes(row)
        # Large images wait for each other, so that the threads together do not fill memory.
        with self._room.room_for(data):
            if isinstance(self._options, MaskOptions):
                return decode_mask(data, self._options)
            return decode_sized(data, self._options, resizer=self._resizer)[0]

    def _decode_into(self, row: int, out: NDArray[Any]) -> None:
        data = self.read_bytes(row)
        with self._room.room_for(data):
            if isinstance(self._options, MaskOptions):
                out[...] = decode_mask(data, self._options)
            else:
                decode_image_into(data, self._options, out, resizer=self._resizer, scratch=self._scratch())

    def _scratch(self) -> Scratch:
        """Return the calling thread's own memory to decode and resize into."""
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch()
        scratch: Scratch = self._own.scratch
        return scratch

    def _named(self, row: int, error: DecodeError) -> DecodeError:
        return DecodeError(f"Row {row} of {self._label} cannot be decoded. {error}")


# Targets of B rows: one array `(B, …)`, or a list of B if rows have different shapes.
TargetBatch = NDArray[Any] | list[NDArray[Any]] | list[dict[str, NDArray[Any]]] | list[str]


class BoxTargets:
    """Read the boxes of each row, with their labels and other columns.

    If images are resized when they are read, their boxes are transformed with them: the images' own sizes are read from
    their headers, and `image` says how they are fitted.
    """

    def __init__(
        self,
        label: str,
        offsets: NDArray[np.int64],
        columns: Mapping[str, tuple[RowEngine, StorageFacts]],
        *,
        image: ImageOptions | None = None,
        sizes_of: Callable[[NDArray[np.intp], ThreadPool], NDArray[np.int64]] | None = None,
    ) -> None:
        """Take `label`, the name of the dataset in messages. `offsets`: int64 `(N + 1,)`. `columns`: by name, `boxes`
        among them. `sizes_of`: returns height and width of the images of B rows, int64 `(B, 2)`.

        Raises:
            DamagedPackError: the offsets do not ascend, or exceed the columns.
        """
        check_offsets(offsets, columns[BOXES][1].shape[0], label, "boxes")
        self._offsets = offsets
        self._columns = columns
        self._image = image
        self._sizes_of = sizes_of

    def read(
        self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None
    ) -> list[dict[str, NDArray[Any]]]:
        """Return a dict for each row: `boxes`, float32 `(M, 4)`, and every other column, `(M, …)`."""
        starts = self._offsets[rows]
        # Boxes of all rows are gathered at once: a read for each row would cost more than its boxes.
        counts = self._offsets[rows + 1] - starts
        ends = np.cumsum(counts)
        wanted = (np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())).astype(np.intp)
        values: dict[str, NDArray[Any]] = {}
        for name, (engine, facts) in self._columns.items():
            values[name] = np.empty((len(wanted), *facts.shape[1:]), facts.dtype)
            if len(wanted):
                engine.read_rows(wanted, values[name], pool)
        if self._image is not None and self._sizes_of is not None and self._image.size is not None:
            sizes = np.repeat(self._sizes_of(rows, pool), counts, axis=0)
            moved, kept = fit_boxes(values[BOXES].astype(np.float64), sizes, self._image.size, self._image.resize)
            values[BOXES] = moved.astype(values[BOXES].dtype)
            values = {name: column[kept] for name, column in values.items()}
            # Boxes outside the image were dropped, which moves the end of each row.
            ends = np.concatenate([[0], np.cumsum(kept)])[ends]
        starts = np.concatenate([[0], ends[:-1]])
        # Copies, because a view would keep the boxes of the whole batch in memory.
        return [
            {name: column[start:end].copy() for name, column in values.items()}
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


# Bytes that `keep_rows` reads at once.
_BLOCK_BYTES = 16 * 1024 * 1024
_BLOCK_ROWS = 65_536
# Fewer keys than this are read one by one, at 50 µs each; all of 200,000 take 100 ms.
_FEW_KEYS = 256
# `check_are_images` looks for a row that is not empty among this many.
_LOOKED_AT = 16


class H5pyRagged:
    """Read rows through h5py, whose lock lets one thread read at a time."""

    def __init__(self, dataset: Any, path: Path) -> None:
        self._dataset = dataset
        self._path = path

    def read(self, rows: NDArray[np.intp]) -> list[Any]:
        """Read the values of `rows`, each in `[0, N)`, as one-dimensional arrays that share no memory; texts may be
        `bytes`.

        Raises:
            DamagedPackError: the heap is broken, or a pointer does not lead to a row in it.
        """
        if not len(rows):
            return []
        wanted, places = np.unique(rows, return_inverse=True)
        first, last = int(wanted[0]), int(wanted[-1])
        # h5py takes only ascending lists; a run of neighbours is faster as a slice.
        chosen = slice(first, last + 1) if last - first == len(wanted) - 1 else wanted
        with reading_contents(self._path):
            found = self._dataset[chosen].tolist()
        taken = [found[place] for place in places.tolist()]
        # A row that was asked for twice must not be the same array twice.
        if len(wanted) == len(rows):
            return taken
        return [value.copy() if isinstance(value, np.ndarray) else value for value in taken]


class KeptRagged:
    """Keep rows in memory, in blocks of `step` rows: one array of the block's values (`bytes` for texts) and the
    offsets of its rows."""

    def __init__(self, step: int, blocks: list[NDArray[Any] | bytes], offsets: list[NDArray[np.int64]]) -> None:
        self._step = step
        self._blocks = blocks
        none = np.empty(0, np.int64)
        self._starts = np.concatenate([none, *(block[:-1] for block in offsets)])
        self._stops = np.concatenate([none, *(block[1:] for block in offsets)])

    def read(self, rows: NDArray[np.intp]) -> list[Any]:
        """Read as `H5pyRagged.read`."""
        places = (side[rows].tolist() for side in (self._starts, self._stops))
        blocks = (rows // self._step).tolist()
        found = [self._blocks[block][start:stop] for block, start, stop in zip(blocks, *places, strict=True)]
        # Slices of bytes are copies already.
        return [value.copy() if isinstance(value, np.ndarray) else value for value in found]


# Reads rows of variable length in any order; safe in threads.
RaggedSource = H5pyRagged | KeptRagged


def keep_rows(
    source: RaggedSource, count: int, dtype: np.dtype[Any], mean_bytes: int, most_bytes: int
) -> KeptRagged | None:
    """Read all rows into memory, front to back.

    Args:
        source: reads the rows.
        count: how many rows there are.
        dtype: dtype of one value; uint8 for texts.
        mean_bytes: estimated length of a row in bytes.
        most_bytes: how many bytes all rows together may have.

    Returns:
        The rows in memory, `None` if they exceed `most_bytes`.
    """
    step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, mean_bytes)))
    blocks: list[NDArray[Any] | bytes] = []
    offsets: list[NDArray[np.int64]] = []
    held = 0
    for start in range(0, count, step):
        rows = source.read(np.arange(start, min(count, start + step)))
        block = b"".join(rows) if isinstance(rows[0], bytes) else np.concatenate(rows, dtype=dtype)
        blocks.append(block)
        offsets.append(np.cumsum([0, *map(len, rows)], dtype=np.int64))
        held += (len(block) if isinstance(block, bytes) else block.nbytes) + 2 * offsets[-1].nbytes
        # Checked here, because lengths are only known once rows have been read.
        if held > most_bytes:
            return None
    return KeptRagged(step, blocks, offsets)


class RaggedRows:
    """Read inputs or targets of variable length: arrays `(M,)`, or texts as `str`."""

    def __init__(self, label: str, source: RaggedSource, *, texts: bool) -> None:
        """Take `label`, the name of the dataset in messages."""
        self._label = label
        self._source = source
        self._texts = texts

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> list[Any]:
        """Read the values of `rows`, each in `[0, N)`: a list of `(M,)` arrays that the caller may change, or of `str`.

        Raises:
            DamagedPackError: the heap that holds the values is broken.
            DecodeError: a text is not UTF-8; the message names its row.
        """
        values = self._source.read(rows)
        if not self._texts:
            return values
        # The fast way, which only fails for a text that is not UTF-8.
        with contextlib.suppress(UnicodeDecodeError):
            return [value.decode() for value in values]
        return [self._text(row, value) for row, value in zip(rows.tolist(), values, strict=True)]

    def _text(self, row: int, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            msg = f"Row {row} of {self._label} is not UTF-8 text ({error}). Write it again with h5py.string_dtype()."
            raise DecodeError(msg) from error


def check_are_images(dataset: Any, path: Path) -> None:
    """Make sure that rows of bytes are image files, by the first row that is not empty.

    Raises:
        PackFormatError: it is not an image file.
    """
    name = str(dataset.name).lstrip("/")
    for row in range(min(_LOOKED_AT, int(dataset.shape[0]))):
        data = bytes(dataset[row])
        if not data:
            continue
        try:
            probe_image(data)
        except DecodeError as error:
            msg = f"Row {row} of {name} in '{path}' is not an image file, which decode=True needs. {error}"
            raise PackFormatError(msg) from error
        return


def read_keys(dataset: Any, rows: NDArray[np.intp] | None) -> list[str]:
    """Return texts of an open dataset; all of them if `rows` is `None`.

    A few are read one by one, so that showing one page of 200,000 keys does not read them all.
    """
    texts = dataset.asstr()
    if rows is not None and len(rows) <= _FEW_KEYS:
        return [str(texts[row]) for row in rows.tolist()]
    every = texts[()].tolist()
    return [str(key) for key in (every if rows is None else (every[row] for row in rows.tolist()))]

"""Read rows that are no plain array: image and mask files, which are decoded, boxes of any number, rows of any length.

Image files are mostly one long dataset of bytes and the offsets of each row. The numbers and texts of variable length
that HDF5 files of other tools hold are pointers into a heap that HDF5 alone follows. 64 rows at random places cost 40
to 120 µs each, 1,024 by one call 5 µs, and all of them front to back 2 to 5 µs: so rows of a batch are asked for
together, and those that fit are read into memory once.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import DamagedPackError, DecodeError, PackFormatError
from colabstage.h5.schema import BOXES
from colabstage.h5.untrusted import HeapReferences, reading_contents
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

# The form of images as `EncodedRows.read` returns them; those from which crops are cut have the factor in its place.
_FINAL = -1


def resize_into(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Resize `(h, w, C)` to the size of `out`, `(H, W, C)`, by the antialiased bilinear filter.

    By torch's own filter for bytes, where there is torch: it is Pillow's within one grey level of 255, and takes a
    quarter of its time, as it needs no copy into four channels and none out of them (benchmarks/read_jpeg.py). By
    Pillow's otherwise. May be called from several threads.
    """
    # Nothing to resize, which is the case where packing did it.
    if pixels.shape == out.shape:
        out[...] = pixels
        return
    try:
        # torch would share the copy of a part out among threads of its own, which costs a hundred times as much when
        # the cores are busy with other images.
        scale_by_torch(np.ascontiguousarray(pixels), out)
    except ImportError:
        from PIL import Image

        height, width, channels = out.shape
        image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels))
        out[...] = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).reshape(out.shape)


def check_offsets(offsets: NDArray[np.int64], count: int, label: str, what: str) -> None:
    """Make sure that offsets ascend inside the `count` values that they are of, which `what` names.

    Raises:
        DamagedPackError: they do not.
    """
    if len(offsets) and (offsets[0] < 0 or offsets[-1] > count or bool((np.diff(offsets) < 0).any())):
        msg = f"The offsets of {label} do not ascend inside its {count:,} {what}. Stage or copy the file again."
        raise DamagedPackError(msg)


class EncodedRows:
    """Decode image or mask files when they are read. From several threads at once."""

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
        """Take `label`, where the rows are, for messages. `read_bytes`: reads the file of one of `count` rows, as
        it was packed; from several threads at once. `options`: whether they are images or masks, and what is made of
        them. `resizer`: what brings images to the size of the options; Pillow where torch cannot. `slot`: where
        decoded images are kept, if anybody keeps them. `check`: makes sure that the file is still what was opened,
        where `read_bytes` does that."""
        self._label = label
        self.read_bytes = read_bytes
        self._options = options
        resizes = not isinstance(options, MaskOptions) and options.size is not None
        self._resizer: Resizer = "torch" if resizer == "torch" and resizes and can_torch_resize() else "pillow"
        self._slot, self._check = slot, check
        self._own = threading.local()
        self._room = PixelRoom()
        # Height and width of each row's image once its header was read, 0 before.
        self._sizes = np.zeros((count, 2), np.int32)

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> Any:
        """Decode rows into `out`, `(len(rows), H, W, C)` (masks `(len(rows), H, W)`) of the one size and dtype that
        all of them have; without it return a list of arrays of whatever size each has.

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
                    # The caller may change it.
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
            pool: who shares the work.

        Raises:
            DecodeError: a row is broken; the message names it.
            CancelledError: the pool was told to stop.
        """
        if isinstance(self._options, MaskOptions):
            msg = f"{self._label} holds masks; only images are cropped when they are read."
            raise TypeError(msg)
        mode, (height, width) = self._options.color_mode, out.shape[1:3]
        number, kept = self._find_kept()
        # At once: each number of an array, by itself, is an object of numpy's.
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
        """Decode all of an image and keep it for crops of the factor in `key`; `None` where it is not to be kept."""
        number, row, factor = key
        height, width = self._sizes[row].tolist()
        if not kept.fits(-(-height // factor) * -(-width // factor) * (1 if mode == "grayscale" else 3)):
            return None
        # Straight into the memory in which it is kept: a copy would take a tenth of what keeping does.
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
            # Of some files it shows only then that they are not to be kept.
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
        """Return where decoded images are kept, if anybody keeps any, and the number of this field there."""
        kept = None if self._slot is None else self._slot.kept
        if self._slot is None or kept is None:
            return 0, None
        kept.attend()
        # Images that are kept are of the file that was opened, and reading would notice that it is another one.
        if self._check is not None:
            self._check()
        return self._slot.number, kept

    def decoded_lengths(self, rows: NDArray[np.intp]) -> list[int]:
        """Return the lengths in bytes of rows at their files' own sizes, from their headers; those of broken rows are
        left out."""
        lengths = []
        for row in rows:
            # An estimate needs no row in particular; reading will name the broken one.
            with contextlib.suppress(DecodeError):
                facts = probe_image(self.read_bytes(int(row)))
                lengths.append(facts.height * facts.width * facts.channels * facts.dtype.itemsize)
        return lengths

    def own_sizes(self, rows: NDArray[np.intp], pool: ThreadPool) -> NDArray[np.int64]:
        """Return the height and width of rows as their files have them, upright, int64 `(len(rows), 2)`, from their
        headers.

        Raises:
            DecodeError: a row is broken; the message names it.
            CancelledError: the pool was told to stop.
        """
        # Each header is read once in a process: crops and boxes ask for sizes in every epoch.
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
        # Large images wait for each other, so that threads do not fill memory together.
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
        """Return memory to decode and resize into, of the calling thread alone."""
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch()
        scratch: Scratch = self._own.scratch
        return scratch

    def _named(self, row: int, error: DecodeError) -> DecodeError:
        return DecodeError(f"Row {row} of {self._label} cannot be decoded. {error}")


# Targets of B rows: one array `(B, …)`, or where rows have their own shapes a list of B.
TargetBatch = NDArray[Any] | list[NDArray[Any]] | list[dict[str, NDArray[Any]]] | list[str]


class BoxTargets:
    """Read boxes of each row, and what else is known of them.

    Where images are resized when they are read, boxes move with them: then the images' own sizes are read from their
    headers, and `image` says how they are fitted.
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
        """Take `label`, where they are, for messages. `offsets`: int64 `(N + 1,)`. `columns`: by name, `boxes` among
        them. `sizes_of`: height and width of rows' images, int64 `(B, 2)`.

        Raises:
            DamagedPackError: the offsets do not ascend, or reach outside.
        """
        check_offsets(offsets, columns[BOXES][1].shape[0], label, "boxes")
        self._offsets = offsets
        self._columns = columns
        self._image = image
        self._sizes_of = sizes_of

    def read(
        self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None
    ) -> list[dict[str, NDArray[Any]]]:
        """Return for each row a dict: `boxes`, float32 `(M, 4)`, and every other column, `(M, …)`."""
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
            # Boxes outside have gone, so each row's end moves down by those before it.
            ends = np.concatenate([[0], np.cumsum(kept)])[ends]
        starts = np.concatenate([[0], ends[:-1]])
        # Of each row its own: a view would keep the boxes of the whole batch.
        return [
            {name: column[start:end].copy() for name, column in values.items()}
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


# Read at once on the way into memory.
_BLOCK_BYTES = 16 * 1024 * 1024
_BLOCK_ROWS = 65_536
# Fewer keys than this are read one by one, at 50 µs each; all of 200,000 take 100 ms.
_FEW_KEYS = 256
# Rows that are looked at for one with any bytes.
_LOOKED_AT = 16


class H5pyRagged:
    """Read rows through h5py, whose lock lets one thread read at a time."""

    def __init__(self, dataset: Any, path: Path) -> None:
        self._dataset = dataset
        self._path = path
        self._references = HeapReferences(dataset, str(dataset.name).lstrip("/"))

    def read(self, rows: NDArray[np.intp]) -> list[Any]:
        """Read the values of `rows`, each in `[0, N)`: one-dimensional arrays of their own, of texts perhaps `bytes`.

        Raises:
            DamagedPackError: their heap is broken, or references do not lead to rows in it.
        """
        if not len(rows):
            return []
        wanted, places = np.unique(rows, return_inverse=True)
        first, last = int(wanted[0]), int(wanted[-1])
        # h5py takes lists in ascending order only; a run needs none.
        chosen = slice(first, last + 1) if last - first == len(wanted) - 1 else wanted
        with reading_contents(self._path):
            self._references.check(wanted)
            found = self._dataset[chosen].tolist()
        taken = [found[place] for place in places.tolist()]
        # A row asked for twice must not be one array in two places.
        if len(wanted) == len(rows):
            return taken
        return [value.copy() if isinstance(value, np.ndarray) else value for value in taken]


class KeptRagged:
    """Keep rows in our own memory: blocks of `step` rows, each one array of all values, of texts `bytes`, and where
    each row of it begins."""

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


# What reads rows of variable length at random, by several threads at once.
RaggedSource = H5pyRagged | KeptRagged


def keep_rows(
    source: RaggedSource, count: int, dtype: np.dtype[Any], mean_bytes: int, most_bytes: int
) -> KeptRagged | None:
    """Read all rows into memory, front to back.

    Args:
        source: of `count` rows.
        dtype: of one value; uint8 for texts.
        mean_bytes: about how many bytes a row has.
        most_bytes: how many all of them may have.

    Returns:
        `None` where they have more.
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
        # While reading, because only then their length is known.
        if held > most_bytes:
            return None
    return KeptRagged(step, blocks, offsets)


class RaggedRows:
    """Read inputs or targets of variable length: arrays `(M,)`, or texts as `str`."""

    def __init__(self, label: str, source: RaggedSource, *, texts: bool) -> None:
        """Take `label`, where they are, for messages."""
        self._label = label
        self._source = source
        self._texts = texts

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> list[Any]:
        """Read the values of `rows`, each in `[0, N)`: a list of `(M,)` arrays, each the caller's own, or of `str`.

        Raises:
            DamagedPackError: the file is broken where they are.
            DecodeError: a text is not UTF-8; the message names its row.
        """
        values = self._source.read(rows)
        if not self._texts:
            return values
        # All at once, as they nearly always can be.
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
    """Make sure, by the first row that has any, that rows of bytes are image files.

    Raises:
        PackFormatError: they are not.
    """
    name = str(dataset.name).lstrip("/")
    HeapReferences(dataset, name).check(np.arange(min(_LOOKED_AT, int(dataset.shape[0]))))
    for row in range(min(_LOOKED_AT, int(dataset.shape[0]))):
        data = bytes(dataset[row])
        # An empty row says nothing of the others.
        if not data:
            continue
        try:
            probe_image(data)
        except DecodeError as error:
            msg = f"Row {row} of {name} in '{path}' is not an image file, which decode=True needs. {error}"
            raise PackFormatError(msg) from error
        return


def read_keys(dataset: Any, rows: NDArray[np.intp] | None) -> list[str]:
    """Return texts of an open dataset, all by default.

    A few are read by themselves, so that a look at 200,000 rows' keys costs a page's time only.

    Raises:
        DamagedPackError: a reference does not lead to its text.
    """
    references, texts = HeapReferences(dataset, str(dataset.name).lstrip("/")), dataset.asstr()
    if rows is not None and len(rows) <= _FEW_KEYS:
        references.check(np.unique(rows))
        return [str(texts[row]) for row in rows.tolist()]
    references.check()
    every = texts[()].tolist()
    return [str(key) for key in (every if rows is None else (every[row] for row in rows.tolist()))]

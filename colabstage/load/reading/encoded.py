"""Decode rows that are image and mask files on read: mostly one long dataset of bytes and the offsets of each row."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from colabstage.errors import DamagedPackError, DecodeError
from colabstage.images.decode import PixelRoom, Scratch, decode_image_into, decode_region, decode_sized, probe_image
from colabstage.images.geometry import can_torch_resize, scale_by_torch
from colabstage.images.masks import decode_mask
from colabstage.images.options import MaskOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.geometry import Resizer
    from colabstage.images.options import ImageOptions
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.engines import StorageFacts
    from colabstage.load.reading.memory import MappedFile, ReadFile


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


class EncodedBytes(Protocol):
    """Read a long dataset of bytes at random."""

    @property
    def length(self) -> int:
        """Return how many bytes there are."""

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` up to `stop`."""


class ArrayBytes:
    """Read bytes of a one-dimensional array: own memory, or a mapped file, which is checked before each read."""

    def __init__(self, data: NDArray[np.uint8], file: MappedFile | None) -> None:
        self._data = data
        self._file = file
        self.length = len(data)

    def read(self, start: int, stop: int) -> bytes:
        if self._file is not None:
            self._file.check()
        return self._data[start:stop].tobytes()


class ReadBytes:
    """Read bytes of a contiguous dataset from the disk when they are asked for."""

    def __init__(self, file: ReadFile, facts: StorageFacts) -> None:
        self._file = file
        self._start = facts.offset or 0
        self.length = facts.nbytes

    def read(self, start: int, stop: int) -> bytes:
        self._file.check()
        # Bytes of its own, because decoders keep what they are given for a while.
        target = np.empty(stop - start, np.uint8)
        self._file.read_into(self._start + start, target)
        return target.tobytes()


class H5pyBytes:
    """Read bytes of a dataset that cannot be mapped."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.length = int(dataset.shape[0])

    def read(self, start: int, stop: int) -> bytes:
        return bytes(self._dataset[start:stop].tobytes())


class RowFiles(Protocol):
    """Read the files of rows. May be called from several threads at once."""

    @property
    def count(self) -> int:
        """Return how many there are."""

    def read(self, row: int) -> bytes:
        """Read one of them."""


class RangedFiles:
    """Read files that lie one behind the other."""

    def __init__(self, label: str, offsets: NDArray[np.int64], data: EncodedBytes) -> None:
        """Take `label`, where they are, for messages. `offsets`: `(N + 1,)`, file i is bytes `offsets[i]` up to
        `offsets[i + 1]` of `data`.

        Raises:
            DamagedPackError: the offsets do not ascend, or reach outside.
        """
        if len(offsets) and (offsets[0] < 0 or offsets[-1] > data.length or bool((np.diff(offsets) < 0).any())):
            msg = (
                f"The offsets of {label} do not ascend inside its {data.length:,} bytes. Stage or copy the file again."
            )
            raise DamagedPackError(msg)
        self._offsets = offsets
        self._data = data
        self.count = max(0, len(offsets) - 1)

    def read(self, row: int) -> bytes:
        return self._data.read(int(self._offsets[row]), int(self._offsets[row + 1]))


class EncodedRows:
    """Decode image or mask files when they are read. From several threads at once."""

    def __init__(
        self, label: str, files: RowFiles, options: ImageOptions | MaskOptions, *, resizer: Resizer = "pillow"
    ) -> None:
        """Take `label`, where the rows are, for messages. `options`: whether they are images or masks, and what is made
        of them. `resizer`: what brings images to the size of the options; Pillow where torch cannot."""
        self._label = label
        self._files = files
        self._options = options
        resizes = not isinstance(options, MaskOptions) and options.size is not None
        self._resizer: Resizer = "torch" if resizer == "torch" and resizes and can_torch_resize() else "pillow"
        self._own = threading.local()
        self._room = PixelRoom()
        # Height and width of each row's image once its header was read, 0 before.
        self._sizes = np.zeros((files.count, 2), np.int32)

    def read_bytes(self, row: int) -> bytes:
        """Read the file of one row, as it was packed."""
        return self._files.read(row)

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> Any:
        """Decode rows into `out`, `(len(rows), H, W, C)` (masks `(len(rows), H, W)`) of the one size and dtype that
        all of them have; without it return a list of arrays of whatever size each has.

        Raises:
            DecodeError: a row is broken; the message names it.
            CancelledError: the pool was told to stop.
        """
        images: list[NDArray[Any]] = [np.empty(0)] * len(rows)

        def decode(place: int) -> None:
            row = int(rows[place])
            try:
                if out is None:
                    images[place] = self._decode(row)
                else:
                    self._decode_into(row, out[place])
            except DecodeError as error:
                raise self._named(row, error) from error

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
        # At once: each number of an array, by itself, is an object of numpy's.
        numbers, parts = rows.tolist(), [tuple(crop) for crop in crops.tolist()]

        def cut(place: int) -> None:
            row, scratch = numbers[place], self._scratch().decoded
            try:
                part = decode_region(self.read_bytes(row), mode, parts[place], (height, width), scratch=scratch)
            except DecodeError as error:
                raise self._named(row, error) from error
            resize_into(part, out[place])

        pool.each(len(rows), cut)

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

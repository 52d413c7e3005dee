"""Encoded fields: image and mask files, decoded when they are read, whole or no further than a crop needs."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import DecodeError
from colabstage.images.decode import PixelRoom, Scratch, decode_image_into, decode_sized, probe_image
from colabstage.images.geometry import MaskOptions
from colabstage.images.masks import decode_mask
from colabstage.images.region import WholeImage, decode_region, decode_whole, region_factor
from colabstage.images.resample import can_torch_resize, scale_by_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.images.geometry import ColorMode, ImageOptions
    from colabstage.images.region import Crop
    from colabstage.images.resample import Resizer
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.memory import KeptImages, KeptSlot, Key, Room

# Key of kept images in the form that `EncodedRows.read` returns; for images that crops are cut from, the scale factor.
_FINAL = -1


def resize_into(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Resize uint8 `(h, w, C)` into `out`, `(H, W, C)`, by the antialiased bilinear filter: torch's if it is there,
    which takes a quarter of the time of Pillow's and agrees within one grey level of 255. Safe in threads."""
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


class Encoded:
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
        """Decode rows into `out`, `(len(rows), H, W, C)` (masks `(len(rows), H, W)`), if all have one size and dtype;
        without `out`, return a list of arrays."""
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
        """Decode a part of each row, resized by the antialiased bilinear filter, into `out`, uint8 `(B, H, W, C)`.
        `crops`: int64 `(B, 4)`, top, left, height and width in pixels of the upright image."""
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
        """Return height and width of the upright images, int64 `(len(rows), 2)`, from the headers of their files."""
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

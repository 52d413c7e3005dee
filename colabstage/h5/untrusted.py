"""HDF5 files from other tools: links, heaps and rows of variable length are checked before HDF5 follows them.

HDF5 follows links into other files and references into its heaps without checking them, and responds to damage with any
of several errors, a crash or an endless loop. What it would follow is checked here first; what it raises is translated
here.

The address that HDF5 gives of a dataset behind an external link is a position in the other file. HDF5 makes up the
values of a virtual dataset whose source is missing, and of external storage that is too short: they read as zeros. Rows
of variable length are references into heaps; HDF5 believes the lengths in them, so a damaged one makes it overwrite
memory, or allocate gigabytes.
"""

from __future__ import annotations

import functools
import math
import struct
import threading
import uuid
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.errors import ColabstageError, DamagedPackError, PackFormatError
from colabstage.io.files import translate_read_error
from colabstage.io.units import format_bytes
from colabstage.trees.bytes import LocalBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from colabstage.trees.bytes import ByteSource

    HeadReader = Callable[[int], tuple[int, ...]]
    from collections.abc import Sequence

# A file of a few bytes may claim a dataset of any length.
_FEW = 1 << 27
_MOST_ELSEWHERE = 1 << 40
_MOST_PACKED = 2000

# A heap begins with its signature, version 1 and three zeros.
HEAP = b"GCOL\x01\0\0\0"
# A heap's header, and that of each of its objects: index, references, reserved, length.
HEAP_HEAD_BYTES = 16
OBJECT_HEAD = struct.Struct("<HHIQ")
# Read at once: objects are found by their headers alone, so long rows are skipped and not read.
_HEAP_WINDOW_BYTES = 4096
# HDF5 writes heaps of 4 KiB by default; a shuffled epoch comes back to each of them.
_HEAPS_KEPT = 4096
# A row of variable length in the file: how many values, the heap's address, the object's number in it.
_REFERENCE = np.dtype([("count", "<u4"), ("heap", "<u8"), ("number", "<u4")])
# Chunks of references that were decompressed, kept because a shuffled epoch needs them again.
_KEPT_BYTES = 64 * 1024 * 1024
_REFERENCES_READ = 65_536
# Where rows are further apart than this, on average, their references are read one by one.
_DENSE = 64


def open_with_any_locking(path: Path, *, allow_external: bool = False) -> Any:
    """Open with the default locking; where that is refused, without.

    What the file leads to is read if it is in its folder, or below that; with `allow_external` wherever it is.
    """
    # h5py is imported only by what opens a file.
    from colabstage.h5.confined import ConfinedFile, Reach, with_any_locking

    reach = Reach(path, str(path), anywhere=allow_external)
    return with_any_locking(functools.partial(ConfinedFile, path, reach))


def open_alone(file: Any, label: str) -> Any:
    """Open an object that has the bytes of an HDF5 file, which may lead to no other."""
    from colabstage.h5.confined import ConfinedFile, Reach

    return ConfinedFile(file, Reach(None, label))


def follow(file: Any, name: str, path: Path) -> Any:
    """Return what `name` leads to in an open `h5py.File`.

    Raises:
        PackFormatError: it is a link that leads nowhere; the message says where it should.
    """
    import h5py

    try:
        return file[name]
    except (KeyError, OSError) as error:
        link = file.get(name, getlink=True)
        # A hard link points into the same file, so this is damage and not a missing file.
        if isinstance(link, h5py.HardLink):
            raise
        where = f"'{link.path}'"
        if isinstance(link, h5py.ExternalLink):
            where += f" in '{link.filename}'"
        msg = (
            f"{name} in '{path}' is a link to {where}, which cannot be opened ({error}). Put what it leads to where "
            "the link says, or copy all of it into one file."
        )
        raise PackFormatError(msg) from error


def check_type(dataset: Any, name: str, path: Path) -> None:
    """Make sure that numpy has the type of an open dataset's values.

    Raises:
        PackFormatError: it has not: they are times, for example, or floats of 128 bits from another machine.
    """
    from h5py import h5t

    try:
        _ = dataset.dtype
    except (TypeError, ValueError) as error:
        kinds = {h5t.TIME: "times", h5t.FLOAT: "floats", h5t.INTEGER: "whole numbers", h5t.BITFIELD: "bits"}
        kind = kinds.get(dataset.id.get_type().get_class())
        # For other classes of types there is no telling an unusual one from a damaged one.
        if kind is None:
            raise
        msg = (
            f"{name} in '{path}' holds {kind} of {8 * dataset.id.get_type().get_size()} bits in a form that numpy does "
            f"not have ({error}); expected numbers. Store them as numbers of 8 to 64 bits."
        )
        raise PackFormatError(msg) from error


def check_extent(dataset: Any, name: str, path: Path) -> None:
    """Make sure that an open dataset of very many, or very long, rows has been written: reading them takes memory.

    Raises:
        PackFormatError: it claims more than its file can hold.
    """
    rows = dataset.shape[0] if dataset.shape else 0
    # Neither many rows nor long ones.
    if max(rows, math.prod(dataset.shape[1:])) <= _FEW:
        return
    # Those of virtual ones and in external storage have no bytes of their own; no filter packs as much as this.
    held = _MOST_ELSEWHERE if dataset.is_virtual or dataset.external else _MOST_PACKED * dataset.id.get_storage_size()
    if math.prod(dataset.shape) * dataset.dtype.itemsize > held:
        msg = (
            f"{name} in '{path}' claims to be of the shape {dataset.shape}, which was not written: it has "
            f"{format_bytes(dataset.id.get_storage_size())} in the file. Write it first, or copy what was written into "
            "another file."
        )
        raise PackFormatError(msg)


def is_elsewhere(dataset: Any, file: Any) -> bool:
    """Return whether an open object is stored in another file than `file`, in which it was found."""
    from h5py import h5o

    # HDF5's number of the open file, which two handles of one file share; paths would differ by links.
    return bool(h5o.get_info(dataset.id).fileno != h5o.get_info(file["/"].id).fileno)


def home_of(dataset: Any, path: Path) -> Path | None:
    """Return the file that stores an open dataset, where a link led there from `path`; `None` where that is `path`."""
    # Bytes without a path lead to no other file.
    if dataset.file.driver == "fileobj":
        return None
    home = Path(dataset.file.filename).absolute()
    return None if home == path or home.samefile(path) else home


def check_parts(dataset: Any, name: str, path: Path) -> None:
    """Make sure that all files exist that hold values of an open dataset.

    Raises:
        PackFormatError: one is missing or too short; HDF5 would make up its values.
    """
    from colabstage.h5.confined import Reach

    # Whether they may be read was decided when the dataset was opened.
    reach = Reach(path, str(path), anywhere=True)
    reach.check_sources(dataset.id, lambda what: _missing(name, path, what))


def _missing(name: str, path: Path, what: str) -> PackFormatError:
    return PackFormatError(
        f"{name} in '{path}' {what}; HDF5 would give zeros for its values. Put all files where they were written, or "
        "copy the dataset into one file."
    )


def heap_lengths(read_head: HeadReader, start: int, heap_bytes: int, stop: int) -> list[tuple[int, int]]:
    """Return the number (0 is free space) and length of each object of a heap whose header is before `stop`.

    Args:
        read_head: returns the four fields of the object header at a position.
        start: the position of the heap's first byte.
        heap_bytes: its length.
        stop: the end of what can be read.

    Raises:
        ValueError: an object's length does not lead to the next one: HDF5 would search for ever.
    """
    end = start + heap_bytes
    position, last = start + HEAP_HEAD_BYTES, min(end, stop) - OBJECT_HEAD.size
    found = []
    while position <= last:
        number, _, _, length = read_head(position)
        # Objects are padded to 8 bytes. The length of free space includes its header, that of objects does not.
        step = OBJECT_HEAD.size + (length + 7) // 8 * 8 if number else length
        if not OBJECT_HEAD.size <= step <= end - position:
            # Zero repeats this object for ever; a length beyond the end makes HDF5 read whatever follows.
            msg = f"the object {number} of {length:,} bytes leads nowhere"
            raise ValueError(msg)
        found.append((number, length))
        position += step
    return found


class HeapReferences:
    """The references of a dataset of variable-length rows, checked before HDF5 follows them; thread-safe."""

    def __init__(self, dataset: Any, name: str, source: ByteSource | None = None) -> None:
        """Take an open `h5py.Dataset` of such rows; no row is read yet.

        Args:
            dataset: the rows.
            name: the dataset's name, for messages.
            source: the bytes of its file, where that has no path (a file inside an archive).
        """
        import h5py

        self._dataset = dataset
        self._name = name
        self._path = Path(dataset.file.filename)
        self._source = source
        base = h5py.check_vlen_dtype(dataset.dtype)
        self._item_bytes = np.dtype(base).itemsize if isinstance(base, np.dtype) else 1
        # The file may declare shorter addresses, but every writer of today uses eight bytes; others go unchecked.
        usual = tuple(dataset.file.id.get_create_plist().get_sizes()) == (8, 8)
        self._applies = base is not None and usual and not dataset.is_virtual
        # MATLAB, for one, puts a block of its own in front, and HDF5 counts addresses from behind it.
        self._shift = int(dataset.file.userblock_size)
        self._heaps: OrderedDict[int, dict[int, int]] = OrderedDict()
        self._chunks: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._scratches: dict[int, Any] = {}
        self._checked = np.zeros(dataset.shape[0] if dataset.ndim == 1 else 0, np.bool_)
        self._lock = threading.Lock()

    def check(self, rows: NDArray[np.intp] | None = None) -> None:
        """Check the references of some rows, in ascending order, of a dataset of one axis; by default all of them.

        Each row is checked once.

        Raises:
            DamagedPackError: a reference does not lead to an object of its length.
            OSError: the file cannot be read.
        """
        if rows is not None:
            rows = rows[~self._checked[rows]]
        if not self._applies or (rows is not None and not len(rows)):
            return
        with self._lock:
            file = self._source or LocalBytes(self._path)
            for references in self._references(file, rows):
                # Empty rows refer to nothing, whatever their address says.
                filled = references[references["count"] > 0]
                # One heap holds many rows, so each is read once for all of them.
                filled = filled[np.argsort(filled["heap"], kind="stable")]
                heaps, starts = np.unique(filled["heap"], return_index=True)
                for heap, wanted in zip(heaps.tolist(), np.split(filled, starts[1:]), strict=False):
                    self._check_heap(file, heap + self._shift, wanted)
        if rows is not None:
            self._checked[rows] = True

    def _check_heap(self, file: ByteSource, start: int, wanted: NDArray[Any]) -> None:
        """Compare the lengths of some rows with those that the heap at `start` has for them."""
        lengths = self._heaps.get(start)
        if lengths is None:
            lengths = self._heaps[start] = self._read_heap(file, start)
            while len(self._heaps) > _HEAPS_KEPT:
                self._heaps.popitem(last=False)
        for count, _, number in wanted.tolist():
            if lengths.get(number) != count * self._item_bytes:
                what = f"a row of {count:,} values is to be found in {lengths.get(number, 0):,} bytes"
                raise self._damaged(what)

    def _read_heap(self, file: ByteSource, start: int) -> dict[int, int]:
        """Return the lengths of a heap's objects, by their numbers."""
        data, base = file.pread(_HEAP_WINDOW_BYTES, start) if start < file.size else b"", 0
        length = int.from_bytes(data[8:16], "little")
        if not data.startswith(HEAP) or not HEAP_HEAD_BYTES <= length <= file.size - start:
            what = f"there is no heap of rows at byte {start:,}"
            raise self._damaged(what)

        def read_head(place: int) -> tuple[int, ...]:
            nonlocal data, base
            if place + OBJECT_HEAD.size > base + len(data):
                data, base = file.pread(_HEAP_WINDOW_BYTES, start + place), place
            return OBJECT_HEAD.unpack_from(data, place - base)

        try:
            return dict(heap_lengths(read_head, 0, length, length))
        except (ValueError, struct.error) as error:
            what = f"in its heap at byte {start:,}, {error}"
            raise self._damaged(what) from error

    def _references(self, file: ByteSource, rows: NDArray[np.intp] | None) -> Iterator[NDArray[Any]]:
        dataset = self._dataset
        if dataset.chunks is None:
            yield from self._contiguous(file, rows)
        elif rows is None:
            for number in range(dataset.id.get_num_chunks()):
                yield self._chunk(dataset.id.get_chunk_info(number).chunk_offset)
        else:
            side = dataset.chunks[0]
            for number in np.unique(rows // side).tolist():
                inside = rows[rows // side == number] - number * side
                yield self._kept_chunk(number * side)[inside]

    def _contiguous(self, file: ByteSource, rows: NDArray[np.intp] | None) -> Iterator[NDArray[Any]]:
        start = self._dataset.id.get_offset()
        count = int(np.prod(self._dataset.shape, dtype=np.int64))
        if start is None or not count:
            return
        first, last = (0, count - 1) if rows is None else (int(rows[0]), int(rows[-1]))
        if rows is not None and last - first > _DENSE * len(rows):
            found = [file.pread(_REFERENCE.itemsize, start + row * _REFERENCE.itemsize) for row in rows.tolist()]
            yield np.frombuffer(b"".join(found), _REFERENCE)
            return
        for begin in range(first, last + 1, _REFERENCES_READ):
            length = min(_REFERENCES_READ, last + 1 - begin) * _REFERENCE.itemsize
            yield np.frombuffer(file.pread(length, start + begin * _REFERENCE.itemsize), _REFERENCE)

    def _kept_chunk(self, start: int) -> NDArray[Any]:
        found = self._chunks.get(start)
        if found is None:
            there = self._dataset.id.get_chunk_info_by_coord((start,)).byte_offset
            empty = np.zeros(self._dataset.chunks[0], _REFERENCE)
            found = self._chunks[start] = empty if there is None else self._chunk((start,))
            while len(self._chunks) * found.nbytes > _KEPT_BYTES:
                self._chunks.popitem(last=False)
        return found

    def _chunk(self, corner: tuple[int, ...]) -> NDArray[Any]:
        """Return the references of one chunk, decompressed."""
        # h5py has no function that only undoes filters, and reading the row would follow its reference. So the bytes go
        # into a dataset of plain bytes with the same filters, and are read from there.
        skipped, stored = self._dataset.id.read_direct_chunk(corner)
        own = self._dataset.id.get_create_plist()
        filters = [own.get_filter(place)[:3] for place in range(own.get_nfilters()) if not skipped >> place & 1]
        if not filters:
            return np.frombuffer(stored, _REFERENCE)
        scratch = self._scratches.get(skipped)
        if scratch is None:
            scratch = self._scratches[skipped] = _plain_dataset(self._dataset.chunks, filters)
        scratch.id.write_direct_chunk((0,) * len(corner), stored)
        values: NDArray[Any] = scratch[()].reshape(-1).view(_REFERENCE)
        return values

    def _damaged(self, what: str) -> DamagedPackError:
        return DamagedPackError(
            f"{self._name} in '{self._path}' is damaged: {what}. Stage or copy the file again; HDF5 would read beyond "
            "its memory here."
        )


def _plain_dataset(shape: tuple[int, ...], filters: Iterable[tuple[int, int, tuple[int, ...]]]) -> Any:
    """Return a dataset in memory: one chunk of as many bytes as the references have, with `filters`."""
    import h5py

    # HDF5 refuses a second file of one name, even if both are in memory only.
    file = h5py.File(f"colabstage-{uuid.uuid4().hex}", "w", driver="core", backing_store=False)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(shape)
    for step in filters:
        properties.set_filter(*step)
    kind = h5py.h5t.py_create(np.dtype(f"V{_REFERENCE.itemsize}"))
    space = h5py.h5s.create_simple(shape)
    return h5py.Dataset(h5py.h5d.create(file.id, b"references", kind, space, properties))


# HDF5 keeps metadata at the two ends of a file, except in files of very many datasets.
_LOOKED_BYTES = 1024 * 1024


def check_heaps(path: Path) -> None:
    """Check the heaps at the file's two ends for lengths that make HDF5 search for ever. Takes a few milliseconds.

    Raises:
        DamagedPackError: there is such an object.
        OSError: the file cannot be read.
    """
    # HDF5 goes from object to object by their lengths and checks none of them: a length of 0, or of nearly 2**64, is an
    # endless loop inside the library, which no signal and no other thread can end. Of 4,000 files with scrambled bytes,
    # 13 hung when they were opened, all of them here. A child process with a deadline would find them too, and take a
    # third of a second for each file.
    with open(path, "rb") as handle:
        size = handle.seek(0, 2)
        for start in sorted({0, max(0, size - _LOOKED_BYTES)}):
            handle.seek(start)
            data = handle.read(_LOOKED_BYTES)
            place = data.find(HEAP)
            while place >= 0:
                if not _is_sound(data, place):
                    msg = (
                        f"'{path}' is damaged at byte {start + place:,}: HDF5 would search its strings for ever. "
                        "Stage or copy it again."
                    )
                    raise DamagedPackError(msg)
                place = data.find(HEAP, place + 1)


def _is_sound(data: bytes, place: int) -> bool:
    """Tell whether the objects of the heap at `place` follow each other up to its end, or to the end of `data`."""
    # Cut off by the window, not by damage; samples may also hold these bytes by chance.
    if place + HEAP_HEAD_BYTES > len(data):
        return True
    length = int.from_bytes(data[place + 8 : place + 16], "little")
    try:
        heap_lengths(functools.partial(OBJECT_HEAD.unpack_from, data), place, length, len(data))
    except ValueError:
        return False
    return True


@contextmanager
def reading_contents(path: Path) -> Iterator[None]:
    """Translate every error with which h5py responds to damaged bytes into one for a damaged file.

    Raises:
        DamagedPackError: in place of what h5py raised.
        SourceReadError, DriveDisconnectedError: the disk or mount refuses to read it.
    """
    try:
        yield
    except ColabstageError:
        raise
    except OSError as error:
        raise (
            _damaged_file(path, error) if error.errno is None else translate_read_error(error, str(path), 1)
        ) from error
    except (LookupError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise _damaged_file(path, error) from error


def _damaged_file(path: Path, error: Exception) -> DamagedPackError:
    return DamagedPackError(
        f"'{path}' is an HDF5 file whose table of contents is damaged ({error}). "
        "Stage or copy it again; what it was made from is untouched."
    )


# Rows whose lengths are read for an estimate.
_PROBED = 128


def ragged_kind(dataset: Any) -> Literal["ragged", "texts"] | None:
    """Return what each row of an open `h5py.Dataset` is: any number of values, or a string; `None` for neither."""
    from h5py import check_string_dtype

    if len(dataset.shape) != 1:
        return None
    if check_string_dtype(dataset.dtype) is not None:
        return "texts"
    return "ragged" if _element_trouble(dataset) == "" else None


def element_dtype(dataset: Any) -> np.dtype[Any]:
    """Return the dtype of one value of a variable-length row, in native byte order; for strings that of their bytes."""
    import numpy as np
    from h5py import check_vlen_dtype

    # By its string, which drops what h5py attaches to the dtype of an enumeration.
    base = check_vlen_dtype(dataset.dtype)
    return np.dtype(np.uint8) if base is None or base is str or base is bytes else np.dtype(base.str)


def ragged_trouble(dataset: Any) -> str | None:
    """Say in a sentence why rows of variable length cannot be read; `None` where they can, or rows are fixed."""
    from h5py import check_string_dtype, check_vlen_dtype

    is_text = check_string_dtype(dataset.dtype) is not None
    if not is_text and check_vlen_dtype(dataset.dtype) is None:
        return None
    if len(dataset.shape) != 1:
        what = "texts" if is_text else "lists of values"
        return f"Each row is an array of {what}, {dataset.shape[1:]}; expected one in each row."
    return (None if is_text else _element_trouble(dataset)) or None


def _element_trouble(dataset: Any) -> str | None:
    """Say why values inside rows cannot be read: "" where they can, `None` where rows have a fixed length."""
    import numpy as np
    from h5py import check_vlen_dtype, h5t

    base = check_vlen_dtype(dataset.dtype)
    if base is None:
        return None
    if not isinstance(base, np.dtype) or base.kind not in "biufc":
        return f"The values inside its rows are {_name_of_type(base)}; expected numbers."
    stored = dataset.id.get_type().get_super()
    if base.kind in "bc":
        same = stored.get_size() == base.itemsize
    else:
        same = stored.equal(h5t.py_create(np.dtype(base.str)))
        same = same or (stored.get_class() == h5t.ENUM and stored.get_super().equal(h5t.py_create(np.dtype(base.str))))
    if base.isnative and same:
        return ""
    # h5py 3.16 returns the bytes of such values as they are stored, labelled as native.
    return (
        "The values inside its rows are stored in another form than this machine's, perhaps in the other byte order, "
        "and h5py returns wrong numbers for them. Write them as native numbers."
    )


def _name_of_type(base: Any) -> str:
    if getattr(base, "names", None):
        return f"compounds of {', '.join(base.names)}"
    return "arrays" if getattr(base, "subdtype", None) else "rows of variable length again, or strings"


def estimate_bytes(dataset: Any) -> int:
    """Estimate how many bytes the values of all rows have, from the mean of a few; exact for strings of one length."""
    import numpy as np

    count = int(dataset.shape[0])
    if dataset.dtype.kind == "S":
        return count * int(dataset.dtype.itemsize)
    if not count:
        return 0
    rows = np.unique(np.linspace(0, count - 1, min(_PROBED, count)).astype(np.intp))
    HeapReferences(dataset, str(dataset.name).lstrip("/")).check(rows)
    found: Sequence[Any] = dataset[rows].tolist()
    mean = sum(len(row) * getattr(row, "itemsize", 1) for row in found) / len(rows)
    # No value is stored twice, so there cannot be more than the file has.
    return min(int(mean * count), int(dataset.file.id.get_filesize()))

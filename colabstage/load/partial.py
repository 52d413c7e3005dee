"""A pack that is elsewhere, here in part or on its way: where rows are in it, and the `Arrival` that brings them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from colabstage.errors import NotStagedError, OptionError, PackFormatError, SourceNotFoundError
from colabstage.h5.info import open_h5
from colabstage.h5.manifest import manifest_path, parse_manifest, read_manifest
from colabstage.h5.schema import BYTES, OFFSETS, split_of, y_name
from colabstage.h5.untrusted import reading_contents
from colabstage.io.files import make_folder, write_json
from colabstage.io.ownership import remove_vouched
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import HandedOut, Readiness
from colabstage.io.retry import RetryPolicy
from colabstage.io.units import format_bytes, parse_bytes
from colabstage.load.arrival import visited_units
from colabstage.machine.platforms import detect_platform
from colabstage.sources.opening import remote_opener
from colabstage.sources.parse import LocalSource, ObjectSource, WebSource, local_source, parse_source
from colabstage.sources.partial.file import BlockwiseFile, WholeFile
from colabstage.sources.partial.local import Edges, is_part
from colabstage.sources.partial.plan import find_visits
from colabstage.sources.transfer.connections import read_directly

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest
    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.load.arrival import Side
    from colabstage.sources.parse import SingleSource
    from colabstage.sources.partial.fetcher import Expected
    from colabstage.sources.remote import RemoteFile

# A window of more blocks mixes no better: rows of a split are in the order of a hash in the pack already.
_MOST_WINDOW = 16
# A window takes at most this fraction of the limit, because the next one is fetched while it is read.
_WINDOW_PART = 8
# Targets stay here if they take at most this fraction of the limit, and so do the edges of blocks.
_KEPT_PART = 8
_EDGES_PART = 4
# Where the whole pack is copied, the first batch waits for all targets if they take at most this many blocks.
_KEPT_BLOCKS = 2
# A batch may be in two blocks that are not neighbours, and its rows reach into the one before and the one after each.
_LEAST_BLOCKS = 6
_LONGEST_BATCH_S = 3600.0
# The folder of partial packs among staged datasets, and the record in each that names its source.
PARTS, PART_RECORD = "partial", "part.json"


@dataclass(frozen=True, slots=True)
class PackField:
    """A byte range of the file that holds rows of a split, of which some blocks are here."""

    split: str
    """The split."""
    is_input: bool
    """Whether the rows are inputs, and not targets."""
    start: int
    """Where they begin in the file."""
    nbytes: int
    """The length of all rows together."""
    rows: int
    """How many rows there are."""
    offsets: str | None
    """The dataset of offsets where rows begin; `None` where all rows have one length."""


class PartialPack:
    """The `Arrival` of a pack that is elsewhere.

    `path`: the local sparse file, which readers open. `file`: its blocks. `place`: where the file will be when it is
    copied completely; `None` where there is never more of it here than a limit.
    """

    def __init__(
        self,
        file: BlockwiseFile | WholeFile,
        fields: tuple[PackField, ...],
        window_units: int,
        place: Path | None = None,
    ) -> None:
        """Take what `open_partial` or `open_restored` found out."""
        self.file, self._fields, self._window_units, self._place = file, fields, window_units, place
        self.path = file.path
        self.first_epoch_only = place is not None
        """Whether later epochs are ordered as usual, because all of the file is here by then."""
        self.leaves_out = False
        """A pack has no rows that cannot be used."""
        self.verb = "copied"
        """What is done with rows, so that they are here."""
        self.first_units = 1
        """How many blocks the first batch may wait for: rows of one are of all classes."""
        self.handed_out = HandedOut()
        """What readers in this process have got."""
        self._places: dict[str, _Places] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        if self._place is None or isinstance(self.file, WholeFile):
            return PartialPack, (self.file, self._fields, self._window_units, self._place)
        # By the time that another process unpickles it, the copy may be complete and in its place.
        return _reopen, (self.file.__reduce__()[1], self._fields, self._window_units, self._place)

    @property
    def place(self) -> Path:
        """Return where the file will be."""
        return self._place or self.path

    @property
    def readable_path(self) -> Path | None:
        """Return where the file can be opened now, of one that moves to its place."""
        if self._place is None:
            return None
        return self.path if self.path.exists() else self._place

    @property
    def bar(self) -> tuple[str, int, str]:
        """Return what a bar of the copying says: what is done, how much of it in all, and in which unit."""
        return "copy from cache", self.file.manifest.size, "B"

    @property
    def moved(self) -> int:
        """Return how much of that is done."""
        return self.figures["here"]

    @property
    def ready(self) -> Readiness:
        """Tell how many rows are here completely."""
        splits = {field.split for field in self._fields}
        here = [self._of(split).count_here(self.file.state) for split in splits]
        return Readiness(sum(here), sum(max(f.rows for f in self._fields if f.split == split) for split in splits))

    def check(self) -> None:
        """Raise the error that ended fetching, if there is one."""
        self.file.check()

    def fill(self, step: ProgressStep, cancellation: Cancellation) -> int:
        """Wait until all of it is here, and return how many bytes were fetched for it; as `BlockwiseFile.fill`."""
        return self.file.fill(self._first_blocks(), step, cancellation)

    def end(self, error: BaseException) -> None:
        """Stop fetching, and raise this error in all readers that wait."""
        self.file.end(error)

    def _first_blocks(self) -> NDArray[np.int64]:
        """Return all blocks, in the order in which a loader of `train` with the default seed needs them."""
        # Most likely that is the loader that will be made, and it can then start at once.
        train = self._of("train")
        count = int(train.units.max(initial=-1)) + 1
        order = np.concatenate([train.low + visited_units(count, 0, 0), np.arange(self.file.blocks)])
        _, first = np.unique(order, return_index=True)
        return order[np.sort(first)]

    @property
    def complete(self) -> bool:
        """Tell whether all of it is here, to stay."""
        return self.file.complete

    @property
    def window_units(self) -> int:
        """Return how many blocks one window may hold."""
        return self._window_units

    @property
    def reason(self) -> str:
        """Return the reason for the size of windows."""
        manifest, limit = self.file.manifest, self.file.limit
        of_all = f"{format_bytes(manifest.size)} in {len(manifest.hashes):,} of them"
        why = "copied from the cache" if limit is None else f"disk_limit={format_bytes(limit)}"
        return f"blocks of {format_bytes(manifest.block_bytes)}; {of_all}, {why}"

    @property
    def figures(self) -> dict[str, int]:
        """Return bytes `fetched`, `evicted`, `kept` from before, `here`, and on the `disk`."""
        return self.file.figures

    def units(self, split: str) -> NDArray[np.intp]:
        """Return the first and the last block of each row, `(N, 2)`, counted from 0."""
        return self._of(split).units

    def expect(
        self, split: str, rows: NDArray[np.intp], *, then: Callable[[], NDArray[np.intp]] | None = None
    ) -> Expectations:
        """Fetch rows in the order in which they will be read, as `Arrival.expect`."""
        # Where the whole file is copied, all of it is here by the time that `then` is read.
        return Expectations(self, self._of(split), rows, None if self.first_epoch_only else then)

    def hold(
        self, split: str, rows: NDArray[np.intp], *, side: Side = "row", cancellation: Cancellation | None = None
    ) -> AbstractContextManager[None]:
        """Wait for rows and keep them, as `Arrival.hold`."""
        blocks, edges = self._of(split).needed(rows, targets_only=side == "targets")
        return self.file.hold(blocks, edges, cancellation)

    def left_out(
        self, split: str, rows: NDArray[np.intp], *, cancellation: Cancellation | None = None
    ) -> NDArray[np.bool_]:
        """Return that no row was left out, as `Arrival.left_out`, without waiting."""
        # Broken samples were left out when the pack was made.
        return np.zeros(len(rows), np.bool_)

    def close(self) -> None:
        """Stop fetching. Blocks that are here stay for the next time."""
        self.file.close()

    def _of(self, split: str) -> _Places:
        # Two threads may both compute this, which costs a moment and needs no lock, which a fork could leave locked.
        if split not in self._places:
            self._places[split] = _find_places(self, [one for one in self._fields if one.split == split])
        return self._places[split]


class _Places:
    """Which blocks each row of a split needs."""

    def __init__(
        self, spans: list[tuple[PackField, NDArray[np.int64], NDArray[np.int64]]], rows: int, edges: bool
    ) -> None:
        """Take for each field the first and the last block of each row; `edges`: whether edges of blocks stay here."""
        self._spans, self._edges = spans, edges
        coarsest = min(spans, key=lambda span: int(span[2].max(initial=0) - span[1].min(initial=0)), default=None)
        self.low = 0 if coarsest is None or not rows else int(coarsest[1].min())
        """The block that is the first unit."""
        if coarsest is None or not rows:
            self.units = np.zeros((rows, 2), np.intp)
        else:
            self.units = np.stack([coarsest[1] - self.low, coarsest[2] - self.low], axis=1).astype(np.intp)
        self.gap = max(1, 2 * rows // max(1, int(self.units.max(initial=0)) + 1))

    def needed(self, rows: NDArray[np.intp], *, targets_only: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks that rows need completely, and those of which they need only an edge."""
        whole: list[NDArray[np.int64]] = []
        edges: list[NDArray[np.int64]] = []
        for field, firsts, lasts in self._spans:
            if targets_only and field.is_input:
                continue
            first, last = firsts[rows], lasts[rows]
            across = (last == first + 1) if self._edges else np.zeros(len(rows), np.bool_)
            edges += [first[across], last[across]]
            # By steps along the longest row and not row by row, because there may be millions.
            longest = int((last - first)[~across].max(initial=0))
            whole += [np.minimum(first[~across] + step, last[~across]) for step in range(longest + 1)]
        return _unique(whole), _unique(edges)

    def count_here(self, state: NDArray[np.bool_]) -> int:
        """Count the rows all of whose blocks are here."""
        # Sums from the beginning: whether all blocks from one to another are here is then one subtraction for each row.
        before = np.r_[0, np.cumsum(state)]
        here = np.ones(len(self.units), np.bool_)
        for _, first, last in self._spans:
            here &= before[last + 1] - before[first] == last - first + 1
        return int(here.sum())

    def uses(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when, by its place in `rows`, which block is needed."""
        places: list[NDArray[np.int64]] = []
        blocks: list[NDArray[np.int64]] = []
        for _, firsts, lasts in self._spans:
            first, last = firsts[rows], lasts[rows]
            # Edges have been kept since their block was here, so they need no visit.
            inner = np.flatnonzero((last != first + 1) | (not self._edges))
            for step in range(int((last - first)[inner].max(initial=0)) + 1):
                places.append(inner)
                blocks.append(np.minimum(first[inner] + step, last[inner]))
        return _joined(places), _joined(blocks)


def _joined(parts: list[NDArray[Any]]) -> NDArray[np.int64]:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


def _unique(parts: list[NDArray[Any]]) -> NDArray[np.int64]:
    return np.unique(_joined(parts))


class Expectations:
    """What one reader will read in this epoch and in the next one."""

    def __init__(
        self,
        pack: PartialPack,
        places: _Places,
        rows: NDArray[np.intp],
        then: Callable[[], NDArray[np.intp]] | None,
    ) -> None:
        self._pack, self._places, self._rows = pack, places, len(rows)
        self._begun, self._closed = threading.Event(), threading.Event()
        self._lock, self._done = threading.Lock(), 0
        told = self._tell(rows, 0)
        self._told: list[Expected] = [] if told is None else [told]
        if then is not None:
            threading.Thread(target=self._follow, args=(then,), name="colabstage-next-epoch", daemon=True).start()

    def reached(self, rows: int) -> None:
        """Record how many rows have been read."""
        # Kept, because the next epoch's expectation may be told only later.
        self._done = rows
        self._begun.set()
        for one in self._told:
            one.reached(rows)

    def close(self) -> None:
        """Withdraw them."""
        with self._lock:
            self._closed.set()
            self._begun.set()
            for one in self._told:
                one.close()

    def _follow(self, then: Callable[[], NDArray[np.intp]]) -> None:
        # Ordering the next epoch takes time that the first batch should not wait for.
        if not self._begun.wait(_LONGEST_BATCH_S) or self._closed.is_set():
            return
        told = self._tell(then(), self._rows)
        if told is None:
            return
        with self._lock:
            if self._closed.is_set():
                told.close()
            self._told.append(told)
        told.reached(self._done)

    def _tell(self, rows: NDArray[np.intp], after: int) -> Expected | None:
        places, blocks = self._places.uses(rows)
        gap = self._places.gap * self._pack.window_units
        return self._pack.file.expect(find_visits(places + after, blocks, gap))


def open_partial(
    address: str | os.PathLike[str], disk_limit: int | str, *, local_dir: str | os.PathLike[str] | None = None
) -> PartialPack:
    """Open a pack that is elsewhere, with no more than `disk_limit` bytes of it on the local disk at any time.

    Its index, labels and other small datasets are fetched now, and stay.

    Args:
        address: the packed file: a path, for example on a mounted Drive, an http(s) address, or one of a bucket. Its
            manifest, `NAME.h5.json`, is beside it.
        disk_limit: bytes, or text such as "20GB".
        local_dir: the folder on the local disk; `None` for the platform's fast folder.

    Raises:
        OptionError: the limit is not a size, or the address does not name a single file.
        SourceNotFoundError: it has no manifest, so nothing would tell a block that is wrong.
        NotEnoughSpaceError: the limit is too low; the message says what would do.
        NotSupportedHereError: the local disk cannot give back parts of a file.
        SourceError, DriveError, PackFormatError, DamagedPackError: it cannot be read.
    """
    limit = parse_bytes(disk_limit, "disk_limit")
    source = parse_source(address)
    if not isinstance(source, LocalSource | WebSource | ObjectSource):
        msg = f"disk_limit= is for one packed file; '{source.label}' is none. Give its path or address."
        raise OptionError(msg)
    opener, remote = remote_opener(source), _UnclaimedFile()
    try:
        with DaemonPool(2, "colabstage-open") as pool:
            # At the same time, because each takes a round trip or more.
            opening = pool.submit(lambda: remote.keep(opener()))
            manifest = _find_manifest(source, address)
            pool.results([opening])
        folder = _folder_for(source, manifest, local_dir)
        make_folder(folder)
        # For the list of datasets: blocks alone do not say what they are of.
        if not (folder / PART_RECORD).exists():
            write_json(folder / PART_RECORD, {"address": source.address, "samples": manifest.samples})
        file = BlockwiseFile(source, manifest, folder, limit, opener=lambda: remote.take() or opener())
        return _open_pack(file)
    finally:
        # Where another process fetches, the file was not needed.
        remote.close()


def open_restored(path: Path, manifest: Manifest, folder: Path, place: Path) -> PartialPack:
    """Open a pack at `path` that is copied to `folder` completely and then moved to `place`; as `open_partial`."""
    return _open_pack(BlockwiseFile(local_source(path), manifest, folder, None, place.name), place)


def open_whole(place: Path) -> PartialPack | None:
    """Open a complete pack whose first epoch has the order of one that is being copied; `None` without a manifest."""
    manifest = read_manifest(place)
    return None if manifest is None else _open_pack(WholeFile(place, manifest), place)


def _reopen(arguments: tuple[Any, ...], fields: tuple[PackField, ...], window_units: int, place: Path) -> PartialPack:
    """Open a pack in another process, while it is copied or in its place."""
    manifest, folder = arguments[1:3]
    file: BlockwiseFile | WholeFile
    try:
        file = BlockwiseFile(*arguments)
    except OSError:
        if folder.is_dir():
            raise
        if read_manifest(place) != manifest:
            msg = f"The copying of '{place}' has ended. Call stage_dataset again, and make a new loader."
            raise NotStagedError(msg) from None
        file = WholeFile(place, manifest)
    return PartialPack(file, fields, window_units, place)


class _UnclaimedFile:
    """A file that was opened before it was known who would read it."""

    def __init__(self) -> None:
        self._lock, self._file, self._closed = threading.Lock(), cast("RemoteFile | None", None), False

    def keep(self, file: RemoteFile) -> None:
        """Keep a file for `take`; close it if `close` was called."""
        with self._lock:
            if not self._closed:
                self._file = file
                return
        file.close()

    def take(self) -> RemoteFile | None:
        """Return the file, once."""
        with self._lock:
            file, self._file = self._file, None
        return file

    def close(self) -> None:
        """Close the file, and any that is kept later."""
        with self._lock:
            self._closed = True
        file = self.take()
        if file is not None:
            file.close()


def _find_manifest(source: SingleSource, address: str | os.PathLike[str]) -> Manifest:
    """Read the manifest that is beside a packed file."""
    if isinstance(source, LocalSource):
        found, label = read_manifest(source.path), str(manifest_path(source.path))
    else:
        # Signed addresses have their signature behind the path, and it has to stay there.
        before, mark, query = os.fspath(address).partition("?")
        beside = parse_source(f"{before}.json{mark}{query}")
        assert isinstance(beside, WebSource | ObjectSource)
        label = beside.label
        found = parse_manifest(_read_json(remote_opener(beside)), label)
    if found is None:
        msg = (
            f"'{label}' is not there, or is incomplete, so nothing would tell a block of '{source.label}' that "
            "came wrong. Publish both files together; packs that colabstage made have one beside them."
        )
        raise SourceNotFoundError(msg)
    return found


def _read_json(opener: Callable[[], RemoteFile]) -> object:
    try:
        file = opener()
    except SourceNotFoundError:
        return None
    try:
        size = file.facts.size
        if size is None:
            data = b"".join(file.read_range(0, None))
        else:
            data = read_directly(file, 0, size, policy=RetryPolicy(), stopped=lambda: False)
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    finally:
        file.close()
    return found


def _folder_for(source: SingleSource, manifest: Manifest, local_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of this content of this file; those of what it was before are removed."""
    base = detect_platform().fast_dir / "colabstage" if local_dir is None else Path(local_dir).expanduser().absolute()
    content = hashlib.sha256("".join(manifest.hashes).encode()).hexdigest()[:8]
    mine = f"{source.name}.part-{hashlib.sha256(source.address.encode()).hexdigest()[:8]}-"
    folder = base / PARTS
    for other in folder.glob(f"{mine}????????") if folder.is_dir() else ():
        if other.name != mine + content:
            remove_vouched(other, is_part)
    return folder / (mine + content)


def _open_pack(file: BlockwiseFile | WholeFile, place: Path | None = None) -> PartialPack:
    try:
        if isinstance(file, BlockwiseFile):
            # Nearly always the index and the labels; asked for together, as each takes a round trip.
            file.wish(np.unique(np.array([0, file.blocks - 1])))
        fields = _find_fields(file)
        if isinstance(file, BlockwiseFile):
            _bring_kept(file, fields)
        window = max(1, min(_MOST_WINDOW, file.capacity // _WINDOW_PART))
        return PartialPack(file, fields, 1 << (window.bit_length() - 1), place)
    except BaseException:
        file.close()
        raise


def _bring_kept(file: BlockwiseFile, fields: tuple[PackField, ...]) -> None:
    """Bring what is not rows, and say that it stays."""
    kept = _kept_blocks(file, fields)
    # Before any of it comes.
    room = file.check_room(kept, Edges.none(file.blocks), least=_LEAST_BLOCKS)
    with file.hold(np.flatnonzero(kept)):
        pass
    edges = Edges.none(file.blocks)
    if file.limit is not None:
        # Nor may they take the room that was said to be enough.
        spare = (room - _LEAST_BLOCKS) * file.manifest.block_bytes
        found = _find_edges(file, fields, kept)
        edges = found if found.nbytes <= min(file.limit // _EDGES_PART, spare) else edges
    file.settle(kept, edges, least=_LEAST_BLOCKS)


class _Bytes(io.RawIOBase):
    """The whole file as h5py reads it: every block that it touches is brought here."""

    def __init__(self, file: BlockwiseFile | WholeFile) -> None:
        self._file, self._place = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._file.manifest.size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(self._place, len(buffer))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def __enter__(self) -> Self:
        return self


def _find_fields(file: BlockwiseFile | WholeFile) -> tuple[PackField, ...]:
    """Find the rows of all splits in the file."""
    import h5py

    limit = file.limit
    most = _KEPT_BLOCKS * file.manifest.block_bytes if limit is None else limit // _KEPT_PART
    found: list[PackField] = []
    with reading_contents(file.path), h5py.File(_Bytes(file), "r") as pack:
        for name in pack:
            split = split_of(name)
            if split is None:
                continue
            found += _field_of(pack[name], split, is_input=True)
            if y_name(split) in pack:
                targets = _field_of(pack[y_name(split)], split, is_input=False)
                found += [one for one in targets if one.nbytes > most]
    return tuple(found)


def _field_of(node: Any, split: str, *, is_input: bool) -> list[PackField]:
    import h5py

    grouped = isinstance(node, h5py.Group)
    if grouped and not {BYTES, OFFSETS} <= node.keys():
        return []
    data, rows = (node[BYTES], len(node[OFFSETS]) - 1) if grouped else (node, len(node))
    if data.chunks is not None or data.id.get_offset() is None or not data.id.get_storage_size():
        # Nobody knows where its rows are: all of it stays, as everything does that no field has.
        return [PackField(split, is_input, 0, 0, rows, None)]
    offsets = f"{node.name}/{OFFSETS}" if grouped else None
    return [PackField(split, is_input, data.id.get_offset(), data.id.get_storage_size(), rows, offsets)]


def _kept_blocks(file: BlockwiseFile, fields: tuple[PackField, ...]) -> NDArray[np.bool_]:
    """Return which blocks hold anything else than rows: they stay."""
    block_bytes, kept = file.manifest.block_bytes, np.ones(file.blocks, np.bool_)
    for field in fields:
        first, stop = -(-field.start // block_bytes), (field.start + field.nbytes) // block_bytes
        # The file's last block is as whole as it gets.
        stop += field.start + field.nbytes == file.manifest.size
        kept[first:stop] = False
    return kept


def _find_places(pack: PartialPack, fields: list[PackField]) -> _Places:
    file = pack.file
    block_bytes = file.manifest.block_bytes
    spans = []
    for field in fields:
        starts, stops = _row_places(file, field)
        spans.append((field, starts // block_bytes, np.maximum(stops - 1, starts) // block_bytes))
    rows = max((field.rows for field in fields), default=0)
    return _Places(spans, rows, edges=pack.file.has_edges)


def _row_places(file: BlockwiseFile | WholeFile, field: PackField) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where in the file each row of a field begins and ends."""
    if field.offsets is None:
        length = field.nbytes // max(1, field.rows)
        starts = field.start + np.arange(field.rows, dtype=np.int64) * length
        return starts, starts + length
    with open_h5(file.path) as opened, reading_contents(file.path):
        offsets = np.asarray(opened[field.offsets][()], np.int64)
    if len(offsets) != field.rows + 1 or (np.diff(offsets) < 0).any() or offsets[-1] > field.nbytes:
        msg = f"{field.offsets} in '{file.path}' does not say where rows begin. Pack it again."
        raise PackFormatError(msg)
    return field.start + offsets[:-1], field.start + offsets[1:]


def _find_edges(file: BlockwiseFile, fields: tuple[PackField, ...], kept: NDArray[np.bool_]) -> Edges:
    """Return what of each block belongs to rows that reach over one of its ends."""
    block_bytes, edges = file.manifest.block_bytes, Edges.none(file.blocks)
    for field in fields:
        starts, stops = _row_places(file, field)
        first, last = starts // block_bytes, np.maximum(stops - 1, starts) // block_bytes
        across = last == first + 1
        np.maximum.at(edges.tails, first[across], (first[across] + 1) * block_bytes - starts[across])
        np.maximum.at(edges.heads, last[across], stops[across] - last[across] * block_bytes)
    edges.heads[kept] = edges.tails[kept] = 0
    return edges

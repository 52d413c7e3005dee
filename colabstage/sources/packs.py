"""Find the files of a pack, each with its manifest: by paths, addresses, a pattern or a share link."""

from __future__ import annotations

import glob
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import OptionError, PackFormatError, SourceNotFoundError
from colabstage.h5.info import open_h5, size_of_file
from colabstage.h5.manifest import Manifest, manifest_path, parse_manifest, read_manifest
from colabstage.h5.parts import PartName, find_parts
from colabstage.h5.schema import BYTES, OFFSETS, split_of, y_name
from colabstage.h5.untrusted import open_alone, reading_contents
from colabstage.io.units import NAMES_SHOWN, format_names
from colabstage.sources.blocks import Edges
from colabstage.sources.in_part import BlockwiseFile, FileOfSet, WholeFile
from colabstage.sources.parse import LocalSource, ShareSource, SingleSource, parse_source
from colabstage.sources.remote import Access, Services, given_up
from colabstage.sources.remote_files import FileSource, read_small_file, remote_opener
from colabstage.trees.bytes import RequestedBytes, SourceFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.h5.parts import Files


# The address of all shards of a set, as packing reports it, or with a star.
_SHARDS = re.compile(r"(?P<stem>.+)-(?:\*|\?{5})-of-(?P<count>\d{5})(?P<rest>.*)", re.DOTALL)


def find_files(files: Files) -> list[tuple[SingleSource, SingleSource]]:
    """Find the files of a pack, each with its manifest; a link to a shared folder is opened for that. For a file on
    this machine or a mount, the second is the file itself, because its manifest is found by its path."""
    addresses = _addresses_of(files)
    sources = [source_of(address) for address in addresses]
    if len(sources) == 1 and isinstance(sources[0], ShareSource):
        return _find_shared(sources[0])
    return [(source, _beside(source, address)) for source, address in zip(sources, addresses, strict=True)]


def _addresses_of(files: Files) -> list[str | os.PathLike[str]]:
    if not isinstance(files, str | os.PathLike):
        found = list(files)
    elif "://" not in (text := os.fspath(files)):
        return [*find_parts(files)] if glob.has_magic(text) else [files]
    elif (shards := _SHARDS.fullmatch(text)) is not None:
        # Not every address can be listed, but that of a set tells how many files there are.
        count = int(shards["count"])
        found = [f"{shards['stem']}-{number:05}-of-{count:05}{shards['rest']}" for number in range(count)]
    else:
        return [files]
    if not found:
        msg = "No file is named; expected at least one packed file."
        raise OptionError(msg)
    return found


def source_of(address: str | os.PathLike[str]) -> FileSource:
    """Return the source of one file; an OptionError if an address is of anything else."""
    source = parse_source(address)
    if not isinstance(source, FileSource):
        msg = f"disk_limit= is for packed files; '{source.label}' is none. Give its path or address."
        raise OptionError(msg)
    return source


def _beside(source: SingleSource, address: str | os.PathLike[str]) -> SingleSource:
    if isinstance(source, LocalSource):
        return source
    if isinstance(source, ShareSource):
        msg = (
            f"'{source.label}' is a share link in a list. Give the link to the shared folder that has all files, alone."
        )
        raise OptionError(msg)
    # A signed address has its signature after the path, and it must stay there.
    before, mark, query = os.fspath(address).partition("?")
    return source_of(f"{before}.json{mark}{query}")


def _find_shared(source: ShareSource) -> list[tuple[SingleSource, SingleSource]]:
    """Find the one pack in a shared folder, or all shards of the one set."""
    from colabstage.sources.gdrive import SharedFolder, open_share

    with given_up():
        found = open_share(source)
    if not isinstance(found, SharedFolder):
        found.close()
    shared: dict[str, SingleSource] = {**found.files} if isinstance(found, SharedFolder) else {}
    packs = {name: one for name, one in shared.items() if f"{name}.json" in shared}
    sets = {PartName.of(Path(name)).dataset for name in packs}
    if not packs:
        msg = (
            f"'{source.label}' leads to no packed file with its manifest. Share a folder that holds both, NAME.h5 and "
            "NAME.h5.json, and give the link to that folder."
        )
        raise SourceNotFoundError(msg)
    if len(sets) > 1:
        some = format_names(sorted(packs)[:NAMES_SHOWN], len(packs))
        msg = f"'{source.label}' holds several packs ({some}). Share a folder that holds one, and give its link."
        raise OptionError(msg)
    in_order = sorted(packs, key=lambda name: PartName.of(Path(name)))
    return [(packs[name], shared[f"{name}.json"]) for name in in_order]


def find_manifest(wanted: tuple[SingleSource, SingleSource], services: Services) -> Manifest:
    """Read the manifest of a packed file, from what `find_files` found; an error if it is missing."""
    source, beside = wanted
    if isinstance(source, LocalSource):
        found, label = read_manifest(source.path), str(manifest_path(source.path))
    else:
        label, content = beside.label, None
        # Another version's manifest has other hashes than the blocks.
        with suppress(SourceNotFoundError, ValueError, RecursionError):
            content = json.loads(read_small_file(beside, services))
        found = parse_manifest(content, label)
    if found is None:
        # If the file is missing too, that is the error to report.
        if isinstance(source, LocalSource):
            size_of_file(source.path)
        else:
            remote_opener(source, Access(services=services))().close()
        msg = (
            f"'{label}' is missing or incomplete, so a damaged block of '{source.label}' would not be noticed. Publish "
            "both files together; packs that colabstage made have one beside them."
        )
        raise SourceNotFoundError(msg)
    return found


def label_of(files: Files, sources: Sequence[SingleSource]) -> str:
    # For a shared folder this is its link, not that of a file in it.
    if isinstance(files, str | os.PathLike) and isinstance(sources[0], ShareSource):
        return source_of(files).label
    more = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
    return f"{sources[0].label}{more}"


def name_files(sources: Sequence[SingleSource], manifests: Sequence[Manifest]) -> list[FileOfSet]:
    """Give each file a unique name for its local part."""
    names = [f"{one.name.removesuffix('.h5')}.h5" for one in sources]
    if len(sources) == 1:
        names = [f"{sources[0].name}.h5"]
    elif len(set(names)) < len(names):
        names = [f"{number:05}-{name}" for number, name in enumerate(names)]
    return [FileOfSet(*one) for one in zip(sources, names, manifests, strict=True)]


# Find where the rows of a pack are in its files, and which blocks each row needs.


# Targets stay local if they take at most this fraction of the limit.
_KEPT_PART = 8
# If the whole pack is copied, the first batch waits for all targets if they take at most this many blocks.
_KEPT_BLOCKS = 2
# A batch may be in two blocks that are not neighbours, and its rows reach into the block before and after each.
LEAST_BLOCKS = 6
# If the edges of blocks stay, rows reach into no other: two that are read, one that arrives, and one that is local for
# a moment to leave its edge.
_LEAST_WITH_EDGES = 4
# The edges of blocks stay local if they take at most this fraction of the limit.
_EDGES_PART = 4


@dataclass(frozen=True, slots=True)
class PackField:
    """A byte range of a file that holds rows of a split, and of which some blocks are local."""

    split: str
    is_input: bool
    start: int
    """The address at which they begin, as in `FileSet`."""
    nbytes: int
    rows: int
    offsets: str | None
    """The dataset of offsets where rows begin; `None` if all rows have one length."""
    number: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class _Span:
    """Blocks that the inputs, or the targets, of all rows of a split need, in all files."""

    is_input: bool
    firsts: NDArray[np.int64]
    lasts: NDArray[np.int64]


class Places:
    def __init__(self, spans: list[_Span], file_ends: NDArray[np.int64], edges: bool) -> None:
        """Take the spans of the split; `file_ends`: the number of rows up to the end of each file; `edges`: whether
        edges of blocks stay local."""
        self._spans, self._edges = spans, edges
        rows = int(file_ends[-1]) if len(file_ends) else 0
        coarsest = min(
            spans, key=lambda span: int(span.lasts.max(initial=0) - span.firsts.min(initial=0)), default=None
        )
        self.low = 0 if coarsest is None or not rows else int(coarsest.firsts.min())
        """The block that is the first unit."""
        self.units = np.zeros((rows, 2), np.intp)
        if coarsest is not None and rows:
            begins = np.concatenate([[0], file_ends[:-1]])
            lows = np.minimum.reduceat(coarsest.firsts, begins)
            highs = np.maximum.reduceat(coarsest.lasts, begins)
            # Units are counted without what is between the rows of two files: index, labels, other splits.
            before = lows - np.concatenate([[0], np.cumsum(highs - lows + 1)[:-1]])
            skipped = np.repeat(before, np.diff(file_ends, prepend=0))
            self.units = np.stack([coarsest.firsts - skipped, coarsest.lasts - skipped], axis=1).astype(np.intp)
        self.gap = max(1, 2 * rows // max(1, int(self.units.max(initial=0)) + 1))

    def needed(self, rows: NDArray[np.intp], *, targets_only: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks that rows need completely, and those of which they need only an edge."""
        whole: list[NDArray[np.int64]] = []
        edges: list[NDArray[np.int64]] = []
        for span in self._spans:
            if targets_only and span.is_input:
                continue
            first, last = span.firsts[rows], span.lasts[rows]
            across = (last == first + 1) if self._edges else np.zeros(len(rows), np.bool_)
            edges += [first[across], last[across]]
            # By steps along the longest row, not row by row, because there may be millions.
            longest = int((last - first)[~across].max(initial=0))
            whole += [np.minimum(first[~across] + step, last[~across]) for step in range(longest + 1)]
        return _unique(whole), _unique(edges)

    def count_here(self, state: NDArray[np.bool_]) -> int:
        """Count the rows whose blocks are all local; `state`: for each block, whether it is."""
        # With prefix sums, one subtraction per row tells whether all blocks from one to another are local.
        before = np.r_[0, np.cumsum(state)]
        here = np.ones(len(self.units), np.bool_)
        for span in self._spans:
            here &= before[span.lasts + 1] - before[span.firsts] == span.lasts - span.firsts + 1
        return int(here.sum())

    def uses(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when, by its place in `rows`, which block is needed."""
        places: list[NDArray[np.int64]] = []
        blocks: list[NDArray[np.int64]] = []
        for span in self._spans:
            first, last = span.firsts[rows], span.lasts[rows]
            # Edges have been kept since their block was local, so they need no visit.
            inner = np.flatnonzero((last != first + 1) | (not self._edges))
            for step in range(int((last - first)[inner].max(initial=0)) + 1):
                places.append(inner)
                blocks.append(np.minimum(first[inner] + step, last[inner]))
        return _joined(places), _joined(blocks)


def _joined(parts: list[NDArray[Any]]) -> NDArray[np.int64]:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


def _unique(parts: list[NDArray[Any]]) -> NDArray[np.int64]:
    return np.unique(_joined(parts))


def find_fields(file: BlockwiseFile | WholeFile) -> tuple[PackField, ...]:
    if len(file.paths) > 1:
        # Too many files for a limit are refused before the headers of all of them are fetched.
        headers = np.isin(np.arange(file.blocks), file.files.firsts)
        file.check_room(headers, Edges.none(file.blocks), least=LEAST_BLOCKS)
    found: list[PackField] = []
    for number, path in enumerate(file.paths):
        begin, end = file.files.begin(number), file.files.end(number)
        # The blocks that h5py touches are fetched first.
        part = RequestedBytes(partial(_read_at, file, begin), end - begin, label=str(path))
        with reading_contents(path), open_alone(SourceFile(part), str(path)) as pack:
            for name in pack:
                split = split_of(name)
                if split is None:
                    continue
                fields = _field_of(pack[name], split, is_input=True)
                if y_name(split) in pack:
                    fields += _field_of(pack[y_name(split)], split, is_input=False)
                found += [replace(one, start=begin + one.start, number=number) for one in fields]
    # Small targets stay local.
    most = _KEPT_BLOCKS * file.files.block_bytes if file.limit is None else file.limit // _KEPT_PART
    # One decision for all files: either all targets of a split stay, or none.
    targets: dict[str, int] = {}
    for one in found:
        if not one.is_input:
            targets[one.split] = targets.get(one.split, 0) + one.nbytes
    return tuple(one for one in found if one.is_input or targets[one.split] > most)


def _read_at(file: BlockwiseFile | WholeFile, begin: int, length: int, offset: int) -> bytes:
    return file.read(begin + offset, length)


def _field_of(node: Any, split: str, *, is_input: bool) -> list[PackField]:
    import h5py

    grouped = isinstance(node, h5py.Group)
    if grouped and not {BYTES, OFFSETS} <= node.keys():
        return []
    data, rows = (node[BYTES], len(node[OFFSETS]) - 1) if grouped else (node, len(node))
    if data.chunks is not None or data.id.get_offset() is None or not data.id.get_storage_size():
        # It is unknown where its rows are, so all of it stays, like everything outside the fields.
        return [PackField(split, is_input, 0, 0, rows, None)]
    offsets = f"{node.name}/{OFFSETS}" if grouped else None
    return [PackField(split, is_input, data.id.get_offset(), data.id.get_storage_size(), rows, offsets)]


def _kept_blocks(file: BlockwiseFile | WholeFile, fields: tuple[PackField, ...]) -> NDArray[np.bool_]:
    """Return which blocks hold anything but rows; these stay."""
    block_bytes, kept = file.files.block_bytes, np.ones(file.blocks, np.bool_)
    for field in fields:
        end = field.start + field.nbytes
        # A file's last block counts as whole.
        stop = -(-end // block_bytes) if end == file.files.end(field.number) else end // block_bytes
        kept[-(-field.start // block_bytes) : stop] = False
    return kept


def find_places(file: BlockwiseFile | WholeFile, fields: Sequence[PackField]) -> Places:
    """Find which blocks each row of a split needs; `fields`: those of the split."""
    block_bytes = file.files.block_bytes
    spans, inputs = [], [field for field in fields if field.is_input]
    for side in (inputs, [field for field in fields if not field.is_input]):
        if not side:
            continue
        places = [_row_places(file, field) for field in side]
        starts, stops = (np.concatenate(one) for one in zip(*places, strict=True))
        spans.append(_Span(side is inputs, starts // block_bytes, np.maximum(stops - 1, starts) // block_bytes))
    ends = np.cumsum([field.rows for field in inputs if field.rows])
    return Places(spans, ends, edges=file.has_edges)


def _row_places(file: BlockwiseFile | WholeFile, field: PackField) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the addresses at which each row of a field begins and ends."""
    if field.offsets is None:
        length = field.nbytes // max(1, field.rows)
        starts = field.start + np.arange(field.rows, dtype=np.int64) * length
        return starts, starts + length
    path = file.paths[field.number]
    with open_h5(path, in_part=True) as opened, reading_contents(path):
        offsets = np.asarray(opened[field.offsets][()], np.int64)
    if len(offsets) != field.rows + 1 or (np.diff(offsets) < 0).any() or offsets[-1] > field.nbytes:
        msg = f"{field.offsets} in '{path}' does not say where rows begin. Pack it again."
        raise PackFormatError(msg)
    return field.start + offsets[:-1], field.start + offsets[1:]


def _find_edges(file: BlockwiseFile, fields: tuple[PackField, ...], kept: NDArray[np.bool_]) -> Edges:
    """Return the parts of each block that belong to rows that cross one of its ends."""
    block_bytes, edges = file.files.block_bytes, Edges.none(file.blocks)
    for field in fields:
        starts, stops = _row_places(file, field)
        first, last = starts // block_bytes, np.maximum(stops - 1, starts) // block_bytes
        across = last == first + 1
        np.maximum.at(edges.tails, first[across], (first[across] + 1) * block_bytes - starts[across])
        np.maximum.at(edges.heads, last[across], stops[across] - last[across] * block_bytes)
    edges.heads[kept] = edges.tails[kept] = 0
    return edges


def bring_kept(file: BlockwiseFile, fields: tuple[PackField, ...]) -> None:
    """Fetch everything that is not rows, and mark it to stay."""
    kept = _kept_blocks(file, fields)
    # Before any of it is fetched.
    room = file.check_room(kept, Edges.none(file.blocks), least=LEAST_BLOCKS)
    with file.hold(np.flatnonzero(kept)):
        pass
    edges, least = Edges.none(file.blocks), LEAST_BLOCKS
    if file.limit is not None:
        # Without edges, the neighbours of each block are fetched once more for the rows that span both.
        spare = (room - _LEAST_WITH_EDGES) * file.files.block_bytes
        found = _find_edges(file, fields, kept)
        if found.nbytes <= min(file.limit // _EDGES_PART, spare):
            edges, least = found, _LEAST_WITH_EDGES
    file.settle(kept, edges, least=least)

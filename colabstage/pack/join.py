"""Shards joined into one file, with the rows and the bytes that a single process would have written.

Shards hold consecutive rows of each split, so each dataset of the joined file is theirs one after the other. Only
offsets, which count from the beginning of a file, have to be shifted; and unused rows of boxes are moved to the end.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.h5.manifest import manifest_of_bytes, write_manifest
from colabstage.h5.schema import (
    BOXES,
    BYTES,
    CLASSES,
    FORMAT_ATTRIBUTE,
    OFFSETS,
    SHARD_SET_ATTRIBUTE,
    SKIPPED,
    PackContent,
    ReservedDataset,
    create_pack,
    key_name,
    split_of,
    x_name,
    y_name,
)
from colabstage.io.files import TargetFile, block_ranges, pread_exactly
from colabstage.io.retry import translate_write_error
from colabstage.io.workspace import open_workspace
from colabstage.machine.resources import check_space, usable_cores
from colabstage.pack.execute import place_pack
from colabstage.pack.finish import OVERHEAD_BYTES
from colabstage.pack.shards import ShardSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest
    from colabstage.io.progress import Progress
    from colabstage.pack.execute import PackReport
    from colabstage.pack.job import PackSource
    from colabstage.pack.options import PackOptions

# Large enough for a disk's full rate, and little beside the memory of one decoder.
_COPY_BYTES = 8 * 1024 * 1024


def pack_by_executor(
    source: PackSource,
    out: Path,
    options: PackOptions,
    executor: Executor,
    *,
    progress: Progress,
    key: str,
    identity: Mapping[str, Any],
    address: str,
) -> PackReport:
    """Write one file whose parts an executor's workers make; they need access to `source` and to `out`'s folder.

    Shards that are finished when this fails are kept for the next attempt.

    Args:
        key, identity, address: as for `run_pack`.

    Raises:
        Exception: as `pack_dataset`; an existing `out` is replaced only at the very end.
    """
    began = time.monotonic()
    model = out.with_name(f"{out.stem}-parts{out.suffix}")
    # Kept after any error: each shard in there has its own manifest, and is checked before it is used again.
    with open_workspace(model) as workspace:
        parts = ShardSet(source, workspace.path / "pack.h5", options, None, executor, overwrite=True).pack(progress)
        manifest = place_joined(
            [Path(file) for file in parts.files],
            workspace.path,
            out,
            samples=parts.samples,
            skipped=parts.skipped,
            key=key,
            identity=identity,
            address=address,
        )
    seconds = time.monotonic() - began
    return replace(parts, path=out, files=(), nbytes=manifest.size, samples=manifest.samples, seconds=seconds)


def place_joined(
    shards: Sequence[Path],
    folder: Path,
    out: Path,
    *,
    samples: Mapping[str, int],
    skipped: tuple[str, ...],
    key: str,
    identity: Mapping[str, Any],
    address: str,
) -> Manifest:
    """Join shards in `folder`, and put the pack with its manifest, which is returned, in its place.

    Args:
        shards: all of one set, in order.
        folder: a folder on the disk of `out`, to work in.
        out: the pack.
        samples: rows of each split, in the order of the file.
        skipped: one sentence for each sample that was left out.
        key, identity, address: as for `run_pack`.

    Raises:
        NotEnoughSpaceError, TargetNotWritableError: it could not be written; what was at `out` is unchanged.
    """
    nbytes = sum(shard.stat().st_size for shard in shards)
    check_space(out.parent, nbytes + OVERHEAD_BYTES, f"The pack of '{address}', put together,")
    joined = folder / "joined.h5"
    try:
        join_shards(shards, joined, splits=tuple(samples), attributes={"source": address})
    except OSError as error:
        raise translate_write_error(error, joined) from error
    # Hashed again: blocks of the joined file begin elsewhere than those of the shards.
    manifest = replace(
        manifest_of_bytes(joined, threads=usable_cores()),
        key=key,
        identity=dict(identity),
        samples={name: rows for name, rows in samples.items() if rows},
        skipped=skipped,
        written_by=version("colabstage"),
    )
    write_manifest(joined, manifest)
    place_pack(joined, out)
    return manifest


def splits_in_order(shards: Sequence[Path]) -> list[str]:
    """Return the splits of a set in the order in which its shards have them, which that of manifests is not."""
    import h5py

    orders: list[list[str]] = []
    for path in shards:
        with h5py.File(path, "r", locking=False) as file:
            # Each was reserved before those that come after it.
            places = {split: _begin(file[name]) for name in file if (split := split_of(name)) is not None}
        orders.append(sorted(places, key=places.__getitem__))
    # A small split has fewer rows than there are shards; hardly ever are two so small that no shard has both.
    most = max(orders, key=len)
    return [*most, *sorted({split for order in orders for split in order} - {*most})]


def _begin(node: Any) -> int:
    """Return where the rows of a dataset, or of a group of bytes, begin in the file."""
    data = node[BYTES] if hasattr(node, "keys") else node
    return int(data.id.get_offset() or 0)


def join_shards(shards: Sequence[Path], out: Path, *, splits: Iterable[str], attributes: Mapping[str, Any]) -> None:
    """Write the file that the shards are parts of.

    Args:
        shards: all of one set, in order.
        out: the file to make; one that exists is overwritten.
        splits: in the order of the file.
        attributes: of its root, in place of the shards' own.
    """
    import h5py

    with contextlib.ExitStack() as stack:
        # They are finished and nobody writes them, and file systems of clusters often know no locks.
        files = [stack.enter_context(h5py.File(path, "r", locking=False)) for path in shards]
        parts = [_Joined.of(split, files) for split in splits]
        content = _joined_content(files, parts, attributes)
        offsets = create_pack(out, content)
        # Without HDF5, which would copy through its own buffers, holding its lock.
        with TargetFile(out, fresh=False) as target:
            for part in parts:
                for name, pieces in part.pieces.items():
                    place = offsets.get(name, 0)
                    for data in _bytes_of(pieces):
                        target.write(data, place)
                        place += len(data)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Bytes in a shard's file."""

    path: Path | str
    """The shard."""
    start: int
    """Where they begin in it."""
    nbytes: int
    """How many there are."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """One split of the joined file."""

    arrays: dict[str, NDArray[Any]]
    """Its small datasets."""
    reserved: list[ReservedDataset]
    """Its large datasets, to be written without HDF5."""
    pieces: dict[str, list[_Stored | NDArray[Any]]]
    """The pieces of each large dataset, in order."""
    group_attributes: dict[str, dict[str, Any]]
    """The attributes of its groups."""

    @classmethod
    def of(cls, split: str, files: Sequence[Any]) -> _Joined:
        """Return the split, from those shards that have rows of it."""
        joined = cls({}, [], {}, {})
        # A small split may have fewer rows than there are shards.
        having = [file for file in files if key_name(split) in file]
        keys = [text for file in having for text in file[key_name(split)][()].tolist()]
        joined.arrays[key_name(split)] = _decoded_texts(keys)
        for top in (x_name(split), y_name(split)):
            nodes = [file[top] for file in having if top in file]
            if nodes and hasattr(nodes[0], "keys"):
                joined.group_attributes.update({top: _attributes(nodes[0])} if len(nodes[0].attrs) else {})
                joined._add_group(top, nodes)
            elif nodes:
                joined._add(top, nodes)
        # In the order in which a single process lays them out, since the bytes must not show who wrote the parts.
        joined.reserved.sort(key=lambda spec: _rank(spec.name, split))
        return joined

    def _add_group(self, top: str, groups: Sequence[Any]) -> None:
        """Add rows of different lengths: first those that offsets refer to, then unused ones."""
        # Offsets count from 0 in each shard; in the joined file each continues where the one before ends.
        counted = [group[OFFSETS][()] for group in groups]
        used = [int(offsets[-1]) for offsets in counted]
        starts = np.cumsum([0, *used])
        parts = [offsets[1:] + start for offsets, start in zip(counted, starts[:-1], strict=True)]
        whole = np.concatenate([[0], *parts]).astype(np.int64)
        for name in groups[0]:
            nodes = [group[name] for group in groups]
            path = f"{top}/{name}"
            if name != OFFSETS:
                self._add(path, nodes, used)
            elif _is_reserved(nodes[0]):
                self.reserved.append(ReservedDataset(path, whole.shape, whole.dtype))
                self.pieces[path] = [whole]
            else:
                self.arrays[path] = whole

    def _add(self, path: str, nodes: Sequence[Any], used: Sequence[int] | None = None) -> None:
        if not _is_reserved(nodes[0]):
            self.arrays[path] = np.concatenate([node[()] for node in nodes])
            return
        rows = sum(len(node) for node in nodes)
        # Every shard has its unused rows at the end; in the joined file they all come last.
        self.reserved.append(ReservedDataset(path, (rows, *nodes[0].shape[1:]), nodes[0].dtype))
        ends = [len(node) for node in nodes] if used is None else used
        first = [_rows(node, 0, end) for node, end in zip(nodes, ends, strict=True)]
        self.pieces[path] = [*first, *(_rows(node, end, len(node)) for node, end in zip(nodes, ends, strict=True))]


def _joined_content(files: Sequence[Any], parts: Sequence[_Joined], attributes: Mapping[str, Any]) -> PackContent:
    arrays = {name: array for part in parts for name, array in part.arrays.items()}
    # All shards of a set have the same classes: they were planned together.
    arrays[CLASSES] = _decoded_texts(files[0][CLASSES][()].tolist())
    skipped = [text for file in files if SKIPPED in file for text in file[SKIPPED][()].tolist()]
    if skipped:
        arrays[SKIPPED] = _decoded_texts(skipped)
    # The format is written by `create_pack`; the other two would make the file a shard.
    own = {FORMAT_ATTRIBUTE, SHARD_SET_ATTRIBUTE, "shard"}
    return PackContent(
        reserved=[spec for part in parts for spec in part.reserved],
        arrays=arrays,
        attributes={**{k: v for k, v in _attributes(files[0]).items() if k not in own}, **attributes},
        group_attributes={name: values for part in parts for name, values in part.group_attributes.items()},
    )


def _bytes_of(pieces: Sequence[_Stored | NDArray[Any]]) -> Iterator[bytes]:
    for piece in pieces:
        if not isinstance(piece, _Stored):
            yield piece.tobytes()
            continue
        with open(piece.path, "rb") as file:
            for offset, length in block_ranges(piece.nbytes, _COPY_BYTES):
                yield pread_exactly(file.fileno(), length, piece.start + offset)


def _rows(node: Any, first: int, end: int) -> _Stored:
    """Return where some rows of a contiguous dataset are stored."""
    row_bytes = node.dtype.itemsize * int(np.prod(node.shape[1:], dtype=np.int64))
    return _Stored(
        os.fsdecode(node.file.filename), (node.id.get_offset() or 0) + first * row_bytes, (end - first) * row_bytes
    )


def _is_reserved(node: Any) -> bool:
    """Return whether a dataset was created to be written without HDF5."""
    from h5py import h5d

    # HDF5 stores this property, and for small datasets it is another one.

    found: bool = node.id.get_create_plist().get_alloc_time() == h5d.ALLOC_TIME_EARLY
    return found


def _rank(path: str, split: str) -> tuple[int, int, str]:
    """Return the key that sorts datasets of a split as `pack_content` reserves them: boxes, then x, then y."""
    top, _, name = path.partition("/")
    if top == x_name(split):
        return 1, 0, name
    in_boxes = {OFFSETS: 0, BOXES: 1}
    return (2, 0, name) if name in ("", BYTES) else (0, in_boxes.get(name, 2), name)


def _attributes(node: Any) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in node.attrs.items()}


def _decoded_texts(encoded: Sequence[bytes]) -> NDArray[Any]:
    return np.array([text.decode() for text in encoded], dtype=object)

"""Shards are joined into the rows and the bytes that a single process would have written.

They hold consecutive rows of each split, so each dataset of the joined file is theirs one after the other. Only
offsets, which count from the beginning of a file, are shifted; and unused rows of boxes are moved to the end.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.h5.manifest import is_replaceable_pack, manifest_of_pack, place_pack, write_manifest
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
from colabstage.h5.untrusted import open_with_any_locking
from colabstage.io.files import TargetFile, block_ranges, pread_exactly, typed_write_errors
from colabstage.io.ownership import whatever_is_there
from colabstage.machine.resources import check_space
from colabstage.pack.finish import COPY_BYTES, OVERHEAD_BYTES
from colabstage.pack.writer import array_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest


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
    """Join all shards of a set in `folder`, and put the pack with its manifest, which is returned, in its place.

    `samples`: rows of each split, in the order of the file.
    """
    nbytes = sum(shard.stat().st_size for shard in shards)
    check_space(out.parent, nbytes + OVERHEAD_BYTES, f"The pack of '{address}', put together,")
    joined = folder / "joined.h5"
    with typed_write_errors(joined):
        join_shards(shards, joined, splits=tuple(samples), attributes={"source": address})
    # Hashed again: blocks of the joined file begin elsewhere than those of the shards.
    stored = {name: rows for name, rows in samples.items() if rows}
    manifest = manifest_of_pack(joined, key=key, identity=identity, samples=stored, skipped=skipped)
    write_manifest(joined, manifest)
    place_pack(joined, out, replaces=is_replaceable_pack if key else whatever_is_there)
    return manifest


def splits_in_order(shards: Sequence[Path]) -> list[str]:
    """Return the splits of a set in the order in which its shards have them, which that of manifests is not."""
    orders: list[list[str]] = []
    for path in shards:
        with open_with_any_locking(path) as file:
            # Each was reserved before those that come after it.
            places = {split: _first_byte(file[name]) for name in file if (split := split_of(name)) is not None}
        orders.append(sorted(places, key=places.__getitem__))
    # A small split has fewer rows than there are shards; hardly ever are two so small that no shard has both.
    most = max(orders, key=len)
    return [*most, *sorted({split for order in orders for split in order} - {*most})]


def _first_byte(node: Any) -> int:
    """Return where the rows of a dataset, or of a group of bytes, begin in the file."""
    data = node[BYTES] if hasattr(node, "keys") else node
    return int(data.id.get_offset() or 0)


class _Column(NamedTuple):
    """A dataset of a joined file."""

    name: str
    """Its path."""
    nodes: list[Any]
    """The datasets of the shards that it is made of, in order."""
    used: list[int]
    """How many rows of each come first; unused ones of all come last."""
    values: NDArray[Any] | None = None
    """All of it, where it is not copied."""

    @property
    def is_reserved(self) -> bool:
        """Return whether it was created to be written without HDF5."""
        from h5py import h5d

        # HDF5 stores this property, and for small datasets it is another one.
        found: bool = self.nodes[0].id.get_create_plist().get_alloc_time() == h5d.ALLOC_TIME_EARLY
        return found

    @property
    def reserved(self) -> ReservedDataset:
        """Return the dataset to be written later."""
        rows = sum(map(len, self.nodes)) if self.values is None else len(self.values)
        return ReservedDataset(self.name, (rows, *self.nodes[0].shape[1:]), self.nodes[0].dtype)

    @property
    def array(self) -> NDArray[Any] | list[str]:
        """Return all of it, to be written by HDF5."""
        if self.values is not None:
            return self.values
        rows = np.concatenate([node[()] for node in self.nodes])
        return [text.decode() for text in rows.tolist()] if rows.dtype.kind == "S" else rows

    def write(self, target: TargetFile, place: int) -> None:
        """Write it from a byte on, without HDF5, which would copy through its own buffers, holding its lock."""
        if self.values is not None:
            target.write(array_bytes(self.values), place)
            return
        first = [(node, 0, used) for node, used in zip(self.nodes, self.used, strict=True)]
        last = [(node, used, len(node)) for node, used in zip(self.nodes, self.used, strict=True)]
        for node, begin, end in (*first, *last):
            row_bytes = node.dtype.itemsize * int(np.prod(node.shape[1:], dtype=np.int64))
            start, nbytes = (node.id.get_offset() or 0) + begin * row_bytes, (end - begin) * row_bytes
            with open(os.fsdecode(node.file.filename), "rb") as file:
                for offset, length in block_ranges(nbytes, COPY_BYTES):
                    target.write(pread_exactly(file.fileno(), length, start + offset), place + offset)
            place += nbytes


def join_shards(shards: Sequence[Path], out: Path, *, splits: Iterable[str], attributes: Mapping[str, Any]) -> None:
    """Write the file that the shards are parts of.

    `splits`: in the order of the file. `attributes`: of its root, in place of the shards' own.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_with_any_locking(path)) for path in shards]
        # A small split may have fewer rows than there are shards.
        having = {split: [file for file in files if key_name(split) in file] for split in splits}
        columns = [column for split, some in having.items() if some for column in _columns_of(split, some)]
        # All shards of a set have the same classes: they were planned together.
        columns.append(_Column(CLASSES, files[:1] and [files[0][CLASSES]], [0]))
        if skipping := [file[SKIPPED] for file in files if SKIPPED in file]:
            columns.append(_Column(SKIPPED, skipping, [0] * len(skipping)))
        large = [column for column in columns if column.is_reserved]
        # The format is written by `create_pack`; the other two would make the file a shard.
        left_out = {FORMAT_ATTRIBUTE, SHARD_SET_ATTRIBUTE, "shard"}
        own = {name: value for name, value in _attributes(files[0]).items() if name not in left_out}
        tops = {column.name.partition("/")[0]: column.nodes[0].file for column in columns}
        groups = {top: found for top, file in tops.items() if (found := _attributes(file[top]))}
        arrays = {column.name: column.array for column in columns if not column.is_reserved}
        content = PackContent([column.reserved for column in large], arrays, {**own, **attributes}, groups)
        offsets = create_pack(out, content)
        with TargetFile(out, fresh=False) as target:
            for column in large:
                column.write(target, offsets.get(column.name, 0))


def _columns_of(split: str, files: Sequence[Any]) -> list[_Column]:
    """Return the datasets of a split, in the order in which a single process lays them out, since the bytes must not
    show who wrote the parts."""
    tops = [top for top in (key_name(split), x_name(split), y_name(split)) if top in files[0]]
    columns = [column for top in tops for column in _columns_at(top, files)]
    return sorted(columns, key=lambda column: _rank(column.name, split))


def _columns_at(top: str, files: Sequence[Any]) -> Iterator[_Column]:
    """Yield the dataset of this name, or those in the group of this name."""
    nodes = [file[top] for file in files]
    if not hasattr(nodes[0], "keys"):
        yield _Column(top, nodes, [len(node) for node in nodes])
        return
    # Offsets count from 0 in each shard; in the joined file each continues where the one before ends.
    counted = [node[OFFSETS][()] for node in nodes]
    used = [int(offsets[-1]) for offsets in counted]
    starts = np.cumsum([0, *used])[:-1]
    whole = [[0], *(offsets[1:] + start for offsets, start in zip(counted, starts, strict=True))]
    for name in nodes[0]:
        values = np.concatenate(whole).astype(np.int64) if name == OFFSETS else None
        yield _Column(f"{top}/{name}", [node[name] for node in nodes], used, values)


def _rank(path: str, split: str) -> tuple[int, int, str]:
    """Return the key that sorts datasets of a split as `pack_content` reserves them: boxes, then x, then y."""
    top, _, name = path.partition("/")
    if top == x_name(split):
        return 1, 0, name
    in_boxes = {OFFSETS: 0, BOXES: 1}
    return (2, 0, name) if name in ("", BYTES) else (0, in_boxes.get(name, 2), name)


def _attributes(node: Any) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in node.attrs.items()}

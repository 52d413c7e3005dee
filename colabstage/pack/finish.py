"""What remains to do when every sample is written: make one file of it.

Gaps between decoded samples are closed, spooled bytes are moved into place, and boxes are written. If samples are left
out, the others keep their split, label and order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.h5.manifest import Manifest, is_replaceable_pack, manifest_of_pack, place_pack, write_manifest
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
from colabstage.images.geometry import ImageOptions, fit_boxes
from colabstage.io.files import TargetFile, block_ranges, pread_exactly, typed_write_errors
from colabstage.io.workspace import whatever_is_there
from colabstage.layouts.evidence import take_targets
from colabstage.layouts.table import Boxes, UnreadBoxes
from colabstage.machine.resources import check_space
from colabstage.pack.plan import PackPlan, SplitPlan, pack_content
from colabstage.pack.writer import WriteJob, array_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.pack.job import PackJob


# For HDF5's own structures around the samples.
OVERHEAD_BYTES = 4 * 1024 * 1024
# Large enough for a disk's full rate, and little compared with the memory of one decoder.
COPY_BYTES = 8 * 1024 * 1024
# The value of other columns in rows that cropping left without a box; these rows come last.
_UNUSED = -1


def copy_runs(
    old: int, new: TargetFile, starts: NDArray[np.int64], places: NDArray[np.int64], lengths: NDArray[np.int64]
) -> None:
    """Copy rows from their places in an open file to their places in a new one."""
    # The longest runs of rows that are neighbours in both: rows are a few kilobytes, and a read and a write for each of
    # a million would take minutes.
    cuts = np.flatnonzero((starts[1:] != starts[:-1] + lengths[:-1]) | (places[1:] != places[:-1] + lengths[:-1])) + 1
    first = np.concatenate([[0], cuts]).astype(np.int64)
    runs = (column.tolist() for column in (starts[first], np.add.reduceat(lengths, first), places[first]))
    for start, length, place in zip(*runs, strict=True):
        for offset, size in block_ranges(length, COPY_BYTES):
            new.write(pread_exactly(old, size, start + offset), place + offset)


def finish_pack(
    work: WriteJob, *, left_out: NDArray[np.int64], skipped: tuple[str, ...], attributes: Mapping[str, Any]
) -> tuple[Path, PackPlan, tuple[int, str], tuple[str, ...]]:
    """Make the final file from decoded samples. May be called again after an interruption.

    Returns:
        The file to publish; its plan, without the samples that were left out; what `_write_boxes` returns; and the
        names of those with NaN among their numbers.
    """
    job, data = work.job, work.target
    # Every sample is in its final place, so nothing is copied.
    if not skipped and not job.plan.is_open:
        outside = _write_boxes(work, job, job.plan, data, work.offsets)
        return data, job.plan, outside, _with_nan(job, job.plan, data, work.offsets)
    # Gaps are closed, so that the file is byte for byte that of a source without the broken samples.
    splits = [SplitPlan(one.name, one.samples[~np.isin(one.samples, left_out)]) for one in job.plan.splits]
    plan = replace(job.plan, splits=tuple(split for split in splits if len(split.samples)))
    if not plan.splits:
        msg = f"None of the {len(job.table):,} {job.table.unit} can be decoded. The first: {skipped[0]}"
        raise LayoutError(msg)
    copies, spool = [(data, places) for places in work.places], data.with_name("spool")
    # JPEGs made while packing were spooled in the order in which workers finished; their places follow only now, from
    # all their lengths.
    if plan.x.is_open:
        noted = _noted(work)
        plan = replace(plan, x=replace(plan.x, lengths=noted["length"][:, 0].astype(np.int64)))
        copies[0] = spool, noted["start"][:, 0].astype(np.int64)
    # Boxes too: from here on they are like those of a source with boxes in separate files.
    if isinstance(job.table.targets, UnreadBoxes):
        job = replace(job, table=replace(job.table, targets=_spooled_boxes(job.table.targets, spool, _noted(work))))
        plan, copies = replace(plan, y=None), copies[:1]
    # Before a byte is written; what is decoded stays for the next attempt.
    check_space(data.parent, plan.nbytes + OVERHEAD_BYTES, f"The final pack of '{job.label}'")
    final = data.with_name("final.h5")
    offsets = create_pack(final, pack_content(job.table, plan, job.options, attributes=attributes, skipped=skipped))
    kept = np.concatenate([split.samples for split in plan.splits])
    with TargetFile(final, fresh=False) as new:
        for part, (file, starts) in zip(plan.fields, copies, strict=True):
            places = part.places(plan.splits, offsets, len(starts))
            with open(file, "rb") as old:
                copy_runs(old.fileno(), new, starts[kept], places[kept], part.lengths_of(kept))
    outside = _write_boxes(work, job, plan, final, offsets)
    return final, plan, outside, _with_nan(job, plan, final, offsets)


def _with_nan(job: PackJob, plan: PackPlan, file: Path, offsets: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of samples with NaN among their numbers. All rows are looked at together: to look at each as it
    is packed takes a fifth of the time of packing rows of numbers."""
    found: list[int] = []
    fields = [field for field in plan.fields if field.dtype.kind == "f" and field.row_bytes]
    for field, split in itertools.product(fields, plan.splits):
        shape = len(split.samples), field.row_bytes // field.dtype.itemsize
        rows = np.memmap(file, field.dtype, "r", offsets[field.name(split.name)], shape)
        for first, count in block_ranges(len(rows), max(1, COPY_BYTES // field.row_bytes)):
            part = rows[first : first + count]
            # The least number is NaN if any is, and is found without a copy.
            if np.isnan(np.minimum.reduce(part, axis=None)):
                found += split.samples[first : first + count][np.isnan(part).any(axis=1)].tolist()
    return tuple(map(job.table.inputs.source.name, dict.fromkeys(found)))


def _noted(work: WriteJob) -> NDArray[np.void]:
    """Return the facts recorded about each sample, `(N,)`."""
    assert work.facts is not None
    return work.facts.read()


def _spooled_boxes(targets: UnreadBoxes, spool: Path, noted: NDArray[np.void]) -> Boxes:
    """Return the boxes of all samples, none for those that were left out."""
    starts, lengths = noted["start"][:, 1].tolist(), noted["length"][:, 1].tolist()
    with open(spool, "rb") as file:
        pieces = [pread_exactly(file.fileno(), *at) for at in zip(lengths, starts, strict=True) if at[0]]
    rows = np.frombuffer(b"".join(pieces), targets.dtype)
    return targets.read(rows, np.array(lengths, np.int64) // targets.dtype.itemsize)


def _write_boxes(
    work: WriteJob, job: PackJob, plan: PackPlan, file: Path, offsets: Mapping[str, int]
) -> tuple[int, str]:
    """Write the boxes of all samples, now that every image's size is known; return how many are partly or wholly
    outside of their image, and the name of the first such image."""
    boxes = job.table.targets
    if not isinstance(boxes, Boxes):
        return 0, ""
    noted = _noted(work)
    sizes = np.stack([noted["height"], noted["width"]], axis=1).astype(np.int64)
    # Images stored as files are resized on reading, and their boxes with them; arrays are not resized.
    image = ImageOptions() if plan.encoding in ("encoded", "arrays") else job.options.image
    with TargetFile(file, fresh=False) as target:
        for split in plan.splits:
            for name, values in _split_boxes(boxes, split, sizes, image).items():
                if values.nbytes:
                    target.write(array_bytes(values), offsets[name])
    samples = np.concatenate([split.samples for split in plan.splits])
    found = boxes.owners[boxes.outside(sizes) & np.isin(boxes.owners, samples)]
    return len(found), job.table.inputs.source.name(int(found[0])) if len(found) else ""


def _split_boxes(
    boxes: Boxes, split: SplitPlan, sizes: NDArray[np.int64], options: ImageOptions
) -> dict[str, NDArray[Any]]:
    """Return the content of the datasets that `reserve_boxes` names.

    `sizes`: int64 `(N, 2)`, height and width of every sample's upright image before it was resized.
    """
    own_boxes = take_targets(boxes, split.samples)
    assert isinstance(own_boxes, Boxes)
    owner = own_boxes.owners
    own = sizes[split.samples][owner]
    corners = own_boxes.boxes.astype(np.float64)
    # YOLO and others give fractions of the image's sides.
    if boxes.relative:
        corners *= own[:, [1, 0, 1, 0]]
    # Only now is the size of every image known, by which cropping and padding move boxes.
    corners, kept = fit_boxes(corners, own, options.size, options.resize)
    kept_counts = np.bincount(owner[kept], minlength=len(split.samples))

    def filled(values: NDArray[Any], unused: int) -> NDArray[Any]:
        # The dataset was allocated before it was known how many boxes cropping would leave.
        rest = np.full((len(owner) - len(values), *values.shape[1:]), unused, values.dtype)
        return np.ascontiguousarray(np.concatenate([values, rest]))

    group = y_name(split.name)
    return {
        f"{group}/{OFFSETS}": np.concatenate([[0], np.cumsum(kept_counts)]).astype(np.int64),
        f"{group}/{BOXES}": filled(corners[kept].astype(np.float32), 0),
        **{
            f"{group}/{name}": filled(values[kept], 0 if values.dtype.kind in "bu" else _UNUSED)
            for name, values in own_boxes.columns.items()
        },
    }


# Shards are joined into the rows and the bytes that a single process would have written.
#
# They hold consecutive rows of each split, so each dataset of the joined file is a concatenation of theirs. Only
# offsets, which count from the beginning of a file, are shifted; and unused rows of boxes are moved to the end.


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
    """Join all shards of a set in `folder`, and put the pack into place with its manifest, which is returned.

    `samples`: rows of each split, in the order of the file.
    """
    nbytes = sum(shard.stat().st_size for shard in shards)
    check_space(out.parent, nbytes + OVERHEAD_BYTES, f"The pack of '{address}', put together,")
    joined = folder / "joined.h5"
    with typed_write_errors(joined):
        join_shards(shards, joined, splits=tuple(samples), attributes={"source": address})
    # Hashed again, because the joined file's blocks begin elsewhere than the shards'.
    stored = {name: rows for name, rows in samples.items() if rows}
    manifest = manifest_of_pack(joined, key=key, identity=identity, samples=stored, skipped=skipped)
    write_manifest(joined, manifest)
    place_pack(joined, out, replaces=is_replaceable_pack if key else whatever_is_there)
    return manifest


def splits_in_order(shards: Sequence[Path]) -> list[str]:
    """Return the splits of a set in the order of its shards; manifests do not preserve it."""
    orders: list[list[str]] = []
    for path in shards:
        with open_with_any_locking(path) as file:
            rows = {split: file[name] for name in file if (split := split_of(name)) is not None}
            data = {split: node[BYTES] if hasattr(node, "keys") else node for split, node in rows.items()}
            # Each was reserved before those after it.
            places = {split: int(one.id.get_offset() or 0) for split, one in data.items()}
        orders.append(sorted(places, key=places.__getitem__))
    # A small split has fewer rows than there are shards; two splits so small that no shard has both are very rare.
    most = max(orders, key=len)
    return [*most, *sorted({split for order in orders for split in order} - {*most})]


class _Column(NamedTuple):
    """A dataset of a joined file."""

    name: str
    nodes: list[Any]
    used: list[int]
    """How many rows of each come first; the unused rows of all come last."""
    values: NDArray[Any] | None = None
    """Its whole content, if it is not copied."""


def join_shards(shards: Sequence[Path], out: Path, *, splits: Iterable[str], attributes: Mapping[str, Any]) -> None:
    """Write the file that the shards are parts of.

    `splits`: in the order of the file. `attributes`: of the root, instead of the shards' own.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_with_any_locking(path)) for path in shards]
        columns: list[_Column] = []
        for split in splits:
            # A small split may have fewer rows than there are shards.
            if having := [file for file in files if key_name(split) in file]:
                columns += _columns_of(split, having)
        # All shards of a set have the same classes, because they were planned together.
        columns.append(_Column(CLASSES, [files[0][CLASSES]], []))
        if skipping := [file[SKIPPED] for file in files if SKIPPED in file]:
            columns.append(_Column(SKIPPED, skipping, []))
        reserved: dict[str, ReservedDataset] = {}
        arrays: dict[str, NDArray[Any] | list[str]] = {}
        for name, nodes, _, values in columns:
            if _is_reserved(nodes[0]):
                rows = sum(map(len, nodes)) if values is None else len(values)
                reserved[name] = ReservedDataset(name, (rows, *nodes[0].shape[1:]), nodes[0].dtype)
            else:
                joined = np.concatenate([node[()] for node in nodes]) if values is None else values
                arrays[name] = [text.decode() for text in joined.tolist()] if joined.dtype.kind == "S" else joined
        # `create_pack` writes the format; the other two would make the file a shard.
        left_out = {FORMAT_ATTRIBUTE, SHARD_SET_ATTRIBUTE, "shard"}
        own = {name: value for name, value in _attributes(files[0]).items() if name not in left_out}
        tops = {column.name.partition("/")[0]: column.nodes[0].file for column in columns}
        groups = {top: found for top, file in tops.items() if (found := _attributes(file[top]))}
        offsets = create_pack(out, PackContent([*reserved.values()], arrays, {**own, **attributes}, groups))
        with TargetFile(out, fresh=False) as target:
            for column in columns:
                if column.name in reserved:
                    _write_column(column, target, offsets.get(column.name, 0))


def _columns_of(split: str, files: Sequence[Any]) -> Iterator[_Column]:
    """Yield the datasets of a split in the order in which a single process lays them out (boxes, then x, then y),
    because the bytes must not show who wrote the parts."""
    x, y = x_name(split), y_name(split)
    has_boxes = y in files[0] and hasattr(files[0][y], "keys") and BOXES in files[0][y]
    for top in (key_name(split), *((y, x) if has_boxes else (x, y))):
        if top not in files[0]:
            continue
        nodes = [file[top] for file in files]
        if not hasattr(nodes[0], "keys"):
            yield _Column(top, nodes, list(map(len, nodes)))
            continue
        # Offsets count from 0 in each shard; in the joined file each continues where the one before ends.
        counted = [node[OFFSETS][()] for node in nodes]
        used = [int(offsets[-1]) for offsets in counted]
        starts = np.cumsum([0, *used])[:-1]
        whole = [[0], *(offsets[1:] + start for offsets, start in zip(counted, starts, strict=True))]
        for name in sorted(nodes[0], key=lambda name: (name != OFFSETS, name != BOXES, name)):
            values = np.concatenate(whole).astype(np.int64) if name == OFFSETS else None
            yield _Column(f"{top}/{name}", [node[name] for node in nodes], used, values)


def _is_reserved(node: Any) -> bool:
    """Tell whether a dataset was created to be written without HDF5."""
    from h5py import h5d

    # HDF5 stores this property, and it differs for small datasets.
    found: bool = node.id.get_create_plist().get_alloc_time() == h5d.ALLOC_TIME_EARLY
    return found


def _write_column(column: _Column, target: TargetFile, place: int) -> None:
    """Write a dataset from a byte on without HDF5, which would copy through its own buffers and hold its lock."""
    if column.values is not None:
        target.write(array_bytes(column.values), place)
        return
    first = [(node, 0, used) for node, used in zip(column.nodes, column.used, strict=True)]
    last = [(node, used, len(node)) for node, used in zip(column.nodes, column.used, strict=True)]
    for node, begin, end in (*first, *last):
        row_bytes = node.dtype.itemsize * int(np.prod(node.shape[1:], dtype=np.int64))
        start, nbytes = (node.id.get_offset() or 0) + begin * row_bytes, (end - begin) * row_bytes
        with open(os.fsdecode(node.file.filename), "rb") as file:
            for offset, length in block_ranges(nbytes, COPY_BYTES):
                target.write(pread_exactly(file.fileno(), length, start + offset), place + offset)
        place += nbytes


def _attributes(node: Any) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in node.attrs.items()}

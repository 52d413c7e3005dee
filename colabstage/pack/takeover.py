"""Take rows over from an earlier pack of the same source, in place of reading and decoding them again.

What is taken is decided for each sample: a row is copied where its record (`rows`) proves that it was made of the same
content, and the form of both packs is the same. Everything else is read. Splits, order, labels and hashes are those of
any packing, so the pack is, byte for byte, the one that reading everything would make.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.h5.schema import BYTES, OFFSETS
from colabstage.h5.untrusted import open_with_any_locking
from colabstage.images.decode import LOSSES
from colabstage.io.files import TargetFile, pread_exactly
from colabstage.io.units import format_count
from colabstage.layouts.table import Arrays, Boxes, Masks
from colabstage.pack.finish import copy_runs
from colabstage.pack.job import Prepared, target_source
from colabstage.pack.journal import FACTS
from colabstage.pack.plan import image_options
from colabstage.pack.rows import ROW, PackRows, are_files, states_of
from colabstage.pack.writer import LEVELS, sample_costs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.pack.job import PackJob
    from colabstage.pack.journal import PackJournal, SampleColumn
    from colabstage.pack.plan import PackPlan
    from colabstage.pack.writer import WriteJob

# Enough that a step costs nothing beside its samples, and that a kill loses little.
_TAKEN_AT_ONCE = 1 << 12
_DECODERS = ("pillow", "pillow-heif", "simplejpeg")


class BasePack(NamedTuple):
    """A pack that rows may be taken over from."""

    path: Path
    """The file, or where it will be once it is copied from the cache."""
    rows: PackRows
    """Its record."""
    state: tuple[int, ...] = ()
    """The state of the file whose bytes were verified, as `state_of` returns it."""


def state_of(handle: int | Path) -> tuple[int, ...]:
    """Return what changes when a file is written to, or replaced by another one."""
    found = os.stat(handle)  # noqa: PTH116 - of an open file, too
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True, slots=True)
class Takeover:
    """What is taken over of an earlier pack, and what is read."""

    rows: NDArray[np.int64]
    """int64 `(N,)`, the row of each sample in the earlier pack; -1 for what is read."""
    added: int
    """Samples of files that it has no row of."""
    changed: int
    """Samples of files that it has a row of, which is not proved to be of the same content."""
    gone: int
    """Rows of it whose files are no longer there."""
    files: int
    """Files that are read."""
    nbytes: int
    """Their bytes."""
    why_none: str = ""
    """Why nothing of it can be used, in a clause; "" where something could be."""

    @property
    def taken(self) -> int:
        """Return the number of samples that are not read."""
        return int(np.count_nonzero(self.rows >= 0))

    def __str__(self) -> str:
        if self.why_none:
            return f"Nothing of the earlier pack is taken over: {self.why_none}"
        return (
            f"Of the earlier pack: {self.added:,} added, {self.changed:,} changed, {self.gone:,} gone, {self.taken:,} "
            f"taken over; {format_count(self.files, 'files')} read"
        )


def form_of(job: PackJob) -> str:
    """Return a text of everything but the content that the bytes of a job's rows depend on; "" where rows cannot be
    compared."""
    table, plan = job.table, job.plan
    if not are_files(table) or job.options.incomparable:
        return ""
    masks = (
        (table.targets.colors, table.targets.foreground, table.targets.guessed)
        if isinstance(table.targets, Masks)
        else None
    )
    fields = [(part.side, part.shape, str(part.dtype), dict(part.attributes)) for part in plan.fields]
    # Other versions may decode other pixels of the same file.
    decodes = any(part.lengths is None for part in plan.fields)
    torch = ("torch",) if plan.resizer == "torch" else ()
    versions = [(name, _version(name)) for name in ("colabstage", *_DECODERS, *torch)] if decodes else None
    notes_sizes = isinstance(table.targets, Boxes) or plan.is_open
    image = image_options(table, job.options)
    if isinstance(table.inputs, Arrays) and isinstance(table.inputs.decode, Prepared):
        image = table.inputs.decode.options
    return repr((plan.encoding, plan.resizer, fields, image, masks, notes_sizes, job.options.to_json(), versions))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def plan_takeover(job: PackJob, base: PackRows) -> Takeover:
    """Decide which rows of an earlier pack become rows of a planned one. Reads nothing."""
    form = form_of(job)
    states = states_of(job.table) if form else None
    rows, why = np.full(len(job.table), -1, np.int64), ""
    if states is None:
        why = "its samples are not single files whose state is known"
        states = np.zeros(len(rows), ROW)
    elif form != base.form:
        why = "it was made in another form, or by other versions"
    else:
        rows = _without_odd(job, _proved(states, base.rows), base.rows)
    is_read = rows < 0
    used = np.zeros(len(base.rows), np.bool_)
    used[rows[~is_read]] = True
    sources = [source for source in (job.table.inputs.source, target_source(job.table)) if source is not None]
    changed = int(np.count_nonzero(is_read & np.isin(states["name"], base.rows["name"])))
    return Takeover(
        rows,
        added=int(np.count_nonzero(is_read)) - changed,
        changed=changed,
        gone=int(np.count_nonzero(~used & ~np.isin(base.rows["name"], states["name"]))),
        files=sum(len({source.name(sample) for sample in np.flatnonzero(is_read).tolist()}) for source in sources),
        nbytes=int(sample_costs(job.table)[is_read].sum()),
        why_none=why,
    )


def _proved(states: NDArray[np.void], base: NDArray[np.void]) -> NDArray[np.int64]:
    """Return the row of each sample that is proved to be of the same content; -1 for all others."""
    rows, same_name = _find(base["digest"], states["digest"]), _find(base["version"], states["version"])
    if not len(base):
        return rows
    # Where both have a checksum that alone decides: times may be equal although a file was written.
    both = (states["digest"] != 0) & (base["digest"][same_name] != 0)
    return np.where((rows < 0) & ~both, same_name, rows)


def _find(known: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for each hash its place among those that are known; -1 where it is not there, or says nothing."""
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(known, kind="stable")
    places = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
    return np.where((wanted != 0) & (known[places] == wanted), places, -1)


def _without_odd(job: PackJob, rows: NDArray[np.int64], base: NDArray[np.void]) -> NDArray[np.int64]:
    """Leave to be read what is refused when it is read: an image that has not the size that its boxes were drawn on."""
    targets = job.table.targets
    if not isinstance(targets, Boxes) or targets.sizes is None:
        return rows
    own = np.stack([base["height"], base["width"]], axis=1)[rows]
    fits = (targets.sizes == own).all(axis=1) | (targets.sizes == 0).all(axis=1)
    return np.where(fits, rows, -1)


class _Stored(NamedTuple):
    """Where the rows of one field are in a pack."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


def _stored_fields(base: BasePack, plan: PackPlan) -> list[_Stored]:
    """Return where each field of an earlier pack's rows is in its file, split after split."""
    found = []
    with open_with_any_locking(base.path) as file:
        for part in plan.fields:
            starts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
            for split, count in base.rows.splits.items():
                node = file[part.name(split)]
                if part.shape is None:
                    ends = node[OFFSETS][()].astype(np.int64)
                    starts.append(ends[:-1] + (node[BYTES].id.get_offset() or 0))
                    lengths.append(np.diff(ends))
                else:
                    starts.append((node.id.get_offset() or 0) + np.arange(count, dtype=np.int64) * part.row_bytes)
                    lengths.append(np.full(count, part.row_bytes, np.int64))
            found.append(_Stored(np.concatenate(starts), np.concatenate(lengths)))
    return found


def take_over(
    work: WriteJob,
    journal: PackJournal,
    base: BasePack,
    takeover: Takeover,
    *,
    left: NDArray[np.bool_],
    step: ProgressStep,
    cancellation: Cancellation,
) -> None:
    """Copy the rows of an earlier pack to their places.

    `left`: bool `(N,)`, which positions of the reading order are not in their places yet; those that are copied are
    taken out. Nothing is copied where the file is no longer the one that was verified.
    """
    with ExitStack() as stack:
        # Another process may remove it, or put its own pack there, at any time.
        try:
            old = stack.enter_context(_opened(base.path))
            if state_of(old) != base.state:
                return
            fields = _stored_fields(base, work.job.plan)
            is_verified = state_of(base.path) == base.state
        except FileNotFoundError:
            return
        if is_verified:
            new = stack.enter_context(TargetFile(work.target, fresh=False))
            _copy(work, journal, base.rows, takeover, fields, (old, new), left, step, cancellation)


def _copy(  # noqa: PLR0917 - the parts of one step, each named once
    work: WriteJob,
    journal: PackJournal,
    base: PackRows,
    takeover: Takeover,
    fields: Sequence[_Stored],
    files: tuple[int, TargetFile],
    left: NDArray[np.bool_],
    step: ProgressStep,
    cancellation: Cancellation,
) -> None:
    plan, (old, new) = work.job.plan, files
    wanted = np.flatnonzero(left)
    wanted = wanted[takeover.rows[work.order[wanted]] >= 0]
    for part, stored in zip(plan.fields, fields, strict=True):
        # The listing has the length of each file; a row of another length would overwrite its neighbour.
        if part.lengths is not None:
            samples = work.order[wanted]
            wanted = wanted[stored.lengths[takeover.rows[samples]] == part.lengths[samples]]
    # In the order of the earlier pack, in which most rows are neighbours in both.
    wanted = wanted[np.argsort(fields[0].starts[takeover.rows[work.order[wanted]]], kind="stable")]
    for first in range(0, len(wanted), _TAKEN_AT_ONCE):
        cancellation.check()
        positions = wanted[first : first + _TAKEN_AT_ONCE]
        samples = work.order[positions]
        rows = takeover.rows[samples]
        facts = np.zeros(len(samples), FACTS)
        facts["height"], facts["width"] = base.rows["height"][rows], base.rows["width"][rows]
        for number, (part, stored) in enumerate(zip(plan.fields, fields, strict=True)):
            starts, lengths = stored.starts[rows], stored.lengths[rows]
            if part.is_open:
                facts["start"][:, number], facts["length"][:, number] = _spool(work, old, starts, lengths), lengths
            else:
                copy_runs(old, new, starts, work.places[number][samples], lengths)
        _note(work, samples, facts, base, rows)
        losses = base.rows[list(LOSSES)][rows].tolist()
        for position, lost in zip(positions.tolist(), losses, strict=True):
            journal.finish(position, lost=compress(LOSSES, lost))
        left[positions] = False
        step.advance(len(positions))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _spool(work: WriteJob, old: int, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[int]:
    assert work.spool is not None
    return [
        work.spool.append(memoryview(pread_exactly(old, length, start)))
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def _note(
    work: WriteJob, samples: NDArray[np.int64], facts: NDArray[Any], base: PackRows, rows: NDArray[np.int64]
) -> None:
    """Note of each sample what the writer notes of one that it reads."""
    columns: list[tuple[SampleColumn | None, NDArray[Any] | None]] = [
        (work.facts, facts),
        (work.contents, base.rows["content"][rows]),
        (work.levels, None if base.levels is None else base.levels[rows]),
    ]
    for column, values in columns:
        if column is not None and values is not None:
            for sample, value in zip(samples.tolist(), values, strict=True):
                column.write(sample, value.tobytes())


def rows_made(work: WriteJob, plan: PackPlan, journal: PackJournal) -> PackRows | None:
    """Return the record of a finished pack; `None` where its rows cannot be compared with a later state.

    `plan`: without the samples that were left out.
    """
    form = form_of(work.job)
    states = states_of(work.job.table) if form else None
    if states is None:
        return None
    if work.facts is not None:
        noted = work.facts.read()
        states["height"], states["width"] = noted["height"], noted["width"]
    if work.contents is not None:
        states["content"] = work.contents.read()
    for part, positions in journal.lost.items():
        states[part][work.order[sorted(positions)]] = True
    samples = np.concatenate([split.samples for split in plan.splits])
    levels = None if work.levels is None else work.levels.read()[samples].view(np.uint8).reshape(-1, LEVELS.itemsize)
    return PackRows(form, {split.name: len(split.samples) for split in plan.splits}, states[samples], levels)

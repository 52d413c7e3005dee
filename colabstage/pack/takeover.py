"""Take rows over from an earlier pack of the same source, in place of reading and decoding them again.

What is taken is decided once, for each sample: a row is copied where its record (`rows`) proves that it was made of the
same content, and the form of both packs is the same. Everything else is read. Splits, order, labels and hashes are
those of any packing, so the pack is, byte for byte, the one that reading everything would make.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.h5.schema import BYTES, OFFSETS
from colabstage.h5.untrusted import open_with_any_locking
from colabstage.images.decode import LOSSES
from colabstage.io.files import TargetFile, pread_exactly
from colabstage.io.packages import installed_version
from colabstage.io.units import format_count
from colabstage.layouts.table import Arrays, Boxes, Masks
from colabstage.pack.finish import copy_runs
from colabstage.pack.job import Prepared, target_source
from colabstage.pack.journal import FACTS
from colabstage.pack.plan import image_options
from colabstage.pack.rows import PackRows, are_files, states_of
from colabstage.pack.writer import LEVELS, sample_costs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.pack.job import PackJob
    from colabstage.pack.journal import PackJournal
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
    states: NDArray[np.void] | None = field(repr=False)
    """The state of each sample now, as `states_of` returns it."""
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
    targets, image = table.targets, image_options(table, job.options)
    if isinstance(table.inputs, Arrays) and isinstance(table.inputs.decode, Prepared):
        image = table.inputs.decode.options
    masks = (targets.colors, targets.foreground, targets.guessed) if isinstance(targets, Masks) else None
    fields = [(part.side, part.shape, str(part.dtype), dict(part.attributes)) for part in plan.fields]
    # Other versions may decode other pixels of the same file.
    torch = ("torch",) if plan.resizer == "torch" else ()
    decodes = any(part.lengths is None for part in plan.fields)
    versions = [(name, installed_version(name)) for name in ("colabstage", *_DECODERS, *torch)] if decodes else None
    notes_sizes = isinstance(targets, Boxes) or plan.is_open
    return repr((plan.encoding, plan.resizer, fields, image, masks, notes_sizes, job.options.to_json(), versions))


def plan_takeover(job: PackJob, base: PackRows) -> Takeover:
    """Decide which rows of an earlier pack become rows of a planned one. Reads nothing."""
    form = form_of(job)
    states = states_of(job.table) if form else None
    rows, why = np.full(len(job.table), -1, np.int64), ""
    if states is None:
        why = "its samples are not single files whose state is known"
    elif form != base.form:
        why = "it was made in another form, or by other versions"
    else:
        rows = _without_odd(job, _proved(states, base.rows), base.rows)
    names = np.zeros(len(rows), np.uint64) if states is None else states["name"]
    is_read = rows < 0
    is_gone = ~np.isin(base.rows["name"], names)
    is_gone[rows[~is_read]] = False
    changed = int(np.count_nonzero(is_read & np.isin(names, base.rows["name"])))
    sources = [source for source in (job.table.inputs.source, target_source(job.table)) if source is not None]
    return Takeover(
        rows,
        states,
        added=int(np.count_nonzero(is_read)) - changed,
        changed=changed,
        gone=int(np.count_nonzero(is_gone)),
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
    if not known.any() or not wanted.any():
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(known, kind="stable")
    places = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
    return np.where((wanted != 0) & (known[places] == wanted), places, -1)


def _without_odd(job: PackJob, rows: NDArray[np.int64], base: NDArray[np.void]) -> NDArray[np.int64]:
    """Leave to be read what is refused when it is read: an image that has not the size that its boxes were drawn on."""
    targets = job.table.targets
    if not isinstance(targets, Boxes) or targets.sizes is None or not len(base):
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
            ends, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
            for split, count in base.rows.splits.items():
                node = file[part.name(split)]
                data = node[BYTES] if part.shape is None else node
                lengths.append(
                    np.diff(node[OFFSETS][()]).astype(np.int64)
                    if part.shape is None
                    else np.full(count, part.row_bytes)
                )
                ends.append((data.id.get_offset() or 0) + np.cumsum(lengths[-1]))
            found.append(_Stored(np.concatenate(ends) - np.concatenate(lengths), np.concatenate(lengths)))
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
            if state_of(base.path) != base.state:
                return
        except FileNotFoundError:
            return
        new = stack.enter_context(TargetFile(work.target, fresh=False))
        wanted = _positions_to_copy(work, takeover, fields, left)
        for first in range(0, len(wanted), _TAKEN_AT_ONCE):
            cancellation.check()
            positions = wanted[first : first + _TAKEN_AT_ONCE]
            samples = work.order[positions]
            rows = takeover.rows[samples]
            _copy(work, (old, new), fields, samples, rows, base.rows)
            for position, lost in zip(positions.tolist(), base.rows.rows[list(LOSSES)][rows].tolist(), strict=True):
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


def _positions_to_copy(
    work: WriteJob, takeover: Takeover, fields: list[_Stored], left: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the positions whose rows are copied, in the order of the earlier pack."""
    wanted = np.flatnonzero(left & (takeover.rows[work.order] >= 0))
    for part, stored in zip(work.job.plan.fields, fields, strict=True):
        # The listing has the length of each file; a row of another length would overwrite its neighbour.
        if part.lengths is not None:
            samples = work.order[wanted]
            wanted = wanted[stored.lengths[takeover.rows[samples]] == part.lengths[samples]]
    # Most rows are neighbours in both packs, and are copied in one go then.
    return wanted[np.argsort(fields[0].starts[takeover.rows[work.order[wanted]]], kind="stable")]


def _copy(  # noqa: PLR0917 - the parts of one step, each named once
    work: WriteJob,
    files: tuple[int, TargetFile],
    fields: list[_Stored],
    samples: NDArray[np.int64],
    rows: NDArray[np.int64],
    base: PackRows,
) -> None:
    """Copy the rows of some samples, and note of each what the writer notes of one that it reads."""
    old, new = files
    facts = np.zeros(len(samples), FACTS)
    facts["height"], facts["width"] = base.rows["height"][rows], base.rows["width"][rows]
    for number, (part, stored) in enumerate(zip(work.job.plan.fields, fields, strict=True)):
        starts, lengths = stored.starts[rows], stored.lengths[rows]
        if not part.is_open:
            copy_runs(old, new, starts, work.places[number][samples], lengths)
            continue
        assert work.spool is not None
        pieces = (pread_exactly(old, *at) for at in zip(lengths.tolist(), starts.tolist(), strict=True))
        facts["start"][:, number] = [work.spool.append(memoryview(piece)) for piece in pieces]
        facts["length"][:, number] = lengths
    if work.facts is not None:
        work.facts.put(samples, facts)
    if work.contents is not None:
        work.contents.put(samples, base.rows["content"][rows])
    if work.levels is not None and base.levels is not None:
        work.levels.put(samples, base.levels[rows])


def rows_made(work: WriteJob, plan: PackPlan, journal: PackJournal, takeover: Takeover | None) -> PackRows | None:
    """Return the record of a finished pack; `None` where its rows cannot be compared with a later state.

    `plan`: without the samples that were left out.
    """
    form = form_of(work.job)
    states = None if not form else states_of(work.job.table) if takeover is None else takeover.states
    if states is None:
        return None
    samples = np.concatenate([split.samples for split in plan.splits])
    rows = states[samples]
    if work.facts is not None:
        noted = work.facts.read()[samples]
        rows["height"], rows["width"] = noted["height"], noted["width"]
    if work.contents is not None:
        rows["content"] = work.contents.read()[samples]
    for part, positions in journal.lost.items():
        rows[part] = np.isin(samples, work.order[sorted(positions)])
    levels = None if work.levels is None else work.levels.read()[samples].view(np.uint8).reshape(-1, LEVELS.itemsize)
    return PackRows(form, {split.name: len(split.samples) for split in plan.splits}, rows, levels)

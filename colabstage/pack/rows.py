"""The record of a pack's rows, `NAME.h5.DIGITS.rows` beside it: which state of which content each row was made from.

The next staging of the same source reads only what this record does not prove unchanged. Its name has a digest of the
pack's hashes, so it describes that very pack; without one, everything is staged again. Columns, not JSON: the record of
a hundred thousand rows takes five megabytes.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import math
import re
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from colabstage.errors import NewerFormatError
from colabstage.h5.manifest import Manifest, read_manifest
from colabstage.h5.schema import BYTES, OFFSETS
from colabstage.h5.untrusted import open_with_any_locking
from colabstage.images.decode import LOSSES
from colabstage.io.files import TargetFile, file_state, hash_block, pread_exactly
from colabstage.io.packages import installed_version
from colabstage.io.units import format_count
from colabstage.io.workspace import is_made_here, put_file, remove_vouched
from colabstage.layouts.table import Arrays, Boxes, Images, Masks, SampleSource, SampleTable, TreeFiles
from colabstage.pack.job import PackJob, Prepared, target_source
from colabstage.pack.plan import PackPlan, image_options
from colabstage.pack.writer import FACTS, PackJournal, WriteJob, compares_masks, copy_runs, sample_costs
from colabstage.trees.listing import hash_rows, hash_texts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.io.progress import Progress


T = TypeVar("T")

_SUFFIX = re.compile(r"\.[0-9a-f]{16}\.rows")
_KIND, _FORMAT = "colabstage rows ", "colabstage rows 2"
# How many packs of other requests are considered as the base of a new one.
_LOOKED_AT = 16
# What numpy, zipfile and json raise for a file that anybody may have written; the last one for unknown flags.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, RuntimeError)
# For one row: hashes of the names of its files, and of these with what shows their state (0 if nothing does); a hash of
# the image file, if it was taken; the size of the upright image, if it was noted; and what of its file is not stored.
_STATES = ("name", "digest", "version")
_NOTED = ("height", "width", "content", *LOSSES)
ROW = np.dtype(
    [
        *((state, "<u8") for state in (*_STATES, "content")),
        *((side, "<i4") for side in ("height", "width")),
        *((part, "?") for part in LOSSES),
    ]
)


class PackRows(NamedTuple):
    """The record of a pack's rows."""

    form: str
    """Everything besides its content that a row's bytes depend on."""
    splits: dict[str, int]
    rows: NDArray[np.void]
    """`(N,)` of `ROW`, split after split."""
    levels: NDArray[np.uint8] | None = None
    """`(N, 32)`, the values of each mask, a bit for each; `None` if they were not compared."""


def rows_name(pack: str, manifest: Manifest) -> str:
    """Return the name of the record of the pack that has this name and manifest."""
    digits = hash_block(f"{manifest.size} {' '.join(manifest.hashes)}".encode())
    return f"{pack}.{digits}.rows"


def is_rows_name(name: str, pack: str) -> bool:
    """Tell whether a file name is that of a record of some pack that was, or is, called `pack`."""
    return name.startswith(pack) and _SUFFIX.fullmatch(name[len(pack) :]) is not None


def write_rows(path: Path, found: PackRows) -> None:
    head = json.dumps({"format": _FORMAT, "form": found.form, "splits": list(found.splits.items())}).encode()
    levels = {} if found.levels is None else {"levels": found.levels}
    with path.open("wb") as file:
        np.savez(file, head=np.frombuffer(head, np.uint8), rows=found.rows, **levels)  # type: ignore[arg-type]


def read_rows(pack: Path, manifest: Manifest) -> PackRows | None:
    """Return the record beside a pack; `None` if there is none."""
    path = pack.with_name(rows_name(pack.name, manifest))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if is_made_here(path):
            return parse_rows(path.read_bytes(), manifest)
    return None


def parse_rows(content: bytes, manifest: Manifest) -> PackRows | None:
    """Return the record of a pack; `None` for anything incomplete, or of other rows."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            head, rows, levels = json.loads(stored["head"].tobytes()), stored["rows"], stored.get("levels")
        splits = {str(name): int(count) for name, count in head["splits"]}
        found = PackRows(str(head["form"]), splits, rows, levels)
    except _UNREADABLE:
        return None
    fits = (rows.dtype, rows.shape) == (ROW, (sum(splits.values()),)) and splits == manifest.samples
    fits = fits and (levels is None or (levels.dtype == np.uint8 and levels.shape == (len(rows), 32)))
    return found if fits and head.get("format") == _FORMAT else None


def is_rows(path: Path) -> bool:
    """Tell whether a file is a record of rows that colabstage wrote for this user, in any version."""
    if not is_made_here(path) or not path.is_file():
        return False
    try:
        # Opened here, because numpy leaves a file open that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return str(json.loads(stored["head"].tobytes())["format"]).startswith(_KIND)
    except _UNREADABLE:
        return False


def put_rows(made: Path, pack: Path, manifest: Manifest) -> None:
    """Put a record from a workspace into place; before its pack, so that each pack that counts has its own."""
    put_file(made, pack.with_name(rows_name(pack.name, manifest)), replaces=is_rows)


def sweep_rows(pack: Path) -> None:
    """Remove the records of earlier packs with this name; all of them if there is no pack now."""
    records = [one for one in pack.parent.glob(f"{glob.escape(pack.name)}.*.rows") if is_rows_name(one.name, pack.name)]
    if not records:
        return
    with contextlib.suppress(NewerFormatError):
        manifest = read_manifest(pack)
        kept = None if manifest is None else rows_name(pack.name, manifest)
        for path in records:
            if path.name != kept:
                remove_vouched(path, is_rows)


def inputs_of(table: SampleTable) -> Images | Arrays:
    """Return the inputs before `prepare=`."""
    inputs = table.inputs
    return inputs.decode.inputs if isinstance(inputs, Arrays) and isinstance(inputs.decode, Prepared) else inputs


def are_files(table: SampleTable) -> bool:
    """Tell whether each sample is an image file, perhaps with a mask file, or with targets that are known anyway."""
    parts = [inputs_of(table), *([table.targets] if target_source(table) is not None else [])]
    return all(
        isinstance(part, Images | Masks) and not part.decoded and isinstance(part.source, TreeFiles) for part in parts
    )


def states_of(table: SampleTable) -> NDArray[np.void] | None:
    """Return the names and states of the files of each sample, `(N,)` of `ROW`; `None` if its samples are not files
    that can be compared."""
    sources = [source for source in (inputs_of(table).source, target_source(table)) if source is not None]
    parts = [_file_states(source) for source in sources]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    found = np.zeros(len(table), ROW)
    for state, columns in zip(_STATES, zip(*known, strict=True), strict=True):
        # A proof about one of two files proves nothing about the sample.
        found[state] = np.where(np.all([column != 0 for column in columns], axis=0), hash_rows(*columns), 0)
    return found


def _file_states(source: SampleSource) -> tuple[NDArray[np.uint64], ...] | None:
    """Return a hash of each file's name, and what shows its state, by its bare name and by its whole name."""
    places = _places(source) if isinstance(source, TreeFiles) else None
    if not isinstance(source, TreeFiles) or places is None:
        return None
    entries = source.entries
    digests, versions = (states[places] for states in source.tree.file_states())
    names = hash_texts(entries.names)
    # With the bare name, because 32 bits alone would be equal by chance among many files.
    bare = hash_texts(name.rpartition("/")[2] for name in entries.names) if digests.any() else names
    return names, hash_rows(bare, entries.sizes, digests), hash_rows(names, entries.sizes, versions)


def _places(source: TreeFiles) -> NDArray[np.int64] | None:
    """Return the number of each file in its tree's listing; `None` if one is not listed."""
    found = [source.tree.entries.find(name) for name in source.entries.names]
    return None if None in found else np.array(found, np.int64)


# Take rows over from an earlier pack of the same source, instead of reading and decoding them again.
#
# This is decided once, for each sample: a row is copied if its record (`rows`) proves that it was made from the same
# content, and both packs have the same form. Everything else is read. Splits, order, labels and hashes are those of any
# packing, so the pack is, byte for byte, the one that reading everything would make.


# So many that a step costs nothing compared with its samples, and so few that a kill loses little.
_TAKEN_AT_ONCE = 1 << 12
_DECODERS = ("pillow", "pillow-heif", "simplejpeg")


class BasePack(NamedTuple):
    """A pack that rows may be taken over from."""

    path: Path
    """The file, or where it will be once it is copied from the cache."""
    rows: PackRows
    same_source: bool = True
    """Whether its names are those of the same files."""
    state: tuple[int, ...] = ()
    """The state of the file whose bytes were verified, from `file_state`."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """What is taken over from an earlier pack, and what is read."""

    rows: NDArray[np.int64]
    """int64 `(N,)`, the row of each sample in the earlier pack; -1 for samples that are read."""
    states: NDArray[np.void] | None = field(repr=False)
    """The present state of each sample, from `states_of`."""
    added: int
    """Samples whose files have no row in it."""
    changed: int
    """Samples whose files have a row in it that is not proved to have the same content."""
    gone: int
    """Its rows whose files no longer exist."""
    files: int
    nbytes: int
    why_none: str = ""
    """Why nothing of it can be used, in a clause; "" if something could be."""

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


def closest(sizes: Mapping[T, int], like: int) -> list[T]:
    """Return a few packs, given their lengths, those of about `like` bytes first: opening each of many would take long,
    and packs of the same rows are about as long."""
    return sorted(sizes, key=lambda one: abs(math.log(max(1, sizes[one]) / max(1, like))))[:_LOOKED_AT]


def form_of(job: PackJob) -> str:
    """Return a text of everything but the content that the bytes of a job's rows depend on; "" if rows cannot be
    compared."""
    table, plan = job.table, job.plan
    if not are_files(table) or job.options.incomparable:
        return ""
    targets, image = table.targets, image_options(table, job.options)
    if isinstance(table.inputs, Arrays) and isinstance(table.inputs.decode, Prepared):
        image = table.inputs.decode.options
    masks = (targets.colors, targets.foreground, targets.guessed) if isinstance(targets, Masks) else None
    fields = [(part.side, part.shape, str(part.dtype), dict(part.attributes)) for part in plan.fields]
    # Other versions may decode the same file to other pixels.
    torch = ("torch",) if plan.resizer == "torch" else ()
    decodes = any(part.lengths is None for part in plan.fields)
    versions = [(name, installed_version(name)) for name in ("colabstage", *_DECODERS, *torch)] if decodes else None
    options = job.options.rows_fingerprint()
    return repr((plan.encoding, plan.resizer, fields, image, masks, options, versions))


def plan_takeover(job: PackJob, earlier: BasePack) -> Takeover:
    """Decide which rows of an earlier pack become rows of a planned one. Reads nothing."""
    form, base = form_of(job), earlier.rows
    states = states_of(job.table) if form else None
    rows, why = np.full(len(job.table), -1, np.int64), ""
    if states is None:
        why = "its samples are not single files whose state is known"
    elif form != base.form:
        why = "it was made in another form, or by other versions"
    else:
        rows = _without_odd(job, _proved(states, base.rows, by_versions=earlier.same_source), base.rows)
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


def _proved(states: NDArray[np.void], base: NDArray[np.void], *, by_versions: bool) -> NDArray[np.int64]:
    """Return the row of each sample that is proved to have the same content; -1 for all others.

    `by_versions`: whether times and versions tell, which say nothing about files of another source.
    """
    rows, same_name = _find(base["digest"], states["digest"]), _find(base["version"], states["version"])
    if not len(base) or not by_versions:
        return rows
    # If both have a checksum, that alone decides: times may be equal although a file was written.
    both = (states["digest"] != 0) & (base["digest"][same_name] != 0)
    return np.where((rows < 0) & ~both, same_name, rows)


def _find(known: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for each hash its place among the known ones; -1 if it is not there, or is 0."""
    if not known.any() or not wanted.any():
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(known, kind="stable")
    places = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
    return np.where((wanted != 0) & (known[places] == wanted), places, -1)


def _without_odd(job: PackJob, rows: NDArray[np.int64], base: NDArray[np.void]) -> NDArray[np.int64]:
    """Have samples read that reading would refuse: images whose size is not the one that their boxes were drawn on."""
    targets = job.table.targets
    if not isinstance(targets, Boxes) or targets.sizes is None or not len(base):
        return rows
    own = np.stack([base["height"], base["width"]], axis=1)[rows]
    fits = (targets.sizes == own).all(axis=1) | (targets.sizes == 0).all(axis=1)
    return np.where(fits, rows, -1)


class _Stored(NamedTuple):
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


def _stored_fields(base: BasePack, plan: PackPlan) -> list[_Stored]:
    """Return where each field of an earlier pack's rows is in its file, split after split."""
    found = []
    with open_with_any_locking(base.path) as file:
        for part in plan.fields:
            ends, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
            for split, count in base.rows.splits.items():
                data = file[part.name(split)]
                if part.shape is None:
                    lengths.append(np.diff(data[OFFSETS][()]).astype(np.int64))
                    data = data[BYTES]
                else:
                    lengths.append(np.full(count, part.row_bytes))
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
    progress: Progress,
) -> None:
    """Copy the rows of an earlier pack to their places.

    `left`: bool `(N,)`, which positions of the reading order are not in place yet; those that are copied are cleared.
    Nothing is copied if the file is no longer the verified one.
    """
    with ExitStack() as stack:
        step = stack.enter_context(progress.step("take over", total=takeover.taken, unit=work.job.table.unit))
        # Another process may remove it, or replace it, at any time.
        try:
            old = stack.enter_context(base.path.open("rb")).fileno()
            if file_state(old) != base.state:
                return
            fields = _stored_fields(base, work.job.plan)
            if file_state(base.path) != base.state:
                return
        except FileNotFoundError:
            return
        new = stack.enter_context(TargetFile(work.target, fresh=False))
        wanted = _positions_to_copy(work, takeover, fields, left)
        for first in range(0, len(wanted), _TAKEN_AT_ONCE):
            progress.cancellation.check()
            positions = wanted[first : first + _TAKEN_AT_ONCE]
            samples = work.order[positions]
            rows = takeover.rows[samples]
            # As the writer notes for a sample that it reads.
            facts = np.zeros(len(samples), FACTS)
            for name in _NOTED:
                facts[name] = base.rows.rows[name][rows]
            if base.rows.levels is not None:
                facts["levels"] = base.rows.levels[rows]
            for number, (part, (starts, lengths)) in enumerate(zip(work.job.plan.fields, fields, strict=True)):
                if work.spool is not None and part.is_open:
                    pieces = zip(lengths[rows].tolist(), starts[rows].tolist(), strict=True)
                    facts["start"][:, number] = [
                        work.spool.append(memoryview(pread_exactly(old, *at))) for at in pieces
                    ]
                    facts["length"][:, number] = lengths[rows]
                else:
                    copy_runs(old, new, starts[rows], work.places[number][samples], lengths[rows])
            if work.facts is not None:
                work.facts.put(samples, facts)
            journal.finish_rows(positions)
            left[positions] = False
            step.advance(len(positions))


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
    # Most rows are neighbours in both packs, and are then copied in one go.
    return wanted[np.argsort(fields[0].starts[takeover.rows[work.order[wanted]]], kind="stable")]


def rows_made(work: WriteJob, plan: PackPlan, takeover: Takeover | None) -> PackRows | None:
    """Return the record of a finished pack; `None` if its rows cannot be compared with a later state.

    `plan`: without the samples that were left out.
    """
    form = form_of(work.job)
    states = None if not form else states_of(work.job.table) if takeover is None else takeover.states
    if states is None:
        return None
    samples = np.concatenate([split.samples for split in plan.splits])
    rows, levels = states[samples], None
    if work.facts is not None:
        noted = work.facts.read(*_NOTED, "levels")[samples]
        for name in _NOTED:
            rows[name] = noted[name]
        levels = noted["levels"] if compares_masks(work.job.table) else None
    return PackRows(form, {split.name: len(split.samples) for split in plan.splits}, rows, levels)

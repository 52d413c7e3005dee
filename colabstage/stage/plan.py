"""`plan_stage`: what `stage_dataset` would do, and why, without doing it; and `StagePlan`, which says it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from colabstage.errors import ended
from colabstage.h5.info import Found, found_in, read_info
from colabstage.io.boundary import NOTHING_DONE, public
from colabstage.io.files import temporary_folder
from colabstage.io.progress import Progress
from colabstage.io.report import Report, Row, Shown, Table, json_values
from colabstage.io.units import format_bytes
from colabstage.machine.mounts import run_watched
from colabstage.machine.resources import UNKNOWN_SPACE, free_space
from colabstage.pack.arrival import PackStream
from colabstage.stage.cache import LESS_ROOM, Cache, StageFigures, on_wrong_disks
from colabstage.stage.decide import Action, Decision, decide, find_bases, has_to_come, plan_reading, staging_figures
from colabstage.stage.record import check_targets
from colabstage.stage.request import SOURCE_REMEDIES, StageArguments, StageRequest, make_request
from colabstage.stage.shards import plan_shards
from colabstage.stage.source import SourceOnce, StageCall
from colabstage.trees.listing import total_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from colabstage.pack.options import PackOptions
    from colabstage.sources.parse import SourceArgument

_SENTENCES = {
    "reuse": "is already staged on this machine; nothing would be read",
    "restore": "is in the cache; it would be copied from there and verified",
    "stage": "would be read from its source",
}
# Below this, the wait for the whole pack is short.
_WORTH_BYTES = 200_000_000
_IN_PART = "is in the cache; it would be opened in part, and read from there"


@dataclass(frozen=True, slots=True, repr=False)
class StagePlan(Shown):
    """What `stage_dataset` would do with the same arguments."""

    source: str
    """The source, as messages name it."""
    action: Action
    """`"reuse"` local data, `"restore"` the cached pack, or `"stage"` the source."""
    reasons: tuple[str, ...]
    """Why, in sentences, one for each place that was checked."""
    figures: StageFigures
    free_bytes: int
    target: Path
    cache: Path | str | None
    """Where the pack is cached, or would be; `None` for no cache."""
    samples: dict[str, int]
    """Rows of each split, where known."""
    found: Found = ()
    """Layout, classes and examples, as named texts; empty if they are not known yet."""
    in_part: bool = False
    """Whether it would be opened in part, because it exceeds `disk_limit`."""

    @property
    def fits(self) -> bool:
        """Return whether the disk has room for it."""
        return self.figures.room_bytes <= self.free_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        values: dict[str, Any] = json_values(self)
        figures = values.pop("figures")
        moved = {name: figures[name] for name in ("pack_bytes", "files_bytes", "peak_bytes")}
        return {**values, **moved, "read_bytes": figures["source_bytes"], "found": dict(self.found)}

    def shown(self) -> Report:
        sentence = _IN_PART if self.in_part and self.action == "restore" else _SENTENCES[self.action]
        why = [Row(("why" if not number else "", reason)) for number, reason in enumerate(self.reasons)]
        rows = (*why, *map(Row, self._facts()))
        return Report(f"'{self.source}' {sentence}.", (Table(rows),))

    def _facts(self) -> list[tuple[str, str]]:
        facts = list(self.found)
        if self.samples:
            facts.append(("samples", ", ".join(f"{name} {rows:,}" for name, rows in self.samples.items())))
        # Nothing would be read or written, so figures would only confuse.
        if self.action != "reuse":
            figures = self.figures
            written = figures.pack_bytes + figures.files_bytes
            facts += [("read", format_bytes(figures.source_bytes))] if figures.source_bytes else []
            # The source may be known only once it is local: zeros would be a promise.
            if written and not self.in_part:
                facts.append(("write", f"{format_bytes(written)} to '{self.target}'"))
            # The peak, not what stays: an archive that is copied here is removed again.
            if written or figures.peak_bytes:
                least = "" if written else "at least "
                free = "" if self.free_bytes == UNKNOWN_SPACE else f" of {format_bytes(self.free_bytes)} free"
                facts.append(("peak", f"{least}{format_bytes(figures.room_bytes)}{free}"))
        return facts if self.cache is None else [*facts, ("cache", f"'{self.cache}'")]


@public(
    make_request,
    arguments=StageArguments,
    remedies=SOURCE_REMEDIES,
    reads=("source",),
    writes=("local_dir", "cache_dir"),
    stopped=NOTHING_DONE,
)
def plan_stage(
    source: SourceArgument, *, options: PackOptions | None = None, **arguments: Unpack[StageArguments]
) -> StagePlan:
    """Say what `stage_dataset` would do with the same arguments, without writing anything.

    This lists the source, and reads the headers of a few images where their size matters.

    The arguments are those of `stage_dataset` without `wait`, `streaming`, `executor` and `progress`.

    Args:
        source: where the dataset is, as for `stage_dataset`.
        options: as for `stage_dataset`.
        **arguments: those of `stage_dataset`.

    Returns:
        A `StagePlan`: `.action` is `"reuse"`, `"restore"` or `"stage"`, with `.reasons`; `.figures` are the bytes to be
        moved, `.samples` the rows of each split where known.

    Raises:
        ColabstageError: as `stage_dataset`, as far as that is known beforehand.
    """
    request = make_request(source, options=options, **arguments)

    def plan() -> StagePlan:
        call = StageCall(request, Progress())
        cache = Cache(request)
        with SourceOnce(call) as opened, tempfile.TemporaryDirectory(dir=temporary_folder()) as spool:
            decision = decide(call, opened, cache)
            if decision.action == "reuse":
                return _plan_reuse(request, cache, decision)
            if decision.action == "restore":
                return _plan_restore(request, opened, cache, decision, Path(spool))
            return _plan_reading(call, opened, cache, decision, Path(spool))

    return run_watched(plan, *request.touched_paths)


def _plan_reuse(request: StageRequest, cache: Cache, decision: Decision) -> StagePlan:
    info = read_info(request.pack_path) if request.wants_pack else None
    samples = {} if info is None else info.rows
    return _plan(request, cache, decision, decision.reasons, StageFigures(), samples=samples, found=found_in(info))


def _plan_restore(
    request: StageRequest, source: SourceOnce, cache: Cache, decision: Decision, spool: Path
) -> StagePlan:
    assert decision.cached is not None
    pack, limit, reasons = decision.cached, request.disk_limit, list(decision.reasons)
    size, figures = pack.manifest.size, pack.figures
    if decision.in_part and limit is not None:
        reasons.append(
            f"It has {format_bytes(size)}: blocks would be fetched as they are needed, and never more than "
            f"{format_bytes(limit)} be here."
        )
        figures = StageFigures(min(size, limit), pack_bytes=min(size, limit))
    reasons.extend(_on_streaming(request, size))
    if request.wants_files:
        opened = source.open()
        files = 0 if has_to_come(opened) else total_size(opened.open_tree(spool).entries)
        figures = replace(figures, source_bytes=size + files, files_bytes=files)
    count = len(pack.files) if pack.in_shards else 0
    # A pack that is opened in part stays where it is, and replaces nothing here.
    if not decision.in_part:
        check_targets(request, packs=True)
    plan = _plan(request, cache, decision, reasons, figures, samples=pack.manifest.samples, count=count)
    return replace(plan, in_part=decision.in_part)


def _plan_reading(call: StageCall, source: SourceOnce, cache: Cache, decision: Decision, spool: Path) -> StagePlan:
    request, reasons, opened = call.request, list(decision.reasons), source.open()
    check_targets(request, packs=request.wants_pack)
    if has_to_come(opened) or opened.cost.is_walked:
        reasons.append("What is in it is known only after all of it was read: it has no table of contents in place.")
        return _plan(request, cache, decision, reasons, staging_figures(request, opened))
    bases = partial(find_bases, call, opened, cache)
    reading = plan_reading(request, opened, spool, packs=request.wants_pack, bases=bases)
    # The report's notes, which say what would be left out: that is worth knowing before, not after.
    job, figures, source_notes = reading.job, reading.figures, [*opened.notes, *reading.tree.notes]
    if job is None:
        return _plan(request, cache, decision, [*reasons, *map(ended, source_notes)], figures)
    reasons.append(f"Pack: {job.plan.encoding}, because {job.plan.reason}.")
    reasons.extend(map(ended, filter(None, (reading.note,))))
    reasons.extend(_on_streaming(request, job.plan.nbytes, PackStream.obstacle(job)))
    reasons.extend(map(ended, [*source_notes, *job.table.notes]))
    count = 0
    if reading.in_shards and request.disk_limit is not None:
        reason, count = plan_shards(request, reading.tree, job, cache)
        reasons.append(reason)
        figures = StageFigures(figures.source_bytes, pack_bytes=request.disk_limit)
    rows = {split.name: len(split.samples) for split in job.plan.splits}
    found = job.table.summary()
    plan = _plan(request, cache, decision, reasons, figures, samples=rows, found=found, count=count)
    return replace(plan, in_part=count > 0)


def _on_streaming(request: StageRequest, nbytes: int, obstacle: str | None = None) -> Iterator[str]:
    """Yield whether streaming=True pays, where it can be given."""
    if request.keep == "pack" and request.disk_limit is None and nbytes >= _WORTH_BYTES:
        gain = "gives batches while the rest arrives" if obstacle is None else f"gains nothing here: {obstacle}"
        yield f"streaming=True {gain}."


def _plan(
    request: StageRequest,
    cache: Cache,
    decision: Decision,
    reasons: Sequence[str],
    figures: StageFigures,
    *,
    samples: Mapping[str, int] | None = None,
    found: Found = (),
    count: int = 0,
) -> StagePlan:
    """Return the plan with what all actions share; `count`: the number of shards, if the pack has any."""
    free = free_space(request.folder)
    name = f"{request.name}-*-of-{count:05}.h5" if count else f"{request.name}.h5"
    place = cache.place if request.wants_pack else None
    room = [] if figures.room_bytes <= free else [f"It does not fit: {LESS_ROOM}."]
    return StagePlan(
        source=request.source.label,
        action=decision.action,
        reasons=(*reasons, *room, *on_wrong_disks(request)),
        figures=figures,
        free_bytes=free,
        target=request.pack_path if request.wants_pack else request.files_path,
        cache=None if place is None else place.at(name),
        samples=dict(samples or {}),
        found=found,
    )

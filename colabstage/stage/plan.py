"""`plan_stage`: what `stage_dataset` would do, and why, without doing anything; and `StagePlan`, which says it."""

from __future__ import annotations

import html
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from colabstage.errors import TargetExistsError, ended, printable
from colabstage.h5.info import read_info
from colabstage.h5.manifest import check_replaceable_pack
from colabstage.io.arguments import NOTHING_DONE, stops_with, takes
from colabstage.io.boundary import typed
from colabstage.io.ownership import check_replaceable
from colabstage.io.page import COLOURS, facts_table, notes, page
from colabstage.io.progress import NullProgress
from colabstage.io.units import format_bytes
from colabstage.machine.mounts import run_watched
from colabstage.machine.resources import free_space
from colabstage.pack.execute import space_for
from colabstage.pack.job import prepare_pack
from colabstage.pack.stream import PackStream
from colabstage.stage.cache import Cache, CachedPack, exceeds_limit, is_published
from colabstage.stage.dataset import found_in
from colabstage.stage.record import (
    SourceOnce,
    compare_source,
    find_record,
    identity_of,
)
from colabstage.stage.request import (
    SOURCE_REMEDIES,
    StageArguments,
    StageFigures,
    beyond_limit,
    check_disk_limit,
    exceeds,
    less_room,
    make_request,
)
from colabstage.stage.run import FILES_REMEDY, StageCall, has_to_come, problem_here, staging_figures
from colabstage.stage.shards import plan_shards

if TYPE_CHECKING:
    from colabstage.pack.job import PackJob
    from colabstage.pack.options import PackOptions
    from colabstage.sources.opening import OpenSource
    from colabstage.sources.parse import SourceArgument
    from colabstage.stage.dataset import Found
    from colabstage.stage.request import StageRequest


Action = Literal["reuse", "restore", "stage"]
_SENTENCES = {
    "reuse": "is already staged on this machine; nothing would be read",
    "restore": "is in the cache; it would be copied from there and verified",
    "stage": "would be read from its source",
}
_SAME = "It is complete and the source has not changed."
_IN_PART = "is in the cache; it would be opened in part, and read from there"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What `stage_dataset` would do with the same arguments."""

    source: str
    """The source's address."""
    action: Action
    """`"reuse"` local data, `"restore"` the cached pack, or `"stage"` the source."""
    reasons: tuple[str, ...]
    """Why, in sentences, one for each place that was checked."""
    figures: StageFigures
    """The bytes that it would move."""
    free_bytes: int
    """The free space of the disk."""
    target: Path
    """What it would make."""
    cache: Path | str | None
    """Where the pack is cached, or would be; `None` for no cache."""
    samples: dict[str, int]
    """Rows of each split, where known."""
    found: Found = ()
    """Layout, classes and examples, in words by name; empty where they are not known yet."""
    in_part: bool = False
    """Whether it would be opened in part, because it is larger than `disk_limit`."""
    refused: str = ""
    """The error that it would raise, because something that is not from colabstage, or was changed since, is where the
    result goes; "" if there is nothing in the way."""

    @property
    def fits(self) -> bool:
        """Return whether the disk has room for it."""
        return self.figures.peak_bytes <= self.free_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "source": self.source,
            "action": self.action,
            "reasons": list(self.reasons),
            "read_bytes": self.figures.source_bytes,
            "pack_bytes": self.figures.pack_bytes,
            "files_bytes": self.figures.files_bytes,
            "peak_bytes": self.figures.peak_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "target": str(self.target),
            "cache": None if self.cache is None else str(self.cache),
            "in_part": self.in_part,
            "refused": self.refused,
            "samples": self.samples,
            "found": dict(self.found),
        }

    def __str__(self) -> str:
        lines = [self._headline, *(f"  {reason}" for reason in (*self.reasons, *filter(None, (self._refusal,))))]
        return "\n".join(map(printable, [*lines, *(f"  {name:<9}{value}" for name, value in self._facts())]))

    def _repr_html_(self) -> str:
        obstacles = [] if self.fits else ["This does not fit on the disk."]
        obstacles += [html.escape(self._refusal)] if self.refused else []
        mark = "".join(f"<div><b style='color:{COLOURS['fail']}'>{said}</b></div>" for said in obstacles)
        return page(self._headline, notes(self.reasons) + facts_table(self._facts()) + mark)

    @property
    def _refusal(self) -> str:
        return f"It would be refused: {self.refused}" if self.refused else ""

    @property
    def _headline(self) -> str:
        sentence = _IN_PART if self.in_part and self.action == "restore" else _SENTENCES[self.action]
        return f"'{self.source}' {sentence}."

    def _facts(self) -> list[tuple[str, str]]:
        facts = list(self.found)
        if self.samples:
            facts.append(("samples", ", ".join(f"{name} {rows:,}" for name, rows in self.samples.items())))
        # Nothing would be read or written, so figures of it would only puzzle.
        if self.action != "reuse":
            figures = self.figures
            # The peak and not what stays: an archive that is copied here goes again.
            room = "" if self.fits else ": too little"
            written = figures.pack_bytes + figures.files_bytes
            facts += [("read", format_bytes(figures.source_bytes))] if figures.source_bytes else []
            if not written:
                # Of a source that is known only when it is here: zeros would be a promise.
                facts.append(("write", f"known only then, to '{self.target}'"))
            elif not self.in_part:
                facts.append(("write", f"{format_bytes(written)} to '{self.target}'"))
            least = "" if written else "at least "
            if written or figures.peak_bytes:
                peak = f"{least}{format_bytes(figures.peak_bytes)} of {format_bytes(self.free_bytes)} free{room}"
                facts.append(("peak", peak))
        return facts if self.cache is None else [*facts, ("cache", f"'{self.cache}'")]


@takes(make_request, arguments=StageArguments, remedies=SOURCE_REMEDIES)
@stops_with(NOTHING_DONE)
@typed("source", writes=("local_dir", "cache_dir"))
def plan_stage(
    source: SourceArgument, *, options: PackOptions | None = None, **arguments: Unpack[StageArguments]
) -> StagePlan:
    """Say what `stage_dataset` would do with the same arguments, without writing anything.

    This lists the source, and reads the headers of a few images where their size matters. A source that has to be
    downloaded before it can be opened (a share link, a Kaggle dataset) is not read.

    The arguments are those of `stage_dataset` without `wait`, `streaming`, `executor` and `progress`. The errors are
    the same too, as far as they can be known beforehand.

    Args:
        source: where the dataset is, as for `stage_dataset`.
        options: as for `stage_dataset`.
        **arguments: those of `stage_dataset`.
    """
    request = make_request(source, options=options, **arguments)
    return run_watched(lambda: plan_call(StageCall(request, NullProgress())), *request.touched_paths)


def plan_call(call: StageCall) -> StagePlan:
    """Say what `run_call` would do, without writing anything."""
    request, cache = call.request, Cache(call.request)
    reasons: list[str] = []

    def planned(
        action: Action,
        figures: StageFigures,
        rows: dict[str, int],
        found: Found = (),
        *,
        count: int = 0,
        in_part: bool = False,
    ) -> StagePlan:
        place, free = cache.place if request.wants_pack else None, free_space(request.folder)
        # Shards, where those are or would be.
        name = f"{request.name}.h5" if not count else f"{request.name}-*-of-{count:05}.h5"
        return StagePlan(
            source=request.address,
            action=action,
            reasons=(*reasons, *_room_advice(request, figures, free)),
            figures=figures,
            free_bytes=free,
            target=request.pack_path if request.wants_pack else request.files_path,
            cache=None if place is None else place.at(name),
            samples=rows,
            found=found,
            in_part=in_part,
            # A pack that is opened in part stays where it is, and nothing here is replaced.
            refused="" if action == "reuse" or (action == "restore" and in_part) else _refusal(request),
        )

    with SourceOnce(call) as source:
        problem = _why_not_here(call, source)
        if problem is None:
            reasons += [_SAME, *beyond_limit(request), *_would_be_cached(request, cache)]
            info = read_info(request.pack_path) if request.wants_pack else None
            rows = {} if info is None else info.rows
            return planned("reuse", StageFigures(), rows, found_in(info))
        reasons.append(f"Here: {problem}.")
        cached = None if request.refresh or not request.wants_pack else cache.find()
        made_of = None if cached is None or request.wants_files else identity_of(cached.manifest)
        if cached is not None and made_of is not None and compare_source(call, source, made_of).same:
            reasons.append(f"Cache: '{cached.label}'.")
            size = cached.manifest.size
            in_part = exceeds_limit(request, cached)
            if in_part and request.disk_limit is not None:
                reasons.append(
                    f"It has {format_bytes(size)}: blocks would be fetched as they are needed, and never more than "
                    f"{format_bytes(request.disk_limit)} be here."
                )
                size = min(size, request.disk_limit)
            elif request.keep == "pack" and size >= _WORTH_BYTES:
                reasons.append(f"{_STREAMING_PAYS} its first blocks are here, and copy the rest during training.")
            moved = StageFigures(source_bytes=size, pack_bytes=size)
            return planned(
                "restore",
                moved,
                cached.manifest.samples,
                count=len(cached.files) if cached.in_shards else 0,
                in_part=in_part,
            )
        reasons.append(_why_not_cached(request, cache, cached))
        opened = source.open()
        if not opened.opens_at_once or opened.unpacks_first or opened.is_walked:
            reasons.append(_why_unknown(opened))
            return planned("stage", staging_figures(request, opened, None, None), {})
        with tempfile.TemporaryDirectory() as spool:
            tree = opened.open_tree(Path(spool))
            # What would be left out is worth knowing before, not after: these are the report's notes.
            told = [*opened.notes, *tree.notes]
            free = space_for(request.pack_path)
            job = prepare_pack(tree, request.options, free_bytes=free) if request.wants_pack else None
            if job is not None:
                reasons.append(f"Pack: {job.plan.encoding}, because {job.plan.reason}.")
                reasons.extend(_streaming_advice(request, opened, job))
                told += job.table.notes
            reasons.extend(map(ended, told))
            rows = {} if job is None else {split.name: len(split.samples) for split in job.plan.splits}
            found = () if job is None else job.table.summary()
            figures, count = staging_figures(request, opened, tree, job), 0
            if job is not None and exceeds(request, figures) and request.disk_limit is not None:
                if has_to_come(opened):
                    check_disk_limit(request, figures)
                reason, count = plan_shards(
                    request, tree, job, cache, request.disk_limit, whole_bytes=figures.peak_bytes
                )
                reasons.append(reason)
                figures = replace(figures, pack_bytes=request.disk_limit, archive_bytes=0, mount_bytes=0)
            return planned("stage", figures, rows, found, count=count, in_part=count > 0)


def _would_be_cached(request: StageRequest, cache: Cache) -> list[str]:
    """Return a sentence where what is staged here would be copied to the cache; otherwise nothing."""
    record = find_record(request) if request.wants_pack and request.cache_dir is not None else None
    if record is None or (record.published and record.is_published_in(request)):
        return []
    published = is_published(request, cache, record.identity)
    return ["It is not in the cache yet, and would be copied there."] if published is False else []


def _why_not_here(call: StageCall, source: SourceOnce) -> str | None:
    """Return why what is staged here would not be used; `None` where it would."""
    if call.request.refresh:
        return f"not used, because of {_why_again(call.request)}"
    record = find_record(call.request)
    return "it is not staged on this machine" if record is None else problem_here(call, source, record)[0]


def _refusal(request: StageRequest) -> str:
    """Return what `stage_dataset` would raise because of what is in the places of the pack and the plain files; "" if
    it would raise nothing."""
    try:
        if request.wants_pack:
            check_replaceable_pack(request.pack_path)
        if request.wants_files:
            check_replaceable(request.files_path, FILES_REMEDY)
    except TargetExistsError as error:
        return str(error)
    return ""


def _why_again(request: StageRequest) -> str:
    """Name what keeps this call from using what was staged or cached before."""
    held = ", ".join(request.options.incomparable)
    return f"what layout= or prepare= holds and cannot be compared ({held})" if held else "refresh=True"


def _why_not_cached(request: StageRequest, cache: Cache, cached: CachedPack | None) -> str:
    """Say why the source would be read."""
    if request.refresh and cache.place is not None:
        return f"Cache: not used, because of {_why_again(request)}."
    if cached is not None:
        return "Cache: holds a pack of another state of the source."
    return "Cache: none is used." if cache.place is None else "Cache: no pack of this dataset yet."


def _why_unknown(source: OpenSource) -> str:
    """Say why a plan would have to read all of a source."""
    if source.is_walked:
        return "It has no table of contents: a tar is looked through where it is, which reads up to all of it once."
    if source.opens_at_once:
        return "It is compressed as a whole; what is in it is known only after it is unpacked."
    return "It can only be read from its beginning; what is in it is known only after it has arrived."


# Below this, the wait for the whole pack is short anyway.
_WORTH_BYTES = 200_000_000
_STREAMING_PAYS = "streaming=True would give batches as soon as"


def _streaming_advice(request: StageRequest, opened: OpenSource, job: PackJob) -> list[str]:
    """Return a sentence that says whether `streaming=True` would pay; nothing where it hardly matters."""
    # Under a limit it is no choice: the two cannot be combined.
    if (
        request.keep != "pack"
        or request.disk_limit is not None
        or max(opened.identity.nbytes, job.plan.nbytes) < _WORTH_BYTES
    ):
        return []
    obstacle = PackStream.obstacle(job)
    if obstacle is not None:
        return [f"streaming=True would gain nothing here: {obstacle}."]
    return [f"{_STREAMING_PAYS} this plan is made, and pack the rest during training."]


def _room_advice(request: StageRequest, figures: StageFigures, free_bytes: int) -> list[str]:
    """Return what to do where the disk is too small for all of it; nothing where it is not."""
    return [f"It does not fit: {less_room(request, free_bytes)}."] if figures.peak_bytes > free_bytes else []

"""A pack larger than the disk limit: made shard by shard, each published to the cache when it is finished, and dropped.

While one shard is packed, the one before it is published, so there are never more than two here. The manifests in the
cache say what is finished: after a kill, the next call continues with the first shard that has none. Together, the
shards are the file that a machine with enough room would have made, in parts.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from colabstage.errors import NotEnoughSpaceError
from colabstage.h5.manifest import BLOCK_BYTES, manifest_path
from colabstage.h5.parts import PartName, shard_path
from colabstage.io.files import read_json, write_json
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import Cancellation, NullProgress, start_at
from colabstage.io.units import format_bytes, format_count, parse_bytes
from colabstage.io.workspace import find_orphans, open_workspace, remove_own, unless
from colabstage.load.partial import forget_parts
from colabstage.load.places import LEAST_BLOCKS
from colabstage.machine.resources import check_space
from colabstage.pack.execute import ShardName, animation_notes, keeps_files, run_pack
from colabstage.pack.finish import OddBoxes
from colabstage.pack.job import prepare_pack, settled
from colabstage.pack.plan import has_files, pack_content
from colabstage.pack.shards import ShardResult, check_set, shard_job, shard_names
from colabstage.pack.stream import MemberRanges
from colabstage.pack.writer import MixedImagesError
from colabstage.sources.identity import compare_states
from colabstage.sources.partial.file import fixed_bytes
from colabstage.sources.tree import SLOW_READERS
from colabstage.stage.cache import CachedPack, find_shards
from colabstage.stage.places import look_at_file
from colabstage.stage.record import identity_of
from colabstage.stage.source import check_listing

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from colabstage.io.progress import Progress, ProgressStep
    from colabstage.pack.job import PackJob
    from colabstage.sources.opening import OpenSource
    from colabstage.stage.cache import Cache
    from colabstage.stage.places import CachedFile, CachePlace
    from colabstage.stage.request import StageRequest
    from colabstage.stage.source import StageCall
    from colabstage.trees.listing import Tree

# One shard is published while the next is packed, which may take its space twice when gaps are closed at the end; and
# a quarter is left for what nobody can know beforehand.
_SHARDS_OF_LIMIT = 4
# A limit that would do is looked for in such steps.
_STEP = 1.1
# In the folder in which shards are packed: which set a call with refresh=True has begun.
_REFRESHING = "refreshing.json"


@dataclass(frozen=True, slots=True)
class ShardSizes:
    """How a pack is divided."""

    count: int
    """The number of shards."""
    most: int
    """The length of the longest, in bytes."""
    total: int
    """The length of all together, in bytes."""

    def __str__(self) -> str:
        return f"{format_count(self.count, 'shards')} of up to {format_bytes(self.most)}"


def divide(job: PackJob, limit: int, *, whole_bytes: int) -> ShardSizes:
    """Decide how many shards a pack has under a limit: each so small that packing, publishing and reading have room.

    Raises:
        NotEnoughSpaceError: no number of shards will do; the message says which limit would.
    """
    # Added up once, so that many limits can be tried on a million rows: for each split the bytes before each row, and
    # of all.
    plan = job.plan
    sums: list[NDArray[np.int64]] = []
    for split in plan.splits:
        lengths = sum(part.lengths_of(split.samples) for part in plan.fields)
        sums.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    rows = sum(len(one) - 1 for one in sums)
    content = pack_content(job.table, plan, job.options, attributes={}).nbytes
    total = content + plan.open_bytes
    # Labels, keys and offsets, which stay here when the pack is read; in bytes for each row.
    small = (content - plan.nbytes + (plan.open_bytes if plan.x.is_open else 0)) / rows

    def fewest(limit: int) -> ShardSizes | None:
        """Return the fewest shards that leave enough room under a limit; `None` where no number does."""
        count = max(1, -(-_SHARDS_OF_LIMIT * total // limit))
        while count <= max(len(one) - 1 for one in sums):
            of_shard, rows_of_shard = np.zeros(count, np.int64), np.zeros(count, np.int64)
            for one in sums:
                # Where `shard_splits` cuts.
                ends = (len(one) - 1) * np.arange(count + 1) // count
                of_shard += np.diff(one[ends])
                rows_of_shard += np.diff(ends)
            of_shard += (small * rows_of_shard).astype(np.int64) + plan.open_bytes * rows_of_shard // rows
            most = int(of_shard.max())
            if most * _SHARDS_OF_LIMIT <= limit:
                # The index of each, and blocks in which one split ends and the next begins.
                kept = count * (1 + len(sums) + int(small * rows / count) // BLOCK_BYTES)
                blocks = count * -(-most // BLOCK_BYTES)
                needed = fixed_bytes(kept, blocks, count, BLOCK_BYTES) + LEAST_BLOCKS * BLOCK_BYTES
                return ShardSizes(count, most, total) if needed <= limit else None
            count = max(count + 1, -(-count * most * _SHARDS_OF_LIMIT // limit))
        return None

    found, needed = fewest(limit), limit
    if found is not None:
        return found
    # As it will be written, with three figures. A pack of which nothing stays here but its index has room in itself, so
    # this ends.
    while fewest(parse_bytes(format_bytes(needed), "disk_limit")) is None:
        needed = int(needed * _STEP) + 1
    # A small pack takes less as one file than its shards would leave here. Three figures may be half a per cent less.
    enough = min(needed, whole_bytes + whole_bytes // 150)
    msg = (
        f"disk_limit={format_bytes(limit)} is too little to pack '{job.label}' in shards and to read them in part. "
        f"Give {format_bytes(enough)} or more, or make the pack smaller: image_size=, encoding='jpeg:90'."
    )
    raise NotEnoughSpaceError(msg)


def plan_without_room(tree: Tree, request: StageRequest, job: PackJob) -> PackJob:
    """Return the plan that a machine with enough room would make; `job` is that of this one."""
    # What is free here says nothing about a pack that will be in the cache; and the next call, with other free space,
    # has to continue with the same shards.
    if request.options.encoding != "auto" or job.plan.encoding != "encoded":
        return job
    return prepare_pack(tree, request.options, free_bytes=None)


def check_cache(cache: Cache, job: PackJob, limit: int) -> CachePlace:
    """Return the cache, where shards go.

    Raises:
        NotEnoughSpaceError: there is none; the message has the line to write.
    """
    if cache.place is not None:
        return cache.place
    msg = (
        f"The pack of '{job.label}' takes {format_bytes(job.plan.nbytes)}, and disk_limit={format_bytes(limit)}. It "
        f"can be made in shards, which go to the cache and are read from there, but there is none: {cache.why}. Mount "
        'Google Drive, or name a place that has room for it: cache_dir="/content/drive/MyDrive/colabstage", "s3://bucket/cache".'
    )
    raise NotEnoughSpaceError(msg)


def plan_shards(
    request: StageRequest, tree: Tree, job: PackJob, cache: Cache, limit: int, *, whole_bytes: int
) -> tuple[str, int]:
    """Say how a pack would be made in shards, in a sentence, and return how many they would be.

    Raises:
        NotEnoughSpaceError: as `divide` and `check_cache`.
    """
    sizes = divide(plan_without_room(tree, request, job), limit, whole_bytes=whole_bytes)
    place = check_cache(cache, job, limit)
    sentence = (
        f"It is larger than disk_limit={format_bytes(limit)}: its {format_bytes(sizes.total)} would be packed in "
        f"{sizes}, each of which goes to the cache in '{place.label}' when it is finished and is dropped here; then it "
        "would be opened in part."
    )
    return sentence, sizes.count


def pack_into_cache(call: StageCall, source: OpenSource, job: PackJob, cache: Cache, *, whole_bytes: int) -> CachedPack:
    """Pack shard by shard into the cache, and return the whole set.

    Args:
        call: what was asked for, with a disk limit.
        source: where the samples come from; its files are read where they are.
        job: the plan of all samples, as `plan_without_room` makes it.
        cache: where shards go.
        whole_bytes: how much of the local disk it would take to pack all of it at once.

    Raises:
        NotEnoughSpaceError: the limit is too little, the cache has no room, or there is none.
        TargetExistsError: somebody else's file is in the cache under the name of a shard.
        SourceListingError: the source no longer lists what it did.
        Exception: as `stage_dataset`. Shards that are finished stay, and the next call continues.
    """
    assert call.request.disk_limit is not None
    place = check_cache(cache, job, call.request.disk_limit)
    source.read_in_place()
    job = settled(job)
    may_be_mixed = job.options.encoding == "auto" and job.plan.encoding == "pixels" and has_files(job.table)
    encoded = keeps_files(job) if may_be_mixed else None
    # First, so that a limit that is too little is refused with the figure that `plan_shards` has.
    planned = _SetOfShards.of(call, job, place, whole_bytes)
    try:
        # An earlier call may have found that images have many sizes, by one that this call has not seen.
        if encoded is None or not _is_begun(call, encoded, place, whole_bytes, source):
            return planned.write(source)
    except MixedImagesError as error:
        if encoded is None:
            raise error.as_refusal() from error
    assert encoded is not None
    return _SetOfShards.of(call, encoded, place, whole_bytes).write(source)


def _is_begun(call: StageCall, job: PackJob, place: CachePlace, whole_bytes: int, source: OpenSource) -> bool:
    """Tell whether an earlier call with these arguments left shards of `job` in the cache."""
    try:
        return bool(_SetOfShards.of(call, job, place, whole_bytes).finished(source))
    except NotEnoughSpaceError:
        # With less to divide, shards would leave too little room for blocks.
        return False


@dataclass(frozen=True, slots=True)
class _SetOfShards:
    """One set of shards, planned."""

    call: StageCall
    """What was asked for."""
    job: PackJob
    """The plan of all samples."""
    sizes: ShardSizes
    """How it is divided."""
    names: tuple[ShardName, ...]
    """All shards, in order."""
    place: CachePlace
    """Where they go."""
    starts_over: bool
    """Whether those that are finished must not be used."""

    @classmethod
    def of(cls, call: StageCall, job: PackJob, place: CachePlace, whole_bytes: int) -> Self:
        """Plan a set whose shards go to `place`."""
        assert call.request.disk_limit is not None
        sizes = divide(job, call.request.disk_limit, whole_bytes=whole_bytes)
        names = tuple(shard_names(job, sizes.count))
        starts_over = call.request.refresh
        if starts_over and not call.request.options.incomparable:
            # Those that an interrupted call with refresh=True has made are what this one would make.
            left = find_orphans(_workspace_of(call.request))
            starts_over = not any(read_json(folder / _REFRESHING) == names[0].made_of for folder in left)
        return cls(call, job, sizes, names, place, starts_over)

    def _file(self, name: ShardName) -> str:
        """Return what a shard's file is called."""
        return shard_path(Path(f"{self.call.request.name}.h5"), name.number, name.total).name

    def finished(self, source: OpenSource) -> dict[int, CachedFile]:
        """Return the shards that are in the cache, by number."""
        wanted = {str(name): name.number for name in self.names}
        there = find_shards(self.call.request, self.place)
        return {wanted[one.manifest.shard]: one for one in there if self._is_current(one, source)}

    def _is_current(self, shard: CachedFile, source: OpenSource) -> bool:
        """Tell whether a shard in the cache is one of this set, of the present state of the source."""
        state = identity_of(shard.manifest)
        if self.starts_over or shard.made_of != self.names[0].made_of or state is None:
            return False
        if PartName.of(Path(shard.name)).count != self.sizes.count:
            return False
        verdict = compare_states(state, source.identity)
        return verdict == "same" or (verdict == "unproved" and self.call.request.verify == "fast")

    def write(self, source: OpenSource) -> CachedPack:
        """Pack what is not in the cache, publish it, and return the set."""
        call, request = self.call, self.call.request
        done = self.finished(source)
        # First: beside shards of an earlier state, those of this one could make a set that looks whole.
        for one in find_shards(request, self.place):
            if one not in done.values():
                self.place.discard(one)
        left = [name for name in self.names if name.number not in done]
        members = MemberRanges(self.job)
        if left:
            # What is here of an earlier state takes up to the whole limit, and is of no use.
            forget_parts([self.place.at(self._file(name)) for name in self.names], request.folder.parent)
        self._check_room(len(left))
        results = {number: ShardResult.of(one.manifest) for number, one in done.items()}
        with (
            call.report.timed("pack in shards", unit=self.job.table.unit) as timing,
            call.progress.step("pack", total=len(self.job.table), unit=self.job.table.unit) as step,
            # After the error of mixed images, shards of another form are needed.
            open_workspace(_workspace_of(request), keeps=unless(MixedImagesError), in_own_folder=True) as ws,
        ):
            if request.refresh:
                # Of earlier calls there are none left in the cache.
                write_json(ws.path / _REFRESHING, self.names[0].made_of)
            start_at(step, sum(result.rows for result in results.values()))
            stop = Cancellation()
            publishing: Future[None] | None = None
            try:
                for name in left:
                    local = ws.path / self._file(name)
                    results[name.number] = self._pack(name, local, source, members, _Within(step, call.cancellation))
                    check_set(self.job, results.values())
                    if name is left[-1]:
                        # With the last one the set is complete, so this is the last moment to find that it is not.
                        check_listing(source)
                    # One at a time: the one before this is gone before the next is begun.
                    if publishing is not None:
                        publishing.result()
                    publish = partial(self._publish, local, stop)
                    publishing = in_thread(publish, "colabstage-publish", daemon=False)
                if publishing is not None:
                    publishing.result()
            except BaseException:
                # The folder that it reads from is about to get another name.
                stop.cancel()
                if publishing is not None:
                    wait((publishing,))
                raise
            timing.amount = sum(results[name.number].rows - results[name.number].resumed for name in left)
            timing.note = f"{self.job.plan.encoding}: {self.job.plan.reason}; {self.sizes}, in '{self.place.label}'"
            if done:
                timing.note += f"; {len(done):,} of them {'was' if len(done) == 1 else 'were'} there already"
        call.report.skipped = tuple(why for number in sorted(results) for why in results[number].skipped)
        animated = [name for number in sorted(results) for name in results[number].animated]
        odd = reduce(OddBoxes.with_those_of, (results[number].odd_boxes for number in sorted(results)), OddBoxes())
        call.report.note(*self.job.table.notes, *animation_notes(animated), *odd.notes())
        there = {one.manifest.shard: one for one in find_shards(request, self.place)}
        return CachedPack.of_set([there[str(name)] for name in self.names], self.place)

    def _publish(self, local: Path, stop: Cancellation) -> None:
        """Publish one shard, and drop it here."""
        # Not a bar of its own: it would be drawn into that of packing.
        self.place.publish(local, local.name, keep_previous=False, progress=NullProgress(stop))
        remove_own(local)
        remove_own(manifest_path(local))

    def _check_room(self, left: int) -> None:
        request = self.call.request
        what = f"Packing '{request.source.name}' in shards"
        check_space(request.folder, min(left, _SHARDS_OF_LIMIT - 1) * self.sizes.most, what)
        self.place.check_room(left * self.sizes.most, f"The cached pack of '{request.source.name}'")

    def _pack(
        self, name: ShardName, local: Path, source: OpenSource, members: MemberRanges, progress: Progress
    ) -> ShardResult:
        """Write one shard, unless an earlier call did, which was killed before it published it."""
        call = self.call
        left = look_at_file(local)
        if left is not None and left.is_whole and left.manifest.shard == str(name) and self._is_current(left, source):
            with progress.step("pack", total=None, unit=self.job.table.unit) as step:
                start_at(step, (done := ShardResult.of(left.manifest)).rows)
            return done
        job = shard_job(self.job, name.number, name.total)
        source.read_members(members.of(job), readers=SLOW_READERS)
        report = run_pack(
            job,
            local,
            slow=source.reads_slowly,
            progress=progress,
            cancellation=call.cancellation,
            key=call.request.key,
            identity=lambda: source.identity.to_json(),  # noqa: PLW0108 - that of the end
            address=call.request.address,
            shard=name,
        )
        return ShardResult.of_report(report)


def _workspace_of(request: StageRequest) -> Path:
    """Return what the folder is named after in which shards are packed."""
    return request.pack_path.with_name(f"{request.name}-shards.h5")


class _Within:
    """Show the steps of one shard as a part of one step of all."""

    def __init__(self, step: ProgressStep, cancellation: Cancellation) -> None:
        self._step, self.cancellation = step, cancellation

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """Return a step that advances that of all; packing has no other."""
        return _Part(self._step)


class _Part:
    def __init__(self, step: ProgressStep) -> None:
        self._step = step

    def advance(self, amount: int = 1) -> None:
        self._step.advance(amount)

    def start_at(self, amount: int) -> None:
        start_at(self._step, amount)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the step of all open."""

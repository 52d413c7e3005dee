"""A pack larger than the disk limit: made shard by shard, each published to the cache when it is finished, and dropped.

While one shard is packed, the one before is published, so there are never more than two here. The manifests in the
cache say what is finished: after a kill, the next call continues with the first shard that has none. Together, the
shards are the file that a machine with enough space would have made, in parts.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from colabstage.errors import NotEnoughSpaceError
from colabstage.h5.manifest import manifest_path
from colabstage.h5.parts import PartName
from colabstage.io.files import BLOCK_BYTES, read_json, write_json
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import Cancellation, Progress
from colabstage.io.units import format_bytes, format_count, parse_bytes
from colabstage.io.workspace import find_orphans, open_workspace, remove_own
from colabstage.load.partial import forget_parts
from colabstage.machine.resources import check_space
from colabstage.pack.arrival import MemberRanges
from colabstage.pack.execute import PackRun
from colabstage.pack.job import PackJob, ReplanError, keeps_files, prepare_pack, settled
from colabstage.pack.plan import has_files, pack_content
from colabstage.pack.set_stores import ShardName, ShardResult, result_of
from colabstage.pack.shards import set_report, shard_job, shard_names, write_shards
from colabstage.sources.identity import compare_states
from colabstage.sources.in_part import fixed_bytes
from colabstage.sources.packs import LEAST_BLOCKS
from colabstage.stage.cache import Cache, CachedPack, find_shards
from colabstage.stage.places import CachedFile, FolderPlace, Place, look_at_file
from colabstage.stage.publish import publish
from colabstage.stage.record import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from numpy.typing import NDArray

    from colabstage.sources.opening import OpenedSource
    from colabstage.stage.request import StageRequest
    from colabstage.stage.source import StageCall
    from colabstage.trees.listing import Tree

# One shard is published while the next is packed, which may take its space twice when gaps are closed at the end; a
# quarter is left for what cannot be known in advance.
_SHARDS_OF_LIMIT = 4
# In the folder in which shards are packed: which set a call with refresh=True has begun.
_REFRESHING = "refreshing.json"


class ShardSizes(NamedTuple):
    number: int
    most: int
    total: int

    def __str__(self) -> str:
        return f"{format_count(self.number, 'shards')} of up to {format_bytes(self.most)}"


def divide(job: PackJob, limit: int) -> ShardSizes:
    """Decide how many shards a pack has under a limit: small enough that packing, publishing and reading have space.

    Raises:
        NotEnoughSpaceError: no number of shards will do; the message says which limit would.
    """
    # Summed once, because many limits are tried: for each split the bytes before each row.
    plan = job.plan
    sums: list[NDArray[np.int64]] = []
    for split in plan.splits:
        lengths = sum(part.lengths_of(split.samples) for part in plan.fields)
        sums.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    rows = sum(len(one) - 1 for one in sums)
    content = pack_content(job.table, plan, job.options, attributes={}).nbytes
    total = content + plan.open_bytes
    # Labels, keys and offsets, which stay local when the pack is read; in bytes per row.
    small = (content - plan.nbytes + (plan.open_bytes if plan.x.is_open else 0)) / rows

    def fewest(limit: int) -> ShardSizes | None:
        count = max(1, -(-_SHARDS_OF_LIMIT * total // limit))
        while count <= max(len(one) - 1 for one in sums):
            of_shard, rows_of_shard = np.zeros(count, np.int64), np.zeros(count, np.int64)
            for one in sums:
                # Where `ShardRows.of` cuts.
                ends = (len(one) - 1) * np.arange(count + 1) // count
                of_shard += np.diff(one[ends])
                rows_of_shard += np.diff(ends)
            of_shard += (small * rows_of_shard).astype(np.int64) + plan.open_bytes * rows_of_shard // rows
            most = int(of_shard.max())
            if most * _SHARDS_OF_LIMIT <= limit:
                # Each shard's index, and the blocks in which one split ends and the next begins.
                kept = count * (1 + len(sums) + int(small * rows / count) // BLOCK_BYTES)
                blocks = count * -(-most // BLOCK_BYTES)
                fits = fixed_bytes(kept, blocks, count, BLOCK_BYTES) + LEAST_BLOCKS * BLOCK_BYTES <= limit
                return ShardSizes(count, most, total) if fits else None
            count = max(count + 1, -(-count * most * _SHARDS_OF_LIMIT // limit))
        return None

    needed = limit
    while (found := fewest(needed)) is None:
        # As it is shown.
        needed = parse_bytes(format_bytes(int(1.1 * needed) + 1), "disk_limit")
    if needed == limit:
        return found
    msg = (
        f"disk_limit={format_bytes(limit)} is too little to pack '{job.label}' ({format_bytes(total)}) in shards and "
        f"read them in part. Give {format_bytes(needed)} or more, or make the pack smaller: image_size=, "
        "encoding='jpeg:90'."
    )
    raise NotEnoughSpaceError(msg)


def plan_without_room(tree: Tree, request: StageRequest, job: PackJob) -> PackJob:
    """Return the plan that a machine with enough space would make; `job` is this machine's."""
    # Free space here says nothing about a pack that will be in the cache; and the next call, with other free space,
    # must continue with the same shards.
    if request.options.encoding != "auto" or job.plan.encoding != "encoded":
        return job
    return prepare_pack(tree, request.options, free_bytes=None)


def check_cache(cache: Cache, job: PackJob, limit: int) -> Place:
    """Return the cache's place, where shards go.

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


def plan_shards(request: StageRequest, tree: Tree, job: PackJob, cache: Cache) -> tuple[str, int]:
    """Say in a sentence how a pack would be made in shards, and return their number.

    Raises:
        NotEnoughSpaceError: as `divide` and `check_cache`.
    """
    limit = request.disk_limit
    assert limit is not None
    sizes = divide(plan_without_room(tree, request, job), limit)
    place = check_cache(cache, job, limit)
    sentence = (
        f"It is larger than disk_limit={format_bytes(limit)}: its {format_bytes(sizes.total)} would be packed in "
        f"{sizes}, each of which goes to the cache in '{place.label}' when it is finished and is dropped here; then it "
        "would be opened in part."
    )
    return sentence, sizes.number


def pack_into_cache(call: StageCall, source: OpenedSource, job: PackJob, cache: Cache) -> CachedPack:
    """Pack shard by shard into the cache, and return the set. `job`: from `plan_without_room`.

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
    plan = partial(_SetOfShards.of, call, place=place)
    planned = plan(job)
    if job.options.encoding == "auto" and job.plan.encoding == "pixels" and has_files(job.table):
        # An earlier call may have found, by an image that this one has not seen, that images have many sizes.
        with suppress(NotEnoughSpaceError):
            kept = plan(keeps_files(job))
            planned = kept if kept.find_finished(source) else planned
    try:
        return planned.write(source)
    except ReplanError as found:
        return plan(found.plan_again(job)).write(source)


@contextmanager
def _publishing(place: Place) -> Iterator[Callable[[Path], None]]:
    """Yield a function that publishes a shard in a thread, after the one before, and then drops it here.

    The end waits for the last shard; after an error it stops it, because the folder is about to be renamed.
    """
    # That thread is waited for without a deadline: it asks the place, which has one.
    stop, last = Cancellation(), Future[None]()
    last.set_result(None)

    def publish_and_drop(file: Path) -> None:
        # Not a bar of its own: it would be drawn into that of packing.
        place.ask(lambda: publish(place, file, file.name, keep_previous=False, progress=Progress(stop)))
        remove_own(file)
        remove_own(manifest_path(file))

    def begin(file: Path) -> None:
        nonlocal last
        last.result()
        last = in_thread(partial(publish_and_drop, file), "colabstage-publish", daemon=False)

    try:
        yield begin
    except BaseException:
        stop.cancel()
        wait((last,))
        raise
    last.result()


@dataclass(frozen=True, slots=True)
class _SetOfShards:
    call: StageCall
    job: PackJob
    sizes: ShardSizes
    names: tuple[ShardName, ...]
    place: Place
    starts_over: bool
    """Whether finished shards must not be used."""

    @classmethod
    def of(cls, call: StageCall, job: PackJob, place: Place) -> Self:
        """Plan a set whose shards go to `place`."""
        assert call.request.disk_limit is not None
        sizes = divide(job, call.request.disk_limit)
        names = tuple(shard_names(job, sizes.number))
        starts_over = call.request.refresh
        if starts_over and not call.request.options.incomparable:
            # A call with refresh=True that was interrupted has made the same shards as this one would.
            left = find_orphans(_workspace_of(call.request))
            starts_over = not any(read_json(folder / _REFRESHING) == names[0].made_of for folder in left)
        return cls(call, job, sizes, names, place, starts_over)

    @property
    def _target(self) -> str:
        return f"{self.call.request.name}.h5"

    def find_finished(self, source: OpenedSource) -> dict[int, CachedFile]:
        """Return the shards that are in the cache and current, by number."""
        wanted = {str(name): name.number for name in self.names}
        there = find_shards(self.call.request, self.place)
        return {wanted[one.manifest.shard]: one for one in there if self._is_current(one, source)}

    def _is_current(self, shard: CachedFile, source: OpenedSource) -> bool:
        """Return whether a cached shard belongs to this set, and to the present state of the source."""
        state = identity_of(shard.manifest)
        if self.starts_over or shard.made_of != self.names[0].made_of or state is None:
            return False
        if PartName.of(Path(shard.name)).count != self.sizes.number:
            return False
        verdict = compare_states(state, source.identify())
        return verdict == "same" or (verdict == "unproved" and self.call.request.verify == "fast")

    def write(self, source: OpenedSource) -> CachedPack:
        """Pack the shards that are not in the cache, publish them, and return the set."""
        call, request = self.call, self.call.request
        finished = self.find_finished(source)
        # First: beside shards of an earlier state, this set's shards could look complete too early.
        for one in find_shards(request, self.place):
            if one not in finished.values():
                self.place.discard(one.name)
        left = len(self.names) - len(finished)
        if left:
            # Local parts of an earlier state may take the whole limit, and are of no use.
            here = [self.place.at(name.file_of(self._target)) for name in self.names]
            forget_parts(here, request.folder.parent)
        what = f"Packing '{request.source.name}' in shards"
        check_space(request.folder, min(left, _SHARDS_OF_LIMIT - 1) * self.sizes.most, what)
        if isinstance(self.place, FolderPlace) and not self.place.on_drive:
            # A mounted Drive does not report its free space; only a failed write shows it.
            check_space(self.place.folder, left * self.sizes.most, f"The cached pack of '{request.source.name}'")
        done = {number: result_of(one.manifest) for number, one in finished.items()}
        with (
            call.report.timed("pack in shards", unit=self.job.table.unit) as timing,
            # After the error about mixed images, shards of another form are needed.
            open_workspace(_workspace_of(request), drops=(ReplanError,), in_own_folder=True) as workspace,
            _publishing(self.place) as publish_shard,
        ):
            if request.refresh:
                # Shards of earlier calls are no longer in the cache.
                write_json(workspace.path / _REFRESHING, self.names[0].made_of)
            write_each = partial(self._write_each, source, workspace.path, publish_shard)
            results = write_shards(self.names, self.job, done, write_each, call.progress)
            timing.amount = sum(result.rows - result.resumed for result in results) - sum(
                result.rows - result.resumed for result in done.values()
            )
            timing.note = f"{self.job.plan.encoding}: {self.job.plan.reason}; {self.sizes}, in '{self.place.label}'"
            if done:
                timing.note += f"; {len(done):,} of them {'was' if len(done) == 1 else 'were'} there already"
        report = set_report(self.job, results, 0.0)
        call.report.skipped = report.skipped
        call.report.note(*report.notes)
        there = {one.manifest.shard: one for one in find_shards(request, self.place)}
        return CachedPack.of_set([there[str(name)] for name in self.names], self.place)

    def _write_each(
        self,
        source: OpenedSource,
        folder: Path,
        publish_shard: Callable[[Path], None],
        left: list[ShardName],
        progress: Progress,
    ) -> Generator[tuple[ShardName, ShardResult]]:
        members = MemberRanges(self.job)
        for name in left:
            local = folder / name.file_of(self._target)
            yield name, self._write_one(name, local, source, members, progress)
            if name is left[-1]:
                # The last shard completes the set, so this is the last moment to find that the source has changed.
                source.check_unchanged()
            publish_shard(local)

    def _write_one(
        self, name: ShardName, local: Path, source: OpenedSource, members: MemberRanges, progress: Progress
    ) -> ShardResult:
        """Write one shard, unless an earlier call did and was killed before it published it."""
        call = self.call
        left = look_at_file(local)
        if left is not None and left.is_whole and left.manifest.shard == str(name) and self._is_current(left, source):
            with progress.step("pack", total=None, unit=self.job.table.unit) as step:
                step.start_at((done := result_of(left.manifest)).rows)
            return done
        job = shard_job(self.job, name)
        source.read_members(members.of(job))
        report = PackRun(
            job,
            local,
            source.cost.reads_slowly,
            progress,
            key=call.request.key,
            identity=lambda: source.identify().to_json(),  # at the end
            address=call.request.source.address,
            shard=name,
        ).execute()
        return ShardResult.of(report)


def _workspace_of(request: StageRequest) -> Path:
    """Return the path that the folder in which shards are packed is named for."""
    return request.pack_path.with_name(f"{request.name}-shards.h5")

"""The cached copy of a pack: found by its manifest, copied here or opened in part, published when new."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from colabstage.errors import (
    CancelledError,
    ColabstageError,
    DamagedPackError,
    DriveError,
    NewerFormatError,
    NotEnoughSpaceError,
    SourceError,
    SourceNotFoundError,
    SourceReadError,
    said_by,
)
from colabstage.h5.info import read_info
from colabstage.h5.manifest import (
    Manifest,
    check_replaceable_pack,
    is_replaceable_pack,
    place_pack,
    read_manifest,
    verified,
    write_manifest,
)
from colabstage.h5.parts import PartName, joined_info
from colabstage.io.files import make_folder
from colabstage.io.progress import Cancellation, Progress
from colabstage.io.units import format_bytes
from colabstage.io.workspace import (
    atomic_path,
    cut_own,
    disk_use,
    is_made_here,
    open_workspace,
    remove_empty,
    sweep_orphans,
)
from colabstage.load.partial import PartialPack, open_pack, open_partial
from colabstage.machine.drive import ask_drives
from colabstage.machine.mounts import lost_with_machine, mount_of, slow_reason
from colabstage.machine.platforms import detect_platform
from colabstage.machine.resources import check_space
from colabstage.pack.execute import place_joined, splits_in_order
from colabstage.pack.rows import closest, is_rows, is_rows_name, parse_rows, read_rows, rows_name
from colabstage.sources.blocks import Edges
from colabstage.sources.identity import Freshness, SourceIdentity, compare_states
from colabstage.sources.in_part import KEPT_AFTER, BlockwiseFile, FileOfSet, FileSet
from colabstage.sources.parse import ObjectSource
from colabstage.sources.remote_files import read_small_file
from colabstage.stage.dataset import Origin, StagedDataset
from colabstage.stage.places import PREVIOUS_SUFFIX, BucketPlace, CachedFile, FolderPlace, Place
from colabstage.stage.publish import PublishReport, publish, published_before
from colabstage.stage.record import LocalRecord, cache_name, identity_of, read_record, write_record
from colabstage.stage.source import SourceOnce, StageCall, StateDiffersError, compared_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from colabstage.stage.request import CacheDir, StageRequest


T = TypeVar("T")

# What takes less local space than the whole dataset, as the end of a sentence.
LESS_ROOM = (
    "remove what `colabstage cache list` shows here, give local_dir= on a larger disk, or disk_limit= with a cache: "
    "the pack is then there, and a part of it here"
)


@dataclass(frozen=True, slots=True)
class StageFigures:
    source_bytes: int = 0
    archive_bytes: int = 0
    """Size of an archive that is first copied to this machine; 0 otherwise."""
    pack_bytes: int = 0
    files_bytes: int = 0
    mount_bytes: int = 0
    """How much is read through a mount that keeps a second copy on the same disk, as Google Drive's does."""
    spare_bytes: int = 0
    """What must be free besides, for the structures of a new pack."""

    @property
    def peak_bytes(self) -> int:
        """Return how much free space the local disk needs during the work."""
        # As the disk fills, Drive's client drops small files from its cache, but not an archive that is being read.
        return self.archive_bytes + self.mount_bytes + self.pack_bytes + self.files_bytes

    @property
    def room_bytes(self) -> int:
        return self.peak_bytes + self.spare_bytes


def exceeds(request: StageRequest, figures: StageFigures) -> bool:
    """Return whether staging takes more of the local disk than the disk limit."""
    # The peak, not just the pack: an archive and its pack are on the disk at the same time.
    return request.disk_limit is not None and figures.peak_bytes > request.disk_limit


def on_wrong_disks(request: StageRequest) -> Iterator[str]:
    """Yield sentences: the dataset's folder is on a mount, from which every epoch reads; its cache does not last."""
    slow, cache = slow_reason(mount_of(request.folder)), request.cache_dir
    what = f"Datasets are staged to '{request.folder.parent}', on {slow}, from which every epoch reads"
    if slow is not None:
        yield f"{what}: give local_dir= on a local disk. What is to last goes to cache_dir=."
    if isinstance(cache, Path) and (lost := lost_with_machine(cache)):
        yield f"The cache {lost}. For the next session, give a folder on a mounted Drive."


def beyond_limit(request: StageRequest) -> Iterator[str]:
    """Yield a sentence if the complete local pack exceeds the disk limit. It is used anyway: the space is taken."""
    limit, folder = request.disk_limit, request.folder
    if limit is not None and (size := request.pack_path.stat().st_size) > limit:
        yield (
            f"All {format_bytes(size)} of the pack are here already, more than disk_limit={format_bytes(limit)}. To "
            f"read it in part, remove it (colabstage cache purge {quote(folder.name)} --only here --yes --local-dir "
            f"{quote(str(folder.parent))}) and call again."
        )


def check_disk_limit(request: StageRequest, figures: StageFigures | None) -> None:
    """Refuse to stage what the disk limit does not allow, and what cannot be packed in shards either.

    `figures`: what it takes; `None` if that is known only once everything is local.
    """
    limit = request.disk_limit
    if limit is None or (figures is not None and not exceeds(request, figures)):
        return
    msg = (
        f"'{request.source.name}' has to be copied here to be packed, which disk_limit={format_bytes(limit)} does not "
        "allow. Unpack it into a folder or a zip, on your Drive or in a bucket: that is read where it is."
    )
    raise NotEnoughSpaceError(msg)


OUTDATED = "made from an earlier state of the source"


@dataclass(frozen=True, slots=True)
class CachedPack:
    """A pack in the cache with a complete manifest and the right length."""

    files: tuple[CachedFile, ...]
    """The packed file in the cache, or all shards of a set, in order."""
    manifest: Manifest
    """What it was made from, and the hash of each block; for a set, what the shards add up to, without hashes."""
    place: Place

    @classmethod
    def of_set(cls, shards: Sequence[CachedFile], place: Place) -> CachedPack:
        files = FileSet([FileOfSet(one.source, one.name, one.manifest) for one in shards])
        whole = replace(shards[0].manifest, size=files.size, hashes=(), samples=files.samples, skipped=files.skipped)
        return cls(tuple(shards), whole, place)

    @property
    def in_shards(self) -> bool:
        return bool(self.manifest.shard)

    @property
    def identity(self) -> SourceIdentity | None:
        """Return the state of the source that it was made from, if known."""
        return identity_of(self.manifest)

    @property
    def label(self) -> str:
        """Return its name in messages; for a set, the pattern that matches all shards."""
        return re.sub(r"-\d{5}(-of-\d{5}\.h5)$", r"-*\1", self.files[0].source.label)

    @property
    def figures(self) -> StageFigures:
        size = self.manifest.size
        # Shards are on the disk beside the file that they are joined to.
        shards, cached = (size if self.in_shards else 0), (self.place.copies - 1) * size
        return StageFigures(source_bytes=size, archive_bytes=shards, pack_bytes=size, mount_bytes=cached)


class Cache:
    """The cache as one call sees it.

    Its folder is looked up once, and only when it is needed, because giving up on a Drive that hangs takes long. The
    requested pack is looked for once, too: each look takes several requests.
    """

    def __init__(self, request: StageRequest) -> None:
        self.request = request
        self._found: list[CachedPack | None] = []

    @property
    def place(self) -> Place | None:
        """Return its place; `None` without a cache."""
        return self._chosen[0]

    @property
    def why(self) -> str:
        """Return in a few words why it is there, or why there is none."""
        return self._chosen[1]

    @cached_property
    def _chosen(self) -> tuple[Place | None, str]:
        request = self.request
        return find_cache_dir(request.cache_dir, local=request.folder)

    def why_not(self) -> str:
        """Say, for the report, why a pack is not in it; "" if there is no pack."""
        return f"no: {self.why}" if self.request.wants_pack else ""

    def why_nothing(self) -> str:
        """Say why `find` found nothing: it may have given the cache up."""
        return self.why if self.place is None else "no pack of this dataset yet"

    def find(self) -> CachedPack | None:
        """Return the requested pack; `None` if there is none, or none is wanted."""
        if self.request.wants_pack and not self._found:
            self._found.append(self._ask(lambda place: _find_cached(self.request, place)))
        return self._found[0] if self._found else None

    def forget(self) -> None:
        """Look again the next time, because another process may have published the pack."""
        self._found.clear()

    def find_each(self, *, like: int) -> Iterator[CachedPack]:
        """Yield the requested pack, and then those whose lengths are closest to `like` bytes, 0 for none; each in one
        file."""
        own = self.find()
        yield from () if own is None or own.in_shards else (own,)

        def look(place: Place) -> Iterator[CachedPack]:
            packs = place.search(lambda name: name.endswith(".h5") and not PartName.of(Path(name)).count)
            names = closest({name: entry.size for name, entry in packs.items()}, like)
            files = [one for one in place.look(names) if one is not None and one.is_whole]
            return (CachedPack((one,), one.manifest, place) for one in files if not one.manifest.shard)

        yield from (self._ask(look) if like else None) or ()

    def _ask(self, question: Callable[[Place], T]) -> T | None:
        """Return an answer about the cache; `None` if there is none, or none any more."""
        place = self.place
        if place is None:
            return None
        try:
            return place.ask(lambda: question(place))
        # It answered a moment ago. The data can be staged without the cache, and the report will say why it was.
        except (DriveError, SourceReadError) as error:
            why = str(error)
        except ColabstageError:
            raise
        except OSError as error:
            why = f"{said_by(error)} ('{error.filename}')" if error.filename else said_by(error)
        self._chosen = None, why.removesuffix(".")
        return None


def find_cache_dir(asked: CacheDir, *, local: Path) -> tuple[Place | None, str]:
    """Return the place of the cache, `None` for none, with the reason in a few words. `local`: where packs are used."""
    if asked is None:
        return None, "cache_dir=None"
    if isinstance(asked, Path | ObjectSource):
        return FolderPlace(asked) if isinstance(asked, Path) else BucketPlace(asked), "as given"
    drive = ask_drives()
    if drive.folder is not None:
        return FolderPlace(drive.folder / "colabstage"), "on the mounted Google Drive"
    if drive.silent:
        # Another folder would be a second cache, which the next session would not find.
        return None, f"the Drive client at '{drive.silent[0]}' does not answer"
    return _find_lasting(local)


def _find_lasting(local: Path) -> tuple[Place | None, str]:
    platform = detect_platform()
    lasting = platform.persistent_dir
    if lasting is None or not os.access(lasting, os.W_OK):
        return None, platform.not_lasting or f"no Drive is mounted, and {platform.title} has no persistent folder"
    # A copy on the same disk would save nothing and double the space.
    existing = next(place for place in (local, *local.parents) if place.exists())
    if lasting.stat().st_dev == existing.stat().st_dev:
        return None, f"a copy in '{lasting}' would be on the same disk"
    return FolderPlace(lasting / "colabstage"), f"the persistent folder of {platform.title}"


def _find_cached(request: StageRequest, place: Place) -> CachedPack | None:
    """Find the requested pack in the cache, or its previous version if publishing was interrupted."""
    name = f"{request.name}.h5"
    for one in place.look([name, name + PREVIOUS_SUFFIX]):
        # The name has eight digits of the key; the manifest has all of them.
        if one is not None and one.manifest.key == request.key and one.is_whole:
            return CachedPack((one,), one.manifest, place)
    sets: dict[tuple[str, int], list[CachedFile]] = {}
    for one in find_shards(request, place):
        sets.setdefault((one.made_of, PartName.of(Path(one.name)).count), []).append(one)
    for (_, count), parts in sets.items():
        # All of one state of the source: file lengths alone do not prove that the shards have the same content.
        first, *others = [identity_of(one.manifest) for one in parts]
        same = [first is not None and one is not None and compare_states(first, one) != "changed" for one in others]
        if len(parts) == count and first is not None and all(same):
            return CachedPack.of_set(parts, place)
    return None


def find_shards(request: StageRequest, place: Place) -> list[CachedFile]:
    """Find all shards of this request in the cache, in order, whether or not their set is complete."""
    return [one for one in place.shards(f"{request.name}.h5") if one.manifest.key == request.key and one.is_whole]


# --- from the cache to this machine ---


def restore(call: StageCall, source: SourceOnce, cached: CachedPack, known: Freshness | None) -> SourceIdentity | None:
    """Copy a pack from the cache, and return the source's state; `None` if it cannot be used: then the source is read
    instead, unless readers have seen rows of the copy.

    `known`: how the source compares with the pack; `None` to compare them during the copy, because for a folder of some
    thousand files on a mount that takes seconds.
    """
    report, recorded, is_lent = call.report, cached.identity, False
    assert recorded is not None

    def let_in(pack: PartialPack) -> None:
        nonlocal is_lent
        assert call.let_in is not None
        # From here on the copy must succeed or raise, and the report is read while it arrives.
        is_lent, report.origin = True, "cache"
        call.let_in(pack)

    with compared_beside(call, source, recorded, known) as (stop, agree):

        def copy() -> tuple[int, int]:
            readers = None if call.let_in is None else let_in
            return copy_pack(call, cached, call.request.pack_path, cancellation=stop, let_in=readers, confirm=agree)

        try:
            with report.timed("copy from cache", unit="B") as step:
                try:
                    size, already = cached.place.ask(copy)
                    freshness = agree()
                except (StateDiffersError, CancelledError):
                    # Raise the reason why the copy was stopped, unless the call itself was.
                    with contextlib.suppress(StateDiffersError):
                        agree()
                        raise
                    step.unit, step.note = "", f"stopped: {OUTDATED}"
                    return None
                step.amount = size - already
                again = f"{format_bytes(already)} were already here" if already else ""
                step.note = "; ".join(filter(None, ("verified block by block", again, freshness.seen)))
        except (DamagedPackError, SourceError, DriveError) as error:
            if is_lent:
                raise
            report.note(unusable(error))
            return None
    # With its present times, if the source was opened and is the same.
    return source.opened.identify() if source.opened is not None and freshness.proved else recorded


def unusable(error: BaseException) -> str:
    """Say that a cached pack is not used. The failed copy's remedy is left out: the source is read instead."""
    why = error.__cause__ if isinstance(error.__cause__, ColabstageError) else error
    return f"The pack in the cache cannot be used: {why}"


def copy_pack(
    call: StageCall,
    cached: CachedPack,
    target: Path,
    *,
    cancellation: Cancellation,
    let_in: Callable[[PartialPack], object] | None = None,
    confirm: Callable[[], object] = lambda: None,
) -> tuple[int, int]:
    """Copy a cached pack to the local disk, verifying every block on the way; a set of shards is joined to
    the file that a single process would have made.

    An interrupted copy is compared with the manifest, and only missing blocks are read from the cache. With `let_in`,
    blocks come in the order in which readers need them, and it is called once rows can be waited for. `confirm` is
    called before that, and again before the copy takes its place; it raises whatever should prevent these. Returns the
    number of bytes, and how many of them were here already.
    """
    request, manifest = call.request, cached.manifest
    size, readers = manifest.size, None if cached.in_shards else let_in
    if not cached.in_shards and _is_here(target, manifest, cancellation):
        confirm()
        return size, size
    check_replaceable_pack(target)
    make_folder(request.folder)
    try:
        with open_workspace(request.copy_path, keeps=KEPT_AFTER, in_own_folder=True) as workspace:
            here = min(disk_use(workspace.path), size) if workspace.resumed else 0
            needed = cached.figures.peak_bytes - cached.place.copies * here
            check_space(request.folder, needed, f"The packed copy of '{request.source.name}'", remedy=LESS_ROOM)
            names = [one.name for one in cached.files] if cached.in_shards else [target.name]
            local = [workspace.path / name for name in names]
            for one, copy in zip(cached.files, local, strict=True):
                if copy.is_file() and copy.stat().st_size > one.manifest.size:
                    cut_own(copy, one.manifest.size)
            named = zip(cached.files, names, strict=True)
            files = FileSet([FileOfSet(one.source, name, one.manifest) for one, name in named])
            with (
                call.progress.step("copy from cache", total=size, unit="B") as step,
                contextlib.closing(BlockwiseFile(files, workspace.path, None, in_order=readers is None)) as file,
            ):
                if readers is None:
                    file.settle(np.zeros(file.blocks, np.bool_), Edges.none(file.blocks), least=1)
                    moved = file.fill(np.arange(file.blocks), step, cancellation)
                else:
                    pack = open_pack(file, target)

                    def begun() -> None:
                        confirm()
                        readers(pack)

                    moved = file.fill(pack.first_blocks(), step, cancellation, begun=begun)
            confirm()
            if cached.in_shards:
                place_joined(
                    local,
                    workspace.path,
                    target,
                    samples={split: manifest.samples[split] for split in splits_in_order(local)},
                    skipped=manifest.skipped,
                    key=request.key,
                    identity=manifest.identity,
                    address=request.source.address,
                )
            else:
                write_manifest(local[0], replace(manifest, mtime_ns=local[0].stat().st_mtime_ns))
                place_pack(local[0], target, replaces=is_replaceable_pack)
    except BaseException:
        remove_empty(request.folder)  # unless it held something before, or work was left for the next attempt
        raise
    return size, size - moved


def _is_here(target: Path, manifest: Manifest, cancellation: Cancellation) -> bool:
    """Return whether the pack is already in place, as after a kill before its manifest; if so, write that."""
    with contextlib.suppress(OSError, NewerFormatError):
        if is_made_here(target) and read_manifest(target) in (None, manifest):
            found = verified(target, manifest, cancellation)
            if found is not None:
                write_manifest(target, found)
                return True
    return False


def open_in_part(call: StageCall, cached: CachedPack, *, origin: Origin = "cache") -> StagedDataset:
    """Open a pack in part: never more than `disk_limit` of it is on the local disk."""
    request, report, limit = call.request, call.report, call.request.disk_limit
    assert limit is not None
    report.origin = origin
    report.cached = "yes, and it is read from there"
    report.skipped = cached.manifest.skipped
    with (
        report.timed("open in part", unit="B") as step,
        call.progress.step("open in part", total=None, unit="B") as shown,
    ):
        part = open_partial(
            [one.path for one in cached.files],
            limit,
            local_dir=request.folder.parent,
            manifests=[one.manifest for one in cached.files],
            step=shown,
        )
        step.amount = part.figures["fetched"]
        step.note = f"index and labels; never more than {format_bytes(limit)} of {format_bytes(cached.manifest.size)}"
    report.note(
        f"The pack stays in the cache ('{cached.label}') and is read from there block by block; keep it there and "
        "reachable while loaders run."
    )
    # Looked up when the report is shown: the figures grow while loaders read.
    report.arrival = partial(getattr, part, "figures")
    info = joined_info([read_info(path, in_part=True) for path in part.paths])
    return StagedDataset(path=part.path, files=None, report=report, info=info, part=part)


# --- from this machine to the cache ---


def is_published(request: StageRequest, cache: Cache) -> bool | None:
    """Return whether the local pack is the one in the cache; `None` without a cache."""
    if cache.place is None:
        return None
    cached = cache.find()
    return cached is not None and (cached.in_shards or cached.manifest == read_manifest(request.pack_path))


def publish_pack(
    call: StageCall, cache: Cache, record: LocalRecord, *, quietly: bool = False
) -> PublishReport[Any] | None:
    """Copy the pack to the cache; a failure is a note in the report."""
    request, place, done = call.request, cache.place, None
    if place is None:
        call.report.cached = f"no: {cache.why}"
        return None
    name = f"{request.name}.h5"
    with call.report.timed("publish to cache", unit="B") as step:
        try:
            # In the background, a bar would appear in whatever cell runs then.
            progress = Progress() if quietly else call.progress

            def put() -> PublishReport[Any]:
                manifest = read_manifest(request.pack_path)
                if manifest is not None and read_rows(request.pack_path, manifest) is not None:
                    rows, silent = rows_name(name, manifest), Progress(call.cancellation)  # nobody gave that name
                    publish(place, request.pack_path.with_name(rows), rows, keep_previous=False, progress=silent)
                return publish(place, request.pack_path, name, progress=progress)

            # Asked for itself: in the background nobody else sees that a mount hangs.
            done = place.ask(put)
            step.amount = done.nbytes - done.kept_bytes
            uploading = "; uploading" if done.uploading else ""
            step.note = f"'{place.label}/{name}', read back and verified{uploading}"
        # Not raised: the data is local and usable, and the next session just stages it again.
        except (ColabstageError, OSError) as error:
            step.note = "failed"
            call.report.note(f"Not cached, so the next session stages from the source again: {error}")
        discard_rows(place, name)
    call.report.cached = "no: copying failed; the next call tries again" if done is None else "yes, copied there now"
    write_record(request, replace(record, published=done is not None, published_in=cache_name(request)))
    return done


def find_published(request: StageRequest) -> PublishReport[Any] | None:
    """Return the report of what an earlier call published of the local pack."""
    # Only on request, not in every call, because a Drive takes time to answer.
    if request.cache_dir is None:
        return None
    cache = Cache(request)
    cached = cache.find()
    if cached is None or cached.manifest != read_manifest(request.pack_path):
        copy = f"'{request.pack_path}' was published before, and its copy '{request.name}.h5' is no longer in"
        if cache.place is None:
            msg = f"{copy} a cache that can be used ({cache.why}). Mount the drive of the cache, then call again."
            raise SourceNotFoundError(msg)
        if (record := read_record(request)) is not None:
            write_record(request, replace(record, published=False))
        msg = (
            f"{copy} '{cache.place.label}', or another one has replaced it. Call stage_dataset again: it publishes it."
        )
        raise SourceNotFoundError(msg)
    return published_before(cached.place, cached.files[0].name, cached.manifest.size)


# --- the record of a pack's rows: published before the pack and purged before it, so it is never alone ---


def read_cached_rows(cached: CachedPack) -> bytes | None:
    """Return the record of a pack's rows; `None` if it cannot be read, because it only saves reading."""
    name = cached.files[0].name.removesuffix(PREVIOUS_SUFFIX)

    def read() -> bytes | None:
        (found,) = cached.place.look([rows_name(name, cached.manifest)])
        return None if found is None or not found.is_whole else read_small_file(found.source)

    with contextlib.suppress(ColabstageError, OSError):
        return cached.place.ask(read)
    return None


def keep_rows(request: StageRequest, cached: CachedPack, record: bytes | None) -> None:
    if record is not None and parse_rows(record, cached.manifest) is not None:
        name = rows_name(request.pack_path.name, cached.manifest)
        with atomic_path(request.pack_path.with_name(name), replaces=is_rows) as temp:
            temp.write_bytes(record)


def discard_rows(place: Place, pack: str, *, every: bool = False) -> None:
    """Remove the records of packs that are no longer in a cache under this name, if possible; or `every` one, or
    raise."""

    def discard() -> None:
        records = [*place.search(lambda name: is_rows_name(name, pack))]
        (there,) = place.look([pack]) if records and not every else [None]
        kept = None if there is None else rows_name(pack, there.manifest)
        for name in records:
            if name != kept:
                place.discard(name)
        # A killed process leaves what it was removing or copying under a name that nobody looks for.
        if isinstance(place, FolderPlace):
            sweep_orphans(place.folder, prefix=f"{pack}.", empty=place.on_drive)

    # The next call of this name tries again; after a purge nobody would.
    with contextlib.suppress(*(() if every else (ColabstageError, OSError))):
        place.ask(discard)

"""The place of a cache: a folder, on a mounted Drive for example, or a prefix in a bucket.

Both keep the same files under the same names, so a bucket that is filled from a folder by other means is a cache too.

In a bucket there is no rename that makes a file and its manifest appear together, and no lock. So what is about to be
written is noted beside it (`NAME.unfinished`), then come the file, read back and compared, and its manifest, which
makes it count. Each of them is written only where nothing is. After a kill the note shows that colabstage wrote an
object without a manifest.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from colabstage.errors import (
    ColabstageError,
    DamagedPackError,
    PackFormatError,
    SourceNotFoundError,
    TargetExistsError,
)
from colabstage.h5.manifest import Manifest, is_as_written, is_time_as_noted, parse_manifest, read_manifest
from colabstage.h5.parts import PartName, shards_beside
from colabstage.io.files import RetryPolicy, hash_block, json_text, parse_json
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import cancellation_of
from colabstage.io.redaction import show_address
from colabstage.machine.mounts import drive_root, require_answer, run_watched, silence_of
from colabstage.machine.resources import check_space
from colabstage.sources.parse import LocalSource, ObjectSource, local_source, parse_source
from colabstage.sources.remote import RemoteFacts, given_up
from colabstage.sources.retry import read_directly
from colabstage.stage.publish import (
    PREVIOUS_SUFFIX,
    PublishReport,
    check_unchanged,
    discard_version,
    manifest_to_publish,
    publish_file,
    published_before,
    sweep_leftovers_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from colabstage.io.progress import Cancellation, Progress, ProgressStep
    from colabstage.sources.buckets import StoredObject

T = TypeVar("T")

# Manifests that are read at once.
_READERS = 8


class CachedFile(NamedTuple):
    """A pack, or a shard of one, in a cache."""

    path: Path | str
    """The file: a path, or an address."""
    manifest: Manifest
    """What it was made from, and the hash of each block."""
    nbytes: int
    """Its length as it is."""
    changed_s: float
    """When it was last written, in seconds since 1970."""

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return os.fspath(self.path).rpartition("/")[2]

    @property
    def source(self) -> LocalSource | ObjectSource:
        """Return the file as a source."""
        return source_at(self.path)

    @property
    def is_whole(self) -> bool:
        """Tell whether its length is that of its manifest; nothing is hashed."""
        return self.nbytes == self.manifest.size

    @property
    def made_of(self) -> str:
        """Return the digits that all shards of one set have in common."""
        return self.manifest.shard.partition(" ")[0]


class CachePlace(Protocol):
    """Where packs are cached."""

    label: str
    """What messages call it."""

    @property
    def copies(self) -> int:
        """Return how often what is read from it takes its space on the local disk."""

    def at(self, name: str) -> Path | str:
        """Return the path or address of a file."""

    def look(self, names: Sequence[str]) -> list[CachedFile | None]:
        """Look at files; `None` for one that has no manifest, or is not there."""

    def shards(self, name: str) -> list[CachedFile]:
        """Return the shards of a pack that have a manifest, in the order of their names."""

    def files(self) -> list[CachedFile]:
        """Return all packs and shards that have a manifest, by name; their previous versions too."""

    def publish(self, file: Path, name: str, *, keep_previous: bool = True, progress: Progress) -> PublishReport[Any]:
        """Copy a finished file there, as `publish_file`."""

    def published(self, one: CachedFile) -> PublishReport[Any]:
        """Return the report on a file that was published before."""

    def discard(self, one: CachedFile, *, ours: Callable[[CachedFile], bool] | None = None) -> bool:
        """Remove a file with its manifest; return whether it is gone.

        Only one that is as it was written, and that `ours` recognises where that is given.
        """

    def check_room(self, nbytes: int, what: str) -> None:
        """Raise `NotEnoughSpaceError` where it is known that there is no room."""

    def ask(self, question: Callable[[], T]) -> T:
        """Ask something that may hang; raises `DriveDisconnectedError` or `SourceError` where nothing answers."""


def source_at(path: Path | str) -> LocalSource | ObjectSource:
    """Return the file at a path or an address as a source."""
    if isinstance(path, Path):
        return local_source(path)
    source = parse_source(path)
    assert isinstance(source, ObjectSource)
    return source


class FolderPlace(CachePlace):
    """A folder, on a mounted Drive for example."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.label = folder, str(folder)

    @property
    def copies(self) -> int:
        # A mounted Drive caches whatever is read through it on the same disk.
        return 2 if drive_root(self.folder) is not None else 1

    def at(self, name: str) -> Path:
        return self.folder / name

    def look(self, names: Sequence[str]) -> list[CachedFile | None]:
        # A folder on a dead mount counts as empty: the source may well be readable.
        if silence_of(self.folder) is not None:
            return [None] * len(names)
        return _look_at([self.folder / name for name in names])

    def shards(self, name: str) -> list[CachedFile]:
        if silence_of(self.folder) is not None:
            return []
        return [one for one in _look_at(shards_beside(self.folder / name)) if one is not None and one.manifest.shard]

    def files(self) -> list[CachedFile]:
        require_answer(self.folder)
        found = sorted((*self.folder.glob("*.h5"), *self.folder.glob(f"*.h5{PREVIOUS_SUFFIX}")))
        return [one for one in _look_at(found) if one is not None]

    def publish(self, file: Path, name: str, *, keep_previous: bool = True, progress: Progress) -> PublishReport[Any]:
        return publish_file(file, self.folder / name, keep_previous=keep_previous, progress=progress)

    def published(self, one: CachedFile) -> PublishReport[Any]:
        return published_before(self.folder / one.name, one.manifest.size)

    def discard(self, one: CachedFile, *, ours: Callable[[CachedFile], bool] | None = None) -> bool:
        path = self.folder / one.name

        def is_ours(file: Path) -> bool:
            found = look_at_file(file)
            # Its hashes last, which may read all of it.
            return found is not None and (ours is None or ours(found)) and is_as_written(file)

        gone = discard_version(path, ours=is_ours)
        if gone:
            # Uploads that were cut off take space under names of their own.
            sweep_leftovers_of(path)
        return gone

    def check_room(self, nbytes: int, what: str) -> None:
        # Of a Drive nothing tells what it has room for but the answer to writing; the figures are those of this disk.
        if drive_root(self.folder) is None:
            check_space(self.folder, nbytes, what)

    def ask(self, question: Callable[[], T]) -> T:
        return run_watched(question, self.folder)


def look_at_file(path: Path) -> CachedFile | None:
    """Return the file at a path, if it has a manifest; raises nothing."""
    try:
        manifest = read_manifest(path)
        if manifest is not None:
            found = path.stat()
            return CachedFile(path, manifest, found.st_size, found.st_mtime)
    except (OSError, ColabstageError):
        pass
    return None


def _look_at(paths: Sequence[Path]) -> list[CachedFile | None]:
    if not paths:
        return []
    with DaemonPool(_READERS, "colabstage-look") as pool:
        # Each is a round trip on a mount.
        return pool.run(look_at_file, paths)


_MANIFEST, _UNFINISHED = ".json", ".unfinished"
# Services whose addresses begin with a bucket, which somebody has to make first.
_WITH_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})


class BucketPlace(CachePlace):
    """A prefix in a bucket."""

    copies = 1

    def __init__(self, source: ObjectSource) -> None:
        """Load what speaks to the service, which is not asked yet.

        Raises:
            OptionError, MissingDependencyError: as `ObjectStore`.
        """
        self.url = source.url.rstrip("/")
        self.label = source.label
        # Imported where they are needed, here and below: they bring libraries that folders do without.
        from colabstage.sources.buckets import ObjectStore

        # One for all questions: a cache is asked a few times in hours, and nobody says when it is done with.
        self._store = ObjectStore(self.url)
        self._folder = self._store.path.rstrip("/")
        weakref.finalize(self, self._store.close).atexit = False

    def at(self, name: str) -> str:
        return f"{self.url}/{name}"

    def look(self, names: Sequence[str]) -> list[CachedFile | None]:
        return self._look(names, self._objects())

    def shards(self, name: str) -> list[CachedFile]:
        there, stem = self._objects(), Path(name).stem
        parts = {one: PartName.of(Path(one)) for one in there if one.endswith(".h5")}
        mine = [one for one, part in parts.items() if part.count and part.stem == stem]
        return [one for one in self._look(sorted(mine, key=parts.__getitem__), there) if one is not None]

    def files(self) -> list[CachedFile]:
        there = self._objects()
        names = sorted(name for name in there if name.endswith(".h5"))
        return [one for one in self._look(names, there) if one is not None]

    def publish(self, file: Path, name: str, *, keep_previous: bool = True, progress: Progress) -> PublishReport[Any]:
        """Copy a finished file there; an earlier version that colabstage wrote is removed first, and never kept.

        Raises:
            TargetExistsError: an object of that name is not one that colabstage wrote, as it is now.
            TargetNotWritableError, SourceError: the service failed.
            SourceChangedError: something wrote to the file meanwhile.
            DamagedPackError: what was read back differs from what was written.
        """
        began, cancellation = time.monotonic(), cancellation_of(progress)
        manifest, state = manifest_to_publish(file, cancellation)
        with progress.step(f"publish {name}", total=manifest.size, unit="B") as step, given_up():
            work = _Publication(self, name, manifest, cancellation)
            kept = manifest.size if work.is_there() else 0
            if kept:
                step.advance(kept)
            else:
                work.make_room()
                work.write(file, step)
            check_unchanged(file, state)
            work.finish()
        seconds = time.monotonic() - began
        return PublishReport(self.at(name), None, manifest.size, seconds, uploading=False, kept_bytes=kept)

    def published(self, one: CachedFile) -> PublishReport[Any]:
        return PublishReport(self.at(one.name), None, one.manifest.size, 0.0, uploading=False, kept_bytes=one.nbytes)

    def discard(self, one: CachedFile, *, ours: Callable[[CachedFile], bool] | None = None) -> bool:
        with given_up():
            there = self._objects()
            (now,) = self._look([one.name], there)
            if now is None:
                return one.name not in there
            if ours is not None and not ours(now):
                return False
            if not self.is_as_written(one.name, _MANIFEST, now.manifest, there):
                return False
            # The file first: a manifest alone counts for nothing, and tells whose it is.
            self.remove(one.name)
            self.remove(f"{one.name}{_MANIFEST}")
            unfinished = f"{one.name}{_UNFINISHED}"
            if unfinished in there and _is_manifest(self.content(unfinished, there)):
                self.remove(unfinished)
            return True

    def check_room(self, nbytes: int, what: str) -> None:
        """Raise nothing: a bucket has room."""

    def ask(self, question: Callable[[], T]) -> T:
        with given_up():
            return question()

    def check(self) -> None:
        """Refuse a bucket that is not there, or that refuses us.

        Raises:
            SourceNotFoundError: there is no such bucket. SourceAccessError: a login or a permission is missing.
        """
        bucket = self._folder.strip("/").partition("/")[0]
        if self._store.protocol in _WITH_BUCKETS and not self._store.exists(bucket):
            msg = f"There is no bucket '{bucket}' for the cache '{self.label}'. Make it first, or correct cache_dir=."
            raise SourceNotFoundError(msg)

    def path(self, name: str) -> str:
        """Return what the service calls a file."""
        return f"{self._folder}/{name}"

    def content(self, name: str, there: Mapping[str, StoredObject]) -> bytes | None:
        """Return all of a small object of a listing; `None` for one that is not in it, or went meanwhile."""
        return self._store.content(self.path(name), there[name].size) if name in there else None

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._store.remove(self.path(name))

    def damaged_blocks(self, name: str, manifest: Manifest, cancellation: Cancellation | None = None) -> list[int]:
        """Return the numbers of blocks whose bytes differ from a manifest, of an object as long as it says."""
        from colabstage.sources.objects import ObjectFile

        facts = RemoteFacts(show_address(self.at(name)), name, manifest.size)
        # Hashes tell more than a question after each block whether the object is still the same.
        file = ObjectFile(self._store, self.path(name), facts, owns_store=False, asks_version=False)

        def is_right(number: int) -> bool:
            if cancellation is not None:
                cancellation.check()
            offset, length = manifest.ranges[number]
            data = read_directly(file, offset, length, policy=RetryPolicy())
            return hash_block(data) == manifest.hashes[number]

        with DaemonPool(_READERS, "colabstage-compare") as pool:
            right = pool.run(is_right, range(len(manifest.hashes)), cancellation=cancellation)
        return [number for number, one in enumerate(right) if not one]

    def is_as_written(self, name: str, beside: str, manifest: Manifest, there: Mapping[str, StoredObject]) -> bool:
        """Tell whether an object is what a manifest beside it describes, by its length, and its time or its hashes."""
        found, sidecar = there.get(name), there.get(f"{name}{beside}")
        if found is None or sidecar is None or found.size != manifest.size:
            return False
        if is_time_as_noted(manifest.mtime_ns, found.mtime_ns, sidecar.mtime_ns):
            return True
        return not self.damaged_blocks(name, manifest)

    def manifest(self, name: str, beside: str, there: Mapping[str, StoredObject]) -> Manifest | None:
        """Return the manifest beside a file; `None` for none that this version reads."""
        with contextlib.suppress(PackFormatError):  # of one that a newer colabstage wrote nothing is known
            content = self.content(f"{name}{beside}", there)
            return None if content is None else parse_manifest(parse_json(content), self.at(name))
        return None

    def _look(self, names: Sequence[str], there: Mapping[str, StoredObject]) -> list[CachedFile | None]:
        def look(name: str) -> CachedFile | None:
            manifest = self.manifest(name, _MANIFEST, there) if name in there else None
            if manifest is None:
                return None
            return CachedFile(self.at(name), manifest, there[name].size, there[name].mtime_ns / 1e9)

        if not names:
            return []
        with DaemonPool(_READERS, "colabstage-look") as pool:
            return pool.run(look, names)

    def _objects(self) -> dict[str, StoredObject]:
        found = self._store.objects(self._folder)
        if not found:
            self.check()
        return found


class _Publication:
    """One file on its way to its place."""

    def __init__(self, place: BucketPlace, name: str, manifest: Manifest, cancellation: Cancellation) -> None:
        self._place, self._name, self._manifest, self._cancellation = place, name, manifest, cancellation
        self._store = place._store
        self._there = place._objects()
        self._written: StoredObject | None = None

    def is_there(self) -> bool:
        """Tell whether the very content is there already, as after a kill at the end, or from somebody else."""
        found = self._there.get(self._name)
        if found is None or found.size != self._manifest.size:
            return False
        known = [self._place.manifest(self._name, beside, self._there) for beside in (_MANIFEST, _UNFINISHED)]
        # Other hashes mean another version, which need not be read.
        if any(one is not None and one.hashes != self._manifest.hashes for one in known):
            return False
        self._written = found
        return not self._place.damaged_blocks(self._name, self._manifest, self._cancellation)

    def make_room(self) -> None:
        """Remove the version that is there, if colabstage wrote it.

        Raises:
            TargetExistsError: it did not, or the file is not as it was written.
        """
        place, there = self._place, self._there
        for beside in (_MANIFEST, _UNFINISHED):
            content = place.content(f"{self._name}{beside}", there)
            if content is not None and not _is_manifest(content):
                raise self._occupied(beside=beside, why="it is not a manifest that colabstage wrote")
        if self._name in there:
            known = [(beside, place.manifest(self._name, beside, there)) for beside in (_MANIFEST, _UNFINISHED)]
            if not any(
                one is not None and place.is_as_written(self._name, beside, one, there) for beside, one in known
            ):
                raise self._occupied(beside="", why="no manifest beside it describes it as it is now")
            place.remove(self._name)
        if f"{self._name}{_MANIFEST}" in there:
            place.remove(f"{self._name}{_MANIFEST}")

    def write(self, file: Path, step: ProgressStep) -> None:
        """Write the file, and compare what the service returns."""
        store, path = self._store, self._place.path(self._name)
        store.put_bytes(_content_of(replace(self._manifest, mtime_ns=0)), f"{path}{_UNFINISHED}")

        def advance(nbytes: int) -> None:
            self._cancellation.check()
            step.advance(nbytes)

        store.put(file, path, create=True, advance=advance)
        self._written = written = store.look(path)
        if not self._place.damaged_blocks(self._name, self._manifest, self._cancellation):
            return
        # Only what was written here a moment ago.
        if store.look(path) == written:
            store.remove(path)
        msg = f"What was written to '{show_address(self._place.at(self._name))}' reads back differently. Try again."
        raise DamagedPackError(msg)

    def finish(self) -> None:
        """Write the manifest, with which the file counts.

        Raises:
            TargetExistsError: somebody else has published another version meanwhile.
        """
        path = f"{self._place.path(self._name)}{_MANIFEST}"
        # The time as listings give it, which need not be what the service says of one object.
        listed, mtime_ns = self._place._objects().get(self._name), 0
        if listed is not None and self._written is not None and listed.version == self._written.version:
            mtime_ns = listed.mtime_ns
        content = _content_of(replace(self._manifest, mtime_ns=mtime_ns))
        with contextlib.suppress(TargetExistsError):  # who was faster is compared with
            self._store.put_bytes(content, path, create=True)
        there = self._store.content(path)
        if there != content:
            known = None if there is None else parse_manifest(parse_json(there), path)
            if known is None or known.hashes != self._manifest.hashes:
                raise self._occupied(beside=_MANIFEST, why="another process wrote it meanwhile")
            # The same pack, made of another state of the source.
            self._store.put_bytes(content, path)
        self._place.remove(f"{self._name}{_UNFINISHED}")

    def _occupied(self, *, beside: str, why: str) -> TargetExistsError:
        shown = show_address(self._place.at(f"{self._name}{beside}"))
        return TargetExistsError(f"'{shown}' exists, and {why}. Rename or delete it, or choose another cache_dir=.")


def _content_of(manifest: Manifest) -> bytes:
    return json_text(asdict(manifest)).encode()


def _is_manifest(content: bytes | None) -> bool:
    raw = None if content is None else parse_json(content)
    return isinstance(raw, dict) and {"version", "block_bytes", "hashes"} <= raw.keys()

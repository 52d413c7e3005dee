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
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from colabstage.errors import (
    ColabstageError,
    DamagedPackError,
    PackFormatError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
    TargetNotWritableError,
)
from colabstage.h5.manifest import (
    Manifest,
    is_as_written,
    is_time_as_noted,
    manifest_of_bytes,
    parse_manifest,
    read_manifest,
)
from colabstage.h5.parts import PartName
from colabstage.io.files import RetryPolicy, hash_block, json_text, parse_json
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import cancellation_of
from colabstage.io.redaction import show_address
from colabstage.machine.mounts import drive_root, require_answer, run_watched
from colabstage.machine.resources import check_space
from colabstage.sources.parse import LocalSource, ObjectSource, local_source, parse_source
from colabstage.sources.remote import RemoteFacts, given_up
from colabstage.sources.retry import read_directly
from colabstage.stage.publish import (
    PREVIOUS_SUFFIX,
    PublishReport,
    check_is_file,
    check_unchanged,
    discard_version,
    file_state,
    manifest_of_version,
    publish_file,
    published_before,
    sweep_leftovers_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.io.progress import Cancellation, Progress, ProgressStep
    from colabstage.sources.buckets import StoredObject

Item = TypeVar("Item")
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


class CachePlace(ABC):
    """Where packs are cached: a folder, or a prefix in a bucket."""

    label: str
    """What messages call it."""
    copies = 1
    """How often what is read from it takes its space on the local disk."""

    @abstractmethod
    def at(self, name: str) -> Path | str:
        """Return the path or address of a file."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all files, in order."""

    @abstractmethod
    def look(self, names: Sequence[str]) -> list[CachedFile | None]:
        """Look at files; `None` for one that has no manifest, or does not exist."""

    @abstractmethod
    def publish(self, file: Path, name: str, *, keep_previous: bool = True, progress: Progress) -> PublishReport[Any]:
        """Copy a finished file there, as `publish_file`."""

    @abstractmethod
    def published(self, one: CachedFile) -> PublishReport[Any]:
        """Return the report on a file that was published before."""

    @abstractmethod
    def discard(self, one: CachedFile, *, ours: Callable[[CachedFile], bool] = lambda _: True) -> bool:
        """Remove a file that is as it was written, and that `ours` recognises, with its manifest; return whether it is
        gone."""

    @abstractmethod
    def check_room(self, nbytes: int, what: str) -> None:
        """Raise `NotEnoughSpaceError` where it is known that there is no room."""

    @abstractmethod
    def ask(self, question: Callable[[], T]) -> T:
        """Ask something that may hang; raises `DriveDisconnectedError` or `SourceError` where nothing answers."""

    def shards(self, name: str) -> list[CachedFile]:
        """Return the shards of a pack that have a manifest, in order."""
        stem = Path(name).stem
        parts = {one: PartName.of(Path(one)) for one in self.names() if one.endswith(".h5")}
        mine = sorted((one for one, part in parts.items() if part.count and part.stem == stem), key=parts.__getitem__)
        return [one for one in self.look(mine) if one is not None and one.manifest.shard]

    def files(self) -> list[CachedFile]:
        """Return all packs and shards that have a manifest, by name; their previous versions too."""
        packs = [name for name in self.names() if name.removesuffix(PREVIOUS_SUFFIX).endswith(".h5")]
        return [one for one in self.look(packs) if one is not None]


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
        # A mounted Drive caches whatever is read through it on the same disk.
        self.copies = 1 if drive_root(folder) is None else 2

    def at(self, name: str) -> Path:
        return self.folder / name

    def names(self) -> list[str]:
        require_answer(self.folder)
        try:
            return sorted(os.listdir(self.folder))  # noqa: PTH208 - names alone
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            # An unreadable folder is not an empty one: purging would report what is in it as removed.
            msg = f"'{self.folder}' cannot be listed: {error.strerror}. Correct its permissions, or mount it again."
            raise SourceReadError(msg) from error

    def look(self, names: Sequence[str]) -> list[CachedFile | None]:
        require_answer(self.folder)
        return _each(look_at_file, [self.folder / name for name in names])

    def publish(self, file: Path, name: str, *, keep_previous: bool = True, progress: Progress) -> PublishReport[Any]:
        return publish_file(file, self.folder / name, keep_previous=keep_previous, progress=progress)

    def published(self, one: CachedFile) -> PublishReport[Any]:
        return published_before(self.folder / one.name, one.manifest.size)

    def discard(self, one: CachedFile, *, ours: Callable[[CachedFile], bool] = lambda _: True) -> bool:
        path = self.folder / one.name

        def is_ours(file: Path) -> bool:
            found = look_at_file(file)
            # Its hashes last, which may read all of it.
            return found is not None and ours(found) and is_as_written(file)

        gone = discard_version(path, ours=is_ours)
        if gone:
            # Uploads that were cut off take space under names of their own.
            sweep_leftovers_of(path)
        return gone

    def check_room(self, nbytes: int, what: str) -> None:
        # A mounted Drive does not report its free space; only a failed write tells.
        if drive_root(self.folder) is None:
            check_space(self.folder, nbytes, what)

    def ask(self, question: Callable[[], T]) -> T:
        return run_watched(question, self.folder)


def look_at_file(path: Path) -> CachedFile | None:
    """Return the file at a path, if it has a manifest; raises nothing."""
    with contextlib.suppress(OSError, ColabstageError):
        manifest = read_manifest(path)
        if manifest is not None:
            found = path.stat()
            return CachedFile(path, manifest, found.st_size, found.st_mtime)
    return None


def _each(look: Callable[[Item], T], items: Sequence[Item], cancellation: Cancellation | None = None) -> list[T]:
    """Look at several things at once: each is a round trip."""
    if not items:
        return []
    with DaemonPool(_READERS, "colabstage-look") as pool:
        return pool.run(look, items, cancellation=cancellation)


_MANIFEST, _UNFINISHED = ".json", ".unfinished"
# Services whose addresses begin with a bucket, which somebody has to make first.
_WITH_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
Objects = Mapping[str, "StoredObject"]


class BucketPlace(CachePlace):
    """A prefix in a bucket."""

    def __init__(self, source: ObjectSource) -> None:
        """Load what speaks to the service, which is not asked yet."""
        self.url = source.url.rstrip("/")
        self.label = source.label
        # Imported where they are needed, here and below: they bring libraries that folders do without.
        from colabstage.sources.buckets import ObjectStore

        # One for all questions, since a cache is asked a few times in hours and never closed.
        self._store = ObjectStore(self.url)
        self._folder = self._store.path.rstrip("/")
        weakref.finalize(self, self._store.close).atexit = False

    def at(self, name: str) -> str:
        return f"{self.url}/{name}"

    def names(self) -> list[str]:
        return sorted(self._objects())

    def look(self, names: Sequence[str]) -> list[CachedFile | None]:
        return self._look(names, self._objects()) if names else []

    def _look(self, names: Sequence[str], there: Objects) -> list[CachedFile | None]:
        def look(name: str) -> CachedFile | None:
            manifest = self._manifest(name, _MANIFEST, there) if name in there else None
            if manifest is None:
                return None
            return CachedFile(self.at(name), manifest, there[name].size, there[name].mtime_ns / 1e9)

        return _each(look, names)

    def publish(self, file: Path, name: str, *, keep_previous: bool = True, progress: Progress) -> PublishReport[Any]:
        """Copy a finished file there; an earlier version that colabstage wrote is removed first, and never kept."""
        began, cancellation = time.monotonic(), cancellation_of(progress)
        check_is_file(file)
        state = file_state(file)
        manifest = manifest_of_version(file, state[1]) or manifest_of_bytes(file, cancellation)
        with progress.step(f"publish {name}", total=manifest.size, unit="B") as step, given_up():
            there = self._objects()
            kept = manifest.size if self._holds(name, manifest, there, cancellation) else 0
            written = there.get(name)
            if kept:
                step.advance(kept)
            else:
                self._check_ours(name, there)
                written = self._write(file, name, manifest, there, step, cancellation)
            check_unchanged(file, state)
            self._finish(name, manifest, written)
        seconds = time.monotonic() - began
        return PublishReport(self.at(name), None, manifest.size, seconds, uploading=False, kept_bytes=kept)

    def published(self, one: CachedFile) -> PublishReport[Any]:
        return PublishReport(self.at(one.name), None, one.manifest.size, 0.0, uploading=False, kept_bytes=one.nbytes)

    def discard(self, one: CachedFile, *, ours: Callable[[CachedFile], bool] = lambda _: True) -> bool:
        with given_up():
            there = self._objects()
            (now,) = self._look([one.name], there)
            if now is None:
                return one.name not in there
            if not ours(now) or not self._is_as_written(one.name, _MANIFEST, now.manifest, there):
                return False
            # The file first: a manifest alone counts for nothing, and tells whose it is.
            self._remove(one.name)
            self._remove(f"{one.name}{_MANIFEST}")
            if _is_manifest(self._content(f"{one.name}{_UNFINISHED}", there)):
                self._remove(f"{one.name}{_UNFINISHED}")
            return True

    def check_room(self, nbytes: int, what: str) -> None:
        """Raise nothing: a bucket has room."""

    def ask(self, question: Callable[[], T]) -> T:
        with given_up():
            return question()

    def _holds(self, name: str, manifest: Manifest, there: Objects, cancellation: Cancellation) -> bool:
        """Tell whether the very content is there already, as after a kill at the end, or from somebody else."""
        found = there.get(name)
        known = [self._manifest(name, beside, there) for beside in (_MANIFEST, _UNFINISHED)]
        # Other hashes mean another version, which need not be read.
        if found is None or found.size != manifest.size or any(one and one.hashes != manifest.hashes for one in known):
            return False
        return not self._damaged_blocks(name, manifest, cancellation)

    def _check_ours(self, name: str, there: Objects) -> None:
        """Refuse to replace what colabstage did not write."""
        manifests = {beside: self._content(f"{name}{beside}", there) for beside in (_MANIFEST, _UNFINISHED)}
        for beside, content in manifests.items():
            if content is not None and not _is_manifest(content):
                raise self._occupied(name + beside, "it is not a manifest that colabstage wrote")
        if name in there:
            known = {beside: self._manifest(name, beside, there) for beside in manifests}
            if not any(one and self._is_as_written(name, beside, one, there) for beside, one in known.items()):
                raise self._occupied(name, "no manifest beside it describes it as it is now")

    def _write(  # noqa: PLR0917 - what one upload needs, each named once
        self,
        file: Path,
        name: str,
        manifest: Manifest,
        there: Objects,
        step: ProgressStep,
        cancellation: Cancellation,
    ) -> StoredObject | None:
        """Write the file in place of an earlier version, and compare what the service returns; return the object."""
        store, path = self._store, self._path(name)
        earlier = self._manifest(name, _MANIFEST, there)
        store.put_bytes(_content_of(replace(manifest, mtime_ns=0)), f"{path}{_UNFINISHED}")

        def advance(nbytes: int) -> None:
            cancellation.check()
            step.advance(nbytes)

        if not (name in there and earlier and self._replace(file, name, manifest, earlier, advance)):
            # The file first: a manifest alone counts for nothing, and tells whose it was.
            for old in (name, f"{name}{_MANIFEST}"):
                if old in there:
                    self._remove(old)
            store.put(file, path, create=True, advance=advance)
        written = store.look(path)
        if not self._damaged_blocks(name, manifest, cancellation):
            return written
        # Only what was written here a moment ago.
        if store.look(path) == written:
            store.remove(path)
        msg = f"What was written to '{show_address(self.at(name))}' reads back differently. Try again."
        raise DamagedPackError(msg)

    def _replace(
        self, file: Path, name: str, manifest: Manifest, earlier: Manifest, advance: Callable[[int], None]
    ) -> bool:
        """Have the service copy the blocks that an earlier version has too; return whether it did, and all is there."""
        from colabstage.sources.server_copy import Piece, join_pieces, replace_object

        if not self._store.copies_parts:
            return False
        there = {offset: digest for (offset, _), digest in zip(earlier.ranges, earlier.hashes, strict=True)}
        known = {digest: offset for offset, digest in there.items()}
        # Of content that is there several times, that of the same place, so that long pieces are copied.
        pieces = join_pieces(
            Piece(length, offset if there.get(offset) == digest else known.get(digest))
            for (offset, length), digest in zip(manifest.ranges, manifest.hashes, strict=True)
        )
        if not pieces:
            return False
        try:
            replace_object(self._store, self._path(name), file, pieces, advance)
        except TargetNotWritableError:
            return False
        # Until here it describes what is there.
        self._remove(f"{name}{_MANIFEST}")
        return True

    def _finish(self, name: str, manifest: Manifest, written: StoredObject | None) -> None:
        """Write the manifest, with which the file counts; raises `TargetExistsError` where somebody else was faster."""
        path = self._path(f"{name}{_MANIFEST}")
        # The time as listings give it, which need not be what the service says of one object.
        listed, mtime_ns = self._objects().get(name), 0
        if listed is not None and written is not None and listed.version == written.version:
            mtime_ns = listed.mtime_ns
        content = _content_of(replace(manifest, mtime_ns=mtime_ns))
        with contextlib.suppress(TargetExistsError):  # what another process wrote is compared
            self._store.put_bytes(content, path, create=True)
        there = self._store.content(path)
        if there != content:
            known = None if there is None else parse_manifest(parse_json(there), path)
            if known is None or known.hashes != manifest.hashes:
                raise self._occupied(name + _MANIFEST, "another process wrote it meanwhile")
            # The same pack, made of another state of the source.
            self._store.put_bytes(content, path)
        self._remove(f"{name}{_UNFINISHED}")

    def _occupied(self, name: str, why: str) -> TargetExistsError:
        shown = show_address(self.at(name))
        return TargetExistsError(f"'{shown}' exists, and {why}. Rename or delete it, or choose another cache_dir=.")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _objects(self) -> Objects:
        found = self._store.objects(self._folder)
        bucket = self._folder.strip("/").partition("/")[0]
        if not found and self._store.protocol in _WITH_BUCKETS and not self._store.exists(bucket):
            msg = f"There is no bucket '{bucket}' for the cache '{self.label}'. Make it first, or correct cache_dir=."
            raise SourceNotFoundError(msg)
        return found

    def _content(self, name: str, there: Objects) -> bytes | None:
        """Return all of a small object of a listing; `None` for one that is not in it, or went meanwhile."""
        return self._store.content(self._path(name), there[name].size) if name in there else None

    def _remove(self, name: str) -> None:
        self._store.remove(self._path(name))

    def _manifest(self, name: str, beside: str, there: Objects) -> Manifest | None:
        """Return the manifest beside a file; `None` for none that this version reads."""
        with contextlib.suppress(PackFormatError):
            content = self._content(f"{name}{beside}", there)
            return None if content is None else parse_manifest(parse_json(content), self.at(name))
        return None

    def _is_as_written(self, name: str, beside: str, manifest: Manifest, there: Objects) -> bool:
        """Tell whether an object is what a manifest beside it describes, by its length, and its time or its hashes."""
        found, sidecar = there.get(name), there.get(f"{name}{beside}")
        if found is None or sidecar is None or found.size != manifest.size:
            return False
        if is_time_as_noted(manifest.mtime_ns, found.mtime_ns, sidecar.mtime_ns):
            return True
        return not self._damaged_blocks(name, manifest)

    def _damaged_blocks(self, name: str, manifest: Manifest, cancellation: Cancellation | None = None) -> list[int]:
        """Return the numbers of blocks whose bytes differ from a manifest, of an object as long as it says."""
        from colabstage.sources.objects import ObjectFile

        facts = RemoteFacts(show_address(self.at(name)), name, manifest.size)
        # Hashes tell more than a question after each block whether the object is still the same.
        file = ObjectFile(self._store, self._path(name), facts, owns_store=False, asks_version=False)

        def digest(block: tuple[int, int]) -> str:
            if cancellation is not None:
                cancellation.check()
            return hash_block(read_directly(file, *block, policy=RetryPolicy()))

        digests = _each(digest, manifest.ranges, cancellation)
        return [number for number, one in enumerate(digests) if one != manifest.hashes[number]]


def _content_of(manifest: Manifest) -> bytes:
    return json_text(asdict(manifest)).encode()


def _is_manifest(content: bytes | None) -> bool:
    raw = None if content is None else parse_json(content)
    return isinstance(raw, dict) and {"version", "block_bytes", "hashes"} <= raw.keys()

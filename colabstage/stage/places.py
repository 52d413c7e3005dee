"""Where packs and checkpoints are kept: a folder, on a mounted Drive for example, or a prefix in a bucket.

Each file has its manifest beside it, `NAME.json`, without which it does not count. Both kinds of places keep the same
files under the same names, so a bucket that is filled from a folder by other means is a cache too. A new version comes
in four steps, each of which leaves one complete version and the evidence of what colabstage wrote. In a folder the file
has been written beside its place, read back and compared before.

1. `NAME.unfinished` takes its manifest: the note of what is coming.
2. An earlier version that is as it was written makes room: it becomes `NAME.previous`, in a bucket it is removed.
3. The file gets its name, only where nothing is; in a bucket it is read back.
4. The note becomes its manifest.

No lock reaches all machines that share a place. So each step changes only what it was decided on: in a bucket by the
service's conditions, in a folder by renames to names that are free. A run that was halted at any point, and then finds
another one's file, leaves that there and is refused; a file with the same content is as good as its own. If an earlier
version has made room in a folder, and its successor does not come, it gets its name back.
"""

from __future__ import annotations

import contextlib
import os
import stat
import weakref
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from colabstage.errors import (
    DamagedPackError,
    PackFormatError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
    TargetNotWritableError,
)
from colabstage.h5.manifest import Manifest, begins_as_manifest, is_manifest, is_time_as_noted, parse_manifest
from colabstage.h5.parts import PartName
from colabstage.io.files import (
    RetryPolicy,
    file_state,
    json_text,
    local_lock,
    lock_for,
    make_folder,
    parse_json,
    typed_write_errors,
)
from colabstage.io.pipeline import run_each
from colabstage.io.units import show_address
from colabstage.io.workspace import (
    among_others,
    atomic_path,
    disk_use,
    find_owned,
    is_made_here,
    is_own,
    move_vouched,
    open_workspace,
    put_file,
    remove_own,
    remove_vouched,
    shortened,
    sweep_temporaries,
    sync_file,
    temp_beside,
)
from colabstage.machine.mounts import drive_root, require_answer, run_watched, silence_of
from colabstage.machine.resources import check_space, usable_cores
from colabstage.sources.arriving import copy_file
from colabstage.sources.parse import LocalSource, ObjectSource, local_source, parse_source
from colabstage.sources.remote import Checksum, RemoteFacts, RemoteFile, StoredFile, given_up, read_through
from colabstage.sources.remote_files import remote_opener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from colabstage.io.progress import Cancellation, ProgressStep

T = TypeVar("T")

PREVIOUS_SUFFIX = ".previous"
MANIFEST_SUFFIX, UNFINISHED_SUFFIX = ".json", ".unfinished"
_NOTES = (MANIFEST_SUFFIX, UNFINISHED_SUFFIX)
# Manifests that are read at once.
_READERS = 8
# How long another process of this machine may take to put a file in its place.
_TURN_S = 60.0
_WRITTEN_MEANWHILE = "another process wrote it meanwhile"
# How often to write a manifest that others replace at the same time.
_TRIES = 8
_NO_MANIFEST = "is not a manifest that colabstage wrote, which has to go there"
# Services whose addresses begin with a bucket, which somebody has to make first.
_WITH_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})


class Note(NamedTuple):
    """A small file beside another one, which should hold a manifest."""

    entry: StoredFile
    content: bytes | None

    @property
    def manifest(self) -> Manifest | None:
        """Return the manifest; `None` for none that this version reads."""
        return read_note(self.content, "")

    @property
    def is_ours(self) -> bool:
        """Return whether colabstage wrote it: a manifest of any version, or the first part of one."""
        return self.entry.ours and begins_as_manifest(self.content)


class Present(NamedTuple):
    """A file of a place and the notes beside it at this moment; any of them may be missing."""

    name: str
    entry: StoredFile | None
    notes: Mapping[str, Note]

    @property
    def manifest(self) -> Manifest | None:
        return self.notes[MANIFEST_SUFFIX].manifest if MANIFEST_SUFFIX in self.notes else None

    @property
    def our_notes(self) -> dict[str, StoredFile]:
        """Return the notes that colabstage wrote, by name."""
        return {self.name + end: note.entry for end, note in self.notes.items() if note.is_ours}


def _source_of(file: Path | str) -> LocalSource | ObjectSource:
    source = local_source(file) if isinstance(file, Path) else parse_source(file)
    assert isinstance(source, LocalSource | ObjectSource)
    return source


class CachedFile(NamedTuple):
    path: Path | str
    manifest: Manifest
    nbytes: int
    """Its actual length."""
    changed_s: float
    """When it was last written, in seconds since 1970."""

    @property
    def name(self) -> str:
        return os.fspath(self.path).rpartition("/")[2]

    @property
    def source(self) -> LocalSource | ObjectSource:
        return _source_of(self.path)

    @property
    def is_whole(self) -> bool:
        """Return whether its length is that in its manifest; nothing is hashed."""
        return self.nbytes == self.manifest.size

    @property
    def made_of(self) -> str:
        """Return the digits that all shards of one set share."""
        return self.manifest.shard.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Publication:
    """A finished file on its way into a place."""

    file: Path
    name: str
    manifest: Manifest
    state: tuple[int, ...]
    step: ProgressStep
    cancellation: Cancellation
    made: Path | None = None
    """Its verified copy, which is renamed into the place; `None` where the file itself is sent."""

    def check_unchanged(self) -> None:
        """Refuse a file that was written to since its state was taken: its copy would be a mixture."""
        with contextlib.suppress(OSError):
            if file_state(self.file) == self.state:
                return
        msg = (
            f"'{self.file}' changed while it was being published, so its copy would be a mixture. Nothing was "
            "replaced. Publish it when it is finished and closed; save a checkpoint under another name and rename it."
        )
        raise SourceChangedError(msg)


def read_note(content: bytes | None, label: str) -> Manifest | None:
    """Return the manifest that a file holds; `None` for none that this version reads."""
    with contextlib.suppress(PackFormatError):
        return None if content is None else parse_manifest(parse_json(content), label)
    return None


def _content_of(manifest: Manifest) -> bytes:
    return json_text(asdict(manifest)).encode()


def _has_blocks(open_it: Callable[[], RemoteFile], manifest: Manifest, cancellation: Cancellation | None) -> bool:
    with given_up(), contextlib.closing(open_it()) as opened:
        # Hashes tell more than a question after each block whether the content is still the same.
        file = opened.without_version_check()
        if file.facts.size not in (None, manifest.size):  # replaced since it was listed
            return False

        def digest(block: tuple[int, int]) -> str:
            return Checksum("xxh3_64", "").digest_of(read_through(file, *block, policy=RetryPolicy()))

        threads = max(file.facts.connections, usable_cores())
        return tuple(run_each(digest, manifest.ranges, threads, cancellation)) == manifest.hashes


class Place(ABC):
    """Where files are kept. The kinds of place differ only in the methods that they override."""

    copies = 1
    """How many times a file that is read from it takes its size on the local disk."""
    keeps_previous = False
    """Whether an earlier version stays, under another name."""

    def __init__(self, root: Path | str, label: str) -> None:
        self._root, self.label = root, label
        self._compared: dict[tuple[str, StoredFile, tuple[str, ...]], bool] = {}

    def at(self, name: str) -> Path | str:
        return self._root / name if isinstance(self._root, Path) else f"{self._root}/{name}"

    def entries(self, names: Sequence[str]) -> dict[str, StoredFile]:
        """Return what is there now under these names, by name."""
        return self.search({*names}.__contains__)

    @abstractmethod
    def search(self, fits: Callable[[str], object]) -> dict[str, StoredFile]:
        """Return what is there now under names that fit, by name; on a Drive, a look at everything takes long."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the whole content of a small file; `None` if it does not exist."""

    @abstractmethod
    def write(self, name: str, content: bytes, *, create: bool, version: str = "") -> None:
        """Write a manifest so that readers see all of it or nothing; with `create`, only if nothing has the name, in a
        bucket with `version` only over that one."""

    @abstractmethod
    def remove(self, name: str, entry: StoredFile) -> None:
        """Remove a file that this module has checked to be ours; a missing file is fine, another one is refused."""

    def ask(self, question: Callable[[], T]) -> T:
        """Call a function that may hang; raises `DriveDisconnectedError` or `SourceError` if nothing answers."""
        with given_up():
            return question()

    @abstractmethod
    def bring(self, new: Publication, there: Present) -> int:
        """Put a new version in place of an existing one, if that is ours; return how many of its bytes an interrupted
        run has left. `there`: what a look has shown; each look at a bucket lists it."""

    @abstractmethod
    def send(self, new: Publication, there: Present, note: bytes) -> StoredFile:
        """Have an earlier version, which was checked, make room, and give the new one its name; return what has the
        name then. `note`: what speaks for it."""

    def sweep(self, name: str) -> None:  # noqa: B027 - a bucket has nothing unfinished
        """Remove what dead runs left of a file, its previous version and their manifests."""

    def look(self, names: Sequence[str]) -> list[CachedFile | None]:
        """Look up files; `None` for one that has no manifest, or does not exist."""
        return [self._cached(one) for one in self._present(names, (MANIFEST_SUFFIX,))]

    def _cached(self, one: Present) -> CachedFile | None:
        if one.entry is None or (manifest := one.manifest) is None:
            return None
        return CachedFile(self.at(one.name), manifest, one.entry.size, one.entry.mtime_ns / 1e9)

    def shards(self, name: str) -> list[CachedFile]:
        """Return the shards of a pack that have a manifest, in order."""
        stem = Path(name).stem
        mine = self.search(lambda one: (part := PartName.of(Path(one))).count and part.stem == stem)
        shards = sorted((one for one in mine if one.endswith(".h5")), key=lambda one: PartName.of(Path(one)))
        return [one for one in self.look(shards) if one is not None and one.manifest.shard]

    def files(self) -> list[CachedFile]:
        """Return all packs and shards that have a manifest, by name; their previous versions too."""
        packs = self.search(lambda name: name.removesuffix(PREVIOUS_SUFFIX).endswith(".h5"))
        return [one for one in self.look([*packs]) if one is not None]

    def put(self, new: Publication) -> int:
        """Put a finished file in place of an earlier version; return how many of its bytes were already there.

        Raises:
            TargetExistsError: the existing file is not an unchanged version that colabstage wrote.
        """
        with given_up():
            there = self._now(new.name)
            if self._adopt(new, there):
                new.step.advance(new.manifest.size)
                return new.manifest.size
            return self.bring(new, there)

    def discard(self, name: str, *, ours: Callable[[CachedFile], bool] = lambda _: True) -> bool:
        """Remove an unchanged file that `ours` recognises, with its manifest; return whether it is gone."""
        with given_up():
            there = self._now(name)
            now, is_gone = self._cached(there), there.entry is None
            if there.entry is not None and now is not None and ours(now) and self._written(there) is not None:
                # The file first: a manifest alone counts for nothing, but says whose file it was.
                self.remove(name, there.entry)
                for one, entry in there.our_notes.items():
                    self.remove(one, entry)
                is_gone = True
            if is_gone:
                # Interrupted uploads take space under names of their own.
                self.sweep(name)
            return is_gone

    def _present(self, names: Sequence[str], notes: Sequence[str] = _NOTES) -> list[Present]:
        there = self.entries([name + end for name in names for end in ("", *notes)]) if names else {}

        def look(name: str) -> Present:
            found = {end: Note(there[name + end], self.read(name + end)) for end in notes if name + end in there}
            # One of ours that cannot be read has gone since it was listed.
            left = {end: note for end, note in found.items() if note.content is not None or not note.entry.ours}
            return Present(name, there.get(name), left)

        return run_each(look, names, _READERS)

    def _now(self, name: str) -> Present:
        return self._present([name])[0]

    def _check(self, found: Sequence[Present]) -> None:
        """Refuse to replace anything but an unchanged version that colabstage wrote, or its manifest. `found`: the
        file, and a previous version that makes room for it."""
        for one in found if found[0].entry is not None else found[:1]:
            for end, note in one.notes.items():
                if not note.is_ours:
                    raise self.occupied(one.name + end, _NO_MANIFEST)
            if one.entry is not None and self._written(one) is None:
                why = "no manifest beside it describes it as it is now: it is damaged, or something else wrote it"
                raise self.occupied(one.name, why if one.entry.ours else "is a link, a folder, or somebody else's")

    def occupied(self, name: str, why: str) -> TargetExistsError:
        shown = show_address(os.fspath(self.at(name)))
        remedy = "Rename or delete it, then try again; or choose another place."
        return TargetExistsError(f"'{shown}' exists, and {why}. {remedy}")

    def _written(self, there: Present) -> Manifest | None:
        """Return the manifest that describes the present file, by its length, and its time or hashes; `None` if the
        file is not as colabstage wrote it."""
        entry = there.entry
        for note in there.notes.values() if entry is not None and entry.ours else ():
            manifest = note.manifest
            if entry is None or manifest is None or entry.size != manifest.size or not note.entry.ours:
                continue
            is_noted = is_time_as_noted(manifest.mtime_ns, entry.mtime_ns, note.entry.mtime_ns)
            if is_noted or self._has_content(there.name, entry, manifest):
                return replace(manifest, mtime_ns=entry.mtime_ns)
        return None

    def _has_content(
        self, name: str, entry: StoredFile, manifest: Manifest, cancellation: Cancellation | None = None
    ) -> bool:
        """Compare each block of a file. Called before the work, and again right before the file is replaced."""
        if entry.size != manifest.size:
            return False
        asked = name, entry, manifest.hashes
        if asked not in self._compared:
            try:
                self._compared[asked] = _has_blocks(self._opener(name, entry), manifest, cancellation)
            except (SourceNotFoundError, SourceChangedError):  # removed or replaced meanwhile
                return False
        return self._compared[asked]

    def _opener(self, name: str, entry: StoredFile) -> Callable[[], RemoteFile]:
        return remote_opener(_source_of(self.at(name)))

    def _adopt(self, new: Publication, there: Present) -> bool:
        """Return whether exactly this content is already there, as after a kill at the end; then it has its
        manifest."""
        entry, known = there.entry, there.manifest
        # Other hashes mean another version, which need not be read.
        is_other = known is not None and known.size == new.manifest.size and known.hashes != new.manifest.hashes
        if entry is None or not entry.ours or is_other:
            return False
        if not self._has_content(new.name, entry, new.manifest, new.cancellation):
            return False
        new.check_unchanged()
        beside = there.notes.get(MANIFEST_SUFFIX)
        note = self._vouch(new.name, new.manifest, entry, beside).notes.get(UNFINISHED_SUFFIX)
        # Any other note may be of a run that is about to put something else there.
        if note is not None and note.manifest is not None and note.manifest.hashes == new.manifest.hashes:
            self._withdraw(new.name + UNFINISHED_SUFFIX, note, note.content)
        return True

    def _exchange(self, new: Publication, there: Present) -> None:
        """Put a new version in place of an existing one, if that is ours."""
        name, note, described = new.name, new.name + UNFINISHED_SUFFIX, self._written(there)
        content = _content_of(replace(new.manifest, mtime_ns=0 if new.made is None else new.made.stat().st_mtime_ns))
        known = there.manifest
        if there.entry is not None and described is not None and (known is None or known.hashes != described.hashes):
            # A run died right before its end, and its note, which is about to be replaced, is the only evidence.
            there = self._vouch(name, described, there.entry, there.notes.get(MANIFEST_SUFFIX))
        self.write(note, content, create=False)
        try:
            now = self._vouch(name, new.manifest, self.send(new, there, content), None)
        except BaseException:
            now = self._now(name)
            if not self._adopt(new, now):
                # Nothing under this name is of this run, so its note must not speak for it.
                self._withdraw(note, now.notes.get(UNFINISHED_SUFFIX), content)
                raise
        else:
            self._withdraw(note, now.notes.get(UNFINISHED_SUFFIX), content)

    def _vouch(self, name: str, manifest: Manifest, entry: StoredFile, note: Note | None) -> Present:
        """Write the manifest, with which a file counts, and return what is there then; raises `TargetExistsError` if
        another one has its name. `note`: what has that name, as far as known."""
        beside = name + MANIFEST_SUFFIX
        # Between any two requests another run may replace the file, or write the manifest of its own.
        for _ in range(_TRIES):
            content = _content_of(replace(manifest, mtime_ns=entry.mtime_ns))
            if note is not None and not note.is_ours:
                raise self.occupied(beside, _NO_MANIFEST)
            if note is None or note.content != content:
                with contextlib.suppress(TargetExistsError):
                    self.write(beside, content, create=note is None, version="" if note is None else note.entry.version)
            there = self._now(name)
            note = there.notes.get(MANIFEST_SUFFIX)
            if there.entry == entry and note is not None and note.content == content:
                return there
            if there.entry != entry:
                self._withdraw(beside, note, content)
                if there.entry is None or not self._has_content(name, there.entry, manifest):
                    break
                entry = there.entry
        raise self.occupied(name, _WRITTEN_MEANWHILE)

    def _withdraw(self, name: str, note: Note | None, content: bytes | None) -> None:
        """Remove a note of this run, unless another run's has taken its place."""
        if note is not None and note.content == content:
            # Where nothing may be removed, it says the same as the manifest.
            with contextlib.suppress(TargetExistsError, TargetNotWritableError):
                self.remove(name, note.entry)


class FolderPlace(Place):
    keeps_previous = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, str(folder))
        self.folder = folder
        # Removed files continue to take space in Drive's trash, and its client caches on the local disk what is read.
        self.on_drive = drive_root(folder) is not None
        self.copies = 2 if self.on_drive else 1

    def entries(self, names: Sequence[str]) -> dict[str, StoredFile]:
        return {name: entry for name in names if (entry := self._entry(name))}

    def search(self, fits: Callable[[str], object]) -> dict[str, StoredFile]:
        require_answer(self.folder)
        try:
            return self.entries(sorted(filter(fits, os.listdir(self.folder))))  # noqa: PTH208 - names alone
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            # An unreadable folder is not an empty one: purging would report its files as removed.
            msg = f"'{self.folder}' cannot be listed: {error.strerror}. Correct its permissions, or mount it again."
            raise SourceReadError(msg) from error

    def _entry(self, name: str) -> StoredFile | None:
        path = self.folder / name
        try:
            found = path.lstat()
            ours = stat.S_ISREG(found.st_mode) and is_made_here(path)
            # The file behind a link can be read; the link itself is somebody's decision, and not ours to replace.
            if stat.S_ISLNK(found.st_mode):
                with contextlib.suppress(OSError):
                    found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        version = f"{found.st_dev} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"
        return StoredFile(found.st_size, found.st_mtime_ns, version, ours)

    def read(self, name: str) -> bytes | None:
        path = self.folder / name
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Reading a pipe or a device might never end.
            return path.read_bytes() if path.is_file() else None
        return None

    def write(self, name: str, content: bytes, *, create: bool, version: str = "") -> None:
        path = self.folder / name
        if not create:
            with atomic_path(path, replaces=is_manifest) as temp:
                temp.write_bytes(content)
            return
        # The note becomes the manifest, so that a full disk has room for this, unless it is another run's.
        made = path.with_suffix(UNFINISHED_SUFFIX)
        if self.read(made.name) != content:
            made = temp_beside(path)
            made.write_bytes(content)
            sync_file(made)
        try:
            move_vouched(made, path)
        finally:
            if is_own(made):
                remove_own(made)

    def remove(self, name: str, entry: StoredFile) -> None:
        now = self._entry(name)
        if now is not None and now[:2] != entry[:2]:
            raise self.occupied(name, _WRITTEN_MEANWHILE)
        remove_vouched(self.folder / name, lambda _: True, empty=self.on_drive and not name.endswith(_NOTES))

    def look(self, names: Sequence[str]) -> list[CachedFile | None]:
        require_answer(self.folder)
        return super().look(names)

    def discard(self, name: str, *, ours: Callable[[CachedFile], bool] = lambda _: True) -> bool:
        require_answer(self.folder)
        return super().discard(name, ours=ours)

    def ask(self, question: Callable[[], T]) -> T:
        return run_watched(question, self.folder)

    def sweep(self, name: str) -> None:
        names = {shortened(file + end) for file in (name, name + PREVIOUS_SUFFIX) for end in ("", *_NOTES)}
        left = [one for one in find_owned(self.folder) if one.target.name in names]
        sweep_temporaries(left, empty=self.on_drive)

    def put(self, new: Publication) -> int:
        make_folder(self.folder)
        with typed_write_errors(self.folder / new.name):
            already = super().put(new)
            sync_file(self.folder)
            self.sweep(new.name)
        return already

    def _present(self, names: Sequence[str], notes: Sequence[str] = _NOTES) -> list[Present]:
        # Its manifest comes after a file. Looked at last, no file is missing beside a manifest that has just come.
        return [one._replace(entry=self._entry(one.name)) for one in super()._present(names, notes)]

    def _both(self, name: str) -> list[Present]:
        """Return what is there, the file and the previous version, if both may be replaced."""
        files = [name, name + PREVIOUS_SUFFIX]

        def look() -> list[Present]:
            found = self._present(files)
            self._check(found)
            return found

        # Another process may be between two of its renames: a refusal counts only if nothing has changed meanwhile.
        return among_others(look, *(self.folder / (file + end) for file in files for end in ("", *_NOTES)))

    def bring(self, new: Publication, there: Present) -> int:
        self._both(new.name)
        target, size = self.folder / new.name, new.manifest.size
        try:
            with open_workspace(
                target, keeps=(), answers=lambda folder: silence_of(folder) is None, empty=self.on_drive
            ) as workspace:
                # Before free space is checked: on Drive, a dead run's leftovers count against the quota.
                self.sweep(new.name)
                here = min(disk_use(workspace.path), size) if workspace.resumed else 0
                check_space(self.folder, size - here, f"The copy of '{new.file.name}'")
                temp = workspace.path / new.name
                already = copy_file(new.file, temp, new.manifest, new.step, new.cancellation, resume=workspace.resumed)
                # A mount may answer "written" for bytes that it could not keep, and a power failure loses what is only
                # in memory, when the version before may be gone.
                sync_file(temp)
                _read_back(temp, new)
                # Before the first rename: a file that was written to meanwhile is a mixture of two states.
                new.check_unchanged()
                turn = lock_for(target)
                with local_lock(turn, timeout_s=_TURN_S, cancellation=new.cancellation) as alone:
                    if alone is False:
                        msg = f"'{target}' is being published by another process. Try again when that is done."
                        raise TargetExistsError(msg)
                    self._replace(replace(new, made=temp))
        except (DamagedPackError, SourceReadError):
            # A source that is being written to looks damaged; then that is the cause to report.
            new.check_unchanged()
            raise
        return already

    def _replace(self, new: Publication) -> None:
        """Give a finished copy its name, in place of an earlier version."""
        assert new.made is not None
        for left in reversed(range(_TRIES)):
            now = self._now(new.name)
            # Another process may have published the same meanwhile. It stays, and so does the version before.
            if self._adopt(new, now):
                break
            try:
                self._exchange(new, now)
                break
            except TargetExistsError:
                # Where several move one version aside at once, all may give up, and it stands again.
                was, again = self._written(now), self._written(self._now(new.name))
                if not left or was is None or again is None or was.hashes != again.hashes or not new.made.exists():
                    raise

    def send(self, new: Publication, there: Present, note: bytes) -> StoredFile:
        assert new.made is not None
        there, previous = self._both(new.name)
        manifest = self._written(there)
        if manifest is None or there.entry is None:
            return self._succeed(new, there)
        if manifest.hashes == new.manifest.hashes:
            # Another run has published the same.
            return there.entry
        # All that takes room comes before the first change, so that a full disk cannot leave half of this.
        draft, described = temp_beside(new.made.parent / "manifest"), _content_of(manifest)
        draft.write_bytes(described)
        sync_file(draft)
        for name, entry in {previous.name: previous.entry, **previous.our_notes}.items():
            self._set_aside(name, entry, new)
        beside = previous.name + MANIFEST_SUFFIX
        put_file(draft, self.folder / beside, replaces=is_manifest)
        target, aside = self.folder / new.name, self.folder / previous.name
        # The step that a halt may delay until another run has put its own file there.
        move_vouched(target, aside)
        try:
            return self._succeed(new, there, moved=self._now(previous.name))
        except BaseException:
            # Without a successor, it has its name again.
            with contextlib.suppress(OSError):
                move_vouched(aside, target)
                back = self._now(new.name)
                if back.entry is not None and back.entry[:2] == there.entry[:2]:
                    self._vouch(new.name, manifest, back.entry, back.notes.get(MANIFEST_SUFFIX))
                self._withdraw(beside, self._now(previous.name).notes.get(MANIFEST_SUFFIX), described)
            raise

    def _succeed(self, new: Publication, there: Present, moved: Present | None = None) -> StoredFile:
        """Give a new version the name that has become free, and return what has it then. `moved`: the earlier one."""
        assert new.made is not None
        made_ns = new.made.stat().st_mtime_ns
        if moved is not None and moved.entry is not None and self._written(moved) is None:
            raise self.occupied(new.name, _WRITTEN_MEANWHILE)
        if MANIFEST_SUFFIX in there.notes:
            self._set_aside(there.name + MANIFEST_SUFFIX, there.notes[MANIFEST_SUFFIX].entry, new)
        with contextlib.suppress(TargetExistsError):
            move_vouched(new.made, self.folder / new.name)
        # Some disks cannot rename to free names alone, and another machine's file may have come.
        sent = self._entry(new.name)
        if sent is None or (sent.mtime_ns != made_ns and not self._has_content(new.name, sent, new.manifest)):
            raise self.occupied(new.name, _WRITTEN_MEANWHILE)
        return sent

    def _set_aside(self, name: str, entry: StoredFile | None, new: Publication) -> None:
        """Remove this version of a file; another run's, which has come during a halt, is put back."""
        if entry is None or new.made is None:
            return
        # On Drive it is emptied with the workspace.
        path, aside = self.folder / name, temp_beside(new.made.parent / name)
        move_vouched(path, aside)
        found = aside.stat()
        if (found.st_size, found.st_mtime_ns) != entry[:2]:
            move_vouched(aside, path)
            raise self.occupied(new.name, _WRITTEN_MEANWHILE)


def _read_back(temp: Path, new: Publication) -> None:
    size = temp.stat().st_size
    if size != new.manifest.size or not _has_blocks(remote_opener(_source_of(temp)), new.manifest, new.cancellation):
        msg = (
            f"What was written to '{temp.parent}' reads back differently ({size:,} bytes of {new.manifest.size:,}). "
            "Nothing there was replaced. Try again; if it happens again, mount the drive again first."
        )
        raise DamagedPackError(msg)


def look_at_file(path: Path) -> CachedFile | None:
    """Return the file at a path, if it has a manifest; `None` if the disk fails."""
    with contextlib.suppress(OSError):
        return FolderPlace(path.parent).look([path.name])[0]
    return None


class BucketPlace(Place):
    def __init__(self, source: ObjectSource) -> None:
        """Load the client of the service, without calling it yet."""
        self.url = source.url.rstrip("/")
        super().__init__(self.url, source.label)
        # Imported late, here and below: folders do not need these libraries.
        from colabstage.sources.buckets import ObjectStore

        # One store for all calls: a cache is asked a few times in hours, and never closed.
        self._store = ObjectStore(self.url)
        self._folder = self._store.path.rstrip("/")
        self._has_bucket = self._store.protocol not in _WITH_BUCKETS  # asked once: a new cache is looked at often
        weakref.finalize(self, self._store.close).atexit = False

    def search(self, fits: Callable[[str], object]) -> dict[str, StoredFile]:
        found = self._store.objects(self._folder)
        bucket = self._folder.strip("/").partition("/")[0]
        self._has_bucket = self._has_bucket or bool(found) or self._store.exists(bucket)
        if not self._has_bucket:
            msg = f"There is no bucket '{bucket}' for the cache '{self.label}'. Make it first, or correct cache_dir=."
            raise SourceNotFoundError(msg)
        return {name: found[name] for name in sorted(found) if fits(name)}

    def read(self, name: str) -> bytes | None:
        return self._store.content(self._path(name))

    def _opener(self, name: str, entry: StoredFile) -> Callable[[], RemoteFile]:
        # By its address, each look would connect and log in anew.
        from colabstage.sources.objects import ObjectFile

        facts = RemoteFacts(show_address(f"{self.url}/{name}"), name, entry.size, entry.version, entry.mtime_ns)
        return lambda: ObjectFile(self._store, self._path(name), facts, owns_store=False)

    def write(self, name: str, content: bytes, *, create: bool, version: str = "") -> None:
        self._store.put_bytes(content, self._path(name), create=create, version=version)

    def remove(self, name: str, entry: StoredFile) -> None:
        self._store.remove(self._path(name), entry.version)

    def bring(self, new: Publication, there: Present) -> int:
        self._check([there])
        self._exchange(new, there)
        return 0

    def send(self, new: Publication, there: Present, note: bytes) -> StoredFile:
        def advance(nbytes: int) -> None:
            new.cancellation.check()
            new.step.advance(nbytes)

        manifest = there.notes.get(MANIFEST_SUFFIX)
        for name, entry in ((new.name, there.entry), (new.name + MANIFEST_SUFFIX, manifest and manifest.entry)):
            if entry is not None:
                self.remove(name, entry)
        self._store.put(new.file, self._path(new.name), create=True, advance=advance)
        sent = self.entries([new.name]).get(new.name)
        if sent is None or not self._has_content(new.name, sent, new.manifest, new.cancellation):
            # Another run would have written its note before it replaced anything.
            if sent is not None and self.read(new.name + UNFINISHED_SUFFIX) != note:
                raise self.occupied(new.name, _WRITTEN_MEANWHILE)
            if sent is not None:
                self.remove(new.name, sent)
            msg = (
                f"What was written to '{show_address(os.fspath(self.at(new.name)))}' reads back differently. Try again."
            )
            raise DamagedPackError(msg)
        new.check_unchanged()
        return sent

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

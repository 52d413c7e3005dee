"""Where the shards of a set go: a local folder, or a bucket or file server.

A shard is written on its worker's disk, kept with the finished ones, and gets its name when all are finished. A remote
store has neither an atomic rename nor locks, so shards are uploaded into a folder beside the target, named by a digest
of what the set is made from: packing the same set again, on any machine, continues with what is there.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from colabstage.errors import OptionError, SourceError, TargetExistsError
from colabstage.h5.manifest import (
    Manifest,
    is_as_written,
    is_replaceable_pack,
    manifest_path,
    parse_manifest,
    place_pack,
    read_manifest,
    remove_manifest,
)
from colabstage.h5.parts import PartName, shard_path, shards_beside
from colabstage.io.files import parse_json, temporary_folder
from colabstage.io.units import show_address
from colabstage.io.workspace import disk_use, open_workspace, remove_own, remove_vouched, whatever_is_there
from colabstage.machine.resources import check_space
from colabstage.pack.job import PackJob, ReplanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from colabstage.images.decode import Loss
    from colabstage.pack.execute import PackReport
    from colabstage.sources.buckets import ObjectStore

# A file beside unfinished shards: workers continue while it exists. A shared folder is the one thing that all
# executors' workers have in common, so cancelling works with any executor.
_WANTED = "wanted"
# In a shard's manifest, beside the state of an archive: a digest of its samples' states.
STAMPS = "stamps"


class ShardName(NamedTuple):
    """The identity of one file in a set that was written together."""

    made_of: str
    """Hexadecimal digits that all files of the set share, and no other set has."""
    number: int
    """From 0."""
    total: int
    state: str = ""
    """Hexadecimal digits that change with the state of its samples in the source; "" if that is compared elsewhere."""

    def __str__(self) -> str:
        return f"{self.made_of} {self.number}/{self.total}"

    def file_of(self, target: str) -> str:
        """Return its file name; `target` is the name of the single file that the set stands for."""
        return shard_path(Path(target), self.number, self.total).name

    def result_of(self, manifest: Manifest | None, size: int | None) -> ShardResult | None:
        """Return the result of a file of `size` bytes if its manifest says that it is this shard, complete."""
        # By the manifest, which is written last: if a file has none, its worker died while writing it.
        if manifest is None or manifest.shard != str(self) or manifest.size != size:
            return None
        if self.state and manifest.identity.get(STAMPS, self.state) != self.state:
            return None
        return result_of(manifest)


class ShardResult(NamedTuple):
    """What one task has written; the last three are empty unless this run has seen them."""

    samples: Mapping[str, int]
    skipped: tuple[str, ...]
    resumed: int
    readers: int
    lost: Mapping[Loss, tuple[str, ...]]
    outside: tuple[int, str]
    nan: tuple[str, ...]

    @classmethod
    def of(cls, report: PackReport) -> ShardResult:
        return cls._make(getattr(report, name) for name in cls._fields)

    @property
    def rows(self) -> int:
        """Return how many samples are done, whether stored or left out."""
        return sum(self.samples.values()) + len(self.skipped)


def result_of(manifest: Manifest) -> ShardResult:
    """Return the result of a shard that was finished before."""
    return ShardResult(manifest.samples, manifest.skipped, sum(manifest.samples.values()), 0, {}, (0, ""), ())


@dataclass(slots=True)
class LocalStore:
    """A folder on this machine, or on a disk that all workers share."""

    target: Path
    """The single file that these are the shards of."""
    folder: Path
    """The folder of finished shards, beside it."""
    look_s: float = 0.25
    """How often a worker may check whether its shard is wanted, in seconds."""
    _others: list[Path] = field(default_factory=list)

    @contextlib.contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    @contextlib.contextmanager
    def begin(self, names: Sequence[ShardName], job: PackJob, *, overwrite: bool) -> Iterator[Self]:
        """Yield the store while workers may write shards into it."""
        # If something must not be replaced, this raises within a second, not after hours of work.
        self._find_others(names, overwrite=overwrite)
        model = self.target.with_name(f"{self.target.stem}-shards{self.target.suffix}")
        # After the first of these errors shards of another form are needed; before the second nothing was written.
        with open_workspace(model, drops=(ReplanError, TargetExistsError)) as workspace:
            self.folder = workspace.path.absolute()
            needed = max(0, job.plan.nbytes - disk_use(workspace.path))
            check_space(self.target.parent, needed, f"The pack of '{job.label}'")
            (self.folder / _WANTED).touch()
            try:
                yield self
            finally:
                self.stop()

    def finished(self, name: ShardName) -> ShardResult | None:
        """Return the result of a complete shard, in place or in the folder; otherwise `None`."""
        return self._result(self._final(name), name) or self._result(self._part(name), name)

    @staticmethod
    def _result(path: Path, name: ShardName) -> ShardResult | None:
        return name.result_of(read_manifest(path), path.stat().st_size) if path.is_file() else None

    def is_wanted(self) -> bool:
        """Return whether the caller, wherever it is, still wants the shards."""
        return (self.folder / _WANTED).exists()

    @contextlib.contextmanager
    def scratch(self, name: ShardName) -> Iterator[Path]:
        """Yield the local file that a shard is written to."""
        yield self._part(name)

    def keep(self, file: Path, name: ShardName) -> None:
        """Take a shard that was written there, with its manifest: it is already where it belongs."""

    def signs(self) -> object:
        """Return a value that changes whenever a worker has written something."""
        return disk_use(self.folder)

    def _find_others(self, names: Sequence[ShardName], *, overwrite: bool) -> None:
        """Find the files to remove at the end: those to be replaced, and all shards that are not of this set."""
        # A run that was interrupted while placing shards has already placed some of this set.
        own = {self._final(name): name for name in names}
        there = [path for path in (self.target, *shards_beside(self.target)) if os.path.lexists(path)]
        foreign = [path for path in there if path not in own or self._result(path, own[path]) is None]
        if foreign and not overwrite:
            msg = f"'{foreign[0]}' exists. Choose another name, or give overwrite=True to replace it."
            raise TargetExistsError(msg)
        for path in foreign:
            # The caller named `target` with overwrite=True, but nobody named these.
            if path != self.target and not is_replaceable_pack(path):
                msg = f"'{path}' has the name of a shard, and colabstage did not write it as it is now. Rename it."
                raise TargetExistsError(msg)
        self._others = [path for path in foreign if path not in own]

    def stop(self) -> None:
        """Withdraw the set: workers that still write a shard stop."""
        remove_own(self.folder / _WANTED)

    def place(self, names: Sequence[ShardName]) -> int:
        """Move all shards into place; return their length in bytes."""
        for name in names:
            if self._part(name).exists():
                place_pack(self._part(name), self._final(name), replaces=whatever_is_there)
        for other in self._others:
            # Last, when the whole new set is in place: until then there is only the old one.
            if remove_vouched(other, whatever_is_there if other == self.target else is_as_written):
                remove_manifest(other)
        return sum(self._final(name).stat().st_size for name in names)

    def shown(self, file: str) -> Path:
        """Return how a report names a file of the set."""
        return self.target.with_name(file)

    def _final(self, name: ShardName) -> Path:
        return self.target.with_name(name.file_of(self.target.name))

    def _part(self, name: ShardName) -> Path:
        return self.folder / name.file_of(self.target.name)


@dataclass(slots=True)
class RemoteStore:
    """A folder of a bucket or file server; each user opens a connection of its own."""

    url: str
    """The address that a single file with the whole dataset would have."""
    made_of: str
    """The set that its folder is named for."""
    look_s: float = 2.0
    """As in `LocalStore`: each check is a request to the storage."""
    _others: list[str] = field(default_factory=list)
    _store: ObjectStore | None = None

    def __reduce__(self) -> tuple[type[RemoteStore], tuple[str, str]]:
        return RemoteStore, (self.url, self.made_of)

    @contextlib.contextmanager
    def open(self) -> Iterator[Self]:
        from colabstage.sources.buckets import ObjectStore

        with contextlib.closing(ObjectStore(self.url)) as store:
            yield replace(self, _store=store)

    @contextlib.contextmanager
    def begin(self, names: Sequence[ShardName], _job: PackJob, *, overwrite: bool) -> Iterator[Self]:
        """Yield the open store while workers may write shards into it."""
        with self.open() as store:
            store._find_others(names, overwrite=overwrite)
            store._open.put_bytes(b"wanted", store._mark)
            try:
                yield store
            # All shards are written again in another form, so none of these can be continued.
            except ReplanError:
                store._clear(names)
                raise
            except BaseException:
                store.stop()
                raise

    @property
    def _open(self) -> ObjectStore:
        assert self._store is not None, "used without open()"
        return self._store

    def finished(self, name: ShardName) -> ShardResult | None:
        """Return the result of a complete shard, in place or uploaded."""
        return self._result(self._final(name), name) or self._result(self._part(name), name)

    def _result(self, path: str, name: ShardName) -> ShardResult | None:
        sidecar = self._open.content(f"{path}.json")
        manifest = None if sidecar is None else parse_manifest(parse_json(sidecar), path)
        return None if manifest is None else name.result_of(manifest, self._open.size(path))

    def is_wanted(self) -> bool:
        """Ask the storage. No response does not mean that the set is not wanted."""
        with contextlib.suppress(SourceError):
            return self._open.exists(self._mark)
        return True

    @contextlib.contextmanager
    def scratch(self, name: ShardName) -> Iterator[Path]:
        """Yield a file in this machine's folder for temporary files."""
        model = temporary_folder() / f"colabstage-{name.made_of}-{name.number:05}"
        # Kept after any error: the shard's journal on this disk says what is finished.
        with open_workspace(model) as workspace:
            yield workspace.path / name.file_of(self._name)

    def keep(self, file: Path, name: ShardName) -> None:
        """Upload a shard, its manifest last."""
        # The work took long: meanwhile, or during the upload, workers that took over from this one may have finished
        # the set.
        if self._is_placed(name):
            return
        self._open.put(file, self._part(name))
        self._open.put(manifest_path(file), f"{self._part(name)}.json")
        if self._is_placed(name):
            self._discard(self._part(name))

    def _is_placed(self, name: ShardName) -> bool:
        return not self.is_wanted() and self._result(self._final(name), name) is not None

    def signs(self) -> object:
        """Return nothing: a worker gives no sign between the beginning of a shard and its end."""
        return None

    def _find_others(self, names: Sequence[ShardName], *, overwrite: bool) -> None:
        target, store = Path(self._name), self._open
        own = {name.file_of(self._name): name for name in names}
        foreign = []
        for row in store.list_folder(self._folder) if store.exists(self._folder) else []:
            found = str(row["name"]).rpartition("/")[2]
            part = PartName.of(Path(found))
            if row.get("type") == "directory" or (part.stem, part.suffix) != (target.stem, target.suffix):
                continue
            # Its rows would be read after other rows than those they were appended to.
            if part.appended:
                msg = f"'{found}' at '{store.label}' belongs to a dataset of this name. Choose another name."
                raise TargetExistsError(msg)
            if found not in own or self._result(self._final(own[found]), own[found]) is None:
                foreign.append(found)
        if foreign and not overwrite:
            msg = f"'{foreign[0]}' exists beside '{store.label}'. Choose another name, or give overwrite=True."
            raise TargetExistsError(msg)
        self._others = [f"{self._folder}/{found}" for found in foreign if found not in own]

    def stop(self) -> None:
        """Withdraw the set: workers that still write a shard stop."""
        self._open.remove(self._mark)

    def place(self, names: Sequence[ShardName]) -> int:
        """Give all uploaded shards their names, unless they have them; return their length in bytes."""
        for name in names:
            if self._result(self._part(name), name) is not None:
                self._place(self._part(name), self._final(name))
        for other in self._others:
            self._discard(other)
        self._clear(names)
        return sum(self._open.size(self._final(name)) or 0 for name in names)

    def _place(self, part: str, final: str) -> None:
        # As for local files: an earlier shard makes room first, so what has the name has its own manifest.
        self._discard(final)
        for end in (".json", ""):
            self._open.move(part + end, final + end)

    def _clear(self, names: Sequence[ShardName]) -> None:
        """Remove everything in the folder of unfinished shards."""
        self.stop()
        for name in names:
            self._discard(self._part(name))
        self._open.remove_folder(self._parts)

    def _discard(self, path: str) -> None:
        # The manifest first: a pack without one does not count, so a half-removed one cannot be read.
        self._open.remove(f"{path}.json")
        self._open.remove(path)

    def shown(self, file: str) -> str:
        return f"{show_address(self.url).rpartition('/')[0]}/{file}"

    @property
    def _folder(self) -> str:
        return self._open.path.rpartition("/")[0]

    @property
    def _name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def _parts(self) -> str:
        return f"{self._folder}/.colabstage-{Path(self._name).stem}-{self.made_of}"

    @property
    def _mark(self) -> str:
        return f"{self._parts}/{_WANTED}"

    def _final(self, name: ShardName) -> str:
        return f"{self._folder}/{name.file_of(self._name)}"

    def _part(self, name: ShardName) -> str:
        return f"{self._parts}/{name.file_of(self._name)}"


def remote_address(target: object) -> str | None:
    """Return a target that is an address; `None` for a path."""
    text = str(target).strip()
    protocol, mark, rest = text.partition("://")
    if not mark:
        return None
    if protocol.lower() in {"http", "https"} or not rest.rpartition("/")[2]:
        msg = f"target='{show_address(text)}' cannot be written to; expected a path, or text as 's3://bucket/set.h5'."
        raise OptionError(msg)
    return text

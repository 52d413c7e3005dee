"""The shards of a set: their names and results, and where they are kept until all are finished: a local folder, or one
in a bucket or on a file server."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from colabstage.errors import SourceError, TargetExistsError
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
from colabstage.io.workspace import disk_use, open_workspace, remove_own, remove_vouched, whatever_is_there
from colabstage.machine.resources import check_space
from colabstage.pack.job import PackJob, ReplanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from colabstage.pack.execute import PackReport
    from colabstage.sources.buckets import ObjectStore

# A file beside unfinished shards: workers continue while it exists. The place of the set is the one thing that all
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
    """What one task has written; the last two are empty unless this run has seen them."""

    samples: Mapping[str, int]
    skipped: tuple[str, ...]
    resumed: int
    readers: int
    lost: Mapping[str, tuple[str, ...]]
    outside: tuple[int, str]

    @classmethod
    def of(cls, report: PackReport) -> ShardResult:
        return cls._make(getattr(report, name) for name in cls._fields)

    @property
    def rows(self) -> int:
        """Return how many samples are done, whether stored or left out."""
        return sum(self.samples.values()) + len(self.skipped)


def result_of(manifest: Manifest) -> ShardResult:
    """Return the result of a shard that was finished before."""
    return ShardResult(manifest.samples, manifest.skipped, sum(manifest.samples.values()), 0, {}, (0, ""))


@dataclass(slots=True)
class SetFolder:
    """Where workers write the shards of a set: a folder beside their places, on a disk that all of them share."""

    target: Path
    """The single file that these are the shards of."""
    folder: Path
    others: Sequence[Path]
    """Files that go when the set is in place: a single file of this name, and shards that are not of this set."""
    look_s: ClassVar[float] = 0.25
    """How often a worker may ask whether its shard is wanted."""
    silence_s: ClassVar[float] = 1800.0
    """After this long without a result or a sign of work, workers are gone: a busy cluster may keep tasks waiting."""

    @classmethod
    @contextlib.contextmanager
    def open(cls, target: Path, names: Sequence[ShardName], job: PackJob, *, overwrite: bool) -> Iterator[Self]:
        """Yield the folder while workers may write shards into it."""
        # If something must not be replaced, this raises within a second, not after hours of work.
        others = _files_to_replace(target, names, overwrite=overwrite)
        model = target.with_name(f"{target.stem}-shards{target.suffix}")
        # After the first of these errors shards of another form are needed; before the second nothing was written.
        with open_workspace(model, drops=(ReplanError, TargetExistsError)) as workspace:
            folder = cls(target, workspace.path.absolute(), others)
            needed = max(0, job.plan.nbytes - disk_use(workspace.path))
            check_space(target.parent, needed, f"The pack of '{job.label}'")
            (folder.folder / _WANTED).touch()
            try:
                yield folder
            finally:
                folder.stop()

    def finished(self, name: ShardName) -> ShardResult | None:
        """Return the result of a complete shard, in place or in the folder; otherwise `None`."""
        return _result(self._final(name), name) or _result(self._part(name), name)

    def is_wanted(self) -> bool:
        """Return whether the caller, wherever it is, still wants the shards."""
        return (self.folder / _WANTED).exists()

    def signs(self) -> object:
        """Return a value that changes whenever a worker has written something."""
        return disk_use(self.folder)

    @contextlib.contextmanager
    def writing(self, name: ShardName) -> Iterator[Path]:
        """Yield the local file that a shard is written to; at the end it is kept with the others."""
        yield self._part(name)

    def stop(self) -> None:
        """Withdraw the set: workers that still write a shard stop."""
        remove_own(self.folder / _WANTED)

    def place(self, names: Sequence[ShardName]) -> int:
        """Move all shards into place; return their length in bytes."""
        for name in names:
            if self._part(name).exists():
                place_pack(self._part(name), self._final(name), replaces=whatever_is_there)
        for other in self.others:
            # Last, when the whole new set is in place: until then there is only the old one.
            if remove_vouched(other, whatever_is_there if other == self.target else is_as_written):
                remove_manifest(other)
        return sum(self._final(name).stat().st_size for name in names)

    def _part(self, name: ShardName) -> Path:
        return self.folder / name.file_of(self.target.name)

    def _final(self, name: ShardName) -> Path:
        return self.target.with_name(name.file_of(self.target.name))


def _result(path: Path, name: ShardName) -> ShardResult | None:
    return name.result_of(read_manifest(path), path.stat().st_size) if path.is_file() else None


def _files_to_replace(target: Path, names: Sequence[ShardName], *, overwrite: bool) -> list[Path]:
    # A run that was interrupted while placing shards has already placed some of this set.
    own = {target.with_name(name.file_of(target.name)): name for name in names}
    there = [path for path in (target, *shards_beside(target)) if os.path.lexists(path)]
    foreign = [path for path in there if path not in own or _result(path, own[path]) is None]
    if foreign and not overwrite:
        msg = f"'{foreign[0]}' exists. Choose another name, or give overwrite=True to replace it."
        raise TargetExistsError(msg)
    for path in foreign:
        # The caller named `target` with overwrite=True, but nobody named these.
        if path != target and not is_replaceable_pack(path):
            msg = f"'{path}' has the name of a shard, and colabstage did not write it as it is now. Rename it."
            raise TargetExistsError(msg)
    return [path for path in foreign if path not in own]


@dataclass(slots=True)
class RemoteFolder:
    """Where workers upload the shards of a set: a folder beside their places, named for the set, so that packing it
    again, on any machine, continues with what is there. No such service has an atomic rename, and few have locks."""

    store: ObjectStore
    folder: str
    """Of the shards when all are finished."""
    target: str
    """The name of the single file that these are the shards of."""
    parts: str
    """The folder of finished shards until then."""
    others: Sequence[str] = ()
    """As in `SetFolder`."""
    # Each look is a request, and there is no sign of a shard between its beginning and its end.
    look_s: ClassVar[float] = 2.0
    silence_s: ClassVar[float] = 4 * 3600.0

    @classmethod
    @contextlib.contextmanager
    def open(cls, target: str, names: Sequence[ShardName], _job: PackJob, *, overwrite: bool) -> Iterator[Self]:
        """Yield the folder while workers may upload shards into it. `target`: the address of the single file."""
        # Imported late: it needs fsspec.
        from colabstage.sources.buckets import ObjectStore

        with ObjectStore(target) as store:
            place, _, name = store.path.rpartition("/")
            folder = cls(store, place, name, f"{place}/.colabstage-{Path(name).stem}-{names[0].made_of}")
            folder.others = folder._files_to_replace(names, overwrite=overwrite)
            store.put_bytes(b"wanted", folder._mark)
            try:
                yield folder
            except ReplanError:
                folder._clear(names)
                raise
            except BaseException:
                folder.stop()
                raise

    def finished(self, name: ShardName) -> ShardResult | None:
        return self._result(self._final(name), name) or self._result(self._part(name), name)

    def is_wanted(self) -> bool:
        # No answer does not mean that the set is not wanted, unless it is the caller, in this process, that has left.
        with contextlib.suppress(SourceError):
            return self.store.exists(self._mark)
        return not self.store.is_closed

    def signs(self) -> object:
        return None

    @contextlib.contextmanager
    def writing(self, name: ShardName) -> Iterator[Path]:
        # Kept after any error: the shard's journal on this disk says what is finished.
        with open_workspace(temporary_folder() / f"colabstage-{name.made_of}-{name.number:05}") as workspace:
            yield (file := workspace.path / name.file_of(self.target))
            # A worker that seemed lost may be late.
            if self.is_wanted():
                self.store.put(file, self._part(name))
                self.store.put(manifest_path(file), f"{self._part(name)}.json")
                if self._result(self._final(name), name) is not None:
                    self._discard(self._part(name))

    def stop(self) -> None:
        self.store.remove(self._mark)

    def place(self, names: Sequence[ShardName]) -> int:
        for name in names:
            if self._result(self._part(name), name) is not None:
                # The manifest first: one without its file is no pack, and does not stop the next run.
                self._discard(self._final(name))
                for end in (".json", ""):
                    self.store.move(self._part(name) + end, self._final(name) + end)
        for other in self.others:
            self._discard(f"{self.folder}/{other}")
        self._clear(names)
        return sum(self.store.size(self._final(name)) or 0 for name in names)

    def _files_to_replace(self, names: Sequence[ShardName], *, overwrite: bool) -> list[str]:
        own, dataset = {name.file_of(self.target): name for name in names}, PartName.of(Path(self.target)).dataset
        # FTP refuses access to what is not there.
        listed = self.store.objects(self.folder) if self.store.exists(self.folder) else ()
        there = {file: PartName.of(Path(file)) for file in listed}
        foreign = [file for file, part in there.items() if part.dataset == dataset]
        foreign = [one for one in foreign if one not in own or self._result(self._final(own[one]), own[one]) is None]
        for one in foreign:
            # Rows of an appended file would be read after other rows than those they were appended to.
            if there[one].appended or not overwrite:
                remedy = "." if there[one].appended else ", or give overwrite=True to replace it."
                msg = f"'{one}' exists beside '{self.store.label}'. Choose another name{remedy}"
                raise TargetExistsError(msg)
        return [one for one in foreign if one not in own]

    def _result(self, path: str, name: ShardName) -> ShardResult | None:
        if not self.store.exists(sidecar := f"{path}.json"):
            return None
        manifest = parse_manifest(parse_json(self.store.content(sidecar) or b""), path)
        return name.result_of(manifest, self.store.size(path))

    def _clear(self, names: Sequence[ShardName]) -> None:
        self.stop()
        for name in names:
            self._discard(self._part(name))
        self.store.remove_folder(self.parts)

    def _discard(self, path: str) -> None:
        # The manifest first, so that a pack without one does not count.
        self.store.remove(f"{path}.json")
        self.store.remove(path)

    @property
    def _mark(self) -> str:
        return f"{self.parts}/{_WANTED}"

    def _final(self, name: ShardName) -> str:
        return f"{self.folder}/{name.file_of(self.target)}"

    def _part(self, name: ShardName) -> str:
        return f"{self.parts}/{name.file_of(self.target)}"

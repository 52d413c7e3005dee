"""The shards of a set: their names and results, and the folder in which they are kept until all are finished."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from colabstage.errors import TargetExistsError
from colabstage.h5.manifest import (
    Manifest,
    is_as_written,
    is_replaceable_pack,
    place_pack,
    read_manifest,
    remove_manifest,
)
from colabstage.h5.parts import shard_path, shards_beside
from colabstage.io.workspace import disk_use, open_workspace, remove_own, remove_vouched, whatever_is_there
from colabstage.machine.resources import check_space
from colabstage.pack.job import PackJob, ReplanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from colabstage.images.decode import Loss
    from colabstage.pack.execute import PackReport

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
    """What one task has written; the last two are empty unless this run has seen them."""

    samples: Mapping[str, int]
    skipped: tuple[str, ...]
    resumed: int
    readers: int
    lost: Mapping[Loss, tuple[str, ...]]
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
        return _result(self._final(name), name) or _result(self.part(name), name)

    def is_wanted(self) -> bool:
        """Return whether the caller, wherever it is, still wants the shards."""
        return (self.folder / _WANTED).exists()

    def stop(self) -> None:
        """Withdraw the set: workers that still write a shard stop."""
        remove_own(self.folder / _WANTED)

    def place(self, names: Sequence[ShardName]) -> int:
        """Move all shards into place; return their length in bytes."""
        for name in names:
            if self.part(name).exists():
                place_pack(self.part(name), self._final(name), replaces=whatever_is_there)
        for other in self.others:
            # Last, when the whole new set is in place: until then there is only the old one.
            if remove_vouched(other, whatever_is_there if other == self.target else is_as_written):
                remove_manifest(other)
        return sum(self._final(name).stat().st_size for name in names)

    def part(self, name: ShardName) -> Path:
        """Return the file that a shard is written to."""
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

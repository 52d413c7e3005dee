"""Shards in a bucket or on a file server: each is written on its worker's own disk, and then uploaded.

Storage of that kind has no rename that is done in one step, and no lock. So workers upload into a folder beside the
target, whose name follows from what the set is made of: whoever packs the same again, on whichever machine, goes on
with what is there. When all shards are, they get their names; each one's manifest goes before the old bytes do.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import OptionError, SourceError, TargetExistsError
from colabstage.h5.manifest import manifest_path, read_manifest
from colabstage.h5.parts import PartName, shard_path, shard_pattern
from colabstage.io.redaction import show_address
from colabstage.io.temporaries import remove_own
from colabstage.io.workspace import open_workspace
from colabstage.pack.dispatch import run_tasks
from colabstage.pack.shards import WANTED, ShardResult, check_share, set_report, write_shard, write_shard_of
from colabstage.pack.writer import MixedImagesError
from colabstage.sources.objects_fsspec import WritableStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from colabstage.io.progress import Progress
    from colabstage.pack.execute import PackReport, ShardName
    from colabstage.pack.shards import SetPlan, ShardTask

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_LOOK_S = 2.0
# A worker says nothing between the beginning of a shard and its end.
_SILENCE_S = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """Hold the address that one file with the whole dataset would have. Picklable."""

    url: str
    """As it was given."""

    @classmethod
    def of(cls, out: str | object) -> RemoteTarget | None:
        """Return the target, where `out` is an address; `None` for a path.

        Raises:
            OptionError: it is an address that nothing can be written to.
        """
        text = str(out)
        if not _ADDRESS.match(text):
            return None
        protocol, mark, rest = text.partition("://")
        if not mark or protocol.lower() in {"http", "https"} or not rest.rpartition("/")[2]:
            msg = f"out='{show_address(text)}' cannot be written to; expected a path, or text as 's3://bucket/set.h5'."
            raise OptionError(msg)
        return cls(text)

    @property
    def label(self) -> str:
        """Return the address for messages, without secrets."""
        return show_address(self.url)

    @property
    def scratch(self) -> Path:
        """Return a file of the target's name on this machine, where temporary files go."""
        return Path(tempfile.gettempdir()) / self.url.rpartition("/")[2]

    @contextlib.contextmanager
    def open(self) -> Iterator[_SetFolder]:
        """Yield the storage, for as long as it is asked."""
        store = WritableStore(self.url)
        try:
            yield _SetFolder(store)
        finally:
            store.close()

    def write(self, plan: SetPlan, progress: Progress, began: float) -> PackReport:
        """Write a planned set: how `ShardSet` is told to.

        Raises:
            TargetExistsError: something stands in the way. TargetNotWritableError: the storage takes nothing.
            As `pack_dataset`.
        """
        names = plan.names()
        with self.open() as shelf:
            others = shelf.others(names, overwrite=plan.wanted.overwrite)
            done = {name.number: placed for name in names if (placed := shelf.finished(shelf.final(name), name))}
            tasks = [RemoteTask(plan.task(name, Path()), self) for name in names if name.number not in done]
            shelf.want(names[0])
            try:
                results = plan.collect(done, self._run(plan, tasks, shelf, names[0]), progress)
                check_share(plan.job, results)
                for name in names:
                    shelf.place(name)
            except MixedImagesError:
                shelf.clear(names)
                raise
            except BaseException:
                shelf.unwant(names[0])
                raise
            for path in others:
                shelf.store.remove(f"{path}.json")
                shelf.store.remove(path)
            shelf.clear(names)
            nbytes = sum(shelf.store.size(shelf.final(name)) or 0 for name in names)
        base = self.label.rpartition("/")[0]
        files = [f"{base}/{shard_path(self.scratch, name.number, name.total).name}" for name in names]
        pattern = f"{base}/{shard_pattern(self.scratch, plan.count).name}"
        return set_report(plan.job, results, pattern=pattern, files=files, nbytes=nbytes, began=began)

    def _run(
        self, plan: SetPlan, tasks: list[RemoteTask], shelf: _SetFolder, first: ShardName
    ) -> Generator[tuple[ShardTask, ShardResult]]:
        if plan.wanted.executor is None:
            for task in tasks:
                yield task.shard, _write(task, shelf, lambda one: write_shard_of(plan.job, plan.opened, one))
            return
        executor = plan.wanted.executor
        coming = run_tasks(executor, write_remote_shard, tasks, stop=lambda: shelf.unwant(first), silence_s=_SILENCE_S)
        with contextlib.closing(coming):
            for task, result in coming:
                yield task.shard, result


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """Hold all that a worker needs to write one shard on its own disk and to upload it. Picklable as `ShardTask` is."""

    shard: ShardTask
    """What is to be written."""
    target: RemoteTarget
    """Where it goes."""


def write_remote_shard(task: RemoteTask) -> ShardResult:
    """Write one shard and upload it, unless it is there. Called in a worker; may be called again when one died.

    Raises:
        TargetNotWritableError: it cannot be uploaded.
        As `write_shard`.
    """
    with task.target.open() as shelf:
        return _write(task, shelf, write_shard)


def _write(task: RemoteTask, shelf: _SetFolder, write: Callable[[ShardTask], ShardResult]) -> ShardResult:
    name = task.shard.name
    done = shelf.finished(shelf.part(name), name) or shelf.finished(shelf.final(name), name)
    if done is not None:
        return done
    model = task.target.scratch.with_name(f"colabstage-{name.made_of}-{name.number:05}")
    # Whatever ends the work, the shard on this disk is gone on with: its journal proves what is in it.
    with open_workspace(model) as workspace:
        local = replace(task.shard, folder=str(workspace.path))
        with _as_long_as_wanted(shelf, name, workspace.path / WANTED):
            result = write(local)
        if not shelf.has_all(name):
            shelf.upload(local.path, name)
            if shelf.has_all(name):
                shelf.discard(name)
        return result


@contextlib.contextmanager
def _as_long_as_wanted(shelf: _SetFolder, name: ShardName, file: Path) -> Iterator[None]:
    """Keep a file that goes when the caller, wherever it is, wants the shards no longer."""
    file.touch()
    ending = threading.Event()

    def watch() -> None:
        while not ending.wait(_LOOK_S):
            with contextlib.suppress(SourceError):  # storage that does not answer has not said no
                if not shelf.is_wanted(name):
                    remove_own(file)
                    return

    watcher = threading.Thread(target=watch, name="colabstage-wanted")
    watcher.start()
    try:
        yield
    finally:
        ending.set()
        watcher.join()


class _SetFolder:
    """Speak to the folder that shards go to."""

    def __init__(self, store: WritableStore) -> None:
        self.store = store
        self._folder, _, self._name = store.path.rpartition("/")

    def final(self, name: ShardName) -> str:
        """Return where a shard ends up."""
        return f"{self._folder}/{self._file(name)}"

    def part(self, name: ShardName) -> str:
        """Return where a shard is until all are there."""
        return f"{self._parts(name)}/{self._file(name)}"

    def finished(self, path: str, name: ShardName) -> ShardResult | None:
        """Return what became of a shard that is there and whole; `None` when it is not, or is another set's."""
        sidecar = self.store.content(f"{path}.json")
        if sidecar is None:
            return None
        with tempfile.TemporaryDirectory(prefix="colabstage-") as folder:
            file = Path(folder) / self._file(name)
            manifest_path(file).write_bytes(sidecar)
            manifest = read_manifest(file)
        if manifest is None or manifest.shard != str(name) or self.store.size(path) != manifest.size:
            return None
        return ShardResult(manifest.samples, manifest.skipped, sum(manifest.samples.values()), 0)

    def others(self, names: list[ShardName], *, overwrite: bool) -> list[str]:
        """Return what stands in the way and goes at the end; shards of this very set do not, nor those that are
        replaced.

        Raises:
            TargetExistsError: there is something, and it must not be replaced.
        """
        target = Path(self._name)
        own = {self._file(name): name for name in names}
        foreign = []
        for row in self.store.list_folder(self._folder) if self.store.exists(self._folder) else []:
            found = str(row["name"]).rpartition("/")[2]
            part = PartName.of(Path(found))
            if row.get("type") == "directory" or (part.stem, part.suffix) != (target.stem, target.suffix):
                continue
            if part.appended:
                msg = f"'{found}' at '{self.store.label}' belongs to a dataset of this name. Choose another name."
                raise TargetExistsError(msg)
            if found not in own or self.finished(self.final(own[found]), own[found]) is None:
                foreign.append(found)
        if foreign and not overwrite:
            msg = f"'{foreign[0]}' exists beside '{self.store.label}'. Choose another name, or give overwrite=True."
            raise TargetExistsError(msg)
        return [f"{self._folder}/{found}" for found in foreign if found not in own]

    def upload(self, file: Path, name: ShardName) -> None:
        """Bring a shard here, its manifest last."""
        self.store.put(file, self.part(name))
        self.store.put(manifest_path(file), f"{self.part(name)}.json")

    def place(self, name: ShardName) -> None:
        """Give an uploaded shard its name, unless it has it."""
        part, final = self.part(name), self.final(name)
        if self.finished(part, name) is None:
            return
        # As for files: a new one appears whole, and a replaced one is for a moment one that nobody trusts.
        replaces = self.store.exists(final)
        if replaces:
            self.store.remove(f"{final}.json")
        else:
            self.store.move(f"{part}.json", f"{final}.json")
        self.store.move(part, final)
        if replaces:
            self.store.move(f"{part}.json", f"{final}.json")

    def want(self, name: ShardName) -> None:
        """Say that the set of a shard is wanted."""
        with tempfile.TemporaryDirectory(prefix="colabstage-") as folder:
            (Path(folder) / WANTED).write_bytes(b"wanted")
            self.store.put(Path(folder) / WANTED, f"{self._parts(name)}/{WANTED}")

    def unwant(self, name: ShardName) -> None:
        """Say that the set of a shard is not wanted any more."""
        self.store.remove(f"{self._parts(name)}/{WANTED}")

    def is_wanted(self, name: ShardName) -> bool:
        """Return whether it is wanted."""
        return self.store.exists(f"{self._parts(name)}/{WANTED}")

    def has_all(self, name: ShardName) -> bool:
        """Return whether a shard's set is finished. Then it was by other workers, where one that seemed lost still
        works.
        """
        return not self.is_wanted(name) and self.finished(self.final(name), name) is not None

    def discard(self, name: ShardName) -> None:
        """Remove what was uploaded of a shard."""
        self.store.remove(f"{self.part(name)}.json")
        self.store.remove(self.part(name))

    def clear(self, names: list[ShardName]) -> None:
        """Remove all that was uploaded and has no name of its own."""
        self.unwant(names[0])
        for name in names:
            self.discard(name)
        self.store.remove_folder(self._parts(names[0]))

    def _parts(self, name: ShardName) -> str:
        return f"{self._folder}/.colabstage-{Path(self._name).stem}-{name.made_of}"

    def _file(self, name: ShardName) -> str:
        return shard_path(Path(self._name), name.number, name.total).name

"""Shards in a bucket or on a file server: each is written on its worker's own disk, and then uploaded.

Storage of that kind has neither an atomic rename nor locks. So workers upload into a folder beside the target, whose
name follows from what the set is made of: packing the same set again, on any machine, continues with what is there.
When all shards are uploaded, they get their names; an old manifest is removed before the old bytes are replaced.
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
from colabstage.h5.manifest import manifest_path, parse_manifest
from colabstage.h5.parts import PartName, shard_path, shard_pattern
from colabstage.io.files import parse_json
from colabstage.io.redaction import show_address
from colabstage.io.workspace import open_workspace, remove_own
from colabstage.pack.dispatch import run_tasks
from colabstage.pack.shards import WANTED, ShardResult, check_set, set_report, write_shard, write_shard_of
from colabstage.pack.writer import MixedImagesError
from colabstage.sources.buckets import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from colabstage.io.progress import Progress
    from colabstage.pack.execute import PackReport, ShardName
    from colabstage.pack.shards import SetPlan, ShardTask

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# Each look is a request to the storage.
_LOOK_S = 2.0
# A worker gives no sign between the beginning of a shard and its end.
_SILENCE_S = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """The address that a single file with the whole dataset would have. Picklable."""

    url: str
    """As it was given."""

    @classmethod
    def of(cls, target: str | object) -> RemoteTarget | None:
        """Return the target, where it is an address; `None` for a path.

        Raises:
            OptionError: it is an address that cannot be written to.
        """
        text = str(target)
        if not _ADDRESS.match(text):
            return None
        # One slash is a typing error, which as a path would become folders called "s3:".
        protocol, mark, rest = text.partition("://")
        if not mark or protocol.lower() in {"http", "https"} or not rest.rpartition("/")[2]:
            msg = (
                f"target='{show_address(text)}' cannot be written to; expected a path, or text as 's3://bucket/set.h5'."
            )
            raise OptionError(msg)
        return cls(text)

    @property
    def label(self) -> str:
        """Return the address for messages, without secrets."""
        return show_address(self.url)

    @property
    def scratch(self) -> Path:
        """Return a path with the target's name in this machine's folder for temporary files."""
        return Path(tempfile.gettempdir()) / self.url.rpartition("/")[2]

    @contextlib.contextmanager
    def open(self) -> Iterator[_SetFolder]:
        """Yield the storage, and close it at the end."""
        # Opened where it is used: connections cannot be pickled.
        store = ObjectStore(self.url)
        try:
            yield _SetFolder(store)
        finally:
            store.close()

    def write(self, plan: SetPlan, progress: Progress, began: float) -> PackReport:
        """Write a planned set; for `ShardSet.write`.

        Raises:
            TargetExistsError: a file is in the way. TargetNotWritableError: the storage refuses writes.
            Exception: as `pack_dataset`.
        """
        names = plan.names()
        with self.open() as remote:
            # Before any work, as for a local target.
            others = remote.others(names, overwrite=plan.wanted.overwrite)
            done = {name.number: placed for name in names if (placed := remote.finished(remote.final(name), name))}
            tasks = [RemoteTask(plan.task(name, Path()), self) for name in names if name.number not in done]
            remote.want(names[0])
            try:
                results = plan.collect(done, self._run(plan, tasks, remote, names[0]), progress)
                check_set(plan.job, results)
                for name in names:
                    remote.place(name)
            # All shards are written again in another form, so none of these can be continued.
            except MixedImagesError:
                remote.clear(names)
                raise
            except BaseException:
                remote.unwant(names[0])
                raise
            # The manifest first: a pack without one does not count, so a half-removed one cannot be read.
            for path in others:
                remote.store.remove(f"{path}.json")
                remote.store.remove(path)
            remote.clear(names)
            nbytes = sum(remote.store.size(remote.final(name)) or 0 for name in names)
        base = self.label.rpartition("/")[0]
        files = [f"{base}/{shard_path(self.scratch, name.number, name.total).name}" for name in names]
        pattern = f"{base}/{shard_pattern(self.scratch, plan.count).name}"
        return set_report(plan.job, results, pattern=pattern, files=files, nbytes=nbytes, began=began)

    def _run(
        self, plan: SetPlan, tasks: list[RemoteTask], remote: _SetFolder, first: ShardName
    ) -> Generator[tuple[ShardTask, ShardResult]]:
        if plan.wanted.executor is None:
            for task in tasks:
                yield task.shard, _write(task, remote, lambda one: write_shard_of(plan.job, plan.opened, one))
            return
        executor = plan.wanted.executor
        coming = run_tasks(executor, write_remote_shard, tasks, stop=lambda: remote.unwant(first), silence_s=_SILENCE_S)
        with contextlib.closing(coming):
            for task, result in coming:
                yield task.shard, result


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """Everything that a worker needs to write one shard on its own disk and upload it. Picklable as `ShardTask` is."""

    shard: ShardTask
    """What to write."""
    target: RemoteTarget
    """Where it goes."""


def write_remote_shard(task: RemoteTask) -> ShardResult:
    """Write one shard and upload it unless it exists. Called in a worker, and again when a worker died.

    Raises:
        TargetNotWritableError: it cannot be uploaded.
        Exception: as `write_shard`.
    """
    with task.target.open() as remote:
        return _write(task, remote, write_shard)


def _write(task: RemoteTask, remote: _SetFolder, write: Callable[[ShardTask], ShardResult]) -> ShardResult:
    name = task.shard.name
    done = remote.finished(remote.part(name), name) or remote.finished(remote.final(name), name)
    if done is not None:
        return done
    model = task.target.scratch.with_name(f"colabstage-{name.made_of}-{name.number:05}")
    # Kept after any error: the journal of the shard on this disk says what is finished in it.
    with open_workspace(model) as workspace:
        local = replace(task.shard, folder=str(workspace.path))
        with _as_long_as_wanted(remote, name, workspace.path / WANTED):
            result = write(local)
        # Looked at after the work, which takes long: another worker may have done it meanwhile.
        if not remote.has_all(name):
            remote.upload(local.path, name)
            # The set may have been finished during the upload, by a worker that took over from this one.
            if remote.has_all(name):
                remote.discard(name)
        return result


@contextlib.contextmanager
def _as_long_as_wanted(remote: _SetFolder, name: ShardName, file: Path) -> Iterator[None]:
    """Keep a local file that is removed when the caller, wherever it is, no longer wants the shards."""
    # Looking at a local file is cheap enough for every sample; asking the storage is not.
    file.touch()
    ending = threading.Event()

    def watch() -> None:
        while not ending.wait(_LOOK_S):
            with contextlib.suppress(SourceError):  # no answer does not mean that they are not wanted
                if not remote.is_wanted(name):
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
    """The remote folder that shards are uploaded to."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._folder, _, self._name = store.path.rpartition("/")

    def final(self, name: ShardName) -> str:
        """Return the final path of a shard."""
        return f"{self._folder}/{self._file(name)}"

    def part(self, name: ShardName) -> str:
        """Return the path of a shard until all of them are uploaded."""
        return f"{self._parts(name)}/{self._file(name)}"

    def finished(self, path: str, name: ShardName) -> ShardResult | None:
        """Return the result of a shard that is complete; `None` when it is not, or belongs to another set."""
        sidecar = self.store.content(f"{path}.json")
        manifest = None if sidecar is None else parse_manifest(parse_json(sidecar), path)
        if manifest is None or manifest.shard != str(name) or self.store.size(path) != manifest.size:
            return None
        return ShardResult.of(manifest)

    def others(self, names: list[ShardName], *, overwrite: bool) -> list[str]:
        """Return existing files that are removed at the end: all but this set's own shards and those to be replaced.

        Raises:
            TargetExistsError: there are such files, but they must not be replaced.
        """
        target = Path(self._name)
        own = {self._file(name): name for name in names}
        foreign = []
        for row in self.store.list_folder(self._folder) if self.store.exists(self._folder) else []:
            found = str(row["name"]).rpartition("/")[2]
            part = PartName.of(Path(found))
            if row.get("type") == "directory" or (part.stem, part.suffix) != (target.stem, target.suffix):
                continue
            # Rows would be read behind others than those they were appended to.
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
        """Upload a shard, its manifest last."""
        self.store.put(file, self.part(name))
        self.store.put(manifest_path(file), f"{self.part(name)}.json")

    def place(self, name: ShardName) -> None:
        """Give an uploaded shard its name, unless it has it."""
        part, final = self.part(name), self.final(name)
        if self.finished(part, name) is None:
            return
        # As for local files: a new shard appears complete, and one that is replaced has no manifest for a moment.
        replaces = self.store.exists(final)
        if replaces:
            self.store.remove(f"{final}.json")
        else:
            self.store.move(f"{part}.json", f"{final}.json")
        self.store.move(part, final)
        if replaces:
            self.store.move(f"{part}.json", f"{final}.json")

    def want(self, name: ShardName) -> None:
        """Mark the set of a shard as wanted."""
        self.store.put_bytes(b"wanted", f"{self._parts(name)}/{WANTED}")

    def unwant(self, name: ShardName) -> None:
        """Mark the set of a shard as no longer wanted."""
        self.store.remove(f"{self._parts(name)}/{WANTED}")

    def is_wanted(self, name: ShardName) -> bool:
        """Return whether the set of a shard is wanted."""
        return self.store.exists(f"{self._parts(name)}/{WANTED}")

    def has_all(self, name: ShardName) -> bool:
        """Return whether a shard's set has been finished, by other workers while this one seemed lost."""
        return not self.is_wanted(name) and self.finished(self.final(name), name) is not None

    def discard(self, name: ShardName) -> None:
        """Remove the uploaded parts of a shard."""
        self.store.remove(f"{self.part(name)}.json")
        self.store.remove(self.part(name))

    def clear(self, names: list[ShardName]) -> None:
        """Remove everything in the folder of unfinished shards."""
        self.unwant(names[0])
        for name in names:
            self.discard(name)
        self.store.remove_folder(self._parts(names[0]))

    def _parts(self, name: ShardName) -> str:
        return f"{self._folder}/.colabstage-{Path(self._name).stem}-{name.made_of}"

    def _file(self, name: ShardName) -> str:
        return shard_path(Path(self._name), name.number, name.total).name

"""The place of a cache: a folder, on a mounted Drive for example, or a prefix in a bucket (`stage/bucket`).

Both keep the same files under the same names, so a bucket that is filled from a folder by other means is a cache too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from colabstage.errors import ColabstageError
from colabstage.h5.manifest import Manifest, read_manifest
from colabstage.h5.parts import shards_beside
from colabstage.io.pipeline import DaemonPool
from colabstage.machine.mounts import drive_root, require_answer, run_watched, silence_of
from colabstage.machine.resources import check_space
from colabstage.sources.parse import LocalSource, ObjectSource, local_source, parse_source
from colabstage.stage.publish import (
    PREVIOUS_SUFFIX,
    discard_version,
    publish_file,
    published_before,
    sweep_leftovers_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.io.progress import Progress
    from colabstage.stage.publish import PublishReport

T = TypeVar("T")

# Manifests that are read at once.
READERS = 8


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

        Only one that is as it was written, or that `ours` recognises.
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
            assert ours is not None
            found = look_at_file(file)
            return found is not None and ours(found)

        gone = discard_version(path) if ours is None else discard_version(path, ours=is_ours)
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
    with DaemonPool(READERS, "colabstage-look") as pool:
        # Each is a round trip on a mount.
        return pool.run(look_at_file, paths)

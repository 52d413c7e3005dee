"""The lasting copy of a pack: found by its manifest, restored block by block, published when it is new."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from colabstage.errors import CancelledError, ColabstageError, DriveDisconnectedError, DriveError, SourceError
from colabstage.h5.manifest import Manifest, manifest_path, read_manifest, remove_manifest, write_manifest
from colabstage.io.files import disk_use, make_folder
from colabstage.io.ownership import move_vouched, put_file, remove_empty, whatever_is_there
from colabstage.io.retry import RetryPolicy
from colabstage.io.temporaries import remove_own
from colabstage.io.workspace import only_for, open_workspace
from colabstage.machine.drive import ask_drives, drive_root
from colabstage.machine.mounts import silence_of
from colabstage.machine.platforms import detect_platform
from colabstage.machine.resources import check_space
from colabstage.machine.watched import run_watched
from colabstage.sources.copy import copy_blocks
from colabstage.stage.publish import PREVIOUS_SUFFIX

if TYPE_CHECKING:
    from colabstage.io.progress import Cancellation, Progress
    from colabstage.stage.request import StageRequest


@dataclass(frozen=True, slots=True)
class CachedPack:
    """Hold a pack in the cache whose manifest is whole and whose length is right."""

    path: Path
    """The packed file in the cache."""
    manifest: Manifest
    """What it was made of, and the hash of each block."""


class Cache:
    """The lasting packs as one call sees them.

    Their folder is looked for once, and not before it is needed: a Drive that hangs takes its time.
    """

    def __init__(self, request: StageRequest) -> None:
        self._request = request
        self._chosen: tuple[Path | None, str] | None = None
        self.is_left = False
        """Whether the pack there is to stay as it is, so that none is published."""

    @property
    def folder(self) -> Path | None:
        """Return the folder, `None` for none."""
        return self._choose()[0]

    @property
    def why(self) -> str:
        """Return why it is that folder, or none, in a few words."""
        return self._choose()[1]

    @property
    def publishes(self) -> bool:
        """Return whether a new pack goes there."""
        return not self.is_left and self.folder is not None

    def leave_as_it_is(self) -> None:
        """Publish nothing: what is there is of use to others."""
        self.is_left = True

    def find(self) -> CachedPack | None:
        """Return the pack of the request, `None` where there is none, or none is wanted."""
        folder = self.folder if self._request.wants_pack else None
        if folder is None:
            return None
        try:
            return run_watched(lambda: find_cached(self._request, folder), folder)
        except DriveDisconnectedError as error:
            # It answered a moment ago. Whoever wants the data gets it without the cache, and is told.
            self._chosen = None, str(error).removesuffix(".")
            return None

    def _choose(self) -> tuple[Path | None, str]:
        if self._chosen is None:
            request = self._request
            self._chosen = find_cache_dir(request.cache_dir, near=request.drive_path, local=request.folder)
        return self._chosen


def find_cache_dir(asked: Path | Literal["auto"] | None, *, near: Path | None, local: Path) -> tuple[Path | None, str]:
    """Return the folder of lasting packs, `None` for none, with the reason in a few words.

    Args:
        asked: a folder, `"auto"`, or `None` for no cache.
        near: a path whose Drive is taken before any other.
        local: where packs are used; a lasting folder on that disk would be no gain.
    """
    if asked is None:
        return None, "no cache was asked for"
    if isinstance(asked, Path):
        return asked, "as given"
    drive = ask_drives(near=near)
    if drive.folder is not None:
        return drive.folder / "colabstage", "on the mounted Google Drive"
    if drive.silent:
        # Another folder would be a second cache, of which the next session knows nothing.
        return None, f"the Drive client at '{drive.silent[0]}' does not answer"
    return _find_lasting(local)


def _find_lasting(local: Path) -> tuple[Path | None, str]:
    """Return the folder of packs on the platform's own lasting disk, and the reason."""
    platform = detect_platform()
    lasting = platform.persistent_dir
    if lasting is None or not lasting.is_dir():
        return None, platform.not_lasting or f"no Drive is mounted, and {platform.title} has no other lasting folder"
    # A copy on the same disk would save nothing and take the room twice.
    if lasting.stat().st_dev == _device_of(local):
        return None, f"'{lasting}' is on the same disk"
    return lasting / "colabstage", f"the lasting folder of {platform.title}"


def _device_of(path: Path) -> int:
    for place in (path, *path.parents):
        if place.exists():
            return place.stat().st_dev
    return -1


def find_cached(request: StageRequest, cache_dir: Path) -> CachedPack | None:
    """Find the pack of this request in the cache, or the one before it where publishing was interrupted."""
    # A cache on a dead mount counts as none; the source may well be readable.
    if silence_of(cache_dir) is not None:
        return None
    current = cache_dir / f"{request.name}.h5"
    for path in (current, current.with_name(current.name + PREVIOUS_SUFFIX)):
        try:
            manifest = read_manifest(path)
            # The name holds eight digits of the key, the manifest all of it.
            if manifest is None or manifest.key != request.key:
                continue
            if path.stat().st_size == manifest.size:
                return CachedPack(path, manifest)
        except (OSError, ColabstageError):
            continue
    return None


def restore_pack(
    cached: CachedPack, request: StageRequest, *, progress: Progress, cancellation: Cancellation
) -> tuple[int, int]:
    """Copy a cached pack to its place on the local disk, verifying every block as it passes.

    What an interrupted copy left there is compared with the manifest, and only what is missing is read from the cache.

    Returns:
        The number of bytes, and how many of them were here already.

    Raises:
        DamagedPackError, SourceReadError, SourceNotFoundError, DriveDisconnectedError: the cache cannot be used; what
            is on the local disk has not changed.
        NotEnoughSpaceError, TargetNotWritableError, CancelledError.
    """
    size = cached.manifest.size
    target = request.pack_path
    kept = 0

    def keep(nbytes: int) -> None:
        nonlocal kept
        kept += nbytes

    make_folder(request.folder)
    try:
        with open_workspace(
            restore_name(request), keeps=only_for(KeyboardInterrupt, CancelledError, SourceError, DriveError)
        ) as workspace:
            temp, resumed = workspace.path / target.name, workspace.resumed
            if target.is_file() and not manifest_path(target).exists():
                # An interrupted run had all of it in place, and nothing vouches for it: each block is compared again.
                remove_own(temp)
                move_vouched(target, temp, whatever_is_there)
                resumed = True
            # A mounted Drive keeps what passes through it on the same disk.
            copies = 2 if drive_root(cached.path) is not None else 1
            here = min(disk_use(workspace.path), size) if resumed else 0
            check_space(request.folder, copies * (size - here), f"The packed copy of '{request.source.name}'")
            with progress.step("copy from cache", total=size, unit="B") as step:
                copy_blocks(
                    cached.path,
                    temp,
                    size=size,
                    block_bytes=cached.manifest.block_bytes,
                    expected=cached.manifest.hashes,
                    step=step,
                    cancellation=cancellation,
                    policy=RetryPolicy(),
                    keep=keep if resumed else None,
                )
            # The manifest goes first: who dies now leaves a pack that nothing vouches for, and is gone on with above.
            remove_manifest(target)
            put_file(temp, target, replaces=whatever_is_there)  # in the dataset's own folder, under its own name
    except BaseException:
        remove_empty(request.folder)  # it is, unless something was there before or was kept for the next try
        raise
    write_manifest(target, cached.manifest)
    return size, kept


def restore_name(request: StageRequest) -> Path:
    """Name what an unfinished copy from the cache is called: not the pack itself, whose leftovers are packed on."""
    return request.pack_path.with_name(f"{request.pack_path.name}.copy")

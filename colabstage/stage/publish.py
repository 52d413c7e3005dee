"""`publish_file`: a finished file into Google Drive, or any other lasting place, so that it can be trusted there.

Temporary name, every byte read back and compared, rename, manifest last; the version that was there before is kept
under another name. A Drive mount answers "written" long before Google has the bytes, so "copied" and "uploaded" are
two things, and this does the first.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import DamagedPackError, SourceNotFoundError, TargetExistsError
from colabstage.fetch.copy import copy_blocks, translate_write_error
from colabstage.fileops import hash_ranges, make_folder, remove_any, sweep_orphans, temp_beside
from colabstage.h5.manifest import BLOCK_BYTES, Manifest, manifest_path, read_manifest, write_manifest
from colabstage.machine.drive import drive_root
from colabstage.machine.resources import check_space, usable_cores
from colabstage.progress import Cancellation, resolve_progress
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from colabstage.progress import Progress

PREVIOUS_SUFFIX = ".previous"


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What publishing did.

    `path`: where the file is now. `previous`: where the version before it is, `None` when there was none.
    `nbytes`, `seconds`: how much, and how long, reading back included.
    `uploading`: whether the place is a Drive mount, which uploads in the background: the bytes are safe only after
    `flush_drive()`, or once they show on drive.google.com.
    """

    path: Path
    previous: Path | None
    nbytes: int
    seconds: float
    uploading: bool

    def __str__(self) -> str:
        size, rate = format_bytes(self.nbytes), format_rate(self.nbytes, self.seconds, "B")
        text = f"Copied {size} to '{self.path}' and read it back in {format_duration(self.seconds)} ({rate})."
        if self.uploading:
            text += " Drive uploads it in the background; flush_drive() waits for that."
        return text


def publish_file(
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    keep_previous: bool = True,
    progress: bool | Progress = True,
) -> PublishReport:
    """Copy a finished file to a lasting place and verify it there.

    Args:
        path: the file, for example a checkpoint.
        to: the file to become, or a folder that exists, in which it keeps its name. A manifest is written beside it
            (`NAME.json`), last: it holds the hash of every 8 MiB block.
        keep_previous: keep what stood there as `NAME.previous`, one generation.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Raises:
        SourceNotFoundError: `path` is no file.
        TargetExistsError: `to` is a folder's name ending in a place that cannot be replaced.
        NotEnoughSpaceError, TargetNotWritableError: nothing at `to` has changed.
        DamagedPackError: what was read back differs from what was written; nothing at `to` has changed.
    """
    source = Path(path)
    if not source.is_file():
        msg = f"'{source}' is not a file; expected one that is finished and closed."
        raise SourceNotFoundError(msg)
    target = Path(to)
    if target.is_dir():
        target /= source.name
    if target.is_dir():
        msg = f"'{target}' is a folder; expected the name of a file."
        raise TargetExistsError(msg)
    size = source.stat().st_size
    known = read_manifest(source)
    fits = known is not None and (known.size, known.block_bytes) == (size, BLOCK_BYTES)
    manifest = known if fits else None
    make_folder(target.parent)
    sweep_orphans(target.parent, name=target.name)
    check_space(target.parent, size, f"The copy of '{source.name}'")
    began = time.monotonic()
    with resolve_progress(progress).step(f"publish {target.name}", total=size, unit="B") as step:
        temp = temp_beside(target)
        try:
            hashes = copy_blocks(
                source,
                temp,
                size=size,
                block_bytes=BLOCK_BYTES,
                expected=None if manifest is None else manifest.hashes,
                step=step,
                cancellation=Cancellation(),
                policy=RetryPolicy(),
            )
            read_with_retry(lambda: _read_back(temp, size, hashes), str(temp), policy=RetryPolicy())
            previous = _replace(temp, target, keep_previous=keep_previous)
        except BaseException:
            remove_any(temp)
            raise
    write_manifest(target, manifest or Manifest(size, BLOCK_BYTES, tuple(hashes)))
    return PublishReport(target, previous, size, time.monotonic() - began, drive_root(target) is not None)


def _read_back(temp: Path, size: int, hashes: list[str]) -> None:
    """Compare what the place now holds with what was sent."""
    found_size = temp.stat().st_size
    ranges = [(offset, min(BLOCK_BYTES, size - offset)) for offset in range(0, size, BLOCK_BYTES)]
    if found_size == size and hash_ranges(temp, ranges, threads=usable_cores()) == hashes:
        return
    msg = (
        f"What was written to '{temp.parent}' reads back differently ({found_size:,} bytes of {size:,}). "
        "Nothing there was replaced. Try again; if it happens again, mount the drive anew first."
    )
    raise DamagedPackError(msg)


def _replace(temp: Path, target: Path, *, keep_previous: bool) -> Path | None:
    """Put the new file in its place, keeping the old one; between the two renames the old one is found as previous."""
    previous = target.with_name(target.name + PREVIOUS_SUFFIX)
    try:
        kept = False
        if target.exists():
            if keep_previous:
                _discard(previous)
                target.rename(previous)
                with contextlib.suppress(FileNotFoundError):
                    manifest_path(target).rename(manifest_path(previous))
                kept = True
            else:
                _discard(target)
        manifest_path(target).unlink(missing_ok=True)
        temp.rename(target)
    except OSError as error:
        raise translate_write_error(error, target) from error
    return previous if kept else None


def _discard(path: Path) -> None:
    """Remove a file; emptied first, because Drive's trash counts against the account by size."""
    manifest_path(path).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path, 0)
        path.unlink()

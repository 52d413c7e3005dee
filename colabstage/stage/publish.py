"""`publish_file` and `restore_file`: a finished file to Google Drive, or any other persistent storage, and back.

A version is written beside its target, read back and compared; then its manifest is created, which only one process
can, and it gets its name. Whenever this is killed, one complete version has its manifest, the new one or the previous
one, and the next run continues with the blocks that are already right. So restoring compares every block, and takes the
previous version where one is wrong.

A Drive mount answers "written" long before Google has the bytes. `wait_uploaded` waits until Drive's client reports the
MD5 of what was written, of the file and of its manifest.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from colabstage.errors import (
    DamagedPackError,
    NewerFormatError,
    OptionError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.h5.manifest import (
    BLOCK_BYTES,
    Manifest,
    check_place_of_manifest,
    claim_manifest,
    is_as_written,
    is_manifest,
    is_whole,
    manifest_of_bytes,
    manifest_path,
    read_manifest,
    remove_manifest,
    sweep_pack_leftovers,
    verified,
    write_manifest,
)
from colabstage.io.arguments import GOES_ON, stops_with, takes
from colabstage.io.boundary import typed
from colabstage.io.files import RetryPolicy, make_folder, read_json, read_with_retry, target_file, typed_write_errors
from colabstage.io.missing import whereabouts
from colabstage.io.ownership import among_others, atomic_path, move_vouched, put_file, remove_vouched, sweep_orphans
from colabstage.io.progress import SYSTEM_CLOCK, cancellation_of, resolve_progress
from colabstage.io.redaction import show_address
from colabstage.io.units import format_bytes, format_duration, format_rate
from colabstage.io.workspace import disk_use, is_worked_in, open_workspace
from colabstage.machine.drive_attributes import wait_uploaded as wait_until_uploaded
from colabstage.machine.mounts import drive_root, place_in, required_to_stay, silence_of
from colabstage.machine.resources import check_space, free_space
from colabstage.machine.watched import run_with_one_remount
from colabstage.sources.copy import copy_blocks
from colabstage.sources.parse import absolute_path
from colabstage.sources.remote import Checksum, pieces_of
from colabstage.trees.bytes import LocalBytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.progress import Cancellation, Progress, ProgressStep
    from colabstage.sources.copy import Copied

PREVIOUS_SUFFIX = ".previous"
# What has a manifest and no file for so long was given up; and how often that is looked at.
_PLACING_S, _LOOK_S = 2.0, 0.02
Proof = Literal["uploaded", "read back", "written"]
"""What is known about a published file. `uploaded`: Drive's client reports that it is in the cloud with its manifest,
and the MD5 of what was written. `read back`: every byte was read from the storage and compared. `written`: read back
too, but from Drive's client on this machine, which uploads it later.
"""


# Inode, length and times of a file: they change whenever something writes to it.
FileState = tuple[int, int, int, int]
P = TypeVar("P", bound="Path | str")


@dataclass(frozen=True, slots=True)
class PublishReport(Generic[P]):
    """What publishing did."""

    path: P
    """Where the file is now; in a bucket its address."""
    previous: Path | None
    """Where the previous version is; `None` when there is none."""
    nbytes: int
    """How much was published."""
    seconds: float
    """How long it took, including reading back."""
    uploading: bool
    """Whether it is on a Drive mount that may still have to upload it.

    The bytes are safe only with `wait_uploaded=True`, or once they appear on drive.google.com.
    """
    kept_bytes: int = 0
    """How much of it was already there, from an interrupted run, and was not copied again."""
    proof: Proof = "read back"
    """What is known about it."""
    why: str = ""
    """Why it is unknown whether it was uploaded, where that was waited for and Drive's client does not report it."""

    def __str__(self) -> str:
        size, rate = format_bytes(self.nbytes), format_rate(self.nbytes, self.seconds, "B")
        place = show_address(self.path) if isinstance(self.path, str) else self.path
        text = f"Copied {size} to '{place}' and read it back in {format_duration(self.seconds)} ({rate})."
        if self.nbytes and self.kept_bytes == self.nbytes:
            text = f"'{place}' ({size}) is already in place; nothing was copied."
        elif self.kept_bytes:
            text += f" {format_bytes(self.kept_bytes)} of it were already in place."
        if self.proof == "uploaded":
            text += " Drive's client reports that it is in the cloud, with the MD5 of what was written."
        elif self.uploading:
            # Where the client reports nothing, only a flush is left, and that unmounts Drive.
            waits = "flush_drive(remount=False), at the end of the session," if self.why else "wait_uploaded=True"
            untold = f" Drive's client does not tell when that is done: {self.why}." if self.why else ""
            text += f" Drive uploads it in the background; {waits} waits for that.{untold}"
        return text


@takes(remedies={"target": 'Write publish_file("model.pt", "/content/drive/MyDrive/checkpoints/").'})
@stops_with(GOES_ON)
@typed("path", writes=("target",))
def publish_file(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    keep_previous: bool = True,
    wait_uploaded: bool = False,
    upload_timeout_s: float = 3600.0,
    progress: bool | Progress = True,
) -> PublishReport[Path]:
    """Copy a finished file to persistent storage and verify it there.

    Args:
        path: the file, for example a checkpoint. Nothing may write to it meanwhile.
        target: the path of the copy, or a folder, in which it keeps its name: an existing folder, or a name that ends
            in a slash. A manifest with the hash of every 8 MiB block is written beside the copy (`NAME.json`).
        keep_previous: keep the previous version as `NAME.previous`, one generation.
        wait_uploaded: on a mounted Drive, return only when the file is in the cloud according to Drive's client. Where
            the client does not report that, the report's `why` has the reason, and its `proof` is `"written"`.
        upload_timeout_s: seconds that the upload may take, which runs at about 2 MB/s for a file.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Raises:
        OptionError: `path` or `target` is an address, which is not published to; or both are one file.
        SourceNotFoundError: `path` is not a file.
        SourceChangedError: something wrote to `path` while it was being copied.
        TargetExistsError: the target is not an unchanged version that `publish_file` wrote, but a folder, a link, or a
            file that something else created or changed; or another file has the name of the manifest or of the
            previous version.
        DriveNotMountedError: `target` is on Drive, and none is mounted there, or it was unmounted meanwhile.
        NotEnoughSpaceError, TargetNotWritableError, DriveDisconnectedError: the storage failed.
        DamagedPackError: what was read back differs from what was written.
        DriveError: it was copied, but not uploaded in `upload_timeout_s` seconds. Call this again to continue waiting.

    Whatever else is raised, nothing at `target` has changed.
    """
    source, place = absolute_path(path, "path"), absolute_path(target, "target")
    # A name that ends in a slash means a folder, whether it exists or not: as a file named `checkpoints`, three
    # checkpoints published to `checkpoints/` would replace each other.
    where = f"{place}{os.sep}" if os.fspath(target).endswith(os.sep) else str(place)
    shown = resolve_progress(progress)

    # The copy is continued, so a Drive that dies meanwhile costs no more than mounting it again.
    report = run_with_one_remount(
        lambda: _publish(source, where, keep_previous=keep_previous, shown=shown),
        place=place if drive_root(place) is not None else source,
        touches=(source, place),
    )
    return await_upload(report, source, timeout_s=upload_timeout_s, progress=shown) if wait_uploaded else report


def _publish(source: Path, to: str, *, keep_previous: bool, shown: Progress) -> PublishReport[Path]:
    with required_to_stay(source, to):
        check_is_file(source)
        target = target_file(to, source.name)
        if place_in(target, source) is not None:
            msg = f"target='{target}' is the very file that is to be copied. Choose another folder, or another name."
            raise OptionError(msg)
        return publish_there(source, target, keep_previous=keep_previous, shown=shown)


def publish_there(source: Path, target: Path, *, keep_previous: bool, shown: Progress) -> PublishReport[Path]:
    """Copy a finished file to `target`, which replaces a version that colabstage wrote; as `publish_file`."""
    _check_target(target)
    began, state, cancellation = time.monotonic(), file_state(source), cancellation_of(shown)
    known = manifest_of_version(source, state[1])
    make_folder(target.parent)
    with shown.step(f"publish {target.name}", total=state[1], unit="B") as step:
        # A run that was killed after the last rename has everything in place, and gigabytes need not be uploaded again.
        there = _find_content(source, target, state, known, cancellation)
        if there is not None:
            sweep_leftovers_of(target)
            step.advance(there.size)
            kept = there.size
            write_manifest(target, there)
        else:
            among_others(lambda: _check_replaceable(target), *_versions(target))
            kept = _copy(source, target, state, known, step=step, cancellation=cancellation)
    if not keep_previous:
        discard_version(previous_path(target))
    report = published_before(target, state[1])
    return replace(report, seconds=time.monotonic() - began, kept_bytes=kept)


def check_is_file(source: Path) -> None:
    """Refuse what is not a file, or not there."""
    if not source.is_file():
        what = "is not a file; expected one that is finished and closed."
        msg = f"'{source}' {what}" if source.exists() else f"There is nothing at '{source}'. {whereabouts(source)}"
        raise SourceNotFoundError(msg)


def published_before(target: Path, nbytes: int) -> PublishReport[Path]:
    """Return the report of a file that was published and read back before; whether it was uploaded is unknown."""
    previous, on_drive = previous_path(target), drive_root(target) is not None
    # By its length: nothing is replaced here, so nothing is read.
    is_kept = previous.is_file() and manifest_of_version(previous, previous.stat().st_size) is not None
    proof: Proof = "written" if on_drive else "read back"
    return PublishReport(target, previous if is_kept else None, nbytes, 0.0, on_drive, nbytes, proof)


def await_upload(
    report: PublishReport[P], source: Path, *, timeout_s: float, progress: bool | Progress = False
) -> PublishReport[P]:
    """Wait until the published copy of `source` is in the cloud, and return the report with its proof."""
    file: Path | str = report.path
    # An object in a bucket is in the cloud already.
    if not report.uploading or isinstance(file, str):
        return report
    place, shown = file, resolve_progress(progress)

    def wait() -> PublishReport[P]:
        with required_to_stay(place):
            return _await_upload(report, place, source, timeout_s, shown)

    return run_with_one_remount(wait, place=place)


def _await_upload(
    report: PublishReport[P], target: Path, source: Path, timeout_s: float, shown: Progress
) -> PublishReport[P]:
    began, cancellation = time.monotonic(), cancellation_of(shown)
    beside = manifest_path(target)
    # A version cannot be restored without its manifest, so that has to arrive as well.
    md5s = {target: _md5_published(source, read_manifest(target), cancellation), beside: _md5_of(beside, cancellation)}
    with shown.step(f"upload {target.name}", total=report.nbytes, unit="B") as step:
        why = wait_until_uploaded(md5s, timeout_s=timeout_s, cancellation=cancellation)
        step.advance(report.nbytes)
    report = replace(report, seconds=report.seconds + time.monotonic() - began, why=why)
    return report if why else replace(report, proof="uploaded", uploading=False)


def _md5_published(source: Path, manifest: Manifest | None, cancellation: Cancellation) -> str:
    """Return the MD5 of the file that was published, if it still agrees with the manifest."""
    # The local file's: reading the published one would only return what is in the client's cache.
    state, md5 = file_state(source), _md5_of(source, cancellation)
    if manifest is None or not is_whole(source, manifest, cancellation) or file_state(source) != state:
        msg = (
            f"'{source}' was published, but has changed since, so there is nothing to compare what arrives with. "
            "Publish it again."
        )
        raise SourceChangedError(msg)
    return md5


def _md5_of(file: Path, cancellation: Cancellation) -> str:
    with contextlib.closing(LocalBytes(file)) as content:
        return Checksum("md5", "").digest_of(pieces_of(content.pread, content.size, cancellation))


def previous_path(target: Path) -> Path:
    """Return the path of the previous version of `target`."""
    return target.with_name(target.name + PREVIOUS_SUFFIX)


def file_state(file: Path) -> FileState:
    """Return the state of a file as it is now."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _check_target(target: Path) -> None:
    """Refuse a target that cannot be a published file."""
    # Following a link would replace a file in a place that the caller has not named.
    if target.is_symlink():
        msg = f"'{target}' is a link. Publish to what it leads to, or under another name."
        raise TargetExistsError(msg)
    if target.is_dir():
        msg = f"'{target}' is a folder; expected the name of a file."
        raise TargetExistsError(msg)
    check_place_of_manifest(target)


def _check_replaceable(target: Path) -> None:
    """Refuse to replace a file that is not an unchanged version that colabstage wrote."""
    # The previous version too: publishing removes it.
    for file in (target, previous_path(target)) if os.path.lexists(target) else ():
        check_place_of_manifest(file)
        if not os.path.lexists(file) or is_as_written(file):
            continue
        why, remedy = "no manifest of colabstage's is beside it", f"Rename '{file}', or delete it"
        if is_manifest(manifest_path(file)):
            why = "its content is not what its manifest describes, so it is damaged, or somebody wrote to it"
            remedy = f"Delete '{file}' unless you need what is in it"
        msg = (
            f"'{file}' is not a version that publish_file put there as it is now: {why}. {remedy}, then publish "
            "again; or publish under another name."
        )
        raise TargetExistsError(msg)


def _versions(target: Path) -> tuple[Path, ...]:
    """Return all that publishing a file puts in its folder."""
    return tuple(path for file in (target, previous_path(target)) for path in (file, manifest_path(file)))


def manifest_of_version(file: Path, size: int) -> Manifest | None:
    """Return the manifest beside a file, if it describes a file of that size."""
    try:
        manifest = read_manifest(file)
    except NewerFormatError:
        return None
    return manifest if manifest is not None and manifest.size == size else None


def _find_content(
    source: Path, target: Path, state: FileState, known: Manifest | None, cancellation: Cancellation
) -> Manifest | None:
    """Return the manifest of `target`, with its time, if it has the content of `source`."""
    with contextlib.suppress(OSError):  # a file that is not there, or cannot be read, is written
        if not target.is_file() or target.stat().st_size != state[1]:
            return None
        wanted = known or manifest_of_bytes(source, cancellation)
        there = manifest_of_version(target, state[1])
        # Other hashes mean another version, which need not be read; blocks of another length cannot be compared.
        if there is not None and there.block_bytes == wanted.block_bytes and there.hashes != wanted.hashes:
            return None
        found = verified(target, wanted, cancellation)
        return found if file_state(source) == state else None
    return None


def _copy(
    source: Path,
    target: Path,
    state: FileState,
    known: Manifest | None,
    *,
    step: ProgressStep,
    cancellation: Cancellation,
) -> int:
    """Copy the file beside `target`, read it back, and put it in its place; return how many bytes were there before."""
    size = state[1]
    try:
        with (
            typed_write_errors(target),
            open_workspace(
                target,
                keeps=lambda *_: False,
                answers=lambda folder: silence_of(folder) is None,
                empty=_keeps_trash(target),
            ) as workspace,
        ):
            # Before free space is asked for: on Drive the leftovers of a dead run count against the account.
            sweep_leftovers_of(target)
            in_place = min(disk_use(workspace.path), size) if workspace.resumed else 0
            # Drive's client reports 0 for an account without a limit, too; there only writing tells.
            if not (_keeps_trash(target) and free_space(target.parent) == 0):
                check_space(target.parent, size - in_place, f"The copy of '{source.name}'")
            temp = workspace.path / target.name
            hashes, kept = copy_file(
                source, temp, size, known, step=step, cancellation=cancellation, resume=workspace.resumed
            )
            written = known or Manifest(size, BLOCK_BYTES, tuple(hashes))
            # A mount may answer "written" for bytes that it could not keep.
            manifest = read_with_retry(lambda: _read_back(temp, written, cancellation), str(temp), policy=RetryPolicy())
            # Right before the first rename: a file that was written to meanwhile is a mixture of two states.
            check_unchanged(source, state)
            among_others(lambda: _put_version(temp, target, manifest), *_versions(target))
    except (DamagedPackError, SourceReadError):
        # A source that is being written to looks damaged; then that is the cause to report.
        check_unchanged(source, state)
        raise
    return kept


def copy_file(
    source: Path,
    target: Path,
    size: int,
    manifest: Manifest | None,
    *,
    step: ProgressStep,
    cancellation: Cancellation,
    resume: bool = False,
) -> Copied:
    """Copy a file, in order, and compare each block with its manifest, if it has one."""
    return copy_blocks(
        source,
        target,
        size=size,
        block_bytes=BLOCK_BYTES if manifest is None else manifest.block_bytes,
        expected=None if manifest is None else manifest.hashes,
        step=step,
        cancellation=cancellation,
        policy=RetryPolicy(),
        resume=resume,
    )


def check_unchanged(source: Path, state: FileState) -> None:
    """Refuse a file that something wrote to since its state was taken."""
    with contextlib.suppress(OSError):
        if file_state(source) == state:
            return
    msg = (
        f"'{source}' changed while it was being published, so its copy would be a mixture. Nothing was replaced. "
        "Publish it when it is finished and closed; save a checkpoint under another name and rename it."
    )
    raise SourceChangedError(msg)


def _read_back(temp: Path, manifest: Manifest, cancellation: Cancellation) -> Manifest:
    """Compare what the storage returns with what was written; return the manifest with its time."""
    found = verified(temp, manifest, cancellation)
    if found is None:
        msg = (
            f"What was written to '{temp.parent}' reads back differently ({temp.stat().st_size:,} bytes of "
            f"{manifest.size:,}). Nothing there was replaced. Try again; if it happens again, mount the drive again "
            "first."
        )
        raise DamagedPackError(msg)
    return found


def _put_version(temp: Path, target: Path, manifest: Manifest) -> None:
    """Put the new file in its place, keeping the old one complete under one of its two names at any moment."""
    previous = previous_path(target)
    found = target.lstat() if os.path.lexists(target) else None
    _check_replaceable(target)
    there = None if found is None else manifest_of_version(target, found.st_size)
    if there is not None and (there.block_bytes, there.hashes) == (manifest.block_bytes, manifest.hashes):
        same = verified(target, manifest)
        if same is not None:
            # Another process published the same meanwhile. It stays, and so does the version before it.
            write_manifest(target, same)
            return
    if found is not None and there is not None:
        discard_version(previous)
        # With the time that it has now: a remount may have changed it.
        write_manifest(previous, replace(there, mtime_ns=found.st_mtime_ns))
        # Another process may have put its own version there meanwhile.
        move_vouched(target, previous, lambda file: is_as_written(file) and read_manifest(file) == there)
        remove_vouched(manifest_path(target), lambda _: read_manifest(target) == there)
    try:
        # Each file gets its manifest before its name, so a file without one was never published by us.
        _claim(target, manifest, workspace=temp.parent)
        put_file(temp, target, replaces=lambda _: False)
    except BaseException:
        # The disk is full, for example. Renaming takes no room, so the version that was there gets its name again.
        if there is not None and not os.path.lexists(target):
            with contextlib.suppress(OSError):
                remove_manifest(target)
                move_vouched(manifest_path(previous), manifest_path(target), is_manifest)
                move_vouched(previous, target, lambda _: read_manifest(target) == there)
        raise


def _claim(target: Path, manifest: Manifest, *, workspace: Path) -> None:
    """Write the manifest of what is about to be put at `target`, unless another process is about to put something."""
    beside, deadline = manifest_path(target), SYSTEM_CLOCK.now() + _PLACING_S
    while not claim_manifest(target, manifest):
        found = read_json(beside)
        # A manifest without a file is of a run that died, or of one that is about to put its file there.
        if not os.path.lexists(target) and is_worked_in(target.parent, but=workspace) and SYSTEM_CLOCK.now() < deadline:
            SYSTEM_CLOCK.sleep(_LOOK_S)
        elif os.path.lexists(target) or not remove_vouched(beside, partial(_is_still, found=found)):
            msg = f"Another process has published '{target}' meanwhile. Publish again."
            raise TargetExistsError(msg)


def _is_still(beside: Path, *, found: object) -> bool:
    return is_manifest(beside) and read_json(beside) == found


def sweep_leftovers_of(target: Path) -> None:
    """Remove what dead runs left behind for a file, its previous version and their manifests."""
    for file in (target, previous_path(target)):
        sweep_pack_leftovers(file, empty=_keeps_trash(target))


def _keeps_trash(place: Path) -> bool:
    """Tell whether removed files continue to take space there, as in Drive's trash, which counts their size."""
    return drive_root(place) is not None


def discard_version(file: Path, *, ours: Callable[[Path], bool] = is_as_written) -> bool:
    """Remove a version with its manifest, if `ours` recognises it; return whether it is gone."""
    if not remove_vouched(file, ours, empty=_keeps_trash(file)):
        return False
    remove_manifest(file)
    return True


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What restoring did."""

    path: Path
    """Where the file is now."""
    source: Path
    """The version that was copied."""
    nbytes: int
    """Its length."""
    passed_over: tuple[str, ...] = ()
    """One sentence for each newer version that is incomplete or damaged."""

    def __str__(self) -> str:
        text = f"'{self.path}' is '{self.source}' ({format_bytes(self.nbytes)}), compared block by block."
        return " ".join([text, *(f"Passed over: {reason}" for reason in self.passed_over)])


@takes()
@stops_with(GOES_ON)
@typed("published", writes=("target",))
def restore_file(
    published: str | os.PathLike[str],
    target: str | os.PathLike[str] = ".",
    *,
    overwrite: bool = False,
    progress: bool | Progress = True,
) -> RestoreReport:
    """Copy the newest complete version of a file that `publish_file` wrote back to this machine.

    >>> restore_file("/content/drive/MyDrive/checkpoints/model.pt")  # doctest: +SKIP

    Args:
        published: the file as it was published. Where it is damaged or incomplete, `NAME.previous` is taken, and the
            report says why.
        target: the path of the copy, or a folder, in which it keeps its name: an existing folder, or a name that ends
            in a slash.
        overwrite: replace an existing file that has other bytes; one that has the same bytes is left alone.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Raises:
        OptionError: `published` or `target` is an address, or `published` is a file that something else wrote.
        SourceNotFoundError: nothing has been published under that name.
        DamagedPackError: no version there is complete; the message says what is wrong with each.
        TargetExistsError: there is another file at `target`.
        DriveNotMountedError: `published` or `target` is on Drive, and none is mounted there.
        SourceReadError, DriveDisconnectedError: the storage failed, which is no reason to take another version.
        NewerFormatError: a newer colabstage wrote the manifest.
        NotEnoughSpaceError, TargetNotWritableError: the copy could not be written.

    Whatever is raised, nothing at `target` has changed.
    """
    newest, place = absolute_path(published, "published"), absolute_path(target, "target")
    # A name that ends in a slash means a folder, whether it exists or not.
    where = f"{place}{os.sep}" if os.fspath(target).endswith(os.sep) else str(place)
    shown = resolve_progress(progress)
    return run_with_one_remount(
        lambda: _restore_newest(newest, where, overwrite=overwrite, shown=shown),
        place=newest if drive_root(newest) is not None else place,
        touches=(newest, place),
    )


def _restore_newest(newest: Path, to: str, *, overwrite: bool, shown: Progress) -> RestoreReport:
    with required_to_stay(newest, to):
        versions = [version for version in (newest, previous_path(newest)) if version.is_file()]
        if not versions:
            msg = f"There is neither '{newest}' nor '{previous_path(newest).name}' beside it. {whereabouts(newest)}"
            raise SourceNotFoundError(msg)
        if not any(os.path.lexists(manifest_path(version)) for version in versions):
            msg = (
                f"'{newest}' was not written by publish_file: '{manifest_path(newest).name}' is not beside it, so "
                f"nothing shows whether it is whole. If torch.save wrote it, read it with torch.load('{newest}'); "
                "publish_file writes the next one so that it can be restored."
            )
            raise OptionError(msg)
        target, reasons = target_file(to, newest.name), list[str]()
        for version in versions:
            # Only damage makes the previous version the right one. After an error of the mount it would be old data,
            # without a sign of it.
            try:
                nbytes = _restore_version(version, target, shown, overwrite=overwrite)
            except DamagedPackError as error:
                reasons.append(str(error))
            else:
                return RestoreReport(target, version, nbytes, tuple(reasons))
    msg = f"No version of '{newest}' is complete. {' '.join(reasons)}"
    raise DamagedPackError(msg)


def _restore_version(version: Path, target: Path, progress: Progress, *, overwrite: bool) -> int:
    """Copy one version to `target`, unless it is there already; return its length."""
    manifest, size = read_manifest(version), version.stat().st_size
    if manifest is None:
        beside = manifest_path(version).name
        msg = f"'{version}' has no complete manifest '{beside}', so it cannot be checked."
        raise DamagedPackError(msg)
    if size != manifest.size:
        msg = f"'{version}' has {size:,} bytes of {manifest.size:,}."
        raise DamagedPackError(msg)

    def is_the_same(there: Path) -> bool:
        return there.is_file() and is_whole(there, manifest)

    def is_here() -> bool:
        here = is_the_same(target)
        if not here and (target.is_dir() or (target.exists() and not overwrite)):
            msg = (
                f"'{target}' exists and is not '{version}'. Rename it, restore to another name, or pass overwrite=True."
            )
            raise TargetExistsError(msg)
        return here

    if among_others(is_here, target):
        return size
    make_folder(target.parent)
    sweep_orphans(target.parent, name=target.name)
    # A mounted Drive caches whatever is read through it on the same disk.
    copies = 2 if drive_root(version) is not None else 1
    check_space(target.parent, copies * size, f"The copy of '{version.name}'")
    with (
        progress.step(f"restore {version.name}", total=size, unit="B") as step,
        atomic_path(target, replaces=lambda there: overwrite or is_the_same(there)) as temp,
    ):
        copy_file(version, temp, size, manifest, step=step, cancellation=cancellation_of(progress))
    return size

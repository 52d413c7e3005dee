"""`publish_file` and `restore_file`: a finished file to Google Drive, or any other persistent storage, and back.

Whenever publishing is killed, one complete version, the new or the previous one, has its manifest, and the next run
continues with the blocks that are already right (`places`). So restoring compares every block, and takes the previous
version if one is wrong.

A Drive mount reports a write long before Google has the bytes. `wait_uploaded` waits until Drive's client reports the
MD5 of what was written, for the file and for its manifest.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from colabstage.errors import DamagedPackError, OptionError, SourceChangedError, SourceNotFoundError, TargetExistsError
from colabstage.h5.manifest import Manifest, is_whole, manifest_of_bytes, manifest_path, read_manifest
from colabstage.io.arguments import absolute_path, whereabouts
from colabstage.io.boundary import GOES_ON, public
from colabstage.io.display import resolve_progress
from colabstage.io.files import file_state, make_folder
from colabstage.io.report import Shown
from colabstage.io.units import format_bytes, format_duration, format_rate, show_address
from colabstage.io.workspace import atomic_path, sweep_orphans
from colabstage.machine.drive_attributes import wait_uploaded as wait_until_uploaded
from colabstage.machine.mounts import drive_root, place_in, required_to_stay, run_with_one_remount
from colabstage.machine.resources import check_space
from colabstage.sources.arriving import copy_file
from colabstage.sources.parse import Target
from colabstage.sources.remote import Checksum, pieces_of
from colabstage.stage.places import (
    PREVIOUS_SUFFIX,
    UNFINISHED_SUFFIX,
    FolderPlace,
    Place,
    Publication,
    look_at_file,
    read_note,
)
from colabstage.trees.bytes import LocalBytes

if TYPE_CHECKING:
    import os

    from colabstage.io.progress import Cancellation, Progress

Proof = Literal["uploaded", "read back", "written"]
"""What is known about a published file. `uploaded`: Drive's client reports that it is in the cloud with its manifest,
and the MD5 of what was written. `read back`: every byte was read from the storage and compared. `written`: read back
too, but from Drive's client on this machine, which uploads it later.
"""

P = TypeVar("P", bound="Path | str")


@dataclass(frozen=True, slots=True, repr=False)
class PublishReport(Shown, Generic[P]):
    """What publishing did."""

    path: P
    """Where the file is now; in a bucket, its address."""
    previous: Path | None
    """Where the previous version is; `None` if there is none."""
    nbytes: int
    seconds: float
    """How long it took, including reading back."""
    uploading: bool
    """Whether it is on a Drive mount that may still have to upload it.

    The bytes are safe only with `wait_uploaded=True`, or once they appear on drive.google.com.
    """
    kept_bytes: int = 0
    """How much of it was already there, from an interrupted run, and was not copied again."""
    proof: Proof = "read back"
    why: str = ""
    """Why it is unknown whether it was uploaded, if that was waited for and Drive's client does not report it."""

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
            # If the client reports nothing, only flushing is left, which unmounts Drive.
            waits = "flush_drive(remount=False), at the end of the session," if self.why else "wait_uploaded=True"
            untold = f" Drive's client does not tell when that is done: {self.why}." if self.why else ""
            text += f" Drive uploads it in the background; {waits} waits for that.{untold}"
        return text


@public(
    remedies={"target": 'Write publish_file("model.pt", "/content/drive/MyDrive/checkpoints/").'},
    reads=("path",),
    writes=("target",),
    stopped=GOES_ON,
)
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

    Returns:
        A `PublishReport`: `.path`, `.previous`, `.nbytes`, `.seconds`, and `.proof`: `"uploaded"` to Drive's cloud,
        `"written"` to its mount, or `"read back"` elsewhere.

    Raises:
        OptionError: `path` or `target` is an address, which is not published to; or both are one file; or `target` is a
            `Path` that may name a file or a folder.
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
    source, to = absolute_path(path, "path"), Target.read(target)
    shown = resolve_progress(progress)

    def work() -> PublishReport[Path]:
        with required_to_stay(source, f"{to.path}/" if to.is_folder else to.path):
            check_is_file(source)
            copy = to.file(source.name)
            if place_in(copy, source) is not None:
                msg = f"target='{copy}' is the very file that is to be copied. Choose another folder, or another name."
                raise OptionError(msg)
            return publish(FolderPlace(copy.parent), source, copy.name, keep_previous=keep_previous, progress=shown)

    # The copy is resumed, so a Drive that dies meanwhile costs no more than mounting it again.
    report = run_with_one_remount(work, to.path, source)
    return await_upload(report, source, timeout_s=upload_timeout_s, progress=shown) if wait_uploaded else report


def publish(
    place: Place, source: Path, name: str, *, keep_previous: bool = True, progress: Progress
) -> PublishReport[Any]:
    """Copy a finished file into a place, replacing a version that colabstage wrote; raises as `publish_file`."""
    began, cancellation = time.monotonic(), progress.cancellation
    check_is_file(source)
    state, known = file_state(source), look_at_file(source)
    # A pack already has its hashes beside it.
    manifest = known.manifest if known is not None and known.is_whole else manifest_of_bytes(source, cancellation)
    with progress.step(f"publish {name}", total=manifest.size, unit="B") as step:
        kept = place.put(Publication(source, name, manifest, state, step, cancellation))
    if place.keeps_previous and not keep_previous:
        place.discard(name + PREVIOUS_SUFFIX)
    report = published_before(place, name, manifest.size)
    return replace(report, seconds=time.monotonic() - began, kept_bytes=kept)


def published_before(place: Place, name: str, nbytes: int) -> PublishReport[Any]:
    """Return the report of a file that was published and read back before; whether it was uploaded is unknown."""
    path = place.at(name)
    if not isinstance(path, Path):
        return PublishReport(path, None, nbytes, 0.0, uploading=False, kept_bytes=nbytes)
    # By its length: nothing is replaced here, so nothing is read.
    previous, on_drive = look_at_file(previous_path(path)), drive_root(path) is not None
    kept = previous_path(path) if previous is not None and previous.is_whole else None
    return PublishReport(path, kept, nbytes, 0.0, on_drive, nbytes, "written" if on_drive else "read back")


def previous_path(target: Path) -> Path:
    return target.with_name(target.name + PREVIOUS_SUFFIX)


def discard_version(file: Path) -> bool:
    """Remove a published file with its manifest, if it is unchanged; return whether it is gone."""
    return FolderPlace(file.parent).discard(file.name)


def check_is_file(source: Path) -> None:
    if not source.is_file():
        what = f"'{source}' is not a file; expected one that is finished and closed."
        msg = what if source.exists() else f"There is nothing at '{source}'. {whereabouts(source)}"
        raise SourceNotFoundError(msg)


def await_upload(
    report: PublishReport[P], source: Path, *, timeout_s: float, progress: bool | Progress = False
) -> PublishReport[P]:
    """Wait until the published copy of `source` is in the cloud, and return the report with its proof."""
    target: Path | str = report.path
    # An object in a bucket is in the cloud already.
    if not report.uploading or isinstance(target, str):
        return report
    copy, beside, shown = target, manifest_path(target), resolve_progress(progress)

    def wait() -> PublishReport[P]:
        began, cancellation = time.monotonic(), shown.cancellation
        with required_to_stay(copy):
            # A version cannot be restored without its manifest, so that must arrive as well.
            md5s = {
                copy: _md5_published(source, read_manifest(copy), cancellation),
                beside: _md5_of(beside, cancellation),
            }
            with shown.step(f"upload {copy.name}", total=report.nbytes, unit="B") as step:
                why = wait_until_uploaded(md5s, timeout_s=timeout_s, cancellation=cancellation)
                step.advance(report.nbytes)
        waited = replace(report, seconds=report.seconds + time.monotonic() - began, why=why)
        return waited if why else replace(waited, proof="uploaded", uploading=False)

    return run_with_one_remount(wait, copy)


def _md5_published(source: Path, manifest: Manifest | None, cancellation: Cancellation) -> str:
    """Return the MD5 of the file that was published, if it still agrees with the manifest."""
    # From the local file: reading the published one would only return what the client has cached.
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


@dataclass(frozen=True, slots=True, repr=False)
class RestoreReport(Shown):
    """What restoring did."""

    path: Path
    source: Path
    """The version that was copied."""
    nbytes: int
    passed_over: tuple[str, ...] = ()
    """One sentence for each newer version that is incomplete or damaged."""

    def __str__(self) -> str:
        text = f"'{self.path}' is '{self.source}' ({format_bytes(self.nbytes)}), compared block by block."
        return " ".join([text, *(f"Passed over: {reason}" for reason in self.passed_over)])


@public(reads=("published",), writes=("target",), stopped=GOES_ON)
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
        published: the file as it was published. If it is damaged or incomplete, `NAME.previous` is restored, and the
            report says why.
        target: the path of the copy, or a folder, in which it keeps its name: an existing folder, or a name that ends
            in a slash.
        overwrite: replace an existing file that has other bytes; one that has the same bytes is left alone.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Returns:
        A `RestoreReport`: `.path` of the copy, `.source`, the version that was copied, and `.passed_over`, a sentence
        for each newer version that is not intact.

    Raises:
        OptionError: `published` or `target` is an address, or `target` is a `Path` that may name a file or a folder.
        SourceNotFoundError: nothing has been published under that name.
        DamagedPackError: no version there is complete, or something else wrote it; the message says what is wrong.
        TargetExistsError: there is another file at `target`.
        DriveNotMountedError: `published` or `target` is on Drive, and none is mounted there.
        SourceReadError, DriveDisconnectedError: the storage failed, which is no reason to take another version.
        NewerFormatError: a newer colabstage wrote the manifest.
        NotEnoughSpaceError, TargetNotWritableError: the copy could not be written.

    Whatever is raised, nothing at `target` has changed.
    """
    newest, to = absolute_path(published, "published"), Target.read(target)
    shown = resolve_progress(progress)

    def work() -> RestoreReport:
        with required_to_stay(newest, to.path):
            return _restore_newest(newest, to, overwrite=overwrite, shown=shown)

    return run_with_one_remount(work, newest, to.path)


def _restore_newest(newest: Path, to: Target, *, overwrite: bool, shown: Progress) -> RestoreReport:
    if newest.is_dir():
        msg = f"'{newest}' is a folder; expected the file in it that publish_file wrote."
        raise SourceNotFoundError(msg)
    versions, reasons = [one for one in (newest, previous_path(newest)) if one.is_file()], list[str]()
    if not versions:
        msg = f"There is neither '{newest}' nor '{previous_path(newest).name}' beside it. {whereabouts(newest)}"
        raise SourceNotFoundError(msg)
    target = to.file(newest.name)
    for version in versions:
        # Only damage makes the previous version the right one. After a mount's error it would be old data.
        try:
            nbytes = _restore_version(version, target, shown, overwrite=overwrite)
        except DamagedPackError as error:
            reasons.append(str(error))
        else:
            return RestoreReport(target, version, nbytes, tuple(reasons))
    none = f"No version of '{newest}' is complete. " if len(versions) > 1 else ""
    raise DamagedPackError(none + " ".join(reasons))


def _restore_version(version: Path, target: Path, progress: Progress, *, overwrite: bool) -> int:
    """Copy one version to `target`, unless it is already there; return its length."""
    place, size = FolderPlace(version.parent), version.stat().st_size
    # If publishing was interrupted right before its end, a version has only its note.
    manifest = read_manifest(version) or read_note(place.read(version.name + UNFINISHED_SUFFIX), version.name)
    if manifest is None or size != manifest.size:
        lacks = f"no complete manifest '{manifest_path(version).name}', so it cannot be checked"
        msg = f"'{version}' has {lacks if manifest is None else f'{size:,} bytes of {manifest.size:,}'}."
        raise DamagedPackError(msg)

    def is_the_same(there: Path) -> bool:
        return there.is_file() and is_whole(there, manifest)

    if is_the_same(target):
        return size
    if target.is_dir() or (target.exists() and not overwrite):
        msg = f"'{target}' exists and is not '{version}'. Rename it, restore to another name, or pass overwrite=True."
        raise TargetExistsError(msg)
    make_folder(target.parent)
    sweep_orphans(target.parent, name=target.name)
    # A mounted Drive caches everything that is read through it on the same disk.
    check_space(target.parent, place.copies * size, f"The copy of '{version.name}'")
    with (
        progress.step(f"restore {version.name}", total=size, unit="B") as step,
        atomic_path(target, replaces=lambda there: overwrite or is_the_same(there)) as temp,
    ):
        copy_file(version, temp, manifest, step, progress.cancellation)
    return size

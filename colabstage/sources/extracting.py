"""Extract an archive to a folder on the local disk: planned, parallel, verified, put in place in one step, never
twice."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from colabstage.errors import ArchiveError, SourceAccessError, TargetExistsError, printable
from colabstage.io.arguments import check_zip_encoding, read_only
from colabstage.io.boundary import GOES_ON, public
from colabstage.io.display import resolve_progress
from colabstage.io.files import hash_block, make_folder
from colabstage.io.pipeline import PipelineLimits
from colabstage.io.receipts import Receipt, look_at, sweep_receipts
from colabstage.io.report import Sentences
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.io.workspace import disk_use, find_orphans, open_spool, put_back, sweep_orphans, temp_beside
from colabstage.machine.mounts import place_in, required_to_stay, run_with_one_remount
from colabstage.machine.resources import check_space, usable_cores
from colabstage.sources.opening import OpenedSource, Opening
from colabstage.sources.parse import absolute_path, local_source, refuse_address, whole_of
from colabstage.sources.to_folder import disk_bytes, freed_bytes, write_folder
from colabstage.trees.bytes import base_name
from colabstage.trees.names import check_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.io.progress import Progress
    from colabstage.trees.bytes import ByteSource

_PATH_BYTES = 4095
# A zip's directory, with the checksums of all members, is at its end; a tar begins with a header.
_EDGE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveIdentity:
    address: str
    size: int
    mtime_ns: int
    edges: str
    part: str = ""
    """The requested part of it, and the encoding of its names; "" for all of it."""

    @property
    def fingerprint(self) -> str:
        """Return a text that changes when the content may have changed; an interrupted extraction continues only if it
        is equal."""
        return " ".join(filter(None, (f"{self.address} {self.size} {self.mtime_ns} {self.edges}", self.part)))


@dataclass(frozen=True, slots=True)
class Extracted:
    """The receipt of a folder made by `extract_archive`."""

    archive: ArchiveIdentity
    members: int
    """The number of files in it."""
    content_bytes: int
    """Their bytes together."""

    def receipt(self) -> Receipt:
        return Receipt(_KIND, asdict(self))


_KIND = "extracted"


def identify(source: ByteSource, mtime_ns: int) -> ArchiveIdentity:
    """Identify an archive by its size, time, beginning and end."""
    head = source.pread(_EDGE_BYTES, 0)
    tail = source.pread(_EDGE_BYTES, max(0, source.size - _EDGE_BYTES))
    return ArchiveIdentity(source.label, source.size, mtime_ns, hash_block(head) + hash_block(tail))


@dataclass(frozen=True, slots=True)
class ExtractReport(Sentences):
    """The result of an extraction."""

    target: Path
    """The folder."""
    members: int
    """The number of files in it."""
    content_bytes: int
    """Their bytes together."""
    seconds: float
    """Seconds that this call took."""
    kept_members: int
    """How many of the files an earlier, interrupted call had written and verified."""
    reused: bool
    """Whether the folder was there already, from the same archive, and nothing was done."""
    notes: tuple[str, ...]
    """The members that were left out, and why."""

    def __str__(self) -> str:
        files = f"{format_count(self.members, 'files')}, {format_bytes(self.content_bytes)}"
        if self.reused:
            return f"'{self.target}' holds this archive's {files} already; nothing was done."
        rate = format_rate(self.content_bytes, self.seconds, "B")
        lines = [f"Extracted {files} to '{self.target}' in {format_duration(self.seconds)} ({rate})."]
        if self.kept_members:
            lines.append(f"{self.kept_members:,} of them were there from an interrupted run and were not done again.")
        return "\n".join(map(printable, [*lines, *self.notes]))


@public(reads=("path",), writes=("target",), stopped=GOES_ON)
def extract_archive(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    only: str | Sequence[str] | None = None,
    zip_encoding: str | None = None,
    overwrite: bool = False,
    progress: bool | Progress = True,
) -> ExtractReport:
    """Extract an archive into a folder of its own.

    The kind of archive is recognised by its content, never by its name: zip, tar (also compressed with gzip, bzip2, xz
    or Zstandard), 7z and rar if a tool or package for them is installed, or a single compressed file. A suspicious
    archive is refused as a whole, before anything is written. The folder appears when it is complete and every member
    has been verified; until then, what was there stays. A call that was interrupted continues where it stopped; the
    same archive into the same folder again does nothing.

    Files get the mode 0644, or 0755 if the archive marks them as executable, and the archive's times. Links to files in
    the archive become those files; links that lead nowhere are left out, with a note. Empty folders and files of
    operating systems (`__MACOSX`, `.DS_Store`) are left out.

    Args:
        path: the archive.
        target: the folder to create. It may exist if it is empty, or if this function made it from the same archive and
            it is unchanged.
        only: the part of the archive that is meant, a path in it such as `"train/images"`, or a pattern, or a list of
            these; a single folder's files lose its name.
        zip_encoding: the encoding of a zip's file names where it declares none, such as `"gbk"`. `None` takes UTF-8 if
            all of them are in it, otherwise cp437, the format's own.
        overwrite: whether to replace any other folder at `target`.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Returns:
        What was done.

    Raises:
        SourceNotFoundError: there is no such archive.
        TargetExistsError: something else is at `target`, something in it was changed or added, or it contains the
            archive.
        ArchiveError: the file is not an archive, needs a password, or uses an unsupported method.
        CorruptArchiveError: it is truncated or damaged.
        SourceChangedError: it was written to while it was being extracted.
        UnsafeArchiveError: it contains paths outside the target, devices or duplicates, or is a decompression bomb.
        MissingDependencyError: it is a 7z or rar, and no tool or package that reads it is installed.
        NotEnoughSpaceError: it does not fit; with figures, and before the first byte if the archive tells its size.
        DriveNotMountedError: a path is on Drive, and none is mounted there, or it was unmounted meanwhile.
        TargetNotWritableError: nothing can be written there.
        CancelledError: the progress asked to stop; another call continues where this one stopped.
    """
    refuse_address("path", path, "fetch the archive with fetch_files first")
    archive, place, parts = absolute_path(path), absolute_path(target, "target"), read_only(only)
    check_zip_encoding(zip_encoding)
    shown = resolve_progress(progress)
    opening = Opening(
        place.parent,
        shown,
        shown.cancellation,
        only=parts,
        zip_encoding=zip_encoding,
        single_files=False,
    )

    def extract() -> ExtractReport:
        # On a mount that hangs, any access would never return.
        with required_to_stay(archive, place):
            if archive.is_dir():
                msg = f"'{archive}' is a folder, not an archive. Copy it with fetch_files, or give the archive itself."
                raise ArchiveError(msg)
            # With overwrite, the target would be removed, and the archive with it.
            if os.path.lexists(place) and place_in(archive, place) is not None:
                msg = f"'{place}' holds the archive '{archive}', which would be removed with it. Choose another target."
                raise TargetExistsError(msg)
            return _extract(archive, place, opening, overwrite=overwrite)

    return run_with_one_remount(extract, archive, place)


def _extract(archive: Path, target: Path, opening: Opening, *, overwrite: bool) -> ExtractReport:
    began = time.monotonic()
    # If the archive is on a mount, its copy goes beside the target, whose folder may be created for it.
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(OpenedSource(whole_of(local_source(archive)), opening, unpack=True))
        except PermissionError as error:
            msg = f"'{archive}' cannot be read by this user ({error.strerror}). Give yourself the right to read it."
            raise SourceAccessError(msg) from error
        part = opened.parts[0]
        assert part.file is not None
        chosen = opening.only, opening.zip_encoding
        identity = replace(
            identify(part.open_content(), part.file.facts.mtime_ns), part=repr(chosen) if any(chosen) else ""
        )
        found = _reusable(target, identity, overwrite=overwrite)
        if found is not None:
            # A run that died right after putting the folder in place could not clean up.
            for name in (target.name, _spool_name(target)):
                sweep_orphans(target.parent, name=name)
            seconds = time.monotonic() - began
            return ExtractReport(target, found.members, found.content_bytes, seconds, 0, True, ())
        make_folder(target.parent)
        # For archives that must be unpacked before their members are known.
        spool = stack.enter_context(open_spool(target.with_name(_spool_name(target))))
        tree = opened.open_tree(spool)
        names, sizes = tree.entries.names, tree.entries.sizes.tolist()
        # Before anything is written, because a name that is too long would stop it midway. The work is done in a folder
        # beside the target, with a longer name.
        room = _PATH_BYTES - len(os.fsencode(temp_beside(target))) - len("/files/")
        check_lengths(tree.label, names, room_bytes=room)
        # An earlier run's files need no more space.
        kept = sum(map(disk_use, find_orphans(target)))
        check_space(
            target.parent,
            max(0, disk_bytes(sizes) - freed_bytes(tree) - kept) + opened.cost.archive_bytes,
            f"Extracting '{base_name(tree.label)}' ({format_count(len(names), 'files')})",
        )
        opened.start()
        with opening.progress.step(f"Extracting {target.name}", total=sum(sizes), unit="B") as step:
            written = write_folder(
                tree,
                target,
                fingerprint=identity.fingerprint,
                limits=PipelineLimits(readers=1, max_readers=2, workers=usable_cores()),
                step=step,
                cancellation=opening.cancellation,
                overwrite=overwrite,
                consumes=True,
                check=opened.check_unchanged,
                receipt=Extracted(identity, len(names), sum(sizes)).receipt,
            )
        opened.discard()
    seconds = time.monotonic() - began
    return ExtractReport(target, len(names), sum(sizes), seconds, written.kept_files, False, tree.notes)


def _reusable(target: Path, identity: ArchiveIdentity, *, overwrite: bool) -> Extracted | None:
    """Return the record of a folder that is already right; `None` if it must be made."""
    put_back(target)
    here = look_at(target)
    if here.kind in ("nothing", "empty folder"):
        return None
    made = here.about(_KIND, Extracted)
    if made is not None and here.is_as_made and made.archive == replace(identity, address=made.archive.address):
        sweep_receipts(target, here)
        return made
    # A changed archive is extracted again; only the content of its earlier state is lost.
    here_from = None if made is None else (made.archive.address, made.archive.part)
    if overwrite or (here_from == (identity.address, identity.part) and here.is_as_made):
        return None
    what = "is not a folder that was extracted from this archive"
    if made is not None and here.kind == "folder" and not here.is_as_made:
        what = f"is an extracted folder and {here}"
    msg = f"'{target}' {what}. Choose another target, or pass overwrite=True to replace it."
    raise TargetExistsError(msg)


def _spool_name(target: Path) -> str:
    return f"{target.name}.spool"

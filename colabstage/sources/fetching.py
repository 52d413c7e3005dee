"""`fetch_files` copies the files of any source to this machine, once; `extract_archive` unpacks an archive.

Both check the target first: complete files from an unchanged source are not made again, and what colabstage did not
make is never replaced without being asked. A hidden receipt beside the target says what it was made of, and in which
state.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import ArchiveError, OptionError, TargetExistsError, printable
from colabstage.io.arguments import absolute_path, check_choice, check_zip_encoding, read_only
from colabstage.io.boundary import GOES_ON, public
from colabstage.io.display import resolve_progress
from colabstage.io.files import RetryPolicy, hash_block, make_folder
from colabstage.io.pipeline import PipelineLimits
from colabstage.io.receipts import (
    Receipt,
    Standing,
    file_seal,
    find_receipts,
    look_at,
    note_receipt,
    settle_receipt,
    sweep_receipts,
)
from colabstage.io.report import Shown
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.io.workspace import disk_use, find_orphans, open_spool, put_back, sweep_orphans
from colabstage.machine.mounts import drive_root, place_in, required_to_stay, run_with_one_remount
from colabstage.machine.resources import check_space, usable_cores
from colabstage.sources.arriving import fetch_file
from colabstage.sources.identity import Freshness, SourceIdentity, compare_source
from colabstage.sources.opening import OpenedSource, Opening, open_source
from colabstage.sources.parse import (
    KaggleSource,
    ManySource,
    Source,
    SourceArgument,
    Target,
    check_outside,
    local_source,
    parse_source,
    paths_of,
    whole_of,
)
from colabstage.sources.remote import Checksum, RemoteFile, parse_checksum
from colabstage.sources.to_folder import LARGE_BYTES, SLOW_READERS, disk_bytes, freed_bytes, write_folder
from colabstage.trees.bytes import base_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.io.progress import Progress


@dataclass(frozen=True, slots=True, repr=False)
class FetchReport(Shown):
    """The result of `fetch_files`."""

    path: Path
    """The file or folder that was made."""
    files: int
    """How many files it holds."""
    nbytes: int
    """Their bytes together."""
    seconds: float
    """Seconds that it took."""
    kept_bytes: int
    """Bytes that were already here: all if nothing had changed, otherwise what an interrupted run left."""
    transport: str
    """How the source was reached."""
    notes: tuple[str, ...] = ()
    """Other facts that the user should know."""

    @property
    def fetched_bytes(self) -> int:
        return self.nbytes - self.kept_bytes

    @property
    def rate(self) -> float:
        """Return bytes per second read from the source; 0 if there was nothing to read."""
        return self.fetched_bytes / self.seconds if self.fetched_bytes and self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "rate": self.rate, "notes": list(self.notes)}

    def __str__(self) -> str:
        size = format_bytes(self.nbytes)
        what = size if self.files == 1 else f"{format_count(self.files, 'files')}, {size},"
        if self.nbytes and self.kept_bytes == self.nbytes:
            done = f"{what} are in '{self.path}' already."
        else:
            rate = format_rate(self.fetched_bytes, self.seconds, "B")
            kept = f"; {format_bytes(self.kept_bytes)} were already here" if self.kept_bytes else ""
            took = f"{format_duration(self.seconds)} ({rate}, {self.transport}){kept}"
            done = f"Fetched {what} to '{self.path}' in {took}."
        return "\n  ".join(map(printable, (done, *self.notes)))


Verify = Literal["fast", "full"]
# The kinds of their receipts.
_FETCHED, _EXTRACTED = "fetched", "extracted"


def _check_holds_none(target: Path, sources: Sequence[Path]) -> None:
    """Refuse a target that contains a source: replacing it would remove both."""
    for path in sources if os.path.lexists(target) else ():
        if place_in(path, target) is not None:
            msg = f"'{target}' holds the source '{path}', which would be removed with it. Choose another target."
            raise TargetExistsError(msg)


def _why_kept(here: Standing, *, is_mine: bool) -> str:
    """Return why what is at a place is not replaced; "" if that loses nothing."""
    # Files that are only gone are no loss either.
    if here.kind in ("nothing", "empty folder") or (is_mine and here.is_replaceable):
        return ""
    if not is_mine:
        return "was not made from this source"
    return str(here) if here.kind == "folder" else "was changed since it was made"


def _check_kept(place: Path, why: str) -> None:
    if why:
        msg = f"'{place}' {why}. Choose another target, or give overwrite=True to replace it."
        raise TargetExistsError(msg)


@public(reads=("source",), writes=("target",), stopped=GOES_ON)
def fetch_files(
    source: SourceArgument,
    target: str | os.PathLike[str],
    *,
    only: str | Sequence[str] | None = None,
    hash: str | None = None,  # noqa: A002 - the word that people know from other downloaders
    overwrite: bool = False,
    refresh: bool = False,
    verify: Verify = "fast",
    progress: bool | Progress = True,
) -> FetchReport:
    """Copy a file or a whole folder to the local disk; archives are not extracted.

        fetch_files("https://example.org/photos.zip", "/content/photos.zip", hash="sha256:…")
        fetch_files("s3://bucket/train", "/content/train")

    A large file is fetched in several parts at once, small files by the dozen, and temporary failures are tried again.
    `target` appears when everything has arrived and is verified; until then, what was there stays. An interrupted call
    continues where it stopped. If neither source nor target has changed, a second call returns at once: a hidden
    receipt beside the target says what was fetched.

    Args:
        source: as for `stage_dataset`. The files and folders of a list keep their names.
        target: the path of the copied file or folder. For one file it may also be a folder that exists, or a path that
            ends in a slash; the file then keeps its name in it. A `Path` drops the slash.
        only: a part of a folder or list: a path below it such as `"train/images"`, a pattern, or a list of these. The
            files of a single folder lose its name.
        hash: the expected hash of a single file, as `"sha256:…"`, `"md5:…"` or the digest alone.
        overwrite: whether to replace what is at `target` even if `fetch_files` did not make it, or if it was changed or
            added to.
        refresh: fetch again, even if it is already here.
        verify: `"fast"` checks whether source and target have changed; `"full"` opens or lists the source, compares
            everything known about it, and hashes a file that is here.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Returns:
        A report with time and rate.

    Raises:
        TargetExistsError: something at `target` was not made by `fetch_files` or has changed since, or it contains the
            source.
        ChecksumMismatchError: the file arrived complete, but is another one; it is kept beside the target under another
            name.
        SourceNotFoundError, SourceAccessError, SourceReadError, SourceChangedError: the source cannot be read.
        WebPageError: a web page arrived instead of the data.
        DriveNotMountedError: a path is on Drive, and none is mounted there, or it was unmounted meanwhile.
        DriveDisconnectedError, DriveQuotaError: Drive is disconnected, or currently refuses.
        MissingDependencyError: this kind of source needs a package; the message has the install line.
        NotEnoughSpaceError: it does not fit; raised before the first byte, with figures.
        TargetNotWritableError, OptionError: an argument cannot work, such as a target inside the source.
        CancelledError: the progress asked to stop.
    """
    check_choice("verify", verify, Verify)
    checksum = None if hash is None else parse_checksum(hash)
    parsed, parts = parse_source(source), read_only(only)
    if checksum is not None and isinstance(parsed, ManySource):
        msg = "hash= is for one file, and source is a list. Fetch the file alone, or leave the hash out."
        raise OptionError(msg)
    to = Target.read(target)
    place = to.path
    shown = resolve_progress(progress)
    fetch = _FetchCall(parsed, to, parts, checksum, overwrite, verify == "full", shown, time.monotonic())

    def work() -> FetchReport:
        with required_to_stay(place):
            check_outside(paths_of(parsed), place)
            here = None if refresh else fetch.reuse()
            return here or fetch.run()

    notes: list[str] = []
    done = run_with_one_remount(work, *paths_of(parsed), place, notice=notes.append)
    return replace(done, notes=(*done.notes, *notes))


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the receipt of fetched files says."""

    address: str
    identity: SourceIdentity
    files: int
    nbytes: int
    transport: str

    def receipt(self, hashes: tuple[str, ...] = ()) -> Receipt:
        """Return the receipt that says this; for a file, with the hash of each block."""
        # Only known facts of the source's state.
        return Receipt(_FETCHED, {**asdict(self), "identity": self.identity.to_json()}, hashes=hashes)


@dataclass(frozen=True, slots=True)
class _FetchCall:
    """One call of `fetch_files`. `thorough`: whether content is compared, not only times; `began`: when the call began,
    by the monotonic clock."""

    source: Source
    to: Target
    only: tuple[str, ...]
    checksum: Checksum | None
    overwrite: bool
    thorough: bool
    progress: Progress
    began: float

    @property
    def target(self) -> Path:
        return self.to.path

    @property
    def address(self) -> str:
        """Return the address of what is fetched: of the source, or of a part of it."""
        return self.source.address + (f"#only={','.join(self.only)}" if self.only else "")

    def reuse(self) -> FetchReport | None:
        """Return the local result, if it is complete and the source is unchanged."""
        place = self.target
        # A run that died between two renames left nothing at the target, and the old content beside it.
        put_back(place)
        here = look_at(place, thorough=self.thorough)
        # The target may be the folder into which the file went, under a name that only the source knows.
        if here.receipt is None and place.is_dir():
            found = find_receipts(place).items()
            mine = [path for path, one in found if one.about.get("address") == self.address]
            place = mine[0] if mine else place
            here = look_at(place, thorough=self.thorough)
        record = here.about(_FETCHED, Fetched)
        if record is None or record.address != self.address or not here.is_as_made:
            return None
        # The local files are checked first, because that needs no connection.
        freshness = self._compare(record.identity)
        if not freshness.same:
            return None
        # A run may have died after its work was in place and before it cleaned up.
        sweep_receipts(place, here)
        sweep_orphans(place.parent, name=place.name)
        return self._report(place, record, record.nbytes, [str(freshness)])

    def _compare(self, recorded: SourceIdentity) -> Freshness:
        def identify() -> SourceIdentity:
            with self._open() as source:
                return source.identify()

        return compare_source(
            self.source, recorded, identify, checksum=self.checksum, thorough=self.thorough, unpack=False
        )

    def _open(
        self, checksum: Checksum | None = None, only: tuple[str, ...] = (), *, reads_next: bool = False
    ) -> OpenedSource:
        opening = Opening(self.target.parent, self.progress, checksum, only, reads_next=reads_next)
        with self.progress.quiet_step("open source"):
            return open_source(self.source, opening, unpack=False)

    def run(self) -> FetchReport:
        make_folder(self.target if self.to.is_folder else self.target.parent)
        with self._open(self.checksum, self.only, reads_next=not self.only) as source:
            one = source.one
            # Kaggle sends a dataset as a zip, but the user means its files.
            if one is not None and one.file is not None and not isinstance(self.source, KaggleSource):
                report = self._fetch_file(source, one.file)
            else:
                report = self._fetch_tree(source)
            # A copy that was made only for reading is of no use once the result is in place.
            source.discard()
        return report

    def _fetch_file(self, source: OpenedSource, file: RemoteFile) -> FetchReport:
        if self.only:
            msg = (
                f"'{self.source.label}' is one file, and only={self.only[0]!r} names a part of it, which is not copied "
                "alone. If it is an archive: extract_archive(PATH, TARGET, only=…), or stage_dataset(SOURCE, only=…)."
            )
            raise OptionError(msg)
        facts = file.facts
        # As `cp` does: into an existing folder, otherwise under the given name.
        place = self.to.file(facts.name)
        self._check_replaceable(place)
        notes = self._check_space(place, facts.size or 0, source, large=facts.size or 0)
        # The caller's checksum is in the record, so that the next call with the same one need not ask the source.
        identity = replace(source.identify(), checksum=str(self.checksum or ""))

        def record_of(nbytes: int) -> Fetched:
            return Fetched(self.address, identity, 1, nbytes, source.slowest.transport)

        with self.progress.step(f"fetch {place.name}", total=facts.size, unit="B") as step:
            fetched = fetch_file(
                file,
                place,
                step=step,
                cancellation=self.progress.cancellation,
                policy=RetryPolicy(),
                announce=lambda hashes, nbytes: note_receipt(place, record_of(nbytes).receipt(hashes)),
                replaces=lambda path: not self._why_kept(path),
            )
        # The seal contains the time of the last change, which the rename has just set.
        record = record_of(fetched.nbytes)
        settle_receipt(place, replace(record.receipt(fetched.block_hashes), seal=file_seal(place)))
        return self._report(place, record, fetched.kept_bytes, [*source.notes, *notes])

    def _fetch_tree(self, source: OpenedSource) -> FetchReport:
        """Fetch a folder, or the files and folders of a list under their names."""
        place, identity, slowest = self.target, source.identify(), source.slowest
        tree = source.open_tree(self.target.parent)
        source.start()
        self._check_replaceable(place)
        sizes = [entry.size for entry in tree.entries]
        large = sum(size for size in sizes if size > LARGE_BYTES)
        notes = self._check_space(place, disk_bytes(sizes), source, large=large)
        record = Fetched(self.address, identity, len(sizes), sum(sizes), slowest.transport)
        with self.progress.step(f"fetch {place.name}", total=sum(sizes), unit="B") as step:
            fetched = write_folder(
                tree,
                place,
                # For the part too: what an interrupted call left of another part cannot be continued.
                fingerprint=identity.fingerprint and " ".join((identity.fingerprint, *self.only)),
                limits=PipelineLimits(
                    readers=SLOW_READERS if slowest.slow else min(2, usable_cores()),
                    max_readers=SLOW_READERS,
                    workers=usable_cores(),
                ),
                step=step,
                cancellation=self.progress.cancellation,
                overwrite=self.overwrite,
                check=source.check_unchanged,
                receipt=record.receipt,
            )
        return self._report(place, record, fetched.kept_bytes, [*source.notes, *tree.notes, *notes])

    def _check_space(self, place: Path, nbytes: int, source: OpenedSource, *, large: int) -> list[str]:
        """Refuse what does not fit; return a note about what the disk holds meanwhile."""
        path = source.slowest.path
        # A mount drops small files from its own copy as the disk fills, but not a large one that is in use.
        second = large if path is not None and drive_root(path) is not None else 0
        # An interrupted run's bytes are on the disk already.
        needed = nbytes + second - sum(map(disk_use, find_orphans(place)))
        check_space(self.target.parent, max(0, needed), f"Fetching '{self.source.label}'")
        return [f"The mount keeps a second copy of {format_bytes(second)} on this disk meanwhile."] if second else []

    def _why_kept(self, place: Path) -> str:
        here = look_at(place)
        record = here.about(_FETCHED, Fetched)
        is_mine = record is not None and record.address == self.address
        return "" if self.overwrite else _why_kept(here, is_mine=is_mine)

    def _check_replaceable(self, place: Path) -> None:
        """Refuse to replace what is not ours or has changed, or the source itself."""
        _check_holds_none(place, paths_of(self.source))
        _check_kept(place, self._why_kept(place))

    def _report(self, place: Path, record: Fetched, kept_bytes: int, notes: Sequence[str]) -> FetchReport:
        seconds = time.monotonic() - self.began
        return FetchReport(
            place,
            record.files,
            record.nbytes,
            seconds,
            kept_bytes,
            record.transport,
            # Several parts of a source may have the same note.
            tuple(dict.fromkeys(note for note in notes if note)),
        )


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
    """What the receipt of a folder made by `extract_archive` says."""

    archive: ArchiveIdentity
    members: int
    """The number of files in it."""
    content_bytes: int

    def receipt(self) -> Receipt:
        return Receipt(_EXTRACTED, asdict(self))


@dataclass(frozen=True, slots=True, repr=False)
class ExtractReport(Shown):
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
    or Zstandard), 7z and rar if 7-Zip or unrar is installed, or a single compressed file. A suspicious
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
        only: a part of the archive: a path in it such as `"train/images"`, a pattern, or a list of these. The files of
            a single folder lose its name.
        zip_encoding: the encoding of the names in a zip that declares none, such as `"gbk"`. `None` is UTF-8 if all
            names are valid in it, otherwise cp437, the format's own.
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
        UnsafeArchiveError: it contains paths outside the target, or devices, or is a decompression bomb.
        MissingDependencyError: it is a 7z or rar, and its tool is not installed.
        NotEnoughSpaceError: it does not fit; with figures, and before the first byte if the archive tells its size.
        DriveNotMountedError: a path is on Drive, and none is mounted there, or it was unmounted meanwhile.
        TargetNotWritableError: nothing can be written there.
        CancelledError: the progress asked to stop; another call continues where this one stopped.
    """
    archive = absolute_path(path, instead="fetch the archive with fetch_files first")
    place, parts = absolute_path(target, "target"), read_only(only)
    check_zip_encoding(zip_encoding)
    shown = resolve_progress(progress)
    opening = Opening(place.parent, shown, only=parts, zip_encoding=zip_encoding, single_files=False)

    def extract() -> ExtractReport:
        # On a mount that hangs, any access would never return.
        with required_to_stay(archive, place):
            if archive.is_dir():
                msg = f"'{archive}' is a folder, not an archive. Copy it with fetch_files, or give the archive itself."
                raise ArchiveError(msg)
            _check_holds_none(place, [archive])
            return _extracted(archive, place, opening, overwrite=overwrite)

    return run_with_one_remount(extract, archive, place)


def _extracted(archive: Path, target: Path, opening: Opening, *, overwrite: bool) -> ExtractReport:
    began, spool_path = time.monotonic(), target.with_name(f"{target.name}.spool")
    # If the archive is on a mount, its copy goes beside the target, whose folder may be created for it.
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(OpenedSource(whole_of(local_source(archive)), opening, unpack=True))
        part = opened.parts[0]
        assert part.file is not None
        content, chosen = part.open_content(), (opening.only, opening.zip_encoding)
        edges = [content.pread(_EDGE_BYTES, at) for at in (0, max(0, content.size - _EDGE_BYTES))]
        known = content.label, content.size, part.file.facts.mtime_ns, "".join(map(hash_block, edges))
        identity = ArchiveIdentity(*known, repr(chosen) if any(chosen) else "")
        found = _reusable(target, identity, overwrite=overwrite)
        if found is not None:
            # A run that died right after putting the folder in place could not clean up.
            for name in (target.name, spool_path.name):
                sweep_orphans(target.parent, name=name)
            seconds = time.monotonic() - began
            return ExtractReport(target, found.members, found.content_bytes, seconds, 0, True, ())
        make_folder(target.parent)
        # For archives that must be unpacked before their members are known.
        spool = stack.enter_context(open_spool(spool_path))
        tree = opened.open_tree(spool)
        names, sizes = tree.entries.names, tree.entries.sizes.tolist()
        # An earlier run's files need no more space.
        kept = sum(map(disk_use, find_orphans(target)))
        check_space(
            target.parent,
            max(0, disk_bytes(sizes) - freed_bytes(tree) - kept) + opened.cost.archive_bytes,
            f"Extracting '{base_name(tree.label)}' ({format_count(len(names), 'files')})",
        )
        opened.start()
        with opening.progress.step(f"extract {target.name}", total=sum(sizes), unit="B") as step:
            written = write_folder(
                tree,
                target,
                fingerprint=identity.fingerprint,
                limits=PipelineLimits(readers=1, max_readers=2, workers=usable_cores()),
                step=step,
                cancellation=opening.progress.cancellation,
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
    made = here.about(_EXTRACTED, Extracted)
    if made is not None and here.is_as_made and made.archive == replace(identity, address=made.archive.address):
        sweep_receipts(target, here)
        return made
    # A changed archive is extracted again; only the content of its earlier state is lost.
    is_mine = made is not None and (made.archive.address, made.archive.part) == (identity.address, identity.part)
    _check_kept(target, "" if overwrite else _why_kept(here, is_mine=is_mine))
    return None

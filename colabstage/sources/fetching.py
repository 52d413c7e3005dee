"""`fetch_files`: copy the files of any source to this machine, once.

It checks the target first: complete files from an unchanged source are not fetched again, and what colabstage did not
make is never replaced without being asked. A hidden record beside the target says what was fetched, and from which
state of the source.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from colabstage.errors import DriveError, OptionError, SourceChangedError, SourceError, TargetExistsError, printable
from colabstage.h5.manifest import BLOCK_BYTES
from colabstage.io.arguments import GOES_ON, read_only, stops_with, takes
from colabstage.io.boundary import typed
from colabstage.io.files import RetryPolicy, block_ranges, hash_ranges, make_folder
from colabstage.io.ownership import look_at, sweep_orphans
from colabstage.io.pipeline import PipelineLimits
from colabstage.io.progress import Cancellation, Progress, cancellation_of, resolve_progress
from colabstage.io.records import RecordFile
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.io.workspace import disk_use, find_orphans, is_made_here, put_back
from colabstage.machine.mounts import drive_root, place_in, required_to_stay
from colabstage.machine.resources import check_space, usable_cores
from colabstage.machine.watched import run_with_one_remount
from colabstage.sources.arriving import fetch_file
from colabstage.sources.identity import SourceIdentity, compare_states, file_seal
from colabstage.sources.look import Look, check_freshness
from colabstage.sources.opening import SLOW_LISTERS, Opening, open_source
from colabstage.sources.parse import (
    KaggleSource,
    ManySource,
    absolute_path,
    check_outside,
    drive_path_of,
    parse_source,
    paths_of,
)
from colabstage.sources.remote import parse_checksum
from colabstage.sources.to_folder import LARGE_BYTES, SLOW_READERS, disk_bytes, write_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.sources.opening import OpenedSource
    from colabstage.sources.parse import Source, SourceArgument
    from colabstage.sources.remote import Checksum, RemoteFile


@dataclass(frozen=True, slots=True)
class FetchReport:
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
    """What else the user should know."""

    @property
    def fetched_bytes(self) -> int:
        """Return bytes that were read from the source."""
        return self.nbytes - self.kept_bytes

    @property
    def rate(self) -> float:
        """Return bytes per second read from the source; 0 if there was nothing to read."""
        return self.fetched_bytes / self.seconds if self.fetched_bytes and self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {**asdict(self), "path": str(self.path), "rate": self.rate, "notes": list(self.notes)}

    def __str__(self) -> str:
        size = format_bytes(self.nbytes)
        what = size if self.files == 1 else f"{format_count(self.files, 'files')}, {size},"
        if self.nbytes and self.kept_bytes == self.nbytes:
            done = f"{what} are in '{self.path}' already, and the source has not changed."
        else:
            rate = format_rate(self.fetched_bytes, self.seconds, "B")
            kept = f"; {format_bytes(self.kept_bytes)} were already here" if self.kept_bytes else ""
            took = f"{format_duration(self.seconds)} ({rate}, {self.transport}){kept}"
            done = f"Fetched {what} to '{self.path}' in {took}."
        return "\n  ".join(map(printable, (done, *self.notes)))


Verify = Literal["fast", "full"]


@takes()
@stops_with(GOES_ON)
@typed("source", writes=("target",))
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
    continues where it stopped. If neither source nor target has changed, a second call returns at once: a hidden record
    beside the target says what was fetched.

    Args:
        source: as for `stage_dataset`. The files and folders of a list keep their names.
        target: the path of the copied file or folder. For one file it may also be a folder that exists, or a path that
            ends in a slash; the file then keeps its name in it.
        only: the part of a folder or list that is meant, a path below it such as `"train/images"`, or a pattern, or a
            list of these; a single folder's files lose its name.
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
    if verify not in get_args(Verify):
        msg = f"verify={verify!r} is unknown; expected one of {', '.join(map(repr, get_args(Verify)))}."
        raise OptionError(msg)
    checksum = None if hash is None else parse_checksum(hash)
    parsed, parts = parse_source(source), read_only(only)
    if parts:
        parsed = replace(parsed, address=f"{parsed.address}#only={','.join(parts)}")
    if checksum is not None and isinstance(parsed, ManySource):
        msg = "hash= is for one file, and source is a list. Fetch the file alone, or leave the hash out."
        raise OptionError(msg)
    place, into = absolute_path(target, "target"), os.fspath(target).endswith(os.sep)
    shown = resolve_progress(progress)
    fetch = _FetchCall(
        parsed,
        place,
        parts,
        checksum,
        overwrite,
        verify == "full",
        shown,
        cancellation_of(shown),
        time.monotonic(),
        into,
    )

    def work() -> FetchReport:
        with required_to_stay(place):
            check_outside(paths_of(parsed), place)
            here = None if refresh else fetch.reuse()
            return here or fetch.run()

    notes: list[str] = []
    done = run_with_one_remount(
        work, place=drive_path_of(parsed) or place, touches=(place, *paths_of(parsed)), notice=notes.append
    )
    return replace(done, notes=(*done.notes, *notes))


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """The record of what was fetched to one place."""

    address: str
    """From where."""
    identity: SourceIdentity
    """The source's state then."""
    seal: dict[str, int | str]
    """For a file, the facts that change when anything writes to it; for a folder the digest of its inventory. Records
    have used this field name from the beginning."""
    hashes: tuple[str, ...]
    """For a file, the xxh3-64 of each 8 MiB block."""
    files: int
    """How many files the target holds."""
    nbytes: int
    """Their bytes together."""
    transport: str
    """How it came."""

    def fits(self, target: Path, *, thorough: bool = False) -> bool:
        """Return whether what was fetched is unchanged, and a folder contains nothing else.

        Compared by sizes and times, or by a file's content if its times are not conclusive, or always with `thorough`.
        """
        if "deed" in self.seal:
            here = look_at(target)
            return here.is_as_made and here.inventory == self.seal["deed"]
        # A link belongs to somebody else, even if its target is unchanged.
        if not is_made_here(target) or not target.is_file():
            return False
        sealed = bool(self.seal) and self.seal.items() <= file_seal(target).items()
        if sealed and not (thorough and self.hashes):
            return True
        # The length costs nothing to check, while the hashes read everything.
        if not self.hashes or target.stat().st_size != self.nbytes:
            return False
        ranges = block_ranges(self.nbytes, BLOCK_BYTES)
        return tuple(hash_ranges(target, ranges, threads=usable_cores())) == self.hashes

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; of the source's state only what is known."""
        return {**asdict(self), "identity": self.identity.to_json()}


FETCHED = RecordFile(FetchRecord, ("version", 1), FetchRecord.fits, FetchRecord.to_json)


def announce_record(target: Path, record: FetchRecord) -> None:
    """Announce what is about to be put at `target`.

    The record's seal may be that of what will be renamed to `target`, or empty for a file whose hashes it has.
    """
    # Renaming changes it.
    seal = {name: value for name, value in record.seal.items() if name != "ctime_ns"}
    FETCHED.announce(target, replace(record, seal=seal))


def settle_record(target: Path, record: FetchRecord) -> None:
    """Finish what was left by runs that died after the work was in place."""
    if FETCHED.announced_path(target).exists():
        FETCHED.write(target, record if "deed" in record.seal else replace(record, seal=file_seal(target)))
    else:
        FETCHED.sweep(target)
    sweep_orphans(target.parent, name=target.name)


@dataclass(frozen=True, slots=True)
class _FetchCall:
    """One call of `fetch_files`. `thorough`: whether content is compared, not only times; `began`: when the call began,
    by the monotonic clock; `into`: whether the target ends in a slash, so that one file goes into it."""

    source: Source
    target: Path
    only: tuple[str, ...]
    checksum: Checksum | None
    overwrite: bool
    thorough: bool
    progress: Progress
    cancellation: Cancellation
    began: float
    into: bool

    def reuse(self) -> FetchReport | None:
        """Return what is here, if it is whole and the source is still the same."""
        place = self.target
        # A run that died between two renames left nothing at the target, and the old content beside it.
        put_back(place)
        record = FETCHED.read(place)
        # The target may be the folder into which the file went, under a name that only the source knows.
        if record is None and place.is_dir():
            found = FETCHED.find(place, lambda one: one.address == self.source.address)
            place, record = (found, FETCHED.read(found)) if found is not None else (place, None)
        if record is None or record.address != self.source.address or not record.fits(place, thorough=self.thorough):
            return None
        # The local files are checked first, because that needs no connection.
        note = self._unchanged(record.identity)
        if note is None:
            return None
        # A run may have died after its work was in place and before the record was final.
        settle_record(place, record)
        seconds = time.monotonic() - self.began
        return FetchReport(
            place, record.files, record.nbytes, seconds, record.nbytes, record.transport, (note,) if note else ()
        )

    def _unchanged(self, recorded: SourceIdentity) -> str | None:
        """Return `None` when the source may have changed; else a note, which may be empty."""
        if self.checksum is not None and (recorded.checksum != str(self.checksum) or not self.thorough):
            # With the right checksum the source need not be asked: the requested file is here.
            return "" if recorded.checksum == str(self.checksum) else None
        look = Look("unsure") if self.thorough else check_freshness(self.source, recorded, workers=SLOW_LISTERS)
        # A source that has disappeared does not count as changed: what was fetched stays usable, and the report says
        # so.
        if look.state == "gone":
            return f"The source cannot be reached now; what was fetched before is unchanged. {look.detail}"
        if look.state == "silent":
            return f"Whether the source has changed is not known ({look.detail}); what was fetched is unchanged."
        if look.state == "unsure":
            return self._compared(recorded)
        return "" if look.state == "same" else None

    def _compared(self, recorded: SourceIdentity) -> str | None:
        """Do the same as `_unchanged` by opening the source; one that must be downloaded for that is fetched again."""
        try:
            opening = Opening(self.target.parent, self.progress, self.cancellation)
            with open_source(self.source, opening, unpack=False) as source:
                now = source.identity
        # As above: a source that cannot be read now does not count as changed.
        except (SourceError, DriveError) as error:
            return f"The source cannot be read now ({error}); what was fetched before is unchanged."
        verdict = compare_states(recorded, now)
        if verdict == "unproved" and not self.thorough:
            return "Names and sizes are those that were fetched, but all times differ, as after a remount."
        return "" if verdict == "same" else None

    def run(self) -> FetchReport:
        """Fetch, as `fetch_files`."""
        make_folder(self.target if self.into else self.target.parent)
        opening = Opening(self.target.parent, self.progress, self.cancellation, self.checksum, self.only)
        with open_source(self.source, opening, unpack=False) as source:
            one = source.one
            # Kaggle sends a dataset as a zip, which is not what anybody means by it.
            if one is not None and one.file is not None and not isinstance(self.source, KaggleSource):
                report = self._fetch_file(source, one.file)
            else:
                report = self._fetch_tree(source)
            # What was copied here only to be read is of no use once the result is in place.
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
        place = self.target / facts.name if self.into or self.target.is_dir() else self.target
        self._check_replaceable(place)
        notes = self._check_space(place, facts.size or 0, source, large=facts.size or 0)
        # The caller's checksum is in the record, so that the next call with the same one need not ask the source.
        identity = replace(source.identity, checksum=str(self.checksum or ""))

        def record_of(seal: dict[str, Any], hashes: tuple[str, ...], nbytes: int) -> FetchRecord:
            return FetchRecord(self.source.address, identity, seal, hashes, 1, nbytes, source.slowest.transport)

        with self.progress.step(f"fetch {place.name}", total=facts.size, unit="B") as step:
            fetched = fetch_file(
                file,
                place,
                step=step,
                cancellation=self.cancellation,
                policy=RetryPolicy(),
                announce=lambda hashes, nbytes: announce_record(place, record_of({}, hashes, nbytes)),
                replaces=self._may_replace,
            )
        # The seal contains the time of the last change, which the rename has just set.
        record = record_of(file_seal(place), fetched.block_hashes, fetched.nbytes)
        FETCHED.write(place, record)
        return self._report(place, record, fetched.kept_bytes, [*source.notes, *notes])

    def _fetch_tree(self, source: OpenedSource) -> FetchReport:
        """Fetch a folder, or the files and folders of a list under their names."""
        place, identity, slowest = self.target, source.identity, source.slowest
        tree = source.open_tree(self.target.parent)
        source.start()
        self._check_replaceable(place)
        sizes = [entry.size for entry in tree.entries]
        large = sum(size for size in sizes if size > LARGE_BYTES)
        notes = self._check_space(place, disk_bytes(sizes), source, large=large)
        coming = FetchRecord(self.source.address, identity, {}, (), len(sizes), sum(sizes), slowest.transport)

        def announce(inventory: str) -> None:
            # The last moment to notice an incomplete listing: after this, the folder is in place.
            problem = source.changes()
            if problem:
                msg = f"{problem} Nothing was put in its place. Wait until uploads are complete, then fetch again."
                raise SourceChangedError(msg)
            announce_record(place, replace(coming, seal={"deed": inventory}))

        with self.progress.step(f"fetch {place.name}", total=sum(sizes), unit="B") as step:
            fetched = write_folder(
                tree,
                place,
                # Of the part too: what an interrupted call left of another one is no beginning of this.
                fingerprint=identity.fingerprint and " ".join((identity.fingerprint, *self.only)),
                limits=PipelineLimits(
                    readers=SLOW_READERS if slowest.slow else min(2, usable_cores()),
                    max_readers=SLOW_READERS,
                    workers=usable_cores(),
                ),
                step=step,
                cancellation=self.cancellation,
                overwrite=self.overwrite,
                announce=announce,
            )
        record = replace(coming, seal={"deed": fetched.inventory})
        FETCHED.write(place, record)
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

    def _check_replaceable(self, place: Path) -> None:
        """Refuse to replace what is not ours or has changed, and the source itself."""
        if not os.path.lexists(place):
            return
        for path in paths_of(self.source):
            if place_in(path, place) is not None:
                msg = f"'{place}' holds the source '{path}', which would be removed with it. Choose another target."
                raise TargetExistsError(msg)
        if self._may_replace(place):
            return
        record = FETCHED.read(place)
        if record is None:
            what = "was not made by fetch_files"
        elif record.address != self.source.address:
            what = f"was fetched from another source ({record.address})"
        elif place.is_dir():
            what = str(look_at(place))
        else:
            what = "was changed since it was fetched"
        msg = f"'{place}' {what}. Choose another target, or give overwrite=True to replace it."
        raise TargetExistsError(msg)

    def _may_replace(self, place: Path) -> bool:
        """Return whether what is there is ours and unchanged, or is to be replaced in any case."""
        if self.overwrite:
            return True
        record = FETCHED.read(place)
        ours = record is not None and record.address == self.source.address and record.fits(place)
        if place.is_dir() and not place.is_symlink():
            # Replacing an empty folder loses nothing.
            return ours or look_at(place).kind == "empty folder"
        return ours

    def _report(self, place: Path, record: FetchRecord, kept_bytes: int, notes: Sequence[str]) -> FetchReport:
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

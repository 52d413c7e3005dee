"""What is staged on this machine, recorded and sealed, and whether the source is still what it was made from.

There is one folder for each dataset, with a record of what is complete in it. The seal is the packed file's inode, size
and times, with the boot they were seen in. As long as they are unchanged, nothing has written to the file since its
hashes were verified, so a second call costs a few `stat`s. When they differ (a copied disk, or a reboot in which data
that was never forced to the disk may be lost), every block is hashed again.

The source of a call is opened once, when it is first needed, and compared with a recorded state, at once or beside the
copy of what was made from that state.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import wait
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import (
    ArchiveError,
    CancelledError,
    ColabstageError,
    DriveError,
    SourceChangedError,
    SourceError,
)
from colabstage.h5.manifest import damage_of, read_manifest
from colabstage.io.environment import OFFLINE_VARIABLE, is_set
from colabstage.io.files import Closing, read_json, write_json
from colabstage.io.ownership import look_at
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import Cancellation
from colabstage.io.records import read_fields
from colabstage.io.units import format_count
from colabstage.sources.identity import SourceIdentity, compare_states, file_seal, proof_of
from colabstage.sources.look import check_freshness
from colabstage.sources.opening import SLOW_LISTERS, Opening, open_source
from colabstage.sources.parse import LocalSource, ObjectSource, TreeSource, parts_of
from colabstage.stage.dataset import StageReport
from colabstage.stage.request import RECORD_NAME

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from colabstage.h5.manifest import Manifest
    from colabstage.sources.opening import OpenSource
    from colabstage.sources.parse import Source
    from colabstage.stage.request import StageRequest
    from colabstage.stage.run import StageCall


_RECORD_VERSION = 1

Seal = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The plain files of one dataset."""

    files: int
    """How many there are."""
    nbytes: int
    """Their size together."""
    deed: str
    """The digest of their folder's inventory (`io.ownership`); by the word that records have had from the first."""


def cache_name(request: StageRequest) -> str:
    """Return what a record calls the cache that was asked for; "" for none."""
    asked = request.cache_dir
    return asked.address if isinstance(asked, ObjectSource) else str(asked or "")


@dataclass(frozen=True, slots=True)
class LocalRecord:
    """What one dataset's folder holds."""

    key: str
    """The key of the request that it was made for."""
    identity: SourceIdentity
    """The source's state when it was staged."""
    seal: Seal = field(default_factory=dict)
    """The seal of the packed file; empty where there is none, or where its hashes have not been verified."""
    files: StagedFiles | None = None
    """The plain files, `None` without them."""
    published: bool | None = None
    """Whether the pack is in the cache; `None` when there was none, or another pack in it has to stay."""
    published_in: str = ""
    """Which cache that is, as it was asked for."""

    def is_published_in(self, request: StageRequest) -> bool:
        """Tell whether it is known that the pack is in the cache of `request`, or that it failed to get there."""
        return self.published is not None and self.published_in == cache_name(request)


def record_path(request: StageRequest) -> Path:
    """Return the path of a dataset's record."""
    return request.folder / RECORD_NAME


def read_record(request: StageRequest) -> LocalRecord | None:
    """Return the record of what is staged for this request; `None` when nothing is, or it belongs to another."""
    raw = read_json(record_path(request))
    if not isinstance(raw, dict) or raw.pop("version", None) != _RECORD_VERSION:
        return None
    raw.pop("address", None)  # only for people who open the file
    record = read_fields(LocalRecord, raw)
    return record if record is not None and record.key == request.key else None


def find_record(request: StageRequest) -> LocalRecord | None:
    """Read the record; where a run died right before writing it, use what the pack's own manifest says."""
    record = read_record(request)
    if request.wants_files or not request.pack_path.is_file():
        return record
    # The usual case: nothing has written to the file since its hashes were compared.
    if record is not None and record.seal == file_seal(request.pack_path):
        return record
    try:
        manifest = read_manifest(request.pack_path)
    except ColabstageError:
        return record
    identity = None if manifest is None else identity_of(manifest)
    if manifest is None or identity is None or manifest.key != request.key:
        return record
    # An empty seal fits no file, so every block is hashed before the pack is used.
    return LocalRecord(request.key, identity, {}, None, None if record is None else record.published)


def identity_of(manifest: Manifest) -> SourceIdentity | None:
    """Return the state of the source that a pack was made from; comparing with it needs a listing of the source."""
    # Without the times of folders, which prove nothing on a machine that has not seen them before.
    identity = SourceIdentity.from_json(manifest.identity)
    return None if identity is None else identity.without_stamps


def write_record(request: StageRequest, record: LocalRecord) -> None:
    """Record what the folder holds now."""
    raw = {**asdict(record), "identity": record.identity.to_json()}
    write_json(record_path(request), {**raw, "version": _RECORD_VERSION, "address": request.address})


def kept_seal(request: StageRequest, identity: SourceIdentity) -> Seal:
    """Return the seal of a local pack that this call has neither made nor checked; empty where there is none to keep.

    A seal is kept only if an earlier call wrote it for a pack of this state of the source, and only while it fits.
    """
    record = read_record(request)
    if record is None or compare_states(record.identity, identity) != "same" or not request.pack_path.is_file():
        return {}
    if record.seal != file_seal(request.pack_path) or pack_problem(request, record, thorough=False) is not None:
        return {}
    return record.seal


def files_record(request: StageRequest, identity: SourceIdentity, files: StagedFiles | None) -> LocalRecord:
    """Return the record to write when plain files were fetched and the pack, if there is one, was not touched."""
    record = read_record(request)
    seal = kept_seal(request, identity)
    return LocalRecord(request.key, identity, seal, files, record.published if record is not None and seal else None)


def pack_problem(
    request: StageRequest, record: LocalRecord, *, thorough: bool, cancellation: Cancellation | None = None
) -> str | None:
    """Return why the staged pack cannot be used as it is; `None` when it can.

    With an unbroken seal this is a few `stat`s, otherwise, or when `thorough`, every block is hashed.
    """
    pack = request.pack_path
    if not pack.is_file():
        return "it is not packed on this machine"
    try:
        manifest = read_manifest(pack)
        if manifest is None or manifest.key != request.key:
            return "its manifest is missing"
        # A refresh that died between writing the pack and the record leaves a new file with an old record.
        made_of = identity_of(manifest)
        if made_of is None or compare_states(made_of, record.identity) == "changed":
            return "its pack is of another state of the source than its record"
        if thorough or file_seal(pack) != record.seal:
            return damage_of(pack, manifest, cancellation) or None
    except CancelledError:
        raise
    # It may also have been taken away meanwhile, by another process.
    except (ColabstageError, FileNotFoundError) as error:
        return str(error).rstrip(".")  # it becomes part of a sentence
    return None


def files_staged(request: StageRequest, identity: SourceIdentity) -> StagedFiles | None:
    """Return the local plain files if they are from this state of the source, otherwise `None`."""
    record = None if request.refresh else read_record(request)
    if (
        record is None
        or compare_states(record.identity, identity) == "changed"
        or files_problem(request, record, thorough=True)
    ):
        return None
    return record.files


def files_problem(request: StageRequest, record: LocalRecord, *, thorough: bool) -> str | None:
    """Return why the staged files cannot be used as they are; `None` when they can."""
    if record.files is None or not request.files_path.is_dir():
        return "its files are not on this machine"
    if thorough:
        # Each file by size and time, because people delete some, or add labels.
        here = look_at(request.files_path)
        if not here.is_as_made or here.inventory != record.files.deed:
            return f"its folder '{request.files_path}' {here}"
    return None


_LOOK_S = 0.25


class SourceOnce(Closing):
    """The source of one call, opened once, when it is first needed; a context manager that closes it."""

    def __init__(self, call: StageCall) -> None:
        self._call = call
        self._stack = contextlib.ExitStack()
        self.opened: OpenSource | None = None
        """The source, once it is open."""

    def open(self, report: StageReport | None = None) -> OpenSource:
        """Return the source, open, which `report` tells, or else that of the call; raises as `open_source`."""
        if self.opened is not None:
            return self.opened
        request = self._call.request
        # Beside the dataset's own folder, so that the same source with other options finds what was downloaded.
        opening = Opening(
            request.folder.parent,
            self._call.progress,
            self._call.cancellation,
            only=request.options.parts,
            zip_encoding=request.options.zip_encoding,
            sparing=request.disk_limit is not None,
        )
        with (report or self._call.report).timed("open source", unit="B") as step:
            try:
                with contextlib.ExitStack() as undo:
                    source = open_source(request.source, opening, unpack=True)
                    undo.callback(source.close)
                    # Before anything is read: what is written to the source meanwhile has to show as a change.
                    source.take_state()
                    self._stack.enter_context(undo.pop_all())
            except (SourceError, DriveError, ArchiveError) as error:
                step.unit, step.note = "", str(error)
                raise
            files, step.amount = source.extent
            step.note = format_count(files, "files")
        self.opened = source
        return source

    def close(self) -> None:
        """Close it; `open` opens it again."""
        self._stack.close()
        self.opened = None


class SourceListingError(SourceChangedError):
    """A folder on a mount no longer lists the files that it listed when it was opened."""


def check_listing(source: OpenSource) -> None:
    """Refuse what was made from an incomplete listing.

    Raises:
        SourceListingError: names, sizes or times differ from what was read.
        Exception: as `FolderTree`.
    """
    # A mounted Google Drive sometimes lists only a part of a folder, without an error.
    problem = source.relisted()
    if problem:
        raise SourceListingError(problem)


class Freshness(NamedTuple):
    """How a source compares with a recorded state of it."""

    same: bool
    """Whether data made from that state may be used."""
    seen: str = ""
    """What was compared, for the report."""
    proved: bool = False
    """Whether the source was opened and proved to be the same."""


def compare_source(call: StageCall, source: SourceOnce, recorded: SourceIdentity) -> Freshness:
    """Tell whether the source is still in the recorded state. A source that is gone does not count as changed."""
    request, report = call.request, call.report
    if request.checksum is not None:
        as_asked = recorded.checksum == str(request.checksum)
        # The checksum names the content, so it does not matter what the source holds now.
        if not as_asked or request.verify == "fast":
            return Freshness(same=as_asked)
    # An open source has its identity at hand, which is more than the quick look could tell.
    if request.verify == "fast" and source.opened is None and not _is_unreachable(request.source):
        look = check_freshness(request.source, recorded, workers=SLOW_LISTERS if request.drive_path else 1)
        if look.state == "gone":
            report.note(f"The source cannot be reached now; what was made from it before is used. {look.detail}")
        if look.state == "silent":
            report.note(f"Whether the source has changed is not known ({look.detail}); what was made from it is used.")
        if look.state != "unsure":
            seen = f"the source: {look.detail}" if look.state == "same" else ""
            return Freshness(look.state != "changed", seen)
    try:
        now = source.open(report).identity
    except (SourceError, DriveError, ArchiveError) as error:
        # A person whose account or network fails today wants to train on what is here.
        report.note(f"The source cannot be read now; what was made from it before is used. {error}")
        return Freshness(same=True)
    verdict = compare_states(recorded, now)
    if verdict == "same":
        return Freshness(True, f"the source: {proof_of(recorded, now)}", proved=True)
    if verdict == "unproved" and request.verify == "fast":
        report.note(
            "The source has the names and sizes that were staged, but nothing tells whether their content is the "
            "same: all times differ, as after a remount. verify='full' reads it again."
        )
        return Freshness(same=True)
    return Freshness(same=False)


def _is_unreachable(source: Source) -> bool:
    """Tell whether a part of a source is on the network, and that is switched off."""
    return is_set(OFFLINE_VARIABLE) and not all(isinstance(part, LocalSource | TreeSource) for part in parts_of(source))


class StateDiffersError(Exception):
    """The source is no longer in the state that it was compared with."""


class Comparison(Cancellation):
    """Compare a source with a recorded state in a thread, and cancel the work beside it when the two differ.

    Whoever does that work looks at this `Cancellation`, which also follows that of the call, and uses what it made only
    after `agree`.
    """

    def __init__(self, call: StageCall, source: SourceOnce, recorded: SourceIdentity) -> None:
        """Begin. Nobody else opens or uses the source before `settle` has returned."""
        super().__init__()
        self._call, self._source = call, source
        # Two steps at the same time would not add up to the time that the call took.
        self._report = StageReport()
        beside = replace(call, report=self._report)
        call.cancellation.follow(self.cancel)
        self._answer: Future[Freshness] = in_thread(
            lambda: compare_source(beside, source, recorded), "colabstage-compare"
        )
        self._answer.add_done_callback(self._stop_work)

    def _stop_work(self, answer: Future[Freshness]) -> None:
        if answer.exception() is not None or not answer.result().same:
            self.cancel()

    def check(self) -> None:
        """Raise `StateDiffersError` if they differ, what the comparison failed with if it did, and `CancelledError` if
        the call was cancelled."""
        if self._answer.done() and not self._answer.result().same:
            raise StateDiffersError
        super().check()

    def agree(self) -> Freshness:
        """Wait for the answer, and return it if the source is the same; raises as `check`."""
        while not wait((self._answer,), _LOOK_S).done:
            super().check()
        self.check()
        self._call.report.note(*self._report.notes)
        return self._answer.result()

    def settle(self) -> None:
        """Wait for the end, whatever was found, and put into the call's report what was done with the source."""
        while not wait((self._answer,), _LOOK_S).done:
            self._call.cancellation.check()
        self._call.report.note(*self._report.notes)
        self._call.report.steps += self._report.steps
        self._report.steps.clear()

    def abandon(self) -> None:
        """Wait for nothing: the source is closed when the comparison ends."""
        self._answer.add_done_callback(lambda _: self._source.close())

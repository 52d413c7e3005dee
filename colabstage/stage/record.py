"""What is staged on this machine: one folder for each dataset, with a record of what is complete in it, and a seal.

The seal is the packed file's inode, size and times, with the boot they were seen in. As long as they are unchanged,
nothing has written to the file since its hashes were verified, so a second call costs a few `stat`s. When they differ
(a copied disk, or a reboot in which data that was never forced to the disk may be lost), every block is hashed again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from colabstage.errors import CancelledError, ColabstageError
from colabstage.h5.manifest import check_whole, read_manifest
from colabstage.io.files import read_json, write_json
from colabstage.io.ownership import look_at
from colabstage.io.records import read_fields
from colabstage.machine.resources import usable_cores
from colabstage.sources.identity import SourceIdentity, compare_states, file_seal
from colabstage.stage.request import RECORD_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.h5.manifest import Manifest
    from colabstage.io.progress import Cancellation
    from colabstage.stage.request import StageRequest

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
    """The deed of their folder, as `io.ownership` names it."""


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
    """Whether the pack is in the cache; `None` when no cache was asked for."""


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
            check_whole(pack, manifest, threads=usable_cores(), cancellation=cancellation)
    except CancelledError:
        raise
    except ColabstageError as error:
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
        if not here.is_as_made or here.deed != record.files.deed:
            return f"its folder '{request.files_path}' {here}"
    return None

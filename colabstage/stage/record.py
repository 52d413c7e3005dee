"""The receipt of what is staged on this machine: `stage.json` in the folder of each dataset.

It says what is complete there and of which state of the source, with a seal of the packed file: its inode, size and
times, and the boot in which they were seen. While these are unchanged, nothing has written to the file since its hashes
were verified, so a second call costs a few `stat`s. If they differ (a copied disk, or a reboot, which may lose data
that was never synced), every block is hashed again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from colabstage.errors import CancelledError, ColabstageError, NewerFormatError
from colabstage.h5.info import read_info
from colabstage.h5.manifest import (
    Manifest,
    check_replaceable_pack,
    damage_of,
    is_manifest,
    is_replaceable_pack,
    manifest_path,
    read_manifest,
)
from colabstage.io.files import read_fields, read_json, write_json
from colabstage.io.receipts import Receipt, Seal, Standing, check_replaceable, file_seal, look_at
from colabstage.io.units import listed
from colabstage.io.workspace import free_name, move_vouched
from colabstage.sources.identity import SourceIdentity, compare_states
from colabstage.sources.parse import ObjectSource
from colabstage.stage.request import FILES_REMEDY, RECORD_NAME, StageRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation

_RECORD_VERSION = 1
# The kind of the receipt of plain files.
_FILES = "staged files"


@dataclass(frozen=True, slots=True)
class LocalRecord:
    key: str
    identity: SourceIdentity
    """The source's state when it was staged."""
    seal: Seal = field(default_factory=dict)
    """The seal of the packed file; empty if there is none, or its hashes have not been verified."""
    files: bool = False
    """Whether its plain files are local; they have a receipt of their own."""
    published: bool | None = None
    """Whether the pack is in the cache; `None` without a cache, or if another pack in it must stay."""
    published_in: str = ""
    """The `cache_dir=` of that call."""

    def is_published_in(self, request: StageRequest) -> bool:
        """Return whether it is known that the pack is in the cache of `request`, or that publishing it failed."""
        return self.published is not None and self.published_in == cache_name(request)


def cache_name(request: StageRequest) -> str:
    """Return the name of a request's cache in a record; "" for none."""
    cache = request.cache_dir
    return cache.address if isinstance(cache, ObjectSource) else str(cache or "")


def seal_of(request: StageRequest) -> Seal:
    return file_seal(request.pack_path) if request.pack_path.is_file() else {}


def identity_of(manifest: Manifest) -> SourceIdentity | None:
    """Return the state of the source that a pack was made from; comparing with it requires listing the source."""
    # Without the times of folders, which prove nothing on a machine that has not seen them before.
    identity = SourceIdentity.from_json(manifest.identity)
    return None if identity is None else identity.without_stamps


def read_record(request: StageRequest) -> LocalRecord | None:
    raw = read_json(request.folder / RECORD_NAME)
    if not isinstance(raw, dict) or raw.pop("version", None) != _RECORD_VERSION:
        return None
    raw.pop("address", None)  # only for people who open the file
    raw["files"] = bool(raw.get("files"))  # version 0.1 stored their figures here
    record = read_fields(LocalRecord, raw)
    return record if record is not None and record.key == request.key else None


def find_record(request: StageRequest) -> LocalRecord | None:
    """Read the record; if a run died right before writing it, use what the pack's own manifest says."""
    record = read_record(request)
    seal = {} if request.wants_files else seal_of(request)
    # The usual case: nothing has written to the file since its hashes were compared.
    if not seal or (record is not None and record.seal == seal):
        return record
    try:
        manifest = read_manifest(request.pack_path)
    except ColabstageError:
        return record
    identity = None if manifest is None else identity_of(manifest)
    if manifest is None or identity is None or manifest.key != request.key:
        return record
    # An empty seal fits no file, so every block is hashed before the pack is used.
    return LocalRecord(request.key, identity, published=None if record is None else record.published)


def write_record(request: StageRequest, record: LocalRecord) -> None:
    raw = {**asdict(record), "identity": record.identity.to_json()}
    write_json(request.folder / RECORD_NAME, {**raw, "version": _RECORD_VERSION, "address": request.source.address})


def files_record(request: StageRequest, identity: SourceIdentity, *, files: bool) -> LocalRecord:
    """Return the record to write when plain files were fetched and the pack, if any, was neither made nor checked: its
    seal stays if it still fits."""
    record = read_record(request)
    if record is None or compare_states(record.identity, identity) != "same" or record.seal != seal_of(request):
        return LocalRecord(request.key, identity, files=files)
    seal = record.seal if pack_problem(request, record, thorough=False) is None else {}
    return LocalRecord(request.key, identity, seal, files, record.published if seal else None)


def pack_problem(
    request: StageRequest, record: LocalRecord, *, thorough: bool, cancellation: Cancellation | None = None
) -> str | None:
    """Return why the staged pack cannot be used; `None` if it can.

    With an unbroken seal this takes a few `stat`s; otherwise, or if `thorough`, every block is hashed.
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
    # Another process may also have removed it meanwhile.
    except (ColabstageError, FileNotFoundError) as error:
        return str(error).rstrip(".")  # it becomes part of a sentence
    return None


def files_problem(request: StageRequest, record: LocalRecord, here: Standing, *, thorough: bool) -> str | None:
    """Return why the staged files cannot be used as they are; `None` when they can."""
    if not record.files or not request.files_path.is_dir():
        return "its files are not on this machine"
    # Each file by size and time, because people delete some. What they add or edit is theirs to use.
    if not here.is_as_made and (thorough or here.receipt is None or here.gone):
        return f"its folder '{request.files_path}' {here}"
    made_of = _files_made_of(request, here, record)
    of_this_state = made_of is not None and compare_states(made_of, record.identity) != "changed"
    return None if of_this_state else "its files are of another state of the source than its record"


def files_receipt(request: StageRequest, identity: SourceIdentity) -> Receipt:
    return Receipt(_FILES, {"key": request.key, "identity": identity.to_json()})


def are_files_staged(request: StageRequest, identity: SourceIdentity) -> bool:
    """Return whether the local plain files are complete, and from this state of the source."""
    here = None if request.refresh else look_at(request.files_path)
    made_of = None if here is None or not here.is_as_made else _files_made_of(request, here, read_record(request))
    return made_of is not None and compare_states(made_of, identity) != "changed"


def _files_made_of(request: StageRequest, here: Standing, record: LocalRecord | None) -> SourceIdentity | None:
    """Return the state of the source that the plain files were made from."""
    about = {} if here.receipt is None else here.receipt.about
    if about.get("key") == request.key:
        return SourceIdentity.from_json(about.get("identity", {}))
    # Version 0.1's receipts do not name the state of plain files, but its record does.
    return record.identity if not about and record is not None and record.files else None


def _is_spoilt(pack: Path) -> bool:
    """Return whether a pack's manifest, although ours, can no longer be read, and nothing else proves the pack.

    A pack that contradicts a whole manifest, or has none, was put there by somebody.
    """
    with suppress(NewerFormatError):
        return is_manifest(manifest_path(pack)) and read_manifest(pack) is None and not is_replaceable_pack(pack)
    return False


def set_aside(pack: Path) -> Iterator[str]:
    """Rename a pack whose manifest is spoilt, and yield a sentence about it."""
    if _is_spoilt(pack):
        move_vouched(pack, aside := free_name(pack, ".aside"))
        yield f"The manifest of the pack here was spoilt, so it is made again. What was there is now '{aside.name}'."


def check_targets(request: StageRequest, *, packs: bool) -> None:
    """Refuse to replace a pack, if one is made, or plain files that are not as colabstage made them."""
    if packs and not _is_spoilt(request.pack_path):
        check_replaceable_pack(request.pack_path)
    if request.wants_files:
        check_replaceable(request.files_path, FILES_REMEDY)


def renumbered(pack: Path, classes: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if classes have other numbers than in the earlier pack, whose models would name them wrongly."""
    before: tuple[str, ...] = ()
    with suppress(ColabstageError, OSError):
        before = read_info(pack).classes
    now = {name: number for number, name in enumerate(classes)}
    if moved := [name for number, name in enumerate(before) if now.get(name, number) != number]:
        yield (
            "Classes have other numbers than in the earlier pack, and in models trained with it: "
            f"{listed(moved, 3)} ({moved[0]!r} was {before.index(moved[0])} and is {now[moved[0]]})."
        )

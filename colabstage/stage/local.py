"""What is staged on this machine: one folder a dataset, a record that says what is whole in it, and its seal.

The seal is the packed file's inode, size and times, with the boot they were seen in. As long as they are unchanged,
nothing has written to the file since its hashes were verified, so a second call costs a few `stat`s. When they differ
(a copied disk, a reboot after which the kernel may have lost what was never forced to the disk), every block is
hashed again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import ColabstageError
from colabstage.fetch.identity import SourceIdentity, is_same
from colabstage.fetch.record import file_seal
from colabstage.fileops import read_json, write_json
from colabstage.h5.manifest import check_whole, read_manifest
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.stage.request import StageRequest

_RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class LocalRecord:
    """What one dataset's folder holds.

    `identity`: the source's state when it was staged. `seal`: of the packed file, empty without one.
    `files`: number and bytes of the plain files, `None` without them.
    `published`: whether the pack is in the cache; `None` when it was not asked for.
    """

    key: str
    identity: SourceIdentity
    seal: dict[str, Any]
    files: tuple[int, int] | None
    published: bool | None


def record_path(request: StageRequest) -> Path:
    """Where a dataset's record stands."""
    return request.folder / "stage.json"


def read_record(request: StageRequest) -> LocalRecord | None:
    """The record of what is staged for this request; `None` when nothing is, or it is of something else."""
    raw = read_json(record_path(request))
    if not isinstance(raw, dict) or raw.get("version") != _RECORD_VERSION or raw.get("key") != request.key:
        return None
    identity = SourceIdentity.from_json(raw.get("identity"))
    if identity is None:
        return None
    files = raw.get("files")
    return LocalRecord(
        request.key,
        identity,
        dict(raw.get("seal") or {}),
        None if files is None else tuple(files),
        raw.get("published"),
    )


def find_record(request: StageRequest) -> LocalRecord | None:
    """As `read_record`; where a run died right before its record, what the pack's own manifest says instead."""
    record = read_record(request)
    if request.wants_files or not request.pack_path.is_file():
        return record
    if record is not None and record.seal == file_seal(request.pack_path):
        return record
    try:
        manifest = read_manifest(request.pack_path)
    except ColabstageError:
        return record
    identity = None if manifest is None else SourceIdentity.from_json(manifest.identity)
    if manifest is None or identity is None or manifest.key != request.key:
        return record
    # No file has an empty seal, so every block is hashed before it is trusted.
    return LocalRecord(request.key, identity, {}, None, None if record is None else record.published)


def write_record(
    request: StageRequest, identity: SourceIdentity, *, files: tuple[int, int] | None, published: bool | None
) -> None:
    """Record what the folder holds now; seals the packed file if there is one."""
    pack = request.pack_path
    write_json(
        record_path(request),
        {
            "version": _RECORD_VERSION,
            "key": request.key,
            "address": request.address,
            "identity": identity.to_json(),
            "seal": file_seal(pack) if pack.exists() else {},
            "files": None if files is None else list(files),
            "published": published,
        },
    )


def pack_problem(request: StageRequest, record: LocalRecord, *, thorough: bool) -> str | None:
    """Why the staged pack cannot be used as it is; `None` when it can.

    With an unbroken seal this is a few `stat`s, otherwise, or when `thorough`, every block is hashed.
    """
    pack = request.pack_path
    if not pack.is_file():
        return "it is not packed on this machine"
    try:
        manifest = read_manifest(pack)
        if manifest is None or manifest.key != request.key:
            return "its manifest is missing"
        if thorough or file_seal(pack) != record.seal:
            check_whole(pack, manifest, threads=usable_cores())
    except ColabstageError as error:
        return str(error)
    return None


def files_staged(request: StageRequest, identity: SourceIdentity) -> tuple[int, int] | None:
    """Number and bytes of the plain files that are here from this very state of the source; `None` without them."""
    record = None if request.refresh else read_record(request)
    if record is None or not is_same(record.identity, identity) or files_problem(request, record, thorough=True):
        return None
    return record.files


def files_problem(request: StageRequest, record: LocalRecord, *, thorough: bool) -> str | None:
    """Why the staged files cannot be used as they are; `None` when they can."""
    if record.files is None or not request.files_path.is_dir():
        return "its files are not on this machine"
    if thorough:
        found = [
            os.path.getsize(os.path.join(folder, name))  # noqa: PTH118, PTH202 - thousands of them
            for folder, _, names in os.walk(request.files_path)
            for name in names
        ]
        if (len(found), sum(found)) != record.files:
            return f"its folder holds {len(found)} files of {sum(found):,} bytes, staged were {record.files}"
    return None

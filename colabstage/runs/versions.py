"""The versions of a run in its folder: their names, their order, and which of them may go.

A version is named by the session that wrote it and by the step that it holds. Each session of a run has a higher number
than all before it, so what a machine writes that another one has taken over from sorts before everything that is newer.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.h5.manifest import manifest_path, remove_manifest
from colabstage.io.ownership import sweep_orphans
from colabstage.machine.mounts import drive_root
from colabstage.stage.publish import discard_version

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

_NAME = re.compile(r"session-(\d{4,})-step-(\d{8,})\.pt")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of a run; later ones are greater."""

    session: int
    """Number of the session that wrote it, from 1."""
    step: int
    """Steps that were done."""

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"session-{self.session:04}-step-{self.step:08}.pt"


def version_named(name: str) -> Version | None:
    """Return the version that a file's name stands for; `None` for any other file."""
    match = _NAME.fullmatch(name)
    return None if match is None else Version(int(match[1]), int(match[2]))


def versions_among(names: Iterable[str]) -> list[Version]:
    """Return the versions that these files are, the newest first."""
    return sorted({version for name in names if (version := version_named(name)) is not None}, reverse=True)


def list_versions(folder: Path, noted: Iterable[str] = ()) -> list[Version]:
    """Return the versions in a folder, the newest first.

    `noted`: names of files that may be there although the folder's listing is older, as on a mounted Drive.
    """
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    names |= {name for name in noted if name not in names and (folder / name).is_file()}
    return versions_among(names)


def sweep_leftovers(folder: Path) -> None:
    """Remove what sessions that were killed have left half published or half removed."""
    # Drive's trash keeps the size of what is removed.
    sweep_orphans(folder, prefix="session-", empty=drive_root(folder) is not None)
    # A step that was saved twice, at its time and at the end of the block, replaces the first.
    for replaced in folder.glob("session-*.pt.previous"):
        discard_version(replaced)
    for manifest in folder.glob("session-*.pt.json"):
        version = version_named(manifest.name.removesuffix(".json"))
        if version is not None and not os.path.lexists(folder / version.name):
            remove_manifest(folder / version.name)


def superseded(there: Iterable[Version], whole: Collection[Version], keep: int) -> list[Version]:
    """Return the versions that are older than the newest `keep` that are known to be whole."""
    kept = sorted(whole, reverse=True)[:keep]
    return [] if len(kept) < keep else [version for version in there if version < kept[-1]]


def is_complete(folder: Path, version: Version) -> bool:
    """Return whether a version's file and its manifest are there; what is in them is compared when it is restored."""
    file = folder / version.name
    return file.is_file() and manifest_path(file).is_file()

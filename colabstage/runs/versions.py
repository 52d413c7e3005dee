"""The versions of a run in its folder: their names, their order, and which may be removed.

A version is named by its session, the number of the save in this session, and its step. Each session of a run has a
higher number than all before it, so what a superseded machine still writes sorts before everything newer. No two saves
share a name, so nothing is ever replaced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.h5.manifest import manifest_path
from colabstage.io.ownership import sweep_orphans
from colabstage.machine.mounts import drive_root

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

_NAME = re.compile(r"session-(\d{4,})-save-(\d{4,})-step-(\d{8,})\.pt(?:\.json)?")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of a run; later ones are greater."""

    session: int
    """Number of the session that wrote it, from 1."""
    save: int
    """Number of the save in this session, from 1. A failed save has a number too."""
    step: int
    """Steps that were done."""

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"session-{self.session:04}-save-{self.save:04}-step-{self.step:08}.pt"


def list_versions(folder: Path, noted: Iterable[str] = ()) -> list[Version]:
    """Return the versions in a folder, the newest first. An incomplete one has only its file or only its manifest.

    `noted`: names of files that may exist although the folder's listing is older, as on a mounted Drive.
    """
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    names |= {name for name in noted if name not in names and (folder / name).is_file()}
    found = {Version(*map(int, match.groups())) for name in names if (match := _NAME.fullmatch(name)) is not None}
    return sorted(found, reverse=True)


def is_complete(folder: Path, version: Version) -> bool:
    """Return whether a version's file and manifest exist; their content is compared when it is restored."""
    file = folder / version.name
    return file.is_file() and manifest_path(file).is_file()


def sweep_leftovers(folder: Path) -> None:
    """Remove what killed sessions have left half copied or half removed."""
    # In Drive's trash, a removed file keeps its size.
    sweep_orphans(folder, prefix="session-", empty=drive_root(folder) is not None)


def superseded(there: Iterable[Version], whole: Collection[Version], keep: int) -> list[Version]:
    """Return the versions older than the newest, without the newest `keep` that are known to be complete.

    While fewer than `keep` are known, all stay.
    """
    kept = sorted(whole, reverse=True)[:keep]
    return [] if len(kept) < keep else [version for version in there if version < kept[0] and version not in kept]

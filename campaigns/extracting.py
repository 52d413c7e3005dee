"""Extracting under fire: a zip of thousands of members by processes, a compressed tar by threads."""

from __future__ import annotations

import shutil
import tarfile
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from campaigns.campaign import Campaign, State, same_tree
from campaigns.material import write_photographs, zip_folder
from colabstage import extract_archive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from campaigns.worker import ProgressLog

# What one journal line stands for, and how many such batches are under way, or waiting to be noted, at once.
_BATCH_MB = 1.05
_BATCHES = 8


class Extracting(Campaign):
    """`extract_archive`, counted in MB of content."""

    name: ClassVar[str] = "extract"
    title: ClassVar[str] = "`extract_archive`: a zip of thousands of members, a tar.gz"
    unit: ClassVar[str] = "MB"
    because: ClassVar[str] = f"members are redone in batches of 1 MB, and up to {_BATCHES} batches are under way"
    variants: ClassVar[int] = 2

    def __init__(self, home: Path, *, small: bool) -> None:
        self._truth = write_photographs(home / "photos", 300 if small else 3000)
        tar = home / "photos.tar.gz"
        with tarfile.open(tar, "w:gz", compresslevel=1) as archive:
            archive.add(self._truth, ".")
        self._archives = [zip_folder(self._truth, home / "photos.zip"), tar]
        self._nbytes = sum(path.stat().st_size for path in self._truth.rglob("*.jpg"))
        self._place = home / "place"
        self._in_place = 0.0

    @property
    def bound(self) -> float:
        """MB that one kill may cost."""
        return _BATCH_MB * _BATCHES

    @property
    def needed(self) -> float:
        """All content."""
        return self._nbytes / 1e6

    def begin(self, number: int) -> dict[str, Any]:
        """An empty folder."""
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir()
        self._in_place = 0.0
        return {"archive": str(self._archives[number % 2]), "target": str(self._place / "photos")}

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Extract."""
        print(extract_archive(arguments["archive"], arguments["target"], progress=log))

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """The content written, but for what was taken over, which is told first and at once."""
        amounts = [amount / 1e6 for name, amount in log if name != "steps"]
        # A batch is small against all that was finished, so the two cannot be taken for each other.
        took_over = bool(amounts) and self._in_place > 4 * _BATCH_MB and amounts[0] > self._in_place / 2
        done = sum(amounts[1:] if took_over else amounts)
        self._in_place = max(self._in_place, sum(amounts))
        return done

    def look(self) -> State:
        """The folder is not there, or all of it is; and nobody works on for the dead."""
        for process in psutil.process_iter(["cmdline", "ppid"]):
            if process.info["ppid"] == 1 and str(self._place) in " ".join(process.info["cmdline"] or ()):
                psutil.wait_procs([process], timeout=5)
                if process.is_running():
                    self.fail(f"a process of the killed one works on: {process.info['cmdline']}")
        target = self._place / "photos"
        if not target.exists():
            return "nothing"
        same_tree(target, self._truth, "extract")
        return "whole"

    def check(self) -> None:
        """Every member, byte by byte, and nothing beside them."""
        same_tree(self._place / "photos", self._truth, "extract")
        self.check_nothing_left(self._place)

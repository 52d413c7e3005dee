"""Fetching under fire: a folder and a large file from a (simulated) Drive, a large file from a web server."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any, ClassVar

from campaigns.campaign import Campaign, State, same_bytes, same_tree
from campaigns.material import random_file, write_photographs
from colabstage.sources.fetching import fetch_files
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from campaigns.worker import ProgressLog

_KINDS = ("folder", "web", "file")
# No piece that arrives is longer.
_PIECE_MB = 2.0
_BLOCK_MB = 8 * 1024 * 1024 / 1e6
# One block under way for each connection to a web server, and to a mount, which also reads ahead.
_CONNECTIONS = {"web": 16, "file": 5}
# Files that have been read, or are being read, and are not written yet.
_FILES_IN_FLIGHT = 32 + 4 * 32


class Fetching(Campaign):
    """`fetch_files`, counted in MB that came from the source."""

    name: ClassVar[str] = "fetch"
    title: ClassVar[str] = (
        "`fetch_files`: a folder of small files from a simulated Google Drive, one large file from a web server on "
        "loopback, one from Drive"
    )
    unit: ClassVar[str] = "MB"
    because: ClassVar[str] = (
        f"for a folder, the {_FILES_IN_FLIGHT} files that may be read and not yet written; for a large file, one block "
        f"of 8 MiB for each connection, and a web server gets {_CONNECTIONS['web']} of them"
    )
    variants: ClassVar[int] = 3

    def __init__(self, home: Path, *, small: bool) -> None:
        self._stack = contextlib.ExitStack()
        self._place = home / "place"
        self._drive = self._stack.enter_context(SimulatedDrive(home / "drive", knobs=DriveKnobs(time_scale=0.1)))
        self._mountpoint = home / "content" / "drive"
        self._mountpoint.mkdir(parents=True)
        cloud = self._drive.cloud / "MyDrive"
        self._folder = write_photographs(cloud / "photos", 300 if small else 1500)
        self._file = random_file(cloud / "large.bin", 40_000_000 if small else 200_000_000, 1)
        knobs = WebKnobs(latency_s=0.02, bytes_per_s=20e6)
        self._server = self._stack.enter_context(WebServer({"large.bin": self._file}, knobs=knobs))
        self._kind = ""
        self._given = 0.0

    @property
    def bound(self) -> float:
        """MB that one kill may cost."""
        if self._kind == "folder":
            return _FILES_IN_FLIGHT * 0.02
        return _CONNECTIONS[self._kind] * _BLOCK_MB

    @property
    def needed(self) -> float:
        """All of the content."""
        files = self._folder.rglob("*.jpg") if self._kind == "folder" else [self._file]
        return sum(path.stat().st_size for path in files) / 1e6

    def begin(self, number: int) -> dict[str, Any]:
        """An empty folder on a machine that has read nothing yet."""
        self._kind = _KINDS[number % 3]
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir()
        self._drive.new_machine()
        # Never fails, but has reads counted one by one, past the kernel's memory.
        watch = OpFault(op="read", pattern="*", every=1_000_000_000)
        self._drive.set_faults(DriveFaults(ops=(watch,)))
        self._drive.mount(self._mountpoint)
        self._given = 0.0
        sources = {
            "folder": str(self._mountpoint / "MyDrive" / "photos"),
            "file": str(self._mountpoint / "MyDrive" / "large.bin"),
            "web": self._server.url("large.bin"),
        }
        return {"source": sources[self._kind], "target": str(self._target)}

    @property
    def _target(self) -> Path:
        return self._place / ("photos" if self._kind == "folder" else "large.bin")

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Fetch."""
        print(fetch_files(arguments["source"], arguments["target"], progress=log))

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Of a folder what Drive's client gave in this run; of a file what arrived, but for what was there before."""
        if self._kind != "folder":
            amounts = [amount / 1e6 for name, amount in log if name != "steps"]
            # What is kept is told first and at once, in whole blocks; what arrives, in small pieces.
            return sum(amounts[1:] if amounts and amounts[0] > _PIECE_MB else amounts)
        stats = self._drive.stats()
        before, self._given = self._given, stats.bytes_cold + stats.bytes_warm
        return (self._given - before) / 1e6

    def look(self) -> State:
        """The target is not there, or all of it is."""
        if not self._target.exists():
            return "nothing"
        self._compare()
        return "whole"

    def _compare(self) -> None:
        if self._kind == "folder":
            same_tree(self._target, self._folder, "fetch")
        elif not self._target.is_file() or not same_bytes(self._target, self._file):
            self.fail(f"'{self._target.name}' is not the file that was asked for.")

    def check(self) -> None:
        """Everything, byte by byte, and nothing temporary beside it."""
        self._compare()
        self.check_nothing_left(self._place)

    def close(self) -> None:
        """Stop the server, unmount."""
        self._stack.close()

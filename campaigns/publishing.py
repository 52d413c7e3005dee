"""Publishing under fire: versions of a checkpoint to a (simulated) Drive, where writing is slow to be believed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from campaigns.campaign import Campaign, State, leftovers, same_bytes
from campaigns.material import random_file
from colabstage.h5.manifest import is_whole, manifest_path, read_manifest
from colabstage.io.files import BLOCK_BYTES
from colabstage.stage.publish import previous_path, publish_file
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from campaigns.worker import ProgressLog

# Blocks that have been read when the process dies, and are not written yet or not to their end.
_IN_FLIGHT = 1
# What a round publishes over; older ones are gone by then.
_VERSIONS = 4


class Publishing(Campaign):
    """`publish_file`, counted in blocks written to Drive, as Drive's client counts them."""

    name: ClassVar[str] = "publish"
    title: ClassVar[str] = "`publish_file`: version after version of one checkpoint to a simulated Google Drive"
    unit: ClassVar[str] = "blocks of 8 MiB"
    because: ClassVar[str] = "one block is being written at a time"

    def __init__(self, home: Path, *, small: bool) -> None:
        self._nbytes = (3 if small else 12) * BLOCK_BYTES + 1234
        self._versions = [random_file(home / "versions" / str(n), self._nbytes, n) for n in range(_VERSIONS)]
        self._stack = contextlib.ExitStack()
        self._drive = self._stack.enter_context(SimulatedDrive(home / "drive", knobs=DriveKnobs.quick()))
        (home / "content" / "drive").mkdir(parents=True)
        self._drive.mount(home / "content" / "drive")
        self._target = home / "content" / "drive" / "MyDrive" / "my checkpoints" / "model 1.pt"
        self._version = 0
        self._written = 0

    @property
    def bound(self) -> float:
        """Blocks that one kill may cost."""
        return _IN_FLIGHT

    @property
    def needed(self) -> float:
        """All blocks of a version."""
        return self._nbytes / BLOCK_BYTES

    def begin(self, number: int) -> dict[str, Any]:
        """The next version, over those before it."""
        self._version = number
        return {"source": str(self._source(number)), "target": str(self._target)}

    def _source(self, number: int) -> Path:
        return self._versions[number % _VERSIONS]

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Publish."""
        publish_file(arguments["source"], arguments["target"], progress=log)

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """What the mount was written since the last run, but for the manifests."""
        written = self._drive.stats().bytes_written
        blocks, self._written = (written - self._written) / BLOCK_BYTES, written
        return blocks

    def look(self) -> State:
        """The new version, or the one before it under its own or its other name, is whole with its manifest."""
        versions: list[tuple[Path, State]] = [(self._target, "nothing"), (previous_path(self._target), "nothing")]
        found: set[State] = set()
        for place, _ in versions:
            if not place.exists():
                continue
            new, old = self._source(self._version), self._source(self._version - 1)
            state: State = "whole" if same_bytes(place, new) else "old" if same_bytes(place, old) else "nothing"
            older = self._version > 1 and same_bytes(place, self._source(self._version - 2))
            # A version that is about to make room is emptied first; without its manifest it counts for nothing.
            manifest = read_manifest(place)
            if state == "nothing" and not older and (manifest is not None or place == self._target):
                self.fail(f"'{place.name}' is no version after a kill ({place.stat().st_size:,} bytes).")
            if manifest is not None and place.stat().st_size == manifest.size:
                assert is_whole(place, manifest), place
                found.add(state)
        if self._version and not found & {"whole", "old"}:
            self.fail("no whole version with its manifest was left after a kill.")
        return "whole" if "whole" in found else "old" if "old" in found else "nothing"

    def check(self) -> None:
        """The new version and the one before it, whole, with manifests, and nothing else; in the cloud too."""
        if not self._drive.flush(timeout_s=60):
            self.fail("the uploads did not end.")
        folder = self._drive.cloud / "MyDrive" / self._target.parent.name
        for root in (self._target.parent, folder):
            wanted = {root / self._target.name: self._source(self._version)}
            if self._version:
                wanted[previous_path(root / self._target.name)] = self._source(self._version - 1)
            for place, version in wanted.items():
                manifest = read_manifest(place)
                if manifest is None or not same_bytes(place, version):
                    self.fail(f"'{place}' is not the version it should be.")
                assert is_whole(place, manifest), place
            names = {path.name for path in root.iterdir()}
            expected = {file.name for place in wanted for file in (place, manifest_path(place))}
            if names != expected or leftovers(root):
                self.fail(f"'{root}' holds {sorted(names ^ expected)} that it should not, or lacks it.")

    def close(self) -> None:
        """Unmount."""
        self._stack.close()

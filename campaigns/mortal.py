"""A simulated Drive for campaigns in which its client and whole machines die as well, and other things go wrong."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Rounds in which is measured how long it takes: nothing goes wrong in them.
UNDISTURBED = 2


class MortalDrive:
    """Mounted at `place`; `later` has things happen while a worker runs, `settle` ends that."""

    def __init__(self, home: Path, *, upload_bytes_per_s: float, seed: int) -> None:
        """Have uploads so slow that kills meet them under way, and all else quick."""
        knobs = DriveKnobs(
            cold_open_latency_s=0,
            warm_open_latency_s=0,
            listing_latency_s=0,
            listing_per_entry_s=0,
            warm_listing_s=0,
            stream_bytes_per_s=1e9,
            total_bytes_per_s=1e9,
            warm_bytes_per_s=1e9,
            upload_bytes_per_s=upload_bytes_per_s,
            visibility_s=0.1,
        )
        self.chance = random.Random(seed)
        self.place = home / "content" / "drive"
        self.place.mkdir(parents=True)
        self.drive = SimulatedDrive(home / "google", knobs=knobs)
        self.drive.mount(self.place)
        self._timers: list[threading.Timer] = []

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something happen after so many seconds."""
        self._timers.append(threading.Timer(seconds, act))
        self._timers[-1].start()

    def settle(self) -> None:
        """End what may still happen, and all faults."""
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._timers = []
        self.drive.set_faults(DriveFaults())

    def new_machine(self) -> None:
        """Have the machine die, with everything on it that is not uploaded; the next one has mounted nothing yet."""
        self.drive.kill()
        self.drive.new_machine()

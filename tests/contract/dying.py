"""A simulated Drive whose client and machine die, and the work that runs on it in processes of their own."""

import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from colabstage import publish_file
from colabstage.errors import ColabstageError
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs

EVERY, STEPS = 4, 36


class DyingDrive:
    """Uploads are slow, so that kills interrupt them; everything else is quick."""

    def __init__(self, home: Path, *, upload_bytes_per_s: float, seed: int) -> None:
        quick = DriveKnobs.quick().scaled()
        knobs = replace(quick, upload_bytes_per_s=upload_bytes_per_s, visibility_s=0.1)
        self.chance = random.Random(seed)
        self.place = home / "content" / "drive"
        self.place.mkdir(parents=True)
        self.drive = SimulatedDrive(home / "google", knobs=knobs)
        self.drive.mount(self.place)
        self._timers: list[threading.Timer] = []

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after so many seconds."""
        self._timers.append(threading.Timer(seconds, act))
        self._timers[-1].start()

    def settle(self) -> None:
        """End all faults and everything scheduled."""
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._timers = []
        self.drive.set_faults(DriveFaults())

    def mount(self, *, new_machine: bool = False) -> None:
        """Mount again with a new client, or on a new machine, which has lost what the old one had not uploaded."""
        if new_machine:
            self.drive.kill()
            self.drive.new_machine()
        else:
            self.drive.unmount()
        # Without a Drive, a save may have made its folder on the local disk, where a mount would hide it.
        for left in self.place.iterdir():
            shutil.rmtree(left)
        self.drive.mount(self.place)


def name_of(number: int) -> str:
    """Every second checkpoint has its own name; the others replace each other under one name."""
    return "latest.pt" if number % 2 else f"epoch {number}.pt"


def answers(home: Path) -> bool:
    """Tell whether this machine's Drive responds."""
    try:
        # The kernel may still have a folder's attributes cached, but not its content.
        return any((home / "content/drive").iterdir())
    except OSError:
        return False


def work(what: str, home: str, folder: str, first: int, after_s: float) -> int:
    """Publish the checkpoints from `first` on, or train to the end; die after `after_s` seconds, unless it is 0."""
    if after_s:
        timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    place, log = Path(home), os.open(Path(home) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        (publish_all if what == "publish" else train_all)(place, Path(folder), first, lambda: os.write(log, b"."))
    except ColabstageError as error:
        if what == "publish" and answers(place):
            raise
        # The client died, or a disk is full: this notebook dies too, and the next one takes over.
        (place / "failed").write_text(str(error), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def publish_all(home: Path, folder: Path, first: int, note: Callable[[], object]) -> None:
    """Publish the checkpoints in order; note each one that is reported as uploaded."""
    files = sorted((home / "epochs").iterdir())
    for number in range(first, len(files)):
        report = publish_file(files[number], folder / name_of(number), wait_uploaded=True, progress=False)
        assert report.proof == "uploaded", report.why
        note()


def train_all(home: Path, folder: Path, _: int, note: Callable[[], object]) -> None:
    """Train to the end; note each step."""
    from tests.runs.training import train

    tempfile.tempdir = str(home / "disk")

    def on_step(_: int) -> None:
        note()
        if (home / "mortal").exists() and not answers(home):
            os.kill(os.getpid(), signal.SIGKILL)

    train(
        folder, home / "rows.h5", home / "weights.pt", every=f"{EVERY} steps", step_s=0.02, calm=True, on_step=on_step
    )

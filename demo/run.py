"""The demo: one dataset on a simulated Drive, sessions that train from it, and the machines they run on.

The dataset is scikit-learn's 1,797 handwritten digits, as a JPEG image folder and as a zip of it. Each session has a
fresh machine on which the Drive is mounted.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import DriveError
from colabstage.io.units import format_duration
from demo.report import DemoResult, DemoSize, Session, broken_claims
from notebooks.practice import digit_files
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.stage.dataset import StagedDataset, StageReport
    from demo.report import Narrator
    from demo.train import FolderOfImages, Training
    from simulated_drive.drive import SimulatedDrive

# Imported beforehand, so that no session pays for it.
_MODULES = ("colabstage.load.loader", "colabstage.stage.run", "PIL.Image")
# One seed for the splits, the weights and the order, so that sessions differ only in where images come from.
_SEED = 0

FULL = DemoSize(images=None, epochs=4, min_accuracy=0.95)
QUICK = DemoSize(images=500, epochs=3, min_accuracy=0.8)

# All other figures are those reported for an ordinary day; with the 0.4 s per file reported, the first epoch would take
# five minutes.
KNOBS = DriveKnobs(cold_open_latency_s=0.05)
SIDE = 64
_FLUSH_TIMEOUT_S = 300.0


def run_demo(size: DemoSize, *, time_scale: float, narrator: Narrator) -> DemoResult:
    """Run the sessions on a simulated Drive whose waits are multiplied by `time_scale`, and report on them."""
    for name in _MODULES:
        import_module(name)
    from demo.train import one_thread

    with tempfile.TemporaryDirectory(prefix="colabstage-demo-") as home, one_thread():
        result = _run_sessions(size, time_scale, Path(home), narrator)
    result.broken_claims = broken_claims(result, size)
    narrator.close(result, size)
    return result


def _run_sessions(size: DemoSize, time_scale: float, home: Path, narrator: Narrator) -> DemoResult:
    written: list[tuple[int, int]] = []
    knobs = replace(KNOBS, time_scale=time_scale)

    def fill(folder: Path) -> None:
        # The folder exists only while the machines are open; the table needs these numbers.
        written.append(write_digits(folder, images=size.images, seed=_SEED))

    with mounted_machines(home, knobs, fill) as fresh_machine:
        narrator.open(*written[0], knobs)
        demo = _Demo(fresh_machine, size, narrator)
        straight = demo.train_straight()
        unzipped = demo.train_unzipped()
        first, upload_s = demo.train_staged("staged, first session", "Staged: the first session")
        zip_report, zip_s = demo.stage_zip()
        second, _ = demo.train_staged("staged, second session", "Staged: a second session, on a new machine")
    return DemoResult(*written[0], knobs, straight, unzipped, first, second, zip_report, zip_s, upload_s)


@dataclass(frozen=True, slots=True)
class _Demo:
    """The sessions, each on a fresh machine on which nothing has been read."""

    fresh_machine: FreshMachine
    """Gives out machines, one for each session."""
    size: DemoSize
    """How much is done."""
    narrator: Narrator
    """What reports on it."""

    def train_straight(self) -> Session:
        """Train straight from the folder on Drive."""
        with self.fresh_machine() as machine:
            self.narrator.begin(f"Straight from the Drive folder: a stock DataLoader with {machine.workers} workers")
            self.narrator.foretell_opening(machine.workers)
            training = self._train_stock(machine.images, machine.workers, began=time.perf_counter())
        return Session("straight from Drive", training)

    def train_unzipped(self) -> Session:
        """Train as most people do: copy the zip here, unpack it, and read its files."""
        with self.fresh_machine() as machine, tempfile.TemporaryDirectory(prefix="colabstage-demo-") as here:
            numbers = (0, machine.workers)
            self.narrator.begin(
                "The zip, copied here and unpacked: a stock DataLoader over its files, with "
                f"{' and '.join(map(str, numbers))} workers"
            )
            from demo.train import FolderOfImages

            began = time.perf_counter()
            copied = shutil.copy(machine.zip_source, here)
            with zipfile.ZipFile(copied) as archive:
                archive.extractall(here)
            unpacking_s = time.perf_counter() - began
            self.narrator.say(f"  copied and unpacked in {format_duration(unpacking_s)}")
            digits = Path(here, "digits")

            def train(workers: int) -> Training:
                # As if each session had copied and unpacked the zip itself.
                began = time.perf_counter() - unpacking_s
                return self._train_stock(lambda split: FolderOfImages(digits / split), workers, began=began)

            tried = {workers: train(workers) for workers in numbers}
            best = min(numbers, key=lambda workers: tried[workers].total_s)
            self.narrator.say(f"  {best} workers were fastest, and count")
        return Session("zip copied and unpacked", tried[best])

    def _train_stock(self, images: Callable[[str], FolderOfImages], workers: int, *, began: float) -> Training:
        from demo.train import stock_loader, train

        training = train(
            stock_loader(images("train"), workers=workers, shuffle=True, seed=_SEED),
            lambda: stock_loader(images("test"), workers=workers, shuffle=False, seed=_SEED),
            epochs=self.size.epochs,
            seed=_SEED,
            began=began,
            told=self.narrator.epoch,
        )
        self.narrator.tested(training)
        return training

    def train_staged(self, name: str, title: str) -> tuple[Session, float]:
        """Stage, then train; then wait for the upload of the pack, and return how long that took as well."""
        import torch

        from demo.train import BATCH_SIZE, train

        self.narrator.begin(f"{title}: stage_dataset('…/MyDrive/digits', color_mode='grayscale')")
        with self.fresh_machine() as machine:
            began = time.perf_counter()
            data = self._stage(machine, machine.source)
            test = data.loader("test", BATCH_SIZE, dtype=torch.float32)
            with data.loader("train", BATCH_SIZE, seed=_SEED, dtype=torch.float32) as batches, test:
                training = train(
                    batches,
                    lambda: test,
                    epochs=self.size.epochs,
                    seed=_SEED,
                    began=began,
                    told=self.narrator.epoch,
                )
            self.narrator.tested(training)
            upload_s = 0.0
            # Only the session that packs has anything to upload.
            if data.report.origin == "source":
                upload_s = machine.flush()
                self.narrator.say(f"  the pack is in the cloud, after {format_duration(upload_s)} more")
        return Session(name, training, data.report), upload_s

    def stage_zip(self) -> tuple[StageReport, float]:
        """Stage the same images from the zip, on a separate machine; return the report and the seconds."""
        with self.fresh_machine() as machine:
            began = time.perf_counter()
            self.narrator.begin("The same images from the zip: stage_dataset('…/MyDrive/digits.zip', …)")
            return self._stage(machine, machine.zip_source).report, time.perf_counter() - began

    def _stage(self, machine: Machine, source: Path) -> StagedDataset:
        from colabstage.stage.run import stage_dataset

        data = stage_dataset(
            source,
            color_mode="grayscale",
            local_dir=machine.local_dir,
            cache_dir=machine.cache_dir,
            progress=sys.stderr.isatty(),
        )
        self.narrator.say(str(data.report))
        return data


def write_digits(drive: Path, *, images: int | None, seed: int) -> tuple[int, int]:
    """Write `digits/train/<class>`, `digits/test/<class>` (80 to 20) and `digits.zip` into a folder; return number and
    bytes of the JPEG files. `images`: how many; `None` for all."""
    sizes = []
    with zipfile.ZipFile(drive / "digits.zip", "w") as archive:
        for name, data in digit_files(images=images, seed=seed, side=SIDE):
            path = drive / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            archive.writestr(name, data)
            sizes.append(len(data))
    return len(sizes), sum(sizes)


@dataclass(frozen=True, slots=True)
class Machine:
    """A fresh machine, on which nothing has been read yet."""

    images: Callable[[str], FolderOfImages]
    """Returns the images of a split, which are read one by one from Drive."""
    workers: int
    """How many processes may read them."""
    source: Path
    """The folder to stage."""
    zip_source: Path
    """The zip to stage."""
    local_dir: Path
    """Where `stage_dataset` puts the pack."""
    cache_dir: Path
    """Where it publishes the pack."""
    flush: Callable[[], float]
    """Waits for uploads and returns the seconds it took."""


# Provides a machine that disappears at the end, with everything on its disk.
FreshMachine = Callable[[], AbstractContextManager[Machine]]


@contextlib.contextmanager
def mounted_machines(home: Path, knobs: DriveKnobs, fill: Callable[[Path], None]) -> Iterator[FreshMachine]:
    """Give out machines with a mounted Drive; `fill` is called with the `MyDrive` folder in the cloud."""
    from demo.train import FolderOfImages
    from simulated_drive.drive import SimulatedDrive

    with SimulatedDrive(home / "account", knobs=knobs) as drive:
        fill(drive.cloud / "MyDrive")
        local, my_drive = home / "local", home / "drive" / "MyDrive"

        @contextlib.contextmanager
        def fresh() -> Iterator[Machine]:
            drive.mount(my_drive.parent)
            try:
                yield Machine(
                    images=lambda split: FolderOfImages(my_drive / "digits" / split),
                    # What torch suggests on Colab's two cores.
                    workers=2,
                    source=my_drive / "digits",
                    zip_source=my_drive / "digits.zip",
                    local_dir=local,
                    # On Drive, so that the next machine finds the pack.
                    cache_dir=my_drive / "colabstage",
                    flush=lambda: _flushed(drive),
                )
            finally:
                # Nothing from this session may be cached for the next one.
                drive.new_machine()
                shutil.rmtree(local, ignore_errors=True)

        yield fresh


def _flushed(drive: SimulatedDrive) -> float:
    """Wait for the uploads; return how many seconds that took."""
    began = time.perf_counter()
    if not drive.flush(timeout_s=_FLUSH_TIMEOUT_S):
        msg = f"The simulated Drive has not uploaded everything within {_FLUSH_TIMEOUT_S:g} s. Run the demo again."
        raise DriveError(msg)
    return time.perf_counter() - began

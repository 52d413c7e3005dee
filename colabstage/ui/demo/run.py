"""`colabstage demo`: one dataset on a simulated Drive, three sessions that train from it, and what each cost."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import MissingDependencyError
from colabstage.fileops import make_folder
from colabstage.simulate.knobs import DriveKnobs
from colabstage.units import format_duration

if TYPE_CHECKING:
    from colabstage.stage.dataset import StagedDataset
    from colabstage.stage.report import StageReport
    from colabstage.trees.tree import Tree
    from colabstage.ui.demo.machines import Machine, Machines
    from colabstage.ui.demo.report import Narrator
    from colabstage.ui.demo.train import Training
    from colabstage.ui.plots.epochs import SessionTimes

_PACKAGES = {"torch": "torch", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}
# Imported beforehand, so that no session pays for it.
_MODULES = ("colabstage.load.loader", "colabstage.stage.run", "PIL.Image")
_SEED = 0
_CHART_DPI = 150


@dataclass(frozen=True, slots=True)
class DemoSize:
    """How much the demo does: `images` (`None` for all 1,797), `epochs`, and the accuracy it promises, 0 to 1."""

    images: int | None
    epochs: int
    min_accuracy: float


FULL = DemoSize(images=None, epochs=4, min_accuracy=0.95)
QUICK = DemoSize(images=500, epochs=4, min_accuracy=0.8)

# Everything else is as reported of an ordinary day; a file costs 0.4 s there, and the first epoch five minutes.
KNOBS = DriveKnobs(cold_open_latency_s=0.05)
# Where nothing can be mounted one process reads one file after the other.
THROTTLED_KNOBS = DriveKnobs(cold_open_latency_s=0.03)


@dataclass(frozen=True, slots=True)
class Session:
    """One session: `report` of its staging, `None` where nothing was staged."""

    name: str
    training: Training
    report: StageReport | None = None


@dataclass(slots=True)
class DemoResult:
    """What the demo measured.

    `images`, `image_bytes`: the dataset. `mounted`: whether Drive was a mount, not only throttled reads.
    `straight`, `first`, `second`: the three sessions. `upload_s`: how long the pack's upload was waited for.
    `zip_report`, `zip_s`: of staging the same images from the zip, where there was a mount.
    `chart`: the picture. `broken_claims`: sentences, empty when all is as claimed.
    """

    images: int
    image_bytes: int
    knobs: DriveKnobs
    mounted: bool
    straight: Session
    first: Session
    second: Session
    zip_report: StageReport | None
    zip_s: float
    upload_s: float
    chart: Path
    broken_claims: list[str] = field(default_factory=list)

    @property
    def sessions(self) -> tuple[Session, Session, Session]:
        """The three, in their order."""
        return self.straight, self.first, self.second

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        from dataclasses import asdict

        return {
            "images": self.images,
            "image_bytes": self.image_bytes,
            "knobs": asdict(self.knobs),
            "mounted": self.mounted,
            "sessions": [
                {
                    "name": session.name,
                    **asdict(session.training),
                    "later_epoch_s": session.training.later_s,
                    "images_per_s": session.training.images_per_s,
                    "report": None if session.report is None else session.report.to_dict(),
                }
                for session in self.sessions
            ],
            "zip": None if self.zip_report is None else self.zip_report.to_dict(),
            "zip_s": self.zip_s,
            "upload_s": self.upload_s,
            "chart": str(self.chart),
            "broken_claims": self.broken_claims,
        }


def run_demo(size: DemoSize, *, out: Path, time_scale: float, narrator: Narrator) -> DemoResult:
    """Run the three sessions on a simulated Drive, tell about them, and draw the chart.

    Args:
        size: how much to do.
        out: the folder for the chart.
        time_scale: multiplies every wait of the simulated Drive.
        narrator: who tells.

    Raises:
        MissingDependencyError: a package that the demo needs is not installed.
        TargetNotWritableError: the chart cannot be written there.
    """
    _check_packages()
    make_folder(out)
    for name in _MODULES:
        import_module(name)
    from colabstage.ui.demo.train import one_thread
    from colabstage.ui.plots.epochs import plot_epochs

    with tempfile.TemporaryDirectory(prefix="colabstage-demo-") as home, one_thread():
        result = _run_sessions(size, time_scale, Path(home), out / "demo.png", narrator)
    result.broken_claims = broken_claims(result, size)
    cold = format_duration(result.knobs.scaled().cold_open_latency_s)
    chart = plot_epochs(
        {session.name: times_of(session.training) for session in result.sessions},
        title="Training from a simulated Google Drive: straight, and staged",
        note=f"{result.images:,} small JPEGs, {cold} for each that was not read before. Each column has its own scale.",
    )
    chart.savefig(result.chart, dpi=_CHART_DPI)
    narrator.close(result, size)
    return result


def times_of(training: Training) -> SessionTimes:
    """What the chart shows of a training."""
    from colabstage.ui.plots.epochs import SessionTimes

    seconds = [epoch.seconds for epoch in training.epochs]
    return SessionTimes(seconds, training.first_batch_s, training.total_s)


def _check_packages() -> None:
    missing = [name for module, name in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        msg = f"The demo needs {', '.join(missing)}. Install what it needs with: pip install 'colabstage[demo]'"
        raise MissingDependencyError(msg)


def _run_sessions(size: DemoSize, time_scale: float, home: Path, chart: Path, narrator: Narrator) -> DemoResult:
    from colabstage.simulate.drive import fuse_problem
    from colabstage.ui.demo.data import write_digits
    from colabstage.ui.demo.machines import mounted_machines, throttled_machines

    written: list[tuple[int, int]] = []
    problem = fuse_problem()
    open_machines = mounted_machines if problem is None else throttled_machines
    knobs = replace(KNOBS if problem is None else THROTTLED_KNOBS, time_scale=time_scale)

    def fill(folder: Path) -> None:
        written.append(write_digits(folder, images=size.images, seed=_SEED))

    with open_machines(home, knobs, fill) as machines:
        narrator.open(*written[0], knobs, problem)
        demo = _Demo(machines, size, narrator)
        straight = demo.train_straight()
        first, upload_s = demo.train_staged("staged, first session", "2. Staged: the first session")
        zip_report, zip_s = demo.stage_zip()
        second, _ = demo.train_staged("staged, second session", "3. Staged: a second session, on a new machine")
    return DemoResult(*written[0], knobs, problem is None, straight, first, second, zip_report, zip_s, upload_s, chart)


@dataclass(frozen=True, slots=True)
class _Demo:
    """The sessions; each has a fresh machine, on which nothing has been read."""

    machines: Machines
    size: DemoSize
    narrator: Narrator

    def train_straight(self) -> Session:
        """Train as people do who know no better."""
        from colabstage.ui.demo.train import stock_loader, train

        with self.machines.fresh() as machine:
            workers = f"{machine.workers} workers" if machine.workers else "no workers"
            self.narrator.begin(f"1. Straight from the Drive folder: a stock DataLoader with {workers}")
            self.narrator.foretell_opening(machine.workers)
            began = time.perf_counter()
            training = train(
                stock_loader(machine.images("train"), workers=machine.workers, shuffle=True, seed=_SEED),
                lambda: stock_loader(machine.images("test"), workers=machine.workers, shuffle=False, seed=_SEED),
                epochs=self.size.epochs,
                seed=_SEED,
                began=began,
                told=self.narrator.epoch,
            )
        self.narrator.tested(training)
        return Session("straight from Drive", training)

    def train_staged(self, name: str, title: str) -> tuple[Session, float]:
        """Stage, then train; then wait for the upload of the pack, and return how long that took as well."""
        import torch

        from colabstage.ui.demo.train import BATCH_SIZE, train

        self.narrator.begin(f"{title}: stage_dataset('…/MyDrive/digits', color_mode='grayscale')")
        with self.machines.fresh() as machine:
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
            upload_s = self._upload(machine) if data.report.origin == "source" else 0.0
        return Session(name, training, data.report), upload_s

    def _upload(self, machine: Machine) -> float:
        if machine.flush is None:
            return 0.0
        seconds = machine.flush()
        self.narrator.say(f"  flush_drive(): the pack is in the cloud, after {format_duration(seconds)} more")
        return seconds

    def stage_zip(self) -> tuple[StageReport | None, float]:
        """Stage the same images from the zip, on a machine of its own; and how many seconds that took."""
        with self.machines.fresh() as machine:
            if machine.zip_source is None:
                return None, 0.0
            began = time.perf_counter()
            self.narrator.begin("The same images from the zip: stage_dataset('…/MyDrive/digits.zip', …)")
            return self._stage(machine, machine.zip_source).report, time.perf_counter() - began

    def _stage(self, machine: Machine, source: Path | Tree) -> StagedDataset:
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


def broken_claims(result: DemoResult, size: DemoSize) -> list[str]:
    """What of the demo's claims its own figures contradict, in sentences."""
    broken = [
        f"{session.name}: {session.training.accuracy:.1%} of the test images right, not over {size.min_accuracy:.0%}."
        for session in result.sessions
        if session.training.accuracy <= size.min_accuracy
    ]
    straight = result.straight.training
    for session, origin in ((result.first, "source"), (result.second, "cache")):
        training = session.training
        epochs = (
            ("the first epoch", training.first.seconds, straight.first.seconds),
            ("a later epoch", training.later_s, straight.later_s),
        )
        broken += [
            f"{session.name}: {which} took {own_s:.2f} s, straight from Drive {straight_s:.2f} s."
            for which, own_s, straight_s in epochs
            if own_s >= straight_s
        ]
        if training.total_s >= straight.total_s:
            broken.append(f"{session.name}: {training.total_s:.1f} s in all, straight {straight.total_s:.1f} s.")
        if session.report is None or session.report.origin != origin:
            broken.append(f"{session.name}: it was not staged from the {origin}.")
    return broken

"""What a run that outlives its machine costs a training: steps with and without it, and how long a save blocks.

    python -m benchmarks.resume [--rounds 3] [--seconds 70]

A model of 25 million weights (100 MB), trained on one core by a step of matrix products. By turns: the bare loop, and
the loop in `resumable(every="1 min")` with its folder on a simulated Drive that uploads at 30 MB/s; the median of the
steps is compared. Then how long the loop stands still for one save, beside `torch.save` to the same Drive, and beside
a copy of the tensors, which is the least that any save can take.

Ends with exit code 1 when a step is more than 1 % slower, or a save blocks for more than twice the copy.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks._report import Promise, judge, median_ratio
from colabstage import resumable
from colabstage.runs.state import Copier
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, LAYERS = 2500, 4
SLOWER, BLOCKS = 1.01, 2.0


def make_step() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """Return a model of 100 MB, its optimizer, and a step of some 0.1 s."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(16, WIDTH)

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    return model, optimizer, step


class _Place:
    """Stands for a loader: its place is the number of steps."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def steps_for(seconds: float, step: Callable[[], object]) -> list[float]:
    """Return how long each step took, for so many seconds."""
    taken, deadline = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < deadline:
        step()
        taken.append(time.perf_counter() - began)
    return taken


def main() -> int:
    """Run the benchmark; 1 when a promise is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=70.0, help="of each loop")
    parser.add_argument("--every", default="1 min")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, optimizer, step = make_step()
    nbytes = sum(one.nbytes for one in model.parameters())
    with (
        tempfile.TemporaryDirectory(prefix="resume-") as home,
        SimulatedDrive(Path(home) / "drive", knobs=DriveKnobs.good_day()) as drive,
    ):
        mount = Path(home) / "content" / "drive"
        mount.mkdir(parents=True)
        drive.mount(mount)
        folder = mount / "MyDrive" / "run"
        bare, with_run = [], []
        for _ in range(given.rounds):
            bare.append(statistics.median(steps_for(given.seconds, step)))
            parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": _Place()}
            with resumable(folder, every=given.every, progress=False, **parts) as run:
                with_run.append(statistics.median(steps_for(given.seconds, lambda run=run: run.step(loss=step()))))  # type: ignore[misc]
        blocks, plain, copies = [], [], []
        copier = Copier()
        with resumable(folder, every="1 h", progress=False, model=model, optimizer=optimizer, loader=_Place()) as run:
            for _ in range(max(3, given.rounds)):
                began = time.perf_counter()
                copier.give_back(copier.copy({"model": model.state_dict()}))
                copies.append(time.perf_counter() - began)
                run._interval_began = -math.inf
                began = time.perf_counter()
                run.step()
                blocks.append(time.perf_counter() - began)
                while run.saving:
                    time.sleep(0.05)
                began = time.perf_counter()
                torch.save({"model": model.state_dict()}, mount / "MyDrive" / "plain.pt")
                plain.append(time.perf_counter() - began)
    copied = statistics.median(copies)
    print(f"\n{nbytes / 1e6:.0f} MB of weights; median step, bare: {1e3 * statistics.median(bare):.1f} ms")
    print("\nthe loop stands still for one save, seconds        median")
    print(f"a copy of the tensors (the least it can be)       {copied:8.3f}")
    print(f"resumable                                         {statistics.median(blocks):8.3f}")
    print(f"torch.save to the mounted Drive                   {statistics.median(plain):8.3f}")
    return judge(
        [
            Promise("a step with resumable, a version a minute", median_ratio(with_run, bare), "at most", SLOWER, 3),
            Promise("resumable / copy", statistics.median(blocks) / copied, "at most", BLOCKS),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

"""A deterministic training on its own packed file, which tests kill.

Writes the weights to `out` at the end, and appends a line with epoch and rows of each step to a log beside it.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from colabstage import dataset_h5, make_loader, resumable
from tests.support.made_files import write_rows

ROWS, BATCH = 96, 8


def write_data(path: Path, rows: int = ROWS) -> Path:
    """Write a dataset of noise in which one channel encodes the class."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, rows)
    images = rng.integers(0, 200, (rows, 8, 8, 3), np.uint8)
    images[:, :, :, 0] += (labels * 12).astype(np.uint8)[:, None, None]
    return write_rows(path, images, labels)


def make_parts(data: Path, *, width: int = 16, batch_size: int = BATCH) -> dict[str, Any]:
    """Build the parts of the training, the same each time; its dropout draws random numbers."""
    # Other processes need the cores too, and multi-threaded sums depend on the number of threads.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.9),
        "loader": make_loader(dataset_h5(data, return_index=True), batch_size, seed=5, dtype=torch.float32),
    }


def train_step(parts: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Do one step."""
    loss = nn.functional.cross_entropy(parts["model"](x), y)
    parts["optimizer"].zero_grad()
    torch.autograd.backward(loss)
    parts["optimizer"].step()
    parts["scheduler"].step()
    return loss


def train(
    folder: Path, data: Path, out: Path, *, epochs: int = 3, every: str | float = "7 steps", **options: Any
) -> dict[str, Any]:
    """Train in a resumable run; return the parts. `calm`: wait for each version before the next step."""
    step_s, stop_at, save_at = options.pop("step_s", 0.0), options.pop("stop_at", None), options.pop("save_at", None)
    calm = options.pop("calm", False)
    on_step: Callable[[int], object] = options.pop("on_step", lambda _: None)
    parts = make_parts(data)
    with resumable(folder, every=every, progress=False, **parts, **options) as run, open(f"{out}.log", "a") as log:
        for epoch in run.epochs(epochs):
            for (x, y), rows in parts["loader"]:
                loss = train_step(parts, x, y)
                print(run.steps, epoch, ",".join(map(str, rows.tolist())), file=log, flush=True)
                if stop_at is not None and run.steps + 1 >= stop_at:
                    os._exit(9)
                time.sleep(step_s)
                run.step(loss=loss)
                while calm and run.saving:
                    time.sleep(0.001)
                on_step(run.steps)
                if run.steps == save_at:
                    run.save()
            run.log(weight=parts["model"][1].weight.sum())
    torch.save(parts["model"].state_dict(), out)
    return parts

"""`autotune_loader`: the right choice on datasets where it is known, within its time, with nothing left over."""

from __future__ import annotations

import json
import math
import multiprocessing
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset

from benchmarks._photographs import repeated_photographs, write_encoded
from colabstage import autotune_loader, dataset_h5
from colabstage.diagnose import autotune
from colabstage.diagnose.autotune import Trial, choose, next_round, our_candidates, stock_candidates
from colabstage.errors import OptionError
from colabstage.load.reading.reader import SplitReader

if TYPE_CHECKING:
    from colabstage.load.reading.memory import KeptImages


class Numbers(Dataset[Any]):
    """Samples that cost nothing but the wait that is asked for."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> Any:
        if self.wait_s:
            time.sleep(self.wait_s)
        return torch.full((8,), float(index)), index


class ProcessorClock:
    """Count the processor seconds of this process and its workers, in which other work on the machine does not show."""

    def __init__(self) -> None:
        self._of_workers: dict[int, float] = {}

    def __call__(self) -> float:
        for worker in multiprocessing.active_children():
            # One that has ended keeps what it had.
            with suppress(OSError):
                ran_ns = Path(f"/proc/{worker.pid}/schedstat").read_text(encoding="ascii").split()[0]
                self._of_workers[worker.pid or 0] = int(ran_ns) / 1e9
        return time.process_time() + sum(self._of_workers.values())


def test_cheap_samples_need_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing batches over would cost more than making them, so the choice is none; within twice the time asked."""
    before, clock = set(psutil.Process().children()), ProcessorClock()
    monkeypatch.setattr(autotune, "time", SimpleNamespace(monotonic=clock, perf_counter=clock))
    tuned = autotune_loader(Numbers(0.0), 16, step=lambda _: None, budget_s=2)
    assert tuned.options == {"num_workers": 0}
    assert tuned.seconds < 4
    assert set(psutil.Process().children()) <= before


def test_samples_that_are_waited_for_get_several_processes() -> None:
    """Several wait at once; the table has every candidate, and the call can be pasted."""
    state = torch.get_rng_state()
    tuned = autotune_loader(Numbers(0.005), 8, budget_s=3)
    assert tuned.options["num_workers"] >= 2
    assert tuned.gain > 1.5
    assert tuned.call.startswith("DataLoader(dataset, 8, num_workers=")
    assert len(tuned.table) == len(stock_candidates(len(psutil.Process().cpu_affinity() or [1])))
    assert torch.equal(torch.get_rng_state(), state)
    assert str(tuned).startswith(tuned.call)
    assert len(tuned.tables[0].rows) == len(tuned.table)
    assert json.loads(json.dumps(tuned.to_dict()))["options"] == tuned.options


def test_strategies_are_tried_for_our_own_dataset(tmp_path: Path) -> None:
    """And the loader that comes of it gives batches."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["X_train"] = np.zeros((600, 16, 16, 3), np.uint8)
        file["Y_train"] = np.arange(600)
    tuned = autotune_loader(dataset_h5(tmp_path / "rows.h5"), 32, budget_s=2)
    strategies = {trial.options.get("strategy") for trial in tuned.table}
    assert strategies == {None, "direct", "memory"}
    with tuned.loader() as loader:
        x, _ = next(iter(loader))
    assert x.shape == (32, 3, 16, 16)
    assert tuned.samples_per_s > 0


def test_ways_are_compared_by_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial finds images that an earlier one, or itself, has kept; the loader that comes of them keeps them."""
    write_encoded(tmp_path / "files.h5", repeated_photographs(4, target_bytes=20_000) * 4, size=(16, 16))
    asked: list[int] = []
    keep_images = SplitReader.keep_images

    def noted(reader: SplitReader, most_bytes: int) -> KeptImages:
        asked.append(most_bytes)
        return keep_images(reader, most_bytes)

    monkeypatch.setattr(SplitReader, "keep_images", noted)
    monkeypatch.setattr(autotune, "our_candidates", lambda *_args, **_named: [Trial({})])
    tuned = autotune_loader(dataset_h5(tmp_path / "files.h5"), 4, budget_s=1)
    assert asked == []
    with tuned.loader() as loader:
        next(iter(loader))
    assert len(asked) == 1


def test_the_lightest_of_equals_wins() -> None:
    """Six percent are a difference, three are not."""
    trials = [
        Trial({"num_workers": processes}, "DataLoader", batch_s)
        for processes, batch_s in ((0, 1.03), (2, 1.0), (4, 0.99), (0, 1.06))
    ]
    assert choose(trials[:3]) is trials[0]
    assert choose(trials[1:3]) is trials[1]
    assert choose(trials[2:]).processes == 4
    # Whatever it seemed to be.
    assert choose([Trial({}, batch_s=0.5, problem="ended early"), *trials[:1]]) is trials[0]


def test_rounds_halve() -> None:
    """What failed or was ended early does not come again; two stay until the end."""
    trials = [Trial({"n": n}, batch_s=float(n)) for n in range(1, 7)]
    assert [trial.options["n"] for trial in next_round(trials)] == [1, 2, 3]
    assert len(next_round(trials[:2])) == 2
    assert next_round([Trial({}, batch_s=math.inf, problem="no"), Trial({}, batch_s=1.0, problem="ended early")]) == []


def test_candidates_are_what_can_work() -> None:
    """Memory only where a dataset of ours fits, processes only where Python works on each sample."""
    plain = our_candidates(2, fits=False, per_sample=False)
    assert {one.options.get("strategy") for one in plain} == {None, "direct"}
    assert any(one.processes == 2 for one in our_candidates(2, fits=True, per_sample=True))


class Broken(Numbers):
    """Cannot be read."""

    def __getitem__(self, index: int) -> Any:
        msg = "the disk is gone"
        raise OSError(msg)


def failing(_: object) -> None:
    msg = "no such layer"
    raise RuntimeError(msg)


@pytest.mark.parametrize(
    ("dataset", "options", "error", "said"),
    [
        (iter([1]), {}, OptionError, "expected|needs a dataset"),
        (Numbers(0.0), {"budget_s": 0.0}, OptionError, "expected"),
        # The reason of the first candidate.
        (Broken(0.0), {}, OptionError, "the disk is gone"),
        # Which is not a way of loading that does not work.
        (Numbers(0.0), {"step": failing, "restore": ()}, RuntimeError, "no such layer"),
    ],
)
def test_what_cannot_work_is_said(dataset: Any, options: dict[str, Any], error: Any, said: str) -> None:
    """No samples by number, no time, no way to load it, and a step that fails."""
    with pytest.raises(error, match=said):
        autotune_loader(dataset, 8, **{"budget_s": 1, **options})

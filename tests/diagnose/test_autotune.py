"""`autotune_loader`: the right choice on datasets where it is known, within its time, with nothing left over."""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import simplejpeg
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from benchmarks._photographs import repeated_photographs, write_encoded
from colabstage import autotune_loader, dataset_h5, make_loader
from colabstage.errors import OptionError
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.transforms import RandomFlip
from tests.clocks import ManualClock
from tests.nurseries import Nurseries
from tests.pages import ROOT
from tests.support.images import make_tree
from tests.support.made_files import write_rows


class Numbers(Dataset[Any]):
    """Samples that cost only the given wait."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> Any:
        if self.wait_s:
            time.sleep(self.wait_s)
        return torch.full((8,), float(index)), index


class ProcessorClock:
    """Counts the CPU seconds of this process and its workers, unaffected by other work on the machine."""

    def __init__(self) -> None:
        self._of_workers: dict[int, float] = {}

    def __call__(self) -> float:
        for worker in multiprocessing.active_children():
            # A worker that has ended keeps its total.
            with suppress(OSError):
                ran_ns = Path(f"/proc/{worker.pid}/schedstat").read_text(encoding="ascii").split()[0]
                self._of_workers[worker.pid or 0] = int(ran_ns) / 1e9
        return time.process_time() + sum(self._of_workers.values())


def test_cheap_samples_need_no_processes(nurseries: Nurseries) -> None:
    """Transferring batches would cost more than making them, so no processes are chosen, within twice the budget; in a
    process of its own, because forking one that has run other tests takes as long as the rest."""
    options, seconds, children = json.loads(nurseries.run_script("torch", [__file__], {"PYTHONPATH": str(ROOT)}))
    assert options == {"num_workers": 0}
    assert seconds < 2
    assert children == 0


def test_samples_that_are_waited_for_get_several_processes() -> None:
    """Several wait at once; the table has every candidate, and the call can be pasted."""
    state = torch.get_rng_state()
    tuned = autotune_loader(Numbers(0.005), 8, budget_s=3)
    assert tuned.options["num_workers"] >= 2
    assert tuned.gain > 1.5
    assert tuned.call.startswith("DataLoader(dataset, 8, shuffle=True, num_workers=")
    cores = len(psutil.Process().cpu_affinity() or [1])
    assert len(tuned.table) == 1 + 2 * len({1, 2, max(1, cores - 1), cores, 2 * cores})
    assert torch.equal(torch.get_rng_state(), state)
    assert str(tuned).startswith(tuned.call)
    assert len(tuned.tables[0].rows) == len(tuned.table)
    assert json.loads(json.dumps(tuned.to_dict()))["options"] == tuned.options


def test_ways_of_several_epochs_are_measured() -> None:
    """An epoch is shorter than a trial, and no process is left."""
    tuned = autotune_loader(Subset(Numbers(0.001), range(32)), 8, budget_s=2)
    assert not [trial.problem for trial in tuned.table if "early" not in trial.problem and trial.problem]
    assert not multiprocessing.active_children()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of 600 small images."""
    return write_rows(tmp_path / "rows.h5", np.zeros((600, 16, 16, 3), np.uint8), np.arange(600))


def test_strategies_are_tried_for_our_own_dataset(rows: Path) -> None:
    """The chosen loader gives batches; processes are tried only if Python works on each sample. Pasted, the call loads
    what was tried."""
    tuned = autotune_loader(dataset_h5(rows), 32, budget_s=1, shuffle=False)
    assert "shuffle=False" in tuned.call
    strategies = {trial.options.get("strategy") for trial in tuned.table}
    assert strategies == {None, "direct", "memory"}
    assert {(trial.maker, trial.processes) for trial in tuned.table} == {("make_loader", 0)}
    state = torch.get_rng_state()
    per_sample = autotune_loader(dataset_h5(rows, transform=abs), 32, budget_s=0.5)
    assert any(trial.processes == 2 for trial in per_sample.table)
    assert torch.equal(torch.get_rng_state(), state)
    with tuned.loader() as loader:
        x, _ = next(iter(loader))
    assert x.shape == (32, 3, 16, 16)
    assert tuned.samples_per_s > 0


def to_floats(image: Any) -> Any:
    """A transform of single samples."""
    return torch.from_numpy(image).permute(2, 0, 1) / 255


LONG = pytest.mark.long


# A dataset alone says nothing of the options, whichever they are; the transform is its own.
@pytest.mark.parametrize(
    ("is_encoded", "options", "gives_loader"),
    [
        (True, {"dtype": torch.float32, "batch_transform": RandomFlip()}, True),
        (True, {"dtype": torch.float32, "batch_transform": RandomFlip()}, False),
        (True, {"sampler": [3, 1, 4, 1, 5, 9, 2, 6], "shuffle": False, "drop_last": True}, True),
        pytest.param(False, {"dtype": "float32", "seed": 3}, True, marks=LONG),
        (False, {"transform": to_floats}, True),
        pytest.param(False, {"transform": to_floats}, False, marks=LONG),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_every_way_makes_the_batches_of_the_loader(
    tmp_path: Path, is_encoded: bool, options: dict[str, Any], gives_loader: bool
) -> None:
    """A step that takes those gets no others, in any trial; nor does one after the line is pasted."""
    place = tmp_path / "rows.h5"
    if is_encoded:
        write_encoded(place, repeated_photographs(2, target_bytes=5_000) * 8, size=(16, 12))
    else:
        write_rows(place, np.zeros((16, 16, 12, 3), np.uint8), np.arange(16))
    transform = options.get("transform")
    dataset = dataset_h5(place, transform)
    loader = make_loader(dataset, 4, **{name: value for name, value in options.items() if name != "transform"})
    x, _ = next(iter(loader))

    def step(batch: Any) -> None:
        assert (batch[0].shape, batch[0].dtype, batch[1].dtype) == (x.shape, wanted, torch.int64)

    wanted = x.dtype if gives_loader or transform is not None else torch.uint8
    tuned = autotune_loader(loader if gives_loader else dataset, 4, step=step, restore=(), budget_s=0.5)
    known = {"loader": loader, "dataset": dataset, "torch": torch, "DataLoader": DataLoader, "make_loader": make_loader}
    for made in (tuned.loader(), eval(tuned.call, {**known, **options})):
        step(next(iter(made)))
    assert gives_loader or "dtype=" not in tuned.call
    assert {trial.maker for trial in tuned.table} >= ({"DataLoader"} if is_encoded or transform else set())
    assert not [trial.problem for trial in tuned.table if trial.problem and "early" not in trial.problem]


def test_memory_is_tried_only_where_a_dataset_fits(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the free memory, because the training needs memory too."""
    kib = "proc/meminfo", f"MemTotal: 1000000 kB\nMemAvailable: {600 * 16 * 16 * 3 // 1024 * 2} kB\n"
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(make_tree(tmp_path / "machine", dict([kib]))))
    tuned = autotune_loader(dataset_h5(rows), 32, budget_s=0.5)
    assert {trial.options.get("strategy") for trial in tuned.table} == {None, "direct"}


def test_ways_are_compared_by_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial finds images kept by an earlier one or by itself; the chosen loader keeps them."""
    write_encoded(tmp_path / "files.h5", repeated_photographs(4, target_bytes=20_000) * 4, size=(16, 16))
    decoded, stepped = list[int](), list[int]()
    decode = simplejpeg.decode_jpeg

    def noted(data: Any, *others: Any, **named: Any) -> Any:
        decoded.append(len(data))
        return decode(data, *others, **named)

    def step(batch: Any) -> None:
        if not multiprocessing.active_children():
            stepped.append(len(batch[1]))

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    tuned = autotune_loader(dataset_h5(tmp_path / "files.h5"), 4, step=step, restore=(), budget_s=1)
    assert len(decoded) >= sum(stepped) > 64
    # If processes have won, the loader is torch's.
    ours = tuned.call.startswith("make_loader")
    with tuned.loader() if ours else make_loader(dataset_h5(tmp_path / "files.h5"), 4) as loader:
        list(loader)
        decoded.clear()
        list(loader)
    assert not decoded


class Scripted(DataLoader[Any]):
    """A loader whose batches take as long as a test says, on a clock that it turns."""

    clock = ManualClock()
    batch_s: ClassVar[Callable[[int, int], float]]
    made: ClassVar[list[tuple[int, int]]] = []

    def __iter__(self) -> Any:
        way = self.num_workers, self.prefetch_factor or 0
        self.made.append(way)
        while True:
            self.clock.sleep(Scripted.batch_s(*way))
            yield torch.zeros(8, 2)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    """The loader in place of torch's."""
    monkeypatch.setattr(type(SYSTEM_CLOCK), "now", staticmethod(Scripted.clock.now))
    monkeypatch.setattr(torch.utils.data, "DataLoader", Scripted)
    Scripted.made.clear()
    return Scripted


@pytest.mark.parametrize(
    ("none_s", "one_s", "winner"), [(1.03, 1.0, 0), (1.06, 1.03, 1), (1.06, 1.06, 2), (0.5, 0.5, 0)]
)
def test_the_lightest_of_equals_wins(scripted: type[Scripted], none_s: float, one_s: float, winner: int) -> None:
    """Six percent are a difference, four are not."""
    scripted.batch_s = staticmethod(lambda workers, _: {0: none_s, 1: one_s}.get(workers, 0.99))
    assert autotune_loader(Numbers(0.0), 8, budget_s=1000).options["num_workers"] == winner


def test_each_way_is_tried_once(scripted: type[Scripted]) -> None:
    """One that fails, or is clearly worse, says so."""

    def batch_s(workers: int, ahead: int) -> float:
        if workers == 1:
            raise OSError("the disk is gone")
        return 10.0 if workers == 2 else 1.0

    scripted.batch_s = staticmethod(batch_s)
    tuned = autotune_loader(Numbers(0.0), 8, budget_s=1000)
    assert len(scripted.made) == len(set(scripted.made)) == len(tuned.table)
    assert {trial.options["num_workers"] for trial in tuned.table if trial.problem} == {1, 2}


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
        # It is not the way of loading that fails here.
        (Numbers(0.0), {"step": failing, "restore": ()}, RuntimeError, "no such layer"),
    ],
)
def test_what_cannot_work_is_said(dataset: Any, options: dict[str, Any], error: Any, said: str) -> None:
    """No samples by number, no time, no way to load it, and a step that fails."""
    with pytest.raises(error, match=said):
        autotune_loader(dataset, 8, **{"budget_s": 1, **options})


if __name__ == "__main__":
    type(SYSTEM_CLOCK).now = staticmethod(ProcessorClock())
    tuned = autotune_loader(Numbers(0.0), 16, step=lambda _: None, budget_s=1)
    sys.stdout.write(json.dumps([tuned.options, tuned.seconds, len(psutil.Process().children())]))

"""`strategy="workers"`: processes make the same batches, are started safely, and end."""

from __future__ import annotations

import contextlib
import copy
import functools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from colabstage.errors import WorkersLostError
from colabstage.load.choosing import choose_loader, choose_start
from colabstage.load.dataset import dataset_h5
from colabstage.load.facts import measure_cost
from colabstage.load.loader import make_loader
from colabstage.load.plan import LoaderFacts, LoaderRequest, ProcessFacts, SampleCost
from colabstage.load.reading.engines import EngineChoice
from colabstage.load.strategies import why_lost
from tests.clocks import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ALONE = ProcessFacts(1, False, None, ("fork", "spawn", "forkserver"), 10**10)
FACTS = LoaderFacts(
    rows=1000,
    row_bytes=196_608,
    stored_bytes=196_608_000,
    engine=EngineChoice("mapped", "a test"),
    encoded=False,
    per_sample=True,
    cores=8,
    free_memory_bytes=8_000_000_000,
    processes=ALONE,
    cost=SampleCost(0.01, 196_608),
)


def with_process(x: Any) -> Any:
    """A transform that tells where it ran."""
    return {"sum": torch.tensor(int(x.sum())), "process": os.getpid()}


def test_batches_are_those_of_direct(make_file: Callable[..., Any]) -> None:
    """Every epoch has the batches of the other strategies, made in other processes, which stay for the next."""
    dataset = dataset_h5(make_file("pack", 23).path, with_process, return_index=True)
    loader = make_loader(dataset, 4, strategy="workers", num_workers=1, seed=3)
    direct = make_loader(dataset, 4, strategy="direct", seed=3)
    processes = set()
    for _ in range(2):
        for ((x, y), index), ((other_x, other_y), other_index) in zip(loader, direct, strict=True):
            assert torch.equal(index, other_index)
            assert torch.equal(x["sum"], other_x["sum"])
            assert torch.equal(y, other_y)
            processes |= set(x["process"].tolist())
    assert len(processes) == 1
    assert os.getpid() not in processes
    loader.close()
    assert not any(psutil.pid_exists(process) for process in processes)


def test_resuming_and_early_breaks(make_file: Callable[..., Any]) -> None:
    """The place in an epoch is kept, processes or not, and what an epoch left half-made is not in the next."""
    dataset = dataset_h5(make_file("pack", 23).path, with_process, return_index=True)
    with make_loader(dataset, 4, strategy="workers", num_workers=1) as loader:
        for number, _ in enumerate(loader):
            if number == 2:
                break
        state = loader.state_dict()
        loader.load_state_dict(state)
        rest = [index.tolist() for _, index in loader]
        after = [index.tolist() for _, index in loader]
    straight = make_loader(dataset, 4, strategy="direct")
    assert rest == [index.tolist() for _, index in straight][3:]
    assert after == [index.tolist() for _, index in straight]


def noted(folder: Path, x: Any) -> int:
    """A transform that notes its calls; those behind the second batch take long, as long as a file says so."""
    with (folder / "calls").open("ab") as file:
        file.write(b".")
        calls = file.tell()
    for _ in range(15):
        if calls > 8 and (folder / "slow").exists():
            time.sleep(0.02)
    return calls


def test_a_break_waits_for_one_row_of_each_process(make_file: Callable[..., Any], tmp_path: Path) -> None:
    """Neither what is left of a batch nor the batches that wait behind it are made, and the next epoch is whole."""
    (tmp_path / "slow").touch()
    dataset = dataset_h5(make_file("pack", 36).path, functools.partial(noted, tmp_path), return_index=True)
    with make_loader(dataset, 4, strategy="workers", num_workers=1, prefetch_factor=4) as loader:
        for number, _ in enumerate(loader):
            if number == 1:
                break
        begun = (tmp_path / "calls").stat().st_size
        (tmp_path / "slow").unlink()
        assert sum(len(index) for _, index in loader) == 36
    # One that began while the loop was being left, and one while the count was read.
    assert (tmp_path / "calls").stat().st_size - begun - 36 <= 2


def test_starting_an_epoch_moves_no_rng(make_file: Callable[..., Any]) -> None:
    """A stock DataLoader draws a seed from torch's generator in each epoch; this one has rng of its own."""
    dataset = dataset_h5(make_file("pack", 23).path)
    with make_loader(dataset, 10, strategy="workers", num_workers=1) as loader:
        before = torch.get_rng_state()
        for _ in loader:
            pass
        assert torch.equal(before, torch.get_rng_state())


def fails(y: int) -> int:
    if y == 4:
        msg = "no such class"
        raise KeyError(msg)
    return y


def test_an_error_in_a_process_comes_out_in_the_loop(make_file: Callable[..., Any]) -> None:
    """It has the process's traceback, and the processes end with the loader."""
    dataset = dataset_h5(make_file("pack", 23).path, target_transform=fails)
    with (
        make_loader(dataset, 4, strategy="workers", num_workers=1) as loader,
        pytest.raises(KeyError, match="in fails"),
    ):
        list(loader)


def killed_once(flag: Path, x: Any) -> Any:
    """A transform whose process is killed while a file is there, as for want of memory."""
    # Of two processes that see the file, one removes it.
    with contextlib.suppress(FileNotFoundError):
        flag.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def test_the_next_epoch_has_new_processes_where_one_was_killed(make_file: Callable[..., Any], tmp_path: Path) -> None:
    """The error says what happened and what to write; every later epoch is whole, also if one dies between two."""
    dataset = dataset_h5(make_file("pack", 23).path, functools.partial(killed_once, tmp_path / "flag"))
    with make_loader(dataset, 4, strategy="workers", num_workers=2) as loader:
        (tmp_path / "flag").touch()
        with pytest.raises(WorkersLostError, match=r"1 worker process of 2 .* memory runs out.*num_workers=1 .*direct"):
            list(loader)
        assert sum(len(y) for _, y in loader) == 23
        for process in multiprocessing.active_children():
            process.kill()
            # Torch's handler of the signal raises this in whatever runs here, where processes were forked.
            with contextlib.suppress(RuntimeError):
                process.join(5)
        assert sum(len(y) for _, y in loader) == 23


def test_a_copy_has_processes_of_its_own(make_file: Callable[..., Any]) -> None:
    """Batches of one loop came out in that of the other, which then waited for ever."""
    dataset = dataset_h5(make_file("pack", 23).path, return_index=True)
    with (
        make_loader(dataset, 4, strategy="workers", num_workers=1, shuffle=False) as loader,
        copy.copy(loader) as other,
    ):
        pairs = [(one[1].tolist(), two[1].tolist()) for one, two in zip(loader, other, strict=True)]
    assert [one for one, _ in pairs] == [two for _, two in pairs]
    assert [row for one, _ in pairs for row in one] == list(range(23))


FORKS = """
import os, signal, sys
from colabstage import dataset_h5, make_loader

if __name__ == "__main__":
    loader = make_loader(dataset_h5(sys.argv[1]), 4, strategy="workers", num_workers=1)
    batches = iter(loader)
    next(batches)
    if not (child := os.fork()):
        signal.alarm(50)
        loader.close()
        os._exit(sum(len(y) for _, y in loader))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sum(len(y) for _, y in batches))
    loader.close()
"""


def test_a_forked_process_leaves_the_processes_of_its_parent_alone(
    make_file: Callable[..., Any], tmp_path: Path
) -> None:
    """It iterates over the same loader by processes of its own, and the parent's loop goes on."""
    (tmp_path / "script.py").write_text(FORKS)
    command = [sys.executable, "-W", "ignore", tmp_path / "script.py", make_file("pack", 23).path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "23 19\n", done.stderr


@pytest.mark.parametrize(
    ("codes", "says"),
    [
        ([-9], "memory runs out. Write num_workers=2 "),
        ([-11], r"crashed \(SIGSEGV\).*faulthandler"),
        ([-7], "/dev/shm.*--shm-size"),
        ([0, 0], "^2 worker processes of 4 .*interrupted"),
        ([-2], "interrupted.*Run the loop again"),
        ([0, 3], "exit code 3"),
        ([-200], r"crashed \(-200\)"),
    ],
)
def test_how_processes_ended_is_told_with_what_to_write(codes: list[int], says: str) -> None:
    assert re.search(says, why_lost(codes, 4))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_start_method_gives_the_same(make_file: Callable[..., Any], method: Any) -> None:
    """A stock DataLoader over the loader's parts works however processes start."""
    dataset = dataset_h5(make_file("pack", 23).path, with_process)
    parts = make_loader(dataset, 4, strategy="direct")
    again = DataLoader(
        parts.dataset,
        batch_sampler=parts.batch_sampler,
        collate_fn=parts.collate_fn,
        num_workers=1,
        multiprocessing_context=method,
    )
    for (x, y), (other_x, other_y) in zip(again, parts, strict=True):
        assert torch.equal(x["sum"], other_x["sum"])
        assert torch.equal(y, other_y)


@pytest.mark.parametrize(
    ("changes", "method", "reason"),
    [
        ({}, "fork", "no other thread"),
        ({"threads": 3}, "forkserver", "3 threads run"),
        ({"cuda_started": True}, "forkserver", "CUDA is in use"),
        ({"threads": 3, "unpicklable": "lambdas cannot"}, "fork", "lambdas cannot"),
        ({"threads": 3, "methods": ("fork", "spawn")}, "spawn", "3 threads"),
        ({"threads": 3, "runs_again": True}, "fork", "would run this script again"),
        ({"cuda_started": True, "runs_again": True}, "fork", "would run this script again"),
        ({"methods": ("spawn",)}, "spawn", "cannot fork"),
    ],
)
def test_processes_are_started_as_is_safe(changes: dict[str, Any], method: str, reason: str) -> None:
    """A fork is for processes without threads and without CUDA, or where nothing else can be."""
    choice = choose_start(replace(ALONE, **changes))
    assert choice.method == method
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        ({}, "workers"),
        ({"cost": SampleCost(0.0001, 196_608)}, "direct"),
        ({"cost": None}, "direct"),
        ({"cores": 2}, "direct"),
        ({"per_sample": False}, "direct"),
        ({"processes": replace(ALONE, unpicklable="lambdas cannot")}, "direct"),
        ({"processes": replace(ALONE, threads=3)}, "workers"),
        ({"processes": replace(ALONE, threads=3, runs_again=True)}, "direct"),
        ({"processes": replace(ALONE, methods=("spawn",), runs_again=True)}, "direct"),
    ],
)
def test_auto_takes_processes_where_they_gain(changes: dict[str, Any], strategy: str) -> None:
    """A slow transform is worth processes on many cores; a quick one, or a machine of two cores, is not."""
    assert choose_loader(replace(FACTS, **changes), LoaderRequest(64)).strategy == strategy


def test_numbers_of_processes_have_reasons() -> None:
    """All cores but one, each two batches ahead; fewer where shared memory would not hold their results."""
    plan = choose_loader(FACTS, LoaderRequest(64, strategy="workers"))
    assert (plan.workers.value, plan.prefetch.value, plan.start and plan.start.method) == (7, 2, "fork")
    small = replace(FACTS, processes=replace(ALONE, shared_memory_bytes=64_000_000 * 4))
    plan = choose_loader(small, LoaderRequest(64, strategy="workers"))
    assert (plan.workers.value, plan.prefetch.value) == (4, 1)
    assert "shared memory" in plan.workers.reason
    asked = choose_loader(small, LoaderRequest(64, strategy="workers", num_workers=9, prefetch_factor=3))
    assert (asked.workers.value, asked.prefetch.value) == (9, 3)


CLOCK = ManualClock()  # copies of a transform, which are made by pickling, find it by its name


def sleepy(seconds: float, x: Any) -> Any:
    CLOCK.sleep(seconds)
    return np.random.default_rng().random(100) + np.random.rand() + float(torch.rand(()))  # noqa: NPY002


@pytest.mark.parametrize(("seconds", "samples"), [(0.02, 23), (0.15, 4), (7.0, 1)])
def test_a_probe_measures_and_leaves_no_trace(make_file: Callable[..., Any], seconds: float, samples: int) -> None:
    """It finds what a sample takes, ends with the one that exceeds half a second, and puts the rng back."""
    dataset = dataset_h5(make_file("pack", 23).path, functools.partial(sleepy, seconds))
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    CLOCK.slept.clear()
    cost = measure_cost(dataset, clock=CLOCK)
    assert len(CLOCK.slept) == samples
    assert cost is not None
    assert cost.seconds == pytest.approx(seconds)
    assert 800 <= cost.result_bytes < 900
    assert torch.equal(before, torch.get_rng_state())
    assert numpy_before == np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002


def test_a_probe_of_what_fails_measures_nothing(make_file: Callable[..., Any]) -> None:
    """The error is the loop's to raise."""
    assert measure_cost(dataset_h5(make_file("pack", 23).path, len_of_nothing)) is None


def len_of_nothing(x: Any) -> int:
    return len(None)  # type: ignore[arg-type]


def test_encoded_images_by_processes(make_encoded: Callable[..., Path]) -> None:
    """Decoding works in processes too."""
    dataset = dataset_h5(make_encoded(7, size=(6, 9)))
    with make_loader(dataset, 3, strategy="workers", num_workers=1, dtype=torch.float32) as loader:
        for (x, _), (other, _) in zip(loader, make_loader(dataset, 3, dtype=torch.float32), strict=True):
            torch.testing.assert_close(x, other)

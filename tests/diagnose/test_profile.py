"""`profile_loader` on pipelines whose bottleneck is known: it is named, and its advice keeps its promise."""

from __future__ import annotations

import random
import socket
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from colabstage import ColabstageError, dataset_h5, make_loader, profile_loader
from colabstage.diagnose.measure import _Feed, _spans
from colabstage.diagnose.subject import subject_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from colabstage.diagnose.report import LoaderProfile

# More processes than cores, which is right where they wait; the advice says that torch warns.
pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

PACKED = zlib.compress(np.random.default_rng(0).integers(0, 4, 300_000, dtype=np.uint8).tobytes(), 1)


def compute(rounds: int) -> int:
    """Python code that keeps Python's lock."""
    total = 0
    for number in range(rounds):
        total += number * number
    return total


class Samples(Dataset[Any]):
    """Samples that are read, decoded and transformed, each as slowly as said."""

    def __init__(
        self, *, read_s: float = 0.0, decodes: int = 0, rounds: int = 0, burst_s: float = 0.0, count: int = 4000
    ) -> None:
        self.read_s, self.decodes, self.rounds, self.burst_s, self.count = read_s, decodes, rounds, burst_s, count
        self.handle: object = None

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> bytes:
        if wait_s := self.read_s + (self.burst_s if index % 32 == 0 else 0.0):
            time.sleep(wait_s)
        self.handle = self.handle or object()
        return PACKED

    def decode(self, data: bytes) -> Any:
        for _ in range(self.decodes):
            data = zlib.decompress(PACKED)
        return np.frombuffer(data, np.uint8, 256)

    def augment(self, x: Any) -> Any:
        return x + np.uint8(compute(self.rounds) % 2)

    def __getitem__(self, index: int) -> Any:
        return self.augment(self.decode(self.read(index))), index


def slow_collate(samples: list[Any]) -> Any:
    """What makes a batch, slowly, as padding may."""
    time.sleep(0.04)
    return default_collate(samples)


def short_step(_: object) -> None:
    time.sleep(0.01)


class ThreadedLoader:
    """Batches made by two threads of this process."""

    def __init__(self, dataset: Samples, batch_size: int) -> None:
        self.dataset, self.batch_size, self.num_workers = dataset, batch_size, 2

    def batch(self, start: int) -> Any:
        return default_collate([self.dataset[start + offset] for offset in range(self.batch_size)])

    def __iter__(self) -> Iterator[Any]:
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(self.batch, 8 * number) for number in range(4)]
            for number in range(4, len(self.dataset) // self.batch_size):
                yield waiting.pop(0).result()
                waiting.append(pool.submit(self.batch, 8 * number))
            for future in waiting:
                yield future.result()


def batch_s(loader: Any, step: Callable[[Any], object], seconds: float = 1.0) -> float:
    """Seconds from batch to batch in a plain training loop, once it runs: over a multiple of four, as bursts come."""
    marks = []
    batches = iter(loader)
    for batch in batches:
        step(batch)
        marks.append(time.perf_counter())
        if marks[-1] - marks[0] > seconds and len(marks) > 15:
            break
    end = getattr(batches, "_shutdown_workers", None) or getattr(batches, "close", None)
    if end is not None:
        end()
    count = (len(marks) - 1 - len(marks) // 3) // 4 * 4
    return (marks[-1] - marks[-1 - count]) / count


def changed(loader: Any, options: dict[str, Any]) -> DataLoader[Any]:
    """The loader as the advice has it: torch's `DataLoader` with these arguments."""
    old = {name: getattr(loader, name) for name in ("num_workers", "persistent_workers", "prefetch_factor")
           if isinstance(loader, DataLoader) and getattr(loader, name)}  # fmt: skip
    collate = getattr(loader, "collate_fn", default_collate)
    return DataLoader(loader.dataset, loader.batch_size, collate_fn=collate, **{**old, **options})


LOADERS: dict[str, Callable[[], Any]] = {
    "read": lambda: DataLoader(Samples(read_s=0.005), 8),
    "decode": lambda: DataLoader(Samples(decodes=8), 8),
    "transform": lambda: DataLoader(Samples(rounds=60_000), 8),
    "collate": lambda: DataLoader(Samples(), 8, collate_fn=slow_collate),
}


def keeps_promise(loader: Any, profile: LoaderProfile, step: Callable[[Any], object]) -> str:
    """Whether following the first advice about a DataLoader gains 80 % of what it promises; a word if not."""
    about = {"num_workers", "prefetch_factor"}
    advice = next((one for one in profile.advice if about & one.options.keys()), None)
    if advice is None:
        if profile.facts.costs.cores < 1.5:
            pytest.skip("needs two cores of its own: other programs use them, so nothing can be promised")
        return f"no advice: {profile}"
    before = batch_s(loader, step)
    gain = before / batch_s(changed(loader, advice.options), step)
    return "" if gain - 1 >= 0.8 * (advice.gain - 1) else f"{advice} gained {gain:.2f}x"


def misjudged(profile: LoaderProfile, bound: str, stage: str | None = None) -> str:
    """What a profile says, where that is not what the pipeline was built to be."""
    right = profile.verdict.bound == bound and stage in (None, profile.verdict.stage)
    return "" if right else profile.summary()


def tried(make: Callable[[], Any], judge: Callable[[Any], str], times: int = 3) -> None:
    """Try a few times, since another program may take the cores at any moment, and fail with what was said last."""
    for _ in range(times):
        complaint = judge(make())
        if not complaint:
            return
    pytest.fail(complaint)


@pytest.mark.long
@pytest.mark.parametrize("stage", LOADERS)
def test_a_slow_stage_is_named_and_its_advice_keeps_its_promise(stage: str) -> None:
    """Of reading, decoding, transforms and collating, each done by the consumer itself."""

    def judge(loader: Any) -> str:
        profile = profile_loader(loader, short_step, seconds=2.0)
        return misjudged(profile, "input-bound", stage) or keeps_promise(loader, profile, short_step)

    tried(LOADERS[stage], judge)


def test_a_thread_that_serves_others_is_no_part_of_the_loading() -> None:
    """It waits for connections, as torch's for shared tensors does, and reads nothing."""
    loader = DataLoader(Samples(rounds=20_000), 8)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            server.accept()[0].close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        profile = profile_loader(loader, seconds=0.6)
        socket.create_connection(server.getsockname()).close()
        thread.join(10.0)
    assert profile.facts.seconds("read") < 0.1 * profile.facts.seconds("transform"), profile.summary()


@pytest.mark.parametrize("stage", LOADERS)
def test_a_slow_stage_is_named_behind_worker_processes(stage: str) -> None:
    """Their work is seen by doing some of it here."""

    def make() -> Any:
        loader = LOADERS[stage]()
        return DataLoader(loader.dataset, 8, num_workers=1, collate_fn=loader.collate_fn)

    tried(make, lambda loader: misjudged(profile_loader(loader, short_step, seconds=1.5), "input-bound", stage))


def test_a_slow_step_is_no_fault_of_the_loader() -> None:
    """Compute-bound, and nothing to change."""

    def judge(loader: Any) -> str:
        profile = profile_loader(loader, lambda _: time.sleep(0.03), seconds=1.0)
        return misjudged(profile, "compute-bound") or ("" if profile.advice == () else profile.summary())

    tried(lambda: DataLoader(Samples(), 8), judge)


def test_a_loader_as_fast_as_its_step_is_balanced() -> None:
    """Both take the same time, side by side."""
    loader = DataLoader(Samples(), 8, num_workers=1, prefetch_factor=8, collate_fn=slow_collate)

    def judge(loader: Any) -> str:
        return misjudged(profile_loader(loader, lambda _: time.sleep(0.045), seconds=2.0), "balanced")

    tried(lambda: loader, judge)


@pytest.mark.long
def test_threads_that_hold_pythons_lock_are_named_and_processes_keep_the_promise() -> None:
    """Two threads make no more batches than one, two processes do."""

    def judge(loader: ThreadedLoader) -> str:
        profile = profile_loader(loader, short_step, seconds=1.5)
        if (profile.verdict.stage, profile.verdict.cause) != ("transform", "gil"):
            return profile.summary()
        return keeps_promise(loader, profile, short_step)

    tried(lambda: ThreadedLoader(Samples(rounds=40_000), 8), judge)


@pytest.mark.long
def test_a_queue_that_is_too_short_is_named_and_a_longer_one_keeps_the_promise() -> None:
    """One batch in four takes long; a step that is slower than the mean still waits for it."""

    def step(_: object) -> None:
        time.sleep(0.05)

    def judge(loader: Any) -> str:
        profile = profile_loader(loader, step, seconds=3.0)
        if profile.verdict.cause != "prefetch" or "prefetch_factor" not in profile.advice[0].options:
            return profile.summary()
        return keeps_promise(loader, profile, step)

    tried(lambda: DataLoader(Samples(burst_s=0.18), 8, num_workers=1, prefetch_factor=1), judge)


def test_processes_that_start_in_every_epoch_are_named() -> None:
    """Epochs of a few batches, each with new processes."""

    def judge(loader: Any) -> str:
        profile = profile_loader(loader, lambda _: None, seconds=1.5)
        advised = any(advice.options == {"persistent_workers": True} for advice in profile.advice)
        return "" if profile.verdict.cause == "start" and advised else profile.summary()

    tried(lambda: DataLoader(Samples(count=32), 8, num_workers=2), judge)


def training(profiled: bool) -> tuple[Any, Any]:
    """Train a little, with a profile before or without: the batches' order and the weights."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that transforms still use
    random.seed(0)
    dataset = Samples()
    loader = DataLoader(dataset, 8, shuffle=True, num_workers=0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters())
    order: list[int] = []

    def step(batch: Any) -> None:
        x, _ = batch
        loss = model(x.float() + random.random() + np.random.random()).square().mean()  # noqa: NPY002
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    if profiled:
        profile = profile_loader(loader, step, seconds=0.4)
        assert dataset.handle is None
        assert "model" in profile.notes[0]
    for number, batch in enumerate(loader):
        order += batch[1].tolist()
        step(batch)
        if number == 5:
            break
    return order, [value.tolist() for value in model.state_dict().values()]


def test_training_gives_the_same_numbers_after_a_profile() -> None:
    """Order of batches, weights, running means: all of it, with the dataset's file handle closed again."""
    assert training(profiled=True) == training(profiled=False)


def test_nothing_is_left_running() -> None:
    """No worker process, no thread, and the switch interval is what it was; also of persistent workers, and after an
    error in the step."""
    import sys

    threads, interval = threading.active_count(), sys.getswitchinterval()
    loader = DataLoader(Samples(), 8, num_workers=2, persistent_workers=True)
    profile_loader(loader, short_step, seconds=0.5)
    assert loader._iterator is None

    def broken(_: object) -> None:
        msg = "no such layer"
        raise KeyError(msg)

    with pytest.raises(KeyError, match="no such layer"):
        profile_loader(loader, broken, seconds=0.5)
    assert psutil.Process().children() == []
    assert (threading.active_count(), sys.getswitchinterval()) == (threads, interval)
    assert len(next(iter(loader))[1]) == 8


def test_measuring_costs_less_than_two_percent() -> None:
    """Of a loop with batches of half a millisecond: all that the measured run adds to one is 10 µs of a core."""
    batches = [0] * 4000
    began = time.thread_time()
    for batch in iter(batches):
        str(batch)
    plain_s = time.thread_time() - began
    subject = subject_of(batches)
    began = time.thread_time()
    spans = _spans(_Feed(subject.start, once=False), str, None, 0.2)
    measured_s = time.thread_time() - began
    assert measured_s / len(spans) - plain_s / len(batches) < 0.02 * 0.0005


def test_it_ends_when_its_time_is_over() -> None:
    """Within a second of what was asked, start of workers and trials included."""
    began = time.monotonic()
    profile_loader(DataLoader(Samples(read_s=0.001), 8, num_workers=1), short_step, seconds=1.0)
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("strategy", ["direct", "memory", "workers"])
def test_a_loader_of_ours_keeps_its_place(tmp_path: Path, strategy: Any) -> None:
    """Stages are told, and the next epoch is the one that would have come."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["X_train"] = np.zeros((640, 32, 32, 3), np.uint8)
        file["Y_train"] = np.arange(640)
    dataset = dataset_h5(tmp_path / "rows.h5", transform=slow_transform)
    with make_loader(dataset, 32, strategy=strategy, num_workers=1) as loader:
        for _ in loader:
            break
        state = loader.state_dict()
        profile = profile_loader(loader, short_step, seconds=0.8)
        assert loader.state_dict() == state
        assert profile.facts.setting.strategy == strategy
        assert profile.verdict.stage == "transform"
        rows = [y.tolist() for _, y in loader]
    with make_loader(dataset, 32, strategy="direct") as untouched:
        untouched.set_epoch(1)
        assert rows == [y.tolist() for _, y in untouched]


def slow_transform(x: Any) -> Any:
    """In Python, for each sample."""
    compute(20_000)
    return x


def test_any_iterable_will_do() -> None:
    """A generator is used up, and the profile says so; a list is not."""
    batches = [torch.zeros(4, 3)] * 50
    assert profile_loader(batches, seconds=0.3).facts.setting.batches == 50
    profile = profile_loader((batch for batch in batches), short_step, seconds=0.3)
    assert profile.facts.setting.batch_samples == 4
    assert "only once" in profile.notes[0]


@pytest.mark.parametrize(
    ("loader", "options", "words"),
    [
        ([], {}, "has no batches"),
        (7, {}, "cannot be iterated"),
        ([1], {"step": 3}, "cannot be called"),
        ([1], {"seconds": 0}, "above 0"),
    ],
)
def test_what_cannot_work_is_refused(loader: Any, options: dict[str, Any], words: str) -> None:
    """With a word on what was expected."""
    with pytest.raises(ColabstageError, match=words):
        profile_loader(loader, **options)

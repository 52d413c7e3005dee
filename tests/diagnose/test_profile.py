"""`profile_loader` on pipelines with a known bottleneck: it is named, and the loader is left as it was.

If only the accounting is tested, loader and step turn a given clock.
"""

import sys
import threading
import time
import zlib
from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate

import colabstage
from benchmarks._photographs import repeated_photographs, write_encoded
from colabstage import ColabstageError, CudaDataLoader, LoaderProfile, dataset_h5, make_loader, profile_loader
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.transforms import RandomFlip
from tests.clocks import ManualClock
from tests.pictures import write_photos
from tests.support.made_files import write_rows

PACKED = zlib.compress(np.random.default_rng(0).integers(0, 4, 300_000, dtype=np.uint8).tobytes(), 1)


def compute(rounds: int) -> int:
    """Run Python code that holds the GIL."""
    total = 0
    for number in range(rounds):
        total += number * number
    return total


class Samples(Dataset[Any]):
    """Samples that are read, decoded and transformed, each at the given speed."""

    def __init__(self, *, read_s: float = 0.0, decodes: int = 0, rounds: int = 0, count: int = 4000) -> None:
        self.read_s, self.decodes, self.rounds, self.count = read_s, decodes, rounds, count
        self.handle: object = None

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> bytes:
        if self.read_s:
            time.sleep(self.read_s)
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
    """Make a batch slowly, as with padding."""
    time.sleep(0.04)
    return default_collate(samples)


def short_step(_: object) -> None:
    time.sleep(0.01)


LOADERS: dict[str, Callable[[], Any]] = {
    "read": lambda: DataLoader(Samples(read_s=0.005), 8),
    "decode": lambda: DataLoader(Samples(decodes=8), 8),
    "transform": lambda: DataLoader(Samples(rounds=60_000), 8),
    "collate": lambda: DataLoader(Samples(), 8, collate_fn=slow_collate),
}


def seconds_of(profile: LoaderProfile, stage: str) -> float:
    """Of one stage, for a batch."""
    return {**profile.facts.stages, "step": profile.facts.step_s or 0.0}.get(stage, 0.0)


def misjudged(profile: LoaderProfile, bound: str, stage: str | None = None) -> str:
    """Return a profile's verdict if it is not what the pipeline was built for."""
    right = profile.verdict.bound == bound and stage in (None, profile.verdict.stage)
    return "" if right else profile.summary()


def tried(make: Callable[[], Any], judge: Callable[[Any], str], times: int = 3) -> None:
    """Try a few times, since another program may take the cores at any moment; fail with the last verdict."""
    for _ in range(times):
        complaint = judge(make())
        if not complaint:
            return
    pytest.fail(complaint)


@pytest.mark.parametrize(("stage", "workers"), [("read", 0), ("decode", 1), ("transform", 0), ("collate", 1)])
def test_a_slow_stage_is_named(stage: str, workers: int) -> None:
    """In the loop itself, and in worker processes, some of whose work is repeated here to be seen."""

    def make() -> Any:
        loader = LOADERS[stage]()
        return DataLoader(loader.dataset, 8, num_workers=workers, collate_fn=loader.collate_fn)

    tried(make, lambda loader: misjudged(profile_loader(loader, short_step, budget_s=1.0), "input-bound", stage))


@pytest.mark.parametrize("wrap", [CudaDataLoader, None])
def test_what_a_library_calls_is_not_what_it_does_itself(tmp_path: Path, wrap: Any) -> None:
    """A wait in the caller's `__getitem__` is no collating of the thread around it; and a slow `batch_transform` is no
    fault of a queue, or of a transform that is called for each sample."""
    write_rows(tmp_path / "rows.h5", np.zeros((64, 8, 8, 3), np.uint8), np.arange(64))

    class Waits(Dataset[Any]):
        def __len__(self) -> int:
            return 640

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.004)
            return index

    def slow(x: Any, y: Any) -> Any:
        compute(400_000)
        return x, y

    def make() -> Any:
        if wrap is not None:
            return wrap(DataLoader(Waits(), 8), "cpu")
        return make_loader(dataset_h5(tmp_path / "rows.h5"), 8, batch_transform=slow)

    def complain(loader: Any) -> str:
        profile = profile_loader(loader, short_step, restore=(), budget_s=1.0)
        if wrap is None and ("calls the batch_transform" not in str(profile) or "batch_transform=f" in str(profile)):
            return profile.summary()
        return misjudged(profile, "input-bound", "transform" if wrap is None else "read")

    tried(make, complain)


def test_a_slow_step_is_no_fault_of_the_loader() -> None:
    """Compute-bound, and nothing to change."""

    def complain(loader: Any) -> str:
        profile = profile_loader(loader, lambda _: time.sleep(0.03), budget_s=1.0)
        return misjudged(profile, "compute-bound") or ("" if profile.advice == () else profile.summary())

    tried(lambda: DataLoader(Samples(), 8), complain)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """A clock turned by loader and step, in place of the real one."""
    made = ManualClock()
    monkeypatch.setattr(type(SYSTEM_CLOCK), "now", staticmethod(made.now))
    return made


class PrefetchingLoader:
    """Batches that are made in the background, each in `load_s` seconds of a clock, one of them ahead."""

    num_threads = 1

    def __init__(self, clock: ManualClock, load_s: float, count: int = 10_000) -> None:
        # Profiling restores a loader's attributes, except functions.
        self.now, self.sleep, self.load_s, self.count = clock.now, clock.sleep, load_s, count

    def __iter__(self) -> Iterator[Any]:
        made_at = self.now()
        for number in range(self.count):
            made_at += self.load_s
            if (left_s := made_at - self.now()) > 0:
                self.sleep(left_s)
            else:
                made_at += -left_s  # it waited for its queue
            yield np.full((8, 4), number)


@pytest.mark.parametrize(
    ("load_s", "step_s", "bound"),
    [
        (0.037, 0.045, "balanced"),
        (0.035, 0.045, "compute-bound"),
        (0.048, 0.045, "balanced"),
        (0.052, 0.045, "input-bound"),
        (0.200, 0.010, "input-bound"),
    ],
)
def test_the_bound_follows_from_what_loader_and_step_take(
    clock: ManualClock, load_s: float, step_s: float, bound: str
) -> None:
    """They overlap; the measured times are exact, so the verdict changes exactly at the limit."""
    began = clock.now()
    profile = profile_loader(PrefetchingLoader(clock, load_s), lambda _: clock.sleep(step_s), budget_s=4.0)
    facts = profile.facts
    assert facts.load_s == pytest.approx(load_s)
    assert facts.step_s == pytest.approx(step_s)
    assert facts.both_s == pytest.approx(max(load_s, step_s))
    assert facts.wait_s == pytest.approx(max(0.0, load_s - step_s))
    assert profile.verdict.bound == bound
    # Each part ends when its time is over, and at most one batch later.
    assert abs(clock.now() - began - 4.0) <= 4 * (load_s + step_s)


def test_epochs_of_one_batch_are_measured_like_others() -> None:
    """Each batch is an epoch's first, so every batch includes the start of an epoch."""
    profile = profile_loader(DataLoader(Samples(read_s=0.002, count=12), 16), short_step, budget_s=0.8)
    assert profile.facts.batch_s >= 0.010 + 0.002 * 12
    assert sum(profile.facts.stages.values()) == pytest.approx(profile.facts.alone_s)


def test_an_epochs_last_batch_stands_for_no_other() -> None:
    """Measurements are of full batches, wherever the measurement ends."""
    profile = profile_loader(DataLoader(Samples(read_s=0.002, count=20), 16), lambda _: None, budget_s=0.5)
    assert profile.facts.batch_samples == 16


IMAGES = tuple(np.zeros((300, width, 3), np.uint8) for width in (20, 30, 40, 50, 60))
LABELS = np.zeros(5)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ((np.zeros((5, 3, 8, 8)), LABELS), 5),
        (([*IMAGES], LABELS), 5),
        ((IMAGES, [{"boxes": np.zeros((count, 4))} for count in range(5)]), 5),
        (((np.zeros((5, 8)), np.zeros((5, 9))), LABELS), 5),
        ({"image": np.zeros((5, 8)), "name": ["a"] * 5}, 5),
        (UserDict({"ids": np.zeros((5, 8)), "mask": np.zeros((5, 8))}), 5),
        ("text", 1),
    ],
)
def test_samples_are_counted_in_any_batch(batch: Any, samples: int) -> None:
    """Also if images of different sizes come in a list, whose first element has a height instead of samples."""
    assert profile_loader([batch], budget_s=0.01).facts.batch_samples == samples


def test_processes_that_start_in_every_epoch_are_named() -> None:
    """Epochs of a few batches, each with new processes."""

    def complain(loader: Any) -> str:
        profile = profile_loader(loader, lambda _: None, budget_s=1.5)
        advised = any(advice.options == {"persistent_workers": True} for advice in profile.advice)
        return "" if profile.verdict.cause == "start" and advised else profile.summary()

    tried(lambda: DataLoader(Samples(count=32), 8, num_workers=2), complain)


def test_persistent_workers_go_on_with_the_next_epoch() -> None:
    """Many short epochs are measured, and no process is left."""
    before = set(psutil.Process().children())
    loader = DataLoader(Samples(count=32), 8, num_workers=2, persistent_workers=True)
    assert profile_loader(loader, lambda _: None, budget_s=1).facts.batch_samples == 8
    assert set(psutil.Process().children()) <= before


def test_nothing_is_left_running() -> None:
    """No worker process, no thread, and the switch interval is what it was; also of persistent workers, and after an
    error in the step."""
    threads, interval = threading.active_count(), sys.getswitchinterval()
    before = set(psutil.Process().children())
    loader = DataLoader(Samples(), 8, num_workers=2, persistent_workers=True)
    profile_loader(loader, short_step, budget_s=0.5)
    assert loader._iterator is None

    def broken(_: object) -> None:
        msg = "no such layer"
        raise KeyError(msg)

    with pytest.raises(KeyError, match="no such layer"):
        profile_loader(loader, broken, budget_s=0.5)
    assert set(psutil.Process().children()) <= before
    # The threads that feed the queues of torch's workers end by themselves, a moment after the workers.
    deadline = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (threading.active_count(), sys.getswitchinterval()) == (threads, interval)
    assert len(next(iter(loader))[1]) == 8


def test_a_loader_of_ours_keeps_its_place(tmp_path: Path) -> None:
    """Stages are reported, and the next epoch is the one that would have come anyway."""
    write_rows(tmp_path / "rows.h5", np.zeros((320, 32, 32, 3), np.uint8), np.arange(320))
    dataset = dataset_h5(tmp_path / "rows.h5", transform=slow_transform)
    with make_loader(dataset, 32, strategy="memory", num_workers=1, seed=0) as loader:
        for _ in loader:
            break
        state = loader.state_dict()
        profile = profile_loader(loader, short_step, budget_s=0.8)
        assert loader.state_dict() == state
        assert profile.facts.kind == "colabstage"
        assert profile.verdict.stage == "transform"
        rows = [y.tolist() for _, y in loader]
    with make_loader(dataset_h5(tmp_path / "rows.h5"), 32, strategy="direct", seed=0) as untouched:
        untouched.set_epoch(1)
        assert rows == [y.tolist() for _, y in untouched]


def slow_transform(x: Any) -> Any:
    """In Python, for each sample."""
    compute(20_000)
    return x


def test_any_iterable_will_do() -> None:
    batches = [torch.zeros(4, 3)] * 50
    profile = profile_loader(batches, short_step, budget_s=0.3)
    assert (profile.facts.batches, profile.facts.batch_samples) == (50, 4)
    assert profile.facts.busy_s >= 0.01


@pytest.mark.parametrize(
    ("loader", "options", "words"),
    [
        ([], {}, "has no batches"),
        (iter([np.zeros((4, 2))] * 8), {}, "only once"),
        (7, {}, "expected a loader of batches"),
        ([1], {"step": 3}, "expected a function"),
        ([1], {"step": lambda x, y: None}, "is called with one batch"),
        ([1], {"budget_s": 0}, "more than 0"),
    ],
)
def test_what_cannot_work_is_refused(loader: Any, options: dict[str, Any], words: str) -> None:
    """The message says what was expected."""
    with pytest.raises(ColabstageError, match=words):
        profile_loader(loader, **options)


def test_a_profile_says_that_images_are_kept_and_leaves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the training loop stay; the measurement may be faster than a first epoch, and the profile says so."""
    write_encoded(tmp_path / "files.h5", repeated_photographs(4, target_bytes=20_000) * 4)
    dataset = dataset_h5(tmp_path / "files.h5")
    loader = make_loader(dataset, 4)
    assert any("kept for later epochs" in note for note in profile_loader(loader, budget_s=0.2).notes)
    list(loader)
    profile_loader(loader, budget_s=0.2)
    decoded: list[int] = []
    real = simplejpeg.decode_jpeg

    def counted(data: Any, *others: Any, **named: Any) -> Any:
        decoded.append(len(data))
        return real(data, *others, **named)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", counted)
    list(loader)
    assert not decoded
    alone = make_loader(dataset_h5(tmp_path / "files.h5"), 4, memory_budget=0)
    list(alone)
    assert len(decoded) == 16
    assert profile_loader(alone, budget_s=0.2).notes == ()


class Photos(Dataset[Any]):
    """Photographs in a folder."""

    def __init__(self, root: Path) -> None:
        self.paths = write_photos(root)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return np.array(Image.open(self.paths[index])), index % 4


def test_what_is_advised_can_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line runs with the folder in place of SOURCE, and the resulting loader has the samples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))
    photos = Photos(tmp_path / "data")
    profile = profile_loader(DataLoader(photos, 8), lambda _: time.sleep(0.0005), budget_s=0.3)
    (line,) = (one.argument for one in profile.advice if "SOURCE" in one.argument)
    known = {"make_loader": make_loader, "stage_dataset": colabstage.stage_dataset, "SOURCE": tmp_path / "data"}
    with eval(line, known) as made:
        assert sum(len(y) for _, y in made) == len(photos)


def test_prefixes_of_a_pipeline_are_its_stages(clock: ManualClock) -> None:
    """The difference to the previous prefix, and the rest; other batches than the loader's are refused."""

    def batches(seconds: float, samples: int = 8) -> Any:
        class Pipeline:
            def __iter__(self) -> Iterator[Any]:
                for _ in range(50):
                    clock.sleep(seconds)
                    yield np.zeros((samples, 2))

        return Pipeline()

    def profiled(**prefixes: Any) -> LoaderProfile:
        return profile_loader(batches(0.05), lambda _: clock.sleep(0.01), prefixes=prefixes, budget_s=8.0)

    profile = profiled(read=batches(0.01), decode=batches(0.04))
    assert profile.facts.stages == pytest.approx({"read": 0.01, "decode": 0.03, "rest": 0.01})
    assert profile.verdict.stage == "decode"
    with pytest.raises(ColabstageError, match=r"prefixes\['read'\]=1 .*batch\(8\)"):
        profiled(read=batches(0.01, 1))


@pytest.mark.parametrize("step_s", [None, 0.01])
def test_the_budget_is_what_it_takes(clock: ManualClock, step_s: float | None) -> None:
    """With a step and without one, whose share is then the loader's; but for the batches that are under way."""

    class Pipeline:
        def __iter__(self) -> Iterator[Any]:
            for _ in range(50):
                clock.sleep(0.05)
                yield np.zeros((8, 2))

    began = clock.now()
    step = None if step_s is None else lambda _: clock.sleep(step_s)
    profile_loader(Pipeline(), step, prefixes={"all": Pipeline()}, budget_s=20.0)
    assert 18.0 < clock.now() - began < 22.0


@pytest.mark.parametrize(
    ("side", "options", "stage"), [(256, {}, "read"), (64, {"batch_transform": RandomFlip()}, "transform")]
)
def test_stages_of_our_own_code_are_known(tmp_path: Path, side: int, options: dict[str, Any], stage: str) -> None:
    """Copying rows from a file is reading, augmentation on the device a transform."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["X_train"] = np.zeros((640, side, side, 3), np.uint8)

    def complain(loader: Any) -> str:
        with loader:
            profile = profile_loader(loader, budget_s=0.6)
        return misjudged(profile, "input-bound", stage)

    tried(lambda: make_loader(dataset_h5(tmp_path / "rows.h5"), 32, strategy="direct", **options), complain)

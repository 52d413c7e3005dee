"""The model of a pipeline, the verdict and the advice: pure functions of measured times."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

import colabstage
from colabstage import profile_loader
from colabstage.diagnose.advice import (
    advise,
    cycle_with_processes,
    fewest_workers,
    in_background,
    judge,
    simulate,
    smallest_ahead,
    with_threads,
)
from colabstage.diagnose.facts import Costs, ProfileFacts, Setting, StageCost
from colabstage.diagnose.loaders import can_be_packed, can_be_staged
from colabstage.diagnose.profile import profiled_loader
from colabstage.diagnose.stages import LIBRARY_STAGES, StageNames
from tests.pictures import write_photos

DECODING = ProfileFacts(
    Setting("torch", batches=100, batch_samples=8),
    (StageCost("read", 0.01, 0.001), StageCost("decode", 0.06, 0.06), StageCost("transform", 0.01, 0.01, 0.01)),
    load_s=0.08,
    cycle_s=0.1,
    wait_s=0.08,
    busy_s=0.02,
    step_alone_s=0.02,
    costs=Costs(handover_s=0.001, gather_s=0.0002, cores=2.0, core_count=2, free_memory_bytes=1 << 33),
)


def test_without_workers_times_add_up_and_with_them_the_longer_one_counts() -> None:
    """Work in turn; side by side; and shared by several."""
    assert simulate([0.03], 0.02, 0, 0) == pytest.approx(0.05)
    assert simulate([0.03], 0.02, 1, 2) == pytest.approx(0.03)
    assert simulate([0.03], 0.02, 2, 2) == pytest.approx(0.02)
    assert simulate([0.08], 0.01, 4, 2) == pytest.approx(0.02, rel=0.02)


def test_a_queue_bridges_a_slow_batch_as_long_as_it_is_long_enough() -> None:
    """One in four takes 0.18 s, and a step 0.05 s: a batch is ordered when the one before is taken."""
    made = [0.18, 0.0, 0.0, 0.0]
    assert simulate(made, 0.05, 1, 1) == pytest.approx((4 * 0.05 + 0.13) / 4, rel=0.02)
    assert simulate(made, 0.05, 1, 4) == pytest.approx(0.05, rel=0.02)


def test_cores_bound_processes_and_pythons_lock_bounds_threads() -> None:
    """However many there are."""
    assert cycle_with_processes(DECODING, 16, 2) == pytest.approx((0.071 + 0.002) / 2, rel=0.01)
    locked = replace(DECODING, stages=(StageCost("transform", 0.08, 0.08, 0.08),))
    assert with_threads(locked, 16, 2) == pytest.approx(0.08)
    assert with_threads(DECODING, 16, 2) == pytest.approx(0.071 / 2, rel=0.01)
    assert in_background(DECODING, 0.001, 0.001) == 0.02


def test_taking_batches_from_processes_is_the_consumers_time() -> None:
    """Between two steps, however many processes make batches; not where nothing is taken from any."""
    waiting = replace(DECODING, stages=(StageCost("read", 0.08, 0.001),))
    taking = replace(waiting, costs=replace(waiting.costs, take_s=0.004))
    assert cycle_with_processes(waiting, 8, 2) == pytest.approx(0.02)
    assert cycle_with_processes(taking, 8, 2) == pytest.approx(0.024)
    assert cycle_with_processes(taking, 0, 0) == cycle_with_processes(waiting, 0, 0)
    assert with_threads(taking, 8, 2) == with_threads(waiting, 8, 2)


def test_on_two_cores_two_processes_are_enough_for_work_and_more_only_wait() -> None:
    """Of sixteen that would be as fast, the fewest."""
    assert fewest_workers(DECODING, 2)[0] == 3
    working = replace(DECODING, stages=(StageCost("decode", 0.08, 0.08),))
    assert fewest_workers(working, 2)[0] == 2
    waiting = replace(DECODING, stages=(StageCost("read", 0.08, 0.0),))
    assert fewest_workers(waiting, 2)[0] in {4, 5}
    assert smallest_ahead(DECODING, 2)[0] == 2


def test_the_verdict_follows_from_the_head_room() -> None:
    """The same loader before steps of different lengths, and when it keeps up."""
    assert (judge(DECODING).bound, judge(DECODING).stage) == ("input-bound", "decode")
    assert "80% of the time is lost" in judge(DECODING).sentence
    side_by_side = replace(DECODING, setting=replace(DECODING.setting, workers=2, processes=True, prefetch=2))
    compute = replace(side_by_side, load_s=0.04, cycle_s=0.1, step_alone_s=0.098)
    assert judge(compute).bound == "compute-bound"
    assert judge(replace(compute, load_s=0.095)).bound == "balanced"
    assert judge(replace(DECODING, transfer_s=0.07)).stage == "transfer"
    starting = replace(side_by_side, load_s=0.02, cycle_s=0.02, start_s=4.0)
    assert judge(starting).cause == "start"
    threads = replace(
        DECODING, setting=replace(DECODING.setting, workers=2), stages=(StageCost("decode", 0.1, 0.1, 0.1),)
    )
    assert judge(threads).cause == "gil"
    crowded = replace(side_by_side, load_s=0.04, cycle_s=0.09, step_alone_s=0.05, step_cpu_s=0.1)
    assert judge(crowded).cause == "cores"


def test_advice_promises_what_the_model_says() -> None:
    """Processes, and a pack that is worth its work only where it gains clearly more."""
    advice = advise(DECODING)
    processes = next(one for one in advice if "num_workers" in one.options)
    assert processes.gain == pytest.approx(0.1 / cycle_with_processes(DECODING, 3, 2), rel=0.02)
    pack = next(one for one in advice if one.packs)
    assert pack.argument == 'make_loader(stage_dataset(SOURCE)["train"], 8)'
    assert pack.gain == pytest.approx(0.1 / 0.02, rel=0.02)
    assert advice[0] is pack
    named = replace(DECODING.setting, source="photos", image_size=(224, 192), repeats=True)
    assert 'stage_dataset("photos", image_size=(224, 192))' in advise(replace(DECODING, setting=named))[0].argument


def test_nothing_is_advised_where_the_step_is_the_limit() -> None:
    """Not even what would make loading faster."""
    bound = replace(
        DECODING, step_alone_s=0.098, cycle_s=0.1, stages=(StageCost("decode", 0.002, 0.002),), load_s=0.002
    )
    assert advise(bound) == ()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting("colabstage", 1, prefetch=2, batches=100, strategy="direct"), 'strategy="workers"'),
        (Setting("keras", batches=100), "workers="),
        (Setting("tf.data", batches=100, parallel_map=False, prefetched=False), "num_parallel_calls=tf.data.AUTOTUNE"),
        (Setting("tf.data", batches=100, parallel_map=False, prefetched=False), ".prefetch(tf.data.AUTOTUNE)"),
        (Setting("iterable", batches=100), "CudaDataLoader(loader, device)"),
        (Setting("torch", batches=100, h5_file="a.h5"), 'make_loader(dataset_h5("a.h5")'),
    ],
)
def test_advice_is_in_the_words_of_the_loader_at_hand(setting: Setting, words: str) -> None:
    """Arguments of whatever it was made by."""
    facts = replace(DECODING, setting=setting, costs=replace(DECODING.costs, pack_s=0.001))
    assert any(words in advice.argument for advice in advise(facts))


def test_threads_are_advised_to_keras_unless_python_holds_its_lock() -> None:
    """Then processes."""
    facts = replace(DECODING, setting=Setting("keras", batches=100))
    threads = next(one for one in advise(facts) if "workers" in one.options)
    assert threads.options["use_multiprocessing"] is False
    held = replace(facts, stages=(StageCost("transform", 0.08, 0.08, 0.08),))
    processes = next(one for one in advise(held) if "workers" in one.options)
    assert processes.options["use_multiprocessing"] is True


def test_a_slow_file_of_ours_is_better_read_into_memory() -> None:
    """Where it fits."""
    setting = Setting("colabstage", 1, prefetch=2, batches=100, batch_bytes=1 << 20, strategy="direct")
    slow = replace(DECODING, setting=setting, stages=(StageCost("read", 0.08, 0.001),))
    assert advise(slow)[0].options == {"strategy": "memory"}
    large = replace(slow, setting=replace(setting, batch_bytes=1 << 30))
    assert all("strategy" not in advice.options for advice in advise(large))


def test_a_pack_is_promised_only_where_it_can_be_made() -> None:
    """Not of a folder that nobody but the dataset reads, nor of one that the disk cannot take; and not at the memory's
    rate where it does not fit there."""
    photos = replace(DECODING.setting, source="photos", image_size=(200, 200), can_stage=True)
    fits, large = replace(photos, batches=1_000), replace(photos, batches=100_000)
    (pack,) = (one for one in advise(replace(DECODING, setting=fits)) if one.packs)
    assert not pack.at_most
    (bound,) = (one for one in advise(replace(DECODING, setting=large)) if one.packs)
    assert bound.at_most
    assert "96 GB, of which 8.59 GB fit the memory" in bound.why
    full = replace(DECODING, setting=fits, costs=replace(DECODING.costs, free_disk_bytes=900_000_000))
    assert not any(one.packs for one in advise(full))
    unknown = replace(DECODING, setting=replace(fits, can_stage=False))
    assert not any(one.packs for one in advise(unknown))
    itself = replace(unknown, setting=replace(unknown.setting, repeats=True, can_pack=True))
    (pack,) = (one for one in advise(itself) if one.packs)
    assert pack.argument == 'pack_dataset(loader.dataset, "data.h5"); make_loader(dataset_h5("data.h5"), 8)'


def test_whoever_knows_the_folder_can_stage_it() -> None:
    """Images that come the same each time, of a dataset that names no folder: it is packed itself, which runs as it
    stands, or its folder is staged. What is no image is not sought in a folder."""
    setting = replace(DECODING.setting, repeats=True, can_pack=True, image_size=(64, 64))
    stages = (StageCost("read", 0.05, 0.01), StageCost("transform", 0.05, 0.05))
    itself, staged = (one for one in advise(replace(DECODING, setting=setting, stages=stages)) if one.packs)
    assert itself.argument.startswith("pack_dataset(loader.dataset")
    assert staged.argument == 'make_loader(stage_dataset(SOURCE, image_size=(64, 64))["train"], 8)'
    assert "prepare=" in staged.why
    assert "prepare=" not in itself.why
    (only,) = (one for one in advise(replace(DECODING, setting=replace(setting, image_size=None))) if one.packs)
    assert only.argument == itself.argument
    (only,) = (one for one in advise(replace(DECODING, setting=replace(setting, repeats=False))) if one.packs)
    assert only.argument == staged.argument


class Photos:
    """A dataset of image files that tells nobody where they lie, as tutorials write it."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB").resize((32, 32))
        return np.asarray(image, np.float32).transpose(2, 0, 1).copy(), index % 2


@pytest.mark.torch
def test_a_dataset_of_files_that_names_no_folder_is_told_of_staging(tmp_path: Path) -> None:
    """By the profile of a real loop."""
    loader: Any = DataLoader(Photos(write_photos(tmp_path)), 8)  # type: ignore[arg-type]
    found = [one.argument for one in profile_loader(loader, budget_s=0.3).advice if one.packs]
    assert found == [
        'pack_dataset(loader.dataset, "data.h5"); make_loader(dataset_h5("data.h5"), 8)',
        'make_loader(stage_dataset(SOURCE, image_size=(32, 32))["train"], 8)',
    ]


class Blob:
    """A dataset with a folder that no layout knows, as torchvision's MNIST has."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "raw").mkdir(parents=True)
        (root / "raw" / "images-idx3-ubyte").write_bytes(bytes(range(240)))

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        data = (self.root / "raw" / "images-idx3-ubyte").read_bytes()
        return np.frombuffer(data, np.float16, 3, 6 * index), index % 4


def test_what_is_advised_can_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at whether a folder can be staged, and a dataset packed; the words run as they stand."""
    monkeypatch.chdir(tmp_path)
    loader: Any = DataLoader(Blob(tmp_path / "blob"), 8)  # type: ignore[arg-type]
    profiled = profiled_loader(loader)
    assert (profiled.can_stage(), profiled.can_pack(), profiled.repeats()) == (False, True, True)
    setting = replace(profiled.setting, batch_samples=8, can_stage=False, can_pack=True, repeats=True)
    (pack,) = (one for one in advise(replace(DECODING, setting=setting)) if one.packs)
    *first, last = pack.argument.split("; ")
    known = {name: getattr(colabstage, name) for name in ("pack_dataset", "make_loader", "dataset_h5")}
    exec("; ".join(first), known | {"loader": loader})
    made = eval(last, known)
    assert sorted(int(label) for _, y in made for label in y) == sorted(index % 4 for index in range(40))
    write_photos(tmp_path / "photos")
    assert can_be_staged(str(tmp_path / "photos")) is True
    assert not can_be_packed([{"text": 1}])


def test_stages_of_our_own_code_name_modules_that_are_there() -> None:
    """A module that has moved would be taken for the caller's, or for collating."""
    root = Path(colabstage.__file__).parent
    named = list[str]()
    for pattern, _, _ in LIBRARY_STAGES:
        if inside := re.fullmatch(r"/colabstage/([\w/]*)(?:\(([\w/|]+)\))?(?:/|\\\.py\$)", pattern):
            named += [inside[1] + one for one in (inside[2] or "").split("|")]
    assert len(named) > 5
    assert [name for name in named if not (root / name).is_dir() and not (root / f"{name}.py").is_file()] == []


def test_fetching_is_reading() -> None:
    """Also where colabstage is installed, among libraries that say nothing of themselves."""
    found: dict[str, Any] = {"sys": sys}
    exec(compile("frame = sys._getframe()", "/x/site-packages/colabstage/sources/partial/fetcher.py", "exec"), found)
    assert StageNames({}).stage_of(found["frame"]) == "read"


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


def test_a_stream_is_divided_among_processes_by_its_own_code() -> None:
    """Two processes give every sample of an `IterableDataset` twice, as torch's documentation says; so does the advice.

    One process needs nothing.
    """
    assert sorted(int(item) for item in DataLoader(_Stream(), batch_size=None, num_workers=2)) == sorted(
        [*range(8)] * 2
    )
    setting = profiled_loader(DataLoader(_Stream(), 4)).setting
    assert setting.is_stream
    stream = replace(DECODING, setting=replace(DECODING.setting, is_stream=True))
    several = next(one for one in advise(stream) if one.options.get("num_workers", 0) > 1)
    assert "get_worker_info" in several.why
    assert not any("get_worker_info" in one.why for one in advise(DECODING))
    light = replace(stream, stages=(StageCost("read", 0.02, 0.001),), load_s=0.02, cycle_s=0.04)
    assert [one.options["num_workers"] for one in advise(light) if "num_workers" in one.options] == [1]
    assert not any("get_worker_info" in one.why for one in advise(light))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_items_that_are_handed_over_as_they_are_are_not_packed_as_samples(batch_size: int | None) -> None:
    """With `batch_size=None` an item may be a batch, of which a pack would make one row."""
    data = [(np.zeros((16, 8), np.float32), np.zeros(16)) for _ in range(8)]
    profiled = profiled_loader(DataLoader(data, batch_size=batch_size))  # type: ignore[arg-type]
    assert profiled.can_pack() == (batch_size is not None)
    assert any("batch_size=None" in note for note in profiled.notes) == (batch_size is None)

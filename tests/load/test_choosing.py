"""Decisions about loading, from facts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colabstage.errors import NotEnoughSpaceError, OptionError
from colabstage.h5.arrival import UnitLayout
from colabstage.load.choosing import DeviceFacts, LoaderFacts, choose_loader
from colabstage.load.epoch import Shard
from colabstage.load.plan import DecodeChoice, LoaderPlan
from colabstage.load.reading.fields import EngineChoice
from colabstage.options import LoaderOptions

FACTS = LoaderFacts(
    rows=1000,
    row_bytes=196_608,
    stored_bytes=196_608_000,
    engine=EngineChoice("mapped", "a test"),
    encoded=False,
    per_sample=False,
    cores=2,
    free_memory_bytes=8_000_000_000,
    shard=Shard(),
)


def choose(facts: LoaderFacts, batch_size: int = 64, **options: Any) -> LoaderPlan:
    """The plan of so many samples in a batch, with these options."""
    return choose_loader(facts, batch_size, LoaderOptions(**options))


@pytest.mark.parametrize(
    ("facts", "workers"),
    [
        (FACTS, 2),
        (replace(FACTS, cores=1), 1),
        (replace(FACTS, cores=64), 4),
        (replace(FACTS, engine=EngineChoice("h5py", "a test"), cores=64, free_memory_bytes=0), 1),
        (replace(FACTS, engine=EngineChoice("h5py", "a test"), cores=64), 4),
        (replace(FACTS, engine=EngineChoice("read", "a test")), 16),
        (replace(FACTS, engine=EngineChoice("read", "a test"), encoded=True, cores=64), 64),
        (replace(FACTS, encoded=True, cores=4), 4),
        (replace(FACTS, encoded=True, cores=64), 18),
        (replace(FACTS, encoded=True, cores=64, stored_bytes=1000 * 20_000), 6),
        (replace(FACTS, encoded=True, cores=64, stored_bytes=1000 * 2_000_000), 64),
    ],
)
def test_workers_follow_from_cores_and_work(facts: LoaderFacts, workers: int) -> None:
    """Copying stops gaining after a few threads, decoding of small images after some more; h5py gains from none, reads
    from many."""
    assert choose(facts, 64).workers.value == workers


def test_little_memory_shortens_the_queue() -> None:
    """Batches that would not fit several times are prepared one at a time."""
    assert choose(FACTS, 64).prefetch.value == 2
    plan = choose(replace(FACTS, free_memory_bytes=100_000_000), 64)
    assert plan.prefetch.value == 1
    assert "12.6 MB" in plan.prefetch.reason


def test_plan_says_why() -> None:
    """Every decision is in the plan's text with its reason."""
    plan = choose(replace(FACTS, per_sample=True), 64)
    text = str(plan)
    for part in (
        plan.strategy,
        plan.reason,
        plan.workers.reason,
        plan.prefetch.reason,
        plan.engine.reason,
        "16 batches",
    ):
        assert part in text
    assert "sample by sample" in plan.reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": "auto"}, "batch_size='auto'"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": True}, "num_workers=True"),
        ({"prefetch_factor": -1}, "prefetch_factor=-1"),
        ({"strategy": "workers"}, "torch.utils.data.DataLoader"),
        ({"shuffle": "window"}, "shuffle=True"),
        ({"strategy": "magic"}, "auto, device, memory, direct"),
        ({"batch_size": 2000, "drop_last": True}, "1,000 samples"),
    ],
)
def test_values_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each is an OptionError that names the argument with its value."""
    with pytest.raises(OptionError, match=message):
        choose(FACTS, **{"batch_size": 64, **changes})


# The split, and what stays free beside it.
SPARE = 196_608_000 + 1_000_000_000


@pytest.mark.parametrize(
    ("engine", "free_memory_bytes", "strategy"),
    [
        ("mapped", 10**12, "direct"),
        ("read", 10**12, "direct"),
        ("h5py", 10**12, "memory"),
        ("h5py", SPARE + 196_608_000, "memory"),
        ("h5py", SPARE + 196_607_999, "direct"),
        ("h5py", 0, "direct"),
        ("memory", 0, "memory"),
    ],
)
def test_auto_takes_memory_where_the_file_is_slow_and_fits_twice(
    engine: Any, free_memory_bytes: int, strategy: str
) -> None:
    """Only what h5py reads is worth a copy of its own, and only half of the memory to spare is taken unasked."""
    facts = replace(FACTS, engine=EngineChoice(engine, "a test"), free_memory_bytes=free_memory_bytes)
    assert choose(facts, 64).strategy == strategy
    assert choose(facts, 64, strategy="direct").strategy == "direct"


def test_memory_that_is_not_there_is_refused() -> None:
    """Asked for, memory is taken to the last byte of what can be spared, and beyond that refused with both figures."""
    assert choose(replace(FACTS, free_memory_bytes=SPARE), strategy="memory").strategy == "memory"
    with pytest.raises(NotEnoughSpaceError, match=r"197 MB.*100 MB"):
        choose(replace(FACTS, free_memory_bytes=SPARE - 96_608_000), strategy="memory")
    with pytest.raises(NotEnoughSpaceError):
        choose(replace(FACTS, free_memory_bytes=SPARE - 1), strategy="memory")
    with pytest.raises(NotEnoughSpaceError, match="0 B "):
        choose(replace(FACTS, free_memory_bytes=5), strategy="memory")


NEEDED = 1000 * (196_608 + 8)
GPU = DeviceFacts("cuda", 8 * NEEDED)


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        ({}, "device"),
        ({"device": DeviceFacts("cuda", 8 * NEEDED - 1)}, "direct"),
        ({"device": DeviceFacts("cpu", 10**12)}, "direct"),
        ({"device": None}, "direct"),
        ({"uniform": False}, "direct"),
        ({"shard": Shard(0, 2)}, "direct"),
        ({"per_sample": True}, "direct"),
    ],
)
def test_auto_takes_a_gpu_with_room(changes: dict[str, Any], strategy: str) -> None:
    """An eighth of what is free there is taken unasked, for rows that can lie there."""
    plan = choose(replace(FACTS, **{"device": GPU, **changes}), 64)
    assert plan.strategy == strategy
    if strategy == "device":
        assert "197 MB of the 1.57 GB" in plan.engine.reason


def test_a_gpu_that_is_too_small_is_refused() -> None:
    """Asked for, all but a reserve is taken, and beyond that refused with the figures."""
    fits = replace(FACTS, device=DeviceFacts("cuda", NEEDED + 500_000_000))
    assert choose(fits, strategy="device").strategy == "device"
    with pytest.raises(NotEnoughSpaceError, match=r"197 MB.*697 MB"):
        choose(replace(FACTS, device=DeviceFacts("cuda", NEEDED + 499_999_999)), strategy="device")


COLD = replace(FACTS, engine=EngineChoice("read", "a test"), rows=1_000_000)


@pytest.mark.parametrize(("drop_last", "batches"), [(False, 6), (True, 5)])
def test_ranks_have_their_part_of_the_batches(drop_last: bool, batches: int) -> None:
    """1,000 samples in batches of 64 are six steps of three ranks, five of them full."""
    facts = replace(FACTS, shard=Shard(1, 3))
    assert choose(facts, 64, drop_last=drop_last).batches == batches
    with pytest.raises(OptionError, match=r"1,000 samples.*3 ranks"):
        choose(facts, 400, drop_last=True)


@pytest.mark.parametrize("shuffle", ["auto", True, False])
def test_ranks_decide_alike_whatever_each_has(shuffle: Any) -> None:
    """Free memory, a file that is in memory on one machine only, a GPU with room: none of it shows in the order that
    they share out."""
    machines: list[dict[str, Any]] = [
        {},
        {"free_memory_bytes": 0},
        {"engine": EngineChoice("mapped", "a test")},
        {"device": DeviceFacts("cuda", 10**12)},
        {"encoded": True, "crop_bytes": 50_000},
    ]
    facts = [replace(COLD, shard=Shard(rank, 5), **own) for rank, own in enumerate(machines)]
    assert len({choose(one, 64, shuffle=shuffle).order for one in facts}) == 1


FILES = replace(FACTS, encoded=True, row_bytes=500_000)


@pytest.mark.parametrize(
    ("facts", "asked", "most_bytes", "said"),
    [
        (FILES, {}, 1_000_000_000, "kept, up to 500 MB of 8 GB"),
        (replace(FILES, rows=4000), {}, 1_000_000_000, "about 50%"),
        (replace(FILES, rows=4000, shard=Shard(0, 2)), {}, 500_000_000, "about 25%"),
        (replace(FILES, rows=4000, epoch_rows=100), {}, 1_000_000_000, "most images"),
        (replace(FILES, rows=100_000), {}, 0, "1 GB of the 8 GB"),
        (replace(FILES, rows=100_000), {"memory_budget": 3_000_000_000}, 3_000_000_000, "as asked: later"),
        (FILES, {"memory_budget": 0}, 0, "not kept, as asked"),
        (replace(FILES, free_memory_bytes=64_000_000_000, rows=9000), {}, 2 * 1024**3, "about 48%"),
        (replace(FACTS, decodes_targets=True, target_bytes=40_000), {}, 1_000_000_000, "up to 40 MB"),
    ],
)
def test_decoded_images_are_kept_within_a_budget(
    facts: LoaderFacts, asked: dict[str, Any], most_bytes: int, said: str
) -> None:
    """An eighth of the free memory, shared among ranks; none where it would hold too few; the plan says so."""
    plan = choose(facts, 64, **asked)
    assert plan.keep is not None
    assert plan.keep.most_bytes == most_bytes
    assert said in str(plan)


def test_every_choice_is_shown_with_its_reason() -> None:
    """In the text, in the notebook's HTML, and one by one; those about decoding only where there is any."""
    plan = choose(replace(FACTS, engine=EngineChoice("mapped", "copies & waits")), shuffle=False)
    words = ("direct", "16", "one for each core", "mapped", "not shuffled")
    for shown in (str(plan), plan._repr_html_(), str(plan.facts)):
        assert [word for word in words if word not in shown] == []
    assert "copies &amp; waits" in plan._repr_html_()
    assert [name for name, _ in plan.facts][-1] == "order"
    more = replace(plan, decode=DecodeChoice("crops", "they are smaller"))
    assert "they are smaller" in more._repr_html_()


DIGITS = replace(FACTS, rows=60_000, row_bytes=784, stored_bytes=47_040_000)


def test_small_batches_are_planned_together() -> None:
    """The plan of small batches prepares two groups ahead and says so; what was asked for stays."""
    plan = choose(DIGITS, 64)
    assert plan.prefetch.value == 256
    assert "128 at a time" in plan.prefetch.reason
    assert plan.together == 128
    asked = choose(DIGITS, 64, prefetch_factor=2)
    assert (asked.prefetch.value, asked.together) == (2, 1)


def test_groups_of_rows_that_are_decoded_are_smaller() -> None:
    """The first batch waits for its whole group, which takes long where each row does."""
    decoded = replace(DIGITS, engine=EngineChoice("h5py", "a test"), stored_bytes=10**12)
    assert choose(decoded, 64).prefetch.value == 64


@pytest.mark.parametrize(
    "facts",
    [
        replace(DIGITS, encoded=True),
        replace(DIGITS, per_sample=True),
        replace(DIGITS, uniform=False),
        replace(DIGITS, layout=UnitLayout(lambda _: np.arange(0), 4, "a test"), complete=False),
    ],
    ids=["encoded", "per sample", "ragged", "arriving"],
)
def test_rows_that_cannot_be_gathered_are_not_planned_together(facts: LoaderFacts) -> None:
    """Decoded, transformed, ragged and arriving rows come batch by batch, however many are asked for beforehand."""
    assert choose(facts, 64, shuffle=False).prefetch.value == 2
    assert choose(facts, 64, shuffle=False, prefetch_factor=64).together == 1
    assert choose(DIGITS, 64, shuffle=False, prefetch_factor=64).together == 32

"""Decisions about loading, made from facts alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colabstage.errors import NotEnoughSpaceError, OptionError
from colabstage.h5.arrival import UnitLayout
from colabstage.load.choosing import Choice, LoaderFacts, Shard, choose_loader
from colabstage.options import LoaderOptions

FACTS = LoaderFacts(
    rows=1000,
    row_bytes=196_608,
    stored_bytes=196_608_000,
    engine=Choice("mapped", "a test"),
    encoded=False,
    per_sample=False,
    cores=2,
    free_memory_bytes=8_000_000_000,
    shard=Shard(),
)
H5PY, READ = Choice("h5py", "a test"), Choice("read", "a test")
# The split, and what must stay free.
SPARE = 196_608_000 + 1_000_000_000
# On a device, each row's number is stored beside it.
NEEDED = 1000 * (196_608 + 8)
DIGITS = replace(FACTS, rows=60_000, row_bytes=784, stored_bytes=47_040_000)
FILES = replace(FACTS, encoded=True, row_bytes=500_000)


def gpu(free_bytes: int) -> LoaderFacts:
    return replace(FACTS, device="cuda", device_free_bytes=free_bytes)


def choose(facts: LoaderFacts, batch_size: int = 64, **options: Any) -> Any:
    """The plan of so many samples in a batch, with these options."""
    return choose_loader(facts, batch_size, LoaderOptions(**options))


@pytest.mark.parametrize(
    ("facts", "workers"),
    [
        (FACTS, 2),
        (replace(FACTS, cores=1), 1),
        (replace(FACTS, cores=64), 4),
        (replace(FACTS, engine=H5PY, cores=64, free_memory_bytes=0), 1),
        (replace(FACTS, engine=H5PY, cores=64), 4),
        (replace(FACTS, engine=READ), 16),
        (replace(FACTS, engine=READ, encoded=True, cores=64), 64),
        (replace(FACTS, encoded=True, cores=4), 4),
        (replace(FACTS, encoded=True, cores=64), 18),
        (replace(FACTS, encoded=True, cores=64, stored_bytes=1000 * 20_000), 6),
    ],
)
def test_workers_follow_from_cores_and_work(facts: LoaderFacts, workers: int) -> None:
    """Copying gains nothing beyond a few threads, decoding small images beyond some more.
    h5py gains from none; remote reads from many."""
    assert choose(facts).workers.value == workers


@pytest.mark.parametrize(
    ("facts", "asked", "strategy"),
    [
        # Only what h5py reads is worth a copy, and by default only half of the spare memory is taken.
        (replace(FACTS, free_memory_bytes=10**12), {}, "direct"),
        (replace(FACTS, engine=READ, free_memory_bytes=10**12), {}, "direct"),
        (replace(FACTS, engine=H5PY, free_memory_bytes=SPARE + 196_608_000), {}, "memory"),
        (replace(FACTS, engine=H5PY, free_memory_bytes=SPARE + 196_607_999), {}, "direct"),
        (replace(FACTS, engine=H5PY, free_memory_bytes=10**12), {"strategy": "direct"}, "direct"),
        (replace(FACTS, engine=Choice("memory", "a test"), free_memory_bytes=0), {}, "memory"),
        # On request, all of the spare memory is taken.
        (replace(FACTS, free_memory_bytes=SPARE), {"strategy": "memory"}, "memory"),
        (replace(FACTS, free_memory_bytes=SPARE - 1), {"strategy": "memory"}, "197 MB"),
        # By default, an eighth of a GPU's free memory is taken, if the rows can be there; on request, all but a
        # reserve.
        (gpu(8 * NEEDED), {}, "device"),
        (gpu(8 * NEEDED - 1), {}, "direct"),
        (replace(FACTS, device="cpu", device_free_bytes=10**12), {}, "direct"),
        (replace(gpu(8 * NEEDED), uniform=False), {}, "direct"),
        (replace(gpu(8 * NEEDED), shard=Shard(0, 2)), {}, "direct"),
        (replace(gpu(8 * NEEDED), per_sample=True), {}, "direct"),
        (gpu(NEEDED + 500_000_000), {"strategy": "device"}, "device"),
        (gpu(NEEDED + 499_999_999), {"strategy": "device"}, "197 MB"),
    ],
)
def test_where_a_split_is_read_from(facts: LoaderFacts, asked: dict[str, Any], strategy: str) -> None:
    """If it does not fit, it is refused, saying what it needs."""
    if " " in strategy:
        with pytest.raises(NotEnoughSpaceError, match=strategy):
            choose(facts, **asked)
        return
    assert choose(facts, **asked).strategy == strategy


@pytest.mark.parametrize("name", ["strategy", "shuffle", "num_workers", "prefetch_factor"])
def test_an_array_is_no_choice(name: str) -> None:
    """Compared with a word, it is neither equal nor another; tests/contract/messages.txt has what else cannot work."""
    with pytest.raises(OptionError, match=name):
        choose(FACTS, 64, **{name: np.array([1, 2])})


@pytest.mark.parametrize("shuffle", ["auto", True, False])
def test_ranks_decide_alike_whatever_each_has(shuffle: Any) -> None:
    """Free memory, a file in the memory of one machine only, a GPU with room: none of it affects the order that the
    ranks divide."""
    machines: list[dict[str, Any]] = [
        {},
        {"free_memory_bytes": 0},
        {"engine": Choice("mapped", "a test")},
        {"device": "cuda", "device_free_bytes": 10**12},
        {"encoded": True, "crop_bytes": 50_000},
    ]
    cold = replace(FACTS, engine=READ, rows=1_000_000)
    facts = [replace(cold, shard=Shard(rank, 5), **own) for rank, own in enumerate(machines)]
    assert len({choose(one, shuffle=shuffle).order for one in facts}) == 1


@pytest.mark.parametrize(
    ("facts", "asked", "most_bytes"),
    [
        (FILES, {}, 1_000_000_000),
        (replace(FILES, rows=4000, shard=Shard(0, 2)), {}, 500_000_000),
        (replace(FILES, rows=100_000), {}, 0),
        (replace(FILES, rows=100_000, epoch_rows=100), {}, 1_000_000_000),
        (replace(FILES, rows=100_000), {"memory_budget": 3_000_000_000}, 3_000_000_000),
        (FILES, {"memory_budget": 0}, 0),
        (replace(FILES, free_memory_bytes=64_000_000_000, rows=9000), {}, 8_000_000_000),
        (replace(FACTS, decodes_targets=True, target_bytes=40_000), {}, 1_000_000_000),
    ],
)
def test_decoded_images_are_kept_within_a_budget(facts: LoaderFacts, asked: dict[str, Any], most_bytes: int) -> None:
    """An eighth of the free memory, shared among ranks; none if it would hold too few."""
    plan = choose(facts, **asked)
    assert plan.keep is not None
    assert plan.keep.value == most_bytes


@pytest.mark.parametrize(
    ("facts", "asked", "prefetch", "together"),
    [
        (FACTS, {}, 2, 1),
        # If several batches do not fit, they are prepared one at a time.
        (replace(FACTS, free_memory_bytes=100_000_000), {}, 1, 1),
        # Small batches are gathered many at a time.
        (DIGITS, {}, 256, 128),
        (DIGITS, {"prefetch_factor": 2}, 2, 1),
        (DIGITS, {"prefetch_factor": 64}, 64, 32),
        # Rows that are decoded, transformed, of different lengths or still arriving cannot be gathered together.
        *(
            (replace(DIGITS, **other), {"prefetch_factor": asked}, asked or 2, 1)
            for other in (
                {"encoded": True},
                {"per_sample": True},
                {"uniform": False},
                {"layout": UnitLayout(lambda _: np.arange(0), 4, "a test"), "complete": False},
            )
            for asked in (None, 64)
        ),
    ],
)
def test_batches_are_prepared_ahead(facts: LoaderFacts, asked: dict[str, Any], prefetch: int, together: int) -> None:
    plan = choose(facts, shuffle=False, **{name: value for name, value in asked.items() if value is not None})
    assert (plan.prefetch.value, plan.together) == (prefetch, together)


def test_every_choice_is_shown_with_its_reason() -> None:
    """In the text and in the notebook's HTML."""
    plan = choose(replace(FACTS, engine=Choice("mapped", "copies & waits")), shuffle=False)
    for part in (plan.strategy, plan.reason, plan.workers.reason, plan.prefetch.reason, plan.order.reason):
        assert part in str(plan)
    assert "copies & waits" in str(plan)
    assert "copies &amp; waits" in plan._repr_html_()

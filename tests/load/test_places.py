"""Places in training: whatever is interrupted, resumed, set or failed, the batches are those of an independent
model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import Sampler, SubsetRandomSampler, WeightedRandomSampler

from colabstage import dataset_h5, make_loader
from colabstage.errors import OptionError

ROWS = 29


@pytest.fixture(scope="module")
def numbered(make_numbered: Callable[[int], Path]) -> Path:
    return make_numbered(ROWS)


@dataclass(frozen=True)
class Arguments:
    """The arguments of loaders."""

    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    subset: tuple[int, ...] | None
    rank: int
    world_size: int

    def batches(self, epoch: int) -> list[list[int]]:
        """Return an epoch's batches, derived from the documentation alone."""
        rows = list(range(ROWS)) if self.subset is None else list(self.subset)
        if self.shuffle:
            rng = np.random.PCG64(np.random.SeedSequence((self.seed, epoch))).random_raw(len(rows)).tolist()
            bits = max(1, (len(rows) - 1).bit_length())
            rows = [rows[place] for place in sorted(range(len(rows)), key=lambda place: (rng[place] >> bits, place))]
        own, size = rows[self.rank :: self.world_size], self.batch_size
        if self.drop_last:
            return [own[start : start + size] for start in range(0, len(rows) // (size * self.world_size) * size, size)]
        cut = [own[start : start + size] for start in range(0, len(own), size)]
        first = rows[0 :: self.world_size]
        if len(cut) < -(-len(first) // size) and len(own) > 1 and size > 1:
            cut[-1:] = [cut[-1][:-1], cut[-1][-1:]]
        return cut

    def make(self, path: Path, transform: Any) -> Any:
        return make_loader(
            dataset_h5(path, return_index=True),
            self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            drop_last=self.drop_last,
            sampler=self.subset,
            rank=self.rank,
            world_size=self.world_size,
            batch_transform=transform,
        )


@dataclass
class Picky:
    """A transform that fails on command, and records its place."""

    fails: bool = False
    wrong: list[Any] = field(default_factory=list)

    def apply_at(self, x: Any, y: Any, place: Any) -> Any:
        if place.rows.tolist() != y.tolist():
            self.wrong.append((place.rows, y))
        if self.fails:
            self.fails = False
            msg = "as told"
            raise ValueError(msg)
        return x, y


ARGUMENTS = st.builds(
    Arguments,
    batch_size=st.integers(1, 8),
    shuffle=st.booleans(),
    seed=st.integers(0, 3),
    drop_last=st.just(value=False),
    subset=st.none() | st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=20).map(tuple),
    rank=st.just(0),
    world_size=st.just(1),
)
STEPS = st.lists(
    st.tuples(st.just("loop"), st.integers(0, 12), st.integers(0, 12))
    | st.tuples(st.just("resume"))
    | st.tuples(st.just("epoch"), st.integers(0, 3))
    | st.tuples(st.just("sampler"), st.integers(0, 3)),
    max_size=8,
)


# Half of the profile's examples, since each has several loops.
HALF = settings(max_examples=settings().max_examples // 2)

# If it is left at its last batch, an epoch resumes with an empty loop.
AT_THE_LAST_BATCH = [("loop", 8, 12), ("resume",), ("loop", 1, 12), ("sampler", 1), ("loop", 3, 12)]


@example(arguments=Arguments(4, True, 0, False, None, 0, 1), steps=AT_THE_LAST_BATCH)
@given(arguments=ARGUMENTS, steps=STEPS)
@HALF
def test_places_are_those_of_a_model(numbered: Path, arguments: Arguments, steps: list[Any]) -> None:
    """Loops that are left, that continue after a failed batch, or are resumed elsewhere; epochs that are set, through
    the loader or its sampler."""
    picky = Picky()
    loader = arguments.make(numbered, picky)
    # Epoch and finished batches, for the next loop and for the state.
    coming, place = (0, 0), (0, 0)
    for step in steps:
        match step:
            case ("loop", count, failing):
                expected = arguments.batches(coming[0])[coming[1] :]
                batches, taken = iter(loader), 0
                ended = False
                while taken < count and not ended:
                    picky.fails = taken == failing and taken < len(expected)
                    failed = picky.fails
                    try:
                        _, index = next(batches)
                        assert index.tolist() == expected[taken]
                        taken += 1
                    except ValueError:
                        assert failed
                        taken += 1
                    except StopIteration:
                        assert taken == len(expected)
                        ended = True
                place = (coming[0] + 1, 0) if ended else (coming[0], coming[1] + taken)
                coming = (coming[0] + 1, 0)
            case ("resume",):
                state = loader.state_dict()
                loader.close()
                loader = arguments.make(numbered, picky)
                loader.load_state_dict(state)
                coming = place
            case ("epoch", epoch):
                loader.set_epoch(epoch)
                coming = coming if coming[0] == epoch else (epoch, 0)
                place = coming
            case ("sampler", epoch):
                loader.sampler.set_epoch(epoch)
                done = coming[1] if coming[0] == epoch else 0
                assert [index.tolist() for _, index in loader] == arguments.batches(epoch)[done:]
                coming = (epoch + 1, 0)
                place = coming
        assert {"epoch": place[0], "batches_done": place[1]}.items() <= loader.state_dict().items()
    loader.close()
    assert not picky.wrong


@given(arguments=ARGUMENTS, drop_last=st.booleans(), world_size=st.integers(1, 4), epoch=st.integers(0, 2))
@HALF
@pytest.mark.filterwarnings("ignore:This rank has:UserWarning")
def test_ranks_visit_what_the_model_says(
    numbered: Path, arguments: Arguments, drop_last: bool, world_size: int, epoch: int
) -> None:
    """Each sample once, on the rank and in the batch that the documentation says."""
    seen: list[int] = []
    for rank in range(world_size):
        mine = Arguments(
            arguments.batch_size, arguments.shuffle, arguments.seed, drop_last, arguments.subset, rank, world_size
        )
        expected = mine.batches(epoch)
        if drop_last and not expected:
            with pytest.raises(OptionError, match="no batch"):
                mine.make(numbered, None)
            return
        loader = mine.make(numbered, None)
        loader.set_epoch(epoch)
        batches = [index.tolist() for _, index in loader]
        assert batches == expected
        assert len(loader) == len(expected)
        seen += [row for batch in batches for row in batch]
    if not drop_last:
        assert sorted(seen) == sorted(range(ROWS) if arguments.subset is None else arguments.subset)


def other_weights() -> Any:
    # With no row in common, because otherwise the same random numbers may draw the same rows.
    return WeightedRandomSampler([row % 2 for row in range(ROWS)], 10)


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        (range(10), range(10, 20)),
        (range(10), list(reversed(range(10)))),
        (SubsetRandomSampler([1, 2, 3]), SubsetRandomSampler([1, 2, 4])),
        (WeightedRandomSampler([1 - row % 2 for row in range(ROWS)], 10), other_weights()),
    ],
    ids=["rows", "their order", "a sampler's rows", "a sampler's weights"],
)
def test_a_state_of_other_rows_of_the_same_number_is_refused(numbered: Path, saved: Any, resumed: Any) -> None:
    """A place among other samples means nothing; among the same ones it does."""
    shuffle = None if isinstance(saved, Sampler) else True
    loader = make_loader(dataset_h5(numbered), 4, sampler=saved, shuffle=shuffle)
    next(iter(loader))
    with pytest.raises(OptionError, match=r"(rows|order)="):
        make_loader(dataset_h5(numbered), 4, sampler=resumed, shuffle=shuffle).load_state_dict(loader.state_dict())
    same = make_loader(dataset_h5(numbered), 4, sampler=saved, shuffle=shuffle)
    same.load_state_dict(loader.state_dict())
    assert len(list(same)) == len(loader) - 1


def test_a_loader_is_rebuilt_from_its_public_attributes(numbered: Path) -> None:
    """As Ignite does, with its own batch sampler."""
    loader = make_loader(dataset_h5(numbered), 4)
    replaced = ("batch_size", "sampler", "drop_last", "batch_sampler", "dataset_kind")
    parts = {name: value for name, value in vars(loader).items() if name[0] != "_" and name not in replaced}
    rebuilt = type(loader)(**parts, batch_sampler=[[3, 1], [2]])
    assert [y.tolist() for _, y in rebuilt] == [[3, 1], [2]]

"""Random epochs over random HDF5 files: every framework, ranks and resumes, beside h5py and a model of the order.

The files are those of `foreign` that hold numbers. A model of what the documentation says of orders and ranks gives the
rows of each batch, and h5py gives their values.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage import dataset_h5, make_loader, to_keras, to_numpy, to_tf_data
from colabstage.errors import ColabstageError
from tests.h5.foreign import ForeignFiles, is_plain, truth_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Truth = dict[str, Any]

FRAMEWORKS = {"torch": "torch", "numpy": "numpy", "keras": "keras", "tf.data": "tensorflow"}
# Of one file, so that most of the time goes into epochs.
_EPOCHS_A_FILE = 8


class EpochError(AssertionError):
    """Say that an epoch had other batches than it should have."""


@dataclass
class EpochsOutcome:
    """What became of some random epochs."""

    epochs: Counter[str] = field(default_factory=Counter)
    """How many there were, by framework."""
    files: int = 0
    batches: int = 0
    ranks: int = 0
    """Epochs that several ranks divided."""
    resumes: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """How many were refused, by the class of the error, because the framework has no such numbers."""
    seconds: float = 0


@dataclass(frozen=True)
class _File:
    """A random file: the values that h5py reads of it, and what it is in words."""

    path: Path
    truth: Truth
    told: str


@dataclass(frozen=True)
class _Asked:
    """What an epoch is asked for."""

    samples: int
    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int
    epoch: int
    rows: tuple[int, ...] | None
    rank: int = 0
    world_size: int = 1

    def batches(self) -> list[list[int]]:
        """Return the rows of each batch, by what the documentation says."""
        rows = list(range(self.samples)) if self.rows is None else list(self.rows)
        if self.shuffle:
            drawn = np.random.PCG64(np.random.SeedSequence((self.seed, self.epoch))).random_raw(len(rows)).tolist()
            bits = max(1, (len(rows) - 1).bit_length())
            rows = [rows[place] for place in sorted(range(len(rows)), key=lambda place: (drawn[place] >> bits, place))]
        own, size = rows[self.rank :: self.world_size], self.batch_size
        if self.drop_last:
            full = len(rows) // (size * self.world_size) * size
            return [own[start : start + size] for start in range(0, full, size)]
        cut = [own[start : start + size] for start in range(0, len(own), size)]
        longest = -(-len(rows) // self.world_size)
        if len(cut) < -(-longest // size) and len(own) > 1 and size > 1:
            # As many batches as the others have.
            cut[-1:] = [cut[-1][:-1], cut[-1][-1:]]
        return cut


def check_epochs(count: int, seed: int, frameworks: Sequence[str] | None = None) -> EpochsOutcome:
    """Read random epochs.

    Args:
        count: how many.
        seed: of the choices.
        frameworks: those that are asked; by default all that are installed.

    Raises:
        EpochError: a batch was not as it should be; the message has the file and what was asked for.
    """
    chance, files, outcome, start = random.Random(seed), ForeignFiles(seed), EpochsOutcome(), time.monotonic()
    known = frameworks or [name for name, package in FRAMEWORKS.items() if find_spec(package) is not None]
    while outcome.epochs.total() < count:
        folder = Path(tempfile.mkdtemp(prefix="epochs-"))
        try:
            told = files.write(folder)
            truth = truth_of(folder / "main.h5")
            if is_plain(truth) and "is gone" not in told and len(truth["X_train"]):
                outcome.files += 1
                file = _File(folder / "main.h5", truth, told)
                for _ in range(min(_EPOCHS_A_FILE, count - outcome.epochs.total())):
                    _check_one(file, chance.choice(known), chance, outcome)
        finally:
            shutil.rmtree(folder)
    outcome.seconds = time.monotonic() - start
    return outcome


def _check_one(file: _File, framework: str, chance: random.Random, outcome: EpochsOutcome) -> None:
    path, truth, told = file.path, file.truth, file.told
    samples = len(truth["X_train"])
    chosen = tuple(chance.choices(range(samples), k=chance.randint(1, samples))) if chance.random() < 0.3 else None
    asked = _Asked(
        samples,
        batch_size=chance.randint(1, 9),
        shuffle=chance.random() < 0.7,
        drop_last=False,
        seed=chance.randrange(100),
        epoch=chance.randrange(4),
        rows=chosen,
    )
    asked = replace(asked, drop_last=chance.random() < 0.2 and len(chosen or range(samples)) >= asked.batch_size)
    ranks = chance.choice([1, 1, 2, 3]) if framework == "torch" and not asked.drop_last else 1
    outcome.epochs[framework] += 1
    outcome.ranks += ranks > 1
    for rank in range(ranks):
        mine = replace(asked, rank=rank, world_size=ranks)
        expected = mine.batches()
        cuts = sorted({0, *chance.choices(range(len(expected) + 1), k=chance.randrange(3)), len(expected)})
        cuts = cuts if framework == "torch" else [0, len(expected)]
        outcome.resumes += max(0, len(cuts) - 2)
        try:
            found = list(_by_torch(path, mine, cuts) if framework == "torch" else _by_arrays(path, mine, framework))
        except ColabstageError as error:
            if all(map(_is_common, truth.values())):
                msg = f"{framework}, {mine} of {told}: refused: {error}"
                raise EpochError(msg) from error
            outcome.refused[type(error).__name__] += 1
            return
        outcome.batches += len(found)
        if len(found) != len(expected) or not all(
            _equal(x, truth["X_train"], rows) and _equal(y, truth["Y_train"], rows)
            for (x, y), rows in zip(found, expected, strict=True)
        ):
            msg = f"{framework}, {mine} of {told}: other batches than h5py's values in the order of the model"
            raise EpochError(msg)


def _is_common(values: NDArray[Any] | None) -> bool:
    """Return whether every framework has numbers of this type."""
    return values is None or values.dtype.itemsize <= (16 if values.dtype.kind == "c" else 8)


def _by_torch(path: Path, asked: _Asked, cuts: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of an epoch, whose loader is made anew at each of the `cuts`."""
    state: dict[str, int] | None = None
    for start, stop in pairwise(cuts):
        loader = make_loader(
            dataset_h5(path),
            asked.batch_size,
            seed=asked.seed,
            shuffle=asked.shuffle,
            drop_last=asked.drop_last,
            sampler=asked.rows,
            rank=asked.rank,
            world_size=asked.world_size,
        )
        if state is None:
            loader.set_epoch(asked.epoch)
        else:
            loader.load_state_dict(state)
        batches = iter(loader)
        for _ in range(start, stop):
            x, y = next(batches)
            # Images have their channels before their axes here.
            is_image = x.dim() == 4 and x.shape[1] in (1, 3, 4) and x.stride(1) == 1
            yield (x.movedim(1, 3) if is_image else x).numpy(), y.numpy()
        state = loader.state_dict()
        if stop == cuts[-1] and next(batches, None) is not None:
            msg = f"{asked}: there are more batches than {stop}"
            raise EpochError(msg)
        loader.close()


def _by_arrays(path: Path, asked: _Asked, framework: str) -> Iterator[tuple[Any, Any]]:
    named: dict[str, Any] = {"seed": asked.seed, "shuffle": asked.shuffle, "drop_last": asked.drop_last}
    named["rows"] = asked.rows
    if framework == "tf.data":
        batches = to_tf_data(path, asked.batch_size, epoch=asked.epoch, **named)
        yield from ((x.numpy(), y.numpy()) for x, y in batches)
        return
    made: Any = (to_keras if framework == "keras" else to_numpy)(path, asked.batch_size, **named)
    made.set_epoch(asked.epoch)
    yield from made
    made.close()


def _equal(found: NDArray[Any], values: NDArray[Any] | None, rows: list[int]) -> bool:
    if values is None:
        return bool((found == -1).all())
    return bool(np.array_equal(found, values[rows]))

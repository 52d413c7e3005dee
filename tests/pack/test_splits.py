"""Dividing samples among splits, and the order of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import LayoutError, OptionError
from colabstage.options import Images, SampleTable, TreeFiles, Values
from colabstage.pack.plan import assign_splits, key_hashes, split_rows
from colabstage.trees.listing import FileEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.trees.listing import Tree

USUAL = (("train", 0.8), ("dev", 0.1), ("test", 0.1))


def sample_table(
    labels: Sequence[int], *, splits: tuple[str, ...] | None = None, groups: tuple[str, ...] | None = None
) -> SampleTable:
    """A table of files that are never read."""
    files = tuple(FileEntry(f"{label}/{row:05}.png", 10, 0, row) for row, label in enumerate(labels))
    classes = tuple(str(label) for label in range(max(labels, default=-1) + 1))
    keys = tuple(file.name for file in files)
    inputs, targets = Images(TreeFiles(cast("Tree", None), files)), Values(np.array(labels, dtype=np.int64))
    return SampleTable("image_folder", keys, inputs, targets, splits, groups, classes)


def keys_of(count: int) -> list[str]:
    """Names as folders have them."""
    return [f"folder/{number:05}.jpg" for number in range(count)]


@st.composite
def divisions(draw: st.DrawFn) -> tuple[NDArray[np.int64], tuple[tuple[str, float], ...]]:
    """Labels of up to 12 classes of 1 to 60 samples, and up to five fractions that add up to 1."""
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=12))
    labels = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
    parts = draw(st.lists(st.integers(1, 50), min_size=1, max_size=5))
    return labels, tuple((f"split{number}", part / sum(parts)) for number, part in enumerate(parts))


@given(division=divisions(), seed=st.integers(0, 2**31))
def test_every_class_has_every_fraction_within_one_sample(
    division: tuple[NDArray[np.int64], tuple[tuple[str, float], ...]], seed: int
) -> None:
    """Whatever the classes' sizes and the fractions, rounding moves a class's share by less than one sample."""
    labels, fractions = division
    assigned = assign_splits(keys_of(len(labels)), labels, fractions, seed=seed)
    assert assigned.min() >= 0
    assert assigned.max() < len(fractions)
    for label in np.unique(labels):
        counts = np.bincount(assigned[labels == label], minlength=len(fractions))
        exact = np.array([fraction for _, fraction in fractions]) * counts.sum()
        assert np.all(np.abs(counts - exact) < 1 + 1e-6)


def test_shares_that_are_whole_are_exact() -> None:
    """80, 10 and 10 percent of a hundred are 80, 10 and 10, in spite of floating-point edges."""
    labels = np.repeat(np.arange(7), 100).astype(np.int64)
    assigned = assign_splits(keys_of(700), labels, USUAL, seed=3)
    for label in range(7):
        assert np.bincount(assigned[labels == label]).tolist() == [80, 10, 10]


def test_the_seed_alone_decides() -> None:
    """The same seed divides alike whatever order the samples come in; another seed divides otherwise."""
    keys, labels = keys_of(400), np.arange(400, dtype=np.int64) % 4
    first = assign_splits(keys, labels, USUAL, seed=5)
    assert np.array_equal(first, assign_splits(keys, labels, USUAL, seed=5))
    turned = assign_splits(keys[::-1], labels[::-1], USUAL, seed=5)
    assert np.array_equal(first, turned[::-1])
    assert 0.2 < np.mean(first != assign_splits(keys, labels, USUAL, seed=6)) < 0.5


def test_the_division_is_the_same_everywhere() -> None:
    """Known values: a new version of any library, or of colabstage, may not move a sample from test to train."""
    assert key_hashes(["a/1.png"], seed=7, purpose="split").tolist() == [17271628866554650664]
    assigned = assign_splits(keys_of(12), np.arange(12, dtype=np.int64) % 2, (("train", 0.5), ("test", 0.5)), seed=1)
    assert "".join(map(str, assigned.tolist())) == "001000110111"


def test_new_samples_move_few_of_the_old_ones() -> None:
    """Adding one sample to each class moves at most one old sample of the class across each edge."""
    keys, labels = keys_of(1000), np.arange(1000, dtype=np.int64) % 5
    more_keys = [*keys, *(f"new/{number}.jpg" for number in range(5))]
    before = assign_splits(keys, labels, USUAL, seed=0)
    after = assign_splits(more_keys, np.append(labels, np.arange(5)), USUAL, seed=0)[:1000]
    assert np.count_nonzero(before != after) <= 5 * 2


def test_train_is_shuffled_and_others_keep_their_order() -> None:
    """Rows of train are a permutation that looks random; those of the other splits follow the source."""
    rows = split_rows(sample_table([0] * 200 + [1] * 200), USUAL, seed=0)
    assert list(rows) == ["train", "dev", "test"]
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(400))
    assert np.all(np.diff(rows["dev"]) > 0)
    assert np.all(np.diff(rows["test"]) > 0)
    train = rows["train"]
    assert 0.4 < np.mean(np.diff(train) > 0) < 0.6
    # Any stretch is a fair sample: the first quarter has about half of its rows from each class.
    assert 0.3 < np.mean(train[:80] < 200) < 0.7


def test_the_order_of_train_is_seeded_and_steady() -> None:
    """Another seed is another order; samples that are added do not shuffle the others anew."""
    first = split_rows(sample_table([0] * 100), None, seed=0)["train"]
    assert np.array_equal(first, split_rows(sample_table([0] * 100), None, seed=0)["train"])
    assert not np.array_equal(first, split_rows(sample_table([0] * 100), None, seed=1)["train"])
    longer = split_rows(sample_table([0] * 120), None, seed=0)["train"]
    assert np.array_equal(longer[longer < 100], first)


def test_splits_of_the_source_are_taken_as_they_are() -> None:
    """They keep their order of appearance, and fractions on top of them are refused by name."""
    table = sample_table([0, 1, 0, 1], splits=("train", "train", "val", "train"))
    rows = split_rows(table, None, seed=0)
    assert list(rows) == ["train", "val"]
    assert sorted(rows["train"].tolist()) == [0, 1, 3]
    assert rows["val"].tolist() == [2]
    with pytest.raises(OptionError, match=r"train, val"):
        split_rows(table, USUAL, seed=0)


def test_a_split_that_would_be_empty_is_refused() -> None:
    """Three samples cannot give one percent; the message names split and fraction."""
    with pytest.raises(OptionError, match=r"'test' the fraction 0\.01"):
        split_rows(sample_table([0, 0, 0]), (("train", 0.99), ("test", 0.01)), seed=0)


def test_nothing_cannot_be_split() -> None:
    """A table without samples is a typed error, not an empty file."""
    with pytest.raises(LayoutError, match="no samples"):
        split_rows(sample_table([]), None, seed=0)


def test_no_group_is_in_two_splits() -> None:
    """Of 40 patients of 1 to 9 images each one is in one split, and the fractions hold about."""
    groups = tuple(f"p{patient}" for patient in range(40) for _ in range(patient % 9 + 1))
    table = sample_table([0] * len(groups), groups=groups)
    rows = split_rows(table, USUAL, seed=0)
    owners = [{groups[i] for i in samples.tolist()} for samples in rows.values()]
    assert sum(map(len, owners)) == 40
    shares = [len(samples) / len(groups) for samples in rows.values()]
    assert np.abs(np.array(shares) - [0.8, 0.1, 0.1]).max() < 0.05


def test_groups_may_come_from_the_names() -> None:
    """A regular expression says what belongs together; one that finds nothing is refused with the name."""
    table = sample_table([number // 4 for number in range(80)])
    rows = split_rows(table, (("train", 0.5), ("test", 0.5)), seed=0, group_by=r"^(\d+)/")
    owners = [{table.keys[i].split("/")[0] for i in samples.tolist()} for samples in rows.values()]
    assert not owners[0] & owners[1]
    with pytest.raises(OptionError, match=r"'0/00000\.png'"):
        split_rows(table, USUAL, seed=0, group_by="patient")


@st.composite
def tables_of_rows(draw: st.DrawFn) -> tuple[SampleTable, list[int]]:
    """Up to 30 files with one to three rows each, any whole numbers as labels; and the file of each row."""
    owners = [file for file in range(draw(st.integers(8, 30))) for _ in range(draw(st.integers(1, 3)))]
    labels = draw(st.lists(st.sampled_from([-5, 3, 1000, 2**40]), min_size=len(owners), max_size=len(owners)))
    files = [FileEntry(f"{owner:02}.png", 10, 0, owner) for owner in owners]
    inputs, targets = Images(TreeFiles(cast("Tree", None), files)), Values(np.array(labels, dtype=np.int64))
    keys = tuple(f"{file.name}#{row}" for row, file in enumerate(files))
    return SampleTable("table", keys, inputs, targets), owners


@given(made=tables_of_rows(), seed=st.integers(0, 99))
def test_no_file_is_in_two_splits(made: tuple[SampleTable, list[int]], seed: int) -> None:
    """However many rows a table has for it."""
    table, owners = made
    rows = split_rows(table, (("train", 0.6), ("test", 0.4)), seed=seed)
    parts = [{owners[row] for row in samples.tolist()} for samples in rows.values()]
    assert not parts[0] & parts[1]
    assert sum(map(len, rows.values())) == len(owners)


def test_a_file_in_two_splits_or_groups_of_the_source_is_refused() -> None:
    """The source contradicts itself, and the file is named."""
    files = [FileEntry(f"{name}.png", 10, 0, 0) for name in "aab"]
    inputs = Images(TreeFiles(cast("Tree", None), files))
    table = SampleTable("table", ("a", "a#2", "b"), inputs, None, splits=("train", "test", "test"))
    with pytest.raises(LayoutError, match=r"'a\.png'.*'train'.*'test'"):
        split_rows(table, None, seed=0)
    table = SampleTable("table", ("a", "a#2", "b"), inputs, None, groups=("p1", "p2", "p2"))
    with pytest.raises(LayoutError, match=r"'a\.png'.*'p1'.*'p2'"):
        split_rows(table, (("train", 0.5), ("test", 0.5)), seed=0)


@pytest.mark.parametrize("names", [(1, 2, 3), (100, 1000, 10_000), (-1, 0, 7)])
def test_whole_numbers_are_classes_whatever_they_count_from(names: tuple[int, ...]) -> None:
    """Labels from 1, ids with gaps: every class has every fraction, as those that count from 0."""
    labels = np.repeat(names, 50)
    plain = sample_table(np.repeat(np.arange(3), 50).tolist())
    table = SampleTable("table", plain.keys, plain.inputs, Values(labels))
    for samples, fraction in zip(split_rows(table, USUAL, seed=0).values(), (0.8, 0.1, 0.1), strict=True):
        assert [np.count_nonzero(labels[samples] == name) for name in names] == [round(50 * fraction)] * 3

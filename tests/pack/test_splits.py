"""Dividing samples among splits, and the order of their rows."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import pack_dataset
from colabstage.errors import LayoutError, OptionError
from colabstage.options import Images, SampleTable, TreeFiles, Values
from tests.support.images import image, make_tree

Pack = Callable[..., dict[str, list[str]]]

USUAL = {"train": 0.8, "dev": 0.1, "test": 0.1}


def names_of(labels: Sequence[int]) -> list[str]:
    """Names as in folders, in the order of the labels."""
    return [f"{label}/{row:05}.png" for row, label in enumerate(labels)]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """Pack samples by their keys; return those of each split, in row order."""

    def packed(
        keys: Sequence[str],
        labels: Sequence[int] | None = None,
        *,
        files: Sequence[str] | None = None,
        of_source: dict[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, list[str]]:
        names = [f"{row:05}.png" for row in range(len(keys))] if files is None else files
        folder = tmp_path / "files"
        folder.mkdir(exist_ok=True)
        for name in {"any.png", *names}:
            (folder / name).write_bytes(image(1))

        def layout(tree: Any) -> SampleTable:
            entries = {entry.name: entry for entry in tree.entries}
            targets = None if labels is None else Values(np.array(labels, dtype=np.int64))
            inputs = Images(TreeFiles(tree, [entries[name] for name in names]))
            return SampleTable("mine", tuple(keys), inputs, targets, **(of_source or {}))

        target = tmp_path / "out.h5"
        report = pack_dataset(folder, target, layout=layout, overwrite=True, progress=False, **options)
        with h5py.File(target) as file:
            return {split: file[f"key_{split}"].asstr()[()].tolist() for split in report.samples}

    return packed


@pytest.mark.parametrize("seed", range(3))
def test_every_class_has_every_fraction_within_one_sample(pack: Pack, seed: int) -> None:
    """For any class sizes and fractions, rounding changes a class's share by less than one sample."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 60, rng.integers(2, 12))
    parts = rng.integers(10, 50, rng.integers(1, 6))
    fractions = {f"split{number}": float(part / parts.sum()) for number, part in enumerate(parts)}
    keys = names_of(np.repeat(np.arange(len(sizes)), sizes).tolist())
    found = pack(keys, [int(key.split("/")[0]) for key in keys], splits=fractions, seed=seed * 1000)
    assert sorted(key for rows in found.values() for key in rows) == sorted(keys)
    for label, size in enumerate(sizes):
        counts = np.array([sum(key.startswith(f"{label}/") for key in found[name]) for name in fractions])
        assert np.all(np.abs(counts - np.array([*fractions.values()]) * size) < 1 + 1e-6)


@pytest.mark.parametrize("labels", [(0, 1, 2), (-1, 7, 10_000)])
def test_shares_that_are_whole_are_exact(pack: Pack, labels: tuple[int, ...]) -> None:
    """80, 10 and 10 percent of a hundred are 80, 10 and 10, despite floating-point edges; integer labels are classes,
    whatever the lowest is."""
    each = np.repeat(labels, 100).tolist()
    found = pack(names_of(each), each, splits=USUAL, seed=3)
    for label in labels:
        assert [sum(key.startswith(f"{label}/") for key in found[name]) for name in USUAL] == [80, 10, 10]


def places(found: dict[str, list[str]]) -> dict[str, str]:
    return {key: split for split, rows in found.items() for key in rows}


def test_the_seed_alone_decides(pack: Pack) -> None:
    """The same seed divides identically, whatever the samples' order; another seed divides differently."""
    labels = [row % 4 for row in range(400)]
    keys = names_of(labels)
    first = places(pack(keys, labels, splits=USUAL, seed=5))
    assert places(pack(keys[::-1], labels[::-1], splits=USUAL, seed=5)) == first
    other = places(pack(keys, labels, splits=USUAL, seed=6))
    assert 0.2 < np.mean([first[key] != other[key] for key in keys]) < 0.5


def test_the_division_is_the_same_everywhere(pack: Pack) -> None:
    """Known values: no new version of any library, or of colabstage, may move a sample from test to train."""
    keys = [f"folder/{number:05}.jpg" for number in range(12)]
    found = pack(keys, [row % 2 for row in range(12)], splits={"train": 0.5, "test": 0.5}, seed=1)
    of = places(found)
    assert "".join(str(int(of[key] == "test")) for key in keys) == "001000110111"
    assert [int(key[-9:-4]) for key in found["train"]] == [1, 8, 0, 5, 4, 3]


def test_new_samples_move_few_of_the_old_ones(pack: Pack) -> None:
    """Adding one sample to each class moves at most one old sample of the class across each edge."""
    labels = [row % 5 for row in range(500)]
    keys, more = names_of(labels), [f"new/{number}.jpg" for number in range(5)]
    before = places(pack(keys, labels, splits=USUAL))
    after = places(pack([*keys, *more], [*labels, *range(5)], splits=USUAL))
    assert sum(before[key] != after[key] for key in keys) <= 5 * 2


def test_train_is_shuffled_and_others_keep_their_order(pack: Pack) -> None:
    """Rows of train are a random-looking permutation; those of the other splits follow the source."""
    keys = names_of([0] * 200 + [1] * 200)
    found = pack(keys, [0] * 200 + [1] * 200, splits=USUAL)
    assert list(found) == ["train", "dev", "test"]
    rows = {split: np.array([keys.index(key) for key in found[split]]) for split in USUAL}
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(400))
    assert np.all(np.diff(rows["dev"]) > 0)
    assert np.all(np.diff(rows["test"]) > 0)
    train = rows["train"]
    assert 0.4 < np.mean(np.diff(train) > 0) < 0.6
    # Any stretch is a fair sample: the first quarter has about half of its rows from each class.
    assert 0.3 < np.mean(train[:80] < 200) < 0.7


def test_the_order_of_train_is_seeded_and_steady(pack: Pack) -> None:
    """Another seed gives another order; added samples do not reshuffle the others."""
    keys = names_of([0] * 120)
    first = pack(keys[:100])["train"]
    assert pack(keys[:100])["train"] == first
    assert pack(keys[:100], seed=1)["train"] != first
    assert [key for key in pack(keys)["train"] if key in keys[:100]] == first


def test_the_order_of_samples_without_labels_is_noted_until_it_is_chosen(tmp_path: Path) -> None:
    """The line in the note ends it."""
    make_tree(tmp_path / "photos", {f"{row}.png": row for row in range(9)})
    for splits, is_noted in ((None, True), ({"test": 1.0}, False)):
        report = pack_dataset(tmp_path / "photos", tmp_path / f"{splits}.h5", splits=splits, progress=False)
        assert any("splits={'test': 1.0}" in note for note in report.notes) == is_noted


def test_splits_of_the_source_are_taken_as_they_are(pack: Pack) -> None:
    """Fractions that would divide others than its `train` are refused; the line in the refusal works."""
    keys, of_source = names_of([0, 1, 0, 1]), {"splits": ("train", "train", "val", "train")}
    found = pack(keys, of_source=of_source)
    assert sorted(found["train"]) == sorted([keys[0], keys[1], keys[3]])
    assert (list(found), found["val"]) == (["train", "val"], [keys[2]])
    for fractions in (USUAL, {"train": 0.8, "val": 0.2}, {"test": 1.0}):
        with pytest.raises(OptionError, match=r"splits \(train, val\).*splits={'train': 0.9, 'test': 0.1}"):
            pack(keys, of_source=of_source, splits=fractions)
    with pytest.raises(OptionError, match=r"leave splits= out to use them\.$"):
        pack(keys, of_source={"splits": ("a", "b", "b", "b")}, splits={"train": 0.5, "test": 0.5})


@pytest.mark.parametrize("of_source", [{}, {"groups": tuple("abcdefghij" * 10)}])
def test_fractions_divide_train_of_the_source(pack: Pack, of_source: dict[str, Any]) -> None:
    """What it holds out stays as it is; its train is divided as it would be alone."""
    keys, labels = names_of([0] * 60 + [1] * 40), [0] * 60 + [1] * 40
    held_out = [row % 3 == 0 for row in range(100)]
    splits = {"splits": tuple("test" if held else "train" for held in held_out)}
    found = pack(keys, labels, of_source=splits | of_source, splits={"train": 0.7, "val": 0.3}, seed=2)
    assert found["test"] == [key for key, held in zip(keys, held_out, strict=True) if held]
    train = [row for row in range(100) if not held_out[row]]
    alone = {name: tuple(values[row] for row in train) for name, values in of_source.items()}
    mine = [labels[row] for row in train]
    again = pack([keys[row] for row in train], mine, of_source=alone, splits={"train": 0.7, "val": 0.3}, seed=2)
    assert {name: found[name] for name in again} == again


def test_a_split_that_would_be_empty_is_refused(pack: Pack) -> None:
    """Three samples cannot provide one percent; the message names split and fraction."""
    with pytest.raises(OptionError, match=r"'test' the fraction 0\.01"):
        pack(names_of([0, 0, 0]), splits={"train": 0.99, "test": 0.01})


def test_nothing_cannot_be_split(pack: Pack) -> None:
    """A table without samples is a typed error, not an empty file."""
    with pytest.raises(LayoutError, match="no samples"):
        pack([])


def test_groups_may_come_from_the_names(pack: Pack) -> None:
    """A regular expression says what belongs together; a name that it does not match is refused."""
    keys = names_of([number // 4 for number in range(80)])
    found = pack(keys, splits={"train": 0.5, "test": 0.5}, group_by=r"^(\d+)/")
    owners = [{key.split("/")[0] for key in rows} for rows in found.values()]
    assert not owners[0] & owners[1]
    with pytest.raises(OptionError, match=r"'0/00000\.png'"):
        pack(keys, splits=USUAL, group_by="patient")
    with pytest.raises(OptionError, match="80 samples comes to none"):
        pack(keys, splits=USUAL, group_by=r"\.png")


@pytest.mark.parametrize("seed", range(2))
def test_no_file_is_in_two_splits(pack: Pack, seed: int) -> None:
    """However many rows a table has for it, and whatever integers are its labels."""
    rng = np.random.default_rng(seed)
    owners = [file for file in range(rng.integers(8, 30)) for _ in range(rng.integers(1, 4))]
    keys = [f"{owner:02}.png#{row}" for row, owner in enumerate(owners)]
    labels = rng.choice([-5, 3, 1000, 2**40], len(owners)).tolist()
    files = [f"{owner:02}.png" for owner in owners]
    found = pack(keys, labels, files=files, splits={"train": 0.6, "test": 0.4}, seed=seed)
    parts = [{key.partition("#")[0] for key in rows} for rows in found.values()]
    assert not parts[0] & parts[1]
    assert sum(map(len, found.values())) == len(owners)


def test_a_file_in_two_splits_or_groups_of_the_source_is_refused(pack: Pack) -> None:
    """The source contradicts itself, and the file is named."""
    keys, files = ("a", "a#2", "b"), ["a.png", "a.png", "b.png"]
    with pytest.raises(LayoutError, match=r"'a\.png'.*'train'.*'test'"):
        pack(keys, files=files, of_source={"splits": ("train", "test", "test")})
    with pytest.raises(LayoutError, match=r"'a\.png'.*'p1'.*'p2'"):
        pack(keys, files=files, of_source={"groups": ("p1", "p2", "p2")}, splits={"train": 0.5, "test": 0.5})


@pytest.mark.parametrize(
    ("names", "copies"),
    [
        ("{}.png {}_aug_0.png {}_aug_1.png", 3),
        ("{}.png {}_flipLR.png {}_rot90.png rotated_{}.png", 4),
        ("{}_jpg.rf.0a1b2c3d4e5f60718293a4b5c6d7e8f9.png {}_jpg.rf.ffffffffffffffff0000000000000000.png", 2),
        ("{}_frame_001.png {}_frame_002.png {}_frame_003.png", 3),
        # Not copies of each other: another side, a class, a number that a file manager wrote.
        ("{}_left.png {}_right.png", 0),
        ("{}-2020 (1).png {}-2020 (2).png", 0),
    ],
)
def test_copies_that_augmentation_made_stay_together(tmp_path: Path, names: str, copies: int) -> None:
    """Training on a flipped copy of a test image would make any model look good."""
    for number in range(20):
        for name in re.findall(r"\S.*?\.png", names.replace("{}", f"img{number}")):
            path = tmp_path / "in" / "ab"[number % 2] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image(number))
    report = pack_dataset(tmp_path / "in", tmp_path / "out.h5", splits={"train": 0.5, "test": 0.5}, progress=False)
    with h5py.File(tmp_path / "out.h5") as file:
        in_test = [name.split("/")[1] for name in file["key_test"].asstr()[()]]
    number_of = re.compile(r"img(\d+)")
    counts = Counter(match[1] for name in in_test if (match := number_of.search(name)))
    assert ({*counts.values()} == {copies}) == bool(copies)
    assert ("same split" in str(report)) == bool(copies)
    assert len(in_test) == names.count(".png") * 10
    assert f", test {len(in_test)})" in str(report)


def test_an_original_beside_many_of_a_kind_is_none(pack: Pack) -> None:
    """In a name without a number of its own, such words are the kind of thing that there are many of."""
    kinds = [(kind, fruit) for kind in ("rot", "fresh") for fruit in ("apple", "fig", "kiwi")]
    files = [f"{fruit}_{kind}_{number}.png" for kind, fruit in kinds for number in range(20)]
    found = pack(files, [0] * 60 + [1] * 60, files=files, splits=USUAL)
    assert [sum("_rot_" in name for name in found[split]) for split in USUAL] == [48, 6, 6]


def test_persons_in_names_stay_in_one_split(pack: Pack) -> None:
    """As in Chest X-Ray Pneumonia, where only the sick have numbers; each class keeps its share of persons."""
    sick = [f"person{row // 3}_{'virus' if row % 2 else 'bacteria'}_{row}.png" for row in range(90)]
    files = [*sick, *(f"IM-{row:04}-0001.png" for row in range(30))]
    found = pack(files, [0] * 90 + [1] * 30, files=files, splits={"train": 0.8, "test": 0.2})
    owners = {split: {name.partition("_")[0] for name in names if "person" in name} for split, names in found.items()}
    assert not owners["train"] & owners["test"]
    assert [len(owners[split]) for split in found] == [24, 6]
    assert [sum("IM" in name for name in names) for names in found.values()] == [24, 6]


def test_persons_with_a_rare_class_are_divided_as_its_samples(pack: Pack) -> None:
    """Of a hundred persons ten have another class too; one has most of a third class, and yet keeps the others
    together."""
    files = [f"person{row // 10}_{row}.png" for row in range(1000)] + [f"person{row}0_sick.png" for row in range(10)]
    files += ["person7_odd1.png", "person7_odd2.png", "person8_odd3.png"]
    found = pack(files, [0] * 1000 + [1] * 10 + [2] * 3, files=files, splits=USUAL)
    assert [sum("sick" in name for name in found[split]) for split in USUAL] == [8, 1, 1]
    assert sum(any(name.startswith("person7_7") for name in names) for names in found.values()) == 1


@pytest.mark.parametrize("name", ["subject{:02}.{}.png", "video{}_frame_{}.png"])
def test_persons_and_videos_that_are_a_class_are_divided(pack: Pack, name: str) -> None:
    """Faces of each person are in both splits, because the persons are to be told apart; so are frames of a single
    video of a class."""
    files = [name.format(row // 10, row % 10) for row in range(50)]
    found = pack(files, [row // 10 for row in range(50)], files=files, splits={"train": 0.8, "test": 0.2})
    assert {len(names) for names in found.values()} == {40, 10}
    assert {name[:9] for name in found["test"]} == {name[:9] for name in files}


@pytest.mark.parametrize(("field", "value"), [("location", "B{:02}"), ("seq_id", "s{}"), ("location", "{}")])
@pytest.mark.parametrize("form", ["coco", "table"])
def test_pictures_of_one_place_stay_in_one_split(tmp_path: Path, form: str, field: str, value: str) -> None:
    """As of a camera trap: its background tells which animals come there."""
    rows: list[dict[str, Any]] = [{"file_name": f"{n:02}.png", "id": n, field: value.format(n // 5)} for n in range(60)]
    source = tmp_path / "in"
    source.mkdir()
    for one in rows:
        (source / one["file_name"]).write_bytes(image(one["id"]))
    labels = [{"image_id": n, "category_id": n % 2} for n in range(60)]
    kinds = [{"id": n, "name": name} for n, name in enumerate(("deer", "fox"))]
    table = "".join(f"{one['file_name']},{one[field]},{'ab'[one['id'] % 2]}\n" for one in rows)
    files = {"coco.json": json.dumps({"images": rows, "annotations": labels, "categories": kinds})}
    files = files if form == "coco" else {"labels.csv": f"file,{field},species\n{table}"}
    for name, content in files.items():
        (source / name).write_text(content)
    report = pack_dataset(source, tmp_path / "out.h5", splits={"train": 0.5, "test": 0.5}, progress=False)
    assert f"the same '{field}' stay in one split" in str(report)
    with h5py.File(report.path) as file:
        places = Counter(int(key[:2]) // 5 for key in file["key_test"].asstr()[()])
    assert {*places.values()} == {5}


@pytest.mark.parametrize(("field", "cells"), [("session", ["1"]), ("patient", ["p1"]), ("site", ["1", "2"])])
def test_what_most_samples_share_divides_nothing(tmp_path: Path, field: str, cells: Sequence[str]) -> None:
    rows = [f"{n}.png,{cells[n % len(cells)]},{'ab'[n % 4 // 2]}\n" for n in range(40)]
    (source := tmp_path / "in").mkdir()
    for n in range(40):
        (source / f"{n}.png").write_bytes(image(n))
    (source / "labels.csv").write_text(f"file,{field},label\n{''.join(rows)}")
    report = pack_dataset(source, tmp_path / "out.h5", splits={"train": 0.8, "test": 0.2}, progress=False)
    with h5py.File(report.path) as file:
        assert len(file["key_test"]) == 8


def test_too_few_persons_for_the_splits_are_told(pack: Pack) -> None:
    """Three patients are not enough for these; the advice divides their slices all the same."""
    files = [f"patient{row % 3}_slice{row}.png" for row in range(60)]
    places = {"groups": [f"B{row % 3}" for row in range(60)]}
    for names, groups in ((files, {}), ([f"{row:02}.png" for row in range(60)], places)):
        with pytest.raises(OptionError, match=r"comes to none.*group_by=r'\.\+' divides them"):
            pack(names, files=names, of_source=groups, splits=USUAL)
    found = pack(files, files=files, splits=USUAL, group_by=".+")
    assert [len(names) for names in found.values()] == [48, 6, 6]

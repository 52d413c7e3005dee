"""Files that are read as one: which they are, in which order, and what they must have in common."""

import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import DamagedPackError, OptionError, PackFormatError, SourceNotFoundError, SplitNotFoundError
from tests.support.images import in_classes, make_tree, mask
from tests.support.packs import write_pack

pytestmark = pytest.mark.torch

# Some look like parts themselves, and some like patterns.
NAMES = st.sampled_from(["data.h5", "data", "a.b.h5", "set-append-00001.h5", "x[1]*.h5"])
NUMBERS = st.sets(st.integers(1, 30), max_size=4)


def shard_path(target: Path, number: int, count: int) -> Path:
    return target.with_name(f"{target.stem}-{number:05}-of-{count:05}{target.suffix}")


def appended_path(target: Path, number: int) -> Path:
    """The name of a file appended to this dataset."""
    return target.with_name(f"{target.stem}-append-{number:05}{target.suffix}")


def put(paths: Iterable[Path]) -> None:
    """Write files under these names, each with one row that holds its name, and a fake manifest beside it."""
    for path in paths:
        with h5py.File(path, "w") as file:
            file["X_train"] = [path.name]
        path.with_name(f"{path.name}.json").touch()


def names(files: Any) -> list[str]:
    """The names of the files that are read as one, in row order."""
    dataset = dataset_h5(files)
    return [str(dataset[row][0]) for row in range(len(dataset))]


@settings(max_examples=settings().max_examples // 3)
@given(name=NAMES, alone=st.booleans(), count=st.sampled_from([0, 1, 3, 12]), appended=NUMBERS)
def test_parts_come_in_the_order_of_their_rows(name: str, alone: bool, count: int, appended: set[int]) -> None:
    """The single file, then all shards, then appended files; folders and manifests are ignored."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / name
        shards = [shard_path(target, number, count) for number in range(count)]
        added = [appended_path(target, number) for number in sorted(appended)]
        put([*added[::-1], *shards[::-1], *[target] * alone])
        wanted = [target] * alone + shards + added
        if wanted:
            (Path(folder) / "zz-folder.h5").mkdir()
            assert names(Path(folder) / "*") == [path.name for path in wanted]
            assert names([str(path) for path in wanted[::-1]]) == [path.name for path in wanted[::-1]]
        for path in {*wanted[:1], *wanted[-2:]}:
            assert names(path) == [path.name]


def test_a_set_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """A missing shard would only show as fewer rows, and two sets as rows that come twice."""
    target = tmp_path / "data.h5"
    with pytest.raises(SourceNotFoundError, match="No file matches"):
        dataset_h5(tmp_path / "*.h5")
    put(shard_path(target, number, 7) for number in (0, 3))
    with pytest.raises(SourceNotFoundError, match=r"\b5\b.*data-00001.*data-00004"):
        dataset_h5(tmp_path / "*.h5")
    put(shard_path(target, number, 7) for number in range(1, 6))
    with pytest.raises(SourceNotFoundError, match=r"data-00006-of-00007\.h5"):
        dataset_h5(tmp_path / "*.h5")
    put([shard_path(target, 6, 7), shard_path(target, 0, 2), shard_path(target, 1, 2)])
    with pytest.raises(DamagedPackError, match="-of-00007"):
        dataset_h5(tmp_path / "*.h5")
    assert len(names(tmp_path / "data-?????-of-00007.h5")) == 7


def test_what_is_appended_is_numbered_after_the_last(tmp_path: Path) -> None:
    """Not into a gap, and not after a file of another dataset."""
    photos, target = make_tree(tmp_path / "photos", in_classes(2)), tmp_path / "data.h5"

    def append() -> Path:
        return Path(pack_dataset(photos, append_to=target, progress=False).path)

    pack_dataset(photos, target, progress=False)
    for strange in (appended_path(tmp_path / "other-data.h5", 50), tmp_path / "data-append-other.h5"):
        strange.write_bytes(target.read_bytes())
    for expected, number in ((1, 7), (8, 8)):
        added = append()
        assert added == appended_path(target, expected)
        for name in (added, added.with_name(f"{added.name}.json")):
            name.rename(appended_path(target, number).with_name(name.name.replace(f"{expected:05}", f"{number:05}")))


def test_what_is_no_file_is_told_by_what_it_is(tmp_path: Path) -> None:
    """Alone and among others; an open file's names are not taken for files."""
    with h5py.File(tmp_path / "open.h5", "w") as file:
        file["x"] = [1]
        with pytest.raises(OptionError, match=r"path=File"):
            dataset_h5(file)
    wrong: tuple[tuple[Any, str], ...] = (
        (b"a.h5", "b'a.h5'"), ({"a.h5": 1}, "{'a.h5': 1}"), (["a.h5", 7], "7"), ({"a.h5"}, "{'a.h5'}"),
        ("a\0b", r"'a\x00b'"), (["a.h5", "a\0b"], r"'a\x00b'"),
    )  # fmt: skip
    for given_, said in wrong:
        with pytest.raises(OptionError, match=f"^path={re.escape(said)} "):
            dataset_h5(given_)
    with pytest.raises(OptionError, match="empty"):
        dataset_h5([])


def write_kinds(folder: Path) -> list[Path]:
    """A file for each kind of fields, each different from all others in one respect."""
    offsets, numbers = np.array([0, 1]), np.zeros((1, 4, 5))
    boxes = {"Y_train/offsets": offsets, "Y_train/boxes": np.zeros((1, 4), "f4"), "Y_train/labels": np.zeros(1, int)}
    made: dict[str, dict[str, Any]] = {
        "fixed": {"X_train": numbers.astype("<f4")},
        "turned": {"X_train": np.zeros((1, 5, 4), "<f4")},
        "whole": {"X_train": numbers.astype("<i4")},
        "boxes": {"X_train": numbers, **boxes, "Y_train/areas": np.zeros(1)},
        "fewer columns": {"X_train": numbers, **boxes},
        "texts": {"X_train": np.array(["a"], h5py.string_dtype())},
    }
    paths = [write_pack(folder / f"{name}.h5", datasets) for name, datasets in made.items()]
    for name, dtype in (("ragged", "<f4"), ("ragged whole", "<i4")):
        paths.append(folder / f"{name}.h5")
        with h5py.File(paths[-1], "w") as file:
            file.create_dataset("X_train", (1,), h5py.vlen_dtype(np.dtype(dtype)))[0] = np.zeros(3, dtype)
    photos = make_tree(folder / "photos", in_classes(1))
    masks = make_tree(folder / "masked", {"images/1.png": 1, "masks/1.png": mask(1)})
    sized: tuple[tuple[Path, dict[str, Any]], ...] = (
        (photos, {"image_size": (8, 8)}),
        (photos, {"image_size": (9, 8)}),
        (photos, {"image_size": (8, 8), "resize": "crop"}),
        (masks, {"image_size": (8, 8)}),
        (masks, {"image_size": (9, 8)}),
    )
    for number, (source, options) in enumerate(sized):
        paths.append(folder / f"sized-{number}.h5")
        pack_dataset(source, paths[-1], encoding="encoded", progress=False, **options)
    return paths


def fits(one: Path, other: Path) -> bool:
    try:
        dataset_h5([one, other], split="train")
    except PackFormatError:
        return False
    return True


def test_fields_of_each_kind_are_told_apart_by_all_that_matters_to_a_reader(tmp_path: Path) -> None:
    """And by nothing else: byte order, column order, names and lengths make no difference."""
    paths = write_kinds(tmp_path)
    copies = [Path(shutil.copy(path, path.with_suffix(".copy.h5"))) for path in paths]
    for first, one in enumerate(paths):
        for second, other in enumerate(copies[: first + 1]):
            pair = (one, other) if (first + second) % 2 else (other, one)
            assert fits(*pair) == (first == second), pair
    swapped = write_pack(tmp_path / "swapped.h5", {"X_train": np.zeros((9, 4, 5), ">f4")})
    assert fits(tmp_path / "fixed.h5", swapped)


def test_what_several_files_hold_together(tmp_path: Path) -> None:
    """Each split has the sum of the rows in the files that contain it."""
    for number, splits in enumerate((("train", "val"), ("train",), ("train", "test"))):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for split in splits:
                file[f"X_{split}"] = np.zeros((10 + number, 2, 3), np.uint8)
                file[f"Y_{split}"] = np.arange(10 + number) + 100 * number
    files = [tmp_path / f"{number}.h5" for number in range(3)]
    together = dataset_h5(files, split="train")
    assert [together[row][1] for row in (0, 9, 10, 32)] == [0, 9, 100, 211]
    assert {split: len(dataset_h5(files, split=split)) for split in ("train", "val", "test")} == {
        "train": 33,
        "val": 10,
        "test": 12,
    }
    with pytest.raises(SplitNotFoundError, match=r"train.*33.*val.*10.*test.*12"):
        dataset_h5(files, split="dev")

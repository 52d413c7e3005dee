"""What can be looked at, and what cannot."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - fixtures
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage.errors import OptionError, SourceNotFoundError, SplitNotFoundError
from colabstage.load.reading.reader import SplitReader
from colabstage.notebook.samples import open_splits, read_labels, read_samples
from tests.notebook.packs import photos, write_boxed, write_pack


@pytest.mark.torch
def test_every_way_to_say_it(tmp_path: Path) -> None:
    """A path as text or as a path, a pattern, a split of it, and what staging returns, are the same samples."""
    from colabstage import StagedDataset, dataset_h5
    from colabstage.h5.info import read_info
    from colabstage.stage.dataset import StageReport

    path = write_pack(tmp_path / "a.h5", photos(20), np.arange(20))
    staged = StagedDataset(path, None, StageReport(), read_info(path))
    for data in (path, str(path), str(tmp_path / "*.h5"), staged):
        source = open_splits(data)
        assert source.rows == {"train": 20, "test": 2}
        np.testing.assert_array_equal(source.reader("test").read_x([1])[0], photos(2)[1])
    assert open_splits(dataset_h5(path, split="test")).rows == {"test": 2}


@pytest.mark.torch
def test_a_dataset_keeps_the_names_of_its_fields(tmp_path: Path) -> None:
    """Inputs and targets that are called otherwise are shown, with their classes."""
    from colabstage import dataset_h5

    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["pictures"], file["kinds"] = photos(6), np.arange(6) % 2
    source = open_splits(dataset_h5(tmp_path / "own.h5", x="pictures", y="kinds"))
    ((split, count),) = source.rows.items()
    assert count == 6
    assert [sample.y for sample in read_samples(source, split, [1, 2], longest_px=99)] == [1, 0]
    assert read_labels(source, split).counts.tolist() == [3, 3]


def test_several_files_are_one(tmp_path: Path) -> None:
    """Splits have the rows of all."""
    for number in (1, 2):
        write_pack(tmp_path / f"d-{number}.h5", photos(20), np.arange(20))
    source = open_splits(tmp_path / "d-*.h5")
    assert source.rows == {"train": 40, "test": 4}
    assert "1 more" in source.name


@pytest.mark.parametrize("data", [7, ["a.h5"], None])
def test_something_else_is_refused(data: Any) -> None:
    """The message says what to pass."""
    with pytest.raises(OptionError, match="stage_dataset returns, a dataset_h5, or the path"):
        open_splits(data)


def test_what_is_not_there(tmp_path: Path) -> None:
    """A file, or a split, that is not there is the usual error."""
    with pytest.raises(SourceNotFoundError):
        open_splits(tmp_path / "none.h5")
    with pytest.raises(SplitNotFoundError, match=r"'train' \(20 samples\)"):
        open_splits(write_pack(tmp_path / "a.h5", photos(20), None)).reader("dev")


def test_plain_files_have_no_samples(tmp_path: Path) -> None:
    """What was staged with keep='files' says how to stage it to look at it."""
    from colabstage import StagedDataset
    from colabstage.stage.dataset import StageReport

    with pytest.raises(OptionError, match="keep='pack'"):
        open_splits(StagedDataset(tmp_path, tmp_path, StageReport(), None))


def test_image_files_are_decoded_no_larger_than_shown(tmp_path: Path) -> None:
    """Each keeps its proportions; its own size is known for its boxes."""
    source = open_splits(write_boxed(tmp_path / "a.h5").path)
    small = read_samples(source, "train", [3, 0], longest_px=28)
    assert [sample.x.shape for sample in small] == [(17, 28, 3), (20, 28, 3)]
    assert [sample.size for sample in small] == [(34, 56), (40, 56)]
    assert [len(sample.y["boxes"]) for sample in small] == [3, 2]
    assert read_samples(source, "train", [3], longest_px=500)[0].x.shape == (34, 56, 3)


def test_keys_of_a_few_rows(tmp_path: Path) -> None:
    """Names are those of the rows asked for, in their order, in one file and in several; all of them without rows."""
    for number in (1, 2):
        write_pack(tmp_path / f"d-{number}.h5", photos(400, height=4, width=5), None, keys=True)
    joined = SplitReader(tmp_path / "d-*.h5")
    every = joined.keys()
    assert len(every) == 800
    for rows in ([3, 1, 3, -1], [401, 2, 400], list(range(0, 800, 2)), []):
        assert joined.keys(rows) == [every[row] for row in rows]
    one = SplitReader(tmp_path / "d-1.h5")
    assert one.keys(range(300, 0, -1)) == every[300:0:-1]

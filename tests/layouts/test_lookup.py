"""Finding the file that is meant: never in a folder that was not named, never in another split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.layouts.words import is_split, same_split, split_name, split_of_path
from tests.layouts.readers import find


@pytest.mark.parametrize(
    ("files", "written", "folder", "split", "expected"),
    [
        (["train/1.png", "test/2.png"], "train/2.png", "", "", None),
        (["train/1.png", "test/2.png"], "2", "", "train", None),
        (["train/images/1.png", "val/images/2.png"], "train/images/2.png", "", "", None),
        (["train2017/1.jpg", "val2017/2.jpg"], "2.jpg", "annotations", "train", None),
        (["train2017/1.jpg", "val2017/1.jpg"], "1.jpg", "annotations", "val", "val2017/1.jpg"),
        (["a/1.jpg", "b/2.jpg"], "a/2.jpg", "", "", None),
        (["images/2.jpg"], "photos/2.jpg", "", "", "images/2.jpg"),
        (["images/deep/2.jpg", "other/1.jpg"], "images/2.jpg", "", "", "images/deep/2.jpg"),
        (["images/2.jpg"], "/content/drive/MyDrive/x/images/2.jpg", "", "", "images/2.jpg"),
        (["a/1.jpg", "b/1.jpg"], "1.jpg", "", "", None),
        (["a/1.jpg", "b/1.jpg"], "1.jpg", "b", "", "b/1.jpg"),
        (["1.jpg", "1.png"], "1", "", "", None),
        (["1.jpg", "1.png"], "1.png", "", "", "1.png"),
        (["valid/1.jpg"], "1.jpg", "", "val", "valid/1.jpg"),
        (["test_tube/1.jpg", "cup/2.jpg"], "1.jpg", "", "train", "test_tube/1.jpg"),
        (["1.jpg"], "", "", "", None),
        (["1.jpg"], "..", "", "", None),
    ],
)
def test_a_missing_file_stays_missing(
    files: list[str], written: str, folder: str, split: str, expected: str | None
) -> None:
    """It is not replaced by one of the same bare name in a folder, or a split, that was not meant."""
    assert find(files, written, folder=folder, split=split) == expected


_NAMES = st.builds(
    lambda folders, base: "/".join([*folders, base]),
    st.lists(st.sampled_from(["train", "test", "val2017", "images", "a"]), max_size=2),
    st.sampled_from(["1.png", "2.png", "3.png"]),
)


@given(files=st.sets(_NAMES, min_size=1, max_size=8), written=_NAMES, split=st.sampled_from(["", "train", "test"]))
def test_what_is_found_is_where_it_was_said_to_be(files: set[str], written: str, split: str) -> None:
    """A file that is there by the whole of its path is found; another is in each folder that was written and exists."""
    found = find(list(files), written, split=split)
    if written in files:
        assert found == written
    elif found is not None:
        assert found.rpartition("/")[2] == written.rpartition("/")[2]
        there = {part for name in files for part in name.split("/")[:-1]}
        assert {part for part in written.split("/")[:-1] if part in there} <= set(found.split("/"))
        meant = split_of_path("/".join(reversed(written.split("/")[:-1])) + "/x") or split
        other = split_of_path(found)
        assert not meant or not other or same_split(meant, other)


@pytest.mark.parametrize(
    ("name", "split", "alone"),
    [
        ("train", "train", True),
        ("Training_set", "train", True),
        ("seg_train", "train", True),
        ("test1", "test", True),
        ("train2017", "train", True),
        ("TestImages", "test", True),
        ("validation-horse-or-human", "validation", False),
        ("WIDER_val", "val", False),
        ("train_test", "", False),
        ("cat", "", False),
        ("trainer", "", False),
        ("2017", "", False),
    ],
)
def test_splits_are_known_however_they_are_written(name: str, split: str, alone: bool) -> None:
    """With a year, with 'set' or 'images' beside; other words make it part of a name."""
    assert split_name(name).split == split
    assert is_split(name) == alone

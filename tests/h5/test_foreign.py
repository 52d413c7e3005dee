"""Random HDF5 files of others, read beside h5py: a few of them in every run, a thousand in the long form."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage.layouts import stored
from colabstage.load.reading.reader import SplitReader
from tests.h5.foreign import ForeignFileError, check_foreign_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("count", "seed"),
    [(15, 2), (15, 18), pytest.param(1000, 30, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
def test_random_files_equal_h5py_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, seed: int
) -> None:
    """Of any type and storage, behind any link; through every engine, and as they would be packed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = check_foreign_files(count, seed)
    assert found.files == found.equal + sum(found.refused.values())
    assert found.readings > 2 * found.equal > 0


def test_rows_of_the_wrong_file_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an archive HDF5 finds the file itself behind each external link."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(stored, "open_alone", lambda file, _: h5py.File(file, "r"))
    with pytest.raises(ForeignFileError, match="in a zip"):
        check_foreign_files(30, 1)


def test_a_file_that_is_read_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value, and an error of something else, each with what the file is."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    right = SplitReader.read_x

    def wrong(reader: Any, rows: Any) -> Any:
        return np.asarray(right(reader, rows)) == "nothing"

    monkeypatch.setattr(SplitReader, "read_x", wrong)
    with pytest.raises(ForeignFileError, match=r"of seed 1 \(X_train"):
        check_foreign_files(20, 1)
    monkeypatch.setattr(SplitReader, "read_x", lambda *_: 1 / 0)
    with pytest.raises(ForeignFileError, match="ended in ZeroDivisionError"):
        check_foreign_files(20, 1)

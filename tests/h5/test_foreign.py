"""Random foreign HDF5 files, compared with h5py: a few of them in every run, a thousand in the long form."""

import tempfile
from pathlib import Path

import pytest

from tests.h5.foreign import check_foreign_files


@pytest.mark.parametrize(
    ("count", "seed"), [(15, 2), (15, 18), pytest.param(1000, 30, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_random_files_equal_h5py_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, seed: int
) -> None:
    """Of any type and storage, behind any link; through every engine, and as they would be packed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = check_foreign_files(count, seed)
    assert found.files == found.equal + sum(found.refused.values())
    assert found.readings > 2 * found.equal > 0

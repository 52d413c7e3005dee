"""A local file that is rewritten in place while it is read, with the same size: never a mixture of two states."""

from __future__ import annotations

import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage import stage_dataset
from tests.support.steps import OneStep

if TYPE_CHECKING:
    from pathlib import Path


ROWS = 60


class RewritesOnce(OneStep):
    """Writes another content to a file once the first bytes of it have been read: first its end, then its beginning."""

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__()
        self._path, self._content, self._done = path, content, False

    def start_at(self, amount: int) -> None:
        pass

    def advance(self, amount: int = 1) -> None:
        if self._done:
            return
        self._done = True
        half = len(self._content) // 2
        with self._path.open("r+b") as file:
            for part in (slice(half, None), slice(half)):
                file.seek(part.start or 0)
                file.write(self._content[part])


def write(path: Path, value: int) -> bytes:
    """A file of images that are `value` all over, by itself or in an archive; returns its bytes."""
    array = path.with_name("x.npy")
    np.save(array, np.full((ROWS, 100, 100, 3), value, np.uint8))
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(array, "x.npy")
    elif path.suffix == ".tar":
        with tarfile.open(path, "w") as tar:
            tar.add(array, "x.npy")
    return path.read_bytes()


@pytest.fixture(params=["x.npy", "x.zip", "x.tar"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file whose images are 1 all over."""
    (tmp_path / "source").mkdir()
    path: Path = tmp_path / "source" / request.param
    write(path, 1)
    return path


def rewrites(source: Path, tmp_path: Path) -> RewritesOnce:
    """What makes 2 of these images."""
    (tmp_path / "other").mkdir()
    content = write(tmp_path / "other" / source.name, 2)
    assert len(content) == source.stat().st_size
    return RewritesOnce(source, content)


def values(pack: Path) -> list[int]:
    """What is in a pack."""
    with h5py.File(pack) as file:
        rows = next(file[name] for name in file if name.startswith("X_"))
        return [int(value) for value in np.unique(rows[()])]


def test_a_staged_dataset(source: Path, tmp_path: Path) -> None:
    places: dict[str, Any] = {"local_dir": tmp_path / "local", "cache_dir": None}
    staged = stage_dataset(source, progress=rewrites(source, tmp_path), **places)
    assert staged.path is not None
    assert values(staged.path) == [2]
    assert any("was written to while it was being read" in note for note in staged.report.notes)
    assert "already staged" in str(stage_dataset(source, progress=False, **places).report)

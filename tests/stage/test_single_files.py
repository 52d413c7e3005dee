"""A single file as a source: what it would be in a folder of its own."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage import stage_dataset
from colabstage.errors import LayoutError
from tests.pictures import write_photos

if TYPE_CHECKING:
    from pathlib import Path

QUIET: dict[str, Any] = {"progress": False}


def _npy(path: Path, values: np.ndarray) -> None:
    np.save(path, values)


@pytest.mark.torch
@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
@pytest.mark.parametrize("in_folder", [False, True])
def test_a_pack_is_opened_and_not_packed_again(tmp_path: Path, encoding: str, in_folder: bool) -> None:
    """Its samples would lose their names; the error has the line that opens it, as it is for a second notebook."""
    from colabstage import dataset_h5

    write_photos(tmp_path / "photos", 12)
    cache = tmp_path / "cache"
    first = stage_dataset(tmp_path / "photos", encoding=encoding, cache_dir=cache, **QUIET)
    (pack,) = cache.glob("*.h5")
    with pytest.raises(LayoutError, match="needs no staging") as caught:
        stage_dataset(cache if in_folder else pack, cache_dir=None, **QUIET)
    opened = re.search(r"dataset_h5\((.*?)\)", str(caught.value))
    assert opened is not None
    again = dataset_h5(ast.literal_eval(opened[1]))
    assert again.samples == first["train"].samples
    assert again.classes == first.classes


def test_plain_files_of_one_file_are_that_file(tmp_path: Path) -> None:
    _npy(tmp_path / "a.npy", np.zeros((3, 2)))
    staged = stage_dataset(tmp_path / "a.npy", keep="both", cache_dir=None, **QUIET)
    assert staged.files is not None
    assert (staged.files / "a.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()

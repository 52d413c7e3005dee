"""What is said of a path at which there is nothing: where it goes wrong, and what may be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from colabstage.errors import SourceNotFoundError
from colabstage.h5.info import read_info
from colabstage.trees.open import recognise

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("look", [recognise, read_info], ids=["source", "pack"])
def test_the_nearest_name_is_told_of_sources_and_of_packs(tmp_path: Path, look: object) -> None:
    assert callable(look)
    (tmp_path / "data").mkdir()
    for name in ("photos.h5", "other.h5", "x.zip"):
        (tmp_path / "data" / name).write_bytes(b"")
    with pytest.raises(SourceNotFoundError, match=r"data'.*'photos\.h5'.*\d.*'fotos\.h5'"):
        look(tmp_path / "data" / "fotos.h5")
    with pytest.raises(SourceNotFoundError, match=r"'data'.*'dta'"):
        look(tmp_path / "dta" / "photos.h5")

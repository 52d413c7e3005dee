"""What is said of a path at which there is nothing: where it goes wrong, and what may be meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from colabstage.errors import SourceNotFoundError
from colabstage.h5.info import read_info
from colabstage.io.missing import whereabouts
from colabstage.trees.open import recognise


@pytest.mark.parametrize("look", [recognise, read_info], ids=["source", "pack"])
def test_the_nearest_name_is_told_of_sources_and_of_packs(tmp_path: Path, look: object) -> None:
    """Whatever was to be opened: the typing error is in the middle of the path as well."""
    assert callable(look)
    (tmp_path / "data").mkdir()
    for name in ("photos.h5", "other.h5", "x.zip"):
        (tmp_path / "data" / name).write_bytes(b"")
    with pytest.raises(
        SourceNotFoundError, match=r"data' holds 'photos\.h5'(, 'other\.h5')? and \d more; no 'fotos\.h5'"
    ):
        look(tmp_path / "data" / "fotos.h5")
    with pytest.raises(SourceNotFoundError, match=r"holds 'data'; no 'dta'"):
        look(tmp_path / "dta" / "photos.h5")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (r"C:\data\photos", "a path of Windows"),
        ("C:/photos", "a path of Windows"),
        (r"data\photos", "'data/photos'"),
        (r".\photos", "'./photos'"),
        (r"My\ Drive/my\ photos", "Blanks take no backslash in Python: 'My Drive/my photos'"),
        ("www.example.org/x.zip", "'https://www.example.org/x.zip'"),
        ("zenodo.org/records/1/x.zip", "'https://zenodo.org/records/1/x.zip'"),
        ("photos.zip", ""),
        ("photos.v2/train.zip", ""),
        ("wine/reviews", ""),
    ],
)
def test_what_is_no_path_of_this_machine_has_the_line(
    typed: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another system, or an address without its beginning; a path that is only misspelt gets no such sentence."""
    monkeypatch.chdir(tmp_path)
    absolute = Path(os.path.abspath(typed))  # noqa: PTH100 - as sources do
    told = [
        whereabouts(path).partition(f"The folder '{place}' is empty.")[2]
        for path, place in ((absolute, tmp_path), (Path(typed), "."))
    ]
    assert all(says in one for one in told)
    assert [bool(one) for one in told] == [bool(says)] * 2


def test_a_path_elsewhere_is_suggested_whole(tmp_path: Path) -> None:
    """What is written for it is taken from the current folder otherwise."""
    assert f"'{tmp_path}/a/b.zip'" in whereabouts(tmp_path / r"a\b.zip")

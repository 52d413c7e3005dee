"""`only=` and `zip_encoding=` in every function that takes a source, and archives that come in several files."""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from colabstage import extract_archive, fetch_files, pack_dataset, plan_stage, stage_dataset
from colabstage.errors import ColabstageError, LayoutError, OptionError, SourceNotFoundError, TargetExistsError
from colabstage.load.dataset import dataset_h5

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def _png(seed: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)).save(content, "PNG")
    return content.getvalue()


FILES = {
    f"plants/{variant}/{kind}/{number}.png": _png(100 * at + number)
    for at, variant in enumerate(("color", "grey"))
    for kind in ("rust", "scab")
    for number in range(3)
}


def _zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def _folder(path: Path) -> Path:
    for name, content in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.fixture(params=["zip", "folder", "list"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str | list[str]:
    """Two variants of one dataset, which cannot be told apart: in an archive, a folder, and a list of two archives."""
    if request.param == "folder":
        return str(_folder(tmp_path / "source"))
    if request.param == "zip":
        return str(_zip(tmp_path / "source.zip", FILES))
    names = list(FILES)
    return [str(_zip(tmp_path / f"s{at}.zip", {name: FILES[name] for name in names[at::2]})) for at in range(2)]


def test_a_part_is_staged_alone_and_has_a_key_of_its_own(source: str | list[str], tmp_path: Path) -> None:
    """Named by the error that refuses the whole; planned, staged, staged again without reading, and beside another."""

    def stage(only: str | list[str] | None) -> Callable[[], object]:
        return lambda: stage_dataset(source, only=only, local_dir=tmp_path / "fast", cache_dir=None, progress=False)

    with pytest.raises(LayoutError) as caught:
        stage(None)()
    found = re.search(r"only='([^']+)'", str(caught.value))
    assert found is not None
    assert found[1] == "plants/color"
    plan = plan_stage(source, only=found[1], local_dir=tmp_path / "fast", cache_dir=None)
    assert plan.samples == {"train": 6}
    data = stage_dataset(source, only=found[1], local_dir=tmp_path / "fast", cache_dir=None, progress=False)
    assert (data.classes, data.splits) == (("rust", "scab"), {"train": 6})
    again = stage_dataset(source, only="./plants/color/", local_dir=tmp_path / "fast", cache_dir=None, progress=False)
    assert again.report is not None
    assert (again.path, again.report.origin) == (data.path, "local")
    other = stage_dataset(source, only="plants/grey", local_dir=tmp_path / "fast", cache_dir=None, progress=False)
    assert other.path != data.path
    few = stage_dataset(
        source, only=["plants/color/*/0.png"], local_dir=tmp_path / "fast", cache_dir=None, progress=False
    )
    assert few.splits == {"train": 2}
    with pytest.raises(SourceNotFoundError, match="only='plants/color'"):
        stage("color")()
    with pytest.raises(OptionError, match="only="):
        stage("/plants")()


def test_a_part_is_what_the_folder_itself_is(tmp_path: Path) -> None:
    """The pack of a part of an archive has the rows of the pack of that folder, and so have plain files beside it."""
    archive, folder = _zip(tmp_path / "s.zip", FILES), _folder(tmp_path / "s")
    pack_dataset(archive, tmp_path / "part.h5", only="plants/grey", progress=False)
    pack_dataset(folder / "plants" / "grey", tmp_path / "whole.h5", progress=False)
    parts, whole = dataset_h5(tmp_path / "part.h5"), dataset_h5(tmp_path / "whole.h5")
    assert len(parts) == len(whole) == 6
    assert all(np.array_equal(parts[row][0], whole[row][0]) for row in range(6))
    both = stage_dataset(
        archive, only="plants/grey", keep="both", local_dir=tmp_path / "fast", cache_dir=None, progress=False
    )
    assert both.files is not None
    assert sorted(str(path.relative_to(both.files)) for path in both.files.rglob("*.png")) == sorted(
        name.removeprefix("plants/grey/") for name in FILES if "grey" in name
    )


def test_a_part_is_extracted_and_fetched(tmp_path: Path) -> None:
    """The same part is there already; another one does not replace it unasked."""
    archive, folder = _zip(tmp_path / "s.zip", FILES), _folder(tmp_path / "s")
    for only in ("plants/color", "plants/color", "plants/grey", ["plants/*/rust"]):
        before = (tmp_path / "x").exists() and (tmp_path / "x").stat().st_ino
        if before and only != "plants/color":
            for make, source, place in ((extract_archive, archive, "x"), (fetch_files, folder, "f")):
                with pytest.raises(TargetExistsError):
                    make(source, tmp_path / place, only=only, progress=False)
        extracted = extract_archive(archive, tmp_path / "x", only=only, overwrite=True, progress=False)
        fetched = fetch_files(folder, tmp_path / "f", only=only, overwrite=True, progress=False)
        assert (extracted.members, fetched.files) == (6, 6)
        assert extracted.reused is (before == (tmp_path / "x").stat().st_ino)
    made = {str(path.relative_to(tmp_path / "x")) for path in (tmp_path / "x").rglob("*.png")}
    assert made == {name for name in FILES if "rust" in name}
    assert made == {str(path.relative_to(tmp_path / "f")) for path in (tmp_path / "f").rglob("*.png")}
    with pytest.raises(OptionError, match="extract_archive"):
        fetch_files(archive, tmp_path / "y", only="plants", progress=False)
    with pytest.raises(SourceNotFoundError, match="only='plants'"):
        extract_archive(archive, tmp_path / "z", only="plant", progress=False)
    assert not (tmp_path / "z").exists()


def test_an_encoding_is_part_of_the_key(tmp_path: Path) -> None:
    """The note says what to write, which gives the names; the classes are then right."""
    names = {b"AA/": "猫/".encode("gbk"), b"BB/": "狗/".encode("gbk")}
    raw = _zip(tmp_path / "s.zip", {f"{name}/{n}.png": _png(n) for name in ("AA", "BB") for n in range(3)}).read_bytes()
    for ascii_name, stored in names.items():
        raw = raw.replace(ascii_name, stored)
    (tmp_path / "s.zip").write_bytes(raw)
    wrong = stage_dataset(tmp_path / "s.zip", local_dir=tmp_path / "fast", cache_dir=None, progress=False)
    assert 'zip_encoding="gbk"' in str(wrong.report)
    right = stage_dataset(
        tmp_path / "s.zip", zip_encoding="gbk", local_dir=tmp_path / "fast", cache_dir=None, progress=False
    )
    assert set(right.classes) == {"猫", "狗"}
    assert right.path != wrong.path
    with pytest.raises(OptionError, match="zip_encoding"):
        stage_dataset(tmp_path / "s.zip", zip_encoding="gkb2", local_dir=tmp_path / "fast", progress=False)


def test_an_archive_in_pieces_is_staged_and_extracted_from_any_of_them(tmp_path: Path) -> None:
    """As one, and reused as one; a piece that is missing is named."""
    chosen = {name: content for name, content in FILES.items() if "color" in name}
    whole = _zip(tmp_path / "s.zip", chosen).read_bytes()
    (tmp_path / "s.zip").unlink()
    for number in range(3):
        (tmp_path / f"s.zip.00{number + 1}").write_bytes(
            whole[number * 1000 : (number + 1) * 1000 if number < 2 else None]
        )
    for written in ("s.zip.001", "s.zip.003", "s.zip.*"):
        for origin in ("source", "local"):
            data = stage_dataset(tmp_path / written, local_dir=tmp_path / "fast", cache_dir=None, progress=False)
            assert data.splits == {"train": 6}
            assert data.report is not None
            assert data.report.origin == origin
    report = extract_archive(tmp_path / "s.zip.002", tmp_path / "out", progress=False)
    assert report.members == 6
    assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.png")} == set(chosen)
    (tmp_path / "s.zip.002").unlink()
    with pytest.raises(ColabstageError, match=r"s\.zip\.002"):
        stage_dataset(tmp_path / "s.zip.001", local_dir=tmp_path / "other", cache_dir=None, progress=False)


def test_the_zips_of_one_download_are_one_dataset(tmp_path: Path) -> None:
    """Given any of them; a file that is in both is one; and a part that is missing is named."""
    names = [name for name in FILES if "color" in name]
    for number in range(3):
        part = {name.removeprefix("plants/color/"): FILES[name] for name in names[number::3]}
        _zip(tmp_path / f"p-20240105T101112Z-00{number + 1}.zip", part | {"README.txt": b"read me"})
    for number in (1, 3):
        name = f"p-20240105T101112Z-00{number}.zip"
        for origin in ("source", "local"):
            data = stage_dataset(tmp_path / name, local_dir=tmp_path / "fast", cache_dir=None, progress=False)
            assert (data.splits, data.classes) == ({"train": 6}, ("rust", "scab"))
            assert data.report is not None
            assert data.report.origin == origin
    (tmp_path / "p-20240105T101112Z-002.zip").unlink()
    with pytest.raises(ColabstageError, match=r"p-20240105T101112Z-002\.zip"):
        stage_dataset(tmp_path / "p-20240105T101112Z-001.zip", local_dir=tmp_path / "x", cache_dir=None, progress=False)

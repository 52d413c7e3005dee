"""`only=` and `zip_encoding=` in every function that takes a source, and archives that come in several files."""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from colabstage import plan_stage, stage_dataset
from colabstage.errors import LayoutError, OptionError, SourceNotFoundError

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
    nothing: list[str] = []
    for none in ("/plants", nothing):
        with pytest.raises(OptionError, match="only="):
            stage(none)()


def test_an_encoding_is_part_of_the_key(tmp_path: Path) -> None:
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

"""`only=` and `zip_encoding=`: a part of a source, or another reading of its names, is a separate dataset."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import plan_stage, stage_dataset
from colabstage.errors import LayoutError, OptionError, SourceNotFoundError
from tests.support.archives import write_archive, zip_bytes
from tests.support.images import image, make_tree

# Two variants of one dataset, which detection cannot choose between.
FILES = {
    f"plants/{variant}/{kind}/{number}.png": image(100 * at + number)
    for at, variant in enumerate(("color", "grey"))
    for kind in ("rust", "scab")
    for number in range(3)
}


@pytest.mark.parametrize("kind", ["zip", "folder", "list"])
def test_a_part_is_staged_alone_and_has_a_key_of_its_own(kind: str, tmp_path: Path) -> None:
    halves = [dict(list(FILES.items())[at::2]) for at in range(2)]
    makers: dict[str, Callable[[], Any]] = {
        "zip": lambda: write_archive(tmp_path / "a.zip", FILES),
        "folder": lambda: make_tree(tmp_path / "source", FILES),
        "list": lambda: [write_archive(tmp_path / f"{at}.zip", half) for at, half in enumerate(halves)],
    }
    source = makers[kind]()
    places: dict[str, Any] = {"local_dir": tmp_path / "fast", "cache_dir": None}

    def stage(only: str | list[str] | None) -> Any:
        return stage_dataset(source, only=only, progress=False, **places)

    with pytest.raises(LayoutError) as caught:
        stage(None)
    (found, *_) = re.findall(r"only='([^']+)'", str(caught.value))
    assert found == "plants/color"
    assert plan_stage(source, only=found, **places).samples == {"train": 6}
    data = stage(found)
    assert (data.classes, data.splits) == (("rust", "scab"), {"train": 6})
    again = stage("./plants/color/")
    assert (again.path, again.report.origin) == (data.path, "local")
    assert stage("plants/grey").path != data.path
    assert stage(["plants/color/*/0.png"]).splits == {"train": 2}
    with pytest.raises(SourceNotFoundError, match="only='plants/color'"):
        stage("color")
    with pytest.raises(SourceNotFoundError, match="matches nothing"):  # a range that runs backwards
        stage("plants/[z-a]*")
    nothing: list[str] = []
    for none in ("/plants", nothing):
        with pytest.raises(OptionError, match="only="):
            stage(none)


def test_an_encoding_is_part_of_the_key(tmp_path: Path) -> None:
    raw = zip_bytes({f"{name}/{n}.png": image(n) for name in ("AA", "BB") for n in range(3)})
    for ascii_name, name in {b"AA/": "猫/", b"BB/": "狗/"}.items():
        raw = raw.replace(ascii_name, name.encode("gbk"))
    source = make_tree(tmp_path, {"s.zip": raw}) / "s.zip"
    options: dict[str, Any] = {"local_dir": tmp_path / "fast", "cache_dir": None, "progress": False}
    wrong = stage_dataset(source, **options)
    assert 'zip_encoding="gbk"' in str(wrong.report)
    right = stage_dataset(source, zip_encoding="gbk", **options)
    assert set(right.classes) == {"猫", "狗"}
    assert right.path != wrong.path
    with pytest.raises(OptionError, match="gkb2"):
        stage_dataset(source, zip_encoding="gkb2", **options)

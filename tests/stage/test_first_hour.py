"""What a newcomer reads in the first hour: plans with all of the report's notes, and words for what has no name."""

from __future__ import annotations

import ast
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage.errors import EmptySourceError, LayoutError, SourceNotFoundError
from colabstage.sources.extract.archive import extract_archive
from colabstage.stage.plan import plan_stage
from colabstage.stage.run import stage_dataset


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """Where datasets go."""
    return {"local_dir": tmp_path / "here", "cache_dir": None}


def _image(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, 90, 20)).save(path)


def _folder(root: Path, split: str) -> Path:
    for number in range(4):
        _image(root / split / "ab"[number % 2] / f"{number}.png", 40 * number)
    return root / split


def test_a_plan_has_the_notes_of_the_report(tmp_path: Path, places: dict[str, Any]) -> None:
    """Also those of the tree, such as links that lead nowhere, each ended by a full stop."""
    root = _folder(tmp_path, "photos")
    (root / "a" / "lost.png").symlink_to(tmp_path / "nothing.png")
    (root / "b" / "empty.png").write_bytes(b"")
    plan = plan_stage(root, on_error="skip", **places)
    report = stage_dataset(root, on_error="skip", progress=False, **places).report
    assert len(report.notes) == 2
    assert set(report.notes) <= set(plan.reasons)
    assert all(reason.endswith(".") for reason in plan.reasons)


def test_archives_in_an_archive_are_all_named(tmp_path: Path, places: dict[str, Any]) -> None:
    """What the error says to write works, and the two become the splits."""
    outer = tmp_path / "outer.zip"
    with zipfile.ZipFile(outer, "w") as archive:
        for split in ("train", "test"):
            inner = io.BytesIO()
            with zipfile.ZipFile(inner, "w") as parts:
                for path in sorted(_folder(tmp_path, split).rglob("*.png")):
                    parts.write(path, path.relative_to(tmp_path / split))
            archive.writestr(f"{split}.zip", inner.getvalue())
    with pytest.raises(EmptySourceError, match=r"extract_archive\(.*\['FOLDER/test.zip', 'FOLDER/train.zip'\]"):
        stage_dataset(outer, progress=False, **places)
    extract_archive(outer, tmp_path / "out", progress=False)
    found = [tmp_path / "out" / f"{split}.zip" for split in ("test", "train")]
    staged = stage_dataset(found, progress=False, **places)
    assert staged.splits == {"train": 4, "test": 4}
    assert staged.classes == ("a", "b")


def test_missing_images_and_labels_are_named_by_their_files(tmp_path: Path, places: dict[str, Any]) -> None:
    """The first image that a row names and is not there; the first whose label is empty."""
    root = tmp_path / "faces"
    for number in range(4):
        _image(root / f"{number}.png", 40 * number)
    table = root / "labels.csv"
    table.write_text("file,label\n" + "".join(f"{number}.png,{'ab'[number % 2]}\n" for number in range(6)))
    reasons = plan_stage(root, **places).reasons
    assert "2 rows whose images are not there (first '4.png') were left out." in reasons
    table.write_text("file,label\n0.png,a\n1.png,\n2.png,a\n3.png,b\n")
    with pytest.raises(LayoutError, match=r"1 of 4 rows has no label in 'label' \(the first is that of '1\.png'\)"):
        plan_stage(root, **places)


@pytest.mark.torch
@pytest.mark.parametrize("written", ["{name}", "images/{name}", "{root}/images/{name}", "/content/drive/images/{name}"])
@pytest.mark.parametrize("given", ["tables", "tables/labels.csv"])
def test_a_table_apart_from_its_images_names_the_list_of_both(
    tmp_path: Path, places: dict[str, Any], written: str, given: str
) -> None:
    """Whichever of the folder and the table was given, and however its rows name the images."""
    for number in range(6):
        _image(tmp_path / "images" / f"{number}.png", 40 * number)
    table = tmp_path / "tables" / "labels.csv"
    table.parent.mkdir()
    rows = [f"{written.format(name=f'{number}.png', root=tmp_path)},{'ab'[number % 2]}" for number in range(6)]
    table.write_text("\n".join(["file,label", *rows]) + "\n")
    with pytest.raises(EmptySourceError, match="in a list") as caught:
        stage_dataset(tmp_path / given, progress=False, **places)
    found = re.search(r"in a list, (\[.*?\])", str(caught.value))
    assert found is not None
    both = [name.replace("FOLDER_OF_THE_IMAGES", str(tmp_path / "images")) for name in ast.literal_eval(found[1])]
    staged = stage_dataset(both, progress=False, **places)
    assert sorted((Path(name).stem, label) for name, label in staged["train"].samples) == [
        (str(number), number % 2) for number in range(6)
    ]


@pytest.mark.parametrize(("labels", "said"), [([0.5, 1.5], "no named classes"), ([0, 1], "2 classes")])
def test_classes_are_counted_where_they_have_names(
    tmp_path: Path, places: dict[str, Any], labels: list[float], said: str
) -> None:
    """Not as 0 classes, which is nothing that anybody trains on."""
    np.savez(tmp_path / "lab.npz", x=np.zeros((8, 3), np.float32), y=np.array(labels * 4))
    staged = stage_dataset(tmp_path / "lab.npz", progress=False, **places)
    for text in (str(staged), repr(staged)):
        assert said in text


def test_what_colabstage_left_beside_data_is_not_listed(tmp_path: Path, places: dict[str, Any]) -> None:
    """The error of a misspelt path shows the files that people have."""
    (tmp_path / "photos.zip").write_bytes(b"")
    (tmp_path / ".colabstage-out.0955f25b-4905-1510042.3.deed").write_bytes(b"")
    (tmp_path / ".out.colabstage.json").write_bytes(b"")
    with pytest.raises(SourceNotFoundError, match=r"holds 'photos\.zip'; no 'fotos'") as raised:
        stage_dataset(tmp_path / "fotos", progress=False, **places)
    assert "colabstage-out" not in str(raised.value)


@pytest.mark.parametrize("first", ["none", "another", "streaming"])
def test_a_pack_that_is_here_goes_to_the_cache_that_a_later_call_names(tmp_path: Path, first: str) -> None:
    """Reports say whether it is in the cache, the plan that it would be, and the next machine finds it there."""
    root, cache = _folder(tmp_path, "photos"), tmp_path / "cache"
    places: dict[str, Any] = {"local_dir": tmp_path / "here", "progress": False}
    earlier = tmp_path / "other" if first == "another" else None
    made = stage_dataset(root, cache_dir=earlier, streaming=first == "streaming", **places).wait()
    assert made.report.to_dict()["cached"].startswith("yes" if earlier else "no")
    assert made.report.cached in str(made.report)
    assert made.report.cached in made.report._repr_html_()
    plan = plan_stage(root, cache_dir=cache, local_dir=tmp_path / "here")
    assert (plan.action, plan.cache) == ("reuse", cache / made.path.name)
    assert any("not in the cache yet" in reason for reason in plan.reasons)

    data = stage_dataset(root, cache_dir=cache, **places)
    assert (data.report.origin, data.report.cached) == ("local", "yes, copied there now")
    published = data.wait_published()
    assert published is not None
    assert Path(published.path).read_bytes() == data.path.read_bytes()
    assert not any(
        "not in the cache yet" in reason
        for reason in plan_stage(root, cache_dir=cache, local_dir=tmp_path / "here").reasons
    )
    again = stage_dataset(root, cache_dir=cache, **places)
    assert (again.report.origin, again.report.cached) == ("local", "yes")
    assert "publish to cache" not in [step.name for step in again.report.steps]
    there = stage_dataset(root, cache_dir=cache, local_dir=tmp_path / "next", progress=False)
    assert (there.report.origin, there.report.cached) == ("cache", "yes, it was copied from there")

"""Croissant: a pack's description is accepted by the format's own library."""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage import stage_dataset
from colabstage.errors import NotStagedError, OptionError, TargetExistsError
from colabstage.options import array_rows
from tests.support.staged import use_small_blocks


def write_classes(folder: Path) -> None:
    for number in range(8):
        image = folder / ("train", "test")[number // 6] / "ab"[number % 2] / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (30 * number, 0, 0)).save(image)


def write_boxes(folder: Path) -> None:
    write_classes(folder)
    annotations = [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [1, 2, 5, 6]}]
    images = [{"id": number, "file_name": path.name} for number, path in enumerate(sorted(folder.rglob("*.png")))]
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "face"}]}
    (folder / "annotations.json").write_text(json.dumps(coco), "utf-8")


def write_masks(folder: Path) -> None:
    for number in range(4):
        for kind, image in (("images", Image.new("RGB", (16, 16))), ("masks", Image.new("L", (16, 16), number % 2))):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            image.save(folder / kind / f"{number}.png")


def write_arrays(folder: Path) -> None:
    folder.mkdir()
    np.savez(folder / "data.npz", x=np.ones((6, 3), np.float32), y=np.linspace(0, 1, 6))


@pytest.fixture
def staged(tmp_path: Path) -> Any:
    def stage(write: Any, **options: Any) -> Any:
        write(tmp_path / write.__name__)
        places: dict[str, Any] = {"local_dir": tmp_path / "here", "cache_dir": None}
        return stage_dataset(tmp_path / write.__name__, progress=False, **places, **options)

    return stage


def fields_of(described: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in described["recordSet"] if one["name"] == name)
    return {field["name"]: field for field in found["field"]}


KINDS: list[Any] = [
    pytest.param(write_classes, {}, "sc:ImageObject", "sc:Integer", id="classes"),
    pytest.param(write_classes, {"encoding": "encoded"}, "sc:ImageObject", "sc:Integer", id="encoded"),
    pytest.param(write_boxes, {}, "sc:ImageObject", "cr:BoundingBox", id="boxes"),
    pytest.param(write_masks, {}, "sc:ImageObject", "sc:ImageObject", id="masks"),
    pytest.param(write_arrays, {"layout": array_rows(x="x", y="y")}, "sc:Float", "sc:Float", id="arrays"),
]


@pytest.mark.parametrize(("write", "options", "x", "y"), KINDS)
def test_a_pack_is_described(write: Any, options: dict[str, Any], x: str, y: str, staged: Any, tmp_path: Path) -> None:
    """The file with its hash, each split with its rows, and a sample's fields; the format's library accepts it."""
    data = staged(write, **options)
    target = tmp_path / "croissant.json"
    described = data.to_croissant(target, name="Photos", license="https://example.org/licence")
    assert json.loads(target.read_text("utf-8")) == described
    (file,) = described["distribution"]
    assert file["sha256"] == hashlib.sha256(data.path.read_bytes()).hexdigest()
    assert (described["name"], file["contentUrl"]) == ("Photos", data.path.name)
    for split in data.splits:
        fields = fields_of(described, f"samples_{split}")
        assert (fields["x"]["dataType"], fields["y"]["dataType"]) == (x, y)
        assert fields["x"]["source"]["extract"]["column"] == f"X_{split}"
    if find_spec("mlcroissant") is None:
        pytest.skip("described as wanted; to have it validated as well: pip install mlcroissant")
    import mlcroissant

    dataset = mlcroissant.Dataset(target)
    assert not dataset.metadata.issues.errors
    rows = {one["splits/name"]: one["splits/rows"] for one in dataset.records("splits")}
    assert rows == data.splits
    if data.classes:
        assert [one["classes/name"] for one in dataset.records("classes")] == list(data.classes)


def test_roles_of_splits_are_named_where_all_are_known(staged: Any) -> None:
    """No split is silently taken for training; nobody knows the role of an unusual name."""
    known = staged(write_classes).to_croissant()
    rows = {row["splits/name"]: row["splits/url"] for row in known["recordSet"][0]["data"]}
    assert rows == {"train": "cr:TrainingSplit", "test": "cr:TestSplit"}
    other = staged(write_arrays, layout=array_rows(x="x", y="y"), splits={"train": 0.5, "mine": 0.5}).to_croissant()
    assert "url" not in fields_of(other, "splits")


def test_what_is_there_stays(staged: Any, tmp_path: Path) -> None:
    """Another file of that name is replaced only on request."""
    data = staged(write_classes)
    (tmp_path / "croissant.json").write_text("mine", "utf-8")
    with pytest.raises(TargetExistsError, match=r"croissant\.json"):
        data.to_croissant(tmp_path / "croissant.json")
    assert (tmp_path / "croissant.json").read_text("utf-8") == "mine"
    data.to_croissant(tmp_path / "croissant.json", overwrite=True)
    assert json.loads((tmp_path / "croissant.json").read_text("utf-8"))["name"] == data.path.stem


def test_without_a_pack_there_is_nothing_to_describe(staged: Any) -> None:
    """Plain files have no rows."""
    with pytest.raises(OptionError, match="plain files"):
        staged(write_classes, keep="files").to_croissant()


@pytest.mark.torch
def test_a_part_of_a_pack_is_not_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hash would not be the pack's."""
    use_small_blocks(monkeypatch)
    np.savez(tmp_path / "data.npz", x_train=np.zeros((4000, 32, 32), np.uint8), y_train=np.arange(4000) % 10)
    places: dict[str, Any] = {"cache_dir": tmp_path / "cache", "progress": False}
    stage_dataset(tmp_path / "data.npz", local_dir=tmp_path / "one", **places)
    data = stage_dataset(tmp_path / "data.npz", local_dir=tmp_path / "other", disk_limit=3_500_000, **places)
    assert data.part is not None
    with pytest.raises(NotStagedError, match="disk_limit"):
        data.to_croissant(tmp_path / "croissant.json")
    assert not (tmp_path / "croissant.json").exists()
    data.part.close()

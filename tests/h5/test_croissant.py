"""Croissant: a pack's description is accepted by the format's own library."""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage import stage_dataset
from colabstage.errors import NotStagedError, OptionError, TargetExistsError
from colabstage.options import array_rows
from tests.layouts.known import coco
from tests.support.made_files import files, grey, npz, write_files
from tests.support.staged import use_small_blocks

CLASSES = files("train/a/{0..2}.png train/b/{3..5}.png test/a/6.png test/b/7.png")
BOXES = CLASSES | files("", {"annotations.json": coco("{0..7}.png", categories="face")})
MASKS = files("images/{0..3}.png") | {f"masks/{n}.png": grey(np.full((48, 64), n % 2, np.uint8)) for n in range(4)}
ARRAYS = {"data.npz": npz(x=np.ones((6, 3), np.float32), y=np.linspace(0, 1, 6))}


@pytest.fixture
def staged(tmp_path: Path) -> Any:
    def stage(made: dict[str, bytes], **options: Any) -> Any:
        places: dict[str, Any] = {"local_dir": tmp_path / "here", "cache_dir": None}
        return stage_dataset(write_files(tmp_path / f"{len(made)}", made), progress=False, **places, **options)

    return stage


def fields_of(described: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in described["recordSet"] if one["name"] == name)
    return {field["name"]: field for field in found["field"]}


KINDS: list[Any] = [
    pytest.param(CLASSES, {}, "sc:ImageObject", "sc:Integer", id="classes"),
    pytest.param(CLASSES, {"encoding": "encoded"}, "sc:ImageObject", "sc:Integer", id="encoded"),
    pytest.param(BOXES, {}, "sc:ImageObject", "cr:BoundingBox", id="boxes"),
    pytest.param(MASKS, {}, "sc:ImageObject", "sc:ImageObject", id="masks"),
    pytest.param(ARRAYS, {"layout": array_rows(x="x", y="y")}, "sc:Float", "sc:Float", id="arrays"),
]


@pytest.mark.parametrize(("made", "options", "x", "y"), KINDS)
def test_a_pack_is_described(made: Any, options: dict[str, Any], x: str, y: str, staged: Any, tmp_path: Path) -> None:
    """The file with its hash, each split with its rows, and a sample's fields; the format's library accepts it."""
    data = staged(made, **options)
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
    known = staged(CLASSES).to_croissant()
    rows = {row["splits/name"]: row["splits/url"] for row in known["recordSet"][0]["data"]}
    assert rows == {"train": "cr:TrainingSplit", "test": "cr:TestSplit"}
    other = staged(ARRAYS, layout=array_rows(x="x", y="y"), splits={"train": 0.5, "mine": 0.5}).to_croissant()
    assert "url" not in fields_of(other, "splits")


def test_what_is_there_stays(staged: Any, tmp_path: Path) -> None:
    """Another file of that name is replaced only on request."""
    data = staged(CLASSES)
    (tmp_path / "croissant.json").write_text("mine", "utf-8")
    with pytest.raises(TargetExistsError, match=r"croissant\.json"):
        data.to_croissant(tmp_path / "croissant.json")
    assert (tmp_path / "croissant.json").read_text("utf-8") == "mine"
    data.to_croissant(tmp_path / "croissant.json", overwrite=True)
    assert json.loads((tmp_path / "croissant.json").read_text("utf-8"))["name"] == data.path.stem


def test_without_a_pack_there_is_nothing_to_describe(staged: Any) -> None:
    """Plain files have no rows."""
    with pytest.raises(OptionError, match="plain files"):
        staged(CLASSES, keep="files").to_croissant()


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

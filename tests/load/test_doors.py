"""The doors of other libraries: each gets what it asks for, and its own loop runs over it where it is installed.

fast.ai and timm need torchvision; here stand-ins have the code of theirs that meets ours, copied from their sources.
Lightning's Trainer runs in the page itself (tests/test_docs.py).
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image

from colabstage.errors import DriveNotMountedError, OptionError
from colabstage.load.frameworks.hugging_face import to_hf
from colabstage.stage.run import stage_dataset
from tests.pages import DOCS, ROOT, blocks
from tests.pictures import write_photos

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.stage.dataset import StagedDataset

PAGE = DOCS[0].with_name("other_libraries.md")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> StagedDataset:
    """A few photographs in two classes, one file in the pack each."""
    place = tmp_path_factory.mktemp("doors")
    write_photos(place / "photos")
    return stage_dataset(
        place / "photos",
        encoding="encoded",
        splits=0.75,
        local_dir=place / "local",
        cache_dir=None,
        progress=False,
    )


def written(package: str) -> str:
    """The code of the page's blocks that need a package."""
    return "".join(block.code for block in blocks(PAGE, "python") if block.note == f"needs {package}")


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Let `import name` find a module with this content."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        module.__dict__.update(content if end == len(parts) else {})
        monkeypatch.setitem(sys.modules, module.__name__, module)


class FastaiLoaders:
    """fast.ai's `DataLoaders`, as `Learner` uses it."""

    def __init__(self, *loaders: Any, device: Any = None) -> None:
        self.loaders, self.device = list(loaders), device
        self.train, self.valid = self.loaders[:2]
        # `Learner` asks the loader for these.
        self.sizes = [(len(one), one.batch_size, len(one.dataset)) for one in self.loaders]


def test_fastai_loops_over_our_loaders(data: StagedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """`one_epoch`: every batch is unpacked to inputs and targets, on both sides, epoch after epoch."""
    small = stage_dataset(
        data.path.parents[2] / "photos", image_size=8, splits=0.75, local_dir=data.path.parents[1], cache_dir=None
    )
    stand_in(monkeypatch, "fastai.data.core", DataLoaders=FastaiLoaders)
    names: dict[str, Any] = {"data": small}
    exec(written("fastai"), names)
    model, dls = torch.nn.Linear(8 * 8 * 3, 2), names["dls"]
    seen = [0, 0]
    for _ in range(2):
        for side, loader in enumerate((dls.train, dls.valid)):
            for batch in loader:
                *xb, yb = batch
                loss: Any = torch.nn.functional.cross_entropy(model(xb[0].flatten(1)), yb)
                loss.backward()
                seen[side] += len(yb)
    assert seen == [2 * small.splits["train"], 2 * small.splits["test"]]
    for loader in (dls.train, dls.valid):
        loader.close()


class TimmImages:
    """timm's `ImageDataset`: its `__init__` and `__getitem__`, without class maps and image modes."""

    def __init__(self, root: str, reader: Any = None) -> None:
        assert reader is not None
        assert not isinstance(reader, str)
        self.reader = reader

    def __getitem__(self, index: int) -> Any:
        file, target = self.reader[index]
        return Image.open(file).convert("RGB"), target

    def __len__(self) -> int:
        return len(self.reader)

    def filenames(self) -> list[str]:
        return [self.reader.filename(index, False, False) for index in range(len(self))]


def test_timm_reads_through_our_reader(data: StagedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image comes as it is in the pack, with its label and its name."""
    stand_in(monkeypatch, "timm.data", ImageDataset=TimmImages)
    names: dict[str, Any] = {"stage_dataset": lambda *_, **__: data}
    exec(written("timm"), names)
    images, ours = names["images"], data["train"]
    assert len(images) == len(ours)
    for row in range(len(ours)):
        image, label = images[row]
        x, y = ours[row]
        np.testing.assert_array_equal(np.asarray(image), x)
        assert label == y
    assert images.filenames() == [name for name, _ in ours.samples]
    images.reader.bytes.file.close()


def test_hugging_face_gets_rows(data: StagedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named labels and whole images; the library's own loop, with torch's loader, sees each row once."""
    pytest.importorskip("datasets", reason="needs datasets: pip install --group arrow")
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # a thread that `datasets` would leave behind
    ours = data["train"]
    rows = to_hf(ours)
    assert rows.features["label"].names == list(data.classes)
    for row in (0, len(ours) - 1):
        np.testing.assert_array_equal(np.asarray(rows[row]["image"]), ours[row][0])
    loader: Any = torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=None)
    assert [int(one["label"]) for one in loader] == ours.targets.tolist()
    with pytest.raises(OptionError, match="one name"):
        to_hf(ours, x="label")
    with pytest.raises(OptionError, match=r"data\['train'\]"):
        to_hf(data)  # type: ignore[arg-type]


def test_paths_on_drive_are_fsspecs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, written, listed and mapped by fsspec itself, below wherever Drive is mounted; without one it says so."""
    module, _, name = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"][
        "fsspec.specs"
    ]["drive"].partition(":")
    kind = getattr(importlib.import_module(module), name)
    fsspec.register_implementation("drive", kind, clobber=True)
    monkeypatch.setattr(f"{module}.list_drives", list)
    with pytest.raises(DriveNotMountedError, match="mount_drive"):
        fsspec.open("drive://MyDrive/a.txt")
    monkeypatch.setattr(f"{module}.list_drives", lambda: [tmp_path])
    (tmp_path / "MyDrive" / "sub").mkdir(parents=True)
    (tmp_path / "MyDrive" / "a.txt").write_text("one\n", encoding="utf-8")
    with fsspec.open("drive://MyDrive/a.txt", "rt") as file:
        assert file.read() == "one\n"
    with fsspec.open("drive://MyDrive/sub/b.txt", "wt") as file:
        file.write("two")
    filesystem, path = fsspec.core.url_to_fs("drive://MyDrive")
    assert sorted(filesystem.find(path)) == ["MyDrive/a.txt", "MyDrive/sub/b.txt"]
    assert fsspec.get_mapper("drive://MyDrive")["sub/b.txt"] == b"two"
    assert [one.path for one in fsspec.open_files("drive://MyDrive/*.txt")] == ["MyDrive/a.txt"]

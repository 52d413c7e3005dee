"""fast.ai, timm and ultralytics train on colabstage's data: their own code, in a separate environment.

They need torchvision, which cannot be imported with the build of torch that the other tests use. `make libraries` sets
their environment up and runs this file there.
"""

import csv
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from colabstage import stage_dataset
from tests.pages import DOCS, blocks

PAGE = DOCS[0].with_name("coming_from.md")
_COUNT = 24

# Warnings of these libraries, and of torch about them, are theirs to fix.
pytestmark = pytest.mark.filterwarnings("default")


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test if a library is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package} beside torchvision: make libraries")


def written(package: str) -> str:
    """Return the code of those blocks of the page that need a package."""
    return "".join(block.code for block in blocks(PAGE, "python") if block.note.endswith(package))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Bright and dark images in two classes, which any network learns in a few steps."""
    rng = np.random.default_rng(0)
    for number in range(_COUNT):
        place = tmp_path / "photos" / ("bright", "dark")[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        low = (160, 20)[number % 2]
        Image.fromarray(rng.integers(low, low + 60, (32, 32, 3), dtype=np.uint8)).save(place)
    return tmp_path / "photos"


@needs("fastai")
def test_a_learner_of_fastai_learns(photos: Path, tmp_path: Path) -> None:
    """Its own loop trains and validates with our loaders, and learns the classes."""
    import fastai.callback.progress
    from fastai.learner import Learner
    from fastai.metrics import accuracy

    data = stage_dataset(photos, image_size=32, splits=0.75, local_dir=tmp_path / "local", cache_dir=None)
    names: dict[str, Any] = {"data": data}
    exec(written("fastai"), names)
    model = torch.nn.Sequential(
        torch.nn.AvgPool2d(32), torch.nn.Flatten(), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
    )
    learner = Learner(names["dls"], model, loss_func=torch.nn.CrossEntropyLoss(), metrics=accuracy, path=tmp_path)
    learner.remove_cb(fastai.callback.progress.ProgressCallback)
    with learner.no_logging():
        learner.fit(8, 0.1)
    # For each epoch: training loss, validation loss and accuracy.
    first, last = learner.recorder.values[0], learner.recorder.values[-1]
    assert last[1] < first[1] / 2
    assert last[2] == 1.0
    for loader in (names["train"], names["valid"]):
        loader.close()


@needs("timm")
def test_a_network_of_timm_is_trained_by_its_loader(photos: Path, tmp_path: Path) -> None:
    """Its loader reads through our reader and augments with its own transforms, and its network learns from that."""
    from timm import create_model
    from timm.data import create_loader

    data = stage_dataset(photos, encoding="encoded", local_dir=tmp_path / "local", cache_dir=None)
    names: dict[str, Any] = {"stage_dataset": lambda *_, **__: data}
    exec(written("timm"), names)
    images = names["images"]
    loader = create_loader(
        images, (3, 32, 32), 8, is_training=True, num_workers=0, use_prefetcher=False, device=torch.device("cpu")
    )
    torch.manual_seed(0)
    model = create_model("resnet10t", num_classes=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        for x, y in loader:
            loss: Any = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert len(losses) == 4 * _COUNT // 8
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) / 2
    assert images.filenames() == [name for name, _ in data["train"].samples]
    images.reader.bytes.file.close()


@pytest.fixture(scope="module")
def yolo_trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train as the page says; once for the module, because the files that ultralytics keeps open are not our leaks."""
    pytest.importorskip("ultralytics", reason="needs ultralytics beside torchvision: make libraries")
    place = tmp_path_factory.mktemp("yolo")
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for number in range(count):
            image = place / f"signs/images/{split}/{number}.jpg"
            label = place / f"signs/labels/{split}/{number}.txt"
            for file in (image, label):
                file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(image)
            label.write_text(f"{number % 2} 0.5 0.5 0.25 0.25\n", encoding="ascii")

    def stage(_: str, **options: Any) -> Any:
        return stage_dataset(place / "signs", local_dir=place / "local", cache_dir=None, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("YOLO_OFFLINE", "true")
        patch.setenv("YOLO_CONFIG_DIR", str(place / "settings"))
        from ultralytics import YOLO

        class SmallYOLO(YOLO):  # type: ignore[misc]
            """Trains from scratch, since no weights are downloaded here: small images, one epoch, in this process."""

            def __init__(self, _: str) -> None:
                super().__init__("yolo11n.yaml")

            def train(self, data: str, epochs: int) -> None:
                """Train on the files that the page wrote, and keep the trainer."""
                assert epochs > 0
                small = {"imgsz": 64, "device": "cpu", "workers": 0, "plots": False, "verbose": False}
                super().train(data=data, epochs=1, batch=4, project=str(place / "runs"), **small)
                trainers.append(self.trainer)

        trainers: list[Any] = []
        patch.setattr("ultralytics.YOLO", SmallYOLO)
        exec(written("ultralytics"), {"stage_dataset": stage})
    (trainer,) = trainers
    return trainer


def test_yolo_trains_on_files_that_were_kept(yolo_trainer: Any) -> None:
    """Its own `train` finds every image with its boxes, and ends with finite losses."""
    found = {Path(one["im_file"]).name: one["cls"].tolist() for one in yolo_trainer.train_loader.dataset.labels}
    assert found == {f"{number}.jpg": [[number % 2]] for number in range(8)}
    assert len(yolo_trainer.test_loader.dataset) == 4
    with yolo_trainer.csv.open(encoding="utf-8") as file:
        (losses,) = csv.DictReader(file)
    assert all(math.isfinite(float(losses[f"train/{name}_loss"])) for name in ("box", "cls", "dfl"))

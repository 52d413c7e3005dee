"""Five training loops as people publish them, each slow by its loading, and what each becomes when advice is followed.

A loop is a name, its loader as published, and one function for each kind of advice that makes the loader anew. The step
sleeps for 4 ms, as the processor does while a GPU works.
"""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from colabstage import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from colabstage.diagnose.advice import Advice

IMAGES, SIDE, BATCH = 192, 112, 16
NAMES = ("recipe dataset_h5", "ImageFolder", "csv and Pillow", "Keras generator", "tf.data")


@dataclass(frozen=True, slots=True)
class Loop:
    """`loader`: as published. `follow`: makes the loader that an advice asks for. `numbers`: a batch as numbers."""

    loader: Any
    follow: Callable[[Advice], Any]


def step(_: object) -> None:
    """What the GPU does meanwhile."""
    time.sleep(0.004)


def write_images(folder: Path) -> Path:
    """JPEGs of 640x480 in a folder for each of two classes, the same as PNGs, and a CSV of them."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(IMAGES):
        small = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC)
        kind = "cat" if number % 2 else "dog"
        for ending, options in (("jpg", {"quality": 90}), ("png", {"compress_level": 1})):
            path = folder / ending / kind / f"{number:04}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, **options)  # type: ignore[arg-type]
        rows.append((f"{kind}/{number:04}.jpg", number % 2))
    with open(folder / "jpg" / "labels.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *rows])
    return folder


def make_loop(name: str, folder: Path) -> Loop:
    """One of `NAMES`, over what `write_images` wrote."""
    makers = (_recipe, _image_folder, _csv, _keras, _tensorflow)
    return dict(zip(NAMES, makers, strict=True))[name](folder)


def _packed(folder: Path, ending: str, mode: Any = "rgb") -> Path:
    out = folder / f"{ending}-{mode}.h5"
    if out.exists():
        return out
    pack_dataset(folder / ending, out, image_size=(SIDE, SIDE), color_mode=mode, layout="image_folder", progress=False)
    return out


def _with_options(loader: Any, options: Mapping[str, Any]) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(loader.dataset, loader.batch_size, shuffle=True, **options)


def _recipe(folder: Path) -> Loop:
    from torch.utils.data import DataLoader

    from benchmarks._recipe import RecipeDataset
    from colabstage import dataset_h5, make_loader

    path = _packed(folder, "jpg")
    loader: Any = DataLoader(RecipeDataset(path), 8, shuffle=True, drop_last=True)
    return Loop(loader, lambda _: make_loader(dataset_h5(path, return_index=True), 8, drop_last=True))


def _files(folder: Path, ending: str) -> list[tuple[Path, int]]:
    return [(path, int(path.parent.name == "cat")) for path in sorted((folder / ending).rglob(f"*.{ending}"))]


def _image_folder(folder: Path) -> Loop:
    import torch
    from torch.utils.data import DataLoader, Dataset

    from colabstage import dataset_h5, make_loader

    class ImageFolder(Dataset[Any]):
        """As torchvision's: a loader that opens, and a transform."""

        def __init__(self) -> None:
            self.samples, self.loader, self.transform = _files(folder, "jpg"), pil_loader, to_tensor

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> Any:
            path, label = self.samples[index]
            return self.transform(self.loader(path)), label

    def pil_loader(path: Path) -> Any:
        with open(path, "rb") as file:
            return Image.open(file).convert("RGB")

    def to_tensor(image: Any) -> Any:
        resized = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        return torch.from_numpy(resized.copy()).permute(2, 0, 1).float() / 255

    loader = DataLoader(ImageFolder(), BATCH, shuffle=True)

    def follow(advice: Advice) -> Any:
        if "dataset" in advice.argument:
            return make_loader(dataset_h5(_packed(folder, "jpg")), BATCH, dtype=torch.float32)
        return _with_options(loader, advice.options)

    return Loop(loader, follow)


def _csv(folder: Path) -> Loop:
    import torch
    from torch.utils.data import DataLoader, Dataset

    from colabstage import dataset_h5, make_loader

    class Rows(Dataset[Any]):
        """Grey images named in a table."""

        def __init__(self) -> None:
            with open(folder / "jpg" / "labels.csv", encoding="utf-8", newline="") as file:
                self.rows = list(csv.DictReader(file))

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            row = self.rows[index]
            image = Image.open(folder / "jpg" / row["image"]).convert("L").resize((SIDE, SIDE))
            return torch.from_numpy(np.asarray(image, np.float32)[None] / 255), int(row["label"])

    loader = DataLoader(Rows(), BATCH, shuffle=True)

    def follow(advice: Advice) -> Any:
        if "dataset" in advice.argument:
            return make_loader(dataset_h5(_packed(folder, "jpg", "grayscale")), BATCH, dtype=torch.float32)
        return _with_options(loader, advice.options)

    return Loop(loader, follow)


def _keras(folder: Path) -> Loop:
    import keras

    from colabstage import to_keras

    class Generator(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no type information
        """Batches of PNGs."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.samples = _files(folder, "png")

        def __len__(self) -> int:
            return len(self.samples) // BATCH

        def __getitem__(self, number: int) -> Any:
            chosen = self.samples[BATCH * number : BATCH * (number + 1)]
            images = [np.asarray(Image.open(path).convert("RGB").resize((SIDE, SIDE))) for path, _ in chosen]
            return np.stack(images).astype(np.float32) / 255, np.array([label for _, label in chosen])

    def follow(advice: Advice) -> Any:
        return (
            to_keras(str(_packed(folder, "png")), BATCH)
            if "dataset" in advice.argument
            else Generator(**advice.options)
        )

    return Loop(Generator(), follow)


def _tensorflow(folder: Path) -> Loop:
    import tensorflow as tf

    from colabstage import to_tf_data

    def load(path: Any, label: Any) -> Any:
        image = tf.io.decode_png(tf.io.read_file(path), channels=3)
        return tf.image.resize(image, (SIDE, SIDE)) / 255.0, label

    def pipeline(words: str = "") -> Any:
        paths, labels = zip(*_files(folder, "png"), strict=True)
        dataset = tf.data.Dataset.from_tensor_slices(([str(path) for path in paths], list(labels))).shuffle(IMAGES)
        calls = tf.data.AUTOTUNE if "num_parallel_calls" in words else None
        dataset = dataset.map(load, num_parallel_calls=calls).batch(BATCH)
        return dataset.prefetch(tf.data.AUTOTUNE) if "prefetch" in words else dataset

    def follow(advice: Advice) -> Any:
        return (
            to_tf_data(str(_packed(folder, "png")), BATCH)
            if "to_tf_data" in advice.argument
            else pipeline(advice.argument)
        )

    return Loop(pipeline(), follow)

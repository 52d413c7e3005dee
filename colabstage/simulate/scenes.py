"""Pictures to practise on in which several handwritten digits lie about, with masks or boxes of where they are."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

HEIGHT, WIDTH = 96, 128
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# What a pixel shows, and its colour in the masks.
MASK_COLOURS = {"ground": (0, 0, 0), "digit": (255, 128, 0), "patch": (0, 128, 255)}

_SIDES = (24, 41)
_DIGITS = (2, 6)
_INK = 110


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture.

    `image`: uint8 `(96, 128, 3)`. `mask`: uint8 `(96, 128)`, indices into `MASK_COLOURS`.
    `boxes`: int64 `(K, 4)`, x0, y0, x1, y1 in pixels around each digit's ink. `digits`: int64 `(K,)`, 0 to 9.
    """

    image: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    boxes: NDArray[np.int64]
    digits: NDArray[np.int64]


def draw_scenes(count: int, *, seed: int = 0) -> Iterator[Scene]:
    """Draw so many pictures; the same ones for the same seed."""
    import numpy as np

    from colabstage.simulate.digits import read_digits

    shades, labels = read_digits()
    dice = np.random.default_rng(seed)
    for _ in range(count):
        chosen = dice.integers(len(labels), size=dice.integers(*_DIGITS))
        yield _draw(shades[chosen], labels[chosen], dice)


def _draw(shades: NDArray[np.uint8], labels: NDArray[np.int64], dice: np.random.Generator) -> Scene:
    import numpy as np

    image = _ground(dice)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    _add_patches(image, mask, dice)
    boxes, digits = [], []
    taken = np.zeros((HEIGHT, WIDTH), bool)
    for picture, label in zip(shades, labels, strict=True):
        side = int(dice.integers(*_SIDES))
        top, left = int(dice.integers(HEIGHT - side)), int(dice.integers(WIDTH - side))
        place = np.s_[top : top + side, left : left + side]
        if taken[place].any():
            continue
        taken[place] = True
        ink = _enlarge(picture, side)
        colour = dice.integers(150, 256, size=3)
        image[place] = np.where(ink[..., None] > _INK, colour * (ink[..., None] / 255), image[place]).astype(np.uint8)
        mask[place][ink > _INK] = 1
        rows, columns = np.nonzero(ink > _INK)
        boxes.append((left + columns.min(), top + rows.min(), left + columns.max() + 1, top + rows.max() + 1))
        digits.append(label)
    return Scene(image, mask, np.array(boxes, np.int64), np.array(digits, np.int64))


def _ground(dice: np.random.Generator) -> NDArray[np.uint8]:
    """A dark ground with some grain."""
    import numpy as np

    grain = dice.integers(0, 30, size=(HEIGHT, WIDTH, 1)) + dice.integers(0, 50, size=3)
    return grain.astype(np.uint8)


def _add_patches(image: NDArray[np.uint8], mask: NDArray[np.uint8], dice: np.random.Generator) -> None:
    """Rectangles that are as bright as digits, so that brightness alone does not tell what is one."""
    for _ in range(dice.integers(1, 4)):
        height, width = dice.integers(10, 30, size=2)
        top, left = dice.integers(HEIGHT - height), dice.integers(WIDTH - width)
        image[top : top + height, left : left + width] = dice.integers(110, 256, size=3)
        mask[top : top + height, left : left + width] = 2


def _enlarge(picture: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    import numpy as np
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC))


def zip_masks(path: Path, *, images: int = 160, seed: int = 0) -> None:
    """Write `images/<number>.jpg`, `masks/<number>.png` in colours, and `class_dict.csv`, as a zip."""
    import numpy as np

    palette = np.array(list(MASK_COLOURS.values()), np.uint8)
    rows = [f"{name},{red},{green},{blue}" for name, (red, green, blue) in MASK_COLOURS.items()]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("class_dict.csv", "\n".join(["name,r,g,b", *rows]) + "\n")
        for number, scene in enumerate(draw_scenes(images, seed=seed)):
            archive.writestr(f"images/{number:04}.jpg", _file(scene.image, "jpeg"))
            archive.writestr(f"masks/{number:04}.png", _file(palette[scene.mask], "png"))


def zip_boxes(path: Path, *, images: int = 120, seed: int = 0) -> None:
    """Write `training/image_2/<number>.png` and `training/label_2/<number>.txt`, as KITTI has them, as a zip."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, scene in enumerate(draw_scenes(images, seed=seed)):
            lines = [
                f"{DIGIT_NAMES[digit]} 0.00 0 0.00 {x0:.2f} {y0:.2f} {x1:.2f} {y1:.2f} -1 -1 -1 -1000 -1000 -1000 -10\n"
                for digit, (x0, y0, x1, y1) in zip(scene.digits, scene.boxes, strict=True)
            ]
            archive.writestr(f"training/image_2/{number:06}.png", _file(scene.image, "png"))
            archive.writestr(f"training/label_2/{number:06}.txt", "".join(lines))


def _file(picture: NDArray[np.uint8], form: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, form)
    return buffer.getvalue()

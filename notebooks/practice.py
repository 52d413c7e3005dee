"""Practice data for these notebooks: small datasets, and the Drive that they are put on.

On Colab it is your own Drive, with one small archive added. Elsewhere a temporary folder stands in for
it. Staged data goes there too, so that nothing is left when the kernel ends.

The datasets are made from scikit-learn's 1,797 handwritten digits: one JPEG for each, or pictures of several digits
with masks or boxes.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import tempfile
import zipfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, get_args

import numpy as np
from PIL import Image

from colabstage import mount_drive
from colabstage.errors import OptionError
from colabstage.h5.manifest import read_manifest, write_manifest
from colabstage.io.files import block_ranges, hash_ranges
from colabstage.machine.platforms import system_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

# Of a pixel, as scikit-learn's digits have them.
_SHADES = 16
_TEST_FRACTION = 0.2
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# The classes of pixels, with their colours in the masks.
MASK_COLOURS = {"ground": (0, 0, 0), "digit": (255, 128, 0), "patch": (0, 128, 255)}
_SIDES = (24, 41)
_DIGITS = (2, 6)
# Darker shades are the soft edge of a stroke, not part of the digit.
_INK = 110
PracticeData = Literal["digits", "masks", "boxes"]
_FOLDER = "colabstage-practice"
_SMALL_BLOCK = 64 * 1024


def read_digits(images: int | None = None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the first digits of scikit-learn's dataset, all 1,797 by default.

    Returns:
        `(images, labels)`: uint8 `(N, 8, 8)` from 0 to 255, int64 `(N,)`.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    shades = np.rint(pixels[:images].reshape(-1, 8, 8) * (255 / _SHADES)).astype(np.uint8)
    return shades, labels[:images].astype(np.int64)


def digit_files(*, images: int | None, seed: int, side: int) -> Iterator[tuple[str, bytes]]:
    """Yield an image folder of digits, file by file: `digits/train/<class>/<number>.jpg`, and `digits/test/…`.

    Args:
        images: how many digits; `None` for all.
        seed: seed for splitting them, 80 to 20.
        side: pixels of a side; the digits have 8, and are enlarged so that JPEGs of them make sense.

    Yields:
        Name and content of each file, in the digits' order.
    """
    shades, labels = read_digits(images)
    order = np.random.default_rng(seed).permutation(len(labels))
    in_test = set(order[: round(len(labels) * _TEST_FRACTION)].tolist())
    for number, (picture, label) in enumerate(zip(shades, labels, strict=True)):
        split = "test" if number in in_test else "train"
        yield f"digits/{split}/{label}/{number:04}.jpg", _file(_enlarge(picture, side), "jpeg", quality=90)


def zip_digits(target: Path | IO[bytes], *, images: int | None = None, seed: int = 0, side: int = 32) -> None:
    """Write `digit_files` as a zip."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in digit_files(images=images, seed=seed, side=side):
            archive.writestr(name, data)


HEIGHT, WIDTH = 96, 128


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture."""

    image: NDArray[np.uint8]
    """Uint8 `(96, 128, 3)`."""
    mask: NDArray[np.uint8]
    """Uint8 `(96, 128)`, indices into `MASK_COLOURS`."""
    boxes: NDArray[np.int64]
    """Int64 `(K, 4)`, x0, y0, x1, y1 in pixels around each digit's ink."""
    digits: NDArray[np.int64]
    """Int64 `(K,)`, 0 to 9."""


def draw_scenes(count: int, *, seed: int = 0) -> Iterator[Scene]:
    """Draw `count` pictures; the same seed gives the same pictures."""
    shades, labels = read_digits()
    rng = np.random.default_rng(seed)
    for _ in range(count):
        chosen = rng.integers(len(labels), size=rng.integers(*_DIGITS))
        yield _draw_scene(shades[chosen], labels[chosen], rng)


def _draw_scene(shades: NDArray[np.uint8], labels: NDArray[np.int64], rng: np.random.Generator) -> Scene:
    image = _ground(rng)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    _add_patches(image, mask, rng)
    boxes, digits = [], []
    taken = np.zeros((HEIGHT, WIDTH), bool)
    for picture, label in zip(shades, labels, strict=True):
        side = int(rng.integers(*_SIDES))
        top, left = int(rng.integers(HEIGHT - side)), int(rng.integers(WIDTH - side))
        place = np.s_[top : top + side, left : left + side]
        # Digits that overlap would have ambiguous masks.
        if taken[place].any():
            continue
        taken[place] = True
        ink = _enlarge(picture, side)
        colour = rng.integers(150, 256, size=3)
        image[place] = np.where(ink[..., None] > _INK, colour * (ink[..., None] / 255), image[place]).astype(np.uint8)
        mask[place][ink > _INK] = 1
        rows, columns = np.nonzero(ink > _INK)
        # Around the ink, not the enlarged picture, whose margin is empty.
        boxes.append((left + columns.min(), top + rows.min(), left + columns.max() + 1, top + rows.max() + 1))
        digits.append(label)
    return Scene(image, mask, np.array(boxes, np.int64), np.array(digits, np.int64))


def _ground(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a dark background with some grain."""
    grain = rng.integers(0, 30, size=(HEIGHT, WIDTH, 1)) + rng.integers(0, 50, size=3)
    return grain.astype(np.uint8)


def _add_patches(image: NDArray[np.uint8], mask: NDArray[np.uint8], rng: np.random.Generator) -> None:
    """Add rectangles that are as bright as digits."""
    # So that brightness alone does not identify a digit, and a model has something to learn.
    for _ in range(rng.integers(1, 4)):
        height, width = rng.integers(10, 30, size=2)
        top, left = rng.integers(HEIGHT - height), rng.integers(WIDTH - width)
        image[top : top + height, left : left + width] = rng.integers(110, 256, size=3)
        mask[top : top + height, left : left + width] = 2


def _enlarge(picture: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC))


def zip_masks(target: Path | IO[bytes], *, images: int = 160, seed: int = 0) -> None:
    """Write `images/<number>.jpg`, `masks/<number>.png` in colours, and `class_dict.csv`, as a zip."""
    palette = np.array(list(MASK_COLOURS.values()), np.uint8)
    rows = [f"{name},{red},{green},{blue}" for name, (red, green, blue) in MASK_COLOURS.items()]
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("class_dict.csv", "\n".join(["name,r,g,b", *rows]) + "\n")
        for number, scene in enumerate(draw_scenes(images, seed=seed)):
            archive.writestr(f"images/{number:04}.jpg", _file(scene.image, "jpeg"))
            archive.writestr(f"masks/{number:04}.png", _file(palette[scene.mask], "png"))


def zip_boxes(target: Path | IO[bytes], *, images: int = 120, seed: int = 0) -> None:
    """Write `training/image_2/<number>.png` and `training/label_2/<number>.txt`, as KITTI has them, as a zip."""
    with zipfile.ZipFile(target, "w") as archive:
        for number, scene in enumerate(draw_scenes(images, seed=seed)):
            lines = [
                f"{DIGIT_NAMES[digit]} 0.00 0 0.00 {x0:.2f} {y0:.2f} {x1:.2f} {y1:.2f} -1 -1 -1 -1000 -1000 -1000 -10\n"
                for digit, (x0, y0, x1, y1) in zip(scene.digits, scene.boxes, strict=True)
            ]
            archive.writestr(f"training/image_2/{number:06}.png", _file(scene.image, "png"))
            archive.writestr(f"training/label_2/{number:06}.txt", "".join(lines))


def _file(picture: NDArray[np.uint8], form: str, *, quality: int = 75) -> bytes:
    buffer = io.BytesIO()
    # What a PNG does not look at.
    Image.fromarray(picture).save(buffer, form, quality=quality)
    return buffer.getvalue()


_WRITERS: dict[PracticeData, Callable[[IO[bytes]], None]] = {
    "digits": zip_digits,
    "masks": zip_masks,
    "boxes": zip_boxes,
}


def open_drive() -> Path:
    """Return the `MyDrive` folder of the Drive: your own on Colab, which may ask for permission; elsewhere a folder
    that is removed when this process ends, with everything that was staged from it."""
    return mount_drive(system_root() / "content/drive") if _on_colab() else _temporary_drive()


def _on_colab() -> bool:
    try:
        import google.colab  # noqa: F401
    except ImportError:
        return False
    return True


def practice_source(source: str = "", data: PracticeData = "digits") -> str | Path:
    """Return the source for a notebook: `source` if given, otherwise a small archive that is put on the Drive.

    Args:
        source: whatever `stage_dataset` takes. On Colab Drive is mounted first, as the source may be there.
        data: `"digits"`: scikit-learn's handwritten digits, a folder for each class; `"masks"`: pictures of several
            digits with a mask for each, coloured by class; `"boxes"`: the same pictures with boxes, as KITTI has them.

    Raises:
        OptionError: there is no such data.
        DriveError: on Colab, the Drive could not be mounted.
    """
    if data not in _WRITERS:
        msg = f"data={data!r} is nothing to practise on. Available: {', '.join(get_args(PracticeData))}."
        raise OptionError(msg)
    if source:
        # It may be on the user's own Drive, which a notebook has to mount first.
        if _on_colab():
            open_drive()
        return source
    target = open_drive() / _FOLDER / f"{data}.zip"
    # Made once for each Drive; a later session finds it there.
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        # In memory: a zip is written in thousands of steps, and each would be a request to Drive's client.
        made = io.BytesIO()
        _WRITERS[data](made)
        target.write_bytes(made.getvalue())
    print(f"Practising on '{target}'. Your own data go into SOURCE.")
    return target


def use_small_blocks(pack: Path) -> None:
    """Rewrite the manifest of a packed file with blocks of 64 KiB instead of 8 MiB, so that a small practice pack is
    read in part like a large one."""
    manifest = read_manifest(pack)
    if manifest is None:
        msg = f"'{pack}' has no manifest, so it is not a finished pack. Stage it first."
        raise OptionError(msg)
    hashes = hash_ranges(pack, block_ranges(manifest.size, _SMALL_BLOCK), threads=1)
    write_manifest(pack, replace(manifest, block_bytes=_SMALL_BLOCK, hashes=tuple(hashes)))


@cache
def _temporary_drive() -> Path:
    home = Path(tempfile.mkdtemp(prefix="colabstage-practice-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    # What is staged from it goes beside it, not into the user's own folder.
    os.environ["COLABSTAGE_LOCAL_DIR"] = str(home / "local")
    drive = home / "MyDrive"
    drive.mkdir()
    print(f"This is not Colab: the folder '{drive}' stands in for your Drive until the kernel ends.")
    return drive

"""The demo's dataset: scikit-learn's 1,797 handwritten digits, as a JPEG image folder and as a zip of it."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from colabstage.simulate.digits import digit_files

if TYPE_CHECKING:
    from pathlib import Path

SIDE = 64


def write_digits(drive: Path, *, images: int | None, seed: int) -> tuple[int, int]:
    """Write `digits/train/<class>`, `digits/test/<class>` and `digits.zip` into a folder.

    Args:
        drive: the folder.
        images: how many digits; `None` for all.
        seed: of the division, 80 to 20.

    Returns:
        Number and bytes of the JPEG files.
    """
    sizes = []
    with zipfile.ZipFile(drive / "digits.zip", "w") as archive:
        for name, data in digit_files(images=images, seed=seed, side=SIDE):
            path = drive / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            archive.writestr(name, data)
            sizes.append(len(data))
    return len(sizes), sum(sizes)

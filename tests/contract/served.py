"""What a staged dataset or a pack holds, in a form that tests can compare."""

from pathlib import Path
from typing import Any

import h5py

from tests.support.images import number_of_pixel


def numbers_in(pack: Path) -> dict[str, int]:
    """Return the number of each image of a pack, by name in the source."""
    with h5py.File(pack) as file:
        return {
            key.decode(): number_of_pixel(x[0, 0])
            for split in (name.removeprefix("key_") for name in file if name.startswith("key_"))
            for key, x in zip(file[f"key_{split}"][()], file[f"X_{split}"], strict=True)
        }


def labels_in(pack: Path) -> dict[str, str]:
    """Return the class of each image of a pack."""
    with h5py.File(pack) as file:
        classes: Any = file["classes"].asstr()[:]
        return dict(zip(file["key_train"].asstr()[:], classes[file["Y_train"][:]], strict=True))

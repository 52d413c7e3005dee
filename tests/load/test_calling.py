"""The caller's transforms that fail: the error shows their arguments; and results that make no batch."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage import dataset_h5, make_loader
from colabstage.errors import OptionError
from colabstage.transforms import RandomFlip
from tests.support.made_files import write_rows


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of three classes."""
    x = np.random.default_rng(0).integers(0, 256, (12, 8, 6, 3), np.uint8)
    return write_rows(tmp_path_factory.mktemp("calling") / "images.h5", x, np.arange(12) % 3)


@pytest.mark.parametrize(
    ("name", "given"),
    [("transform", "train"), ("transform", 7), ("batch_transform", RandomFlip), ("batch_transform", 7)],
)
def test_what_cannot_be_called_is_refused_where_it_is_given(images: Path, name: str, given: Any) -> None:
    def give() -> object:
        if name == "transform":
            return dataset_h5(images, given)
        return make_loader(dataset_h5(images), 4, batch_transform=given)

    with pytest.raises(OptionError, match=f"{name}="):
        give()


def test_other_errors_keep_their_types_and_note_what_was_given(images: Path) -> None:
    """Somebody may catch them."""

    def fails(*_: Any) -> Any:
        msg = "nine"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="nine") as caught:
        dataset_h5(images, fails)[0]
    assert "(8, 6, 3) uint8" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="nine") as caught:
        next(iter(make_loader(dataset_h5(images), 4, batch_transform=fails)))
    assert "(4, 3, 8, 6)" in caught.value.__notes__[0]


CALLS = count()


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda x: None, "None"),
        (Image.fromarray, "Image"),
        (lambda x: x[: 3 + next(CALLS) % 2], r"\(3, 6, 3\)"),
        (lambda x: x.astype(["f4", "u1"][next(CALLS) % 2]), "float32"),
        (lambda x: x[:, ::-1], "ndarray"),
        (iter, "iterator"),
    ],
    ids=["None", "PIL", "shapes", "dtypes", "mirrored", "iterator"],
)
def test_results_that_make_no_batch_are_named(images: Path, transform: Callable[..., Any], says: str) -> None:
    """Bytes among fractions would have been converted to fractions up to 255."""
    of_targets: Any = lambda _: transform(np.zeros((8, 6, 3), np.uint8))  # noqa: E731
    for dataset in (dataset_h5(images, transform), dataset_h5(images, target_transform=of_targets)):
        name = "transform" if dataset.target_transform is None else "target_transform"
        with pytest.raises(OptionError, match=f"{name} .*{says}"):
            list(make_loader(dataset, 2, strategy="direct"))

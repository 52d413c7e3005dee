"""Transforms that are called in another way than they expect: the error says what they were given and what to write."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from colabstage.errors import OptionError
from colabstage.load.calling import apply_transform
from colabstage.load.dataset import dataset_h5
from colabstage.load.epoch import BatchPlace
from colabstage.load.loader import make_loader
from colabstage.transforms import Compose

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of three classes."""
    path = tmp_path_factory.mktemp("calling") / "images.h5"
    with h5py.File(path, "w") as file:
        file["X_train"] = np.random.default_rng(0).integers(0, 256, (12, 8, 6, 3), np.uint8)
        file["Y_train"] = np.arange(12) % 3
    return path


class Augment:
    """As an object of albumentations: takes anything, and works with names alone."""

    __module__ = "albumentations.core.composition"

    def __call__(self, *args: Any, **data: Any) -> dict[str, Any]:
        if args:
            msg = "You have to pass data to augmentations as named arguments, for example: aug(image=image)"
            raise KeyError(msg)
        return data


class MixUp:
    """As torchvision's, of whole batches."""

    __module__ = "torchvision.transforms.v2._augment"

    def __call__(self, *inputs: Any) -> Any:
        return inputs


def masked(image: Any, mask: Any) -> tuple[Any, Any]:
    return image, mask


# A transform that cannot be called as it will be, and the line that the error has; before anything is read.
WRONG_CALLS: list[tuple[Callable[..., Any], str]] = [
    (masked, "'mask'. For x and y together, as of images with masks, write make_loader(…, batch_transform=f)"),
    (lambda: 1, "too many positional arguments"),
    (lambda x, *, size: x, "'size'. Write transform=lambda x: f(x), with what else it needs"),
    (type("Draws", (), {"__init__": lambda _: None}), "It is a class; write transform=Draws()"),
    (Augment(), 'Write transform=lambda x: augment(image=x)["image"]'),
    (MixUp(), "MixUp mixes those of a batch. Write batch_transform=MixUp(…)"),
]


@pytest.mark.parametrize(
    ("transform", "says"), WRONG_CALLS, ids=["two", "none", "by name", "class", "augment", "mixup"]
)
def test_a_transform_of_other_arguments_is_refused_where_it_is_given(
    images: Path, transform: Callable[..., Any], says: str
) -> None:
    with pytest.raises(OptionError) as caught:
        dataset_h5(images, transform)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda x: x, "Write batch_transform=lambda x, y: (f(x), y) for x alone, or dataset_h5(path, transform=f)"),
        (lambda x, y, z: x, "'z'. Write batch_transform=lambda x, y: (f(x), y)"),
        (torch.nn.Flatten(), "Write batch_transform=lambda x, y: (f(x), y)"),
    ],
    ids=["one", "three", "module"],
)
def test_a_batch_transform_of_other_arguments_is_refused_where_it_is_given(
    images: Path, transform: Any, says: str
) -> None:
    for give in (lambda: make_loader(dataset_h5(images), 4, batch_transform=transform), lambda: Compose([transform])):
        with pytest.raises(OptionError) as caught:
            give()
        assert says.partition("batch_transform")[2] in str(caught.value)


def test_whatever_can_be_called_is_taken(images: Path) -> None:
    """Signatures that cannot be known, those of builtins for example, are nobody's mistake."""
    known: list[Any] = [lambda *x: x, lambda x, mask=None: x, torch.nn.Identity(), MixUp().__call__]
    for transform in (np.asarray, torch.as_tensor, float, str, *known):
        assert dataset_h5(images, transform).per_sample


@pytest.mark.parametrize("options", [{}, {"strategy": "workers", "num_workers": 1}], ids=str)
@pytest.mark.parametrize(
    ("transform", "cause"),
    [(lambda x: x.convert("L"), AttributeError), (lambda x: x.float(), AttributeError), (lambda x: x + "a", TypeError)],
    ids=["PIL", "tensor", "text"],
)
def test_one_that_takes_something_else_is_told_what_it_was_given(
    images: Path, transform: Callable[..., Any], cause: type[Exception], options: dict[str, Any]
) -> None:
    """With the error of its own as the cause, where it is raised in this process."""
    with (
        make_loader(dataset_h5(images, transform), 4, **options) as loader,
        pytest.raises(
            OptionError, match=r"transform failed with an array \(8, 6, 3\) uint8: .*PIL.Image.fromarray"
        ) as caught,
    ):
        list(loader)
    assert options or isinstance(caught.value.__cause__, cause)


def test_a_batch_transform_that_takes_something_else_is_told_what_it_was_given(images: Path) -> None:
    loader = make_loader(dataset_h5(images), 4, batch_transform=lambda x, y: (x.astype("f4"), y))
    with pytest.raises(
        OptionError, match=r"x a tensor \(4, 3, 8, 6\) uint8 and y a tensor \(4,\) int64: .*x.numpy\(\)"
    ):
        list(loader)


def test_other_errors_keep_their_types_and_note_what_was_given(images: Path) -> None:
    """Somebody may wait for them."""

    def fails(*_: Any) -> Any:
        msg = "nine"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="nine") as caught:
        dataset_h5(images, fails)[0]
    assert caught.value.__notes__ == ["transform was called with an array (8, 6, 3) uint8."]
    with pytest.raises(ValueError, match="nine") as caught:
        next(iter(make_loader(dataset_h5(images), 4, batch_transform=fails)))
    assert "a tensor (4, 3, 8, 6) uint8 and y a tensor (4,) int64" in caught.value.__notes__[0]


CALLS = count()


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda x: None, "None.*does it lack a return"),
        (Image.fromarray, "a PIL image 6 x 8 RGB.*numpy.asarray"),
        (
            lambda x: x[: 3 + next(CALLS) % 2],
            r"array \(., 6, 3\) uint8 and an array \(., 6, 3\).*resize all to one size",
        ),
        (lambda x: x.astype(["f4", "u1"][next(CALLS) % 2]), "float32|uint8 and an array .*convert all to one"),
        (lambda x: x[:, ::-1], r"f\(x\).copy\(\)"),
        (lambda x: x.astype(np.longdouble), "'float32'"),
        (iter, "'float32'"),
    ],
    ids=["None", "PIL", "shapes", "dtypes", "mirrored", "long", "iterator"],
)
def test_results_that_make_no_batch_are_told(images: Path, transform: Callable[..., Any], says: str) -> None:
    """Bytes among fractions would have been converted to fractions up to 255."""
    of_targets: Any = lambda _: transform(np.zeros((8, 6, 3), np.uint8))  # noqa: E731
    for dataset in (dataset_h5(images, transform), dataset_h5(images, target_transform=of_targets)):
        name = "transform" if dataset.target_transform is None else "target_transform"
        with pytest.raises(OptionError, match=f"The results of {name} make no batch: .*{says}"):
            list(make_loader(dataset, 2, strategy="direct"))


def test_a_batch_transform_that_returns_x_alone_is_refused(images: Path) -> None:
    """A batch of two samples would be unpacked as x and y."""
    loader = make_loader(dataset_h5(images), 2, batch_transform=lambda x, y: x)
    with pytest.raises(OptionError, match=r"returned a tensor \(2, 3, 8, 6\) uint8.*write return x, y"):
        list(loader)
    with pytest.raises(OptionError, match="write return x, y"):
        Compose([lambda x, y: x])(torch.zeros(2, 3, 8, 6), torch.zeros(2))


def test_a_plain_callable_gets_the_batch_alone() -> None:
    """What takes no place is called as it is."""
    assert apply_transform(lambda x, y: (x + 1, y), 1, 2, BatchPlace(0, 0, np.arange(4))) == (2, 2)


def test_a_placed_transform_gets_its_place() -> None:
    """What takes one is not called in the plain way."""

    class Placed:
        def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
            return place.epoch, y

    assert apply_transform(Placed(), 1, 2, BatchPlace(0, 9, np.arange(4))) == (9, 2)

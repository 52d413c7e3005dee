"""What users pass in: datasets with a length, and functions called before storing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import DecodeError, EmptySourceError, LayoutError, OptionError


class Items:
    classes = ("a", "b")

    def __init__(self, count: int, item: Callable[[int], Any]) -> None:
        self._count = count
        self._item = item

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._item(index)


def picture(index: int) -> Image.Image:
    """An image unique to its number."""
    return Image.fromarray(np.random.default_rng(index).integers(0, 256, (8, 9, 3), dtype=np.uint8))


def mask(index: int) -> Image.Image:
    """The same as indices."""
    return Image.fromarray(np.full((8, 9), index, np.uint8))


@pytest.mark.parametrize(
    ("item", "x", "y", "dtypes"),
    [
        (lambda i: (picture(i), i % 2), lambda i: np.asarray(picture(i)), lambda i: i % 2, ("u1", "i8")),
        (lambda i: (picture(i), mask(i)), lambda i: np.asarray(picture(i)), lambda i: np.asarray(mask(i)),
            ("u1", "u1")),
        (lambda i: (np.full((3, 2), i, np.float64), i / 2), lambda i: np.full((3, 2), i), lambda i: i / 2,
            ("f8", "f4")),
        (lambda i: np.full(5, i, np.uint16), lambda i: np.full(5, i), None, ("u2", None)),
    ],
    ids=["images and classes", "images and masks", "arrays and numbers", "arrays alone"],
)  # fmt: skip
def test_every_item_is_one_row(tmp_path: Path, item: Any, x: Any, y: Any, dtypes: tuple[str, str]) -> None:
    """x and y as the dataset returns them, by item number."""
    report = pack_dataset(Items(40, item), tmp_path / "out.h5", progress=False)
    assert report.samples == {"train": 40}
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["X_train"].dtype == dtypes[0]
        for row, key in enumerate(file["key_train"].asstr()[()]):
            np.testing.assert_array_equal(file["X_train"][row], x(int(key)))
            if y is not None:
                assert file["Y_train"].dtype == dtypes[1]
                np.testing.assert_array_equal(file["Y_train"][row], y(int(key)))
        assert ("Y_train" in file) == (y is not None)


def test_items_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """Another shape than the first, after which no item is requested; strings, or None."""
    asked: list[int] = []

    def item(index: int) -> Any:
        asked.append(index)
        return (np.zeros(3 + (index == 20)), index % 2)

    with pytest.raises(LayoutError, match=r"Items\[20\]"):
        pack_dataset(Items(5000, item), tmp_path / "out.h5", progress=False)
    assert len(asked) < 5000
    assert not (tmp_path / "out.h5").exists()
    with pytest.raises(LayoutError, match=r"Items\[0\].*<U4"):
        pack_dataset(Items(9, lambda i: "word"), tmp_path / "out.h5", progress=False)
    with pytest.raises(EmptySourceError, match="no items"):
        pack_dataset(Items(0, picture), tmp_path / "out.h5", progress=False)


def test_prepare_changes_what_is_stored(tmp_path: Path, photos: Path) -> None:
    """It is called with each decoded, resized image; labels and splits are the same as without it."""
    options: dict[str, Any] = {"image_size": (6, 4), "splits": {"train": 0.5, "test": 0.5}, "progress": False}
    pack_dataset(photos, tmp_path / "plain.h5", **options)
    pack_dataset(photos, tmp_path / "out.h5", prepare=lambda x: x.mean(axis=2, dtype=np.float32), **options)
    with h5py.File(tmp_path / "plain.h5") as plain, h5py.File(tmp_path / "out.h5") as out:
        for split in ("train", "test"):
            expected = plain[f"X_{split}"][()].mean(axis=3, dtype=np.float32)
            np.testing.assert_array_equal(out[f"X_{split}"][()], expected)
            np.testing.assert_array_equal(out[f"Y_{split}"][()], plain[f"Y_{split}"][()])


def _drawn_by_torch() -> float:
    return float(pytest.importorskip("torch").rand(()))


# A library that is imported meanwhile has no state to compare with, so each is called once before.
DRAWS: dict[str, tuple[Callable[[], float], bool]] = {
    "numpy's generator": (np.random.rand, True),
    "torch's": (_drawn_by_torch, True),
    "none": (lambda: 0.5, False),
}


@pytest.mark.parametrize(("draw", "is_said"), DRAWS.values(), ids=DRAWS)
def test_random_augmentation_that_would_be_stored_is_noted(
    tmp_path: Path, photos: Path, draw: Callable[[], float], *, is_said: bool
) -> None:
    """A dataset with random transforms, or `prepare=` with one: each epoch of the pack would repeat what was drawn."""
    draw()
    items = Items(20, lambda i: (np.full(3, i + draw()), i % 2))
    notes = pack_dataset(items, tmp_path / "items.h5", progress=False).notes
    assert any("Items drew random numbers" in note for note in notes) == is_said, notes
    notes = pack_dataset(photos, tmp_path / "out.h5", prepare=lambda x: x * draw(), progress=False).notes
    assert any("prepare= drew random numbers" in note for note in notes) == is_said, notes


def test_a_generator_of_its_own_in_prepare_is_noted(tmp_path: Path, photos: Path) -> None:
    own = np.random.default_rng(0)
    notes = pack_dataset(photos, tmp_path / "out.h5", prepare=lambda x: x + own.random(), progress=False).notes
    assert any("prepare= drew random numbers" in note for note in notes), notes


def test_points_in_images_that_are_resized_are_noted(tmp_path: Path) -> None:
    """They are stored as they are."""
    image = Image.fromarray(np.zeros((32, 32, 3), np.uint8))
    items = Items(6, lambda i: (image, np.array([[9.0, 11], [20, 12], [15, 22]]) + i))
    notes = pack_dataset(items, tmp_path / "16.h5", image_size=16, progress=False).notes
    assert any("3x2 numbers, are points" in note for note in notes), notes


def test_prepare_may_change_what_it_gets(tmp_path: Path) -> None:
    """The first sample is prepared twice, and each is the caller's own array."""

    def prepare(x: Any) -> Any:
        x += 1
        return x

    own = [np.full(2, float(number)) for number in range(20)]
    pack_dataset([(x, x) for x in own], tmp_path / "out.h5", prepare=prepare, progress=False)
    with h5py.File(tmp_path / "out.h5") as pack:
        np.testing.assert_array_equal(pack["X_train"][()], pack["Y_train"][()] + 1)
        assert sorted(pack["Y_train"][:, 0]) == [*range(20)]
    np.testing.assert_array_equal(own, np.repeat(np.arange(20.0)[:, None], 2, axis=1))


def test_what_prepare_raises_passes_with_the_sample_that_it_was_for(tmp_path: Path, photos: Path) -> None:
    """It is called in threads, in any order."""

    def of_some(x: Any) -> Any:
        return x if calls.pop() else 1 / 0

    calls = [*[False] * 20, True]
    with pytest.raises(ZeroDivisionError) as raised:
        pack_dataset(photos, tmp_path / "out.h5", prepare=of_some, on_error="skip", progress=False)
    assert any(str(path.relative_to(photos)) in note for path in photos.rglob("*.*") for note in raised.value.__notes__)


def test_prepare_does_not_hide_broken_images(tmp_path: Path, photos: Path) -> None:
    """They are named, and masks that could not follow are refused."""
    (photos / "cat/004.png").write_bytes(b"no image")
    with pytest.raises(DecodeError, match=r"004\.png"):
        pack_dataset(photos, tmp_path / "out.h5", prepare=lambda x: x, image_size=(4, 4), progress=False)
    first, *others = sorted(path for path in photos.rglob("*") if path.is_file())
    first.write_bytes(b"no image")
    report = pack_dataset(photos, tmp_path / "some.h5", prepare=np.negative, on_error="skip", progress=False)
    assert (len(report.skipped), sum(report.samples.values())) == (2, len(others) - 1)
    pair: Any = lambda x: (x, 1)  # noqa: E731
    with pytest.raises(LayoutError, match="tuple"):
        pack_dataset(photos, tmp_path / "two.h5", prepare=pair, on_error="skip", progress=False)
    for path in others:
        path.write_bytes(b"no image")
    with pytest.raises(DecodeError, match=first.name):
        pack_dataset(photos, tmp_path / "two.h5", encoding="pixels", progress=False)
    with pytest.raises(OptionError, match="masks"):
        pack_dataset(
            Items(4, lambda i: (picture(i), mask(i))), tmp_path / "out.h5", prepare=lambda x: x, progress=False
        )


@pytest.mark.parametrize("bad", [[7], [0, 1, 2]], ids=str)
def test_an_item_that_raises_is_named_or_left_out(tmp_path: Path, bad: list[int]) -> None:
    """Like an image that cannot be decoded; one that can be says what x and y are. Pillow raises OSErrors."""
    said = "OSError: image file is tr.*"

    def item(index: int) -> Any:
        if index in bad:
            raise OSError("image file is truncated")
        return np.zeros(3), index % 2

    # Of several, whichever is noticed first.
    with pytest.raises(DecodeError, match=rf"Items\[[{''.join(map(str, bad))}]\].*{said}.*on_error='skip'"):
        pack_dataset(Items(9, item), tmp_path / "out.h5", progress=False)
    report = pack_dataset(Items(9, item), tmp_path / "out.h5", on_error="skip", progress=False)
    assert report.samples == {"train": 9 - len(bad)}
    assert re.fullmatch(rf"Items\[{bad[0]}\]: Items\[{bad[0]}\] raised {said}", report.skipped[0])


@pytest.mark.parametrize("names", [2, {"a", "b"}, ["a", "b"], {"a": 0, "b": 1}])
def test_what_a_dataset_calls_its_classes_may_be_their_number(tmp_path: Path, names: Any) -> None:
    """Names are taken where they have an order."""
    items: Any = Items(4, lambda i: (np.zeros(3), i % 2))
    items.classes = names
    pack_dataset(items, tmp_path / "out.h5", progress=False)
    with h5py.File(tmp_path / "out.h5") as file:
        expected = [] if isinstance(names, int | set) else [b"a", b"b"]
        assert file["classes"][()].tolist() == expected


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (lambda i: (np.zeros(3), i, "meta"), r"Items\[0\] has 3 parts; expected \(x, y\)"),
        (lambda i: {"left": np.zeros(3), "right": i}, r"mapping of 'left', 'right'"),
        (lambda i: (np.zeros(3, np.longdouble), i), r"float128|longdouble"),
        (lambda i: (np.zeros(3), {"label": i}), r"dict of 'label' as its target; expected 'boxes' and 'labels'"),
        (
            lambda i: {"image": np.zeros(3), "objects": {"bbox": []}},
            r"Items\[0\] has no boxes, like the items after it",
        ),
        (lambda i: ([np.zeros(3), np.zeros(2)], i), r"do not make an array.*several inputs are a pack each"),
        (lambda i: (picture(i).resize((i + 1, 4)), i), r"many sizes.*or encoding='jpeg:90'"),
        (lambda i: (np.zeros(3), i or None), r"Items\[1\] has a target, and Items\[0\] has none"),
        (lambda i: (np.zeros(3), None if i == 5 else i % 2), r"Items\[5\] has NoneType"),
        (lambda i: (np.zeros(3), i), r"Items\[2\] has the class 2, and the dataset names 2 classes"),
        (lambda i: (np.zeros(3), np.array([i])), r"Items\[2\] has the class 2, and the dataset names 2 classes"),
        (lambda i: (np.ma.masked_less(np.arange(3.0), 1), i), r"do not make an array: some are masked.*filled"),
        (lambda i: (picture(i), picture(i)), r"of shape \(8, 9, 3\).*pictures and no masks.*y a numpy array"),
        (lambda i: (f"text {i}", i % 2), r"str values.*of a text its tokens"),
    ],
    ids=[
        "three", "mapping", "longdouble", "dict target", "objects", "ragged", "many sizes", "no target",
        "no target later", "class", "class in an array", "masked", "a picture as target", "text",
    ],
)  # fmt: skip
def test_items_of_other_forms_are_typed_errors(tmp_path: Path, item: Any, words: str) -> None:
    """Each says which item, what it is, and what was expected."""
    with pytest.raises((LayoutError, DecodeError), match=words):
        pack_dataset(Items(9, item), tmp_path / "out.h5", progress=False)
    pack_dataset(Items(3, lambda i: [np.full(3, i), i % 2]), tmp_path / "out.h5", progress=False)


class Column:
    """The attributes of a class label column in Hugging Face's `Dataset`."""

    names = ("cat", "dog")


def test_items_that_are_dicts_as_hugging_faces(tmp_path: Path) -> None:
    """An image and a label under their usual names, with class names; a note says what was left out."""
    items: Any = Items(4, lambda i: {"image": picture(i), "label": i % 2, "id": str(i)})
    items.features = {"label": Column}
    report = pack_dataset(items, tmp_path / "out.h5", progress=False)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["Y_train"][()].tolist() == [int(key) % 2 for key in file["key_train"].asstr()]
        assert file["classes"][()].tolist() == [b"cat", b"dog"]
        for row, key in enumerate(file["key_train"].asstr()):
            np.testing.assert_array_equal(file["X_train"][row], np.asarray(picture(int(key))))
    assert any("left out: 'id'" in note for note in report.notes)
    for other in ({"image": picture(1), "label": 0, "labels": 1}, {"label": 1}):
        with pytest.raises(LayoutError, match="columns"):
            pack_dataset([other] * 4, tmp_path / "2.h5", progress=False)
    with pytest.raises(LayoutError, match=r"Items\[2\].*'label'"):
        pack_dataset(
            Items(4, lambda i: {"image": picture(i)} | ({} if i == 2 else {"label": i})),
            tmp_path / "2.h5",
            progress=False,
        )

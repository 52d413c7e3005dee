"""Batches as numpy arrays: the rows and values of `make_loader`, without torch."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage import to_numpy
from colabstage.errors import OptionError
from colabstage.load.batch import pad_boxes
from colabstage.load.frameworks.arrays import ArrayBatches, ArraySpec, one_hot
from colabstage.load.plan import ArrayOptions
from colabstage.load.reading.reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = ["pack", "recipe", "float32", "big-endian", "gzip"]


def epoch_of(batches: ArrayBatches, epoch: int = 0) -> list[Any]:
    return [batches.read(epoch, number) for number in range(len(batches))]


def batches_of(source: Any, batch_size: int = 5, *, split: str | None = None, **options: Any) -> ArrayBatches:
    return ArrayBatches(source, batch_size, ArrayOptions(**options), split=split)


@pytest.fixture
def labelled(tmp_path: Path) -> Callable[..., Path]:
    """Write a file with these targets."""

    def write(targets: Any, **extra: Any) -> Path:
        with h5py.File(tmp_path / "labelled.h5", "w") as file:
            file["X_train"] = np.zeros((len(targets), 4, 6, 3), np.uint8)
            file["Y_train"] = targets
            for name, value in extra.items():
                file.attrs[name] = value
        return tmp_path / "labelled.h5"

    return write


@pytest.mark.parametrize(
    ("split", "shuffle", "in_order"), [("dev", None, True), ("train", None, False), ("dev", True, False)]
)
def test_a_held_out_split_comes_in_the_files_order(
    tmp_path: Path, split: str, shuffle: bool | None, in_order: bool
) -> None:
    """What `predict` returns is compared with labels by position: only `train` is shuffled unless somebody asks."""
    with h5py.File(tmp_path / "two.h5", "w") as file:
        for name in ("train", "dev"):
            file[f"X_{name}"] = np.zeros((40, 2), np.float32)
            file[f"Y_{name}"] = np.arange(40)
    # Without a word of it where nobody asks, as the public functions are called.
    options = {} if shuffle is None else {"shuffle": shuffle}
    batches = batches_of(tmp_path / "two.h5", split=split, **options)
    assert batches.shuffled is not in_order
    for epoch in (0, 1):
        visited = np.concatenate([y for _, y in epoch_of(batches, epoch)])
        assert sorted(visited) == list(range(40))
        assert (visited.tolist() == list(range(40))) is in_order


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_are_those_of_make_loader(
    make_file: Callable[..., Any], kind: str, dtype: str | None, drop_last: bool
) -> None:
    """For the same seed, epoch and batch size: the same samples, values and dtypes, in NHWC."""
    import torch

    from colabstage import dataset_h5, make_loader

    dataset = dataset_h5(make_file(kind, 23).path)
    loader = make_loader(dataset, 5, seed=7, drop_last=drop_last, dtype=None if dtype is None else torch.float32)
    batches = batches_of(dataset, seed=7, drop_last=drop_last, dtype=dtype)
    for epoch in range(2):
        for (x, y), (other_x, other_y) in zip(epoch_of(batches, epoch), loader, strict=True):
            np.testing.assert_array_equal(x, other_x.permute(0, 2, 3, 1).numpy())
            np.testing.assert_array_equal(y, other_y.numpy())
            assert str(x.dtype) == str(other_x.dtype).removeprefix("torch.")


@pytest.mark.torch
def test_transforms_of_the_dataset_are_called(make_file: Callable[..., Any]) -> None:
    """Sample by sample, their results stacked; of other shapes they are refused."""
    from colabstage import dataset_h5

    sample = make_file("pack", 23)
    dataset = dataset_h5(sample.path, lambda x: x[:2].astype(np.float32), target_transform=lambda y: y * 2.5)
    batches = batches_of(dataset, shuffle=False)
    x, y = batches.read(0, 1)
    np.testing.assert_array_equal(x, sample.x[5:10, :2].astype(np.float32))
    np.testing.assert_array_equal(y, sample.y[5:10] * 2.5)
    assert batches.specs()[0] == ArraySpec((None, 2, *sample.x.shape[2:]), np.dtype(np.float32))
    uneven = dataset_h5(sample.path, lambda x: x[: 1 + int(x[0, 0, 0]) % 2])
    with pytest.raises(OptionError, match="transform"):
        epoch_of(batches_of(uneven))


@pytest.mark.torch
def test_transforms_are_called_where_a_batch_is_finished(make_file: Callable[..., Any]) -> None:
    """What is read ahead in a thread of ours calls none; the batch is the same."""
    from colabstage import dataset_h5

    calls: list[int] = []

    def noted(x: Any) -> Any:
        calls.append(1)
        return x.astype(np.float32)

    batches = batches_of(dataset_h5(make_file("pack", 23).path, noted), batch_size=5)
    ahead = batches.read_ahead(1, 2)
    assert not calls
    x, y = batches.finish(ahead)
    assert len(calls) == 5
    expected_x, expected_y = batches.read(1, 2)
    np.testing.assert_array_equal(x, expected_x)
    np.testing.assert_array_equal(y, expected_y)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtype_scales_bytes_to_one(make_file: Callable[..., Any], dtype: str) -> None:
    """uint8 becomes [0, 1]; floats keep their values."""
    sample = make_file("pack", 23)
    x, _ = batches_of(sample.path, shuffle=False, dtype=dtype).read(0, 0)
    assert x.dtype == dtype
    np.testing.assert_allclose(x, sample.x[:5] / 255, rtol=1e-3 if dtype == "float16" else 1e-6)
    floats = make_file("float32", 23)
    x, _ = batches_of(floats.path, shuffle=False, dtype="float32").read(0, 0)
    np.testing.assert_array_equal(x, floats.x[:5])


def test_a_batch_is_the_callers_own(tmp_path: Path) -> None:
    """What is kept is not overwritten, although memory is used again."""
    values = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file["X_train"], file["Y_train"] = values, np.arange(40)
    for dtype in (None, "float32"):
        batches = batches_of(tmp_path / "large.h5", batch_size=8, dtype=dtype)
        for x, y in epoch_of(batches):
            np.testing.assert_allclose(x * (255 if dtype else 1), values[y], atol=1e-3)


def test_one_hot_of_labels_and_masks() -> None:
    """A number a class along the last axis; pixels of no class are in none; labels of shape (1, 1) are labels."""
    labels = one_hot(np.array([2, 0, -1]), 3)
    np.testing.assert_array_equal(labels, [[0, 0, 1], [1, 0, 0], [0, 0, 0]])
    assert labels.dtype == np.float32
    assert one_hot(np.zeros((4, 1, 1), np.uint8), 3).shape == (4, 3)
    masks = np.array([[[0, 255], [1, 2]]], np.uint8)
    hot = one_hot(masks, 3)
    assert hot.shape == (1, 2, 2, 3)
    np.testing.assert_array_equal(hot.sum(axis=-1), [[[1, 0], [1, 1]]])
    np.testing.assert_array_equal(hot.argmax(axis=-1)[0, 1], [1, 2])
    # All zeros would be a sample whose loss is 0, whatever the model says.
    with pytest.raises(OptionError, match=r"class 9.*one_hot=10"):
        one_hot(np.array([2, 0, -1, 9]), 3)
    with pytest.raises(OptionError, match="these are float32"):
        one_hot(np.zeros(3, np.float32), 3)


def test_one_hot_by_the_files_classes(make_file: Callable[..., Any], labelled: Callable[..., Path]) -> None:
    """ "auto" takes as many as are named, and is refused where none are."""
    batches = batches_of(make_file("pack", 23).path, one_hot="auto")
    assert batches.read(0, 0)[1].shape == (5, 5)
    with pytest.raises(OptionError, match="one_hot=10"):
        batches_of(labelled(np.zeros(7, np.int64)), one_hot="auto")


def test_padded_boxes() -> None:
    """As many as the fullest row has, filled up with 0 and -1, with their numbers beside."""
    targets: list[dict[str, Any]] = [
        {"boxes": np.ones((count, 4), np.float32), "labels": np.arange(count), "hard": np.ones(count, np.uint8)}
        for count in (2, 0, 3)
    ]
    padded = pad_boxes(targets)
    assert {name: part.shape for name, part in padded.items()} == {
        "boxes": (3, 3, 4),
        "labels": (3, 3),
        "hard": (3, 3),
        "lengths": (3,),
    }
    assert padded["lengths"].tolist() == [2, 0, 3]
    assert padded["labels"].tolist() == [[0, 1, -1], [-1, -1, -1], [0, 1, 2]]
    assert padded["boxes"][0].sum(axis=1).tolist() == [4, 4, 0]
    assert padded["hard"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32", "int64", "bool"])
def test_labels_are_never_padded_with_a_class(kind: str) -> None:
    """Of any integers; other unsigned numbers are filled up with 0."""
    targets: list[dict[str, Any]] = [
        {"boxes": np.ones((n, 4), np.float32), "labels": np.ones(n, kind), "n": np.ones(n, "uint16")} for n in (2, 1)
    ]
    assert {name: part.tolist() for name, part in pad_boxes(targets).items() if name != "boxes"} == {
        "labels": [[1, 1], [1, -1]], "n": [[1, 1], [1, 0]], "lengths": [2, 1],
    }  # fmt: skip


@pytest.mark.parametrize(("size", "drop_last", "first"), [(5, False, None), (5, True, 5), (23, False, 23)])
def test_specs_say_what_batches_are(
    make_file: Callable[..., Any], size: int, drop_last: bool, first: int | None
) -> None:
    """The first axis is known where all batches are full."""
    sample = make_file("pack", 23)
    x, y = batches_of(sample.path, batch_size=size, drop_last=drop_last).specs()
    assert x == ArraySpec((first, *sample.x.shape[1:]), np.dtype(np.uint8))
    assert y == ArraySpec((first,), np.dtype(np.int64))


def test_a_reader_and_another_split_will_do(tmp_path: Path) -> None:
    """A `SplitReader` as it is; a path with the name of its split."""
    with h5py.File(tmp_path / "two.h5", "w") as file:
        for name, count in (("train", 6), ("dev", 4)):
            file[f"X_{name}"], file[f"Y_{name}"] = np.zeros((count, 2, 2, 3), np.uint8), np.arange(count)
    assert len(batches_of(SplitReader(tmp_path / "two.h5", "dev"), batch_size=1)) == 4
    assert len(batches_of(tmp_path / "two.h5", batch_size=1, split="dev")) == 4
    assert len(batches_of(str(tmp_path / "two.h5"), batch_size=1)) == 6
    with pytest.raises(OptionError, match="split='dev'"):
        batches_of(SplitReader(tmp_path / "two.h5"), split="dev")


@pytest.mark.parametrize("size", [None, (8, 9)])
def test_encoded_images_are_decoded(make_encoded: Callable[..., Path], size: tuple[int, int] | None) -> None:
    """To one size; images of many sizes are refused with what to do."""
    path = make_encoded(7, size=size)
    if size is None:
        with pytest.raises(OptionError, match="image_size="):
            batches_of(path)
        return
    batches = batches_of(path, shuffle=False)
    expected = SplitReader(path).read_x(range(5))
    np.testing.assert_array_equal(batches.read(0, 0)[0], np.asarray(expected))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 24, "drop_last": True}, "23 samples"),
        ({"seed": -1}, "seed=-1"),
        ({"dtype": "uint8"}, "dtype='uint8'"),
        ({"dtype": "nonsense"}, "dtype='nonsense'"),
        ({"one_hot": 0}, "one_hot=0"),
        ({"one_hot": True}, "one_hot=True"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"prefetch_factor": 0}, "prefetch_factor=0"),
    ],
)
def test_what_cannot_work_is_refused(make_file: Callable[..., Any], options: dict[str, Any], words: str) -> None:
    """With the value and what is expected."""
    with pytest.raises(OptionError, match=words):
        batches_of(make_file("pack", 23).path, **options)


def test_a_loop_over_arrays_has_the_batches_of_make_loader_epoch_after_epoch(make_file: Callable[..., Any]) -> None:
    """Read ahead by a thread, which ends with the loop; an epoch can be set, and a loop be left."""
    sample = make_file("pack", 23)
    loader, batches = to_numpy(sample.path, 5, seed=7), batches_of(sample.path, seed=7)
    assert (len(loader), loader.plan.batch_size) == (5, 5)
    for epoch in (0, 1, 7):
        if epoch == 7:
            loader.set_epoch(7)
        for (x, y), (other_x, other_y) in zip(loader, epoch_of(batches, epoch), strict=True):
            np.testing.assert_array_equal(x, other_x)
            np.testing.assert_array_equal(y, other_y)
            x[...] = 0
    for _ in loader:
        break
    loader.close()
    assert [one.name for one in threading.enumerate() if one.name.startswith("colabstage-ahead")] == []
    with pytest.raises(OptionError, match="epoch=-1"):
        loader.set_epoch(-1)


def test_some_rows_are_visited_in_their_order_or_shuffled(make_file: Callable[..., Any]) -> None:
    """As with `sampler=` of `make_loader`: of `train` somebody has to say which."""
    sample, rows = make_file("pack", 23), [4, 2, 22, 9, 1, 0]
    found = np.concatenate([y for _, y in to_numpy(sample.path, 4, rows=rows, shuffle=False)])
    assert found.tolist() == sample.y[rows].tolist()
    fold = batches_of(sample.path, 4, rows=np.array(rows), shuffle=True, seed=3)
    assert len(fold) == 2
    for epoch in range(2):
        assert sorted(np.concatenate([fold.rows(epoch, number) for number in range(2)])) == sorted(rows)
    with pytest.raises(OptionError, match="shuffle=True"):
        batches_of(sample.path, rows=rows)
    with pytest.raises(OptionError, match="out of range"):
        batches_of(sample.path, rows=[23], shuffle=True)
    with pytest.raises(OptionError, match="no samples"):
        batches_of(sample.path, rows=[], shuffle=False)


@pytest.mark.torch
def test_weights_of_samples_are_the_third_part(make_file: Callable[..., Any]) -> None:
    """Of the rows of each batch, beside a dataset's transforms too."""
    from colabstage import dataset_h5

    sample, weights = make_file("pack", 23), np.arange(23) / 7
    dataset = dataset_h5(sample.path, lambda x: x.astype(np.float32))
    for source in (sample.path, dataset):
        batches = batches_of(source, seed=2, sample_weight=weights)
        assert batches.specs()[2] == ArraySpec((None,), np.dtype(np.float32))
        for number, (x, _, found) in enumerate(epoch_of(batches)):
            assert len(x) == len(found)
            np.testing.assert_array_equal(found, weights[batches.rows(0, number)].astype(np.float32))
    for wrong in (weights[:5], weights[:, None], ["a"] * 23):
        with pytest.raises(OptionError, match="sample_weight"):
            batches_of(sample.path, sample_weight=wrong)


def test_torch_is_not_imported() -> None:
    """Where it is not installed, or not wanted: importing it takes seconds."""
    modules = ", ".join(f"colabstage.load.frameworks.{name}" for name in ("arrays", "tensorflow"))
    code = f"import {modules}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"

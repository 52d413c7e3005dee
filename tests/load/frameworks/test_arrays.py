"""Batches as numpy arrays: the rows and values of `make_loader`, without torch."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import to_numpy
from colabstage.errors import OptionError


def written(path: Path, y: Any, x: Any = None, split: str = "train") -> Path:
    """A file with these targets, and inputs of zeros."""
    with h5py.File(path, "a") as file:
        file[f"X_{split}"] = np.zeros((len(y), 4, 6, 3), np.uint8) if x is None else x
        file[f"Y_{split}"] = y
    return path


def with_boxes(path: Path, counts: list[int], **columns: Any) -> Path:
    """A file with so many boxes in each row, and more columns for each box."""
    with h5py.File(path, "w") as file:
        file["X_train"] = np.zeros((len(counts), 4, 6, 3), np.uint8)
        group = file.create_group("Y_train")
        group["offsets"] = np.cumsum([0, *counts], dtype=np.int64)
        group["boxes"] = np.ones((sum(counts), 4), np.float32)
        for name, values in columns.items():
            group[name] = values
    return path


@pytest.mark.parametrize(
    ("split", "options", "in_order"), [("dev", {}, True), ("train", {}, False), ("dev", {"shuffle": True}, False)]
)
def test_a_held_out_split_comes_in_the_files_order(
    tmp_path: Path, split: str, options: dict[str, Any], in_order: bool
) -> None:
    """The results of `predict` are compared with labels by position, so only `train` is shuffled by default."""
    for name in ("train", "dev"):
        written(tmp_path / "two.h5", np.arange(40), split=name)
    batches = to_numpy(tmp_path / "two.h5", 5, split=split, **options)
    for _ in range(2):
        visited = np.concatenate([y for _, y in batches]).tolist()
        assert sorted(visited) == list(range(40))
        assert (visited == list(range(40))) is in_order


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["pack", "recipe", "float32", "big-endian", "gzip"])
@pytest.mark.parametrize(("dtype", "drop_last"), [(None, True), ("float16", False), ("float64", False)])
def test_batches_are_those_of_make_loader(
    make_file: Callable[..., Any], kind: str, dtype: str | None, drop_last: bool
) -> None:
    """For the same seed, epoch and batch size: the same samples, values and dtypes, in NHWC. Each batch is the caller's
    own, an epoch can be set, and a loop that is left leaves no thread."""
    from colabstage import dataset_h5, make_loader

    dataset = dataset_h5(make_file(kind, 23).path)
    options: dict[str, Any] = {"seed": 7, "drop_last": drop_last, "dtype": dtype}
    loader, batches = make_loader(dataset, 5, **options), to_numpy(dataset, 5, **options)
    assert (len(batches), batches.plan.batch_size) == (len(loader), 5)
    for epoch in (0, 1, 7):
        if epoch == 7:
            loader.set_epoch(7)
            batches.set_epoch(7)
        kept = list(batches)
        for (x, y), (other_x, other_y) in zip(kept, loader, strict=True):
            np.testing.assert_array_equal(x, other_x.permute(0, 2, 3, 1).numpy())
            np.testing.assert_array_equal(y, other_y.numpy())
            assert str(x.dtype) == str(other_x.dtype).removeprefix("torch.")
            x[...] = 0
    for _ in batches:
        break
    batches.close()
    assert [one.name for one in threading.enumerate() if one.name.startswith("colabstage-ahead")] == []
    with pytest.raises(OptionError, match="epoch=-1"):
        batches.set_epoch(-1)


@pytest.mark.torch
def test_transforms_of_the_dataset_are_called(make_file: Callable[..., Any]) -> None:
    """For each sample, in the iterating thread, and their results are stacked; different shapes are refused."""
    from colabstage import dataset_h5

    sample, threads = make_file("pack", 23), set()

    def noted(x: Any) -> Any:
        threads.add(threading.current_thread())
        return x[:2].astype(np.float32)

    dataset = dataset_h5(sample.path, noted, target_transform=lambda y: y * 2.5)
    _, (x, y), *_ = to_numpy(dataset, 5, shuffle=False)
    np.testing.assert_array_equal(x, sample.x[5:10, :2].astype(np.float32))
    np.testing.assert_array_equal(y, sample.y[5:10] * 2.5)
    assert threads == {threading.current_thread()}
    for array in (
        np.fliplr,
        lambda x: np.fliplr(x).astype(">i4"),
        lambda x: Image.fromarray(x).transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    ):
        (x, _), *_ = to_numpy(dataset_h5(sample.path, array), 5, shuffle=False)
        np.testing.assert_array_equal(x, sample.x[:5, :, ::-1])
    for odd in (
        lambda x: x[: 1 + int(x[0, 0, 0]) % 2],
        lambda x: (x, x[: 1 + int(x[0, 0, 0]) % 2]),
        lambda x: {str(int(x[0, 0, 0]) % 2): x},
    ):
        with pytest.raises(OptionError, match="results of transform make no batch"):
            list(to_numpy(dataset_h5(sample.path, odd), 5))


@pytest.mark.torch
def test_models_of_several_inputs_or_outputs_get_theirs(make_file: Callable[..., Any]) -> None:
    """Dicts and tuples that transforms return, each part stacked."""
    from colabstage import dataset_h5

    sample = make_file("pack", 23)
    dataset = dataset_h5(
        sample.path, lambda x: {"image": x, "mean": x.mean()}, target_transform=lambda y: (y, np.zeros(3))
    )
    (x, (y, zeros)), *_ = to_numpy(dataset, 5, shuffle=False, dtype="float32")
    np.testing.assert_allclose(x["image"], sample.x[:5] / 255, rtol=1e-6)
    assert (x["mean"].dtype, x["mean"].shape, zeros.shape) == (np.float32, (5,), (5, 3))
    np.testing.assert_array_equal(y, sample.y[:5])
    smooth = dataset_h5(sample.path, target_transform=lambda y: 0.9 if y == sample.y[1] else 0)
    for rows in ([0, 1], [1, 0]):
        assert next(iter(to_numpy(smooth, 2, rows=rows, shuffle=False)))[1].dtype == np.float64
    with pytest.raises(OptionError, match="a tuple"):
        next(iter(to_numpy(dataset, 5, one_hot=3)))


@pytest.mark.parametrize(
    ("y", "one_hot", "hot"),
    [
        ([2, 0, -1], 3, [[0, 0, 1], [1, 0, 0], [0, 0, 0]]),
        (np.zeros((2, 1, 1), np.uint8), 2, [[1, 0], [1, 0]]),
        (np.array([[[0, 255], [1, 2]]], np.uint8), 3, [[[[1, 0, 0], [0, 0, 0]], [[0, 1, 0], [0, 0, 1]]]]),
        # A sample of zeros would have loss 0, whatever the model returns.
        ([2, 0, -1, 3], 3, "one_hot=4"),
        (np.zeros(3, np.float32), 3, "float32"),
        ([0, 1], "auto", "one_hot="),
    ],
    ids=["labels", "recipe", "masks", "too few", "numbers", "no names"],
)
def test_one_hot_has_a_number_for_each_class(tmp_path: Path, y: Any, one_hot: Any, hot: Any) -> None:
    """Along the last axis; void pixels belong to none."""
    path = written(tmp_path / "a.h5", np.asarray(y))
    if isinstance(hot, str):
        with pytest.raises(OptionError, match=hot):
            list(to_numpy(path, 9, shuffle=False, one_hot=one_hot))
        return
    ((_, found),) = to_numpy(path, 9, shuffle=False, one_hot=one_hot)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, hot)


def test_one_hot_by_the_files_classes(make_file: Callable[..., Any]) -> None:
    """ "auto" takes the number of named classes."""
    assert next(iter(to_numpy(make_file("pack", 23).path, 5, one_hot="auto")))[1].shape == (5, 5)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32", "int64", "bool"])
def test_boxes_are_padded(tmp_path: Path, kind: str) -> None:
    """To the fullest row's number, with 0; labels with a number that is not a class."""
    path = with_boxes(tmp_path / "a.h5", [2, 0, 3], labels=np.ones(5, kind), hard=np.ones(5, "uint16"))
    ((_, padded),) = to_numpy(path, 3, shuffle=False)
    assert {name: part.tolist() for name, part in padded.items() if name != "boxes"} == {
        "labels": [[1, 1, -1], [-1, -1, -1], [1, 1, 1]],
        "hard": [[1, 1, 0], [0, 0, 0], [1, 1, 1]],
        "lengths": [2, 0, 3],
    }
    assert padded["boxes"].sum(axis=2).tolist() == [[4, 4, 0], [0, 0, 0], [4, 4, 4]]


@pytest.mark.parametrize("size", [None, (8, 9)])
def test_encoded_images_are_decoded(make_encoded: Callable[..., Path], size: tuple[int, int] | None) -> None:
    """To one size; images of different sizes are refused with advice."""
    path = make_encoded(7, size=size)
    if size is None:
        with pytest.raises(OptionError, match="image_size="):
            to_numpy(path, 5)
        return
    ((x, y),) = to_numpy(path, 7, shuffle=False)
    assert (x.shape, x.dtype, len(y)) == ((7, 8, 9, 3), np.uint8, 7)
    assert x.std() > 20


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 24, "drop_last": True}, "23 samples"),
        ({"dtype": "uint8"}, "dtype='uint8'"),
        ({"one_hot": 0}, "one_hot=0"),
        ({"rows": [4, 2]}, "shuffle=True"),
        ({"rows": [23], "shuffle": True}, "23"),
        ({"rows": [], "shuffle": False}, "no batch"),
        ({"sample_weight": np.ones(5)}, "sample_weight"),
        ({"sample_weight": ["a"] * 23}, "sample_weight"),
        ({"dtype": ","}, "dtype=','"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(make_file: Callable[..., Any], options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        to_numpy(make_file("pack", 23).path, **{"batch_size": 5, **options})


def test_some_rows_are_visited_in_their_order_or_shuffled(tmp_path: Path) -> None:
    """As with `sampler=` in `make_loader`."""
    path, rows = written(tmp_path / "a.h5", np.arange(23)), [4, 2, 22, 9, 1, 0]
    found = np.concatenate([y for _, y in to_numpy(path, 4, rows=rows, shuffle=False)])
    assert found.tolist() == rows
    fold = to_numpy(path, 4, rows=np.array(rows), shuffle=True, seed=3)
    assert len(fold) == 2
    epochs = [np.concatenate([y for _, y in fold]).tolist() for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(rows)] * 3
    assert any(epoch != epochs[0] for epoch in epochs)


@pytest.mark.torch
def test_weights_of_samples_are_the_third_part(tmp_path: Path) -> None:
    """For the rows of each batch, also with transforms of the dataset."""
    from colabstage import dataset_h5

    path, weights = written(tmp_path / "a.h5", np.arange(23)), np.arange(23) / 7
    for source in (path, dataset_h5(path, lambda x: x.astype(np.float32))):
        for x, y, found in to_numpy(source, 5, seed=2, sample_weight=weights):
            assert len(x) == len(found)
            np.testing.assert_array_equal(found, weights[y].astype(np.float32))


def test_torch_is_not_imported(make_file: Callable[..., Any]) -> None:
    """It may not be installed or wanted: importing it takes seconds. Whatever needs it says how to install it."""
    sample = make_file("pack", 23)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import colabstage\n"
        f"print(sum(int(x.sum()) for x, _ in colabstage.to_numpy({str(sample.path)!r}, 4)))\n"
        "for name in ('make_loader', 'dataset_h5', 'CudaDataLoader'):\n"
        "    try: getattr(colabstage, name)\n"
        "    except colabstage.errors.MissingDependencyError as error: print('pip install torch' in str(error))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(int(sample.x.sum())), "True", "True", "True"]

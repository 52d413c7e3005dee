"""`dataset_h5`: a Dataset as torch and its users know it."""

from __future__ import annotations

import ast
import pickle
import re
import shutil
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import DriveDisconnectedError, SplitNotFoundError
from colabstage.images.decode import decode_sized
from colabstage.images.geometry import ImageOptions
from colabstage.load.reading import fields
from colabstage.load.reading.reader import SplitReader
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.pictures import write_photos

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("kind", ["pack", "gzip"])
def test_a_sample_is_x_as_stored_and_y_as_int(make_file: Callable[..., Any], kind: str) -> None:
    """(x, y): x a writable array (H, W, C) of its own, y a Python int; negative indices and numpy's integers too."""
    sample = make_file(kind, 23)
    dataset = dataset_h5(sample.path)
    for index in (0, 22, -1, -23, np.int64(5), torch.tensor(7)):
        x, y = dataset[index]  # type: ignore[index]  # anything with __index__ works
        np.testing.assert_array_equal(x, sample.x[int(index)])
        assert type(y) is int
        assert y == sample.y[int(index)]
    x[...] = 0
    np.testing.assert_array_equal(dataset[7][0], sample.x[7])


def test_transforms_are_called_for_each_sample(make_file: Callable[..., Any]) -> None:
    """transform gets x, target_transform gets y, by index and by batch."""
    sample = make_file("pack", 23)
    dataset = dataset_h5(sample.path, lambda x: int(x.sum()), target_transform=lambda y: y + 100)
    expected = [(int(sample.x[row].sum()), int(sample.y[row]) + 100) for row in (4, 4, 20)]
    assert [dataset[row] for row in (4, 4, 20)] == expected
    assert dataset.__getitems__([4, 4, -3]) == expected


def test_float_targets_keep_their_width(tmp_path: Path) -> None:
    """float32 targets are float32 in a batch too, for regression."""
    with h5py.File(tmp_path / "float.h5", "w") as file:
        file["X_train"], file["Y_train"] = np.zeros((4, 2, 2, 1), np.uint8), np.linspace(0, 1, 4, dtype=np.float32)
    _, y = next(iter(DataLoader(dataset_h5(tmp_path / "float.h5"), 4)))
    assert y.dtype == torch.float32


def test_wrong_split_lists_those_there_are(make_file: Callable[..., Any]) -> None:
    """A misspelt split is answered with the right names."""
    with pytest.raises(SplitNotFoundError, match="'train' \\(23 samples\\)"):
        dataset_h5(make_file("pack", 23).path, split="validation")


def test_a_pack_that_was_not_divided_says_how_to(tmp_path: Path) -> None:
    """The fractions in the message make the split that was asked for."""
    write_photos(tmp_path / "photos", 20)
    pack_dataset(tmp_path / "photos", tmp_path / "whole.h5", progress=False)
    with pytest.raises(SplitNotFoundError, match="splits=") as caught:
        dataset_h5(tmp_path / "whole.h5", split="val")
    fractions = ast.literal_eval(re.findall(r"splits=(\{.*?\})", str(caught.value))[0])
    pack_dataset(tmp_path / "photos", tmp_path / "divided.h5", splits=fractions, progress=False)
    assert len(dataset_h5(tmp_path / "divided.h5", split="val")) == 4


@pytest.mark.parametrize("kind", ["pack", "gzip"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_reads_on_after_close_and_pickling(make_file: Callable[..., Any], kind: str, in_memory: bool) -> None:
    """Closing lets go of the file without ending the dataset; a pickled one is as good."""
    sample = make_file(kind, 23)
    dataset = dataset_h5(sample.path, in_memory=in_memory)
    for again in (dataset, pickle.loads(pickle.dumps(dataset))):
        again.close()
        again.close()
        np.testing.assert_array_equal(again[3][0], sample.x[3])
        again.close()


@pytest.mark.parametrize(("kind", "words"), [("pack", "10 x 12 x 3 uint8"), ("gzip", "chunks")])
def test_it_describes_itself(make_file: Callable[..., Any], kind: str, words: str) -> None:
    """repr and the notebook's HTML say what the samples are and how they are read."""
    dataset = dataset_h5(make_file(kind, 23).path)
    for text in (repr(dataset), dataset._repr_html_()):
        assert words in text
        assert "23" in text


def test_names_of_its_own_are_in_its_description(tmp_path: Path) -> None:
    """A split that is not in the file would say nothing."""
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["X_dev"], file["Y_dev"] = np.zeros((3, 2)), np.zeros(3)
    for y, told in (("Y_dev", "x='X_dev', y='Y_dev'"), (None, "x='X_dev', y=None")):
        for text in (repr(dataset := dataset_h5(tmp_path / "own.h5", x="X_dev", y=y)), dataset._repr_html_()):
            assert told.replace("'", "&#x27;") in text if text.startswith("<") else told in text
            assert "train" not in text


@pytest.mark.parametrize(
    ("kind", "in_memory", "workers", "method", "persistent"),
    [
        ("pack", False, 0, None, False),
        ("pack", True, 2, "fork", True),
        ("gzip", False, 2, "fork", False),
        ("gzip", True, 0, None, False),
        # Spawned processes take seconds to import torch, so not in every combination.
        ("pack", False, 1, "spawn", True),
        pytest.param("gzip", True, 2, "spawn", True, marks=pytest.mark.long),
    ],
)
def test_in_a_plain_dataloader(
    make_file: Callable[..., Any], kind: str, workers: int, method: str | None, persistent: bool, in_memory: bool
) -> None:
    """torch's own DataLoader reads every sample right, after the parent has used the dataset, and twice in a row."""
    sample = make_file(kind, 23)
    dataset = dataset_h5(sample.path, in_memory=in_memory)
    dataset[0]
    loader = DataLoader(
        dataset,
        4,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=persistent,
        timeout=60 * bool(workers),
    )
    for _ in range(2):
        batches = list(loader)
        assert [len(y) for _, y in batches] == [4, 4, 4, 4, 4, 3]
        np.testing.assert_array_equal(torch.cat([x for x, _ in batches]).numpy(), sample.x)
        np.testing.assert_array_equal(torch.cat([y for _, y in batches]).numpy(), sample.y)
    np.testing.assert_array_equal(dataset[22][0], sample.x[22])


@pytest.mark.parametrize("usable", [True, False], ids=["torch", "no kernel of torch's"])
def test_images_that_are_resized_on_read_are_resized_by_torch(
    make_encoded: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, usable: bool
) -> None:
    """By torch's filter where it can be used, one by one and in batches alike, and otherwise by Pillow's, which is that
    of a reader alone; no pixel is more than one grey level off."""
    monkeypatch.setattr(fields, "can_torch_resize", lambda: usable)
    path = make_encoded(7, size=(5, 13))
    dataset = dataset_h5(path)
    batch, _ = dataset.read_batch(range(7), threads=2)
    with h5py.File(path) as file:
        ends, data = file["X_train/offsets"][()], file["X_train/bytes"][()].tobytes()
    for row, image in enumerate(batch):
        file_bytes = data[ends[row] : ends[row + 1]]
        expected, *_ = decode_sized(file_bytes, ImageOptions((5, 13)), resizer="torch" if usable else "pillow")
        np.testing.assert_array_equal(image, expected)
        np.testing.assert_array_equal(dataset[row][0], expected)
    by_pillow = np.asarray(SplitReader(path).read_x(range(7)))
    assert np.abs(np.asarray(batch).astype(int) - by_pillow).max() == int(usable)


@pytest.mark.fuse
@pytest.mark.filterwarnings("ignore:.*in_memory=True:UserWarning")
@pytest.mark.parametrize("chunks", [None, (1, 256, 256, 3)])
def test_a_mount_that_dies_between_two_batches_is_named(tmp_path: Path, chunks: tuple[int, ...] | None) -> None:
    """The file is not called damaged, whichever engine asks HDF5: the mount is named, and how to mount it again."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("X_train", data=np.ones((64, 256, 256, 3), np.uint8), chunks=chunks)
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        shutil.copy(tmp_path / "a.h5", drive.cloud / "MyDrive" / "data.h5")
        drive.mount(tmp_path / "drive")
        dataset = dataset_h5(tmp_path / "drive" / "MyDrive" / "data.h5")
        dataset.read_batch([0])
        drive.kill()
        with pytest.raises(DriveDisconnectedError, match=r"mount_drive\("):
            dataset.read_batch(range(64))
        dataset.close()


@pytest.mark.fuse
def test_a_file_on_a_slow_mount_warns_and_is_not_mapped(make_file: Callable[..., Any], tmp_path: Path) -> None:
    """On Drive's mount the dataset says what it will cost, reads through h5py, or reads it once into memory."""
    sample = make_file("pack", 23)
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        shutil.copy(sample.path, drive.cloud / "MyDrive" / "data.h5")
        drive.mount(tmp_path / "drive")
        path = tmp_path / "drive" / "MyDrive" / "data.h5"
        with pytest.warns(UserWarning, match="in_memory=True"):
            dataset = dataset_h5(path)
        assert dataset.engine.name == "h5py"
        np.testing.assert_array_equal(dataset.read_batch([3, -1, 3])[0], sample.x[[3, -1, 3]])
        dataset.close()
        # No warning: a warning would be an error here.
        loaded = dataset_h5(path, in_memory=True)
        np.testing.assert_array_equal(loaded[5][0], sample.x[5])
        loaded.close()

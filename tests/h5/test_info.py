"""What is read from a packed file, ours or anybody's, and how each kind of bad file is reported."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5
from colabstage.errors import ColabstageError, DamagedPackError, PackFormatError
from colabstage.h5.info import NamedFields, coding_to_json, read_info
from tests.support.made_files import h5
from tests.support.packs import write_pack

IMAGE = {"size": [8, 9], "color_mode": "grayscale", "resize": "pad"}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack of pixels in `train` and encoded images in `test`."""
    labels = np.array([0, 1, 1], dtype=np.int64)
    return write_pack(
        tmp_path / "photos.h5",
        {
            "Y_train": labels,
            "Y_test": labels[:2],
            "key_train": ["a/1.png", "b/2.png", "b/ü.png"],
            "X_test/offsets": np.array([0, 250, 600], dtype=np.int64),
            "classes": ["a", "b"],
            "skipped": ["a/bad.png: cut off"],
            "X_train": np.zeros((3, 40, 50, 3), np.uint8),
            "X_test/bytes": np.zeros(600, np.uint8),
        },
        {
            "layout": "image_folder",
            "options": {"seed": 1},
            "source": "/data/photos",
            "encoding_reason": "it fits",
            "X_test/image_options": IMAGE,
        },
    )


def test_a_pack_says_what_it_holds(pack: Path) -> None:
    """Splits, shapes, classes and origin are read without touching a sample."""
    info = read_info(pack)
    assert info.format_version == 1
    assert (info.layout, info.classes, info.source) == ("image_folder", ("a", "b"), "/data/photos")
    assert info.options == {"seed": 1}
    assert info.skipped == ("a/bad.png: cut off",)
    assert info.encoding_reason == "it fits"
    assert list(info.splits) == ["train", "test"]
    train, test = info.split("train"), info.split("test")
    assert (train.rows, train.x.kind, train.x.shape, train.x.nbytes) == (3, "fixed", (40, 50, 3), 3 * 40 * 50 * 3)
    assert train.y is not None
    assert (train.y.shape, train.y.dtype, train.keys) == ((), np.dtype(np.int64), "key_train")
    assert (test.rows, test.x.kind, test.x.shape, test.x.nbytes) == (2, "encoded", None, 600)
    assert test.x.image is not None
    assert coding_to_json(test.x.image) == IMAGE
    assert test.keys is None


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_file_of_anybody_is_read(tmp_path: Path) -> None:
    """A plain h5py file only needs X_<split>: no version, no classes, not even targets."""
    inputs = {f"X_{split}": np.zeros((4, 2)) for split in ("zebra", "test", "train", "val", "dev", "alpaca")}
    info = read_info(write(tmp_path / "theirs.h5", h5(**inputs, Y_train=np.zeros((4, 1)))))
    assert info.format_version is None
    assert info.classes == ()
    assert list(info.splits) == ["train", "dev", "val", "test", "alpaca", "zebra"]
    assert info.split("dev").y is None


def test_the_advice_names_what_is_there(tmp_path: Path) -> None:
    """With the paths of datasets in groups, and the line that finds out what they are."""
    arrays = {"train/images": np.zeros((4, 8, 8, 3)), "train/labels": np.zeros(4)}
    with pytest.raises(PackFormatError, match=r"train/images, train/labels.*pack_dataset\(path, 'packed.h5'\)"):
        read_info(write(tmp_path / "theirs.h5", h5(**arrays)))


@pytest.mark.parametrize("name", ["labels_train", "train_label", "targets", "y", "classes", "masks"])
def test_targets_by_another_name_are_asked_for(tmp_path: Path, name: str) -> None:
    """Otherwise every label would be -1. A dataset of another length, or an unrelated one, is not taken for targets."""
    arrays = {"X_train": np.zeros((4, 8, 8, 3)), "weights": np.zeros(4), "label_names": np.zeros(3), "ids": np.zeros(4)}
    path = write(tmp_path / "theirs.h5", h5(**arrays))
    assert read_info(path).split("train").y is None
    with h5py.File(path, "a") as file:
        file[name] = np.zeros((4, 8, 8), np.uint8) if name == "masks" else np.arange(4)
    with pytest.raises(PackFormatError, match=rf"x='X_train', y='{name}'\)"):
        read_info(path)
    assert read_info(path, NamedFields("train", "X_train")).split("train").y is None
    found = read_info(path, NamedFields("train", "X_train", name)).split("train").y
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", DamagedPackError, "is empty"),
        (bytes(100_000), DamagedPackError, "begins with zeros"),
        (b"<!DOCTYPE html><html>Quota exceeded</html>", PackFormatError, "web page"),
        (b"epoch,loss\n1,0.5\n", PackFormatError, "text file"),
        (b"PK\3\4" + bytes(range(256)), PackFormatError, "zip archive"),
        (np.random.default_rng(0).bytes(5000), PackFormatError, "not an HDF5 file"),
    ],
    ids=["empty", "zeros", "html", "text", "zip", "noise"],
)
def test_what_is_no_hdf5_is_said_to_be_what_it_is(
    tmp_path: Path, data: bytes, error: type[ColabstageError], says: str
) -> None:
    """The error's class says whether the file ever was a pack; its text says what it is instead."""
    with pytest.raises(error, match=says):
        read_info(write(tmp_path / "odd.h5", data))


OF_BOXES = {"X_train": np.zeros((2, 2)), "Y_train/offsets": np.array([0, 1, 3]), "Y_train/boxes": np.zeros((3, 4))}
NO_SAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "a scalar": ({"X_train": 5}, "no axes"),
    "a group without offsets": ({"X_train/bytes": np.zeros(3, np.uint8)}, "no offsets"),
    "targets of another length": ({"X_train": np.zeros((5, 2)), "Y_train": np.zeros(3)}, "5 rows.*3 in Y_train"),
    "more labels than boxes": ({**OF_BOXES, "Y_train/labels": np.zeros(4, int)}, "columns of .* as many of each"),
    "five numbers": (
        {**OF_BOXES, "Y_train/boxes": np.zeros((3, 5)), "Y_train/labels": np.zeros(3, int)}, "four numbers for a box"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_SAMPLES)
def test_fields_that_cannot_be_samples_are_refused(tmp_path: Path, case: str) -> None:
    arrays, says = NO_SAMPLES[case]
    with pytest.raises(PackFormatError, match=says):
        read_info(write(tmp_path / "odd.h5", h5(**arrays)))


@pytest.mark.parametrize("what", ["object header", "attribute", "offsets"])
def test_a_damaged_table_of_contents_is_typed(pack: Path, what: str) -> None:
    """If HDF5 opens the file but cannot follow its structure, the pack is reported as damaged."""
    whole = bytearray(pack.read_bytes())
    if what == "attribute":
        with h5py.File(pack, "r+") as file:
            file["X_test"].attrs["image_options"] = "{not json"
    elif what == "offsets":
        with h5py.File(pack, "r+") as file:
            del file["X_test/offsets"]
            file["X_test/offsets"] = 5
    else:
        # In this version, every group and dataset begins with OHDR; the root's stays, so that the file opens.
        first = whole.index(b"OHDR")
        while (position := whole.find(b"OHDR", first + 4)) > 0:
            whole[position : position + 4] = bytes(4)
        pack.write_bytes(whole)
    with pytest.raises(DamagedPackError, match="table of contents"):
        read_info(pack)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Let another process hold files open for writing, until the test ends."""
    script = tmp_path / "hold.py"
    script.write_text(
        "import h5py, sys\nwith h5py.File(sys.argv[1], 'r+'):\n    print('open', flush=True)\n    sys.stdin.read()\n",
        encoding="utf-8",
    )
    with ExitStack() as stack:

        def hold(path: Path) -> None:
            command = [sys.executable, str(script), str(path)]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.communicate, "", timeout=30)
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"

        yield hold


def test_the_lock_of_a_writer_does_not_keep_readers_out(tmp_path: Path, writer: Callable[[Path], None]) -> None:
    """HDF5's file lock does not prevent reading a file that is readable without it."""
    path = write(tmp_path / "theirs.h5", h5(X_train=np.zeros((4, 2))))
    writer(path)
    assert read_info(path).split("train").rows == 4


def test_a_pack_that_somebody_changes_is_said_to_be_written(pack: Path, writer: Callable[[Path], None]) -> None:
    """HDF5 marks newer files as open for writing; the error says so, instead of reporting wrong bytes."""
    writer(pack)
    with pytest.raises(DamagedPackError, match="is writing it"):
        read_info(pack)


def test_a_pack_of_many_rows_opens_in_an_instant(tmp_path: Path) -> None:
    """Opening 200,000 rows with their keys takes no longer than a frame of a film."""
    count = 200_000
    keys = [f"class_{row % 10}/image_{row:06}.jpg" for row in range(count)]
    rows = {"X_train": np.zeros((count, 8, 8, 1), np.uint8), "Y_train": np.zeros(count, np.int64), "key_train": keys}
    path = write_pack(tmp_path / "pack.h5", rows, {"layout": "image_folder"})
    seconds = []  # CPU time: everything is in the page cache, and others may use the core
    for _ in range(10):
        start = time.process_time()
        dataset_h5(path)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.02

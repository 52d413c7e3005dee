"""A foreign HDF5 file leads to other files only where the caller allows it."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import ExternalFileError, LayoutError, PackFormatError
from colabstage.h5.info import read_info

pytestmark = pytest.mark.torch

ROWS = np.arange(500, dtype=np.uint8).reshape(5, 100)
LIMIT_S = 20


def link(file: Any, name: str, target: str) -> None:
    file[name] = h5py.ExternalLink(target, "/x")


def virtual(file: Any, name: str, target: str) -> None:
    layout = h5py.VirtualLayout(ROWS.shape, ROWS.dtype)
    layout[:] = h5py.VirtualSource(target, "x", ROWS.shape)
    file.create_virtual_dataset(name, layout)


def through_a_group(file: Any, name: str, target: str) -> None:
    file["group"] = h5py.ExternalLink(target, "/")
    file[name] = h5py.SoftLink("/group/x")


def virtual_behind_a_link(file: Any, name: str, target: str) -> None:
    virtual(file, "inner", target)
    file[name] = h5py.SoftLink("inner")


def virtual_of_a_virtual(file: Any, name: str, target: str) -> None:
    virtual(file, "x", target)
    virtual(file, name, ".")


WAYS: list[Callable[[Any, str, str], None]] = [
    link,
    virtual,
    through_a_group,
    virtual_behind_a_link,
    virtual_of_a_virtual,
]


def write_target(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["x"] = ROWS
    return path


def write_file(path: Path, way: Callable[[Any, str, str], None], target: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        way(file, "X_train", target)
        file["Y_train"] = np.arange(5)
    return path


def rows_of(dataset: Any) -> Any:
    with_rows = np.asarray(dataset.read_batch(range(5))[0])
    dataset.close()
    return with_rows


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_file_outside_of_the_folder_is_refused_by_name(tmp_path: Path, way: Any) -> None:
    """The message names the file and the argument, and the argument works."""
    target = write_target(tmp_path / "home" / "key0.h5")
    path = write_file(tmp_path / "downloads" / "data.h5", way, str(target))
    for given in (path, [path]):
        with pytest.raises(ExternalFileError, match="allow_external=True") as caught:
            dataset_h5(given)
        assert str(target) in str(caught.value)
    with pytest.raises(ExternalFileError):
        read_info(path)
    dataset = dataset_h5(path, allow_external=True)
    assert np.array_equal(rows_of(pickle.loads(pickle.dumps(dataset))), ROWS)


def test_a_file_beside_it_is_read_when_allowed(tmp_path: Path, way: Any) -> None:
    """And what is not there is an error, where HDF5 would give zeros."""
    path = write_file(tmp_path / "data.h5", way, "part0.h5")
    with pytest.raises(PackFormatError):
        dataset_h5(path, allow_external=True)
    write_target(tmp_path / "part0.h5")
    assert np.array_equal(rows_of(dataset_h5(path, allow_external=True)), ROWS)


def test_what_a_linked_file_is_put_together_from_must_be_there(tmp_path: Path) -> None:
    with h5py.File(write_file(tmp_path / "middle.h5", virtual, "gone.h5"), "a") as file:
        file["x"] = h5py.SoftLink("/X_train")
    with pytest.raises(PackFormatError, match=r"gone\.h5"):
        dataset_h5(write_file(tmp_path / "outer.h5", link, "middle.h5"), allow_external=True)


def test_parts_of_a_pack_are_checked_too(tmp_path: Path) -> None:
    """Members of groups, names of classes and keys; and a pack with a manifest."""
    target = write_target(tmp_path / "home" / "key.h5")
    source = tmp_path / "source.npz"
    np.savez(source, x=np.zeros((20, 4), np.uint8), y=np.arange(20) % 2)
    pack = tmp_path / "downloads" / "pack.h5"
    pack.parent.mkdir()
    pack_dataset(source, pack, progress=False)
    split = next(iter(read_info(pack).splits))
    for name in (f"X_{split}", f"Y_{split}", "classes"):
        with h5py.File(pack, "a") as file:
            kept = file.pop(name) if name in file else None
            shape = None if kept is None else kept.shape
            file[name] = h5py.ExternalLink(str(target), "/x")
        with pytest.raises(ExternalFileError):
            dataset_h5(pack, split=split)
        with h5py.File(pack, "a") as file:
            del file[name]
            if shape is not None:
                file[name] = np.zeros(shape, np.uint8)
    with h5py.File(pack, "a") as file:
        group = file.create_group("X_other")
        group["offsets"] = np.arange(6)
        group["bytes"] = h5py.ExternalLink(str(target), "/x")
    with pytest.raises(ExternalFileError):
        dataset_h5(pack, split="other")


def test_packing_reads_no_other_file(tmp_path: Path, way: Any) -> None:
    """Rows come from files in the folder, or there is an error; whatever `dataset_h5` may read can be packed."""
    target = write_target(tmp_path / "home" / "key0.h5")
    path = write_file(tmp_path / "downloads" / "data.h5", way, str(target))
    with pytest.raises(LayoutError) as caught:
        pack_dataset(path, tmp_path / "out.h5", progress=False)
    # For several unreadable arrays, the first question is which is meant.
    assert str(target) in str(caught.value) or way in (through_a_group, virtual_behind_a_link)
    assert not (tmp_path / "out.h5").exists()
    pack_dataset(dataset_h5(path, allow_external=True), tmp_path / "out.h5", progress=False)
    packed = rows_of(dataset_h5(tmp_path / "out.h5"))
    assert sorted(packed.tolist()) == sorted(ROWS.tolist())

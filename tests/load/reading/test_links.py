"""Datasets that lie in other files than the one opened: each engine gives what h5py gives, or there is an error."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colabstage.errors import DamagedPackError, LayoutError, OptionError, PackFormatError, SourceNotFoundError
from colabstage.layouts.detect import detect_layout
from colabstage.load.reading.fields import EngineChoice
from colabstage.load.reading.reader import SplitReader
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ROWS = 9
STORAGES = ("contiguous", "big-endian", "chunked", "cut chunks", "gzip", "userblock", "virtual", "external storage")
LINKS = ("none", "hard", "soft", "external", "through a group", "twice external")


def values(seed: int, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(1, 200, (ROWS, *shape)).astype(np.int32)


def store(folder: Path, file: Any, name: str, data: NDArray[Any], storage: str) -> None:
    """Write one dataset, behind another one so that its place is its own."""
    file.create_dataset(f"pad_{name}", data=np.zeros(len(name) * 37, np.uint8))
    if storage == "virtual":
        part = f"{Path(file.filename).stem}-{name}-part.h5"
        with h5py.File(folder / part, "w") as source:
            source["part"] = data
        layout = h5py.VirtualLayout(data.shape, data.dtype)
        layout[:] = h5py.VirtualSource(part, "part", shape=data.shape)
        file.create_virtual_dataset(name, layout)
        return
    every: dict[str, dict[str, Any]] = {
        "chunked": {"chunks": (2, *data.shape[1:]), "maxshape": (None, *data.shape[1:])},
        "cut chunks": {"chunks": (4, *(max(1, side // 2) for side in data.shape[1:]))},
        "gzip": {"compression": "gzip", "chunks": (2, *data.shape[1:])},
        "external storage": {
            "external": [(str(folder / f"{Path(file.filename).stem}-{name}.raw"), 16, h5py.h5f.UNLIMITED)]
        },
    }
    file.create_dataset(name, data=data.astype(">i4") if storage == "big-endian" else data, **every.get(storage, {}))


def write(folder: Path, side: str, data: NDArray[Any], storage: str, link: str) -> None:
    """Write one side of the split `train` of main.h5 in a way of storing, behind a way of linking."""
    block = 512 if storage == "userblock" else 0
    if link in ("none", "hard", "soft"):
        with h5py.File(folder / "main.h5", "a") as file:
            name = side if link == "none" else f"deep/{side}_stored"
            file.require_group("deep")
            store(folder, file, name.rpartition("/")[2], data, storage)
            if name.rpartition("/")[2] != name:
                file.move(name.rpartition("/")[2], name)
                file[side] = h5py.SoftLink(f"/{name}") if link == "soft" else file[name]
        return
    with h5py.File(folder / f"{side}.h5", "w", userblock_size=block) as file:
        store(folder, file, "stored", data, storage)
    with h5py.File(folder / f"{side}-middle.h5", "w") as file:
        file["stored"] = h5py.ExternalLink(f"{side}.h5", "/stored")
    with h5py.File(folder / "main.h5", "a") as file:
        # What the name means in the other file is here as well, with other values.
        if "stored" not in file:
            file["stored"] = np.zeros_like(data)
        if link == "through a group":
            file[f"group_{side}"] = h5py.ExternalLink(f"{side}.h5", "/")
            file[side] = h5py.SoftLink(f"/group_{side}/stored")
        else:
            file[side] = h5py.ExternalLink(f"{side}-middle.h5" if "twice" in link else f"{side}.h5", "/stored")


def each_engine(path: Path) -> Iterator[SplitReader]:
    """Readers of one split, one for each engine that could read its inputs."""
    yield SplitReader(path)
    yield SplitReader(path).into_memory()
    ways = {"mapped": ("mapped", "read", "h5py"), "read": ("mapped", "read", "h5py"), "h5py": ("h5py",)}
    chosen = SplitReader(path).engine.name
    for way in ways.get(chosen, (chosen,)):
        reader = SplitReader(path)
        part = reader._parts[0]
        part._x = replace(part._x, choice=EngineChoice(way, "asked for"))  # type: ignore[arg-type]
        yield reader


@given(
    storages=st.tuples(st.sampled_from(STORAGES), st.sampled_from(STORAGES)),
    links=st.tuples(st.sampled_from(LINKS), st.sampled_from(LINKS)),
    shape=st.sampled_from([(), (4,), (3, 5)]),
    missing=st.booleans(),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_linked_datasets_equal_h5py_or_are_refused(
    storages: tuple[str, str], links: tuple[str, str], shape: tuple[int, ...], *, missing: bool
) -> None:
    """Whatever links and storage lead to, rows are h5py's; with a file of values gone, there is an error."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        x, y = values(1, shape), values(2, ())
        # A file is of one size of user block.
        with h5py.File(folder / "main.h5", "w"):
            pass
        write(folder, "X_train", x, storages[0], links[0])
        write(folder, "Y_train", y, storages[1], links[1])
        others = sorted(path for path in folder.iterdir() if path.name != "main.h5" and "middle" not in path.name)
        if missing and others:
            others[0].unlink()
            with pytest.raises(PackFormatError):
                SplitReader(folder / "main.h5")
            return
        for reader in each_engine(folder / "main.h5"):
            rows = np.array([8, 0, 3, 3, 4, 5])
            np.testing.assert_array_equal(np.asarray(reader.read_x(rows)), x[rows])
            np.testing.assert_array_equal(np.asarray(reader.read_y(rows)), y[rows])


def test_external_storage_that_was_cut_is_refused(tmp_path: Path) -> None:
    """HDF5 fills what is missing with zeros; that is told, with the lengths."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset(
            "X_train", data=values(1, (4,)), external=[(str(tmp_path / "x.raw"), 0, h5py.h5f.UNLIMITED)]
        )
    raw = (tmp_path / "x.raw").read_bytes()
    (tmp_path / "x.raw").write_bytes(raw[:-1])
    with pytest.raises(PackFormatError, match=f"needs {len(raw)} bytes"):
        SplitReader(tmp_path / "a.h5")


def test_external_storage_that_goes_while_it_is_read_is_a_typed_error(tmp_path: Path) -> None:
    """HDF5 opens it at each read, so a batch in the middle of an epoch fails as the first one would."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset(
            "X_train", data=values(1, (4,)), external=[(str(tmp_path / "x.raw"), 0, h5py.h5f.UNLIMITED)]
        )
    reader = SplitReader(tmp_path / "a.h5")
    np.testing.assert_array_equal(np.asarray(reader.read_x([2, 0])), values(1, (4,))[[2, 0]])
    (tmp_path / "x.raw").unlink()
    with pytest.raises(DamagedPackError, match=r"a\.h5"):
        reader.read_x([1])


def test_targets_that_a_dead_link_leads_to_are_no_missing_targets(tmp_path: Path) -> None:
    """A dead link is an error that names where it leads, never -1 for every label."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X_train"] = values(1, ())
        file["Y_train"] = h5py.ExternalLink("labels.h5", "/y")
    with pytest.raises(PackFormatError, match=r"labels\.h5"):
        SplitReader(tmp_path / "a.h5")


@pytest.mark.parametrize(("x", "y"), [("X_train", "y_train"), ("x_train", "y_train"), ("X_train", "Y_Train")])
def test_scikit_learns_spelling_has_its_labels(tmp_path: Path, x: str, y: str) -> None:
    """A small x or y is no other name."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[x], file[y], file["x_offset"] = values(1, (2,)), values(2, ()), [1.0]
    reader = SplitReader(tmp_path / "a.h5")
    np.testing.assert_array_equal(np.asarray(reader.read_y(range(ROWS))), values(2, ()))
    np.testing.assert_array_equal(np.asarray(reader.read_x(range(ROWS))), values(1, (2,)))


@pytest.mark.parametrize("names", [("X_train", "Y_train", "y_train"), ("X_train", "x_train", "Y_train")])
def test_two_spellings_of_one_name_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Which of the two is meant, nobody knows: both are named."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in names:
            file[name] = values(1, ())
    both = [name for name in names if [one.lower() for one in names].count(name.lower()) > 1]
    with pytest.raises(PackFormatError, match=" and ".join(sorted(both))):
        SplitReader(tmp_path / "a.h5")


@pytest.mark.torch
def test_names_of_ones_own(tmp_path: Path) -> None:
    """Inputs and targets under any name, also in groups; what is not there is named with what is."""
    dataset_h5 = pytest.importorskip("colabstage.load.dataset", reason="needs torch: pip install torch").dataset_h5
    x, y = values(1, (3, 5)), values(2, ())
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["images"], file["meta/labels"] = x, y
    for files, count in ((tmp_path / "a.h5", 1), ([tmp_path / "a.h5", tmp_path / "b.h5"], 2)):
        dataset = dataset_h5(files, x="images", y="meta/labels", split="test")
        found = pickle.loads(pickle.dumps(dataset)).read_batch(range(count * ROWS))
        np.testing.assert_array_equal(found[0], np.concatenate([x] * count))
        np.testing.assert_array_equal(found[1], np.concatenate([y] * count))
    assert dataset_h5(tmp_path / "a.h5", x="images")[0][1] == -1
    for name, chunks in (("y.h5", None), ("yc.h5", (2,))):
        with h5py.File(tmp_path / name, "w") as file:
            file["pad"] = np.zeros(333)
            file.create_dataset("deep/y", data=y + 7, chunks=chunks)
        dataset = dataset_h5(tmp_path / "a.h5", x="images", y=f"{name}/deep/y")
        found = pickle.loads(pickle.dumps(dataset)).read_batch(range(ROWS))
        np.testing.assert_array_equal(found[0], x)
        np.testing.assert_array_equal(found[1], y + 7)
    with pytest.raises(SourceNotFoundError, match=r"nowhere\.h5"):
        dataset_h5(tmp_path / "a.h5", x="images", y="nowhere.h5/y")
    with pytest.raises(PackFormatError, match=r"y\.h5/y"):
        dataset_h5(tmp_path / "a.h5", x="images", y="y.h5/y")
    with pytest.raises(PackFormatError, match=r"'imgs'.*images, meta"):
        dataset_h5(tmp_path / "a.h5", x="imgs")
    with pytest.raises(PackFormatError, match=r"images, meta.*x='NAME'"):
        dataset_h5(tmp_path / "a.h5")
    with pytest.raises(OptionError, match="without x"):
        dataset_h5(tmp_path / "a.h5", y="images")


def write_kind(path: Path, kind: Any, *, fill: bool = True, chunk: bool = False) -> None:
    """An `X_train` of a type that h5py cannot write, or without a fill value."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk:
        properties.set_chunk((3,))
    with h5py.File(path, "w") as file:
        dataset = h5py.h5d.create(file.id, b"X_train", kind, h5py.h5s.create_simple((ROWS,)), properties)
        if chunk:
            h5py.Dataset(dataset)[:3] = [1, 2, 3]
    if not fill:
        # Byte 4 of the message of fill values, of version 2, says whether there is one.
        data = path.read_bytes()
        head = bytes([2, 3 if chunk else 2, 2, 1, 0, 0, 0, 0])
        assert data.count(head) == 1
        path.write_bytes(data.replace(head, head[:3] + bytes(5)))


def quad() -> Any:
    """Floats of 128 bits as IEEE has them, which numpy does not on this machine."""
    kind = h5py.h5t.IEEE_F64LE.copy()
    kind.set_size(16)
    kind.set_precision(128)
    kind.set_fields(127, 112, 15, 0, 112)
    kind.set_ebias(16383)
    return kind


@pytest.mark.parametrize(
    ("kind", "says"), [(h5py.h5t.UNIX_D32LE, "times of 32 bits"), (quad(), "floats of 128 bits")], ids=["time", "quad"]
)
def test_types_that_numpy_has_not_are_no_damage(tmp_path: Path, kind: Any, says: str) -> None:
    """Read or packed, the message says what they are."""
    write_kind(tmp_path / "main.h5", kind)
    with pytest.raises(PackFormatError, match=rf"X_train.*{says}.*expected numbers"):
        SplitReader(tmp_path / "main.h5")
    with pytest.raises(LayoutError, match=says):
        detect_layout(FolderTree(tmp_path))


def test_values_that_nobody_wrote_without_a_fill_value(tmp_path: Path) -> None:
    """Zeros beside values that are there, as h5py gives them; an error where there are none at all."""
    write_kind(tmp_path / "some.h5", h5py.h5t.NATIVE_FLOAT, fill=False, chunk=True)
    assert np.asarray(SplitReader(tmp_path / "some.h5").read_x(range(ROWS))).tolist() == [1, 2, 3] + [0] * 6
    write_kind(tmp_path / "none.h5", h5py.h5t.NATIVE_FLOAT, fill=False)
    with pytest.raises(PackFormatError, match="X_train"):
        SplitReader(tmp_path / "none.h5")

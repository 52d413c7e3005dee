"""Arrays in files: rows as numpy, h5py and their like load them; what cannot be read row by row is refused."""

from __future__ import annotations

import ast
import functools
import io
import pickle
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage import pack_dataset
from colabstage.errors import DecodeError, EmptySourceError, LayoutError, MissingDependencyError, OptionError
from colabstage.layouts import stored
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.formats.arrays import find_splits
from colabstage.layouts.stored import decode_npy
from colabstage.options import Arrays, Images, Masks, Values, array_rows
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.folder import FolderTree
from colabstage.trees.tar import TarTree
from colabstage.trees.zip import ZipTree
from tests.layouts.readers import read_arrays

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.options import SampleTable

    PackFolder = Callable[[Path, Path], Path]

COUNT = 30


def photos(count: int = COUNT) -> NDArray[np.uint8]:
    """Small images in colour."""
    return np.random.default_rng(count).integers(0, 256, (count, 8, 6, 3), dtype=np.uint8)


def labels(count: int = COUNT) -> NDArray[np.int64]:
    """Three classes."""
    return np.arange(count) % 3


def read_back(source: Path, out: Path, **options: Any) -> dict[str, tuple[Any, Any]]:
    """Pack a source and read all samples by key through the Dataset."""
    dataset_h5 = pytest.importorskip("colabstage.load.dataset", reason="needs torch: pip install torch").dataset_h5
    report = pack_dataset(source, out, progress=False, **options)
    found: dict[str, tuple[Any, Any]] = {}
    for split in report.samples:
        dataset = dataset_h5(out, split=split)
        found |= {key: dataset[row] for row, key in enumerate(dataset.reader.keys())}
    return found


def check_rows(found: dict[str, tuple[Any, Any]], name: str, x: NDArray[Any], y: NDArray[Any] | None) -> None:
    """Every row of `x` and `y` is there under the array's name."""
    for row in range(len(x)):
        got = found[f"{name}[{row}]"]
        np.testing.assert_array_equal(got[0], x[row])
        assert got[0].dtype == x.dtype.newbyteorder("=")
        if y is None:
            assert got[1] == -1
        else:
            np.testing.assert_array_equal(got[1], y[row])


@pytest.mark.torch
def test_npy_files_of_images_and_labels(tmp_path: Path) -> None:
    """As np.load has them; uint8 (N, H, W, 3) are images, numbered labels classes."""
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "X.npy", photos())
    np.save(folder / "y.npy", labels().astype(np.uint8)[:, None])
    table = detect_layout(FolderTree(folder))
    assert (table.layout, table.classes, table.splits) == ("arrays", ("0", "1", "2"), None)
    assert isinstance(table.inputs, Images)
    found = read_back(folder, tmp_path / "out.h5")
    check_rows(found, "X.npy", np.load(folder / "X.npy"), labels())


@pytest.mark.torch
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("place", ["inside", "beside"])
def test_npz_as_keras_has_mnist(tmp_path: Path, save: Any, place: str) -> None:
    """x_train and the others, stored and deflated, the file itself as the source and in a folder: its splits."""
    folder = tmp_path / "data"
    folder.mkdir()
    grey = photos(50)[..., 0]
    parts: dict[str, NDArray[Any]] = {
        "x_train": grey[:30],
        "y_train": labels(30),
        "x_test": grey[30:],
        "y_test": labels(20),
    }
    save(folder / "mnist.npz", **parts)
    source = folder if place == "inside" else folder / "mnist.npz"
    found = read_back(source, tmp_path / "out.h5", color_mode="keep")
    prefix = "mnist.npz/" if place == "inside" else ""
    suffix = "" if place == "inside" else ".npy"
    check_rows(found, f"{prefix}x_train{suffix}", parts["x_train"][..., None], parts["y_train"])
    check_rows(found, f"{prefix}x_test{suffix}", parts["x_test"][..., None], parts["y_test"])


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["zip", "deflated", "tar"])
def test_arrays_in_archives(tmp_path: Path, kind: str) -> None:
    """Rows are read out of a zip and a tar without extracting it; a deflated npz in a zip is unpacked once."""
    folder = tmp_path / "data"
    folder.mkdir()
    values = np.random.default_rng(0).random((COUNT, 5), np.float32)
    np.savez_compressed(folder / "train.npz", images=values, labels=labels())
    np.savez(folder / "val.npz", images=values[:4], labels=labels(4))
    archive = tmp_path / f"data.{'tar' if kind == 'tar' else 'zip'}"
    if kind == "tar":
        with tarfile.open(archive, "w") as tar:
            tar.add(folder, ".")
    else:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED) as made:
            for path in sorted(folder.iterdir()):
                made.write(path, path.name)
    found = read_back(archive, tmp_path / "out.h5")
    check_rows(found, "train.npz/images", values, labels())
    check_rows(found, "val.npz/images", values[:4], labels(4))


def test_a_damaged_npz_member_is_named(tmp_path: Path) -> None:
    """A stored member is verified by its checksum before any row is given out."""
    np.savez(tmp_path / "a.npz", x=photos(), y=labels())
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[3000] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises((LayoutError, ValueError), match="checksum"):
        pack_dataset(tmp_path / "a.npz", tmp_path / "out.h5", progress=False)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [">f4", "<f8", ">i2", "<u2", "?", ">u8", "<f2"])
@pytest.mark.parametrize("shape", [(COUNT, 7), (COUNT, 2, 3, 4), (COUNT,)])
def test_other_arrays_stay_as_they_are(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """In this machine's byte order; any shape, one number for each sample included."""
    folder = tmp_path / "data"
    folder.mkdir()
    values = np.random.default_rng(1).integers(0, 2**15, shape).astype(dtype)
    np.save(folder / "features.npy", values)
    np.save(folder / "targets.npy", np.linspace(0, 1, COUNT).astype(">f8"))
    table = detect_layout(FolderTree(folder))
    assert isinstance(table.inputs, Arrays)
    assert isinstance(table.targets, Values)
    assert table.targets.values.dtype == np.dtype("f8")
    check_rows(read_back(folder, tmp_path / "out.h5"), "features.npy", values, np.linspace(0, 1, COUNT))


@pytest.mark.torch
def test_masks_words_and_tables_of_targets(tmp_path: Path) -> None:
    """What targets are follows from their shape: masks of the images' size, words as classes, several numbers."""
    x = photos()
    masks = np.random.default_rng(2).integers(0, 5, (COUNT, 8, 6, 1), dtype=np.int32)
    words = np.array(["dog", "cat", "bird"])[labels()]
    points = np.random.default_rng(3).random((COUNT, 4), np.float32)
    for name, y in (("masks", masks), ("words", words), ("bytes", words.astype("S")), ("points", points)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "images.npy", x)
        np.save(tmp_path / name / "labels.npy", y)
    found = detect_layout(FolderTree(tmp_path / "masks"))
    assert isinstance(found.targets, Masks)
    check_rows(read_back(tmp_path / "masks", tmp_path / "m.h5"), "images.npy", x, masks[..., 0])
    for name in ("words", "bytes"):
        found = detect_layout(FolderTree(tmp_path / name))
        assert found.classes == ("bird", "cat", "dog")
        assert isinstance(found.targets, Values)
        assert [found.classes[label] for label in found.targets.values] == words.tolist()
    check_rows(read_back(tmp_path / "points", tmp_path / "p.h5"), "images.npy", x, points)


@pytest.fixture
def foreign(tmp_path: Path) -> Callable[..., Path]:
    """Write an HDF5 file with h5py: values by key, with options for every dataset."""

    def write(name: str, values: dict[str, Any], *, userblock: int = 0, **options: Any) -> Path:
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        with h5py.File(folder / name, "w", userblock_size=userblock) as file:
            for key, array in values.items():
                own = options if np.asarray(array).dtype.kind != "O" else {}
                file.create_dataset(key, data=array, **own)
        return folder

    return write


@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": True},
        {"chunks": (4, 8, 6, 3), "compression": "gzip"},
        {"chunks": (7, 3, 2, 1), "compression": "lzf", "shuffle": True},
        {"userblock": 1024},
    ],
    ids=["contiguous", "chunked", "gzip", "small chunks", "userblock"],
)
def test_foreign_hdf5(
    tmp_path: Path, foreign: Callable[..., Path], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layout of datasets gives the rows that h5py gives; with blocks far smaller than the data, too."""
    monkeypatch.setattr(stored, "_BLOCK_BYTES", 1000)
    own = {key: value for key, value in options.items() if key != "userblock"}
    folder = foreign("train.h5", {"train_set_x": photos()}, userblock=options.get("userblock", 0), **own)
    with h5py.File(folder / "train.h5", "a") as file:
        file["train_set_y"] = labels()
        file["list_classes"] = np.array([b"a", b"b", b"c"])
    table = detect_layout(FolderTree(folder))
    assert table.classes == ("a", "b", "c")
    assert set(table.splits or ()) == {"train"}
    found = read_back(folder, tmp_path / "out.h5")
    check_rows(found, "train.h5/train_set_x", photos(), labels())


@pytest.mark.torch
@pytest.mark.parametrize("options", [{}, {"chunks": True}])
def test_rows_behind_links_are_those_of_the_other_file(
    tmp_path: Path, foreign: Callable[..., Path], options: dict[str, Any]
) -> None:
    """Wrappers over one file for x and one for y, with other values at the same places of their own."""
    folder = foreign("x.bin", {"x": photos()}, **options)
    foreign("y.bin", {"y": labels()})
    with h5py.File(folder / "all.h5", "w") as file:
        file["padding"] = np.zeros(100_000, np.uint8)
        file["inside"] = h5py.ExternalLink("x.bin", "/")
        file["X_train"] = h5py.SoftLink("/inside/x")
        file["Y_train"] = h5py.ExternalLink("y.bin", "/y")
    found = read_back(folder, tmp_path / "out.h5")
    check_rows(found, "all.h5/X_train", photos(), labels())


def test_links_that_lead_nowhere_are_told(tmp_path: Path, foreign: Callable[..., Path]) -> None:
    """Targets whose file is missing are no missing targets; in an archive there is no file beside."""
    folder = foreign("x.h5", {"X_train": photos()})
    with h5py.File(folder / "x.h5", "a") as file:
        file["Y_train"] = h5py.ExternalLink("x.h5", "/X_train")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(folder / "x.h5", "x.h5")
    with pytest.raises(LayoutError, match=r"'x\.h5/Y_train'"):
        read_arrays(ZipTree(LocalBytes(tmp_path / "a.zip")))
    with h5py.File(folder / "x.h5", "a") as file:
        del file["Y_train"]
        file["Y_train"] = h5py.ExternalLink("y.h5", "/y")
    with pytest.raises(LayoutError, match=r"'x\.h5/Y_train'.*'/y' in 'y\.h5'"):
        read_arrays(FolderTree(folder))


@pytest.mark.parametrize("through", ["/out/x", "/again/x", "out/x", "/./out/../x"])
@pytest.mark.parametrize("kind", ["zip", "one file"])
def test_links_through_other_files_are_refused_where_there_are_none(tmp_path: Path, kind: str, through: str) -> None:
    """HDF5 takes a file without a path for every file that links name, so rows would be this file's own."""
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["group/x"] = np.zeros((4, 3))
        file["out"] = h5py.ExternalLink("other.h5", "/group")
        file["again"] = h5py.SoftLink("/out")
        file["X_train"] = h5py.SoftLink(through)
        file["Y_train"] = np.arange(4)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "own.h5", "own.h5")
    source = tmp_path / ("a.zip" if kind == "zip" else "own.h5")
    with pytest.raises(LayoutError, match=r"'own\.h5/X_train'"):
        pack_dataset(source, tmp_path / "out.h5", layout=array_rows(x="X_train", y="Y_train"), progress=False)


@pytest.mark.torch
def test_hdf5_in_an_archive(tmp_path: Path, foreign: Callable[..., Path]) -> None:
    """Groups as splits, text as labels, chunks through a file object."""
    words = np.array(["no", "yes"], dtype=object)[labels() % 2]
    folder = foreign(
        "set.hdf5",
        {"train/images": photos(), "train/labels": words, "test/images": photos(4), "test/labels": words[:4]},
        compression="gzip",
    )  # fmt: skip
    with zipfile.ZipFile(tmp_path / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "set.hdf5", "set.hdf5")
    found = read_back(tmp_path / "set.zip", tmp_path / "out.h5")
    numbers = (words == "yes").astype(int)
    check_rows(found, "set.hdf5/train/images", photos(), numbers)
    check_rows(found, "set.hdf5/test/images", photos(4), numbers[:4])


@pytest.mark.torch
def test_the_recipes_file_is_one(tmp_path: Path, foreign: Callable[..., Path]) -> None:
    """X_train, Y_train (N, 1, 1), X_dev and so on, as the recipe makes them."""
    y = labels().astype(np.uint8)[:, None, None]
    folder = foreign("data.h5", {"X_train": photos(), "Y_train": y, "X_dev": photos(6), "Y_dev": y[:6]})
    found = read_back(folder, tmp_path / "out.h5")
    check_rows(found, "data.h5/X_train", photos(), labels())
    check_rows(found, "data.h5/X_dev", photos(6), labels(6))


@pytest.mark.torch
def test_matlab_axes_are_turned(tmp_path: Path) -> None:
    """A .mat of version 7.3 keeps its axes from the other end, behind a block of 512 bytes of its own."""
    x, y = photos(), labels().astype(np.float64) + 1
    features = np.random.default_rng(5).random((COUNT, 4))
    for name, values in (("images", x), ("table", features)):
        (tmp_path / name).mkdir()
        with h5py.File(tmp_path / name / "data.mat", "w", userblock_size=512) as file:
            # MATLAB shows images as (H, W, C, N) and vectors as (N, 1); HDF5 has the reverse of both.
            file["X"] = np.moveaxis(values, 0, -1).T if values.ndim > 2 else values.T
            file["y"] = y[:, None].T
            for key in ("X", "y"):
                file[key].attrs["MATLAB_class"] = np.bytes_("double")
        found = read_back(tmp_path / name, tmp_path / f"{name}.h5")
        check_rows(found, "data.mat/X", values, y)


def test_a_damaged_chunk_is_a_broken_sample(foreign: Callable[..., Path]) -> None:
    """It names the rows, and the others are well."""
    folder = foreign("a.h5", {"X": photos()}, chunks=(10, 8, 6, 3), compression="gzip", fletcher32=True)
    with h5py.File(folder / "a.h5") as file:
        place = file["X"].id.get_chunk_info(1).byte_offset
    data = bytearray((folder / "a.h5").read_bytes())
    data[place + 20] ^= 0xFF
    (folder / "a.h5").write_bytes(data)
    table = read_arrays(FolderTree(folder))
    with pytest.raises(DecodeError, match=r"Rows 0 to .* of 'a\.h5/X'"):
        table.inputs.source.read(12)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([{}, []], dtype=object), "pickled Python objects"),
        (np.zeros(3, [("a", "f4"), ("b", "i4")]), r"records \(a, b\)"),
    ],
    ids=["pickled", "records"],
)
def test_what_cannot_be_rows_is_refused(tmp_path: Path, values: Any, says: str) -> None:
    """With the reason and what to do instead; nothing is unpickled."""
    np.save(tmp_path / "X.npy", values, allow_pickle=True)
    with pytest.raises(LayoutError, match=rf"X\.npy.*{says}"):
        read_arrays(FolderTree(tmp_path))


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    """A .npy that would run code when it is loaded is refused by its header."""
    bomb = io.BytesIO()
    np.lib.format.write_array_header_1_0(bomb, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    (tmp_path / "X.npy").write_bytes(bomb.getvalue() + pickle.dumps(print))
    with pytest.raises(LayoutError, match="pickled"):
        read_arrays(FolderTree(tmp_path))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:-1], "is truncated"),
        (lambda data: b"PK" + data[2:], "is not a .npy file"),
        (lambda data: data.replace(b"'descr'", b"'dascr'"), "cannot be read"),
        (lambda data: data.replace(b"(30,", b"(-3,"), "is truncated"),
        (lambda data: data[:8] + b"\xff\xff" + data[10:], "65,535 bytes"),
        (lambda _: b"", "is not a .npy file"),
    ],
    ids=["cut", "magic", "keys", "negative", "long", "empty"],
)
def test_damaged_headers_are_refused(tmp_path: Path, change: Callable[[bytes], bytes], says: str) -> None:
    """By the file's name, before anything is packed."""
    np.save(tmp_path / "X.npy", photos())
    (tmp_path / "X.npy").write_bytes(change((tmp_path / "X.npy").read_bytes()))
    with pytest.raises(LayoutError, match=rf"X\.npy.*{says}"):
        read_arrays(FolderTree(tmp_path))


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0 MAT-file" + bytes(600), b"\x89HDF\r\n\x1a\n" + bytes(64)])
def test_what_is_no_hdf5_is_refused(tmp_path: Path, content: bytes) -> None:
    """An older .mat with what to save it as, whether or not there is scipy, which reads such files."""
    (tmp_path / "X.mat").write_bytes(content)
    with pytest.raises((LayoutError, MissingDependencyError), match=r"X\.mat.*-v7\.3"):
        read_arrays(FolderTree(tmp_path))


def test_lengths_and_rows_have_to_agree(tmp_path: Path) -> None:
    """As many targets as inputs; rows of one shape in every split."""
    np.savez(tmp_path / "a.npz", x=photos(), y=labels(COUNT - 1))
    with pytest.raises(LayoutError, match=r"\(30, 8, 6, 3\).*\(29,\)"):
        read_arrays(FolderTree(tmp_path))
    np.savez(tmp_path / "a.npz", x_train=np.zeros((3, 4)), x_test=np.zeros((3, 5)))
    with pytest.raises(LayoutError, match=r"x_(train|test)"):
        read_arrays(FolderTree(tmp_path))
    np.savez(tmp_path / "a.npz", x=np.zeros((0, 4)))
    with pytest.raises(LayoutError):
        read_arrays(FolderTree(tmp_path))


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["X.npy", "y.npy"], [("", "X.npy", "y.npy")]),
        (["images.npy", "labels.npy"], [("", "images.npy", "labels.npy")]),
        (["d/Xtrain.npy", "d/ytrain.npy"], [("train", "d/Xtrain.npy", "d/ytrain.npy")]),
        (["XTrain.npy", "YTrain.npy"], [("train", "XTrain.npy", "YTrain.npy")]),
        (["train/x.npy", "train/y.npy", "val/x.npy", "val/y.npy"],
         [("train", "train/x.npy", "train/y.npy"), ("val", "val/x.npy", "val/y.npy")]),
        (["x/train.npy", "y/train.npy"], [("train", "x/train.npy", "y/train.npy")]),
        (["train.npz/images", "train.npz/labels"], [("train", "train.npz/images", "train.npz/labels")]),
        (["p.npz/train_images", "p.npz/train_labels", "p.npz/test_images", "p.npz/test_labels"],
         [("train", "p.npz/train_images", "p.npz/train_labels"), ("test", "p.npz/test_images", "p.npz/test_labels")]),
        (["data.h5/data", "data.h5/target"], [("", "data.h5/data", "data.h5/target")]),
        (["X.npy", "y.npy", "X_test.npy"], [("train", "X.npy", "y.npy"), ("test", "X_test.npy", None)]),
        (["data/train.npy", "data/train_labels.npy"], [("train", "data/train.npy", "data/train_labels.npy")]),
        (["whatever.npy"], [("", "whatever.npy", None)]),
        (["a.h5/X_train", "a.h5/Y_train", "a.h5/key_train"], [("train", "a.h5/X_train", "a.h5/Y_train")]),
    ],
)  # fmt: skip
def test_roles_are_told_by_name(names: list[str], pairs: list[tuple[str, str, str | None]]) -> None:
    """The names that people use."""
    assert [tuple(found) for found in find_splits(names)] == pairs


@pytest.mark.parametrize("names", [["a.npy", "b.npy"], ["X.npy", "images.npy"], ["y.npy", "z.npy"], []])
def test_names_that_say_nothing_are_asked_for(names: list[str]) -> None:
    """The message has the names there are, and how to choose."""
    with pytest.raises(LayoutError, match=r"array_rows\(x='NAME'"):
        find_splits(names)


@pytest.mark.torch
def test_names_can_be_given(tmp_path: Path) -> None:
    """By the key alone."""
    np.savez(tmp_path / "a.npz", faces=photos(), ages=labels(), noise=labels())
    layout = functools.partial(read_arrays, x="faces", y="ages")
    found = read_back(tmp_path / "a.npz", tmp_path / "out.h5", layout=layout)
    check_rows(found, "faces.npy", photos(), labels())
    with pytest.raises(LayoutError, match="'face'"):
        read_arrays(FolderTree(tmp_path), x="face")


def test_no_arrays_is_an_empty_source(tmp_path: Path) -> None:
    """And a stray array among folders of classes changes nothing."""
    with pytest.raises(EmptySourceError):
        read_arrays(FolderTree(tmp_path))
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(b"")
    np.save(tmp_path / "embeddings.npy", np.zeros((2, 3)))
    assert detect_layout(FolderTree(tmp_path)).layout == "image_folder"


def test_archives_are_not_read_whole(tmp_path: Path) -> None:
    """Opening a tar reads headers and labels; rows come when they are asked for."""
    np.save(tmp_path / "X.npy", np.zeros((1000, 5000), np.float32))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "X.npy", "X.npy")

    class Counting(LocalBytes):
        total = 0

        def pread(self, length: int, offset: int) -> bytes:
            self.total += length
            return super().pread(length, offset)

    source = Counting(tmp_path / "a.tar")
    with TarTree(source, spool=tmp_path) as tree:
        table: SampleTable = detect_layout(tree)
        assert len(table) == 1000
        assert source.total < 300_000
        assert np.array_equal(table.inputs.source.read(999), np.zeros(5000, np.float32))


@pytest.mark.parametrize("shape", [(28, 28), (8, 6, 1), (8, 6, 3), (8, 6, 4)])
def test_arrays_keep_their_channels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Grey ones are not tripled, a fourth channel is not dropped; grayscale is made where it is asked for."""
    x = np.random.default_rng(0).integers(0, 256, (COUNT, *shape), np.uint8)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "images.npy", x)
    np.save(tmp_path / "data" / "labels.npy", labels())
    for options, channels in (({}, (*shape, 1)[2]), ({"color_mode": "grayscale"}, 1)):
        out = tmp_path / f"{channels}-{len(options)}.h5"
        pack_dataset(tmp_path / "data", out, encoding="pixels", **options)  # type: ignore[arg-type]
        with h5py.File(out) as file:
            assert file["X_train"].shape == (COUNT, *shape[:2], channels)
            if not options:
                keys = file["key_train"].asstr()[()]
                order = [int(key.rpartition("[")[2][:-1]) for key in keys]
                np.testing.assert_array_equal(file["X_train"][()], x.reshape(COUNT, *shape[:2], channels)[order])


@pytest.mark.parametrize("shape", [(28, 28), (8, 6, 1), (8, 6, 3), (8, 6, 4)])
def test_rgb_that_is_asked_for_is_made(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Grey arrays are tripled, a fourth channel is dropped, and the pack is another dataset than the default's."""
    x = np.random.default_rng(0).integers(0, 256, (COUNT, *shape), np.uint8)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "images.npy", x)
    np.save(tmp_path / "data" / "labels.npy", labels())
    pack_dataset(tmp_path / "data", tmp_path / "rgb.h5", encoding="pixels", color_mode="rgb")
    with h5py.File(tmp_path / "rgb.h5") as file:
        order = [int(key.rpartition("[")[2][:-1]) for key in file["key_train"].asstr()[()]]
        colours = np.broadcast_to(x.reshape(COUNT, *shape[:2], -1)[..., :3], (COUNT, *shape[:2], 3))
        np.testing.assert_array_equal(file["X_train"][()], colours[order])


def test_more_of_a_pack_takes_its_colours_unless_others_are_asked_for(tmp_path: Path) -> None:
    """What was packed by default goes on as it is; `rgb` is refused where it would be another form, and taken along
    where it was asked for."""
    x = np.zeros((COUNT, 8, 6, 4), np.uint8)
    for name in ("data", "more"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "images.npy", x)
        np.save(tmp_path / name / "labels.npy", labels())
    pack_dataset(tmp_path / "data", tmp_path / "own.h5", encoding="pixels")
    pack_dataset(tmp_path / "data", tmp_path / "rgb.h5", encoding="pixels", color_mode="rgb")
    with pytest.raises(OptionError, match=r"shape \(8, 6, 3\) instead of \(8, 6, 4\)"):
        pack_dataset(tmp_path / "more", append_to=tmp_path / "own.h5", color_mode="rgb")
    for base, channels in (("own", 4), ("rgb", 3)):
        report = pack_dataset(tmp_path / "more", append_to=tmp_path / f"{base}.h5")
        with h5py.File(report.path) as file:
            assert file["X_train"].shape == (COUNT, 8, 6, channels)


def test_colours_of_what_is_no_image_are_spoken_of(tmp_path: Path) -> None:
    """Arrays of other numbers stay what they are, and the report says that the option did nothing."""
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", np.zeros((COUNT, 5), np.float32))
    np.save(tmp_path / "data" / "y.npy", labels())
    for mode, noted in (("auto", False), ("rgb", True), ("grayscale", True)):
        report = pack_dataset(tmp_path / "data", tmp_path / f"{mode}.h5", color_mode=mode)  # type: ignore[arg-type]
        assert any(f"color_mode='{mode}' changes nothing" in note for note in report.notes) == noted


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=">i2").reshape(2, 3, 4),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3), np.uint8),
        np.array(7, np.int64),
    ],
    ids=["big-endian", "Fortran", "empty", "one number"],
)
def test_a_small_file_is_what_numpy_loads(array: NDArray[Any], version: tuple[int, int]) -> None:
    """Its header is read by our own hand, so numpy's reader beside it."""
    written = io.BytesIO()
    np.lib.format.write_array(written, array, version)
    found = decode_npy(written.getvalue())
    np.testing.assert_array_equal(found, np.load(io.BytesIO(written.getvalue())))
    assert (found.shape, found.dtype) == (array.shape, array.dtype.newbyteorder("="))


def test_files_of_one_header_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python 3.11 two threads that parse at once may fail, and nothing in a dataset needs it a second time."""
    parsed: list[str] = []
    literal = ast.literal_eval

    def noted(text: str) -> object:
        parsed.append(text)
        return literal(text)

    monkeypatch.setattr(ast, "literal_eval", noted)
    written = io.BytesIO()
    np.save(written, np.arange(977.0))
    for _ in range(3):
        assert decode_npy(written.getvalue())[-1] == 976
    assert len(parsed) <= 1
    for damaged in (written.getvalue()[:-8], b"", b"\x93NUMPY\x01\x00\x10\x00{'descr': O" + bytes(8)):
        with pytest.raises(DecodeError, match=r"\.npy"):
            decode_npy(damaged)


@pytest.mark.parametrize("names", [("x_train", "labels"), ("X_train", "X_test", "y"), ("train_images", "test_labels")])
def test_targets_that_belong_to_no_inputs_are_asked_for(tmp_path: Path, names: tuple[str, ...]) -> None:
    """They are never left out, so that every sample has no label."""
    arrays: dict[str, Any] = {name: np.zeros((4, 8, 8) if "x" in name.lower() or "im" in name else 4) for name in names}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(LayoutError, match=r"array_rows\("):
        detect_layout(FolderTree(tmp_path))


def test_a_split_without_targets_does_not_cost_the_others_theirs(tmp_path: Path) -> None:
    """A test set that nobody has labelled is left out, with a note, as that of a table is."""
    x = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(4), x_test=x)
    found = detect_layout(FolderTree(tmp_path))
    assert isinstance(found.targets, Values)
    assert found.targets.values.tolist() == [0, 1, 2, 3]
    assert set(found.splits or ["train"]) == {"train"}
    assert any("4 rows of" in note and "x_test" in note for note in found.notes)

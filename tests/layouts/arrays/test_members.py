"""Files of one array for each sample: samples, labels and splits are those of the same files in folders, and values
those that h5py and numpy read."""

import io
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import LayoutError
from colabstage.options import Arrays, Boxes, Images, Masks, file_names, table_rows
from tests.layouts.known import wav
from tests.layouts.readers import completed, contents, labels, picture, read
from tests.support.made_files import grey, npy, npz, write_files

RNG = np.random.default_rng(74)
EACH = range(8)
CLASSES = [("cat", "dog")[number % 2] for number in EACH]
SPLITS = [("train", "test")[number // 6] for number in EACH]
COLOUR = [RNG.integers(0, 256, (8 + number, 6, 3), np.uint8) for number in EACH]
GREY = [RNG.integers(0, 256, (7, 6), np.uint8) for _ in EACH]
CLEAR = [RNG.integers(0, 256, (7, 6, 4), np.uint8) for _ in EACH]
FLOATS = [RNG.random((5, 4), np.float32) for _ in EACH]
FILES = [np.frombuffer(picture(number), np.uint8) for number in EACH]
OPAQUE = [np.void(picture(number)) for number in EACH]
VLEN = h5py.vlen_dtype(np.uint8)
IN_FOLDERS = [f"{one}/{number}" for number, one in enumerate(CLASSES)]
IN_ORDER = sorted(EACH, key=IN_FOLDERS.__getitem__)
NUMBERS = [f"img_{number:03}" for number in EACH]


def h5(values: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> bytes:
    """An HDF5 file, with attributes of some of its names."""
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        for key, value in values.items():
            made.create_dataset(key, data=value, **options)
        for key, own in (facts or {}).items():
            made[key].attrs.update(own)
    return file.getvalue()


def ragged(values: list[Any], shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        for key, value in zip(IN_FOLDERS, values, strict=True):
            made.create_dataset(key, shape, VLEN)[(0,) * len(shape)] = value
    return file.getvalue()


def named(keys: list[str], values: list[Any]) -> dict[str, Any]:
    return dict(zip(keys, values, strict=True))


def written(values: list[Any], **options: Any) -> dict[str, bytes]:
    return {"a.h5": h5(named(IN_FOLDERS, values), **options)}


VALUES = {
    "colour": (written(COLOUR), COLOUR),
    "gzip": (written(COLOUR, compression="gzip"), COLOUR),
    "rgba": (written(CLEAR), CLEAR),
    "floats": (written(FLOATS), FLOATS),
    "big_endian": (written([one.astype(">f4") for one in FLOATS]), FLOATS),
    "files": (written(FILES), FILES),
    "opaque": (written(OPAQUE), FILES),
    "vlen_1": ({"a.h5": ragged(FILES, (1,))}, FILES),
    "vlen": ({"a.h5": ragged(FILES, ())}, FILES),
    "npz": ({"a.npz": npz(**named(IN_FOLDERS, COLOUR))}, COLOUR),
}


@pytest.mark.parametrize("case", VALUES)
def test_values(case: str) -> None:
    files, values = VALUES[case]
    table = completed(read(files))
    assert table.classes == ("cat", "dog")
    assert labels(table) == [number % 2 for number in IN_ORDER]
    found = contents(table)
    assert len(found) == len(EACH)
    for number, one in zip(IN_ORDER, found, strict=True):
        if isinstance(one, bytes):
            assert one == values[number].tobytes()
            assert table.inputs.source.sizes[IN_ORDER.index(number)] == len(one)
        else:
            np.testing.assert_array_equal(one, values[number], strict=True)
    first = IN_FOLDERS[IN_ORDER[0]]
    assert table.keys[0] == f"{next(iter(files))}/{first}"


TARGETS = {"label": [number % 3 for number in EACH]}


STATED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "attributes": (
        {"a.h5": h5(named(NUMBERS, COLOUR), {key: {"label": CLASSES[n]} for n, key in enumerate(NUMBERS)})},
        CLASSES,
    ),
    "groups": (
        {"a.h5": h5(named([f"s{n}/rgb" for n in EACH], COLOUR), {f"s{n}": {"class": CLASSES[n]} for n in EACH})},
        CLASSES,
    ),
    "fields": (
        {"a.h5": h5(named([f"{n}/image" for n in EACH], COLOUR) | named([f"{n}/label" for n in EACH], CLASSES))},
        CLASSES,
    ),
    "pairs": ({"a.h5": h5(named([f"X{n}" for n in EACH], COLOUR) | named([f"y{n}" for n in EACH], CLASSES))}, CLASSES),
    "folders": (
        {"a.h5": h5(named([f"images/{n}" for n in EACH], COLOUR) | named([f"labels/{n}" for n in EACH], CLASSES))},
        CLASSES,
    ),
    "names": ({"a.h5": h5(named([f"{one}.{n}.jpg" for n, one in enumerate(CLASSES)], COLOUR))}, CLASSES),
    "table": (
        {
            "images.hdf5": h5(named([f"ISIC_{n}" for n in EACH], OPAQUE)),
            "labels.csv": "id,target\n" + "".join(f"ISIC_{n},{CLASSES[n]}\n" for n in EACH),
        },
        CLASSES,
    ),
}


@pytest.mark.parametrize("case", STATED)
def test_labels(case: str) -> None:
    files, stated = STATED[case]
    table = read(files)
    inside = (key.rpartition(".h")[2].partition("/")[2] for key in table.keys)
    found = {int("".join(filter(str.isdigit, key))): row for row, key in enumerate(inside)}
    assert [table.classes[labels(table)[found[number]]] for number in EACH] == stated


@pytest.mark.parametrize(
    "kind", [VLEN, h5py.opaque_dtype(np.dtype("V3000")), np.dtype("S3000")], ids=["vlen", "void", "S"]
)
def test_rows_of_image_files(tmp_path: Path, kind: Any) -> None:
    """The bytes of image files in the rows of one array are images, of any size."""
    files = [picture(number) for number in EACH]
    with h5py.File(tmp_path / "a.h5", "w") as made:
        for split, held in (("train", files), ("test", files[:3])):
            images = made.create_dataset(f"x_{split}", (len(held),), kind)
            for number, one in enumerate(held):
                images[number] = (
                    np.frombuffer(one, np.uint8) if kind is VLEN else np.void(one) if kind.kind == "V" else one
                )
            made[f"y_{split}"] = np.arange(len(held)) % 2
    table = completed(read({"a.h5": (tmp_path / "a.h5").read_bytes()}))
    assert [one.rstrip(b"\0") for one in contents(table)] == files + files[:3]
    assert table.inputs.source.sizes.tolist() == [*map(len, contents(table))]
    assert (labels(table), table.splits) == ([0, 1] * 4 + [0, 1, 0], ("train",) * 8 + ("test",) * 3)
    pack_dataset(tmp_path / "a.h5", tmp_path / "packed.h5", encoding="encoded")
    assert len(dataset_h5(tmp_path / "packed.h5", split="test")) == 3


def test_bytes_beside_features() -> None:
    """As before images in bytes were read, the features of these are the inputs."""
    values = {"features": np.stack(FLOATS), "image": np.array([*map(picture, EACH)]), "labels": np.arange(8) % 2}
    table = read({"a.h5": h5(values)})
    assert isinstance(table.inputs, Arrays)
    assert table.inputs.shape == (5, 4)


def test_rows_of_image_files_and_of_masks() -> None:
    masks = [grey((one > 99).astype(np.uint8)) for one in GREY]
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        for name, held in (("images", [grey(one) for one in GREY]), ("masks", masks)):
            rows = made.create_dataset(name, (len(held),), VLEN)
            for number, one in enumerate(held):
                rows[number] = np.frombuffer(one, np.uint8)
    targets = completed(read({"a.h5": file.getvalue()})).targets
    assert isinstance(targets, Masks)
    assert [targets.source.read(number) for number in EACH] == masks


def test_several_rows_of_one_array() -> None:
    rows = "".join(f"img_00{n % 8},{CLASSES[n % 8]}{n // 8}\n" for n in range(16))
    table = read({"a.h5": h5(named(NUMBERS, COLOUR)), "labels.csv": f"name,label\n{rows}"}, table_rows(["label"]))
    assert table.keys[::8] == ["a.h5/img_000", "a.h5/img_000#2"]


def test_splits_and_boxes_in_attributes() -> None:
    boxes = [[1, 2, 4, 3 + number % 2] for number in EACH]
    facts = {
        key: {
            "split": SPLITS[number],
            "bbox_xyxy": boxes[number],
            "class": CLASSES[number],
            "CLASS": np.bytes_("IMAGE"),
        }
        for number, key in enumerate(NUMBERS)
    }
    table = read({"a.h5": h5(named(NUMBERS, [one[:8] for one in COLOUR]), facts)})
    assert table.splits == tuple(SPLITS)
    assert isinstance(table.targets, Boxes)
    np.testing.assert_array_equal(table.targets.boxes, boxes)
    assert "CLASS" not in str(table.notes)
    many = read({f"{one}.h5": h5(named(IN_FOLDERS, COLOUR)) for one in ("train", "test")})
    assert sorted(many.splits or ()) == ["test"] * 8 + ["train"] * 8


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.bool_])
def test_masks(tmp_path: Path, dtype: Any) -> None:
    masks = [(one > 99).astype(dtype) for one in GREY]
    images = [np.stack([one] * 3, axis=2) for one in GREY]
    write_files(
        tmp_path, {"a.h5": h5(named([f"{n}/image" for n in EACH], images) | named([f"{n}/mask" for n in EACH], masks))}
    )
    pack_dataset(tmp_path / "a.h5", tmp_path / "packed.h5")
    data = dataset_h5(tmp_path / "packed.h5")
    found = {x.tobytes(): y for x, y in (data[number] for number in EACH)}
    for image, mask in zip(images, masks, strict=True):
        np.testing.assert_array_equal(found[image.tobytes()], mask)


def test_sizes_and_workers(tmp_path: Path) -> None:
    """Workers open the file themselves, and write the rows of one file."""
    write_files(tmp_path, written(COLOUR))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as workers:
        report = pack_dataset(tmp_path / "a.h5", tmp_path / "many.h5", image_size=(4, 4), shards=2, executor=workers)
    pack_dataset(tmp_path / "a.h5", tmp_path / "whole.h5", image_size=(4, 4))
    whole, shards = dataset_h5(tmp_path / "whole.h5"), dataset_h5(str(tmp_path / "many-*.h5"))
    assert report.samples == {"train": len(whole)} == {"train": len(shards)}
    for number in EACH:
        np.testing.assert_array_equal(whole[number][0], shards[number][0])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "npy": ({f"{key}.npy": npy(one) for key, one in zip(IN_FOLDERS, COLOUR, strict=True)}, r"save\('NAME\.png'\)"),
    "shapes": (written([one[: 1 + n % 3] for n, one in enumerate(FLOATS)]), "expected one shape and type for all"),
    "many": (
        {"a.npz": npz(**{f"arr_{n}": np.zeros((3, 3)) for n in range(300)})},
        r"'a\.npz/arr_0'.* each is probably one",
    ),
    "numbered": (
        {"a.npz": npz(**{f"arr_{n}": np.zeros((3, 3)) for n in EACH[:6]})},
        r"Which of the arrays 'a\.npz/arr_0'",
    ),
    "scalar": ({"a.h5": h5({"mean": 1.5})}, "No array has a row for each sample"),
    "pandas": (
        {"a.h5": h5({"df/axis0": CLASSES, "df/block0_values": np.zeros((8, 2))})},
        r"pandas\.read_hdf\('.*a\.h5'\)",
    ),
    "pairs_of_rows": (
        {"a.h5": h5({f"{one}_{n}": np.zeros((30, 20)[: 2 - (one == "y")], np.uint8) for n in EACH for one in "xy"})},
        ".",
    ),
    "parts_of_each": (
        {"a.h5": h5(named([f"{n}/rgb" for n in EACH], COLOUR) | named([f"{n}/depth" for n in EACH], FLOATS))},
        "Give pack_dataset an object",
    ),
    "vector": ({"a.h5": h5(named(NUMBERS, COLOUR) | {"labels": np.arange(8)})}, "may hold their labels"),
    "others": ({"a.h5": h5(named(NUMBERS, COLOUR) | {"deep/7": FLOATS[0]})}, "Give pack_dataset an object"),
    "rows": (
        {"a.h5": h5({f"fold{n}/{one}": np.zeros((9, 2)[: 2 - (one == "y")]) for n in EACH for one in "Xy"})},
        "Which of",
    ),
    "sensors": (
        {"a.h5": h5({f"sensor{n}/{one}": FLOATS[n] for n in (1, 2) for one in "abcd"})},
        "each is probably one",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    files, says = REFUSED[case]
    with pytest.raises(LayoutError, match=says):
        read(files)


def test_names_without_numbers() -> None:
    table = read({"a.h5": h5(named([f"{CLASSES[n]}/{uuid4().hex}" for n in EACH], COLOUR))})
    assert (len(table), table.classes) == (8, ("cat", "dog"))


def test_never_written(tmp_path: Path) -> None:
    """What has a shape and no values is a broken sample, not a black image."""
    with h5py.File(tmp_path / "a.h5", "w") as made:
        for key, one in zip(IN_FOLDERS, COLOUR, strict=True):
            made.create_dataset(key, one.shape, np.uint8)
            if key != "cat/2":
                made[key][()] = one
    report = pack_dataset(tmp_path / "a.h5", tmp_path / "packed.h5", image_size=(4, 4), on_error="skip")
    assert ["a.h5/cat/2" in one and "It was never written" in one for one in report.skipped] == [True]


def test_fields_beside_many_arrays() -> None:
    """More arrays than fields are not always samples: a single one is called as inputs are."""
    fields = {"X": RNG.random((30, 2)), "y": np.arange(30) % 2}
    table = read({"a.h5": h5(fields | {f"note_{number}": np.zeros(3) for number in range(300)})})
    assert (table.layout, len(table), table.classes) == ("arrays", 30, ("0", "1"))


def test_kinds() -> None:
    clips = read({"a.h5": h5({f"{key}.wav": np.frombuffer(wav(), np.uint8) for key in IN_FOLDERS})})
    assert (clips.layout, clips.classes, clips.inputs.source.read(0)) == ("audio", ("cat", "dog"), wav())
    assert isinstance(read(written(COLOUR)).inputs, Images)
    assert isinstance(read(written(FLOATS)).inputs, Arrays)
    both = named([f"images/{n}" for n in EACH], COLOUR) | named(
        [f"masks/{n}" for n in EACH], [one[..., 0] for one in COLOUR]
    )
    assert isinstance(read({"a.h5": h5(both)}).targets, Masks)
    names = named([f"{one}_{number}" for number, one in enumerate(CLASSES)], COLOUR)
    assert read({"a.npz": npz(**names)}, file_names(r"([a-z]+)_\d+\.\w+$")).classes == ("cat", "dog")

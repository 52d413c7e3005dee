"""Parquet and Arrow files, as Hugging Face's `datasets` and pyarrow write them, read as they read them."""

from __future__ import annotations

import io
import tarfile
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import CorruptArchiveError, EmptySourceError, LayoutError, SourceReadError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.table import BrokenDatasetError
from colabstage.options import Boxes
from colabstage.trees.folder import FolderTree
from colabstage.trees.open import open_tree
from tests.layouts.readers import completed, contents, labels, picture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
parquet = pytest.importorskip("pyarrow.parquet")


def rows(first: int, count: int) -> dict[str, list[Any]]:
    """Images as `datasets` keeps them, with a number."""
    numbers = range(first, first + count)
    return {
        "image": [{"bytes": picture(n), "path": f"{n}.png"} for n in numbers],
        "label": [n % 2 for n in numbers],
    }


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    """Make a file with pyarrow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(columns), path, **options)
    return path


def write_stream(path: Path, columns: dict[str, Any], *, batch: int = 3, compression: str | None = None) -> Path:
    """Make an Arrow stream with pyarrow, several batches long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = arrow.table(columns)
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


@pytest.fixture
def hugging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package `datasets`, which writes to the test's folder only, and asks nobody."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = pytest.importorskip("datasets", reason="needs datasets: pip install -c constraints.txt datasets")
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    return found


@pytest.fixture
def pets(hugging: Any) -> Any:
    """Two splits of images with named classes."""
    kinds = hugging.Features({"image": hugging.Image(), "label": hugging.ClassLabel(names=["cat", "dog"])})
    return hugging.DatasetDict(
        {
            "train": hugging.Dataset.from_dict(rows(0, 7), features=kinds),
            "test": hugging.Dataset.from_dict(rows(7, 4), features=kinds),
        }
    )


def decoded(dataset: Any) -> list[tuple[bytes, int]]:
    """Pixels and labels as `datasets` gives them."""
    return [(np.asarray(row["image"]).tobytes(), row["label"]) for row in dataset]


def pixels(image: bytes) -> bytes:
    """An image's pixels by Pillow."""
    return np.asarray(Image.open(io.BytesIO(image))).tobytes()


def test_datasets_saved_to_disk_are_what_datasets_reads(tmp_path: Path, hugging: Any, pets: Any) -> None:
    """Sample by sample, of several files; splits by folder, classes by the names that the files have."""
    pets.save_to_disk(tmp_path / "pets", num_shards={"train": 2, "test": 1})
    table = detect_layout(FolderTree(tmp_path / "pets"))
    theirs = hugging.load_from_disk(tmp_path / "pets")
    assert table.layout == "arrow"
    found = list(zip(map(pixels, contents(table)), labels(table), strict=True))
    assert found == decoded(theirs["test"]) + decoded(theirs["train"])
    assert table.splits == ("test",) * 4 + ("train",) * 7
    assert table.classes == ("cat", "dog")
    assert table.keys[4] == "train/data-00000-of-00002.arrow[0]"


def test_parquet_of_the_hub_is_what_datasets_reads(tmp_path: Path, hugging: Any, pets: Any) -> None:
    """As the Hub names the files: one folder, splits in their names."""
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    for split, dataset in pets.items():
        dataset.to_parquet(folder / f"{split}-00000-of-00001.parquet", batch_size=3)
    table = detect_layout(FolderTree(tmp_path / "hub"))
    found = list(zip(map(pixels, contents(table)), labels(table), strict=True))
    theirs = [
        hugging.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache")) for path in sorted(folder.iterdir())
    ]
    assert found == [row for dataset in theirs for row in decoded(dataset)]
    assert table.splits == ("test",) * 4 + ("train",) * 7
    assert table.classes == ("cat", "dog")


@pytest.mark.torch
@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_datasets_are_packed(tmp_path: Path, hugging: Any, pets: Any, form: str, encoding: str) -> None:
    """End to end: the packed pixels and labels are those that `datasets` decodes."""
    from colabstage import dataset_h5

    if form == "arrow":
        pets.save_to_disk(tmp_path / "pets")
    else:
        (tmp_path / "pets").mkdir()
        for split, dataset in pets.items():
            dataset.to_parquet(tmp_path / "pets" / f"{split}.parquet")
    pack_dataset(tmp_path / "pets", tmp_path / "out.h5", encoding=encoding, progress=False)
    packed = dataset_h5(tmp_path / "out.h5", split="test")
    found = [(np.asarray(x).tobytes(), int(y)) for x, y in (packed[i] for i in range(len(packed)))]
    packed.close()
    assert found == decoded(pets["test"])


@pytest.mark.parametrize(
    "write",
    [
        lambda path, data: write_parquet(path.with_suffix(".parquet"), data, row_group_size=2),
        lambda path, data: write_parquet(path.with_suffix(".parquet"), data, compression="zstd", use_dictionary=False),
        lambda path, data: write_stream(path.with_suffix(".arrow"), data),
        lambda path, data: write_stream(path.with_suffix(".arrow"), data, compression="zstd"),
        lambda path, data: arrow.feather.write_feather(arrow.table(data), path.with_suffix(".arrow"), "lz4"),
    ],
    ids=["row groups", "zstd", "stream", "compressed stream", "feather"],
)
@pytest.mark.parametrize("form", ["struct", "binary", "large"])
def test_every_form_of_a_file_is_read(tmp_path: Path, write: Callable[[Path, Any], Any], form: str) -> None:
    """Also where images are no struct; more rows than are in memory at once."""
    pytest.importorskip("pyarrow.feather")
    data: dict[str, Any] = rows(0, 250)
    images = [image["bytes"] for image in data["image"]]
    if form != "struct":
        data["image"] = arrow.array(images, arrow.binary() if form == "binary" else arrow.large_binary())
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "val", data)
    table = detect_layout(FolderTree(tmp_path / "d"))
    assert contents(table) == images
    assert labels(table) == data["label"]
    assert table.splits == ("val",) * 250


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_rows_are_read_in_any_order_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """By the batch that holds them; what a row is called in a journal is the same the next time."""
    data = rows(0, 250)
    if form == "parquet":
        write_parquet(tmp_path / "a.parquet", data, row_group_size=70)
    else:
        write_stream(tmp_path / "a.arrow", data, batch=33, compression="zstd")
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", None)
    source, again = (completed(detect_layout(FolderTree(tmp_path))).inputs.source for _ in range(2))
    order = np.random.default_rng(0).permutation(250).tolist()
    assert [source.read(number) for number in order] == [data["image"][number]["bytes"] for number in order]
    assert source.sizes.tolist() == [len(one["bytes"]) for one in data["image"]]
    stamps = [source.stamp(number) for number in range(250)]
    assert stamps == [again.stamp(number) for number in range(250)]
    assert len(set(stamps)) == 250


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    """Its rows are others than those that were counted."""
    path = write_parquet(tmp_path / "a.parquet", rows(0, 9))
    source = detect_layout(FolderTree(tmp_path)).inputs.source
    write_parquet(path, rows(0, 5))
    with pytest.raises((CorruptArchiveError, SourceReadError), match=r"a\.parquet"):
        source.read(0)


def test_files_inside_a_tar_are_read(tmp_path: Path) -> None:
    """By their places in the archive."""
    path = write_stream(tmp_path / "a.arrow", rows(0, 9))
    other = write_parquet(tmp_path / "b.parquet", rows(9, 3))
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        archive.add(path, "d/a.arrow")
        archive.add(other, "d/b.parquet")
    with open_tree(tmp_path / "d.tar", spool=tmp_path) as tree:
        assert contents(detect_layout(tree)) == [picture(n) for n in range(12)]


@pytest.mark.parametrize(
    ("column", "values", "classes"),
    [
        ({"label": ["dog", "cat", "dog"]}, [1, 0, 1], ("cat", "dog")),
        ({"label": [0.5, 1.0, 2.0]}, [0.5, 1.0, 2.0], ()),
        # As pandas writes a column of the type category.
        ({"label": arrow.array(["dog", "cat", "dog"]).dictionary_encode()}, [1, 0, 1], ("cat", "dog")),
        ({"fine_label": [3, 1, 2]}, [3, 1, 2], ()),
        ({"label": [True, False, True]}, [1, 0, 1], ()),
        ({"y": [2, 0, 1]}, [2, 0, 1], ()),
        ({"Label": ["dog", "cat", "dog"]}, [1, 0, 1], ("cat", "dog")),
        ({"diagnosis": [3, 1, 2], "class": [0, 1, 0]}, [0, 1, 0], ()),
        ({"tags": [["a"], ["b"], []], "breed": ["pug", "boxer", "pug"]}, [1, 0, 1], ("boxer", "pug")),
    ],
)
def test_labels_are_found_by_name(tmp_path: Path, column: dict[str, Any], values: list[Any], classes: Any) -> None:
    """Numbers, words, of a column that people call so, in tables of labels as well."""
    data = {"png": [picture(n) for n in range(3)], "width": [6, 6, 6], **column}
    write_parquet(tmp_path / "a.parquet", data)
    table = detect_layout(FolderTree(tmp_path))
    assert labels(table) == values
    assert table.classes == classes
    assert any("width" in note for note in table.notes)


OBJECTS: list[list[tuple[list[float], int]]] = [[([1, 2, 3, 4], 1), ([0, 0, 6, 8], 0)], [], [([3, 5, 2, 2.5], 1)]]


@pytest.mark.parametrize("form", ["sizes", "corners"])
@pytest.mark.parametrize("lists", [False, True])
def test_boxes_of_the_hub_are_targets(tmp_path: Path, hugging: Any, form: str, *, lists: bool) -> None:
    """As CPPE-5 and others have them: `datasets` writes a list of objects as a list of each field, or as it is."""
    written = [
        [(box if form == "sizes" else [*box[:2], box[0] + box[2], box[1] + box[3]], kind) for box, kind in boxes]
        for boxes in OBJECTS
    ]
    kinds = hugging.ClassLabel(names=["glove", "mask"])
    one = {"bbox": hugging.List(hugging.Value("float32"), length=4), "category": kinds}
    features = hugging.Features(
        {"image": hugging.Image(), "objects": hugging.List(one) if lists else hugging.Sequence(one)}
    )
    objects = [
        [{"bbox": box, "category": kind} for box, kind in boxes] if lists
        else {"bbox": [box for box, _ in boxes], "category": [kind for _, kind in boxes]}
        for boxes in written
    ]  # fmt: skip
    images = [{"bytes": picture(number), "path": None} for number in range(3)]
    data = hugging.Dataset.from_dict({"image": images, "objects": objects}, features=features)
    (tmp_path / "hub").mkdir()
    data.to_parquet(str(tmp_path / "hub/train.parquet"))
    found = detect_layout(FolderTree(tmp_path / "hub"))
    assert isinstance(found.targets, Boxes)
    assert found.targets.offsets.tolist() == [0, 2, 2, 3]
    assert found.targets.boxes.tolist() == [[1, 2, 4, 6], [0, 0, 6, 8], [3, 5, 5, 7.5]]
    assert found.targets.columns["labels"].tolist() == [1, 0, 1]
    assert found.classes == ("glove", "mask")


@pytest.mark.parametrize(
    ("box", "says"),
    [
        ([0, 0, 2, 3], "may be xyxy as well"),
        ([4, 1, 3, 9], "are not inside their images"),
        ([1, 2, 3], "four numbers"),
    ],
)
def test_boxes_that_may_be_two_things_are_refused(tmp_path: Path, box: list[float], says: str) -> None:
    """Corners as well as a corner and a size, or neither; three numbers."""
    columns = {"image": [{"bytes": picture(0)}], "objects": [{"bbox": [box], "category": [0]}]}
    write_parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(BrokenDatasetError, match=says):
        detect_layout(FolderTree(tmp_path))


def test_labels_kept_secret_keep_the_classes(tmp_path: Path, hugging: Any) -> None:
    """Test sets have -1 in place of a label."""
    kinds = hugging.Features({"image": hugging.Image(), "label": hugging.ClassLabel(names=["cat", "dog"])})
    data = hugging.Dataset.from_dict({**rows(0, 3), "label": [-1, 0, 1]}, features=kinds)
    data.to_parquet(tmp_path / "a.parquet")
    table = detect_layout(FolderTree(tmp_path))
    assert labels(table) == [-1, 0, 1]
    assert table.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("columns", "kind", "says"),
    [
        ({"text": ["a"], "label": [1]}, LayoutError, "no column of images, but text, label"),
        ({"image": [{"bytes": None, "path": "1.jpg"}], "label": [1]}, LayoutError, "no column of images|no bytes"),
        (
            {"image": [{"bytes": b"x", "path": ""}, {"bytes": None, "path": "1.jpg"}]},
            BrokenDatasetError,
            "row 1 has no bytes",
        ),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_tables_without_images_are_refused(
    tmp_path: Path, columns: dict[str, Any], kind: type[Exception], says: str, form: str
) -> None:
    """With the columns there are, or the row."""
    (write_parquet if form == "parquet" else write_stream)(tmp_path / f"a.{form}", columns)
    with pytest.raises(kind, match=says):
        detect_layout(FolderTree(tmp_path), "arrow")


def test_files_of_different_datasets_are_refused(tmp_path: Path) -> None:
    """By their columns, or by their classes."""
    write_parquet(tmp_path / "a.parquet", rows(0, 2))
    write_parquet(tmp_path / "b.parquet", {"image": rows(0, 2)["image"]})
    with pytest.raises(BrokenDatasetError, match=r"b\.parquet.*different columns"):
        detect_layout(FolderTree(tmp_path))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("column", "splits"),
    [
        ({"split": ["train", "train", "test", "val"]}, ("train", "train", "test", "val")),
        ({"is_valid": [False, True, False, False]}, ("train", "valid", "train", "train")),
        ({"subset": ["north", "south", "north", "north"]}, None),
        ({"split": ["train", "PublicTest", "train", "test"]}, "'PublicTest'"),
        ({"split": ["train", None, "train", "test"]}, "'None'"),
    ],
)
def test_a_column_says_the_splits(tmp_path: Path, form: str, column: dict[str, Any], splits: Any) -> None:
    """Where it has their names alone; some of them beside other words are refused."""
    (write_parquet if form == "parquet" else write_stream)(tmp_path / f"a.{form}", {**rows(0, 4), **column})
    if isinstance(splits, str):
        with pytest.raises(BrokenDatasetError, match=splits):
            detect_layout(FolderTree(tmp_path))
        return
    found = detect_layout(FolderTree(tmp_path))
    assert found.splits == splits
    assert any(next(iter(column)) in note for note in found.notes)


def test_a_column_that_says_another_split_than_the_file_is_refused(tmp_path: Path) -> None:
    """By the row."""
    write_parquet(tmp_path / "train.parquet", {**rows(0, 2), "split": ["train", "test"]})
    write_parquet(tmp_path / "test.parquet", {**rows(2, 2), "split": ["test", "test"]})
    with pytest.raises(BrokenDatasetError, match=r"'train\.parquet\[1\]'.*'test'"):
        detect_layout(FolderTree(tmp_path))


def test_folders_that_may_be_datasets_of_their_own_are_refused(tmp_path: Path) -> None:
    """As `datasets` has its configurations; those of splits and of parts are one dataset."""
    for number, name in enumerate(("en/train", "en/test", "de/train", "de/test")):
        write_parquet(tmp_path / f"{name}-0.parquet", rows(2 * number, 2))
    with pytest.raises(BrokenDatasetError, match=r"'de', 'en'.*only='de'"):
        detect_layout(FolderTree(tmp_path))
    assert len(detect_layout(FolderTree(tmp_path), "arrow")) == 8
    for number, name in enumerate(("train/part1/a", "train/part2/b", "test/part1/a")):
        write_parquet(tmp_path / f"one/{name}.parquet", rows(2 * number, 2))
    assert detect_layout(FolderTree(tmp_path / "one")).splits == ("test",) * 2 + ("train",) * 4


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_cut_files_are_named(tmp_path: Path, name: str) -> None:
    """At any place: never fewer samples in silence."""
    path = (write_parquet if name.endswith("parquet") else write_stream)(tmp_path / name, rows(0, 20))
    content = path.read_bytes()
    for cut in (len(content) - 1, len(content) - 8, len(content) - 30, len(content) // 2, 100, 5, 0):
        path.write_bytes(content[:cut])
        with pytest.raises(CorruptArchiveError, match=name):
            detect_layout(FolderTree(tmp_path), "arrow")


@pytest.mark.parametrize("beside", ["images/1.jpg", "only a text"])
def test_tables_beside_images_are_another_layout(tmp_path: Path, beside: str) -> None:
    """A parquet of paths and labels belongs to the images that it names."""
    (tmp_path / beside).parent.mkdir(exist_ok=True)
    (tmp_path / beside).write_bytes(b"")
    kind: type[Exception] = EmptySourceError
    if beside.endswith("jpg"):
        write_parquet(tmp_path / "labels.parquet", {"path": ["images/1.jpg"], "label": ["cat"]})
        kind = LayoutError
        assert detect_layout(FolderTree(tmp_path)).layout == "table"
    with pytest.raises(kind):
        detect_layout(FolderTree(tmp_path), "arrow")


def test_what_datasets_computes_is_no_data(tmp_path: Path) -> None:
    """Its caches lie beside the files that they were made of."""
    write_stream(tmp_path / "train.arrow", rows(0, 4))
    write_stream(tmp_path / "cache-0123.arrow", {"x": [1]})
    assert len(detect_layout(FolderTree(tmp_path))) == 4


@pytest.mark.parametrize("values", [[[0, 1]] * 4, [{"a": 1}] * 4])
def test_a_column_of_labels_that_are_none_is_refused(tmp_path: Path, values: list[Any]) -> None:
    """Lists and structs under a label's name are never dropped."""
    write_parquet(tmp_path / "a" / "a.parquet", {**rows(0, 4), "label": values})
    with pytest.raises(BrokenDatasetError, match=r"'label'.*(list|struct)"):
        detect_layout(FolderTree(tmp_path / "a"))


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_labels_that_some_samples_lack_are_refused(tmp_path: Path, missing: float | None) -> None:
    """Whichever way pandas wrote what is missing; what all lack are no labels."""
    write_parquet(tmp_path / "a" / "a.parquet", {**rows(0, 4), "label": [1.0, missing, 0.0, missing]})
    with pytest.raises(BrokenDatasetError, match=r"\b2 of 4\b"):
        detect_layout(FolderTree(tmp_path / "a"))
    column = arrow.array([missing] * 4, arrow.float64(), from_pandas=False)
    write_parquet(tmp_path / "b" / "b.parquet", {**rows(0, 4), "label": column})
    assert detect_layout(FolderTree(tmp_path / "b")).targets is None

"""A single file as a source: what it would be in a folder of its own."""

from __future__ import annotations

import ast
import re
import shutil
import zipfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage.errors import ArchiveError, LayoutError
from colabstage.options import table_rows
from colabstage.pack.run import pack_dataset
from colabstage.sources.extract.archive import extract_archive
from colabstage.stage.plan import plan_stage
from colabstage.stage.run import stage_dataset
from tests.pictures import write_photos

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUIET: dict[str, Any] = {"progress": False}


def _npy(path: Path, values: np.ndarray) -> None:
    np.save(path, values)


def _npz(path: Path, values: np.ndarray) -> None:
    np.savez(path, X=values, y=np.arange(len(values)))


def _h5(path: Path, values: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["X_train"], file["Y_train"] = values[:6], np.arange(6)
        file.create_dataset("X_test", data=values[6:], chunks=(1, *values.shape[1:]), compression="gzip")
        file["Y_test"] = np.arange(6, len(values))


@pytest.mark.parametrize(("name", "write"), [("a.npy", _npy), ("a.npz", _npz), ("a.h5", _h5), ("b.HDF5", _h5)])
def test_arrays_in_one_file(tmp_path: Path, name: str, write: Callable[[Path, np.ndarray], None]) -> None:
    """Packed and staged to the rows that it holds, splits and targets with them; known again without a look inside."""
    values = np.random.default_rng(0).random((9, 4, 5))
    write(tmp_path / name, values)
    packed = pack_dataset(tmp_path / name, tmp_path / "out.h5", **QUIET)
    staged = stage_dataset(tmp_path / name, cache_dir=tmp_path / "cache", **QUIET)
    assert packed.samples == dict(staged.splits) == ({"train": 9} if ".n" in name else {"train": 6, "test": 3})
    for path in (tmp_path / "out.h5", staged.path):
        with h5py.File(path) as file:
            rows = np.concatenate([file[f"X_{split}"][()] for split in packed.samples])
            order = np.lexsort(rows.reshape(9, -1).T[::-1])
            np.testing.assert_array_equal(rows[order], values[np.lexsort(values.reshape(9, -1).T[::-1])])
    assert stage_dataset(tmp_path / name, cache_dir=tmp_path / "cache", **QUIET).report.origin == "local"
    elsewhere = stage_dataset(tmp_path / name, cache_dir=tmp_path / "cache", local_dir=tmp_path / "x", **QUIET)
    assert elsewhere.report.origin == "cache"


@pytest.mark.torch
def test_targets_of_a_foreign_file_stay_with_their_inputs(tmp_path: Path) -> None:
    """However rows are ordered in the pack; a replaced file is staged anew."""
    values = np.arange(9 * 4, dtype=np.float32).reshape(9, 4)
    _h5(tmp_path / "a.h5", values)
    staged = stage_dataset(tmp_path / "a.h5", cache_dir=None, **QUIET)
    for split in ("train", "test"):
        with h5py.File(staged.path) as file:
            np.testing.assert_array_equal(file[f"X_{split}"][()], values[file[f"Y_{split}"][()]])
    _h5(tmp_path / "a.h5", values + 1)
    again = stage_dataset(tmp_path / "a.h5", cache_dir=None, **QUIET)
    assert again.report.origin == "source"
    assert again["test"][0][0][0] == values[6, 0] + 1


@pytest.mark.torch
@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
@pytest.mark.parametrize("in_folder", [False, True])
def test_a_pack_is_opened_and_not_packed_again(tmp_path: Path, encoding: str, in_folder: bool) -> None:
    """Its samples would lose their names; the error has the line that opens it, as it is for a second notebook."""
    from colabstage.load.dataset import dataset_h5

    write_photos(tmp_path / "photos", 12)
    cache = tmp_path / "cache"
    first = stage_dataset(tmp_path / "photos", encoding=encoding, cache_dir=cache, **QUIET)
    (pack,) = cache.glob("*.h5")
    with pytest.raises(LayoutError, match="needs no staging") as caught:
        stage_dataset(cache if in_folder else pack, cache_dir=None, **QUIET)
    opened = re.search(r"dataset_h5\((.*?)\)", str(caught.value))
    assert opened is not None
    again = dataset_h5(ast.literal_eval(opened[1]))
    assert again.samples == first["train"].samples
    assert again.classes == first.classes


def test_a_table_names_the_images_beside_it(tmp_path: Path, image_bytes: Callable[..., bytes]) -> None:
    """By paths of either kind; another table of the same images in that folder does not count, and has its own key."""
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    for number in range(8):
        (folder / "images" / f"{number}.png").write_bytes(image_bytes(number))
    relative = "".join(f"images/{number}.png,{number % 2}\n" for number in range(6))
    absolute = "".join(f"{folder}/images/{number}.png,{number}\n" for number in range(4))
    (folder / "one.csv").write_text(f"path,label\n{relative}")
    (folder / "two.csv").write_text(f"path,label\n{absolute}")
    assert pack_dataset(folder / "one.csv", tmp_path / "one.h5", **QUIET).samples == {"train": 6}
    with pytest.raises(LayoutError, match="Several tables"):
        pack_dataset(folder, tmp_path / "no.h5", layout="table", **QUIET)
    staged = [stage_dataset(folder / name, cache_dir=None, **QUIET) for name in ("one.csv", "two.csv")]
    assert [data.splits for data in staged] == [{"train": 6}, {"train": 4}]
    assert staged[0].path.name.startswith("one-")
    assert plan_stage(folder / "one.csv", cache_dir=None).action == "reuse"
    Image.new("RGB", (3, 3)).save(folder / "images" / "new.png")
    assert stage_dataset(folder / "one.csv", cache_dir=None, **QUIET).splits == {"train": 6}


def test_text_becomes_rows_of_tokens(tmp_path: Path) -> None:
    """One book."""
    (tmp_path / "book.txt").write_text("to be or not to be " * 400)
    staged = stage_dataset(tmp_path / "book.txt", cache_dir=None, **QUIET)
    assert staged.info is not None
    assert (staged.info.layout, staged.info.splits["train"].x.shape) == ("tokens", (1024,))


@pytest.mark.torch
def test_a_file_far_away(tmp_path: Path) -> None:
    """An address of arrays is read like a path of them, and comes here once."""
    import fsspec

    memory = fsspec.filesystem("memory")
    try:
        _h5(tmp_path / "a.h5", np.arange(36.0).reshape(9, 4))
        memory.pipe_file("/lone/a.h5", (tmp_path / "a.h5").read_bytes())
        staged = stage_dataset("memory://lone/a.h5", cache_dir=None, **QUIET)
        assert staged.splits == {"train": 6, "test": 3}
        assert staged["test"][2][0].tolist() == [32.0, 33.0, 34.0, 35.0]
    finally:
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]


def test_plain_files_of_one_file_are_that_file(tmp_path: Path) -> None:
    """`keep="both"` has the file itself beside its pack."""
    _npy(tmp_path / "a.npy", np.zeros((3, 2)))
    staged = stage_dataset(tmp_path / "a.npy", keep="both", cache_dir=None, **QUIET)
    assert staged.files is not None
    assert (staged.files / "a.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


def test_a_file_of_arrays_is_no_archive(tmp_path: Path) -> None:
    """It cannot be extracted; and what has another ending is still refused as what it is."""
    _npy(tmp_path / "a.npy", np.zeros((3, 2)))
    (tmp_path / "a.xyz").write_bytes(b"something")
    with pytest.raises(ArchiveError, match="not an archive"):
        extract_archive(tmp_path / "a.npy", tmp_path / "out", progress=False)
    with pytest.raises(ArchiveError, match=r"not an archive.*\.npy"):
        stage_dataset(tmp_path / "a.xyz", **QUIET)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("beside", ["train.zip", "images"])
def test_a_table_in_a_list_is_answered_by_the_source_that_works(
    tmp_path: Path, beside: str, *, backwards: bool
) -> None:
    """Wherever in the list it is; that source is then read with its labels."""
    folder = tmp_path / "contest"
    (folder / "images").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        for number in range(4):
            Image.new("RGB", (4, 4)).save(folder / "images" / f"{number}.png")
            archive.write(folder / "images" / f"{number}.png", f"{number}.png")
    if beside == "train.zip":
        shutil.rmtree(folder / "images")
        (tmp_path / "train.zip").rename(folder / "train.zip")
    (folder / "train.csv").write_text("image,label\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(4)))
    several = [folder / "train.csv", folder / beside]
    with pytest.raises(LayoutError, match=r"a table in a list.*Give that folder in its place: (.*)\.$") as caught:
        plan_stage(several[::-1] if backwards else several, cache_dir=None)
    meant = ast.literal_eval(str(caught.value).rpartition("in its place: ")[2].removesuffix("."))
    assert stage_dataset(meant, cache_dir=None, **QUIET).classes == ("a", "b")


def test_tables_alone_are_answered_by_what_they_need(tmp_path: Path) -> None:
    """A table of passengers is no dataset of images."""
    (tmp_path / "train.csv").write_text("PassengerId,Survived\n1,0\n2,1\n")
    with pytest.raises(LayoutError, match=r"the folder that holds both.*numpy\.savez"):
        plan_stage(tmp_path, cache_dir=None)


LISTS = {
    "train.txt": ("{n}.png {n}\n", r"'train\.txt' names images.*as its first line"),
    "tokens.txt": ("{n}.png#1\tA dog, {n}\n", r"'tokens\.txt' names images.*layout=\"tokens\" takes it as text"),
    "metadata.jsonl": (
        '{{"file_name": "{n}.png", "text": "a dog"}}\n',
        r"that holds both; layout=\"tokens\"",
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_images_is_no_text_to_learn_from(tmp_path: Path, name: str) -> None:
    """It was packed as tokens, as long as it was; who names that layout gets it."""
    line, says = LISTS[name]
    (tmp_path / name).write_text("".join(line.format(n=number) for number in range(400)), encoding="utf-8")
    with pytest.raises(LayoutError, match=says):
        stage_dataset(tmp_path / name, cache_dir=None, **QUIET)
    assert stage_dataset(tmp_path / name, layout="tokens", cache_dir=None, **QUIET).splits


def test_a_table_apart_from_its_files_says_what_to_give(tmp_path: Path) -> None:
    """With the line that reads both; a spreadsheet has the line that saves it as a table."""
    (tmp_path / "images").mkdir()
    (tmp_path / "tables").mkdir()
    for number in range(4):
        Image.new("RGB", (4, 4)).save(tmp_path / "images" / f"{number}.png")
    table = tmp_path / "tables" / "labels.csv"
    table.write_text("image,label\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(4)))
    with pytest.raises(LayoutError, match=r"holds both, with layout=table_rows\(table='labels\.csv'\)"):
        stage_dataset(table, cache_dir=None, **QUIET)
    assert stage_dataset(tmp_path, layout=table_rows(table="labels.csv"), cache_dir=None, **QUIET).classes == ("a", "b")
    with zipfile.ZipFile(tmp_path / "labels.xlsx", "w") as book:
        book.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(LayoutError, match=r"pandas\.read_excel\('.*labels\.xlsx', dtype=str\)\.to_csv"):
        stage_dataset(tmp_path / "labels.xlsx", cache_dir=None, **QUIET)

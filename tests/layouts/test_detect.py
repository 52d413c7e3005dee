"""Choosing a layout: the one that fits, the one that was named, or every reason why none does."""

import io
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from colabstage.errors import LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.options import Boxes, table_rows
from colabstage.trees.listing import FileEntries, FileEntry
from colabstage.trees.open import open_tree
from tests.layouts.known import MemoryTree
from tests.layouts.readers import read

TREE = {"cat/1.jpg": b"", "dog/1.jpg": b""}


def test_what_was_found_in_words() -> None:
    """A path of each class, also where classes are those of boxes; of many classes the first; else one sample."""
    table = read(TREE)
    assert table.summary()[:2] == (("layout", "image_folder"), ("labels from", "the folders"))
    assert table.summary()[2:] == (("classes", "2: cat ('cat/1.jpg'), dog ('dog/1.jpg')"),)
    named = replace(table, classes=("cat", "dog", *(f"c{number}" for number in range(20))))
    shown = "22: cat ('cat/1.jpg'), dog ('dog/1.jpg'), c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 10 more"
    assert dict(named.summary())["classes"] == shown
    boxes = Boxes(np.array([0, 0, 3]), np.ones((3, 4)), {"labels": np.array([1, 0, 1])})
    assert dict(replace(table, targets=boxes).summary())["classes"] == "2: cat ('dog/1.jpg'), dog ('dog/1.jpg')"
    assert replace(table, targets=None, classes=()).summary()[2:] == (("example", "'cat/1.jpg'"),)


@pytest.mark.parametrize("ending", [".jpg", ".npy"])
def test_files_of_a_large_archive_are_not_asked_one_by_one(tmp_path: Path, ending: str) -> None:
    """From opening the archive to its table of samples, few functions are called for each file: there are millions."""
    content = io.BytesIO()
    np.save(content, np.zeros(3, np.uint8))
    calls = []
    for files in (200, 1200):
        archive = tmp_path / f"{files}.zip"
        with zipfile.ZipFile(archive, "w") as out:
            for number in range(files):
                out.writestr(f"train/c{number % 5}/{number:04}{ending}", content.getvalue())
        called: list[str] = []

        def note(frame: FrameType, event: str, _: object, called: list[str] = called) -> None:
            if event == "call":
                called.append(frame.f_code.co_name)

        sys.setprofile(note)
        try:
            with open_tree(archive, spool=tmp_path) as tree:
                table = detect_layout(tree)
        finally:
            sys.setprofile(None)
        assert (len(table), table.classes) == (files, ("c0", "c1", "c2", "c3", "c4"))
        calls.append(len(called))
    assert (calls[1] - calls[0]) / 1000 < 10


def test_images_without_labels_are_samples_too() -> None:
    """For a GAN, or to classify; more of a dataset they are only as a class of it."""
    table = read({"1.jpg": b""})
    assert (table.layout, table.targets, list(table.keys)) == ("images", None, ["1.jpg"])
    with pytest.raises(LayoutError):
        detect_layout(MemoryTree({"1.jpg": b""}), is_more=True)


@pytest.mark.parametrize("table", ["", "labels.csv"])
def test_no_object_is_made_for_each_of_many_files(tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tree that no layout reads, and of a table's folder: a million of them would take 300 MB, and seconds."""
    made = 0
    iterate = FileEntries.__iter__

    def counted(entries: FileEntries) -> Iterator[FileEntry]:
        nonlocal made
        made += len(entries)
        yield from iterate(entries)

    place = tmp_path / "many.zip"
    with zipfile.ZipFile(place, "w") as archive:
        for number in range(2000):
            archive.writestr(f"{number % 7}/{number}.{'jpg' if table else 'dat'}", b"")
        archive.writestr("labels.csv" if table else "notes.dat", "path,label\n0/0.jpg,cat\n1/1.jpg,dog\n2/2.jpg,cat\n")
    monkeypatch.setattr(FileEntries, "__iter__", counted)
    with open_tree(place, spool=tmp_path) as many:
        if table:
            assert len(detect_layout(many, table_rows(table=table))) == 3
        else:
            with pytest.raises(LayoutError, match=r"2,001 \.dat"):
                detect_layout(many)
    assert made < 100


def test_an_installed_package_adds_a_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through its entry point: named, and where nothing of ours fits."""
    site, data = tmp_path / "site", {f"{number}.odd": bytes([number]) for number in range(3)}
    (site / "odd-1.0.dist-info").mkdir(parents=True)
    (site / "odd-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (site / "odd-1.0.dist-info" / "entry_points.txt").write_text("[colabstage.layouts]\nodd = odd_layout:ODD\n")
    (site / "odd_layout.py").write_text(ODD_LAYOUT)
    with pytest.raises(LayoutError):
        read(data)
    monkeypatch.syspath_prepend(site)
    for layout in ("auto", "odd"):
        table = read(data, layout)
        assert (table.layout, table.told_by, [table.inputs.source.read(n) for n in range(3)]) == (
            "odd",
            "a package",
            [b"\0", b"\1", b"\2"],
        )


ODD_LAYOUT = """
from colabstage.layouts.detect import Evidence, Layout
from colabstage.options import TreeFiles
from colabstage.options import Images, SampleTable


def state(case):
    files = case.source.ending_in((".odd",))
    return Evidence(SampleTable("odd", files.names, Images(TreeFiles(case.source.tree, files)), None), "a package")


ODD = Layout("odd", state, extensions=(".odd",))
"""

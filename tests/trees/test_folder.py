"""Folders as trees: what is listed, what is left out, and what happens on a change meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colabstage.errors import DriveDisconnectedError, SourceNotFoundError, SourceReadError
from colabstage.trees.listing import FileEntry, Tree
from colabstage.trees.open import open_tree
from tests.support.archives import read_all
from tests.support.deadlines import ask_again_at_once
from tests.support.images import make_tree


def list_folder(folder: Path, workers: int = 1) -> Tree:
    """Return the tree of a folder; nothing of one is unpacked."""
    return open_tree(folder, spool=folder / "unused", workers=workers)


def read_part(tree: Tree, entry: FileEntry, length: int, offset: int) -> bytes:
    source = tree.open(entry)
    assert source is not None
    return source.pread(length, offset)


def test_junk_and_google_documents_are_left_out(tmp_path: Path) -> None:
    """Junk silently, Google documents with a note, since somebody may have meant them."""
    files = {"a/1.jpg": b"1", "a/.DS_Store": b"", "__MACOSX/a/1.jpg": b"", ".git/config": b"", "a/._1.jpg": b""}
    documents = {"notes.gdoc": b"", "a/labels.gsheet": b"", "b/labels.GSHEET": b""}
    tree = list_folder(make_tree(tmp_path, files | documents))
    assert [entry.name for entry in tree.entries] == ["a/1.jpg"]
    (note,) = tree.notes
    assert "3 Google documents" in note
    assert "2 .gsheet, 1 .gdoc" in note
    assert "a/labels.gsheet" in note


@pytest.mark.parametrize("workers", [1, 4])
def test_each_folder_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """Also among junk, folders and links."""
    sizes = {f"c{number % 7}/{number}.jpg": number % 5 for number in range(500)} | {"top.txt": 0}
    root = make_tree(tmp_path / "root", {name: b"x" * size for name, size in sizes.items()} | {"c0/.DS_Store": b""})
    os.mkfifo(root / "pipe.jpg")  # opening one would wait for ever
    (root / "c1" / "link.jpg").symlink_to(root / "top.txt")
    listed: list[object] = []
    scandir = os.scandir

    def counted(place: Any) -> Any:
        listed.append(place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", counted)
    tree = list_folder(root, workers)
    assert {entry.name: entry.size for entry in tree.entries} == {**sizes, "c1/link.jpg": 0}
    assert len(listed) == 8


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    """People share one copy of images through a folder of links."""
    shared = make_tree(tmp_path / "shared", {"1.jpg": b"one", "more/2.jpg": b"two"})
    root = make_tree(tmp_path / "root", {"a/0.jpg": b"zero"})
    (root / "b").symlink_to(shared)
    (root / "c").symlink_to(shared)
    (root / "a" / "link.jpg").symlink_to(shared / "1.jpg")
    with list_folder(root, 3) as tree:
        assert read_all(tree) == {
            "a/0.jpg": b"zero", "a/link.jpg": b"one", "b/1.jpg": b"one", "b/more/2.jpg": b"two", "c/1.jpg": b"one",
            "c/more/2.jpg": b"two",
        }  # fmt: skip


def test_loops_and_broken_links_are_cut_with_a_note(tmp_path: Path) -> None:
    """A link to a folder above, to itself or to nothing neither hangs nor fails the listing."""
    root = make_tree(tmp_path / "root", {"a/b/1.jpg": b"1"})
    (root / "a" / "b" / "up").symlink_to(root / "a")
    (root / "itself").symlink_to(root / "itself")
    (root / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    tree = list_folder(root)
    assert [entry.name for entry in tree.entries] == ["a/b/1.jpg"]
    assert any("gone.jpg" in note and note.startswith("2 ") for note in tree.notes)
    assert any("a/b/up" in note for note in tree.notes)


def test_a_file_written_before_1970_has_its_time(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a")
    (tmp_path / "b.jpg").write_bytes(b"b")
    os.utime(tmp_path / "a.jpg", ns=(-5_000_000_000, -5_000_000_000))
    os.utime(tmp_path / "b.jpg", ns=(7_000_000_000, 7_000_000_000))
    assert list_folder(tmp_path).entries.mtimes_ns.tolist() == [-5_000_000_000, 7_000_000_000]


@pytest.mark.parametrize("content", [b"12", b"x" * 10_000])
def test_a_file_of_another_length_than_listed_is_an_error(tmp_path: Path, content: bytes) -> None:
    """Half an image must not pass for a whole one: the size is checked to the byte, in both directions."""
    (tmp_path / "1.jpg").write_bytes(b"123")
    tree = list_folder(tmp_path)
    (tmp_path / "1.jpg").write_bytes(content)
    for read in (tree.read, lambda entry: read_part(tree, entry, 3, 0)):
        with pytest.raises(SourceReadError, match=r"1\.jpg.* 3 bytes"):
            read(tree.entries[0])


@pytest.mark.fuse
def test_folders_on_a_drive_are_listed_at_once(tmp_path: Path) -> None:
    """Twenty class folders at 200 ms a listing take the time of a few, not of twenty."""
    from simulated_drive.drive import SimulatedDrive
    from simulated_drive.knobs import DriveKnobs

    listing_s = 0.2
    knobs = DriveKnobs(listing_latency_s=listing_s, listing_per_entry_s=0.0, cold_open_latency_s=0.0)
    with SimulatedDrive(tmp_path / "home", knobs=knobs) as drive:
        make_tree(drive.cloud / "MyDrive" / "data", {f"c{n}/{m}.jpg": b"x" for n in range(20) for m in range(5)})
        drive.mount(tmp_path / "drive")
        start = time.monotonic()
        tree = list_folder(tmp_path / "drive" / "MyDrive" / "data", 16)
        took_s = time.monotonic() - start
    assert len(tree.entries) == 100
    assert took_s < 20 * listing_s


@pytest.mark.fuse
def test_a_listing_that_fails_for_a_moment_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errno 5 of a big folder passes, because with each attempt the mount has cached more."""
    from simulated_drive.drive import SimulatedDrive
    from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault

    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        make_tree(drive.cloud / "MyDrive" / "data", {f"c/{n}.jpg": b"x" for n in range(10)})
        drive.mount(tmp_path / "drive")
        data = tmp_path / "drive" / "MyDrive" / "data"
        waits = ask_again_at_once(monkeypatch.setattr)
        drive.set_faults(DriveFaults(ops=(OpFault(op="list", errno=errno.EIO, first=2),)))
        assert len(list_folder(data, 2).entries) == 10
        assert len(waits) == 2
        drive.set_faults(DriveFaults(ops=(OpFault(op="list", errno=errno.EIO),)))
        with pytest.raises(SourceReadError, match="4 tries"):
            list_folder(data, 2)
        drive.kill()
        with pytest.raises(DriveDisconnectedError, match=r"mount_drive\("):
            list_folder(data, 2)


@pytest.mark.parametrize("in_order", [True, False])
def test_parts_of_one_file_are_of_one_state(tmp_path: Path, in_order: bool) -> None:
    """A file rewritten in place keeps its size: reading it in parts is an error, with each way of reading."""
    size = 40_000_000
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(size)
    tree = list_folder(tmp_path)
    (entry,) = tree.entries
    if in_order:
        chunks = tree.chunks(entry)
        assert len(next(chunks)) < size
    else:
        read_part(tree, entry, 1000, 0)
    with path.open("r+b") as file:
        file.seek(size - 1000)
        file.write(b"new" * 300)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceReadError, match="written to"):
        next(chunks) if in_order else read_part(tree, entry, 1000, size - 1000)
    # A newly listed tree has one state again.
    again = list_folder(tmp_path)
    assert again.read(next(iter(again.entries))) == path.read_bytes()


def test_names_in_no_encoding_are_listed_and_read(tmp_path: Path) -> None:
    """Of files and of folders: Linux takes any bytes, as of an archive from another system."""
    below = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(below)  # noqa: PTH102 - a name of bytes
    for name in (below + b"/1.txt", os.fsencode(tmp_path) + b"/caf\xe9.txt"):
        with open(name, "wb") as file:
            file.write(name[-6:])
    for workers in (1, 4):
        tree = list_folder(tmp_path, workers)
        assert [os.fsencode(name) for name in tree.entries.names] == [b"caf\xe9.txt", b"\xff\xfe/1.txt"]
        assert [tree.read(entry) for entry in tree.entries] == [b"f\xe9.txt", b"/1.txt"]


@pytest.mark.parametrize(("gone", "workers"), [("2.txt", 1), ("below", 4)])
def test_what_vanishes_while_it_is_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str, workers: int
) -> None:
    """Something else removes files at the same time, so the listing would match no state that existed."""
    root = make_tree(tmp_path, {"1.txt": b"1", "2.txt": b"2", "below/3.txt": b"3"})
    scandir = os.scandir

    @contextlib.contextmanager
    def vanishing(place: Any) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(place) as scan:
            found = list(scan)
        if any(entry.name == gone for entry in found):
            shutil.rmtree(root / gone) if gone == "below" else (root / gone).unlink()
        yield iter(found)

    monkeypatch.setattr(os, "scandir", vanishing)
    ask_again_at_once(monkeypatch.setattr)
    with pytest.raises(SourceNotFoundError, match=gone):
        list_folder(root, workers)

"""Folders of real services on loopback as trees: what is listed, what is left out, and every byte of it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, stage_dataset
from colabstage.errors import (
    EmptySourceError,
    SourceChangedError,
    SourceNotFoundError,
    UnsafeArchiveError,
)
from colabstage.io.files import RetryPolicy
from colabstage.sources.objects import open_address
from colabstage.sources.remote import Access
from colabstage.trees.listing import FileEntry, Tree
from tests.sources.objects.conftest import Place
from tests.sources.servers import BucketService, FolderService
from tests.support.archives import read_all, tar_bytes
from tests.support.far import MemoryFile, far_service
from tests.support.images import image, make_tree, read_tree

# The most that one request is for.
PIECE_BYTES = 4 * 1024 * 1024
CONTENT = {
    "top.txt": b"1",
    "a/one.bin": os.urandom(1000),
    "a/b/c/deep.bin": os.urandom(2000),
    "a/b/empty.bin": b"",
    "ü/Grüße 1.txt": b"hello",
    "a.b/x#1?.txt": b"odd",
}


def open_tree(url: str, retry: RetryPolicy = RetryPolicy()) -> Any:  # noqa: B008 - frozen
    """The folder at an address."""
    tree = open_address(url, Access(policy=retry), workers=4)
    assert isinstance(tree, Tree)
    return tree


def part_of(tree: Tree, entry: FileEntry, offset: int, length: int) -> bytes:
    """Some bytes of one of its files."""
    file = tree.open(entry)
    assert file is not None
    return file.pread(length, offset)


@pytest.fixture
def address(place: Place) -> str:
    """The folder `set` in each of the services, with `CONTENT` in it and something beside it."""
    for name, content in CONTENT.items():
        place.put(f"set/{name}", content)
    place.put("set2/other.txt", b"not of the set")
    return place.url("set")


def test_a_folder_is_the_same_from_everywhere(address: str, tmp_path: Path) -> None:
    """Names, sizes and bytes are those that were written; what lies beside the folder is not in it. It is fetched with
    its times."""
    with open_tree(f"{address}/") as tree:
        assert {entry.name: entry.size for entry in tree.entries} == {n: len(c) for n, c in CONTENT.items()}
        assert sorted(entry.position for entry in tree.entries) == list(range(len(CONTENT)))
        assert (tree.kind, tree.notes) == ("folder", ())
        assert "s3cret" not in tree.label
        assert {entry.name: b"".join(tree.chunks(entry)) for entry in tree.entries} == CONTENT
        deep = next(entry for entry in tree.entries if entry.name == "a/b/c/deep.bin")
        assert part_of(tree, deep, 500, 1000) == CONTENT["a/b/c/deep.bin"][500:1500]
        times = {entry.name: entry.mtime_ns for entry in tree.entries}
    fetch_files(address, tmp_path / "target", progress=False)
    assert read_tree(tmp_path / "target") == CONTENT
    for name, time_ns in times.items():
        assert abs((tmp_path / "target" / name).stat().st_mtime_ns - time_ns) < 1000


@pytest.mark.parametrize(
    ("place", "pattern", "names"),
    [
        # These two list one folder first.
        ("sftp", "*.txt", ["top.txt"]),
        # A folder that fits comes with all that is in it.
        ("sftp", "a*", ["a.b/x#1?.txt", "a/b/c/deep.bin", "a/b/empty.bin", "a/one.bin"]),
        ("s3", "**/*.bin", ["a/b/c/deep.bin", "a/b/empty.bin", "a/one.bin"]),
        ("memory", "a/b*/*.bin", ["b/empty.bin"]),
    ],
    indirect=["place"],
)
def test_a_star_in_an_address_lists_what_fits(address: str, pattern: str, names: list[str]) -> None:
    """With names below the folder before it; if nothing fits, the error says what is there instead."""
    with open_tree(f"{address}/{pattern}") as tree:
        assert tree.entries.names == names
        top = pattern.partition("*")[0].rpartition("/")[0]
        assert {entry.name: tree.read(entry) for entry in tree.entries} == {
            name: CONTENT["/".join(filter(None, (top, name)))] for name in names
        }
    with pytest.raises(SourceNotFoundError, match="holds '"):
        open_tree(f"{address}/{pattern}.zip")


def test_a_star_stands_for_archives_as_a_list_does(s3: BucketService, tmp_path: Path) -> None:
    """Each is opened; one more is a change. A name that exists as it is written is no pattern."""
    s3.put("set/*.tar", tar_bytes({"star.txt": b"1"}))
    fetch_files("s3://data/set/*.tar", tmp_path / "star.tar", progress=False)
    assert (tmp_path / "star.tar").read_bytes() == tar_bytes({"star.txt": b"1"})
    for number in range(3):
        s3.put(f"set/part-{number}.tar", tar_bytes({f"{number}.txt": b"1"}))
        with pytest.raises(EmptySourceError, match=f"{number + 1} .txt"):
            stage_dataset("s3://data/set/part-*.tar", layout="images", local_dir=tmp_path, cache_dir=None)


@pytest.mark.parametrize("images", ["s3://data/set", "s3://data/set/*.png"])
def test_a_table_is_read_with_a_folder_of_a_bucket(s3: BucketService, tmp_path: Path, images: str) -> None:
    """As with a folder of this machine, wherever the table is."""
    for number in range(4):
        s3.put(f"set/{number}.png", image(number))
    table = b"file,label\n0.png,a\n1.png,b\n2.png,a\n3.png,b\n"
    (tmp_path / "labels.csv").write_bytes(table)
    s3.put("tables/labels.csv", table)
    for labels in (tmp_path / "labels.csv", "s3://data/tables/labels.csv"):
        data = stage_dataset([labels, images], image_size=8, local_dir=tmp_path / "local", cache_dir=None)
        assert (data.splits, data.classes) == ({"train": 4}, ("a", "b"))


def test_markers_and_junk_are_left_out(s3: BucketService) -> None:
    """What stands for a folder and what systems leave is no content."""
    for name in ("set/", "set/a/", "set/b", "set/c_$folder$", "set/.DS_Store", "set/__MACOSX/._x"):
        s3.put(name, b"" if "_x" not in name and "DS" not in name else b"junk")
    for name in ("set/b/x.txt", "set/a/y.txt", "set/c/z.txt"):
        s3.put(name, b"1")
    # A byte behind the end is asked for, which would show that there is more, but never in a request of its own.
    for size in (PIECE_BYTES - 1, PIECE_BYTES):
        s3.put("set/c/z.txt", bytes(size))
        with open_tree("s3://data/set") as tree:
            assert len(tree.read(tree.entries[2])) == size
    with open_tree("s3://data/set") as tree:
        assert [entry.name for entry in tree.entries] == ["a/y.txt", "b/x.txt", "c/z.txt"]
        assert tree.notes == ()


@pytest.mark.parametrize("names", [["a/../../x"], ["/../x"], ["a//b", "a/b"], ["a", "a/b"], ["dir/"]])
def test_names_that_no_folder_can_hold_are_refused(s3: BucketService, names: list[str]) -> None:
    """A bucket's keys are any text; those that would leave the folder or collide in it refuse the tree."""
    for name in names:
        s3.put(f"set/{name}", b"content")
    with pytest.raises(UnsafeArchiveError):
        open_tree("s3://data/set")


def test_a_folder_of_a_bucket_is_fetched_again_where_it_changed(s3: BucketService, tmp_path: Path) -> None:
    """Any change of the listing is one; what is read is what was listed. An empty folder is one with its marker."""
    target = tmp_path / "it"

    def fetched(source: str = "s3://data/set") -> bool:
        report = fetch_files(source, f"{target}", progress=False)
        return report.kept_bytes < report.nbytes

    s3.put("set/", b"")
    s3.put("set/x", b"12345")
    assert [fetched(), fetched()] == [True, False]
    with open_tree("s3://data/set") as tree:
        for content in (b"123", b"1234567"):
            s3.put("set/x", content)
            with pytest.raises(SourceChangedError):
                tree.read(tree.entries[0])
        s3.put("set/x", b"54321")
        with pytest.raises(SourceChangedError):
            part_of(tree, tree.entries[0], 1, 2)
    assert fetched()
    s3.put("set/y", b"new")
    assert fetched()
    s3.remove("set/x")
    fetched()
    assert read_tree(target) == {"y": b"new"}
    s3.remove("set/y")
    with open_tree("s3://data/set") as tree:
        assert not tree.entries


def test_links_on_an_sftp_server(sftp: FolderService) -> None:
    """They are left out with a note."""
    make_tree(sftp.root, {"set/a/x": b"1"})
    for name, to in {"link": "a/x", "broken": "nothing", "a/loop": ".."}.items():
        (sftp.root / "set" / name).symlink_to(to)
    with open_tree(f"{sftp.login_address}/set") as tree:
        assert read_all(tree) == {"a/x": b"1"}
        assert "3 links" in tree.notes[0]


@pytest.mark.parametrize(
    "read",
    [lambda tree, entry: part_of(tree, entry, 5, entry.size - 5), lambda tree, entry: b"".join(tree.chunks(entry))[5:]],
    ids=["part", "chunks"],
)
def test_what_broke_off_is_asked_for_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Any, FileEntry], bytes]
) -> None:
    """No byte that came is asked for again, and why nothing comes is forgotten once something does."""
    content = os.urandom(300_000)
    file = MemoryFile(content, answer=lambda number, offset: 100_000 if number < 2 else None)
    with far_service(tmp_path / "site", monkeypatch) as put:
        put(file)
        patient = RetryPolicy(attempts=1, first_wait_s=0.0, patience_s=60.0)
        with open_tree("far://", retry=patient) as tree:
            assert read(tree, tree.entries[0]) == content[5:]
            asked = [offset for offset, _ in file.requests]
            assert asked[0] < asked[1] < asked[2]
            assert tree.waits_for == ""

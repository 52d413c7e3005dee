"""`only=`: which part of a tree is meant, and what its files are called; and files that are parts of one archive."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import ArchiveError, OptionError, SourceNotFoundError
from colabstage.io.arguments import read_only
from colabstage.trees.bytes import JoinedBytes
from colabstage.trees.listing import only_line
from colabstage.trees.open import JoinedTree, OnlyTree, open_archive
from colabstage.trees.volumes import parts_of
from colabstage.trees.zip import ZipTree
from tests.trees.conftest import RecordingBytes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.trees.conftest import ZipBytes

_DRIVE = "x-20240105T101112Z"
FILES = {
    f"plants/{variant}/{kind}/{number}.png": f"{variant}{kind}{number}".encode()
    for variant in ("color", "grey")
    for kind in ("rust", "scab")
    for number in range(2)
} | {"plants/labels.csv": b"name", "plants/color.txt": b"c", "a[1]/x.txt": b"1", "a1/x.txt": b"2"}


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("plants/color", ["rust/0.png", "rust/1.png", "scab/0.png", "scab/1.png"]),
        ("./plants//color/", ["rust/0.png", "rust/1.png", "scab/0.png", "scab/1.png"]),
        ("plants/labels.csv", ["plants/labels.csv"]),
        ("a[1]", ["x.txt"]),
        ("a[0-9]", ["a1/x.txt"]),
        ("*/color", [f"plants/color/{name}" for name in ("rust/0.png", "rust/1.png", "scab/0.png", "scab/1.png")]),
        ("**/0.png", [f"plants/{v}/{k}/0.png" for v in ("color", "grey") for k in ("rust", "scab")]),
        ("**/rust", [f"plants/{v}/rust/{n}.png" for v in ("color", "grey") for n in range(2)]),
        (["plants/grey/rust/0.png", "plants/labels.csv"], ["plants/grey/rust/0.png", "plants/labels.csv"]),
        ("plants/c?lor.txt", ["plants/color.txt"]),
        (["a1", "plants/labels.csv"], ["a1/x.txt", "plants/labels.csv"]),
    ],
)  # fmt: skip
def test_a_folder_becomes_the_root_and_all_else_keeps_its_names(
    zip_bytes: ZipBytes, only: str | list[str], names: list[str]
) -> None:
    """Existing names are taken literally, and only others for patterns; contents are those of the whole."""
    with OnlyTree(ZipTree(RecordingBytes(zip_bytes(FILES))), read_only(only)) as tree:
        assert tree.entries.names == names
        prefix = tree.prefix
        assert {entry.name: tree.read(entry) for entry in tree.entries} == {
            name: FILES[prefix + name] for name in names
        }
        member = tree.packing(tree.entries[0])
        assert member is not None
        assert member.name == prefix + names[0]


@pytest.mark.parametrize(
    ("only", "near"),
    [("color", "plants/color"), ("plants/colour", "plants/color"), ("Plants", "plants"), ("x/*.png", "plants")],
)
def test_what_fits_nothing_shows_names_that_are_near(zip_bytes: ZipBytes, only: str, near: str) -> None:
    """Written as the argument, to be copied."""
    with pytest.raises(SourceNotFoundError) as caught:
        OnlyTree(ZipTree(RecordingBytes(zip_bytes(FILES))), read_only(only))
    assert f"only={only!r}" in str(caught.value)
    assert f"only={near!r}" in str(caught.value)


@pytest.mark.parametrize("only", ["", " ", "/a", "..", "a/../../b", ".", [""], ["a", "/b"], [1]])
def test_what_names_no_part_is_refused(only: str | list[str]) -> None:
    """Before anything is opened."""
    with pytest.raises(OptionError, match="only="):
        read_only(only)


def test_advice_names_the_whole_path(zip_bytes: ZipBytes) -> None:
    """Also from inside a part: the line is for the source."""
    with OnlyTree(ZipTree(RecordingBytes(zip_bytes(FILES))), ["plants"]) as tree:
        assert only_line(tree, "color") == "only='plants/color'"


@pytest.mark.parametrize(
    ("name", "siblings", "parts"),
    [
        ("a.zip", ["a.zip", "b.zip"], ["a.zip"]),
        ("a.zip.002", ["a.zip.001", "a.zip.002", "b.zip.003"], ["a.zip.001", "a.zip.002"]),
        ("a.7z.001", ["a.7z.001"], ["a.7z.001"]),
        ("a.tar.gz.ab", ["a.tar.gz", "a.tar.gz.aa", "a.tar.gz.ab", "a.tar.xz"], ["a.tar.gz.aa", "a.tar.gz.ab"]),
        ("d.tar.part10", [f"d.tar.part{n}" for n in range(1, 11)], [f"d.tar.part{n}" for n in range(1, 11)]),
        ("a.tar.bz", ["a.tar.gz", "a.tar.ab"], ["a.tar.bz"]),
        (f"{_DRIVE}-002.zip", [f"{_DRIVE}-001.zip"], [f"{_DRIVE}-001.zip", f"{_DRIVE}-002.zip"]),
        (f"{_DRIVE}-1-001.zip", [f"y{_DRIVE}-003.zip"], [f"{_DRIVE}-1-001.zip"]),
        (f"{_DRIVE}-1-001.zip", [f"{_DRIVE}-3-002.zip"], [f"{_DRIVE}-1-001.zip", f"{_DRIVE}-3-002.zip"]),
        ("subject-001.zip", ["subject-002.zip"], ["subject-001.zip"]),
    ],
)  # fmt: skip
def test_the_parts_of_one_archive_are_known_by_their_names(name: str, siblings: list[str], parts: list[str]) -> None:
    """In their order; numbered files that are archives of their own are none."""
    assert list(parts_of(name, siblings)) == parts


@pytest.mark.parametrize(
    ("name", "siblings", "named"),
    [
        ("a.zip.001", ["a.zip.003"], "a.zip.002"),
        ("a.zip.002", [], "a.zip.001"),
        ("a.tar.gz.ac", ["a.tar.gz.aa"], "a.tar.gz.ab"),
        ("a.tar.gz.ab", ["a.tar.gz.ac"], "a.tar.gz.aa"),
        ("d.tar.part02", ["d.tar.part00"], "d.tar.part01"),
        ("x-20240105T101112Z-002.zip", [], "x-20240105T101112Z-001.zip"),
        ("x-20240105T101112Z-001.zip", ["x-20240105T101112Z-003.zip"], "x-20240105T101112Z-002.zip"),
        ("a.part2.rar", ["a.part1.rar"], 'unrar x "a.part1.rar"'),
        ("a.part02.rar", [], 'unrar x "a.part01.rar"'),
        ("a.z01", ["a.zip"], 'zip -s 0 "a.zip"'),
    ],
)
def test_a_part_that_is_missing_or_needs_a_tool_is_named(name: str, siblings: list[str], named: str) -> None:
    """By its own name, or with the line that joins all."""
    with pytest.raises(ArchiveError) as caught:
        parts_of(name, siblings)
    assert named in str(caught.value)


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_pieces_of_an_archive_are_read_as_the_whole(tmp_path: Path, zip_bytes: ZipBytes, size: int) -> None:
    """Wherever they were cut; and one that has become shorter ends the whole there."""
    whole = zip_bytes(FILES)
    pieces = [RecordingBytes(whole[at : at + size]) for at in range(0, len(whole), size)]
    joined = JoinedBytes("a.zip", pieces)
    assert joined.size == len(whole)
    assert [joined.pread(9, at) for at in range(len(whole))] == [whole[at : at + 9] for at in range(len(whole))]
    assert joined.pread(5, len(whole)) == b""
    with open_archive(joined, spool=tmp_path) as tree:
        assert {entry.name: tree.read(entry) for entry in tree.entries} == FILES
    assert all(piece.closed for piece in pieces)
    if len(pieces) > 2:
        pieces[1].content = b""
        assert joined.pread(len(whole), 0) == pieces[0].content


def test_a_split_zip_has_the_line_that_joins_it(tmp_path: Path) -> None:
    """Its last part, alone or glued to the others."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a", b"x" * 1000)
    raw = bytearray(content.getvalue())
    at = raw.index(b"PK\5\6")
    raw[at + 4 : at + 8] = b"\1\0\1\0"
    for begin in (0, 500):
        with pytest.raises(ArchiveError, match=r"zip -s 0.*f\.zip"):
            open_archive(RecordingBytes(bytes(raw[begin:]), label="x/f.zip"), spool=tmp_path)


def _tar(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


@pytest.mark.parametrize("kinds", ["zz", "zt", "tt"])
def test_a_file_that_is_in_two_parts_is_there_once_if_it_is_the_same(
    tmp_path: Path, zip_bytes: ZipBytes, kinds: str
) -> None:
    """Proved by checksums where both have them, else by reading; another content is a collision."""

    def joined(stems: tuple[str, str], second: bytes) -> JoinedTree:
        contents = ({"a/1.txt": b"1", "README": b"both"}, {"a/2.txt": b"2", "README": second})
        raw = [zip_bytes(files) if kind == "z" else _tar(files) for kind, files in zip(kinds, contents, strict=True)]
        trees = [open_archive(RecordingBytes(one), spool=tmp_path) for one in raw]
        return JoinedTree("both", list(zip(stems, trees, strict=True)))

    with joined(("x", "y"), b"both") as tree:
        assert {entry.name: tree.read(entry) for entry in tree.entries} == {
            "README": b"both",
            "a/1.txt": b"1",
            "a/2.txt": b"2",
        }
    for other in (b"else", b"longer than the other"):
        with joined(("x", "y"), other) as tree:
            assert tree.entries.names == ["x/README", "x/a/1.txt", "y/README", "y/a/2.txt"]
        with pytest.raises(ArchiveError, match="README"):
            joined(("n-20240105T101112Z-001", "n-20240105T101112Z-002"), other)

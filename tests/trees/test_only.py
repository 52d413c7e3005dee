"""Parts: which part of a tree `only=` means; files that are parts of one archive; and several trees as one."""

import gzip
import os
import random
import re
from pathlib import Path

import pytest

from colabstage import plan_stage, stage_dataset
from colabstage.errors import ArchiveError, OptionError, SourceNotFoundError, SourceReadError
from colabstage.options import PackOptions
from colabstage.trees.bytes import JoinedBytes, LocalBytes
from colabstage.trees.open import JoinedTree, OnlyTree, open_archive, plan_joining
from tests.support.archives import RecordingBytes, read_all, stored_zip, tar_bytes

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
        ("a[1]", ["x.txt"]),
        ("a[0-9]", ["a1/x.txt"]),
        ("*/color", [f"plants/color/{name}" for name in ("rust/0.png", "rust/1.png", "scab/0.png", "scab/1.png")]),
        ("**/0.png", [f"plants/{v}/{k}/0.png" for v in ("color", "grey") for k in ("rust", "scab")]),
        (["plants/grey/rust/0.png", "plants/labels.csv"], ["plants/grey/rust/0.png", "plants/labels.csv"]),
        (["a1", "plants/labels.csv"], ["a1/x.txt", "plants/labels.csv"]),
    ],
)  # fmt: skip
def test_a_folder_becomes_the_root_and_all_else_keeps_its_names(
    tmp_path: Path, only: str | list[str], names: list[str]
) -> None:
    """Existing names are taken literally, only others as patterns; contents are those of the whole."""
    whole = open_archive(RecordingBytes(stored_zip(FILES)), spool=tmp_path)
    with OnlyTree(whole, PackOptions(only=only).parts) as tree:
        assert tree.entries.names == names
        prefix = tree.prefix
        assert {entry.name: tree.read(entry) for entry in tree.entries} == {
            name: FILES[prefix + name] for name in names
        }
        member = tree.packing(tree.entries[0])
        assert member is not None
        assert member.name == prefix + names[0]


@pytest.mark.parametrize(
    ("only", "note"),
    [
        ("plants/color", "'plants/color.txt', 'plants/labels.csv'.*only=\\['plants/color', 'plants/color.txt'\\]"),
        (["**/0.png", "plants/color.txt"], "'plants/labels.csv'.*'plants/labels.csv'\\]"),
        ("plants", None),
    ],
)
def test_what_may_name_labels_above_a_part_is_noted(tmp_path: Path, only: str | list[str], note: str | None) -> None:
    """With the line that reads it too."""
    whole = open_archive(RecordingBytes(stored_zip(FILES)), spool=tmp_path)
    with OnlyTree(whole, PackOptions(only=only).parts) as tree:
        assert (re.search(note, " ".join(tree.notes)) is not None) if note else not tree.notes


@pytest.mark.parametrize(("only", "near"), [("plants/colour", "plants/color"), ("x/*.png", "plants")])
def test_what_fits_nothing_shows_names_that_are_near(tmp_path: Path, only: str, near: str) -> None:
    """Written as an argument to copy."""
    with pytest.raises(SourceNotFoundError) as caught:
        OnlyTree(open_archive(RecordingBytes(stored_zip(FILES)), spool=tmp_path), [only])
    assert f"only={only!r}" in str(caught.value)
    assert f"only={near!r}" in str(caught.value)


@pytest.mark.parametrize("only", ["", "/a", "a/../../b", ".", ["a", "/b"], [1]])
def test_what_names_no_part_is_refused(only: str | list[str]) -> None:
    """Before anything is opened."""
    with pytest.raises(OptionError, match="only="):
        PackOptions(only=only)


@pytest.mark.parametrize(
    ("name", "siblings", "parts"),
    [
        ("a.zip", ["a.zip", "b.zip"], ["a.zip"]),
        ("a.zip.002", ["a.zip.001", "a.zip.002", "b.zip.003"], ["a.zip.001", "a.zip.002"]),
        ("a.tar.gz.ab", ["a.tar.gz", "a.tar.gz.aa", "a.tar.gz.ab", "a.tar.xz"], ["a.tar.gz.aa", "a.tar.gz.ab"]),
        ("d.tar.part10", [f"d.tar.part{n}" for n in range(1, 11)], [f"d.tar.part{n}" for n in range(1, 11)]),
        (f"{_DRIVE}-002.zip", [f"{_DRIVE}-001.zip"], [f"{_DRIVE}-001.zip", f"{_DRIVE}-002.zip"]),
        (f"{_DRIVE}-1-001.zip", [f"y{_DRIVE}-003.zip"], [f"{_DRIVE}-1-001.zip"]),
        (f"{_DRIVE}-1-001.zip", [f"{_DRIVE}-3-002.zip"], [f"{_DRIVE}-1-001.zip", f"{_DRIVE}-3-002.zip"]),
        ("subject-001.zip", ["subject-002.zip"], ["subject-001.zip"]),
    ],
)  # fmt: skip
def test_the_parts_of_one_archive_are_known_by_their_names(
    tmp_path: Path, name: str, siblings: list[str], parts: list[str]
) -> None:
    """In order; numbered files that are complete archives are not parts."""
    own = [part for part in parts if _DRIVE not in part]
    content = random.Random(0).randbytes(20_000)
    whole = (tar_bytes if ".tar" in name else stored_zip)({"whole": content})
    whole = gzip.compress(whole) if ".gz" in name else whole
    step = -(-len(whole) // max(1, len(own)))
    for number, part in enumerate(own):
        (tmp_path / part).write_bytes(whole[number * step : (number + 1) * step])
    for other in {*siblings, *parts} - {*own}:
        (tmp_path / other).write_bytes(stored_zip({other: content}))
    data = stage_dataset(tmp_path / name, keep="files", local_dir=tmp_path / "here", cache_dir=None, progress=False)
    assert data.files is not None
    found = {path.name: path.read_bytes() for path in data.files.iterdir()}
    assert found == dict.fromkeys(["whole"] if own else parts, content)


@pytest.mark.parametrize(
    ("name", "siblings", "named"),
    [
        ("a.zip.001", ["a.zip.003"], "before 'a.zip.003'"),
        ("a.tar.gz.ab", ["a.tar.gz.ac"], "before 'a.tar.gz.ab'"),
        ("d.tar.part02", ["d.tar.part00"], "before 'd.tar.part02'"),
        ("x-20240105T101112Z-001.zip", ["x-20240105T101112Z-003.zip"], "112Z-003.zip'"),
        ("a.part2.rar", ["a.part1.rar"], 'unrar x "a.part1.rar"'),
        ("a.z01", ["a.zip"], 'zip -s 0 "a.zip"'),
    ],
)
def test_a_part_that_is_missing_or_needs_a_tool_is_named(
    tmp_path: Path, name: str, siblings: list[str], named: str
) -> None:
    """By the next one, or with the line that joins all parts."""
    for one in {name, *siblings}:
        (tmp_path / one).write_bytes(b"a part")
    with pytest.raises(ArchiveError) as caught:
        plan_stage(tmp_path / name, local_dir=tmp_path / "here", cache_dir=None)
    assert named in str(caught.value)


@pytest.mark.parametrize("size", [7, 1000, 1 << 20])
def test_pieces_of_an_archive_are_read_as_the_whole(tmp_path: Path, size: int) -> None:
    """Wherever they were cut; a part that becomes shorter is an error, not the end of the whole."""
    whole = stored_zip(FILES)
    pieces = [RecordingBytes(whole[at : at + size]) for at in range(0, len(whole), size)]
    joined = JoinedBytes("a.zip", pieces)
    assert joined.size == len(whole)
    assert [joined.pread(9, at) for at in range(len(whole))] == [whole[at : at + 9] for at in range(len(whole))]
    assert joined.pread(5, len(whole)) == b""
    with open_archive(joined, spool=tmp_path) as tree:
        assert read_all(tree) == FILES
    assert all(piece.closed for piece in pieces)
    (tmp_path / "part").write_bytes(whole[:size])
    with JoinedBytes("a.zip", [LocalBytes(tmp_path / "part"), RecordingBytes(whole[size:])]) as joined:
        os.truncate(tmp_path / "part", 3)
        with pytest.raises(SourceReadError, match="part"):
            joined.pread(len(whole), 0)


@pytest.mark.parametrize("kinds", ["zz", "zt"])
def test_a_file_that_is_in_two_parts_is_there_once_if_it_is_the_same(tmp_path: Path, kinds: str) -> None:
    """Proved by checksums if both have them, otherwise by reading; different content is a collision."""

    def joined(stems: tuple[str, str], second: bytes) -> JoinedTree:
        contents = ({"a/1.txt": b"1", "README": b"both"}, {"a/2.txt": b"2", "README": second})
        raw = [
            stored_zip(files) if kind == "z" else tar_bytes(files) for kind, files in zip(kinds, contents, strict=True)
        ]
        trees = [open_archive(RecordingBytes(one), spool=tmp_path) for one in raw]
        return JoinedTree("both", list(zip(stems, trees, strict=True)))

    with joined(("x", "y"), b"both") as tree:
        assert read_all(tree) == {"README": b"both", "a/1.txt": b"1", "a/2.txt": b"2"}
    for other in (b"else", b"longer than the other"):
        with joined(("x", "y"), other) as tree:
            assert tree.entries.names == ["x/README", "x/a/1.txt", "y/README", "y/a/2.txt"]
        with pytest.raises(ArchiveError, match="README"):
            joined(("n-20240105T101112Z-001", "n-20240105T101112Z-002"), other)


@pytest.mark.parametrize(
    ("stems", "names", "prefixes"),
    [
        (["part-1", "part-2"], [["cat/1.png"], ["cat/2.png"]], ("", "")),
        (["part-1", "part-2"], [["cat/1.png"], ["cat/1.png"]], ("part-1", "part-2")),
        (["A", "a"], [["x"], ["x"]], ("A", "a-2")),
        (["a", "b"], [["cat"], ["cat/1.png"]], ("a", "b")),
        (["train", "val"], [["cat/1.png"], ["cat/2.png"]], ("train", "val")),
        (["train", "Test"], [["train/cat/1.png"], ["cat/2.png"]], ("", "Test")),
        (["train", "extra"], [["cat/1.png"], ["cat/2.png"]], ("", "")),
        (["train", "val"], [[], ["cat/2.png"]], ("train", "val")),
        ([f"p{n}" for n in range(9)], [["x"]] * 9, tuple(f"p{n}" for n in range(9))),
    ],
)
def test_names_are_joined_so_that_nothing_is_lost(
    stems: list[str], names: list[list[str]], prefixes: tuple[str, ...]
) -> None:
    """Parts are united unless a name would occur twice or the parts are splits."""
    joining = plan_joining(stems, names)
    assert joining.prefixes == prefixes
    joined = [f"{prefix}/{name}" for prefix, part in zip(joining.prefixes, names, strict=True) for name in part]
    assert len(set(joined)) == sum(map(len, names))


@pytest.mark.parametrize(
    ("stems", "names", "is_told"),
    [
        (["cat", "dog"], [["1.jpg"], ["2.jpg"]], True),
        (["cat", "dog"], [["1.jpg"], ["1.jpg"]], False),
        (["cat", "dog"], [["1.jpg"], ["a/2.jpg"]], False),
        (["train", "train"], [["1.jpg"], ["2.jpg"]], False),
        (["images_001", "images_002"], [["1.jpg"], ["2.jpg"]], False),
        (["0", "1"], [["1.jpg"], ["2.jpg"]], True),
        (["cat", "dog"], [["LABELS.CSV"], ["2.jpg"]], False),
    ],
    ids=["flat", "collide", "deeper", "alike", "counted", "numbers", "a table in capitals"],
)
def test_names_of_parts_that_are_lost_are_told_of(stems: list[str], names: list[list[str]], is_told: bool) -> None:
    """A pattern such as photos/* matches class folders: whether names collide must not decide silently."""
    assert (f"('{stems[0]}', '{stems[-1]}')" in plan_joining(stems, names).reason) is is_told

"""What each kind of tree promises: names, sizes, contents, safety, damage, and reading while it arrives."""

import bz2
import contextlib
import gzip
import lzma
import random
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from colabstage.errors import ColabstageError, DriveDisconnectedError, SourceReadError, UnsafeArchiveError
from colabstage.trees.listing import ArchiveLimits, FileEntry, Tree, total_size
from colabstage.trees.open import JoinedTree, OnlyTree, open_archive, open_tree
from tests.support.archives import (
    FILE,
    LINK,
    RecordingBytes,
    read_all,
    seven_bytes,
    stored_zip,
    tar_bytes,
    tar_of,
    zip_bytes,
    zip_of,
)
from tests.support.images import make_tree
from tests.trees.test_zip import Member, write_zip

FILES = {
    "train/cat/1.jpg": b"first " * 500,
    "train/dog/2.jpg": random.Random(1).randbytes(3000),
    "test/cat/ü 3.jpg": b"",
    "readme.txt": b"r",
    "train.txt": b"beside the folder of its name",
    "large.npy": random.Random(2).randbytes(300_000),
}
_FILE, _SYM, _HARD = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
_METHODS = {"stored": 0, "deflated": 8, "bzip2": 12}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
ARCHIVES = [*(f"zip {method}" for method in (*_METHODS, "zst")), "tar", *(f"tar.{kind}" for kind in PACKERS)]
KINDS = ["folder", *ARCHIVES, "7z", "joined", "only"]


def pack(kind: str, files: Mapping[str, bytes]) -> bytes:
    """An archive of one of `ARCHIVES`, or a 7z."""
    if kind == "7z":
        return seven_bytes(files)
    if kind.startswith("tar"):
        content = tar_bytes(files)
        return PACKERS[kind.partition(".")[2]](content) if "." in kind else content
    method = kind.partition(" ")[2]
    return zip_bytes(files, method=_METHODS[method]) if method in _METHODS else zip_by_hand(files, method)


def zip_by_hand(files: Mapping[str, bytes], method: str) -> bytes:
    """A zip with a method that zipfile lacks."""
    members = [
        Member(name.encode(), PACKERS[method](content), 93, 0x800, size=len(content), crc=zlib.crc32(content))
        for name, content in files.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        return write_zip(Path(folder, "a.zip"), members).read_bytes()


@cache
def pack_files(kind: str) -> bytes:
    """`FILES` as an archive: made once, because some methods take a second for it."""
    return pack(kind, FILES)


@contextlib.contextmanager
def opened(kind: str, files: Mapping[str, bytes], place: Path) -> Iterator[Tree]:
    if kind in {*ARCHIVES, "7z"}:
        content = pack_files(kind) if files is FILES else pack(kind, files)
        with open_archive(RecordingBytes(content, label="data"), spool=place / "spool") as tree:
            yield tree
    elif kind == "joined":
        first = {name: content for name, content in files.items() if len(name) % 2}
        second = {name: content for name, content in files.items() if name not in first or name == "readme.txt"}
        parts = [open_archive(RecordingBytes(stored_zip(part)), spool=place) for part in (first, second)]
        with JoinedTree("both", [("one", parts[0]), ("two", parts[1])]) as tree:
            yield tree
    elif kind == "only":
        inside = {f"below/a folder/{name}": content for name, content in files.items()}
        whole = open_archive(
            RecordingBytes(stored_zip(inside | {"beside.txt": b"x", "below/other/1.txt": b"x"})), spool=place
        )
        with OnlyTree(whole, ["below/a folder"]) as tree:
            yield tree
    else:
        with open_tree(make_tree(place / "root", files), spool=place) as tree:
            yield tree


@pytest.mark.parametrize("kind", KINDS)
def test_names_sizes_and_contents_are_those_that_were_packed(tmp_path: Path, kind: str) -> None:
    """By name, in columns and as entries, whole and in pieces; from many threads; and nothing stays in the spool."""
    with opened(kind, FILES, tmp_path) as tree:
        names = sorted(FILES)
        assert tree.entries.names == names == [entry.name for entry in tree.entries]
        assert tree.entries.sizes.tolist() == [len(FILES[name]) for name in names]
        assert total_size(tree.entries) == sum(map(len, FILES.values()))
        assert read_all(tree) == FILES
        assert {entry.name: b"".join(tree.chunks(entry)) for entry in tree.entries} == FILES
        with ThreadPoolExecutor(8) as pool:
            again = list(pool.map(tree.read, [*tree.entries] * 2))
        assert again == [FILES[entry.name] for entry in tree.entries] * 2
        if tree.crcs is not None:
            assert tree.crcs.tolist() == [zlib.crc32(FILES[name]) for name in names]
        for entry in tree.entries:
            source = tree.open(entry)
            if source is not None:
                with contextlib.closing(source):
                    assert source.size == entry.size
                    assert source.pread(7, 3) == FILES[entry.name][3:10]
            part, own = tree.origin(entry)
            assert part.read(own) == FILES[entry.name]
        # In an archive, a position is the member's offset.
        positions = tree.entries.positions
        assert len(set(positions.tolist())) == len(FILES)
        if kind.startswith(("zip", "tar")):
            assert [tree.entries.names[row] for row in np.argsort(positions)] == list(FILES)
        # An entry of another tree is found by its name, whatever its other fields, or refused.
        made = FileEntry("train/dog/2.jpg", 3000, 0, 0)
        assert tree.read(made) == FILES[made.name]
        assert tree.entries.find("train/dog/2.jpg") == names.index("train/dog/2.jpg")
        assert tree.entries.find("train/dog") is None
        with pytest.raises((SourceReadError, OSError, KeyError)):
            tree.read(FileEntry("other.jpg", 1, 0, 0))
    spool = tmp_path / "spool"
    assert not spool.exists() or list(spool.iterdir()) == []


def test_empty_folders_are_told(tmp_path: Path) -> None:
    """Folders without a file at any depth: a class without images may be missed."""
    (make_tree(tmp_path / "root", {"a/b/1.txt": b"1"}) / "empty").mkdir()
    folders = [(name, tarfile.DIRTYPE, "", b"") for name in ("a", "empty")]
    zipped = stored_zip({"a/b/1.txt": b"1", "empty/": b"", "a/": b""})
    tarred = tar_of(*folders, ("a/b/1.txt", _FILE, "", b"1"))
    archives = [open_archive(RecordingBytes(content), spool=tmp_path) for content in (zipped, tarred)]
    for tree in (open_tree(tmp_path / "root", spool=tmp_path), *archives):
        with tree:
            assert tree.empty_folders == ("empty",)


COMPONENT = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0:"), min_size=1, max_size=60).filter(
    lambda text: text not in (".", "..") and not text.startswith("._")
)
NAME = st.lists(COMPONENT, min_size=1, max_size=3).map(lambda parts: "/".join([*(f"d{part}" for part in parts), "f"]))


@settings(max_examples=25)
@given(
    files=st.dictionaries(NAME, st.binary(max_size=99), min_size=1, max_size=4),
    kind=st.sampled_from(["zip stored", "zip deflated", "zip zst", "tar.gz"]),
)
def test_any_names_and_contents_come_back(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], kind: str
) -> None:
    """As the standard library wrote them."""
    with open_archive(RecordingBytes(pack(kind, files)), spool=tmp_path_factory.getbasetemp() / "spool") as tree:
        assert read_all(tree) == files
        assert tree.entries.names == sorted(files)


@given(data=st.data(), kind=st.sampled_from(ARCHIVES))
def test_a_flipped_bit_gives_what_was_packed_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    """No damage shows as one of Python's own errors. Only an uncompressed tar has no checksum of contents."""
    files = {name: content for name, content in FILES.items() if len(content) < 5000}
    damaged = bytearray(pack(kind, files))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        spool = tmp_path_factory.getbasetemp() / "spool"
        with open_archive(RecordingBytes(bytes(damaged), label="x.zip"), spool=spool) as tree:
            found = read_all(tree)
    except ColabstageError:
        return
    if kind == "tar":
        assert sorted(map(len, found.values())) == sorted(map(len, files.values()))
    else:
        assert set(found.values()) <= {*files.values(), bytes(damaged)}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_every_truncation_is_noticed_when_opening(tmp_path: Path, kind: str) -> None:
    """Wherever a copy stopped, the archive does not pass for a complete one; nothing is left in the spool."""
    files = {name: content for name, content in FILES.items() if len(content) < 5000}
    whole = pack(kind, files)
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512 if kind == "tar" else len(whole)
    for length in [*range(0, end, 1 + end // 50), end - 1]:
        with pytest.raises(ColabstageError):
            open_archive(RecordingBytes(whole[:length], label="x.zip"), spool=tmp_path / "spool").close()
    assert not (tmp_path / "spool").exists() or list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("kind", ["zip stored", "zip deflated", "tar"])
def test_a_file_cut_after_opening_is_a_read_error(kind: str, tmp_path: Path) -> None:
    """The archive was intact when opened, so it is the file that changed."""
    source = RecordingBytes(pack_files(kind))
    with open_archive(source, spool=tmp_path) as tree:
        source.content = source.content[:100]
        for read in (tree.read, lambda entry: list(tree.chunks(entry))):
            with pytest.raises(SourceReadError, match=r"large\.npy"):
                read(tree.entries[0])


class _Dying(RecordingBytes):
    """A source whose Drive dies after the first bytes."""

    def pread(self, length: int, offset: int) -> bytes:
        if offset:
            msg = "The Drive client has died."
            raise DriveDisconnectedError(msg)
        return super().pread(min(length, 4096), offset)


@pytest.mark.parametrize("kind", ["tar.gz", "tar.xz", "tar.zst", "bz2"])
def test_a_source_that_dies_is_not_called_damaged(tmp_path: Path, kind: str) -> None:
    """The source's error passes through decompression unchanged, so that its Drive is mounted again."""
    noise = random.Random(2).randbytes(100_000)
    content = pack(kind, {"a": noise}) if kind in ARCHIVES else PACKERS[kind](noise)
    with pytest.raises(DriveDisconnectedError, match="died"):
        open_archive(_Dying(content, label=f"a.{kind}"), spool=tmp_path)


def test_a_zip_is_opened_and_its_first_members_read_while_the_rest_arrives(tmp_path: Path) -> None:
    """Opening reads the end, and a member takes one positioned read of its own bytes."""
    files = {f"c/{number:03d}.jpg": random.Random(number).randbytes(3000) for number in range(200)}
    source = RecordingBytes(stored_zip(files))
    tree = open_archive(source, spool=tmp_path)
    assert all(offset >= source.size - 65_535 - 200 for offset, _ in source.reads if offset)
    source.reads.clear()
    entry = tree.entries[3]
    assert tree.read(entry) == files[entry.name]
    assert source.reads == [(entry.position, tree.entries[4].position - entry.position)]
    tree.close()
    assert source.closed


@pytest.mark.parametrize(
    "content",
    [
        zip_of(("ok", FILE, b"1"), ("../evil", FILE, b"secret")),
        zip_of(("ok", FILE, b"secret"), ("link", LINK, b"../../etc/passwd")),
        tar_of(("ok", _FILE, "", b"secret"), ("a/../../evil", _FILE, "", b"1")),
        tar_of(("ok", _FILE, "", b"secret"), ("link", _HARD, "../etc/passwd", b"")),
    ],
    ids=["zip", "link of a zip", "tar", "link of a tar"],
)
def test_what_leads_outside_is_refused_before_any_member_is_read(tmp_path: Path, content: bytes) -> None:
    """Only the headers were read, and nothing was written. The corpus has all cases."""
    source = RecordingBytes(content, label="hostile")
    with pytest.raises(UnsafeArchiveError, match="'hostile'"):
        open_archive(source, spool=tmp_path / "spool")
    secret_at = content.find(b"secret")
    assert all(not offset <= secret_at < offset + length for offset, length in source.reads if offset)
    assert not (tmp_path / "spool").exists()
    assert source.closed


def test_a_member_that_is_there_twice_is_the_last(tmp_path: Path) -> None:
    """A cell that appends to a zip was run again. In a tar, `tar -r` replaces a file by a second member, as every
    reader understands it, also a link by a file and a file by a link."""
    with open_archive(
        RecordingBytes(zip_of(*[("a.jpg", FILE, b"1"), ("b.jpg", FILE, b"2")] * 2, ("a.jpg", FILE, b"3"))),
        spool=tmp_path,
    ) as tree:
        assert read_all(tree) == {"a.jpg": b"3", "b.jpg": b"2"}
        assert "2 names" in tree.notes[0]
    content = tar_of(
        ("a", _FILE, "", b"old"),
        ("hard", _HARD, "a", b""),
        ("link", _FILE, "", b"a file"),
        ("file", _SYM, "a", b""),
        ("a", _FILE, "", b"new"),
        ("./link", _SYM, "a", b""),
        ("file", _FILE, "", b"no link"),
    )
    with open_archive(RecordingBytes(content), spool=tmp_path) as tree:
        assert read_all(tree) == {"a": b"new", "hard": b"old", "link": b"new", "file": b"no link"}
        assert "3 names" in tree.notes[0]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_links_inside_are_their_files_and_others_noted(tmp_path: Path, kind: str) -> None:
    """A link to a file in the archive is that file, also through other links; one to a folder or to nothing is left
    out."""
    links = {"b/link.jpg": "../a/1.jpg", "b/chain.jpg": "link.jpg", "folder": "a", "gone": "missing", "loop": "loop"}
    if kind == "zip":
        members = [(name, LINK, target.encode()) for name, target in links.items()]
        content = zip_of(("a/1.jpg", FILE, b"one"), *members)
    else:
        symbolic = [(name, _SYM, target, b"") for name, target in links.items()]
        content = tar_of(("a/1.jpg", _FILE, "", b"one"), ("hard.jpg", _HARD, "a/1.jpg", b""), *symbolic)
    with open_archive(RecordingBytes(content), spool=tmp_path) as tree:
        found = {"a/1.jpg", "b/link.jpg", "b/chain.jpg", *(("hard.jpg",) if kind == "tar" else ())}
        assert read_all(tree) == dict.fromkeys(found, b"one")
        assert "3 links" in tree.notes[0]
        assert "'folder'" in tree.notes[0]


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("zip deflated", {"max_members": 19}),
        ("tar.gz", {"max_members": 19}),
        ("tar", {"max_total_bytes": 1_900_000}),
        ("gz", {"max_total_bytes": 1_900_000}),
        ("zip deflated", {"max_ratio": 10, "ratio_from_bytes": 1_000_000}),
        ("tar.zst", {"max_ratio": 10, "ratio_from_bytes": 1_000_000}),
    ],
    ids=str,
)
def test_a_bomb_is_refused_by_what_it_promises_or_while_it_unpacks(
    tmp_path: Path, kind: str, limits: dict[str, Any]
) -> None:
    """By the headers if these show it; otherwise before the disk is full. Written data is removed again."""
    files = {f"{number}.npy": bytes(100_000) for number in range(20)}
    content = pack(kind, files) if kind in ARCHIVES else PACKERS[kind](bytes(2_000_000))
    with pytest.raises(UnsafeArchiveError, match=r"bomb.*give the folder"):
        open_archive(RecordingBytes(content, label=f"a.{kind}"), spool=tmp_path, limits=ArchiveLimits(**limits))
    assert list(tmp_path.iterdir()) == []
    open_archive(RecordingBytes(content, label=f"a.{kind}"), spool=tmp_path).close()

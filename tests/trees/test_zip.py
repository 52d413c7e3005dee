"""Zips as trees: equal to what zipfile reads, and never a wrong byte from a damaged one."""

from __future__ import annotations

import io
import itertools
import os
import random
import struct
import threading
import tracemalloc
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import ArchiveError, CorruptArchiveError, UnsafeArchiveError
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.names import ArchiveLimits
from colabstage.trees.zip import ZipTree
from tests.trees.conftest import RecordingBytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.trees.listing import Tree
    from tests.trees.conftest import ZipBytes

    ReadAll = Callable[[Tree], dict[str, bytes]]

_METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
_FILES = {
    "train/cat/1.jpg": b"first " * 500,
    "train/dog/2.jpg": random.Random(1).randbytes(3000),
    "test/cat/ü 3.jpg": b"",
    "readme.txt": b"r",
}


def test_local_headers_may_differ_from_the_directory_in_length(tmp_path: Path) -> None:
    """Info-ZIP writes longer extra fields in front of a member than in the directory; the data begin after those."""
    buffer = io.BytesIO()
    extra = struct.pack("<HH", 0x5455, 200) + b"t" * 200
    content = b"content" * 10
    name = b"a/1.jpg"
    buffer.write(
        struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, zlib.crc32(content), 70, 70, len(name), len(extra))
    )
    buffer.write(name + extra + content)
    _finish(buffer, [(name, 0, content)])
    with ZipTree(RecordingBytes(buffer.getvalue())) as tree:
        assert tree.read(tree.entries[0]) == content


def _finish(buffer: io.BytesIO, members: list[tuple[bytes, int, bytes]], **end: int) -> None:
    """Write the directory of stored members (name, offset, content) and the end record."""
    start = buffer.tell()
    for name, offset, content in members:
        fields = (0x14, 3, 0x14, 0, 0, 0, 0, 0x21, zlib.crc32(content), len(content), len(content), len(name))
        buffer.write(struct.pack("<4s4B4H3L5H2L", b"PK\1\2", *fields, 0, 0, 0, 0, 0, offset % (1 << 32)) + name)
    size = buffer.tell() - start
    count = end.get("count", len(members)) % 65_536
    buffer.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, size, end.get("start", start) % (1 << 32), 0))


def test_zip64_fields_are_read(tmp_path: Path, read_all: ReadAll) -> None:
    """Sizes and offsets that do not fit 32 bits stand in an extra field, the totals in a record of their own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, archive.open("a/1.jpg", "w", force_zip64=True) as file:
        file.write(b"forced")
    content = bytearray(buffer.getvalue())
    at = content.index(b"PK\1\2")
    end_at = content.index(b"PK\5\6")
    directory = bytearray(content[at:end_at])
    size, packed = struct.unpack_from("<LL", directory, 20)
    struct.pack_into("<LL", directory, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<L", directory, 42, 0xFFFFFFFF)
    wide = struct.pack("<HHQQQ", 1, 24, size, packed, 0)
    struct.pack_into("<H", directory, 30, len(wide))
    directory += wide
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(directory), at)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, at + len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    whole = bytes(content[:at] + directory + record + locator + end)
    assert zipfile.ZipFile(io.BytesIO(whole)).read("a/1.jpg") == b"forced"
    with ZipTree(RecordingBytes(whole)) as tree:
        assert read_all(tree) == {"a/1.jpg": b"forced"}


def test_each_field_of_32_bits_may_have_its_number_in_64(tmp_path: Path) -> None:
    """Whichever of size, packed size and place do, with other extra fields before them, or none."""
    other = struct.pack("<HH", 0x7075 - 1, 2) + b"up"  # as the mark of a Unicode name is
    members, directory = [], b""
    with (tmp_path / "wide.zip").open("wb") as file:
        for number, (which, before) in enumerate(itertools.product(range(8), (b"", other))):
            name, content = f"a/{number:02}.txt".encode(), bytes([number]) * (number + 1)
            members.append((name, content))
            facts = [len(content), len(content), file.tell()]
            crc = zlib.crc32(content)
            file.write(
                struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, crc, *facts[:2], len(name), 0) + name + content
            )
            wide = [fact for bit, fact in enumerate(facts) if which >> bit & 1]
            size, packed, place = (0xFFFFFFFF if which >> bit & 1 else fact for bit, fact in enumerate(facts))
            extra = before + struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide)
            fields = (45, 3, 45, 0, 0, 0, 0, 0x21, crc, packed, size, len(name), len(extra), 0, 0, 0, 0, place)
            directory += struct.pack("<4s4B4H3L5H2L", b"PK\1\2", *fields) + name + extra
        at, count = file.tell(), len(members)
        file.write(directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), at, 0))
    with zipfile.ZipFile(tmp_path / "wide.zip") as archive:
        assert [archive.read(name.decode()) for name, _ in members] == [content for _, content in members]
    with ZipTree(LocalBytes(tmp_path / "wide.zip")) as tree:
        assert [(one.name.encode(), tree.read(one)) for one in tree.entries] == members


def _wide_zip(path: Path, members: list[tuple[bytes, int, int, bytes, int]]) -> None:
    """Write a zip whose sizes and offsets all stand in zip64's fields.

    Members: name, method, what the directory says of its size, the bytes of it that are written, how many it takes; the
    rest of them is a hole of the file.
    """
    directory = b""
    with path.open("wb") as file:
        for name, method, size, content, taken in members:
            start = file.tell()
            crc = zlib.crc32(content) if taken == len(content) == size else 0
            widths = struct.pack("<HHQQ", 1, 16, size, taken)
            file.write(struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, method, 0, 0, crc, *[0xFFFFFFFF] * 2, len(name), 20))
            file.write(name + widths + content)
            file.seek(taken - len(content), os.SEEK_CUR)
            fields = (45, 3, 45, 0, 0, method, 0, 0x21, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), 28)
            directory += struct.pack("<4s4B4H3L5H2L", b"PK\1\2", *fields, 0, 0, 0, 0, 0xFFFFFFFF) + name
            directory += struct.pack("<HHQQQ", 1, 24, size, taken, start)
        at = file.tell()
        count = len(members)
        file.write(directory)
        file.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), at))
        file.write(struct.pack("<4sLQL", b"PK\6\7", 0, at + len(directory), 1))
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))


def test_a_member_above_4_gib_and_one_behind_it(tmp_path: Path) -> None:
    """Neither the size of the one nor the place of the other is cut to 32 bits."""
    size = (1 << 32) + 5000
    members = [(b"a/large.npy", 0, size, b"begins", size), (b"a/small.txt", 0, 5, b"small", 5)]
    _wide_zip(tmp_path / "wide.zip", members)
    with zipfile.ZipFile(tmp_path / "wide.zip") as archive:
        assert [(one.file_size, one.header_offset > 1 << 32) for one in archive.infolist()] == [
            (size, False),
            (5, True),
        ]
    with ZipTree(LocalBytes(tmp_path / "wide.zip")) as tree:
        large, small = tree.entries
        assert [large.size, small.size] == [size, 5]
        assert tree.read(small) == b"small"
        chunks = tree.chunks(large)
        assert next(chunks).startswith(b"begins\0\0")


@pytest.mark.parametrize("method", [0, 8], ids=["stored", "deflated"])
def test_a_member_that_lacks_4_gib_is_damaged(tmp_path: Path, method: int) -> None:
    """What is there would be its size, and its checksum right, if sizes were cut to 32 bits."""
    content = os.urandom(5000)
    packed = content
    if method:
        packer = zlib.compressobj(wbits=-15)
        packed = packer.compress(content) + packer.flush()
    _wide_zip(tmp_path / "wide.zip", [(b"a/1.bin", method, (1 << 32) + 5000, packed, len(packed))])
    raw = bytearray((tmp_path / "wide.zip").read_bytes())
    for mark, at in ((b"PK\3\4", 14), (b"PK\1\2", 16)):
        struct.pack_into("<L", raw, raw.index(mark) + at, zlib.crc32(content))
    # What it promises is far more than a zip of this size can hold, which has a refusal of its own.
    with ZipTree(RecordingBytes(bytes(raw)), limits=ArchiveLimits(max_ratio=1e9)) as tree:
        with pytest.raises(CorruptArchiveError):
            tree.read(tree.entries[0])
        with pytest.raises(CorruptArchiveError):
            list(tree.chunks(tree.entries[0]))


def test_a_directory_in_many_pieces_is_what_zipfile_reads(
    zip_bytes: ZipBytes, read_all: ReadAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that are cut by the end of a piece are in the next; names in other alphabets, and of all lengths."""
    monkeypatch.setattr("colabstage.trees.zip._READ_BYTES", 200_000)
    draw = random.Random(0)
    files = {f"{draw.choice(['a', 'ü', '日本'])}/{'x' * draw.randrange(200)}{n}.jpg": b"%d" % n for n in range(5000)}
    content = zip_bytes(files)
    with ZipTree(RecordingBytes(content)) as tree:
        assert read_all(tree) == files
    # Each record says how long it is, so that damage far from the end shows in every piece.
    directory = content.rfind(b"PK\1\2" + content[content.find(b"PK\1\2") + 4 :][:2], 0, len(content) // 3 * 2)
    broken = content[:directory] + b"XX" + content[directory + 2 :]
    with pytest.raises(CorruptArchiveError, match=f"at byte {directory - content.find(b'PK' + bytes([1, 2])):,}"):
        ZipTree(RecordingBytes(broken))


def test_pieces_of_a_directory_are_asked_for_together(zip_bytes: ZipBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """From afar each costs a round trip, so several are under way; and one that is cut is no directory."""
    monkeypatch.setattr("colabstage.trees.zip._READ_BYTES", 50_000)
    content = zip_bytes({f"c/{number:05}.bin": b"" for number in range(4000)})
    # The directory is four of them and a shorter one.
    together = threading.Barrier(2)

    class Far(RecordingBytes):
        def pread(self, length: int, offset: int) -> bytes:
            if length == 50_000:
                together.wait(20)
            return super().pread(length, offset)

    with ZipTree(Far(content)) as tree:
        assert len(tree.entries) == 4000

    class Cut(RecordingBytes):
        def pread(self, length: int, offset: int) -> bytes:
            return super().pread(length, offset)[: length - (length == 50_000)]

    with pytest.raises(CorruptArchiveError, match="directory"):
        ZipTree(Cut(content))


def test_a_member_of_many_takes_its_name_twice_and_some_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a zip of 100,000 members: at most 300 bytes of memory for each, and less than 150 once it is open."""
    monkeypatch.setattr("colabstage.trees.zip._READ_BYTES", 1 << 18, raising=False)
    record, count, name_bytes = struct.Struct("<4s6H3I5H2I"), 100_000, 19
    place = 30 + name_bytes
    directory = b"".join(
        record.pack(b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, name_bytes, 0, 0, 0, 0, 0, place * n)
        + b"class_%02d/%06d.jpg" % (n % 10, n)
        for n in range(count)
    )
    start = place * count
    ends = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), start)
    ends += struct.pack("<4sLQL", b"PK\6\7", 0, start + len(directory), 1)
    ends += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    source = RecordingBytes(bytes(start) + directory + ends)
    tracemalloc.start()
    try:
        with ZipTree(source) as tree:
            now, peak = tracemalloc.get_traced_memory()
            assert len(tree.entries) == count
    finally:
        tracemalloc.stop()
    assert peak < 300 * count
    assert now < 150 * count


def test_an_archive_above_4_gib_as_macos_writes_it(tmp_path: Path) -> None:
    """The Finder counts offsets modulo 4 GiB without zip64; each time they fall, another 4 GiB have passed."""
    contents = {b"a/1.bin": b"one", b"a/2.bin": b"two", b"a/3.bin": b"three"}
    places = (0, (1 << 32) - 5000, (1 << 32) + 5000)
    path = tmp_path / "big.zip"
    with path.open("wb") as file:
        for place, (name, content) in zip(places, contents.items(), strict=True):
            file.seek(place)
            lengths = (zlib.crc32(content), len(content), len(content), len(name), 0)
            file.write(struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, *lengths) + name + content)
        start = file.tell()
        directory = io.BytesIO()
        members = [(name, place, content) for place, (name, content) in zip(places, contents.items(), strict=True)]
        _finish(directory, members, start=start)
        file.write(directory.getvalue())
    with ZipTree(LocalBytes(path)) as tree:
        assert [tree.read(entry) for entry in tree.entries] == [b"one", b"two", b"three"]
        assert [entry.position for entry in tree.entries] == list(places)


def test_the_times_of_members_are_kept() -> None:
    """DOS times are taken as UTC, to two seconds."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("1.jpg", (2024, 2, 29, 12, 30, 58)), b"")
    with ZipTree(RecordingBytes(buffer.getvalue())) as tree:
        assert tree.entries[0].mtime_ns == 1_709_209_858 * 10**9


def test_bytes_after_the_end_do_not_hide_a_whole_archive(zip_bytes: ZipBytes, read_all: ReadAll) -> None:
    """Some uploads append a newline or zeros; nothing is missing then."""
    for appended in (b"\n", b"\0" * 1000):
        with ZipTree(RecordingBytes(zip_bytes(_FILES) + appended)) as tree:
            assert read_all(tree) == _FILES


def test_a_truncated_archive_that_holds_a_zip_is_still_truncated(zip_bytes: ZipBytes) -> None:
    """zipfile takes the inner archive's end for the outer's and shows the wrong files."""
    inner = zip_bytes({"inner.jpg": b"inner"})
    outer = zip_bytes({"a/1.jpg": b"1" * 100, "a/nested.zip": inner, "a/2.jpg": b"2" * 100})
    cut = outer[: outer.index(inner) + len(inner)]
    assert zipfile.ZipFile(io.BytesIO(cut)).namelist() == ["inner.jpg"]
    for content in (cut, cut + b"more", outer[: -len(outer) // 8]):
        with pytest.raises(CorruptArchiveError, match="truncated"):
            ZipTree(RecordingBytes(content))


def test_a_tail_of_zeros_is_named(zip_bytes: ZipBytes) -> None:
    """A copy that was cut and filled up has the right size and nothing in it."""
    whole = zip_bytes({"a/1.jpg": random.Random(3).randbytes(10_000)})
    with pytest.raises(CorruptArchiveError, match="truncated"):
        ZipTree(RecordingBytes(whole[:5000] + b"\0" * (len(whole) - 5000)))


def test_damaged_members_are_named_and_others_still_read(zip_bytes: ZipBytes) -> None:
    """One bad member does not take the rest with it."""
    content = bytearray(zip_bytes(_FILES))
    content[content.index(b"first ") + 100] ^= 1
    with ZipTree(RecordingBytes(bytes(content))) as tree:
        bad, good = tree.entries[2], tree.entries[3]
        with pytest.raises(CorruptArchiveError, match=r"train/cat/1\.jpg.*checksum"):
            tree.read(bad)
        assert tree.read(good) == _FILES["train/dog/2.jpg"]


def test_a_member_that_unpacks_to_more_than_it_says_stops_there() -> None:
    """The headers promise 100 bytes, the data hold 20 MB: no more than 101 are ever unpacked."""
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.writestr("a.npy", bytes(20_000_000))
        content = bytearray(buffer.getvalue())
        struct.pack_into("<L", content, content.index(b"PK\1\2") + 24, 100)
        struct.pack_into("<L", content, 22, 100)
        with (
            ZipTree(RecordingBytes(bytes(content))) as tree,
            pytest.raises(CorruptArchiveError, match="100 bytes"),
        ):
            tree.read(tree.entries[0])


def test_encrypted_members_are_refused_when_opening(zip_bytes: ZipBytes) -> None:
    """A password cannot be asked for in the middle of packing."""
    content = bytearray(zip_bytes(_FILES))
    content[content.index(b"PK\1\2") + 8] |= 1
    with pytest.raises(ArchiveError, match="password-protected"):
        ZipTree(RecordingBytes(bytes(content)))


def test_methods_not_read_here_are_named_when_opening(zip_bytes: ZipBytes) -> None:
    """The Windows Explorer uses Deflate64 for large files."""
    content = bytearray(zip_bytes(_FILES))
    content[content.index(b"PK\1\2") + 10] = 9
    with pytest.raises(ArchiveError, match="Deflate64"):
        ZipTree(RecordingBytes(bytes(content)))


def test_a_part_of_a_split_archive_is_named(zip_bytes: ZipBytes) -> None:
    """The last part of a split archive has a directory, but not the data."""
    content = bytearray(zip_bytes(_FILES))
    struct.pack_into("<HH", content, content.index(b"PK\5\6") + 4, 2, 2)
    with pytest.raises(ArchiveError, match=r"\.z01"):
        ZipTree(RecordingBytes(bytes(content)))


@pytest.mark.parametrize("where", ["nowhere", "comment", "extra"])
def test_members_are_found_whatever_looks_like_one(
    tmp_path: Path, read_all: ReadAll, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The mark of a record in a comment or an extra field is no record, wherever the directory is cut into pieces."""
    path, mark, draw = tmp_path / "a.zip", b"PK\1\2" + bytes(60), random.Random(0)
    files = {f"c{number % 7}/{'x' * draw.randrange(40)}{number}": b"%d" % number for number in range(1_000)}
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, content) in enumerate(files.items()):
            member = zipfile.ZipInfo(name)
            if where == "comment" and number % 50 == 1:
                member.comment = mark
            if where == "extra" and number % 50 == 1:
                member.extra = struct.pack("<HH", 0x7076, len(mark)) + mark
            archive.writestr(member, content)
    for piece in (1 << 22, 50_000, 997):
        monkeypatch.setattr("colabstage.trees.zip._READ_BYTES", piece)
        with ZipTree(LocalBytes(path)) as tree:
            assert read_all(tree) == files


@pytest.mark.parametrize("method", _METHODS)
def test_the_head_of_a_large_member_is_read_alone(zip_bytes: ZipBytes, method: int) -> None:
    """For the shape of an array nobody waits for 16 MiB of it; whoever reads on gets all of it."""
    content = random.Random(2).randbytes(2_000_000)
    source = RecordingBytes(zip_bytes({"x.npy": content}, method))
    with ZipTree(source) as tree:
        (entry,) = tree.entries
        source.reads.clear()
        chunks = tree.chunks(entry)
        first = next(chunks)
        assert content.startswith(first)
        assert len(first) >= 64 * 1024
        if method != zipfile.ZIP_BZIP2:  # which unpacks 900 kB at once
            assert sum(length for _, length in source.reads) < 300_000
        assert first + b"".join(chunks) == content


def test_members_that_share_their_bytes_are_refused(zip_bytes: ZipBytes) -> None:
    """The densest bombs point ten thousand entries of the directory at the same data."""
    content = bytearray(zip_bytes({"a.jpg": b"x" * 100, "b.jpg": b"y" * 100}))
    second = content.index(b"PK\1\2", content.index(b"PK\1\2") + 4)
    struct.pack_into("<L", content, second + 42, 0)
    with pytest.raises(UnsafeArchiveError, match="overlap"):
        ZipTree(RecordingBytes(bytes(content)))


def _named(*members: tuple[bytes, int, bytes]) -> bytes:
    """A zip of empty members, given as the bytes of their names, flags, and the bytes of their extra fields."""
    local = directory = b""
    for name, flags, extra in members:
        fields = (20, 0, 20, 0, flags, 0, 0, 0, 0, 0, 0, len(name), len(extra), 0, 0, 0, 0, len(local))
        directory += struct.pack("<4s4B4H3L5H2L", b"PK\1\2", *fields) + name + extra
        local += struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, 0, 0, 0, 0, 0, 0, len(name), 0) + name
    count = len(members)
    return local + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), len(local), 0)


def _unicode_field(stored: bytes, name: str) -> bytes:
    field = b"\1" + struct.pack("<L", zlib.crc32(stored)) + name.encode()
    return struct.pack("<HH", 0x7075, len(field)) + field


_CHINESE = ["照片/猫.jpg", "照片/表.jpg"]  # 表 ends in a byte of a backslash in Shift-JIS
_ZIP_NAMES: dict[str, tuple[bytes, str | None, list[str]]] = {
    "flagged": (_named(("é.jpg".encode(), 0x800, b"")), "gbk", ["é.jpg"]),
    "all in UTF-8": (_named(("é.jpg".encode(), 0, b""), (b"x.jpg", 0, b"")), None, ["x.jpg", "é.jpg"]),
    "not all in UTF-8": (_named(("é.jpg".encode(), 0, b""), (b"\x82", 0, b"")), None, ["é", "├⌐.jpg"]),
    "cp437": (_named((b"caf\x82.jpg", 0, b"")), None, ["café.jpg"]),
    "gbk": (_named(*((name.encode("gbk"), 0, b"") for name in _CHINESE)), "gbk", sorted(_CHINESE)),
    "cp932": (_named(*((name.encode("cp932", "replace"), 0, b"") for name in _CHINESE[1:])), "cp932", _CHINESE[1:]),
    "flag on damaged UTF-8": (_named((b"\x82", 0x800, b"")), None, ["é"]),
    "Info-ZIP's field": (_named((b"x.jpg", 0, _unicode_field(b"x.jpg", "ж.jpg"))), None, ["ж.jpg"]),
    "Info-ZIP's field of another name": (_named((b"x.jpg", 0, _unicode_field(b"y.jpg", "ж.jpg"))), None, ["x.jpg"]),
    "backslashes": (_named((b"a\\b\\1.jpg", 0, b""), (b"a\\", 0, b"")), None, ["a/b/1.jpg"]),
    "half a character": (_named((b"\x95\\.jpg", 0, b"")), None, ["ò\\.jpg"]),
}


@pytest.mark.parametrize("kind", _ZIP_NAMES)
def test_names_are_decoded_as_their_archiver_meant(kind: str) -> None:
    """As declared; else UTF-8 if all are in it, else cp437 with a note; or as the caller says. Each is read by its
    stored bytes, which its own header repeats."""
    content, encoding, names = _ZIP_NAMES[kind]
    with ZipTree(RecordingBytes(content), encoding=encoding) as tree:
        assert tree.entries.names == names
        assert [tree.read(entry) for entry in tree.entries] == [b""] * len(names)
        unclear = kind in ("not all in UTF-8", "cp437", "flag on damaged UTF-8", "half a character")
        assert any("zip_encoding=" in note for note in tree.notes) is unclear


def test_an_encoding_that_does_not_fit_is_named() -> None:
    """The message has the encoding and the bytes of a name."""
    with pytest.raises(ArchiveError, match=r"zip_encoding='gbk'.*\\x82"):
        ZipTree(RecordingBytes(_named((b"caf\x82", 0, b""))), encoding="gbk")

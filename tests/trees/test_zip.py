"""Zips as trees: sizes beyond 32 bits, names in any encoding, long directories; never a wrong byte of a damaged one."""

import itertools
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from colabstage.errors import ArchiveError, CorruptArchiveError
from colabstage.trees.listing import ArchiveLimits
from colabstage.trees.open import open_archive, open_tree
from tests.support.archives import RecordingBytes, read_all, set_field

GIB_4 = 1 << 32


@dataclass
class Member:
    name: bytes
    content: bytes = b""
    """The bytes that are written."""
    method: int = 0
    flags: int = 0
    size: int | None = None
    """What its headers say of its size, where that is not what is written."""
    hole: int = 0
    """Bytes behind it that belong to it, a hole of the file."""
    at: int | None = None
    """Where it is, if not behind the one before."""
    crc: int | None = None
    wide: Sequence[bool] = (False, False, False)
    """Whether size, packed size and place are in zip64's field, though they fit 32 bits."""
    extra: bytes = b""
    """Extra fields in the directory, before zip64's."""
    own_extra: bytes = b""
    """Extra fields of its own header."""


def write_zip(path: Path, members: Sequence[Member], *, has_64: bool = True) -> Path:
    """Write a zip by hand; without zip64 numbers are cut to 32 bits, as the Finder of macOS does it."""
    directory = []
    with path.open("wb") as file:
        for one in members:
            file.seek(file.tell() if one.at is None else one.at)
            place, packed = file.tell(), len(one.content) + one.hole
            size = packed if one.size is None else one.size
            crc = zlib.crc32(one.content) if one.crc is None else one.crc
            is_large = has_64 and max(size, packed) >= GIB_4
            own = struct.pack("<HHQQ", 1, 16, size, packed) if is_large else b""
            own += one.own_extra
            shown = (0xFFFFFFFF, 0xFFFFFFFF) if is_large else (packed % GIB_4, size % GIB_4)
            fields = (45, one.flags, one.method, 0, 0, crc, *shown, len(one.name), len(own))
            file.write(struct.pack("<4s5H3L2H", b"PK\3\4", *fields) + one.name + own + one.content)
            file.seek(one.hole, os.SEEK_CUR)
            facts = (size, packed, place)
            wide = [(fact >= GIB_4 and has_64) or forced for fact, forced in zip(facts, one.wide, strict=True)]
            sixty_four = [fact for fact, is_wide in zip(facts, wide, strict=True) if is_wide]
            extra = one.extra
            if sixty_four:
                extra += struct.pack(f"<HH{len(sixty_four)}Q", 1, 8 * len(sixty_four), *sixty_four)
            size, packed, place = (
                0xFFFFFFFF if is_wide else fact % GIB_4 for fact, is_wide in zip(facts, wide, strict=True)
            )
            head = (45, 3, 45, 0, one.flags, one.method, 0, 0x21, crc, packed, size, len(one.name), len(extra))
            directory += [struct.pack("<4s4B4H3L5H2L", b"PK\1\2", *head, 0, 0, 0, 0, place), one.name, extra]
        start, count = file.tell(), len(members)
        length = file.write(b"".join(directory))
        if max(start, count) >= 65_535 and has_64:
            file.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, start))
            file.write(struct.pack("<4sLQL", b"PK\6\7", 0, start + length, 1))
            count, length, start = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, length, start % GIB_4, 0))
    return path


def deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


def test_local_headers_may_differ_from_the_directory_in_length(tmp_path: Path) -> None:
    """Info-ZIP writes longer extra fields in front of a member than in the directory; the data begin after those, also
    where nobody knows how far the next member is from them."""
    first = Member(b"a/1.jpg", b"content" * 10, own_extra=struct.pack("<HH", 0x5455, 200) + b"t" * 200)
    with open_tree(write_zip(tmp_path / "a.zip", [first, Member(b"b", at=1 << 20)]), spool=tmp_path) as tree:
        assert read_all(tree) == {"a/1.jpg": first.content, "b": b""}


def test_each_field_of_32_bits_may_have_its_number_in_64(tmp_path: Path) -> None:
    """Whichever of size, packed size and place do, with other extra fields before them, or none."""
    other = struct.pack("<HH", 0x7075 - 1, 2) + b"up"  # as the mark of a Unicode name is
    forms = itertools.product(itertools.product((False, True), repeat=3), (b"", other))
    expected, members = dict[str, bytes](), list[Member]()
    for number, (wide, before) in enumerate(forms):
        expected[f"a/{number:02}.txt"] = content = bytes([number]) * (number + 100)
        facts: Any = {"size": len(content), "crc": zlib.crc32(content), "wide": wide, "extra": before}
        members.append(Member(b"a/%02d.txt" % number, deflate(content), zipfile.ZIP_DEFLATED, **facts))
    path = write_zip(tmp_path / "wide.zip", members)
    with zipfile.ZipFile(path) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == expected
    with open_tree(path, spool=tmp_path) as tree:
        assert read_all(tree) == expected


def test_a_member_above_4_gib_and_one_behind_it(tmp_path: Path) -> None:
    """Neither the size of the one nor the place of the other is cut to 32 bits."""
    large = Member(b"a/large.npy", b"begins", hole=GIB_4 + 5000 - 6, crc=0)
    path = write_zip(tmp_path / "wide.zip", [large, Member(b"a/small.txt", b"small")])
    with zipfile.ZipFile(path) as archive:
        facts = [(one.file_size, one.header_offset > GIB_4) for one in archive.infolist()]
        assert facts == [(GIB_4 + 5000, False), (5, True)]
    with open_tree(path, spool=tmp_path) as tree:
        assert tree.entries.sizes.tolist() == [GIB_4 + 5000, 5]
        assert tree.read(tree.entries[1]) == b"small"
        assert next(tree.chunks(tree.entries[0])).startswith(b"begins\0\0")


def test_a_member_that_lacks_4_gib_is_damaged(tmp_path: Path) -> None:
    """What is there would be its size, and its checksum right, if sizes were cut to 32 bits."""
    content = os.urandom(5000)
    facts: Any = {"size": GIB_4 + 5000, "crc": zlib.crc32(content)}
    member = Member(b"a/1.bin", deflate(content), zipfile.ZIP_DEFLATED, **facts)
    path = write_zip(tmp_path / "wide.zip", [member])
    # What it promises is far more than a zip of this size can hold, which has a refusal of its own.
    with open_tree(path, spool=tmp_path, limits=ArchiveLimits(max_ratio=1e9)) as tree:
        for read in (tree.read, lambda entry: list(tree.chunks(entry))):
            with pytest.raises(CorruptArchiveError):
                read(tree.entries[0])


def test_an_archive_above_4_gib_as_macos_writes_it(tmp_path: Path) -> None:
    """The Finder counts offsets modulo 4 GiB without zip64; each time they fall, another 4 GiB have passed."""
    places = (0, GIB_4 - 5000, GIB_4 + 5000)
    members = [Member(b"a/%d.bin" % at, b"content %d" % at, at=at) for at in places]
    with open_tree(write_zip(tmp_path / "big.zip", members, has_64=False), spool=tmp_path) as tree:
        assert read_all(tree) == {one.name.decode(): one.content for one in members}
        assert sorted(tree.entries.positions.tolist()) == list(places)
    # How long a single file is that passes 4 GiB cannot be known.
    large = write_zip(tmp_path / "one.zip", [Member(b"a", hole=GIB_4), Member(b"b", b"content")], has_64=False)
    with pytest.raises(ArchiveError, match="more than 4 GiB"):
        open_tree(large, spool=tmp_path)


@pytest.mark.parametrize("at", [0, 3, 47])
def test_members_are_found_wherever_the_directory_is_cut(tmp_path: Path, at: int) -> None:
    """Records that are cut by the end of a piece are in the next, and the mark of one in an extra field is none. Each
    record says how long it is, so that damage shows in every piece."""
    field = b"PK\1\2" * 5_000
    names = [f"aü/{number:04}" for number in range(1_000)]
    length = 46 + len(names[0].encode()) + 4 + len(field)

    def written(shift: int) -> RecordingBytes:
        fields = [struct.pack("<HH", 0x7076, len(one)) + one for one in (field + bytes(shift), field)]
        members = [Member(name.encode(), b"%d" % number, extra=fields[number > 0]) for number, name in enumerate(names)]
        return RecordingBytes(write_zip(tmp_path / "a.zip", members).read_bytes())

    def open_it(source: RecordingBytes) -> int:
        """Return where its directory is cut, behind the beginning of a record."""
        with open_archive(source, spool=tmp_path) as tree:
            begin = source.content.index(b"PK\1\2")
            (cut,) = {offset - begin for offset, _ in source.reads if begin < offset < begin + 1_000 * length - 66_000}
            assert read_all(tree) == {name: b"%d" % number for number, name in enumerate(names)}
        return cut % length

    shift = (open_it(written(0)) - at) % length
    source = written(shift)
    assert (open_it(source) - shift) % length == at
    whole, begin = source.content, source.content.index(b"PK\1\2")
    for number in (400, 950):
        damaged = begin + shift + number * length
        with pytest.raises(CorruptArchiveError, match=f"byte {damaged - begin:,}"):
            open_archive(RecordingBytes(whole[:damaged] + b"XX" + whole[damaged + 2 :]), spool=tmp_path)


@pytest.mark.parametrize(
    ("count", "extra", "most"), [(20_000, 0, 20_000 * 360), (1_300, 65_000, 80 << 20)], ids=["many", "long records"]
)
def test_a_member_of_many_takes_little_memory(tmp_path: Path, count: int, extra: int, most: int) -> None:
    """At most 360 bytes for each while a zip is opened, and less than 150 then; of a directory that is longer, only a
    piece is in memory."""
    members = [Member(b"class_%02d/%06d.jpg" % (n % 10, n), extra=bytes(extra)) for n in range(count)]
    path = write_zip(tmp_path / "many.zip", members)
    tracemalloc.start()
    try:
        with open_tree(path, spool=tmp_path) as tree:
            now, peak = tracemalloc.get_traced_memory()
            assert len(tree.entries) == count
    finally:
        tracemalloc.stop()
    assert peak < most
    assert now < 150 * count


def test_the_times_of_members_are_kept(tmp_path: Path) -> None:
    """DOS times are taken as UTC, to two seconds; some archivers write none."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("1.jpg", (2024, 2, 29, 12, 30, 58)), b"")
    with open_tree(tmp_path / "a.zip", spool=tmp_path) as tree:
        assert tree.entries[0].mtime_ns == 1_709_209_858 * 10**9
    without = set_field((tmp_path / "a.zip").read_bytes(), b"PK\1\2", 12, "<HH", 0, 0)
    with open_archive(RecordingBytes(without), spool=tmp_path) as tree:
        assert tree.entries[0].mtime_ns == 0


CHINESE = ["照片/猫.jpg", "照片/表.jpg"]
# The members, the encoding that a caller gives, what they are called, and whether that is a guess.
NAMES: dict[str, tuple[list[Member], str | None, list[str], bool]] = {
    "flagged": ([Member("é.jpg".encode(), flags=0x800)], "gbk", ["é.jpg"], False),
    "all in UTF-8": ([Member("é.jpg".encode()), Member(b"x.jpg")], None, ["x.jpg", "é.jpg"], False),
    "not all in UTF-8": ([Member("é.jpg".encode()), Member(b"\x82")], None, ["é", "├⌐.jpg"], True),
    "gbk": ([Member(name.encode("gbk")) for name in CHINESE], "gbk", sorted(CHINESE), False),
    "flag on damaged UTF-8": ([Member(b"\x82", flags=0x800)], None, ["é"], True),
    "backslashes": ([Member(b"a\\b\\1.jpg"), Member(b"a\\")], None, ["a/b/1.jpg"], False),
    "half a character": ([Member(b"\x95\\.jpg")], None, ["ò\\.jpg"], True),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_are_decoded_as_their_archiver_meant(tmp_path: Path, kind: str) -> None:
    """As declared; else UTF-8 if all are in it, else cp437 with a note; or as the caller says. Each is read by its
    stored bytes, which its own header repeats."""
    members, encoding, names, is_guess = NAMES[kind]
    source = RecordingBytes(write_zip(tmp_path / "a.zip", members).read_bytes())
    with open_archive(source, spool=tmp_path, zip_encoding=encoding) as tree:
        assert tree.entries.names == names
        assert read_all(tree) == dict.fromkeys(names, b"")
        assert any("zip_encoding=" in note for note in tree.notes) is is_guess


def test_an_encoding_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """With the bytes of a name."""
    source = RecordingBytes(write_zip(tmp_path / "a.zip", [Member(b"caf\x82")]).read_bytes())
    with pytest.raises(ArchiveError, match=r"zip_encoding='gbk'.*\\x82"):
        open_archive(source, spool=tmp_path, zip_encoding="gbk")


def test_folders_without_a_slash_in_their_names_are_no_files(tmp_path: Path) -> None:
    """As WinRAR marks them."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, content in (("a", b""), ("a/b", b""), ("a/b/1.txt", b"1"), ("c", b"")):
            member = zipfile.ZipInfo(name)
            member.create_system, member.external_attr = 0, 0 if content else 0x10
            archive.writestr(member, content)
    with open_tree(tmp_path / "a.zip", spool=tmp_path) as tree:
        assert read_all(tree) == {"a/b/1.txt": b"1"}

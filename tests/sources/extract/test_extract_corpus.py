"""Hostile and odd archives, extracted for real: refused with nothing left behind, or no more than others would make."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import unicodedata
import warnings
import zipfile
import zlib
from typing import TYPE_CHECKING, NamedTuple

import pytest
import zstandard

from colabstage import extract_archive
from colabstage.errors import ArchiveError
from colabstage.sources import to_folder as files
from colabstage.trees.names import ArchiveLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_REG, _LNK = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
_LIMITS = ArchiveLimits(max_members=500, max_total_bytes=60_000_000, max_ratio=100, ratio_from_bytes=2_000_000)
# Of zeros: enough for a bomb, and packed by every process that collects these tests.
_MANY = 4_000_000


class Case(NamedTuple):
    """An archive. `refused`: a part of the reason, `None` where it is to be extracted. `like`: whom to compare with."""

    content: bytes
    refused: str | None = None
    like: str = "python"


def _zip(*members: tuple[str, int, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    """A zip of members given as name, Unix mode and content; names are written as they are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for number, (name, mode, content) in enumerate(members):
            info = zipfile.ZipInfo(f"placeholder{number}")
            info.filename, info.create_system, info.external_attr = name, 3, mode << 16
            info.compress_type = method
            archive.NameToInfo.clear()
            archive.writestr(info, content)
        archive.comment = comment
    return buffer.getvalue()


def _tar(*members: tuple[str, bytes, str, bytes], form: int = tarfile.PAX_FORMAT, mode: str = "w") -> bytes:
    """A tar of members given as name, type, link target and content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, kind, target, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _one(name: str) -> bytes:
    return _zip(("good.jpg", _REG, b"good"), (name, _REG, b"evil"))


def _tar_one(name: str) -> bytes:
    return _tar(("good.jpg", tarfile.REGTYPE, "", b"good"), (name, tarfile.REGTYPE, "", b"evil"))


def _links(*pairs: tuple[str, str], kind: bytes = tarfile.SYMTYPE) -> bytes:
    files = [("a/real.jpg", tarfile.REGTYPE, "", b"real")]
    return _tar(*files, *((name, kind, target, b"") for name, target in pairs))


def _patched(content: bytes, mark: bytes, shift: int, fmt: str, value: int) -> bytes:
    """A zip with one field changed, `shift` bytes after the first `mark`."""
    changed = bytearray(content)
    struct.pack_into(fmt, changed, content.index(mark) + shift, value)
    return bytes(changed)


_TWO = _zip(("a.jpg", _REG, b"x" * 100), ("b.jpg", _REG, b"y" * 100))
_DEFLATED = _zip(("a.npy", _REG, bytes(range(256)) * 40), method=zipfile.ZIP_DEFLATED)
_CENTRAL, _LOCAL, _END = b"PK\1\2", b"PK\3\4", b"PK\5\6"


def _overlapping() -> bytes:
    content = bytearray(_TWO)
    second = content.index(_CENTRAL, content.index(_CENTRAL) + 4)
    struct.pack_into("<L", content, second + 42, 0)
    return bytes(content)


def _understated(method: int) -> bytes:
    """Both headers say 100 bytes; the data hold millions."""
    content = _zip(("a.npy", _REG, bytes(_MANY)), method=method)
    return _patched(_patched(content, _CENTRAL, 24, "<L", 100), _LOCAL, 22, "<L", 100)


def _locked() -> bytes:
    return _patched(_patched(_DEFLATED, _CENTRAL, 8, "<H", 1), _LOCAL, 6, "<H", 1)


def _bad_crc() -> bytes:
    wrong = zlib.crc32(b"something else")
    return _patched(_patched(_DEFLATED, _CENTRAL, 16, "<L", wrong), _LOCAL, 14, "<L", wrong)


def _sparse() -> bytes:
    header = tarfile.TarInfo("hole.bin")
    header.type, header.size = tarfile.GNUTYPE_SPARSE, 0
    return header.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def _gzip_named(name: bytes) -> bytes:
    return b"\x1f\x8b\x08\x08" + bytes(6) + name + b"\0" + gzip.compress(b"content", mtime=0)[10:]


def _tar_gz(size: int) -> bytes:
    return gzip.compress(_tar(("zeros.npy", tarfile.REGTYPE, "", bytes(size))), mtime=0)


_GOOD = (("train/a.jpg", tarfile.REGTYPE, "", b"a" * 3000), ("train/b.jpg", tarfile.REGTYPE, "", b"b"))
_GOOD_ZIP = (("train/a.jpg", _REG, b"a" * 3000), ("train/b.jpg", _REG, b"b"))
_LONG = "d" * 90 + "/" + "e" * 120 + "/" + "f" * 200 + ".jpg"
_NFC, _NFD = (unicodedata.normalize(form, "Grüße.jpg") for form in ("NFC", "NFD"))

_NAMES: dict[str, tuple[str, str]] = {
    "parent": ("../evil", "climbs out"),
    "parent in the middle": ("a/../../evil", "climbs out"),
    "sibling prefix": ("../out-evil/evil", "climbs out"),
    "parent under junk": ("__MACOSX/../../evil", "climbs out"),
    "part too long": ("n" * 256, "256 bytes long"),
    "part too long in bytes": ("ü" * 128, "256 bytes long"),
    "whole too long": ("/".join(["n" * 200] * 21), "bytes long"),
    "case": ("GOOD.jpg", "upper and lower case"),
    "folder of a file": ("good.jpg/evil", "also a folder"),
    "dot": ("./.", "without a name"),
}

_ODD = ("/tmp/colabstage-evil", "//tmp/colabstage-evil", "C:/evil", "a:b")
CASES: dict[str, Case] = {
    **{f"zip: {name}": Case(_one(name)) for name in _ODD},
    **{f"tar: {name}": Case(_tar_one(name)) for name in (*_ODD, "a\\b", "..\\evil", "good.jpg", "./good.jpg")},
    "zip: backslash": Case(_one("..\\..\\evil"), "climbs out"),
    "zip: twice": Case(_one("good.jpg"), "twice"),
    "zip: twice in other words": Case(_one("/./good.jpg"), "twice"),
    "zip: twice the same": Case(_zip(*[("good.jpg", _REG, b"good")] * 2)),
    **{f"zip: {key}": Case(_one(name), why) for key, (name, why) in _NAMES.items()},
    **{f"tar: {key}": Case(_tar_one(name), why) for key, (name, why) in _NAMES.items()},
    "zip: case of folders": Case(_zip(("Dogs/a", _REG, b"1"), ("dogs/b", _REG, b"2")), "upper and lower case"),
    "zip: accents": Case(_zip((_NFC, _REG, b"1"), (_NFD, _REG, b"2")), "encoding of its characters"),
    "tar: accents": Case(
        _tar((_NFC, tarfile.REGTYPE, "", b"1"), (_NFD, tarfile.REGTYPE, "", b"2")), "encoding of its characters"
    ),
    "zip: device": Case(_zip(("sda", stat.S_IFBLK | 0o600, b"")), "device"),
    "zip: pipe": Case(_zip(("pipe", stat.S_IFIFO | 0o600, b"")), "pipe"),
    "zip: folder with content": Case(_zip(("a/", _REG, b"evil")), "has content"),
    "zip: link out": Case(_zip(("link", _LNK, b"../../etc/passwd")), "outside the archive"),
    "zip: link to the root": Case(_zip(("link", _LNK, b"/etc/passwd")), "outside the archive"),
    "zip: endless link": Case(_zip(("link", _LNK, b"a" * 5000)), "4,096"),
    "zip: file through a link": Case(_zip(("a", _LNK, b"b"), ("a/evil", _REG, b"x")), "also a folder"),
    "zip: overlapping members": Case(_overlapping(), "overlap"),
    "zip: says less than it holds": Case(_understated(zipfile.ZIP_DEFLATED), "100 bytes but holds more"),
    "zip: bzip2 says less": Case(_understated(zipfile.ZIP_BZIP2), "100 bytes but holds more"),
    "zip: lzma says less": Case(_understated(zipfile.ZIP_LZMA), "100 bytes but holds"),
    "zip: bomb by ratio": Case(_zip(("z", _REG, bytes(_MANY)), method=zipfile.ZIP_DEFLATED), "max_ratio"),
    "zip: bomb by total": Case(_patched(_DEFLATED, _CENTRAL, 24, "<L", 70_000_000), "max_total_bytes"),
    "zip: bomb by count": Case(_zip(*((f"{n}", _REG, b"") for n in range(501))), "max_members"),
    "zip: encrypted": Case(_locked(), "password"),
    "zip: encrypted by its own header only": Case(_patched(_DEFLATED, _LOCAL, 6, "<H", 1), "disagree"),
    "zip: wrong checksum": Case(_bad_crc(), "checksum"),
    "zip: other name in its own header": Case(_TWO.replace(b"a.jpg", b"c.jpg", 1), "points to something else"),
    "zip: other size in its own header": Case(_patched(_DEFLATED, _LOCAL, 22, "<L", 5), "disagree"),
    "zip: other method in its own header": Case(_patched(_DEFLATED, _LOCAL, 8, "<H", 0), "disagree"),
    "zip: Deflate64": Case(_patched(_patched(_DEFLATED, _CENTRAL, 10, "<H", 9), _LOCAL, 8, "<H", 9), "Deflate64"),
    "zip: PPMd": Case(_patched(_patched(_DEFLATED, _CENTRAL, 10, "<H", 98), _LOCAL, 8, "<H", 98), "PPMd"),
    "zip: truncated": Case(_TWO[:-40], "truncated|damaged"),
    "zip: truncated in a member": Case(_TWO[:80], "truncated"),
    "zip: its end filled with zeros": Case(_TWO[:-60] + bytes(5000), "truncated"),
    "zip: one part of several": Case(_patched(_TWO, _END, 4, "<H", 2), "several parts"),
    "zip: counts another number": Case(_patched(_TWO, _END, 10, "<H", 3), "counts"),
    "zip: junk in front": Case(b"#!/bin/sh\nexit\n" + _TWO, "not an archive"),
    "zip: in a picture": Case(b"\x89PNG\r\n\x1a\n" + bytes(99) + _TWO, "PNG image"),
    "zip: damaged deflate": Case(_DEFLATED[:60] + b"\xff" * 20 + _DEFLATED[80:], "damaged"),
    "zip: web page": Case(b"<!DOCTYPE html><title>Quota exceeded</title>", "web page"),
    "zip: stored": Case(_zip(*_GOOD_ZIP)),
    "zip: deflated": Case(_zip(*_GOOD_ZIP, method=zipfile.ZIP_DEFLATED)),
    "zip: bzip2": Case(_zip(*_GOOD_ZIP, method=zipfile.ZIP_BZIP2)),
    "zip: lzma": Case(_zip(*_GOOD_ZIP, method=zipfile.ZIP_LZMA)),
    "zip: empty": Case(_zip()),
    "zip: comment with an end": Case(_zip(*_GOOD_ZIP, comment=b"see " + _END + bytes(18) + _CENTRAL), "comment"),
    "zip: comment with the mark of an end": Case(_zip(*_GOOD_ZIP, comment=b"see " + _END + b" there"), "comment"),
    "zip: comment with other signatures": Case(_zip(*_GOOD_ZIP, comment=b"see " + _CENTRAL + _LOCAL)),
    "zip: a zip inside, stored": Case(_zip(("inner.zip", _REG, _TWO), ("a", _REG, b"a"))),
    "zip: names in UTF-8": Case(_zip(("Grüße/日本.jpg", _REG, b"x"))),
    "zip: junk of systems": Case(_zip(*_GOOD_ZIP, ("__MACOSX/._a", _REG, b"j"), (".DS_Store", _REG, b"j"))),
    "zip: program": Case(_zip(("run.sh", stat.S_IFREG | 0o6777, b"#!/bin/sh"), ("a", _REG, b"a")), like="unzip"),
    "zip: link inside": Case(_zip(("a/b", _REG, b"real"), ("link", _LNK, b"a/b")), like="unzip"),
    "zip: link to nothing": Case(_zip(("a", _REG, b"real"), ("link", _LNK, b"nothing")), like="unzip"),
    "tar: block device": Case(_tar(("sda", tarfile.BLKTYPE, "", b"")), "device"),
    "tar: character device": Case(_tar(("tty", tarfile.CHRTYPE, "", b"")), "device"),
    "tar: pipe": Case(_tar(("pipe", tarfile.FIFOTYPE, "", b"")), "pipe"),
    "tar: link out": Case(_links(("a/link", "../../etc/passwd")), "outside the archive"),
    "tar: link to the root": Case(_links(("link", "/etc/passwd")), "outside the archive"),
    "tar: hard link out": Case(_links(("link", "../evil"), kind=tarfile.LNKTYPE), "outside the archive"),
    "tar: file through a link": Case(
        _tar(("a", tarfile.SYMTYPE, "..", b""), ("a/evil", tarfile.REGTYPE, "", b"x")), "outside the archive|also a f"
    ),
    "tar: file through a chain of links": Case(
        _tar(
            ("a", tarfile.SYMTYPE, "b", b""),
            ("b", tarfile.SYMTYPE, "c", b""),
            ("c/d", tarfile.REGTYPE, "", b"1"),
            ("a/evil", tarfile.REGTYPE, "", b"x"),
        ),
        "also a folder",
    ),
    "tar: truncated": Case(_tar(*_GOOD)[:2000], "truncated"),
    "tar: end missing": Case(_tar(*_GOOD)[: 512 + 3072 + 1024], "truncated"),
    "tar: damaged header": Case(_patched(_tar(*_GOOD), b"train/b", 3, "<L", 0), "damaged"),
    "tar: two joined": Case(_tar(*_GOOD) + _tar(*_GOOD), "joined"),
    "tar: junk behind": Case(_tar(*_GOOD) + b"junk" * 200, "damaged|joined"),
    "tar: sparse": Case(_sparse(), "sparse"),
    "tar.gz: truncated": Case(_tar_gz(100_000)[:-20], "truncated|damaged"),
    "tar.gz: wrong checksum": Case(_tar_gz(100_000)[:-8] + bytes(4) + _tar_gz(100_000)[-4:], "damaged"),
    "tar.gz: bomb": Case(_tar_gz(_MANY), "max_ratio"),
    "tar.xz: bomb": Case(lzma.compress(_tar(("z", tarfile.REGTYPE, "", bytes(_MANY)))), "max_ratio"),
    "tar.zst: truncated": Case(zstandard.compress(_tar(*_GOOD))[:-3], "truncated|damaged|unpack"),
    "tar: pax": Case(_tar(*_GOOD, (_LONG, tarfile.REGTYPE, "", b"long"))),
    "tar: GNU": Case(_tar(*_GOOD, (_LONG, tarfile.REGTYPE, "", b"long"), form=tarfile.GNU_FORMAT)),
    "tar: ustar": Case(_tar(*_GOOD, form=tarfile.USTAR_FORMAT)),
    "tar: from a dot": Case(_tar((".", tarfile.DIRTYPE, "", b""), ("./a", tarfile.REGTYPE, "", b"a"))),
    "tar: links inside": Case(_links(("link", "a/real.jpg"), ("a/chain", "../link"))),
    "tar: hard link inside": Case(_links(("link", "a/real.jpg"), kind=tarfile.LNKTYPE)),
    "tar.gz": Case(_tar(*_GOOD, mode="w:gz")),
    "tar.bz2": Case(_tar(*_GOOD, mode="w:bz2")),
    "tar.xz": Case(_tar(*_GOOD, mode="w:xz")),
    "gz: of one file": Case(gzip.compress(b"content" * 999, mtime=0), like="archive"),
    "gz: of several streams": Case(gzip.compress(b"one") + gzip.compress(b"two"), like="archive"),
    "bz2: of one file": Case(bz2.compress(b"content" * 999), like="archive"),
    "xz: of one file": Case(lzma.compress(b"content" * 999), like="archive"),
    "zst: of one file": Case(zstandard.compress(b"content" * 999), like="archive"),
    "gz: noted name that climbs": Case(_gzip_named(b"../evil"), "climbs out"),
    "gz: noted name that is absolute": Case(_gzip_named(b"/tmp/colabstage-evil"), "without folders"),
    "gz: noted name": Case(_gzip_named(b"noted.csv"), like="noted.csv"),
    "gz: truncated": Case(gzip.compress(os.urandom(5000))[:-9], "truncated|does not unpack"),
    "zst: truncated": Case(zstandard.compress(os.urandom(5000))[:-9], "truncated|does not unpack"),
    "7z: damaged": Case(b"7z\xbc\xaf\x27\x1c" + bytes(500), "damaged|nothing here reads"),
    "rar: damaged": Case(b"Rar!\x1a\x07\x01\0" + bytes(500), "damaged|nothing here reads"),
}


def test_the_corpus_is_large() -> None:
    """At least sixty, most of them to be refused."""
    assert len(CASES) >= 60
    assert sum(case.refused is not None for case in CASES.values()) >= 60


def _files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, links to files followed; links to folders or nothing are none."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder with an archive's place and a target's; what is outside is watched."""
    place = tmp_path / "room"
    place.mkdir()
    yield place
    assert [path.name for path in tmp_path.iterdir()] == ["room"]
    assert not os.path.lexists("/tmp/colabstage-evil")


# What zipfile and tarfile raise for an archive that they will not extract.
_REFUSALS = (
    *(OSError, ValueError, RuntimeError, NotImplementedError, EOFError),
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
)


# Refused only on a disk that takes one of two such names for the other; Linux' own do not.
_ELSEWHERE = ("upper and lower case", "encoding of its characters")


@pytest.fixture
def disk_that_mixes_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk says of itself that it does not tell "a" from "A"."""
    monkeypatch.setattr(files, "_mixes_up_names", lambda folder: True)


@pytest.mark.usefixtures("disk_that_mixes_names")
@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.refused])
def test_a_hostile_archive_is_refused_and_leaves_nothing(room: Path, key: str) -> None:
    """A typed error with the reason; neither target nor temporary folder nor record; what was beside is untouched."""
    case = CASES[key]
    archive = room / "archive"
    archive.write_bytes(case.content)
    with pytest.raises((ArchiveError, ImportError), match=case.refused):
        extract_archive(archive, room / "out", limits=_LIMITS, progress=False)
    assert [path.name for path in room.iterdir()] == ["archive"]


@pytest.mark.usefixtures("disk_that_mixes_names")
@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.refused])
def test_a_refused_archive_does_not_touch_what_stands_there(room: Path, key: str) -> None:
    """Even when it was to be replaced."""
    (room / "archive").write_bytes(CASES[key].content)
    (room / "out").mkdir()
    (room / "out" / "mine.txt").write_text("mine")
    with pytest.raises((ArchiveError, ImportError)):
        extract_archive(room / "archive", room / "out", limits=_LIMITS, overwrite=True, progress=False)
    assert sorted(path.name for path in room.iterdir()) == ["archive", "out"]
    assert _files(room / "out") == {"mine.txt": b"mine"}


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.refused in (None, *_ELSEWHERE)])
def test_an_odd_archive_gives_no_more_than_others_make_of_it(room: Path, tmp_path: Path, key: str) -> None:
    """Each file is one that tarfile's data filter, zipfile or Info-ZIP writes as well, byte for byte."""
    case = CASES[key]
    archive = room / "archive"
    archive.write_bytes(case.content)
    report = extract_archive(archive, room / "out", limits=_LIMITS, progress=False)
    ours = _files(room / "out")
    assert report.members == len(ours)
    reference = _reference(case, archive, room / "reference")
    assert ours.items() <= reference.items()
    left_out = {name for name in reference if name not in ours}
    assert all("__MACOSX" in name or name.endswith(".DS_Store") for name in left_out)
    for path in (room / "out").rglob("*"):
        wanted = 0o755 if path.is_dir() or path.name == "run.sh" else 0o644
        assert stat.S_IMODE(path.lstat().st_mode) == wanted
        assert not path.is_symlink()


def _reference(case: Case, archive: Path, place: Path) -> dict[str, bytes]:
    """What somebody else makes of an archive."""
    place.mkdir()
    if case.like == "unzip":
        if shutil.which("unzip") is None:
            pytest.skip("needs unzip: apt-get install unzip")
        subprocess.run(["unzip", "-q", str(archive), "-d", str(place)], check=True, timeout=60)
    elif case.like != "python":
        name = case.like
        (place / name).write_bytes(_unpacked(case.content))
    elif case.content.startswith(b"PK"):
        with zipfile.ZipFile(archive) as file:
            file.extractall(place)
    else:
        with tarfile.open(archive) as file:
            file.extractall(place, filter="data")
    return _files(place)


def _unpacked(content: bytes) -> bytes:
    if content.startswith(b"\x1f\x8b"):
        return gzip.decompress(content)
    if content.startswith(b"BZh"):
        return bz2.decompress(content)
    if content.startswith(b"\xfd7z"):
        return lzma.decompress(content)
    return zstandard.ZstdDecompressor().decompress(content)


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.like == "python"])
def test_what_others_refuse_is_refused_here(room: Path, key: str) -> None:
    """Whatever tarfile's data filter or zipfile will not extract, this has not extracted either."""
    case = CASES[key]
    archive = room / "archive"
    archive.write_bytes(case.content)
    (room / "reference").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as zipped:
                    zipped.extractall(room / "reference")
            else:
                with tarfile.open(archive) as packed:
                    packed.extractall(room / "reference", filter="data")
            others_refuse = False
        except _REFUSALS:
            others_refuse = True
    assert case.refused is not None or not others_refuse

"""Hostile and odd archives, extracted for real: refused with nothing left behind, or no more than others would make."""

import gzip
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from colabstage import extract_archive
from colabstage.errors import ArchiveError, CorruptArchiveError, UnsafeArchiveError
from tests.support.archives import (
    FILE,
    FOLDER,
    LINK,
    set_field,
    stored_zip,
    tar_bytes,
    tar_of,
    zip_bytes,
    zip_of,
)
from tests.support.images import read_tree

# Enough for a bomb.
ZEROS = bytes(400_000)

CENTRAL, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"
REG, SYM, HARD, DIR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
DEFLATED, BZIP2, LZMA = zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA

GOOD = {"train/a.jpg": b"a" * 3000, "train/b.jpg": b"b"}
TWO = stored_zip({"a.jpg": b"x" * 100, "b.jpg": b"y" * 100})
PACKED = zip_bytes({"a.npy": bytes(range(256)) * 40})
TAR, TAR_GZ = tar_bytes(GOOD), gzip.compress(tar_bytes({"zeros.npy": bytes(100_000)}), mtime=0)


def both(content: bytes, shift: int, form: str, value: int) -> bytes:
    """A zip of one member with a field changed in both of its headers; in its own it is two bytes earlier."""
    return set_field(set_field(content, CENTRAL, shift, form, value), LOCAL, shift - 2, form, value)


def one(name: str, kind: str) -> bytes:
    """An archive with a member of this name behind a good one."""
    if kind == "zip":
        return zip_of(("good.jpg", FILE, b"good"), (name, FILE, b"evil"))
    return tar_of(("good.jpg", REG, "", b"good"), (name, REG, "", b"evil"))


def links(*pairs: tuple[str, str], kind: bytes = SYM) -> bytes:
    """A tar with a file and links."""
    return tar_of(("a/real.jpg", REG, "", b"real"), *((name, kind, target, b"") for name, target in pairs))


def overlapping() -> bytes:
    """The densest bombs point ten thousand entries of the directory at the same data."""
    second = TWO.index(CENTRAL, TWO.index(CENTRAL) + 4)
    return TWO[:second] + set_field(TWO[second:], CENTRAL, 42, "<L", 0)


def sparse() -> bytes:
    header = tarfile.TarInfo("hole.bin")
    header.type = tarfile.GNUTYPE_SPARSE
    return header.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def sparse_by_pax() -> bytes:
    header = tarfile.TarInfo("hole.bin")
    header.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "100"}
    return header.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


def gzip_named(name: bytes) -> bytes:
    return b"\x1f\x8b\x08\x08" + bytes(6) + name + b"\0" + gzip.compress(b"content", mtime=0)[10:]


def inside_another() -> bytes:
    """A zip in a zip of which the end is missing: zipfile shows the members of the inner one."""
    return stored_zip({"a/1.jpg": b"1" * 100, "nested.zip": TWO, "a/2.jpg": b"2" * 100}).partition(TWO)[0] + TWO


# What each is: the content, the class of its error, and what the message has to name.
NAMES = {
    "../evil": "../evil",
    "a/../../evil": "a/../../evil",
    "../out-evil/evil": "../out-evil/evil",
    "a/b/../..": "a/b/../..",
    "/../evil": "/../evil",
    "C:/../evil": "C:/../evil",
    "__MACOSX/../../evil": "__MACOSX/../../evil",
    ".git/../../.bashrc": ".git/../../.bashrc",
    "evil.jpg\0.txt": "NUL",
    "./.": "./.",
    "": "''",
    "good.jpg/evil": "good.jpg",
}
UNSAFE = {
    **{f"{kind}: {name[:30]!r}": (one(name, kind), named) for kind in ("zip", "tar") for name, named in NAMES.items()},
    "zip: backslash": (one("..\\..\\evil", "zip"), "../../evil"),
    "zip: root": (zip_of(("/", FILE, b"evil")), "'/'"),
    "tar: root": (tar_of(("/", REG, "", b"evil")), "'/'"),
    "zip: folder that climbs": (zip_of(("../out/", FOLDER, b"")), "../out"),
    "tar: folder that climbs": (tar_of(("../out", DIR, "", b"")), "../out"),
    "zip: file and listed folder": (zip_of(("a/", FOLDER, b""), ("a", FILE, b"evil")), "'a'"),
    "zip: device": (zip_of(("sda", stat.S_IFBLK | 0o600, b"")), "sda"),
    "zip: character device": (zip_of(("tty", stat.S_IFCHR | 0o600, b"")), "tty"),
    "zip: pipe": (zip_of(("pipe", stat.S_IFIFO | 0o600, b"")), "pipe"),
    "zip: folder with content": (zip_of(("a/", FILE, b"evil")), "a/"),
    "zip: file that is a folder": (zip_of(("a", FILE, b"evil"), ("a/b", FILE, b"1")), "'a'"),
    "zip: folder by its mode with content": (zip_of(("a", FOLDER, b"evil")), "'a'"),
    **{
        f"zip: link to {target!r}": (zip_of(("a", FILE, b"1"), ("link", LINK, target.encode())), f"'{target}'")
        for target in ("../../etc/passwd", "/etc/passwd", "a/../../x", "")
    },
    "zip: file through a link": (zip_of(("a", LINK, b"b"), ("a/evil", FILE, b"x")), "'a'"),
    "zip: overlapping members": (overlapping(), "a.jpg"),
    "zip: a member that reaches into the next": (set_field(TWO, CENTRAL, 20, "<LL", 101, 101), "a.jpg"),
    "tar: block device": (tar_of(("sda", tarfile.BLKTYPE, "", b"")), "sda"),
    "tar: character device": (tar_of(("tty", tarfile.CHRTYPE, "", b"")), "tty"),
    "tar: pipe": (tar_of(("pipe", tarfile.FIFOTYPE, "", b"")), "pipe"),
    "tar: file with a slash": (tar_of(("a.jpg/", REG, "", b"evil")), "a.jpg/"),
    "tar: link out": (links(("a/link", "../../etc/passwd")), "../../etc/passwd"),
    "tar: link to the root": (links(("link", "/etc/passwd")), "/etc/passwd"),
    "tar: hard link out": (links(("link", "../evil"), kind=HARD), "../evil"),
    "tar: file through a link": (tar_of(("a", SYM, "..", b""), ("a/evil", REG, "", b"x")), "'..'"),
    "tar: file through a chain of links": (
        tar_of(("a", SYM, "b", b""), ("b", SYM, "c", b""), ("c/d", REG, "", b"1"), ("a/evil", REG, "", b"x")),
        "'a'",
    ),
}
CORRUPT = {
    **{
        f"zip: method {method} says less than it holds": (
            both(zip_of(("a.npy", FILE, ZEROS), method=method), 24, "<L", 100),
            "100 bytes",
        )
        for method in (DEFLATED, BZIP2)
    },
    "zip: encrypted by its own header only": (set_field(PACKED, LOCAL, 6, "<H", 1), "a.npy"),
    "zip: wrong checksum": (both(PACKED, 16, "<L", zlib.crc32(b"something else")), "a.npy"),
    "zip: other size in its own header": (set_field(PACKED, LOCAL, 22, "<L", 5), "a.npy"),
    "zip: other method in its own header": (set_field(PACKED, LOCAL, 8, "<H", 0), "a.npy"),
    "zip: truncated behind a zip in it": (inside_another(), "bytes are here"),
    "zip: its end filled with zeros": (TWO[:-60] + bytes(5000), "directory"),
    "zip: counts another number": (set_field(TWO, END, 10, "<H", 3), "counts 3"),
    "tar: end missing": (TAR[: 512 + 3072 + 1024], "4,608 bytes"),
    "tar: its end filled with zeros": (TAR + bytes(2_000_000), "zeros"),
    "tar: damaged header": (set_field(TAR, b"train/b", 3, "<L", 0), "byte 3,584"),
    "tar: two joined": (TAR + TAR, "tar -xif"),
    "tar: junk behind": (TAR + b"junk" * 200, "byte 4,608"),
    "zst: truncated": (zstandard.compress(os.urandom(5000))[:-9], "truncated"),
    "7z: damaged": (b"7z\xbc\xaf\x27\x1c" + bytes(500), "archive'"),
    "rar: damaged": (b"Rar!\x1a\x07\x01\0" + bytes(500), "archive'"),
}
UNREADABLE = {
    "zip: encrypted": (both(PACKED, 8, "<H", 1), "a.npy"),
    "zip: Deflate64": (both(PACKED, 10, "<H", 9), "method 9"),
    "zip: LZMA": (zip_bytes(GOOD, method=LZMA), "method 14"),
    "zip: one part of several": (set_field(TWO, END, 4, "<H", 2), "zip -s 0"),
    "zip: junk in front": (b"#!/bin/sh\nexit\n" + TWO, "archive'"),
    "tar: sparse": (sparse(), "hole.bin"),
    "tar: sparse by PAX": (sparse_by_pax(), "hole.bin"),
    "tar.zst: truncated": (zstandard.compress(TAR)[:-3], "Zstandard"),
    "gz: truncated": (gzip.compress(os.urandom(5000))[:-9], "gzip"),
}
REFUSED: dict[str, tuple[bytes, str, type[Exception]]] = {
    **{key: (*case, UnsafeArchiveError) for key, case in UNSAFE.items()},
    **{key: (*case, CorruptArchiveError) for key, case in CORRUPT.items()},
    **{key: (*case, ArchiveError) for key, case in UNREADABLE.items()},
}

ODD_NAMES = ("/tmp/colabstage-evil", "//tmp/colabstage-evil", "C:/evil", "a:b", "./a//b/./c.jpg", "ends in a blank ")
LONG = {"d" * 90 + "/" + "e" * 120 + "/" + "f" * 200 + ".jpg": b"long"}
# Archives that others extract as well. Those of the second group differ from Python's own in what they do with modes
# and links.
EXTRACTED = {
    **{f"zip: {name}": one(name, "zip") for name in ODD_NAMES},
    **{f"tar: {name}": one(name, "tar") for name in (*ODD_NAMES, "a\\b", "..\\evil", "good.jpg", "./good.jpg")},
    "zip: twice": one("good.jpg", "zip"),
    **{f"zip: method {method}": zip_bytes(GOOD, method=method) for method in (0, DEFLATED, BZIP2)},
    "zip: comment with other signatures": zip_of(("a", FILE, b"a"), comment=b"see " + CENTRAL + LOCAL),
    "zip: a newline behind it": TWO + b"\n",
    "zip: zeros behind it": TWO + bytes(1000),
    "zip: a zip inside, stored": zip_of(("inner.zip", FILE, TWO), ("a", FILE, b"a")),
    "zip: names in UTF-8": zip_of(("Grüße/日本.jpg", FILE, b"x")),
    "zip: junk of systems": zip_of(("__MACOSX/._a", FILE, b"j"), (".DS_Store", FILE, b"j"), ("a", FILE, b"a")),
    "zip: a folder of macOS alone": zip_of(("__MACOSX/b", FILE, b"j"), ("a", FILE, b"a")),
    "tar: pax": tar_bytes(GOOD | LONG),
    "tar: GNU": tar_bytes(GOOD | LONG, form=tarfile.GNU_FORMAT),
    "tar: ustar": tar_bytes(GOOD | {"a" * 90 + "/" + "b" * 90 + "/c.jpg": b"c"}, form=tarfile.USTAR_FORMAT),
    "tar: from a dot": tar_of((".", DIR, "", b""), ("./a", REG, "", b"a")),
    "tar: links inside": links(("link", "a/real.jpg"), ("a/chain", "../link")),
    "tar: hard link inside": links(("link", "a/real.jpg"), kind=HARD),
    **{f"tar.{kind}": tar_bytes(GOOD, mode=f"w:{kind}") for kind in ("gz", "bz2", "xz")},
}
AS_UNZIP = {
    "program": zip_of(("run.sh", stat.S_IFREG | 0o6777, b"#!/bin/sh"), ("a", FILE, b"a")),
    "link inside": zip_of(("a/b", FILE, b"real"), ("link", LINK, b"a/b")),
    "link to nothing": zip_of(("a", FILE, b"real"), ("link", LINK, b"nothing")),
}
# Of one compressed file: what it is, its content, and its name.
SINGLE = {
    "gz": (gzip.compress(b"content" * 999, mtime=0), b"content" * 999, "archive"),
    "xz": (lzma.compress(b"content" * 999), b"content" * 999, "archive"),
    "zst": (zstandard.compress(b"content" * 999), b"content" * 999, "archive"),
    "gz that notes a name that climbs": (gzip_named(b"../evil"), b"content", "archive"),
}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder with an archive's place and a target's; what is outside is watched."""
    place = tmp_path / "room"
    place.mkdir()
    yield place
    assert [path.name for path in tmp_path.iterdir()] == ["room"]
    assert not os.path.lexists("/tmp/colabstage-evil")


@pytest.mark.parametrize("key", REFUSED)
def test_a_hostile_archive_is_refused_and_leaves_nothing(room: Path, key: str) -> None:
    """A typed error that names why; neither target nor temporary folder nor record; what stands there is untouched,
    even when it was to be replaced."""
    content, named, error = REFUSED[key]
    if key.startswith(("7z", "rar")):
        pytest.importorskip({"7z": "py7zr", "ra": "rarfile"}[key[:2]])
    archive, out = room / "archive", room / "out"
    archive.write_bytes(content)
    with pytest.raises(error) as raised:
        extract_archive(archive, out, progress=False)
    assert type(raised.value) is error
    assert named in str(raised.value)
    assert [path.name for path in room.iterdir()] == ["archive"]
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(error):
        extract_archive(archive, out, overwrite=True, progress=False)
    assert sorted(path.name for path in room.iterdir()) == ["archive", "out"]
    assert read_tree(out) == {"mine.txt": b"mine"}


def extracted(room: Path, content: bytes) -> dict[str, bytes]:
    """What is extracted of an archive; every file and folder has an ordinary mode."""
    (room / "archive").write_bytes(content)
    report = extract_archive(room / "archive", room / "out", progress=False)
    found = read_tree(room / "out")
    assert report.members == len(found)
    for path in (room / "out").rglob("*"):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o755 if path.is_dir() or path.name == "run.sh" else 0o644)
        assert not path.is_symlink()
    return found


@pytest.mark.parametrize("key", EXTRACTED)
def test_an_odd_archive_is_what_python_makes_of_it(room: Path, key: str) -> None:
    """Each file is one that tarfile's data filter or zipfile writes as well, byte for byte."""
    ours = extracted(room, EXTRACTED[key])
    extract_with_python(room / "archive", room / "reference")
    reference = read_tree(room / "reference")
    assert ours.items() <= reference.items()
    junk = {name for name in reference if "__MACOSX" in name or name.endswith(".DS_Store")}
    assert reference.keys() - ours.keys() == junk


def extract_with_python(archive: Path, place: Path) -> None:
    """Extract as the standard library does."""
    if not hasattr(tarfile, "data_filter"):
        pytest.skip("needs Python 3.11.4: its tarfile refuses what leads outside")
    place.mkdir()
    with warnings.catch_warnings(action="ignore"):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(place)
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")


@pytest.mark.parametrize("key", AS_UNZIP)
def test_a_zip_of_unix_is_what_unzip_makes_of_it(room: Path, key: str) -> None:
    """Programs stay such, and links are their files."""
    if shutil.which("unzip") is None:
        pytest.skip("needs unzip: apt-get install unzip")
    ours = extracted(room, AS_UNZIP[key])
    subprocess.run(["unzip", "-q", str(room / "archive"), "-d", str(room / "reference")], check=True, timeout=60)
    assert ours == read_tree(room / "reference")


@pytest.mark.parametrize("key", SINGLE)
def test_a_compressed_file_is_that_file(room: Path, key: str) -> None:
    """Under the name of the compressed one, whatever gzip noted."""
    content, inside, name = SINGLE[key]
    assert extracted(room, content) == {name: inside}

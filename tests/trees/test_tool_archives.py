"""7z and rar: listed, judged, unpacked by whatever reads them here, and looked at again."""

from __future__ import annotations

import shutil
import struct
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import (
    ArchiveError,
    CorruptArchiveError,
    MissingDependencyError,
    NotEnoughSpaceError,
    UnsafeArchiveError,
)
from colabstage.trees import seven_zip as foreign_tools
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.names import ArchiveLimits
from colabstage.trees.open import open_archive, open_tree, recognise
from colabstage.trees.seven_zip import ToolArchiveTree
from tests.trees.conftest import RecordingBytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.trees.listing import Tree

_NONE: dict[str, tuple[str, ...]] = {"7z": (), "rar": ()}
FILES = {"train/a.jpg": b"a" * 5000, "train/b.jpg": b"b", "Grüße.txt": "ü".encode(), "empty.txt": b""}


def _vint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _header(body: bytes) -> bytes:
    sized = _vint(len(body)) + body
    return struct.pack("<L", zlib.crc32(sized)) + sized


def rar(files: dict[str, bytes], *, crc: int | None = None) -> bytes:
    """A RAR 5 archive of stored members, as RarLab's format description has it."""
    parts = [b"Rar!\x1a\x07\x01\0", _header(_vint(1) + _vint(0) + _vint(0))]
    for name, content in files.items():
        raw = name.encode()
        checksum = zlib.crc32(content) if crc is None else crc
        body = b"".join(
            (
                *(_vint(2), _vint(2), _vint(len(content)), _vint(4), _vint(len(content)), _vint(0o100644)),
                *(struct.pack("<L", checksum), _vint(0), _vint(1), _vint(len(raw)), raw),
            )
        )
        parts += [_header(body), content]
    return b"".join([*parts, _header(_vint(5) + _vint(0) + _vint(0))])


def seven(path: Path, files: dict[str, bytes], **options: Any) -> Path:
    """A 7z archive."""
    py7zr = pytest.importorskip("py7zr", reason="needs py7zr: pip install py7zr")
    with py7zr.SevenZipFile(path, "w", **options) as archive:
        for name, content in files.items():
            archive.writestr(content, name)
    return path


@pytest.fixture(params=["7-Zip", "py7zr"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to read a 7z, where it is there."""
    name: str = request.param
    if name == "7-Zip" and not any(shutil.which(command) for command in ("7zz", "7z", "7za")):
        pytest.skip("needs 7-Zip: apt-get install 7zip")
    if name == "py7zr":
        monkeypatch.setattr(foreign_tools, "_COMMANDS", _NONE)
    return name


@pytest.mark.usefixtures("reader")
def test_a_7z_is_read(tmp_path: Path, read_all: Callable[[Tree], dict[str, bytes]]) -> None:
    """By its content, whatever its name; nothing stays where it was unpacked."""
    path = seven(tmp_path / "data.bin", FILES)
    assert recognise(path) == "7z"
    with open_tree(path, spool=tmp_path / "spool") as tree:
        assert tree.kind == "7z"
        assert read_all(tree) == FILES
        assert [b"".join(tree.chunks(entry)) for entry in tree.entries] == [FILES[e.name] for e in tree.entries]
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("options", [{}, {"header_encryption": True}])
def test_an_encrypted_7z_says_so(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whether only its content or its list of names too."""
    path = seven(tmp_path / "a.7z", FILES, password="secret", **options)
    with pytest.raises(ArchiveError, match="encrypted"):
        open_tree(path, spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.usefixtures("reader")
def test_a_damaged_7z_is_noticed(tmp_path: Path) -> None:
    """Every byte cut or changed."""
    path = seven(tmp_path / "a.7z", FILES)
    whole = path.read_bytes()
    for damaged in (whole[:-10], whole[:40] + b"\xff" + whole[41:], whole[:20]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptArchiveError):
            open_tree(path, spool=tmp_path / "spool")
        assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.usefixtures("reader")
def test_a_7z_bomb_is_refused_by_its_list(tmp_path: Path) -> None:
    """Before it is unpacked."""
    path = seven(tmp_path / "a.7z", {"zeros": bytes(10_000_000)})
    with pytest.raises(UnsafeArchiveError, match="max_ratio"):
        open_tree(path, spool=tmp_path / "spool", limits=ArchiveLimits(max_ratio=10, ratio_from_bytes=1_000_000))


@pytest.mark.usefixtures("rar_reader")
@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("../evil",), "climbs out"),
        (("/tmp/colabstage-evil",), "absolute"),
        (("a", "a/b"), "also a folder"),
        (("a", "./a"), "has parts"),
    ],
)
def test_a_hostile_rar_is_refused_before_it_is_unpacked(tmp_path: Path, names: tuple[str, ...], reason: str) -> None:
    """By its list, with the same rules as a zip."""
    (tmp_path / "a.rar").write_bytes(rar(dict.fromkeys(names, b"x")))
    with pytest.raises(UnsafeArchiveError, match=reason):
        ToolArchiveTree(LocalBytes(tmp_path / "a.rar"), spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.fixture(params=["unrar", "rarfile"])
def rar_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to read a rar, where it is there."""
    name: str = request.param
    if name == "unrar" and shutil.which("unrar") is None:
        pytest.skip("needs unrar: apt-get install unrar")
    if name == "rarfile":
        pytest.importorskip("rarfile", reason="needs rarfile: pip install rarfile")
        monkeypatch.setattr(foreign_tools, "_COMMANDS", _NONE)
    return name


@pytest.mark.usefixtures("rar_reader")
def test_a_rar_is_read(tmp_path: Path, read_all: Callable[[Tree], dict[str, bytes]]) -> None:
    """By its content, whatever its name."""
    (tmp_path / "data.bin").write_bytes(rar(FILES))
    assert recognise(tmp_path / "data.bin") == "rar"
    with open_tree(tmp_path / "data.bin", spool=tmp_path / "spool") as tree:
        assert tree.kind == "rar"
        assert read_all(tree) == FILES


@pytest.mark.usefixtures("rar_reader")
def test_a_damaged_rar_is_noticed(tmp_path: Path) -> None:
    """A wrong checksum, and an end that is missing."""
    for content in (rar(FILES, crc=5), rar(FILES)[:3000]):
        (tmp_path / "a.rar").write_bytes(content)
        with pytest.raises(CorruptArchiveError):
            open_tree(tmp_path / "a.rar", spool=tmp_path / "spool")


@pytest.mark.parametrize(("kind", "content"), [("7z", b"7z\xbc\xaf\x27\x1c"), ("rar", b"Rar!\x1a\x07\x01\0")])
def test_without_anything_that_reads_it_the_install_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, content: bytes
) -> None:
    """Neither command nor package."""
    (tmp_path / "a").write_bytes(content + bytes(100))
    monkeypatch.setattr(foreign_tools, "_COMMANDS", _NONE)
    for package in ("py7zr", "rarfile"):
        monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingDependencyError, match=f"{kind} .*pip install"):
        open_tree(tmp_path / "a", spool=tmp_path / "spool")


_LISTING = """Path = photos
Size = 0
Attributes = {attributes}

Path = photos/a.txt
Size = 3
CRC = 352441C2
Attributes = A

"""


def _seven_zip(path: Path, monkeypatch: pytest.MonkeyPatch, *, listing: str) -> None:
    """A command that answers as 7-Zip does, and unpacks one file."""
    path.write_text(
        "#!/bin/sh\n"
        f"[ $1 = l ] && printf '%s' '{listing}'\n"
        'for word; do case $word in -o*) mkdir -p "${word#-o}/photos" && printf abc > "${word#-o}/photos/a.txt";; '
        "esac; done\nexit 0\n"
    )
    path.chmod(0o755)
    monkeypatch.setattr(foreign_tools, "_COMMANDS", {"7z": (str(path),)})


@pytest.mark.parametrize("attributes", ["D", "HD", "RHSD", "HD_ drwxr-xr-x", "D_ drwxr-xr-x"])
def test_a_folder_is_one_whatever_else_windows_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_all: Callable[[Tree], dict[str, bytes]], attributes: str
) -> None:
    """Hidden and read-only ones too; a command stands in for 7-Zip's listing."""
    _seven_zip(tmp_path / "7zz", monkeypatch, listing=_LISTING.format(attributes=attributes))
    (tmp_path / "a.7z").write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(500))
    with open_tree(tmp_path / "a.7z", spool=tmp_path / "spool") as tree:
        assert read_all(tree) == {"photos/a.txt": b"abc"}


_UNRAR = """
UNRAR 6.21 freeware      Copyright (c) 1993-2023 Alexander Roshal

Archive: a.rar
Details: RAR 5, solid

        Name: photos/a.txt
        Type: {kind}
        Size: 3
 Packed size: 6
       mtime: 2026-11-26 14:35:44,413026093
  Attributes: -rwxr-xr-x
       CRC32: 352441C2
     Host OS: Unix
       Flags: {flags}

        Name: photos
        Type: Directory
       mtime: 2026-11-26 14:35:44,410326699
  Attributes: drwxr-xr-x

"""


def _unrar(path: Path, monkeypatch: pytest.MonkeyPatch, *, listing: str, last: str = "exit 0") -> None:
    """A command that answers as unrar does, if a program that it starts can read the archive; unpacks one file."""
    path.write_text(
        "#!/bin/bash\n"
        'archive=; for word; do [ "$before" = -- ] && archive=$word; before=$word; done\n'
        '[ "$(bash -c \'head -c 4 "$0"\' "$archive")" = "Rar!" ] || exit 9\n'
        f"[ $1 = lt ] && {{ printf '%s' '{listing}'; exit 0; }}\n"
        f'mkdir -p "$word/photos" && printf abc > "$word/photos/a.txt"\n{last}\n'
    )
    path.chmod(0o755)
    monkeypatch.setattr(foreign_tools, "_COMMANDS", {"rar": (str(path),)})


def test_a_rar_is_read_by_unrar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_all: Callable[[Tree], dict[str, bytes]]
) -> None:
    """Wherever its bytes are, the tool and what that starts find them at a path."""
    _unrar(tmp_path / "unrar", monkeypatch, listing=_UNRAR.format(kind="File", flags="solid"))
    content = b"Rar!\x1a\x07\x01\0" + bytes(500)
    (tmp_path / "a.rar").write_bytes(content)
    for source in (LocalBytes(tmp_path / "a.rar"), RecordingBytes(content)):
        with open_archive(source, spool=tmp_path / "spool") as tree:
            assert read_all(tree) == {"photos/a.txt": b"abc"}
            assert tree.entries[0].executable
        assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "flags", "last", "error", "named"),
    [
        ("File", "encrypted", "exit 0", ArchiveError, "encrypted"),
        ("Unix symbolic link", "", "exit 0", UnsafeArchiveError, "link"),
        ("File", "", "echo Incorrect password for x; exit 11", ArchiveError, "encrypted"),
        ("File", "", "echo x - checksum error; exit 3", CorruptArchiveError, "checksum error"),
        ("File", "", "echo No space left on device; exit 9", NotEnoughSpaceError, "does not fit"),
        ("File", "", 'echo m > "$word/more"', UnsafeArchiveError, "'more'"),
        ("File", "", 'rm "$word/photos/a.txt"', CorruptArchiveError, "photos/a.txt"),
        ("File", "", 'printf xyz > "$word/photos/a.txt"', CorruptArchiveError, "photos/a.txt"),
        ("File", "", 'ln -s / "$word/link"', UnsafeArchiveError, "'link'"),
    ],
)
def test_what_unrar_says_and_leaves_is_looked_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    flags: str,
    last: str,
    error: type[Exception],
    named: str,
) -> None:
    """A listing may say one thing and the content another; nothing stays in the spool."""
    _unrar(tmp_path / "unrar", monkeypatch, listing=_UNRAR.format(kind=kind, flags=flags), last=last)
    source = RecordingBytes(b"Rar!\x1a\x07\x01\0" + bytes(500))
    with pytest.raises(error, match=named):
        open_archive(source, spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []

"""7z and rar: listed, checked, unpacked by whatever tool is here, and checked again."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from colabstage.errors import (
    ArchiveError,
    CorruptArchiveError,
    MissingDependencyError,
    NotEnoughSpaceError,
    UnsafeArchiveError,
)
from colabstage.trees.listing import ArchiveLimits
from colabstage.trees.open import open_archive, open_tree
from tests.support.archives import RecordingBytes, rar_bytes, read_all, seven_bytes

FILES = {"train/a.jpg": b"a" * 5000, "train/b.jpg": b"b", "Grüße.txt": "ü".encode(), "empty.txt": b""}
KINDS = {"7z": seven_bytes, "rar": rar_bytes}
COMMANDS = {"7z": ("7zz", "7z", "7za"), "rar": ("unrar",)}


@pytest.fixture(params=["7z by its tool", "7z by a package", "rar by its tool", "rar by a package"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    kind = name.partition(" ")[0]
    if name.endswith("tool") and not any(map(shutil.which, COMMANDS[kind])):
        pytest.skip(f"needs {COMMANDS[kind][0]}: apt-get install {'7zip' if kind == '7z' else 'unrar'}")
    if name.endswith("package"):
        package = "py7zr" if kind == "7z" else "rarfile"
        pytest.importorskip(package, reason=f"needs {package}: pip install {package}")
        monkeypatch.setenv("PATH", str(tmp_path))
    return kind


def test_an_archive_is_read(tmp_path: Path, kind: str) -> None:
    """By its content, whatever its name; nothing stays where it was unpacked."""
    path = tmp_path / "data.bin"
    path.write_bytes(KINDS[kind](FILES))
    with open_tree(path, spool=tmp_path / "spool") as tree:
        assert tree.kind == kind
        assert read_all(tree) == FILES
        assert [b"".join(tree.chunks(entry)) for entry in tree.entries] == [FILES[e.name] for e in tree.entries]
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_damaged_one_is_noticed(tmp_path: Path, kind: str) -> None:
    """Every byte cut or changed, and a wrong checksum."""
    whole = KINDS[kind](FILES)
    damaged = [whole[:-10], whole[:40] + b"\xff" + whole[41:], whole[:20]]
    if kind == "rar":
        damaged = [rar_bytes(FILES, crc=5), whole[:3000]]
    for content in damaged:
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(CorruptArchiveError):
            open_tree(tmp_path / "a", spool=tmp_path / "spool")
        assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("options", [{}, {"header_encryption": True}])
def test_an_encrypted_7z_says_so(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whether only its content is encrypted, or its list of names too."""
    py7zr = pytest.importorskip("py7zr", reason="needs py7zr: pip install py7zr")
    with py7zr.SevenZipFile(tmp_path / "a.7z", "w", password="secret", **options) as archive:
        archive.writestr(b"a", "a.txt")
    with pytest.raises(ArchiveError, match="encrypted"):
        open_tree(tmp_path / "a.7z", spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("names", [("../evil",), ("a", "a/b")])
def test_a_hostile_rar_is_refused_before_it_is_unpacked(tmp_path: Path, names: tuple[str, ...]) -> None:
    """By its list, with the same rules as a zip."""
    pytest.importorskip("rarfile", reason="needs rarfile: pip install rarfile")
    with pytest.raises(UnsafeArchiveError, match=re.escape(names[0])):
        open_archive(RecordingBytes(rar_bytes(dict.fromkeys(names, b"x"))), spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_bomb_is_refused_by_its_list(tmp_path: Path) -> None:
    """Before it is unpacked."""
    source = RecordingBytes(seven_bytes({"zeros": bytes(3_000_000)}))
    with pytest.raises(UnsafeArchiveError, match="decompression bomb"):
        open_archive(source, spool=tmp_path, limits=ArchiveLimits(max_ratio=10, ratio_from_bytes=1_000_000))


def use_command(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, script: str) -> None:
    """Put a command in front of all others of its name."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


_LISTING = """Path = photos
Size = 0
Attributes = {attributes}

Path = photos/a.txt
Size = 3
CRC = 352441C2
Attributes = A

"""


@pytest.mark.parametrize("attributes", ["RHSD", "HD_ drwxr-xr-x"])
def test_a_folder_is_one_whatever_else_windows_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attributes: str
) -> None:
    """Hidden and read-only ones too; a command stands in for 7-Zip's listing."""
    script = (
        "#!/bin/sh\n"
        f"[ $1 = l ] && printf '%s' '{_LISTING.format(attributes=attributes)}'\n"
        'for word; do case $word in -o*) mkdir -p "${word#-o}/photos" && printf abc > "${word#-o}/photos/a.txt";; '
        "esac; done\nexit 0\n"
    )
    use_command(monkeypatch, tmp_path / "bin", "7zz", script)
    with open_archive(RecordingBytes(b"7z\xbc\xaf\x27\x1c" + bytes(500)), spool=tmp_path / "spool") as tree:
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


def use_unrar(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, kind: str = "File", flags: str = "", last: str = "exit 0"
) -> None:
    """Install a command that responds like unrar, if a program that it starts can read the archive; unpacks one
    file."""
    script = (
        "#!/bin/bash\n"
        'archive=; for word; do [ "$before" = -- ] && archive=$word; before=$word; done\n'
        '[ "$(bash -c \'head -c 4 "$0"\' "$archive")" = "Rar!" ] || exit 9\n'
        f"[ $1 = lt ] && {{ printf '%s' '{_UNRAR.format(kind=kind, flags=flags)}'; exit 0; }}\n"
        f'mkdir -p "$word/photos" && printf abc > "$word/photos/a.txt"\n{last}\n'
    )
    use_command(monkeypatch, folder, "unrar", script)


def test_a_rar_is_read_by_unrar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever its bytes are, the tool and its child processes find them at a path."""
    use_unrar(monkeypatch, tmp_path / "bin", flags="solid")
    content = b"Rar!\x1a\x07\x01\0" + bytes(500)
    (tmp_path / "a.rar").write_bytes(content)
    spool = tmp_path / "spool"
    opened = open_tree(tmp_path / "a.rar", spool=spool), open_archive(RecordingBytes(content), spool=spool)
    for one in opened:
        with one as tree:
            assert read_all(tree) == {"photos/a.txt": b"abc"}
            assert tree.entries[0].executable
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize(
    ("kind_of_member", "flags", "last", "error", "named"),
    [
        ("File", "encrypted", "exit 0", ArchiveError, "encrypted"),
        ("Unix symbolic link", "", "exit 0", UnsafeArchiveError, "link"),
        ("File", "", "echo Incorrect password for x; exit 11", ArchiveError, "encrypted"),
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
    kind_of_member: str,
    flags: str,
    last: str,
    error: type[Exception],
    named: str,
) -> None:
    """The listing may differ from the content; nothing stays in the spool."""
    use_unrar(monkeypatch, tmp_path / "bin", kind=kind_of_member, flags=flags, last=last)
    source = RecordingBytes(b"Rar!\x1a\x07\x01\0" + bytes(500))
    with pytest.raises(error, match=named):
        open_archive(source, spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_without_anything_that_reads_a_rar_the_install_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither command nor package exists; `tests/contract/messages.txt` has the line for a 7z."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "rarfile", None)
    with pytest.raises(MissingDependencyError, match="pip install rarfile"):
        open_archive(RecordingBytes(rar_bytes(FILES)), spool=tmp_path)

"""7z and rar: listed, checked, unpacked by whatever tool is here, and checked again. Scripts stand in for commands."""

import re
import shutil
import sys
from collections.abc import Callable
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
RAR = b"Rar!\x1a\x07\x01\0" + bytes(500)


@pytest.fixture(params=["7z by its tool", "7z by a package", "rar by its tool", "rar by a package"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    kind, _, reader = request.param.partition(" ")
    package, names = {"7z": ("py7zr", ("7zz", "7z", "7za")), "rar": ("rarfile", ("unrar",))}[kind]
    if reader == "by its tool" and not any(map(shutil.which, names)):
        pytest.skip(f"needs {names[0]}: apt-get install {'7zip' if kind == '7z' else 'unrar'}")
    if reader == "by a package":
        pytest.importorskip(package, reason=f"needs {package}: pip install 'colabstage[archives]'")
        monkeypatch.setenv("PATH", str(tmp_path))
    return str(kind)


def test_an_archive_is_read(tmp_path: Path, kind: str) -> None:
    """By its content, whatever its name; nothing stays where it was unpacked."""
    path = tmp_path / "data.bin"
    path.write_bytes(KINDS[kind](FILES))
    with open_tree(path, spool=tmp_path / "spool") as tree:
        assert tree.kind == kind
        assert read_all(tree) == FILES
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
    py7zr = pytest.importorskip("py7zr", reason="needs py7zr: pip install 'colabstage[archives]'")
    with py7zr.SevenZipFile(tmp_path / "a.7z", "w", password="secret", **options) as archive:
        archive.writestr(b"a", "a.txt")
    with pytest.raises(ArchiveError, match="encrypted"):
        open_tree(tmp_path / "a.7z", spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("names", [("../evil",), ("a", "a/b")])
def test_a_hostile_rar_is_refused_before_it_is_unpacked(tmp_path: Path, names: tuple[str, ...]) -> None:
    """By its list, with the same rules as a zip."""
    pytest.importorskip("rarfile", reason="needs rarfile: pip install 'colabstage[archives]'")
    with pytest.raises(UnsafeArchiveError, match=re.escape(names[0])):
        open_archive(RecordingBytes(rar_bytes(dict.fromkeys(names, b"x"))), spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_bomb_is_refused_by_its_list(tmp_path: Path) -> None:
    """Before it is unpacked."""
    source = RecordingBytes(seven_bytes({"zeros": bytes(3_000_000)}))
    with pytest.raises(UnsafeArchiveError, match="bomb"):
        open_archive(source, spool=tmp_path, limits=ArchiveLimits(max_ratio=10, ratio_from_bytes=1_000_000))


_LISTING = """
        Name: {name}
        Type: {kind}
        Size: 3
  Attributes: {attributes}
       CRC32: 352441C2
       Flags: {flags}

        Name: photos
        Type: Directory
  Attributes: drwxr-xr-x

"""


@pytest.fixture
def use_unrar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a command that responds like unrar, if a program that it starts can read the archive; unpacks one
    file."""

    def use(
        *,
        name: str = "photos/a.txt",
        kind: str = "File",
        attributes: str = "-rwxr-xr-x",
        flags: str = "",
        last: str = "exit 0",
    ) -> None:
        listing = _LISTING.format(name=name, kind=kind, attributes=attributes, flags=flags)
        script = (
            "#!/bin/bash\n"
            'archive=; for word; do [ "$before" = -- ] && archive=$word; before=$word; done\n'
            '[ "$(bash -c \'head -c 4 "$0"\' "$archive")" = "Rar!" ] || exit 9\n'
            f"[ $1 = lt ] && {{ printf '%s' '{listing}'; exit 0; }}\n"
            f'mkdir -p "$word/photos" && printf abc > "$word/photos/a.txt"\n{last}\n'
        )
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "unrar").write_text(script)
        (folder / "unrar").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return use


def test_a_rar_is_read_by_unrar(tmp_path: Path, use_unrar: Callable[..., None]) -> None:
    """Wherever its bytes are, the tool and its child processes find them at a path."""
    use_unrar(flags="solid")
    (tmp_path / "a.rar").write_bytes(RAR)
    spool = tmp_path / "spool"
    for one in open_tree(tmp_path / "a.rar", spool=spool), open_archive(RecordingBytes(RAR), spool=spool):
        with one as tree:
            assert read_all(tree) == {"photos/a.txt": b"abc"}
            assert tree.entries[0].executable
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "error", "named"),
    [
        ({"name": "../evil"}, UnsafeArchiveError, "'../evil'"),
        ({"name": "photos"}, UnsafeArchiveError, "'photos'"),
        ({"flags": "encrypted"}, ArchiveError, "encrypted"),
        ({"kind": "Unix symbolic link"}, UnsafeArchiveError, "link"),
        ({"attributes": "lrwxr-xr-x"}, UnsafeArchiveError, "link"),
        # Whatever else Windows says of a folder.
        ({"attributes": "HD_ drwxr-xr-x"}, UnsafeArchiveError, "does not list"),
        ({"attributes": "RHSD"}, UnsafeArchiveError, "does not list"),
        ({"last": "echo Incorrect password for x; exit 11"}, ArchiveError, "encrypted"),
        ({"last": "echo No space left on device; exit 9"}, NotEnoughSpaceError, "does not fit"),
        ({"last": 'echo m > "$word/more"'}, UnsafeArchiveError, "'more'"),
        ({"last": 'rm "$word/photos/a.txt"'}, CorruptArchiveError, "photos/a.txt"),
        ({"last": 'printf xy > "$word/photos/a.txt"'}, CorruptArchiveError, "photos/a.txt"),
        ({"last": 'ln -s / "$word/link"'}, UnsafeArchiveError, "'link'"),
    ],
)
def test_what_unrar_says_and_leaves_is_looked_at(
    tmp_path: Path, use_unrar: Callable[..., None], said: dict[str, str], error: type[Exception], named: str
) -> None:
    """The listing may differ from the content; nothing stays in the spool."""
    use_unrar(**said)
    with pytest.raises(error, match=named):
        open_archive(RecordingBytes(RAR), spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_without_anything_that_reads_a_rar_the_install_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither command nor package exists; `tests/contract/messages.txt` has the line for a 7z."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "rarfile", None)
    with pytest.raises(MissingDependencyError, match="pip install rarfile"):
        open_archive(RecordingBytes(RAR), spool=tmp_path)

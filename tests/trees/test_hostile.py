"""Archives made to do harm: each is refused when it is opened, by name, with nothing read and nothing written."""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import UnsafeArchiveError
from colabstage.trees.names import ArchiveLimits
from colabstage.trees.tar import TarTree
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.trees.conftest import RecordingBytes

    Recording = Callable[..., RecordingBytes]

_SECRET = b"content that nobody may read"
# Name, then a part of the reason.
_EVIL_NAMES = {
    "parent": ("../evil.jpg", "climbs out"),
    "parent in the middle": ("a/../../evil.jpg", "climbs out"),
    "parent of a sibling": ("../out-evil/evil.jpg", "climbs out"),
    "parent at the end": ("a/b/../..", "climbs out"),
    "parent under junk": ("__MACOSX/../../evil.jpg", "climbs out"),
    "parent under git": (".git/../../.bashrc", "climbs out"),
    "absolute": ("/etc/passwd", "absolute"),
    "two slashes": ("//host/share/evil.jpg", "absolute"),
    "drive": ("C:/Windows/evil.jpg", "drive letter"),
    "drive relative": ("C:evil.jpg", "drive letter"),
    "backslash parent": ("..\\..\\evil.jpg", "backslash"),
    "backslash": ("a\\evil.jpg", "backslash"),
    "backslash drive": ("C:\\evil.jpg", "backslash"),
    "nul": ("evil.jpg\0.txt", "NUL"),
    "empty": ("", "without a name"),
    "dot": (".", "without a name"),
}


def _zip(*members: tuple[str, int, bytes]) -> bytes:
    """A zip of members given as name, Unix mode and content, names written as they are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number, (name, mode, content) in enumerate(members):
            info = zipfile.ZipInfo(f"placeholder{number}")
            info.filename = name
            info.create_system = 3
            info.external_attr = mode << 16
            archive.NameToInfo.clear()
            archive.writestr(info, content)
    return buffer.getvalue()


def _tar(*members: tuple[str, bytes, str, bytes]) -> bytes:
    """A tar of members given as name, type, link target and content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, target, content in members:
            info = tarfile.TarInfo("placeholder")
            info.pax_headers = {"path": name or "placeholder"} if "\0" in name else {}
            info.name = name.replace("\0", "?")
            info.type, info.linkname, info.size = kind, target, len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


_REG, _LNK = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
_ZIPS: dict[str, tuple[bytes, str]] = {
    **{key: (_zip(("good.jpg", _REG, b"1"), (name, _REG, _SECRET)), why) for key, (name, why) in _EVIL_NAMES.items()},
    "folder that climbs": (_zip(("../out/", 0o40755, b"")), "climbs out"),
    "folder with content": (_zip(("a/", _REG, _SECRET)), "has content"),
    "folder by mode with content": (_zip(("a", stat.S_IFDIR | 0o755, _SECRET)), "folder with content"),
    "twice": (_zip(("a.jpg", _REG, b"1"), ("a.jpg", _REG, _SECRET)), "twice"),
    "twice in other words": (_zip(("a/b.jpg", _REG, b"1"), ("a/./b.jpg", _REG, _SECRET)), "twice"),
    "file and folder": (_zip(("a", _REG, b"1"), ("a/b.jpg", _REG, _SECRET)), "also a folder"),
    "file and listed folder": (_zip(("a/", 0o40755, b""), ("a", _REG, _SECRET)), "also a folder"),
    "device": (_zip(("sda", stat.S_IFBLK | 0o600, b"")), "device"),
    "terminal": (_zip(("tty", stat.S_IFCHR | 0o600, b"")), "device"),
    "pipe": (_zip(("pipe", stat.S_IFIFO | 0o600, b"")), "pipe"),
    "socket": (_zip(("socket", stat.S_IFSOCK | 0o600, b"")), "device"),
}
_TARS: dict[str, tuple[bytes, str]] = {
    **{
        key: (_tar(("good.jpg", tarfile.REGTYPE, "", b"1"), (name, tarfile.REGTYPE, "", _SECRET)), why)
        for key, (name, why) in _EVIL_NAMES.items()
    },
    "folder that climbs": (_tar(("../out", tarfile.DIRTYPE, "", b"")), "climbs out"),
    "file with a slash": (_tar(("a.jpg/", tarfile.REGTYPE, "", _SECRET)), "slash"),
    "twice": (_tar(("a", tarfile.REGTYPE, "", b"1"), ("./a", tarfile.REGTYPE, "", _SECRET)), "twice"),
    "file and folder": (_tar(("a", tarfile.REGTYPE, "", b"1"), ("a/b", tarfile.REGTYPE, "", b"")), "also a folder"),
    "block device": (_tar(("sda", tarfile.BLKTYPE, "", b"")), "device"),
    "character device": (_tar(("tty", tarfile.CHRTYPE, "", b"")), "device"),
    "pipe": (_tar(("pipe", tarfile.FIFOTYPE, "", b"")), "pipe"),
    "link out": (_tar(("a/link.jpg", tarfile.SYMTYPE, "../../etc/passwd", b"")), "outside the archive"),
    "link to a root": (_tar(("link.jpg", tarfile.SYMTYPE, "/etc/passwd", b"")), "outside the archive"),
    "hard link out": (_tar(("link.jpg", tarfile.LNKTYPE, "../etc/passwd", b"")), "outside the archive"),
    "hard link to a root": (_tar(("link.jpg", tarfile.LNKTYPE, "/etc/passwd", b"")), "outside the archive"),
    "file through a link": (
        _tar(("a", tarfile.SYMTYPE, "b", b""), ("a/evil.jpg", tarfile.REGTYPE, "", _SECRET)),
        "also a folder",
    ),
}


@pytest.mark.parametrize("kind", _ZIPS)
def test_a_hostile_zip_is_refused_before_any_member_is_read(recording: Recording, kind: str) -> None:
    """The directory alone tells, and only the directory has been looked at."""
    content, reason = _ZIPS[kind]
    source = recording(content, label="hostile.zip")
    with pytest.raises(UnsafeArchiveError, match=reason) as caught:
        ZipTree(source)
    assert "hostile.zip" in str(caught.value)
    assert len(source.reads) == 1


@pytest.mark.parametrize("kind", _TARS)
def test_a_hostile_tar_is_refused_before_any_member_is_read(recording: Recording, tmp_path: Path, kind: str) -> None:
    """Only headers (and the first bytes, for what kind of file it is) have been looked at; nothing was written."""
    content, reason = _TARS[kind]
    source = recording(content, label="hostile.tar")
    with pytest.raises(UnsafeArchiveError, match=reason):
        TarTree(source, spool=tmp_path)
    secret_at = content.find(_SECRET)
    assert all(not offset <= secret_at < offset + length for offset, length in source.reads if offset)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "a/../../x", "C:\\x", ""])
def test_a_zip_with_a_link_out_is_refused(recording: Recording, target: str) -> None:
    """A zip keeps a link's target as content: that is read, the rest is not."""
    content = _zip(("a.jpg", _REG, _SECRET), ("link.jpg", _LNK, target.encode()))
    source = recording(content)
    with pytest.raises(UnsafeArchiveError, match="outside the archive"):
        ZipTree(source)
    assert len(source.reads) == 2


def test_a_link_with_an_endless_target_is_refused(recording: Recording) -> None:
    """No path is longer than 4,096 bytes."""
    with pytest.raises(UnsafeArchiveError, match="4,096"):
        ZipTree(recording(_zip(("link.jpg", _LNK, b"a" * 5000))))


def test_members_that_share_their_bytes_are_refused(recording: Recording) -> None:
    """The densest bombs point ten thousand entries of the directory at the same data."""
    content = bytearray(_zip(("a.jpg", _REG, b"x" * 100), ("b.jpg", _REG, b"y" * 100)))
    second = content.index(b"PK\1\2", content.index(b"PK\1\2") + 4)
    struct.pack_into("<L", content, second + 42, 0)
    with pytest.raises(UnsafeArchiveError, match="overlap"):
        ZipTree(recording(bytes(content)))


def test_a_zip_bomb_is_refused_by_its_promises(recording: Recording, zip_bytes: Callable[..., bytes]) -> None:
    """Number, amount and ratio stand in the directory."""
    content = zip_bytes({f"{number}.npy": bytes(1_000_000) for number in range(20)}, zipfile.ZIP_DEFLATED)
    for limits, reason in (
        (ArchiveLimits(max_members=19), "max_members"),
        (ArchiveLimits(max_total_bytes=19_000_000), "max_total_bytes"),
        (ArchiveLimits(max_ratio=100, ratio_from_bytes=10_000_000), "max_ratio"),
    ):
        source = recording(content)
        with pytest.raises(UnsafeArchiveError, match=reason):
            ZipTree(source, limits=limits)
        assert len(source.reads) == 1
    ZipTree(recording(content)).close()


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_tar_bomb_is_stopped_while_it_unpacks(
    recording: Recording, tar_bytes: Callable[..., bytes], tmp_path: Path, mode: str
) -> None:
    """A compressed tar promises nothing, so its unpacking is counted; what was written is gone again."""
    content = tar_bytes({"zeros.npy": bytes(20_000_000)}, mode)
    limits = ArchiveLimits(ratio_from_bytes=5_000_000, max_ratio=100)
    with pytest.raises(UnsafeArchiveError, match="max_ratio"):
        TarTree(recording(content), spool=tmp_path, limits=limits)
    assert list(tmp_path.iterdir()) == []

"""Archives that hypothesis makes and breaks: read as the standard library reads them, or refused with a typed error.

Each ends within seconds and without more memory than its limits allow, whatever its bytes say.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import resource
import stat
import tarfile
import time
import zipfile
from typing import TYPE_CHECKING

import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from colabstage.errors import ColabstageError
from colabstage.trees.names import ArchiveLimits, is_junk
from colabstage.trees.open import open_archive
from tests.trees.conftest import RecordingBytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

# As small as the archives here: what goes beyond is a bomb.
_LIMITS = ArchiveLimits(max_members=1000, max_total_bytes=8 << 20, max_ratio=200, ratio_from_bytes=1 << 20)
_SECONDS = 10.0
_MEMORY_KIB = 512 * 1024

_COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}

_part = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0:."), min_size=1, max_size=12)
_files = st.dictionaries(
    st.lists(_part, min_size=1, max_size=3).map(lambda parts: "/".join([*(f"d{part}" for part in parts), "f"])),
    st.binary(max_size=700),
    min_size=1,
    max_size=6,
)


def _tar(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1_700_000_000.5
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _zip(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _ours(content: bytes, spool: Path) -> dict[str, bytes] | ColabstageError:
    """Every file by name, or the typed error; in bounded time and memory."""
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: dict[str, bytes] | ColabstageError
    try:
        with open_archive(RecordingBytes(content, "made.bin"), spool=spool, limits=_LIMITS) as tree:
            found = {entry.name: tree.read(entry) for entry in tree.entries}
    except ColabstageError as error:
        found = error
    assert time.monotonic() - began < _SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < _MEMORY_KIB
    return found


def _oracle_of_tar(content: bytes) -> dict[str, bytes] | None:
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            members = [member for member in archive.getmembers() if not member.isdir()]
            found = {member.name: archive.extractfile(member) for member in members}
            return {name: file.read() for name, file in found.items() if file is not None and not is_junk(name)}
    except (tarfile.TarError, OSError, ValueError, KeyError, OverflowError):
        return None


def _oracle_of_zip(content: bytes) -> dict[str, bytes] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # As Info-ZIP has it: what is empty and has a folder's mode is one, whatever its name ends in.
            folders = [
                info.create_system in (3, 19) and stat.S_ISDIR(info.external_attr >> 16) and not info.file_size
                for info in archive.infolist()
            ]
            names = [
                info
                for info, folder in zip(archive.infolist(), folders, strict=True)
                if not folder and not info.is_dir() and not is_junk(info.filename)
            ]
            return {info.filename: archive.read(info) for info in names}
    except Exception:  # noqa: BLE001  # it raises whatever its damaged input leads to
        return None


@settings(max_examples=40)
@given(files=_files, compression=st.sampled_from(sorted(_COMPRESSIONS)), form=st.sampled_from([1, 2]))
def test_a_compressed_tar_holds_what_tarfile_finds(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], compression: str, form: int
) -> None:
    """In every compression."""
    plain = _tar(files, form)
    found = _ours(_COMPRESSIONS[compression](plain), tmp_path_factory.getbasetemp())
    assert found == _oracle_of_tar(plain) == files


@settings(max_examples=40)
@given(files=_files, method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
def test_a_zip_holds_what_zipfile_finds(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], method: int
) -> None:
    """Stored and deflated."""
    content = _zip(files, method)
    assert _ours(content, tmp_path_factory.getbasetemp()) == _oracle_of_zip(content) == files


_edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "cut", "insert", "repeat"]), st.floats(0, 1), st.binary(min_size=1, max_size=9)
    ),
    min_size=1,
    max_size=3,
)


def _edited(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """The same archive after some damage; where, as a fraction of its length."""
    for kind, where, data in edits:
        at = int(where * max(0, len(content) - 1))
        if kind == "flip":
            content = content[:at] + bytes([content[at] ^ (data[0] or 1)]) + content[at + 1 :] if content else content
        elif kind == "set":
            content = content[:at] + data + content[at + len(data) :]
        elif kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + data + content[at:]
        else:
            content = content[:at] + content[max(0, at - 512) :]
    return content


@settings(max_examples=200)
@given(files=_files, edits=_edits)
@example(files={"f": b"x"}, edits=[("set", 530 / 10239, b"30 mtime=1e999980")])
def test_a_broken_tar_is_read_as_tarfile_reads_it_or_refused(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], edits: list[tuple[str, float, bytes]]
) -> None:
    """Where it is read, the standard library finds the very same files, unless it stumbles itself."""
    content = _edited(_tar(files), edits)
    found = _ours(content, tmp_path_factory.getbasetemp())
    assert isinstance(found, ColabstageError) or _oracle_of_tar(content) in (found, None)


@settings(max_examples=200)
@given(files=_files, edits=_edits, method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
@example(files={"d/f": b""}, edits=[("set", 0.69, b"\0\0\0\x40")], method=zipfile.ZIP_STORED)
def test_a_broken_zip_is_read_as_zipfile_reads_it_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, bytes],
    edits: list[tuple[str, float, bytes]],
    method: int,
) -> None:
    """As for tars; and what is read is what was packed, because each member has a checksum."""
    content = _edited(_zip(files, method), edits)
    found = _ours(content, tmp_path_factory.getbasetemp())
    if isinstance(found, ColabstageError):
        return
    assert _oracle_of_zip(content) in (found, None)
    assert set(found.values()) <= set(files.values())


@settings(max_examples=100)
@given(files=_files, edits=_edits, compression=st.sampled_from(["gz", "bz2", "xz", "zst"]))
def test_a_broken_stream_unpacks_to_what_it_held_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, bytes],
    edits: list[tuple[str, float, bytes]],
    compression: str,
) -> None:
    """Nothing that a compressed tar did not hold is read out of one that was damaged."""
    found = _ours(_edited(_COMPRESSIONS[compression](_tar(files)), edits), tmp_path_factory.getbasetemp())
    assert isinstance(found, ColabstageError) or found == files

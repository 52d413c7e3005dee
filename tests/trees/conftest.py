"""Archives and folders for the tests of trees, and a source that writes down what is read of it."""

from __future__ import annotations

import io
import tarfile
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from colabstage.trees.listing import Tree


@dataclass
class RecordingBytes:
    """A `ByteSource` over bytes in memory that remembers every read as (offset, length)."""

    content: bytes
    label: str = "recorded.zip"
    reads: list[tuple[int, int]] = field(default_factory=list)
    closed: bool = False

    @property
    def size(self) -> int:
        return len(self.content)

    def pread(self, length: int, offset: int) -> bytes:
        self.reads.append((offset, length))
        return self.content[offset : offset + length]

    def close(self) -> None:
        self.closed = True


class ZipBytes(Protocol):
    def __call__(self, files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes: ...


class TarBytes(Protocol):
    def __call__(self, files: Mapping[str, bytes], mode: str = "w", *, form: int = tarfile.PAX_FORMAT) -> bytes: ...


@pytest.fixture
def recording() -> type[RecordingBytes]:
    """The class of sources that remember what was read."""
    return RecordingBytes


@pytest.fixture
def zip_bytes() -> ZipBytes:
    """A function that makes a zip of files given by name."""

    def make(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return buffer.getvalue()

    return make


@pytest.fixture
def tar_bytes() -> TarBytes:
    """A function that makes a tar of files given by name, compressed as `mode` says."""

    def make(files: Mapping[str, bytes], mode: str = "w", *, form: int = tarfile.PAX_FORMAT) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode, format=form) as archive:  # type: ignore[call-overload]
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                member.mtime = 1_700_000_000
                archive.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    return make


@pytest.fixture
def write_files() -> Callable[[Path, Mapping[str, bytes]], Path]:
    """A function that writes files given by name into a folder, and returns the folder."""

    def write(folder: Path, files: Mapping[str, bytes]) -> Path:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder

    return write


@pytest.fixture
def read_all() -> Callable[[Tree], dict[str, bytes]]:
    """A function that reads every file of a tree."""

    def read(tree: Tree) -> dict[str, bytes]:
        return {entry.name: tree.read(entry) for entry in tree.entries}

    return read

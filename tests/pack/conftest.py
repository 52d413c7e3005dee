"""Small real datasets in every container, a disk that is really small, and what h5py reads from a pack."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from tests.support.invariants import check_afterwards

ImageBytes = Callable[..., bytes]
MakeImages = Callable[..., Path]
PackFolder = Callable[[Path, Path], Path]
ReadPack = Callable[[Path], dict[str, Any]]


@pytest.fixture(autouse=True)
def invariants(tmp_path: Path) -> Iterator[None]:
    """What holds after every call holds at the end of every test."""
    yield
    check_afterwards(tmp_path)


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mounts and marker files below the test's folder count."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))


@pytest.fixture
def image_bytes() -> ImageBytes:
    """Make an image file that no other number gives."""

    def make(number: int, *, kind: str = "PNG", size: tuple[int, int] = (16, 20), mode: str = "RGB") -> bytes:
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(buffer, kind)
        return buffer.getvalue()

    return make


@pytest.fixture
def make_images(image_bytes: ImageBytes) -> MakeImages:
    """Write `count` images into folders of classes, JPEG and PNG in turn."""

    def make(folder: Path, count: int, *, classes: int = 3, **how: Any) -> Path:
        for number in range(count):
            kind = ("JPEG", "PNG")[number // classes % 2]
            suffix = {"JPEG": "jpg", "PNG": "png"}[kind]
            place = folder / f"class{number % classes}" / f"{number:04d}.{suffix}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(image_bytes(number, kind=kind, **how))
        return folder

    return make


@pytest.fixture
def photos(tmp_path: Path, make_images: MakeImages) -> Path:
    """Thirty images of three classes."""
    return make_images(tmp_path / "photos", 30)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def make_zip() -> PackFolder:
    """Put a folder's files into a zip."""

    def make(folder: Path, target: Path) -> Path:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in _files(folder):
                archive.write(path, path.relative_to(folder))
        return target

    return make


@pytest.fixture
def make_tar() -> PackFolder:
    """Put a folder's files into a tar, compressed as its name says."""

    def make(folder: Path, target: Path) -> Path:
        with tarfile.open(target, "w:gz" if target.suffix == ".gz" else "w") as archive:
            for path in _files(folder):
                archive.add(path, path.relative_to(folder))
        return target

    return make


@pytest.fixture
def read_pack() -> ReadPack:
    """All that plain h5py reads from a pack: datasets by path, keys and classes as str."""

    def read(path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def visit(name: str, node: Any) -> None:
            if isinstance(node, h5py.Dataset):
                value = node[()]
                found[name] = [text.decode() for text in value.tolist()] if value.dtype.kind == "S" else value

        with h5py.File(path) as file:
            file.visititems(visit)
        return found

    return read


def leftovers(folder: Path) -> list[str]:
    """Names of temporary files and folders in a folder."""
    return sorted(
        path.name for path in folder.iterdir() if path.name.startswith(".colabstage") and path.suffix != ".receipt"
    )


@pytest.fixture(name="leftovers")
def leftovers_fixture() -> Callable[[Path], list[str]]:
    """List the temporary files and folders in a folder."""
    return leftovers

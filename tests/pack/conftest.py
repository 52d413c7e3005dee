"""A small dataset, what h5py reads from a pack, and invariants checked after every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.support.images import in_classes, make_tree
from tests.support.invariants import check_afterwards

ReadPack = Callable[[Path], dict[str, Any]]


@pytest.fixture(autouse=True)
def invariants(tmp_path: Path) -> Iterator[None]:
    """The invariants of every call are checked at the end of every test."""
    yield
    check_afterwards(tmp_path)


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mounts and marker files below the test's folder count."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twenty PNGs and ten JPEGs of two classes."""
    return make_tree(tmp_path / "photos", {**in_classes(20), **in_classes(10, first=20, suffix=".jpg")})


@pytest.fixture
def read_pack() -> ReadPack:
    """Everything that plain h5py reads from a pack: datasets by path, keys and classes as str."""

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


@pytest.fixture
def leftovers() -> Callable[[Path], list[str]]:
    """List the temporary files and folders in a folder."""
    return lambda folder: sorted(
        path.name for path in folder.iterdir() if path.name.startswith(".colabstage") and path.suffix != ".receipt"
    )

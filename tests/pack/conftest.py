"""A small dataset, what h5py reads from a pack, and invariants checked after every test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.stage.conftest import invariants, own_machine  # noqa: F401 - fixtures
from tests.support.images import in_classes, make_tree

ReadPack = Callable[[Path], dict[str, Any]]


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

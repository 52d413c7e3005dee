"""Folders for many files."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import TargetNotWritableError
from colabstage.sources.to_folder import make_folders

if TYPE_CHECKING:
    from pathlib import Path


def test_every_folder_is_made_and_no_mark_stays(tmp_path: Path) -> None:
    """At any depth, those that are there already included; no attribute is left on them."""
    (tmp_path / "a" / "1").mkdir(parents=True)
    names = [f"{top}/{inner}/x" for top in "abcdef" for inner in range(6)] + ["top"]
    make_folders(tmp_path, names)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert made == {name.rpartition("/")[0] for name in names if "/" in name} | set("abcdef")
    shown = subprocess.run(["lsattr", "-d", str(tmp_path), str(tmp_path / "a")], check=False, capture_output=True)
    if shown.returncode == 0:
        assert not any(b"T" in line.split()[0] for line in shown.stdout.splitlines())


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """A folder below a file cannot be made."""
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(TargetNotWritableError, match="a/b"):
        make_folders(tmp_path, ["a/b/c"])

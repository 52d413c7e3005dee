"""The README's code runs as it stands."""

from __future__ import annotations

import shlex
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from colabstage.simulate.http_server import WebServer
from tests.pages import README, blocks
from tests.pictures import write_photos

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README's examples speak of; `/content` lies in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive, zipfile.ZipFile("part-2.zip", "w") as second:
        for number, path in enumerate(write_photos(tmp_path / "photos")):
            (archive if number % 4 < 2 else second).write(path, path.relative_to(tmp_path / "photos"))
    (tmp_path / "model.pt").write_bytes(b"weights")
    (tmp_path / "content" / "drive" / "MyDrive" / "checkpoints").mkdir(parents=True)
    return tmp_path


@pytest.mark.torch
def test_the_python_examples_run_in_order(here: Path) -> None:
    """Each block after the first, which is for Colab alone, runs with the names that those before it left."""
    page = blocks(README, "python")
    assert [bool(block.why_not_run) for block in page] == [True, False, False, False, False]
    names: dict[str, object] = {}
    with WebServer({"photos.zip": here / "photos.zip", "part-1.zip": here / "photos.zip"}) as server:
        places = {"/content/": f"{here}/content/", "https://example.org/": server.url("")}
        for block in page:
            block.run(names, places)
    batches = names["batches"]
    with batches:  # type: ignore[attr-defined]
        x, y = next(iter(batches))  # type: ignore[call-overload]
    assert tuple(x.shape[1:]) == (3, 64, 64)
    assert len(x) == len(y)
    assert (here / "content/drive/MyDrive/checkpoints/model.pt").read_bytes() == b"weights"


def test_the_commands_run_in_order(here: Path) -> None:
    """Every `colabstage` line ends well, in a process of its own; `make` is what runs this test."""
    lines = [line for block in blocks(README, "bash") for line in block.code.splitlines()]
    commands = [line for line in lines if line.startswith("colabstage ")]
    assert len(commands) == 2
    assert {line.split()[0] for line in lines if line not in commands} == {"make"}
    for line in commands:
        command = [sys.executable, "-m", "colabstage", *shlex.split(line)[1:]]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

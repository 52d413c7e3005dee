"""The README's code runs as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from colabstage.simulate.http_server import WebServer

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    """The README's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README's examples speak of; `/content` lies in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))
    for number in range(40):
        place = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place)
    (tmp_path / "model.pt").write_bytes(b"weights")
    (tmp_path / "content" / "drive" / "MyDrive" / "checkpoints").mkdir(parents=True)
    return tmp_path


@pytest.mark.torch
def test_the_python_examples_run_in_order(here: Path) -> None:
    """Each block after the first, which is for Colab alone, runs with the names that those before it left."""
    colab, *rest = blocks("python")
    compile(colab.replace("%pip", "# %pip"), "README.md", "exec")
    assert len(rest) == 8
    with zipfile.ZipFile(here / "photos.zip", "w") as archive, zipfile.ZipFile(here / "part-2.zip", "w") as second:
        for number, path in enumerate(sorted((here / "photos").rglob("*.jpg"))):
            (archive if number % 2 else second).write(path, path.relative_to(here / "photos"))
    served = {"photos.zip": here / "photos.zip", "part-1.zip": here / "photos.zip"}
    names: dict[str, object] = {}
    with WebServer(served) as server:
        for block in rest:
            there = block.replace("/content/", f"{here}/content/").replace("https://example.org/", server.url(""))
            exec(compile(there, "README.md", "exec"), names)
    batches = names["batches"]
    with batches:  # type: ignore[attr-defined]
        x, y = next(iter(batches))  # type: ignore[call-overload]
    assert tuple(x.shape[1:]) == (3, 64, 64)
    assert len(list((here / "downloads" / "photos").rglob("*.jpg"))) == 20
    assert len(x) == len(y)
    assert (here / "content/drive/MyDrive/checkpoints/model.pt").read_bytes() == b"weights"


def test_the_commands_run_in_order(here: Path) -> None:
    """Every line of the command-line section ends well."""
    subprocess.run([sys.executable, "-m", "zipfile", "-c", "photos.zip", "photos/"], check=True)
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("colabstage ")]
    assert len(lines) == 13
    for line in lines:
        command = [sys.executable, "-m", "colabstage", *shlex.split(line)[1:]]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

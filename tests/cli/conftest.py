"""The command line as users see it, on a machine without a mounted Drive: run here, or as a process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.diagnose.nvidia_smi import no_gpu, smi  # noqa: F401 - fixtures
from tests.support.command import run_command

COMMAND = (sys.executable, "-m", "colabstage")
Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def practice_environment(root: Path) -> dict[str, str]:
    """The environment of a process that sees no Drive but those mounted below `root`."""
    return {**os.environ, "COLABSTAGE_SYSTEM_ROOT": str(root), "COLUMNS": "100"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `colabstage ARGUMENTS…` in the test's folder and in this process, and returns its outcome."""

    def run_it(*arguments: str | Path) -> Done:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in practice_environment(tmp_path).items():
                patch.setenv(name, value)
            return run_command(*map(str, arguments))

    return run_it


@pytest.fixture
def start(tmp_path: Path) -> Run:
    """Like `run`, but in a new process, as a shell would."""

    def start_it(*arguments: str | Path) -> Done:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=practice_environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return start_it


def reason(done: Done, code: int) -> str:
    """Return the only line on stderr of a command that ended with `code`, without its prefix."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("colabstage: ")
    return lines[0].removeprefix("colabstage: ")


def result(done: Done) -> Any:
    """Return the JSON on stdout of a command that succeeded and printed nothing else than how far slow steps were."""
    said = [line for line in done.stderr.splitlines() if not line.startswith(("▸ ", "✓ "))]
    assert (done.returncode, said) == (0, [])
    return json.loads(done.stdout)


def write_images(folder: Path, *, each: int, side: int = 12) -> Path:
    """A folder of noisy PNGs, `each` of class cat and of class dog."""
    random = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (folder / kind).mkdir(parents=True)
        for number in range(each):
            pixels = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{number:03}.png")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """The folder `photos` with ten images in two classes."""
    return write_images(tmp_path / "photos", each=5)

"""Every notebook runs from top to bottom in a kernel of its own: on a practice Colab, and on a plain computer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colabstage.simulate.drive import fuse_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
# What a person is promised is under a minute; the rest is for a busy machine.
CELL_TIMEOUT_S = 80
NOTEBOOK_TIMEOUT_S = 110
# What a notebook may need besides torch, and how to get it.
LARGE = {
    "keras": "pip install --group keras",
    "tensorflow": "pip install --group keras",
    "dask": "pip install --group test",
}
# nbclient in a process of its own, because its event loop stays open as long as the process lives.
RUN = "from nbclient.cli import NbClientApp; NbClientApp.launch_instance()"

# What the kernel does before the notebook's first cell.
MACHINES = {
    "practice Colab": """
import atexit, contextlib
from pathlib import Path
from colabstage.simulate.colab import simulated_colab
from colabstage.simulate.drive import SimulatedDrive

stack = contextlib.ExitStack()
atexit.register(stack.close)
drive = stack.enter_context(SimulatedDrive(Path({home!r}) / "account"))
stack.enter_context(simulated_colab(Path({home!r}) / "machine", drive=drive))
""",
    # Neither google.colab nor a Drive: Python's own way to say that a module cannot be imported.
    "plain computer": """
import sys

sys.modules["mfusepy"] = sys.modules["google.colab"] = None
""",
}


def environment(home: Path, temporary: Path, fonts: Path, machine: str) -> dict[str, str]:
    """The kernel's environment: a home of its own, nothing from any network, one thread a library."""
    startup = home / "ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "00-machine.py").write_text(MACHINES[machine].format(home=str(home)), encoding="utf-8")
    folders = {"HOME": home, "IPYTHONDIR": home / "ipython", "TMPDIR": temporary, "XDG_CACHE_HOME": home / "cache"}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    return {
        **os.environ,
        **{name: str(folder) for name, folder in folders.items()},
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": "torch",
        "MPLCONFIGDIR": str(fonts),
    }


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder in whose subfolders a socket's path, of 107 bytes at the most, has room."""
    with tempfile.TemporaryDirectory(prefix="nb-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where matplotlib keeps its list of fonts, which takes it seconds to make: one for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    place = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "matplotlib"
    place.mkdir(exist_ok=True)
    return place


@pytest.mark.torch
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, machine: str, tmp_path: Path, short_path: Path, fonts: Path) -> None:
    """No cell fails, the last one's assertion included, and nothing that was practised with stays behind."""
    if not find_spec("nbclient"):
        pytest.skip("needs nbclient: pip install --group notebooks")
    text = path.read_text(encoding="utf-8")
    for package, remedy in LARGE.items():
        if re.search(rf'"(import|from) {package}\b', text) and not find_spec(package):
            pytest.skip(f"needs {package}: {remedy}")
    # Not the mark `fuse`, which is for what must run alone: here nothing measures time.
    if machine == "practice Colab" and (problem := fuse_problem()):
        pytest.skip(problem)
    notebook = Path(shutil.copy(path, tmp_path))
    variables = environment(tmp_path / "home", short_path, fonts, machine)
    ran = subprocess.run(
        [sys.executable, "-c", RUN, f"--timeout={CELL_TIMEOUT_S}", notebook],
        cwd=tmp_path,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=NOTEBOOK_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    assert list(short_path.glob("colabstage-practice-*")) == []


def test_there_are_notebooks() -> None:
    """The folder was found."""
    assert NOTEBOOKS

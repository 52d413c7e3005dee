"""Every notebook runs from top to bottom in a kernel of its own: on a practice Colab, and on a plain computer.

On one of the two in `make test`, with few epochs; as it is, on the other, in `make test-all`. The kernels are forked
from a process that has imported torch or TensorFlow, Jupyter and the like, but nothing of colabstage.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from simulated_drive.drive import fuse_problem
from tests.notebooks.checks import CHECKS
from tests.nurseries import ONE_THREAD, Nurseries
from tests.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# What a person is promised is under a minute; the rest is for a busy machine.
CELL_TIMEOUT_S = 80
NOTEBOOK_TIMEOUT_S = 110
# What a notebook may need besides torch, and how to get it.
LARGE = {
    "keras": "pip install --group tensorflow",
    "tensorflow": "pip install --group tensorflow",
    "dask": "pip install --group test",
}
# Values of the notebooks' forms that make them quick.
FEW = {"EPOCHS": 2, "HEIGHT": 48, "WIDTH": 64}
# What the kernel does before the notebook's first cell.
MACHINES = {
    "practice Colab": """
import atexit, contextlib, sys
from pathlib import Path

sys.path.append({root!r})
from tests.support.colab import simulated_colab
from simulated_drive.drive import SimulatedDrive

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


def environment(home: Path, temporary: Path, fonts: Path, kernels: Path, machine: str) -> dict[str, str]:
    """The kernel's environment: a home of its own, nothing from any network, one thread a library."""
    startup = home / "ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "00-machine.py").write_text(MACHINES[machine].format(home=str(home), root=str(ROOT)), encoding="utf-8")
    folders = {"HOME": home, "IPYTHONDIR": home / "ipython", "TMPDIR": temporary, "XDG_CACHE_HOME": home / "cache"}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    return {
        **os.environ,
        **{name: str(folder) for name, folder in folders.items()},
        **ONE_THREAD,
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "JUPYTER_PATH": str(kernels),
        "KERAS_BACKEND": "torch",
        "MPLCONFIGDIR": str(fonts),
    }


def with_checks(path: Path, folder: Path, *, few: bool) -> Path:
    """A copy of the notebook with one more cell, which looks at what it has come to.

    Nothing is installed: the folder above is no checkout. `few`: two epochs on small images pass the same checks.
    """
    text = re.sub(r'"%pip [^"]*"', '""', path.read_text(encoding="utf-8"))
    for name, value in FEW.items() if few else ():
        text = re.sub(rf'"{name} = \d+ ', f'"{name} = {value} ', text)
    notebook = json.loads(text)
    check: dict[str, Any] = {"cell_type": "code", "id": "check", "metadata": {}, "execution_count": None, "outputs": []}
    notebook["cells"].append({**check, "source": CHECKS[path.stem]})
    copy = folder / path.name
    copy.write_text(json.dumps(notebook), encoding="utf-8")
    return copy


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder in whose subfolders a socket's path, of 107 bytes at the most, has room."""
    with tempfile.TemporaryDirectory(prefix="nb-") as folder:
        yield Path(folder)


# Where they show more at the first look: these make their own data, or publish nothing.
PLAIN_FIRST = {"own_format", "many_machines", "keras", "tf_data"}


def both_machines(path: Path) -> list[object]:
    """A notebook on each machine; the one that tells more is in every run."""
    few, whole = sorted(MACHINES, reverse=path.stem not in PLAIN_FIRST)
    return [
        pytest.param(path, few, True, id=f"{path.stem}-{few}"),
        pytest.param(path, whole, False, id=f"{path.stem}-{whole}", marks=pytest.mark.long),
    ]


@pytest.mark.torch
@pytest.mark.timeout(240)  # the first may have to wait for its nursery
@pytest.mark.parametrize(("path", "machine", "few"), [one for path in NOTEBOOKS for one in both_machines(path)])
def test_runs(path: Path, machine: str, few: bool, tmp_path: Path, short_path: Path, nurseries: Nurseries) -> None:
    """No cell fails, nor does the one with assertions that is added; nothing that was practised with stays behind."""
    text = path.read_text(encoding="utf-8")
    if not find_spec("nbclient"):
        pytest.skip("needs nbclient: pip install -c constraints.txt nbclient (or: make .venv/.tested)")
    for package, remedy in LARGE.items():
        if re.search(rf'"(import|from) {package}\b', text) and not find_spec(package):
            pytest.skip(f"needs {package}: {remedy}")
    if machine == "practice Colab" and (problem := fuse_problem()):
        pytest.skip(problem)
    notebook = with_checks(path, tmp_path, few=few)
    shutil.copy(ROOT / "notebooks/practice.py", tmp_path)
    kind = "tensorflow" if re.search(r'"(import|from) tensorflow\b', text) else "torch"
    variables = environment(tmp_path / "home", short_path, nurseries.fonts, nurseries.kernel(kind), machine)
    ran = subprocess.run(
        nurseries.command(kind, "nbclient", f"--timeout={CELL_TIMEOUT_S}", notebook),
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

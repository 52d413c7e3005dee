"""Peers that need an environment of their own, and how to build it.

FFCV has wheels for no platform, is built from its source package, and pins numpy and numba below what colabstage uses;
its dependencies are therefore named here, and it is built without them. On Debian or Ubuntu:

    apt-get install libopencv-dev libturbojpeg0-dev pkg-config g++ python3-dev
    python3.11 -m venv ~/.cache/colabstage-peers
    cd ~/.cache/colabstage-peers
    bin/pip install torch torchvision  # of whichever build; without a GPU a CPU build is smaller
    bin/pip install "numpy<2.3" h5py pillow webdataset datasets litdata mosaicml-streaming lmdb pylance \\
        "setuptools<81" wheel opencv-python-headless numba pandas tqdm assertpy fastargs terminaltables
    bin/pip download --no-deps --no-binary :all: --no-build-isolation ffcv && tar xzf ffcv-*.tar.gz
    bin/pip install --no-build-isolation --no-deps ./ffcv-*/

torch should be the release that colabstage is measured with. `COLABSTAGE_PEERS` names another place for the
environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

PLACE = Path(os.environ.get("COLABSTAGE_PEERS", Path.home() / ".cache" / "colabstage-peers"))
PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "numba",
    "h5py",
    "pillow",
    "ffcv",
    "webdataset",
    "litdata",
    "mosaicml-streaming",
    "lmdb",
    "datasets",
    "pyarrow",
    "pylance",
)
PYTHON = PLACE / "bin" / "python"
_ROOT = Path(__file__).parent.parent
_ASK_S = 600.0
_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def why_no_environment() -> str | None:
    """What to do when there is no environment; `None` when there is one."""
    if PYTHON.exists():
        return None
    return f"there is no environment in {PLACE}; benchmarks/_peers.py says how to build it"


def why_missing(package: str) -> str | None:
    """Why a package cannot be measured here, and what to do; `None` where it can."""
    problem = why_no_environment()
    if problem is not None:
        return f"{package} is not measured: {problem}"
    done = subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == 0:
        return None
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"{package} is not measured: {reason} (in {PLACE}; benchmarks/_peers.py says how to build it)"


def versions() -> dict[str, str]:
    """The versions of what is installed in the peers' environment; empty where there is none."""
    if why_no_environment() is not None:
        return {}
    done = subprocess.run([PYTHON, "-c", _VERSIONS, *PACKAGES], capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, str] = json.loads(done.stdout)
    return found


class Peer:
    """A script of this folder that stays and answers: one line of JSON for each line asked.

    Args:
        script: run as a module, by the peers' Python.
        arguments: the script's.
        python: another Python than the peers'.
    """

    def __init__(self, script: Path, *arguments: str | Path, python: str | Path = PYTHON) -> None:
        self._process = subprocess.Popen(
            [python, "-u", "-m", f"benchmarks.{script.stem}", *arguments],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: str) -> Any:
        """Send a line, wait for the answer.

        Raises:
            RuntimeError: the peer ended, or did not answer within ten minutes and was ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watch = threading.Timer(_ASK_S, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            msg = f"The peer ended with code {self._process.wait(_ASK_S)} when it was asked for {question}."
            raise RuntimeError(msg)
        return json.loads(line)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_ASK_S)

"""Peers that need an environment of their own, and how to build it.

FFCV has wheels for no platform, is built from its source package, and pins numpy and numba below what colabstage uses.
On Debian or Ubuntu:

    apt-get install libopencv-dev libturbojpeg0-dev pkg-config g++ python3-dev
    python -m venv ~/.cache/colabstage-peers
    ~/.cache/colabstage-peers/bin/pip install "numpy<2" "setuptools<70" wheel torch torchvision
    ~/.cache/colabstage-peers/bin/pip install --no-build-isolation "numpy<2" ffcv

`COLABSTAGE_PEERS` names another place for the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

PLACE = Path(os.environ.get("COLABSTAGE_PEERS", Path.home() / ".cache" / "colabstage-peers"))
_PYTHON = PLACE / "bin" / "python"
_ASK_S = 600.0


def why_missing(package: str) -> str | None:
    """Why a package cannot be measured here, and what to do; `None` where it can."""
    if not _PYTHON.exists():
        return (
            f"{package} is not measured: there is no environment in {PLACE}; benchmarks/_peers.py says how to build it"
        )
    done = subprocess.run(
        [_PYTHON, "-c", f"import {package}"], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode == 0:
        return None
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"{package} is not measured: {reason} (in {PLACE}; benchmarks/_peers.py says how to build it)"


class Peer:
    """A script in the peers' environment that stays and answers: one line of JSON for each line asked."""

    def __init__(self, script: Path, *arguments: str | Path) -> None:
        self._process = subprocess.Popen(
            [_PYTHON, "-u", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, question: str) -> Any:
        """Send a line, wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
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

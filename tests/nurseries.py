"""The processes that children with frameworks are forked from: one of a kind for all test processes of a run."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

NURSERY = Path(__file__).with_name("nursery.py")
# For the very first import of TensorFlow, with nothing compiled, on a busy machine.
START_TIMEOUT_S = 200
SCRIPT_TIMEOUT_S = 100
# So that tests that run side by side do not compete for the cores, and forked processes have no threads.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Nurseries:
    """Starts a nursery at its first use, and runs processes forked from it."""

    def __init__(self, shared: Path, owner: int) -> None:
        """`shared`: a folder that all test processes of the run use; `owner`: the process whose end ends the run."""
        self._shared = shared
        self._owner = owner

    @property
    def fonts(self) -> Path:
        """Where matplotlib keeps its list of fonts, which takes seconds to build."""
        place = self._shared / "matplotlib"
        place.mkdir(exist_ok=True)
        return place

    def address(self, kind: str) -> str:
        """Return a nursery's socket; a second caller waits while it starts."""
        note = self._shared / f"nursery-{kind}"
        with FileLock(f"{note}.lock", timeout=START_TIMEOUT_S):
            if not note.exists():
                # A socket's path has at most 107 bytes; the nursery removes the folder.
                address = f"{tempfile.mkdtemp(prefix='nursery-')}/socket"
                own = {
                    "KERAS_BACKEND": kind,
                    "KERAS_HOME": str(self._shared),
                    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
                    "MPLCONFIGDIR": str(self.fonts),
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                }
                subprocess.run(
                    [sys.executable, "-P", NURSERY, kind, address, str(self._owner)],
                    env={**os.environ, **ONE_THREAD, **own},
                    stdin=subprocess.DEVNULL,
                    timeout=START_TIMEOUT_S,
                    check=True,
                )
                note.write_text(address, encoding="ascii")
            return note.read_text(encoding="ascii")

    def command(self, kind: str, role: str, *arguments: str | Path) -> list[str]:
        """Return the command that runs `role` in a forked process, and ends as that does."""
        # -S and -E, because the messenger only waits.
        return [sys.executable, "-S", "-E", *map(str, (NURSERY, "ask", self.address(kind), role, *arguments))]

    def kernel(self, kind: str) -> Path:
        """Return a folder for JUPYTER_PATH whose only kernel is forked from a nursery."""
        folder = self._shared / f"kernels-{kind}"
        start = self.command(kind, "kernel", "-f", "{connection_file}")
        with FileLock(f"{folder}.lock", timeout=10):
            place = folder / "kernels/python3"
            if not place.exists():
                place.mkdir(parents=True)
                spec = {"argv": start, "display_name": "Python 3", "language": "python"}
                (place / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        return folder

    def run_script(
        self, kind: str, arguments: Sequence[str | Path], environment: dict[str, str], folder: Path | None = None
    ) -> str:
        """Run a script with its arguments in `folder`; return the last line it printed."""
        done = subprocess.run(
            self.command(kind, "script", *arguments),
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SCRIPT_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.splitlines()[-1]

    def run_together(self, kind: str, calls: Iterable[Sequence[str | Path]]) -> list[tuple[int, str]]:
        """Run scripts with their arguments beside each other; return each one's exit code and output."""
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        running = [subprocess.Popen(self.command(kind, "script", *call), text=True, **streams) for call in calls]
        try:
            said = [process.communicate(timeout=SCRIPT_TIMEOUT_S)[0] for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait(30)
        return [(process.returncode, text) for process, text in zip(running, said, strict=True)]

"""Stand-ins for NVIDIA's driver, which cannot be here: the program nvidia-smi, and the package that calls its library.

The program is a real one on the PATH, and prints what a test wants in the words of the real one: on a T4, on an A100
cut into slices, on two GPUs, under WSL, in a container. The package is a module of the same name with the few functions
that are called.
"""

import sys
from pathlib import Path

import pytest

T4 = "0, GPU-a6b0f3d2-4c4b-43f2-9d60-0c3a2f9a61b7, Tesla T4, 37, 1024, 15360, 28.31\n"
IDLE_T4 = "0, GPU-a6b0f3d2-4c4b-43f2-9d60-0c3a2f9a61b7, Tesla T4, 0, 3, 15360, 9.12\n"
SLICED = "0, GPU-4e3d1c0a-8a33-e5b1-2f0e-6b5f3e1d9c77, NVIDIA A100-SXM4-40GB, [N/A], 19968, 40960, 67.31\n"
TWO = (
    "1, GPU-22222222-0000-0000-0000-000000000000, NVIDIA GeForce RTX 3090, 0, 12, 24576, 21.05\n"
    "0, GPU-11111111-0000-0000-0000-000000000000, NVIDIA GeForce RTX 3090, 98, 20000, 24576, 341.70\n"
)
WSL = "0, GPU-33333333-0000-0000-0000-000000000000, NVIDIA GeForce RTX 3060, 5, 900, 12288, [N/A]\n"
CONTAINER = (
    "0, GPU-44444444-0000-0000-0000-000000000000, NVIDIA L4, [Unknown Error], [Insufficient Permissions], 23034, "
    "[Not Supported]\n"
)
T4_PROCESSES = "GPU-a6b0f3d2-4c4b-43f2-9d60-0c3a2f9a61b7, 4242, 1021\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)

_SCRIPT = """#!/bin/sh
here=$(dirname "$0")
echo "$1" >> "$here/asked"
left=$(cat "$here/answers")
if [ "$left" = 0 ]; then
    exec sleep 60
fi
if [ "$left" -gt 0 ]; then
    echo $((left - 1)) > "$here/answers"
fi
case "$1" in
    --query-gpu=*) cat "$here/gpus" ;;
    --query-compute-apps=*) cat "$here/processes" ;;
esac
exit "$(cat "$here/code")"
"""


class FakeSmi:
    """One on the PATH. Its output may be changed while it is in use."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "nvidia-smi"
        program.write_text(_SCRIPT, encoding="ascii")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        self.answer(T4, T4_PROCESSES)

    def answer(self, gpus: str, processes: str = "", *, code: int = 0, answers: int = -1) -> None:
        """Print these from now on and exit with `code`; after `answers` runs, hang."""
        for name, text in {"gpus": gpus, "processes": processes, "code": str(code), "answers": str(answers)}.items():
            # Atomically, because the program may be reading.
            (self.folder / f"{name}.new").write_text(text, encoding="utf-8")
            (self.folder / f"{name}.new").replace(self.folder / name)

    @property
    def questions(self) -> list[str]:
        """The queries it got, in order."""
        asked = self.folder / "asked"
        return asked.read_text(encoding="utf-8").splitlines() if asked.exists() else []


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    """nvidia-smi on the PATH of a machine with one T4. On a machine with a GPU, it replaces the real one."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return FakeSmi(tmp_path / "driver", monkeypatch)


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any NVIDIA software."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))


_PACKAGE = """
class NVMLError(Exception):
    pass

class _Pair:
    def __init__(self, **values):
        vars(self).update(values)

opened = 0
broken = False

def nvmlInit():
    global opened
    if broken:
        raise NVMLError("Driver Not Loaded")
    opened += 1

def nvmlShutdown():
    global opened
    opened -= 1

def nvmlDeviceGetCount():
    return 2

def nvmlDeviceGetHandleByIndex(index):
    return index

def nvmlDeviceGetUtilizationRates(device):
    if device == 1:
        raise NVMLError("Not Supported")
    return _Pair(gpu=37, memory=12)

def nvmlDeviceGetMemoryInfo(device):
    return _Pair(total=16 << 30, used=3 << 30, free=13 << 30)

def nvmlDeviceGetPowerUsage(device):
    return 28310

def nvmlDeviceGetComputeRunningProcesses(device):
    return [_Pair(pid=4242, usedGpuMemory=1 << 30), _Pair(pid=4243, usedGpuMemory=None)]

def nvmlDeviceGetName(device):
    return b"Tesla T4"  # as versions before 12 gave it
"""


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package nvidia-ml-py of a machine with two GPUs, the second one cut into slices."""
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    (tmp_path / "pynvml.py").write_text(_PACKAGE, encoding="ascii")
    monkeypatch.syspath_prepend(tmp_path)

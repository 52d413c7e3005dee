"""GPUs as the driver reports them, and `GpuMonitor` in the background, whose thread ends in every case."""

import json
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from colabstage import GpuMonitor, doctor
from colabstage.errors import OptionError
from tests.diagnose.nvidia_smi import CONTAINER, NO_DRIVER, SLICED, T4, T4_PROCESSES, TWO, WSL, FakeSmi
from tests.nurseries import Nurseries
from tests.support.steps import wait_until

GB, MIB = 1_000_000_000, 1 << 20
IDLE: dict[str, Any] = {
    "index": 0,
    "name": "Tesla T4",
    "utilisation": 0.0,
    "memory_used_bytes": GB,
    "memory_total_bytes": 16 * GB,
    "power_w": 30.0,
    "processes": (),
}


pytestmark = pytest.mark.usefixtures("machine")


def asked(*, timeout_s: float = 10.0) -> Any:
    """What `doctor` finds out about the GPUs."""
    return doctor(timeout_s=timeout_s).facts


def used_by(gpu: Any) -> list[tuple[int, int | None]]:
    """The processes on a GPU, with their memory."""
    return [(process.pid, process.memory_bytes) for process in gpu.processes]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (T4, {"name": "Tesla T4", "utilisation": 0.37, "memory_used_bytes": 1024 * MIB, "power_w": 28.31}),
        (f"Warning: persistence mode\n{T4}0, GPU-1, T4\n", {"memory_total_bytes": 15360 * MIB, "power_w": 28.31}),
        (SLICED, {"memory_used_bytes": 19968 * MIB, "power_w": 67.31, "utilisation": None}),
        (WSL, {"utilisation": 0.05, "memory_used_bytes": 900 * MIB, "power_w": None}),
        (CONTAINER, {"memory_used_bytes": None, "power_w": None, "utilisation": None}),
    ],
)
def test_the_program_is_read(smi: FakeSmi, text: str, known: dict[str, Any]) -> None:
    """Between warnings; what the driver does not report is `None`."""
    smi.answer(text)
    (one,) = asked().gpus
    assert {name: getattr(one, name) for name in known} == known


def test_processes_go_to_their_gpu(smi: FakeSmi) -> None:
    """By index, whatever the order; hidden ones are left out, and they are listed once in many samples."""
    processes = (
        "GPU-11111111-0000-0000-0000-000000000000, 7, 19000\n"
        "GPU-22222222-0000-0000-0000-000000000000, 8, [N/A]\n"
        "[Insufficient Permissions], [Insufficient Permissions], [N/A]\n"
    )
    smi.answer(TWO, processes)
    first, second = asked().gpus
    assert [(one.index, one.utilisation) for one in (first, second)] == [(0, 0.98), (1, 0.0)]
    assert (used_by(first), used_by(second)) == ([(7, 19000 * MIB)], [(8, None)])
    with GpuMonitor(0.02) as monitor:
        wait_until(lambda: len(monitor.samples) >= 3)
    assert [[used_by(gpu) != [] for gpu in sample.gpus] for sample in monitor.samples[:2]] == [[True] * 2, [False] * 2]
    assert sum("compute-apps" in question for question in smi.questions) == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"gpus": NO_DRIVER, "code": 9}, "couldn't communicate with the NVIDIA driver"),
        ({"gpus": "No devices were found\n"}, "lists none"),
        ({"gpus": T4, "answers": 0}, "timed out after 0.3 seconds"),
    ],
)
def test_a_driver_without_gpus_says_why(smi: FakeSmi, answer: dict[str, Any], said: str) -> None:
    """With the program's message, or that it did not respond in time."""
    smi.answer(**answer)
    began = time.monotonic()
    found = asked(timeout_s=0.3 if "answers" in answer else 10.0)
    assert (found.gpus, said in found.gpu_problem) == ((), True)
    assert time.monotonic() - began < 9.0


def test_a_program_that_cannot_run_and_none_at_all(smi: FakeSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation is told from a missing GPU."""
    (smi.folder / "nvidia-smi").write_text("#!/no/such/shell\n", encoding="ascii")
    assert "Install its driver" in asked().gpu_problem
    monkeypatch.setenv("PATH", str(smi.folder.parent))
    assert "nvidia-ml-py" in asked().gpu_problem


def test_the_library_is_asked_first(nvml: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that one GPU does not support is `None` for that one alone; without a driver the program is used, if
    any."""
    first, second = asked().gpus
    assert (first.name, first.utilisation, first.power_w) == ("Tesla T4", 0.37, 28.31)
    assert used_by(first) == [(4242, 1 << 30), (4243, None)]
    assert (second.utilisation, second.memory_used_bytes) == (None, 3 << 30)
    import pynvml

    assert pynvml.opened == 0
    monkeypatch.setattr(pynvml, "broken", True)
    FakeSmi(tmp_path / "driver", monkeypatch)
    assert used_by(asked().gpus[0]) == [(4242, 1021 * MIB)]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "neither nvidia-smi" in asked().gpu_problem
    del sys.modules["pynvml"]


def watched(*readings: dict[str, Any], problem: str | None = None) -> Any:
    """The report of one sample a second."""
    samples: Any = [
        SimpleNamespace(seconds=float(second), gpus=(SimpleNamespace(**reading),))
        for second, reading in enumerate(readings)
    ]
    return GpuMonitor().report().from_samples(samples, problem)


def test_a_gpu_that_waits() -> None:
    """Means, maxima, the share of idle samples and the energy are right; the advice says what to do next."""
    busy = IDLE | {"utilisation": 0.9, "power_w": 60.0, "memory_used_bytes": 3 * GB}
    report = watched(IDLE, busy, IDLE, IDLE)
    (one,) = report.gpus
    assert (one.utilisation, one.idle, one.memory_bytes, one.power_w) == (pytest.approx(0.225), 0.75, 3 * GB, 37.5)
    assert str(report).startswith(
        "GPU 0, Tesla T4: 22% busy on average, idle in 75% of 4 samples; memory 3 GB of 16 GB at its peak; "
        "38 W on average"
    )
    assert "profile_loader(loader, step)" in str(report)
    assert "▁▇▁▁" in str(report)
    assert watched(busy).gpus[0].advice == ""


def test_what_is_not_reported_is_not_counted() -> None:
    """Samples without a value change no mean; without any, the report has only the reason."""
    (one,) = watched(IDLE, IDLE | {"utilisation": None}, IDLE | {"utilisation": 1.0}).gpus
    assert one.utilisation == 0.5
    sliced = watched(dict.fromkeys(IDLE) | {"index": 0, "name": "NVIDIA A100", "processes": ()})
    assert "not reported" in str(sliced)
    assert (sliced.gpus[0].power_w, sliced.gpus[0].advice, sliced.tables[0].rows) == (None, "", ())
    assert str(watched(problem="no GPU")) == "no GPU"
    assert watched().gpus == ()
    # Each process counts once, with its maximum.
    held = [SimpleNamespace(pid=pid, memory_bytes=size) for pid, size in ((7, GB), (7, 2 * GB), (3, None))]
    (one,) = watched(*[IDLE | {"processes": (process,)} for process in held]).gpus
    assert used_by(one) == [(3, None), (7, 2 * GB)]


def threads() -> list[threading.Thread]:
    """The threads of monitors."""
    return [thread for thread in threading.enumerate() if thread.name == "colabstage-gpu-monitor"]


def test_it_samples_while_the_block_runs(smi: FakeSmi) -> None:
    """Samples are taken continuously, with the GPU's users; afterwards no thread is left."""
    monitor = GpuMonitor(0.02)
    for _ in range(2):
        before = len(monitor.samples)
        with monitor:
            wait_until(lambda: len(monitor.samples) >= before + 3)  # noqa: B023 - called at once
            assert len(threads()) == 1
        assert threads() == []
    times = [sample.seconds for sample in monitor.samples]
    assert times == sorted(set(times))
    assert {sample.gpus[0].utilisation for sample in monitor.samples} == {0.37}
    assert monitor.report().gpus[0].processes[0].pid == 4242
    assert monitor.summary().startswith("GPU 0, Tesla T4: 37% busy on average, idle in 0% of")
    assert monitor.problem is None
    assert json.loads(json.dumps(monitor.report().to_dict()))["gpus"][0]["name"] == "Tesla T4"


def test_answers_may_be_missed(smi: FakeSmi) -> None:
    """One failure is ignored; three in a row end it, and earlier samples stay."""
    with GpuMonitor(0.02) as monitor:
        wait_until(lambda: len(monitor.samples) >= 2)
        smi.answer("busy", code=1)
        wait_until(lambda: threads() == [])
        count = len(monitor.samples)
    assert len(monitor.samples) == count >= 2
    assert "watching ended: No NVIDIA GPU answers here" in monitor.summary()


def test_a_driver_that_falls_silent_does_not_keep_the_thread(smi: FakeSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that never responds is ended at its deadline, and the block ends soon after."""
    smi.answer(T4, T4_PROCESSES, answers=3)
    run = subprocess.run
    # Long enough for the first responses, each from a new process.
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: run(*args, **{**options, "timeout": 2.0}))
    with GpuMonitor(0.02) as monitor:
        wait_until(lambda: bool(monitor.samples))
        wait_until(lambda: len(smi.questions) >= 4)
        began = time.monotonic()
    assert time.monotonic() - began < 6.0
    wait_until(lambda: threads() == [])


def test_a_long_watch_stays_small(nvml: None) -> None:
    """When there are many samples, every second one is dropped, and they are taken half as often."""
    with GpuMonitor(1e-9) as monitor:
        most = count = 0
        deadline = time.monotonic() + 60
        while count >= most:
            assert time.monotonic() < deadline
            most = count
            time.sleep(0.002)
            count = len(monitor.samples)
    assert 3600 < most < 7200
    del sys.modules["pynvml"]


def test_pages_and_pictures(smi: FakeSmi) -> None:
    """Each of several GPUs has a row and a sparkline, even one that reports little; utilization is drawn if
    reported."""
    for answer, count in ((TWO, 2), (SLICED, 1)):
        smi.answer(answer)
        with GpuMonitor(0.02) as monitor:
            wait_until(lambda: len(monitor.samples) >= 2)
        assert monitor._repr_html_().count("over time") == count
        if count == 2:
            pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
            assert len(monitor.report().plot().axes[0].patches) == 2


def test_a_wrong_interval_is_refused() -> None:
    """It must be above 0."""
    with pytest.raises(OptionError, match="more than 0"):
        GpuMonitor(0)


# In a separate process: whatever runs notebooks keeps an event loop for the life of its process.
_RUN_NOTEBOOK = """
import json, nbclient, nbformat
cell = nbformat.v4.new_code_cell(
    "import time, colabstage\\nwith colabstage.GpuMonitor(0.1) as gpu:\\n    time.sleep(1.5)\\ngpu"
)
notebook = nbformat.v4.new_notebook(cells=[cell])
nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
print(json.dumps([output["data"] for output in notebook.cells[0].outputs]))
"""


def test_the_strip_in_a_real_kernel(smi: FakeSmi, tmp_path: Path, nurseries: Nurseries) -> None:
    """In a notebook one output below the cell is updated while the block runs."""
    for package in ("nbclient", "ipykernel"):
        if find_spec(package) is None:
            pytest.skip("needs a kernel: pip install nbclient ipykernel")
    script = tmp_path / "run.py"
    script.write_text(_RUN_NOTEBOOK, encoding="utf-8")
    line = nurseries.run_script("torch", [script], {"JUPYTER_PATH": str(nurseries.kernel("torch"))})
    strip, shown = json.loads(line)
    assert "37% busy" in strip["text/plain"]
    assert "▄" in strip["text/html"]
    assert "37% busy on average" in shown["text/html"]


@pytest.mark.gpu
def test_a_real_gpu_that_works() -> None:
    """On a machine with a GPU, a model at work shows as utilisation and memory."""
    import torch

    with GpuMonitor(0.1) as monitor:
        x = torch.rand(4096, 4096, device="cuda")
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            x = torch.tanh(x @ x)
            torch.cuda.synchronize()
    assert len(monitor.samples) > 5
    busy = [gpu.utilisation for sample in monitor.samples for gpu in sample.gpus if gpu.utilisation is not None]
    assert max(busy) > 0.2
    assert threads() == []

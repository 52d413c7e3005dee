"""What NVIDIA's driver tells: parsed from its real words, asked of a real program, or of the real library."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import NotSupportedHereError
from colabstage.machine.gpu import GpuProcess, gpu_problem, open_gpus, parse_gpus, parse_processes, with_processes
from tests.diagnose.nvidia_smi import CONTAINER, NO_DRIVER, SLICED, T4, T4_PROCESSES, TWO, WSL, FakeSmi

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_a_line_becomes_a_reading() -> None:
    """Percent become a part of 1, MiB bytes, watts floats."""
    (one,) = parse_gpus(T4)
    assert (one.index, one.name, one.utilisation) == (0, "Tesla T4", 0.37)
    assert (one.memory_used_bytes, one.memory_total_bytes) == (1024 * MIB, 15360 * MIB)
    assert (one.power_w, one.power_limit_w, one.sliced) == (28.31, 70.0, False)


def test_units_may_stand_behind_the_numbers() -> None:
    """Versions that print units in spite of nounits are read alike."""
    with_units = T4.replace("37", "37 %").replace("1024, 15360", "1024 MiB, 15360 MiB").replace("28.31", "28.31 W")
    assert parse_gpus(with_units) == parse_gpus(T4)


def test_gpus_come_by_their_index() -> None:
    """Several GPUs are in order, whatever order they are printed in."""
    assert [(one.index, one.utilisation) for one in parse_gpus(TWO)] == [(0, 0.98), (1, 0.0)]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (SLICED, {"memory_used_bytes": 19968 * MIB, "power_w": 67.31, "sliced": True}),
        (WSL, {"utilisation": 0.05, "memory_used_bytes": 900 * MIB}),
        (CONTAINER, {"memory_total_bytes": 23034 * MIB, "power_limit_w": 72.0}),
    ],
)
def test_what_the_driver_does_not_tell_is_none(text: str, known: dict[str, object]) -> None:
    """[N/A], [Not Supported], [Unknown Error] and [Insufficient Permissions] are no numbers."""
    (one,) = parse_gpus(text)
    changing = ("utilisation", "memory_used_bytes", "power_w")
    assert {name: getattr(one, name) for name in known} == known
    assert all(getattr(one, name) is None for name in changing if name not in known)


@pytest.mark.parametrize("text", ["", "\n", "No devices were found\n", NO_DRIVER, "0, GPU-1, T4\n"])
def test_lines_that_are_no_gpu_are_passed_over(text: str) -> None:
    """Complaints, and lines with other columns, are no GPU."""
    assert parse_gpus(text) == ()
    assert parse_gpus(f"Warning: persistence mode\n{T4}{text}") == parse_gpus(T4)


def test_processes_go_to_their_gpu() -> None:
    """Names with commas, names that are hidden and memory that is not told are read; each goes where it computes."""
    text = (
        "GPU-11111111-0000-0000-0000-000000000000, 7, /opt/a, b/python3, 19000\n"
        "GPU-22222222-0000-0000-0000-000000000000, 8, [Not Found], [N/A]\n"
        "[Insufficient Permissions], [Insufficient Permissions], [Not Found], [N/A]\n"
    )
    first, second = with_processes(parse_gpus(TWO), parse_processes(text))
    assert first.processes == (GpuProcess(7, "/opt/a, b/python3", 19000 * MIB),)
    assert second.processes == (GpuProcess(8, "", None),)


def test_the_program_is_asked(smi: FakeSmi) -> None:
    """nvidia-smi is run for the GPUs, and once more only when processes are wanted."""
    source = open_gpus()
    assert source.label == "nvidia-smi"
    asked = len(smi.questions)
    assert source.read() == parse_gpus(T4)
    assert len(smi.questions) == asked + 1
    assert source.read(processes=True) == with_processes(parse_gpus(T4), parse_processes(T4_PROCESSES))
    assert smi.questions[-1].startswith("--query-compute-apps=gpu_uuid,pid")


@pytest.mark.parametrize(
    ("gpus", "code", "said"),
    [(NO_DRIVER, 9, "couldn't communicate with the NVIDIA driver"), ("No devices were found\n", 0, "lists none")],
)
def test_a_driver_without_gpus_is_a_typed_error(smi: FakeSmi, gpus: str, code: int, said: str) -> None:
    """What the program complains of is in the message."""
    smi.answer(gpus, code=code)
    with pytest.raises(NotSupportedHereError, match=said):
        open_gpus()


def test_a_driver_that_hangs_is_given_up(smi: FakeSmi) -> None:
    """A program that never answers is ended at the deadline."""
    smi.answer(T4, answers=0)
    began = time.monotonic()
    with pytest.raises(NotSupportedHereError, match=r"did not answer in 0\.30 s"):
        open_gpus(timeout_s=0.3)
    assert time.monotonic() - began < 5.0


def test_a_program_that_cannot_run_is_a_typed_error(smi: FakeSmi) -> None:
    """A broken installation is told from a missing GPU."""
    (smi.folder / "nvidia-smi").write_text("#!/no/such/shell\n", encoding="ascii")
    with pytest.raises(NotSupportedHereError, match="cannot be run"):
        open_gpus()


def test_nothing_installed_is_said_without_asking(no_gpu: None) -> None:
    """Without program and package there is nobody to ask."""
    assert gpu_problem() is not None
    with pytest.raises(NotSupportedHereError, match="There is no NVIDIA GPU here: neither nvidia-smi nor"):
        open_gpus()


def test_the_library_is_asked_first(nvml: None) -> None:
    """With nvidia-ml-py no program is run; what one GPU does not support is `None` for that one alone."""
    source = open_gpus()
    assert source.label == "NVML"
    first, second = source.read(processes=True)
    assert (first.name, first.utilisation, first.power_w, first.power_limit_w) == ("Tesla T4", 0.37, 28.31, None)
    assert first.processes == (GpuProcess(4242, "", 1 << 30), GpuProcess(4243, "", None))
    assert (second.utilisation, second.sliced, second.memory_used_bytes) == (None, True, 3 << 30)
    source.close()
    source.close()
    assert sys.modules["pynvml"].opened == 0
    del sys.modules["pynvml"]


def test_a_library_without_a_driver(nvml: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package is installed and no driver is, there is no GPU; with the program, that one is asked."""
    import pynvml

    monkeypatch.setattr(pynvml, "broken", True)
    FakeSmi(tmp_path / "driver", monkeypatch)
    assert open_gpus().label == "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupportedHereError, match="NVML finds no driver, and nvidia-smi is not installed"):
        open_gpus()
    del sys.modules["pynvml"]


@pytest.mark.gpu
def test_a_real_gpu_is_read() -> None:
    """On a machine with a GPU its name, memory and utilisation are plausible."""
    source = open_gpus()
    try:
        readings = source.read(processes=True)
    finally:
        source.close()
    assert readings
    for one in readings:
        assert one.name
        assert one.memory_total_bytes is not None
        assert one.memory_total_bytes > 1e9
        assert one.utilisation is None or 0 <= one.utilisation <= 1

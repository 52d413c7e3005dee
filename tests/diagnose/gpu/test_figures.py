"""What samples of a GPU say: figures, sentences, lines of blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabstage.diagnose.gpu_monitor import GpuSample, draw_blocks, figure_out, history, summarise
from colabstage.machine.gpu import GpuProcess, GpuReading

GB = 1_000_000_000
T4 = GpuReading(0, "GPU-1", "Tesla T4", 0.0, GB, 16 * GB, 30.0, 70.0)


def samples(*readings: GpuReading) -> list[GpuSample]:
    """One sample a second."""
    return [GpuSample(float(second), (reading,)) for second, reading in enumerate(readings)]


def test_a_gpu_that_waits() -> None:
    """Means, maxima, the share of idle samples and the energy are those of the samples; the advice says what next."""
    taken = samples(T4, replace(T4, utilisation=0.9, power_w=60.0, memory_used_bytes=3 * GB), T4, T4)
    (one,) = figure_out(taken)
    assert one.utilisation == pytest.approx(0.225)
    assert one.idle == 0.75
    assert (one.memory_bytes, one.power_w, one.samples, one.seconds) == (3 * GB, 37.5, 4, 3.0)
    assert one.energy_wh == pytest.approx(37.5 * 3 / 3600)
    text = summarise(taken, None)
    assert text.splitlines()[0] == (
        "GPU 0, Tesla T4: 22% busy on average, idle in 75% of 4 samples; memory 3 GB of 16 GB at its peak; "
        "38 W of 70 W on average"
    )
    assert "profile_loader(loader, step)" in text


def test_a_busy_gpu_needs_no_advice() -> None:
    """Above half, nothing is advised."""
    (one,) = figure_out(samples(*[replace(T4, utilisation=0.95)] * 3))
    assert one.advice == ""
    assert "95% busy" in str(one)


def test_what_is_not_told_is_not_counted() -> None:
    """Samples without an answer change no mean; a GPU that never answers says so, and why."""
    (one,) = figure_out(samples(T4, replace(T4, utilisation=None), replace(T4, utilisation=1.0)))
    assert one.utilisation == 0.5
    (sliced,) = figure_out(samples(GpuReading(0, "GPU-1", "NVIDIA A100", sliced=True)))
    assert str(sliced) == "GPU 0, NVIDIA A100: utilisation not reported, because it is divided into MIG slices"
    assert (sliced.energy_wh, sliced.advice) == (None, "")


def test_processes_are_gathered() -> None:
    """Each process counts once, with the most that it held."""
    held = [GpuProcess(7, "a", GB), GpuProcess(7, "a", 2 * GB), GpuProcess(3, "b", None)]
    (one,) = figure_out(samples(*[replace(T4, processes=(process,)) for process in held]))
    assert one.processes == (GpuProcess(3, "b", None), GpuProcess(7, "a", 2 * GB))


def test_two_gpus_are_two_lines() -> None:
    """Each GPU has figures of its own."""
    both = GpuSample(0.0, (T4, replace(T4, index=1, utilisation=1.0)))
    assert [one.utilisation for one in figure_out([both])] == [0.0, 1.0]
    assert len(summarise([both], None).splitlines()) == 3


def test_no_samples_say_why() -> None:
    """Without a sample the reason is all there is."""
    assert summarise([], "Nothing to watch: no GPU.") == "Nothing to watch: no GPU."
    assert summarise([], None) == "No sample of a GPU was taken yet."
    assert figure_out([]) == ()


def test_history_fits_the_width() -> None:
    """Many samples become the means of equal stretches, few stay as they are."""
    taken = samples(*[replace(T4, utilisation=value) for value in (0.0, 1.0, 0.0, 0.0)])
    assert history(taken, 0, width=2) == [0.5, 0.0]
    assert history(taken, 0, width=9) == [0.0, 1.0, 0.0, 0.0]
    assert history(taken, 1, width=9) == []
    assert draw_blocks([0.0, None, 1.0]) == "▁ █"

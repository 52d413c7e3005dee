"""`colabstage doctor`, `compare` and `gpu`: what they print, and how they end."""

import json
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.cli.conftest import Run, result
from tests.diagnose.nvidia_smi import NO_DRIVER, FakeSmi

# A separate process cannot be made to overlook an installed package.
without_the_package = pytest.mark.skipif(
    find_spec("pynvml") is not None, reason="needs the package not to be there: pip uninstall nvidia-ml-py"
)


def test_doctor_ends_well_where_nothing_is_broken(start: Run, photos: Path) -> None:
    """Facts and verdicts are printed, and the exit code is 0."""
    done = start("doctor", photos)
    assert done.returncode == 0, done.stderr
    assert f"'{photos}' is on a local disk." in " ".join(done.stdout.split())
    assert done.stderr == ""


def test_doctor_ends_with_1_where_something_is_broken(run: Run, tmp_path: Path) -> None:
    """The remedy is in the output, one line on stderr names the fault; with JSON, nothing else is on stdout."""
    (tmp_path / "missing.zip").touch()
    done = run("doctor", "missing")
    assert done.returncode == 1
    told = f"There is nothing at '{tmp_path}/missing'. The folder '{tmp_path}' holds 'missing.zip'"
    assert told in " ".join(done.stdout.split())
    assert done.stderr == "colabstage: Broken: location.\n"
    as_json = run("doctor", "missing", "--json")
    assert as_json.returncode == 1
    broken = [finding for finding in json.loads(as_json.stdout)["findings"] if finding["status"] == "fail"]
    assert [finding["title"] for finding in broken] == ["location"]
    assert broken[0]["remedy"].startswith("Check the spelling")


@pytest.mark.slow
def test_compare_prints_every_way(run: Run, photos: Path) -> None:
    """One line for each way, or JSON; nothing is left on the local disk."""
    done = run("compare", photos, "--seconds", "1", "--image-size", "8x8", "--local-dir", "fast")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("An epoch of 10 images: ")
    assert done.stdout.count("an epoch") == 4
    assert not (photos.parent / "fast").exists()
    as_json = run("compare", photos, "--seconds", "1", "--local-dir", "fast", "--json")
    assert json.loads(as_json.stdout)["dataset_samples"] == 10


@without_the_package
def test_gpu_with_one(run: Run, smi: FakeSmi) -> None:
    """After the given time it prints the figures; JSON has every sample."""
    done = run("gpu", "--seconds", "0.5", "--interval", "0.05")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("GPU 0, Tesla T4: 37% busy on average")
    as_json = json.loads(run("gpu", "--seconds", "0.5", "--interval", "0.05", "--json").stdout)
    assert len(as_json["samples"]) >= 2
    assert as_json["gpus"][0]["utilisation"] == pytest.approx(0.37)


@without_the_package
def test_gpu_with_a_broken_driver(run: Run, smi: FakeSmi) -> None:
    """An installed driver that does not work is a failure, in its own words."""
    smi.answer(NO_DRIVER, code=9)
    done = run("gpu", "--seconds", "5")
    assert done.returncode == 1
    assert "couldn't communicate with the NVIDIA driver" in done.stderr


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """The name of a file of small images."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["X_train"] = np.zeros((400, 16, 16, 3), np.uint8)
        file["Y_train"] = np.arange(400)
    return "rows.h5"


@pytest.mark.torch
def test_a_file_is_profiled_with_a_step_of_known_length(run: Run, rows: str) -> None:
    """As JSON: for such a small file, a step of 200 ms is the limit, even on a busy machine."""
    found = result(run("profile", rows, "--step-ms", "200", "--seconds", "2", "--batch-size", "32", "--json"))
    assert found["verdict"]["bound"] == "compute-bound"
    assert found["facts"]["batch_samples"] == 32
    assert found["facts"]["step_s"] > 0.2


@pytest.mark.torch
@pytest.mark.parametrize(
    ("flags", "said"), [((), "--step-ms"), (("--step-ms", "1"), "bound"), (("--tune",), "make_loader(dataset, 64")]
)
def test_what_to_do_next_is_said(run: Run, rows: str, flags: tuple[str, ...], said: str) -> None:
    """As options, or as a call to paste, without mentioning a model that was not passed."""
    done = run("profile", rows, "--seconds", "0.5", *flags)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert "handed over" not in done.stdout

"""Each test's own machine, with a GPU, without one, with a Drive."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.diagnose.nvidia_smi import no_gpu, nvml, smi  # noqa: F401 - fixtures
from tests.stage.conftest import my_drive  # noqa: F401 - a fixture


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own root: only mounts below it count, and datasets are staged below it."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))
    return tmp_path


@pytest.fixture
def drive(machine: Path) -> Iterator[SimulatedDrive]:
    """A mounted Drive without waiting times."""
    mountpoint = machine / "content" / "drive"
    mountpoint.mkdir(parents=True)
    with SimulatedDrive(machine / "drive-home", knobs=DriveKnobs.quick()) as simulated:
        simulated.mount(mountpoint)
        yield simulated

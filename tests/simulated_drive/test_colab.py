"""The stand-in google.colab as colabstage sees it: its platform, and a second mount beside a dead one."""

import importlib
import os
from pathlib import Path

import pytest

from colabstage import doctor, flush_drive, mount_drive, refresh_drive
from colabstage.errors import DriveError, NotSupportedHereError
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.support.colab import Preset, simulated_colab


@pytest.mark.parametrize(
    ("preset", "name", "refusal", "said"),
    [
        ("colab_cpu", "colab", DriveError, "pass one"),
        ("colab_gpu", "colab", DriveError, "pass one"),
        ("colab_enterprise", "colab", NotSupportedHereError, "Colab Enterprise"),
        ("colab_subprocess", "colab", NotSupportedHereError, "notebook cell"),
        ("kaggle", "kaggle", NotSupportedHereError, "cannot mount"),
    ],
)
def test_each_machine_is_taken_for_what_it_plays(
    tmp_path: Path, preset: Preset, name: str, refusal: type[Exception], said: str
) -> None:
    """Its folders are below the root, a Drive is mounted where possible, and this process's variables are restored."""
    before = dict(os.environ)
    with simulated_colab(tmp_path, preset=preset) as machine:
        found = doctor().facts
        (machine.root / "content").mkdir(exist_ok=True)
        with pytest.raises(refusal, match=said):
            mount_drive(machine.root / "content/drive")
    assert found.platform == name
    assert found.fast_dir.startswith(str(tmp_path))
    assert dict(os.environ) == before


@pytest.mark.fuse
def test_a_mount_at_another_place_leaves_the_first_one_dead(tmp_path: Path) -> None:
    """Its client is killed without an unmount; the next client has its pending uploads."""
    drive = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    with simulated_colab(tmp_path / "machine", drive=drive) as machine:
        first, second = machine.root / "content/drive", machine.root / "content/other"
        colab = importlib.import_module("google.colab.drive")
        colab.mount(str(first))
        (first / "MyDrive" / "mine").write_bytes(b"here")
        colab.mount(str(second), force_remount=True)
        with pytest.raises(OSError, match="not connected"):
            first.stat()
        assert (second / "MyDrive" / "mine").read_bytes() == b"here"
        # Our functions use the live one, and do not end it because of the dead one.
        assert refresh_drive() == second / "MyDrive"
        assert flush_drive(remount=False).mountpoint == second
        assert mount_drive(first) == first / "MyDrive"

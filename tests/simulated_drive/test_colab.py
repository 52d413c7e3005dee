"""The stand-in google.colab, seen by ours: the platform that it plays, and a second mount beside a dead one."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

import pytest

from colabstage import flush_drive, mount_drive, refresh_drive
from colabstage.machine.platforms import detect_platform
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.support.colab import simulated_colab

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.colab_machine import Preset


@pytest.mark.parametrize(
    ("preset", "name", "mountable"),
    [
        ("colab_cpu", "colab", True),
        ("colab_gpu", "colab", True),
        ("colab_enterprise", "colab", True),
        ("colab_subprocess", "colab", False),
        ("kaggle", "kaggle", False),
    ],
)
def test_each_machine_is_taken_for_what_it_plays(tmp_path: Path, preset: Preset, name: str, mountable: bool) -> None:
    """Its folders lie below the root, and the variables of this process come back."""
    before = dict(os.environ)
    with simulated_colab(tmp_path, preset=preset):
        found = detect_platform()
    assert (found.name, found.drive_mountable) == (name, mountable)
    assert found.fast_dir.is_relative_to(tmp_path)
    assert dict(os.environ) == before


@pytest.mark.fuse
def test_a_mount_at_another_place_leaves_the_first_one_dead(tmp_path: Path) -> None:
    """Its client is killed and nobody unmounts it; what waited for its upload is with the next client."""
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
        # Ours are about the one that lives, and do not end it for the sake of the dead one.
        assert refresh_drive() == second / "MyDrive"
        assert flush_drive(remount=False).mountpoint == second
        assert mount_drive(first) == first / "MyDrive"

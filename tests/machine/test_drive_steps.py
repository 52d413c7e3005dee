"""Our verbs against the steps of Drive's client, in their order and with their consequences: each with the right word,
and nothing lost.

The stand-in goes the real client's way (`tests/simulated_drive/test_colab.py` holds it to that): it asks first,
unmounts plainly, fails on what is busy, and leaves its shell where the caller stood.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colabstage import flush_drive, mount_drive, refresh_drive
from colabstage.errors import DriveAuthError, DriveDisconnectedError, DriveError, OptionError
from colabstage.machine import drive as drive_module
from colabstage.machine.drive import is_readonly
from colabstage.machine.mounts import check_unused, list_mounts, mount_of
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs
from tests.support.colab import simulated_colab
from tests.support.colab_machine import ColabKnobs, SimulatedColab

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.fuse


@pytest.fixture
def drive(tmp_path: Path) -> SimulatedDrive:
    """A Drive account with a file of somebody's."""
    made = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    (made.cloud / "MyDrive" / "data").write_bytes(b"theirs" * 1000)
    return made


@pytest.fixture
def colab(tmp_path: Path, drive: SimulatedDrive) -> Iterator[SimulatedColab]:
    """A notebook on a machine that can mount it."""
    with simulated_colab(tmp_path / "machine", drive=drive) as machine:
        yield machine


@pytest.fixture
def place(colab: SimulatedColab) -> Path:
    """Where Drive is mounted."""
    return colab.root / "content/drive"


@pytest.fixture
def mine(colab: SimulatedColab, place: Path, drive: SimulatedDrive) -> Path:
    """A file that was written on the mounted Drive and waits for its upload."""
    folder = mount_drive(place)
    drive.set_faults(DriveFaults(stall_uploads=True))
    (folder / "mine").write_bytes(b"not in the cloud yet")
    return folder / "mine"


@pytest.fixture
def held(mine: Path) -> Iterator[int]:
    """An open file of the notebook, as a log is."""
    number = os.open(mine, os.O_RDONLY)
    yield number
    with contextlib.suppress(OSError):  # its client is dead
        os.close(number)


def nothing_is_lost(mine: Path, drive: SimulatedDrive) -> bool:
    """Whether what had not been uploaded is here, and then in the cloud."""
    drive.set_faults(DriveFaults())
    return (
        mine.read_bytes() == b"not in the cloud yet"
        and drive.flush(timeout_s=60)
        and (drive.cloud / "MyDrive/mine").read_bytes() == b"not in the cloud yet"
    )


@pytest.mark.usefixtures("held")
def test_busy_and_dead(colab: SimulatedColab, mine: Path, drive: SimulatedDrive, place: Path) -> None:
    """An open log file keeps the client from unmounting; the dead mount is taken away first, so it does not matter."""
    drive.kill()
    assert mount_drive(place) == mine.parent
    assert nothing_is_lost(mine, drive)
    assert [mount.mountpoint for mount in list_mounts()].count(place) == 1
    assert colab.calls.count("drive.mount") == 2


@pytest.mark.usefixtures("colab")
def test_another_process_in_a_dead_mount(mine: Path, drive: SimulatedDrive, place: Path) -> None:
    """Nor does a program that was started in it."""
    with subprocess.Popen(["sleep", "100"], cwd=mine.parent) as other:
        try:
            drive.kill()
            mount_drive(place)
            assert nothing_is_lost(mine, drive)
        finally:
            other.kill()


def test_a_try_that_failed_busy_is_cured(colab: SimulatedColab, mine: Path, drive: SimulatedDrive, held: int) -> None:
    """What somebody tried by hand before leaves a dead mount, and a shell that stands in it."""
    place = mine.parent.parent
    os.chdir(mine.parent)
    try:
        drive.kill()
        from google.colab import drive as client

        with pytest.raises(ValueError, match="mount failed"):
            client.mount(str(place), force_remount=True)
        assert colab.shells
        mount_drive(place)
        assert Path("mine").read_bytes() == b"not in the cloud yet"
        assert nothing_is_lost(mine, drive)
        assert held
    finally:
        os.chdir("/")


@pytest.mark.parametrize("verb", [mount_drive, refresh_drive])
def test_current_folder_inside_a_dead_mount(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch, verb: object
) -> None:
    """It is left before the client is called, and entered again."""
    monkeypatch.chdir(mine.parent)
    drive.kill()
    place = mine.parent.parent
    assert (mount_drive(place) if verb is mount_drive else refresh_drive()) == mine.parent
    assert Path.cwd() == mine.parent
    assert colab.shells == []
    assert nothing_is_lost(mine, drive)


def test_a_mount_that_fails_leaves_nobody_inside(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person stands beside the mount point, from where the next try succeeds."""
    monkeypatch.chdir(mine.parent)
    drive.kill()
    colab.knobs = ColabKnobs(auth="refused")
    place = mine.parent.parent
    with pytest.raises(DriveAuthError):
        mount_drive(place)
    assert Path.cwd() == place.parent
    colab.knobs = ColabKnobs()
    mount_drive(place)
    assert nothing_is_lost(mine, drive)


def test_mapping_held(mine: Path, drive: SimulatedDrive, place: Path) -> None:
    """A mapping outlives the file it was made of; touched after the unmount it would end the notebook."""
    number = os.open(place / "MyDrive/data", os.O_RDONLY)
    weights = mmap.mmap(number, 0, access=mmap.ACCESS_READ)
    os.close(number)
    try:
        for verb in (flush_drive, refresh_drive):
            with pytest.raises(DriveError, match=r"MyDrive/data'.*torch\.load\(mmap=True\)"):
                verb()
        assert weights[:6] == b"theirs"
    finally:
        weights.close()
    check_unused(place)
    drive.set_faults(DriveFaults())
    flush_drive()
    assert nothing_is_lost(mine, drive)


def test_flush_failing_at_once_and_late(colab: SimulatedColab, mine: Path, drive: SimulatedDrive) -> None:
    """Only what took its time is said to have run out of it; Drive stays mounted both times."""
    with pytest.raises(DriveError, match=r"1\.00 s.*timeout_s"):
        flush_drive(timeout_s=0.01)
    colab.knobs = ColabKnobs(flush="fails")
    with pytest.raises(DriveError, match=r"gave up .*drive_fs\.txt"):
        flush_drive()
    colab.knobs = ColabKnobs()
    assert nothing_is_lost(mine, drive)


def test_a_mount_that_goes_a_little_later_is_flushed(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seconds are nothing; what never goes is said."""
    colab.knobs = ColabKnobs(unmount_lag_s=1.0)
    drive.set_faults(DriveFaults())
    assert flush_drive().remounted
    assert nothing_is_lost(mine, drive)
    monkeypatch.setattr(drive_module, "_UNMOUNT_S", 0.2)
    with pytest.raises(DriveError, match=r"still mounted .*0\.20 s"):
        flush_drive()


def test_root_timeout_twice(colab: SimulatedColab, place: Path) -> None:
    """The client says it of every later failure, too; only what the log gained counts."""
    colab.knobs = ColabKnobs(mount="root_too_large")
    for _ in range(2):
        with pytest.raises(DriveError, match=r"mount_drive\(timeout_s=600\)"):
            mount_drive(place)
    colab.knobs = ColabKnobs(auth="silent")
    with pytest.raises(DriveError, match="dialogue"):
        mount_drive(place)


def test_times_are_whole_seconds_and_at_least_one(colab: SimulatedColab, place: Path) -> None:
    """Less would be no limit at all; what is no time is refused before anybody is asked."""
    for timeout_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="timeout_s"):
            mount_drive(place, timeout_s=timeout_s)
    assert colab.calls == []
    mount_drive(place, timeout_s=0.2)
    assert colab.waits == [1]


@pytest.mark.parametrize("name", ["a;b", "$(id)", "a&b", "a'b", 'a"b', "a*", "a\nb", "a`b", "ä"])
def test_mount_points_that_a_shell_would_read_are_refused(colab: SimulatedColab, name: str) -> None:
    """The client hands them to a shell of root's, unquoted."""
    with pytest.raises(OptionError, match="shell"):
        mount_drive(colab.root / "content" / name)
    assert colab.calls == []


def test_readonly_is_known_by_the_command_line(place: Path, drive: SimulatedDrive) -> None:
    """The mount table says nothing of it."""
    mount_drive(place, readonly=True)
    mount = mount_of(place)
    assert (mount.readonly, is_readonly(mount)) == (False, True)
    drive.unmount()
    mount_drive(place)
    assert not is_readonly(mount_of(place))


def test_what_a_dead_client_had_is_said_the_same_way_everywhere(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive
) -> None:
    """It waits in the cache, the next client takes it up, and nobody is sent to force anything."""
    drive.kill()
    said = []
    with pytest.raises(DriveDisconnectedError) as caught:
        flush_drive()
    said.append(str(caught.value))
    from colabstage.machine.mounts import silence_of

    said.append(str(silence_of(mine)))
    assert all("in its cache" in text for text in said)
    assert all("mount_drive(" in text and "force_remount" not in text for text in said)
    assert colab.calls.count("drive.mount") == 1

"""Work that survives one death of the Drive client, and what it must never do about any other trouble."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colabstage import stage_dataset
from colabstage.errors import DamagedPackError, DriveAuthError, DriveDisconnectedError, SourceReadError
from colabstage.io.files import RetryPolicy, read_with_retry, translate_write_error
from colabstage.machine.mounts import MountProbe, probe_mount
from colabstage.machine.watched import RemountFacts, remount_obstacle, run_with_one_remount
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault
from tests.support.colab import simulated_colab
from tests.support.colab_machine import ColabKnobs, SimulatedColab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FACTS = RemountFacts(state="dead", main_thread=True, mountable=True)


def test_a_dead_client_in_a_notebook_is_mounted_again() -> None:
    """The one case in which nothing stands in the way."""
    assert remount_obstacle(_FACTS) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "alive"}, "has not died"),
        ({"state": "silent"}, "silent"),
        ({"state": "failing"}, "failing"),
        ({"mountable": False}, "only a Colab notebook"),
        ({"main_thread": False}, "main thread"),
    ],
)
def test_each_obstacle_is_said(change: dict[str, object], words: str) -> None:
    """A client that lives is never forced, and what Colab refuses is not asked for."""
    obstacle = remount_obstacle(replace(_FACTS, **change))  # type: ignore[arg-type]
    assert obstacle is not None
    assert words in obstacle


def test_work_elsewhere_is_simply_called(tmp_path: Path) -> None:
    """Without a Drive nothing is looked at, and its error comes as it is."""

    def fail() -> None:
        raise SourceReadError("not today")

    with pytest.raises(SourceReadError, match="not today") as caught:
        run_with_one_remount(fail, place=tmp_path)
    assert not hasattr(caught.value, "__notes__")
    assert run_with_one_remount(lambda: 7, place=tmp_path) == 7


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[SimulatedDrive]:
    """A Drive account with one file."""
    with SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick()) as simulated:
        (simulated.cloud / "MyDrive" / "notes.txt").write_bytes(b"hello")
        yield simulated


@pytest.fixture
def colab(tmp_path: Path, drive: SimulatedDrive) -> Iterator[SimulatedColab]:
    """A Colab notebook with that Drive mounted at its usual place."""
    with simulated_colab(tmp_path / "machine", drive=drive) as machine:
        drive.mount(machine.root / "content" / "drive")
        yield machine


@pytest.fixture
def notes(colab: SimulatedColab) -> Path:
    """The file as the notebook sees it."""
    return colab.root / "content" / "drive" / "MyDrive" / "notes.txt"


def reader(notes: Path) -> Callable[[], bytes]:
    """Work that reads the file with the usual policy."""
    return lambda: read_with_retry(notes.read_bytes, str(notes), policy=RetryPolicy(first_wait_s=0))


@pytest.mark.fuse
def test_work_goes_on_after_the_client_has_died(colab: SimulatedColab, drive: SimulatedDrive, notes: Path) -> None:
    """One mount, asked for once, and the work's own result; whoever listens is told."""
    said: list[str] = []
    drive.kill()
    assert run_with_one_remount(reader(notes), place=notes, notice=said.append) == b"hello"
    assert colab.calls.count("drive.mount") == 1
    assert len(said) == 1
    assert "mounted again" in said[0]


@pytest.mark.fuse
def test_a_client_that_dies_again_is_left_dead(colab: SimulatedColab, drive: SimulatedDrive, notes: Path) -> None:
    """The second death is the person's to judge: the typed error, and no second mount."""
    calls = []

    def die() -> bytes:
        calls.append(1)
        drive.kill()
        return reader(notes)()

    with pytest.raises(DriveDisconnectedError, match=r"mount_drive\(\)"):
        run_with_one_remount(die, place=notes)
    assert len(calls) == 2
    assert colab.calls.count("drive.mount") == 1


@pytest.mark.fuse
def test_a_refused_permission_is_the_error(colab: SimulatedColab, drive: SimulatedDrive, notes: Path) -> None:
    """When mounting again fails, that says what to do; what failed first is its context."""
    colab.knobs = ColabKnobs(auth="refused")
    drive.kill()
    with pytest.raises(DriveAuthError) as caught:
        run_with_one_remount(reader(notes), place=notes)
    assert isinstance(caught.value.__context__ or caught.value.__cause__, Exception)


@pytest.mark.fuse
def test_a_thread_does_not_mount(colab: SimulatedColab, drive: SimulatedDrive, notes: Path) -> None:
    """In a thread the error says why nothing was done, in its message: Colab's notebooks show no notes."""
    drive.kill()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run_with_one_remount(reader(notes), place=notes)
        except DriveDisconnectedError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert "main thread" in str(errors[0])
    assert not hasattr(errors[0], "__notes__")
    assert colab.calls == []


@pytest.mark.fuse
def test_whatever_a_call_ends_in_while_drive_dies_is_its_death(
    colab: SimulatedColab, drive: SimulatedDrive, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is about to take its place is gone for a moment, and its root too: no place to be chosen anew."""
    ends = [
        translate_write_error(FileNotFoundError(errno.ENOENT, "No such file or directory"), notes),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        DamagedPackError("What was written reads back differently."),
    ]
    states: list[MountProbe] = []

    def work() -> bytes:
        if not ends:
            return notes.read_bytes()
        drive.kill()
        states[:] = [MountProbe("missing", errno.ENOENT)] * 2
        raise ends.pop()

    monkeypatch.setattr(
        "colabstage.machine.watched.probe_mount",
        lambda place, timeout_s: states.pop() if states else probe_mount(place, timeout_s),
    )
    with ThreadPoolExecutor(1) as threads:
        for _ in range(2):
            with pytest.raises(DriveDisconnectedError, match=r"has died .*main thread"):
                threads.submit(run_with_one_remount, work, place=notes).result()
    drive.unmount()
    drive.mount(colab.root / "content" / "drive")
    assert run_with_one_remount(work, place=notes) == b"hello"
    assert colab.calls.count("drive.mount") == 1
    assert states == []


@pytest.mark.fuse
def test_a_living_drive_that_fails_is_not_touched(colab: SimulatedColab, drive: SimulatedDrive, notes: Path) -> None:
    """Errno 5 from a living client is no death: what is not uploaded must not be lost for it."""
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="*/notes.txt"),)))
    with pytest.raises(SourceReadError):
        run_with_one_remount(reader(notes), place=notes)
    assert colab.calls == []


@pytest.mark.fuse
def test_from_inside_drive_it_is_left_and_entered_again(
    colab: SimulatedColab, drive: SimulatedDrive, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is never called from inside, where it would leave a shell that keeps the mount busy for good."""
    monkeypatch.chdir(notes.parent)
    held = os.open(notes, os.O_RDONLY)
    try:
        drive.kill()
        assert run_with_one_remount(reader(notes), place=notes) == b"hello"
    finally:
        with contextlib.suppress(OSError):  # its client is dead
            os.close(held)
    assert colab.calls.count("drive.mount") == 1
    assert Path.cwd() == notes.parent
    assert Path("notes.txt").read_bytes() == b"hello"


@pytest.mark.fuse
def test_staging_goes_on_after_the_client_has_died_midway(
    tmp_path: Path, drive: SimulatedDrive, write_pngs: Callable[[Path, int], None]
) -> None:
    """Half the images before the death and half after it make the pack that an undisturbed run makes."""
    write_pngs(drive.cloud / "MyDrive" / "photos", 400)
    dying = SimulatedDrive(tmp_path / "google", knobs=replace(DriveKnobs.quick(), death_after_opens=300))
    with simulated_colab(tmp_path / "machine", drive=dying) as machine, dying:
        place = machine.root / "content" / "drive"
        drive.mount(place)
        photos = place / "MyDrive" / "photos"
        truth = stage_dataset(photos, cache_dir=None, local_dir=tmp_path / "truth", progress=False).path.read_bytes()
        drive.unmount()
        dying.mount(place)
        staged = stage_dataset(photos, cache_dir=None, local_dir=tmp_path / "fast", progress=False)
        assert [note for note in staged.report.notes if "mounted again" in note]
        assert staged.path.read_bytes() == truth
        assert "already in place" in str(staged.report)

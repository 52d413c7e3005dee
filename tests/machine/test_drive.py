"""Drive on a practice Colab: what is asked, what is refused, and one typed error for every documented failure."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from colabstage import flush_drive, mount_drive, refresh_drive
from colabstage.errors import (
    ColabstageError,
    DriveAuthError,
    DriveDisconnectedError,
    DriveError,
    DriveNotMountedError,
    NotSupportedHereError,
    OptionError,
    TargetExistsError,
)
from colabstage.machine import drive as drive_module
from colabstage.machine.drive import ask_drives
from colabstage.machine.drive_errors import mount_error
from colabstage.machine.mounts import drive_root, list_mounts, normalise_drive_path
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs
from tests.support.colab import simulated_colab
from tests.support.colab_machine import ColabKnobs, SimulatedColab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.machine.conftest import MakeSilentMount
    from tests.support.colab_machine import Preset


class FolderDrive:
    """A Drive that is only a folder: the mount table does not know it."""

    mountpoint: Path | None = None

    def mount(self, mountpoint: Path, *, readonly: bool = False) -> None:
        """Pretend."""
        self.mountpoint = mountpoint

    def unmount(self) -> None:
        """Stop pretending."""
        self.mountpoint = None

    def flush(self, *, timeout_s: float) -> bool:
        """There is nothing to upload."""
        return True

    def kill(self) -> None:
        """Nothing runs."""

    def new_machine(self) -> None:
        """Nothing is cached."""


@pytest.fixture
def colab(tmp_path: Path) -> Iterator[SimulatedColab]:
    """A practice Colab whose Drive never gets mounted."""
    with simulated_colab(tmp_path / "machine") as machine:
        yield machine


@pytest.mark.parametrize(
    ("knobs", "kind", "advice"),
    [
        (ColabKnobs(auth="refused"), DriveAuthError, "tick every box"),
        (ColabKnobs(auth="silent"), DriveError, "nobody answers the dialogue"),
        (ColabKnobs(mount="root_too_large"), DriveError, "move files from the top level into folders"),
        (ColabKnobs(mount="policy_disabled"), DriveAuthError, "administrator"),
        (ColabKnobs(mount="client_exits"), DriveError, r"drive_fs\.txt"),
        (ColabKnobs(mount="hangs"), DriveError, "said nothing until the deadline"),
    ],
)
def test_each_failure_of_the_client_is_one_typed_error(
    colab: SimulatedColab, knobs: ColabKnobs, kind: type[ColabstageError], advice: str
) -> None:
    """Whatever google.colab raises, the caller sees an error of ours that says what to do, with the cause attached."""
    colab.knobs = knobs
    with pytest.raises(kind, match=advice) as caught:
        mount_drive(colab.root / "content/drive")
    assert caught.type is kind
    assert caught.value.__cause__ is not None
    # Where Dask is imported, causes are pickled with their errors, and the stand-in's class is not pexpect's own.
    caught.value.__cause__ = caught.value.__context__ = None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def spoil_with_space(folder: Path) -> Path:
    """A mount point with a space in its name."""
    return folder / "my drive"


def spoil_with_link(folder: Path) -> Path:
    """A mount point that is a link."""
    (folder / "real").mkdir()
    (folder / "drive").symlink_to(folder / "real")
    return folder / "drive"


def spoil_with_files(folder: Path) -> Path:
    """A mount point with a file in it, where Drive's would be."""
    (folder / "drive/My Drive").mkdir(parents=True)
    (folder / "drive/My Drive/model.pt").write_text("precious")
    return folder / "drive"


def spoil_with_folder(folder: Path) -> Path:
    """A mount point with a folder that no Drive has."""
    (folder / "drive/photos").mkdir(parents=True)
    return folder / "drive"


def spoil_with_file(folder: Path) -> Path:
    """A mount point that is a file."""
    (folder / "drive").write_text("precious")
    return folder / "drive"


def spoil_with_no_parent(folder: Path) -> Path:
    """A mount point in a folder that is not there."""
    return folder / "no/drive"


@pytest.mark.parametrize(
    ("spoil", "kind", "advice"),
    [
        (spoil_with_space, OptionError, "contains a space"),
        (spoil_with_link, OptionError, "symbolic link"),
        (spoil_with_files, TargetExistsError, r"'My Drive/model\.pt'"),
        (spoil_with_folder, TargetExistsError, "'photos'"),
        (spoil_with_file, TargetExistsError, "is a file"),
        (spoil_with_no_parent, OptionError, "does not exist"),
    ],
)
def test_a_bad_mount_point_is_refused_before_anybody_is_asked(
    colab: SimulatedColab, spoil: Callable[[Path], Path], kind: type[ColabstageError], advice: str
) -> None:
    """Colab asks for the permission first and then refuses; we do not, and what stood there stays."""
    place = spoil(colab.root / "content")
    before = sorted((colab.root / "content").rglob("*"))
    with pytest.raises(kind, match=advice):
        mount_drive(place)
    assert colab.auth_requests == 0
    assert sorted((colab.root / "content").rglob("*")) == before


def test_a_file_in_the_place_of_the_settings_is_named(colab: SimulatedColab) -> None:
    """~/.config/Google must be a folder; the error names it."""
    (colab.root / "root/.config").mkdir()
    (colab.root / "root/.config/Google").write_text("")
    with pytest.raises(TargetExistsError, match=r"\.config/Google"):
        mount_drive(colab.root / "content/drive")


@pytest.mark.parametrize(
    ("preset", "advice"),
    [
        ("local", r"works in Google Colab only"),
        ("kaggle", "not a Colab machine"),
        ("colab_enterprise", "Cloud Storage bucket"),
        ("colab_subprocess", "in a cell first"),
    ],
)
def test_where_drive_cannot_be_mounted_the_error_says_so(tmp_path: Path, preset: Preset, advice: str) -> None:
    """Off Colab, and in processes that are no notebook, there is an error and never silence."""
    with simulated_colab(tmp_path / "machine", preset=preset) as machine:
        (machine.root / "content").mkdir(parents=True, exist_ok=True)
        with pytest.raises(NotSupportedHereError, match=advice):
            mount_drive(machine.root / "content/drive")


@pytest.mark.parametrize("verb", [mount_drive, refresh_drive, partial(flush_drive, remount=True)])
@pytest.mark.fuse
def test_where_nobody_can_answer_nobody_is_asked(real_colab: SimulatedColab, verb: Callable[..., object]) -> None:
    """A command line that runs code in the kernel declares it: refused before the request; a mount is left alone."""
    place = real_colab.root / "content/drive"
    if verb is not mount_drive:
        mount_drive(place)
    kernel = sys.modules["IPython"].get_ipython().kernel
    kernel.get_parent = lambda: {"content": {"allow_stdin": False}}
    asked = real_colab.auth_requests
    with pytest.raises(NotSupportedHereError, match=r"colab drivemount.*hf://"):
        verb(place) if verb is mount_drive else verb()
    assert real_colab.auth_requests == asked
    if verb is not mount_drive:
        assert mount_drive(place) == place / "MyDrive"


def test_a_kernel_without_colabs_variables_is_not_supported(
    colab: SimulatedColab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real module fails with a bare KeyError there."""
    monkeypatch.delenv("TBE_EPHEM_CREDS_ADDR")
    with pytest.raises(NotSupportedHereError):
        mount_drive(colab.root / "content/drive")


def test_a_client_that_returns_without_mounting_is_found_out(tmp_path: Path) -> None:
    """Success is what the mount table says, not that nothing was raised."""
    with (
        simulated_colab(tmp_path / "machine", drive=FolderDrive()) as machine,
        pytest.raises(DriveAuthError, match="nothing was mounted"),
    ):
        mount_drive(machine.root / "content/drive")


@pytest.mark.parametrize("verb", [mount_drive, refresh_drive, flush_drive])
def test_only_the_main_thread_may_ask(colab: SimulatedColab, verb: Callable[[], object]) -> None:
    """Colab's channel to the page is not thread safe, so it is not asked from other threads."""
    caught: list[BaseException] = []

    def call() -> None:
        try:
            verb()
        except NotSupportedHereError as error:
            caught.append(error)

    thread = threading.Thread(target=call, name="reader-3")
    thread.start()
    thread.join()
    assert "reader-3" in str(caught[0])
    assert colab.calls == []


@pytest.mark.parametrize("verb", [refresh_drive, flush_drive])
def test_without_a_mounted_drive_there_is_nothing_to_refresh_or_flush(
    colab: SimulatedColab, verb: Callable[[], object]
) -> None:
    """On Colab the answer is to mount first; the client is not called."""
    with pytest.raises(DriveNotMountedError, match=r"mount_drive\(\)"):
        verb()
    assert colab.calls == []


@pytest.mark.parametrize("verb", [refresh_drive, flush_drive])
def test_off_colab_refresh_and_flush_are_errors(tmp_path: Path, verb: Callable[[], object]) -> None:
    """A flush that does nothing must not look like one that was done."""
    with (
        simulated_colab(tmp_path, preset="local"),
        pytest.raises(NotSupportedHereError),
    ):
        verb()


def test_an_unknown_failure_keeps_its_words() -> None:
    """What nobody has documented yet comes through as a DriveError with type and text."""
    error = mount_error(RuntimeError("something new"), Path("/content/drive"))
    assert type(error) is DriveError
    assert "RuntimeError: something new" in str(error)


def test_a_dead_transport_is_a_disconnected_drive() -> None:
    """Errno 107 from inside the client is the client's death."""
    error = mount_error(OSError(107, "Transport endpoint is not connected"), Path("/content/drive"))
    assert isinstance(error, DriveDisconnectedError)


def test_paths_elsewhere_are_on_no_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local folder called 'My Drive' is a local folder."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    place = tmp_path / "content/drive/My Drive"
    place.mkdir(parents=True)
    assert drive_root(place) is None
    assert ask_drives().folder is None
    assert normalise_drive_path(place) == place


def test_paths_are_judged_without_touching_the_drive(tmp_path: Path, silent_mount: MakeSilentMount) -> None:
    """Where a path lies, and how it is spelled, is known even while the client hangs."""
    root = silent_mount(tmp_path / "drive", "fuse.drive").place
    (tmp_path / "link").symlink_to(root / "My Drive/data")
    assert drive_root(root / "My Drive/a") == root
    assert normalise_drive_path(root / "My Drive/My Drive/a b") == root / "MyDrive/My Drive/a b"
    assert normalise_drive_path(root / "Shared drives/team/x") == root / "Shareddrives/team/x"
    assert normalise_drive_path(root / "MyDrive/x") == root / "MyDrive/x"
    assert normalise_drive_path(root) == root
    assert normalise_drive_path(tmp_path / "link/x") == root / "MyDrive/data/x"


def test_a_client_that_hangs_is_reported_and_not_forced(
    colab: SimulatedColab, silent_mount: MakeSilentMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be busy with uploads that a forced remount would lose, so the person decides."""
    monkeypatch.setattr(drive_module, "_PROBE_TIMEOUT_S", 0.3)
    place = silent_mount(colab.root / "content/drive", "fuse.drive").place
    with pytest.raises(DriveDisconnectedError, match="has not answered"):
        mount_drive(place)
    assert ask_drives(timeout_s=0.3).folder is None
    assert colab.calls == []


def test_something_else_at_the_mount_point_is_left_alone(colab: SimulatedColab, silent_mount: MakeSilentMount) -> None:
    """Another file system mounted there is named and not touched."""
    place = silent_mount(colab.root / "content/drive", "fuse.sshfs").place
    with pytest.raises(TargetExistsError, match=r"fuse\.sshfs"):
        mount_drive(place)
    assert colab.calls == []


def test_googles_client_counts_under_its_other_name_too(
    colab: SimulatedColab, silent_mount: MakeSilentMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounted as fuse.drivefs it is a Drive that may hang, and not something else that stands in the way."""
    monkeypatch.setattr(drive_module, "_PROBE_TIMEOUT_S", 0.3)
    place = silent_mount(colab.root / "content/drive", "fuse.drivefs").place
    assert drive_root(place / "MyDrive/a") == place
    assert normalise_drive_path(place / "My Drive/a") == place / "MyDrive/a"
    with pytest.raises(DriveDisconnectedError, match="has not answered"):
        mount_drive(place)


def old_client(folder: Path, script: str) -> None:
    """Put a google-drive-ocamlfuse into a folder of programs."""
    program = folder / "google-drive-ocamlfuse"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_the_old_client_gets_its_cache_cleared(
    tmp_path: Path, silent_mount: MakeSilentMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where google-drive-ocamlfuse is what is mounted, refreshing is its own `-cc`."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    place = silent_mount(tmp_path / "gdrive", "fuse.google-drive-ocamlfuse").place
    old_client(tmp_path, f'echo "$@" > {tmp_path}/asked')
    assert refresh_drive() == place
    assert (tmp_path / "asked").read_text() == "-cc\n"
    old_client(tmp_path, "echo broken >&2; exit 3")
    with pytest.raises(DriveError, match="broken"):
        refresh_drive()
    (tmp_path / "google-drive-ocamlfuse").unlink()
    with pytest.raises(NotSupportedHereError, match="PATH"):
        refresh_drive()
    with pytest.raises(NotSupportedHereError, match="cannot be flushed"):
        flush_drive()


@pytest.fixture
def real_colab(tmp_path: Path) -> Iterator[SimulatedColab]:
    """A practice Colab with a Drive that is really mounted, without any waiting."""
    drive = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    with simulated_colab(tmp_path / "machine", drive=drive) as machine:
        yield machine


def practice_drive(colab: SimulatedColab) -> SimulatedDrive:
    """The Drive behind a practice Colab."""
    assert isinstance(colab.drive, SimulatedDrive)
    return colab.drive


def cloud_file(colab: SimulatedColab, name: str, data: bytes = b"data") -> None:
    """Put a file into the cloud from elsewhere."""
    target = practice_drive(colab).cloud / "MyDrive" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


@pytest.mark.fuse
def test_mounting_returns_my_drive_and_asks_once(
    real_colab: SimulatedColab, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is there to read; a second call looks first and asks nobody."""
    cloud_file(real_colab, "kitti/1.png")
    place = real_colab.root / "content/drive"
    folder = mount_drive(place)
    assert folder == place / "MyDrive"
    assert (folder / "kitti/1.png").read_bytes() == b"data"
    assert mount_drive(place) == folder
    assert real_colab.auth_requests == 1
    assert capsys.readouterr().out == f"Mounted at {place}\n"


@pytest.mark.fuse
def test_a_mounted_drive_is_found(real_colab: SimulatedColab) -> None:
    """ask_drives, drive_root and the spelling of paths agree with the mount."""
    place = real_colab.root / "content/drive"
    assert ask_drives().folder is None
    folder = mount_drive(place)
    assert ask_drives().folder == folder
    assert drive_root(folder / "not/there") == place
    assert normalise_drive_path(place / "My Drive/a") == folder / "a"


@pytest.mark.fuse
def test_a_client_that_dies_at_once_is_reported(real_colab: SimulatedColab) -> None:
    """A mount that is dead when it is looked at is no success."""
    real_colab.knobs = ColabKnobs(mount="dies")
    with pytest.raises(DriveDisconnectedError, match="died at once"):
        mount_drive(real_colab.root / "content/drive")


@pytest.mark.fuse
def test_a_drive_mounted_elsewhere_stands_in_the_way(real_colab: SimulatedColab) -> None:
    """Mounting at a second place would kill the first mount with its uploads, so it is refused."""
    folder = mount_drive(real_colab.root / "content/drive")
    with pytest.raises(DriveError, match="end that mount"):
        mount_drive(real_colab.root / "content/other")
    assert ask_drives().folder == folder


@pytest.mark.fuse
def test_a_readonly_mount_stays_readonly_when_refreshed(real_colab: SimulatedColab) -> None:
    """Nothing can be written, before and after."""
    folder = mount_drive(real_colab.root / "content/drive", readonly=True)
    with pytest.raises(OSError, match="Read-only"):
        (folder / "x").write_text("x")
    refresh_drive()
    with pytest.raises(OSError, match="Read-only"):
        (folder / "x").write_text("x")


@pytest.mark.fuse
def test_refreshing_shows_new_files_and_loses_none(real_colab: SimulatedColab) -> None:
    """A file added elsewhere appears, and one written here just before has reached the cloud."""
    folder = mount_drive(real_colab.root / "content/drive")
    (folder / "mine").write_text("checkpoint")
    cloud_file(real_colab, "theirs")
    assert refresh_drive() == folder
    assert {path.name for path in folder.iterdir()} >= {"mine", "theirs"}
    assert (practice_drive(real_colab).cloud / "MyDrive/mine").read_text() == "checkpoint"


@pytest.mark.fuse
@pytest.mark.parametrize("verb", [refresh_drive, flush_drive])
def test_drive_is_not_taken_away_from_under_open_files(
    real_colab: SimulatedColab, verb: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open file, or the current folder, on Drive is named in the refusal and keeps working."""
    cloud_file(real_colab, "a")
    folder = mount_drive(real_colab.root / "content/drive")
    with (folder / "a").open("rb") as stream:
        with pytest.raises(DriveError, match=r"MyDrive/a'"):
            verb()
        assert stream.read() == b"data"
    monkeypatch.chdir(folder)
    with pytest.raises(DriveError, match=r"current folder .*os\.chdir"):
        verb()
    assert "drive.flush_and_unmount" not in real_colab.calls


@pytest.mark.fuse
def test_flushing_uploads_and_mounts_again(real_colab: SimulatedColab) -> None:
    """The report says where, how long, and that Drive is back."""
    folder = mount_drive(real_colab.root / "content/drive")
    (folder / "model.pt").write_bytes(b"w" * 1000)
    began = time.monotonic()
    report = flush_drive()
    seconds = time.monotonic() - began
    assert (report.mountpoint, report.remounted) == (folder.parent, True)
    assert 0 < report.seconds <= seconds
    assert (practice_drive(real_colab).cloud / "MyDrive/model.pt").read_bytes() == b"w" * 1000
    assert ask_drives().folder == folder


@pytest.mark.fuse
def test_flushing_at_the_end_leaves_drive_unmounted(real_colab: SimulatedColab) -> None:
    """With remount=False nobody is asked for anything at the end of a long night."""
    mount_drive(real_colab.root / "content/drive")
    assert not flush_drive(remount=False).remounted
    assert ask_drives().folder is None
    assert real_colab.auth_requests == 1


@pytest.mark.fuse
def test_a_flush_that_fails_is_an_error_and_drive_stays(real_colab: SimulatedColab) -> None:
    """Not everything was uploaded: that must not pass for a flush, and nothing is unmounted."""
    folder = mount_drive(real_colab.root / "content/drive")
    real_colab.knobs = replace(real_colab.knobs, flush="fails")
    for verb in (flush_drive, refresh_drive):
        with pytest.raises(DriveError, match=r"gave up after .*\s+session open"):
            verb()
    assert ask_drives().folder == folder


@pytest.mark.fuse
@pytest.mark.parametrize("verb", [refresh_drive, flush_drive])
def test_a_drive_that_does_not_come_back_is_an_error(
    real_colab: SimulatedColab, monkeypatch: pytest.MonkeyPatch, verb: Callable[[], object]
) -> None:
    """Everything is uploaded; but what a loop writes next would be on the local disk, so it must not go on."""
    monkeypatch.setattr(drive_module, "_REMOUNT_WAIT_S", 0.0)
    place = real_colab.root / "content/drive"
    (mount_drive(place) / "a").write_text("x")
    real_colab.knobs = ColabKnobs(remount="fails")
    with pytest.raises(DriveNotMountedError, match="mount failed") as caught:
        verb()
    assert f"mount_drive('{place}')" in str(caught.value)
    assert (practice_drive(real_colab).cloud / "MyDrive/a").read_text() == "x"
    real_colab.knobs = ColabKnobs()
    assert (mount_drive(place) / "a").read_text() == "x"


@pytest.mark.fuse
@pytest.mark.parametrize("verb", [refresh_drive, flush_drive])
@pytest.mark.parametrize(
    ("preset", "auth", "kind"),
    [
        ("colab_subprocess", "granted", NotSupportedHereError),
        ("colab_cpu", "refused", DriveAuthError),
        ("colab_cpu", "silent", DriveAuthError),
    ],
)
def test_nothing_is_unmounted_that_could_not_be_mounted_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[], object],
    preset: Preset,
    auth: Literal["granted", "refused", "silent"],
    kind: type[ColabstageError],
) -> None:
    """In a script, against a refusal, and with nobody there, Drive stays as it is, with what waits to be uploaded."""
    monkeypatch.setattr(drive_module, "_CONSENT_S", 1.0)
    drive = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    knobs = ColabKnobs(auth=auth, waits_really=True)
    with simulated_colab(tmp_path / "machine", preset=preset, drive=drive, knobs=knobs) as colab:
        # By another program, the notebook.
        folder = colab.root / "content/drive/MyDrive"
        drive.mount(folder.parent)
        drive.set_faults(DriveFaults(stall_uploads=True))
        (folder / "a").write_text("x")
        with pytest.raises(kind) as caught:
            verb()
        assert "drive.flush_and_unmount" not in colab.calls
        assert caught.type is kind
        assert drive.is_alive()
        assert ask_drives().folder == folder
        drive.set_faults(DriveFaults())


@pytest.mark.fuse
def test_a_script_may_flush_for_good(tmp_path: Path) -> None:
    """With remount=False nothing has to be mounted again, so it works without a cell."""
    drive = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    with simulated_colab(tmp_path / "machine", preset="colab_subprocess", drive=drive) as script:
        folder = script.root / "content/drive/MyDrive"
        drive.mount(folder.parent)
        (folder / "a").write_text("x")
        assert not flush_drive(remount=False).remounted
        assert (drive.cloud / "MyDrive/a").read_text() == "x"


@pytest.mark.fuse
def test_a_script_leaves_a_dead_mount_alone(tmp_path: Path) -> None:
    """As long as it is there, everything fails; without it, everything would be written to the local disk."""
    drive = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    with simulated_colab(tmp_path / "machine", preset="colab_subprocess", drive=drive) as script:
        place = script.root / "content/drive"
        drive.mount(place)
        drive.kill()
        for verb in (partial(mount_drive, place), refresh_drive):
            with pytest.raises(NotSupportedHereError):
                verb()
        assert script.calls == []
        assert any(mount.mountpoint == place for mount in list_mounts())

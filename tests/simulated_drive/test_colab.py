"""The stand-in google.colab: what ours meets in it, and what it leaves behind, which is nothing."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, get_args

import pytest

from colabstage import flush_drive, mount_drive, refresh_drive
from colabstage.errors import OptionError
from colabstage.machine.platforms import detect_platform
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.support.colab import simulated_colab
from tests.support.colab_machine import ColabKnobs, Preset, SimulatedColab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FolderDrive:
    """A Drive made of plain folders that logs what it is asked to do."""

    def __init__(self, cloud: Path) -> None:
        self.mountpoint: Path | None = None
        self.cloud = cloud
        self.log: list[str] = []
        (cloud / "MyDrive").mkdir(parents=True)

    def mount(self, mountpoint: Path, *, readonly: bool = False) -> None:
        for name in ("MyDrive", "My Drive"):
            (mountpoint / name).symlink_to(self.cloud / "MyDrive")
        self.mountpoint = mountpoint
        self.log.append("mount readonly" if readonly else "mount")

    def unmount(self) -> None:
        assert self.mountpoint is not None
        for link in self.mountpoint.iterdir():
            link.unlink()
        self.mountpoint = None
        self.log.append("unmount")

    def flush(self, *, timeout_s: float) -> bool:
        self.log.append(f"flush {timeout_s:g}")
        return True

    def kill(self) -> None:
        self.log.append("kill")


@pytest.fixture
def colab(tmp_path: Path) -> Iterator[SimulatedColab]:
    """A practice Colab with a Drive of plain folders."""
    with simulated_colab(tmp_path / "machine", drive=FolderDrive(tmp_path / "cloud")) as machine:
        yield machine


@pytest.fixture
def place(colab: SimulatedColab) -> Path:
    return colab.root / "content/drive"


def log_of(colab: SimulatedColab) -> list[str]:
    assert isinstance(colab.drive, FolderDrive)
    return colab.drive.log


def drive_module() -> Any:
    return importlib.import_module("google.colab.drive")


@contextlib.contextmanager
def raises(name: str, message: str) -> Iterator[None]:
    """Expect an exception by the name of its type and its exact text, the way code that cannot import it must."""
    with pytest.raises(Exception) as caught:
        yield
    assert (caught.type.__name__, caught.value.args[0] if caught.value.args else "") == (name, message)


def test_mounting_asks_first_and_says_what_it_did(
    colab: SimulatedColab, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second mount asks again and changes nothing; a forced one is a kill and a new mount, never a flush."""
    drive = drive_module()
    assert drive.mount(str(place)) is None
    assert capsys.readouterr().out == f"Mounted at {place}\n"
    assert {path.name for path in place.iterdir()} == {"MyDrive", "My Drive"}
    assert colab.calls == ["drive.mount", "request_auth dfs_ephemeral"]
    drive.mount(str(place))
    assert capsys.readouterr().out == (
        f"Drive already mounted at {place}; to attempt to forcibly remount, call "
        f'drive.mount("{place}", force_remount=True).\n'
    )
    assert (colab.auth_requests, log_of(colab)) == (2, ["mount"])
    drive.mount(str(place), force_remount=True, readonly=True)
    assert log_of(colab) == ["mount", "kill", "unmount", "mount readonly"]


def test_a_local_folder_of_the_right_name_fools_it(
    colab: SimulatedColab, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "My Drive").mkdir(parents=True)
    drive_module().mount(str(place))
    assert capsys.readouterr().out.startswith("Drive already mounted at ")
    assert log_of(colab) == []


@pytest.mark.parametrize(
    ("knobs", "name", "message"),
    [
        (ColabKnobs(auth="silent"), "ValueError", "mount failed"),
        (ColabKnobs(mount="client_exits"), "ValueError", "mount failed"),
        (
            ColabKnobs(mount="policy_disabled"),
            "ValueError",
            "The domain policy has disabled Drive File Stream: https://support.google.com/a/answer/7496409",
        ),
        (ColabKnobs(mount="hangs"), "TIMEOUT", "Timeout exceeded."),
    ],
)
def test_the_client_fails_as_the_knobs_say(
    colab: SimulatedColab, place: Path, knobs: ColabKnobs, name: str, message: str
) -> None:
    colab.knobs = knobs
    with raises(name, message):
        drive_module().mount(str(place))
    assert log_of(colab) == []


def test_flushing_uploads_and_unmounts_in_silence(
    colab: SimulatedColab, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit reaches the client in seconds; a failure, a machine of another kind and a process without Colab's
    variables have their own words."""
    drive = drive_module()
    drive.mount(str(place))
    capsys.readouterr()
    colab.knobs = ColabKnobs(flush="fails")
    with raises("ValueError", "flush_and_unmount failed"):
        drive.flush_and_unmount()
    colab.knobs = ColabKnobs()
    drive.flush_and_unmount(timeout_ms=2500)
    assert log_of(colab) == ["mount", "flush 2", "unmount"]
    assert list(place.iterdir()) == []
    assert capsys.readouterr().out == ""
    drive.flush_and_unmount()
    assert capsys.readouterr().out == "Drive not mounted, so nothing to flush and unmount.\n"
    monkeypatch.delenv("CLOUDSDK_CONFIG")
    with raises("KeyError", "CLOUDSDK_CONFIG"):
        drive.flush_and_unmount()
    (colab.root / "var/colab/mp").write_text("")
    with raises("NotImplementedError", "google.colab.drive is unsupported in this environment."):
        drive.flush_and_unmount()


@pytest.mark.parametrize(
    ("preset", "name", "mountable"),
    [
        ("colab_cpu", "colab", True),
        ("colab_gpu", "colab", True),
        ("colab_enterprise", "colab-enterprise", False),
        ("colab_subprocess", "colab", False),
        ("kaggle", "kaggle", False),
    ],
)
def test_each_practice_machine_is_taken_for_what_it_plays(
    tmp_path: Path, preset: Preset, name: str, mountable: bool
) -> None:
    """Platform detection, unaware of the practice, sees the platform, and its folders below the root. In a script that
    a notebook started, the real module stumbles over the missing kernel."""
    with simulated_colab(tmp_path, preset=preset) as machine:
        found = detect_platform()
        assert importlib.import_module("google.colab").__version__ == "0.0.1a2"
        assert machine.root == tmp_path.resolve()
        image = os.environ["COLAB_IMAGE_TYPE"]
        if preset == "colab_subprocess":
            with raises("AttributeError", "'NoneType' object has no attribute 'kernel'"):
                drive_module().mount(str(tmp_path / "content/drive"))
    assert (found.name, found.drive_mountable) == (name, mountable)
    assert image == ("gpu" if preset == "colab_gpu" else "cpu")
    assert found.fast_dir.is_relative_to(tmp_path)


def test_what_cannot_be_practised_says_so(tmp_path: Path) -> None:
    """No google.colab on a plain computer; a word that is no preset; no Drive to mount."""
    with simulated_colab(tmp_path / "local", preset="local"), pytest.raises(ImportError):
        drive_module()
    with simulated_colab(tmp_path / "a"), pytest.raises(OptionError, match="drive=SimulatedDrive"):
        drive_module().mount(str(tmp_path / "a/content/drive"))
    before = dict(os.environ)
    with (
        pytest.raises(OptionError, match=r"'collab' is not a practice machine.*colab_cpu"),
        simulated_colab(tmp_path / "b", preset="collab"),  # type: ignore[arg-type]
    ):
        pass
    assert dict(os.environ) == before
    assert not (tmp_path / "b").exists()


def modules_now() -> dict[str, object]:
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] in {"google", "IPython"}}


@pytest.mark.parametrize("preset", get_args(Preset))
def test_everything_is_as_before_afterwards(tmp_path: Path, preset: Preset) -> None:
    """Variables and modules come back, also when the practice ends in an exception."""
    with contextlib.suppress(ImportError):  # which the practice loads where nobody has
        importlib.import_module("IPython")
    environ, modules = dict(os.environ), modules_now()
    with contextlib.suppress(ZeroDivisionError), simulated_colab(tmp_path, preset=preset):
        os.environ["LEFT_BEHIND"] = "1"
        raise ZeroDivisionError
    assert (dict(os.environ), modules_now()) == (environ, modules)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[SimulatedColab]:
    """A practice Colab with a Drive that is really mounted."""
    drive = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    with simulated_colab(tmp_path / "machine", drive=drive) as made:
        drive_module().mount(str(made.root / "content/drive"))
        yield made


@pytest.mark.fuse
@pytest.mark.parametrize("dead", [True, False])
def test_a_busy_mount_stays_and_the_next_client_fails(mounted: SimulatedColab, dead: bool) -> None:
    """An open file is enough, whether its client was alive or dead before; once it is closed the mount succeeds."""
    place = mounted.root / "content/drive"
    assert mounted.drive is not None
    held = os.open(place, os.O_RDONLY)
    if dead:
        mounted.drive.kill()
    with raises("ValueError", "mount failed"):
        drive_module().mount(str(place), force_remount=True)
    with contextlib.suppress(OSError):
        os.close(held)
    drive_module().mount(str(place), force_remount=True)
    assert list((place / "MyDrive").iterdir()) == []


@pytest.mark.fuse
def test_a_mount_at_another_place_leaves_the_first_one_dead(mounted: SimulatedColab) -> None:
    """Its client is killed and nobody unmounts it; what waited for its upload is with the next client."""
    first, second = mounted.root / "content/drive", mounted.root / "content/other"
    (first / "MyDrive" / "mine").write_bytes(b"here")
    drive_module().mount(str(second), force_remount=True)
    with pytest.raises(OSError, match="not connected"):
        first.stat()
    assert (second / "MyDrive" / "mine").read_bytes() == b"here"
    # Ours are about the one that lives, and do not end it for the sake of the dead one.
    assert refresh_drive() == second / "MyDrive"
    assert flush_drive(remount=False).mountpoint == second
    assert mount_drive(first) == first / "MyDrive"


@pytest.mark.fuse
def test_a_try_from_inside_spoils_later_ones(mounted: SimulatedColab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell of the failed one goes on standing in the mount, also when the caller has left."""
    place, drive = mounted.root / "content/drive", drive_module()
    monkeypatch.chdir(place / "MyDrive")
    assert mounted.drive is not None
    mounted.drive.kill()
    for _ in range(2):
        with raises("ValueError", "mount failed"):
            drive.mount(str(place), force_remount=True)
        monkeypatch.chdir("/")
    assert len(mounted.shells) == 1

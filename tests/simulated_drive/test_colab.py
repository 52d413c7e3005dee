"""The stand-in google.colab: the order of its questions, its words, and what it leaves behind, which is nothing."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from colabstage.errors import OptionError
from colabstage.machine.drive import flush_drive, mount_drive, refresh_drive
from colabstage.machine.mounts import probe_mount
from colabstage.machine.platforms import detect_platform
from tests.support.colab import simulated_colab
from tests.support.colab_machine import ColabKnobs, Preset, SimulatedColab

if TYPE_CHECKING:
    from collections.abc import Iterator


class FolderDrive:
    """A Drive made of plain folders, for tests that need no file system of their own."""

    def __init__(self, cloud: Path) -> None:
        self.mountpoint: Path | None = None
        self.cloud = cloud
        self.log: list[str] = []
        (cloud / "MyDrive").mkdir(parents=True)

    def mount(self, mountpoint: Path, *, readonly: bool = False) -> None:
        """Show the cloud under both spellings."""
        for name in ("MyDrive", "My Drive"):
            (mountpoint / name).symlink_to(self.cloud / "MyDrive")
        self.mountpoint = mountpoint
        self.log.append("mount readonly" if readonly else "mount")

    def unmount(self) -> None:
        """Leave an empty folder."""
        assert self.mountpoint is not None
        for link in self.mountpoint.iterdir():
            link.unlink()
        self.mountpoint = None
        self.log.append("unmount")

    def flush(self, *, timeout_s: float) -> bool:
        """Note for how long."""
        self.log.append(f"flush {timeout_s:g}")
        return True

    def kill(self) -> None:
        """Note it."""
        self.log.append("kill")

    def new_machine(self) -> None:
        """Note it."""
        self.log.append("new machine")


@pytest.fixture
def colab(tmp_path: Path) -> Iterator[SimulatedColab]:
    """A practice Colab with a Drive of plain folders."""
    with simulated_colab(tmp_path / "machine", drive=FolderDrive(tmp_path / "cloud")) as machine:
        yield machine


def log_of(colab: SimulatedColab) -> list[str]:
    """What the Drive was told to do."""
    assert isinstance(colab.drive, FolderDrive)
    return colab.drive.log


def colab_module(name: str) -> Any:
    """A module of the stand-in package."""
    return importlib.import_module(f"google.colab.{name}")


@contextlib.contextmanager
def raises(name: str, message: str) -> Iterator[None]:
    """Expect an exception by the name of its type and its exact text, the way code that cannot import it must."""
    with pytest.raises(Exception) as caught:
        yield
    assert (caught.type.__name__, caught.value.args[0] if caught.value.args else "") == (name, message)


def test_mounting_says_so_and_shows_both_spellings(colab: SimulatedColab, capsys: pytest.CaptureFixture[str]) -> None:
    """The plain case: asked once, mounted, printed."""
    place = colab.root / "content/drive"
    assert colab_module("drive").mount(str(place)) is None
    assert capsys.readouterr().out == f"Mounted at {place}\n"
    assert {path.name for path in place.iterdir()} == {"MyDrive", "My Drive"}
    assert colab.calls == ["drive.mount", "request_auth dfs_ephemeral"]


def test_mounting_again_asks_again_and_changes_nothing(
    colab: SimulatedColab, capsys: pytest.CaptureFixture[str]
) -> None:
    """The permission is asked for before anything is looked at."""
    place = str(colab.root / "content/drive")
    drive = colab_module("drive")
    drive.mount(place)
    capsys.readouterr()
    drive.mount(place)
    assert capsys.readouterr().out == (
        f"Drive already mounted at {place}; to attempt to forcibly remount, call "
        f'drive.mount("{place}", force_remount=True).\n'
    )
    assert colab.auth_requests == 2
    assert log_of(colab) == ["mount"]


def test_a_forced_remount_kills_the_client(colab: SimulatedColab) -> None:
    """It is a kill and a new mount, never a flush."""
    place = str(colab.root / "content/drive")
    colab_module("drive").mount(place)
    colab_module("drive").mount(place, force_remount=True, readonly=True)
    assert log_of(colab) == ["mount", "kill", "unmount", "mount readonly"]


def test_a_local_folder_of_the_right_name_fools_it(colab: SimulatedColab, capsys: pytest.CaptureFixture[str]) -> None:
    """What it takes for a mounted Drive is a folder called 'My Drive'."""
    (colab.root / "content/drive/My Drive").mkdir(parents=True)
    colab_module("drive").mount(str(colab.root / "content/drive"))
    assert capsys.readouterr().out.startswith("Drive already mounted at ")
    assert log_of(colab) == []


def test_checks_come_in_the_real_order(colab: SimulatedColab, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything wrong at once, mending one thing uncovers the next, to the last."""
    drive = colab_module("drive")
    bad, place = str(colab.root / "content/my drive"), colab.root / "content/drive"
    marker = colab.root / "var/colab/hostname"
    marker.unlink()
    monkeypatch.setenv("VERTEX_PRODUCT", "COLAB_ENTERPRISE")
    monkeypatch.delenv("TBE_EPHEM_CREDS_ADDR")
    colab.knobs = ColabKnobs(auth="refused", mount="root_too_large")
    (colab.root / "root/.config").write_text("")
    place.mkdir()
    (place / "left behind").write_text("")
    with raises(
        "NotImplementedError",
        "Mounting drive is unsupported in this environment. Use PyDrive2 instead. See examples at "
        "https://colab.research.google.com/notebooks/io.ipynb#scrollTo=7taylj9wpsA2.",
    ):
        drive.mount(bad)
    marker.write_text("m-s-1")
    with raises("ValueError", "Mountpoint must not contain a space."):
        drive.mount(bad)
    with raises("NotImplementedError", "google.colab.drive.mount is not supported in Colab Enterprise."):
        drive.mount(str(place))
    monkeypatch.delenv("VERTEX_PRODUCT")
    with raises("KeyError", "TBE_EPHEM_CREDS_ADDR"):
        drive.mount(str(place))
    monkeypatch.setenv("TBE_EPHEM_CREDS_ADDR", "172.28.0.1:8009")
    assert colab.auth_requests == 0
    with raises("MessageError", "Error: credential propagation was unsuccessful"):
        drive.mount(str(place))
    colab.knobs = replace(colab.knobs, auth="granted")
    (colab.root / "root/.config").unlink()
    (colab.root / "root/.config").mkdir()
    (colab.root / "root/.config/Google").write_text("")
    with raises("ValueError", f"{colab.root}/root/.config/Google must be a directory if present"):
        drive.mount(str(place))
    (colab.root / "root/.config/Google").unlink()
    with raises("ValueError", "Mountpoint must not already contain files"):
        drive.mount(str(place))
    (place / "left behind").unlink()
    with raises(
        "ValueError",
        "mount failed: timeout during initial read of root folder; for more info: "
        "https://research.google.com/colaboratory/faq.html#drive-timeout",
    ):
        drive.mount(str(place))
    assert "QueryManager timed out" in Path(drive._logs_dir(), "drive_fs.txt").read_text()
    colab.knobs = ColabKnobs()
    drive.mount(str(place))


def test_bad_mount_points_have_their_own_words(colab: SimulatedColab) -> None:
    """A link, a file and a missing parent folder, after the permission was asked for."""
    drive, content = colab_module("drive"), colab.root / "content"
    (content / "real").mkdir()
    (content / "link").symlink_to(content / "real")
    (content / "file").write_text("")
    with raises("ValueError", "Mountpoint must not be a symlink"):
        drive.mount(str(content / "link"))
    with raises("ValueError", "Mountpoint must either be a directory or not exist"):
        drive.mount(str(content / "file"))
    with raises("ValueError", "Mountpoint must be in a directory that exists"):
        drive.mount(str(content / "no/drive"))
    assert colab.auth_requests == 3


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
def test_the_client_fails_as_the_knobs_say(colab: SimulatedColab, knobs: ColabKnobs, name: str, message: str) -> None:
    """Each documented end of the client, by type name and words."""
    colab.knobs = knobs
    with raises(name, message):
        colab_module("drive").mount(str(colab.root / "content/drive"))
    assert log_of(colab) == []


def test_flushing_uploads_and_unmounts_in_silence(colab: SimulatedColab, capsys: pytest.CaptureFixture[str]) -> None:
    """The time limit reaches the client in seconds, and the mount point is left empty."""
    place, drive = colab.root / "content/drive", colab_module("drive")
    drive.mount(str(place))
    capsys.readouterr()
    drive.flush_and_unmount(timeout_ms=2500)
    assert log_of(colab) == ["mount", "flush 2", "unmount"]
    assert list(place.iterdir()) == []
    assert capsys.readouterr().out == ""
    drive.flush_and_unmount()
    assert capsys.readouterr().out == "Drive not mounted, so nothing to flush and unmount.\n"


def test_flushing_fails_as_documented(colab: SimulatedColab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout, a machine of another kind, and a process without Colab's variables."""
    drive = colab_module("drive")
    drive.mount(str(colab.root / "content/drive"))
    colab.knobs = ColabKnobs(flush="fails")
    with raises("ValueError", "flush_and_unmount failed"):
        drive.flush_and_unmount()
    monkeypatch.delenv("CLOUDSDK_CONFIG")
    with raises("KeyError", "CLOUDSDK_CONFIG"):
        drive.flush_and_unmount()
    (colab.root / "var/colab/mp").write_text("")
    with raises("NotImplementedError", "google.colab.drive is unsupported in this environment."):
        drive.flush_and_unmount()


def test_private_names_that_notebooks_use_are_there(colab: SimulatedColab) -> None:
    """Notebooks call `_mount`, set `mount._DEBUG` and look into the log folder."""
    drive = colab_module("drive")
    assert drive.mount._DEBUG is False
    assert drive._env().root_dir == str(colab.root)
    assert drive._env()._fields == ("home", "root_dir", "dev", "path", "config_dir")
    assert drive._logs_dir() == f"{colab.root}/root/.config/Google/DriveFS/Logs/"
    assert drive._timeouts_path() == f"{drive._logs_dir()}timeouts.txt"
    assert drive.__all__ == ["flush_and_unmount", "mount"]
    drive._mount(str(colab.root / "content/drive"))
    assert colab.calls[-1] == "drive.mount"  # which asks nobody, unlike `mount`


def test_a_script_has_no_kernel_to_ask_through(tmp_path: Path) -> None:
    """In a script that a notebook started, the real module stumbles over the missing kernel."""
    with (
        simulated_colab(tmp_path, preset="colab_subprocess"),
        raises("AttributeError", "'NoneType' object has no attribute 'kernel'"),
    ):
        colab_module("drive").mount(str(tmp_path / "content/drive"))


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
    """Platform detection, unaware of the practice, sees the platform, and its folders below the root."""
    with simulated_colab(tmp_path, preset=preset) as machine:
        found = detect_platform()
        assert importlib.import_module("google.colab").__version__ == "0.0.1a2"
        assert machine.root == tmp_path.resolve()
        image = os.environ["COLAB_IMAGE_TYPE"]
    assert (found.name, found.drive_mountable) == (name, mountable)
    assert image == ("gpu" if preset == "colab_gpu" else "cpu")
    assert found.fast_dir.is_relative_to(tmp_path)


def test_local_has_no_google_colab(tmp_path: Path) -> None:
    """The import fails there as on any laptop."""
    with simulated_colab(tmp_path, preset="local"), pytest.raises(ImportError):
        importlib.import_module("google.colab")


def test_an_unknown_machine_lists_those_there_are(tmp_path: Path) -> None:
    """A word that is no preset is refused before anything changes."""
    before = dict(os.environ)
    with (
        pytest.raises(OptionError, match=r"'collab' is not a practice machine.*colab_cpu"),
        simulated_colab(tmp_path / "machine", preset="collab"),  # type: ignore[arg-type]
    ):
        pass
    assert dict(os.environ) == before
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize("preset", get_args(Preset))
def test_everything_is_as_before_afterwards(tmp_path: Path, preset: Preset) -> None:
    """Variables and modules come back, also when the practice ends in an exception."""
    with contextlib.suppress(ImportError):  # which the practice loads where nobody has
        importlib.import_module("IPython")
    environ = dict(os.environ)
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] in {"google", "IPython"}}
    with contextlib.suppress(ZeroDivisionError), simulated_colab(tmp_path, preset=preset):
        os.environ["LEFT_BEHIND"] = "1"
        raise ZeroDivisionError
    assert dict(os.environ) == environ
    assert {
        name: module for name, module in sys.modules.items() if name.split(".")[0] in {"google", "IPython"}
    } == modules


def test_other_google_packages_stay_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """google is a namespace that many distributions share."""
    (tmp_path / "site/google/practice_protobuf").mkdir(parents=True)
    (tmp_path / "site/google/practice_protobuf/__init__.py").write_text("WORD = 'here'")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    try:
        with simulated_colab(tmp_path / "machine"):
            assert importlib.import_module("google.practice_protobuf").WORD == "here"
            assert importlib.import_module("google.colab").drive.mount
        assert importlib.import_module("google.practice_protobuf").WORD == "here"
        with pytest.raises(ImportError):
            importlib.import_module("google.colab")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "google"]:
            del sys.modules[name]


def test_secrets_answer_and_refuse_as_documented(colab: SimulatedColab) -> None:
    """The value, and the five ways not to get one."""
    assert not hasattr(importlib.import_module("google.colab"), "userdata")  # must be imported by name
    userdata = colab_module("userdata")
    colab.knobs = ColabKnobs(secrets={"TOKEN": "abc", "OTHER": "x"}, secrets_not_granted=frozenset({"OTHER"}))
    assert userdata.get("TOKEN") == "abc"
    for bad in ("", None, 7):
        with raises("ValueError", "Please enter a valid secret name"):
            userdata.get(bad)
    with raises("ValueError", "Secret name cannot contain spaces or whitespace"):
        userdata.get("MY TOKEN")
    with raises("SecretNotFoundError", "Secret NONE does not exist."):
        userdata.get("NONE")
    with pytest.raises(userdata.NotebookAccessError) as caught:
        userdata.get("OTHER")
    errors = colab_module("errors")
    assert not isinstance(caught.value, errors.Error)
    assert issubclass(userdata.SecretNotFoundError, errors.Error)
    assert issubclass(userdata.TimeoutException, errors.Error)
    assert not issubclass(errors.WidgetException, errors.Error)
    colab.knobs = replace(colab.knobs, page_is_open=False)
    with raises(
        "TimeoutException",
        "Requesting secret TOKEN timed out. Secrets can only be fetched when running from the Colab UI.",
    ):
        userdata.get("TOKEN")


def test_files_go_up_and_down(
    colab: SimulatedColab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uploads never overwrite; downloads of nothing are errors."""
    monkeypatch.chdir(tmp_path)
    files = colab_module("files")
    colab.knobs = ColabKnobs(uploads={"a.csv": b"1,2"})
    assert files.upload() == {"a.csv": b"1,2"}
    assert files.upload() == {"a (1).csv": b"1,2"}
    assert capsys.readouterr().out == "Saving a.csv to a.csv\nSaving a.csv to a (1).csv\n"
    files.upload_file("b.csv")
    assert capsys.readouterr().out == f"Saved a.csv to {tmp_path}/b.csv\n"
    files.download("b.csv")
    assert colab.downloads == {"b.csv": b"1,2"}
    assert list(files.upload("new")) == ["new/a.csv"]
    assert files._upload_file("c.csv") == ("c.csv", b"1,2")
    for uploads, message in (
        ({}, "File has not been uploaded"),
        ({"a": b"", "b": b""}, "Multiple files received, please upload a single file"),
    ):
        colab.knobs = ColabKnobs(uploads=uploads)
        with raises("ValueError", message):
            files.upload_file("d.csv")
    assert not Path("d.csv").exists()
    with raises("FileNotFoundError", "Cannot find file: no.csv"):
        files.download("no.csv")


def test_signing_in(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Granted, refused, the older way through gcloud, and the warning of Colab Enterprise."""
    with simulated_colab(tmp_path / "a") as machine:
        colab_module("auth").authenticate_user(project_id="mine")
        assert machine.signed_in
        assert os.environ["GOOGLE_CLOUD_PROJECT"] == os.environ["GOOGLE_CLOUD_QUOTA_PROJECT"] == "mine"
        colab_module("auth").authenticate_user()
        assert (machine.auth_requests, machine.waits) == (1, [None])
        machine.knobs, machine.signed_in = ColabKnobs(auth="refused"), False
        with raises("MessageError", "Error: credential propagation was unsuccessful"):
            colab_module("auth").authenticate_user()
        monkeypatch.delenv("USE_AUTH_EPHEM")
        with raises("AuthorizationError", "Error fetching credentials"):
            colab_module("auth").authenticate_user()
        machine.marker("/var/colab/mp").write_text("")
        with raises("NotImplementedError", "google.colab.auth is unsupported in this environment."):
            colab_module("auth").authenticate_user()
    with simulated_colab(tmp_path / "b", preset="colab_enterprise"):
        colab_module("auth").authenticate_user()
    assert capsys.readouterr().out.startswith("WARNING")


def test_signing_in_as_a_service_account(colab: SimulatedColab, capsys: pytest.CaptureFixture[str]) -> None:
    """A key is uploaded; what is none is refused after three tries, and a cancelled dialogue is no error."""
    auth = colab_module("auth")
    auth.authenticate_service_account()
    assert not colab.service_account
    colab.knobs = ColabKnobs(uploads={"key.json": b"{}"})
    with raises("AuthorizationError", "Failed to fetch user credentials"):
        auth.authenticate_service_account()
    assert capsys.readouterr().out.count("Invalid credentials: please try again.") == 3
    key = {"type": "service_account", "client_email": "ann@example.org"}
    colab.knobs = ColabKnobs(uploads={"key.json": json.dumps(key).encode()})
    with raises("AuthorizationError", "Could not get cloud project id from credentials"):
        auth.authenticate_service_account()
    colab.knobs = ColabKnobs(uploads={"key.json": json.dumps({**key, "project_id": "mine"}).encode()})
    auth.authenticate_service_account()
    assert "ann@example.org" in capsys.readouterr().out
    assert Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).is_relative_to(colab.root)


def test_everything_that_is_announced_can_be_imported(colab: SimulatedColab) -> None:
    """`from google.colab import *` takes the names that the real package has."""
    package = importlib.import_module("google.colab")
    names = ["auth", "autoviz", "data_table", "drive", "files", "output", "runtime", "snippets", "widgets"]
    assert package.__all__ == names
    assert all(importlib.import_module(f"google.colab.{name}") is getattr(package, name) for name in names)
    colab_module("data_table").enable_dataframe_formatter()


def test_a_time_of_less_than_a_second_is_none(colab: SimulatedColab) -> None:
    """It is cut off to whole seconds, and none means to wait for ever, which nobody wants to practise."""
    colab.knobs = ColabKnobs(auth="silent")
    place = str(colab.root / "content/drive")
    with raises("ValueError", "mount failed"):
        colab_module("drive").mount(place, timeout_ms=1999)
    with raises("WaitsForEverError", "The request 'dfs_ephemeral' would wait for ever."):
        colab_module("drive").mount(place, timeout_ms=999)
    assert colab.waits == [1, 0]


def test_why_a_mount_failed_is_looked_up_in_all_of_the_log(colab: SimulatedColab) -> None:
    """After the root folder took too long once, every failure is said to be that."""
    drive, place = colab_module("drive"), str(colab.root / "content/drive")
    colab.knobs = ColabKnobs(mount="client_exits")
    with raises("ValueError", "mount failed"):
        drive.mount(place)
    said = []
    for problem in ("root_too_large", "client_exits"):
        colab.knobs = ColabKnobs(mount=problem)
        with pytest.raises(ValueError, match="mount failed: timeout") as caught:
            drive.mount(place)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[SimulatedColab]:
    """A practice Colab with a Drive that is really mounted."""
    from simulated_drive.drive import SimulatedDrive
    from simulated_drive.knobs import DriveKnobs

    with simulated_colab(
        tmp_path / "machine", drive=SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    ) as made:
        colab_module("drive").mount(str(made.root / "content/drive"))
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
        colab_module("drive").mount(str(place), force_remount=True)
    with contextlib.suppress(OSError):
        os.close(held)
    colab_module("drive").mount(str(place), force_remount=True)
    assert list((place / "MyDrive").iterdir()) == []


@pytest.mark.fuse
def test_a_mount_at_another_place_leaves_the_first_one_dead(mounted: SimulatedColab) -> None:
    """Its client is killed and nobody unmounts it; what waited for its upload is with the next client."""
    first, second = mounted.root / "content/drive", mounted.root / "content/other"
    (first / "MyDrive" / "mine").write_bytes(b"here")
    colab_module("drive").mount(str(second), force_remount=True)
    assert probe_mount(first).state == "dead"
    assert (second / "MyDrive" / "mine").read_bytes() == b"here"
    # Ours are about the one that lives, and do not end it for the sake of the dead one.
    assert refresh_drive() == second / "MyDrive"
    assert flush_drive(remount=False).mountpoint == second
    assert mount_drive(first) == first / "MyDrive"


@pytest.mark.fuse
def test_a_try_from_inside_spoils_later_ones(mounted: SimulatedColab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell of the failed one goes on standing in the mount, also when the caller has left."""
    place, drive = mounted.root / "content/drive", colab_module("drive")
    monkeypatch.chdir(place / "MyDrive")
    assert mounted.drive is not None
    mounted.drive.kill()
    with raises("ValueError", "mount failed"):
        drive.mount(str(place), force_remount=True)
    monkeypatch.chdir("/")
    with raises("ValueError", "mount failed"):
        drive.mount(str(place), force_remount=True)
    assert len(mounted.shells) == 1


def test_output_checks_its_arguments(colab: SimulatedColab) -> None:
    """Unknown widget versions and a wait that is no bool are ValueErrors; the rest is noted."""
    output = colab_module("output")
    output.enable_custom_widget_manager()
    with pytest.raises(ValueError, match="9"):
        output.enable_custom_widget_manager("9")
    with raises("ValueError", "wait must be a boolean value"):
        output.clear(wait=1)
    with output.temporary() as tag, output.use_tags("progress") as tags:
        assert tags == {tag, "progress"}
        output.clear(wait=True)
    output.disable_custom_widget_manager()
    assert colab.calls == [
        "output.enable_custom_widget_manager",
        "output.clear",
        "output.clear",
        "output.disable_custom_widget_manager",
    ]
    output.register_callback("done", print)
    output.unregister_callback("done")
    with raises("ValueError", "Callback function not registered: done."):
        output.unregister_callback("done")
    with output.redirect_to_element("#here"), output.to_header_area(), output.to_footer_area():
        output.serve_kernel_port_as_iframe(8080)


def test_unassigning_deletes_the_machine(colab: SimulatedColab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local disk is wiped, the mount ends as by a kill, and a fresh machine stands there."""
    colab_module("drive").mount(str(colab.root / "content/drive"))
    (colab.root / "content/data.h5").write_text("local only")
    colab_module("runtime").unassign()
    assert not (colab.root / "content/data.h5").exists()
    assert (colab.root / "var/colab/hostname").exists()
    assert log_of(colab) == ["mount", "kill", "unmount", "new machine"]
    colab.knobs = ColabKnobs(unassign="fails")
    with raises("RuntimeManagementError", "Unable to request VM unassignment."):
        colab_module("runtime").unassign()
    monkeypatch.delenv("TBE_RUNTIME_ADDR")
    with raises("RuntimeManagementError", "Unable to find the runtime management service."):
        colab_module("runtime").unassign()


def test_a_machine_without_a_drive_says_what_to_pass(tmp_path: Path) -> None:
    """Mounting where no Drive was given is a mistake of the practice, told as such."""
    with simulated_colab(tmp_path), pytest.raises(OptionError, match="drive=SimulatedDrive"):
        colab_module("drive").mount(str(tmp_path / "content/drive"))


@pytest.mark.fuse
def test_a_real_mount_behaves_as_the_mount_table_says(tmp_path: Path) -> None:
    """With the FUSE Drive behind it: type fuse.drive, both spellings, uploads at a flush, losses at a deletion."""
    from simulated_drive.drive import SimulatedDrive
    from simulated_drive.knobs import DriveFaults, DriveKnobs

    drive = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    with simulated_colab(tmp_path / "machine", drive=drive) as machine:
        place = machine.root / "content/drive"
        colab_module("drive").mount(str(place))
        assert f" {place} fuse.drive " in Path("/proc/self/mounts").read_text()
        (place / "My Drive/kept").write_text("1")
        assert (place / "MyDrive/kept").read_text() == "1"
        colab_module("drive").flush_and_unmount()
        assert (drive.cloud / "MyDrive/kept").read_text() == "1"
        colab_module("drive").mount(str(place))
        drive.set_faults(DriveFaults(stall_uploads=True))
        (place / "MyDrive/lost").write_text("2")
        with raises("ValueError", "flush_and_unmount failed"):
            colab_module("drive").flush_and_unmount(timeout_ms=100)
        colab_module("runtime").unassign()
        drive.set_faults(DriveFaults())
        colab_module("drive").mount(str(place))
        assert [path.name for path in (place / "MyDrive").iterdir()] == ["kept"]
    assert str(place) not in Path("/proc/self/mounts").read_text()

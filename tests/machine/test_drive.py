"""`mount_drive`, `refresh_drive` and `flush_drive` on a practice Colab: who is asked, what is refused, nothing lost.

The stand-in goes the real client's way (`tests/simulated_drive/test_colab.py` holds it to that): it asks first,
unmounts plainly, fails on what is busy, and leaves its shell where the caller stood.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import flush_drive, list_datasets, mount_drive, refresh_drive
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
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs
from tests.support.colab import simulated_colab
from tests.support.colab_machine import ColabKnobs, SimulatedColab
from tests.support.images import make_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.machine.conftest import MakeSilentMount
    from tests.support.colab_machine import Preset

WAITING = b"not in the cloud yet"


@pytest.fixture
def drive(tmp_path: Path) -> SimulatedDrive:
    """A Drive with somebody's file."""
    made = SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())
    (made.cloud / "MyDrive/data").write_bytes(b"theirs" * 1000)
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
def mine(place: Path, drive: SimulatedDrive) -> Path:
    """A file written on the mounted Drive that waits for its upload."""
    folder = mount_drive(place)
    drive.set_faults(DriveFaults(stall_uploads=True))
    (folder / "mine").write_bytes(WAITING)
    return folder / "mine"


def count_mounted(place: Path) -> int:
    """How many mounts the kernel has at a place."""
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()].count(str(place))


def check_nothing_lost(mine: Path, drive: SimulatedDrive) -> None:
    """Check that everything not yet uploaded is on the mount, and then in the cloud."""
    drive.set_faults(DriveFaults())
    assert mine.read_bytes() == WAITING
    assert drive.flush(timeout_s=60)
    assert (drive.cloud / "MyDrive/mine").read_bytes() == WAITING


def allow_input(*, wanted: bool) -> None:
    """Set whether the request that runs this code allows input."""
    sys.modules["IPython"].get_ipython().kernel.get_parent = lambda: {"content": {"allow_stdin": wanted}}


def refused(verb: Callable[[], object], kind: type[ColabstageError], named: str = "") -> str:
    """Make a call that is refused with this class and a message that contains `named`; return the message."""
    with pytest.raises(ColabstageError) as caught:
        verb()
    assert caught.type is kind, caught.value
    assert named in str(caught.value)
    return str(caught.value)


# --- mounting ---


@pytest.mark.fuse
def test_mounting_returns_my_drive_and_asks_once(
    colab: SimulatedColab, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allow_input(wanted=True)
    folder = mount_drive(place)
    assert folder == place / "MyDrive"
    assert (folder / "data").read_bytes() == b"theirs" * 1000
    allow_input(wanted=False)
    assert mount_drive(place) == folder
    assert colab.auth_requests == 1
    assert capsys.readouterr().out == f"Mounted at {place}\n"
    allow_input(wanted=True)
    # A second place would end the first mount, together with pending uploads.
    refused(lambda: mount_drive(place.with_name("other")), DriveError, str(place))
    assert (folder / "data").exists()


@pytest.mark.parametrize(
    ("knobs", "kind"),
    [
        (ColabKnobs(mount="policy_disabled"), DriveAuthError),
        (ColabKnobs(mount="hangs"), DriveError),
        pytest.param(ColabKnobs(mount="dies"), DriveDisconnectedError, marks=pytest.mark.fuse),
    ],
)
def test_each_failure_of_the_client_is_one_typed_error(
    colab: SimulatedColab, place: Path, knobs: ColabKnobs, kind: type[ColabstageError]
) -> None:
    """The client's own error is its cause; the message is the same in another process."""
    colab.knobs = knobs
    with pytest.raises(kind) as caught:
        mount_drive(place)
    assert caught.type is kind
    assert knobs.mount == "dies" or caught.value.__cause__ is not None
    # If Dask is imported, causes are pickled with their errors, and the stand-in's class is not pexpect's own.
    caught.value.__cause__ = caught.value.__context__ = None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "named"),
    [
        (RuntimeError("something new"), DriveError, "RuntimeError: something new"),
        (OSError(107, "Transport endpoint is not connected"), DriveDisconnectedError, "content/drive"),
        (None, DriveAuthError, ""),
    ],
    ids=["unknown", "dead", "no error and no mount"],
)
def test_what_the_client_may_answer_besides(
    colab: SimulatedColab, place: Path, error: Exception | None, kind: type[ColabstageError], named: str
) -> None:
    def mount(*_: object, **__: object) -> None:
        if error is not None:
            raise error

    sys.modules["google.colab.drive"].mount = mount  # type: ignore[attr-defined]
    refused(lambda: mount_drive(place), kind, named)


def test_only_what_the_log_gained_says_why(colab: SimulatedColab, place: Path) -> None:
    """After one time-out of the first listing, the client gives the same reason for every failure."""
    said = []
    for knobs in (
        ColabKnobs(mount="root_too_large"),
        ColabKnobs(mount="root_too_large"),
        ColabKnobs(auth="silent"),
    ):
        colab.knobs = knobs
        said.append(refused(lambda: mount_drive(place), DriveError))
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize(
    ("files", "name", "kind", "named"),
    [
        ({"drive/My Drive/model.pt": "precious"}, "drive", TargetExistsError, "My Drive/model.pt"),
        ({"drive/photos/.keep": ""}, "drive", TargetExistsError, "photos"),
        ({"drive": "precious"}, "drive", TargetExistsError, "content/drive"),
        ({"real/a": ""}, "link", OptionError, "content/link"),
        ({}, "no/drive", OptionError, "no/drive"),
        *(({}, name, OptionError, name) for name in ("my drive", "a;b", "$(id)", "ä")),
        ({}, "a\nb", OptionError, r"a\nb"),
    ],
)
def test_a_bad_mount_point_is_refused_before_anybody_is_asked(
    colab: SimulatedColab, files: dict[str, Any], name: str, kind: type[ColabstageError], named: str
) -> None:
    """Colab asks for the permission first and then refuses; it also hands the name to a shell, unquoted."""
    content = make_tree(colab.root / "content", files)
    (content / "link").symlink_to("real")
    before = sorted(content.rglob("*"))
    refused(lambda: mount_drive(content / name), kind, named)
    assert (colab.calls, sorted(content.rglob("*"))) == ([], before)


@pytest.mark.fuse
def test_empty_folders_in_drives_place_do_not_keep_it_away(place: Path) -> None:
    (place / "MyDrive/photos/cat").mkdir(parents=True)
    assert (mount_drive(place) / "data").exists()


@pytest.mark.fuse
def test_times_are_whole_seconds_and_at_least_one(colab: SimulatedColab, place: Path) -> None:
    """Less would mean no limit; an invalid time is refused before anybody is asked."""
    for timeout_s in (0.0, -1.0, float("nan"), float("inf")):
        refused(partial(mount_drive, place, timeout_s=timeout_s), OptionError, repr(timeout_s))
    assert colab.calls == []
    mount_drive(place, timeout_s=0.2)
    assert colab.waits == [1]


# --- where nobody can be asked ---


@pytest.mark.parametrize("preset", ["local", "colab_subprocess", "colab_cpu"])
def test_where_drive_cannot_be_mounted_the_error_says_so(
    tmp_path: Path, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside Colab, in processes without a notebook, and in a kernel without Colab's variables."""
    with simulated_colab(tmp_path / "machine", preset=preset) as machine:
        (machine.root / "content").mkdir(parents=True, exist_ok=True)
        monkeypatch.delenv("TBE_EPHEM_CREDS_ADDR", raising=False)
        refused(lambda: mount_drive(machine.root / "content/drive"), NotSupportedHereError)
        for verb in (refresh_drive, flush_drive):
            refused(verb, NotSupportedHereError if preset == "local" else DriveNotMountedError, "_drive()")
        assert not set(machine.calls) & {"drive.flush_and_unmount"}


def test_only_the_main_thread_may_ask(colab: SimulatedColab) -> None:
    for verb in (mount_drive, refresh_drive, flush_drive):
        with ThreadPoolExecutor(1, "reader") as threads:
            threads.submit(refused, verb, NotSupportedHereError, "reader_0").result()
    assert colab.calls == []


@pytest.mark.fuse
@pytest.mark.parametrize("verb", [mount_drive, refresh_drive, partial(flush_drive, remount=True)])
def test_where_nobody_can_answer_nobody_is_asked(
    colab: SimulatedColab, place: Path, verb: Callable[..., object]
) -> None:
    """A command line that runs code in the kernel declares this: refused before the request; a mount is left alone."""
    if verb is not mount_drive:
        mount_drive(place)
    allow_input(wanted=False)
    asked = colab.auth_requests
    refused(partial(verb, *([place] if verb is mount_drive else [])), NotSupportedHereError)
    assert colab.auth_requests == asked
    assert count_mounted(place) == (verb is not mount_drive)


@pytest.mark.fuse
@pytest.mark.parametrize("verb", [refresh_drive, flush_drive])
@pytest.mark.parametrize(
    ("preset", "knobs", "kind"),
    [
        ("colab_subprocess", ColabKnobs(), NotSupportedHereError),
        ("colab_cpu", ColabKnobs(auth="refused"), DriveAuthError),
        ("colab_cpu", ColabKnobs(auth="silent", waits_really=True), DriveAuthError),
    ],
)
def test_nothing_is_unmounted_that_could_not_be_mounted_again(
    tmp_path: Path,
    drive: SimulatedDrive,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[], object],
    preset: Preset,
    knobs: ColabKnobs,
    kind: type[ColabstageError],
) -> None:
    """In a script, after a refusal, and with nobody there, Drive stays as it is, with its pending uploads."""
    monkeypatch.setattr(drive_module, "_CONSENT_S", 0.1)
    with simulated_colab(tmp_path / "machine", preset=preset, drive=drive, knobs=knobs) as colab:
        place = colab.root / "content/drive"
        drive.mount(place)  # by another program, the notebook
        drive.set_faults(DriveFaults(stall_uploads=True))
        (place / "MyDrive/mine").write_bytes(WAITING)
        refused(verb, kind)
        assert "drive.flush_and_unmount" not in colab.calls
        check_nothing_lost(place / "MyDrive/mine", drive)


@pytest.mark.fuse
def test_a_script_may_flush_for_good_and_leaves_a_dead_mount_alone(tmp_path: Path, drive: SimulatedDrive) -> None:
    """With `remount=False`, nothing has to be mounted again; without the dead mount, everything would go to the local
    disk."""
    with simulated_colab(tmp_path / "machine", preset="colab_subprocess", drive=drive) as script:
        place = script.root / "content/drive"
        drive.mount(place)
        (place / "MyDrive/a").write_text("x")
        assert not flush_drive(remount=False).remounted
        assert (drive.cloud / "MyDrive/a").read_text() == "x"
        drive.mount(place)
        drive.kill()
        for verb in (partial(mount_drive, place), refresh_drive):
            refused(verb, NotSupportedHereError)
        assert script.calls == ["drive.flush_and_unmount"]
        assert count_mounted(place) == 1


# --- other clients, and clients that hang ---


def test_a_client_that_hangs_is_reported_and_not_forced(
    colab: SimulatedColab, silent_mount: MakeSilentMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be busy with uploads that a forced remount would lose, so the user decides."""
    monkeypatch.setattr(drive_module, "_PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(drive_module.ask_drives, "__kwdefaults__", {"near": None, "timeout_s": 0.2})
    place = silent_mount(colab.root / "content/drive", "fuse.drivefs").place
    refused(lambda: mount_drive(place), DriveDisconnectedError, str(place))
    # Functions that only look for a Drive do not hang either.
    assert list_datasets(local_dir=colab.root / "local") == []
    assert colab.calls == []


def test_something_else_at_the_mount_point_is_left_alone(colab: SimulatedColab, silent_mount: MakeSilentMount) -> None:
    place = silent_mount(colab.root / "content/drive", "fuse.sshfs").place
    refused(lambda: mount_drive(place), TargetExistsError, "fuse.sshfs")
    assert colab.calls == []


def test_the_old_client_gets_its_cache_cleared(
    tmp_path: Path, silent_mount: MakeSilentMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If google-drive-ocamlfuse is mounted, refreshing means its own `-cc`."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    place = silent_mount(tmp_path / "gdrive", "fuse.google-drive-ocamlfuse").place
    program = tmp_path / "google-drive-ocamlfuse"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    program.chmod(0o755)
    assert refresh_drive() == place
    assert (tmp_path / "asked").read_text() == "-cc\n"
    program.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    refused(refresh_drive, DriveError, "broken")
    program.unlink()
    for verb in (refresh_drive, flush_drive):
        refused(verb, NotSupportedHereError, "google-drive-ocamlfuse")


# --- refreshing and flushing ---


@pytest.mark.fuse
@pytest.mark.parametrize("readonly", [False, True])
def test_refreshing_shows_new_files_and_keeps_the_mode(place: Path, drive: SimulatedDrive, readonly: bool) -> None:
    folder = mount_drive(place, readonly=readonly)
    if not readonly:
        (folder / "mine").write_bytes(WAITING)
    (drive.cloud / "MyDrive/theirs").write_text("added elsewhere")
    assert refresh_drive() == folder
    assert (folder / "theirs").exists()
    if readonly:
        with pytest.raises(OSError, match="Read-only"):
            (folder / "x").write_text("x")
    else:
        assert (drive.cloud / "MyDrive/mine").read_bytes() == WAITING
        (folder / "x").write_text("x")


@pytest.mark.fuse
def test_flushing_uploads_and_mounts_again_or_does_not(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive
) -> None:
    place = mine.parent.parent
    drive.set_faults(DriveFaults())
    report = flush_drive()
    assert (report.mountpoint, report.remounted, 0 < report.seconds < 60) == (place, True, True)
    check_nothing_lost(mine, drive)
    asked = colab.auth_requests
    assert not flush_drive(remount=False).remounted
    assert (count_mounted(place), colab.auth_requests) == (0, asked)


@pytest.mark.fuse
@pytest.mark.parametrize("verb", [refresh_drive, flush_drive])
def test_drive_is_not_taken_away_from_under_what_uses_it(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive, verb: Callable[[], object]
) -> None:
    """An open file, the current folder, and a mapping, which outlives its file and would kill the notebook."""
    data = mine.with_name("data")
    with data.open("rb") as file:
        refused(verb, DriveError, str(data))
        weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    refused(verb, DriveError, str(data))
    assert weights[:6] == b"theirs"
    weights.close()
    os.chdir(mine.parent)
    try:
        refused(verb, DriveError, str(mine.parent))
    finally:
        os.chdir("/")
    assert "drive.flush_and_unmount" not in colab.calls
    drive.set_faults(DriveFaults())
    verb()
    check_nothing_lost(mine, drive)


@pytest.mark.fuse
def test_a_flush_that_fails_is_an_error_and_drive_stays(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive
) -> None:
    """Only a slow failure is called a time-out."""
    late = refused(lambda: flush_drive(timeout_s=0.01), DriveError, "timeout_s")
    colab.knobs = ColabKnobs(flush="fails")
    for verb in (flush_drive, refresh_drive):
        assert "timeout_s" in late
        assert "timeout_s" not in refused(verb, DriveError)
    check_nothing_lost(mine, drive)


@pytest.mark.fuse
def test_a_mount_that_goes_a_little_later_is_flushed(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it never goes, the error says so."""
    colab.knobs = ColabKnobs(unmount_lag_s=0.5)
    drive.set_faults(DriveFaults())
    assert flush_drive().remounted
    check_nothing_lost(mine, drive)
    monkeypatch.setattr(drive_module, "_UNMOUNT_S", 0.1)
    refused(flush_drive, DriveError, str(mine.parent.parent))


@pytest.mark.fuse
@pytest.mark.parametrize("verb", [refresh_drive, flush_drive])
def test_a_drive_that_does_not_come_back_is_an_error(
    colab: SimulatedColab,
    mine: Path,
    drive: SimulatedDrive,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[], object],
) -> None:
    """Everything is uploaded; but a loop would write to the local disk next, so it must not continue."""
    monkeypatch.setattr(drive_module, "_REMOUNT_WAIT_S", 0.0)
    drive.set_faults(DriveFaults())
    colab.knobs = ColabKnobs(remount="fails")
    refused(verb, DriveNotMountedError, f"mount_drive('{mine.parent.parent}')")
    assert (drive.cloud / "MyDrive/mine").read_bytes() == WAITING
    colab.knobs = ColabKnobs()
    mount_drive(mine.parent.parent)
    check_nothing_lost(mine, drive)


# --- a client that has died ---


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("held_by", "verb"),
    [
        ("an open file", mount_drive),
        ("a program", refresh_drive),
        ("the current folder", mount_drive),
        ("a try by hand", mount_drive),
    ],
)
def test_a_dead_mount_is_mounted_again_whatever_uses_it(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive, held_by: str, verb: Callable[..., object]
) -> None:
    """It is unmounted first, and the client is never called from inside, where its shell would keep it busy."""
    place, here = mine.parent.parent, Path.cwd()
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, here)
        if held_by == "an open file":
            stack.enter_context(contextlib.suppress(OSError))  # closing fails: its client is dead
            stack.enter_context(mine.open("rb"))
        elif held_by == "a program":
            stack.callback(stack.enter_context(subprocess.Popen(["sleep", "100"], cwd=mine.parent)).kill)
        else:
            os.chdir(mine.parent)
        drive.kill()
        if held_by == "a try by hand":
            with pytest.raises(ValueError, match="mount failed"):
                sys.modules["google.colab.drive"].mount(str(place), force_remount=True)
            assert colab.shells
        assert (verb(place) if verb is mount_drive else verb()) == mine.parent
        check_nothing_lost(mine, drive)
        assert count_mounted(place) == 1
        if held_by == "the current folder":
            assert (Path.cwd(), colab.shells) == (mine.parent, [])


@pytest.mark.fuse
def test_a_mount_that_fails_leaves_nobody_inside(
    colab: SimulatedColab, mine: Path, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is left beside the mount point, where the next try succeeds."""
    monkeypatch.chdir(mine.parent)
    drive.kill()
    place = mine.parent.parent
    # Pending uploads are in the client's cache on this machine: nothing is flushed, and no message suggests force.
    assert "force_remount" not in refused(flush_drive, DriveDisconnectedError, f"mount_drive('{place}')")
    colab.knobs = ColabKnobs(auth="refused")
    refused(lambda: mount_drive(place), DriveAuthError)
    assert Path.cwd() == place.parent
    colab.knobs = ColabKnobs()
    mount_drive(place)
    check_nothing_lost(mine, drive)

"""The public functions on a mounted (simulated) Google Drive, also if it is dead, hangs, lies or is not mounted."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import colabstage
from colabstage import (
    fetch_files,
    flush_drive,
    list_datasets,
    mount_drive,
    pack_dataset,
    publish_file,
    purge_datasets,
    stage_dataset,
)
from colabstage.errors import (
    ColabstageError,
    DriveDisconnectedError,
    DriveError,
    DriveNotMountedError,
    SourceChangedError,
    SourceNotFoundError,
    TargetNotWritableError,
)
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, ListingFault, OpFault
from tests.stage.on_drive import GO_ON, SIZE, VERBS, On, make_places
from tests.support.colab import SimulatedColab, simulated_colab
from tests.support.images import in_classes, make_tree
from tests.support.invariants import contents
from tests.support.steps import Meanwhile

pytestmark = pytest.mark.fuse


def knobs(**changes: Any) -> pytest.MarkDecorator:
    """Change settings of the test's Drive, which by default has no waiting times."""
    return pytest.mark.parametrize("drive_knobs", [replace(DriveKnobs.quick(), **changes)])


@pytest.fixture
def images(drive: SimulatedDrive) -> Path:
    """Twenty images in the cloud, which `my_drive / "photos"` shows."""
    return make_tree(drive.cloud / "MyDrive/photos", in_classes(20))


def stage(source: Path, **options: Any) -> Any:
    """Without output; the cache is the default one, `colabstage` on the source's Drive."""
    return stage_dataset(source, **{"progress": False, **options})


def kinds_of_errors(on: On, verbs: set[str], named: str) -> dict[str, str]:
    """Make each call; return the kind of its error, or its result, by name."""
    found = {}
    for name in sorted(verbs):
        try:
            found[name] = f"no error: {VERBS[name](on)}"
        except ColabstageError as error:
            found[name] = type(error).__name__ if named in str(error) else str(error)
    return found


# --- a Drive that works ---


@pytest.mark.parametrize(
    "drive_knobs",
    [
        # As for an account without a limit, on the other kind of mount; the long form has each for itself.
        replace(DriveKnobs.quick(), type="drivefs", reports_space=False),
        pytest.param(replace(DriveKnobs.quick(), type="drivefs"), marks=pytest.mark.long),
        pytest.param(replace(DriveKnobs.quick(), reports_space=False), marks=pytest.mark.long),
    ],
    ids=["drivefs, no figures of space", "drivefs", "no figures of space"],
)
@pytest.mark.torch
def test_each_verb_works(drive: SimulatedDrive, my_drive: Path, tmp_path: Path) -> None:
    make_places(drive.cloud / "MyDrive", tmp_path / "local")
    on = On(my_drive, tmp_path / "local")
    found = {name: call(on) for name, call in VERBS.items()}
    assert found["publish_file, waiting"].proof == "uploaded"
    assert found["pack_dataset"].encoding == "pixels"  # without enough room, files would be stored instead
    assert (my_drive / "cache" / found["stage_dataset, cache_dir"].path.name).is_file()
    assert [one.place for one in found["list_datasets, local_dir"]] == ["here"]
    assert contents(my_drive / "copy") == contents(tmp_path / "local/photos") == contents(my_drive / "out")


def test_the_next_session_starts_from_the_cache(
    images: Path, my_drive: Path, drive: SimulatedDrive, tmp_path: Path
) -> None:
    first = stage(my_drive / "photos").path.read_bytes()
    assert stage(my_drive.parent / "My Drive/photos").report.origin == "local"
    assert drive.flush(timeout_s=60)
    drive.new_machine()
    shutil.rmtree(tmp_path / "fast")
    drive.mount(my_drive.parent)
    again = stage(my_drive / "photos")
    assert again.report.origin == "cache"
    assert again.path.read_bytes() == first
    stats = drive.stats()
    assert stats.cold_opens + stats.warm_opens <= 6  # pack, record of rows and their manifests; nothing of the source


@pytest.mark.parametrize("drive_knobs", [replace(DriveKnobs.quick(), shortcuts_are_links=on) for on in (False, True)])
def test_shortcuts_lead_to_what_others_share(drive: SimulatedDrive, my_drive: Path, tmp_path: Path) -> None:
    """Through the shortcut and the folder it leads to; a dangling one is named."""
    make_tree(drive.cloud / ".shortcut-targets-by-id/1AbC/shared", in_classes(6))
    (drive.cloud / "MyDrive/shared").symlink_to("../.shortcut-targets-by-id/1AbC/shared")
    (drive.cloud / "MyDrive/gone").symlink_to("../.shortcut-targets-by-id/1Xyz/gone")
    for source in (my_drive / "shared", my_drive.parent / ".shortcut-targets-by-id/1AbC/shared"):
        assert stage(source, cache_dir=None).splits == {"train": 6}
    with pytest.raises(SourceNotFoundError, match="gone"):
        stage(my_drive / "gone", cache_dir=None)
    model = make_tree(tmp_path, {"model.pt": "weights"}) / "model.pt"
    report = publish_file(model, f"{my_drive}/shared/ck/", progress=False)
    assert report.path.read_bytes() == model.read_bytes()


# --- bad days ---


def test_a_full_account_does_not_cost_the_staging(images: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    drive.set_faults(DriveFaults(quota_exceeded=True))
    staged = stage(my_drive / "photos")
    assert staged.splits == {"train": 20}
    assert staged.report.cached.startswith("no")
    drive.set_faults(DriveFaults())
    retried = stage(my_drive / "photos")
    assert retried.report.origin == "local"
    assert [step.name for step in retried.report.steps] == ["open source", "look", "publish to cache"]
    assert len(list((my_drive / "colabstage").glob("*.h5"))) == 1


def test_a_drive_that_refuses_renames_is_named(drive: SimulatedDrive, my_drive: Path, tmp_path: Path) -> None:
    """As for somebody who may add files to a shared drive but not change them: nothing unfinished counts."""
    make_places(drive.cloud / "MyDrive", tmp_path / "local")
    drive.set_faults(DriveFaults(ops=(OpFault(op="rename", errno=errno.EACCES),)))
    on, refused = On(my_drive, tmp_path / "local"), {"publish_file", "pack_dataset", "fetch_files"}
    assert kinds_of_errors(on, refused, str(my_drive)) == dict.fromkeys(
        sorted(refused), TargetNotWritableError.__name__
    )
    assert VERBS["stage_dataset, cache_dir"](on).report.cached.startswith("no")
    assert not list((my_drive / "cache").glob("*.h5"))


def test_a_listing_that_lacks_files_is_listed_again(
    images: Path, drive: SimulatedDrive, my_drive: Path, tmp_path: Path
) -> None:
    """Half a folder's pack never counts: the folder is listed again before anything is recorded or published."""
    drive.set_faults(DriveFaults(listings=(ListingFault(pattern="MyDrive/photos/*", first=2),)))
    staged = stage(my_drive / "photos", cache_dir=tmp_path / "cache")
    assert staged.splits == {"train": 20}
    assert any("It was read again" in note for note in staged.report.notes)
    assert [path.read_bytes() for path in tmp_path.glob("cache/*.h5")] == [staged.path.read_bytes()]


def test_a_folder_that_never_lists_twice_the_same_is_refused(
    images: Path, my_drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload is under way: nothing that would count is kept, plain files included, and the error says what
    differs."""
    listed, scandir = iter(range(1000)), os.scandir

    def more(path: Any = ".") -> Any:
        if str(path) == str(my_drive / "photos/cat"):
            (images / f"cat/new{next(listed)}.png").write_bytes(b"")
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", more)
        with pytest.raises(SourceChangedError, match="file"):
            stage(my_drive / "photos", keep="files", cache_dir=None)
        with pytest.raises(SourceChangedError, match="file"):
            fetch_files(my_drive / "photos", tmp_path / "here", progress=False)
    assert not (tmp_path / "here").exists()
    for path in images.glob("cat/new*.png"):
        path.unlink()
    fetch_files(my_drive / "photos", tmp_path / "here", progress=False)
    assert contents(tmp_path / "here") == contents(images)


# --- a client that is dead, or starts to hang ---


@pytest.mark.torch
def test_a_drive_that_is_dead_from_the_start_is_one_error_everywhere(
    tmp_path: Path, drive: SimulatedDrive, my_drive: Path
) -> None:
    make_places(tmp_path / "copy", tmp_path / "local")
    drive.kill()
    refused = VERBS.keys() - GO_ON
    found = kinds_of_errors(On(my_drive, tmp_path / "local"), refused, str(my_drive.parent))
    assert found == dict.fromkeys(sorted(refused), DriveDisconnectedError.__name__)


_HANGING_LATER = """
import os, pathlib, signal, subprocess, sys
import colabstage.errors
from colabstage import purge_datasets
from simulated_drive.drive import stop_client
from tests.stage.on_drive import VERBS, On
from tests.support.deadlines import shorten_deadlines
drive, local, server = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
ask, answers, over = subprocess.run, [], False

def hang_afterwards(command, *arguments, **options):
    answer = ask(command, *arguments, **options)
    # A mount is asked two things at once.
    answers.append(command[0] == "stat")
    if sum(answers) % 2 == 0 and answers[-1] and not over:
        stop_client(server)
    return answer

on = On(drive, local)
VERBS["stage_dataset, cache_dir"](on)
cached = [one for one in VERBS["list_datasets"](on) if one.place == "cache"]
shorten_deadlines("machine", 0.2)
subprocess.run = hang_afterwards

def kept(report):
    (reason,) = report.reasons
    raise colabstage.errors.DriveDisconnectedError(reason)

def not_cached(data):
    raise colabstage.errors.DriveDisconnectedError(data.report.cached)

calls = {name: VERBS[name] for name in sys.argv[4:]}
calls["purge_datasets"] = lambda on: kept(purge_datasets(cached))
calls["cache_dir"] = lambda on: not_cached(on.stage(on.local / "photos", cache_dir=on.drive / "cache", image_size=9))
for name, call in calls.items():
    os.kill(server, signal.SIGCONT)
    try:
        call(on)
        print(name, "ended", flush=True)
    except colabstage.errors.DriveDisconnectedError as error:
        print(*([] if "not answered" in str(error) else [name, error]), flush=True)
os.kill(server, signal.SIGCONT)
print(*([] if colabstage.doctor(drive / "photos", timeout_s=2).exit_code == 1 else ["doctor"]), flush=True)
# No process ends, and none can be killed, while the server that has read a request of one of its threads is stopped.
over = True
os.kill(server, signal.SIGCONT)
"""
# One of each kind: other calls of the kind wait in the same place.
HANGING = [
    "stage_dataset",
    "plan_stage",
    "pack_dataset",
    "pack_dataset, from Drive",
    "pack_dataset, of a dataset",
    "fetch_files, from Drive",
    "extract_archive, from Drive",
    "publish_file",
    "restore_file",
    "list_datasets",
]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_mount_that_begins_to_hang_after_it_answered_ends_every_verb(
    tmp_path: Path, drive: SimulatedDrive, my_drive: Path
) -> None:
    make_places(drive.cloud / "MyDrive", tmp_path / "local")
    server = drive._server
    assert server is not None
    command = [sys.executable, "-c", _HANGING_LATER, str(my_drive), f"{tmp_path}/local", str(server.pid), *HANGING]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    finally:
        drive.go_on()
    assert ended.stdout.splitlines() == [""] * (len(HANGING) + 3)
    assert not (tmp_path / "local/c.h5").exists()
    assert not (tmp_path / "local/of-m.pt").exists()


# --- where no Drive is mounted: an error before anything is written, never a copy on the local disk ---


class TestUnmounted:
    @pytest.fixture(autouse=True)
    def invariants(self) -> None:
        """Unfinished work on a Drive that is gone is out of reach."""

    @pytest.fixture
    def drive(self, tmp_path: Path) -> SimulatedDrive:
        """A Drive that is not mounted."""
        return SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())

    @pytest.fixture
    def colab(self, tmp_path: Path, drive: SimulatedDrive) -> Iterator[SimulatedColab]:
        """A notebook in a new session."""
        with simulated_colab(tmp_path / "machine", drive=drive) as machine:
            yield machine

    @pytest.fixture
    def on(self, colab: SimulatedColab, drive: SimulatedDrive, tmp_path: Path) -> On:
        """Where Drive would be, and a local folder."""
        make_places(drive.cloud / "MyDrive", tmp_path / "local")
        return On(colab.root / "content/drive/MyDrive", tmp_path / "local")

    @pytest.mark.torch
    def test_every_verb_refuses_and_what_the_error_advises_works(self, on: On) -> None:
        place = on.drive.parent
        found = kinds_of_errors(on, {*VERBS}, f"mount_drive('{place}')")
        assert found == dict.fromkeys(sorted(VERBS), DriveNotMountedError.__name__)
        assert not place.exists()
        assert mount_drive(place) == on.drive
        assert VERBS["publish_file, waiting"](on).proof == "uploaded"

    @pytest.mark.parametrize("verb", ["publish_file", "fetch_files", "pack_dataset"])
    def test_a_drive_that_is_unmounted_midway_is_no_success(self, verb: str, on: On, drive: SimulatedDrive) -> None:
        """From then on, the path is a local one, and it is unknown what was written where."""
        folder = mount_drive(on.drive.parent.with_name("gdrive"))
        todo = [1]

        def unmount() -> None:
            if todo and todo.pop():
                subprocess.run(["umount", "-l", str(folder.parent)], check=True)
                drive.unmount()
                folder.mkdir(parents=True)

        works: dict[str, Callable[..., object]] = {
            "publish_file": lambda **shown: publish_file(on.local / "new.pt", folder / "m.pt", **shown),
            "fetch_files": lambda **shown: fetch_files(on.local / "photos", folder / "copy", **shown),
            "pack_dataset": lambda **shown: pack_dataset(on.local / "photos", folder / "p.h5", **shown),
        }
        with pytest.raises(DriveNotMountedError, match="gdrive"):
            works[verb](progress=Meanwhile(unmount))
        assert not todo

    def test_what_is_staged_outlives_the_drive_it_came_from(self, on: On, drive: SimulatedDrive) -> None:
        """It is used; waiting for its publication fails, and its pack is not reported as removed."""
        source = mount_drive(on.drive.parent) / "photos"
        data = colabstage.stage_dataset(source, image_size=SIZE, progress=False)
        cached = [one for one in list_datasets() if one.place == "cache"]
        flush_drive(remount=False)
        again = colabstage.stage_dataset(source, image_size=SIZE, cache_dir=None, progress=False)
        assert again.report.origin == "local"
        assert again.report.notes
        with pytest.raises(DriveNotMountedError):
            data.wait_published()
        report = purge_datasets(cached)
        assert (report.removed, report.kept) == ((), tuple(cached))
        assert any((drive.cloud / "MyDrive/colabstage").glob("*.h5"))

    def test_a_flush_that_fails_says_to_keep_the_session(
        self, on: On, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its words contain those of a mount that failed, whose advice would lose what is not uploaded."""
        mount_drive(on.drive.parent)
        monkeypatch.setattr(drive, "flush", lambda **_: False)
        with pytest.raises(DriveError, match="keep the session"):
            flush_drive(remount=False)

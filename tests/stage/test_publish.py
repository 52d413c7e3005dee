"""`publish_file` and `restore_file`: what arrives, never at the expense of the previous version, and is restored."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, publish_file, restore_file, stage_dataset
from colabstage.errors import DriveError, OptionError, SourceChangedError, SourceNotFoundError
from colabstage.stage.publish import await_upload
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs
from tests.support.images import in_classes, make_tree
from tests.support.invariants import snapshot, unvouched

BLOCK = 8 * 2**20
SIZE = 2 * BLOCK + 1000


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of a little more than two blocks, with a blank in its name."""
    return write(tmp_path / "my model.pt", os.urandom(SIZE))


def publish(path: Path, target: Any, **options: Any) -> Any:
    return publish_file(path, target, progress=False, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check(folder: Path, **versions: bytes) -> None:
    """Check that a folder holds exactly these versions of `model.pt`, each with its manifest."""
    files = {"model.pt" + ("" if name == "newest" else f".{name}"): content for name, content in versions.items()}
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert names(folder) == sorted([*files, *(f"{name}.json" for name in files)])
    assert unvouched(folder) == []


def test_two_versions_stay(tmp_path: Path) -> None:
    there, checkpoint = tmp_path / "there", tmp_path / "model.pt"
    for number in range(4):
        report = publish(write(checkpoint, b"%d" % number * 1000), f"{there}/")
        assert (report.path, report.nbytes, report.kept_bytes) == (there / "model.pt", 1000, 0)
        assert report.previous == (there / "model.pt.previous" if number else None)
    check(there, newest=b"3" * 1000, previous=b"2" * 1000)
    # Publishing the same again copies nothing, and the older version stays.
    assert publish(checkpoint, there).kept_bytes == 1000
    check(there, newest=b"3" * 1000, previous=b"2" * 1000)
    assert publish(write(checkpoint, b"4"), there, keep_previous=False).previous is None
    check(there, newest=b"4")


def test_a_version_is_on_the_disk_before_the_one_before_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure, a file has its bytes if it was synced, and its name if the folder was."""
    there, checkpoint = tmp_path / "there", tmp_path / "model.pt"
    sync, unlink = os.fsync, Path.unlink
    contents, named, kept = set[int](), set[int](), dict[int, set[int]]()

    def synced(handle: int) -> None:
        contents.add(os.fstat(handle).st_ino)
        if Path(f"/proc/self/fd/{handle}").readlink() == there:
            named.update(file.stat().st_ino for file in (there / "model.pt", there / "model.pt.json") if file.exists())
        sync(handle)

    def removed(path: Path, **options: Any) -> None:
        kept[path.stat().st_ino] = contents & named
        unlink(path, **options)

    publish(write(checkpoint, b"0"), f"{there}/")
    before = (there / "model.pt").stat().st_ino
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "unlink", removed)
    publish(write(checkpoint, b"1"), there, keep_previous=False)
    assert {(there / name).stat().st_ino for name in ("model.pt", "model.pt.json")} <= kept[before]


@pytest.mark.parametrize("verb", [publish_file, restore_file, fetch_files])
def test_a_path_that_may_be_a_folder_is_asked_about(tmp_path: Path, verb: Callable[..., Any]) -> None:
    """`Path` drops the slash; both lines in the message work, for every function that writes a file there."""
    file = tmp_path / "drive/model.pt"
    publish(write(tmp_path / "model.pt", b"new"), file)
    with pytest.raises(OptionError, match="ck/'"):
        verb(file, tmp_path / "ck/", progress=False)
    assert not (tmp_path / "ck").exists()
    assert verb(file, f"{tmp_path}/ck/", progress=False).path == tmp_path / "ck/model.pt"
    assert verb(file, tmp_path / "ck/", progress=False).path == tmp_path / "ck/model.pt"
    assert verb(file, f"{tmp_path}/file", progress=False).path == tmp_path / "file"


def test_what_cannot_be_published(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"none\.pt"):
        publish(tmp_path / "none.pt", tmp_path / "there/x")
    source = write(tmp_path / "model.pt", "weights")
    (tmp_path / "here").symlink_to(tmp_path)
    before = snapshot(tmp_path)
    for target in (tmp_path, source, f"{tmp_path}/here/", tmp_path / "here/model.pt"):
        with pytest.raises(OptionError, match="the very file"):
            publish(source, target)
    assert snapshot(tmp_path) == before


_DIES = """
import os, signal, sys, colabstage
from colabstage.options import Progress, ProgressStep
class Step(Progress, ProgressStep):
    left = int(sys.argv[3])
    def step(self, *_, **__): return self
    def advance(self, amount=1):
        self.left -= amount
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
colabstage.publish_file(sys.argv[1], sys.argv[2], progress=Step())
"""


# --- on Drive ---


@pytest.mark.fuse
def test_an_interrupted_publish_continues_with_its_blocks(model: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    target = my_drive / "checkpoints of today" / model.name
    target.parent.mkdir()
    died = subprocess.run(
        [sys.executable, "-c", _DIES, str(model), str(target), str(2 * BLOCK)], check=False, timeout=60
    )
    assert (died.returncode, target.exists()) == (-9, False)
    written = drive.stats().bytes_written
    report = publish(model, target)
    assert (report.kept_bytes, "16.8 MB of it were already in place" in str(report)) == (2 * BLOCK, True)
    assert drive.stats().bytes_written - written < 20_000
    assert drive.flush(timeout_s=60)
    for folder in (target.parent, drive.cloud / "MyDrive" / target.parent.name):
        assert names(folder) == [model.name, f"{model.name}.json"]
        assert (folder / model.name).read_bytes() == model.read_bytes()


@pytest.fixture
def stalled(drive: SimulatedDrive) -> Iterator[None]:
    """Nothing is uploaded until the test allows it."""
    drive.set_faults(DriveFaults(stall_uploads=True))
    yield
    drive.set_faults(DriveFaults())


@pytest.mark.fuse
def test_uploaded_is_more_than_written(model: Path, my_drive: Path, drive: SimulatedDrive, tmp_path: Path) -> None:
    written = publish(model, my_drive)
    assert (written.proof, written.uploading) == ("written", True)
    assert "wait_uploaded=True" in str(written)
    report = publish(model, f"{my_drive}/to/", wait_uploaded=True)
    for name in (model.name, f"{model.name}.json"):
        assert (drive.cloud / "MyDrive/to" / name).read_bytes() == (my_drive / "to" / name).read_bytes()
    assert (report.proof, report.uploading, report.why) == ("uploaded", False, "")
    assert "in the cloud" in str(report)
    assert drive.is_alive()
    there = publish(model, f"{tmp_path}/there/", wait_uploaded=True)
    assert (there.proof, there.uploading) == ("read back", False)
    write(model, b"later")
    with pytest.raises(SourceChangedError, match="has changed since"):
        await_upload(written, model, timeout_s=10)


@pytest.mark.fuse
@pytest.mark.usefixtures("stalled")
def test_what_does_not_arrive_in_time_can_be_waited_for_again(
    model: Path, my_drive: Path, drive: SimulatedDrive
) -> None:
    with pytest.raises(DriveError, match="not uploaded yet"):
        publish(model, my_drive, wait_uploaded=True, upload_timeout_s=0.3)
    assert (my_drive / model.name).read_bytes() == model.read_bytes()
    drive.set_faults(DriveFaults())
    report = publish(model, my_drive, wait_uploaded=True)
    assert (report.proof, report.kept_bytes) == ("uploaded", SIZE)


@pytest.mark.fuse
@pytest.mark.parametrize("lost", ["MyDrive/*model.pt*", "MyDrive/*.unfinished*"])
def test_an_upload_that_is_lost_is_never_reported(
    lost: str, model: Path, my_drive: Path, drive: SimulatedDrive
) -> None:
    drive.set_faults(DriveFaults(drop_uploads=(lost,)))
    with pytest.raises(DriveError, match="had not arrived"):
        publish(model, my_drive, wait_uploaded=True, upload_timeout_s=1)


@pytest.mark.fuse
@pytest.mark.parametrize("drive_knobs", [replace(DriveKnobs.quick(), attributes=False)])
def test_a_client_without_answers_proves_nothing(model: Path, my_drive: Path) -> None:
    report = publish(model, my_drive, wait_uploaded=True)
    assert (report.proof, report.uploading, bool(report.why)) == ("written", True, True)
    assert "flush_drive(remount=False)" in str(report)


def stage(source: Path, **options: Any) -> Any:
    return stage_dataset(source, progress=False, **options)


@pytest.mark.fuse
@pytest.mark.usefixtures("stalled")
def test_a_dataset_that_was_staged_before_waits_for_the_pack_of_then(
    my_drive: Path, drive: SimulatedDrive, tmp_path: Path
) -> None:
    make_tree(drive.cloud / "MyDrive/photos", in_classes(4))
    stage(my_drive / "photos")
    reused = stage(my_drive / "photos")
    assert reused.report.origin == "local"
    with pytest.raises(DriveError, match=r"\.h5"):
        reused.wait_published(timeout_s=0.2)
    drive.set_faults(DriveFaults())
    published = reused.wait_published(timeout_s=60)
    assert (published.proof, published.kept_bytes) == ("uploaded", published.nbytes)
    assert (drive.cloud / "MyDrive/colabstage" / published.path.name).read_bytes() == reused.path.read_bytes()
    shutil.rmtree(tmp_path / "fast")
    restored = stage(my_drive / "photos")
    assert restored.report.origin == "cache"
    assert restored.wait_published().proof == "uploaded"
    assert stage(my_drive / "photos", cache_dir=None).wait_published() is None
    shutil.rmtree(my_drive / "colabstage")
    with pytest.raises(SourceNotFoundError, match=published.path.name):
        restored.wait_published()


# --- restoring ---


def spoil(file: Path) -> None:
    """Set the tail to zeros, which the length does not show."""
    with file.open("r+b") as handle:
        handle.seek(-100, os.SEEK_END)
        handle.write(bytes(100))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A file with two published versions."""
    for content in (b"old" * 1000, b"new" * 1000):
        publish(write(tmp_path / "model.pt", content), tmp_path / "there/model.pt")
    (tmp_path / "model.pt").unlink()
    return tmp_path / "there/model.pt"


HARM: dict[str, Callable[[Path], object]] = {
    "none": lambda _: None,
    "a tail of zeros": spoil,
    "an upload that ended early": lambda file: os.truncate(file, 500),
    "no manifest": lambda file: file.with_name(f"{file.name}.json").unlink(),
    "no file": lambda file: file.unlink(),
}


@pytest.mark.parametrize("name", HARM)
def test_the_newest_whole_version_comes_back(name: str, published: Path, tmp_path: Path) -> None:
    HARM[name](published)
    (tmp_path / "here").mkdir()
    report = restore_file(published, tmp_path / "here", progress=False)
    assert report.path == tmp_path / "here/model.pt"
    assert report.path.read_bytes() == (b"new" if name == "none" else b"old") * 1000
    assert report.source.name == ("model.pt" if name == "none" else "model.pt.previous")
    assert len(report.passed_over) == (name not in ("none", "no file"))
    assert all(reason in str(report) for reason in report.passed_over)

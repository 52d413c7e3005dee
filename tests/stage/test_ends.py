"""Every verb ends and says why: on a mount that is dead or hangs, when it is asked to stop, at names nobody can use."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage import extract_archive, fetch_files, pack_dataset, plan_stage, publish_file, restore_file, stage_dataset
from colabstage.errors import CancelledError, ColabstageError, DriveDisconnectedError, OptionError, SourceNotFoundError
from colabstage.io.files import hash_ranges, local_lock
from colabstage.io.progress import Cancellation, NullProgress
from colabstage.load.reading.reader import SplitReader
from colabstage.machine import mounts
from colabstage.machine.mounts import run_watched
from colabstage.sources.download import Download
from colabstage.sources.opening import copy_name, sweep_copies
from colabstage.stage.purge import list_datasets
from colabstage.stage.request import lock_path, make_request
from simulated_drive.knobs import DriveFaults, FaultOp, OpFault
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from simulated_drive.drive import SimulatedDrive

MakeImages = Callable[..., Path]

VERBS: dict[str, Callable[[Path, Path], object]] = {
    "stage": lambda drive, here: stage_dataset(drive / "photos", progress=False),
    "stage a pattern": lambda drive, here: stage_dataset(drive / "*.zip", cache_dir=None, progress=False),
    "stage a list": lambda drive, here: stage_dataset(
        [drive / "a.zip", here / "x.zip"], cache_dir=None, progress=False
    ),
    "fetch": lambda drive, here: fetch_files(drive / "a.zip", here / "b.zip", progress=False),
    "fetch to Drive": lambda drive, here: fetch_files(here / "model.pt", drive / "f.zip", progress=False),
    "extract": lambda drive, here: extract_archive(drive / "a.zip", here / "a", progress=False),
    "publish": lambda drive, here: publish_file(here / "model.pt", drive / "model.pt", progress=False),
    "publish into a folder": lambda drive, here: publish_file(here / "model.pt", drive, progress=False),
    "restore": lambda drive, here: restore_file(drive / "model.pt", here / "model2.pt", progress=False),
    "pack": lambda drive, here: pack_dataset(drive / "photos", here / "a.h5", progress=False),
    "pack to Drive": lambda drive, here: pack_dataset(here / "photos", drive / "a.h5", progress=False),
    "pack a dataset to Drive": lambda drive, here: pack_dataset([(0.0, 1)] * 8, drive / "a.h5", progress=False),
    "append": lambda drive, here: pack_dataset(here / "photos", append_to=drive / "a.h5", progress=False),
    "read": lambda drive, here: SplitReader(drive / "a.h5"),
    "list": lambda drive, here: list_datasets(cache_dir=drive / "colabstage"),
}


@pytest.mark.fuse
@pytest.mark.parametrize("verb", VERBS)
def test_a_drive_that_is_dead_from_the_start_is_one_error_everywhere(
    tmp_path: Path, drive: SimulatedDrive, verb: str
) -> None:
    """The one upon which Drive is mounted again, and not an errno."""
    (tmp_path / "model.pt").write_bytes(b"weights")
    drive.kill()
    with pytest.raises(DriveDisconnectedError, match="died"):
        VERBS[verb](tmp_path / "content" / "drive" / "MyDrive", tmp_path)


_HANGING = """
import pathlib, sys
import colabstage, colabstage.errors, colabstage.load.reading.reader
from colabstage.machine import mounts, watched
mounts._ANSWER_S = watched._PROBE_TIMEOUT_S = 0.7
watched._DIES_S = 0.3
drive, here = map(pathlib.Path, sys.argv[1:])
staged = colabstage.stage_dataset(drive / "photos", local_dir=here / "local", cache_dir=None, progress=False)
print(staged.report.origin)
for verb in (
    lambda: colabstage.stage_dataset(drive / "other", local_dir=here / "local", cache_dir=None, progress=False),
    lambda: colabstage.publish_file(here / "model.pt", drive / "model.pt", progress=False),
    lambda: colabstage.fetch_files(drive / "photos", here / "fetched", progress=False),
    lambda: colabstage.load.reading.reader.SplitReader(drive / "a.h5"),
):
    try:
        verb()
    except colabstage.errors.DriveDisconnectedError as error:
        print("not answered" in str(error))
"""


@pytest.mark.fuse
def test_a_mount_that_hangs_holds_up_nobody(tmp_path: Path, drive: SimulatedDrive, make_images: MakeImages) -> None:
    """What is staged here is used, everything else is told soon, and the process ends."""
    make_images(drive.cloud / "MyDrive" / "photos", 4)
    (tmp_path / "model.pt").write_bytes(b"weights")
    mounted = tmp_path / "content" / "drive" / "MyDrive"
    stage_dataset(mounted / "photos", local_dir=tmp_path / "local", cache_dir=None, progress=False)
    server = drive._server
    assert server is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _HANGING, mounted, tmp_path], capture_output=True, text=True, timeout=60, check=True
        )
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert ended.stdout.split() == ["local", *["True"] * 4]


_HANGING_LATER = """
import os, pathlib, signal, sys
import colabstage, colabstage.errors
from colabstage.machine import mounts, watched
drive, here, server = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
watched._PROBE_TIMEOUT_S = watched._HANGS_S = watched._DIES_S = 0.3
watched._ASK_EVERY_S = 0.2
from colabstage.diagnose import machine_facts as health
from colabstage.stage import purge
answering = mounts.probe_mount
cached = purge.list_datasets(local_dir=here / "none", cache_dir=drive / "cache")

def hang_afterwards(*question):
    answer = answering(*question)
    os.kill(server, signal.SIGSTOP)
    return answer

mounts.probe_mount = hang_afterwards
options = dict(progress=False)
staging = dict(local_dir=here / "local", cache_dir=None)
for verb in (
    lambda: colabstage.stage_dataset(drive / "photos", **staging, **options),
    lambda: colabstage.plan_stage(drive / "photos", **staging),
    lambda: colabstage.pack_dataset(drive / "photos", here / "a.h5", **options),
    lambda: colabstage.pack_dataset(here / "photos", drive / "a.h5", **options),
    lambda: colabstage.pack_dataset([(float(i), i) for i in range(40)], drive / "a.h5", **options),
    lambda: colabstage.pack_dataset([(float(i), i) for i in range(40)], drive / "a.h5", shards=2, **options),
    lambda: colabstage.fetch_files(drive / "photos", here / "fetched", **options),
    lambda: colabstage.extract_archive(drive / "a.zip", here / "extracted", **options),
    lambda: colabstage.publish_file(here / "model.pt", drive / "model.pt", **options),
    lambda: colabstage.restore_file(drive / "published.pt", here / "restored.pt", **options),
    lambda: purge.list_datasets(local_dir=here / "none", cache_dir=drive / "cache"),
    lambda: purge.sweep_leftovers(local_dir=here / "none", cache_dir=drive / "cache"),
):
    os.kill(server, signal.SIGCONT)
    try:
        verb()
        print("done", flush=True)
    except colabstage.errors.DriveDisconnectedError as error:
        print("not answered" in str(error), flush=True)
os.kill(server, signal.SIGCONT)
(reason,) = purge.purge_datasets(cached).reasons
print("not answered" in reason, flush=True)
os.kill(server, signal.SIGCONT)
local = dict(local_dir=here / "local", cache_dir=drive / "cache")
staged = colabstage.stage_dataset(here / "photos", **local, **options)
print(any("Not cached" in note and "not answered" in note for note in staged.report.notes), flush=True)
os.kill(server, signal.SIGCONT)
health.probe_mount = hang_afterwards
print(colabstage.doctor(drive / "photos", timeout_s=3).exit_code == 1, flush=True)
"""


@pytest.mark.fuse
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_mount_that_begins_to_hang_after_it_answered_ends_every_verb(
    tmp_path: Path, drive: SimulatedDrive, make_images: MakeImages
) -> None:
    """Each says so; none is lost in a call that does not return, and the process ends."""
    make_images(drive.cloud / "MyDrive" / "photos", 4)
    make_images(tmp_path / "photos", 4)
    (tmp_path / "model.pt").write_bytes(b"weights")
    mounted = tmp_path / "content" / "drive" / "MyDrive"
    publish_file(tmp_path / "model.pt", mounted / "published.pt", progress=False)
    stage_dataset(tmp_path / "photos", local_dir=tmp_path / "first", cache_dir=mounted / "cache", progress=False)
    with zipfile.ZipFile(drive.cloud / "MyDrive" / "a.zip", "w") as archive:
        archive.write(tmp_path / "model.pt", "model.pt")
    server = drive._server
    assert server is not None
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _HANGING_LATER, mounted, tmp_path, str(server.pid)],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert ended.stdout.split() == ["True"] * 15
    assert not (tmp_path / "a.h5").exists()
    assert not (tmp_path / "restored.pt").exists()


@pytest.mark.fuse
def test_a_drive_that_hangs_is_looked_for_once_and_said(
    tmp_path: Path, drive: SimulatedDrive, make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All Drives within one deadline, in one call of a verb."""
    server = drive._server
    assert server is not None
    asked: list[float] = []

    def count(_: Path, timeout_s: float) -> mounts.MountProbe:
        asked.append(timeout_s)
        return mounts.MountProbe("silent")

    monkeypatch.setattr("colabstage.machine.drive.probe_mount", count)
    staged = stage_dataset(make_images(tmp_path / "photos", 4), progress=False)
    assert asked == [10.0]
    assert any("Not cached" in note and "does not answer" in note for note in staged.report.notes)


@pytest.mark.fuse
def test_an_interrupt_reaches_work_on_a_mount(tmp_path: Path, drive: SimulatedDrive) -> None:
    """The work ends, having cleared up after itself, before the prompt is back."""
    steps: list[str] = []

    def work() -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                time.sleep(0.01)
        finally:
            steps.append("cleared up")

    with pytest.raises(KeyboardInterrupt):
        run_watched(work, tmp_path / "content" / "drive" / "MyDrive")
    assert steps == ["cleared up"]


def test_work_on_local_disks_is_done_where_it_was_called(tmp_path: Path) -> None:
    """No thread is between it and its caller."""
    assert run_watched(threading.current_thread, tmp_path) is threading.current_thread()


class _Items:
    """A dataset that notes which thread reads it, and stops at one of its items."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.threads: set[threading.Thread] = set()
        self.taken: list[int] = []
        self._stops_at = stops_at

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[_Values, int]:
        self.threads.add(threading.current_thread())
        self.taken.append(index)
        if index == self._stops_at:
            os.kill(os.getpid(), signal.SIGINT)
        return _Values(self.threads), index


class _Values:
    """An array that is made only when it is asked for, as a Pillow image is."""

    def __init__(self, threads: set[threading.Thread]) -> None:
        self._threads = threads

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        self._threads.add(threading.current_thread())
        return np.arange(5)


@pytest.mark.fuse
@pytest.mark.parametrize("shards", [None, 3])
def test_a_dataset_packed_onto_a_mount_is_read_where_it_would_be_without_one(
    tmp_path: Path, drive: SimulatedDrive, shards: int | None
) -> None:
    """By the caller's thread, in the same order, although another writes to the mount and can be left behind there."""
    items, without = _Items(), _Items()
    pack_dataset(without, tmp_path / "a.h5", shards=shards, progress=False)
    target = tmp_path / "content" / "drive" / "MyDrive" / "a.h5"
    report = pack_dataset(items, target, shards=shards, progress=False)
    assert report.samples == {"train": 200}
    assert items.threads == {threading.current_thread()}
    assert items.taken == without.taken


@pytest.mark.fuse
def test_an_interrupt_in_a_dataset_that_is_packed_onto_a_mount_ends_the_work(
    tmp_path: Path, drive: SimulatedDrive
) -> None:
    """And the work has cleared up after itself when the prompt is back."""
    items = _Items(stops_at=60)
    with pytest.raises(KeyboardInterrupt):
        pack_dataset(items, tmp_path / "content" / "drive" / "MyDrive" / "a.h5", progress=False)
    assert items.taken[-1] == 60
    assert not [thread for thread in threading.enumerate() if thread.name == "colabstage-work"]


class _Stopping(NullProgress):
    """Progress that somebody can stop."""

    def __init__(self) -> None:
        self.cancellation = Cancellation()


def _tar_gz(path: Path, count: int = 6) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for number in range(count):
            content = random.Random(number).randbytes(200_000)
            member = tarfile.TarInfo(f"{'cat' if number % 2 else 'dog'}/{number}.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_staging_stops_while_an_archive_arrives(tmp_path: Path, name: str) -> None:
    """While it is unpacked as it comes; while it is hashed as it comes."""
    content = _tar_gz(tmp_path / "a.tar.gz").read_bytes()
    if name == "a.zip":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("cat/1.png", content)
        content = (tmp_path / name).read_bytes()
    progress = _Stopping()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    with WebServer({name: content}, knobs=WebKnobs(total_bytes_per_s=100_000)) as server:
        timer = threading.Timer(0.6, progress.cancellation.cancel)
        timer.start()
        began = time.monotonic()
        with pytest.raises(CancelledError):
            stage_dataset(server.url(name), hash=digest if name == "a.zip" else None, cache_dir=None, progress=progress)
        assert time.monotonic() - began < 7  # all of it takes twelve


def test_staging_stops_while_it_waits_for_another_process(photos: Path) -> None:
    """Whoever holds the lock may hold it for half an hour."""
    request = make_request(photos, cache_dir=None)
    request.folder.parent.mkdir(parents=True)
    progress = _Stopping()
    with local_lock(lock_path(request.folder), timeout_s=1):
        threading.Timer(0.8, progress.cancellation.cancel).start()
        began = time.monotonic()
        with pytest.raises(CancelledError):
            stage_dataset(photos, cache_dir=None, progress=progress)
        assert time.monotonic() - began < 5


def test_hashing_stops(tmp_path: Path) -> None:
    """Between two blocks."""
    (tmp_path / "a").write_bytes(bytes(1000))
    cancellation = Cancellation()
    cancellation.cancel()
    for threads in (1, 2):
        with pytest.raises(CancelledError):
            hash_ranges(tmp_path / "a", [(0, 500), (500, 500)], threads=threads, cancellation=cancellation)


@pytest.mark.parametrize("single", [True, False])
def test_one_dead_link_among_many_is_told_at_once(tmp_path: Path, single: bool) -> None:
    """Not after all others have answered."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((4, 2), np.float32))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.npy", buffer.getvalue())
    content = (tmp_path / "a.zip").read_bytes() if single else buffer.getvalue()
    names = [f"part-{number:03}.{'zip' if single else 'npy'}" for number in range(120)]
    with WebServer(dict.fromkeys(names, content), knobs=WebKnobs(latency_s=0.1)) as server:
        urls = [server.url(name) for name in names]
        with pytest.raises(SourceNotFoundError, match="nosuch"):
            stage_dataset(
                [urls[0], server.url(f"nosuch{Path(names[0]).suffix}"), *urls[1:]], cache_dir=None, progress=False
            )
        # Questions that were under way are answered while there is a server; without one they would be asked again.
        for thread in threading.enumerate():
            if thread.name.startswith("colabstage-"):
                thread.join(10)
        assert len(server.requests) < 60


def test_a_plan_unpacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compressed tar holds would be known only after all of it was on the disk."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a plan made a folder")

    path = _tar_gz(tmp_path / "a.tar.gz")
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    plan = plan_stage(path, cache_dir=None)
    assert plan.action == "stage"
    assert plan.samples == {}
    assert any("unpacked" in reason for reason in plan.reasons)


def test_home_is_meant_where_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By publishing, restoring and packing, on both sides."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"weights")
    published = publish_file("~/model.pt", "~/kept/model.pt", progress=False)
    assert published.path == tmp_path / "kept" / "model.pt"
    assert restore_file("~/kept/model.pt", "~/again.pt", progress=False).path.read_bytes() == b"weights"
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    assert pack_dataset("~/x.npy", "~/x.h5", progress=False).path == tmp_path / "x.h5"
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a\0b", "NUL"),
        ("~nosuchuser/data", "user unknown"),
        ("~$photos.zip", r"\./~\$photos"),
        ("x" * 300, "too long"),
        ("/".join(["x" * 200] * 30), "too long"),
        ("relative", "has been deleted"),
    ],
    ids=["nul", "user", "office", "name", "path", "folder"],
)
def test_a_name_that_nobody_can_use_is_an_error_about_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    """Of each verb, before anything is done."""
    (tmp_path / "gone").mkdir()
    (tmp_path / "model.pt").write_bytes(b"weights")
    if name == "relative":
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
    model = tmp_path / "model.pt"
    verbs: tuple[Callable[[], object], ...] = (
        lambda: stage_dataset(name, local_dir=tmp_path / "l", cache_dir=None, progress=False),
        lambda: fetch_files(model, name, progress=False),
        lambda: extract_archive(name, tmp_path / "x", progress=False),
        lambda: publish_file(model, name, progress=False),
        lambda: restore_file(name, tmp_path / "x", progress=False),
        lambda: pack_dataset(name, tmp_path / "x.h5", progress=False),
        lambda: pack_dataset(tmp_path, name, progress=False),
        lambda: pack_dataset(tmp_path, append_to=name, progress=False),
    )
    for verb in verbs:
        with pytest.raises(OptionError, match=reason):
            verb()
    assert {path.name for path in tmp_path.iterdir()} <= {"model.pt", "gone"}


def test_a_target_whose_name_leaves_no_room_for_a_record_is_refused(tmp_path: Path) -> None:
    """The file system would take the name itself."""
    (tmp_path / "model.pt").write_bytes(b"weights")
    with pytest.raises(OptionError, match="too long"):
        fetch_files(tmp_path / "model.pt", tmp_path / ("n" * 250), progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_times_that_64_bits_do_not_hold_are_none(photos: Path) -> None:
    """A disk may have a time after 2262."""
    os.utime(photos / "cat" / "0000.png", (10_500_000_000, 10_500_000_000))
    assert stage_dataset(photos, cache_dir=None, progress=False).splits == {"train": 20}


def test_brackets_of_a_folder_that_is_there_are_part_of_its_name(tmp_path: Path, photos: Path) -> None:
    """Only what stands behind it is a pattern."""
    folder = tmp_path / "[2024] data"
    folder.mkdir()
    for number, name in enumerate(("cat", "dog")):
        with zipfile.ZipFile(folder / f"part-{number}.zip", "w") as archive:
            archive.write(next((photos / name).iterdir()), f"{name}/1.png")
    assert stage_dataset(folder / "part-*.zip", cache_dir=None, progress=False).classes == ("cat", "dog")


@pytest.mark.parametrize("name", ["data.npy", "text.txt.gz"])
def test_a_query_is_no_part_of_a_files_name(name: str) -> None:
    """As in the links of archives of research data, which end in `?download=1`."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((64, 16), np.float32))
    files = {"data.npy": buffer.getvalue(), "text.txt.gz": gzip.compress(b"to be or not to be " * 5000)}
    with WebServer(files) as server:
        staged = stage_dataset(f"{server.url(name)}?download=1", cache_dir=None, progress=False)
    assert sum(staged.splits.values()) > 0


def test_large_files_of_a_server_without_parts_come_once(tmp_path: Path) -> None:
    """Each in one pass and not from the beginning for every part of it."""
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(80 << 20)
    with WebServer({"large.bin": large, "small.bin": b"x"}, knobs=WebKnobs(ranges="none")) as server:
        fetch_files([server.url("large.bin"), server.url("small.bin")], tmp_path / "there", progress=False)
        assert server.bytes_sent < 1.5 * (80 << 20)
    assert (tmp_path / "there" / "large.bin").stat().st_size == 80 << 20


def test_a_question_that_fails_costs_nothing_of_an_unfinished_download(tmp_path: Path) -> None:
    """Nobody knows then whether it is still the same; what goes on with it will see."""
    first = Download(tmp_path / "photos", "link 5 version-1")
    (first.folder / "content" / ".colabstage-part").write_bytes(b"half of it")
    first.close()
    unknown = Download(tmp_path / "photos", None)
    assert (unknown.folder / "content" / ".colabstage-part").read_bytes() == b"half of it"
    unknown.close()
    again = Download(tmp_path / "photos", "link 5 version-1")
    assert (again.folder / "content" / ".colabstage-part").read_bytes() == b"half of it"
    again.close()
    other = Download(tmp_path / "photos", "link 5 version-2")
    assert list((other.folder / "content").iterdir()) == []
    other.close()


def test_extracting_an_address_says_what_to_do(tmp_path: Path) -> None:
    """It is no path."""
    with pytest.raises(OptionError, match="fetch_files first"):
        extract_archive("https://example.org/a.zip", tmp_path / "a", progress=False)


@pytest.mark.fuse
@pytest.mark.parametrize("op", ["stat", "open", "write", "rename"])
def test_a_mount_that_fails_on_the_way_is_a_typed_error(tmp_path: Path, drive: SimulatedDrive, op: FaultOp) -> None:
    """Of publishing and of restoring, wherever they look or write."""
    (tmp_path / "model.pt").write_bytes(b"weights" * 1000)
    place = tmp_path / "content" / "drive" / "MyDrive" / "model.pt"
    publish_file(tmp_path / "model.pt", place, progress=False)
    (tmp_path / "model.pt").write_bytes(b"other" * 1000)
    drive.set_faults(DriveFaults(ops=(OpFault(op=op, pattern="MyDrive/*", errno=errno.EIO),)))
    verbs: tuple[Callable[[], object], ...] = (
        lambda: publish_file(tmp_path / "model.pt", place, progress=False),
        lambda: restore_file(place, tmp_path / "again.pt", progress=False),
    )
    for verb in verbs:
        try:
            verb()  # where the fault is not met, it succeeds
        except OSError as error:
            assert isinstance(error, ColabstageError)  # noqa: PT017 - every error of the system's own is also an OSError


def test_what_came_of_a_source_is_found_by_its_address(tmp_path: Path) -> None:
    """Whole downloads and partial copies of it alike; what came of another source, and what is in use, stay."""
    address, other = "gdrive:one", "gdrive:two"
    left = [Download(tmp_path / copy_name(one, "photos"), "state") for one in (address, other)]
    for download in left:
        (download.folder / "content" / "photos.zip").write_bytes(b"whole")
        download.close()
    used = Download(tmp_path / copy_name(address, "labels"), "state")
    sweep_copies(tmp_path, address)
    assert used.folder.is_dir()
    used.discard()
    again = Download(tmp_path / copy_name(address, "photos"), "state")
    assert list((again.folder / "content").iterdir()) == []
    kept = Download(tmp_path / copy_name(other, "photos"), "state")
    assert [path.name for path in (kept.folder / "content").iterdir()] == ["photos.zip"]

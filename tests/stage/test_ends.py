"""Every verb ends and says why: on a mount that is dead or hangs, when it is asked to stop, at names nobody can use."""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colabstage import publish_file, stage_dataset
from colabstage.errors import CancelledError, DriveDisconnectedError
from colabstage.io.files import local_lock
from colabstage.io.progress import Cancellation, Progress
from colabstage.machine.mounts import run_watched
from colabstage.stage.request import lock_path, make_request
from tests.stage.on_drive import VERBS
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from simulated_drive.drive import SimulatedDrive

MakeImages = Callable[..., Path]

# Without their cache these go on, with a note.
GO_ON = {"stage_dataset, cache_dir", "plan_stage, cache_dir"}


@pytest.mark.fuse
@pytest.mark.parametrize("verb", [name for name in VERBS if name not in GO_ON])
def test_a_drive_that_is_dead_from_the_start_is_one_error_everywhere(
    tmp_path: Path, drive: SimulatedDrive, photos: Path, verb: str
) -> None:
    (tmp_path / "model.pt").write_bytes(b"weights")
    drive.kill()
    with pytest.raises(DriveDisconnectedError, match="died"):
        VERBS[verb](tmp_path / "content" / "drive" / "MyDrive", tmp_path / "model.pt", photos)


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

over = False

def hang_afterwards(*question):
    answer = answering(*question)
    if not over:
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
print("no: " in staged.report.cached and "not answered" in staged.report.cached, flush=True)
os.kill(server, signal.SIGCONT)
health.probe_mount = hang_afterwards
print(colabstage.doctor(drive / "photos", timeout_s=3).exit_code == 1, flush=True)
# No process ends, and none can be killed, while the server that has read a request of one of its threads is stopped.
over = True
os.kill(server, signal.SIGCONT)
"""


@pytest.mark.fuse
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_mount_that_begins_to_hang_after_it_answered_ends_every_verb(
    tmp_path: Path, drive: SimulatedDrive, make_images: MakeImages
) -> None:
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


class _Stopping(Progress):
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
    request = make_request(photos, cache_dir=None)
    request.folder.parent.mkdir(parents=True)
    progress = _Stopping()
    with local_lock(lock_path(request.folder), timeout_s=1):
        threading.Timer(0.8, progress.cancellation.cancel).start()
        began = time.monotonic()
        with pytest.raises(CancelledError):
            stage_dataset(photos, cache_dir=None, progress=progress)
        assert time.monotonic() - began < 5

"""A call that is told to stop ends, and says so; what it has finished is kept."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, stage_dataset
from colabstage.errors import CancelledError
from colabstage.io.progress import Progress
from simulated_drive.drive import SimulatedDrive
from tests.support.archives import stored_zip, write_archive
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.images import in_classes, make_tree, noise
from tests.support.steps import Meanwhile, OneStep


def cancelled(call: Callable[[Progress], object], when: Callable[[], bool]) -> None:
    """Make a call, and stop it as soon as a condition holds; it ends within seconds."""
    progress, ended = OneStep(), threading.Event()
    stopped_at = list[float]()

    def stop() -> None:
        while not when() and not ended.wait(0.01):
            pass
        stopped_at.append(time.monotonic())
        progress.cancellation.cancel()

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        with pytest.raises(CancelledError):
            call(progress)
    finally:
        ended.set()
        stopper.join()
    assert time.monotonic() - stopped_at[0] < 5


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_staging_stops_while_an_archive_arrives(tmp_path: Path, name: str) -> None:
    """A zip whose hash is to be checked is fetched completely first."""
    content = write_archive(tmp_path / name, {"cat/1.png": os.urandom(12_000_000)}).read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}" if name == "a.zip" else None
    with WebServer({name: content}, knobs=WebKnobs(total_bytes_per_s=600_000)) as server:  # the whole takes 20 s
        cancelled(
            lambda progress: stage_dataset(server.url(name), hash=digest, cache_dir=None, progress=progress),
            lambda: server.bytes_sent > 30_000,
        )


@pytest.mark.parametrize("answers", [0, 1, 3])
@pytest.mark.parametrize("verb", ["stage", "stream", "list", "fetch"])
def test_a_call_stops_while_a_server_is_silent(tmp_path: Path, verb: str, answers: int) -> None:
    """Whatever the call waits for, facts or contents, and in whichever thread."""
    photos = {name: noise(number, size=(200, 200)) for name, number in in_classes(20).items()}
    files = {"a.zip": stored_zip(photos), **photos}
    with WebServer(files, faults=(WebFault(kind="hang", after=answers),)) as server:
        addresses: Any = [server.url(name) for name in photos] if verb == "list" else server.url("a.zip")

        def call(progress: Progress) -> None:
            if verb == "fetch":
                fetch_files(addresses, tmp_path / "b.zip", progress=progress)
            else:
                streaming = verb == "stream"
                stage_dataset(addresses, cache_dir=None, streaming=streaming, progress=progress).wait()

        cancelled(call, lambda: len(server.requests) > answers)


@pytest.mark.parametrize("address", ["s3://bucket/a.zip", "s3://bucket/folder/"])
def test_a_call_stops_while_a_bucket_is_silent(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as connections:
        server.settimeout(60)
        monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("FSSPEC_S3_ANON", "true")
        cancelled(
            lambda progress: stage_dataset(address, cache_dir=None, progress=progress),
            lambda: bool(connections.enter_context(server.accept()[0])),
        )


def test_staging_stops_while_it_waits_for_another_call(tmp_path: Path) -> None:
    source, works, go_on = make_tree(tmp_path / "photos", in_classes(2)), threading.Event(), threading.Event()

    def hold() -> None:
        works.set()
        go_on.wait(60)

    options: dict[str, Any] = {"cache_dir": None}
    first = threading.Thread(target=lambda: stage_dataset(source, progress=Meanwhile(hold), **options))
    first.start()
    assert works.wait(30)
    began = time.monotonic()
    cancelled(
        lambda progress: stage_dataset(source, progress=progress, **options), lambda: time.monotonic() > began + 0.5
    )
    go_on.set()
    first.join()
    assert stage_dataset(source, progress=False, **options).report.origin == "local"


@pytest.mark.fuse
def test_an_interrupt_reaches_work_on_a_mount(tmp_path: Path, drive: SimulatedDrive, my_drive: Path) -> None:
    """The work cleans up and ends before the prompt is back; the next call continues it."""
    files = {f"{number:02}.bin": bytes([number]) * 1000 for number in range(40)}
    make_tree(drive.cloud / "MyDrive/data", files)
    todo = [lambda: os.kill(os.getpid(), signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt):
        fetch_files(my_drive / "data", tmp_path / "here", progress=Meanwhile(lambda: todo and todo.pop()()))
    assert not todo
    assert "colabstage-work" not in {thread.name for thread in threading.enumerate()}
    assert not (tmp_path / "here").exists()
    fetch_files(my_drive / "data", tmp_path / "here", progress=False)
    assert {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()} == files


_STOPPED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from colabstage import stage_dataset

seen = []

def prepare(x: np.ndarray) -> np.ndarray:
    seen.append(None)
    if len(seen) == 280 and not Path("stopped").exists():
        Path("stopped").touch()
        os.kill(os.getpid(), signal.SIGINT)
    return x

if __name__ == "__main__":
    data = stage_dataset("photos", local_dir="here", cache_dir=None, prepare=prepare, progress=False)
    print(data.splits, "already in place" in str(data.report))
"""


@pytest.mark.slow
def test_ctrl_c_in_a_script_ends_with_what_is_left(tmp_path: Path) -> None:
    make_tree(tmp_path, {"script.py": _STOPPED, **{f"photos/{name}": n for name, n in in_classes(300).items()}})

    def run_script() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "script.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    stopped = run_script()
    assert stopped.returncode == -signal.SIGINT, stopped.stderr
    *_, interrupt, last = stopped.stderr.splitlines()
    assert (interrupt, "continues" in last) == ("KeyboardInterrupt", True)
    again = run_script()
    assert (again.returncode, again.stdout.strip()) == (0, "{'train': 300} True"), again.stderr

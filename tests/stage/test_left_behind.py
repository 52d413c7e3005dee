"""A restore that a hanging mount held up is left behind; when it awakes, beside newer work, it changes nothing."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import h5py
import pytest

from colabstage import stage_dataset
from colabstage.h5.manifest import damaged_blocks, manifest_path, read_manifest
from colabstage.io.files import close_quietly
from colabstage.machine import mounts, watched
from colabstage.sources import remote
from colabstage.sources.remote import MountedFile
from colabstage.stage import run
from colabstage.stage.run import make_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from colabstage import StagedDataset
    from colabstage.sources.opening import OpenedSource
    from colabstage.stage.cache import Cache, CachedPack
    from simulated_drive.drive import SimulatedDrive

# The third block of the pack.
HANGS_AT = 16 << 20
AWAKE_S = 30


def at_work() -> list[threading.Thread]:
    """Threads that work on a mount."""
    return [thread for thread in threading.enumerate() if thread.name == "colabstage-work" and thread.is_alive()]


def wait_until_over() -> None:
    """Wait until whoever was left behind has ended."""
    deadline = time.monotonic() + AWAKE_S
    while at_work() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not at_work()


def state_of(staged: StagedDataset) -> tuple[Any, ...]:
    """The pack as a file, and what is in it."""
    found = staged.path.stat()
    with h5py.File(staged.path) as file:
        x = file["X_train"][()]
    return found.st_ino, found.st_mtime_ns, found.st_size, x.tobytes()


class Hanging:
    """A Drive whose client stops answering within a restore, at a block or at the close behind the last one."""

    def __init__(self, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        server = drive._server
        assert server is not None
        self._server = server.pid
        self._awake = threading.Event()
        self.met = threading.Event()
        for module, name, value in (
            (mounts, "_ANSWER_S", 0.5),
            (watched, "_PROBE_TIMEOUT_S", 0.5),
            (watched, "_ASK_EVERY_S", 0.2),
            (watched, "_HANGS_S", 0.5),
            (watched, "_DIES_S", 0.3),
        ):
            monkeypatch.setattr(module, name, value)
        read, close = MountedFile.read_range, close_quietly

        def read_or_hang(file: MountedFile, offset: int, length: int | None) -> Iterator[bytes]:
            for piece in read(file, offset, length):
                if offset + len(piece) >= HANGS_AT and not self.met.is_set() and self._is_restore():
                    self._hang()
                    self._awake.wait(AWAKE_S)  # what the kernel has read ahead would be there at once
                offset += len(piece)
                yield piece

        def close_or_hang(handle: int) -> None:
            try:
                if not self.met.is_set() and self._is_restore():
                    self._hang()
                    self._awake.wait(AWAKE_S)  # as a close waits that has to be told to the client
            finally:
                close(handle)

        if place == "at a block":
            monkeypatch.setattr(MountedFile, "read_range", read_or_hang)
        else:
            monkeypatch.setattr(remote, "close_quietly", close_or_hang)

    def awake(self) -> None:
        """Let the client answer again."""
        os.kill(self._server, signal.SIGCONT)
        self._awake.set()

    def _hang(self) -> None:
        self.met.set()
        os.kill(self._server, signal.SIGSTOP)

    @staticmethod
    def _is_restore() -> bool:
        return bool(at_work())


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("place", "awakes"),
    [
        ("at a block", "before the new staging"),
        ("at the close", "after it"),
        pytest.param("at a block", "after it", marks=pytest.mark.long),
        pytest.param("at the close", "before the new staging", marks=pytest.mark.long),
    ],
)
def test_a_restore_that_was_left_behind_changes_nothing(
    tmp_path: Path,
    drive: SimulatedDrive,
    make_images: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    awakes: str,
) -> None:
    photos = make_images(tmp_path / "photos", 40, size=(400, 400))
    options: dict[str, Any] = {"cache_dir": tmp_path / "content" / "drive" / "MyDrive" / "cache", "progress": False}
    expected = state_of(stage_dataset(photos, **options))[-1]
    shutil.rmtree(tmp_path / "fast")
    hanging = Hanging(drive, monkeypatch, place)
    try:
        if awakes == "before the new staging":

            def awake_and_make(call: Any, source: OpenedSource, cache: Cache | None = None) -> CachedPack | None:
                hanging.awake()
                wait_until_over()
                assert not call.request.pack_path.exists()
                return make_local(call, source, cache)

            monkeypatch.setattr(run, "make_local", awake_and_make)
        staged = stage_dataset(photos, **options)
        assert hanging.met.is_set(), "\n".join(map(str, staged.report.steps))
        made = state_of(staged)
    finally:
        hanging.awake()
    wait_until_over()
    assert staged.report.origin == "source"
    assert any("cannot be used" in note and "not answered" in note for note in staged.report.notes), staged.report.notes
    assert made[-1] == expected
    assert state_of(staged) == made
    manifest = read_manifest(staged.path)
    assert manifest is not None
    assert not damaged_blocks(staged.path, manifest)
    again = stage_dataset(photos, **options)
    assert again.report.origin == "local"
    assert state_of(again) == made
    assert not list(staged.path.parent.glob(".colabstage-*"))
    assert manifest_path(staged.path).exists()
    assert again.splits == {"train": 40}

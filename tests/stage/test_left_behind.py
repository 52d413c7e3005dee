"""A restore held up by a hanging mount is abandoned; when it wakes up, beside newer work, it changes nothing."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colabstage import stage_dataset
from colabstage.sources import remote
from colabstage.sources.remote import MountedFile
from simulated_drive.drive import SimulatedDrive
from tests.contract.served import numbers_in
from tests.support.deadlines import shorten_deadlines
from tests.support.images import in_classes, make_tree
from tests.support.invariants import snapshot, unvouched
from tests.support.staged import SMALL_BLOCK, use_small_blocks
from tests.support.steps import AtStep, wait_until

AWAKE_S = 30


def at_work() -> list[threading.Thread]:
    """Threads that work on a mount."""
    return [thread for thread in threading.enumerate() if thread.name == "colabstage-work" and thread.is_alive()]


class Hanging:
    """A Drive whose client stops responding during a restore, at a block or at the close after the last one."""

    def __init__(self, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        self._drive = drive
        self._awake, self.met = threading.Event(), threading.Event()
        shorten_deadlines("machine", 0.3, monkeypatch.setattr)
        read, close = MountedFile.read_range, vars(remote)["close_quietly"]

        def read_or_hang(file: MountedFile, offset: int, length: int | None) -> Iterator[bytes]:
            for piece in read(file, offset, length):
                offset += len(piece)
                if offset >= 3 * SMALL_BLOCK:
                    self._hang_once()
                yield piece

        def close_or_hang(handle: int) -> None:
            try:
                self._hang_once()
            finally:
                close(handle)

        if place == "at a block":
            monkeypatch.setattr(MountedFile, "read_range", read_or_hang)
        else:
            monkeypatch.setattr(remote, "close_quietly", close_or_hang)

    def awake(self) -> None:
        """Let the client respond again."""
        self._drive.go_on()
        self._awake.set()

    def _hang_once(self) -> None:
        if at_work() and not self.met.is_set():
            self.met.set()
            self._drive.hang()
            # Data that the kernel has read ahead would be there at once, so a close that the client must confirm waits
            # instead.
            self._awake.wait(AWAKE_S)


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
    tmp_path: Path, my_drive: Path, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch, place: str, awakes: str
) -> None:
    use_small_blocks(monkeypatch)
    numbers = in_classes(20)
    photos = make_tree(tmp_path / "photos", numbers)
    options: dict[str, Any] = {"cache_dir": my_drive / "cache", "image_size": (100, 100)}
    stage_dataset(photos, progress=False, **options)
    shutil.rmtree(tmp_path / "fast")
    hanging = Hanging(drive, monkeypatch, place)

    def awake() -> None:
        if awakes == "before the new staging":
            hanging.awake()
            wait_until(lambda: not at_work())
            assert not list((tmp_path / "fast").rglob("[!.]*/*.h5"))

    try:
        staged = stage_dataset(photos, progress=AtStep("pack", awake), **options)
        assert hanging.met.is_set(), "\n".join(map(str, staged.report.steps))
        made = snapshot(staged.path)
    finally:
        hanging.awake()
    wait_until(lambda: not at_work())
    assert staged.report.origin == "source"
    assert any("not answered" in note for note in staged.report.notes), staged.report.notes
    assert numbers_in(staged.path) == numbers
    assert unvouched(tmp_path / "fast") == []
    again = stage_dataset(photos, progress=False, **options)
    assert again.report.origin == "local"
    assert snapshot(again.path) == made
    assert not list(staged.path.parent.glob(".colabstage-*"))

"""A file that is read while it arrives: exact bytes for every reader, and an error for all of them when it fails."""

from __future__ import annotations

import os
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage.errors import (
    CancelledError,
    DriveDisconnectedError,
    NotEnoughSpaceError,
    SourceNotFoundError,
    SourceReadError,
    TargetNotWritableError,
)
from colabstage.fetch.arriving import ArrivingFile
from colabstage.retry import RetryPolicy
from colabstage.simulate.knobs import ContentFault, DriveFaults, DriveKnobs, OpFault
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from colabstage.simulate.drive import SimulatedDrive

MIB = 1024 * 1024
SIZE = 16 * MIB + 12_345
POLICY = RetryPolicy(attempts=2, first_wait_s=0.01)


@pytest.fixture(scope="module")
def content() -> bytes:
    """Random bytes, more than a reader waits for."""
    return np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def source(tmp_path: Path, content: bytes) -> Path:
    """The content as a file on the local disk."""
    path = tmp_path / "source.bin"
    path.write_bytes(content)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where it arrives."""
    return tmp_path / "arriving.bin"


@pytest.fixture
def open_arriving(source: Path, target: Path, step: Any) -> Callable[..., ArrivingFile]:
    """An `ArrivingFile` from the source to the target, if nothing else is said."""

    def make(origin: Path = source, place: Path = target, **changes: Any) -> ArrivingFile:
        options: dict[str, Any] = {"step": step, "policy": POLICY, **changes}
        return ArrivingFile(origin, place, **options)

    return make


@contextmanager
def held_after(step: Any, nbytes: int) -> Iterator[threading.Event]:
    """The copy stands still once `nbytes` have arrived, until the event is set or the block ends."""
    release = threading.Event()

    def hold(total: int) -> None:
        if total >= nbytes:
            release.wait(60)

    step.notice = hold
    try:
        yield release
    finally:
        release.set()


def until(condition: Callable[[], bool]) -> None:
    """Wait, but not for ever."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


def copy_threads() -> list[threading.Thread]:
    """Copies that still run."""
    return [thread for thread in threading.enumerate() if thread.name == "colabstage-copy"]


def test_reads_before_the_start_create_nothing(
    open_arriving: Callable[..., ArrivingFile], target: Path, content: bytes, step: Any
) -> None:
    """A plan can be made from the source alone: no target, no thread, nothing counted."""
    with open_arriving() as arriving:
        assert arriving.size == SIZE
        assert arriving.pread(100, 5000) == content[5000:5100]
        assert arriving.pread(100, SIZE - 40) == content[-40:]
        assert arriving.pread(100, SIZE) == b""
        assert not target.exists()
        assert copy_threads() == []
    assert not target.exists()
    assert step.total == 0


def test_wait_returns_when_all_is_here(
    open_arriving: Callable[..., ArrivingFile], target: Path, content: bytes, step: Any
) -> None:
    """Waiting starts the copy, and afterwards the target is the source byte by byte."""
    with open_arriving() as arriving:
        arriving.wait()
        assert target.read_bytes() == content
        arriving.start()
        arriving.wait()
        assert step.total == SIZE
    assert target.read_bytes() == content


def test_empty_file_is_here_at_once(tmp_path: Path, open_arriving: Callable[..., ArrivingFile], target: Path) -> None:
    """Nothing to copy is no reason to wait."""
    (tmp_path / "empty").touch()
    with open_arriving(tmp_path / "empty") as arriving:
        arriving.wait()
        assert arriving.pread(10, 0) == b""
    assert target.read_bytes() == b""


def test_near_read_waits_for_the_copy(
    open_arriving: Callable[..., ArrivingFile], source: Path, content: bytes, step: Any
) -> None:
    """What is about to arrive is waited for and comes from the local copy, not by another request to the source."""
    with open_arriving() as arriving, held_after(step, 2 * MIB) as release, ThreadPoolExecutor(1) as pool:
        arriving.start()
        until(lambda: step.total == 2 * MIB)
        near = pool.submit(arriving.pread, 1000, 4 * MIB)
        time.sleep(0.1)
        assert not near.done()
        release.set()
        assert near.result(10) == content[4 * MIB : 4 * MIB + 1000]


def test_far_read_does_not_wait_for_the_copy(
    open_arriving: Callable[..., ArrivingFile], content: bytes, step: Any
) -> None:
    """The table of contents at the end is read from the source while the copy is at the beginning."""
    with open_arriving() as arriving, held_after(step, MIB):
        arriving.start()
        until(lambda: step.total == MIB)
        assert arriving.pread(1000, SIZE - 1000) == content[-1000:]
        assert step.total == MIB


def test_arrived_bytes_come_from_the_local_copy(
    open_arriving: Callable[..., ArrivingFile], source: Path, content: bytes, step: Any
) -> None:
    """Once bytes are here, the source is not asked for them again: it may be gone by then."""
    with open_arriving() as arriving:
        arriving.wait()
        os.truncate(source, 0)
        assert arriving.pread(5000, 3 * MIB - 100) == content[3 * MIB - 100 : 3 * MIB + 4900]


def test_many_readers_get_exact_bytes(open_arriving: Callable[..., ArrivingFile], content: bytes, step: Any) -> None:
    """Eight threads that read all over the file while it arrives get what the source holds."""
    step.notice = lambda _: time.sleep(0.01)
    dice = np.random.default_rng(1)
    ranges = [(int(offset), int(length)) for offset, length in dice.integers(0, [SIZE, 300_000], (400, 2))]
    everything = [(offset, 100_000) for offset in range(0, SIZE, 100_000)]
    with open_arriving() as arriving, ThreadPoolExecutor(8) as pool:
        arriving.start()
        for offset, length, data in pool.map(
            lambda part: (*part, arriving.pread(part[1], part[0])), everything + ranges
        ):
            assert data == content[offset : offset + length], offset
        assert arriving.pread(2 * SIZE, 0) == content


def test_zip_is_unpacked_while_it_arrives(
    tmp_path: Path, open_arriving: Callable[..., ArrivingFile], content: bytes, step: Any
) -> None:
    """A zip's tree works on an arriving file: its directory by direct reads, its members as they come."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_STORED) as archive:
        for number in range(32):
            archive.writestr(f"{number:02d}.bin", content[number * 500_000 : (number + 1) * 500_000])
    step.notice = lambda _: time.sleep(0.005)
    with open_arriving(tmp_path / "a.zip") as arriving, ZipTree(arriving) as tree, ThreadPoolExecutor(4) as pool:
        assert step.total == 0
        arriving.start()
        entries = sorted(tree.entries, key=lambda entry: entry.position)
        for number, data in enumerate(pool.map(tree.read, entries)):
            assert data == content[number * 500_000 : (number + 1) * 500_000]


def failures(arriving: ArrivingFile, offsets: range) -> list[BaseException | None]:
    """What readers that all wait at once get in the end."""
    with ThreadPoolExecutor(len(offsets)) as pool:
        futures = [pool.submit(arriving.pread, 10, offset) for offset in offsets]
        wait(futures, timeout=30)
        return [future.exception(timeout=0) for future in futures]


def test_source_that_shrinks_is_an_error_for_all_readers(
    open_arriving: Callable[..., ArrivingFile], source: Path, content: bytes, step: Any
) -> None:
    """Every reader gets an error of its own that names the file; what had arrived can still be read."""
    with open_arriving() as arriving, held_after(step, 2 * MIB) as release, ThreadPoolExecutor(1) as pool:
        arriving.start()
        until(lambda: step.total == 2 * MIB)
        got = pool.submit(failures, arriving, range(4 * MIB, 9 * MIB, MIB))
        os.truncate(source, 3 * MIB + 5)
        release.set()
        errors = got.result(30)
        assert [type(error) for error in errors] == [SourceReadError] * 5
        assert len({id(error) for error in errors}) == 5
        assert "source.bin' ends at byte 3,145,733" in str(errors[0])
        assert arriving.pread(100, 2 * MIB) == content[2 * MIB : 2 * MIB + 100]
        with pytest.raises(SourceReadError, match="ends at byte"):
            arriving.wait()
    assert copy_threads() == []


def test_full_disk_is_an_error_for_readers_and_for_waiting(
    small_disk: Path, open_arriving: Callable[..., ArrivingFile]
) -> None:
    """The disk fills up midway: whoever waits for the bytes learns that there is no room."""
    with open_arriving(place=small_disk / "copy") as arriving:
        with pytest.raises(NotEnoughSpaceError, match=r"small' is full"):
            arriving.wait()
        with pytest.raises(NotEnoughSpaceError, match=r"small' is full"):
            arriving.pread(10, 3 * MIB)


def test_target_that_cannot_be_made_is_named(open_arriving: Callable[..., ArrivingFile], tmp_path: Path) -> None:
    """Starting fails with the target's name; the source can still be read."""
    with open_arriving(place=tmp_path / "no" / "copy") as arriving:
        with pytest.raises(TargetNotWritableError, match="no/copy"):
            arriving.start()
        assert len(arriving.pread(10, 0)) == 10
    assert copy_threads() == []


def test_missing_source_is_named(open_arriving: Callable[..., ArrivingFile], tmp_path: Path) -> None:
    """There is nothing to copy, and that is said at once."""
    with pytest.raises(SourceNotFoundError, match="nowhere"):
        open_arriving(tmp_path / "nowhere")


def test_copy_that_stands_still_is_an_error_for_readers(open_arriving: Callable[..., ArrivingFile], step: Any) -> None:
    """When nothing arrives for the deadline, a waiting reader and `wait` get an error that says what to do."""
    with open_arriving(stall_timeout_s=0.5) as arriving, held_after(step, MIB):
        arriving.start()
        began = time.monotonic()
        assert [type(error) for error in failures(arriving, range(2 * MIB, 4 * MIB, MIB))] == [SourceReadError] * 2
        with pytest.raises(SourceReadError, match=r"has not moved for 0.*force_remount=True"):
            arriving.wait()
        assert 0.9 <= time.monotonic() - began < 5.0


def test_slow_copy_is_no_stalled_one(open_arriving: Callable[..., ArrivingFile], step: Any, content: bytes) -> None:
    """A reader waits longer than the deadline while every chunk comes within it."""
    step.notice = lambda _: time.sleep(0.15)
    with open_arriving(stall_timeout_s=1.0) as arriving:
        arriving.start()
        assert arriving.pread(SIZE, 0) == content


def test_closing_midway_ends_the_copy_and_its_readers(
    open_arriving: Callable[..., ArrivingFile], target: Path, step: Any
) -> None:
    """Readers that wait get an error at once, the thread ends, and what had arrived stays."""
    step.notice = lambda _: time.sleep(0.05)
    arriving = open_arriving()
    arriving.start()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(arriving.pread, 10, offset) for offset in range(4 * MIB, 8 * MIB, MIB)]
        until(lambda: step.total >= 2 * MIB)
        arriving.close()
        assert [type(future.exception(timeout=5)) for future in futures] == [SourceReadError] * 4
    assert copy_threads() == []
    assert 2 * MIB <= target.stat().st_size < SIZE


def test_closed_file_answers_with_an_error(open_arriving: Callable[..., ArrivingFile], source: Path) -> None:
    """Reading, waiting and starting after the end are errors, never bytes of whatever file has the number now."""
    arriving = open_arriving()
    arriving.wait()
    arriving.close()
    arriving.close()
    with pytest.raises(SourceReadError, match="stopped"):
        arriving.pread(10, 0)
    unstarted = open_arriving()
    unstarted.close()
    for call in (unstarted.start, unstarted.wait, lambda: unstarted.pread(10, 0)):
        with pytest.raises(SourceReadError, match="stopped"):
            call()


def test_error_of_the_progress_reaches_the_caller(open_arriving: Callable[..., ArrivingFile], step: Any) -> None:
    """What the progress raises, for example to cancel, comes out of `wait` as what it is."""

    def cancel(total: int) -> None:
        raise CancelledError("enough")

    step.notice = cancel
    with open_arriving() as arriving, pytest.raises(CancelledError, match="enough"):
        arriving.wait()


@pytest.fixture
def drive_with(make_drive: Callable[..., SimulatedDrive], content: bytes) -> Callable[..., tuple[SimulatedDrive, Path]]:
    """A mounted Drive with the content as `MyDrive/data.zip`, and that path."""

    def make(**knobs: Any) -> tuple[SimulatedDrive, Path]:
        drive = make_drive(replace(DriveKnobs.quick(), **knobs))
        (drive.cloud / "MyDrive" / "data.zip").write_bytes(content)
        assert drive.mountpoint is not None
        return drive, drive.mountpoint / "MyDrive" / "data.zip"

    return make


@pytest.mark.fuse
def test_readers_of_a_throttled_drive_get_exact_bytes(
    drive_with: Callable[..., tuple[SimulatedDrive, Path]], open_arriving: Callable[..., ArrivingFile], content: bytes
) -> None:
    """Through a mount of 20 MB/s, with readers in front of, beside and behind the copy, every byte is right."""
    _, path = drive_with(time_scale=1.0, stream_bytes_per_s=20e6, cold_open_latency_s=0.02, listing_latency_s=0.0)
    parts = [(offset, 250_000) for offset in range(0, SIZE, 250_000)]
    with open_arriving(path) as arriving, ThreadPoolExecutor(8) as pool:
        arriving.start()
        for offset, data in pool.map(lambda part: (part[0], arriving.pread(part[1], part[0])), parts):
            assert data == content[offset : offset + 250_000], offset


@pytest.mark.fuse
def test_passing_errors_of_a_drive_do_not_show(
    drive_with: Callable[..., tuple[SimulatedDrive, Path]], open_arriving: Callable[..., ArrivingFile], content: bytes
) -> None:
    """A failing open and single failing reads cost another try each."""
    drive, path = drive_with()
    drive.set_faults(DriveFaults(ops=(OpFault(op="open", first=1), OpFault(op="read", every=5))))
    with open_arriving(path) as arriving:
        arriving.wait()
        assert arriving.pread(SIZE, 0) == content
    assert drive.stats().errors_injected >= 2


@pytest.mark.fuse
def test_drive_that_dies_midway_is_said_to_be_dead(
    drive_with: Callable[..., tuple[SimulatedDrive, Path]], open_arriving: Callable[..., ArrivingFile], step: Any
) -> None:
    """Readers learn that the Drive client died and how to mount again."""
    drive, path = drive_with()
    with open_arriving(path) as arriving, held_after(step, 2 * MIB) as release:
        arriving.start()
        until(lambda: step.total == 2 * MIB)
        drive.kill()
        release.set()
        with pytest.raises(DriveDisconnectedError, match=r"force_remount=True"):
            arriving.pread(10, 8 * MIB)


@pytest.mark.fuse
def test_drive_that_ends_a_file_early_is_an_error(
    drive_with: Callable[..., tuple[SimulatedDrive, Path]], open_arriving: Callable[..., ArrivingFile]
) -> None:
    """Bytes that run out before the listed size are no end of the file."""
    drive, path = drive_with()
    drive.set_faults(DriveFaults(contents=(ContentFault(pattern="*.zip", kind="truncate", tail_bytes=10),)))
    with open_arriving(path) as arriving, pytest.raises(SourceReadError, match="although it is listed with"):
        arriving.wait()

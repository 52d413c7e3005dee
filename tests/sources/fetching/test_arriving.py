"""A file that is read while it arrives: exact bytes for every reader, and an error for all of them when it fails."""

from __future__ import annotations

import os
import threading
import time
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage.errors import (
    CancelledError,
    DriveDisconnectedError,
    NotEnoughSpaceError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    TargetNotWritableError,
)
from colabstage.io.files import RetryPolicy, hash_block
from colabstage.sources.arriving import StreamingCopy
from colabstage.sources.remote import MountedFile, TransientError
from colabstage.trees.zip import ZipTree
from simulated_drive.knobs import ContentFault, DriveFaults, DriveKnobs, OpFault
from tests.clocks import ManualClock
from tests.sources.remotes import MemoryFile, changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive

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
def open_arriving(source: Path, target: Path, step: Any) -> Iterator[Callable[..., StreamingCopy]]:
    """An `StreamingCopy` from the source to the target by one connection, if nothing else is said."""
    with ExitStack() as stack:

        def make(origin: Path | MemoryFile = source, place: Path = target, **changes: Any) -> StreamingCopy:
            options: dict[str, Any] = {"step": step, "policy": POLICY, **changes}
            remote = origin if isinstance(origin, MemoryFile) else stack.enter_context(closing(MountedFile(origin)))
            return StreamingCopy(remote, place, **options)

        yield make


def leftovers(target: Path) -> list[Path]:
    """What stands beside the target under temporary names."""
    return sorted(target.parent.glob(f".colabstage-{target.name}.*"))


def data_of(target: Path) -> bytes:
    """What has arrived, in the one temporary place there is."""
    (folder,) = leftovers(target)
    return (folder / "data").read_bytes()


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


def test_what_nobody_prefers_stays_where_it_is_until_somebody_waits_for_it(
    open_arriving: Callable[..., StreamingCopy], target: Path, content: bytes, step: Any
) -> None:
    """A read of it is a request of its own; whoever reads from beginning to end, or wants all of it, has it come."""
    with open_arriving(connections=3) as arriving:
        arriving.prefer([(3 * MIB, 4 * MIB)], alone=True)
        assert arriving.pread(100, 0) == content[:100]
        arriving.start()
        assert arriving.pread(MIB, 3 * MIB) == content[3 * MIB : 4 * MIB]
        # Beside what has come, and far from it.
        for offset in (4 * MIB, 15 * MIB, 0):
            assert arriving.pread(100, offset) == content[offset : offset + 100]
        assert step.total == MIB
        arriving.prefer([(6 * MIB, 7 * MIB)], alone=True)
        until(lambda: step.total == 2 * MIB)
        assert arriving.pread(MIB, 6 * MIB) == content[6 * MIB : 7 * MIB]
        assert arriving.read_here(100, 10 * MIB) == content[10 * MIB : 10 * MIB + 100]
        arriving.wait()
        assert data_of(target) == content


def until_done(futures: list[Future[Any]], clock: ManualClock) -> None:
    """Turn the clock until all of them have ended."""

    def turned() -> bool:
        clock.turn(1.0)
        return all(future.done() for future in futures)

    until(turned)


def copy_threads() -> list[threading.Thread]:
    """Copies that still run."""
    return [thread for thread in threading.enumerate() if thread.name == "colabstage-fetch"]


def test_reads_before_the_start_create_nothing(
    open_arriving: Callable[..., StreamingCopy], target: Path, content: bytes, step: Any
) -> None:
    """A plan can be made from the source alone: no target, no thread, nothing counted."""
    with open_arriving() as arriving:
        assert arriving.size == SIZE
        assert arriving.pread(100, 5000) == content[5000:5100]
        assert arriving.pread(100, SIZE - 40) == content[-40:]
        assert arriving.pread(100, SIZE) == b""
        assert leftovers(target) == []
        assert copy_threads() == []
    assert leftovers(target) == []
    assert step.total == 0


def test_wait_returns_when_all_is_here(
    open_arriving: Callable[..., StreamingCopy], target: Path, content: bytes, step: Any
) -> None:
    """Waiting starts the copy; afterwards it can be moved to the target, which is the source byte by byte."""
    with open_arriving() as arriving:
        arriving.wait()
        assert data_of(target) == content
        assert not target.exists()
        arriving.start()
        arriving.wait()
        assert step.total == SIZE
        arriving.move_to(target)
    assert target.read_bytes() == content
    assert leftovers(target) == []
    blocks = [content[at : at + 8 * MIB] for at in range(0, SIZE, 8 * MIB)]
    assert arriving.block_hashes == tuple(map(hash_block, blocks))


def test_empty_file_is_here_at_once(tmp_path: Path, open_arriving: Callable[..., StreamingCopy], target: Path) -> None:
    """Nothing to copy is no reason to wait."""
    (tmp_path / "empty").touch()
    with open_arriving(tmp_path / "empty") as arriving:
        arriving.wait()
        assert arriving.pread(10, 0) == b""
        arriving.move_to(target)
    assert target.read_bytes() == b""


def test_near_read_waits_for_the_copy(
    open_arriving: Callable[..., StreamingCopy], source: Path, content: bytes, step: Any
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
    open_arriving: Callable[..., StreamingCopy], content: bytes, step: Any
) -> None:
    """The table of contents at the end is read from the source while the copy is at the beginning."""
    with open_arriving() as arriving, held_after(step, MIB):
        arriving.start()
        until(lambda: step.total == MIB)
        assert arriving.pread(1000, SIZE - 1000) == content[-1000:]
        assert step.total == MIB


def test_arrived_bytes_come_from_the_local_copy(
    open_arriving: Callable[..., StreamingCopy], source: Path, content: bytes, step: Any
) -> None:
    """Once bytes are here, the source is not asked for them again: it may be gone by then."""
    with open_arriving() as arriving:
        arriving.wait()
        os.truncate(source, 0)
        assert arriving.pread(5000, 3 * MIB - 100) == content[3 * MIB - 100 : 3 * MIB + 4900]


def test_many_readers_get_exact_bytes(open_arriving: Callable[..., StreamingCopy], content: bytes, step: Any) -> None:
    """Eight threads that read all over the file while it arrives get what the source holds."""
    step.notice = lambda _: time.sleep(0.01)
    rng = np.random.default_rng(1)
    ranges = [(int(offset), int(length)) for offset, length in rng.integers(0, [SIZE, 300_000], (400, 2))]
    everything = [(offset, 100_000) for offset in range(0, SIZE, 100_000)]
    with open_arriving() as arriving, ThreadPoolExecutor(8) as pool:
        arriving.start()
        for offset, length, data in pool.map(
            lambda part: (*part, arriving.pread(part[1], part[0])), everything + ranges
        ):
            assert data == content[offset : offset + length], offset
        assert arriving.pread(2 * SIZE, 0) == content


def test_zip_is_unpacked_while_it_arrives(
    tmp_path: Path, open_arriving: Callable[..., StreamingCopy], content: bytes, step: Any
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


@pytest.mark.parametrize("refused", [False, True])
def test_the_contents_of_a_far_zip_come_beside_its_first_bytes(
    open_arriving: Callable[..., StreamingCopy], content: bytes, refused: bool
) -> None:
    """One round trip for both, also of a long table; what was refused is asked for again."""
    far = threading.Event()

    def answer(number: int, offset: int) -> Exception | None:
        if not offset:
            return None if far.wait(30) else TransientError("nobody asked for the end meanwhile")
        first = not far.is_set()
        far.set()
        return SourceReadError("no connection to spare") if refused and first else None

    source = in_memory(content, answer=answer)
    source.facts = replace(source.facts, name="data.ZIP")
    with open_arriving(source) as arriving:
        assert arriving.pread(100, 0) == content[:100]
        assert arriving.pread(1_000, SIZE - 1_000) == content[-1_000:]
        assert arriving.pread(200_000, SIZE - 250_000) == content[SIZE - 250_000 : SIZE - 50_000]
    assert len(source.requests) == 2 + (2 if refused else 0)


def failures(arriving: StreamingCopy, offsets: range) -> list[BaseException | None]:
    """What readers that all wait at once get in the end."""
    with ThreadPoolExecutor(len(offsets)) as pool:
        futures = [pool.submit(arriving.pread, 10, offset) for offset in offsets]
        wait(futures, timeout=30)
        return [future.exception(timeout=0) for future in futures]


def test_source_that_shrinks_is_an_error_for_all_readers(
    open_arriving: Callable[..., StreamingCopy], source: Path, content: bytes, step: Any
) -> None:
    """Every reader gets an error of its own that names the file; what had arrived can still be read."""
    with open_arriving() as arriving, held_after(step, 2 * MIB) as release, ThreadPoolExecutor(1) as pool:
        arriving.start()
        until(lambda: step.total == 2 * MIB)
        got = pool.submit(failures, arriving, range(4 * MIB, 9 * MIB, MIB))
        os.truncate(source, 3 * MIB + 5)
        release.set()
        errors = got.result(30)
        assert [type(error) for error in errors] == [SourceChangedError] * 5
        assert len({id(error) for error in errors}) == 5
        assert "source.bin'" in str(errors[0])
        assert "has 3,145,733 now" in str(errors[0])
        assert arriving.pread(100, MIB) == content[MIB : MIB + 100]
        with pytest.raises(SourceChangedError, match="became another file"):
            arriving.wait()
    assert copy_threads() == []


def test_full_disk_is_an_error_for_readers_and_for_waiting(
    small_disk: Path, open_arriving: Callable[..., StreamingCopy]
) -> None:
    """The disk fills up midway: whoever waits for the bytes learns that there is no room."""
    with open_arriving(place=small_disk / "copy") as arriving:
        with pytest.raises(NotEnoughSpaceError, match=r"small' is full"):
            arriving.wait()
        with pytest.raises(NotEnoughSpaceError, match=r"small' is full"):
            arriving.pread(10, 3 * MIB)


def test_target_that_cannot_be_made_is_named(open_arriving: Callable[..., StreamingCopy], tmp_path: Path) -> None:
    """Starting fails with the target's name; the source can still be read."""
    with open_arriving(place=tmp_path / "no" / "copy") as arriving:
        with pytest.raises(TargetNotWritableError, match="no/copy"):
            arriving.start()
        assert len(arriving.pread(10, 0)) == 10
    assert copy_threads() == []


def test_missing_source_is_named(open_arriving: Callable[..., StreamingCopy], tmp_path: Path) -> None:
    """There is nothing to copy, and that is said at once."""
    with pytest.raises(SourceNotFoundError, match="nowhere"):
        open_arriving(tmp_path / "nowhere")


def test_copy_that_stands_still_is_an_error_for_readers(open_arriving: Callable[..., StreamingCopy], step: Any) -> None:
    """When nothing arrives for the deadline, a waiting reader and `wait` get an error that says what to do."""
    clock = ManualClock()
    with open_arriving(clock=clock) as arriving, held_after(step, MIB), ThreadPoolExecutor(3) as pool:
        arriving.start()
        until(lambda: step.total == MIB)
        waiting = [pool.submit(arriving.pread, 10, offset) for offset in range(2 * MIB, 4 * MIB, MIB)]
        waiting.append(pool.submit(arriving.wait))  # type: ignore[arg-type]
        for seconds in (100.0, 79.0):
            clock.turn(seconds)
            time.sleep(0.02)
            assert not any(future.done() for future in waiting)
        until_done(waiting, clock)
        errors = [future.exception() for future in waiting]
        assert [type(error) for error in errors] == [SourceReadError] * 3
        assert all("180 seconds" in str(error) for error in errors)
        assert "mount_drive()" in str(errors[0])


def test_a_stall_is_noticed_in_real_time_too(open_arriving: Callable[..., StreamingCopy], step: Any) -> None:
    """By the computer's clock, without one that is passed in."""
    with (
        open_arriving(stall_timeout_s=0.3) as arriving,
        held_after(step, MIB),
        pytest.raises(SourceReadError, match="not moved"),
    ):
        arriving.wait()


def test_slow_copy_is_no_stalled_one(open_arriving: Callable[..., StreamingCopy], step: Any, content: bytes) -> None:
    """A reader waits longer than the deadline while every piece comes within it."""
    clock = ManualClock()

    def pause(_: int) -> None:
        clock.turn(100.0)
        time.sleep(0.01)  # the reader looks meanwhile

    step.notice = pause
    with open_arriving(clock=clock) as arriving:
        arriving.start()
        assert arriving.pread(SIZE, 0) == content


def test_closing_midway_ends_the_copy_and_its_readers(
    open_arriving: Callable[..., StreamingCopy], target: Path, step: Any
) -> None:
    """Readers that wait get an error at once, the thread ends, and with no block finished nothing is left."""
    step.notice = lambda _: time.sleep(0.05)
    arriving = open_arriving()
    arriving.start()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(arriving.pread, 10, offset) for offset in range(4 * MIB, 8 * MIB, MIB)]
        until(lambda: step.total >= 2 * MIB)
        arriving.close()
        assert [type(future.exception(timeout=5)) for future in futures] == [SourceReadError] * 4
    assert copy_threads() == []
    assert leftovers(target) == []


def test_closed_file_answers_with_an_error(open_arriving: Callable[..., StreamingCopy], source: Path) -> None:
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


def test_error_of_the_progress_reaches_the_caller(open_arriving: Callable[..., StreamingCopy], step: Any) -> None:
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
    drive_with: Callable[..., tuple[SimulatedDrive, Path]], open_arriving: Callable[..., StreamingCopy], content: bytes
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
    drive_with: Callable[..., tuple[SimulatedDrive, Path]], open_arriving: Callable[..., StreamingCopy], content: bytes
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
    drive_with: Callable[..., tuple[SimulatedDrive, Path]], open_arriving: Callable[..., StreamingCopy], step: Any
) -> None:
    """Readers learn that the Drive client died and how to mount again."""
    drive, path = drive_with()
    with open_arriving(path) as arriving, held_after(step, 2 * MIB) as release:
        arriving.start()
        until(lambda: step.total >= 2 * MIB)
        drive.kill()
        release.set()
        with pytest.raises(DriveDisconnectedError, match=r"mount_drive\(\)"):
            arriving.pread(10, 8 * MIB)


@pytest.mark.fuse
def test_drive_that_ends_a_file_early_is_an_error(
    drive_with: Callable[..., tuple[SimulatedDrive, Path]], open_arriving: Callable[..., StreamingCopy]
) -> None:
    """Bytes that run out before the listed size are no end of the file."""
    drive, path = drive_with()
    drive.set_faults(DriveFaults(contents=(ContentFault(pattern="*.zip", kind="truncate", tail_bytes=10),)))
    with open_arriving(path) as arriving, pytest.raises(SourceReadError):
        arriving.wait()


def in_memory(content: bytes, **options: Any) -> MemoryFile:
    """The content far away."""
    return MemoryFile(content, **options)


@pytest.mark.parametrize("connections", [1, 3, 8])
def test_several_connections_bring_every_byte_once(
    open_arriving: Callable[..., StreamingCopy], target: Path, content: bytes, step: Any, connections: int
) -> None:
    """However many connections, the result is the content, and nothing was fetched twice."""
    source = in_memory(content, latency_s=0.01, bytes_per_s=30e6)
    with open_arriving(source, connections=connections) as arriving:
        arriving.wait()
        arriving.move_to(target)
    assert target.read_bytes() == content
    assert source.most_open == connections
    assert source.sent < 1.1 * SIZE
    assert step.total == SIZE
    assert copy_threads() == []


def test_the_front_arrives_first(open_arriving: Callable[..., StreamingCopy], content: bytes) -> None:
    """A reader that follows in order is served long before the end is here."""
    seen: list[int] = []
    source = in_memory(content * 4, bytes_per_s=40e6, connections=4, at=seen.append)
    with open_arriving(source) as arriving:
        arriving.start()
        assert arriving.pread(3 * MIB, 0) == content[: 3 * MIB]
        assert max(seen) < 40 * MIB
        assert {offset for offset, _ in source.requests[:4]} == {0, 8 * MIB, 16 * MIB, 24 * MIB}


@pytest.mark.parametrize("cut", [0, 1, 100_000, 3 * MIB])
def test_connections_that_are_cut_go_on_at_the_byte(
    open_arriving: Callable[..., StreamingCopy], content: bytes, cut: int
) -> None:
    """Every connection is cut in turn, at whatever byte; with progress in between it never ends the copy."""
    source = in_memory(content, connections=4, answer=lambda number, offset: None if number % 2 else cut)
    with open_arriving(source, policy=RetryPolicy(attempts=3, first_wait_s=0.001)) as arriving:
        arriving.wait()
        assert arriving.pread(SIZE, 0) == content
    assert len(source.requests) > 4


def test_budget_of_tries_begins_anew_with_progress(open_arriving: Callable[..., StreamingCopy], content: bytes) -> None:
    """Ninety cuts, each after some progress, are no failure with two tries."""
    source = in_memory(content, connections=1, answer=lambda number, offset: 190_000)
    with open_arriving(source, policy=RetryPolicy(attempts=2, first_wait_s=0.0)) as arriving:
        arriving.wait()
        assert arriving.pread(SIZE, 0) == content
    assert len(source.requests) >= SIZE // 190_000


def test_no_progress_is_final_after_the_tries(open_arriving: Callable[..., StreamingCopy], content: bytes) -> None:
    """When no connection gets a byte any more, the error says how often it was tried, and what the failure was."""
    source = in_memory(content, connections=3, answer=lambda number, offset: TransientError("busy, says the server"))
    with open_arriving(source, policy=RetryPolicy(attempts=3, first_wait_s=0.001)) as arriving:
        with pytest.raises(SourceReadError, match=r"busy.*3 tries") as caught:
            arriving.wait()
        assert not isinstance(caught.value, TransientError)
    assert 3 <= len(source.requests) <= 9


def test_refused_connections_leave_the_work_to_the_others(
    open_arriving: Callable[..., StreamingCopy], content: bytes
) -> None:
    """A server that takes three at once and answers the others 503 still gives everything, three at once to the end."""
    served: list[int] = []

    def refuse(number: int, offset: int) -> Exception | None:
        return TransientError("503", wait_s=0.05) if far.open > 3 else None

    def note(position: int) -> None:
        served.append(far.open)

    far = in_memory(content, bytes_per_s=20e6, connections=8, answer=refuse, at=note)
    with open_arriving(far, policy=RetryPolicy(attempts=2, first_wait_s=0.01)) as arriving:
        arriving.wait()
        assert arriving.pread(SIZE, 0) == content
    # All but the last pieces came while at least two others were on their way.
    assert sum(count >= 3 for count in served) >= 0.7 * len(served)


def test_server_is_left_alone_as_long_as_it_asks(open_arriving: Callable[..., StreamingCopy], content: bytes) -> None:
    """`wait_s` is honoured: the second request comes no sooner, and not much later."""
    times: list[float] = []
    clock = ManualClock()

    def answer(number: int, offset: int) -> Exception | None:
        times.append(clock.now())
        return TransientError("429", wait_s=40.0) if number == 0 else None

    source = in_memory(content, connections=1, answer=answer)
    with open_arriving(source, clock=clock) as arriving, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(arriving.wait)
        until(lambda: len(times) == 1)
        clock.turn(39.0)
        time.sleep(0.02)
        assert len(times) == 1
        until_done([waiting], clock)
    assert times[1] - times[0] >= 40.0


def test_wait_that_is_longer_than_patience_is_an_error_at_once(
    open_arriving: Callable[..., StreamingCopy], content: bytes
) -> None:
    """A server that wants an hour of rest is not waited for."""
    answer = lambda number, offset: TransientError("429", wait_s=3600.0)  # noqa: E731
    with (
        open_arriving(in_memory(content, connections=1, answer=answer)) as arriving,
        pytest.raises(SourceReadError, match="3600 seconds"),
    ):
        arriving.wait()


@pytest.mark.slow
def test_hanging_connection_is_taken_over(open_arriving: Callable[..., StreamingCopy], content: bytes) -> None:
    """One of four hangs in its first stretch; the others bring its bytes too."""
    release = threading.Event()
    source = in_memory(content, connections=4, at=lambda position: position == MIB and release.wait(30))
    try:
        with open_arriving(source, stall_timeout_s=20.0) as arriving:
            # Another connection that comes by the same byte does not hang.
            threading.Timer(1.0, lambda: setattr(source, "_at", lambda position: None)).start()
            arriving.wait()
            assert arriving.pread(SIZE, 0) == content
            release.set()
    finally:
        release.set()
    until(lambda: copy_threads() == [])


def test_changed_source_ends_it_for_all(open_arriving: Callable[..., StreamingCopy], content: bytes) -> None:
    """A new version midway is final at once: no try again, no mixture."""
    source = in_memory(content, connections=4, answer=lambda number, offset: changed() if number == 5 else 2 * MIB)
    with open_arriving(source) as arriving, pytest.raises(SourceChangedError, match="another version"):
        arriving.wait()


def test_source_that_sends_less_than_it_says_is_an_error(
    open_arriving: Callable[..., StreamingCopy], content: bytes
) -> None:
    """A length that lies is found: nothing is made up for the bytes that are missing."""
    source = in_memory(content, size=SIZE + 1)
    with open_arriving(source) as arriving, pytest.raises(SourceReadError, match="byte 16,789,561"):
        arriving.wait()


def test_far_read_that_is_refused_waits_for_the_copy(
    open_arriving: Callable[..., StreamingCopy], content: bytes
) -> None:
    """A server without a connection to spare: the bytes at the end come with the rest."""
    far = 2 * SIZE - 500
    answer = lambda number, offset: TransientError("503") if offset == far else None  # noqa: E731
    with open_arriving(in_memory(content * 2, bytes_per_s=20e6, connections=1, answer=answer)) as arriving:
        arriving.start()
        assert arriving.pread(500, far) == content[-500:]


@pytest.mark.parametrize(
    ("lack", "words"), [({"size": None}, "does not say how long it is"), ({"ranges": False}, "does not give parts")]
)
def test_source_whose_end_cannot_be_asked_for_is_refused(
    open_arriving: Callable[..., StreamingCopy], content: bytes, lack: dict[str, Any], words: str
) -> None:
    """Nobody can say where its end is to be read, or nobody can read it there."""
    with pytest.raises(SourceReadError, match=words):
        open_arriving(in_memory(content, **lack))


def test_interrupted_copy_is_gone_on_with(
    open_arriving: Callable[..., StreamingCopy], content: bytes, target: Path, step: Any
) -> None:
    """What is finished when the block ends is kept, verified, and not fetched a second time."""
    half = in_memory(content, connections=1, answer=lambda number, offset: changed() if offset else None)
    with open_arriving(half) as arriving, pytest.raises(SourceChangedError):
        arriving.wait()
    assert len(leftovers(target)) == 1
    step.total = 0
    rest = in_memory(content, connections=1)
    with open_arriving(rest) as arriving:
        arriving.wait()
        assert arriving.kept_bytes == 8 * MIB
        arriving.move_to(target)
    assert target.read_bytes() == content
    assert rest.sent == SIZE - 8 * MIB
    assert step.total == SIZE
    assert leftovers(target) == []


def test_discarding_leaves_nothing(open_arriving: Callable[..., StreamingCopy], target: Path) -> None:
    """Who does not need the file any more says so, as often as it likes."""
    with open_arriving() as arriving:
        arriving.wait()
        arriving.discard()
        arriving.discard()
    assert leftovers(target) == []

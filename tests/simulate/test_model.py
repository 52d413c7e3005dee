"""The pure accounting: how long reads and listings take, and which calls fail."""

from __future__ import annotations

import dataclasses
import errno
from typing import TYPE_CHECKING

import pytest

from colabstage.simulate.knobs import (
    ContentFault,
    DriveFaults,
    DriveKnobs,
    FaultLedger,
    ListingFault,
    Meter,
    OpFault,
    Traffic,
    cold_listing_s,
    listing_gives_up,
)
from colabstage.simulate.uploads import Account
from tests.clocks import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

KNOBS = DriveKnobs(
    cold_open_latency_s=0.4,
    stream_bytes_per_s=50e6,
    total_bytes_per_s=200e6,
    parallel_requests=24,
    readahead_bytes=8 << 20,
    block_bytes=1 << 20,
)
BLOCK = 1 << 20


def read_small_files(count: int, readers: int, size: int = 100_000) -> float:
    """Seconds that `readers` threads need for `count` small cold files, each reader one file after the other."""
    traffic = Traffic(KNOBS)
    free_at = [0.0] * readers
    for _ in range(count):
        reader = free_at.index(min(free_at))
        stream = traffic.open_stream()
        free_at[reader] = traffic.fetch(stream, free_at[reader], block=0, nbytes=size, first_of_open=True)
    return max(free_at)


def test_cold_file_costs_latency_plus_bytes() -> None:
    """One small file takes the latency of its open and the time of its bytes."""
    assert read_small_files(1, 1) == pytest.approx(0.4 + 100_000 / 50e6)


def test_small_files_scale_with_readers_up_to_the_requests_served_at_once() -> None:
    """Twenty readers are twenty times as fast as one; two hundred are no faster than the limit of 24."""
    alone = read_small_files(480, 1)
    assert alone / read_small_files(480, 20) == pytest.approx(20, rel=0.02)
    assert alone / read_small_files(480, 200) == pytest.approx(24, rel=0.05)


def test_many_large_files_share_the_common_pipe() -> None:
    """Ten files of 10 MB at once take what 100 MB take at the total rate, not at ten times one stream's."""
    traffic = Traffic(dataclasses.replace(KNOBS, block_bytes=10_000_000))
    ends = [
        traffic.fetch(traffic.open_stream(), 0.0, block=0, nbytes=10_000_000, first_of_open=True) for _ in range(10)
    ]
    assert max(ends) == pytest.approx(0.4 + 100e6 / 200e6)


def test_ranges_of_one_file_get_no_more_than_its_stream() -> None:
    """Eight ranges of a file asked for at the same moment arrive no faster than one after the other."""
    traffic = Traffic(KNOBS)
    stream = traffic.open_stream()
    ends = [traffic.fetch(stream, 0.0, block=100 * n, nbytes=BLOCK, first_of_open=not n) for n in range(8)]
    assert max(ends) == pytest.approx(0.4 + 8 * BLOCK / 50e6)


def test_sequential_reader_finds_what_came_while_it_was_busy() -> None:
    """Time the reader spends on its own work is not lost to the stream, as far as read-ahead goes."""
    traffic = Traffic(KNOBS)
    stream = traffic.open_stream()
    now = traffic.fetch(stream, 0.0, block=0, nbytes=BLOCK, first_of_open=True)
    busy_s = 4 * BLOCK / 50e6
    now += busy_s
    for block in range(1, 5):
        now = max(now, traffic.fetch(stream, now, block=block, nbytes=BLOCK, first_of_open=False))
    assert now == pytest.approx(0.4 + 5 * BLOCK / 50e6)


def test_reader_that_jumps_finds_nothing_ahead() -> None:
    """After a pause, a block far away takes its full time from the moment it is asked for."""
    traffic = Traffic(KNOBS)
    stream = traffic.open_stream()
    now = traffic.fetch(stream, 0.0, block=0, nbytes=BLOCK, first_of_open=True) + 1.0
    assert traffic.fetch(stream, now, block=500, nbytes=BLOCK, first_of_open=False) == pytest.approx(now + BLOCK / 50e6)


def test_meter_is_not_fooled_by_late_wake_ups() -> None:
    """Many short waits, each overslept a little, still add up to the meter's rate."""
    meter = Meter(1e6)
    now = 0.0
    for _ in range(100):
        now = max(now, meter.reserve(now, 1000)) + 0.0002
    assert now == pytest.approx(0.1, rel=0.01)


def test_listing_costs_a_fixed_part_and_a_part_for_each_entry() -> None:
    """A first look takes 0.3 s and 1 ms for each entry, and never more than its limit."""
    assert cold_listing_s(DriveKnobs(), 1000) == pytest.approx(1.3)
    assert cold_listing_s(DriveKnobs(), 10**6) == pytest.approx(20.0)


def test_listing_of_a_large_folder_succeeds_once_enough_is_known() -> None:
    """Each attempt learns as many entries as the limit; the third one knows 25,000."""
    given_up = [listing_gives_up(DriveKnobs(entry_limit=10_000), 25_000, attempt) for attempt in (1, 2, 3)]
    assert given_up == [True, True, False]
    assert not listing_gives_up(DriveKnobs(entry_limit=None), 10**6, 1)


def outcomes(rule: OpFault, paths: list[str]) -> list[int | None]:
    """What reads of these paths answer, one after the other."""
    ledger = FaultLedger(DriveFaults(ops=(rule,)))
    return [ledger.errno_for("read", path) for path in paths]


def test_every_third_read_fails() -> None:
    """`every=3` strikes the third, sixth, … call."""
    assert outcomes(OpFault(op="read", every=3), ["a"] * 6) == [None, None, errno.EIO, None, None, errno.EIO]


def test_first_reads_fail_and_then_no_more() -> None:
    """`first=2` strikes two calls in all, or two of each path."""
    assert outcomes(OpFault(op="read", first=2, errno=107), ["a", "b", "a", "b"]) == [107, 107, None, None]
    by_file = OpFault(op="read", first=1, errno=107, per_file=True)
    assert outcomes(by_file, ["a", "b", "a", "b"]) == [107, 107, None, None]
    assert outcomes(by_file, ["a", "a", "b", "b"]) == [107, None, 107, None]


def test_rule_strikes_only_its_calls_on_its_paths() -> None:
    """A rule about reads of JPEG files leaves other calls and other files alone, and does not count them."""
    rule = OpFault(op="read", pattern="MyDrive/*.jpg", first=1)
    ledger = FaultLedger(DriveFaults(ops=(rule,)))
    assert ledger.errno_for("open", "MyDrive/a.jpg") is None
    assert ledger.errno_for("read", "MyDrive/a.png") is None
    assert ledger.errno_for("read", "MyDrive/deep/a.jpg") == errno.EIO
    assert ledger.counts_reads_of("MyDrive/b.jpg")
    assert not ledger.counts_reads_of("MyDrive/b.png")


def test_damage_and_lost_entries_end_after_their_count() -> None:
    """Content and listing faults bounded by a number strike that often and then never."""
    content = ContentFault(pattern="*.zip", kind="truncate", tail_bytes=5, first_opens=1)
    faults = DriveFaults(contents=(content,), listings=(ListingFault(pattern="MyDrive/d", keep=0.5, first=1),))
    ledger = FaultLedger(faults)
    assert [ledger.damage_for("MyDrive/a.zip"), ledger.damage_for("MyDrive/a.zip")] == [content, None]
    assert [ledger.kept_of_listing("MyDrive/d", 10), ledger.kept_of_listing("MyDrive/d", 10)] == [5, 10]
    assert ledger.kept_of_listing("MyDrive/other", 10) == 10


def test_a_full_account_is_told_without_a_walk_of_many_files(tmp_path: Path) -> None:
    """Whoever asks how full an account of many files is gets what was measured a while ago; a write that may not fit
    has it measured again."""
    for number in range(2_000):
        (tmp_path / f"{number}.bin").touch()
    clock = ManualClock()
    account = Account(
        tmp_path,
        knobs=dataclasses.replace(DriveKnobs.quick(), quota_bytes=1 << 20),
        pending_bytes=lambda: 0,
        clock=clock,
    )

    def free() -> int:
        return account.statfs()["f_bavail"] * account.statfs()["f_bsize"]

    (tmp_path / "elsewhere.bin").write_bytes(bytes(1 << 20))
    clock.turn(0.8)
    assert free() == 1 << 20
    clock.turn(0.3)
    assert free() == 0
    (tmp_path / "elsewhere.bin").unlink()
    clock.turn(0.8)
    assert free() == 0
    assert account.take(1 << 19)
    assert free() == 1 << 19

"""Progress is shown where it was asked for, and cancelled work says so."""

from __future__ import annotations

import io
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from colabstage.errors import CancelledError, OptionError
from colabstage.io.display import LineProgress, Row, TqdmProgress, resolve_progress
from colabstage.io.progress import Cancellation, Progress


def test_the_argument_chooses_what_is_shown() -> None:
    """Anything else is an error before any work, with the value."""
    own: Any = Progress()
    assert isinstance(resolve_progress(True), TqdmProgress)
    assert resolve_progress(False).is_silent
    assert resolve_progress(own) is own
    for own in ("yes", 1, None):
        with pytest.raises(OptionError, match="progress="):
            resolve_progress(own)


def test_a_bar_counts_every_unit_of_every_thread() -> None:
    """Reports of several threads add up; bytes have a decimal unit; an error finishes the line."""
    with redirect_stderr(io.StringIO()) as screen, suppress(ValueError):
        with TqdmProgress().step("copy", total=3_000_000, unit="B") as step, ThreadPoolExecutor(4) as pool:
            list(pool.map(step.advance, [1000] * 3000))
        with TqdmProgress().step("pack", total=2, unit="images") as step:
            step.advance()
            step.note("training: 9 samples/s")
            raise ValueError("bad")
    copied, packed, rest = (line.rpartition("\r")[2] for line in screen.getvalue().split("\n"))
    assert "copy: 100%" in copied
    assert "3.00M/3.00M" in copied
    assert "1/2" in packed
    assert "training: 9 samples/s" in packed
    assert rest == ""


def test_what_was_done_before_is_no_part_of_a_bars_rate() -> None:
    with redirect_stderr(io.StringIO()) as screen, TqdmProgress().step("copy", total=10**12, unit="B") as step:
        step.start_at(10**12 - 1000)
        time.sleep(0.05)
        step.advance(1000)
    assert re.search(r"1\.00T/1\.00T .* [\d.]+kB/s", screen.getvalue().rpartition("\r")[2])


def test_what_goes_on_in_the_background_is_told_in_whole_lines() -> None:
    """In a terminal the caller prints meanwhile; a `Progress` of its own is asked whether it has room."""
    row = Row("pack", "images", 100, 0, "running", 0.0, 0.0)
    with redirect_stderr(io.StringIO()) as screen:
        progress = TqdmProgress()
        step = progress.step("copy", total=2, unit="B")
        lines = progress.background()
        assert isinstance(lines, LineProgress)
        screen.seek(0)
        screen.truncate()
        step.advance(2)  # unseen from now on
        step.__exit__(None, None, None)
        # Nothing yet; a tenth; too soon for another line; later; the same tenth; the end, at once.
        for done, seconds in ((5, 0.0), (10, 3.0), (20, 4.0), (30, 6.0), (35, 9.0)):
            lines._print((replace(row, done=done, seconds=seconds, note="training: 9 samples/s"),))
        lines._print((replace(row, done=100, seconds=9.5, state="done"),))
    shown = screen.getvalue().splitlines()
    assert [line.split("  ")[1].partition(" ")[0] for line in shown] == ["10", "30", "100"]
    assert shown[0].endswith("training: 9 samples/s")
    assert "\r" not in screen.getvalue()
    assert Progress().background().is_silent


def test_each_follower_is_told_once_whoever_cancels() -> None:
    for _ in range(50):
        cancellation, told = Cancellation(), list[int]()
        for number in range(20):
            cancellation.follow(partial(told.append, number))
        with ThreadPoolExecutor(8) as pool:
            for one in [pool.submit(cancellation.cancel) for _ in range(8)]:
                one.result()
        assert sorted(told) == list(range(20))
        cancellation.follow(partial(told.append, 20))
        assert told[-1] == 20
        with pytest.raises(CancelledError, match="Cancelled"):
            cancellation.check()

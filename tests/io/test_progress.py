"""Progress: every report counts, each step shows how it really ended, and it is shown where requested."""

import html
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from colabstage.errors import CancelledError, OptionError, SourceReadError
from colabstage.io.display import Board, LineProgress, Row, TqdmProgress, panel_html, panel_text, resolve_progress
from colabstage.io.progress import Cancellation, Progress
from tests.support.deadlines import shorten_deadlines
from tests.support.steps import Terminal, wait_until


def test_the_argument_and_the_stream_choose_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars where a line can be redrawn, lines in a log; anything else is an error before any work, with the value."""
    monkeypatch.setenv("TERM", "xterm")
    own: Any = Progress()
    for stream, kind in ((Terminal(), TqdmProgress), (io.StringIO(), LineProgress)):
        with redirect_stderr(stream):
            assert isinstance(resolve_progress(True), kind)
    assert resolve_progress(False).is_silent
    assert resolve_progress(own) is own
    for own in ("yes", 1, None):
        with pytest.raises(OptionError, match="progress="):
            resolve_progress(own)


def test_a_bar_counts_every_unit_of_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of several threads add up; bytes have a decimal unit; an error completes the line."""
    # Where Python has GNU readline, pytest imports it, which tells its processes of a terminal of 80 columns.
    monkeypatch.delenv("COLUMNS", raising=False)
    with redirect_stderr(io.StringIO()) as screen, suppress(ValueError):
        with TqdmProgress().step("copy", total=3_000_000, unit="B") as step, ThreadPoolExecutor(4) as pool:
            list(pool.map(step.advance, [1000] * 3000))
        with TqdmProgress().step("pack", total=2, unit="images") as step:
            step.advance()
            step.note("training: 9 samples/s")
            raise ValueError("bad")
    copied, packed, rest = (line.rpartition("\r")[2] for line in screen.getvalue().split("\n"))
    assert copied.startswith("✓ copy  3 MB  ")
    assert "  100%|" in copied
    assert packed.startswith("✗ pack  1 of 2 images  ")
    assert "  training: 9 samples/s   50%|" in packed
    assert rest == ""


def test_what_goes_on_in_the_background_is_told_in_whole_lines() -> None:
    """In a terminal, the caller prints meanwhile; a custom `Progress` is asked whether it has room."""
    row = Row("pack", "images", 100, 0, "running", 0.0, 0.0)
    with redirect_stderr(io.StringIO()) as screen:
        progress = TqdmProgress()
        step = progress.step("copy", total=2, unit="B")
        lines = progress.background()
        assert isinstance(lines, LineProgress)
        screen.seek(0)
        screen.truncate()
        step.advance(2)  # not shown from here on
        step.__exit__(None, None, None)
        # Nothing yet; a tenth; too soon for another line; later; the same tenth; a minute later; the end, at once.
        for done, seconds in ((5, 0.0), (10, 3.0), (20, 4.0), (30, 6.0), (35, 9.0), (35, 70.0)):
            lines._print((replace(row, done=done, seconds=seconds, note="training: 9 samples/s"),))
        lines._print((replace(row, done=100, seconds=70.5, state="done"),))
    shown = screen.getvalue().splitlines()
    assert [line.split("  ")[1].partition(" ")[0] for line in shown] == ["10", "30", "35", "100"]
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


def silent() -> Board:
    return Board(lambda rows: None)


def row(**changes: object) -> Row:
    """A step of 1,000 images, half done after ten seconds."""
    usual: dict[str, object] = {"name": "pack", "unit": "images", "total": 1000, "done": 500, "state": "running"}
    return Row(**{**usual, "seconds": 10.0, "rate": 50.0, **changes})  # type: ignore[arg-type]


def test_only_slow_work_without_figures_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """For how long it lasts, and how it ends; never as a stall."""
    drawn: list[tuple[Row, ...]] = []
    board = Board(drawn.append)
    with board.quiet_step("look"):
        pass
    assert drawn == []
    assert panel_text(board.rows()) == ""
    shorten_deadlines("io", 0.01, monkeypatch.setattr)
    with suppress(ValueError), board.quiet_step("plan"):
        wait_until(lambda: len(drawn) > 3)
        raise ValueError("bad")
    ended = board.rows()[-1]
    assert (ended.name, ended.state, ended.problem) == ("plan", "failed", "bad")
    assert panel_text([replace(ended, state="running", seconds=12.3, idle_s=12.3)]) == "▸ plan  for 12 s"
    with redirect_stderr(io.StringIO()) as screen, TqdmProgress().quiet_step("plan"):
        wait_until(lambda: "▸ plan  for 1 s" in screen.getvalue())


def test_what_was_done_before_makes_no_rate() -> None:
    board = silent()
    with board.step("pack", total=1_000_000, unit="images") as step:
        step.start_at(999_990)
        step.advance(10)
        time.sleep(0.02)
        (running,) = board.rows()
    (ended,) = board.rows()
    assert running.done == ended.done == 1_000_000
    assert max(running.rate, ended.rate) < 10 / 0.02


@pytest.mark.parametrize(
    ("error", "state", "problem"),
    [
        (SourceReadError("'x.zip' ended early."), "failed", "'x.zip' ended early."),
        (ValueError(), "failed", "no reason was given"),
        (CancelledError("Cancelled on request."), "cancelled", ""),
    ],
)
def test_a_step_says_how_it_ended(error: BaseException, state: str, problem: str) -> None:
    board = silent()

    def work() -> None:
        with board.step("copy", total=10, unit="B") as step:
            step.advance(4)
            raise error

    with pytest.raises(type(error)):
        work()
    (ended,) = board.rows()
    assert (ended.state, ended.problem, ended.done) == (state, problem, 4)


def test_a_step_that_closes_early_is_not_done() -> None:
    board = Board(lambda rows: None, cancellation=Cancellation())
    for is_cancelled in (False, True):
        with board.step("copy", total=10, unit="B") as step:
            step.advance(4)
            if is_cancelled and board.cancellation is not None:
                board.cancellation.cancel()
    assert [row.state for row in board.rows()] == ["ended", "cancelled"]


def test_drawing_goes_on_without_reports_and_ends_with_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled step is still drawn, so that the stall shows; afterwards no thread is left."""
    shorten_deadlines("io", 0.01, monkeypatch.setattr)
    drawn: list[tuple[Row, ...]] = []
    board = Board(drawn.append)
    with board.step("copy", total=None, unit="B"):
        wait_until(lambda: len(drawn) > 5)
    assert [rows[0].state for rows in drawn][-1] == "done"
    wait_until(lambda: not any(thread.name == "colabstage-progress" for thread in threading.enumerate()))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "▸ pack  500 of 1,000 images  50 images/s  10 s left"),
        ({"state": "done", "done": 1000}, "✓ pack  1,000 images  50 images/s  took 10.0 s"),
        ({"state": "failed"}, "✗ pack  500 of 1,000 images  50 images/s  failed after 10.0 s"),
        ({"rate": 0.0, "idle_s": 31.0}, "▸ pack  500 of 1,000 images  nothing for 31.0 s"),
        ({"total": None}, "▸ pack  500 images  50 images/s"),
        ({"unit": "B", "done": 5_000_000, "total": 10_000_000}, "▸ pack  5 MB of 10 MB  50 B/s  1 day 3 h left"),
        ({"done": 1000, "idle_s": 31.0}, "▸ pack  1,000 images  50 images/s  finishing"),
        ({"total": 0, "done": 0, "rate": 0.0}, "▸ pack  0 images"),
    ],
)
def test_a_row_reads_truly(changes: dict[str, object], line: str) -> None:
    assert panel_text([row(**changes)]) == line
    drawn = html.unescape(panel_html([row(**changes)]))
    assert [part for part in line.split("  ")[1:] if part not in drawn] == []


def test_what_is_drawn_is_escaped() -> None:
    drawn = panel_html([row(name="<b>x</b>", problem="<script>")], note="<i>")
    assert "<b>x" not in drawn
    assert "<script>" not in drawn
    assert "<i>" not in drawn


def test_many_steps_do_not_push_the_page_away() -> None:
    text = panel_text([row(name=f"copy {n}", state="done") for n in range(40)])
    assert text.splitlines()[0] == "after 28 earlier steps"
    assert ("copy 39" in text, "copy 0" in text) == (True, False)


def test_work_goes_on_where_progress_cannot_be_drawn(logged: list[str]) -> None:

    def fail(rows: tuple[Row, ...]) -> None:
        raise RuntimeError("the page is gone")

    board = Board(fail)
    for name in ("copy", "pack"):
        with board.step(name, total=1, unit="files") as step:
            step.advance()
    assert [one.state for one in board.rows()] == ["done", "done"]
    assert len(logged) == 1

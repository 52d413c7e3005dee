"""Progress is shown where it was asked for, and cancelled work says so."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial

import pytest

from colabstage.errors import CancelledError, OptionError
from colabstage.io.page import Board, Row
from colabstage.io.progress import (
    Cancellation,
    NullProgress,
    Progress,
    TqdmProgress,
    _LineBoard,
    annotate,
    background_of,
    resolve_progress,
)


def shown(progress: Progress, total: int | None, unit: str, amounts: list[int]) -> str:
    """What one step writes to stderr while `amounts` are reported by four threads."""
    with redirect_stderr(io.StringIO()) as screen:
        with progress.step("copy", total=total, unit=unit) as step, ThreadPoolExecutor(4) as pool:
            list(pool.map(step.advance, amounts))
        return screen.getvalue()


def test_the_argument_chooses_what_is_shown() -> None:
    """`True` is a bar, `False` is silence, an object of one's own is used as it is."""
    own = NullProgress()
    assert isinstance(resolve_progress(True), TqdmProgress)
    assert isinstance(resolve_progress(False), NullProgress)
    assert resolve_progress(own) is own


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_what_cannot_show_progress_is_named(value: object) -> None:
    """Anything else is an error before any work, with the value."""
    with pytest.raises(OptionError, match=rf"progress={value!r} cannot show progress"):
        resolve_progress(value)  # type: ignore[arg-type]


def test_silence_is_silent() -> None:
    """Nothing is written."""
    assert shown(NullProgress(), 10, "B", [5, 5]) == ""


def test_a_bar_counts_every_unit_of_every_thread() -> None:
    """Reports from several threads add up, none is lost."""
    last = shown(TqdmProgress(), 4000, "images", [1] * 4000).rpartition("\r")[2]
    assert "copy: 100%" in last
    assert "4000/4000" in last
    assert "images/s" in last or "s/ images" in last


def test_bytes_are_scaled() -> None:
    """Bytes are shown with a decimal unit."""
    assert "3.00M/3.00M" in shown(TqdmProgress(), 3_000_000, "B", [1_000_000] * 3)


def test_an_unknown_total_still_counts() -> None:
    """Without a total the count alone is shown."""
    assert "7 files" in shown(TqdmProgress(), None, "files", [3, 4])


def test_a_bar_starts_no_thread() -> None:
    """tqdm's monitor thread, which would outlive the step, is not started, and its setting for others stays."""
    from tqdm.auto import tqdm

    before, interval = threading.enumerate(), tqdm.monitor_interval
    with redirect_stderr(io.StringIO()), TqdmProgress().step("copy", total=2, unit="B") as step:
        step.advance()
        assert threading.enumerate() == before
    assert tqdm.monitor_interval == interval > 0


def test_a_bar_is_closed_by_an_error() -> None:
    """The line is finished, so that the error's message starts on one of its own."""
    screen = io.StringIO()
    with pytest.raises(ValueError, match="bad"):
        fail_within(TqdmProgress(), screen)
    assert screen.getvalue().endswith("\n")


def fail_within(progress: Progress, screen: io.StringIO) -> None:
    """Open a step that is shown on `screen`, and fail in it."""
    with redirect_stderr(screen), progress.step("copy", total=2, unit="B"):
        raise ValueError("bad")


def test_what_goes_on_in_the_background_is_told_in_whole_lines() -> None:
    """In a terminal the caller prints meanwhile; a `Progress` of its own is asked whether it has room."""
    row = Row("pack", "images", 100, 0, "running", 0.0, 0.0)
    show = _LineBoard().tell
    with redirect_stderr(io.StringIO()) as screen:
        # Nothing yet; a tenth; too soon for another line; later; the same tenth; the end, at once.
        for done, seconds in ((5, 0.0), (10, 3.0), (20, 4.0), (30, 6.0), (35, 9.0)):
            show((replace(row, done=done, seconds=seconds, note="training: 9 samples/s"),))
        show((replace(row, done=100, seconds=9.5, state="done"),))
    lines = screen.getvalue().splitlines()
    assert [line.split("  ")[1].partition(" ")[0] for line in lines] == ["10", "30", "100"]
    assert lines[0].endswith("training: 9 samples/s")
    assert "\r" not in screen.getvalue()
    assert isinstance(background_of(TqdmProgress()), Board)
    for silent in (NullProgress(), object()):
        assert isinstance(background_of(silent), NullProgress)  # type: ignore[arg-type]


def test_a_text_stands_beside_a_step_that_has_room() -> None:
    with redirect_stderr(io.StringIO()) as screen, TqdmProgress().step("pack", total=2, unit="images") as step:
        annotate(step, "training: 9 samples/s")
        step.advance(2)
    assert "training: 9 samples/s" in screen.getvalue()
    annotate(NullProgress().step("pack", total=2, unit="images"), "nowhere")


def test_cancelling_is_seen_by_every_thread_that_looks() -> None:
    """`check` passes before and raises after, whoever cancelled."""
    cancellation = Cancellation()
    cancellation.check()
    other = threading.Thread(target=cancellation.cancel)
    other.start()
    other.join()
    cancellation.cancel()
    assert cancellation.cancelled
    with pytest.raises(CancelledError, match="nothing that was there before has changed"):
        cancellation.check()


def test_each_follower_is_told_once_whoever_cancels() -> None:
    """Several threads may cancel at the same time, and one may begin to follow meanwhile."""
    for _ in range(200):
        cancellation, told = Cancellation(), list[int]()
        for number in range(20):
            cancellation.follow(partial(told.append, number))
        with ThreadPoolExecutor(8) as pool:
            for one in [pool.submit(cancellation.cancel) for _ in range(8)]:
                one.result()
        assert sorted(told) == list(range(20))
        cancellation.follow(partial(told.append, 20))
        assert told[-1] == 20


def test_nothing_is_imported_for_silence() -> None:
    """Only a bar needs tqdm."""
    code = (
        "import sys\nfrom colabstage.io.progress import resolve_progress\n"
        "with resolve_progress(False).step('x', total=1, unit='B') as step: step.advance()\n"
        "assert 'tqdm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

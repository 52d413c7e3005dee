"""Progress is shown where it was asked for, and cancelled work says so."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from functools import partial

import pytest

from colabstage.errors import CancelledError, OptionError
from colabstage.io.page import Row
from colabstage.io.progress import (
    Cancellation,
    NullProgress,
    TerminalProgress,
    background_of,
    resolve_progress,
)


class Terminal(io.StringIO):
    """A screen, which shows what was written last in each of its lines."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]


def test_the_argument_chooses_what_is_shown() -> None:
    own = NullProgress()
    assert isinstance(resolve_progress(True), TerminalProgress)
    assert isinstance(resolve_progress(False), NullProgress)
    assert resolve_progress(own) is own


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_what_cannot_show_progress_is_named(value: object) -> None:
    """Anything else is an error before any work, with the value."""
    with pytest.raises(OptionError, match=rf"progress={value!r} cannot show progress"):
        resolve_progress(value)  # type: ignore[arg-type]


def test_a_terminal_shows_what_runs_below_what_has_ended() -> None:
    with redirect_stderr(Terminal()) as screen:
        progress = TerminalProgress()
        with progress.step("copy", total=3_000_000, unit="B") as step, ThreadPoolExecutor(4) as pool:
            list(pool.map(step.advance, [1000] * 3000))
        assert isinstance(screen, Terminal)
        with suppress(ValueError), progress.step("pack", total=2, unit="images") as step:
            step.advance()
            assert screen.lines[1].startswith("▸ pack")
            raise ValueError("bad")
    copied, packed, rest = screen.lines
    assert copied.startswith("✓ copy  3 MB")
    assert packed.startswith("✗ pack  1 of 2 images")
    assert rest == ""


def test_a_narrow_screen_and_one_of_another_alphabet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    for encoding in ("utf-8", "ascii"):
        screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        screen.isatty = lambda: True  # type: ignore[method-assign]
        with redirect_stderr(screen), TerminalProgress().step("a long name of a file.zip", total=None, unit="B"):
            screen.seek(0)
            assert len(screen.read().rpartition("\x1b[K")[2]) == 19


def test_what_goes_on_in_the_background_is_told_in_whole_lines() -> None:
    """In a terminal the caller prints meanwhile; a `Progress` of its own is asked whether it has room."""
    row = Row("pack", "images", 100, 0, "running", 0.0, 0.0)
    with redirect_stderr(io.StringIO()) as screen:
        progress = TerminalProgress()
        # Nothing yet; a tenth; too soon for another line; later; the same tenth; the end, at once.
        for done, seconds in ((5, 0.0), (10, 3.0), (20, 4.0), (30, 6.0), (35, 9.0)):
            progress._write((replace(row, done=done, seconds=seconds, note="training: 9 samples/s"),))
        progress._write((replace(row, done=100, seconds=9.5, state="done"),))
    lines = screen.getvalue().splitlines()
    assert [line.split("  ")[1].partition(" ")[0] for line in lines] == ["10", "30", "100"]
    assert lines[0].endswith("training: 9 samples/s")
    assert "\r" not in screen.getvalue()
    assert background_of(progress) is progress
    for silent in (NullProgress(), object()):
        assert isinstance(background_of(silent), NullProgress)  # type: ignore[arg-type]


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

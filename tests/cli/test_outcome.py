"""How commands end, whatever the work raised."""

from __future__ import annotations

import errno
import re

import pytest
import typer

from colabstage.cli.command import exit_codes, show
from colabstage.errors import ColabstageError, OptionError, SourceNotFoundError


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SourceNotFoundError("There is\nnothing."), 1, "colabstage: There is nothing.\n"),
        (ColabstageError("It failed."), 1, "colabstage: It failed.\n"),
        (OptionError("Give refresh=True."), 2, "colabstage: Give refresh=True. (On the command line: --refresh.)\n"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 1, "colabstage: 'x': Permission denied.\n"),
        (KeyboardInterrupt(), 130, None),
        (MemoryError(), 1, "colabstage: This needs more memory than there is.\n"),
        (ZeroDivisionError("division by zero"), 1, None),
    ],
)
def test_an_error_becomes_a_code_and_a_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str | None
) -> None:
    """One line on stderr, nothing on stdout, and the code of its kind."""
    with pytest.raises(typer.Exit) as caught, exit_codes(debug=False):
        raise error
    out, err = capsys.readouterr()
    assert (caught.value.exit_code, out, err.count("\n")) == (code, "", 1)
    assert err.startswith("colabstage: ")
    assert line is None or err == line


def test_a_defect_names_itself_and_the_way_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody expected is told with its kind; `debug` shows where it happened instead of advising to."""
    for debug in (False, True):
        with pytest.raises(typer.Exit), exit_codes(debug=debug):
            raise ZeroDivisionError("division by zero")
        told = capsys.readouterr().err
        assert "Unexpected ZeroDivisionError: division by zero." in told
        assert ("--debug" in told, "Traceback" in told) == (not debug, debug)


def test_a_closed_pipe_is_left_to_the_caller() -> None:
    """Who read our output has left: no line is worth writing."""
    with pytest.raises(BrokenPipeError), exit_codes(debug=False):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_terminal_shows_results_in_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headline and the marks; not where somebody has asked for none, and never in a file."""
    report = "1 problem; 2 fine.\n✓ disk    fine\n✗ mounts  dead → alive\n          → Mount it again"
    shown = {}
    for terminal, no_color in ((False, ""), (True, "1"), (True, "")):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("TERM", "xterm")
        show(report)
        shown[terminal, no_color] = capsys.readouterr().out
    assert shown[False, ""] == f"{report}\n"
    assert not re.search(r"\x1b\[\d*[39]\dm", shown[True, "1"])
    coloured = shown[True, ""]
    assert coloured.startswith("\x1b[1m1 problem; 2 fine.\x1b[0m\n\x1b[32m✓\x1b[0m disk")
    assert "\x1b[31m✗\x1b[0m mounts  dead → alive" in coloured
    assert "\x1b[36m  →\x1b[0m Mount" in coloured


def test_what_is_shown_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Names come from archives and servers."""
    show("Fetched 'a\x1b[2J'.\nb\x9b31m")
    assert capsys.readouterr().out == "Fetched 'a\\x1b[2J'.\nb\\x9b31m\n"

"""How commands end, whatever the work raised."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import typer

from colabstage.cli.outcome import exit_codes, in_shell_words, show
from colabstage.errors import ColabstageError, OptionError, SourceNotFoundError


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SourceNotFoundError("There is\nnothing."), 1, "colabstage: There is nothing.\n"),
        (ColabstageError("It failed."), 1, "colabstage: It failed.\n"),
        (OptionError("Give refresh=True."), 2, "colabstage: Give --refresh.\n"),
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


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "Give image_size=(height, width), or encoding='encoded'.",
            "Give --image-size HEIGHTxWIDTH, or --encoding encoded.",
        ),
        ('Pass color_mode="keep".', "Pass --color-mode keep."),
        ("give overwrite=True to replace it", "give --overwrite to replace it"),
        (
            "image_size=ImageSize(height=0, width=0) is not a size",
            "--image-size 0x0 is not a size",
        ),
        ("Give names, older_than_days=…, or everything=True.", "Give names, --older-than DAYS, or --all."),
        ("It has 3 GB; open it without disk_limit=.", "It has 3 GB; open it without --disk-limit."),
        ("disk_limit='-5' is not a size", "--disk-limit -5 is not a size"),
        ("disk_limit=1.5 GB is too little", "--disk-limit 1.5GB is too little"),
        ("disk_limit=30 MB is too little", "--disk-limit 30MB is too little"),
        ("shards=9 Bands", "--shards 9 Bands"),
        ("Copy it with fetch_files, or name it.", "Copy it with `colabstage fetch`, or name it."),
        (
            "Stage it: stage_dataset(path) copies it, with refresh=True.",
            "Stage it: `colabstage stage` copies it, with --refresh.",
        ),
        ("target='out/' is a folder", "'out/' is a folder"),
        ("local_dir='/a b/c' is inside", "--local-dir '/a b/c' is inside"),
        (
            "give local_dir= on a larger disk, or disk_limit='1.5GB'",
            "give --local-dir on a larger disk, or --disk-limit 1.5GB",
        ),
        ("A plan.\n  streaming=True would help.", "A plan.\n  In Python, streaming=True would help."),
        ("in_memory=True is not an option here", "in_memory=True is not an option here"),
        ("kind=(1, 2), refresh=maybe", "kind=(1, 2), refresh=maybe"),
    ],
)
def test_advice_is_given_in_the_words_of_the_command_line(message: str, told: str) -> None:
    """Arguments that are options here are named as options; everything else stays."""
    assert in_shell_words(message) == told


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
    assert shown[False, ""] == shown[True, "1"] == f"{report}\n"
    coloured = shown[True, ""]
    assert coloured.startswith("\x1b[1m1 problem; 2 fine.\x1b[0m\n\x1b[32m✓\x1b[0m disk")
    assert ("\x1b[31m✗\x1b[0m mounts  dead → alive" in coloured, "\x1b[36m→\x1b[0m Mount" in coloured) == (True, True)


def test_what_is_shown_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Names come from archives and servers; each thing has lines of its own."""
    show("Fetched 'a\x1b[2J'.", Path("b\x9b31m"))
    assert capsys.readouterr().out == "Fetched 'a\\x1b[2J'.\nb\\x9b31m\n"

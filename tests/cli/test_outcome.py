"""How commands end, whatever error occurred, and what they show on a terminal."""

import errno
import re
import threading
import time
from pathlib import Path

import pytest

from colabstage.errors import ColabstageError, OptionError, SourceNotFoundError
from tests.cli.conftest import Done, Run, write_images
from tests.cli.test_help import on_a_terminal

LOST = ZeroDivisionError("division by zero at https://ann:hunter2@host/x")


def ended_by(error: Exception, run: Run, monkeypatch: pytest.MonkeyPatch, *flags: str) -> Done:
    """Return how a command ended whose wait for the next figures raised this error."""
    sleep = time.sleep

    def fail(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            raise error
        sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", fail)
        return run("gpu", "--seconds", "60", *flags)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SourceNotFoundError("There is\nnothing."), 1, "There is nothing."),
        (ColabstageError("It failed."), 1, "It failed."),
        (OptionError("Give refresh=True."), 2, "Give refresh=True. (On the command line: --refresh.)"),
        (OptionError("Try layout=parts(x='a')."), 2, "Try layout=parts(x='a').\n"),
        (
            OptionError("First fetch_files, then stage_dataset."),
            2,
            "First fetch_files, then stage_dataset. (On the command line: colabstage fetch, colabstage stage.)",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 1, "'x': Permission denied."),
        (MemoryError(), 1, "This needs more memory than there is."),
        (LOST, 1, "Unexpected ZeroDivisionError: division by zero at https://host/x. Run it again with --debug"),
    ],
)
def test_an_error_becomes_a_code_and_a_line(
    run: Run, smi: object, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, line: str
) -> None:
    """One line on stderr, nothing on stdout, and the code of its kind."""
    done = ended_by(error, run, monkeypatch)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert done.stderr.startswith(f"colabstage: {line}")


def test_debug_shows_where_a_defect_is(run: Run, smi: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not suggest what was already done."""
    told = ended_by(LOST, run, monkeypatch, "--debug").stderr
    assert told.startswith("Traceback (most recent call last)")
    assert told.splitlines()[-1].startswith("colabstage: Unexpected ZeroDivisionError: ")
    assert "--debug" not in told


def test_a_terminal_shows_results_in_colour(tmp_path: Path) -> None:
    """The headline and the marks; not if colour was switched off, and never in a pipe."""
    code, shown = on_a_terminal(tmp_path, "doctor", "missing", columns=100)
    assert code == 1
    assert re.match(r"\x1b\[1m1 problem; [^\x1b]*\x1b\[0m\r?\n", shown)
    assert re.search(r"^\x1b\[32m✓\x1b\[0m platform", shown, re.MULTILINE)
    assert re.search(r"^\x1b\[31m✗\x1b\[0m location", shown, re.MULTILINE)
    assert "\x1b[36m  →\x1b[0m Check the spelling" in shown
    assert not re.search(r"\x1b\[\d*[39]\dm", on_a_terminal(tmp_path, "doctor", columns=100, NO_COLOR="1")[1])


def test_what_is_shown_does_nothing_to_the_terminal(run: Run, tmp_path: Path) -> None:
    """Names come from archives and servers."""
    folder = write_images(tmp_path / "a\x1b[2J\x9b31m", each=2)
    packed, failed = run("pack", folder, "b\x1b[2J.h5"), run("plan", "c\x1b[2J")
    assert "b\\x1b[2J.h5" in packed.stdout
    assert "c\\x1b[2J" in failed.stderr
    assert not re.search(r"[\x1b\x9b]", packed.stdout + run("info", "b\x1b[2J.h5").stdout + failed.stderr)

"""Help, complaints about command lines, and completion with the Tab key."""

import os
import pty
import re
import runpy
import shlex
import subprocess
import termios
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from tests.cli.conftest import COMMAND, practice_environment
from tests.support.command import run_command

Ask = Callable[..., tuple[int, str, str]]
_COLOUR = re.compile(r"\x1b\[[0-9;]*[39][0-7]m")


@cache
def program() -> Any:
    """Return the command line as typer runs it, with its commands."""
    made: list[typer.Typer] = []
    with mock.patch.object(typer.Typer, "__call__", lambda app, **_: made.append(app)), suppress(SystemExit):
        runpy.run_module("colabstage", run_name="__main__")
    (app,) = made
    return typer.main.get_command(app)


def commands() -> dict[str, Any]:
    """Every command by its full name."""
    found: dict[str, Any] = {}
    for name, command in program().commands.items():
        if command.hidden:
            continue
        below = getattr(command, "commands", {})
        found |= {f"{name} {inner}": one for inner, one in below.items()} or {name: command}
    return found


def examples() -> list[str]:
    """The example lines in the help of all commands."""
    texts = [re.sub(r"\[/?[a-z ]+\]", "", command.help).replace("\\[", "[") for command in commands().values()]
    return [line.strip() for text in texts for line in text.splitlines() if line.strip().startswith("colabstage ")]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs the command line in this process; returns exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def ask_it(*words: str) -> tuple[int, str, str]:
        done = run_command(*words)
        return done.returncode, done.stdout, done.stderr

    return ask_it


def on_a_terminal(folder: Path, *words: str, columns: int, **environment: str) -> tuple[int, str]:
    """Return the exit code of a command on a terminal of that width, and everything it shows there."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    told = {name: value for name, value in practice_environment(folder).items() if name not in {"COLUMNS", "NO_COLOR"}}
    with subprocess.Popen(
        [*COMMAND, *words],
        cwd=folder,
        env={**told, "TERM": "xterm-256color", **environment},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while part := read_some(ours):
            shown += part
        code = process.wait(60)
    os.close(ours)
    return code, shown.decode()


def read_some(terminal: int) -> bytes:
    """Return the terminal's next output; nothing after its program has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_every_command_has_examples_and_json() -> None:
    """Its help shows how it is used, and a program can read what it prints."""
    lines = examples()
    for name, command in commands().items():
        assert any(f"{line} ".startswith(f"colabstage {name} ") for line in lines), name
        assert "--json" in {option for parameter in command.params for option in parameter.opts}, name


def test_an_example_is_a_line_that_can_be_typed() -> None:
    """The command line accepts its command, options and words; nothing is run."""
    for line in examples():
        words = shlex.split(line)[1:]
        command = program()
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(line, words)


def test_help_fits_its_terminal(tmp_path: Path) -> None:
    """No line is wider than the terminal, each command has one line, and there is colour."""
    columns = 80
    code, shown = on_a_terminal(tmp_path, "--help", columns=columns)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in shown.splitlines()]
    assert code == 0
    assert max(map(len, plain)) <= columns
    names = {name.split()[0] for name in commands()}
    assert {line.split()[1] for line in plain if re.match(r"│ [a-z]", line)} == names
    assert _COLOUR.search(shown)


def test_a_terminal_gets_bars(tmp_path: Path, photos: Path) -> None:
    """On a terminal, the steps are shown as they progress."""
    code, shown = on_a_terminal(tmp_path, "pack", str(photos), "a.h5", columns=100)
    assert code == 0
    assert "✓ pack  10 images  " in shown
    assert "  100%|" in shown


def test_a_terminal_that_cannot_redraw_gets_no_bars(tmp_path: Path, photos: Path) -> None:
    """If TERM is dumb, only the result is shown."""
    code, shown = on_a_terminal(tmp_path, "pack", str(photos), "a.h5", columns=80, TERM="dumb")
    assert code == 0
    assert "%|" not in shown
    assert "\x1b" not in shown


def test_a_pipe_gets_plain_text(ask: Ask) -> None:
    """Without a terminal, the help has no escape codes."""
    code, out, err = ask("stage", "--help")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "\n   colabstage stage /content/drive/MyDrive/kitti.zip --image-size 256x256 " in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("stag", "x"), "No such command 'stag'. Did you mean 'stage'? See: colabstage --help"),
        (("cache", "lst"), "No such command 'lst'. Did you mean 'list'? See: colabstage cache --help"),
        (("stage",), "Missing argument 'SOURCE'. See: colabstage stage --help"),
        (("stage", "x", "--imge-size", "8"), "--image-size"),
    ],
)
def test_a_mistyped_line_gets_one_line(ask: Ask, words: tuple[str, ...], line: str) -> None:
    """What is wrong, what was meant, and where help is; exit code 2, nothing on stdout."""
    code, out, err = ask(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err


@pytest.mark.parametrize(("kind", "method"), [(typer.Typer, "__call__"), (typer.core.TyperGroup, "make_context")])
def test_ctrl_c_before_the_work_has_begun(ask: Ask, monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> None:
    """Exit code 130 and one line, even if no command has begun, or its line is still being read."""
    monkeypatch.setattr(kind, method, mock.Mock(side_effect=KeyboardInterrupt))
    assert ask("plan", "x") == (130, "", "colabstage: Interrupted. Nothing was changed.\n")


def offered(monkeypatch: pytest.MonkeyPatch, ask: Ask, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_COLABSTAGE_COMPLETE", "complete_bash")
    code, out, err = ask()
    assert (code, err) == (0, "")
    return out.split()


def test_the_tab_key_knows_words(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and the values of options; files are left to the shell."""
    assert offered(monkeypatch, ask, "colabstage ver") == ["verify"]
    assert offered(monkeypatch, ask, "colabstage cache ") == ["list", "purge"]
    assert offered(monkeypatch, ask, "colabstage stage x --keep ") == ["pack", "files", "both"]
    assert offered(monkeypatch, ask, "colabstage cache purge --only c") == ["cache"]
    assert offered(monkeypatch, ask, "colabstage info ") == []

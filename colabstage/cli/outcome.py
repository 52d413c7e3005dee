"""How a command ends: its exit code, and one line on stderr that says why."""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import os
import re
import sys
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from colabstage.cli.options import spell_options
from colabstage.errors import ColabstageError, OptionError, printable, said_by
from colabstage.io.arguments import NOTHING_DONE
from colabstage.io.redaction import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = 1
WRONG_ARGUMENTS = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# What is left after Ctrl-C, by kind of command.
GOES_ON = "What was finished is kept; the same command again continues from there."
NOTHING_LEFT = "Nothing of it is kept, and nothing that was there before has changed."

# Marks at the beginning of a report's lines, with their colour codes.
_COLOURS = {"✓": 32, "✗": 31, "!": 33, "→": 36, "–": 90}
_MARK = re.compile(r"^(?:✓|✗|!|–)(?= )|(?<=^)→|(?<=  )→(?= )")


@contextlib.contextmanager
def exit_codes(*, debug: bool, kept: str = GOES_ON) -> Iterator[None]:
    """Turn an error into one line on stderr and an exit code; with `debug`, after its traceback.

    `kept`: the sentence for Ctrl-C that says what is kept.
    """
    try:
        yield
    # Before all others, because what Ctrl-C leaves depends on the command.
    except KeyboardInterrupt:
        _exit(f"Interrupted. {kept}", INTERRUPTED, debug)
    # Before its base class: a wrong argument has its own exit code.
    except OptionError as error:
        _exit(str(error), WRONG_ARGUMENTS, debug)
    except ColabstageError as error:
        _exit(str(error), FAILED, debug)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output has gone; typer then ends quietly
            raise
        place = f"'{error.filename}': " if error.filename else ""
        _exit(f"{place}{said_by(error)}.", FAILED, debug)
    # The exception's own text is empty.
    except MemoryError:
        _exit("This needs more memory than there is.", FAILED, debug)
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:  # noqa: BLE001 - a bug is shown like any failure, with the way to see more
        hint = "" if debug else " Run it again with --debug to see where; it is a defect worth reporting."
        _exit(f"Unexpected {type(error).__name__}: {hide_secrets(str(error))}.{hint}", FAILED, debug)


def fail(reason: str) -> NoReturn:
    """End with exit code 1 and one line."""
    _exit(reason, FAILED, debug=False)


def _exit(reason: str, code: int, debug: bool) -> NoReturn:
    # The traceback first, so that the line with the remedy is the last one on the screen.
    if debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    _say(spell_options(" ".join(reason.split())))
    raise typer.Exit(code)


def _say(line: str) -> None:
    print(f"colabstage: {printable(line)}", file=sys.stderr)


def show(*found: object) -> None:
    """Print what was found or done, one item per line; control characters in names are escaped.

    A terminal shows the first line and the marks in colour.
    """
    # https://no-color.org
    colours = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    for one in found:
        text = printable(str(one))
        if colours:
            first, *rest = text.split("\n")
            lines = [f"\x1b[1m{first}\x1b[0m", *rest]
            text = "\n".join(
                _MARK.sub(lambda mark: f"\x1b[{_COLOURS[mark[0]]}m{mark[0]}\x1b[0m", line) for line in lines
            )
        print(text)


def is_usage_error(error: Exception) -> bool:
    """Tell whether it is typer's error about the command line's arguments.

    Depending on typer's version, its class is click's or typer's own copy; typer exposes a subclass.
    """
    # Newer versions of typer vendor click, so the class is found through one that both have.
    complaint = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
    return isinstance(error, complaint)


def say_usage_error(error: Exception) -> None:
    """Print one line on stderr: what is wrong with the command line, and where help is."""
    if type(error).__name__ == "NoArgsIsHelpError":  # the help itself has been printed
        return
    context: Any = getattr(error, "ctx", None)
    message = " ".join(str(getattr(error, "format_message", error.__str__)()).split())
    command = "colabstage" if context is None else context.command_path
    # Suggest the command that was meant, if typer's version does not.
    typed = re.match(r"No such command '(?P<name>.*)'\.$", message)
    near = difflib.get_close_matches(typed["name"], getattr(context.command, "commands", ()), 1) if typed else []
    nearest = f" Did you mean '{near[0]}'?" if near else ""
    end = "" if f"{message}{nearest}".endswith((".", "?", "!")) else "."
    _say(f"{message}{nearest}{end} See: {command} --help")


def say_interrupted() -> int:
    """Print the line for Ctrl-C before any work had begun; returns the exit code."""
    _say(f"Interrupted. {NOTHING_DONE}")
    return INTERRUPTED


def shows_progress() -> bool:
    """Tell whether stderr is a terminal that can redraw a line, which bars need."""
    # In a log file each update of the bar would be a line of its own.
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """Print a value as JSON; paths become text."""
    print(json.dumps(value, indent=2, default=str))


def tell(found: Any, *more: object, as_json: bool) -> None:
    """Print a command's result: only JSON, or text with `more` below it."""
    if as_json:
        print_json(found.to_dict() if hasattr(found, "to_dict") else asdict(found))
    else:
        # Results give advice, as errors do.
        show(spell_options(str(found)), *more)

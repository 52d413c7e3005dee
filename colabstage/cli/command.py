"""`command`: what makes a function that calls the library and returns its result a command of the command line."""

from __future__ import annotations

import errno
import inspect
import itertools
import json
import re
import sys
import traceback
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from colabstage.cli.options import AsJson, Debug, spell_options
from colabstage.errors import ColabstageError, OptionError, printable, said_by
from colabstage.io.arguments import defaults
from colabstage.io.units import hide_secrets
from colabstage.stage.request import make_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


FAILED = 1
WRONG_ARGUMENTS = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# What is left after Ctrl-C, by kind of command.
GOES_ON = "What was finished is kept; the same command again continues from there."
NOTHING_LEFT = "Nothing of it is kept, and nothing that was there before has changed."

# The first line of a report, and the marks of its rows, in rich's words.
_STYLES = {r"\A.*": "bold", "^✓": "green", "^✗": "red", "^!": "yellow", "^–": "bright_black", "(^|  )→": "cyan"}


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints, where that is not simply its result."""

    value: Any
    """For `--json`: JSON values, a dataclass, or anything with a `to_dict`, or a list of these."""
    text: str
    """For people; empty for nothing."""
    failure: str = ""
    """Why the exit code is 1; empty for success."""


def _describe(error: BaseException, interrupted: str, *, debug: bool) -> tuple[str, int]:
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted. {interrupted}", INTERRUPTED
    if isinstance(error, ColabstageError):
        return str(error), WRONG_ARGUMENTS if isinstance(error, OptionError) else FAILED
    if isinstance(error, OSError):
        place = f"'{error.filename}': " if error.filename else ""
        return f"{place}{said_by(error)}.", FAILED
    if isinstance(error, MemoryError):  # its own text is empty
        return "This needs more memory than there is.", FAILED
    hint = "" if debug else " Run it again with --debug to see where; it is a defect worth reporting."
    return f"Unexpected {type(error).__name__}: {hide_secrets(str(error))}.{hint}", FAILED


def end(reason: str, code: int) -> NoReturn:
    _say(spell_options(" ".join(reason.split())))
    sys.exit(code)


def _say(line: str) -> None:
    print(f"colabstage: {printable(line)}", file=sys.stderr)


def print_result(found: Any, *, as_json: bool) -> None:
    """Print what a command returned, as JSON or as text, and end with exit code 1 if it failed."""
    output = found if isinstance(found, Output) else Output(found, str(found))
    if as_json:
        print(json.dumps(output.value, indent=2, default=_json_value))
    elif output.text:
        show(spell_options(output.text))  # results give advice too, as errors do
    if output.failure:
        end(output.failure, FAILED)


def _json_value(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def show(text: str) -> None:
    """Print text; control characters in names are escaped. A terminal shows the first line and marks in colour."""
    from rich.console import Console
    from rich.text import Text

    shown = Text(printable(text))
    for pattern, style in _STYLES.items():
        shown.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    console = Console()
    # Written by Python's own `print`, because rich would flush, and `main` does that.
    with console.capture() as written:
        console.print(shown, soft_wrap=True)
    print(written.get(), end="")


def say_usage_error(error: Exception) -> None:
    """Print one line on stderr: what is wrong with the command line, and where help is. Another error is raised."""
    # Typer's errors about arguments are click's, or those of typer's own copy of click, which depends on its version.
    if not hasattr(error, "format_message"):
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":  # the help itself has been printed
        return
    context: Any = getattr(error, "ctx", None)
    message = " ".join(str(error.format_message()).split())
    # If one word is given for SOURCE… and TARGET, it counts as the TARGET, though it may be meant as a SOURCE.
    if getattr(getattr(error, "param", None), "nargs", 1) == -1:
        needed = [one.metavar for one in context.command.params if one.param_type_name == "argument" and one.required]
        message = f"Missing argument: give {' and '.join(needed)}" if len(needed) > 1 else message
    command = "colabstage" if context is None else context.command_path
    end = "" if message.endswith((".", "?", "!")) else "."
    _say(f"{message}{end} See: {command} --help")


def command(
    *, flags: Mapping[str, Any] | None = None, interrupted: str = GOES_ON
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Print what a function returns, with `--json` as JSON; an error becomes an exit code and a line on stderr.

    `flags`: options by Python argument, which the function receives in its parameter `flags`. `interrupted`: the
    sentence for Ctrl-C that says what is kept.
    """

    def decorate(work: Callable[..., Any]) -> Callable[..., None]:
        # Typer reads signatures, so options are defined once and are the same in every command.
        parameters = [one for one in inspect.signature(work, eval_str=True).parameters.values() if one.name != "flags"]
        options = [_option(name, kind) for name, kind in (flags or {}).items()]
        common = [_option("as_json", AsJson, default=False), _option("debug", Debug, default=False)]

        def run(*, as_json: bool, debug: bool, **given: Any) -> None:
            if "only" in given:
                given["only"] = given["only"] or None
            if flags is not None:
                given["flags"] = {name: given.pop(name) for name in flags}
            try:
                print_result(work(**given), as_json=as_json)
            except (KeyboardInterrupt, Exception) as error:
                if getattr(error, "errno", None) == errno.EPIPE:  # the reader has gone; typer then ends quietly
                    raise
                # The traceback first, so that the line with the remedy is the last one on the screen.
                if debug:
                    traceback.print_exc()
                end(*_describe(error, interrupted, debug=debug))

        run.__name__, run.__doc__ = work.__name__, work.__doc__
        own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        # Shown in this order by the help.
        required = list(itertools.takewhile(lambda one: one.default is inspect.Parameter.empty, own))
        signature = [*required, *options, *own[len(required) :], *common]
        # Typer asks `inspect.signature`, which looks here first.
        vars(run)["__signature__"] = inspect.Signature(signature)
        run.__annotations__ = {one.name: one.annotation for one in signature}
        return run

    return decorate


# What they are where nothing is said. A list is a repeatable option, which the shell leaves empty and not None.
_USUAL = {**defaults(make_request), "overwrite": False, "only": []}


def _option(name: str, kind: Any, *, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_USUAL.get(name, default), annotation=kind)

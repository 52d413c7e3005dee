"""The commands by name, their help, and how a run ends.

Heavy modules are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from colabstage.cli import commands as c
from colabstage.cli.command import INTERRUPTED, WRONG_ARGUMENTS, end, say_usage_error
from colabstage.io.boundary import NOTHING_DONE

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = "Examples:"
_HELP = {"help_option_names": ["-h", "--help"]}
_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Stage a dataset": (c.stage, c.plan),
    # The help shows the panels in this order, the most used first.
    "Packed files": (c.pack, c.info, c.verify),
    "Plain files": (c.fetch, c.extract),
    "Trainings": (c.runs,),
    "Find the bottleneck": (c.doctor_, c.compare, c.profile, c.gpu),
}
app = typer.Typer(
    name="colabstage",
    no_args_is_help=True,
    # Only --debug shows a traceback, which is Python's own.
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_HELP,
)
cache = typer.Typer(name="cache", no_args_is_help=True, rich_markup_mode="rich", context_settings=_HELP)


def help_of(command: Callable[..., None]) -> str:
    """Return the docstring as rich's markup; the lines after `Examples:` keep their line ends.

    They are indented inside the markup, because typer strips leading spaces.
    """
    # One text is docstring and help, so the two cannot differ.
    text, _, examples = inspect.cleandoc(command.__doc__ or "").partition(_MARK)
    paragraphs = [_escape_markup(" ".join(paragraph.split())) for paragraph in text.strip().split("\n\n")]
    shown = "\n".join(
        f"[green]  {_escape_markup(line)}[/green]" for line in map(str.strip, examples.splitlines()) if line
    )
    return "\n\n".join([*paragraphs, f"[not dim][bold]Examples[/bold]\n{shown}[/not dim]" if shown else ""])


def _escape_markup(text: str) -> str:
    # Rich would read text in brackets as a style, and hide it.
    return text.replace("[", r"\[")


def run() -> None:
    for name in ("stdout", "stderr"):
        # A service may start programs without them; the next file that is opened would get what is printed.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        # The terminal may not be able to show every file name.
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        # Typer prints errors in boxes of several lines; ours take one line, which scripts can read.
        code = app(prog_name="colabstage", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - commands turn their own into exit codes; others are raised again
        say_usage_error(error)
        code = WRONG_ARGUMENTS
    if code == INTERRUPTED:  # before a command had begun, as typer returns it
        end(f"Interrupted. {NOTHING_DONE}", INTERRUPTED)
    sys.exit(code or 0)


def _print_version(wanted: bool) -> None:
    if wanted:
        # Read from the installed package, so that the version is defined in one place.
        from importlib.metadata import version

        print(f"colabstage {version('colabstage')}")
        raise typer.Exit


def colabstage(
    _: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stage a dataset from slow storage once, and read it at memory speed in every epoch after.

    Results go to stdout, progress to stderr. Exit codes: 0 success, 1 the work failed, 2 wrong arguments, 130
    interrupted.

    Examples:
      colabstage stage /content/drive/MyDrive/photos.zip --image-size 224x224
      colabstage stage --help
    """


def cache_commands() -> None:
    """List and remove stored datasets, on this machine and in the cache.

    Examples:
      colabstage cache list
      colabstage cache purge --older-than 30 --yes
    """


app.callback(help=help_of(colabstage))(colabstage)
cache.callback(help=help_of(cache_commands))(cache_commands)
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        # Functions that would hide a name of the library or of Python end in an underscore.
        app.command(_command.__name__.rstrip("_"), help=help_of(_command), rich_help_panel=_panel)(_command)
cache.command("list", help=help_of(c.list_))(c.list_)
cache.command(help=help_of(c.purge))(c.purge)
app.add_typer(cache, rich_help_panel="Stage a dataset")

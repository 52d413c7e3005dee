"""`command`: what makes a function that calls the library and returns its result a command of the command line."""

from __future__ import annotations

import inspect
import itertools
from typing import TYPE_CHECKING, Any

from colabstage.cli.options import AsJson, Debug, read_cache_dir
from colabstage.cli.outcome import GOES_ON, exit_codes, print_result
from colabstage.io.arguments import defaults
from colabstage.stage.request import make_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def command(
    *, flags: Mapping[str, Any] | None = None, kept: str = GOES_ON
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Print what a function returns, with `--json` as JSON; an error becomes an exit code and a line on stderr.

    `flags`: options by Python argument, which the function receives in its parameter `flags`. `kept`: the sentence for
    Ctrl-C that says what is kept.
    """

    def decorate(work: Callable[..., Any]) -> Callable[..., None]:
        # Typer reads signatures, so options are defined once and are the same in every command.
        parameters = [one for one in inspect.signature(work, eval_str=True).parameters.values() if one.name != "flags"]
        options = [_option(name, kind) for name, kind in (flags or {}).items()]
        common = [_option("as_json", AsJson, default=False), _option("debug", Debug, default=False)]

        def run(*, as_json: bool, debug: bool, **given: Any) -> None:
            if "only" in given:
                given["only"] = given["only"] or None
            if "cache_dir" in given:
                given["cache_dir"] = read_cache_dir(given["cache_dir"])
            if flags is not None:
                given["flags"] = {name: given.pop(name) for name in flags}
            with exit_codes(debug=debug, kept=kept):
                print_result(work(**given), as_json=as_json)

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


_USUAL = defaults(make_request)


def _option(name: str, kind: Any, *, default: Any = None) -> inspect.Parameter:
    # A list is a repeatable option, which the shell leaves empty and not None.
    usual = [] if name == "only" else _USUAL.get(name, default)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual, annotation=kind)

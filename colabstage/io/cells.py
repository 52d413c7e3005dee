"""How a cell of a notebook shows that a call of ours has failed or was stopped: the caller's own lines, and a sentence.

What is below the call is useful to developers of colabstage: it is shown, like everything else, after `%xmode Verbose`,
and `%debug` always walks through it.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# What Ctrl-C, or a notebook's stop button, leaves behind.
GOES_ON = "What was finished is kept; the same call again continues from there."
NOTHING_DONE = "Nothing was changed."

_PACKAGE = __name__.partition(".")[0]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_BECAUSE = "\nThe above exception was the direct cause of the following exception:\n"


class StoppedCell(KeyboardInterrupt):
    """Somebody stopped the cell while a call of ours worked; says what is left of the work."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def stops_with(
    sentence: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Let a verb that is stopped in a notebook end in one sentence in place of a traceback."""

    def decorate(verb: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(verb)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            try:
                return verb(*args, **kwargs)
            except KeyboardInterrupt as stop:
                # Elsewhere the interpreter ends by it, with the exit code that shells know.
                if _shell() is None or isinstance(stop, StoppedCell):
                    raise
                msg = f"Stopped. {sentence}"
                raise StoppedCell(msg) from stop

        return call

    return decorate


def lines_of(error: BaseException) -> list[str]:
    """Return what IPython prints of an error of ours: without the frames below the call, unless it is verbose."""
    tracebacks = _shell().InteractiveTB
    if tracebacks.mode == "Verbose":
        return _formatted(tracebacks, error, error.__traceback__)
    cause = error.__cause__
    # A cause is shown where the caller's own code raised it: a function that was handed to us.
    seen = None if cause is None else without_ours(cause.__traceback__)
    told = [] if cause is None or seen is None else [*_formatted(tracebacks, cause, seen, tb_offset=0), _BECAUSE]
    return [*told, *_formatted(tracebacks, error, without_ours(error.__traceback__))]


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without frames of colabstage's, and without those of libraries that these have called."""
    kept: list[TracebackType] = []
    inside = False
    while trace is not None:
        ours = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE
        inside = inside or ours
        if not (inside and (ours or trace.tb_frame.f_code.co_filename.startswith(_LIBRARIES))):
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for one in reversed(kept):
        shown = TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shown


def _formatted(
    tracebacks: Any, error: BaseException, trace: TracebackType | None, *, tb_offset: int | None = None
) -> list[str]:
    # IPython follows the chain of causes by itself, so there is none while it looks.
    chain = error.__cause__, error.__context__, error.__suppress_context__
    verbose = tracebacks.mode == "Verbose"
    try:
        if not verbose:
            error.__cause__ = error.__context__ = None
        lines: list[str] = tracebacks.structured_traceback(type(error), error, trace, tb_offset=tb_offset)
        return lines
    finally:
        error.__cause__, error.__context__, error.__suppress_context__ = chain


def _shell() -> Any:
    """Return IPython's shell; `None` where this process has none."""
    # Not imported: who has not loaded it is in none.
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()

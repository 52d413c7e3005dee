"""Tell the caller's own code from colabstage's: to type errors, and to shorten tracebacks.

The caller's transforms, datasets, progress displays and executors run inside public functions, and may fail with the
same kinds of errors as disks do. Their errors are left as they are.
"""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from colabstage.errors import causes
from colabstage.io.environment import current_folder, shell
from colabstage.io.workspace import is_our_name, is_own

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = __name__.partition(".")[0]
_BECAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_THEN = "\nDuring handling of the above exception, another exception occurred:\n"


def is_callers_own(error: OSError, *places: Path) -> bool:
    """Return whether the caller's own code raised an error that reached this frame. One that names any of `places`,
    where the call reads and writes, is the call's, whoever raised it."""
    place = place_of(error)
    if place is not None and any(closeness(place, one) for one in places):
        return False
    return without_ours(error.__traceback__) is not None


def place_of(error: OSError) -> Path | None:
    """Return the path that an error names, absolute; `None` if it names none."""
    named: object = error.filename
    return absolute(named) if isinstance(named, str | bytes | os.PathLike) else None


def absolute(path: str | bytes | os.PathLike[str]) -> Path:
    """Make a path absolute without resolving links; nothing on a disk is accessed."""
    return Path(os.path.normpath(current_folder() / os.path.expanduser(os.fsdecode(path))))  # noqa: PTH111 - of unknown users too


def closeness(place: Path, given: Path) -> int:
    """Return how closely a path belongs to a given one: the length of what they share, or 0 if it is not in it, nor
    what colabstage puts beside it, nor a folder above it, which is created."""
    beside = place.name.startswith(given.stem) or is_own(place) or is_our_name(place.name)
    if place.is_relative_to(given) or given.is_relative_to(place) or (place.is_relative_to(given.parent) and beside):
        return len(os.path.commonpath([place, given]))
    return 0


# Frames below the call only help developers of colabstage. `%xmode Verbose` shows them, and `%debug` always steps
# through them.
def lines_of(error: BaseException) -> list[str]:
    """Return what IPython prints for one of our errors, or for one that `shorten` was called with: no frames below the
    call but those of functions that were passed to us, except in verbose mode."""
    tracebacks = shell().InteractiveTB
    if tracebacks.mode == "Verbose":
        return _formatted(tracebacks, error, error.__traceback__)
    lines = _formatted(tracebacks, error, without_ours(error.__traceback__))
    for later, earlier in itertools.pairwise(causes(error)):
        if later.__suppress_context__ and not later.__cause__:
            break
        # An earlier error is shown only if the caller's own code raised it, in a function that was passed to us.
        if seen := without_ours(earlier.__traceback__):
            between = _BECAUSE if later.__cause__ is earlier else _THEN
            lines = [*_formatted(tracebacks, earlier, seen, tb_offset=0), between, *lines]
    return lines


def shorten(error: Exception) -> None:
    """Have IPython print an error as `lines_of` does, if the caller's own code raised it below this frame."""
    if shell() is not None and not hasattr(error, "_render_traceback_") and without_ours(error.__traceback__):
        vars(error)["_render_traceback_"] = partial(lines_of, error)


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of colabstage and of the libraries that it calls."""
    kept: list[TracebackType] = []
    inside = False
    while trace is not None:
        ours = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE
        inside = inside or ours
        if not (inside and is_of_library(trace.tb_frame)):
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for one in reversed(kept):
        shown = TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shown


def is_of_library(frame: FrameType) -> bool:
    """Return whether a frame runs code of Python, of an installed package, or of colabstage."""
    # Compiled and frozen modules, such as `os`, have invented file names in their code objects.
    file = frame.f_globals.get("__file__") or frame.f_code.co_filename
    return is_installed(str(frame.f_globals.get("__name__", "")), str(file))


def is_installed(module: str, file: str) -> bool:
    """Return whether a module, by its name and file, belongs to Python, to an installed package, or to colabstage. By
    names alone: no disk is asked, which may be a mount."""
    top = module.partition(".")[0]
    installed = file.startswith((*python_folders(), "built in", "<frozen")) or "-packages/" in file
    return top == _PACKAGE or top in sys.stdlib_module_names or (top != "__main__" and installed and top in sys.modules)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


@cache
def python_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _formatted(
    tracebacks: Any, error: BaseException, trace: TracebackType | None, *, tb_offset: int | None = None
) -> list[str]:
    # IPython follows the chain of causes itself, so the chain is cut while it does.
    chain = error.__cause__, error.__context__, error.__suppress_context__
    verbose = tracebacks.mode == "Verbose"
    try:
        if not verbose:
            error.__cause__ = error.__context__ = None
        lines: list[str] = tracebacks.structured_traceback(type(error), error, trace, tb_offset=tb_offset)
        return lines
    finally:
        error.__cause__, error.__context__, error.__suppress_context__ = chain

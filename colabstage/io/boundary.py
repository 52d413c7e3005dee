"""The boundary of the public functions: calls that do not fit are refused, errors of the system leave a call as typed
errors, and a stopped call says what is kept.

A disk or a mount may fail at any of the hundred small calls that a public function makes. Each such error passes
unchanged up to here, where the arguments tell whether the path was to be read or to be written. Errors that the
caller's own code raises, in a transform, a dataset or a progress display, stay as they are.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from colabstage.errors import ColabstageError, SourceReadError, said_by
from colabstage.io.arguments import refused_call, spelt_signature, with_docs
from colabstage.io.callers_code import absolute, closeness, is_callers_own, lines_of, place_of, shorten
from colabstage.io.environment import shell
from colabstage.io.files import speaks_of_a_mount, translate_read_error, translate_write_error
from colabstage.io.units import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from colabstage.io.arguments import Speller

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class", bound="type[Any]")

# Shown after Ctrl-C or a notebook's stop button.
GOES_ON = "What was finished is kept; the same call again continues from there."
NOTHING_DONE = "Nothing was changed."

_WILD = frozenset("*?[")
# If the error names no path, only these errors tell that a disk or mount failed.
_OF_DISKS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EACCES, errno.EPERM})


def public(
    *spellers: Speller,
    arguments: type[Any] | None = None,
    remedies: Mapping[str, str] | None = None,
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    stopped: str = "",
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Make a function public: a call that does not fit is refused with what to write instead, errors of the system
    leave it as those of `typed_error`, and a call that is stopped says what is kept.

    Args:
        spellers: where the arguments of a function that ends in `**arguments` are defined, in the order in which they
            are shown; it takes these by name, and no others.
        arguments: the `TypedDict` that lists those it takes; all defined ones by default.
        remedies: what to write instead of an argument that it lacks, or when a required one is missing.
        reads: names of its arguments that say what is read.
        writes: of those that say where something is written.
        stopped: what is shown after Ctrl-C: in a notebook instead of a traceback, in a script below it.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        # A class is shown by its own name.
        shown = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        spelt = spelt_signature(function, spellers, arguments) if spellers else None

        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            try:
                # `**arguments` would accept any name, so the names are checked here.
                if spelt is not None:
                    spelt.bind(*args, **kwargs)
                return function(*args, **kwargs)
            except KeyboardInterrupt as stop:
                raise_stopped(stop, stopped)
            except Exception as error:
                shorten(error)
                if isinstance(error, TypeError):
                    signature = spelt or inspect.signature(function)
                    try:
                        signature.bind(*args, **kwargs)
                    except TypeError as mismatch:
                        raise refused_call(shown, signature, mismatch, kwargs, remedies or {}) from error
                elif isinstance(error, OSError):
                    given = {**inspect.signature(function).bind_partial(*args, **kwargs).arguments, **kwargs}
                    with typed_errors(reads=map(given.get, reads), writes=map(given.get, writes)):
                        raise
                raise

        if spelt is not None:
            # `inspect.signature` looks here first, and so does a notebook's Tab completion.
            vars(call)["__signature__"] = spelt
            call.__doc__ = with_docs(function.__doc__, *spellers, names=tuple(spelt.parameters))
        return call

    return decorate


def public_class(kind: _Class) -> _Class:
    """Make a class public by wrapping its constructor: a dataclass generates it, so there is nothing to decorate."""
    kind.__init__ = public()(kind.__init__)
    return kind


class StoppedCell(KeyboardInterrupt):
    """The cell was stopped during one of our calls; the message, if there is one, says what is kept."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)] if self.args else lines_of(self)


# The name that IPython shows.
StoppedCell.__name__ = "KeyboardInterrupt"


def raise_stopped(stop: KeyboardInterrupt, sentence: str) -> NoReturn:
    """Raise what a stopped call shows: if public functions call each other, the sentence of the innermost; without one,
    the caller's own lines in a notebook."""
    if isinstance(stop, StoppedCell) and (stop.args or not sentence):
        raise stop
    if shell() is not None:
        if sentence:
            msg = f"Stopped. {sentence}"
            raise StoppedCell(msg) from stop
        raise StoppedCell().with_traceback(stop.__traceback__) from None
    # Python then exits with the code that shells expect, and prints the note last.
    if sentence and sentence not in getattr(stop, "__notes__", ()):
        stop.add_note(sentence)
    raise stop


@contextlib.contextmanager
def typed_errors(*, reads: Iterable[object], writes: Iterable[object]) -> Iterator[None]:
    """Raise the system's errors in the block as those of `typed_error`."""
    try:
        yield
    except OSError as error:
        better = typed_error(error, reads=reads, writes=writes)
        try:
            if better is error:
                raise
            raise better from error
        finally:
            # Its traceback refers to this frame: a name here would keep files open until the next garbage collection.
            del better


def typed_error(error: OSError, *, reads: Iterable[object] = (), writes: Iterable[object] = ()) -> Exception:
    """Return the typed error for an error of the system; errors that are typed, or of the caller's own code, unchanged.
    `reads`, `writes`: the paths, patterns or lists of them that the call reads, and writes to; others are ignored."""
    if isinstance(error, ColabstageError) or error.errno is None:
        return error
    sources, targets = list(_places(reads)), list(_places(writes))
    if is_callers_own(error, *sources, *targets):
        return error
    place = place_of(error)
    if place is None:
        return _unnamed(error, sources, targets)
    read, written = (max((closeness(place, one) for one in ones), default=0) for ones in (sources, targets))
    was_read = read > written or not (read or written or writes)
    return translate_read_error(error, str(place), 1) if was_read else translate_write_error(error, place)


def _unnamed(error: OSError, sources: list[Path], targets: list[Path]) -> Exception:
    """Return the typed error for an error that names no path, as when an open file is read or written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return translate_write_error(error, next(iter(targets), absolute(".") / "file"))
    if not speaks_of_a_mount(error) and error.errno not in _OF_DISKS:
        return error
    names = listed([str(place) for place in (*sources, *targets)], 4)
    where = f"at one of {names}" if names else "at a file"
    msg = (
        f"Reading or writing failed {where}: {said_by(error)}. Try again; if it is on a mount, mount that again first."
    )
    return SourceReadError(msg)


def _places(given: Iterable[object]) -> Iterator[Path]:
    for one in given:
        if isinstance(one, str | os.PathLike) and "://" not in os.fspath(one):
            path = absolute(one)
            # Whatever a pattern matches is below the part before its first wildcard.
            wild = next((number for number, part in enumerate(path.parts) if _WILD & {*part}), len(path.parts))
            yield Path(*path.parts[:wild])
        elif isinstance(one, list | tuple | set | frozenset):
            yield from _places(one)

"""The boundary of the public functions: what the system answers inside a call leaves it as a typed error.

A disk may be full, and a mount may fail, at any of the hundred small calls that a public function makes: to list a
folder, to write a record, to rename. Each such error is raised as it is, up to here, where the arguments tell whether
the path is one that was to be read or one that was to be written.

What the caller's own code raises, in a transform, a dataset or a progress display, is the caller's and stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from colabstage.errors import ColabstageError, OptionError, SourceReadError, said_by
from colabstage.io.arguments import refused_call
from colabstage.io.callers_code import absolute, closeness, is_callers_own, place_of
from colabstage.io.files import speaks_of_a_mount, translate_read_error, translate_write_error
from colabstage.io.units import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_WILD = frozenset("*?[")
# A call that names no path says nothing else about disks and mounts.
_OF_DISKS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EACCES, errno.EPERM})


def typed(
    *reads: str, writes: tuple[str, ...] = ()
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Let errors of the system leave a public function as those of `typed_error`.

    Args:
        reads: names of its arguments that say what is read.
        writes: of those that say where something is written.
    """

    def decorate(verb: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(verb)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            try:
                return verb(*args, **kwargs)
            except TypeError as error:
                signature = inspect.signature(verb)
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as mismatch:
                    if not isinstance(error, ColabstageError):
                        raise refused_call(verb.__name__, signature, mismatch, kwargs) from error
                raise
            except OSError as error:
                given = {**inspect.signature(verb).bind_partial(*args, **kwargs).arguments, **kwargs}
                better = typed_error(
                    error, reads=[given.get(name) for name in reads], writes=[given.get(name) for name in writes]
                )
                if better is error:
                    raise
                raise better from error

        return call

    return decorate


@contextlib.contextmanager
def typed_errors(*, reads: Iterable[object], writes: Iterable[object]) -> Iterator[None]:
    """Let errors of the system leave the block as those of `typed_error`: for work that goes on in another thread."""
    try:
        yield
    except OSError as error:
        better = typed_error(error, reads=reads, writes=writes)
        if better is error:
            raise
        raise better from error


def typed_error(error: OSError, *, reads: Iterable[object] = (), writes: Iterable[object] = ()) -> Exception:
    """Return the typed error for an error of the system; what is typed, or the caller's own, as it is.

    Args:
        error: what was raised.
        reads: the paths, patterns or lists of them that the call reads; anything else is ignored.
        writes: those that it writes to.
    """
    if isinstance(error, ColabstageError) or error.errno is None:
        return error
    sources, targets = list(_places(reads)), list(_places(writes))
    if is_callers_own(error, *sources, *targets):
        return error
    place = place_of(error)
    if place is None:
        return _unnamed(error, sources, targets)
    if error.errno == errno.ENAMETOOLONG:
        msg = (
            f"The name '{place.name[-40:]}' is too long for the file system: records and unfinished work are kept "
            "beside a target under names somewhat longer than its own. Choose a shorter name."
        )
        return OptionError(msg)
    read, written = (max((closeness(place, one) for one in ones), default=0) for ones in (sources, targets))
    was_read = read > written or not (read or written or writes)
    return translate_read_error(error, str(place), 1) if was_read else translate_write_error(error, place)


def _unnamed(error: OSError, sources: list[Path], targets: list[Path]) -> Exception:
    """Return the typed error for one that names no path, as those of reading and writing an open file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return translate_write_error(error, next(iter(targets), absolute(".") / "file"))
    if not speaks_of_a_mount(error) and error.errno not in _OF_DISKS:
        return error
    if len(sources) == 1 and not targets:
        return translate_read_error(error, str(sources[0]), 1)
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
            # What a pattern matches is below what comes before its first wildcard.
            wild = next((number for number, part in enumerate(path.parts) if _WILD & {*part}), len(path.parts))
            yield Path(*path.parts[:wild])
        elif isinstance(one, list | tuple | set | frozenset):
            yield from _places(one)

"""Imports that run to their end: Ctrl-C and a notebook's stop button take effect after them.

If the first import of torch, TensorFlow or another library that contains numpy is cut short, importing it again in the
same process raises strange errors, or crashes the process. The first call of a session imports them, for seconds, while
it seems to do work that may be stopped.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from colabstage.errors import MissingDependencyError, said_by

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def whole_imports() -> Iterator[None]:
    """Deliver an interrupt that comes during the block, which only imports, at the block's end.

    Interrupts reach only the main thread, and only where Python handles them; elsewhere this does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    interrupts: list[Any] = []
    try:
        signal.signal(signal.SIGINT, lambda *details: interrupts.append(details))
    except ValueError:  # in a subinterpreter
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            handler(*interrupts[-1])


def refuse_import(package: str, user: str, error: ImportError) -> NoReturn:
    """Say what to do about a package that cannot be imported; `user` is who needs it, as in "make_loader needs"."""
    msg = f"{user} {package}. Install it with: pip install {package}"
    # An installed package would not be installed again.
    if _is_installed(package):
        msg = (
            f"{user} {package}, which is installed and cannot be imported: {said_by(error)}. If its import was stopped "
            "before, in this session, restart the runtime (the process), and run this again."
        )
    raise MissingDependencyError(msg) from error


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # `sys.modules` holds something that is not a module
        return False

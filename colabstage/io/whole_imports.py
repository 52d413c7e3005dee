"""Imports that run to their end: Ctrl-C and a notebook's stop button are delivered after them.

Torch, TensorFlow, and libraries that numpy is part of cannot be imported a second time in a process where their first
import was cut short: that raises strange errors, or crashes the process. A first call imports them, for seconds, inside
what looks like work that may be stopped.
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
    """Deliver an interrupt that comes during the block, which only imports, at its end.

    Interrupts reach the main thread alone, and only where Python handles them; elsewhere this does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[Any] = []
    try:
        signal.signal(signal.SIGINT, lambda *details: came.append(details))
    except ValueError:  # in an interpreter within an interpreter
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])


def refuse_import(package: str, user: str, error: Exception) -> NoReturn:
    """Say what to do about a package that cannot be imported, and that something needs, as "make_loader needs"."""
    msg = f"{user} {package}. Install it with: pip install {package}"
    # What is installed is not installed again by that.
    if _is_installed(package):
        msg = (
            f"{user} {package}, which is installed and cannot be imported: {said_by(error)}. If its import was stopped "
            "before, in this session, restart the runtime (the process), and run this again."
        )
    raise MissingDependencyError(msg) from error


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # what stands in its place is no module that can be loaded
        return False

"""Progress and cancellation, passed down as arguments.

A `Progress` opens one `ProgressStep` per step of the work; a step is a context manager that is told of every unit
done, from any thread. Nothing in colabstage prints progress by itself.

All of it is on the lowest floor, the panel of notebooks too: `progress=True` has to find it from any verb, and what is
below the faces does not import them.
"""

from __future__ import annotations

from colabstage.progress.cancellation import Cancellation, cancellation_of
from colabstage.progress.choose import resolve_progress
from colabstage.progress.protocol import NullProgress, Progress, ProgressStep
from colabstage.progress.text import TqdmProgress

__all__ = [
    "Cancellation",
    "NullProgress",
    "Progress",
    "ProgressStep",
    "TqdmProgress",
    "cancellation_of",
    "resolve_progress",
]

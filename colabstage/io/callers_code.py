"""Tell an error of the caller's own code from one that the system gave to colabstage's.

Transforms, datasets, progress displays and executors of the caller's run inside public functions, and may fail with the
same kinds of errors as disks do. Theirs are left as they are.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from colabstage.io.arguments import without_ours
from colabstage.io.workspace import is_our_name, is_own


def is_callers_own(error: OSError, *places: Path) -> bool:
    """Return whether code of the caller's raised an error that reached this frame.

    places: where the call reads and writes; what names one of these is the call's, whoever noticed it.
    """
    place = place_of(error)
    if place is not None and any(closeness(place, one) for one in places):
        return False
    return without_ours(error.__traceback__) is not None


def place_of(error: OSError) -> Path | None:
    """Return the path that an error names, absolute; `None` if it names none."""
    named: object = error.filename
    return absolute(named) if isinstance(named, str | bytes | os.PathLike) else None


def absolute(path: str | bytes | os.PathLike[str]) -> Path:
    """Make a path absolute as far as the current folder has a path; links stay as they are."""
    text = os.fsdecode(path)
    # It may be gone, or on a mount that is.
    with contextlib.suppress(OSError):
        text = os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 - `resolve` would follow links
    return Path(text)


def closeness(place: Path, given: Path) -> int:
    """Return how closely a path belongs to one that was given, by how many names they share; 0 if it does not.

    What belongs to it: what is in it, what colabstage puts beside it, and the folders above it, which are created.
    """
    beside = place.name.startswith(given.stem) or is_own(place) or is_our_name(place.name)
    if place.is_relative_to(given) or given.is_relative_to(place) or (place.is_relative_to(given.parent) and beside):
        return len(os.path.commonpath([place, given]))
    return 0

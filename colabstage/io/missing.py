"""Say what may have been meant by a path that does not exist: where it goes wrong, and the names there."""

from __future__ import annotations

import contextlib
import difflib
import os
from itertools import islice
from pathlib import Path

from colabstage.io.units import listed
from colabstage.io.workspace import is_our_name

_DRIVE_FOLDERS = frozenset({"MyDrive", "My Drive", "Shareddrives", "Shared drives"})
_NAMES_SHOWN = 6
# A folder of a Drive may hold a hundred thousand names.
_MOST_NAMES = 2000


def whereabouts(path: Path) -> str:
    """Say which folder of a missing path exists, and which names in it are most like the missing one."""
    # The nearest existing folder shows where the path goes wrong: a missing mount, a typing error, a moved folder.
    there = next((parent for parent in path.parents if parent.exists()), Path("/"))
    if there.is_file():
        below = path.relative_to(there).as_posix()
        return f"'{there}' is a file, not a folder; a part of an archive is named by only={below!r}."
    found = _names_in(there, path.relative_to(there).parts[0] if path.is_relative_to(there) else path.name)
    if _DRIVE_FOLDERS.isdisjoint(path.parts) and not path.is_relative_to("/content/drive"):
        return found
    if _DRIVE_FOLDERS.isdisjoint(there.parts):
        return f"{found} Is Google Drive mounted?"
    return (
        f"{found} Items in 'Shared with me' are not part of a mounted Drive until you choose 'Add shortcut to Drive'; "
        "what was just uploaded may take minutes to appear, or a refresh_drive()."
    )


def _names_in(folder: Path, wanted: str) -> str:
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as scan:
        names = sorted(entry.name for entry in islice(scan, _MOST_NAMES) if not is_our_name(entry.name))
    if not names:
        return f"The folder '{folder}' is empty."
    close = difflib.get_close_matches(wanted, names, n=_NAMES_SHOWN)
    shown = [*close, *(name for name in names if name not in close)]
    return f"The folder '{folder}' holds {listed(shown, len(close) or _NAMES_SHOWN)}; no '{wanted}'."

"""Say what may have been meant by a path that does not exist: where it goes wrong, and the names there."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from pathlib import Path

from colabstage.io.workspace import is_our_name

_DRIVE_FOLDERS = frozenset({"MyDrive", "My Drive", "Shareddrives", "Shared drives"})
_NAMES_SHOWN = 6
# A folder of a Drive may hold a hundred thousand names.
_MOST_NAMES = 2000

# Ids of Drive look like no name that a person would give.
_DRIVE_ID = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[-\w]{19,64}")


def whereabouts(path: Path) -> str:
    """Say which folder of a missing path exists, and which names in it are most like the missing one.

    Reads no more than that folder. `path` may be relative.
    """
    # The nearest existing folder shows where the path goes wrong: a missing mount, a typing error, a moved folder.
    there = next((parent for parent in path.parents if parent.exists()), Path("/"))
    if there.is_file():
        return f"'{there}' is a file. A part of an archive is an argument: only={path.relative_to(there).as_posix()!r}."
    found = _names_in(there, path.relative_to(there).parts[0] if path.is_relative_to(there) else path.name)
    if _DRIVE_ID.fullmatch(path.name):
        found += f" If that is the id of something shared on Google Drive, write 'gdrive://{path.name}'."
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
        names = [entry.name for _, entry in zip(range(_MOST_NAMES), scan, strict=False) if not is_our_name(entry.name)]
    if not names:
        return f"The folder '{folder}' is empty."
    # Similar names are usually what was meant; otherwise a few names show which folder this is.
    close = difflib.get_close_matches(wanted, names, n=_NAMES_SHOWN)
    shown = close or sorted(names, key=lambda name: (name.startswith("."), name))[:_NAMES_SHOWN]
    more = len(names) - len(shown)
    listed = ", ".join(f"'{name}'" for name in shown)
    return f"The folder '{folder}' holds {listed}{f' and {more:,} more' if more else ''}; no '{wanted}'."

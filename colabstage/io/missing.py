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
# www.example.org, or example.org followed by a path, without the scheme of an address.
_HOST = re.compile(r"www\..+|[a-z0-9-]+(\.[a-z0-9-]+)*\.(ac|ai|app|ch|co|com|de|dev|edu|gov|io|jp|net|org|uk)")

# Ids of Drive look like no name that a person would give.
_DRIVE_ID = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[-\w]{19,64}")


def whereabouts(path: Path) -> str:
    """Say which folder of a missing path exists, which names in it are most like the missing one, and what else may be
    wrong.

    Reads no more than that folder. `path` may be relative.
    """
    # The nearest existing folder shows where the path goes wrong: a missing mount, a typing error, a moved folder.
    there = next((parent for parent in path.parents if parent.exists()), Path("/"))
    if there.is_file():
        return f"'{there}' is a file. A part of an archive is an argument: only={path.relative_to(there).as_posix()!r}."
    wanted = path.relative_to(there).parts if path.is_relative_to(there) else path.parts
    sentences = [_what_is_in(there, wanted[0] if wanted else path.name)]
    if not _DRIVE_FOLDERS.isdisjoint(path.parts) or path.is_relative_to("/content/drive"):
        if _DRIVE_FOLDERS.isdisjoint(there.parts):
            sentences.append("Is Google Drive mounted?")
        else:
            sentences.append(
                "Items in 'Shared with me' are not part of a mounted Drive until you choose 'Add shortcut to Drive'; "
                "what was just uploaded may take minutes to appear, or a refresh_drive()."
            )
    sentences += _other_meanings(wanted, there if path.is_absolute() and there != Path.cwd() else None)
    return " ".join(sentences)


def _other_meanings(wanted: tuple[str, ...], there: Path | None) -> list[str]:
    """Return a sentence for a path that may be written for another system, or not be a path. Pure.

    `there`: the folder that `wanted` is in; `None` if it need not be named.
    """
    first = wanted[0] if wanted else ""
    if re.match(r"[A-Za-z]:(\\|$)", first):
        return [
            "That is a path of Windows, whose disks are not on this machine: upload the files, or put them on Drive."
        ]
    if "\\" in "".join(wanted):
        # Shells need a backslash before a space; Python does not.
        meant = re.sub(r"\\(?! )", "/", "/".join(wanted)).replace("\\ ", " ")
        meant = meant if there is None else str(there / meant)
        if "\\ " in "/".join(wanted):
            return [f"Blanks take no backslash in Python: '{meant}'."]
        return [f"Names are kept apart by slashes here: '{meant}'."]
    if len(wanted) > 1 and _HOST.fullmatch(first.lower()):
        return [f"An address begins with its kind: 'https://{'/'.join(wanted)}'."]
    if len(wanted) == 1 and _DRIVE_ID.fullmatch(first):
        return [f"If that is the id of something shared on Google Drive, write 'gdrive://{first}'."]
    return []


def _what_is_in(folder: Path, wanted: str) -> str:
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

"""Files that are parts of one archive or download, by their names: which belong together, and what is missing. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from colabstage.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# How Google Drive names the zips of a folder that it downloads as several.
DRIVE_ZIP = re.compile(r"(?P<stem>.+-\d{8}T\d{6}Z)(?:-\d+)?-(?P<number>\d{3})\.zip")
# Pieces of one archive, numbered by `split`, 7-Zip and other archivers: concatenated, they are the archive.
_PIECE = re.compile(
    r"(?P<stem>.+\.(?:zip|7z|tar|tgz|tbz2?|txz|gz|bz2|xz|zst|zstd|tzst))\."
    r"(?P<number>\d{3}|part-?(?:\d+|[a-z]{2})|(?!bz$)[a-f][a-z])",
    re.IGNORECASE,
)
# Volumes of a rar or zip have headers of their own, so only their own tools join them.
_VOLUME = re.compile(r"(?:(?P<rar>.+)\.part(?P<number>\d+)\.rar|(?P<zip>.+)\.z\d\d)", re.IGNORECASE)


def parts_of(name: str, siblings: Collection[str]) -> tuple[str, ...]:
    """Return the files that form one archive, or one download, with the file `name`, in order; just itself if it is
    complete. `siblings`: the names in its folder."""
    volume = _VOLUME.fullmatch(name)
    if volume is not None:
        first = name if volume["zip"] else f"{volume['rar']}.part{'1'.zfill(len(volume['number']))}.rar"
        line = f'unrar x "{first}" folder/' if volume["rar"] else f'zip -s 0 "{volume["zip"]}.zip" --out whole.zip'
        then = "stage that folder" if volume["rar"] else "stage whole.zip"
        msg = f"'{name}' is one volume of an archive in several files. Join them, and {then}: {line}"
        raise ArchiveError(msg)
    for pattern in (_PIECE, DRIVE_ZIP):
        own = pattern.fullmatch(name)
        if own is None:
            continue
        matches = (pattern.fullmatch(other) for other in {name, *siblings})
        parts = {match["number"]: match[0] for match in matches if match is not None and match["stem"] == own["stem"]}
        _check_numbers(name, parts)
        return tuple(parts[number] for number in sorted(parts, key=_number))
    return (name,)


def may_be_part(name: str) -> bool:
    """Return whether a file's name may be one of several, so that its folder is worth listing."""
    return any(pattern.fullmatch(name) for pattern in (_PIECE, DRIVE_ZIP, _VOLUME))


def is_piece(name: str) -> bool:
    """Return whether a file's name is that of a piece of an archive, to be concatenated."""
    return _PIECE.fullmatch(name) is not None


def _number(text: str) -> int:
    """Return the number of a part, from digits, or from letters as `split` counts: aa, ab, … az, ba."""
    text = text.lower().removeprefix("part").lstrip("-")
    return int(text) if text.isdigit() else (ord(text[0]) - ord("a")) * 26 + ord(text[1]) - ord("a")


def _check_numbers(name: str, parts: Mapping[str, str]) -> None:
    present = sorted(map(_number, parts))
    # Letters begin with aa, numbers with 0 or 1.
    begin = 1 if any(map(str.isdigit, next(iter(parts)))) else 0
    missing = sorted(set(range(begin, present[-1])) - set(present))
    if not missing:
        return
    sample = next(iter(parts))
    digits = re.sub(r"\D", "", sample)
    written = str(missing[0]).zfill(len(digits)) if digits else chr(97 + missing[0] // 26) + chr(97 + missing[0] % 26)
    at = parts[sample].rfind(digits or sample)
    lost = parts[sample][:at] + written + parts[sample][at + len(digits or sample) :]
    msg = f"'{name}' is one of several parts, and '{lost}' is not beside it. Download or copy that part too."
    raise ArchiveError(msg)

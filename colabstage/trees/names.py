"""Names of files in a tree: what an archive may call its members, what is junk, and which names cannot coexist.

A name is read as unzip and tar read it: without `./`, doubled slashes and the root of an absolute one. A name that
would leave the archive's own folder refuses the whole archive, before a member is read or written.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from typing import TYPE_CHECKING

from colabstage.errors import ArchiveError, UnsafeArchiveError
from colabstage.io.arguments import show_content
from colabstage.io.workspace import is_our_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

JUNK_FOLDERS = frozenset({"__MACOSX", ".ipynb_checkpoints", ".git"})
# In lower case. All other junk names begin with a dot.
JUNK_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini"})
# With its dot. Longer endings are not extensions (".tfrecord-00000-of-00008").
_LONGEST_EXTENSION = 10
# A longer chain of links is a loop for every practical purpose; Linux gives up at 40 as well.
_MAX_LINK_STEPS = 40


def with_wildcards(pattern: str) -> str:
    """Return a regular expression for the names that fit a pattern: `*`, `?` and `[…]` within a folder's name, `**` for
    any folders."""
    marks = {"**/": "(?:.+/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    found = re.split(r"(\*\*/|\*\*|\*|\?|\[[^/\]]+\])", pattern)
    written = "".join(
        marks.get(part) or (part.replace("[!", "[^") if part.startswith("[") else re.escape(part)) for part in found
    )
    try:
        re.compile(written)
    except re.error:  # a range that runs backwards
        return re.escape(pattern)
    return written


def extension_of(name: str) -> str:
    """Return a name's extension in lower case, with its dot; "" if there is none, or it is a number."""
    end = name[name.rfind(".") + 1 :]
    if len(end) >= min(_LONGEST_EXTENSION, len(name)) or not end.isalnum() or end.isdecimal():
        return ""
    return f".{end.lower()}"


def refuse_member(archive: str, name: str, reason: str) -> UnsafeArchiveError:
    return UnsafeArchiveError(
        f"'{archive}' is refused because of its member {show_content(name, 300)}: {reason}. Nothing was read or "
        "written. Make the archive again from a folder that holds the dataset's files only."
    )


# What programs add to the name of a file that is still being downloaded or copied. aria2's is a list of the parts that
# the file beside it lacks; all others hold what has arrived.
UNFINISHED = (".aria2", ".crdownload", ".opdownload", ".part", ".partial", ".filepart", ".incomplete")
# Each parent folder of a name is stored by its whole name, so a deep name is much larger in memory than in the archive.
MOST_FOLDERS = 200


# Nearly all names need no cleaning, and are nobody's junk.
is_plain = re.compile(r"(?:[^/._\0\\][^/\0\\]*/){0,9}[^/._\0\\][^/\0\\]*(?<!(?i:\.db))(?<!(?i:\.ini))").fullmatch


def clean_member_name(archive: str, raw: str, *, folder: bool = False) -> str:
    """Return the name of a file inside a tree, from its name in an archive: without a root, `./` and doubled slashes.
    `folder`: whether it is a folder's, which may end in a slash; "." is the tree itself."""
    if not folder and is_plain(raw):
        return raw
    name = posixpath.normpath(raw.lstrip("/"))
    is_odd = "\0" in raw or ".." in raw.split("/") or raw.count("/") > MOST_FOLDERS
    if is_odd or (not folder and (name == "." or raw.endswith("/"))):
        reason = f"its name has '..' or a NUL, names no file, or is in more than {MOST_FOLDERS} folders"
        raise refuse_member(archive, raw, reason)
    return name


def resolve_link(archive: str, name: str, target: str) -> str:
    """Return the name inside the archive that the symbolic link `name` points to."""
    # Decided by the text alone, because nothing has been unpacked yet.
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    if not target or "\0" in target or target.startswith("/") or resolved == ".." or resolved.startswith("../"):
        raise refuse_member(archive, name, f"it is a link to {target!r}, outside the archive")
    return resolved


def resolve_links(links: Mapping[str, str], files: Collection[str]) -> dict[str, str]:
    """Return for each link the regular file that it finally leads to; links to folders, nothing or loops are left
    out."""
    found: dict[str, str] = {}
    for name in links:
        target = name
        # Links may lead to links, and form loops.
        for _ in range(_MAX_LINK_STEPS):
            if target not in links:
                break
            target = links[target]
        if target in files:
            found[name] = target
    return found


def check_collisions(archive: str, files: Collection[str], folders: Iterable[str] = ()) -> None:
    """Refuse a name that is both a file and a folder of others."""
    above = parent_folders(files) | parent_folders(f"{folder}/" for folder in folders)
    if both := above.intersection(files):
        raise refuse_member(archive, min(both), "it is a file and also a folder of other members")


def first_repeated(strings: Collection[str]) -> str | None:
    """Return the first string that occurs again; `None` if all differ."""
    counts = Counter(strings)
    return next((text for text, count in counts.items() if count > 1), None)


def parent_folders(names: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for direct in {name.rpartition("/")[0] for name in names}:
        folder = direct
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def without_files(folders: Iterable[str], files: Iterable[str]) -> tuple[str, ...]:
    """Return those of some folders, by cleaned name, that hold no file at any depth; without those that hold only
    junk."""
    # Some archives list folders separately, others only by their files.
    taken = parent_folders(files)
    empty = {name for name in folders if name not in ("", ".") and name not in taken}
    return tuple(sorted(name for name in empty if not is_junk(f"{name}/_")))


def is_junk(name: str) -> bool:
    """Return whether an operating system, a notebook or colabstage left this file, so that it is not a sample."""
    folder, _, base = name.rpartition("/")
    is_odd = base.startswith("._") or base.lower() in JUNK_FILES or is_our_name(base)
    return is_odd or any(map(is_junk_folder, folder.split("/")))


def is_junk_folder(base: str) -> bool:
    """Return whether a folder of this name (its last component) holds only junk."""
    return base in JUNK_FOLDERS or is_our_name(base)


def distinct_names(names: Iterable[str], *, of_files: bool = False) -> tuple[str, ...]:
    """Return the names, those that were there before with a number behind them, or `of_files` before their extension;
    two that differ in case are the same.

    >>> distinct_names(["a", "b", "A"])
    ('a', 'b', 'A-2')
    >>> distinct_names(["x/a.jpg", "x/a.jpg"], of_files=True)
    ('x/a.jpg', 'x/a-2.jpg')
    """
    taken: set[str] = set()
    found = []
    for name in names:
        suffix = posixpath.splitext(name)[1] if of_files else ""
        free, number = name, 1
        # A disk that ignores case would overwrite one with the other.
        while free.lower() in taken:
            number += 1
            free = f"{name.removesuffix(suffix)}-{number}{suffix}"
        taken.add(free.lower())
        found.append(free)
    return tuple(found)


# How Google Drive names the zips of a folder that it downloads in several.
DRIVE_ZIP = re.compile(r"(?P<stem>.+-\d{8}T\d{6}Z)(?:-\d+)?-(?P<number>\d{3})\.zip")
# Pieces of one archive, as `split`, 7-Zip and other archivers number them: joined as they are, they are the archive.
_PIECE = re.compile(
    r"(?P<stem>.+\.(?:zip|7z|tar|tgz|tbz2?|txz|gz|bz2|xz|zst|zstd|tzst))\."
    r"(?P<number>\d{3}|part-?(?:\d+|[a-z]{2})|(?!bz$)[a-f][a-z])",
    re.IGNORECASE,
)
# Volumes of a rar or zip have headers of their own, so only their own tools join them.
_VOLUME = re.compile(r"(?:(?P<rar>.+)\.part(?P<number>\d+)\.rar|(?P<zip>.+)\.z\d\d)", re.IGNORECASE)


def parts_of(name: str, siblings: Collection[str]) -> tuple[str, ...]:
    """Return the files that are one archive, or one download, with the file `name`, in order; itself where it is whole.
    `siblings`: what else is in its folder."""
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
        own_stem, has_digits = own["stem"], own["number"][-1].isdigit()
        parts = {_number(match["number"]): match[0] for match in matches if match and match["stem"] == own_stem}
        # Letters begin with aa, numbers with 0 or 1.
        if missing := set(range(int(has_digits), max(parts))) - parts.keys():
            after = parts[min(number for number in parts if number > min(missing))]
            msg = f"'{name}' is one of several parts, and the one before '{after}' is not beside it. Get that part too."
            raise ArchiveError(msg)
        return tuple(parts[number] for number in sorted(parts))
    return (name,)


def may_be_part(name: str) -> bool:
    """Return whether a file is by its name one of several, so that its folder is worth a look."""
    return any(pattern.fullmatch(name) for pattern in (_PIECE, DRIVE_ZIP, _VOLUME))


def is_piece(name: str) -> bool:
    """Return whether a file is by its name a piece of an archive that was cut, to be joined as `cat` does it."""
    return _PIECE.fullmatch(name) is not None


def _number(text: str) -> int:
    """Return which part one is by its number, or its letters as `split` counts: aa, ab, … az, ba."""
    text = text.lower().removeprefix("part").lstrip("-")
    return int(text) if text.isdigit() else (ord(text[0]) - ord("a")) * 26 + ord(text[1]) - ord("a")

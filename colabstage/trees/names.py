"""The safety rules for what an archive may contain: names, links and amounts, checked by the headers alone.

Everything here is pure and runs before a single member is read or written. A name that breaks a rule refuses the whole
archive: skipping the one member would hand over a dataset that is not the one its author packed.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import UnsafeArchiveError
from colabstage.io.units import format_bytes
from colabstage.io.workspace import is_our_name
from colabstage.trees.strings import StringArray, first_repeated, folders_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_DRIVE_LETTER = re.compile(r"\A[A-Za-z]:")

_MAX_PART_BYTES = 255
JUNK_FOLDERS = frozenset({"__MACOSX", ".ipynb_checkpoints", ".git"})
# In lower case. Whatever else is junk by its own name begins with a dot.
JUNK_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini"})
# A chain of links longer than this is a loop for every practical purpose; Linux gives up at 40 as well.
_MAX_LINK_STEPS = 40


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What an honest dataset's archive stays under; a bomb does not."""

    max_members: int = 10_000_000
    """Ten million files are seven times ImageNet-21k's training set in number of bytes of directory alone."""
    max_total_bytes: int = 16 * 1024**4
    """Content of all members together; no notebook's disk holds 16 TiB."""
    max_ratio: float = 500.0
    """Content over archive size. Deflate can reach 1,032, masks and zero-filled arrays a few hundred, photographs about
    1."""
    ratio_from_bytes: int = 1024**3
    """Below this much content the ratio is not looked at, since it cannot do any harm."""


DEFAULT_LIMITS = ArchiveLimits()


def check_limits(archive: str, members: int, total_bytes: int, archive_bytes: int, limits: ArchiveLimits) -> None:
    """Refuse an archive whose headers promise more than `limits` allow.

    Raises:
        UnsafeArchiveError: too many members, too much content, or too much content for the archive's own size.
    """
    if members > limits.max_members:
        problem = f"holds {members:,} members, more than the limit of {limits.max_members:,} (max_members)"
    elif total_bytes > limits.max_total_bytes:
        size, limit = format_bytes(total_bytes), format_bytes(limits.max_total_bytes)
        problem = f"would unpack to {size}, more than the limit of {limit} (max_total_bytes)"
    elif total_bytes >= limits.ratio_from_bytes and total_bytes > limits.max_ratio * archive_bytes:
        ratio = total_bytes / max(archive_bytes, 1)
        problem = (
            f"would unpack {format_bytes(archive_bytes)} to {format_bytes(total_bytes)}, {ratio:,.0f} times as much; "
            f"the limit is {limits.max_ratio:g} times (max_ratio)"
        )
    else:
        return
    msg = f"'{archive}' {problem}. That is how a decompression bomb looks; raise the limit only if you trust it."
    raise UnsafeArchiveError(msg)


def refuse_member(archive: str, name: str, reason: str) -> UnsafeArchiveError:
    """Return the error for one member that no archive should have."""
    return UnsafeArchiveError(
        f"'{archive}' is refused because of its member {name!r}: {reason}. Nothing was read or written. "
        "Make the archive again from a folder that holds the dataset's files only."
    )


def clean_member_name(archive: str, raw: str) -> str:
    """Return the name of a file inside a tree, from the name that an archive gives it: no `./`, no doubled slashes.

    Raises:
        UnsafeArchiveError: the name is empty, absolute, climbs out with `..`, ends in a slash though it is a file's,
            or carries a NUL, a backslash or a drive letter.
    """
    # Nearly every name passes here, and there may be ten million of them.
    if not _needs_a_closer_look(raw):
        return raw
    reason = _name_fault(raw)
    if reason is not None:
        raise refuse_member(archive, raw, reason)
    return posixpath.normpath(raw)


def _needs_a_closer_look(raw: str) -> bool:
    """Tell whether a name may break a rule or have parts to drop. Ten times as fast as a regular expression of the
    rules."""
    return (
        raw[:1] in ("", "/", ".")
        or raw[1:2] == ":"
        or raw[-1] == "/"
        or "/." in raw
        or "//" in raw
        or "\\" in raw
        or "\0" in raw
    )


def clean_folder_name(archive: str, raw: str) -> str:
    """Return the name of a folder inside a tree, `.` for the root; the same rules, but a final slash is fine.

    Raises:
        UnsafeArchiveError: as for `clean_member_name`.
    """
    reason = _name_fault(raw, folder=True)
    if reason is not None:
        raise refuse_member(archive, raw, reason)
    return posixpath.normpath(raw)


def _name_fault(raw: str, *, folder: bool = False) -> str | None:
    # In the order in which they are to be named: a NUL or a backslash makes what follows unclear.
    faults = (
        ("\0" in raw, "its name contains a NUL character"),
        ("\\" in raw, "its name contains a backslash, which some systems take for a folder separator"),
        (_DRIVE_LETTER.match(raw), "its name begins with a drive letter"),
        (raw.startswith("/"), "its name is absolute"),
        (".." in raw.split("/"), "its name climbs out of the archive's folder with '..'"),
        (not folder and posixpath.normpath(raw) == ".", "it is a file without a name"),
        (not folder and raw.endswith("/"), "it is a file, but its name ends in a slash like a folder's"),
    )
    return next((reason for broken, reason in faults if broken), None)


def resolve_link(archive: str, name: str, target: str) -> str:
    """Return the name inside the archive that the symbolic link `name` points to.

    Raises:
        UnsafeArchiveError: the link points outside the archive.
    """
    if not target or target.startswith("/") or "\\" in target or "\0" in target or _DRIVE_LETTER.match(target):
        raise refuse_member(archive, name, f"it is a link to {target!r}, outside the archive")
    # Decided by words, not by a disk: nothing has been unpacked yet.
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    if resolved == ".." or resolved.startswith("../"):
        raise refuse_member(archive, name, f"it is a link to {target!r}, outside the archive")
    return resolved


def resolve_links(links: Mapping[str, str], files: Collection[str]) -> dict[str, str]:
    """Find for each link the regular file it finally leads to; links to folders, to nothing or to themselves are
    absent."""
    found: dict[str, str] = {}
    for name in links:
        target = name
        # Links may lead to links, also in a circle.
        for _ in range(_MAX_LINK_STEPS):
            if target not in links:
                break
            target = links[target]
        if target in files:
            found[name] = target
    return found


def check_collisions(archive: str, files: Sequence[str], folders: Iterable[str]) -> None:
    """Refuse names that cannot stand beside each other in one folder.

    Args:
        archive: its address, for messages.
        files: cleaned names of all members that are not folders.
        folders: cleaned names of the folders that the archive lists.

    Raises:
        UnsafeArchiveError: a name occurs twice, or a file is also the folder of another member.
    """
    twice = first_repeated(files)
    if twice is not None:
        raise refuse_member(archive, twice, "its name occurs twice, so which of the two is meant is unclear")
    names = StringArray.of(files)
    both = names.among(parent_folders(names) | parent_folders([f"{folder}/" for folder in folders]))
    if len(both):
        raise refuse_member(archive, names[int(both[0])], "it is a file and also a folder of other members")


def parent_folders(names: Iterable[str]) -> set[str]:
    """Return every folder that `names` are in, at any depth."""
    folders: set[str] = set()
    for direct in folders_of(StringArray.of(names))[0]:
        folder = direct
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def without_files(folders: Iterable[str], files: Iterable[str]) -> tuple[str, ...]:
    """Return those of some folders, by cleaned name, that no file is in at any depth; without what holds only
    junk."""
    # Folders are listed by themselves in some archives, and only by their files in others.
    taken = parent_folders(files)
    empty = {name for name in folders if name not in ("", ".") and name not in taken}
    return tuple(sorted(name for name in empty if not is_junk(f"{name}/_")))


def check_case_collisions(archive: str, names: Iterable[str]) -> None:
    """Refuse names that one folder cannot hold on a disk that ignores case or the way accents are encoded.

    Only extraction onto a disk needs this.

    Raises:
        UnsafeArchiveError: two names differ in upper and lower case only, or in the encoding of accents only.
    """
    paths = list(names)
    seen: dict[str, str] = {}
    for path in [*paths, *sorted(parent_folders(paths))]:
        other = seen.setdefault(_folded(path), path)
        if other != path:
            what = "upper and lower case" if path.casefold() == other.casefold() else "the encoding of its characters"
            raise refuse_member(archive, path, f"it differs from {other!r} in {what} only")


def _folded(name: str) -> str:
    if name.isascii():
        return name.lower()
    # Folding case may undo the normal form, so that is made twice.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def check_lengths(archive: str, names: Iterable[str], *, room_bytes: int) -> None:
    """Refuse names that no Linux file system takes.

    Args:
        archive: its address, for messages.
        names: cleaned names.
        room_bytes: what a whole name may take.

    Raises:
        UnsafeArchiveError: a name, or one part of it, is too long.
    """
    for name in names:
        # No character takes more than four bytes, so most names need no closer look.
        if len(name) * 4 <= _MAX_PART_BYTES:
            continue
        whole = os.fsencode(name)
        if len(whole) > room_bytes or max(map(len, whole.split(b"/"))) > _MAX_PART_BYTES:
            shown = f"{name[:40]}…"
            reason = f"its name is {len(whole):,} bytes long; file systems take {_MAX_PART_BYTES} for each part of one"
            raise refuse_member(archive, shown, f"{reason} and {room_bytes:,} for all")


def is_junk(name: str) -> bool:
    """Tell whether an operating system, a notebook or colabstage left this file, so that it is no part of a dataset."""
    folder, _, base = name.rpartition("/")
    return base.startswith("._") or base.lower() in JUNK_FILES or is_our_name(base) or _in_junk(folder)


# Of millions of files, folder after folder.
@functools.lru_cache(maxsize=1024)
def _in_junk(folder: str) -> bool:
    return any(map(is_junk_folder, folder.split("/")))


def is_junk_folder(base: str) -> bool:
    """Tell whether a folder of this name (its last component) holds only junk."""
    return base in JUNK_FOLDERS or is_our_name(base)

"""Many folders for many files, laid out so that filling them from several processes is quick."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.fetch.copy import translate_write_error
from colabstage.trees.names import parent_folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# From Linux's fs.h, for a 64-bit `long`, and ext4's flag for the parent of folders that have nothing to do with each
# other.
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000
_FLAGS = struct.Struct("<Q")
_MANY_FOLDERS = 4


def make_folders(root: Path, names: Iterable[str]) -> None:
    """Make every folder that `names` lie in, below `root`; those that are there are fine.

    ext4 puts a folder's folders where it is itself, all into one group of inodes, unless it is marked as one whose
    folders are strangers. In one group, every new file waits for those that other processes make and skips the inodes
    of all that were deleted a moment ago: 130 µs for a file instead of 35. The mark is there only meanwhile; other file
    systems refuse it.

    Raises:
        NotEnoughSpaceError, TargetNotWritableError: the disk failed.
    """
    folders = sorted(parent_folders(names))
    children = Counter(folder.rpartition("/")[0] for folder in folders)
    with contextlib.ExitStack() as marks:
        if children[""] >= _MANY_FOLDERS:
            marks.enter_context(_marked(f"{root}"))
        for folder in folders:
            path = f"{root}/{folder}"
            try:
                os.mkdir(path)  # noqa: PTH102  # names, not paths: there may be thousands
            except FileExistsError:
                pass
            except OSError as error:
                raise translate_write_error(error, Path(path)) from error
            if children[folder] >= _MANY_FOLDERS:
                marks.enter_context(_marked(path))


@contextlib.contextmanager
def _marked(path: str) -> Iterator[None]:
    before = _flags(path)
    if before is not None:
        _set_flags(path, before | _TOP_FOLDER)
    yield
    if before is not None:
        _set_flags(path, before)


def _flags(path: str) -> int | None:
    try:
        with _handle(path) as handle:
            (flags,) = _FLAGS.unpack(fcntl.ioctl(handle, _GET_FLAGS, bytes(_FLAGS.size)))
    except OSError:
        return None
    return int(flags)


def _set_flags(path: str, flags: int) -> None:
    with contextlib.suppress(OSError), _handle(path) as handle:
        fcntl.ioctl(handle, _SET_FLAGS, _FLAGS.pack(flags))


@contextlib.contextmanager
def _handle(path: str) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield handle
    finally:
        os.close(handle)

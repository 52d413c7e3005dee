"""Put a finished folder in the place of another one, in one step where the kernel can do that."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

from colabstage.ownership import remove_own, temp_beside

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def swap_in(made: Path, target: Path) -> None:
    """Rename the folder `made` to `target`; what stood there is removed after that.

    Where the file system can exchange two names, there is no moment at which nothing stands at `target`.
    """
    if not os.path.lexists(target):
        made.rename(target)
        return
    if _exchange(made, target):
        remove_own(made)
        return
    old = temp_beside(target)
    target.rename(old)
    try:
        made.rename(target)
    except BaseException:
        old.rename(target)
        raise
    remove_own(old)


def _exchange(one: Path, other: Path) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))

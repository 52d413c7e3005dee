"""The environment variables that people set, in one place; `docs/command_line.md` has them as a table.

They are read when needed, so a notebook can set them in any cell. Also the current folder, IPython's shell, and
the package's loggers.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from colabstage.errors import OptionError, SourceReadError

if TYPE_CHECKING:
    import logging

T = TypeVar("T")

PLATFORM_VARIABLE = "COLABSTAGE_PLATFORM"
"""Sets the platform, for tests and for machines that the table does not know."""

LOCAL_DIR_VARIABLE = "COLABSTAGE_LOCAL_DIR"
"""Replaces the platform's fast folder."""

CACHE_DIR_VARIABLE = "COLABSTAGE_CACHE_DIR"
"""Replaces the cache that `cache_dir="auto"` finds; `none` for none."""

OFFLINE_VARIABLE = "COLABSTAGE_OFFLINE"
"""Nothing on the network is opened as a source."""

NO_PROGRESS_VARIABLE = "COLABSTAGE_NO_PROGRESS"
"""`progress=True` shows nothing."""

DRIVE_VARIABLE = "COLABSTAGE_DRIVE"
"""Drive's mount point, set by `mount_drive` for this process and those it starts: while Drive is not mounted, nothing
else tells that folder from any other of the local disk.
"""

SYSTEM_ROOT_VARIABLE = "COLABSTAGE_SYSTEM_ROOT"
"""A folder that takes the place of `/` for marker files and system folders: the root of a practice machine."""

_YES, _NO = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})


def is_set(variable: str) -> bool:
    value = os.environ.get(variable, "").strip().lower()
    if value in _YES | _NO:
        return value in _YES
    msg = f"{variable}={value!r} is neither on nor off; expected 1 or 0."
    raise OptionError(msg)


def value_and_name(argument: str, value: T, unset: T, variable: str) -> tuple[T | str, str]:
    """Return the value of an argument and its name for messages; if it is `unset`, those of a variable that is set."""
    text = os.environ.get(variable)
    return (text, variable) if text and value == unset else (value, argument)


def require_online(label: str) -> None:
    """Refuse to open a source on the network while that is switched off."""
    if is_set(OFFLINE_VARIABLE):
        msg = f"'{label}' is on the network, and {OFFLINE_VARIABLE} is set. Unset it, or give a path on this machine."
        raise SourceReadError(msg)


def current_folder() -> Path:
    """Return the current folder, even on a mount that has died, or if it no longer exists."""
    try:
        # `os.getcwd` fails on a dead mount. The kernel marks a deleted folder, and marks all on such a mount.
        return Path(os.readlink("/proc/self/cwd").removesuffix(" (deleted)"))  # noqa: PTH115
    except OSError:  # this system has no such table, as `doctor` should say
        return Path.cwd()


def shell() -> Any:
    """Return IPython's shell; `None` where this process has none."""
    # IPython is not imported here: a process that has not imported it does not run in it.
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell() if get_shell else None


@functools.cache
def logger_of(name: str) -> logging.Logger:
    """Return a logger of the package, which shows nothing unless the program asks for it."""
    # Imported late: it takes longer than everything else in `import colabstage`.
    import logging

    package = logging.getLogger(__name__.partition(".")[0])
    if not package.handlers:
        package.addHandler(logging.NullHandler())
    return logging.getLogger(name)

"""What this process has of a mount: files that are open, memory that is mapped from it, the current folder.

What is taken away from under a process breaks in three ways. An open file answers with errors. The current folder is
nowhere, and so is every program started from then on. Memory that is mapped from a file ends the process with a signal
as soon as it is touched, with no error to catch; and a mapping outlives the file that it was made of, so no open file
tells of it. Reading the links and the table of mappings does not touch the mount.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import DriveError
from colabstage.machine.mounts import follow_links

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 5
_FOLDER = Path("/proc/self/cwd")


def current_folder() -> Path | None:
    """Return the current folder, also where that is on a mount that has died; `None` where it is nowhere."""
    try:
        # Of one that is gone, as all are on a dead mount, the kernel says so behind its name.
        return follow_links(str(_FOLDER.readlink()).removesuffix(" (deleted)"))
    except OSError:  # no such table on this system
        with contextlib.suppress(OSError):
            return Path.cwd()
        return None


def is_inside(root: Path) -> bool:
    """Return whether the current folder is below `root`."""
    folder = current_folder()
    return folder is not None and folder.is_relative_to(root)


@contextlib.contextmanager
def outside(root: Path) -> Iterator[None]:
    """Leave `root` for the block, where the current folder is below it, and return when the block ends well.

    Drive's client starts a shell where the caller stands. One that stands in the mount keeps it busy, also for every
    later try.
    """
    folder = current_folder()
    if folder is None or not folder.is_relative_to(root):
        yield
        return
    os.chdir(next(parent for parent in root.parents if parent.is_dir()))
    yield
    try:
        os.chdir(folder)
    except OSError as error:
        warnings.warn(
            f"The current folder was '{folder}', which is not there any more ({error.strerror}); now it is "
            f"'{Path.cwd()}'.",
            stacklevel=3,
        )


def check_unused(root: Path) -> None:
    """Refuse to take a Drive away from under this process.

    Raises:
        DriveError: the current folder, an open file or a mapping is below `root`; the message names them.
    """
    if is_inside(root):
        msg = f"The current folder is on Drive ({current_folder()}). Leave it first: os.chdir('/content')."
        raise DriveError(msg)
    mapped = _mapped_below(root)
    if mapped:
        msg = (
            f"Files on Drive are mapped into this notebook's memory: {_names(mapped)}. Touching that after Drive is "
            "unmounted ends the notebook. Delete what was read from them (torch.load(mmap=True), safetensors and "
            "numpy.memmap map files), or load it from a local copy, then try again."
        )
        raise DriveError(msg)
    opened = _open_below(root)
    if opened:
        msg = f"Files on Drive are open in this notebook and would break: {_names(opened)}. Close them, then try again."
        raise DriveError(msg)


def _names(paths: set[str]) -> str:
    shown = ", ".join(f"'{path}'" for path in sorted(paths)[:_SHOWN])
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"


def _open_below(root: Path) -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, for example the handle that lists this folder
            target = link.readlink()
            if target.is_relative_to(root):
                found.add(str(target))
    return found


def _mapped_below(root: Path) -> set[str]:
    """Read proc(5)'s maps: five fields, then the path, in which a newline is written as \\012."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        paths = {fields[5] for line in lines if len(fields := line.split(None, 5)) == 6}
        return {path.removesuffix(" (deleted)") for path in paths if Path(path).is_relative_to(root)}
    return set()

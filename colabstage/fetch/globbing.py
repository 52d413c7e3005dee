"""A pattern of names on this machine or on a mounted Drive, as the list of what it means now."""

from __future__ import annotations

import glob
import os

from colabstage.errors import SourceNotFoundError
from colabstage.fetch.sources import LocalSource, ManySource, local_source
from colabstage.machine.mounts import require_answer


def expand_pattern(source: LocalSource) -> LocalSource | ManySource:
    """What a local source stands for: itself, or, where it is a pattern, all that fits it, sorted by name.

    What is there under the very name is meant: a file, or a folder on the way to it, whose name merely looks like a
    pattern (`[2024] photos/part-*.zip`). `**` stands for any number of folders.

    Raises:
        SourceNotFoundError: it is a pattern, and nothing fits.
        DriveDisconnectedError: the mount that it lies on is dead, or does not answer.
    """
    text = str(source.path)
    require_answer(source.path)
    if not glob.has_magic(text) or os.path.lexists(text):
        return source
    literal = next(folder for folder in source.path.parents if os.path.lexists(folder))
    pattern = str(source.path.relative_to(literal))
    if not glob.has_magic(pattern):
        return source
    found = sorted(glob.glob(f"{glob.escape(str(literal))}/{pattern}", recursive=True))  # noqa: PTH207 - Path.glob wants the pattern apart from its folder
    if not found:
        msg = f"Nothing fits the pattern '{text}'."
        raise SourceNotFoundError(msg)
    return ManySource(source.address, source.name, source.label, tuple(local_source(name) for name in found))

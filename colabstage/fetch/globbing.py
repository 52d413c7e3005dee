"""A pattern of names on this machine or on a mounted Drive, as the list of what it means now."""

from __future__ import annotations

import glob
import os

from colabstage.errors import SourceNotFoundError
from colabstage.fetch.sources import LocalSource, ManySource, local_source


def expand_pattern(source: LocalSource) -> LocalSource | ManySource:
    """What a local source stands for: itself, or, where it is a pattern, all that fits it, sorted by name.

    A file whose name merely looks like a pattern is that file. `**` stands for any number of folders.

    Raises:
        SourceNotFoundError: it is a pattern, and nothing fits.
    """
    text = str(source.path)
    if not glob.has_magic(text) or os.path.lexists(text):
        return source
    found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob wants the pattern apart from its folder
    if not found:
        msg = f"Nothing fits the pattern '{text}'."
        raise SourceNotFoundError(msg)
    return ManySource(source.address, source.name, source.label, tuple(local_source(name) for name in found))

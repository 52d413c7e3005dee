"""What is installed: the entry points that packages add to colabstage, and their versions."""

from __future__ import annotations

import sys
from functools import cache, lru_cache
from importlib.metadata import EntryPoints, PackageNotFoundError, entry_points, version
from pathlib import Path


def added_by_packages(group: str) -> EntryPoints:
    """Return the entry points of a group.

    Python reads a file of every installed package for this, which takes longer than staging a few images. So the result
    is kept until the import path or one of its folders changes, as it does when a package is installed.
    """
    return _read(group, tuple((folder, _modified_ns(folder)) for folder in sys.path))


@cache
def installed_version(package: str) -> str:
    """Return the version of a package as first seen, because modules stay as they were imported; "" if it is missing.

    Python parses the package's whole description for it, which takes as long as decoding some images.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@lru_cache(maxsize=8)
def _read(group: str, _state: tuple[tuple[str, int], ...]) -> EntryPoints:
    return entry_points(group=group)


def _modified_ns(folder: str) -> int:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0

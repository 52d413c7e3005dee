"""Errors for what is broken in a dataset: where, what is there, and what was expected."""

from __future__ import annotations

from colabstage.layouts.table import BrokenDatasetError


def broken(where: str, found: str, expected: str = "", *, line: int = 0) -> BrokenDatasetError:
    """Return the error for a part of a dataset that cannot be used.

    >>> str(broken("a.txt", "'x y' is not a box", "four numbers", line=3))
    "'a.txt', line 3: 'x y' is not a box; expected four numbers."

    Args:
        where: the file, or the sample in it.
        found: what is there.
        expected: what should be there.
        line: the line of the file.
    """
    place = f"'{where}'{f', line {line}' if line else ''}"
    return BrokenDatasetError(f"{place}: {found}{f'; expected {expected}' if expected else ''}.")

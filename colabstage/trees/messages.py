"""What several trees say in the same words: counts, notes on links, and errors of reading."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from colabstage.errors import SourceReadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def count_by(keys: Iterable[str], *, most: int = 5) -> str:
    """Write how often each key occurs, the commonest first.

    >>> count_by([".txt", ".csv", ".csv"])
    '2 .csv, 1 .txt'
    """
    counts = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count:,} {key}" for key, count in counts[:most]]
    if len(counts) > most:
        shown.append(f"{sum(count for _, count in counts[most:]):,} others")
    return ", ".join(shown)


def skipped_links(names: Sequence[str]) -> tuple[str, ...]:
    """The note on an archive's links that were left out; `names` is sorted."""
    if not names:
        return ()
    return (f"{len(names):,} links that lead to no file of the archive were left out (first '{names[0]}').",)


def cut_while_read(archive: str, member: str) -> SourceReadError:
    """The error for an archive that was longer when it was opened."""
    return SourceReadError(
        f"'{archive}' ends inside its member {member!r}: the file changed or was cut while being read. "
        "Wait until its upload or copy is complete, then stage again."
    )


def foreign_entry(tree: str, name: str) -> SourceReadError:
    """The error for an entry that the tree does not have."""
    return SourceReadError(f"'{tree}' has no member {name!r}; the entry is from another tree.")

"""What the shell offers at the Tab key: words of options, layouts, splits of a packed file, names of what is kept.

A function that offers nothing leaves the word to the shell, which then offers files. What goes wrong here stays silent:
there is no place to say it, and the command itself will.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer  # noqa: TC002 - typer looks the annotation up

from colabstage.errors import ColabstageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Offer those of `words` that begin as what was typed."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(words, incomplete)

    return complete


def complete_layouts(incomplete: str) -> list[str]:
    """Offer the layouts there are."""
    from colabstage.layouts.detect import READERS

    return _beginning(["auto", *(reader.name for reader in READERS)], incomplete)


def complete_files(incomplete: str) -> list[str]:
    """Leave it to the shell, which quotes and expands as its user is accustomed to."""
    return _beginning((), incomplete)


def complete_splits(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the splits of the file that stands on the line already."""
    from pathlib import Path

    from colabstage.h5.info import read_info

    # A line that ends in an option without its word is not parsed to the end; then the file is among the rest.
    for word in (ctx.params.get("file"), *ctx.args):
        with suppress(ColabstageError, OSError):
            return _beginning(read_info(Path(str(word))).splits, incomplete)
    return []


def complete_kept(incomplete: str) -> list[str]:
    """Offer the names of the datasets on this machine; the cache is not asked, because it may be on a slow mount."""
    from colabstage.stage.purge import list_datasets

    with suppress(ColabstageError, OSError):
        return _beginning(sorted({one.name for one in list_datasets(cache_dir=None)}), incomplete)
    return []


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]

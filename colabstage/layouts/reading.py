"""Reading many small things of a source at once: label files, the headers of a few images."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from colabstage.errors import CorruptArchiveError, DecodeError
from colabstage.layouts.sources import TreeFiles
from colabstage.pipeline import PipelineLimits, run_pipeline
from colabstage.progress import Cancellation
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.layouts.sources import Content, SampleSource
    from colabstage.trees.tree import FileEntry, Tree

T = TypeVar("T")

# On a Drive mount, speed grows with the reads in flight up to about twenty, and falls off after thirty-two.
_MAX_READERS = 32


def read_each(
    source: SampleSource,
    chosen: Sequence[int],
    make: Callable[[int, Content], T],
    *,
    readers: int = 2,
    skip_broken: bool = False,
    in_caller: bool = False,
) -> list[T]:
    """`make(index, content)` of some contents of a source, in the order of `chosen`.

    Args:
        source: the contents.
        chosen: which of them.
        make: called in one thread, as contents come.
        readers: reads in flight at the start; there are up to 32 when they prove slow.
        in_caller: read in this thread, one after the other.
        skip_broken: leave out what is damaged, where packing names it later; else the first stops the reading.

    Raises:
        SourceReadError, SourceNotFoundError, DriveDisconnectedError: the source cannot be read.
        Everything that `make` raises; the first stops the reading.
    """
    policy = RetryPolicy()
    passed_over = (CorruptArchiveError, DecodeError) if skip_broken else ()
    found: dict[int, T] = {}

    def read(place: int) -> Content | None:
        index = chosen[place]
        try:
            return read_with_retry(lambda: source.read(index), source.name(index), policy=policy)
        except passed_over:
            return None

    def use(place: int, content: Content | None) -> None:
        if content is not None:
            with suppress(*passed_over):
                found[place] = make(chosen[place], content)

    positions = source.positions
    run_pipeline(
        sorted(range(len(chosen)), key=lambda place: int(positions[chosen[place]])),
        read=read,
        use=use,
        cost=lambda place: int(source.sizes[chosen[place]]),
        limits=PipelineLimits(
            readers=readers, max_readers=max(readers, _MAX_READERS), workers=1, caller_reads=in_caller
        ),
        cancellation=Cancellation(),
    )
    return [found[place] for place in sorted(found)]


def read_files(tree: Tree, entries: Sequence[FileEntry], make: Callable[[FileEntry, bytes], T]) -> list[T]:
    """`make(entry, content)` of some files of a tree, in their order, with many reads in flight where they are slow.

    Raises:
        As `read_each`, and CorruptArchiveError: a file is damaged.
    """
    source = TreeFiles(tree, entries)

    def use(index: int, content: Content) -> T:
        return make(source.entries[index], bytes(content))

    return read_each(source, range(len(source)), use)

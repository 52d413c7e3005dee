"""Contents of a few files of a slow tree, read while the rest is still listed: those that planning a pack examines.

Which files these are depends on names alone, so the code that examines them and the code that reads ahead agree on
them.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING

from colabstage.errors import ColabstageError
from colabstage.io.pipeline import DaemonPool
from colabstage.trees.entries import extension_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from colabstage.trees.entries import Listing
    from colabstage.trees.tree import FileEntry

# Enough to notice that a folder holds images of many sizes; few enough to cost one round trip of parallel reads.
SAMPLES = 16
# Few beside the folders that are listed at once, which everything waits for.
_READERS = 8
# A photograph has a few million bytes. What is larger is read by who asks for it.
_MOST_BYTES = 8 << 20
# Longer than any one file takes that is so small.
_STALL_S = 60.0


def spread_over_folders(folders: int) -> Mapping[int, int]:
    """Return by the numbers of some of so many folders, in the order of their names, how many files of each are looked
    at: `SAMPLES` in all, spread evenly."""
    return Counter((2 * number + 1) * folders // (2 * SAMPLES) for number in range(SAMPLES)) if folders else {}


def spread_within(files: int, count: int) -> Sequence[int]:
    """Return the numbers of `count` of the files of one folder, or of all where there are no more, spread evenly."""
    return sorted({(2 * number + 1) * files // (2 * count) for number in range(count)}) if files else ()


class ReadAhead:
    """Contents that are here, or on their way, for whoever asks for them first.

    Nothing depends on it: a file that could not be read is read again by who asks for it, and fails there.

    Args:
        read: reads a file.
        extensions: those of the files that are read ahead, in lower case, with their dots.
    """

    def __init__(self, read: Callable[[FileEntry], bytes], extensions: Collection[str]) -> None:
        self._read = read
        self._extensions = frozenset(extensions)
        self._lock = threading.Lock()
        self._pool = DaemonPool(_READERS, "colabstage-ahead")
        self._coming: dict[str, Future[bytes]] = {}
        self._closed = False

    def choose(self, folders: Iterable[str]) -> Mapping[str, int]:
        """Return which folders of a level are to be listed first, and how many of their files are to be read."""
        names = sorted(folders)
        # While a single folder is listed nothing of it is known yet.
        chosen = spread_over_folders(len(names)) if len(names) > 1 else {}
        return {names[number]: count for number, count in chosen.items()}

    def start(self, listings: Iterable[Listing], count: int) -> None:
        """Begin to read `count` of the files of a folder that has been listed; may be called in any thread."""
        found = [
            (name, listing, number)
            for listing in listings
            for number, name in enumerate(listing.names)
            if extension_of(name) in self._extensions
        ]
        found.sort(key=lambda one: one[0])
        for place in spread_within(len(found), count):
            name, listing, number = found[place]
            entry = listing.entries()[number]
            with self._lock:
                if entry.size <= _MOST_BYTES and not self._closed:
                    self._coming[name] = self._pool.submit(partial(self._read, entry))

    def take(self, entry: FileEntry) -> bytes | None:
        """Return the content of a file that was read ahead, once; `None` for any other, and for one that failed."""
        coming = self._coming.pop(entry.name, None)
        try:
            return None if coming is None else coming.result(_STALL_S)
        except (OSError, ColabstageError, CancelledError):
            return None

    def close(self) -> None:
        """Drop what nobody has asked for. Calling it twice is fine."""
        with self._lock:
            self._closed = True
            self._coming.clear()
        # A read that hangs can never be joined.
        self._pool.close(abandon=True)

"""Where nothing can be mounted: a tree whose reads take the time they would take on a simulated Drive."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from colabstage.clock import SYSTEM_CLOCK
from colabstage.simulate.model import Meter, Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from colabstage.clock import Clock
    from colabstage.simulate.knobs import DriveKnobs
    from colabstage.trees.tree import FileEntry, Tree, TreeKind


class ThrottledTree:
    """Another tree, read at Drive's pace: a file's first read is cold, later ones are warm.

    It has no content cache of its own; only the waiting is imitated. Closing it closes the other tree.
    """

    def __init__(self, tree: Tree, knobs: DriveKnobs, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tree = tree
        self._knobs = knobs.scaled()
        self._traffic = Traffic(self._knobs)
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: set[str] = set()

    @property
    def kind(self) -> TreeKind:
        """What holds the files."""
        return self._tree.kind

    @property
    def label(self) -> str:
        """The other tree's address."""
        return self._tree.label

    @property
    def notes(self) -> tuple[str, ...]:
        """The other tree's notes."""
        return self._tree.notes

    @property
    def entries(self) -> Sequence[FileEntry]:
        """The other tree's files."""
        return self._tree.entries

    def read(self, entry: FileEntry) -> bytes:
        """The whole content of one file, not sooner than Drive would have it here."""
        with self._lock:
            arrived = self._arrival(entry, self._clock.now())
        data = self._tree.read(entry)
        self._clock.sleep(max(0.0, arrived - self._clock.now()))
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """The content of one file in pieces, the first not sooner than Drive would have the file here."""
        with self._lock:
            arrived = self._arrival(entry, self._clock.now())
        for piece in self._tree.chunks(entry):
            self._clock.sleep(max(0.0, arrived - self._clock.now()))
            yield piece

    def _arrival(self, entry: FileEntry, now: float) -> float:
        if entry.name in self._cached:
            warm = Meter(self._knobs.warm_bytes_per_s)
            return warm.reserve(now + self._knobs.warm_open_latency_s, entry.size)
        self._cached.add(entry.name)
        stream = self._traffic.open_stream()
        return self._traffic.fetch(stream, now, block=0, nbytes=entry.size, first_of_open=True)

    def close(self) -> None:
        """Close the other tree."""
        self._tree.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

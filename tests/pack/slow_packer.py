"""Packs a folder as a process of its own, from a slow tree, and tells of every sample: something to kill.

python slow_packer.py SOURCE OUT OPTIONS [STOP], where OPTIONS are the fields of `PackOptions` as JSON. Prints "begun",
then one dot for each sample that this run brought to its place, then the number of samples that it took over. After
STOP dots the process stops itself, so that however busy the machine is, it gets no further.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.io.progress import Cancellation, NullProgress, ProgressStep
from colabstage.pack.execute import run_pack
from colabstage.pack.job import prepare_pack
from colabstage.pack.options import PackOptions
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from colabstage.trees.listing import FileEntry

READ_S = 0.01


class SlowTree(FolderTree):
    """A folder each of whose files takes its time."""

    def read(self, entry: FileEntry) -> bytes:
        """The content of a file, not at once."""
        time.sleep(READ_S)
        return super().read(entry)


class Dots(NullProgress):
    """A dot for each sample, seen at once by who listens; `stop` after so many, 0 for never."""

    def __init__(self, stop: int) -> None:
        self._stop = stop

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """Say that packing begins."""
        say("begun\n")
        return _Step(self._stop)


class _Step:
    def __init__(self, stop: int) -> None:
        self._taken_over = True
        self._stop = stop
        self._said = 0

    def advance(self, amount: int = 1) -> None:
        if not self._taken_over:
            say("." * amount)
            self._said += amount
            if self._stop and self._said >= self._stop:
                os.kill(os.getpid(), signal.SIGSTOP)
        self._taken_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def say(text: str) -> None:
    """Write to the one who listens."""
    sys.stdout.write(text)
    sys.stdout.flush()


def main() -> None:
    """Pack."""
    source, out, options, *stop = sys.argv[1:]
    progress = Dots(int(stop[0]) if stop else 0)
    with SlowTree(Path(source), workers=1) as tree:
        job = prepare_pack(tree, PackOptions(**json.loads(options)), free_bytes=None)
        report = run_pack(job, Path(out), slow=False, progress=progress, cancellation=Cancellation())
    say(f"\n{report.resumed}\n")


if __name__ == "__main__":
    main()

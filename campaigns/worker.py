"""The process that is killed: does one piece of a campaign's work, and tells of every unit while it does.

    python -m campaigns.worker CAMPAIGN ARGUMENTS

ARGUMENTS is JSON: what the campaign's `begin` returned, with `diary`, the file to tell in, `home`, the folder whose
changes count as steps, and `step`, the number of the step at which to die (0 for none). Lines of the diary: `begun`,
`NAME<tab>AMOUNT` for each advance of a progress step, and at the end `steps<tab>NUMBER`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Self

from campaigns.known import campaign_class
from colabstage.progress import NullProgress, ProgressStep

if TYPE_CHECKING:
    from types import TracebackType

# What the file system is asked to change between the bytes: the seams of every protocol.
_STEPS = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"})


class Diary(NullProgress):
    """A `Progress` that writes every advance down, in one write each, so that a kill loses none."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, line: str) -> None:
        """Write one line."""
        os.write(self._handle, f"{line}\n".encode())

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """Write down what the step is told."""
        return _Step(self, name)


class _Step:
    def __init__(self, diary: Diary, name: str) -> None:
        self._diary = diary
        self._name = name

    def advance(self, amount: int = 1) -> None:
        self._diary.note(f"{self._name}\t{amount}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""


class Steps:
    """Counts the changes below `home`, and dies before the one with the number `last`."""

    def __init__(self, home: str, last: int) -> None:
        self.count = 0
        self._home = f"{home}/"
        self._last = last
        sys.addaudithook(self._notice)

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _STEPS or not str(arguments[0]).startswith(self._home):
            return
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Work, until done or killed."""
    name, text = sys.argv[1:]
    arguments = json.loads(text)
    work = campaign_class(name).work
    diary = Diary(arguments["diary"])
    steps = Steps(arguments["home"], arguments["step"])
    diary.note("begun")
    work(arguments, diary)
    diary.note(f"steps\t{steps.count}")


if __name__ == "__main__":
    main()

"""The processes that are killed: each does one piece of a campaign's work, and tells of every unit while it does.

    python -m campaigns.worker CAMPAIGN

serves such processes: each line of its input is ARGUMENTS for one that is forked from it, and its answer the process's
id; the next line, whatever is in it, has it wait for that process's end, and its answer is the exit code (minus the
signal's number of one that was killed). Nearly all the time of a process of its own would go into importing what the
work needs: here that is loaded once, what the work itself imports included, which the first that ends well names. The
server has no threads and no file open, so that what is forked from it starts as a fresh interpreter does.

ARGUMENTS is JSON: what the campaign's `begin` returned, with `log`, the file to tell in, `said`, the file for what
is printed, `home`, the folder whose changes count as steps, and `step`, the number of the step at which to die (0 for
none). Lines of the log: `begun`, `NAME<tab>AMOUNT` for each advance of a progress step, and at the end
`steps<tab>NUMBER`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from campaigns.known import campaign_class
from colabstage.io.progress import NullProgress, ProgressStep

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

# What the file system is asked to change between the bytes: the seams of every protocol.
_STEPS = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"})


class ProgressLog(NullProgress):
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
    def __init__(self, log: ProgressLog, name: str) -> None:
        self._log = log
        self._name = name

    def advance(self, amount: int = 1) -> None:
        self._log.note(f"{self._name}\t{amount}")

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
    """Serve processes until the input ends; in each of them, work until done or killed."""
    (name,) = sys.argv[1:]
    work = campaign_class(name).work
    for line in sys.stdin:
        arguments = json.loads(line)
        loaded = Path(arguments["home"]) / "modules"
        victim = os.fork()
        if victim == 0:
            _redirect(arguments["said"])
            _work(work, arguments)
            loaded.write_text("\n".join(sys.modules), encoding="utf-8")
            return
        _answer(victim)
        sys.stdin.readline()
        _, status = os.waitpid(victim, 0)
        if status == 0:
            _load(loaded.read_text(encoding="utf-8").splitlines())
        _answer(os.waitstatus_to_exitcode(status))


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _redirect(said: str) -> None:
    """Read nothing, and print into a file: the server's own input and output are not for this process."""
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)


def _work(work: Callable[[dict[str, Any], ProgressLog], None], arguments: dict[str, Any]) -> None:
    log = ProgressLog(arguments["log"])
    steps = Steps(arguments["home"], arguments["step"])
    log.note("begun")
    work(arguments, log)
    log.note(f"steps\t{steps.count}")


def _load(names: list[str]) -> None:
    """Import these modules, as far as they can be imported by their name."""
    for name in names:
        with suppress(ImportError):  # what compiled modules put there for each other
            importlib.import_module(name)


if __name__ == "__main__":
    main()

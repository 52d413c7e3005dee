"""Run a function in processes that are killed right before or right after their n-th change of a name on disk.

    with Victims("tests.contract.test_crash_matrix:run") as victims:
        ran = victims.run(["publish", home], change=3, after=False)
        ran.killed, ran.error, ran.changes

The processes are forked from one that has imported what the function needs, has no threads and no files open. What
counts as a change: a file that is created, and each rename, link, removal, new folder and truncation, by any thread.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_CHANGES = ("rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "truncate")
# No call of a test takes a tenth of this.
_CALL_S = 60


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one call: `error` is the class and the text of what it raised, `changes` what it had counted."""

    killed: bool
    changes: int
    error: tuple[str, str] | None
    result: Any


class Victims:
    """Calls of one function, `module:name`, each in a process of its own; it takes and returns what JSON can hold."""

    def __init__(self, function: str) -> None:
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.support.killed", function]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/", text=True
        )

    def run(
        self, arguments: list[Any], *, change: int = 0, after: bool = False, environment: dict[str, str] | None = None
    ) -> Ran:
        """Call the function in a process that dies at a change; at none if `change` is 0 or more than there are."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([arguments, change, after, environment or {}]) + "\n")
        self._server.stdin.flush()
        killed, changes, error, result = json.loads(self._server.stdout.readline())
        return Ran(killed, changes, error and (error[0], error[1]), result)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server."""
        self._server.communicate()


class Changes:
    """Counts changes of names, and kills this process at one of them."""

    def __init__(self, last: int, *, after: bool) -> None:
        self.count = 0
        self._last = last
        self._after = after
        self._lock = threading.RLock()
        for name in _CHANGES:
            setattr(os, name, self._counted(getattr(os, name)))
        self._exists = os.path.lexists
        os.open = self._opening(os.open)
        # `Path.open` calls the one of `io`.
        io.open = builtins.open = self._opening(builtins.open)
        sys.addaudithook(self._notice)

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                self._before()
                result = change(*arguments, **more)
                if self._after:
                    self._die_at_last()
                return result

        return counted

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        counted = self._counted(function)

        def opening(path: Any, flags: Any = "r", *arguments: Any, **more: Any) -> Any:
            flags = more.pop("mode", flags) if isinstance(flags, str) else flags
            creates = flags & os.O_CREAT if isinstance(flags, int) else set(flags) & set("wxa")
            is_new = creates and not isinstance(path, int) and not self._is_there(path, more.get("dir_fd"))
            return (counted if is_new else function)(path, flags, *arguments, **more)

        return opening

    def _is_there(self, path: Any, folder: int | None) -> bool:
        return self._exists(path if folder is None else f"/proc/self/fd/{folder}/{os.fsdecode(path)}")

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        # Two names that are exchanged: Python has no function for that. Dead after it is dead before the next change.
        if event == "ctypes.dlsym" and arguments[1] == "renameat2":
            self._before()

    def _before(self) -> None:
        if self._after and self.count == self._last:
            self._die_at_last()
        self.count += 1
        if not self._after:
            self._die_at_last()

    def _die_at_last(self) -> None:
        if self._last and self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Fork a process for each line of the input; the answer is one line, too."""
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    gc.freeze()  # so that no child copies memory only to look for garbage in it
    for line in sys.stdin:
        arguments, change, after, environment = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.environ.update(environment)
            signal.alarm(_CALL_S)
            _work(function, arguments, change, after, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            said = answer.read()
        _, status = os.waitpid(child, 0)
        if said:
            count, error, result, modules = json.loads(said)
            _load(modules)
            sys.stdout.write(json.dumps([False, count, error, result]) + "\n")
        else:
            code = os.waitstatus_to_exitcode(status)
            error = None if code == -signal.SIGKILL else ["Ended", f"exit code {code}"]
            sys.stdout.write(json.dumps([error is None, change, error, None]) + "\n")
        sys.stdout.flush()


def _work(function: Callable[..., Any], arguments: list[Any], change: int, after: bool, writer: int) -> None:
    """Call the function, tell the server, and end without what an interpreter does at its end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nowhere, number)
    known = set(sys.modules)
    changes, error, result = Changes(change, after=after), None, None
    try:
        result = function(*arguments)
    except BaseException as caught:  # noqa: BLE001 - the test judges it
        error = [type(caught).__name__, str(caught)]
    os.write(writer, json.dumps([changes.count, error, result, sorted(set(sys.modules) - known)]).encode())
    os._exit(0)


def _load(names: list[str]) -> None:
    """Import what a call has imported, as far as it can be imported by its name."""
    for name in names:
        if name not in sys.modules:
            with suppress(ImportError):
                importlib.import_module(name)


if __name__ == "__main__":
    main()

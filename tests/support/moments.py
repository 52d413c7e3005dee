"""Runs a function in processes that are disturbed at their n-th system call.

    with Processes("tests.contract.cases:run") as processes:
        ran = processes.run(["publish", home], Moment(3, "kill before", below=home))
        ran.killed, ran.error, ran.reached

The processes are forked from one that has imported what the function needs, and has no threads and no open files. Calls
of all threads count, on paths below `below`; those of h5py and of Python's file buffers are made in C, unseen.
"""

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
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from colabstage.errors import ColabstageError

What = Literal["kill before", "kill after", "fail", "dead", "full", "short", "cut", "call"]

# In addition to opening: calls that change names, calls that read, and the rest. Moments for killing count only changes
# of names, those for reads only reads, and all others count everything.
NAMES = frozenset({"rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "truncate"})
READS = frozenset({"read", "pread", "preadv", "readinto", "sendfile", "copy_file_range"})
REST = frozenset(
    {"stat", "lstat", "fstat", "scandir", "listdir", "write", "pwrite", "writev", "ftruncate", "posix_fallocate"}
    | {"fsync", "fdatasync", "statvfs", "fstatvfs", "utime", "chmod", "access", "readlink"}
)
# Calls that need room on a disk; opening does if it creates the file.
WRITES = NAMES - {"unlink", "remove", "rmdir"} | {"write", "pwrite", "writev", "ftruncate", "posix_fallocate"}
_COUNTED = {"full": WRITES, "kill before": NAMES, "kill after": NAMES, "short": READS, "cut": READS}
_THREADS_END_S = 5.0
# No test's call takes a tenth of this.
_CALL_S = 60


@dataclass(frozen=True, slots=True)
class Moment:
    """What happens at call number `at`, counted from 1; nothing if there are fewer.

    `"kill before"` and `"kill after"`: the process is killed at this change of a name. `"fail"`: this call ends in the
    errno `number`; `"dead"`: this one and all after it; `"full"`: those of these that need room on a disk. `"short"`:
    this read gives half of what it could; `"cut"`: nothing, as at the end of a file. `"call"`: the function
    `module:name` is called with `below` before this call.
    """

    at: int = 0
    what: What = "kill before"
    below: str = ""
    number: int = 0
    function: str = ""


class Failure(NamedTuple):
    """An error that a function raised: whether it is from `colabstage.errors`, its class, its text and its lines."""

    typed: bool
    kind: str
    text: str
    lines: str


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of one call; `reached`: how many system calls counted."""

    killed: bool
    reached: int
    error: Failure | None
    result: Any

    def is_at(self, moment: Moment) -> bool:
        """Tell whether the moment was reached."""
        return self.killed or self.reached >= moment.at


class Processes:
    """Calls of one function, `module:name`, each in its own process; arguments and results must be valid JSON.

    `modules`: what it imports late. A killed process cannot report that, so each one would import it anew.
    `interpreter`: the command that runs a script, if not this Python, for example one that has imported torch already.
    """

    def __init__(self, function: str, *modules: str, interpreter: Sequence[str] = (sys.executable, "-P")) -> None:
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
        self._warm = set[str]()
        self._server = subprocess.Popen(
            [*interpreter, __file__, function, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",
            text=True,
        )

    def run(self, arguments: list[Any], moment: Moment | None = None, **environment: str) -> Ran:
        """Call the function in a new process, with these environment variables."""
        killed, reached, error, result = self._ask(arguments, asdict(moment or Moment()), environment)
        return Ran(killed, reached, error and Failure(*error), result)

    def warm_up(self, name: str, arguments: list[Any], **environment: str) -> None:
        """Call the function in the process that others are forked from, once for each `name`: half of what a first call
        takes is set up once in a process."""
        if name in self._warm:
            return
        self._warm.add(name)
        assert self._ask(arguments, None, environment) == 1, "threads are left, and what is forked would hang"

    def _ask(self, *request: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self._server.communicate()


class _Watch:
    """Counts this process's system calls, and disturbs one of them."""

    def __init__(self, moment: Moment) -> None:
        self.count = 0
        self._moment = moment
        self._counted = _COUNTED.get(moment.what, NAMES | READS | REST | {"open"})
        self._lock = threading.RLock()
        self._handles: set[int] = set()
        self._lexists, self._readlink, self._getpid = os.path.lexists, os.readlink, os.getpid
        self._process = os.getpid()
        self._busy = False
        for name in (NAMES | READS | REST) & set(dir(os)):
            if name in self._counted:
                setattr(os, name, self._watched(name, getattr(os, name)))
        close = os.close

        def closing(fd: int) -> None:
            self._handles.discard(fd)
            close(fd)

        os.close = closing
        os.open = self._opening(os.open)
        # `Path.open` calls that of `io`.
        io.open = builtins.open = self._opening(builtins.open)
        sys.addaudithook(self._notice)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **more: Any) -> Any:
            if not self._is_below(arguments[0] if arguments else ".", more.get("dir_fd") or more.get("src_dir_fd")):
                return function(*arguments, **more)
            return self._happen(function, *arguments, **more)

        watched.__name__ = name
        return watched

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def opening(path: Any, flags: Any = "r", *arguments: Any, **more: Any) -> Any:
            flags = more.pop("mode", flags) if isinstance(flags, str) else flags
            if isinstance(path, int) or not self._is_below(path, more.get("dir_fd")):
                return function(path, flags, *arguments, **more)
            creates = flags & os.O_CREAT if isinstance(flags, int) else set(flags) & set("wxa")
            counts = "open" in self._counted or (
                "mkdir" in self._counted and creates and not self._is_there(path, more.get("dir_fd"))
            )
            opened = (self._happen if counts else _call)(function, path, flags, *arguments, **more)
            self._handles.add(opened if isinstance(opened, int) else opened.fileno())
            return opened

        return opening

    def _is_below(self, path: Any, folder: int | None) -> bool:
        if self._busy or self._getpid() != self._process:
            return False
        if isinstance(path, int):
            return path in self._handles
        if folder is not None:
            return folder in self._handles
        return os.fspath(path).startswith(self._moment.below) if isinstance(path, (str, Path)) else False

    def _is_there(self, path: Any, folder: int | None) -> bool:
        return self._lexists(path if folder is None else f"/proc/self/fd/{folder}/{os.fsdecode(path)}")

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        # An exchange of two names, for which Python has no function. Killed after it means killed before the next
        # change.
        if event == "ctypes.dlsym" and arguments[1] == "renameat2" and self._counted is NAMES:
            with self._lock:
                self._count("kill before")

    def _count(self, die_at: str) -> bool:
        """Count a call; return whether it is to be disturbed."""
        moment = self._moment
        if self.count and self.count == moment.at and moment.what == "kill after":
            os.kill(self._process, signal.SIGKILL)
        self.count += 1
        if self.count == moment.at and moment.what == die_at:
            os.kill(self._process, signal.SIGKILL)
        return bool(moment.at) and (
            self.count == moment.at or (self.count > moment.at and moment.what in ("dead", "full"))
        )

    def _happen(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        moment = self._moment
        with self._lock:
            now = self._count("kill before")
            if moment.what in ("kill before", "kill after"):
                result = function(
                    *arguments, **more
                )  # while holding the lock, so that no other thread changes names meanwhile
                if now and moment.what == "kill after":
                    os.kill(self._process, signal.SIGKILL)
                return result
            if now and moment.what == "call":
                self._busy = True
                _function(moment.function)(moment.below)
                self._busy = False
        if now and moment.what in ("fail", "dead", "full"):
            named = arguments[0] if arguments and isinstance(arguments[0], (str, Path)) else None
            raise OSError(moment.number, os.strerror(moment.number), *([str(named)] if named else []))
        if now and moment.what in ("short", "cut"):
            return _less(function, arguments, whole=moment.what == "short")
        return function(*arguments, **more)


def _call(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    return function(*arguments, **more)


def _less(function: Callable[..., Any], arguments: tuple[Any, ...], *, whole: bool) -> Any:
    """Read half of the requested bytes, or none."""
    name = function.__name__
    if name in ("read", "pread"):
        return function(arguments[0], max(1, arguments[1] // 2), *arguments[2:]) if whole else b""
    if name == "preadv":
        half = [memoryview(arguments[1][0])[: max(1, len(memoryview(arguments[1][0]).cast("B")) // 2)]]
        return function(arguments[0], half, *arguments[2:]) if whole else 0
    count = 3 if name == "sendfile" else 2
    return function(*arguments[:count], max(1, arguments[count] // 2), *arguments[count + 1 :]) if whole else 0


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def main() -> None:
    """Fork a process for each line of the input; respond with one line."""
    function = _function(sys.argv[1])
    _load(sys.argv[2:])
    _read_metadata()
    gc.freeze()  # so that no child copies memory just to search it for garbage
    for line in sys.stdin:
        arguments, moment, environment = json.loads(line)
        if moment is None:
            threads = _warm_up(function, arguments, environment)
            sys.stdout.write(f"{threads}\n")
            sys.stdout.flush()
            continue
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.environ.update(environment)
            signal.alarm(_CALL_S)
            _work(function, arguments, Moment(**moment), writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            said = answer.read()
        _, status = os.waitpid(child, 0)
        if said:
            reached, error, result, modules = json.loads(said)
            _load(modules)
            sys.stdout.write(json.dumps([False, reached, error, result]) + "\n")
        else:
            code = os.waitstatus_to_exitcode(status)
            error = None if code == -signal.SIGKILL else [False, "Ended", f"exit code {code}", ""]
            sys.stdout.write(json.dumps([error is None, moment["at"], error, None]) + "\n")
        sys.stdout.flush()


def _work(function: Callable[..., Any], arguments: list[Any], moment: Moment, writer: int) -> None:
    """Call the function, report to the server, and end without the interpreter's clean-up."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nowhere, number)
    # An error from here stands for one of the system, and must not be taken for one of the caller's code.
    globals().update(__file__=os.__file__, __name__="os")
    known, write, leave = len(sys.modules), os.write, os._exit
    watch, error, result = _Watch(moment), None, None
    try:
        result = function(*arguments)
    except BaseException as caught:  # noqa: BLE001 - the test judges it
        lines = [f"{Path(at.filename).name}:{at.lineno} {at.name}" for at in traceback.extract_tb(caught.__traceback__)]
        error = [isinstance(caught, ColabstageError), type(caught).__name__, str(caught), " > ".join(lines)]
    # From the end: to go over all of them would copy every page that has a name of a module.
    new = [*islice(reversed(sys.modules), len(sys.modules) - known)]
    write(writer, json.dumps([watch.count, error, result, new[::-1]]).encode())
    leave(0)


def _warm_up(function: Callable[..., Any], arguments: list[Any], environment: dict[str, str]) -> int:
    """Call the function here, without output; return how many threads there are afterwards."""
    before, shown, nowhere = dict(os.environ), os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.environ.update(environment)
    os.dup2(nowhere, 1)
    try:
        function(*arguments)
    finally:
        sys.stdout.flush()
        os.dup2(shown, 1)
        os.environ.clear()
        os.environ.update(before)
        os.close(shown)
        os.close(nowhere)
    ends = time.monotonic() + _THREADS_END_S
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < ends:  # noqa: PTH208
        time.sleep(0.005)
    gc.collect()
    gc.freeze()
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _read_metadata() -> None:
    """Read once what is installed: in a process of its own, each call would read hundreds of files for it."""
    patched: Any = metadata
    patched.entry_points, patched.version = cache(metadata.entry_points), cache(metadata.version)
    for kind in ("layouts", "sources"):
        metadata.entry_points(group=f"colabstage.{kind}")
    metadata.entry_points(group="console_scripts", name="colabstage")
    for package in ("colabstage", "pillow", "pillow-heif", "simplejpeg", "torch"):
        with suppress(metadata.PackageNotFoundError):
            metadata.version(package)


def _load(names: list[str]) -> None:
    """Import what a call has imported, if it can be imported by name."""
    for name in names:
        if name not in sys.modules:
            with suppress(ImportError):
                importlib.import_module(name)


if __name__ == "__main__":
    main()

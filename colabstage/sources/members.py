"""Write members of archives and other small files below a folder: by threads, or by processes that do only this.

Inflating and writing tens of thousands of small files is system calls with a little Python in between; threads would
spend more time on passing the interpreter to each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import queue
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.errors import SourceReadError
from colabstage.io.files import Closing, pread_exactly, pwrite_exactly, translate_write_error
from colabstage.io.workspace import remove_own
from colabstage.trees.bytes import ByteSource, LocalBytes, RequestedBytes, cut_while_read
from colabstage.trees.zip_member import ZipMember, read_member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.trees.listing import FileEntry

    # The `ZipMember` is `None` for a member that is stored unchanged at its position.
    Member = tuple[FileEntry, ZipMember | None]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# As after tarfile's `data` filter: readable, and executable only if the archive says so.
_MODES = (0o644, 0o755)
# Long enough for a killed process to end; on a dead disk it does not.
_END_S = 10.0
_PR_SET_PDEATHSIG = 1


class Folder(NamedTuple):
    handle: int
    """An open handle on it, so that it cannot be exchanged for another one meanwhile."""
    path: str


def write_members(source: ByteSource, begin: int, data: bytes, members: Sequence[Member], folder: Folder) -> str:
    """Unpack, verify and write small members that are neighbours in an archive; return the hash of their content.

    `data` holds all of them, and begins at `begin` in the archive `source`. Their folders exist.
    """
    import xxhash

    hasher = xxhash.xxh3_64()

    def pread(length: int, offset: int) -> bytes:
        at = offset - begin
        # Bytes outside `data` come from the archive.
        return data[at : at + length] if 0 <= at <= len(data) - length else source.pread(length, offset)

    near = RequestedBytes(pread, source.size, label=source.label)
    for entry, packing in members:
        if packing is not None:
            content = read_member(near, packing)
        else:
            content = near.pread(entry.size, entry.position) if entry.size else b""
            if len(content) != entry.size:
                raise cut_while_read(source.label, entry.name)
        write_file(folder, entry.name, content, entry.executable, entry.mtime_ns)
        hasher.update(content)
    return hasher.hexdigest()


def write_file(folder: Folder, name: str, content: bytes, executable: bool, mtime_ns: int) -> None:
    # No context manager: small files come by the hundred thousand, and a path is made only for one that fails.
    try:
        handle = _open_new(folder, name, executable)
        try:
            if os.write(handle, content) != len(content):
                pwrite_exactly(handle, content, 0)
            if mtime_ns:
                os.utime(handle, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(handle)
    except OSError as error:
        raise translate_write_error(error, Path(folder.path) / name) from error


def _open_new(folder: Folder, name: str, executable: bool) -> int:
    mode = _MODES[executable]
    try:
        return os.open(name, _FLAGS, mode, dir_fd=folder.handle)
    except FileExistsError:
        # A killed run was writing it.
        remove_own(Path(folder.path) / name)
        return os.open(name, _FLAGS, mode, dir_fd=folder.handle)


_PROGRAM = """
import sys
sys.path[:] = {path!r}
from colabstage.sources.members import write_in_child
write_in_child({archive}, {label!r}, {folder!r}, {parent})
"""


class Processes(Closing):
    """Processes that write members of one archive below one folder. `write` may be called from many threads.

    A process reads parts on its input and responds on its output. It holds nothing but the two handles that it started
    with, so it can be killed at any moment, and it ends with its parent.
    """

    def __init__(self, archive: LocalBytes, folder: Folder, count: int) -> None:
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        program = _PROGRAM.format(
            path=[*sys.path, str(Path(__file__).parents[2])],
            archive=archive.fileno(),
            label=archive.label,
            folder=tuple(folder),
            parent=os.getpid(),
        )
        for _ in range(count):
            self._all.append(_start(program, (archive.fileno(), folder.handle)))
            self._idle.put(self._all[-1])

    def write(self, begin: int, end: int, members: Sequence[Member]) -> str:
        """Have members written that are between two positions of the archive; as `write_members`. The pipeline that
        calls this ends it by `close` if nothing moves for long."""
        process = self._idle.get()
        try:
            answer = _ask(process, (begin, end, members))
        except (OSError, EOFError) as error:
            _end(process)
            msg = f"A process that extracts ended unexpectedly (exit code {process.returncode}). Run this again."
            raise SourceReadError(msg) from error
        finally:
            self._idle.put(process)
        if isinstance(answer, Exception):
            # The error as the process raised it, with its type.
            raise answer
        digest: str = answer
        return digest

    def close(self) -> None:
        """End them: what they wrote is noted only after their response."""
        while self._all:
            process = self._all.pop()
            process.kill()
            _end(process)
            # One that a dead disk holds even now is left, and with it its pipes, which a thread may be reading.
            for stream in (process.stdin, process.stdout) if process.returncode is not None else ():
                assert stream is not None
                # An unread message may be left.
                with contextlib.suppress(OSError):
                    stream.close()


def _start(program: str, handles: tuple[int, int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # Isolated and without site: no hook of the environment runs, and the start is as short as possible.
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=handles,
        # A keyboard interrupt is for the parent, which then ends these.
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)


def _ask(process: subprocess.Popen[bytes], message: object) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(message, process.stdin, pickle.HIGHEST_PROTOCOL)
    process.stdin.flush()
    return pickle.load(process.stdout)


def write_in_child(archive: int, label: str, folder: tuple[int, str], parent: int) -> None:
    """Write what the input names until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing here makes cycles, and looking for them among ten thousand tuples takes time.
    gc.disable()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    # Over a handle of the parent, which ends with this process.
    source = RequestedBytes(partial(pread_exactly, archive), os.fstat(archive).st_size, label=label)
    inbox, outbox = sys.stdin.buffer, sys.stdout.buffer
    answer: object
    with contextlib.suppress(EOFError):
        while True:
            message = pickle.load(inbox)
            try:
                answer = _write(source, Folder(*folder), *message)
            except Exception as error:  # noqa: BLE001 - raised in the parent
                answer = error
            pickle.dump(answer, outbox, pickle.HIGHEST_PROTOCOL)
            outbox.flush()


def _write(source: ByteSource, folder: Folder, begin: int, end: int, members: Sequence[Member]) -> str:
    data = source.pread(end - begin, begin) if end > begin else b""
    return write_members(source, begin, data, members, folder)

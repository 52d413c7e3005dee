"""Ask fsspec's file systems for facts, listings and bytes: most in the same way, FTP and SFTP by their own commands.

fsspec's walks silently omit whatever cannot be listed (`on_error="omit"`, which applies again below the first level
even if a walk was asked to raise). Its FTP treats an unreadable folder as empty, and lists a whole folder for the facts
on one file. Its open files read ahead. So folders are listed here one by one, and bytes are passed on as they arrive;
fsspec's caches, `get` and `rsync` are not used at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import ftplib
from typing import TYPE_CHECKING, Any, TypeVar

from colabstage.io.pipeline import in_thread

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future

T = TypeVar("T")

# The length of one request: long enough for the round trip not to matter, short enough to hold eight parts of a file
# with two requests each in memory (64 MiB).
PIECE_BYTES = 4 * 1024 * 1024
# No answer may take longer; 4 MiB in this time are 23 kB/s.
CALL_TIMEOUT_S = 180.0
# Listing many millions of objects takes thousands of requests in one call, each with the backend's own deadline.
LISTING_TIMEOUT_S = 1800.0
# For sockets that are read directly.
_SOCKET_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 5.0
_SLICE_BYTES = 1024 * 1024
# Small enough for the slowest tolerated server to answer within the time of a call.
_PART_BYTES = 128 * 1024


class StoreAdapter:
    """Define the calls. Each gets a file system that no other thread uses, unless the table says that it may be
    shared."""

    def call(self, fs: Any, verb: str, ask: Callable[[Any], Any], *, seconds: float) -> Any:
        """Return the result of `ask`, which gets fsspec's method for a verb; `TimeoutError` after `seconds`."""
        raise NotImplementedError

    def lists_at_once(self, fs: Any) -> bool:
        """Return whether its own `find` lists all files below a folder; that of fsspec's base class walks, and omits
        failures."""
        raise NotImplementedError

    def pieces(self, fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        """Return the bytes from `offset` to `end`, or to the file's end, as they arrive; fewer if the file is
        shorter."""
        raise NotImplementedError

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        """Return fsspec's facts on one path: at least `name`, `type`, `size`."""
        fs.invalidate_cache()
        return dict(self.call(fs, "info", lambda info: info(path), seconds=CALL_TIMEOUT_S))

    def exists(self, fs: Any, path: str) -> bool:
        """Return whether there is such a bucket, even an empty one; `False` also if the service refuses to say."""
        return bool(self.call(fs, "exists", lambda exists: exists(path), seconds=CALL_TIMEOUT_S))

    def list_folder(self, fs: Any, path: str) -> list[dict[str, Any]]:
        """Return the same for everything directly in one folder."""
        return list(self.call(fs, "ls", lambda ls: ls(path, detail=True), seconds=LISTING_TIMEOUT_S))

    def find(self, fs: Any, path: str) -> list[dict[str, Any]] | None:
        """Return the same for all files below; `None` if the service cannot list them at once."""
        if not self.lists_at_once(fs):
            return None
        fs.invalidate_cache()
        found = self.call(fs, "find", lambda find: find(path, detail=True), seconds=LISTING_TIMEOUT_S)
        return list(found.values())

    def has_ranges(self, fs: Any) -> bool:
        """Return whether a part can be requested."""
        return True

    def is_usable(self, fs: Any) -> bool:
        """Return whether the connection can take another request."""
        return True

    def close(self, fs: Any) -> None:
        """Close the connection."""


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Call `function()`, but wait for it no longer than `seconds`.

    A call that blocks for longer is left behind in a daemon thread: nothing can interrupt it.

    Raises:
        TimeoutError: it took longer.
    """
    answer = in_thread(function, "colabstage-remote")
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        if answer.done():
            raise
        msg = f"no answer for {seconds:.0f} s"
        raise TimeoutError(msg) from error


class AsyncAdapter(StoreAdapter):
    """Call backends on fsspec's event loop (s3, gs, az): one file system serves every thread."""

    def call(self, fs: Any, verb: str, ask: Callable[[Any], Any], *, seconds: float) -> Any:
        return _result(_start(fs, ask(getattr(fs, f"_{verb}")), seconds), seconds)

    def lists_at_once(self, fs: Any) -> bool:
        from fsspec.asyn import AsyncFileSystem

        return type(fs)._find is not AsyncFileSystem._find

    def pieces(self, fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        if end is None:
            yield from _slices(self.call(fs, "cat_file", lambda cat: cat(path), seconds=CALL_TIMEOUT_S))
            return
        # The next piece is requested while this one is used.
        ahead: list[Future[bytes]] = []
        spans = cut_spans(offset, end)
        try:
            while spans or ahead:
                while spans and len(ahead) < 2:
                    start, stop = spans.pop(0)
                    ahead.append(_start(fs, fs._cat_file(path, start=start, end=stop), CALL_TIMEOUT_S))
                yield from _slices(_result(ahead.pop(0), CALL_TIMEOUT_S))
        finally:
            for future in ahead:
                future.cancel()

    def close(self, fs: Any) -> None:
        if hasattr(fs, "hang_up"):
            with contextlib.suppress(Exception):
                ending = _start(fs, fs.hang_up(), _CLOSE_TIMEOUT_S)
                # The garbage collector may run this in any thread, even in the loop's own: there, waiting for the loop
                # would never end.
                if not _runs_here(fs.loop):
                    _result(ending, _CLOSE_TIMEOUT_S)


class BlockingAdapter(StoreAdapter):
    """Call all other backends: calls block, and it is unknown what they may share."""

    def call(self, fs: Any, verb: str, ask: Callable[[Any], Any], *, seconds: float) -> Any:
        return call_within(seconds, lambda: ask(getattr(fs, verb)))

    def lists_at_once(self, fs: Any) -> bool:
        from fsspec.spec import AbstractFileSystem

        return type(fs).find is not AbstractFileSystem.find

    def pieces(self, fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        file = call_within(CALL_TIMEOUT_S, lambda: fs.open(path, "rb", block_size=PIECE_BYTES, cache_type="none"))
        try:
            file.seek(offset)
            while end is None or offset < end:
                wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - offset)
                data = call_within(CALL_TIMEOUT_S, lambda wanted=wanted: file.read(wanted))  # type: ignore[misc]
                if not data:
                    return
                offset += len(data)
                yield from _slices(data)
        finally:
            file.close()

    def close(self, fs: Any) -> None:
        """Do nothing: these hold nothing open between calls, or close it when they are dropped."""


class MemoryAdapter(BlockingAdapter):
    """Read fsspec's files in memory, where every `open` returns the same object with the same position."""

    def pieces(self, fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        yield from _slices(fs.cat_file(path, start=offset, end=end))


class SftpAdapter(BlockingAdapter):
    """Read by SFTP, which answers 32 KiB per request, so many have to be in flight; paramiko does that for a list of
    parts."""

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        return dict(call_within(CALL_TIMEOUT_S, lambda: _with_timeout(fs).info(path)))

    def list_folder(self, fs: Any, path: str) -> list[dict[str, Any]]:
        rows = call_within(LISTING_TIMEOUT_S, lambda: list(_with_timeout(fs).ls(path, detail=True)))
        return [self._followed(fs, row) if row["type"] == "link" else row for row in rows]

    def pieces(self, fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        end = _with_timeout(fs).ftp.stat(path).st_size if end is None else end
        with fs.ftp.open(path, "rb") as file:
            for start, stop in cut_spans(offset, end):
                # Answers are held in memory until they are read, so the whole file is never requested at once.
                parts = [(at, min(_PART_BYTES, stop - at)) for at in range(start, stop, _PART_BYTES)]
                answers = file.readv(parts)
                for _ in parts:
                    data = call_within(CALL_TIMEOUT_S, lambda answers=answers: next(answers))  # type: ignore[misc]
                    if data:
                        yield data

    def is_usable(self, fs: Any) -> bool:
        transport = fs.client.get_transport()
        return transport is not None and transport.is_active()

    def close(self, fs: Any) -> None:
        fs.client.close()

    def _followed(self, fs: Any, row: dict[str, Any]) -> dict[str, Any]:
        try:
            found = self.info(fs, row["name"])
        except FileNotFoundError:
            return row
        return {**found, "islink": True}


class FtpAdapter(BlockingAdapter):
    """Read by FTP's own commands, over fsspec's connection: one transfer at a time, streamed."""

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        # A line of an answer may come byte by byte, each within the socket's timeout.
        return call_within(CALL_TIMEOUT_S, lambda: self._info(fs, path))

    def list_folder(self, fs: Any, path: str) -> list[dict[str, Any]]:
        return call_within(LISTING_TIMEOUT_S, lambda: self._list_folder(fs, path))

    def _info(self, fs: Any, path: str) -> dict[str, Any]:
        ftp = fs.ftp
        ftp.voidcmd("TYPE I")
        try:
            size = ftp.size(path)
        except ftplib.error_perm as error:
            if _is_unknown_command(error):
                return self._info_from_listing(fs, path)
            ftp.cwd(path)  # a folder, or an error that says why it cannot be read
            return {"name": path, "type": "directory", "size": 0}
        return {"name": path, "type": "file", "size": size, "modify": self._modified(ftp, path)}

    def _list_folder(self, fs: Any, path: str) -> list[dict[str, Any]]:
        try:
            rows = list(fs.ftp.mlsd(path or "/"))
        except ftplib.error_perm as error:
            if not _is_unknown_command(error):
                raise
            lines: list[str] = []
            fs.ftp.dir(path or "/", lines.append)
            return [row for line in lines if (row := _row_of(line, path.rstrip("/"))) is not None]
        kinds = {"dir": "directory", "file": "file"}
        return [
            {**facts, "name": f"{path.rstrip('/')}/{name}", "type": kinds[facts["type"]], "size": facts.get("size", 0)}
            for name, facts in rows
            if facts.get("type") in kinds and name not in {".", ".."}
        ]

    def pieces(self, fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        ftp = fs.ftp

        def start() -> socket.socket:
            ftp.voidcmd("TYPE I")
            return ftp.transfercmd(f"RETR {path}", rest=offset or None)  # type: ignore[no-any-return]

        done = False
        with contextlib.closing(call_within(CALL_TIMEOUT_S, start)) as connection:
            try:
                while end is None or offset < end:
                    data = connection.recv(_SLICE_BYTES if end is None else min(_SLICE_BYTES, end - offset))
                    if not data:
                        break
                    offset += len(data)
                    yield data
                # The file may end where the caller stops reading; then the connection stays usable.
                done = not connection.recv(1)
            finally:
                if not done:
                    ftp.close()
        if done:
            call_within(CALL_TIMEOUT_S, ftp.voidresp)

    def has_ranges(self, fs: Any) -> bool:
        try:
            return call_within(CALL_TIMEOUT_S, lambda: bool(fs.ftp.sendcmd("REST 0").startswith("3")))
        except ftplib.Error:
            return False

    def is_usable(self, fs: Any) -> bool:
        return fs.ftp.sock is not None

    def close(self, fs: Any) -> None:
        fs.ftp.close()

    def _info_from_listing(self, fs: Any, path: str) -> dict[str, Any]:
        path = path.rstrip("/")
        if not path:
            return {"name": "/", "type": "directory", "size": 0}
        rows = self._list_folder(fs, path.rpartition("/")[0] or "/")
        found = next((row for row in rows if row["name"] == path), None)
        if found is None:
            raise FileNotFoundError(path)
        return found

    @staticmethod
    def _modified(ftp: Any, path: str) -> str:
        try:
            return str(ftp.voidcmd(f"MDTM {path}"))[4:].strip()
        except ftplib.error_perm:
            return ""


def that_stays_closed(s3: type[Any]) -> type[Any]:
    """Return a subclass of s3fs's class that can be closed while it is in use.

    s3fs closes its sockets whenever the garbage collector finds it. If it is closed before that, the next request, or
    the next try of a running one, makes a new client, which nobody closes.
    """

    class _Closing(s3):  # type: ignore[misc]
        is_closed = False

        async def set_session(self, refresh: bool = False, kwargs: Any = None) -> Any:
            if self.is_closed:
                msg = "the connection was closed"
                raise RuntimeError(msg)
            return await super().set_session(refresh, kwargs or {})

        async def _call_s3(self, *args: Any, **kwargs: Any) -> Any:
            return await self._until_closed(super()._call_s3(*args, **kwargs))

        # It reads the answers outside its calls, and closing the connection does not end that.
        async def _cat_file(self, *args: Any, **kwargs: Any) -> Any:
            return await self._until_closed(super()._cat_file(*args, **kwargs))

        async def _until_closed(self, work: Any) -> Any:
            # All on the loop's own thread, so that no lock is needed.
            task, tasks = asyncio.current_task(), self.__dict__.setdefault("_tasks_under_way", set())
            if task in tasks:
                return await work
            tasks.add(task)
            try:
                return await work
            finally:
                tasks.discard(task)

        async def hang_up(self) -> None:
            self.is_closed = True
            # Otherwise botocore and s3fs would retry them for up to a minute.
            for task in self.__dict__.get("_tasks_under_way", set()) - {asyncio.current_task()}:
                task.cancel()
            session = getattr(self, "_s3creator", None)
            if session is not None:
                await session.__aexit__(None, None, None)

    return _Closing


def without_leak(ftp: type[Any]) -> type[Any]:
    """Return a subclass of fsspec's class for FTP that closes a connection if the server refuses it afterwards.

    fsspec's constructor leaves it open until Python collects it; until then it counts against the server's limit.
    """

    class _LettingGo(ftp):  # type: ignore[misc]
        def _connect(self) -> None:
            try:
                super()._connect()
            except BaseException:
                connection = getattr(self, "ftp", None)
                if connection is not None:
                    connection.close()
                raise

    return _LettingGo


def _row_of(line: str, folder: str) -> dict[str, Any] | None:
    """Return the facts in a line of a listing for people (as by `ls -l`); `None` for any other line."""
    # Not left to fsspec: before 2026 it took the last word of a name for the whole name, so that another file was read.
    parts = line.split(maxsplit=8)
    if len(parts) < 9 or parts[8] in {".", ".."}:
        return None
    mode, name = parts[0], parts[8]
    if mode.startswith("l"):
        name = name.partition(" -> ")[0]
    is_folder = mode.startswith("d")
    return {
        "name": f"{folder}/{name}",
        "type": "directory" if is_folder else "file",
        "size": 0 if is_folder else int(parts[4]),
        "modify": " ".join(parts[5:8]),
        "unix.mode": mode,
    }


def cut_spans(offset: int, end: int) -> list[tuple[int, int]]:
    """Return the range in pieces; a single last byte is joined to the piece before it.

    So a caller that requests one byte too many, to see whether there is more, never requests that byte alone: services
    answer ranges beyond the end of an object with an error.
    """
    starts = list(range(offset, end, PIECE_BYTES))
    if len(starts) > 1 and end - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], end][: len(starts)], strict=True))


def _slices(data: bytes) -> Iterator[bytes]:
    if len(data) <= _SLICE_BYTES:
        if data:
            yield data
        return
    view = memoryview(data)
    for start in range(0, len(data), _SLICE_BYTES):
        yield bytes(view[start : start + _SLICE_BYTES])


def _start(fs: Any, work: Coroutine[Any, Any, T], seconds: float) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), fs.loop)


def _result(future: Future[T], seconds: float) -> T:
    try:
        # The loop enforces the deadline; this longer one is for a dead loop.
        return future.result(seconds + 10.0)
    except BaseException:
        future.cancel()
        raise


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether an event loop is running in this thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _with_timeout(fs: Any) -> Any:
    fs.ftp.get_channel().settimeout(_SOCKET_TIMEOUT_S)
    return fs


def _is_unknown_command(error: ftplib.error_perm) -> bool:
    return str(error)[:3] in {"500", "501", "502", "504"}

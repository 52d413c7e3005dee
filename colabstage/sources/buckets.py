"""Services that fsspec knows, read and written from many threads, each call with a deadline.

fsspec's walks silently omit whatever cannot be listed, and its open files read ahead; so folders are listed one by one
here, and bytes are passed on as they arrive. fsspec's caches, `get` and `rsync` are not used at all.

No service of this kind has an atomic rename, and few have locks. But an object appears under its name when all of it
has arrived, and most services can be asked to write one only where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ftplib
import inspect
import threading
import warnings
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

from colabstage.errors import (
    ColabstageError,
    MissingDependencyError,
    OptionError,
    SourceAccessError,
    SourceError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
    TargetNotWritableError,
)
from colabstage.io.files import Closing
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.redaction import secrets_in, show_address
from colabstage.sources.fsspec_answers import mtime_ns_of, size_of, translate_error, version_of
from colabstage.sources.remote import at_least_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from colabstage.io.progress import Clock

T = TypeVar("T")

# The length of one request: long enough for the round trip not to matter, short enough to hold eight parts of a file
# with two requests each in memory (64 MiB).
PIECE_BYTES = 4 * 1024 * 1024
_SLICE_BYTES = 1024 * 1024
# No answer may take longer; 4 MiB in this time are 23 kB/s.
CALL_TIMEOUT_S = 180.0
# Listing many millions of objects takes thousands of requests in one call, each with the backend's own deadline.
LISTING_TIMEOUT_S = 1800.0
# Uploads have this much time beside what the file's length allows for.
_PATIENCE_S = 600.0
_SLOWEST_BYTES_PER_S = 200_000
_HINT_TIMEOUT_S = 10.0
# Beyond the deadline of a call, for an event loop that is dead itself.
_GRACE_S = 10.0

# The package for each protocol, by its name for pip.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hf": "huggingface_hub",
    "smb": "smbprotocol",
    "webdav": "webdav4[fsspec]",
    "oss": "ossfs",
    "oci": "ocifs",
    "box": "boxfs",
    "dropbox": "dropboxdrivefs",
    "git": "pygit2",
    "tos": "tosfs",
    "wandb": "wandbfs",
    "lakefs": "lakefs-spec",
    "dvc": "dvc",
    "root": "fsspec-xrootd",
    "hdfs": "pyarrow",
}
# Options for access without a login, for backends that do not try it themselves.
_ANONYMOUS: dict[str, dict[str, Any]] = {
    **{protocol: {"anon": True} for protocol in ("s3", "s3a", "az", "abfs", "abfss")},
    **{protocol: {"token": "anon"} for protocol in ("gs", "gcs")},
}
# Options that choose a login, after which no other one is tried.
_LOGIN_OPTIONS = frozenset(
    {"anon", "token", "key", "secret", "username", "password", "profile", "account_key", "sas_token", "credential"}
)
_DEFAULTS: dict[str, dict[str, Any]] = {
    # By default botocore keeps ten connections, too few for thirty reads in flight.
    **{key: {"config_kwargs": {"max_pool_connections": 40}} for key in ("s3", "s3a")},
    **{key: {"timeout": 30.0, "banner_timeout": 30.0, "auth_timeout": 30.0} for key in ("sftp", "ssh")},
}
_WRAPPERS = frozenset(
    {"simplecache", "filecache", "blockcache", "cached", "reference", "generic", "dir", "async_wrapper"}
)
# Connections of a backend that cannot be shared by threads; servers often allow four per address.
_CONNECTIONS = 4


class StoredObject(NamedTuple):
    """One object as its service describes it."""

    size: int
    """Bytes."""
    mtime_ns: int
    """When it was written, in nanoseconds since 1970; 0 where the service does not say."""
    version: str
    """A text that is another one when the content is; "" where there is none."""


def _stored(info: Mapping[str, Any]) -> StoredObject:
    return StoredObject(size_of(info) or 0, mtime_ns_of(info), version_of(info))


class ObjectStore(Closing):
    """The service behind an address. Every method may be called from any thread; each has a deadline.

    Backends on fsspec's event loop (s3, gs, az) serve all threads with one file system; of all others it is unknown
    what they may share, so each thread has one while it asks. Methods that write raise `TargetNotWritableError` where
    the service does not do it.

    `label`: the address for messages, without secrets. `path`: the backend's name for the object or folder. `notes`:
    sentences for the user, for example that the service was asked without a login. `folders_are_prefixes`: whether a
    file can have the name of a folder. `connections`: how many parts of one file it sends concurrently at full speed.
    """

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Load the backend; the service itself is not contacted yet.

        Raises:
            OptionError: fsspec does not know the protocol, or the address goes through one of its caches.
            MissingDependencyError: the protocol's package is not installed.
        """
        self.label = show_address(url)
        self.protocol = _protocol(url, self.label)
        self._class = _load(self.protocol, self.label)
        given = _from_environment(self._class)
        try:
            in_url, self.path = _options_and_path(self._class, url)
        except ValueError:
            msg = f"'{self.label}' is not a complete address."
            raise OptionError(msg) from None
        self._chose_login = not _LOGIN_OPTIONS.isdisjoint([*given, *in_url])
        self._options = {**_DEFAULTS.get(self.protocol, {}), **given, **in_url}
        self._secrets = secrets_in(self._options)
        self._clock = clock
        self.folders_are_prefixes = self._on_loop = bool(self._class.async_impl)
        self._shared = self._on_loop or self.protocol == "memory"
        self.connections = 8 if self._on_loop else _CONNECTIONS
        self.notes: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._idle: deque[Any] = deque()
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        # Done when the store is closed, so that whoever waits for an answer is woken.
        self._closed: Future[None] = Future()

    def info(self, path: str = "") -> dict[str, Any]:
        """Return fsspec's facts on the address itself, or on another path.

        Raises:
            SourceNotFoundError: there is nothing; the message says what is there instead.
            SourceAccessError, TransientError, SourceReadError: as the service answers.
        """
        asked = path or self.path
        try:
            found = self._info(asked)
        except SourceAccessError as refused:
            return self._anonymously(asked, refused)
        except SourceNotFoundError as error:
            raise SourceNotFoundError(f"{error} {self._neighbours(asked)}".strip()) from None
        # From now on a refusal means that the login has expired, and others may be reading with it, so it is kept.
        self._chose_login = True
        return found

    def list_files(self, *, workers: int) -> list[dict[str, Any]]:
        """Return fsspec's facts on everything below the address except folders, in the service's order.

        Raises:
            SourceAccessError, TransientError, SourceReadError: as the service answers, for any of the folders.
        """
        if self._lists_at_once():
            found = self._ask("find", self.path, detail=True, seconds=LISTING_TIMEOUT_S)
            return [row for row in found.values() if row.get("type") != "directory"]
        files: list[dict[str, Any]] = []
        level = [self.path]
        with ThreadPoolExecutor(max(1, workers), thread_name_prefix="colabstage-list") as pool:
            while level:
                rows = [row for listed in pool.map(self.list_folder, level) for row in listed]
                # A link to a folder may lead back to a parent of it.
                level = [row["name"] for row in rows if row["type"] == "directory" and not row.get("islink")]
                files += (row for row in rows if row["type"] != "directory" or row.get("islink"))
        return files

    def list_folder(self, path: str) -> list[dict[str, Any]]:
        """Return the same for everything directly in one folder, folders included."""
        rows = self._ask("ls", path, detail=True, seconds=LISTING_TIMEOUT_S)
        if not rows and self.protocol == "ftp":
            with self._connected() as fs:
                self._within(lambda: _check_listable(fs.ftp, path))
        return [self._followed(row) for row in rows if str(row["name"]).rstrip("/") != path.rstrip("/")]

    def read(self, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        """Yield bytes of one object from `offset` to `end` or its own end, in pieces of at most a megabyte.

        Raises:
            SourceNotFoundError, SourceAccessError, TransientError, SourceReadError: as the service answers.
        """
        with self._connected() as fs:
            yield from at_least_rate(self._pieces(fs, path, offset, end), self.label, clock=self._clock)

    def exists(self, path: str) -> bool:
        """Return whether there is an object, a folder, or a bucket."""
        try:
            self._info(path)
        except SourceNotFoundError:
            # The s3fs of Colab's image knows nothing of an empty bucket; asked whether there is one, it looks for it.
            # Asked last, because fsspec answers no as well where a login is missing, which the first question says.
            is_bucket = bool(path) and "/" not in path.strip("/")
            return is_bucket and bool(self._ask("exists", path))
        return True

    def look(self, path: str) -> StoredObject | None:
        """Return the facts on an object; `None` where there is none."""
        try:
            info = self._info(path)
        except SourceNotFoundError:
            return None
        return None if info.get("type") == "directory" else _stored(info)

    def objects(self, folder: str) -> dict[str, StoredObject]:
        """Return what is directly in a folder now, by name; nothing where there is no such folder."""
        try:
            found = self._ask("ls", folder, detail=True, seconds=LISTING_TIMEOUT_S)
        except SourceNotFoundError:
            return {}
        return {str(row["name"]).rpartition("/")[2]: _stored(row) for row in found if row.get("type") == "file"}

    def size(self, path: str) -> int | None:
        """Return the length of an object in bytes; `None` where there is none."""
        found = self.look(path)
        return None if found is None else found.size

    def content(self, path: str, size: int | None = None) -> bytes | None:
        """Return all of a small object, by one request where its size is known; `None` where there is none."""
        try:
            return b"".join(self.read(path, 0, size))
        except SourceNotFoundError:
            return None

    def put(
        self, file: Path, path: str, *, create: bool = False, advance: Callable[[int], object] = lambda _: None
    ) -> None:
        """Write a local file to an object, and make sure that all of it arrived.

        Args:
            file: what to write.
            path: where to; what is there is replaced, unless `create`.
            create: write only where nothing is; where the service knows that question, it decides in one step.
            advance: called with the number of bytes that were sent; what it raises ends the upload.

        Raises:
            TargetExistsError: `create`, and there is an object.
        """
        from fsspec.callbacks import Callback

        class Advance(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                advance(inc)

        length = file.stat().st_size
        seconds = _PATIENCE_S + length / _SLOWEST_BYTES_PER_S
        # Not every backend without a loop takes one.
        callback: dict[str, Any] = {"callback": Advance()} if self._on_loop else {}
        self._write(path, "put_file", str(file), path, create=create, seconds=seconds, **callback)
        if (there := self.size(path)) != length:
            msg = f"Of '{file}', {length:,} bytes long, {there} bytes arrived as '{path}' at '{self.label}'."
            raise TargetNotWritableError(msg)

    def put_bytes(self, content: bytes, path: str, *, create: bool = False) -> None:
        """Write a small object; as `put`."""
        self._write(path, "pipe_file", path, content, create=create, seconds=_PATIENCE_S)

    @property
    def copies_parts(self) -> bool:
        """Return whether `call` has the methods of S3, by which an object is put together of parts of others."""
        return hasattr(self._class, "_call_s3")

    def call(self, path: str, method: str, arguments: Mapping[str, Any]) -> Any:
        """Return what one of S3's own methods returns for an object, given its further arguments."""
        bucket, _, key = path.partition("/")
        try:
            return self._ask("call_s3", method, Bucket=bucket, Key=key, seconds=_PATIENCE_S, **arguments)
        except SourceError as error:
            msg = f"'{path}' cannot be written at '{self.label}': {error}"
            raise TargetNotWritableError(msg) from error

    def move(self, path: str, to: str) -> None:
        """Give an object another name, without its bytes coming here where the service can do that."""
        from fsspec.spec import AbstractFileSystem

        if self._on_loop or self._class.mv is AbstractFileSystem.mv:
            self._change(to, "cp_file", path, to)
            self._change(to, "rm_file", path)
        else:
            self._change(to, "mv", path, to)

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        if self.exists(path):
            self._change(path, "rm_file", path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder that is empty; where folders are no more than beginnings of names there is none."""
        if not self._on_loop and self.exists(path):
            self._change(path, "rmdir", path)

    def close(self) -> None:
        """Close the connections, and wake whoever waits for an answer. Calling it twice is fine."""
        with self._lock:
            if not self._closed.done():
                self._closed.set_result(None)
            idle = list(self._idle)
            self._idle.clear()
        for fs in idle:
            _hang_up(fs)

    def _info(self, path: str) -> dict[str, Any]:
        return dict(self._ask("info", path))

    def _ask(self, verb: str, *arguments: Any, seconds: float | None = None, **options: Any) -> Any:
        """Return what the backend's method `verb` returns now."""
        seconds = CALL_TIMEOUT_S if seconds is None else seconds
        with self._connected() as fs:
            # fsspec keeps listings, and others write there too.
            fs.invalidate_cache()
            return self._result(self._start(fs, verb, *arguments, seconds=seconds, **options), seconds)

    def _start(self, fs: Any, verb: str, *arguments: Any, seconds: float, **options: Any) -> Future[Any]:
        if self._on_loop:
            work = getattr(fs, f"_{verb}")(*arguments, **options)
            return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), fs.loop)
        return in_thread(lambda: getattr(fs, verb)(*arguments, **options), "colabstage-remote")

    def _result(self, future: Future[T], seconds: float) -> T:
        """Wait for an answer, but not for longer than `seconds`, and not in a store that is closed."""
        both: list[Future[Any]] = [future, self._closed]
        wait(both, seconds + (_GRACE_S if self._on_loop else 0.0), FIRST_COMPLETED)
        if future.done():
            return future.result()
        # A call that blocks is left behind in its thread: nothing can interrupt it.
        future.cancel()
        self._check_open()
        msg = f"no answer for {seconds:.0f} s"
        raise TimeoutError(msg)

    def _within(self, call: Callable[[], T]) -> T:
        """Return what a call of a backend's own returns, if it does in time."""
        self._check_open()
        return self._result(in_thread(call, "colabstage-remote"), CALL_TIMEOUT_S)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        """Lend a file system to this thread, and translate what goes wrong with it."""
        try:
            with contextlib.nullcontext() if self._shared else self._free:
                fs = self._take()
                usable = self._shared
                try:
                    yield fs
                    usable = True
                except GeneratorExit:
                    usable = True
                    raise
                finally:
                    # After an error the protocol may be out of step, so that the next request gets the previous
                    # one's answer.
                    self._give_back(fs, usable=usable)
        except ColabstageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is told in our words
            # Closing aborts requests with many different errors.
            self._check_open()
            raise translate_error(error, self.protocol, self.label, self._secrets) from None

    def _take(self) -> Any:
        with self._lock:
            self._check_open()
            if self._idle:
                return self._idle[0] if self._shared else self._idle.pop()
            if self._shared:
                self._idle.append(self._make())
                return self._idle[0]
        return self._make()

    def _make(self) -> Any:
        made = in_thread(lambda: self._class(**self._options, skip_instance_cache=True), "colabstage-remote")
        return self._result(made, CALL_TIMEOUT_S)

    def _give_back(self, fs: Any, *, usable: bool) -> None:
        if self._shared:
            return
        with self._lock:
            keep = usable and not self._closed.done()
            if keep:
                self._idle.append(fs)
        if not keep:
            _hang_up(fs)

    def _check_open(self) -> None:
        """Refuse to go on after `close`: nobody would close a connection that is made then."""
        if self._closed.done():
            msg = f"'{self.label}' was closed, so nothing more can be read of it."
            raise SourceReadError(msg)

    def _lists_at_once(self) -> bool:
        """Return whether the backend's own `find` lists all files below a folder; that of fsspec's base classes walks,
        and omits failures."""
        from fsspec.asyn import AsyncFileSystem
        from fsspec.spec import AbstractFileSystem

        if self._on_loop:
            return self._class._find is not AsyncFileSystem._find
        return self._class.find is not AbstractFileSystem.find

    def _followed(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the facts on what a link leads to, if it leads anywhere."""
        if row["type"] in ("file", "directory"):
            return row
        with contextlib.suppress(SourceNotFoundError):
            return {**self._info(row["name"]), "name": row["name"], "islink": True}
        return row

    def _pieces(self, fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        from fsspec.spec import AbstractFileSystem

        # Some backends have a request for a part; the base class opens the file for each.
        if not self._on_loop and self._class.cat_file is AbstractFileSystem.cat_file:
            yield from self._pieces_of_open_file(fs, path, offset, end)
            return
        # Without an end, all is one request.
        spans = deque(cut_spans(offset, end) if end is not None else [(offset, None)])
        ahead: deque[Future[bytes]] = deque()
        try:
            while spans or ahead:
                # The next piece is requested while this one is used.
                while spans and len(ahead) < (2 if self._on_loop else 1):
                    start, stop = spans.popleft()
                    span = {"start": start, "end": stop} if start or stop is not None else {}
                    ahead.append(self._start(fs, "cat_file", path, seconds=CALL_TIMEOUT_S, **span))
                yield from _slices(self._result(ahead.popleft(), CALL_TIMEOUT_S))
        finally:
            for future in ahead:
                future.cancel()

    def _pieces_of_open_file(self, fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        file = self._within(lambda: fs.open(path, "rb", block_size=PIECE_BYTES, cache_type="none"))
        try:
            while end is None or offset < end:
                wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - offset)
                data = self._within(lambda at=offset, length=wanted: _read_at(file, at, length))  # type: ignore[misc]
                if not data:
                    return
                offset += len(data)
                yield from _slices(data)
        finally:
            file.close()

    def _anonymously(self, path: str, refused: SourceAccessError) -> dict[str, Any]:
        """Ask once more without a login."""
        # Public buckets allow that, and most notebooks have no login.
        anonymous = _ANONYMOUS.get(self.protocol)
        if anonymous is None or self._chose_login:
            raise refused
        self._chose_login = True
        self._options = {**self._options, **anonymous}
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        for fs in idle:
            _hang_up(fs)
        try:
            answer = self._info(path)
        except SourceAccessError:
            raise refused from None
        self.notes = (f"'{self.label}' was read anonymously: no login was found that it accepts.",)
        return answer

    def _neighbours(self, path: str) -> str:
        """Return a sentence about the contents of the folder where nothing was found; "" if listing it takes long."""
        folder = path.rstrip("/").rpartition("/")[0]
        if not folder.strip("/") and self.protocol not in {"memory", "ftp"}:
            return ""
        try:
            rows = self._ask("ls", folder, detail=True, seconds=_HINT_TIMEOUT_S)
        except SourceError:
            return ""
        names = sorted(str(row["name"]).rstrip("/").rpartition("/")[2] for row in rows)
        if not names:
            return ""
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        return f"In its folder are: {', '.join(names[:5])}{more}."

    def _write(self, path: str, verb: str, *arguments: Any, create: bool, seconds: float, **options: Any) -> None:
        """Write with the backend's own `mode="create"` where it has that, otherwise after a look."""
        if not self._on_loop:
            self._change(path, "makedirs", path.rpartition("/")[0], exist_ok=True)
        if create and self._creates(verb):
            try:
                self._change(path, verb, *arguments, seconds=seconds, mode="create", **options)
            except TargetNotWritableError as error:
                if self.exists(path):
                    raise self._occupied(path) from error
                # The service may not know the condition.
            else:
                return
        if create and self.exists(path):
            raise self._occupied(path)
        self._change(path, verb, *arguments, seconds=seconds, **options)

    def _creates(self, verb: str) -> bool:
        method = getattr(self._class, f"_{verb}" if self._on_loop else verb)
        return "mode" in inspect.signature(method).parameters

    def _occupied(self, path: str) -> TargetExistsError:
        msg = f"'{path}' at '{self.label}' appeared there meanwhile, so nothing was written. Try again."
        return TargetExistsError(msg)

    def _change(self, path: str, verb: str, *arguments: Any, seconds: float = _PATIENCE_S, **options: Any) -> None:
        try:
            self._ask(verb, *arguments, seconds=seconds, **options)
        except SourceError as error:
            msg = f"'{path}' cannot be written at '{self.label}': {error}"
            raise TargetNotWritableError(msg) from error


def _hang_up(fs: Any) -> None:
    """Close what a file system holds; those on the loop close their sockets when they are collected."""
    for name in ("client", "ftp"):
        with contextlib.suppress(Exception):
            getattr(fs, name).close()


def _check_listable(ftp: ftplib.FTP, path: str) -> None:
    """Ask for a folder that fsspec shows as empty, which it also does where it may not be listed.

    Raises:
        ftplib.error_perm: it may not be listed.
    """
    try:
        list(ftp.mlsd(path))
    except ftplib.error_perm as error:
        # Old servers do not know the command.
        if not str(error).startswith("50"):
            raise


def _read_at(file: Any, offset: int, length: int) -> bytes:
    # SFTP answers 32 KiB per request, so many have to be in flight; paramiko does that for a list of parts.
    if hasattr(file, "readv"):
        return b"".join(file.readv([(offset, length)]))
    file.seek(offset)
    return bytes(file.read(length))


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


def _protocol(url: str, label: str) -> str:
    protocol, mark, rest = url.partition("://")
    if not mark or not rest.strip("/"):
        msg = f"'{label}' is not a remote address; expected one such as s3://bucket/folder."
        raise OptionError(msg)
    if "::" in protocol or "::" in rest.partition("/")[0] or protocol in _WRAPPERS:
        msg = f"'{label}' goes through one of fsspec's caches or wrappers. Name the file itself."
        raise OptionError(msg)
    return protocol.lower()


def _load(protocol: str, label: str) -> Any:
    import fsspec

    try:
        return fsspec.get_filesystem_class(protocol)
    except ValueError:
        msg = (
            f"'{label}': nothing here reads {protocol}:// addresses. Known are {', '.join(sorted(_PACKAGES))} and more."
        )
        raise OptionError(msg) from None
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        how = f"Install it with: pip install {package}" if package else str(error)
        msg = f"Reading '{label}' needs a package that is not installed here. {how}"
        raise MissingDependencyError(msg) from error


def _options_and_path(backend: Any, url: str) -> tuple[dict[str, Any], str]:
    """Return the options in an address, and its path."""
    options = dict(backend._get_kwargs_from_urls(url))
    for name in ("url_query", "url_fragment"):
        options.pop(name, None)
    for name in ("username", "password"):
        # fsspec does not decode them, and in an address an @ has to be written as %40.
        if isinstance(options.get(name), str):
            options[name] = unquote(options[name])
    return options, str(backend._strip_protocol(url))


def _from_environment(backend: Any) -> dict[str, Any]:
    """Return options from variables such as FSSPEC_SFTP_PASSWORD, as they are now: fsspec reads them at its import."""
    from fsspec.config import set_conf_env

    found: dict[str, dict[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned about misspelt ones when it was imported
        set_conf_env(found)
    protocols = (backend.protocol,) if isinstance(backend.protocol, str) else tuple(backend.protocol)
    return {name: value for protocol in protocols for name, value in found.get(protocol, {}).items()}

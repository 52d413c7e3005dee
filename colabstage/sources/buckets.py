"""Services that fsspec knows, read and written from many threads, each call with a deadline.

fsspec's walks silently omit whatever cannot be listed, and its open files read ahead; so folders are listed one by one
here, and bytes are passed on as they arrive. fsspec's caches, `get` and `rsync` are not used at all.

No service of this kind has an atomic rename, and few have locks. But an object appears under its name only when all of
it has arrived, and most services can write one only if the name is free.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
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
from colabstage.io.progress import Cancellation
from colabstage.io.units import secrets_in, show_address
from colabstage.sources.fsspec_answers import mtime_ns_of, size_of, translate_error, version_of
from colabstage.sources.parse import protocol_of
from colabstage.sources.remote import Services, StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


T = TypeVar("T")

# The length of one request: long enough that the round trip does not matter, short enough to hold eight parts of a file
# with two requests each in memory (64 MiB).
PIECE_BYTES = 4 * 1024 * 1024
_SLICE_BYTES = 1024 * 1024
# No response may take longer; 4 MiB in this time are 23 kB/s.
CALL_TIMEOUT_S = 180.0
# Listing many millions of objects takes thousands of requests in one call, each with the backend's own deadline.
LISTING_TIMEOUT_S = 1800.0
# Uploads get this much time in addition to what the file's length allows.
_PATIENCE_S = 600.0
_SLOWEST_BYTES_PER_S = 200_000
# Connections of a backend that cannot be shared by threads; servers often allow four per address.
_CONNECTIONS = 4

_S3, _GS, _AZ, _SSH = ("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss"), ("sftp", "ssh")
# The package that pip installs for a protocol. For other protocols fsspec's own error names it.
_PACKAGES = {
    **dict.fromkeys(_S3, "s3fs"),
    **dict.fromkeys(_GS, "gcsfs"),
    **dict.fromkeys(_AZ, "adlfs"),
    **dict.fromkeys(_SSH, "paramiko"),
    "hf": "huggingface_hub",
}
# Options for access without a login, for backends that do not try it themselves.
_ANONYMOUS: dict[str, dict[str, Any]] = {
    **{protocol: {"anon": True} for protocol in (*_S3, *_AZ)},
    **{protocol: {"token": "anon"} for protocol in _GS},
}
# Options that choose a login, so that no other one is tried.
_LOGIN_OPTIONS = frozenset(
    {"anon", "token", "key", "secret", "username", "password", "profile", "account_key", "sas_token", "credential"}
)
_DEFAULTS: dict[str, dict[str, Any]] = {
    # By default botocore keeps ten connections, too few for thirty reads in flight.
    **{protocol: {"config_kwargs": {"max_pool_connections": 40}} for protocol in _S3},
    **{protocol: {"timeout": 30.0, "banner_timeout": 30.0, "auth_timeout": 30.0} for protocol in _SSH},
}


class _Service(Closing):
    """The connections to a service with one login, for all addresses in one bucket."""

    def __init__(self, backend: Any, options: dict[str, Any]) -> None:
        self.options = options
        self.has_login = not _LOGIN_OPTIONS.isdisjoint(options)
        self.is_anonymous = False
        self.is_shared = bool(backend.async_impl) or backend.protocol == "memory"
        self.lock, self.trying = threading.Lock(), threading.Lock()
        # File systems that no thread uses; one that all share stays here.
        self.idle: list[Any] = []
        self.free = threading.BoundedSemaphore(1 << 20 if self.is_shared else _CONNECTIONS)
        # What is below a folder, by the path with a star that it was listed for, until that is opened.
        self.listings: dict[str, list[dict[str, Any]]] = {}

    def use(self, options: dict[str, Any]) -> None:
        self.options = options
        self.close()

    def close(self) -> None:
        with self.lock:
            idle, self.idle = self.idle, []
        self.listings.clear()
        for fs in idle:
            _hang_up(fs)


class ObjectStore(Closing):
    """The service behind an address. Every method may be called from any thread; each has a deadline, and raises
    `SourceNotFoundError`, `SourceAccessError`, `TransientError` or `SourceReadError`, or `TargetNotWritableError` when
    it writes, according to the service's response.

    Backends on fsspec's event loop (s3, gs, az) serve all threads with one file system. What others may share is
    unknown, so each thread has one to itself during a call.

    `label`: the address for messages, without secrets. `path`: the backend's name for the object or folder. `notes`:
    sentences for the user, for example that the service was read without a login. `folders_are_prefixes`: whether a
    file can have the name of a folder. `connections`: how many parts of one file it sends concurrently at full speed.
    """

    def __init__(self, url: str, cancellation: Cancellation | None = None, services: Services | None = None) -> None:
        """Load the backend; the service itself is not contacted yet. `cancellation` ends all calls at once.
        `services`: have the connections, and outlive this; by default it has its own."""
        self.label, self._url = show_address(url), url
        self.protocol = protocol_of(url)
        self._class = _load(self.protocol, self.label)
        given = _options_of_environment(self._class)
        try:
            in_url = _options_in_url(self._class, url)
            self.path = str(self._class._strip_protocol(url))
        except ValueError:
            msg = f"'{self.label}' is not a complete address."
            raise OptionError(msg) from None
        options = {**_DEFAULTS.get(self.protocol, {}), **given, **in_url}
        self._secrets = secrets_in(options)
        self._services, self._owns_services = services or Services(), services is None
        # A bucket may be public although others need a login.
        key = self._class, self.path.partition("/")[0], repr(sorted(options.items()))
        self._service = self._services.of(key, lambda: _Service(self._class, options))
        self.listings = self._service.listings
        self.folders_are_prefixes = self._on_loop = bool(self._class.async_impl)
        self.connections = 8 if self._on_loop else _CONNECTIONS
        # Completed when the store is closed, to wake callers that wait for a response.
        self._closed: Future[None] = Future()
        self._cancellation = cancellation or Cancellation()
        self._leave = self._cancellation.follow(self._wake)

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str]]:
        # Another process has its own connections, and its own login.
        return ObjectStore, (self._url,)

    def open_again(self) -> ObjectStore | None:
        """Return one for the same address with the same connections, if these outlive this one."""
        return None if self._owns_services else ObjectStore(self._url, self._cancellation, self._services)

    @property
    def is_closed(self) -> bool:
        return self._closed.done()

    @property
    def notes(self) -> tuple[str, ...]:
        if not self._service.is_anonymous:
            return ()
        return (f"'{self.label}' was read anonymously: no login was found that it accepts.",)

    def info(self, path: str = "") -> dict[str, Any]:
        """Return fsspec's facts on the address itself, or on another path."""
        asked, options = path or self.path, self._service.options
        try:
            found = dict(self._ask("info", asked))
        except SourceAccessError as refused:
            with self._service.trying:
                found = self._info_anonymously(asked, refused, options)
        # From now on a refusal means that the login has expired. It is kept, because other threads may use it.
        self._service.has_login = True
        return found

    def _info_anonymously(self, path: str, refused: SourceAccessError, options: dict[str, Any]) -> dict[str, Any]:
        anonymous, service = _ANONYMOUS.get(self.protocol), self._service
        # Another thread may have tried it meanwhile.
        if service.options is options:
            # Public buckets allow it, and most notebooks have no login.
            if anonymous is None or service.has_login:
                raise refused
            service.use({**options, **anonymous})
        try:
            answer = dict(self._ask("info", path))
        except SourceAccessError:
            if not service.has_login:
                service.use(options)
            raise refused from None
        service.is_anonymous = True
        return answer

    def list_files(self, *, workers: int) -> list[dict[str, Any]]:
        """Return fsspec's facts about everything below the address except folders, in the service's order. A folder
        that cannot be listed is an error."""
        from fsspec.asyn import AsyncFileSystem
        from fsspec.spec import AbstractFileSystem

        # A backend's own `find` lists all at once; that of fsspec's base classes walks, and omits failures.
        walks = (
            self._class._find is AsyncFileSystem._find if self._on_loop else self._class.find is AbstractFileSystem.find
        )
        if not walks:
            found = self._ask("find", self.path, detail=True, seconds=LISTING_TIMEOUT_S)
            return [row for row in found.values() if row.get("type") != "directory"]
        files: list[dict[str, Any]] = []
        level = [self.path]
        with ThreadPoolExecutor(max(1, workers), thread_name_prefix="colabstage-list") as pool:
            while level:
                rows = [row for listed in pool.map(self.list_folder, level) for row in listed]
                level = [row["name"] for row in rows if row["type"] == "directory"]
                files += (row for row in rows if row["type"] != "directory")
        return files

    def list_folder(self, path: str) -> list[dict[str, Any]]:
        """Return the same for everything directly in one folder, folders included."""
        rows = self._ask("ls", path, detail=True, seconds=LISTING_TIMEOUT_S)
        return [row for row in rows if str(row["name"]).rstrip("/") != path.rstrip("/")]

    def read(self, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        """Yield bytes of one object from `offset` to `end` or its own end, in pieces of at most a megabyte."""
        # Without an end, there is a single request.
        spans = deque([(offset, end)])
        if end is not None:
            spans = deque((start, min(start + PIECE_BYTES, end)) for start in range(offset, end, PIECE_BYTES))
        ahead: deque[Future[bytes]] = deque()
        with self._connected() as fs, self._requests(fs, path) as ask:
            try:
                while spans or ahead:
                    self._check_open()
                    # The next piece is requested while this one is used.
                    while spans and len(ahead) < (2 if self._on_loop else 1):
                        ahead.append(ask(*spans.popleft()))
                    data = self._result(ahead.popleft(), CALL_TIMEOUT_S)
                    for at in range(0, len(data), _SLICE_BYTES):
                        yield data[at : at + _SLICE_BYTES] if len(data) > _SLICE_BYTES else data
            finally:
                for future in ahead:
                    future.cancel()

    @contextlib.contextmanager
    def _requests(self, fs: Any, path: str) -> Iterator[Callable[[int, int | None], Future[bytes]]]:
        """Yield a function that requests a part of an object, given its beginning and end."""
        from fsspec.spec import AbstractFileSystem

        def cat(start: int, stop: int | None) -> Future[bytes]:
            span = {"start": start, "end": stop} if start or stop is not None else {}
            return self._start(fs, "cat_file", path, **span)

        # Some backends have a request for a part; the base class opens the file each time.
        if self._on_loop or self._class.cat_file is not AbstractFileSystem.cat_file:
            yield cat
            return
        opening = in_thread(lambda: fs.open(path, "rb", block_size=PIECE_BYTES, cache_type="none"), "colabstage-remote")
        with contextlib.closing(self._result(opening, CALL_TIMEOUT_S)) as file:
            yield lambda start, stop: in_thread(lambda: _read_at(file, start, stop), "colabstage-remote")

    def exists(self, path: str) -> bool:
        # The s3fs of Colab's image does not recognise an empty bucket unless asked whether it exists. Asked last,
        # because fsspec also answers no if a login is missing, which the first call reports.
        is_bucket = bool(path) and "/" not in path.strip("/")
        return self._found("info", path) is not None or (is_bucket and bool(self._ask("exists", path)))

    def objects(self, folder: str) -> dict[str, StoredFile]:
        """Return the present objects directly in one folder, by name; empty if there is no such folder."""
        found = self._found("ls", folder, detail=True, seconds=LISTING_TIMEOUT_S) or ()
        return {
            str(row["name"]).rpartition("/")[2]: StoredFile(size_of(row) or 0, mtime_ns_of(row), version_of(row))
            for row in found
            if row.get("type") == "file"
        }

    def size(self, path: str) -> int | None:
        info = self._found("info", path)
        return None if info is None or info.get("type") == "directory" else size_of(info) or 0

    def _found(self, verb: str, path: str, **options: Any) -> Any:
        """Return an answer about something that need not exist; `None` if it does not."""
        try:
            return self._ask(verb, path, **options)
        except SourceNotFoundError:
            return None

    def content(self, path: str) -> bytes | None:
        try:
            return b"".join(self.read(path, 0, None))
        except SourceNotFoundError:
            return None

    def put(
        self, file: Path, path: str, *, create: bool = False, advance: Callable[[int], object] = lambda _: None
    ) -> None:
        """Write a local file to an object, and make sure that all of it arrived.

        `create`: write only if the name is free; if the service knows this condition, it decides in one step. `advance`
        is called with the number of bytes sent; an error that it raises ends the upload.
        """
        from fsspec.callbacks import Callback

        class Advance(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                advance(inc)

        length = file.stat().st_size
        seconds = _PATIENCE_S + length / _SLOWEST_BYTES_PER_S
        # Not every backend without a loop accepts one.
        callback: dict[str, Any] = {"callback": Advance()} if self._on_loop else {}
        self._write(path, "put_file", str(file), path, create=create, seconds=seconds, **callback)
        if (arrived := self.size(path)) is None:
            raise self._taken(path)
        if arrived != length:
            msg = f"Of '{file}', {length:,} bytes long, {arrived} bytes arrived as '{path}' at '{self.label}'."
            raise TargetNotWritableError(msg)

    def put_bytes(self, content: bytes, path: str, *, create: bool = False, version: str = "") -> None:
        """Write an object; with `version`, only over that version of it."""

        def put() -> None:
            self._write(path, "pipe_file", path, content, create=create, seconds=_PATIENCE_S)

        self._if_same(path, version, put, "put_object", Body=content)

    def _write(self, path: str, verb: str, *arguments: Any, create: bool, seconds: float, **options: Any) -> None:
        """Write with the backend's own `mode="create"` if it has that, otherwise after a look."""
        if not self._on_loop:
            self._change(path, "makedirs", path.rpartition("/")[0], exist_ok=True)
        method = getattr(self._class, f"_{verb}" if self._on_loop else verb)
        if create and "mode" in inspect.signature(method).parameters:
            # The service may not know the condition; then it is as if there were no such mode.
            with contextlib.suppress(TargetNotWritableError):
                self._change(path, verb, *arguments, seconds=seconds, mode="create", **options)
                return
        if create and self.exists(path):
            raise self._taken(path)
        self._change(path, verb, *arguments, seconds=seconds, **options)

    def _taken(self, path: str) -> TargetExistsError:
        msg = f"'{path}' at '{self.label}' was written or removed by another process meanwhile. Try again."
        return TargetExistsError(msg)

    def call(self, path: str, method: str, arguments: Mapping[str, Any]) -> Any:
        """Call one of S3's own methods for an object with further arguments, and return its result."""
        bucket, _, key = path.partition("/")
        return self._change(path, "call_s3", method, Bucket=bucket, Key=key, **arguments)

    def move(self, path: str, to: str) -> None:
        """Rename an object, without downloading its bytes if the service can do that."""
        if self._on_loop:
            self._change(to, "cp_file", path, to)
            self._change(to, "rm_file", path)
        else:
            self._change(to, "mv", path, to)

    def remove(self, path: str, version: str = "") -> None:
        """Remove an object; with `version`, only that version of it."""

        def remove() -> None:
            if version or self.exists(path):
                self._change(path, "rm_file", path)

        self._if_same(path, version, remove, "delete_object")

    def _if_same(self, path: str, version: str, change: Callable[[], object], method: str, **arguments: Any) -> None:
        """Change an object that still has this version, "" for any; if it is gone, do nothing, and if it has another,
        raise `TargetExistsError`. `method`: S3's own, which compares in the same step."""
        # Services like S3 may ignore its condition, or refuse it.
        for act in (method, "") if version and hasattr(self._class, "_call_s3") else ("",):
            # In a listing, as the caller did: another request may give the time, and so the version, more precisely.
            folder, _, name = path.rpartition("/")
            there = self.objects(folder).get(name) if version else None
            if version and there is None:
                return
            if there is not None and there.version != version:
                raise self._taken(path)
            if not act:
                change()
                return
            with suppress(TargetNotWritableError):
                self.call(path, act, {**arguments, "IfMatch": f'"{version}"'})
                return

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder; if folders are just prefixes of names, there is none."""
        if not self._on_loop and self.exists(path):
            self._change(path, "rmdir", path)

    def close(self) -> None:
        """Close the connections, and wake callers that wait for a response. Calling it twice is fine."""
        self._leave()
        self._wake()
        if self._owns_services:
            self._services.close()

    def _wake(self) -> None:
        with suppress(InvalidStateError):
            self._closed.set_result(None)

    def _change(self, path: str, verb: str, *arguments: Any, seconds: float = _PATIENCE_S, **options: Any) -> Any:
        try:
            return self._ask(verb, *arguments, seconds=seconds, **options)
        except SourceError as error:
            msg = f"'{path}' cannot be written at '{self.label}': {error}"
            raise TargetNotWritableError(msg) from error

    def _ask(self, verb: str, *arguments: Any, seconds: float = CALL_TIMEOUT_S, **options: Any) -> Any:
        with self._connected() as fs:
            # fsspec caches listings, and others write there too.
            fs.invalidate_cache()
            return self._result(self._start(fs, verb, *arguments, **options), seconds)

    def _start(self, fs: Any, verb: str, *arguments: Any, **options: Any) -> Future[Any]:
        if self._on_loop:
            # Imported late: most sources are not of such a service.
            import asyncio

            return asyncio.run_coroutine_threadsafe(getattr(fs, f"_{verb}")(*arguments, **options), fs.loop)
        return in_thread(lambda: getattr(fs, verb)(*arguments, **options), "colabstage-remote")

    def _result(self, future: Future[T], seconds: float) -> T:
        """Wait for a response, but not longer than `seconds`, and not in a closed store."""
        both: list[Future[Any]] = [future, self._closed]
        wait(both, seconds, FIRST_COMPLETED)
        if future.done():
            return future.result()
        # A call that blocks is abandoned in its thread, because nothing can interrupt it.
        future.cancel()
        self._check_open()
        msg = f"no answer for {seconds:.0f} s"
        raise TimeoutError(msg)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        """Lend a file system to this thread, and translate its errors."""
        service = self._service
        try:
            with service.free:
                fs = self._take()
                try:
                    yield fs
                except Exception:
                    # The protocol may be out of step: the next request could get the last one's response.
                    if not service.is_shared:
                        _hang_up(fs)
                    raise
                except GeneratorExit:
                    self._give_back(fs)
                    raise
                self._give_back(fs)
        except ColabstageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a backend raises becomes one of ours
            # Closing aborts requests with many different errors.
            self._check_open()
            raise translate_error(error, self.protocol, self.label, self._secrets) from None

    def _take(self) -> Any:
        service = self._service
        with service.lock:
            self._check_open()
            if service.is_shared:
                if not service.idle:
                    service.idle.append(self._make())
                return service.idle[0]
            if service.idle:
                return service.idle.pop()
        return self._make()

    def _make(self) -> Any:
        made = in_thread(lambda: self._class(**self._service.options, skip_instance_cache=True), "colabstage-remote")
        return self._result(made, CALL_TIMEOUT_S)

    def _give_back(self, fs: Any) -> None:
        if self._service.is_shared:
            return
        with self._service.lock:
            if not self._closed.done():
                self._service.idle.append(fs)
                return
        _hang_up(fs)

    def _check_open(self) -> None:
        """Refuse to continue after `close`: nobody would close a new connection."""
        self._cancellation.check()
        if self._closed.done():
            msg = f"'{self.label}' was closed, so nothing more can be read of it."
            raise SourceReadError(msg)


def _hang_up(fs: Any) -> None:
    """Close what a file system holds; those on the loop close their sockets when they are collected."""
    with contextlib.suppress(Exception):
        fs.client.close()


def _read_at(file: Any, start: int, stop: int | None) -> bytes:
    # SFTP returns 32 KiB per request, so many must be in flight; paramiko does that for a list of parts.
    if hasattr(file, "readv") and stop is not None:
        return b"".join(file.readv([(start, stop - start)]))
    file.seek(start)
    return bytes(file.read(-1 if stop is None else stop - start))


def _load(protocol: str, label: str) -> Any:
    import fsspec

    try:
        return fsspec.get_filesystem_class(protocol)
    except ValueError:
        msg = f"'{label}': nothing here reads {protocol}:// addresses. Known are s3, gs, az, hf, sftp and more."
        raise OptionError(msg) from None
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        how = f"Install it with: pip install {package}" if package else str(error)
        msg = f"Reading '{label}' needs a package that is not installed here. {how}"
        raise MissingDependencyError(msg) from error


def _options_in_url(backend: Any, url: str) -> dict[str, Any]:
    options = dict(backend._get_kwargs_from_urls(url))
    for name in ("url_query", "url_fragment"):
        options.pop(name, None)
    for name in ("username", "password"):
        # fsspec does not decode these, and in an address an @ must be written as %40.
        if isinstance(options.get(name), str):
            options[name] = unquote(options[name])
    return options


def _options_of_environment(backend: Any) -> dict[str, Any]:
    """Return options from variables such as FSSPEC_SFTP_PASSWORD, as they are now: fsspec reads them when imported."""
    from fsspec.config import apply_config, set_conf_env

    found: dict[str, dict[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on import it has already warned about misspelt ones
        set_conf_env(found)
    return dict(apply_config(backend, {}, found))

"""Call services through fsspec from many threads, with deadlines, and translate their failures, without secrets.

Only this module knows what the exceptions of each library mean, how many connections each kind of service accepts, and
how its login is found.
"""

from __future__ import annotations

import contextlib
import errno
import ftplib
import re
import socket
import threading
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote

from colabstage.errors import (
    ColabstageError,
    MissingDependencyError,
    OptionError,
    SourceAccessError,
    SourceError,
    SourceNotFoundError,
    SourceReadError,
    said_by,
)
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.redaction import hide_secrets, secrets_in, show_address
from colabstage.sources.remote import TransientError, at_least_rate
from colabstage.sources.store_adapters import (
    CALL_TIMEOUT_S,
    AsyncAdapter,
    BlockingAdapter,
    FtpAdapter,
    MemoryAdapter,
    SftpAdapter,
    StoreAdapter,
    call_within,
    that_stays_closed,
    without_leak,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from colabstage.io.progress import Clock

Judgement = Literal["missing", "access", "transient", "other"]

_TRANSIENT_ERRNOS = frozenset(
    {
        *(errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EPIPE, errno.ETIMEDOUT, errno.ECONNRESET),
        *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN),
        getattr(errno, "EREMOTEIO", errno.EIO),  # s3fs's translation of "InternalError"
    }
)
# By name, because none of these packages need be installed, and importing one only to classify an error would be slow.
_NAMES: dict[Judgement, frozenset[str]] = {
    "missing": frozenset({"NoSuchKey", "NoSuchBucket", "EntryNotFoundError", "ResourceNotFoundError"}),
    "access": frozenset(
        {
            *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"),
            *("TokenRetrievalError", "UnauthorizedSSOTokenError", "DefaultCredentialsError", "RefreshError"),
            *("AuthenticationException", "PasswordRequiredException", "BadHostKeyException"),
            *("ClientAuthenticationError", "GatedRepoError", "RepositoryNotFoundError", "LocalTokenNotFoundError"),
        }
    ),
    "transient": frozenset(
        {
            *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"),
            *("ResponseStreamingError", "IncompleteReadError", "IncompleteRead", "HTTPClientError"),
            *("ClientPayloadError", "ServerDisconnectedError", "ClientOSError", "ClientConnectorError"),
            *(
                "ConnectTimeout",
                "ReadTimeout",
                "ConnectError",
                "ReadError",
                "RemoteProtocolError",
                "ChunkedEncodingError",
            ),
            *(
                "SSHException",
                "ServiceRequestError",
                "ServiceResponseError",
                "TransportError",
                "NoValidConnectionsError",
            ),
        }
    ),
}
_OUTSIDE_CODE = "Provide the login through the environment, not in the notebook:"
_S3_LOGIN = (
    f"{_OUTSIDE_CODE} AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (on Colab from its Secrets panel), or a profile in "
    "~/.aws/credentials."
)
_GS_LOGIN = (
    "On Colab call google.colab.auth.authenticate_user(); elsewhere set GOOGLE_APPLICATION_CREDENTIALS to the path of "
    "a key file, or run 'gcloud auth application-default login'."
)
_AZ_LOGIN = (
    f"{_OUTSIDE_CODE} AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or "
    "AZURE_STORAGE_CONNECTION_STRING."
)
_HF_LOGIN = (
    "Accept the dataset's terms on its page if it has any, and provide the login through the environment: HF_TOKEN."
)
_SSH_LOGIN = f"{_OUTSIDE_CODE} a key in ~/.ssh or an agent, or FSSPEC_SFTP_USERNAME and FSSPEC_SFTP_PASSWORD."
_FTP_LOGIN = f"{_OUTSIDE_CODE} FSSPEC_FTP_USERNAME and FSSPEC_FTP_PASSWORD."
_LOGINS = {
    **dict.fromkeys(("s3", "s3a"), _S3_LOGIN),
    **dict.fromkeys(("gs", "gcs"), _GS_LOGIN),
    **dict.fromkeys(("az", "abfs", "abfss"), _AZ_LOGIN),
    **dict.fromkeys(("sftp", "ssh"), _SSH_LOGIN),
    "hf": _HF_LOGIN,
    "ftp": _FTP_LOGIN,
}


def translate_error(error: BaseException, protocol: str, label: str, secrets: Sequence[str] = ()) -> SourceError:
    """Return the typed error for what fsspec raised. Raise it `from None`: the original may show secrets.

    Args:
        error: what was raised.
        protocol: such as `"s3"`; determines which way of giving credentials the message names.
        label: the public address of the request.
        secrets: texts that must not appear in the message.
    """
    if isinstance(error, SourceError):
        return error
    reason = hide_secrets(said_by(error), secrets)
    judgement = judge_error(error)
    if judgement == "missing":
        return SourceNotFoundError(f"There is nothing at '{label}' ({reason}).")
    if judgement == "access":
        login = _LOGINS.get(protocol, f"{_OUTSIDE_CODE} the package for {protocol}:// says by which variables.")
        msg = f"'{label}' cannot be read: the service refuses ({reason}). {login} Or the address may be wrong."
        return SourceAccessError(msg)
    if judgement == "transient":
        return TransientError(f"Reading '{label}' failed for now: {reason}.", wait_asked(error))
    return SourceReadError(f"Reading '{label}' failed: {reason}.")


def judge_error(error: BaseException) -> Judgement:
    """Return the kind of failure, from the error or its causes."""
    # Backends wrap the errors of their services, sometimes several times.
    return next((found for one in _chain(error) if (found := _judge_one(one)) != "other"), "other")


def wait_asked(error: BaseException) -> float | None:
    """Return the service's Retry-After in seconds."""
    for one in _chain(error):
        headers = _headers(getattr(one, "response", None)) or _headers(one)
        value = next((headers[name] for name in headers if name.lower() == "retry-after"), "")
        if re.fullmatch(r"\d{1,5}(?:\.\d+)?", str(value)):
            return float(value)
    return None


def _headers(response: Any) -> Mapping[str, Any]:
    # botocore's errors have a dict as response, other libraries' an object with headers.
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {})
        headers = response.get("HTTPHeaders") if isinstance(response, dict) else None
    else:
        headers = getattr(response, "headers", None)
    return headers if hasattr(headers, "items") and headers else {}


def _chain(error: BaseException) -> Iterator[BaseException]:
    # Causes can form a ring.
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _judge_one(error: BaseException) -> Judgement:
    if isinstance(error, ftplib.Error):
        return _judge_ftp(error)
    named = [
        judgement for judgement, names in _NAMES.items() if any(kind.__name__ in names for kind in type(error).__mro__)
    ]
    # Before the type, because several of these are an OSError without an errno.
    if named:
        return named[0]
    if isinstance(error, OSError) and (judgement := _judge_os(error)) != "other":
        return judgement
    if isinstance(error, (TimeoutError, EOFError)):
        return "transient"
    status = _status(error)
    told: dict[int, Judgement] = {404: "missing", 410: "missing", 401: "access", 403: "access"}
    passing = status in {408, 425, 429} or status >= 500
    return told.get(status, "transient" if passing else "other")


def _judge_os(error: OSError) -> Judgement:
    # A name server that does not answer now may answer later; an unknown name is a typing error.
    if isinstance(error, socket.gaierror):
        return "transient" if error.errno == socket.EAI_AGAIN else "missing"
    kinds: dict[Judgement, tuple[type[OSError], ...]] = {
        "missing": (FileNotFoundError, NotADirectoryError),
        "access": (PermissionError,),
        "transient": (TimeoutError, ConnectionError),
    }
    judged = (judgement for judgement, classes in kinds.items() if isinstance(error, classes))
    return next(judged, "transient" if error.errno in _TRANSIENT_ERRNOS else "other")


def _judge_ftp(error: ftplib.Error) -> Judgement:
    text = str(error)
    if isinstance(error, ftplib.error_temp):
        return "transient"
    if text[:3] in {"530", "532", "331", "332"}:
        return "access"
    # FTP has the same code for missing and forbidden files, so the server's message decides.
    if text[:3] in {"550", "553"}:
        return "access" if re.search("permi|denied|allowed|privilege", text, re.IGNORECASE) else "missing"
    return "other"


def _status(error: BaseException) -> int:
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        answer = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return answer if isinstance(answer, int) else 0
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and 400 <= value < 600:
                return int(value)
    return 0


T = TypeVar("T")

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
_SSH_OPTIONS = {"timeout": 30.0, "banner_timeout": 30.0, "auth_timeout": 30.0}
_HIDDEN_WAYS = frozenset(
    {"simplecache", "filecache", "blockcache", "cached", "reference", "generic", "dir", "async_wrapper"}
)
_HINT_TIMEOUT_S = 10.0
# Protocols whose fsspec classes leave connections open, and the functions that fix them.
_MENDED = {"ftp": without_leak, "s3": that_stays_closed, "s3a": that_stays_closed}


@dataclass(frozen=True, slots=True)
class Backend:
    """Hold the facts about one kind of service."""

    adapter: StoreAdapter
    """How calls are made."""
    connections: int
    """How many parts of one file it sends concurrently at full speed."""
    instances: int
    """How many file systems, each with its own connection, the threads share; 0 if one serves all threads."""
    options: Mapping[str, Any]
    """Default options of its file system."""


# An FTP connection carries one transfer at a time; servers often allow four per address.
_FTP = Backend(FtpAdapter(), connections=1, instances=4, options={})
# One SSH connection is limited to one core's encryption and one window, and a paramiko client handles its answers in
# one thread; sshd refuses more than ten concurrent logins (MaxStartups).
_SFTP = Backend(SftpAdapter(), connections=4, instances=4, options=_SSH_OPTIONS)
_MEMORY = Backend(MemoryAdapter(), connections=1, instances=0, options={})
_LOCAL = Backend(BlockingAdapter(), connections=4, instances=0, options={})
# By default botocore keeps ten connections, too few for thirty reads in flight.
_S3 = Backend(AsyncAdapter(), connections=8, instances=0, options={"config_kwargs": {"max_pool_connections": 40}})
_ON_LOOP = Backend(AsyncAdapter(), connections=8, instances=0, options={})
# Not all of these are known to be safe to share between threads, so none are shared.
_BLOCKING = Backend(BlockingAdapter(), connections=4, instances=8, options={})
_KNOWN = {
    "ftp": _FTP,
    **dict.fromkeys(("sftp", "ssh"), _SFTP),
    "memory": _MEMORY,
    **dict.fromkeys(("file", "local"), _LOCAL),
    **dict.fromkeys(("s3", "s3a"), _S3),
}


class ObjectStore:
    """Ask the service behind an address. Every method may be called from any thread; each has a deadline.

    `label`: the address for messages, without secrets. `path`: the backend's name for the object or folder. `notes`:
    sentences for the user, for example that the service was asked without a login.
    """

    def __init__(
        self, url: str, storage_options: Mapping[str, Any] | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Load the backend; the service itself is not contacted yet.

        Raises:
            OptionError: fsspec does not know the protocol, or the address goes through one of its caches.
            MissingDependencyError: the protocol's package is not installed.
        """
        self.label = show_address(url)
        self.protocol = _protocol(url, self.label)
        self._class = _load(self.protocol, self.label)
        given = {**_from_environment(self._class), **dict(storage_options or {})}
        try:
            in_url, self.path = _options_and_path(self._class, url)
        except ValueError:
            msg = f"'{self.label}' is not a complete address."
            raise OptionError(msg) from None
        self._chose_login = not _LOGIN_OPTIONS.isdisjoint([*given, *in_url])
        self.backend = _KNOWN.get(self.protocol, _ON_LOOP if self._class.async_impl else _BLOCKING)
        self._options = {**self.backend.options, **given, **in_url}
        self._secrets = secrets_in(self._options)
        self._clock = clock
        self._connections = _ConnectionPool(self._make, self.backend, self.label)
        self.notes: tuple[str, ...] = ()

    def info(self, path: str = "") -> dict[str, Any]:
        """Return fsspec's facts on the address itself, or on another path.

        Raises:
            SourceNotFoundError: there is nothing; the message says what is there instead.
            SourceAccessError, TransientError, SourceReadError: as the service answers.
        """
        asked = path or self.path
        try:
            found = self._ask(lambda fs: self.backend.adapter.info(fs, asked))
            # From now on a refusal means that the login has expired, and others may be reading with it, so it is kept.
            self._chose_login = True
            return found
        except SourceAccessError as refused:
            return self._anonymously(lambda fs: self.backend.adapter.info(fs, asked), refused)
        except SourceNotFoundError as error:
            raise SourceNotFoundError(f"{error} {self._neighbours(asked)}".strip()) from None

    def list_files(self, *, workers: int) -> list[dict[str, Any]]:
        """Return fsspec's facts on everything below the address except folders, in the service's order.

        Raises:
            SourceAccessError, TransientError, SourceReadError: as the service answers, for any of the folders.
        """
        found = self._ask(lambda fs: self.backend.adapter.find(fs, self.path))
        return self._walk(workers) if found is None else [row for row in found if row.get("type") != "directory"]

    def list_folder(self, path: str) -> list[dict[str, Any]]:
        """Return the same for everything directly in one folder, folders included."""
        rows = self._ask(lambda fs: self.backend.adapter.list_folder(fs, path))
        return [row for row in rows if str(row["name"]).rstrip("/") != path.rstrip("/")]

    def read(self, path: str, offset: int, end: int | None) -> Iterator[bytes]:
        """Yield bytes of one object from `offset` to `end` or its own end, in pieces of at most a megabyte.

        Raises:
            SourceNotFoundError, SourceAccessError, TransientError, SourceReadError: as the service answers.
        """
        try:
            with self._connections.lend() as fs:
                pieces = self.backend.adapter.pieces(fs, path, offset, end)
                yield from at_least_rate(pieces, self.label, clock=self._clock)
        except ColabstageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is told in our words
            raise self._translate(error) from None

    @property
    def folders_are_prefixes(self) -> bool:
        """Return whether folders are only prefixes of names, so that a file can have the name of a folder."""
        return isinstance(self.backend.adapter, AsyncAdapter)

    def has_ranges(self) -> bool:
        """Return whether parts of an object can be requested."""
        return self._ask(self.backend.adapter.has_ranges)

    def close(self) -> None:
        """Close the connections. Calling it twice is fine."""
        self._connections.close()

    def _make(self) -> Any:
        options = {**self._options, "skip_instance_cache": True}
        return call_within(CALL_TIMEOUT_S, lambda: self._class(**options))

    def _ask(self, question: Callable[[Any], T]) -> T:
        try:
            with self._connections.lend() as fs:
                return question(fs)
        except ColabstageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is told in our words
            raise self._translate(error) from None

    def _translate(self, error: Exception) -> SourceError:
        # Closing aborts requests with many different errors; this is the one that is reported.
        self._connections.check_open()
        return translate_error(error, self.protocol, self.label, self._secrets)

    def _anonymously(self, question: Callable[[Any], T], refused: SourceAccessError) -> T:
        """Try once more without a login."""
        # Public buckets allow that, and most notebooks have no login.
        anonymous = _ANONYMOUS.get(self.protocol)
        if anonymous is None or self._chose_login:
            raise refused
        before = self._options
        self._chose_login = True
        self._options = {**before, **anonymous}
        self._connections.close()
        self._connections = _ConnectionPool(self._make, self.backend, self.label)
        try:
            answer = self._ask(question)
        except SourceAccessError:
            raise refused from None
        self.notes = (f"'{self.label}' was read anonymously: no login was found that it accepts.",)
        return answer

    def _walk(self, workers: int) -> list[dict[str, Any]]:
        """Return all files, one level of folders after the other, with many listings at the same time."""
        files: list[dict[str, Any]] = []
        level = [self.path]
        with ThreadPoolExecutor(max(1, workers), thread_name_prefix="colabstage-list") as pool:
            while level:
                rows = [row for listed in pool.map(self.list_folder, level) for row in listed]
                # A link to a folder may lead back to a parent of it.
                level = [row["name"] for row in rows if row["type"] == "directory" and not row.get("islink")]
                files += (row for row in rows if row["type"] != "directory" or row.get("islink"))
        return files

    def _neighbours(self, path: str) -> str:
        """Return a sentence about the contents of the folder where nothing was found; "" if listing it takes long."""
        folder = path.rstrip("/").rpartition("/")[0]
        if not folder.strip("/") and self.protocol not in {"memory", "ftp"}:
            return ""
        try:
            rows = call_within(_HINT_TIMEOUT_S, lambda: self.list_folder(folder))
        except (SourceError, TimeoutError):
            return ""
        names = sorted(str(row["name"]).rstrip("/").rpartition("/")[2] for row in rows)
        if not names:
            return ""
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        return f"In its folder are: {', '.join(names[:5])}{more}."


class _ConnectionPool:
    """Hold file systems of one address, each lent to one thread at a time; or one for all, if that is safe."""

    def __init__(self, make: Callable[[], Any], backend: Backend, label: str) -> None:
        self._make = make
        self._label = label
        self._adapter = backend.adapter
        self._shared = backend.instances == 0
        self._most = max(1, backend.instances)
        self._made = 0
        self._idle: deque[Any] = deque()
        self._one: Any = None
        self._closed = False
        self._change = threading.Condition()

    @contextlib.contextmanager
    def lend(self) -> Iterator[Any]:
        if self._shared:
            yield self._the_one()
            return
        fs = self._take()
        usable = False
        try:
            yield fs
            usable = True
        except GeneratorExit:
            usable = True
            raise
        finally:
            # After an error the protocol may be out of step, so that the next request gets the previous one's answer.
            self._give_back(fs, usable=usable)

    def close(self) -> None:
        with self._change:
            self._closed = True
            idle = [*self._idle, *([] if self._one is None else [self._one])]
            self._idle.clear()
            self._one = None
            self._change.notify_all()
        for fs in idle:
            self._hang_up(fs)

    def check_open(self) -> None:
        """Refuse to go on after `close`."""
        # A reader that is interrupted by `close` asks once more whether the object has changed. A connection opened for
        # that would stay open, because nobody closes it a second time.
        if self._closed:
            msg = f"'{self._label}' was closed, so nothing more can be read of it."
            raise SourceReadError(msg)

    def _the_one(self) -> Any:
        with self._change:
            self.check_open()
            if self._one is None:
                self._one = self._make()
            return self._one

    def _take(self) -> Any:
        deadline = time.monotonic() + CALL_TIMEOUT_S
        with self._change:
            self.check_open()
            while not self._idle and self._made >= self._most:
                if not self._change.wait(deadline - time.monotonic()):
                    msg = f"No connection became free for {CALL_TIMEOUT_S:.0f} s."
                    raise TransientError(msg)
                self.check_open()
            if self._idle:
                return self._idle.pop()
            self._made += 1
        try:
            return self._make()
        except BaseException:
            with self._change:
                self._made -= 1
                if self._made == 0:
                    raise
                # The server accepts no more connections than there are now.
                self._most = self._made
            return self._take()

    def _give_back(self, fs: Any, *, usable: bool) -> None:
        with self._change:
            keep = usable and not self._closed and self._adapter.is_usable(fs)
            if keep:
                self._idle.append(fs)
            else:
                self._made -= 1
            self._change.notify()
        if not keep:
            self._hang_up(fs)

    def _hang_up(self, fs: Any) -> None:
        with contextlib.suppress(Exception):
            self._adapter.close(fs)


def _protocol(url: str, label: str) -> str:
    protocol, mark, rest = url.partition("://")
    if not mark or not rest.strip("/"):
        msg = f"'{label}' is not a remote address; expected one such as s3://bucket/folder."
        raise OptionError(msg)
    if "::" in protocol or "::" in rest.partition("/")[0] or protocol in _HIDDEN_WAYS:
        msg = f"'{label}' goes through one of fsspec's caches or wrappers. Name the file itself."
        raise OptionError(msg)
    return protocol.lower()


def _load(protocol: str, label: str) -> Any:
    import fsspec

    try:
        found = fsspec.get_filesystem_class(protocol)
        return _MENDED[protocol](found) if protocol in _MENDED else found
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

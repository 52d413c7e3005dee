"""The meaning of what fsspec's backends tell and raise, which differs for every service. Pure functions."""

from __future__ import annotations

import base64
import errno
import ftplib
import re
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import SourceAccessError, SourceError, SourceNotFoundError, SourceReadError, said_by
from colabstage.io.redaction import hide_secrets
from colabstage.sources.remote import Checksum, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Judgement = Literal["missing", "access", "transient", "other"]

_TRANSIENT_ERRNOS = frozenset(
    {
        *(errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EPIPE, errno.ETIMEDOUT, errno.ECONNRESET),
        *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN),
        getattr(errno, "EREMOTEIO", errno.EIO),  # s3fs's translation of "InternalError"
    }
)
# By name, because none of these packages need be installed, and importing one only to classify an error would be slow.
_MISSING = "NoSuchKey NoSuchBucket EntryNotFoundError ResourceNotFoundError"
_ACCESS = (
    "NoCredentialsError PartialCredentialsError CredentialRetrievalError ProfileNotFound TokenRetrievalError "
    "UnauthorizedSSOTokenError DefaultCredentialsError RefreshError AuthenticationException PasswordRequiredException "
    "BadHostKeyException ClientAuthenticationError GatedRepoError RepositoryNotFoundError LocalTokenNotFoundError"
)
_TRANSIENT = (
    "EndpointConnectionError ConnectTimeoutError ReadTimeoutError ConnectionClosedError ResponseStreamingError "
    "IncompleteReadError IncompleteRead HTTPClientError ClientPayloadError ServerDisconnectedError ClientOSError "
    "ClientConnectorError ConnectTimeout ReadTimeout ConnectError ReadError RemoteProtocolError ChunkedEncodingError "
    "SSHException ServiceRequestError ServiceResponseError TransportError NoValidConnectionsError"
)
_NAMES: dict[str, Judgement] = {
    **dict.fromkeys(_MISSING.split(), "missing"),
    **dict.fromkeys(_ACCESS.split(), "access"),
    **dict.fromkeys(_TRANSIENT.split(), "transient"),
}
_KINDS: tuple[tuple[type[BaseException], Judgement], ...] = (
    (FileNotFoundError, "missing"),
    (NotADirectoryError, "missing"),
    (PermissionError, "access"),
    (TimeoutError, "transient"),
    (ConnectionError, "transient"),
    (EOFError, "transient"),
)
_OUTSIDE_CODE = "Provide the login through the environment, not in the notebook:"
_S3_LOGIN = (
    f"{_OUTSIDE_CODE} AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (on Colab from its Secrets panel), or a profile in "
    "~/.aws/credentials. Where the bucket is requester-pays, set FSSPEC_S3_REQUESTER_PAYS=true; you are billed then."
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
_LOGINS = {
    **dict.fromkeys(("s3", "s3a"), _S3_LOGIN),
    **dict.fromkeys(("gs", "gcs"), _GS_LOGIN),
    **dict.fromkeys(("az", "abfs", "abfss"), _AZ_LOGIN),
    **dict.fromkeys(("sftp", "ssh"), _SSH_LOGIN),
    "hf": _HF_LOGIN,
    "ftp": f"{_OUTSIDE_CODE} FSSPEC_FTP_USERNAME and FSSPEC_FTP_PASSWORD.",
}

_FTP_TIME = re.compile(r"\A(\d{14})(?:\.\d+)?\Z")


def size_of(info: Mapping[str, Any]) -> int | None:
    """Return the size from fsspec's facts; `None` if it is missing."""
    size = info.get("size")
    return None if size is None else int(size)


def version_of(info: Mapping[str, Any]) -> str:
    """Return a text that changes with the content; "" if there is none."""
    # The surest first: a generation is never used twice, an ETag may be.
    for name in ("generation", "ETag", "etag", "blob_id", "sha"):
        if info.get(name):
            return str(info[name]).strip('"')
    mtime_ns = mtime_ns_of(info)
    return f"{mtime_ns}-{size_of(info)}-{info.get('ino', '')}".rstrip("-") if mtime_ns else ""


def mtime_ns_of(info: Mapping[str, Any]) -> int:
    """Return the modification time in nanoseconds since 1970; 0 if it is unknown."""
    for name in ("LastModified", "last_modified", "mtime", "modified", "updated", "modify", "created"):
        if info.get(name):
            return _to_ns(info[name])
    return 0


def checksum_of(info: Mapping[str, Any]) -> Checksum | None:
    """Return the hash of the whole content, if there certainly is one.

    S3's ETag is not: multipart uploads and encryption change its meaning, without saying so. Azure's Content-MD5 is
    whatever was uploaded with the blob.
    """
    lfs = info.get("lfs")
    sha256 = str(lfs.get("sha256", "")) if isinstance(lfs, dict) else ""
    if re.fullmatch(r"[0-9a-f]{64}", sha256):
        return Checksum("sha256", sha256)
    # Google's MD5 is of the stored bytes; an object that is stored compressed may be sent decompressed.
    if info.get("md5Hash") and not info.get("contentEncoding"):
        return Checksum("md5", base64.b64decode(info["md5Hash"]).hex())
    return None


def _to_ns(value: Any) -> int:
    if isinstance(value, str):
        return _parse_time(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        # Not timestamp(): a float is too imprecise for the microseconds of today's dates.
        passed = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return ((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds) * 1_000
    # For today's dates, a float is no more precise than a microsecond.
    return round(value * 1e6) * 1000 if isinstance(value, (int, float)) else 0


def _parse_time(text: str) -> int:
    if found := _FTP_TIME.match(text):
        return _to_ns(datetime.strptime(found[1], "%Y%m%d%H%M%S").replace(tzinfo=UTC))
    try:
        return _to_ns(datetime.fromisoformat(text))
    except ValueError:
        return 0


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
    # Before the type, because several of these are an OSError without an errno.
    named = next((_NAMES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _NAMES), None)
    if named is not None:
        return named
    # A name server that does not answer now may answer later; an unknown name is a typing error.
    if isinstance(error, socket.gaierror):
        return "transient" if error.errno == socket.EAI_AGAIN else "missing"
    kind = next((judgement for classes, judgement in _KINDS if isinstance(error, classes)), None)
    if kind is not None:
        return kind
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return "transient"
    status = _status(error)
    told: dict[int, Judgement] = {404: "missing", 410: "missing", 401: "access", 403: "access"}
    passing = status in {408, 425, 429} or status >= 500
    return told.get(status, "transient" if passing else "other")


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

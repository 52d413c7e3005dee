"""What remote services say when they fail, in our words, and never with a password, token or signature in it."""

from __future__ import annotations

import errno
import ftplib
import re
import socket
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import SourceAccessError, SourceError, SourceNotFoundError, SourceReadError
from colabstage.fetch.remote import PassingError
from colabstage.redaction import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Judgement = Literal["missing", "access", "passing", "other"]

_PASSING_ERRNOS = frozenset(
    {
        *(errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EPIPE, errno.ETIMEDOUT, errno.ECONNRESET),
        *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN),
        getattr(errno, "EREMOTEIO", errno.EIO),  # what s3fs makes of "InternalError"
    }
)
# By name, because none of these packages need be installed, and importing one to judge an error would be absurd.
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
    "passing": frozenset(
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
_OUTSIDE_CODE = "Give the login by the environment, not in the notebook:"
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
_HF_LOGIN = "Accept the dataset's terms on its page if it has any, and give the login by the environment: HF_TOKEN."
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
    """The typed error for what a file system of fsspec raised. Raise it `from None`: the original may show secrets.

    Args:
        error: what was raised.
        protocol: such as `"s3"`; it decides which way of giving credentials the message names.
        label: the public address of what was asked for.
        secrets: texts that must not appear.
    """
    if isinstance(error, SourceError):
        return error
    reason = hide_secrets(str(error), secrets) or type(error).__name__
    judgement = judge_error(error)
    if judgement == "missing":
        return SourceNotFoundError(f"There is nothing at '{label}' ({reason}).")
    if judgement == "access":
        login = _LOGINS.get(protocol, f"{_OUTSIDE_CODE} the package for {protocol}:// says by which variables.")
        msg = f"'{label}' cannot be read: the service refuses ({reason}). {login} Or the address may be wrong."
        return SourceAccessError(msg)
    if judgement == "passing":
        return PassingError(f"Reading '{label}' failed for now: {reason}.", wait_asked(error))
    return SourceReadError(f"Reading '{label}' failed: {type(error).__name__}: {reason}.")


def judge_error(error: BaseException) -> Judgement:
    """What kind of failure it is; the causes of an error are asked when it does not tell itself."""
    return next((found for one in _chain(error) if (found := _judge_one(one)) != "other"), "other")


def wait_asked(error: BaseException) -> float | None:
    """Seconds after which the service asked to be tried again, from its Retry-After."""
    for one in _chain(error):
        headers = _headers(getattr(one, "response", None)) or _headers(one)
        value = next((headers[name] for name in headers if name.lower() == "retry-after"), "")
        if re.fullmatch(r"\d{1,5}(?:\.\d+)?", str(value)):
            return float(value)
    return None


def _headers(response: Any) -> Mapping[str, Any]:
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {})
        headers = response.get("HTTPHeaders") if isinstance(response, dict) else None
    else:
        headers = getattr(response, "headers", None)
    return headers if hasattr(headers, "items") and headers else {}


def _chain(error: BaseException) -> Iterator[BaseException]:
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
    if named:
        return named[0]
    if isinstance(error, OSError) and (judgement := _judge_os(error)) != "other":
        return judgement
    return "passing" if isinstance(error, (TimeoutError, EOFError)) else _judge_status(_status(error))


def _judge_os(error: OSError) -> Judgement:
    if isinstance(error, socket.gaierror):
        return "passing" if error.errno == socket.EAI_AGAIN else "missing"
    kinds: dict[Judgement, tuple[type[OSError], ...]] = {
        "missing": (FileNotFoundError, NotADirectoryError),
        "access": (PermissionError,),
        "passing": (TimeoutError, ConnectionError),
    }
    judged = (judgement for judgement, classes in kinds.items() if isinstance(error, classes))
    return next(judged, "passing" if error.errno in _PASSING_ERRNOS else "other")


def _judge_ftp(error: ftplib.Error) -> Judgement:
    text = str(error)
    if isinstance(error, ftplib.error_temp):
        return "passing"
    if text[:3] in {"530", "532", "331", "332"}:
        return "access"
    if text[:3] in {"550", "553"}:
        return "access" if re.search("permi|denied|allowed|privilege", text, re.IGNORECASE) else "missing"
    return "other"


def _judge_status(status: int) -> Judgement:
    if status in {404, 410}:
        return "missing"
    if status in {401, 403}:
        return "access"
    return "passing" if status in {408, 425, 429} or status >= 500 else "other"


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

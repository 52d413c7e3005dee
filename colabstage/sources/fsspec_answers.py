"""The meaning of what fsspec's backends return and raise, which differs for every service. Pure functions."""

from __future__ import annotations

import base64
import errno
import re
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import SourceAccessError, SourceError, SourceNotFoundError, SourceReadError, causes, said_by
from colabstage.io.units import hide_secrets
from colabstage.sources.remote import Checksum, TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Judgement = Literal["missing", "access", "transient", "other"]

_TRANSIENT_ERRNOS = frozenset(
    {
        *(errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EPIPE, errno.ETIMEDOUT, errno.ECONNRESET),
        *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN),
        getattr(errno, "EREMOTEIO", errno.EIO),  # s3fs's translation of "InternalError"
    }
)
# By name, because none of these packages need be installed, and importing one only to classify an error would be slow.
# The nearest class in the error's own hierarchy decides.
_KINDS: dict[Judgement, str] = {
    "missing": "NoSuchKey NoSuchBucket EntryNotFoundError ResourceNotFoundError FileNotFoundError NotADirectoryError",
    "access": "NoCredentialsError PartialCredentialsError CredentialRetrievalError ProfileNotFound TokenRetrievalError "
    "UnauthorizedSSOTokenError DefaultCredentialsError RefreshError AuthenticationException PasswordRequiredException "
    "BadHostKeyException ClientAuthenticationError GatedRepoError RepositoryNotFoundError LocalTokenNotFoundError "
    "PermissionError",
    "transient": "EndpointConnectionError ConnectTimeoutError ReadTimeoutError ConnectionClosedError HTTPClientError "
    "ResponseStreamingError IncompleteReadError IncompleteRead ClientPayloadError ServerDisconnectedError ConnectError "
    "ClientOSError ClientConnectorError ConnectTimeout ReadTimeout ReadError RemoteProtocolError ChunkedEncodingError "
    "SSHException ServiceRequestError ServiceResponseError TransportError NoValidConnectionsError TimeoutError "
    "ConnectionError EOFError",
}
_NAMES = {name: judgement for judgement, names in _KINDS.items() for name in names.split()}
_STATUSES: dict[int, Judgement] = {
    **dict.fromkeys((404, 410), "missing"),
    # S3 answers a HEAD with an expired login, or for another region, by a 400 or 301 without a word.
    **dict.fromkeys((301, 400, 401, 403), "access"),
    **dict.fromkeys((408, 425, 429, *range(500, 600)), "transient"),
}

_OUTSIDE_CODE = "Provide the login through the environment, not in the notebook:"
_LOGINS = {
    ("s3", "s3a"): f"{_OUTSIDE_CODE} AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (on Colab from its Secrets panel), or "
    "a profile in ~/.aws/credentials. Where the bucket is not Amazon's (R2, MinIO …), set "
    "AWS_ENDPOINT_URL; where it is in another region, AWS_DEFAULT_REGION; where it is requester-pays, "
    "FSSPEC_S3_REQUESTER_PAYS=true (you are billed then).",
    ("gs", "gcs"): "On Colab call google.colab.auth.authenticate_user(); elsewhere set GOOGLE_APPLICATION_CREDENTIALS "
    "to the path of a key file, or run 'gcloud auth application-default login'.",
    ("az", "abfs", "abfss"): f"{_OUTSIDE_CODE} AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_TOKEN, or AZURE_STORAGE_CONNECTION_STRING.",
    ("hf",): "Accept the dataset's terms on its page if it has any, and provide the login through the environment: "
    "HF_TOKEN. The address of a dataset begins with hf://datasets/.",
    ("sftp", "ssh"): f"{_OUTSIDE_CODE} a key in ~/.ssh or an agent, or FSSPEC_SFTP_USERNAME and FSSPEC_SFTP_PASSWORD.",
}


def size_of(info: Mapping[str, Any]) -> int | None:
    size = info.get("size")
    return None if size is None else int(size)


def version_of(info: Mapping[str, Any]) -> str:
    """Return a text that changes with the content; "" if there is none."""
    # The most reliable first: a generation is never used twice, an ETag may be.
    for name in ("generation", "ETag", "etag", "blob_id", "sha"):
        if info.get(name):
            return str(info[name]).strip('"')
    mtime_ns = mtime_ns_of(info)
    return f"{mtime_ns}-{size_of(info)}-{info.get('ino', '')}".rstrip("-") if mtime_ns else ""


def mtime_ns_of(info: Mapping[str, Any]) -> int:
    """Return the modification time in nanoseconds since 1970; 0 if it is unknown."""
    names = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")
    return _to_ns(next((info[name] for name in names if info.get(name)), None))


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
    if isinstance(value, (int, float)):
        # For today's dates, a float is no more precise than a microsecond.
        return round(value * 1e6) * 1000
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
    except ValueError:
        return 0
    if not isinstance(value, datetime):
        return 0
    # Not timestamp(): a float is too imprecise for the microseconds of today's dates.
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def translate_error(error: BaseException, protocol: str, label: str, secrets: Sequence[str] = ()) -> SourceError:
    """Return the typed error for what fsspec raised. Raise it `from None`: the original may show secrets.

    By its protocol, the message names a way of giving credentials; `secrets` must not appear in it.
    """
    unknown_server = (one for one in causes(error) if isinstance(one, socket.gaierror))
    reason = hide_secrets(said_by(next(unknown_server, error)), secrets)
    # Backends wrap the errors of their services, sometimes several times; a refusal as if there were nothing.
    found = [one for one in map(_judge_one, causes(error)) if one != "other"]
    judgement = "access" if found[:1] == ["missing"] and "access" in found else next(iter(found), "other")
    if judgement == "missing":
        # Most say nothing more than the address.
        named = "" if label.endswith(reason) else f" ({reason})"
        return SourceNotFoundError(f"There is nothing at '{label}'{named}.")
    if judgement == "access":
        unknown = f"{_OUTSIDE_CODE} the package for {protocol}:// says by which variables."
        login = next((text for protocols, text in _LOGINS.items() if protocol in protocols), unknown)
        msg = f"'{label}' cannot be read: the service refuses ({reason}). {login} Or the address may be wrong."
        return SourceAccessError(msg)
    if judgement == "transient":
        return TransientError(f"Reading '{label}' failed for now: {reason}. Try again later.")
    return SourceReadError(f"Reading '{label}' failed: {reason}.")


def _judge_one(error: BaseException) -> Judgement:
    # A name server that does not answer now may answer later; an unknown name is a typing error.
    if isinstance(error, socket.gaierror):
        return "transient" if error.errno == socket.EAI_AGAIN else "missing"
    kinds = [kind.__name__ for kind in type(error).__mro__]
    # What paramiko and adlfs say of a missing login, in errors of a class that they raise for other reasons too.
    if re.match("No authentication methods|unable to connect to account", str(error)):
        kinds = ["PermissionError"]
    named = next((_NAMES[kind] for kind in kinds if kind in _NAMES), None)
    if named is not None:
        return named
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return "transient"
    return _STATUSES.get(_status_of(error), "other")


def _status_of(error: BaseException) -> int:
    """Return the status in an error, from botocore's dictionaries or other libraries' objects."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    holders = (getattr(one, name, None) for one in (error, response) for name in ("status", "status_code", "code"))
    return next((value for value in holders if isinstance(value, int) and 400 <= value < 600), 0)

"""One object of a remote service as a `RemoteFile`, and what fsspec's facts say of its version, time and hash."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from colabstage.errors import SourceChangedError, SourceError, SourceNotFoundError, SourceReadError
from colabstage.fetch.checksum import Checksum
from colabstage.fetch.remote import PassingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from colabstage.fetch.objects.store import ObjectStore
    from colabstage.fetch.remote import RemoteFacts

_FTP_TIME = re.compile(r"\A(\d{14})(?:\.\d+)?\Z")


class ObjectFile:
    """One object as a `RemoteFile`. What arrives is of `facts.version`: at the end of each range the service is asked.

    The last piece of a range is handed out after that, so that a range that is complete is a range that was checked;
    and what was read before the question was read while the version was still the one of the beginning.
    """

    def __init__(self, store: ObjectStore, path: str, facts: RemoteFacts, *, owns_store: bool = True) -> None:
        self._store = store
        self._path = path
        self._facts = facts
        self._owns_store = owns_store

    @property
    def facts(self) -> RemoteFacts:
        """What was known when it was opened."""
        return self._facts

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the person, such as that it was read without a login."""
        return self._store.notes

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """The content from `offset` on, in pieces of at most a megabyte; see `RemoteFile`."""
        size = self._facts.size
        if offset and not self._facts.ranges:
            msg = f"'{self._facts.label}' can only be read from its beginning; its service knows no ranges."
            raise SourceReadError(msg)
        end = size if length is None else offset + length
        at = offset
        held = b""
        try:
            for piece in self._store.read(self._path, offset, end) if end is None or offset < end else ():
                at += len(piece)
                self._check_length(at, end)
                if held:
                    yield held
                held = piece
        except PassingError:
            # Good, and not the end: else a service that breaks off again and again would get nobody further.
            if held and end is not None and at < end:
                yield held
            raise
        except SourceError:
            # An object that shrank or vanished answers in many ways.
            self._check_version()
            raise
        self._check_version()
        if end is not None and at < end:
            msg = f"'{self._facts.label}' was cut off at byte {at:,} of {end:,}."
            raise PassingError(msg)
        if held:
            yield held

    def close(self) -> None:
        """Hang up. Calling it twice is fine."""
        if self._owns_store:
            self._store.close()

    def _check_length(self, at: int, end: int | None) -> None:
        if end is not None and at > end:
            msg = f"'{self._facts.label}' gave more than was asked for: its service knows no ranges."
            raise SourceReadError(msg)

    def _check_version(self) -> None:
        try:
            info = self._store.info(self._path)
        except SourceNotFoundError as error:
            msg = f"'{self._facts.label}' was removed while it was read."
            raise SourceChangedError(msg) from error
        now, then = version_of(info), self._facts.version
        # A listing may know less than the answer about one object.
        if size_of(info) != self._facts.size or (now and then and now != then):
            msg = (
                f"'{self._facts.label}' changed while it was read (version '{then}' became '{now}'). Wait until its "
                "upload is complete, then fetch it again."
            )
            raise SourceChangedError(msg)


def size_of(info: Mapping[str, Any]) -> int | None:
    """Bytes, from fsspec's facts; `None` where it does not say."""
    size = info.get("size")
    return None if size is None else int(size)


def version_of(info: Mapping[str, Any]) -> str:
    """A text that is another one when the content is; "" where nothing tells."""
    for name in ("generation", "ETag", "etag", "blob_id", "sha"):
        if info.get(name):
            return str(info[name]).strip('"')
    mtime_ns = mtime_ns_of(info)
    return f"{mtime_ns}-{size_of(info)}-{info.get('ino', '')}".rstrip("-") if mtime_ns else ""


def mtime_ns_of(info: Mapping[str, Any]) -> int:
    """Modification time in nanoseconds since 1970; 0 where nothing tells."""
    for name in ("LastModified", "last_modified", "mtime", "modified", "updated", "modify", "created"):
        if info.get(name):
            return _to_ns(info[name])
    return 0


def checksum_of(info: Mapping[str, Any]) -> Checksum | None:
    """The hash of the whole content, where it certainly is one.

    An ETag of S3 is not: parts and encryption make it something else, and it does not say so. Azure's Content-MD5 is
    whatever was uploaded with the blob.
    """
    lfs = info.get("lfs")
    sha256 = str(lfs.get("sha256", "")) if isinstance(lfs, dict) else ""
    if re.fullmatch(r"[0-9a-f]{64}", sha256):
        return Checksum("sha256", sha256)
    # Google's, of the stored bytes; what is stored compressed may be handed out unpacked.
    if info.get("md5Hash") and not info.get("contentEncoding"):
        return Checksum("md5", base64.b64decode(info["md5Hash"]).hex())
    return None


def _to_ns(value: Any) -> int:
    if isinstance(value, str):
        return _parse_time(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        # Not timestamp(): a float has no room for microseconds of this century beside the seconds.
        passed = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return ((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds) * 1_000
    # No float of this century tells less than a microsecond.
    return round(value * 1e6) * 1000 if isinstance(value, (int, float)) else 0


def _parse_time(text: str) -> int:
    if found := _FTP_TIME.match(text):
        return _to_ns(datetime.strptime(found[1], "%Y%m%d%H%M%S").replace(tzinfo=UTC))
    try:
        return _to_ns(datetime.fromisoformat(text))
    except ValueError:
        return 0

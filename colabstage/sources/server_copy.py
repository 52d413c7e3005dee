"""Replace an object by one that has many of its bytes, which the service copies itself (S3's `UploadPartCopy`)."""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import TargetNotWritableError
from colabstage.io.files import pread_exactly
from colabstage.io.pipeline import DaemonPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from colabstage.sources.buckets import ObjectStore

# What S3 asks of parts: none but the last is shorter, and there are no more.
_LEAST_BYTES, _MOST_PARTS = 5 * 1024 * 1024, 10_000
# A part that is sent is in memory meanwhile; one that is copied may have 5 GiB, which would show no progress.
_MOST_SENT_BYTES, _MOST_COPIED_BYTES = 16 * 1024 * 1024, 256 * 1024 * 1024
_AT_ONCE = 8


class Piece(NamedTuple):
    """Consecutive bytes of the new object."""

    length: int
    """How many."""
    source: int | None
    """Where the old object has them; `None` where it has not."""


def join_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Return all bytes of some pieces in pieces of the lengths that S3 takes; nothing where none would be copied."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else Piece(0, None)
        is_next = piece.source == (None if last.source is None else last.source + last.length)
        joined = last.length + piece.length
        if found and is_next and joined <= (_MOST_SENT_BYTES if piece.source is None else _MOST_COPIED_BYTES):
            found[-1] = last._replace(length=joined)
        elif found and last.length < _LEAST_BYTES:
            found[-1] = Piece(joined, None)
        else:
            found.append(piece)
    return found if len(found) <= _MOST_PARTS and any(piece.source is not None for piece in found) else []


def replace_object(
    store: ObjectStore, path: str, file: Path, pieces: list[Piece], advance: Callable[[int], object]
) -> None:
    """Replace an object by a local file, sending only the pieces that it does not have; all or nothing of it counts.

    Raises:
        TargetNotWritableError: the service does not do that, or the object was written to; it is as it was.
    """
    before = store.info(path).get("ETag", "")
    upload = {"UploadId": store.call(path, "create_multipart_upload", {})["UploadId"]}
    starts = [0, *accumulate(piece.length for piece in pieces)]

    def copy(number: int) -> str:
        length, source = pieces[number]
        assert source is not None
        # An object that is replaced meanwhile has another ETag, and no part is copied of that.
        part = {**upload, "PartNumber": number + 1, "CopySource": path, "CopySourceIfMatch": before}
        span = {"CopySourceRange": f"bytes={source}-{source + length - 1}"}
        return str(store.call(path, "upload_part_copy", {**part, **span})["CopyPartResult"]["ETag"])

    def send(number: int) -> str:
        data = pread_exactly(handle.fileno(), pieces[number].length, starts[number])
        answer = store.call(path, "upload_part", {**upload, "PartNumber": number + 1, "Body": data})
        advance(len(data))
        return str(answer["ETag"])

    sent = [number for number, piece in enumerate(pieces) if piece.source is None]
    copied = [number for number, piece in enumerate(pieces) if piece.source is not None]
    etags: dict[int, str] = {}
    try:
        with file.open("rb") as handle, DaemonPool(_AT_ONCE, "colabstage-put") as pool:
            # Copies first: a service that makes none has been sent nothing then.
            for put, numbers in ((copy, copied), (send, sent)):
                etags.update(zip(numbers, pool.run(put, numbers, stall_timeout_s=float("inf")), strict=True))
                advance(sum(pieces[number].length for number in numbers if put is copy))
        _check_unchanged(store, path, before)
        parts = [{"PartNumber": number + 1, "ETag": etag} for number, etag in sorted(etags.items())]
        store.call(path, "complete_multipart_upload", {**upload, "MultipartUpload": {"Parts": parts}})
    except BaseException:
        # The service keeps, and charges for, the parts of an upload that is neither completed nor aborted.
        with suppress(TargetNotWritableError):
            store.call(path, "abort_multipart_upload", upload)
        raise


def _check_unchanged(store: ObjectStore, path: str, etag: str) -> None:
    if store.info(path).get("ETag", "") != etag:
        msg = f"'{path}' at '{store.label}' was written to meanwhile. Try again."
        raise TargetNotWritableError(msg)

"""The unpacked form of a compressed file, in a file without a name on the local disk that vanishes when closed."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from colabstage.errors import NotEnoughSpaceError
from colabstage.fileops import make_folder
from colabstage.ownership import remove_own, temp_beside
from colabstage.trees.archive_bytes import OwnBytes
from colabstage.trees.decompress import ReadAhead, open_stream
from colabstage.trees.names import ArchiveLimits, check_limits
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Generator
    from io import FileIO
    from pathlib import Path

    from colabstage.progress import Cancellation
    from colabstage.trees.tree import ByteSource

_SPOOL_BYTES = 4 << 20


def unpack_into(
    spool: Path, source: ByteSource, limits: ArchiveLimits, cancellation: Cancellation | None = None
) -> OwnBytes:
    """Decompress `source` into a file in the folder `spool`, which is made if need be.

    Raises:
        CorruptArchiveError: the stream is truncated or damaged.
        UnsafeArchiveError: it unpacks to more than `limits` allow; found while unpacking.
        NotEnoughSpaceError: it does not fit.
        TargetNotWritableError: nothing can be written in `spool`.
        CancelledError: `cancellation` was used.
    """
    make_folder(spool)
    path = temp_beside(spool / "unpacked")
    written = 0
    try:
        with (
            path.open("xb", buffering=0) as out,
            ReadAhead(_unpacked(source, cancellation), cancellation=cancellation) as pieces,
        ):
            for piece in pieces:
                written += len(piece)
                check_limits(source.label, 0, written, source.size, limits)
                _write(out, piece)
        return OwnBytes(path, label=source.label)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        msg = (
            f"'{source.label}' does not fit in '{spool}' when unpacked: the disk was full after "
            f"{format_bytes(written)}. Free some space or name a folder on a larger disk."
        )
        raise NotEnoughSpaceError(msg) from error
    finally:
        remove_own(path)


def _unpacked(source: ByteSource, cancellation: Cancellation | None) -> Generator[bytes]:
    """The content in pieces. Opened and closed by the thread that reads: closing waits for a read that hangs."""
    with open_stream(source, cancellation) as stream:
        while piece := stream.read(_SPOOL_BYTES):
            yield piece


def _write(out: FileIO, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[out.write(view) :]

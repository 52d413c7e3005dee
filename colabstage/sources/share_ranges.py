"""A file behind a Google Drive link whose parts are read, and which is never here whole.

gdown brings whole files; Google's download address gives ranges as well, as any web server does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from colabstage.errors import ColabstageError, SourceReadError, WebPageError
from colabstage.io.progress import Cancellation
from colabstage.io.retry import RetryPolicy
from colabstage.sources.http_file import HttpFile, open_http
from colabstage.sources.remote import TransientError
from colabstage.sources.share_service import DOWNLOADS, IN_FLIGHT, DriveWeb, link_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.sources.remote import RemoteFacts
    from colabstage.sources.share_pages import ShareLink

_POLICY = RetryPolicy(attempts=4, first_wait_s=1.0)


class SharedRanges:
    """A `RemoteFile` behind a link. Made by `open_shared`."""

    def __init__(self, link: ShareLink, facts: RemoteFacts, file: HttpFile) -> None:
        self._link, self._file = link, file
        self.facts = facts

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`; a page in place of the bytes is told in Drive's own terms.

        Raises:
            DriveQuotaError: too many downloads of it, or too many requests from here.
        """
        try:
            yield from self._file.read_range(offset, length)
        except WebPageError as error:
            raise _explained(self._link, error) from error

    def close(self) -> None:
        """Hang up, also on parts that are being read."""
        self._file.close()


def open_shared(link: ShareLink, facts: RemoteFacts) -> SharedRanges:
    """Open a file of which `share_link_facts` has told that it gives ranges.

    Raises:
        DriveQuotaError, SourceAccessError, SourceNotFoundError, SourceReadError: Drive refuses.
    """
    query = urlencode({**link_query(link), "export": "download", "confirm": "t"})
    try:
        file = open_http(f"{DOWNLOADS}?{query}", policy=_POLICY)
    except WebPageError as error:
        raise _explained(link, error) from error
    # In the state that a download of all of it would note. More at once look like a machine, which Google refuses.
    found = replace(facts, connections=IN_FLIGHT, eager=False)
    if not file.facts.ranges or file.facts.size != facts.size:
        file.close()
        msg = f"Google Drive does not give parts of '{link.label}' now. Try again later."
        raise SourceReadError(msg)
    return SharedRanges(link, found, file)


def _explained(link: ShareLink, error: ColabstageError) -> ColabstageError:
    """Return what a page in place of a file means: Drive is asked once more."""
    try:
        with DriveWeb(cancellation=Cancellation(), policy=_POLICY) as web:
            web.facts(link)
    except TransientError:
        return error
    except ColabstageError as told:
        return told
    return TransientError(f"Google Drive gave a page in place of '{link.label}'.")

"""Download a source in full before it is read: from Kaggle, a share link, or a server without ranges.

The source's state is recorded from the first byte on, so the call after a kill finds the download, and continues or
removes it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from colabstage.errors import ChecksumMismatchError
from colabstage.io.files import read_json, write_json
from colabstage.io.workspace import (
    find_orphans,
    is_our_name,
    leave_for_next,
    remove_own,
    rename_own,
    take_orphan,
    temp_beside,
)
from colabstage.sources.parse import ShareSource
from colabstage.sources.remote import check_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.progress import Cancellation, Progress
    from colabstage.sources.parse import KaggleSource
    from colabstage.sources.remote import Checksum, RemoteFacts

_STATE = "state.json"
_CONTENT = "content"
_COMING = "coming"
_VERSION = "version.json"


class Download:
    """The download of one source, which stays until `discard`, or until another run takes it over after `close`.

    Args:
        lasting: the name that it is made for, in a folder that exists.
        state: which source in which state; what a dead process left is continued only if it says the same. `None`
            where the source did not say now: then whatever is there is continued, and keeps its state. What is
            continued compares it again.
    """

    def __init__(self, lasting: Path, state: str | None) -> None:
        self.folder = temp_beside(lasting)
        self._closed = False
        # Nothing from another state of the source can be used: half of one version and half of another would be
        # neither.
        for orphan in find_orphans(lasting):
            if state is not None and read_json(orphan / _STATE) != {"state": state}:
                remove_own(orphan)
                continue
            if take_orphan(orphan, self.folder):
                break
        for part in (_CONTENT, _COMING):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        if state is not None or not (self.folder / _STATE).exists():
            write_json(self.folder / _STATE, {"state": state})

    def fetch(self, bring: Callable[[Path], Path]) -> tuple[Path, bool]:
        """Return what `bring` creates in the given folder, or what an earlier run left there.

        It counts as complete only once `bring` has returned.

        Returns:
            Its path, and whether an earlier run had brought it.
        """
        content, coming = self.folder / _CONTENT, self.folder / _COMING
        # It was renamed in one step when it was complete.
        whole = list(content.iterdir())
        if whole:
            return whole[0], True
        for refused in coming.iterdir():
            # What can be continued has an owned temporary name; the rest arrived completely once, and was refused.
            if not is_our_name(refused.name):
                remove_own(refused)
        path = bring(coming)
        if not path.is_relative_to(coming):
            return path, False
        return rename_own(path, content / path.name), False

    @property
    def version(self) -> str:
        """The service's name for the downloaded version; "" if it did not say."""
        found = read_json(self.folder / _VERSION)
        return found if isinstance(found, str) else ""

    def note_version(self, version: str) -> None:
        """Record the version of the content."""
        write_json(self.folder / _VERSION, version)

    def close(self) -> None:
        """Leave what has arrived for the next run. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        # An empty folder would only make the next run look for something to continue.
        if any(any((self.folder / part).iterdir()) for part in (_CONTENT, _COMING)):
            with contextlib.suppress(OSError):
                leave_for_next(self.folder)
                return
        remove_own(self.folder)

    def discard(self) -> None:
        """Keep nothing. Calling it twice is fine."""
        self._closed = True
        remove_own(self.folder)


@dataclass(slots=True)
class Brought:
    """A complete download, from now or from an interrupted run."""

    path: Path
    """The file or folder."""
    download: Download
    """Where it is."""
    resumed: bool
    """Whether an earlier run had brought all of it."""
    version: str
    """The service's name for its version; "" if unknown."""
    facts: RemoteFacts | None = None
    """The service's facts about it; `None` if it reports none."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the report."""

    @property
    def movable(self) -> bool:
        """Return whether it was downloaded for this call, so that it may be moved instead of copied."""
        # Files that lie in a service's own cache, or on its mount, belong to others.
        return self.path.is_relative_to(self.download.folder)


def bring(
    source: ShareSource | KaggleSource,
    lasting: Path,
    *,
    progress: Progress,
    cancellation: Cancellation,
    checksum: Checksum | None,
) -> Brought:
    """Download the target of a share link, or a dataset on Kaggle; `lasting`: as in `Download`.

    Raises:
        Exception: as `download_share_link` and `open_kaggle`.
    """
    # Imported where needed: each of these loads libraries that local files do not need.
    facts: RemoteFacts | None = None
    notes: list[str] = []
    version = ""
    if isinstance(source, ShareSource):
        from colabstage.sources.share_download import download_share_link, share_link_facts

        facts = share_link_facts(source.link, cancellation=cancellation)
        # If the service does not answer now, the earlier download is continued, and compared later.
        state = None if facts is None else f"{source.address} {facts.size} {facts.version}"

        def fetch(into: Path) -> Path:
            return download_share_link(
                source.link, into, progress=progress, cancellation=cancellation, checksum=checksum, note=notes.append
            )
    else:
        from colabstage.sources.kaggle_datasets import open_kaggle

        state = source.address

        def fetch(into: Path) -> Path:
            nonlocal version
            files = open_kaggle(source.dataset, into, progress=progress, cancellation=cancellation)
            notes.extend(files.notes)
            version = files.version
            return files.path

    download = Download(lasting, state)
    with contextlib.ExitStack() as undo:
        undo.callback(download.close)
        path, resumed = download.fetch(fetch)
        if resumed and checksum is not None and path.is_file():
            # The earlier run may have had another checksum, or none.
            try:
                check_file(path, checksum, source.label)
            except ChecksumMismatchError:
                download.discard()
                raise
        if version:
            download.note_version(version)
        version = download.version if facts is None else facts.version
        undo.pop_all()
    return Brought(path, download, resumed, version, facts, notes)

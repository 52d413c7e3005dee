"""Ask Google Drive about shared links: their kind, name, size and contents, and parts of files.

Folders are listed from the page that shows them inside other pages. One request for the first byte of a file returns
its name, its size and whether it has changed. Google's download address supports ranges like any web server.
"""

from __future__ import annotations

import itertools
import posixpath
import urllib.parse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from colabstage.errors import (
    ColabstageError,
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
    said_by,
)
from colabstage.io.files import Closing, RetryPolicy
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import Cancellation
from colabstage.sources.http_answers import disposition_name
from colabstage.sources.http_file import HttpFile, open_known
from colabstage.sources.http_session import innermost
from colabstage.sources.parse import ShareSource
from colabstage.sources.remote import RemoteFacts, RemoteFile, TransientError, given_up
from colabstage.sources.share_gdown import list_folder_by_gdown
from colabstage.sources.share_pages import (
    ShareLink,
    WebAnswer,
    confirmation_address,
    judge_answer,
    page_instead_of_data,
    parse_share_link,
    read_folder_page,
    safe_name,
)
from colabstage.trees.names import parent_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


T = TypeVar("T")
R = TypeVar("R")

_CONNECT_TIMEOUT_S = 20.0
_READ_TIMEOUT_S = 60.0
# Requests at once; with more of them, Google takes this machine for a robot.
IN_FLIGHT = 6
# Where files are downloaded from.
_DOWNLOADS = "https://drive.usercontent.google.com/download"
# Drive's pages have some kilobytes; a listing has about a kilobyte per entry.
_MAX_PAGE_BYTES = 64 * 1024 * 1024
_MAX_DEPTH = 50
_AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36"


@dataclass(frozen=True, slots=True)
class SharedFile:
    """Describe a file in a shared folder."""

    link: ShareLink
    """The link to it."""
    name: str
    """Its name in the tree, including folders."""


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """Hold all files of a shared folder."""

    name: str
    """The folder's name."""
    files: tuple[SharedFile, ...]
    """The files, with unique names."""
    notes: tuple[str, ...]
    """What was left out or renamed, one sentence each."""


class DriveWeb(Closing):
    """Ask Google Drive's public pages; thread-safe. Use it in a `with` block."""

    def __init__(self, *, cancellation: Cancellation, policy: RetryPolicy) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._session = requests.Session()
        # The length of a compressed answer would not be that of the file.
        self._session.headers.update({"User-Agent": _AGENT, "Accept-Encoding": "identity"})
        self._session.mount("https://", HTTPAdapter(pool_maxsize=IN_FLIGHT))
        self._cancellation = cancellation
        self._policy = policy

    def close(self) -> None:
        """Release its connections."""
        self._session.close()

    def resolve(self, link: ShareLink) -> ShareLink:
        """Return the link with its kind; Drive is asked if that is unknown.

        Raises:
            OptionError: it is a Google document.
            SourceAccessError, SourceNotFoundError, DriveQuotaError: Drive refuses.
        """
        if link.kind != "unknown":
            return link
        answer = self._ask("https://drive.google.com/open", link_query(link), link.label, redirects=False)
        found = parse_share_link(urllib.parse.urljoin(answer.url, answer.headers.get("Location", "")))
        # Drive redirected elsewhere, for example to a login: asking for the file itself shows what is wrong.
        if found is None or found.id != link.id or found.kind == "unknown":
            return ShareLink("file", link.id, link.resource_key)
        return ShareLink(found.kind, link.id, link.resource_key or found.resource_key)

    def find(self, link: ShareLink) -> tuple[RemoteFacts, WebAnswer]:
        """Return the name, size and version of a shared file, and the answer with its first byte that contained them.

        Raises:
            OptionError: it is a Google document.
            SourceAccessError, SourceNotFoundError, DriveQuotaError: Drive refuses.
            WebPageError: the answer is any other page.
            SourceReadError: no answer after all tries.
        """
        query = {**link_query(link), "export": "download", "confirm": "t"}
        try:
            answer = self._ask(_DOWNLOADS, query, link.label, first_byte=True)
        except TransientError:
            # Drive also answers requests for Google documents with status 500.
            self.resolve(ShareLink("unknown", link.id, link.resource_key))
            raise
        # Large files are only sent after a page that says that they were not scanned for viruses.
        form = "" if "Content-Disposition" in answer.headers else confirmation_address(answer.text)
        if form:
            answer = self._ask(form, {}, link.label, first_byte=True)
        # Only data has a file name; pages do not.
        if "Content-Disposition" not in answer.headers:
            raise page_instead_of_data(link.label, answer)
        facts = RemoteFacts(
            label=link.label,
            name=safe_name(disposition_name(answer.headers) or link.id),
            size=_total_bytes(answer),
            version=" ".join(filter(None, map(answer.headers.get, ("ETag", "Last-Modified", "x-goog-hash")))),
            ranges=answer.status in (206, 416),
            connections=1,
        )
        return facts, answer

    def list_folder(self, link: ShareLink) -> SharedFolder:
        """Return every file in a shared folder and the folders below it, with unique names.

        Google documents are left out with a note. Files with the same name, which Drive allows, get ` (1)` and so on,
        as in Drive's own mount.

        Raises:
            SourceAccessError, SourceNotFoundError, DriveQuotaError: Drive refuses.
            WebPageError: a page cannot be understood, not by gdown either.
            SourceReadError: a folder contains something that is neither a file nor a folder, or there was no answer
                after all tries.
        """
        try:
            return self._walk_folder(link)
        except WebPageError as unknown:
            # Not even the folder's name can be read from such a page.
            files = [SharedFile(file, name) for file, name in list_folder_by_gdown(link, unknown)]
            named, renamed = name_apart(files)
            # It silently leaves out links that it does not know.
            note = (
                f"Google Drive shows '{link.label}' on a page that colabstage does not know. gdown found "
                f"{len(named):,} files there; compare that with what Drive shows in a browser."
            )
            return SharedFolder(safe_name(link.id), tuple(named), (note, *renamed))

    def _walk_folder(self, link: ShareLink) -> SharedFolder:
        title = ""
        found: list[SharedFile] = []
        notes: list[str] = []
        # For each folder, its name in the tree, and the ids on the path to it.
        level: list[tuple[str, frozenset[str], ShareLink]] = [("", frozenset(), link)]
        for _ in range(_MAX_DEPTH):
            pages = self.map_in_parallel(self._folder_page, [folder for _, _, folder in level])
            title = title or pages[0][0]
            below: list[tuple[str, frozenset[str], ShareLink]] = []
            for (prefix, above, folder), (_, entries) in zip(level, pages, strict=True):
                files, folders, left_out = _sort_entries(folder, entries, prefix)
                found += files
                notes += left_out
                way = above | {folder.id}
                # A shortcut may lead back to a parent.
                below += [(name, way, one) for name, one in folders if one.id not in way]
            level = below
            if not level:
                break
        else:
            msg = f"'{link.label}' has folders nested deeper than {_MAX_DEPTH}. Share one further down."
            raise SourceReadError(msg)
        named, renamed = name_apart(found)
        return SharedFolder(safe_name(title), tuple(named), (*notes, *renamed))

    def map_in_parallel(self, ask: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return `ask(item)` for each item, several at once, in order."""
        with DaemonPool(IN_FLIGHT, "colabstage-drive") as pool:
            # Each request has its own tries and ends by itself.
            return pool.run(ask, items, cancellation=self._cancellation, stall_timeout_s=float("inf"))

    def _folder_page(self, link: ShareLink) -> tuple[str, list[tuple[str, str]]]:
        answer = self._ask("https://drive.google.com/embeddedfolderview", link_query(link), link.label)
        title, entries = read_folder_page(answer.text)
        # Otherwise the login page would look like a folder without files.
        if not title or ("flip-entries" not in answer.text and not entries):
            raise page_instead_of_data(link.label, answer)
        return title, entries

    def _ask(
        self, address: str, query: dict[str, str], label: str, *, redirects: bool = True, first_byte: bool = False
    ) -> WebAnswer:
        """Send one request, with retries after transient failures."""
        for tries in range(1, self._policy.attempts + 1):
            self._cancellation.check()
            try:
                return self._ask_once(address, query, label, redirects=redirects, first_byte=first_byte)
            except TransientError:
                if tries == self._policy.attempts:
                    raise
            self._cancellation.sleep(self._policy.first_wait_s * 2 ** (tries - 1))
        raise AssertionError  # the last try returns or raises

    def _ask_once(
        self, address: str, query: dict[str, str], label: str, *, redirects: bool, first_byte: bool
    ) -> WebAnswer:
        import requests

        # One byte is enough to get all facts, whatever the file's size.
        headers = {"Range": "bytes=0-0"} if first_byte else {}
        timeout = (_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S)
        try:
            with self._session.get(
                address, params=query, headers=headers, stream=True, timeout=timeout, allow_redirects=redirects
            ) as response:
                answer = WebAnswer(response.status_code, response.url, response.headers, _page_text(response))
        except requests.RequestException as error:
            # The innermost reason, because outer ones show the address.
            reason = said_by(innermost(error)).splitlines()[0][:200]
            msg = f"Asking Google Drive about '{label}' failed: {reason}."
            raise TransientError(msg) from error
        problem = judge_answer(label, answer)
        if problem is not None:
            raise problem
        return answer


def link_query(link: ShareLink) -> dict[str, str]:
    """Return the query parameters that identify a file in any of Drive's addresses."""
    return {"id": link.id, **({"resourcekey": link.resource_key} if link.resource_key else {})}


def _page_text(response: Any) -> str:
    """Return the text of a web page; "" for a file, which is not read."""
    if "Content-Disposition" in response.headers or "html" not in response.headers.get("Content-Type", ""):
        return ""
    parts = []
    size = 0
    for part in response.iter_content(64 * 1024):
        parts.append(part)
        size += len(part)
        # No page of Drive is this long, and an endless answer is not a page.
        if size > _MAX_PAGE_BYTES:
            break
    return b"".join(parts).decode("utf-8", "replace")


def _total_bytes(answer: WebAnswer) -> int | None:
    """Return the whole file's size: after the slash of `Content-Range`, or the length of an answer with all of it."""
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    if answer.status == 200:
        total = answer.headers.get("Content-Length", "")
    return int(total) if total.isdigit() else None


def _sort_entries(
    parent: ShareLink, entries: Sequence[tuple[str, str]], prefix: str
) -> tuple[list[SharedFile], list[tuple[str, ShareLink]], list[str]]:
    """Return the files, the folders and the notes of one folder's page."""
    files: list[SharedFile] = []
    folders: list[tuple[str, ShareLink]] = []
    notes: list[str] = []
    for shown, href in entries:
        name = prefix + safe_name(shown)
        try:
            link = parse_share_link(href)
        # A link that looks like Drive's but does not lead to a file.
        except OptionError:
            notes.append(f"'{name}' is a Google document, no file, and was left out.")
            continue
        if link is None or link.kind == "unknown":
            msg = (
                f"The folder '{parent.label}' lists '{name}' with a link that is neither a file's nor a folder's "
                f"('{href[:80]}'). Update colabstage, or mount Drive and stage the folder's path there."
            )
            raise SourceReadError(msg)
        if link.kind == "folder":
            folders.append((f"{name}/", link))
        else:
            files.append(SharedFile(link, name))
    return files, folders, notes


def name_apart(files: Sequence[SharedFile]) -> tuple[list[SharedFile], list[str]]:
    """Give each file a name that no other file or folder has; the order of ids decides which keeps the plain one.

    Returns:
        The files ordered by name, and a note for each renamed one.
    """
    taken = parent_folders(file.name for file in files)
    named: list[SharedFile] = []
    notes: list[str] = []
    # Not in the listing's order, which may differ tomorrow.
    for file in sorted(files, key=lambda file: (file.name, file.link.id)):
        name = next(candidate for candidate in _candidates(file.name) if candidate not in taken)
        taken.add(name)
        named.append(SharedFile(file.link, name))
        if name != file.name:
            notes.append(f"The folder has more than one '{file.name}'; one of them is called '{name}' here.")
    return named, notes


def _candidates(name: str) -> Iterator[str]:
    """Yield a name, then the name with each number, as in Drive's own mount."""
    yield name
    stem, suffix = posixpath.splitext(name)
    yield from (f"{stem} ({number}){suffix}" for number in itertools.count(1))


_POLICY = RetryPolicy(attempts=4, first_wait_s=1.0)


# What a web server's answer with a page is taken for, whatever Drive means by it.
_PAGES = (WebPageError, SourceAccessError, SourceNotFoundError)


class SharedRanges(RemoteFile):
    """Read a file behind a link as a `RemoteFile`. Made by `open_shared`."""

    def __init__(self, link: ShareLink, file: HttpFile) -> None:
        self._link, self._file = link, file
        self.facts = file.facts

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`; a page in place of the bytes is reported in Drive's own terms.

        Raises:
            DriveQuotaError: too many downloads of the file, or too many requests from here.
        """
        try:
            yield from self._file.read_range(offset, length)
        except _PAGES as error:
            raise _explained(self._link, error) from error

    def close(self) -> None:
        """Close the connections, also of parts that are being read."""
        self._file.close()


def list_shared(source: ShareSource) -> dict[str, ShareSource]:
    """Return the files of a shared folder and its subfolders by name; for a link to one file, only that file.

    Raises:
        OptionError, SourceAccessError, SourceNotFoundError, DriveQuotaError, SourceReadError: Drive refuses.
    """
    with given_up(), DriveWeb(cancellation=Cancellation(), policy=_POLICY) as web:
        link = web.resolve(source.link)
        if link.kind != "folder":
            found, _ = web.find(link)
            return {found.name: _source_of(link, found.name)}
        return {file.name: _source_of(file.link, file.name) for file in web.list_folder(link).files}


def _source_of(link: ShareLink, name: str) -> ShareSource:
    return ShareSource(f"gdrive:{link.id}", name.rpartition("/")[2], link.label, link)


def open_shared_file(source: ShareSource) -> SharedRanges:
    """Ask Drive about one file behind a link, and open it.

    Raises:
        OptionError, SourceAccessError, SourceNotFoundError, DriveQuotaError, SourceReadError: Drive refuses.
    """
    with DriveWeb(cancellation=Cancellation(), policy=_POLICY) as web:
        return open_shared(source.link, *web.find(source.link))


def open_shared(link: ShareLink, facts: RemoteFacts, answer: WebAnswer) -> SharedRanges:
    """Open a file with the facts from `DriveWeb.find`; without further requests before it is read."""
    # In the state that a whole download would note. More connections look like a robot, which Google refuses.
    found = replace(facts, connections=IN_FLIGHT, eager=False)
    return SharedRanges(link, open_known(answer.url, found, answer.headers))


def _explained(link: ShareLink, error: ColabstageError) -> ColabstageError:
    """Return the meaning of a page in place of a file, by asking Drive once more."""
    try:
        with DriveWeb(cancellation=Cancellation(), policy=_POLICY) as web:
            web.find(link)
    except TransientError:
        return error
    except ColabstageError as told:
        return told
    return TransientError(f"Google Drive gave a page in place of '{link.label}'.")

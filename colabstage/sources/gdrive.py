"""The files behind Google Drive's share links.

A shared file is a file on the web: Google's download address serves ranges. Instead of data Drive may send a page,
whose text says what is wrong, or whose form confirms the download. gdown reads the pages of shared folders.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from colabstage.errors import (
    DriveQuotaError,
    MissingDependencyError,
    SourceAccessError,
    SourceNotFoundError,
    WebPageError,
)
from colabstage.io.files import RetryPolicy, hash_block
from colabstage.io.pipeline import DaemonPool
from colabstage.sources.http_file import HttpFile, WebAnswer, ask_service, open_http, page_title, shorten_name
from colabstage.sources.parse import ShareSource, parse_service
from colabstage.sources.remote import Access, TransientError, with_retries
from colabstage.trees.names import distinct_names, parent_folders

if TYPE_CHECKING:
    from colabstage.io.progress import Cancellation

_DOWNLOADS = "https://drive.usercontent.google.com/download"
_FOLDER_PAGE = "https://drive.google.com/embeddedfolderview"
_AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36"
# Requests at once; with more, Google takes this machine for a robot.
IN_FLIGHT = 6
# File systems allow 255 bytes, and the suffix of a temporary file has to fit too.
_NAME_BYTES = 240

_OWN_COPY = (
    "Either wait, up to 24 hours; or open the link in a browser, make a copy in your own Drive (for a folder: add a "
    "shortcut and copy the files), mount your Drive and stage the copy's path: a copy has a quota of its own."
)
_QUOTA = re.compile(
    r"too many users have viewed or downloaded|quota (?:for this file )?(?:has been |was )?exceeded|"
    r"can(?:'|’|&#39;)?(?:no)?t view or download this file at this time",
    re.IGNORECASE,
)
_AUTOMATED = re.compile(r"automated queries|unusual traffic", re.IGNORECASE)


def open_share(link: ShareSource, access: Access = Access()) -> HttpFile | SharedFolder:  # noqa: B008 - frozen
    """Open what a link leads to; Drive is asked if the link does not say it."""
    link = _resolve_link(link, access.policy)
    if link.kind == "folder":
        return list_shared_folder(link, policy=access.policy, cancellation=access.cancellation)
    query = {**link.query, "export": "download", "confirm": "t"}
    file = open_http(
        f"{_DOWNLOADS}?{urlencode(query)}",
        access,
        resolve=lambda: _confirmed_address(link, query),
        label=link.label,
        agent=_AGENT,
    )
    version = " ".join(filter(None, map(file.headers.get, ("ETag", "Last-Modified", "x-goog-hash"))))
    # More connections than this look like a robot, which Google refuses.
    file.facts = replace(file.facts, version=version, mtime_ns=0, connections=IN_FLIGHT)
    return file


def _resolve_link(link: ShareSource, policy: RetryPolicy) -> ShareSource:
    if link.kind != "unknown":
        return link
    answer = _ask(link, "https://drive.google.com/open", policy, redirects=False)
    found = parse_service(urljoin(answer.url, answer.headers.get("Location", "")))
    # Drive redirected elsewhere, for example to a login: asking for the file itself shows what is wrong.
    if not isinstance(found, ShareSource) or found.id != link.id or found.kind == "unknown":
        return replace(link, kind="file")
    return replace(found, resource_key=link.resource_key or found.resource_key)


def _ask(link: ShareSource, address: str, policy: RetryPolicy, *, redirects: bool = True) -> WebAnswer:
    def ask() -> WebAnswer:
        answer = ask_service(address, link.label, params=link.query, redirects=redirects, agent=_AGENT)
        _judge_answer(link.label, answer)
        return answer

    return with_retries(ask, policy)


def _confirmed_address(link: ShareSource, query: dict[str, str]) -> str:
    """Return the address that a file is downloaded from, by asking for the page that came in its place: large files are
    only sent after a page that says that they were not scanned for viruses.
    """
    answer = ask_service(_DOWNLOADS, link.label, params=query, agent=_AGENT)
    # Drive also answers requests for documents with status 500.
    if answer.status >= 500:
        _resolve_link(replace(link, kind="unknown"), RetryPolicy(attempts=1))
    _judge_answer(link.label, answer)
    if "Content-Disposition" in answer.headers:
        return answer.url
    page = _Form(answer.text)
    if not page.form:
        raise _page_instead_of_data(link.label, answer)
    parts = urlsplit(page.form)
    return urlunsplit(parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), **page.fields})))


@dataclass(frozen=True, slots=True)
class SharedFolder:
    files: dict[str, ShareSource]
    """The link to each file by its name, which is unique, with folders."""
    notes: tuple[str, ...]
    """One sentence for each file that was left out or renamed."""

    @property
    def version(self) -> str:
        """Return a text that changes when files come, go or are renamed, not when one changes in place."""
        return hash_block("\n".join(f"{link.id} {name}" for name, link in self.files.items()).encode())


def list_shared_folder(
    link: ShareSource, *, policy: RetryPolicy, cancellation: Cancellation | None = None
) -> SharedFolder:
    """List a shared folder and everything below it. Google's documents, which are not files, are left out.

    Files with the name of another one or of a folder, which Drive allows, get numbers.
    """
    notes = list[str]()
    found: list[tuple[str, ShareSource]] = []
    # For each folder, its name in the tree, and the ids on the path to it.
    level: list[tuple[str, frozenset[str], ShareSource]] = [("", frozenset(), link)]
    while level:
        with DaemonPool(min(IN_FLIGHT, len(level)), "colabstage-drive") as pool:
            pages = pool.run(
                lambda at: _read_folder(at[2], policy),
                level,
                cancellation=cancellation,
                # Each request has its own tries and ends by itself.
                stall_timeout_s=float("inf"),
            )
        below = []
        for (prefix, above, folder), entries in zip(level, pages, strict=True):
            way = above | {folder.id}
            for identity, shown, kind in entries:
                name = prefix + _safe_name(shown)
                if kind.endswith("apps.folder"):
                    # A shortcut may lead back to a parent.
                    below += [(f"{name}/", way, ShareSource("folder", identity))] if identity not in way else []
                elif ".google-apps." in kind:
                    notes.append(f"'{name}' is a Google document, no file, and was left out.")
                else:
                    found.append((name, ShareSource("file", identity)))
        level = below
    # Not in the listing's order, which may differ tomorrow.
    found.sort(key=lambda file: (file[0], file[1].id))
    folders = sorted(parent_folders(name for name, _ in found))
    names = distinct_names([*folders, *(name for name, _ in found)], of_files=True)[len(folders) :]
    for name, (wanted, _) in zip(names, found, strict=True):
        if name != wanted:
            notes.append(f"The folder has more than one '{wanted}'; one of them is called '{name}' here.")
    return SharedFolder(dict(zip(names, (file for _, file in found), strict=True)), tuple(notes))


def _read_folder(link: ShareSource, policy: RetryPolicy) -> list[tuple[str, str, str]]:
    """Return the id, name and media type of each entry of a folder, whose page gdown reads.

    gdown's public function asks for each document too, and gives up at one that cannot be exported.
    """
    import gdown

    try:
        read: Any = import_module("gdown.download_folder")._parse_embedded_folder_view
    except (ImportError, AttributeError):
        # The version imported by an earlier cell counts, whatever was installed since.
        version = getattr(gdown, "__version__", "another version")
        msg = (
            f"Listing a shared folder needs gdown 6.3 to 6.5, and {version} is loaded. Run: %pip install -q "
            '"gdown>=6.3,<6.6", restart the session, and try again.'
        )
        raise MissingDependencyError(msg) from None
    answer = _ask(link, _FOLDER_PAGE, policy)
    page = SimpleNamespace(status_code=answer.status, text=answer.text)
    session = SimpleNamespace(get=lambda *_, **__: page)
    try:
        _, entries = read(sess=session, folder_id=link.id, verify=True, timeout=None)
    # The error that gdown raises for a page without a title.
    except Exception as error:
        raise _page_instead_of_data(link.label, answer) from error
    # Otherwise an unknown page would look like a folder without files.
    if not entries and "flip-entries" not in answer.text:
        raise _page_instead_of_data(link.label, answer)
    return list(entries)


class _Form(HTMLParser):
    """Read the form `download-form` of a page of Drive's: its address and hidden fields."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.form = ""
        self.fields: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "form" and found.get("id") == "download-form":
            self.form = found.get("action", "")
        elif tag == "input" and self.form and found.get("type") == "hidden" and found.get("name"):
            self.fields[found["name"]] = found.get("value", "")


def _judge_answer(label: str, answer: WebAnswer) -> None:
    """Raise the error that an answer means, unless it is data or an expected page."""
    parts, status = urlsplit(answer.url), answer.status
    # The text first, because Drive reports a used-up quota with status 200, 403 or 404. The page that asks for proof of
    # being human is for a person.
    is_robot = status == 429 or parts.path.startswith("/sorry") or _AUTOMATED.search(answer.text)
    if is_robot or _QUOTA.search(answer.text):
        why = "too many requests came from this machine's address, which it may share with others"
        why = why if is_robot else "too many users have viewed or downloaded it"
        msg = f"Google Drive currently refuses '{label}': {why}. {_OWN_COPY}"
        raise DriveQuotaError(msg)
    # For a file that is not shared, Drive redirects to the login page, with status 200.
    if parts.hostname == "accounts.google.com" or status in (401, 403):
        msg = (
            f"'{label}' is not shared with everyone. In Google Drive choose Share, General access, 'Anyone with the "
            "link', and allow viewers to download; or add a shortcut to it in your own Drive, mount your Drive and "
            "stage the path there."
        )
        raise SourceAccessError(msg)
    if status in (404, 410):
        msg = f"Google Drive knows nothing at '{label}'. Was the link cut off when it was copied, or the file deleted?"
        raise SourceNotFoundError(msg)
    if status >= 400:
        kind = TransientError if status >= 500 else WebPageError
        msg = f"Google Drive answered '{label}' with status {status}; expected the file."
        raise kind(msg)


def _page_instead_of_data(label: str, answer: WebAnswer) -> WebPageError:
    title = page_title(answer.text.encode())
    titled = f" titled '{title}'" if title else ""
    return WebPageError(
        f"Google Drive answered '{label}' with a web page{titled} instead of the file. Open the link in a browser to "
        "see what it says; make a copy in your own Drive, mount it and stage the path there if the file itself is fine."
    )


def _safe_name(name: str) -> str:
    # Drive allows anything as a name, slashes included.
    flat = re.sub(r"[/\\\x00-\x1f]", "_", name).strip()
    if flat.startswith(".colabstage-"):
        flat = f"_{flat}"  # that prefix marks colabstage's temporary files
    return "_" if flat in ("", ".", "..") else shorten_name(flat, _NAME_BYTES)

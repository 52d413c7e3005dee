"""Parse Google Drive's links and pages, without a connection: the links that people paste, and Drive's answers.

Drive reports most failures as a page instead of the file, so the text of every answer that is not data is checked.
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Literal

from colabstage.errors import (
    ColabstageError,
    DriveQuotaError,
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    WebPageError,
)
from colabstage.io.redaction import show_address
from colabstage.sources.remote import TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOSTS = frozenset({"drive.google.com", "docs.google.com", "drive.usercontent.google.com", "www.drive.google.com"})
_ID = r"[-\w]{10,}"
_FILE = re.compile(rf"/file(?:/u/\d+)?/d/({_ID})")
_FOLDER = re.compile(rf"/(?:drive|folders?)(?:/u/\d+)?(?:/mobile)?/(?:folders/)?({_ID})|#folders/({_ID})")
_NATIVE = re.compile(r"/(document|spreadsheets|presentation|forms|drawings|drawing|script)(?:/u/\d+)?/d/")
_FOLDER_PATHS = frozenset({"/folderview", "/embeddedfolderview"})
# Ids of files have 28 to 44 characters, those of shared drives 19; shorter text is somebody's file name.
_BARE = re.compile(r"\A[-\w]{19,64}\Z")
_NATIVE_NAMES = {
    "document": "Google Docs document",
    "spreadsheets": "Google Sheets spreadsheet",
    "presentation": "Google Slides presentation",
}


@dataclass(frozen=True, slots=True)
class ShareLink:
    """Describe a file or folder that is shared on Google Drive."""

    kind: Literal["file", "folder", "unknown"]
    """The kind of object; "unknown" for links such as `open?id=`, which do not say it; then Drive is asked."""
    id: str
    """Drive's id."""
    resource_key: str = ""
    """The resource key in links to items shared before 2021; "" for all others."""

    @property
    def label(self) -> str:
        """Return the link as shown in messages, without its resource key."""
        if self.kind == "folder":
            return f"https://drive.google.com/drive/folders/{self.id}"
        return f"https://drive.google.com/file/d/{self.id}" if self.kind == "file" else f"gdrive://{self.id}"


def parse_share_link(text: str, *, bare_id: bool = False) -> ShareLink | None:
    """Read a link to Google Drive in any form that people paste.

    Args:
        text: a web address with or without `https://`, `gdrive://ID`, or `gdrive://folders/ID`.
        bare_id: whether an id alone is accepted, although a file name could look the same.

    Returns:
        The link; `None` for everything that is not a link to Google Drive.

    Raises:
        OptionError: it is a link to Google Drive, but not to a file or folder.

    >>> parse_share_link("https://drive.google.com/file/d/1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvW/view?usp=sharing").kind
    'file'
    """
    # Links may be pasted with surrounding quotation marks or angle brackets.
    cleaned = text.strip().strip("<>\"'").strip()
    if cleaned.startswith("gdrive://"):
        return _own_form(cleaned)
    if bare_id and _BARE.match(cleaned):
        return ShareLink("unknown", cleaned)
    parts = page_address(cleaned, _HOSTS)
    if parts is None:
        return None
    # When a parameter is given twice, Drive takes the first one.
    query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
    # Addresses of Google Workspace begin with the domain: /a/example.org/file/d/…
    path = re.sub(r"\A/a/[^/]+", "", parts.path)
    if native := _NATIVE.match(path):
        raise document_error(show_address(cleaned).partition("?")[0], native[1])
    kind, found = _kind_and_id(path, parts.fragment, query)
    if not found:
        msg = (
            f"'{show_address(text)}' leads to Google Drive, but not to one file or folder. Open it there, choose "
            "Share and Copy link; for your own Drive, mount it and give the path."
        )
        raise OptionError(msg)
    return ShareLink(kind, found, query.get("resourcekey", ""))


def _own_form(text: str) -> ShareLink:
    match = re.fullmatch(rf"gdrive://(?:(files?|folders?)/)?({_ID})/?(?:\?resourcekey=([-\w]+))?", text)
    if match is None:
        msg = (
            f"'{show_address(text)}' is not a link to Google Drive. Write gdrive://ID, or gdrive://folders/ID for a "
            "folder."
        )
        raise OptionError(msg)
    kind: Literal["file", "folder", "unknown"] = "unknown"
    if match[1]:
        kind = "folder" if match[1].startswith("folder") else "file"
    return ShareLink(kind, match[2], match[3] or "")


def page_address(text: str, hosts: frozenset[str]) -> urllib.parse.SplitResult | None:
    """Return the parts of a web address at one of `hosts`, with or without its scheme; `None` for anything else."""
    if "://" not in text:
        if text.partition("/")[0].lower() not in hosts:
            return None
        text = f"https://{text}"
    try:
        parts = urllib.parse.urlsplit(text)
        host = parts.hostname
    except ValueError:
        return None
    return parts if parts.scheme.lower() in ("http", "https") and host in hosts else None


def _kind_and_id(path: str, fragment: str, query: dict[str, str]) -> tuple[Literal["file", "folder", "unknown"], str]:
    file = _FILE.match(path)
    if file:
        return "file", file[1]
    folder = _FOLDER.match(path) or _FOLDER.match(f"#{fragment}")
    if folder and "my-drive" not in (folder[1] or "") and "shared-" not in (folder[1] or ""):
        return "folder", folder[1] or folder[2]
    found = query.get("id", "")
    if not re.fullmatch(_ID, found):
        return "unknown", ""
    if path in _FOLDER_PATHS:
        return "folder", found
    return ("file" if path in ("/uc", "/download") else "unknown"), found


def document_error(label: str, kind: str) -> OptionError:
    """Return the error for a Google document, which is not a file until it is exported."""
    name = _NATIVE_NAMES.get(kind, "Google document")
    return OptionError(
        f"'{label}' is a {name}, not a file that can be downloaded. Open it, choose File and Download to make "
        "one (a spreadsheet as CSV, for example), put that on Google Drive and share it."
    )


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
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """Hold an answer without its data."""

    status: int
    """The HTTP status."""
    url: str
    """Where the redirects ended."""
    headers: Mapping[str, str]
    """Its headers."""
    text: str = ""
    """The page; "" for anything else."""


def judge_answer(label: str, answer: WebAnswer) -> ColabstageError | None:
    """Return the error that an answer means, or `None` if it is data or an expected page.

    Args:
        label: the link, for the message.
        answer: the answer.
    """
    # The text first, because Drive reports a used-up quota with status 200, 403 or 404.
    return _quota_error(label, answer) or _drive_error(label, answer)


def _quota_error(label: str, answer: WebAnswer) -> DriveQuotaError | None:
    if _QUOTA.search(answer.text):
        return DriveQuotaError(
            f"Google Drive currently refuses '{label}': too many users have viewed or downloaded it. {_OWN_COPY}"
        )
    # That page asks for proof of being human, which a program cannot give.
    robot = urllib.parse.urlsplit(answer.url).path.startswith("/sorry") or _AUTOMATED.search(answer.text)
    if answer.status == 429 or robot:
        return DriveQuotaError(
            f"Google Drive refuses '{label}' because there were too many requests from this machine's address, which "
            f"it may share with others. {_OWN_COPY}"
        )
    return None


def _drive_error(label: str, answer: WebAnswer) -> ColabstageError | None:
    host = urllib.parse.urlsplit(answer.url).hostname
    # For a file that is not shared, Drive redirects to the login page, with status 200.
    if host == "accounts.google.com" or answer.status in (401, 403):
        return SourceAccessError(
            f"'{label}' is not shared with everyone. In Google Drive choose Share, General access, 'Anyone with the "
            "link', and allow viewers to download; or add a shortcut to it in your own Drive, mount your Drive and "
            "stage the path there."
        )
    if answer.status in (404, 410):
        return SourceNotFoundError(
            f"Google Drive knows nothing at '{label}'. Was the link cut off when it was copied, or the file deleted?"
        )
    if answer.status >= 500:
        return TransientError(f"Google Drive answered '{label}' with status {answer.status}.")
    # 416 is the answer to a range of an empty file, which exists.
    if answer.status >= 400 and answer.status != 416:
        return WebPageError(f"Google Drive answered '{label}' with status {answer.status}; expected the file.")
    return None


def page_instead_of_data(label: str, answer: WebAnswer) -> WebPageError:
    """Return the error for an unknown page in place of a file."""
    found = _TITLE.search(answer.text)
    title = f" titled '{found[1].strip()[:80]}'" if found else ""
    return WebPageError(
        f"Google Drive answered '{label}' with a web page{title} instead of the file. Open the link in a browser to "
        "see what it says; make a copy in your own Drive, mount it and stage the path there if the file itself is fine."
    )


def safe_name(name: str) -> str:
    """Make a name safe for a local file."""
    # Drive allows anything as a name, slashes included.
    flat = re.sub(r"[/\\\x00-\x1f]", "_", name).strip()
    if flat.startswith(".colabstage-"):
        flat = f"_{flat}"  # that prefix marks colabstage's temporary files
    # File systems allow 255 bytes, and the suffix of a temporary file has to fit too.
    while len(flat.encode()) > 240:
        stem, dot, suffix = flat.rpartition(".")
        flat = f"{stem[:-8]}{dot}{suffix}" if len(suffix) < 16 and stem else flat[:-8]
    return "_" if flat in ("", ".", "..") else flat


def read_folder_page(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Read the page `embeddedfolderview`: the folder's name, and the name and link in each line."""
    reader = _FolderReader()
    reader.feed(text)
    reader.close()
    return "".join(reader.title).strip(), reader.entries


def confirmation_address(text: str) -> str:
    """Return the address of the form about the virus scan; "" if there is no such form."""
    # Drive does not scan large files, and asks for a confirmation before it sends them.
    reader = _FormReader()
    reader.feed(text)
    reader.close()
    if not reader.action:
        return ""
    parts = urllib.parse.urlsplit(reader.action)
    query = {**dict(urllib.parse.parse_qsl(parts.query)), **reader.fields}
    return urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))


class _FolderReader(HTMLParser):
    """Collect the title, and every link with its text."""

    def __init__(self) -> None:
        super().__init__()
        self.title: list[str] = []
        self.entries: list[tuple[str, str]] = []
        self._in_title = False
        self._href = ""
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = True
        elif tag == "a":
            self._href = dict(attrs).get("href") or ""
            self._text = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag == "a" and self._href:
            self.entries.append(("".join(self._text).strip(), self._href))
            self._href = ""

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif self._href:
            self._text.append(data)


class _FormReader(HTMLParser):
    """Collect the action and the hidden fields of the form `download-form`."""

    def __init__(self) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "form" and found.get("id") == "download-form":
            self._inside = True
            self.action = found.get("action") or ""
        elif tag == "input" and self._inside and found.get("type") == "hidden" and found.get("name"):
            self.fields[found["name"] or ""] = found.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False

"""What people paste when they mean something on Google Drive, read without a connection."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from typing import Literal

from colabstage.errors import OptionError
from colabstage.redaction import show_address

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
    """A file or folder that somebody shares on Google Drive.

    `kind`: "unknown" where the link does not tell, as `open?id=` does not; Drive is asked then.
    `resource_key`: the second half of links to things shared before 2021; "" for all others.
    """

    kind: Literal["file", "folder", "unknown"]
    id: str
    resource_key: str = ""

    @property
    def label(self) -> str:
        """The link as shown in messages, without its resource key."""
        if self.kind == "folder":
            return f"https://drive.google.com/drive/folders/{self.id}"
        return f"https://drive.google.com/file/d/{self.id}" if self.kind == "file" else f"gdrive://{self.id}"


def parse_share_link(text: str, *, bare_id: bool = False) -> ShareLink | None:
    """Read a link to Google Drive in any form that people paste.

    Args:
        text: a web address with or without `https://`, `gdrive://ID`, or `gdrive://folders/ID`.
        bare_id: whether a lone id counts, which any file name could look like.

    Returns:
        The link; `None` for everything that is no link to Google Drive.

    Raises:
        OptionError: it leads to Google Drive, but to a document without a file behind it, or to nothing in particular.

    >>> parse_share_link("https://drive.google.com/file/d/1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvW/view?usp=sharing").kind
    'file'
    """
    cleaned = text.strip().strip("<>\"'").strip()
    if cleaned.startswith("gdrive://"):
        return _own_form(cleaned)
    if bare_id and _BARE.match(cleaned):
        return ShareLink("unknown", cleaned)
    parts = _address(cleaned)
    if parts is None:
        return None
    query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
    # Addresses of Google Workspace have the domain in front: /a/example.org/file/d/…
    path = re.sub(r"\A/a/[^/]+", "", parts.path)
    _refuse_document(cleaned, path)
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
            f"'{show_address(text)}' is no link to Google Drive. Write gdrive://ID, or gdrive://folders/ID for a "
            "folder."
        )
        raise OptionError(msg)
    kind: Literal["file", "folder", "unknown"] = "unknown"
    if match[1]:
        kind = "folder" if match[1].startswith("folder") else "file"
    return ShareLink(kind, match[2], match[3] or "")


def _address(text: str) -> urllib.parse.SplitResult | None:
    """The parts of an address at Google Drive, `None` for anything else."""
    if "://" not in text:
        if text.partition("/")[0].lower() not in _HOSTS:
            return None
        text = f"https://{text}"
    try:
        parts = urllib.parse.urlsplit(text)
        host = parts.hostname
    except ValueError:
        return None
    return parts if parts.scheme.lower() in ("http", "https") and host in _HOSTS else None


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


def _refuse_document(text: str, path: str) -> None:
    native = _NATIVE.match(path)
    if native:
        raise document_error(show_address(text).partition("?")[0], native[1])


def document_error(label: str, kind: str) -> OptionError:
    """The error for a Google document, which is no file until it is exported."""
    name = _NATIVE_NAMES.get(kind, "Google document")
    return OptionError(
        f"'{label}' is a {name}, which is no file that could be downloaded. Open it, choose File and Download to make "
        "one (a spreadsheet as CSV, for example), put that on Google Drive and share it."
    )

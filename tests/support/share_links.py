"""Google Drive's public pages for shared files and folders, on loopback.

What is imitated, and from which facts:

- `drive.google.com/uc?id=` sends on to `drive.usercontent.google.com/download?id=&export=download`; a file that needs
  a login goes to `accounts.google.com`, an unknown id is a 404, a Google document a 500 (gdown 6.5 takes a 500 for a
  possible document and asks `open?id=`).
- A file too large for Drive's virus scan gives a page with `<form id="download-form">` and hidden `id`, `export`,
  `confirm` and `uuid`, and a cookie (gdown 6.5.1, `get_url_from_gdrive_confirmation`; the form has `confirm=t`).
- A file over its quota gives a page with `<p class="uc-error-subcaption">Too many users have viewed or downloaded this
  file recently.` (the same function reads it; the text is in many issue reports). Too many requests: a redirect to
  `www.google.com/sorry/` and a 429.
- A download has `Content-Disposition`, `Content-Length`, `Accept-Ranges`, `Last-Modified` and `x-goog-hash`.
- `drive.google.com/embeddedfolderview?id=` lists a folder: `<title>` its name, each entry a `div.flip-entry` with a
  link whose host and path tell files, folders and documents apart (gdown 6.5.1, `_parse_embedded_folder_view`). A
  folder that needs a login goes to the login page, which is a 200 without entries.
- An older file or folder needs its resource key, and is as good as private without.

None of it has been compared with the live service from here.
"""

import base64
import hashlib
import html
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.https_hosts import HostAnswer, HostedService, HostRequest, answer_file, answer_page

FileState = Literal["public", "private", "quota", "rate", "busy"]
"""How Drive treats an id: shared, shared with nobody, over its quota, rate-limited, or a 503."""

_SITE = "https://drive.google.com"
_CONTENT = "https://drive.usercontent.google.com"
_MISSING_PAGE = "<html><head><title>Error 404 (Not Found)!!1</title></head><body>404. That's an error.</body></html>"
_QUOTA_PAGE = (
    "<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head><body>"
    '<p class="uc-error-caption">Sorry, you can\'t view or download this file at this time.</p>\n'
    '<p class="uc-error-subcaption">Too many users have viewed or downloaded this file recently. Please try accessing '
    "the file again later. It may take up to 24 hours to be able to view or download the file.</p>\n</body></html>"
)
_SORRY_PAGE = (
    "<html><head><title>Sorry...</title></head><body><h1>We're sorry...</h1><p>... but your computer or network may be "
    "sending automated queries. To protect our users, we can't process your request right now.</p></body></html>"
)


@dataclass(frozen=True, slots=True)
class SharedItem:
    """A file, folder or document on the imitated Drive."""

    id: str
    name: str
    kind: str = "file"
    """`"file"`, `"folder"`, or the kind in a document's link: `"document"`, `"spreadsheets"`, `"forms"` …"""
    content: bytes = b""
    entries: tuple[str, ...] = ()
    state: FileState = "public"
    resource_key: str = ""
    modified: str = "Mon, 02 Mar 2026 10:00:00 GMT"


class DriveShares(HostedService):
    """A Google Drive from which others share, which counts paths of any host. Fill it with `add`, at any time.

    Args:
        folder: where the loopback certificate is written.
        scan_limit_bytes: size above which a file gets the page about the virus scan first (100 MB at Google).
        wants_form: whether only the form on that page gets past it, and no `confirm=t` in the first address.
    """

    def __init__(self, folder: Path, *, scan_limit_bytes: int = 100_000_000, wants_form: bool = False) -> None:
        self._wants_form = wants_form
        self._items: dict[str, SharedItem] = {}
        self._scan_limit_bytes = scan_limit_bytes
        super().__init__(
            {
                "drive.google.com": self._site,
                "docs.google.com": self._documents,
                "drive.usercontent.google.com": self._content,
                "accounts.google.com": self._login,
                "www.google.com": self._sorry,
            },
            folder,
        )

    def add(self, *items: SharedItem) -> None:
        """Add items to the Drive, replacing those with the same ids."""
        for item in items:
            self._items[item.id] = item

    def item(self, item_id: str) -> SharedItem:
        """Return the present item; to change it, `add` another one with its id."""
        return self._items[item_id]

    def _find(self, request: HostRequest) -> SharedItem | HostAnswer:
        """Return a request's item, or the response in its place."""
        self._note(request.path)
        item = self._items.get(request.query.get("id", ""))
        if item is None:
            return answer_page(_MISSING_PAGE, 404)
        if item.state == "private" or request.query.get("resourcekey", "") != item.resource_key:
            return _redirect(f"https://accounts.google.com/v3/signin/identifier?continue={_SITE}/&service=wise")
        if item.state == "rate":
            return _redirect("https://www.google.com/sorry/index?continue=" + urllib.parse.quote(_SITE))
        if item.state == "busy":
            return answer_page("<html><title>Error 503</title></html>", 503)
        return item

    def _site(self, request: HostRequest) -> HostAnswer:
        item = self._find(request)
        if isinstance(item, HostAnswer):
            return item
        if request.path == "/embeddedfolderview" and item.kind == "folder":
            return answer_page(self._folder_page(item))
        if request.path == "/open":
            return _redirect(_address(item))
        if request.path == "/uc" and item.kind == "file":
            query = urllib.parse.urlencode({**request.query, "export": "download"})
            return _redirect(f"{_CONTENT}/download?{query}", 303)
        if request.path == "/uc" and item.kind != "folder":
            return answer_page("<html><title>Error 500</title></html>", 500)
        return answer_page(_MISSING_PAGE, 404)

    def _content(self, request: HostRequest) -> HostAnswer:
        item = self._find(request)
        if isinstance(item, HostAnswer):
            return item
        if item.kind != "file":
            return answer_page("<html><title>Error 500</title></html>", 500)
        if item.state == "quota":
            return answer_page(_QUOTA_PAGE)
        confirmed = "uuid" in request.query if self._wants_form else request.query.get("confirm") == "t"
        if len(item.content) > self._scan_limit_bytes and not confirmed:
            return answer_page(_scan_page(item), headers={"Set-Cookie": "NID=511=imitated; Secure; HttpOnly"})
        return self._bytes(item, request)

    def _bytes(self, item: SharedItem, request: HostRequest) -> HostAnswer:
        quoted = urllib.parse.quote(item.name)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{item.name.encode("ascii", "replace").decode()}"; '
            f"filename*=UTF-8''{quoted}",
            "Last-Modified": item.modified,
            "x-goog-hash": "md5="
            + base64.b64encode(hashlib.md5(item.content, usedforsecurity=False).digest()).decode(),
        }
        return answer_file(request, item.content, headers)

    def _folder_page(self, folder: SharedItem) -> str:
        entries = "".join(_entry(self._items[item_id]) for item_id in folder.entries)
        return (
            f"<html><head><title>{html.escape(folder.name)}</title></head><body>"
            f'<div class="flip-entries">{entries}</div></body></html>'
        )

    def _documents(self, request: HostRequest) -> HostAnswer:
        return answer_page("<html><title>A document - Google Docs</title></html>")

    def _login(self, request: HostRequest) -> HostAnswer:
        return answer_page("<!doctype html><html><head><title>Sign in - Google Accounts</title></head></html>")

    def _sorry(self, request: HostRequest) -> HostAnswer:
        return answer_page(_SORRY_PAGE, 429)


def _redirect(url: str, status: int = 302) -> HostAnswer:
    return HostAnswer(status, {"Location": url, "Content-Type": "text/html"})


def _address(item: SharedItem) -> str:
    key = f"&resourcekey={item.resource_key}" if item.resource_key else ""
    if item.kind == "file":
        return f"{_SITE}/file/d/{item.id}/view?usp=drive_web{key}"
    if item.kind == "folder":
        return f"{_SITE}/drive/folders/{item.id}?usp=drive_web{key}"
    return f"https://docs.google.com/{item.kind}/d/{item.id}/edit?usp=drive_web{key}"


def _entry(item: SharedItem) -> str:
    link = html.escape(_address(item))
    return (
        f'<div class="flip-entry" id="entry-{item.id}" tabindex="0" role="link"><div class="flip-entry-info">'
        f'<a href="{link}" target="_blank"><div class="flip-entry-visual"><img src="x.png" alt="icon"/></div>'
        f'<div class="flip-entry-title">{html.escape(item.name)}</div></a></div>'
        f'<div class="flip-entry-last-modified"><div>3/2/26</div></div></div>'
    )


def _scan_page(item: SharedItem) -> str:
    key = f'<input type="hidden" name="resourcekey" value="{item.resource_key}">' if item.resource_key else ""
    return (
        "<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head><body>"
        '<p class="uc-warning-caption">Google Drive can\'t scan this file for viruses.</p>'
        f'<span class="uc-name-size"><a href="/open?id={item.id}">{html.escape(item.name)}</a> (1.0G)</span>'
        f'<form id="download-form" action="{_CONTENT}/download" method="get">'
        '<input type="submit" id="uc-download-link" value="Download anyway"/>'
        f'<input type="hidden" name="id" value="{item.id}"><input type="hidden" name="export" value="download">{key}'
        '<input type="hidden" name="confirm" value="t"><input type="hidden" name="uuid" value="6f1c2a34-0000">'
        "</form></body></html>"
    )

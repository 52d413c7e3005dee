"""Google Drive's share links: what people paste, and the files behind it.

A shared file is a file on the web: Google's download address serves ranges. gdown lists shared folders. What Drive
answers in place of data is a page, whose text says what is wrong.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal, cast

from colabstage.errors import (
    DriveQuotaError,
    MissingDependencyError,
    OptionError,
    SourceAccessError,
    SourceError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
)
from colabstage.io.files import RetryPolicy, hash_block
from colabstage.io.pipeline import DaemonPool
from colabstage.io.redaction import show_address
from colabstage.sources.http_file import HttpFile, open_http
from colabstage.sources.http_session import WebAnswer, ask_service
from colabstage.sources.remote import RemoteFacts, RemoteFile, TransientError, given_up, with_retries
from colabstage.trees.names import parent_folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from colabstage.io.progress import Cancellation
    from colabstage.sources.remote import Checksum

Kind = Literal["file", "folder", "unknown"]

_HOSTS = frozenset({"drive.google.com", "docs.google.com", "drive.usercontent.google.com", "www.drive.google.com"})
_ID = r"[-\w]{10,}"
_FILE = re.compile(rf"/file(?:/u/\d+)?/d/({_ID})")
_FOLDER = re.compile(rf"/(?:drive|folders?)(?:/u/\d+)?(?:/mobile)?/(?:folders/)?({_ID})|#folders/({_ID})")
_NATIVE = re.compile(r"/(document|spreadsheets|presentation|forms|drawings|drawing|script)(?:/u/\d+)?/d/")
_FOLDER_PATHS = frozenset({"/folderview", "/embeddedfolderview"})
_NATIVE_NAMES = {
    "document": "Google Docs document",
    "spreadsheets": "Google Sheets spreadsheet",
    "presentation": "Google Slides presentation",
}

# Where files are downloaded from.
_DOWNLOADS = "https://drive.usercontent.google.com/download"
_FOLDER_PAGE = "https://drive.google.com/embeddedfolderview"
_AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36"
_POLICY = RetryPolicy(attempts=4, first_wait_s=1.0)
_ONE_TRY = RetryPolicy(attempts=1)
# Requests at once; with more of them, Google takes this machine for a robot.
IN_FLIGHT = 6
# The first release whose reader of pages is as called here.
_OLDEST_GDOWN = (6, 3)


@dataclass(frozen=True, slots=True)
class ShareLink:
    """A link to a file or folder that is shared on Google Drive."""

    kind: Kind
    """What it leads to; "unknown" for links such as `open?id=`, which do not say it; then Drive is asked."""
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

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters that identify it in any of Drive's addresses."""
        return {"id": self.id, **({"resourcekey": self.resource_key} if self.resource_key else {})}


def parse_share_link(text: str) -> ShareLink | None:
    """Read a link to Google Drive in any form that people paste; `None` for everything else.

    Raises:
        OptionError: it is a link to Google Drive, but not to a file or folder.

    >>> parse_share_link("https://drive.google.com/file/d/1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvW/view?usp=sharing").kind
    'file'
    """
    # Links may be pasted with surrounding quotation marks or angle brackets.
    cleaned = text.strip().strip("<>\"'").strip()
    if cleaned.startswith("gdrive://"):
        return _parse_own_form(cleaned)
    parts = page_address(cleaned, _HOSTS)
    if parts is None:
        return None
    # When a parameter is given twice, Drive takes the first one.
    query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
    # Addresses of Google Workspace begin with the domain: /a/example.org/file/d/…
    path = re.sub(r"\A/a/[^/]+", "", parts.path)
    if native := _NATIVE.match(path):
        raise _document_error(show_address(cleaned).partition("?")[0], native[1])
    kind, found = _kind_and_id(path, parts.fragment, query)
    if not found:
        msg = (
            f"'{show_address(text)}' leads to Google Drive, but not to one file or folder. Open it there, choose "
            "Share and Copy link; for your own Drive, mount it and give the path."
        )
        raise OptionError(msg)
    return ShareLink(kind, found, query.get("resourcekey", ""))


def _parse_own_form(text: str) -> ShareLink:
    match = re.fullmatch(rf"gdrive://(?:(files?|folders?)/)?({_ID})/?(?:\?resourcekey=([-\w]+))?", text)
    if match is None:
        msg = (
            f"'{show_address(text)}' is not a link to Google Drive. Write gdrive://ID, or gdrive://folders/ID for a "
            "folder."
        )
        raise OptionError(msg)
    kind: Kind = "unknown"
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


def _kind_and_id(path: str, fragment: str, query: dict[str, str]) -> tuple[Kind, str]:
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


def _document_error(label: str, kind: str) -> OptionError:
    """Return the error for a Google document, which is not a file until it is exported."""
    name = _NATIVE_NAMES.get(kind, "Google document")
    return OptionError(
        f"'{label}' is a {name}, not a file that can be downloaded. Open it, choose File and Download to make "
        "one (a spreadsheet as CSV, for example), put that on Google Drive and share it."
    )


class SharedFile(RemoteFile):
    """A file behind a link. Made by `open_shared_file`."""

    def __init__(self, link: ShareLink, file: HttpFile) -> None:
        self._link, self._file = link, file
        told = map(file.headers.get, ("ETag", "Last-Modified", "x-goog-hash"))
        # More connections than this look like a robot, which Google refuses.
        self.facts = replace(
            file.facts,
            label=link.label,
            name=safe_name(file.facts.name),
            version=" ".join(filter(None, told)),
            mtime_ns=0,
            connections=IN_FLIGHT,
            eager=False,
        )

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`; a page in place of the bytes is reported in Drive's own terms.

        Raises:
            DriveQuotaError: too many downloads of the file, or too many requests from here.
        """
        try:
            yield from self._file.read_range(offset, length)
        except (WebPageError, SourceAccessError, SourceNotFoundError) as error:
            _confirm(self._link, error)
            msg = f"Google Drive gave a page in place of '{self._link.label}'."
            raise TransientError(msg) from error

    def known(self, offset: int, stop: int) -> bytes | None:
        """Return bytes that came when it was opened."""
        return self._file.known(offset, stop)

    def open_again(self) -> SharedFile:
        """Return the same file with connections of its own, without a request."""
        return SharedFile(self._link, self._file.open_again())

    def close(self) -> None:
        """Close the connections, also of parts that are being read."""
        self._file.close()


def open_shared_file(
    link: ShareLink, *, checksum: Checksum | None = None, policy: RetryPolicy = _POLICY, along_bytes: int = 0
) -> SharedFile:
    """Open a file behind a link; `along_bytes` as of `open_http`.

    Raises:
        OptionError: it is a Google document.
        SourceAccessError, SourceNotFoundError, DriveQuotaError: Drive refuses.
        WebPageError: the answer is any other page.
        TransientError: no answer after all tries.
    """

    def open_once() -> SharedFile:
        query = urllib.parse.urlencode({**link.query, "export": "download", "confirm": "t"})
        try:
            return _open_at(link, f"{_DOWNLOADS}?{query}", checksum, along_bytes)
        except SourceError as error:
            # Large files are only sent after a page that says that they were not scanned for viruses.
            form = _confirm(link, error)
        return _open_at(link, form, checksum, along_bytes)

    return with_retries(open_once, policy)


def _open_at(link: ShareLink, address: str, checksum: Checksum | None, along_bytes: int) -> SharedFile:
    file = open_http(
        address, checksum=checksum, policy=_ONE_TRY, along_bytes=along_bytes, label=link.label, agent=_AGENT
    )
    # Only data has a file name; pages do not.
    if "Content-Disposition" not in file.headers:
        file.close()
        msg = f"Google Drive answered '{link.label}' with something without a file name; expected the file."
        raise WebPageError(msg)
    return SharedFile(link, file)


def _confirm(link: ShareLink, error: SourceError) -> str:
    """Return the address that confirms the download, by asking for the page that came in place of the file.

    Raises:
        ColabstageError: the page means something else.
    """
    query = {**link.query, "export": "download", "confirm": "t"}
    answer = ask_service(_DOWNLOADS, link.label, query=query, agent=_AGENT)
    # Drive also answers requests for documents with status 500.
    if answer.status >= 500:
        resolve_link(ShareLink("unknown", link.id, link.resource_key), policy=_ONE_TRY)
    judge_answer(link.label, answer)
    if "Content-Disposition" in answer.headers:
        raise TransientError(str(error)) from error
    if form := confirmation_address(answer.text):
        return form
    raise _page_instead_of_data(link.label, answer)


def resolve_link(link: ShareLink, *, policy: RetryPolicy = _POLICY) -> ShareLink:
    """Return the link with its kind; Drive is asked if that is unknown.

    Raises:
        OptionError: it is a Google document.
        SourceAccessError, SourceNotFoundError, DriveQuotaError, TransientError: Drive refuses.
    """
    if link.kind != "unknown":
        return link
    answer = _ask_patiently(link, "https://drive.google.com/open", policy, redirects=False)
    found = parse_share_link(urllib.parse.urljoin(answer.url, answer.headers.get("Location", "")))
    # Drive redirected elsewhere, for example to a login: asking for the file itself shows what is wrong.
    if found is None or found.id != link.id or found.kind == "unknown":
        return replace(link, kind="file")
    return replace(found, resource_key=link.resource_key or found.resource_key)


def _ask_patiently(link: ShareLink, address: str, policy: RetryPolicy, *, redirects: bool = True) -> WebAnswer:
    def ask() -> WebAnswer:
        answer = ask_service(address, link.label, query=link.query, redirects=redirects, agent=_AGENT)
        judge_answer(link.label, answer)
        return answer

    return with_retries(ask, policy)


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """All files of a shared folder and the folders below it."""

    name: str
    """The folder's name."""
    files: dict[str, ShareLink]
    """The link to each file by its name, which is unique, with folders."""
    notes: tuple[str, ...]
    """What was left out or renamed, one sentence each."""

    @property
    def version(self) -> str:
        """Return a text that changes when files come, go or are renamed, not when one changes in place."""
        return hash_block("\n".join(f"{link.id} {name}" for name, link in self.files.items()).encode())


def list_shared_folder(
    link: ShareLink, *, policy: RetryPolicy = _POLICY, cancellation: Cancellation | None = None
) -> SharedFolder:
    """List a shared folder and all below it. Google's documents, which are no files, are left out.

    Files with the same name, which Drive allows, get ` (1)` and so on, as in Drive's own mount.

    Raises:
        SourceAccessError, SourceNotFoundError, DriveQuotaError, TransientError: Drive refuses.
        WebPageError: gdown does not understand a page.
        MissingDependencyError: gdown is too old.
    """
    read_page = _page_reader()
    title, notes = "", []
    found: list[tuple[str, ShareLink]] = []
    # For each folder, its name in the tree, and the ids on the path to it.
    level: list[tuple[str, frozenset[str], ShareLink]] = [("", frozenset(), link)]
    while level:
        with DaemonPool(min(IN_FLIGHT, len(level)), "colabstage-drive") as pool:
            pages = pool.run(
                lambda at: _read_folder(at[2], read_page, policy),
                level,
                cancellation=cancellation,
                # Each request has its own tries and ends by itself.
                stall_timeout_s=float("inf"),
            )
        title = title or pages[0][0]
        below = []
        for (prefix, above, folder), (_, entries) in zip(level, pages, strict=True):
            way = above | {folder.id}
            for identity, shown, kind in entries:
                name = prefix + safe_name(shown)
                if kind.endswith("apps.folder"):
                    # A shortcut may lead back to a parent.
                    below += [(f"{name}/", way, ShareLink("folder", identity))] if identity not in way else []
                elif ".google-apps." in kind:
                    notes.append(f"'{name}' is a Google document, no file, and was left out.")
                else:
                    found.append((name, ShareLink("file", identity)))
        level = below
    named, renamed = name_apart(found)
    return SharedFolder(safe_name(title), named, (*notes, *renamed))


# What reads a folder's page: its name, and the id, name and media type of each entry.
PageReader = Callable[..., tuple[str, list[tuple[str, str, str]]]]


def _page_reader() -> PageReader:
    """Return gdown's reader of a folder's page. Its public function asks for each document too, and gives up at one
    that cannot be exported."""
    import gdown

    # The version imported by an earlier cell counts, whatever was installed since.
    version = str(getattr(gdown, "__version__", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= _OLDEST_GDOWN:
        reader = getattr(import_module("gdown.download_folder"), "_parse_embedded_folder_view", None)
        if reader is not None:
            return cast("PageReader", reader)
    msg = (
        f"Listing a shared folder needs gdown 6.3 to 6.5, and {version} is loaded. Run: %pip install -q "
        '"gdown>=6.3,<6.6", restart the session, and try again.'
    )
    raise MissingDependencyError(msg)


def _read_folder(link: ShareLink, read: PageReader, policy: RetryPolicy) -> tuple[str, list[tuple[str, str, str]]]:
    answer = _ask_patiently(link, _FOLDER_PAGE, policy)
    page = SimpleNamespace(status_code=answer.status, text=answer.text)
    try:
        title, entries = read(
            sess=SimpleNamespace(get=lambda *_, **__: page), folder_id=link.id, verify=True, timeout=None
        )
    # gdown's own, for a page without a title.
    except Exception as error:
        raise _page_instead_of_data(link.label, answer) from error
    # Otherwise an unknown page would look like a folder without files.
    if not entries and "flip-entries" not in answer.text:
        raise _page_instead_of_data(link.label, answer)
    return title.strip(), entries


def list_shared(link: ShareLink) -> dict[str, ShareLink]:
    """Return the files of a shared folder and its subfolders by name; for a link to one file, only that file.

    Raises:
        OptionError, SourceAccessError, SourceNotFoundError, DriveQuotaError, SourceReadError: Drive refuses.
    """
    with given_up():
        found = resolve_link(link)
        if found.kind == "folder":
            return list_shared_folder(found).files
        file = open_shared_file(found)
    file.close()
    return {file.facts.name: found}


def shared_openers(folder: SharedFolder) -> list[tuple[str, Callable[[], RemoteFile]]]:
    """Return the name of each file, and what opens it, any number of times; Drive is asked for its facts once."""
    return [(name, _opener(link)) for name, link in folder.files.items()]


def _opener(link: ShareLink) -> Callable[[], RemoteFile]:
    first: list[SharedFile] = []

    def open_it() -> RemoteFile:
        if first:
            return first[0].open_again()
        first.append(open_shared_file(link))
        return first[0]

    return open_it


def share_link_facts(link: ShareLink, *, policy: RetryPolicy = _POLICY) -> RemoteFacts | None:
    """Return name, size and version of a link's target; `None` if Drive gives no usable answer.

    A folder's `size` is `None`, since only asking for each file would tell it.

    Raises:
        OptionError, SourceAccessError, SourceNotFoundError, DriveQuotaError: Drive refuses.
    """
    try:
        found = resolve_link(link, policy=policy)
        if found.kind == "folder":
            shared = list_shared_folder(found, policy=policy)
            return RemoteFacts(found.label, shared.name, None, shared.version, ranges=False, connections=1)
        file = open_shared_file(found, policy=policy)
    except (TransientError, SourceReadError):
        return None
    file.close()
    return file.facts


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


def judge_answer(label: str, answer: WebAnswer) -> None:
    """Raise the error that an answer means, unless it is data or an expected page.

    Raises:
        DriveQuotaError, SourceAccessError, SourceNotFoundError, TransientError, WebPageError: as they say.
    """
    # The text first, because Drive reports a used-up quota with status 200, 403 or 404.
    if _QUOTA.search(answer.text):
        msg = f"Google Drive currently refuses '{label}': too many users have viewed or downloaded it. {_OWN_COPY}"
        raise DriveQuotaError(msg)
    parts = urllib.parse.urlsplit(answer.url)
    # That page asks for proof of being human, which a program cannot give.
    if answer.status == 429 or parts.path.startswith("/sorry") or _AUTOMATED.search(answer.text):
        msg = (
            f"Google Drive refuses '{label}' because there were too many requests from this machine's address, which "
            f"it may share with others. {_OWN_COPY}"
        )
        raise DriveQuotaError(msg)
    # For a file that is not shared, Drive redirects to the login page, with status 200.
    if parts.hostname == "accounts.google.com" or answer.status in (401, 403):
        msg = (
            f"'{label}' is not shared with everyone. In Google Drive choose Share, General access, 'Anyone with the "
            "link', and allow viewers to download; or add a shortcut to it in your own Drive, mount your Drive and "
            "stage the path there."
        )
        raise SourceAccessError(msg)
    if answer.status in (404, 410):
        msg = f"Google Drive knows nothing at '{label}'. Was the link cut off when it was copied, or the file deleted?"
        raise SourceNotFoundError(msg)
    if answer.status >= 500:
        msg = f"Google Drive answered '{label}' with status {answer.status}."
        raise TransientError(msg)
    if answer.status >= 400:
        msg = f"Google Drive answered '{label}' with status {answer.status}; expected the file."
        raise WebPageError(msg)


def _page_instead_of_data(label: str, answer: WebAnswer) -> WebPageError:
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


def name_apart(files: Sequence[tuple[str, ShareLink]]) -> tuple[dict[str, ShareLink], tuple[str, ...]]:
    """Give each file a name that no other file or folder has; the order of ids decides which keeps the plain one.

    Returns:
        The links by name, in order, and a note for each renamed one.
    """
    taken = parent_folders(name for name, _ in files)
    named: dict[str, ShareLink] = {}
    notes: list[str] = []
    # Not in the listing's order, which may differ tomorrow.
    for wanted, link in sorted(files, key=lambda file: (file[0], file[1].id)):
        name = next(candidate for candidate in _candidates(wanted) if candidate not in taken)
        taken.add(name)
        named[name] = link
        if name != wanted:
            notes.append(f"The folder has more than one '{wanted}'; one of them is called '{name}' here.")
    return named, tuple(notes)


def _candidates(name: str) -> Iterator[str]:
    """Yield a name, then the name with each number, as in Drive's own mount."""
    yield name
    stem, suffix = posixpath.splitext(name)
    yield from (f"{stem} ({number}){suffix}" for number in itertools.count(1))


def confirmation_address(text: str) -> str:
    """Return the address of the form about the virus scan; "" if there is no such form."""
    reader = _FormReader()
    reader.feed(text)
    reader.close()
    if not reader.action:
        return ""
    parts = urllib.parse.urlsplit(reader.action)
    query = {**dict(urllib.parse.parse_qsl(parts.query)), **reader.fields}
    return urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))


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

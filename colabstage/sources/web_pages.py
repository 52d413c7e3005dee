"""What servers send in place of a file: services' pages, messages, bucket listings, Git LFS pointers; and where the
file itself is, for addresses that people copy from their browser."""

from __future__ import annotations

import html
import re
from urllib.parse import unquote, urlsplit

from colabstage.errors import WebPageError
from colabstage.io.files import is_html, stand_in
from colabstage.io.units import hide_secrets, show_address
from colabstage.trees.bytes import DATA_SUFFIXES, HEAD_BYTES, describe_contents, is_text, lacks_data

_PAGE_SUFFIXES = (".html", ".htm", ".xhtml", ".shtml")
# What Amazon, Google and compatible services return for the address of a bucket or a folder in it.
_BUCKET_LIST = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<ListBucketResult\b")
_EXCERPT_BYTES, _EXCERPT = 400, 120
# The address of a page, without its scheme, and that of the data it shows. Neither includes the part after "#".
_SERVICES = tuple(
    (re.compile(page), data)
    for page, data in (
        (r"github\.com/([^/]+/[^/]+)/blob/([^?]+).*", r"https://github.com/\1/raw/\2"),
        (r"github\.com/([^/?]+/[^/?]+?)(?:\.git)?/?", r"https://github.com/\1/archive/HEAD.zip"),
        (r"github\.com/([^/]+/[^/]+)/tree/([^/?]+)/?", r"https://github.com/\1/archive/\2.zip"),
        (
            r"raw\.githubusercontent\.com/([^/]+/[^/]+)/(?:refs/heads/)?([^?]+).*",
            r"https://media.githubusercontent.com/media/\1/\2",
        ),
        (r"huggingface\.co/(.+)/(?:blob|raw)/([^?]+).*", r"https://huggingface.co/\1/resolve/\2"),
        (r"huggingface\.co/(datasets/[^/?]+/[^/?]+)/tree/([^/?]+)(/[^?]*)?.*", r"hf://\1@\2\3"),
        (r"huggingface\.co/(datasets/[^/?]+/[^/?]+)(?:/viewer\b.*)?/?", r"hf://\1"),
        (
            r"(?:[\w-]+\.)*console\.aws\.amazon\.com/s3/(?:buckets|object)/([^?]+?)/?(?:\?(?:.*&)?prefix=([^&]*).*|\?.*)?",
            r"s3://\1/\2",
        ),
        (r"console\.cloud\.google\.com/storage/browser/(?:_details/)?([^?;]+).*", r"gs://\1"),
        (r"storage\.cloud\.google\.com/([^?]+).*", r"gs://\1"),
        (r"storage\.googleapis\.com/([^?]+).*", r"gs://\1"),
        (r"([^/]+)\.storage\.googleapis\.com/([^?]*).*", r"gs://\1/\2"),
        (r"([^/]+)\.s3[.-](?:[\w-]+\.)*amazonaws\.com/([^?]*).*", r"s3://\1/\2"),
        (r"s3[.-](?:[\w-]+\.)*amazonaws\.com/([^?]+).*", r"s3://\1"),
        (r"zenodo\.org/records?/(\d+)/?(?:\?.*)?", r"https://zenodo.org/api/records/\1/files-archive"),
    )
)
# For these services the page's address, which may carry a key, returns the file with one more parameter.
_PARAMETERS = ((re.compile(r"(?:.*\.)?dropbox\.com"), "dl=1"), (re.compile(r".*\.sharepoint\.com"), "download=1"))


def names_a_page(url: str, name: str) -> bool:
    """Return whether an address requests a web page."""
    return urlsplit(url).path.lower().endswith(_PAGE_SUFFIXES) or name.lower().endswith(_PAGE_SUFFIXES)


def check_is_data(
    url: str, label: str, name: str, head: bytes, *, is_page_type: bool, suffixes: tuple[str, ...] = DATA_SUFFIXES
) -> None:
    """Raise the error for a page, or for anything else than what an address and its file's name promise.

    Services report a login, a quota or a missing file with a page and status 200. But bytes that no text contains are
    data, whatever the server declares. `suffixes`: of names whose files are never text.
    """
    if (is_html(head) or (is_page_type and is_text(head))) and not names_a_page(url, name):
        raise page_error(url, label, head)
    if _BUCKET_LIST.match(head):
        msg = f"'{label}' returns the list of a bucket instead of data. {_remedy(url)}"
        raise WebPageError(msg)
    if (instead := stand_in(head[:HEAD_BYTES])) and not is_html(head):
        where = _data_address(url)
        msg = f"'{label}' is {instead}.{where and f' Its content is at {where!r}.'}"
        raise WebPageError(msg)
    if lacks_data(name, head, suffixes):
        excerpt = hide_secrets(" ".join(head[:_EXCERPT_BYTES].decode("utf-8", "replace").split()))[:_EXCERPT]
        msg = (
            f"'{label}' returns, in place of '{name}', {describe_contents(head)}{excerpt and f': “{excerpt}”'}. Where "
            "that is an error or a login, open the address in a browser, and copy the link of the download itself."
        )
        raise WebPageError(msg)


def page_error(url: str, label: str, head: bytes) -> WebPageError:
    """Return the error for a page that came in place of data."""
    title = page_title(head)
    named = f" with the title “{title}”" if title else ""
    return WebPageError(
        f"'{label}' returns a web page{named} instead of data: perhaps a login, a confirmation, a preview or an error. "
        f"{_remedy(url)}"
    )


def page_title(head: bytes) -> str:
    """Return the title of a web page from its beginning; "" if there is none."""
    match = re.search(rb"(?is)<title[^>]*>(.*?)(?:</title|\Z)", head)
    text = html.unescape(match[1].decode("utf-8", "replace")) if match else ""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:120]


def _remedy(url: str) -> str:
    """Return what to do about a page: for services whose addresses tell it, the address of the data."""
    if where := _data_address(url):
        return f"Give {where!r}."
    parts = urlsplit(url)
    for host, parameter in _PARAMETERS:
        if host.fullmatch(parts.hostname or "") and parameter not in parts.query:
            if (other := parameter.replace("1", "0")) in parts.query:
                return f"Write '{parameter}' in the address in place of '{other}'."
            return f"Write '{'&' if parts.query else '?'}{parameter}' at the end of the address."
    return "Open it in a browser, and copy the link of the download itself."


def _data_address(url: str) -> str:
    """Return the address of the data that a service's page shows; "" for an unknown kind of page."""
    page = url.partition("://")[2].partition("#")[0].removeprefix("www.")
    found = next(((data, match) for pattern, data in _SERVICES if (match := pattern.fullmatch(page))), None)
    if found is None:
        return ""
    where = found[1].expand(found[0]).rstrip("/")
    # Names in buckets are used as written.
    return show_address(where if where.startswith("https:") else unquote(where))

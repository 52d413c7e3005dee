"""Recognise what often stands in for a data file: a Git LFS pointer, a web page, a macOS AppleDouble file."""

from __future__ import annotations

import re

_HTML = re.compile(rb"(?is)\A(?:\xef\xbb\xbf)?\s*(?:<!--.{0,400}?-->\s*)?<(?:!doctype\s+html|html|head|body)\b")
_LFS = b"version https://git-lfs.github.com/spec/v1"
_APPLE_DOUBLE = b"\0\5\x16\7"


def is_html(head: bytes) -> bool:
    """Tell whether the bytes begin a web page."""
    return _HTML.match(head) is not None


def stand_in(head: bytes) -> str:
    """Return what a file is instead of what it is called, by its first bytes, as the end of "it is …"; "" where it is
    none of these.

    >>> stand_in(b"<!doctype html><title>Google Drive - Virus scan warning")
    'a web page (HTML) saved under this name, as a download leaves that wanted a confirmation'
    """
    if is_html(head):
        return "a web page (HTML) saved under this name, as a download leaves that wanted a confirmation"
    if head.startswith(_LFS):
        return (
            "a pointer of Git LFS, which names the file and does not hold it. Clone the repository and run git lfs "
            "pull; the zip that GitHub makes of one has nothing but pointers"
        )
    return "what macOS notes about a file beside it (AppleDouble)" if head.startswith(_APPLE_DOUBLE) else ""

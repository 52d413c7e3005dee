"""Use gdown for pages of Google Drive that `share_service` does not know: gdown has followed their changes for years.

The only module that imports it. Everything else uses our own HTTP, which resumes downloads, verifies block by block and
reads parts. gdown does not report a file's version, so its downloads cannot be proved unchanged later.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import TYPE_CHECKING

from colabstage.errors import SourceReadError, WebPageError, said_by
from colabstage.io.files import translate_write_error
from colabstage.io.workspace import open_workspace, rename_own
from colabstage.sources.http_session import innermost
from colabstage.sources.remote import RemoteFacts, check_file
from colabstage.sources.share_pages import ShareLink, safe_name

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from colabstage.io.progress import Cancellation, ProgressStep

# The first release that checks the size of downloads, and that can be stopped.
_OLDEST = (6, 3)
_UPGRADE = '%pip install -q -U "gdown>=6.3"'
# Seconds to connect, and without a byte.
_TIMEOUT_S = (20.0, 60.0)
_RETRIES = 2


def file_facts_by_gdown(link: ShareLink, unknown: WebPageError) -> RemoteFacts:
    """Return the name of a shared file, the only fact that gdown reports before the download.

    Args:
        link: the file.
        unknown: the error for the unknown page; raised if gdown does not know it either.

    Raises:
        WebPageError: as `unknown`; if gdown is too old, with the line that upgrades it.
    """
    import requests

    gdown = _require_gdown(unknown)
    try:
        found = gdown.download(
            url=_address(link), quiet=True, use_cookies=False, skip_download=True, timeout=_TIMEOUT_S
        )
    except (gdown.FileURLRetrievalError, gdown.DownloadError, requests.RequestException):
        raise unknown from None
    return RemoteFacts(link.label, safe_name(found.path), None, "", ranges=False, connections=1)


def list_folder_by_gdown(link: ShareLink, unknown: WebPageError) -> list[tuple[ShareLink, str]]:
    """Return each file below a shared folder, with its name in the tree.

    Raises:
        WebPageError: as `file_facts_by_gdown`.
    """
    import requests

    gdown = _require_gdown(unknown)
    try:
        found = gdown.download_folder(
            url=f"{link.label}?resourcekey={link.resource_key}" if link.resource_key else link.label,
            quiet=True,
            use_cookies=False,
            skip_download=True,
            timeout=_TIMEOUT_S,
        )
    except (gdown.FileURLRetrievalError, gdown.DownloadError, requests.RequestException):
        raise unknown from None
    # An empty list may mean that gdown did not understand the page either.
    if not found:
        raise unknown
    return [(ShareLink("file", one.id), "/".join(map(safe_name, one.path.split("/")))) for one in found]


def fetch_by_gdown(
    link: ShareLink, facts: RemoteFacts, target: Path, *, step: ProgressStep, cancellation: Cancellation
) -> None:
    """Download one whole file to `target`, and compare it with its checksum if there is one.

    Raises:
        SourceReadError: the download failed three times.
        ChecksumMismatchError: it does not match the checksum; it is not kept.
        TargetExistsError, NotEnoughSpaceError, TargetNotWritableError, CancelledError.
    """
    import gdown
    import requests

    stop = threading.Event()
    cancellation.follow(stop.set)
    arrived = 0

    def told(so_far: int, _: int | None) -> None:
        nonlocal arrived
        # It decreases when a try starts over.
        step.advance(max(0, so_far - arrived))
        arrived = max(arrived, so_far)

    with open_workspace(target, keeps=lambda *_: False) as workspace:
        whole = workspace.path / "data"
        try:
            gdown.download(
                url=_address(link),
                output=os.fspath(whole),
                quiet=True,
                # Cookies of a login would have to be in a file that several downloads rewrite at once.
                use_cookies=False,
                progress=told,
                timeout=_TIMEOUT_S,
                retries=_RETRIES,
                cancel=stop,
            )
        except gdown.DownloadCancelled:
            cancellation.check()
            raise
        except (gdown.FileURLRetrievalError, gdown.DownloadError, requests.RequestException) as error:
            reason = said_by(innermost(error)).splitlines()[0][:200]
            msg = f"Downloading '{facts.label}' by gdown failed: {reason} Open the link in a browser to see why."
            raise SourceReadError(msg) from error
        except OSError as error:
            raise translate_write_error(error, target) from error
        if facts.checksum is not None:
            check_file(whole, facts.checksum, facts.label)
        rename_own(whole, target)


def _address(link: ShareLink) -> str:
    # gdown only keeps the id of other addresses, so the resource key is passed inside the id.
    key = f"%26resourcekey%3D{link.resource_key}" if link.resource_key else ""
    return f"https://drive.google.com/uc?id={link.id}{key}"


def _require_gdown(unknown: WebPageError) -> Any:
    """Return the module; if it is missing or too old, raise `unknown` with what to do."""
    from importlib import metadata

    try:
        versions = [metadata.version("gdown")]
    except metadata.PackageNotFoundError:
        versions = ["0"]
    # The version imported by an earlier cell counts, whatever was installed since.
    if "gdown" in sys.modules:
        versions.append(getattr(sys.modules["gdown"], "__version__", versions[0]))
    if any(tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _OLDEST for version in versions):
        msg = f"{unknown} A newer gdown may know that page. Run: {_UPGRADE}, restart the session, and try again."
        raise WebPageError(msg) from unknown
    import gdown

    return gdown

"""Kaggle's datasets: where they are mounted or cached, or the zip on the web behind Kaggle's download address.

kagglehub is asked for the login only.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import SourceAccessError, SourceNotFoundError, SourceReadError
from colabstage.io.callers_code import absolute
from colabstage.machine.platforms import detect_platform, system_root
from colabstage.sources.http_file import HttpFile, WebAnswer, ask_service, open_http
from colabstage.sources.remote import Access, TransientError, with_retries

if TYPE_CHECKING:
    import requests

    from colabstage.sources.parse import KaggleSource

_SERVICE = "https://api.kaggle.com/v1/datasets.DatasetApiService"


@dataclass(frozen=True, slots=True)
class KaggleFolder:
    path: Path
    note: str
    """Why it is read there, in a sentence."""
    version: str = ""
    """Its version's number; "" if unknown, as of a mount."""


def find_kaggle_folder(source: KaggleSource) -> KaggleFolder | None:
    """Return the dataset where it is mounted, or where kagglehub has downloaded a certain version; asks nobody."""
    if source.version is not None:
        return _downloaded(source, source.version)
    inputs = system_root() / "kaggle" / "input"
    exact, by_name = inputs / "datasets" / source.owner / source.dataset, inputs / source.dataset
    if _is_filled(exact):
        return _mounted(exact)
    # This path does not tell the owner; on Colab it may hold any version, mounted for an earlier request.
    return _mounted(by_name) if detect_platform().name == "kaggle" and _is_filled(by_name) else None


def _mounted(path: Path) -> KaggleFolder:
    return KaggleFolder(path, f"Kaggle's files are read where they are mounted: '{path}'.")


def _downloaded(source: KaggleSource, version: int) -> KaggleFolder | None:
    """Return a version in kagglehub's cache, if all of it is there."""
    cache = Path(os.environ.get("KAGGLEHUB_CACHE") or absolute("~/.cache/kagglehub"))
    home = cache / "datasets" / source.owner / source.dataset
    path = home / "versions" / str(version)
    # kagglehub's marker that everything is extracted.
    if not ((home / f"{version}.complete").exists() and _is_filled(path)):
        return None
    return KaggleFolder(path, f"Kaggle's files are read in kagglehub's own cache: '{path}'.", str(version))


def _is_filled(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(folder.iterdir())
    return False


def open_kaggle(source: KaggleSource, access: Access) -> HttpFile | KaggleFolder:
    """Open a dataset that is not local (`find_kaggle_folder`), as the zip that Kaggle serves."""
    login = find_login()
    version = source.version or with_retries(lambda: newest_version(source, login), access.policy)
    if (found := _downloaded(source, version)) is not None:
        return found

    def find_storage() -> str:
        # A signed address, which expires after a while. The login is for Kaggle, and not for the storage.
        return _ask(source, "DownloadDataset", login, datasetVersionNumber=version).headers.get("Location", "")

    address = with_retries(find_storage, access.policy)
    # A user's checksum is not of the zip that Kaggle sends.
    access = replace(access, checksum=None)
    file = open_http(address, access, resolve=find_storage, label=source.label)
    file.facts = replace(file.facts, name=f"{source.dataset}.zip", version=str(version), mtime_ns=0)
    return file


def newest_version(source: KaggleSource, login: Any) -> int:
    """Ask Kaggle for the number of a dataset's newest version, once."""
    answer = _ask(source, "GetDataset", login)
    try:
        return int(json.loads(answer.text)["currentVersionNumber"])
    except (ValueError, KeyError, TypeError):
        msg = f"Kaggle's answer about '{source.label}' names no version. Name one: {source.label}/versions/N."
        raise SourceReadError(msg) from None


def _ask(source: KaggleSource, action: str, login: Any, **more: object) -> WebAnswer:
    """Return Kaggle's answer about a dataset; a refusal becomes its error."""
    asked = {"ownerSlug": source.owner, "datasetSlug": source.dataset, **more}
    answer = ask_service(f"{_SERVICE}/{action}", source.label, json=asked, auth=login, redirects=False)
    status, label, page = answer.status, source.label, source.page
    if status in (401, 403):
        sent = "without a login" if login is None else "with the login that kagglehub found"
        msg = (
            f"Kaggle refuses '{label}' {sent}. Open {page} while logged in, see whether the name is right and "
            "accept the licence or rules it asks for. If it is private, create a token (your picture, Settings, API), "
            "set KAGGLE_API_TOKEN in the environment or in Colab's secrets, and have kagglehub installed, which reads "
            "it: %pip install -q kagglehub"
        )
        raise SourceAccessError(msg)
    if status == 404:
        msg = f"Kaggle has no '{label}'. Compare the name and the version with {page}."
        raise SourceNotFoundError(msg)
    if status >= 400:
        kind = TransientError if status in (408, 429) or status >= 500 else SourceReadError
        msg = f"Kaggle cannot answer for '{label}': status {status}. Try again later, or see {page}."
        raise kind(msg)
    return answer


def find_login() -> Any:
    """Return the login for Kaggle that kagglehub finds: of this session, the environment, a file or Colab's secrets."""
    if find_spec("kagglehub") is None:
        return None
    try:
        from kagglehub.config import get_kaggle_credentials

        found = get_kaggle_credentials()
    except (ValueError, RuntimeError) as error:  # its import needs a home folder
        msg = f"Kaggle's login cannot be read: {error}"
        raise SourceAccessError(msg) from None
    if found is None:
        return None
    if not found.api_key:
        return (found.username, found.key)

    def add_token(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {found.api_key}"
        return request

    return add_token

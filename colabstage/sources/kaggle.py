"""Kaggle's datasets: where they are mounted or cached, or the zip on the web behind Kaggle's download address.

kagglehub is asked for the login only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import urllib.parse
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import (
    OptionError,
    SourceAccessError,
    SourceError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
)
from colabstage.io.files import RetryPolicy
from colabstage.io.units import show_address
from colabstage.machine.platforms import detect_platform, system_root
from colabstage.sources.gdrive import page_address
from colabstage.sources.http_file import ask_service, open_http
from colabstage.sources.remote import TransientError, with_retries

if TYPE_CHECKING:
    import requests

    from colabstage.sources.http_file import HttpFile, WebAnswer
    from colabstage.sources.remote import Checksum

_POLICY = RetryPolicy(attempts=4, first_wait_s=1.0)
# How long to wait for a promised mount.
_MOUNT_S = 60.0
_ON = frozenset({"1", "t", "true"})
_SERVICE = "https://api.kaggle.com/v1/datasets.DatasetApiService"
_SLUG = r"[A-Za-z0-9][-_A-Za-z0-9]*"
_HANDLE = re.compile(rf"({_SLUG})/({_SLUG})(?:/versions/([1-9]\d*))?/?")
_HOSTS = frozenset({"kaggle.com", "www.kaggle.com"})
# A dataset's page, with the tabs that are part of the address people copy; or the download that it shows for curl.
_PAGE = re.compile(
    rf"(?:/api/v1)?/datasets/(?:download/)?({_SLUG}/{_SLUG})(?:/versions/([1-9]\d*))?"
    r"(?:/(?:data|code|discussion|download|metadata|settings|suggestions|versions))?/?"
)
_COMPETITION = re.compile(rf"(?:kaggle:/|.*kaggle\.com)/(?:c|competitions)/({_SLUG})(?:/.*)?")


@dataclass(frozen=True, slots=True)
class KaggleDataset:
    owner: str
    name: str
    version: int | None = None
    """The version's number; `None` for the newest."""

    @property
    def handle(self) -> str:
        """Return its name in kagglehub's form: `owner/name`, with `/versions/N` for a certain version."""
        return f"{self.owner}/{self.name}" + (f"/versions/{self.version}" if self.version else "")

    @property
    def label(self) -> str:
        return f"kaggle://{self.handle}"

    @property
    def page(self) -> str:
        """Return the web page on which its licence is accepted."""
        return f"https://www.kaggle.com/datasets/{self.owner}/{self.name}"


@dataclass(frozen=True, slots=True)
class KaggleFolder:
    path: Path
    note: str
    """Why it is read there, in a sentence."""
    version: str = ""
    """Its version's number; "" if unknown, as of a mount."""


def parse_kaggle(text: str) -> KaggleDataset | None:
    """Read `kaggle://owner/dataset`, with `/versions/N` for a certain version, or the address of a dataset's page.

    `None` for anything that is not Kaggle's.

    >>> parse_kaggle("kaggle://zalando-research/fashionmnist/versions/4").version
    4
    """
    cleaned = text.strip().strip("<>\"'")
    handle = cleaned.removeprefix("kaggle://")
    if handle == cleaned:
        parts = page_address(cleaned, _HOSTS)
        if parts is None:
            return None
        page = _PAGE.fullmatch(parts.path)
        asked = urllib.parse.parse_qs(parts.query).get("datasetVersionNumber", [""])[0]
        version = asked or (page and page[2])
        handle = "" if page is None else f"{page[1]}/versions/{version}" if version else page[1]
    if competition := _COMPETITION.fullmatch(cleaned.partition("?")[0]):
        msg = (
            f"'{show_address(cleaned)}' is a competition on Kaggle, not a dataset. Accept its rules on its page, and "
            f"stage the folder that kagglehub.competition_download({competition[1]!r}) returns."
        )
        raise OptionError(msg)
    match = _HANDLE.fullmatch(handle)
    if match is None:
        msg = (
            f"'{show_address(cleaned)}' is not a dataset on Kaggle. Expected kaggle://owner/dataset, "
            "kaggle://owner/dataset/versions/N or https://www.kaggle.com/datasets/owner/dataset. Download a model's "
            "files with kagglehub itself and stage their folder."
        )
        raise OptionError(msg)
    return KaggleDataset(match[1], match[2], int(match[3]) if match[3] else None)


def find_kaggle_folder(dataset: KaggleDataset) -> KaggleFolder | None:
    """Return the dataset's folder if it is mounted, or if kagglehub has downloaded this version; contacts nobody."""
    if dataset.version is not None:
        return _downloaded(dataset, dataset.version)
    inputs = _mount_folder()
    exact, by_name = inputs / "datasets" / dataset.owner / dataset.name, inputs / dataset.name
    if _is_filled(exact):
        return _mounted(exact)
    # This path does not tell the owner; on Colab it may hold any version, mounted for an earlier request.
    return _mounted(by_name) if detect_platform().name == "kaggle" and _is_filled(by_name) else None


def _mounted(path: Path, version: str = "") -> KaggleFolder:
    return KaggleFolder(path, f"Kaggle's files are read where they are mounted: '{path}'.", version)


def _mount_folder() -> Path:
    named = os.environ.get("KAGGLE_CACHE_MOUNT_FOLDER") or os.environ.get("COLAB_CACHE_MOUNT_FOLDER")
    return Path(named) if named else system_root() / "kaggle" / "input"


def _downloaded(dataset: KaggleDataset, version: int) -> KaggleFolder | None:
    """Return a version in kagglehub's cache, if it is complete."""
    cache = Path(
        os.environ.get("KAGGLEHUB_CACHE") or Path(os.environ.get("HOME") or Path.home()) / ".cache" / "kagglehub"
    )
    home = cache / "datasets" / dataset.owner / dataset.name
    path = home / "versions" / str(version)
    # kagglehub's marker that everything is extracted.
    if not ((home / f"{version}.complete").exists() and _is_filled(path)):
        return None
    return KaggleFolder(path, f"Kaggle's files are read in kagglehub's own cache: '{path}'.", str(version))


def _is_filled(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(folder.iterdir())
    return False


def _mount_on_request(dataset: KaggleDataset, login: Any) -> KaggleFolder | None:
    """Return where Colab or a notebook on Kaggle mounts the dataset on request; `None` if it does not."""
    try:
        if os.environ.get("TBE_RUNTIME_ADDR") and os.environ.get("DISABLE_COLAB_CACHE", "").lower() not in _ON:
            slug = _ask_colab(dataset, login)
        elif os.environ.get("KAGGLE_DATA_PROXY_URL") and os.environ.get("DISABLE_KAGGLE_CACHE", "").lower() not in _ON:
            slug = _ask_notebook(dataset)
        else:
            return None
    except (SourceError, ValueError, KeyError, TypeError):
        return None
    # The mount appears a while after the response, or never; then Kaggle's download is as good.
    path = _mount_folder() / slug
    deadline = time.monotonic() + _MOUNT_S
    while not _is_filled(path):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.2)
    return _mounted(path, str(dataset.version or ""))


def _ask_colab(dataset: KaggleDataset, login: Any) -> str:
    version = {} if dataset.version is None else {"version": dataset.version}
    asked = {"owner": dataset.owner, "dataset": dataset.name, **version}
    service = f"http://{os.environ['TBE_RUNTIME_ADDR']}/kagglehub/datasets"
    if ask_service(f"{service}/is_supported", dataset.label, json=asked, auth=login).status != 200:
        raise KeyError(dataset.label)
    return str(json.loads(ask_service(f"{service}/mount", dataset.label, json=asked, auth=login).text)["slug"])


def _ask_notebook(dataset: KaggleDataset) -> str:
    version = {} if dataset.version is None else {"VersionNumber": str(dataset.version)}
    answer = ask_service(
        f"{os.environ['KAGGLE_DATA_PROXY_URL']}/kaggle-jwt-handler/AttachDatasourceUsingJwtRequest",
        dataset.label,
        json={"datasetRef": {"OwnerSlug": dataset.owner, "DatasetSlug": dataset.name, **version}},
        headers={
            "X-Kaggle-Authorization": f"Bearer {os.environ['KAGGLE_USER_SECRETS_TOKEN']}",
            "X-KAGGLE-PROXY-DATA": os.environ["KAGGLE_DATA_PROXY_TOKEN"],
        },
    )
    return str(json.loads(answer.text)["result"]["mountSlug"])


def open_kaggle(
    dataset: KaggleDataset,
    *,
    checksum: Checksum | None = None,
    along_bytes: int = 0,
) -> HttpFile | KaggleFolder:
    """Open a dataset that is not local (`find_kaggle_folder`): where it can be mounted, or as the zip that Kaggle
    serves."""
    login = _login()
    if (found := _mount_on_request(dataset, login)) is not None:
        return found
    version = dataset.version or with_retries(lambda: _ask_newest(dataset, login), _POLICY)
    if (found := _downloaded(dataset, version)) is not None:
        return found

    def find_storage() -> str:
        # A signed address, which expires after a while. The login is for Kaggle, not for the storage.
        answer = _ask(dataset, "DownloadDataset", login, datasetVersionNumber=version)
        if not (address := answer.headers.get("Location", "")):
            msg = (
                f"Kaggle's answer names no download of '{dataset.label}' (status {answer.status}). See {dataset.page}."
            )
            raise SourceReadError(msg)
        return address

    try:
        file = open_http(
            with_retries(find_storage, _POLICY),
            checksum=checksum,
            policy=_POLICY,
            along_bytes=along_bytes,
            resolve=find_storage,
            label=dataset.label,
        )
    except WebPageError as error:
        msg = f"{error} Look at {dataset.page}: was it uploaded completely?"
        raise WebPageError(msg) from error
    file.facts = replace(file.facts, name=f"{dataset.name}.zip", version=str(version), mtime_ns=0)
    return file


def newest_version(dataset: KaggleDataset) -> str | None:
    """Ask Kaggle for the number of a dataset's newest version; `None` if it does not answer."""
    try:
        return str(_ask_newest(dataset, _login()))
    except SourceError:
        return None


def _ask_newest(dataset: KaggleDataset, login: Any) -> int:
    answer = _ask(dataset, "GetDataset", login)
    try:
        return int(json.loads(answer.text)["currentVersionNumber"])
    except (ValueError, KeyError, TypeError):
        msg = f"Kaggle's answer about '{dataset.label}' names no version. Name one: {dataset.label}/versions/N."
        raise SourceReadError(msg) from None


def _ask(dataset: KaggleDataset, action: str, login: Any, **more: object) -> WebAnswer:
    """Return Kaggle's answer about a dataset; a refusal becomes its error."""
    asked = {"ownerSlug": dataset.owner, "datasetSlug": dataset.name, **more}
    answer = ask_service(f"{_SERVICE}/{action}", dataset.label, json=asked, auth=login, redirects=False)
    status, label, page = answer.status, dataset.label, dataset.page
    if status in (401, 403):
        msg = (
            f"Kaggle refuses '{label}'. Open {page} while logged in, see whether the name is right and "
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


def _login() -> Any:
    """Return the login for Kaggle that kagglehub finds: of this session, the environment, a file or Colab's secrets."""
    if find_spec("kagglehub") is None:
        return None
    from kagglehub.config import get_kaggle_credentials

    try:
        found = get_kaggle_credentials()
    except ValueError as error:
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

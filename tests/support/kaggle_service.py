"""Kaggle's dataset service, as kagglehub meets it, on loopback: the API and the storage behind it.

What is imitated, and from which facts (kagglehub 1.0.2, kagglesdk 0.1.37):

- `POST https://api.kaggle.com/v1/datasets.DatasetApiService/GetDataset` tells `currentVersionNumber`;
  `…/DownloadDataset` redirects to a signed address at `storage.googleapis.com` (kagglesdk `kaggle_http_client.py`,
  kagglehub `http_resolver.py`). Refusals are JSON with `code` and `message`, which kagglesdk reads.
- Credentials come as `Authorization: Bearer` (a token) or Basic (user and key), and must not travel on to storage.
- The storage answers ranges until the signature expires, then 403, and gives `x-goog-hash: crc32c=…,md5=…`
  (kagglehub `integrity.py`).

None of it has been compared with the live service from here.
"""

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests.support.https_hosts import HostAnswer, HostedService, HostRequest, answer_file

_SERVICE = "/v1/datasets.DatasetApiService/"
_SIGNATURE = "X-Goog-Signature=0a1b2c3d"


@dataclass(frozen=True, slots=True)
class HostedDataset:
    """A dataset on the imitated Kaggle."""

    owner: str
    name: str
    archive: bytes
    """The zip that is downloaded."""
    version: int = 1
    access: Literal["public", "token", "consent"] = "public"
    """Who may download it: everybody, owners of the token, or nobody because a licence has not been accepted."""
    cut_every: int = 0
    """Bytes after which each connection to the storage is cut; 0 for never."""
    busy: int = 0
    """The number of 503 responses before the first good one."""
    lasts: int = 0
    """Requests after which the storage's first signed address expires; 0 for never."""


class KaggleService(HostedService):
    """The service. It counts `GetDataset`, `DownloadDataset` and `storage`; `token` is what counts as a login.

    Args:
        folder: where the loopback certificate is written.
    """

    def __init__(self, folder: Path, *, token: str = "KGAT_imitated") -> None:
        self.token = token
        self._datasets: dict[tuple[str, str], HostedDataset] = {}
        self._leaked = False
        services = {"api.kaggle.com": self._api, "storage.googleapis.com": self._storage}
        super().__init__(services, folder)

    def add(self, dataset: HostedDataset) -> None:
        """Add a dataset to the service, replacing one of the same name."""
        self._datasets[dataset.owner, dataset.name] = dataset

    @property
    def leaked(self) -> bool:
        """Tell whether the storage received credentials."""
        return self._leaked

    def _api(self, request: HostRequest) -> HostAnswer:
        action = request.path.removeprefix(_SERVICE)
        times = self._note(action)
        asked = json.loads(request.body or b"{}")
        dataset = self._datasets.get((asked.get("ownerSlug", ""), asked.get("datasetSlug", "")))
        if dataset is None:
            return _json(404, code=404, message="Not found")
        if dataset.access == "consent" or (dataset.access == "token" and not self._logged_in(request)):
            return _json(403, code=403, message="Permission 'datasets.get' was denied")
        if action == "GetDataset":
            return _json(200, ref=f"{dataset.owner}/{dataset.name}", currentVersionNumber=dataset.version)
        if times <= dataset.busy:
            return _json(503, message="busy")
        if asked.get("datasetVersionNumber") != dataset.version:
            return _json(404, code=404, message="No such version")
        signature = f"{_SIGNATURE}{times:04x}"
        place = (
            f"https://storage.googleapis.com/kaggle-data-sets/{dataset.owner}/{dataset.name}/archive.zip?{signature}"
        )
        return HostAnswer(302, {"Location": place})

    def _logged_in(self, request: HostRequest) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            given = base64.b64decode(given).decode().partition(":")[2]
        return given == self.token

    def _storage(self, request: HostRequest) -> HostAnswer:
        self._note("storage")
        self._leaked = self._leaked or "authorization" in request.headers
        owner, name = request.path.split("/")[2:4]
        dataset = self._datasets[owner, name]
        signature = request.query["X-Goog-Signature"]
        if dataset.lasts and signature.endswith("0001") and self._note(signature) > dataset.lasts:
            return HostAnswer(403, {"Content-Type": "application/xml"}, b"<Code>ExpiredToken</Code>")
        digest = base64.b64encode(hashlib.md5(dataset.archive, usedforsecurity=False).digest()).decode()
        headers = {"Content-Type": "application/zip", "x-goog-hash": f"crc32c=AAAAAA==,md5={digest}"}
        answer = answer_file(request, dataset.archive, headers, etag=f'"{digest}"')
        cut = dataset.cut_every if 0 < dataset.cut_every < len(answer.body) else None
        return replace(answer, cut_after=cut)


def _json(status: int, **value: object) -> HostAnswer:
    return HostAnswer(status, {"Content-Type": "application/json"}, json.dumps(value).encode())

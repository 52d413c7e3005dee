"""A service that an installed package adds: GitHub's releases, in a module of a few lines."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from colabstage import dataset_h5, fetch_files, stage_dataset
from colabstage.errors import SourceNotFoundError
from tests.support.archives import zip_bytes
from tests.support.http_server import WebServer
from tests.support.images import image, in_classes

RELEASES = '''
import json
import os
from functools import partial

from colabstage.sources.http_file import open_http


def open_release(address):
    """`releases://owner/repository/tag`: the files of a release; with a file's name behind it, that file."""
    owner, repository, tag, *name = address.partition("://")[2].split("/")
    page = open_http(f"{os.environ['RELEASES']}/repos/{owner}/{repository}/releases/tags/{tag}")
    assets = json.loads(b"".join(page.read_range(0, None)))["assets"]
    page.close()
    openers = {asset["name"]: partial(open_http, asset["browser_download_url"]) for asset in assets}
    return openers[name[0]]() if name else openers
'''


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A release with an image archive and two tables; and the package that reads it, installed."""
    site = tmp_path / "site"
    (site / "releases-1.0.dist-info").mkdir(parents=True)
    (site / "releases-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: releases\nVersion: 1.0\n")
    (site / "releases-1.0.dist-info" / "entry_points.txt").write_text(
        "[colabstage.sources]\nreleases = releases_service:open_release\n"
    )
    (site / "releases_service.py").write_text(RELEASES)
    monkeypatch.syspath_prepend(site)
    pets = zip_bytes({name: image(number) for name, number in in_classes(6).items()})
    files = {"pets.zip": pets, "a.csv": b"1,2\n", "b.csv": b"3,4\n"}
    with WebServer({f"files/{name}": content for name, content in files.items()}) as server:
        assets = [{"name": name, "browser_download_url": server.url(f"files/{name}")} for name in files]
        server.put("repos/me/pets/releases/tags/v1", json.dumps({"assets": assets}).encode())
        monkeypatch.setenv("RELEASES", server.url("").rstrip("/"))
        yield server


def test_an_archive_of_an_added_service_is_staged_and_used_again(release: WebServer, tmp_path: Path) -> None:
    """As one on the web: packed, and known again by its version, for which it is only looked at."""
    source = "releases://me/pets/v1/pets.zip"
    staged = stage_dataset(source, local_dir=tmp_path / "local", cache_dir=None)
    pets = dataset_h5(staged.path)
    assert (len(pets), list(pets.classes)) == (6, ["cat", "dog"])
    before = len(release.requests)
    assert stage_dataset(source, local_dir=tmp_path / "local", cache_dir=None).path == staged.path
    assert sum(request.path.endswith("pets.zip") for request in release.requests[before:]) == 1


def test_a_folder_of_an_added_service_comes_whole(release: WebServer, tmp_path: Path) -> None:
    """Each file under its name."""
    fetch_files("releases://me/pets/v1", f"{tmp_path}/out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.csv", "b.csv", "pets.zip"]
    assert (tmp_path / "out" / "b.csv").read_bytes() == b"3,4\n"
    with pytest.raises(SourceNotFoundError, match="v2"):
        fetch_files("releases://me/pets/v2", f"{tmp_path}/out2")

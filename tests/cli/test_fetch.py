"""The commands that fetch, extract, list and purge."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, reason, result
from tests.support.archives import write_archive
from tests.support.http_server import WebServer
from tests.support.images import read_tree


@pytest.fixture
def archive(photos: Path, tmp_path: Path) -> Path:
    """The photos as a zip."""
    return write_archive(tmp_path / "photos.zip", read_tree(photos))


@pytest.fixture
def server(archive: Path) -> Iterator[WebServer]:
    """A web server with the zip."""
    with WebServer({"photos.zip": archive}) as running:
        yield running


@pytest.mark.slow
def test_fetch_brings_a_file_and_knows_it_again(run: Run, server: WebServer, archive: Path, tmp_path: Path) -> None:
    """It reports amount and rate; the second time, that there was nothing to do."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    first = run("fetch", server.url("photos.zip"), "copy.zip", "--hash", f"sha256:{digest}")
    assert (first.returncode, first.stderr) == (0, "")
    assert "Fetched" in first.stdout
    assert (tmp_path / "copy.zip").read_bytes() == archive.read_bytes()
    again = result(run("fetch", server.url("photos.zip"), "copy.zip", "--json"))
    assert again["kept_bytes"] == again["nbytes"] == archive.stat().st_size
    assert "--overwrite" in reason(run("fetch", server.url("photos.zip"), "photos.zip"), 1)
    assert "SOURCE and TARGET" in reason(run("fetch", "photos.zip"), 2)
    assert run("fetch", "photos.zip", "new/").returncode == 0
    assert (tmp_path / "new" / "photos.zip").is_file(), "a slash at the end means a folder"
    assert "not a checksum" in reason(run("fetch", server.url("photos.zip"), "c.zip", "--hash", "sha256:12"), 2)


def test_fetch_takes_several(run: Run, server: WebServer, photos: Path, tmp_path: Path) -> None:
    """The last argument is the target."""
    done = result(run("fetch", server.url("photos.zip"), photos / "cat", "all", "--json"))
    assert done["files"] == 6
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["cat", "photos.zip"]


@pytest.mark.slow
def test_extract_makes_a_folder(run: Run, archive: Path, photos: Path, tmp_path: Path) -> None:
    """All members are there; an unrelated folder stays."""
    assert result(run("extract", "photos.zip", "out", "--json"))["members"] == 10
    assert {path.name for path in (tmp_path / "out").rglob("*.png")} == {path.name for path in photos.rglob("*.png")}
    assert "nothing was done" in run("extract", "photos.zip", "out").stdout
    assert "--overwrite" in reason(run("extract", "photos.zip", "photos"), 1)
    assert run("extract", "photos.zip", "photos", "--overwrite").returncode == 0


def test_stage_takes_addresses_and_lists(run: Run, server: WebServer, archive: Path) -> None:
    """A web address and a path make one dataset; their identical files are there once."""
    places = ("--local-dir", "here", "--cache-dir", "none", "--json")
    assert result(run("stage", server.url("photos.zip"), archive, *places))["splits"] == {"train": 10}


@pytest.mark.slow
def test_the_cache_is_listed_and_purged(run: Run, photos: Path, tmp_path: Path) -> None:
    """Without `--yes` nothing is removed; with it only what was named, and never a stranger's file."""
    places = ("--local-dir", "here", "--cache-dir", "lasting")
    assert "Nothing is kept." in run("cache", "list", *places).stdout
    staged = result(run("stage", "photos", *places, "--json"))
    name = os.path.basename(staged["path"]).removesuffix(".h5")  # noqa: PTH119
    (tmp_path / "lasting" / "notes.txt").write_text("mine", encoding="utf-8")
    listed: Any = result(run("cache", "list", *places, "--json"))
    assert [(one["place"], one["name"], one["whole"]) for one in listed] == [
        ("here", name, True),
        ("cache", name, True),
    ]
    assert listed[1]["samples"] == {"train": 10}
    assert listed[1]["source"] == str(photos)
    assert name in run("cache", "list", *places).stdout
    planned = run("cache", "purge", name, *places)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert "Would remove 2 datasets, " in planned.stdout
    assert len(result(run("cache", "list", *places, "--json"))) == 2
    assert "notes" in reason(run("cache", "purge", "notes", *places, "--yes"), 2)
    assert "what to remove" in reason(run("cache", "purge", *places, "--yes"), 2)
    assert "Removed 1 dataset, " in run("cache", "purge", name, "--only", "cache", *places, "--yes").stdout
    assert [path.name for path in (tmp_path / "lasting").iterdir()] == ["notes.txt"]
    removed = run("cache", "purge", "--all", *places, "--yes", "--json")
    assert [one["place"] for one in json.loads(removed.stdout)] == ["here"]
    assert list((tmp_path / "here").iterdir()) == []

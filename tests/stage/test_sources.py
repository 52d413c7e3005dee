"""`stage_dataset` from everywhere: real servers on loopback, archives in parts, interruptions, and no network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage.errors import (
    ChecksumMismatchError,
    OptionError,
    SourceReadError,
)
from colabstage.stage.plan import plan_stage
from colabstage.stage.run import stage_dataset
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer
from tests.support.share_links import DriveShares, SharedItem

if TYPE_CHECKING:
    from colabstage.stage.dataset import StagedDataset

MakeImages = Callable[..., Path]
MakeZip = Callable[[Path, Path], Path]
FILE_ID, FOLDER_ID = "1FileAbcdefghijklmnopqrstuvwxyz_0", "1FolderAbcdefghijklmnopqrstuvwxy0"


def stage(source: object, **options: object) -> StagedDataset:
    """In silence, and without a cache unless the test wants one."""
    return stage_dataset(source, **{"progress": False, "cache_dir": None, **options})  # type: ignore[arg-type]


def check_rows(staged: StagedDataset, folder: Path, *, prefix: str = "") -> None:
    """Every image of a folder is stored as Pillow reads it, and nothing else is."""
    with h5py.File(staged.path, "r") as file:
        keys = [key.decode() for key in file["key_train"][()].tolist()]
        rows = dict(zip(keys, file["X_train"][()], strict=True))
    assert sorted(rows) == sorted(f"{prefix}{path.relative_to(folder)}" for path in folder.rglob("*.png"))
    for key, pixels in rows.items():
        assert np.array_equal(pixels, np.asarray(Image.open(folder / key.removeprefix(prefix))))


def left_in(folder: Path) -> list[str]:
    """What a dataset's folder holds, by kind: nothing temporary, no archive."""
    return sorted("".join(path.suffixes[-2:]) or path.name for path in folder.iterdir())


WHOLE = [".h5", ".h5.json", ".json"]


@pytest.fixture
def archive(photos: Path, tmp_path: Path, make_zip: MakeZip) -> Path:
    """The twenty images as a zip."""
    return make_zip(photos, tmp_path / "photos.zip")


@pytest.fixture
def server(archive: Path) -> Iterator[WebServer]:
    """A web server with the zip."""
    with WebServer({"d/photos.zip": archive.read_bytes()}) as running:
        yield running


def test_offline_the_second_call_returns_at_once(archive: Path) -> None:
    """What is staged stays usable when the server is gone; a fresh staging fails by name."""
    with WebServer({"photos.zip": archive.read_bytes()}) as server:
        url = server.url("photos.zip")
        stage(url)
    began = time.monotonic()
    again = stage(url)
    assert time.monotonic() - began < 10
    assert again.report.origin == "local"
    assert "cannot be reached" in " ".join(again.report.notes)
    with pytest.raises(SourceReadError, match=r"photos\.zip"):
        stage(url, refresh=True)


def test_a_checksum_is_checked_before_anything_is_made(server: WebServer, archive: Path) -> None:
    """The right hash passes and is remembered, a wrong one stops the work, and what was staged stays."""
    right = hashlib.sha256(archive.read_bytes()).hexdigest()
    url = server.url("d/photos.zip")
    staged = stage(url, hash=f"sha256:{right}")
    before = staged.path.read_bytes()
    server.forget_requests()
    assert stage(url, hash=right).report.origin == "local"
    assert server.requests == ()
    with pytest.raises(ChecksumMismatchError, match="0000"):
        stage(url, hash="0" * 64)
    assert staged.path.read_bytes() == before
    assert left_in(staged.path.parent) == WHOLE
    assert stage(url, hash=right).report.origin == "local"
    assert stage(archive, hash=right).report.origin == "source"
    for several in (archive.with_suffix(""), [archive, archive.with_suffix("")]):
        with pytest.raises(OptionError, match="hash="):
            stage(several, hash=right)


def blocks_noted(folder: Path) -> int:
    """How many blocks of partial files are noted as whole, somewhere in a folder; each journal begins with its head."""
    journals = [Path(place, "blocks") for place, _, names in os.walk(folder) if "blocks" in names]
    return sum(max(0, path.read_bytes().count(b"\n") - 1) for path in journals)


@pytest.mark.slow
def test_a_killed_download_goes_on(photos: Path, tmp_path: Path) -> None:
    """A second run takes over the blocks that had arrived."""
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz", compresslevel=1) as tar:
        (tmp_path / "filler").write_bytes(hashlib.shake_128(b"x").digest(60 << 20))
        tar.add(tmp_path / "filler", "filler.bin")
        tar.add(photos, ".")
    content = (tmp_path / "photos.tar.gz").read_bytes()
    with WebServer({"photos.tar.gz": content}, knobs=WebKnobs(total_bytes_per_s=60 << 20)) as server:
        code = (
            "from colabstage.stage.run import stage_dataset\n"
            f"stage_dataset({server.url('photos.tar.gz')!r}, cache_dir=None, progress=False)"
        )
        process = subprocess.Popen([sys.executable, "-c", code])
        deadline = time.monotonic() + 60
        # What was sent may lie in sockets of a machine that is busy, so what counts is what is noted as whole.
        while not blocks_noted(tmp_path) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL
        server.set_knobs(WebKnobs())
        staged = stage(server.url("photos.tar.gz"))
    (note,) = [note for note in staged.report.notes if "interrupted" in note]
    assert re.match(r"[1-9][\d.]* MB of the source were here", note)
    check_rows(staged, photos)
    assert left_in(staged.path.parent) == WHOLE


@pytest.fixture
def shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriveShares]:
    """An imitated Google Drive that this process is led to."""
    with DriveShares(tmp_path) as imitated:
        for name, value in imitated.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield imitated


def test_share_links(shares: DriveShares, photos: Path, archive: Path) -> None:
    """A shared archive and a shared folder are downloaded, packed and removed again; the second call asks one thing."""
    shares.add(SharedItem(FILE_ID, "photos.zip", content=archive.read_bytes()))
    link = f"https://drive.google.com/file/d/{FILE_ID}/view?usp=sharing"
    planned = plan_stage(link, cache_dir=None)
    assert "downloaded first" in str(planned)
    staged = stage(link)
    check_rows(staged, photos)
    assert left_in(staged.path.parent) == WHOLE
    # What was downloaded only to be packed is beside the dataset's own folder, and gone.
    assert {path.name for path in staged.path.parent.parent.iterdir()} == {staged.path.parent.name, "CACHEDIR.TAG"}
    assert stage(FILE_ID).report.origin == "local"
    assert shares.starts(FILE_ID) == [0]
    changed = SharedItem(FILE_ID, "photos.zip", content=archive.read_bytes(), modified="Tue, 03 Mar 2026 10:00:00 GMT")
    shares.add(changed)
    assert stage(link).report.origin == "source"


def split_zips(photos: Path, tmp_path: Path, make_images: MakeImages, make_zip: MakeZip) -> list[Path]:
    """The twenty images in one zip, and ten others in another."""
    return [
        make_zip(photos, tmp_path / "zips" / "part-1.zip"),
        make_zip(make_images(tmp_path / "more", 10, first=20), tmp_path / "zips" / "part-2.zip"),
    ]


def test_several_archives_are_one_dataset(
    photos: Path, tmp_path: Path, make_images: MakeImages, make_zip: MakeZip
) -> None:
    """A list of local and remote archives, and a pattern, give the rows of all of them."""
    (tmp_path / "zips").mkdir()
    first, second = split_zips(photos, tmp_path, make_images, make_zip)
    together = tmp_path / "together"
    for part in (photos, tmp_path / "more"):
        shutil.copytree(part, together, dirs_exist_ok=True)
    with WebServer({"part-2.zip": second.read_bytes()}) as server:
        both = [first, server.url("part-2.zip")]
        staged = stage(both)
        check_rows(staged, together)
        assert "united" in " ".join(staged.report.notes)
        assert left_in(staged.path.parent) == WHOLE
        assert stage(both).report.origin == "local"
    assert stage(both).report.origin == "local"
    check_rows(stage(tmp_path / "zips" / "part-*.zip"), together)
    assert stage(str(tmp_path / "zips" / "part-*.zip")).report.origin == "local"
    make_zip(make_images(tmp_path / "even more", 2, first=30), tmp_path / "zips" / "part-3.zip")
    assert stage(tmp_path / "zips" / "part-*.zip").splits == {"train": 32}


def test_plain_files_of_a_web_archive_are_kept(server: WebServer, photos: Path) -> None:
    """`keep="files"` extracts what arrives."""
    staged = stage(server.url("d/photos.zip"), keep="files")
    assert {p.relative_to(staged.path) for p in staged.path.rglob("*.png")} == {
        p.relative_to(photos) for p in photos.rglob("*.png")
    }
    assert [name for name in left_in(staged.path.parent) if not name.endswith(".deed")] == [".json", "files"]


def test_a_plan_of_a_web_archive_reads_little(server: WebServer, archive: Path, photos: Path, tmp_path: Path) -> None:
    """The plan of a zip knows the rows and the peak; of what only comes as a whole its length; it leaves nothing."""
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as tar:
        tar.add(photos, ".")
    server.put("d/photos.tar.gz", (tmp_path / "photos.tar.gz").read_bytes())
    before = sorted(tmp_path.rglob("*"))
    plan = plan_stage(server.url("d/photos.zip"), cache_dir=None, hash="0" * 64)
    assert plan.samples == {"train": 20}
    assert plan.figures.archive_bytes == archive.stat().st_size
    plan = plan_stage(server.url("d/photos.tar.gz"), cache_dir=None)
    assert (plan.action, plan.samples) == ("stage", {})
    assert plan.figures.peak_bytes == (tmp_path / "photos.tar.gz").stat().st_size
    server.set_knobs(WebKnobs(ranges="none"))
    assert "known only after it has arrived" in str(plan_stage(server.url("d/photos.zip"), cache_dir=None))
    assert sorted(tmp_path.rglob("*")) == before

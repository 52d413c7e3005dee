"""`stage_dataset` from everywhere: real servers on loopback, archives in parts, interruptions, and no network."""

import base64
import hashlib
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import StagedDataset, plan_stage, stage_dataset
from colabstage.errors import ArchiveError, ChecksumMismatchError, DecodeError, OptionError
from tests.support.archives import stored_zip, write_archive
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer
from tests.support.images import image
from tests.support.kaggle_service import HostedDataset, KaggleService
from tests.support.made_files import npy
from tests.support.share_links import DriveShares, SharedItem

MakeImages = Callable[..., Path]
MakeZip = Callable[[Path, Path], Path]
FILE_ID = "1FileAbcdefghijklmnopqrstuvwxyz_0"


def stage(source: object, **options: object) -> StagedDataset:
    """Without output, and without a cache unless the test wants one."""
    return stage_dataset(source, **{"progress": False, "cache_dir": None, **options})  # type: ignore[arg-type]


def check_rows(staged: StagedDataset, folder: Path, *, prefix: str = "") -> None:
    """Check that every image of a folder is stored as Pillow reads it, and nothing else."""
    with h5py.File(staged.path, "r") as file:
        keys = [key.decode() for key in file["key_train"][()].tolist()]
        rows = dict(zip(keys, file["X_train"][()], strict=True))
    assert sorted(rows) == sorted(f"{prefix}{path.relative_to(folder)}" for path in folder.rglob("*.png"))
    for key, pixels in rows.items():
        assert np.array_equal(pixels, np.asarray(Image.open(folder / key.removeprefix(prefix))))


def left_in(folder: Path) -> list[str]:
    """The content of a dataset's folder, by kind, without the record of its rows: nothing temporary, no archive."""
    return sorted("".join(path.suffixes[-2:]) or path.name for path in folder.iterdir() if path.suffix != ".rows")


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


def test_the_key_does_not_follow_the_signature(server: WebServer) -> None:
    first = stage(server.url("d/photos.zip", query="X-Amz-Signature=abc&X-Amz-Date=1"))
    again = stage(server.url("d/photos.zip", query="X-Amz-Signature=def&X-Amz-Date=2"))
    assert again.report.origin == "local"
    written = b"".join(path.read_bytes() for path in first.path.parent.iterdir())
    assert b"X-Amz" not in written


def test_a_checksum_is_checked_before_anything_is_made(server: WebServer, archive: Path) -> None:
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


def test_a_damaged_download_is_damaged_the_next_time() -> None:
    whole = npy(np.full((64, 16), 5, np.float32))
    digest = base64.b64encode(hashlib.md5(whole, usedforsecurity=False).digest()).decode()
    knobs = WebKnobs(ranges="none", headers=(("x-goog-hash", f"md5={digest}"),))
    with WebServer({"data.npy": whole[:-100] + b"?" + whole[-99:]}, knobs=knobs) as server:
        for _ in range(2):
            with pytest.raises(ChecksumMismatchError):
                stage(server.url("data.npy"))


@pytest.fixture
def shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriveShares]:
    """An imitated Google Drive that this process uses as the real one."""
    with DriveShares(tmp_path) as imitated:
        imitated.hosts.lead(monkeypatch, tmp_path)
        yield imitated


def test_share_links(shares: DriveShares, photos: Path, archive: Path) -> None:
    shares.add(SharedItem(FILE_ID, "photos.zip", content=archive.read_bytes()))
    link = f"https://drive.google.com/file/d/{FILE_ID}/view?usp=sharing"
    planned = plan_stage(link, cache_dir=None)
    assert "cat" in str(planned)
    staged = stage(link)
    check_rows(staged, photos)
    assert left_in(staged.path.parent) == WHOLE
    # A download made only for packing is beside the dataset's own folder, and removed.
    assert {path.name for path in staged.path.parent.parent.iterdir()} == {staged.path.parent.name}
    before = shares.count("/download")
    assert stage(f"gdrive://file/{FILE_ID}").report.origin == "local"
    assert shares.count("/download") == before + 1
    changed = SharedItem(FILE_ID, "photos.zip", content=archive.read_bytes(), modified="Tue, 03 Mar 2026 10:00:00 GMT")
    shares.add(changed)
    assert stage(link).report.origin == "source"


def test_a_shared_file_is_what_its_name_says(shares: DriveShares) -> None:
    shares.add(SharedItem(FILE_ID, "data.npy", content=npy(np.zeros((64, 16), np.float32))))
    assert stage(f"https://drive.google.com/file/d/{FILE_ID}/view").splits == {"train": 64}


def test_what_was_downloaded_is_not_downloaded_again(
    shares: DriveShares, photos: Path, tmp_path: Path, make_zip: MakeZip
) -> None:
    bad = photos / "cat" / "0000.png"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:100])
    archive = make_zip(photos, tmp_path / "bad.zip")
    bad.write_bytes(whole)
    shares.add(SharedItem(FILE_ID, "bad.zip", content=archive.read_bytes()))
    with pytest.raises(DecodeError, match="0000"):
        stage(f"gdrive://{FILE_ID}")
    staged = stage(f"gdrive://{FILE_ID}", on_error="skip")
    assert staged.splits == {"train": 19}
    assert any("were here from a run" in note for note in staged.report.notes)
    assert not list((tmp_path / "fast" / "colabstage").glob(".colabstage-*.tmp"))


def test_kaggle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    """A Kaggle dataset is packed while it arrives, and downloaded again if there is a newer version."""
    pytest.importorskip("kagglehub", reason="needs kagglehub: pip install 'colabstage[kaggle]'")
    files = {str(path.relative_to(photos)): path.read_bytes() for path in photos.rglob("*.png")}
    with KaggleService(tmp_path) as service:
        service.hosts.lead(monkeypatch, tmp_path / "home")
        service.add(HostedDataset("ann", "pets", stored_zip(files)))
        staged = stage("kaggle://ann/pets")
        check_rows(staged, photos)
        assert left_in(staged.path.parent) == WHOLE
        assert stage("https://www.kaggle.com/datasets/ann/pets").report.origin == "local"
        assert service.count("DownloadDataset") == 1
        del files["cat/0000.png"]
        service.add(HostedDataset("ann", "pets", stored_zip(files), version=8))
        assert stage("kaggle://ann/pets").splits == {"train": len(files)}
        assert service.count("DownloadDataset") == 2
    silent = stage("kaggle://ann/pets")
    assert silent.report.origin == "local"
    assert any("is not known" in note for note in silent.report.notes)


def test_several_archives_are_one_dataset(
    photos: Path, tmp_path: Path, make_images: MakeImages, make_zip: MakeZip
) -> None:
    """By a list, one of them on the web, and by a pattern, which may match more the next time."""
    zips, together = tmp_path / "zips", tmp_path / "together"
    zips.mkdir()
    first = make_zip(photos, zips / "part-1.zip")
    second = make_zip(make_images(tmp_path / "more", 10, first=20), zips / "part-2.zip")
    for part in (photos, tmp_path / "more"):
        shutil.copytree(part, together, dirs_exist_ok=True)
    with WebServer({"part-2.zip": second.read_bytes()}) as server:
        both = [first, server.url("part-2.zip")]
        staged = stage(both)
        check_rows(staged, together)
        assert left_in(staged.path.parent) == WHOLE
        assert stage(both).report.origin == "local"
    assert stage(both).report.origin == "local"
    check_rows(stage(zips / "part-*.zip"), together)
    assert stage(str(zips / "part-*.zip")).report.origin == "local"
    make_zip(make_images(tmp_path / "even more", 2, first=30), zips / "part-3.zip")
    assert stage(zips / "part-*.zip").splits == {"train": 32}


def test_a_list_of_image_addresses_and_a_pattern_of_images_are_datasets(photos: Path) -> None:
    files = {f"pets/{path.relative_to(photos)}": path.read_bytes() for path in sorted(photos.rglob("*.png"))}
    with WebServer(files) as server:
        urls = [server.url(name) for name in files]
        staged = stage(urls)
        check_rows(staged, photos)
        server.forget_requests()
        assert stage(urls).report.origin == "local"
        assert len(server.requests) == len(urls)
    matched = stage(photos / "*" / "000?.png")
    assert (matched.splits, matched.classes) == ({"train": 10}, ("cat", "dog"))


def test_classes_that_parts_are_named_for_keep_their_names(tmp_path: Path) -> None:
    """The parts contain the same file names, so the parts' own names tell them apart."""
    names = ("Größe ñ", "my cats", "犬", "猫")
    for number, name in enumerate(names):
        write_archive(tmp_path / f"all/{name}.zip", {f"{at}.png": image(10 * number + at) for at in range(4)})
    assert stage(tmp_path / "all" / "*").classes == names


def test_a_list_of_archives_with_something_else_is_refused(photos: Path, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello", encoding="utf-8")
    with pytest.raises(ArchiveError, match=r"notes\.md"):
        stage([archive, tmp_path / "notes.md"])


def test_a_plan_of_a_web_archive_reads_little(server: WebServer, archive: Path, photos: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as tar:
        tar.add(photos, ".")
    server.put("d/photos.tar.gz", (tmp_path / "photos.tar.gz").read_bytes())
    before = sorted(tmp_path.rglob("*"))
    plan = plan_stage(server.url("d/photos.zip"), cache_dir=None, hash="0" * 64)
    assert plan.samples == {"train": 20}
    assert plan.figures.archive_bytes == archive.stat().st_size
    plan = plan_stage(server.url("d/photos.tar.gz"), cache_dir=None)
    assert (plan.action, plan.samples) == ("stage", {})
    assert "at least" in str(plan)
    assert plan.figures.peak_bytes == (tmp_path / "photos.tar.gz").stat().st_size
    server.set_knobs(WebKnobs(ranges="none"))
    assert "known only after all of it was read" in str(plan_stage(server.url("d/photos.zip"), cache_dir=None))
    assert sorted(tmp_path.rglob("*")) == before

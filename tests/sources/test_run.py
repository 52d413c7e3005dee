"""`fetch_files` against real servers, disks and mounts: what arrives, what is kept, what is refused."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from colabstage import fetch_files
from colabstage.errors import (
    ChecksumMismatchError,
    NotEnoughSpaceError,
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    TargetExistsError,
)
from colabstage.io.receipts import look_at
from simulated_drive.knobs import DriveFaults, OpFault
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.share_links import DriveShares, SharedItem
from tests.support.staged import has_whole_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from colabstage.sources.fetching import FetchReport
    from simulated_drive.drive import SimulatedDrive
    from tests.sources.servers import BucketService

MIB = 1024 * 1024


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place."""
    return hashlib.shake_128(str(seed).encode()).digest(size)


DATA = content(20 * MIB)


def fetch(source: object, target: Path, **options: object) -> FetchReport:
    """In silence."""
    return fetch_files(source, target, **{"progress": False, **options})  # type: ignore[arg-type]  # tests give what it takes


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def visible(folder: Path) -> list[str]:
    """What a person sees in a folder."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A web server with one large file."""
    with WebServer({"data.zip": DATA}) as running:
        yield running


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Sixty small files in three folders, and one of more than 64 MiB."""
    folder = tmp_path / "photos"
    for number in range(60):
        path = folder / f"class{number % 3}" / f"{number:02}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(1000 + number, number))
        os.utime(path, ns=(10**18 + number, 10**18 + number))
    (folder / "large.bin").write_bytes(content(65 * MIB))
    return folder


def test_a_file_from_the_web(server: WebServer, tmp_path: Path) -> None:
    """It arrives whole in several parts, stays an archive, and the report says how much and how."""
    report = fetch(server.url("data.zip"), tmp_path / "out" / "copy.zip")
    assert (tmp_path / "out" / "copy.zip").read_bytes() == DATA
    assert visible(tmp_path / "out") == ["copy.zip"]
    assert (report.files, report.nbytes, report.kept_bytes, report.transport) == (1, len(DATA), 0, "http")
    assert report.rate > 0
    assert report.to_dict()["path"] == str(report.path)
    assert "Fetched 21 MB to" in str(report)


def test_into_a_folder_that_exists_it_keeps_its_name(server: WebServer, tmp_path: Path) -> None:
    """As `cp` does; what else is in the folder stays, and the second call finds it there."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine", encoding="utf-8")
    assert fetch(server.url("data.zip"), tmp_path / "out").path == tmp_path / "out" / "data.zip"
    assert visible(tmp_path / "out") == ["data.zip", "mine.txt"]
    server.forget_requests()
    assert fetch(server.url("data.zip"), tmp_path / "out").kept_bytes == len(DATA)
    assert server.bytes_sent < 100_000


def test_a_second_call_reads_nothing(server: WebServer, photos: Path, tmp_path: Path) -> None:
    """Files and folders that have not changed on either side are not read again, whatever the signature of the day."""
    fetch(server.url("data.zip", query="X-Amz-Signature=one"), tmp_path / "a.zip")
    fetch(photos, tmp_path / "b")
    server.forget_requests()
    for source, place in ((server.url("data.zip", query="X-Amz-Signature=two"), "a.zip"), (photos, "b")):
        report = fetch(source, tmp_path / place)
        assert report.kept_bytes == report.nbytes > 0
        assert "already" in str(report)
    assert server.bytes_sent < 100_000


@pytest.mark.parametrize("weak_first", [True, False])
def test_a_proxy_that_weakens_a_tag_has_changed_nothing(server: WebServer, tmp_path: Path, weak_first: bool) -> None:
    """One that compresses an answer makes its tag a weak one, for the same content; another tag is another content."""
    first, then = WebKnobs(etag="weak"), WebKnobs(etag="strong")
    server.set_knobs(first if weak_first else then)
    fetch(server.url("data.zip"), tmp_path / "a.zip")
    server.set_knobs(then if weak_first else first)
    assert fetch(server.url("data.zip"), tmp_path / "a.zip").fetched_bytes == 0
    server.put("data.zip", b"PK\3\4new")
    assert fetch(server.url("data.zip"), tmp_path / "a.zip").fetched_bytes == 7


def test_a_changed_source_is_fetched_again(server: WebServer, photos: Path, tmp_path: Path) -> None:
    """A new version replaces what was fetched before."""
    fetch(server.url("data.zip"), tmp_path / "a.zip")
    server.put("data.zip", b"PK\3\4new")
    assert fetch(server.url("data.zip"), tmp_path / "a.zip").fetched_bytes == 7
    assert (tmp_path / "a.zip").read_bytes() == b"PK\3\4new"
    fetch(photos, tmp_path / "b")
    (photos / "class0" / "00.bin").unlink()
    fetch(photos, tmp_path / "b")
    assert read_tree(tmp_path / "b") == read_tree(photos)


def test_an_unreachable_source_leaves_what_is_here(photos: Path, tmp_path: Path) -> None:
    """Without a network the second call returns what was fetched before, and says so."""
    with WebServer({"data.zip": DATA}) as server:
        url = server.url("data.zip")
        fetch(url, tmp_path / "a.zip")
    began = time.monotonic()
    report = fetch(url, tmp_path / "a.zip")
    assert time.monotonic() - began < 10.0
    assert report.kept_bytes == len(DATA)
    assert "cannot be reached" in str(report)


def test_a_folder_arrives_with_names_bytes_and_times(photos: Path, tmp_path: Path) -> None:
    """Every file of it, large ones in parts, each with its time."""
    report = fetch(photos, tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(photos)
    assert (tmp_path / "copy" / "class1" / "01.bin").stat().st_mtime_ns == 10**18 + 1
    assert (report.files, report.transport) == (61, "local disk")


def test_what_it_did_not_make_is_not_replaced(server: WebServer, photos: Path, tmp_path: Path) -> None:
    """Somebody's file or folder, and its own work that somebody changed, stay; `overwrite` replaces them."""
    (tmp_path / "a.zip").write_text("mine", encoding="utf-8")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine", encoding="utf-8")
    for source, place in ((server.url("data.zip"), "a.zip"), (photos, "b")):
        with pytest.raises(TargetExistsError, match=r"overwrite=True"):
            fetch(source, tmp_path / place)
    assert (tmp_path / "a.zip").read_text(encoding="utf-8") == "mine"
    assert visible(tmp_path / "b") == ["mine.txt"]
    fetch(server.url("data.zip"), tmp_path / "a.zip", overwrite=True)
    fetch(photos, tmp_path / "b", overwrite=True)
    assert read_tree(tmp_path / "b") == read_tree(photos)
    (tmp_path / "b" / "class0" / "00.bin").write_bytes(b"edited")
    with pytest.raises(TargetExistsError, match="was changed"):
        fetch(photos, tmp_path / "b")
    with pytest.raises(TargetExistsError, match="from another source"):
        fetch(photos / "large.bin", tmp_path / "a.zip")


def test_a_checksum_decides(server: WebServer, tmp_path: Path) -> None:
    """The right one passes; of a wrong one both hashes are named, and what was there stays."""
    right = hashlib.sha256(DATA).hexdigest()
    fetch(server.url("data.zip"), tmp_path / "a.zip", hash=f"sha256:{right}")
    server.put("data.zip", DATA[::-1])
    assert fetch(server.url("data.zip"), tmp_path / "a.zip", hash=right).kept_bytes == len(DATA)
    with pytest.raises(ChecksumMismatchError, match=right):
        fetch(server.url("data.zip"), tmp_path / "b.zip", hash=right)
    assert not (tmp_path / "b.zip").exists()
    (tmp_path / "local.bin").write_bytes(DATA)
    fetch(tmp_path / "local.bin", tmp_path / "c.bin", hash=right)
    with pytest.raises(ChecksumMismatchError):
        fetch(tmp_path / "local.bin", tmp_path / "d.bin", hash="0" * 64)
    assert not (tmp_path / "d.bin").exists()


def test_a_checksum_of_many_files_is_refused(photos: Path, tmp_path: Path) -> None:
    """A folder and a list have no one hash."""
    for source in (photos, [photos, photos / "large.bin"]):
        with pytest.raises(OptionError, match="hash="):
            fetch(source, tmp_path / "a", hash="0" * 64)
    assert visible(tmp_path) == ["photos"]


def test_a_list_keeps_names(server: WebServer, photos: Path, tmp_path: Path) -> None:
    """Files come under their names, folders under theirs."""
    report = fetch([server.url("data.zip"), photos / "class0", photos / "large.bin"], tmp_path / "all")
    wanted = {f"class0/{path.name}": path.read_bytes() for path in (photos / "class0").iterdir()}
    wanted |= {"data.zip": DATA, "large.bin": (photos / "large.bin").read_bytes()}
    assert read_tree(tmp_path / "all") == wanted
    again = fetch([server.url("data.zip"), photos / "class0", photos / "large.bin"], tmp_path / "all")
    assert again.kept_bytes == again.nbytes == report.nbytes


def test_a_pattern_is_a_folder_of_what_fits(photos: Path, tmp_path: Path) -> None:
    """Each file that fits; one more that fits tomorrow is a change."""
    fetch(photos / "class0" / "0*.bin", tmp_path / "some")
    assert visible(tmp_path / "some") == ["00.bin", "03.bin", "06.bin", "09.bin"]
    (photos / "class0" / "01.bin").write_bytes(b"new")
    fetch(photos / "class0" / "0*.bin", tmp_path / "some")
    assert visible(tmp_path / "some") == ["00.bin", "01.bin", "03.bin", "06.bin", "09.bin"]


@pytest.mark.slow
def test_objects_and_folders_of_a_bucket(s3: BucketService, tmp_path: Path) -> None:
    """One object, and a folder of them; a rewritten object is noticed."""
    objects = {f"train/{n}.bin": content(1000 + n, n) for n in range(30)}
    for key, value in objects.items():
        s3.put(key, value)
    assert fetch("s3://data/train/7.bin", tmp_path / "7.bin").transport == "object store"
    assert (tmp_path / "7.bin").read_bytes() == objects["train/7.bin"]
    fetch("s3://data/train", tmp_path / "train")
    assert {f"train/{name}": value for name, value in read_tree(tmp_path / "train").items()} == objects
    again = fetch("s3://data/train", tmp_path / "train")
    assert again.kept_bytes == again.nbytes  # listed, and nothing fetched
    s3.put("train/3.bin", content(1003, 99))
    assert fetch("s3://data/train", tmp_path / "train").kept_bytes < again.nbytes
    assert (tmp_path / "train" / "3.bin").read_bytes() == content(1003, 99)


def test_share_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared file and a shared folder get their places without a second copy, once."""
    file_id, folder_id = "1FileAbcdefghijklmnopqrstuvwxyz_0", "1FolderAbcdefghijklmnopqrstuvwxy0"
    with DriveShares(tmp_path) as shares:
        for name, value in shares.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        shares.add(
            SharedItem(file_id, "data.bin", content=content(300_000)),
            SharedItem(folder_id, "set", kind="folder", entries=(file_id,)),
        )
        link = f"https://drive.google.com/file/d/{file_id}/view"
        for _ in range(2):
            report = fetch(link, tmp_path / "out" / "a.bin")
        assert (report.transport, report.kept_bytes) == ("share link", 300_000)
        folder = f"https://drive.google.com/drive/folders/{folder_id}"
        for _ in range(2):
            fetch(folder, tmp_path / "out" / "set")
        assert read_tree(tmp_path / "out" / "set") == {"data.bin": content(300_000)}
        assert (tmp_path / "out" / "a.bin").read_bytes() == content(300_000)
        assert visible(tmp_path / "out") == ["a.bin", "set"]
        assert shares.starts(file_id) == [0, 0]


def test_a_refused_share_is_refused_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came and was another file, and what came when no checksum was asked for, is not taken for the right one."""
    file_id = "1FileAbcdefghijklmnopqrstuvwxyz_0"
    good = f"sha256:{hashlib.sha256(b'good').hexdigest()}"
    with DriveShares(tmp_path) as shares:
        for name, value in shares.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        shares.add(SharedItem(file_id, "data.bin", content=content(30_000)))
        link = f"https://drive.google.com/file/d/{file_id}/view"
        (tmp_path / "out").mkdir()
        for _ in range(3):
            with pytest.raises(ChecksumMismatchError):
                fetch(link, tmp_path / "out" / "a.bin", hash=good)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "there.bin").write_bytes(b"mine")
        with pytest.raises(TargetExistsError):
            fetch(link, tmp_path / "other" / "there.bin")
        with pytest.raises(ChecksumMismatchError):
            fetch(link, tmp_path / "other" / "new.bin", hash=good)
        assert not (tmp_path / "out" / "a.bin").exists()
        assert not (tmp_path / "other" / "new.bin").exists()
        right = f"sha256:{hashlib.sha256(content(30_000)).hexdigest()}"
        assert fetch(link, tmp_path / "other" / "new.bin", hash=right).nbytes == 30_000


def test_it_can_be_fetched_again(server: WebServer, photos: Path, tmp_path: Path) -> None:
    """`refresh=True` whatever is here; `verify="full"` compares what is here and there, and fetches what differs."""
    with pytest.raises(OptionError, match="verify='all'"):
        fetch(server.url("data.zip"), tmp_path / "a.zip", verify="all")
    fetch(server.url("data.zip"), tmp_path / "a.zip")
    assert fetch(server.url("data.zip"), tmp_path / "a.zip", verify="full").kept_bytes == len(DATA)
    assert fetch(server.url("data.zip"), tmp_path / "a.zip", refresh=True).kept_bytes == 0
    with (tmp_path / "a.zip").open("r+b") as file:
        found = os.fstat(file.fileno())
        file.write(b"spoilt")
    os.utime(tmp_path / "a.zip", ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(TargetExistsError, match="changed"):
        fetch(server.url("data.zip"), tmp_path / "a.zip", verify="full")
    assert fetch(server.url("data.zip"), tmp_path / "a.zip", verify="full", overwrite=True).kept_bytes == 0
    assert (tmp_path / "a.zip").read_bytes() == DATA
    fetch(photos, tmp_path / "here")
    assert fetch(photos, tmp_path / "here", refresh=True).kept_bytes == 0


@pytest.mark.fuse
def test_a_drive_on_a_bad_day(make_drive: Callable[..., SimulatedDrive], tmp_path: Path, photos: Path) -> None:
    """Files of a mounted Drive arrive though reads fail now and then; the plan counts the mount's second copy."""
    drive = make_drive()
    assert drive.mountpoint is not None
    cloud = drive.cloud / "MyDrive" / "photos"
    for name, data in read_tree(photos).items():
        (cloud / name).parent.mkdir(parents=True, exist_ok=True)
        (cloud / name).write_bytes(data)
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", errno=errno.EIO, every=20),)))
    report = fetch(drive.mountpoint / "MyDrive" / "photos", tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(photos)
    assert report.transport == "mount"
    assert any("second copy" in note for note in report.notes)


def test_too_little_disk_is_refused_before_the_first_byte(server: WebServer, small_disk: Path) -> None:
    """With figures; nothing is written."""
    with pytest.raises(NotEnoughSpaceError, match="21 MB"):
        fetch(server.url("data.zip"), small_disk / "a.zip")
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (WebFault(kind="status", status=404), SourceNotFoundError),
        (WebFault(kind="status", status=403), SourceAccessError),
    ],
)
def test_a_refusal_leaves_nothing(server: WebServer, tmp_path: Path, fault: WebFault, error: type[Exception]) -> None:
    """The service's no is a typed error, and the target is as it was."""
    server.set_faults(fault)
    with pytest.raises(error):
        fetch(server.url("data.zip"), tmp_path / "a.zip")
    assert list(tmp_path.iterdir()) == []


def test_wrong_targets_are_refused(server: WebServer, tmp_path: Path) -> None:
    """An address is no target, and a file is no folder to put a folder into."""
    with pytest.raises(OptionError, match="target="):
        fetch_files(server.url("data.zip"), "s3://bucket/a.zip", progress=False)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").touch()
    with pytest.raises(TargetExistsError):
        fetch(tmp_path / "folder", tmp_path / "file")


def kill_when(source: object, target: Path, is_time: Callable[[], bool]) -> None:
    """Run `fetch_files` in a process of its own and kill it when it is time."""
    code = f"from colabstage.sources.fetching import fetch_files as f; f({source!r}, {str(target)!r}, progress=False)"
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not is_time() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_download_goes_on(server: WebServer, tmp_path: Path) -> None:
    """What had arrived in whole blocks is not fetched again."""
    large = DATA * 3
    server.put("data.zip", large)
    server.set_knobs(WebKnobs(total_bytes_per_s=30 * MIB))
    kill_when(server.url("data.zip"), tmp_path / "a.zip", lambda: has_whole_block(tmp_path))
    assert not (tmp_path / "a.zip").exists()
    server.set_knobs(WebKnobs())
    report = fetch(server.url("data.zip"), tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == large
    # The last block, which is shorter, may have been whole first.
    assert report.kept_bytes >= min(8 * MIB, len(large) % (8 * MIB) or 8 * MIB)
    assert "were already here" in str(report)
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".receipt", ".zip"]


@pytest.mark.slow
def test_a_killed_folder_goes_on(tmp_path: Path) -> None:
    """Files that were whole are hashed and kept; one that was damaged meanwhile is read again."""
    files = {f"set/{n:03}.bin": content(50_000, n) for n in range(200)}
    with WebServer(files, knobs=WebKnobs(total_bytes_per_s=5_000_000)) as server:
        urls = [server.url(name) for name in files]
        kill_when(urls, tmp_path / "set", lambda: len(list(tmp_path.glob(".colabstage-*/files/*"))) >= 60)
        victim = min(tmp_path.glob(".colabstage-*/files/*"), key=lambda path: path.stat().st_mtime_ns)
        victim.write_bytes(bytes(50_000))
        server.set_knobs(WebKnobs())
        report = fetch(urls, tmp_path / "set")
    assert {f"set/{name}": data for name, data in read_tree(tmp_path / "set").items()} == files
    assert 30 * 50_000 <= report.kept_bytes < report.nbytes
    assert visible(tmp_path) == ["set"]
    assert look_at(tmp_path / "set").is_as_made

"""`fetch_files` against real servers, disks and mounts: what arrives, what is kept, what is refused."""

import errno
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, stage_dataset
from colabstage.errors import (
    ChecksumMismatchError,
    NotEnoughSpaceError,
    OptionError,
    SourceReadError,
    TargetExistsError,
)
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, OpFault
from tests.support.archives import tar_bytes
from tests.support.deadlines import ask_again_at_once
from tests.support.far import random_bytes
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer
from tests.support.images import make_tree, read_tree

MIB = 1024 * 1024


DATA = random_bytes(9 * MIB)


def fetch(source: object, target: Path, **options: object) -> Any:
    """In silence."""
    return fetch_files(source, target, **{"progress": False, **options})  # type: ignore[arg-type]  # tests give what it takes


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
    """Files of many lengths in folders up to four deep, empty ones and odd names among them."""
    names = ["top.txt", "a/b/c/deep.bin", "a/b/empty.bin", "ü/Grüße 1.txt", "a.b/x", os.fsdecode(b"a/\xff.bin")]
    names += ["Dogs/a.bin", "dogs/a.bin", *(f"class{n % 3}/{n:02}.bin" for n in range(58))]
    folder = tmp_path / "photos"
    files = {name: b"" if "empty" in name else random_bytes(1 + n * 37, n) for n, name in enumerate(names)}
    make_tree(folder, files)
    for number, name in enumerate(names):
        os.utime(folder / name, ns=(10**18 + number, 10**18 + number * 1_000_000_007))
    return folder


def times(folder: Path) -> dict[str, int]:
    """When each file below a folder was changed."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_folder_arrives_with_names_bytes_and_times(photos: Path, tmp_path: Path) -> None:
    """Every file of it to the nanosecond, a large one in pieces; nothing is left on the folders that are made."""
    with (photos / "large.bin").open("wb") as file:
        file.truncate(65 * MIB + 123)
        for offset, mark in {0: b"first", 16 * MIB - 2: b"seam", 64 * MIB - 3: b"another"}.items():
            os.pwrite(file.fileno(), mark, offset)
    os.utime(photos / "large.bin", ns=(10**18, 10**18))
    report = fetch(photos, tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(photos)
    assert times(tmp_path / "copy") == times(photos)
    assert (report.files, report.transport) == (67, "local disk")
    shown = subprocess.run(["lsattr", "-d", f"{tmp_path}/copy", f"{tmp_path}/copy/a"], check=False, capture_output=True)
    assert not any(b"T" in line.split()[0] for line in shown.stdout.splitlines())


@pytest.mark.fuse
def test_a_folder_of_a_drive_on_a_bad_day(
    make_drive: Callable[..., SimulatedDrive], tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file's first read fails, and everything arrives all the same; an error that stays names its file."""
    drive = make_drive()
    assert drive.mountpoint is not None
    ask_again_at_once(monkeypatch.setattr)
    (photos / os.fsdecode(b"a/\xff.bin")).unlink()  # Drive has no names that are not UTF-8
    make_tree(drive.cloud / "MyDrive/photos", read_tree(photos))
    (drive.cloud / "MyDrive/photos/large.bin").write_bytes(bytes(65 * MIB))
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", first=1, per_file=True),)))
    report = fetch(drive.mountpoint / "MyDrive/photos", tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(drive.cloud / "MyDrive/photos")
    assert report.transport == "mount"
    assert any("second copy" in note for note in report.notes)
    assert drive.stats().errors_injected >= 60
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="*/c/deep.bin", errno=errno.EIO),)))
    with pytest.raises(SourceReadError, match=r"b/c/deep\.bin.*quota"):
        fetch(drive.mountpoint / "MyDrive/photos/a", tmp_path / "other")


def test_into_a_folder_that_exists_it_keeps_its_name(server: WebServer, tmp_path: Path) -> None:
    """As `cp` does; what else is in the folder stays, and the second call finds it there."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine", encoding="utf-8")
    report = fetch(server.url("data.zip"), tmp_path / "out")
    assert report.path == tmp_path / "out" / "data.zip"
    assert (report.files, report.nbytes, report.kept_bytes, report.transport) == (1, len(DATA), 0, "http")
    assert report.to_dict()["path"] == str(report.path)
    assert "9.44 MB" in str(report)
    assert visible(tmp_path / "out") == ["data.zip", "mine.txt"]
    server.forget_requests()
    assert fetch(server.url("data.zip"), tmp_path / "out").kept_bytes == len(DATA)
    assert server.bytes_sent < 100_000


@pytest.mark.parametrize("tags", [("weak", "strong"), ("strong", "weak")], ids=" then ".join)
def test_a_proxy_that_weakens_a_tag_has_changed_nothing(server: WebServer, tmp_path: Path, tags: Any) -> None:
    """One that compresses an answer makes its tag a weak one, for the same content; another tag is another content."""
    reports = []
    for tag in tags:
        server.set_knobs(WebKnobs(etag=tag))
        reports.append(fetch(server.url("data.zip"), tmp_path / "a.zip"))
    assert reports[1].fetched_bytes == 0
    server.put("data.zip", b"PK\3\4new")
    assert fetch(server.url("data.zip"), tmp_path / "a.zip").fetched_bytes == 7


def test_an_unreachable_source_leaves_what_is_here(photos: Path, tmp_path: Path) -> None:
    """Without a network the second call returns what was fetched before, and says so."""
    with WebServer({"data.zip": DATA}) as server:
        url = server.url("data.zip")
        fetch(url, tmp_path / "a.zip")
    began = time.monotonic()
    report = fetch(url, tmp_path / "a.zip")
    assert time.monotonic() - began < 10.0
    assert report.kept_bytes == len(DATA)
    assert "is not known" in str(report)


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


def test_a_list_keeps_names(server: WebServer, photos: Path, tmp_path: Path) -> None:
    """Files come under their names, folders under theirs, large ones in pieces."""
    (photos / "large.bin").write_bytes(bytes(65 * MIB))
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


def test_too_little_disk_is_refused_before_the_first_byte(server: WebServer, small_disk: Path) -> None:
    """With figures; nothing is written, also of an archive that is copied whole before its content is known."""
    with pytest.raises(NotEnoughSpaceError, match=r"9\.44 MB"):
        fetch(server.url("data.zip"), small_disk / "a.zip")
    server.put("data.tar.gz", tar_bytes({"data.bin": DATA}, mode="w:gz"))
    with pytest.raises(NotEnoughSpaceError, match=r"9\.44 MB"):
        stage_dataset(server.url("data.tar.gz"), local_dir=small_disk, cache_dir=None, progress=False)
    assert list(small_disk.iterdir()) == []

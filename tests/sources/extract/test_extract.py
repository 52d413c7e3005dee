"""Extraction: whole or not at all, resumable, never twice, never in the way of what stands there."""

import io
import os
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage import extract_archive, pack_dataset
from colabstage.errors import (
    CancelledError,
    CorruptArchiveError,
    NotEnoughSpaceError,
    SourceChangedError,
    TargetNotWritableError,
)
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, OpFault
from tests.support.images import image, in_classes, read_tree
from tests.support.steps import Meanwhile, OneStep

MIB = 1024 * 1024
# From so many members on, processes write them.
MANY = 2000


def many_files(count: int = MANY) -> dict[str, bytes]:
    """Small files in folders, of many lengths."""
    rng = np.random.default_rng(1)
    return {f"train/{n % 7}/{n:05d}.bin": rng.bytes(n % 97) * 20 for n in range(count)}


def write(path: Path, files: dict[str, bytes], kind: str = "zip") -> Path:
    """An archive with fixed times: a zip, "stored" or not, or a tar."""
    if kind in ("zip", "stored"):
        method = zipfile.ZIP_DEFLATED if kind == "zip" else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "w") as zipped:
            for name, content in files.items():
                zipped.writestr(zipfile.ZipInfo(name, (2024, 5, 17, 12, 30, 2)), content, method)
        return path
    with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as tarred:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1_700_000_000
            tarred.addfile(info, io.BytesIO(content))
    return path


def beside(folder: Path) -> list[str]:
    """What lies in a folder, without the owners in names."""
    return sorted(re.sub(r"(?<=-out)\..*(?=\.receipt)", "…", path.name) for path in folder.iterdir())


def leftovers(folder: Path) -> list[str]:
    """Temporary names in a folder."""
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


class Noticing(OneStep):
    """A `Progress` that calls `notice` with all that is done so far."""

    def __init__(self, notice: Callable[[int], None]) -> None:
        self._notice = notice
        self._done = 0
        self._lock = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            self._done += amount
        self._notice(self._done)


@pytest.mark.parametrize(("kind", "count"), [("tar", 40), ("zip", MANY)])
def test_every_file_is_there_as_it_was(tmp_path: Path, kind: str, count: int) -> None:
    """By threads and by processes: names, bytes, times, and nothing else; beside it a record and an inventory."""
    files = many_files(count)
    archive = write(tmp_path / "data", files, kind)
    (tmp_path / "out").mkdir()  # an empty folder may stand there: notebooks make it first
    report = extract_archive(archive, tmp_path / "out", progress=False)
    assert read_tree(tmp_path / "out") == files
    assert (report.members, report.content_bytes) == (count, sum(map(len, files.values())))
    assert (report.reused, report.kept_members) == (False, 0)
    assert f"{count:,} files" in str(report)
    times = {path.stat().st_mtime for path in (tmp_path / "out").rglob("*.bin")}
    assert times == {1_715_949_002.0 if kind == "zip" else 1_700_000_000.0}
    assert beside(tmp_path) == [".colabstage-out….receipt", "data", "out"]


def _stamp(path: Path) -> tuple[int, int, int]:
    """Which file it is, and when it was last changed; reading it changes neither."""
    facts = path.stat()
    return facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns


def test_the_same_archive_again_is_not_extracted_again(tmp_path: Path) -> None:
    """Also when it is called by another name; the files stay the very ones. One that changed is extracted anew."""
    archive = write(tmp_path / "a.zip", many_files(50))
    extract_archive(archive, tmp_path / "out", progress=False)
    before = _stamp(tmp_path / "out/train/1/00001.bin")
    again = extract_archive(archive, tmp_path / "out", progress=False)
    (tmp_path / "b.zip").hardlink_to(archive)
    other = extract_archive(tmp_path / "b.zip", tmp_path / "out", progress=False)
    assert (again.reused, other.reused) == (True, True)
    assert again.members == 50
    assert "already" in str(again)
    assert _stamp(tmp_path / "out/train/1/00001.bin") == before
    write(archive, {"new": b"22"})
    assert not extract_archive(archive, tmp_path / "out", progress=False).reused
    assert read_tree(tmp_path / "out") == {"new": b"22"}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("meanwhile", ["a file of it is cut", "the archive is written anew"])
def test_an_interrupted_run_goes_on_with_what_is_whole(tmp_path: Path, meanwhile: str) -> None:
    """Nothing stands at the target; the next call writes only the rest, and says so. Names, sizes and the archive's
    ends may all be those of another one: labels written anew."""
    files = {f"labels/{number:05}.txt": b"%05d 0.5 0.5 0.1 0.1\n" % number * 40 for number in range(MANY)}
    archive = write(tmp_path / "a.tar", files, "tar")
    progress = Noticing(lambda done: progress.cancellation.cancel() if done > 1_000_000 else None)
    with pytest.raises(CancelledError):
        extract_archive(archive, tmp_path / "out", progress=progress)
    assert not (tmp_path / "out").exists()
    if meanwhile == "a file of it is cut":
        (left,) = (tmp_path / name for name in leftovers(tmp_path))
        next(path for path in left.rglob("*.txt") if path.stat().st_size).write_bytes(b"short")
    if meanwhile == "the archive is written anew":
        files = {name: content[::-1] if 800 <= int(name[7:12]) < 1200 else content for name, content in files.items()}
        write(archive, files, "tar")
    report = extract_archive(archive, tmp_path / "out", progress=False)
    assert read_tree(tmp_path / "out") == files
    if meanwhile != "the archive is written anew":
        assert MANY / 3 < report.kept_members < MANY
        assert f"{report.kept_members:,}" in str(report)
    assert leftovers(tmp_path) == []


def test_a_damaged_member_leaves_nothing(tmp_path: Path) -> None:
    """Found by a process in the middle of the work: named, the rest removed, what stood there untouched."""
    files = many_files()
    archive = write(tmp_path / "a.zip", files, "stored")
    content = bytearray(archive.read_bytes())
    content[content.index(files["train/0/01799.bin"])] ^= 1
    archive.write_bytes(content)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(CorruptArchiveError, match=r"01799\.bin"):
        extract_archive(archive, tmp_path / "out", overwrite=True, progress=False)
    assert list(read_tree(tmp_path / "out")) == ["mine"]
    assert leftovers(tmp_path) == []


def test_too_little_room_is_told_with_figures_before_anything_is_written(tmp_path: Path, small_disk: Path) -> None:
    """The plan counts whole blocks and what files take beside their content."""
    archive = write(tmp_path / "a.zip", many_files(3000))
    with pytest.raises(NotEnoughSpaceError, match=r"'a.zip' \(3,000 files\) .* 1[0-9.]+ MB"):
        extract_archive(archive, small_disk / "out", progress=False)
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_takes_two_names_for_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of Windows and macOS do: one file would replace the other."""
    archive, open_file = write(tmp_path / "a.zip", {"a.txt": b"1", "A.txt": b"2"}), os.open

    def folded(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if path == "A.txt":  # it is there, and is removed first
            path, flags = "a.txt", flags & ~os.O_EXCL | os.O_TRUNC
        return open_file(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", folded)
    with pytest.raises(TargetNotWritableError, match="differ in case"):
        extract_archive(archive, tmp_path / "out", progress=False)
    assert beside(tmp_path) == ["a.zip"]


_LARGE = """
import resource, sys
from colabstage import extract_archive
extract_archive(sys.argv[1], sys.argv[2], progress=False)
# Not ru_maxrss for this process: that begins with what the process that started it has held.
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(300_000_000), pytest.param(3_000_000_000, marks=pytest.mark.long)])
def test_a_member_of_gigabytes_takes_little_memory(tmp_path: Path, size: int) -> None:
    """Neither the archive nor the member is ever held; all of it passes through some 16 MiB at a time."""
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize < 3 * size:
        pytest.skip(f"needs {3 * size / 1e9:.1f} GB of free disk")
    archive = tmp_path / "large.zip"
    with (
        zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("mask.npy", "w", force_zip64=True) as member,
    ):
        piece = bytes(1000) + os.urandom(20) + bytes(16 * MIB - 1020)
        for start in range(0, size, len(piece)):
            member.write(piece[: size - start])
    command = [sys.executable, "-c", _LARGE, str(archive), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, check=True, timeout=100, capture_output=True, text=True)
    assert (tmp_path / "out" / "mask.npy").stat().st_size == size
    assert int(done.stdout) < 250
    for path in (archive, tmp_path / "out" / "mask.npy"):
        path.unlink()


@pytest.mark.disk
def test_the_disk_never_holds_what_was_unpacked_twice(tmp_path: Path) -> None:
    """The unpacked form of a compressed tar goes as its members are written."""
    rng = np.random.default_rng(5)
    archive = write(tmp_path / "a.tar.gz", {f"{n:03d}.bin": rng.bytes(100_000) for n in range(200)}, "tar.gz")
    most = 0

    def notice(_: int) -> None:
        nonlocal most
        taken = (path.lstat().st_blocks for path in tmp_path.rglob("*"))
        most = max(most, sum(taken) * 512 - 20_000_000)

    extract_archive(archive, tmp_path / "out", progress=Noticing(notice))
    notice(0)  # progress need not be told after the last member: at least the whole output was measured
    assert 20_000_000 < most < 25_000_000


@pytest.mark.fuse
@pytest.mark.parametrize("kind", ["tar.gz"])
def test_an_archive_on_drive_is_copied_once_and_extracted_meanwhile(
    tmp_path: Path, make_drive: Callable[..., SimulatedDrive], kind: str
) -> None:
    """It is not unpacked on the mount; the copy is gone afterwards, and a passing error does not show."""
    drive = make_drive()
    assert drive.mountpoint is not None
    files = many_files(400)
    place = drive.cloud / "MyDrive" / "data"
    write(place, files, kind)
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", first=1, per_file=True),)))
    local = tmp_path / "local"
    local.mkdir()
    report = extract_archive(drive.mountpoint / "MyDrive" / "data", local / "out", progress=False)
    assert read_tree(local / "out") == files
    assert report.members == 400
    assert beside(local) == [".colabstage-out….receipt", "out"]
    assert extract_archive(drive.mountpoint / "MyDrive" / "data", local / "out", progress=False).reused


@pytest.mark.parametrize("make", [extract_archive, pack_dataset])
def test_an_archive_that_is_written_to_meanwhile_is_refused(tmp_path: Path, make: Callable[..., object]) -> None:
    """What was read may be of two states, so nothing is put at the target."""
    archive = write(tmp_path / "a.zip", {name: image(number) for name, number in in_classes(8).items()})
    target = tmp_path / "made.h5"
    with pytest.raises(SourceChangedError, match=r"a\.zip.*try again\. Nothing was put in its place"):
        make(archive, target, progress=Meanwhile(lambda: os.utime(archive)))
    assert not target.exists()

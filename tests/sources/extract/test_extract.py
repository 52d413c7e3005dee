"""Extraction: whole or not at all, resumable, never twice, never in the way of what stands there."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from colabstage import extract_archive
from colabstage.errors import (
    ArchiveError,
    CancelledError,
    CorruptArchiveError,
    NotEnoughSpaceError,
    SourceNotFoundError,
    TargetExistsError,
)
from colabstage.io.progress import Cancellation
from simulated_drive.knobs import DriveFaults, OpFault
from tests.support.steps import OneStep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive

MIB = 1024 * 1024
# From so many members on, processes write them.
MANY = 2000


def many_files(count: int = MANY) -> dict[str, bytes]:
    """Small files in folders, of many lengths."""
    rng = np.random.default_rng(1)
    return {f"train/{n % 7}/{n:05d}.bin": rng.bytes(n % 97) * 20 for n in range(count)}


def write_zip(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip with fixed times."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2024, 5, 17, 12, 30, 2)), content, method)
    return path


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    """A tar with fixed times."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1_700_000_000
            archive.addfile(info, io.BytesIO(content))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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


@pytest.mark.parametrize(
    ("kind", "count"), [("zip", 40), ("stored", 40), ("tar", 40), ("tar.gz", 40), ("zip", MANY), ("tar.gz", MANY)]
)
def test_every_file_is_there_as_it_was(tmp_path: Path, kind: str, count: int) -> None:
    """By threads and by processes: names, bytes, times, and nothing else; beside it a record and an inventory."""
    files = many_files(count)
    methods = {"zip": zipfile.ZIP_DEFLATED, "stored": zipfile.ZIP_STORED}
    archive = tmp_path / "data"
    if kind in methods:
        write_zip(archive, files, methods[kind])
    else:
        write_tar(archive, files, "w:gz" if kind == "tar.gz" else "w")
    report = extract_archive(archive, tmp_path / "out", progress=False)
    assert contents(tmp_path / "out") == files
    assert (report.members, report.content_bytes) == (count, sum(map(len, files.values())))
    assert (report.reused, report.kept_members) == (False, 0)
    assert f"{count:,} files" in str(report)
    times = {path.stat().st_mtime for path in (tmp_path / "out").rglob("*.bin")}
    assert times == {1_715_949_002.0 if kind in methods else 1_700_000_000.0}
    assert beside(tmp_path) == [".colabstage-out….receipt", "data", "out"]


def _stamp(path: Path) -> tuple[int, int, int]:
    """Which file it is, and when it was last changed; reading it changes neither."""
    facts = path.stat()
    return facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns


def test_the_same_archive_again_is_not_extracted_again(tmp_path: Path) -> None:
    """Also when it is called by another name; the files stay the very ones."""
    archive = write_zip(tmp_path / "a.zip", many_files(50))
    extract_archive(archive, tmp_path / "out", progress=False)
    before = _stamp(tmp_path / "out/train/1/00001.bin")
    again = extract_archive(archive, tmp_path / "out", progress=False)
    os.link(archive, tmp_path / "b.zip")
    other = extract_archive(tmp_path / "b.zip", tmp_path / "out", progress=False)
    assert (again.reused, other.reused) == (True, True)
    assert (again.members, again.bytes_per_second) == (50, 0.0)
    assert "already" in str(again)
    assert _stamp(tmp_path / "out/train/1/00001.bin") == before


def test_an_archive_that_changed_is_extracted_anew(tmp_path: Path) -> None:
    """What it held before is gone, what it holds now is there."""
    archive = write_zip(tmp_path / "a.zip", {"old": b"1"})
    extract_archive(archive, tmp_path / "out", progress=False)
    write_zip(archive, {"new": b"22"})
    report = extract_archive(archive, tmp_path / "out", progress=False)
    assert not report.reused
    assert contents(tmp_path / "out") == {"new": b"22"}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("change", ["added", "removed", "another archive", "no record", "a file"])
def test_what_is_not_ours_stays_unless_it_may_be_replaced(tmp_path: Path, change: str) -> None:
    """A folder that somebody changed, another archive's, anybody's; with overwrite it is replaced."""
    archive = write_zip(tmp_path / "a.zip", {"x/a": b"1", "x/b": b"2"})
    out = tmp_path / "out"
    if change == "a file":
        out.write_bytes(b"mine")
    elif change == "no record":
        out.mkdir()
        (out / "mine").write_bytes(b"mine")
    else:
        first = write_zip(tmp_path / "b.zip", {"x/other": b"1"}) if change == "another archive" else archive
        extract_archive(first, out, progress=False)
    if change == "added":
        (out / "x" / "mine").write_bytes(b"mine")
    if change == "removed":
        (out / "x" / "a").unlink()
    before = out.read_bytes() if out.is_file() else contents(out)
    with pytest.raises(TargetExistsError, match="overwrite=True"):
        extract_archive(archive, out, progress=False)
    assert (out.read_bytes() if out.is_file() else contents(out)) == before
    extract_archive(archive, out, overwrite=True, progress=False)
    assert contents(out) == {"x/a": b"1", "x/b": b"2"}
    assert leftovers(tmp_path) == []
    assert extract_archive(archive, out, progress=False).reused


def test_an_empty_folder_may_stand_there(tmp_path: Path) -> None:
    """Notebooks make it with mkdir first."""
    (tmp_path / "out").mkdir()
    extract_archive(write_zip(tmp_path / "a.zip", {"a": b"1"}), tmp_path / "out", progress=False)
    assert contents(tmp_path / "out") == {"a": b"1"}


def test_cancelling_keeps_what_is_done_for_the_next_call(tmp_path: Path) -> None:
    """Nothing stands at the target; the next call writes only the rest, and says so."""
    files = many_files()
    archive = write_zip(tmp_path / "a.zip", files)
    cancellation = Cancellation()
    half = sum(map(len, files.values())) // 2
    progress = Noticing(lambda done: cancellation.cancel() if done > half else None)
    with pytest.raises(CancelledError):
        extract_archive(archive, tmp_path / "out", progress=progress, cancellation=cancellation)
    assert not (tmp_path / "out").exists()
    report = extract_archive(archive, tmp_path / "out", progress=False)
    assert contents(tmp_path / "out") == files
    assert MANY / 3 < report.kept_members < MANY
    assert "interrupted run" in str(report)
    assert leftovers(tmp_path) == []


def test_an_interrupted_run_goes_on_with_the_same_archive_only(tmp_path: Path) -> None:
    """Names, sizes and the archive's first and last bytes may all be those of another one: labels written anew."""

    def write(label: int) -> None:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for number in range(2000):
                data = (b"%d 0.5 0.5 0.1 0.1\n" % (label if 800 <= number < 1200 else 0)) * 40
                member = tarfile.TarInfo(f"labels/{number:05}.txt")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))

    write(1)
    cancellation = Cancellation()
    progress = Noticing(lambda done: cancellation.cancel() if done > 1_200_000 else None)
    with pytest.raises(CancelledError):
        extract_archive(tmp_path / "a.tar", tmp_path / "out", progress=progress, cancellation=cancellation)
    write(2)
    extract_archive(tmp_path / "a.tar", tmp_path / "out", progress=False)
    assert {path.read_bytes()[:1] for path in (tmp_path / "out" / "labels").iterdir()} == {b"0", b"2"}


@pytest.mark.slow
def test_what_an_interrupted_run_left_is_looked_at(tmp_path: Path) -> None:
    """A file of it that has another length is written again, and another archive's leftovers count for nothing."""
    files = many_files()
    archive = write_zip(tmp_path / "a.zip", files)
    for damage in (True, False):
        cancellation = Cancellation()
        progress = Noticing(lambda done, cancel=cancellation: cancel.cancel() if done > 1_000_000 else None)  # type: ignore[misc]
        with pytest.raises(CancelledError):
            extract_archive(archive, tmp_path / "out", overwrite=True, progress=progress, cancellation=cancellation)
        (left,) = (tmp_path / name for name in leftovers(tmp_path))
        if damage:
            next(path for path in left.rglob("*.bin") if path.stat().st_size).write_bytes(b"short")
        else:
            files = many_files(2500)
            write_zip(archive, files)
        report = extract_archive(archive, tmp_path / "out", progress=False, overwrite=True)
        assert contents(tmp_path / "out") == files
        assert (report.kept_members > 0) == damage
        if damage:
            (tmp_path / "out" / "extra").touch()


# A RAR 5 archive with a/1.bin (a thousand "1") and b.bin ("2"), stored; there is no free tool that makes one.
_RAR = zlib.decompress(
    base64.b85decode(
        "c-jj}EK-zWXJj}kWo*RE$iT4ZK}?GT6VnTJmKW?xnwi}Fwrpl#WKYyL)Jw|DGaLn@U=$2{Q0<i#BErPP$ifIL0(kdbm11CIO#&4FMv|MXOqp337yxT((~$"
    )
)

_KILLED = """
import os, signal, sys
from colabstage import extract_archive
from tests_progress import Dying
extract_archive(sys.argv[1], sys.argv[2], progress=Dying(int(sys.argv[3])))
"""
_DYING = """
import os, signal
from colabstage.options import Progress, ProgressStep
class Dying(Progress, ProgressStep):
    def __init__(self, after): self.left = after
    def step(self, name, **facts): return self
    def advance(self, amount=1):
        self.left -= amount
        if self.left < 0: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_killed_again_and_again_it_ends_with_whole_data_and_no_work_twice(tmp_path: Path, kind: str) -> None:
    """SIGKILL at growing distances: processes end with it, what was finished is kept, and the result is exact."""
    files = many_files()
    archive = tmp_path / "a"
    (write_zip if kind == "zip" else lambda path, what: write_tar(path, what, "w:gz"))(archive, files)
    (tmp_path / "tests_progress.py").write_text(_DYING)
    total = sum(map(len, files.values()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])}
    for share in (0.3, 0.6, 0.9):
        command = [sys.executable, "-c", _KILLED, str(archive), str(tmp_path / "out"), str(int(share * total))]
        died = subprocess.run(command, env=environment, check=False, timeout=60, capture_output=True, text=True)
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert not (tmp_path / "out").exists()
    report = extract_archive(archive, tmp_path / "out", progress=False)
    assert contents(tmp_path / "out") == files
    assert report.kept_members >= 0.8 * MANY
    assert leftovers(tmp_path) == []


def test_a_damaged_member_leaves_nothing(tmp_path: Path) -> None:
    """Found by a process in the middle of the work: named, the rest removed, what stood there untouched."""
    files = many_files()
    archive = write_zip(tmp_path / "a.zip", files, zipfile.ZIP_STORED)
    content = bytearray(archive.read_bytes())
    content[content.index(files["train/0/01799.bin"])] ^= 1
    archive.write_bytes(content)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(CorruptArchiveError, match=r"01799\.bin"):
        extract_archive(archive, tmp_path / "out", overwrite=True, progress=False)
    assert list(contents(tmp_path / "out")) == ["mine"]
    assert leftovers(tmp_path) == []


def test_too_little_room_is_told_with_figures_before_anything_is_written(tmp_path: Path, small_disk: Path) -> None:
    """The plan counts whole blocks and what files take beside their content."""
    archive = write_zip(tmp_path / "a.zip", many_files(3000))
    with pytest.raises(
        NotEnoughSpaceError,
        match=r"'a.zip' \(3,000 files\) .* 4[0-9.]+ MB",
    ):
        extract_archive(archive, small_disk / "out", progress=False)
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_fills_up_is_left_empty(tmp_path: Path, small_disk: Path) -> None:
    """A gzip does not say what it holds: found while unpacking."""
    archive = write_tar(tmp_path / "a.tar.gz", {"noise": os.urandom(3_000_000)}, "w:gz")
    with pytest.raises(NotEnoughSpaceError, match="does not fit"):
        extract_archive(archive, small_disk / "out", progress=False)
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("place", ["missing.zip", "."])
def test_what_is_no_archive_is_told(tmp_path: Path, place: str) -> None:
    """Nothing there, or a folder."""
    with pytest.raises((SourceNotFoundError, ArchiveError)):
        extract_archive(tmp_path / place, tmp_path / "out", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_threads_do_it_where_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python inside another program has no interpreter to start."""
    files = many_files()
    archive = write_zip(tmp_path / "a.zip", files)
    monkeypatch.setattr(sys, "executable", "")
    extract_archive(archive, tmp_path / "one", progress=False)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    extract_archive(archive, tmp_path / "two", progress=False)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == files


_LARGE = """
import resource, sys
from colabstage import extract_archive
extract_archive(sys.argv[1], sys.argv[2], progress=False)
# Not ru_maxrss for this process: that begins with what the process that started it has held.
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "size"),
    [
        (zipfile.ZIP_STORED, 500_000_000),
        (zipfile.ZIP_DEFLATED, 400_000_000),
        pytest.param(zipfile.ZIP_DEFLATED, 3_000_000_000, marks=pytest.mark.long),
    ],
)
def test_a_member_of_gigabytes_takes_little_memory(tmp_path: Path, method: int, size: int) -> None:
    """Neither the archive nor the member is ever held; all of it passes through some 16 MiB at a time."""
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize < 3 * size:
        pytest.skip(f"needs {3 * size / 1e9:.1f} GB of free disk")
    archive = tmp_path / "large.zip"
    with (
        zipfile.ZipFile(archive, "w", method, compresslevel=1) as file,
        file.open("mask.npy", "w", force_zip64=True) as member,
    ):
        piece = bytes(1000) + os.urandom(20) + bytes(16 * MIB - 1020)
        for start in range(0, size, len(piece)):
            member.write(piece[: size - start])
    command = [sys.executable, "-c", _LARGE, str(archive), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, check=True, timeout=100, capture_output=True, text=True)
    assert (tmp_path / "out" / "mask.npy").stat().st_size == size
    assert int(done.stdout) < 300
    for path in (archive, tmp_path / "out" / "mask.npy"):
        path.unlink()


@pytest.mark.disk
def test_the_disk_never_holds_what_was_unpacked_twice(tmp_path: Path) -> None:
    """The unpacked form of a compressed tar goes as its members are written."""
    rng = np.random.default_rng(5)
    archive = write_tar(tmp_path / "a.tar.gz", {f"{n:03d}.bin": rng.bytes(100_000) for n in range(200)}, "w:gz")
    most = 0

    def notice(_: int) -> None:
        nonlocal most
        taken = (path.lstat().st_blocks for path in tmp_path.rglob("*"))
        most = max(most, sum(taken) * 512 - 20_000_000)

    extract_archive(archive, tmp_path / "out", progress=Noticing(notice))
    notice(0)  # progress need not be told after the last member: at least the whole output was measured
    assert 20_000_000 < most < 25_000_000


@pytest.mark.fuse
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_on_drive_is_copied_once_and_extracted_meanwhile(
    tmp_path: Path, make_drive: Callable[..., SimulatedDrive], kind: str
) -> None:
    """It is not unpacked on the mount; the copy is gone afterwards, and a passing error does not show."""
    drive = make_drive()
    assert drive.mountpoint is not None
    files = many_files(400)
    place = drive.cloud / "MyDrive" / "data"
    if kind == "zip":
        write_zip(place, files)
    else:
        write_tar(place, files, "w:gz")
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", first=1, per_file=True),)))
    local = tmp_path / "local"
    local.mkdir()
    report = extract_archive(drive.mountpoint / "MyDrive" / "data", local / "out", progress=False)
    assert contents(local / "out") == files
    assert report.members == 400
    assert beside(local) == [".colabstage-out….receipt", "out"]
    assert extract_archive(drive.mountpoint / "MyDrive" / "data", local / "out", progress=False).reused


@pytest.mark.parametrize("kind", ["7z", "rar"])
def test_tool_archives_are_extracted_too(tmp_path: Path, kind: str) -> None:
    """Their files are moved into place, not copied; modes and record as for the others."""
    files = {"a/1.bin": b"1" * 1000, "b.bin": b"2"}
    if kind == "7z":
        py7zr = pytest.importorskip("py7zr", reason="needs py7zr: pip install py7zr")
        with py7zr.SevenZipFile(tmp_path / "data", "w") as archive:
            for name, content in files.items():
                archive.writestr(content, name)
    else:
        pytest.importorskip("rarfile", reason="needs rarfile: pip install rarfile")
        if not any(shutil.which(command) for command in ("unrar", "unar", "bsdtar")):
            pytest.skip("needs unrar or unar: apt-get install unar")
        (tmp_path / "data").write_bytes(_RAR)
    extract_archive(tmp_path / "data", tmp_path / "out", progress=False)
    assert contents(tmp_path / "out") == files
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*.bin")} == {0o644}
    assert leftovers(tmp_path) == []
    assert extract_archive(tmp_path / "data", tmp_path / "out", progress=False).reused

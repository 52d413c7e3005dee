"""A pack that was killed goes on where it was, and ends in the very bytes of an undisturbed one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colabstage import pack_dataset
from colabstage.h5.manifest import is_whole, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 300
SPLITS = {"splits": {"train": 0.8, "test": 0.2}}

# Packs, and sends itself a signal when so many further samples are in their places.
_PACKER = """
import json, os, signal, sys
from colabstage import pack_dataset
from colabstage.options import Progress, ProgressStep

class Ending(Progress, ProgressStep):
    def __init__(self, after, how): self.left, self.how = after, how
    def step(self, name, *, total, unit):
        self.advance(0)
        return self
    def start_at(self, amount): pass
    def advance(self, amount=1):
        self.left -= amount
        if self.left <= 0 and self.how:
            os.kill(os.getpid(), self.how)
            self.how = 0

source, out, after, how, options = sys.argv[1:]
pack_dataset(source, out, progress=Ending(int(after), int(how)), **json.loads(options))
"""


def start(source: Path, out: Path, after: int, how: int = signal.SIGKILL, **options: Any) -> subprocess.Popen[str]:
    """Pack in a process that ends, or stops, by itself."""
    command = [sys.executable, "-c", _PACKER, str(source), str(out), str(after), str(int(how)), json.dumps(options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(source: Path, out: Path, after: int, how: int = signal.SIGKILL, **options: Any) -> str:
    """Pack until so many samples are in their places; returns what the process said of its end."""
    with start(source, out, after, how, **options) as process:
        said = process.communicate(timeout=60)[1]
    assert process.returncode == -how, said
    return said


def check(out: Path, source: Path, leftovers: Callable[[Path], list[str]], **options: Any) -> None:
    """A pack is that of an undisturbed run, whole, and nothing else is there."""
    undisturbed = source.parent / "undisturbed.h5"
    pack_dataset(source, undisturbed, overwrite=True, progress=False, **options)
    assert out.read_bytes() == undisturbed.read_bytes()
    manifest = read_manifest(out)
    assert manifest is not None
    assert is_whole(out, manifest)
    assert leftovers(out.parent) == []


@pytest.fixture
def many(tmp_path: Path, make_images: Callable[..., Path]) -> Path:
    """Three hundred small images."""
    return make_images(tmp_path / "many", N, size=(8, 10))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the pack goes."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out.h5"


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "pixels"},
        {"encoding": "encoded", **SPLITS},
        {"encoding": "jpeg:70", **SPLITS},
        {"encoding": "pixels", "on_error": "skip"},
    ],
    ids=["pixels", "encoded splits", "made anew", "left out"],
)
def test_a_pack_killed_again_and_again_ends_in_the_same_bytes(
    many: Path, out: Path, leftovers: Callable[[Path], list[str]], options: dict[str, Any]
) -> None:
    """The first kill is before any sample is in place, the last behind them all; each run adds to the one before."""
    if "on_error" in options:
        for name in ("class0/0000.jpg", "class1/0100.png", "class2/0299.png"):
            (many / name).write_bytes(b"no image")
    for after in (0, 1, 90, 130):
        kill(many, out, after, **options)
        assert not out.exists()
        assert len(leftovers(out.parent)) == 1
    report = pack_dataset(many, out, progress=False, **options)
    assert 100 < report.resumed < N
    assert f"{report.resumed} of them" in str(report)
    assert len(report.skipped) == (3 if "on_error" in options else 0)
    check(out, many, leftovers, **options)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_was_at_the_target_is_there_until_the_new_pack_is(
    many: Path, out: Path, leftovers: Callable[[Path], list[str]], how: signal.Signals
) -> None:
    """Also after Ctrl-C, which ends in KeyboardInterrupt, and keeps what is finished."""
    pack_dataset(many, out, progress=False)
    before = out.read_bytes()
    said = kill(many, out, 60, how, seed=1, overwrite=True)
    assert ("KeyboardInterrupt" in said) == (how == signal.SIGINT)
    assert out.read_bytes() == before
    manifest = read_manifest(out)
    assert manifest is not None
    assert is_whole(out, manifest)
    assert pack_dataset(many, out, seed=1, overwrite=True, progress=False).resumed > 0
    check(out, many, leftovers, seed=1)


def test_of_two_runs_at_once_neither_disturbs_the_other(
    many: Path, out: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """What the living one works in stays, and it ends well; of two that died, one is gone on with, the other swept."""
    with start(many, out, 100, signal.SIGSTOP, overwrite=True) as living:
        os.waitid(os.P_PID, living.pid, os.WSTOPPED | os.WNOWAIT)
        left = leftovers(out.parent)
        assert pack_dataset(many, out, progress=False).resumed == 0
        assert leftovers(out.parent) == left
        living.send_signal(signal.SIGCONT)
        living.communicate(timeout=60)
        assert living.returncode == 0
    check(out, many, leftovers)
    out.unlink()
    with start(many, out, 50, signal.SIGSTOP) as one, start(many, out, 50, signal.SIGSTOP) as other:
        for process in (one, other):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert len(leftovers(out.parent)) == 2
        for process in (one, other):
            process.kill()
            process.communicate(timeout=60)
    assert pack_dataset(many, out, progress=False).resumed > 0
    check(out, many, leftovers)


def test_what_is_in_place_need_not_fit_a_second_time(
    tmp_path: Path, small_disk: Path, make_images: Callable[..., Path], leftovers: Callable[[Path], list[str]]
) -> None:
    """On a disk with room for one pack only, a killed run is gone on with instead of refused or planned otherwise."""
    large = make_images(tmp_path / "large", N, size=(60, 62))
    kill(large, small_disk / "out.h5", 200)
    report = pack_dataset(large, small_disk / "out.h5", progress=False)
    assert report.encoding == "pixels"
    assert 0 < report.resumed < N
    assert leftovers(small_disk) == []


def add_one(many: Path) -> None:
    shutil.copy(many / "class0" / "0000.jpg", many / "class0" / "zzz.jpg")


def rewrite_one(many: Path) -> None:
    shutil.copy(many / "class0" / "0003.png", many / "class0" / "0000.jpg")


@pytest.mark.parametrize(
    ("change", "options", "least"),
    [(add_one, {}, 0), (None, {"seed": 1}, 0), (None, SPLITS, 0), (rewrite_one, {}, 200)],
    ids=["file added", "other seed", "other splits", "file rewritten"],
)
def test_what_is_not_the_same_is_packed_anew(
    many: Path,
    out: Path,
    leftovers: Callable[[Path], list[str]],
    change: Callable[[Path], None] | None,
    options: dict[str, Any],
    least: int,
) -> None:
    """Another source or option begins afresh; a file that was rewritten costs its own block."""
    kill(many, out, 250)
    if change is not None:
        change(many)
    resumed = pack_dataset(many, out, progress=False, **options).resumed
    assert resumed >= least
    assert bool(resumed) == bool(least)
    check(out, many, leftovers, **options)


def test_records_of_another_form_start_afresh(
    many: Path, out: Path, leftovers: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where JPEGs are in the spool was recorded by a version of the same number whose records are otherwise laid out:
    read as those of this one they would name other bytes."""
    kill(many, out, 250, encoding="jpeg:90")
    fields = [("length", "<i8", (2,)), ("start", "<i8", (2,)), ("width", "<i4"), ("height", "<i4")]
    for module in ("writer", "execute"):
        monkeypatch.setattr(f"colabstage.pack.{module}.FACTS", np.dtype(fields))
    assert pack_dataset(many, out, encoding="jpeg:90", progress=False).resumed == 0
    check(out, many, leftovers, encoding="jpeg:90")


def of_another_boot(journal: bytes) -> bytes:
    head, _, lines = journal.partition(b"\n")
    return json.dumps({**json.loads(head), "world": "00000000"}).encode() + b"\n" + lines


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of images, and one with what a killed run left of them."""
    from PIL import Image

    root = tmp_path_factory.mktemp("interrupted")
    for number in range(100):
        place = root / "photos" / "ab"[number % 2] / f"{number:03}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 6), (number, 0, 0)).save(place)
    (root / "place").mkdir()
    kill(root / "photos", root / "place" / "out.h5", 80)
    return root / "photos", root / "place"


def go_on(interrupted: tuple[Path, Path], mangle: Callable[[bytes], bytes]) -> int:
    """Go on with a copy of what was left, after something happened to its journal; returns how many were in place."""
    photos, place = interrupted
    copy = place.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(place, copy)
    [journal] = copy.rglob("journal")
    journal.write_bytes(mangle(journal.read_bytes()))
    report = pack_dataset(photos, copy / "out.h5", progress=False)
    undisturbed = place.with_name("undisturbed.h5")
    if not undisturbed.exists():
        pack_dataset(photos, undisturbed, progress=False)
    assert (copy / "out.h5").read_bytes() == undisturbed.read_bytes()
    return report.resumed


@pytest.mark.parametrize(
    "content",
    [of_another_boot, b"", b"\n", b"no journal\n", b"\0" * 400, b"[1]\n"],
    ids=["of another boot", "empty", "a line", "words", "zeros", "a list"],
)
def test_a_journal_that_says_nothing_of_this_work_counts_for_nothing(
    interrupted: tuple[Path, Path], content: bytes | Callable[[bytes], bytes]
) -> None:
    """After a reboot the bytes that it speaks of may never have reached the disk; whatever else lies there is none."""
    assert go_on(interrupted, lambda journal: content if isinstance(content, bytes) else content(journal)) == 0


@given(cut=st.integers(1, 150))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_journal_that_was_cut_off_costs_what_it_lost(interrupted: tuple[Path, Path], cut: int) -> None:
    """A line that a kill tore is dropped, and its block is packed again; the others count."""
    whole = go_on(interrupted, lambda journal: journal)
    assert whole > 40
    resumed = go_on(interrupted, lambda journal: journal[:-cut])
    assert 0 < resumed < whole
    assert (whole - resumed) % 4 == 0


def test_an_archive_packed_anew_starts_afresh(
    tmp_path: Path, out: Path, make_tar: Any, leftovers: Callable[[Path], list[str]]
) -> None:
    """A tar with the same names, sizes and times but other contents must not be mixed with what is in place."""
    folder, tar = tmp_path / "photos", tmp_path / "photos.tar"
    for value in (10, 20):
        for number in range(64):
            place = folder / "ab"[number % 2] / f"{number:03d}.ppm"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"P6 8 8 255\n" + bytes([value]) * 192)
            os.utime(place, ns=(0, 0))
        make_tar(folder, tar)
        if value == 10:
            kill(tar, out, 40)
    assert pack_dataset(tar, out, progress=False).resumed == 0
    check(out, tar, leftovers)


@pytest.mark.parametrize("left", [".colabstage-{0}-spool.{1}.0.tmp/unpacked", ".colabstage-{0}.{1}.0.tmp"])
def test_other_work_of_the_dead_is_swept_and_not_gone_on_with(
    photos: Path, out: Path, leftovers: Callable[[Path], list[str]], left: str
) -> None:
    """The unpacked form of a compressed tar; and a file, which a killed copy to the same target left."""
    script = "from colabstage.io.workspace import owner_token; print(owner_token())"
    dead = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    place = out.parent / left.format(out.name, dead)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(bytes(1000))
    assert pack_dataset(photos, out, progress=False).resumed == 0
    assert leftovers(out.parent) == []

"""A killed pack continues where it was, and ends with exactly the bytes of an undisturbed one."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import pack_dataset
from colabstage.errors import DecodeError
from colabstage.h5.manifest import is_whole, read_manifest
from tests.support.archives import tar_bytes
from tests.support.images import in_classes, make_tree
from tests.support.moments import Processes
from tests.support.steps import OneStep

N = 120
SPLITS = {"splits": {"train": 0.8, "test": 0.2}}


class _Signals(OneStep):
    """Sends this process a signal after so many further samples are in place."""

    def __init__(self, after: int, how: int) -> None:
        self._left, self._how = after, how

    def step(self, name: str, *, total: int | None, unit: str) -> _Signals:
        self.advance(0)
        return self

    def advance(self, amount: int = 1) -> None:
        self._left -= amount
        if self._left <= 0 and self._how:
            how, self._how = self._how, 0
            os.kill(os.getpid(), how)


def pack_until(source: str, out: str, after: int, how: int, options: dict[str, Any]) -> None:
    """Pack in a process that ends or stops itself with a signal."""
    pack_dataset(source, out, **options, progress=_Signals(after, how))


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes("tests.pack.test_resume:pack_until") as started:
        yield started


@pytest.fixture
def kill(processes: Processes) -> Callable[..., None]:
    def kill(source: Path, out: Path, after: int, **options: Any) -> None:
        ran = processes.run([str(source), str(out), after, int(signal.SIGKILL), options])
        assert ran.killed, ran.error

    return kill


def check(out: Path, source: Path, leftovers: Callable[[Path], list[str]], **options: Any) -> None:
    """Check that a pack is that of an undisturbed run, complete, and that nothing else is there."""
    undisturbed = source.parent / "undisturbed.h5"
    pack_dataset(source, undisturbed, overwrite=True, progress=False, **options)
    assert out.read_bytes() == undisturbed.read_bytes()
    manifest = read_manifest(out)
    assert manifest is not None
    assert is_whole(out, manifest)
    assert leftovers(out.parent) == []


@pytest.fixture
def many(tmp_path: Path) -> Path:
    files = {**in_classes(N // 2), **in_classes(N // 2, first=N // 2, suffix=".jpg")}
    return make_tree(tmp_path / "many", files)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out.h5"


@pytest.mark.parametrize(
    "options",
    [{"encoding": "encoded", **SPLITS}, {"encoding": "jpeg:70", **SPLITS}, {"encoding": "pixels", "on_error": "skip"}],
    ids=["encoded", "made again", "left out"],
)
def test_a_pack_killed_again_and_again_ends_in_the_same_bytes(
    many: Path, out: Path, kill: Any, leftovers: Callable[[Path], list[str]], options: dict[str, Any]
) -> None:
    """The first kill comes before any sample is in place; each run continues the one before."""
    broken = ("cat/000.png", "cat/100.jpg") if "on_error" in options else ()
    for name in broken:
        (many / name).write_bytes(b"no image")
    for after in (0, 1, 40, 50):
        kill(many, out, after, **options)
        assert not out.exists()
        assert len(leftovers(out.parent)) == 1
    report = pack_dataset(many, out, progress=False, **options)
    assert 24 < report.resumed < N
    assert f"{report.resumed} of them" in str(report)
    assert len(report.skipped) == len(broken)
    check(out, many, leftovers, **options)


def test_a_pack_of_rows_killed_again_and_again_ends_in_the_same_bytes(
    tmp_path: Path, out: Path, kill: Any, leftovers: Callable[[Path], list[str]]
) -> None:
    """Rows are written more than a thousand at once, which is no whole number of the journal's blocks."""
    source = tmp_path / "rows.npz"
    rows = np.random.default_rng(0)
    np.savez(source, x=rows.normal(size=(10_000, 99)), y=rows.normal(size=(10_000, 2)))
    for after in (0, 1, 3000, 3000):
        kill(source, out, after)
    report = pack_dataset(source, out, progress=False)
    assert 3000 < report.resumed < 10_000
    check(out, source, leftovers)


def test_a_rename_that_fails_after_it_moved_the_pack_leaves_its_own_manifest(
    many: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount answers that loses its connection."""
    pack_dataset(many, out, progress=False)
    rename = Path.rename

    def lost(path: Path, to: Path) -> Path:
        moved = rename(path, to)
        if moved == out:
            raise OSError(errno.EIO, "lost")
        return moved

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)  # a system without renameat2
    monkeypatch.setattr(Path, "rename", lost)
    with pytest.raises(OSError, match="lost"):
        pack_dataset(many, out, seed=1, overwrite=True, progress=False)
    manifest = read_manifest(out)
    assert manifest is not None
    assert is_whole(out, manifest)


def test_of_several_runs_at_once_none_disturbs_another(
    many: Path, out: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """The live run's work stays, and it succeeds; of two dead ones, one is continued, the other removed."""

    def start(**options: Any) -> subprocess.Popen[bytes]:
        code = "import sys, json; from tests.pack.test_resume import pack_until; pack_until(*json.loads(sys.argv[1]))"
        arguments = json.dumps([str(many), str(out), 60, int(signal.SIGSTOP), options])
        return subprocess.Popen([sys.executable, "-c", code, arguments])

    with ExitStack() as stack:
        living, *others = (stack.enter_context(start(**options)) for options in ({"overwrite": True}, {}, {}))
        for process in (living, *others):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert len(leftovers(out.parent)) == 3
        assert pack_dataset(many, out, progress=False).resumed == 0
        assert len(leftovers(out.parent)) == 3
        living.send_signal(signal.SIGCONT)
        assert living.wait(60) == 0
        for process in others:
            process.kill()
    out.unlink()
    assert pack_dataset(many, out, progress=False).resumed > 0
    check(out, many, leftovers)


def test_what_is_in_place_need_not_fit_a_second_time(
    tmp_path: Path, small_disk: Path, kill: Any, leftovers: Callable[[Path], list[str]]
) -> None:
    """On a disk with room for only one pack, a killed run is continued, not refused or planned differently."""
    large = make_tree(tmp_path / "large", in_classes(N))
    kill(large, small_disk / "out.h5", 90, image_size=(80, 115))
    report = pack_dataset(large, small_disk / "out.h5", image_size=(80, 115), progress=False)
    assert report.encoding == "pixels"
    assert 0 < report.resumed < N
    assert leftovers(small_disk) == []


def add_one(many: Path) -> None:
    shutil.copy(many / "cat" / "000.png", many / "cat" / "zzz.png")


def rewrite_two(many: Path) -> None:
    """Rewrite the first and the last file, one of which was packed, in whichever order the folder lists them."""
    make_tree(many, {"cat/000.png": 222, "cat/118.jpg": 111})


@pytest.mark.parametrize(
    ("change", "options", "least"),
    [(add_one, {}, 0), (None, {"seed": 1}, 0), (None, SPLITS, 0), (rewrite_two, {}, 60)],
    ids=["file added", "other seed", "other splits", "files rewritten"],
)
def test_what_is_not_the_same_is_packed_again(
    many: Path,
    out: Path,
    kill: Any,
    leftovers: Callable[[Path], list[str]],
    change: Callable[[Path], None] | None,
    options: dict[str, Any],
    least: int,
) -> None:
    """Another source or option starts afresh; a rewritten file costs its own block."""
    kill(many, out, 100)
    if change is not None:
        change(many)
    resumed = pack_dataset(many, out, progress=False, **options).resumed
    assert resumed >= least
    assert bool(resumed) == bool(least)
    check(out, many, leftovers, **options)


def test_an_archive_of_other_contents_starts_afresh(
    tmp_path: Path, out: Path, kill: Any, leftovers: Callable[[Path], list[str]]
) -> None:
    """A tar with the same names, sizes and times must not be mixed with the samples in place."""
    tar = tmp_path / "photos.tar"
    for value in (10, 20):
        files = {f"{'ab'[number % 2]}/{number:03}.ppm": b"P6 8 8 255\n" + bytes([value]) * 192 for number in range(64)}
        tar.write_bytes(tar_bytes(files))
        if value == 10:
            kill(tar, out, 40)
    assert pack_dataset(tar, out, progress=False).resumed == 0
    check(out, tar, leftovers)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory, processes: Processes) -> tuple[Path, Path, bytes]:
    """A folder of images, another with the remains of a killed run, and the bytes of an undisturbed one."""
    root = tmp_path_factory.mktemp("interrupted")
    photos = make_tree(root / "photos", in_classes(100))
    (root / "place").mkdir()
    assert processes.run([str(photos), str(root / "place/out.h5"), 80, int(signal.SIGKILL), {}]).killed
    pack_dataset(photos, root / "undisturbed.h5", progress=False)
    return photos, root / "place", (root / "undisturbed.h5").read_bytes()


def of_another_boot(journal: bytes) -> bytes:
    first, _, lines = journal.partition(b"\n")
    head = json.loads(first)
    assert len(head["world"]) == len("00000000")
    return json.dumps({**head, "world": "00000000"}).encode() + b"\n" + lines


MANGLED: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "of another boot": (of_another_boot, False),
    "empty": (lambda _: b"", False),
    "words": (lambda _: b"no journal\n", False),
    "whole": (lambda journal: journal, True),
    "cut in a line": (lambda journal: journal[:-30], True),
    "cut in a line before": (lambda journal: journal[:-150], True),
}


@pytest.mark.parametrize(("mangle", "counts"), MANGLED.values(), ids=MANGLED)
def test_a_journal_counts_as_far_as_it_is_whole_and_of_this_boot(
    interrupted: tuple[Path, Path, bytes], tmp_path: Path, mangle: Callable[[bytes], bytes], counts: bool
) -> None:
    """After a reboot, the recorded bytes may never have reached the disk; a torn line costs its own block."""
    photos, place, undisturbed = interrupted
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    [journal] = copy.rglob("journal")
    left = mangle(journal.read_bytes())
    journal.write_bytes(left)
    blocks = left.count(b"\n") - 1 if counts else 0
    report = pack_dataset(photos, copy / "out.h5", progress=False)
    assert (copy / "out.h5").read_bytes() == undisturbed
    # The last block has four samples, every other one eight.
    assert report.resumed in (8 * blocks, 8 * blocks - 4)
    assert bool(report.resumed) == counts


def with_higher_images(data: bytes) -> bytes:
    """The same datasets in a file, with one more line in each image."""
    made = io.BytesIO()
    with h5py.File(io.BytesIO(data)) as begun, h5py.File(made, "w") as other:
        for name, rows in begun.items():
            count, *shape = rows.shape
            other[name] = np.zeros((count, *(side + 1 for side in shape[:1]), *shape[1:]), rows.dtype)
    return made.getvalue()


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:700], lambda data: bytes(len(data)), with_higher_images],
    ids=["cut", "zeroed", "laid out otherwise"],
)
def test_an_unfinished_file_that_was_damaged_is_begun_again(
    interrupted: tuple[Path, Path, bytes], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    photos, place, undisturbed = interrupted
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    [begun] = (path for path in copy.rglob("*.h5") if path.is_file())
    begun.write_bytes(damage(begun.read_bytes()))
    assert pack_dataset(photos, copy / "out.h5", progress=False).resumed == 0
    assert (copy / "out.h5").read_bytes() == undisturbed


@pytest.mark.parametrize("then", ["repair", "skip"])
def test_work_done_before_a_bad_image_is_kept(many: Path, tmp_path: Path, then: str) -> None:
    """After the file is repaired, or with on_error="skip", the next call does only the rest; if nothing has changed, it
    fails as the first did."""
    bad, out = many / "dog" / "119.jpg", tmp_path / "out.h5"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-40])
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"dog/119\.jpg"):
            pack_dataset(many, out, on_error="skip:0%", progress=False)
    with pytest.raises(DecodeError, match=r"dog/119\.jpg"):
        pack_dataset(many, out, progress=False)
    if then == "repair":
        bad.write_bytes(whole)
    options: dict[str, Any] = {} if then == "repair" else {"on_error": "skip"}
    report = pack_dataset(many, out, progress=False, **options)
    assert report.samples == {"train": N if then == "repair" else N - 1}
    pack_dataset(many, tmp_path / "undisturbed.h5", progress=False, **options)
    assert out.read_bytes() == (tmp_path / "undisturbed.h5").read_bytes()

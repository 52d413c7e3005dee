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

from colabstage.h5.manifest import check_whole, read_manifest
from colabstage.pack.run import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 300

# Packs a folder at a Drive's pace, and tells of every sample that is done.
_PACKER = """
import json, sys, time
from colabstage.pack.execute import run_pack
from colabstage.pack.job import prepare_pack
from colabstage.pack.options import PackOptions
from colabstage.io.progress import Cancellation
from colabstage.trees.folder import FolderTree

class Telling:
    def step(self, name, *, total, unit): return self
    def advance(self, amount=1): print("done " * amount, flush=True)
    def __enter__(self): return self
    def __exit__(self, *_): pass

source, out, options, source_s = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), float(sys.argv[4])
from pathlib import Path
class SlowFolder(FolderTree):
    def read(self, entry):
        time.sleep(source_s)
        return super().read(entry)

tree = SlowFolder(Path(source))
job = prepare_pack(tree, PackOptions(**options), free_bytes=None)
report = run_pack(job, Path(out), slow=True, progress=Telling(), cancellation=Cancellation())
print("report", json.dumps({"resumed": report.resumed, "skipped": len(report.skipped)}), flush=True)
"""


class Packer:
    """A process that packs, as far as one lets it."""

    def __init__(self, source: Path, out: Path, *, source_s: float = 0.1, **options: Any) -> None:
        command = [sys.executable, "-c", _PACKER, str(source), str(out), json.dumps(options), str(source_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.report: dict[str, int] = {}
        self.done = 0

    def run_until(self, samples: int) -> int:
        """Let it go on until so many samples are in place, or it ends; returns how many are."""
        assert self.process.stdout is not None
        while self.done < samples:
            line = self.process.stdout.readline()
            if not line:
                break
            if line.startswith("report"):
                self.report = json.loads(line.removeprefix("report "))
            self.done += line.count("done")
        return self.done

    def end(self, how: signal.Signals | None = None) -> int:
        """Signal it, if asked, and wait for its end; returns its exit code."""
        if how is not None:
            self.process.send_signal(how)
        output, errors = self.process.communicate(timeout=60)
        for line in output.splitlines():
            if line.startswith("report"):
                self.report = json.loads(line.removeprefix("report "))
        self.errors = errors
        return self.process.returncode


@pytest.fixture
def many(tmp_path: Path, make_images: Callable[..., Path]) -> Path:
    """Three hundred images."""
    return make_images(tmp_path / "many", N)


@pytest.fixture
def expected(tmp_path: Path, many: Path) -> bytes:
    """What an undisturbed run makes of them."""
    pack_dataset(many, tmp_path / "undisturbed.h5", encoding="pixels", progress=False)
    return (tmp_path / "undisturbed.h5").read_bytes()


def _check(out: Path, expected: bytes, leftovers: Callable[[Path], list[str]]) -> None:
    assert out.read_bytes() == expected
    manifest = read_manifest(out)
    assert manifest is not None
    check_whole(out, manifest)
    assert leftovers(out.parent) == []


@pytest.mark.slow
def test_a_pack_killed_again_and_again_ends_in_the_same_bytes(
    tmp_path: Path, many: Path, expected: bytes, leftovers: Callable[[Path], list[str]]
) -> None:
    """Eight kills, the first before any sample is in place; each next run adds to what those before it did."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    for samples in (0, 1, 40, 80, 120, 160, 200, 240):
        packer = Packer(many, out, encoding="pixels")
        packer.run_until(samples)
        packer.end(signal.SIGKILL)
        assert not out.exists()
        assert len(leftovers(out.parent)) <= 1, "each run takes over what the one before it left"
    packer = Packer(many, out, encoding="pixels")
    assert packer.end() == 0, packer.errors
    _check(out, expected, leftovers)
    assert 140 < packer.report["resumed"] < N


def test_a_pack_killed_while_it_is_put_in_place_is_whole_or_done_again(
    tmp_path: Path, many: Path, expected: bytes, leftovers: Callable[[Path], list[str]]
) -> None:
    """After the last sample come hashes and renames; killed among them, the target has no manifest, or is whole."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    for _ in range(2):
        packer = Packer(many, out, source_s=0.02, encoding="pixels")
        packer.run_until(N)
        packer.end(signal.SIGKILL)
        assert read_manifest(out) is None or out.read_bytes() == expected
    packer = Packer(many, out, source_s=0.02, encoding="pixels")
    assert packer.end() == 0, packer.errors
    _check(out, expected, leftovers)


def test_a_second_run_does_only_what_is_left(
    tmp_path: Path, many: Path, expected: bytes, leftovers: Callable[[Path], list[str]]
) -> None:
    """Killed past the middle, at most the samples in flight are done again, and the report says how many were not."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    packer = Packer(many, out, encoding="pixels")
    done = packer.run_until(200)
    assert packer.end(signal.SIGKILL) == -signal.SIGKILL
    assert not out.exists()
    report = pack_dataset(many, out, encoding="pixels", progress=False)
    # pack_dataset names the folder as the packer does, so that it is the same work.
    assert report.resumed >= done - 100
    assert report.resumed < N
    assert f"{report.resumed} of them were already in place" in str(report)
    _check(out, expected, leftovers)


def test_what_is_in_place_need_not_fit_a_second_time(
    tmp_path: Path, small_disk: Path, make_images: Callable[..., Path], leftovers: Callable[[Path], list[str]]
) -> None:
    """On a disk with room for one pack only, a killed run is gone on with instead of refused or planned otherwise."""
    large = make_images(tmp_path / "large", N, size=(60, 62))
    out = small_disk / "out.h5"
    packer = Packer(large, out)
    packer.run_until(200)
    packer.end(signal.SIGKILL)
    report = pack_dataset(large, out, progress=False)
    assert report.encoding == "pixels"
    assert 0 < report.resumed < N
    assert leftovers(small_disk) == []


@pytest.mark.slow
def test_ctrl_c_leaves_no_threads_behind_and_keeps_finished_work(
    tmp_path: Path, many: Path, expected: bytes, leftovers: Callable[[Path], list[str]]
) -> None:
    """SIGINT ends the process at once with KeyboardInterrupt; the next run goes on."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    packer = Packer(many, out, encoding="pixels")
    packer.run_until(150)
    code = packer.end(signal.SIGINT)
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in packer.errors
    assert not out.exists()
    again = Packer(many, out, encoding="pixels")
    assert again.end() == 0, again.errors
    assert 0 < again.report["resumed"] < N
    _check(out, expected, leftovers)


@pytest.mark.slow
def test_left_out_samples_are_remembered_across_a_kill(tmp_path: Path, many: Path, read_pack: Any) -> None:
    """A bad image met before the kill is still in the final report, and its gap closed."""
    for name in ("class0/0000.jpg", "class1/0100.png", "class2/0299.png"):
        (many / name).write_bytes(b"no image")
    out = tmp_path / "out.h5"
    options: dict[str, Any] = {"encoding": "pixels", "on_error": "skip"}
    packer = Packer(many, out, **options)
    packer.run_until(220)
    packer.end(signal.SIGKILL)
    again = Packer(many, out, **options)
    assert again.end() == 0, again.errors
    assert again.report["skipped"] == 3
    assert again.report["resumed"] > 0
    pack_dataset(many, tmp_path / "undisturbed.h5", encoding="pixels", on_error="skip", progress=False)
    assert out.read_bytes() == (tmp_path / "undisturbed.h5").read_bytes()
    assert len(read_pack(out)["key_train"]) == N - 3


def _add_one(many: Path) -> None:
    shutil.copy(many / "class0" / "0000.jpg", many / "class0" / "zzz.jpg")


@pytest.mark.parametrize(
    ("change", "options"),
    [(_add_one, {}), (None, {"seed": 1}), (None, {"splits": {"train": 0.5, "test": 0.5}})],
    ids=["file added", "other seed", "other splits"],
)
def test_another_source_or_option_starts_afresh(
    tmp_path: Path,
    many: Path,
    leftovers: Callable[[Path], list[str]],
    change: Callable[[Path], None] | None,
    options: dict[str, Any],
) -> None:
    """What an earlier run wrote for something else is not used, and does not stay."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    packer = Packer(many, out, source_s=0.02, encoding="pixels")
    packer.run_until(250)
    packer.end(signal.SIGKILL)
    assert len(leftovers(out.parent)) == 1
    if change is not None:
        change(many)
    report = pack_dataset(many, out, encoding="pixels", progress=False, **options)
    assert report.resumed == 0
    pack_dataset(many, tmp_path / "undisturbed.h5", encoding="pixels", progress=False, **options)
    _check(out, (tmp_path / "undisturbed.h5").read_bytes(), leftovers)


def test_records_of_another_form_start_afresh(
    tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where JPEGs are in the spool was recorded by a version of the same number whose records are otherwise laid out:
    read as those of this one they would name other bytes."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    packer = Packer(many, out, source_s=0.02, encoding="jpeg:90")
    packer.run_until(250)
    packer.end(signal.SIGKILL)
    assert len(leftovers(out.parent)) == 1
    fields = [("length", "<i8", (2,)), ("start", "<i8", (2,)), ("width", "<i4"), ("height", "<i4")]
    for module in ("journal", "execute"):
        monkeypatch.setattr(f"colabstage.pack.{module}.RECORD", np.dtype(fields))
    report = pack_dataset(many, out, encoding="jpeg:90", progress=False)
    assert report.resumed == 0
    pack_dataset(many, tmp_path / "undisturbed.h5", encoding="jpeg:90", progress=False)
    _check(out, (tmp_path / "undisturbed.h5").read_bytes(), leftovers)


def test_a_file_rewritten_meanwhile_is_read_again_and_the_rest_is_kept(
    tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """Another picture under a name whose old one was in its place already does not cost the others."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    packer = Packer(many, out, source_s=0.02, encoding="pixels")
    packer.run_until(250)
    packer.end(signal.SIGKILL)
    shutil.copy(many / "class0" / "0003.png", many / "class0" / "0000.jpg")
    report = pack_dataset(many, out, encoding="pixels", progress=False)
    assert report.resumed > 200
    pack_dataset(many, tmp_path / "undisturbed.h5", encoding="pixels", progress=False)
    _check(out, (tmp_path / "undisturbed.h5").read_bytes(), leftovers)


def test_an_archive_packed_anew_starts_afresh(tmp_path: Path, make_images: Any, make_tar: Any) -> None:
    """A tar with the same names, sizes and times but other contents must not be mixed with what is in place."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    folder = tmp_path / "photos"
    for value in (10, 20):
        for number in range(64):
            place = folder / "ab"[number % 2] / f"{number:03d}.ppm"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"P6 8 8 255\n" + bytes([value]) * 192)
            os.utime(place, ns=(0, 0))
        make_tar(folder, tmp_path / "photos.tar")
        if value == 10:
            script = _INTERRUPTED.format(tar=tmp_path / "photos.tar", out=out)
            subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
            assert not out.exists()
    report = pack_dataset(tmp_path / "photos.tar", out, progress=False)
    assert report.resumed == 0
    pack_dataset(tmp_path / "photos.tar", tmp_path / "undisturbed.h5", progress=False)
    assert out.read_bytes() == (tmp_path / "undisturbed.h5").read_bytes()


# Dies by itself with 40 of 64 samples in place.
_INTERRUPTED = """
from colabstage.pack.run import pack_dataset

class Dying:
    done = 0
    def step(self, name, *, total, unit): return self
    def advance(self, amount=1):
        self.done += amount
        if self.done >= 40: os._exit(9)
    def __enter__(self): return self
    def __exit__(self, *_): pass

pack_dataset(r"{tar}", r"{out}", progress=Dying())
"""


def test_leftovers_of_the_dead_go_and_of_the_living_stay(
    tmp_path: Path, many: Path, expected: bytes, leftovers: Callable[[Path], list[str]]
) -> None:
    """Two processes that pack to one target do not disturb each other; the last one wins, both are whole."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    living = Packer(many, out, encoding="pixels")
    living.run_until(100)
    [workspace] = leftovers(out.parent)
    living.process.send_signal(signal.SIGSTOP)  # lest it ends first where the machine is busy
    report = pack_dataset(many, out, encoding="pixels", progress=False)
    left, packed = leftovers(out.parent), out.read_bytes()
    living.process.send_signal(signal.SIGCONT)
    assert living.end() == 0, living.errors
    assert report.resumed == 0
    assert packed == expected
    assert left == [workspace]
    _check(out, expected, leftovers)


def test_a_killed_packs_spool_is_swept(tmp_path: Path, photos: Path, leftovers: Callable[[Path], list[str]]) -> None:
    """The unpacked form of a compressed tar that a killed run left goes with the next run."""
    out = tmp_path / "place" / "out.h5"
    spool = out.parent / f".colabstage-{out.name}-spool.{_dead_token()}.0.tmp"
    spool.mkdir(parents=True)
    (spool / "unpacked").write_bytes(bytes(1000))
    pack_dataset(photos, out, progress=False)
    assert leftovers(out.parent) == []


def test_a_half_copied_file_of_the_dead_is_not_taken_for_a_workspace(
    tmp_path: Path, photos: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """What a killed copy to the same target left is a file; packing goes on as if it were not there."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    (out.parent / f".colabstage-{out.name}.{_dead_token()}.0.tmp").write_bytes(bytes(1000))
    assert pack_dataset(photos, out, progress=False).resumed == 0
    assert leftovers(out.parent) == []


def _dead_token() -> str:
    """The token of a process that has ended."""
    script = "from colabstage.io.workspace import owner_token; print(owner_token())"
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()

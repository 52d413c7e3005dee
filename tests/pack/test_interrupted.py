"""Packs that are killed or stopped midway: the next run goes on, and ends in the bytes of an undisturbed one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.h5.manifest import check_whole, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT = 300
_SCRIPT = Path(__file__).with_name("slow_packer.py")


@contextmanager
def packing(source: Path, out: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Pack in a process of its own; whatever is left of it at the end is killed."""
    command = [sys.executable, str(_SCRIPT), str(source), str(out), json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=30)


def finish(source: Path, out: Path, **options: Any) -> int:
    """Pack to the end; returns how many samples were taken over from an earlier run."""
    with packing(source, out, **options) as process:
        said, wrong = process.communicate(timeout=60)
    assert process.returncode == 0, wrong
    begun, dots, resumed = said.split("\n")[:3]
    assert begun == "begun"
    assert len(dots) + int(resumed) == COUNT
    return int(resumed)


def stop(source: Path, out: Path, after: int, how: signal.Signals, **options: Any) -> str:
    """Pack until `after` samples are in their places, then send the signal; returns what the process said last."""
    with packing(source, out, **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.stdout.read(after)
        process.send_signal(how)
        return process.communicate(timeout=30)[1]


@pytest.fixture
def many(tmp_path: Path, make_images: Callable[..., Path]) -> Path:
    """Three hundred small images."""
    return make_images(tmp_path / "many", COUNT, size=(8, 10))


def pack_bytes(source: Path, beside: Path, **options: Any) -> bytes:
    """The bytes of an undisturbed run."""
    whole = beside / "undisturbed" / "out.h5"
    whole.parent.mkdir(exist_ok=True)
    assert finish(source, whole, **options) == 0
    return whole.read_bytes()


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_a_pack_killed_again_and_again_ends_as_if_undisturbed(
    tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]], encoding: str
) -> None:
    """Each kill falls somewhere else; each run goes on with what the one before has finished."""
    options = {"encoding": encoding, "splits": [["train", 0.8], ["test", 0.2]]}
    expected = pack_bytes(many, tmp_path, **options)
    out = tmp_path / "out.h5"
    moments = random.Random(encoding)
    for after in (0, 1, *(moments.randrange(5, 90) for _ in range(4))):
        stop(many, out, after, signal.SIGKILL, **options)
        assert not out.exists()
        assert len(leftovers(tmp_path)) == 1
    assert finish(many, out, **options) > 0
    assert out.read_bytes() == expected
    manifest = read_manifest(out)
    assert manifest is not None
    check_whole(out, manifest, threads=2)
    assert leftovers(tmp_path) == []


def test_a_pack_killed_at_its_end_is_whole_or_not_there(
    tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """Around publication there is no moment at which a half-made pack counts."""
    expected = pack_bytes(many, tmp_path)
    out = tmp_path / "out.h5"
    for after in (COUNT - 1, COUNT, COUNT):
        stop(many, out, after, signal.SIGKILL)
        manifest = read_manifest(out)
        if manifest is not None:
            assert out.read_bytes() == expected
    finish(many, out)
    assert out.read_bytes() == expected
    assert leftovers(tmp_path) == []


def test_an_interrupted_pack_goes_on(tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]]) -> None:
    """Ctrl-C ends the process as Python does, and keeps what is finished for the next run."""
    expected = pack_bytes(many, tmp_path)
    out = tmp_path / "out.h5"
    for after in (30, 100):
        assert "KeyboardInterrupt" in stop(many, out, after, signal.SIGINT)
        assert not out.exists()
        assert len(leftovers(tmp_path)) == 1
    assert finish(many, out) >= 30
    assert out.read_bytes() == expected
    assert leftovers(tmp_path) == []


def test_a_kill_leaves_the_old_pack_as_it_was(tmp_path: Path, many: Path) -> None:
    """What stood at the target before is there, whole, until the new one is."""
    out = tmp_path / "out.h5"
    finish(many, out)
    before = out.read_bytes()
    stop(many, out, 60, signal.SIGKILL, seed=1)
    assert out.read_bytes() == before
    manifest = read_manifest(out)
    assert manifest is not None
    check_whole(out, manifest, threads=2)
    assert finish(many, out, seed=1) > 0
    assert out.read_bytes() != before


def test_another_option_or_a_changed_source_begins_anew(
    tmp_path: Path, many: Path, image_bytes: Callable[..., bytes], leftovers: Callable[[Path], list[str]]
) -> None:
    """What a killed run wrote is used for the very same work only."""
    out = tmp_path / "out.h5"
    stop(many, out, 100, signal.SIGKILL)
    assert finish(many, out, seed=1) == 0
    assert out.read_bytes() == pack_bytes(many, tmp_path, seed=1)
    stop(many, out, 100, signal.SIGKILL)
    (many / "class1" / "0004.png").write_bytes(image_bytes(4444, size=(8, 10)))
    assert finish(many, out) == 0
    assert out.read_bytes() == pack_bytes(many, tmp_path)
    assert leftovers(tmp_path) == []


def test_bad_images_found_before_a_kill_are_left_out_after_it(tmp_path: Path, many: Path) -> None:
    """The reasons of finished samples are kept with them, and named in the end like the others."""
    for name in ("class0/0000.jpg", "class1/0004.png", "class2/0299.png"):
        (many / name).write_bytes(b"<html>")
    expected = pack_bytes(many, tmp_path, on_error="skip", encoding="pixels")
    out = tmp_path / "out.h5"
    stop(many, out, 150, signal.SIGKILL, on_error="skip", encoding="pixels")
    assert finish(many, out, on_error="skip", encoding="pixels") > 0
    assert out.read_bytes() == expected
    manifest = read_manifest(out)
    assert manifest is not None
    assert len(manifest.skipped) == 3


def test_two_at_once_do_not_disturb_each_other(
    tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """Of two that pack to one place each works on its own; of the killed, one is gone on with, the other swept."""
    expected = pack_bytes(many, tmp_path)
    out = tmp_path / "out.h5"
    with packing(many, out) as first, packing(many, out) as second:
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.stdout.read(50)
        assert len(leftovers(tmp_path)) == 2
    assert len(leftovers(tmp_path)) == 2
    with packing(many, out) as third, packing(many, out, seed=1) as fourth:
        for process in (third, fourth):
            process.communicate(timeout=60)
            assert process.returncode == 0
    assert leftovers(tmp_path) == []
    finish(many, out)
    assert out.read_bytes() == expected

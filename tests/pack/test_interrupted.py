"""Packs killed midway in harder places: several encoded splits, an older pack at the target, two runs at once."""

from __future__ import annotations

import json
import random
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
def packing(source: Path, out: Path, *, stop: int = 0, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Pack in a process of its own, which stops itself after `stop` samples; what is left of it is killed."""
    command = [sys.executable, str(_SCRIPT), str(source), str(out), json.dumps(options), str(stop)]
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


def kill(source: Path, out: Path, after: int, **options: Any) -> None:
    """Pack until `after` samples are in their places, and no further."""
    with packing(source, out, **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.stdout.read(after)
        process.kill()
        process.communicate(timeout=30)


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


@pytest.mark.slow
def test_encoded_splits_killed_again_and_again_end_as_if_undisturbed(
    tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """Each kill falls somewhere else; each run goes on with what the one before has finished."""
    options = {"encoding": "encoded", "splits": [["train", 0.8], ["test", 0.2]]}
    expected = pack_bytes(many, tmp_path, **options)
    out = tmp_path / "out.h5"
    moments = random.Random(7)
    for after in (0, 1, *(moments.randrange(5, 90) for _ in range(4))):
        kill(many, out, after, **options)
        assert not out.exists()
        assert len(leftovers(tmp_path)) == 1
    assert finish(many, out, **options) > 0
    assert out.read_bytes() == expected
    manifest = read_manifest(out)
    assert manifest is not None
    check_whole(out, manifest)
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_encoded_anew_and_killed_again_and_again_ends_as_if_undisturbed(
    tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """Bytes that have no place before all are made keep their order by row, not by when they were made."""
    options = {"encoding": "jpeg:70", "splits": [["train", 0.8], ["test", 0.2]]}
    expected = pack_bytes(many, tmp_path, **options)
    out = tmp_path / "out.h5"
    for after in (0, 40, 90, 70):
        kill(many, out, after, **options)
        assert not out.exists()
    assert finish(many, out, **options) > 100
    assert out.read_bytes() == expected
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_a_kill_leaves_the_old_pack_as_it_was(tmp_path: Path, many: Path) -> None:
    """What stood at the target before is there, whole, until the new one is."""
    out = tmp_path / "out.h5"
    finish(many, out)
    before = out.read_bytes()
    kill(many, out, 60, seed=1)
    assert out.read_bytes() == before
    manifest = read_manifest(out)
    assert manifest is not None
    check_whole(out, manifest)
    assert finish(many, out, seed=1) > 0
    assert out.read_bytes() != before


@pytest.mark.slow
def test_of_two_killed_runs_one_is_gone_on_with_and_the_other_swept(
    tmp_path: Path, many: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """Two that packed to one place at once, each on its own, leave two unfinished packs; the next run needs one."""
    expected = pack_bytes(many, tmp_path)
    out = tmp_path / "out.h5"
    # Each stops by itself: on a busy machine one would be done before the other has begun, or before it is told to.
    with packing(many, out, stop=50) as first, packing(many, out, stop=50) as second:
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            assert len(process.stdout.read(50)) == 50
    assert len(leftovers(tmp_path)) == 2
    assert finish(many, out) > 0
    assert out.read_bytes() == expected
    assert leftovers(tmp_path) == []

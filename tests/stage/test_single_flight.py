"""Four processes that stage the same source at once: the work is done once; without locks at least nothing breaks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import stage_dataset
from colabstage.h5.manifest import exchanging, is_whole, manifest_of_bytes, manifest_path, read_manifest
from colabstage.io.workspace import open_workspace
from colabstage.stage.request import lock_path, make_request
from simulated_drive.knobs import DriveFaults, OpFault

if TYPE_CHECKING:
    from simulated_drive.drive import SimulatedDrive

pytestmark = pytest.mark.fuse
MakeImages = Callable[..., Path]

_SCRIPT = Path(__file__).with_name("stager.py")
_COUNT = 4
_IMAGES = 120


def test_the_lock_of_a_dead_run_goes_with_the_next_call(tmp_path: Path, make_images: MakeImages) -> None:
    """Also where all is there already; and no call of its own leaves one."""
    source = make_images(tmp_path / "photos", 4)
    request = make_request(source, local_dir=tmp_path / "fast", cache_dir=None)
    for origin in ("source", "local"):
        request.folder.parent.mkdir(parents=True, exist_ok=True)
        lock_path(request.folder).touch()
        staged = stage_dataset(source, local_dir=tmp_path / "fast", cache_dir=None, progress=False)
        assert staged.report.origin == origin
        assert list(request.folder.parent.iterdir()) == [request.folder]


def stage_at_once(source: Path, local_dir: Path, locks: str, *cache: Path) -> list[dict[str, Any]]:
    """What four processes report that begin together."""
    with ExitStack() as stack:
        command = [sys.executable, str(_SCRIPT), str(source), str(local_dir), locks, *map(str, cache)]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )
            for _ in range(_COUNT)
        ]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=90) for process in processes]
    assert [process.returncode for process in processes] == [0] * _COUNT, "\n".join(wrong for _, wrong in answers)
    return [json.loads(said) for said, _ in answers]


@pytest.fixture
def images(drive: SimulatedDrive, my_drive: Path, make_images: MakeImages) -> Path:
    """The images on the mounted Drive; every read of them is counted, past the kernel's memory."""
    make_images(drive.cloud / "MyDrive" / "photos", _IMAGES)
    # Never fails.
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="MyDrive/photos/*", every=1_000_000_000),)))
    return my_drive / "photos"


def opens(drive: SimulatedDrive) -> int:
    """How many files have been opened on the Drive and read."""
    stats = drive.stats()
    return stats.cold_opens + stats.warm_opens


def check_all(found: list[dict[str, Any]], truth: bytes, drive: SimulatedDrive, local_dir: Path) -> None:
    """Every process ended with the same verified bytes, also in the cache, and nothing temporary is left."""
    assert len({answer["path"] for answer in found}) == 1
    path = Path(found[0]["path"])
    assert path.read_bytes() == truth
    assert drive.flush(timeout_s=60)
    cached = drive.cloud / "MyDrive" / "colabstage" / path.name
    for pack in (path, cached):
        manifest = read_manifest(pack)
        assert manifest is not None
        assert is_whole(pack, manifest)
    assert cached.read_bytes() == truth
    assert list(local_dir.rglob(".colabstage-*.tmp")) == []
    assert [entry.name for entry in cached.parent.iterdir() if entry.name.startswith(".colabstage-")] == []


def test_the_work_is_done_once(images: Path, drive: SimulatedDrive, tmp_path: Path) -> None:
    """One reads the source, each image once; the others wait and find the pack.

    Until they know of each other, all of them list the source.
    """
    truth = stage_dataset(images, local_dir=tmp_path / "truth", cache_dir=None, progress=False).path.read_bytes()
    alone = opens(drive)
    found = stage_at_once(images, tmp_path / "fast", "real")
    assert sorted(answer["origin"] for answer in found) == ["local", "local", "local", "source"]
    # Four times would be 360 more; what reading back and looking into the cache takes is a few.
    assert opens(drive) - alone <= alone + 20
    check_all(found, truth, drive, tmp_path / "fast")


def test_with_locks_that_hold_nobody_off_nothing_breaks(images: Path, drive: SimulatedDrive, tmp_path: Path) -> None:
    truth = stage_dataset(images, local_dir=tmp_path / "truth", cache_dir=None, progress=False).path.read_bytes()
    check_all(stage_at_once(images, tmp_path / "fast", "none"), truth, drive, tmp_path / "fast")


def test_four_restore_at_once_without_locks(make_images: MakeImages, tmp_path: Path) -> None:
    """Each copies the cached pack and finds it at its place; also where a dead run left it without its manifest."""
    source, cache = make_images(tmp_path / "photos", 12), tmp_path / "cache"
    first = stage_dataset(source, local_dir=tmp_path / "first", cache_dir=cache, progress=False).path
    truth = first.read_bytes()
    for attempt in ("anew", "after a dead run"):
        here = tmp_path / attempt / "fast"
        if attempt == "after a dead run":
            pack = here / first.parent.name / first.name
            pack.parent.mkdir(parents=True)
            pack.write_bytes(truth)
        found = stage_at_once(source, here, "none", cache)
        assert {answer["origin"] for answer in found} <= {"cache", "local"}
        (path,) = {Path(answer["path"]) for answer in found}
        assert path.read_bytes() == truth
        left = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix != ".rows")
        assert left == [path.name, f"{path.name}.json", "stage.json"]


def test_a_pack_that_somebody_is_placing_is_left_to_it(make_images: MakeImages, tmp_path: Path) -> None:
    source, cache = make_images(tmp_path / "photos", 12), tmp_path / "cache"
    staged = stage_dataset(source, local_dir=tmp_path / "fast", cache_dir=cache, progress=False).path
    truth = staged.read_bytes()
    # Another pack of the same source: what that process is about to vouch for.
    staged.write_bytes(truth[:-1] + bytes([truth[-1] ^ 1]))
    manifest_path(staged).unlink()
    theirs = staged.read_bytes()
    note = exchanging(staged, manifest_of_bytes(staged))
    with staged.open("rb") as placed, open_workspace(staged), note:
        again = stage_dataset(source, local_dir=tmp_path / "fast", cache_dir=cache, progress=False)
        assert again.report.origin == "cache"
        assert placed.read() == theirs
        assert staged.read_bytes() == truth

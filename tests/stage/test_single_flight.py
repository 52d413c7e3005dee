"""Processes that stage the same source at once: the work is done once; without locks, at least nothing breaks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from colabstage import stage_dataset
from colabstage.h5.manifest import manifest_of_bytes, write_manifest
from colabstage.io.workspace import temp_beside
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, OpFault
from tests.support.images import in_classes, make_tree
from tests.support.invariants import left_behind, unvouched

_SCRIPT = Path(__file__).with_name("stager.py")
_COUNT, _IMAGES = 3, 24


def test_the_lock_of_a_dead_run_goes_with_the_next_call(tmp_path: Path) -> None:
    """Also if everything is there already; and no call leaves one of its own."""
    source = make_tree(tmp_path / "photos", in_classes(4))
    places: dict[str, Any] = {"local_dir": tmp_path / "fast", "cache_dir": None, "progress": False}
    folder = stage_dataset(source, **places).path.parent
    cases: list[dict[str, Any]] = [{}, {"refresh": True}]
    for options in cases:
        (folder.parent / f".colabstage-{folder.name}.lock").touch()
        stage_dataset(source, **places, **options)
        assert list(folder.parent.iterdir()) == [folder]


def stage_at_once(source: Path, local_dir: Path, locks: str) -> list[dict[str, Any]]:
    """Return the reports of processes that start together."""
    command = [sys.executable, str(_SCRIPT), str(source), str(local_dir), locks, str(_COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == _COUNT
    assert len({answer["path"] for answer in found}) == 1
    return found


@pytest.mark.fuse
@pytest.mark.parametrize("locks", ["real", "none"])
def test_the_work_is_done_once_or_at_least_nothing_breaks(
    drive: SimulatedDrive, my_drive: Path, tmp_path: Path, locks: str
) -> None:
    """Every process ends with the same verified bytes, also in the cache, and nothing temporary is left.

    With locks, one of them reads the source, each image once; the others wait and find the pack. Until they know of
    each other, all of them list the source.
    """
    make_tree(drive.cloud / "MyDrive/photos", in_classes(_IMAGES))
    # Never fails, but makes every read reach the Drive and be counted, past the kernel's cache.
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="MyDrive/photos/*", first=0),)))

    def opens() -> int:
        stats = drive.stats()
        return stats.cold_opens + stats.warm_opens

    images = my_drive / "photos"
    truth = stage_dataset(images, local_dir=tmp_path / "truth", cache_dir=None, progress=False).path.read_bytes()
    alone = opens()
    found = stage_at_once(images, tmp_path / "fast", locks)
    if locks == "real":
        assert sorted(answer["origin"] for answer in found) == [*["local"] * (_COUNT - 1), "source"]
        # Three processes would need 48 more; reading back and checking the cache takes a few.
        assert opens() - alone <= alone + 16
    path = Path(found[0]["path"])
    assert drive.flush(timeout_s=60)
    cached = drive.cloud / "MyDrive/colabstage" / path.name
    assert path.read_bytes() == cached.read_bytes() == truth
    for folder in (tmp_path / "fast", cached.parent):
        assert unvouched(folder) == []
        assert [name for name in left_behind(folder) if not name.endswith(".lock")] == []


def test_a_pack_that_somebody_is_placing_is_in_nobodys_way(tmp_path: Path) -> None:
    """Another process has moved the earlier pack aside, and put the manifest of its own."""
    source, cache = make_tree(tmp_path / "photos", in_classes(12)), tmp_path / "cache"
    staged = stage_dataset(source, local_dir=tmp_path / "fast", cache_dir=cache, progress=False).path
    truth, placing = staged.read_bytes(), temp_beside(staged)
    staged.rename(placing)
    placing.write_bytes(truth[:-1] + bytes([truth[-1] ^ 1]))
    write_manifest(staged, manifest_of_bytes(placing))
    again = stage_dataset(source, local_dir=tmp_path / "fast", cache_dir=cache, progress=False)
    assert again.report.origin == "cache"
    assert staged.read_bytes() == truth
    assert placing.exists()
    placing.unlink()

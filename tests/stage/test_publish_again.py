"""Checkpoints published again and again: unfinished runs, files that change meanwhile, many versions, odd places."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import (
    TargetExistsError,
)
from colabstage.h5.manifest import BLOCK_BYTES, check_whole, manifest_path, read_manifest
from colabstage.io.ownership import put_file
from colabstage.stage.publish import check_unchanged, previous_path, publish_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.simulate.drive import SimulatedDrive


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A file of two and a half blocks, with spaces in its name."""
    path = tmp_path / "my model 1.pt"
    path.write_bytes(os.urandom(20_000_000))
    return path


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def check_manifest(place: Path) -> None:
    """The file is the one that its manifest describes."""
    manifest = read_manifest(place)
    assert manifest is not None
    check_whole(place, manifest)


_DIES = """
import os, signal, sys
from colabstage.stage.publish import publish_file
class Step:
    left = int(sys.argv[3])
    def step(self, *_, **__): return self
    def advance(self, amount=1):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def __enter__(self): return self
    def __exit__(self, *_): pass
publish_file(sys.argv[1], sys.argv[2], progress=Step())
"""


def publish_and_die(source: Path, target: Path, *, after_blocks: int) -> None:
    """Publish in a process that dies once so many blocks are there."""
    command = [sys.executable, "-c", _DIES, str(source), str(target), str(after_blocks)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9


@pytest.mark.fuse
def test_an_interrupted_publish_goes_on_with_the_blocks_that_are_there(
    checkpoint: Path, my_drive: Path, drive: SimulatedDrive
) -> None:
    """Two of three blocks were on Drive: one is written, and what the dead run left is gone, here and in the cloud."""
    target = my_drive / "checkpoints of today" / checkpoint.name
    target.parent.mkdir()
    publish_and_die(checkpoint, target, after_blocks=2)
    assert not target.exists()
    written = drive.stats().bytes_written
    report = publish_file(checkpoint, target, progress=False)
    assert report.kept_bytes == 2 * BLOCK_BYTES
    assert "already in place" in str(report)
    assert drive.stats().bytes_written - written < 20_000_000 - 2 * BLOCK_BYTES + 10_000
    assert drive.flush(timeout_s=60)
    cloud = drive.cloud / "MyDrive" / target.parent.name
    for folder in (target.parent, cloud):
        assert names(folder) == [checkpoint.name, f"{checkpoint.name}.json"]
        assert (folder / checkpoint.name).read_bytes() == checkpoint.read_bytes()


@pytest.mark.fuse
def test_of_many_versions_two_stay(tmp_path: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    """After ten checkpoints the last and the one before it are there with manifests, and nothing else."""
    target = my_drive / "last.pt"
    versions = [os.urandom(300_000) for _ in range(10)]
    for version in versions:
        (tmp_path / "last.pt").write_bytes(version)
        report = publish_file(tmp_path / "last.pt", target, progress=False)
    assert report.previous == previous_path(target)
    assert target.read_bytes() == versions[-1]
    assert previous_path(target).read_bytes() == versions[-2]
    for place in (target, previous_path(target)):
        check_manifest(place)
    assert drive.flush(timeout_s=60)
    assert names(my_drive) == names(drive.cloud / "MyDrive")
    assert len(names(my_drive)) == 4


def test_the_same_again_keeps_the_version_before(checkpoint: Path, tmp_path: Path) -> None:
    """Publishing what is there already copies nothing, and does not push the older version out."""
    target = tmp_path / "model.pt"
    older = os.urandom(1000)
    (tmp_path / "older").write_bytes(older)
    publish_file(tmp_path / "older", target, progress=False)
    for kept in (0, 20_000_000):
        assert publish_file(checkpoint, target, progress=False).kept_bytes == kept
        assert previous_path(target).read_bytes() == older


def test_a_version_without_manifest_is_somebody_elses(checkpoint: Path, tmp_path: Path) -> None:
    """A file gets its manifest before its name, so one without is not ours to replace; the same bytes are adopted."""
    target = tmp_path / "there" / "model.pt"
    first = checkpoint.read_bytes()
    publish_file(checkpoint, target, progress=False)
    manifest_path(target).unlink()
    checkpoint.write_bytes(os.urandom(1000))
    with pytest.raises(TargetExistsError, match="is not a version that publish_file put there"):
        publish_file(checkpoint, target, progress=False)
    assert (names(target.parent), target.read_bytes()) == (["model.pt"], first)
    checkpoint.write_bytes(first)
    assert publish_file(checkpoint, target, progress=False).kept_bytes == len(first)
    check_manifest(target)


def test_a_version_that_has_rotted_is_named_and_how_to_go_on(checkpoint: Path, tmp_path: Path) -> None:
    """Nobody can tell rot from what somebody wrote, so it stays; who reads the message knows which file is to go."""
    target = publish_file(checkpoint, tmp_path / "there" / "model.pt", progress=False).path
    rotten = bytearray(target.read_bytes())
    rotten[1000] ^= 1
    target.write_bytes(rotten)
    later = manifest_path(target).stat().st_mtime_ns + 10**9
    os.utime(target, ns=(later, later))
    checkpoint.write_bytes(os.urandom(len(rotten)))
    with pytest.raises(TargetExistsError, match="content is not what its manifest describes") as caught:
        publish_file(checkpoint, target, progress=False)
    assert f"Delete '{target}' unless you need what is in it" in str(caught.value)
    assert target.read_bytes() == rotten
    target.unlink()
    publish_file(checkpoint, target, progress=False)
    assert target.read_bytes() == checkpoint.read_bytes()
    check_manifest(target)


def test_a_file_of_somebody_elses_in_the_manifests_place_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """`model.pt.json` may be a training log: it is not overwritten."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "model.pt.json").write_text('{"epoch": 3}', encoding="utf-8")
    with pytest.raises(TargetExistsError, match="Rename it"):
        publish_file(checkpoint, tmp_path / "there" / "model.pt", progress=False)
    assert names(tmp_path / "there") == ["model.pt.json"]


def test_another_may_publish_the_same_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing locks a place on a Drive: what is the same stays, and so does the version before it."""
    source, there = tmp_path / "model.pt", tmp_path / "there" / "model.pt"
    for content in (b"old", b"new"):
        source.write_bytes(content * 1000)

        def unchanged(file: Path, state: tuple[int, int, int, int]) -> None:
            monkeypatch.undo()
            publish_file(source, there, progress=False)
            check_unchanged(file, state)

        monkeypatch.setattr("colabstage.stage.publish.check_unchanged", unchanged)
        publish_file(source, there, progress=False)
        assert there.read_bytes() == content * 1000
        check_manifest(there)
    check_manifest(previous_path(there))
    assert previous_path(there).read_bytes() == b"old" * 1000


def test_two_that_publish_at_the_same_moment_each_have_their_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is second makes the first the previous version; no file ever stands under the other's manifest."""
    there = tmp_path / "there" / "model.pt"
    contents = [b"one" * 1000, b"two" * 1000]
    turns, came, placed = itertools.count(), threading.Event(), threading.Event()

    def meet_and_put(made: Path, target: Path, *, replaces: Callable[[Path], bool]) -> None:
        # The first puts its file there when the second has said what it is about to put there, if it ever does.
        if next(turns) == 0:
            came.wait(0.5)
        else:
            came.set()
            placed.wait(5)
        put_file(made, target, replaces=replaces)
        placed.set()

    def publish(number: int) -> None:
        source = tmp_path / f"{number}.pt"
        source.write_bytes(contents[number])
        publish_file(source, there, progress=False)

    monkeypatch.setattr("colabstage.stage.publish.put_file", meet_and_put)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(publish, range(2))) == [None, None]
    assert sorted(path.read_bytes() for path in (there, previous_path(there))) == contents
    for path in (there, previous_path(there)):
        check_manifest(path)
    assert not [name for name in names(there.parent) if name.startswith(".")]

"""Sameness is proved, never assumed: the data served is that of the source as it is, or the report says what was not
checked."""

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colabstage import StagedDataset, stage_dataset
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.contract.served import numbers_in
from tests.support.deadlines import shorten_deadlines
from tests.support.images import image, make_tree, number_of

# All files have the same length.
NUMBERS = {f"{kind}/{number}.bmp": 10 * number for kind in ("cat", "dog") for number in range(4)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "photos", NUMBERS)


def stage(source: Any, **options: Any) -> StagedDataset:
    """Without output, and without a cache unless the test wants one."""
    return stage_dataset(source, **{"progress": False, "cache_dir": None, **options})


def numbers_of_files(folder: Path | None) -> dict[str, int]:
    assert folder is not None
    return {str(path.relative_to(folder)): number_of(path.read_bytes()) for path in folder.rglob("*.bmp")}


def test_a_pack_stays_vouched_for_when_files_are_brought_beside_it(source: Path, tmp_path: Path) -> None:
    """It is neither compared nor published again."""
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache"}
    for keep in ("pack", "files"):
        stage(source, keep=keep, **options)
    assert [step.name for step in stage(source, **options).report.steps] == ["look"]


def test_what_nobody_can_compare_is_never_the_same(source: Path) -> None:
    lock = threading.Lock()

    def guarded(x: Any) -> Any:
        with lock:
            return x

    staged = [stage(source, prepare=guarded) for _ in range(2)]
    assert {one.report.origin for one in staged} == {"source"}
    assert all(any("_thread.lock" in note for note in one.report.notes) for one in staged)
    assert staged[0].path == staged[1].path


def slow_stat(monkeypatch: pytest.MonkeyPatch, folder: Path, wait: Callable[[], object]) -> None:
    """Delay each look at a folder below another."""
    real = os.stat

    def stat(path: Any, *args: Any, **options: Any) -> Any:
        if isinstance(path, str) and path.startswith(f"{folder}/"):
            wait()
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)


def test_slow_is_not_gone_and_silence_is_an_answer_of_its_own(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the whole takes, the look continues while responses arrive: only silence ends it."""
    make_tree(source, {f"c{number}/0.bmp": number for number in range(30)})
    stage(source)
    shorten_deadlines("sources", 0.3, monkeypatch.setattr)
    (source / "c7/0.bmp").unlink()
    wake = threading.Event()
    with monkeypatch.context() as patch:
        slow_stat(patch, source, lambda: wake.wait(0.02))
        assert stage(source).report.origin == "source"
    with monkeypatch.context() as patch:
        slow_stat(patch, source, wake.wait)
        staged = stage(source)
        wake.set()
    assert staged.report.origin == "local"
    assert any("nothing arrived from it" in note for note in staged.report.notes)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"version": 1, "files": [1e400, 2]}', '{"version": 1, "seal": 7}'],
    ids=["deep", "infinite", "of another type"],
)
def test_a_record_that_is_none_is_none(source: Path, text: str) -> None:
    stage(source).path.with_name("stage.json").write_text(text, encoding="utf-8")
    again = stage(source)
    assert (again.report.origin, numbers_in(again.path)) == ("local", NUMBERS)
    assert numbers_of_files(stage(source, keep="both", verify="full").files) == NUMBERS


def rewrite(path: Path, data: bytes) -> None:
    """Put other bytes under a name in the cloud, keeping the file's size and time, and its folder's time."""
    found, folder = path.stat(), path.parent.stat()
    assert len(data) == found.st_size
    other = path.with_suffix(".other")
    other.write_bytes(data)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)
    os.utime(path.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("drive_knobs", "verify"),
    [(DriveKnobs.quick(), "fast"), (replace(DriveKnobs.quick(), attributes=False), "full")],
    ids=["MD5s", "no MD5s"],
)
def test_a_file_on_drive_that_was_rewritten_in_place(
    drive: SimulatedDrive, my_drive: Path, drive_knobs: DriveKnobs, verify: str
) -> None:
    """Drive's own MD5s show it; without them nothing does, and the report says so."""
    cloud = make_tree(drive.cloud / "MyDrive/photos", NUMBERS)
    stage(my_drive / "photos")
    staged = stage(my_drive / "photos")
    look = str(staged.report)
    assert staged.report.origin == "local"
    assert ("MD5" in look) is drive_knobs.attributes
    assert ("would not be noticed" in look) is not drive_knobs.attributes
    rewrite(cloud / "cat/1.bmp", image(250, suffix=".bmp"))
    staged = stage(my_drive / "photos", verify=verify)
    assert staged.report.origin == ("source" if drive_knobs.attributes else "local")
    assert numbers_in(staged.path)["cat/1.bmp"] == (250 if drive_knobs.attributes else 10)


@pytest.mark.fuse
@pytest.mark.parametrize("drive_knobs", [replace(DriveKnobs.quick(), attributes=False)])
def test_all_other_times_prove_nothing(drive: SimulatedDrive, my_drive: Path) -> None:
    """As after a remount, for more files than the record has times."""
    cloud = make_tree(drive.cloud / "MyDrive/photos", {f"{'ab'[n % 2]}/{n}.bmp": n for n in range(260)})
    stage(my_drive / "photos", image_size=1)
    for path in cloud.rglob("*.bmp"):
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 5_000_000_000))
    (cloud / "a/x").mkdir()  # the folders' times prove nothing
    staged = stage(my_drive / "photos", image_size=1)
    assert staged.report.origin == "local"
    assert any("has changed is not known" in note for note in staged.report.notes)
    assert stage(my_drive / "photos", image_size=1, verify="full").report.origin == "source"


@pytest.mark.fuse
@pytest.mark.filterwarnings("ignore:Classes have other numbers")
@pytest.mark.parametrize("drive_knobs", [replace(DriveKnobs.quick(), attributes=False)])
def test_a_folder_on_drive_tells_what_came_and_went(drive: SimulatedDrive, my_drive: Path) -> None:
    """The times of its folders show an added file, and a class folder that was removed."""
    cloud = drive.cloud / "MyDrive/photos"
    numbers: dict[str, int] = {}
    for more in (NUMBERS | {"bird/9.bmp": 90}, {"cat/new.bmp": 77}, {}):
        numbers |= more
        make_tree(cloud, more)
        if not more:
            shutil.rmtree(cloud / "bird")
            del numbers["bird/9.bmp"]
        staged = stage(my_drive / "photos")
        assert (staged.report.origin, numbers_in(staged.path)) == ("source", numbers)
        assert stage(my_drive / "photos").report.origin == "local"

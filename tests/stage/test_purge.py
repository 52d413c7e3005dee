"""Listing and purging: what carries our mark goes, and nothing else ever does."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest

from colabstage import list_datasets, publish_file, purge_datasets, stage_dataset
from colabstage.errors import OptionError
from colabstage.h5.manifest import manifest_path
from colabstage.io.files import local_lock
from colabstage.io.workspace import leave_for_next, temp_beside
from colabstage.stage.purge import select_datasets, sweep_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.stage.purge import StoredDataset
    from simulated_drive.drive import SimulatedDrive


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where packs last."""
    return tmp_path / "cache"


def stage(source: Path, cache: Path, **options: object) -> str:
    """Stage in silence; returns the dataset's name."""
    staged = stage_dataset(source, cache_dir=cache, progress=False, **options)  # type: ignore[arg-type]
    return staged.path.name.removesuffix(".h5")


def names(datasets: list[StoredDataset]) -> list[tuple[str, str, bool]]:
    """Place, name and generation."""
    return [(one.place, one.name, one.previous) for one in datasets]


def test_the_list_says_what_there_is(photos: Path, cache: Path) -> None:
    """Everything made is listed with its source, size and rows; what was published again has a generation before."""
    name = stage(photos, cache)
    other = stage(photos, cache, image_size=(8, 8))
    (photos / "cat" / "0000.png").unlink()
    stage(photos, cache)
    listed = list_datasets(cache_dir=cache)
    assert sorted(names(listed)) == sorted(
        [
            ("here", name, False),
            ("here", other, False),
            ("cache", name, False),
            ("cache", name, True),
            ("cache", other, False),
        ]
    )
    assert {one.source for one in listed} == {str(photos)}
    assert {sum(one.samples.values()) for one in listed if one.name == name} == {19, 20}
    assert all(one.whole and one.nbytes > 1000 for one in listed)
    assert name in str(listed[0]) or other in str(listed[0])
    assert listed[0].to_dict()["place"] == "here"


def test_a_purge_by_name_removes_all_of_it_and_nothing_else(photos: Path, cache: Path, tmp_path: Path) -> None:
    name, other = stage(photos, cache), stage(photos, cache, image_size=(8, 8))
    stage(photos, cache, refresh=True)
    listed = list_datasets(cache_dir=cache)
    report = purge_datasets(select_datasets(listed, names=[name]))
    assert {one.name for one in report.removed} == {name}
    assert (report.kept, report.reasons) == ((), ())
    assert report.nbytes == sum(one.nbytes for one in listed if one.name == name)
    assert not list(tmp_path.rglob(f"*{name}*"))
    assert {one.name for one in list_datasets(cache_dir=cache)} == {other}
    assert stage(photos, cache, image_size=(8, 8)) == other


def test_strangers_stay(photos: Path, cache: Path, tmp_path: Path) -> None:
    """Files of the same look without our mark, published checkpoints and foreign folders are not even listed."""
    name = stage(photos, cache)
    (tmp_path / "model.h5").write_bytes(b"weights")
    publish_file(tmp_path / "model.h5", cache / "model-12345678.h5", progress=False)
    shutil.copy(cache / f"{name}.h5", cache / "mine-12345678.h5")
    shutil.copy(manifest_path(cache / f"{name}.h5"), manifest_path(cache / "mine-12345678.h5"))
    (cache / "notes.txt").write_text("mine", encoding="utf-8")
    base = tmp_path / "fast" / "colabstage"
    (base / "mine").mkdir()
    (base / "mine" / "stage.json").write_text("{}", encoding="utf-8")
    (base / name / "my notes.txt").write_text("mine", encoding="utf-8")
    listed = list_datasets(cache_dir=cache)
    assert names(listed) == [("here", name, False), ("cache", name, False)]
    report = purge_datasets(listed)
    assert [one.place for one in report.kept] == ["here"]
    assert "my notes.txt" in report.reasons[0]
    assert (base / name / "my notes.txt").read_text(encoding="utf-8") == "mine"
    left = {path.name for path in cache.iterdir()}
    assert {"model-12345678.h5", "mine-12345678.h5", "mine-12345678.h5.json", "notes.txt"} <= left
    assert not any(path.startswith(name) for path in left)
    for stranger in ("mine", "model-12345678", str(cache / "notes.txt")):
        with pytest.raises(OptionError, match="There is"):
            select_datasets(list_datasets(cache_dir=cache), names=[stranger])


def test_what_takes_the_place_of_a_listed_dataset_stays(photos: Path, cache: Path, tmp_path: Path) -> None:
    """A checkpoint that was published under its name since then, though it has a manifest of colabstage's."""
    name = stage(photos, cache)
    listed = [one for one in list_datasets(cache_dir=cache) if one.place == "cache"]
    pack = cache / f"{name}.h5"
    for path in (pack, manifest_path(pack)):
        path.unlink()
    (tmp_path / "model.h5").write_bytes(b"weights")
    publish_file(tmp_path / "model.h5", pack, progress=False)
    report = purge_datasets(listed)
    assert pack.read_bytes() == b"weights"
    assert report.removed == ()
    assert "is not what colabstage put there" in report.reasons[0]


def test_a_cached_pack_that_stays_is_not_reported_as_removed(photos: Path, cache: Path) -> None:
    name = stage(photos, cache)
    listed = [one for one in list_datasets(cache_dir=cache) if one.place == "cache"]
    manifest_path(cache / f"{name}.h5").write_bytes(b"{")
    report = purge_datasets(listed)
    assert (report.removed, list(report.kept)) == ((), listed)
    assert (cache / f"{name}.h5").exists()


def test_age_and_place_narrow_the_choice(photos: Path, cache: Path) -> None:
    name = stage(photos, cache)
    listed = list_datasets(cache_dir=cache)
    later = time.time() + 10 * 86_400
    assert len(select_datasets(listed, everything=True)) == 2
    assert [one.place for one in select_datasets(listed, everything=True, place="cache")] == ["cache"]
    assert select_datasets(listed, older_than_days=9) == []
    assert len(select_datasets(listed, older_than_days=9, now_s=later)) == 2
    assert select_datasets(listed, older_than_days=11, names=[name], now_s=later) == []
    with pytest.raises(OptionError, match="what to remove"):
        select_datasets(listed)


def test_what_is_being_staged_stays(photos: Path, cache: Path, tmp_path: Path) -> None:
    name = stage(photos, cache)
    listed = list_datasets(cache_dir=None)
    with local_lock(tmp_path / "fast" / "colabstage" / f".colabstage-{name}.lock", timeout_s=1) as held:
        assert held
        report = purge_datasets(listed)
    assert "being staged" in report.reasons[0]
    assert stage_dataset(photos, cache_dir=cache, progress=False).report.origin == "local"


def test_leftovers_of_the_dead_are_swept_and_of_the_living_not(photos: Path, cache: Path, tmp_path: Path) -> None:
    stage(photos, cache)
    dead, living = temp_beside(cache / "a.h5"), temp_beside(tmp_path / "fast" / "colabstage" / "b")
    for path in (dead, living):
        path.write_bytes(b"half")
    leave_for_next(dead)
    lock = tmp_path / "fast" / "colabstage" / ".colabstage-c.lock"
    lock.touch()
    removed = sweep_leftovers(cache_dir=cache)
    assert {path.parent for path in removed} == {cache, lock.parent}
    assert not lock.exists()
    assert living.exists()
    living.unlink()


@pytest.mark.fuse
def test_the_cache_on_drive_is_purged(drive: SimulatedDrive, my_drive: Path, make_images: Callable[..., Path]) -> None:
    images = make_images(drive.cloud / "MyDrive" / "photos", 6)
    stage_dataset(my_drive / "photos", progress=False)
    assert drive.flush(timeout_s=60)
    report = purge_datasets(select_datasets(list_datasets(), everything=True, place="cache"))
    assert [one.source for one in report.removed] == ["drive:MyDrive/photos"]
    assert drive.flush(timeout_s=60)
    assert list((drive.cloud / "MyDrive" / "colabstage").iterdir()) == []
    assert len(list(images.rglob("*.png"))) == 6

"""`stage_dataset` from a mounted (simulated) Google Drive: sessions, the cache on Drive, and its bad days."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage.errors import CorruptArchiveError, DriveDisconnectedError, SourceNotFoundError, SourceReadError
from colabstage.h5.manifest import check_whole, read_manifest
from colabstage.stage.plan import plan_stage
from colabstage.stage.run import stage_dataset
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import ContentFault, DriveFaults, DriveKnobs, OpFault

if TYPE_CHECKING:
    from colabstage.stage.dataset import StagedDataset

pytestmark = pytest.mark.fuse
MakeImages = Callable[..., Path]


def stage(source: Path, **options: object) -> StagedDataset:
    """In silence; the cache is the default, `colabstage` on the Drive of the source."""
    return stage_dataset(source, **{"progress": False, **options})  # type: ignore[arg-type]


def rows_by_key(path: Path) -> dict[str, np.ndarray]:
    """Each stored training image by its source's name, read with plain h5py."""
    with h5py.File(path, "r") as file:
        return dict(zip([k.decode() for k in file["key_train"][()].tolist()], file["X_train"][()], strict=True))


def fresh_machine(drive: SimulatedDrive, fast: Path) -> Path:
    """What the next session starts with: an empty local disk and a newly mounted Drive."""
    mountpoint = drive.mountpoint
    assert mountpoint is not None
    assert drive.flush(timeout_s=60)
    drive.new_machine()
    shutil.rmtree(fast)
    drive.mount(mountpoint)
    return mountpoint / "MyDrive"


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    """The local disk's folder."""
    return tmp_path / "fast"


@pytest.fixture
def images(drive: SimulatedDrive, make_images: MakeImages) -> Path:
    """Twenty images, as they lie in the cloud; `my_drive / "photos"` shows them."""
    return make_images(drive.cloud / "MyDrive" / "photos", 20)


def test_the_first_session_packs_and_publishes(images: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    """The pack holds the folder's pixels, and a verified copy of it lies on Drive with its manifest."""
    staged = stage(my_drive / "photos")
    stored = rows_by_key(staged.path)
    assert len(stored) == 20
    for key, pixels in stored.items():
        assert np.array_equal(pixels, np.asarray(Image.open(images / key)))
    assert drive.flush(timeout_s=60)
    cached = next((drive.cloud / "MyDrive" / "colabstage").glob("*.h5"))
    manifest = read_manifest(cached)
    assert manifest is not None
    check_whole(cached, manifest)
    assert cached.read_bytes() == staged.path.read_bytes()
    assert [step.name for step in staged.report.steps][-2:] == ["pack", "publish to cache"]
    assert not [p for p in cached.parent.iterdir() if p.name.startswith(".colabstage-")]


def test_the_next_session_starts_from_the_cache(
    images: Path, my_drive: Path, drive: SimulatedDrive, fast: Path
) -> None:
    """A fresh machine copies the pack and opens none of the images."""
    first = stage(my_drive / "photos").path.read_bytes()
    my_drive = fresh_machine(drive, fast)
    again = stage(my_drive / "photos")
    assert again.report.origin == "cache"
    assert again.path.read_bytes() == first
    stats = drive.stats()
    assert stats.cold_opens + stats.warm_opens <= 4  # the manifest, the pack, and nothing of the source


def test_both_spellings_are_one_dataset(images: Path, my_drive: Path) -> None:
    """`My Drive` and `MyDrive` name the same source."""
    stage(my_drive / "photos")
    assert stage(my_drive.parent / "My Drive" / "photos").report.origin == "local"


def test_a_zip_is_packed_while_it_arrives(
    images: Path, my_drive: Path, drive: SimulatedDrive, make_zip: Callable[[Path, Path], Path], fast: Path
) -> None:
    """A zip on Drive gives the folder's rows; neither its copy nor an extracted tree stays."""
    make_zip(images, drive.cloud / "MyDrive" / "photos.zip")
    expected = rows_by_key(stage(my_drive / "photos", cache_dir=None).path)
    staged = stage(my_drive / "photos.zip", cache_dir=None)
    found = rows_by_key(staged.path)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)
    assert sorted(p.name for p in staged.path.parent.iterdir()) == sorted(
        [staged.path.name, f"{staged.path.name}.json", "stage.json"]
    )


def test_a_changed_source_is_not_served_from_the_cache(
    images: Path, my_drive: Path, drive: SimulatedDrive, make_images: MakeImages, fast: Path
) -> None:
    """Images added to Drive since make the cached pack stale; it is replaced, and its predecessor kept."""
    stage(my_drive / "photos")
    my_drive = fresh_machine(drive, fast)
    make_images(images, 4, first=20)
    again = stage(my_drive / "photos")
    assert again.report.origin == "source"
    assert again.splits == {"train": 24}
    assert drive.flush(timeout_s=60)
    names = sorted(p.name for p in (drive.cloud / "MyDrive" / "colabstage").iterdir())
    assert [name.split(".", 1)[1] for name in names] == ["h5", "h5.json", "h5.previous", "h5.previous.json"]


@pytest.mark.parametrize("damage", ["zero_tail", "truncate"])
def test_a_damaged_cached_pack_is_never_used(
    images: Path, my_drive: Path, drive: SimulatedDrive, fast: Path, damage: str
) -> None:
    """A cached pack that reads wrong is refused by its hashes, and the source is staged instead."""
    first = stage(my_drive / "photos").path.read_bytes()
    my_drive = fresh_machine(drive, fast)
    drive.set_faults(
        DriveFaults(contents=(ContentFault(pattern="MyDrive/colabstage/*.h5", kind=damage, tail_bytes=5000),))  # type: ignore[arg-type]
    )
    again = stage(my_drive / "photos")
    assert again.report.origin == "source"
    assert "cannot be used" in " ".join(again.report.notes)
    assert again.path.read_bytes() == first


def test_a_pack_without_its_manifest_is_not_in_the_cache(
    images: Path, my_drive: Path, drive: SimulatedDrive, fast: Path
) -> None:
    """A copy whose manifest never reached Drive does not count."""
    stage(my_drive / "photos")
    my_drive = fresh_machine(drive, fast)
    next((my_drive / "colabstage").glob("*.json")).unlink()
    assert stage(my_drive / "photos").report.origin == "source"


def test_the_source_may_be_deleted_once_it_is_cached(
    images: Path, my_drive: Path, drive: SimulatedDrive, fast: Path
) -> None:
    """Who frees the account of the images can still train from the cached pack, and is told so."""
    stage(my_drive / "photos")
    my_drive = fresh_machine(drive, fast)
    shutil.rmtree(my_drive / "photos")
    again = stage(my_drive / "photos")
    assert again.report.origin == "cache"
    assert "cannot be reached" in " ".join(again.report.notes)


def test_passing_read_errors_are_survived(images: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    """Each image answering errno 5 twice costs retries, not the dataset."""
    drive.set_faults(
        DriveFaults(ops=(OpFault(op="read", pattern="MyDrive/photos/cat/*", errno=errno.EIO, first=2, per_file=True),))
    )
    assert stage(my_drive / "photos", cache_dir=None).splits == {"train": 20}


def test_lasting_read_errors_are_one_typed_error(images: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    """An image that never reads is named, with the remedy, and nothing half-made is taken for whole."""
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="*/0003.png", errno=errno.EIO),)))
    with pytest.raises(SourceReadError, match=r"0003\.png"):
        stage(my_drive / "photos", cache_dir=None, image_size=(24, 32))
    drive.set_faults(DriveFaults())
    assert plan_stage(my_drive / "photos", cache_dir=None).action == "stage"


def test_a_dying_drive_keeps_finished_work(
    tmp_path: Path, drive: SimulatedDrive, my_drive: Path, make_images: MakeImages
) -> None:
    """When the client dies midway the error says what to do; after a remount the rest is done, not everything."""
    make_images(drive.cloud / "MyDrive" / "many", 400)
    expected = stage(my_drive / "many", cache_dir=None, local_dir=tmp_path / "undisturbed").path.read_bytes()
    mountpoint = drive.mountpoint
    assert mountpoint is not None
    drive.unmount()
    dying = SimulatedDrive(tmp_path / "drive-home", knobs=replace(DriveKnobs.quick(), death_after_opens=350))
    with dying:
        dying.mount(mountpoint)
        with pytest.raises((DriveDisconnectedError, SourceNotFoundError), match=r"mount|Mount|moved"):
            stage(my_drive / "many", cache_dir=None)
    drive.mount(mountpoint)
    again = stage(my_drive / "many", cache_dir=None)
    assert again.path.read_bytes() == expected
    resumed = next(step.note for step in again.report.steps if step.name == "pack")
    assert "already in place" in resumed


def test_a_full_account_does_not_cost_the_staging(images: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    """Without room on Drive the dataset is ready all the same, and the report says it is not cached."""
    drive.set_faults(DriveFaults(quota_exceeded=True))
    staged = stage(my_drive / "photos")
    assert staged.splits == {"train": 20}
    assert "Not cached" in " ".join(staged.report.notes)
    drive.set_faults(DriveFaults())
    retried = stage(my_drive / "photos")
    assert retried.report.origin == "local"
    assert [step.name for step in retried.report.steps] == ["look", "publish to cache"]
    assert len(list((my_drive / "colabstage").glob("*.h5"))) == 1


def test_publishing_may_go_on_in_the_background(images: Path, my_drive: Path) -> None:
    """`wait=False` returns a usable dataset, and the copy on Drive comes to be."""
    staged = stage(my_drive / "photos", wait=False)
    assert staged.splits == {"train": 20}
    staged.wait_published(timeout_s=60)
    assert len(list((my_drive / "colabstage").glob("*.h5.json"))) == 1


def test_a_damaged_zip_on_drive_is_named(
    images: Path, my_drive: Path, drive: SimulatedDrive, make_zip: Callable[[Path, Path], Path]
) -> None:
    """Bytes that come wrong out of the mount are caught by the member's checksum."""
    make_zip(images, drive.cloud / "MyDrive" / "photos.zip")
    drive.set_faults(
        DriveFaults(contents=(ContentFault(pattern="MyDrive/photos.zip", kind="zero_tail", tail_bytes=2000),))
    )
    with pytest.raises(CorruptArchiveError, match=r"photos\.zip"):
        stage(my_drive / "photos.zip", cache_dir=None)


def test_google_documents_are_left_out_with_a_note(images: Path, my_drive: Path) -> None:
    """A `.gdoc` beside the images does not stop the staging and is named in the report."""
    (images / "cat" / "notes.gdoc").write_text("{}", encoding="utf-8")
    staged = stage(my_drive / "photos", cache_dir=None)
    assert staged.splits == {"train": 20}
    assert ".gdoc" in " ".join(staged.report.notes)


def test_two_sessions_at_once_do_not_disturb_each_other(images: Path, my_drive: Path, fast: Path) -> None:
    """Threads that stage the same source get the same whole pack; the work is done once."""
    found: list[StagedDataset] = []
    threads = [threading.Thread(target=lambda: found.append(stage(my_drive / "photos"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(staged.report.origin for staged in found) == ["local", "local", "local", "source"]
    assert {staged.path.read_bytes() for staged in found} == {found[0].path.read_bytes()}

"""A path on Drive while no Drive is mounted: an error before anything is written, never a copy on the local disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

import colabstage
from colabstage import list_datasets, purge_datasets
from colabstage.errors import DriveNotMountedError
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.stage.on_drive import SIZE, VERBS
from tests.support.colab import simulated_colab
from tests.support.steps import OneStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.stage.conftest import MakeImages
    from tests.stage.on_drive import Verb
    from tests.support.colab_machine import SimulatedColab


@pytest.fixture(autouse=True)
def invariants() -> None:
    """What was begun on a Drive that is gone is out of reach."""


@pytest.fixture
def drive(tmp_path: Path) -> SimulatedDrive:
    """A Drive account that is empty."""
    return SimulatedDrive(tmp_path / "google", knobs=DriveKnobs.quick())


@pytest.fixture
def colab(tmp_path: Path, drive: SimulatedDrive) -> Iterator[SimulatedColab]:
    """A notebook in a new session: no Drive is mounted yet."""
    with simulated_colab(tmp_path / "machine", drive=drive) as machine:
        yield machine


@pytest.fixture
def place(colab: SimulatedColab) -> Path:
    """Where Drive belongs."""
    return colab.root / "content/drive"


@pytest.fixture
def images(tmp_path: Path, make_images: MakeImages) -> Path:
    """Images on the local disk."""
    return make_images(tmp_path / "images", 6)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint on the local disk."""
    file = tmp_path / "model.pt"
    file.write_bytes(os.urandom(10_000))
    return file


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_refuses_a_path_on_a_drive_that_is_not_mounted(
    verb: Verb, colab: SimulatedColab, place: Path, model: Path, images: Path, tmp_path: Path
) -> None:
    with pytest.raises(DriveNotMountedError) as caught:
        verb(place / "MyDrive", model, images)
    assert f"mount_drive('{place}')" in str(caught.value)
    assert not place.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.fuse
def test_what_the_error_advises_works(colab: SimulatedColab, place: Path, model: Path) -> None:
    target = f"{place}/MyDrive/ck/"
    with pytest.raises(DriveNotMountedError) as caught:
        colabstage.publish_file(model, target, wait_uploaded=True, progress=False)
    call = next(part for part in str(caught.value).split() if part.startswith("mount_drive("))
    assert eval(call, {"mount_drive": colabstage.mount_drive}) == place / "MyDrive"
    assert colabstage.publish_file(model, target, wait_uploaded=True, progress=False).proof == "uploaded"


@pytest.mark.fuse
@pytest.mark.parametrize("verb", ["publish_file", "fetch_files", "pack_dataset"])
def test_a_drive_that_is_unmounted_midway_is_no_success(
    verb: str, colab: SimulatedColab, place: Path, drive: SimulatedDrive, model: Path, images: Path
) -> None:
    """The path is one of the local disk from then on, and what was written where is not known."""
    folder = colabstage.mount_drive(place.with_name("gdrive"))

    lock, gone = threading.Lock(), list[bool]()

    class UnmountsAndWrites(OneStep):
        def advance(self, amount: int = 1) -> None:
            with lock:
                if gone:
                    return
                gone.append(True)
                subprocess.run(["umount", "-l", str(folder.parent)], check=True)
                drive.unmount()
                folder.mkdir(parents=True)

    shown = UnmountsAndWrites()
    works: dict[str, Callable[[], object]] = {
        "publish_file": lambda: colabstage.publish_file(model, folder / "m.pt", progress=shown),
        "fetch_files": lambda: colabstage.fetch_files(images, folder / "copy", progress=shown),
        "pack_dataset": lambda: colabstage.pack_dataset(images, folder / "p.h5", image_size=SIZE, progress=shown),
    }
    with pytest.raises(DriveNotMountedError, match="gdrive"):
        works[verb]()
    assert gone


@pytest.mark.fuse
def test_an_upload_is_not_waited_for_without_its_drive(colab: SimulatedColab, place: Path, images: Path) -> None:
    """The pack was published to a Drive that was unmounted since; whether it arrived is not known."""
    colabstage.mount_drive(place)
    data = colabstage.stage_dataset(images, image_size=SIZE, progress=False)
    colabstage.flush_drive(remount=False)
    with pytest.raises(DriveNotMountedError):
        data.wait_published()


@pytest.mark.fuse
def test_what_is_staged_is_used_without_the_drive_it_came_from(
    colab: SimulatedColab, place: Path, drive: SimulatedDrive, images: Path
) -> None:
    shutil.copytree(images, drive.cloud / "MyDrive/photos")
    source = colabstage.mount_drive(place) / "photos"
    colabstage.stage_dataset(source, image_size=SIZE, cache_dir=None, progress=False)
    colabstage.flush_drive(remount=False)
    again = colabstage.stage_dataset(source, image_size=SIZE, cache_dir=None, progress=False)
    assert again.report.origin == "local"
    assert any("no Drive is mounted" in note for note in again.report.notes)


@pytest.mark.fuse
def test_a_cached_pack_of_a_drive_that_is_gone_is_not_called_removed(
    colab: SimulatedColab, place: Path, drive: SimulatedDrive, images: Path
) -> None:
    colabstage.mount_drive(place)
    colabstage.stage_dataset(images, image_size=SIZE, progress=False)
    cached = [one for one in list_datasets() if one.place == "cache"]
    colabstage.flush_drive(remount=False)
    report = purge_datasets(cached)
    assert (report.removed, report.kept) == ((), tuple(cached))
    assert any((drive.cloud / "MyDrive/colabstage").glob("*.h5"))

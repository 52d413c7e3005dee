"""`compare_sources` on a real mount: it tells the ways apart, keeps to the time, writes nothing, and leaves nothing."""

import json
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage import compare_sources
from colabstage.errors import DriveDisconnectedError, LayoutError, OptionError, SourceNotFoundError, SourceReadError
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.support.steps import AtStep


def write_photos(folder: Path, count: int = 40, *, mixed: bool = False) -> Path:
    """A folder with JPEGs in two classes."""
    for number in range(count):
        place = folder / ("cat", "dog")[number % 2] / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (48, 48 + mixed * number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place)
    return folder


def zip_up(folder: Path, archive: Path, *, apart_bytes: int = 0) -> Path:
    """Zip a folder's files, with so many unrelated bytes before each."""
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted(folder.rglob("*.jpg")):
            if apart_bytes:
                opened.writestr(f"between-{path.stem}.log", bytes(apart_bytes))
            opened.write(path, path.relative_to(folder))
    return archive


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything below a folder."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def compare(path: Path, **changes: Any) -> Any:
    """A comparison that takes little time."""
    return compare_sources(path, **{"budget_s": 4.0, "progress": False, **changes})


@pytest.mark.fuse
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_slow_drive_against_a_pack(machine: Path, kind: str) -> None:
    """Images that each cost a round trip come many times faster from a pack; Drive and disk stay unchanged."""
    knobs = DriveKnobs(
        cold_open_latency_s=0.1, warm_open_latency_s=0.01, listing_latency_s=0.0, stream_bytes_per_s=2.5e6
    )
    with SimulatedDrive(machine / "home", knobs=knobs) as drive:
        photos = write_photos(drive.cloud / "MyDrive" / "photos", 24)
        # Further apart than the kernel's read-ahead, so that examining the archive does not cache all of them.
        zip_up(photos, drive.cloud / "MyDrive" / "photos.zip", apart_bytes=200_000)
        drive.mount(machine / "drive")
        before = contents(drive.cloud)
        found = compare(machine / "drive/MyDrive" / ("photos" if kind == "folder" else "photos.zip"))
        assert contents(drive.cloud) == before
        assert drive.stats().bytes_written == 0
    assert not (machine / "fast").exists()
    assert (found.place, found.dataset_samples, found.compared) == ("Google Drive", 24, 24)
    assert [rate.way for rate in found.rates] == ["source", "again", "local", "pack"]
    source, _, local, pack = found.rates
    assert source.samples == 24
    assert source.nbytes == sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert pack.per_second > 5 * source.per_second
    assert local.per_second > 2 * source.per_second
    assert pack.epoch_s(24) == pytest.approx(24 / pack.per_second)
    assert found.encoding == "pixels"
    assert 24 * 48 * 48 * 3 < found.pack_bytes < 2 * 24 * 48 * 48 * 3 + 100_000


@pytest.mark.fuse
def test_the_time_is_kept(machine: Path) -> None:
    """With little time fewer images are read from a very slow Drive, and the whole dataset is projected."""
    knobs = DriveKnobs(cold_open_latency_s=0.25, warm_open_latency_s=0.1, listing_latency_s=0.0)
    with SimulatedDrive(machine / "home", knobs=knobs) as drive:
        write_photos(drive.cloud / "MyDrive" / "photos", 60)
        drive.mount(machine / "drive")
        began = time.monotonic()
        found = compare(machine / "drive/MyDrive/photos", budget_s=2.0)
        assert time.monotonic() - began < 10.0
    assert 2 <= found.compared < 30
    assert found.dataset_samples == 60
    assert found.rate("source").epoch_s(60) > 60 * 0.25 / 2 * 0.8


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.fuse
def test_a_mount_that_dies_meanwhile(drive: SimulatedDrive, my_drive: Path, machine: Path) -> None:
    """A Drive that dies while it is read, or is dead already, is a typed error, and nothing is left behind."""
    write_photos(drive.cloud / "MyDrive" / "photos", 10)
    for progress in (AtStep("read Google Drive, later epochs", drive.kill), False):
        with pytest.raises(DriveDisconnectedError):
            compare(my_drive / "photos", progress=progress)
    assert not (machine / "fast").exists()


def test_an_interrupted_comparison_leaves_nothing(machine: Path) -> None:
    """Ctrl-C in the middle: the copies are gone, and so are the folders that were made for them."""
    write_photos(machine / "photos", 8)
    with pytest.raises(KeyboardInterrupt):
        compare(machine / "photos", progress=AtStep("read the pack", interrupt))
    assert not (machine / "fast").exists()


def test_a_local_folder(machine: Path) -> None:
    """It works anywhere, with a size to decode to, fewer samples, and prints as text, JSON, a page and a picture."""
    write_photos(machine / "photos", mixed=True)
    found = compare(machine / "photos", image_size=(32, 24), samples=10)
    assert (found.place, found.compared, found.dataset_samples) == ("the local disk", 10, 40)
    assert found.encoding == "pixels"
    text = str(found)
    assert text.startswith("An epoch of 40 images: ")
    assert "Measured with 10 images, decoded to 32 x 24; 2 readers for files; a pack of all takes about" in text
    as_json = json.loads(json.dumps(found.to_dict()))
    assert [rate["way"] for rate in as_json["rates"]] == ["source", "again", "local", "pack"]
    assert as_json["rates"][3]["per_second"] > 0
    assert "a pack on the local disk" in found._repr_html_()
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    assert len(found.plot().axes[0].patches) == 4


def test_broken_images_are_left_out(machine: Path) -> None:
    """One that cannot be decoded is counted; images of many sizes stay encoded, and the note says what a size does."""
    write_photos(machine / "photos", 12, mixed=True)
    (machine / "photos/cat/0.jpg").write_bytes(b"no image")
    found = compare(machine / "photos")
    assert (found.compared, found.encoding) == (11, "encoded")
    assert "1 of the images could not be decoded, and were left out." in str(found)
    assert "with image_size=(height, width) they are decoded once" in str(found)


def test_what_is_no_image(machine: Path) -> None:
    """Arrays and sources of only broken files are refused by name, and so is a missing path."""
    (machine / "arrays").mkdir()
    np.savez(machine / "arrays" / "data.npz", x_train=np.zeros((9, 4), np.float32), y_train=np.zeros(9, np.int64))
    with pytest.raises(LayoutError, match="no image files"):
        compare(machine / "arrays")
    for name in ("a", "b"):
        (machine / "broken" / name).mkdir(parents=True)
        (machine / "broken" / name / "1.jpg").write_bytes(b"no image")
    with pytest.raises(SourceReadError, match="2 could not be decoded"):
        compare(machine / "broken")
    with pytest.raises(SourceNotFoundError):
        compare(machine / "nothing")
    assert not (machine / "fast").exists()


@pytest.mark.parametrize("name", ["samples", "budget_s"])
def test_a_wrong_number_is_refused(machine: Path, name: str) -> None:
    """Numbers must be above 0."""
    with pytest.raises(OptionError, match=f"{name}=0 cannot work"):
        compare(machine, **{name: 0})

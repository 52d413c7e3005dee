"""A mounted Drive that dies, fails or refuses in the middle of an epoch whose data still comes from it: one typed error
at the batch that needs what did not come, and after that the same call, or the same loader, continues."""

from __future__ import annotations

import errno
import shutil
import signal
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from colabstage import dataset_h5, make_loader, stage_dataset
from colabstage.errors import DriveDisconnectedError, SourceReadError
from colabstage.machine import watched
from colabstage.sources.in_part import BlockwiseFile
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault
from tests.io.test_board import wait_until
from tests.load.test_partial import LIMIT, ROWS, check_epoch, make_pack, part_of
from tests.support.staged import use_small_blocks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive

pytestmark = [pytest.mark.fuse, pytest.mark.torch]

COUNT, BATCH = 160, 8


@pytest.fixture
def drive_knobs() -> DriveKnobs:
    """Slow enough for an epoch to be left in the middle."""
    return DriveKnobs(
        cold_open_latency_s=0.05,
        stream_bytes_per_s=4e6,
        parallel_requests=4,
        listing_latency_s=0.0,
        listing_per_entry_s=0.0,
        warm_listing_s=0.0,
        visibility_s=0.0,
    )


def pixels(batches: Any) -> list[Any]:
    return [x.numpy().tobytes() for x, _ in batches]


def dies(drive: SimulatedDrive) -> None:
    drive.kill()


def fails(drive: SimulatedDrive) -> None:
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", errno=errno.EIO), OpFault(op="open", errno=errno.EIO))))


def hangs(drive: SimulatedDrive) -> None:
    for client in clients():
        client.send_signal(signal.SIGSTOP)


def clients() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "simulated_drive.server" in one.cmdline()]


def recovers(drive: SimulatedDrive, mountpoint: Path) -> None:
    for client in clients():
        client.send_signal(signal.SIGCONT)
    drive.set_faults(DriveFaults())
    if not drive.is_alive():
        drive.unmount()
        drive.mount(mountpoint)


DIES = dies, DriveDisconnectedError, r"mount_drive\(\)"
# Of files that were opened before, reads do not fail.
FAILS = fails, SourceReadError, "Input/output error"
HANGS = hangs, DriveDisconnectedError, "has not answered"


@pytest.mark.parametrize(
    ("source", "trouble", "kind", "words"),
    [("folder", *DIES), ("folder", *FAILS), ("zip", *DIES), ("cache", *DIES), ("cache", *HANGS)],
)
def test_what_is_streamed_from_it(
    source: str,
    trouble: Callable[[SimulatedDrive], None],
    kind: type[Exception],
    words: str,
    drive: SimulatedDrive,
    my_drive: Path,
    make_images: Callable[..., Path],
    make_zip: Callable[[Path, Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its type, to the loop and to whoever waits; what was verified is kept, and batches are those from before."""
    # Instead of 45 s.
    monkeypatch.setattr(watched, "_HANGS_S", 1.0)
    monkeypatch.setattr(watched, "_ASK_EVERY_S", 0.2)
    monkeypatch.setattr(watched, "_DIES_S", 0.3)
    cloud, mountpoint = drive.cloud / "MyDrive", my_drive.parent
    images = make_images(tmp_path / "photos", COUNT, size=(100, 100))
    where, cache = my_drive / "photos", None
    if source == "zip":
        make_zip(images, cloud / "photos.zip")
        where = my_drive / "photos.zip"
    elif source == "folder":
        shutil.copytree(images, cloud / "photos")
    else:
        use_small_blocks(monkeypatch)
        where, cache = images, my_drive / "cache"
        stage_dataset(images, local_dir=tmp_path / "first", cache_dir=cloud / "cache", progress=False)

    def stage() -> Any:
        return stage_dataset(where, local_dir=tmp_path / "fast", cache_dir=cache, progress=False, streaming=True)

    data = stage()
    batches = iter(data.loader("train", BATCH))
    seen = pixels(islice(batches, 2))
    # Of a folder the first rows come one by one, and count with their neighbours.
    wait_until(lambda: data.ready.rows > (100 if source == "folder" else 1))
    trouble(drive)
    with pytest.raises(kind, match=words):
        seen.extend(x.numpy().tobytes() for x, _ in batches)
    with pytest.raises(kind, match=words):
        data.wait(progress=False)
    recovers(drive, mountpoint)
    again = stage()
    assert pixels(again.loader("train", BATCH))[: len(seen)] == seen
    # What had come before is not asked for again.
    assert again.figures["kept"] > 0
    again.wait(progress=False)


def test_what_is_read_in_part_from_it(
    drive: SimulatedDrive,
    my_drive: Path,
    tmp_path: Path,
) -> None:
    pack = make_pack(drive.cloud / "MyDrive" / "data.h5")
    dataset = dataset_h5(my_drive / "data.h5", disk_limit=LIMIT, local_dir=tmp_path / "local", return_index=True)
    loader = make_loader(dataset, 50, seed=1)
    rows: list[int] = []

    def train() -> None:
        for number, ((x, _), index) in enumerate(loader):
            np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), pack.x[index.numpy()])
            rows.extend(index.tolist())
            if number == 2:
                drive.kill()

    with pytest.raises(DriveDisconnectedError, match=r"mount_drive\(\).*\d+"):
        train()
    part = part_of(dataset)
    assert isinstance(part.file, BlockwiseFile)
    here, fetched = np.flatnonzero(part.file.state), part.figures["fetched"]
    recovers(drive, my_drive.parent)
    with part.file.hold(here):
        assert part.figures["fetched"] == fetched
    loader.load_state_dict(loader.state_dict())
    rows += check_epoch(loader, pack)
    assert sorted(rows) == list(range(ROWS))
    part.close()

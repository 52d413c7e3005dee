"""A source that dies, fails, falls silent or changes in the middle of an epoch: never a wrong row, but one typed error
at the batch whose data did not arrive; afterwards the same call, or the same loader, continues."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, make_loader, stage_dataset
from colabstage.errors import ColabstageError, DamagedPackError, DriveDisconnectedError, SourceReadError
from colabstage.sources.http_file import open_http
from colabstage.sources.remote import MountedFile
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault
from tests.support.archives import tar_bytes, zip_bytes
from tests.support.deadlines import lose_patience, shorten_deadlines
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.images import make_tree, noise
from tests.support.made_files import npy
from tests.support.numbered import SIDE, note_numbers, numbers_of, write_archive
from tests.support.staged import SMALL_BLOCK, use_small_blocks
from tests.support.steps import Meanwhile, wait_until

pytestmark = pytest.mark.torch

COUNT, BATCH = 120, 8
FILES = {f"{('cat', 'dog')[n % 2]}/{n:04}.png": noise(n, size=(110, 110)) for n in range(COUNT)}
# Four tries and the waits between them, on a busy machine.
DEADLINE_S = 20.0


@pytest.fixture
def drive_knobs() -> DriveKnobs:
    """Slow enough for an epoch to be left in the middle."""
    usual = replace(DriveKnobs.quick().scaled(), warm_open_latency_s=0.01)
    return replace(usual, cold_open_latency_s=0.03, stream_bytes_per_s=4e6, parallel_requests=4)


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait one second, instead of 45 s for a mount and half a minute for each response of a server."""
    shorten_deadlines("machine", 0.5, monkeypatch.setattr)
    lose_patience("sources", 0.5, monkeypatch.setattr)
    defaults: Any = open_http.__kwdefaults__
    monkeypatch.setitem(defaults, "timeout_s", 0.5)


@dataclass
class Where:
    """A slow source, on Drive or on the web, and ways to disturb and heal it."""

    drive: SimulatedDrive | None = None
    server: WebServer | None = None

    def trouble(self, how: str) -> None:
        if self.server is not None:
            self.server.set_faults(WebFault(kind=how, min_bytes=4000))  # type: ignore[arg-type]
            # Otherwise a response that is being sent would continue for as long as the test.
            self.server.hang_up()
            return
        assert self.drive is not None
        if how == "dies":
            self.drive.kill()
        elif how == "hangs":
            self.drive.hang()
        else:
            # For files that were already open, reads do not fail.
            ops = tuple(OpFault(op=op, errno=errno.EIO) for op in ("read", "open"))
            self.drive.set_faults(DriveFaults(ops=ops))

    def heal(self) -> None:
        if self.server is not None:
            self.server.set_faults()
            self.server.set_knobs(WebKnobs())
            return
        assert self.drive is not None
        place = self.drive.mountpoint
        self.drive.go_on()
        self.drive.set_faults(DriveFaults())
        if not self.drive.is_alive():
            assert place is not None
            self.drive.unmount()
            self.drive.mount(place)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def pixels(batches: Any) -> Iterator[bytes]:
    return (x.numpy().tobytes() for x, _ in batches)


on_drive = pytest.mark.fuse


@pytest.mark.parametrize(
    ("source", "how", "kind"),
    [
        # Each source, and each trouble, once.
        pytest.param("folder", "dies", DriveDisconnectedError, marks=[on_drive, pytest.mark.long]),
        pytest.param("folder", "fails", SourceReadError, marks=on_drive),
        pytest.param("zip", "dies", DriveDisconnectedError, marks=on_drive),
        pytest.param("cache", "hangs", DriveDisconnectedError, marks=on_drive),
        ("web", "stall", SourceReadError),
    ],
)
def test_what_is_streamed(
    source: str,
    how: str,
    kind: type[ColabstageError],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its type, both in the loop and for a waiting caller; verified data is kept, and batches are the original
    ones."""
    options: dict[str, Any] = {"cache_dir": None}
    if source == "web":
        archive = write_archive(tmp_path / "photos.zip", 90)  # large enough not to arrive at once
        server = WebServer({"photos.zip": archive}, knobs=WebKnobs(bytes_per_s=4e5))
        where = Where(server=stack.enter_context(server))
        address: Any = server.url("photos.zip")
    else:
        drive, my_drive = request.getfixturevalue("drive"), request.getfixturevalue("my_drive")
        where, cloud = Where(drive), drive.cloud / "MyDrive"
        address = my_drive / ("photos.zip" if source == "zip" else "photos")
        make_tree(cloud, {"photos.zip": zip_bytes(FILES)} if source == "zip" else {})
        if source == "folder":
            make_tree(cloud / "photos", FILES)
        else:
            use_small_blocks(monkeypatch)
        if source == "cache":
            address = make_tree(tmp_path / "photos", FILES)
            options = {"cache_dir": my_drive / "cache"}
            stage_dataset(address, local_dir=tmp_path / "first", cache_dir=cloud / "cache", progress=False)

    def stage() -> Any:
        return stage_dataset(address, local_dir=tmp_path / "fast", progress=False, streaming=True, **options)

    data = stage()
    batches = pixels(data.loader("train", BATCH))
    seen = list(islice(batches, 2))
    # A folder's first rows arrive one by one, and count together with their neighbours.
    wait_until(lambda: data.ready.rows > (70 if source == "folder" else 1))
    where.trouble(how)
    began = time.monotonic()
    with pytest.raises(kind) as failed:
        seen.extend(batches)
    with pytest.raises(kind):
        data.wait(progress=False)
    assert time.monotonic() - began < DEADLINE_S
    assert failed.type is kind
    where.heal()
    again = stage()
    assert again.ready.rows >= data.ready.rows // 2
    assert list(pixels(again.loader("train", BATCH)))[: len(seen)] == seen
    # Data that had arrived before is not requested again.
    assert again.figures["kept"] > 0
    again.wait(progress=False)


ROWS = 3000
# Enough for the index and the edges, and for twelve of the 46 blocks.
LIMIT = 2_900_000 + 12 * SMALL_BLOCK


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        pytest.param("dies", DriveDisconnectedError, marks=on_drive),
        pytest.param("stall", SourceReadError, marks=pytest.mark.long),  # as it is streamed
        ("hang", SourceReadError),
    ],
)
def test_what_is_read_in_part(
    how: str,
    kind: type[ColabstageError],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Local blocks stay, and the loader continues where it was."""
    use_small_blocks(monkeypatch)
    x = np.random.default_rng(0).integers(0, 256, (ROWS, 10, 33, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=np.arange(ROWS) % 2)
    pack = stage_dataset(tmp_path / "data.npz", local_dir=tmp_path / "made", cache_dir=None, progress=False).path
    with h5py.File(pack) as file:
        x = file["X_train"][()]
    files = {"data.h5": pack.read_bytes(), "data.h5.json": pack.with_suffix(".h5.json").read_bytes()}
    if how == "dies":
        drive, address = request.getfixturevalue("drive"), request.getfixturevalue("my_drive") / "data.h5"
        make_tree(drive.cloud / "MyDrive", files)
        where = Where(drive)
    else:
        server = stack.enter_context(WebServer(files, knobs=WebKnobs(bytes_per_s=1e6)))
        where, address = Where(server=server), server.url("data.h5")
    dataset = dataset_h5(address, disk_limit=LIMIT, local_dir=tmp_path / "part", return_index=True)
    stack.callback(dataset.close)
    loader, rows = make_loader(dataset, 50, seed=1), list[int]()

    def train(*, troubled_at: int = -1) -> None:
        for number, ((batch, _), index) in enumerate(loader):
            np.testing.assert_array_equal(batch.permute(0, 2, 3, 1).numpy(), x[index.numpy()])
            rows.extend(index.tolist())
            if number == troubled_at:
                where.trouble(how)

    began = time.monotonic()
    with pytest.raises(kind, match=r"\d+"):
        train(troubled_at=2)
    assert time.monotonic() - began < DEADLINE_S
    assert 0 < len(rows) < ROWS
    where.heal()
    loader.load_state_dict(loader.state_dict())
    train()
    assert sorted(rows) == list(range(ROWS))


def test_a_cached_pack_that_is_damaged_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call would end in the same way, so the error suggests another one."""
    use_small_blocks(monkeypatch)
    archive = write_archive(tmp_path / "a.zip", COUNT // 2)
    places: dict[str, Any] = {"cache_dir": tmp_path / "cache", "progress": False, "image_size": (SIDE, SIDE)}
    stage_dataset(archive, local_dir=tmp_path / "first", **places)
    read_range, is_damaged = MountedFile.read_range, threading.Event()

    def slowly(self: MountedFile, offset: int, length: int | None) -> Iterator[bytes]:
        is_damaged.wait(0.2)
        yield from read_range(self, offset, length)

    monkeypatch.setattr(MountedFile, "read_range", slowly)

    def stage(**arguments: Any) -> Any:
        return stage_dataset(archive, local_dir=tmp_path / "fast", streaming=True, **places, **arguments)

    data = stage()
    seen: list[int] = []
    batches = iter(data.loader("train", 4))
    note_numbers([next(batches)], seen)
    (cached,) = (tmp_path / "cache").glob("*.h5")
    # In place, like a bad disk: open files see it too.
    with cached.open("r+b") as file:
        file.seek(cached.stat().st_size // 2)
        file.write(bytes(cached.stat().st_size // 4))
    is_damaged.set()
    with pytest.raises(DamagedPackError, match="refresh=True"):
        note_numbers(batches, seen)
    again = stage()
    for use in (data.wait, again.wait, lambda **_: next(iter(again.loader("train", 4)))):
        with pytest.raises(DamagedPackError, match="refresh=True"):
            use(progress=False)
    assert set(seen) < set(range(COUNT // 2))
    data = stage(refresh=True)
    assert sorted(numbers_of(data.loader("train", 4))) == list(range(COUNT // 2))
    data.wait(progress=False)


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "x.npy": lambda array: array,
    "x.zip": lambda array: zip_bytes({"x.npy": array}, method=0),
    # In two pieces.
    "x.tar.001": lambda array: tar_bytes({"x.npy": array}),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_local_file_that_is_rewritten_in_place_is_no_mixture(name: str, tmp_path: Path) -> None:
    """With the same size, first its end, then its beginning."""
    before, after = (FORMS[name](npy(np.full((60, 100, 100, 3), value, np.uint8))) for value in (1, 2))
    source, half = tmp_path / name, len(after) // 2
    is_cut = source.suffix == ".001"
    end = source.with_suffix(".002") if is_cut else source
    todo = [(end, 0 if is_cut else half, after[half:]), (source, 0, after[:half])]
    source.write_bytes(before[:half])
    with end.open("ab") as file:
        file.write(before[half:])

    def rewrite() -> None:
        while todo:
            path, offset, content = todo.pop(0)
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(content)

    places: dict[str, Any] = {"local_dir": tmp_path / "local", "cache_dir": None}
    staged = stage_dataset(source, progress=Meanwhile(rewrite), **places)
    with h5py.File(staged.path) as file:
        (rows,) = (file[key][()] for key in file if key.startswith("X_"))
    assert np.unique(rows).tolist() == [2]
    assert any("written to while" in note for note in staged.report.notes)
    assert stage_dataset(source, progress=False, **places).report.origin == "local"

"""The same is proved, never assumed: what is served is of the source as it is, or the report says what was not seen."""

from __future__ import annotations

import io
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import stage_dataset
from colabstage.errors import NotEnoughSpaceError
from colabstage.io.receipts import file_seal
from colabstage.sources import look as looking
from colabstage.sources.identity import MD5_PROOF
from colabstage.sources.look import check_freshness
from colabstage.sources.parse import parse_source
from colabstage.stage.record import read_record, write_record
from colabstage.stage.request import make_request
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage import StagedDataset
    from colabstage.sources.identity import SourceIdentity
    from simulated_drive.drive import SimulatedDrive


def bmp(value: int) -> bytes:
    """An image of one colour; all have the same length."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(buffer, "BMP")
    return buffer.getvalue()


def write_colours(folder: Path, colours: dict[str, int]) -> Path:
    """Images of one colour each."""
    for name, value in colours.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bmp(value))
    return folder


def colours_of(staged: StagedDataset) -> dict[str, int]:
    """The colour of each row, by the name of its file; of plain files, of each."""
    if staged.info is None:
        return {
            str(path.relative_to(staged.path)): int(np.asarray(Image.open(path))[0, 0, 0])
            for path in staged.path.rglob("*.bmp")
        }
    with h5py.File(staged.path) as file:
        return {key.decode(): int(x[0, 0, 0]) for key, x in zip(file["key_train"][()], file["X_train"], strict=True)}


def stage(source: Any, **options: Any) -> StagedDataset:
    """In silence, and without a cache unless the test wants one."""
    return stage_dataset(source, **{"progress": False, "cache_dir": None, **options})


COLOURS = {f"{kind}/{number}.bmp": 10 * number for kind in ("cat", "dog") for number in range(4)}


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """Eight images of the same length."""
    return write_colours(tmp_path / "colours", COLOURS)


def spoil(pack: Path) -> None:
    """Write into the pixels, as a disk does: nobody wrote to the file, so its time stays."""
    found = pack.stat()
    with h5py.File(pack) as file:
        offset = file["X_train"].id.get_offset()
    with pack.open("r+b") as raw:
        raw.seek(offset)
        raw.write(b"\xee" * 100)
    os.utime(pack, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("keep", ["pack", "both"])
def test_bringing_files_does_not_vouch_for_an_older_pack(colours: Path, keep: str) -> None:
    stage(colours)
    now = {**COLOURS, "cat/new.bmp": 99}
    write_colours(colours, now)
    assert colours_of(stage(colours, keep="files")) == now
    again = stage(colours, keep=keep)
    assert colours_of(again) == now
    assert again.report.origin == "source"


def test_bringing_files_does_not_vouch_for_a_damaged_pack(colours: Path) -> None:
    first = stage(colours, keep="both")
    assert first.files is not None
    spoil(first.path)
    stage(colours, keep="files", verify="full")
    again = stage(colours)
    assert again.report.origin == "source"
    assert colours_of(again) == COLOURS


def test_who_asks_for_all_bytes_has_all_of_them_compared(colours: Path) -> None:
    first = stage(colours)
    spoil(first.path)
    request = make_request(colours, cache_dir=None)
    record = read_record(request)
    assert record is not None
    write_record(request, replace(record, seal=file_seal(first.path)))
    assert stage(colours).report.origin == "local"
    again = stage(colours, verify="full")
    assert again.report.origin == "source"
    assert colours_of(again) == COLOURS


def test_plain_files_are_brought_once_for_each_state_and_each_refresh(colours: Path) -> None:
    """Those that are here are used by a call that packs too; those of a state before the pack's are not."""

    def fetched(**options: Any) -> bool:
        staged = stage(colours, **options)
        assert staged.files is not None
        assert colours_of(replace(staged, path=staged.files, info=None)) == now
        return "fetch files" in [step.name for step in staged.report.steps]

    now = COLOURS
    assert fetched(keep="files")
    assert fetched(keep="files", refresh=True)
    assert not fetched(keep="both")
    now = {**COLOURS, "cat/new.bmp": 99}
    write_colours(colours, now)
    assert colours_of(stage(colours, keep="pack")) == now
    assert fetched(keep="files")


def test_a_pack_stays_vouched_for_when_files_are_brought_beside_it(colours: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache"}
    stage(colours, **options)
    request = make_request(colours, **options)
    before = read_record(request)
    assert before is not None
    stage(colours, keep="files", **options)
    after = read_record(request)
    assert after is not None
    assert (after.seal, after.published) == (before.seal, True)
    assert [step.name for step in stage(colours, **options).report.steps] == ["look"]


def test_what_nobody_can_compare_is_never_the_same(colours: Path) -> None:
    lock = threading.Lock()

    def guarded(x: Any) -> Any:
        with lock:
            return x

    paths = set()
    for _ in range(2):
        staged = stage(colours, prepare=guarded)
        assert staged.report.origin == "source"
        assert any("_thread.lock" in note for note in staged.report.notes)
        paths.add(staged.path)
    assert len(paths) == 1


def slow_stat(monkeypatch: pytest.MonkeyPatch, folder: Path, wait: Callable[[], object]) -> None:
    """Make each look at a folder below another take its time."""
    real = os.stat

    def stat(path: Any, *args: Any, **options: Any) -> Any:
        if isinstance(path, str) and path.startswith(f"{folder}/"):
            wait()
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)


def test_slow_is_not_gone(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers is waited for, however long all of it takes: only silence ends a look."""
    write_colours(colours, {f"c{number}/0.bmp": number for number in range(30)})
    source, identity = parse_source(colours), staged_identity(colours)
    (colours / "c7" / "0.bmp").unlink()
    pause = threading.Event()
    slow_stat(monkeypatch, colours, lambda: pause.wait(0.02))
    assert check_freshness(source, identity, workers=1, silence_s=0.3).state == "changed"


def staged_identity(source: Path) -> SourceIdentity:
    """The state in which a source was staged."""
    stage(source)
    record = read_record(make_request(source))
    assert record is not None
    return record.identity


def test_silence_is_an_answer_of_its_own(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(colours)
    wake = threading.Event()
    slow_stat(monkeypatch, colours, wake.wait)
    monkeypatch.setattr(looking, "_SILENCE_S", 0.2)
    staged = stage(colours)
    wake.set()
    assert staged.report.origin == "local"
    assert any("not known (nothing arrived from it for" in note for note in staged.report.notes)


def test_auto_finds_another_encoding_where_the_cached_one_does_not_fit(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    options: dict[str, Any] = {"cache_dir": cache, "image_size": (512, 512)}
    stage(photos, **options)
    (pack,) = cache.glob("*.h5")
    before = pack.read_bytes()
    for module in ("machine.resources", "pack.execute", "stage.run"):
        monkeypatch.setattr(f"colabstage.{module}.free_space", lambda _: len(before) // 2)
    staged = stage(photos, local_dir=tmp_path / "two", **options)
    assert staged.info is not None
    assert staged.info.encoding == "encoded"
    assert pack.read_bytes() == before
    with pytest.raises(NotEnoughSpaceError):
        stage(photos, local_dir=tmp_path / "three", encoding="pixels", **options)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"version": 1, "files": [1e400, 2]}', '{"version": 1, "seal": 7}', '{"version": 1e0}', "NaN"],
    ids=["deep", "infinite", "of another type", "a float", "no number"],
)
def test_a_record_that_is_none_is_none(colours: Path, text: str) -> None:
    first = stage(colours)
    place = first.path.with_name("stage.json")
    place.write_text(text, encoding="utf-8")
    again = stage(colours)
    assert again.report.origin == "local"
    assert colours_of(again) == COLOURS
    assert stage(colours, keep="both", verify="full").files is not None


def later(path: Path) -> None:
    """Let a file's time be another second's."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 5_000_000_000))


def rewrite(path: Path, data: bytes) -> None:
    """Put other bytes under a name in the cloud; the file's size and its time stay, and so does its folder's time."""
    found, folder = path.stat(), path.parent.stat()
    assert len(data) == found.st_size
    other = path.with_suffix(".other")
    other.write_bytes(data)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)
    os.utime(path.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))


def look_of(staged: StagedDataset) -> str:
    """What the report says of the look at what is here."""
    return next(step.note for step in staged.report.steps if step.name == "look")


class TestToldByDrive:
    pytestmark = pytest.mark.fuse

    @pytest.mark.parametrize("verify", ["fast", "full"])
    def test_a_file_that_was_rewritten_in_place(self, drive: SimulatedDrive, my_drive: Path, verify: str) -> None:
        cloud = write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours")
        staged = stage(my_drive / "colours", verify=verify)
        assert staged.report.origin == "local"
        assert MD5_PROOF in look_of(staged)
        rewrite(cloud / "cat" / "1.bmp", bmp(250))
        staged = stage(my_drive / "colours", verify=verify)
        assert staged.report.origin == "source"
        assert colours_of(staged)["cat/1.bmp"] == 250


class TestOnDrive:
    pytestmark = pytest.mark.fuse

    @pytest.fixture
    def drive_knobs(self) -> DriveKnobs:
        """Attributes are not answered."""
        return replace(DriveKnobs.quick(), attributes=False)

    def again(self, source: Path, drive: SimulatedDrive, tmp_path: Path) -> None:
        """Mount a Drive anew on a machine that has nothing but the cache."""
        drive.unmount()
        drive.new_machine()
        drive.mount(tmp_path / "content" / "drive")

    def test_a_quick_look_says_what_it_did_not_see(self, drive: SimulatedDrive, my_drive: Path) -> None:
        write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours")
        staged = stage(my_drive / "colours")
        assert staged.report.origin == "local"
        assert "a file rewritten under its name would not be noticed" in staged.report.steps[0].note

    def test_all_other_times_prove_nothing(
        self, drive: SimulatedDrive, my_drive: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("colabstage.sources.identity._GROUPS", 4)
        cloud = write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours")
        for path in cloud.rglob("*.bmp"):
            later(path)
        (cloud / "cat" / "x").mkdir()  # the folders' times are no answer
        staged = stage(my_drive / "colours")
        assert staged.report.origin == "local"
        assert any("all times differ" in note for note in staged.report.notes)
        assert stage(my_drive / "colours", verify="full").report.origin == "source"

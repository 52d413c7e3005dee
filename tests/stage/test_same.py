"""The same is proved, never assumed: what is served is of the source as it is, or the report says what was not seen."""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage.errors import NotEnoughSpaceError, TargetExistsError
from colabstage.sources import look as looking
from colabstage.sources.fetching import fetch_files
from colabstage.sources.identity import MD5_PROOF, file_seal
from colabstage.sources.look import check_freshness
from colabstage.sources.parse import parse_source
from colabstage.stage.record import read_record, write_record
from colabstage.stage.request import make_request
from colabstage.stage.run import stage_dataset
from colabstage.trees.listing import FileEntry, TreeKind
from simulated_drive.knobs import DriveFaults, DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.sources.identity import SourceIdentity
    from colabstage.stage.dataset import StagedDataset
    from simulated_drive.drive import SimulatedDrive

MakeImages = Callable[..., Path]


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
    """After `keep="files"` of a newer state, the pack that stands there is still of the older one."""
    stage(colours)
    now = {**COLOURS, "cat/new.bmp": 99}
    write_colours(colours, now)
    assert colours_of(stage(colours, keep="files")) == now
    again = stage(colours, keep=keep)
    assert colours_of(again) == now
    assert again.report.origin == "source"


def test_bringing_files_does_not_vouch_for_a_damaged_pack(colours: Path) -> None:
    """A seal is written by who made or checked the pack in that call, and by nobody else."""
    first = stage(colours, keep="both")
    assert first.files is not None
    spoil(first.path)
    stage(colours, keep="files", verify="full")
    again = stage(colours)
    assert again.report.origin == "source"
    assert colours_of(again) == COLOURS


def test_who_asks_for_all_bytes_has_all_of_them_compared(colours: Path) -> None:
    """Of a pack whose seal is whole: a disk that loses bytes writes no time."""
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
    """Of the same state, an earlier call's seal stands: nothing is hashed or packed again, nor published again."""
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


class MemoryTree:
    """Files that lie in memory, without times."""

    kind: TreeKind = "folder"
    notes: tuple[str, ...] = ()

    def __init__(self, label: str, files: dict[str, bytes]) -> None:
        self.label = label
        self._files = files
        self.entries = tuple(FileEntry(name, len(data), 0, at) for at, (name, data) in enumerate(sorted(files.items())))

    def read(self, entry: FileEntry) -> bytes:
        """One of them."""
        return self._files[entry.name]

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """One of them, at once."""
        yield self._files[entry.name]

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> MemoryTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_trees_in_memory_are_told_apart_by_what_they_hold() -> None:
    """One label, the same names and sizes: two datasets, and both stay."""
    one, other = ({name: bmp(value + add) for name, value in COLOURS.items()} for add in (0, 1))
    first, second = stage(MemoryTree("mine", one)), stage(MemoryTree("mine", other))
    assert colours_of(first) == COLOURS
    assert colours_of(second) == {name: value + 1 for name, value in COLOURS.items()}
    assert stage(MemoryTree("mine", one)).report.origin == "local"


def test_the_order_of_splits_is_part_of_the_key(colours: Path) -> None:
    """It decides which rows each of them gets."""
    one, other = ({"train": 0.5, "test": 0.5}, {"test": 0.5, "train": 0.5})
    assert make_request(colours, splits=one).key != make_request(colours, splits=other).key
    assert make_request(colours, splits=one).key == make_request(colours, splits=dict(one)).key


FACTOR = np.array([1, 1, 1], np.uint8)


def scaled(x: Any) -> Any:
    """Multiply by a global array."""
    return x * FACTOR


def test_another_value_of_a_global_is_another_dataset(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a function names counts as much as its own text."""
    assert colours_of(stage(colours, prepare=scaled)) == COLOURS
    monkeypatch.setitem(globals(), "FACTOR", np.array([2, 2, 2], np.uint8))
    assert colours_of(stage(colours, prepare=scaled)) == {name: 2 * value for name, value in COLOURS.items()}


def test_what_nobody_can_compare_is_never_the_same(colours: Path) -> None:
    """A lock in a closure could be anything: each call packs anew, into the same place, and says why."""
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
    """A mount that hangs: what was staged is used, and the report says that nobody knows whether it is the same."""
    stage(colours)
    wake = threading.Event()
    slow_stat(monkeypatch, colours, wake.wait)
    monkeypatch.setattr(looking, "_SILENCE_S", 0.2)
    staged = stage(colours)
    wake.set()
    assert staged.report.origin == "local"
    assert any("not known (nothing arrived from it for" in note for note in staged.report.notes)


def test_auto_says_when_room_decided(colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pack of a full disk travels by the cache; where it is used, the report says so and how to ask again."""
    cache = tmp_path / "cache"
    monkeypatch.setattr("colabstage.stage.run.space_for", lambda _: 100)
    monkeypatch.setattr("colabstage.stage.run.check_space", lambda *_, **__: None)
    assert stage(colours, cache_dir=cache).report.origin == "source"
    monkeypatch.undo()
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    for place, origin in ((tmp_path / "two", "cache"), (tmp_path / "two", "local")):
        staged = stage(colours, cache_dir=cache, local_dir=place)
        assert staged.report.origin == origin
        assert any("refresh=True decides by what is free now" in note for note in staged.report.notes)
    asked = stage(colours, cache_dir=cache, local_dir=tmp_path / "two", refresh=True)
    assert asked.info is not None
    assert asked.info.encoding == "pixels"
    assert not any("refresh=True" in note for note in asked.report.notes)


def test_auto_finds_another_encoding_where_the_cached_one_does_not_fit(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger machine's pack stays in the cache as it is."""
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
    """Whatever stands in `stage.json`, the pack's own manifest and hashes decide."""
    first = stage(colours)
    place = first.path.with_name("stage.json")
    place.write_text(text, encoding="utf-8")
    again = stage(colours)
    assert again.report.origin == "local"
    assert colours_of(again) == COLOURS
    assert stage(colours, keep="both", verify="full").files is not None


@pytest.mark.parametrize("change", [{"block_bytes": -1, "hashes": []}, {"size": 1 << 70}, {"samples": {"train": -8}}])
def test_a_manifest_that_cannot_be_is_none(colours: Path, change: dict[str, Any]) -> None:
    """A damaged pack is not served because its manifest has nothing to hash."""
    import json

    first = stage(colours)
    spoil(first.path)
    place = first.path.with_name(f"{first.path.name}.json")
    place.write_text(json.dumps({**json.loads(place.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    # Nothing proves any more that colabstage wrote it.
    with pytest.raises(TargetExistsError, match=first.path.name):
        stage(colours)
    first.path.unlink()
    again = stage(colours)
    assert again.report.origin == "source"
    assert colours_of(again) == COLOURS


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
    """What Drive's client tells of the content decides, whatever the times are."""

    pytestmark = pytest.mark.fuse

    @pytest.mark.parametrize("verify", ["fast", "full"])
    def test_a_file_that_was_rewritten_in_place(self, drive: SimulatedDrive, my_drive: Path, verify: str) -> None:
        """One of many, of the same size and time, in folders whose times are the same: noticed in the same session."""
        cloud = write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours")
        staged = stage(my_drive / "colours", verify=verify)
        assert staged.report.origin == "local"
        assert MD5_PROOF in look_of(staged)
        rewrite(cloud / "cat" / "1.bmp", bmp(250))
        staged = stage(my_drive / "colours", verify=verify)
        assert staged.report.origin == "source"
        assert colours_of(staged)["cat/1.bmp"] == 250

    def test_other_times_of_all_files(
        self, drive: SimulatedDrive, my_drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after a remount: the content is the same, so nothing is read again, here or on a new machine."""
        monkeypatch.setattr("colabstage.sources.identity._GROUPS", 4)
        cloud = write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours", cache_dir="auto")
        for path in (*cloud.rglob("*"), cloud):
            later(path)
        for verify in ("fast", "full"):
            staged = stage(my_drive / "colours", cache_dir="auto", verify=verify)
            assert staged.report.origin == "local"
            assert staged.report.notes == []
        drive.unmount()
        drive.new_machine()
        drive.mount(tmp_path / "content" / "drive")
        shutil.rmtree(tmp_path / "fast")
        assert stage(my_drive / "colours", cache_dir="auto").report.origin == "cache"

    def test_a_single_file(self, drive: SimulatedDrive, my_drive: Path) -> None:
        """Other bytes in its middle under the old size and time are noticed; the same bytes at another time are not."""
        place = drive.cloud / "MyDrive" / "x.npy"
        rows = np.zeros((1_500, 128), np.uint8)
        np.save(place, rows)
        stage(my_drive / "x.npy")
        later(place)
        assert stage(my_drive / "x.npy").report.origin == "local"
        rows[750] = 9
        buffer = io.BytesIO()
        np.save(buffer, rows)
        rewrite(place, buffer.getvalue())
        staged = stage(my_drive / "x.npy")
        with h5py.File(staged.path) as file:
            assert int(file["X_train"][()].sum()) == 9 * 128

    def test_a_copy(self, drive: SimulatedDrive, my_drive: Path, tmp_path: Path) -> None:
        """What was fetched without packing is fetched again."""
        cloud = write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        fetch_files(my_drive / "colours", tmp_path / "copy", progress=False)
        rewrite(cloud / "dog" / "2.bmp", bmp(251))
        fetch_files(my_drive / "colours", tmp_path / "copy", progress=False)
        assert (tmp_path / "copy" / "dog" / "2.bmp").read_bytes() == bmp(251)

    def test_files_in_a_list(self, drive: SimulatedDrive, my_drive: Path) -> None:
        """Each of them is asked for."""
        cloud = write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        files = [my_drive / "colours" / name for name in COLOURS]
        stage(files)
        for path in cloud.rglob("*.bmp"):
            later(path)
        assert stage(files).report.origin == "local"
        rewrite(cloud / "dog" / "3.bmp", bmp(252))
        assert 252 in colours_of(stage(files)).values()

    @pytest.mark.parametrize("seen_before", [True, False])
    def test_what_a_look_costs(
        self,
        drive: SimulatedDrive,
        my_drive: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        seen_before: bool,
    ) -> None:
        """Each folder is listed once and each file asked two questions, here as on a machine that takes the cache."""
        write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        cache = tmp_path / "cache"
        stage(my_drive / "colours", cache_dir=cache)
        asked: Counter[tuple[str, str]] = Counter()
        getxattr = os.getxattr

        def counted(path: str, name: str) -> bytes:
            asked[path, name] += 1
            return getxattr(path, name)

        monkeypatch.setattr(os, "getxattr", counted)
        before = drive.stats()
        staged = stage(
            my_drive / "colours", cache_dir=cache, **({} if seen_before else {"local_dir": tmp_path / "new"})
        )
        assert staged.report.origin == ("local" if seen_before else "cache")
        listings = [found.listings_cold + found.listings_warm for found in (before, drive.stats())]
        assert listings[1] - listings[0] == 3
        questions = ("user.drive.uncommitted", "user.drive.md5")
        assert asked == {(str(my_drive / "colours" / name), question): 1 for name in COLOURS for question in questions}

    @pytest.mark.parametrize("late", ["dog", "cat/more"])
    def test_files_are_asked_for_while_others_are_listed(
        self, drive: SimulatedDrive, my_drive: Path, monkeypatch: pytest.MonkeyPatch, late: str
    ) -> None:
        """Beside a folder that is slow to list, and above one: a look has few questions left when the listing ends."""
        write_colours(drive.cloud / "MyDrive" / "colours", {**COLOURS, "cat/more/9.bmp": 90})
        stage(my_drive / "colours")
        asked, listed_after = threading.Event(), []
        getxattr, scandir = os.getxattr, os.scandir

        def ask(path: str, name: str) -> bytes:
            if "/cat/" in path and late not in path:
                asked.set()
            return getxattr(path, name)

        def scan(path: Any) -> Any:
            if isinstance(path, str) and path.endswith(f"colours/{late}"):
                listed_after.append(asked.wait(20))
            return scandir(path)

        monkeypatch.setattr(os, "getxattr", ask)
        monkeypatch.setattr(os, "scandir", scan)
        assert MD5_PROOF in look_of(stage(my_drive / "colours"))
        assert listed_after[0]

    @pytest.mark.parametrize("keep", ["pack", "both"])
    def test_each_file_is_asked_for_before_it_is_read(
        self, drive: SimulatedDrive, my_drive: Path, monkeypatch: pytest.MonkeyPatch, keep: str
    ) -> None:
        """Once, and not while folders are listed: a file that is rewritten after its answer shows in the next call."""
        cloud = write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        happened: list[tuple[str, str]] = []
        getxattr, open_file = os.getxattr, os.open

        def ask(path: str, name: str) -> bytes:
            answer = getxattr(path, name)
            if name == "user.drive.md5":
                happened.append(("told", path))
                if path.endswith("cat/1.bmp"):
                    rewrite(cloud / "cat" / "1.bmp", bmp(250))
            return answer

        def read(path: Any, *arguments: Any, **options: Any) -> int:
            happened.append(("read", str(path)))
            return open_file(path, *arguments, **options)

        monkeypatch.setattr(os, "getxattr", ask)
        monkeypatch.setattr(os, "open", read)
        stage(my_drive / "colours", keep=keep)
        for name in COLOURS:
            path = str(my_drive / "colours" / name)
            assert happened.index(("told", path)) < happened.index(("read", path))
            assert happened.count(("told", path)) == 1
        staged = stage(my_drive / "colours")
        assert (staged.report.origin, colours_of(staged)["cat/1.bmp"]) == ("source", 250)

    def test_what_is_not_uploaded_has_no_md5_that_counts(self, drive: SimulatedDrive, my_drive: Path) -> None:
        """The cloud's is that of the content before, so times and sizes count."""
        write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours")
        drive.set_faults(DriveFaults(stall_uploads=True))
        (my_drive / "colours" / "cat" / "1.bmp").write_bytes(bmp(250))
        later(my_drive / "colours" / "cat" / "1.bmp")
        staged = stage(my_drive / "colours")
        assert (staged.report.origin, colours_of(staged)["cat/1.bmp"]) == ("source", 250)
        staged = stage(my_drive / "colours")
        assert staged.report.origin == "local"
        assert "a file rewritten under its name would not be noticed" in look_of(staged)

    def test_a_client_that_tells_no_more(self, drive: SimulatedDrive, my_drive: Path, tmp_path: Path) -> None:
        """Names, sizes and times are compared, and the report says so, with the reason."""
        write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours")
        drive.unmount()
        drive.knobs = replace(drive.knobs, attributes=False)
        drive.mount(tmp_path / "content" / "drive")
        staged = stage(my_drive / "colours")
        assert staged.report.origin == "local"
        assert "names, sizes and times of all files are unchanged" in look_of(staged)
        assert os.strerror(errno.EOPNOTSUPP) in look_of(staged)


class TestOnDrive:
    """Changes that keep every size, on a Drive whose client tells no MD5, and on a machine that has not seen it."""

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

    @pytest.mark.parametrize("verify", ["fast", "full"])
    def test_a_file_of_many(self, drive: SimulatedDrive, my_drive: Path, tmp_path: Path, verify: str) -> None:
        """One image is another one of the same length: noticed on request, and on any new machine."""
        cloud = write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours", cache_dir="auto")
        (cloud / "cat" / "1.bmp").write_bytes(bmp(250))
        later(cloud / "cat" / "1.bmp")
        self.again(my_drive, drive, tmp_path)
        if verify == "fast":
            shutil.rmtree(tmp_path / "fast")
        staged = stage(my_drive / "colours", cache_dir="auto", verify=verify)
        assert staged.report.origin == "source"
        assert colours_of(staged)["cat/1.bmp"] == 250

    def test_a_quick_look_says_what_it_did_not_see(self, drive: SimulatedDrive, my_drive: Path) -> None:
        """Folders' times alone are asked in a later call of the same session."""
        write_colours(drive.cloud / "MyDrive" / "colours", COLOURS)
        stage(my_drive / "colours")
        staged = stage(my_drive / "colours")
        assert staged.report.origin == "local"
        assert "a file rewritten under its name would not be noticed" in staged.report.steps[0].note

    @pytest.mark.parametrize("verify", ["fast", "full"])
    def test_the_middle_of_an_array(self, drive: SimulatedDrive, my_drive: Path, verify: str) -> None:
        """Its size and both its ends are the same; its time is another one."""
        place = drive.cloud / "MyDrive" / "x.npy"
        rows = np.zeros((40, 16_000), np.uint8)
        np.save(place, rows)
        stage(my_drive / "x.npy")
        rows[20, :16] = 9
        np.save(place, rows)
        later(place)
        staged = stage(my_drive / "x.npy", verify=verify)
        with h5py.File(staged.path) as file:
            assert int(file["X_train"][()].sum()) == 9 * 16

    def test_a_stored_zip(self, drive: SimulatedDrive, my_drive: Path, tmp_path: Path) -> None:
        """One of 1,500 members is another one, sizes and both ends are the same: its directory's checksums tell."""

        def pack(value: int) -> None:
            with zipfile.ZipFile(drive.cloud / "MyDrive" / "set.zip", "w") as archive:
                for number in range(1500):
                    name = zipfile.ZipInfo(f"{('cat', 'dog')[number % 2]}/{'image' * 10}{number:05d}.bmp")
                    archive.writestr(name, bmp(value if number == 300 else number % 200))

        pack(100)
        found = (drive.cloud / "MyDrive" / "set.zip").stat()
        key = f"cat/{'image' * 10}00300.bmp"
        assert colours_of(stage(my_drive / "set.zip", cache_dir="auto"))[key] == 100
        pack(77)
        place = drive.cloud / "MyDrive" / "set.zip"
        later(place)
        staged = stage(my_drive / "set.zip", cache_dir="auto")
        assert (staged.report.origin, colours_of(staged)[key]) == ("source", 77)
        # The same content under another time is the same: the directory proves it.
        os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns - 10**12))
        shutil.rmtree(tmp_path / "fast")
        assert stage(my_drive / "set.zip", cache_dir="auto").report.origin == "cache"

    def test_all_other_times_prove_nothing(
        self, drive: SimulatedDrive, my_drive: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after a remount: many files are taken for the same with a word of it, and read again on request."""
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

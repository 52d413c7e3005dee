"""Whatever earlier versions left on disks and Drives stays usable: packs, caches, checkpoints, states, unfinished work.

Version 0.1.0 of commit 6c4b89b0 wrote the files, by `make.py`, which 76ef0517 has beside them. git keeps no times, so
`times.json` has them; `expected.npz` has the rows as that version read them. Each test has a copy of the files at the
original path, because keys and records contain their source's path, and with the original times. As on a disk moved to
another machine, inodes and the boot differ. Unfinished work also records its owner's boot: `set_boot` writes this
test's boot there, in the format of 0.1.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage import (
    dataset_h5,
    extract_archive,
    fetch_files,
    make_loader,
    pack_dataset,
    publish_file,
    restore_file,
    stage_dataset,
)
from colabstage.errors import DamagedPackError, TargetExistsError
from tests.support.command import run_command
from tests.support.steps import Meanwhile

WRITTEN = Path(__file__).parent / "fixtures/written_by_0_1"
HOME = Path("/tmp/colabstage-0.1")
SOURCES = HOME / "sources"
PACKS = ["pixels", "encoded", "jpeg", "floats", "masks", "boxes", "tokens", "sounds", "set-0000*-of-00002"]
STAGED: dict[str, Any] = {
    "image_size": 8, "splits": 0.75, "local_dir": HOME / "local", "cache_dir": HOME / "cache", "progress": False
}  # fmt: skip
PLAIN: dict[str, Any] = {"keep": "files", "local_dir": HOME / "local", "cache_dir": None, "progress": False}
# What names the three stagings of then by the rules of today.
KEYS: dict[str, str] = {}


@pytest.fixture
def written() -> Iterator[Path]:
    """Everything that was written, where it was written; one test at a time has it."""
    with Path(f"{HOME}.lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(HOME, ignore_errors=True)  # of a killed test
        shutil.copytree(WRITTEN / "disk", HOME)
        set_times()
        yield HOME
        shutil.rmtree(HOME)


@pytest.fixture
def disk(written: Path, tmp_path: Path) -> Path:
    """The same as if it had been made by today's rules, by which what was made by older ones is made anew."""
    for was, source, options in (
        ("a37502ca", "photos", STAGED),
        ("ad0132ad", "photos.zip", STAGED),
        ("dac597bc", "photos.zip", PLAIN),
    ):
        if was not in KEYS:
            stage_dataset(SOURCES / source, **{**options, "local_dir": tmp_path / was, "cache_dir": None})
            (record,) = (tmp_path / was).rglob("stage.json")
            KEYS[was] = json.loads(record.read_text(encoding="utf-8"))["key"]
        set_key(written, was, KEYS[was])
    set_times()
    return written


def set_key(disk: Path, was: str, now: str) -> None:
    """Name a staging by another key: in its records, and in the names of its files and of its folder."""
    for path in sorted(disk.rglob(f"*{was}*"), key=lambda path: -len(path.parts)):
        for record in (path, *path.glob("*.json")):
            if record.suffix == ".json":
                text = record.read_text(encoding="utf-8")
                record.write_text(re.sub(rf'"key": "{was}\w+"', f'"key": "{now}"', text), encoding="utf-8")
        path.rename(path.with_name(path.name.replace(was, now[: len(was)])))


def set_times() -> None:
    """Give each file and folder its original time; the deepest first, because that changes the folder above."""
    times: dict[str, int] = json.loads((WRITTEN / "times.json").read_text(encoding="utf-8"))
    for name in sorted(times, key=lambda name: -name.count("/")):
        if (HOME / name).exists():
            os.utime(HOME / name, ns=(times[name], times[name]))


def set_boot(disk: Path, boot: str) -> None:
    """Pretend that the owners of unfinished work died in "this" boot, or in "another": in names and in journals'
    heads."""
    here = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"), Path("/proc/self/ns/pid").readlink()
    now = hashlib.sha256("\n".join(map(str, here)).encode()).hexdigest()[:8] if boot == "this" else "00000000"
    for path in (disk / "interrupted").iterdir():
        was = path.name.split(".")[-3].partition("-")[0]
        journal = path / "journal"
        if journal.exists():
            journal.write_bytes(journal.read_bytes().replace(was.encode(), now.encode()))
        path.rename(path.with_name(path.name.replace(was, now)))


def expected(pack: str) -> dict[str, Any]:
    """The rows of a pack as written: each part of each row by split, number and part."""
    with np.load(WRITTEN / "expected.npz") as arrays:
        return {name.removeprefix(f"{pack}/"): arrays[name] for name in arrays.files if name.startswith(f"{pack}/")}


def rows_of(path: str | Path, splits: set[str]) -> dict[str, Any]:
    """The same for a pack as it is read now."""
    rows: dict[str, Any] = {}
    for split in splits:
        dataset = dataset_h5(path, split=split)
        for number in range(len(dataset)):
            x, y = dataset[number]
            parts = y if isinstance(y, dict) else {"y": y}
            for name, value in {"x": x, **parts}.items():
                rows[f"{split}.{number}.{name}"] = np.asarray(value)
    return rows


def check_rows(path: str | Path, pack: str, *, within: int = 0) -> None:
    """Compare all rows of a pack with the originals; `within`: the greatest difference in grey levels."""
    right = expected(pack)
    found = rows_of(path, {name.partition(".")[0] for name in right})
    assert right.keys() == found.keys()
    for name, value in right.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert np.allclose(found[name], value, rtol=0, atol=within), name


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def first_line(file: Path) -> str:
    """How a text file begins."""
    return file.read_text(encoding="utf-8").partition("\n")[0]


def hidden(folder: Path) -> list[str]:
    """The unfinished work in a folder."""
    return [path.name for path in folder.iterdir() if path.suffix == ".tmp"]


@pytest.mark.parametrize("pack", PACKS)
def test_a_pack_has_the_rows_that_were_written(disk: Path, pack: str) -> None:
    """For every encoding; another release of the decoder may decode a JPEG differently."""
    check_rows(f"{disk}/packs/{pack}.h5", pack.partition("-")[0], within=3 if pack == "jpeg" else 0)


def test_manifests_vouch_for_every_block(disk: Path) -> None:
    """For packs and published files: copies are compared with them, and a changed byte is found."""
    files = [*(disk / "packs").glob("*.h5"), *(disk / "cache").glob("*.h5"), disk / "checkpoints/model.pt.previous"]
    assert len(files) == 13
    for file in files:
        restore_file(file, disk / "restored" / file.name, progress=False)
        assert (disk / "restored" / file.name).read_bytes() == file.read_bytes()
        file.write_bytes(file.read_bytes()[:-1] + b"!")
        with pytest.raises(DamagedPackError, match=re.escape(file.name)):
            restore_file(file, disk / "again" / file.name, progress=False)
    assert content(disk / "again") == {}


@pytest.mark.parametrize("source", ["photos", "photos.zip"])
def test_a_staged_pack_is_used_as_it_is(disk: Path, source: str) -> None:
    """Nothing of it is written again, although inodes and boot differ."""
    before = {path: path.stat().st_ino for path in (disk / "local").rglob("*.h5")}
    data = stage_dataset(SOURCES / source, **STAGED)
    assert data.report.origin == "local"
    assert before == {path: path.stat().st_ino for path in (disk / "local").rglob("*.h5")}
    check_rows(data.path, f"staged-{source}")


@pytest.mark.parametrize("source", ["photos", "photos.zip"])
def test_a_pack_in_the_cache_is_restored(disk: Path, source: str) -> None:
    """On a machine that has only the source and the cache."""
    shutil.rmtree(disk / "local")
    data = stage_dataset(SOURCES / source, **STAGED)
    assert data.report.origin == "cache"
    check_rows(data.path, f"staged-{source}")


def test_a_pack_of_another_state_of_its_source_is_replaced(disk: Path) -> None:
    """It is ours, locally and in the cache, where it becomes the previous version."""
    (SOURCES / "photos/cat/00.png").unlink()
    data = stage_dataset(SOURCES / "photos", **STAGED)
    assert data.report.origin == "source"
    assert sum(len(dataset_h5(data.path, split=split)) for split in ("train", "test")) == 11
    was = (WRITTEN / "disk/cache/photos-a37502ca.h5").read_bytes()
    assert (disk / "cache" / f"{data.path.name}.previous").read_bytes() == was


def test_staged_files_are_used_and_replaced(disk: Path) -> None:
    """As they were put there; once the source changes, a folder to which somebody added a file stays, and is named."""
    data = stage_dataset(SOURCES / "photos.zip", **PLAIN)
    assert data.report.origin == "local"
    os.utime(SOURCES / "photos.zip")
    shutil.copy(SOURCES / "jpegs/cat/00.jpg", own := data.path / "mine.jpg")
    (SOURCES / "photos.zip").write_bytes(zip_of(SOURCES / "jpegs"))
    with pytest.raises(TargetExistsError, match=r"mine\.jpg"):
        stage_dataset(SOURCES / "photos.zip", **PLAIN)
    own.unlink()
    assert len(content(stage_dataset(SOURCES / "photos.zip", **PLAIN).path)) == 12


def zip_of(folder: Path) -> bytes:
    """Return the bytes of a folder's zip."""
    made = shutil.make_archive(str(HOME / "made"), "zip", folder)
    return Path(made).read_bytes()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_checkpoint_is_restored(disk: Path, damaged: bool) -> None:
    """The newest one; if that is damaged, the previous one, and the report says so."""
    if damaged:
        (disk / "checkpoints/model.pt").write_bytes(b"x" * 300)
    report = restore_file(disk / "checkpoints/model.pt", disk / "restored.pt", progress=False)
    version = 1 if damaged else 2
    assert (disk / "restored.pt").read_bytes() == (SOURCES / f"model-{version}.pt").read_bytes()
    assert ("model.pt.previous" in str(report)) == damaged


def test_published_versions_make_room(disk: Path) -> None:
    """The newest becomes the previous one. The one before is ours and goes; if it was changed, it stays and is
    named."""
    (disk / "model.pt").write_bytes(b"third version")
    published = publish_file(disk / "model.pt", disk / "checkpoints/model.pt", progress=False)
    assert published.previous is not None
    assert published.previous.read_bytes() == (SOURCES / "model-2.pt").read_bytes()
    assert len(content(disk / "checkpoints")) == 4
    published.previous.write_bytes(b"somebody's own")
    (disk / "model.pt").write_bytes(b"fourth version")
    with pytest.raises(TargetExistsError, match=r"model\.pt\.previous"):
        publish_file(disk / "model.pt", disk / "checkpoints/model.pt", progress=False)


@pytest.mark.torch
def test_a_loader_goes_on_where_its_state_says(disk: Path) -> None:
    """With the remaining batches of that epoch."""
    saved = json.loads((disk / "loader.json").read_text(encoding="utf-8"))
    loader = make_loader(dataset_h5(disk / "packs/pixels.h5", split="train"), 2, seed=3)
    assert [y.tolist() for _, y in loader] == [*saved["seen"], *saved["rest"]]
    loader = make_loader(dataset_h5(disk / "packs/pixels.h5", split="train"), 2, seed=3)
    loader.load_state_dict(saved["state"])
    assert [y.tolist() for _, y in loader] == saved["rest"]


@pytest.mark.parametrize("boot", ["this", "another"])
def test_interrupted_packing_is_continued(disk: Path, boot: str, tmp_path: Path) -> None:
    """In the same boot; in another one lines may be there whose pixels are lost, so it begins anew, and cleans up."""
    set_boot(disk, boot)
    heads: list[str] = []
    look = Meanwhile(lambda: heads.extend(map(first_line, tmp_path.rglob("journal"))))
    pack_dataset(SOURCES / "photos", tmp_path / "photos.h5", image_size=8, progress=look)
    (journal,) = (disk / "interrupted").rglob("journal")
    today = json.loads(heads[0])["fingerprint"]
    journal.write_text(journal.read_text().replace(json.loads(first_line(journal))["fingerprint"], today))
    report = pack_dataset(SOURCES / "photos", disk / "interrupted/photos.h5", image_size=8, progress=False)
    assert report.resumed == (8 if boot == "this" else 0)
    check_rows(disk / "interrupted/photos.h5", "interrupted")
    age(disk / "interrupted")
    pack_dataset(SOURCES / "photos", disk / "interrupted/photos.h5", image_size=8, overwrite=True, progress=False)
    assert [name for name in hidden(disk / "interrupted") if "photos" in name] == []


def age(folder: Path) -> None:
    """Make everything in a folder look untouched for two hours."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() - 7200, time.time() - 7200))


@pytest.mark.parametrize("boot", ["this", "another"])
def test_an_interrupted_fetch_is_continued(disk: Path, boot: str) -> None:
    """Its bytes are hashed first. What another boot left is continued once nothing has touched it for an hour."""
    set_boot(disk, boot)
    age(disk / "interrupted")
    report = fetch_files(SOURCES / "many", disk / "interrupted/many", progress=False)
    assert report.kept_bytes == 3000
    assert content(disk / "interrupted/many") == content(SOURCES / "many")
    assert [name for name in hidden(disk / "interrupted") if "many" in name] == []


@pytest.mark.parametrize(
    ("call", "source", "target"),
    [(fetch_files, "many", "fetched/many"), (fetch_files, "photos.zip", "fetched/photos.zip"),
     (extract_archive, "photos.zip", "extracted/photos")],
)  # fmt: skip
def test_what_was_fetched_is_ours(disk: Path, call: Callable[..., Any], source: str, target: str) -> None:
    """A second call finds it complete; a changed source replaces it; what somebody changed stays, and is named."""
    place = disk / target
    before = place.stat()
    call(SOURCES / source, place, progress=False)
    assert (place.stat().st_ino, place.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    changed = SOURCES / source
    if changed.is_dir():
        (changed / "00.bin").write_bytes(b"changed")
    else:
        changed.write_bytes(zip_of(SOURCES / "many"))
    call(changed, place, progress=False)
    now = content(place) if place.is_dir() else place.read_bytes()
    assert now == (changed.read_bytes() if place.is_file() else content(SOURCES / "many"))
    mine = place / "mine.txt" if place.is_dir() else place
    mine.write_text("mine", encoding="utf-8")
    changed_again = changed / "00.bin" if changed.is_dir() else changed
    changed_again.write_bytes(changed_again.read_bytes() + b"x" if changed.is_dir() else zip_of(SOURCES / "jpegs"))
    with pytest.raises(TargetExistsError, match=mine.name):
        call(changed, place, progress=False)
    assert mine.read_text(encoding="utf-8") == "mine"


def test_a_purge_removes_what_was_stored_and_nothing_else(disk: Path) -> None:
    """The datasets, locally and in the cache; a file that somebody put beside them stays."""
    (disk / "cache/mine.txt").write_text("mine", encoding="utf-8")
    places = ["--local-dir", f"{disk}/local", "--cache-dir", f"{disk}/cache"]
    done = run_command("cache", "purge", "--all", "--yes", *places)
    assert done.returncode == 0, done.stderr
    assert list(content(disk / "cache")) == ["mine.txt"]
    assert content(disk / "local") == {}


@pytest.mark.parametrize("source", ["photos", "photos.zip"])
def test_a_pack_by_older_rules_is_made_anew(written: Path, source: str) -> None:
    """Beside the old one, which nobody touches: other samples may be in it than are found today."""
    before = {path: path.read_bytes() for path in written.rglob("*.h5")}
    data = stage_dataset(SOURCES / source, **STAGED)
    assert data.report.origin == "source"
    assert {path: path.read_bytes() for path in before} == before
    check_rows(data.path, f"staged-{source}")

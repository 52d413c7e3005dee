"""`stage_dataset` of sources on this machine: what is made, what is reused, and what notices a change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import pytest

from colabstage import extract_archive, fetch_files, publish_file, restore_file, stage_dataset
from colabstage.errors import (
    ArchiveError,
    CorruptArchiveError,
    DecodeError,
    EmptySourceError,
    NotEnoughSpaceError,
    OptionError,
    SourceNotFoundError,
    TargetExistsError,
    TargetNotWritableError,
    UnsafeArchiveError,
)
from colabstage.io.boundary import GOES_ON

if TYPE_CHECKING:
    import numpy as np

    from colabstage import StagedDataset

MakeImages = Callable[..., Path]


def stage(source: Path, **options: object) -> StagedDataset:
    """In silence, and without a cache unless the test wants one."""
    return stage_dataset(source, **{"progress": False, "cache_dir": None, **options})  # type: ignore[arg-type]


def rows_by_key(path: Path, split: str = "train") -> dict[str, np.ndarray]:
    """Each stored image by its source's name, read with plain h5py."""
    with h5py.File(path, "r") as file:
        keys = [key.decode() for key in file[f"key_{split}"][()].tolist()]
        return dict(zip(keys, file[f"X_{split}"][()], strict=True))


def everything_below(folder: Path) -> dict[str, bytes]:
    """Names and bytes of all files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_second_call_reads_nothing(photos: Path) -> None:
    first = stage(photos)
    before = everything_below(first.path.parent)
    for path in photos.rglob("*.png"):
        found = path.stat()
        path.write_bytes(bytes(found.st_size))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))  # nobody could tell without reading it
    began = time.process_time()  # of computing: others may want the core
    second = stage(photos)
    seconds = time.process_time() - began
    assert second.report.origin == "local"
    assert "names, sizes and times of all files are unchanged" in second.report.steps[0].note
    assert everything_below(first.path.parent) == before
    assert seconds < 0.2  # under 0.01 s when nothing else runs


def test_touched_folders_cost_one_listing(photos: Path) -> None:
    stage(photos)
    os.utime(photos / "cat")
    second = stage(photos)
    assert second.report.origin == "local"
    assert stage(photos).report.origin == "local"


def test_a_moved_pack_is_verified_once_and_sealed_again(photos: Path) -> None:
    staged = stage(photos)
    folder = staged.path.parent
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    assert stage(photos).report.origin == "local"


@pytest.mark.parametrize("lost", ["a byte", "its end", "all of it"])
@pytest.mark.parametrize("by", ["the disk", "somebody"])
def test_what_a_crash_of_the_machine_took_is_staged_again(photos: Path, lost: str, by: str) -> None:
    """The user has nothing to decide where nothing has written to the pack since; otherwise it may be somebody's."""
    pack = stage(photos).path
    whole, manifest = pack.read_bytes(), pack.with_name(f"{pack.name}.json").read_bytes()
    left = {"a byte": whole[:-5] + b"!" + whole[-4:], "its end": whole[:5000], "all of it": b""}[lost]
    pack.write_bytes(left)
    os.utime(pack, (0, 0))
    record = pack.with_name("stage.json")
    noted, now = json.loads(record.read_text(encoding="utf-8")), pack.stat()
    if by == "the disk":
        # Only the kernel sets this time.
        noted["seal"] |= {"ctime_ns": now.st_ctime_ns, "world": "00000000"}
        record.write_text(json.dumps(noted), encoding="utf-8")
        again = stage(photos)
        assert any("damaged" in note for note in again.report.notes)
        assert (pack.read_bytes(), again.path) == (whole, pack)
        assert [path.name for path in pack.parent.iterdir() if path.suffix == ".aside"] == []
    else:
        with pytest.raises(TargetExistsError, match=pack.name):
            stage(photos)
        assert (pack.read_bytes(), pack.with_name(f"{pack.name}.json").read_bytes()) == (left, manifest)


def test_both_forms_are_kept(photos: Path, tmp_path: Path, make_zip: Callable[[Path, Path], Path]) -> None:
    archive = make_zip(photos, tmp_path / "a.zip")
    staged = stage(archive, keep="both")
    assert staged.files is not None
    assert everything_below(staged.files) == everything_below(photos)
    assert len(rows_by_key(staged.path)) == 20
    assert stage(archive, keep="pack").report.origin == "local"
    assert stage(archive, keep="both").report.origin == "local"


def test_missing_files_are_fetched_again(photos: Path) -> None:
    staged = stage(photos, keep="files")
    next(staged.path.rglob("*.png")).unlink()
    assert stage(photos, keep="files", verify="full").report.origin == "source"
    assert everything_below(staged.path) == everything_below(photos)


def bad_sources(tmp_path: Path, make_images: MakeImages, make_zip: Callable[[Path, Path], Path]) -> dict[str, Path]:
    """One of each kind of source that cannot be staged."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.csv").write_text("a,b\n", encoding="utf-8")
    whole = make_zip(make_images(tmp_path / "ok", 6), tmp_path / "whole.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    broken = bytearray(whole)
    broken[200:210] = bytes(10)
    (tmp_path / "broken.zip").write_bytes(broken)
    (tmp_path / "page.zip").write_text("<!DOCTYPE html><html>Sign in</html>", encoding="utf-8")
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.add(tmp_path / "ok" / "cat" / "0000.png", "../evil.png")
    truncated = make_images(tmp_path / "truncated", 6) / "cat" / "0002.png"
    truncated.write_bytes(truncated.read_bytes()[:300])
    return {
        "missing": tmp_path / "nowhere",
        "empty": tmp_path / "empty",
        "no images": tmp_path / "texts",
        "cut zip": tmp_path / "cut.zip",
        "damaged zip": tmp_path / "broken.zip",
        "web page": tmp_path / "page.zip",
        "unsafe name": tmp_path / "evil.tar",
        "truncated image": tmp_path / "truncated",
    }


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("missing", SourceNotFoundError, "nowhere"),
        ("empty", EmptySourceError, "empty"),
        ("no images", EmptySourceError, "csv"),
        ("cut zip", CorruptArchiveError, "cut.zip"),
        ("damaged zip", CorruptArchiveError, "png"),
        ("web page", ArchiveError, "web page"),
        ("unsafe name", UnsafeArchiveError, "evil.png"),
        ("truncated image", DecodeError, "0002.png"),
    ],
)
def test_bad_sources_are_refused_without_a_trace(
    tmp_path: Path,
    make_images: MakeImages,
    make_zip: Callable[[Path, Path], Path],
    kind: str,
    error: type[Exception],
    says: str,
) -> None:
    source = bad_sources(tmp_path, make_images, make_zip)[kind]
    with pytest.raises(error, match=f"(?i){says}"):
        stage(source, cache_dir=tmp_path / "cache")
    left = (tmp_path / "fast").rglob("*")
    assert [p for p in left if p.is_file() and not p.parent.name.startswith(".colabstage-")] == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "options",
    [{"keep": "zip"}, {"verify": "maybe"}, {"encoding": "gif"}, {"resize": "squash"}, {"image_size": (0, 5)},
     {"splits": {"train": 0.5}}, {"color_mode": "hsv"}, {"on_error": "ignore"}, {"layout": "cubist"}],
)  # fmt: skip
def test_wrong_options_are_refused_before_anything_is_written(
    photos: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    with pytest.raises(OptionError, match=r"expected|Choose"):
        stage(photos, **options)
    assert not [p for p in (tmp_path / "fast").rglob("*") if p.is_file()]


@pytest.mark.parametrize("place", ["s3://bucket/model.pt", Path("s3://bucket/model.pt"), "file:///model.pt", ""])
def test_no_address_becomes_a_folder_of_the_current_one(
    place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who publishes a checkpoint to a bucket would look for it there: every path that is given says what is wrong."""
    monkeypatch.chdir(tmp_path)
    file, archive = tmp_path / "model.pt", tmp_path / "photos.zip"
    file.write_bytes(b"weights")
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("a.txt", "a")
    for call in (
        partial(publish_file, file, place),
        partial(publish_file, place, tmp_path / "copy.pt"),
        partial(restore_file, place, tmp_path / "copy.pt"),
        partial(restore_file, file, place),
        partial(extract_archive, archive, place),
        partial(fetch_files, file, place),
    ):
        with pytest.raises(OptionError, match=r"^(path|target|published)="):
            call(progress=False)
    assert sorted(tmp_path.iterdir()) == [file, archive]


def test_too_little_disk_is_refused_with_figures(photos: Path, small_disk: Path) -> None:
    """Before anything is written, with what is needed and what is free."""
    with pytest.raises(NotEnoughSpaceError, match=r"MB.*free"):
        stage(photos, image_size=(1024, 1024), encoding="pixels", local_dir=small_disk / "fast")
    assert not [p for p in small_disk.rglob("*") if p.is_file()]


def test_an_unwritable_place_is_refused(photos: Path, tmp_path: Path) -> None:
    """A file where the local folder should be is a typed error that names it."""
    (tmp_path / "blocked").write_bytes(b"")
    with pytest.raises(TargetNotWritableError, match="blocked"):
        stage(photos, local_dir=tmp_path / "blocked")


_STOPPED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from colabstage import stage_dataset

seen = []

def prepare(x: np.ndarray) -> np.ndarray:
    seen.append(None)
    if len(seen) == 250 and not Path("stopped").exists():
        Path("stopped").touch()
        os.kill(os.getpid(), signal.SIGINT)
    return x

if __name__ == "__main__":
    data = stage_dataset("photos", local_dir="here", cache_dir=None, prepare=prepare, progress=False)
    print(data.splits, "already in place" in str(data.report))
"""


@pytest.mark.slow
def test_ctrl_c_in_a_script_ends_with_what_is_left(tmp_path: Path, make_images: MakeImages) -> None:
    make_images(tmp_path / "photos", 300)
    (tmp_path / "script.py").write_text(_STOPPED, encoding="utf-8")

    def run_script() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "script.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    stopped = run_script()
    assert stopped.returncode == -signal.SIGINT, stopped.stderr
    assert stopped.stderr.splitlines()[-2:] == ["KeyboardInterrupt", GOES_ON]
    again = run_script()
    assert (again.returncode, again.stdout.strip()) == (0, "{'train': 300} True"), again.stderr

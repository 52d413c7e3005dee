"""Places as people write them: what was meant by something that is not a path, and what is in the way.

Each refusal comes before anything is written, and says what to write instead.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch

import colabstage as cs
from colabstage.errors import (
    ColabstageError,
    DriveNotMountedError,
    OptionError,
    SourceNotFoundError,
    TargetExistsError,
    TargetNotWritableError,
)
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.support.colab import simulated_colab
from tests.support.images import in_classes, make_tree


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two classes of pictures, a file, and a folder with a published file."""
    make_tree(tmp_path, {f"photos/{name}": n for name, n in in_classes(3).items()} | {"file": "text"})
    (tmp_path / "out").mkdir()
    cs.publish_file(tmp_path / "file", f"{tmp_path}/out/", progress=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path) -> set[str]:
    """The names of everything in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def stage(source: object = "photos", function: Callable[..., Any] = cs.stage_dataset, **options: Any) -> Any:
    """Stage the pictures into the current folder."""
    quiet = {"progress": False} if function is cs.stage_dataset else {}
    return function(source, **{"local_dir": "here", "cache_dir": None, "image_size": 8, **quiet, **options})


@pytest.mark.parametrize("function", [cs.stage_dataset, cs.plan_stage], ids=["stage", "plan"])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param({"cache_dir": ""}, "cache_dir=''", id="a cache without a name"),
        pytest.param({"cache_dir": "file"}, "/file' is a file", id="a cache that is a file"),
        pytest.param({"local_dir": "file"}, "/file' is a file", id="a local_dir that is a file"),
        pytest.param({"cache_dir": "s3:/bucket/cache"}, "s3:/", id="a cache with one slash"),
        pytest.param({"local_dir": "gs:/bucket/here"}, "gs:/", id="a local_dir with one slash"),
        pytest.param({"cache_dir": "photos"}, "photos/cache'", id="the source as the cache"),
        pytest.param({"source": ".", "cache_dir": "."}, "/cache'", id="one folder for all"),
    ],
)
def test_a_place_that_cannot_be_one_is_refused(
    here: Path, function: Callable[..., Any], options: dict[str, Any], named: str
) -> None:
    """By both functions alike."""
    before = written(here)
    with pytest.raises(OptionError, match=re.escape(named)):
        stage(function=function, **options)
    assert written(here) == before


def inside(call: Callable[[Path], object], *, gone: bool = False) -> object:
    """Call with a folder as the current one that is called as the kernel calls one that is gone."""
    folder = Path("x (deleted)").absolute()
    with contextlib.chdir(folder):
        if gone:
            folder.rmdir()
        return call(folder.parent)


def test_the_cache_that_a_refusal_names_works(here: Path) -> None:
    """It is inside the source, but is not read as part of it."""
    cache = here / "photos" / "cache"
    assert stage(cache_dir=cache).splits == stage(cache_dir=cache, local_dir="there").splits == {"train": 3}
    assert stage(cache_dir=cache, local_dir="there").report.origin == "local"


@pytest.mark.parametrize("where", ["argument", "variable"])
@pytest.mark.parametrize(("word", "is_cached"), [("none", False), ("None", False), ("auto", None), ("./none", True)])
def test_a_word_for_no_cache_is_no_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, where: str, word: str, *, is_cached: bool | None
) -> None:
    """A shell and a form cannot pass None."""
    if where == "variable":
        monkeypatch.setenv("COLABSTAGE_CACHE_DIR", word)
    plan = stage(function=cs.plan_stage, cache_dir=word if where == "argument" else "auto")
    assert is_cached is None or (plan.cache is not None) == is_cached


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        pytest.param(lambda: stage("https:/example.org/a.zip"), OptionError, "'https://example.org/a.zip'", id="slash"),
        pytest.param(lambda: stage("run:/a"), OptionError, "'./run:/…' is a folder", id="a folder with a colon"),
        pytest.param(lambda: stage("link/a"), SourceNotFoundError, "link to 'gone'", id="a link to nothing"),
        *(
            pytest.param(lambda path=path: stage(path), SourceNotFoundError, named, id=path)
            for named, *paths in [
                ("no 'photo'.", "photo"),
                ("the dataset's page", "/kaggle/input/photos"),
                ("give the share link", "/content/drive/MyDrive/photos.zip"),
            ]
            for path in paths
        ),
        pytest.param(
            lambda: inside(lambda here: cs.pack_dataset(here / "photos", "a.h5", progress=False), gone=True),
            TargetNotWritableError,
            "'a.h5'",
            id="nowhere",
        ),
        pytest.param(lambda: cs.pack_dataset("photos", ""), OptionError, "mounted Drive.", id="a pack without a name"),
        pytest.param(lambda: cs.pack_dataset("photos", 5), OptionError, "target=5", id="a pack that is a number"),  # type: ignore[arg-type]
        pytest.param(lambda: cs.fetch_files("/", "out"), OptionError, "somewhere else", id="everything"),
        pytest.param(lambda: cs.fetch_files("photos", "/"), TargetExistsError, "holds the source", id="over all"),
        pytest.param(lambda: cs.restore_file("/", "out"), SourceNotFoundError, "is a folder", id="the root"),
        pytest.param(
            lambda: cs.pack_dataset("photos", "."), TargetExistsError, "pack.h5", id="a pack that is this folder"
        ),
        pytest.param(lambda: cs.fetch_files("photos", "file/x"), TargetNotWritableError, "/file'", id="below a file"),
        pytest.param(lambda: cs.purge_datasets(None), OptionError, "list_datasets", id="nothing to purge"),  # type: ignore[arg-type]
        pytest.param(lambda: cs.purge_datasets(stage()), OptionError, "list_datasets", id="a dataset to purge"),
    ],
)
def test_what_was_meant_is_named(
    here: Path, call: Callable[[], object], error: type[ColabstageError], named: str
) -> None:
    """In each case the message says how to write what was meant."""
    (here / "link").symlink_to("gone")
    (here / "x (deleted)").mkdir()
    with pytest.raises(error, match=re.escape(named)):
        call()
    assert (here / "file").read_text() == "text"


def test_plain_files_that_are_gone_come_again(here: Path) -> None:
    """What somebody added is no harm; what was edited is used, and named."""
    folder = stage(keep="files").files
    (folder / "labels.cache").write_text("a trainer's")
    assert "already" in str(stage(keep="files").report)
    (folder / "labels.cache").unlink()
    (folder / "cat/000.png").unlink()
    stage(keep="files")
    assert len(list(folder.rglob("*.png"))) == 3
    (folder / "dog/001.png").write_bytes(b"edited")
    assert any("001.png" in note for note in stage(keep="files").report.notes)


@pytest.mark.parametrize("verb", ["stage_dataset", "extract_archive", "publish_file", "restore_file", "list_runs"])
def test_no_name_is_not_this_folder(here: Path, verb: str) -> None:
    """An empty field of a form gives an empty name."""
    more = [] if verb in ("stage_dataset", "list_runs") else ["new"]
    with pytest.raises(OptionError, match="'' names nothing"):
        getattr(cs, verb)("", *more)


@pytest.fixture
def on_colab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`/content` on a machine with a mounted Drive, as the current folder."""
    with (
        SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive,
        simulated_colab(tmp_path / "machine", drive=drive) as machine,
    ):
        content = machine.root / "content"
        make_tree(content, {f"photos/{name}": n for name, n in in_classes(3).items()} | {"m.pt": "weights"})
        monkeypatch.chdir(content)
        cs.mount_drive(content / "drive")
        yield content


@pytest.mark.fuse
def test_a_dataset_kept_on_drive_is_said(on_colab: Path) -> None:
    """It works, but every epoch then reads from Drive."""
    plan = stage(function=cs.plan_stage, local_dir="drive/MyDrive/here")
    staged = stage(local_dir="drive/MyDrive/here")
    for notes in (plan.reasons, staged.report.notes):
        assert any("give local_dir= on a local disk" in note for note in notes)
    # Drive has no locks, so that nobody else seems to hold one.
    purged = cs.purge_datasets(cs.list_datasets(local_dir="drive/MyDrive/here", cache_dir=None))
    assert len(purged.removed) == 1, purged.reasons


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("call", "meant"),
    [
        pytest.param(lambda: stage(cache_dir="MyDrive/kept"), "MyDrive/kept", id="cache"),
        pytest.param(lambda: stage("MyDrive/photos.zip"), "MyDrive/photos.zip", id="source"),
        pytest.param(lambda: stage("gdrive/MyDrive/photos.zip"), "MyDrive/photos.zip", id="another mount point"),
        pytest.param(lambda: cs.publish_file("m.pt", "MyDrive/kept/"), "MyDrive/kept/", id="checkpoint"),
        pytest.param(
            lambda: cs.pack_dataset("photos", "My Drive/kept.h5", image_size=8), "My Drive/kept.h5", id="pack"
        ),
    ],
)
def test_a_folder_of_drive_beside_drive_is_named(on_colab: Path, call: Callable[[], object], meant: str) -> None:
    """Whatever is written to `/content/MyDrive` is lost with the machine, which nobody intends."""
    with pytest.raises(DriveNotMountedError, match=re.escape(f"Use '{on_colab}/drive/{meant}'")):
        call()
    assert {path.name for path in on_colab.iterdir()} == {".config", "drive", "m.pt", "photos"}
    (on_colab / "MyDrive").mkdir()  # now it is a local folder
    cs.publish_file(on_colab / "m.pt", "MyDrive/kept/", progress=False)
    assert f"'{on_colab}/kept' is on this machine's own disk" in str(stage(function=cs.plan_stage, cache_dir="kept"))


def publish_and_append(here: Path) -> None:
    """Do what takes a lock in the folder for temporary files."""
    cs.pack_dataset(here / "photos", here / "out/photos.h5", progress=False)
    report = cs.pack_dataset(here / "photos", append_to=here / "out/photos.h5", progress=False)
    assert report.path == here / "out/photos-append-00001.h5"
    (here / "file").write_text("newer")
    cs.publish_file(here / "file", f"{here}/out/", progress=False)
    assert (here / "out/file").read_text() == "newer"


def test_without_room_for_temporary_files_what_needs_none_works(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk that others are not on: Drive, where a checkpoint is still to go. The rest says what to do."""
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with monkeypatch.context() as full:
        full.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(here / "missing")])
        publish_and_append(here)
        needs: list[Callable[[], Any]] = [
            lambda: stage(function=cs.plan_stage),
            lambda: cs.resumable(here / "run", model=torch.nn.Linear(1, 1), progress=False).__enter__(),
        ]
        for call in needs:
            with pytest.raises(TargetNotWritableError, match=re.escape(f"{here}/missing") + ".*'TMPDIR'"):
                call()
    monkeypatch.setenv("TMPDIR", str(here / "out"))
    assert stage(function=cs.plan_stage).action == "stage"


def test_where_no_lock_can_be_had_nobody_is_said_to_hold_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError

    stage()
    monkeypatch.setattr(filelock.BaseFileLock, "acquire", refuse)
    publish_and_append(here)
    report = cs.purge_datasets(cs.list_datasets(local_dir=here / "here", cache_dir=None))
    assert len(report.removed) == 1, report


def test_only_the_folder_itself_must_be_writable(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's home is in a folder of the system's."""
    (here / "system/home").mkdir(parents=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) != f"{here}/system" and access(path, mode))
    assert stage(local_dir="system/home").splits
    with pytest.raises(TargetNotWritableError, match="system'"):
        stage(local_dir="system/other")


def test_a_misspelt_platform_is_refused_before_the_work(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing depends on it: at the end, it would be too late."""
    monkeypatch.setenv("COLABSTAGE_PLATFORM", "collab")
    for call in (partial(cs.stage_dataset, progress=False), cs.plan_stage):
        with pytest.raises(OptionError, match="'collab'"):
            call(here / "photos", local_dir=here / "new", cache_dir=None)
    assert not (here / "new").exists()


def test_what_is_here_is_used_where_nothing_can_be_written(here: Path, make_disk: Callable[[int], Path]) -> None:
    """As on a disk that is full. The pack is looked at again, as after a reboot, and that cannot be noted."""
    disk = make_disk(8)
    pack = stage(local_dir=disk / "here").path
    os.utime(pack, ns=(0, 0))
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    for _ in range(2):
        assert stage(local_dir=disk / "here").report.origin == "local"


def test_a_folder_that_is_not_ours_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a whole disk, and nothing in it says whose it is."""
    make_tree(tmp_path, {"photos/a.txt": "a", "out/own.txt": "own", "out/below/it/b.txt": "b"})
    listed: list[str] = []
    scandir = os.scandir

    def noted(place: Any = ".") -> Any:
        listed.append(str(place))
        return scandir(place)

    monkeypatch.setattr("os.scandir", noted)
    with pytest.raises(TargetExistsError):
        cs.fetch_files(tmp_path / "photos", tmp_path / "out", progress=False)
    assert f"{tmp_path}/out" in listed
    assert not [place for place in listed if "below" in place]

"""Listing and purging: whatever has our mark is removed, and nothing else ever is."""

import json
import os
import shutil
import sys
import threading
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from colabstage import list_datasets, publish_file, purge_datasets, stage_dataset
from simulated_drive.drive import SimulatedDrive
from tests.support.images import in_classes, make_tree
from tests.support.steps import Meanwhile


class World:
    """A source, a disk and a cache."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._monkeypatch, self._capsys = root, monkeypatch, capsys
        self.photos = make_tree(root / "photos", in_classes(6))
        self.cache, self.local = root / "cache", root / "fast"
        self.places: dict[str, Any] = {"local_dir": self.local, "cache_dir": self.cache}

    def stage(self, **options: Any) -> str:
        """Stage without output; return the dataset's name."""
        staged = stage_dataset(self.photos, **{"progress": False, **self.places, **options})
        return staged.path.name.removesuffix(".h5")

    def listed(self, place: str = "") -> list[Any]:
        return [one for one in list_datasets(**self.places) if place in ("", one.place)]

    def purge(self, *arguments: str) -> tuple[int, list[tuple[str, str]]]:
        """Call `colabstage cache purge`; return the exit code, and the place and name of what is removed, or would
        be."""
        (command,) = entry_points(group="console_scripts", name="colabstage")
        places = ("--local-dir", str(self.local), "--cache-dir", str(self.cache))
        self._monkeypatch.setattr(sys, "argv", ["colabstage", "cache", "purge", *arguments, *places, "--json"])
        self._capsys.readouterr()
        try:
            command.load()()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = self._capsys.readouterr().out
        return code, [(one["place"], one["name"]) for one in json.loads(said)] if said.startswith("[") else []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    return World(tmp_path, monkeypatch, capsys)


def test_the_list_says_what_there_is(world: World) -> None:
    """Everything staged is listed with its source, size and rows; a pack published again also with its previous
    version."""
    name, other = world.stage(), world.stage(image_size=(8, 8))
    (world.photos / "cat/000.png").unlink()
    world.stage()
    listed = world.listed()
    assert sorted((one.place, one.name, one.previous) for one in listed) == sorted(
        [
            ("here", name, False),
            ("here", other, False),
            ("cache", name, False),
            ("cache", name, True),
            ("cache", other, False),
        ]
    )
    assert {one.source for one in listed} == {str(world.photos)}
    assert {sum(one.samples.values()) for one in listed if one.name == name} == {5, 6}
    assert all(one.whole and one.nbytes > 1000 for one in listed)
    assert listed[0].name in str(listed[0])
    assert listed[0].to_dict()["place"] == "here"


def test_a_purge_by_name_removes_all_of_it_and_nothing_else(world: World, tmp_path: Path) -> None:
    name, other = world.stage(), world.stage(image_size=(8, 8))
    world.stage(refresh=True)
    assert world.purge(name) == (0, [("here", name), ("cache", name)])
    assert list(tmp_path.rglob(f"*{name}*"))
    assert world.purge(name, "--yes") == (0, [("here", name), ("cache", name)])
    assert not list(tmp_path.rglob(f"*{name}*"))
    assert {one.name for one in world.listed()} == {other}
    assert world.stage(image_size=(8, 8)) == other


def test_age_and_place_narrow_the_choice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name = world.stage()
    here, cached = ("here", name), ("cache", name)
    assert world.purge("--all") == (0, [here, cached])
    assert world.purge("--all", "--only", "cache") == (0, [cached])
    assert world.purge("--older-than", "9") == (0, [])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10 * 86_400)
    assert world.purge("--older-than", "9") == (0, [here, cached])
    assert world.purge("--older-than", "11", name) == (0, [])
    assert world.purge() == (2, [])


def test_strangers_stay(world: World) -> None:
    """Similar files without our mark, published checkpoints and foreign folders are not even listed."""
    name = world.stage()
    cache = world.cache
    base = next(world.local.rglob("stage.json")).parent.parent
    make_tree(world.root, {"model.h5": "weights"})
    publish_file(world.root / "model.h5", cache / "model-12345678.h5", progress=False)
    for end in (".h5", ".h5.json"):
        shutil.copy(cache / f"{name}{end}", cache / f"mine-12345678{end}")
    make_tree(cache, {"notes.txt": "mine"})
    make_tree(base, {"mine/stage.json": "{}", f"{name}/my notes.txt": "mine"})
    assert {(one.place, one.name) for one in world.listed()} == {("here", name), ("cache", name)}
    report = purge_datasets(world.listed())
    assert [one.place for one in report.kept] == ["here"]
    assert "my notes.txt" in report.reasons[0]
    assert (base / name / "my notes.txt").read_text(encoding="utf-8") == "mine"
    left = {path.name for path in cache.iterdir()}
    assert {"model-12345678.h5", "mine-12345678.h5", "mine-12345678.h5.json", "notes.txt"} <= left
    assert not any(path.startswith(name) for path in left)
    for stranger in ("mine", "model-12345678", str(cache / "notes.txt")):
        assert world.purge(stranger, "--yes") == (2, [])


def test_what_is_being_staged_stays(world: World) -> None:
    name = world.stage()
    listed, works, go_on = world.listed("here"), threading.Event(), threading.Event()

    def hold() -> None:
        works.set()
        go_on.wait(60)

    thread = threading.Thread(target=lambda: world.stage(refresh=True, progress=Meanwhile(hold)))
    thread.start()
    assert works.wait(30)
    report = purge_datasets(listed)
    go_on.set()
    thread.join()
    assert (report.removed, [one.name for one in report.kept]) == ((), [name])
    assert stage_dataset(world.photos, progress=False, **world.places).report.origin == "local"


def test_leftovers_of_the_dead_are_swept_and_of_the_living_not(world: World) -> None:
    """On this machine and on another, also if no dataset is chosen."""
    world.stage()
    base = next(world.local.rglob("stage.json")).parent.parent
    dead = world.cache / ".colabstage-photos-01234567.h5.0dead0d0-4321-98765.3.tmp"
    living = world.cache / ".colabstage-photos-89abcdef.h5.0dead0d0-4321-98765.3.tmp"
    for folder in (dead, living):
        make_tree(folder, {"data.h5": "half"})
    for path in (dead / "data.h5", dead):
        os.utime(path, (time.time() - 7200,) * 2)
    lock = base / ".colabstage-c.lock"
    lock.touch()
    assert world.purge("--older-than", "9", "--yes") == (0, [])
    assert not dead.exists()
    assert not lock.exists()
    assert living.exists()


@pytest.mark.fuse
def test_the_cache_on_drive_is_purged(drive: SimulatedDrive, my_drive: Path) -> None:
    images = make_tree(drive.cloud / "MyDrive/photos", in_classes(6))
    stage_dataset(my_drive / "photos", progress=False)
    assert drive.flush(timeout_s=60)
    report = purge_datasets([one for one in list_datasets() if one.place == "cache"])
    assert [one.source for one in report.removed] == ["drive:MyDrive/photos"]
    assert drive.flush(timeout_s=60)
    assert list((drive.cloud / "MyDrive/colabstage").iterdir()) == []
    assert len(list(images.rglob("*.png"))) == 6

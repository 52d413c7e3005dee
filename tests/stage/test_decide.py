"""`plan_stage` predicts what `stage_dataset` then does, whatever is local, cached, or was changed meanwhile."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from colabstage import list_datasets, plan_stage, stage_dataset
from colabstage.errors import ColabstageError, NotStagedError, TargetExistsError
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault
from tests.contract.served import numbers_in
from tests.support.images import in_classes, make_tree
from tests.support.invariants import snapshot

BEFORE, AFTER = in_classes(6), {**in_classes(6), "cat/000.png": 99}


class World:
    """A source, a disk and a cache."""

    def __init__(self, root: Path) -> None:
        self.root, self.numbers = root, BEFORE
        self.source = make_tree(root / "photos", BEFORE)
        self.places: dict[str, Any] = {"local_dir": root / "here", "cache_dir": root / "cache"}

    def stage(self, **options: Any) -> Any:
        """Make one call."""
        return stage_dataset(self.source, progress=False, **{**self.places, **options})

    def change(self) -> None:
        """Replace an image in the source under its old name."""
        make_tree(self.source, AFTER)
        self.numbers = AFTER

    def new_session(self) -> None:
        """Lose everything on this machine."""
        shutil.rmtree(self.root / "here")

    def pack(self, folder: str = "here") -> Path:
        """Return the local pack, or the cached one."""
        return next((self.root / folder).rglob("*.h5"))


def rot(file: Path) -> None:
    """Change a byte but no time, not even the kernel's, like a bad disk."""
    content, found = bytearray(file.read_bytes()), file.stat()
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    record = file.with_name("stage.json")
    noted = json.loads(record.read_text(encoding="utf-8"))
    noted["seal"]["ctime_ns"] = file.stat().st_ctime_ns
    record.write_text(json.dumps(noted), encoding="utf-8")


class Case(NamedTuple):
    """What happened before a call, its options, and what it should do."""

    happened: Callable[[World], object]
    action: str
    options: dict[str, Any] = {}  # noqa: RUF012 - a tuple's default


def twice(*steps: Callable[[World], object]) -> Callable[[World], object]:
    """Stage, then perform these steps."""

    def act(world: World) -> None:
        world.stage()
        for step in steps:
            step(world)

    return act


CASES = {
    "nothing": Case(lambda _: None, "stage"),
    "staged": Case(twice(), "reuse"),
    "changed": Case(twice(World.change), "stage"),
    "a new session": Case(twice(World.new_session), "restore"),
    "a new session, changed": Case(twice(World.new_session, World.change), "stage"),
    "a new session, plain files too": Case(twice(World.new_session), "restore", {"keep": "both"}),
    "plain files of a packed dataset": Case(twice(), "stage", {"keep": "files"}),
    "plain files again": Case(lambda world: world.stage(keep="files"), "reuse", {"keep": "files"}),
    "refresh": Case(twice(), "stage", {"refresh": True}),
    "a rotten pack, compared in full": Case(twice(lambda world: rot(world.pack())), "restore", {"verify": "full"}),
    "a pack without its manifest": Case(twice(lambda world: world.pack().with_suffix(".h5.json").unlink()), "restore"),
    "the cache lost its manifest": Case(
        twice(World.new_session, lambda world: world.pack("cache").with_suffix(".h5.json").unlink()), "stage"
    ),
    "the source is gone": Case(twice(lambda world: shutil.rmtree(world.source)), "reuse"),
    "the source is gone in a new session": Case(
        twice(World.new_session, lambda world: shutil.rmtree(world.source)), "restore"
    ),
}
ORIGINS = {"reuse": "local", "restore": "cache", "stage": "source"}


@pytest.mark.parametrize("name", CASES)
def test_a_call_does_what_its_plan_says(name: str, tmp_path: Path) -> None:
    world, case = World(tmp_path), CASES[name]
    case.happened(world)
    before = snapshot(tmp_path)
    plan = plan_stage(world.source, **{**world.places, **case.options})
    assert snapshot(tmp_path) == before
    data = world.stage(**case.options)
    assert (plan.action, data.report.origin) == (case.action, ORIGINS[case.action])
    assert plan.target == data.path
    if case.options.get("keep") != "files":
        assert dict(plan.samples) == data.splits
        if "image_size" not in case.options:
            assert numbers_in(data.path) == world.numbers
            if "cache_dir" not in case.options:
                assert numbers_in(world.pack("cache")) == world.numbers
    if case.action == "reuse":
        assert (plan.figures.source_bytes, plan.figures.peak_bytes) == (0, 0)
    elif data.files is not None:
        assert plan.figures.files_bytes == sum(path.stat().st_size for path in data.files.rglob("*.png"))
    if case.options.get("refresh"):
        assert "refresh=True" in plan.reasons[0]
    else:
        assert world.stage(**case.options).report.origin == "local"


def spoil(pack: Path, manifest: bytes, *, content: bytes | None = None) -> bytes:
    """Remove a pack's manifest and seal, as on a copied disk; return its content."""
    pack.with_name(f"{pack.name}.json").write_bytes(manifest)
    content = content or pack.read_bytes()
    pack.unlink()
    pack.write_bytes(content)
    return content


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda whole: bytes(len(whole)),
    "flipped": lambda whole: whole.replace(b'"size": ', b'"size"; '),
    "impossible": lambda _: b'{"block_bytes": -1, "hashes": [], "version": 1}',
}


@pytest.mark.parametrize(
    ("name", "is_cached"), [("zeros", False), ("zeros", True), ("flipped", False), ("impossible", True)]
)
def test_a_pack_whose_manifest_is_spoilt_is_made_again(name: str, is_cached: bool, tmp_path: Path) -> None:
    """The user has nothing to decide: what was there is kept under names that nothing replaces."""
    world = World(tmp_path)
    options = {} if is_cached else {"cache_dir": None}
    kept = set[bytes]()
    for number in range(2):
        pack = world.stage(**options).path
        manifest = pack.with_name(f"{pack.name}.json").read_bytes()
        kept.add(spoil(pack, SPOILT[name](manifest), content=b"%d" % number))
        plan_stage(world.source, **{**world.places, **options})
        data = world.stage(**options)
        assert (data.report.origin, numbers_in(data.path)) == ("cache" if is_cached else "source", BEFORE)
        assert any(".aside" in note for note in data.report.notes)
        assert {path.read_bytes() for path in pack.parent.glob("*.aside*")} == kept
    assert world.stage(**options).report.origin == "local"


@pytest.mark.parametrize("keep", ["pack", "files"])
def test_what_is_somebodys_is_refused_by_both(keep: Any, tmp_path: Path) -> None:
    world = World(tmp_path)
    staged = world.stage(keep=keep)
    mine = staged.path if keep == "pack" else staged.path / "mine.txt"
    mine.write_text("hours of work", encoding="utf-8")
    before = snapshot(tmp_path)
    with pytest.raises(TargetExistsError) as planned:
        plan_stage(world.source, keep=keep, refresh=True, **world.places)
    with pytest.raises(TargetExistsError) as raised:
        world.stage(keep=keep, refresh=True)
    assert str(planned.value) == str(raised.value)
    after = snapshot(tmp_path)
    assert {name: entry for name, entry in after.items() if entry.kind == "file"} == {
        name: entry for name, entry in before.items() if entry.kind == "file"
    }


@pytest.mark.fuse
@pytest.mark.parametrize("place", ["here", "cache"])
def test_a_place_that_cannot_be_listed_is_not_empty(place: str, tmp_path: Path) -> None:
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        World(drive.cloud / "MyDrive").stage()
        drive.mount(tmp_path / "mount")
        mine = tmp_path / "mount/MyDrive"
        places: Any = {"local_dir": mine / "here", "cache_dir": mine / "cache"}
        assert len(list_datasets(**places)) == 2
        drive.set_faults(DriveFaults(ops=(OpFault(op="list", pattern=f"MyDrive/{place}*", errno=errno.EACCES),)))
        with pytest.raises(ColabstageError, match=place):
            list_datasets(**places)


@pytest.mark.torch
def test_a_dataset_never_reads_the_pack_that_replaced_its_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    old = world.stage()
    world.change()
    new = world.stage()
    with pytest.raises(NotStagedError, match="replaced"):
        old.loader("train", 2)
    assert numbers_in(new.path) == AFTER


def test_a_persistent_folder_on_another_disk_is_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_disk: Callable[[int], Path]
) -> None:
    source, home = make_tree(tmp_path / "photos", BEFORE), make_disk(8)
    monkeypatch.setenv("COLABSTAGE_PLATFORM", "python")
    monkeypatch.setenv("HOME", str(home))
    for origin in ("source", "cache"):
        data = stage_dataset(source, local_dir=tmp_path / origin, progress=False)
        assert data.report.origin == origin
    assert (home / "colabstage" / data.path.name).read_bytes() == data.path.read_bytes()


@pytest.mark.parametrize(
    ("platform", "home", "why"),
    [("python", "home", "same disk"), ("python", "none", "no persistent"), ("kaggle", "home", "kaggle/working")],
)
def test_without_a_cache_the_report_says_why(
    platform: str, home: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tree(tmp_path / "photos", BEFORE)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("COLABSTAGE_PLATFORM", platform)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    assert plan_stage(source, local_dir=tmp_path / "here").cache is None
    data = stage_dataset(source, local_dir=tmp_path / "here", progress=False)
    assert re.match(f"no: .*{why}", data.report.cached)
    assert list((tmp_path / "home").iterdir()) == []

"""The cache in a folder, on a mounted Drive and in a bucket: from it, a new machine gets what the source holds.

What does not depend on the place is in tests/stage: test_decide.py, test_request.py and test_places.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colabstage import plan_stage, stage_dataset
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.contract.served import numbers_in
from tests.sources.servers import BucketService
from tests.support.images import in_classes, make_tree
from tests.support.invariants import Home

pytestmark = pytest.mark.usefixtures("moto_server")

BEFORE = in_classes(6)


class FolderCache:
    """A folder, possibly on a Drive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.argument = str(folder)

    def read(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.name[0] != "."}

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()


class BucketCache:
    """A folder of a bucket."""

    def __init__(self, service: BucketService) -> None:
        self.service = service
        self.argument = f"s3://{service.bucket}/cache"

    def read(self) -> dict[str, bytes]:
        keys = self.service.backend.buckets[self.service.bucket].keys
        return {key.removeprefix("cache/"): found.value for key, found in keys.items()}

    def write(self, name: str, content: bytes) -> None:
        self.service.put(f"cache/{name}", content)

    def remove(self, name: str) -> None:
        self.service.remove(f"cache/{name}")


@pytest.fixture(params=["folder", pytest.param("Drive", marks=pytest.mark.fuse), "bucket"])
def cache(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FolderCache | BucketCache]:
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    if request.param == "folder":
        yield FolderCache(tmp_path / "cache")
    elif request.param == "Drive":
        with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
            drive.mount(tmp_path / "content/drive")
            yield FolderCache(tmp_path / "content/drive/MyDrive/cache")
    else:
        yield BucketCache(request.getfixturevalue("s3"))


class Machines:
    """One source, staged on a new machine each time."""

    def __init__(self, root: Path, cache: FolderCache | BucketCache) -> None:
        self.source = make_tree(root / "mine/photos", BEFORE)
        self.cache = cache
        self._root = root
        self._count = 0

    def stage(self, *, is_spoilt: bool = False, **options: Any) -> Any:
        self._count += 1
        local = self._root / f"local{self._count}"
        home = Home(self._root, theirs=["mine"])
        data = stage_dataset(
            self.source, **{"local_dir": local, "cache_dir": self.cache.argument, "progress": False, **options}
        )
        data.wait(60, progress=False).wait_published()
        home.check(finished=not is_spoilt)
        return data


@pytest.fixture
def machines(tmp_path: Path, cache: FolderCache | BucketCache) -> Machines:
    return Machines(tmp_path, cache)


def on_each(folder: Any, drive: Any, bucket: Any) -> pytest.MarkDecorator:
    """Run a test on each cache, with one of three sets of options, since the result does not depend on where the cache
    is."""
    cases = [("folder", folder), pytest.param("Drive", drive, marks=pytest.mark.fuse), ("bucket", bucket)]
    return pytest.mark.parametrize(("cache", "options"), cases, indirect=["cache"], ids=str)


@on_each({"wait": False}, {}, {"streaming": True})
def test_a_new_machine_copies_what_was_packed(machines: Machines, options: dict[str, Any], tmp_path: Path) -> None:
    """The plan says so too."""
    first = machines.stage()
    assert first.report.origin == "source"
    pack, cached = first.path, machines.cache.read()
    (rows,) = (name for name in cached if name.endswith(".rows"))
    assert set(cached) == {pack.name, f"{pack.name}.json", rows, f"{rows}.json"}
    assert cached[pack.name] == pack.read_bytes()
    plan = plan_stage(machines.source, local_dir=tmp_path / "new", cache_dir=machines.cache.argument)
    assert plan.action == "restore"
    again = machines.stage(**options)
    assert again.report.origin == "cache"
    assert again.path.read_bytes() == pack.read_bytes()


def spoil(cache: FolderCache | BucketCache, damage: str) -> None:
    """Damage the cached pack."""
    name = next(name for name in cache.read() if name.endswith(".h5"))
    content = cache.read()[name]
    if damage == "flipped":
        middle = len(content) // 2
        cache.write(name, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "cut":
        cache.write(name, content[: len(content) // 2])
    elif damage == "gone":
        cache.remove(name)
    else:
        cache.remove(f"{name}.json")


@pytest.mark.parametrize(
    ("cache", "damage"),
    [
        *(("folder", damage) for damage in ("flipped", "cut", "gone", "without its manifest")),
        # Each damage on a folder, and on each other place one that only the bytes show.
        pytest.param("Drive", "cut", marks=pytest.mark.fuse),
        ("bucket", "flipped"),
    ],
    indirect=["cache"],
)
def test_a_damaged_pack_is_not_served(machines: Machines, damage: str) -> None:
    """The source is read again. A file that is not as we wrote it is not replaced, and the report says so."""
    machines.stage()
    spoil(machines.cache, damage)
    again = machines.stage(is_spoilt=True)
    assert (again.report.origin, numbers_in(again.path)) == ("source", BEFORE)

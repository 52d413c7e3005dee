"""Whatever is not proved to be colabstage's own stays as it is, whichever verb could replace or remove it.

A scene is a verb that has already run once, the names that its next call would replace or remove, and that call. A
stranger is something that somebody puts under one of these names; after the call it is still there, unchanged. Without
a stranger, the call does replace it, even if a copy or a remount has moved all times.
"""

import contextlib
import itertools
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import colabstage as cs
from colabstage import list_datasets, purge_datasets
from colabstage.errors import ColabstageError, TargetExistsError
from tests.support.archives import write_archive
from tests.support.command import run_command
from tests.support.images import make_tree

IS_ROOT = os.geteuid() == 0
# Another user, such as `nobody`.
OTHER = 65534
# A tenth of the profile's examples for each of the many scenes: each example makes three calls.
QUICK = settings(max_examples=settings().max_examples // 10, suppress_health_check=list(HealthCheck))


def images(folder: Path, count: int, *, first: int = 0) -> Path:
    """Images of two classes; another `first` gives other images."""
    return make_tree(folder, {f"{'ab'[number % 2]}/{number}.png": first + number for number in range(count)})


def changed(file: Path, tag: bytes) -> Path:
    """Give a file other content of the same length."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(tag.ljust(1000, b"."))
    return file


@dataclass(frozen=True)
class Scene:
    """A verb that has already run."""

    places: tuple[Path, ...]
    """What the next call would replace or remove."""
    again: Callable[[], object]
    """The next call."""
    hashed: bool = True
    """Whether hashes prove what is at the first place, so its time does not matter."""
    replaces: bool = True
    """Whether the next call replaces or removes what is at the first place if it is ours."""


def stage(home: Path, *, local: str = "fast", cache: bool = True, **options: Any) -> Path:
    """Stage the images in `source`; return the pack, which has a manifest beside it."""
    places: Any = {"local_dir": home / local, "cache_dir": home / "cache" if cache else None}
    return cs.stage_dataset(home / "source", image_size=(8, 8), progress=False, **places, **options).path


def beside(pack: Path) -> Path:
    """The place of a file's manifest."""
    return pack.with_name(f"{pack.name}.json")


def published(home: Path) -> Scene:
    """Two versions of a checkpoint."""
    target = home / "drive/model.pt"
    for tag in (b"1", b"2"):
        cs.publish_file(changed(home / "model.pt", tag), target, progress=False)

    def again() -> None:
        for tag in (b"3", b"4"):
            cs.publish_file(changed(home / "model.pt", tag), target, progress=False)

    previous = target.with_name("model.pt.previous")
    return Scene((target, previous, beside(target), beside(previous)), again)


def restored(home: Path) -> Scene:
    """A restored checkpoint that was published anew."""
    back, target = home / "back.pt", home / "drive/model.pt"
    cs.publish_file(changed(home / "model.pt", b"1"), target, progress=False)
    cs.restore_file(target, back, progress=False)
    cs.publish_file(changed(home / "model.pt", b"2"), target, progress=False)
    return Scene((back,), lambda: cs.restore_file(target, back, progress=False), replaces=False)


def fetched_file(home: Path) -> Scene:
    """A copy of a file whose source has changed."""
    source, target = changed(home / "data.bin", b"1"), home / "copy.bin"
    cs.fetch_files(source, target, progress=False)
    changed(source, b"2")
    return Scene((target,), lambda: cs.fetch_files(source, target, progress=False))


def fetched_folder(home: Path) -> Scene:
    """A copy of a folder whose source has changed."""
    source, target = images(home / "source", 4), home / "copy"
    cs.fetch_files(source, target, progress=False)
    images(source, 4, first=10)
    return Scene((target / "a/0.png", target), lambda: cs.fetch_files(source, target, progress=False), hashed=False)


def extracted(home: Path) -> Scene:
    """A folder from an archive that has changed."""
    archive, target = home / "a.zip", home / "out"

    write_archive(archive, {f"{number}.txt": b"1" * 50 for number in range(4)})
    cs.extract_archive(archive, target, progress=False)
    write_archive(archive, {f"{number}.txt": b"2" * 50 for number in range(4)})
    return Scene((target / "0.txt", target), lambda: cs.extract_archive(archive, target, progress=False), hashed=False)


def packed_in_shards(home: Path, *, count: int = 2) -> Scene:
    """A set of two shards, to be replaced by `count` others."""
    source, target = images(home / "source", 8), home / "p.h5"

    def pack(count: int, side: int) -> tuple[Path, ...]:
        options: Any = {"image_size": (side, side), "overwrite": True, "progress": False}
        return tuple(map(Path, cs.pack_dataset(source, target, shards=count, **options).files))

    return Scene(pack(2, 8), lambda: pack(count, 9))


def packed_in_more_shards(home: Path) -> Scene:
    """A set of shards, to be replaced by more of them."""
    return packed_in_shards(home, count=3)


def packed(home: Path) -> Scene:
    """A pack without permission to replace it."""
    source, target = images(home / "source", 8), home / "p.h5"

    def pack() -> None:
        cs.pack_dataset(source, target, image_size=(8, 8), progress=False)

    pack()
    target.unlink()
    return Scene((beside(target), target), pack, hashed=False)


def staged(home: Path) -> Scene:
    """A local dataset whose source has changed."""
    images(home / "source", 8)
    path = stage(home, cache=False)
    images(home / "source", 8, first=20)
    return Scene((path, beside(path)), lambda: stage(home, cache=False, refresh=True))


def cached(home: Path) -> Scene:
    """A cached dataset whose source has changed, with the version published before."""
    images(home / "source", 8)
    pack = home / "cache" / stage(home).name
    images(home / "source", 8, first=20)
    return Scene((pack, beside(pack)), lambda: stage(home, refresh=True))


def restaged_from_cache(home: Path) -> Scene:
    """A local pack, to be replaced by the cached pack of another state of its source."""
    images(home / "source", 8)
    path = stage(home)
    images(home / "source", 8, first=20)
    stage(home, local="another machine")
    return Scene((path, beside(path)), lambda: stage(home))


def purge(home: Path) -> None:
    """Remove all datasets."""
    purge_datasets(list_datasets(local_dir=home / "fast", cache_dir=home / "cache"))


def purged_here(home: Path) -> Scene:
    """A dataset with plain files, to be removed."""
    images(home / "source", 8)
    path = stage(home, cache=False, keep="both")
    (file,) = (home / "fast").rglob("files/a/0.png")
    return Scene((path, beside(path), file), lambda: purge(home))


def purged_cache(home: Path) -> Scene:
    """A pack in the cache, to be removed."""
    images(home / "source", 8)
    pack = home / "cache" / stage(home).name
    shutil.rmtree(home / "fast")
    return Scene((pack, beside(pack)), lambda: purge(home))


SCENES = {
    make.__name__: make
    for make in (
        published,
        restored,
        fetched_file,
        fetched_folder,
        extracted,
        packed,
        packed_in_shards,
        packed_in_more_shards,
        staged,
        cached,
        restaged_from_cache,
        purged_here,
        purged_cache,
    )
}


@dataclass(frozen=True)
class Stranger:
    """Something that somebody puts under a name, and how."""

    by: str
    """How it gets there."""
    same_size: bool
    """Whether it is as long as the original."""
    time: str
    """Its time, relative to the original's."""
    is_others: bool
    """Whether another user made it."""
    place: int
    """Which of the scene's names it gets."""


STRANGERS = st.builds(
    Stranger,
    by=st.sampled_from(["write", "cp", "cp -p", "mv", "rsync -a", "cp -l", "link", "dangling link"]),
    same_size=st.booleans(),
    time=st.sampled_from(["a year older", "a moment older", "the same second", "of the manifest", "newer", "ahead"]),
    is_others=st.booleans() if IS_ROOT else st.just(value=False),
    place=st.integers(0, 3),
)


def time_ns(stranger: Stranger, was: os.stat_result, manifest: Path) -> int:
    """Return the time that a stranger gets."""
    moved = {"a year older": -31_536_000_000_000_000, "a moment older": -1, "newer": 1_000_000, "ahead": 10**14}
    if stranger.time == "of the manifest" and manifest.exists() and manifest.stat().st_mtime_ns != was.st_mtime_ns:
        return manifest.stat().st_mtime_ns
    # Only exactly the same time would not be noticed.
    second = (was.st_mtime_ns - 1) // 10**9 * 10**9
    return was.st_mtime_ns + moved[stranger.time] if stranger.time in moved else second


def put(stranger: Stranger, place: Path, home: Path) -> Path:
    """Put a stranger in a place; return the file with its content."""
    was = place.lstat()
    is_folder = stat.S_ISDIR(was.st_mode)
    content = b"yours" if is_folder else b"MINE".ljust(was.st_size, b"!")[: was.st_size]
    mine = home / "elsewhere" / "mine"
    mine.parent.mkdir(exist_ok=True)
    mine.write_bytes(content if stranger.same_size else content + b"and more")
    ns = time_ns(stranger, was, beside(place))
    os.utime(mine, ns=(ns, ns))
    if is_folder:
        # A folder of the user's that contains the file.
        shutil.rmtree(place)
        place.mkdir()
        shutil.copy2(mine, place / "mine")
    elif stranger.by == "write":
        place.write_bytes(mine.read_bytes())
        os.utime(place, ns=(ns, ns))
    elif stranger.by == "cp":
        shutil.copyfile(mine, place)
    elif stranger.by == "cp -p":
        shutil.copy2(mine, place)
    elif stranger.by in ("mv", "rsync -a"):
        coming = place.with_name("coming") if stranger.by == "rsync -a" else home / "elsewhere" / "coming"
        shutil.copy2(mine, coming)
        coming.replace(place)
    else:
        place.unlink()
        if stranger.by == "cp -l":
            place.hardlink_to(mine)
        else:
            place.symlink_to(mine if stranger.by == "link" else home / "nothing")
    if stranger.is_others:
        os.chown(place, OTHER, OTHER, follow_symlinks=False)
    return mine


def facts(path: Path) -> dict[str, object]:
    """Everything that a call could change about a path and below it."""
    if not os.path.lexists(path):
        return {}
    found = path.lstat()
    known: dict[str, object] = {str(path): (found.st_mode, found.st_uid, found.st_size, found.st_ino)}
    if stat.S_ISLNK(found.st_mode):
        known["link"] = path.readlink()
    elif stat.S_ISREG(found.st_mode):
        known["content"] = path.read_bytes(), found.st_mtime_ns
    else:
        for inside in path.iterdir():
            known |= facts(inside)
    return known


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own machine."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
@given(stranger=STRANGERS)
@QUICK
def test_what_is_not_proved_ours_stays(name: str, stranger: Stranger, base: Path) -> None:
    """Whoever made it, however it was copied, of any size and time, link or not."""
    home = Path(tempfile.mkdtemp(dir=base))
    scene = SCENES[name](home)
    place = scene.places[stranger.place % len(scene.places)]
    if not os.path.lexists(place):
        changed(place, b"another")
    mine = put(stranger, place, home)
    before = facts(place), facts(mine)
    with contextlib.suppress(ColabstageError):
        scene.again()
    assert (facts(place), facts(mine)) == before
    shutil.rmtree(home)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("name", SCENES)
def test_what_is_ours_is_replaced_or_removed(name: str, moved: bool, base: Path) -> None:
    """Otherwise the test above would prove nothing. If a copy or a remount has moved the times, hashes are the
    proof."""
    scene = SCENES[name](base)
    if not scene.replaces:
        with pytest.raises(TargetExistsError):
            scene.again()
        return
    if moved and not scene.hashed:
        pytest.skip("only sizes and times prove it")
    place = scene.places[0]
    if moved:
        for file in place.parent.glob("*.h5*" if place.name.endswith(".h5") else "*"):
            ns = file.stat().st_mtime_ns + 10**10
            os.utime(file, ns=(ns, ns))
    before = facts(place)
    scene.again()
    assert facts(place) != before


@cache
def this_boot() -> str:
    """The part of an unfinished pack's name that identifies the boot, read while its samples are read."""
    seen: set[str] = set()
    with tempfile.TemporaryDirectory() as home:

        def look(x: Any) -> Any:
            seen.update(path.name for path in Path(home).iterdir())
            return x

        cs.pack_dataset(images(Path(home, "source"), 2), Path(home, "p.h5"), prepare=look, progress=False)
    (boot,) = {found[1] for found in map(re.compile(r"\.colabstage-p\.h5\.(\w{8})-").match, seen) if found}
    return boot


KINDS = ("link to a folder", "link to a file", "another user's folder", "another user's file")
SUFFIXES = (".tmp", ".old", ".was", ".receipt", ".draft")


def plant(kind: str, planted: Path, thesis: Path) -> None:
    """Put something that is not ours under the name of unfinished work."""
    if kind == "link to a folder":
        planted.symlink_to(thesis)
    elif kind == "link to a file":
        planted.symlink_to(thesis / "a/0.png")
    elif kind == "another user's file":
        planted.write_bytes(b"[]")
    else:
        planted.mkdir()
        (planted / "0.png").symlink_to(thesis / "a/0.png")
    long_ago = time.time() - 200_000
    for path in (planted, *planted.glob("*")) if planted.is_dir() and not planted.is_symlink() else (planted,):
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
        if "another" in kind:
            os.chown(path, OTHER, OTHER, follow_symlinks=False)


@pytest.mark.parametrize("name", SCENES)
def test_a_name_is_no_evidence(name: str, base: Path) -> None:
    """Links, and files of another user, are not taken for unfinished work, followed, emptied or removed; neither those
    of this boot nor others, beside any of the places."""
    scene, thesis = SCENES[name](base), images(base / "thesis", 2)
    kinds = [kind for kind in KINDS if IS_ROOT or "another" not in kind]
    planted = []
    for place, suffix, owner in itertools.product(scene.places, SUFFIXES, ("deadbeef-12-34", f"{this_boot()}-0-0")):
        for at, kind in enumerate(kinds):
            planted.append(place.with_name(f".colabstage-{place.name}.{owner}.{at}{suffix}"))
            plant(kind, planted[-1], thesis)
    before = [*map(facts, planted), facts(thesis)]
    with contextlib.suppress(ColabstageError):
        scene.again()
    flags = "--local-dir", str(base / "fast"), "--cache-dir", str(base / "cache")
    assert run_command("cache", "purge", "--older-than", "9999", "--yes", *flags).returncode == 0
    assert [*map(facts, planted), facts(thesis)] == before

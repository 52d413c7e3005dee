"""A place for packs and checkpoints, a folder or a bucket: each file in it is whole or not ours, whatever happened."""

import contextlib
import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash

from colabstage.errors import ColabstageError, DamagedPackError, TargetExistsError, TargetNotWritableError
from colabstage.stage.places import BucketPlace, FolderPlace, Place
from colabstage.stage.publish import publish
from tests.sources.servers import BucketService
from tests.support.steps import OneStep

pytestmark = pytest.mark.usefixtures("moto_server")

OLD, NEW = b"old" * 1000, b"new" * 1000
NAME = "model.pt"


def manifest(content: bytes) -> bytes:
    """A manifest of one-block content, without a time, so that only hashes prove it."""
    said = {"block_bytes": 8 << 20, "hashes": [xxhash.xxh3_64_hexdigest(content)], "size": len(content), "version": 1}
    rest = {"identity": {}, "key": "", "samples": {}, "skipped": [], "written_by": ""}
    return (json.dumps({**said, **rest}, indent=1, sort_keys=True) + "\n").encode()


class Kept:
    """A place, and its content."""

    def __init__(self, place: Place, folder: Path, service: BucketService | None) -> None:
        self.place, self.folder, self.service = place, folder, service

    def publish(self, content: bytes = NEW) -> Any:
        return self.publish_from(NAME, content)

    def publish_from(self, name: str, content: bytes) -> Any:
        mine = self.folder.parent / name
        mine.write_bytes(content)
        return publish(self.place, mine, NAME, progress=OneStep())

    def write(self, name: str, content: bytes) -> None:
        if self.service is None:
            self.folder.mkdir(exist_ok=True)
            (self.folder / name).write_bytes(content)
        else:
            self.service.put(f"{self.folder.name}/{name}", content)

    def read(self) -> dict[str, bytes]:
        if self.service is None:
            return {path.name: path.read_bytes() for path in self.folder.glob("*")}
        found = self.service.backend.buckets[self.service.bucket].keys
        folder = f"{self.folder.name}/"
        return {key.removeprefix(folder): one.value for key, one in found.items() if key.startswith(folder)}

    def versions(self) -> dict[str, bytes]:
        """The files that agree with their manifest; there must be no others."""
        found = self.read()
        files = {name: content for name, content in found.items() if f"{name}.json" in found}
        assert set(found) == {f"{name}{end}" for name in files for end in ("", ".json")}
        for name, content in files.items():
            assert json.loads(found[f"{name}.json"])["hashes"] == [xxhash.xxh3_64_hexdigest(content)]
        return files


@pytest.fixture(params=["folder", "bucket"])
def make_kept(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Kept]:
    """Make an empty place."""
    numbers = itertools.count()

    def make() -> Kept:
        folder = tmp_path / f"kept{next(numbers)}"
        if request.param == "folder":
            return Kept(FolderPlace(folder), folder, None)
        service: BucketService = request.getfixturevalue("s3")
        source: Any = SimpleNamespace(url=f"s3://{service.bucket}/{folder.name}", label="the bucket")
        return Kept(BucketPlace(source), folder, service)

    return make


@pytest.fixture
def kept(make_kept: Callable[[], Kept]) -> Kept:
    return make_kept()


def test_a_version_replaces_ours(kept: Kept) -> None:
    for content in (b"first" * 1000, OLD, NEW):
        assert kept.publish(content).kept_bytes == 0
    previous = {f"{NAME}.previous": OLD} if kept.place.keeps_previous else {}
    assert kept.versions() == {NAME: NEW, **previous}
    assert kept.publish(NEW).kept_bytes == len(NEW)
    assert kept.versions() == {NAME: NEW, **previous}
    (found,) = kept.place.look([NAME])
    assert found is not None
    assert (found.is_whole, found.name, found.nbytes) == (True, NAME, len(NEW))
    assert kept.place.discard(NAME)
    assert kept.place.look([NAME]) == [None]


# What may be there before, from the manifests of two versions and other bytes: after a kill at some moment, from an
# earlier release, or because a copy has lost its times.
def states() -> dict[str, dict[str, bytes]]:
    old, new = manifest(OLD), manifest(NEW)
    return {
        "an older version without its time": {NAME: OLD, f"{NAME}.json": old},
        "the note alone": {f"{NAME}.unfinished": new},
        "the beginning of a note": {f"{NAME}.unfinished": new[:20]},
        "a note beside the old version": {NAME: OLD, f"{NAME}.json": old, f"{NAME}.unfinished": new},
        "the manifest alone": {f"{NAME}.json": old},
        "the file and its note": {NAME: NEW, f"{NAME}.unfinished": new},
        "another file and its note": {NAME: OLD, f"{NAME}.unfinished": old},
        "the same bytes without anything": {NAME: NEW},
        "the same bytes and the beginning of a manifest": {NAME: NEW, f"{NAME}.json": new[:20]},
        "the previous version alone": {f"{NAME}.previous": OLD, f"{NAME}.previous.json": old},
        "both, before the old one has its name": {NAME: OLD, f"{NAME}.json": old, f"{NAME}.previous.json": old},
    }


def test_what_was_left_is_gone_on_with(make_kept: Callable[[], Kept]) -> None:
    for name, before in states().items():
        kept = make_kept()
        for one, content in before.items():
            kept.write(one, content)
        assert kept.publish().kept_bytes == (len(NEW) if before.get(NAME) == NEW else 0), name
        found = kept.versions() if kept.place.keeps_previous else {NAME: kept.read()[NAME]}
        is_kept = kept.place.keeps_previous and (before.get(NAME) == OLD or f"{NAME}.previous" in before)
        assert found == {NAME: NEW, **({f"{NAME}.previous": OLD} if is_kept else {})}, name
        assert f"{NAME}.unfinished" not in kept.read(), name


def test_a_run_that_dies_takes_no_evidence_of_the_one_before(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note is all that speaks for what a killed run has put there."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    kept.write(NAME, OLD)
    kept.write(f"{NAME}.unfinished", manifest(OLD))
    with monkeypatch.context() as dying:
        dying.setattr(kept.place, "send", die)
        with pytest.raises(KeyboardInterrupt):
            kept.publish()
    assert kept.versions() == {NAME: OLD}
    kept.publish()
    assert kept.versions()[NAME] == NEW


def test_without_the_right_to_remove_what_is_new_is_published(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a login that may add objects to a bucket; replacing one is refused."""

    def refuse(name: str, _: object) -> None:
        raise TargetNotWritableError(name)

    monkeypatch.setattr(kept.place, "remove", refuse)
    kept.publish(OLD)
    found = {name: content for name, content in kept.read().items() if not name.endswith(".unfinished")}
    assert (set(found), found[NAME]) == ({NAME, f"{NAME}.json"}, OLD)
    assert kept.publish(OLD).kept_bytes == len(OLD)


STRANGERS: dict[str, dict[str, bytes]] = {
    "a file without a manifest": {NAME: OLD},
    "a file that was written to": {NAME: b"edit" + OLD[4:], f"{NAME}.json": manifest(OLD)},
    "a file that grew": {NAME: OLD + b"!", f"{NAME}.json": manifest(OLD)},
    "notes under the manifest's name": {f"{NAME}.json": b'{"epoch": 3}'},
    "a text under the note's name": {f"{NAME}.unfinished": b"to do"},
    "a previous version of somebody's": {
        NAME: OLD, f"{NAME}.json": manifest(OLD), f"{NAME}.previous": b"precious"
    },
}  # fmt: skip


def test_what_is_not_ours_stays(make_kept: Callable[[], Kept]) -> None:
    for name, before in STRANGERS.items():
        kept = make_kept()
        for one, content in before.items():
            kept.write(one, content)
        if f"{NAME}.previous" in before and not kept.place.keeps_previous:
            kept.publish()
            assert kept.read()[f"{NAME}.previous"] == b"precious"
            continue
        with pytest.raises(TargetExistsError, match=NAME):
            kept.publish()
        assert kept.read() == before, name
        if f"{NAME}.previous" not in before:
            assert kept.place.discard(NAME) is (NAME not in before), name
            assert kept.read() == before, name


def test_several_at_once_leave_whole_versions(kept: Kept) -> None:
    contents = [bytes([number]) * 5000 for number in range(4)]
    refused: list[BaseException] = []

    def act(content: bytes) -> None:
        try:
            kept.publish_from(f"{content[0]}.pt", content)
        except TargetExistsError as error:
            refused.append(error)

    threads = [threading.Thread(target=act, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) < len(threads)
    found = kept.versions()
    assert found[NAME] in contents
    assert set(found.values()) <= set(contents)


@pytest.mark.parametrize("before", [{}, {NAME: OLD, f"{NAME}.json": manifest(OLD)}], ids=["nothing", "a version"])
def test_what_is_removed_between_two_requests_is_at_most_in_the_way(
    s3: BucketService, tmp_path: Path, before: dict[str, bytes]
) -> None:
    for at in range(2, 12, 2):
        source: Any = SimpleNamespace(url=f"s3://{s3.bucket}/{at}", label="the bucket")
        kept = Kept(BucketPlace(source), tmp_path / str(at), s3)
        for name, content in before.items():
            kept.write(name, content)
        s3.hold(at, lambda at=at: s3.remove(f"{at}/{NAME}"))  # type: ignore[misc]
        # It says to try again, which helps.
        with contextlib.suppress(TargetExistsError, DamagedPackError):
            kept.publish()
        kept.publish()
        assert kept.versions() == {NAME: NEW}, at


@pytest.mark.parametrize("before", [(), (OLD,)], ids=["a new name", "over an older version"])
@pytest.mark.parametrize(
    "stride", [9, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(600)])], ids=["some", "each"]
)
def test_another_machine_publishes_between_two_requests(
    s3: BucketService, tmp_path: Path, before: tuple[bytes, ...], stride: int
) -> None:
    """One of those that succeed has the name; what the other one left is in nobody's way."""
    others = b"others" * 1000
    for at in itertools.count(1, stride):
        source: Any = SimpleNamespace(url=f"s3://{s3.bucket}/{at}", label="the bucket")
        kept, succeeded = Kept(BucketPlace(source), tmp_path / str(at), s3), list[bytes]()

        def act(content: bytes, kept: Kept = kept, succeeded: list[bytes] = succeeded) -> None:
            with contextlib.suppress(ColabstageError):
                kept.publish_from(f"{content[:6].decode()}.bin", content)
                succeeded.append(content)

        for content in before:
            kept.publish(content)
        s3.hold(at, lambda act=act: act(others))  # type: ignore[misc]
        act(NEW)
        if s3.is_holding:
            return
        found = kept.read()
        assert found[NAME] in succeeded, at
        assert json.loads(found[f"{NAME}.json"])["hashes"] == [xxhash.xxh3_64_hexdigest(found[NAME])], at
        kept.publish(b"last" * 1000)
        assert kept.versions() == {NAME: b"last" * 1000}, at

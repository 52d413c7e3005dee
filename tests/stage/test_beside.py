"""A cached pack is copied while the source is compared with the state it was made from."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import StagedDataset, stage_dataset
from colabstage.errors import CancelledError
from tests.support.images import in_classes, make_tree
from tests.support.steps import Meanwhile, wait_until

WAIT_S = 30


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "photos", in_classes(20))


@pytest.fixture
def cached(photos: Path, tmp_path: Path) -> Callable[..., StagedDataset]:
    """Stage on a machine that has nothing yet; the pack is already in the cache."""

    def stage(here: str = "second", **options: Any) -> StagedDataset:
        places: dict[str, Any] = {"local_dir": tmp_path / here, "cache_dir": tmp_path / "cache"}
        return stage_dataset(photos, **{"progress": False, **places, **options})

    assert stage("first").report.origin == "source"
    return stage


def listed_after(monkeypatch: pytest.MonkeyPatch, photos: Path, wait: Callable[[], object]) -> None:
    """Call `wait` before the source is listed."""
    scandir = os.scandir

    def slow(path: Any = ".") -> Any:
        if str(path) == str(photos):
            wait()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", slow)


def test_the_copy_does_not_wait_for_the_source(
    cached: Callable[..., StagedDataset], photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, answered = threading.Event(), list[bool]()
    listed_after(monkeypatch, photos, lambda: answered.append(arrived.wait(WAIT_S)))
    staged = cached(progress=Meanwhile(arrived.set, during="copy from cache"))
    assert set(answered) == {True}
    assert staged.report.origin == "cache"
    assert [step.name for step in staged.report.steps] == ["look in cache", "copy from cache"]
    assert "names, sizes and times of all files are unchanged" in staged.report.steps[-1].note


def test_a_call_that_is_cancelled_meanwhile_ends(
    cached: Callable[..., StagedDataset], photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the source never responds, and although the copy continues."""
    never = threading.Event()
    with monkeypatch.context() as patch:
        listed_after(patch, photos, lambda: never.wait(WAIT_S))
        progress = Meanwhile(lambda: progress.cancellation.cancel(), during="copy from cache")  # noqa: PLW0108
        with pytest.raises(CancelledError):
            cached(progress=progress)
        never.set()
    assert cached().report.origin == "cache"


@pytest.mark.torch
def test_nothing_is_handed_out_before_the_source_is_known_to_be_the_same(
    cached: Callable[..., StagedDataset], photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handed_out, seen = threading.Event(), list[bool]()

    def is_copied() -> bool:
        return any(".copy" in str(path) and path.stat().st_blocks for path in (tmp_path / "second").rglob("*.h5"))

    def look() -> None:
        if not seen:
            wait_until(is_copied)
            # Long enough for the dataset to be returned, if nothing held it back.
            seen.append(handed_out.wait(0.3))

    listed_after(monkeypatch, photos, look)
    staged = cached(streaming=True)
    handed_out.set()
    assert seen == [False]
    assert sum(len(y) for _, y in staged.loader("train", 5)) == 20
    staged.wait(progress=False)
    assert staged.report.origin == "cache"


@pytest.mark.torch
def test_a_copy_of_an_earlier_state_is_never_used(
    cached: Callable[..., StagedDataset], photos: Path, tmp_path: Path
) -> None:
    make_tree(photos, in_classes(4, first=20))
    staged = cached(streaming=True)
    assert sum(len(y) for _, y in staged.loader("train", 5)) == 24
    staged = staged.wait(progress=False)
    staged.wait_published()  # it runs in the background, and its unfinished copy would look left behind
    assert (staged.report.origin, staged.splits) == ("source", {"train": 24})
    notes = {step.name: step.note for step in staged.report.steps}
    assert "earlier state" in notes["copy from cache"]
    assert not [path for path in (tmp_path / "second").rglob("*") if ".copy" in path.name]

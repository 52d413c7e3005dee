"""A cached pack is copied while the source is compared with the state that it was made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import stage_dataset
from colabstage.errors import CancelledError
from colabstage.io.progress import Cancellation, Progress
from colabstage.trees.folder import FolderTree
from tests.support.steps import Meanwhile

if TYPE_CHECKING:
    from colabstage import StagedDataset
    from colabstage.io.progress import ProgressStep

MakeImages = Callable[..., Path]
WAIT_S = 30


class AtFirstBlock(Progress):
    """Do something when the first block of the pack is here: cancel the call, if nothing else is said."""

    def __init__(self, act: Callable[[], object] | None = None) -> None:
        self.cancellation = Cancellation()
        self._act = act or self.cancellation.cancel

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        step = super().step(name, total=total, unit=unit)
        return step if name != "copy from cache" else Meanwhile(self._act)


@pytest.fixture
def cached(photos: Path, tmp_path: Path) -> Callable[..., StagedDataset]:
    """Stage on a machine that has nothing yet; the pack is in the cache already."""

    def stage(here: str, **options: Any) -> StagedDataset:
        return stage_dataset(photos, local_dir=tmp_path / here, cache_dir=tmp_path / "cache", **options)

    assert stage("first", progress=False).report.origin == "source"
    return stage


def test_the_copy_does_not_wait_for_the_source(
    cached: Callable[..., StagedDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, answered = threading.Event(), []
    list_names = FolderTree.listing_stamp

    def listing_stamp(tree: FolderTree) -> Any:
        answered.append(arrived.wait(WAIT_S))
        return list_names(tree)

    monkeypatch.setattr(FolderTree, "listing_stamp", listing_stamp)
    staged = cached("second", progress=AtFirstBlock(arrived.set))
    assert answered == [True]
    assert staged.report.origin == "cache"
    assert [step.name for step in staged.report.steps] == ["look in cache", "copy from cache"]
    assert "names, sizes and times of all files are unchanged" in staged.report.steps[-1].note


def test_a_copy_of_an_earlier_state_is_never_used(
    cached: Callable[..., StagedDataset], photos: Path, make_images: MakeImages, tmp_path: Path
) -> None:
    make_images(photos, 4, first=20)
    staged = cached("second", progress=False)
    assert (staged.report.origin, staged.splits) == ("source", {"train": 24})
    notes = {step.name: step.note for step in staged.report.steps}
    assert notes["copy from cache"] == "stopped: made from an earlier state of the source"
    assert not [path.name for path in (tmp_path / "second").rglob("*.copy*")]


def test_a_call_that_is_cancelled_meanwhile_ends(
    cached: Callable[..., StagedDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the source never answers, and goes on with what is here."""
    never = threading.Event()
    monkeypatch.setattr(FolderTree, "listing_stamp", lambda tree: never.wait(WAIT_S))
    with pytest.raises(CancelledError):
        cached("second", progress=AtFirstBlock())
    never.set()
    monkeypatch.undo()
    assert cached("second", progress=False).report.origin == "cache"


def copied(folder: Path) -> list[Path]:
    """Return unfinished copies of a pack of which something is here."""
    return [path for path in folder.rglob("*.h5") if ".copy" in str(path) and path.stat().st_blocks]


@pytest.mark.torch
def test_nothing_is_handed_out_before_the_source_is_known_to_be_the_same(
    cached: Callable[..., StagedDataset], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handed_out, seen = threading.Event(), []
    list_names = FolderTree.listing_stamp

    def listing_stamp(tree: FolderTree) -> Any:
        deadline = time.monotonic() + WAIT_S
        while not copied(tmp_path / "second") and time.monotonic() < deadline:
            time.sleep(0.01)
        # Long enough to be handed out, if nothing held it back.
        seen.append((bool(copied(tmp_path / "second")), handed_out.wait(0.3)))
        return list_names(tree)

    monkeypatch.setattr(FolderTree, "listing_stamp", listing_stamp)
    staged = cached("second", streaming=True, progress=False)
    handed_out.set()
    # All of it may be here by then, and still move to its place while it is opened.
    assert seen == [(True, False)]
    assert sum(len(y) for _, y in staged.loader("train", 5)) == 20
    staged.wait(progress=False)
    assert staged.report.origin == "cache"
    assert "names, sizes and times of all files are unchanged" in staged.report.steps[-1].note


@pytest.mark.torch
def test_of_an_earlier_state_nothing_is_handed_out_and_nothing_stays(
    cached: Callable[..., StagedDataset], photos: Path, make_images: MakeImages, tmp_path: Path
) -> None:
    make_images(photos, 4, first=20)
    staged = cached("second", streaming=True, progress=False)
    assert sum(len(y) for _, y in staged.loader("train", 5)) == 24
    staged = staged.wait(progress=False)
    staged.wait_published()  # in the background, and here its unfinished copy would be taken for a leftover
    assert (staged.report.origin, staged.splits) == ("source", {"train": 24})
    notes = {step.name: step.note for step in staged.report.steps}
    assert notes["copy from cache"] == "stopped: made from an earlier state of the source"
    assert not [path for path in (tmp_path / "second").rglob("*") if ".copy" in path.name]

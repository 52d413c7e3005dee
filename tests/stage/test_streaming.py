"""A dataset that is read while it is packed: what is available when, in which order, and with what result."""

from __future__ import annotations

import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from colabstage import StagedDataset, dataset_h5, stage_dataset
from colabstage.errors import CancelledError, NotStagedError, OptionError, SourceReadError
from colabstage.options import Progress, ProgressStep
from colabstage.trees.listing import FileEntry, Tree
from colabstage.trees.open import open_tree
from tests.support.archives import write_archive
from tests.support.images import make_tree, read_tree
from tests.support.made_files import image
from tests.support.staged import contents

pytestmark = pytest.mark.torch

COUNT, BATCH = 96, 8
# The rows that a first batch may contain: four units of eight, and the one after them.
FIRST = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of images whose pixel values are their numbers, some of them in a separate split."""
    files = {f"{'train' if n % 6 else 'val'}/c{n * 2 // COUNT}/{n:03}.png": n for n in range(COUNT)}
    return make_tree(tmp_path / "data", files)


@pytest.fixture
def archive(folder: Path) -> Path:
    """The same in a zip."""
    return write_archive(folder.with_suffix(".zip"), read_tree(folder))


@dataclass
class Gate:
    """Lets so many reads through, then fails or waits."""

    tickets: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    failing: Callable[[], Exception] | None = None

    def open(self) -> None:
        self.tickets.release(10 * COUNT)


class GatedTree(Tree):
    """A custom tree of a folder, whose files the gate lets through."""

    kind = "folder"

    def __init__(self, folder: Path) -> None:
        self.gate = Gate()
        self.label = str(folder)
        self._files = open_tree(folder, spool=folder)
        self.entries = self._files.entries

    def read(self, entry: FileEntry) -> bytes:
        while not self.gate.tickets.acquire(timeout=0.01):
            if self.gate.failing is not None:
                raise self.gate.failing()
        return self._files.read(entry)


@pytest.fixture
def gated(folder: Path) -> Iterator[GatedTree]:
    tree = GatedTree(folder)
    yield tree
    tree.gate.open()


def stage(source: Any, place: Path, **arguments: Any) -> StagedDataset:
    wanted = {"cache_dir": None, "progress": False, "image_size": (4, 4), **arguments}
    return stage_dataset(source, local_dir=place, **wanted)


def values(x: Any) -> list[int]:
    return [int(one) for one in x[:, 0, 0, 0]]


def test_what_comes_of_it_is_what_comes_without_pack_manifest_record_and_cache(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streamed = stage(archive, tmp_path / "a", cache_dir=tmp_path / "cache_a", streaming=True)
    published = streamed.wait_published()
    assert published is not None
    assert streamed.ready.fraction == 1
    # Everything is local: a bar would only jump, after what was printed meanwhile.
    capsys.readouterr()
    assert streamed.wait() is streamed
    assert capsys.readouterr() == ("", "")
    stage(archive, tmp_path / "b", cache_dir=tmp_path / "cache_b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != {}
    assert contents(tmp_path / "cache_a") == contents(tmp_path / "cache_b") != {}
    # The next call has nothing to do.
    again = stage(archive, tmp_path / "a", cache_dir=tmp_path / "cache_a", streaming=True)
    assert (again.report.origin, again.arriving, again.wait(), again.ready.fraction) == ("local", None, again, 1)


def test_batches_come_as_soon_as_their_rows_do_in_an_order_that_knows_nothing_of_that(
    gated: GatedTree, folder: Path, tmp_path: Path
) -> None:
    data = stage(gated, tmp_path / "a", streaming=True)
    assert (data.splits, data.classes, data.ready.rows) == ({"train": 80, "val": 16}, ("c0", "c1"), 0)
    assert not data.path.exists()
    with pytest.raises(TimeoutError, match=r"0 of 96 \(0%\) are here"):
        data.wait(0.05, progress=False)
    batches = iter(data.loader("train", BATCH, num_workers=0))
    gated.gate.tickets.release(FIRST)
    seen = [values(next(batches)[0])]
    assert data.ready.rows <= FIRST
    gated.gate.open()
    seen += [values(x) for x, _ in batches]
    assert sorted(number for batch in seen for number in batch) == [n for n in range(COUNT) if n % 6]
    data.wait(progress=False)
    # Everything is local now, also if it is reopened elsewhere.
    loader = data.loader("train", BATCH)
    assert [values(x) for x, _ in loader] == seen
    second = [values(x) for x, _ in loader]
    assert second == [values(x) for x, _ in _second_epoch(data.path)]
    other = stage(gated, tmp_path / "b", streaming=True)
    assert [values(x) for x, _ in other.loader("train", BATCH)] == seen
    other.wait(progress=False)


def test_arrays_are_the_same_whether_or_not_rows_still_arrive(tmp_path: Path) -> None:
    """They need no torch, whose filter differs from Pillow's by more than a grey level in patterns."""
    pattern = image(0, size=(69, 60), form="JPEG")
    make_tree(tmp_path / "data", {"c0/a.jpg": pattern, "c1/a.jpg": pattern})
    options: dict[str, Any] = {"encoding": "encoded", "image_size": (32, 32)}
    streamed = stage(tmp_path / "data", tmp_path / "a", streaming=True, **options)
    whole = stage(tmp_path / "data", tmp_path / "b", **options)
    for (x, _), (expected, _) in zip(streamed.to_numpy("train", 2), whole.to_numpy("train", 2), strict=True):
        np.testing.assert_array_equal(x, expected)
    streamed.wait(progress=False)


def test_what_is_shown_says_how_training_proceeds(gated: GatedTree, tmp_path: Path) -> None:
    shown = list[str]()

    class Shown(Progress, ProgressStep):
        def step(self, name: str, *, total: int | None, unit: str) -> Self:
            return self

        def background(self) -> Progress:
            return self

        def note(self, text: str) -> None:
            shown.append(text)

    gated.gate.open()
    data = stage(gated, tmp_path / "a", streaming=True, progress=Shown())
    list(data.loader("train", BATCH, num_workers=0))
    data.wait(progress=False)
    assert any(re.fullmatch(r"training: .+ samples/s, waited .+s for data", text) for text in shown)
    assert "of waiting for batches" in str(data.report)


def _second_epoch(path: Path) -> Any:
    from colabstage import make_loader

    loader = make_loader(dataset_h5(path), BATCH, seed=0)
    loader.set_epoch(1)
    return loader


@pytest.mark.parametrize("options", [{"encoding": "jpeg:90"}, {"on_error": "skip"}])
def test_a_pack_that_cannot_be_read_beforehand_is_waited_for(
    folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    sorted(folder.glob("train/*/*.png"))[3].write_bytes(b"no image")
    options = {"on_error": "skip", **options}
    whole = stage(folder, tmp_path / "a", streaming=True, **options)
    assert whole.arriving is None
    assert "had to wait for the whole pack: with " in str(whole.report)
    assert (len(whole["train"]), len(whole.report.skipped)) == (79, 1)


def test_who_cancels_keeps_what_is_packed(gated: GatedTree, tmp_path: Path) -> None:
    gated.gate.tickets.release(FIRST)
    data = stage(gated, tmp_path / "a", streaming=True)
    next(iter(data.loader("train", BATCH, num_workers=0)))
    threading.Timer(0.05, gated.gate.open).start()
    data.cancel()
    with pytest.raises(CancelledError, match="kept"):
        data.wait(progress=False)
    gated.gate.open()
    assert stage(gated, tmp_path / "a").ready.fraction == 1


def test_what_does_not_come_is_said_to_whoever_waits_and_what_is_here_stays(gated: GatedTree, tmp_path: Path) -> None:
    """Labels are here before any image is."""
    data = stage(gated, tmp_path / "a", streaming=True)
    train, there = data["train"], pickle.loads(pickle.dumps(data["train"]))
    assert sorted(train.targets) == [0] * 40 + [1] * 40
    gated.gate.tickets.release(FIRST)
    batches = iter(data.loader("train", BATCH, num_workers=0))
    here = values(next(batches)[0])
    keys = train.reader.keys(range(80))
    rows = [next(row for row, key in enumerate(keys) if f"{number}.png" in key) for number in here]
    assert values(there.read_batch(rows)[0]) == here
    gated.gate.failing = lambda: SourceReadError("'a.zip' stalls. Was it moved?")
    message = r"^'a\.zip' stalls\. Was it moved\? \d+ of 96 images were packed\. Call"
    for read in (lambda: list(batches), lambda: there.read_batch(range(80))):
        with pytest.raises(SourceReadError, match=message):
            read()
    assert values(train.read_batch(rows)[0]) == here
    with pytest.raises(SourceReadError, match="stalls"):
        data.wait(progress=False)


def test_another_process_reads_what_is_being_packed(gated: GatedTree, tmp_path: Path) -> None:
    gated.gate.tickets.release(BATCH)
    data = stage(gated, tmp_path / "a", streaming=True)
    sent = pickle.dumps(data["train"])
    gated.gate.open()
    here = data["train"]
    # As a new worker process opens it, during packing or after.
    for _ in range(2):
        there = pickle.loads(sent)
        assert (there[7][0] == here[7][0]).all()
        assert there.reader.keys([7]) == here.reader.keys([7])
        data.wait(progress=False)


def test_what_cannot_be_streamed_says_so(gated: GatedTree, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="keep='both'"):
        stage(folder, tmp_path / "a", streaming=True, keep="both")
    data = stage(gated, tmp_path / "c", streaming=True)
    with pytest.raises(OptionError, match=re.escape("after data.wait()")):
        data.loader("train", BATCH, shuffle=True)
    gated.gate.open()
    data.wait(progress=False)


SCRIPT = """
import os, pickle, signal, sys, time
folder, place, what = sys.argv[1:]
from pathlib import Path
from colabstage import stage_dataset
from colabstage.errors import ColabstageError
from colabstage.trees.listing import Tree
from colabstage.trees.open import open_tree
class Slow(Tree):
    kind = "folder"
    def __init__(self, folder):
        self._files = open_tree(folder, spool=folder)
        self.label, self.entries, self.reads = str(folder), self._files.entries, 0
    def read(self, entry):
        self.reads += 1
        time.sleep(0.02 if what != "kill" or self.reads < 60 else 60)
        return self._files.read(entry)
data = stage_dataset(Slow(Path(folder)), local_dir=place, cache_dir=None, progress=False,
    image_size=(4, 4), streaming=True)
if what == "fill":
    try:
        with open(f"{place}/other", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError:
        pass
    try:
        data.wait(progress=False)
    except ColabstageError as error:
        sys.exit(f"typed: {type(error).__name__}")
    sys.exit()
while data.ready.rows < 40:
    time.sleep(0.005)
if what == "kill":
    Path(place, "sent").write_bytes(pickle.dumps(data["train"]))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_script(folder: Path, place: Path, what: str) -> subprocess.CompletedProcess[bytes]:
    """Stage the folder slowly in a process of its own, until some rows are here."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(place), what]
    return subprocess.run(command, capture_output=True, check=False, timeout=120)


def test_the_interpreters_end_costs_what_was_under_way(gated: GatedTree, folder: Path, tmp_path: Path) -> None:
    gated.gate.open()
    ended = run_script(folder, tmp_path / "a", "end")
    assert (ended.returncode, ended.stderr) == (0, b"")
    again = stage(gated, tmp_path / "a", streaming=True)
    assert again.ready.rows >= 8
    again.wait(progress=False)
    stage(gated, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_packer_that_was_killed_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    """Nor is one whose unfinished work is gone."""
    place = tmp_path / "a"
    assert run_script(folder, place, "kill").returncode == -signal.SIGKILL
    sent = (place / "sent").read_bytes()
    with pytest.raises(NotStagedError, match="stage_dataset"):
        pickle.loads(sent).read_batch(range(80))
    shutil.rmtree(place)
    with pytest.raises(NotStagedError, match="stage_dataset"):
        pickle.loads(sent).read_batch(range(80))


def test_a_disk_that_becomes_full_kills_no_process(folder: Path, small_disk: Path) -> None:
    """Rows are noted in mapped memory, which has its space from the beginning: to write into a hole of it would end
    the process by a signal."""
    ended = run_script(folder, small_disk, "fill")
    assert ended.returncode == 0 or (ended.returncode == 1 and ended.stderr.startswith(b"typed: ")), ended.stderr

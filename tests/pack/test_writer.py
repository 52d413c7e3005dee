"""Reading, decoding and writing in any order and any number of threads gives one result; failures name their file."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import (
    CancelledError,
    DriveDisconnectedError,
    NotEnoughSpaceError,
    SourceNotFoundError,
    SourceReadError,
)
from colabstage.io.pipeline import PipelineLimits, PipelineResult, run_pipeline
from colabstage.io.progress import Cancellation, Progress
from colabstage.options import PackOptions
from colabstage.pack import execute, writer
from colabstage.pack.execute import run_pack
from colabstage.pack.job import prepare_pack
from colabstage.trees.folder import FolderTree
from colabstage.trees.listing import Tree
from tests.support.steps import OneStep

if TYPE_CHECKING:
    from colabstage.pack.execute import PackReport
    from colabstage.trees.listing import FileEntry

MakeImages = Callable[..., Path]


class WatchedTree(Tree):
    """A folder on a disk; before each read, `before` is told of the file and may do what a disk or person would."""

    def __init__(self, folder: Path, before: Callable[[FileEntry], None]) -> None:
        self._tree = FolderTree(folder)
        self._before = before
        self.kind = "folder"
        self.label = str(folder)
        self.entries = self._tree.entries

    def read(self, entry: FileEntry) -> bytes:
        """The content, after `before`."""
        self._before(entry)
        return self._tree.read(entry)


@pytest.mark.parametrize(
    ("side", "encoding", "alone"),
    [(8, "pixels", True), (60, "pixels", False), (60, "encoded", True), (160, "encoded", False)],
)
def test_tiny_files_of_a_fast_folder_are_packed_by_one_worker(
    tmp_path: Path, make_images: MakeImages, monkeypatch: pytest.MonkeyPatch, side: int, encoding: str, alone: bool
) -> None:
    """Several would only wait for each other in Python; on a slow source, and of larger files, each core has one."""
    workers: list[int] = []

    def run(*arguments: Any, limits: PipelineLimits, **options: Any) -> PipelineResult:
        workers.append(limits.workers)
        return run_pipeline(*arguments, limits=limits, **options)

    monkeypatch.setattr(execute, "usable_cores", lambda: 4)
    monkeypatch.setattr(writer, "run_pipeline", run)
    with FolderTree(make_images(tmp_path / "photos", 12, size=(side, side))) as tree:
        job = prepare_pack(tree, PackOptions(encoding=encoding), free_bytes=None)
        for slow in (False, True):
            run_pack(job, tmp_path / "a.h5", slow=slow, progress=Progress(), cancellation=Cancellation())
    assert workers == [1 if alone else 4, 4]


def _pack(tree: Any, out: Path, *, watch: Callable[[int], object] | None = None, **options: Any) -> PackReport:
    """Pack with 32 readers; `watch` is told how many samples are done."""
    job = prepare_pack(tree, PackOptions(**options), free_bytes=None)
    cancellation = Cancellation()
    progress = _Watched(watch, cancellation) if watch else Progress()
    return run_pack(job, out, slow=True, progress=progress, cancellation=cancellation)


class _Watched(OneStep):
    """Tells how many samples are done; a `True` in answer cancels the work."""

    def __init__(self, watch: Callable[[int], object], cancellation: Cancellation) -> None:
        self._watch = watch
        self._cancellation = cancellation
        self._done = 0

    def advance(self, amount: int = 1) -> None:
        """Count, tell, and cancel if told so."""
        self._done += amount
        if self._watch(self._done):
            self._cancellation.cancel()


def test_cancelling_stops_and_keeps_finished_work(tmp_path: Path, make_images: MakeImages) -> None:
    """A cancelled pack leaves nothing at its target, and the next try need not do everything again."""
    photos = make_images(tmp_path / "photos", 300)
    out = tmp_path / "out.h5"

    def cancel_at_half(done: int) -> bool:
        if done >= 150:
            threading.Event().wait(0.05)  # the caller looks several times a second
        return done >= 150

    with pytest.raises(CancelledError):
        _pack(FolderTree(photos), out, watch=cancel_at_half, encoding="encoded")
    assert not out.exists()
    report = _pack(FolderTree(photos), out, encoding="encoded")
    assert 50 < report.resumed < 300


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.EIO, SourceReadError),
        (errno.EACCES, SourceReadError),
        (errno.ENOTCONN, DriveDisconnectedError),
        (errno.ENOENT, SourceNotFoundError),
    ],
)
def test_a_source_that_fails_is_named_and_finished_work_is_kept(
    tmp_path: Path, make_images: MakeImages, code: int, error: type[Exception]
) -> None:
    """A read that fails for good is a typed error with the file's name; afterwards only the rest is done."""
    photos = make_images(tmp_path / "photos", 120)

    def fail(entry: FileEntry) -> None:
        if "0119" in entry.name:
            raise OSError(code, os.strerror(code))

    out = tmp_path / "out.h5"
    with pytest.raises(error, match="0119"):
        _pack(WatchedTree(photos, fail), out, encoding="encoded")
    assert not out.exists()
    report = _pack(FolderTree(photos), out, encoding="encoded")
    assert report.samples == {"train": 120}
    # Where the read was tried again for a second, the others had time to get into their places.
    assert report.resumed > 100 or code not in (errno.EIO, errno.ENOENT)


def test_a_passing_failure_does_not_show(tmp_path: Path, make_images: MakeImages) -> None:
    """A read that fails once with errno 5 is tried again."""
    photos = make_images(tmp_path / "photos", 30)
    failed: set[str] = set()
    lock = threading.Lock()

    def fail_once(entry: FileEntry) -> None:
        with lock:
            first = entry.name not in failed and "7" in entry.name
            failed.add(entry.name)
        if first:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    out = tmp_path / "out.h5"
    assert _pack(WatchedTree(photos, fail_once), out, encoding="encoded").samples == {"train": 30}


def test_an_image_that_changes_while_it_is_read_is_an_error(tmp_path: Path, make_images: MakeImages) -> None:
    """A file that is no longer as long as it was listed stops the pack instead of spilling over its neighbour."""
    photos = make_images(tmp_path / "photos", 30)

    def grow(entry: FileEntry) -> None:
        if "0017" in entry.name:
            with (photos / entry.name).open("ab") as file:
                file.write(b"more")

    with pytest.raises(SourceReadError, match="0017"):
        _pack(WatchedTree(photos, grow), tmp_path / "out.h5", encoding="encoded")
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_a_disk_that_fills_up_midway_is_a_lack_of_space_and_left_as_it_was(
    small_disk: Path, tmp_path: Path, make_images: MakeImages, encoding: str
) -> None:
    """When somebody else takes the room that was there at the start, the error says so and nothing of ours stays."""
    photos = make_images(tmp_path / "photos", 40, size=(120, 160))
    filler = small_disk / "filler"

    def fill(entry: FileEntry) -> None:
        if "0020" in entry.name and not filler.exists():
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(65536)):
                    pass

    with pytest.raises(NotEnoughSpaceError, match="full"):
        _pack(WatchedTree(photos, fill), small_disk / "out.h5", encoding=encoding)
    assert list(small_disk.iterdir()) == [filler]

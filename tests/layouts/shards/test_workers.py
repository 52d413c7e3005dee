"""Sets of shards whose samples lie in few large files, which are scanned where the set is planned and nowhere else."""

from __future__ import annotations

import time
import zipfile
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pickle import dumps, loads
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import SourceChangedError
from colabstage.layouts.detect import detect_layout
from colabstage.pack.run import pack_dataset
from colabstage.trees.folder import FolderTree
from tests.layouts.readers import contents, picture
from tests.layouts.shards.test_webdataset import write_tar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.trees.listing import FileEntry

ROWS = 24


def tars(folder: Path) -> Path:
    for first in (0, 10):
        files = [(f"{n}.{end}", content) for n in range(first, first + 12) for end, content in
                 (("png", picture(n)), ("cls", str(n % 3).encode()))]  # fmt: skip
        write_tar(folder / f"{first}.tar", files)
    return folder


def one_tar(folder: Path) -> Path:
    files = [(f"{n}.{end}", content) for n in range(ROWS) for end, content in
             (("png", picture(n)), ("json", b'{"label": %d}' % (n % 3)))]  # fmt: skip
    return write_tar(folder / "all.tar", files)


def tars_in_a_zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive:
        for path in tars(folder).iterdir():
            archive.write(path, path.name)
    return folder.with_suffix(".zip")


def records(folder: Path) -> Path:
    writer = pytest.importorskip("tests.layouts.shards.test_tfrecord")
    for first in (0, 12):
        rows = [{"image": picture(n), "label": n % 3} for n in range(first, first + 12)]
        writer.write(folder / f"{first}.tfrecord", rows)
    return folder


def parquet(folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install pyarrow")
    from pyarrow import parquet as files

    folder.mkdir()
    for first in (0, 12):
        rows = range(first, first + 12)
        columns = {"image": [picture(n) for n in rows], "label": [n % 3 for n in rows]}
        files.write_table(pyarrow.table(columns), folder / f"{first}.parquet", row_group_size=5)
    return folder


KINDS = [tars, one_tar, tars_in_a_zip, records, parquet]


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
@pytest.mark.parametrize("make", KINDS)
def test_workers_read_what_was_planned_and_scan_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], encoding: str
) -> None:
    """The shards are those of one process, byte for byte, and the layout is detected once."""
    source = make(tmp_path / "source")
    detected: list[str] = []

    def counted(tree: Any, *arguments: Any, **options: Any) -> Any:
        detected.append(tree.label)
        return detect_layout(tree, *arguments, **options)

    monkeypatch.setattr("colabstage.pack.job.detect_layout", counted)
    for name, pool in (("alone", None), ("workers", ThreadPoolExecutor(2))):
        out = tmp_path / name / "set.h5"
        out.parent.mkdir()
        report = pack_dataset(source, out, shards=3, executor=pool, encoding=encoding, progress=False)
        assert sum(report.samples.values()) == ROWS
    assert len(detected) == 2
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.h5")} for name in ("alone", "workers")
    )
    assert len(one) == 3
    assert one == other


class _SlowTree(FolderTree):
    """A folder on a mount that takes its time, and counts what is read of its files."""

    read_bytes = 0

    def open(self, entry: FileEntry) -> Any:
        file = super().open(entry)
        read = file.pread

        def pread(length: int, offset: int) -> bytes:
            time.sleep(0.005)
            data = read(length, offset)
            self.read_bytes += len(data)
            return data

        file.pread = pread  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("make", [tars, records, parquet])
def test_files_on_a_slow_mount_are_read_once(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """What was read to find the samples is what they are read from, the beginnings of files apart."""
    folder = make(tmp_path / "source")
    tree = _SlowTree(folder)
    assert contents(detect_layout(tree)) == contents(detect_layout(FolderTree(folder)))
    assert tree.read_bytes < 1.5 * sum(path.stat().st_size for path in folder.iterdir())


class _WritesMeanwhile(Executor):
    """Runs a task in this thread, sent as to another process, once a file has grown."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        with self._path.open("ab") as file:
            file.write(bytes(10_240))
        future: Future[Any] = Future()
        try:
            future.set_result(function(*loads(dumps(arguments))))
        except Exception as error:  # noqa: BLE001  # as an executor does
            future.set_exception(error)
        return future


@pytest.mark.parametrize("make", [tars, one_tar])
def test_another_file_than_was_planned_is_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Places of samples in the old one say nothing of the new one."""
    source = make(tmp_path / "source")
    changed = source if source.is_file() else min(source.iterdir())
    with pytest.raises(SourceChangedError):
        pack_dataset(
            source, tmp_path / "set.h5", shards=2, executor=_WritesMeanwhile(changed), image_size=(8, 8), progress=False
        )

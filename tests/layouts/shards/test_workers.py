"""Sets of shards whose samples lie in few large files, which are scanned where the set is planned and nowhere else."""

from __future__ import annotations

import os
import time
import zipfile
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from pickle import dumps, loads
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import pack_dataset
from colabstage.errors import SourceChangedError
from tests.layouts.readers import picture
from tests.layouts.shards.test_webdataset import write_tar

if TYPE_CHECKING:
    from collections.abc import Callable

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


def files_of(out: Path) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted(out.parent.glob("*.h5"))]


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
@pytest.mark.parametrize("make", KINDS)
def test_workers_write_what_one_process_does(tmp_path: Path, make: Callable[[Path], Path], encoding: str) -> None:
    """Byte for byte."""
    source = make(tmp_path / "source")
    outs = [tmp_path / name / "set.h5" for name in ("alone", "workers")]
    for out, pool in zip(outs, (None, ThreadPoolExecutor(2)), strict=True):
        out.parent.mkdir()
        report = pack_dataset(source, out, shards=3, executor=pool, encoding=encoding, progress=False)
        assert sum(report.samples.values()) == ROWS
    assert len(files_of(outs[0])) == 3
    assert files_of(outs[0]) == files_of(outs[1])


class _Meanwhile(Executor):
    """Runs a task in this thread, sent as to another process, once something has happened to the source."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        self._happens()
        future: Future[Any] = Future()
        try:
            future.set_result(function(*loads(dumps(arguments))))
        except Exception as error:  # noqa: BLE001  # as an executor does
            future.set_exception(error)
        return future


@pytest.mark.parametrize("make", [tars, records, parquet])
def test_workers_scan_nothing_again(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """A file that was added since the set was planned is in no row of it; who looks for samples again would find it."""
    source = make(tmp_path / "source")
    first = min(source.iterdir())
    adds = _Meanwhile(lambda: copyfile(first, source / f"more{first.suffix}"))
    report = pack_dataset(source, tmp_path / "set.h5", shards=2, executor=adds, image_size=(8, 8), progress=False)
    assert sum(report.samples.values()) == ROWS


@pytest.mark.parametrize("make", [tars, one_tar])
def test_another_file_than_was_planned_is_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Places of samples in the old one say nothing of the new one."""
    source = make(tmp_path / "source")
    changed = source if source.is_file() else min(source.iterdir())
    grows = _Meanwhile(lambda: changed.write_bytes(changed.read_bytes() + bytes(10_240)))
    with pytest.raises(SourceChangedError):
        pack_dataset(source, tmp_path / "set.h5", shards=2, executor=grows, image_size=(8, 8), progress=False)


@pytest.mark.parametrize("make", [tars, records, parquet])
def test_files_on_a_slow_mount_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path]
) -> None:
    """What was read to find the samples is what they are read from, the beginnings of files apart."""
    folder = make(tmp_path / "source")
    counts: list[int] = []
    pread = os.pread

    def slow(handle: int, length: int, offset: int) -> bytes:
        data = pread(handle, length, offset)
        if Path(f"/proc/self/fd/{handle}").resolve().parent == folder:
            time.sleep(0.005)
            counts.append(len(data))
        return data

    monkeypatch.setattr("os.pread", slow)
    pack_dataset(folder, tmp_path / "out.h5", image_size=(8, 8), progress=False)
    nbytes = sum(path.stat().st_size for path in folder.iterdir())
    assert nbytes <= sum(counts) < 1.5 * nbytes

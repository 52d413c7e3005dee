"""Sets of shards whose samples lie in few large files, which are scanned where the set is planned and nowhere else."""

import io
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import copyfile

import numpy as np
import pytest
from PIL import Image

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import SourceChangedError
from tests.layouts.readers import picture
from tests.layouts.shards.writing import KINDS
from tests.support.made_files import write_files
from tests.support.steps import AfterThat

ROWS = 24


def in_files(kind: str, folder: Path) -> Path:
    name, write = KINDS[kind]
    halves = {first: write(range(first, first + ROWS // 2)) for first in (0, ROWS // 2)}
    name = name.replace("/", "-").format("train")
    return write_files(folder, {f"{first}-{name}": one for first, one in halves.items()})


def one_tar(folder: Path) -> Path:
    (folder.with_suffix(".tar")).write_bytes(KINDS["webdataset"][1](range(ROWS)))
    return folder.with_suffix(".tar")


def tars_in_a_zip(folder: Path) -> Path:
    """Shards that are unpacked first."""
    place = in_files("webdataset", folder)
    return Path(shutil.make_archive(str(place), "zip", place))


MAKERS: dict[str, Callable[[Path], Path]] = {
    "one tar": one_tar,
    "tars in a zip": tars_in_a_zip,
    **{kind: partial(in_files, kind) for kind in ("webdataset", "tfrecord", "parquet")},
}


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [("one tar", "pixels"), ("tars in a zip", "encoded"), ("tfrecord", "pixels"), ("parquet", "encoded")],
)
def test_workers_write_what_one_process_does(tmp_path: Path, kind: str, encoding: str) -> None:
    """Byte for byte; and these are the images and labels that were written."""
    source = MAKERS[kind](tmp_path / "source")
    found = []
    for name, pool in (("alone", None), ("workers", ThreadPoolExecutor(2))):
        out = tmp_path / name / "set.h5"
        out.parent.mkdir()
        pack_dataset(source, out, shards=3, executor=pool, encoding=encoding, progress=False)
        found.append([(path.name, path.read_bytes()) for path in sorted(out.parent.glob("*.h5"))])
    assert found[0] == found[1]
    dataset = dataset_h5(tmp_path / "alone/*.h5")
    expected = {np.asarray(Image.open(io.BytesIO(picture(n)))).tobytes(): n % 3 for n in range(ROWS)}
    assert {np.asarray(x).tobytes(): int(y) for x, y in (dataset[row] for row in range(ROWS))} == expected


SCANNED = ["webdataset", "tfrecord", "parquet"]


@pytest.mark.parametrize("kind", SCANNED)
def test_workers_scan_nothing_again(tmp_path: Path, kind: str) -> None:
    """A file that was added since the set was planned is in no row of it; who looks for samples again would find it."""
    source = MAKERS[kind](tmp_path / "source")
    first = min(source.iterdir())
    adds = AfterThat(lambda: copyfile(first, source / f"more-{first.name}"))
    report = pack_dataset(source, tmp_path / "set.h5", shards=2, executor=adds, image_size=(8, 8), progress=False)
    assert sum(report.samples.values()) == ROWS


@pytest.mark.parametrize("kind", ["webdataset", "one tar"])
def test_another_file_than_was_planned_is_refused(tmp_path: Path, kind: str) -> None:
    """Places of samples in the old one say nothing of the new one."""
    source = MAKERS[kind](tmp_path / "source")
    changed = source if source.is_file() else min(source.iterdir())
    grows = AfterThat(lambda: changed.write_bytes(changed.read_bytes() + bytes(10_240)))
    with pytest.raises(SourceChangedError):
        pack_dataset(source, tmp_path / "set.h5", shards=2, executor=grows, image_size=(8, 8), progress=False)


@pytest.mark.parametrize("kind", SCANNED)
def test_files_on_a_slow_mount_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What was read to find the samples is what they are read from, the beginnings of files apart."""
    folder = MAKERS[kind](tmp_path / "source")
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

"""Files that would make HDF5 search for ever, or behave in undefined ways."""

import os
import random
import struct
import subprocess
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5
from colabstage.errors import DamagedPackError
from colabstage.h5.info import open_h5, read_info
from tests.nurseries import Nurseries
from tests.support.packs import write_pack

ROOT = Path(__file__).resolve().parents[2]
# Opens each file and reads from it; prints every error that is not typed.
READER = """
import sys
from colabstage import dataset_h5
from colabstage.errors import ColabstageError

for line in sys.stdin:
    try:
        reader = dataset_h5(line.strip()).reader
        reader.read_x([0, -1])
        reader.read_y([0])
    except (ColabstageError, MemoryError):
        continue
    except Exception as error:
        print(line.strip(), repr(error))
"""


def _foreign(path: Path, libver: Literal["earliest", "latest"] = "earliest") -> Path:
    with h5py.File(path, "w", libver=libver) as file:
        images = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
        file.create_dataset("X_train", data=images, chunks=(5, 8, 8, 3), compression="gzip")
        file["Y_train"] = np.arange(50)
        file.attrs["layout"] = "image_folder"
        file.attrs["source"] = "a source " * 300
    return path


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("length", [0, 8, 2**64 - 8, 2**40])
def test_a_heap_without_end_is_refused(tmp_path: Path, libver: Literal["earliest", "latest"], length: int) -> None:
    """An object without length, or whose length leads back or out, is reported as damage before HDF5 reads it."""
    path = _foreign(tmp_path / "scrambled.h5", libver)
    data = bytearray(path.read_bytes())
    first = data.index(b"GCOL") + 16
    # Free space of this length, behind which HDF5 continues.
    struct.pack_into("<HHIQ", data, first, 0, 0, 0, length)
    path.write_bytes(data)
    with pytest.raises(DamagedPackError, match="strings"):
        read_info(path)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_sound_heaps_are_let_through(tmp_path: Path, libver: Literal["earliest", "latest"]) -> None:
    """Thousands of strings of all lengths are not taken for damage, wherever the view of the file ends."""
    path = tmp_path / "texts.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file["texts"] = np.array(["é" * (number % 700) for number in range(5000)], dtype=object)
        file["X_train"] = np.array([str(number) for number in range(50_000)], dtype=object)
    assert path.stat().st_size > 2 * 1024 * 1024
    assert read_info(path).rows == {"train": 50_000}
    with open_h5(path) as file:
        assert file["X_train"][49_999] == b"49999"


def run_reader(code: str, files: Sequence[Path], nurseries: Nurseries) -> subprocess.CompletedProcess[str]:
    """Run a script that reads files, whose names it gets, in a process that has imported torch already."""
    script = files[0].with_name("read.py")
    script.write_text(code, encoding="utf-8")
    return subprocess.run(
        nurseries.command("torch", "script", script),
        input="\n".join(map(str, files)),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_scrambled_files_end_in_typed_errors_and_in_time(tmp_path: Path, nurseries: Nurseries) -> None:
    """With changed, swapped or erased bytes anywhere, no file hangs, and none fails with an untyped error."""
    rng = random.Random(5)
    names = []
    for libver in ("earliest", "latest"):
        raw = _foreign(tmp_path / f"{libver}.h5", libver).read_bytes()
        for number in range(150):
            data, span = bytearray(raw), rng.choice([400, 4000, len(raw)])
            place, length = rng.randrange(8, span), rng.choice([1, 8, 64])
            kind = rng.choice(["change", "swap", "erase"])
            if kind == "swap":
                other = rng.randrange(8, span)
                data[place : place + length], data[other : other + length] = (
                    data[other : other + length],
                    data[place : place + length],
                )
            else:
                data[place : place + length] = rng.randbytes(length) if kind == "change" else bytes(length)
            path = tmp_path / f"{libver}-{number}.h5"
            path.write_bytes(data[: len(raw)])
            names.append(path)
    done = run_reader(READER, names, nurseries)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


def test_a_pack_of_many_rows_opens_in_an_instant(tmp_path: Path) -> None:
    """Opening 200,000 rows with their keys takes no longer than a frame of a film."""
    count = 200_000
    keys = [f"class_{row % 10}/image_{row:06}.jpg" for row in range(count)]
    rows = {"X_train": np.zeros((count, 8, 8, 1), np.uint8), "Y_train": np.zeros(count, np.int64), "key_train": keys}
    path = write_pack(tmp_path / "pack.h5", rows, {"layout": "image_folder"})
    seconds = []  # CPU time: everything is in the page cache, and others may use the core
    for _ in range(10):
        start = time.process_time()
        dataset_h5(path)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.02


# Reads all rows of each file, and prints the outcome.
ROWS_READER = """
import resource, sys
import numpy as np
from colabstage import dataset_h5
from colabstage.errors import DamagedPackError, DecodeError

resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
for line in sys.stdin:
    try:
        reader = dataset_h5(line.strip()).reader
        rows = [*reader.read_x(range(0, 40, 3)), *reader.read_x(range(40))]
    except (DamagedPackError, DecodeError):
        print("refused")
    else:
        print(sum(len(row) * (place + 1) for place, row in enumerate(rows)))
"""


def write_scrambled(folder: Path, kind: str, storage: dict[str, object]) -> tuple[list[Path], str]:
    """A sound file, and forty with a wrong byte in their references or in their heap; and what is read of the first."""
    folder.mkdir()
    path, rng = folder / "sound.h5", random.Random(0)
    rows = [np.arange(number * 3 % 17, dtype=np.int32) for number in range(40)]
    with h5py.File(path, "w") as file:
        if kind == "texts":
            file.create_dataset("X_train", data=["x" * len(row) for row in rows], dtype=h5py.string_dtype(), **storage)
        else:
            dataset = file.create_dataset("X_train", (40,), h5py.vlen_dtype(np.int32), **storage)
            dataset[:] = np.array([*rows, None], object)[:-1]
    with h5py.File(path) as file:
        dataset = file["X_train"]
        stored = "chunks" in storage and "shuffle" not in storage
        start = dataset.id.get_chunk_info(1).byte_offset if "chunks" in storage else dataset.id.get_offset()
    sound = path.read_bytes()
    heap = sound.index(b"GCOL")
    files = [path]
    for number in range(40):
        data = bytearray(sound)
        # Half of them in references (lengths, addresses, numbers), half in the headers of the heap's objects.
        place = start + rng.randrange(100) if number % 2 and not stored else heap + rng.randrange(400)
        data[place] = rng.choice([0, 1, 2, 0x7F, 0xFF])
        files.append(folder / f"{number}.h5")
        files[-1].write_bytes(data)
    return files, str(sum(len(row) * (n + 1) for n, row in enumerate([*rows[::3], *rows])))


def test_references_are_checked_before_hdf5_follows_them(tmp_path: Path, nurseries: Nurseries) -> None:
    """With scrambled references and heaps, rows have their lengths or there is an error: no crash, and not
    gigabytes."""
    storages: list[dict[str, object]] = [{}, {"chunks": (7,), "compression": "lzf"}, {"chunks": (9,), "shuffle": True}]
    kinds = [(kind, storage) for kind in ("numbers", "texts") for storage in storages]
    made = [write_scrambled(tmp_path / f"{number}", *kind) for number, kind in enumerate(kinds)]
    ran = run_reader(ROWS_READER, [file for files, _ in made for file in files], nurseries)
    assert ran.returncode == 0, ran.stderr[-2000:]
    read = iter(ran.stdout.split())
    for kind, (files, meant) in zip(kinds, made, strict=True):
        first, *others = islice(read, len(files))
        assert first == meant, kind
        # A string ends at a damaged byte that is zero.
        assert kind[0] == "texts" or set(others) <= {meant, "refused"}, kind
        assert "refused" in others, kind
    assert list(read) == []

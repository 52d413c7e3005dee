"""HDF5 files for tests of readers, each with what h5py itself reads from it; tests/contract/test_dataset_h5.py has more
kinds."""

import io
import json
import shutil
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from colabstage import pack_dataset
from tests.support.made_files import write_rows

SHAPE = (10, 12, 3)


@dataclass(frozen=True, slots=True)
class Sample:
    """A file, and its rows as h5py reads them (native byte order)."""

    path: Path
    x: NDArray[Any]
    y: NDArray[Any]


def _rows(count: int, dtype: str = "u1") -> NDArray[Any]:
    values = np.random.default_rng(count).integers(0, 256, (count, *SHAPE))
    return values.astype(dtype)


def _labels(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64) * 7 % 5


def _plain(path: Path, count: int, dtype: str = "u1", **storage: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=_rows(count, dtype), **storage)
        file.create_dataset("Y_train", data=_labels(count))


def _pack(path: Path, count: int) -> None:
    folder = path.with_suffix("")
    for row, (pixels, label) in enumerate(zip(_rows(count), _labels(count), strict=True)):
        place = folder / "abcde"[label] / f"ü{row:04}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place)
    pack_dataset(folder, path, progress=False)


def _recipe(path: Path, count: int) -> None:
    write_rows(path, _rows(count), _labels(count).astype(np.uint8).reshape(-1, 1, 1))


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "pack": _pack,
    "contiguous": _plain,
    "float32": lambda path, count: _plain(path, count, "f4"),
    "recipe": _recipe,
    "big-endian": lambda path, count: _plain(path, count, ">f4"),
    "gzip": lambda path, count: _plain(path, count, chunks=(8, *SHAPE), compression="gzip", shuffle=True),
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Write a file of a kind in MAKERS with `rows` rows, once."""

    @cache
    def make(kind: str, count: int) -> Path:
        path = tmp_path_factory.mktemp("made") / f"{kind}-{count}.h5"
        MAKERS[kind](path, count)
        return path

    return make


@pytest.fixture
def make_file(tmp_path: Path, made: Callable[[str, int], Path]) -> Callable[[str, int], Sample]:
    """Return a file of a kind in MAKERS with `rows` rows, and its content as plain h5py reads it."""

    def make(kind: str, count: int) -> Sample:
        path = tmp_path / f"{kind}-{count}.h5"
        for file in made(kind, count).parent.glob(f"{path.name}*"):
            shutil.copy2(file, tmp_path)
        with h5py.File(path, "r") as opened:
            x, y = opened["X_train"][()], opened["Y_train"][()]
        return Sample(path, x.astype(x.dtype.newbyteorder("=")), y)

    return make


@pytest.fixture(scope="session")
def make_numbered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Write a file once, each of whose rows is three floats of its number, which is also its target."""

    @cache
    def make(count: int) -> Path:
        x = np.repeat(np.arange(count, dtype=np.float32)[:, None], 3, axis=1)
        return write_rows(tmp_path_factory.mktemp("numbered") / "rows.h5", x, np.arange(count))

    return make


def picture(row: int, height: int, width: int) -> NDArray[np.uint8]:
    """A picture that differs for each row."""
    return np.random.default_rng(row).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A split whose batches are large enough for pooled memory and for several threads: 60 images of 49 kB."""
    x = np.random.default_rng(0).integers(0, 256, (60, 128, 128, 3), dtype=np.uint8)
    return write_rows(tmp_path / "large.h5", x, np.arange(60, dtype=np.uint8))


def visited(loader: Any) -> list[int]:
    """The rows that an epoch visits."""
    return [int(row) for _, index in loader for row in index]


def encoded(pixels: NDArray[np.uint8], kind: str = "PNG", **saved: Any) -> bytes:
    """The image file of a picture."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **saved)
    return buffer.getvalue()


def write_files(group: h5py.Group, files: list[bytes], compression: str | None = None) -> h5py.Group:
    """Fill a group with image or mask files."""
    group.create_dataset("bytes", data=np.frombuffer(b"".join(files), np.uint8), compression=compression)
    group["offsets"] = np.cumsum([0, *map(len, files)], dtype=np.int64)
    return group


def write_images(file: h5py.File, files: list[bytes], compression: str | None = None, **options: Any) -> None:
    """Write image files as inputs, to be decoded with these options."""
    wanted = {"size": None, "color_mode": "rgb", "resize": "stretch"} | options
    write_files(file.create_group("X_train"), files, compression).attrs["image_options"] = json.dumps(wanted)


@pytest.fixture
def make_encoded(tmp_path: Path) -> Callable[..., Path]:
    """Write a pack of PNG files: row i is `picture(i, 8 + i, 20)`."""

    def make(count: int, *, size: tuple[int, int] | None = None, compression: str | None = None) -> Path:
        path = tmp_path / f"encoded-{count}-{'sized' if size else 'own'}-{compression}.h5"
        with h5py.File(path, "w") as file:
            write_images(file, [encoded(picture(row, 8 + row, 20)) for row in range(count)], compression, size=size)
            file["Y_train"] = _labels(count)
        return path

    return make


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """The computer's GPU, or a simulated one."""
    import torch

    from tests.support.simulated_gpu import simulated_gpu

    if torch.cuda.is_available():
        yield "cuda"
        return
    with simulated_gpu(monkeypatch, seed=0):
        yield "cuda:0"


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("cuda") if request.param == "cuda" else "cpu")


@pytest.fixture
def have_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend that exactly so many bytes of memory are free."""
    read_text = Path.read_text
    free = 0

    def read(path: Path, *arguments: Any, **named: Any) -> str:
        if str(path) == "/proc/meminfo":
            return f"MemTotal: 64000000 kB\nMemAvailable: {free // 1024} kB\n"
        return read_text(path, *arguments, **named)

    def say(nbytes: int) -> None:
        nonlocal free
        free = nbytes

    monkeypatch.setattr(Path, "read_text", read)
    return say

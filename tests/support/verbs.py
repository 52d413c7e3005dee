"""The public functions that touch files, each as a call with a small source, and what it reads and writes.

    for verb in VERBS:
        given = make_places(tmp_path)
        verb.call(given)

A case puts what it wants to break below `given.source` or `given.target`: both folders may be links, mounts, or full.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from PIL import Image

import colabstage
from colabstage import (
    dataset_h5,
    extract_archive,
    fetch_files,
    make_loader,
    pack_dataset,
    plan_stage,
    publish_file,
    restore_file,
    stage_dataset,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SIDE = 9
SIZE = (8, 8)


@dataclass(frozen=True, slots=True)
class Places:
    """Where one call reads and writes."""

    source: Path
    """What is read: `images/` with two classes, `images.zip`, `pack.h5` and `model.bin`, which was published."""
    target: Path
    """An empty folder for what is written."""

    @property
    def images(self) -> Path:
        """A folder of images in two classes."""
        return self.source / "images"

    @property
    def archive(self) -> Path:
        """The same as a zip."""
        return self.source / "images.zip"

    @property
    def pack(self) -> Path:
        """The same as a pack."""
        return self.source / "pack.h5"

    @property
    def file(self) -> Path:
        """A file that `publish_file` has put there."""
        return self.source / "model.bin"


@dataclass(frozen=True, slots=True)
class Verb:
    """One public function, called in one way."""

    name: str
    """What the case is called."""
    call: Callable[[Places], object]
    """Call it."""
    writes: bool = True
    """Whether it writes to `target`."""
    needs: Literal["", "torch"] = ""
    """What has to be installed."""

    def __str__(self) -> str:
        return self.name


def make_source(folder: Path, count: int = 8) -> None:
    """Write what `Places.source` has."""
    for number in range(count):
        path = folder / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (_SIDE, _SIDE), (number * 9,) * 3).save(path)
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for path in sorted((folder / "images").rglob("*.png")):
            archive.write(path, path.relative_to(folder / "images"))
    pack_dataset(folder / "images", folder / "pack.h5", image_size=SIZE, progress=False)
    original = folder / "original.bin"
    original.write_bytes(b"m" * 5000)
    publish_file(original, folder / "model.bin", progress=False)


def _stage(given: Places, source: Path, *, cached: bool = False, streaming: bool = False) -> object:
    data = stage_dataset(
        source,
        local_dir=given.target / "local",
        cache_dir=given.target / "cache" if cached else None,
        image_size=SIZE,
        streaming=streaming,
        progress=False,
    )
    return data.wait(60.0, progress=False) if streaming else data


def _stage_twice(given: Places) -> object:
    _stage(given, given.images)
    return _stage(given, given.images)


def _publish_twice(given: Places) -> object:
    publish_file(given.file, given.target / "model.bin", progress=False)
    return publish_file(given.archive, given.target / "model.bin", progress=False)


def _read(given: Places) -> object:
    with make_loader(dataset_h5(given.pack, in_memory=True), 4, seed=0) as loader:
        return [x.shape for x, _ in loader]


VERBS: tuple[Verb, ...] = (
    Verb("stage folder", lambda given: _stage(given, given.images)),
    Verb("stage zip", lambda given: _stage(given, given.archive)),
    Verb("stage with cache", lambda given: _stage(given, given.images, cached=True)),
    Verb("stage twice", _stage_twice),
    Verb("stage streaming", lambda given: _stage(given, given.archive, streaming=True)),
    Verb(
        "plan",
        lambda given: plan_stage(
            given.images, local_dir=given.target / "local", cache_dir=given.target / "cache", image_size=SIZE
        ),
        writes=False,
    ),
    Verb(
        "pack folder", lambda given: pack_dataset(given.images, given.target / "p.h5", image_size=SIZE, progress=False)
    ),
    Verb("pack zip", lambda given: pack_dataset(given.archive, given.target / "p.h5", image_size=SIZE, progress=False)),
    Verb(
        "pack shards",
        lambda given: pack_dataset(given.images, given.target / "p.h5", image_size=SIZE, shards=2, progress=False),
    ),
    Verb("fetch file", lambda given: fetch_files(given.archive, given.target / "a.zip", progress=False)),
    Verb("fetch folder", lambda given: fetch_files(given.images, given.target / "tree", progress=False)),
    Verb("extract", lambda given: extract_archive(given.archive, given.target / "tree", progress=False)),
    Verb("publish", lambda given: publish_file(given.file, given.target / "model.bin", progress=False)),
    Verb("publish twice", _publish_twice),
    Verb("restore", lambda given: restore_file(given.file, given.target / "model.bin", progress=False)),
    Verb("read", _read, writes=False, needs="torch"),
    Verb("doctor", lambda given: colabstage.doctor(given.images), writes=False),
)

"""What a killed run left beside a target goes with the next call for it, also with one that finds its work done."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from colabstage import extract_archive, fetch_files, pack_dataset, publish_file, stage_dataset
from colabstage.h5.manifest import manifest_path
from colabstage.io.workspace import OLD, TEMP, current_world, owned_beside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = (TEMP, OLD)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of one image each."""
    folder = tmp_path / "photos"
    for number, name in enumerate("ab"):
        (folder / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(folder / name / "1.png")
    return folder


def leave(target: Path) -> None:
    """Leave what a process that died may have left of `target`."""
    for kind in KINDS:
        # No process has the id 0.
        (target.parent / f".colabstage-{target.name}.{current_world()}-0-0.0{kind}").write_bytes(b"part")


def fetch(photos: Path, place: Path) -> list[Path]:
    fetch_files(str(photos / "a/1.png"), place / "one.png")
    return [place / "one.png"]


def extract(photos: Path, place: Path) -> list[Path]:
    archive = photos.with_suffix(".zip")
    if not archive.exists():
        with zipfile.ZipFile(archive, "w") as made:
            made.write(photos / "a/1.png", "1.png")
    extract_archive(archive, place / "out")
    return [place / "out"]


def pack(photos: Path, place: Path) -> list[Path]:
    out = place / "out.h5"
    pack_dataset(photos, out, overwrite=True)
    return [out, manifest_path(out)]


def publish(photos: Path, place: Path) -> list[Path]:
    out = place / "model.png"
    publish_file(photos / "a/1.png", out)
    return [out, manifest_path(out)]


def stage(photos: Path, place: Path) -> list[Path]:
    return [stage_dataset(photos, local_dir=place, cache_dir=None).path]


@pytest.mark.parametrize("work", [fetch, extract, pack, publish, stage])
def test_the_next_call_sweeps(work: Callable[[Path, Path], list[Path]], photos: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    made = work(photos, place)
    for path in made:
        leave(path)
    before = {path: path.read_bytes() for path in made if path.is_file()}
    assert all(list(owned_beside(path, kind)) for path in made for kind in KINDS)
    work(photos, place)
    assert not [entry for path in made for kind in KINDS for entry in owned_beside(path, kind)]
    if work is not pack:  # made anew
        assert {path: path.read_bytes() for path in before} == before

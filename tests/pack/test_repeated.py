"""Images that occur several times in a dataset, byte for byte: a note on those with two labels, or in two splits."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage import pack_dataset, stage_dataset
from colabstage.errors import DecodeError
from colabstage.trees.open import open_tree

LABELS, SPLITS = re.compile(r"(\d+) images? (?:is|are) there with"), re.compile(r"(\d+) images? (?:is|are) in several")


def write(root: Path, *names: str, picture: int) -> None:
    """Write the same file under several names; PNGs of noise, most of one length."""
    pixels = np.random.default_rng(picture).integers(0, 256, (8, 8, 3), np.uint8)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name)


def counted(pattern: re.Pattern[str], notes: tuple[str, ...]) -> int:
    """The number of images in a note; 0 without one."""
    return sum(int(found.group(1)) for note in notes if (found := pattern.match(note)))


@settings(max_examples=15, deadline=None)
@given(
    pictures=st.lists(
        st.lists(st.tuples(st.sampled_from(["train", "val"]), st.sampled_from(["cat", "dog"])), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    ),
    encoding=st.sampled_from(["pixels", "encoded"]),
)
def test_notes_count_what_contradicts_itself(
    tmp_path_factory: pytest.TempPathFactory, pictures: list[list[tuple[str, str]]], encoding: Any
) -> None:
    """Each image counts once, in however many folders it is; copies with one label in one split are not noted."""
    root = tmp_path_factory.mktemp("made")
    for number, split in enumerate(("train", "val")):
        for label in ("cat", "dog"):
            write(root / "photos", f"{split}/{label}/own{number}.png", picture=1000 + 2 * number + (label == "cat"))
    for picture, places in enumerate(pictures):
        write(root / "photos", *(f"{a}/{b}/{picture}-{n}.png" for n, (a, b) in enumerate(places)), picture=picture)
    notes = pack_dataset(root / "photos", root / "a.h5", encoding=encoding, progress=False).notes
    assert counted(LABELS, notes) == sum(len({label for _, label in places}) > 1 for places in pictures)
    assert counted(SPLITS, notes) == sum(len({split for split, _ in places}) > 1 for places in pictures)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve images of two classes, one of which is in both."""
    for number in range(12):
        write(tmp_path / "photos", f"{('cat', 'dog')[number % 2]}/{number:02}.png", picture=number)
    write(tmp_path / "photos", "dog/same.png", picture=0)
    return tmp_path / "photos"


FIRST = "first 'cat/00.png' (cat) and 'dog/same.png' (dog)"
SAID = f"1 image is there with different labels, byte for byte the same ({FIRST})."


def test_the_reports_of_both_verbs_name_both_files(photos: Path, tmp_path: Path) -> None:
    """For a folder and a zip of it, also with splits by fractions."""
    assert SAID in str(pack_dataset(photos, tmp_path / "a.h5", progress=False))
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", photos)
    data = stage_dataset(archive, local_dir=tmp_path / "fast", cache_dir=None, progress=False)
    assert SAID in str(data.report)


def in_order(folder: Path) -> list[str]:
    """Names in the folder's own order, which is that of packing."""
    with open_tree(folder, spool=folder) as tree:
        return [entry.name for entry in sorted(tree.entries, key=lambda entry: entry.position)]


def test_a_pack_that_continues_compares_with_what_an_earlier_run_read(photos: Path, tmp_path: Path) -> None:
    """One copy is packed before the interruption, the other after it."""
    (photos / "dog/same.png").unlink()
    for number in range(12, 40):
        write(photos, f"{('cat', 'dog')[number % 2]}/{number:02}.png", picture=number)
    names = in_order(photos)
    first, last = photos / names[0], photos / names[-1]
    last.write_bytes(first.read_bytes()[:60])
    with pytest.raises(DecodeError):
        pack_dataset(photos, tmp_path / "a.h5", progress=False)
    last.write_bytes(first.read_bytes())
    report = pack_dataset(photos, tmp_path / "a.h5", progress=False)
    assert report.resumed
    assert counted(LABELS, report.notes) == 1


def test_a_file_that_was_replaced_since_repeats_nothing(photos: Path, tmp_path: Path) -> None:
    """An interrupted run recorded the copy; then the user replaced it with the right image, of a unique length."""
    names = in_order(photos)
    last = photos / names[-1]
    right, broken = last.read_bytes(), last.read_bytes()[:60]
    for name in names:  # all in one block, which is packed again
        if name not in {"cat/00.png", "dog/same.png", names[-1]}:
            (photos / name).unlink()
    last.write_bytes(broken)
    with pytest.raises(DecodeError):
        pack_dataset(photos, tmp_path / "a.h5", progress=False)
    last.write_bytes(right)
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(photos / "dog/same.png")
    report = pack_dataset(photos, tmp_path / "a.h5", progress=False)
    assert counted(LABELS, report.notes) == 0


def test_images_that_are_left_out_contradict_nothing(photos: Path, tmp_path: Path) -> None:
    """Two copies of one broken file are not two labels of a sample."""
    for name in ("cat/broken.png", "dog/broken.png"):
        (photos / name).write_bytes((photos / "cat/00.png").read_bytes()[:60])
    report = pack_dataset(photos, tmp_path / "a.h5", on_error="skip", progress=False)
    assert len(report.skipped) == 2
    assert counted(LABELS, report.notes) == 1

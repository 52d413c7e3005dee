"""What a few masks suggest about the values of all is compared with all of them, once they have been read."""

import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import DecodeError, LayoutError
from colabstage.options import Images, Masks, SampleTable, TreeFiles
from colabstage.trees.listing import FileEntries, Tree
from tests.images.files import encode

SIZE = 6
FIRST, ALL = 16, 40
"""As many as are examined first in an archive, and more."""


def mask(values: tuple[int, ...], *, form: str = "PNG") -> bytes:
    """A mask with exactly these values, one column each."""
    return encode(Image.fromarray(np.resize(np.array(values, np.uint8), (SIZE, SIZE))), form)


def archive(path: Path, masks: list[bytes], ending: str = "png") -> Path:
    """Images and masks in the order of their names, as in most archives."""
    with zipfile.ZipFile(path, "w") as packed:
        for number in range(len(masks)):
            packed.writestr(f"images/{number:02}.png", encode(Image.new("RGB", (SIZE, SIZE), (number, 0, 0)), "PNG"))
        for number, content in enumerate(masks):
            packed.writestr(f"masks/{number:02}.{ending if number >= FIRST else 'png'}", content)
    return path


def packed(source: Path, out: Path, **options: Any) -> tuple[list[list[int]], tuple[str, ...], tuple[str, ...]]:
    """The values of each mask in the pack, in the order of the masks' names; its classes; and the notes."""
    report = pack_dataset(source, out, progress=False, **options)
    dataset = dataset_h5(out)
    with h5py.File(out) as file:
        found = {key: dataset[row][1] for row, key in enumerate(file["key_train"].asstr())}
    return [np.unique(found[key]).tolist() for key in sorted(found)], dataset.classes, report.notes


# What later masks hold, how they are stored, what it means then, and what a note names.
@pytest.mark.parametrize(
    ("later", "encoding", "meant", "classes", "noted"),
    [
        ((0, 255), "pixels", [0, 1], ("background", "foreground"), ""),
        ((0, 255), "encoded", [0, 1], ("background", "foreground"), ""),
        *((values, "pixels", [*values], (), "") for values in ((0, 1, 255), (0, 5), (1, 255))),
        ((0,), "pixels", [0], (), "value 0"),
    ],
)
def test_what_the_first_masks_have_not_is_found_in_later_ones(
    tmp_path: Path, later: tuple[int, ...], encoding: str, meant: list[int], classes: tuple[str, ...], noted: str
) -> None:
    """A foreground of 255 would not be a class: packing starts over, and nothing of the first attempt is left. Further
    classes and pixels of none stay; of one value nothing can be learnt."""
    source = archive(tmp_path / "a.zip", [mask((0,))] * FIRST + [mask(later)] * (ALL - FIRST))
    values, found, notes = packed(source, tmp_path / "a.h5", encoding=encoding)
    assert (values, found) == ([[0]] * FIRST + [meant] * (ALL - FIRST), classes)
    assert any("value 0" in note for note in notes) is bool(noted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "a.h5.json", "a.zip"]


@pytest.mark.parametrize(
    ("first", "later", "says"),
    [
        ((0, 1), (0, 255), r"masks/\d\d\.png'.* the values 0 and 1, others such as 'masks/\d\d\.png' 0 and 255"),
        ((0,), (0, 100, 200), r"masks/[1-3]\d\.png'.* have 3 shades of grey \(0, 100, 200\)"),
        ((0,), tuple(range(0, 256, 17)), "shades of grey"),
    ],
)
def test_masks_that_mean_something_else_than_the_first_are_refused(
    tmp_path: Path, first: tuple[int, ...], later: tuple[int, ...], says: str
) -> None:
    """As if they had been among those examined first; and the target stays as it was."""
    source = archive(tmp_path / "a.zip", [mask(first)] * FIRST + [mask(later)] * (ALL - FIRST))
    (tmp_path / "a.h5").write_bytes(b"before")
    with pytest.raises(LayoutError, match=says):
        pack_dataset(source, tmp_path / "a.h5", overwrite=True, progress=False)
    assert (tmp_path / "a.h5").read_bytes() == b"before"


def test_a_lossy_mask_behind_the_first_is_named(tmp_path: Path) -> None:
    """Its values are near the original ones, and were taken for classes."""
    masks = [mask((0, 1))] * FIRST + [mask((0, 1), form="JPEG")]
    with pytest.raises(DecodeError, match=r"masks/16\.jpg"):
        pack_dataset(archive(tmp_path / "a.zip", masks, "jpg"), tmp_path / "a.h5", progress=False)


def test_shards_and_appended_files_refuse_what_cannot_be_one_set(tmp_path: Path) -> None:
    """A shard cannot decide for the others, nor can what is appended for what is there."""
    source = archive(tmp_path / "a.zip", [mask((0,))] * FIRST + [mask((0, 255))] * (ALL - FIRST))
    with pytest.raises(LayoutError, match="which is a foreground"):
        pack_dataset(source, tmp_path / "a.h5", shards=2, progress=False)
    pack_dataset(archive(tmp_path / "b.zip", [mask((0, 1))] * FIRST), tmp_path / "b.h5", progress=False)
    with pytest.raises(LayoutError, match="which is a foreground"):
        pack_dataset(source, append_to=tmp_path / "b.h5", progress=False)
    assert len(list(tmp_path.glob("b*"))) == len(("b.zip", "b.h5", "b.h5.json"))


def test_a_layout_that_says_what_255_means_is_believed(tmp_path: Path) -> None:
    """Only a guess is compared with all masks."""

    def own(tree: Tree) -> SampleTable:
        files = FileEntries.of(tree.entries)
        images, masks = files.where(lambda name: name[0] == "i"), files.where(lambda name: name[0] == "m")
        return SampleTable("own", images.names, Images(TreeFiles(tree, images)), Masks(TreeFiles(tree, masks)))

    source = archive(tmp_path / "a.zip", [mask((0, 1))] * FIRST + [mask((0, 255))] * (ALL - FIRST))
    assert packed(source, tmp_path / "a.h5", layout=own)[0] == [[0, 1]] * FIRST + [[0, 255]] * (ALL - FIRST)


def test_masks_of_an_interrupted_run_count(tmp_path: Path) -> None:
    """Masks read earlier are compared too: here only those that the first run finished have 0 and 255."""
    folder = tmp_path / "data"
    with zipfile.ZipFile(archive(tmp_path / "a.zip", [mask((0,))] * 64)) as packed_files:
        packed_files.extractall(folder)
    # In a folder, masks at even distances are examined: 0, 4, 8, …; the last is one of them.
    for number in (1, 2, 3):
        (folder / f"masks/{number:02}.png").write_bytes(mask((0, 255)))
    good = (folder / "masks/62.png").read_bytes()
    (folder / "masks/62.png").write_bytes(good[:30])
    with pytest.raises(DecodeError, match="62"):
        pack_dataset(folder, tmp_path / "a.h5", progress=False)
    (folder / "masks/62.png").write_bytes(good)
    values, classes, _ = packed(folder, tmp_path / "a.h5")
    assert classes == ("background", "foreground")
    assert values == [[0]] + [[0, 1]] * 3 + [[0]] * 60


@pytest.mark.parametrize("palettes", [(0, 0), (0, 1), (0, 2)])
def test_one_colour_under_two_numbers_is_no_class(tmp_path: Path, palettes: tuple[int, int]) -> None:
    """Masks that were each reduced to their own palette; other colours for the same numbers are common."""
    colours = ([0, 0, 0, 255, 0, 0, 0, 255, 0], [0, 0, 0, 0, 255, 0, 255, 0, 0], [0, 0, 0, 9, 9, 9, 0, 255, 0])
    masks = []
    for number in range(4):
        image = Image.fromarray(np.resize(np.array([0, 1, 2], np.uint8), (SIZE, SIZE)))
        image.putpalette(colours[palettes[number % 2]])
        masks.append(encode(image, "PNG"))
    source = archive(tmp_path / "a.zip", masks)
    if palettes == (0, 1):
        with pytest.raises(LayoutError, match=r"masks/01\.png'.*\(0, 255, 0\).*masks/00\.png"):
            pack_dataset(source, tmp_path / "a.h5", progress=False)
    else:
        assert packed(source, tmp_path / "a.h5")[0] == [[0, 1, 2]] * 4


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
@pytest.mark.parametrize("largest", [3, 15, 255])
def test_a_pgm_has_the_values_that_it_states(tmp_path: Path, largest: int, encoding: str) -> None:
    """Pillow stretches them, so that the largest one becomes 255."""
    content = (
        f"P5\n{SIZE} {SIZE}\n{largest}\n".encode() + np.resize(np.arange(4, dtype=np.uint8), SIZE * SIZE).tobytes()
    )
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        for number in range(4):
            made.writestr(f"images/{number}.png", encode(Image.new("RGB", (SIZE, SIZE), (number, 0, 0)), "PNG"))
            made.writestr(f"masks/{number}.pgm", content)
    assert packed(tmp_path / "a.zip", tmp_path / "a.h5", encoding=encoding)[0] == [[0, 1, 2, 3]] * 4

"""Which images are examined before a pack is planned, and that a slow folder has read these while it was listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image

from colabstage.layouts.detect import detect_layout
from colabstage.pack.job import SAMPLES, look_at_images, prepare_pack
from colabstage.pack.options import PackOptions
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pack.conftest import MakeImages


@pytest.mark.parametrize("classes", [20, 50])
def test_examined_images_have_been_read_while_folders_were_listed(
    tmp_path: Path, make_images: MakeImages, classes: int
) -> None:
    """With class folders, planning asks for nothing that was not on its way already: it costs no further round trip."""
    asked: list[str] = []
    root = make_images(tmp_path / "photos", 4 * classes, classes=classes)
    with FolderTree(root, workers=4, before_read=asked.append, ahead=examined_extensions(PackOptions())) as tree:
        job = prepare_pack(tree, PackOptions(), free_bytes=None)
    assert job.plan.encoding == "pixels"
    assert len(asked) == len(set(asked)) == SAMPLES
    assert len({path.rpartition("/")[0] for path in asked}) == SAMPLES


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (5, 2), (17, 1), (40, 3), (21, 20), (200, 7)])
def test_as_many_are_examined_as_there_are(tmp_path: Path, make_images: MakeImages, count: int, classes: int) -> None:
    """Sixteen, or all where there are fewer, each once, however they lie in folders."""
    asked: list[str] = []
    with FolderTree(make_images(tmp_path / "photos", count, classes=classes), before_read=asked.append) as tree:
        table = detect_layout(tree, "image_folder" if classes > 1 else "images")
        assert len(look_at_images(table, spread=True)) == min(count, SAMPLES)
    assert len(asked) == len(set(asked)) == min(count, SAMPLES)


def test_nothing_is_read_ahead_where_options_say_how_images_are_stored() -> None:
    """A size and channels that are given, an encoding that keeps files, a function: none of them needs an image."""
    assert not examined_extensions(PackOptions(image_size=(32, 32)))
    assert not examined_extensions(PackOptions(encoding="encoded"))
    assert not examined_extensions(PackOptions(prepare=abs))
    assert ".jpg" in examined_extensions(PackOptions())
    assert ".jpg" in examined_extensions(PackOptions(image_size=(32, 32), color_mode="keep"))


@pytest.mark.parametrize(
    ("mode", "options", "told"),
    [
        ("RGBA", PackOptions(), True),
        ("LA", PackOptions(), True),
        ("RGBA", PackOptions(color_mode="keep"), False),
        ("RGB", PackOptions(), False),
    ],
)
def test_a_channel_that_is_left_out_is_told(tmp_path: Path, mode: str, options: PackOptions, *, told: bool) -> None:
    """What is transparent shows the colour behind it, which nobody has looked at."""
    for number in range(2):
        place = tmp_path / "photos" / "ab"[number] / "1.png"
        place.parent.mkdir(parents=True)
        Image.new(mode, (8, 8)).save(place)
    job = prepare_pack(FolderTree(tmp_path / "photos"), options, free_bytes=None)
    assert any("2 of 2 images that were examined have an alpha channel" in note for note in job.notes) == told

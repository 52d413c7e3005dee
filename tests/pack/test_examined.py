"""Which images are examined before a pack is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image

from colabstage.layouts.detect import detect_layout
from colabstage.options import PackOptions
from colabstage.pack.job import SAMPLES, look_at_images, prepare_pack
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pack.conftest import MakeImages


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (5, 2), (17, 1), (40, 3), (21, 20), (200, 7)])
def test_as_many_are_examined_as_there_are(tmp_path: Path, make_images: MakeImages, count: int, classes: int) -> None:
    """Sixteen, or all where there are fewer, each once, however they lie in folders."""
    asked: list[str] = []
    with FolderTree(make_images(tmp_path / "photos", count, classes=classes), before_read=asked.append) as tree:
        table = detect_layout(tree, "image_folder" if classes > 1 else "images")
        assert len(look_at_images(table, spread=True)) == min(count, SAMPLES)
    assert len(asked) == len(set(asked)) == min(count, SAMPLES)


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
    assert any("alpha" in note for note in job.notes) == told

"""A dataset that is here in part: what is shown is what the pack holds, and nothing comes that is not shown."""

import gc
import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage import browse_dataset, stage_dataset
from tests.support.staged import SMALL_BLOCK, use_small_blocks

pytest.importorskip("ipywidgets", reason="needs ipywidgets: pip install --group notebooks")
COUNT = 500


def disk_use(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("encoding", ["encoded", "pixels"])
def test_boxes_are_counted_without_their_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """Labels alone are read for the bars; a page brings its own images, which are those of the files."""
    use_small_blocks(monkeypatch)
    random = np.random.default_rng(0)
    for name in ("images", "labels"):
        (tmp_path / "set" / name).mkdir(parents=True)
    classes = [set(random.integers(0, 3, 1 + number % 3).tolist()) for number in range(COUNT)]
    pixels = random.integers(1, 256, (COUNT, 64, 64, 3), dtype=np.uint8)
    for number, own in enumerate(classes):
        Image.fromarray(pixels[number]).save(tmp_path / f"set/images/{number:03}.png")
        lines = "".join(f"{kind} 0.5 0.5 0.2 0.3\n" for kind in own)
        (tmp_path / f"set/labels/{number:03}.txt").write_text(lines, encoding="ascii")
    (tmp_path / "set/classes.txt").write_text("a\nb\nc\n", encoding="ascii")

    def stage(disk_limit: str | None) -> Any:
        places: Any = {"local_dir": tmp_path / "fast", "cache_dir": tmp_path / "cache"}
        return stage_dataset(
            tmp_path / "set", encoding=encoding, seed=0, disk_limit=disk_limit, progress=False, **places
        )

    stage(None)
    shutil.rmtree(tmp_path / "fast")
    data: Any = stage("5MB")
    before = disk_use(tmp_path / "fast")
    browser: Any = browse_dataset(data, page_size=1)
    assert browser.state.labels.counts.tolist() == [sum(kind in own for own in classes) for kind in range(3)]
    # The first image of the page may reach over the end of a block.
    assert disk_use(tmp_path / "fast") <= before + 2 * SMALL_BLOCK
    for sample in browser.state.read([0, COUNT // 2, COUNT - 1], 64):
        np.testing.assert_array_equal(sample.x, pixels[int(sample.key.rpartition("/")[2].partition(".")[0])])
    # Whoever has seen a widget, ipywidgets keeps it.
    importlib.import_module("ipywidgets").Widget.close_all()
    del browser, data
    gc.collect()

"""The walk through the modules that `stage_dataset` enters for a zip of images: short, and without turning back."""

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from colabstage import stage_dataset
from tests.support.archives import write_archive
from tests.support.images import image, in_classes
from tests.support.walks import walk


def test_few_modules_are_entered_for_a_zip(tmp_path: Path) -> None:
    """Only the executor, which calls the others, and the request, which all of them read, are returned to."""
    images = {name: image(number, suffix=".jpg") for name, number in in_classes(32, suffix=".jpg").items()}
    archive = write_archive(tmp_path / "photos.zip", images)
    places: dict[str, Any] = {"local_dir": tmp_path / "local", "cache_dir": None}
    found = walk(lambda: stage_dataset(archive, image_size=(16, 16), progress=False, **places))
    stays = [name for name, _ in groupby(found.visits)]
    drawn = " -> ".join(stays)
    ours = {name for name in stays if name.startswith("stage/")}
    assert len(ours) <= 7, drawn
    returns = Counter(name for name in stays if name in ours - {"stage/run", "stage/request"})
    assert max(returns.values()) <= 6, drawn
    assert len(set(stays)) <= 54, drawn

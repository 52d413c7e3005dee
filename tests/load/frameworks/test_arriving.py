"""`to_keras` and `to_tf_data` with the real frameworks, of a pack that is here in part and of one that is being packed:
each epoch has the rows of `make_loader`, in its order."""

from __future__ import annotations

import json
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import dataset_h5, make_loader, stage_dataset
from colabstage.h5.manifest import Manifest, write_manifest
from colabstage.io.files import block_ranges, hash_ranges
from colabstage.load.partial import PartialPack
from tests.load.frameworks.arriving_child import BATCH, FIRST, FIRST_OF_KERAS, SEED, SMALL
from tests.load.frameworks.test_keras import running_means

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nurseries import Nurseries

CHILD = Path(__file__).with_name("arriving_child.py")
ROWS, BLOCK, IMAGES = 3000, 65536, 96
# What index and edges need, and room for twelve of the 46 blocks.
LIMIT = 2_900_000 + 12 * BLOCK

pytestmark = [
    pytest.mark.skipif(
        find_spec("tensorflow") is None or find_spec("keras") is None,
        reason="needs tensorflow and keras: pip install -c constraints.txt --group tensorflow",
    ),
    pytest.mark.timeout(240),
    pytest.mark.torch,
]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A pack whose targets are the numbers of its rows, and images of two classes whose pixels are their numbers.

    On the disk: how many files a first batch needs follows from where they are there.
    """
    with tempfile.TemporaryDirectory(prefix="arriving-", dir=os.environ.get("TESTS_ON_DISK")) as name:
        yield written_below(Path(name))


def written_below(folder: Path) -> Path:
    """Write both."""
    pack = folder / "data.h5"
    with h5py.File(pack, "w") as file:
        file["X_train"] = np.random.default_rng(0).integers(0, 256, (ROWS, 10, 33, 3), dtype=np.uint8)
        file["Y_train"] = np.arange(ROWS)
    size = pack.stat().st_size
    hashes = hash_ranges(pack, block_ranges(size, BLOCK), threads=1)
    write_manifest(pack, Manifest(size, BLOCK, tuple(hashes), samples={"train": ROWS}))
    for number in range(IMAGES):
        image = folder / "images" / f"c{number * 2 // IMAGES}" / f"{number:03}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(image)
    return folder


@pytest.fixture(scope="module")
def facts(place: Path, nurseries: Nurseries) -> dict[str, Any]:
    """What the child saw."""
    arguments: list[str | Path] = [CHILD, place / "data.h5", str(LIMIT), place / "images", place]
    found = json.loads(nurseries.run_script("tensorflow", arguments, {"KERAS_BACKEND": "tensorflow"}))
    assert isinstance(found, dict)
    return found


def test_a_part_gives_every_row_once_an_epoch_in_the_order_of_a_loader(facts: dict[str, Any], place: Path) -> None:
    """To `fit`, and to a loop over `tf.data`, while blocks come and go; also after one that was left in the middle."""
    dataset = dataset_h5(place / "data.h5", disk_limit=LIMIT, local_dir=place / "other")
    loader = make_loader(dataset, BATCH, seed=SEED)
    epochs = [[y.tolist() for _, y in loader] for _ in range(2)]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in batch) == list(range(ROWS))
    found = facts["part"]
    assert found["tf_data"] == epochs
    for means, epoch in zip(found["fit"], epochs, strict=True):
        np.testing.assert_allclose(means, running_means(epoch), rtol=1e-5)
    assert found["left"] == epochs[0][:7]
    assert found["after_left"] == epochs[1]
    np.testing.assert_allclose(found["after_stop"], running_means(epochs[1]), rtol=1e-5)
    assert found["evicted"] > 0
    part = dataset.reader.arrival
    assert isinstance(part, PartialPack)
    part.close()


def test_training_goes_along_with_packing(facts: dict[str, Any], place: Path) -> None:
    """The first batch comes before all is packed; rows and their order are those of a loader."""
    data = stage_dataset(
        place / "images",
        local_dir=place / "whole",
        cache_dir=None,
        progress=False,
        image_size=(4, 4),
        streaming=True,
    )
    batches = [(x[:, 0, 0, 0].tolist(), y.tolist()) for x, y in data.loader("train", SMALL, seed=0)]
    assert sorted(value for values, _ in batches for value in values) == list(range(IMAGES))
    found = facts["packing"]
    assert found["tf_data"] == [values for values, _ in batches]
    np.testing.assert_allclose(found["fit"][0], running_means([labels for _, labels in batches]), rtol=1e-5)
    np.testing.assert_allclose(found["fit"][1][-1], 0.5, rtol=1e-5)
    assert found["whole"] == 1
    assert SMALL <= found["ready"] * IMAGES <= FIRST_OF_KERAS
    assert SMALL <= found["tf_ready"] * IMAGES <= FIRST
    data.wait(progress=False)

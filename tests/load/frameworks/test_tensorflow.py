"""`to_tf_data` with the real tensorflow, in its own process."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, make_loader
from tests.load.frameworks.test_keras import ROWS, SEED, batches_of
from tests.load.test_partial import LIMIT, make_pack, part_of
from tests.nurseries import Nurseries

CHILD = Path(__file__).with_name("tensorflow_child.py")

pytestmark = [
    pytest.mark.skipif(
        find_spec("tensorflow") is None, reason="needs tensorflow: pip install -c constraints.txt --group tensorflow"
    ),
    pytest.mark.timeout(240),
    pytest.mark.torch,
]


def write_boxes(path: Path) -> Path:
    """Six images with 0, 1, 2, 0, 1, 2 boxes."""
    counts = np.arange(6) % 3
    with h5py.File(path, "w") as file:
        file["X_train"] = np.zeros((6, 4, 6, 3), np.uint8)
        group = file.create_group("Y_train")
        group["offsets"] = np.cumsum([0, *counts], dtype=np.int64)
        group["boxes"] = np.ones((counts.sum(), 4), np.float32)
        group["labels"] = np.arange(counts.sum())
    return path


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory, nurseries: Nurseries) -> dict[str, Any]:
    """The child's results."""
    folder = tmp_path_factory.mktemp("tensorflow")
    names = {"mapped": {}, "chunked": {"chunks": (4, 8, 6, 3), "compression": 1}, "odd": {}}
    for name, options in names.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            if name == "odd":
                file["before"] = np.zeros(3, np.uint8)
            x = np.random.default_rng(0).integers(0, 256, (ROWS, 8, 6, 3), dtype=np.uint8)
            written = file.create_dataset("X_train", data=x, **options)
            # Where TensorFlow uses memory without a copy, and where not.
            assert name == "chunked" or bool(written.id.get_offset() % 64) == (name == "odd")
            file["Y_train"] = np.arange(ROWS)
    files = [folder / "mapped.h5", write_boxes(folder / "boxes.h5"), folder / "chunked.h5", folder / "odd.h5"]
    make_pack(folder / "pack.h5")
    found = json.loads(nurseries.run_script("tensorflow", [CHILD, *files, folder / "pack.h5", str(LIMIT)], {})) | {
        "folder": str(folder)
    }
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("file", ["mapped", "chunked", "odd"])
def test_each_iterator_is_the_next_epoch(facts: dict[str, Any], file: str) -> None:
    """Those of `make_loader`, also with `repeat`, after an early break, and for two iterators at the same time."""
    found = facts[file]
    assert found["epochs"] == [batches_of(0), batches_of(1)]
    assert found["repeated"] == batches_of(2) + batches_of(3)
    assert found["after_break"] == batches_of(5)
    assert found["beside"] == [batches_of(6), batches_of(7)]
    assert found["resumed"] == batches_of(7)
    assert found["full"] == batches_of(0)[:-1]
    # Some rows, with their weights.
    chosen = [list(range(0, 32, 2)), list(range(32, ROWS, 2))]
    assert found["weighted"] == [[rows, [row / 2 for row in rows]] for rows in chosen]


def test_tensorflow_gathers_what_is_in_memory_by_itself(facts: dict[str, Any]) -> None:
    """From a mapped file, or from what was decoded once, without calling the reader; but not from unaligned memory, nor
    for batches large enough to need fresh memory each time."""
    assert facts["mapped"]["reads"] == facts["chunked"]["reads"] == 0
    assert facts["odd"]["reads"] >= 6 * 8
    assert facts["reads_of_large"] == 3


def test_a_file_that_was_written_to_is_noticed(facts: dict[str, Any]) -> None:
    """Whoever gathers its rows."""
    assert ["replaced" in message for message in facts["errors"]] == [True, True]


def test_shapes_are_known_beforehand(facts: dict[str, Any]) -> None:
    """The first axis if all batches are full; the number of boxes never."""
    for file in ("mapped", "odd"):
        assert facts[file]["spec"] == [[[None, 8, 6, 3], "uint8"], [[None], "int64"]]
        assert facts[file]["batches"] == 8
    assert facts["spec_full"] == [[[5, 8, 6, 3], "float32"], [[5, 38], "float32"]]
    assert facts["spec_boxes"][1] == {
        "boxes": [[None, None, 4], "float32"],
        "labels": [[None, None], "int64"],
        "lengths": [[None], "int64"],
    }
    assert facts["lengths"] == [[0, 1, 2, 0], [1, 2]]


def test_classes_become_numbers_of_their_own(facts: dict[str, Any]) -> None:
    """As a 1 at each one's position."""
    table = np.eye(ROWS)
    assert facts["one_hot"] == [table[rows].tolist() for rows in batches_of(0)]


def test_no_more_is_kept_ahead_than_asked_for(facts: dict[str, Any]) -> None:
    """One batch taken and two ahead, by two threads: batches being read count as kept ahead."""
    assert facts["reads_after_one"] == 3


def test_what_is_made_of_it_keeps_it(facts: dict[str, Any]) -> None:
    """A mapped and prefetched dataset works after the name of the first one is deleted."""
    assert facts["derived"] == [[row + 1 for row in rows] for rows in batches_of(0)]


def test_keras_trains_on_it(facts: dict[str, Any]) -> None:
    """With shapes that layers can be built from."""
    assert facts["fitted"] == 2


def test_a_part_of_a_pack_comes_in_the_order_of_a_loader(facts: dict[str, Any]) -> None:
    """While blocks come and go, also after a loop that was left in the middle."""
    folder = Path(facts["folder"])
    dataset = dataset_h5(folder / "pack.h5", disk_limit=LIMIT, local_dir=folder / "other")
    loader = make_loader(dataset, 50, seed=SEED)
    sums = [[int(x.sum()) for x, _ in loader] for _ in range(2)]
    assert facts["part"] == {"whole": sums[0], "after left": sums[1], "left": sums[0][:7]}
    part_of(dataset).close()


def test_nothing_is_left_behind(facts: dict[str, Any]) -> None:
    """No thread of ours, and no open file once datasets and iterators are dropped; torch is not imported."""
    assert facts["files_while_used"] > 0
    assert facts["files_after_drop"] == 0
    assert facts["threads"] == []
    assert not facts["torch_is_imported"]

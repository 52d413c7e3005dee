"""What a plan reads: no file twice, no images, and nothing is written."""

from __future__ import annotations

import io
import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage import plan_stage
from colabstage.errors import ColabstageError
from colabstage.options import token_blocks
from tests.layouts.known import MemoryTree
from tests.layouts.known_datasets import DATASETS
from tests.layouts.readers import read_any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.layouts.known import Known


class Counted(MemoryTree):
    """Counts how many bytes of each file are read."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.nbytes = Counter[str]()

    def open(self, entry: Any) -> Any:
        found, nbytes = super().open(entry), self.nbytes
        pread = found.pread

        def counted(length: int, offset: int) -> bytes:
            data = pread(length, offset)
            nbytes[entry.name] += len(data)
            return data

        found.pread = counted  # type: ignore[method-assign]
        return found


# What samples are rows or parts of is looked at in places, its header first.
CONTAINERS = (".tar", ".npz", ".npy", ".gz", ".mat", ".bin", ".h5", "-00001")
OF_LABELS = [one for one in DATASETS if one.layout != "pixel_table" and not one.error.startswith(("Dig", "sign_mnist"))]


@pytest.mark.parametrize("known", OF_LABELS, ids=lambda known: known.name)
def test_no_file_of_labels_is_read_twice(known: Known) -> None:
    """Whatever becomes of it."""
    tree = Counted(known.files)
    with suppress(ColabstageError):
        read_any(tree)
    twice = {name for name, nbytes in tree.nbytes.items() if nbytes > len(known.files[name])}
    assert {name for name in twice if not name.endswith(CONTAINERS)} == set()


def test_images_in_parquet_are_not_read() -> None:
    """Their labels are a column of their own."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    rng, images = np.random.default_rng(0), []
    for _ in range(64):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (128, 128, 3), np.uint8)).save(buffer, "PNG")
        images.append(buffer.getvalue())
    file = io.BytesIO()
    parquet.write_table(arrow.table({"image": images, "label": [0, 1] * 32}), file)
    tree = Counted({"train.parquet": file.getvalue()})
    found = read_any(tree)
    assert len(found) == 64
    assert tree.nbytes.total() < sum(map(len, images)) / 4
    assert found.complete is not None
    assert found.complete(found).inputs.source.sizes.tolist() == list(map(len, images))


def test_a_plan_does_not_tokenize(tmp_path: Path) -> None:
    """It says how many rows there are at most; staging says how many there are."""
    (tmp_path / "texts").mkdir()
    lines = [json.dumps({"text": f"story {number} of a cat"}) for number in range(200)]
    (tmp_path / "texts" / "train.jsonl").write_text("\n".join(lines))
    calls = []

    def tokenizer(text: str) -> list[int]:
        calls.append(text)
        return list(text.encode())

    plan = plan_stage(
        tmp_path / "texts", layout=token_blocks(16, tokenizer=tokenizer), cache_dir=None, local_dir=tmp_path / "here"
    )
    assert not calls
    assert not (tmp_path / "here").exists()
    assert "At most" in str(plan)
    assert plan.samples is not None
    assert plan.samples["train"] >= 200

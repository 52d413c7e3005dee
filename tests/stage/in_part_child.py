"""Reads a dataset that is here in part by Keras or TensorFlow, and writes how many rows came, for test_in_part."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from colabstage import stage_dataset, to_keras
from colabstage.errors import NotStagedError


def main(source: str, cache: str, local: str, limit: str, shards: str) -> None:
    """Ask for the part itself, which is refused, and for all rows."""
    data = stage_dataset(source, cache_dir=cache, local_dir=local, disk_limit=int(limit), progress=False)
    assert data.part is not None
    for path in data.part.paths:
        with pytest.raises(NotStagedError, match=re.escape(str(path))):
            to_keras(path, 16)
    seen: list[int] = []
    keras = data.to_keras("train", 100)
    for batch in (keras[n] for n in range(len(keras))) if shards == "True" else data.to_tf_data("train", 100):
        pixels, labels = map(np.asarray, batch)
        rows = 256 * pixels[:, 0, 0, 0].astype(int) + pixels[:, 0, 1, 0]
        np.testing.assert_array_equal(rows % 10, labels)
        assert (pixels[:, 5:] == 200).all()
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(seen)))
    data.part.close()
    sys.stdout.write(f"{len(seen)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

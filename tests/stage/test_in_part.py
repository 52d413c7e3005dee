"""`stage_dataset(disk_limit=…)`: a pack in the cache that is larger is opened in part; nothing larger is made here."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage.errors import NotEnoughSpaceError, OptionError
from colabstage.h5.manifest import BLOCK_BYTES
from colabstage.stage.run import plan_stage, stage_dataset

if TYPE_CHECKING:
    from pathlib import Path

LIMIT, ROWS = 3_500_000, 4000


def test_a_larger_pack_is_read_from_the_cache_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is cached yet, it says what to do and makes nothing; afterwards every row comes from the cache."""
    # Of the real length, three of them would take longer than all else here.
    for module in [module for name, module in sys.modules.items() if name.startswith("colabstage.")]:
        if vars(module).get("BLOCK_BYTES") == BLOCK_BYTES:
            monkeypatch.setattr(module, "BLOCK_BYTES", 65536)
    source, cache, local = tmp_path / "data.npz", tmp_path / "cache", tmp_path / "local"
    x = np.random.default_rng(0).integers(0, 256, (ROWS, 32, 32), dtype=np.uint8)
    np.savez(source, x_train=x, y_train=np.arange(ROWS) % 10)
    places: dict[str, Any] = {"cache_dir": cache, "local_dir": local, "progress": False}
    with pytest.raises(NotEnoughSpaceError, match=r"disk_limit=3.5 MB.* without\s+disk_limit="):
        stage_dataset(source, disk_limit=LIMIT, **places)
    assert not [path for path in local.rglob("*") if path.is_file() and path.stat().st_size > 100_000]
    with pytest.raises(OptionError, match="at once anyway"):
        stage_dataset(source, disk_limit=LIMIT, streaming=True, **places)
    with pytest.raises(OptionError, match="plain files"):
        stage_dataset(source, disk_limit=LIMIT, keep="both", **places)

    whole = stage_dataset(source, **places)
    assert whole.part is None
    expected, labels = whole["train"].read_batch(range(ROWS))
    shutil.rmtree(local)
    plan = plan_stage(source, disk_limit=LIMIT, cache_dir=cache, local_dir=local)
    assert plan.action == "restore"
    assert "opened in part" in str(plan)
    data = stage_dataset(source, disk_limit=LIMIT, **places)
    assert data.part is not None
    assert (data.splits, data.report.origin) == (whole.splits, "cache")
    assert "open in part" in str(data.report)
    train = data["train"]
    np.testing.assert_array_equal(train.targets, labels)
    for start in range(0, ROWS, 250):
        rows = range(start, min(start + 250, ROWS))
        np.testing.assert_array_equal(train.read_batch(rows)[0], np.asarray(expected)[start : rows.stop])
    assert sum(len(y) for _, y in data.loader("train", 64)) == len(train)
    used = sum(path.stat().st_blocks * 512 for path in local.rglob("*"))
    assert used <= LIMIT < (cache / whole.path.name).stat().st_size
    assert data.part.figures["evicted"] > 0
    data.part.close()

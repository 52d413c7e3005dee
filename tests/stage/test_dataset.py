"""What a `StagedDataset` hands out."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - fixtures

import pytest
import torch
from torch.utils.data import WeightedRandomSampler

from colabstage import stage_dataset
from colabstage.errors import OptionError


def test_a_loader_does_as_it_is_told(photos: Path) -> None:
    data = stage_dataset(photos, splits={"train": 0.8, "test": 0.2}, cache_dir=None, progress=False)
    held = data.loader(
        "train", 4, strategy="memory", num_workers=1, prefetch_factor=1, memory_budget="1MB", ragged="pad"
    )
    assert held.plan.strategy == "memory"
    assert sum(len(x) for x, _ in held) == 16
    ranked = [data.loader("train", 4, rank=rank, world_size=2, sampler=range(6), shuffle=True) for rank in (0, 1)]
    assert [sum(len(y) for _, y in loader) for loader in ranked] == [3, 3]
    drawn = data.loader("test", 4, sampler=WeightedRandomSampler([0.0, 1.0, 0.0, 0.0], 6))
    assert torch.equal(torch.cat([y for _, y in drawn]), torch.as_tensor(data["test"][1][1]).repeat(6))
    with pytest.raises(OptionError, match="strategy"):
        data.loader("train", 4, strategy="best")  # type: ignore[arg-type]

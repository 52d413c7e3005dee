"""Pinned memory that batches pass through, on the memory of this computer; on a GPU in test_cuda."""

from __future__ import annotations

import pytest
import torch

from colabstage.load.device import PinnedBuffer

IMAGES = torch.arange(2 * 4 * 5 * 3, dtype=torch.uint8).reshape(2, 4, 5, 3)

TENSORS = {
    "bytes": IMAGES,
    "channels_last": IMAGES.permute(0, 3, 1, 2),
    "part": IMAGES[:, 1:3, ::2],
    "repeated": torch.tensor([1.5]).expand(3, 4),
    "number": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "bool": torch.tensor([True, False, True]),
    "bfloat16": torch.tensor([1.5, 2], dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j]).conj(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_staged_tensors_are_equal_and_dense(name: str) -> None:
    """Values, shape and dtype are the original's; strides are those that a copy on the device has."""
    (staged,) = PinnedBuffer(pinned=False).fill([TENSORS[name]])
    torch.testing.assert_close(staged, TENSORS[name], rtol=0, atol=0)
    assert staged.stride() == torch.empty_like(TENSORS[name]).stride()


def test_a_batch_lies_in_one_block_side_by_side() -> None:
    """All tensors of a batch share one memory without touching each other."""
    staged = PinnedBuffer(pinned=False).fill(list(TENSORS.values()))
    assert len({tensor.untyped_storage().data_ptr() for tensor in staged}) == 1
    for tensor, original in zip(staged, TENSORS.values(), strict=True):
        torch.testing.assert_close(tensor, original, rtol=0, atol=0)


def test_memory_grows_with_the_batch_and_is_used_again() -> None:
    """A larger batch gets more memory; one that fits, the memory that is there."""
    stage = PinnedBuffer(pinned=False)
    (small,) = stage.fill([torch.zeros(10)])
    (large,) = stage.fill([torch.zeros(1000)])
    (again,) = stage.fill([torch.ones(500)])
    assert small.data_ptr() != large.data_ptr() == again.data_ptr()

"""Which engine reads what, decided from facts alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colabstage.load.storage import StorageFacts, choose_engine

PLAIN = StorageFacts(
    name="X_train",
    shape=(10, 4, 4, 3),
    dtype=np.dtype(np.float32),
    layout="contiguous",
    offset=4096,
    native=True,
    chunk_rows=None,
    filters=(),
)


def test_plain_storage_is_mapped() -> None:
    """One block of native values on a local disk is mapped."""
    assert choose_engine(PLAIN).name == "mapped"


@pytest.mark.parametrize(
    ("facts", "slow", "reason"),
    [
        (PLAIN, "Google Drive", "Google Drive"),
        (replace(PLAIN, layout="chunked", offset=None, chunk_rows=1, filters=("deflate",)), None, "deflate"),
        (replace(PLAIN, layout="chunked", offset=None, chunk_rows=1), None, "chunked"),
        (replace(PLAIN, layout="virtual", offset=None), None, "virtual"),
        (replace(PLAIN, layout="external"), None, "external"),
        (replace(PLAIN, native=False), None, "another form"),
        (replace(PLAIN, offset=None), None, "nothing has been written"),
    ],
)
def test_everything_else_goes_through_h5py(facts: StorageFacts, slow: str | None, reason: str) -> None:
    """Each obstacle to mapping leads to h5py, and is named."""
    choice = choose_engine(facts, slow_mount=slow)
    assert choice.name == "h5py"
    assert reason in choice.reason
    assert str(choice) == f"h5py: {choice.reason}"


def test_lengths_in_bytes() -> None:
    """Row and total lengths count all axes and the width of a value."""
    assert PLAIN.row_bytes == 192
    assert PLAIN.nbytes == 1920

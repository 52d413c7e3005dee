"""What inputs are to the eye."""

from __future__ import annotations

import numpy as np
import pytest

from colabstage.notebook.samples import Kind, sample_kind


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "kind"),
    [
        ((32, 32, 3), "uint8", None, "image"),
        ((3, 32, 32), "float32", None, "image"),
        ((28, 28), "uint8", None, "image"),
        ((28, 28, 1), "uint16", None, "image"),
        ((16000,), "float32", "audio", "sound"),
        ((400, 2), "int16", "audio", "sound"),
        ((16000,), "float32", None, "sound"),
        ((2, 16000), "float32", None, "sound"),
        ((256,), "uint16", "tokens", "tokens"),
        ((256,), "int64", None, "tokens"),
        ((13,), "float32", None, "numbers"),
        ((13, 2), "float32", None, "numbers"),
        ((4, 5, 6, 7), "float32", None, "numbers"),
    ],
)
def test_kinds(shape: tuple[int, ...], dtype: str, layout: str | None, kind: Kind) -> None:
    """By shape, dtype and layout."""
    assert sample_kind(shape, np.dtype(dtype), layout) == kind

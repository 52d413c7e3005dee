"""What tests of scaling by torch share: sizes, and whether its library can be used without an import of torch."""

from __future__ import annotations

from colabstage.images.libtorch import LibTorch, find_libtorch

# Heights and widths before and after: smaller, larger, one side alone, one pixel.
SIZES = [
    ((375, 500), (224, 224)),
    ((224, 500), (224, 224)),
    ((100, 40), (224, 224)),
    ((1, 1), (9, 7)),
    ((1, 700), (30, 20)),
    ((3000, 2), (64, 64)),
    ((31, 33), (1, 1)),
    ((64, 64), (63, 65)),
]


def has_libtorch() -> bool:
    """Whether torch is installed, as it is since 2.10."""
    path = find_libtorch()
    try:
        return path is not None and bool(LibTorch(path))
    except (OSError, AttributeError):
        return False

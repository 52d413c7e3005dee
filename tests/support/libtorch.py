"""Whether torch's library can be used without an import of torch."""

from __future__ import annotations

from colabstage.images.libtorch import LibTorch, find_libtorch


def has_libtorch() -> bool:
    """Whether torch is installed, as it is since 2.10."""
    path = find_libtorch()
    try:
        return path is not None and bool(LibTorch(path))
    except (OSError, AttributeError):
        return False

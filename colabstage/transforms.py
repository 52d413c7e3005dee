"""Augmentation of whole batches on the device, for `make_loader(..., batch_transform=...)`; needs torch."""

from __future__ import annotations

from colabstage.io.packages import refuse_import, whole_imports

try:
    with whole_imports():
        from colabstage.load.augment import Compose, Normalize, OneHot, RandomCrop, RandomFlip, RandomResizedCrop
except ImportError as error:
    refuse_import("torch", "colabstage.transforms needs", error)

__all__ = ["Compose", "Normalize", "OneHot", "RandomCrop", "RandomFlip", "RandomResizedCrop"]

"""Augmentation of whole batches on the device, for `make_loader(..., batch_transform=...)`; needs torch."""

from __future__ import annotations

from colabstage.io.whole_imports import whole_imports

with whole_imports():
    from colabstage.load.augment import Compose, Normalize, OneHot, RandomCrop, RandomFlip, RandomResizedCrop

__all__ = ["Compose", "Normalize", "OneHot", "RandomCrop", "RandomFlip", "RandomResizedCrop"]

"""Augmentation of whole batches on the device, for `make_loader(..., batch_transform=...)`; needs torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from colabstage.io.whole_imports import whole_imports

with whole_imports():
    from colabstage.load.augment import Compose, Normalize, OneHot, RandomCrop, RandomFlip, RandomResizedCrop

__all__ = ["Compose", "Normalize", "OneHot", "RandomCrop", "RandomFlip", "RandomResizedCrop"]

# torchvision's names: which of our transforms to use, or what to write instead.
_ELSEWHERE = {
    "RandomHorizontalFlip": "Write RandomFlip(horizontal=0.5).",
    "RandomVerticalFlip": "Write RandomFlip(horizontal=0.0, vertical=0.5).",
    **dict.fromkeys(
        ("Resize", "Scale"), "Write stage_dataset(…, image_size=(height, width)): images are resized once."
    ),
    "CenterCrop": 'Write stage_dataset(…, image_size=(height, width), resize="crop"): images are cropped once.',
    "Grayscale": 'Write stage_dataset(…, color_mode="grayscale"): images are converted once.',
    **dict.fromkeys(
        ("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype"),
        'Leave it out: batches are tensors already. For floats write make_loader(…, dtype="float32"), or Normalize.',
    ),
    **dict.fromkeys(
        (
            *("AugMix", "AutoAugment", "ColorJitter", "CutMix", "ElasticTransform", "GaussianBlur", "GaussianNoise"),
            *("JPEG", "Lambda", "MixUp", "Pad", "RandAugment", "RandomAdjustSharpness", "RandomAffine", "RandomApply"),
            *("RandomAutocontrast", "RandomChoice", "RandomEqualize", "RandomErasing", "RandomGrayscale"),
            *("RandomInvert", "RandomOrder", "RandomPerspective", "RandomPhotometricDistort", "RandomPosterize"),
            *("RandomResize", "RandomRotation", "RandomSolarize", "RandomZoomOut", "TrivialAugmentWide"),
        ),
        "Write batch_transform=torchvision.transforms.v2.{name}(…): it draws once for each batch.",
    ),
}

# Hidden from type checkers, which would otherwise accept any misspelt name as this function's return type.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _ELSEWHERE:
            msg = f"colabstage.transforms has no {name}, which torchvision has. {_ELSEWHERE[name].format(name=name)}"
            # Of an AttributeError, `from … import …` would show nothing.
            raise ImportError(msg, name=__name__)
        msg = f"module 'colabstage.transforms' has no attribute {name!r}"
        # With the module itself, the traceback suggests the name that was meant.
        raise AttributeError(msg, name=name, obj=sys.modules[__name__])

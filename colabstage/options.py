"""Objects to pass as arguments: options in one value, configured layouts, and your own layouts.

    from colabstage.options import LoaderOptions, PackOptions

    options = PackOptions(image_size=224, splits=0.8)
    data, other = (stage_dataset(source, options=options) for source in ("photos.zip", "drawings.zip"))

    from colabstage import stage_dataset
    from colabstage.options import table_rows

    data = stage_dataset("photos.zip", layout=table_rows(labels=["breed"]))

A layout of your own is a function that takes a tree and returns a `SampleTable`; `Images`, `Values` and the others say
what its samples are, and `TreeFiles` where they come from. `progress=` takes an object of a class that derives from
`Progress`.
"""

from __future__ import annotations

from colabstage.io.progress import Progress, ProgressStep
from colabstage.layouts.options import (
    array_rows,
    audio_clips,
    file_names,
    folders,
    image_masks,
    parts,
    table_rows,
    token_blocks,
)
from colabstage.layouts.table import Arrays, Boxes, Images, Masks, SampleTable, TreeFiles, Values
from colabstage.load.plan import LoaderOptions
from colabstage.pack.options import PackOptions

__all__ = [
    "Arrays",
    "Boxes",
    "Images",
    "LoaderOptions",
    "Masks",
    "PackOptions",
    "Progress",
    "ProgressStep",
    "SampleTable",
    "TreeFiles",
    "Values",
    "array_rows",
    "audio_clips",
    "file_names",
    "folders",
    "image_masks",
    "parts",
    "table_rows",
    "token_blocks",
]

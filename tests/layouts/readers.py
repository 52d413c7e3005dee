"""Each layout by its name, and the protocols between packages in the form in which tests call them."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from colabstage.layouts.columns import Column
from colabstage.layouts.columns import make_targets as targets_of_columns
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.lists import Lookup
from colabstage.options import Values, array_rows, audio_clips, image_masks, table_rows, token_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from colabstage.options import SampleTable
    from colabstage.trees.listing import Tree

read_image_folder = functools.partial(detect_layout, layout="image_folder")
read_any = functools.partial(detect_layout, layout="auto")
read_detection = functools.partial(detect_layout, layout="detection")


def read_pairs(tree: Tree, *, masks: str | None = None) -> SampleTable:
    """Images and masks."""
    return detect_layout(tree, "pairs" if masks is None else image_masks(masks))


def read_table(tree: Tree, **options: Any) -> SampleTable:
    """Images that a table names."""
    return table_rows(**options)(tree)


def read_arrays(tree: Tree, **names: str) -> SampleTable:
    """Rows of arrays."""
    return array_rows(**names)(tree)


def read_audio(tree: Tree, **options: Any) -> SampleTable:
    """Clips."""
    return audio_clips(**options)(tree)


def read_tokens(tree: Tree, **options: Any) -> SampleTable:
    """Blocks of tokens."""
    return token_blocks(**options)(tree)


def completed(table: SampleTable) -> SampleTable:
    """A table of which everything is known, as packing makes it first."""
    return table if table.complete is None else table.complete(table)


def make_targets(columns: Mapping[str, Sequence[str]], **options: Any) -> tuple[Values, tuple[str, ...]]:
    """Targets of columns of cells."""
    return targets_of_columns([Column(name, cells) for name, cells in columns.items()], **options)


def picture(number: int, kind: str = "PNG") -> bytes:
    """An image file that no other number gives."""
    values = np.random.default_rng(number).integers(0, 255, (8, 6, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind)
    return file.getvalue()


def contents(table: SampleTable) -> list[bytes]:
    """The files of a table's images."""
    source = table.inputs.source
    return [bytes(source.read(number)) for number in range(len(source))]


def labels(table: SampleTable) -> list[Any]:
    """The targets of a table."""
    assert isinstance(table.targets, Values)
    return table.targets.values.tolist()  # type: ignore[no-any-return]


def find(names: Sequence[str], written: str, *, folder: str = "", split: str = "") -> str | None:
    """The name of the file that is found."""
    found = Lookup(sorted(names)).find(written, folder, split=split)
    return None if found is None else sorted(names)[found]

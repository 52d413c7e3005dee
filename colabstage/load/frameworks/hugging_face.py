"""`to_hf`: a split as a `datasets.Dataset`, for tools that need one, such as the `Trainer` of transformers."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import NotEnoughSpaceError, OptionError, said_by
from colabstage.io.arguments import ONE_SPLIT, refuse_argument
from colabstage.io.boundary import public
from colabstage.io.packages import refuse_import
from colabstage.io.units import format_bytes
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from datasets import Dataset

    from colabstage.load.dataset import dataset_h5

# Fraction of the free memory that may be used; the rest is for the caller's model.
_MEMORY_PART = 0.5
_ROWS_AT_ONCE = 64


@public()
def to_hf(dataset: dataset_h5, *, x: str = "image", y: str = "label") -> Dataset:
    """Return a split as a `datasets.Dataset` in memory: rows are dicts with Pillow images, and labels have class names.

    >>> rows = to_hf(data["train"])  # doctest: +SKIP
    >>> rows[0]["image"], rows.features["label"].names  # doctest: +SKIP

    Images are stored as lossless PNGs, which `datasets` decodes when a row is read. The dataset's transform is not
    applied; use `rows.with_transform`. For batches of tensors `make_loader` is faster.

    Args:
        dataset: `data["train"]` of what `stage_dataset` returns, or any `dataset_h5`.
        x: the name of the column of inputs.
        y: the name of the column of targets; boxes, masks and several labels are lists in it.

    Raises:
        MissingDependencyError: `datasets` is not installed.
        OptionError: `dataset` is not a `dataset_h5`, or values are of a dtype that `datasets` lacks.
        NotEnoughSpaceError: the split does not fit into memory; raised before the first row is read.
    """
    reader = getattr(dataset, "reader", None)
    if not isinstance(reader, SplitReader):
        remedy = f"{ONE_SPLIT} Of a Subset write to_hf(subset.dataset).select(subset.indices)."
        refuse_argument("dataset", dataset, "a dataset_h5", remedy=remedy)
    try:
        import datasets
    except ImportError as error:
        refuse_import("datasets", "to_hf needs", error)
    free, need = read_resources().free_memory_bytes, reader.estimate_row_bytes() * len(reader)
    if need > _MEMORY_PART * free:
        msg = (
            f"'{reader.path}' would take up to {format_bytes(need)} as rows in memory, and {format_bytes(free)} are "
            "free. Read it with make_loader, which needs no more than a few batches."
        )
        raise NotEnoughSpaceError(msg)
    inputs, targets = list[Any](), list[Any]()
    for start in range(0, len(reader), _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(reader)))
        inputs += map(_input, reader.read_x(rows))
        targets += map(_plain, reader.read_y(rows))
    columns = {x: inputs, y: targets}
    try:
        features = datasets.Dataset.from_dict({name: column[:1] for name, column in columns.items()}).features
        if inputs and isinstance(inputs[0], dict):
            features[x] = datasets.Image()
        # Names belong to classes from 0: labels beyond them have no name, and stay numbers.
        if reader.classes and targets and isinstance(targets[0], int) and max(targets) < len(reader.classes):
            features[y] = datasets.ClassLabel(names=list(reader.classes))
        return datasets.Dataset.from_dict(columns, features=features)
    # Arrow's own errors are of these types.
    except (OverflowError, ValueError, NotImplementedError) as error:
        kinds = f"x is {reader.row_dtype}, y is {reader.target_dtype or 'of many shapes'}"
        msg = f"datasets has no column for these values ({said_by(error)}): {kinds}. Use make_loader or to_numpy."
        raise OptionError(msg) from error


def _input(x: Any) -> Any:
    is_image = isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 3 and x.shape[2] in (1, 3, 4)
    if not is_image or not x.size:
        return _plain(x)
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(x[..., 0] if x.shape[2] == 1 else x).save(written, "PNG", compress_level=1)
    return {"bytes": written.getvalue(), "path": None}


def _plain(y: Any) -> Any:
    if isinstance(y, dict):
        return {name: _plain(one) for name, one in y.items()}
    return y.tolist() if isinstance(y, np.ndarray | np.generic) else y

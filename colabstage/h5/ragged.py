"""Datasets of others whose rows have any length: HDF5's variable-length numbers, and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from colabstage.trees.hdf5 import HeapReferences

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

# Rows that are looked at for their length.
_PROBED = 128


def ragged_kind(dataset: Any) -> Literal["ragged", "texts"] | None:
    """What an open `h5py.Dataset` holds a row of: any number of values, or a text; `None` where it is neither."""
    from h5py import check_string_dtype

    if len(dataset.shape) != 1:
        return None
    if check_string_dtype(dataset.dtype) is not None:
        return "texts"
    return "ragged" if _element_trouble(dataset) == "" else None


def element_dtype(dataset: Any) -> np.dtype[Any]:
    """The dtype of one value of a row of any length, in native byte order; of texts that of their bytes."""
    import numpy as np
    from h5py import check_vlen_dtype

    # Only the kind of number: h5py keeps the names of an enumeration beside it.
    base = check_vlen_dtype(dataset.dtype)
    return np.dtype(np.uint8) if base is None or base is str or base is bytes else np.dtype(base.str)


def ragged_trouble(dataset: Any) -> str | None:
    """Why rows of any length cannot be read, as a sentence; `None` where they can, or where rows are something else."""
    from h5py import check_string_dtype, check_vlen_dtype

    is_text = check_string_dtype(dataset.dtype) is not None
    if not is_text and check_vlen_dtype(dataset.dtype) is None:
        return None
    if len(dataset.shape) != 1:
        what = "texts" if is_text else "lists of values"
        return f"Each row is an array of {what}, {dataset.shape[1:]}; expected one in each row."
    return (None if is_text else _element_trouble(dataset)) or None


def _element_trouble(dataset: Any) -> str | None:
    """Why values inside rows cannot be read: "" where they can, `None` where rows are not of any length."""
    import numpy as np
    from h5py import check_vlen_dtype, h5t

    base = check_vlen_dtype(dataset.dtype)
    if base is None:
        return None
    if not isinstance(base, np.dtype) or base.kind not in "biufc":
        return f"The values inside its rows are {_named(base)}; expected numbers."
    stored = dataset.id.get_type().get_super()
    if base.kind in "bc":
        same = stored.get_size() == base.itemsize
    else:
        same = stored.equal(h5t.py_create(np.dtype(base.str)))
        same = same or (stored.get_class() == h5t.ENUM and stored.get_super().equal(h5t.py_create(np.dtype(base.str))))
    if base.isnative and same:
        return ""
    # h5py 3.16 gives the bytes of such values as they lie in the file, and calls them native ones.
    return (
        "The values inside its rows are numbers of another form than this machine's, of the other byte order perhaps, "
        "and h5py hands out the wrong ones. Write them as native numbers."
    )


def _named(base: Any) -> str:
    if getattr(base, "names", None):
        return f"compounds of {', '.join(base.names)}"
    return "arrays" if getattr(base, "subdtype", None) else "rows of any length again, or texts"


def estimate_bytes(dataset: Any) -> int:
    """About how many bytes the values of all rows have, by the mean of a few; exact for texts of one length.

    Never more than the file, where no values lie twice.
    """
    import numpy as np

    count = int(dataset.shape[0])
    if dataset.dtype.kind == "S":
        return count * int(dataset.dtype.itemsize)
    if not count:
        return 0
    rows = np.unique(np.linspace(0, count - 1, min(_PROBED, count)).astype(np.intp))
    HeapReferences(dataset, str(dataset.name).lstrip("/")).check(rows)
    found: Sequence[Any] = dataset[rows].tolist()
    mean = sum(len(row) * getattr(row, "itemsize", 1) for row in found) / len(rows)
    return min(int(mean * count), int(dataset.file.id.get_filesize()))

"""`pack_dataset`: a local folder or archive becomes one HDF5 file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import TargetExistsError
from colabstage.fileops import make_folder
from colabstage.images.options import ImageOptions
from colabstage.machine.mounts import is_slow_mount
from colabstage.machine.resources import free_space
from colabstage.pack.execute import SLOW_READERS, run_pack
from colabstage.pack.job import prepare_pack
from colabstage.pack.options import PackOptions, split_fractions
from colabstage.progress import Cancellation, resolve_progress
from colabstage.trees.open import open_tree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from colabstage.images.options import ColorMode, Resize
    from colabstage.pack.options import Encoding, OnError
    from colabstage.pack.report import PackReport
    from colabstage.progress import Progress


def pack_dataset(
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    layout: str = "auto",
    image_size: tuple[int, int] | None = None,
    color_mode: ColorMode = "rgb",
    resize: Resize = "stretch",
    encoding: Encoding = "auto",
    splits: Mapping[str, float] | None = None,
    seed: int = 0,
    on_error: OnError = "raise",
    overwrite: bool = False,
    progress: bool | Progress = True,
) -> PackReport:
    """Convert a folder or archive on this machine to one HDF5 file; no Google Drive involved.

    Args:
        source: a folder, or a zip or tar that is read in place, never extracted.
        out: the file to make. Its manifest `OUT.json` is written beside it, last.
        layout: how files become samples; `"auto"` tries every layout there is.
        image_size: `(height, width)` in pixels of every image; `None` keeps each image's own.
        color_mode: `"rgb"`, `"grayscale"` or `"keep"`.
        resize: `"stretch"`, `"crop"` or `"pad"`.
        encoding: `"pixels"`, `"encoded"`, or `"auto"` for what fits.
        splits: fractions by split name, where the source has no split folders.
        seed: of the splits and of the row order of `train`.
        on_error: `"raise"` at the first image that cannot be decoded, or `"skip"` and report it.
        overwrite: replace a file that stands at `out`.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Raises:
        SourceNotFoundError, ArchiveError, LayoutError, DecodeError, OptionError, NotEnoughSpaceError,
        TargetExistsError, TargetNotWritableError: nothing at `out` has changed.
    """
    target = Path(out)
    options = PackOptions(
        layout=layout,
        image=ImageOptions(size=image_size, color_mode=color_mode, resize=resize),
        encoding=encoding,
        splits=split_fractions(splits),
        seed=seed,
        on_error=on_error,
    )
    if target.exists() and not overwrite:
        msg = f"'{target}' exists. Choose another name, or give overwrite=True to replace it."
        raise TargetExistsError(msg)
    place = Path(source)
    workers = SLOW_READERS if is_slow_mount(place) else 1
    make_folder(target.parent)
    with (
        tempfile.TemporaryDirectory(prefix=".colabstage-spool-", dir=target.parent) as spool,
        open_tree(place, spool=Path(spool), workers=workers) as tree,
    ):
        job = prepare_pack(tree, options, free_bytes=free_space(target.parent))
        return run_pack(job, target, slow=workers > 1, progress=resolve_progress(progress), cancellation=Cancellation())

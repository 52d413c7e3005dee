"""`pack_dataset`: a local folder or archive becomes one HDF5 file."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import TargetExistsError
from colabstage.fileops import make_folder, remove_any, sweep_orphans, temp_beside
from colabstage.images.options import ImageOptions
from colabstage.layouts.items import read_dataset
from colabstage.machine.mounts import is_slow_mount
from colabstage.pack.execute import SLOW_READERS, run_pack, space_for
from colabstage.pack.job import plan_job, prepare_pack
from colabstage.pack.options import PackOptions, split_fractions
from colabstage.progress import Cancellation, resolve_progress
from colabstage.trees.open import open_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from colabstage.images.options import ColorMode, Resize
    from colabstage.layouts.detect import LayoutFunction
    from colabstage.layouts.items import IndexableDataset
    from colabstage.pack.options import Encoding, OnError
    from colabstage.pack.prepare import Prepare
    from colabstage.pack.report import PackReport
    from colabstage.progress import Progress


def pack_dataset(
    source: str | PathLike[str] | IndexableDataset,
    out: str | PathLike[str],
    *,
    layout: str | LayoutFunction = "auto",
    image_size: tuple[int, int] | None = None,
    color_mode: ColorMode = "rgb",
    resize: Resize = "stretch",
    encoding: Encoding | str = "auto",
    splits: Mapping[str, float] | None = None,
    group_by: str | None = None,
    prepare: Prepare | None = None,
    seed: int = 0,
    on_error: OnError | str = "raise",
    overwrite: bool = False,
    progress: bool | Progress = True,
) -> PackReport:
    r"""Convert a folder or archive on this machine to one HDF5 file; no Google Drive involved.

    Args:
        source: a folder, or a zip or tar that is read in place, never extracted; or a dataset: an object with a length
            whose items are `(x, y)`, images, arrays or numbers.
        out: the file to make. Its manifest `OUT.json` is written beside it, last.
        layout: how files become samples; `"auto"` tries every layout there is. A function of one argument, the tree,
            that returns a `SampleTable` is a layout of your own.
        image_size: `(height, width)` in pixels of every image; `None` keeps each image's own.
        color_mode: `"rgb"`, `"grayscale"` or `"keep"`.
        resize: `"stretch"`, `"crop"` or `"pad"`.
        encoding: `"pixels"`, `"encoded"`, `"jpeg:90"` for JPEGs of that quality made of the resized images, or `"auto"`
            for what fits.
        splits: fractions by split name, where the source has no split folders.
        group_by: a regular expression searched in each sample's name, for example r"patient\d+": samples for which it
            finds the same (its first group, where it has one) never end in two splits.
        prepare: called with each decoded x (after resizing), in several threads; returns the array to store. All have
            the shape and dtype of the first.
        seed: of the splits and of the row order of `train`.
        on_error: `"raise"` at the first image that cannot be decoded, `"skip"` and report it, or `"skip:1%"` to stop
            when more than that part of all has been left out. Work that was done before it stopped is kept.
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
        group_by=group_by,
        prepare=prepare,
        seed=seed,
        on_error=on_error,
    )
    _check_target(target, overwrite=overwrite)
    shown = resolve_progress(progress)
    if not isinstance(source, str | os.PathLike):
        job = plan_job(None, read_dataset(source), options, free_bytes=space_for(target))
        make_folder(target.parent)
        return run_pack(job, target, slow=False, progress=shown, cancellation=Cancellation())
    place = Path(source)
    workers = SLOW_READERS if is_slow_mount(place) else 1
    with _spool(target) as spool, open_tree(place, spool=spool, workers=workers) as tree:
        job = prepare_pack(tree, options, free_bytes=space_for(target))
        make_folder(target.parent)
        identity = {} if tree.kind == "folder" else _look_at(place)
        return run_pack(job, target, slow=workers > 1, progress=shown, cancellation=Cancellation(), identity=identity)


def _check_target(target: Path, *, overwrite: bool) -> None:
    if target.is_dir():
        msg = f"'{target}' is a folder; expected the name of a file, for example '{target / 'pack.h5'}'."
        raise TargetExistsError(msg)
    if target.exists() and not overwrite:
        msg = f"'{target}' exists. Choose another name, or give overwrite=True to replace it."
        raise TargetExistsError(msg)
    if target.parent.exists():
        make_folder(target.parent)


def _look_at(archive: Path) -> dict[str, int]:
    """What tells an archive from one that replaces it with members of the same names, sizes and times."""
    status = archive.stat()
    return {"nbytes": status.st_size, "mtime_ns": status.st_mtime_ns}


@contextmanager
def _spool(target: Path) -> Iterator[Path]:
    """A name beside `target` for the unpacked form of a compressed tar; the folder is made only where there is one."""
    model = target.with_name(f"{target.name}-spool")
    sweep_orphans(target.parent, name=model.name)
    folder = temp_beside(model)
    try:
        yield folder
    finally:
        remove_any(folder)

"""`stage_dataset`, the one cell, and `plan_stage`, the same without doing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.fileops import local_lock, make_folder
from colabstage.images.options import ImageOptions
from colabstage.machine.remount import run_with_one_remount
from colabstage.pack.options import PackOptions, split_fractions
from colabstage.progress import NullProgress, resolve_progress
from colabstage.stage.request import make_request
from colabstage.stage.staging import Staging

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from colabstage.fetch.sources import SourceArgument
    from colabstage.images.options import ColorMode, Resize
    from colabstage.pack.options import Encoding, OnError
    from colabstage.progress import Progress
    from colabstage.stage.dataset import StagedDataset
    from colabstage.stage.plan import StagePlan
    from colabstage.stage.request import Keep, StageRequest, Verify

# How long a second notebook waits for the first one that stages the same; then it does the work itself, beside.
_LOCK_TIMEOUT_S = 1800.0


def stage_dataset(
    source: SourceArgument,
    *,
    layout: str = "auto",
    keep: Keep = "pack",
    image_size: tuple[int, int] | None = None,
    color_mode: ColorMode = "rgb",
    resize: Resize = "stretch",
    encoding: Encoding = "auto",
    splits: Mapping[str, float] | None = None,
    seed: int = 0,
    on_error: OnError = "raise",
    local_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = "auto",
    refresh: bool = False,
    verify: Verify = "fast",
    hash: str | None = None,  # noqa: A002 - the word that people know from downloaders
    wait: bool = True,
    progress: bool | Progress = True,
) -> StagedDataset:
    """Make a dataset local and ready, by the shortest way there is.

    Already staged here: returns at once. A packed copy in the cache: copies and verifies it. Else: reads the source
    with many reads in flight, decodes once, writes one HDF5 file, and publishes that to the cache for the next session.

        data = stage_dataset("/content/drive/MyDrive/kitti.zip", image_size=(256, 256))
        train = data.loader("train", batch_size=64, device="cuda")

    Args:
        source: a folder, or a zip or tar, on this machine or on a mounted Google Drive.
        layout: how files become samples; `"auto"` tries every layout there is.
        keep: `"pack"` one HDF5 file, `"files"` a plain local tree, `"both"`.
        image_size: `(height, width)` in pixels of every image; `None` keeps each image's own.
        color_mode: `"rgb"`, `"grayscale"` or `"keep"`.
        resize: `"stretch"`, `"crop"` or `"pad"`.
        encoding: `"pixels"`, `"encoded"`, or `"auto"` for what fits.
        splits: fractions by split name, for a source without split folders; `None` takes the splits as found, and
            everything is `train` where there are none.
        seed: of the splits and of the row order of `train`.
        on_error: `"raise"` at the first image that cannot be decoded, or `"skip"` and report it.
        local_dir: where on the local disk; `None` is `colabstage` in the platform's fast folder.
        cache_dir: where packs last; `"auto"` is `MyDrive/colabstage` on a mounted Drive, else the platform's lasting
            folder if it is another disk; `None` for nowhere.
        refresh: stage again, whatever is here or cached.
        verify: `"fast"` trusts unchanged times and sizes (a file rewritten in place, under its name, is not noticed);
            `"full"` lists the source again and hashes every block of what is here.
        wait: `False` returns before the copy to the cache is finished; `data.wait_published()` waits for it.
        progress: `True` for bars, `False` for silence, or a `Progress`.

    Raises:
        SourceNotFoundError, SourceReadError, DriveDisconnectedError: the source cannot be read.
        ArchiveError: the archive is damaged, unsafe, or none.
        LayoutError: the files form no dataset in any layout. DecodeError: an image cannot be decoded.
        NotEnoughSpaceError: it would not fit; raised before it begins, with figures.
        TargetNotWritableError, OptionError: an argument cannot work.
        In each case, what was staged or cached before is as it was.
    """
    options = PackOptions(
        layout=layout,
        image=ImageOptions(size=image_size, color_mode=color_mode, resize=resize),
        encoding=encoding,
        splits=split_fractions(splits),
        seed=seed,
        on_error=on_error,
    )
    request = make_request(
        source,
        options=options,
        keep=keep,
        local_dir=local_dir,
        cache_dir=cache_dir,
        refresh=refresh,
        verify=verify,
        checksum=hash,
    )
    shown = resolve_progress(progress)
    if request.drive_path is None:
        return _stage(request, wait=wait, progress=shown)
    notes: list[str] = []
    # Each try opens everything anew: nothing of the first may be held open on a mount that has died.
    staged = run_with_one_remount(
        lambda: _stage(request, wait=wait, progress=shown), place=request.drive_path, notice=notes.append
    )
    staged.report.notes += notes
    return staged


def _stage(request: StageRequest, *, wait: bool, progress: Progress) -> StagedDataset:
    with Staging(request, progress=progress) as staging:
        staged = staging.reuse()
        if staged is not None:
            return staged
        staging.check_possible()
        make_folder(request.folder.parent)
        with local_lock(request.folder.with_name(f"{request.name}.lock"), timeout_s=_LOCK_TIMEOUT_S):
            # Whoever held the lock before may have done the work.
            return staging.reuse() or staging.restore() or staging.stage(wait=wait)


def plan_stage(
    source: SourceArgument,
    *,
    layout: str = "auto",
    keep: Keep = "pack",
    image_size: tuple[int, int] | None = None,
    color_mode: ColorMode = "rgb",
    resize: Resize = "stretch",
    encoding: Encoding = "auto",
    splits: Mapping[str, float] | None = None,
    seed: int = 0,
    on_error: OnError = "raise",
    local_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = "auto",
    refresh: bool = False,
    verify: Verify = "fast",
    hash: str | None = None,  # noqa: A002 - as above
) -> StagePlan:
    """Say what `stage_dataset` would do with the same arguments; writes nothing.

    Lists the source, and reads the headers of a few images where their size matters.

    Raises:
        As `stage_dataset`, for what can be known beforehand.
    """
    options = PackOptions(
        layout=layout,
        image=ImageOptions(size=image_size, color_mode=color_mode, resize=resize),
        encoding=encoding,
        splits=split_fractions(splits),
        seed=seed,
        on_error=on_error,
    )
    request = make_request(
        source,
        options=options,
        keep=keep,
        local_dir=local_dir,
        cache_dir=cache_dir,
        refresh=refresh,
        verify=verify,
        checksum=hash,
    )
    with Staging(request, progress=NullProgress()) as staging:
        return staging.plan()

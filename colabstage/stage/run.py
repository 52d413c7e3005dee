"""`stage_dataset`, the one cell, and `plan_stage`, the same without doing anything."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Unpack

from colabstage.io.arguments import GOES_ON, NOTHING_DONE, stops_with, takes
from colabstage.io.progress import NullProgress, resolve_progress
from colabstage.machine.watched import run_watched, run_with_one_remount
from colabstage.stage.make import StageCall
from colabstage.stage.report import StageReport
from colabstage.stage.request import StageArguments, check_for_streaming, check_for_workers, make_request
from colabstage.stage.staging import plan_call, run_call
from colabstage.stage.streaming import BackgroundPack

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from colabstage.io.progress import Progress
    from colabstage.load.partial import PartialPack
    from colabstage.pack.options import PackOptions
    from colabstage.pack.stream import PackStream
    from colabstage.sources.parse import SourceArgument
    from colabstage.stage.dataset import StagedDataset
    from colabstage.stage.report import StagePlan

_REMEDIES = {"source": 'Write the dataset\'s path or address first: "photos.zip".'}


@takes(make_request, arguments=StageArguments, remedies=_REMEDIES)
@stops_with(GOES_ON)
def stage_dataset(
    source: SourceArgument,
    *,
    wait: bool = True,
    streaming: bool = False,
    executor: Executor | None = None,
    progress: bool | Progress = True,
    options: PackOptions | None = None,
    **arguments: Unpack[StageArguments],
) -> StagedDataset:
    r"""Make a dataset local and ready, by the shortest way.

    If it is already staged here, return at once. If there is a packed copy in the cache, copy and verify it. Otherwise
    read the source with many reads in flight, decode once, write one HDF5 file, and publish that to the cache for the
    next session.

        data = stage_dataset("/content/drive/MyDrive/kitti.zip", image_size=(256, 256))
        train = data.loader("train", batch_size=64, device="cuda")

    Args:
        source: where the dataset is. A folder, an archive, or a pattern such as `"part-*.zip"`, on this machine or on a
            mounted Google Drive; a share link of Google Drive, or its id; an address: `https://…`, or one that fsspec
            knows (`s3://`, `gs://`, `az://`, `hf://`, `ftp://`, `sftp://` …), of an archive or a folder;
            `kaggle://owner/dataset`; a `Tree`; or a list of these, which form one dataset together. An archive is
            packed while it arrives and never extracted. One file of arrays, records or tokens (.npy, .h5, .tfrecord,
            .parquet, .bin, .txt) is a dataset too, and so is a local .csv with the paths of images beside it.
        wait: `False` returns before the copy to the cache is finished; `data.wait_published()` waits for it.
        streaming: `True` returns as soon as the pack is planned, and packs in the background, in the order in which
            the first epoch needs the rows: `data.loader(…)` gives batches at once and waits only for the rows of its
            batch, `data.wait()` waits for the rest, and `data.ready` tells how much is here. The finished pack is
            the same, byte for byte. A pack in the cache is copied in the same way.
        executor: a `concurrent.futures.Executor` whose workers each read and decode a part of the samples; the parts
            are joined into the same file. For a folder or archive that the workers can open by its path, or with
            `keep="both"` for any source; workers on other machines must have access to `local_dir` too. Needs space
            for the pack twice while it runs.
        progress: `True` for bars, `False` for silence, or a `Progress`.
        options: how the pack is made, in one value, for several datasets; arguments given by name take precedence.
        **arguments: those of `colabstage.options.PackOptions`; and `keep`, `local_dir`, `cache_dir`, `refresh`,
            `verify`, `hash` and `disk_limit`, as of `make_request`.

    Raises:
        SourceNotFoundError, SourceReadError, DriveDisconnectedError: the source cannot be read.
        SourceAccessError: a login, a permission or a licence is missing. DriveQuotaError: Drive refuses for now.
        WebPageError: a web page came in place of the data. ChecksumMismatchError: it is another file than asked for.
        MissingDependencyError: this kind of source needs a package; the message has the install line.
        ArchiveError: the archive is damaged, unsafe, or not an archive.
        LayoutError: the files form no dataset in any layout. DecodeError: an image cannot be decoded.
        NotEnoughSpaceError: it would not fit; raised before work begins, with figures.
        TargetExistsError: the plain files to be replaced include one that colabstage did not write, or one that was
            changed since.
        TargetNotWritableError, OptionError: an argument cannot work.

    Whatever is raised, what was staged or cached before is unchanged.
    """
    request = make_request(source, options=options, **arguments)
    if executor is not None:
        check_for_workers(request)
    shown = resolve_progress(progress)
    if streaming:
        check_for_streaming(request, has_executor=executor is not None)
        report = StageReport()

        def work(progress: Progress, stream: PackStream, let_in: Callable[[PartialPack], object]) -> StagedDataset:
            return _stage_watched(StageCall(request, progress, report=report, stream=stream, let_in=let_in), wait=False)

        return BackgroundPack(work, report, shown).start()
    return _stage_watched(StageCall(request, shown, executor), wait=wait)


def _stage_watched(first: StageCall, *, wait: bool) -> StagedDataset:
    """Do one call, and once more where the Drive that it needs dies meanwhile and can be mounted again."""
    request = first.request
    if request.drive_path is None:
        return run_watched(lambda: run_call(first, wait=wait), *request.touched_paths)
    notes: list[str] = []
    calls = chain([first], repeat(replace(first, report=StageReport())))
    # Each attempt opens everything again: nothing may be kept open on a mount that has died.
    staged = run_with_one_remount(
        lambda: run_call(next(calls), wait=wait),
        place=request.drive_path,
        touches=request.touched_paths,
        notice=notes.append,
    )
    staged.report.note(*notes)
    return staged


@takes(make_request, arguments=StageArguments, remedies=_REMEDIES)
@stops_with(NOTHING_DONE)
def plan_stage(
    source: SourceArgument, *, options: PackOptions | None = None, **arguments: Unpack[StageArguments]
) -> StagePlan:
    """Say what `stage_dataset` would do with the same arguments, without writing anything.

    This lists the source, and reads the headers of a few images where their size matters. A source that has to be
    downloaded before it can be opened (a share link, a Kaggle dataset) is not read.

    The arguments are those of `stage_dataset` without `wait`, `streaming`, `executor` and `progress`. The errors are
    the same too, as far as they can be known beforehand.

    Args:
        source: where the dataset is, as for `stage_dataset`.
        options: as for `stage_dataset`.
        **arguments: those of `stage_dataset`.
    """
    request = make_request(source, options=options, **arguments)
    return run_watched(lambda: plan_call(StageCall(request, NullProgress())), *request.touched_paths)

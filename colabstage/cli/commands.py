"""The commands: each calls one function of the library and returns its result. Their docstrings are their help."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from colabstage.cli import options as o
from colabstage.cli.command import NOTHING_LEFT, Output, command
from colabstage.io.boundary import NOTHING_DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.diagnose.gpu import GpuMonitor
    from colabstage.stage.purge import StoredDataset

_REDRAW_S = 0.5


@command(flags=o.STAGE_FLAGS)
def stage(source: o.Source, *, flags: dict[str, Any]) -> Output:
    """Make a dataset local and ready to train on, in the quickest way.

    A dataset that is already staged is reused. A packed copy in the cache is copied and verified. Otherwise the
    source is read and packed, and the pack is published to the cache.

    Examples:
      colabstage stage /content/drive/MyDrive/kitti.zip --image-size 256x256
      colabstage stage https://example.org/photos.tar.gz --hash sha256:…
      colabstage stage s3://bucket/part-1.zip s3://bucket/part-2.zip
      colabstage stage photos --splits train=0.8,test=0.2 --on-error skip
      colabstage stage digits.tar.gz --color-mode grayscale --json
    """
    from colabstage.stage.run import stage_dataset

    staged = stage_dataset(o.read_sources(source), **flags)
    found = {
        "path": staged.path,
        "files": staged.files,
        "splits": dict(staged.splits),
        "classes": staged.classes,
        "report": staged.report,
    }
    return Output(found, f"{staged.report}\n{staged}")


@command(flags=o.STAGE_FLAGS, interrupted=NOTHING_DONE)
def plan(source: o.Source, *, flags: dict[str, Any]) -> object:
    """Show what `stage` would do, and how much disk space it would need.

    It takes the same arguments, reads only what it needs to know, and writes nothing.

    Examples:
      colabstage plan /content/drive/MyDrive/kitti.zip --image-size 256x256
      colabstage plan photos --keep both --json
    """
    from colabstage.stage.plan import plan_stage

    return plan_stage(o.read_sources(source), **flags)


@command(flags=o.flags("local_dir", "cache_dir"), interrupted=NOTHING_DONE)
def list_(*, flags: dict[str, Any]) -> object:
    """List the datasets on this machine and in the cache, with their source, size, rows and options, and the total.

    Examples:
      colabstage cache list
      colabstage cache list --cache-dir /content/drive/MyDrive/colabstage --json
    """
    from colabstage.stage.purge import list_datasets

    return list_datasets(**flags)


@command(flags=o.flags("local_dir", "cache_dir"))
def purge(
    names: Annotated[list[str] | None, o.argument("NAME…", "Datasets, as `cache list` names them.")] = None,
    *,
    older_than: Annotated[
        float | None, o.option("--older-than", "DAYS", "Only those older than this many days.", least=0.0)
    ] = None,
    everything: Annotated[bool, o.option("--all", "", "All stored datasets.")] = False,
    only: Annotated[
        Literal["here", "cache"] | None,
        o.choice("--only", ("here", "cache"), "Only on this machine, or only in the cache."),
    ] = None,
    yes: Annotated[bool, o.option("--yes", "", "Really remove them; without it, only list them.")] = False,
    flags: dict[str, Any],
) -> Output:
    """Remove datasets that colabstage has stored, and nothing else.

    Without --yes it only lists them. Unfinished work of runs that died is removed as well.

    Examples:
      colabstage cache purge photos-1f2e3d4c
      colabstage cache purge --older-than 30 --only cache --yes
      colabstage cache purge --all --yes
    """
    from colabstage.io.report import Report
    from colabstage.stage import purge as stored

    # Chosen before anything is removed, so that the list without --yes is exactly the same.
    chosen: Sequence[StoredDataset] = stored.select_datasets(
        stored.list_datasets(**flags), names=names or (), older_than_days=older_than, everything=everything, place=only
    )
    # Removal cannot be undone, so it has to be requested explicitly.
    if not yes:
        would = Report(f"Would remove {stored.total_of(chosen)}.", (stored.table_of(chosen),))
        return Output(chosen, f"{would}\nAdd --yes to remove them." if chosen else str(would))
    done = stored.purge_datasets(chosen)
    # Afterwards, because a removed dataset may leave temporaries behind.
    stored.sweep_leftovers(**flags)
    # A scheduled purge that removed only half must not look like one that removed everything.
    return Output(done.removed, str(done), f"Not removed: {'; '.join(done.reasons)}." if done.kept else "")


@command(flags=o.flags("only", "hash", "overwrite", "refresh", "verify"))
def fetch(
    *,
    source: Annotated[list[str], o.argument("SOURCE", "As for `stage`: paths, patterns, share links, addresses.")],
    target: Annotated[
        str, o.argument("TARGET", "The file or folder to create; a single file can go into an existing folder.")
    ],
    flags: dict[str, Any],
) -> object:
    """Copy or download a file, or a folder of files, to the local disk.

    The result is verified and never partial, and an interrupted run resumes. Archives are not extracted. If nothing has
    changed since the last run, nothing is done.

    Examples:
      colabstage fetch https://example.org/photos.zip photos.zip --hash sha256:…
      colabstage fetch s3://bucket/train train
      colabstage fetch /content/drive/MyDrive/photos /content/photos --json
    """
    from colabstage.sources.fetching import fetch_files

    return fetch_files(o.read_sources(source), target, **flags)


@command(flags=o.flags("only", "zip_encoding", "overwrite"))
def extract(
    archive: Annotated[str, o.argument("ARCHIVE", "A zip, tar, 7z, rar or gz.")],
    target: Annotated[str, o.argument("TARGET", "The folder to create.")],
    *,
    flags: dict[str, Any],
) -> object:
    """Extract an archive into a folder of its own.

    Members are extracted in parallel, all of them or none. An archive with unsafe names is refused.

    Examples:
      colabstage extract photos.zip photos
      colabstage extract photos.tar.zst photos --overwrite --json
      colabstage extract photos.zip train --only photos/train
    """
    from colabstage.sources.fetching import extract_archive

    return extract_archive(archive, target, **flags)


@command(flags=o.PACK_FLAGS | o.flags("shards", "append_to", "overwrite"))
def pack(
    source: o.LocalSource,
    # Not required, because with --append-to the name follows from that pack.
    out: Annotated[str | None, o.argument("[OUT]", "The file to write; its manifest OUT.json goes next to it.")] = None,
    *,
    flags: dict[str, Any],
) -> object:
    """Convert a folder or archive to one HDF5 file, or several.

    The source has to be local or mounted; no cache is involved.

    Examples:
      colabstage pack photos photos.h5 --image-size 224x224 --resize crop
      colabstage pack photos.zip photos.h5 --encoding jpeg:90 --overwrite
      colabstage pack photos photos.h5 --splits train=0.9,test=0.1 --group-by 'patient\\d+'
      colabstage pack photos photos.h5 --shards 8 --on-error skip:1%
      colabstage pack newer --append-to photos.h5
    """
    from colabstage.pack.run import pack_dataset

    return pack_dataset(source, out, **flags)


@command(interrupted=NOTHING_DONE)
def info(file: o.PackFile) -> Output:
    """Describe an HDF5 file with X_<split> and Y_<split>.

    It works for any such file, whichever tool wrote it. Samples are not read.

    Examples:
      colabstage info /content/colabstage/kitti-1f2e3d4c/kitti-1f2e3d4c.h5
    """
    from colabstage.h5.info import read_info
    from colabstage.h5.manifest import look_at_manifest
    from colabstage.io.arguments import absolute_path
    from colabstage.io.report import json_values
    from colabstage.io.units import format_bytes

    described = read_info(absolute_path(file, "FILE", instead="copy it here with fetch_files first"))
    nbytes = described.path.stat().st_size
    manifest = look_at_manifest(described.path, nbytes)
    by = manifest.written_by and f"colabstage {manifest.written_by}"
    report = described.shown(("written by", by), ("size", format_bytes(nbytes)), ("manifest", manifest.detail))
    return Output(json_values(described) | {"nbytes": nbytes, "manifest": json_values(manifest)}, str(report))


@command(interrupted=NOTHING_DONE)
def verify(file: o.PackFile) -> Output:
    """Compare every byte of a file with its manifest.

    The manifest is the file of the same name with .json added. Damaged blocks are listed, and the exit code is 1.

    Examples:
      colabstage verify /content/drive/MyDrive/colabstage/kitti-1f2e3d4c.h5
      colabstage verify model.pt --json
    """
    from colabstage.h5.manifest import verify_file

    found = verify_file(file)
    return Output(found, str(found)) if found.whole else Output(found, "", str(found))


@command(interrupted=NOTHING_DONE)
def runs(folder: Annotated[str, o.argument("DIR", "The folder of a run, or one that holds several.")]) -> object:
    """List the trainings that `resumable` has saved, with the versions that they can resume from.

    It changes nothing.

    Examples:
      colabstage runs /content/drive/MyDrive/runs
    """
    from colabstage.runs.listing import list_runs

    return list_runs(folder)


@command(interrupted=NOTHING_DONE)
def doctor_(
    path: Annotated[str | None, o.argument("PATH", "A folder, an archive or an HDF5 file to check as well.")] = None,
    timeout: Annotated[float, o.option("--timeout", "S", "Seconds that a mount may take to answer.", least=0.1)] = 10.0,
) -> Output:
    """Check this machine for problems, and say how to fix them.

    It checks the platform, disk, mounts, versions, memory, GPU, and the place where a dataset is. The exit code is 1 if
    something is broken, and 0 if something is merely slow. It changes nothing, and does not hang if a mount does.

    Examples:
      colabstage doctor
      colabstage doctor /content/drive/MyDrive/photos
    """
    from colabstage.diagnose.doctor import doctor

    report = doctor(path, timeout_s=timeout)
    # Being slow is not a failure, so that a script can check whether this machine works at all.
    broken = [finding.title for finding in report.findings if finding.status == "fail"]
    return Output(report, str(report), f"Broken: {', '.join(broken)}." if broken else "")


@command(flags=o.flags("image_size", "layout", "encoding", "local_dir"), interrupted=NOTHING_LEFT)
def compare(
    path: Annotated[str, o.argument("PATH", "A folder or an archive of images.")],
    *,
    samples: Annotated[int, o.option("--samples", "N", "Maximum number of images to read.", least=1)] = 500,
    workers: Annotated[int, o.option("--workers", "N", "Files to read at the same time.", least=1)] = 2,
    seconds: Annotated[float, o.option("--seconds", "S", "Approximate duration.", least=0.1)] = 60.0,
    flags: dict[str, Any],
) -> object:
    """Measure, with your own images, what staging would change.

    The same images are read from where they are, from copies on the local disk, and from a pack, in about a minute.
    Nothing is written next to your images, and nothing is left behind.

    Examples:
      colabstage compare /content/drive/MyDrive/photos --image-size 224x224
      colabstage compare photos.zip --seconds 20 --json
    """
    from colabstage.diagnose.compare import compare_sources

    return compare_sources(path, **flags, samples=samples, num_workers=workers, budget_s=seconds)


@command(interrupted=NOTHING_DONE)
def profile(
    file: Annotated[str, o.argument("FILE", "An HDF5 file, or a pattern for several.")],
    *,
    split: Annotated[str, o.option("--split", "NAME", "Which split.")] = "train",
    batch_size: Annotated[int, o.option("--batch-size", "N", "Samples in a batch.", least=1)] = 64,
    step_ms: Annotated[
        float | None,
        o.option("--step-ms", "MS", "Milliseconds that your model takes for a batch; simulated by waiting.", least=0.0),
    ] = None,
    seconds: Annotated[float, o.option("--seconds", "S", "Seconds to measure.", least=0.1)] = 10.0,
    tune: Annotated[bool, o.option("--tune", "", "Instead, try out strategies and numbers of workers.")] = False,
) -> object:
    """Measure how fast a packed file loads on this machine.

    It also shows where the time goes, and what to change.

    Examples:
      colabstage profile photos.h5
      colabstage profile photos.h5 --step-ms 20
      colabstage profile photos.h5 --tune --json
    """
    from colabstage.load.dataset import dataset_h5

    dataset = dataset_h5(file, split=split)
    # A step that only waits changes nothing, so nothing has to be restored.
    if tune:
        from colabstage.diagnose.autotune import autotune_loader

        return autotune_loader(dataset, batch_size, step=_waiting(step_ms), restore=(), budget_s=seconds)
    from colabstage.diagnose.profile import profile_loader
    from colabstage.load.loader import make_loader

    with make_loader(dataset, batch_size) as loader:
        return profile_loader(loader, _waiting(step_ms), restore=(), budget_s=seconds)


def _waiting(step_ms: float | None) -> Callable[[object], None] | None:
    """Return a step that sleeps for the given time, which leaves all cores to the loader, as a GPU would."""
    return None if step_ms is None else lambda _: time.sleep(step_ms / 1000)


@command(interrupted=NOTHING_DONE)
def gpu(
    seconds: Annotated[float, o.option("--seconds", "S", "Seconds to watch.", least=0.1)] = 10.0,
    interval: Annotated[float, o.option("--interval", "S", "Seconds between two samples.", least=0.05)] = 0.5,
) -> Output:
    """Watch the NVIDIA GPUs, and show how busy they are.

    Ctrl-C ends it early and shows the result so far.

    Examples:
      colabstage gpu
    """
    from colabstage.diagnose.gpu import PROGRAM, GpuMonitor

    with GpuMonitor(interval, live=False) as monitor:
        _follow(monitor, seconds)
    # Without the driver's program there is no GPU, which is not a failure; one that does not answer is.
    broken = not monitor.samples and shutil.which(PROGRAM) is not None
    return Output(monitor.report(), "" if broken else monitor.summary(), monitor.summary() if broken else "")


def _follow(monitor: GpuMonitor, seconds: float) -> None:
    """Wait, and show the current state in a line on the terminal."""
    from colabstage.io.display import redraws_lines

    deadline = time.monotonic() + seconds
    shown = redraws_lines()
    try:
        while monitor.problem is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_REDRAW_S, left))
            if shown:
                # One line that is overwritten; only the summary stays in the terminal's history.
                line = monitor.report().headline[: shutil.get_terminal_size().columns - 1]
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        pass  # the user has seen enough
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr)

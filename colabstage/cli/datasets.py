"""The commands that make datasets and files ready, and remove them: `stage`, `plan`, `cache list`, `cache purge`,
`pack`, `fetch` and `extract`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from colabstage.cli import options as o
from colabstage.cli.outcome import exit_codes, fail, print_json, show, shows_progress, tell
from colabstage.errors import OptionError
from colabstage.io.arguments import NOTHING_DONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.stage.purge import StoredDataset


@o.with_flags(o.STAGE_FLAGS)
def stage(
    source: o.Source,
    *,
    flags: dict[str, Any],
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Make a dataset local and ready to train on, in the quickest way.

    A dataset that is already staged is used as it is. A packed copy in the cache is copied and verified. Otherwise the
    source is read and packed, and the pack is published to the cache.

    Examples:
      colabstage stage /content/drive/MyDrive/kitti.zip --image-size 256x256
      colabstage stage https://example.org/photos.tar.gz --hash sha256:…
      colabstage stage s3://bucket/part-1.zip s3://bucket/part-2.zip
      colabstage stage photos --splits train=0.8,test=0.2 --on-error skip
      colabstage stage digits.tar.gz --color-mode grayscale --json
    """
    with exit_codes(debug=debug):
        from colabstage.stage.run import stage_dataset

        staged = stage_dataset(o.read_sources(source), **flags, progress=shows_progress())
        if as_json:
            print_json(
                {
                    "path": staged.path,
                    "files": staged.files,
                    "splits": dict(staged.splits),
                    "classes": staged.classes,
                    "report": staged.report.to_dict(),
                }
            )
        else:
            show(staged.report, staged)


@o.with_flags(o.STAGE_FLAGS)
def plan(
    source: o.Source,
    *,
    flags: dict[str, Any],
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Show what `stage` would do, and how much disk space it would need.

    It takes the same arguments, reads only what it needs to know, and writes nothing.

    Examples:
      colabstage plan /content/drive/MyDrive/kitti.zip --image-size 256x256
      colabstage plan photos --keep both --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.stage.plan import plan_stage

        # The library's own plan, so it shows exactly what `stage` will do.
        tell(plan_stage(o.read_sources(source), **flags), as_json=as_json)


def list_(
    local_dir: o.LocalDir = None,
    cache_dir: o.CacheDir = "auto",
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """List the datasets on this machine and in the cache, with their source, size, rows and options, and the total.

    Examples:
      colabstage cache list
      colabstage cache list --cache-dir /content/drive/MyDrive/colabstage --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.io.units import format_bytes, format_count
        from colabstage.stage.purge import list_datasets

        found = list_datasets(local_dir=local_dir, cache_dir=o.read_cache_dir(cache_dir))
        if as_json:
            print_json([one.to_dict() for one in found])
        else:
            total = format_bytes(sum(one.nbytes for one in found))
            said = [*map(str, found), f"{format_count(len(found), 'datasets')}, {total} in all"]
            show("\n".join(said) if found else "Nothing is kept.")


def purge(
    names: Annotated[list[str] | None, o.argument("NAME…", "Datasets, as `cache list` names them.")] = None,
    *,
    older_than: Annotated[
        float | None, o.option("--older-than", "DAYS", "Only those older than this many days.", least=0.0)
    ] = None,
    everything: Annotated[bool, o.option("--all", "", "All stored datasets.")] = False,
    only: Annotated[
        Literal["here", "cache"] | None,
        o.option(
            "--only",
            "here|cache",
            "Only on this machine, or only in the cache.",
            parser=o.one_of("here", "cache"),
            offers=o.words_starting("here", "cache"),
        ),
    ] = None,
    yes: Annotated[bool, o.option("--yes", "", "Really remove them; without it, only list them.")] = False,
    local_dir: o.LocalDir = None,
    cache_dir: o.CacheDir = "auto",
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Remove datasets that colabstage has stored, and nothing else.

    Without --yes it only lists them. Unfinished work of runs that died is removed as well.

    Examples:
      colabstage cache purge photos-1f2e3d4c
      colabstage cache purge --older-than 30 --only cache --yes
      colabstage cache purge --all --yes
    """
    with exit_codes(debug=debug):
        from colabstage.stage.purge import list_datasets, purge_datasets, select_datasets, sweep_leftovers

        places = {"local_dir": local_dir, "cache_dir": o.read_cache_dir(cache_dir)}
        chosen = select_datasets(
            # Chosen before anything is removed, by one function, so that the list without --yes is exactly the same.
            list_datasets(**places),
            names=names or (),
            older_than_days=older_than,
            everything=everything,
            place=only,
        )
        # Removal cannot be undone, so it has to be requested explicitly.
        if not yes:
            _show(chosen, "Would remove", as_json=as_json)
            return
        # Only what is proved to be ours, whatever its name is.
        done = purge_datasets(chosen)
        # Afterwards, because a removed dataset may leave temporaries behind.
        sweep_leftovers(**places)
        _show(done.removed, "Removed", as_json=as_json)
        # A scheduled purge that removed only half must not look like one that removed everything.
        if done.kept:
            fail(f"Not removed: {'; '.join(done.reasons)}.")


def _show(datasets: Sequence[StoredDataset], verb: str, *, as_json: bool) -> None:
    from colabstage.io.units import format_bytes, format_count

    if as_json:
        print_json([one.to_dict() for one in datasets])
        return
    total = format_bytes(sum(one.nbytes for one in datasets))
    show(f"{verb} {format_count(len(datasets), 'datasets')}, {total}.", *(f"  {one}" for one in datasets))
    if verb.startswith("Would") and datasets:
        print("Add --yes to remove them.")


def fetch(
    *,
    source: Annotated[
        list[str] | None,
        # A single word would be taken as the target, and the error about a missing source would be confusing.
        o.argument("SOURCE", "As for `stage`: paths, patterns, share links, addresses."),
    ] = None,
    target: Annotated[
        str,
        o.argument(
            "TARGET",
            "The file or folder to create; a single file can go into an existing folder.",
        ),
    ],
    only: o.Only = [],  # noqa: B006 - typer reads it
    hash_: Annotated[str | None, o.option("--hash", "ALGORITHM:DIGEST", "The expected hash of the file.")] = None,
    overwrite: o.Overwrite = False,
    refresh: o.Refresh = False,
    verify: o.Verifying = "fast",
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Copy or download a file, or a folder of files, to the local disk.

    The result is verified and never partial, and an interrupted run resumes. Archives are not extracted. If nothing has
    changed since the last run, nothing is done.

    Examples:
      colabstage fetch https://example.org/photos.zip photos.zip --hash sha256:…
      colabstage fetch s3://bucket/train train
      colabstage fetch /content/drive/MyDrive/photos /content/photos --json
    """
    with exit_codes(debug=debug):
        from colabstage.sources.fetching import fetch_files

        if not source:
            msg = f"Give a SOURCE and a TARGET, for example: colabstage fetch '{target}' FOLDER/."
            raise OptionError(msg)
        done = fetch_files(
            o.read_sources(source),
            target,
            only=only or None,
            hash=hash_,
            overwrite=overwrite,
            refresh=refresh,
            verify=verify,
            progress=shows_progress(),
        )
        tell(done, as_json=as_json)


def extract(
    archive: Annotated[str, o.argument("ARCHIVE", "A zip, tar, 7z, rar or gz.")],
    target: Annotated[str, o.argument("TARGET", "The folder to create.")],
    *,
    only: o.Only = [],  # noqa: B006 - typer reads it
    zip_encoding: o.ZipEncoding = None,
    overwrite: o.Overwrite = False,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Extract an archive into a folder of its own.

    Members are extracted in parallel, all of them or none. An archive with unsafe names is refused.

    Examples:
      colabstage extract photos.zip photos
      colabstage extract photos.tar.zst photos --overwrite --json
      colabstage extract photos.zip train --only photos/train
    """
    with exit_codes(debug=debug):
        from colabstage.sources.extracting import extract_archive

        done = extract_archive(
            archive,
            target,
            only=only or None,
            zip_encoding=zip_encoding,
            overwrite=overwrite,
            progress=shows_progress(),
        )
        tell(done, as_json=as_json)


@o.with_flags(o.PACK_FLAGS)
def pack(
    source: o.LocalSource,
    out: Annotated[
        str | None,
        # Not required, because with --append-to the name follows from that pack.
        o.argument("[OUT]", "The file to write; its manifest OUT.json goes next to it."),
    ] = None,
    *,
    flags: dict[str, Any],
    shards: o.Shards = None,
    append_to: o.AppendTo = None,
    overwrite: o.Overwrite = False,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Convert a folder or archive to one HDF5 file, or several.

    The source has to be local or mounted; no cache is involved.

    Examples:
      colabstage pack photos photos.h5 --image-size 224x224 --resize crop
      colabstage pack photos.zip photos.h5 --encoding jpeg:90 --overwrite
      colabstage pack photos photos.h5 --splits train=0.9,test=0.1 --group-by 'patient\\d+'
      colabstage pack photos photos.h5 --shards 8 --on-error skip:1%
      colabstage pack newer --append-to photos.h5
    """
    with exit_codes(debug=debug):
        from colabstage.pack.run import pack_dataset

        report = pack_dataset(
            source,
            out,
            **flags,
            shards=shards,
            append_to=append_to,
            overwrite=overwrite,
            progress=shows_progress(),
        )
        tell(report, f"Written to '{report.path}'", as_json=as_json)


def runs(
    folder: Annotated[str, o.argument("DIR", "The folder of a run, or one that holds several.")],
    *,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """List trainings that go on after their machine is gone, with the versions they can go on from.

    It changes nothing. `resumable` in a notebook or script saves and restores them.

    Examples:
      colabstage runs /content/drive/MyDrive/runs
      colabstage runs /content/drive/MyDrive/runs/first --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.runs.listing import list_runs

        found = list_runs(folder)
        if as_json:
            print_json([run.to_dict() for run in found])
        else:
            show(*found or [f"No runs in '{folder}'."])

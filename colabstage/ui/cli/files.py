"""The commands that write files from files: `pack`, `fetch` and `extract`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Any

import typer

from colabstage.errors import OptionError
from colabstage.ui.cli import options as o
from colabstage.ui.cli.options import complete_files
from colabstage.ui.cli.outcome import exit_codes, print_json, show, shows_progress


def fetch(
    *,
    source: Annotated[
        list[str] | None,
        typer.Argument(
            # One word alone would be the target, and the complaint about a source that is not there a riddle.
            metavar="SOURCE",
            show_default=False,
            help="As for `stage`: paths, patterns, share links, addresses.",
        ),
    ] = None,
    target: Annotated[
        # A text, because a path has no slash at its end, and that says "into this folder".
        str,
        typer.Argument(
            metavar="TARGET",
            show_default=False,
            autocompletion=complete_files,
            help="The file or folder to create; a single file can go into an existing folder.",
        ),
    ],
    hash_: Annotated[
        str | None,
        typer.Option("--hash", metavar="ALGORITHM:DIGEST", show_default=False, help="The expected hash of the file."),
    ] = None,
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
            hash=hash_,
            overwrite=overwrite,
            refresh=refresh,
            verify=verify,
            progress=shows_progress(),
        )
        if as_json:
            print_json(done.to_dict())
        else:
            show(done)


def extract(
    archive: Annotated[
        Path,
        typer.Argument(
            metavar="ARCHIVE", show_default=False, autocompletion=complete_files, help="A zip, tar, 7z, rar or gz."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", show_default=False, autocompletion=complete_files, help="The folder to create."
        ),
    ],
    *,
    overwrite: o.Overwrite = False,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Extract an archive into a folder of its own.

    Members are extracted in parallel, all of them or none. An archive with unsafe names is refused.

    Examples:
      colabstage extract photos.zip photos
      colabstage extract photos.tar.zst photos --overwrite --json
    """
    with exit_codes(debug=debug):
        from colabstage.sources.extract.archive import extract_archive

        done = extract_archive(archive, target, overwrite=overwrite, progress=shows_progress())
        if as_json:
            print_json(asdict(done))
        else:
            show(done)


@o.with_flags(o.PACK_FLAGS)
def pack(
    source: o.LocalSource,
    out: Annotated[
        Path | None,
        typer.Argument(
            # Not required, because with --append-to the name follows from the pack that is added to.
            metavar="[OUT]",
            show_default=False,
            autocompletion=complete_files,
            help="The file to write; its manifest OUT.json goes next to it.",
        ),
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

        out = _as_hdf5(out)
        report = pack_dataset(
            source,
            out,
            **flags,
            shards=shards,
            append_to=append_to,
            overwrite=overwrite,
            progress=shows_progress(),
        )
        if as_json:
            from dataclasses import asdict

            print_json(asdict(report))
        else:
            show(report, f"Written to '{report.path}'")


# Names of what a pack is not. Other programs would open it as that, and fail.
_OTHERS = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".npy", ".npz", ".csv", ".jpg", ".png")


def _as_hdf5(out: Path | None) -> Path | None:
    """Ask whether a pack is to have the name of another kind of file; without a terminal, refuse it.

    Raises:
        OptionError: nobody can be asked, or the answer was no.
    """
    if out is None or out.suffix.lower() not in _OTHERS:
        return out
    better = out.with_suffix(".h5")
    what = f"A pack is an HDF5 file, and '{out}' has the name of another kind"
    if sys.stdin.isatty() and typer.confirm(f"{what}. Write '{better}' instead?", default=True, err=True):
        return better
    msg = f"{what}. Write '{better}' instead."
    raise OptionError(msg)

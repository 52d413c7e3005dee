"""The command `pack`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from colabstage.ui.cli import options as o
from colabstage.ui.cli.completing import complete_files
from colabstage.ui.cli.outcome import exit_codes, print_json, show, shows_progress


@o.with_flags(o.PackFlags)
def pack(
    source: o.LocalSource,
    out: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OUT]",
            show_default=False,
            autocompletion=complete_files,
            help="The file to make; OUT.json goes beside it.",
        ),
    ] = None,
    *,
    flags: o.PackFlags,
    shards: o.Shards = None,
    append_to: o.AppendTo = None,
    overwrite: o.Overwrite = False,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Convert a folder or archive to one HDF5 file, or several.

    Nothing is fetched, and no Google Drive is involved.

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
            **flags.arguments(),
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

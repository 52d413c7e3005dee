"""The command `colabstage`.

Each command calls one function of the library and prints what it returns. What is heavy is imported inside the
commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from colabstage.ui.cli import options as o
from colabstage.ui.cli.cache import cache
from colabstage.ui.cli.diagnose import compare, doctor, gpu
from colabstage.ui.cli.fetch import extract, fetch
from colabstage.ui.cli.outcome import exit_codes, fail, print_json, shows_progress
from colabstage.ui.cli.profile import profile

if TYPE_CHECKING:
    from colabstage.stage.dataset import StagedDataset

app = typer.Typer(
    name="colabstage",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        # File names need not be text that the terminal can show.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"colabstage {version('colabstage')}")
        raise typer.Exit


@app.callback()
def colabstage(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stage a dataset from a slow place once, read it at memory speed for every epoch after."""


@app.command()
@o.with_flags(o.StageFlags)
def stage(
    source: o.Source,
    *,
    flags: o.StageFlags,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Make a dataset local and ready, by the shortest way there is.

    Already staged here: nothing to do.
    A packed copy in the cache: it is copied and verified.
    Else: the source is read and packed, and the pack published to the cache.

    \b
    Examples:
      colabstage stage /content/drive/MyDrive/kitti.zip --image-size 256x256
      colabstage stage https://example.org/photos.tar.gz --hash sha256:…
      colabstage stage s3://bucket/part-1.zip s3://bucket/part-2.zip
      colabstage stage photos --splits train=0.8,test=0.2 --on-error skip
      colabstage stage digits.tar.gz --color-mode grayscale --json
    """
    with exit_codes(debug=debug):
        from colabstage.stage.run import stage_dataset

        staged = stage_dataset(o.read_sources(source), **flags.arguments(), progress=shows_progress())
        if as_json:
            print_json(_staged_to_dict(staged))
        else:
            print(staged.report, staged, sep="\n")


def _staged_to_dict(staged: StagedDataset) -> dict[str, object]:
    return {
        "path": staged.path,
        "files": staged.files,
        "splits": dict(staged.splits),
        "classes": staged.classes,
        "report": staged.report.to_dict(),
    }


@app.command()
@o.with_flags(o.StageFlags)
def plan(
    source: o.Source,
    *,
    flags: o.StageFlags,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Say what `stage` would do with the same arguments: what it would read and write, and the disk it would need.

    \b
    Examples:
      colabstage plan /content/drive/MyDrive/kitti.zip --image-size 256x256
      colabstage plan photos --keep both --json
    """
    with exit_codes(debug=debug):
        from colabstage.stage.run import plan_stage

        planned = plan_stage(o.read_sources(source), **flags.arguments())
        if as_json:
            print_json(planned.to_dict())
        else:
            print(planned)


@app.command()
@o.with_flags(o.PackFlags)
def pack(
    source: o.LocalSource,
    out: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", show_default=False, help="The file to make; OUT.json goes beside it."),
    ] = None,
    *,
    flags: o.PackFlags,
    shards: o.Shards = None,
    append_to: o.AppendTo = None,
    overwrite: o.Overwrite = False,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Convert a folder or archive on this machine to one HDF5 file, or several; no Google Drive involved.

    \b
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
            print(report, f"Written to '{report.path}'", sep="\n")


@app.command()
def info(file: o.PackFile, as_json: o.AsJson = False, debug: o.Debug = False) -> None:
    """Show what an HDF5 file of X_<split> and Y_<split> holds, whoever wrote it; no sample is read.

    \b
    Examples:
      colabstage info /content/colabstage/kitti-1f2e3d4c/kitti-1f2e3d4c.h5
      colabstage info data.h5 --json
    """
    with exit_codes(debug=debug):
        from colabstage.ui.cli.describe import describe_file, print_description

        described = describe_file(file)
        if as_json:
            print_json(described.to_dict())
        else:
            print_description(described)


@app.command()
def verify(file: o.PackFile, as_json: o.AsJson = False, debug: o.Debug = False) -> None:
    """Compare every byte of a file with the manifest beside it; exit code 1 names the blocks that are damaged.

    \b
    Examples:
      colabstage verify /content/drive/MyDrive/colabstage/kitti-1f2e3d4c.h5
      colabstage verify model.pt --json
    """
    with exit_codes(debug=debug):
        from colabstage.progress import resolve_progress
        from colabstage.ui.cli.verifying import verify_file

        found = verify_file(file, progress=resolve_progress(shows_progress()))
        if as_json:
            print_json(found.to_dict())
        elif found.whole:
            print(found)
        if not found.whole:
            fail(str(found))


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the chart goes.")] = Path("demo-out"),
    time_scale: Annotated[
        float, typer.Option("--time-scale", min=0.0, help="Multiplies every wait of the simulated Drive.")
    ] = 1.0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer images and epochs: half a minute.")] = False,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Train from a simulated Google Drive, straight and staged, and show the difference. Takes under three minutes.

    Real handwritten digits lie as JPEGs on the simulated Drive. A small
    network is trained straight from there, after staging, and in a second
    session that starts from the cached pack.

    \b
    Examples:
      colabstage demo
      colabstage demo --out results --time-scale 0.5
    """
    with exit_codes(debug=debug):
        from colabstage.ui.demo.report import Narrator
        from colabstage.ui.demo.run import FULL, QUICK, run_demo

        stream: TextIO = sys.stderr if as_json else sys.stdout
        result = run_demo(QUICK if quick else FULL, out=out, time_scale=time_scale, narrator=Narrator(stream))
        if as_json:
            print_json(result.to_dict())
        if result.broken_claims:
            fail("The demo did not show what it claims: " + " ".join(result.broken_claims))


app.command()(fetch)
app.command()(extract)
app.command()(doctor)
app.command()(compare)
app.command()(gpu)
app.command()(profile)
app.add_typer(cache)

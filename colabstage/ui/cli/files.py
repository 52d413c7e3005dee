"""The commands `info` and `verify`: what a packed file holds, and whether it is whole."""

from __future__ import annotations

from colabstage.ui.cli import options as o  # noqa: TC001 - typer looks the annotations up
from colabstage.ui.cli.outcome import NOTHING_DONE, exit_codes, fail, print_json, show, shows_progress


def info(file: o.PackFile, as_json: o.AsJson = False, debug: o.Debug = False) -> None:
    """Show what an HDF5 file of X_<split> and Y_<split> holds.

    Whoever wrote it; no sample is read.

    Examples:
      colabstage info /content/colabstage/kitti-1f2e3d4c/kitti-1f2e3d4c.h5
      colabstage info data.h5 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.ui.cli.describe import describe_file, print_description

        described = describe_file(file)
        if as_json:
            print_json(described.to_dict())
        else:
            print_description(described)


def verify(file: o.PackFile, as_json: o.AsJson = False, debug: o.Debug = False) -> None:
    """Compare every byte of a file with its manifest.

    The manifest is the file of the same name with .json added. Exit code 1 names the blocks that are damaged.

    Examples:
      colabstage verify /content/drive/MyDrive/colabstage/kitti-1f2e3d4c.h5
      colabstage verify model.pt --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.progress import resolve_progress
        from colabstage.ui.cli.verifying import verify_file

        found = verify_file(file, progress=resolve_progress(shows_progress()))
        if as_json:
            print_json(found.to_dict())
        elif found.whole:
            show(found)
        if not found.whole:
            fail(str(found))

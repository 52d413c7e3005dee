"""The command `demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from colabstage.ui.cli import options as o  # noqa: TC001 - typer looks the annotations up
from colabstage.ui.cli.outcome import NOTHING_LEFT, exit_codes, fail, print_json


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the chart goes.")] = Path("demo-out"),
    time_scale: Annotated[
        float, typer.Option("--time-scale", metavar="X", min=0.0, help="Multiplies every wait of the simulated Drive.")
    ] = 1.0,
    quick: Annotated[bool, typer.Option("--quick", metavar="", help="Fewer images and epochs: half a minute.")] = False,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Train from a simulated Google Drive, straight and staged.

    Real handwritten digits lie as JPEGs on the simulated Drive. A small network is trained straight from there, after
    staging, and in a second session that starts from the cached pack. It shows the difference, in under three minutes.

    Examples:
      colabstage demo
      colabstage demo --quick --json
      colabstage demo --out results --time-scale 0.5
    """
    with exit_codes(debug=debug, kept=NOTHING_LEFT):
        from colabstage.ui.demo.report import Narrator
        from colabstage.ui.demo.run import FULL, QUICK, run_demo

        stream: TextIO = sys.stderr if as_json else sys.stdout
        result = run_demo(QUICK if quick else FULL, out=out, time_scale=time_scale, narrator=Narrator(stream))
        if as_json:
            print_json(result.to_dict())
        if result.broken_claims:
            fail("The demo did not show what it claims: " + " ".join(result.broken_claims))

"""The command `profile`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from colabstage.ui.cli import options as o  # noqa: TC001 - typer looks the annotations up
from colabstage.ui.cli.completing import complete_splits
from colabstage.ui.cli.outcome import NOTHING_DONE, exit_codes, print_json

if TYPE_CHECKING:
    from collections.abc import Callable


def profile(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An HDF5 file, or a pattern for several.")],
    *,
    split: Annotated[
        str, typer.Option("--split", metavar="NAME", autocompletion=complete_splits, help="Which split.")
    ] = "train",
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="N", min=1, help="Samples in a batch.")] = 64,
    step_ms: Annotated[
        float | None,
        typer.Option(
            "--step-ms",
            metavar="MS",
            min=0.0,
            show_default=False,
            help="What your model takes for a batch: waited for.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="How long to measure.")] = 10.0,
    tune: Annotated[
        bool, typer.Option("--tune", metavar="", help="Try strategies and numbers of workers instead.")
    ] = False,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Measure how fast a packed file is loaded here.

    And where the time goes, and what to change.

    Examples:
      colabstage profile photos.h5
      colabstage profile photos.h5 --step-ms 20
      colabstage profile photos.h5 --tune --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.load.dataset import dataset_h5

        dataset = dataset_h5(file, split=split)
        if tune:
            from colabstage.diagnose.autotune import autotune_loader

            tuned = autotune_loader(dataset, batch_size, step=_waiting(step_ms), budget_s=seconds)
            print_json(tuned.to_dict()) if as_json else print(tuned)
            return
        from colabstage.diagnose.profile import profile_loader
        from colabstage.load.loader import make_loader

        with make_loader(dataset, batch_size) as loader:
            found = profile_loader(loader, _waiting(step_ms), seconds=seconds)
        print_json(found.to_dict()) if as_json else print(found)


def _waiting(step_ms: float | None) -> Callable[[object], None] | None:
    """A step that waits as long as the model is said to take, as this computer does while a GPU works."""
    return None if step_ms is None else lambda _: time.sleep(step_ms / 1000)

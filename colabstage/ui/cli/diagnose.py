"""The commands `doctor`, `compare` and `gpu`."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from colabstage.ui.cli import options as o  # noqa: TC001 - typer looks the annotations up
from colabstage.ui.cli.outcome import NOTHING_DONE, NOTHING_LEFT, exit_codes, fail, print_json, shows_progress

if TYPE_CHECKING:
    from colabstage.diagnose.gpu.monitor import GpuMonitor

_REDRAW_S = 0.5


def doctor(
    path: Annotated[
        str | None,
        typer.Argument(metavar="PATH", show_default=False, help="A folder, an archive or an HDF5 file to look at too."),
    ] = None,
    *,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=0, show_default=False, help="Of a loader of yours.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="N", min=1, help="Of that loader.")] = 64,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.1, help="How long a mount may take to answer.")
    ] = 10.0,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Find out what is wrong here, and what to do.

    It looks at the platform, disk, mounts, versions, memory, GPU, and a dataset's place. It ends with 1 where something
    is broken, with 0 where something merely costs time. Nothing is changed, and a mount that hangs does not hang it.

    Examples:
      colabstage doctor
      colabstage doctor /content/drive/MyDrive/photos --workers 4
      colabstage doctor photos.h5 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.diagnose.health.doctor import doctor as look

        report = look(path, num_workers=workers, batch_size=batch_size, timeout_s=timeout)
        if as_json:
            print_json(report.to_dict())
        else:
            print(report)
        if report.exit_code:
            broken = [finding.title for finding in report.findings if finding.status == "fail"]
            fail(f"Broken: {', '.join(broken)}.")


def compare(
    path: Annotated[str, typer.Argument(metavar="PATH", show_default=False, help="A folder or an archive of images.")],
    *,
    image_size: o.Size = None,
    layout: o.Layout = "auto",
    encoding: o.Encoded = "auto",
    samples: Annotated[int, typer.Option("--samples", metavar="N", min=1, help="Images at the most.")] = 500,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="That read files at once.")] = 2,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="About how long it may take.")
    ] = 60.0,
    local_dir: o.LocalDir = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Measure with your own images what staging would change.

    The same images are read from where they lie, from copies on the local disk, and from a pack: in about a minute.
    Nothing is written to where they lie, and nothing stays here.

    Examples:
      colabstage compare /content/drive/MyDrive/photos --image-size 224x224
      colabstage compare photos.zip --seconds 20 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_LEFT):
        from colabstage.diagnose.compare.run import compare_sources

        found = compare_sources(
            path,
            layout=layout,
            image_size=image_size,
            encoding=encoding,
            samples=samples,
            num_workers=workers,
            seconds=seconds,
            local_dir=local_dir,
            progress=shows_progress(),
        )
        if as_json:
            print_json(found.to_dict())
        else:
            print(found)


def gpu(
    *,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="How long to watch.")] = 10.0,
    interval: Annotated[float, typer.Option("--interval", metavar="S", min=0.05, help="Between two samples.")] = 0.5,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Watch the NVIDIA GPUs, and say how busy they are.

    Ctrl-C ends it early, with what was seen until then.

    Examples:
      colabstage gpu
      colabstage gpu --seconds 60 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.diagnose.gpu.monitor import GpuMonitor
        from colabstage.machine.gpu import PROGRAM

        # Without it there is no GPU, which is a fact and no failure.
        has_driver = shutil.which(PROGRAM) is not None
        monitor = GpuMonitor(interval, live=False, notice=_ignore)
        with monitor:
            _follow(monitor, seconds)
        if as_json:
            print_json(monitor.to_dict())
        elif monitor.samples or not has_driver:
            print(monitor.summary())
        if not monitor.samples and has_driver:
            fail(monitor.summary())


def _ignore(_: str) -> None:
    """The command says itself what is wrong."""


def _follow(monitor: GpuMonitor, seconds: float) -> None:
    """Wait, with a line on the terminal that follows along."""
    deadline = time.monotonic() + seconds
    shown = shows_progress()
    try:
        while monitor.problem is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_REDRAW_S, left))
            if shown:
                print(f"\r\x1b[K{monitor.strip().splitlines()[0]}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        pass  # seen enough
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr)

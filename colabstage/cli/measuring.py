"""The commands that measure and watch: `doctor`, `compare`, `profile` and `gpu`."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

from colabstage.cli import options as o
from colabstage.cli.outcome import NOTHING_LEFT, exit_codes, fail, print_json, show, shows_progress, tell
from colabstage.errors import OptionError
from colabstage.io.arguments import NOTHING_DONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.diagnose.gpu import GpuMonitor

_REDRAW_S = 0.5


def doctor_(
    path: Annotated[str | None, o.argument("PATH", "A folder, an archive or an HDF5 file to check as well.")] = None,
    *,
    workers: Annotated[int | None, o.option("--workers", "N", "Workers of your own loader.", least=0)] = None,
    batch_size: Annotated[int, o.option("--batch-size", "N", "Batch size of that loader.", least=1)] = 64,
    timeout: Annotated[float, o.option("--timeout", "S", "Seconds that a mount may take to answer.", least=0.1)] = 10.0,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Check this machine for problems, and say how to fix them.

    It checks the platform, disk, mounts, versions, memory, GPU, and the place where a dataset is. The exit code is 1 if
    something is broken, and 0 if something is merely slow. It changes nothing, and does not hang if a mount does.

    Examples:
      colabstage doctor
      colabstage doctor /content/drive/MyDrive/photos --workers 4
      colabstage doctor photos.h5 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.diagnose.doctor import doctor as look

        report = look(path, num_workers=workers, batch_size=batch_size, timeout_s=timeout)
        tell(report, as_json=as_json)
        if report.exit_code:
            # Being slow is not a failure, so that a script can check whether this machine works at all.
            broken = [finding.title for finding in report.findings if finding.status == "fail"]
            fail(f"Broken: {', '.join(broken)}.")


def compare(
    path: Annotated[str, o.argument("PATH", "A folder or an archive of images.")],
    *,
    image_size: o.Size = None,
    layout: o.Layout = "auto",
    encoding: o.Encoded = "auto",
    samples: Annotated[int, o.option("--samples", "N", "Maximum number of images to read.", least=1)] = 500,
    workers: Annotated[int, o.option("--workers", "N", "Files to read at the same time.", least=1)] = 2,
    seconds: Annotated[float, o.option("--seconds", "S", "Approximate duration.", least=0.1)] = 60.0,
    local_dir: o.LocalDir = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Measure, with your own images, what staging would change.

    The same images are read from where they are, from copies on the local disk, and from a pack, in about a minute.
    Nothing is written next to your images, and nothing is left behind.

    Examples:
      colabstage compare /content/drive/MyDrive/photos --image-size 224x224
      colabstage compare photos.zip --seconds 20 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_LEFT):
        from colabstage.diagnose.compare import compare_sources

        found = compare_sources(
            path,
            layout=layout,
            image_size=image_size,
            encoding=encoding,
            samples=samples,
            num_workers=workers,
            budget_s=seconds,
            local_dir=local_dir,
            progress=shows_progress(),
        )
        tell(found, as_json=as_json)


def gpu(
    *,
    seconds: Annotated[float, o.option("--seconds", "S", "Seconds to watch.", least=0.1)] = 10.0,
    interval: Annotated[float, o.option("--interval", "S", "Seconds between two samples.", least=0.05)] = 0.5,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Watch the NVIDIA GPUs, and show how busy they are.

    Ctrl-C ends it early and shows the result so far.

    Examples:
      colabstage gpu
      colabstage gpu --seconds 60 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.diagnose.gpu import PROGRAM, GpuMonitor

        # Without the driver's program there is no GPU, which is not a failure.
        has_driver = shutil.which(PROGRAM) is not None
        # The command reports the problem itself, so the monitor's own notice is dropped.
        monitor = GpuMonitor(interval, live=False, notice=lambda _: None)
        with monitor:
            _follow(monitor, seconds)
        if as_json:
            print_json(monitor.report().to_dict())
        elif monitor.samples or not has_driver:
            show(monitor.summary())
        # There is a GPU that does not answer, so something is broken.
        if not monitor.samples and has_driver:
            fail(monitor.summary())


def _follow(monitor: GpuMonitor, seconds: float) -> None:
    """Wait, and show the current state in a line on the terminal."""
    deadline = time.monotonic() + seconds
    shown = shows_progress()
    try:
        while monitor.problem is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_REDRAW_S, left))
            if shown:
                # One line that is overwritten; only the summary stays in the terminal's history.
                print(f"\r\x1b[K{monitor.sparklines().splitlines()[0]}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        pass  # the user has seen enough
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr)


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
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Measure how fast a packed file loads on this machine.

    It also shows where the time goes, and what to change.

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

            # A step that only waits changes nothing, so nothing has to be restored.
            tuned = autotune_loader(dataset, batch_size, step=_waiting(step_ms), restore=(), budget_s=seconds)
            tell(tuned, as_json=as_json)
            return
        from colabstage.diagnose.profile import profile_loader
        from colabstage.load.loader import make_loader

        with make_loader(dataset, batch_size) as loader:
            tell(profile_loader(loader, _waiting(step_ms), restore=(), budget_s=seconds), as_json=as_json)


def _waiting(step_ms: float | None) -> Callable[[object], None] | None:
    """Return a step that sleeps for the given time, as this process would while a GPU works."""
    # Sleeping leaves all cores to the loader, as a GPU would.
    return None if step_ms is None else lambda _: time.sleep(step_ms / 1000)


def demo() -> None:
    """Say where the demo is."""
    with exit_codes(debug=False):
        msg = "The demo is no part of the package. In a checkout of the repository, it is: make demo"
        raise OptionError(msg)

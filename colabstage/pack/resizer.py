"""What resizes the images of a pack: planned before anything is imported, and settled during the first reads.

Importing torch takes one core about two seconds, as long as a slow mount takes to send the first thousand files. So the
plan goes by whether torch is installed, and a thread imports it while files are read. If torch turns out to be
unusable, everything written so far is discarded, and the pack starts over with Pillow.
"""

from __future__ import annotations

import platform
import sys
import threading
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from colabstage.images.geometry import can_torch_resize

if TYPE_CHECKING:
    from colabstage.pack.job import PackJob

# Only these processors may have AVX2, without which torch's kernel is not fast.
_X86 = ("x86_64", "amd64")
# No import takes longer, except from a broken disk.
_MOST_S = 300.0


class UnusableTorchError(Exception):
    """Torch was planned to resize, but cannot."""


def expects_torch() -> bool:
    """Return whether torch is likely to be usable, without importing it."""
    # Only the import shows whether the installation works and the processor has AVX2.
    if "torch" in sys.modules:
        return can_torch_resize()
    return platform.machine().lower() in _X86 and find_spec("torch") is not None


class TorchImport:
    """An import of torch in a thread of its own."""

    def __init__(self) -> None:
        """Start the thread."""
        self._usable = False
        self._done = threading.Event()
        # Not a daemon, so that the interpreter does not end in the middle of the import.
        threading.Thread(target=self._run, name="colabstage-import").start()

    def require(self) -> None:
        """Wait until torch is imported. Called by every thread that is about to resize.

        Raises:
            UnusableTorchError: it cannot resize.
        """
        self._done.wait(_MOST_S)
        if not self._usable:
            raise UnusableTorchError

    def _run(self) -> None:
        try:
            self._usable = can_torch_resize()
        finally:
            self._done.set()


def by_pillow(job: PackJob) -> PackJob:
    """Return the same job, with images resized by Pillow."""
    return replace(job, plan=replace(job.plan, resizer="pillow"))


def settled(job: PackJob) -> PackJob:
    """Return the job with a resizer that works, importing torch where the plan has it."""
    return job if job.plan.resizer != "torch" or can_torch_resize() else by_pillow(job)

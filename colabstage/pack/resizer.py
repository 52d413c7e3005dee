"""Who resizes the images of a pack: expected before anything is imported, and settled beside the first reads.

Importing torch takes one core about two seconds, as long as a slow mount takes to send the first thousand files. So the
plan goes by whether torch is installed, and the import runs in a thread while files are read. Should torch turn out to
be unusable, nothing of what was written is kept, and the pack begins anew with Pillow.
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

# The only processors that may have AVX2, which torch's kernel is fast with.
_X86 = ("x86_64", "amd64")
# A disk that takes longer to give torch away is broken.
_MOST_S = 300.0


class UnusableTorchError(Exception):
    """Say that torch was expected to resize, and cannot."""


def expects_torch() -> bool:
    """Return whether torch is installed on a processor that may have its kernel; the certain answer where it is
    imported already.

    Imports nothing: of an installation that is broken, or a processor without AVX2, only the import tells.
    """
    if "torch" in sys.modules:
        return can_torch_resize()
    return platform.machine().lower() in _X86 and find_spec("torch") is not None


class TorchImport:
    """Import torch in a thread that ends with the import. Python waits for it at exit, should nobody else."""

    def __init__(self) -> None:
        """Start the thread."""
        self._usable = False
        self._done = threading.Event()
        threading.Thread(target=self._run, name="colabstage-import").start()

    def require(self) -> None:
        """Wait until torch is here. Called by every thread that is about to resize.

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
    """Return the same job, its images resized by Pillow."""
    return replace(job, plan=replace(job.plan, resizer="pillow"))


def settled(job: PackJob) -> PackJob:
    """Return the job with the resizer that can be used, whatever was expected; imports torch where it was."""
    return job if job.plan.resizer != "torch" or can_torch_resize() else by_pillow(job)

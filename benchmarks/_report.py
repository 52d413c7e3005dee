"""What benchmarks of reading share: the machine that figures belong to, ratios within a round, and a file of both."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def show_machine(**more: str) -> dict[str, str]:
    """Print the hardware and versions that the figures belong to, `more` first, and return them."""
    # Here, because one who only wants a ratio may be measuring without torch.
    import h5py
    import numpy as np
    import torch

    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "unknown")
    machine = {
        **more,
        "processor": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "h5py": f"{h5py.__version__} (HDF5 {h5py.version.hdf5_version})",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    for name, value in machine.items():
        print(f"{name:10} {value}")
    return machine


def median_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios within a round, which a machine that slows down for a while disturbs least."""
    return statistics.median(value / other for value, other in zip(values, base, strict=True))


def against(value: float, limit: float, words: str, digits: int = 2) -> str:
    """Write a figure and, in brackets, what is promised of it: `1.20 (at least 1)`.

    With `digits` digits after the point, or as many more as it takes that the two figures printed show which is larger.
    """
    while True:
        shown = f"{value:.{digits}f}"
        promised = f"{limit:g}" if float(f"{limit:g}") == limit else f"{limit:.{digits}f}"
        ahead, behind = float(shown) > float(promised), float(shown) < float(promised)
        # Floats that differ do so in one of their digits, so this ends.
        if (ahead, behind) == (value > limit, value < limit):
            return f"{shown} ({words} {promised})"
        digits += 1


def save(path: Path | None, **found: object) -> None:
    """Write what was found as JSON, where a path was given."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

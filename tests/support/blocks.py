"""Packs of small blocks, and what a folder takes on the disk at any moment."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from colabstage.h5.manifest import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

SMALL_BLOCK = 65536


def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all modules write blocks of 64 KiB."""
    # Of the real length, three of them would take longer than everything else in a test.
    for module in [module for name, module in sys.modules.items() if name.startswith("colabstage.")]:
        if vars(module).get("BLOCK_BYTES") == BLOCK_BYTES:
            monkeypatch.setattr(module, "BLOCK_BYTES", SMALL_BLOCK)


@contextmanager
def sampled(folder: Path) -> Iterator[list[int]]:
    """Sample what a folder takes on the disk, all the time."""
    found: list[int] = [0]
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.001):
            total = 0
            for path in folder.rglob("*"):
                with suppress(FileNotFoundError):
                    total += path.stat().st_blocks * 512
            found.append(total)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()

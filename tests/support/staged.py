"""A folder's content after staging, file by file; its disk use meanwhile; and packs with small blocks."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

BLOCK_BYTES, SMALL_BLOCK = 8 * 2**20, 65536
_LOOK_S = 0.002


def contents(place: Path) -> dict[str, bytes | dict[str, Any]]:
    """Return every file below a folder; records and manifests without the time and place of writing."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return timeless({str(path.relative_to(place)): path.read_bytes() for path in files})


def timeless(files: Mapping[str, bytes]) -> dict[str, bytes | dict[str, Any]]:
    """Return files' content by name; records and manifests without the time and place of writing."""
    found: dict[str, bytes | dict[str, Any]] = {}
    for name, data in files.items():
        is_record = name.endswith(("stage.json", ".h5.json", ".rows.json"))
        found[name] = {**json.loads(data), "seal": None, "mtime_ns": None, "published_in": None} if is_record else data
    return found


def disk_use(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk, without holes."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            # Others may remove files meanwhile.
            with suppress(FileNotFoundError):
                total += os.lstat(f"{place}/{name}").st_blocks * 512
    return total


@contextmanager
def disk_sampled(folder: Path) -> Iterator[list[int]]:
    """Record a folder's disk use in bytes every few milliseconds during the block."""
    taken, stop = [0], threading.Event()

    def look() -> None:
        pause_s = _LOOK_S
        while not stop.wait(pause_s):
            began = time.perf_counter()
            taken.append(disk_use(folder))
            # At most a fifth of the time: the code under test needs the processor, too.
            pause_s = max(_LOOK_S, 4 * (time.perf_counter() - began))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield taken
    finally:
        stop.set()
        thread.join()


def use_small_blocks(monkeypatch: pytest.MonkeyPatch, length: int = SMALL_BLOCK) -> None:
    """Have all modules write blocks of 64 KiB, or of another length."""
    # Three full-size blocks would take longer than everything else in a test.
    for module in [module for name, module in sys.modules.items() if name.startswith("colabstage.")]:
        if vars(module).get("BLOCK_BYTES") == BLOCK_BYTES:
            monkeypatch.setattr(module, "BLOCK_BYTES", length)

"""Freed memory goes back to the system."""

from __future__ import annotations

import subprocess
import sys

_CHILD = """
import ctypes
from colabstage.machine.resources import release_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
# Small blocks come from the heap, and the last one keeps all that lies before it from going back by itself.
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(ctypes.c_size_t(4000)) for _ in range(10_000)]
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 4000)
for block in blocks[:-1]:
    libc.free(ctypes.c_void_p(block))
before = resident()
release_freed_memory()
print(before - resident())
"""


def test_holes_in_the_heap_go_back_to_the_system() -> None:
    """Of 40 MB that are freed under a block that stays, nearly all leave the process."""
    freed = subprocess.run(
        [sys.executable, "-c", _CHILD], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert int(freed) > 30_000_000

"""A pytest plugin that notes which functions of the package each test calls: `pytest -p scripts.reached`.

One line of JSON for each test, `[name, [[file, first line], …]]`, is appended to `build/reached-PROCESS.jsonl` when the
test ends, so that what a killed process saw is not lost. Calls in forked and other processes are not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
_PREFIX = f"{ROOT}/colabstage/"
_called: set[CodeType] = set()


def _note_call(frame: FrameType, *_: object) -> None:
    """Note the function that is entered; trace nothing inside it."""
    _called.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace a test with its fixtures."""
    _called.clear()
    threading.settrace(_note_call)
    sys.settrace(_note_call)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)
        own = [code for code in _called.copy() if code.co_filename.startswith(_PREFIX)]
        places = sorted({(code.co_filename[len(f"{ROOT}/") :], code.co_firstlineno) for code in own})
        folder = ROOT / "build"
        folder.mkdir(exist_ok=True)
        with (folder / f"reached-{os.getpid()}.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps([item.nodeid, places]) + "\n")

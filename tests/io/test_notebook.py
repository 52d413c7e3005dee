"""In a notebook's kernel the panel is drawn in the cell's output, and stays there as it ended."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from colabstage.io.report import draws_html
from tests.kernels import errors_in, run_cells, text_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nurseries import Nurseries

_WORK = """
from concurrent.futures import ThreadPoolExecutor
from colabstage.io.display import resolve_progress
progress = resolve_progress(True)
def work(fail):
    with progress.step("copy", total=4000, unit="B") as step, ThreadPoolExecutor(4) as pool:
        list(pool.map(step.advance, [10] * 400))
    with progress.step("pack", total=3, unit="images") as step:
        step.advance(2)
        if fail:
            raise ValueError("bad <picture>")
        step.advance()
"""


@pytest.mark.parametrize(
    ("classes", "draws"),
    [
        (["ZMQInteractiveShell", "InteractiveShell"], True),
        (["Shell", "ZMQInteractiveShell", "InteractiveShell"], True),
        (["TerminalInteractiveShell", "InteractiveShell"], False),
        (["SpyderShell", "ZMQInteractiveShell"], False),
        ([], False),
    ],
)
def test_front_ends_are_told_apart(classes: list[str], draws: bool) -> None:
    assert draws_html(classes) == draws


def test_the_panel_stays_as_the_work_ended(tmp_path: Path, nurseries: Nurseries) -> None:
    """One output, whatever was drawn before; it needs no ipywidgets, and a failure is shown as one."""
    outputs = run_cells(
        "import sys\nsys.modules['ipywidgets'] = None",
        _WORK,
        "work(False)",
        "work(True)",
        folder=tmp_path,
        nurseries=nurseries,
    )
    assert errors_in(outputs) == ["ValueError: bad <picture>"]
    assert [one["output_type"] for one in outputs[3]] == ["error"], "the same panel was meant to go on"
    (panel,) = [one["data"] for one in outputs[2]]
    lines = panel["text/plain"].splitlines()
    assert [line.split("  ")[:2] for line in lines] == [
        ["✓ copy", "4 kB"],
        ["✓ pack", "3 images"],
        ["✓ copy", "4 kB"],
        ["✗ pack", "2 of 3 images"],
    ]
    assert "bad &lt;picture&gt;" in panel["text/html"]
    assert "To cancel" not in panel["text/html"]


_BACKGROUND = """
from colabstage.io.display import resolve_progress
step = resolve_progress(True).background().step("pack", total=3, unit="images")
step.advance()
"""


def test_what_goes_on_in_the_background_is_shown_where_it_was_begun(tmp_path: Path, nurseries: Nurseries) -> None:
    """With how to stop it, as no cell does."""
    outputs = run_cells(
        _BACKGROUND,
        "print('loop')\nstep.note('training: 9 samples/s')\nstep.advance(2)",
        "step.__exit__(None, None, None)",
        _BACKGROUND,
        folder=tmp_path,
        nurseries=nurseries,
    )
    assert [text_in(one).strip() for one in outputs[1:3]] == ["loop", ""]
    (panel,) = [one["data"] for one in outputs[0]]
    assert panel["text/plain"].startswith("✓ pack  3 images")
    assert panel["text/plain"].endswith("training: 9 samples/s")
    (panel,) = [one["data"] for one in outputs[3]]
    assert "call the dataset's cancel()" in html.unescape(panel["text/html"])


_ODD = """
import os, signal, time, colabstage
class Odd:
    def __init__(self, stops=False): self.stops = stops
    def __len__(self): return 3
    def __getitem__(self, row):
        if self.stops:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        return 1 / 0
def stage():
    return colabstage.stage_dataset('photos', imagesize=3)
"""


def test_a_cell_that_ends_early_shows_what_its_reader_wrote(tmp_path: Path, nurseries: Nurseries) -> None:
    stop = "with progress.step('read', total=2, unit='B'): os.kill(os.getpid(), signal.SIGINT)"
    stopped = "colabstage.pack_dataset(Odd(stops=True), 'odd.h5', progress=False)"
    packs = "colabstage.pack_dataset(Odd(), 'odd.h5', progress=False)"
    outputs = run_cells(
        _WORK, _ODD, stop, stopped, "stage()", packs, "%xmode Verbose", "stage()", folder=tmp_path, nurseries=nurseries
    )
    assert "KeyboardInterrupt" in errors_in(outputs)[0]
    assert "■ read" in text_in(outputs[2])
    sentence, typo, broken, everything = (
        re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(cell[-1]["traceback"]))
        for cell in (outputs[3], outputs[4], outputs[5], outputs[7])
    )
    assert sentence == "Stopped. What was finished is kept; the same call again continues from there."
    assert ("imagesize=3" in typo, "Did you mean 'image_size'?" in typo) == (True, True)
    assert ("1 / 0" in broken, "Odd()" in broken, "Odd[0]" in broken) == (True, True, True)
    assert [name for name in ("boundary.py", "items.py", "run.py") if name in typo + broken] == []
    assert "boundary.py" in everything


def test_ipython_in_a_terminal_shows_text(tmp_path: Path) -> None:
    """No HTML is printed where nobody draws it."""
    if find_spec("IPython") is None:
        pytest.skip("needs IPython: pip install --group notebooks (or: make .venv/.tested)")
    code = (
        "from colabstage.io.display import resolve_progress\n"
        "with resolve_progress(True).step('copy', total=2, unit='B') as step: step.advance(2)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--simple-prompt", "-c", code],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "copy: 100%" in done.stderr
    assert "<" not in done.stdout


def test_a_kernel_whose_code_nobody_attends_refuses_to_mount_drive(tmp_path: Path, nurseries: Nurseries) -> None:
    """nbclient declares that it allows no input, as command lines and schedulers do; the client would wait 120 s."""
    began = time.monotonic()
    cell = "import os; os.environ['COLABSTAGE_PLATFORM'] = 'colab'; import colabstage; colabstage.mount_drive()"
    (error,) = run_cells(cell, folder=tmp_path, nurseries=nurseries)[0]
    assert error["ename"] == "NotSupportedHereError"
    assert "hf://" in error["evalue"]
    assert time.monotonic() - began < 60

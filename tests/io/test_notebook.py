"""In a notebook's kernel, the panel is drawn in the cell's output, and stays there in its final state."""

import html
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kernels import errors_in, run_cells, text_in
from tests.nurseries import Nurseries
from tests.support.images import in_classes, make_tree

_STAGE = """
import colabstage
def stage(source, **arguments):
    return colabstage.stage_dataset(source, local_dir=source + '-here', cache_dir=None, image_size=4, **arguments)
"""


def test_the_panel_stays_as_the_work_ended(tmp_path: Path, nurseries: Nurseries) -> None:
    """There is only one output; it needs no ipywidgets, and a failure is shown as such."""
    make_tree(tmp_path / "photos", in_classes(6))
    make_tree(tmp_path / "broken", {"cat/1.png": 1, "dog/<picture>.png": b"bad"})
    outputs = run_cells(
        "import sys\nsys.modules['ipywidgets'] = None",
        _STAGE,
        "data = stage('photos')",
        "stage('broken')",
        folder=tmp_path,
        nurseries=nurseries,
    )
    assert [error.partition(":")[0] for error in errors_in(outputs)] == ["DecodeError"]
    (panel,) = [one["data"] for one in outputs[2]]
    assert ["✓ pack", "6 images"] in [line.split("  ")[:2] for line in panel["text/plain"].splitlines()]
    assert "✗" not in panel["text/plain"]
    assert "To cancel" not in panel["text/html"]
    panel = outputs[3][0]["data"]
    assert re.match(r"✗ pack  [01] of 2 images  (.*  )?failed after ", panel["text/plain"])
    assert "dog/&lt;picture&gt;.png" in panel["text/html"]
    assert "<picture>" not in panel["text/html"]


_BACKGROUND = """
import os, time
seen = []
def wait_for(x):
    seen.append(1)
    while len(seen) > 2 and not os.path.exists('go'):
        time.sleep(0.01)
    return x
data = stage({source!r}, prepare=wait_for, streaming=True)
"""
# Whatever is shown after the last cell has ended is in no output.
_NOTES = """
import time
shown, publish = [], get_ipython().display_pub.publish
def note(data, *arguments, **options):
    publish(data, *arguments, **options)
    shown.append(str(data))
get_ipython().display_pub.publish = note
def wait_until_shown(text):
    deadline = time.monotonic() + 60
    while not any(text in one for one in shown):
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


def test_what_goes_on_in_the_background_is_shown_where_it_was_begun(tmp_path: Path, nurseries: Nurseries) -> None:
    """It says how to stop it, since no cell is running; test_streaming.py has what it shows of training."""
    for name in ("photos", "others"):
        make_tree(tmp_path / name, in_classes(6))
    outputs = run_cells(
        _STAGE,
        _BACKGROUND.format(source="photos"),
        "print('loop')",
        "open('go', 'w').close(); data.wait(); os.remove('go')",
        _NOTES,
        _BACKGROUND.format(source="others"),
        "wait_until_shown('cancel()')",
        folder=tmp_path,
        nurseries=nurseries,
    )
    assert text_in(outputs[2]).strip() == "loop"
    (panel,) = [one["data"] for one in outputs[1]]
    assert "✓ pack  6 samples" in panel["text/plain"]
    (panel,) = [one["data"] for one in outputs[5]]
    assert "stopped by the dataset's cancel()" in html.unescape(panel["text/html"])


_ODD = """
import os, signal, time, colabstage, numpy
class Odd:
    def __init__(self, stops=False): self.stops = stops
    def __len__(self): return 900
    def __getitem__(self, row):
        if not self.stops:
            return 1 / 0
        if row == 800:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        return numpy.zeros((4, 4)), 0
def stage():
    return colabstage.stage_dataset('photos', imagesize=3)
"""
_LOOP = """
import h5py
with h5py.File('rows.h5', 'w') as file:
    file['X_train'], file['Y_train'] = numpy.zeros((8, 2)), numpy.zeros(8, int)
def stopped(x, y):
    signal.raise_signal(signal.SIGINT)
for x, y in colabstage.make_loader(colabstage.dataset_h5('rows.h5'), 4, batch_transform=stopped):
    pass
"""
_OWN = """
def failing(*given):
    try:
        try:
            [][3]
        except IndexError as error:
            raise KeyError('missing') from error
    except KeyError:
        return 1 / 0
"""
_TRAINING = """
import torch
with colabstage.resumable('run', model=torch.nn.Linear(1, 1), every='1 h') as run:
    for epoch in run.epochs(9):
        run.step()
        if epoch == 2:
            signal.raise_signal(signal.SIGINT)
"""


def test_a_cell_that_ends_early_shows_what_its_reader_wrote(tmp_path: Path, nurseries: Nurseries) -> None:
    stop, stopped = (f"colabstage.pack_dataset(Odd(stops=True), 'odd.h5', progress={shown})" for shown in (True, False))
    packs = "colabstage.pack_dataset(Odd(), 'odd.h5', progress=False)"
    loader = "colabstage.make_loader(colabstage.dataset_h5('rows.h5'), 4"
    outputs = run_cells(
        *(_ODD, stop, stopped, "stage()", packs, _LOOP, "%xmode Verbose", "stage()", _TRAINING),
        *(
            "%xmode Context",
            _OWN,
            f"for _ in {loader}, batch_transform=failing):\n    pass",
            f"colabstage.profile_loader({loader}), failing)",
        ),
        "colabstage.dataset_h5('rows.h5', transform=failing)[0]",
        folder=tmp_path,
        nurseries=nurseries,
    )
    assert re.search(r"^■ pack  [\d,]+ of 900 ", text_in(outputs[1]), re.MULTILINE)
    sentence, typo, broken, left, everything = (
        re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(cell[-1]["traceback"]))
        for cell in (outputs[2], outputs[3], outputs[4], outputs[5], outputs[7])
    )
    assert sentence.startswith("Stopped. What was finished is kept; the same call again continues from there. Only the")
    assert ("imagesize=3" in typo, "Did you mean 'image_size'?" in typo) == (True, True)
    assert ("1 / 0" in broken, "Odd()" in broken, "Odd[0]" in broken) == (True, True, True)
    assert ("for x, y in" in left, "raise_signal" in left, left.count("KeyboardInterrupt")) == (True, True, 2)
    assert re.findall(r"(?:boundary|items|run|ahead|loader|calling)\.py", typo + broken + left) == []
    assert "boundary.py" in everything
    for cell in outputs[11:]:
        own = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(cell[-1]["traceback"]))
        # All of the caller's own errors, from the line of the cell to the line that failed; no file of ours.
        raised = re.findall(r"^(\w+Error)\b.*Traceback", own, re.MULTILINE)
        assert raised == ["IndexError", "KeyError", "ZeroDivisionError"]
        # An older IPython calls the file of a cell by a number.
        assert ("1 / 0" in own, re.findall(r"[a-z_]+\.py", own)) == (True, [])
    assert outputs[8][-1]["traceback"] == ["Stopped. What was saved is kept; running this again continues from there."]
    assert "Saved step" not in text_in(outputs[8])  # once, in the panel
    panels = [one["data"]["text/plain"] for one in outputs[8] if "text/html" in one.get("data", {})]
    assert any("epoch  3, step 3\n  saved  step 3 at" in panel for panel in panels)


def test_ipython_in_a_terminal_shows_text(tmp_path: Path) -> None:
    """HTML is not printed where nothing renders it; a result at a prompt is its report."""
    if find_spec("IPython") is None:
        pytest.skip("needs IPython: pip install --group notebooks (or: make .venv/.tested)")
    photos = make_tree(tmp_path / "photos", in_classes(6))
    code = (
        f"import colabstage; colabstage.pack_dataset({str(photos)!r}, {str(tmp_path / 'photos.h5')!r}, overwrite=True)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--simple-prompt", "-c", code],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "6 images in" in done.stdout
    assert "<" not in done.stdout + done.stderr


def test_a_kernel_whose_code_nobody_attends_refuses_to_mount_drive(tmp_path: Path, nurseries: Nurseries) -> None:
    """nbclient declares that it allows no input, as command lines and schedulers do; the client would wait 120 s."""
    began = time.monotonic()
    cell = "import os; os.environ['COLABSTAGE_PLATFORM'] = 'colab'; import colabstage; colabstage.mount_drive()"
    (error,) = run_cells(cell, folder=tmp_path, nurseries=nurseries)[0]
    assert error["ename"] == "NotSupportedHereError"
    assert "hf://" in error["evalue"]
    assert time.monotonic() - began < 60

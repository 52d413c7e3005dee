"""Layouts with options, through packing and staging."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from colabstage import plan_stage
from colabstage.options import audio_clips, folders, table_rows
from tests.support.images import make_tree


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mounts and marker files below the test's folder count."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))


KEYS = """
import sys
from colabstage import plan_stage
from colabstage.options import *

for layout in sys.argv[2:]:
    print(plan_stage(sys.argv[1], layout=eval(layout), cache_dir=None, local_dir="here").target.stem)
"""


def test_the_same_options_are_known_in_another_process(tmp_path: Path) -> None:
    """So that a pack in the cache is found, a tokenizer told by its code; other options have another key."""
    images = {f"{kind}/{n}.png": n for n, kind in enumerate("abab")}
    make_tree(
        tmp_path / "set",
        images | {"t.csv": "file,a,b\n" + "".join(f"{name},{n},{n}.5\n" for name, n in images.items())},
    )
    layouts = {
        "images": "'image_folder'", "a": "table_rows(['a'])", "b": "table_rows(['b'])", "level": "folders(level=1)",
        "one": "lambda tree: table_rows(['a'])(tree)", "other": "lambda tree: table_rows(['b'])(tree)",
    }  # fmt: skip
    command = [sys.executable, "-c", KEYS, str(tmp_path / "set"), *layouts.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)
    found = done.stdout.split()
    assert len(set(found)) == len(layouts)
    names: dict[str, Any] = {"table_rows": table_rows, "folders": folders}
    for layout, key in zip(layouts.values(), found, strict=True):
        plan = plan_stage(tmp_path / "set", layout=eval(layout, names), cache_dir=None, local_dir=tmp_path / "here")
        assert plan.target.stem == key


def test_they_go_to_other_processes() -> None:
    layout: Any = pickle.loads(pickle.dumps(audio_clips(length=5)))
    assert layout.keywords["options"].length == 5

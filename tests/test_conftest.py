"""The guards of conftest.py notice what they are there for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.io.test_board import wait_until

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="module")
def guards() -> ModuleType:
    """The conftest module, imported once more under a name of its own."""
    spec = importlib.util.spec_from_file_location("guards", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_NURSERY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests import nursery
nursery.PRELOADED["nothing"] = ()
nursery.main("nothing", sys.argv[2], int(sys.argv[3]))
"""


def test_what_a_killed_test_has_asked_a_nursery_for_ends(tmp_path: Path) -> None:
    """A kernel belongs to a nursery, which outlives the test; so it is told when whoever asked for it is gone."""
    script, note, root = tmp_path / "script.py", tmp_path / "note", Path(__file__).parent.parent
    script.write_text(
        f"import os, pathlib, time\npathlib.Path({str(note)!r}).write_text(str(os.getpid()))\ntime.sleep(100)\n",
        encoding="utf-8",
    )
    with tempfile.TemporaryDirectory(prefix="nursery-", ignore_cleanup_errors=True) as folder:
        address = f"{folder}/socket"
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
            subprocess.run([sys.executable, "-c", _NURSERY, root, address, str(owner.pid)], check=True, timeout=60)
            asks = [sys.executable, root / "tests/nursery.py", "ask", address, "script", script]
            test = subprocess.Popen(
                [sys.executable, "-c", f"import subprocess; subprocess.run({list(map(str, asks))!r})"]
            )
            wait_until(lambda: note.exists() and note.read_text(encoding="utf-8") != "")
            asked = psutil.Process(int(note.read_text(encoding="utf-8")))
            test.kill()
            test.wait(10)
            wait_until(lambda: not asked.is_running() or asked.status() == psutil.STATUS_ZOMBIE)
            owner.communicate(b"\n", 10)


def test_a_quiet_test_leaves_nothing(guards: ModuleType, tmp_path: Path) -> None:
    """What has ended is no leak."""
    before = guards.held_now(tmp_path)
    worker = threading.Thread(target=(tmp_path / "file").write_text, args=["text"])
    worker.start()
    worker.join()
    assert guards.leaks_since(before, tmp_path, grace_s=0.0) == []


def test_a_thread_is_noticed(guards: ModuleType, tmp_path: Path) -> None:
    """A thread that still waits is named."""
    before = guards.held_now(tmp_path)
    release = threading.Event()
    worker = threading.Thread(target=release.wait, args=[60], name="left-waiting")
    worker.start()
    leaks = guards.leaks_since(before, tmp_path, grace_s=0.0)
    release.set()
    worker.join()
    assert leaks == ["thread left-waiting"]


def test_a_process_is_noticed(guards: ModuleType, tmp_path: Path) -> None:
    """A child process that still runs is named with its command."""
    before = guards.held_now(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as child:
        leaks = guards.leaks_since(before, tmp_path, grace_s=0.0)
        child.kill()
    assert [leak.startswith(f"process {child.pid}: ") for leak in leaks] == [True]


def test_a_file_is_noticed(guards: ModuleType, tmp_path: Path) -> None:
    """A descriptor that is still open is named with its file."""
    before = guards.held_now(tmp_path)
    handle = os.open(tmp_path / "open", os.O_CREAT | os.O_WRONLY)
    leaks = guards.leaks_since(before, tmp_path, grace_s=0.0)
    os.close(handle)
    assert leaks == [f"file descriptor {handle} of {tmp_path / 'open'}"]


def test_an_hdf5_handle_is_noticed(guards: ModuleType, tmp_path: Path) -> None:
    """An HDF5 object counts even when no file on disk stands behind it."""
    h5py = pytest.importorskip("h5py", reason="needs h5py: pip install h5py")
    before = guards.held_now(tmp_path)
    file = h5py.File(tmp_path / "memory.h5", "w", driver="core", backing_store=False)
    leaks = guards.leaks_since(before, tmp_path, grace_s=0.0)
    file.close()
    assert leaks == ["open HDF5 object"]
    assert guards.leaks_since(before, tmp_path, grace_s=0.0) == []


def test_the_environment_is_clean(tmp_path: Path) -> None:
    """No platform's variable in the caller's environment reaches a test."""
    names = ["COLAB_GPU", "KAGGLE_KERNEL_RUN_TYPE", "COLABSTAGE_PLATFORM", "VERTEX_PRODUCT"]
    test = tmp_path / "test_planted.py"
    test.write_text(
        f"import os\n\ndef test_unset():\n    assert not {{*{names}}} & {{*os.environ}}\n", encoding="utf-8"
    )
    (tmp_path / "conftest.py").write_bytes(Path(__file__).with_name("conftest.py").read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        env={**os.environ, **dict.fromkeys(names, "1")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout

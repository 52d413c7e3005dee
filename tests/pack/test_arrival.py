"""Rows of a pack that is being written: waited for, left out, and the error for waiting readers if no more arrive."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from colabstage.errors import CancelledError, NotStagedError, SourceReadError
from colabstage.io.progress import Cancellation
from colabstage.io.workspace import temp_beside
from colabstage.pack.arrival import ArrivalPlan, PackArrival, PackState, RowMap, SplitRows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALL = np.arange(4)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    made = temp_beside(tmp_path / "pack.h5")
    made.mkdir()
    yield made
    shutil.rmtree(made)


def begin(workspace: Path) -> tuple[PackArrival, RowMap]:
    """Four rows of train and two of val, none of them packed. Not a fixture, which would keep the file open."""
    rows = RowMap.create(workspace / "rows", 6)
    splits = {"train": SplitRows(0, np.array([1, 0, 1, 0], np.int32)), "val": SplitRows(4, np.zeros(2, np.int32))}
    plan = ArrivalPlan(splits, "images", 16, together=1, knows_targets=True)
    return PackArrival(workspace / "data.h5", workspace.parent / "pack.h5", rows, plan), rows


def test_rows_are_waited_for_and_targets_that_are_known_are_not(workspace: Path) -> None:
    arrival, rows = begin(workspace)
    with arrival.hold("train", ALL, side="targets"):
        pass
    cancellation = Cancellation()
    threading.Timer(0.02, cancellation.cancel).start()
    with pytest.raises(CancelledError), arrival.hold("train", ALL, cancellation=cancellation):
        pass
    rows.rows[4:] = True
    with arrival.hold("val", np.array([1, 0, 1])):
        assert str(arrival.ready) == "2 of 6 (33%)"

    def fill() -> None:
        rows.rows[:4] = True

    threading.Timer(0.02, fill).start()
    with pickle.loads(pickle.dumps(arrival)).hold("train", ALL):
        assert not arrival.complete
    rows.set_placed()
    assert arrival.complete


@pytest.mark.parametrize("why", ["'a.zip' stalls.", "'a.zip' stalls. Was it moved?"])
def test_who_waits_for_what_does_not_come_hears_why_and_what_is_here_stays(why: str, workspace: Path) -> None:
    arrival, rows = begin(workspace)
    rows.rows[0] = True
    rows.set_failed(SourceReadError(why))
    with arrival.hold("train", ALL[:1]):
        pass
    # Also in another process than the packing one.
    for one in (arrival, pickle.loads(pickle.dumps(arrival))):
        with pytest.raises(SourceReadError, match=rf"^{re.escape(why)} 1 of 6 images were packed\. Call"):
            one.hold("train", ALL).__enter__()
    rows.set_failed(ValueError("odd"))
    with pytest.raises(NotStagedError, match="odd"), arrival.hold("val", ALL[:1]):
        pass


_FILLS = """
import sys
from pathlib import Path
import numpy as np
from colabstage.io.workspace import temp_beside
from colabstage.pack.arrival import RowMap
from colabstage.sources.blocks import _map_table
disk = Path(sys.argv[1])
workspace = temp_beside(disk / "pack.h5")
workspace.mkdir()
rows = RowMap.create(workspace / "rows", 1_000_000)
table = _map_table(disk / "blocks", 1_000_000)
try:
    with (disk / "other").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    print(error.strerror)
rows.rows[900_000] = table[900_000] = 1
"""


def test_a_disk_that_is_full_kills_nobody_who_notes_what_is_here(small_disk: Path) -> None:
    """Mapped memory has its space from the beginning: writing into a hole of it would kill the process."""
    done = subprocess.run(
        [sys.executable, "-c", _FILLS, str(small_disk)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "No space left on device\n", "")


def test_a_packer_that_was_killed_is_not_waited_for(workspace: Path) -> None:
    arrival, _ = begin(workspace)
    script = (
        "import sys; from pathlib import Path; from colabstage.pack.arrival import RowMap; "
        "RowMap.create(Path(sys.argv[1]), 6)"
    )
    subprocess.run([sys.executable, "-c", script, str(workspace / "rows")], check=True)
    other = pickle.loads(pickle.dumps(arrival))
    assert RowMap(workspace / "rows").state is PackState.RUNNING
    with pytest.raises(NotStagedError), other.hold("train", ALL):
        pass


def test_a_map_that_is_gone_means_a_pack_at_its_place_or_the_end(workspace: Path) -> None:
    arrival, _ = begin(workspace)
    sent = pickle.dumps(arrival)
    (workspace / "rows").unlink()
    with pytest.raises(NotStagedError, match="stage_dataset"):
        assert pickle.loads(sent).complete

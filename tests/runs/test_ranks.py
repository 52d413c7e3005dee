"""A run of several ranks: one saves, all restore the same version."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tests.runs.training import write_data

if TYPE_CHECKING:
    from tests.nurseries import Nurseries

RANKS = Path(__file__).with_name("ranks.py")


def run_ranks(
    nurseries: Nurseries, home: Path, name: str, *, ranks: int = 2, stop: int | None = None, attempt: int = 0
) -> list[str]:
    """Run all ranks of a training in the folder `name`; what each printed."""
    store, out = home / f"store-{name}-{attempt}", home / f"{name}.pt"
    given = [str(store), str(home / name), str(home / "rows.h5"), str(out), *([] if stop is None else [str(stop)])]
    processes = [
        subprocess.Popen(
            nurseries.command("torch", "script", RANKS, str(rank), str(ranks), *given),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=110) for process in processes]
    wanted = 0 if stop is None else 9
    assert [process.returncode for process in processes] == [wanted] * ranks, said
    return [out for out, _ in said]


def test_ranks_go_on_together(tmp_path: Path, nurseries: Nurseries) -> None:
    """After all of them died in mid-epoch; also as another number of ranks."""
    write_data(tmp_path / "rows.h5")
    run_ranks(nurseries, tmp_path, "whole")
    run_ranks(nurseries, tmp_path, "killed", stop=8)
    shutil.copytree(tmp_path / "killed", tmp_path / "fewer")
    said = run_ranks(nurseries, tmp_path, "killed", attempt=1)
    assert all("step=8" in one for one in said)
    run_ranks(nurseries, tmp_path, "fewer", ranks=1, attempt=1)
    names = ("whole", "killed", "fewer")
    whole, killed, fewer = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in names)
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert all(torch.allclose(whole[name], fewer[name], atol=1e-4) for name in whole)

"""A run with several ranks: one saves, all restore the same version."""

import shutil
import signal
from pathlib import Path

import pytest
import torch

from colabstage import list_runs
from tests.nurseries import Nurseries
from tests.runs.training import write_data

RANKS = Path(__file__).with_name("ranks.py")


def run_ranks(
    nurseries: Nurseries, home: Path, name: str, *trouble: str, ranks: int = 2, attempt: int = 0
) -> list[tuple[int, str]]:
    """Run all ranks of a training in the folder `name`; return each one's exit code and output."""
    store, out = home / f"store-{name}-{attempt}", home / f"{name}.pt"
    given = [str(store), str(home / name), str(home / "rows.h5"), str(out), *trouble]
    return nurseries.run_together("torch", [[RANKS, str(rank), str(ranks), *given] for rank in range(ranks)])


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory, nurseries: Nurseries) -> Path:
    """A folder with data, and a run of two ranks that died in mid-epoch."""
    home = tmp_path_factory.mktemp("ranks")
    write_data(home / "rows.h5")
    assert [code for code, _ in run_ranks(nurseries, home, "run", "8")] == [9, 9]
    return home


def test_ranks_go_on_together(died: Path, tmp_path: Path, nurseries: Nurseries) -> None:
    """After all of them died in mid-epoch; also with another number of ranks."""
    shutil.copytree(died, tmp_path, dirs_exist_ok=True)
    shutil.copytree(died / "run", tmp_path / "fewer")
    assert [code for code, _ in run_ranks(nurseries, tmp_path, "whole")] == [0, 0]
    again = run_ranks(nurseries, tmp_path, "run", attempt=1)
    assert all(code == 0 and "step=8" in said for code, said in again), again
    ((code, said),) = run_ranks(nurseries, tmp_path, "fewer", ranks=1, attempt=1)
    assert code == 0, said
    whole, resumed, fewer = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "run", "fewer")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert all(torch.allclose(whole[name], fewer[name], atol=1e-4) for name in whole)


def test_a_signal_that_reaches_the_first_rank_last_saves(died: Path, tmp_path: Path, nurseries: Nurseries) -> None:
    """It finishes its step, for which it needs the others."""
    shutil.copy(died / "rows.h5", tmp_path)
    (code, _), _ = run_ranks(nurseries, tmp_path, "run", "stopped")
    assert (code, [one.step for one in list_runs(tmp_path / "run")[0].versions]) == (128 + signal.SIGTERM, [5])


@pytest.mark.parametrize(
    ("trouble", "codes", "error"),
    [("damaged", [3, 3], "DamagedPackError"), ("other", [3, 3], "OptionError"), ("gone", [9, 3], "WorkersLostError")],
)
def test_what_fails_on_one_rank_fails_on_all(
    died: Path, tmp_path: Path, nurseries: Nurseries, trouble: str, codes: list[int], error: str
) -> None:
    """Before the first step, by name: no rank waits for one that has ended."""
    shutil.copytree(died, tmp_path, dirs_exist_ok=True)
    if trouble == "damaged":
        for version in (tmp_path / "run").glob("*.pt"):
            version.write_bytes(b"damaged")
    ended = run_ranks(nurseries, tmp_path, "run", trouble, attempt=1)
    assert [code for code, _ in ended] == codes, ended
    assert all(error in said for code, said in ended if code == 3), ended

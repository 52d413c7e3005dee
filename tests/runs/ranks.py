"""One rank of a distributed training in a resumable run.

python ranks.py RANK RANKS STORE FOLDER DATA OUT [TROUBLE]

Trouble: a step at which all ranks die; "gone", the first rank dies before the run begins; "other", the last rank has
different parts; "stopped", SIGTERM reaches the first rank a step later than the others. An error of the run is printed
by name, with exit code 3.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from colabstage import dataset_h5, make_loader, resumable
from colabstage.errors import ColabstageError

BATCH = 16


def main() -> None:
    """Train two epochs, or into trouble."""
    rank, ranks, store, folder, data, out, *trouble = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    if trouble == ["gone"] and rank == "0":
        os._exit(9)
    try:
        resumed = train(int(rank), int(ranks), folder, data, Path(out), trouble)
        sys.stdout.write(f"{resumed}\n")
    except ColabstageError as error:
        sys.stdout.write(f"{type(error).__name__} {error}\n")
        sys.exit(3)
    torch.distributed.destroy_process_group()


def train(rank: int, ranks: int, folder: str, data: str, out: Path, trouble: list[str]) -> object:
    """Train; return the version that it was resumed from."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loader = make_loader(dataset_h5(data), BATCH // ranks, seed=5, dtype=torch.float32, drop_last=True)
    parts: dict[str, Any] = {
        "model": net if "gone" in trouble else DistributedDataParallel(net),
        "optimizer": optimizer,
    }
    if trouble == ["other"] and rank == ranks - 1:
        parts["ema"] = nn.Linear(2, 2)
    stop = int(trouble[0]) if trouble and trouble[0].isdecimal() else None
    with resumable(folder, every="1 h", progress=False, loader=loader, **parts) as run:
        for _ in run.epochs(2):
            for x, y in loader:
                loss = nn.functional.cross_entropy(parts["model"](x), y)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                if trouble == ["stopped"] and run.steps == (3 if rank else 4):
                    signal.raise_signal(signal.SIGTERM)
                run.step(loss=loss)
                if run.steps == stop:
                    run.save()
                    torch.distributed.barrier()
                    os._exit(9)
    if rank == 0:
        torch.save(net.state_dict(), out)
    return run.resumed_from


if __name__ == "__main__":
    main()

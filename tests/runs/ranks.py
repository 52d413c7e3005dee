"""One rank of a distributed training in a resumable run.

python ranks.py RANK RANKS STORE FOLDER DATA OUT [STOP]
"""

from __future__ import annotations

import os
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from colabstage import dataset_h5, make_loader, resumable

BATCH = 16


def main() -> None:
    """Train two epochs, or until step STOP, where all ranks die."""
    rank, ranks, store, folder, data, out, *stop = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = make_loader(dataset_h5(data), BATCH // int(ranks), seed=5, dtype=torch.float32, drop_last=True)
    with resumable(folder, every="1 h", progress=False, model=model, optimizer=optimizer, loader=loader) as run:
        for _ in run.epochs(2):
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                run.step(loss=loss)
                if stop and run.steps == int(stop[0]):
                    run.save()
                    torch.distributed.barrier()
                    os._exit(9)
    if rank == "0":
        torch.save(model.module.state_dict(), out)
    sys.stdout.write(f"{run.resumed_from}\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

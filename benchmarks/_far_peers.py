"""A library that reads a bucket while it trains, in a process of its own, in whichever environment has it.

    python -m benchmarks._far_peers '{"library": …, "address": …, "place": …, "limit": …, "folder": …, "shape": …, …}'

It trains for two epochs and says, in a line of JSON, `{"first_batch_s": …, "epochs_s": [...], "wrong": …}`; the same of
what is done so far after the first batch and after each epoch, for whoever does not wait for the rest. Without an
address it writes the samples in `folder` in the library's own format, in shards of `shard` bytes.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks._pixel_data import BATCH, Shape, row_numbers, touch

if TYPE_CHECKING:
    from collections.abc import Iterable

    Batches = Iterable[tuple[Any, Any]]

EPOCHS = 2
# Imported before the clock starts.
_IMPORTS = {
    "colabstage": ("torch", "h5py", "s3fs", "colabstage.load.loader", "colabstage.load.partial"),
    "LitData": ("torch", "litdata"),
    "MosaicML Streaming": ("torch", "streaming"),
    "Lance": ("torch", "lance"),
}


def _colabstage(run: dict[str, Any], shape: Shape) -> Batches:
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.loader import make_loader

    limit = run["limit"] or 2 * shape.samples * shape.x_bytes
    return make_loader(dataset_h5(f"{run['address']}/pack.h5", disk_limit=limit, local_dir=run["place"]), BATCH)


def _litdata(run: dict[str, Any], shape: Shape) -> Batches:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    from benchmarks._pixel_peers import stack_bytes

    # Its quicker way to S3 speaks https alone, and there is no option for that.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = StreamingDataset(
        run["address"],
        cache_dir=run["place"],
        shuffle=True,
        drop_last=False,
        max_cache_size=run["limit"],
        max_pre_download=run["ahead"],
    )
    loader: Batches = StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        drop_last=False,
        num_workers=run["workers"],
        persistent_workers=run["workers"] > 0,
        collate_fn=partial(stack_bytes, shape=shape),
    )
    return loader


def _mosaic(run: dict[str, Any], shape: Shape) -> Batches:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    from benchmarks._pixel_peers import stack_bytes

    dataset = StreamingDataset(
        remote=run["address"],
        local=run["place"],
        shuffle=True,
        shuffle_algo=run["shuffle"],
        batch_size=BATCH,
        cache_limit=run["limit"],
        predownload=run["ahead"],
        # By default blocks of 262,144 samples, and 64 paths through the shards for "py2s": both want all shards here.
        shuffle_block_size=run.get("block"),
        num_canonical_nodes=run.get("nodes"),
    )
    workers = run["workers"]
    return DataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=partial(stack_bytes, shape=shape),
    )


def _lance(run: dict[str, Any], shape: Shape) -> Batches:
    from benchmarks._pixel_peers import Lance

    return Lance.open(f"{run['address']}/samples.lance", shape, run["workers"])


_OPEN = {"colabstage": _colabstage, "LitData": _litdata, "MosaicML Streaming": _mosaic, "Lance": _lance}


def _say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def _train(run: dict[str, Any], shape: Shape) -> None:
    for name in _IMPORTS[run["library"]]:
        importlib.import_module(name)
    if run["library"] == "MosaicML Streaming":
        # What a run leaves that was ended would be taken for that of another rank.
        importlib.import_module("streaming.base.util").clean_stale_shared_memory()
    seen = np.zeros((EPOCHS, shape.samples), np.int64)
    began = time.perf_counter()
    batches = _OPEN[run["library"]](run, shape)
    first_s, seconds = 0.0, list[float]()
    for epoch in range(EPOCHS):
        for x, y in batches:
            if not first_s:
                first_s = time.perf_counter() - began
                _say(first_batch_s=first_s, epochs_s=[], wrong=0)
            touch(x, y)
            np.add.at(seen[epoch], row_numbers(shape.as_written(x)), 1)
        seconds.append(time.perf_counter() - began - sum(seconds))
        _say(first_batch_s=first_s, epochs_s=seconds, wrong=int((seen[: epoch + 1] != 1).sum()))


def main() -> None:
    """Write the samples, or train."""
    run = json.loads(sys.argv[1])
    shape = Shape.from_dict(run["shape"])
    if "address" in run:
        _train(run, shape)
        return
    from benchmarks._pixel_peers import Lance, LitData, Mosaic

    folder = Path(run["folder"])
    if run["library"] == "Lance":
        Lance(folder, shape).store()
    else:
        library = LitData if run["library"] == "LitData" else Mosaic
        library(folder, shape, run["shard"]).store()


if __name__ == "__main__":
    main()

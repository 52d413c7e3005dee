"""Gather the facts on which loading depends: the dataset, this computer, this process, and what a sample costs.

`load/choosing` decides what follows from them.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import multiprocessing
import pickle
import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from colabstage.errors import said_by
from colabstage.h5.info import read_info
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.load.arrival import facts_of
from colabstage.load.batches import map_leaves
from colabstage.load.device import free_device_memory
from colabstage.load.plan import DeviceFacts, LoaderFacts, ProcessFacts, SampleCost
from colabstage.machine.resources import free_shared_memory, read_resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.io.progress import Clock
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.epoch import Shard


def gather_facts(
    dataset: dataset_h5,
    *,
    device: torch.device | None,
    shard: Shard,
    epoch_rows: int | None,
    crop_size: tuple[int, int] | None = None,
    processes: bool = False,
) -> LoaderFacts:
    """Look at a dataset, this computer and this process. Reads no sample, but a few headers of encoded ones.

    `crop_size`: height and width of the random resized crops that the batch transform begins with. `processes`: whether
    some are asked for; without a transform they are never chosen.
    """
    # Now and not at import: a notebook's limits and free memory change.
    resources = read_resources()
    reader = dataset.reader
    # Devices that do not tell share this computer's memory.
    own_memory = None if device is None else free_device_memory(device)
    free = resources.free_memory_bytes if own_memory is None else own_memory
    # Rows of `train` are in random order where colabstage packed them. Only what reads row by row asks, because looking
    # means opening the file.
    asks = reader.engine.name == "read" and reader.split == "train"
    are_random = asks and (
        read_info(reader.path, reader.fields, allow_external=reader.allow_external).format_version is not None
    )
    return LoaderFacts(
        rows=len(reader),
        row_bytes=reader.estimate_row_bytes(),
        stored_bytes=reader.stored_bytes,
        engine=reader.engine,
        encoded=reader.encoded,
        per_sample=dataset.per_sample,
        cores=resources.cores,
        free_memory_bytes=resources.free_memory_bytes,
        # Single integers become int64.
        target_bytes=max(8, reader.target_bytes or 0),
        decodes_targets=reader.decodes_targets,
        uniform=reader.target_bytes is not None and reader.row_shape is not None,
        random_rows=are_random,
        epoch_rows=epoch_rows,
        shard=shard,
        device=None if device is None else DeviceFacts(device.type, free),
        processes=ProcessFacts(
            threads=threading.active_count(),
            cuda_started=bool(torch.cuda.is_initialized()),  # type: ignore[no-untyped-call]
            unpicklable=_pickle_problem(dataset),
            methods=tuple(multiprocessing.get_all_start_methods()),
            shared_memory_bytes=free_shared_memory() or 0,
            runs_again=(processes or dataset.per_sample) and _runs_again(),
        ),
        crop_bytes=None if crop_size is None else crop_size[0] * crop_size[1] * reader.crop_channels,
        whole_reason=reader.whole_reason,
        arrival=None if reader.arrival is None else facts_of(reader.arrival),
    )


# A probe ends after these many samples or seconds, whichever comes first.
_PROBED = 64
_PROBE_S = 0.5


def measure_cost(dataset: dataset_h5, *, clock: Clock = SYSTEM_CLOCK) -> SampleCost | None:
    """Time a few samples with copies of their transforms, in this thread, for half a second or one sample.

    What the transforms draw from the generators of Python, numpy and torch is put back.

    Returns:
        `None` where the first one failed, or the transforms cannot be copied: it will again, where it is asked for.
    """
    # From all over the file, as neighbours are often alike.
    rows = np.linspace(0, len(dataset) - 1, min(_PROBED, len(dataset))).astype(np.intp).tolist()
    done, elapsed_s, nbytes = 0, 0.0, list[int]()
    # Whatever a transform raises is the loop's to raise, where it says which batch.
    with _rng_restored(), contextlib.suppress(Exception):
        probed = copy.copy(dataset)
        # What they count or draw on the way stays with the copies, as it does with those of processes.
        transforms = pickle.dumps((dataset.transform, dataset.target_transform))
        probed.transform, probed.target_transform = pickle.loads(transforms)
        start = clock.now()
        for row in rows:
            map_leaves(probed[row], lambda leaf: nbytes.append(int(getattr(leaf, "nbytes", 8))))
            done += 1
            elapsed_s = clock.now() - start
            if elapsed_s > _PROBE_S:
                break
    return SampleCost(elapsed_s / done, sum(nbytes) // done) if done else None


@contextlib.contextmanager
def _rng_restored() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what transforms draw from
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _pickle_problem(dataset: dataset_h5) -> str | None:
    """Return why the dataset's transforms cannot be sent to another process; `None` if they can."""
    try:
        pickle.dumps((dataset.transform, dataset.target_transform))
    except Exception as error:  # noqa: BLE001 - whatever a transform's own pickling raises
        return said_by(error).partition("\n")[0]
    # A class of a notebook pickles by its name, and fails where it is looked up.
    main = __import__("__main__")
    homes = {
        getattr(part, "__module__", type(part).__module__) for part in (dataset.transform, dataset.target_transform)
    }
    if "__main__" in homes and not hasattr(main, "__file__"):
        return "its transform is defined in a notebook, which another process cannot import"
    return None


def _runs_again() -> bool:
    """Tell whether a process that imports the main module would run the script that is running from its top."""
    main = sys.modules["__main__"]
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if path is None or (spec is not None and spec.name.endswith(".__main__")):
        return False  # a notebook, or a package that is run: other processes import neither
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        script = ast.parse(Path(path).read_bytes())
    # What cannot be read may have no guard: the careful answer.
    except (OSError, SyntaxError, ValueError):
        return True
    line = frame.f_lineno
    return not any(
        isinstance(part, ast.If)
        and any(isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(part.test))
        and part.body[0].lineno <= line <= (part.body[-1].end_lineno or 0)
        for part in ast.walk(script)
    )

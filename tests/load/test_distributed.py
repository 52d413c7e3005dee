"""Real process groups: ranks of `torch.distributed` divide epochs exactly, and resume in the middle of one."""

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from colabstage import dataset_h5, make_loader, pack_dataset
from tests.nurseries import Nurseries
from tests.support.staged import use_small_blocks

RANK = """
import json, sys, warnings
from pathlib import Path
import torch
from torch import distributed
from torch.utils.data import WeightedRandomSampler, random_split
from colabstage import dataset_h5
from colabstage import make_loader

file, store, out, rank, world = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
torch.manual_seed(rank)
early = make_loader(dataset_h5(file), 4)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
whole = dataset_h5(file, return_index=True)
# One of the ranks fetches for both.
part = dataset_h5(file, return_index=True, disk_limit="1GB", local_dir=Path(store).parent)
found = {}
for name, options in {
    "shuffled": {},
    "sampler": {"sampler": WeightedRandomSampler([1.0] * 61, 50)},
    "device": {"strategy": "device", "device": "cpu"},
    "in part": {},
}.items():
    dataset = part if name == "in part" else whole
    loader = make_loader(dataset, 4, **options)
    rows, state = [], None
    for number, (_, index) in enumerate(loader):
        rows.append(index.tolist())
        # As a step of training does: it waits for all ranks, for ever if one makes fewer steps.
        distributed.all_reduce(torch.ones(1))
        if number == 2:
            state = loader.state_dict()
    # One rank's state serves all.
    states = [state if rank == 0 else None]
    distributed.broadcast_object_list(states, src=0)
    resumed = make_loader(dataset, 4, **options)
    resumed.load_state_dict(states[0])
    rest = [index.tolist() for _, index in resumed]
    found[name] = {"rows": rows, "rest": rest, "batches": len(loader), "state": states[0]}
# As Lightning shares out a loader that was made before its ranks began.
found["early"] = list(early.sampler)
found["told"] = []
for generator in (None, torch.Generator().manual_seed(0)):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        make_loader(random_split(whole, [50, 11], generator=generator)[0], 4, shuffle=True)
        distributed.barrier()
    found["told"].append(["some samples are read by no rank" in str(one.message) for one in told])
found["fetched"] = part.reader.arrival.figures["fetched"]
out.write_text(json.dumps(found))
distributed.destroy_process_group()
"""


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_ranks_of_a_process_group_share_out(tmp_path: Path, nurseries: Nurseries, world: int) -> None:
    """Each row comes once an epoch, all ranks make equally many steps, and a resume leaves the same rest, in every
    order."""
    pack = tmp_path / "data.h5"
    np.savez(tmp_path / "data.npz", x_train=np.zeros((61, 10, 12, 3), np.uint8), y_train=np.arange(61))
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_blocks(monkeypatch, 4096)
        pack_dataset(tmp_path / "data.npz", pack, progress=False)
    size = pack.stat().st_size
    outs = [tmp_path / f"rank{rank}.json" for rank in range(world)]
    script = tmp_path / "rank.py"
    script.write_text(RANK, encoding="utf-8")
    place: list[str | Path] = [script, pack, tmp_path / "store"]
    ranks = [[*place, out, str(rank), str(world)] for rank, out in enumerate(outs)]
    ended = nurseries.run_together("torch", ranks)
    assert [code for code, _ in ended] == [0] * world, ended
    found = [json.loads(out.read_text(encoding="utf-8")) for out in outs]
    # Together they have fetched every block once.
    assert max(part.pop("fetched") for part in found) == size
    # A split that each rank draws by itself is told, by all but the first; a seeded one is the same on all.
    unseeded, seeded = zip(*(part.pop("told") for part in found), strict=True)
    assert (sorted(unseeded), set(map(tuple, seeded))) == ([[], *[[True]] * (world - 1)], {()})
    early = [part.pop("early") for part in found]
    assert sorted(early[0]) == list(range(61))
    assert all(one == early[0] for one in early)
    for name in ("shuffled", "device", "in part"):
        rows = [row for part in found for batch in part[name]["rows"] for row in batch]
        assert sorted(rows) == list(range(61)), name
    assert sum(len(batch) for part in found for batch in part["sampler"]["rows"]) == 50
    for part in found:
        for name, kept in part.items():
            assert kept["rest"] == kept["rows"][3:], name
            assert len(kept["rows"]) == kept["batches"] == found[0][name]["batches"], name
    assert {**found[0]["shuffled"], "state": None} == {**found[0]["device"], "state": None}
    # One process with as large a step continues where they stopped.
    alone = make_loader(dataset_h5(pack, return_index=True), 4 * world, seed=0)
    alone.load_state_dict(found[0]["shuffled"]["state"])
    steps = [sorted(index.tolist()) for _, index in alone]
    together = zip(*(part["shuffled"]["rest"] for part in found), strict=True)
    shared = [sorted(chain.from_iterable(step)) for step in together]
    # Ranks with one row less than others divide their last batch in two, to make as many steps; so it may vary in which
    # of the last two steps a row is.
    assert len(shared) == len(steps) > 2
    assert shared[:-2] == steps[:-2]
    assert sorted(chain.from_iterable(shared[-2:])) == sorted(chain.from_iterable(steps[-2:]))

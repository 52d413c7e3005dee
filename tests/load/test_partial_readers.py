"""Many readers of one partial pack: worker processes, concurrent loaders, the ranks of a process group; and loops that
are left in the middle. Batches are the file's, the limit holds, and nothing hangs at the end."""

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from colabstage import dataset_h5, make_loader
from colabstage.h5.manifest import manifest_path
from tests.load.test_partial import LIMIT, ROWS, Pack, check_epoch, make_pack, part_of
from tests.nurseries import Nurseries
from tests.support.http_server import WebServer
from tests.support.invariants import open_files
from tests.support.staged import disk_sampled

# Longer than any of these takes on a busy machine.
LONGEST_S = 90.0


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("pack") / "data.h5")


@pytest.fixture
def server(pack: Pack) -> Iterator[WebServer]:
    with WebServer({"data.h5": pack.path, "data.h5.json": manifest_path(pack.path)}) as served:
        yield served


def opened(server: WebServer, place: Path) -> dataset_h5:
    return dataset_h5(server.url("data.h5"), disk_limit=LIMIT, local_dir=place, return_index=True)


def check_rows(batches: Any, pack: Pack) -> list[int]:
    """Compare batches of a stock `DataLoader` with the file, and return their rows."""
    seen: list[int] = []
    for (x, _), index in batches:
        np.testing.assert_array_equal(x.numpy(), pack.x[index.numpy()])
        seen += index.tolist()
    return seen


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_worker_processes_whose_epoch_is_left_begin_another(
    method: str, pack: Pack, server: WebServer, tmp_path: Path
) -> None:
    """Two processes and their parent read one part; an interrupted epoch leaves nothing behind."""
    with disk_sampled(tmp_path) as taken:
        dataset = opened(server, tmp_path)
        workers: Any = DataLoader(dataset, 50, num_workers=2, multiprocessing_context=method)
        beside = make_loader(dataset, 64, seed=2)
        both = zip(workers, chain(beside, beside), strict=False)
        left, right = zip(*islice(both, 30), strict=True)
        assert check_rows(left, pack) == list(range(1500))
        check_epoch(right, pack)
        del both, left, right
        assert check_rows(workers, pack) == list(range(ROWS))
        part_of(dataset).close()
    assert max(taken) <= LIMIT


def test_loaders_beside_each_other_share_the_limit(pack: Pack, server: WebServer, tmp_path: Path) -> None:
    """Two loaders over one dataset and two over another, each in another order and left once in the middle."""
    with disk_sampled(tmp_path) as taken, ThreadPoolExecutor(4) as threads:
        datasets = [opened(server, tmp_path) for _ in range(2)]

        def train(number: int) -> list[int]:
            loader = make_loader(datasets[number % 2], 40 + number, seed=number)
            check_epoch(islice(loader, 9 + number), pack)
            return check_epoch(loader, pack)

        for rows in threads.map(train, range(4), timeout=LONGEST_S):
            assert sorted(rows) == list(range(ROWS))
        for dataset in datasets:
            part_of(dataset).close()
    assert max(taken) <= LIMIT


def test_nobody_expects_what_is_left_of_an_epoch_that_has_ended(pack: Pack, tmp_path: Path) -> None:
    """An iterator that is kept after its epoch was left, or has ended, keeps no blocks."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    loader = make_loader(dataset, 50)
    left = iter(loader)
    next(left)
    expected = list(tmp_path.rglob("*expected*"))
    assert expected
    loader.close()
    deadline = time.monotonic() + 5
    while any(path.exists() for path in expected) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [path for path in expected if path.exists()]
    whole = iter(loader)
    list(whole)
    assert not list(tmp_path.rglob("*expected*"))
    part_of(dataset).close()
    del left, whole


def test_a_next_epoch_that_is_ordered_late_opens_nothing_again(pack: Pack, tmp_path: Path) -> None:
    """A thread orders it, and the part may be closed by then."""
    part = part_of(dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path))
    is_closed, rows = threading.Event(), np.arange(ROWS)

    def ordered_late() -> Any:
        is_closed.wait(LONGEST_S)
        return rows

    expected = part.expect("train", rows, then=ordered_late)
    expected.reached(1)
    thread = next(one for one in threading.enumerate() if one.name == "colabstage-next-epoch")
    expected.close()
    part.close()
    closed = open_below(tmp_path)
    is_closed.set()
    thread.join(LONGEST_S)
    assert open_below(tmp_path) <= closed
    assert not list(tmp_path.rglob("*expected*"))


def open_below(folder: Path) -> set[str]:
    """The files of a folder that this process has open, by their descriptors."""
    return {f"{number} {path}" for number, path in open_files().items() if str(folder) in path}


def next_rows(loader: Any, state: dict[str, Any], pack: Pack) -> list[int]:
    """Return the rows of the batch after a state, compared with the file."""
    loader.load_state_dict(state)
    # After an epoch's last batch nothing of it is left, and the first batch of the next one follows.
    rows = next(filter(None, (check_epoch(islice(loader, 1), pack) for _ in range(2))))
    loader.close()
    return rows


def test_the_state_after_any_batch_continues_with_the_next(pack: Pack, server: WebServer, tmp_path: Path) -> None:
    """Whatever was evicted by then, with another number of threads, and by two ranks with as large a step."""
    dataset = opened(server, tmp_path)
    loader, states, straight = make_loader(dataset, 120, seed=5), [], []
    for _ in range(3):
        for batch in loader:
            states.append(loader.state_dict())
            straight.append(check_epoch([batch], pack))
    alone = [make_loader(dataset, 120, seed=5, num_workers=count) for count in (0, 3)]
    ranks = [make_loader(dataset, 60, seed=5, rank=rank, world_size=2) for rank in range(2)]
    # The first one, the last two of an epoch, and some in between.
    for number in (1, 17, 24, 25, 43):
        state = states[number - 1]
        assert next_rows(alone[number % 2], state, pack) == straight[number], number
        together = [row for rank in ranks for row in next_rows(rank, state, pack)]
        assert sorted(together) == sorted(straight[number]), number
    part_of(dataset).close()


RANK = """
import json, sys
from pathlib import Path
import h5py
import numpy as np
import torch
from torch import distributed
from colabstage import dataset_h5
from colabstage import make_loader

url, file, local, limit, store, out, rank = *sys.argv[1:4], int(sys.argv[4]), *sys.argv[5:7], int(sys.argv[7])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
with h5py.File(file) as opened:
    whole = opened["X_train"][()]
dataset = dataset_h5(url, disk_limit=limit, local_dir=local, return_index=True)
loader = make_loader(dataset, 32, seed=5)
epochs, state = [], None
# The second epoch is left in the middle, and begun again with what is here by then.
for stop in (None, 11, None):
    rows = []
    for number, ((x, _), index) in enumerate(loader):
        np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), whole[index.numpy()])
        rows.append(index.tolist())
        distributed.all_reduce(torch.ones(1))
        if number + 1 == stop:
            state = loader.state_dict()
            break
    epochs.append(rows)
found = {"epochs": epochs, "state": state, "figures": dataset.figures}
Path(out).write_text(json.dumps(found))
distributed.barrier()
distributed.destroy_process_group()
"""


def test_ranks_share_one_part_under_a_limit(
    pack: Pack, server: WebServer, tmp_path: Path, nurseries: Nurseries
) -> None:
    """Two processes of a group go through the same windows, one fetches for both, and neither waits for ever; one
    process continues where they stopped."""
    local, script = tmp_path / "local", tmp_path / "rank.py"
    local.mkdir()
    script.write_text(RANK, encoding="utf-8")
    outs = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    place: list[str | Path] = [script, server.url("data.h5"), pack.path, local, str(LIMIT), tmp_path / "store"]
    with disk_sampled(local) as taken:
        ended = nurseries.run_together("torch", [[*place, out, str(rank)] for rank, out in enumerate(outs)])
    assert [code for code, _ in ended] == [0, 0], ended
    assert max(taken) <= LIMIT
    found = [json.loads(out.read_text(encoding="utf-8")) for out in outs]
    for epoch in (0, 2):
        rows = [row for part in found for batch in part["epochs"][epoch] for row in batch]
        assert sorted(rows) == list(range(ROWS))
    # All of it about once an epoch, by either of them.
    assert max(part["figures"]["fetched"] for part in found) < 4 * pack.path.stat().st_size
    dataset = opened(server, local)
    alone = make_loader(dataset, 64, seed=5)
    alone.load_state_dict(found[0]["state"])
    rest = check_epoch(alone, pack)
    before = [row for part in found for batch in part["epochs"][1] for row in batch]
    assert sorted(before + rest) == list(range(ROWS))
    part_of(dataset).close()


def test_what_a_reader_in_another_container_announces_stays(pack: Pack, tmp_path: Path) -> None:
    """Whether it lives cannot be seen from here."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    batches = iter(make_loader(dataset, 4))
    next(batches)
    # On a busy machine, that of the next epoch may be there already.
    ours = list(tmp_path.rglob(".colabstage-expected.*"))
    other = ours[0].with_name(re.sub(r"expected\.\w+-", "expected.deadbeef-", ours[0].name))
    other.write_bytes(ours[0].read_bytes())
    assert len(list(batches)) > 1
    assert other.exists()
    assert not all(one.exists() for one in ours)

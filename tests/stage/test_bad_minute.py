"""A server that refuses everything in the middle of an epoch: it is waited for, the row says so, and no row is lost."""

from __future__ import annotations

import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage import stage_dataset
from colabstage.io.page import Board
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.load.partial import PartialPack
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

COUNT, BATCH, SHAPE = 320, 16, (250, 1000)
PACED = WebKnobs(total_bytes_per_s=20e6)
BUSY = WebFault(kind="status", status=503)
# By how much longer a server is away than tries without patience last.
MORE_S = 2.0
EVERY = sorted(number % 256 for number in range(COUNT))
SAYS = "cannot answer now: 503 Service Unavailable"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 MB of arrays, each full of its own number."""
    path = tmp_path_factory.mktemp("archive") / "data.zip"
    with zipfile.ZipFile(path, "w") as file:
        for number in range(COUNT):
            with file.open(f"train/c{2 * number // COUNT}/{number:03}.npy", "w") as member:
                np.lib.format.write_array(member, np.full(SHAPE, number % 256, np.uint8))
    return path


def epoch_with_a_bad_minute(server: WebServer, batches: Any, waits_for: Callable[[], str]) -> list[int]:
    """Go through an epoch during which the server refuses everything for a while; returns the rows by their pixels."""
    seen = [next(batches)[0]]
    server.set_faults(BUSY)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(lambda: [x for x, _ in batches])
        # What was asked for before still comes.
        while SAYS not in waits_for():
            assert not rest.done(), "nobody said that it is waited for"
            time.sleep(0.02)
        time.sleep(MORE_S)
        server.set_faults()
        seen += rest.result()
    return sorted(int(row.flatten()[0]) for x in seen for row in x)


def test_an_epoch_from_the_web_goes_on_after_it(archive: Path, tmp_path: Path) -> None:
    board = Board(lambda _: None, interval_s=0.01)
    with WebServer({"data.zip": archive}, knobs=PACED) as server:
        url = server.url("data.zip")
        data = stage_dataset(url, local_dir=tmp_path, cache_dir=None, progress=board, streaming=True)
        batches = iter(data.loader("train", BATCH))

        def note() -> str:
            return board.rows()[-1].note

        assert epoch_with_a_bad_minute(server, batches, note) == EVERY
        data.wait(progress=False)
        assert SAYS not in note()
        server.set_knobs(WebKnobs())
        whole = stage_dataset(url, local_dir=tmp_path / "b", cache_dir=None, progress=False)
    assert data.path.read_bytes() == whole.path.read_bytes()


def test_an_epoch_of_what_exceeds_the_disk_limit_goes_on_after_it(archive: Path, tmp_path: Path) -> None:
    pack = stage_dataset(archive, local_dir=tmp_path / "a", cache_dir=None, progress=False).path
    files = {"data.h5": pack, "data.h5.json": pack.with_name(f"{pack.name}.json")}
    with WebServer(files, knobs=PACED) as server:
        dataset = dataset_h5(server.url("data.h5"), disk_limit="62MB", local_dir=tmp_path)
        part = dataset.reader.arrival
        assert isinstance(part, PartialPack)
        with closing(part):
            seen = epoch_with_a_bad_minute(server, iter(make_loader(dataset, BATCH)), lambda: part.waits_for)
            assert seen == EVERY
            assert part.waits_for == ""

"""A source from which nothing comes any more in the middle of an epoch, although connections stay open: an error at the
batch that needs what did not come, with what is here, within the deadline; the next call continues."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from colabstage import dataset_h5, make_loader
from colabstage.errors import SourceReadError
from colabstage.h5.manifest import manifest_path
from colabstage.io.files import RetryPolicy
from colabstage.sources import http_file, in_part, opening
from colabstage.sources.in_part import BlockwiseFile
from tests.load.test_partial import BLOCK, LIMIT, ROWS, Pack, check_epoch, make_pack, part_of
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.numbered import note_numbers, numbers_of, stream_archive, write_archive

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

COUNT, BATCH = 120, 4
# Instead of half a minute for each answer, and one in which it is asked again.
SILENCE_S, PATIENCE_S = 0.5, 0.5
# Four tries and the waits between them, on a busy machine.
DEADLINE_S = 20.0
STALL, HANG = WebFault(kind="stall", min_bytes=4000), WebFault(kind="hang", min_bytes=4000)


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = http_file.open_http.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", SILENCE_S)
    for module in (opening, in_part):
        monkeypatch.setattr(module, "PATIENT", RetryPolicy(first_wait_s=0.05, patience_s=PATIENCE_S))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(tmp_path_factory.mktemp("archive") / "data.zip", COUNT)


def test_a_streamed_archive_of_the_web(archive: Path, tmp_path: Path) -> None:
    with WebServer({"data.zip": archive}, knobs=WebKnobs(bytes_per_s=5e5)) as server:
        data = stream_archive(server, tmp_path)
        batches = iter(data.loader("train", BATCH))
        seen = numbers_of([next(batches)])
        server.set_faults(STALL)
        began = time.monotonic()
        told = r"(\d+) of 120 images are here, and are kept\. .* continues from there"
        with pytest.raises(SourceReadError, match=told) as failed:
            note_numbers(batches, seen)
        assert time.monotonic() - began < DEADLINE_S
        with pytest.raises(SourceReadError):
            data.wait(progress=False)
        here = data.ready.rows
        server.set_faults()
        again = stream_archive(server, tmp_path)
        # Of each unit that was begun up to seven samples are packed again.
        assert here >= again.ready.rows > here // 2
        assert numbers_of(again.loader("train", BATCH))[: len(seen)] == seen
        again.wait(progress=False)
        (kept,) = re.findall(told, str(failed.value))
        assert f"{kept} were already in place" in " ".join(str(again.report).split())
    assert again.figures["kept"] > 0


@pytest.mark.parametrize("fault", [STALL, HANG], ids=["stall", "hang"])
def test_a_part_of_a_pack_on_the_web(fault: WebFault, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "data.h5")
    files = {"data.h5": pack.path, "data.h5.json": manifest_path(pack.path)}
    with WebServer(files, knobs=WebKnobs(bytes_per_s=1e6)) as server:
        dataset = dataset_h5(server.url("data.h5"), disk_limit=LIMIT, local_dir=tmp_path / "a", return_index=True)
        with closing(part_of(dataset)):
            left_in_the_middle(dataset, pack, lambda: server.set_faults(fault), server.set_faults)


def left_in_the_middle(
    dataset: dataset_h5, pack: Pack, stall: Callable[[], object], go_on: Callable[[], object]
) -> None:
    """Go through an epoch in whose middle nothing comes for a while."""
    loader, part, seen = make_loader(dataset, 50, seed=1), part_of(dataset), list[int]()
    assert isinstance(part.file, BlockwiseFile)

    def train() -> None:
        for (x, _), index in loader:
            np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), pack.x[index.numpy()])
            seen.extend(index.tolist())
            if len(seen) == 100:
                stall()

    began = time.monotonic()
    with pytest.raises(SourceReadError, match=r"blocks \d+"):
        train()
    assert time.monotonic() - began < DEADLINE_S
    here, fetched = np.flatnonzero(part.file.state), part.figures["fetched"]
    go_on()
    with part.file.hold(here[:4]):
        assert part.figures["fetched"] - fetched <= 16 * BLOCK
    loader.load_state_dict(loader.state_dict())
    seen += check_epoch(loader, pack)
    assert sorted(seen) == list(range(ROWS))

"""A source from which nothing comes any more in the middle of an epoch, although connections stay open: an error at the
batch that needs what did not come, with what is here, within the deadline; the next call continues."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import SourceReadError
from colabstage.io.files import RetryPolicy
from colabstage.sources import http_file, opening
from colabstage.sources.partial import fetcher
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.numbered import note_numbers, numbers_of, stream_archive, write_archive

if TYPE_CHECKING:
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
    for module in (opening, fetcher):
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
        assert f"{kept} were already in place" in str(again.report)
    assert again.figures["kept"] > 0

"""A server that refuses everything for longer than a few tries take: how long it is asked, how often, what is said."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage.errors import SourceReadError
from colabstage.io.files import PATIENT, RetryPolicy
from colabstage.sources.arriving import StreamingCopy
from colabstage.sources.http_file import open_http
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 50_000_000
PACED = WebKnobs(total_bytes_per_s=20e6)
SAYS = "cannot answer now: 503 Service Unavailable"


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(0).bytes(SIZE)


def copy_of(url: str, target: Path, step: Any, policy: RetryPolicy, connections: int = 16) -> StreamingCopy:
    return StreamingCopy(open_http(url), target, step=step, policy=policy, connections=connections)


def test_who_is_refused_for_longer_than_patience_lasts_is_told_and_keeps_what_came(
    content: bytes, tmp_path: Path, step: Any
) -> None:
    """The tries are those of one connection by then, ever more rarely."""
    policy, began = RetryPolicy(first_wait_s=0.05, patience_s=2.0), time.monotonic()
    with WebServer({"data.bin": content}, knobs=PACED) as server:
        # All but the first look and three blocks.
        server.set_faults(WebFault(kind="status", status=503, after=4))
        with copy_of(server.url("data.bin"), tmp_path / "copy", step, policy, 2) as copy:
            with pytest.raises(SourceReadError, match=rf"{SAYS}.* \d+ tries"):
                copy.wait()
            assert time.monotonic() - began > policy.patience_s
            refused = sum(request.status == 503 for request in server.requests)
            assert refused < 2 * policy.attempts + 12
        server.set_faults()
        server.set_knobs(WebKnobs())
        with copy_of(server.url("data.bin"), tmp_path / "copy", step, PATIENT) as copy:
            copy.wait()
            assert copy.kept_bytes > 0
            copy.move_to(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


def test_a_server_that_says_when_to_come_again_is_left_alone_until_then(
    content: bytes, tmp_path: Path, step: Any
) -> None:
    policy = RetryPolicy(attempts=1, first_wait_s=0.01, patience_s=3.0)
    with WebServer({"data.bin": content}) as server:
        server.set_faults(WebFault(kind="status", status=503, retry_after="1", min_bytes=10_000))
        with copy_of(server.url("data.bin"), tmp_path / "copy", step, policy) as copy:
            with pytest.raises(SourceReadError, match="1 seconds"):
                copy.wait()
            # Each of sixteen connections once, and one of them each second.
            assert 17 < sum(request.status == 503 for request in server.requests) <= 16 + 4

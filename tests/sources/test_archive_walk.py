"""Looking through a tar that is far away: few requests, and the members that a look at the file itself finds."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from colabstage.io.progress import Cancellation, LateStep, Progress
from colabstage.sources.arriving import STRETCH_BYTES, ArchiveWalk, StreamingCopy
from colabstage.sources.http_file import open_http
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.tar import scan_members
from tests.support.far import POLICY
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from pathlib import Path

MB = 1_000_000
SIZES = {
    "small": [5_000] * 1000,
    "mixed": [5_000] * 300 + [20 * MB, 3, 0] * 2 + [5_000] * 300,
}


@pytest.mark.parametrize("kind", list(SIZES))
def test_headers_are_found_with_few_requests(tmp_path: Path, kind: str) -> None:
    """Small members are read through in stretches, large ones are passed over."""
    path, sizes = tmp_path / "photos.tar", SIZES[kind]
    with tarfile.open(path, "w") as archive:
        for number, size in enumerate(sizes):
            member = tarfile.TarInfo(f"folder/{number:05}.bin")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    size = path.stat().st_size
    with WebServer({"photos.tar": path}) as server:
        file = open_http(server.url("photos.tar"))
        copy = StreamingCopy(
            file,
            tmp_path / "copy",
            step=Progress().step("copy", total=size, unit="B"),
            policy=POLICY,
            cancellation=Cancellation(),
        )
        with ArchiveWalk(copy, LateStep(Progress(), "look", size)) as walk:
            found = list(scan_members(walk))
            walk.end()
            assert walk.pread(512, 0) == path.read_bytes()[:512]
        file.close()
        sent = sum(1 for one in server.requests if one.method == "GET")
    with LocalBytes(path) as here:
        assert found == list(scan_members(here))
    # One for each stretch of small members, two or three for a large one, and what was on its way when one came.
    large = sum(one > STRETCH_BYTES for one in sizes)
    assert sent < size / STRETCH_BYTES + 20 if not large else sent < 60

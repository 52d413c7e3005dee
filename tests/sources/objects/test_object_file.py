"""What fsspec's facts, which every backend names its own way, say of an object."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest

from colabstage.sources.fsspec_answers import checksum_of, mtime_ns_of, version_of
from colabstage.sources.remote import Checksum

NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
NOON_NS = 1_772_366_400_250_000_000
MD5 = hashlib.md5(b"x", usedforsecurity=False).digest()


@pytest.mark.parametrize(
    ("info", "time_ns"),
    [
        ({"LastModified": NOON}, NOON_NS),
        ({"last_modified": NOON.replace(tzinfo=None)}, NOON_NS),
        ({"mtime": NOON.timestamp()}, NOON_NS),
        ({"updated": "2026-03-01T12:00:00.250Z"}, NOON_NS),
        ({"modify": "20260301120000.250"}, NOON_NS - 250_000_000),
        ({"modify": "Mar  1 12:00"}, 0),
        ({"size": 3}, 0),
    ],
)
def test_times_are_read_from_every_backend(info: dict[str, Any], time_ns: int) -> None:
    """Datetimes, seconds, ISO texts and FTP's digits; an `ls -l` without the year is no time."""
    assert mtime_ns_of(info) == time_ns


def test_versions_change_with_the_content() -> None:
    """The service's own mark where it has one, else time and size; where there is nothing, nothing is claimed."""
    assert version_of({"ETag": '"ab"', "LastModified": NOON}) == "ab"
    assert version_of({"generation": "17", "etag": "x"}) == "17"
    assert version_of({"mtime": 5.0, "size": 3}) != version_of({"mtime": 5.0, "size": 4})
    assert version_of({"size": 3}) == ""


def test_only_certain_hashes_count() -> None:
    """Google's md5 of what is handed out and a hub's sha256 do; ETags and Azure's field do not."""
    coded = base64.b64encode(MD5).decode()
    assert checksum_of({"md5Hash": coded}) == Checksum("md5", MD5.hex())
    assert checksum_of({"lfs": {"sha256": "ab" * 32}}) == Checksum("sha256", "ab" * 32)
    assert checksum_of({"md5Hash": coded, "contentEncoding": "gzip"}) is None
    assert checksum_of({"ETag": MD5.hex(), "content_settings": {"content_md5": MD5}}) is None
    assert checksum_of({"lfs": None}) is None

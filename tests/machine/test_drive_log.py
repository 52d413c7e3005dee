"""A used-up download quota, told from other input/output errors by the client's log."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import SourceChangedError, SourceReadError
from colabstage.machine.drive_errors import drive_log_path, drive_log_size, quota_error

if TYPE_CHECKING:
    from pathlib import Path

MARK = "x" * 3_000_000 + "\nQUOTA_EXCEEDED\n"
YESTERDAY = "yesterday: QUOTA_EXCEEDED\n"


@pytest.mark.parametrize(
    ("log", "kind", "number", "is_quota"),
    [
        (YESTERDAY + MARK, SourceReadError, errno.EIO, True),
        # A client that was mounted again begins its log anew.
        ("QUOTA_EXCEEDED", SourceReadError, errno.EIO, True),
        (YESTERDAY, SourceReadError, errno.EIO, False),
        (YESTERDAY + MARK, SourceReadError, errno.EACCES, False),
        (YESTERDAY + MARK, SourceChangedError, errno.EIO, False),
        (None, SourceReadError, errno.EIO, False),
    ],
)
def test_only_a_mark_that_is_written_meanwhile_makes_it_a_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: str | None,
    kind: type[SourceReadError],
    number: int,
    is_quota: bool,
) -> None:
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    path = drive_log_path()
    path.parent.mkdir(parents=True)
    assert drive_log_size() == 0
    path.write_text(YESTERDAY, encoding="ascii")
    size = drive_log_size()
    path.unlink()
    if log is not None:
        path.write_text(log, encoding="ascii")
    failure = kind("Reading 'a.zip' failed after 4 tries.")
    failure.__cause__ = OSError(number, "no")
    found = quota_error(failure, size)
    assert (found is not None) is is_quota
    assert found is None or "a.zip" in str(found)

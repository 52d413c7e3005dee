"""A used-up download quota, told from other input/output errors by the client's log."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import SourceChangedError, SourceReadError
from colabstage.machine.drive_errors import drive_log_path, drive_log_size, quota_error

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's log on a practice machine, with a line of yesterday's quota."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    path = drive_log_path()
    path.parent.mkdir(parents=True)
    path.write_text("yesterday: QUOTA_EXCEEDED\n", encoding="ascii")
    return path


def failure(number: int = errno.EIO) -> SourceReadError:
    """A read that failed after its retries, as they raise it."""
    error = SourceReadError("Reading 'a.zip' failed after 4 tries.")
    error.__cause__ = OSError(number, "no")
    return error


def test_a_mark_written_meanwhile_makes_it_a_quota(log: Path) -> None:
    """The message keeps what failed, and says to make a copy or to wait."""
    size = drive_log_size()
    with log.open("a", encoding="ascii") as file:
        file.write("x" * 3_000_000 + "\nQUOTA_EXCEEDED\n")
    found = quota_error(failure(), size)
    assert found is not None
    assert "a.zip" in str(found)
    assert "24 hours" in str(found)


def test_an_older_mark_means_nothing(log: Path) -> None:
    """What the log said before the work began has another reason."""
    assert quota_error(failure(), drive_log_size()) is None


def test_a_log_that_was_begun_anew_is_read_from_its_beginning(log: Path) -> None:
    """A client that was mounted again begins its log anew."""
    size = drive_log_size()
    log.write_text("QUOTA_EXCEEDED", encoding="ascii")
    assert quota_error(failure(), size) is not None


def test_other_errors_stay_what_they_are(log: Path) -> None:
    """Another errno, and a source that changed, are no quota, whatever the log says; nor is anything without a log."""
    assert quota_error(failure(errno.EACCES), 0) is None
    changed = SourceChangedError("it changed")
    changed.__cause__ = OSError(errno.EIO, "no")
    assert quota_error(changed, 0) is None
    assert quota_error(failure(), 0) is not None
    log.unlink()
    assert drive_log_size() == 0
    assert quota_error(failure(), 0) is None

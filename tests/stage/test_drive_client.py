"""What Drive's client tells: MD5s that count, and a used-up quota among other input/output errors."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, plan_stage, stage_dataset
from colabstage.errors import ColabstageError, DriveQuotaError
from simulated_drive.drive import SimulatedDrive
from tests.support.deadlines import lose_patience, shorten_deadlines
from tests.support.images import make_tree

pytestmark = pytest.mark.fuse
NUMBERS = {f"{kind}/{number}.bmp": 10 * number for kind in ("cat", "dog") for number in range(20)}


@pytest.fixture
def photos(drive: SimulatedDrive, my_drive: Path) -> Path:
    """Forty images on Drive."""
    make_tree(drive.cloud / "MyDrive/photos", NUMBERS)
    return my_drive / "photos"


def look(photos: Path) -> tuple[str, str]:
    """Stage; where from, and what the look at the source says."""
    report = stage_dataset(photos, cache_dir=None, image_size=4, progress=False).report
    return report.origin, " ".join(step.note for step in report.steps)


def test_an_md5_counts_only_where_all_vouches_for_it(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one, and of what is here, too, and not of a file that waits for its upload, or may; of all files or of
    none."""
    assert look(photos)[0] == "source"
    whole, changes = os.getxattr, dict[str, str]()

    def getxattr(path: Any, name: str, **options: Any) -> bytes:
        answer = changes.get(name.rpartition(".")[2]) if os.fspath(path).endswith("dog/7.bmp") else None
        if answer == "":
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return answer.encode() if answer else whole(path, name, **options)

    monkeypatch.setattr(os, "getxattr", getxattr)
    for changes in ({}, {"uncommitted": "1"}, {"uncommitted": ""}, {"md5": "none"}):
        origin, note = look(photos)
        assert (origin, "MD5s" in note) == ("local", not changes), changes


def test_a_client_that_hangs_is_not_waited_for_for_ever(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look(photos)
    over, whole = threading.Event(), os.getxattr

    def getxattr(path: Any, name: str, **options: Any) -> bytes:
        over.wait(60)
        return whole(path, name, **options)

    shorten_deadlines("machine", 0.3, monkeypatch.setattr)
    monkeypatch.setattr(os, "getxattr", getxattr)
    try:
        origin, note = look(photos)
        assert (origin, "MD5s" in note) == ("local", False)
    finally:
        over.set()


MARK = "x" * 3_000_000 + "\nQUOTA_EXCEEDED\n"
YESTERDAY = "yesterday: QUOTA_EXCEEDED\n"


LOGS: list[tuple[str | None, int, bool]] = [
    (YESTERDAY + MARK, errno.EIO, True),
    # A client that was mounted again begins its log anew.
    ("QUOTA_EXCEEDED", errno.EIO, True),
    (YESTERDAY, errno.EIO, False),
    (YESTERDAY + MARK, errno.EACCES, False),
    (YESTERDAY, errno.EOPNOTSUPP, False),
    (None, errno.EIO, False),
]


def test_only_a_mark_that_is_written_meanwhile_makes_it_a_quota(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "root/.config/Google/DriveFS/Logs/drive_fs.txt"
    path.parent.mkdir(parents=True)
    lose_patience("sources", 0.2, monkeypatch.setattr)
    image = photos / "cat/0.bmp"
    calls: list[Callable[[], object]] = [
        lambda: fetch_files(image, tmp_path / "here.bmp", progress=False),
        lambda: plan_stage(image, cache_dir=None),
    ]
    for log, number, is_quota in LOGS:

        def failing(handle: int, *_: Any, log: str | None = log, number: int = number) -> bytes:
            path.unlink(missing_ok=True)
            if log is not None:
                path.write_text(log, encoding="ascii")
            raise OSError(number, os.strerror(number))

        for call in calls:
            path.write_text(YESTERDAY, encoding="ascii")
            with monkeypatch.context() as patch:
                patch.setattr(os, "pread", failing)
                with pytest.raises(ColabstageError, match=r"0\.bmp") as raised:
                    call()
            assert isinstance(raised.value, DriveQuotaError) is is_quota, (log, number)
            assert ("Google's own documents" in str(raised.value)) is (number == errno.EOPNOTSUPP)

"""What Drive's client tells: MD5s that count, and a used-up quota among other input/output errors."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, plan_stage, publish_file, stage_dataset
from colabstage.errors import ColabstageError, DriveQuotaError
from simulated_drive.drive import SimulatedDrive
from tests.support.deadlines import lose_patience, shorten_deadlines
from tests.support.images import make_tree
from tests.support.steps import wait_until

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
    return report.origin, report.steps[0].note


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
        assert (origin, "dog/7.bmp" in note) == ("local", bool(changes)), changes


def test_a_client_that_hangs_is_waited_for_once(
    photos: Path, drive: SimulatedDrive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of question shares that, and readers of files, whose content may well come, are not held up for ever
    either; once the old one has been answered, the client is asked again."""
    look(photos)
    make_tree(drive.cloud / "MyDrive/others", {"cat/1.bmp": 1, "dog/2.bmp": 2})
    (tmp_path / "model.pt").write_bytes(b"x" * 1000)
    over, whole, asked = threading.Event(), os.getxattr, list[str]()

    def getxattr(path: Any, name: str, **options: Any) -> bytes:
        asked.append(name)
        over.wait(60)
        return whole(path, name, **options)

    shorten_deadlines("machine", 0.3, monkeypatch.setattr)
    monkeypatch.setattr(os, "getxattr", getxattr)
    try:
        assert "did not answer" in look(photos)[1]
        once = len(asked)
        published = publish_file(tmp_path / "model.pt", photos.parent, wait_uploaded=True, progress=False)
        assert "did not answer" in str(published)
        assert look(photos.with_name("others"))[0] == "source"
        assert len(asked) == once
    finally:
        over.set()
    wait_until(lambda: "would not be noticed" not in look(photos)[1])


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

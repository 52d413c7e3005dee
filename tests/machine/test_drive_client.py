"""What Drive's client reports: MD5s that count, and a used-up quota among other input/output errors."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from colabstage.errors import SourceChangedError, SourceReadError
from colabstage.machine import drive_attributes
from colabstage.machine.drive_attributes import Md5Questions, ask_md5s, wait_uploaded
from colabstage.machine.drive_errors import drive_log_path, drive_log_size, quota_error
from tests.support.steps import wait_until

if TYPE_CHECKING:
    from pathlib import Path


MD5 = "0cc175b9c0f1b6a831c399e269772661"
SILENT = "it did not answer for 0 s"
Attributes = dict[str, str]


class Client:
    """Responds for a mount: attributes by path; counts the requests."""

    def __init__(self, files: dict[str, Attributes], monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = files
        self.asked = 0
        monkeypatch.setattr(os, "getxattr", self.getxattr)

    def getxattr(self, path: str, name: str) -> bytes:
        self.asked += 1
        try:
            return self.files[os.fspath(path)][name.rpartition(".")[2]].encode()
        except KeyError:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA)) from None


@pytest.mark.parametrize(
    ("attributes", "md5"),
    [
        ({"md5": MD5, "uncommitted": "0"}, MD5),
        ({"md5": MD5, "uncommitted": "1"}, ""),
        ({"md5": MD5}, ""),
        ({"md5": "none", "uncommitted": "0"}, ""),
        ({}, ""),
    ],
)
def test_an_md5_counts_only_where_all_vouches_for_it(
    monkeypatch: pytest.MonkeyPatch, attributes: Attributes, md5: str
) -> None:
    """It is an MD5, and that of the local content too; otherwise the reason names the file."""
    Client({"a.bin": attributes}, monkeypatch)
    md5s, why = ask_md5s(["a.bin"])
    assert (md5s, "a.bin" in why) == ([md5] if md5 else [], not md5)


def test_many_are_asked_at_once_and_all_count_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client({f"{number}": {"md5": f"{number:032x}", "uncommitted": "0"} for number in range(200)}, monkeypatch)
    names, md5s = list(client.files), [one["md5"] for one in client.files.values()]
    heard: list[int] = []
    with Md5Questions(on_response=lambda: heard.append(1)) as questions:
        assert questions.answers(names) == (md5s, "")
    assert len(heard) == 200
    assert ask_md5s([]) == ([], "")
    client.files["150"]["uncommitted"] = "1"
    found, why = ask_md5s(names)
    assert (found, "'150'" in why) == ([], True)
    client.files["0"].clear()
    client.asked = 0
    assert not ask_md5s(names)[0]
    assert client.asked == 1


def test_a_file_is_asked_for_by_whoever_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; the others are queried while waiting for all answers."""
    client = Client({f"{number}": {"md5": f"{number:032x}", "uncommitted": "0"} for number in range(100)}, monkeypatch)
    with Md5Questions() as questions:
        for path in ("0", "7", "7"):
            questions.ask_before_read(path)
        assert client.asked == 4
        assert questions.answers([*client.files]) == ([one["md5"] for one in client.files.values()], "")
    assert client.asked == 200


def test_a_client_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All kinds of queries share that; once the old one has been answered, the client is queried again."""
    over, never = threading.Event(), cast("Any", SimpleNamespace(check=lambda: None))
    asked: list[str] = []

    def getxattr(path: str, name: str) -> bytes:
        asked.append(name)
        over.wait(60)
        return b"0"

    monkeypatch.setattr(drive_attributes, "_STALL_S", 0.2)
    monkeypatch.setattr(os, "getxattr", getxattr)
    path = tmp_path / "a"
    try:
        for _ in range(2):
            assert ask_md5s([str(path), "b"]) == ([], SILENT)
            assert SILENT in wait_uploaded({path: MD5}, timeout_s=60, cancellation=never)
            with Md5Questions() as questions:
                # A reader of the file, whose content may well arrive, does not wait for ever either.
                questions.ask_before_read(str(path))
                assert questions.answers([str(path)]) == ([], SILENT)
        assert len(asked) == 1
    finally:
        over.set()
    wait_until(lambda: "no MD5 is reported ('0')" in ask_md5s([str(path)])[1])


MARK = "x" * 3_000_000 + "\nQUOTA_EXCEEDED\n"
YESTERDAY = "yesterday: QUOTA_EXCEEDED\n"


@pytest.mark.parametrize(
    ("log", "kind", "number", "is_quota"),
    [
        (YESTERDAY + MARK, SourceReadError, errno.EIO, True),
        # A remounted client starts a new log.
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

"""What Drive's client tells of files, and what counts where it does not."""

from __future__ import annotations

import errno
import os
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from colabstage.machine import drive_attributes
from colabstage.machine.drive_attributes import (
    ClientFacts,
    Md5Questions,
    ask_client,
    ask_md5s,
    wait_uploaded,
)

if TYPE_CHECKING:
    from pathlib import Path

MD5 = "0cc175b9c0f1b6a831c399e269772661"
Attributes = dict[str, str]


class Client:
    """Answers for a mount: attributes by the last part of a path; counts what it was asked."""

    def __init__(self, files: dict[str, Attributes]) -> None:
        self.files = files
        self.asked = 0

    def getxattr(self, path: str, name: str) -> bytes:
        """As `os.getxattr`."""
        self.asked += 1
        try:
            return self.files[os.fspath(path)][name.rpartition(".")[2]].encode()
        except KeyError:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA)) from None


@pytest.mark.parametrize(
    ("attributes", "md5", "uncommitted", "why"),
    [
        ({"id": "1a", "md5": MD5, "uncommitted": "0"}, MD5, False, ""),
        ({"id": "1a", "md5": f"{MD5}\0", "uncommitted": "0"}, MD5, False, ""),
        ({"id": "1a", "md5": MD5, "uncommitted": "1"}, "", True, "is not uploaded yet"),
        ({"id": "1a", "md5": MD5}, "", None, "no word on whether it is uploaded"),
        ({"id": "1a", "uncommitted": "0"}, "", False, "no MD5 is reported (No data available)"),
        ({"id": "1a", "md5": "none", "uncommitted": "0"}, "", False, "no MD5 is reported ('none')"),
    ],
)
def test_an_md5_counts_only_where_all_vouches_for_it(
    monkeypatch: pytest.MonkeyPatch, attributes: Attributes, md5: str, uncommitted: bool | None, why: str
) -> None:
    """It is one, and of what is here, too."""
    monkeypatch.setattr(os, "getxattr", Client({"a": attributes}).getxattr)
    facts = ask_client("a")
    assert facts == ClientFacts("1a", md5, uncommitted, facts.why)
    assert why in facts.why
    assert bool(facts.why) is not bool(md5)


def test_a_local_disk_tells_nothing(tmp_path: Path) -> None:
    """And says so."""
    (tmp_path / "a").write_bytes(b"a")
    facts = ask_client(tmp_path / "a")
    assert (facts.id, facts.md5, facts.uncommitted) == ("", "", None)
    assert str(tmp_path / "a") in facts.why


def test_many_are_asked_at_once_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them or none: one that nothing vouches for leaves the folder unproved."""
    files = {f"{number}": {"md5": f"{number:032x}", "uncommitted": "0"} for number in range(200)}
    client = Client(files)
    monkeypatch.setattr(os, "getxattr", client.getxattr)
    heard: list[int] = []
    assert ask_md5s(list(files), heard=lambda: heard.append(1)) == ([one["md5"] for one in files.values()], "")
    assert len(heard) == 200
    assert ask_md5s([]) == ([], "")
    files["150"]["uncommitted"] = "1"
    assert ask_md5s(list(files)) == ([], "'150' is not uploaded yet")
    files["0"].clear()
    client.asked = 0
    assert not ask_md5s(list(files))[0]
    assert client.asked == 1


def test_a_client_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is left behind; nothing is told."""
    over = threading.Event()
    monkeypatch.setattr(drive_attributes, "_STALL_S", 0.1)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"0" * over.wait(60))
    try:
        assert ask_md5s(["a", "b"]) == ([], "it did not answer for 0 s")
        with Md5Questions() as questions:
            # Whoever reads a file, whose content may well come, is not held up for ever either.
            questions.ask_before_read("a")
            assert questions.answers(["a", "b"]) == ([], "it did not answer for 0 s")
        assert ask_client("a").why == "'a': it did not answer for 0 s"
    finally:
        over.set()


def test_a_client_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every kind of question shares that; once the old one has been answered, the client is asked again."""
    over, never = threading.Event(), cast("Any", SimpleNamespace(check=lambda: None))
    answered: list[str] = []

    def getxattr(path: str, name: str) -> bytes:
        answered.append(name)
        over.wait(60)
        return b"0"

    monkeypatch.setattr(drive_attributes, "_STALL_S", 0.5)
    monkeypatch.setattr(os, "getxattr", getxattr)
    path = tmp_path / "a"
    try:
        for _ in range(5):
            assert ask_md5s([str(path)]) == ([], "it did not answer for 0 s")
            assert "did not answer" in ask_client(path).why
            assert "did not answer" in wait_uploaded({path: MD5}, timeout_s=60, cancellation=never)
        assert len(answered) == 1
    finally:
        over.set()
    deadline = time.monotonic() + 60
    while not (facts := ask_client(path)).id and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (facts.id, facts.uncommitted) == ("0", False)


def test_a_file_is_asked_for_by_whoever_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; the others are asked for when all answers are waited for."""
    client = Client({f"{number}": {"md5": f"{number:032x}", "uncommitted": "0"} for number in range(100)})
    monkeypatch.setattr(os, "getxattr", client.getxattr)
    with Md5Questions() as questions:
        for path in ("0", "7", "7"):
            questions.ask_before_read(path)
        assert client.asked == 4
        assert questions.answers([*client.files]) == ([one["md5"] for one in client.files.values()], "")
    assert client.asked == 200
    with Md5Questions() as questions:
        questions.ask_before_read("0")
        client.files["7"].clear()
        questions.ask_before_read("7")
        client.asked = 0
        questions.ask_before_read("8")
        assert questions.answers([*client.files])[1].startswith("'7': no word on whether it is uploaded")
        assert client.asked == 0

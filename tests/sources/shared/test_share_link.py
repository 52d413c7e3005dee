"""Google Drive share links: the forms people paste, and downloads from an imitated Drive on loopback."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import (
    CancelledError,
    ChecksumMismatchError,
    ColabstageError,
    DriveQuotaError,
    OptionError,
    SourceAccessError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
    WebPageError,
)
from colabstage.h5.manifest import BLOCK_BYTES
from colabstage.io.files import RetryPolicy
from colabstage.io.progress import Cancellation, NullProgress
from colabstage.sources.http_answers import disposition_name
from colabstage.sources.remote import Checksum, TransientError
from colabstage.sources.share_download import download_share_link, share_link_facts
from colabstage.sources.share_pages import ShareLink, WebAnswer, judge_answer, parse_share_link, safe_name
from colabstage.sources.share_service import SharedFile, name_apart
from tests.support.https_hosts import HostAnswer, HostRequest, answer_page
from tests.support.share_links import DriveShares, SharedItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

FILE = "1FileAbcdefghijklmnopqrstuvwxyz_0"
FOLDER = "1FolderAbcdefghijklmnopqrstuvwxy0"
LINK = ShareLink("file", FILE)
QUICK = RetryPolicy(attempts=2, first_wait_s=0.01)
SCAN_LIMIT = 1_000_000


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriveShares]:
    """An imitated Google Drive that this process is led to."""
    with DriveShares(tmp_path, scan_limit_bytes=SCAN_LIMIT) as shares:
        for name, value in shares.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield shares


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The caller's folder."""
    return tmp_path / "out"


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place."""
    return hashlib.shake_128(str(seed).encode()).digest(size)


def item_id(number: int) -> str:
    """An id as Drive makes them."""
    return f"1Item{number:028d}"


def change(drive: DriveShares, number: str, **changes: object) -> None:
    """Change an item on the Drive."""
    drive.add(replace(drive.item(number), **changes))  # type: ignore[arg-type]  # replace checks the names


def fetch(link: ShareLink, out: Path, **options: object) -> Path:
    """Download with few and quick tries."""
    given = {"progress": NullProgress(), "cancellation": Cancellation(), "policy": QUICK, **options}
    return download_share_link(link, out, **given)  # type: ignore[arg-type]  # tests give what it takes


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [
        ("https://drive.google.com/file/d/{}/view?usp=sharing", "file", ""),
        ("https://drive.google.com/file/d/{}/view?usp=drive_link&resourcekey=0-aB_c", "file", "0-aB_c"),
        ("http://drive.google.com/file/d/{}/edit", "file", ""),
        ("https://drive.google.com/file/d/{}/preview", "file", ""),
        ("https://drive.google.com/file/d/{}", "file", ""),
        ("https://drive.google.com/file/u/1/d/{}/view", "file", ""),
        ("https://drive.google.com/a/example.org/file/d/{}/view", "file", ""),
        ("  <https://drive.google.com/file/d/{}/view>  ", "file", ""),
        ("drive.google.com/file/d/{}/view", "file", ""),
        ("https://drive.google.com/uc?id={}&export=download", "file", ""),
        ("https://drive.google.com/uc?export=download&confirm=t&id={}", "file", ""),
        ("https://docs.google.com/uc?export=download&id={}", "file", ""),
        ("https://docs.google.com/file/d/{}/edit", "file", ""),
        ("https://drive.usercontent.google.com/download?id={}&export=download&authuser=0", "file", ""),
        ("https://drive.google.com/open?id={}", "unknown", ""),
        ("https://drive.google.com/open?id={}&usp=drive_copy", "unknown", ""),
        ("https://drive.google.com/drive/folders/{}?usp=sharing", "folder", ""),
        ("https://drive.google.com/drive/u/0/folders/{}", "folder", ""),
        ("https://drive.google.com/drive/mobile/folders/{}", "folder", ""),
        ("https://drive.google.com/drive/folders/{}?resourcekey=0-xyz", "folder", "0-xyz"),
        ("https://drive.google.com/folderview?id={}", "folder", ""),
        ("https://drive.google.com/embeddedfolderview?id={}#list", "folder", ""),
        ("https://drive.google.com/#folders/{}", "folder", ""),
        ("gdrive://{}", "unknown", ""),
        ("gdrive://folders/{}", "folder", ""),
        ("gdrive://file/{}", "file", ""),
        ("gdrive://{}?resourcekey=0-k", "unknown", "0-k"),
    ],
)
def test_every_pasted_form_is_understood(text: str, kind: str, key: str) -> None:
    """Each form of a link gives its id, its kind where the form tells, and its resource key."""
    assert parse_share_link(text.format(FILE)) == ShareLink(kind, FILE, key)  # type: ignore[arg-type]  # from the table


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/file/d/1FileAbcdefghijklmnopqrstuvwxyz_0/view",
        "https://drive.google.com.evil.org/file/d/1FileAbcdefghijklmnopqrstuvwxyz_0",
        "https://colab.research.google.com/drive/1FileAbcdefghijklmnopqrstuvwxyz_0",
        "/content/drive/MyDrive/data.zip",
        "drive.google.com.zip",
        "ftp://drive.google.com/file/d/1FileAbcdefghijklmnopqrstuvwxyz_0",
        "http://[broken",
        FILE,
        "",
    ],
)
def test_what_is_no_drive_link_is_left_to_others(text: str) -> None:
    """Other addresses, paths and, unless asked for, lone ids are no share links."""
    assert parse_share_link(text) is None


def test_a_lone_id_counts_where_the_caller_says_so() -> None:
    """An id without an address is taken only on request."""
    assert parse_share_link(FILE, bare_id=True) == ShareLink("unknown", FILE)
    assert parse_share_link("train.zip", bare_id=True) is None


@pytest.mark.parametrize("kind", ["document", "spreadsheets", "presentation", "forms"])
def test_google_documents_are_refused_with_the_remedy(kind: str) -> None:
    """A document has no file behind it; the message says how to make one."""
    with pytest.raises(OptionError, match="File and Download"):
        parse_share_link(f"https://docs.google.com/{kind}/d/{FILE}/edit#gid=0")


@pytest.mark.parametrize(
    "text",
    [
        "https://drive.google.com/drive/my-drive",
        "https://drive.google.com/drive/shared-with-me",
        "gdrive://",
        "drive.google.com",
    ],
)
def test_drive_links_to_nothing_in_particular_are_refused(text: str) -> None:
    """Drive's own pages are neither a file nor a folder."""
    with pytest.raises(OptionError, match="Google Drive"):
        parse_share_link(text)


def test_messages_never_show_a_resource_key() -> None:
    """The label for messages and reports has the id but not the key."""
    link = ShareLink("file", FILE, "0-secret")
    assert FILE in link.label
    assert "secret" not in link.label


def test_a_small_file_arrives_under_its_name(drive: DriveShares, out: Path) -> None:
    """The bytes are the shared ones, the name is Drive's, and nothing else is left."""
    drive.add(SharedItem(FILE, "Größe 数.bin", content=content(70_000)))
    path = fetch(LINK, out)
    assert path == out / "Größe 数.bin"
    assert path.read_bytes() == content(70_000)
    assert list(out.iterdir()) == [path]


def test_a_file_takes_two_requests(drive: DriveShares, out: Path) -> None:
    """One for its facts, and one for all of it: Google counts them."""
    drive.add(SharedItem(FILE, "a.bin", content=content(9_000_000)))
    fetch(LINK, out)
    assert drive.count("/download") == 2


def test_an_empty_file_arrives(drive: DriveShares, out: Path) -> None:
    """A file of no bytes is a file."""
    drive.add(SharedItem(FILE, "empty.txt"))
    assert fetch(LINK, out).read_bytes() == b""


def test_the_page_about_the_virus_scan_is_passed(drive: DriveShares, out: Path) -> None:
    """A file too large for the scan comes through the confirmation form."""
    drive.add(SharedItem(FILE, "large.bin", content=content(SCAN_LIMIT + 1)))
    assert fetch(LINK, out).read_bytes() == content(SCAN_LIMIT + 1)


def test_facts_come_before_the_bytes(drive: DriveShares) -> None:
    """Name and size are known for the plan, without a download."""
    drive.add(SharedItem(FILE, "large.bin", content=content(SCAN_LIMIT + 1)))
    facts = share_link_facts(LINK, policy=QUICK)
    assert facts is not None
    assert (facts.name, facts.size) == ("large.bin", SCAN_LIMIT + 1)
    assert drive.starts(FILE) == []


def test_facts_of_a_folder_have_its_name(drive: DriveShares) -> None:
    """A folder's size would take a request for each file, so it stays open; its version follows the listing."""
    drive.add(SharedItem(FOLDER, "Data & more", kind="folder"))
    facts = share_link_facts(ShareLink("folder", FOLDER), policy=QUICK)
    assert facts is not None
    assert (facts.name, facts.size) == ("Data & more", None)
    drive.add(SharedItem(FILE, "new.bin", content=b"abc"))
    change(drive, FOLDER, entries=(FILE,))
    later = share_link_facts(ShareLink("folder", FOLDER), policy=QUICK)
    assert later is not None
    assert later.version != facts.version


def test_facts_are_none_where_drive_does_not_answer(drive: DriveShares) -> None:
    """A busy server is no reason to refuse a plan."""
    drive.add(SharedItem(FILE, "a.bin", state="busy"))
    assert share_link_facts(LINK, policy=QUICK) is None


def test_a_resource_key_opens_what_needs_one(drive: DriveShares, out: Path) -> None:
    """An older file comes with its key, through the confirmation page too, and is private without."""
    drive.add(SharedItem(FILE, "old.bin", content=content(SCAN_LIMIT + 5), resource_key="0-abc"))
    with pytest.raises(SourceAccessError):
        fetch(LINK, out)
    assert fetch(ShareLink("file", FILE, "0-abc"), out).read_bytes() == content(SCAN_LIMIT + 5)


def test_open_links_find_out_what_they_lead_to(drive: DriveShares, out: Path) -> None:
    """`open?id=` tells nothing of the kind, so Drive is asked."""
    drive.add(SharedItem(FILE, "a.bin", content=b"a"), SharedItem(FOLDER, "Folder", kind="folder", entries=(FILE,)))
    assert fetch(ShareLink("unknown", FOLDER), out) == out / "Folder"
    assert fetch(ShareLink("unknown", FILE), out) == out / "a.bin"


def test_a_document_behind_an_id_is_refused_with_the_remedy(drive: DriveShares, out: Path) -> None:
    """An id alone may be a spreadsheet's; Drive's error 500 is followed up."""
    drive.add(SharedItem(FILE, "Table", kind="spreadsheets"))
    with pytest.raises(OptionError, match="Google Sheets spreadsheet"):
        fetch(LINK, out)


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ("quota", DriveQuotaError, "make a copy in your own Drive"),
        ("rate", DriveQuotaError, "too many requests"),
        ("private", SourceAccessError, "Anyone with the link"),
        ("busy", SourceReadError, "status 503"),
    ],
)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_each_refusal_has_its_error_and_remedy(
    drive: DriveShares, out: Path, kind: str, state: str, error: type[ColabstageError], words: str
) -> None:
    """Pages that Drive gives in place of data become one typed error each, and leave nothing behind."""
    drive.add(SharedItem(FILE, "a.bin", content=b"abc", state=state))  # type: ignore[arg-type]  # from the table
    drive.add(SharedItem(FOLDER, "Folder", kind="folder", entries=(FILE,)))
    link = LINK if kind == "file" else ShareLink("folder", FOLDER)
    with pytest.raises(error, match=words):
        fetch(link, out)
    assert list(out.iterdir()) == []


def test_nothing_at_the_address_is_a_missing_source(drive: DriveShares, out: Path) -> None:
    """A 404 says that there is nothing, for files and folders."""
    with pytest.raises(SourceNotFoundError):
        fetch(LINK, out)
    with pytest.raises(SourceNotFoundError):
        fetch(ShareLink("folder", FOLDER), out)


def test_a_private_folder_is_not_an_empty_one(drive: DriveShares, out: Path) -> None:
    """The login page lists nothing, which must not be taken for a folder without files."""
    drive.add(SharedItem(FOLDER, "Folder", kind="folder", state="private"))
    with pytest.raises(SourceAccessError, match="not shared with everyone"):
        fetch(ShareLink("folder", FOLDER), out)


def test_an_unknown_page_in_place_of_data_is_recognised() -> None:
    """A page that is none of the known ones is no data either."""
    answer = WebAnswer(200, "https://drive.google.com/x", {}, "<html><title>Hello</title></html>")
    assert judge_answer("link", answer) is None
    assert isinstance(judge_answer("link", WebAnswer(418, "https://drive.google.com/x", {})), WebPageError)
    assert isinstance(judge_answer("link", WebAnswer(502, "https://drive.google.com/x", {})), TransientError)


def test_a_page_without_a_file_is_no_download(drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTML with status 200 and no attachment is refused by its title."""
    monkeypatch.setattr(drive, "_bytes", lambda item, request: answer_page("<html><title>Surprise</title></html>"))
    drive.add(SharedItem(FILE, "a.bin", content=b"abc"))
    with pytest.raises(WebPageError, match="Surprise"):
        fetch(LINK, out)


def unknown_page(drive: DriveShares, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Drive give a page before each file in which only a script names where it is, as gdown reads it."""
    given = drive._bytes

    def script_page(item: SharedItem, request: HostRequest) -> HostAnswer:
        if request.query.get("confirm") == "older":
            return given(item, request)
        address = f"https://drive.usercontent.google.com/download?id={request.query['id']}\\u0026confirm\\u003dolder"
        return answer_page(f'<html><title>Surprise</title><script>{{"downloadUrl":"{address}"}}</script></html>')

    monkeypatch.setattr(drive, "_bytes", script_page)


def test_a_page_that_only_gdown_knows_is_left_to_it(
    drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file comes under its name, and the checksum that was given is compared."""
    unknown_page(drive, monkeypatch)
    drive.add(SharedItem(FILE, "a.bin", content=content(70_000)))
    right = hashlib.sha256(content(70_000)).hexdigest()
    path = fetch(LINK, out, checksum=Checksum("sha256", right))
    assert path == out / "a.bin"
    assert path.read_bytes() == content(70_000)
    assert list(out.iterdir()) == [path]
    path.unlink()
    with pytest.raises(ChecksumMismatchError, match=right):
        fetch(LINK, out, checksum=Checksum("sha256", "0" * 64))
    assert list(out.iterdir()) == []


def test_an_old_gdown_is_not_asked(drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take a download that broke off for a whole one; the page and the upgrade are told."""
    unknown_page(drive, monkeypatch)
    drive.add(SharedItem(FILE, "a.bin", content=b"abc"))
    old = types.ModuleType("gdown")
    old.__version__ = "5.2.2"  # type: ignore[attr-defined]  # as the real one has
    monkeypatch.setitem(sys.modules, "gdown", old)
    with pytest.raises(WebPageError, match=r"Surprise.*gdown>=6\.3"):
        fetch(LINK, out)
    assert list(out.iterdir()) == []


def test_a_folder_whose_page_only_gdown_knows_comes_with_a_note(
    drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files come as ever where their own pages are known; how many gdown found is told, as it may leave some out."""
    names = ("x" * 28, "y" * 28)
    drive.add(*(SharedItem(name, f"{name[0]}.bin", content=name.encode()) for name in names))
    drive.add(SharedItem(FOLDER, " ", kind="folder", entries=names))
    notes: list[str] = []
    path = fetch(ShareLink("folder", FOLDER), out, note=notes.append)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == {f"{n[0]}.bin": n.encode() for n in names}
    assert "gdown found 2 files" in notes[0]


@pytest.mark.slow
def test_cut_connections_are_resumed(drive: DriveShares, out: Path) -> None:
    """However often Drive hangs up: while bytes come, it goes on, from where it stopped."""
    drive.add(SharedItem(FILE, "a.bin", content=content(4_000_000), cut_every=700_000))
    assert fetch(LINK, out).read_bytes() == content(4_000_000)
    starts = [start for start in drive.starts(FILE) if start]
    assert starts == sorted(set(starts))
    assert len(starts) >= 4


def test_a_server_without_ranges_is_begun_anew_and_given_up(drive: DriveShares, out: Path) -> None:
    """Bytes are never appended to an answer that ignored the range; without progress it ends."""
    drive.add(SharedItem(FILE, "a.bin", content=content(1_300_000), cut_every=700_000, ranges=False))
    with pytest.raises(SourceReadError, match="Given up"):
        fetch(LINK, out)


def test_a_right_checksum_is_accepted_and_a_wrong_one_keeps_the_file_aside(drive: DriveShares, out: Path) -> None:
    """The message has both hashes, and a long download is not thrown away for a typing error."""
    drive.add(SharedItem(FILE, "a.bin", content=content(9_000)))
    right = hashlib.sha256(content(9_000)).hexdigest()
    with pytest.raises(ChecksumMismatchError, match=right):
        fetch(LINK, out, checksum=Checksum("sha256", "0" * 64))
    assert [path.name for path in out.iterdir()] == ["a.bin.damaged"]
    assert (out / "a.bin.damaged").read_bytes() == content(9_000)
    assert fetch(LINK, out, checksum=Checksum("sha256", right)).read_bytes() == content(9_000)


def test_what_is_there_already_stays(drive: DriveShares, out: Path) -> None:
    """A name that is taken is refused before a byte is fetched."""
    drive.add(SharedItem(FILE, "a.bin", content=b"new"))
    out.mkdir()
    (out / "a.bin").write_bytes(b"old")
    with pytest.raises(TargetExistsError):
        fetch(LINK, out)
    assert (out / "a.bin").read_bytes() == b"old"
    assert drive.starts(FILE) == []


_CHILD = """
import sys
from pathlib import Path
from colabstage.sources.share_download import download_share_link
from colabstage.sources.share_pages import ShareLink
from colabstage.io.progress import Cancellation, NullProgress
download_share_link(ShareLink(*sys.argv[1:3]), Path(sys.argv[3]), progress=NullProgress(), cancellation=Cancellation())
"""


def kill_when(link: ShareLink, out: Path, ready: Callable[[], bool]) -> None:
    """Download in another process and kill it once `ready` says so."""
    with subprocess.Popen([sys.executable, "-c", _CHILD, link.kind, link.id, str(out)]) as child:
        deadline = time.monotonic() + 60
        while not ready():
            assert child.poll() is None, "the download ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()


def on_disk(folder: Path) -> int:
    """Bytes of downloads below a folder."""
    total = 0
    for path in folder.rglob("*"):
        if path.suffix != ".json":
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return total


def test_a_killed_download_is_resumed_from_where_it_stopped(drive: DriveShares, out: Path) -> None:
    """What a dead process left is taken over, and only the rest is asked for."""
    drive.add(SharedItem(FILE, "a.bin", content=content(24_000_000), bytes_per_s=8_000_000))
    kill_when(LINK, out, lambda: on_disk(out) > 18_000_000)
    change(drive, FILE, bytes_per_s=0.0)
    seen = len(drive.starts(FILE))
    assert fetch(LINK, out).read_bytes() == content(24_000_000)
    assert drive.starts(FILE)[seen:][-1] == 2 * BLOCK_BYTES
    assert [path.name for path in out.iterdir()] == ["a.bin"]


def test_a_file_that_changed_since_the_kill_is_fetched_whole(drive: DriveShares, out: Path) -> None:
    """Bytes of the old file are never joined with bytes of the new one."""
    drive.add(SharedItem(FILE, "a.bin", content=content(24_000_000), bytes_per_s=8_000_000))
    kill_when(LINK, out, lambda: on_disk(out) > 18_000_000)
    drive.add(SharedItem(FILE, "a.bin", content=content(24_000_000, seed=1), modified="Tue, 03 Mar 2026 10:00:00 GMT"))
    assert fetch(LINK, out).read_bytes() == content(24_000_000, seed=1)


class CallAt(NullProgress):
    """Progress that calls something once so many bytes have been reported."""

    def __init__(self, at: int, call: Callable[[], object]) -> None:
        self._left = at
        self._call = call

    def step(self, name: str, *, total: int | None, unit: str) -> Self:
        return self

    def advance(self, amount: int = 1) -> None:
        self._left -= amount
        if self._left <= 0 < self._left + amount:
            self._call()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_cancelled_download_stops_soon_and_is_resumed(drive: DriveShares, out: Path) -> None:
    """Stopping takes a moment even while the other side is slow; the next call goes on."""
    drive.add(SharedItem(FILE, "a.bin", content=content(12_000_000), bytes_per_s=8_000_000))
    cancellation = Cancellation()
    began = time.monotonic()
    with pytest.raises(CancelledError):
        fetch(LINK, out, cancellation=cancellation, progress=CallAt(9_500_000, cancellation.cancel))
    assert time.monotonic() - began < 5
    assert not (out / "a.bin").exists()
    change(drive, FILE, bytes_per_s=0.0)
    assert fetch(LINK, out).read_bytes() == content(12_000_000)
    assert drive.starts(FILE)[-1] == BLOCK_BYTES


def test_too_many_requests_in_mid_download_are_told_as_such(drive: DriveShares, out: Path) -> None:
    """Not as a download that broke off; what came is kept, and the next call goes on from there."""
    drive.add(SharedItem(FILE, "a.bin", content=content(12_000_000), cut_every=9_000_000))
    refusing = CallAt(8_500_000, lambda: change(drive, FILE, state="rate"))
    with pytest.raises(DriveQuotaError, match="too many requests"):
        fetch(LINK, out, progress=refusing)
    change(drive, FILE, state="public", cut_every=0)
    assert fetch(LINK, out).read_bytes() == content(12_000_000)
    assert drive.starts(FILE)[-1] == BLOCK_BYTES


def test_a_silent_server_does_not_hold_up_a_cancellation(drive: DriveShares, out: Path) -> None:
    """No byte comes for long; the request to stop is heard all the same."""
    drive.add(SharedItem(FILE, "a.bin", content=content(4_000_000), bytes_per_s=3_000))
    cancellation = Cancellation()
    timer = threading.Timer(1.0, cancellation.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(CancelledError):
        fetch(LINK, out, cancellation=cancellation)
    timer.join()
    assert time.monotonic() - began < 6


def make_folder_of(drive: DriveShares, count: int) -> dict[str, bytes]:
    """Share a folder with `count` files in it and one below each of two folders; return all by name."""
    expected = {}
    tops = []
    for number in range(count):
        name = f"img {number:03d}.png"
        expected[name] = content(500 + number, seed=number)
        drive.add(SharedItem(item_id(number), name, content=expected[name]))
        tops.append(item_id(number))
    for number, folder in enumerate(("cats", "dogs"), start=1000):
        expected[f"{folder}/deep.png"] = content(800, seed=number)
        drive.add(SharedItem(item_id(number), "deep.png", content=expected[f"{folder}/deep.png"]))
        drive.add(SharedItem(item_id(number + 500), folder, kind="folder", entries=(item_id(number),)))
        tops.append(item_id(number + 500))
    drive.add(SharedItem(FOLDER, "Set <1>", kind="folder", entries=tuple(tops)))
    return expected


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_folder_beyond_the_old_cap_comes_whole(drive: DriveShares, out: Path) -> None:
    """120 files and two folders below, each byte as shared."""
    expected = make_folder_of(drive, 120)
    path = fetch(ShareLink("folder", FOLDER), out)
    assert path == out / "Set <1>"
    assert read_tree(path) == expected
    assert list(out.iterdir()) == [path]


def test_one_file_that_is_refused_refuses_the_folder(drive: DriveShares, out: Path) -> None:
    """Nothing is silently partial: a folder is whole or an error."""
    make_folder_of(drive, 12)
    change(drive, item_id(7), state="quota")
    with pytest.raises(DriveQuotaError):
        fetch(ShareLink("folder", FOLDER), out)
    assert list(out.iterdir()) == []


def test_a_killed_folder_goes_on_with_what_is_missing(drive: DriveShares, out: Path) -> None:
    """Files that a dead process finished are not fetched again, and those gone from the folder are not kept."""
    expected = {}
    for number in range(8):
        expected[f"{number}.bin"] = content(400_000, seed=number)
        drive.add(
            SharedItem(item_id(number), f"{number}.bin", content=expected[f"{number}.bin"], bytes_per_s=1_000_000)
        )
    entries = tuple(item_id(number) for number in range(8))
    drive.add(SharedItem(FOLDER, "Set", kind="folder", entries=entries))
    kill_when(ShareLink("folder", FOLDER), out, lambda: len(list(out.glob(".colabstage-*/files/*"))) >= 2)
    finished = {path.name for path in out.glob(".colabstage-*/files/*")}
    assert len(finished) < 8
    gone = min(finished)
    change(drive, FOLDER, entries=tuple(each for each in entries if each != item_id(int(gone[0]))))
    before = {name: len(drive.starts(item_id(int(name[0])))) for name in finished}
    assert read_tree(fetch(ShareLink("folder", FOLDER), out)) == {n: c for n, c in expected.items() if n != gone}
    assert before == {name: len(drive.starts(item_id(int(name[0])))) for name in finished}


def test_documents_in_a_folder_are_left_out_with_a_note(drive: DriveShares, out: Path) -> None:
    """A form or a spreadsheet beside the images is no reason to fail, but it is said."""
    drive.add(
        SharedItem(item_id(1), "a.png", content=b"a"),
        SharedItem(item_id(2), "Notes", kind="document"),
        SharedItem(item_id(3), "Survey", kind="forms"),
        SharedItem(FOLDER, "Set", kind="folder", entries=(item_id(1), item_id(2), item_id(3))),
    )
    notes: list[str] = []
    assert read_tree(fetch(ShareLink("folder", FOLDER), out, note=notes.append)) == {"a.png": b"a"}
    assert len(notes) == 2
    assert "'Notes' is a Google document" in notes[0]


def test_files_of_one_name_are_told_apart(drive: DriveShares, out: Path) -> None:
    """Drive allows what no disk does; each file comes, under the names Drive's own mount would give."""
    drive.add(
        SharedItem(item_id(1), "a.png", content=b"1"),
        SharedItem(item_id(2), "a.png", content=b"2"),
        SharedItem(item_id(3), "a.png", kind="folder", entries=(item_id(4),)),
        SharedItem(item_id(4), "../evil", content=b"4"),
        SharedItem(FOLDER, "Set", kind="folder", entries=(item_id(2), item_id(1), item_id(3))),
    )
    notes: list[str] = []
    tree = read_tree(fetch(ShareLink("folder", FOLDER), out, note=notes.append))
    assert tree == {"a (1).png": b"1", "a (2).png": b"2", "a.png/.._evil": b"4"}
    assert len(notes) == 2


def test_names_do_not_depend_on_the_order_of_a_listing() -> None:
    """The same two files get the same two names tomorrow."""
    files = [SharedFile(ShareLink("file", item_id(number)), "a.tar.gz") for number in (3, 1, 2)]
    named, _ = name_apart(files)
    assert named == name_apart(files[::-1])[0]
    assert [(file.link.id[-1], file.name) for file in named] == [
        ("1", "a.tar.gz"),
        ("2", "a.tar (1).gz"),
        ("3", "a.tar (2).gz"),
    ]


def test_a_folder_that_contains_itself_ends(drive: DriveShares, out: Path) -> None:
    """A shortcut back up is not followed for ever."""
    drive.add(
        SharedItem(item_id(1), "a.png", content=b"a"),
        SharedItem(item_id(2), "up", kind="folder", entries=(FOLDER, item_id(1))),
        SharedItem(FOLDER, "Set", kind="folder", entries=(item_id(1), item_id(2))),
    )
    assert read_tree(fetch(ShareLink("folder", FOLDER), out)) == {"a.png": b"a", "up/a.png": b"a"}


def test_a_checksum_for_a_folder_is_refused(drive: DriveShares, out: Path) -> None:
    """An option that cannot work is an error, not ignored."""
    drive.add(SharedItem(FOLDER, "Set", kind="folder"))
    with pytest.raises(OptionError, match="is for one file"):
        fetch(ShareLink("folder", FOLDER), out, checksum=Checksum("md5", "0" * 32))


@pytest.mark.parametrize(
    ("raw", "safe"),
    [("a/b.zip", "a_b.zip"), ("..", "_"), ("", "_"), (".colabstage-x.tmp", "_.colabstage-x.tmp"), ("a\0b", "a_b")],
)
def test_names_from_drive_are_made_safe(raw: str, safe: str) -> None:
    """Whatever somebody calls a file, it stays in its folder."""
    assert safe_name(raw) == safe


def test_overlong_names_keep_their_suffix() -> None:
    """A name is cut to what a disk takes, and stays a zip."""
    name = safe_name("é" * 300 + ".zip")
    assert len(name.encode()) <= 240
    assert name.endswith(".zip")


def test_names_in_headers_are_read_in_both_forms() -> None:
    """The extended form wins; the plain one is UTF-8 in disguise."""
    both = "attachment; filename=\"x.zip\"; filename*=UTF-8''%C3%A9.zip"
    plain = 'attachment; filename="' + "é.zip".encode().decode("latin-1") + '"'
    assert disposition_name({"Content-Disposition": both}) == "é.zip"
    assert disposition_name({"Content-Disposition": plain}) == "é.zip"
    assert disposition_name({}) == ""


def test_a_file_that_changes_during_the_download_is_an_error(drive: DriveShares, out: Path) -> None:
    """Two halves of different files never become one."""
    drive.add(SharedItem(FILE, "a.bin", content=content(4_000_000), bytes_per_s=1_500_000, cut_every=2_000_000))
    changed = SharedItem(FILE, "a.bin", content=content(5_000_000, seed=1), modified="Tue, 03 Mar 2026 10:00:00 GMT")
    with pytest.raises(SourceChangedError):
        fetch(LINK, out, progress=CallAt(1_000_000, lambda: drive.add(changed)))
    assert not (out / "a.bin").exists()

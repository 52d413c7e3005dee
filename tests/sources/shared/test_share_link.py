"""Google Drive share links: the forms people paste, and downloads from an imitated Drive on loopback."""

import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files
from colabstage.errors import (
    ColabstageError,
    DriveQuotaError,
    MissingDependencyError,
    OptionError,
    SourceAccessError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
)
from colabstage.sources.parse import ShareSource, parse_source
from tests.support.deadlines import lose_patience
from tests.support.far import random_bytes
from tests.support.https_hosts import answer_page
from tests.support.images import read_tree
from tests.support.invariants import contents
from tests.support.share_links import DriveShares, SharedItem

FILE = "1FileAbcdefghijklmnopqrstuvwxyz_0"
OTHER = "1OtherAbcdefghijklmnopqrstuvwxyz0"
FOLDER = "1FolderAbcdefghijklmnopqrstuvwxy0"
LINK = f"gdrive://files/{FILE}"
SCAN_LIMIT = 1_000_000
VERIFIES: tuple[Any, ...] = ("fast", "full", "full")


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriveShares]:
    """An imitated Google Drive that this process is led to."""
    with DriveShares(tmp_path, scan_limit_bytes=SCAN_LIMIT, wants_form=True) as shares:
        shares.hosts.lead(monkeypatch, tmp_path)
        yield shares


def item_id(number: int) -> str:
    """An id as Drive makes them."""
    return f"1Item{number:028d}"


def marked(number: int) -> bytes:
    """A number as the content of any file, an archive or not."""
    return b"PK\3\4" + bytes([number])


def change(drive: DriveShares, number: str, **changes: object) -> None:
    """Change an item on the Drive."""
    drive.add(replace(drive.item(number), **changes))  # type: ignore[arg-type]  # replace checks the names


def fetch(link: str, out: Path) -> tuple[str, ...]:
    """Fetch what a link leads to; return the report's notes."""
    return tuple(fetch_files(link, str(out), progress=False).notes)


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [
        ("https://drive.google.com/file/d/{}/view?usp=sharing", "file", ""),
        ("https://drive.google.com/file/d/{}/view?usp=drive_link&resourcekey=0-aB_c", "file", "0-aB_c"),
        ("  <https://drive.google.com/file/d/{}/view>  ", "file", ""),
        ("drive.google.com/file/d/{}/view", "file", ""),
        ("https://drive.google.com/uc?export=download&confirm=t&id={}", "file", ""),
        ("https://drive.usercontent.google.com/download?id={}&export=download&authuser=0", "file", ""),
        ("https://drive.google.com/open?id={}&usp=drive_copy", "unknown", ""),
        ("https://drive.google.com/drive/u/0/folders/{}", "folder", ""),
        ("https://drive.google.com/folderview?id={}", "folder", ""),
        ("gdrive://folders/{}", "folder", ""),
        ("gdrive://{}?resourcekey=0-k", "unknown", "0-k"),
    ],
)
def test_every_pasted_form_is_understood(text: str, kind: str, key: str) -> None:
    """Each form of a link gives its id, its kind where the form tells, and its resource key, which is never shown."""
    source = parse_source(text.format(FILE))
    assert source == ShareSource(kind, FILE, key)  # type: ignore[arg-type]  # from the table
    assert not key or key not in f"{source} {source.label}"


@pytest.mark.parametrize(
    "text",
    [
        *(f"https://docs.google.com/{kind}/d/{FILE}/edit#gid=0" for kind in ("document", "spreadsheets", "forms")),
        "gdrive://",
        "drive.google.com",
    ],
)
def test_what_is_no_file_of_drive_is_refused(text: str) -> None:
    """Documents have no file behind them, and Drive's own pages are neither a file nor a folder."""
    with pytest.raises(OptionError, match=r"Google|gdrive"):
        parse_source(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://drive.google.com.evil.org/file/d/{}",
        "https://e.org/file/d/{}/view",
        "{}",
        "https://docs.google.com/spreadsheets/d/{}/export?gid=0&format=csv",
    ],
)
def test_what_is_no_drive_link_is_left_to_others(text: str) -> None:
    """Other addresses, lone ids, and documents as files of another kind."""
    assert not isinstance(parse_source(text.format(FILE)), ShareSource)


@pytest.mark.parametrize("size", [0, SCAN_LIMIT + 1])
def test_a_file_arrives(drive: DriveShares, out: Path, size: int) -> None:
    """Also an empty one; and one too large for the virus scan comes through the confirmation form, whatever that wants
    to be told. A second call fetches nothing."""
    drive.add(SharedItem(FILE, "it.bin", content=random_bytes(size)))
    fetch(LINK, out)
    assert out.read_bytes() == random_bytes(size)
    again = fetch_files(f"gdrive://files/{FILE}", str(out), progress=False)
    assert (again.kept_bytes, again.nbytes) == (size, size)


def test_a_resource_key_opens_what_needs_one(drive: DriveShares, out: Path) -> None:
    """An older file comes with its key, and is private without."""
    drive.add(SharedItem(FILE, "old.bin", content=random_bytes(SCAN_LIMIT + 5), resource_key="0-abc"))
    with pytest.raises(SourceAccessError):
        fetch(LINK, out)
    fetch(f"{LINK}?resourcekey=0-abc", out)
    assert out.read_bytes() == random_bytes(SCAN_LIMIT + 5)


def test_open_links_find_out_what_they_lead_to(drive: DriveShares, out: Path) -> None:
    """`open?id=` tells nothing of the kind, so Drive is asked; and a folder is fetched again once its list changes."""
    drive.add(SharedItem(FILE, "a.bin", content=b"a"), SharedItem(FOLDER, "Folder", kind="folder", entries=(FILE,)))
    fetch(f"gdrive://{FOLDER}", out / "folder")
    drive.add(SharedItem(OTHER, "b.bin", content=b"b"))
    change(drive, FOLDER, entries=(FILE, OTHER))
    fetch(f"gdrive://{FOLDER}", out / "folder")
    fetch(f"gdrive://{FILE}", out / "file")
    assert contents(out) == {"folder/a.bin": b"a", "folder/b.bin": b"b", "file": b"a"}


def test_a_document_behind_an_id_is_refused_with_the_remedy(drive: DriveShares, out: Path) -> None:
    """An id alone may be a spreadsheet's; Drive's error 500 is followed up."""
    drive.add(SharedItem(FILE, "Table", kind="spreadsheets"))
    with pytest.raises(OptionError, match="Google document"):
        fetch(LINK, out)


@pytest.mark.parametrize(
    ("kind", "state", "error"),
    [
        ("file", "quota", DriveQuotaError),
        ("file", "busy", SourceReadError),
        ("file", "missing", SourceNotFoundError),
        ("folder", "rate", DriveQuotaError),
        ("folder", "private", SourceAccessError),
        ("folder", "busy", SourceReadError),
        ("folder", "missing", SourceNotFoundError),
    ],
)
def test_each_refusal_has_its_error(
    drive: DriveShares, out: Path, kind: Any, state: Any, error: type[ColabstageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that Drive gives in place of data become one typed error each, which names the link."""
    lose_patience("sources", 0.1, monkeypatch.setattr)
    number = FILE if kind == "file" else FOLDER
    if state != "missing":
        drive.add(SharedItem(number, "it", kind=kind, content=b"abc", state=state))
    with pytest.raises(error, match=number) as raised:
        fetch(f"gdrive://{kind}s/{number}", out)
    assert raised.type is error
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"state": "quota"}, DriveQuotaError),
        ({"content": random_bytes(20_000_001), "modified": "Tue, 03 Mar 2026 10:00:00 GMT"}, SourceChangedError),
    ],
    ids=["too many requests", "another file"],
)
def test_what_happens_in_mid_read_is_told_as_such(
    drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], error: type[Exception]
) -> None:
    """Two halves of different files never become one, and a refusal is not a read that broke off."""
    drive.add(SharedItem(FILE, "a.bin", content=random_bytes(20_000_000)))
    serve = drive._bytes

    def change_after_the_looks(item: SharedItem, request: Any) -> Any:
        if drive.count("/download") > 6:
            change(drive, FILE, **changes)
        return serve(item, request)

    monkeypatch.setattr(drive, "_bytes", change_after_the_looks)
    with pytest.raises(error):
        fetch(LINK, out)
    assert not out.exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_page_in_place_of_what_was_asked_for_is_refused(
    drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """HTML with status 200 is no download, and what is no listing is no empty folder: Drive may change its pages."""
    page = "<html><title>Surprise</title><p>Hello</html>"
    monkeypatch.setattr(drive, "_bytes", lambda item, request: answer_page(page))
    monkeypatch.setattr(drive, "_folder_page", lambda folder: page)
    drive.add(SharedItem(FILE, "a", kind=kind, content=b"abc"))
    with pytest.raises(WebPageError, match=f"Surprise|{FILE}"):
        fetch(f"gdrive://{kind}s/{FILE}", out)


def test_an_old_gdown_is_not_asked(drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot read the pages; the upgrade is told."""
    drive.add(SharedItem(FOLDER, "Set", kind="folder"))
    old = types.ModuleType("gdown")
    old.__version__ = "5.2.2"  # type: ignore[attr-defined]  # as the real one has
    monkeypatch.setitem(sys.modules, "gdown", old)
    monkeypatch.setitem(sys.modules, "gdown.download_folder", types.ModuleType("gdown.download_folder"))
    with pytest.raises(MissingDependencyError, match=r"5\.2\.2.*gdown>=6\.3"):
        fetch(f"gdrive://folders/{FOLDER}", out)


def test_a_folder_comes_whole(drive: DriveShares, out: Path) -> None:
    """More than fifty files and two folders below, each byte as shared; each file is asked for twice at most."""
    expected = {}
    tops = []
    for number in range(55):
        name = f"img {number:03d}.png"
        expected[name] = random_bytes(500 + number, seed=number)
        drive.add(SharedItem(item_id(number), name, content=expected[name]))
        tops.append(item_id(number))
    for number, folder in enumerate(("cats", "dogs"), start=1000):
        expected[f"{folder}/deep.png"] = random_bytes(800, seed=number)
        drive.add(SharedItem(item_id(number), "deep.png", content=expected[f"{folder}/deep.png"]))
        drive.add(SharedItem(item_id(number + 500), folder, kind="folder", entries=(item_id(number),)))
        tops.append(item_id(number + 500))
    drive.add(SharedItem(FOLDER, "Set <1>", kind="folder", entries=tuple(tops)))
    fetch(f"gdrive://folders/{FOLDER}", out)
    assert contents(out) == expected
    assert drive.count("/download") <= 2 * len(expected)


def test_one_file_that_is_refused_refuses_the_folder(drive: DriveShares, out: Path) -> None:
    """Nothing is silently partial: a folder is whole or an error."""
    ids = tuple(map(item_id, range(12)))
    drive.add(*(SharedItem(one, f"{one}.bin", content=b"abc") for one in ids))
    drive.add(SharedItem(FOLDER, "Set", kind="folder", entries=ids))
    change(drive, ids[7], state="quota")
    with pytest.raises(DriveQuotaError):
        fetch(f"gdrive://folders/{FOLDER}", out)
    assert not out.exists()


def test_what_no_folder_of_a_disk_has_is_made_such(drive: DriveShares, out: Path) -> None:
    """Documents are left out with a note; files of one name get numbers, in whatever
    order they are listed; names stay in their folder and keep their suffix; a folder that contains itself ends."""
    kinds: dict[str, Any] = {"Notes": "document", "Survey": "forms", "a.png": "folder"}
    items = ["a.png", "b.tar.gz", "b.tar.gz", "../evil", "..", ".colabstage-x.tmp", "a\0b", "é" * 300 + ".zip", "a/c"]
    drive.add(*(SharedItem(item_id(n), name, content=marked(n)) for n, name in enumerate(items)))
    drive.add(
        *(
            SharedItem(item_id(50 + n), name, kind=kind, entries=(FOLDER, FILE))
            for n, (name, kind) in enumerate(kinds.items())
        )
    )
    ids = [*map(item_id, range(len(items))), *(item_id(50 + n) for n in range(len(kinds)))]
    names = ["a-2.png", "b.tar.gz", "b.tar-2.gz", ".._evil", "_", "_.colabstage-x.tmp", "a_b", "é" * 118 + ".zip"]
    expected = {name: marked(n) for n, name in enumerate([*names, "a_c"])} | {"a.png/in.png": b"in"}
    drive.add(SharedItem(FILE, "in.png", content=b"in"))
    for number, order in enumerate((ids, ids[::-1])):
        drive.add(SharedItem(FOLDER, "Set", kind="folder", entries=tuple(order)))
        notes = fetch(f"gdrive://folders/{FOLDER}", out / str(number))
        assert read_tree(out / str(number)) == expected
        for name in ("Notes", "Survey", "a.png", "b.tar.gz"):
            assert any(f"'{name}'" in note for note in notes), notes


def test_files_of_a_list_are_the_same_until_one_changes(drive: DriveShares, out: Path) -> None:
    for number in range(2):
        drive.add(SharedItem(item_id(number), f"{number}.bin", content=random_bytes(100, number)))

    def came() -> int:
        links = [f"gdrive://files/{item_id(number)}" for number in range(2)]
        return fetch_files(links, out, progress=False).fetched_bytes

    assert [came(), came()] == [200, 0]
    # One request a file and call.
    assert drive.count("/download") == 4
    change(drive, item_id(1), content=random_bytes(100, 3))
    assert [came(), came()] == [200, 0]


def test_a_file_that_is_replaced_in_a_folder_is_noticed_by_a_thorough_call(drive: DriveShares, out: Path) -> None:
    """It keeps its id and name, which is all that a quick look compares, and says."""
    for number in range(2):
        drive.add(SharedItem(item_id(number), f"{number}.bin", content=random_bytes(100, number)))
    drive.add(SharedItem(FOLDER, "Set", kind="folder", entries=(item_id(0), item_id(1))))
    fetch_files(f"gdrive://folders/{FOLDER}", out, progress=False)
    change(drive, item_id(1), content=random_bytes(100, 3))
    reports = [fetch_files(f"gdrive://folders/{FOLDER}", out, progress=False, verify=verify) for verify in VERIFIES]
    assert [report.fetched_bytes for report in reports] == [0, 200, 0]
    assert "would not be noticed" in str(reports[0])
    assert (out / "1.bin").read_bytes() == random_bytes(100, 3)

"""Google Drive share links: the forms people paste, and downloads from an imitated Drive on loopback."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import types
from dataclasses import replace
from typing import TYPE_CHECKING

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
    WebPageError,
)
from colabstage.io.files import RetryPolicy
from colabstage.sources.gdrive import (
    SharedFolder,
    ShareLink,
    list_shared_folder,
    name_apart,
    open_share,
    open_shared_file,
    parse_share_link,
    safe_name,
)
from colabstage.sources.remote import TransientError
from tests.support.https_hosts import answer_page
from tests.support.share_links import DriveShares, SharedItem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = "1FileAbcdefghijklmnopqrstuvwxyz_0"
OTHER = "1OtherAbcdefghijklmnopqrstuvwxyz0"
FOLDER = "1FolderAbcdefghijklmnopqrstuvwxy0"
LINK = ShareLink("file", FILE)
QUICK = RetryPolicy(attempts=2, first_wait_s=0.01)
SCAN_LIMIT = 1_000_000


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriveShares]:
    """An imitated Google Drive that this process is led to."""
    with DriveShares(tmp_path, scan_limit_bytes=SCAN_LIMIT, wants_form=True) as shares:
        for name, value in shares.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield shares


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the file or the folder goes."""
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


def fetch(link: ShareLink, out: Path) -> tuple[str, ...]:
    """Fetch what a link leads to; return the report's notes."""
    key = f"?resourcekey={link.resource_key}" if link.resource_key else ""
    where = "" if link.kind == "unknown" else f"{link.kind}s/"
    return tuple(fetch_files(f"gdrive://{where}{link.id}{key}", str(out), progress=False).notes)


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder by name."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".colabstage" not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


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


def test_a_file_has_its_facts_and_its_ends_after_two_requests(drive: DriveShares) -> None:
    """One for its facts and its beginning, one for its end: Google counts them."""
    drive.add(SharedItem(FILE, "Größe 数.bin", content=content(900_000)))
    with contextlib.closing(open_shared_file(LINK, policy=QUICK, along_bytes=4096)) as file:
        assert (file.facts.name, file.facts.size) == ("Größe 数.bin", 900_000)
        assert file.known(100, 300) == content(900_000)[100:300]
        assert file.known(899_000, 900_000) == content(900_000)[-1000:]
        assert drive.count("/download") == 2
        assert b"".join(file.read_range(10, 20)) == content(900_000)[10:30]


def test_an_empty_file_arrives(drive: DriveShares, out: Path) -> None:
    """A file of no bytes is a file."""
    drive.add(SharedItem(FILE, "empty.txt"))
    fetch(LINK, out)
    assert out.read_bytes() == b""


def test_the_page_about_the_virus_scan_is_passed(drive: DriveShares, out: Path) -> None:
    """A file too large for the scan comes through the confirmation form, whatever that wants to be told."""
    drive.add(SharedItem(FILE, "large.bin", content=content(SCAN_LIMIT + 1)))
    fetch(LINK, out)
    assert out.read_bytes() == content(SCAN_LIMIT + 1)


def test_a_folder_has_a_name_and_a_version(drive: DriveShares) -> None:
    """The version follows the listing."""
    drive.add(SharedItem(FILE, "new.bin", content=b"abc"), SharedItem(OTHER, "other.bin", content=b"d"))
    drive.add(SharedItem(FOLDER, "Data & more", kind="folder", entries=(FILE,)))
    first = open_share(ShareLink("unknown", FOLDER), policy=QUICK)
    change(drive, FOLDER, entries=(FILE, OTHER))
    later = open_share(ShareLink("folder", FOLDER), policy=QUICK)
    assert isinstance(first, SharedFolder)
    assert isinstance(later, SharedFolder)
    assert first.name == later.name == "Data & more"
    assert first.version != later.version


def test_a_resource_key_opens_what_needs_one(drive: DriveShares, out: Path) -> None:
    """An older file comes with its key, and is private without."""
    drive.add(SharedItem(FILE, "old.bin", content=content(SCAN_LIMIT + 5), resource_key="0-abc"))
    with pytest.raises(SourceAccessError):
        fetch(LINK, out)
    fetch(ShareLink("file", FILE, "0-abc"), out)
    assert out.read_bytes() == content(SCAN_LIMIT + 5)


def test_open_links_find_out_what_they_lead_to(drive: DriveShares, out: Path) -> None:
    """`open?id=` tells nothing of the kind, so Drive is asked."""
    drive.add(SharedItem(FILE, "a.bin", content=b"a"), SharedItem(FOLDER, "Folder", kind="folder", entries=(FILE,)))
    fetch(ShareLink("unknown", FOLDER), out / "folder")
    fetch(ShareLink("unknown", FILE), out / "file")
    assert read_tree(out) == {"folder/a.bin": b"a", "file": b"a"}


def test_a_document_behind_an_id_is_refused_with_the_remedy(drive: DriveShares, out: Path) -> None:
    """An id alone may be a spreadsheet's; Drive's error 500 is followed up."""
    drive.add(SharedItem(FILE, "Table", kind="spreadsheets"))
    with pytest.raises(OptionError, match="Google Sheets spreadsheet"):
        fetch(LINK, out)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("quota", DriveQuotaError),
        ("rate", DriveQuotaError),
        ("private", SourceAccessError),
        ("busy", TransientError),
        ("missing", SourceNotFoundError),
    ],
)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_each_refusal_has_its_error(drive: DriveShares, kind: str, state: str, error: type[ColabstageError]) -> None:
    """Pages that Drive gives in place of data become one typed error each, which names the link."""
    link = LINK if kind == "file" else ShareLink("folder", FOLDER)
    if (kind, state) == ("folder", "quota"):
        state = "rate"  # downloads alone have a quota
    if state != "missing":
        drive.add(SharedItem(link.id, "it", kind=kind, content=b"abc", state=state))  # type: ignore[arg-type]  # from the table
    with pytest.raises(error, match=link.id):
        open_shared_file(link, policy=QUICK) if kind == "file" else list_shared_folder(link, policy=QUICK)


def test_a_quota_names_the_way_around(drive: DriveShares, out: Path) -> None:
    """A copy of one's own has a quota of its own."""
    drive.add(SharedItem(FILE, "a.bin", content=b"abc", state="quota"))
    with pytest.raises(DriveQuotaError):
        fetch(LINK, out)
    assert not out.exists()


def test_a_page_without_a_file_is_no_download(drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTML with status 200 and no attachment is refused by its title."""
    monkeypatch.setattr(drive, "_bytes", lambda item, request: answer_page("<html><title>Surprise</title></html>"))
    drive.add(SharedItem(FILE, "a.bin", content=b"abc"))
    with pytest.raises(WebPageError, match="Surprise"):
        fetch(LINK, out)


def test_too_many_requests_in_mid_read_are_told_as_such(drive: DriveShares) -> None:
    """Not as a read that broke off."""
    drive.add(SharedItem(FILE, "a.bin", content=content(2_000_000)))
    with contextlib.closing(open_shared_file(LINK, policy=QUICK)) as file:
        change(drive, FILE, state="quota")
        with pytest.raises(DriveQuotaError, match="viewed or downloaded"):
            b"".join(file.read_range(1_000_000, 1000))


def test_a_file_that_changes_is_an_error(drive: DriveShares) -> None:
    """Two halves of different files never become one."""
    drive.add(SharedItem(FILE, "a.bin", content=content(900_000)))
    with contextlib.closing(open_shared_file(LINK, policy=QUICK)) as file:
        drive.add(SharedItem(FILE, "a.bin", content=content(900_001), modified="Tue, 03 Mar 2026 10:00:00 GMT"))
        with pytest.raises(SourceChangedError):
            b"".join(file.read_range(0, 100_000))


def test_an_old_gdown_is_not_asked(drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits without a limit; the upgrade is told."""
    drive.add(SharedItem(FOLDER, "Set", kind="folder"))
    old = types.ModuleType("gdown")
    old.__version__ = "5.2.2"  # type: ignore[attr-defined]  # as the real one has
    monkeypatch.setitem(sys.modules, "gdown", old)
    with pytest.raises(MissingDependencyError, match=r"5\.2\.2.*gdown>=6\.3"):
        fetch(ShareLink("folder", FOLDER), out)


def test_a_folder_comes_whole(drive: DriveShares, out: Path) -> None:
    """Sixty files and two folders below, each byte as shared; each file is asked for twice at most."""
    expected = {}
    tops = []
    for number in range(60):
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
    fetch(ShareLink("folder", FOLDER), out)
    assert read_tree(out) == expected
    assert drive.count("/download") <= 2 * len(expected)


def test_one_file_that_is_refused_refuses_the_folder(drive: DriveShares, out: Path) -> None:
    """Nothing is silently partial: a folder is whole or an error."""
    ids = tuple(map(item_id, range(12)))
    drive.add(*(SharedItem(one, f"{one}.bin", content=b"abc") for one in ids))
    drive.add(SharedItem(FOLDER, "Set", kind="folder", entries=ids))
    change(drive, ids[7], state="quota")
    with pytest.raises(DriveQuotaError):
        fetch(ShareLink("folder", FOLDER), out)
    assert not out.exists()


def test_a_page_that_is_no_listing_is_not_an_empty_folder(
    drive: DriveShares, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drive may change its pages; then nothing is known of the folder."""
    monkeypatch.setattr(drive, "_folder_page", lambda folder: "<html><title>Set</title><p>Hello</html>")
    drive.add(SharedItem(FOLDER, "Set", kind="folder"))
    with pytest.raises(WebPageError, match=FOLDER):
        fetch(ShareLink("folder", FOLDER), out)


def test_documents_in_a_folder_are_left_out_with_a_note(drive: DriveShares, out: Path) -> None:
    """A form or a spreadsheet beside the images is no reason to fail, but it is said."""
    drive.add(
        SharedItem(item_id(1), "a.png", content=b"a"),
        SharedItem(item_id(2), "Notes", kind="document"),
        SharedItem(item_id(3), "Survey", kind="forms"),
        SharedItem(FOLDER, "Set", kind="folder", entries=(item_id(1), item_id(2), item_id(3))),
    )
    notes = fetch(ShareLink("folder", FOLDER), out)
    assert read_tree(out) == {"a.png": b"a"}
    assert any("Notes" in note for note in notes)
    assert any("Survey" in note for note in notes)


def test_files_of_one_name_are_told_apart(drive: DriveShares, out: Path) -> None:
    """Drive allows what no disk does; each file comes, under the names Drive's own mount would give."""
    drive.add(
        SharedItem(item_id(1), "a.png", content=b"1"),
        SharedItem(item_id(2), "a.png", content=b"2"),
        SharedItem(item_id(3), "a.png", kind="folder", entries=(item_id(4),)),
        SharedItem(item_id(4), "../evil", content=b"4"),
        SharedItem(FOLDER, "Set", kind="folder", entries=(item_id(2), item_id(1), item_id(3))),
    )
    notes = fetch(ShareLink("folder", FOLDER), out)
    assert read_tree(out) == {"a (1).png": b"1", "a (2).png": b"2", "a.png/.._evil": b"4"}
    assert sum("'a.png'" in note for note in notes) == 2


def test_names_do_not_depend_on_the_order_of_a_listing() -> None:
    """The same two files get the same two names tomorrow."""
    files = [("a.tar.gz", ShareLink("file", item_id(number))) for number in (3, 1, 2)]
    named, _ = name_apart(files)
    assert named == name_apart(files[::-1])[0]
    assert [(name, link.id[-1]) for name, link in named.items()] == [
        ("a.tar.gz", "1"),
        ("a.tar (1).gz", "2"),
        ("a.tar (2).gz", "3"),
    ]


def test_a_folder_that_contains_itself_ends(drive: DriveShares, out: Path) -> None:
    """A shortcut back up is not followed for ever."""
    drive.add(
        SharedItem(item_id(1), "a.png", content=b"a"),
        SharedItem(item_id(2), "up", kind="folder", entries=(FOLDER, item_id(1))),
        SharedItem(FOLDER, "Set", kind="folder", entries=(item_id(1), item_id(2))),
    )
    fetch(ShareLink("folder", FOLDER), out)
    assert read_tree(out) == {"a.png": b"a", "up/a.png": b"a"}


def test_a_checksum_for_a_folder_is_refused(drive: DriveShares, out: Path) -> None:
    """An option that cannot work is an error, not ignored."""
    drive.add(SharedItem(FILE, "a.png", content=b"a"), SharedItem(FOLDER, "Set", kind="folder", entries=(FILE,)))
    with pytest.raises(OptionError, match="hash="):
        fetch_files(f"gdrive://folders/{FOLDER}", str(out), hash="md5:" + "0" * 32, progress=False)


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("a/b.zip", "a_b.zip"),
        ("..", "_"),
        ("", "_"),
        (".colabstage-x.tmp", "_.colabstage-x.tmp"),
        ("a\0b", "a_b"),
        ("é" * 300 + ".zip", "é" * 118 + ".zip"),
    ],
)
def test_names_from_drive_are_made_safe(raw: str, safe: str) -> None:
    """Whatever somebody calls a file, it stays in its folder, and keeps its suffix."""
    assert safe_name(raw) == safe

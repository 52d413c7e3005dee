"""Records of runs that died right after their work was in place, or right before."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from colabstage import extract_archive
from colabstage.errors import TargetExistsError
from colabstage.io.ownership import rename_named
from colabstage.io.workspace import leave_for_next, temp_beside
from colabstage.sources.fetching import FETCHED, fetch_files

if TYPE_CHECKING:
    from pathlib import Path


def unsettle(target: Path) -> None:
    """Leave the record of `target` as a run does that dies before it gives it its name."""
    record = FETCHED.path(target)
    record.rename(record.with_name(f"{record.name}.coming"))


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_fetch_that_died_before_its_record_is_not_done_again(tmp_path: Path, kind: str) -> None:
    """The announced record fits what stands there: nothing is refused, nothing is read, the record is settled."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.bin").write_bytes(b"a" * 100_000)
    here = tmp_path / "here"
    target = here / "it"
    wanted = source / "a.bin" if kind == "file" else source
    fetch_files(wanted, target, progress=False)
    before = names(here)
    unsettle(target)
    again = fetch_files(wanted, target, progress=False)
    assert again.fetched_bytes == 0
    assert names(here) == before


def test_a_record_that_was_never_whole_goes_with_the_next_call(tmp_path: Path) -> None:
    """Somebody died while announcing, and the next one after its record had its name, before it cleared up."""
    (tmp_path / "a.bin").write_bytes(b"a" * 1000)
    target = tmp_path / "here" / "it"
    fetch_files(tmp_path / "a.bin", target, progress=False)
    before = names(target.parent)
    for record in (FETCHED.path(target), FETCHED.announced_path(target)):
        half = temp_beside(record)
        half.write_bytes(b"{")
        leave_for_next(half)
    fetch_files(tmp_path / "a.bin", target, progress=False)
    assert names(target.parent) == before


def test_an_announced_record_does_not_vouch_for_something_else(tmp_path: Path) -> None:
    """What died before its rename has announced another file than the one that stands there."""
    (tmp_path / "a.bin").write_bytes(b"a" * 1000)
    target = tmp_path / "here" / "it"
    fetch_files(tmp_path / "a.bin", target, progress=False)
    unsettle(target)
    target.write_bytes(b"mine")
    with pytest.raises(TargetExistsError, match="not made by fetch_files"):
        fetch_files(tmp_path / "a.bin", target, progress=False)
    assert target.read_bytes() == b"mine"


def test_an_extraction_that_died_before_its_record_is_not_done_again(tmp_path: Path) -> None:
    """The folder counts as extracted, and its record is settled."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("b/c.txt", "c")
    target = tmp_path / "here" / "a"
    extract_archive(tmp_path / "a.zip", target, progress=False)
    before = names(target.parent)
    unsettle(target)
    assert extract_archive(tmp_path / "a.zip", target, progress=False).reused
    assert names(target.parent) == before
    unsettle(target)
    (target / "b" / "more.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(TargetExistsError):
        extract_archive(tmp_path / "a.zip", target, progress=False)


def test_two_may_settle_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks hold nobody off, another process may give it its name first."""
    (tmp_path / "a.bin").write_bytes(b"a" * 1000)
    target = tmp_path / "here" / "it"
    fetch_files(tmp_path / "a.bin", target, progress=False)
    unsettle(target)

    def settled_before(path: Path, to: Path) -> None:
        rename_named(path, to)
        rename_named(path, to)

    monkeypatch.setattr("colabstage.io.records.rename_named", settled_before)
    FETCHED.settle(target)
    assert names(target.parent) == [".it.colabstage.json", "it"]

"""A receipt that is there and true is the only proof that something is ours, whenever its process died."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from colabstage import extract_archive, fetch_files
from colabstage.errors import TargetExistsError
from colabstage.io import ownership, workspace
from colabstage.io.receipts import (
    Receipt,
    look_at,
    note_receipt,
    put_folder,
    receipts_of,
    sweep_receipts,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def receipt() -> Receipt:
    """What vouches for the folders of this test."""
    return Receipt("test", {"number": 1})


def make_folder(target: Path, files: dict[str, str]) -> Path:
    """A finished folder that is to become `target`."""
    made = workspace.temp_beside(target)
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text, encoding="utf-8")
    return made


def names_and_bytes(folder: Path) -> dict[str, bytes | None]:
    """What is in a folder; of folders their names."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def make_link(path: Path) -> None:
    """Keep a file elsewhere, as somebody does whose disk is full."""
    path.symlink_to(path.rename(path.parent.parent / path.name))


MADE = {"a": "1", "b": "2", "deep/c": "3"}
EDITS: dict[str, Callable[[Path], object]] = {
    "a file is added": lambda folder: (folder / "deep" / "mine").write_text("mine"),
    "an empty folder is added": lambda folder: (folder / "mine").mkdir(),
    "a file is longer": lambda folder: (folder / "a").write_text("longer"),
    "a file has another time": lambda folder: os.utime(folder / "b", ns=(0, 5)),
    "a file is a link": lambda folder: make_link(folder / "a"),
    "a file is gone": lambda folder: (folder / "b").unlink(),
    "a folder is gone": lambda folder: shutil.rmtree(folder / "deep"),
}


class TestFolders:
    """A folder that colabstage made is replaced as long as nothing of anybody else's would be lost."""

    @pytest.mark.parametrize("edit", EDITS)
    def test_what_somebody_did_in_it_stays(self, tmp_path: Path, edit: str) -> None:
        target = tmp_path / "out"
        put_folder(make_folder(target, MADE), target, receipt)
        assert look_at(target).is_as_made
        EDITS[edit](target)
        assert not look_at(target).is_as_made
        before = names_and_bytes(target)
        newer = make_folder(target, {"a": "newer"})
        if edit.endswith("gone"):
            put_folder(newer, target, receipt)
        else:
            with pytest.raises(TargetExistsError, match=r"not from colabstage: |changed: "):
                put_folder(newer, target, receipt)
            assert names_and_bytes(target) == before
            put_folder(newer, target, receipt, overwrite=True)
        assert names_and_bytes(target) == {"a": b"newer"}
        assert look_at(target).is_as_made
        assert len([path for path in tmp_path.iterdir() if path.name not in ("a", "out")]) == 1

    def test_a_receipt_stays_as_long_as_its_owner_may_live(self, tmp_path: Path) -> None:
        target = tmp_path / "out"
        code = "from colabstage.io.workspace import owner_token; print(owner_token(), flush=True); input()"
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as child:
            assert child.stdout is not None
            put_folder(make_folder(target, MADE), target, receipt)
            (ours,) = tmp_path.glob(".colabstage-out.*.receipt")
            living, young, old = (
                ours.with_name(f".colabstage-out.{owner}.0.receipt")
                for owner in (child.stdout.readline().strip(), "0000abcd-1-5", "0000abcd-1-6")
            )
            for path in (living, young, old):
                path.write_bytes(ours.read_bytes()[:-10])
            os.utime(old, (0, 0))
            sweep_receipts(target)
            assert [path.exists() for path in (living, young, old)] == [True, True, False]
            put_folder(make_folder(target, {"a": "newer"}), target, receipt)
            assert living.exists()
            child.communicate("")
        assert look_at(target).is_as_made

    @pytest.mark.parametrize("name", ["photos", "ü" * 120])
    @pytest.mark.parametrize("moment", ["before the receipt is whole", "before the old receipt goes"])
    def test_a_death_while_a_folder_is_put_in_place_leaves_a_true_receipt(
        self, moment: str, name: str, tmp_path: Path
    ) -> None:
        target = tmp_path / name
        code = f"""
            import os, pathlib, sys
            from colabstage.io import receipts, workspace
            target = pathlib.Path(sys.argv[1])
            for content in ("old", "newer"):
                made = workspace.temp_beside(target)
                made.mkdir()
                (made / "file").write_text(content)
                if content == "newer" and {moment!r} == "before the receipt is whole":
                    receipts.sync_file = lambda _: os._exit(0)
                if content == "newer":
                    receipts.remove_named = lambda _: os._exit(0)
                receipts.put_folder(made, target, lambda: receipts.Receipt("test"))
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(target)], check=True, timeout=60)
        # An unfinished folder may be gone on with, so whoever sweeps has asked for it before.
        ownership.sweep_orphans(tmp_path, name=name)
        sweep_receipts(target)
        assert [path.suffix for path in tmp_path.iterdir() if path != target] == [".receipt"]
        assert look_at(target).is_as_made
        assert (target / "file").read_text() == ("old" if "whole" in moment else "newer")

    @pytest.mark.parametrize("theirs", ["made by another process", "somebody's"])
    def test_a_folder_that_comes_at_the_last_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str
    ) -> None:
        """What another process made there is exchanged as if it had been there before; a stranger's stays."""
        target, made, other = tmp_path / "out", workspace.temp_beside(tmp_path / "out"), tmp_path / "other"
        for folder in (made, other):
            folder.mkdir()
            (folder / "a.bin").write_bytes(folder.name.encode())
        looked = os.path.lexists

        def come(path: Path) -> bool:
            there = looked(path)
            if path == target and not there:
                monkeypatch.undo()
                if theirs == "somebody's":
                    other.rename(target)
                else:
                    put_folder(other.rename(workspace.temp_beside(target)), target, receipt)
            return there

        monkeypatch.setattr(os.path, "lexists", come)
        if theirs == "somebody's":
            with pytest.raises(TargetExistsError, match="not made by colabstage"):
                put_folder(made, target, receipt)
            assert (target / "a.bin").read_bytes() == b"other"
        else:
            put_folder(made, target, receipt)
            assert (target / "a.bin").read_bytes() == made.name.encode()
            assert look_at(target).is_as_made


def names(folder: Path) -> list[str]:
    """What is in a folder, without owners."""
    return sorted(path.name.split(".", 2)[1] if path.name.startswith(".") else path.name for path in folder.iterdir())


def as_after_a_death(target: Path) -> None:
    """Leave receipts as a process does that dies right after its work got its name: one of what was there before, and
    its own, which knows nothing of the new name yet."""
    (mine,) = receipts_of(target)
    is_folder = bool(mine.receipt.inventory)
    before = replace(
        mine.receipt, **({"inventory": {"b": "1 1"}} if is_folder else {"seal": {"inode": 0}, "hashes": ()})
    )
    noted = [note_receipt(target, before), note_receipt(target, replace(mine.receipt, seal={}))]
    mine.path.unlink()
    for number, path in enumerate(noted):
        path.rename(path.with_name(f".colabstage-{target.name}.{workspace.current_world()}-0-0.{number}.receipt"))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_fetch_that_died_before_it_cleared_up_is_not_done_again(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.bin").write_bytes(b"a" * 100_000)
    target = tmp_path / "here" / "it"
    wanted = source / "a.bin" if kind == "file" else source
    fetch_files(wanted, str(target), progress=False)
    before = names(target.parent)
    as_after_a_death(target)
    for _ in range(2):
        assert fetch_files(wanted, str(target), progress=False).fetched_bytes == 0
        assert names(target.parent) == before


def test_a_receipt_that_was_never_whole_goes_with_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"a" * 1000)
    target = tmp_path / "here" / "it"
    fetch_files(tmp_path / "a.bin", str(target), progress=False)
    before = names(target.parent)
    target.with_name(f".colabstage-it.{workspace.current_world()}-0-0.0.draft").write_bytes(b"{")
    fetch_files(tmp_path / "a.bin", str(target), progress=False)
    assert names(target.parent) == before


def test_a_receipt_does_not_vouch_for_something_else(tmp_path: Path) -> None:
    """What died before its rename has noted another file than the one that is there."""
    (tmp_path / "a.bin").write_bytes(b"a" * 1000)
    target = tmp_path / "here" / "it"
    fetch_files(tmp_path / "a.bin", str(target), progress=False)
    as_after_a_death(target)
    target.write_bytes(b"mine")
    with pytest.raises(TargetExistsError, match="changed since it was fetched"):
        fetch_files(tmp_path / "a.bin", str(target), progress=False)
    assert target.read_bytes() == b"mine"


def test_an_extraction_that_died_before_it_cleared_up_is_not_done_again(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("b/c.txt", "c")
    target = tmp_path / "here" / "a"
    extract_archive(tmp_path / "a.zip", target, progress=False)
    before = names(target.parent)
    as_after_a_death(target)
    assert extract_archive(tmp_path / "a.zip", target, progress=False).reused
    assert names(target.parent) == before
    as_after_a_death(target)
    (target / "b" / "more.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(TargetExistsError, match=r"not from colabstage: 'b/more"):
        extract_archive(tmp_path / "a.zip", target, progress=False)

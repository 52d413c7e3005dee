"""Evidence shows what is ours, and only that is removed, emptied or replaced."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from colabstage import fetch_files
from colabstage.errors import TargetExistsError
from colabstage.io import workspace
from colabstage.io.receipts import Receipt, look_at, note_receipt, put_folder, receipts_of, sweep_receipts


class TestOwners:
    def test_who_has_ended_is_dead_and_a_stranger_cannot_be_judged(self) -> None:
        """Also for a child without a waiting parent, and a process id that has been reused."""
        world, pid, started = workspace.owner_token().split("-")
        assert workspace.owner_is_alive(f"{world}-{pid}-{int(started) - 1}") is False
        for token in ("", "x", "0000abcd-1-5", "0000abcd-none-5", "a-b-c-d"):
            assert workspace.owner_is_alive(token) is None
        code = "from colabstage.io.workspace import owner_token; print(owner_token(), flush=True)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            token = child.stdout.read().strip()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert workspace.owner_is_alive(token) is False
        assert workspace.owner_is_alive(token) is False


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "数" * 85])
def test_a_long_name_leaves_room_for_the_owner(name: str, tmp_path: Path) -> None:
    with workspace.atomic_path(tmp_path / name) as temp:
        temp.write_bytes(b"whole")
    assert [path.name for path in tmp_path.iterdir()] == [name]


class TestSweep:
    def test_living_work_and_other_files_stay(self, tmp_path: Path) -> None:
        ours = workspace.temp_beside(tmp_path / "data.h5")
        kept = {ours, tmp_path / "data.h5", tmp_path / ".colabstage-x.tmp", tmp_path / "notes.tmp"}
        for path in kept:
            path.write_text("text", encoding="utf-8")
            os.utime(path, (0, 0))
        assert workspace.sweep_orphans(tmp_path) == []
        assert set(tmp_path.iterdir()) == kept

    def test_a_foreign_folder_is_as_young_as_its_youngest_file(self, tmp_path: Path) -> None:
        folder = tmp_path / ".colabstage-tree.0000abcd-1-5.0.tmp"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_text("being written", encoding="utf-8")
        os.utime(folder / "deep", (0, 0))
        os.utime(folder, (0, 0))
        assert workspace.sweep_orphans(tmp_path) == []
        os.utime(folder / "deep" / "file", (0, 0))
        assert workspace.sweep_orphans(tmp_path) == [folder]


class TestAmongOthers:
    """Without effective locks, another process may do the same between any two steps."""

    def test_a_refusal_counts_of_what_has_stayed(self, tmp_path: Path) -> None:
        target, made = tmp_path / "a.json", workspace.temp_beside(tmp_path / "a.json")
        looks: list[bytes] = []

        def look(path: Path) -> bool:
            looks.append(path.read_bytes())
            if looks == [b"strange"]:
                path.write_bytes(b"ours, of another process")
            return looks[-1] != b"strange"

        target.write_bytes(b"strange")
        made.write_bytes(b"new")
        workspace.put_file(made, target, replaces=look)
        assert target.read_bytes() == b"new"
        assert looks == [b"strange", b"ours, of another process"]
        made.write_bytes(b"newer")
        with pytest.raises(TargetExistsError):
            workspace.put_file(made, target, replaces=lambda path: path.read_bytes() != b"new")
        assert target.read_bytes() == b"new"


# --- receipts ---


def receipt() -> Receipt:
    """Return what vouches for the folders of this test."""
    return Receipt("test", {"number": 1})


def make_folder(target: Path, files: dict[str, str]) -> Path:
    """A finished folder that is to become `target`."""
    made = workspace.temp_beside(target)
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text, encoding="utf-8")
    return made


def names_and_bytes(folder: Path) -> dict[str, bytes | None]:
    """The content of a folder; of subfolders only the names."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def make_link(path: Path) -> None:
    """Replace a file by a link to it elsewhere, as people with a full disk do."""
    path.symlink_to(path.rename(path.parent.parent / path.name))


MADE = {"a": "1", "b": "2", "deep/c": "3"}
EDITS: dict[str, Callable[[Path], object]] = {
    "a file is added": lambda folder: (folder / "deep" / "mine").write_text("mine"),
    "a file is longer": lambda folder: (folder / "a").write_text("longer"),
    "a file is a link": lambda folder: make_link(folder / "a"),
    "a file is gone": lambda folder: (folder / "b").unlink(),
    "a folder is gone": lambda folder: shutil.rmtree(folder / "deep"),
}


class TestFolders:
    """A folder made by colabstage is replaced as long as nothing of anybody else's would be lost."""

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

    def test_what_changes_after_the_look_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target, file, answers = tmp_path / "out", tmp_path / "it.h5", iter([True, False, False])
        put_folder(make_folder(target, MADE), target, receipt)
        file.write_bytes(b"older")
        rename = Path.rename

        def renamed(path: Path, to: Path) -> Path:
            if to.suffix == workspace.WAS:
                monkeypatch.undo()
                (target / "mine").write_text("theirs", encoding="utf-8")
            return rename(path, to)

        def replaces(path: Path) -> bool:
            if may := next(answers):
                path.write_bytes(b"theirs")
            return may

        monkeypatch.setattr(Path, "rename", renamed)
        with pytest.raises(TargetExistsError):
            put_folder(make_folder(target, {"a": "newer"}), target, receipt)
        with pytest.raises(TargetExistsError), workspace.making_room(file, replaces=replaces):
            pass
        assert ((target / "mine").read_bytes(), file.read_bytes()) == (b"theirs", b"theirs")

    def test_a_mount_that_gives_renamed_files_new_times(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As those of object stores do, which also exchange nothing: what anything may replace is replaced."""
        rename, times = Path.rename, itertools.count(1)

        def renamed(path: Path, to: Path) -> Path:
            os.utime(rename(path, to), (0, next(times)))
            return to

        target, file = tmp_path / "out", tmp_path / "it.h5"
        put_folder(make_folder(target, MADE), target, receipt)
        file.write_bytes(b"older")
        monkeypatch.setattr(Path, "rename", renamed)
        monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: None)
        put_folder(make_folder(target, {"a": "newer"}), target, receipt, overwrite=True)
        with workspace.making_room(file, replaces=workspace.whatever_is_there):
            assert not file.exists()
        assert [path.name for path in target.iterdir()] == ["a"]
        assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".receipt"]


def names(folder: Path) -> list[str]:
    return sorted(path.name.split(".", 2)[1] if path.name.startswith(".") else path.name for path in folder.iterdir())


def as_after_a_death(target: Path) -> None:
    """Leave the receipts of a process that dies right after its work got its name: that of the earlier content, and its
    own, which does not know the new name yet."""
    ((mine, beside),) = receipts_of(target)
    is_folder = bool(mine.inventory)
    before = replace(mine, **({"inventory": {"b": "1 1"}} if is_folder else {"seal": {"inode": 0}, "hashes": ()}))
    noted = [note_receipt(target, before), note_receipt(target, replace(mine, seal={}))]
    beside.unlink()
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


def test_a_receipt_vouches_for_its_file_alone_and_one_that_was_never_whole_goes(tmp_path: Path) -> None:
    """A process that died before its rename has recorded another file than the one there."""
    (tmp_path / "a.bin").write_bytes(b"a" * 1000)
    target = tmp_path / "here" / "it"

    def fetch() -> None:
        fetch_files(tmp_path / "a.bin", str(target), progress=False)

    fetch()
    before = names(target.parent)
    target.with_name(f".colabstage-it.{workspace.current_world()}-0-0.0.draft").write_bytes(b"{")
    fetch()
    assert names(target.parent) == before
    as_after_a_death(target)
    target.write_bytes(b"mine")
    with pytest.raises(TargetExistsError, match="here/it"):
        fetch()
    assert target.read_bytes() == b"mine"

"""What is ours is told by evidence, and only that is removed, emptied or replaced."""

from __future__ import annotations

import ast
import errno
import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from colabstage.errors import TargetExistsError
from colabstage.io import ownership, receipts, workspace

# The simulated Drive is a file system: what it removes, a user asked it to. The demo clears its own temporary machine,
# and fsspec's stores have no names of ours.
_MAY_REMOVE = ("sources/buckets.py",)
MADE_BY_TEST = functools.partial(receipts.Receipt, "test")
_REMOVE = {"unlink", "rmtree", "rmdir", "truncate", "ftruncate", "rename", "renames", "removedirs"}


def removals(text: str) -> list[str]:
    """The calls in a module's text that remove, empty or replace a file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr == "O_TRUNC":
            found.append(node.attr)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, of_os = node.func.attr, isinstance(node.func.value, ast.Name) and node.func.value.id in {"os", "shutil"}
        one_path = name == "replace" and len(node.args) == 1 and not node.keywords
        if name in _REMOVE or one_path or (of_os and name in {"replace", "remove", "move"}):
            found.append(name)
    return found


def run_python(code: str, *arguments: str | Path) -> str:
    """What another process prints that has run `code`, and has ended."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def dead_owners_temp(path: Path) -> Path:
    """A temporary file for `path` whose owner has ended."""
    code = """
        import sys, pathlib
        from colabstage.io.workspace import temp_beside
        temp = temp_beside(pathlib.Path(sys.argv[1]))
        temp.write_text("half")
        print(temp)
    """
    return Path(run_python(code, path))


def adopt(path: Path, temp: Path) -> bool:
    """Take over what a dead process left unfinished for `path`, under `temp`; whether there was anything."""
    return any(workspace.take_orphan(orphan, temp) for orphan in workspace.find_orphans(path))


class TestOwners:
    def test_an_ended_process_is_dead(self) -> None:
        token = run_python("from colabstage.io.workspace import owner_token; print(owner_token())")
        assert workspace.owner_is_alive(token) is False

    def test_a_reused_process_id_is_not_the_owner(self) -> None:
        world, pid, started = workspace.owner_token().split("-")
        assert workspace.owner_is_alive(f"{world}-{pid}-{int(started) - 1}") is False

    def test_an_ended_child_nobody_waited_for_is_dead(self) -> None:
        code = "from colabstage.io.workspace import owner_token; print(owner_token(), flush=True)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            token = child.stdout.read().strip()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert workspace.owner_is_alive(token) is False

    @pytest.mark.parametrize("token", ["", "x", "0000abcd-1-5", "0000abcd-none-5", "a-b-c-d"])
    def test_a_foreign_token_cannot_be_judged(self, token: str) -> None:
        assert workspace.owner_is_alive(token) is None


class TestTempNames:
    @pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "数" * 85])
    def test_a_long_name_leaves_room_for_the_owner(self, name: str, tmp_path: Path) -> None:
        with ownership.atomic_path(tmp_path / name) as temp:
            temp.write_bytes(b"whole")
        assert [path.name for path in tmp_path.iterdir()] == [name]


class TestSweep:
    def test_a_dead_owners_leftovers_go(self, tmp_path: Path) -> None:
        left = dead_owners_temp(tmp_path / "data.h5")
        assert ownership.sweep_orphans(tmp_path) == [left]
        assert list(tmp_path.iterdir()) == []

    def test_living_work_and_other_files_stay(self, tmp_path: Path) -> None:
        ours = workspace.temp_beside(tmp_path / "data.h5")
        kept = {ours, tmp_path / "data.h5", tmp_path / ".colabstage-x.tmp", tmp_path / "notes.tmp"}
        for path in kept:
            path.write_text("text", encoding="utf-8")
            os.utime(path, (0, 0))
        assert ownership.sweep_orphans(tmp_path) == []
        assert set(tmp_path.iterdir()) == kept

    def test_with_a_name_only_its_leftovers_go(self, tmp_path: Path) -> None:
        other, own = dead_owners_temp(tmp_path / "a.h5.json"), dead_owners_temp(tmp_path / "a.h5")
        assert ownership.sweep_orphans(tmp_path, name="a.h5") == [own]
        assert other.exists()

    def test_foreign_leftovers_go_only_when_old(self, tmp_path: Path) -> None:
        young, old = (tmp_path / f".colabstage-{name}.0000abcd-1-5.0.tmp" for name in ("young", "old"))
        for path in (young, old):
            path.write_text("half", encoding="utf-8")
        os.utime(old, (0, 0))
        assert ownership.sweep_orphans(tmp_path) == [old]
        assert young.exists()

    def test_a_foreign_folder_is_as_young_as_its_youngest_file(self, tmp_path: Path) -> None:
        folder = tmp_path / ".colabstage-tree.0000abcd-1-5.0.tmp"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_text("being written", encoding="utf-8")
        os.utime(folder / "deep", (0, 0))
        os.utime(folder, (0, 0))
        assert ownership.sweep_orphans(tmp_path) == []
        os.utime(folder / "deep" / "file", (0, 0))
        assert ownership.sweep_orphans(tmp_path) == [folder]


class TestAdoption:
    def test_a_dead_owners_work_is_taken_over_once(self, tmp_path: Path) -> None:
        target, mine = tmp_path / "data.h5", workspace.temp_beside(tmp_path / "data.h5")
        dead_owners_temp(target)
        assert adopt(target, mine) is True
        assert mine.read_text(encoding="utf-8") == "half"
        assert adopt(target, workspace.temp_beside(target)) is False

    def test_disowned_work_can_be_taken_by_this_process(self, tmp_path: Path) -> None:
        target, temp = tmp_path / "data.h5", workspace.temp_beside(tmp_path / "data.h5")
        temp.write_text("half", encoding="utf-8")
        workspace.leave_for_next(temp)
        assert not temp.exists()
        assert adopt(target, workspace.temp_beside(target)) is True


class TestAtomicPath:
    @pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
    def test_failure_keeps_the_old_one(self, error: BaseException, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("old", encoding="utf-8")

        def write_half() -> None:
            with ownership.atomic_path(path) as temp:
                temp.write_text("half", encoding="utf-8")
                raise error

        with pytest.raises(type(error)):
            write_half()
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_does_not_replace_a_full_one(self, tmp_path: Path) -> None:
        path = tmp_path / "tree"
        path.mkdir()
        (path / "file").write_text("old", encoding="utf-8")
        with pytest.raises(OSError, match="not empty"), ownership.atomic_path(path) as temp:
            temp.mkdir()
        assert [entry.name for entry in tmp_path.rglob("*")] == ["tree", "file"]


class TestSync:
    def test_what_has_no_fsync_passes_and_what_fails_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        sync = os.fsync

        def watched(handle: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
            sync(handle)

        monkeypatch.setattr(os, "fsync", watched)
        places = (tmp_path, Path("/proc/version"))
        for place in places:
            ownership.sync_file(place)
        assert synced == list(map(str, places))

        def broken(_: int) -> None:
            raise OSError(errno.EIO, "the disk is broken")

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="broken"):
            ownership.sync_file(tmp_path)


class TestOneOwner:
    def test_whoever_removes_asks(self) -> None:
        package = Path(ownership.__file__).parent.parent
        found = {
            name: calls
            for path in sorted(package.rglob("*.py"))
            if (name := str(path.relative_to(package))) not in ("io/ownership.py", "io/workspace.py")
            and not name.startswith(_MAY_REMOVE)
            and (calls := removals(path.read_text("utf-8")))
        }
        assert found == {}

    @pytest.mark.parametrize(
        ("code", "calls"),
        [
            ("path.unlink()", ["unlink"]),
            ("os.replace(a, b)", ["replace"]),
            ("a.rename(b)", ["rename"]),
            ("a.replace(b)", ["replace"]),
            ("os.remove(a)", ["remove"]),
            ("shutil.rmtree(a)", ["rmtree"]),
            ("os.truncate(a, 0)", ["truncate"]),
            ("os.open(a, os.O_TRUNC)", ["O_TRUNC"]),
            ("text.replace('a', 'b'); items.remove(1); replace(record, seal={}); stamp.replace(tzinfo=None)", []),
        ],
    )
    def test_a_planted_call_is_noticed(self, code: str, calls: list[str]) -> None:
        assert removals(code) == calls


@pytest.mark.parametrize("vouches", [True, False])
def test_what_another_process_removes_meanwhile_is_gone(tmp_path: Path, vouches: bool) -> None:
    """Where locks hold nobody off, two may remove or replace one file at once; neither fails."""
    target, made = tmp_path / "a.json", tmp_path / ".colabstage-a.json.x-1-1.0.tmp"

    def lost(path: Path) -> bool:
        path.unlink()
        return vouches

    def lost_while_read(path: Path) -> bool:
        path.unlink()
        return bool(path.read_bytes())

    for look in (lost, lost_while_read):
        target.write_bytes(b"old")
        assert ownership.remove_vouched(target, look)
        made.write_bytes(b"new")
        target.write_bytes(b"old")
        ownership.put_file(made, target, replaces=look)
        assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_only_what_is_finished_in_a_temporary_is_put_in_a_place(tmp_path: Path) -> None:
    """Anything else would be taken away from somebody."""
    file, folder, out = (tmp_path / name for name in ("file", "folder", "out"))
    file.write_bytes(b"mine")
    folder.mkdir()
    with pytest.raises(ValueError, match="not a temporary"):
        ownership.put_file(file, out, replaces=ownership.whatever_is_there)
    with pytest.raises(ValueError, match="not a temporary"):
        receipts.put_folder(folder, out, MADE_BY_TEST)
    assert sorted(tmp_path.iterdir()) == [file, folder]


class TestAmongOthers:
    """Where locks hold nobody off, another process may do the same between any two steps."""

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
        ownership.put_file(made, target, replaces=look)
        assert target.read_bytes() == b"new"
        assert looks == [b"strange", b"ours, of another process"]
        made.write_bytes(b"newer")
        with pytest.raises(TargetExistsError):
            ownership.put_file(made, target, replaces=lambda path: path.read_bytes() != b"new")
        assert target.read_bytes() == b"new"

    def test_what_is_missing_for_good_is_told(self, tmp_path: Path) -> None:
        made = workspace.temp_beside(tmp_path / "a.json")
        made.write_bytes(b"new")
        with pytest.raises(FileNotFoundError):
            ownership.put_file(made, tmp_path / "gone" / "a.json", replaces=ownership.whatever_is_there)
        tries = []

        def fail() -> None:
            tries.append(1)
            raise PermissionError(errno.EACCES, "no")

        with pytest.raises(PermissionError):
            ownership.among_others(fail, tmp_path)
        assert tries == [1]


def test_a_second_name_is_given_to_what_has_one(tmp_path: Path) -> None:
    target, folder = tmp_path / "a.h5", workspace.temp_beside(tmp_path / "a.h5")
    folder.mkdir()
    target.write_bytes(b"pack")
    assert workspace.link_own(target, folder / "1")
    assert (folder / "1").samefile(target)
    assert not workspace.link_own(target, folder / "2")
    (tmp_path / "link").symlink_to(target)
    assert not workspace.link_own(tmp_path / "link", folder / "3")
    assert not workspace.link_own(tmp_path / "none", folder / "4")
    with pytest.raises(ValueError, match="not a temporary"):
        workspace.link_own(target, tmp_path / "mine")
    assert [entry.name for entry in folder.iterdir()] == ["1"]


def test_a_folder_that_somebody_living_works_in(tmp_path: Path) -> None:
    mine = workspace.temp_beside(tmp_path / "data.h5.copy")
    mine.mkdir()
    dead_owners_temp(tmp_path / "data.h5")
    assert not workspace.is_worked_in(tmp_path, but=mine)
    other = workspace.temp_beside(tmp_path / "data.h5")
    other.mkdir()
    assert workspace.is_worked_in(tmp_path, but=mine)

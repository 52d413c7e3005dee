"""Files that are whole or absent, temporary names with an owner, block hashes, the local lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage import fileops
from colabstage.errors import TargetNotWritableError


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
        from colabstage.fileops import temp_beside
        temp = temp_beside(pathlib.Path(sys.argv[1]))
        temp.write_text("half")
        print(temp)
    """
    return Path(run_python(code, path))


class TestOwners:
    """Who made a temporary file, and whether it still runs."""

    def test_this_process_is_alive(self) -> None:
        """Our own token is a living one."""
        assert fileops.owner_is_alive(fileops.owner_token()) is True

    def test_an_ended_process_is_dead(self) -> None:
        """A token outlives its process, and says so."""
        token = run_python("from colabstage.fileops import owner_token; print(owner_token())")
        assert fileops.owner_is_alive(token) is False

    def test_a_reused_process_id_is_not_the_owner(self) -> None:
        """The same process id with another start time is another process."""
        world, pid, started = fileops.owner_token().split("-")
        assert fileops.owner_is_alive(f"{world}-{pid}-{int(started) - 1}") is False

    def test_an_ended_child_nobody_waited_for_is_dead(self) -> None:
        """A zombie owns nothing."""
        code = "from colabstage.fileops import owner_token; print(owner_token(), flush=True)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            token = child.stdout.read().strip()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert fileops.owner_is_alive(token) is False

    @pytest.mark.parametrize("token", ["", "x", "0000abcd-1-5", "0000abcd-none-5", "a-b-c-d"])
    def test_a_foreign_token_cannot_be_judged(self, token: str) -> None:
        """Another boot's, another container's or a malformed token is neither alive nor dead."""
        assert fileops.owner_is_alive(token) is None

    def test_without_a_start_time_nothing_is_judged(self) -> None:
        """A token from where the kernel does not tell start times may belong to somebody alive."""
        world, pid, _ = fileops.owner_token().split("-")
        assert fileops.owner_is_alive(f"{world}-{pid}-") is None


class TestTempNames:
    """Temporary names are fresh, beside their target and short enough."""

    def test_names_differ_and_stay_in_the_folder(self, tmp_path: Path) -> None:
        """Two names for one target are two files of the same folder."""
        names = {fileops.temp_beside(tmp_path / "data.h5") for _ in range(3)}
        assert len(names) == 3
        assert {name.parent for name in names} == {tmp_path}

    @pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "数" * 85])
    def test_a_long_name_leaves_room_for_the_owner(self, name: str, tmp_path: Path) -> None:
        """The longest name that a file system takes can still be written beside."""
        with fileops.atomic_path(tmp_path / name) as temp:
            temp.write_bytes(b"whole")
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_long_names_that_differ_at_the_end_stay_apart(self, tmp_path: Path) -> None:
        """What is cut off still tells two targets apart."""
        left = dead_owners_temp(tmp_path / ("n" * 200 + "a"))
        assert not fileops.adopt_orphan(tmp_path / ("n" * 200 + "b"), tmp_path / "mine")
        assert fileops.adopt_orphan(tmp_path / ("n" * 200 + "a"), tmp_path / "mine")
        assert not left.exists()


class TestSweep:
    """Leftovers of the dead go, everything else stays."""

    def test_a_dead_owners_leftovers_go(self, tmp_path: Path) -> None:
        """A dead process's temporary file is removed and reported."""
        left = dead_owners_temp(tmp_path / "data.h5")
        assert fileops.sweep_orphans(tmp_path) == [left]
        assert list(tmp_path.iterdir()) == []

    def test_living_work_and_other_files_stay(self, tmp_path: Path) -> None:
        """Our own temporary file and files that only look alike are not touched."""
        ours = fileops.temp_beside(tmp_path / "data.h5")
        kept = {ours, tmp_path / "data.h5", tmp_path / ".colabstage-x.tmp", tmp_path / "notes.tmp"}
        for path in kept:
            path.write_text("text", encoding="utf-8")
            os.utime(path, (0, 0))
        assert fileops.sweep_orphans(tmp_path) == []
        assert set(tmp_path.iterdir()) == kept

    def test_with_a_name_only_its_leftovers_go(self, tmp_path: Path) -> None:
        """A target's name is matched whole: 'a.h5' is not 'a.h5.json'."""
        other, own = dead_owners_temp(tmp_path / "a.h5.json"), dead_owners_temp(tmp_path / "a.h5")
        assert fileops.sweep_orphans(tmp_path, name="a.h5") == [own]
        assert other.exists()

    def test_foreign_leftovers_go_only_when_old(self, tmp_path: Path) -> None:
        """What another machine left is removed once nothing has touched it for an hour."""
        young, old = (tmp_path / f".colabstage-{name}.0000abcd-1-5.0.tmp" for name in ("young", "old"))
        for path in (young, old):
            path.write_text("half", encoding="utf-8")
        os.utime(old, (0, 0))
        assert fileops.sweep_orphans(tmp_path) == [old]
        assert young.exists()

    def test_a_foreign_folder_is_as_young_as_its_youngest_file(self, tmp_path: Path) -> None:
        """Writing deep inside a folder keeps the folder, whose own time does not change by that."""
        folder = tmp_path / ".colabstage-tree.0000abcd-1-5.0.tmp"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_text("being written", encoding="utf-8")
        os.utime(folder / "deep", (0, 0))
        os.utime(folder, (0, 0))
        assert fileops.sweep_orphans(tmp_path) == []
        os.utime(folder / "deep" / "file", (0, 0))
        assert fileops.sweep_orphans(tmp_path) == [folder]

    def test_no_folder_is_nothing_to_sweep(self, tmp_path: Path) -> None:
        """A folder that is not there yet is clean."""
        assert fileops.sweep_orphans(tmp_path / "none") == []


class TestAdoption:
    """Unfinished work of the dead can be gone on with."""

    def test_a_dead_owners_work_is_taken_over_once(self, tmp_path: Path) -> None:
        """The first to ask gets it under its own name, the second finds nothing."""
        target, mine = tmp_path / "data.h5", fileops.temp_beside(tmp_path / "data.h5")
        dead_owners_temp(target)
        assert fileops.adopt_orphan(target, mine) is True
        assert mine.read_text(encoding="utf-8") == "half"
        assert fileops.adopt_orphan(target, fileops.temp_beside(target)) is False

    def test_living_work_is_not_taken(self, tmp_path: Path) -> None:
        """What a living process writes stays its own."""
        target = tmp_path / "data.h5"
        ours = fileops.temp_beside(target)
        ours.write_text("being written", encoding="utf-8")
        assert fileops.adopt_orphan(target, tmp_path / "mine") is False
        assert ours.exists()

    def test_disowned_work_can_be_taken_by_this_process(self, tmp_path: Path) -> None:
        """After an error a process leaves its work to its own next try."""
        target, temp = tmp_path / "data.h5", fileops.temp_beside(tmp_path / "data.h5")
        temp.write_text("half", encoding="utf-8")
        fileops.disown(temp)
        assert not temp.exists()
        assert fileops.adopt_orphan(target, fileops.temp_beside(target)) is True

    def test_another_targets_work_is_not_taken(self, tmp_path: Path) -> None:
        """'a.h5' does not take over what was to become 'a.h5.json'."""
        dead_owners_temp(tmp_path / "a.h5.json")
        assert fileops.adopt_orphan(tmp_path / "a.h5", tmp_path / "mine") is False


class TestAtomicPath:
    """A file is the old one or the new one."""

    def test_success_replaces(self, tmp_path: Path) -> None:
        """The new content stands at the path, and nothing else is in the folder."""
        path = tmp_path / "file"
        path.write_text("old", encoding="utf-8")
        with fileops.atomic_path(path) as temp:
            temp.write_text("new", encoding="utf-8")
            assert path.read_text(encoding="utf-8") == "old"
        assert path.read_text(encoding="utf-8") == "new"
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
    def test_failure_keeps_the_old_one(self, error: BaseException, tmp_path: Path) -> None:
        """An error or Ctrl-C leaves what was there and no leftover."""
        path = tmp_path / "file"
        path.write_text("old", encoding="utf-8")

        def write_half() -> None:
            with fileops.atomic_path(path) as temp:
                temp.write_text("half", encoding="utf-8")
                raise error

        with pytest.raises(type(error)):
            write_half()
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_does_not_replace_a_full_one(self, tmp_path: Path) -> None:
        """A folder with something in it is never replaced."""
        path = tmp_path / "tree"
        path.mkdir()
        (path / "file").write_text("old", encoding="utf-8")
        with pytest.raises(OSError, match="not empty"), fileops.atomic_path(path) as temp:
            temp.mkdir()
        assert [entry.name for entry in tmp_path.rglob("*")] == ["tree", "file"]

    def test_a_folder_appears_whole(self, tmp_path: Path) -> None:
        """A folder stands at an absent path once it is complete."""
        with fileops.atomic_path(tmp_path / "tree") as temp:
            temp.mkdir()
            (temp / "file").write_text("text", encoding="utf-8")
            assert not (tmp_path / "tree").exists()
        assert (tmp_path / "tree" / "file").exists()


class TestSync:
    """Bytes reach the disk, or somebody hears of it."""

    def test_files_and_folders_can_be_synced(self, tmp_path: Path) -> None:
        """Both kinds pass on a normal disk."""
        (tmp_path / "file").write_text("text", encoding="utf-8")
        fileops.sync_file(tmp_path / "file")
        fileops.sync_file(tmp_path)

    def test_what_cannot_be_synced_passes(self) -> None:
        """A file system without fsync is left as it is: /proc answers 'invalid argument'."""
        fileops.sync_file(Path("/proc/self/status"))


class TestMakeFolder:
    """A folder to write to, or an error that says why not."""

    def test_parents_are_made_and_twice_is_fine(self, tmp_path: Path) -> None:
        """Missing parents are created; an existing folder is accepted."""
        fileops.make_folder(tmp_path / "a" / "b")
        fileops.make_folder(tmp_path / "a" / "b")
        assert (tmp_path / "a" / "b").is_dir()

    def test_a_file_in_the_way_is_named(self, tmp_path: Path) -> None:
        """A file where a folder should be is a typed error, and stays."""
        (tmp_path / "file").write_text("text", encoding="utf-8")
        with pytest.raises(TargetNotWritableError, match=r"/file/x' .*Choose another place"):
            fileops.make_folder(tmp_path / "file" / "x")
        with pytest.raises(TargetNotWritableError, match=r"/file' "):
            fileops.make_folder(tmp_path / "file")
        assert (tmp_path / "file").read_text(encoding="utf-8") == "text"

    def test_a_folder_of_a_read_only_file_system_is_refused(self) -> None:
        """Being there is not enough: /proc takes nothing, from root either."""
        with pytest.raises(TargetNotWritableError, match="'/proc/colabstage'"):
            fileops.make_folder(Path("/proc/colabstage"))


class TestJson:
    """Small facts on disk."""

    def test_what_was_written_is_read(self, tmp_path: Path) -> None:
        """Values come back, names with undecodable bytes included."""
        value = {"b": [1, 2.5, None], "a": "ü", "name": os.fsdecode(b"\xff.jpg")}
        fileops.write_json(tmp_path / "x.json", value)
        assert fileops.read_json(tmp_path / "x.json") == value

    @pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\x00\x00\x00", b"\xff\xfe"])
    def test_half_a_file_is_none(self, content: bytes, tmp_path: Path) -> None:
        """A truncated, zeroed or garbled file counts as absent."""
        (tmp_path / "x.json").write_bytes(content)
        assert fileops.read_json(tmp_path / "x.json") is None

    def test_no_file_is_none(self, tmp_path: Path) -> None:
        """Neither a missing file nor a missing folder is an error."""
        (tmp_path / "file").write_bytes(b"")
        assert fileops.read_json(tmp_path / "none") is None
        assert fileops.read_json(tmp_path / "file" / "x.json") is None

    def test_what_json_cannot_hold_keeps_the_old_file(self, tmp_path: Path) -> None:
        """A value that cannot be written loses nothing."""
        fileops.write_json(tmp_path / "x.json", 1)
        with pytest.raises(TypeError):
            fileops.write_json(tmp_path / "x.json", {1, 2})
        assert fileops.read_json(tmp_path / "x.json") == 1
        assert len(list(tmp_path.iterdir())) == 1


class TestBlocks:
    """Blocks, their hashes, and reads and writes that are whole."""

    @given(size=st.integers(0, 10_000), block=st.integers(1, 3000))
    def test_blocks_cover_the_file_once(self, size: int, block: int) -> None:
        """Blocks follow each other without gap or overlap, all but the last of full length."""
        ranges = fileops.block_ranges(size, block)
        assert sum(length for _, length in ranges) == size
        assert [offset for offset, _ in ranges] == [number * block for number in range(len(ranges))]
        assert all(length == block for _, length in ranges[:-1])
        assert all(0 < length <= block for _, length in ranges[-1:])

    @pytest.mark.parametrize("threads", [1, 4])
    def test_hashes_are_those_of_the_parts(self, threads: int, tmp_path: Path) -> None:
        """Hashes stand in the order asked for, however many threads there are."""
        data = np.random.default_rng(0).bytes(10_000)
        (tmp_path / "file").write_bytes(data)
        ranges = [(9000, 1000), (0, 4096), (4096, 4904), (9990, 100), (20_000, 10)]
        expected = [fileops.hash_block(data[offset : offset + length]) for offset, length in ranges]
        assert fileops.hash_ranges(tmp_path / "file", ranges, threads=threads) == expected
        assert expected[-1] == "2d06800538d394c2"  # XXH3-64 of nothing, from its specification

    @pytest.mark.parametrize("shape", [(0,), (0, 3), (7,), (5, 3)])
    def test_what_was_written_at_an_offset_is_read_there(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        """Arrays of any shape go out as their bytes; reading stops at the end of the file."""
        data = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        try:
            fileops.pwrite_exactly(handle, data.data, 100)
            assert fileops.pread_exactly(handle, data.nbytes, 100) == data.tobytes()
            assert fileops.pread_exactly(handle, data.nbytes + 50, 100) == data.tobytes()
        finally:
            os.close(handle)


class TestLocalLock:
    """The lock spares work and never stands in the way."""

    def test_it_is_held_and_let_go(self, tmp_path: Path) -> None:
        """Inside it is held; afterwards it can be had again."""
        for _ in range(2):
            with fileops.local_lock(tmp_path / "lock", timeout_s=1) as held:
                assert held

    def test_a_second_holder_goes_on_without(self, tmp_path: Path) -> None:
        """Who does not get the lock in time is told so, and the first one's stays held."""
        answers: list[bool] = []

        def ask() -> None:
            with fileops.local_lock(tmp_path / "lock", timeout_s=0.05) as held:
                answers.append(held)

        with fileops.local_lock(tmp_path / "lock", timeout_s=1):
            for _ in range(2):
                other = threading.Thread(target=ask)
                other.start()
                other.join()
        assert answers == [False, False]

    def test_who_waits_is_told_for_whom(self, tmp_path: Path) -> None:
        """Both sentences name the process that holds the lock, and the deadline is kept."""
        said: list[str] = []
        with (
            fileops.local_lock(tmp_path / "lock", timeout_s=1),
            fileops.local_lock(tmp_path / "lock", timeout_s=0.8, notice=said.append) as held,
        ):
            assert not held
        assert len(said) == 2
        assert all(f"process {os.getpid()} (" in sentence for sentence in said)
        assert said[0].startswith("Waited for")
        assert said[1].startswith("Went on beside")

    def test_no_place_for_a_lock_is_no_error(self) -> None:
        """Where no lock file can be made, the work goes on without."""
        with fileops.local_lock(Path("/proc/colabstage.lock"), timeout_s=0.05) as held:
            assert not held

    def test_an_error_inside_lets_go(self, tmp_path: Path) -> None:
        """An error of the work passes through, and the lock is free."""
        with pytest.raises(ValueError, match="work"), fileops.local_lock(tmp_path / "lock", timeout_s=1):
            raise ValueError("work")
        with fileops.local_lock(tmp_path / "lock", timeout_s=0.05) as held:
            assert held


def test_a_folder_is_measured_while_others_clear_it(tmp_path: Path) -> None:
    """Folders that come and go during the walk neither raise nor hide what stays."""
    (tmp_path / "stays").write_bytes(bytes(4096))
    stop = threading.Event()

    def churn(number: int) -> None:
        while not stop.is_set():
            folder = tmp_path / f"comes-{number}" / "and" / "goes"
            folder.mkdir(parents=True)
            (folder / "file").write_bytes(b"x")
            shutil.rmtree(tmp_path / f"comes-{number}")

    with ThreadPoolExecutor(3) as pool:
        churns = [pool.submit(churn, number) for number in range(3)]
        try:
            sizes = [fileops.disk_use(tmp_path) for _ in range(300)]
        finally:
            stop.set()
        for done in churns:
            done.result(timeout=10)
    assert min(sizes) >= 4096

"""Folders, JSON that is whole or absent, block hashes, the local lock."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import TargetNotWritableError
from colabstage.io import files as fileops
from colabstage.io.workspace import disk_use


class TestMakeFolder:
    def test_parents_are_made_and_twice_is_fine(self, tmp_path: Path) -> None:
        fileops.make_folder(tmp_path / "a" / "b")
        fileops.make_folder(tmp_path / "a" / "b")
        assert (tmp_path / "a" / "b").is_dir()

    def test_a_file_in_the_way_is_named(self, tmp_path: Path) -> None:
        """A file where a folder should be is a typed error, and stays."""
        (tmp_path / "file").write_text("text", encoding="utf-8")
        with pytest.raises(TargetNotWritableError, match=r"/file/x'.*/file'"):
            fileops.make_folder(tmp_path / "file" / "x")
        with pytest.raises(TargetNotWritableError, match=r"/file' "):
            fileops.make_folder(tmp_path / "file")
        assert (tmp_path / "file").read_text(encoding="utf-8") == "text"

    def test_a_folder_of_a_read_only_file_system_is_refused(self) -> None:
        with pytest.raises(TargetNotWritableError, match="'/proc/colabstage'"):
            fileops.make_folder(Path("/proc/colabstage"))


class TestJson:
    def test_what_was_written_is_read(self, tmp_path: Path) -> None:
        value = {"b": [1, 2.5, None], "a": "ü", "name": os.fsdecode(b"\xff.jpg")}
        fileops.write_json(tmp_path / "x.json", value)
        assert fileops.read_json(tmp_path / "x.json") == value

    @pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\x00\x00\x00", b"\xff\xfe"])
    def test_half_a_file_is_none(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_bytes(content)
        assert fileops.read_json(tmp_path / "x.json") is None

    def test_what_json_cannot_hold_keeps_the_old_file(self, tmp_path: Path) -> None:
        fileops.write_json(tmp_path / "x.json", 1)
        with pytest.raises(TypeError):
            fileops.write_json(tmp_path / "x.json", {1, 2})
        assert fileops.read_json(tmp_path / "x.json") == 1
        assert len(list(tmp_path.iterdir())) == 1


class TestBlocks:
    @given(size=st.integers(0, 10_000), block=st.integers(1, 3000))
    def test_blocks_cover_the_file_once(self, size: int, block: int) -> None:
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
        data = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        try:
            fileops.pwrite_exactly(handle, data.data, 100)
            assert fileops.pread_exactly(handle, data.nbytes, 100) == data.tobytes()
            assert fileops.pread_exactly(handle, data.nbytes + 50, 100) == data.tobytes()
        finally:
            os.close(handle)


class TestLocalLock:
    def test_is_let_go_though_its_file_cannot_be_removed(self, tmp_path: Path) -> None:
        path = tmp_path / ".colabstage-x.lock"
        with (
            mock.patch.object(fileops, "remove_named", side_effect=OSError(errno.EROFS, "Read-only file system")),
            pytest.raises(OSError, match="Read-only") as kept,
            fileops.local_lock(path, timeout_s=1),
        ):
            pass
        with fileops.local_lock(path, timeout_s=0.05) as held:
            assert held
        assert kept.tb is not None  # which keeps the first lock's frames alive

    def test_who_waits_is_told_for_whom(self, tmp_path: Path) -> None:
        said: list[str] = []
        with (
            fileops.local_lock(tmp_path / ".colabstage-x.lock", timeout_s=1),
            fileops.local_lock(tmp_path / ".colabstage-x.lock", timeout_s=0.8, notice=said.append) as held,
        ):
            assert not held
        assert len(said) == 2
        assert all(".colabstage-x.lock" in sentence for sentence in said)

    def test_no_place_for_a_lock_is_no_error(self) -> None:
        """Where no lock file can be made, the work goes on without."""
        with fileops.local_lock(Path("/proc/.colabstage-x.lock"), timeout_s=0.05) as held:
            assert not held

    def test_its_file_goes_with_it(self, tmp_path: Path) -> None:
        lock = tmp_path / ".colabstage-x.lock"
        waiting = threading.Event()
        held: list[bool] = []

        def wait_for_it() -> None:
            with (
                fileops.local_lock(lock, timeout_s=20, notice=lambda _: waiting.set()) as mine,
                fileops.local_lock(lock, timeout_s=0) as others,
            ):
                held.extend((mine, others))

        with fileops.local_lock(lock, timeout_s=1):
            other = threading.Thread(target=wait_for_it)
            other.start()
            assert waiting.wait(10)
        other.join()
        assert held == [True, False]
        assert list(tmp_path.iterdir()) == []

    def test_what_the_dead_held_is_cleared_and_the_living_hold_stays(self, tmp_path: Path) -> None:
        lock = tmp_path / ".colabstage-x.lock"
        fileops.clear_lock(lock)
        lock.touch()
        fileops.clear_lock(lock)
        assert not lock.exists()
        with fileops.local_lock(lock, timeout_s=1):
            fileops.clear_lock(lock)
            assert lock.exists()

    def test_an_error_inside_lets_go(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="work"), fileops.local_lock(tmp_path / ".colabstage-x.lock", timeout_s=1):
            raise ValueError("work")
        with fileops.local_lock(tmp_path / ".colabstage-x.lock", timeout_s=0.05) as held:
            assert held


def test_a_folder_is_measured_while_others_clear_it(tmp_path: Path) -> None:
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
            sizes = [disk_use(tmp_path) for _ in range(300)]
        finally:
            stop.set()
        for done in churns:
            done.result(timeout=10)
    assert min(sizes) >= 4096

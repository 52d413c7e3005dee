"""One whole file to its place: verified or not at all, and never the same block fetched twice, whatever happens."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import (
    CancelledError,
    ChecksumMismatchError,
    NotEnoughSpaceError,
    SourceChangedError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.io.files import RetryPolicy, block_ranges, hash_ranges
from colabstage.io.progress import Cancellation
from colabstage.io.workspace import temp_beside
from colabstage.sources.arriving import content_of, fetch_file
from colabstage.sources.blocks import count_noted
from colabstage.sources.remote import Checksum, TransientError
from tests.sources import remotes
from tests.sources.remotes import MemoryFile, changed, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.sources.arriving import FetchedFile

MIB = 1024 * 1024
BLOCK = 8 * MIB
SIZE = 5 * BLOCK + 777_777
SEED = 3


@pytest.fixture(scope="module")
def content() -> bytes:
    """Five blocks and a bit."""
    return random_bytes(SIZE, SEED)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the file goes."""
    return tmp_path / "data.bin"


@pytest.fixture
def fetch(target: Path, step: Any) -> Callable[..., FetchedFile]:
    """`fetch_file` to the target, if nothing else is said."""

    def run(source: MemoryFile, place: Path = target, **changes: Any) -> FetchedFile:
        options: dict[str, Any] = {
            "step": step,
            "cancellation": Cancellation(),
            "policy": RetryPolicy(attempts=2, first_wait_s=0.01),
            **changes,
        }
        return fetch_file(source, place, **options)

    return run


def sha256(content: bytes) -> Checksum:
    """What a service would say of it."""
    return Checksum("sha256", hashlib.sha256(content).hexdigest())


def names(folder: Path) -> list[str]:
    """Everything in a folder."""
    return sorted(path.name for path in folder.iterdir())


def interrupt(fetch: Callable[..., FetchedFile], content: bytes, blocks: int, **options: Any) -> None:
    """Fetch so many blocks, one after the other, and fail."""
    source = MemoryFile(content, connections=1, at=_failing_at(blocks * BLOCK), **options)
    with pytest.raises(ValueError, match="interrupted"):
        fetch(source)


def _failing_at(stop: int) -> Callable[[int], None]:
    def at(position: int) -> None:
        if position >= stop:
            raise ValueError("interrupted")

    return at


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, SIZE])
@pytest.mark.parametrize("known", [True, False])
def test_file_is_exact_whatever_its_length(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path, step: Any, size: int, known: bool
) -> None:
    """All bytes, counted once, hashed by blocks; nothing else is left. Also where nobody says the length."""
    source = MemoryFile(content[:size], size=size if known else None, checksum=sha256(content[:size]))
    done = fetch(source)
    assert target.read_bytes() == content[:size]
    assert names(target.parent) == ["data.bin"]
    assert done.block_hashes == tuple(hash_ranges(target, block_ranges(size, BLOCK), threads=1))
    assert (done.path, done.nbytes, done.kept_bytes) == (target, size, 0)
    assert step.total == size
    assert not source.closed


def test_folders_are_made_and_the_old_file_is_replaced(
    fetch: Callable[..., FetchedFile], content: bytes, tmp_path: Path
) -> None:
    """The place need not exist; what stood there goes only at the end."""
    place = tmp_path / "a" / "b" / "data.bin"
    fetch(MemoryFile(b"first"), place)
    seen: list[bytes] = []
    fetch(MemoryFile(content, at=lambda position: seen.append(place.read_bytes())), place)
    assert set(seen) == {b"first"}
    assert place.read_bytes() == content


def test_folder_at_the_target_is_refused(fetch: Callable[..., FetchedFile], content: bytes, target: Path) -> None:
    """Nothing is asked of the source."""
    target.mkdir()
    source = MemoryFile(content)
    with pytest.raises(TargetExistsError, match="is a folder"):
        fetch(source)
    assert source.requests == []


def sent_once(source: MemoryFile, size: int) -> bool:
    """Whether about `size` bytes were sent. A connection that lags sends a little of what another has taken over."""
    return size <= source.sent < size + SIZE // 10


def test_wrong_checksum_never_gets_to_the_target(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path
) -> None:
    """Both digests are said; the file is kept under a name of its own, and is not gone on with."""
    target.write_bytes(b"precious")
    wrong = sha256(b"something else")
    for name in ("data.bin.damaged", "data.bin.damaged-2"):
        source = MemoryFile(content, checksum=wrong)
        with pytest.raises(ChecksumMismatchError, match=rf"{sha256(content).digest}.*{wrong.digest}.*{name}"):
            fetch(source)
        assert sent_once(source, SIZE)
        assert target.with_name(name).read_bytes() == content
    assert target.read_bytes() == b"precious"
    assert names(target.parent) == ["data.bin", "data.bin.damaged", "data.bin.damaged-2"]


def test_interrupted_fetch_keeps_what_is_verified(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path, step: Any
) -> None:
    """The old file stands, finished blocks are kept, and only the others are fetched; the checksum is of all of it."""
    target.write_bytes(b"precious")
    checksum = sha256(content)
    interrupt(fetch, content, 3, checksum=checksum)
    assert target.read_bytes() == b"precious"
    step.total = 0
    source = MemoryFile(content, checksum=checksum)
    done = fetch(source)
    assert done.kept_bytes == 3 * BLOCK
    assert sent_once(source, SIZE - 3 * BLOCK)
    assert step.total == SIZE
    assert target.read_bytes() == content
    assert names(target.parent) == ["data.bin"]


def test_blocks_that_changed_on_the_disk_are_fetched_again(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path
) -> None:
    """The table's word is not enough: the bytes have to have the hash that it says."""
    interrupt(fetch, content, 3)
    (data,) = target.parent.glob(".colabstage-*/data")
    with data.open("r+b") as file:
        file.seek(BLOCK + 5)
        file.write(b"!!!")
    done = fetch(MemoryFile(content))
    assert done.kept_bytes == 2 * BLOCK
    assert target.read_bytes() == content


@pytest.mark.parametrize("table", ["cut", "of 0.1"])
def test_data_without_a_table_counts_for_nothing(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path, table: str
) -> None:
    """Neither that bytes are there nor how many says anything about them, nor does the journal of another version."""
    interrupt(fetch, content, 3)
    (path,) = target.parent.glob(".colabstage-*/blocks")
    (path.parent / "data").write_bytes(content)
    line = b'{"format": 2, "label": "memory:data.bin"}\n[0, "0123456789abcdef"]\n'
    path.write_bytes(path.read_bytes()[:100] if table == "cut" else line)
    source = MemoryFile(content)
    assert fetch(source).kept_bytes == 0
    assert sent_once(source, SIZE)
    assert names(target.parent) == ["data.bin"]


@pytest.mark.parametrize("change", ["version", "content", "unprovable"])
def test_other_versions_are_not_gone_on_with(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path, change: str
) -> None:
    """Another version, another length, or nothing that would tell: everything is fetched anew."""
    interrupt(fetch, content, 3, version="" if change == "unprovable" else "1")
    now = content[1:] if change == "content" else content
    source = MemoryFile(now, version={"version": "2", "content": "1", "unprovable": ""}[change])
    assert fetch(source).kept_bytes == 0
    assert sent_once(source, len(now))
    assert target.read_bytes() == now
    assert names(target.parent) == ["data.bin"]


def test_living_owner_is_left_alone(fetch: Callable[..., FetchedFile], content: bytes, target: Path) -> None:
    """What another process works on, this very moment, is neither taken nor removed."""
    interrupt(fetch, content, 3)
    (folder,) = target.parent.glob(".colabstage-*")
    theirs = temp_beside(target)  # by the owner's token, a living process's: this one's
    folder.rename(theirs)
    done = fetch(MemoryFile(content))
    assert done.kept_bytes == 0
    assert theirs.is_dir()
    assert (theirs / "data").stat().st_size >= 3 * BLOCK


def test_cancelling_keeps_what_is_finished(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path, step: Any
) -> None:
    """A request to stop is followed at once, and costs nothing that was finished."""
    target.write_bytes(b"precious")
    cancellation = Cancellation()
    step.notice = lambda total: cancellation.cancel() if total >= 4 * BLOCK else None
    with pytest.raises(CancelledError):
        fetch(MemoryFile(content, bytes_per_s=40e6, connections=2), cancellation=cancellation)
    step.notice = None
    assert target.read_bytes() == b"precious"
    assert 2 * BLOCK <= fetch(MemoryFile(content)).kept_bytes <= 4 * BLOCK
    assert target.read_bytes() == content


def test_source_that_changes_midway_leaves_nothing(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path
) -> None:
    """What came of a state that nobody can ask for any more is not kept, and the old file stands."""

    def change(position: int) -> None:
        if position >= 2 * BLOCK:
            raise changed()

    target.write_bytes(b"precious")
    with pytest.raises(SourceChangedError):
        fetch(MemoryFile(content, connections=1, at=change))
    assert target.read_bytes() == b"precious"
    assert names(target.parent) == ["data.bin"]


@pytest.mark.parametrize("known", [True, False])
def test_source_without_ranges_comes_in_one_stream_and_has_to_stay_the_same(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path, known: bool
) -> None:
    """One request for all of it. A cut costs what had come; what comes the second time is compared with it."""
    size = SIZE if known else None
    source = MemoryFile(content, size=size, ranges=False)
    fetch(source)
    assert source.requests == [(0, size)]

    def swap(number: int, offset: int) -> int | None:
        source.content = content if number == 0 else content[:-1000][::-1] + content[-1000:]
        return 5 * MIB if number == 0 else None

    source = MemoryFile(content, size=size, ranges=False, answer=swap)
    with pytest.raises(SourceChangedError, match="became another file"):
        fetch(source, target.with_name("b"))
    assert source.requests == [(0, size), (0, size)]
    assert names(target.parent) == ["data.bin"]


def test_source_without_ranges_that_sends_less_than_it_says_is_an_error(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path
) -> None:
    """A length that lies is found: nothing is made up for the bytes that are missing."""
    with pytest.raises(SourceReadError, match=rf"byte {SIZE:,}"):
        fetch(MemoryFile(content, size=SIZE + 1, ranges=False))
    assert names(target.parent) == []


def test_stream_of_unknown_length_goes_on_after_a_cut(
    fetch: Callable[..., FetchedFile], content: bytes, target: Path
) -> None:
    """With ranges at the byte where it stopped; without, from the beginning, and it has to be the same."""
    cut = lambda number, offset: 3 * MIB if number < 2 else None  # noqa: E731
    source = MemoryFile(content, size=None, answer=cut)
    fetch(source)
    assert target.read_bytes() == content
    assert source.requests == [(0, None), (3 * MIB, None), (6 * MIB, None)]
    longer = lambda number, offset: (3 + number) * MIB if number < 2 else None  # noqa: E731
    fetch(MemoryFile(content, size=None, ranges=False, answer=longer))
    assert target.read_bytes() == content
    with pytest.raises(SourceReadError, match="2 tries without a byte"):
        fetch(MemoryFile(content, size=None, ranges=False, answer=lambda number, offset: 3 * MIB))
    assert names(target.parent) == ["data.bin"]


def test_full_disk_leaves_the_old_state(small_disk: Path, fetch: Callable[..., FetchedFile], content: bytes) -> None:
    """There is no room midway: a typed error that names the place, and no half file under the real name."""
    with pytest.raises(NotEnoughSpaceError, match=r"small' is full"):
        fetch(MemoryFile(content), small_disk / "data.bin")
    assert not (small_disk / "data.bin").exists()


def test_time_of_the_source_is_kept(fetch: Callable[..., FetchedFile], tmp_path: Path) -> None:
    """The file is as old as the source says."""
    source = MemoryFile(b"old")
    source.facts = type(source.facts)("memory:old", "old", 3, mtime_ns=1_500_000_000_000_000_000)
    fetch(source, tmp_path / "old")
    assert (tmp_path / "old").stat().st_mtime_ns == 1_500_000_000_000_000_000


@contextmanager
def fetching(target: Path, bytes_per_s: float) -> Iterator[subprocess.Popen[str]]:
    """Fetch in a process of its own; whatever is left of it at the end is killed."""
    root = Path(__file__).parents[3]
    command = [sys.executable, str(remotes.__file__), str(target), str(SIZE), str(SEED), str(bytes_per_s)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=30)


def kill_after(target: Path, nbytes: int) -> None:
    """Fetch until so many bytes are here, those kept from before included, then SIGKILL."""
    with fetching(target, 40e6) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= nbytes:
                break


def finished_blocks(target: Path) -> int:
    """The blocks in the largest table there is."""
    told = content_of(MemoryFile(b"", size=SIZE).facts)
    return max(
        (count_noted(folder, told) or 0 for folder in target.parent.glob(f".colabstage-{target.name}.*")), default=0
    )


@pytest.mark.slow
def test_fetch_killed_again_and_again_repeats_nothing_that_was_verified(target: Path, content: bytes) -> None:
    """Each kill falls somewhere else; each run goes on with exactly what the journal of the one before had."""
    rng = random.Random(11)
    kept = 0
    for share in (0.0, 0.3, 0.5, 0.8):
        kill_after(target, int(SIZE * min(0.95, share + rng.random() / 10)))
        assert not target.exists()
        assert finished_blocks(target) >= kept
        kept = finished_blocks(target)
    assert kept >= 2
    with fetching(target, 0.0) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    *_, kept_bytes, _, sent = (int(word) if word.isdigit() else 0 for word in said.split())
    assert (kept - 1) * BLOCK < kept_bytes <= kept * BLOCK
    assert SIZE - kept * BLOCK <= sent <= SIZE - (kept - 1) * BLOCK
    assert target.read_bytes() == content
    assert names(target.parent) == ["data.bin"]


def test_two_processes_at_once_without_a_lock_both_succeed(target: Path, content: bytes) -> None:
    """Each works on its own; whoever is last replaces the file by the same one."""
    with fetching(target, 60e6) as first, fetching(target, 60e6) as second:
        said = [process.communicate(timeout=60)[0] for process in (first, second)]
        assert [process.returncode for process in (first, second)] == [0, 0]
    assert all("kept 0 " in text for text in said)
    assert target.read_bytes() == content
    assert names(target.parent) == ["data.bin"]


def test_threads_of_a_fetch_end_with_it(fetch: Callable[..., FetchedFile], content: bytes) -> None:
    """Whether it succeeds or fails, nothing goes on in the background."""
    fetch(MemoryFile(content, checksum=sha256(content)))
    with pytest.raises(SourceReadError):
        fetch(MemoryFile(content, size=SIZE + 1, checksum=sha256(content)))
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("colabstage")] == []


class NotingSleeps(Cancellation):
    """Sleeps for no time, and notes for how long it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_a_server_that_asks_for_a_day_is_asked_after_a_minute(
    content: bytes, fetch: Callable[..., FetchedFile], target: Path
) -> None:
    """A wait without an end would look like hanging; after the last try the error says for how long it asked."""
    busy = TransientError("busy.", 86_400.0)
    sleeps = NotingSleeps()
    source = MemoryFile(content, ranges=False, answer=lambda number, offset: busy if number < 1 else None)
    fetch(source, cancellation=sleeps)
    assert target.read_bytes() == content
    assert sleeps.slept == [60.0]
    source = MemoryFile(content, ranges=False, answer=lambda number, offset: busy)
    with pytest.raises(SourceReadError, match="86400 seconds"):
        fetch(source, target.with_name("other.bin"), cancellation=NotingSleeps())

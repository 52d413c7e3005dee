"""One whole file to its place: verified or not at all, and never the same block fetched twice, whatever happens."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files
from colabstage.errors import CancelledError, ChecksumMismatchError, SourceChangedError, SourceReadError
from colabstage.io.progress import SystemClock
from colabstage.sources.remote import Checksum, TransientError
from tests.support.deadlines import ask_again_at_once
from tests.support.far import MemoryFile, changed, far_service, random_bytes
from tests.support.invariants import left_behind
from tests.support.staged import SMALL_BLOCK as BLOCK
from tests.support.staged import use_small_blocks
from tests.support.steps import Meanwhile

Fetch = Callable[..., Any]

SIZE = 40 * BLOCK + 7_777
CONTENT = random_bytes(SIZE, 3)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the file goes."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out/data.bin"


@pytest.fixture
def fetch(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fetch]:
    """Fetch a file from far away to the target, if nothing else is said, in place of what is there."""
    use_small_blocks(monkeypatch)
    with far_service(tmp_path / "site", monkeypatch) as put:

        def run(source: MemoryFile, place: Path = target, **options: Any) -> Any:
            return fetch_files(put(source), f"{place}", **{"overwrite": True, "progress": False, **options})

        yield run


def sha256(content: bytes) -> Checksum:
    """What a service would say of it."""
    return Checksum("sha256", hashlib.sha256(content).hexdigest())


def names(folder: Path) -> list[str]:
    """What a user sees in a folder; nothing unfinished is beside it."""
    assert left_behind(folder) == []
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def interrupt(fetch: Fetch, blocks: int, **options: Any) -> None:
    """Fetch so many blocks, one after the other, and fail."""

    def at(position: int) -> None:
        if position >= blocks * BLOCK:
            raise SourceReadError("interrupted")

    with pytest.raises(SourceReadError, match="interrupted"):
        fetch(MemoryFile(CONTENT, connections=1, at=at, piece=BLOCK, **options))


def sent_once(source: MemoryFile, size: int) -> bool:
    """Whether about `size` bytes were sent. A connection that lags sends a little of what another has taken over, and
    both ends are looked at before."""
    return size <= source.sent < size + 10 * BLOCK


@pytest.mark.parametrize(("size", "known"), [(0, False), (1, True), (BLOCK, True), (BLOCK + 1, False), (SIZE, True)])
def test_a_file_is_exact_whatever_its_length(fetch: Fetch, target: Path, size: int, known: bool) -> None:
    """All bytes, with the time that the source tells; also where nobody says the length. The old file stands until
    then, nothing else is left, and nothing goes on in the background."""
    target.write_bytes(b"precious")
    seen = set[bytes]()
    content = CONTENT[:size]
    source = MemoryFile(
        content,
        size=size if known else None,
        checksum=sha256(content),
        at=lambda position: seen.add(target.read_bytes()),
    )
    source.facts = replace(source.facts, mtime_ns=1_500_000_000_000_000_000)
    done = fetch(source)
    assert target.read_bytes() == content
    assert seen <= {b"precious"}
    assert target.stat().st_mtime_ns == 1_500_000_000_000_000_000
    assert names(target.parent) == ["data.bin"]
    assert (done.path, done.nbytes, done.kept_bytes) == (target, size, 0)
    assert source.closed
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("colabstage")] == []


def test_a_wrong_checksum_never_gets_to_the_target(fetch: Fetch, target: Path) -> None:
    """Both digests are told; the file is kept under a name of its own, and is not gone on with."""
    target.write_bytes(b"precious")
    wrong = sha256(b"something else")
    for name in ("data.bin.damaged", "data.bin.damaged-2"):
        source = MemoryFile(CONTENT, checksum=wrong)
        with pytest.raises(ChecksumMismatchError, match=rf"{sha256(CONTENT).digest}.*{wrong.digest}.*{name}"):
            fetch(source)
        assert sent_once(source, SIZE)
        assert target.with_name(name).read_bytes() == CONTENT
    assert target.read_bytes() == b"precious"
    assert names(target.parent) == ["data.bin", "data.bin.damaged", "data.bin.damaged-2"]


@pytest.mark.parametrize(
    ("damage", "now", "kept"),
    [
        ("none", {"checksum": sha256(CONTENT)}, 3),
        # The table's word is not enough: the bytes have to have the hash that it says.
        ("a block", {}, 2),
        # Neither that bytes are there nor how many says anything about them, nor does the journal of another version.
        ("table cut", {}, 0),
        ("table of 0.1", {}, 0),
        ("version", {"version": "2"}, 0),
        ("length", {}, 0),
        ("unprovable", {"version": ""}, 0),
    ],
)
def test_an_interrupted_fetch_keeps_what_is_verified(
    fetch: Fetch, target: Path, damage: str, now: dict[str, Any], kept: int
) -> None:
    """The old file stands, finished blocks are kept, and only the others are fetched; the checksum is of all of it.
    Another version or length, or nothing that would tell, is fetched from the beginning."""
    target.write_bytes(b"precious")
    interrupt(fetch, 3, checksum=now.get("checksum"), version="" if damage == "unprovable" else "1")
    assert target.read_bytes() == b"precious"
    # Of what nothing would tell apart, nothing is kept.
    assert damage == "unprovable" or left_behind(target.parent)
    for data in target.parent.glob(".colabstage-*/data"):
        spoil(data, damage)
    content = CONTENT[1:] if damage == "length" else CONTENT
    source = MemoryFile(content, **now)
    assert fetch(source).kept_bytes == kept * BLOCK
    assert sent_once(source, len(content) - kept * BLOCK)
    assert target.read_bytes() == content
    assert names(target.parent) == ["data.bin"]


def spoil(data: Path, damage: str) -> None:
    """Change what an interrupted fetch left: the bytes, or the table of what is whole."""
    if damage == "a block":
        with data.open("r+b") as file:
            file.seek(BLOCK + 5)
            file.write(b"!!!")
    if damage.startswith("table"):
        data.write_bytes(CONTENT)
        table = data.with_name("blocks")
        line = b'{"format": 2, "label": "memory:data.bin"}\n[0, "0123456789abcdef"]\n'
        table.write_bytes(table.read_bytes()[:100] if damage == "table cut" else line)


def test_a_living_owner_is_left_alone(fetch: Fetch, target: Path) -> None:
    """What somebody else works on, this very moment, is neither taken nor removed; each works on its own, and whoever
    is last replaces the file by the same one."""
    reached = threading.Event()
    release = threading.Event()

    def hold(position: int) -> None:
        if position >= 3 * BLOCK:
            reached.set()
            assert release.wait(30)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(fetch, MemoryFile(CONTENT, connections=1, at=hold, piece=BLOCK))
        assert reached.wait(30)
        done = fetch(MemoryFile(CONTENT))
        release.set()
        assert [done.kept_bytes, first.result(30).kept_bytes] == [0, 0]
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["data.bin"]


def test_stopping_keeps_what_is_finished(fetch: Fetch, target: Path) -> None:
    """What the progress raises comes out as it is, and costs nothing that was finished."""
    target.write_bytes(b"precious")
    source = MemoryFile(CONTENT, connections=1, piece=BLOCK)

    def stop() -> None:
        if source.sent > 5 * BLOCK:
            raise CancelledError("enough")

    with pytest.raises(CancelledError, match="enough"):
        fetch(source, progress=Meanwhile(stop))
    assert target.read_bytes() == b"precious"
    assert 2 * BLOCK <= fetch(MemoryFile(CONTENT)).kept_bytes <= 8 * BLOCK
    assert target.read_bytes() == CONTENT


def test_a_source_that_changes_midway_leaves_nothing(fetch: Fetch, target: Path) -> None:
    """What came of a state that nobody can ask for any more is not kept, and the old file stands."""

    def change(position: int) -> None:
        if position >= 2 * BLOCK:
            raise changed()

    target.write_bytes(b"precious")
    with pytest.raises(SourceChangedError):
        fetch(MemoryFile(CONTENT, connections=1, at=change))
    assert target.read_bytes() == b"precious"
    assert names(target.parent) == ["data.bin"]


@pytest.mark.parametrize("known", [True, False])
def test_a_source_without_ranges_comes_in_one_stream_and_has_to_stay_the_same(
    fetch: Fetch, target: Path, known: bool
) -> None:
    """One request for all of it. A cut costs what had come; what comes the second time is compared with it."""
    size = SIZE if known else None
    cut = lambda number, offset: 20 * BLOCK if number == 0 else None  # noqa: E731
    source = MemoryFile(CONTENT, size=size, ranges=False, answer=cut)
    fetch(source)
    assert source.requests == [(0, size)] * 2
    assert target.read_bytes() == CONTENT

    def swap(number: int, offset: int) -> int | None:
        source.content = CONTENT if number == 0 else CONTENT[::-1]
        return 20 * BLOCK if number == 0 else None

    source = MemoryFile(CONTENT, size=size, ranges=False, answer=swap)
    with pytest.raises(SourceChangedError, match=r"data\.bin"):
        fetch(source, target.with_name("b"))
    assert source.requests == [(0, size)] * 2
    assert names(target.parent) == ["data.bin"]


@pytest.mark.parametrize("size", [SIZE + 1, None])
def test_a_stream_that_ends_early_is_an_error(fetch: Fetch, target: Path, size: int | None) -> None:
    """A length that lies is found; where there is none, a connection that is always cut at the same byte."""
    cut = lambda number, offset: 3 * BLOCK  # noqa: E731
    with pytest.raises(SourceReadError, match=rf"byte {SIZE:,}|4 tries"):
        fetch(MemoryFile(CONTENT, size=size, ranges=False, answer=None if size else cut))
    assert names(target.parent) == []


def test_a_server_that_asks_for_a_day_is_asked_after_a_minute(
    fetch: Fetch, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait without an end would look like hanging; after the last try the error says for how long it asked."""
    busy = TransientError("busy.", 86_400.0)
    slept = ask_again_at_once(monkeypatch.setattr)
    monkeypatch.setattr(SystemClock, "now", lambda _: sum(slept))
    fetch(MemoryFile(CONTENT, ranges=False, answer=lambda number, offset: None if number else busy))
    assert target.read_bytes() == CONTENT
    assert sum(slept) == 60.0
    with pytest.raises(SourceReadError, match="86400 seconds"):
        fetch(MemoryFile(CONTENT, ranges=False, answer=lambda number, offset: busy), target.with_name("other.bin"))

"""Members that lie close together come with one request, once, whoever asks first; all others are left to who asks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from colabstage.errors import SourceReadError
from colabstage.io.progress import Cancellation
from colabstage.sources.arriving import ReadAhead, coalesce

SIZE = 4_000_000
CONTENT = bytes(range(256)) * (SIZE // 256 + 1)
# Members of 4 kB, each the second of its neighbours, and one that is far from all others.
MEMBERS = [(begin, begin + 4000) for begin in range(0, 3_000_000, 8000)] + [(3_900_000, 3_904_000)]
SHARED = [(begin, end) for begin, end, members in coalesce(MEMBERS) if members > 1]


class Archive:
    """Bytes that are asked for, with a note of each request."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.failing = False
        self.lock = threading.Lock()

    def fetch(self, begin: int, end: int) -> bytes:
        with self.lock:
            self.asked.append((begin, end))
        if self.failing:
            raise SourceReadError("it is gone")
        return CONTENT[begin:end]


def test_ranges_are_joined_as_far_as_they_are_close_and_short() -> None:
    """No coalesced range is longer than a megabyte, none has a large gap, and together they have every range."""
    cut = coalesce(MEMBERS)
    assert sum(members for *_, members in cut) == len(MEMBERS)
    assert all(end - begin <= 1 << 20 for begin, end, _ in cut)
    assert cut[-1] == (3_900_000, 3_904_000, 1)
    assert len(cut) == 4
    assert coalesce([(0, 10), (200_000, 200_010)]) == [(0, 10, 1), (200_000, 200_010, 1)]
    assert coalesce([]) == []


def test_each_stretch_is_fetched_once_by_many_readers() -> None:
    """All get their bytes; the member that is far from others, and what was not announced, is not theirs to fetch."""
    archive = Archive()
    neighbours = ReadAhead(SHARED, archive.fetch, connections=4, cancellation=Cancellation())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda bounds: neighbours.read(*bounds), MEMBERS))
    assert found[:-1] == [CONTENT[begin:end] for begin, end in MEMBERS[:-1]]
    assert found[-1] is None
    assert neighbours.read(3_500_000, 3_500_100) is None
    assert neighbours.read(2_990_000, 3_200_000) is None
    assert sorted(archive.asked) == SHARED
    neighbours.close()
    assert neighbours.read(*MEMBERS[0]) is None


def test_what_failed_is_fetched_again_for_who_asks_again() -> None:
    archive = Archive()
    archive.failing = True
    neighbours = ReadAhead(SHARED, archive.fetch, connections=1, cancellation=Cancellation())
    with pytest.raises(SourceReadError, match="it is gone"):
        neighbours.read(*MEMBERS[0])
    archive.failing = False
    assert neighbours.read(*MEMBERS[0]) == CONTENT[:4000]
    neighbours.close()

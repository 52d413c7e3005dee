"""Each public function that changes names on a disk, disturbed at one system call after the other.

The result is complete, or an error of `colabstage.errors`; nothing of the user's has changed, and the same call works
once the trouble is over. The cases are in `cases`; a kind of trouble is a line in `TROUBLES`.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contract.cases import CASES
from tests.contract.matrix import Walk
from tests.support.moments import Moment, Processes, What

# More than any of these calls makes on so little data.
MOST = 3000
PAGE = 4096
# Normally, the numbers of the disturbed system calls grow by this factor; the long form disturbs each.
FACTOR = 20
# Cases with older data run only in the long form.
QUICK = [name for name, case in CASES.items() if not case.older]


class Trouble(NamedTuple):
    """What happens, below which folder, with which errnos in turn."""

    what: What
    below: str = ""
    numbers: tuple[int, ...] = (0,)


ERRORS = errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE, errno.EDQUOT
TROUBLES = {
    "an error of the disk": Trouble("fail", numbers=ERRORS),
    "a mount of the source that dies": Trouble("dead", "mine", (errno.ENOTCONN,)),
    "rights to the source that end": Trouble("dead", "mine", (errno.EACCES,)),
    "a mount of the target that dies": Trouble("dead", "out", (errno.ENOTCONN, errno.EIO)),
    "a disk that is full from then on": Trouble("full", "out", (errno.ENOSPC,)),
    "a short read": Trouble("short"),
    "a file that ends early": Trouble("cut", "mine"),
}


def moments(trouble: Trouble, walk: Walk, numbers: Iterable[int]) -> Iterator[Moment]:
    below = str(walk.home / trouble.below)
    for at in numbers:
        yield Moment(at, trouble.what, below, trouble.numbers[at % len(trouble.numbers)])


@pytest.mark.parametrize("name", QUICK)
def test_trouble_at_some_calls_of_the_system(name: str, walk_of: Callable[[str], Walk]) -> None:
    walk = walk_of(name)
    for first, trouble in enumerate(TROUBLES.values(), 1):
        walk.at_each(moments(trouble, walk, (first * FACTOR**power for power in range(4))))


def test_a_dead_source_that_was_staged_before(walk_of: Callable[[str], Walk]) -> None:
    """What was made of its older state is used, and a note says that nobody knows whether it has changed."""
    walk = walk_of("stage a changed source")
    walk.at_each(moments(TROUBLES["a mount of the source that dies"], walk, [1, 10**6]))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_at_each_call_of_the_system(trouble: str, name: str, walk_of: Callable[[str], Walk]) -> None:
    walk = walk_of(name)
    walk.at_each(moments(TROUBLES[trouble], walk, range(1, MOST)))


def fill(disk: Path, room: int) -> Path:
    """Fill a disk except for so much room, with a file whose path is returned."""
    filler, found = disk / "filler", os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, found.f_bavail * found.f_frsize - room))
    return filler


def fill_up(name: str, disk: Path, processes: Processes, address: str, pages: Iterable[int]) -> None:
    walk = Walk(name, disk, processes, address)
    for free in pages:
        user = walk.reset()
        filler = fill(disk, free * PAGE)
        ran, about = walk.call(), f"with {free} pages free"
        walk.check_disturbed(user, ran, about)
        filler.unlink()
        is_enough = ran.error is None and walk.case.found(walk.home) == walk.meant
        walk.check_again(user, about)
        if is_enough:
            return
    pytest.fail(f"{name}: not enough, although there is room")


@pytest.mark.parametrize("name", QUICK)
def test_a_disk_that_is_full(name: str, make_disk: Callable[[int], Path], processes: Processes, address: str) -> None:
    fill_up(name, make_disk(48), processes, address, (0, 3, 12, 10_000))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_a_disk_with_more_room_each_time(
    name: str, make_disk: Callable[[int], Path], processes: Processes, address: str
) -> None:
    fill_up(name, make_disk(48), processes, address, (*range(40), 10_000))


def change_at(walk: Walk, numbers: Iterable[int]) -> None:
    """Rewrite the source at one system call after the other."""
    walk.at_each(Moment(at, "call", str(walk.home / "mine"), function="tests.contract.cases:rewrite") for at in numbers)


@pytest.mark.parametrize("name", QUICK)
def test_a_source_that_changes_midway(name: str, walk_of: Callable[[str], Walk]) -> None:
    """The result is the older or the newer content, never a mixture; the next call brings the present one."""
    change_at(walk_of(name).changing(), (6**power for power in range(6)))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_a_source_that_changes_at_each_call(name: str, walk_of: Callable[[str], Walk]) -> None:
    change_at(walk_of(name).changing(), range(1, MOST))

"""Telling passes over the data apart, by the requests alone."""

from __future__ import annotations

from colabstage.load.frameworks.on_demand import EpochTracker


def asked(passes: EpochTracker, numbers: list[int]) -> list[tuple[int, int]]:
    return [passes.request(number) for number in numbers]


def test_a_whole_pass_is_an_epoch() -> None:
    """A number that was asked for already begins the next one."""
    passes = EpochTracker(3, by_turn=False)
    assert asked(passes, [0, 1, 2, 0, 1]) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_by_turn_numbers_do_not_count() -> None:
    """Each pass has all batches in order, whatever order they are asked for in."""
    passes = EpochTracker(3, by_turn=True)
    assert asked(passes, [2, 0, 1, 1, 2, 0]) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_look_is_no_epoch() -> None:
    """Up to four batches and a new beginning: the same epoch again, from its first batch."""
    for look in range(1, 5):
        passes = EpochTracker(20, by_turn=True)
        asked(passes, [9, 3, 17, 5][:look])
        passes.begin()
        assert passes.request(11) == (0, 0)


def test_what_is_more_than_a_look_is_an_epoch() -> None:
    """Five batches of twenty, or all four of four: who goes on sees other samples."""
    for batches, taken in ((20, 5), (4, 4), (1, 1)):
        passes = EpochTracker(batches, by_turn=True)
        asked(passes, list(range(taken)))
        passes.begin()
        assert passes.request(0) == (1, 0)


def test_a_look_within_numbers_that_are_shuffled_does_not_cut_the_epoch() -> None:
    """After a look at batch 2, a pass in which 2 comes late is one pass."""
    passes = EpochTracker(6, by_turn=True)
    asked(passes, [2])
    passes.begin()
    assert asked(passes, [4, 1, 0, 2, 5, 3]) == [(0, turn) for turn in range(6)]


def test_an_epoch_can_be_chosen() -> None:
    """After a restart, or in the middle of a pass."""
    passes = EpochTracker(20, by_turn=True)
    asked(passes, list(range(7)))
    passes.start_epoch(9)
    assert asked(passes, [0, 1]) == [(9, 0), (9, 1)]
    passes.begin()
    passes.start_epoch(4)
    assert asked(passes, [0, 1]) == [(4, 0), (4, 1)]

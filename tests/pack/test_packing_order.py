"""In which order samples are packed: units of neighbours, as readers need them."""

from __future__ import annotations

import numpy as np

from colabstage.pack.arrival import (
    Needs,
    PackingOrder,
    number_units,
    pack_units,
    stretch_bytes,
    unit_bytes,
    units_in_turn,
    units_together,
    window_units,
)


def test_units_are_stretches_of_an_archive_and_a_few_files_of_a_folder() -> None:
    mebibyte = 2**20
    archive = pack_units(np.full(64, mebibyte), 8 * mebibyte)
    assert archive.tolist() == np.repeat(range(8), 8).tolist()
    # Whole blocks of the journal, numbered without gaps, also where one sample is longer than a unit.
    assert pack_units(np.full(20, 100 * mebibyte), 8 * mebibyte).tolist() == [0] * 8 + [1] * 8 + [2] * 4
    assert pack_units(np.full(20, 10), mebibyte).tolist() == [0] * 20
    assert pack_units(np.full(20, 10), 0).tolist() == [0] * 8 + [1] * 8 + [2] * 4
    assert pack_units(np.zeros(0, np.int64), mebibyte).tolist() == []
    # Of a split, whose rows may have none of some units.
    assert number_units(np.array([7, 3, 3, 9], np.int32)).tolist() == [1, 0, 0, 2]
    assert units_in_turn(np.array([7, 3, 3, 9, 7, 0], np.int32)).tolist() == [7, 3, 9, 0]
    assert number_units(np.zeros(0, np.int32)).tolist() == units_in_turn(np.zeros(0, np.int32)).tolist() == []
    assert [window_units(count) for count in (1, 640, 1600, 10**6)] == [64, 160, 400, 512]
    # Short where requests cost nothing, and no longer than it takes to hide their round trips where they do.
    assert stretch_bytes(10**12, far=False) == mebibyte // 4
    assert [stretch_bytes(size, far=True) for size in (10**6, 2 * 10**9, 10**12)] == [mebibyte, 4_000_000, 4 * mebibyte]
    # Units are shorter, but no more than a quarter of a million; what is near, or long by itself, is a stretch alone.
    assert [unit_bytes(size, far=True) for size in (10**6, 2 * 10**9, 2**40)] == [786_432, 786_432, 4 * mebibyte]
    assert unit_bytes(10**12, far=False) == mebibyte // 4
    assert [units_together(size, size // 786_432, far=True) for size in (2 * 10**8, 6 * 10**8, 10**10)] == [2, 3, 5]
    assert [units_together(10**9, 125, far=True), units_together(10**9, 1_250, far=False)] == [1, 1]


def test_what_is_taken_stays_and_the_rest_is_packed_by_unit_then_in_the_order_of_the_medium() -> None:
    units = np.array([0, 0, 1, 1, 2, 2], np.int32)
    order = PackingOrder([0, 1, 2, 3, 5], units)
    assert (order[0], order[0], len(order)) == (0, 0, 5)
    order.sort(np.array([1, 2, 0]))
    assert order[0:5] == [0, 5, 1, 2, 3]
    order.sort(np.array([2, 1, 0]))
    assert [order[number] for number in range(5)] == [0, 5, 1, 2, 3]
    order = PackingOrder(range(6), units)
    order.sort(np.array([1, 2, 0]))
    assert order[0] == 4
    # Of a folder the first rows are read one by one.
    order.sort(np.array([1, 2, 0]), np.array([3, 0]))
    assert order[0:6] == [4, 3, 0, 5, 1, 2]
    order = PackingOrder(range(6), units)
    order.sort(np.array([1, 2, 0]))
    assert order[0] == 4
    assert order.units_left().tolist() == [True, True, True]


def test_needs_of_several_readers_take_turns_and_what_nobody_needs_comes_last() -> None:
    told: list[tuple[list[int], list[int]]] = []
    needs = Needs(5, lambda turns, first: told.append((turns.tolist(), first.tolist())))
    train = needs.add(np.array([30, 31, 10, 32, 1]), np.array([3, 3, 1, 3, 0], np.int32))
    assert told[-1] == ([2, 1, 5, 0, 5], [30, 31, 10, 32, 1])
    val = needs.add(np.array([40, 0]), np.array([4, 0], np.int32))
    assert told[-1] == ([1, 1, 5, 0, 0], [30, 40, 31, 0, 10, 32, 1])
    needs.drop(train)
    needs.drop(train)
    assert told[-1] == ([1, 5, 5, 5, 0], [40, 0])
    before = len(told)
    needs.drop(val)
    # The last order stays: what is left is still wanted by somebody, later.
    assert len(told) == before

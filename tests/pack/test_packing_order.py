"""In which order samples are packed: units of neighbours, as readers need them."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np

from colabstage.h5.arrival import HandedOut
from colabstage.pack.arrival import (
    Need,
    PackingOrder,
    PackStream,
    number_units,
    pack_units,
    unit_bytes,
    units_in_turn,
    units_together,
    window_units,
)

MEBIBYTE = 2**20


def test_units_are_stretches_of_an_archive_and_a_few_files_of_a_folder() -> None:
    archive = pack_units(np.full(64, MEBIBYTE), 8 * MEBIBYTE)
    assert archive.tolist() == np.repeat(range(8), 8).tolist()
    # Whole blocks of the journal, numbered without gaps, also where one sample is longer than a unit.
    assert pack_units(np.full(20, 100 * MEBIBYTE), 8 * MEBIBYTE).tolist() == [0] * 8 + [1] * 8 + [2] * 4
    assert pack_units(np.full(20, 10), MEBIBYTE).tolist() == [0] * 20
    assert pack_units(np.full(20, 10), 0).tolist() == [0] * 8 + [1] * 8 + [2] * 4
    assert pack_units(np.zeros(0, np.int64), MEBIBYTE).tolist() == []
    # Of a split, whose rows may have none of some units.
    assert number_units(np.array([7, 3, 3, 9], np.int32)).tolist() == [1, 0, 0, 2]
    assert units_in_turn(np.array([7, 3, 3, 9, 7, 0], np.int32)).tolist() == [7, 3, 9, 0]
    assert number_units(np.zeros(0, np.int32)).tolist() == units_in_turn(np.zeros(0, np.int32)).tolist() == []
    assert [window_units(count) for count in (1, 640, 1600, 10**6)] == [64, 160, 400, 512]
    # Short, but no more than a quarter of a million; a request brings several of a far archive that is not long.
    assert [unit_bytes(size, far=True) for size in (10**6, 2 * 10**9, 2**40)] == [786_432, 786_432, 4 * MEBIBYTE]
    assert unit_bytes(10**12, far=False) == MEBIBYTE // 4
    assert [units_together(size, size // 786_432) for size in (2 * 10**8, 6 * 10**8, 10**10)] == [2, 3, 5]
    assert units_together(10**9, 125) == 1


UNITS = np.array([0, 0, 1, 1, 2, 2], np.int32)
NONE = np.arange(0)


def test_what_is_taken_stays_and_the_rest_is_packed_by_unit_then_in_the_order_of_the_medium() -> None:
    order = PackingOrder(np.array([0, 1, 2, 3, 5]), UNITS, np.arange(6), by_row=False)
    assert (order[0], order[0], len(order)) == (0, 0, 5)
    order.sort(np.array([1, 2, 0]), NONE)
    assert list(order) == [0, 5, 1, 2, 3]
    order.sort(np.array([2, 1, 0]), NONE)
    assert list(order) == [0, 5, 1, 2, 3]
    # The first rows alone are read one by one, where each costs a round trip; samples may be of no row.
    order = PackingOrder(np.arange(6), UNITS, np.array([0, 1, -1, 2, 3, 4]), by_row=True)
    order.sort(np.array([1, 2, 0]), NONE)
    assert order[0] == 4
    assert order.units_left().tolist() == [True, True, True]
    order.sort(np.array([1, 2, 0]), np.array([2, 0]))
    assert list(order) == [4, 3, 0, 5, 1, 2]
    assert order.units_left().tolist() == [False, False, False]


def test_needs_of_several_readers_take_turns_and_what_nobody_needs_comes_last() -> None:
    told: list[list[int]] = []
    unused: Any = None
    stream = PackStream(unused, unused)
    # As after `plan`, of five units that are each a range of an archive.
    source: Any = SimpleNamespace(prefer=lambda ranges, alone: told.append([begin for begin, _ in ranges]))
    stream._source, stream._count, stream._ranges = source, 5, [[(unit, unit + 1)] for unit in range(5)]

    def add(units: list[int]) -> Any:
        in_turn = units_in_turn(np.array(units, np.int32))
        need = Need(np.array(units), in_turn, HandedOut(), weakref.ref(stream))
        stream.add(need)
        return need

    train = add([3, 3, 1, 3, 0])
    assert told.pop() == [3, 1, 0, 2, 4]
    val = add([4, 0])
    assert told.pop() == [3, 4, 0, 1, 2]
    train.close()
    assert told.pop() == [4, 0, 1, 2, 3]
    train.close()
    val.close()
    # The last order stays: what is left is still wanted by somebody, later.
    assert told == []
    add([2])
    assert told == [[2, 0, 1, 3, 4]]

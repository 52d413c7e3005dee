"""Batches of any nesting are rebuilt as they were."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from colabstage.load.batches import map_leaves


class Pair(NamedTuple):
    left: Any
    right: Any


class Labelled(list[Any]):
    label = "none"


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (1, 2),
        ([1, [2, (3,)]], [2, [3, (4,)]]),
        ({"a": 1, "b": {"c": [2]}}, {"a": 2, "b": {"c": [3]}}),
        (Pair(1, [2]), Pair(2, [3])),
        (OrderedDict(a=1), OrderedDict(a=2)),
        (UserDict(a=1), UserDict(a=2)),
        (MappingProxyType({"a": 1}), MappingProxyType({"a": 2})),
        ((), ()),
        ({}, {}),
        (torch.Size([1, 2]), torch.Size([2, 3])),
    ],
)
def test_structure_and_types_stay(batch: Any, expected: Any) -> None:
    """Every container comes back with its type and order, and only leaves are changed."""
    changed = map_leaves(batch, lambda leaf: leaf + 1)
    assert changed == expected
    assert type(changed) is type(expected)


def test_what_else_a_container_carries_stays() -> None:
    """A defaultdict keeps its factory, a list's subclass its attributes, and the originals their contents."""
    counts: defaultdict[str, Any] = defaultdict(list, a=1)
    names = Labelled([1])
    names.label = "names"
    changed = map_leaves([counts, names], lambda leaf: leaf + 1)
    assert changed[0]["a"] == 2
    assert changed[0]["new"] == []
    assert (changed[1], changed[1].label) == ([2], "names")
    assert (counts["a"], names[0]) == (1, 1)


def test_text_is_one_thing() -> None:
    """Strings and bytes are not taken apart."""
    assert map_leaves(["ab", b"cd"], lambda leaf: (leaf,)) == [("ab",), (b"cd",)]


def test_tuples_that_can_move_themselves_are_one_thing() -> None:
    """A PackedSequence is a named tuple of which one part must stay where it is."""
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    seen: list[Any] = []
    map_leaves({"text": packed}, seen.append)
    assert len(seen) == 1
    assert seen[0] is packed

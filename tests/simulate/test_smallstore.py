"""The store of small cached contents: found again after a restart, whole or not at all."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from colabstage.simulate.cache import SmallStore

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = (11, 5, 10**18), (12, 3, -1)


def content(store: SmallStore, key: tuple[int, int, int]) -> bytes | None:
    """What the store has under a key."""
    offset = store.find(key)
    return None if offset is None else os.pread(store.fd, key[1], offset)


def test_contents_are_found_again_after_a_restart(tmp_path: Path) -> None:
    """A new store over the same folder has what the old one kept, and adds behind it."""
    with closing(SmallStore(tmp_path)) as store:
        store.put(ONE, b"first")
    with closing(SmallStore(tmp_path)) as store:
        store.put(TWO, b"two")
        assert (content(store, ONE), content(store, TWO)) == (b"first", b"two")
        assert content(store, (11, 5, 0)) is None


def test_half_a_record_is_forgotten(tmp_path: Path) -> None:
    """A record that a kill cut short does not spoil those before and after it."""
    with closing(SmallStore(tmp_path)) as store:
        store.put(ONE, b"first")
        store.put(TWO, b"two")
    index = tmp_path / "small.index"
    os.truncate(index, index.stat().st_size - 7)
    with closing(SmallStore(tmp_path)) as store:
        assert content(store, TWO) is None
        store.put(TWO, b"too")
    with closing(SmallStore(tmp_path)) as store:
        assert (content(store, ONE), content(store, TWO)) == (b"first", b"too")


def test_content_is_found_under_a_new_key_as_well(tmp_path: Path) -> None:
    """After a change of its modification time, a file's content is still here."""
    with closing(SmallStore(tmp_path)) as store:
        store.put(ONE, b"first")
        store.rekey(ONE, (11, 5, 7))
        store.rekey((99, 1, 1), (99, 1, 2))
    with closing(SmallStore(tmp_path)) as store:
        assert content(store, (11, 5, 7)) == b"first"
        assert store.find((99, 1, 2)) is None

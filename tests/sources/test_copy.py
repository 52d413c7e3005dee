"""Copying one file in blocks: right hashes, another reading of wrong blocks, and typed errors for everything else."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colabstage.errors import CancelledError, DamagedPackError, SourceReadError
from colabstage.h5.manifest import Manifest
from colabstage.io.files import block_ranges, hash_block, hash_ranges
from colabstage.io.progress import Cancellation, ProgressStep
from colabstage.io.workspace import temp_beside
from colabstage.sources.arriving import copy_file
from tests.support.far import random_bytes

BLOCK = 64 * 1024


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Ten blocks and a third of one."""
    path = tmp_path / "source.bin"
    path.write_bytes(random_bytes(10 * BLOCK + 22_000))
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the copy goes: a temporary name, under which it may replace what an earlier run left."""
    return temp_beside(tmp_path / "target.bin")


@pytest.fixture
def copy(step: ProgressStep) -> Callable[..., int]:
    """`copy_file` with this module's block length."""

    def run(
        source: Path, target: Path, *, expected: Sequence[str] = (), size: int = 0, cancellation: Any = None
    ) -> int:
        size = size or (source.stat().st_size if source.exists() else 10)
        hashes = expected or (hashes_of(source) if source.exists() else [""])
        return copy_file(source, target, Manifest(size, BLOCK, tuple(hashes)), step, cancellation or Cancellation())

    return run


def hashes_of(path: Path) -> list[str]:
    """The hash of every block as the file has it now."""
    return hash_ranges(path, block_ranges(path.stat().st_size, BLOCK), threads=2)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    states=st.lists(st.sampled_from(["right", "wrong", "zeros"]), min_size=8, max_size=8),
    there=st.integers(0, 10 * 1000),
)
def test_an_interrupted_copy_is_continued_whatever_it_left(
    tmp_path: Path, step: ProgressStep, states: list[str], there: int
) -> None:
    """The bytes are the source's; blocks that are here and right are kept, and the source is not read for them."""
    block, source, target = 1000, tmp_path / "source.bin", temp_beside(tmp_path / "target.bin")
    content = random_bytes(7 * block + 123)
    left = {
        "right": lambda at: content[at : at + block],
        "wrong": lambda at: bytes([255 - content[at]]) + content[at + 1 : at + block],
        "zeros": lambda at: bytes(len(content[at : at + block])),
    }
    target.write_bytes(b"".join(left[one](at * block) for at, one in enumerate(states)).ljust(10 * block, b"x")[:there])
    whole = [state == "right" and min((at + 1) * block, len(content)) <= there for at, state in enumerate(states)]
    ranges = block_ranges(len(content), block)
    hashes = tuple(hash_block(content[at : at + length]) for at, length in ranges)
    # What is known to be right need not be right at the source any more.
    stored = bytearray(content)
    for (at, length), is_here in zip(ranges, whole, strict=True):
        if is_here:
            stored[at : at + length] = bytes(length)
    source.write_bytes(stored)
    kept = copy_file(source, target, Manifest(len(content), block, hashes), step, Cancellation(), resume=True)
    assert target.read_bytes() == content
    assert kept == sum(length for (_, length), is_here in zip(ranges, whole, strict=True) if is_here)
    target.unlink()


@pytest.mark.parametrize(
    ("place", "named"), [(3 * BLOCK + 5, "65,536 .* 196,608"), (10 * BLOCK + 21_999, "22,000 .* 655,360")]
)
def test_a_block_that_stays_wrong_is_named(
    source: Path, target: Path, copy: Callable[..., int], place: int, named: str
) -> None:
    """A block that differs from its hash on every reading ends the copy, also the short one at the very end."""
    expected = hashes_of(source)
    with source.open("r+b") as file:
        file.seek(place)
        file.write(b"!")
    with pytest.raises(DamagedPackError, match=rf"source\.bin.*{named}.*3 readings"):
        copy(source, target, expected=expected)


def test_a_mount_that_hangs_where_it_is_opened_again_holds_up_no_end(
    source: Path, target: Path, copy: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a block that came wrong."""
    expected, ends, cancellation = ["0" * 16, *hashes_of(source)[1:]], threading.Event(), Cancellation()
    opens, open_file = itertools.count(1), os.open

    def hanging(path: Any, *more: Any, **others: Any) -> int:
        if path == source and next(opens) == 2:
            cancellation.cancel()
            ends.wait(30)
        return open_file(path, *more, **others)

    monkeypatch.setattr(os, "open", hanging)
    began = time.monotonic()
    with pytest.raises(CancelledError):
        copy(source, target, expected=expected, cancellation=cancellation)
    assert time.monotonic() - began < 20
    ends.set()


@pytest.mark.parametrize("change", [-1, 1])
def test_other_length_is_refused_before_anything_is_copied(
    source: Path, target: Path, copy: Callable[..., int], step: Any, change: int
) -> None:
    with pytest.raises(SourceReadError, match="677,360"):
        copy(source, target, size=source.stat().st_size + change)
    assert step.total == 0

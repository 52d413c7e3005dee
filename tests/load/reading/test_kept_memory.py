"""The memory of images that are kept: each byte of it is in one image, reserved for one, or free, whoever does what."""

from __future__ import annotations

import io
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from PIL import Image

from colabstage.images.decode import decode_region, decode_whole
from colabstage.images.geometry import ImageOptions
from colabstage.load.reading import fields
from colabstage.load.reading import memory as kept_in
from colabstage.load.reading.fields import Encoded
from colabstage.load.reading.memory import KeptImages, KeptSlot, Room

GIGABYTES = 8_000_000_000
LINE = 64
# Few enough that the same image is often made twice, and that memory is short of all of them.
NUMBERS = st.integers(0, 12)
LENGTHS = st.integers(1, 5).map(lambda count: count * LINE) | st.integers(1, 15 * LINE)


def lines(nbytes: int) -> int:
    """How long memory for so many bytes is, of which each piece begins at a line of the processor's cache."""
    return -(-nbytes // LINE) * LINE


class Bookkeeping(RuleBasedStateMachine):
    """Threads that decode, in any order: each has reserved memory for an image, and keeps it or gives it back later."""

    reserved = Bundle("reserved")

    @initialize(budget=st.integers(0, 60).map(lambda count: count * LINE + LINE // 2), slab=st.integers(1, 12))
    def begin(self, budget: int, slab: int) -> None:
        """Take a budget that ends inside a line."""
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(kept_in, "_SLAB_BYTES", slab * LINE)
        self.free, self.now = GIGABYTES, 0.0
        self.kept = KeptImages(budget, lambda: self.free, lambda: self.now)
        self.open: dict[int, tuple[Room, int]] = {}

    def teardown(self) -> None:
        self.patch.undo()

    @rule(target=reserved, nbytes=LENGTHS)
    def reserve(self, nbytes: int) -> Any:
        """A thread begins to decode."""
        fits, room = self.kept.fits(nbytes), self.kept.reserve(nbytes)
        assert fits or room is None
        if room is None:
            return multiple()
        assert nbytes <= len(room.memory)
        self.open[id(room)] = room, nbytes
        return room

    @rule(room=consumes(reserved), number=NUMBERS)
    def put(self, room: Room, number: int) -> None:
        """It has decoded, and perhaps another one was faster."""
        key, nbytes = (0, number, 1), self.open.pop(id(room))[1]
        pixels = room.memory[:nbytes]
        before = self.kept.find(key)
        pixels[:] = number
        found = self.kept.put(room, key, pixels, number)
        assert (found.facts, set(found.pixels.tolist())) == (number, {number})
        # Memory that was given back meanwhile is nobody else's, and what is in it stays as it is.
        loses = before is not None and room.slab in self.kept._slabs
        assert found is before if loses else found.pixels is pixels

    @rule(room=consumes(reserved))
    def give_back(self, room: Room) -> None:
        """It has failed."""
        del self.open[id(room)]
        self.kept.give_back(room)

    @rule(number=NUMBERS, nbytes=LENGTHS)
    def keep(self, number: int, nbytes: int) -> None:
        """A thread keeps a copy."""
        self.kept.keep((0, number, 1), np.full(nbytes, number, np.uint8), number)

    @rule(nbytes=st.one_of(st.none(), st.integers(1, 3000)))
    def release(self, nbytes: int | None) -> None:
        """Memory is given back, while some of it is reserved."""
        held = self.kept.held_bytes
        self.kept.release(nbytes)
        assert self.kept.held_bytes <= max(0, held - (held if nbytes is None else nbytes))

    @rule(short=st.booleans())
    def attend(self, short: bool) -> None:
        """Time passes, and others need memory or do not."""
        self.now += 2.0
        self.free = 0 if short else GIGABYTES
        self.kept.attend()

    @invariant()
    def each_byte_is_in_one_place(self) -> None:
        """No two images or rooms share a byte; what is held is what was put there, all within the budget."""
        kept = self.kept
        assert kept.held_bytes == sum(len(slab.memory) for slab in kept._slabs) <= kept.most_bytes
        assert sorted(key for slab in kept._slabs for key in slab.keys) == sorted(kept._held)
        # Rooms of slabs that were given back are nobody else's.
        rooms = [room for room, _ in self.open.values()] + kept._returned
        pieces = [room.memory for room in rooms if any(room.slab is slab for slab in kept._slabs)]
        for image in kept._held.values():
            assert set(image.pixels.tolist()) == {image.facts}
            pieces.append(image.pixels)
        spans = sorted((piece.ctypes.data, piece.ctypes.data + piece.nbytes) for piece in pieces)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))


TestBookkeeping = Bookkeeping.TestCase
TestBookkeeping.settings = settings(stateful_step_count=50, deadline=None)


def memory_for(count: int) -> KeptImages:
    """Memory for so many images of one line."""
    return KeptImages(count * LINE, lambda: GIGABYTES)


def keep(kept: KeptImages, number: int, count: int) -> bool:
    """Whether an image of so many lines finds room."""
    kept.keep((0, number, 1), np.full(count * LINE, number, np.uint8))
    return kept.find((0, number, 1)) is not None


def test_an_image_that_two_threads_keep_takes_one_room() -> None:
    """The second thread is told where the first one's is, and the room of its own goes to the next image."""
    kept = memory_for(3)
    first, second = kept.reserve(LINE), kept.reserve(LINE)
    assert first is not None
    assert second is not None
    for room in (first, second):
        room.memory[:] = 1
    assert kept.put(first, (0, 1, 1), first.memory) is kept.put(second, (0, 1, 1), second.memory)
    assert [keep(kept, number, 1) for number in (2, 3, 4)] == [True, True, False]


def test_threads_that_decode_one_image_read_the_one_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what the slower one cuts from would be overwritten by the next image that takes its room."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    data = buffer.getvalue()
    kept = KeptImages(20 * pixels.nbytes, lambda: GIGABYTES)
    slot = KeptSlot(0)
    slot.fill(kept)
    rows = Encoded("X", lambda _: data, 1, ImageOptions(), slot=slot)
    both = threading.Barrier(2)

    def meet(*args: Any, **options: Any) -> Any:
        whole = decode_whole(*args, **options)
        both.wait(20)
        return whole

    monkeypatch.setattr(fields, "decode_whole", meet)
    found: list[Any] = []
    crop = (0, 0, 64, 48)
    threads = [
        threading.Thread(target=lambda: found.append(rows._keep_whole(kept, (0, 0, 1), data, "rgb", crop)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 2
    while (room := kept.reserve(pixels.nbytes)) is not None:
        room.memory[:] = 77
    wanted = decode_region(data, "rgb", crop, (64, 48))
    for whole in found:
        np.testing.assert_array_equal(whole.cut(crop), wanted)

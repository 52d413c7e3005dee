"""Samples of every kind as HTML, and where somebody is among them. Nothing here needs a notebook."""

from __future__ import annotations

import time
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from colabstage.notebook.browser import THUMB_PX, Browsing, bar_order, draw_bars, draw_grid, draw_large, draw_legend
from colabstage.notebook.samples import Sample, open_splits
from tests.notebook.packs import PACKS, photos, write_boxed

if TYPE_CHECKING:
    from pathlib import Path


class Balanced(HTMLParser):
    """Collects tags and text, and fails on a tag that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags_of(html: str) -> list[str]:
    """The tags in HTML that is well formed and has no script."""
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert "script" not in parser.tags
    return parser.tags


def browsing(path: Path, page_size: int = 8) -> Browsing:
    """Where one begins in a file."""
    return Browsing(open_splits(path), "train", page_size)


def samples_of(state: Browsing) -> list[Sample]:
    """The samples of the page, all of which can be read."""
    samples = state.read(state.rows, THUMB_PX)
    assert all(isinstance(sample, Sample) for sample in samples)
    return [sample for sample in samples if isinstance(sample, Sample)]


@pytest.mark.parametrize("kind", PACKS)
def test_every_kind_is_drawn(tmp_path: Path, kind: str) -> None:
    """As a grid and alone: a picture where it is one, words otherwise; names are text, whatever is in them."""
    state = browsing(PACKS[kind](tmp_path / "a.h5"), page_size=6)
    samples = samples_of(state)
    grid = draw_grid(samples, classes=state.classes, layout=None)
    large = draw_large(samples[0], split="train", classes=state.classes, layout=None)
    pictures = kind not in ("tokens", "table", "many axes")
    assert tags_of(grid).count("svg") == (6 if pictures else 0)
    assert tags_of(large).count("svg") == int(pictures)
    assert "train[0]" in large
    assert "<b>tram" not in grid + large + draw_legend(samples, classes=state.classes)
    assert "<i>train" not in grid + large


def test_boxes_and_masks_are_drawn(tmp_path: Path) -> None:
    """A rectangle for each box with its class's name; a legend of the classes that are seen."""
    boxed = write_boxed(tmp_path / "a.h5")
    state = browsing(boxed.path)
    grid = draw_grid(samples_of(state), classes=state.classes, layout=None)
    assert tags_of(grid).count("rect") == sum(map(len, boxed.labels))
    assert grid.count("bus &amp; &lt;b&gt;tram") == 3
    state = browsing(PACKS["masks"](tmp_path / "b.h5"))
    legend = draw_legend(samples_of(state), classes=state.classes)
    assert "car" in legend
    assert "background<" not in legend


def test_a_sound_is_a_wave_and_bytes_are_read(tmp_path: Path) -> None:
    """Tokens of any width that are bytes of text are that text."""
    state = browsing(PACKS["sounds"](tmp_path / "a.h5"), page_size=6)
    (first, *_) = samples_of(state)
    assert "<path d=" in draw_large(first, split="train", classes=state.classes, layout="audio")
    letters = np.frombuffer(b"To be, or not to be", np.uint8).astype(np.uint16)
    assert "To be, or not" in draw_grid([replace(first, x=letters)], classes=(), layout="tokens")


def test_bars() -> None:
    """As numbered where few, else the most frequent first; names are text."""
    assert bar_order(np.array([3, 9, 1])) == [0, 1, 2]
    assert bar_order(np.arange(20))[:3] == [19, 18, 17]
    drawn = draw_bars([("a<b>", 3, False), ("c", 1_000, True)], 1000)
    assert "a&lt;b&gt;" in drawn
    assert "1,000" in drawn
    assert tags_of(drawn).count("i") == 2


def test_200_000_samples_turn_quickly(tmp_path: Path) -> None:
    """A page anywhere in the file takes a small part of a second, also of one class."""
    count = 200_000
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        # Never written, so the file takes no room; what is read of it is zeros.
        file.create_dataset("X_train", (count, 96, 96, 3), "u1")
        file["X_train"][-30:] = photos(30, height=96, width=96)
        file["Y_train"] = np.arange(count) % 7
        file["key_train"] = np.array([f"{row}.jpg" for row in range(count)], dtype="S12")
    state = browsing(path, page_size=24)
    state.choose_class(3)
    seconds = []
    for page in (0, state.pages // 2, state.pages - 1, 5, 4):
        began = time.thread_time()
        state.turn_to(page)
        draw_grid(samples_of(state), classes=state.classes, layout=None)
        seconds.append(time.thread_time() - began)
    # 30 ms here; most of the five may be late on a busy machine.
    assert min(seconds) < 0.1, seconds
    assert {row % 7 for row in state.rows} == {3}

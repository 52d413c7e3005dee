"""Entries in columns behave as the sequence of `FileEntry` they stand for, in a tenth of its memory."""

from __future__ import annotations

import tracemalloc

import numpy as np

from colabstage.trees.listing import FileEntries
from colabstage.trees.names import extension_of
from colabstage.trees.listing import FileEntry

FILES = [
    FileEntry("b/2.jpg", 5, 7, 100, executable=True),
    FileEntry("a/1.jpg", 2**40, -1, 0),
    FileEntry("a-b/x.txt", 0, 1_700_000_000_123_456_789, 2**33),
]


def _listing(files: list[FileEntry]) -> Listing:
    listing = Listing()
    for file in files:
        listing.add(file.name, file.size, file.mtime_ns, file.position, executable=file.executable)
    return listing


def test_a_tree_s_entries_come_by_name_with_all_facts() -> None:
    """Sorted as Python sorts names, and each knows its place; sizes and offsets beyond 32 bits stay whole."""
    entries, order = _listing(FILES).by_name()
    assert entries == sorted(FILES, key=lambda file: file.name)
    assert order.tolist() == [2, 1, 0]
    assert [entry.place for entry in entries] == [0, 1, 2]
    assert [entries[i].place for i in range(-3, 3)] == [0, 1, 2] * 2
    assert entries.sizes.tolist() == [0, 2**40, 5]
    assert entries.positions.tolist() == [2**33, 0, 100]


def test_chosen_entries_keep_their_places_in_the_tree() -> None:
    """Filters, slices and other orders are views that lead back to the tree's own entries."""
    entries = _listing(FILES).by_name().entries
    images = entries.where(lambda name: name.endswith(".jpg"))
    assert images == [FILES[1], FILES[0]] == files_ending_in(entries, (".jpg",))
    assert [entry.place for entry in images] == [1, 2]
    assert images[::-1].take(np.array([0]))[0] == FILES[0]
    assert entries.find(images[1]) == 2
    assert FileEntries.of([images[1], images[0]])[0].place == 2


def test_files_are_told_by_their_extensions() -> None:
    """In any case, hidden ones too; numbers, parts of a set and names of folders are none."""
    names = [
        "a/1.JPG",
        "b.jpg/c",
        "d.tar.gz",
        ".jpg",
        "train-00000-of-00008",
        "x.tfrecord-00000-of-00008",
        "e.001",
        "f.",
    ]
    expected = [".jpg", "", ".gz", ".jpg", "", "", "", ""]
    assert [extension_of(name) for name in names] == expected
    entries = FileEntries.of([FileEntry(name, 1, 0, 0) for name in names])
    assert list(entries.ending_in((".jpg", ".png")).names) == ["a/1.JPG", ".jpg"]
    assert list(entries[::-1].ending_in((".gz", ".jpg")).names) == [".jpg", "d.tar.gz", "a/1.JPG"]
    assert len(entries.ending_in(("",))) == expected.count("")
    assert entries.ending_in((".png",)) == entries.ending_in(()) == ()


def test_an_entry_is_found_by_its_name_wherever_it_comes_from() -> None:
    """Made by hand, or by another tree with another place: the name decides."""
    entries = _listing(FILES).by_name().entries
    assert entries.find(FileEntry("b/2.jpg", 0, 0, 0)) == 2
    assert entries.find(FileEntry("b/2.jpg", 0, 0, 0, place=0)) == 2
    assert entries.find(FileEntry("c", 0, 0, 0, place=1)) is None


def test_listings_join() -> None:
    """Names get the folder before them, and positions go on counting."""
    added = Listing()
    added.add_all("f/", ["1.jpg", "ä.txt", "\udc80"], [1, 2, 3], [4, 1 << 63, -5])
    added.add_all("ö/", ["x"], [7], [8])
    added.add_all("g/", [], [], [])
    found = _listing(FILES[:1])
    found.extend(added)
    entries = found.entries()
    assert list(entries.names) == ["b/2.jpg", "f/1.jpg", "f/ä.txt", "f/\udc80", "ö/x"]
    assert entries.positions.tolist() == [100, 1, 2, 3, 4]
    assert entries.sizes.tolist()[1:] == [1, 2, 3, 7]
    assert entries.mtimes_ns.tolist()[1:] == [4, 0, -5, 8]


def test_plain_sequences_of_entries_will_do() -> None:
    """Trees that are no columns are filtered all the same."""
    assert files_ending_in(FILES, (".jpg",)) == FILES[:2]
    assert list(entry_names(FILES)) == [file.name for file in FILES] == list(entry_names(FileEntries.of(FILES)))
    assert FileEntries.of([]) == ()


def test_a_hundred_thousand_entries_take_forty_bytes_each_beside_their_names() -> None:
    """What is held of a listing is its columns, no object for each file."""
    count = 100_000
    tracemalloc.start()
    listing = Listing()
    for number in range(count):
        listing.add(f"class_{number % 10:02d}/{number:06d}.jpg", 1000 + number, 10**18, number)
    entries = listing.by_name().entries
    del listing
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(entries) == count
    assert held < count * (len("class_00/000000.jpg") + 30)

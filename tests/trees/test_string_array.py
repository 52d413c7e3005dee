"""String arrays behave as the sequences they stand for, whatever the strings are."""

from __future__ import annotations

import numpy as np
import pytest

from colabstage.trees import strings as strings_module
from colabstage.trees.strings import StringArray, first_repeated, folders_of, narrowed, table_lines, take_strings

# Lone surrogates are how Python shows a file name that is no UTF-8; "\uffff" sorts before "\U00010000" there.
ODD = ["b", "", "\udc80", "ä/ö.jpg", "\uffff", "\U00010000", "b", "a" * 5000, "日本", "a\0"]


def test_strings_come_back_as_they_went_in() -> None:
    """Any text, names that are no UTF-8 among them, by number, from the end, by slice and in order."""
    texts = StringArray.of(ODD)
    assert list(texts) == ODD
    assert [texts[i] for i in range(-len(ODD), len(ODD))] == ODD + ODD
    assert texts[2:5] == ODD[2:5]
    assert texts[::-3] == ODD[::-3]
    assert len(texts[:0]) == 0
    assert texts.lengths.tolist() == [len(text.encode("utf-8", "surrogatepass")) for text in ODD]
    with pytest.raises(IndexError):
        texts[len(ODD)]


def test_some_texts_of_some_texts_are_the_right_ones() -> None:
    """Rows are taken of rows, over more than one page."""
    names = [f"{number:05}" for number in range(10_000)]
    rows = np.random.default_rng(0).permutation(10_000)[:7000]
    some = StringArray.of(names).take(rows)
    assert some == [names[row] for row in rows]
    assert some.take(np.arange(6999, 0, -7)) == [names[row] for row in rows[6999:0:-7]]
    assert some.packed() == some
    for number_type in (np.int64, np.uint32):
        again = StringArray.of(ODD).take(np.array([7, 0, 2], number_type))
        assert (again.lengths.tolist(), again.longest) == ([5000, 1, 3], 5000)
    assert StringArray.of([]).longest == 0
    assert take_strings(tuple(names), rows) == take_strings(StringArray.of(names), rows)


@pytest.mark.parametrize("texts", [ODD, ODD[:7], [], ["b", "a-b/1", "a/2", "a/1"] * 2000], ids=len)
def test_the_order_is_that_of_python(texts: list[str]) -> None:
    """Long and short texts, with and without zero bytes, sort as `sorted` sorts them, equal ones as they come."""
    assert StringArray.of(texts).order().tolist() == sorted(range(len(texts)), key=texts.__getitem__)


PATHS = ["", "a.jpg", "c/ä.JPG", "c/b/", "/.x", "c/日本.tar.gz", "n." * 3, "thumbs", ".db", "a" * 5000 + "/Thumbs.DB"]


@pytest.mark.parametrize("times", [1, 700], ids=["one page", "several"])
def test_what_is_asked_of_all_texts_at_once_is_what_each_would_say(times: int) -> None:
    """What is in them, at a place of them and last in them; nothing begins in one and ends in the next."""
    paths = PATHS * times
    texts = StringArray.of(["-", *paths]).take(np.arange(1, len(paths) + 1))
    encoded = [path.encode() for path in paths]
    for wanted in (b"/", b"thumbs.db", b"\xe6\x97", b"n.n", b"absent"):
        assert texts.containing(wanted).tolist() == [wanted in path for path in encoded]
    assert texts.containing(b"thumbs.db", b"ar.g", any_case=True).tolist() == [
        b"thumbs.db" in path.lower() or b"ar.g" in path.lower() for path in encoded
    ]
    for place in (0, 1, -1, -2):
        whole = [path[place] if -len(path) <= place < len(path) else 0 for path in encoded]
        assert texts.bytes_at(place).tolist() == whole
    for mark in (b"/", b"."):
        assert texts.last_of(mark).tolist() == [path.rfind(mark) for path in encoded]
    folders, numbers = folders_of(texts)
    assert [folders[number] for number in numbers.tolist()] == [path.rpartition("/")[0] for path in paths]
    assert folders == list(dict.fromkeys(path.rpartition("/")[0] for path in paths))


@pytest.mark.parametrize(
    ("pieces", "utf8", "ascii_only"),
    [
        ([b"a", b"b"], True, True),
        ([b"a", "ä".encode()], True, False),
        # Together they are one character.
        (["ä".encode()[:1], "ä".encode()[1:]], False, False),
        ([b"\xff"], False, False),
        ([], True, True),
    ],
)
def test_pieces_of_bytes_may_be_no_text(pieces: list[bytes], utf8: bool, ascii_only: bool) -> None:
    """Each piece is judged by itself."""
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    cut = StringArray.cut_from(b"".join(pieces), np.cumsum(lengths) - lengths, lengths)
    assert (cut.is_utf8(), cut.is_utf8(only_ascii=True)) == (utf8, ascii_only)
    if utf8:
        assert cut == [piece.decode() for piece in pieces]


def test_equality_is_that_of_sequences() -> None:
    """Equal to lists and tuples of the same texts, from either side, and to no text."""
    assert StringArray.of(["a", "b"]) == ("a", "b")
    held: object = ["a", "b"]
    assert held == StringArray.of(["a", "b"])
    assert StringArray.of(["a", "b"]) != ["a"]
    assert StringArray.of(["a"]) != "a"


@pytest.mark.parametrize(
    ("texts", "twice"), [(["a", "b", "c"], None), ([], None), (["b", "a", "c", "a", "b"], "a"), (["x"] * 3, "x")]
)
def test_the_first_repeated_text_is_named(texts: list[str], twice: str | None) -> None:
    """The one that a reader would meet first as a repetition."""
    assert first_repeated(texts) == first_repeated(StringArray.of(texts)) == twice


def test_numbers_are_narrowed_only_where_all_fit() -> None:
    """A value of more than 32 bits, or a negative one, keeps its column wide."""
    assert narrowed(np.array([0, 2**32 - 1])).dtype == np.uint32
    assert narrowed(np.array([0, 2**32])).tolist() == [0, 2**32]
    assert narrowed(np.array([-1, 5])).tolist() == [-1, 5]


@pytest.mark.parametrize("times", [1, 700], ids=["one page", "several"])
def test_bytes_of_all_texts_at_once_are_those_of_each(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """As bytes, padded, translated and fed to a digest, in pieces of whatever length; selections as well."""
    monkeypatch.setattr(strings_module, "_FED_BYTES", 100)
    paths = [path for path in PATHS if len(path) < 100] * times
    texts = StringArray.of(["-", *paths]).take(np.arange(1, len(paths) + 1))
    encoded = [path.encode() for path in paths]
    assert list(texts.encoded()) == encoded
    assert texts.padded(40).tolist() == [path.rstrip(b"\0") for path in encoded]
    assert texts.translated(bytes.maketrans(b"ac", b"xy")) == [
        path.replace("a", "x").replace("c", "y") for path in paths
    ]
    fed = [b"", b""]
    for number, strings in enumerate((texts, StringArray.of(paths))):
        strings.feed(lambda part, number=number: fed.__setitem__(number, fed[number] + part))  # type: ignore[misc]
    lengths = np.array([len(text) for text in encoded], np.int64)
    assert fed[0] == fed[1] == b"".join(encoded) + lengths.tobytes()


def test_hashes_tell_texts_apart() -> None:
    """Equal texts have equal hashes, wherever they are; of many alike ones no two others have."""
    names = [f"{a}{b}/{c}" for a in "abcde" for b in range(100) for c in ("", "a", "b", "ab", "ba", "\0")]
    texts = StringArray.of(names)
    assert len(set(texts.hashes().tolist())) == len(names)
    rows = np.random.default_rng(0).permutation(len(names))
    assert np.array_equal(texts.take(rows).hashes(), texts.hashes()[rows])
    assert texts.among({names[7], "absent", "", names[2900]}).tolist() == [7, 2900]
    assert StringArray.of(ODD).among({"", "\udc80"}).tolist() == [1, 2]
    assert not len(texts.among(()))


TIMES = [0, 9, 10, 2**63 - 1, 1_764_000_000_123_456_789, 1_000_000_000, 5]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ([f"c{number % 3}/{number}.jpg" for number in range(7)], TIMES),
        (["ä", "", "a" * 128, "日本/x", "b", "c", "d"], TIMES),
        # What columns of bytes cannot hold: a byte that is no UTF-8, a zero, a long name, a time before 1970.
        (["a", "b", "\udc80", "c", "d", "e", "f"], TIMES),
        (["a", "b", "c\0", "d", "e", "f", "g"], TIMES),
        (["a", "b" * 129, "c", "d", "e", "f", "g"], TIMES),
        ([*"abcdefg"], [-1, *TIMES[1:]]),
        ([], []),
    ],
    ids=["names", "characters", "bytes", "zero", "long", "negative", "none"],
)
@pytest.mark.parametrize("page", [3, 4096])
def test_a_table_is_the_text_of_its_lines(
    monkeypatch: pytest.MonkeyPatch, names: list[str], numbers: list[int], page: int
) -> None:
    """Each line is what Python would write, whatever the names and numbers are, and the last has no end."""
    monkeypatch.setattr(strings_module, "_PAGE_LINES", page)
    column = np.array(numbers, np.int64)
    for columns in ([column], [column, column[::-1]]):
        rows = zip(names, *(each.tolist() for each in columns), strict=True)
        whole = "\n".join("\t".join(map(str, row)) for row in rows).encode(errors="surrogateescape")
        assert b"".join(table_lines(StringArray.of(names), *columns)) == whole
        some = StringArray.of(["-", *names]).take(np.arange(1, len(names) + 1))
        assert b"".join(table_lines(some, *columns)) == whole


@pytest.mark.parametrize("longest", [1, 7, 128, 129])
def test_pieces_are_cut_out_wherever_they_are(longest: int) -> None:
    """Also at the end of the data, where no piece of the longest length begins any more, and from data shorter than
    that."""
    random = np.random.default_rng(longest)
    for size in (0, 1, longest, 300):
        data = random.integers(1, 128, size, np.uint8).tobytes()
        starts = np.append(random.integers(0, size + 1, 50), [size, max(0, size - 1)])
        lengths = np.minimum(random.integers(0, longest + 1, 52), size - starts)
        cut = StringArray.cut_from(data, starts.astype(np.uint32), lengths)
        want = [data[at : at + count].decode() for at, count in zip(starts.tolist(), lengths.tolist(), strict=True)]
        assert cut == want
        assert cut.padded(longest).tolist() == [text.encode() for text in want]

"""Finding the file that a table means: never in a folder that was not named, never in another split."""

import pytest

from colabstage.errors import LayoutError
from tests.layouts.readers import read


def find(files: list[str], written: str, table: str = "l.csv") -> str | None:
    """The file that a table's one row leads to; none where it leads to nothing, or may lead to two."""
    try:
        found = read({**dict.fromkeys(files, b""), table: f"path,label\n{written},a\n"}, "table")
    except LayoutError:
        return None
    return found.keys[0] if len(found) else None


@pytest.mark.parametrize(
    ("files", "written", "table", "expected"),
    [
        (["train/1.png", "test/2.png"], "2", "train.csv", None),
        (["train2017/1.jpg", "val2017/1.jpg"], "1.jpg", "annotations/val.csv", "val2017/1.jpg"),
        (["a/1.jpg", "b/2.jpg"], "a/2.jpg", "l.csv", None),
        (["images/2.jpg"], "photos/2.jpg", "l.csv", "images/2.jpg"),
        (["images/2.jpg"], "/content/drive/MyDrive/x/images/2.jpg", "l.csv", "images/2.jpg"),
        (["a/1.jpg", "b/1.jpg"], "1.jpg", "l.csv", None),
        (["1.jpg", "1.png"], "1", "l.csv", None),
        (["valid/1.jpg"], "1.jpg", "val.csv", "valid/1.jpg"),
        (["test_tube/1.jpg", "cup/2.jpg"], "1.jpg", "train.csv", "test_tube/1.jpg"),
        (["1.jpg"], "..", "l.csv", None),
        (["1.jpg"], "1.png", "l.csv", None),
        (["a/img/1.jpg", "b/img/1.jpg"], "1.jpg", "a/ann/l.csv", "a/img/1.jpg"),
        (["a/img/1.jpg", "b/img/1.jpg"], "1.jpg", "c/l.csv", None),
        (["img/a/1.jpg", "img/b/1.jpg"], "1.jpg", "ann/a/l.csv", "img/a/1.jpg"),
        (["a/x/1.jpg", "a/y/1.jpg", "b/1.jpg"], "1.jpg", "a/z/l.csv", None),
        (["a/1.jpg", "b/a/1.jpg"], "a/1", "l.csv", "a/1.jpg"),
        (["a/1.jpg", "b/a/1.jpg"], "a/1", "b/l.csv", "b/a/1.jpg"),
        (["a.jpg", "A.jpg"], "A.JPG", "l.csv", None),
        (["a.jpg", "A.jpg"], "A.jpg", "l.csv", "A.jpg"),
        (["images/a b.jpg"], "https://example.org/images/a%20b.jpg?w=100", "l.csv", "images/a b.jpg"),
        (["train/IMG_1.jpg", "test/2.jpg"], "img_1.jpg", "test.csv", None),
    ],
)
def test_a_missing_file_stays_missing(files: list[str], written: str, table: str, expected: str | None) -> None:
    """It is not replaced by one of the same bare name in a folder, or a split, that was not meant."""
    assert find(files, written, table) == expected


@pytest.mark.parametrize("place", ["", "notes/"])
@pytest.mark.parametrize(
    "written",
    [
        "images/{}.jpg", "./images/{}.jpg", "{}.jpg", "{}", "images/{}", "C:\\old\\images\\{}.jpg",
        "/content/drive/MyDrive/data/images/{}.jpg", "data/images/{}.jpg", "../data/images/{}.jpg",
        "Images/{}.JPG", "{}.jpeg", "/data/upload/1/ab12cd34-{}.jpg",
    ],
)  # fmt: skip
def test_paths_lead_to_images_however_they_are_written(written: str, place: str) -> None:
    """Relative to the table, to the source or to another machine; with and without the extension, or as other systems
    spell it."""
    rows = "".join(f"{written.format(n)},c{n % 2}\n" for n in range(4))
    found = read({f"{place}labels.csv": f"file,label\n{rows}", **{f"images/{n}.jpg": b"" for n in range(4)}}, "table")
    assert list(found.keys) == [f"images/{n}.jpg" for n in range(4)]

"""What the browser shows of files: samples as pictures or words, and which of them have which class."""

import base64
import io
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from colabstage import browse_dataset, dataset_h5, stage_dataset
from colabstage.errors import OptionError, SourceNotFoundError, SplitNotFoundError
from tests.notebook.packs import CLASSES, PACKS, masks, photos, write_boxed, write_pack
from tests.support.images import in_classes, make_tree

pytest.importorskip("ipywidgets", reason="needs ipywidgets: pip install --group notebooks")


class Balanced(HTMLParser):
    """Collects tags, and fails on one that is not closed."""

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


def grid_of(browser: Any) -> str:
    """The page that is shown."""
    return str(browser._grid.drawn.value)


def large_of(browser: Any, place: int = 0) -> str:
    """A sample of the page, enlarged."""
    browser._grid.buttons[place].click()
    return str(browser._large.value)


def pictures_in(html: str) -> list[Image.Image]:
    """The pictures in a page."""
    found = re.findall(r"data:image/\w+;base64,([\w+/=]+)", html)
    return [Image.open(io.BytesIO(base64.b64decode(one))) for one in found]


def read(browser: Any, rows: list[int], longest_px: int) -> list[Any]:
    """Samples as the browser reads them; it closes its files when it has shown its page."""
    found = browser.state.read(rows, longest_px)
    browser.show()
    return list(found)


# --- pictures and words ---


@pytest.mark.parametrize("kind", PACKS)
def test_every_kind_is_drawn(tmp_path: Path, kind: str) -> None:
    """As a grid and alone: a picture where it is one, words otherwise; names are text, whatever is in them."""
    browser = browse_dataset(PACKS[kind](tmp_path / "a.h5"), page_size=6)
    grid, large = grid_of(browser), large_of(browser)
    is_picture = kind not in ("tokens", "table", "long table", "many axes")
    assert tags_of(grid).count("svg") == (6 if is_picture else 0)
    assert tags_of(large).count("svg") == int(is_picture)
    assert ("<path d=" in large) == (kind in ("sounds", "stereo"))
    assert "train[0]" in large
    assert "<b>tram" not in grid + large + browser._legend.value
    assert "<i>train" not in grid + large


def test_boxes_and_masks_are_drawn(tmp_path: Path) -> None:
    """A rectangle for each box with its class's name; a legend of the classes that are seen."""
    boxed = write_boxed(tmp_path / "a.h5")
    grid = grid_of(browse_dataset(boxed.path))
    assert tags_of(grid).count("rect") == sum(map(len, boxed.labels))
    assert grid.count("bus &amp; &lt;b&gt;tram") == 3
    for count, named in ((14, (True, True)), (34, (False, True)), (35, (False, False)), (201, (False, False))):
        browser: Any = browse_dataset(write_boxed(tmp_path / f"{count}.h5", boxes=count).path)
        browser.state.page_size, browser.state.page = 1, 5
        browser.show()
        pages = grid_of(browser), large_of(browser)
        assert tuple(">car</text>" in page for page in pages) == named
        assert all(tags_of(page).count("rect") == min(count, 200) for page in pages)
        assert all(("201 boxes, 200 drawn" in page) == (count > 200) for page in pages)
    legend = browse_dataset(PACKS["masks"](tmp_path / "b.h5"))._legend.value
    assert "car" in legend
    assert "background<" not in legend


def test_tokens_that_are_bytes_of_text_are_that_text(tmp_path: Path) -> None:
    letters = np.frombuffer(b"To be, or not to be", np.uint8).astype(np.uint16)
    assert "To be, or not" in grid_of(browse_dataset(write_pack(tmp_path / "a.h5", letters[None], None)))


def side_by_side(*values: Any) -> NDArray[Any]:
    """One image of 8 x 8 for each of three values, the rest of which are the first one."""
    images = np.full((1, 8, 8), values[0])
    images[0, 0, : len(values)] = values
    return images


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 128, 255], np.uint8), [0, 128, 255]),
        (np.array([0.25, 0.5, 1.0], np.float32), [64, 128, 255]),
        (np.array([False, True, True]), [0, 255, 255]),
        (np.array([1000, 2000, 3000], np.uint16), [0, 128, 255]),
        (np.array([-4.0, np.nan, 4.0]), [0, 128, 255]),
        (np.array([7, 7, 7], np.int32), [0, 0, 0]),
        (np.array([-np.inf, 0.0, 1.0]), [0, 0, 255]),
    ],
    ids=["bytes", "fractions", "bool", "16 bits", "floats", "flat", "infinite"],
)
def test_values_become_grey_levels(tmp_path: Path, values: NDArray[Any], expected: list[int]) -> None:
    """Bytes and fractions as they are meant, all else from the least to the most; small pictures are lossless."""
    (picture,) = pictures_in(grid_of(browse_dataset(write_pack(tmp_path / "a.h5", side_by_side(*values), None))))
    assert picture.format == "PNG"
    assert np.asarray(picture)[0, :3].tolist() == [[level] * 3 for level in expected]


@pytest.mark.parametrize(
    "shape", [(40, 30), (40, 30, 1), (40, 30, 2), (40, 30, 3), (40, 30, 4), (3, 40, 30), (1, 40, 30)]
)
def test_any_channels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Each shape of an image is one of three channels; the second of two and a fourth are not shown."""
    pixels = np.full((1, *shape), 200, np.uint8)
    if shape[-1] in (2, 4):
        pixels[..., -1] = 9
    (picture,) = pictures_in(grid_of(browse_dataset(write_pack(tmp_path / "a.h5", pixels, None))))
    assert (picture.size, picture.mode) == ((30, 40), "RGB")
    assert picture.getpixel((0, 0)) == (200, 200, 200)


def test_large_images_get_small(tmp_path: Path) -> None:
    """Proportions stay; photographs are JPEGs."""
    browser = browse_dataset(write_pack(tmp_path / "a.h5", np.full((1, 1200, 600, 3), 77, np.uint8), None))
    for html, most in ((grid_of(browser), 300), (large_of(browser), 1000)):
        (picture,) = pictures_in(html)
        assert picture.format == "JPEG"
        assert picture.size[1] == 2 * picture.size[0] <= most


def test_masks_are_painted_in_their_classes_colours(tmp_path: Path) -> None:
    """Background and what has no class stay as they are; half of the image shows through the others."""
    mask = np.zeros((1, 8, 8), np.uint8)
    mask[0, 0, :4] = [0, 1, 255, 2]
    pack = write_pack(
        tmp_path / "a.h5", np.full((1, 8, 8, 3), 100, np.uint8), mask, classes=("background", "cat", "dog")
    )
    browser = browse_dataset(pack)
    (picture,) = pictures_in(grid_of(browser))
    background, cat, void, dog = np.asarray(picture)[0, :4].astype(int).tolist()
    assert background == void == [100] * 3
    for painted in (cat, dog):
        assert painted != [100] * 3
        assert all(49 <= part <= 178 for part in painted), "half of the image, half of a colour"
    assert cat != dog


# --- classes ---


def found(browser: Any) -> dict[str, list[int]]:
    """The rows of each class of `train`, by name."""
    labels = browser.state.labels
    assert labels.counts.tolist() == [len(labels.rows_of(number)) for number in range(len(labels.names))]
    return {name: labels.rows_of(number).tolist() for number, name in enumerate(labels.names)}


@pytest.mark.parametrize(
    ("y", "classes", "rows"),
    [
        ((np.arange(5) % 2).reshape(5, 1).astype(np.uint8), (), {"0": [0, 2, 4], "1": [1, 3]}),
        ((np.arange(5) % 2).reshape(5, 1, 1).astype(np.float32), (), {"0": [0, 2, 4], "1": [1, 3]}),
        (np.arange(5) % 2 == 1, (), {"0": [0, 2, 4], "1": [1, 3]}),
        (np.array(["dog", "cat", "dog"], object), (), {"cat": [1], "dog": [0, 2]}),
        # A class that no sample has is there too; -1 is no label, and what has no name is its number.
        (np.array([2, -1, 0, 7, 2]), CLASSES, {"no label": [1], "car": [2], CLASSES[1]: [], "van": [0, 4], "7": [3]}),
        # A column for each named class.
        (np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]]), CLASSES, {"car": [0], CLASSES[1]: [2], "van": [0, 2]}),
        # 255 is no class.
        (masks(6), ("nothing", "road", "sky"), {"nothing": [0, 1, 2, 3, 4, 5], "road": [0, 2, 4], "sky": [0, 3]}),
        # Many numbers are classes where the file names them.
        (np.arange(300), [f"c{n}" for n in range(300)], {f"c{n}": [n] for n in range(300)}),
    ],
    ids=["bytes", "floats", "bool", "texts", "names", "columns", "masks", "many"],
)
def test_targets_are_classes(tmp_path: Path, y: NDArray[Any], classes: Any, rows: dict[str, list[int]]) -> None:
    pack = write_pack(tmp_path / "a.h5", photos(len(y), height=8, width=9), y, classes=classes)
    assert found(browse_dataset(pack)) == rows


def test_a_sample_counts_once_for_a_class_of_its_boxes(tmp_path: Path) -> None:
    """Rows of a second file come after those of the first."""
    boxed = write_boxed(tmp_path / "d-1.h5")
    own = {
        name: [row for row, labels in enumerate(boxed.labels) if number in labels]
        for number, name in enumerate(CLASSES)
    }
    assert found(browse_dataset(boxed.path)) == own
    write_boxed(tmp_path / "d-2.h5")
    assert found(browse_dataset(tmp_path / "d-*.h5")) == {
        name: [*rows, *(len(boxed.labels) + row for row in rows)] for name, rows in own.items()
    }


@pytest.mark.parametrize(
    ("y", "why"),
    [
        (None, "no targets"),
        (np.linspace(0, 1, 6), "float64 numbers"),
        (np.array([0, 1, np.nan, 2, 3, 4]), "float64 numbers"),
        (np.zeros((6, 5), np.float32), "5 numbers each"),
        (np.arange(300), "300 different values"),
    ],
    ids=["none", "fractions", "nan", "vectors", "many"],
)
def test_what_has_no_classes_says_why(tmp_path: Path, y: NDArray[Any] | None, why: str) -> None:
    """And there is no filter."""
    browser = browse_dataset(write_pack(tmp_path / "a.h5", photos(6 if y is None else len(y), height=8, width=9), y))
    assert browser.state.labels.names == ()
    assert browser._bars.widget.layout.display == "none"
    assert why in browser._message.value


# --- where samples are ---


@pytest.mark.torch
def test_every_way_to_say_it(tmp_path: Path) -> None:
    """A path as text or as a path, a pattern, and a split of it are the same samples; names of fields are kept."""
    path = write_pack(tmp_path / "a.h5", photos(20), np.arange(20) % 2)
    for data in (path, str(path), str(tmp_path / "*.h5")):
        browser = browse_dataset(data, split="test")
        assert browser.state.source.rows == {"train": 20, "test": 2}
        np.testing.assert_array_equal(read(browser, [1], 99)[0].x, photos(2)[1])
    assert browse_dataset(dataset_h5(path, split="test")).state.source.rows == {"test": 2}
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["pictures"], file["kinds"] = photos(6), np.arange(6) % 2
    browser = browse_dataset(dataset_h5(tmp_path / "own.h5", x="pictures", y="kinds"))
    assert found(browser) == {"0": [0, 2, 4], "1": [1, 3, 5]}
    assert [sample.y for sample in read(browser, [1, 2], 99)] == [1, 0]


def test_what_staging_returns_is_shown_unless_it_is_plain_files(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "photos", in_classes(8))
    places: Any = {"local_dir": tmp_path / "here", "cache_dir": None, "progress": False}
    assert found(browse_dataset(stage_dataset(source, **places))).keys() == {"cat", "dog"}
    with pytest.raises(OptionError, match="keep='pack'"):
        browse_dataset(stage_dataset(source, keep="files", **places))


def test_names_in_several_files_are_those_of_their_rows(tmp_path: Path) -> None:
    """On a page that reaches over the end of the first file."""
    for number in (1, 2):
        write_pack(tmp_path / f"d-{number}.h5", photos(20, height=8, width=9), None, keys=True)
    browser: Any = browse_dataset(tmp_path / "d-*.h5", page_size=16)
    assert "1 more" in repr(browser)
    browser._on.click()
    shown = re.findall(r"#(\d+) .*?train-(\d+)\.jpg", grid_of(browser))
    assert [(int(row), int(name)) for row, name in shown] == [(row, row % 20) for row in range(16, 32)]


@pytest.mark.parametrize(
    ("data", "options", "error", "named"),
    [
        (7, {}, OptionError, "stage_dataset returns, a dataset_h5, or the path"),
        (["a.h5"], {}, OptionError, "stage_dataset returns, a dataset_h5, or the path"),
        ("none.h5", {}, SourceNotFoundError, "none.h5"),
        ("a.h5", {"split": "dev"}, SplitNotFoundError, r"'train' \(30 samples\)"),
        *(("a.h5", {"page_size": size}, OptionError, "from 1 to 100") for size in (0, 101, 2.0, True, "8")),
    ],
)
def test_what_cannot_be_shown_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Any, options: Any, error: Any, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    PACKS["labels"](tmp_path / "a.h5")
    with pytest.raises(error, match=named):
        browse_dataset(data, **options)


def test_image_files_are_decoded_no_larger_than_shown(tmp_path: Path) -> None:
    """Each keeps its proportions; its own size is known for its boxes."""
    browser = browse_dataset(write_boxed(tmp_path / "a.h5").path)
    small = read(browser, [3, 0], 28)
    assert [sample.x.shape for sample in small] == [(17, 28, 3), (20, 28, 3)]
    assert [sample.size for sample in small] == [(34, 56), (40, 56)]
    assert [len(sample.y["boxes"]) for sample in small] == [3, 2]
    assert read(browser, [3], 500)[0].x.shape == (34, 56, 3)


def test_200_000_samples_turn_quickly(tmp_path: Path) -> None:
    """A page anywhere in the file takes a small part of a second, also of one class; nothing else is read."""
    count = 200_000
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        # Never written, so the file takes no room; what is read of it is zeros.
        file.create_dataset("X_train", (count, 96, 96, 3), "u1")
        file["X_train"][-30:] = photos(30, height=96, width=96)
        file["Y_train"] = np.arange(count) % 7
        file["key_train"] = np.array([f"{row}.jpg" for row in range(count)], dtype="S12")
    browser: Any = browse_dataset(path)
    browser._bars._bars.buttons[3].click()
    seconds = []
    for page in (1, browser.state.pages // 2, browser.state.pages, 6, 5):
        began = time.thread_time()
        browser._page.value = page
        seconds.append(time.thread_time() - began)
    # Most of the five may be late on a busy machine.
    assert min(seconds) < 0.15, seconds
    assert {row % 7 for row in browser.state.rows} == {3}

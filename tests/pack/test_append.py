"""Adding to a dataset that is packed already: read as one with it, or refused by the difference."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import LayoutError, OptionError, SourceNotFoundError, TargetExistsError
from colabstage.h5.manifest import is_whole, manifest_path, read_manifest
from colabstage.load.reading.reader import SplitReader
from tests.support.steps import OneStep

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def base(tmp_path: Path, photos: Path) -> Path:
    """A pack of thirty images of three classes, made smaller."""
    pack_dataset(photos, tmp_path / "data.h5", image_size=(8, 8), resize="crop", progress=False)
    return tmp_path / "data.h5"


@pytest.fixture
def more(tmp_path: Path, make_images: Callable[..., Path]) -> Path:
    """Ten images of the third class alone, in another size and with other names."""
    folder = make_images(tmp_path / "more-all", 30, size=(20, 30))
    kept = tmp_path / "more" / "class2"
    kept.mkdir(parents=True)
    for path in (folder / "class2").iterdir():
        path.rename(kept / f"new-{path.name}")
    return kept.parent


def test_what_is_appended_takes_the_form_of_what_is_there(base: Path, more: Path) -> None:
    """Size, fitting, encoding and labels are those of the pack; rows that were there keep their numbers."""
    before = base.read_bytes()
    report = pack_dataset(more, append_to=base, progress=False)
    assert report.path == base.with_name("data-append-00001.h5")
    assert report.samples == {"train": 10}
    assert not any("have the names" in note for note in report.notes)
    assert base.read_bytes() == before
    one, both = SplitReader(base), SplitReader(base.with_name("data*.h5"))
    assert len(both) == 40
    np.testing.assert_array_equal(both.read_x(range(30)), one.read_x(range(30)))
    assert both.read_y(range(30, 40)).tolist() == [2] * 10  # type: ignore[union-attr]
    assert all(key.startswith("class2/new-") for key in both.keys(range(30, 40)))


def test_appending_again_takes_the_next_number(base: Path, more: Path) -> None:
    """A second file, with the names of the first noted; a part may stand for the dataset."""
    pack_dataset(more, append_to=base, progress=False)
    report = pack_dataset(more, append_to=base.with_name("data-append-00001.h5"), progress=False)
    assert Path(report.path).name == "data-append-00002.h5"
    assert "10 of the samples" in report.notes[-1]
    assert len(SplitReader(base.with_name("data*.h5"))) == 50


def test_shards_can_be_appended_to(tmp_path: Path, photos: Path, more: Path) -> None:
    """The dataset is named by the file that it is not; shards come first, what was appended last."""
    pack_dataset(photos, tmp_path / "set.h5", image_size=(8, 8), shards=3, progress=False)
    report = pack_dataset(more, append_to=tmp_path / "set.h5", progress=False)
    assert Path(report.path).name == "set-append-00001.h5"
    assert len(SplitReader(tmp_path / "set-*.h5")) == 40


def _other_class(folder: Path) -> None:
    (folder / "class2").rename(folder / "zebra")


def _numbers(folder: Path) -> None:
    shutil.rmtree(folder / "class2")
    Image.new("RGB", (8, 8)).save(folder / "one.png")
    (folder / "table.csv").write_text("path,score\none.png,0.5\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "options", "difference"),
    [
        (None, {"image_size": (9, 8)}, r"its inputs have shape \(9, 8, 3\) instead of \(8, 8, 3\)"),
        (None, {"color_mode": "grayscale"}, r"its inputs have shape \(8, 8, 1\) instead of \(8, 8, 3\)"),
        (None, {"encoding": "encoded"}, "its inputs are encoded images instead of values of one shape"),
        (None, {"encoding": "jpeg:90"}, "its inputs are encoded images instead of values of one shape"),
        (None, {"prepare": np.float32}, "its inputs have dtype float32 instead of uint8"),
        (None, {"prepare": np.negative}, r"its inputs are prepared by \w+:\w+ instead of None"),
        (_other_class, {}, r"its classes are \(zebra\) instead of \(class0, class1, class2\)"),
        (_numbers, {}, r"its classes are not named instead of \(class0, class1, class2\)"),
    ],
)
def test_another_form_is_refused_by_the_difference(
    base: Path, more: Path, change: Callable[[Path], None] | None, options: dict[str, Any], difference: str
) -> None:
    """Nothing is written, and the message says in what the samples differ."""
    if change is not None:
        change(more)
    with pytest.raises(OptionError, match=difference):
        pack_dataset(more, append_to=base, progress=False, **options)
    assert sorted(path.name for path in base.parent.glob("*.h5*")) == ["data.h5", "data.h5.json"]


def test_one_encoding_is_not_another(tmp_path: Path, photos: Path, more: Path) -> None:
    """JPEGs made anew and files as they came are both bytes, and still not one dataset."""
    pack_dataset(photos, tmp_path / "data.h5", encoding="jpeg:90", progress=False)
    with pytest.raises(OptionError, match=r"encoded.*jpeg:90"):
        pack_dataset(more, append_to=tmp_path / "data.h5", encoding="encoded", progress=False)


def test_images_of_another_size_are_refused_where_no_size_was_asked_for(
    tmp_path: Path, photos: Path, more: Path
) -> None:
    """A pack of images that had one size takes no others."""
    pack_dataset(photos, tmp_path / "data.h5", progress=False)
    with pytest.raises(OptionError, match=r"\(20, 30, 3\).*\(16, 20, 3\)"):
        pack_dataset(more, append_to=tmp_path / "data.h5", progress=False)
    Image.new("RGB", (20, 16)).save(more / "class2" / "aaa.png")
    with pytest.raises(LayoutError, match="many sizes"):
        pack_dataset(more, append_to=tmp_path / "data.h5", progress=False)


def test_what_is_appended_to_must_be_there(tmp_path: Path, photos: Path) -> None:
    """No dataset, no appending; and one of the two arguments says where to."""
    with pytest.raises(SourceNotFoundError, match=r"data\.h5"):
        pack_dataset(photos, append_to=tmp_path / "data.h5", progress=False)
    with pytest.raises(OptionError, match="target"):
        pack_dataset(photos, tmp_path / "a.h5", append_to=tmp_path / "data.h5", progress=False)
    with pytest.raises(OptionError, match=r"target|out"):
        pack_dataset(photos, progress=False)


def test_a_dataset_with_appended_files_is_not_replaced(base: Path, photos: Path, more: Path) -> None:
    """Another base under appended files would be a mixture of old and new, so it takes another name."""
    pack_dataset(more, append_to=base, progress=False)
    with pytest.raises(TargetExistsError, match="data-append-00001"):
        pack_dataset(photos, base, overwrite=True, progress=False)


class _DiesAfter(OneStep):
    """A progress whose process is ended at the n-th sample."""

    def __init__(self, samples: int) -> None:
        self._left = samples

    def advance(self, amount: int = 1) -> None:
        self._left -= amount
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _append_and_die(source: Path, base: Path, samples: int) -> None:
    pack_dataset(source, append_to=base, progress=_DiesAfter(samples))


@pytest.mark.parametrize("samples", [1, 5, 10])
def test_a_killed_append_leaves_what_was_there(
    base: Path, more: Path, samples: int, leftovers: Callable[[Path], list[str]]
) -> None:
    """Readers of the pattern see the old rows and no other, and the next append is that of an undisturbed one."""
    process = multiprocessing.get_context("spawn").Process(target=_append_and_die, args=(more, base, samples))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    process.close()
    assert len(SplitReader(base.with_name("data*.h5"))) == 30
    report = pack_dataset(more, append_to=base, progress=False)
    assert Path(report.path).name == "data-append-00001.h5"
    assert leftovers(base.parent) == []
    appended = Path(report.path)
    manifest = read_manifest(appended)
    assert manifest is not None
    assert is_whole(appended, manifest)
    found = appended.read_bytes()
    appended.unlink()
    manifest_path(appended).unlink()
    pack_dataset(more, append_to=base, progress=False)
    assert appended.read_bytes() == found

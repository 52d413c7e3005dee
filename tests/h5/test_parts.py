"""Files that are read as one: which they are, in which order, and what they must have in common."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import DamagedPackError, OptionError, SourceNotFoundError
from colabstage.h5.info import FieldInfo, read_info
from colabstage.h5.manifest import manifest_path
from colabstage.h5.parts import (
    appended_beside,
    appended_path,
    check_files,
    field_schema,
    find_parts,
    joined_info,
    next_appended,
    shard_path,
    shards_beside,
)
from colabstage.images.geometry import ImageOptions, MaskOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

# Some look like parts themselves, and some like patterns.
NAMES = st.sampled_from(["data.h5", "data", "a.b.h5", "set-append-00001.h5", "x[1]*.h5"])
NUMBERS = st.sets(st.integers(1, 30), max_size=4)


def put(paths: Iterable[Path]) -> None:
    """Empty files under these names, each with a manifest beside it."""
    for path in paths:
        path.touch()
        manifest_path(path).touch()


@given(name=NAMES, alone=st.booleans(), count=st.sampled_from([0, 1, 3, 12]), appended=NUMBERS)
def test_parts_come_in_the_order_of_their_rows(name: str, alone: bool, count: int, appended: set[int]) -> None:
    """The single file, then all shards, then what was appended; folders, manifests and other datasets are none."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / name
        shards = [shard_path(target, number, count) for number in range(count)]
        added = [appended_path(target, number) for number in sorted(appended)]
        put([*added[::-1], *shards[::-1], *[target] * alone])
        # Of another dataset, and of one whose own name looks like that of a part.
        strange = [appended_path(Path(folder) / f"other-{name}", 1), appended_path(appended_path(target, 40), 1)]
        put(strange)
        assert shards_beside(target) == shards
        assert appended_beside(target) == added
        assert next_appended(target) == appended_path(target, max(appended, default=0) + 1)
        for path in strange:
            path.unlink()
            manifest_path(path).unlink()
        wanted = [target] * alone + shards + added
        if wanted:
            (Path(folder) / "zz-folder.h5").mkdir()
            assert find_parts(Path(folder) / "*") == tuple(wanted)
        for path in wanted:
            assert find_parts(path) == (path,)
        assert find_parts([str(path) for path in wanted[::-1]] or [target]) == (tuple(wanted[::-1]) or (target,))


def test_a_set_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """A missing shard would only show as fewer rows, and two sets as rows that come twice."""
    target = tmp_path / "data.h5"
    with pytest.raises(SourceNotFoundError, match="No file matches"):
        find_parts(tmp_path / "*.h5")
    put(shard_path(target, number, 7) for number in (0, 3))
    with pytest.raises(SourceNotFoundError, match=r"\b5\b.*data-00001.*data-00004"):
        find_parts(tmp_path / "*.h5")
    put(shard_path(target, number, 7) for number in range(1, 6))
    with pytest.raises(SourceNotFoundError, match=r"data-00006-of-00007\.h5"):
        find_parts(tmp_path / "*.h5")
    put([shard_path(target, 6, 7), shard_path(target, 0, 2), shard_path(target, 1, 2)])
    with pytest.raises(DamagedPackError, match="-of-00007"):
        find_parts(tmp_path / "*.h5")
    assert len(find_parts(tmp_path / "data-?????-of-00007.h5")) == 7


def test_numbers_of_appended_files_end(tmp_path: Path) -> None:
    """The last that has five digits is used, and the one after it is none."""
    target = tmp_path / "data.h5"
    put([appended_path(target, 99_998)])
    assert next_appended(target) == appended_path(target, 99_999)
    put([appended_path(target, 99_999)])
    with pytest.raises(OptionError, match="99,999 appended files"):
        next_appended(target)


def test_what_is_no_file_is_told_by_what_it_is(tmp_path: Path) -> None:
    """Alone and among others; an open file's names are not taken for files."""
    check_files([tmp_path, "a.h5", tmp_path / "b.h5"])
    with h5py.File(tmp_path / "open.h5", "w") as file:
        file["x"] = [1]
        with pytest.raises(OptionError, match=r"path=File.*open\.h5'"):
            check_files(file)
    for wrong, said in ((b"a.h5", "b'a.h5'"), ({"a.h5": 1}, "{'a.h5': 1}"), (["a.h5", 7], "7"), ({"a.h5"}, "{'a.h5'}")):
        with pytest.raises(OptionError, match=f"^path={re.escape(said)} "):
            check_files(wrong)
    with pytest.raises(OptionError, match="empty"):
        find_parts([])


def test_fields_of_each_kind_are_told_apart_by_all_that_matters_to_a_reader() -> None:
    """And by nothing else: the order of bytes or of columns, names and lengths make no difference."""
    fixed = FieldInfo("X_train", "fixed", 3, (4, 5), np.dtype("<f4"), 240)
    boxes = replace(fixed, kind="boxes", shape=None, columns=("boxes", "labels", "areas"))
    ragged = replace(fixed, kind="ragged", shape=None)
    texts = replace(fixed, kind="texts", shape=None, dtype=np.dtype(object))
    image = replace(fixed, kind="encoded", shape=None, dtype=np.dtype(np.uint8), image=ImageOptions((8, 8)))
    mask = replace(image, image=None, mask=MaskOptions((8, 8)))
    different = [
        fixed, replace(fixed, shape=(5, 4)), replace(fixed, dtype=np.dtype(np.int32)),
        boxes, replace(boxes, columns=("boxes", "labels")),
        ragged, replace(ragged, dtype=np.dtype(np.int32)),
        texts,
        image, replace(image, image=ImageOptions((9, 8))), replace(image, image=ImageOptions((8, 8), resize="crop")),
        mask, replace(mask, mask=MaskOptions((9, 8))),
    ]  # fmt: skip
    schemas = [field_schema(one) for one in different]
    assert [[one == other for other in schemas] for one in schemas] == np.eye(len(schemas), dtype=bool).tolist()
    for one, other in (
        (fixed, replace(fixed, dtype=np.dtype(">f4"))),
        (boxes, replace(boxes, columns=("boxes", "areas", "labels"))),
    ):
        assert field_schema(one) == field_schema(replace(other, name="X_val", rows=9, nbytes=1))


def test_what_several_files_hold_together(tmp_path: Path) -> None:
    """Rows and bytes of each split are added up; there are targets if all have them, and all that was left out."""
    infos = []
    for number, splits in enumerate((("train", "val"), ("train",), ("train", "test"))):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for split in splits:
                file[f"X_{split}"] = np.zeros((10 + number, 2, 3), np.uint8)
                if split != "val":
                    file[f"Y_{split}"] = np.arange(10 + number)
        infos.append(replace(read_info(tmp_path / f"{number}.h5"), skipped=(f"{number} was cut off",)))
    joined: Any = joined_info(infos)
    assert joined.rows == {"train": 33, "val": 10, "test": 12}
    assert joined.path == infos[0].path
    assert joined.skipped == ("0 was cut off", "1 was cut off", "2 was cut off")
    assert (joined.split("train").x.nbytes, joined.split("train").y.nbytes) == (33 * 6, 33 * 8)
    assert joined.split("train").y.rows == 33
    assert joined.split("val").y is None
    for some in (infos[:2], infos[1::-1]):
        some[0] = replace(some[0], splits={"train": replace(some[0].split("train"), y=None)})
        assert joined_info(some).split("train").y is None


def test_a_name_that_no_file_has_is_refused() -> None:
    """With the argument, whether it is one path or one of several."""
    for files in ("a\0b", ["a.h5", "a\0b"]):
        with pytest.raises(OptionError, match="path="):
            check_files(files)

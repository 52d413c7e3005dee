"""A new packed file: where its datasets lie, what plain h5py reads from it, and that its bytes repeat."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from colabstage.h5.schema import (
    FORMAT_ATTRIBUTE,
    FORMAT_VERSION,
    PackContent,
    ReservedDataset,
    create_pack,
    reserved_offsets,
)

if TYPE_CHECKING:
    from pathlib import Path

PIXELS = ReservedDataset("X_train", (50, 10, 12, 3), np.dtype(np.uint8))
DEEP = ReservedDataset("X_dev", (9, 16, 16, 1), np.dtype(np.uint16))
BYTES = ReservedDataset("X_test/bytes", (12_345,), np.dtype(np.uint8))
SMALL = ReservedDataset("X_tiny", (3, 2, 2, 3), np.dtype(np.uint8))
EMPTY = ReservedDataset("X_none/bytes", (0,), np.dtype(np.uint8))


def content(*reserved: ReservedDataset) -> PackContent:
    """Room for `reserved`, with one of each kind of what else a pack holds."""
    return PackContent(
        reserved=reserved or (PIXELS, DEEP, BYTES, SMALL, EMPTY),
        arrays={
            "Y_train": np.arange(50, dtype=np.int64),
            "key_train": [f"gatto/ü{row}.png" for row in range(50)],
            "classes": ["gatto", "köpek"],
            "skipped": [],
            "X_test/offsets": np.array([0, 12_345], dtype=np.int64),
        },
        attributes={"layout": "image_folder", "options": {"seed": 3, "splits": None}, "count": 7},
        group_attributes={"X_test": {"image_options": {"size": [4, 5]}}},
    )


def test_large_datasets_are_contiguous_and_begin_on_a_page(tmp_path: Path) -> None:
    """Each is one run of bytes without filters, at the offset that was returned, aligned for a memory map."""
    path = tmp_path / "new.h5"
    offsets = create_pack(path, content())
    assert set(offsets) == {"X_train", "X_dev", "X_test/bytes", "X_tiny"}
    with h5py.File(path, "r") as file:
        for name, offset in offsets.items():
            dataset = file[name]
            assert dataset.chunks is None
            assert dataset.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
            assert dataset.id.get_create_plist().get_nfilters() == 0
            assert dataset.id.get_offset() == offset
            assert offset + dataset.nbytes <= path.stat().st_size
            if dataset.nbytes >= 4096:
                assert offset % 4096 == 0
        assert file["X_none/bytes"].shape == (0,)


def test_datasets_do_not_overlap(tmp_path: Path) -> None:
    """Filling every dataset through the file's descriptor leaves each with its own bytes, and the rest as it was."""
    path = tmp_path / "new.h5"
    specs = {spec.name: spec for spec in (PIXELS, DEEP, BYTES, SMALL)}
    offsets = create_pack(path, content())
    wanted = {
        name: np.random.default_rng(number).integers(0, 256, specs[name].shape).astype(specs[name].dtype)
        for number, name in enumerate(offsets)
    }
    with path.open("r+b") as handle:
        for name, offset in offsets.items():
            handle.seek(offset)
            handle.write(wanted[name].tobytes())
    with h5py.File(path, "r") as file:
        for name, values in wanted.items():
            assert np.array_equal(file[name][()], values)
        assert np.array_equal(file["Y_train"][()], np.arange(50))


def test_plain_h5py_reads_labels_keys_classes_and_attributes(tmp_path: Path) -> None:
    """Text is fixed-length UTF-8; mappings are JSON; nothing needs colabstage."""
    path = tmp_path / "new.h5"
    create_pack(path, content())
    with h5py.File(path, "r") as file:
        assert file["Y_train"].dtype == np.int64
        assert file["key_train"].asstr()[49] == "gatto/ü49.png"
        assert file["classes"].asstr()[()].tolist() == ["gatto", "köpek"]
        kind = h5py.check_string_dtype(file["classes"].dtype)
        assert (kind.encoding, kind.length) == ("utf-8", 6)
        assert file["skipped"].shape == (0,)
        assert file.attrs["layout"] == "image_folder"
        assert file.attrs["options"] == '{"seed": 3, "splits": null}'
        assert file.attrs["count"] == 7
        assert file.attrs[FORMAT_ATTRIBUTE] == FORMAT_VERSION
        assert file["X_test"].attrs["image_options"] == '{"size": [4, 5]}'


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    """No time, name or memory address gets into the file, whatever order mappings are in."""
    first, second = tmp_path / "a.h5", tmp_path / "another name.h5"
    whole = content()
    turned = PackContent(
        whole.reserved,
        dict(reversed(list(whole.arrays.items()))),
        dict(reversed(list(whole.attributes.items()))),
        whole.group_attributes,
    )
    assert create_pack(first, whole) == create_pack(second, turned)
    assert first.read_bytes() == second.read_bytes()


def test_names_that_are_no_utf8_are_escaped(tmp_path: Path) -> None:
    """A file name with odd bytes becomes readable text in the file, not an error."""
    odd = b"gr\xfcn".decode("utf-8", "surrogateescape")
    path = tmp_path / "new.h5"
    create_pack(path, PackContent([PIXELS], {"key_train": [odd, "ok"]}, {"source": odd}, {}))
    with h5py.File(path, "r") as file:
        assert file["key_train"].asstr()[()].tolist() == [r"gr\udcfcn", "ok"]
        assert file.attrs["source"] == r"gr\udcfcn"


def test_an_unfinished_file_gives_its_offsets_again(tmp_path: Path) -> None:
    """Who goes on with a file that another process made finds the same places."""
    path = tmp_path / "new.h5"
    assert reserved_offsets(path, content()) is None
    offsets = create_pack(path, content())
    assert reserved_offsets(path, content()) == offsets


@pytest.mark.parametrize(
    "other",
    [
        ReservedDataset("X_train", (51, 10, 12, 3), np.dtype(np.uint8)),
        ReservedDataset("X_train", (50, 10, 12, 3), np.dtype(np.uint16)),
        ReservedDataset("X_val", (50, 10, 12, 3), np.dtype(np.uint8)),
    ],
    ids=["rows", "dtype", "name"],
)
def test_another_file_gives_no_offsets(tmp_path: Path, other: ReservedDataset) -> None:
    """A file with other datasets is not taken for the one to go on with."""
    path = tmp_path / "new.h5"
    create_pack(path, content(PIXELS))
    assert reserved_offsets(path, content(other)) is None


@pytest.mark.parametrize("damage", ["cut", "zeroed", "text"])
def test_a_damaged_file_gives_no_offsets(tmp_path: Path, damage: str) -> None:
    """What is not a whole HDF5 file any more is begun anew instead of being trusted."""
    path = tmp_path / "new.h5"
    create_pack(path, content())
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:5000], "zeroed": bytes(len(whole)), "text": b"hello"}[damage])
    assert reserved_offsets(path, content()) is None


def test_no_time_is_kept(tmp_path: Path) -> None:
    """The same content makes the same bytes a second later, groups and all, whatever HDF5 notes by default."""
    content = PackContent(
        [ReservedDataset("X_train/bytes", (3,), np.dtype(np.uint8))],
        {"X_train/offsets": np.arange(3), "Y_train": np.arange(2)},
        {},
        {"X_train": {"a": "b"}, "Z": {"c": "d"}},
    )
    create_pack(tmp_path / "a.h5", content)
    time.sleep(1.1)
    create_pack(tmp_path / "b.h5", content)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()

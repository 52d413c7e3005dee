"""The manifest beside a pack: written atomically, checked when read, and able to say which block is bad."""

import errno
import json
import os
import re
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from colabstage import verify_file
from colabstage.errors import NewerFormatError, SourceNotFoundError, TargetExistsError
from colabstage.h5.info import read_info
from colabstage.h5.manifest import (
    MANIFEST_VERSION,
    Manifest,
    check_place_of_manifest,
    damage_of,
    damaged_blocks,
    is_as_written,
    is_whole,
    manifest_of_bytes,
    manifest_path,
    place_pack,
    read_manifest,
    write_manifest,
)
from colabstage.io import workspace
from colabstage.io.files import BLOCK_BYTES, read_json
from tests.support.packs import write_pack

ROWS, SIDE = 28, 592


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack of four blocks, the last one short, in which every byte counts."""
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, SIDE, SIDE, 3), np.uint8)
    return write_pack(tmp_path / "photos.h5", {"Y_train": np.zeros(ROWS, np.int64), "X_train": pixels})


def manifest_of(path: Path) -> Manifest:
    """The manifest that packing would write for a file."""
    return replace(
        manifest_of_bytes(path),
        key="0123abcd",
        identity={"kind": "folder", "stamps": {"": 7}},
        samples={"train": ROWS},
        skipped=("cat/ü.png: cut off",),
        written_by="0.1.0",
    )


def test_what_is_written_is_read(pack: Path) -> None:
    """Every field is restored, and the file agrees with it."""
    manifest = manifest_of(pack)
    assert len(manifest.hashes) == 4
    write_manifest(pack, manifest)
    assert manifest_path(pack).name == "photos.h5.json"
    assert read_manifest(pack) == manifest
    assert is_whole(pack, manifest)
    assert damaged_blocks(pack, manifest) == []


FOUR = ["0" * 16] * 4
CONTRADICTIONS: list[dict[str, object]] = [
    {"hashes": None}, {"hashes": FOUR[:1]}, {"hashes": ["x" * 16] * 4}, {"size": "many"}, {"size": 5},
    {"size": -5, "hashes": []}, {"size": 1 << 63}, {"block_bytes": 0}, {"block_bytes": -1, "size": 0, "hashes": []},
    {"block_bytes": 10**12, "hashes": FOUR[:1]}, {"skipped": "text"}, {"samples": {"train": -8}},
    {"samples": ["train"]}, {"identity": 3}, {"version": "1"},
]  # fmt: skip


def test_what_is_no_manifest_or_contradicts_itself_does_not_count(pack: Path) -> None:
    """Cut anywhere, other JSON, zeros, an entry missing, values of wrong kinds, hashes that do not fit the number of
    bytes."""
    write_manifest(pack, manifest_of(pack))
    place = manifest_path(pack)
    text = place.read_text(encoding="utf-8")
    whole = json.loads(text)
    missing = [
        {key: value for key, value in whole.items() if key != name} for name in whole.keys() - {"shard", "mtime_ns"}
    ]
    changed = [json.dumps(one) for one in (*missing, *({**whole, **change} for change in CONTRADICTIONS))]
    for none in ("", text[:1], text[:100], text[:-2], "[]", "null", '"text"', "\0\0\0\0", "<html>", *changed):
        place.write_text(none, encoding="utf-8")
        assert read_manifest(pack) is None, none
    place.write_text(text, encoding="utf-8")
    assert read_manifest(pack) is not None


def test_a_pack_is_as_written_until_somebody_writes_to_it(pack: Path) -> None:
    """By its length, and by its time or its hashes: a copy may have a later time, and another file the same length."""
    assert not is_as_written(pack)
    write_manifest(pack, manifest_of(pack))
    assert is_as_written(pack)
    later = time.time_ns() + 10**10
    os.utime(pack, ns=(later, later))
    assert is_as_written(pack)
    whole = pack.read_bytes()
    for other in (whole[:-1], whole + b"x", b"x" + whole[1:]):
        pack.write_bytes(other)
        os.utime(pack, ns=(later, later))
        assert not is_as_written(pack)
    pack.write_bytes(whole)
    pack.rename(pack.with_name("elsewhere.h5"))
    assert not is_as_written(pack)
    pack.symlink_to("elsewhere.h5")
    assert not is_as_written(pack)


def test_a_newer_manifest_asks_for_an_update(pack: Path) -> None:
    """It is not taken for a damaged one, which would be rewritten."""
    write_manifest(pack, replace(manifest_of(pack), version=MANIFEST_VERSION + 1))
    with pytest.raises(NewerFormatError, match=r"newer colabstage"):
        read_manifest(pack)


class CountedManifest(Manifest):
    listed = 0

    @property
    def ranges(self) -> list[tuple[int, int]]:
        type(self).listed += 1
        return super().ranges


def test_the_blocks_are_listed_once_for_all_of_a_file(pack: Path) -> None:
    """Not for each block: a pack of a terabyte has hundreds of thousands of them."""
    manifest = CountedManifest(**{one.name: getattr(manifest_of(pack), one.name) for one in fields(Manifest)})
    assert damaged_blocks(pack, manifest) == []
    assert CountedManifest.listed == 1
    zeroed = pack.with_name("zeroed.h5")
    zeroed.write_bytes(bytes(manifest.size))
    assert damaged_blocks(zeroed, manifest) == [0, 1, 2, 3]
    assert CountedManifest.listed == 2


@pytest.mark.parametrize("zeroed", [1, 9_000_000])
def test_a_zeroed_tail_opens_but_is_found(pack: Path, zeroed: int) -> None:
    """h5py opens such a file without complaint; only the hashes tell, with the numbers of the bad blocks."""
    manifest = manifest_of(pack)
    size = manifest.size
    with pack.open("r+b") as handle:
        handle.seek(size - zeroed)
        handle.write(bytes(zeroed))
    assert read_info(pack).split("train").rows == ROWS
    first = (size - zeroed) // BLOCK_BYTES
    assert damaged_blocks(pack, manifest) == list(range(first, 4))
    bad = ", ".join(map(str, range(first, 4)))
    assert re.search(rf"\b{4 - first} of 4 blocks.*: {bad} ", damage_of(pack, manifest))


def test_one_flipped_bit_is_found(pack: Path) -> None:
    """The smallest damage anywhere is enough."""
    manifest = manifest_of(pack)
    with pack.open("r+b") as handle:
        handle.seek(BLOCK_BYTES + 12_345)
        byte = handle.read(1)[0]
        handle.seek(-1, 1)
        handle.write(bytes([byte ^ 0x10]))
    assert damaged_blocks(pack, manifest) == [1]


def test_a_wrong_length_is_found(pack: Path) -> None:
    """Too few bytes and too many are both reported."""
    manifest = manifest_of(pack)
    with pack.open("ab") as handle:
        handle.write(b"more")
    assert re.search(f"{manifest.size + 4:,} bytes instead of {manifest.size:,}", damage_of(pack, manifest))
    with pack.open("r+b") as handle:
        handle.truncate(manifest.size - 10)
    assert re.search(r"instead of .* and 1 of 4 blocks", damage_of(pack, manifest))


def test_a_manifest_alone_is_not_a_pack(pack: Path) -> None:
    """The file that it describes is missing, and the error names it."""
    write_manifest(pack, manifest_of(pack))
    pack.unlink()
    with pytest.raises(SourceNotFoundError, match=r"photos\.h5"):
        verify_file(pack, progress=False)


def test_a_manifest_that_goes_while_it_is_looked_at_is_in_nobodys_way(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without effective locks, another process that replaces the pack removes its manifest for a moment."""
    beside = manifest_path(pack)

    def read_late(path: Path) -> object:
        beside.unlink()
        return read_json(path)

    write_manifest(pack, manifest_of(pack))
    monkeypatch.setattr("colabstage.h5.manifest.read_json", read_late)
    check_place_of_manifest(pack)
    monkeypatch.undo()
    beside.write_text("a list of mine")
    with pytest.raises(TargetExistsError, match="not a manifest"):
        check_place_of_manifest(pack)
    assert beside.read_text() == "a list of mine"


def test_the_advice_on_a_damaged_pack_is_what_works(pack: Path) -> None:
    """`refresh=True` refuses a pack that somebody wrote to; after it is deleted, it is made again."""
    write_manifest(pack, manifest_of(pack))
    with pack.open("ab") as handle:
        handle.write(b"more")
    shown = str(verify_file(pack, progress=False))
    assert re.search(r"is damaged: .* Delete it, then stage, copy or publish it again", shown)
    assert "refresh" not in shown


@pytest.mark.parametrize("failing", ["photos.h5", "photos.h5.json"])
def test_a_pack_that_cannot_take_the_place_of_another_leaves_it_whole(
    pack: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The old one and its manifest have their names again."""
    old, before = manifest_of(pack), pack.read_bytes()
    write_manifest(pack, old)
    new = workspace.temp_beside(pack) / "photos.h5"
    new.parent.mkdir()
    new.write_bytes(b"another pack")
    write_manifest(new, manifest_of(new))
    replace = Path.replace

    def fails(file: Path, out: Path) -> Path:
        if file == new.with_name(failing):
            raise OSError(errno.EIO, "the disk fails")
        return replace(file, out)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="the disk fails"):
        place_pack(new, pack, replaces=is_as_written)
    assert (read_manifest(pack), pack.read_bytes()) == (old, before)
    assert sorted(path.name for path in pack.parent.iterdir()) == [new.parent.name, "photos.h5", "photos.h5.json"]

"""The manifest beside a pack: written atomically, checked when read, and able to say which block is bad."""

import ctypes
import errno
import json
import os
import re
import time
from collections.abc import Callable
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


# What happens to the bytes of a pack, which blocks are bad then, and what is said.
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], list[int], str]] = {
    "nothing": (lambda whole: whole, [], ""),
    "the last byte is zero": (lambda whole: whole[:-1] + b"\0", [3], r"\b1 of 4 blocks.*: 3 "),
    "a tail of zeros": (lambda whole: whole[:-9_000_000] + bytes(9_000_000), [2, 3], r"\b2 of 4 blocks.*: 2, 3 "),
    "one flipped bit": (lambda whole: flipped(whole, BLOCK_BYTES + 12_345), [1], r"\b1 of 4 blocks.*: 1 "),
    "all is zero": (lambda whole: bytes(len(whole)), [0, 1, 2, 3], r"\b4 of 4 blocks"),
    "more bytes": (lambda whole: whole + b"more", [], "{more:,} bytes instead of {size:,}"),
    "fewer bytes": (lambda whole: whole[:-10], [3], r"instead of .* and 1 of 4 blocks"),
}


def flipped(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :]


def test_damage_is_found_by_its_block_and_blocks_are_listed_once(pack: Path) -> None:
    """h5py opens a file with a zeroed tail without complaint; only the hashes tell."""
    manifest, whole = manifest_of(pack), pack.read_bytes()
    counted = CountedManifest(**{one.name: getattr(manifest, one.name) for one in fields(Manifest)})
    for number, (name, (damage, bad, said)) in enumerate(DAMAGE.items(), 1):
        pack.write_bytes(damage(whole))
        if name == "a tail of zeros":
            assert read_info(pack).split("train").rows == ROWS
        assert damaged_blocks(pack, counted) == bad, name
        assert CountedManifest.listed == number, name
        if said:
            expected = said.format(size=len(whole), more=len(whole) + 4)
            assert re.search(expected, damage_of(pack, manifest)), name


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
    rename = Path.rename

    def fails(file: Path, out: Path) -> Path:
        if file == new.with_name(failing):
            raise OSError(errno.EIO, "the disk fails")
        return rename(file, out)

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)  # a system without renameat2
    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="the disk fails"):
        place_pack(new, pack, replaces=is_as_written)
    assert (read_manifest(pack), pack.read_bytes()) == (old, before)
    assert sorted(path.name for path in pack.parent.iterdir()) == [new.parent.name, "photos.h5", "photos.h5.json"]

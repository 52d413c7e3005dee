"""Tars as trees: equal to what tarfile reads, and cut or damaged ones never taken for whole."""

from __future__ import annotations

import io
import os
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from colabstage.errors import (
    ArchiveError,
    ColabstageError,
    CorruptArchiveError,
    SourceReadError,
    TargetNotWritableError,
)
from colabstage.trees.archive_bytes import LocalBytes
from colabstage.trees.tar import TarTree
from colabstage.trees.tree import FileEntry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.trees.tree import Tree
    from tests.trees.conftest import RecordingBytes, TarBytes

    ReadAll = Callable[[Tree], dict[str, bytes]]
    Recording = Callable[..., RecordingBytes]

_FILES = {
    "train/cat/1.jpg": b"first " * 500,
    "train/dog/" + "long" * 60 + ".jpg": random.Random(1).randbytes(3000),
    "test/cat/ü 3.jpg": b"",
    "/".join(["deep" * 10] * 8) + "/4.jpg": b"4" * 512,
    "readme.txt": b"r",
}
_FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}

_component = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0:"), min_size=1, max_size=60).filter(
    lambda text: text not in (".", "..") and not text.startswith("._")
)
_name = st.lists(_component, min_size=1, max_size=4).map(lambda parts: "/".join([*(f"d{part}" for part in parts), "f"]))


class _Memory:
    """A `ByteSource` over bytes in memory."""

    label = "memory.tar"

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def pread(self, length: int, offset: int) -> bytes:
        return self._content[offset : offset + length]

    def close(self) -> None:
        pass


@settings(max_examples=60)
@given(
    files=st.dictionaries(_name, st.tuples(st.binary(max_size=1500), st.integers(0, 9_000_000_000)), max_size=6),
    form=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_every_tar_reads_as_tarfile_reads_it(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, tuple[bytes, int]], form: int
) -> None:
    """Names, contents, times and offsets agree with the standard library's, long and foreign names included."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, (content, mtime) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime
            archive.addfile(member, io.BytesIO(content))
    buffer.seek(0)
    spool = tmp_path_factory.getbasetemp()
    with tarfile.open(fileobj=buffer) as oracle, TarTree(_Memory(buffer.getvalue()), spool=spool) as tree:
        assert {entry.name: (tree.read(entry), entry.mtime_ns, entry.position) for entry in tree.entries} == {
            member.name: (_content(oracle, member), int(member.mtime) * 10**9, member.offset_data)
            for member in oracle.getmembers()
        }


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


@pytest.mark.parametrize("form", _FORMATS)
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_every_format_and_compression_is_read(
    tar_bytes: TarBytes, read_all: ReadAll, tmp_path: Path, form: str, mode: str
) -> None:
    """A compressed tar is unpacked once, into a file that nobody sees and that is gone in the end."""
    files = {name: content for name, content in _FILES.items() if form != "ustar" or len(name) < 100}
    with TarTree(_Memory(tar_bytes(files, mode, form=_FORMATS[form])), spool=tmp_path / "spool") as tree:
        assert read_all(tree) == files
        assert tree.kind == "tar"
        assert tree.label == "memory.tar"
    assert not (tmp_path / "spool").exists() or list((tmp_path / "spool").iterdir()) == []


def test_ustar_splits_long_names(tar_bytes: TarBytes, read_all: ReadAll, tmp_path: Path) -> None:
    """POSIX's old format keeps the beginning of a name of up to 255 bytes in a field of its own."""
    files = {"a" * 90 + "/" + "b" * 90 + "/c.jpg": b"c"}
    with TarTree(_Memory(tar_bytes(files, form=tarfile.USTAR_FORMAT)), spool=tmp_path) as tree:
        assert read_all(tree) == files


def test_zstandard_is_read_over_several_frames(tar_bytes: TarBytes, read_all: ReadAll, tmp_path: Path) -> None:
    """`zstd` joins frames, and puts skippable ones between; what is cut anywhere is noticed."""
    content = tar_bytes({"a/1.jpg": b"one" * 1000})
    packer = zstandard.ZstdCompressor(write_checksum=True)
    frames = packer.compress(content[:700]) + b"\x50\x2a\x4d\x18\4\0\0\0skip" + packer.compress(content[700:])
    with TarTree(_Memory(frames), spool=tmp_path) as tree:
        assert read_all(tree) == {"a/1.jpg": b"one" * 1000}
    for cut in range(1, 60):
        with pytest.raises(CorruptArchiveError):
            TarTree(_Memory(frames[:-cut]), spool=tmp_path)
    with pytest.raises(CorruptArchiveError):
        TarTree(_Memory(frames + b"trailing junk"), spool=tmp_path)


def test_names_from_a_dot_are_those_without_it(tar_bytes: TarBytes, tmp_path: Path) -> None:
    """`tar cf data.tar .` puts './' before every name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in ((".", tarfile.DIRTYPE), ("./a", tarfile.DIRTYPE), ("./a/1.jpg", tarfile.REGTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            archive.addfile(member)
    with TarTree(_Memory(buffer.getvalue()), spool=tmp_path) as tree:
        assert [entry.name for entry in tree.entries] == ["a/1.jpg"]


def test_links_inside_are_resolved_and_others_noted(tmp_path: Path, read_all: ReadAll) -> None:
    """tar stores the second name of a file as a hard link; that, and symbolic links to files, are those files."""
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "1.jpg").write_bytes(b"one")
    os.link(root / "a" / "1.jpg", root / "a" / "2.jpg")
    (root / "link.jpg").symlink_to("a/1.jpg")
    (root / "chain.jpg").symlink_to("link.jpg")
    (root / "folder").symlink_to("a")
    (root / "gone.jpg").symlink_to("missing.jpg")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(root, ".")
    with TarTree(LocalBytes(tmp_path / "a.tar"), spool=tmp_path) as tree:
        assert read_all(tree) == dict.fromkeys(("a/1.jpg", "a/2.jpg", "chain.jpg", "link.jpg"), b"one")
        assert "2 links" in tree.notes[0]


def test_junk_is_no_entry(tar_bytes: TarBytes, tmp_path: Path) -> None:
    """macOS adds a '._' file to every file of a tar."""
    with TarTree(_Memory(tar_bytes({"a/1.jpg": b"1", "a/._1.jpg": b"x"})), spool=tmp_path) as tree:
        assert [entry.name for entry in tree.entries] == ["a/1.jpg"]


def test_scanning_reads_headers_and_reading_only_the_member(
    tar_bytes: TarBytes, recording: Recording, tmp_path: Path
) -> None:
    """A tar of large members is listed without reading them."""
    source = recording(tar_bytes({f"{number}.npy": bytes(1_000_000) for number in range(5)}))
    with TarTree(source, spool=tmp_path) as tree:
        assert sum(length for _, length in source.reads[:-1]) < 10_000
        source.reads.clear()
        tree.read(tree.entries[2])
        assert source.reads == [(tree.entries[2].position, 1_000_000)]
    assert source.closed


def test_every_truncation_is_noticed_when_opening(tar_bytes: TarBytes, tmp_path: Path) -> None:
    """Wherever a copy stopped, down to the missing mark of the end, the archive is not taken for a whole one."""
    whole = tar_bytes(_FILES)
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(0, end, 97), end - 512, end]:
        with pytest.raises(CorruptArchiveError):
            TarTree(_Memory(whole[:length]), spool=tmp_path)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_truncated_or_damaged_compressed_tar_is_noticed(tar_bytes: TarBytes, tmp_path: Path, mode: str) -> None:
    """The stream's own checks speak, and nothing stays in the spool."""
    whole = tar_bytes({"a/1.npy": random.Random(5).randbytes(200_000)}, mode)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    for content in (whole[: len(whole) // 2], whole[:-9], bytes(damaged)):
        with pytest.raises(CorruptArchiveError, match="Copy or upload"):
            TarTree(_Memory(content), spool=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_header_is_not_taken_for_the_end(tar_bytes: TarBytes, tmp_path: Path) -> None:
    """tarfile stops there and shows the members before it as if they were all."""
    content = bytearray(tar_bytes({f"{number}.jpg": b"x" * 512 for number in range(5)}))
    content[2 * 1024 + 10] ^= 1
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["0.jpg", "1.jpg"]
    with pytest.raises(CorruptArchiveError, match="damaged at byte 2,048"):
        TarTree(_Memory(bytes(content)), spool=tmp_path)


def test_a_long_tail_of_zeros_is_noticed(tar_bytes: TarBytes, tmp_path: Path) -> None:
    """Where a copy was cut at a member's end and filled up, only the amount of zeros tells."""
    content = tar_bytes(_FILES) + b"\0" * 2_000_000
    with pytest.raises(CorruptArchiveError, match="zeros"):
        TarTree(_Memory(content), spool=tmp_path)


def test_archives_joined_with_cat_are_refused(tar_bytes: TarBytes, tmp_path: Path) -> None:
    """tar shows only the first of them; missing half of the data without a word is worse than an error."""
    with pytest.raises(CorruptArchiveError, match="several archives were joined"):
        TarTree(_Memory(tar_bytes({"a": b"1"}) + tar_bytes({"b": b"2"})), spool=tmp_path)


@settings(max_examples=150)
@given(at=st.integers(0, 8191), bit=st.integers(0, 7))
def test_a_flipped_bit_gives_a_tree_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    """No damage escapes as an error of Python's own, and none lengthens or shortens a member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in _FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    damaged = bytearray(buffer.getvalue())
    damaged[at] ^= 1 << bit
    try:
        with TarTree(_Memory(bytes(damaged)), spool=tmp_path_factory.getbasetemp()) as tree:
            sizes = sorted(len(tree.read(entry)) for entry in tree.entries)
    except ColabstageError:
        return
    assert sizes == sorted(len(content) for content in _FILES.values())


def test_sparse_members_are_refused_clearly(tmp_path: Path) -> None:
    """Their holes would have to be put back; nobody packs images so."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("holes.bin")
        member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "100"}
        archive.addfile(member)
    with pytest.raises(ArchiveError, match=r"holes\.bin.*sparse"):
        TarTree(_Memory(buffer.getvalue()), spool=tmp_path)


def test_a_web_page_is_named(tmp_path: Path) -> None:
    """The download went wrong, not the archive."""
    with pytest.raises(CorruptArchiveError, match="web page"):
        TarTree(_Memory(b"<!doctype html><p>sign in" + b" " * 1000), spool=tmp_path)


def test_a_file_cut_after_opening_is_a_read_error(tar_bytes: TarBytes, tmp_path: Path) -> None:
    """The archive was whole when opened, so it is the file that changed."""
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes({"a/1.jpg": b"1" * 5000}))
    with TarTree(LocalBytes(path), spool=tmp_path) as tree:
        os.truncate(path, 2000)
        with pytest.raises(SourceReadError, match="changed or was cut"):
            tree.read(tree.entries[0])
        with pytest.raises(SourceReadError, match="another tree"):
            tree.read(FileEntry("other.jpg", 1, 0, 0))


def test_an_unwritable_spool_is_reported_before_unpacking(tar_bytes: TarBytes, tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "spool").write_bytes(b"mine")
    with pytest.raises(TargetNotWritableError, match="spool"):
        TarTree(_Memory(tar_bytes({"a": b"1"}, "w:gz")), spool=tmp_path / "spool")
    assert (tmp_path / "spool").read_bytes() == b"mine"


def test_many_threads_read_at_once(tar_bytes: TarBytes, read_all: ReadAll, tmp_path: Path) -> None:
    """Eight threads over one unpacked file get what one gets."""
    files = {f"c/{number}.jpg": random.Random(number).randbytes(2000) for number in range(200)}
    with TarTree(_Memory(tar_bytes(files, "w:gz")), spool=tmp_path) as tree, ThreadPoolExecutor(8) as pool:
        assert all(found == files for found in pool.map(lambda _: read_all(tree), range(8)))

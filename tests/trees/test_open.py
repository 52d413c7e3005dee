"""Opening whatever a path holds: by content and never by name; what cannot be opened is named."""

import os
import posixpath
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import ArchiveError, CorruptArchiveError, UnsafeArchiveError
from colabstage.trees.open import open_archive, open_tree
from tests.support.archives import RecordingBytes, read_all, tar_bytes, tar_of, zip_bytes

FILES = {"a/1.jpg": b"one", "b/2.jpg": b"two" * 1000}


@pytest.mark.parametrize(
    ("name", "content", "what", "error"),
    [
        ("picture.png", b"\x89PNG\r\n\x1a\n" + b"x" * 100 + zip_bytes(FILES), ".png", ArchiveError),
        ("data.tar", b"\xef\xbb\xbf<!doctype html>", "HTML", CorruptArchiveError),
        ("data.tar", b"<!-- x --><HTML>", "HTML", CorruptArchiveError),
        ("a.xml", b"<?xml version='1.0'?><annotation>", "text", ArchiveError),
        ("data.zip", bytes(5000), "zeros", CorruptArchiveError),
        # tar would call it an empty archive.
        ("data.tar", bytes(10_240), "zeros", CorruptArchiveError),
        ("data.h5", b"\x89HDF\r\n\x1a\n" + bytes(500), "HDF5", ArchiveError),
        ("data.tgz", b"\x1f\x8b\x08" + b"\xff" * 300, "gzip", CorruptArchiveError),
    ],
    ids=range(8),
)
def test_what_is_no_archive_is_named(
    tmp_path: Path, name: str, content: bytes, what: str, error: type[Exception]
) -> None:
    """By content, not by name; if the name promises an archive, it is a damaged one."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error) as caught:
        open_tree(tmp_path / name, spool=tmp_path / "spool")
    assert type(caught.value) is error
    assert what in str(caught.value)
    assert not (tmp_path / "spool").exists()


def test_tars_are_known_by_their_checksum(tmp_path: Path) -> None:
    """In any format, since the oldest has no magic bytes, with any first name; with one wrong bit it is not a tar."""
    for name in ("BZh9.jpg", "a.jpg"):
        content = tar_bytes({name: b"1"}, form=tarfile.USTAR_FORMAT)
        with open_archive(RecordingBytes(content), spool=tmp_path) as tree:
            assert read_all(tree) == {name: b"1"}
    for wrong in (content[:3] + bytes([content[3] ^ 1]) + content[4:], content[:500]):
        with pytest.raises(ArchiveError):
            open_archive(RecordingBytes(wrong), spool=tmp_path)


NASTY = st.lists(st.sampled_from(["..", ".", "", "a", "b", "C:", "/", "\\", "...", "~", "a.jpg"])).map("/".join)


@given(st.one_of(st.text(), NASTY))
def test_a_name_that_passes_stays_inside_the_folder(tmp_path_factory: pytest.TempPathFactory, raw: str) -> None:
    """For any member name, the cleaned name is plain and relative, or the archive is refused."""
    content = tar_of((raw.encode("utf-8", "replace").decode(), tarfile.REGTYPE, "", b"1"))
    try:
        with open_archive(RecordingBytes(content), spool=tmp_path_factory.getbasetemp()) as tree:
            names = tree.entries.names
    except UnsafeArchiveError:
        return
    for name in names:
        assert "\0" not in name
        assert not {"", ".", ".."} & set(name.split("/"))
        assert posixpath.normpath(posixpath.join("/root/target", name)).startswith("/root/target/")


@pytest.mark.timeout(20)
def test_a_pipe_is_neither_file_nor_folder(tmp_path: Path) -> None:
    """Reading it might never end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="pipe"):
        open_tree(tmp_path / "pipe", spool=tmp_path)

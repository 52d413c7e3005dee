"""Opening whatever a path holds: by content and never by name, and a clear word on what cannot be opened."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import ArchiveError, CorruptArchiveError, DriveDisconnectedError, SourceNotFoundError
from colabstage.trees.open import open_tree, recognise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from colabstage.trees.listing import Tree
    from tests.trees.conftest import RecordingBytes, TarBytes, ZipBytes

    WriteFiles = Callable[[Path, Mapping[str, bytes]], Path]
    ReadAll = Callable[[Tree], dict[str, bytes]]
    Recording = Callable[..., RecordingBytes]

_FILES = {"a/1.jpg": b"one", "b/2.jpg": b"two" * 1000}


def test_the_same_files_open_from_every_container(
    tmp_path: Path, write_files: WriteFiles, zip_bytes: ZipBytes, tar_bytes: TarBytes, read_all: ReadAll
) -> None:
    """The names lie about what is inside, and it does not matter."""
    (tmp_path / "a.jpg").write_bytes(zip_bytes(_FILES, zipfile.ZIP_DEFLATED))
    (tmp_path / "b.zip").write_bytes(tar_bytes(_FILES))
    (tmp_path / "c").write_bytes(tar_bytes(_FILES, "w:gz"))
    (tmp_path / "d.tar.gz").write_bytes(tar_bytes(_FILES, "w:xz"))
    (tmp_path / "e.html").write_bytes(tar_bytes(_FILES, "w:bz2"))
    write_files(tmp_path / "f.zip", _FILES)
    kinds = {
        "a.jpg": "zip",
        "b.zip": "tar",
        "c": "tar.gz",
        "d.tar.gz": "tar.xz",
        "e.html": "tar.bz2",
        "f.zip": "folder",
    }
    for name, kind in kinds.items():
        assert recognise(tmp_path / name) == kind
        with open_tree(tmp_path / name, spool=tmp_path / "spool", workers=2) as tree:
            assert read_all(tree) == _FILES
            assert tree.kind == kind.split(".")[0]
            assert tree.label == str(tmp_path / name)


def test_a_png_that_contains_a_zip_is_no_zip(tmp_path: Path, zip_bytes: ZipBytes) -> None:
    """An archive begins like one; the marks of a zip may occur in any file."""
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100 + zip_bytes(_FILES))
    assert zipfile.is_zipfile(path)
    assert recognise(path) is None
    with pytest.raises(ArchiveError, match="PNG image"):
        open_tree(path, spool=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "what", "corrupt"),
    [
        ("data.zip", b"<!DOCTYPE html><title>Virus scan warning</title>", "web page", True),
        ("data.tar.gz", b"<html>", "web page", True),
        ("data.zip", b"", "an empty file", True),
        ("data.zip", bytes(5000), "zeros", True),
        ("data.tar", bytes(5000), "zeros", True),
        ("data.h5", b"\x89HDF\r\n\x1a\n" + bytes(500), "HDF5", False),
        ("labels.csv", b"file,label\n1.jpg,0\n", "a text file", False),
        ("data.json", b'{"a": 1}', "JSON", False),
        ("data.tgz", b"\x1f\x8b\x08" + b"\xff" * 300, "gzip file that does not unpack", True),
    ],
    ids=range(9),
)
def test_what_is_no_archive_is_named(tmp_path: Path, name: str, content: bytes, what: str, corrupt: bool) -> None:
    """What the file is, not what it is called; a name that promises an archive makes it a damaged one."""
    path = tmp_path / name
    path.write_bytes(content)
    assert recognise(path) is None
    with pytest.raises(ArchiveError, match=what) as caught:
        open_tree(path, spool=tmp_path / "spool")
    assert isinstance(caught.value, CorruptArchiveError) == corrupt
    assert not (tmp_path / "spool").exists()


def test_a_missing_path_says_what_is_there(tmp_path: Path, write_files: WriteFiles) -> None:
    """The nearest folder that exists, and the names most like the one that was meant."""
    write_files(tmp_path / "data", {"kitti.zip": b"", "other.txt": b"", "kitty/1.jpg": b""})
    for path in (tmp_path / "data" / "kiti.zip", tmp_path / "data" / "kiti.zip" / "deeper" / "still"):
        with pytest.raises(SourceNotFoundError) as caught:
            open_tree(path, spool=tmp_path)
        assert f"nothing at '{path}'" in str(caught.value)
        assert f"'{tmp_path / 'data'}' holds 'kitti.zip'" in str(caught.value)
        assert "no 'kiti.zip'" in str(caught.value)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    """There is no name to suggest."""
    (tmp_path / "data").mkdir()
    with pytest.raises(SourceNotFoundError, match="is empty"):
        recognise(tmp_path / "data" / "x.zip")


def test_a_missing_path_on_a_drive_mentions_what_drives_do(tmp_path: Path) -> None:
    """Shared items need a shortcut; where not even MyDrive is there, nothing is mounted."""
    (tmp_path / "MyDrive").mkdir()
    with pytest.raises(SourceNotFoundError, match="Shared with me"):
        recognise(tmp_path / "MyDrive" / "x.zip")
    with pytest.raises(SourceNotFoundError, match="mounted"):
        recognise(tmp_path / "drive" / "MyDrive" / "x.zip")


def test_a_device_is_neither_file_nor_folder() -> None:
    """Reading it might never end."""
    with pytest.raises(ArchiveError, match="device"):
        recognise(Path(os.devnull))


def test_a_table_among_archives_has_the_line(tmp_path: Path) -> None:
    """It is no archive, and is read all the same, from its folder."""
    (tmp_path / "train.csv").write_text("id,label\n")
    with pytest.raises(ArchiveError, match=r"train\.csv'.* \['FOLDER', 'train\.zip'\]"):
        open_tree(tmp_path / "train.csv", spool=tmp_path)


@pytest.mark.fuse
def test_a_dead_mount_is_not_a_missing_path(tmp_path: Path) -> None:
    """The remedy is to mount again, not to look for the name."""
    from simulated_drive.drive import SimulatedDrive
    from simulated_drive.knobs import DriveKnobs

    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        (drive.cloud / "MyDrive" / "a.zip").write_bytes(b"")
        drive.mount(tmp_path / "drive")
        drive.kill()
        with pytest.raises(DriveDisconnectedError, match=r"mount_drive\("):
            open_tree(tmp_path / "drive" / "MyDrive" / "a.zip", spool=tmp_path)


def test_a_relative_path_is_looked_up_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People write 'data/kitti.zip' in a notebook."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recognise(Path("data")) == "folder"
    with pytest.raises(SourceNotFoundError, match="'data' is empty"):
        recognise(Path("data/kitti.zip"))

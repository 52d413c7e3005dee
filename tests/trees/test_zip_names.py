"""Names in a zip whose encoding it does not declare: read as the format says, and never without a word about it."""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from colabstage.errors import ArchiveError, UnsafeArchiveError
from colabstage.sources.extract.archive import extract_archive
from colabstage.stage.plan import plan_stage
from colabstage.stage.run import stage_dataset
from colabstage.trees.tree import LocalBytes
from colabstage.trees.zip import ZipTree
from colabstage.trees.zip_directory import read_directory
from colabstage.trees.zip_names import UnixNames, decode_names, other_readings

if TYPE_CHECKING:
    from pathlib import Path

# What each code page is used for, with two classes: Japanese, simplified and traditional Chinese, Korean, Russian.
_CLASSES = {
    "cp932": ("猫", "犬と猫"),
    "gbk": ("小猫", "小狗"),
    "big5": ("貓咪", "小狗"),
    "cp949": ("고양이", "강아지"),
    "cp866": ("кошки", "собаки"),
    "utf-8": ("猫", "Käse"),
}


class _Undeclared(zipfile.ZipInfo):
    """A member whose name is in a code page, without the mark for UTF-8, as archivers on Windows write it."""

    encoding = "cp932"

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:  # noqa: N802 - zipfile's own name
        return self.filename.encode(self.encoding), self.flag_bits


def _zip(path: Path, names: list[str], encoding: str, system: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            info = _Undeclared(name)
            info.encoding, info.create_system = encoding, system
            image = io.BytesIO()
            Image.new("RGB", (8, 8), (10 * number, 90, 20)).save(image, "PNG")
            archive.writestr(info, image.getvalue())
    return path


# What a Unix (3) wrote is taken for UTF-8, where it is that.
@pytest.mark.parametrize(
    ("encoding", "system"), [(one, system) for one in _CLASSES for system in (0, 3) if (one, system) != ("utf-8", 3)]
)
def test_other_readings_are_told(tmp_path: Path, encoding: str, system: int) -> None:
    """The note has the name as it was read and as its author wrote it, and the encoding to ask for."""
    names = [f"{name}/{number}.png" for name in _CLASSES[encoding] for number in range(2)]
    with ZipTree(LocalBytes(_zip(tmp_path / "a.zip", names, encoding, system))) as tree:
        read = [entry.name for entry in tree.entries]
        assert sorted(read) == sorted(name.encode(encoding).decode("cp437") for name in names)
        (note,) = tree.notes
    assert f"{len(names)} names in it are encoded" in note
    assert f"'{names[0].encode(encoding).decode('cp437')}'" in note
    assert f"{encoding} ('{names[0]}')" in note


def test_the_advice_works(tmp_path: Path) -> None:
    """The plan and the report have the note; what it says to do gives the classes as they were meant."""
    names = [f"{name}/{number}.png" for name in _CLASSES["cp932"] for number in range(3)]
    path = _zip(tmp_path / "animals.zip", names, "cp932")
    plan = plan_stage(path, local_dir=tmp_path / "here", cache_dir=None)
    staged = stage_dataset(path, local_dir=tmp_path / "here", cache_dir=None, progress=False)
    (note,) = [note for note in staged.report.notes if "encoded" in note]
    assert note in plan.reasons
    assert len(staged.classes) == 2
    assert note in str(extract_archive(path, tmp_path / "plain", progress=False))
    line = re.search(r'zipfile\.(ZipFile\(path, metadata_encoding="cp932"\))\.extractall\("folder"\)', note)
    assert line is not None
    with zipfile.ZipFile(path, metadata_encoding="cp932") as archive:
        archive.extractall(tmp_path / "folder")
    meant = stage_dataset(tmp_path / "folder", local_dir=tmp_path / "here", cache_dir=None, progress=False)
    assert meant.classes == tuple(sorted(_CLASSES["cp932"]))


@pytest.mark.parametrize(("encoding", "name"), [("cp932", "表/1.png"), ("big5", "功/1.png"), ("gbk", "昞/1.png")])
def test_a_backslash_inside_a_character_is_no_attack(tmp_path: Path, encoding: str, name: str) -> None:
    """The error says what it is and what to do, where the archive was called unsafe."""
    path = _zip(tmp_path / "a.zip", [name, name.replace("1", "2")], encoding)
    with pytest.raises(ArchiveError, match=rf"contains a backslash.*{encoding} \('{name}'\)") as raised:
        ZipTree(LocalBytes(path))
    assert not isinstance(raised.value, UnsafeArchiveError)


def test_a_backslash_that_every_reading_has_is_refused_as_before(tmp_path: Path) -> None:
    """A path of Windows in a name is one, however the name is read."""
    path = _zip(tmp_path / "a.zip", ["猫\\1.png"], "cp932")
    with pytest.raises(UnsafeArchiveError, match="backslash"):
        ZipTree(LocalBytes(path))


def test_nothing_is_told_of_names_that_are_declared(tmp_path: Path) -> None:
    """UTF-8 with its mark, and ASCII; junk does not count either."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("猫/1.txt", b"")
        archive.writestr("dog/1.txt", b"")
    with ZipTree(LocalBytes(path)) as tree:
        assert tree.notes == ()
    with ZipTree(LocalBytes(_zip(path, ["__MACOSX/猫.png", "dog/1.png"], "cp932"))) as tree:
        assert tree.notes == ()


def test_readings_are_words() -> None:
    """An encoding in which a name has a control character or a sign of no alphabet is not proposed."""
    assert set(other_readings(["Käse".encode("cp437")])) <= {"cp932", "gbk", "big5", "cp949", "cp866"}
    assert other_readings(["猫".encode()])["utf-8"] == "猫"
    assert other_readings([]) == {}


def test_half_a_character_is_not_completed_by_the_next_name() -> None:
    """Names that are UTF-8 only one behind the other are not: then no name of that archive is taken for it."""
    stored = [b"a\xe3", b"\x81\x82b", "ä".encode()]
    names = decode_names(stored, [None] * 3, [None] * 3, UnixNames())
    assert [name.text for name in names] == [name.decode("cp437") for name in stored]


_WORDS = ("cat", "猫", "Käse", "кошки")


@given(
    names=st.lists(
        st.tuples(st.sampled_from(_WORDS), st.sampled_from(["utf-8", "cp866"]), st.sampled_from([0, 3])), min_size=1
    ),
    together=st.integers(1, 4),
    piece=st.integers(64, 400),
)
def test_names_are_judged_over_the_whole_archive(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str, int]], together: int, piece: int
) -> None:
    """However many are taken apart together, in whichever order: of what a Unix wrote all names are UTF-8, or none."""
    path = tmp_path_factory.getbasetemp() / "judged.zip"
    stored = [
        (f"{number}/{word}".encode(encoding, "replace"), system)
        for number, (word, encoding, system) in enumerate(names)
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for raw, system in stored:
            info = _Undeclared(raw.decode("latin-1"))
            info.encoding, info.create_system = "latin-1", system
            # Longer than the tail that is read at once, so that the directory comes in pieces.
            info.comment = bytes(3000)
            archive.writestr(info, b"")
    silent = [raw for raw, system in stored if system == 3]
    is_utf8 = all(map(_is_utf8, silent))
    read = [raw.decode("utf-8" if system == 3 and is_utf8 else "cp437") for raw, system in stored]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("colabstage.trees.zip_directory._PARSED_TOGETHER", together)
        patched.setattr("colabstage.trees.zip_directory._READ_BYTES", 4000 + piece)
        patched.setattr("colabstage.trees.zip_directory._TAIL_BYTES", 64)
        found = read_directory(LocalBytes(path))
    assert list(found.names) == read
    assert [found.stored_name(number) for number in range(len(found))] == [raw for raw, _ in stored]
    odd = [not raw.isascii() and not (system == 3 and is_utf8) for raw, system in stored]
    assert found.undeclared == np.flatnonzero(odd).tolist()


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True

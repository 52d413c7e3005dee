"""What takes paths of this machine says so of an address, and of a path at which there is nothing what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from colabstage import compare_sources, doctor, extract_archive, fetch_files, pack_dataset, publish_file, restore_file
from colabstage.errors import OptionError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


ADDRESS_CALLS: dict[str, Callable[[str], Any]] = {
    "compare_sources": compare_sources,
    "doctor": doctor,
    "extract_archive": lambda path: extract_archive(path, "out"),
    "pack_dataset": lambda path: pack_dataset(path, "out.h5"),
}
MISSING_CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "compare_sources": lambda path, _: compare_sources(path),
    "extract_archive": lambda path, out: extract_archive(path, out / "folder"),
    "fetch_files": lambda path, out: fetch_files(path, out / "copy"),
    "pack_dataset": lambda path, out: pack_dataset(path, out / "pack.h5"),
    "publish_file": lambda path, out: publish_file(path, out / "published"),
    "restore_file": lambda path, out: restore_file(path, out / "restored"),
}


@pytest.mark.parametrize("name", ADDRESS_CALLS)
def test_an_address_is_not_looked_for_as_a_file(name: str) -> None:
    """`pack_dataset` and `compare_sources` found no folder 'https:'; the error says what takes an address."""
    with pytest.raises(OptionError, match=r"='https://example\.org/a\.zip' .*(fetch_files|plan_stage)"):
        ADDRESS_CALLS[name]("https://example.org/a.zip")


@pytest.mark.parametrize("name", MISSING_CALLS)
def test_a_missing_file_is_answered_by_the_names_there(name: str, tmp_path: Path) -> None:
    """A typing error is seen at a glance, whichever function meets it."""
    (tmp_path / "photos.zip").write_bytes(b"anything")
    with pytest.raises(SourceNotFoundError, match=r"'photos\.zip'.* 'photo\.zip'"):
        MISSING_CALLS[name](tmp_path / "photo.zip", tmp_path)


def test_pack_dataset_says_what_takes_several_sources(tmp_path: Path) -> None:
    """Errors about archives beside a table recommend a list, which was taken for a dataset of texts."""
    with pytest.raises(OptionError, match=r"list of paths .*stage_dataset"):
        pack_dataset([tmp_path / "table", tmp_path / "table/train.zip"], tmp_path / "a.h5")

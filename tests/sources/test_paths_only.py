"""What takes paths of this machine says so of an address; what is said of a missing file is in `messages.txt`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from colabstage import compare_sources, doctor, extract_archive, pack_dataset
from colabstage.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


ADDRESS_CALLS: dict[str, Callable[[str], Any]] = {
    "compare_sources": compare_sources,
    "doctor": doctor,
    "extract_archive": lambda path: extract_archive(path, "out"),
    "pack_dataset": lambda path: pack_dataset(path, "out.h5"),
}


@pytest.mark.parametrize("name", ADDRESS_CALLS)
def test_an_address_is_not_looked_for_as_a_file(name: str) -> None:
    """`pack_dataset` and `compare_sources` found no folder 'https:'; the error says what takes an address."""
    with pytest.raises(OptionError, match=r"='https://example\.org/a\.zip' .*(fetch_files|plan_stage)"):
        ADDRESS_CALLS[name]("https://example.org/a.zip")


def test_pack_dataset_says_what_takes_several_sources(tmp_path: Path) -> None:
    """Errors about archives beside a table recommend a list, which was taken for a dataset of texts."""
    with pytest.raises(OptionError, match=r"list of paths .*stage_dataset"):
        pack_dataset([tmp_path / "table", tmp_path / "table/train.zip"], tmp_path / "a.h5")

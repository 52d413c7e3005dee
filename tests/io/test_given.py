"""What is given where a path is expected: the message is short, typed, and has the line that works."""

from __future__ import annotations

import io
import pathlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage import dataset_h5, pack_dataset, restore_file, stage_dataset
from colabstage.errors import OptionError
from colabstage.io.arguments import show_value

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")


class Items:
    """A dataset, as torch has them; with a name that tables have as well."""

    columns = ("x", "y")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index >= 3:
            raise IndexError
        return np.full((4, 4), index, np.uint8), index


class Frame:
    """A table as polars has them."""

    columns = ("image", "label")

    def write_csv(self, path: str) -> None: ...


class Opened(io.BytesIO):
    """An open file, which nobody has to close."""

    name = "/data/photos.zip"


def _frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    return pandas.DataFrame({"image": [f"{number}.png" for number in range(5000)], "label": "cat"})


GIVEN: dict[str, Callable[[], Any]] = {
    "table": _frame,
    "polars": Frame,
    "array": lambda: np.zeros((100, 28, 28)),
    "column": lambda: _frame()["image"],
    "dataset": Items,
    "loader": lambda: torch.utils.data.DataLoader(Items()),
    "splits": lambda: {"train": Items(), "test": Items()},
    "class": lambda: Items,
    "file": Opened,
    "bytes": lambda: b"/data/photos.zip",
    "generator": lambda: (name for name in ("a", "b")),
    "set": lambda: {"a.zip"},
    "nothing": lambda: None,
    "number": lambda: 5,
}


class Call(NamedTuple):
    """A public function, what its error names, and what it takes beside a path."""

    make: Callable[[Any, Path], Any]
    named: str
    takes: tuple[str, ...] = ()


CALLS = {
    "stage_dataset": Call(lambda value, at: stage_dataset(value, local_dir=at, cache_dir=None), "source="),
    "restore_file": Call(restore_file, "published="),
    "pack_dataset": Call(pack_dataset, "source", ("array", "column", "dataset")),
    "dataset_h5": Call(lambda value, _: dataset_h5(value), "path=", ("column", "set")),
}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("call", "kind"), [(call, kind) for call in CALLS for kind in GIVEN if kind not in CALLS[call].takes]
)
def test_what_is_no_path_is_answered_in_a_line(tmp_path: Path, call: str, kind: str) -> None:
    """By every call that reads one, before anything is made."""
    with pytest.raises(OptionError, match=CALLS[call].named) as caught:
        CALLS[call].make(GIVEN[kind](), tmp_path / "out")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


_PARTS = st.text(max_size=9) | st.integers() | st.none() | st.binary(max_size=9) | st.builds(pathlib.PurePosixPath)


@given(
    value=st.recursive(_PARTS, lambda part: st.lists(part, max_size=40) | st.dictionaries(st.text(max_size=3), part))
)
def test_whatever_is_given_is_shown_on_one_short_line(value: Any) -> None:
    shown = show_value(value)
    assert len(shown) <= 80
    assert "\n" not in shown


def test_what_cannot_be_written_is_named_by_its_type() -> None:

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

        @property
        def path(self) -> str:
            raise RuntimeError

    assert show_value(Odd()) == "Odd(…)"
    assert show_value([Odd()]) == "list(…)"


def test_no_secret_is_shown() -> None:
    assert "hunter2" not in show_value({"url": "https://me:hunter2@example.org/a.zip"})

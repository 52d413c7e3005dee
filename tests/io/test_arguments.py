"""Arguments: combined options and names, wrong names, and other objects in place of a path."""

import pathlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import colabstage
from colabstage import doctor, fetch_files, plan_stage, restore_file
from colabstage.errors import ColabstageError, OptionError
from colabstage.options import PackOptions
from tests.support.images import in_classes, make_tree

LOOSE: Any = fetch_files


def test_what_is_given_by_name_replaces_what_the_options_say(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "photos", in_classes(4))

    def target(**options: Any) -> str:
        return plan_stage(source, local_dir=tmp_path / "here", cache_dir=None, **options).target.name

    usual = PackOptions(image_size=8, encoding="pixels")
    assert target(options=usual) == target(image_size=8, encoding="pixels")
    assert target(options=usual, image_size=4) == target(image_size=4, encoding="pixels")
    with pytest.raises(OptionError, match=r"\{'image_size': 8\}.*PackOptions\(…\)"):
        target(options={"image_size": 8})


@pytest.mark.parametrize(
    ("arguments", "named", "says"),
    [
        (("a", "b"), {"overwrit": True}, "'overwrit'.*'overwrite'"),
        (("a", "b"), {"qqq": 1}, r"'qqq'\. It takes source, target, "),
        (("a",), {}, "'target'"),
        (("a", "b", "c"), {}, "positional"),
    ],
    ids=["misspelt", "nobody's", "missing", "without a name"],
)
def test_a_wrong_call_is_a_type_error_that_names_function_and_argument(
    arguments: tuple[str, ...], named: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError, match=rf"^fetch_files\(\) .*{says}"):
        LOOSE(*arguments, **named)


class Items:
    """A dataset as in torch, with an attribute that tables have too."""

    columns = ("x", "y")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index >= 3:
            raise IndexError
        return np.full((4, 4), index, np.uint8), index


def _frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    return pandas.DataFrame({"image": [f"{number}.png" for number in range(5000)], "label": "cat"})


GIVEN: dict[str, Callable[[], Any]] = {
    "table": _frame,
    "dataset": Items,
    "splits": lambda: {"train": Items(), "test": Items()},
    "generator": lambda: (name for name in ("a", "b")),
    "bytes": lambda: b"/data/photos.zip",
}
CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "stage_dataset": lambda value, at: colabstage.stage_dataset(value, local_dir=at, cache_dir=None, progress=False),
    "mount_drive": lambda value, _: colabstage.mount_drive(value),
    "restore_file": lambda value, at: colabstage.restore_file(value, at, progress=False),
    "pack_dataset": lambda value, at: colabstage.pack_dataset(value, at, progress=False),
    "dataset_h5": lambda value, _: colabstage.dataset_h5(value),
}


@pytest.mark.torch
@pytest.mark.parametrize("kind", GIVEN)
def test_what_is_no_path_is_answered_in_a_line(tmp_path: Path, kind: str) -> None:
    """By every call that reads a path, before anything is created."""
    for name, call in CALLS.items():
        if (name, kind) == ("pack_dataset", "dataset"):  # which packing accepts
            continue
        with pytest.raises(OptionError, match=r"expected|one of them") as caught:
            call(GIVEN[kind](), tmp_path / "out.h5")
        assert len(str(caught.value)) < 400
        assert "\n" not in str(caught.value)
        assert not any(tmp_path.iterdir())


def refused(value: Any) -> tuple[str, str]:
    """Return how an invalid batch size is shown, and the whole sentence."""
    with pytest.raises(OptionError) as caught:
        doctor(timeout_s=value)
    shown, cannot, _ = str(caught.value).removeprefix("timeout_s=").partition(" cannot work")
    assert cannot, caught.value
    return shown, str(caught.value)


_PARTS = (
    st.text(max_size=9)
    | st.integers(max_value=0)
    | st.none()
    | st.binary(max_size=9)
    | st.builds(pathlib.PurePosixPath)
)


@given(
    value=st.recursive(_PARTS, lambda part: st.lists(part, max_size=40) | st.dictionaries(st.text(max_size=3), part))
)
def test_whatever_is_given_is_shown_on_one_short_line(value: Any) -> None:
    shown, refusal = refused(value)
    assert len(shown) <= 80
    assert "\n" not in refusal


def test_what_cannot_be_written_is_named_by_its_type() -> None:

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

        @property
        def path(self) -> str:
            raise RuntimeError

    assert refused(Odd())[0] == "Odd(…)"
    assert refused([Odd()])[0] == "list(…)"
    with pytest.raises(OptionError, match=r"=Odd\(…\) cannot work; expected [^.]*\.$"):
        restore_file(Odd(), "here")  # type: ignore[arg-type]


READERS = (
    *("compare_sources", "doctor", "fetch_files", "list_runs", "mount_drive"),
    *("pack_dataset", "plot_class_balance", "restore_file", "stage_dataset", "verify_file"),
)


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("name", ["a\0b", "\ud800"], ids=["NUL", "half"])
def test_what_the_system_refuses_is_never_no_answer(tmp_path: Path, verb: str, name: str) -> None:
    place = f"{tmp_path}/{name}"
    with pytest.raises(ColabstageError, match="NUL"):
        getattr(colabstage, verb)(place, *([tmp_path / "out.h5"] if verb in ("fetch_files", "pack_dataset") else []))

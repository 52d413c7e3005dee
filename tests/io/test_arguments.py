"""Arguments of public functions: options and names together, and what is said of a name that is wrong or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from colabstage import fetch_files, plan_stage
from colabstage.errors import OptionError
from colabstage.options import PackOptions
from tests.support.images import in_classes, make_tree

if TYPE_CHECKING:
    from pathlib import Path

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
        (("a", "b"), {"qqq": 1}, r"'qqq'\.$"),
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

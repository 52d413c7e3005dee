"""The public signatures as users' type checkers see them. Never run: `make check` has mypy read it."""

from __future__ import annotations

from typing import assert_type

import colabstage
from colabstage.errors import ColabstageError


def the_version_is_text() -> None:
    assert_type(colabstage.__version__, str)


def errors_have_one_base(error: ColabstageError) -> None:
    assert_type(colabstage.ColabstageError("a sentence"), ColabstageError)
    assert_type(str(error), str)


def a_misspelt_name_is_an_error() -> None:
    colabstage.stage_datset("photos.zip")  # type: ignore[attr-defined]

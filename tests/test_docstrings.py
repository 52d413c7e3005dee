"""The examples in docstrings are true, in every module."""

import doctest
import importlib
from pathlib import Path

import pytest

import colabstage

pytestmark = pytest.mark.torch  # some of the modules import it

PACKAGE = Path(colabstage.__file__).parent
WITH_EXAMPLES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_are_true(module: str) -> None:
    """Those that need a dataset are marked and skipped."""
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_there_are_examples() -> None:
    """So that a wrong search is noticed."""
    assert len(WITH_EXAMPLES) > 20

"""An extension for the reference's parser, which imports nothing and so does not see everything in docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

_Extension: Any = griffe.Extension
# A run of lines that a Python prompt begins, with what they print.
_EXAMPLE = re.compile(r"^(?P<lines>>>> .*(?:\n(?!\n|>>> ).+|\n>>> .*)*)", re.MULTILINE)


class Docstrings(_Extension):  # type: ignore[misc]  # griffe is not installed where types are checked
    """Turn examples into code, and give decorated functions their arguments."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Fence the examples of a docstring, which Markdown would otherwise read as quotations."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """`plan_stage` takes what the function takes that makes its request; known once all modules are read. What the
        others have as `**arguments` leads to the page of the options classes."""
        pkg["stage.plan.plan_stage"].parameters = pkg["stage.request.make_request"].parameters


def fence_examples(docstring: str) -> str:
    """Put a fence around each run of prompt lines; of lines that tests do not run, the note that says so goes."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found['lines'].replace('  # doctest: +SKIP', '')}\n```", docstring)

"""Reads files in memory, and says what each sample is, in a form that tests compare."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from colabstage.layouts.detect import detect_layout
from colabstage.options import Arrays, SampleTable, Values
from tests.layouts.described import described
from tests.layouts.known import MemoryTree, each
from tests.support.made_files import grey, image


def read(files: Mapping[str, bytes | str], layout: Any = "auto") -> SampleTable:
    """What a layout makes of files, bytes or texts by name."""
    made = {name: content.encode() if isinstance(content, str) else content for name, content in files.items()}
    return detect_layout(MemoryTree(made), layout)


def completed(table: SampleTable) -> SampleTable:
    """A table of which everything is known, as packing makes it first."""
    return table if table.complete is None else table.complete(table)


def picture(number: int, kind: str = "PNG") -> bytes:
    """An image file that no other number gives."""
    return image(number, size=(8, 6), form=kind)


def contents(table: SampleTable) -> list[Any]:
    """The input of each sample: the bytes of a file, or an array."""
    inputs = table.inputs
    found = [inputs.source.read(number) for number in range(len(inputs.source))]
    if isinstance(inputs, Arrays):
        return [inputs.to_array(one) for one in found]
    return [bytes(one) if isinstance(one, bytes | memoryview) else one for one in found]


def labels(table: SampleTable) -> list[Any]:
    """The target of each sample, a number or several."""
    assert isinstance(table.targets, Values)
    return table.targets.values.tolist()  # type: ignore[no-any-return]


def by_split(table: SampleTable) -> dict[str, tuple[list[Any], list[Any]]]:
    """Inputs and labels of each split, "" where there is none."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for split, x, y in zip(table.splits or [""] * len(table), contents(table), labels(table), strict=True):
        xs, ys = found.setdefault(split, ([], []))
        xs.append(x)
        ys.append(y)
    return found


@cache
def plain(value: int = 0, side: int = 64) -> bytes:
    """An image of one grey."""
    return grey(np.full((side, side), value, np.uint8))


def files(paths: str, texts: dict[str, Any] | None = None) -> dict[str, bytes]:
    """Files by names with braces; images are small and all different, masks are 0 and 255."""
    found = {}
    for number, name in enumerate(name for pattern in paths.split() for name in each(pattern)):
        found[name] = plain(255 * (number % 2)) if "mask" in name.lower() or "label" in name.lower() else plain(number)
    for pattern, text in (texts or {}).items():
        content = text if isinstance(text, bytes) else (text if isinstance(text, str) else json.dumps(text)).encode()
        found |= dict.fromkeys(each(pattern), content)
    return found


def stated(made: dict[str, bytes], layout: Any = "auto") -> str:
    found = detect_layout(MemoryTree(made), layout)
    return f"{found.layout}; {described(found)}"

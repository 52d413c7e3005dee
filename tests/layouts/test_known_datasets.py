"""Well-known datasets, 120 at least: what their users mean, or one error that names what to write; no wrong guess."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import ColabstageError
from colabstage.layouts.detect import detect_layout, file_names, image_masks, table_rows
from colabstage.layouts.table import Arrays, Boxes, Masks, Values
from colabstage.trees.entries import FileEntries
from colabstage.trees.tree import FileEntry, Tree
from tests.layouts.known import page_rows
from tests.layouts.known_datasets import DATASETS
from tests.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.table import SampleTable
    from tests.layouts.known import Known


class _Bytes:
    """A file in memory."""

    def __init__(self, label: str, content: bytes) -> None:
        self.label = label
        self.size = len(content)
        self._content = content

    def pread(self, length: int, offset: int) -> bytes:
        return self._content[offset : offset + length]

    def close(self) -> None:
        pass


class MemoryTree(Tree):
    """Files in memory."""

    kind = "folder"
    label = "dataset"

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files
        names = sorted(files)
        self.entries = FileEntries.of(FileEntry(name, len(files[name]), 0, n) for n, name in enumerate(names))

    def open(self, entry: FileEntry) -> _Bytes:
        return _Bytes(entry.name, self._files[entry.name])


_ORDER = ("", "train", "val", "valid", "validation", "dev", "test")


def described(found: SampleTable) -> str:
    """Count the samples of each split, by what is said of them."""
    splits = found.splits or [""] * len(found)
    parts = []
    for split in sorted(set(splits), key=_ORDER.index):
        chosen = [number for number, one in enumerate(splits) if one == split]
        parts.append(f"{split}: {_said(found, chosen)}" if split else _said(found, chosen))
    return "; ".join(parts)


def _said(found: SampleTable, chosen: Sequence[int]) -> str:  # noqa: PLR0911
    count, targets = len(chosen), found.targets
    if targets is None:
        return f"{count} without labels"
    if isinstance(targets, Masks):
        names = f" of {', '.join(found.classes)}" if found.classes else ""
        return f"{count} masks{names}"
    if isinstance(targets, Boxes):
        parts = (slice(targets.offsets[number], targets.offsets[number + 1]) for number in chosen)
        labels = [label for part in parts for label in targets.columns["labels"][part].tolist()]
        return f"{count} images, {len(labels)} boxes" + (f": {_counts(found, labels)}" if labels else "")
    if isinstance(targets, Arrays):
        return f"{count} rows"
    assert isinstance(targets, Values)
    values = targets.values[chosen]
    if values.ndim == 2:
        if not found.classes:
            return f"{count} of {values.shape[1]} numbers"
        held = [place for row in values for place in row.nonzero()[0]]
        return f"{count} with several labels: {_counts(found, held)}"
    return _counts(found, values.tolist()) if found.classes else f"{count} numbers"


def _counts(found: SampleTable, labels: Sequence[int]) -> str:
    counts = Counter(found.classes[label] for label in labels)
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def read(known: Known, layout: str) -> tuple[str, str]:
    """The layout and what was found, or "" and the error's first line."""
    chosen: Any = eval(layout, {"file_names": file_names, "image_masks": image_masks, "table_rows": table_rows})
    try:
        found = detect_layout(MemoryTree(known.files), chosen)
    except ColabstageError as error:
        return "", str(error).partition("\n")[0]
    return found.layout, described(found)


@pytest.mark.parametrize("known", DATASETS, ids=lambda known: known.name)
def test_each_is_what_its_users_mean_or_one_error(known: Known) -> None:
    """Right by itself, or by the line that the error names."""
    layout, said = read(known, "'auto'")
    if known.error:
        assert layout == "", f"taken for {layout}: {said}"
        assert re.search(known.error, said), said
    else:
        assert (layout, said) == (known.layout, known.found)
    if known.write:
        assert read(known, known.write) == (known.layout, known.found)


def test_most_are_right_by_themselves() -> None:
    """At least 120, and of them two thirds without a line to write."""
    assert len({known.name for known in DATASETS}) == len(DATASETS) >= 120
    assert 3 * sum(not known.error for known in DATASETS) >= 2 * len(DATASETS)


def test_the_page_has_every_dataset() -> None:
    """Its table is made of this one: the row that differs shows what the page has to say."""
    page = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert rows == page_rows(DATASETS)
    right, asked = (sum(bool(known.error) is said for known in DATASETS) for said in (False, True))
    assert f"{right} of {len(DATASETS)}" in page
    assert f"{sum(bool(known.write) for known in DATASETS)} of the other {asked}" in page

"""Write the table of docs/datasets.md from the datasets that the tests build: `python -m scripts.dataset_page`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.layouts.known_datasets import DATASETS
from tests.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.layouts.known import Known

PAGE = ROOT / "docs/datasets.md"
_SPELLED = {
    "image_folder": "folders of classes",
    "table": "a table",
    "file_names": "file names",
    "pairs": "images and masks",
    "detection": "boxes",
    "images": "images without labels",
    "coco_classes": "classes in COCO's JSON",
    "arrays": "arrays",
    "pixel_table": "pixels in a table",
    "audio": "audio clips",
    "tokens": "tokens",
    "webdataset": "tar shards",
    "tfrecord": "TFRecords",
    "lmdb": "LMDB",
}
_FOLDERS_SHOWN = 2


def renewed(page: str, datasets: Sequence[Known]) -> str:
    """The page with a row for each dataset, in alphabetical order, and with their numbers in its text."""
    head, rule, _ = page.partition("|---|---|---|---|\n")
    right, asked = (sum(bool(one.error) is said for one in datasets) for said in (False, True))
    helped = sum(bool(one.write) for one in datasets)
    head = re.sub(r"\d+ of \d+ are read", f"{right} of {len(datasets)} are read", head)
    head = re.sub(r"\d+ of the other \d+", f"{helped} of the other {asked}", head)
    rows = (_row(one) for one in sorted(datasets, key=lambda one: one.name.lower()))
    return head + rule + "".join(f"{row}\n" for row in rows)


def _row(one: Known) -> str:
    folders = sorted({folder for name in one.files if (folder := name.rpartition("/")[0])})
    shown = ", ".join(f"`{folder}/`" for folder in folders[:_FOLDERS_SHOWN]) or f"`{min(one.files)}`"
    read, write = _SPELLED[one.layout] if one.found else "", "nothing"
    if one.write:
        write = "`layout={}`".format(one.write.replace("|", r"\|"))
    elif one.error:
        read, write = "not read automatically", "the error says what is missing"
    return f"| {one.name} | {shown} | {read} | {write} |"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), DATASETS), encoding="utf-8")

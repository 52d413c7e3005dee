"""Opening what is packed: a folder, an archive, or a dataset of Python objects."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.fetch.plan import SLOW_READERS
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.items import read_dataset
from colabstage.layouts.tables.table_file import TableFile, is_table_file
from colabstage.machine.mounts import is_slow_mount
from colabstage.ownership import remove_own, sweep_orphans, temp_beside
from colabstage.trees.open import open_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from colabstage.layouts.items import IndexableDataset
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions
    from colabstage.trees.tree import Tree

    PackSource = str | os.PathLike[str] | IndexableDataset


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source while it is open.

    `tree`: its files, `None` for a dataset of Python objects. `table`: its samples. `slow`: whether reads take long.
    `identity`: what tells an archive from one that replaces it with members of the same names, sizes and times.
    """

    tree: Tree | None
    table: SampleTable
    slow: bool
    identity: Mapping[str, int]


@contextmanager
def open_source(
    source: PackSource, options: PackOptions, *, beside: Path, is_more: bool = False
) -> Iterator[OpenSource]:
    """Open a source and find its samples.

    Args:
        source: a path on this machine, or a dataset.
        options: how samples are found.
        beside: a file on the disk that takes the unpacked form of a compressed tar, beside it.
        is_more: whether the samples are more of a dataset that is there.

    Raises:
        SourceNotFoundError, SourceReadError, ArchiveError, LayoutError, NotEnoughSpaceError: as `pack_dataset`.
    """
    if not isinstance(source, str | os.PathLike):
        yield OpenSource(None, read_dataset(source), slow=False, identity={})
        return
    place, layout = Path(source), options.layout
    if is_table_file(place, layout):
        place, layout = place.absolute().parent, TableFile(place.name)
    slow = is_slow_mount(place)
    with (
        _spool(beside) as spool,
        open_tree(place, spool=spool, workers=SLOW_READERS if slow else 1, lone_files=True) as tree,
    ):
        identity = {} if tree.kind == "folder" else _look_at(place)
        yield OpenSource(tree, detect_layout(tree, layout, is_more=is_more), slow, identity)


def _look_at(archive: Path) -> dict[str, int]:
    status = archive.stat()
    return {"nbytes": status.st_size, "mtime_ns": status.st_mtime_ns}


@contextmanager
def _spool(target: Path) -> Iterator[Path]:
    """A name beside `target` for the unpacked form of a compressed tar; the folder is made only where there is one."""
    model = target.with_name(f"{target.name}-spool")
    sweep_orphans(target.parent, name=model.name)
    folder = temp_beside(model)
    try:
        yield folder
    finally:
        remove_own(folder)

"""What a person hands over to be looked at (a staged dataset, a split, a path) as splits with readers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import OptionError, PackFormatError, SplitNotFoundError
from colabstage.h5.info import read_info
from colabstage.h5.parts import find_parts
from colabstage.load.reading.joined import JoinedReader, open_reader
from colabstage.load.reading.reader import SplitReader
from colabstage.stage.dataset import StagedDataset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from colabstage.h5.info import FieldInfo
    from colabstage.load.dataset import dataset_h5

    # Whatever samples can be looked at in; a path may be a pattern that several files match.
    Samples = StagedDataset | dataset_h5 | str | os.PathLike[str]

Reader = SplitReader | JoinedReader

# Some 100 MB of names.
_MOST_KEYS = 1_000_000


@dataclass(slots=True)
class Source:
    """Splits to look at, each opened when it is first asked for.

    `name`: the file's, for people. `layout`: as the file says it. `rows`: samples of each split.
    `paths`: the files, in the order of their rows.
    """

    name: str
    layout: str | None
    rows: Mapping[str, int]
    paths: tuple[Path, ...]
    _readers: dict[str, Reader] = field(default_factory=dict)
    _keys: dict[str, list[str]] = field(default_factory=dict)

    def reader(self, split: str) -> Reader:
        """The reader of a split; the same one each time.

        Raises:
            SplitNotFoundError: there is no such split; the message lists those there are.
        """
        if split not in self.rows:
            there = ", ".join(f"'{name}' ({rows:,} samples)" for name, rows in self.rows.items())
            msg = f"'{self.name}' has no split '{split}'. It has {there}."
            raise SplitNotFoundError(msg)
        if split not in self._readers:
            self._readers[split] = open_reader(list(self.paths), split)
        return self._readers[split]

    def keys(self, split: str, rows: Sequence[int]) -> list[str]:
        """The names of the files that rows were made from, empty ones where the file keeps none.

        Opening a file with many texts looks over all of them, so they are read once where they are not too many.
        """
        reader = self.reader(split)
        try:
            if self.rows[split] > _MOST_KEYS:
                return reader.keys(list(rows))
            if split not in self._keys:
                self._keys[split] = reader.keys()
        except PackFormatError:
            return [""] * len(rows)
        return [self._keys[split][row] for row in rows]

    def close(self) -> None:
        """Let go of the files; the next read opens them again, in a few milliseconds."""
        for reader in self._readers.values():
            reader.close()

    def targets(self, split: str) -> list[tuple[Path, FieldInfo]]:
        """The targets of a split in each file that has it, in the order of rows; empty where there are none."""
        infos = [(path, read_info(path).splits.get(split)) for path in self.paths]
        return [(path, info.y) for path, info in infos if info is not None and info.y is not None]


def open_source(data: Samples) -> Source:
    """Look at what there is; no sample is read.

    Raises:
        OptionError: it is nothing that samples can be looked at in, or only plain files were kept.
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    if isinstance(data, StagedDataset):
        if data.info is None:
            msg = f"Only plain files were kept ({data.path}); stage with keep='pack' or keep='both' to look at samples."
            raise OptionError(msg)
        return _of_paths((data.info.path,))
    reader = getattr(data, "reader", None)
    if isinstance(reader, SplitReader | JoinedReader):
        paths = reader.paths if isinstance(reader, JoinedReader) else (reader.path,)
        return Source(paths[0].name, read_info(paths[0]).layout, {reader.split: len(reader)}, paths)
    if isinstance(data, str | os.PathLike):
        return _of_paths(find_parts(data))
    msg = (
        f"{type(data).__name__} holds no samples that can be looked at. Pass what stage_dataset returns, a dataset_h5, "
        "or the path of an HDF5 file."
    )
    raise OptionError(msg)


def _of_paths(paths: tuple[Path, ...]) -> Source:
    infos = [read_info(Path(path).expanduser()) for path in paths]
    rows: dict[str, int] = {}
    for info in infos:
        for name, split in info.splits.items():
            rows[name] = rows.get(name, 0) + split.rows
    name = infos[0].path.name + (f" and {len(infos) - 1} more" if len(infos) > 1 else "")
    return Source(name, infos[0].layout, rows, tuple(info.path for info in infos))

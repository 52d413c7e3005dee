"""One process's way into a file: mapped, through h5py, or both, each opened when it is first needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.h5.info import open_h5
from colabstage.load.crew import SOLO
from colabstage.load.encoded import ArrayBytes, EncodedRows, H5pyBytes, ReadBytes
from colabstage.load.engines import (
    GatherEngine,
    H5pyEngine,
    ReadEngine,
    RowEngine,
    load_array,
    mapped_table,
)
from colabstage.load.mapping import MappedFile, ReadFile, check_stamp
from colabstage.load.residency import resident_part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.info import FieldInfo
    from colabstage.images.options import ImageOptions
    from colabstage.load.encoded import ByteRanges
    from colabstage.load.mapping import FileStamp
    from colabstage.load.storage import EngineChoice, StorageFacts


@dataclass(frozen=True, slots=True)
class FieldSource:
    """A field of a split and how it is read. For encoded rows `facts` and `choice` are of the bytes, and `offsets`
    and `image` say where rows begin and how they are decoded."""

    info: FieldInfo
    facts: StorageFacts
    choice: EngineChoice
    offsets: StorageFacts | None = None
    image: ImageOptions | None = None


class OpenFile:
    """Makes engines for the fields of one file. What is open closes when the last engine over it is dropped."""

    def __init__(self, path: Path, stamp: FileStamp) -> None:
        """`stamp`: the state of the file that the fields were described from; another one is refused on opening."""
        self._path = path
        self._stamp = stamp

    def rows(self, facts: StorageFacts, choice: EngineChoice) -> RowEngine:
        """The engine for rows of one shape."""
        if choice.name == "mapped":
            return GatherEngine(mapped_table(self._mapped, facts), self._mapped)
        if choice.name == "read":
            return ReadEngine(self._read, facts)
        return H5pyEngine(self._h5[facts.name], facts)

    def encoded(self, field: FieldSource, *, in_memory: bool) -> EncodedRows:
        """The reader of rows that are image files; with `in_memory` their bytes are all read now."""
        if field.offsets is None or field.image is None:
            msg = f"{field.info.name} is no field of encoded rows."
            raise TypeError(msg)
        # Offsets are few and needed for every row: h5py reads them however they are stored.
        offsets = np.asarray(self._h5[field.offsets.name][()], np.int64)
        data: ByteRanges
        if in_memory:
            data = ArrayBytes(self.load(field.facts, field.choice), None)
        elif field.choice.name == "mapped":
            data = ArrayBytes(mapped_table(self._mapped, field.facts).reshape(-1), self._mapped)
        elif field.choice.name == "read":
            data = ReadBytes(self._read, field.facts)
        else:
            data = H5pyBytes(self._h5[field.facts.name])
        return EncodedRows(f"{field.info.name} in '{self._path}'", offsets, data, field.image)

    def load(self, facts: StorageFacts, choice: EngineChoice) -> NDArray[Any]:
        """All of a dataset, read front to back."""
        if choice.name == "h5py":
            return load_array(self.rows(facts, choice), facts, SOLO)
        values = np.empty(facts.shape, facts.dtype)
        file = ReadFile(self._path, self._stamp, at_random=False)
        for _ in file.read_blocks(facts.offset or 0, values.reshape(-1).view(np.uint8)):
            pass
        return values

    def resident_part(self, facts: StorageFacts) -> float:
        """Which part of a contiguous dataset the system holds in memory, 0 to 1."""
        start = facts.offset or 0
        return resident_part(self._mapped.data[start : start + facts.nbytes])

    def warm(self, facts: StorageFacts) -> Iterator[None]:
        """Have the system hold a contiguous dataset in memory, with a pause after each block read."""
        yield from ReadFile(self._path, self._stamp, at_random=False).read_through(facts.offset or 0, facts.nbytes)

    @cached_property
    def _mapped(self) -> MappedFile:
        return MappedFile(self._path, self._stamp)

    @cached_property
    def _read(self) -> ReadFile:
        return ReadFile(self._path, self._stamp, at_random=True)

    @cached_property
    def _h5(self) -> Any:
        check_stamp(self._path, self._path.stat(), self._stamp)
        return open_h5(self._path)

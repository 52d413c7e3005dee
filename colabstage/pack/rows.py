"""The record of a pack's rows, `NAME.h5.DIGITS.rows` beside it: of which state of which content each row was made.

The next staging of the same source reads only what this record does not prove unchanged (`takeover`). Its name has a
digest of the pack's hashes, so it describes that very pack; a pack without one is staged afresh. Columns and not JSON:
the record of a hundred thousand rows has five megabytes.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

from colabstage.errors import NewerFormatError
from colabstage.h5.manifest import read_manifest
from colabstage.images.decode import LOSSES
from colabstage.io.files import hash_block
from colabstage.io.ownership import put_file, remove_vouched
from colabstage.io.workspace import is_made_here
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import Arrays, Images, Masks
from colabstage.pack.job import Prepared, target_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest
    from colabstage.layouts.samples import SampleSource
    from colabstage.layouts.table import SampleTable

_SUFFIX = ".rows"
_FORMAT = "colabstage rows 1"
# What numpy, zipfile and json raise of a file that anybody may have written; the last one of flags that none can read.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, RuntimeError)
# Of one row: hashes of the names of its files, and of these with what shows their state (0 where nothing does); a hash
# of the image file, where it was taken; the size of the upright image, where it was noted; and what of its file
# is not stored.
ROW = np.dtype(
    [
        ("name", "<u8"),
        ("digest", "<u8"),
        ("version", "<u8"),
        ("content", "<u8"),
        ("height", "<i4"),
        ("width", "<i4"),
        *((part, "?") for part in LOSSES),
    ]
)


class PackRows(NamedTuple):
    """What is recorded of a pack's rows."""

    form: str
    """Everything besides its content that a row's bytes depend on."""
    splits: dict[str, int]
    """Rows of each split, in the order of the file."""
    rows: NDArray[np.void]
    """`(N,)` of `ROW`, split after split."""
    levels: NDArray[np.uint8] | None = None
    """`(N, 32)`, the values of each mask, a bit for each; `None` where they were not compared."""


def rows_name(pack: str, manifest: Manifest) -> str:
    """Return the name of the record of the pack that has this name and manifest."""
    digits = hash_block(f"{manifest.size} {' '.join(manifest.hashes)}".encode())
    return f"{pack}.{digits}{_SUFFIX}"


def is_rows_name(name: str, pack: str) -> bool:
    """Tell whether a file has the name of a record of some pack that was, or is, called `pack`."""
    digits = name.removeprefix(f"{pack}.").removesuffix(_SUFFIX)
    return name == f"{pack}.{digits}{_SUFFIX}" and len(digits) == 16 and set(digits) <= set("0123456789abcdef")


def write_rows(path: Path, found: PackRows) -> None:
    """Write a record, in a workspace."""
    head = json.dumps({"format": _FORMAT, "form": found.form, "splits": list(found.splits.items())}).encode()
    levels = {} if found.levels is None else {"levels": found.levels}
    with path.open("wb") as file:
        np.savez(file, head=np.frombuffer(head, np.uint8), rows=found.rows, **levels)  # type: ignore[arg-type]


def parse_rows(content: bytes, manifest: Manifest) -> PackRows | None:
    """Return the record of a pack; `None` for anything that is not a whole one, or of other rows."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            head, rows = json.loads(stored["head"].tobytes()), stored["rows"]
            levels = stored.get("levels")
        splits = {str(name): int(count) for name, count in head["splits"]}
        found = PackRows(str(head["form"]), splits, rows, levels)
    except _UNREADABLE:
        return None
    fits = rows.dtype == ROW and rows.shape == (sum(splits.values()),) and splits == manifest.samples
    fits = fits and (levels is None or (levels.dtype == np.uint8 and levels.shape == (len(rows), 32)))
    return found if fits and head.get("format") == _FORMAT else None


def read_rows(pack: Path, manifest: Manifest) -> PackRows | None:
    """Return the record beside a pack; `None` where there is none."""
    path = pack.with_name(rows_name(pack.name, manifest))
    try:
        return parse_rows(path.read_bytes(), manifest) if is_made_here(path) else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_rows(path: Path) -> bool:
    """Tell whether a file is a record of rows that colabstage wrote for this user."""
    if not is_made_here(path) or not path.is_file():
        return False
    try:
        # Opened here, as numpy leaves a file open that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            head = json.loads(stored["head"].tobytes())
    except _UNREADABLE:
        return False
    return isinstance(head, dict) and head.get("format") == _FORMAT


def put_rows(made: Path, pack: Path, manifest: Manifest) -> None:
    """Put a record from a workspace in its place; before its pack is, so that each pack that counts has its own."""
    put_file(made, pack.with_name(rows_name(pack.name, manifest)), replaces=is_rows)


def sweep_rows(pack: Path) -> None:
    """Remove the records of packs that had this name before; all of them where there is none now."""
    found = [
        path for path in pack.parent.glob(f"{glob.escape(pack.name)}.*{_SUFFIX}") if is_rows_name(path.name, pack.name)
    ]
    if not found:
        return
    with contextlib.suppress(NewerFormatError):
        manifest = read_manifest(pack)
        kept = None if manifest is None else rows_name(pack.name, manifest)
        for path in found:
            if path.name != kept:
                remove_vouched(path, is_rows)


def states_of(table: SampleTable) -> NDArray[np.void] | None:
    """Return the names and states of the files of each sample, `(N,)` of `ROW`; `None` where its samples are no files
    that can be compared."""
    sources = [inputs_of(table).source, target_source(table)]
    parts = [_file_states(source) for source in sources if source is not None]
    found = np.zeros(len(table), ROW)
    for field in ("name", "digest", "version"):
        columns = [part[field] for part in parts if part is not None]
        if len(columns) < len(parts):
            return None
        # What is proved of one of two files proves nothing of the sample.
        proved = np.all([column != 0 for column in columns], axis=0)
        mixed = columns[0] if len(columns) == 1 else _hash_each(zip(*(one.tolist() for one in columns), strict=True))
        found[field] = np.where(proved, mixed, 0)
    return found


def inputs_of(table: SampleTable) -> Images | Arrays:
    """Return the inputs before `prepare=`."""
    inputs = table.inputs
    return inputs.decode.inputs if isinstance(inputs, Arrays) and isinstance(inputs.decode, Prepared) else inputs


def are_files(table: SampleTable) -> bool:
    """Tell whether each sample is an image file, with a mask file perhaps, or with what is known of it anyway."""
    parts = [inputs_of(table), *([table.targets] if target_source(table) is not None else [])]
    return all(
        isinstance(part, Images | Masks) and not part.decoded and isinstance(part.source, TreeFiles) for part in parts
    )


def _file_states(source: SampleSource) -> dict[str, NDArray[np.uint64]] | None:
    if not isinstance(source, TreeFiles):
        return None
    entries, listing = source.entries, source.tree.entries
    states = source.tree.file_states()
    numbers = range(len(entries)) if entries.places is None else entries.places.tolist()
    known = listing.names
    # A part of a tree numbers its files as the whole does, and some listings do not number them.
    found = (
        number if 0 <= number < len(known) and known[number] == name else listing.find(name)
        for number, name in zip(numbers, entries.names, strict=True)
    )
    places = [place for place in found if place is not None]
    if len(places) < len(entries):
        return None
    names, sizes = entries.names, entries.sizes.tolist()
    return {
        "name": _hash_each(zip(names)),
        # By the bare name too, as 32 bits alone would be equal by chance among many files.
        "digest": _hash_proofs((name.rpartition("/")[2] for name in names), sizes, states.digests, places),
        "version": _hash_proofs(names, sizes, states.versions, places),
    }


def _hash_proofs(
    names: Iterable[str], sizes: Sequence[int], proofs: Sequence[str], places: Sequence[int]
) -> NDArray[np.uint64]:
    hashes = _hash_each(zip(names, sizes, (proofs[place] for place in places), strict=True))
    known = np.fromiter((proofs[place] != "" for place in places), np.bool_, len(places))
    return np.where(known, hashes, np.uint64(0))


def _hash_each(values: Iterable[tuple[Any, ...]]) -> NDArray[np.uint64]:
    texts = ("\n".join(map(str, value)).encode(errors="surrogateescape") for value in values)
    # 0 stands for none.
    return np.fromiter((xxhash.xxh3_64_intdigest(text) or 1 for text in texts), np.uint64)

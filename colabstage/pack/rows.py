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
import re
import zipfile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from colabstage.errors import NewerFormatError
from colabstage.h5.manifest import read_manifest
from colabstage.images.decode import LOSSES
from colabstage.io.files import hash_block
from colabstage.io.ownership import put_file, remove_vouched
from colabstage.io.workspace import is_made_here
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import Arrays, Images, Masks
from colabstage.pack.job import Prepared, target_source
from colabstage.trees.listing import hash_rows, hash_texts, take_strings

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest
    from colabstage.layouts.samples import SampleSource
    from colabstage.layouts.table import SampleTable

_SUFFIX = re.compile(r"\.[0-9a-f]{16}\.rows")
_KIND, _FORMAT = "colabstage rows ", "colabstage rows 2"
# What numpy, zipfile and json raise of a file that anybody may have written; the last one of flags that none can read.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, RuntimeError)
# Of one row: hashes of the names of its files, and of these with what shows their state (0 where nothing does); a hash
# of the image file, where it was taken; the size of the upright image, where it was noted; and what of its file
# is not stored.
_STATES = ("name", "digest", "version")
ROW = np.dtype(
    [
        *((state, "<u8") for state in (*_STATES, "content")),
        *((side, "<i4") for side in ("height", "width")),
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
    return f"{pack}.{digits}.rows"


def is_rows_name(name: str, pack: str) -> bool:
    """Tell whether a file has the name of a record of some pack that was, or is, called `pack`."""
    return name.startswith(pack) and _SUFFIX.fullmatch(name[len(pack) :]) is not None


def write_rows(path: Path, found: PackRows) -> None:
    """Write a record, in a workspace."""
    head = json.dumps({"format": _FORMAT, "form": found.form, "splits": list(found.splits.items())}).encode()
    levels = {} if found.levels is None else {"levels": found.levels}
    with path.open("wb") as file:
        np.savez(file, head=np.frombuffer(head, np.uint8), rows=found.rows, **levels)  # type: ignore[arg-type]


def parse_rows(content: bytes, manifest: Manifest) -> PackRows | None:
    """Return the record of a pack; `None` for anything that is not a whole one, or of other rows."""
    return _load_rows(io.BytesIO(content), manifest)


def read_rows(pack: Path, manifest: Manifest) -> PackRows | None:
    """Return the record beside a pack; `None` where there is none."""
    path = pack.with_name(rows_name(pack.name, manifest))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if is_made_here(path):
            with path.open("rb") as file:
                return _load_rows(file, manifest)
    return None


def _load_rows(file: BinaryIO, manifest: Manifest) -> PackRows | None:
    try:
        with np.load(file, allow_pickle=False) as stored:
            head, rows, levels = json.loads(stored["head"].tobytes()), stored["rows"], stored.get("levels")
        splits = {str(name): int(count) for name, count in head["splits"]}
        found = PackRows(str(head["form"]), splits, rows, levels)
    except _UNREADABLE:
        return None
    fits = rows.dtype == ROW and rows.shape == (sum(splits.values()),) and splits == manifest.samples
    fits = fits and (levels is None or (levels.dtype == np.uint8 and levels.shape == (len(rows), 32)))
    return found if fits and head.get("format") == _FORMAT else None


def is_rows(path: Path) -> bool:
    """Tell whether a file is a record of rows that colabstage wrote for this user, of whatever version."""
    if not is_made_here(path) or not path.is_file():
        return False
    try:
        # Opened here, as numpy leaves a file open that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            head = json.loads(stored["head"].tobytes())
    except _UNREADABLE:
        return False
    return isinstance(head, dict) and str(head.get("format")).startswith(_KIND)


def put_rows(made: Path, pack: Path, manifest: Manifest) -> None:
    """Put a record from a workspace in its place; before its pack is, so that each pack that counts has its own."""
    put_file(made, pack.with_name(rows_name(pack.name, manifest)), replaces=is_rows)


def sweep_rows(pack: Path) -> None:
    """Remove the records of packs that had this name before; all of them where there is none now."""
    records = [one for one in pack.parent.glob(f"{glob.escape(pack.name)}.*.rows") if is_rows_name(one.name, pack.name)]
    if not records:
        return
    with contextlib.suppress(NewerFormatError):
        manifest = read_manifest(pack)
        kept = None if manifest is None else rows_name(pack.name, manifest)
        for path in records:
            if path.name != kept:
                remove_vouched(path, is_rows)


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


def states_of(table: SampleTable) -> NDArray[np.void] | None:
    """Return the names and states of the files of each sample, `(N,)` of `ROW`; `None` where its samples are no files
    that can be compared."""
    sources = [source for source in (inputs_of(table).source, target_source(table)) if source is not None]
    parts = [_file_states(source) for source in sources]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    found = np.zeros(len(table), ROW)
    for state, columns in zip(_STATES, zip(*known, strict=True), strict=True):
        # What is proved of one of two files proves nothing of the sample.
        found[state] = np.where(np.all([column != 0 for column in columns], axis=0), hash_rows(*columns), 0)
    return found


def _file_states(source: SampleSource) -> tuple[NDArray[np.uint64], ...] | None:
    """Return a hash of each file's name, and what shows its state, by its bare name and by its whole name."""
    places = _places(source) if isinstance(source, TreeFiles) else None
    if not isinstance(source, TreeFiles) or places is None:
        return None
    entries = source.entries
    digests, versions = (states[places] for states in source.tree.file_states())
    names = hash_texts(entries.names)
    # By the bare name too, as 32 bits alone would be equal by chance among many files.
    bare = hash_texts(name.rpartition("/")[2] for name in entries.names) if digests.any() else names
    return names, hash_rows(bare, entries.sizes, digests), hash_rows(names, entries.sizes, versions)


def _places(source: TreeFiles) -> NDArray[np.int64] | None:
    """Return the number of each file among those of its tree; `None` where one is not listed."""
    entries, listing = source.entries, source.tree.entries
    places = np.arange(len(entries)) if entries.places is None else entries.places
    # A part of a tree numbers its files as the whole does, and some listings do not number them.
    is_numbered = places.min(initial=0) >= 0 and places.max(initial=-1) < len(listing)
    if is_numbered and take_strings(listing.names, places) == entries.names:
        return places
    found = [listing.find(name) for name in entries.names]
    return None if None in found else np.array(found, np.int64)

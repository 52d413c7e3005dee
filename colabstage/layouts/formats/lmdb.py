"""LMDB databases of images and labels, read by the lmdb package."""

from __future__ import annotations

import os
import posixpath
import re
import threading
import weakref
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from colabstage.errors import CorruptArchiveError, LayoutError
from colabstage.io.packages import refuse_import
from colabstage.layouts.evidence import Evidence, require_files
from colabstage.layouts.reading import Source, broken, copy_of
from colabstage.layouts.records import (
    Label,
    Labels,
    all_have,
    decode_label,
    make_labels,
    parse_label,
    records_state,
    scan_each,
)
from colabstage.layouts.table import Images, SampleSource, join_samples, stamp_of
from colabstage.layouts.words import folder_of, is_image, is_split, split_of_path
from colabstage.trees.bytes import image_ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.trees.listing import FileEntry

NAME = "lmdb"
EXTENSIONS = (".mdb", ".lmdb")

_NUMBERED = re.compile(rb"(image|img|label|lbl)[-_](.+)", re.DOTALL)
# The open databases by process and path, because the package opens a file only once per process.
_opened: WeakValueDictionary[tuple[int, str], Any] = WeakValueDictionary()
_opening = threading.Lock()
# Keys of the notes that writers put beside the samples.
_COUNTS = (b"num-samples", b"num_samples", b"nsamples")
_NOTES = re.compile(rb"num[-_]samples|length|len|nsamples|keys|meta|__.*__", re.DOTALL)


def lmdb_state(source: Source) -> Evidence:
    """Read LMDB databases (data.mdb, or a file .lmdb) whose values are image files.

    y: with keys like image-000000001 and label-000000001, numbers or words; with keys like train/cat/1.jpg the folder,
    unless that is a split; otherwise none. Splits are those in the names of all databases (train/data.mdb, val.lmdb),
    or in all such keys.
    Nothing is unpickled.
    """
    found = source.ending_in(EXTENSIONS).where(lambda name: posixpath.basename(name).lower() != "lock.mdb")
    entries = require_files(found, source, "LMDB database (data.mdb, or a file .lmdb)")
    databases = scan_each(entries, lambda _, entry: _Database(source, entry))
    filled = require_files([one for one in databases if one.images], source, "LMDB database that has values")
    contents = join_samples([database.samples() for database in filled])
    labels = _labels_of(filled, [contents.name(number) for number in range(len(contents))])
    splits = [split_of_path(key) for database in filled for key in database.images if is_image(key)]
    fields = {"split": splits} if len(splits) == len(contents) and any(splits) else {}
    shard_of = np.repeat(np.arange(len(databases)), [len(database.images) for database in databases])
    names, who = entries.names, "the databases"
    return records_state(NAME, who, Images(contents), labels, shards=names, shard_of=shard_of, fields=fields)


class _Database:
    """One database: the keys and sizes of its images, and its labels, by the same names."""

    def __init__(self, source: Source, entry: FileEntry) -> None:
        self.entry = entry
        self.images: dict[str, tuple[bytes, int]] = {}
        self.labels: dict[str, bytes] = {}
        path = source.tree.path_of(entry)
        # A file that cannot be mapped in place is copied to the local disk, for as long as its samples are read.
        self._copy = copy_of(source.tree, entry) if path is None else None
        if self._copy is not None:
            weakref.finalize(self, self._copy.close)
        self._path = str(path) if self._copy is None else self._copy.name
        with self._begin() as transaction:
            for key, value in transaction.cursor():
                self._add(bytes(key), value)
            stated = bytes(next(filter(None, map(transaction.get, _COUNTS)), b""))
        lost = next((name for name in self.labels if name not in self.images), None)
        if lost is not None:
            raise broken(entry.name, f"it has a label of '{lost}', and no image", "an image for each label")
        # Writers that were stopped, or wrote over a larger database, leave one that holds other samples than it says.
        if stated.isdigit() and int(stated) != len(self.images):
            what = f"it says that it has {int(stated):,} samples, and has {len(self.images):,} images"
            raise broken(entry.name, what, "as many; write it again, into an empty folder")

    def _begin(self) -> Any:
        """Return a transaction that reads."""
        key = os.getpid(), os.path.realpath(self._path)
        with _opening:
            # Held as long as this object, or until the process is another one.
            self._held = opened = _opened.get(key) or self._open()
            _opened[key] = opened
        return opened.begin(buffers=True)

    def _open(self) -> Any:
        try:
            import lmdb
        except ImportError as error:
            refuse_import("lmdb", f"'{self.entry.name}' is an LMDB database, which needs", error)
        try:
            opened = lmdb.open(self._path, subdir=False, readonly=True, lock=False)
        except (lmdb.Error, OSError) as error:
            msg = f"'{self.entry.name}' cannot be opened as an LMDB database: {error}. Copy or upload it again."
            raise CorruptArchiveError(msg) from error
        # Reading beyond the end of a mapped file would end the process by a signal.
        needed = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
        if needed > self.entry.size and opened.stat()["entries"]:
            opened.close()
            have = f"it has {self.entry.size:,} bytes, and its pages take {needed:,}"
            msg = f"'{self.entry.name}' is truncated: {have}. Copy or upload it again."
            raise CorruptArchiveError(msg)
        return opened

    def _add(self, key: bytes, value: memoryview) -> None:
        if _NOTES.fullmatch(key):
            return
        match = _NUMBERED.fullmatch(key)
        bare = match[2] if match else key
        text = bare.decode(errors="replace")
        name = text if text.isprintable() and "\ufffd" not in text else f"0x{bare.hex()}"
        if match and match[1] in (b"label", b"lbl"):
            self.labels[name] = bytes(value)
            return
        if name in self.images:
            raise broken(self.entry.name, f"it has two images called '{name}'", "one value for each")
        # All other image files are checked when they are decoded.
        head = bytes(value[:16])
        if not self.images and not image_ending(head):
            msg = (
                f"'{self.entry.name}' does not hold image files: the value of '{name}' is {head!r}…. Pickles are never "
                "loaded here; read it with your own code: give pack_dataset the dataset object that you train with."
            )
            raise LayoutError(msg)
        self.images[name] = (key, len(value))

    def samples(self) -> SampleSource:
        stamp, names = stamp_of(self.entry), list(self.images)

        def read(index: int) -> bytes:
            with self._begin() as transaction:
                return bytes(transaction.get(self.images[names[index]][0]))

        return SampleSource(
            np.array([size for _, size in self.images.values()], np.int64),
            np.arange(len(names), dtype=np.int64),
            name=lambda index: f"{self.entry.name}[{names[index]}]",
            stamp=lambda index: f"{stamp} {names[index]}",
            read=read,
        )


def _labels_of(databases: Sequence[_Database], names: Sequence[str]) -> Labels:
    keys = [key for database in databases for key in database.images]
    texts = [database.labels.get(key) for database in databases for key in database.images]
    if not all_have(texts, names, "label"):
        # Keys that look like paths of images state their classes as folders do.
        are_paths = all("/" in key and is_image(key) for key in keys)
        folders = [folder_of(key) if are_paths else "" for key in keys]
        return make_labels([None if not folder or is_split(folder) else folder for folder in folders], names)
    words = [decode_label(text or b"", name) for text, name in zip(texts, names, strict=True)]
    # A text that is read in its image is one of many, and a number may be among them.
    labels: list[Label] = [*map(parse_label, words)]
    return make_labels(
        [word or None for word in words] if any(isinstance(label, str) for label in labels) else labels, names
    )

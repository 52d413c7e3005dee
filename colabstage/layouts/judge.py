"""The judge: what must be true of what is stated, of folders that may be classes, and of files that are left over.

Every file is a sample, was used, or is harmless. What else may speak of the samples depends on what states their
labels: where they were written down, archives and masks are refused, and what names the samples as well is noted; where
it is folders alone, a text that names the samples is refused; where nothing does, any file that is not harmless.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter, defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from colabstage.io.units import format_count, listed
from colabstage.layouts import words
from colabstage.layouts.boxes import NAME as DETECTION
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence, class_of_samples, near, refuse, size_in_file
from colabstage.layouts.lists import lists_state
from colabstage.layouts.names import bare_stem
from colabstage.layouts.reading import decode_text
from colabstage.layouts.table import Boxes, SampleTable, TreeFiles, Values
from colabstage.trees.folder import FolderTree
from colabstage.trees.listing import only_line
from colabstage.trees.names import extension_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from colabstage.layouts.evidence import Found
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries, FileEntry

# More folders than this are classes.
_MOST_PARTS = 16
_STEMS_COMPARED = 64
# Of so many images with boxes the size is looked at.
_SIZES_COMPARED = 8
# Enough to recognise a file's content, and little enough for a slow mount.
_HEAD_BYTES = 64 * 1024
_HEADS = 16
# At least this many samples must be named, because a text may mention one in passing.
_NAMED = 3
_AGREEING = 0.9
_WORD = re.compile(r"[^\s,;|\"'<>\[\]{}()=:]+")
_CELL = re.compile(r"[^,;\t|\"<>]+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# A stem counts as that of a sample, not as a word or a number, if it has letters and digits, or many digits.
_TELLING = re.compile(r"(?=.*\d)(?=.*\D).{3,}|\d{5,}")
_TARS = (".tar", ".tgz", ".tar.gz")
# Layouts whose samples are rows that name files.
_OF_ROWS = ("table", "croissant")
# Those whose samples are records of shards.
_OF_SHARDS = ("webdataset", "tfrecord", "lmdb", "arrow")
# A stem with its last number.
_NUMBERED = re.compile(r"(.*?)(\d+)\D*")
_SPREADSHEETS = (".xlsx", ".xls", ".ods")
# Endings of files that may be texts, and are looked into.
_TEXTS_TOO = ("", ".dat", ".log")
# What may say which samples are held out, and cannot be looked into.
_BINARY = (".mat", ".npy", ".npz", ".pkl", *_SPREADSHEETS)
# Other data that labels may be stored in.
_DATA = (".h5", ".hdf5", ".db", ".sqlite", ".tfrecord", ".arrow")
_OF_SPLITS = frozenset({"split", "splits", "partition", "partitions", "fold", "folds"})


def judge(
    source: Source, found: Evidence, rows_agree: Callable[[Evidence], bool], *, may_be_one: bool = False
) -> Found:
    """Return what is stated with the splits of lists, if nothing contradicts it; else why it does not count.

    `rows_agree` tells whether the tables that lead to the samples agree with it; `may_be_one`, whether one class is
    fine, because the samples are added to others.
    """
    by_folders = found.is_guess and found.table.layout != "file_names"
    why = _why_not_classes(found.table, may_be_one=may_be_one) if by_folders else ""
    folds: Sequence[str] = ()
    # Lists are read only if the folders may be classes, because each costs a read.
    may_be_listed = isinstance(found.table.targets, Values) or found.table.layout == "table"
    if not why and may_be_listed and (by_folders or found.table.splits is None):
        found, folds = lists_state(source, found)
    table = found.table
    about: dict[str, str] = {}
    if found.is_guess and not why:
        about = _called_labels(source, found)
        why, folds = _named_elsewhere(source, found, folds, rows_agree, about)
    if why:
        # Where folders are no classes, the names of the files may be.
        decline = near if by_folders else refuse
        return decline(
            f"The {table.unit} of '{source.label}' may have the classes {listed(table.classes)}, by {found.who}, but "
            f'{why} layout="{table.layout}" takes them anyway.'
        )
    checks = (_spelled_twice, _unnamed, _split_twice, _split_misspelt, _untrained, _boxes_lost)
    why = next((why for check in checks if (why := check(table))), "")
    why = why or _sets_in_folders(source, found) or _left_over(source, found)
    if why:
        why = f"{why[0].upper()}{why[1:]}"
        return refuse(f'{why} layout="{table.layout}" takes the {table.unit} as they are.')
    if by_folders and (stem := _ClassFolders(table).numbered_alike()):
        found = found.noting(
            f"The {table.unit} in {listed(table.classes)} have the same names ('{stem}', …), as parts of a sample "
            f"have; if they are: layout=parts(x='{table.classes[0]}', y='{table.classes[-1]}'), from "
            "colabstage.options."
        )
    others = [name for name, state in about.items() if state == "other"]
    if by_folders and others:
        found = found.noting(
            f"{listed(others)} may give the classes other names or another order: labels are positions in the text "
            f"order of the folders, in which '{show(table.classes[0])}' is 0."
        )
    more, mates = ([], []) if found.is_guess else _naming_as_well(source, found)
    if table.splits is None:
        folds = sorted({*folds, *filter(_may_list_a_split, more), *_named_after_splits(source, found)})
    rest = sorted(set(more).difference(folds))
    split = (
        f"Not read: {listed(folds)}, which may say what is held out; all {table.unit} are of one split, or as splits= "
        "says. Lists train.txt and val.txt, a path in each line, are."
    )
    named = f"Not read: {listed(rest)}, where {table.unit} are named as well."
    own = (
        f"Not read: {format_count(len(mates), 'files')} called as {table.unit} are (first '{min(mates, default='')}')."
    )
    said = ((split, folds and table.splits is None), (named, rest), (own, mates))
    return found.noting(*(note for note, stands in said if stands))


def _is_series(numbers: Sequence[int]) -> bool:
    """Tell whether numbers are those of a series: each once, at equal steps or with few gaps."""
    found = sorted({*numbers})
    steps = {after - before for before, after in itertools.pairwise(found)}
    return len(found) == len(numbers) and (len(steps) < 2 or found[-1] - found[0] < 2 * len(found))


def _spelled_twice(table: SampleTable) -> str:
    """Find classes that are one word in two spellings, which are one class for people and two for a program."""
    seen: dict[str, str] = {}
    for name in table.classes:
        other = seen.setdefault(words.spoken(name), name)
        if other != name:
            form = " (the same letters in two forms of Unicode)" if words.normal(other) == words.normal(name) else ""
            return (
                f"Two classes of the {table.unit} are called '{show(other)}' and '{show(name)}'{form}, which look like "
                "one class spelled in two ways. Spell it in one way."
            )
    return ""


def _unnamed(table: SampleTable) -> str:
    """Find labels that are beyond the classes: their names are those of another dataset, or numbered otherwise."""
    targets, classes = table.targets, table.classes
    labels = targets.columns["labels"] if isinstance(targets, Boxes) else getattr(targets, "values", np.zeros(0))
    is_numbered = bool(classes) and labels.ndim == 1 and labels.dtype.kind in "iu" and len(labels) > 0
    if not is_numbered or labels.max() < len(classes):
        return ""
    least = labels[labels >= 0].min()
    return (
        f"The labels of the {table.unit} are {least} to {labels.max()}, and the names {listed(classes)} are those of "
        f"0 to {len(classes) - 1}. Number the labels from 0, or name all of them."
    )


def _split_twice(table: SampleTable) -> str:
    """Find a split with two names, and a file of a table that is in two splits."""
    # dev beside one of them may be intended, because some corpora have both.
    several = sorted({"val", "valid", "validation"} & set(table.splits or ()))
    if len(several) > 1:
        return f"The {table.unit} are in the splits {listed(several)}, which look like one. Use one name."
    split_of: dict[str, str] = {}
    for key, split in zip(table.keys, table.splits or (), strict=False) if table.layout in _OF_ROWS else ():
        name = key.partition("#")[0]
        if split_of.setdefault(name, split) != split:
            return (
                f"'{name}' is in the splits '{split_of[name]}' and '{split}', so it would be trained and tested on. "
                "Take it out of one."
            )
    return ""


def _sets_in_folders(source: Source, found: Evidence) -> str:
    """Find shards in folders of different words that are no splits: languages, categories, datasets of their own."""
    # Of a list of sources all are meant.
    if found.table.layout not in _OF_SHARDS or len(source.tree.parts()) > 1:
        return ""
    folders: dict[tuple[str, ...], str] = {}
    for folder in sorted(map(posixpath.dirname, found.used)):
        folders.setdefault(tuple(word for part in folder.split("/") for word in words.split_name(part).rest), folder)
    names = sorted(filter(None, folders.values()))
    if len(folders) < 2:
        return ""
    return (
        f"The {found.table.unit} of '{source.label}' are in shards in the folders {listed(names)}, which may be "
        f"datasets of their own. Take one: {only_line(source.tree, names[0])}."
    )


def _untrained(table: SampleTable) -> str:
    """Find a split most of whose classes are not in `train`: tested classes must be trained."""
    targets, classes = table.targets, table.classes
    if not (table.splits and classes and isinstance(targets, Values) and targets.values.ndim == 1):
        return ""
    # Below 0 labels are kept secret.
    pairs = {(split, label) for split, label in zip(table.splits, targets.values.tolist(), strict=True) if label >= 0}
    known = {label for split, label in pairs if split == "train"}
    for odd in sorted({split for split, _ in pairs}) if known else ():
        own = {label for split, label in pairs if split == odd}
        if 2 * len(own & known) < len(own):
            names, trained = (listed([classes[label] for label in sorted(one)]) for one in (own, known))
            return (
                f"most classes of the split '{odd}' ({names}) are not in 'train' ({trained}). Call them as those of "
                "'train', or move them away."
            )
    return ""


def _split_misspelt(table: SampleTable) -> str:
    """Find a folder called almost like a split beside one that is: what is in it would be trained on."""
    source = table.inputs.source
    if not isinstance(source, TreeFiles):
        return ""
    folders, folder_of = source.entries.folders
    inside: dict[str, set[str]] = defaultdict(set)
    for folder in folders:
        for path in itertools.accumulate(folder.split("/"), posixpath.join):
            inside[posixpath.dirname(path)].add(posixpath.basename(path))
    for above, names in sorted(inside.items()):
        splits = {words.split_name(name).split for name in names if words.is_split(name)}
        for name in sorted(names - {*table.classes}) if splits else ():
            split = words.misspelt_split(name)
            # invalid beside valid is a word of its own.
            if not split or split in splits:
                continue
            path = posixpath.join(above, name)
            within = [number for number, folder in enumerate(folders) if f"{folder}/".startswith(f"{path}/")]
            samples = np.flatnonzero(np.isin(folder_of, within)).tolist()
            # A list or a column may say of each sample what its folder does not.
            if table.splits is None or not any(words.same_split(table.splits[one], split) for one in samples):
                return (
                    f"Did you mean '{split}' by '{path}', which holds {table.unit} beside folders of splits? "
                    "Rename it, or move it away."
                )
    return ""


def _boxes_lost(table: SampleTable) -> str:
    """Find annotations without any box; and boxes outside of their images, which were made smaller, or are others."""
    boxes, source = table.targets, table.inputs.source
    if not isinstance(boxes, Boxes) or not isinstance(source, TreeFiles):
        return ""
    if not len(boxes.boxes) and len(table) and table.layout == DETECTION:
        return (
            f"Annotations of the {len(table):,} images are there, and no box in any of them (first '{table.keys[0]}'). "
            "Export them with their boxes."
        )
    known = boxes.relative or boxes.sizes is not None
    chosen = np.flatnonzero(np.diff(boxes.offsets))[: 0 if known else _SIZES_COMPARED].tolist()
    outside = []
    for number in chosen:
        size = size_in_file(source, number)
        if size is not None:
            corners = boxes.boxes[boxes.offsets[number] : boxes.offsets[number + 1], :2]
            outside.append((corners >= size[::-1]).any(axis=1).all())
    if not outside or not all(outside):
        return ""
    box = ", ".join(f"{edge:g}" for edge in boxes.boxes[boxes.offsets[chosen[0]]].tolist())
    return (
        f"The boxes of '{table.keys[chosen[0]]}' and of {len(outside) - 1:,} more images that were looked at lie "
        f"outside of them (first {box}): the images were made smaller, or are others. Scale the boxes as the images "
        "were."
    )


# --- folders as classes -----------------------------------------------------------------------------------------------


def _why_not_classes(table: SampleTable, *, may_be_one: bool) -> str:
    """Return why folders are probably no classes, and what to write; "" if they may be."""
    if len(table.classes) < 2 and not may_be_one:
        return (
            "that is one class, and there is nothing to learn from one. Expected a folder for each class, a table of "
            "labels beside the images, or their class in the files' names: layout=file_names(PATTERN)."
        )
    folders = _ClassFolders(table)
    return folders.parts() or folders.depth() or folders.same_stems() or _untrained(table)


class _ClassFolders:
    """The folders of samples that may be classes: their names, what is below them, and what is in each."""

    def __init__(self, table: SampleTable) -> None:
        source, targets = table.inputs.source, table.targets
        assert isinstance(source, TreeFiles)
        assert isinstance(targets, Values)
        self.table, self.classes, self.labels = table, table.classes, targets.values
        self.tree, self.files = source.tree, source.entries
        self.folders = self.files.folders[0]

    def _say(self, *, outer: str = "", parts: list[str] | None = None) -> str:
        """Write what chooses one of several readings: a part of the source, the innermost folders, two folders of parts
        of each sample."""
        # A class's folder alone, wherever that is in the source.
        paths = (folder.split("/") for folder in self.folders)
        found = ["/".join(path[: path.index(outer) + 1]) for path in paths if outer in path]
        ways = [
            f"one of the outer folders alone: {only_line(self.tree, min(found, key=len, default=outer))}"
            if outer
            else "",
            f"images and masks: layout=parts(x='{parts[0]}', y='{parts[-1]}')"
            if parts
            else "the inner folders: layout=folders(level=-1)",
            r"the class in the paths: layout=file_names(r'([^/]+)/[^/]+$')",
        ]
        return f"Say which is meant, from colabstage.options: {'; '.join(filter(None, ways))}."

    def parts(self) -> str:
        """Find folders that are called after parts of a dataset, or of each sample."""
        if bare := sorted(filter(words.is_unlabelled, self.classes)):
            return f"{listed(bare)} says that its {self.table.unit} have no label. Move it away."
        named = self._called_parts()
        if named:
            meant = "".join(
                f" Did you mean '{split}' by '{one}'?"
                for one in sorted({*self.classes}.difference(named))
                if (split := words.misspelt_split(one))
            )
            what = f"{'is a name' if len(named) == 1 else 'are names'} of parts of a dataset"
            return f"{listed(named)} {what}.{meant} {self._say(outer=min(self.classes), parts=sorted(self.classes))}"
        folders = {name for folder in self.folders for name in folder.split("/")}
        # train_images and val_images above the classes are splits, despite the word images.
        above = {name for name in folders if words.is_split(name)} if self.table.splits is not None else set()
        below = sorted(folder for folder in folders - above - set(self.classes) if words.is_role(folder))
        if len(below) > 1:
            return f"{listed(below)} hold parts of each sample. {self._say(parts=below)}"
        return ""

    def same_stems(self) -> str:
        """Find folders that may hold parts of each sample by the names of the files in them."""
        stem = self._shared_stem() or (self._same_stem if not self._are_counted else "")
        if not stem:
            return ""
        return (
            f"the {self.table.unit} in {listed(sorted(self.classes))} have the same names ('{stem}', …): they may be "
            f"parts of each sample, such as an image and its mask. {self._say(parts=sorted(self.classes))}"
        )

    def numbered_alike(self) -> str:
        """Return a stem that is in each of the folders, where all have the same, and these count."""
        return self._same_stem if self._are_counted else ""

    @cached_property
    def _first_stems(self) -> list[str]:
        """Return the first stems of the files where each folder has the same; nothing where they differ."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        if not 2 <= len(counts) <= _MOST_PARTS or len(set(counts.tolist())) > 1:
            return []
        found = {
            tuple(
                bare_stem(self.files.names[row], name)
                for row in np.flatnonzero(self.labels == number)[:_STEMS_COMPARED].tolist()
            )
            for number, name in enumerate(self.classes)
        }
        return list(found.pop()) if len(found) == 1 else []

    @property
    def _same_stem(self) -> str:
        return self._first_stems[0] if len(set(self._first_stems)) >= _NAMED else ""

    @property
    def _are_counted(self) -> bool:
        """Tell whether those stems count, as classes of one size do: cat/0.jpg, cat/1.jpg, dog/0.jpg, dog/1.jpg. There
        may be several series, each with a word of its own: img_0, photo_0."""
        series: dict[str, list[int]] = {}
        # All of one folder: the first by name are 0, 1, 10, 100, …, with gaps between them.
        rows = np.flatnonzero(self.labels == 0).tolist() if self._first_stems else []
        for row in rows:
            found = _NUMBERED.fullmatch(bare_stem(self.files.names[row], self.classes[0]))
            if found is None:
                return False
            series.setdefault(found[1], []).append(int(found[2]))
        alone = len(series) == 1
        if self.table.splits is not None:
            # Each split may count from the beginning: train/cat/0.jpg, test/cat/0.jpg.
            series = {word: sorted({*numbers}) for word, numbers in series.items()}
        return all(_is_series(numbers) and (alone or not re.search(r"\d", word)) for word, numbers in series.items())

    def _called_parts(self) -> list[str]:
        """Return the classes called after splits or parts of a dataset; none if one stands among real classes."""
        classes = self.classes
        splits = {name: read for name in classes if (read := words.split_name(name)).split}
        # "train" among ships and cars is a vehicle, "test tube" beside "beaker" a thing; training_fake beside
        # training_real are two classes of one split.
        several = len({read.split for read in splits.values()}) > 1 or len(set(splits.values())) < len(splits)
        odd = {name for name in classes if words.is_role(name)}
        odd |= {name for name, read in splits.items() if several or not read.rest}
        # Of folds, or of pictures before and after, each folder is a part; "depth" among other words is a class.
        parts = {name for name in classes if words.is_part(name)}
        odd |= parts if len(parts | splits.keys()) == len(classes) else set()
        return sorted(odd) if len(odd) > 1 or len(classes) < 3 else []

    def _shared_stem(self) -> str:
        """Return a stem that is in each of the folders, if they may hold parts of one sample by their names."""
        if not 2 <= len(self.classes) <= _MOST_PARTS or not words.may_hold_parts(self.classes, "a"):
            return ""
        stems = []
        for number, name in enumerate(self.classes):
            rows = np.flatnonzero(self.labels == number)[:_STEMS_COMPARED]
            stems.append({bare_stem(self.files.names[row], name) for row in rows.tolist()} - {""})
        smallest = min(stems, key=len)
        stem = min(smallest, default="")
        differ = any(2 * len(smallest & own) < len(smallest) for own in stems)
        return "" if differ or not words.may_hold_parts(self.classes, stem) else stem

    @cached_property
    def _below(self) -> dict[str, set[tuple[str, ...]]]:
        """Return for each class the paths of folders in it that hold samples, without those that say nothing: parts of
        samples, and folders below every class."""
        # As single numbers, because sorting a million pairs takes ten times as long and twice the memory.
        pairs = np.unique(self.files.folders[1].astype(np.int64) * len(self.classes) + self.labels)
        places = [divmod(pair, len(self.classes)) for pair in pairs.tolist()]
        # A folder above all of them may have a class's name: cell_images/cell_images.
        depth = (
            len(words.shared_folders(f"{self.folders[folder]}/" for folder, _ in places))
            if len(self.classes) > 1
            else 0
        )
        below: dict[str, set[tuple[str, ...]]] = {name: set() for name in self.classes}
        for folder, label in places:
            name, path = self.classes[label], self.folders[folder].split("/")
            rest = path[path.index(name, depth) + 1 :] if name in path[depth:] else []
            below[name].add(tuple(part for part in rest if not words.is_role(part)))
        while len(first := {rest[:1] for inner in below.values() for rest in inner}) == 1 and () not in first:
            below = {name: {rest[1:] for rest in inner} for name, inner in below.items()}
        return below

    def depth(self) -> str:
        """Find a class that holds several folders and no file of its own: those may be the classes."""
        for name, inner in self._below.items():
            if len(inner) > 1 and () not in inner:
                tops = {rest[0] for rest in inner}
                inside = sorted(tops if len(tops) > 1 else {"/".join(rest) for rest in inner})
                flat = [other for other, its in self._below.items() if its == {()}]
                beside = f", and {listed(flat)} beside it hold {self.table.unit} directly" if flat else ""
                what = f"'{name}' holds the folders {listed(inside)}, which may be the classes as well{beside}"
                return f"{what}. {self._say(outer=name)}"
        return ""


# --- files that are left over -----------------------------------------------------------------------------------------


def files_called(source: Source, ends: tuple[str, ...]) -> FileEntries:
    """Return the files whose names have one of these endings, in any case; .tar.gz is longer than an extension."""
    files = source.ending_in(tuple(map(extension_of, ends)))
    return files.where(lambda name: name.lower().endswith(ends))


def _beside(source: Source, unit: str, names: Sequence[str], what: str = "their labels", how: str = "") -> str:
    """Write that files which are left over may hold something, and what to do; "" where there are none."""
    if not names:
        return ""
    base, extension = posixpath.splitext(names[0])
    # As text, because 0001 is a name.
    line = f" (pandas.read_excel('{names[0]}', dtype=str).to_csv('{base}.csv', index=False))"
    table = (
        f"Write a table with a path and a label in each row beside them{line if extension in _SPREADSHEETS else ''}, "
        "or give a function as layout=."
    )
    more = f" and {len(names) - 1:,} more files" if len(names) > 1 else ""
    return (
        f"'{names[0]}'{more} beside the {unit} of '{source.label}' may hold {what}, and would be left out. "
        f"{how or table}"
    )


def may_label(source: Source, table: SampleTable) -> str:
    """Return which files may hold the labels of images that nothing labels, and what to write."""
    others = source.files.not_ending_in(tuple(words.HARMLESS)).where(lambda name: not words.is_note(name))
    why = _beside(source, "images", others.names or list(_texts_stating(source, table, source.ending_in(("",)))))
    return f'{why} layout="images" reads the images without labels.' if why else ""


def _left_over(source: Source, found: Evidence) -> str:
    """Find what may hold more samples, or their labels, whatever states these: archives, masks; and where nothing does,
    a document of Google or any annotations of arrays."""
    table = found.table
    documents = [note for note in source.tree.notes if "Google" in note] if table.targets is None else []
    if documents:
        return f"Nothing labels the {table.unit}, and a document may: {documents[0]} Download it as CSV beside them."
    is_bare = table.targets is None and not isinstance(table.inputs.source, TreeFiles)
    if is_bare and (why := _beside_bare(source, found)):
        return why
    opened = {posixpath.basename(part.label) for part in source.tree.parts()} | found.used
    archives = files_called(source, words.ARCHIVES).where(
        lambda name: opened.isdisjoint({name, posixpath.basename(name)})
    )
    # Tars are looked into where samples are records.
    if not isinstance(table.inputs.source, TreeFiles):
        archives = archives.where(lambda name: not name.lower().endswith(_TARS))
    folder = source.tree.label if isinstance(source.tree, FolderTree) else "FOLDER"
    how = f"Give it in a list of sources, ['{folder}', '{folder}/{archives.names[0]}']." if archives else ""
    return _beside(
        source,
        table.unit,
        _masks_left_over(source, found) if table.layout in _OF_ROWS else (),
        "their masks",
        "For images and masks give layout=image_masks(FOLDER), from colabstage.options.",
    ) or _beside(source, table.unit, archives.names, "more of them, or their labels", how)


def _beside_bare(source: Source, found: Evidence) -> str:
    """Find what may label arrays or shards without targets, or be the samples instead of them."""
    others = source.ending_in(words.ANNOTATIONS).where(lambda name: name not in found.used and not words.is_note(name))
    images = source.ending_in(words.IMAGES)
    what = found.table.unit if found.table.layout != "arrays" else "arrays"
    how = "Save it as an array too, numpy.save('y.npy', y), in the order of the rows." if what == "arrays" else ""
    if len(images) > max(1, len(found.used)):
        return _beside(source, what, images.names, "the samples", "Put them into a folder of their own, and give one.")
    return _beside(source, what, others.names, "their targets", how)


def _masks_left_over(source: Source, found: Evidence) -> list[str]:
    """Return the images that a table does not name and that look like masks of those that it does, if there are as many
    as half of these: in a folder of masks, or called after them."""
    rest = set(source.ending_in(words.IMAGES).names) - set(found.table.keys) - found.used
    stems = {posixpath.splitext(name)[0] for name in found.table.keys} if rest else set()
    masks = [
        name
        for name in rest
        if (words.is_role(words.folder_of(name)) and not words.holds_images(words.folder_of(name)))
        or words.before_last_word(posixpath.splitext(name)[0]) in stems
    ]
    return sorted(masks) if 2 * len(masks) >= len(stems) else []


def _named_elsewhere(
    source: Source,
    found: Evidence,
    folds: Sequence[str],
    rows_agree: Callable[[Evidence], bool],
    about: Mapping[str, str],
) -> tuple[str, Sequence[str]]:
    """Account for files that may state something else of the samples than the folders that they are in; `about`: what
    those state that are called after labels.

    Returns why the folders do not count, "" if they do; and lists of splits that agree with them.
    """
    table, classes = found.table, set(found.table.classes)
    others = source.ending_in((*words.ANNOTATIONS, *_TEXTS_TOO)).where(lambda name: name not in found.used)
    class_of_file = dict(zip(table.keys, class_of_samples(table), strict=True)) if others else {}
    # A few files beside samples are notes; one for most samples is an annotation. The same folders of classes with XML
    # in them say the same; what is beside a sample says more of it.
    by_stem = {words.stem_of(name): name for name in others.names}
    mates = [(mate, name, label) for name, label in class_of_file.items() if (mate := by_stem.get(words.stem_of(name)))]
    own = [
        m for m, name, label in mates if posixpath.dirname(m) == posixpath.dirname(name) or label not in m.split("/")
    ]
    for names in (others.where(lambda name: _is_beside_parts(name, classes)).names, own):
        if names and (names is not own or 2 * len(own) > len(table)):
            return _beside(source, table.unit, names), ()
    # A file in one class's folder, or a readme, does not list samples of several classes.
    states = _texts_stating(source, table, others.where(lambda name: classes.isdisjoint(name.split("/")[:-1])))
    competing = [name for name, state in states.items() if state == "else" and name not in folds]
    if competing and not (all(map(words.is_table, competing)) and rows_agree(found)):
        return _beside(source, table.unit, competing[:1]), ()
    if unread := [name for name, state in about.items() if not state and name not in states]:
        return _beside(source, table.unit, unread), ()
    return "", sorted(
        {*folds, *(name for name, state in states.items() if state == "same" and _may_list_a_split(name))}
    )


def _called_labels(source: Source, found: Evidence) -> dict[str, str]:
    """Return what those files state that are called after labels, or after classes, and are left over: the "same"
    classes in their order, or "other" names or another order of them; "" for what may be the labels."""
    files = source.ending_in((*words.ANNOTATIONS, *_BINARY, *_DATA)).where(
        lambda name: words.may_hold_labels(name) and name not in found.used
    )
    first = sorted(files, key=lambda entry: (entry.name.count("/"), entry.name))[:_HEADS]
    return {entry.name: _about_classes(source, entry, found.table.classes) for entry in first}


def _about_classes(source: Source, entry: FileEntry, classes: Sequence[str]) -> str:
    if extension_of(entry.name) not in (*words.TEXTS, *_TEXTS_TOO):
        return ""
    text = words.normal(decode_text(source.head(entry, _HEAD_BYTES)))
    # In the folder of a class, of that.
    own = [name for name in classes if name in entry.name.split("/")[:-1]] or classes
    # A name may have spaces in it.
    counts = Counter(_WORD.findall(text)) | Counter(cell.strip() for cell in _CELL.findall(text))
    lines = sum(1 for line in text.splitlines() if line.strip())
    if any(counts[name] != 1 for name in own):
        return "other" if lines in (len(own), len(own) + 1) else ""
    places = [text.index(name) for name in own]
    return "same" if places == sorted(places) else "other"


def _texts_stating(source: Source, table: SampleTable, files: FileEntries) -> dict[str, str]:
    """Return what those of some texts state that name samples: the "same" classes of them, or something "else"."""
    # The beginning is enough; some lists have a million lines.
    texts = files.ending_in((*words.TEXTS, *_TEXTS_TOO)).where(lambda name: not words.is_note(name))
    first = sorted(texts, key=lambda entry: (entry.name.count("/"), entry.name))[:_HEADS]
    heads = {entry.name: words.normal(decode_text(source.head(entry, _HEAD_BYTES))) for entry in first}
    named = {part for head in heads.values() for line in head.splitlines() for part in _parts(_words(line))}
    labels = class_of_samples(table) or itertools.repeat("", len(table))
    class_of = {
        word: label
        for name, label in (zip(table.keys, labels, strict=True) if named else ())
        for word in (words.normal(posixpath.basename(name)), words.normal(words.stem_of(name)))
        if word in named
    }
    # Of what is held out few may be listed.
    enough = {name: 1 if _may_list_a_split(name) else min(_NAMED, len(table)) for name in heads}
    states = {name: _states(head, class_of, enough[name]) for name, head in heads.items()}
    return {name: state for name, state in states.items() if state}


def _naming_as_well(source: Source, found: Evidence) -> tuple[list[str], list[str]]:
    """Return the texts that are left over where labels are written down elsewhere: those that name samples; and those
    that are called as one, and so about it alone."""
    others = source.ending_in((*words.TEXTS, *_TEXTS_TOO)).where(lambda name: name not in found.used)
    if not isinstance(found.table.inputs.source, TreeFiles) or not others:
        return [], []
    stems = {words.stem_of(name) for name in found.table.keys}
    mates = {name for name in others.names if words.stem_of(name) in stems}
    return list(_texts_stating(source, found.table, others.where(lambda name: name not in mates))), sorted(mates)


def _named_after_splits(source: Source, found: Evidence) -> list[str]:
    """Return the files that are left over, no texts, and called as what says which samples are held out."""
    if not isinstance(found.table.inputs.source, TreeFiles):
        return []
    others = source.ending_in(_BINARY).where(lambda name: name not in found.used)
    return [name for name in others.names if _may_list_a_split(name)]


def _may_list_a_split(name: str) -> bool:
    found = words.words_of(words.stem_of(name))
    return bool(words.split_name(words.stem_of(name)).split) or not _OF_SPLITS.isdisjoint(found)


def _is_beside_parts(name: str, classes: set[str]) -> bool:
    """Tell whether a file is in a folder of annotations inside of a class's: MOT17-02/gt/gt.txt."""
    *folders, _ = name.split("/")
    first = next((place for place, folder in enumerate(folders) if folder in classes), len(folders))
    return any(words.is_role(folder) and not words.holds_images(folder) for folder in folders[first + 1 :])


def _words(line: str) -> list[str]:
    """Return the parts of a line that may be a name or label: between spaces and quotes, and between delimiters."""
    return [*_WORD.findall(line), *(cell.strip() for cell in _CELL.findall(line))]


def _parts(cells: list[str]) -> set[str]:
    """Return the folders and base names in some words."""
    return {part for cell in cells for part in cell.replace("\\", "/").split("/")}


def _states(text: str, class_of: dict[str, str], enough: int) -> str:
    """Return whether a text states the "same" classes of samples, given by bare name, or something "else"; "" if it
    does not name `enough`."""
    named: set[str] = set()
    agreeing = 0
    # By class, what the lines say beside the name.
    beside: dict[str, set[str]] = defaultdict(set)
    for line in text.splitlines():
        cells = _words(line)
        parts = _parts(cells)
        # A line of names, classes and no more agrees; boxes below a path with the class in it are something else.
        agrees = cells if sum(_NUMBER.fullmatch(word) is not None for word in cells) >= 4 else parts
        for part in parts & class_of.keys():
            if posixpath.splitext(part)[1] or _TELLING.fullmatch(part):
                named.add(part)
                agreeing += class_of[part] in agrees
                beside[class_of[part]].add(" ".join(word for word in line.split() if part not in _parts([word])))
    if len(named) < enough:
        return ""
    # A name and one word, the same for all of a class and for no other, is the class by another name.
    is_renamed = 1 < len(beside) == sum(map(len, beside.values())) == len(set().union(*beside.values()))
    return "same" if is_renamed or agreeing >= _AGREEING * len(named) else "else"

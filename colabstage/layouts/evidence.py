"""What speaks against a guess: labels come from the best evidence, and competing evidence is an error that names both.

Whoever names a layout is believed. Where nobody does, folders of classes are what is left when nothing else can be
meant, and a table counts where no masks do. Lists of the files of each split beside such folders, as Food-101 has them
(meta/train.txt, meta/test.txt), are evidence too, and say the splits.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.array_folders import read_array_folder
from colabstage.layouts.audio import read_audio
from colabstage.layouts.class_folders import read_image_folder
from colabstage.layouts.csv_table import read_table
from colabstage.layouts.names import is_role_folder, listed, same_split, split_name
from colabstage.layouts.pairs import read_pairs
from colabstage.layouts.reading import read_files, read_head
from colabstage.layouts.table import BrokenDatasetError, NearMissError, TreeFiles, Values
from colabstage.layouts.tfrecord import named_records, read_tfrecord
from colabstage.trees.entries import files_ending_in, take_strings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from colabstage.layouts.table import SampleTable
    from colabstage.trees.tree import FileEntry, Tree

_EXTENSIONS = (".txt", ".lst")
# Of what a list names so much has to be there for it to be a list of these samples.
_THERE = 0.5
_MOST_LISTS = 16
# What people write beside the split in the name of a list.
_BESIDE_LISTS = frozenset({"list", "files"})


class _SplitList(NamedTuple):
    """A list that names samples."""

    file: str
    """The list's name in the tree."""
    split: str
    """The split that it lists."""
    samples: list[int]
    """Numbers of the samples that it names."""
    missing: int
    """How many it names that are not there."""


class ListedSplits(NamedTuple):
    """Samples with the splits that lists give them."""

    table: SampleTable
    """The samples."""
    lists: frozenset[str] = frozenset()
    """Names of the lists that were read."""


def read_listed_splits(tree: Tree, found: SampleTable) -> ListedSplits:
    """Read the splits of samples in folders of classes from lists called after splits, where there are such.

    A list has one path in each line, with or without its extension, from whichever folder on. Lists count when there
    is one for each of several splits, or of what is held out alone, when the rest is to train on; several of one split
    are folds, of which nobody can say which is meant. Where folders say the splits, lists only have to agree.

    Args:
        tree: the dataset's files.
        found: the samples; a file each.

    Raises:
        BrokenDatasetError: a list names a file in another class, split or several at once; or two lists name one file.
    """
    candidates = [entry for entry in files_ending_in(tree.entries, _EXTENSIONS) if _split_of(entry.name)]
    if not candidates or len(candidates) > _MOST_LISTS or not isinstance(found.inputs.source, TreeFiles):
        return ListedSplits(found)
    texts = read_files(tree, candidates, lambda _, content: content.decode("utf-8-sig", "replace").replace("\\", "/"))
    lines = [
        [line.strip().removeprefix("./").lstrip("/") for line in text.splitlines() if line.strip()] for text in texts
    ]
    wanted = {posixpath.basename(line) for one in lines for line in one}
    places: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(found.keys):
        base = posixpath.basename(key)
        for word in {base, posixpath.splitext(base)[0]} & wanted:
            places[word].append(number)
    lists = [_read_list(entry.name, one, found, places) for entry, one in zip(candidates, lines, strict=True)]
    used = [one for one in lists if one is not None]
    splits = [one.split for one in used]
    if found.splits is not None or len(set(splits)) < len(splits) or not set(splits) - {"train"}:
        return ListedSplits(found)
    return ListedSplits(_apply(tree, found, used), frozenset(one.file for one in used))


def _split_of(name: str) -> str:
    """Return the split that a file is a list of by its name alone: train.txt, TestImages.txt, validation_list.txt; ""
    for train_test_split.txt."""
    read = split_name(posixpath.splitext(posixpath.basename(name))[0])
    return read.split if set(read.rest) <= _BESIDE_LISTS else ""


def _read_list(name: str, lines: list[str], found: SampleTable, places: dict[str, list[int]]) -> _SplitList | None:
    """Return the samples that a list names; `None` where it is no list of these samples' paths."""
    named = [places.get(posixpath.basename(line), []) for line in lines]
    # A list of mostly other files is one of another dataset, or of classes.
    if not any(named) or sum(map(bool, named)) < _THERE * len(lines):
        return None
    split = _split_of(name)
    samples = []
    for line, numbers in zip(lines, named, strict=True):
        there = [number for number in numbers if _is_path_of(line, found.keys[number])]
        if numbers and not there:
            _refuse(name, f"names '{line}', which lies in another folder: '{found.keys[numbers[0]]}'", found.layout)
        if found.splits is not None and there:
            own = [number for number in there if same_split(found.splits[number], split)]
            if not own:
                _refuse(
                    name,
                    f"names '{found.keys[there[0]]}', which lies in the split '{found.splits[there[0]]}'",
                    found.layout,
                )
            there = own
        if len(there) > 1:
            _refuse(
                name, f"names '{line}', which is '{found.keys[there[0]]}' or '{found.keys[there[1]]}'", found.layout
            )
        samples += there
    return _SplitList(name, split, samples, len(lines) - len(samples))


def _is_path_of(line: str, key: str) -> bool:
    """Tell whether a line is a path to a file, from its own folder or from one above or below the tree's."""
    keys = (key, posixpath.splitext(key)[0])
    return any(f"/{one}".endswith(f"/{line}") or f"/{line}".endswith(f"/{one}") for one in keys)


def _apply(tree: Tree, found: SampleTable, lists: list[_SplitList]) -> SampleTable:
    number_of = {one.split: number for number, one in enumerate(lists)}
    # One number for each sample: which list names it.
    of = np.full(len(found), -1)
    for number, one in enumerate(lists):
        # A file in two lists would be trained and tested on.
        for sample in one.samples:
            if of[sample] not in (-1, number):
                _refuse(one.file, f"names '{found.keys[sample]}', and so does '{lists[of[sample]].file}'", found.layout)
            of[sample] = number
    files = " and ".join(f"'{one.file}'" for one in lists)
    notes = [f"Splits are those of {files}."]
    notes += [f"{one.missing:,} names in '{one.file}' are of no file here." for one in lists if one.missing]
    rest = np.flatnonzero(of < 0)
    names = [one.split for one in lists]
    if len(rest) and "train" not in number_of:
        notes.append(f"{len(rest):,} {found.unit} that no list names are the split 'train'.")
        names.append("train")
        of[rest] = len(lists)
    elif len(rest):
        notes.append(f"{len(rest):,} {found.unit} that no list names were left out.")
    chosen = np.flatnonzero(of >= 0)
    source, targets = found.inputs.source, found.targets
    if not isinstance(source, TreeFiles) or not isinstance(targets, Values):
        msg = f"Samples of the layout {found.layout} are not a file and a class each."
        raise TypeError(msg)
    return replace(
        found,
        keys=take_strings(found.keys, chosen),
        inputs=replace(found.inputs, source=TreeFiles(tree, source.entries.take(chosen))),
        targets=Values(targets.values[chosen]),
        splits=tuple(names[number] for number in of[chosen].tolist()),
        notes=(*found.notes, *notes),
    )


def _refuse(name: str, what: str, layout: str) -> NoReturn:
    msg = f"The list '{name}' {what}. Correct the list, or have none read: layout='{layout}' takes folders alone."
    raise BrokenDatasetError(msg)


_ANNOTATIONS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".txt", ".lst", ".parquet", ".mat", ".yaml")
_TEXTS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".txt", ".lst", ".yaml")
_NO_ANNOTATIONS = ("readme", "license", "licence", "requirements", "changelog")
# Enough to see what a file is about, and few enough for a mount that takes its time.
_HEAD_BYTES = 64 * 1024
_HEADS = 16
# So many images have to be named: a text may mention one in passing.
_NAMED = 3
_AGREEING = 0.9
_WORD = re.compile(r"[^\s,;|\"'<>\[\]{}()=:]+")
_CELL = re.compile(r"[^,;\t|\"<>]+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# A bare stem tells an image from a word or a count: letters and digits, or many digits.
_TELLING = re.compile(r"(?=.*\d)(?=.*\D).{3,}|\d{5,}")


def guess_table(tree: Tree, _is_more: bool) -> SampleTable:
    """Read the table of a tree, unless its images have masks as well.

    Raises:
        LayoutError: no table leads to images, or one that cannot be read as labels stands beside masks.
        BrokenDatasetError: a table leads to images and cannot be used, or there are masks too; both are named.
    """
    try:
        found = read_table(tree)
    except BrokenDatasetError as error:
        if _has_masks(tree):
            msg = f"The images of '{tree.label}' have masks, and the table beside them no labels: {error}"
            raise LayoutError(msg) from error
        msg = f'{error} layout="image_folder" takes folders as classes, and leaves tables out.'
        raise BrokenDatasetError(msg) from error
    if _has_masks(tree):
        msg = (
            f"The images of '{tree.label}' have labels in a table and masks beside them. Say which are meant: "
            'layout="table" or layout="pairs".'
        )
        raise BrokenDatasetError(msg)
    return found


def guess_tfrecord(tree: Tree, _is_more: bool) -> SampleTable:
    """Read TFRecord files, unless a table leads to image files beside them.

    Raises:
        EmptySourceError, LayoutError: as `read_tfrecord`.
        BrokenDatasetError: as `read_tfrecord`; or there is such a table, and both are named.
    """
    records = named_records(tree)
    if not records or not _leads_to_images(tree):
        return read_tfrecord(tree)
    msg = (
        f"'{tree.label}' holds {len(records):,} TFRecord files ('{records[0].name}', …) and a table that leads to "
        'image files, perhaps the same samples twice. Say which are meant: layout="table" takes the image files, '
        'layout="tfrecord" the records.'
    )
    raise BrokenDatasetError(msg)


def _leads_to_images(tree: Tree) -> bool:
    """Tell whether a table leads to image files, however well it can be read."""
    try:
        read_table(tree)
    except BrokenDatasetError:
        return True
    except LayoutError:
        return False
    return True


def _has_masks(tree: Tree) -> bool:
    try:
        read_pairs(tree)
    except BrokenDatasetError:
        return True
    except LayoutError:
        return False
    return True


def guess_image_folder(tree: Tree, is_more: bool) -> SampleTable:
    """Read images in folders of classes, where nothing else in the tree could be meant.

    Args:
        tree: the dataset's files.
        is_more: whether the samples are more of a dataset that is there, so that one class is as good as any.

    Raises:
        EmptySourceError, BrokenDatasetError: as `read_image_folder`.
        NearMissError: something else could; the message says what, and what to write.
    """
    try:
        found = read_image_folder(tree)
    except (EmptySourceError, BrokenDatasetError):
        raise
    except LayoutError as error:
        raise NearMissError(str(error)) from error
    return _undoubted(tree, found, is_more=is_more)


def guess_audio(tree: Tree, is_more: bool) -> SampleTable:
    """Read clips of sound; those in folders of classes as `guess_image_folder` does with images.

    Raises:
        EmptySourceError, LayoutError, BrokenDatasetError, MissingDependencyError: as `read_audio`.
        NearMissError: as `guess_image_folder`.
    """
    found = read_audio(tree)
    by_folder = bool(found.classes) and all(label in name.split("/")[:-1] for name, label in _class_of(found))
    return _undoubted(tree, found, is_more=is_more) if by_folder else found


def guess_array_folder(tree: Tree, is_more: bool) -> SampleTable:
    """Read arrays in folders of classes, as `guess_image_folder` does with images.

    Raises:
        EmptySourceError, LayoutError: as `read_array_folder`.
        NearMissError: as `guess_image_folder`.
    """
    return _undoubted(tree, read_array_folder(tree), is_more=is_more)


def _undoubted(tree: Tree, found: SampleTable, *, is_more: bool) -> SampleTable:
    """Return the table of folders of classes, with splits where lists say them, or a note on lists that are not read.

    Raises:
        BrokenDatasetError: lists of splits contradict the folders, or each other.
        NearMissError: a person would not take the folders for classes.
    """
    return _ClassFolders(tree, found, is_more).undoubted()


class _ClassFolders:
    """What speaks for and against taking the folders of a tree for classes."""

    def __init__(self, tree: Tree, found: SampleTable, is_more: bool) -> None:
        self.tree = tree
        self.found = found
        self.is_more = is_more

    def undoubted(self) -> SampleTable:
        """Return the table, unless a person would not take the folders for classes."""
        below: dict[str, set[str]] = {name: set() for name in self.found.classes}
        for folder, name in {(image.rpartition("/")[0], name) for image, name in _class_of(self.found)}:
            parts = folder.split("/")
            rest = parts[parts.index(name) + 1 :] if name in parts else []
            # An image in the class's own folder says that what lies below is no class.
            below[name].add(rest[0] if rest else "")
        reason = (
            ("" if self.is_more else self._one_class())
            or self._roles()
            or _variants(below)
            or _wrapper(below)
            or self._strange_split()
        )
        # Lists are read only where the folders stand: they take a read each.
        listed_splits = ListedSplits(self.found) if reason else read_listed_splits(self.tree, self.found)
        named = _Named() if reason else self._named_elsewhere(read=listed_splits.lists)
        reason = reason or named.reason
        if reason:
            classes = listed(list(self.found.classes))
            msg = (
                f"The {self.found.unit} of '{self.tree.label}' lie in folders as those of classes do ({classes}), "
                f"but {reason} "
                f'layout="{self.found.layout}" takes the folders as classes all the same.'
            )
            raise NearMissError(msg)
        if named.lists and listed_splits.table.splits is None:
            lists = listed(named.lists)
            note = (
                f"{lists} list {self.found.unit} of splits, and are not read: all are of one split, or as splits= says."
            )
            return replace(self.found, notes=(*self.found.notes, note))
        return listed_splits.table

    def _roles(self) -> str:
        """Find the folders called after splits, or after what they hold of each sample, unless one stands among real
        classes."""
        roles = [name for name in self.found.classes if is_role_folder(name)]
        splits = [name for name in self.found.classes if split_name(name).split]
        rests = [split_name(name) for name in splits]
        # "train" among ships and cars is a vehicle, "test tube" beside "beaker" a thing.
        odd = {*roles, *(name for name, read in zip(splits, rests, strict=True) if not read.rest or len(splits) > 1)}
        if not odd or (len(odd) == 1 and len(self.found.classes) > 2):
            return ""
        return (
            f"{listed(sorted(odd))} are what parts of a dataset are called, and no layout that is known here fits "
            "them. "
            "Stage the part that has the classes, give a function as layout= that says what is what (see 'A "
            "layout of your "
            "own' in the documentation), or have the class read from the files' names: layout=file_names(PATTERN)."
        )

    def _one_class(self) -> str:
        if len(self.found.classes) > 1:
            return ""
        return (
            "that is one class, and there is nothing to learn from one. Expected a folder for each class, a table of "
            "labels beside the images, or their class in the files' names: layout=file_names(PATTERN)."
        )

    def _strange_split(self) -> str:
        """Return a split that has no class in common with what is trained on."""
        if self.found.splits is None:
            return ""
        classes: dict[str, set[str]] = {}
        for split, label in set(zip(self.found.splits, _labels(self.found), strict=True)):
            classes.setdefault(split, set()).add(self.found.classes[label])
        # What is tested has to be learnt first: no class in common means that folders are something else.
        known = classes.get("train")
        for split, names in classes.items():
            if known and not names & known:
                return (
                    f"the split '{split}' ({listed(sorted(names))}) has no class in common with 'train' "
                    f"({listed(sorted(known))}). Name its folders as those of 'train', or move it away."
                )
        return ""

    def _named_elsewhere(self, *, read: frozenset[str]) -> _Named:
        """Look for files that say something else of the samples than their folders do. `read`: those that are read."""
        others = files_ending_in(self.tree.entries, _ANNOTATIONS).where(lambda name: name not in read)
        if not others:
            return _Named()
        by_stem = {posixpath.splitext(posixpath.basename(name))[0]: name for name in others.names}
        classes = set(self.found.classes)
        texts = sorted(
            (entry for entry in others.ending_in(_TEXTS) if _may_speak_of_many(entry, classes)),
            key=lambda entry: (entry.name.count("/"), entry.name),
        )
        # The beginning of each tells; some lists have a line for each of a million files.
        heads = {
            entry.name: read_head(self.tree, entry, _HEAD_BYTES).decode("utf-8", "replace") for entry in texts[:_HEADS]
        }
        words = {part for head in heads.values() for line in head.splitlines() for part in _parts(_words(line))}
        class_of: dict[str, str] = {}
        own: list[str] = []
        for name, label in _class_of(self.found):
            base = posixpath.basename(name)
            stem = posixpath.splitext(base)[0]
            class_of |= {word: label for word in (base, stem) if word in words}
            # The same folders of classes with XML in them say the same; what lies beside an image says more of it.
            beside = stem in by_stem and posixpath.dirname(by_stem[stem]) == posixpath.dirname(name)
            if beside or (stem in by_stem and label not in by_stem[stem].split("/")):
                own.append(by_stem[stem])
        # A few files beside images are notes; one for most images is annotation.
        if 2 * len(own) > len(self.found):
            return _Named(_says_more(own[0], f"{len(own):,} files such as this"))
        enough = min(_NAMED, len(self.found))
        competes = {name: _competes(head, class_of, enough) for name, head in heads.items()}
        competing = next((name for name, does in competes.items() if does), None)
        if competing is not None:
            return _Named(_says_more(competing, "this file"))
        agreeing = [name for name, does in competes.items() if does is False]
        return _Named(
            lists=[name for name in agreeing if split_name(posixpath.splitext(posixpath.basename(name))[0]).split]
        )


def _labels(found: SampleTable) -> list[int]:
    targets = found.targets
    return targets.values.tolist() if isinstance(targets, Values) else []


def _class_of(found: SampleTable) -> Iterable[tuple[str, str]]:
    """Return the name of each image and of its class."""
    return ((name, found.classes[label]) for name, label in zip(found.keys, _labels(found), strict=True))


def _variants(below: dict[str, set[str]]) -> str:
    """Return the same folders below each: variants of one dataset, or parts of each sample."""
    common = set.intersection(*below.values())
    if len(below) < 2 or len(common) < 2 or "" in common:
        return ""
    first, *_ = below
    return (
        f"each holds the folders {listed(sorted(common))}, which may be the classes as well. Stage one of the outer "
        f"folders, such as '{first}'."
    )


def _wrapper(below: dict[str, set[str]]) -> str:
    """Return a folder that holds the classes once more."""
    for name, inner in below.items():
        again = (inner & below.keys()) - {name}
        if len(again) > 1:
            return (
                f"'{name}' holds the folders {listed(sorted(again))}, which are classes beside it as well. Move it "
                f"away, or stage it alone."
            )
    return ""


class _Named(NamedTuple):
    """What files beside the samples say of them."""

    reason: str = ""
    """Why that speaks against folders as classes, "" where it does not."""
    lists: list[str] = []  # noqa: RUF012  # never changed
    """Lists of splits that agree with them."""


def _may_speak_of_many(entry: FileEntry, classes: set[str]) -> bool:
    """Tell whether a file may be a list of images of several classes, by its name and place."""
    *folders, base = entry.name.split("/")
    return classes.isdisjoint(folders) and not base.lower().startswith(_NO_ANNOTATIONS)


def _says_more(name: str, what: str) -> str:
    return (
        f"'{name}' names them too, in a form that is not read here, and may hold their labels: {what} would be left "
        "out. Write a table with a path and a label in each row beside the images, or give a function as layout=."
    )


def _words(line: str) -> list[str]:
    """Return what of a line may be a name or a label: what stands between blanks and quotes, and between delimiters."""
    return [*_WORD.findall(line), *(cell.strip() for cell in _CELL.findall(line))]


def _parts(words: list[str]) -> set[str]:
    """Return the folders and bare names in some words."""
    return {part for word in words for part in word.replace("\\", "/").split("/")}


def _competes(text: str, class_of: dict[str, str], enough: int) -> bool | None:
    """Tell whether a text says something else of samples than the class that their folders say; `None`: it names too
    few.

    Args:
        text: the beginning of a file.
        class_of: the class of images by bare name, with and without the extension.
        enough: how many it has to name.
    """
    named: set[str] = set()
    in_path, in_words, numbers = 0, 0, 0
    for line in text.splitlines():
        words = _words(line)
        parts = _parts(words)
        for part in parts & class_of.keys():
            if posixpath.splitext(part)[1] or _TELLING.fullmatch(part):
                named.add(part)
                in_words += class_of[part] in words
                in_path += class_of[part] in parts
        numbers += sum(_NUMBER.fullmatch(word) is not None for word in words) >= 4
    if len(named) < enough:
        return None
    # A line of names, classes and no more agrees; boxes below a path with the class in it are something else.
    return in_path < _AGREEING * len(named) or (numbers > 0 and in_words < _AGREEING * len(named))

"""Weigh the evidence against a guess: labels come from the best evidence, and a contradiction is an error that names
both.

If the caller names a layout, that is used. Otherwise folders count as classes only if nothing else can be meant, and a
table counts only if there are no masks. Lists of the files of each split beside such folders are evidence too, and
define the splits.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.io.units import left_out, listed
from colabstage.layouts.audio import SOUND_EXTENSIONS, read_audio
from colabstage.layouts.class_folders import read_array_folder, read_image_folder
from colabstage.layouts.columns import is_table
from colabstage.layouts.csv_table import read_table, tables_that_agree
from colabstage.layouts.detection import read_detection
from colabstage.layouts.image_files import read_pairs
from colabstage.layouts.names import (
    ANNOTATION_EXTENSIONS,
    IMAGE_EXTENSIONS,
    ListedSplits,
    folder_of,
    is_note,
    is_part_folder,
    is_role_folder,
    is_split_folder,
    read_listed_splits,
    shared_folders,
    split_name,
    stem_of,
)
from colabstage.layouts.reading import decode_text, read_files, read_head
from colabstage.layouts.table import BrokenDatasetError, Masks, NearMissError, TreeFiles, Values
from colabstage.layouts.tfrecord import named_records, read_tfrecord
from colabstage.trees.listing import FileEntries, PartOfTree, folders_of, only_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from colabstage.layouts.table import SampleTable
    from colabstage.trees.listing import Tree

_TEXTS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".txt", ".lst", ".yaml")
# Enough to recognise a file's content, and little enough for a slow mount.
_HEAD_BYTES = 64 * 1024
_HEADS = 16
# At least this many images must be named, because a text may mention one in passing.
_NAMED = 3
_INNERMOST = "layout=file_names(r'([^/]+)/[^/]+$'), from colabstage.options"
_AGREEING = 0.9
# Number of duplicated images that are read to make sure that they are the same.
_COMPARED = 8
_WORD = re.compile(r"[^\s,;|\"'<>\[\]{}()=:]+")
_CELL = re.compile(r"[^,;\t|\"<>]+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# A stem counts as that of an image, not as a word or a number, if it has letters and digits, or many digits.
_TELLING = re.compile(r"(?=.*\d)(?=.*\D).{3,}|\d{5,}")


def check_spellings(found: SampleTable) -> None:
    """Refuse classes that are one word in two spellings, which are one class for people and two for a program.

    Raises:
        BrokenDatasetError: two classes differ only in case, spaces, underscores, Unicode form or leading zeros.
    """
    seen: dict[str, str] = {}
    for name in found.classes:
        other = seen.setdefault(_spoken(name), name)
        if other != name:
            form = " (the same letters in two forms of Unicode)" if _composed(other) == _composed(name) else ""
            msg = (
                f"Two classes of the {found.unit} are called '{other}' and '{name}'{form}, which look like one class "
                f'spelled in two ways. Spell it in one way; layout="{found.layout}" takes them as two.'
            )
            raise BrokenDatasetError(msg)


def check_split_names(found: SampleTable) -> None:
    """Refuse splits that are one part of the dataset under two names: folders, cells of a column, names of files.

    Raises:
        BrokenDatasetError: two of val, valid and validation are there.
    """
    # dev beside one of them may be intended, because some corpora have both.
    several = sorted({"val", "valid", "validation"} & set(found.splits or ()))
    if len(several) > 1:
        msg = (
            f"The {found.unit} are in the splits {listed(several)}, which look like one split with two names. Use "
            f'one name; layout="{found.layout}" takes them as {len(several)} splits.'
        )
        raise BrokenDatasetError(msg)


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _spoken(name: str) -> str:
    """Return a class's name in a normalised spelling."""
    composed = " ".join(_composed(name).replace("_", " ").split())
    # Single letters are kept: "a" and "A" are two classes.
    if len(composed) == 1:
        return composed
    return composed.lstrip("0") or "0" if composed.isascii() and composed.isdecimal() else composed.casefold()


def guess_table(tree: Tree, is_more: bool) -> SampleTable:
    """Read the table of a tree, or folders of classes that agree with one of its columns.

    Raises:
        LayoutError: no table leads to images, or one that cannot be read as labels is beside masks.
        BrokenDatasetError: a table leads to images and cannot be used, or there are masks too; both are named.
    """
    try:
        found = read_table(tree)
    except BrokenDatasetError as error:
        if _is_claimed(tree, read_pairs):
            msg = f"The images of '{tree.label}' have masks, and the table beside them no labels: {error}"
            raise LayoutError(msg) from error
        by_folder = _folders_that_agree(tree, is_more)
        if by_folder is not None:
            return by_folder
        # Nothing is gained by the advice where all images are in one folder.
        if len(tree.entries.ending_in(IMAGE_EXTENSIONS).folders[0]) < 2:
            raise
        msg = f'{error} layout="image_folder" takes folders as classes, and leaves tables out.'
        raise BrokenDatasetError(msg) from error
    if _is_claimed(tree, read_pairs):
        msg = (
            f"The images of '{tree.label}' have labels in a table and masks beside them. Say which are meant: "
            'layout="table" or layout="pairs".'
        )
        raise BrokenDatasetError(msg)
    folders = _classes_beside_numbers(tree, found)
    if folders:
        msg = (
            f"The table beside the images of '{tree.label}' has numbers, and their folders look like classes "
            f'({listed(folders)}). Say which are meant: layout="table" or layout="image_folder".'
        )
        raise BrokenDatasetError(msg)
    odd = _contradicted(found)
    if odd is not None:
        msg = (
            f"The table beside the images says '{odd[1]}' for '{odd[0]}', but its folder is named like "
            'another label. Say which is right: layout="table" or layout="image_folder".'
        )
        raise BrokenDatasetError(msg)
    return found


def _classes_beside_numbers(tree: Tree, found: SampleTable) -> tuple[str, ...]:
    """Return the classes that folders say where a table says numbers; nothing where only one of the two is there."""
    if found.classes or not isinstance(found.targets, Values):
        return ()
    try:
        folders = read_image_folder(tree)
    except LayoutError:
        return ()
    # As of patients, visits and parts: numbers, or a folder for nearly every image.
    names = folders.classes
    numbered = any(re.search(r"\d", name) for name in names)
    parts = any(is_role_folder(name) or is_split_folder(name) or is_part_folder(name) for name in names)
    return () if numbered or parts or len(names) < 2 or 2 * len(names) > len(folders) else names


def _contradicted(found: SampleTable) -> tuple[str, str] | None:
    """Return a file and its label, if its folder has the name of another label."""
    if not found.classes or not isinstance(found.targets, Values) or found.targets.values.ndim != 1:
        return None
    classes = set(found.classes)
    # Patients and parts also have numbers as names, so numbers do not contradict a label.
    classes -= {name for name in classes if _NUMBER.fullmatch(name)}
    return next(
        (
            (name, label)
            for name, label in _class_of(found)
            if (folder := folder_of(name)) in classes and folder != label
        ),
        None,
    )


def guess_tfrecord(tree: Tree, _is_more: bool) -> SampleTable:
    """Read TFRecord files, unless a table leads to image files beside them.

    Raises:
        EmptySourceError, LayoutError: as `read_tfrecord`.
        BrokenDatasetError: as `read_tfrecord`; or there is such a table, and both are named.
    """
    records = named_records(tree)
    if not records or not _is_claimed(tree, read_table):
        return read_tfrecord(tree)
    msg = (
        f"'{tree.label}' holds {len(records):,} TFRecord files ('{records[0].name}', …) and a table that leads to "
        'image files, perhaps the same samples twice. Say which are meant: layout="table" takes the image files, '
        'layout="tfrecord" the records.'
    )
    raise BrokenDatasetError(msg)


def _is_claimed(tree: Tree, read: Callable[[Tree], SampleTable]) -> bool:
    """Tell whether a tree has the layout of `read`, even if it cannot be used."""
    try:
        read(tree)
    except BrokenDatasetError:
        return True
    except LayoutError:
        return False
    return True


def _folders_that_agree(tree: Tree, is_more: bool) -> SampleTable | None:
    """Return the folders of classes of a tree if all its tables agree with them, otherwise `None`."""
    try:
        found = guess_image_folder(tree, is_more)
    except LayoutError:
        return None
    if not tables_that_agree(tree, dict(_class_of(found))):
        return None
    note = "Tables beside the folders have a column that says the same classes; their other columns were left out."
    return replace(found, notes=(*found.notes, note))


def guess_detection(tree: Tree, _is_more: bool) -> SampleTable:
    """Read images with boxes, unless most of them have masks as well.

    Raises:
        EmptySourceError, LayoutError, BrokenDatasetError: as `read_detection`; or there are masks, and both are named.
    """
    found = read_detection(tree)
    # Pascal VOC also has masks, but people who stage it want the boxes.
    own = any("SegmentationClass/" in entry.name for entry in tree.entries.ending_in((".png",)))
    if not own and _is_claimed(tree, read_pairs):
        msg = (
            f"The images of '{tree.label}' have boxes in files of annotations and masks beside them. Say which are "
            'meant: layout="detection" or layout="pairs"; where the class is in the files\' names, '
            "layout=file_names(PATTERN), from colabstage.options."
        )
        raise BrokenDatasetError(msg)
    return found


def guess_pairs(tree: Tree, _is_more: bool) -> SampleTable:
    """Read images with masks, unless they are in folders of classes with the masks; lists say the splits.

    Raises:
        EmptySourceError, LayoutError: as `read_pairs`.
        BrokenDatasetError: as `read_pairs`; or the folders may be classes, and both are named.
    """
    found = read_pairs(tree)
    depth = len(shared_folders(found.keys))
    tops: dict[str, int] = {}
    for name in found.keys:
        folder = "".join(name.split("/")[:-1][depth : depth + 1])
        tops[folder] = tops.get(folder, 0) + 1
    masks = found.targets.source if isinstance(found.targets, Masks) else None
    beside = isinstance(masks, TreeFiles) and tops.keys() == {
        "".join(name.split("/")[:-1][depth : depth + 1]) for name in masks.entries.names
    }
    # Cityscapes has its cities below the folders of images and masks; a folder for each image is not a class.
    named = [name for name in tops if name and not is_split_folder(name) and not is_role_folder(name)]
    if beside and len(named) == len(tops) > 1 and 2 * len(tops) <= len(found):
        msg = (
            f"The images of '{tree.label}' have masks, and share folders with them that look like classes "
            f'({listed(sorted(tops))}). Say which are meant: layout="pairs" takes the masks; '
            f"layout=file_names(r'{re.escape(min(tops))}|…'), from colabstage.options, the classes."
        )
        raise BrokenDatasetError(msg)
    return found if found.splits is not None else read_listed_splits(tree, found).table


def guess_image_folder(tree: Tree, is_more: bool) -> SampleTable:
    """Read images in class folders, if nothing else in the tree can be meant.

    Args:
        tree: the dataset's files.
        is_more: whether the samples are added to an existing dataset, so that a single class is fine.

    Raises:
        EmptySourceError, BrokenDatasetError: as `read_image_folder`.
        NearMissError: something else can be meant; the message says what, and what to write.
    """
    copy = _second_copy(tree)
    seen = PartOfTree(tree, FileEntries.of(tree.entries).where(lambda name: name not in copy)) if copy else tree
    try:
        found = read_image_folder(seen)
    except (EmptySourceError, BrokenDatasetError):
        raise
    except LayoutError as error:
        raise NearMissError(str(error)) from error
    if copy and isinstance(found.inputs.source, TreeFiles):
        # Packing reads from the whole tree, which may be an arriving archive.
        inputs = replace(found.inputs, source=TreeFiles(tree, found.inputs.source.entries))
        note = f"{left_out(len(copy), 'images')}: copies of the others (first '{min(copy)}')."
        found = replace(found, inputs=inputs, notes=(*found.notes, note))
    sounds = tree.entries.ending_in(SOUND_EXTENSIONS)
    if 2 * len(sounds) > len(found):
        msg = (
            f"'{tree.label}' holds {len(found):,} images in folders of classes and {len(sounds):,} clips of sound "
            f'(first \'{sounds[0].name}\'). Say which are meant: layout="image_folder" or layout="audio".'
        )
        raise BrokenDatasetError(msg)
    return _FolderEvidence(seen, found, is_more).undoubted()


def _second_copy(tree: Tree) -> frozenset[str]:
    """Return the images in a folder with a second copy of every image of the tree."""
    # Archives on Kaggle have such folders: cell_images/cell_images beside the folders of cell_images. Otherwise the
    # same images would be in two splits. Compared are names, sizes, and the content of a few.
    files = tree.entries.ending_in(IMAGE_EXTENSIONS)
    if not files:
        return frozenset()
    folders, of_files = files.folders
    top = "".join(f"{folder}/" for folder in shared_folders(f"{folder}/" for folder in folders))
    depths = np.array([folder.count("/") + bool(folder) for folder in folders])[of_files]
    deepest = files.names[int(np.argmax(depths))].removeprefix(top).split("/")
    # The original of the deepest image has the same path without the copy's folders.
    originals = {f"{top}{'/'.join(deepest[start:])}": start for start in range(1, len(deepest) - 1)}
    if not originals:
        return frozenset()
    starts = [originals[name] for name in files.names if name in originals]
    if not starts:
        return frozenset()
    folder = f"{top}{'/'.join(deepest[: min(starts)])}/"
    entries = {entry.name: entry for entry in files}
    pairs = [
        (entry, entries[original])
        for entry in files
        if entry.name.startswith(folder)
        and (original := top + entry.name.removeprefix(folder)) in entries
        and entries[original].size == entry.size
    ]
    if 2 * len(pairs) != len(files):
        return frozenset()
    step = 1 + len(pairs) // _COMPARED
    ones, others = (
        [*read_files(tree, side, lambda _, data: data).values()] for side in zip(*pairs[::step], strict=True)
    )
    return frozenset(entry.name for entry, _ in pairs) if ones == others else frozenset()


def guess_audio(tree: Tree, is_more: bool) -> SampleTable:
    """Read audio clips; class folders are handled as in `guess_image_folder`.

    Raises:
        EmptySourceError, LayoutError, BrokenDatasetError, MissingDependencyError: as `read_audio`.
        NearMissError: as `guess_image_folder`.
    """
    found = read_audio(tree)
    by_folder = bool(found.classes) and all(label in name.split("/")[:-1] for name, label in _class_of(found))
    return _FolderEvidence(tree, found, is_more).undoubted() if by_folder else found


def guess_array_folder(tree: Tree, is_more: bool) -> SampleTable:
    """Read arrays in class folders, as `guess_image_folder` does for images.

    Raises:
        EmptySourceError, LayoutError: as `read_array_folder`.
        NearMissError: as `guess_image_folder`.
    """
    return _FolderEvidence(tree, read_array_folder(tree), is_more).undoubted()


class _FolderEvidence:
    """The evidence for and against taking the folders of a tree as classes."""

    def __init__(self, tree: Tree, found: SampleTable, is_more: bool) -> None:
        self.tree = tree
        self.found = found
        self.is_more = is_more
        source = found.inputs.source
        # Samples nearly always have the names of their files, whose folders are known.
        if isinstance(source, TreeFiles) and source.entries.names is found.keys:
            self.folders, self.folder_of = source.entries.folders
        else:
            self.folders, self.folder_of = folders_of(found.keys)

    def undoubted(self) -> SampleTable:
        """Return the table with the splits from lists, or with a note on lists that are not read.

        Raises:
            BrokenDatasetError: lists of splits contradict the folders, or each other.
            NearMissError: the folders are probably not classes.
        """
        below = self._folders_below()
        reason = (
            ("" if self.is_more else self._one_class())
            or self._roles()
            or self._parts_below()
            or self._variants(below)
            or self._wrapper(below)
            or _deeper(below)
            or self._strange_split()
        )
        # Lists are read only if the folders may be classes, because each costs a read.
        listed_splits = ListedSplits(self.found) if reason else read_listed_splits(self.tree, self.found)
        unread: list[str] = []
        if not reason:
            reason, unread = self._named_elsewhere(read=listed_splits.lists)
        if reason:
            classes = listed(list(self.found.classes))
            msg = (
                f"The {self.found.unit} of '{self.tree.label}' are in folders that look like classes ({classes}), "
                f"but {reason} "
                f'layout="{self.found.layout}" takes the folders as classes anyway.'
            )
            raise NearMissError(msg)
        if unread and listed_splits.table.splits is None:
            note = (
                f"{listed(unread)} list {self.found.unit} of splits, and are not read: all are of one split, or as "
                "splits= says."
            )
            return replace(self.found, notes=(*self.found.notes, note))
        return listed_splits.table

    def _folders_below(self) -> dict[str, set[str]]:
        """Return for each class the folders in it that contain images; "" where some are directly in it."""
        targets, classes = self.found.targets, self.found.classes
        labels = targets.values if isinstance(targets, Values) else np.zeros(0, np.int64)
        # As single numbers, because sorting a million pairs takes ten times as long and twice the memory.
        pairs = np.unique(self.folder_of.astype(np.int64) * len(classes) + labels)
        folders = [(self.folders[pair // len(classes)], classes[pair % len(classes)]) for pair in pairs.tolist()]
        # A folder above all of them may have a class's name: cell_images/cell_images.
        depth = len(shared_folders(f"{folder}/" for folder, _ in folders)) if len(self.found.classes) > 1 else 0
        rests: dict[str, set[tuple[str, ...]]] = {name: set() for name in self.found.classes}
        for folder, name in folders:
            parts = folder.split("/")
            rest = parts[parts.index(name, depth) + 1 :] if name in parts[depth:] else []
            rests[name].add(tuple(part for part in rest if not is_role_folder(part)))
        while True:
            # Folders that are below every class say nothing about a class.
            first = {rest[:1] for inner in rests.values() for rest in inner}
            if len(first) != 1 or () in first:
                return {name: {(*rest, "")[0] for rest in inner} for name, inner in rests.items()}
            rests = {name: {rest[1:] for rest in inner} for name, inner in rests.items()}

    def _only(self, name: str) -> str:
        """Return the argument that stages the folder `name` alone, wherever it is in the source."""
        paths = (folder.split("/") for folder in self.folders)
        found = ["/".join(parts[: parts.index(name) + 1]) for parts in paths if name in parts]
        return only_line(self.tree, min(found, key=len, default=name))

    def _variants(self, below: dict[str, set[str]]) -> str:
        """Return the folders that each class contains: variants of one dataset, or parts of each sample."""
        common = set.intersection(*below.values())
        if len(below) < 2 or len(common) < 2 or "" in common:
            return ""
        first, *_ = below
        return (
            f"each holds the folders {listed(sorted(common))}, which may be the classes as well. Stage one of the "
            f"outer folders, such as '{first}': {self._only(first)}; or have the inner ones read as classes: "
            f"{_INNERMOST}."
        )

    def _wrapper(self, below: dict[str, set[str]]) -> str:
        """Return a folder that contains the classes a second time."""
        for name, inner in below.items():
            again = (inner & below.keys()) - {name}
            if len(again) > 1:
                return (
                    f"'{name}' holds the folders {listed(sorted(again))}, which are classes beside it as well. Stage "
                    f"it alone: {self._only(name)}."
                )
        return ""

    def _parts_below(self) -> str:
        """Find folders of images and of masks below the classes: the masks are not samples."""
        folders = {name for folder in self.folders for name in folder.split("/")}
        # train_images and val_images above the classes are splits, despite the word images.
        above = {name for name in folders if is_split_folder(name)} if self.found.splits is not None else set()
        found = sorted(folder for folder in folders - above - set(self.found.classes) if is_role_folder(folder))
        if len(found) < 2:
            return ""
        return (
            f"{listed(found)} hold parts of each sample. Have the class read from the paths of one of them: "
            f"layout=file_names(r'([^/]+)/{found[0]}/'), from colabstage.options; or stage one of the classes for its "
            f"masks: {self._only(self.found.classes[0])}."
        )

    def _roles(self) -> str:
        """Find the folders called after splits, or after what they hold of each sample, unless one stands among real
        classes."""
        roles = [name for name in self.found.classes if is_role_folder(name)]
        splits = [name for name in self.found.classes if split_name(name).split]
        rests = [split_name(name) for name in splits]
        # "train" among ships and cars is a vehicle, "test tube" beside "beaker" a thing.
        # training_fake beside training_real are two classes of one split.
        of_one = len({read.split for read in rests}) == 1 and len({read.rest for read in rests}) == len(rests) > 1
        of_splits = [
            name for name, read in zip(splits, rests, strict=True) if not read.rest or (len(splits) > 1 and not of_one)
        ]
        # Of folds, or of pictures before and after, each folder is a part; "depth" among other words is a class.
        parts = [name for name in self.found.classes if is_part_folder(name)]
        if parts and len({*parts, *splits}) == len(self.found.classes):
            of_splits += parts
        odd = {*roles, *of_splits}
        if not odd or (len(odd) == 1 and len(self.found.classes) > 2):
            return ""
        return (
            f"{listed(sorted(odd))} are names of parts of a dataset, and no layout of colabstage fits them. Stage the "
            f"part that has the classes (such as {self._only(min(odd))}), give a function as layout= that says what is "
            "what (see 'A layout of your own' in the documentation), or have the class read from the files' names: "
            "layout=file_names(PATTERN)."
        )

    def _one_class(self) -> str:
        if len(self.found.classes) > 1:
            return ""
        return (
            "that is one class, and there is nothing to learn from one. Expected a folder for each class, a table of "
            "labels beside the images, or their class in the files' names: layout=file_names(PATTERN)."
        )

    def _strange_split(self) -> str:
        """Return a split that has no class in common with `train`."""
        if self.found.splits is None:
            return ""
        classes: dict[str, set[str]] = {}
        for split, label in set(zip(self.found.splits, _labels(self.found), strict=True)):
            classes.setdefault(split, set()).add(self.found.classes[label])
        # Tested classes must be trained, so without a common class the folders are something else.
        known = classes.get("train")
        for split, names in classes.items():
            if known and not names & known:
                return (
                    f"the split '{split}' ({listed(sorted(names))}) has no class in common with 'train' "
                    f"({listed(sorted(known))}). Name its folders as those of 'train', or move it away."
                )
        return ""

    def _named_elsewhere(self, *, read: frozenset[str]) -> tuple[str, list[str]]:
        """Look for files that say something else of the samples than their folders do, "" where none does; and for
        lists of splits that agree with them. `read`: those that are read."""
        others = self.tree.entries.ending_in(ANNOTATION_EXTENSIONS).where(lambda name: name not in read)
        if not others:
            return "", []
        by_stem = {stem_of(name): name for name in others.names}
        classes = set(self.found.classes)
        # A file in one class's folder, or a readme, does not list images of several classes.
        of_many = others.ending_in(_TEXTS).where(
            lambda name: classes.isdisjoint(name.split("/")[:-1]) and not is_note(name)
        )
        texts = sorted(of_many, key=lambda entry: (entry.name.count("/"), entry.name))
        # The beginning is enough; some lists have a million lines.
        heads = {entry.name: decode_text(read_head(self.tree, entry, _HEAD_BYTES)) for entry in texts[:_HEADS]}
        words = {part for head in heads.values() for line in head.splitlines() for part in _parts(_words(line))}
        class_of: dict[str, str] = {}
        own: list[str] = []
        for name, label in _class_of(self.found):
            base = posixpath.basename(name)
            stem = posixpath.splitext(base)[0]
            class_of |= {word: label for word in (base, stem) if word in words}
            # The same folders of classes with XML in them say the same; what is beside an image says more of it.
            beside = stem in by_stem and posixpath.dirname(by_stem[stem]) == posixpath.dirname(name)
            if beside or (stem in by_stem and label not in by_stem[stem].split("/")):
                own.append(by_stem[stem])
        # A few files beside images are notes; one for most images is an annotation.
        if 2 * len(own) > len(self.found):
            return _says_more(own[0], f"{len(own):,} files such as this"), []
        enough = min(_NAMED, len(self.found))
        competes = {name: _competes(head, class_of, enough) for name, head in heads.items()}
        competing = [name for name, does in competes.items() if does]
        are_tables = all(map(is_table, competing))
        if competing and not (are_tables and tables_that_agree(self.tree, dict(_class_of(self.found)))):
            return _says_more(competing[0], "this file"), []
        agreeing = [name for name, does in competes.items() if does is False]
        return "", [name for name in agreeing if split_name(stem_of(name)).split]


def _labels(found: SampleTable) -> list[int]:
    targets = found.targets
    return targets.values.tolist() if isinstance(targets, Values) else []


def _class_of(found: SampleTable) -> Iterable[tuple[str, str]]:
    """Return the name of each image and of its class."""
    return ((name, found.classes[label]) for name, label in zip(found.keys, _labels(found), strict=True))


def _deeper(below: dict[str, set[str]]) -> str:
    """Return folders that each hold images in several subfolders, and none directly."""
    wide = next((name for name, inner in below.items() if len(inner) > 1), None)
    if wide is None or any("" in inner for inner in below.values()):
        return ""
    return (
        f"the images are deeper: those of '{wide}' in {listed(sorted(below[wide]))}, which may be the classes. Have "
        f"the inner folders read as classes: {_INNERMOST}."
    )


def _says_more(name: str, what: str) -> str:
    return (
        f"'{name}' names them too, in a form that is not read here, and may hold their labels: {what} would be left "
        "out. Write a table with a path and a label in each row beside the images, or give a function as layout=."
    )


def _words(line: str) -> list[str]:
    """Return the parts of a line that may be a name or label: between spaces and quotes, and between delimiters."""
    return [*_WORD.findall(line), *(cell.strip() for cell in _CELL.findall(line))]


def _parts(words: list[str]) -> set[str]:
    """Return the folders and base names in some words."""
    return {part for word in words for part in word.replace("\\", "/").split("/")}


def _competes(text: str, class_of: dict[str, str], enough: int) -> bool | None:
    """Tell whether a text contradicts the classes in the samples' folders; `None` if it names too few samples.

    Args:
        text: the beginning of a file.
        class_of: the class of images by bare name, with and without the extension.
        enough: how many samples it must name.
    """
    named: set[str] = set()
    in_path, in_words, numbers = 0, 0, 0
    said: set[tuple[str, str]] = set()
    for line in text.splitlines():
        words = _words(line)
        parts = _parts(words)
        for part in parts & class_of.keys():
            if posixpath.splitext(part)[1] or _TELLING.fullmatch(part):
                named.add(part)
                in_words += class_of[part] in words
                in_path += class_of[part] in parts
                said.add((class_of[part], " ".join(word for word in line.split() if part not in _parts([word]))))
        numbers += sum(_NUMBER.fullmatch(word) is not None for word in words) >= 4
    if len(named) < enough:
        return None
    # A name and one word, the same for all of a class and for no other, is the class by another name.
    if len(said) > 1 and len({label for label, _ in said}) == len({word for _, word in said}) == len(said):
        return False
    # A line of names, classes and no more agrees; boxes below a path with the class in it are something else.
    return in_path < _AGREEING * len(named) or (numbers > 0 and in_words < _AGREEING * len(named))

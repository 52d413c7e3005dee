"""The judge: what must be true of any table, of folders that may be classes, and of files that are left over.

Every file is a sample, was used, or is harmless. What else may label the samples depends on what states their labels.
If labels were written down, archives and masks are refused, and other files that name the samples are noted; if only
folders or names state them, a text that names the samples is refused; if nothing does, any file that is not harmless.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter, defaultdict
from dataclasses import replace
from enum import Enum
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.images.masks import AS_PICTURES
from colabstage.io.units import format_count, listed
from colabstage.layouts import words
from colabstage.layouts.columns import NUMBER, Column, divides_further, same_partition, show
from colabstage.layouts.evidence import (
    FEW,
    Evidence,
    FileKind,
    Found,
    Miss,
    class_of_samples,
    folder_of_no_split,
    gather,
    in_bytes,
    labels_of_samples,
    near,
    refuse,
    size_in_file,
)
from colabstage.layouts.formats.detection import NAME as DETECTION
from colabstage.layouts.formats.masks import NAME as PAIRS
from colabstage.layouts.formats.masks import pair_names
from colabstage.layouts.formats.tables import LISTS, Table, parse_table
from colabstage.layouts.formats.tokens import NAME as TOKENS
from colabstage.layouts.lists import Lookup, lists_state, may_be_list, paths_by_id
from colabstage.layouts.names import bare_stem, paths_to
from colabstage.layouts.reading import BEGINNING_BYTES, Source, Statement, decode_text, joins_classes, statements_of
from colabstage.layouts.records import other_form, split_of_shard
from colabstage.layouts.rows import LeadingTable, TableSearch, columns_of_classes, rows_in_classes
from colabstage.layouts.table import Boxes, SampleTable, TreeFiles, Values, files_of, labels_of
from colabstage.trees.listing import FileEntries, FileEntry, Tree, only_line
from colabstage.trees.names import UNFINISHED, extension_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# More folders than this are classes.
_MOST_PARTS = 16
_STEMS_COMPARED = 64
# How many images with boxes are opened for their size.
_SIZES_COMPARED = 8
_TARS = (".tar", ".tgz", ".tar.gz")
# 1.0.0, 192x192.
_VERSION = re.compile(r"\d+(?:\.\d+)+|\d+x\d+")
# Between numbers and hashes, which tell the files of one set apart.
_WORD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2,}(?![A-Za-z0-9])")
TO_EXTRACT = (
    "extract_archive(source, 'FOLDER') (a remote source is first copied: fetch_files(source, 'PATH'); Kaggle's is a "
    "folder then)"
)
# Layouts whose samples are records of shards.
_OF_SHARDS = ("webdataset", "tfrecord", "lmdb", "arrow")
_SPREADSHEETS = (".xlsx", ".xls", ".ods")
# What is beside a photograph and no label of it: a camera's settings and its short film.
_SILENT = (*(words.HARMLESS - {""}), *words.SOUNDS, *words.ARCHIVES, ".xmp", ".aae", ".thm", ".mov", ".mp4")
# Arrays that may be samples; HDF5 files are mostly weights. What may say which samples are held out, and cannot be
# looked into; and other data that labels may be stored in.
_ARRAYS = (".npy", ".npz", ".mat")
_BINARY = (*_ARRAYS, ".pkl", *_SPREADSHEETS)
_DATA = (".h5", ".hdf5", ".db", ".sqlite", ".tfrecord", ".arrow")
_IN_PATHS, _IN_NAMES = r"paths: layout=file_names(r'([^/]+)/[^/]+$')", "names: layout=file_names(PATTERN)"
_FIRST_WORD = r"r'(?:^|/)([^/ ._-]+)[^/]*$'"
UNLABELLED = ' layout="images" reads the images without labels.'
_MORE, _LABELS = "may hold more of them", "may hold their labels"


def judge(source: Source, found: Evidence, *, may_be_one: bool = False) -> Found:
    """Return what is stated, with the splits of lists, if nothing contradicts it; otherwise why it does not count.
    `may_be_one`: whether one class is fine, because the samples are added to others."""
    found = found.in_split_folders()
    by_folders = found.is_guess and found.table.layout != "file_names"
    why = why_not_classes(found.table, may_be_one=may_be_one) if by_folders else ""
    # Lists are read only if the folders may be classes, because each costs a read.
    if not why:
        found = lists_state(source, found)
    if found.is_guess and not why:
        why, same = _contradicting(source, found)
        why += UNLABELLED * (bool(why) and found.table.layout == "image_folder")
        if same and not why:
            found = replace(found, used=found.used | same, is_guess=False)
            found = found.noting(f"The same classes are in {listed(sorted(same))}.")
    table = found.table
    if why:
        # If folders are not classes, the names of the files may be.
        decline = near if by_folders else refuse
        return decline(
            f"The {table.unit} of '{source.label}' may have the classes {listed(table.classes)}, by {found.who}, but "
            f'{why} layout="{table.layout}" takes them anyway.'
        )
    of_tables = (_spelled_twice, _unnamed, _split_twice, _untrained, _boxes_lost)
    of_sources = (_trained_in_held_out, _several_sets, _shards_twice, _documents)
    others, are_few = _of_other_kinds(source, found)
    faults = itertools.chain((check(table) for check in of_tables), (check(source, found) for check in of_sources))
    every = itertools.chain(faults, [others], _left_over(source, found))
    if why := next(filter(None, every), ""):
        decline = near if why == others and are_few else refuse
        return decline(f'{why[0].upper()}{why[1:]} layout="{table.layout}" takes the {table.unit} as they are.')
    return found.noting(*_notes_on_folders(source, table)) if by_folders else found


# --- what must be true of any table -----------------------------------------------------------------------------------


def _spelled_twice(table: SampleTable) -> str:
    """Find classes that are one word in two spellings: one class for people, and two for a program."""
    seen: dict[str, str] = {}
    # y is yes.
    are_flags = {*map(str.lower, table.classes)} <= words.YES | words.NO
    for name in table.classes:
        other = seen.setdefault(name[:1].lower() if are_flags else words.spoken(name), name)
        if other != name:
            return (
                f"The classes '{show(other)}' and '{show(name)}' look like one in two spellings. Spell it in one way."
            )
    return ""


def _unnamed(table: SampleTable) -> str:
    """Find labels beyond the classes: the names are another dataset's, or are numbered differently."""
    classes, labels = table.classes, labels_of(table)
    if not classes or not len(labels):
        return ""
    if labels.ndim == 2:
        what = f"{labels.shape[1]} numbers for each" if labels.shape[1] != len(classes) else ""
    else:
        is_beyond = labels.dtype.kind in "iu" and labels.max() >= len(classes)
        what = f"{labels[labels >= 0].min()} to {labels.max()}" if is_beyond else ""
    return what and (
        f"The labels of the {table.unit} are {what}, and {len(classes)} classes are named ({listed(classes)}). Number "
        "the labels from 0, and name all of them."
    )


def _split_twice(table: SampleTable) -> str:
    # dev beside one of them may be intended, because some corpora have both.
    several = sorted({"val", "valid", "validation"} & set(table.splits or ()))
    what = f"The {table.unit} are in the splits {listed(several)}, which look like one. Use one name."
    return what if len(several) > 1 else ""


def _trained_in_held_out(source: Source, found: Evidence) -> str:
    """Find a sample to train on in a folder of held-out ones, beside folders of other splits."""
    table, (folders, folder_of) = found.table, files_of(found.table).folders
    splits, (other, _) = words.splits_of_folders(folders), folder_of_no_split(table)
    if len({*splits} - {""}) < 2 or not (other or "train" in (table.splits or ())):
        return ""
    held_out = np.array([split not in ("", "train") for split in splits])[folder_of]
    wrong = np.flatnonzero(held_out & (np.array(table.splits or ["train"]) == "train"))
    for row in wrong[:1].tolist():
        where = f"'{table.keys[row]}' is in 'train', and its folder in '{splits[folder_of[row]]}'"
        if not other:
            return f"{where}. Correct one of them."
        only = only_line(source.tree, *sorted(folder for folder, split in zip(folders, splits, strict=True) if split))
        return f"{where}, because '{other}' is of no split. Take the splits alone, {only}, or move it away or into one."
    return ""


def _untrained(table: SampleTable) -> str:
    """Find a split most of whose classes are not in `train`: classes that are tested must be trained."""
    targets, classes = table.targets, table.classes
    if not (table.splits and classes and isinstance(targets, Values) and targets.values.ndim == 1):
        return ""
    # Negative labels are secret.
    pairs = {(split, label) for split, label in zip(table.splits, targets.values.tolist(), strict=True) if label >= 0}
    known = {label for split, label in pairs if split == "train"}
    for odd in sorted({split for split, _ in pairs}) if known else ():
        own = {label for split, label in pairs if split == odd}
        if 2 * len(own & known) < len(own):
            names, trained = (listed([classes[label] for label in sorted(one)]) for one in (own, known))
            return (
                f"most classes of '{odd}' ({names}) are not in 'train' ({trained}). Call them alike, or move them away."
            )
    return ""


def _boxes_lost(table: SampleTable) -> str:
    """Find annotations without any box; and boxes outside their images, which were shrunk, or are others."""
    boxes, source = table.targets, table.inputs.source
    if not isinstance(boxes, Boxes) or not files_of(table):
        return ""
    if not len(boxes.boxes) and len(table) and table.layout == DETECTION:
        return (
            f"The annotations of {len(table):,} images have no box (first '{table.keys[0]}'). Export them with boxes; "
            "or, for classes of whole images, write a table with a path and a label in each row."
        )
    if boxes.relative or boxes.sizes is not None:
        form, what, first_one = other_form(boxes)
        read = "centre, width and height" if boxes.relative else "first corner, width and height"
        return form and (
            f"Many boxes, read as {read}, {what} (first in '{table.keys[first_one]}'), and as {form} none would. Write "
            f"them as {read}."
        )
    chosen = np.flatnonzero(np.diff(boxes.offsets))[:_SIZES_COMPARED].tolist()
    sizes = {number: size for number in chosen if (size := size_in_file(source, number)) is not None}
    for number, size in sizes.items():
        first, last = boxes.offsets[number : number + 2]
        if not (boxes.boxes[first:last, :2] >= size[::-1]).any(axis=1).all():
            return ""
    if not sizes:
        return ""
    edges = ", ".join(f"{edge:g}" for edge in boxes.boxes[boxes.offsets[chosen[0]]].tolist())
    return f"The boxes of '{table.keys[chosen[0]]}' lie outside of the image (first {edges}). Scale them as it was."


def _documents(source: Source, found: Evidence) -> str:
    """Find a Google document beside samples without labels."""
    note = next((note for note in source.tree.notes if "Google" in note), "") if found.table.targets is None else ""
    return note and f"Nothing labels the {found.table.unit}, and a document may: {note} Download it as CSV beside them."


def _several_sets(source: Source, found: Evidence) -> str:
    """Find shards or texts, but not JSON, of several sets in one split, languages, sizes, versions. They are in folders
    of different words, versions or sizes, or called after a split and different words (full-train, small-train)."""
    layout = found.table.layout
    # Everything in a list of sources is meant to be used.
    if layout not in (*_OF_SHARDS, TOKENS) or len(source.tree.parts()) > 1:
        return ""
    sets = defaultdict[str, dict[tuple[str, ...], list[str]]](lambda: defaultdict(list))
    for name in sorted(name for name in found.used if not name.endswith(".json")):
        split, (folder, base) = split_of_shard(name), posixpath.split(name)
        parts = [*folder.split("/") * (layout != TOKENS), *_WORD.findall(words.stem_of(base)) * bool(split)]
        called = [word for part in parts for word in words.split_name(part).rest]
        sets[split][*called, *_VERSION.findall(folder)].append(name)
    for several in sets.values():
        if len(several) > 1:
            first = next(iter(several))
            own = [name for each in sets.values() for name in each.get(first, ())]
            only = source.only(own, found.used.difference(own))
            firsts = listed([names[0] for names in several.values()])
            return (
                f"The {found.table.unit} of '{source.label}' are in {firsts}, which may be datasets of their own, or "
                f"parts of each sample. Take one{only and f': {only}'}."
            )
    return ""


def _shards_twice(source: Source, found: Evidence) -> str:
    """Find a shard beside a copy of it, by the name that file managers and browsers give a second one."""
    seen: dict[tuple[str, ...], FileEntry] = {}
    for entry in source.files.where(found.used.__contains__) if found.table.layout in _OF_SHARDS else ():
        stem, ending = posixpath.splitext(entry.name)
        other = seen.setdefault((*map(words.spoken, stem.split("/")), ending), entry)
        if other is not entry and entry.size == other.size:
            kept, copy = sorted((entry.name, other.name), key=len)
            only = source.only(found.used - {copy}, {copy})
            return f"'{copy}' looks like a copy of '{kept}'. Move it away{only and f', or leave it out: {only}'}."
    return ""


# --- folders as classes -----------------------------------------------------------------------------------------------


def why_not_classes(table: SampleTable, *, may_be_one: bool) -> str:
    """Return why folders are probably not classes, and what to write; "" if they may be."""
    if len(table.classes) < 2 and not may_be_one:
        way = "file_names(PATTERN)" if table.layout == "image_folder" else "audio_clips(pattern=PATTERN)"
        return (
            "that is one class, and one teaches nothing. Expected a folder for each class, or a table of "
            f"labels beside the {table.unit}, or classes in the files' names: layout={way}, from colabstage.options."
        )
    checks = (_called_parts, _deeper, _called_before, _kinds_in_each, _same_names, _untrained)
    return next(filter(None, (check(table) for check in checks)), "")


def _choice(table: SampleTable, *, outer: str = "", parts: Sequence[str] = ()) -> str:
    """Write what chooses a reading: a part of the source, the innermost folders, or two folders of parts."""
    folders = files_of(table).folders[0]
    first, pair = _pair_among(table, parts)
    outer = first if outer and pair else outer
    alone = f"one of the outer folders alone: {_only_folder(table, outer)}" if outer else ""
    where = _IN_NAMES if {*map(posixpath.basename, folders)} <= {*parts} else _IN_PATHS
    inner = "" if parts else "the inner folders: layout=folders(level=-1)"
    ways = [alone, pair, inner, f"the class in the {where}"]
    # The others read images; and a folder of clips alone may be a class.
    if table.layout != "image_folder":
        own = tuple(f"{path}/" for path in paths_to(folders, outer))
        has_inner = any(folder.startswith(own) for folder in folders)
        ways = [alone * has_inner, "the class in the paths: layout=audio_clips(pattern=PATTERN)"]
    ways = list(filter(None, ways if table.layout != "array_folder" else ways[:1]))
    return f"Say which is meant, from colabstage.options: {'; '.join(ways)}." if ways else ""


def _pair_among(table: SampleTable, parts: Sequence[str]) -> tuple[str, str]:
    """Return the folder of parts that is most likely of images, and what reads it with that of masks; "" for none."""
    # Masks in 'gt' belong to images in 'img', those of one split to each other; and masks are rarely JPEGs.
    lossy = {one for name in files_of(table).ending_in(words.JPEGS).folders[0] for one in name.split("/")}
    ranks = {one: (words.holds_targets(one), not words.holds_images(one), one not in lossy) for one in parts}
    first, *others = sorted(parts, key=ranks.__getitem__) or [""]
    same = [one for one in others if words.split_name(one).split == words.split_name(first).split]
    targets = [one for one in same if words.holds_targets(one) or len(parts) == 2]
    # masks, not masks_aug, which belong to images_aug.
    last, tree = min(reversed(targets), key=len, default=""), _tree_of(table)
    # Several masks of an image, for example, are no pairs.
    do_not = last and isinstance(gather(lambda: pair_names(Source(tree), first, last)), Miss)
    pair = "a function as layout=" if do_not else f"layout=parts(x='{first}', y='{last}')"
    more = "" if words.holds_targets(last) else f" ({AS_PICTURES[0].lower()}{AS_PICTURES[1:]})"
    return first, f"images and masks: {pair}{more}" if last else ""


def _only_folder(table: SampleTable, name: str) -> str:
    """Write what takes a class's folder alone, wherever that is, with the folders of annotations of its samples."""
    tree, files = _tree_of(table), files_of(table)
    own = paths_to(files.folders[0], name)
    stems = {words.stem_of(one) for one in files.names if one.startswith(tuple(f"{path}/" for path in own))}
    named = (one for one in Source(tree).ending_in(words.ANNOTATIONS).names if words.stem_of(one) in stems)
    beside = sorted({*map(posixpath.dirname, named)}.difference(files.folders[0], [""]))
    return only_line(tree, *own, *beside[:_MOST_PARTS])


def _tree_of(table: SampleTable) -> Tree:
    source = table.inputs.source
    assert isinstance(source, TreeFiles)
    return source.tree


def _called_parts(table: SampleTable) -> str:
    """Find folders named like parts of a dataset, or of each sample."""
    classes = table.classes
    if bare := sorted(filter(words.is_unlabelled, classes)):
        return f"{listed(bare)} says that its {table.unit} have no label. Move it away."
    if odd := _parts_among(classes):
        what = f"{'is a name' if len(odd) == 1 else 'are names'} of parts of a dataset"
        outer = min({*classes} - odd or classes, key=lambda name: (words.split_name(name).split != "train", name))
        are_numbered = len({tuple(words.letters_of(name)) for name in classes}) == 1
        without_labels = UNLABELLED if are_numbered and table.layout == "image_folder" else ""
        return f"{listed(sorted(odd))} {what}. {_choice(table, outer=outer, parts=sorted(classes))}{without_labels}"
    folders = {name for folder in files_of(table).folders[0] for name in folder.split("/")} - {*classes}
    # train_images and val_images above the classes are splits, despite the word images.
    splits = set() if table.splits is None else {*filter(words.is_split, folders)}
    below = sorted(filter(words.is_role, folders - splits))
    return f"{listed(below)} hold parts of each sample. {_choice(table, parts=below)}" if len(below) > 1 else ""


def _parts_among(classes: Sequence[str]) -> set[str]:
    """Return the classes named like parts of a dataset, or of each sample, if these can be no classes."""
    splits = {name: read for name in classes if (read := words.split_name(name)).split}
    # "train" among ships and cars is a vehicle, "test tube" beside "beaker" a thing; training_fake beside
    # training_real are two classes of one split.
    several = len({read.split for read in splits.values()}) > 1 or len(set(splits.values())) < len(splits)
    odd = {*filter(words.is_role, classes)} | {name for name, read in splits.items() if several or not read.rest}
    # Folds, or pictures before and after, are all parts; "depth" among other words is a class.
    parts = words.parts_among(classes)
    odd |= parts if {*classes} <= parts | splits.keys() else set()
    # One stands among real classes, but a test is none; and neither are images beside masks.
    odd |= {*filter(words.holds_targets, classes)} if any(map(words.holds_images, odd)) else set()
    is_held_out = any(read.split != "train" and not read.rest for read in splits.values())
    return odd if len(odd) > 1 or is_held_out or len(classes) < 3 else set()


def _deeper(table: SampleTable) -> str:
    """Find a class that holds several folders and no file of its own: those may be the classes."""
    folders, folder_of = files_of(table).folders
    # As single numbers, because sorting a million pairs takes ten times as long and twice the memory.
    pairs = np.unique(folder_of.astype(np.int64) * len(table.classes) + labels_of(table)).tolist()
    places = [(folders[number // len(table.classes)].split("/"), number % len(table.classes)) for number in pairs]
    # A folder above all of them may have a class's name: cell_images/cell_images.
    depth = len(words.shared_folders("/".join([*path, ""]) for path, _ in places)) if len(table.classes) > 1 else 0
    below: dict[str, set[tuple[str, ...]]] = {name: set() for name in table.classes}
    for path, label in places:
        name = table.classes[label]
        rest = path[path.index(name, depth) + 1 :] if name in path[depth:] else []
        below[name].add(tuple(part for part in rest if not words.is_role(part)))
    # A folder below every class says nothing.
    while len(first := {rest[:1] for inner in below.values() for rest in inner}) == 1 and () not in first:
        below = {name: {rest[1:] for rest in inner} for name, inner in below.items()}
    for name, inner in below.items():
        if len(inner) > 1 and () not in inner:
            tops = {rest[0] for rest in inner}
            inside = sorted(tops if len(tops) > 1 else {"/".join(rest) for rest in inner})
            what = f"'{name}' holds the folders {listed(inside)}, which may be the classes as well"
            return f"{what}. {_choice(table, outer=name)}"
    return ""


def _called_before(table: SampleTable) -> str:
    """Find folders numbered alike, of speakers or sessions, whose samples are called after a word, or a number before
    the folder's, of several that are the same in each: 01/0_01_7.wav is the digit 0 by speaker 01."""
    words_in: dict[int, set[str]] = defaultdict(set)
    are_alike = len({tuple(words.letters_of(name)) for name in table.classes}) == 1 < len(table.classes)
    for name, label in zip(files_of(table).names if are_alike else (), labels_of(table).tolist(), strict=False):
        first, *rest = re.split(r"[ ._-]+", words.stem_of(name))
        # Cameras write capitals; and folders of numbers alone may be grades.
        is_number, is_word = table.classes[label].isdecimal(), first.isalpha() and not first.isupper()
        if not (first.isdecimal() and table.classes[label] in rest if is_number else is_word):
            return ""
        words_in[label].add(first)
    called = sorted(words_in[0])
    # As many as samples are numbers of these.
    if not 1 < len(called) <= len(table) / len(words_in) / 2 or any({*called} != own for own in words_in.values()):
        return ""
    way = "file_names({})" if table.layout == "image_folder" else "audio_clips(pattern={})"
    how = f"layout={way.format(_FIRST_WORD)}, from colabstage.options"
    return f"the names in each of these begin with {listed(called)}. If those are the classes: {how}."


def _kinds_in_each(table: SampleTable) -> str:
    """Find folders that each hold the same kinds of files, by the words in their names, some of which are targets:
    GT_1.png and NOISY_1.png."""
    names, labels, kinds = files_of(table).names, labels_of(table), dict[tuple[str, ...], str]()
    for number, folder in enumerate(table.classes):
        stems = [words.stem_of(names[row]) for row in np.flatnonzero(labels == number)[:_STEMS_COMPARED].tolist()]
        found = {tuple(word for word in words.letters_of(stem) if word not in folder.lower()): stem for stem in stems}
        targets = sum(words.holds_targets(" ".join(kind)) for kind in found)
        # A class without files has no kinds.
        if stems and (not 0 < targets < len(found) or (kinds and kinds.keys() != found.keys())):
            return ""
        kinds = kinds or found
    parts = listed(sorted(kinds.values()))
    return f"each folder holds {parts} or the like, as parts of a sample. Give a function as layout=."


def _same_names(table: SampleTable) -> str:
    """Find folders that may hold parts of each sample: they have the same names, not counted as those in classes of one
    size are (cat/0.jpg, dog/0.jpg); or are named like parts, and share half of their names."""
    classes, labels, names = table.classes, labels_of(table), files_of(table).names
    if not 2 <= len(classes) <= _MOST_PARTS:
        return ""
    rows = [np.flatnonzero(labels == number) for number in range(len(classes))]
    # top/top_1 in a folder top too: without the words of all folders.
    every = " ".join(classes)
    stems = [[bare_stem(names[row], every) for row in own[:_STEMS_COMPARED].tolist()] for own in rows]
    smallest, *others = sorted(({*own} - {""} for own in stems), key=len)
    stem = min(smallest, default="")
    are_alike = all(2 * len(smallest & own) >= len(smallest) for own in others)
    if not (stem and are_alike and words.may_hold_parts(classes, stem)):
        if not len({*map(tuple, stems)}) == len({*map(len, rows)}) == 1 or len({*stems[0]}) < _NAMED:
            return ""
        firsts = [names[own[0]] for own in rows]
        # Masks of images in JPEG are in another format.
        formats = [{extension_of(names[row]) in words.JPEGS for row in own} for own in rows]
        are_apart = all(len(one) == 1 for one in formats) and len(set.union(*formats)) > 1
        # cat/cat_0_flip.jpg and dog/dog_0_flip.jpg are called after their classes.
        in_all = set.intersection(*({*words.letters_of(name)} for name in classes))
        called = [{*words.letters_of(name)} - in_all for name in classes]
        of_class = (own & {*words.letters_of(words.stem_of(one))} for own, one in zip(called, firsts, strict=True))
        own = [bare_stem(names[row], every) for row in rows[0].tolist()]
        if not are_apart and (all(of_class) or _are_counted(own, may_repeat=bool(table.splits))):
            return ""
        stem = posixpath.basename(firsts[0])
    return (
        f"the {table.unit} in {listed(sorted(classes))} have the same names ('{stem}', …): they may be parts of each "
        f"sample. {_choice(table, parts=sorted(classes))}".rstrip()
    )


def _are_counted(stems: Sequence[str], *, may_repeat: bool) -> bool:
    """Tell whether stems are counted, with few gaps; again for each split, if they `may_repeat`."""
    found = [words.NUMBERED.fullmatch(stem) for stem in stems]
    # All of them, because the first ones in order are 0, 1, 10, 100, …, with gaps in between.
    numbers = sorted({int(one[2]) for one in found if one})
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    is_once = may_repeat or len({*stems}) == len(stems)
    return all(found) and is_once and (len(steps) < 2 or numbers[-1] - numbers[0] < 2 * len(numbers))


def _kinds_by_name(names: Sequence[str]) -> Sequence[str]:
    """Return the ends of files that are called alike up to these, if most come in such sets: _B02.tif and _B03.tif;
    nothing for copies and pieces of pictures."""
    ends = defaultdict[str, list[str]](list)
    for name in names:
        if before := words.before_last_word(posixpath.splitext(name)[0]):
            ends[before].append(name.removeprefix(before))
    [(kinds, count)] = Counter(map(tuple, ends.values())).most_common(1) or [((), 0)]
    are_most = len(kinds) > 1 and count >= _NAMED and 2 * count * len(kinds) > len(names)
    return kinds if are_most and len({*words.originals([f"1{kind}" for kind in kinds])}) > 1 else ()


def _notes_on_folders(source: Source, table: SampleTable) -> Iterator[str]:
    if kinds := _kinds_by_name(files_of(table).names[:_STEMS_COMPARED]):
        yield (
            f"The {table.unit} are called alike up to {listed(kinds)}, and each is a sample. If those of one name are "
            f"one sample, as bands are, give a function as layout=; for one kind alone only='**/*{kinds[0]}'."
        )
    kept = {name for name in table.classes if not words.is_aside(name)}
    # Beside a single one it is the other class: raw and ripe, original and forged.
    if 1 < len(kept) < len(table.classes):
        odd = [name for name in table.classes if name not in kept]
        only = only_line(source.tree, *paths_to(files_of(table).folders[0], *kept))
        yield f"{listed(odd)} {'counts as a class' if len(odd) == 1 else 'count as classes'}; for the others {only}."


# --- files that are left over -----------------------------------------------------------------------------------------


def first_extract(folder: str) -> str:
    """Return a sentence for files without an address, as from `Source.addresses`."""
    return f"Extract all of it, {TO_EXTRACT}. " if folder == "FOLDER" else ""


def files_called(source: Source, ends: tuple[str, ...]) -> FileEntries:
    """Return the files whose names have one of these endings, in any case; .tar.gz is longer than an extension."""
    files = source.ending_in(tuple(map(extension_of, ends)))
    return files.where(lambda name: name.lower().endswith(ends) and not words.is_foreign(posixpath.basename(name)))


def may_label(source: Source) -> str:
    """Return which files may hold the labels of unlabelled images, and what to write."""
    others = source.files.not_ending_in(tuple(words.HARMLESS)).where(lambda name: not words.is_note(name))
    return _left_over_message(others.names, f"the images of '{source.label}'", _LABELS)


def _left_over_message(names: Sequence[str], beside: str, what: str, how: str = "", noun: str = "files") -> str:
    """Write that something is left over, what it may be, and what to do, by default a table; "" if nothing is."""
    if not names:
        return ""
    base, extension = posixpath.splitext(names[0])
    # As text, because 0001 is a name, and NA may be a class.
    how_read = f"pandas.read_excel('{names[0]}', sheet_name=0, dtype=str, na_filter=False)"
    line = f" ({how_read}.to_csv('{base}.csv', index=False))"
    table = (
        f"Write a table with a path and a label in each row beside them{line if extension in _SPREADSHEETS else ''}, "
        "or give a function as layout=."
    )
    more = f" and {format_count(len(names) - 1, f'more {noun}')}" if len(names) > 1 else ""
    return f"'{names[0]}'{more} beside {beside} {what}, and would be left out. {how or table}"


def _left_over(source: Source, found: Evidence) -> Iterator[str]:
    """Yield why files may hold more samples, their targets or their splits, whatever states these: masks, records,
    archives, and of records also lists; and if nothing labels these, their other fields, and any annotations."""
    table, used = found.table, found.used
    of_files, of_arrays, is_bare = bool(files_of(table)), table.layout == "arrays", table.targets is None
    beside = f"the {'arrays' if of_arrays else table.unit} of '{source.label}'"
    if not of_files and table.splits is None:
        yield _splits_left_over(source, found, beside)
    yield from _not_here(source, beside)
    if is_bare and not of_files:
        fields = [] if of_arrays else words.unused_labels(found.unused)
        how = "Call what does 'label', or give a function as layout=."
        yield _left_over_message(fields, beside, "may label them, which nothing else does", how, "fields")
        others = source.ending_in(words.ANNOTATIONS).without(used)
        how = "Save it as an array too, numpy.save('y.npy', y), in the order of the rows." if of_arrays else ""
        yield _left_over_message(others.where(lambda name: not words.is_note(name)).names, beside, _LABELS, how)
    masks = _masks_left_over(source, found) if table.layout in ("table", PAIRS) else []
    for first in masks[:1]:
        folder, stem = words.folder_of(first), words.stem_of(first)
        which = folder if _is_of_annotations(folder) else stem.removeprefix(words.before_last_word(stem))
        how = f"For images and masks give layout=image_masks('{which}'), from colabstage.options."
        yield _left_over_message(masks, beside, "may hold their masks", how)
    records = source.ending_in(words.RECORD_ENDS if of_files else ()).without(used)
    records = records.where(lambda name: words.RECORDS.fullmatch(name) is not None)
    if records:
        yield _left_over_message(records.names, beside, _MORE, _one_kind(source, found, records))
    # Tars are opened if samples are records.
    archives = files_called(source, words.ARCHIVES).where(lambda name: of_files or not name.lower().endswith(_TARS))
    archives = archives.without(used)
    if archives:
        folder, paths = source.addresses(archives[:1])
        extract = first_extract(folder)
        only = source.only(source.without({*archives.names}).files.names, archives.names)
        unpacked = only and f"; or, if it was unpacked here, leave it out: {only}"
        how = f"{extract}Give it in a list of sources, {[folder, *paths]}{unpacked}."
        yield _left_over_message(archives.names, beside, "may hold more of them, or their labels", how)


def _splits_left_over(source: Source, found: Evidence, beside: str) -> str:
    """Return why texts, or unused arrays, may state the splits of records, or of rows of arrays."""
    of_arrays = found.table.layout == "arrays"
    # Folds are made for an experiment, and do not say which rows are held out.
    fields = [name for name in found.unused if words.plain_name(words.stem_of(name)) not in words.ABOUT_FILES]
    lists = source.ending_in(words.TEXTS).without(found.used).where(may_be_list).names
    of_rows = "Save an array 'split' beside the others, with a word for each row: train, val or test."
    how = of_rows if of_arrays else "Call each file after its split, or name it in the configs of a README."
    names = [*filter(_may_list_a_split, fields * of_arrays), *lists]
    return _left_over_message(names, beside, "may say which of them are held out", how)


def _not_here(source: Source, beside: str) -> Iterator[str]:
    """Yield why more of the samples may be elsewhere: unfinished downloads, and links that lead nowhere."""
    how = "Finish the download, or remove all its files."
    names = files_called(source, UNFINISHED).names
    yield _left_over_message(names, beside, "may belong to an unfinished download", how)
    how = "Unpack the archive with tar or unzip, and give that folder."
    if source.tree.kind == "folder":
        how = f"Fetch what they lead to (git annex get), or remove them: find {quote(source.label)} -xtype l -delete."
    harmless = words.HARMLESS.difference(words.IMAGES, ("",))
    lost = [name for name in source.tree.dangling if extension_of(name) not in harmless and not words.is_note(name)]
    lost = [name for name in lost if not any(map(words.is_foreign, name.split("/")))]
    yield _left_over_message(lost, beside, "may have led to more of them, which are not here", how, "links")


def _of_other_kinds(source: Source, found: Evidence) -> tuple[str, bool]:
    """Return why files of another kind may be the samples, "" if they are few or something states what the samples are;
    and whether the samples are few beside them."""
    table, own = found.table, files_of(found.table)
    is_stated = not found.is_guess if own else table.targets is not None and table.layout not in _OF_SHARDS
    if is_stated:
        return "", False
    of_files, own = bool(own), own or source.files.where(found.used.__contains__)
    size = len if of_files else in_bytes
    for kind in (words.IMAGES, words.SOUNDS, _ARRAYS):
        others = source.ending_in(kind).without(found.used)
        # One picture, or one array, is no dataset of files.
        if not own.ending_in(kind) and (len(others) > 1 or not of_files) and FEW * size(others) > size(own) > 0:
            how = _one_kind(source, found, others)
            beside = f"the {'arrays' if table.layout == 'arrays' else table.unit} of '{source.label}'"
            why = _left_over_message(others.names, beside, "may be the samples, or more of them", how)
            return why, size(others) > FEW * size(own)
    return "", False


def _one_kind(source: Source, found: Evidence, others: FileEntries) -> str:
    """Write what takes either the samples, with what labels them, or files of another kind alone."""
    if source.tree.is_unfolded:
        return "Give pack_dataset an object whose items are (x, y)."
    own = found.used.union(files_of(found.table).names)
    only = [source.only(one, two) for one, two in ((own, others.names), (others.names, own))]
    return f"Take one kind: {' or '.join(filter(None, only))}." if any(only) else "Move those of one kind away."


def _masks_left_over(source: Source, found: Evidence) -> list[str]:
    """Return the images that a table does not name and that look like masks of those that it does, if there are at
    least half as many: in a folder of masks, or named after the images."""
    rest = set(source.ending_in(words.IMAGES).names) - set(found.table.keys) - found.used
    stems = {posixpath.splitext(name)[0] for name in found.table.keys} if rest else set()
    masks = [
        name
        for name in rest
        if _is_of_annotations(words.folder_of(name)) or words.before_last_word(posixpath.splitext(name)[0]) in stems
    ]
    return sorted(masks) if 2 * len(masks) >= len(stems) else []


def _contradicting(source: Source, found: Evidence) -> tuple[str, set[str]]:
    """Return why files may contradict the samples' folders or names, "" for none; and the lists with a word for each
    class in the row of each sample, which confirm them."""
    table, classes = found.table, {*found.table.classes}
    silent = (*_SILENT, extension_of(table.keys[0] if len(table) else ""))
    others = source.files.not_ending_in(silent).where(lambda name: name not in found.used)
    unclear = _labels_or_names(source, found)
    # A file in one class's folder, or a readme, does not list samples of several classes.
    may_list = others.where(lambda name: classes.isdisjoint(name.split("/")[:-1]) or name in unclear)
    says = Naming(source, table, may_list).compare()
    same = {name for name, state in says.items() if state is Says.SAME}
    # What a list states as well is no guess, and only contradicted by other classes.
    names = [name for name, state in says.items() if state is Says.OTHER or (state is Says.MORE and not same)]
    names += _transcripts(source, table, others.without({*may_list.names}))
    if not same:
        # A few files beside samples are notes; one for most samples is an annotation. The same folders of classes with
        # XML in them say the same; what is beside a sample says more of it.
        by_stem = {words.stem_of(name): name for name in others.names}
        # Beside frame_03_rgb.png, frame_03_pose.txt is about the same.
        starts = {words.before_last_word(words.stem_of(name)): name for name in others.names}
        by_stem |= {start: name for start, name in starts.items() if words.is_telling(start)}
        labels = zip(table.keys, class_of_samples(table), strict=True) if others else ()
        own = [
            mate
            for name, label in labels
            if (mate := by_stem.get(words.stem_of(name)) or by_stem.get(words.before_last_word(words.stem_of(name))))
            and (posixpath.dirname(mate) == posixpath.dirname(name) or label not in mate.split("/"))
        ]
        names = names[:1] or [name for name in unclear if name not in says]
        names = (own if 2 * len(own) > len(table) else []) or names
        names = others.where(lambda name: _is_beside_parts(name, classes)).names or names
    return _left_over_message(names, f"the {table.unit} of '{source.label}'", _LABELS), same


def _transcripts(source: Source, table: SampleTable, texts: FileEntries) -> list[str]:
    """Return those of some texts that have a sentence for each sample that they name, another in each line."""
    said = {
        name: [tuple(word for word in one.beside(part) if word.isalpha()) for part, one in lines]
        for name, lines in Naming(source, table, texts).lines.items()
    }
    return [name for name, own in said.items() if len({one for one in own if len(one) >= _FEWEST_WORDS}) == len(own)]


def _labels_or_names(source: Source, found: Evidence) -> list[str]:
    """Return the files named like labels or names of classes that are not about the classes alone."""
    classes, others = found.table.classes, source.files.without(found.used)
    called = others.ending_in((*words.ANNOTATIONS, *_BINARY, *_DATA)).where(words.may_hold_labels)
    may_name = others.ending_in(words.TEXTS).where(words.may_hold_names)
    stated = _statements_in(source, called) | _statements_in(source, may_name) if classes else {}
    return [name for name, one in stated.items() if not _is_about_classes(one, classes)]


def _is_about_classes(stated: Sequence[Statement], classes: Sequence[str]) -> bool:
    """Tell whether a file names or describes the classes instead of samples."""
    counts = Counter(part for one in stated for part in one.parts)
    if any(counts[one] != 1 for one in classes):
        return len(stated) in (len(classes), len(classes) + 1)
    statement_of = {part: one for one in stated for part in one.parts}
    return not joins_classes([" ".join(statement_of[one].beside(one)) for one in classes])


def _is_beside_parts(name: str, classes: set[str]) -> bool:
    """Tell whether a file is in a folder of annotations inside a class's folder: MOT17-02/gt/gt.txt."""
    *folders, _ = name.split("/")
    first = next((place for place, folder in enumerate(folders) if folder in classes), len(folders))
    return any(map(_is_of_annotations, folders[first + 1 :]))


def _is_of_annotations(folder: str) -> bool:
    """Tell whether a folder's name is a part of every sample, and not its image."""
    return words.is_role(folder) and not words.holds_images(folder)


# --- texts beside samples, compared with what labels these ------------------------------------------------------------
#
# A text counts if its beginning names samples; only then is all of it read. If each row has a file, the words beside it
# divide the samples as their labels do, or otherwise. In any other text, lines with a sample have its class, or do not.

# Extensions of files that may be texts, and are opened.
TEXTS = (*words.TEXTS, "", ".dat", ".log")
# At least this many samples must be named, because a text may mention one in passing.
_NAMED = 3
_HEADS = 16
_AGREEING = 0.9
# As many words beside a name are a sentence, and no class.
_FEWEST_WORDS = 3
_CORNERS = 4


class Says(Enum):
    """What a text that names samples states about them."""

    SAME = "the classes of all of them, by these or other names"
    CLASSES = "the classes of those that it names"
    OTHER = "a word for each, which divides them otherwise"
    MORE = "something else, such as finer classes, boxes, or only names"


class Naming:
    """Those of some texts whose beginnings name samples."""

    def __init__(self, source: Source, table: SampleTable, texts: FileEntries) -> None:
        self.source, self.table, self.texts = source, table, texts
        stated = _statements_in(source, texts.ending_in(TEXTS).where(lambda name: not words.is_note(name)))
        self._lookup = Lookup(table.keys if any(stated.values()) else ())
        lines = {name: [*self._on_samples(own)] for name, own in stated.items()}
        # A list of held-out samples may be short.
        enough = {name: 1 if _may_list_a_split(name) else min(_NAMED, len(table)) for name in lines}
        # 20.jpg of each folder is a sample each.
        named = {name: {one.paths.get(part, part) for part, one in own} for name, own in lines.items()}
        self.lines = {name: own for name, own in lines.items() if len(named[name]) >= enough[name]}
        """The lines that name samples in each of these texts, and how."""

    def _on_samples(self, stated: Sequence[Statement]) -> Iterator[tuple[str, Statement]]:
        for one in stated:
            for part in one.parts:
                if (posixpath.splitext(part)[1] or words.is_telling(part)) and self._lookup.may_find(part):
                    yield part, one

    def compare(self) -> dict[str, Says]:
        """Return what each states about the samples, beside what labels them; and of a list that names them by ids, and
        of the one that has their ids, that they state the same, if they do."""
        labels, files = labels_of_samples(self.table) if self.texts else (), files_of(self.table)
        if not labels or not files:
            return dict.fromkeys(self.lines, Says.MORE)
        kind = FileKind(self.table.layout, self.table.unit, (extension_of(self.table.keys[0]),))
        search = TableSearch(self.source, kind, files, self._lookup)
        class_of = dict(zip(files.names, labels, strict=True))
        ids, by_id = paths_by_id(self.source, self._lookup)
        others = self.texts.ending_in(LISTS).without(self.lines) if ids else ()
        firsts = {one.name: self.source.head(one, BEGINNING_BYTES).partition(b"\n")[0] for one in others}
        of_ids = {name for name, first in firsts.items() if len(first.split()) == 2}
        may_be_rows = self.texts.not_ending_in((".xml", ".yaml"))
        tables = self.source.parse_once(may_be_rows.where({*of_ids, *self.lines}.__contains__), parse_table)
        # A table in the folder of each class: together they state those of all.
        alike: dict[object, list[LeadingTable]] = {}
        for name, table in tables.items():
            found = gather(partial(search.lead, _by_path(table, by_id) if name in of_ids else table))
            if isinstance(found, LeadingTable):
                alike.setdefault(tuple(table.header) if words.is_table(name) else name, []).append(found)
        says = {name: self._in_lines(lines, labels) for name, lines in self.lines.items()}
        for group in alike.values():
            classes, columns = rows_in_classes(group, files.names, class_of, self._lookup)
            verdict = _in_columns(group[0], classes, columns)
            is_whole = len(set[int]().union(*(one.files for one in group))) == len(files)
            if verdict is Says.CLASSES and is_whole and len(columns) == 1:
                says |= dict.fromkeys((one.name for one in group), Says.SAME)
                says |= dict.fromkeys({ids} if group[0].name in of_ids else (), Says.SAME)
            elif verdict is not None:
                says |= {one.name: verdict for one in group if one.name in says}
        return says

    def _in_lines(self, lines: Sequence[tuple[str, Statement]], labels: Sequence[tuple[str, ...]]) -> Says:
        """Return what lines state that are no rows: the classes of the samples that they name, or something else."""
        named: dict[Statement, list[set[str]]] = {}
        pairs, said = set[tuple[str, tuple[str, ...]]](), Counter[str]()
        for part, one in lines:
            rows = self._lookup.search(one.paths.get(part, part))
            named.setdefault(one, []).append({name for row in rows for name in labels[row]})
            said[beside := " ".join(one.beside(part))] += 1
            pairs.update((beside, labels[row]) for row in rows)
        # What samples share, most of them, and is not one for each class says more than the class in a path.
        is_one_each = len(said) == len(pairs) == len({known for _, known in pairs})
        if len(said) > 1 and 2 * [*said.values()].count(1) <= said.total() and not is_one_each:
            return Says.MORE
        agreeing = 0
        for one, classes in named.items():
            # Boxes and records say more of their sample than the path, and records may be about several classes.
            is_more = one.text.startswith("{") and one.text.count('": ') > 1
            is_more = is_more or len([word for word in one.words if NUMBER.fullmatch(word)]) >= _CORNERS
            shared = set.intersection(*classes) & {*one.words}
            agreeing += bool(shared) if is_more else not any(map(one.parts.isdisjoint, classes))
        return Says.CLASSES if agreeing >= _AGREEING * len(named) else Says.MORE


def _by_path(table: Table, by_id: Mapping[str, str]) -> Table:
    """Return a list of ids with paths instead."""
    bare = table.without_header()
    cells = [by_id.get(cell, cell) for column in bare.columns[:1] for cell in column.cells]
    return replace(bare, columns=[Column(words.PATHS[0], cells), *bare.columns[1:]])


def _in_columns(table: LeadingTable, classes: Sequence[Any], columns: Sequence[Column]) -> Says | None:
    """Return what the columns of tables like this one state, given the class of each row; `None` if each row has a word
    of its own, or all have one."""
    if columns_of_classes(classes, columns, has_header=table.has_header):
        return Says.CLASSES
    named = [one for one in columns if words.is_label_name(one.name)]
    beside = named or [one for one in columns if not {*map(str.lower, one.distinct)} <= words.SPLITS.keys()]
    dividing = [one for one in beside if 1 < len(one.distinct) < len(one)]
    if _may_list_a_split(table.name) and any(same_partition(classes, one.cells) for one in dividing):
        return Says.CLASSES
    for one in dividing if len(dividing) == 1 else ():
        is_further = divides_further(classes, one.cells) or divides_further(one.cells, classes)
        return Says.MORE if is_further else Says.OTHER
    return Says.MORE if len(columns) > 1 or len(beside) < len(columns) else None


def _statements_in(source: Source, files: FileEntries) -> dict[str, list[Statement]]:
    """Return what the beginnings of some files state, those of the fewest folders first; nothing for other files than
    texts."""
    first = sorted(files, key=lambda entry: (entry.name.count("/"), entry.name))[:_HEADS]
    are_texts = ((one, extension_of(one.name) in TEXTS) for one in first)
    heads = {one.name: source.head(one, BEGINNING_BYTES) if is_text else b"" for one, is_text in are_texts}
    return {name: statements_of(decode_text(head)) for name, head in heads.items()}


def _may_list_a_split(name: str) -> bool:
    """Tell whether a file is called as if it said which samples are held out."""
    stem = words.stem_of(name)
    return bool(words.split_name(stem).split) or not words.OF_SPLITS.isdisjoint(words.words_of(stem))

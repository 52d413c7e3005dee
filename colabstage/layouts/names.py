"""Evidence of names: of files, which may contain the class, and of the folders that they are in."""

from __future__ import annotations

import bisect
import itertools
import operator
import posixpath
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import format_count, listed
from colabstage.layouts import words
from colabstage.layouts.evidence import IMAGE_FOLDER, Evidence, FileKind, images_of, left_out_notes, require_files
from colabstage.layouts.table import Values, class_indices
from colabstage.layouts.words import split_name, split_of_path
from colabstage.trees.listing import only_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries


# The only unambiguous form: a word, a dot and a number.
_WORD_AND_NUMBER = re.compile(r"(?:^|/)([A-Za-z][A-Za-z_ -]*)\.\d+\.[A-Za-z]+$")
BY_NAME = IMAGE_FOLDER._replace(layout="file_names")
# The part before the last number of a name, 25_0_2 in 25_0_2_20170116.
BEFORE_NUMBER = r"([^/]*?[A-Za-z0-9])[ _.()-]*\d+[^\d/]*\.\w+$"
# How often a pattern finds each class at least, if it does: words before and behind a hash may be names of people.
_MAY_SAY = (
    (BEFORE_NUMBER, "before the last number", 1),
    (r"(?:^|/)\d+[ _.()-]*([A-Za-z][^/]*)\.\w+$", "behind the number", 1),
    (r"(?:^|/)([^\W\d_]+(?: [^\W\d_]+)*)[ _.()-][^/]*\.\w+$", "first", 2),
    (r"[ _.()-]([^\W\d_]+)\.\w+$", "last", 2),
)


def names_state(source: Source, *, pattern: str | None = None, kind: FileKind = BY_NAME) -> Evidence:
    """Read images with the classes in their names: without a pattern, every name is label.number.extension.

    Images of a test folder whose names have no class are left out; with a pattern, so are all whose paths do not fit
    it. Folders of splits are recognised. Samples come sorted by name; classes are numbered in the order of their sorted
    names. `pattern` is searched in each image's path; its first group, or else the whole match, is the class.
    """
    images = images_of(source, kind)
    wanted = _WORD_AND_NUMBER if pattern is None else re.compile(pattern)
    # Names without a class belong to a test set. The first of a million usually shows that they have none.
    silent = (name for name in images.names if wanted.search(name) is None)
    first = next((name for name in silent if pattern is not None or split_of_path(name) != "test"), "")
    found = [wanted.search(name) for name in images.names] if pattern is not None or not first else []
    # A group that matches nothing names no class.
    words = [match[1 if wanted.groups else 0] or "" if match is not None else "" for match in found]
    values, classes = class_indices([word for word in words if word])
    # The same class in all names is a common prefix, such as IMG, not a class.
    if len(classes) < 2:
        said = f"all say '{classes[0]}'" if classes else f"'{first or images.names[0]}' says none"
        how = f"{pattern!r} in each" if pattern is not None else "names such as cat.0.jpg"
        msg = f"The names of the {kind.noun} in '{source.label}' do not tell classes apart: {said}; expected {how}."
        raise LayoutError(msg)
    files = images.take(np.flatnonzero([bool(word) for word in words]))
    called = f"Classes are what the files are called, as in '{posixpath.basename(files.names[0])}'."
    notes = [called, *_note_on_numbers(classes, "classes")]
    if len(files) < len(images):
        which = "of a test folder whose names give no class" if pattern is None else f"whose paths have no {pattern!r}"
        lost = [name for name, word in zip(images.names, words, strict=True) if not word]
        notes += left_out_notes((lost, kind.noun, which))
    who, splits = "the files' names", [split_of_path(name) for name in files.names]
    made = Evidence.of_images(source, kind.layout, files, values, who, splits=splits, classes=classes, notes=notes)
    return replace(made, is_guess=True)


def nothing_states(source: Source) -> Evidence:
    """Read all images of a source, in order of their names, without labels; splits come from folders, if all images are
    in split folders."""
    images = images_of(source)
    splits_of = words.splits_of_folders(images.folders[0])
    notes = ["The images have no labels: neither folders of classes, nor files of annotations, nor words in names."]
    folders, of_files = images.folders
    if len(folders) == 1 and folders[0] and not splits_of[0]:
        notes.append(f"All are in the folder '{folders[0]}'; layout='image_folder' makes it their class.")
    splits = [splits_of[number] for number in of_files.tolist()]
    return Evidence.of_images(source, "images", images, None, "nothing", splits=splits, notes=notes)


def names_may_say(source: Source) -> str:
    """Return which classes the names of unlabelled images may say, or whose masks some are, and what to write; "" for
    neither."""
    names = images_of(source).names
    pairs = _pairs_by_name(names)
    # Most images are called after one another: a.jpg and a_manual.jpg.
    if len(pairs) > 1 and 4 * len(pairs) > len(names):
        one, other = pairs[0]
        end = words.stem_of(other).removeprefix(words.stem_of(one))
        return (
            f"The images of '{source.label}' come in twos by their names: '{other}' may be the mask of '{one}': "
            f"layout=image_masks('{end}'), from colabstage.options."
        )
    what = _class_in(names, "file_names(r'{}')")
    return what and f"The names of the images of '{source.label}' may say {what}"


def _class_in(names: Sequence[str], layout: str) -> str:
    """Return which classes, or parts of samples, names may say, and the layout with the pattern; "" for none."""
    every = ((parts_of_names(names, pattern, least), pattern, place) for pattern, place, least in _MAY_SAY)
    found, pattern, place = next(filter(operator.itemgetter(0), every), ([], "", ""))
    how = f"layout={layout.format(pattern)}, from colabstage.options, for what comes {place}."
    return f"their class: {listed(found)}. If so: {how}" if found else ""


def _pairs_by_name(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return images with those that are called after them by the most common words behind a stem."""
    by_stem = {posixpath.splitext(name)[0]: name for name in names}
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for stem, name in by_stem.items():
        before = words.before_last_word(stem)
        while before and before not in by_stem:
            before = words.before_last_word(before)
        if before:
            pairs[stem.removeprefix(before)].append((by_stem[before], name))
    return max(pairs.values(), key=len, default=[])


def parts_of_names(names: Sequence[str], pattern: str, least: int = 1) -> list[str]:
    """Return what a pattern finds in the names, each `least` times, if that makes classes; otherwise nothing."""
    # Images to be classified are often only numbered.
    names = [name for name in names if split_of_path(name) != "test"] or names
    found = Counter[str]()
    for match in map(re.compile(pattern).search, names):
        # As many words as images are not classes, nor is a single one, such as IMG.
        if match is None or 2 * len(found) > len(names):
            return []
        found[match[1]] += 1
    called = {word for one in found for word in words.letters_of(one)}
    are_classes = 1 < len(found) <= len(names) / 2 and min(found.values()) >= least
    return sorted(found) if are_classes and not (called and called <= words.OF_CAMERAS) else []


# --- folders ----------------------------------------------------------------------------------------------------------

# How many duplicated images are read to make sure that they are equal.
_COMPARED = 8
# More of other files are data, which take long to compare.
_MOST_LABEL_BYTES = 64 * 1024 * 1024
# How many folders of one name are compared: more are parts of each sample, as of patients.
_MOST_COPIES = 8
# Pictures in formats that are not read: a folder of them is a class whose samples are missing.
_OTHER_PICTURES = (".svg", ".psd", ".dng", ".cr2", ".nef", ".exr")
_PART_ENDS = frozenset(
    {"mask", "label", "labels", "lab", "gt", "seg", "target", "hair", "skin", "l", "rgb", "img", "image"}
)

# A folder's path below the one that wraps the dataset, empty if it is not a class; and its number among the folders
# with files of the kind, -1 for one without.
_Folder = tuple[tuple[str, ...], int]


class _Class(NamedTuple):
    """A folder inside a class's folder; samples are in the order of these."""

    split_order: int
    name: str
    # ImageFolder sorts the paths of a class's folders as strings, so "a-b" comes before "a/c".
    path: str
    split: str
    number: int


def folders_state(source: Source, kind: FileKind, *, level: int | None = None) -> Evidence:
    """Read files of one kind in folders of classes, as torchvision's `ImageFolder` does.

    A class is the first folder level, classes are numbered in the order of `sorted` names, files are found at any depth
    below, and samples come sorted by class, then folder, then file name. On top of that, folders of splits (train or
    training, val, valid, validation, dev, test or testing, in any case; also training_set, seg_train, test1 and the
    like) may be above the classes, and a folder that merely wraps the dataset is looked through. A split whose images
    are all in one folder `images` takes their classes from a list of names and classes beside it, as Tiny ImageNet has
    it. A class folder without files keeps its number, as in torchvision, where the tree knows of it. `level`: which
    folder is the class, counted from the first that differs, from 1; negative from the innermost.
    """
    files = require_files(source.ending_in(kind.extensions), source, f"{kind.noun} ({', '.join(kind.extensions)})")
    every, splits = _class_folders(source, kind, files, level)
    flat = _flat_splits(every) if splits and level is None else set()
    # Numbered before folders without files are dropped, as in torchvision.
    classes = sorted({one.name for one in every if one.split not in flat})
    found = [one for one in every if one.number >= 0 and one.split not in flat]
    if not found:
        where = f"the folders {listed(sorted(splits))}" if splits else "one folder"
        msg = (
            f"'{source.label}' holds {len(files):,} {kind.noun} directly in {where} (first '{files.names[0]}'), but "
            f"the layout {kind.layout} needs one folder for each class, with the {kind.noun} of the class in it."
        )
        if what := _class_in(files.names, "audio_clips(pattern=r'{}')") if kind.layout == "audio" else "":
            msg += f" Their names may say {what}"
        raise LayoutError(msg)
    folder_of_file = files.folders[1]
    bare = {one: np.flatnonzero(folder_of_file == one.number) for one in every if one.number >= 0 and one.split in flat}
    stated = {one: _listed_classes(source, files.take(rows).names, classes) for one, rows in bare.items()}
    lists = {name: class_of for own in stated.values() for name, class_of in own.items()}
    read = sorted([*found, *(one for one in bare if stated[one])])
    # The files of a folder are already sorted by name, like all files of a tree.
    ranks = np.full(len(files.folders[0]), len(read))
    ranks[[one.number for one in read]] = np.arange(len(read))
    ranks = ranks[folder_of_file]
    order = np.argsort(ranks, kind="stable")[: np.count_nonzero(ranks < len(read))]
    ranks, chosen = ranks[order], files.take(order)
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([-1 if one in bare else numbers[one.name] for one in read], np.int64)[ranks]
    class_of_file = {name: label for class_of in lists.values() for name, label in class_of.items()}
    for row in np.flatnonzero(labels < 0).tolist():
        labels[row] = numbers[class_of_file[chosen.names[row]]]
    train = [top for top, split in splits.items() if split == "train" and not split_name(top).split]
    # If the person says which folder is the class, those of splits may be anywhere.
    split_of_folder = [one.split or (split_of_path(f"{one.path}/") if level is not None else "") for one in read]
    own, who = [split_of_folder[rank] for rank in ranks.tolist()], "the folders"
    notes = (
        *left_out_notes((len(files) - len(order), kind.noun, "in no class folder")),
        *_note_on_numbers(sorted({one.name for one in found}), "folders"),
        *(f"The split 'train' is the folder '{top}', by the names of the others." for top in train),
        *(f"Classes of '{one}' are read." for one in lists),
    )
    made = Evidence.of_images(
        source, kind.layout, chosen, Values(labels), who, splits=own, classes=classes, notes=notes
    )
    return replace(made, used=frozenset(lists), is_guess=True)


def _class_folders(
    source: Source, kind: FileKind, files: FileEntries, level: int | None
) -> tuple[list[_Class], dict[str, str]]:
    """Return the folders in those of classes, in the order of their samples; and those of splits above, if any."""
    paths = files.folders[0]
    filled: list[_Folder] = [(tuple(path.split("/")) if path else (), number) for number, path in enumerate(paths)]
    folders = _unwrap([*filled, *_without_files(source, kind, filled)])
    splits = _split_folders([parts for parts, number in folders if parts and number >= 0], source, paths)
    return sorted(_classes_in(folders, splits, level)), splits


def _without_files(source: Source, kind: FileKind, filled: list[_Folder]) -> list[_Folder]:
    """Find the folders that may be classes and are empty, or hold only pictures in formats that are not read."""
    names = set(source.tree.empty_folders)
    # Covers and spectrograms beside clips are no class.
    if kind.extensions != words.SOUNDS:
        names.update(filter(None, source.ending_in(_OTHER_PICTURES).folders[0]))
    # A folder above one with files is not a class of its own.
    used = {parts[:depth] for parts, _ in filled for depth in range(1, len(parts) + 1)}
    return [
        (parts, -1)
        for parts in sorted({tuple(name.split("/")) for name in names} - used)
        if not any(map(words.is_foreign, parts)) and not words.is_split(parts[-1]) and not words.is_role(parts[-1])
    ]


def _below(folders: list[_Folder], top: str) -> list[_Folder]:
    """Return the folders as seen from one of them; with an empty path if they are elsewhere."""
    return [(parts[1:] if parts[:1] == (top,) else (), number) for parts, number in folders]


def _has_classes(parts: tuple[str, ...]) -> bool:
    """Tell whether there is more below the outermost folder than its name again, or a folder such as `images`."""
    return any(split_name(name) != split_name(parts[0]) for name in parts[1:] if not words.holds_images(name))


def _unwrap(folders: list[_Folder]) -> list[_Folder]:
    """Remove the folders that all files share, down to the one with the class or split folders."""
    # Files beside the wrapping folder (a preview, a logo) do not make it a class; nor does a folder of unsorted test
    # images.
    nested = [parts for parts, number in folders if parts and number >= 0]
    tops = {parts[0] for parts in nested if _has_classes(parts) or not words.is_split(parts[0])}
    if len(tops) != 1:
        return folders
    (top,) = tops
    inside = [parts[1:] for parts in nested if parts[0] == top]
    if len(inside) < len(nested) and not _holds_splits(inside):
        return folders
    # One class with a folder in it, beside classes without files, looks like a wrapper of one class.
    is_alone = all(number >= 0 or parts[0] == top for parts, number in folders)
    one_class = not is_alone and len({parts[:1] for parts in inside}) == 1
    if top.lower() in words.SPLITS or one_class or not all(inside):
        return folders
    # What remains beside a wrapper is not in a class folder.
    return _unwrap(_below([one for one in folders if one[1] >= 0 or one[0][0] == top], top))


def _holds_splits(inside: list[tuple[str, ...]]) -> bool:
    """Tell whether a folder, or the folder that it wraps, holds several split folders."""
    inner = {parts[0] for parts in inside if parts}
    if len(inner) == 1 and all(inside):
        return _holds_splits([parts[1:] for parts in inside])
    return len(inner) > 1 and all(map(words.is_split, inner))


def paths_to(folders: Iterable[str], *names: str) -> list[str]:
    """Return the paths of the outermost folders of each of these names, wherever they are."""
    paths = [folder.split("/") for folder in folders]
    every = ({"/".join(path[: path.index(name) + 1]) for path in paths if name in path} or {name} for name in names)
    return sorted(set[str]().union(*every))


def _split_folders(paths: list[tuple[str, ...]], source: Source, folders: Sequence[str]) -> dict[str, str]:
    """Return the split folders with the stored name of each split; empty if the folders are classes.

    Their names agree apart from the split: seg_train and seg_test; rps, which is then `train`, and rps-test-set.
    """
    tops = sorted({parts[0] for parts in paths})
    deep = {parts[0] for parts in paths if _has_classes(parts)}
    splits = {top: words.SPLITS[top.lower()] for top in tops if top.lower() in words.SPLITS}
    splits = splits if len(splits) > 1 else _called_alike(tops, deep) or splits
    # A split without class folders beside splits that have them is unlabelled: seg_pred, single_prediction.
    has_classes = not deep.isdisjoint(splits)
    others = [top for top in tops if top not in splits]
    # A single "train" among other folders is a class of vehicles, unless it has classes and test_stg1 beside it none.
    if len(splits) < 2 and any(top in deep or not split_name(top).split or not has_classes for top in others):
        return {}
    others = [top for top in others if top in deep or not has_classes]
    if others or len(set(splits.values())) < len(splits):
        what = f"others ({listed(others)})" if others else "several for one split"
        only = only_line(source.tree, *paths_to(folders, *splits))
        msg = (
            f"'{source.label}' mixes folders of splits ({listed(sorted(splits))}) with {what}. "
            f"{f'Take the splits alone, {only}, or move' if others else 'Move'} the others away, or into the splits."
        )
        raise LayoutError(msg)
    return splits


def _called_alike(tops: Sequence[str], deep: Collection[str]) -> dict[str, str]:
    """Return folders whose names agree apart from the split, with it; empty unless one holds folders (`deep`)."""
    read = {top: split_name(top) for top in tops}
    rests = {read[top].rest for top in deep if read[top].split}
    splits = {top: name.split for top, name in read.items() if name.split and name.rest in rests}
    bare = [top for top in deep if not read[top].split and read[top].rest in rests and read[top].rest]
    if len(bare) == 1 and "train" not in splits.values():
        splits[bare[0]] = "train"
    return splits if len(rests) == 1 and len(splits) > 1 else {}


def _classes_in(folders: list[_Folder], splits: dict[str, str], level: int | None) -> Iterator[_Class]:
    """Yield the folders that are in those of classes, which are below those of splits."""
    # A folder of one name in each split, such as data, is no class.
    inner = {parts[1] for parts, number in folders if number >= 0 and len(parts) > 1 and parts[0] in splits}
    for top, split in (splits or {"": ""}).items():
        wrappers = {top, *(inner if len(inner) == 1 else ())}
        below = _unwrap_split(_below(folders, top), wrappers) if splits else folders
        for parts, number in below:
            if parts:
                at = _place_of(parts, level) if level is not None and number >= 0 else 0
                yield _Class(words.SPLIT_ORDER.get(split, 0), parts[at], "/".join(parts), split, number)


def _unwrap_split(folders: list[_Folder], wrappers: Collection[str]) -> list[_Folder]:
    """Remove a folder that repeats the split, or is merely called images: seg_train/seg_train/forest."""
    inner = {parts[0] for parts, number in folders if parts and number >= 0}
    if len(inner) != 1 or any(len(parts) == 1 for parts, _ in folders):
        return folders
    (name,) = inner
    if split_name(name) not in map(split_name, wrappers) and not words.holds_images(name):
        return folders
    return _unwrap_split(_below(folders, name), wrappers)


def _place_of(parts: tuple[str, ...], level: int) -> int:
    at = level - 1 if level > 0 else len(parts) + level
    if not 0 <= at < len(parts):
        deep = format_count(len(parts), "folders")
        msg = f"folders(level={level}): '{'/'.join(parts)}' is {deep} deep. -1 is the innermost."
        raise LayoutError(msg)
    return at


def _flat_splits(found: list[_Class]) -> set[str]:
    """Return the splits whose only folder is called images or repeats the split's name while others have classes."""
    by_split: dict[str, set[str]] = defaultdict(set)
    for one in found:
        by_split[one.split].add(one.name)
    flat = {
        split
        for split, names in by_split.items()
        if len(names) == 1 and all(words.holds_images(name) or split_name(name).split == split for name in names)
    }
    others = {name for split, names in by_split.items() if split not in flat for name in names}
    return {split for split in flat if others and not by_split[split] & others}


def _listed_classes(source: Source, names: list[str], classes: list[str]) -> dict[str, dict[str, str]]:
    """Return the class of each of some files, from the list beside their folder."""
    above = posixpath.dirname(posixpath.dirname(names[0]))
    for entry in source.ending_in((".txt",)).where(lambda name: posixpath.dirname(name) == above):
        lines = (line.split("\t") for line in source.text(entry).splitlines())
        stated = {words.normal(cells[0].strip()): cells[1].strip() for cells in lines if len(cells) > 1}
        found = {name: stated.get(words.normal(posixpath.basename(name)), "") for name in names}
        # A list may be another dataset's, or about something else.
        if not {*found.values()} <= {*classes}:
            continue
        return {entry.name: found}
    return {}


def _note_on_numbers(names: Sequence[str], what: str) -> Iterator[str]:
    """Say if classes are numbers other than their labels: 10 is sorted before 2, and 1 may be the first."""
    are_numbers = all(name.isascii() and name.isdecimal() and len(name) < 20 for name in names)
    odd = next((place for place, name in enumerate(names) if are_numbers and int(name) != place), None)
    if odd is not None:
        yield f"The {what} have numbers as names; labels are their positions: '{names[odd]}' is {odd}, classes[{odd}]."


def bare_stem(name: str, folder: str) -> str:
    """Return a file's stem without the words of its folder and without leading zeros, as the parts of a sample share
    it: red_patch_1 in train_red, top_2_1_label in labels, img001 in images."""
    found = [word.lower() for word in re.findall(r"[A-Za-z]+", folder)]
    ends = {*found, *(word.rstrip("s") for word in found), *_PART_ENDS}
    parts = re.split(r"[ ._-]+|(?<=[a-z])(?=\d)", words.stem_of(name).lower())
    parts = [part for part in parts if part and part not in ends]
    return "_".join(part.lstrip("0") or "0" if part.isdecimal() else part for part in parts)


def second_copies(source: Source) -> frozenset[str]:
    """Return the files of folders that repeat another one of their name, in any case, as archives on Kaggle have them
    (cell_images/cell_images, Train and train): otherwise the same samples would be in two splits, or a table could mean
    either. Names and sizes are compared, and the content of a few images or clips and of all that may label them."""
    media = {*words.IMAGES, *words.SOUNDS}
    files = source.files.not_ending_in(words.HARMLESS - media)
    folders = {path for one in files.folders[0] if one for path in itertools.accumulate(one.split("/"), posixpath.join)}
    called: dict[str, list[str]] = defaultdict(list)
    for path in folders:
        called[posixpath.basename(path).lower()].append(path)
    few = (sorted(one, key=lambda path: (path.count("/"), path)) for one in called.values() if len(one) <= _MOST_COPIES)
    pairs = {_outermost(*pair) for paths in few for pair in itertools.combinations(paths, 2)}
    numbers = {name: number for number, name in enumerate(files.names)} if pairs else {}
    others = {*files.not_ending_in(media).names} if pairs else set[str]()
    copies: set[int] = set()
    for first, copy in pairs:
        rows = _rows_below(files.names, copy)
        below = [files.names[row].removeprefix(f"{copy}/") for row in rows]
        found = (numbers.get(posixpath.join(first, name), -1) for name in below)
        own = [*itertools.takewhile(lambda number: number >= 0, found)]
        sizes, labels = files.sizes[own], [place for place, row in enumerate(rows) if files.names[row] in others]
        if len(own) < len(rows) or (sizes != files.sizes[rows.start : rows.stop]).any():
            continue
        # Masks may be the same for the images of two folders, labels differ for the same, and empty files are alike.
        if not np.delete(sizes, labels).any() or sizes[labels].sum() > _MOST_LABEL_BYTES:
            continue
        places = sorted({*labels, *range(0, len(own), 1 + len(own) // _COMPARED)})
        some = [(own[place], rows[place]) for place in places]
        contents = source.parse(files.take(np.unique(some)), lambda _, content: content)
        is_same = all(contents[files.names[one]] == contents[files.names[other]] for one, other in some)
        if first and first.lower() != copy.lower() and not copy.startswith(f"{first}/"):
            # Equal sizes of files that are all as large, as pixels without compression are, prove nothing; nor do blank
            # files. Two classes may hold a folder each of the same images, or one some of another's.
            is_same &= len(some) == len(own) or len(np.unique(sizes)) > 1
            is_same &= len({*contents.values()}) > 1 and len({name.partition("/")[0] for name in below}) > 1
            is_same &= len(_rows_below(files.names, first)) == len(own)
        if is_same and split_of_path(f"{first}/") == split_of_path(f"{copy}/"):
            copies.update(rows)
    return frozenset(files.names[number] for number in copies)


def _outermost(first: str, copy: str) -> tuple[str, str]:
    """Return the outermost folders that may hold the same, as these two of one name do."""
    while not copy.startswith(f"{first}/") and posixpath.basename(first) == posixpath.basename(copy):
        first, copy = posixpath.dirname(first), posixpath.dirname(copy)
    return first, copy


def _rows_below(names: Sequence[str], folder: str) -> range:
    # The files below a folder follow one another; "0" is the character behind "/".
    return range(bisect.bisect_left(names, f"{folder}/"), bisect.bisect_left(names, f"{folder}0"))

"""Evidence of folders: the classes and splits of files by the folders that they are in, and why those may be none."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.io.units import format_count, left_out, listed
from colabstage.layouts.evidence import Evidence, FileKind, count_kinds, left_out_notes
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import BrokenDatasetError, Images, SampleTable, Values
from colabstage.layouts.words import (
    IMAGES,
    SOUNDS,
    SPLIT_ORDER,
    SPLITS,
    holds_images,
    is_foreign,
    is_part,
    is_role,
    is_split,
    may_be_mates,
    normal,
    shared_folders,
    split_name,
    stem_of,
)
from colabstage.trees.listing import only_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries

# Pictures in formats that are not read: a folder of them is a class whose samples are missing.
_OTHER_PICTURES = (".svg", ".psd", ".dng", ".cr2", ".nef", ".exr")


class _Folder(NamedTuple):
    """A folder with files of the kind, or an empty one."""

    parts: tuple[str, ...]
    """Its path below the folders that only wrap the dataset; empty if it is no class."""
    number: int
    """Its number among folders with files; -1 if it is empty."""

    @property
    def has_classes(self) -> bool:
        """Tell whether there is more below the outermost folder than its name again, or a folder such as `images`."""
        return any(split_name(name) != split_name(self.parts[0]) for name in self.parts[1:] if not holds_images(name))

    def below(self, top: str) -> _Folder:
        """Return the same as seen from a folder; with no path if it is elsewhere."""
        return self._replace(parts=self.parts[1:] if self.parts[:1] == (top,) else ())


class _ClassFolder(NamedTuple):
    """The sort key of samples, which all samples of a folder share, and the folder's number."""

    split_order: int
    class_name: str
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
    it. A class folder without files keeps its number, as in torchvision, where the tree knows of it.

    Args:
        source: the files.
        kind: which of them are samples.
        level: which folder is the class, counted from the first that differs, from 1; negative from the innermost.
    """
    files = _find_files(source, kind)
    paths, folder_of_file = files.folders
    parts_of = [tuple(path.split("/")) if path else () for path in paths]
    filled = [_Folder(() if any(map(is_foreign, one)) else one, number) for number, one in enumerate(parts_of)]
    folders = _unwrap([*filled, *_without_files(source, kind, filled)])
    splits = _split_folders([folder for folder in folders if folder.number >= 0], source.label)
    found = sorted(_classes(folders, splits, level))
    found, flat = _without_flat(found) if splits and level is None else (found, [])
    if not any(folder.number >= 0 for folder in found):
        where = f"the folders {listed(sorted(splits))}" if splits else "one folder"
        msg = (
            f"'{source.label}' holds {len(files):,} {kind.noun} directly in {where} (first '{files.names[0]}'), but "
            f"the layout {kind.layout} needs one folder for each class, with the {kind.noun} of the class in it."
        )
        raise LayoutError(msg)
    # Numbered before folders without files are dropped, as in torchvision.
    classes = sorted({folder.class_name for folder in found})
    found = [folder for folder in found if folder.number >= 0]
    labels_of, lists = _listed_classes(source, files, folder_of_file, flat, classes)
    # The files of a folder are already sorted by name, like all files of a tree.
    every = sorted([*found, *(folder for folder in flat if folder.number in labels_of)])
    ranks = np.full(len(filled), len(every), np.int32)
    ranks[[folder.number for folder in every]] = np.arange(len(every))
    ranks = ranks[folder_of_file]
    order = np.argsort(ranks, kind="stable")[: np.count_nonzero(ranks < len(every))]
    ranks = ranks[order]
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers.get(folder.class_name, -1) for folder in every], np.int64)[ranks]
    for number, found_labels in labels_of.items():
        labels[folder_of_file[order] == number] = [numbers[label] for label in found_labels]
    notes = left_out_notes((len(files) - len(order), kind.noun, "in no class folder"))
    # Omitted files are counted by kind, so that a person sees whether labels were among them.
    others = source.files.not_ending_in(kind.extensions)
    if others:
        notes.append(f"{left_out(len(others), 'other files')} ({count_kinds(others)}).")
    notes += [*_notes(found, classes, kind.noun), *(f"Classes of '{one}' are read." for one in lists)]
    chosen = files.take(order)
    table = SampleTable(
        layout=kind.layout,
        keys=chosen.names,
        inputs=Images(TreeFiles(source.tree, chosen)),
        targets=Values(labels),
        classes=tuple(classes),
        splits=tuple([every[rank].split for rank in ranks.tolist()]) if splits else None,
        notes=tuple(notes),
    )
    return Evidence(table, "the folders", frozenset(lists))


def _find_files(source: Source, kind: FileKind) -> FileEntries:
    files = source.ending_in(kind.extensions)
    if len(files):
        return files
    msg = f"'{source.label}' holds no files. {' '.join(source.tree.notes)}".rstrip()
    if len(source.files):
        msg = (
            f"'{source.label}' holds no {kind.noun} but {count_kinds(source.files)}. {kind.noun.capitalize()} are "
            f"files that end in {', '.join(kind.extensions)}."
        )
    raise EmptySourceError(msg)


def _without_files(source: Source, kind: FileKind, filled: list[_Folder]) -> list[_Folder]:
    """Find the folders without files of the kind that are empty or hold only pictures in unreadable formats."""
    names = set(source.tree.empty_folders)
    # Covers and spectrograms beside audio are not a class.
    if kind.extensions != SOUNDS:
        names |= {folder for folder in source.ending_in(_OTHER_PICTURES).folders[0] if folder}
    # A folder above one with files is not a class of its own.
    used = {folder.parts[:depth] for folder in filled for depth in range(1, len(folder.parts) + 1)}
    return [
        _Folder(parts, -1)
        for parts in sorted({tuple(name.split("/")) for name in names} - used)
        if not any(map(is_foreign, parts)) and not is_split(parts[-1]) and not is_role(parts[-1])
    ]


def _unwrap(folders: list[_Folder]) -> list[_Folder]:
    """Remove the folders that all files share, down to the one with the class or split folders."""
    # Files beside the wrapping folder (a preview, a logo) do not make it a class; nor does a folder of unsorted test
    # images.
    nested = [folder for folder in folders if folder.parts and folder.number >= 0]
    tops = {folder.parts[0] for folder in nested if folder.has_classes or not is_split(folder.parts[0])}
    if len(tops) != 1:
        return folders
    (top,) = tops
    inside = [folder for folder in nested if folder.parts[0] == top]
    if len(inside) < len(nested) and not _holds_splits([folder.parts[1:] for folder in inside]):
        return folders
    # One class with a folder in it, beside classes without files, looks like a wrapper of one class.
    empty = any(folder.number < 0 and folder.parts[0] != top for folder in folders)
    one_class = empty and len({folder.parts[1:2] for folder in inside}) == 1
    if top.lower() in SPLITS or one_class or any(len(folder.parts) == 1 for folder in inside):
        return folders
    # What remains beside a wrapper is not in a class folder.
    return _unwrap([folder.below(top) for folder in folders if folder.number >= 0 or folder.parts[:1] == (top,)])


def _holds_splits(inside: list[tuple[str, ...]]) -> bool:
    """Tell whether a folder, or the folder that it wraps, holds several split folders."""
    inner = {parts[0] for parts in inside if parts}
    if len(inner) == 1 and all(inside):
        return _holds_splits([parts[1:] for parts in inside])
    return len(inner) > 1 and all(map(is_split, inner))


def _split_folders(folders: list[_Folder], label: str) -> dict[str, str]:
    """Return the split folders with the stored name of each split; empty if the folders are classes."""
    tops = {folder.parts[0] for folder in folders if folder.parts}
    deep = {folder.parts[0] for folder in folders if folder.has_classes}
    splits = {top: SPLITS[top.lower()] for top in tops if top.lower() in SPLITS}
    if len(splits) < 2:
        splits = _spelled_splits(tops, deep) or splits
    # A split without class folders beside splits that have them is unlabelled: seg_pred, single_prediction.
    others = sorted(tops - splits.keys())
    if len(splits) < 2 and others:
        return {}  # A single "train" among other folders is a class of vehicles.
    others = [top for top in others if top in deep or not deep & splits.keys()]
    if others or len(set(splits.values())) < len(splits):
        what = f"others ({listed(others)})" if others else "several for one split"
        msg = (
            f"'{label}' mixes folders of splits ({listed(sorted(splits))}) with {what}. Move them away, or into the "
            "splits."
        )
        raise LayoutError(msg)
    return splits


def _spelled_splits(tops: set[str], deep: set[str]) -> dict[str, str]:
    """Find splits with other spellings, if the names agree apart from the split: seg_train and seg_test; rps, which is
    then `train`, and rps-test-set. Empty if they do not."""
    read = {top: split_name(top) for top in tops}
    named = {top for top in deep if read[top].split}
    rests = {read[top].rest for top in named}
    if len(rests) != 1:
        return {}
    splits = {top: name.split for top, name in read.items() if name.split and name.rest in rests}
    bare = [top for top in deep - named if read[top].rest in rests and read[top].rest]
    if len(bare) == 1 and "train" not in splits.values():
        splits[bare[0]] = "train"
    return splits if len(splits) > 1 else {}


def _classes(folders: list[_Folder], splits: dict[str, str], level: int | None) -> Iterator[_ClassFolder]:
    for top, split in (splits or {"": ""}).items():
        below = _unwrap_split([folder.below(top) for folder in folders], top) if splits else folders
        for parts, number in below:
            if parts:
                at = _checked_level(parts, level) if level is not None and number >= 0 else 0
                yield _ClassFolder(SPLIT_ORDER.get(split, 0), parts[at], "/".join(parts), split, number)


def _unwrap_split(folders: list[_Folder], split: str) -> list[_Folder]:
    """Remove a folder that repeats the split, or is merely called images: seg_train/seg_train/forest."""
    inner = {folder.parts[0] for folder in folders if folder.parts and folder.number >= 0}
    if len(inner) != 1 or not all(len(folder.parts) > 1 for folder in folders if folder.parts):
        return folders
    (name,) = inner
    if split_name(name) != split_name(split) and not holds_images(name):
        return folders
    return _unwrap_split([folder.below(name) for folder in folders], split)


def _checked_level(parts: tuple[str, ...], level: int) -> int:
    at = level - 1 if level > 0 else len(parts) + level
    if not 0 <= at < len(parts):
        msg = (
            f"folders(level={level}): '{'/'.join(parts)}' is {format_count(len(parts), 'folders')} deep. Choose a "
            "level that every sample has; -1 is the innermost."
        )
        raise LayoutError(msg)
    return at


def _without_flat(found: list[_ClassFolder]) -> tuple[list[_ClassFolder], list[_ClassFolder]]:
    """Return the class folders, and the folders of splits whose only folder is called images or repeats the split's
    name while other splits have class folders."""
    by_split = _classes_by_split(found)
    flat = {
        split
        for split, names in by_split.items()
        if len(names) == 1 and all(holds_images(name) or split_name(name).split == split for name in names)
    }
    others = {name for split, names in by_split.items() if split not in flat for name in names}
    flat = {split for split in flat if others and not by_split[split] & others}
    return [one for one in found if one.split not in flat], [one for one in found if one.split in flat]


def _classes_by_split(found: Iterable[_ClassFolder]) -> dict[str, set[str]]:
    by_split: dict[str, set[str]] = {}
    for folder in found:
        by_split.setdefault(folder.split, set()).add(folder.class_name)
    return by_split


def _listed_classes(
    source: Source, files: FileEntries, folder_of_file: NDArray[Any], flat: list[_ClassFolder], classes: list[str]
) -> tuple[dict[int, list[str]], list[str]]:
    """Return the classes of the files of each folder beside which a list of names and classes states them, by its
    number; and the lists."""
    labels: dict[int, list[str]] = {}
    used = []
    for folder in flat:
        names = [files.names[number] for number in np.flatnonzero(folder_of_file == folder.number).tolist()]
        above = posixpath.dirname(posixpath.dirname(names[0]))
        for entry in source.ending_in((".txt",)).where(lambda name: posixpath.dirname(name) == above):  # noqa: B023
            lines = (line.split("\t") for line in source.text(entry).splitlines())
            stated = {normal(name.strip()): label.strip() for name, label, *_ in (one for one in lines if len(one) > 1)}
            found = [stated.get(normal(posixpath.basename(name)), "") for name in names]
            if not found[0]:
                continue
            # A list from another dataset, or of words other than the folders' names, would give wrong labels to all.
            wrong = next((place for place, label in enumerate(found) if label not in classes), None)
            if wrong is not None:
                msg = (
                    f"'{entry.name}' gives the class '{found[wrong]}', but no folder has that name, to "
                    f"'{names[wrong]}'; expected one of {listed(classes)}. Correct the list."
                )
                raise BrokenDatasetError(msg)
            labels[folder.number] = found
            used.append(entry.name)
            break
    return labels, used


def _notes(found: list[_ClassFolder], classes: list[str], noun: str) -> Iterator[str]:
    """Say what of the folders a loss, or a list of names, may not expect."""
    by_split = _classes_by_split(found)
    everything = set().union(*by_split.values())
    for split, own in by_split.items():
        if own != everything:
            lacks = format_count(len(everything - own), "classes")
            yield f"The split '{split}' has no {noun} of {lacks}: {listed(sorted(everything - own))}."
    # 10 is sorted before 2, and names that count from 1 get labels from 0.
    names = sorted(everything)
    numbered = all(name.isascii() and name.isdecimal() and len(name) < 20 for name in names)
    odd = next((place for place, name in enumerate(names) if numbered and int(name) != place), None)
    if odd is not None:
        yield (
            "The folders have numbers as names, and labels are other numbers: positions in the text order of these "
            f"names, in which '{names[odd]}' is {odd}. classes[label] is the folder's name."
        )
    empty = [name for name in classes if name not in everything]
    if empty:
        yield f"The folders {listed(empty)} hold no {noun}; they still count as classes, as in torchvision."


# --- why folders are no classes ---------------------------------------------------------------------------------------


def why_not_classes(found: Evidence, *, may_be_one: bool = False) -> str:
    """Return why folders are probably no classes, and what to write; "" if they may be.

    Args:
        found: what the folders state.
        may_be_one: whether a single class is fine, because the samples are added to others.
    """
    levels = _Levels(found.table)
    if len(levels.classes) < 2 and not may_be_one:
        return (
            "that is one class, and there is nothing to learn from one. Expected a folder for each class, a table of "
            "labels beside the images, or their class in the files' names: layout=file_names(PATTERN)."
        )
    doubts = (levels.roles, levels.parts_below, levels.deeper, levels.mates, levels.strange_split)
    return next((why for doubt in doubts if (why := doubt())), "")


class _Levels:
    """The folders of samples that may be classes: their depth, and their names."""

    def __init__(self, table: SampleTable) -> None:
        self.table = table
        self.classes = table.classes
        source, targets = table.inputs.source, table.targets
        assert isinstance(source, TreeFiles)
        assert isinstance(targets, Values)
        self.files, self.tree, self.labels = source.entries, source.tree, targets.values
        self.folders, self.folder_of = self.files.folders

    def _choose(self, *, only: str = "", inner: bool = False, parts: Sequence[str] = ()) -> str:
        """Write what chooses one of several readings of folders: a part of the source, the innermost folders, or two
        folders of parts of each sample."""
        # A class's folder alone, wherever that is in the source.
        paths = (folder.split("/") for folder in self.folders)
        found = ["/".join(path[: path.index(only) + 1]) for path in paths if only in path]
        ways = [
            f"one of the outer folders alone: {only_line(self.tree, min(found, key=len, default=only))}"
            if only
            else "",
            f"images and masks: layout=parts(x='{parts[0]}', y='{parts[-1]}')" if parts else "",
            "the inner folders: layout=folders(level=-1)" if inner else "",
            f"the class in the paths: layout=file_names({_INNERMOST if inner else 'PATTERN'})",
        ]
        return f"Say which is meant, from colabstage.options: {'; '.join(filter(None, ways))}."

    def _below(self) -> dict[str, set[tuple[str, ...]]]:
        """Return for each class the paths of folders in it that contain samples, without those that say nothing: parts
        of samples, and folders below every class."""
        # As single numbers, because sorting a million pairs takes ten times as long and twice the memory.
        pairs = np.unique(self.folder_of.astype(np.int64) * len(self.classes) + self.labels)
        places = [divmod(pair, len(self.classes)) for pair in pairs.tolist()]
        # A folder above all of them may have a class's name: cell_images/cell_images.
        depth = len(shared_folders(f"{self.folders[folder]}/" for folder, _ in places)) if len(self.classes) > 1 else 0
        rests: dict[str, set[tuple[str, ...]]] = {name: set() for name in self.classes}
        for folder, label in places:
            name, path = self.classes[label], self.folders[folder].split("/")
            rest = path[path.index(name, depth) + 1 :] if name in path[depth:] else []
            rests[name].add(tuple(part for part in rest if not is_role(part)))
        while len(first := {rest[:1] for inner in rests.values() for rest in inner}) == 1 and () not in first:
            rests = {name: {rest[1:] for rest in inner} for name, inner in rests.items()}
        return rests

    def deeper(self) -> str:
        """Find samples below the folders: variants of one dataset, parts of each sample, or the classes."""
        rests = self._below()
        below = {name: {(*rest, "")[0] for rest in inner} for name, inner in rests.items()}
        flat = [name for name, inner in below.items() if inner == {""}]
        common = set.intersection(*below.values()) if len(below) > 1 else set()
        again = next((name for name, inner in below.items() if len((inner & below.keys()) - {name}) > 1), "")
        wide = next((name for name, inner in rests.items() if len(inner - {()}) > 1), "")
        # Beside folders with files of their own, only a lone one with folders is odd: a repository's pictures.
        if any("" in inner for inner in below.values()) and (
            not wide or not flat or len(flat) < len(below) - 1 or "" in below[wide]
        ):
            wide = ""
        variants = len(common) > 1 and "" not in common
        name = next(iter(below)) if variants else again or wide
        if not name:
            return ""
        inside = {rest[0] if len(below[name] - {""}) > 1 else "/".join(rest) for rest in rests[name] - {()}}
        beside = f", and {listed(flat)} beside it hold {self.table.unit} directly" if flat else ""
        how = self._choose(only=name if variants or again or flat else "", inner=not flat and not again)
        return f"'{name}' holds the folders {listed(sorted(inside))}, which may be the classes as well{beside}. {how}"

    def parts_below(self) -> str:
        """Find folders of images and of masks below the classes: the masks are not samples."""
        folders = {name for folder in self.folders for name in folder.split("/")}
        # train_images and val_images above the classes are splits, despite the word images.
        above = {name for name in folders if is_split(name)} if self.table.splits is not None else set()
        found = sorted(folder for folder in folders - above - set(self.classes) if is_role(folder))
        return f"{listed(found)} hold parts of each sample. {self._choose(parts=found)}" if len(found) > 1 else ""

    def roles(self) -> str:
        """Find the folders called after splits, or after what they hold of each sample, unless one stands among real
        classes."""
        splits = {name: read for name in self.classes if (read := split_name(name)).split}
        # "train" among ships and cars is a vehicle, "test tube" beside "beaker" a thing; training_fake beside
        # training_real are two classes of one split.
        one_split = len({read.split for read in splits.values()}) == 1
        of_one = one_split and len({read.rest for read in splits.values()}) == len(splits)
        odd = {name for name, read in splits.items() if not read.rest or (len(splits) > 1 and not of_one)}
        odd |= {name for name in self.classes if is_role(name)}
        # Of folds, or of pictures before and after, each folder is a part; "depth" among other words is a class.
        parts = {name for name in self.classes if is_part(name)}
        if parts and len(parts | splits.keys()) == len(self.classes):
            odd |= parts
        if not odd or (len(odd) == 1 and len(self.classes) > 2):
            return ""
        return (
            f"{listed(sorted(odd))} {'is a name' if len(odd) == 1 else 'are names'} of parts of a dataset, and nothing "
            "says what of each sample they hold. "
            f"{self._choose(only=min(self.classes), parts=sorted(self.classes))}"
        )

    def mates(self) -> str:
        """Find folders that hold parts of one sample: the same stems are in each of them."""
        classes = self.classes
        named = any(is_role(name) for name in classes)
        if not 2 <= len(classes) <= _MOST_PARTS or not (named or may_be_mates(classes, "a")):
            return ""
        stems = []
        for number, name in enumerate(classes):
            rows = np.flatnonzero(self.labels == number)[:_STEMS_COMPARED]
            stems.append({bare_stem(self.files.names[row], name) for row in rows.tolist()} - {""})
        smallest = min(stems, key=len)
        differ = any(2 * len(smallest & own) < len(smallest) for own in stems)
        # Plain numbers alone say nothing; that each folder has all of them does, where one is called "label" and none
        # has the name of a thing: A, B, label.
        nameless = all(len(name) == 1 or is_role(name) or is_part(name) for name in classes)
        same = named and nameless and all(own == smallest for own in stems)
        if not smallest or differ or not (same or may_be_mates(classes, min(smallest))):
            return ""
        return (
            f"the {self.table.unit} in {listed(sorted(classes))} have the same names ('{min(smallest)}', …): they may "
            f"be parts of each sample, such as an image and its mask. {self._choose(parts=classes)}"
        )

    def strange_split(self) -> str:
        """Find a split most of whose classes are not in `train`."""
        pairs = set(zip(self.table.splits or (), self.labels.tolist(), strict=False))
        # Tested classes must be trained, so without them the folders are something else.
        known = {label for split, label in pairs if split == "train"}
        for odd in dict.fromkeys(split for split, _ in sorted(pairs)):
            own = {label for split, label in pairs if split == odd}
            if known and 2 * len(own & known) < len(own):
                names, trained = (listed([self.classes[label] for label in sorted(one)]) for one in (own, known))
                return (
                    f"most classes of the split '{odd}' ({names}) are not in 'train' ({trained}). Name its folders as "
                    "those of 'train', or move it away."
                )
        return ""


_INNERMOST = r"r'([^/]+)/[^/]+$'"
# More folders are classes.
_MOST_PARTS = 16
_STEMS_COMPARED = 64


def bare_stem(name: str, folder: str) -> str:
    """Return a file's stem without the words of its folder and without leading zeros, as parts of a sample share it:
    red_patch_1 in train_red, top_2_1_label in labels."""
    found = [word.lower() for word in re.findall(r"[A-Za-z]+", folder)]
    words = {*found, *(word.rstrip("s") for word in found), *_PART_ENDS}
    parts = [part for part in re.split(r"[ ._-]+", stem_of(name).lower()) if part and part not in words]
    return "_".join(part.lstrip("0") or "0" if part.isdecimal() else part for part in parts)


_PART_ENDS = frozenset({"mask", "label", "labels", "gt", "seg", "hair", "skin", "l", "rgb", "img", "image"})


# Number of duplicated images that are read to make sure that they are the same.
_COMPARED = 8


def second_copy(source: Source) -> frozenset[str]:
    """Return the images in a folder that holds every image of the tree once more, as archives on Kaggle do
    (cell_images/cell_images): otherwise the same images would be in two splits."""
    files = source.ending_in(IMAGES)
    folders = {f"{folder}/".lstrip("/") for folder in files.folders[0]}
    top = "".join(f"{folder}/" for folder in shared_folders(folders))
    # A copy is deeper than its original. Compared are folders, names, sizes, and the content of a few.
    *parts, _ = max(folders, key=lambda folder: folder.count("/"), default="").removeprefix(top).split("/")
    for depth in range(1, len(parts)):
        copy = f"{top}{'/'.join(parts[:depth])}/"
        if not {top + folder.removeprefix(copy) for folder in folders if folder.startswith(copy)} <= folders:
            continue
        numbers = {name: number for number, name in enumerate(files.names)}
        found = [(numbers.get(top + name.removeprefix(copy)), name) for name in files.names if name.startswith(copy)]
        pairs = [(one, numbers[name]) for one, name in found if one is not None]
        same = [pair for pair in pairs if files.sizes[pair[0]] == files.sizes[pair[1]]]
        if 2 * len(same) != len(files):
            continue
        sides = zip(*same[:: 1 + len(same) // _COMPARED], strict=True)
        ones, others = ([*source.parse(files.take(np.array(side)), lambda _, data: data).values()] for side in sides)
        if ones == others:
            return frozenset(files.names[number] for _, number in same)
    return frozenset()

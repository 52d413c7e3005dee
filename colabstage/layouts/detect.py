"""Find the layout of a tree: a catalogue of what may state labels, strongest first, and the judge of what they state.

A layout finds evidence; its rivals are other evidence that may label the same samples. A contradiction is refused, and
`judge` decides on the rest. A new format is a module in `formats/` and a line in `LAYOUTS`.
"""

from __future__ import annotations

import difflib
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import (
    ColabstageError,
    EmptySourceError,
    LayoutError,
    MissingDependencyError,
    OptionError,
    ended,
    said_by,
)
from colabstage.io.arguments import as_arrays
from colabstage.io.packages import added_by_packages
from colabstage.io.units import NAMES_SHOWN, left_out
from colabstage.layouts import words
from colabstage.layouts.columns import NUMBER, divides_further, find_groups
from colabstage.layouts.evidence import (
    FEW,
    IMAGE_FOLDER,
    Evidence,
    FileKind,
    Found,
    Miss,
    class_of_samples,
    count_kinds,
    first_contradicted,
    gather,
    images_of,
    in_bytes,
    labels_of_samples,
    near,
    refuse,
    require_files,
    required,
    state_of,
)
from colabstage.layouts.formats import arrays, arrow, descriptions, detection, lmdb, masks, tfrecord, tokens, webdataset
from colabstage.layouts.formats.tables import LISTS, parse_table
from colabstage.layouts.judge import (
    TO_EXTRACT,
    UNLABELLED,
    Naming,
    Says,
    files_called,
    first_extract,
    judge,
    may_label,
    why_not_classes,
)
from colabstage.layouts.lists import LIST_ENDS, MOST_LISTS, Lookup, is_class_list, lists_state
from colabstage.layouts.names import folders_state, names_may_say, names_state, nothing_states, second_copies
from colabstage.layouts.reading import Source
from colabstage.layouts.rows import TABLE, LeadingTable, TableSearch
from colabstage.layouts.stored import AS_THEY_ARE, ClipOptions, clip_rows
from colabstage.layouts.table import (
    Boxes,
    BrokenDatasetError,
    Masks,
    SampleTable,
    class_indices,
    files_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.trees.listing import FileEntries, Tree

LayoutFunction = Callable[["Tree"], SampleTable]

AUDIO = FileKind("audio", "clips", words.SOUNDS)
# The samples of layouts; images for all others.
_KIND_OF = {one.layout: one for one in (AUDIO, arrays.EACH_A_SAMPLE)}


class Case:
    """The evidence in a source, each piece searched at most once."""

    def __init__(self, source: Source, *, is_more: bool = False) -> None:
        self.source = source
        self.is_more = is_more

    @cached_property
    def images(self) -> FileEntries:
        return self.source.ending_in(words.IMAGES)

    @cached_property
    def masks(self) -> Found:
        return gather(lambda: masks.masks_state(self.source))

    @cached_property
    def tables(self) -> TableSearch:
        return self.search(TABLE)

    def search(self, kind: FileKind) -> TableSearch:
        files = self.source.ending_in(kind.extensions)
        return TableSearch(self.source, kind, files, self.source.made_of(files, Lookup.of))

    def state_rows(
        self, labels: Sequence[str] | None = None, table: str | None = None, separator: str | None = None
    ) -> Found:
        """Return what tables, or lists, state about images, or otherwise about clips or arrays: the requested ones, or
        any. A requested table may also hold pixels."""
        if table is not None and labels is None:
            others = {name for name in self.source.files.names if not f"/{name}".endswith(f"/{table}")}
            pixels = gather(lambda: arrays.pixels_state(self.source.without(others)))
            if pixels.claims or (isinstance(pixels, Miss) and pixels.near):
                return pixels
        lists = not self.source.ending_in(words.TABLES) if table is None else table.lower().endswith(LISTS)

        def state(kind: FileKind) -> Found:
            search = replace(self.search(kind), labels=labels, table=table, separator=separator, lists=lists)
            return gather(search.state)

        found = state(TABLE)
        by_kind: dict[tuple[str, ...], Callable[[], Found]] = {
            words.SOUNDS: lambda: _as_clips(state(AUDIO), AS_THEY_ARE),
            arrays.EACH_A_SAMPLE.extensions: lambda: arrays.array_folder_state(self.source, state),
        }
        for extensions, other in by_kind.items():
            if not found.claims and self.source.ending_in(extensions):
                of_kind = gather(other)
                found = of_kind if of_kind.claims or not self.images else found
        return found

    @cached_property
    def rows(self) -> Found:
        return gather(self.tables.state)

    @cached_property
    def listed(self) -> Found:
        """Return what texts and JSON state about images."""
        return gather(replace(self.tables, lists=True).state)

    @cached_property
    def folders(self) -> Found:
        return gather(lambda: folders_state(self.source, IMAGE_FOLDER))

    def state_boxes(self) -> Found:
        """Return what boxes of KITTI, Pascal VOC, COCO, YOLO or a tool state, whichever exist."""
        require_files(self.images, self.source, "images")
        reasons = []
        for name, state in _BOXES:
            found = gather(lambda: state(self.source))  # noqa: B023 - called at once
            if found.claims:
                return found
            assert isinstance(found, Miss)
            reasons.append(f"{name}: {found.error}")
        return Miss(LayoutError(f"'{self.source.label}' has no boxes beside its images. {' '.join(reasons)}"))

    def state_audio(
        self, options: ClipOptions = AS_THEY_ARE, labels: Sequence[str] | None = None, pattern: str | None = None
    ) -> Found:
        """Return what `state_clips` does, with the splits of lists, as rows of one length."""
        return _as_clips(self._in_lists(self.state_clips(labels, pattern)), options)

    def state_arrays(self) -> Found:
        """Return what tables, or otherwise folders, state about arrays in a file each, with the splits of lists."""
        return self._in_lists(arrays.array_folder_state(self.source, self.state_files))

    def _in_lists(self, found: Found) -> Found:
        return gather(lambda: lists_state(self.source, found)) if isinstance(found, Evidence) else found

    def state_clips(self, labels: Sequence[str] | None = None, pattern: str | None = None) -> Found:
        """Return what their names, by a pattern, or tables, or otherwise folders, state about clips."""
        if pattern is not None:
            return gather(lambda: names_state(self.source, pattern=pattern, kind=AUDIO))
        require_files(self.source.ending_in(words.SOUNDS), self.source, f"clips of sound ({', '.join(words.SOUNDS)})")
        return self.state_files(AUDIO, labels)

    def state_files(self, kind: FileKind, labels: Sequence[str] | None = None) -> Found:
        """Return what tables, or otherwise folders, state about files of a kind."""
        found = gather(replace(self.search(kind), labels=labels).state)
        # Where label columns were named, a table is meant.
        if labels is not None:
            return found
        found = found if found.claims else gather(lambda: folders_state(self.source, kind))
        return _unless_rivals(self, found, (Rival("folders", "", _classes_by_folders),))

    @cached_property
    def card(self) -> tuple[str, dict[str, str]]:
        """Return the README of the Hugging Face Hub, and the splits of the files that it names."""
        return descriptions.splits_of_card(self.source) if self.source.ending_in((".md",)) else ("", {})

    def judge(self, found: Found) -> Found:
        """Return the judge's verdict on evidence, with the splits that a README states."""
        if isinstance(found, Evidence):
            alone = found
            found = gather(lambda: alone.in_splits_of(*self.card))
            # All in train is what a source without splits has too.
            found = alone if isinstance(found, Evidence) and {*(found.table.splits or ())} == {"train"} else found
        return found if isinstance(found, Miss) else judge(self.source, found, may_be_one=self.is_more)


def _as_clips(found: Found, options: ClipOptions) -> Found:
    if isinstance(found, Miss):
        return found
    inputs, note = clip_rows(found.table.inputs.source, options)
    return replace(found, table=replace(found.table, inputs=inputs)).noting(note)


def _classes_by_name(found: Evidence) -> dict[str, str]:
    """Return the class of each sample; empty unless each has one."""
    return dict(zip(found.table.keys, class_of_samples(found.table), strict=False))


# --- the catalogue ----------------------------------------------------------------------------------------------------


class Rival(NamedTuple):
    """Other evidence that may label the same samples."""

    who: str
    layout: str
    """The layout that reads it, for messages; "" for none."""
    state: Callable[[Case, Evidence], Found | None]
    """Returns what it states beside the evidence that was found; `None` where that says nothing else."""


class Layout(NamedTuple):
    """One line of the catalogue: a format, and how "auto" weighs it."""

    name: str
    state: Callable[[Case], Found]
    """Returns what it states if it is named."""
    weigh: Callable[[Case], Found] | None = None
    """Returns what it states for "auto", if other evidence must be weighed."""
    extensions: tuple[str, ...] = ()
    """"auto" looks for it only if the tree has files with one of these; empty if extensions do not decide."""
    archive: str = ""
    """"auto" also looks for it if the tree itself is read from archives of this kind."""
    of_many: bool = False
    """Whether its files hold many samples each. "auto" does not look into them if they are few beside images or clips,
    because that takes long."""
    rivals: tuple[Rival, ...] = ()

    def may_fit(self, source: Source) -> bool:
        """Tell whether "auto" must look for it: most trees have no files of most layouts."""
        own = source.ending_in(self.extensions)
        single = in_bytes(source.ending_in((*words.IMAGES, *words.SOUNDS))) if self.of_many else 0
        if not self.extensions or (len(own) and single <= FEW * in_bytes(own)):
            return True
        return bool(self.archive) and any(part.kind == self.archive for part in source.tree.parts())

    def find(self, case: Case, *, by_name: bool = False) -> Found:
        """Return what it states, unless a rival contradicts it; for a named layout, so is another file of it."""
        state = self.state if by_name or self.weigh is None else self.weigh
        rivals = [rival for rival in self.rivals if rival.layout == self.name or not by_name]
        return _unless_rivals(case, gather(lambda: state(case)), rivals)


def _unless_rivals(case: Case, found: Found, rivals: Iterable[Rival]) -> Found:
    """Return what was found, or the refusal if a rival states otherwise."""
    for rival in rivals:
        if isinstance(found, Evidence):
            found = _compared(case, found, rival)
    return found


def _compared(case: Case, found: Evidence, rival: Rival) -> Found:
    """Return the evidence, with the files of both if they agree; otherwise the refusal that names both."""
    other = gather(lambda: rival.state(case, found) or _NOTHING)
    if not other.claims:
        return found
    who, shown, layout = rival.who, "", found.table.layout
    is_plain = layout not in _WITH_LABELS
    ways = [
        _WITH_LABELS.get(layout, f'layout="{layout}"'),
        rival.layout and f'layout="{rival.layout}"',
        "layout=file_names(PATTERN)" if is_plain else case.source.only(found.table.keys, found.used),
    ]
    ways = sorted(filter(None, ways), key=lambda way: "(" in way)
    ways[-1] += ", from colabstage.options" * ("(" in ways[-1])
    if isinstance(other, Evidence):
        name = first_contradicted(found.table, other.table)
        if name is None:
            return replace(found, used=found.used | other.used)
        who = other.named if other.used else who
        shown = f" ('{name}': {state_of(found.table, name)}, {state_of(other.table, name)})"
        if rival.layout == layout:
            pairs = ((found, other), (other, found))
            alone = (case.source.only([*case.images.names, *one.used], two.used - one.used) for one, two in pairs)
            ways = [*filter(None, alone)]
    how = f"Take one of them: {' or '.join(ways)}." if ways else "Move the files of one away."
    what = f"The {found.table.unit} of '{case.source.label}' have labels by {found.named} and by {who}{shown}."
    return refuse(f"{what} {how}")


_NOTHING = Miss(LayoutError(""))
# What takes the labels of a table, where the bare name of the layout weighs folders as well.
_WITH_LABELS = {
    AUDIO.layout: "layout=audio_clips(labels=[COLUMN])",
    arrays.EACH_A_SAMPLE.layout: "layout=table_rows(labels=[COLUMN])",
}


# --- rivals -----------------------------------------------------------------------------------------------------------


def _boxes_beside(state: Callable[[Source], Found], case: Case, found: Evidence) -> Found | None:
    """Return what some boxes state, except in files that were used."""
    # Both may number classes by one list.
    other = state(case.source.without({name for name in found.used if not is_class_list(name)}))
    return other if isinstance(other, Evidence) else None


def _masks_beside(case: Case, found: Evidence) -> Found | None:
    # Pascal VOC also has masks, but people who stage it want the boxes.
    is_voc = any("SegmentationClass/" in name for name in case.source.ending_in((".png",)).names)
    return None if found.table.layout == detection.NAME and is_voc else case.masks


def _rows_beside(case: Case, found: Evidence) -> Found | None:
    """Return what tables state, also those that were read for splits, unless they agree."""
    leading = case.tables.leading if case.source.ending_in(words.TABLES) else []
    rest = [one for one in leading if one.has_labels or one.name not in found.used]
    return None if not rest or case.tables.agree(_classes_by_name(found)) else case.rows


def _lists_beside(case: Case, found: Evidence) -> Found | None:
    """Return what texts and JSON state that divide the images of a table otherwise."""
    texts = case.source.ending_in(LISTS).without(found.used)
    says = Naming(case.source, found.table, texts).compare() if len(texts) <= MOST_LISTS else {}
    rest = case.source.without({name for name in texts.names if says.get(name) is not Says.OTHER})
    other = gather(replace(case.tables, source=rest, lists=True).state) if Says.OTHER in says.values() else None
    return other if isinstance(other, Evidence) else None


def _of_both(one: Evidence, other: Evidence) -> tuple[list[str], list[str]]:
    """Return the two classes of each sample that both label."""
    first, second = _classes_by_name(one), _classes_by_name(other)
    both = [name for name in first if name in second]
    return [first[name] for name in both], [second[name] for name in both]


def _classes_of_others(case: Case, found: Evidence) -> Evidence | None:
    """Return folders that look like classes, of most images, if no row of a table names these, or they have no box."""
    names = files_of(found.table).names
    # Only of boxes may an image have none.
    labels = labels_of_samples(found.table) if isinstance(found.table.targets, Boxes) else ()
    named = {*names}.difference(name for name, own in zip(names, labels, strict=False) if not own)
    rest = Case(case.source.without(named | found.used))
    if not named or not len(rest.images):
        return None
    folders = rest.judge(_weigh_folders(rest))
    are_most = isinstance(folders, Evidence) and len(folders.table) > max(len(names), len(case.images) / 2)
    return folders if isinstance(folders, Evidence) and are_most else None


def _classes_by_folders(case: Case, found: Evidence) -> Found | None:
    """Return folders like classes that divide a table's samples otherwise; not patients, visits, parts or shards."""
    kind = _KIND_OF.get(found.table.layout, IMAGE_FOLDER)
    files = case.source.ending_in(kind.extensions)
    if len(files.folders[0]) < 2 or found.is_guess:
        return None
    folders = case.folders if kind is IMAGE_FOLDER else gather(lambda: folders_state(case.source, kind))
    if not isinstance(folders, Evidence):
        return None
    names = folders.table.classes
    odd = (words.is_role, re.compile(r"\d|^.$").search, words.parts_among(names).__contains__)
    is_odd = any(words.splits_of_folders(names)) or any(one(name) for name in names for one in odd)
    return None if is_odd or not 2 <= len(names) <= len(files) / 2 else _divided_otherwise(found, folders)


def _names_beside(case: Case, found: Evidence) -> Found | None:
    """Return names that divide the images otherwise."""
    are_boxes = isinstance(found.table.targets, Boxes)
    names = _NOTHING if are_boxes else gather(lambda: names_state(case.source.without(found.used)))
    return _divided_otherwise(found, names) if isinstance(names, Evidence) else None


def _called_otherwise(_: Case, found: Evidence) -> Evidence | None:
    """Return the names of a table's samples that divide them otherwise, if all but for numbers are those of its
    classes: cat_001.jpg."""
    classes = {words.spoken(name): name for name in found.table.classes} if class_of_samples(found.table) else {}

    @cache
    def class_of(stem: str) -> str:
        return classes.get(words.spoken(" ".join(words.letters_of(stem))), "")

    stems = (stem.rstrip("0123456789") for stem in words.stems_of(found.table.keys))
    names = [*itertools.takewhile(bool, map(class_of, stems))]
    if len(names) < len(found.table):
        return None
    targets, own = class_indices(names)
    return _divided_otherwise(found, Evidence(replace(found.table, targets=targets, classes=own), "names"))


def _divided_otherwise(found: Evidence, other: Evidence) -> Evidence | None:
    """Return other evidence unless one of the two divides the classes of the other further."""
    rows, others = _of_both(found, other)
    # A dog is no cat where there are cats, nor in a folder Cats. Patients and parts are called by numbers as well.
    pairs = {tuple(words.spoken(name).removesuffix("s") for name in pair) for pair in {*zip(rows, others, strict=True)}}
    names = {own for own, _ in pairs if not NUMBER.fullmatch(own)}
    are_swapped = any(name in names and name != own for own, name in pairs)
    is_further = divides_further(rows, others) or divides_further(others, rows)
    return None if rows and is_further and not are_swapped else other


def _classes_of_masks(_: Case, found: Evidence) -> Found | None:
    """Find folders that look like classes and would label the images too: masks are in the same ones."""
    targets, keys = found.table.targets, found.table.keys
    assert isinstance(targets, Masks)
    of_masks = [targets.source.name(number) for number in range(len(keys))]
    depth = len(words.shared_folders([*keys, *of_masks]))
    tops, others = ({name.split("/")[depth] for name in names} for names in (keys, of_masks))
    # A folder for each image is not a class.
    may_be = tops == others and 1 < len(tops) <= len(keys) / 2
    # Its labels are not read, and so cannot be compared.
    return refuse("") if may_be and not any(words.is_role(one) or words.split_name(one).split for one in tops) else None


# --- what "auto" weighs -----------------------------------------------------------------------------------------------


def _weigh_rows(case: Case) -> Found:
    """If a table names images but cannot be used, weigh what else there is: masks, and folders that agree with it."""
    found = case.rows
    if isinstance(found, Evidence) and isinstance(found.table.targets, Masks) and isinstance(case.masks, Evidence):
        found = Miss(LayoutError(f"The images have masks in files, which count before those that {found.named} draws."))
    if not found.claims:
        return found
    claiming = case.tables.claiming if case.tables.is_clear else ()
    above = [words.plain_name(one.folders) for one in claiming if one.folders]
    # Patients are no classes, whatever their rows state.
    of_folders = not all(map(words.PERSONS.fullmatch, above))
    if isinstance(found, Evidence) and of_folders:
        # Folders that may be classes, as scenes and groups but not speakers may, are weighed after it, unless one label
        # is that of several.
        are_ids = all((name := words.SCENES.fullmatch(one)) and name[1] for one in above)
        are_labelled = are_ids or any(map(_labels_folders, claiming))
        if not are_labelled and isinstance(case.judge(_weigh_folders(case)), Evidence):
            return Miss(LayoutError(f"{found.named} has a row for each folder."))
        found = found.noting('Where these folders are the classes themselves: layout="image_folder".')
    if isinstance(found, Evidence):
        return found
    headers = [name for table in (case.tables.leading if case.tables.is_clear else ()) for name in table.table.header]
    if case.masks.claims:
        pairs = refuse(f'{found.error} Or take the masks beside the images: layout="pairs".')
        is_labelled = any(map(words.is_label_name, headers))
        return (
            pairs if is_labelled else near(f"The images have masks, and the table beside them no labels: {found.error}")
        )
    folders = _weigh_folders(case)
    by_folder = case.judge(folders)
    # Without a column of splits, rows that were meant for a test would be trained on.
    is_split = not set(words.SPLIT_COLUMNS).isdisjoint(map(words.plain_name, headers))
    is_whole = isinstance(by_folder, Evidence) and (by_folder.table.splits or not is_split)
    if isinstance(by_folder, Evidence) and (
        of_folders or (is_whole and case.tables.agree(_classes_by_name(by_folder)))
    ):
        return by_folder
    # The advice is useless if the folders are no classes.
    are_classes = isinstance(folders, Evidence) and not why_not_classes(folders.table, may_be_one=case.is_more)
    advice = ' layout="image_folder" takes folders as classes, and leaves tables out.'
    return refuse(f"{found.error}{advice}") if are_classes else found


def _labels_folders(found: LeadingTable) -> bool:
    """Tell whether a table of folders has a column that is called as labels are, with one label for several of them."""
    columns = {column.name: column.cells for column in found.table.columns}
    labels = [cells for name, cells in columns.items() if words.is_label_name(name)]
    return bool(found.folders) and not all(divides_further(one, columns[found.folders]) for one in labels)


def _weigh_nothing(case: Case) -> Found:
    """Take images without labels, if they are in one folder, or one per split, and nothing may be their labels."""
    source = case.source
    # First, because it declines most class folders after examining folders instead of images.
    splits = words.splits_of_folders(images_of(source).folders[0])
    if case.is_more or (len(splits) > 1 and (not all(splits) or len(splits) > len(set(splits)))):
        msg = f"The images of '{source.label}' are in {len(splits):,} folders, or a part of a dataset."
        return Miss(LayoutError(msg))
    if gather(lambda: names_state(source)).claims:
        return Miss(LayoutError(f"The images of '{source.label}' have classes in their names."))
    found = nothing_states(source)
    why = may_label(source)
    if why and case.listed.claims:
        return _unless_rivals(case, case.listed, _BESIDE_ROWS)
    # Lists of paths alone state splits, and no labels.
    lists = gather(lambda: lists_state(source, found)) if why else found
    if isinstance(lists, Miss):
        return lists
    paths = {name for name in lists.used if name.lower().endswith(LIST_ENDS)}
    why = may_label(source.without(paths)) if paths else why
    says = " ".join(filter(None, (names_may_say(source), why)))
    return near(f"{says}{UNLABELLED}") if says else found


def _weigh_folders(case: Case) -> Found:
    found = case.folders
    is_weak = isinstance(found, Miss) and not (found.claims or isinstance(found.error, EmptySourceError))
    return replace(found, near=True) if isinstance(found, Miss) and is_weak else found


def _weigh_clips(case: Case) -> Found:
    """Weigh clips of one length; where they have several, what else speaks against them is first, because the line that
    chooses a length takes the rest as it is."""
    stated = gather(case.state_clips)
    found = gather(lambda: _as_clips(stated, AS_THEY_ARE))
    judged = case.judge(stated)
    return judged if isinstance(judged, Miss) else found


def _weigh_text(case: Case) -> Found:
    why, others = tokens.why_no_text(case.source), tokens.data_beside(case.source)
    if why or not others:
        return near(why) if why else tokens.tokens_state(case.source, card=case.card)
    # A text beside tables, or among more files than there are texts, describes them; tokens do not.
    describes = len(others) > len(case.source.ending_in(tokens.TEXTS)) or not others.not_ending_in(words.TABLES)
    kind = EmptySourceError if describes and not case.source.ending_in(tokens.TOKENS) else LayoutError
    return Miss(kind(f"'{case.source.label}' holds more than text and tokens: {count_kinds(others)}."))


# Stricter formats first, because a YOLO export often has a JSON or XML file with the same boxes.
_BOXES: tuple[tuple[str, Callable[[Source], Found]], ...] = (
    ("KITTI", detection.kitti_state),
    ("Pascal VOC", detection.voc_state),
    ("COCO", lambda source: detection.coco_state(source, classes=False)),
    ("YOLO", detection.yolo_state),
    ("others", detection.tools_state),
)


def _of_many(name: str, state: Callable[[Source], Found], extensions: tuple[str, ...], archive: str = "") -> Layout:
    return Layout(name, lambda case: state(case.source), extensions=extensions, archive=archive, of_many=True)


_BY_MASKS = Rival("masks", "pairs", _masks_beside)
_BY_NAMES = Rival("the images' names", "file_names", _names_beside)
_BY_ROWS = Rival("a table", TABLE.layout, _rows_beside)

_BY_OTHERS = Rival("folders like classes", IMAGE_FOLDER.layout, _classes_of_others)
_BESIDE_ROWS = (
    _BY_OTHERS,
    _BY_MASKS,
    Rival("folders", IMAGE_FOLDER.layout, _classes_by_folders),
    _BY_NAMES,
    Rival("the images' names", "", _called_otherwise),
    Rival("a list", TABLE.layout, _lists_beside),
)

LAYOUTS: tuple[Layout, ...] = (
    Layout(
        detection.NAME,
        Case.state_boxes,
        extensions=(".txt", ".xml", ".json", ".csv", ".jsonl"),
        rivals=(
            *(Rival(f"boxes ({name})", detection.NAME, partial(_boxes_beside, state)) for name, state in _BOXES),
            _BY_ROWS,
            _BY_MASKS,
            _BY_OTHERS,
        ),
    ),
    Layout(detection.COCO_CLASSES, lambda case: detection.coco_state(case.source, classes=True), extensions=(".json",)),
    _of_many("webdataset", webdataset.webdataset_state, webdataset.EXTENSIONS, "tar"),
    _of_many("tfrecord", tfrecord.tfrecord_state, tfrecord.EXTENSIONS),
    _of_many("lmdb", lmdb.lmdb_state, lmdb.EXTENSIONS),
    _of_many("arrow", arrow.arrow_state, arrow.EXTENSIONS),
    Layout(
        "table",
        lambda case: case.rows if case.rows.claims or not case.listed.claims else case.listed,
        _weigh_rows,
        words.TABLES,
        rivals=_BESIDE_ROWS,
    ),
    Layout(
        masks.NAME,
        lambda case: case.masks,
        rivals=(_BY_NAMES, Rival("folders that look like classes", "", _classes_of_masks)),
    ),
    Layout("images", lambda case: lists_state(case.source, nothing_states(case.source)), _weigh_nothing),
    Layout("image_folder", lambda case: case.folders, _weigh_folders, rivals=(_BY_NAMES,)),
    Layout(arrays.NAME, lambda case: arrays.arrays_state(case.source)),
    Layout(arrays.EACH_A_SAMPLE.layout, Case.state_arrays),
    Layout("pixel_table", lambda case: arrays.pixels_state(case.source)),
    Layout("file_names", lambda case: lists_state(case.source, names_state(case.source))),
    Layout("audio", Case.state_audio, _weigh_clips, extensions=words.SOUNDS),
    Layout("tokens", lambda case: tokens.tokens_state(case.source), _weigh_text),
)


def catalogue() -> tuple[Layout, ...]:
    """Return all layouts, those of installed packages last: an entry point in the group "colabstage.layouts" leads to a
    `Layout`."""
    return (*LAYOUTS, *(found.load() for found in added_by_packages("colabstage.layouts")))


def check_layout_name(layout: str) -> None:
    """Refuse the name of an unknown layout before any tree is opened."""
    # Searching installed packages takes longer than everything else in a call that finds its dataset staged.
    if layout == "auto" or any(layout == one.name for one in LAYOUTS):
        return
    names = ["auto", *(one.name for one in catalogue())]
    if layout not in names:
        # torchvision writes ImageFolder.
        close = difflib.get_close_matches(layout.lower(), names, 1)
        meant = f"Did you mean '{close[0]}'? " if close else ""
        msg = f"There is no layout {layout!r}. {meant}Choose one of {', '.join(names)}."
        raise OptionError(msg)


# --- from a tree to its table -----------------------------------------------------------------------------------------


def detect_layout(tree: Tree, layout: str | LayoutFunction = "auto", *, is_more: bool = False) -> SampleTable:
    """Make the table of samples of a tree, by a layout's name, "auto" for what the evidence states, or a function.
    `is_more`: whether they are added to an existing dataset, so that a single class is fine."""
    if not isinstance(layout, str):
        return layout(tree)
    check_layout_name(layout)
    if layout == "auto":
        return read_layout(tree, _weigh_all, is_more=is_more)
    named = next(one for one in catalogue() if one.name == layout)
    return read_layout(tree, lambda case: named.find(case, by_name=True))


def read_layout(tree: Tree, state: Callable[[Case], Found], *, is_more: bool = False) -> SampleTable:
    """Make the table of what is stated about a tree, however that was chosen."""
    case = Case(Source(tree), is_more=is_more)
    try:
        try:
            return _read_case(case, state)
        except LayoutError as error:
            # What states labels that cannot be used is not replaced by what is in a file beside it.
            inside = None if isinstance(error, BrokenDatasetError) else arrays.unfolded(case.source)
            if inside is None:
                raise
            return inside.stored(_read_case(Case(Source(inside), is_more=is_more), state))
    except EmptySourceError as error:
        # The requested samples may be in the archives of the tree.
        if not (hint := _how_to_give(case.source)):
            raise
        msg = f"{error} {hint}"
        raise EmptySourceError(msg) from error
    except ColabstageError:
        raise
    # A number, a nesting or a size that cannot be meant: labels of any format become numbers in many places.
    except (ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        msg = f"Labels or arrays of '{tree.label}' cannot be read: {ended(said_by(error))} Correct that file."
        raise BrokenDatasetError(msg) from error


def _read_case(case: Case, state: Callable[[Case], Found]) -> SampleTable:
    if copies := second_copies(case.source):
        case = Case(case.source.without(copies), is_more=case.is_more)
    every = {"copies of others": copies, "in hidden folders, or those of file managers": case.source.aside.names}
    notes = [f"{left_out(len(own), 'files')}: {what} (first '{min(own)}')." for what, own in every.items() if own]
    return required(state(case)).noting(*notes).as_table(case.source)


def _weigh_all(case: Case) -> Evidence:
    declined: list[Miss] = []
    # A layout that was not looked for cannot explain a failure: the tree has no files of it.
    for layout in (one for one in catalogue() if one.may_fit(case.source)):
        found = layout.find(case)
        # An unreadable file may define the labels, and must not be replaced by a guess. One missing package is enough:
        # once it is installed, the next call says more.
        unread = next((miss.error for miss in declined if isinstance(miss.error, MissingDependencyError)), None)
        if isinstance(found, Evidence) and unread is not None:
            msg = f'{unread} (or give layout="{found.table.layout}", which does without it)'
            raise MissingDependencyError(msg)
        found = case.judge(found)
        if found.claims:
            return required(found)
        assert isinstance(found, Miss)
        declined.append(found)
    raise _nothing_fits(case.source, declined)


def is_table_file(path: Path, layout: object) -> bool:
    """Tell whether a path names a table that lists samples beside it, and the requested layout does not contradict
    that."""
    return layout in ("auto", "table") and path.suffix.lower() in (".csv", ".tsv") and not path.is_dir()


# --- if nothing fits --------------------------------------------------------------------------------------------------

_KINDS = "images, arrays, clips of sound, text or shards (tar, TFRecord, LMDB, Arrow)"
_EACH = (
    "Pass pack_dataset a dataset object whose items are (x, y), such as the list [({}, TARGET) for path in "
    "sorted(pathlib.Path(FOLDER).rglob('*END'))]. TARGET is a number or an array; of classes in folders, it is "
    "CLASSES.index(path.parent.name)."
)
# What to do with files that no layout reads.
_READ_BY = {
    "A pickle can run any program. Save arrays: numpy.savez('train.npz', x=…, y=…).": (
        ".pkl", ".pickle", ".p", ".joblib", ".pt", ".pth",
    ),
    "Fetch what they name: dvc pull.": (".dvc",),
    _EACH.format("pydicom.dcmread(path).pixel_array"): (".dcm", ".dicom"),
    _EACH.format("nibabel.load(path).get_fdata(dtype='float32')"): (".nii", ".nii.gz"),
    _EACH.format("mne.io.read_raw(path).get_data()"): (".edf", ".bdf", ".gdf"),
    _EACH.format("imageio.v3.imread(path)"): (".mp4", ".avi", ".mov", ".mkv", ".webm"),
    as_arrays("pandas.read_excel(FILE)"): (".xlsx", ".xls", ".ods"),
}  # fmt: skip
# So much of a table says what it holds.
_HEAD_BYTES = 64 * 1024
_AS_OBJECT = (
    "Pass pack_dataset a dataset object whose items are (x, y), x an array from the library that reads them. Text has "
    "to be in a .txt, and names of images end as .jpg or .png does."
)


def _nothing_fits(source: Source, declined: list[Miss]) -> ColabstageError:
    """Return the error that says what nearly fits, or which files exist."""
    on_request = 'Give layout= the name of a layout, such as "table", and its error says why that one does not fit.'
    nearest = next((miss.error for miss in declined if miss.near), None)
    if isinstance(nearest, MissingDependencyError):
        return nearest
    if nearest is not None:
        return LayoutError(f"{nearest} {on_request}")
    archives, how = files_called(source, words.ARCHIVES), _by_library(source)
    others = source.files.without(archives.names).where(lambda name: not words.is_note(name))
    faults = [miss.error for miss in declined if not isinstance(miss.error, EmptySourceError)]
    # Tars may be shards, so they were examined.
    is_packed = bool(archives) and not others
    if not how and faults and not is_packed:
        kinds = count_kinds(source.files)
        return LayoutError(f"The files of '{source.label}' ({kinds}) fit no layout. {faults[-1]} {on_request}")
    others = others.not_ending_in({*words.HARMLESS, *words.TABLES, *words.TEXTS} - {""})
    # What is beside archives as well, such as checksums, is smaller.
    if how or in_bytes(others) > in_bytes(archives):
        what = f"holds files that are not read: {count_kinds(others)}"
        return LayoutError(f"'{source.label}' {what}. {how or _AS_OBJECT}")
    # No files of any known kind is a different problem, with a different remedy.
    msg = f"'{source.label}' holds {count_kinds(source.files) or 'no files'}; expected {_KINDS}."
    return EmptySourceError(" ".join([msg, *source.tree.notes]))


def _by_library(source: Source) -> str:
    """Return how to make samples of files that no layout reads; "" for unknown ones."""
    for how, ends in _READ_BY.items():
        if found := files_called(source, ends)[:1]:
            folder, (file,) = source.addresses(found)
            end = next(file[-len(end) :] for end in ends if file.lower().endswith(end))
            values = {"END": end, "FOLDER": repr(folder), "FILE": repr(file)}
            # At once, because a value may contain the name of another.
            return first_extract(folder) + re.sub("|".join(values), lambda name: values[name[0]], how)  # noqa: B023
    return ""


def _how_to_give(source: Source) -> str:
    """Return what to pass as the source if a tree holds only archives, or tables and nothing that they name."""
    archives, named = (files_called(source, ends) for ends in (words.ARCHIVES, words.TABLES))
    if archives:
        folder, shown = source.addresses(archives[:NAMES_SHOWN])
        if folder == "FOLDER":
            return f"Archives inside an archive are not opened: {TO_EXTRACT}, and give 'FOLDER'."
        # An archive alone would be read without its labels; several are usually the parts or splits of one dataset.
        labels = named.where(lambda name: not words.is_submission(name)).names
        beside = f", and '{labels[0]}' beside them may hold their labels" if labels else ""
        paths = [*([folder] if labels else []), *shown]
        more = f" with {len(archives) - NAMES_SHOWN:,} more" if len(archives) > NAMES_SHOWN else ""
        given = repr(paths[0]) if len(paths) == 1 else str(paths)
        return f"Archives inside a folder are not opened{beside}. Give as the source{more}: {given}."
    if not named:
        return tokens.AS_TEXT if source.ending_in(words.TEXTS) else ""
    # Small ones are mostly about the others.
    largest = named.take(np.argsort(-named.sizes, kind="stable")[:1])
    folder, (file,) = source.addresses(largest)
    given = folder if source.tree.kind == "folder" else file
    table = parse_table("head.csv", source.head(largest[0], _HEAD_BYTES))
    if far := [one.name for one in table.columns if one.filled and all("://" in cell for cell in one.filled)]:
        listing = f"[{file!r}, *pandas.read_csv({file!r})[{far[0]!r}]]"
        return f"Addresses in a table are read if they are given beside it, as in the list {listing}."
    reader = {".tsv": "table", ".parquet": "parquet"}.get(posixpath.splitext(file)[1].lower(), "csv")
    made = as_arrays(f"pandas.read_{reader}({file!r})", group=next(filter(None, find_groups(table.columns)), ""))
    return (
        f"A table is read with the files it names: give a folder of both, or ['{given}', 'FOLDER_OF_THE_IMAGES']. "
        f"{first_extract(folder)}{made} {tokens.AS_TEXT}"
    )

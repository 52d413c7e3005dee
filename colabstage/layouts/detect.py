"""Find the layout of a tree: a catalogue of what may state labels, strongest first, and the judge of what they state.

One judge decides, by these refusals: two pieces of evidence divide the samples differently; nothing labels them all; a
file that is left over may speak of them; folders are of several depths, or words for parts; one class has two
spellings; a split has no class in common with train, or two names; a written name leads nowhere, or to several.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import (
    ColabstageError,
    EmptySourceError,
    LayoutError,
    MissingDependencyError,
    OptionError,
    ended,
    said_by,
)
from colabstage.io.packages import added_by_packages
from colabstage.io.units import NAMES_SHOWN, left_out, listed
from colabstage.layouts import evidence
from colabstage.layouts.boxes import NAME as DETECTION
from colabstage.layouts.clips import ClipOptions, clip_rows
from colabstage.layouts.columns import NUMBER, show
from colabstage.layouts.evidence import (
    IMAGE_FOLDER,
    Evidence,
    FileKind,
    Found,
    Miss,
    class_of_samples,
    count_kinds,
    gather,
    near,
    required,
)
from colabstage.layouts.folders import folders_state, second_copy, why_not_classes
from colabstage.layouts.formats import (
    arrays,
    arrow,
    beside,
    coco,
    lmdb,
    masks,
    published,
    tables,
    tfrecord,
    tokens,
    tools,
    webdataset,
)  # fmt: skip
from colabstage.layouts.judge import files_called, judge, named_elsewhere
from colabstage.layouts.lists import lists_state
from colabstage.layouts.lookup import Lookup
from colabstage.layouts.names import names_state, nothing_states, splits_of_folders, why_not_bare
from colabstage.layouts.reading import Source
from colabstage.layouts.rows import TABLE, LeadingTable, TableSearch, tables_agree
from colabstage.layouts.table import Boxes, BrokenDatasetError, Masks, SampleTable, Values
from colabstage.layouts.words import (
    ARCHIVES,
    IMAGES,
    SOUNDS,
    SPLIT_COLUMNS,
    TABLES,
    folder_of,
    is_label_name,
    is_note,
    is_part,
    is_role,
    is_split,
    is_submission,
    is_table,
    plain_name,
    shared_folders,
)
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from colabstage.trees.listing import FileEntries, Tree

LayoutFunction = Callable[["Tree"], SampleTable]


AUDIO = FileKind("audio", "clips", SOUNDS)
# Clips, where nothing is said about them: of one length, rate and number of channels.
_AS_THEY_ARE = ClipOptions()


class Case:
    """The evidence in a source, each piece looked for at most once."""

    def __init__(self, source: Source, *, is_more: bool = False) -> None:
        self.source = source
        self.is_more = is_more

    @cached_property
    def images(self) -> FileEntries:
        """Return the image files."""
        return self.source.ending_in(IMAGES)

    @cached_property
    def lookup(self) -> Lookup:
        """Return the index of the images' names."""
        return Lookup(self.images.names)

    @cached_property
    def masks(self) -> Found:
        """Return what masks state."""
        return gather(self.state_masks)

    def state_masks(self, x: str | None = None, y: str | None = None) -> Found:
        """Return what masks state: those that are asked for, or any."""
        parsed = self.source.parse(
            masks.class_tables(self.source), lambda entry, content: tables.parse_table(entry.name, content)
        )
        return masks.masks_state(self.source, {name: table.columns for name, table in parsed.items()}, x=x, y=y)

    @cached_property
    def tables(self) -> TableSearch:
        """Return the tables that may name the images."""
        return TableSearch(self.source, TABLE, self.images, self.lookup)

    @cached_property
    def rows(self) -> Found:
        """Return what tables state of images."""
        return gather(self.tables.state)

    @cached_property
    def folders(self) -> Found:
        """Return what folders state of images."""
        return gather(lambda: folders_state(self.source, IMAGE_FOLDER))

    def state_audio(self, options: ClipOptions = _AS_THEY_ARE, labels: Sequence[str] | None = None) -> Found:
        """Return what tables, or otherwise folders, state of clips, as rows of one length.

        Args:
            options: the form of the rows; frozen.
            labels: the columns of a table that hold the labels; found by name and content where `None`.
        """
        source = self.source
        clips = evidence.require_files(source.ending_in(SOUNDS), source, f"clips of sound ({', '.join(SOUNDS)})")
        search = TableSearch(source, AUDIO, clips, Lookup(clips.names), labels=labels)
        found = gather(search.state)
        # Label columns were named, so a table is meant.
        if isinstance(found, Miss) and not found.claims and labels is None:
            by_folder = gather(lambda: folders_state(source, AUDIO))
            if isinstance(by_folder, Miss) and not by_folder.claims:
                return Miss(LayoutError(f"{by_folder.error} Nor does a table name them: {found.error}"))
            found = by_folder
        if isinstance(found, Miss):
            return found
        inputs, note = clip_rows(found.table.inputs.source, options)
        return replace(found, table=replace(found.table, inputs=inputs, notes=(*found.table.notes, note)))

    @cached_property
    def leading(self) -> list[LeadingTable]:
        """Return the tables that lead to images; none where one cannot be read."""
        try:
            found = self.tables.leading()
        except LayoutError:
            return []
        return [] if isinstance(found, str) else found

    def rows_agree(self, found: Evidence) -> bool:
        """Tell whether all tables that lead to images state the classes that other evidence does."""
        class_of = dict(zip(found.table.keys, class_of_samples(found.table), strict=True))
        return bool(self.leading) and tables_agree(self.leading, self.images.names, class_of, self.lookup)


class Layout(NamedTuple):
    """One line of the catalogue: a format, and how "auto" weighs it."""

    name: str
    """Its name in `layout=`."""
    state: Callable[[Case], Found]
    """Returns what it states where it is named."""
    weigh: Callable[[Case], Found] | None = None
    """Returns what it states for "auto", if more has to be weighed."""
    extensions: tuple[str, ...] = ()
    """"auto" looks for it only if the tree has files with one of these; empty if extensions do not decide."""
    archive: str = ""
    """"auto" also looks for it if the tree itself is read from archives of this kind."""

    def may_fit(self, source: Source) -> bool:
        """Tell whether "auto" has to look for it: most trees have no files of most layouts."""
        if not self.extensions or len(source.ending_in(self.extensions)):
            return True
        return bool(self.archive) and any(part.kind == self.archive for part in source.tree.parts())


# --- what "auto" weighs -----------------------------------------------------------------------------------------------


def refuse(why: str) -> Miss:
    """Return a refusal: nothing weaker is looked at."""
    return Miss(BrokenDatasetError(why))


def _unless(case: Case, found: Found, rival: Found | None, who: str, layout: str) -> Found:
    """Return what was found, or a refusal where something else states the same samples otherwise."""
    if isinstance(found, Miss) or rival is None or not rival.claims:
        return found
    ways = " or ".join(f'layout="{name}"' for name in (found.table.layout, layout) if name)
    return refuse(
        f"The {found.table.unit} of '{case.source.label}' have labels by {found.who} and by {who}. Say what is meant: "
        f"{ways}; or, for classes in paths, layout=file_names(PATTERN), from colabstage.options."
    )


def _weigh_boxes(case: Case) -> Found:
    """Weigh boxes: unless a table labels the images otherwise, or most have masks as well."""
    found = _state_boxes(case)
    # Pascal VOC also has masks, but people who stage it want the boxes.
    is_voc = any("SegmentationClass/" in name for name in case.source.ending_in((".png",)).names)
    if is_voc or isinstance(found, Miss):
        return found
    rows = case.rows if case.source.ending_in(TABLES) else None
    is_same = isinstance(rows, Evidence) and isinstance(rows.table.targets, Boxes)
    found = _unless(case, found, None if is_same else rows, "a table", TABLE.layout)
    return found if isinstance(found, Miss) else _unless(case, found, case.masks, "masks", "pairs")


def _weigh_rows(case: Case) -> Found:
    """Weigh a table: with the folders of the images, and masks beside them."""
    found = case.rows
    if isinstance(found, Miss):
        return _without_rows(case, found) if found.claims else found
    odd = _named_otherwise(case, found)
    if odd is not None:
        name, label, what = odd
        return refuse(
            f"The table {found.who} says '{show(label)}' for '{name}', but {what} is that of another label. Say which "
            'is right: layout="table" or layout="image_folder"; or layout="file_names" for what files are called.'
        )
    found = _unless(case, found, case.masks, "masks", "pairs")
    found = _unless(case, found, _classes_beside_numbers(case, found), "folders", IMAGE_FOLDER.layout)
    return found if isinstance(found, Miss) else _with_lists(case, found)


def _without_rows(case: Case, found: Miss) -> Found:
    """Weigh what else there is where a table names images and cannot be used: masks, and folders that agree with it."""
    if case.masks.claims:
        if any(is_label_name(name) for table in case.leading for name in table.table.header):
            return refuse(f'{found.error} Or take the masks beside the images: layout="pairs".')
        return near(f"The images have masks, and the table beside them no labels: {found.error}")
    by_folder = _weigh_folders(case)
    # Without a column of splits, rows that were meant for a test would be trained on.
    headers = {plain_name(name) for table in case.leading for name in table.table.header}
    names_splits = not headers.isdisjoint(SPLIT_COLUMNS)
    if (
        isinstance(by_folder, Evidence)
        and case.rows_agree(by_folder)
        and not (names_splits and by_folder.table.splits is None)
    ):
        note = "Tables beside the folders have a column that says the same classes; their other columns were left out."
        return by_folder.noting(note)
    # Nothing is gained by the advice where all images are in one folder.
    if len(case.images.folders[0]) < 2:
        return found
    return refuse(f'{found.error} layout="image_folder" takes folders as classes, and leaves tables out.')


def _classes_beside_numbers(case: Case, found: Found) -> Found | None:
    """Return folders that look like classes where a table has numbers; not those of patients, visits and parts."""
    if isinstance(found, Miss) or found.table.classes or not isinstance(found.table.targets, Values):
        return None
    folders = case.folders if len(case.images.folders[0]) > 1 else None
    if not isinstance(folders, Evidence):
        return None
    names = folders.table.classes
    odd = any(re.search(r"\d", name) or is_role(name) or is_split(name) or is_part(name) for name in names)
    return None if odd or len(names) < 2 or 2 * len(names) > len(folders.table) else folders


def _named_otherwise(case: Case, found: Evidence) -> tuple[str, str, str] | None:
    """Return a file, its label, and what of it is called like another label; nothing where there is none."""
    labels = class_of_samples(found.table)
    # Patients and parts also have numbers as names, so numbers do not contradict a label.
    classes = {name for name in found.table.classes if not NUMBER.fullmatch(name)} if labels else set()
    if not classes:
        return None
    names = gather(lambda: names_state(case.source))
    by_name = {}
    if isinstance(names, Evidence):
        by_name = dict(zip(names.table.keys, class_of_samples(names.table), strict=True))
    if not by_name and classes.isdisjoint(posixpath.basename(folder) for folder in case.images.folders[0]):
        return None
    for name, label in zip(found.table.keys, labels, strict=True):
        for other, what in ((folder_of(name), "its folder"), (by_name.get(name), "its name")):
            if other in classes and other != label:
                return name, label, what
    return None


def _with_lists(case: Case, found: Evidence) -> Evidence:
    """Add the splits that lists state."""
    if found.table.splits is not None:
        return found
    made, unread = lists_state(case.source, found)
    return made if not unread else made.noting(_unread_lists(unread, found.table.unit))


def _unread_lists(names: Sequence[str], unit: str) -> str:
    return f"{listed(names)} list {unit} of splits, and are not read: all are of one split, or as splits= says."


def _weigh_masks(case: Case) -> Found:
    """Weigh masks: unless images are in folders of classes with their masks, or have classes in their names."""
    found = case.masks
    if isinstance(found, Miss):
        return found
    used = found.used
    images = Source(case.source.tree, hidden=lambda name: name in used)
    named = gather(lambda: names_state(images))
    found = _unless(case, found, named, "the images' names", "file_names")
    # As folders of classes the masks would be samples.
    return _unless(case, found, _classes_of_masks(found), "folders that look like classes", "")


def _classes_of_masks(found: Found) -> Found | None:
    """Return evidence whose images and masks share folders that look like classes; nothing of other."""
    if isinstance(found, Miss) or not isinstance(masks := found.table.targets, Masks):
        return None
    keys = found.table.keys
    depth = len(shared_folders(keys))
    sides = [list(keys), [masks.source.name(number) for number in range(len(keys))]]
    tops, of_masks = ({"".join(name.split("/")[:-1][depth : depth + 1]) for name in names} for names in sides)
    # Masks are in the same folders; or all in one, beside several of images.
    beside = tops == of_masks or (of_masks.isdisjoint(tops) and len(of_masks) == 1)
    # Cityscapes has its cities below the folders of images and masks; a folder for each image is not a class.
    named = all(name and not is_split(name) and not is_role(name) for name in tops)
    return found if beside and named and 1 < len(tops) <= len(keys) / 2 else None


def _weigh_nothing(case: Case) -> Found:
    """Take images without labels, if they are in one folder, or one for each split, and nothing may be their labels."""
    source = case.source
    images = evidence.images_of(source)
    # First, because it declines most class folders after examining folders instead of images.
    splits = splits_of_folders(images)
    if case.is_more or (len(splits) > 1 and (not all(splits) or len(splits) > len(set(splits)))):
        msg = f"The images of '{source.label}' are in {len(splits):,} folders, or a part of a dataset."
        return Miss(LayoutError(msg))
    if isinstance(gather(lambda: names_state(source)), Evidence):
        return Miss(LayoutError(f"The images of '{source.label}' have classes in their names."))
    why = why_not_bare(source)
    return near(why) if why else nothing_states(source)


def _weigh_folders(case: Case) -> Found:
    """Weigh folders as classes: only if nothing else can be meant."""
    source = case.source
    copy = second_copy(source)
    seen = Source(source.tree, hidden=lambda name: name in copy) if copy else source
    found = gather(lambda: folders_state(seen, IMAGE_FOLDER)) if copy else case.folders
    if isinstance(found, Miss):
        return found if isinstance(found.error, EmptySourceError) or found.claims else replace(found, near=True)
    if copy:
        note = f"{left_out(len(copy), 'images')}: copies of the others (first '{min(copy)}')."
        found = replace(found.noting(note), passed=found.passed | copy)
    sounds = source.ending_in(SOUNDS)
    if 2 * len(sounds) > len(found.table):
        return _unless(case, found, found, f"sound ('{sounds.names[0]}', …)", AUDIO.layout)
    return weigh_classes(case, found, seen)


def weigh_classes(case: Case, found: Evidence, source: Source) -> Found:
    """Weigh folders of files of any kind as classes, and read the lists of their splits."""
    reason = why_not_classes(found, may_be_one=case.is_more)
    unread: list[str] = []
    listed_splits, table = found, found.table
    if not reason:
        # Lists are read only if the folders may be classes, because each costs a read.
        listed_splits, folds = lists_state(source, found)
        reason, unread = named_elsewhere(source, listed_splits, folds, case.rows_agree)
    if reason:
        return near(
            f"The {table.unit} of '{source.label}' are in folders that look like classes ({listed(table.classes)}), "
            f'but {reason} layout="{table.layout}" takes the folders as classes anyway.'
        )
    if unread and listed_splits.table.splits is None:
        return found.noting(_unread_lists(unread, table.unit))
    return listed_splits


def _weigh_records(case: Case) -> Found:
    """Weigh TFRecord files: unless a table leads to image files beside them."""
    records = tfrecord.named_records(case.source)
    if records and len(case.images) and isinstance(case.rows, Evidence):
        return _unless(case, case.rows, case.rows, f"TFRecords ('{records.names[0]}', …)", "tfrecord")
    return tfrecord.tfrecord_state(case.source)


def _weigh_names(case: Case) -> Found:
    return _with_lists(case, names_state(case.source))


def _weigh_audio(case: Case) -> Found:
    """Weigh clips: in class folders they are handled as images are."""
    found = case.state_audio()
    if isinstance(found, Miss):
        return found
    pairs = zip(found.table.keys, class_of_samples(found.table), strict=False)
    by_folder = bool(found.table.classes) and all(label in name.split("/")[:-1] for name, label in pairs)
    return weigh_classes(case, found, case.source) if by_folder else found


def _weigh_array_folder(case: Case) -> Found:
    return weigh_classes(case, arrays.array_folder_state(case.source), case.source)


def _weigh_text(case: Case) -> Found:
    why = tokens.why_no_text(case.source)
    return near(why) if why else tokens.tokens_state(case.source)


# Stricter formats first, because a YOLO export often has a JSON or XML file with the same boxes.
_BOXES: tuple[tuple[str, Callable[[Case], Found]], ...] = (
    ("KITTI", lambda case: beside.kitti_state(case.source)),
    ("Pascal VOC", lambda case: beside.voc_state(case.source)),
    ("COCO", lambda case: coco.coco_state(case.source, case.images, case.lookup, classes=False)),
    ("YOLO", lambda case: beside.yolo_state(case.source)),
    ("others", lambda case: tools.tools_state(case.source, case.images, case.lookup)),
)


def _state_boxes(case: Case) -> Found:
    """Read images with boxes: labels of KITTI, Pascal VOC, COCO, YOLO, or of a tool, whichever there are."""
    evidence.require_files(case.images, case.source, "images")
    reasons = []
    for name, state in _BOXES:
        found = gather(lambda: state(case))  # noqa: B023 - called at once
        if isinstance(found, Evidence) or found.claims:
            return found
        reasons.append(f"{name}: {found.error}")
    return Miss(LayoutError(f"'{case.source.label}' has no boxes beside its images. {' '.join(reasons)}"))


LAYOUTS: tuple[Layout, ...] = (
    Layout(DETECTION, _state_boxes, _weigh_boxes, (".txt", ".xml", ".json")),
    Layout(
        "coco_classes",
        lambda case: coco.coco_state(
            case.source, evidence.require_files(case.images, case.source, "images"), case.lookup, classes=True
        ),
        extensions=(".json",),
    ),
    Layout("webdataset", lambda case: webdataset.webdataset_state(case.source), None, webdataset.EXTENSIONS, "tar"),
    Layout("tfrecord", lambda case: tfrecord.tfrecord_state(case.source), _weigh_records, tfrecord.EXTENSIONS),
    Layout("lmdb", lambda case: lmdb.lmdb_state(case.source), None, lmdb.EXTENSIONS),
    Layout("arrow", lambda case: arrow.arrow_state(case.source), None, arrow.EXTENSIONS),
    Layout("table", lambda case: case.rows, _weigh_rows, TABLES),
    Layout("pairs", lambda case: case.masks, _weigh_masks),
    Layout("images", lambda case: nothing_states(case.source), _weigh_nothing),
    Layout("image_folder", lambda case: case.folders, _weigh_folders),
    Layout("arrays", lambda case: arrays.arrays_state(case.source, published.published_arrays(case.source))),
    Layout("array_folder", lambda case: arrays.array_folder_state(case.source), _weigh_array_folder),
    Layout("pixel_table", lambda case: published.pixels_state(case.source)),
    Layout("file_names", lambda case: names_state(case.source), _weigh_names),
    Layout("audio", lambda case: case.state_audio(), _weigh_audio, SOUNDS),
    Layout("tokens", lambda case: tokens.tokens_state(case.source), _weigh_text),
)


def catalogue() -> tuple[Layout, ...]:
    """Return all layouts, those of installed packages last: an entry point in the group "colabstage.layouts" leads to a
    `Layout`."""
    return (*LAYOUTS, *(found.load() for found in added_by_packages("colabstage.layouts")))


def detect_layout(tree: Tree, layout: str | LayoutFunction = "auto", *, is_more: bool = False) -> SampleTable:
    """Make the table of samples of a tree.

    Args:
        tree: the dataset's files.
        layout: the name of a layout, "auto" for what the evidence states, or a function that makes the table.
        is_more: whether the samples are added to an existing dataset, so that a single class is fine.
    """
    if not isinstance(layout, str | TableFile):
        return layout(tree)
    if isinstance(layout, str):
        check_layout_name(layout)
    case = Case(Source(tree), is_more=is_more)
    try:
        with _typed(tree):
            if layout == "auto":
                return _weigh_all(case)
            if isinstance(layout, TableFile):
                return layout(tree)
            return required(gather(lambda: next(one for one in catalogue() if one.name == layout).state(case))).told()
    except EmptySourceError as error:
        # The requested samples may be in the archives of the tree.
        hints = _how_to_give(case.source)
        if layout == "auto" or not hints:
            raise
        raise EmptySourceError(" ".join((str(error), *hints))) from error


def _weigh_all(case: Case) -> SampleTable:
    declined: list[Miss] = []
    unread = ""
    # A layout that was not looked for cannot explain a failure: the tree has no files of it.
    for layout in (one for one in catalogue() if one.may_fit(case.source)):
        weigh = layout.weigh or layout.state
        found = gather(lambda: weigh(case))  # noqa: B023 - called at once
        if isinstance(found, Miss):
            if found.claims:
                raise found.error
            declined.append(found)
            if isinstance(found.error, MissingDependencyError):
                # One is enough: once its package is installed, the next call says more.
                unread = unread or str(found.error)
            continue
        if unread and layout.weigh is not None:
            # An unreadable file may define the labels, and must not be replaced by a guess.
            msg = f'{unread} Or give layout="{found.table.layout}", which does without it.'
            raise MissingDependencyError(msg)
        return judge(case.source, found)
    raise _nothing_fits(case.source, declined)


@contextmanager
def _typed(tree: Tree) -> Iterator[None]:
    """Raise a typed error for a number, a nesting or a size that the files of a tree cannot mean."""
    try:
        yield
    except ColabstageError:
        raise
    # Labels are of any size, in any format, and become numbers in many places.
    except (ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        msg = (
            f"The labels or arrays of '{tree.label}' hold what cannot be read: {ended(said_by(error))} Correct or "
            "leave out the file that has it."
        )
        raise BrokenDatasetError(msg) from error


_KINDS = "images, arrays, clips of sound, text, shards (tar, TFRecord, LMDB, Arrow)"


def _nothing_fits(source: Source, declined: list[Miss]) -> LayoutError:
    """Return the error that says what nearly fits, or what there is."""
    on_request = 'Give layout= the name of a layout, such as "table", and its error says why that one does not fit.'
    nearest = next((miss.error for miss in declined if miss.near), None)
    if nearest is not None:
        return LayoutError(f"{nearest} {on_request}")
    for extensions, what, remedy in _UNREAD:
        if names := files_called(source, extensions).names:
            return LayoutError(
                f"'{source.label}' holds {what} ({len(names):,}, first '{names[0]}'), which are not read. {remedy}"
            )
    # No files of any known kind is a different problem from files that fit no layout, with a different remedy. Tars may
    # be shards, so they were examined.
    archives = files_called(source, ARCHIVES)
    is_packed = bool(archives) and len(archives) == len(source.files.where(lambda name: not is_note(name)))
    faults = [miss.error for miss in declined if not isinstance(miss.error, EmptySourceError)]
    if is_packed or not faults:
        msg = f"'{source.label}' holds {count_kinds(source.files) or 'no files'}, and nothing that is read: {_KINDS}."
        return EmptySourceError(" ".join((msg, *_how_to_give(source), *source.tree.notes)))
    return LayoutError(
        f"The files of '{source.label}' ({count_kinds(source.files)}) fit no layout. {faults[-1]} {on_request}"
    )


def _how_to_give(source: Source) -> list[str]:
    """Return what to give as the source where a tree holds only archives, or tables and nothing that they name."""
    folder = source.label if isinstance(source.tree, FolderTree) else "FOLDER"
    archives, tables = (files_called(source, ends) for ends in (ARCHIVES, TABLES))
    labels = tables.where(lambda name: not is_submission(name)).names
    if archives and source.tree.kind != "folder":
        return ["Archives inside an archive are not opened: extract_archive(source, 'FOLDER'), and give 'FOLDER'."]
    if archives:
        # An archive alone would be read without its labels; several are usually the parts or splits of one dataset.
        beside = f", and '{labels[0]}' beside them may hold their labels" if labels else ""
        paths = [*([folder] if labels else []), *(f"{folder}/{name}" for name in archives.names[:NAMES_SHOWN])]
        given = repr(paths[0]) if len(paths) == 1 else str(paths)
        more = f" with {len(archives) - NAMES_SHOWN:,} more" if len(archives) > NAMES_SHOWN else ""
        return [f"Archives inside a folder are not opened{beside}. Give as the source{more}: {given}."]
    if source.label.lower().endswith((".xlsx", ".ods")):
        how = f"pandas.read_excel('{source.label}', dtype=str).to_csv('FOLDER/labels.csv', index=False)"
        return [f"It is a spreadsheet. Save it beside the files that it names, {how}, and give 'FOLDER'."]
    if not tables:
        return []
    hint = (
        "A table is read with the images or clips that it names: give the folder that holds both, or their two folders "
        f"in a list, ['{folder}', 'FOLDER_OF_THE_IMAGES']. Of a table that is the data itself save arrays, "
        "numpy.savez('data.npz', x=…, y=…), and give 'data.npz'."
    )
    return [hint]


def check_layout_name(layout: str) -> None:
    """Refuse the name of an unknown layout before any tree is opened."""
    # To ask for installed packages takes longer than all else of a call that finds its dataset staged.
    if layout == "auto" or any(layout == one.name for one in LAYOUTS):
        return
    names = ["auto", *(one.name for one in catalogue())]
    if layout not in names:
        # torchvision writes ImageFolder.
        close = difflib.get_close_matches(layout.lower(), names, 1)
        meant = f"Did you mean '{close[0]}'? " if close else ""
        msg = f"There is no layout {layout!r}. {meant}Choose one of {', '.join(names)}."
        raise OptionError(msg)


# Files that no layout reads, and how to use them.
_AS_OBJECTS = "pass pack_dataset a dataset object whose items are (x, y)"
_UNREAD = (
    ((".dcm", ".dicom"), "DICOM files", f"With pydicom {_AS_OBJECTS}, x = pydicom.dcmread(path).pixel_array."),
    (
        (".nii", ".nii.gz", ".mha", ".nrrd"),
        "medical volumes",
        f"With nibabel {_AS_OBJECTS}, x = nibabel.load(path).get_fdata(), all of one shape.",
    ),
    (
        (".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg"),
        "videos",
        f"Extract images, ffmpeg -i clip.mp4 -vf fps=1 clip/%05d.jpg; or {_AS_OBJECTS}, x a clip's frames.",
    ),
)


@dataclass(frozen=True, slots=True)
class TableFile:
    """The layout of a folder whose samples one table lists."""

    name: str

    def __call__(self, tree: Tree) -> SampleTable:
        """Return the samples that the table names: images, or otherwise audio clips."""
        case = Case(Source(tree, hidden=lambda name: is_table(name) and name != self.name))
        found = gather(lambda: case.rows)
        clips = gather(case.state_audio) if not found.claims else found
        try:
            return required(clips if clips.claims else found).table
        except EmptySourceError as error:
            msg = (
                f"{error} '{self.name}' is read with the files in its folder and below. Move it into the folder that "
                f"holds them, or give one that holds both, with layout=table_rows(table='{self.name}')."
            )
            raise EmptySourceError(msg) from error


def is_table_file(path: Path, layout: object) -> bool:
    """Tell whether a path names a table that lists samples beside it, and the requested layout does not contradict
    that."""
    return layout in ("auto", "table") and path.suffix.lower() in (".csv", ".tsv") and not path.is_dir()

"""Find the layout of a tree by trying each reader in turn, the weakest last; and define the layouts with options.

A layout with options can be used like any other, in other processes too, and the same options find the same pack. One
of them reads a folder by a single table that is given as the source: `photos/labels.csv`.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
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
from colabstage.io.units import NAMES_SHOWN
from colabstage.layouts import (
    arrow,
    audio,
    class_folders,
    coco,
    csv_table,
    evidence,
    lmdb,
    pixel_tables,
    row_arrays,
    tfrecord,
    tokens,
    webdataset,
)
from colabstage.layouts.audio import AudioOptions, read_audio
from colabstage.layouts.class_folders import IMAGE_FOLDER, read_image_folder
from colabstage.layouts.columns import TABLE_EXTENSIONS, is_table
from colabstage.layouts.csv_table import is_submission, read_table
from colabstage.layouts.detection import EXTENSIONS as BOX_EXTENSIONS
from colabstage.layouts.detection import read_detection
from colabstage.layouts.image_boxes import NAME as DETECTION
from colabstage.layouts.image_files import (
    FILE_NAMES,
    IMAGES,
    PAIRS,
    guess_images,
    read_file_names,
    read_images,
    read_pairs,
)
from colabstage.layouts.names import count_kinds, is_note
from colabstage.layouts.row_arrays import read_arrays
from colabstage.layouts.table import BrokenDatasetError, NearMissError, first_that_fits
from colabstage.layouts.tokens import TokenOptions, read_tokens
from colabstage.trees.folder import FolderTree
from colabstage.trees.listing import FileEntries, PartOfTree
from colabstage.trees.names import extension_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from colabstage.layouts.audio import SoundDtype
    from colabstage.layouts.table import SampleTable
    from colabstage.layouts.tokens import TokenDtype
    from colabstage.trees.listing import Tree

LayoutFunction = Callable[["Tree"], "SampleTable"]

_TABLE_SUFFIXES = (".csv", ".tsv")


class LayoutReader(NamedTuple):
    """One layout: how to read a tree with it, and how to tell that a tree has it."""

    name: str
    """Its name in `layout=`."""
    read: Callable[[Tree], SampleTable]
    """Makes the table. Raises LayoutError with the reason if the tree does not have this layout, and BrokenDatasetError
    if it has but cannot be read."""
    guess: Callable[[Tree, bool], SampleTable] | None = None
    """The reader for "auto", if it weighs more evidence than when the layout is named. Its second argument tells
    whether the samples are added to an existing dataset."""
    extensions: tuple[str, ...] = ()
    """"auto" tries it only if the tree has files with one of these extensions; empty if extensions do not decide."""
    archive: str = ""
    """"auto" also tries it if the tree itself is read from archives of this kind."""

    def may_fit(self, tree: Tree) -> bool:
        """Tell whether "auto" has to try it: most trees have no files of most layouts."""
        if not self.extensions or tree.entries.ending_in(self.extensions):
            return True
        return bool(self.archive) and any(part.kind == self.archive for part in tree.parts())


# Tried in this order, the most demanding layouts first.
READERS: tuple[LayoutReader, ...] = (
    LayoutReader(DETECTION, read_detection, evidence.guess_detection, BOX_EXTENSIONS),
    LayoutReader(coco.CLASSES, coco.read_coco_classes, extensions=coco.EXTENSIONS),
    LayoutReader(webdataset.NAME, webdataset.read_webdataset, extensions=webdataset.EXTENSIONS, archive="tar"),
    LayoutReader(tfrecord.NAME, tfrecord.read_tfrecord, evidence.guess_tfrecord, tfrecord.EXTENSIONS),
    LayoutReader(lmdb.NAME, lmdb.read_lmdb, extensions=lmdb.EXTENSIONS),
    LayoutReader(arrow.NAME, arrow.read_arrow, extensions=arrow.EXTENSIONS),
    LayoutReader(csv_table.NAME, csv_table.read_table, evidence.guess_table, TABLE_EXTENSIONS),
    LayoutReader(PAIRS, read_pairs, evidence.guess_pairs),
    LayoutReader(IMAGES, read_images, guess_images),
    LayoutReader(IMAGE_FOLDER, read_image_folder, evidence.guess_image_folder),
    LayoutReader(row_arrays.NAME, row_arrays.read_arrays),
    LayoutReader(class_folders.ARRAY_FOLDER, class_folders.read_array_folder, evidence.guess_array_folder),
    LayoutReader(pixel_tables.NAME, pixel_tables.read_pixel_table),
    LayoutReader(FILE_NAMES, read_file_names),
    LayoutReader(audio.NAME, audio.read_audio, evidence.guess_audio, audio.SOUND_EXTENSIONS),
    LayoutReader(tokens.NAME, tokens.read_tokens, tokens.guess_tokens),
)


def detect_layout(tree: Tree, layout: str | LayoutFunction = "auto", *, is_more: bool = False) -> SampleTable:
    """Make the table of samples of a tree.

    Args:
        tree: the dataset's files.
        layout: the name of a layout, "auto" for the first that fits, or a function that makes the table.
        is_more: whether the samples are added to an existing dataset, so that a single class is fine.

    Raises:
        OptionError: there is no layout of that name.
        EmptySourceError: the tree holds no sample of any layout.
        LayoutError: no layout fits; the message says which one nearly does, and how to see why another does not.
        BrokenDatasetError: the layout was found, but something in the tree is broken or contradicts it.
        MissingDependencyError: folders or a table may be meant, but a file that may say more needs a package.
    """
    if not isinstance(layout, str | TableFile):
        return layout(tree)
    if isinstance(layout, str):
        check_layout_name(layout)
    if layout != "auto":
        asked = layout if isinstance(layout, TableFile) else next(one.read for one in READERS if one.name == layout)
        try:
            with _typed(tree):
                return asked(tree)
        except EmptySourceError as error:
            # The requested samples may be in the archives of the tree.
            hints = _how_to_open(tree, _files_called(tree, _ARCHIVES)) or _what_a_table_needs(tree)
            if not hints:
                raise
            raise EmptySourceError(" ".join((str(error), *hints))) from error
    declined: list[tuple[str, LayoutError]] = []
    unread = ""
    # A layout that was not tried cannot explain a failure: the tree has no files of it.
    for reader in (one for one in READERS if one.may_fit(tree)):
        try:
            with _typed(tree):
                table = reader.read(tree) if reader.guess is None else reader.guess(tree, is_more)
        except BrokenDatasetError:
            raise
        except MissingDependencyError as error:
            declined.append((reader.name, NearMissError(str(error))))
            # One is enough: once its package is installed, the next call says more.
            unread = unread or str(error)
        except LayoutError as error:
            declined.append((reader.name, error))
        else:
            if unread and reader.guess is not None:
                # An unreadable file may define the labels, and must not be replaced by a guess.
                msg = f'{unread} Or give layout="{table.layout}", which does without it.'
                raise MissingDependencyError(msg)
            evidence.check_spellings(table)
            evidence.check_split_names(table)
            return table
    raise _nothing_fits(tree, declined)


@contextmanager
def _typed(tree: Tree) -> Iterator[None]:
    """Raise a typed error for a number, a nesting or a size that the files of a tree cannot mean.

    Raises:
        BrokenDatasetError: in place of Python's own error.
    """
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


def _nothing_fits(tree: Tree, declined: list[tuple[str, LayoutError]]) -> LayoutError:
    """Return the error that says what nearly fits, or what there is; each layout, if named, says why it does not
    fit."""
    on_request = 'Give layout= the name of a layout, such as "table", and its error says why that one does not fit.'
    nearest = next((error for _, error in declined if isinstance(error, NearMissError)), None)
    if nearest is not None:
        return LayoutError(f"{nearest} {on_request}")
    foreign = _how_to_read(tree)
    if foreign:
        return LayoutError(foreign)
    # No files of any known kind is a different problem from files that fit no layout, with a different remedy. Tars may
    # be shards, so they were examined.
    archives = _files_called(tree, _ARCHIVES)
    others = FileEntries.of(tree.entries).where(lambda name: not is_note(name))
    is_packed = bool(archives) and len(archives) == len(others)
    if is_packed or all(isinstance(error, EmptySourceError) for _, error in declined):
        msg = f"'{tree.label}' holds {count_kinds(tree.entries) or 'no files'}, and nothing that is read: {_KINDS}."
        hints = _how_to_open(tree, archives) or _what_a_table_needs(tree)
        return EmptySourceError(" ".join((msg, *hints, *tree.notes)))
    first = next(error for _, error in reversed(declined) if not isinstance(error, EmptySourceError))
    return LayoutError(f"The files of '{tree.label}' ({count_kinds(tree.entries)}) fit no layout. {first} {on_request}")


_ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def _files_called(tree: Tree, ends: tuple[str, ...]) -> FileEntries:
    """Return the files of a tree whose names have one of these endings, in any case; .tar.gz is longer than an
    extension."""
    files = tree.entries.ending_in(tuple(map(extension_of, ends)))
    return files.where(lambda name: name.lower().endswith(ends))


def _what_a_table_needs(tree: Tree) -> tuple[str, ...]:
    """Return what to give where a tree holds tables and nothing that they name."""
    if tree.label.lower().endswith((".xlsx", ".ods")):
        how = f"pandas.read_excel('{tree.label}').to_csv('FOLDER/labels.csv', index=False)"
        return (f"It is a spreadsheet. Save it beside the files that it names, {how}, and give 'FOLDER'.",)
    if not tree.entries.ending_in(TABLE_EXTENSIONS):
        return ()
    folder = tree.label if isinstance(tree, FolderTree) else "FOLDER"
    hint = (
        "A table is read with the images or clips that it names: give the folder that holds both, or their two folders "
        f"in a list, ['{folder}', 'FOLDER_OF_THE_IMAGES']. Of a table that is the data itself save arrays, "
        "numpy.savez('data.npz', x=…, y=…), and give 'data.npz'."
    )
    return (hint,)


def _how_to_open(tree: Tree, archives: FileEntries) -> tuple[str, ...]:
    """Return what to do with archives inside a tree."""
    if not archives:
        return ()
    names = archives.names
    if tree.kind != "folder":
        # All of them, because several are usually the parts or splits of one dataset.
        inside = ", ".join(f"'FOLDER/{name}'" for name in names[:NAMES_SHOWN])
        several = f"[{inside}{', …' if len(names) > NAMES_SHOWN else ''}]" if len(names) > 1 else inside
        how = "Extract it first, extract_archive(source, 'FOLDER'), and give"
        return (f"Archives inside an archive are not opened. {how} {several} as the source.",)
    # A folder's share link cannot be written in front of a file's name, and neither can a list.
    is_place = isinstance(tree, FolderTree)
    folder = tree.label if is_place else "FOLDER"
    tables = _files_called(tree, TABLE_EXTENSIONS).where(lambda name: not is_submission(name)).names
    if tables:
        # The archive alone would be read without its labels.
        listed = ", ".join(f"'{folder}/{name}'" for name in names[:NAMES_SHOWN])
        more = ", …" if len(names) > NAMES_SHOWN else ""
        said = f"Archives inside a folder are not opened, and '{tables[0]}' beside them may hold their labels."
        return (f"{said} Give the folder and the archives as the source: ['{folder}', {listed}{more}].",)
    path = f"{folder}/{names[0]}" if is_place else names[0]
    what = "the archive itself" if len(archives) == 1 else "one of them, or a list of them,"
    return (f"Archives inside a folder are not opened. Give {what} as the source: '{path}'.",)


def check_layout_name(layout: str) -> None:
    """Refuse the name of an unknown layout before any tree is opened.

    Raises:
        OptionError: `layout` is neither "auto" nor a known name; the message lists them.
    """
    names = ["auto", *(reader.name for reader in READERS)]
    if layout not in names:
        # torchvision writes ImageFolder.
        near = difflib.get_close_matches(layout.lower(), names, 1)
        meant = f"Did you mean '{near[0]}'? " if near else ""
        msg = f"There is no layout {layout!r}. {meant}Choose one of {', '.join(names)}."
        raise OptionError(msg)


def audio_clips(
    *,
    seconds: float | None = None,
    length: int | None = None,
    rate: int | None = None,
    dtype: SoundDtype = "float32",
    mono: bool = False,
    labels: Sequence[str] | None = None,
) -> LayoutFunction:
    """Read audio clips, in class folders, named by a table or in WebDataset tars, as rows of one length.

    >>> layout = audio_clips(seconds=1.0, rate=16_000, mono=True)

    Args:
        seconds, length: how long each row is, in seconds (then `rate` says how many samples those are) or in samples;
            longer clips are cut, shorter ones filled with zeros, both at the end. With neither, all must have one.
        rate: samples in a second that each clip must have; `None` takes that of the first. Nothing is resampled.
        dtype: "float32" from -1 to 1, or "int16".
        mono: the mean of the channels, rows `(length,)`; else clips of several channels are `(length, channels)`.
        labels: the columns of a table that hold the labels; found by name and content where `None`.

    Raises:
        OptionError: an option that cannot work.
    """
    if seconds is not None:
        if length is not None or rate is None:
            msg = f"seconds={seconds:g} needs rate=, the samples in a second; or give length= alone, in samples."
            raise OptionError(msg)
        # Seconds times rate may fall just short of an integer: 0.29 times 100 is 28.999999999999996.
        length = round(seconds * rate)
    options = AudioOptions(length=length, dtype=dtype, mono=mono, rate=rate)
    return functools.partial(_read_clips, options=options, labels=_names(labels))


def _read_clips(tree: Tree, *, options: AudioOptions, labels: tuple[str, ...] | None) -> SampleTable:
    """Make a table of clips in class folders or named by a table, or otherwise in WebDataset tars."""
    return _either(
        lambda: read_audio(tree, options=options, labels=labels),
        lambda: webdataset.read_webdataset(tree, sound=options),
    )


def _either(read: Callable[[], SampleTable], otherwise: Callable[[], SampleTable]) -> SampleTable:
    """Make a table in one of two ways; if neither fits, the error says why the first does not."""
    found = first_that_fits(read, otherwise)
    if isinstance(found, list):
        raise found[0]
    return found


def token_blocks(
    length: int = 1024,
    *,
    dtype: TokenDtype = "uint16",
    next_tokens: bool = True,
    tokenizer: Callable[[str], Sequence[int]] | None = None,
    separator: int | None = None,
    field: str = "text",
) -> LayoutFunction:
    """Read tokens or text as rows with a fixed number of tokens.

    >>> layout = token_blocks(256, dtype="uint32")

    Args:
        length: tokens of each row.
        dtype: "uint16" or "uint32", of tokens in .bin files and in the rows.
        next_tokens: whether the target of each row is the same tokens shifted by one, which doubles the file; otherwise
            there are no targets.
        tokenizer: converts a text to numbers; without one, tokens are the bytes of UTF-8.
        separator: the token between documents (files, or lines of a .jsonl); none by default.
        field: where a line of a .jsonl has its text.

    Raises:
        OptionError: an option that cannot work.
    """
    options = TokenOptions(length, next_tokens, dtype, tokenizer, separator, field)
    return functools.partial(read_tokens, options=options)


def array_rows(x: str | None = None, y: str | None = None) -> LayoutFunction:
    """Read rows of arrays in .npy, .npz and HDF5 files.

    >>> layout = array_rows(x="spectra", y="concentration")

    Args:
        x, y: names of the arrays, or keys in their file, that hold inputs and targets, if they are not recognised. x
            alone may also be a common part of the names of the arrays to use, such as "emnist-digits".
    """
    return functools.partial(read_arrays, x=x, y=y)


def table_rows(
    labels: Sequence[str] | None = None, *, table: str | None = None, separator: str | None = None
) -> LayoutFunction:
    """Read images that a table (.csv, .tsv, .parquet) names.

    >>> layout = table_rows(labels=["age", "height"], table="people.csv")

    Args:
        labels: the columns that hold the labels; found by name and content where `None`.
        table: which of several tables to use, by its path in the source or its base name.
        separator: what stands between several labels in one cell (" ", ","); "" where each cell is one label, whatever
            is in it; "|" and ";" are found where `None`.
    """
    return functools.partial(read_table, labels=_names(labels), table=table, separator=separator)


def file_names(pattern: str | None = None) -> LayoutFunction:
    """Read images whose names contain their class.

    >>> layout = file_names(r"([A-Za-z_]+)_\\d+\\.jpg$")  # Abyssinian_12.jpg

    Args:
        pattern: a regular expression that is searched in each image's path; its first group, or else the whole match,
            is the class. Names such as cat.0.jpg need no pattern.

    Raises:
        OptionError: `pattern` is no regular expression.
    """
    try:
        # Compiled here, so that a mistake is reported where it was made, not in a worker.
        re.compile(pattern or "")
    except re.error as error:
        msg = f"pattern={pattern!r} is not a regular expression: {error}."
        raise OptionError(msg) from error
    return functools.partial(read_file_names, pattern=pattern)


def image_masks(masks: str) -> LayoutFunction:
    """Read images with one mask each, if there are several kinds of masks.

    >>> layout = image_masks("instances")  # Mapillary: images/a.jpg, instances/a.png, labels/a.png

    Args:
        masks: the folder of the masks to use, or the end of their names, such as "_labelIds".
    """
    return functools.partial(read_pairs, masks=masks)


def _names(labels: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(labels, str):
        msg = f"labels={labels!r} is a word; expected a list of columns, [{labels!r}]."
        raise OptionError(msg)
    return None if labels is None else tuple(labels)


# Files that no layout reads, and how to use them.
_AS_OBJECTS = "pass pack_dataset a dataset object whose items are (x, y)"
_UNREAD = (
    (
        (".dcm", ".dicom"),
        "DICOM files",
        f"Read them with pydicom: {_AS_OBJECTS}, x = pydicom.dcmread(path).pixel_array.",
    ),
    (
        (".nii", ".nii.gz", ".mha", ".nrrd"),
        "medical volumes",
        f"Read them with nibabel: {_AS_OBJECTS}, x = nibabel.load(path).get_fdata(), all of one shape.",
    ),
    (
        (".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg"),
        "videos",
        f"Extract images from them: ffmpeg -i clip.mp4 -vf fps=1 clip/%05d.jpg; or {_AS_OBJECTS}, x a clip's frames.",
    ),
)


def _how_to_read(tree: Tree) -> str:
    """Return what to do with files of known kinds that no layout reads; "" if there are none."""
    for extensions, what, remedy in _UNREAD:
        names = _files_called(tree, extensions).names
        if len(names):
            found = f"'{tree.label}' holds {what} ({len(names):,}, first '{names[0]}')."
            return f"{found} colabstage does not read them. {remedy}"
    return ""


@dataclass(frozen=True, slots=True)
class TableFile:
    """The layout of a folder whose samples one table lists."""

    name: str
    """The table in the folder; other tables are ignored."""

    def __call__(self, tree: Tree) -> SampleTable:
        """Return the samples that the table names: images, or otherwise audio clips.

        Raises:
            LayoutError: it leads to neither.
        """
        seen = PartOfTree(
            tree, FileEntries.of(tree.entries).where(lambda name: name == self.name or not is_table(name))
        )
        try:
            return _either(lambda: read_table(seen), lambda: read_audio(seen))
        except EmptySourceError as error:
            msg = (
                f"{error} '{self.name}' is read with the files in its folder and below. Move it into the folder that "
                f"holds them, or give one that holds both, with layout=table_rows(table='{self.name}')."
            )
            raise EmptySourceError(msg) from error


def is_table_file(path: Path, layout: object) -> bool:
    """Tell whether a path names a table that lists samples beside it, and the requested layout does not contradict
    that."""
    return layout in ("auto", csv_table.NAME) and path.suffix.lower() in _TABLE_SUFFIXES and not path.is_dir()

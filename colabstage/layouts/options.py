"""Layouts with options: used like any other, in other processes too, and the same options find the same pack."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from colabstage.errors import OptionError
from colabstage.layouts.detect import Case, LayoutFunction, read_layout
from colabstage.layouts.evidence import IMAGE_FOLDER, Found, gather
from colabstage.layouts.formats.arrays import arrays_state
from colabstage.layouts.formats.arrow import arrow_state
from colabstage.layouts.formats.masks import masks_state
from colabstage.layouts.formats.tokens import TokenDtype, TokenOptions, tokens_state
from colabstage.layouts.formats.webdataset import webdataset_state
from colabstage.layouts.lists import lists_state
from colabstage.layouts.names import folders_state, names_state
from colabstage.layouts.stored import ClipOptions, SoundDtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.layouts.reading import Source
    from colabstage.layouts.table import SampleTable
    from colabstage.trees.listing import Tree

__all__ = [
    "LayoutFunction",
    "array_rows",
    "audio_clips",
    "file_names",
    "folders",
    "image_masks",
    "parts",
    "table_rows",
    "token_blocks",
]


def audio_clips(
    *,
    seconds: float | None = None,
    length: int | None = None,
    rate: int | None = None,
    dtype: SoundDtype = "float32",
    mono: bool = False,
    labels: Sequence[str] | None = None,
    pattern: str | None = None,
) -> LayoutFunction:
    """Read audio clips, in class folders, named by a table, in WebDataset tars or Parquet, as rows of one length.

    >>> layout = audio_clips(seconds=1.0, rate=16_000, mono=True)

    Args:
        seconds, length: how long each row is, in seconds (then `rate` says how many samples those are) or in samples;
            longer clips are cut, shorter ones filled with zeros, both at the end. With neither, all must have one.
        rate: samples in a second, to which clips of another rate are resampled; where `None`, all must have one.
        dtype: "float32" from -1 to 1, or "int16".
        mono: the mean of the channels, rows `(length,)`; else clips of several channels are `(length, channels)`.
        labels: the columns of a table that hold the labels; found by name and content where `None`.
        pattern: a regular expression that finds the class in each clip's path, as that of `file_names` does.

    Raises:
        OptionError: an option that cannot work.
    """
    if seconds is not None and (length is not None or rate is None):
        msg = f"seconds={seconds:g} needs rate=, the samples in a second; or give length= alone, in samples."
        raise OptionError(msg)
    # Seconds times rate may fall just short of an integer: 0.29 times 100 is 28.999999999999996.
    samples = length if seconds is None else round(seconds * (rate or 0))
    options = ClipOptions(length=samples, dtype=dtype, mono=mono, rate=rate)
    return _layout("audio", _clips_state, options=options, labels=_names(labels), pattern=_checked(pattern))


def _clips_state(source: Source, *, options: ClipOptions, labels: tuple[str, ...] | None, pattern: str | None) -> Found:
    found = gather(lambda: Case(source).state_audio(options, labels, pattern))
    of_records = (webdataset_state, arrow_state) if not (found.claims or pattern) else ()
    others = (gather(functools.partial(state, source, sound=options)) for state in of_records)
    return next((other for other in others if other.claims), found)


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
    return _layout("tokens", tokens_state, options=options)


def array_rows(x: str | None = None, y: str | None = None) -> LayoutFunction:
    """Read rows of arrays in .npy, .npz and HDF5 files.

    >>> layout = array_rows(x="spectra", y="concentration")

    Args:
        x, y: names of the arrays, or keys in their file, that hold inputs and targets, if they are not recognised; of
            each split, if several have them. x alone may also be a common part of the names of the arrays to use, such
            as "emnist-digits".
    """
    return _layout("arrays", arrays_state, x=x, y=y)


def table_rows(
    labels: Sequence[str] | None = None, *, table: str | None = None, separator: str | None = None
) -> LayoutFunction:
    """Read images, clips of sound or .npy files that a table (.csv, .tsv, .parquet) or a list of paths and labels
    (.txt, .json) names.

    >>> layout = table_rows(labels=["age", "height"], table="people.csv")

    Args:
        labels: the columns that hold the labels; found by name and content where `None`.
        table: which of several tables to use, by its path in the source or its base name; it may hold pixels.
        separator: what stands between several labels in one cell (" ", ","); "" where each cell is one label, whatever
            is in it; "|" and ";" are found where `None`.
    """
    return _layout("table", _rows_state, labels=_names(labels), table=table, separator=separator)


def _rows_state(source: Source, *, labels: tuple[str, ...] | None, table: str | None, separator: str | None) -> Found:
    return Case(source).state_rows(labels, table, separator)


def file_names(pattern: str | None = None) -> LayoutFunction:
    """Read images whose names contain their class.

    >>> layout = file_names(r"([A-Za-z_]+)_\\d+\\.jpg$")  # Abyssinian_12.jpg

    Args:
        pattern: a regular expression that is searched in each image's path; its first group, or else the whole match,
            is the class. Names such as cat.0.jpg need no pattern.

    Raises:
        OptionError: `pattern` is no regular expression.
    """
    return _layout("file_names", _names_state, pattern=_checked(pattern))


def _names_state(source: Source, *, pattern: str | None) -> Found:
    return lists_state(source, names_state(source, pattern=pattern))


def folders(level: int = 1) -> LayoutFunction:
    """Read images in folders of classes, if it is not the outermost folder that is the class.

    >>> layout = folders(level=-1)  # patients/1/benign/a.png: the innermost

    Args:
        level: which folder is the class, counted from 1 below the folders that all images share, and below those of
            splits; negative from the innermost, which is -1.

    Raises:
        OptionError: `level` is 0.
    """
    if level == 0:
        msg = (
            f"level={level!r}; expected 1 for the outermost folder that differs, 2 for the next, -1 for the innermost."
        )
        raise OptionError(msg)
    return _layout("image_folder", folders_state, kind=IMAGE_FOLDER, level=level)


def image_masks(masks: str) -> LayoutFunction:
    """Read images with one mask each, if there are several kinds of masks, or they are called otherwise than masks are.

    >>> layout = image_masks("instances")  # Mapillary: images/a.jpg, instances/a.png, labels/a.png

    Args:
        masks: the folder of the masks to use, or the end of their names, such as "_labelIds".
    """
    return _layout("pairs", masks_state, x=None, y=masks)


def parts(x: str, y: str) -> LayoutFunction:
    """Read images with one mask each from two folders of parts of the samples, which have the same names in both.

    >>> layout = parts(x="A", y="label")  # train/A/1.png, train/B/1.png, train/label/1.png

    Args:
        x: the folder of the images, or the end of their names.
        y: the folder of the masks, or the end of their names.

    Raises:
        OptionError: they are the same.
    """
    if x == y:
        msg = f"x={x!r} and y={y!r} are the same; expected the folder of the images, and that of their masks."
        raise OptionError(msg)
    return _layout("pairs", masks_state, x=x, y=y)


def _layout(name: str, state: Callable[..., Found], **options: Any) -> LayoutFunction:
    """Return a reader of evidence with these options as a function that can be sent to other processes; `name`: the
    layout whose rules it follows."""
    found = functools.partial(_read, state, **options)
    vars(found)["layout"] = name
    return found


def _read(state: Callable[..., Found], tree: Tree, **options: Any) -> SampleTable:
    return read_layout(tree, lambda case: state(case.source, **options))


def _checked(pattern: str | None) -> str | None:
    """Return a pattern. A mistake in it is reported where it was made, not in a worker."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        msg = f"pattern={pattern!r} is not a regular expression: {error}."
        raise OptionError(msg) from error
    return pattern


def _names(labels: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(labels, str):
        msg = f"labels={labels!r} is a word; expected a list of columns, [{labels!r}]."
        raise OptionError(msg)
    return None if labels is None else tuple(labels)

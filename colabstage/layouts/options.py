"""Layouts that can be told what their rows are: `pack_dataset(…, layout=audio_clips(seconds=1, rate=16_000))`.

What each function returns goes wherever a layout does, to other processes too. Whoever gives the same options again
gets the pack that was made with them.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from colabstage.errors import OptionError
from colabstage.layouts.arrays.row_arrays import read_arrays
from colabstage.layouts.folders.file_names import read_file_names
from colabstage.layouts.sequences.audio import AudioOptions, read_audio
from colabstage.layouts.sequences.token_streams import TokenOptions
from colabstage.layouts.sequences.tokens import read_tokens
from colabstage.layouts.tables.csv_table import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.layouts.detect import LayoutFunction
    from colabstage.layouts.sequences.sound import SoundDtype
    from colabstage.layouts.sequences.token_streams import TokenDtype


def audio_clips(
    *,
    seconds: float | None = None,
    length: int | None = None,
    rate: int | None = None,
    dtype: SoundDtype = "float32",
    mono: bool = False,
    labels: Sequence[str] | None = None,
) -> LayoutFunction:
    """Clips of sound, in folders of classes or named by a table, as rows of one length.

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
        length = round(seconds * rate)
    options = AudioOptions(length=length, dtype=dtype, mono=mono, rate=rate)
    return functools.partial(read_audio, options=options, labels=_names(labels))


def token_blocks(
    length: int = 1024,
    *,
    dtype: TokenDtype = "uint16",
    next_tokens: bool = True,
    tokenizer: Callable[[str], Sequence[int]] | None = None,
    separator: int | None = None,
    field: str = "text",
) -> LayoutFunction:
    """Tokens or text as rows of one number of tokens.

    >>> layout = token_blocks(256, dtype="uint32")

    Args:
        length: tokens of each row.
        dtype: "uint16" or "uint32", of tokens in .bin files and in the rows.
        next_tokens: whether each row has as its target the same number of tokens, each the one that follows.
        tokenizer: makes numbers of a text; without one, tokens are the bytes of UTF-8.
        separator: the token between documents (files, or lines of a .jsonl); none by default.
        field: where a line of a .jsonl has its text.

    Raises:
        OptionError: an option that cannot work.
    """
    options = TokenOptions(length, next_tokens, dtype, tokenizer, separator, field)
    return functools.partial(read_tokens, options=options)


def array_rows(x: str | None = None, y: str | None = None) -> LayoutFunction:
    """Rows of arrays in .npy, .npz and HDF5 files.

    >>> layout = array_rows(x="spectra", y="concentration")

    Args:
        x, y: names of the arrays, or keys in their file, that hold inputs and targets, where nobody would guess.
    """
    return functools.partial(read_arrays, x=x, y=y)


def table_rows(
    labels: Sequence[str] | None = None, *, table: str | None = None, separator: str | None = None
) -> LayoutFunction:
    """Images that a table (.csv, .tsv, .parquet) names.

    >>> layout = table_rows(labels=["age", "height"], table="people.csv")

    Args:
        labels: the columns that hold the labels; found by name and content where `None`.
        table: the table that counts where there are several, by its path in the source or its bare name.
        separator: what stands between several labels in one cell (" ", ","); "" where each cell is one label, whatever
            is in it; "|" and ";" are found where `None`.
    """
    return functools.partial(read_table, labels=_names(labels), table=table, separator=separator)


def file_names(pattern: str | None = None) -> LayoutFunction:
    """Images whose names say their class.

    >>> layout = file_names(r"([A-Za-z_]+)_\\d+\\.jpg$")  # Abyssinian_12.jpg

    Args:
        pattern: a regular expression that is searched in each image's path; its first group is the class, or all that
            it matches. Names such as cat.0.jpg need none.

    Raises:
        OptionError: `pattern` is no regular expression.
    """
    try:
        re.compile(pattern or "")
    except re.error as error:
        msg = f"pattern={pattern!r} is no regular expression: {error}."
        raise OptionError(msg) from error
    return functools.partial(read_file_names, pattern=pattern)


def _names(labels: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(labels, str):
        msg = f"labels={labels!r} is a word; expected a list of columns, [{labels!r}]."
        raise OptionError(msg)
    return None if labels is None else tuple(labels)

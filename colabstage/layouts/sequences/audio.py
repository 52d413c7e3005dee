"""Clips of sound by class, as arrays of one length: in folders of classes, or named by a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, LayoutError, OptionError
from colabstage.layouts.fields import Arrays, Values
from colabstage.layouts.folders.class_folders import FileKind, find_class_folders
from colabstage.layouts.reading import read_each
from colabstage.layouts.sequences.sound import SOUND_EXTENSIONS, Clip, SoundDtype, read_clip
from colabstage.layouts.sources import TreeFiles
from colabstage.layouts.table import ClaimedTreeError, SampleTable
from colabstage.layouts.tables.csv_table import FileTable, TableChoice, find_file_table
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.sources import Content
    from colabstage.trees.tree import Tree

NAME = "audio"

# Clips that are looked at to learn rate, channels and length, the shortest and the longest file among them.
_PROBES = 16


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """How clips become rows: `layout=functools.partial(read_audio, options=AudioOptions(length=16_000))`.

    `length`: samples of each row; longer clips are cut, shorter ones filled with zeros, both at the end. `None` takes
    the length that all clips have.
    `dtype`: "float32" from -1 to 1, or "int16".
    `mono`: the mean of the channels, `(length,)`; else a clip of several channels is `(length, channels)`.
    `rate`: samples in a second that each clip must have; `None` takes that of the first. Nothing is resampled.
    """

    length: int | None = None
    dtype: SoundDtype = "float32"
    mono: bool = False
    rate: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in get_args(SoundDtype):
            msg = f"dtype={self.dtype!r} is unknown; expected one of {', '.join(get_args(SoundDtype))}."
            raise OptionError(msg)
        for name, value in (("length", self.length), ("rate", self.rate)):
            if value is not None and value < 1:
                msg = f"{name}={value}; expected a number of samples above 0."
                raise OptionError(msg)


def read_audio(
    tree: Tree,
    *,
    options: AudioOptions = AudioOptions(),
    labels: Sequence[str] | None = None,
) -> SampleTable:
    """Make a table of a tree with clips of sound, in folders of classes or named by a table of paths and labels.

    Args:
        tree: the dataset's files.
        options: what the rows are.
        labels: the columns of a table that hold the labels; found by name and content where `None`.

    Raises:
        EmptySourceError: there are no clips.
        LayoutError: they are neither in folders of classes nor named by a table.
        ClaimedTreeError: they have different lengths, rates or channels, and the options do not say what to do.
        MissingDependencyError: they are FLAC or the like, and soundfile is not installed.
    """
    if not files_ending_in(tree.entries, SOUND_EXTENSIONS):
        msg = f"'{tree.label}' holds no clips of sound ({', '.join(SOUND_EXTENSIONS)})."
        raise EmptySourceError(msg)
    found = _find(tree, labels)
    source = TreeFiles(tree, found.files)
    seen = _look_at(source, options)
    decoder = _plan(seen, options)
    sound = f"{decoder.rate:,} Hz, {decoder.length:,} samples ({decoder.length / decoder.rate:.2f} s)"
    return SampleTable(
        layout=NAME,
        keys=found.keys,
        inputs=Arrays(source, decoder.shape, np.dtype(options.dtype), decode=decoder),
        targets=found.targets,
        splits=found.splits,
        groups=found.groups,
        classes=found.classes,
        notes=(*found.notes, f"Clips are stored as {options.dtype}: {sound}, {decoder.channels} channels."),
    )


def _find(tree: Tree, labels: Sequence[str] | None) -> FileTable:
    kind = FileKind(NAME, "clips", SOUND_EXTENSIONS)
    try:
        return find_file_table(tree, kind, TableChoice(None if labels is None else tuple(labels)))
    except ClaimedTreeError:
        raise
    except LayoutError as by_table:
        if labels is not None:
            raise
        try:
            found = find_class_folders(tree, kind)
        except LayoutError as error:
            msg = f"{error} Nor does a table name them: {by_table}"
            raise LayoutError(msg) from error
    return FileTable(
        found.files.names, found.files, Values(found.labels), found.splits, None, found.classes, found.notes
    )


class _Seen(NamedTuple):
    """What one clip turned out to be."""

    name: str
    length: int
    channels: int
    rate: int


def _look_at(source: TreeFiles, options: AudioOptions) -> list[_Seen]:
    order = np.argsort(source.sizes, kind="stable")
    chosen = sorted({int(order[place]) for place in np.linspace(0, len(order) - 1, _PROBES).astype(int)})

    def look(index: int, content: Content) -> _Seen:
        clip = read_clip(bytes(content), options.dtype)
        return _Seen(source.name(index), len(clip.values), clip.values.shape[1], clip.rate)

    # What is broken is named when it is packed.
    seen = read_each(source, chosen, look, readers=4, skip_broken=True)
    if not seen:
        msg = f"None of the clips that were looked at can be decoded (first '{source.name(chosen[0])}')."
        raise ClaimedTreeError(msg)
    return seen


def _plan(seen: Sequence[_Seen], options: AudioOptions) -> _ClipDecoder:
    """What all rows are, by those clips."""
    rates = Counter(one.rate for one in seen)
    rate = options.rate or seen[0].rate
    if set(rates) != {rate}:
        found = ", ".join(f"{count} of {one:,} Hz" for one, count in rates.most_common())
        msg = f"Of {len(seen)} clips that were looked at there are {found}; expected {rate:,} Hz. Resample them first."
        raise ClaimedTreeError(msg)
    channels = {one.channels for one in seen}
    if len(channels) > 1 and not options.mono:
        msg = (
            f"Clips have {' and '.join(map(str, sorted(channels)))} channels. Take their mean: {_example('mono=True')}."
        )
        raise ClaimedTreeError(msg)
    lengths = sorted((one.length, one.name) for one in seen)
    if options.length is None and lengths[0][0] != lengths[-1][0]:
        (short, first), (long, last) = lengths[0], lengths[-1]
        msg = (
            f"Clips have different lengths ('{first}' {short:,} samples, '{last}' {long:,}). Say which they shall "
            f"have: {_example(f'length={long}')}."
        )
        raise ClaimedTreeError(msg)
    length = options.length or lengths[0][0]
    return _ClipDecoder(options, length, 1 if options.mono else channels.pop(), rate)


def _example(option: str) -> str:
    return f"layout=functools.partial(read_audio, options=AudioOptions({option}))"


@dataclass(frozen=True, slots=True)
class _ClipDecoder:
    """Makes a row of a file's bytes."""

    options: AudioOptions
    length: int
    channels: int
    rate: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,) if self.channels == 1 else (self.length, self.channels)

    def __call__(self, content: bytes) -> NDArray[Any]:
        clip = read_clip(content, self.options.dtype)
        values = self._mixed(clip)
        if clip.rate != self.rate or values.shape[1] != self.channels:
            msg = (
                f"The clip has {clip.rate:,} Hz and {values.shape[1]} channels; expected {self.rate:,} Hz and "
                f"{self.channels}, as the others."
            )
            raise DecodeError(msg)
        if self.options.length is None and len(values) != self.length:
            msg = (
                f"The clip has {len(values):,} samples and the others {self.length:,}. Say which length all shall "
                f"have: {_example(f'length={self.length}')}."
            )
            raise DecodeError(msg)
        row: NDArray[Any] = np.zeros((self.length, self.channels), values.dtype)
        row[: len(values)] = values[: self.length]
        return row.reshape(self.shape)

    def _mixed(self, clip: Clip) -> NDArray[Any]:
        values = clip.values
        if not self.options.mono or values.shape[1] == 1:
            return values
        mean: NDArray[np.float64] = values.mean(axis=1, keepdims=True, dtype=np.float64)
        return (np.rint(mean) if values.dtype.kind == "i" else mean).astype(values.dtype)

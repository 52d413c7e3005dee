"""What a file of `X_<split>`/`Y_<split>` holds according to its headers, whichever program wrote it.

No samples are read, except for a few rows of variable length, whose type does not tell their size.
"""

from __future__ import annotations

import difflib
import json
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from colabstage.errors import (
    DamagedPackError,
    NewerFormatError,
    NotStagedError,
    PackFormatError,
    SourceNotFoundError,
    SplitNotFoundError,
)
from colabstage.h5 import schema
from colabstage.h5.arrival import PART_MARK, MarkedBytes, is_marked
from colabstage.h5.untrusted import (
    element_dtype,
    estimate_bytes,
    follow,
    open_alone,
    open_with_any_locking,
    ragged_kind,
    reading_contents,
)
from colabstage.images.geometry import ImageOptions, MaskOptions
from colabstage.io.arguments import whereabouts
from colabstage.io.files import translate_read_error
from colabstage.io.report import Report, Row, Shown, Table, facts, left_out_table
from colabstage.io.units import NAMES_SHOWN, format_bytes, format_count, format_names
from colabstage.trees.bytes import HEAD_BYTES, SourceFile, describe_contents

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

# Common names of targets that do not match the name of their inputs: labels_train, train_label, target.
_LABEL_WORDS = frozenset({"class", "classes", "label", "labels", "mask", "masks", "target", "targets", "y"})
_WORD = re.compile(r"[a-z]+")
# PatchCamelyon, for example, keeps targets and inputs in separate files.
_IN_FILE = re.compile(r"(.+\.(?:h5|hdf5|hdf|he5|mat))/(.+)", re.IGNORECASE)
_NAMES_SHOWN = 8


# What a source or pack holds, as named texts: its layout, its classes, an example.
Found = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """One field of a split, N rows."""

    name: str
    kind: Literal["fixed", "encoded", "boxes", "ragged", "texts"]
    """`"fixed"`, one dataset whose first axis is the row; `"encoded"`, a group of `bytes` and `offsets`; `"boxes"`, a
    group of `boxes`, further columns, and `offsets`; `"ragged"`, one dataset of any number of values in each row, and
    `"texts"`, one string in each row, both only in files from other tools."""
    rows: int
    """N."""
    shape: tuple[int, ...] | None
    """Of one row; empty for a scalar; `None` for every kind but `"fixed"`, because rows then differ in shape."""
    dtype: np.dtype[Any]
    """As stored; uint8 for encoded rows, the coordinates' dtype for boxes, the dtype of one value for ragged rows."""
    nbytes: int
    """Length of the samples in the file, in bytes (unfiltered); an estimate for ragged rows and texts."""
    image: ImageOptions | None = None
    """How encoded inputs are decoded; `None` for everything else."""
    mask: MaskOptions | None = None
    """How encoded masks are decoded; `None` for everything else."""
    columns: tuple[str, ...] = ()
    """The names of the box columns, `"boxes"` first."""
    reversed_axes: bool = False
    """Whether MATLAB wrote it, which stores the axes in reverse order."""

    @property
    def coding(self) -> ImageOptions | MaskOptions | None:
        return self.mask or self.image


@dataclass(frozen=True, slots=True)
class SplitInfo:
    name: str
    x: FieldInfo
    y: FieldInfo | None
    """`None` where the file has no targets."""
    keys: str | None
    """The dataset of the row keys, or `None`."""

    @property
    def rows(self) -> int:
        return self.x.rows


@dataclass(frozen=True, slots=True, repr=False)
class PackInfo(Shown):
    """What a file holds, according to its headers; `None` for what they do not say."""

    path: Path
    format_version: int | None
    """`None` for a file that colabstage did not write."""
    layout: str | None
    """The layout that it was packed from, in the file's own words."""
    classes: tuple[str, ...]
    """Names of the classes in label order; empty where the file has none."""
    splits: Mapping[str, SplitInfo]
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that it was packed with, in the file's own words."""
    source: str | None = None
    """The address that it was packed from, in the file's own words."""
    skipped: tuple[str, ...] = ()
    """One sentence for each sample left out."""
    encoding_reason: str | None = None
    encoding: str | None = None
    """How samples are stored, and why."""
    shard_set: str | None = None
    """For a shard, the value that all shards of the same run share."""
    resizer: str | None = None

    @property
    def rows(self) -> dict[str, int]:
        return {name: split.rows for name, split in self.splits.items()}

    def shown(self, *beside: tuple[str, str]) -> Report:
        """Return a report: facts, with those known `beside`, one row for each field, and what was left out."""
        known = {
            # It can still be read, but there is nothing to compare its bytes with.
            "format": f"pack {self.format_version}" if self.format_version else "HDF5 that colabstage did not write",
            "source": self.source or "",
            **dict(found_in(self)),
            "samples": ", ".join(f"{name} {rows:,}" for name, rows in self.rows.items()),
            "encoding": ", because ".join(filter(None, (self.encoding, self.encoding_reason))),
            "resized by": self.resizer or "",
            **dict(beside),
        }
        rows = tuple(
            Row((split.name, f"{split.rows:,}", one.name, _one_row(one), str(one.dtype), format_bytes(one.nbytes)))
            for split in self.splits.values()
            for one in filter(None, (split.x, split.y))
        )
        named = facts((name, text) for name, text in known.items() if text)
        table = Table(rows, ("split", "rows", "dataset", "one row", "dtype", "size"), numbers=frozenset({1, 5}))
        return Report(f"'{self.path}'", (named, table, left_out_table(self.skipped, "info.skipped")))

    def split(self, name: str) -> SplitInfo:
        if (found := self.splits.get(name)) is not None:
            return found
        msg = f"'{self.path.name}' has no split '{name}'. {format_splits(self)}"
        if near := difflib.get_close_matches(str(name), self.splits, 1):
            msg += f" Did you mean '{near[0]}'?"
        elif list(self.splits) == ["train"]:
            held_out = name if str(name).isidentifier() else "test"
            msg += f" To hold a fifth out, stage or pack it with splits={{'train': 0.8, '{held_out}': 0.2}}."
        raise SplitNotFoundError(msg)


def _one_row(field: FieldInfo) -> str:
    """Return what one row is."""
    if field.kind == "fixed":
        return " x ".join(map(str, field.shape or ())) or "one number"
    return ", ".join(field.columns) or field.kind


def found_in(info: PackInfo | None) -> Found:
    """Return the layout and the classes of a pack, as named texts."""
    if info is None:
        return ()
    layout = () if info.layout is None else (("layout", info.layout),)
    named = format_names(info.classes[:NAMES_SHOWN], len(info.classes)) if info.classes else "not named"
    return (*layout, ("classes", named))


class NamedFields(NamedTuple):
    """The names of inputs and targets in a file that does not call them `X_<split>` and `Y_<split>`."""

    split: str
    """The split that they are read as."""
    x: str
    """The dataset of inputs, by its path in the file."""
    y: str | None = None
    """The dataset of targets; with the file in front (`labels.h5/y`) where that is another one; `None` for none."""


def format_splits(info: PackInfo) -> str:
    """Say for an error which splits there are, with their numbers of samples."""
    found = [f"'{name}' ({format_count(split.rows, 'samples')})" for name, split in info.splits.items()]
    return f"Take one of {', '.join(found)}."


def read_info(
    path: Path, fields: NamedFields | None = None, *, allow_external: bool = False, in_part: bool = False
) -> PackInfo:
    """Read from its headers what a file holds: all its splits, or the one of `fields`; the others as of `open_h5`."""
    with open_fields(path, fields, allow_external=allow_external, in_part=in_part) as file, reading_contents(path):
        return info_of(file, path, fields)


def info_of(file: Any, path: Path, fields: NamedFields | None = None) -> PackInfo:
    """Return what an open file of `open_fields` holds, inside `reading_contents`; raises as `read_info`."""
    attributes = file.attrs  # h5py opens the file's root each time it is asked for them
    version = int(attributes[schema.FORMAT_ATTRIBUTE]) if schema.FORMAT_ATTRIBUTE in attributes else None
    # A newer version may have changed the meaning of bytes; reading on would give wrong pixels without an error.
    if version is not None and version > schema.FORMAT_VERSION:
        msg = (
            f"'{path}' was written in format {version}; this colabstage reads up to format {schema.FORMAT_VERSION}. "
            "Install a newer colabstage, as its README says."
        )
        raise NewerFormatError(msg)
    splits = _read_splits(file, path) if fields is None else _read_named(file, fields, path)

    def text(name: str) -> str | None:
        return str(attributes[name]) if name in attributes else None

    # Only shown to people. Another tool may use the same name, which is no reason to refuse its file.
    options: Any = {}
    with suppress(ValueError):
        options = json.loads(text("options") or "{}")
    return PackInfo(
        path=path,
        format_version=version,
        layout=text("layout"),
        classes=_texts(file, schema.CLASSES),
        splits=splits,
        options=options if isinstance(options, dict) else {},
        source=text("source"),
        skipped=_texts(file, schema.SKIPPED),
        encoding_reason=text("encoding_reason"),
        encoding=text("encoding"),
        shard_set=text(schema.SHARD_SET_ATTRIBUTE),
        resizer=text(schema.RESIZER_ATTRIBUTE),
    )


def _texts(file: Any, name: str) -> tuple[str, ...]:
    """Return the list that an attribute holds; empty if another tool stores something else under its name."""
    if name not in file or len(getattr(file[name], "shape", None) or ()) != 1:
        return ()
    return tuple(raw.decode() if isinstance(raw, bytes) else str(raw) for raw in file[name][()].tolist())


def size_of_file(path: Path) -> int:
    """Return the length in bytes of what should be a packed file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        msg = f"There is no file '{path}'. {whereabouts(path)}"
        raise SourceNotFoundError(msg) from None
    # Checked before HDF5, which reports a folder as errno 21, and blocks on a pipe.
    if not stat.S_ISREG(found.st_mode):
        is_folder = stat.S_ISDIR(found.st_mode)
        kind, or_all = ("a folder", f", or all of a folder, '{path}/*.h5'") if is_folder else ("not a regular file", "")
        msg = f"'{path}' is {kind}; expected an HDF5 file, for example the .path of a staged dataset{or_all}."
        raise PackFormatError(msg)
    return found.st_size


def open_h5(path: Path, *, allow_external: bool = False, in_part: bool = False) -> Any:
    """Open a file with h5py for reading; without HDF5's file lock where the lock is refused. Its names lead to
    other files only with `allow_external`. `in_part`: whether the caller brings the missing blocks of a file
    that is only partly local, which is refused otherwise."""
    size = size_of_file(path)
    try:
        if in_part and is_marked(path):
            return open_alone(SourceFile(MarkedBytes(path)), str(path))
        return open_with_any_locking(path, allow_external=allow_external)
    except OSError as error:
        raise _open_error(path, size, error) from error


def open_fields(path: Path, fields: NamedFields | None, *, allow_external: bool = False, in_part: bool = False) -> Any:
    """Open a file as `open_h5` does, so that the names in `fields` are found, even in a file beside it."""
    file = open_h5(path, allow_external=allow_external, in_part=in_part)
    y = (fields.y if fields else None) or ""
    # `labels.h5/y` is the dataset y in a file beside this one.
    if (found := _IN_FILE.fullmatch(y)) is not None:
        try:
            other = open_h5(path.parent / found[1], allow_external=allow_external)
            if (node := other.get(found[2])) is not None:
                file.beside[y] = node
        except BaseException:
            file.close()
            raise
    return file


def _open_error(path: Path, size: int, error: OSError) -> Exception:
    # Errors with a number come from the disk or mount and say nothing about the file.
    if error.errno is not None:
        return translate_read_error(error, str(path), 1)
    if "signature not found" in str(error):
        return _no_signature(path, size)
    msg = (
        f"'{path}' ({size:,} bytes) cannot be opened as HDF5: {error}. It is cut off, or another program is writing "
        "it, or was killed: copy or stage it again, or close it there."
    )
    return DamagedPackError(msg)


def _no_signature(path: Path, size: int) -> Exception:
    """Return the error for a file that HDF5 does not recognise, which says what the file is."""
    with open(path, "rb") as handle:
        head = handle.read(HEAD_BYTES)
    if head.startswith(PART_MARK):
        msg = (
            f"Only a part of '{path}' is here, under disk_limit=. Read it by what brings the rest: data['train'], "
            "data.loader('train', 64), data.to_keras('train', 64) of what stage_dataset returned, or "
            "dataset_h5(the path or address of the whole file, disk_limit=…)."
        )
        return NotStagedError(msg)
    # Copying tools allocate first: an interrupted copy has the right length and holds zeros.
    if not head.strip(b"\0"):
        found = "begins with zeros" if head else "is empty"
        msg = f"'{path}' {found} ({size:,} bytes), so a copy of it never finished. Copy or stage it again."
        return DamagedPackError(msg)
    msg = (
        f"'{path}' is not an HDF5 file but {describe_contents(head)}. Expected one with X_<split> and Y_<split>, "
        "for example the .path of a staged dataset."
    )
    return PackFormatError(msg)


def _read_splits(file: Any, path: Path) -> dict[str, SplitInfo]:
    names = {split for name in file if (split := schema.split_of(name)) is not None}
    if not names:
        msg = (
            f"'{path}' has no dataset called X_<split> (X_train, for example). It holds: {_show_names(file)}. Say "
            f"which are what: dataset_h5(path, x='NAME', y='NAME'). Or {_PACKING}."
        )
        raise PackFormatError(msg)
    # The usual splits in the usual order, then all others by name.
    order = {name: number for number, name in enumerate(schema.FAMILIAR_SPLITS)}
    return {name: _read_split(file, name, path) for name in sorted(names, key=lambda n: (order.get(n, len(order)), n))}


# Packing recognises arrays that hold one sample each, and MATLAB's order of axes, or says what to do.
_PACKING = "pack it, which looks for inputs and targets: pack_dataset(path, 'packed.h5')"


def _show_names(file: Any) -> str:
    """Return the names of the first datasets, with paths for those in groups."""
    import h5py

    names: list[str] = []

    def note(name: str, node: Any) -> bool | None:
        names.extend([name] if isinstance(node, h5py.Dataset) else [])
        return True if len(names) >= _NAMES_SHOWN else None

    file.visititems(note)
    return ", ".join(names or file) or "nothing"


def _read_named(file: Any, fields: NamedFields, path: Path) -> dict[str, SplitInfo]:
    for name in (fields.x, fields.y):
        if name is not None and name not in file:
            msg = f"'{path}' has no dataset called {name!r}. It holds: {_show_names(file)}."
            raise PackFormatError(msg)
    x = _read_field(file, fields.x, path)
    y = None if fields.y is None else _read_field(file, fields.y, path)
    return {fields.split: _check_targets(SplitInfo(fields.split, x, y, None), path)}


def _read_split(file: Any, split: str, path: Path) -> SplitInfo:
    x_found, y_found = (_spelled(file, name) for name in (schema.x_name(split), schema.y_name(split)))
    x = _read_field(file, x_found or schema.x_name(split), path)
    y = None if y_found is None else _read_field(file, y_found, path)
    keys = schema.key_name(split)
    if y is None and schema.FORMAT_ATTRIBUTE not in file.attrs:
        _check_no_labels(file, x, path)
    return _check_targets(SplitInfo(split, x, y, keys if keys in file else None), path)


def _spelled(file: Any, name: str) -> str | None:
    """Return how the file spells a name, as it is or ignoring case; `None` if it has no such name."""
    # scikit-learn's convention is `y_train` beside `X_train`. Names are compared one by one, because h5py's `in` is
    # False for a link that leads nowhere.
    return next((one for one in sorted(file, key=lambda one: one != name) if one.casefold() == name.casefold()), None)


def _check_no_labels(file: Any, x: FieldInfo, path: Path) -> None:
    """Refuse inputs that have no matching targets if another dataset looks like labels: all targets would be -1."""
    inputs = {name.casefold() for name in file if schema.split_of(name) is not None}
    for name in file:
        # Targets of another split belong to other inputs.
        if f"x_{name.casefold().removeprefix('y_')}" in inputs or name.casefold() in inputs:
            continue
        shape = None if _LABEL_WORDS.isdisjoint(_WORD.findall(name.lower())) else getattr(file.get(name), "shape", None)
        if shape and shape[0] == x.rows:
            msg = (
                f"'{path}' has no targets named like {x.name}, and '{name}' with as many rows. Say that these are "
                f"they: dataset_h5(path, x='{x.name}', y='{name}'); or that there are none: "
                f"dataset_h5(path, x='{x.name}')."
            )
            raise PackFormatError(msg)


def _check_targets(found: SplitInfo, path: Path) -> SplitInfo:
    """Return the split, after checking that it has one target for each input."""
    x, y = found.x, found.y
    if x.kind == "boxes":
        msg = f"The group {x.name} in '{path}' holds boxes; expected the inputs of a model."
        raise PackFormatError(msg)
    # Checked before anything is read: if one row is missing, all labels after it belong to other inputs.
    if y is not None and y.rows != x.rows:
        msg = (
            f"'{path}' has {x.rows} rows in {x.name} but {y.rows} in {y.name}; expected one target for each input. If "
            f"MATLAB wrote them, whose axes are reversed here, {_PACKING}."
        )
        raise PackFormatError(msg)
    return found


def _read_field(file: Any, name: str, path: Path) -> FieldInfo:
    import h5py

    node = follow(file, name, path)
    if isinstance(node, h5py.Group):
        return _read_boxes(node, name) if schema.BOXES in node and schema.OFFSETS in node else _read_encoded(node, name)
    if not getattr(node, "shape", None):
        msg = f"The dataset {name} has no axes; expected its first axis to be the row."
        raise PackFormatError(msg)
    if (kind := ragged_kind(node)) is not None:
        dtype = node.dtype if kind == "texts" else element_dtype(node)
        return FieldInfo(name, kind, node.shape[0], None, dtype, estimate_bytes(node))
    is_matlabs = "MATLAB_class" in node.attrs and node.ndim > 1
    shape = tuple(node.shape[1:])
    return FieldInfo(name, "fixed", node.shape[0], shape, node.dtype, int(node.nbytes), reversed_axes=is_matlabs)


def _read_encoded(group: Any, name: str) -> FieldInfo:
    import numpy as np

    # In files from elsewhere a group may be anything; these two datasets make it rows.
    missing = [part for part in (schema.BYTES, schema.OFFSETS) if part not in group]
    if missing:
        msg = f"The group {name} has no {' and no '.join(missing)}; expected both for rows of different lengths."
        raise PackFormatError(msg)
    # Masks have their own attribute, because their pixels are classes: resizing them like images would mix classes.
    masks = group.attrs.get(schema.MASK_OPTIONS_ATTRIBUTE)
    images = None if masks is not None else group.attrs.get(schema.IMAGE_OPTIONS_ATTRIBUTE, "{}")
    image = None if images is None else image_options_from_json(images)
    mask = None if masks is None else mask_options_from_json(masks)
    rows, nbytes = max(0, group[schema.OFFSETS].shape[0] - 1), int(group[schema.BYTES].shape[0])
    return FieldInfo(name, "encoded", rows, None, np.dtype(np.uint8), nbytes, image, mask)


def _read_boxes(group: Any, name: str) -> FieldInfo:
    # Boxes first, then further columns by name, so that the order never changes.
    columns = (schema.BOXES, *sorted(set(group) - {schema.BOXES, schema.OFFSETS}))
    lengths = {column: group[column].shape[0] for column in columns}
    if len(set(lengths.values())) > 1 or group[schema.BOXES].shape[1:] != (4,):
        msg = f"The group {name} holds columns of {lengths} rows; expected as many of each, and four numbers for a box."
        raise PackFormatError(msg)
    rows, nbytes = max(0, group[schema.OFFSETS].shape[0] - 1), sum(int(group[column].nbytes) for column in columns)
    return FieldInfo(name, "boxes", rows, None, group[schema.BOXES].dtype, nbytes, columns=columns)


def coding_to_json(coding: ImageOptions | MaskOptions) -> dict[str, Any]:
    """Return the value of a group's `image_options` or `mask_options` attribute."""
    size = coding.size and list(coding.size)
    if isinstance(coding, ImageOptions):
        # Earlier versions do not know "auto", which decodes files to RGB anyway.
        color_mode = "rgb" if coding.color_mode == "auto" else coding.color_mode
        return {"size": size, "color_mode": color_mode, "resize": coding.resize}
    colors = None if coding.colors is None else [list(color) for color in coding.colors]
    foreground = {"foreground": True} if coding.foreground else {}
    return {"size": size, "resize": coding.resize, "colors": colors, **foreground}


# Missing options have their defaults: options were added over time, and older packs are still read.
def _size_of(raw: Mapping[str, Any]) -> tuple[int, int] | None:
    return raw.get("size") and (int(raw["size"][0]), int(raw["size"][1]))


def mask_options_from_json(text: str) -> MaskOptions:
    raw = json.loads(text)
    colors = raw.get("colors")
    colors = None if colors is None else tuple((int(red), int(green), int(blue)) for red, green, blue in colors)
    return MaskOptions(_size_of(raw), raw.get("resize", "stretch"), colors, bool(raw.get("foreground", False)))


def image_options_from_json(text: str) -> ImageOptions:
    raw = json.loads(text)
    return ImageOptions(_size_of(raw), raw.get("color_mode", "rgb"), raw.get("resize", "stretch"))

"""`pack_dataset`: a local folder or archive becomes one HDF5 file, or several, or is appended to a packed dataset.

Appended samples must have the form of the existing ones; otherwise they are refused with the difference named.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np

from colabstage.errors import OptionError, TargetExistsError
from colabstage.h5.info import FieldInfo, PackInfo, read_info
from colabstage.h5.manifest import manifest_path
from colabstage.h5.parts import (
    PackSchema,
    PartName,
    appended_beside,
    find_parts,
    next_appended,
    pack_schema,
    schema_difference,
    shard_pattern,
    shards_beside,
)
from colabstage.h5.untrusted import open_with_any_locking
from colabstage.images.geometry import ImageOptions
from colabstage.io.arguments import absolute_path, read_options, refuse_argument, whole_number
from colabstage.io.boundary import GOES_ON, public
from colabstage.io.display import resolve_progress
from colabstage.io.files import local_lock, lock_for, make_folder
from colabstage.io.workspace import sweep_orphans
from colabstage.layouts.table import Boxes, Masks, SampleTable, UnreadBoxes, Values
from colabstage.machine.mounts import place_in, require_answer, required_to_stay, run_watched, run_watched_for_caller
from colabstage.pack.execute import PackReport, PackRun, space_for
from colabstage.pack.job import CallersDataset, open_source, plan_job
from colabstage.pack.options import PackArguments, PackOptions, recorded_image
from colabstage.pack.plan import PackPlan, StoredField, divide, groups_of_keys, owners, why_not_divided
from colabstage.pack.shards import pack_set
from colabstage.sources.parse import check_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor
    from os import PathLike

    from colabstage.io.progress import Progress
    from colabstage.pack.job import PackSource


def dataset_of_part(part: Path) -> Path:
    """Return the dataset that a file belongs to: `NAME.h5` for `NAME.h5`, for a shard, and for an appended file; also
    for a pattern that matches nothing else."""
    if glob.has_magic(part.name) and not part.exists():
        found = sorted({dataset_of_part(one) for one in find_parts(str(part))})
        if len(found) > 1:
            msg = f"append_to='{part}' matches files of '{found[0]}' and '{found[1]}'; name one of them."
            raise OptionError(msg)
        return found[0]
    name = PartName.of(part)
    return part.with_name(f"{name.stem}{name.suffix}")


def options_like(base: PackInfo, options: PackOptions) -> PackOptions:
    """Return the options for appending to `base`, which provides those left at their defaults."""
    image, recorded = recorded_image(base.options), base.options
    before = {
        "layout": recorded.get("layout", "auto"),
        "image_size": image.size,
        "color_mode": image.color_mode,
        "resize": image.resize,
        # As decided then: "auto" would decide by the new images and today's free space.
        "encoding": base.encoding if base.encoding not in (None, "arrays") else "auto",
        "splits": recorded.get("splits"),
        "group_by": recorded.get("group_by"),
        "seed": recorded.get("seed", 0),
    }
    plain = PackOptions()
    left = {name: value for name, value in before.items() if getattr(options, name) == getattr(plain, name)}
    # A function is recorded by a digest of its code.
    if ":" in str(left.get("layout", "")):
        msg = (
            f"'{base.path}' was packed with a function as layout= ({left['layout'].partition(':')[0]}), which the file "
            "does not hold. Give it again, or a layout by its name."
        )
        raise OptionError(msg)
    return replace(options, **left)


def split_alike(
    table: SampleTable, names: Sequence[str], options: PackOptions, earlier: Mapping[str, str]
) -> SampleTable:
    """Return the table divided by the fractions in `options` (its `train`, if it has splits), with names and groups
    that the dataset has already in the splits where they are; `earlier`: the split of each of its samples, by name;
    `names`: of the samples, likewise."""
    assert options.fractions is not None
    if options.group_by is None and table.groups is not None:
        msg = (
            "The samples have groups, and the dataset does not say which split each group is in. Give group_by=, a "
            "regular expression that finds the group in each name, as in the names of the samples before."
        )
        raise OptionError(msg)
    grouped = list(earlier)
    find: Callable[[Sequence[str]], list[str]] = owners
    if options.group_by is not None:
        # Samples of a source with splits of its own need no groups; that none has one is an error.
        grouped = [name for name in earlier if re.search(options.group_by, name)] or grouped
        find = partial(groups_of_keys, options.group_by)
    units, homes = find(names), dict[str, str]()
    for unit, name in zip(find(grouped), grouped, strict=True):
        # What is in two splits already says nothing.
        homes[unit] = earlier[name] if homes.get(unit, earlier[name]) == earlier[name] else ""
    splits = list(table.splits or ["train"] * len(table))
    rows = np.flatnonzero(np.array(splits) == "train")
    numbers = divide(table, options.fractions, rows, seed=options.seed, group_by=options.group_by)
    for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
        splits[row] = homes.get(units[row]) or options.fractions[number][0]
    return replace(table, splits=splits)


def labelled_alike(table: SampleTable, classes: tuple[str, ...]) -> SampleTable:
    """Return the table with labels that mean the same as those of a dataset with these classes, if their names allow
    it."""
    targets = table.targets
    if isinstance(targets, Masks) and targets.guessed:
        # Empty masks do not show that others have a foreground.
        masks = replace(targets, foreground=True)
        return replace(table, targets=masks, classes=classes) if masks.classes == classes else table
    labels = targets.columns.get("labels") if isinstance(targets, Boxes) else getattr(targets, "values", None)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        return table
    # More data often lacks some classes. Numbers would then shift, and the same label would mean two things. Numbers
    # without names are named by their digits, as they would be if they were more; -1, a secret label, has no name.
    found, places = np.unique(labels, return_inverse=True)
    names = {number: str(number) for number in found.tolist() if number >= 0} | dict(enumerate(table.classes))
    numbers = {name: number for number, name in enumerate(classes)} or {str(number): number for number in names}
    if not set(names.values()) <= numbers.keys():
        return table
    meant = np.array([numbers.get(names.get(label, ""), label) for label in found.tolist()], labels.dtype)
    made = meant[places.reshape(-1)]
    if isinstance(targets, Boxes):
        return replace(table, classes=classes, targets=replace(targets, columns={**targets.columns, "labels": made}))
    return replace(table, classes=classes, targets=Values(made))


def check_fits(base: PackInfo, table: SampleTable, plan: PackPlan, options: PackOptions) -> None:
    """Make sure that the planned pack can be read as one with `base`."""
    expected = pack_schema(base, next(iter(base.splits)))
    difference = schema_difference(expected, _planned_schema(table, plan))
    # Shapes may agree although values differ: a function is compared by its code, the encoding by its name.
    prepare = options.to_json()["prepare"]
    if difference is None and base.options.get("prepare") != prepare:
        difference = f"its inputs are prepared by {prepare} instead of {base.options.get('prepare')}"
    if difference is None and base.encoding not in (None, plan.encoding):
        difference = f"its encoding is {plan.encoding} instead of {base.encoding}"
    if difference is not None:
        msg = (
            f"This cannot be appended to '{base.path}': {difference}. Nothing has been written; change the options or "
            "the source so that both agree, or pack it to a file of its own."
        )
        raise OptionError(msg)


def splits_of_names(dataset: Path) -> dict[str, str]:
    """Return the split of each sample in a dataset's files, by its name."""
    found: dict[str, str] = {}
    for part in (dataset, *shards_beside(dataset), *appended_beside(dataset)):
        if part.is_file():
            with open_with_any_locking(part) as file:
                for name in file:
                    if name.startswith("key_"):
                        keys = (key.decode(errors="replace") for key in file[name][()].tolist())
                        found |= dict.fromkeys(keys, name.removeprefix("key_"))
    return found


def _planned_schema(table: SampleTable, plan: PackPlan) -> PackSchema:
    """Return what `pack_schema` will return for the file once it is written."""
    targets, y = table.targets, None if plan.y is None else _planned_field(plan.y)
    if isinstance(targets, Values):
        y = FieldInfo("y", "fixed", 0, targets.values.shape[1:], targets.values.dtype, 0)
    elif isinstance(targets, Boxes | UnreadBoxes):
        columns = ("boxes", *targets.columns) if isinstance(targets, Boxes) else targets.dtype.names or ()
        y = FieldInfo("y", "boxes", 0, None, np.dtype(np.float32), 0, columns=columns)
    return PackSchema(table.classes, _planned_field(plan.x), y)


def _planned_field(field: StoredField) -> FieldInfo:
    coding = field.coding
    image, mask = (coding, None) if isinstance(coding, ImageOptions) else (None, coding)
    kind: Literal["fixed", "encoded"] = "fixed" if coding is None else "encoded"
    return FieldInfo(field.side, kind, 0, field.shape, field.dtype, 0, image, mask)


# An object may return other items the next time.
_GOES_ON = f"{GOES_ON} Only the items of a Python object are all read again."


@public(PackOptions, reads=("source",), writes=("target", "append_to"), stopped=_GOES_ON)
def pack_dataset(
    source: PackSource,
    target: str | PathLike[str] | None = None,
    *,
    append_to: str | PathLike[str] | None = None,
    shards: int | None = None,
    executor: Executor | None = None,
    overwrite: bool = False,
    progress: bool | Progress = True,
    options: PackOptions | None = None,
    **arguments: Unpack[PackArguments],
) -> PackReport:
    r"""Convert a folder or archive on this machine to one HDF5 file, or several; no Google Drive involved.

    Args:
        source: a folder, or a zip or tar that is read in place, never extracted; one file of arrays, records or tokens
            (.npy, .h5, .tfrecord, .parquet, .bin, .txt), or a .csv of paths beside it; or a dataset: an object with a
            length whose items are `(x, y)`, images, arrays or numbers.
        target: the file to make. Its manifest `TARGET.json` is written beside it, last. With `shards` or `executor`
            also an address that fsspec writes to, such as `"s3://bucket/set.h5"`: each shard is made on its writer's
            disk, then uploaded.
        append_to: in place of `target`: a dataset `NAME.h5` that was packed before, in one file or in shards. The
            samples are written to `NAME-append-00001.h5` beside it (or 00002, …), and `dataset_h5("NAME*.h5")` reads
            all as one, appended samples last. Options left at their defaults are those of `NAME.h5`; samples whose
            names or groups it has go to the same splits. New classes, and samples that would be stored in another
            form, are refused.
        shards: write this many files `TARGET-00000-of-00008.h5`, … in place of one. They have the rows of the one, and
            `report.path` is a pattern by which `dataset_h5` reads them as one.
        executor: a `concurrent.futures.Executor` whose workers write one shard each; without `shards`, about one for
            each GB, and at least 8 if there are samples for them. Workers on other machines, such as those of dask's
            `Client.get_executor()`, must see source and `target` under the same names. Shards of workers that die are
            written again. The files are the same, byte for byte, whoever writes them.
        overwrite: replace what is at `target`.
        progress: `True` for a bar, `False` for silence, or a `Progress`.
        options: these arguments in one value, for several packs; those that are given by name replace its own.
        **arguments: those of `colabstage.options.PackOptions`.

    Returns:
        A `PackReport`: `.path` of the file (of shards the pattern that `dataset_h5` takes), `.samples` of each split,
        `.classes`, `.encoding` with its `.reason`, `.skipped` and `.nbytes`.

    Raises:
        SourceNotFoundError, ArchiveError, LayoutError, DecodeError: the source cannot be packed.
        OptionError, NotEnoughSpaceError, TargetExistsError, TargetNotWritableError: not with these options, or there.
        DriveNotMountedError: a path is on Drive, and none is mounted there, or it was unmounted meanwhile.
        WorkersLostError: the executor's workers died repeatedly, or stopped responding.

    Whatever is raised, nothing at `target` has changed.
    """
    packing = read_options(PackOptions, options, arguments)
    shards = None if shards is None else whole_number("shards", shards, least=1)
    if executor is not None and not hasattr(executor, "submit"):
        refuse_argument(
            "executor", executor, "a concurrent.futures.Executor", remedy="For example ProcessPoolExecutor(5)."
        )
    shown = resolve_progress(progress)
    # An executor without `shards` writes shards too: one file has one writer.
    in_shards = shards is not None or executor is not None
    remote = str(target).strip() if in_shards and _is_uploaded_to(target) else None
    # Before any mount is checked: these names may be impossible as paths.
    places = {"target": None if remote else target, "append_to": append_to}
    target, append_to = (None if place is None else _expanded(name, place) for name, place in places.items())
    if isinstance(source, str | os.PathLike):
        absolute_path(source, "source", instead="stage_dataset takes it, and fetch_files brings it here first")
        source = os.path.expanduser(source)  # noqa: PTH111 - as `_expanded`

    def pack(source: PackSource | CallersDataset) -> PackReport:
        if append_to is not None:
            if target is not None or in_shards or overwrite:
                msg = (
                    "append_to= names what is appended to and writes one file; leave out target, shards, executor and "
                    "overwrite."
                )
                raise OptionError(msg)
            if isinstance(source, str | os.PathLike):
                require_answer(source)
            return _append(source, dataset_of_part(Path(append_to)), packing, shown)
        if remote is not None:
            return pack_set(source, remote, packing, shown, shards=shards, executor=executor, overwrite=overwrite)
        if target is None:
            msg = "Neither target nor append_to= says where the pack goes; give a file's name, for example 'data.h5'."
            raise OptionError(msg)
        path = Path(target)
        if path.name and isinstance(source, str | os.PathLike):
            _check_apart(Path(source), path)
        if path.is_dir() or os.path.basename(target) in ("", ".", ".."):  # noqa: PTH119 - a Path would lose the slash
            example = path / "pack.h5"
            msg = f"target='{os.fspath(target)}' is a folder; expected the name of a file, for example '{example}'."
            raise (TargetExistsError if path.is_dir() else OptionError)(msg)
        # Before the source is opened, which may take minutes on a mount.
        _check_pack_target(path, overwrite=overwrite, in_shards=in_shards)
        if in_shards:
            return pack_set(source, path, packing, shown, shards=shards, executor=executor, overwrite=overwrite)
        with contextlib.ExitStack() as stack:
            with shown.quiet_step("plan"):
                opened = stack.enter_context(open_source(source, packing, beside=path))
                job = plan_job(opened.tree, opened.find(), packing, free_bytes=space_for(path))
            make_folder(path.parent)
            return PackRun(job, path, opened.slow, shown, identity=opened.identity, overwrite=overwrite).execute()

    # All are watched, so that the work ends with a reason whichever mount dies.
    watched = [place for place in (target, append_to) if place is not None]

    def pack_there(source: PackSource | CallersDataset) -> PackReport:
        with required_to_stay(*watched):
            return pack(source)

    if isinstance(source, str | os.PathLike):
        return run_watched(lambda: pack_there(source), source, *watched)
    return run_watched_for_caller(lambda in_caller: pack_there(CallersDataset(source, in_caller)), *watched)


def _is_uploaded_to(target: object) -> bool:
    protocol, mark, rest = str(target).strip().partition("://")
    return bool(mark) and protocol.lower() not in {"http", "https"} and bool(rest.partition("/")[2].rpartition("/")[2])


def _expanded(name: str, place: str | PathLike[str]) -> str | PathLike[str]:
    """Return where a pack goes, with `~` expanded."""
    address = "with shards= also an address that fsspec writes to, as 's3://bucket/set.h5'"
    absolute_path(place, name, instead=address if name == "target" else "")
    return os.path.expanduser(place)  # noqa: PTH111 - a Path would lose the slash of a folder


def _check_apart(source: Path, target: Path) -> None:
    """Refuse a pack that would replace its own source, or be a part of it."""
    require_answer(source)
    name = PartName.of(source)
    # All shards of the previous set are removed.
    goes = {source: target, source.with_name(f"{name.stem}{name.suffix}"): target, manifest_path(target): source}
    if any(place_in(one, other) == PurePath() for one, other in goes.items()):
        beside = (whole := absolute_path(source)).with_name(f"{whole.stem}-pack.h5")
        msg = (
            f"target='{target}' is what is to be packed, and would be replaced by it. Choose another name, for example "
            f"'{beside}'."
        )
        raise OptionError(msg)
    check_outside([source], target)


def _append(source: PackSource | CallersDataset, dataset: Path, asked: PackOptions, progress: Progress) -> PackReport:
    """Write a further file of `dataset`, which is the name that it would have as one file."""
    shards = [] if dataset.exists() else shards_beside(dataset)
    # `find_parts` refuses an incomplete set. One shard speaks for all, because they have one form.
    first = find_parts(shard_pattern(dataset, PartName.of(shards[0]).count))[0] if shards else dataset
    base = read_info(first)
    # Before anything is opened: samples in another form could not be read beside the existing ones.
    options = options_like(base, asked)
    # The file's number is chosen before the work and used after it, so nobody else may choose one meanwhile.
    with local_lock(lock_for(dataset), timeout_s=0) as alone:
        if alone is False:
            msg = f"Something is being appended to '{dataset}' by another process. Append when it is done."
            raise TargetExistsError(msg)
        # The run that made the latest file may have been killed before it cleaned up.
        for latest in appended_beside(dataset)[-1:]:
            sweep_orphans(latest.parent, name=latest.name)
        target = next_appended(dataset)
        if isinstance(source, str | os.PathLike):
            check_outside([Path(source)], target, "append_to")
        earlier = splits_of_names(dataset)
        with open_source(source, options, beside=target) as opened:
            table = labelled_alike(opened.find(is_more=True), base.classes)
            # As a file holds them.
            names = [key.encode(errors="backslashreplace").decode() for key in table.keys]
            if options.fractions is None or why_not_divided(table.splits, options.fractions):
                # Those of the source count, unless the caller asks for others too.
                options = replace(options, splits=asked.splits)
            else:
                table, options = split_alike(table, names, options, earlier), replace(options, splits=None)
            job = plan_job(opened.tree, table, options, free_bytes=space_for(target))
            check_fits(base, job.table, job.plan, options)
            fixed = f", as those of '{dataset}' are"
            run = PackRun(job, target, opened.slow, progress, identity=opened.identity, overwrite=False, fixed=fixed)
            report = run.execute()
    # A note, not an error: names repeat if two sources both number their files from 1.
    again = sum(name in earlier for name in names)
    if not again:
        return report
    note = f"{again:,} of the samples have the names of samples that were there; they may be the same ones"
    return replace(report, notes=(*report.notes, note))


def _check_pack_target(target: Path, *, overwrite: bool, in_shards: bool) -> None:
    if os.path.lexists(target) and not overwrite:
        msg = f"'{target}' exists. Choose another name, or give overwrite=True to replace it."
        raise TargetExistsError(msg)
    # A pattern that matches the new files would match these too, and nothing tells whether they are still wanted.
    stale = appended_beside(target) + ([] if in_shards else shards_beside(target))
    if stale:
        msg = f"'{stale[0]}' belongs to a dataset of this name. Remove such files, or choose another name."
        raise TargetExistsError(msg)
    if target.parent.exists():
        make_folder(target.parent)

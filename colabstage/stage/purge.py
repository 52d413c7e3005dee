"""What colabstage keeps on this machine and in the cache: listing and removing it.

Only what has a receipt is listed or removed: in the cache, a file whose manifest has the key that its name ends in; on
this machine, a folder whose record has it, or a part of a pack that is read under `disk_limit`.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import ColabstageError, DriveError, OptionError, SourceError, TargetNotWritableError
from colabstage.h5.info import read_info
from colabstage.h5.manifest import is_manifest, is_replaceable_pack
from colabstage.h5.parts import PartName, shard_pattern
from colabstage.io.arguments import refuse_argument
from colabstage.io.boundary import public
from colabstage.io.files import clear_lock, local_lock, read_json
from colabstage.io.receipts import look_at
from colabstage.io.report import Report, ResultList, Row, Table
from colabstage.io.units import format_bytes, format_count, format_duration
from colabstage.io.workspace import disk_use, is_made_here, is_our_name, last_touched, remove_vouched, sweep_orphans
from colabstage.load.partial import PART_RECORD, PARTS
from colabstage.machine.mounts import require_answer, run_watched
from colabstage.pack.rows import is_rows, is_rows_name
from colabstage.sources.blocks import is_part, take_lock
from colabstage.sources.parse import read_local_dir
from colabstage.stage.cache import discard_rows, find_cache_dir
from colabstage.stage.places import PREVIOUS_SUFFIX, CachedFile, FolderPlace, Place, look_at_file
from colabstage.stage.request import LOCK_NAME, RECORD_NAME, lock_path, read_cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


Where = Literal["here", "cache"]

_DAY_S = 86_400.0
_PLAIN: dict[str, Any] = {"layout": "auto", "encoding": "auto", "seed": 0}


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """One dataset on this machine or in the cache."""

    place: Where
    """`"here"` on this machine, or in the `"cache"`."""
    name: str
    """The name of its folder, or of its file without `.h5`."""
    path: Path | str
    """The folder, or the file; of shards a pattern that matches all of a set. In a bucket an address."""
    source: str
    """The address that it was made from."""
    nbytes: int
    changed_s: float
    """When it was last written, in seconds since 1970."""
    samples: dict[str, int]
    whole: bool
    """Whether its length agrees with its manifest; nothing is hashed."""
    previous: bool = False
    """Whether it is the previous version of another one in the cache."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options that differ from the defaults, with which it was packed; empty if they are unknown."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        values = asdict(self)
        changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(values.pop("changed_s")))
        return {**values, "path": str(self.path), "changed": changed}


@dataclass(frozen=True, kw_only=True, repr=False)
class PurgeReport(Report):
    """What a purge did."""

    removed: tuple[StoredDataset, ...]
    kept: tuple[StoredDataset, ...]
    reasons: tuple[str, ...]
    """The reason for each dataset that was kept."""

    @property
    def nbytes(self) -> int:
        """Return how many bytes were freed."""
        return total_bytes(self.removed)


def table_of(datasets: Sequence[StoredDataset]) -> Table:
    """Return datasets as a table, each with its packing options below."""
    return Table(tuple(map(_row, datasets)), ("where", "name", "size", "samples", "age", "source"), frozenset({2}))


def _row(one: StoredDataset) -> Row:
    samples = ", ".join(f"{split} {count:,}" for split, count in one.samples.items()) or "plain files"
    state = " (previous)" if one.previous else "" if one.whole else " (not whole)"
    age = format_duration(max(0.0, time.time() - one.changed_s))
    chosen = ", ".join(f"{name}={value}" for name, value in one.options.items())
    return Row((one.place, f"{one.name}{state}", format_bytes(one.nbytes), samples, age, one.source), below=chosen)


def total_of(datasets: Sequence[StoredDataset]) -> str:
    """Return how many datasets these are, and how much space they take."""
    return f"{format_count(len(datasets), 'datasets')}, {format_bytes(total_bytes(datasets))}"


def total_bytes(datasets: Sequence[StoredDataset]) -> int:
    return sum(one.nbytes for one in datasets)


@public(reads=("local_dir", "cache_dir"))
def list_datasets(
    *, local_dir: str | os.PathLike[str] | None = None, cache_dir: str | os.PathLike[str] | None = "auto"
) -> ResultList[StoredDataset]:
    """Return all datasets on this machine and in the cache, local ones first, by name; they print as a table.

    Args:
        local_dir, cache_dir: as for `stage_dataset`.

    Raises:
        DriveNotMountedError: one of them is on Drive, and none is mounted there.
        DriveDisconnectedError: one of them is on a mount that is dead or does not answer.
    """
    base, cache = _places(local_dir, cache_dir)
    require_answer(base)
    found = run_watched(lambda: [*_list_here(base), *_list_parts(base)], base)
    found += [] if cache is None else cache.ask(lambda: list(_list_cache(cache)))
    return ResultList(
        found, lambda all_: Report(f"{total_of(all_)} in all" if all_ else "Nothing is kept.", (table_of(all_),))
    )


def _places(
    local_dir: str | os.PathLike[str] | None, cache_dir: str | os.PathLike[str] | None
) -> tuple[Path, Place | None]:
    base = read_local_dir(local_dir)
    return base, find_cache_dir(read_cache_dir(cache_dir), local=base)[0]


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name; raises if it cannot be listed, which a pattern would hide."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _list_here(base: Path) -> Iterator[StoredDataset]:
    for folder in _folders_in(base):
        # Unreadable JSON is `None`, so a damaged or foreign record keeps its folder from being removed.
        record = read_json(folder / RECORD_NAME)
        if not isinstance(record, dict) or not _is_named_by(folder.name, record.get("key")):
            continue
        pack = look_at_file(folder / f"{folder.name}.h5")
        is_whole = pack is not None and pack.is_whole
        yield StoredDataset(
            place="here",
            name=folder.name,
            path=folder,
            source=str(record.get("address", "")),
            # The space used, not the length, because a pack that is being written is a sparse file.
            nbytes=disk_use(folder),
            changed_s=(folder / RECORD_NAME).stat().st_mtime,
            samples={} if pack is None else pack.manifest.samples,
            # Without a seal only plain files were staged, and a pack beside them would be unfinished.
            whole=is_whole if record.get("seal") else bool(record.get("files")),
            options=_options_of(pack),
        )


def _list_parts(base: Path) -> Iterator[StoredDataset]:
    for folder in filter(is_part, _folders_in(base / PARTS)):
        record = read_json(folder / PART_RECORD)
        known = record if isinstance(record, dict) else {}
        source, samples = str(known.get("address", "")), known.get("samples", {})
        # Some of its blocks are remote, by design.
        yield StoredDataset(
            "here", folder.name, folder, source, disk_use(folder), last_touched(folder), samples, whole=False
        )


def _list_cache(cache: Place) -> Iterator[StoredDataset]:
    sets: dict[tuple[str, int, bool], list[CachedFile]] = {}
    # People keep packs of their own in the cache's folder; their names have no key of ours.
    for one in filter(_is_ours, cache.files()):
        count = PartName.of(Path(one.name)).count
        sets.setdefault((_dataset_of(one.name), count, one.name.endswith(PREVIOUS_SUFFIX)), []).append(one)
    for (name, count, is_previous), files in sets.items():
        splits = {split for one in files for split in one.manifest.samples}
        yield StoredDataset(
            place="cache",
            name=name,
            path=cache.at(shard_pattern(Path(f"{name}.h5"), count).name) if count else files[0].path,
            source=str(files[-1].manifest.identity.get("address", "")),
            nbytes=sum(one.nbytes for one in files),
            changed_s=max(one.changed_s for one in files),
            samples={split: sum(one.manifest.samples.get(split, 0) for one in files) for split in sorted(splits)},
            whole=all(one.is_whole for one in files) and len(files) == max(1, count),
            previous=is_previous,
            options=_options_of(files[0]),
        )


def _options_of(pack: CachedFile | None) -> dict[str, Any]:
    """Read which options of a pack differ from the defaults; empty for a pack in a bucket, or a damaged one."""
    if pack is None or not pack.is_whole or not isinstance(pack.path, Path):
        return {}
    try:
        options = dict(read_info(pack.path).options)
    except (ColabstageError, OSError):
        return {}
    image, _ = options.pop("image", None), options.pop("mask", None)
    size = image.get("size") if isinstance(image, dict) else None
    chosen = {name: value for name, value in options.items() if value not in (None, _PLAIN.get(name))}
    return {"image_size": "x".join(map(str, size)), **chosen} if size else chosen


def _dataset_of(file: str) -> str:
    return PartName.of(Path(file.removesuffix(PREVIOUS_SUFFIX))).stem


def _is_ours(one: CachedFile) -> bool:
    return _is_named_by(_dataset_of(one.name), one.manifest.key)


def _is_named_by(name: str, key: object) -> bool:
    # The name has half of the key, the record all of it; that both agree is no accident.
    return isinstance(key, str) and len(key) == 16 and name.endswith(f"-{key[:8]}")


def select_datasets(
    datasets: Sequence[StoredDataset],
    *,
    names: Sequence[str] = (),
    older_than_days: float | None = None,
    everything: bool = False,
    place: Where | None = None,
) -> list[StoredDataset]:
    """Choose what a purge removes, by names or paths of files or folders, or by age. A pure function.

    Raises:
        OptionError: no choice was given, or a name is not among the datasets.
    """
    # "Everything" has to be said: a call without arguments that removes all data would be one typing error away.
    if not names and older_than_days is None and not everything:
        msg = "Say what to remove: names (`cache list` shows them), older_than_days=… or everything=True."
        raise OptionError(msg)
    # Names are looked up only in the chosen place, so that a copy in the cache is not taken for the local one.
    there = [one for one in datasets if place in (None, one.place)]
    chosen = there
    if names:
        chosen = [one for one in there if any(_is_called(one, name) for name in names)]
        unknown = [name for name in names if not any(_is_called(one, name) for one in chosen)]
        if unknown:
            known = ", ".join(sorted({one.name for one in there})) or "nothing"
            msg = f"There is no dataset {unknown[0]!r} that colabstage made. Available: {known}."
            raise OptionError(msg)
    days = older_than_days
    return [one for one in chosen if days is None or time.time() - one.changed_s > days * _DAY_S]


def _is_called(one: StoredDataset, name: str) -> bool:
    path = os.fspath(one.path)
    return name in (one.name, f"{one.name}.h5", path.rpartition("/")[2], path)


@public()
def purge_datasets(datasets: Sequence[StoredDataset]) -> PurgeReport:
    """Remove datasets, and what interrupted runs left beside them.

    A file on Google Drive is emptied before it is removed, because Drive's trash counts towards the quota. Not removed
    are a dataset that is being staged, one whose folder contains anything else, and all on a dead or hanging mount.

    >>> purge_datasets([one for one in list_datasets() if one.previous])  # doctest: +SKIP

    Args:
        datasets: some of what `list_datasets` returns.

    Returns:
        The datasets that were removed, and those that were kept, each with the reason.

    Raises:
        OptionError: `datasets` are not what `list_datasets` returns.
    """
    given: object = datasets  # names and paths are what people try first
    if not (isinstance(given, list | tuple) and all(isinstance(one, StoredDataset) for one in given)):
        refuse_argument("datasets", datasets, "a list of what list_datasets() returns, all of it or a part")
    removed: list[StoredDataset] = []
    kept: list[tuple[StoredDataset, str]] = []
    for one in datasets:
        try:
            problem = _purge(one)
        # One failing disk does not prevent clearing the others.
        except (DriveError, SourceError, TargetNotWritableError) as error:
            problem = str(error)
        except OSError as error:
            problem = f"'{one.path}' could not be removed ({error.strerror or error})"
        if problem is None:
            removed.append(one)
        else:
            kept.append((one, problem))
    left = Table(tuple(Row((one.name, "kept"), below=why) for one, why in kept))
    return PurgeReport(
        headline=f"Removed {total_of(removed)}.",
        tables=(table_of(removed), left),
        removed=tuple(removed),
        kept=tuple(one for one, _ in kept),
        reasons=tuple(why for _, why in kept),
    )


def _purge(one: StoredDataset) -> str | None:
    """Remove one dataset; return why it was kept, or `None`."""
    if one.place == "cache":
        return _purge_cached(one)
    path = Path(one.path)
    # Removing on a mount that hangs would never return.
    require_answer(path)
    return run_watched(lambda: _purge_part(one, path) if is_part(path) else _purge_here(one, path), path)


def _purge_here(one: StoredDataset, path: Path) -> str | None:
    # Staging may hold the lock for half an hour, which is too long to wait for a removal.
    with local_lock(lock_path(path), timeout_s=0.1) as held:
        if held is False:
            return f"'{one.name}' is being staged by another process"
        # All or nothing: half a dataset is useless, and an unknown file may be somebody's only copy.
        strange = _strangers(one.name, path)
        if strange or not remove_vouched(path, lambda folder: folder.is_dir()):
            shown = ", ".join(strange[:5]) or "it is a link"
            return (
                f"'{path}' holds what colabstage did not make, or what was changed since, so all of it stays: {shown}"
            )
    # A killed purge leaves folders under temporary names.
    sweep_orphans(path.parent)
    return None


def _purge_part(one: StoredDataset, path: Path) -> str | None:
    handle = take_lock(path)
    if handle is None:
        return f"'{one.name}' is being read"
    try:
        return None if remove_vouched(path, is_part) else f"'{path}' is not what colabstage put there"
    finally:
        os.close(handle)


def _strangers(name: str, path: Path) -> list[str]:
    """Return what in a dataset's folder colabstage did not write, or was changed since."""
    evidence: dict[str, Callable[[Path], bool]] = {
        RECORD_NAME: is_made_here,
        f"{name}.h5": is_replaceable_pack,
        f"{name}.h5.json": is_manifest,
        # Compared file by file, because people put labels and notes there.
        "files": lambda folder: look_at(folder).is_replaceable,
    }

    def is_ours(file: Path) -> bool:
        proves = is_rows if is_rows_name(file.name, f"{name}.h5") else evidence.get(file.name)
        return proves(file) if proves is not None else is_our_name(file.name) and is_made_here(file)

    strange = sorted(file.name for file in path.iterdir() if not is_ours(file))
    return [f"'files' {look_at(path / one)}" if one == "files" else one for one in strange]


def _purge_cached(one: StoredDataset) -> str | None:
    folder, _, name = os.fspath(one.path).rpartition("/")
    cache, _ = find_cache_dir(read_cache_dir(folder), local=Path(folder))
    assert cache is not None
    count = int(name.removesuffix(".h5")[-5:]) if "?????" in name else 0

    def purge() -> str | None:
        files = [file.name for file in cache.shards(f"{one.name}.h5")] if count else [name]
        # Before the pack, because without it nobody would look for them.
        discard_rows(cache, f"{one.name}.h5", every=True)
        for file in files:
            # Recognised by its manifest, because people keep other files in the cache's folder. An unreadable manifest
            # proves nothing, and a file counts as removed only once it is gone.
            is_of_set = PartName.of(Path(file)).count == count
            if is_of_set and not cache.discard(
                file, ours=lambda now: _is_ours(now) and _dataset_of(now.name) == one.name
            ):
                return f"'{cache.at(file)}' is not what colabstage put there, or was changed since"
        return None

    return cache.ask(purge)


@public(writes=("local_dir", "cache_dir"))
def sweep_leftovers(
    *, local_dir: str | os.PathLike[str] | None = None, cache_dir: str | os.PathLike[str] | None = "auto"
) -> list[Path]:
    """Remove what dead runs left unfinished, on this machine and in the cache; return what was removed.

    Raises:
        DriveNotMountedError: one of them is on Drive, and none is mounted there.
        DriveDisconnectedError: one of them is on a mount that is dead or does not answer.
    """
    base, cache = _places(local_dir, cache_dir)
    # A bucket has no unfinished files: an object appears once all of it has arrived.
    folders = [base, cache.folder] if isinstance(cache, FolderPlace) else [base]

    def sweep() -> list[Path]:
        require_answer(*folders)
        removed = sweep_orphans(base)
        # Locks are beside the datasets' folders, and outlive them. A held one stays.
        for lock in sorted(base.glob(LOCK_NAME.format("*"))):
            clear_lock(lock)
            removed += [] if lock.exists() else [lock]
        for folder in filter(is_made_here, _folders_in(base)):
            removed += sweep_orphans(folder)
        if isinstance(cache, FolderPlace):
            removed += sweep_orphans(cache.folder, empty=cache.on_drive)
        return removed

    return run_watched(sweep, *folders)

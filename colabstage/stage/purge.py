"""What colabstage keeps on this machine and in the cache: the list of it, and its removal.

Only what carries our mark is ever listed or removed: in the cache a file whose manifest has the key that its name ends
in, on this machine a folder whose record has it, or a part of a pack that is read under `disk_limit`. Everything else,
whatever its name, belongs to somebody else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from colabstage.errors import ColabstageError, DriveDisconnectedError, OptionError
from colabstage.h5.manifest import read_manifest
from colabstage.h5.parts import PartName, shard_pattern
from colabstage.io.files import clear_lock, disk_use, local_lock, read_json
from colabstage.io.ownership import look_at, remove_vouched, sweep_orphans
from colabstage.io.temporaries import is_our_name, last_touched
from colabstage.io.units import format_bytes, format_duration
from colabstage.load.partial import PART_RECORD, PARTS
from colabstage.machine.mounts import drive_root, require_answer
from colabstage.machine.watched import run_watched
from colabstage.sources.partial.fetcher import take_lock
from colabstage.sources.partial.local import is_part
from colabstage.stage.cache import find_cache_dir
from colabstage.stage.publish import PREVIOUS_SUFFIX, discard_version, previous_path, sweep_leftovers_of
from colabstage.stage.request import RECORD_NAME, lock_path, read_cache_dir, read_local_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from colabstage.h5.manifest import Manifest

Place = Literal["here", "cache"]
T = TypeVar("T")

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """One dataset on this machine or in the cache."""

    place: Place
    """`"here"` on this machine, or in the `"cache"`."""
    name: str
    """The name of its folder, or of its file without `.h5`."""
    path: Path
    """The folder, or the file; of shards a pattern that matches all of a set."""
    source: str
    """The address that it was made from."""
    nbytes: int
    """How much space it takes."""
    changed_s: float
    """When it was last written, in seconds since 1970."""
    samples: dict[str, int]
    """Rows of each split, where known."""
    whole: bool
    """Whether its length agrees with its manifest; nothing is hashed."""
    previous: bool = False
    """Whether it is the previous version of another one in the cache."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "place": self.place,
            "name": self.name,
            "path": str(self.path),
            "source": self.source,
            "nbytes": self.nbytes,
            "changed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.changed_s)),
            "samples": self.samples,
            "whole": self.whole,
            "previous": self.previous,
        }

    def __str__(self) -> str:
        age = format_duration(max(0.0, time.time() - self.changed_s))
        rows = ", ".join(f"{split} {count:,}" for split, count in self.samples.items()) or "plain files"
        marks = [mark for mark, given in (("previous", self.previous), ("not whole", not self.whole)) if given]
        state = f" ({', '.join(marks)})" if marks else ""
        where = "here " if self.place == "here" else "cache"
        return f"{where}  {self.name}{state}  {format_bytes(self.nbytes)}  {rows}  {age} old  from {self.source}"


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge did."""

    removed: tuple[StoredDataset, ...]
    """Datasets that were removed."""
    kept: tuple[StoredDataset, ...]
    """Datasets that were kept."""
    reasons: tuple[str, ...]
    """The reason for each dataset that was kept."""

    @property
    def nbytes(self) -> int:
        """Return how many bytes were freed."""
        return sum(one.nbytes for one in self.removed)


def list_datasets(
    *, local_dir: str | os.PathLike[str] | None = None, cache_dir: str | os.PathLike[str] | None = "auto"
) -> list[StoredDataset]:
    """Return all datasets on this machine and in the cache, those here first, by name.

    Args:
        local_dir, cache_dir: as for `stage_dataset`.

    Raises:
        DriveDisconnectedError: one of them is on a mount that is dead or does not answer.
    """

    def found(base: Path, cache: Path | None) -> list[StoredDataset]:
        return [*_list_here(base), *_list_parts(base), *([] if cache is None else _list_cache(cache))]

    return _at_places(local_dir, cache_dir, found)


def _at_places(
    local_dir: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
    work: Callable[[Path, Path | None], T],
) -> T:
    """Call `work` with the folder of this machine's datasets and the cache, once both have given a sign of life."""
    base = read_local_dir(local_dir)
    cache = find_cache_dir(read_cache_dir(cache_dir), near=None, local=base)[0]
    places = [base, *([] if cache is None else [cache])]

    def watched() -> T:
        # In the thread that is watched: the question itself may take as long as a mount likes.
        require_answer(*places)
        return work(base, cache)

    return run_watched(watched, *places)


def _list_here(base: Path) -> Iterator[StoredDataset]:
    for record_file in sorted(base.glob(f"*/{RECORD_NAME}")):
        folder = record_file.parent
        # Unreadable JSON is `None`, so a damaged record keeps its folder from being removed.
        record = read_json(record_file)
        # A folder with somebody else's `stage.json` is not listed, so it cannot be removed either.
        if not isinstance(record, dict) or not _is_named_by(folder.name, record.get("key")):
            continue
        pack = folder / f"{folder.name}.h5"
        manifest = _manifest(pack)
        yield StoredDataset(
            place="here",
            name=folder.name,
            path=folder,
            source=str(record.get("address", "")),
            # The space it takes and not its length, because a pack that is being written is a sparse file.
            nbytes=disk_use(folder),
            changed_s=record_file.stat().st_mtime,
            samples={} if manifest is None else manifest.samples,
            # Without a seal only plain files were staged, and a pack beside them would be unfinished.
            whole=_has_length(pack, manifest) if record.get("seal") else record.get("files") is not None,
        )


def _list_parts(base: Path) -> Iterator[StoredDataset]:
    for folder in sorted(path for path in (base / PARTS).glob("*/") if is_part(path)):
        record = read_json(folder / PART_RECORD)
        known = record if isinstance(record, dict) else {}
        yield StoredDataset(
            place="here",
            name=folder.name,
            path=folder,
            source=str(known.get("address", "")),
            nbytes=disk_use(folder),
            changed_s=last_touched(folder),
            samples=known.get("samples", {}),
            # Some of its blocks are elsewhere, by design.
            whole=False,
        )


def _list_cache(cache: Path) -> Iterator[StoredDataset]:
    # Where publishing was interrupted there may only be the previous version.
    names = {path.name.removesuffix(PREVIOUS_SUFFIX) for path in (*cache.glob("*.h5"), *cache.glob("*.h5.previous"))}
    files = [cache / name for name in sorted(names)]
    sets = {shard_pattern(cache / f"{part.stem}.h5", part.count) for part in map(PartName.of, files) if part.count}
    for pattern in sorted(sets):
        yield from _list_set(pattern)
    for current in (path for path in files if not PartName.of(path).count):
        for path in (current, previous_path(current)):
            manifest = _manifest(path)
            name = current.name.removesuffix(".h5")
            # People keep packs of their own in the folder of the cache; those have no key of ours in their names.
            if manifest is None or not _is_named_by(name, manifest.key):
                continue
            # Another session may be publishing to the same cache, and may have renamed it just now.
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                yield StoredDataset(
                    place="cache",
                    name=name,
                    path=path,
                    source=str(manifest.identity.get("address", "")),
                    nbytes=found.st_size,
                    changed_s=found.st_mtime,
                    samples=manifest.samples,
                    whole=found.st_size == manifest.size,
                    previous=path != current,
                )


def _list_set(pattern: Path) -> Iterator[StoredDataset]:
    """List all shards of a set as one dataset."""
    # The pattern has no number; that of any shard of the set has the same stem.
    name, count = PartName.of(pattern.with_name(pattern.name.replace("?????", "00000"))).stem, 0
    nbytes, changed_s, sizes_agree = 0, 0.0, True
    source, samples = "", dict[str, int]()
    for path in _shards_of(pattern):
        manifest = _manifest(path)
        if manifest is None or not _is_named_by(name, manifest.key):
            continue
        # As above.
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            count, nbytes, changed_s = count + 1, nbytes + found.st_size, max(changed_s, found.st_mtime)
            sizes_agree &= found.st_size == manifest.size
            source = str(manifest.identity.get("address", ""))
            for split, rows in manifest.samples.items():
                samples[split] = samples.get(split, 0) + rows
    if count:
        total = int(pattern.name.removesuffix(".h5")[-5:])
        yield StoredDataset("cache", name, pattern, source, nbytes, changed_s, samples, sizes_agree and count == total)


def _shards_of(pattern: Path) -> list[Path]:
    return sorted(pattern.parent.glob(pattern.name))


def _manifest(pack: Path) -> Manifest | None:
    try:
        return read_manifest(pack)
    except (OSError, ColabstageError):
        return None


def _has_length(pack: Path, manifest: Manifest | None) -> bool:
    with contextlib.suppress(OSError):
        return manifest is not None and pack.stat().st_size == manifest.size
    return False


def _is_named_by(name: str, key: object) -> bool:
    """Return whether a name ends in the beginning of a key."""
    # The name has half of the key, the record all of it; that both agree is no accident.
    return isinstance(key, str) and len(key) == 16 and name.endswith(f"-{key[:8]}")


def select_datasets(
    datasets: Sequence[StoredDataset],
    *,
    names: Sequence[str] = (),
    older_than_days: float | None = None,
    everything: bool = False,
    place: Place | None = None,
    now_s: float | None = None,
) -> list[StoredDataset]:
    """Choose what a purge removes. A pure function.

    Args:
        datasets: as `list_datasets` returns them.
        names: choose these; names or paths of files or folders.
        older_than_days: choose those that were last written longer ago.
        everything: choose all of them.
        place: restrict the choice to this place.
        now_s: the time now, in seconds since 1970; the clock's by default.

    Raises:
        OptionError: no choice was given, or a name is not among the datasets.
    """
    # "Everything" has to be said: a call without arguments that removes all data would be one typing error away.
    if not names and older_than_days is None and not everything:
        msg = "Nothing says what to remove. Give names (`cache list` has them), older_than_days=…, or everything=True."
        raise OptionError(msg)
    now = time.time() if now_s is None else now_s
    # Names are looked for in the chosen place alone, so that a copy in the cache is not taken for the local one.
    there = [one for one in datasets if place in (None, one.place)]
    for name in names:
        if not any(_is_called(one, name) for one in there):
            known = ", ".join(sorted({one.name for one in there})) or "nothing"
            msg = f"There is no dataset {name!r} that colabstage made. Available: {known}."
            raise OptionError(msg)
    return [
        one
        for one in there
        if (not names or any(_is_called(one, name) for name in names))
        and (older_than_days is None or now - one.changed_s > older_than_days * _DAY_S)
    ]


def _is_called(one: StoredDataset, name: str) -> bool:
    return name in (one.name, f"{one.name}.h5", one.path.name, str(one.path))


def purge_datasets(datasets: Sequence[StoredDataset]) -> PurgeReport:
    """Remove datasets, and what interrupted runs left beside them.

    A file on Google Drive is emptied before it is removed, because Drive's trash counts against the account. These are
    kept: a dataset that is being staged, a dataset whose folder contains anything else, and everything on a mount that
    is dead or does not answer.
    """
    removed: list[StoredDataset] = []
    kept: list[StoredDataset] = []
    reasons: list[str] = []
    unreachable: dict[Place, str] = {}
    for one in datasets:
        try:
            # Asked only once, because it takes long to find out that a mount hangs.
            problem = unreachable.get(one.place) or run_watched(functools.partial(_purge, one), one.path)
        except DriveDisconnectedError as error:
            problem = unreachable[one.place] = str(error).removesuffix(".")
        except OSError as error:
            problem = f"'{one.path}' could not be removed ({error.strerror or error})"
        if problem is None:
            removed.append(one)
        else:
            kept.append(one)
            reasons.append(problem)
    return PurgeReport(tuple(removed), tuple(kept), tuple(reasons))


def _purge(one: StoredDataset) -> str | None:
    """Remove one dataset; return why it was kept, or `None`."""
    # Removing on a mount that hangs would never come back.
    require_answer(one.path)
    if is_part(one.path):
        return _purge_part(one)
    return _purge_here(one) if one.place == "here" else _purge_cached(one)


def _purge_here(one: StoredDataset) -> str | None:
    lock = lock_path(one.path)
    # Staging may hold the lock for half an hour, and nobody waits that long to remove something.
    with local_lock(lock, timeout_s=0.1) as held:
        if not held:
            return f"'{one.name}' is being staged by another process"
        # All or nothing: half a dataset is useless, and an unknown file may be the only copy that somebody has.
        strange = _strangers(one)
        if strange or not remove_vouched(one.path, lambda folder: folder.is_dir()):
            shown = ", ".join(strange[:5]) or "it is a link"
            return f"'{one.path}' holds what colabstage did not make, or not as it is now, so all of it stays: {shown}"
    # A purge that was killed leaves folders under temporary names.
    sweep_orphans(one.path.parent)
    return None


def _purge_part(one: StoredDataset) -> str | None:
    handle = take_lock(one.path)
    if handle is None:
        return f"'{one.name}' is being read"
    try:
        return None if remove_vouched(one.path, is_part) else f"'{one.path}' is not what colabstage put there"
    finally:
        os.close(handle)


def _strangers(one: StoredDataset) -> list[str]:
    """Return what colabstage did not write to a dataset's folder, or what was changed since."""
    ours = {RECORD_NAME, f"{one.name}.h5", f"{one.name}.h5.json", "files"}
    strange = sorted(path.name for path in one.path.iterdir() if path.name not in ours and not is_our_name(path.name))
    # The folder of images is compared file by file, because people put labels and notes there.
    files = look_at(one.path / "files")
    return strange if files.is_replaceable else [*strange, f"'files' {files}"]


def _purge_cached(one: StoredDataset) -> str | None:
    if "?????" in one.path.name:
        for path in _shards_of(one.path):
            if not discard_version(path, ours=lambda shard: _is_ours(shard, one.name)):
                return f"'{path}' is not what colabstage put there"
            sweep_leftovers_of(path)
        return None
    # Recognised by its manifest alone, because people keep other files in the folder of the cache.
    if not discard_version(one.path, ours=lambda path: _is_ours(path, one.name)):
        return f"'{one.path}' is not what colabstage put there"
    # Uploads that were cut off take space under names of their own.
    sweep_leftovers_of(one.path)
    return None


def _is_ours(pack: Path, name: str) -> bool:
    manifest = _manifest(pack)
    return pack.is_file() and manifest is not None and _is_named_by(name, manifest.key)


def sweep_leftovers(
    *, local_dir: str | os.PathLike[str] | None = None, cache_dir: str | os.PathLike[str] | None = "auto"
) -> list[Path]:
    """Remove what dead runs left unfinished, on this machine and in the cache; return what was removed.

    Raises:
        DriveDisconnectedError: one of them is on a mount that is dead or does not answer.
    """
    return _at_places(local_dir, cache_dir, _sweep)


def _sweep(base: Path, cache: Path | None) -> list[Path]:
    removed = sweep_orphans(base)
    # Locks are beside the folders of the datasets, and outlive them.
    for lock in sorted(base.glob(lock_path(base / "*").name)):
        # A lock that somebody holds stays; the others are files without a use.
        clear_lock(lock)
        if not lock.exists():
            removed.append(lock)
    for folder in sorted(base.glob("*/")):
        removed += sweep_orphans(folder)
    return removed if cache is None else [*removed, *sweep_orphans(cache, empty=drive_root(cache) is not None)]

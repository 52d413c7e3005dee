"""The sidecar `NAME.h5.json`: what makes a packed file trustworthy.

A pack counts as complete only with a manifest beside it, which is written last and holds a hash for every block: a file
whose tail is zeros opens without an error and returns wrong data, which only hashes detect. The manifest is also the
evidence that colabstage may replace or remove the file, as long as that is as noted in it (`is_as_written`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import time
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import NewerFormatError, PackFormatError, SourceNotFoundError, TargetExistsError
from colabstage.io import workspace
from colabstage.io.arguments import absolute_path, whereabouts
from colabstage.io.boundary import NOTHING_DONE, public
from colabstage.io.display import resolve_progress
from colabstage.io.files import (
    BLOCK_BYTES,
    block_ranges,
    file_state,
    hash_ranges,
    json_text,
    parse_json,
    read_fields,
    read_json,
)
from colabstage.io.packages import installed_version
from colabstage.io.report import Shown
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.machine.mounts import run_watched
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from colabstage.io.progress import Cancellation, Progress

MANIFEST_VERSION = 1
# A block is held in memory while it is copied or compared, so a manifest must not ask for any length.
_MOST_BLOCK_BYTES = 256 * 1024 * 1024
# Every manifest begins like this, so one that a full disk cut off is still recognised as ours.
_BEGINNING = b'{\n "block_bytes": '
_MOST_SHOWN = 20
_HASH = re.compile("[0-9a-f]{16}")
# The resolution of file times, in nanoseconds: Windows shares, microseconds, Google Drive, NFS and FAT.
_TIME_UNITS = (1, 100, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was true of the file when it was finished."""

    size: int
    block_bytes: int
    hashes: tuple[str, ...]
    """xxh3-64 of each block, 16 hexadecimal digits."""
    key: str = ""
    """The key of the source and options that the file was made from, as `stage` computes it."""
    identity: dict[str, Any] = field(default_factory=dict)
    """The source's state at that time."""
    samples: dict[str, int] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    """One sentence for each sample left out."""
    written_by: str = ""
    shard: str = ""
    """For a shard, which one it is and of which set; empty for other files."""
    mtime_ns: int = field(default=0, compare=False)
    """When the file was last written, as its disk reported then; 0 if nobody noted it."""
    version: int = MANIFEST_VERSION
    """The format of the manifest; it increases only if an older reader would be misled."""

    @property
    def agrees(self) -> bool:
        """Tell whether it has a hash for each block of a file of its size, and no negative row count."""
        if self.size < 0 or not 1 <= self.block_bytes <= _MOST_BLOCK_BYTES or min(self.samples.values(), default=0) < 0:
            return False
        # The ranges are counted, not listed, because the size in a damaged manifest may be any number.
        return len(self.hashes) == -(-self.size // self.block_bytes) and all(map(_HASH.fullmatch, self.hashes))

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Return `(offset, length)` of each block, in bytes."""
        return block_ranges(self.size, self.block_bytes)


_FIELDS = frozenset(one.name for one in fields(Manifest))
# These were added later; manifests of the first version have everything else.
_NEEDED = _FIELDS - {"shard", "mtime_ns"}


def manifest_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def read_manifest(file: Path) -> Manifest | None:
    """Read the manifest of `file`; `None` when there is none, or it is incomplete."""
    return parse_manifest(read_json(manifest_path(file)), str(manifest_path(file)))


def parse_manifest(raw: object, label: str) -> Manifest | None:
    """Return the manifest in parsed JSON; `None` if it is not a complete one."""
    if not isinstance(raw, dict) or not isinstance(raw.get("version"), int):
        return None
    if raw["version"] > MANIFEST_VERSION:
        msg = (
            f"'{label}' has version {raw['version']}; this colabstage reads up to {MANIFEST_VERSION}. "
            "Install a newer colabstage, as its README says."
        )
        raise NewerFormatError(msg)
    # Unknown fields are ignored: a new version number announces those that matter.
    known = {name: value for name, value in raw.items() if name in _FIELDS}
    manifest = read_fields(Manifest, known) if known.keys() >= _NEEDED else None
    return manifest if manifest is not None and manifest.agrees else None


@dataclass(frozen=True, slots=True)
class ManifestState:
    """Whether the manifest beside a file can be relied on."""

    state: Literal["agrees", "differs", "missing", "unreadable", "newer"]
    """`agrees` or `differs`, compared by length; `missing`; `unreadable`; `newer` than this version reads."""
    detail: str
    written_by: str = ""


def look_at_manifest(path: Path, nbytes: int) -> ManifestState:
    """Judge the manifest beside a file of `nbytes` bytes by the length alone; no block is read."""
    sidecar = manifest_path(path)
    try:
        manifest = read_manifest(path)
    except NewerFormatError as error:
        return ManifestState("newer", str(error))
    if manifest is None:
        detail = f"none beside it that is whole ('{sidecar.name}'), so its bytes cannot be checked"
        return ManifestState("unreadable" if sidecar.exists() else "missing", detail)
    if manifest.size != nbytes:
        detail = f"says {manifest.size:,} bytes, but the file has {nbytes:,}: it is damaged"
        return ManifestState("differs", detail, manifest.written_by)
    detail = "agrees with the file's length; 'colabstage verify' compares every byte"
    return ManifestState("agrees", detail, manifest.written_by)


def manifest_of_bytes(file: Path, cancellation: Cancellation | None = None) -> Manifest:
    """Hash every block of a finished file; the manifest says nothing about its contents."""
    # The time is taken before the file is read, so that a write meanwhile shows as a different time.
    found = file.stat()
    ranges = block_ranges(found.st_size, BLOCK_BYTES)
    hashes = hash_ranges(file, ranges, threads=usable_cores(), cancellation=cancellation)
    return Manifest(found.st_size, BLOCK_BYTES, tuple(hashes), mtime_ns=found.st_mtime_ns)


def manifest_of_pack(
    file: Path,
    *,
    key: str,
    identity: Mapping[str, Any],
    samples: Mapping[str, int],
    skipped: tuple[str, ...],
    shard: str = "",
) -> Manifest:
    """Hash every block of a finished pack; the other arguments are as in `Manifest`."""
    return replace(
        manifest_of_bytes(file),
        key=key,
        identity=dict(identity),
        samples=dict(samples),
        skipped=skipped,
        written_by=installed_version("colabstage"),
        shard=shard,
    )


def damaged_blocks(
    file: Path,
    manifest: Manifest,
    cancellation: Cancellation | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> list[int]:
    """Return the numbers of the blocks whose bytes differ from what was written; `advance`: as of `hash_ranges`."""
    found = hash_ranges(file, manifest.ranges, threads=usable_cores(), cancellation=cancellation, advance=advance)
    return [number for number, digest in enumerate(found) if digest != manifest.hashes[number]]


def verified(file: Path, manifest: Manifest, cancellation: Cancellation | None = None) -> Manifest | None:
    """Return the manifest with the file's time if the file has exactly its bytes; `None` otherwise."""
    # Before it is read, as in `manifest_of_bytes`.
    found = file.stat()
    if found.st_size != manifest.size or damaged_blocks(file, manifest, cancellation):
        return None
    return replace(manifest, mtime_ns=found.st_mtime_ns)


def is_whole(file: Path, manifest: Manifest, cancellation: Cancellation | None = None) -> bool:
    return verified(file, manifest, cancellation) is not None


@dataclass(frozen=True, slots=True, repr=False)
class VerifiedFile(Shown):
    path: Path
    nbytes: int
    expected_bytes: int
    """Its length according to the manifest."""
    block_bytes: int
    """The size of each block except the last."""
    blocks: int
    """How many its manifest has, of `block_bytes` each."""
    damaged: tuple[int, ...]
    """Numbers of the blocks that differ, from 0."""
    seconds: float

    @property
    def whole(self) -> bool:
        """Tell whether the file is as it was written."""
        return self.nbytes == self.expected_bytes and not self.damaged

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "whole": self.whole,
            "bytes": self.nbytes,
            "expected_bytes": self.expected_bytes,
            "block_bytes": self.block_bytes,
            "blocks": self.blocks,
            "damaged_blocks": list(self.damaged),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        if self.whole:
            size, took = format_bytes(self.nbytes), format_duration(self.seconds)
            rate = format_rate(self.nbytes, self.seconds, "B")
            compared = f"{format_count(self.blocks, 'blocks')} of {size} in all"
            return f"'{self.path}' is intact: {compared}, each as it was written (compared in {took}, {rate})."
        return f"{self.damage}. Delete it, then stage, copy or publish it again."

    @property
    def damage(self) -> str:
        """Say in a clause how the file differs; "" where it does not."""
        # Both may apply: a copy that was cut off also ends within a block.
        faults = []
        if self.nbytes != self.expected_bytes:
            faults.append(f"it has {self.nbytes:,} bytes instead of {self.expected_bytes:,}")
        if self.damaged:
            size = format_bytes(self.block_bytes)
            faults.append(
                f"{len(self.damaged):,} of {self.blocks:,} blocks of {size} are not what was written: "
                f"{', '.join(map(str, self.damaged[:_MOST_SHOWN]))}"
                f"{', …' if len(self.damaged) > _MOST_SHOWN else ''} (the first block is 0)"
            )
        return f"'{self.path}' is damaged: {' and '.join(faults)}" if faults else ""


@public(reads=("path",), stopped=NOTHING_DONE)
def verify_file(path: str | os.PathLike[str], *, progress: bool | Progress = True) -> VerifiedFile:
    """Compare every byte of a file, packed or published, with its manifest.

    >>> verify_file("photos.h5").whole  # doctest: +SKIP
    True

    Args:
        path: the file; its manifest has the same name with `.json` added.
        progress: whether to show the progress; or an object that shows it.

    Returns:
        Which blocks are damaged, if any.

    Raises:
        SourceNotFoundError: there is no such file.
        PackFormatError: it has no manifest, so there is nothing to compare it with.
        NewerFormatError: a newer colabstage wrote the manifest.
    """
    shown, file = resolve_progress(progress), absolute_path(path)
    return run_watched(lambda: _verify(file, shown), file)


def _verify(file: Path, shown: Progress) -> VerifiedFile:
    if not file.is_file():
        msg = f"There is no file '{file}'. {whereabouts(file)}"
        raise SourceNotFoundError(msg)
    # Refused before hashing: without a manifest, hours of reading would prove nothing.
    manifest = read_manifest(file)
    if manifest is None:
        msg = (
            f"'{file}' has no complete manifest '{manifest_path(file).name}' beside it, so nothing says what its bytes "
            "should be. Packs and published files of colabstage have one."
        )
        raise PackFormatError(msg)
    with shown.step(f"verify {file.name}", total=manifest.size, unit="B") as step:
        return _compare(file, manifest, shown.cancellation, step.advance)


def _compare(
    file: Path,
    manifest: Manifest,
    cancellation: Cancellation | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> VerifiedFile:
    began = time.monotonic()
    damaged = tuple(damaged_blocks(file, manifest, cancellation, advance))
    seconds, size = time.monotonic() - began, file.stat().st_size
    return VerifiedFile(file, size, manifest.size, manifest.block_bytes, len(manifest.hashes), damaged, seconds)


def damage_of(file: Path, manifest: Manifest, cancellation: Cancellation | None = None) -> str:
    """Compare every byte of `file` with its manifest, and say in a clause how they differ; "" where they do not."""
    return _compare(file, manifest, cancellation).damage


def is_manifest(path: Path) -> bool:
    """Tell whether a file is a manifest that colabstage wrote for this user, as `begins_as_manifest` its content."""
    # A mount may list for seconds what another machine has removed.
    with contextlib.suppress(FileNotFoundError):
        return workspace.is_made_here(path) and path.is_file() and begins_as_manifest(path.read_bytes())
    return False


def begins_as_manifest(content: bytes | None) -> bool:
    """Tell whether bytes are those of a manifest that colabstage wrote, of whatever version, or the first part."""
    if content is None:
        return False
    raw = parse_json(content)
    if raw is None:
        # A loss of power may leave zeros for the rest.
        return _BEGINNING.startswith(content.rstrip(b"\0")[: len(_BEGINNING)])
    return isinstance(raw, dict) and {"version", "block_bytes", "hashes"} <= raw.keys()


def is_time_as_noted(noted_ns: int, found_ns: int, beside_ns: int) -> bool:
    """Tell whether a file's time is the noted one, or that time as the disk rounds it.

    `beside_ns`: the time of its manifest, which a disk that rounds times has rounded as well.
    """
    return noted_ns > 0 and any(
        found_ns % unit == 0 and beside_ns % unit == 0 and abs(found_ns - noted_ns) < unit for unit in _TIME_UNITS
    )


def is_as_written(file: Path) -> bool:
    """Tell whether colabstage wrote a file for this user, and it is unchanged: by length and time, or if the time
    differs, as after a copy or remount, by its hashes. Reading all of it is worth it only before it is replaced."""
    beside = manifest_path(file)
    # Another process may have removed it meanwhile.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, NewerFormatError):
        manifest, found = read_manifest(file) if workspace.is_made_here(beside) else None, file.lstat()
        if manifest is None or not workspace.is_made_here(file) or not stat.S_ISREG(found.st_mode):
            return False
        is_noted = is_time_as_noted(manifest.mtime_ns, found.st_mtime_ns, beside.lstat().st_mtime_ns)
        return manifest.size == found.st_size and (
            is_noted or _has_content(file, file_state(file), manifest.size, manifest.block_bytes, manifest.hashes)
        )
    return False


# A file is checked before the work and again right before it is replaced; the result is cached for the same state.
@functools.lru_cache(maxsize=16)
def _has_content(file: Path, _state: tuple[int, ...], size: int, block_bytes: int, hashes: tuple[str, ...]) -> bool:
    return not damaged_blocks(file, Manifest(size, block_bytes, hashes))


def write_manifest(file: Path, manifest: Manifest) -> None:
    """Write the manifest of `file` atomically; from then on the file counts as complete."""
    with workspace.atomic_path(manifest_path(file), replaces=is_manifest) as temp:
        temp.write_text(json_text(asdict(manifest)), encoding="utf-8")


def remove_manifest(file: Path) -> None:
    """Remove the manifest of `file`, which then no longer counts as complete; a file of that name that is not a
    manifest stays."""
    workspace.remove_vouched(manifest_path(file), is_manifest)


def check_place_of_manifest(file: Path) -> None:
    """Refuse a file whose manifest would replace a file that colabstage did not write."""
    beside = manifest_path(file)

    def check() -> None:
        if os.path.lexists(beside) and not is_manifest(beside):
            msg = (
                f"'{beside}' exists and is not a manifest that colabstage wrote, but the manifest of '{file.name}' has "
                "to go there. Rename it, or choose another name."
            )
            raise TargetExistsError(msg)

    workspace.among_others(check, beside)


def is_replaceable_pack(file: Path) -> bool:
    """Tell whether a file in a dataset's own folder may be replaced: an unchanged pack; what nothing has written to
    since the dataset's record, whatever its bytes; or no file."""
    return not os.path.lexists(file) or is_as_written(file) or _is_sealed(file)


def _is_sealed(file: Path) -> bool:
    """Tell whether nothing has written to a file since the dataset's record was written."""
    record = read_json(file.with_name("stage.json")) if workspace.is_made_here(file) else None
    seal, found = record.get("seal") if isinstance(record, dict) else None, file.lstat()
    if not isinstance(seal, dict) or seal.get("inode") != found.st_ino or not isinstance(seal.get("ctime_ns"), int):
        return False
    # The kernel sets this time at each change. After a crash of the machine it may be an earlier one.
    return bool(found.st_ctime_ns <= seal["ctime_ns"])


def check_replaceable_pack(file: Path) -> None:
    """Refuse to stage over a file that is not the pack that colabstage wrote there."""

    def check() -> None:
        if os.path.lexists(file) and not is_replaceable_pack(file):
            msg = (
                f"'{file}' is where the pack goes, and is not as colabstage wrote it: it was written to since, or is "
                "another file. Move it elsewhere, or delete it if it is of no use, then stage again."
            )
            raise TargetExistsError(msg)

    workspace.among_others(check, file, manifest_path(file))
    check_place_of_manifest(file)


def place_pack(file: Path, out: Path, *, replaces: Callable[[Path], bool] | None) -> None:
    """Move a finished pack from a workspace into place, after its manifest: what is at `out` always has its own, so
    nobody reads it as another one. An earlier pack makes room first, and has its name and manifest again if that fails;
    a kill leaves the new one in its workspace. No step needs space.

    `replaces`: whether an existing file may be replaced, as `is_replaceable_pack` says; `None` if none may.
    """
    (check_replaceable_pack if replaces is is_replaceable_pack else check_place_of_manifest)(out)
    if replaces is None and os.path.lexists(out):
        msg = (
            f"'{out}' has come into being since packing began. Rename it, then pack again: finished work is kept. Or "
            "give overwrite=True to replace it."
        )
        raise TargetExistsError(msg)
    beside, may_replace = manifest_path(out), replaces or (lambda _: False)
    with workspace.making_room(out, replaces=may_replace), workspace.making_room(beside, replaces=is_manifest):
        try:
            workspace.put_file(manifest_path(file), beside, replaces=is_manifest)
            workspace.put_file(file, out, replaces=may_replace)
        except BaseException:
            # A mount may move the pack and answer by an error; then its manifest belongs there.
            if file.exists():
                remove_manifest(out)
            raise
    for path in (out, beside):
        workspace.sweep_orphans(out.parent, name=path.name)

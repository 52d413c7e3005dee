"""Telling whether a source is still the one that was staged, cheaply first and thoroughly where that leaves a doubt."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from colabstage.fileops import hash_block
from colabstage.trees.folder import FolderTree, folder_stamps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from colabstage.trees.tree import ByteSource, Tree

# The end of a zip is its table of contents with the checksum of every member: who knows it, knows the archive.
_END_BYTES = 64 * 1024
# A mount that does not answer a stat in this time is treated as absent.
_LOOK_TIMEOUT_S = 20.0

Look = Literal["same", "unsure", "changed", "gone"]


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The state of a source at one time.

    `kind`: `"folder"`, or `"archive"` for one file.
    `files`: regular files; 1 for an archive. `nbytes`: their bytes together.
    `mtime_ns`: of an archive. `ends`: hash of an archive's first and last 64 KiB.
    `listing`: hash of the names and sizes in a folder. `times`: the same with modification times.
    `stamps`: modification time in ns of each folder by name, which changes when something is added, removed or renamed
    in it.
    """

    kind: Literal["folder", "archive"]
    files: int
    nbytes: int
    mtime_ns: int = 0
    ends: str = ""
    listing: str = ""
    times: str = ""
    stamps: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(raw: Any) -> SourceIdentity | None:
        """Read it back; `None` for anything that is not one."""
        try:
            return SourceIdentity(**raw)
        except TypeError:
            return None


def identify_archive(source: ByteSource, mtime_ns: int) -> SourceIdentity:
    """The identity of one file; reads its first and last 64 KiB."""
    first = source.pread(_END_BYTES, 0)
    last = source.pread(_END_BYTES, max(0, source.size - _END_BYTES))
    return SourceIdentity("archive", 1, source.size, mtime_ns=mtime_ns, ends=hash_block(first + last))


def identify_tree(tree: Tree) -> SourceIdentity:
    """The identity of a folder that has been listed."""
    stamps = {name: time for name, (time, _) in tree.listing_stamp().items()} if isinstance(tree, FolderTree) else {}
    entries = tree.entries
    return SourceIdentity(
        "folder",
        len(entries),
        sum(entry.size for entry in entries),
        listing=_hash_lines(f"{entry.name}\t{entry.size}" for entry in entries),
        times=_hash_lines(f"{entry.name}\t{entry.size}\t{entry.mtime_ns}" for entry in entries),
        stamps=stamps,
    )


def _hash_lines(lines: Iterable[str]) -> str:
    # Names that are no UTF-8 come as the file system has them.
    return hash_block("\n".join(lines).encode(errors="surrogateescape"))


def look_quickly(place: Path, recorded: SourceIdentity, *, workers: int) -> Look:
    """Compare a source with its record by a few `stat` calls, under a deadline.

    Returns:
        `"same"`: archive size and time, or the times of all folders, are the recorded ones.
        `"changed"`: it certainly differs. `"unsure"`: only a listing can tell. `"gone"`: nothing answers there.
    """
    answers: list[Look] = []

    def look() -> None:
        answers.append(_look(place, recorded, workers))

    # A dead mount may never answer; a thread can be left behind, a blocked call cannot be interrupted.
    thread = threading.Thread(target=look, name="colabstage-look", daemon=True)
    thread.start()
    thread.join(_LOOK_TIMEOUT_S)
    return answers[0] if answers else "gone"


def _look(place: Path, recorded: SourceIdentity, workers: int) -> Look:
    try:
        found = place.stat()
        if recorded.kind == "archive":
            if not place.is_file() or found.st_size != recorded.nbytes:
                return "changed"
            return "same" if found.st_mtime_ns == recorded.mtime_ns else "unsure"
        if not place.is_dir():
            return "changed"
        if not recorded.stamps:
            return "unsure"
        stamps = folder_stamps(place, recorded.stamps, workers=workers)
        return "same" if stamps == recorded.stamps else "unsure"
    except OSError:
        return "gone"


def is_same(recorded: SourceIdentity, now: SourceIdentity, *, trust_times: bool) -> bool:
    """Whether two full identities are of the same content.

    `trust_times=False` is for Google Drive, whose mounts may show other modification times after a remount: there a
    folder is the same when all names and sizes are, and an archive when its size and both its ends are.
    """
    if (recorded.kind, recorded.files, recorded.nbytes) != (now.kind, now.files, now.nbytes):
        return False
    if recorded.kind == "archive":
        return recorded.ends == now.ends and (recorded.mtime_ns == now.mtime_ns or not trust_times)
    return recorded.times == now.times or (not trust_times and recorded.listing == now.listing)

"""The state of a source at one time: enough to tell later whether it is still the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from colabstage.fileops import hash_block
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from colabstage.fetch.remote import RemoteFacts
    from colabstage.trees.tree import ByteSource, Tree

# The end of a zip is its table of contents with the checksum of every member: who knows it, knows the archive.
_END_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The state of a source at one time.

    `kind`: `"folder"`; `"archive"` for one file; `"file"` for one of many that are a dataset together; `"many"`.
    `files`: regular files; 1 for an archive. `nbytes`: their bytes together.
    `address`: which source it is.
    `mtime_ns`: of an archive. `ends`: hash of an archive's first and last 64 KiB.
    `version`: what a service calls this state of a file: an ETag, a generation; "" where there is none.
    `checksum`: the hash of the whole file that was asked for and found, as `"sha256:…"`.
    `listing`: hash of the names and sizes in a folder. `times`: the same with modification times.
    `stamps`: modification time in ns of each folder by name, which changes when something is added, removed or renamed
    in it.
    `parts`: of `"many"`, each source's own, in order.
    """

    kind: Literal["folder", "archive", "file", "many"]
    files: int
    nbytes: int
    address: str = ""
    mtime_ns: int = 0
    ends: str = ""
    version: str = ""
    checksum: str = ""
    listing: str = ""
    times: str = ""
    stamps: dict[str, int] = field(default_factory=dict)
    parts: tuple[SourceIdentity, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values; what is not known is left out, because there may be thousands of parts."""
        return _compact(asdict(self))

    @staticmethod
    def from_json(raw: Any) -> SourceIdentity | None:
        """Read it back; `None` for anything that is not one."""
        if not isinstance(raw, dict) or not {field.name for field in fields(SourceIdentity)} >= raw.keys():
            return None
        parts = [SourceIdentity.from_json(part) for part in raw.get("parts", ())]
        whole = tuple(part for part in parts if part is not None)
        try:
            return SourceIdentity(**{**raw, "parts": whole}) if len(whole) == len(parts) else None
        except TypeError:
            return None

    @property
    def trusts_times(self) -> bool:
        """Whether another modification time means another content.

        A mount of Google Drive may show other times, and what was downloaded has those of the download.
        """
        return not self.address.startswith(("drive:", "gdrive:", "kaggle:"))

    @property
    def fingerprint(self) -> str:
        """A text that is another one when the content may be; "" where nothing would tell."""
        if self.kind == "many":
            parts = [part.fingerprint for part in self.parts]
            return hash_block("\n".join(parts).encode()) if all(parts) else ""
        content = self.version or self.ends or (self.times if self.trusts_times else self.listing)
        if not content and not self.mtime_ns:
            return ""
        time_ns = self.mtime_ns if self.trusts_times else 0
        return f"{self.address} {self.kind} {self.files} {self.nbytes} {time_ns} {content}"


def _compact(raw: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in raw.items() if value or name in ("files", "nbytes")}
    return {**known, "parts": [_compact(part) for part in raw["parts"]]} if raw["parts"] else known


def identify_archive(source: ByteSource, mtime_ns: int, *, address: str = "") -> SourceIdentity:
    """The identity of one file; reads its first and last 64 KiB."""
    first = source.pread(_END_BYTES, 0)
    last = source.pread(_END_BYTES, max(0, source.size - _END_BYTES))
    return SourceIdentity("archive", 1, source.size, address=address, mtime_ns=mtime_ns, ends=hash_block(first + last))


def identify_remote(facts: RemoteFacts, size: int, *, address: str) -> SourceIdentity:
    """The identity of one file of a service that names its versions, or at least their times; reads nothing."""
    return SourceIdentity("archive", 1, size, address=address, mtime_ns=facts.mtime_ns, version=facts.version)


def identify_tree(tree: Tree, *, address: str = "") -> SourceIdentity:
    """The identity of a folder that has been listed."""
    stamps = {name: time for name, (time, _) in tree.listing_stamp().items()} if isinstance(tree, FolderTree) else {}
    entries = tree.entries
    return SourceIdentity(
        "folder",
        len(entries),
        sum(entry.size for entry in entries),
        address=address,
        listing=_hash_lines(f"{entry.name}\t{entry.size}" for entry in entries),
        times=_hash_lines(f"{entry.name}\t{entry.size}\t{entry.mtime_ns}" for entry in entries),
        stamps=stamps,
    )


def identify_many(parts: Sequence[SourceIdentity], *, address: str) -> SourceIdentity:
    """The identity of several sources that are one dataset."""
    files, nbytes = sum(part.files for part in parts), sum(part.nbytes for part in parts)
    return SourceIdentity("many", files, nbytes, address=address, parts=tuple(parts))


def as_loose_file(identity: SourceIdentity) -> SourceIdentity:
    """One file's identity as that of one of many; of one on Google Drive, only its size can be trusted."""
    if identity.trusts_times:
        return replace(identity, kind="file")
    return replace(identity, kind="file", version="", mtime_ns=0)


def _hash_lines(lines: Iterable[str]) -> str:
    # Names that are no UTF-8 come as the file system has them.
    return hash_block("\n".join(lines).encode(errors="surrogateescape"))


def is_same(recorded: SourceIdentity, now: SourceIdentity) -> bool:
    """Whether two full identities are of the same content.

    On Google Drive, whose mounts may show other modification times after a remount, a folder is the same when all
    names and sizes are, and an archive when its size and both its ends are. A service's version decides alone.
    """
    if (recorded.kind, recorded.files, recorded.nbytes) != (now.kind, now.files, now.nbytes):
        return False
    if recorded.kind == "many":
        return len(recorded.parts) == len(now.parts) and all(map(is_same, recorded.parts, now.parts))
    if recorded.version or now.version:
        return recorded.version == now.version
    if recorded.kind in ("archive", "file"):
        return recorded.ends == now.ends and (recorded.mtime_ns == now.mtime_ns or not now.trusts_times)
    return recorded.times == now.times or (not now.trusts_times and recorded.listing == now.listing)

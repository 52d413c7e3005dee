"""The state of a source at one time: enough to decide later whether it is still the same.

Two states are the same if something proves it: a service's version, the checksums of every member of a zip or of every
file, or names, sizes and times of all files if times can be trusted. Otherwise the answer is "unproved", never assumed.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import wait
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from colabstage.errors import ArchiveError, ColabstageError, DriveError, SourceError, ended, said_by
from colabstage.io.environment import OFFLINE_VARIABLE, is_set
from colabstage.io.files import RetryPolicy, hash_block, read_fields
from colabstage.io.pipeline import DaemonPool, in_thread
from colabstage.io.workspace import current_world
from colabstage.machine.drive_attributes import ask_md5s
from colabstage.machine.mounts import is_slow_mount, silence_of, slow_mounts_below
from colabstage.sources.gdrive import SharedFolder, open_share
from colabstage.sources.kaggle import find_kaggle_folder, find_login, newest_version
from colabstage.sources.parse import (
    KaggleSource,
    LocalSource,
    ManySource,
    ObjectSource,
    ShareSource,
    SingleSource,
    Source,
    TreeSource,
    WebSource,
    expand_source,
    is_on_drive,
    parts_of,
    paths_of,
)
from colabstage.sources.remote import LEADS_NOWHERE, NOTHING, Access, Services
from colabstage.sources.remote_files import RemoteFileTree, open_remote
from colabstage.sources.to_folder import SLOW_READERS
from colabstage.trees.folder import FolderTree, folder_stamps
from colabstage.trees.listing import FileEntries, Tree
from colabstage.trees.zip import directory_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from colabstage.sources.remote import Checksum, RemoteFacts
    from colabstage.trees.bytes import ByteSource

# How many bytes at each end of a file are compared if nothing vouches for all of it.
_END_BYTES = 64 * 1024
_ZIP_MARK = b"PK"
# The beginning of a digest of what a service reports of each file.
_STATES = "states:"
# Google Drive stores milliseconds; a mount that has just written stores more digits.
_SECOND_NS = 1_000_000_000
# Times of a folder's files are stored in so many groups: few enough to be carried along, and in small folders one file
# each.
_GROUPS = 256
_GROUP_DIGITS = 8

# How long nothing at all may come from a mount or a service. What answers, however slowly, is waited for.
_SILENCE_S = 20.0
# How many parts of a list are asked at once, and how many single addresses at most: each takes a request, so that
# this many take about as long as a look may.
_ASKERS, _MOST_ASKED = 16, 1000

Verdict = Literal["same", "unproved", "changed"]


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    kind: Literal["folder", "archive", "file", "many"]
    """`"folder"`; `"archive"` for one file; `"file"` for one of many that are a dataset together; `"many"`."""
    files: int
    """Regular files; 1 for an archive."""
    nbytes: int
    address: str = ""
    mtime_ns: int = 0
    ends: str = ""
    """A hash of an archive's first and last 64 KiB."""
    version: str = ""
    """A service's name for this state of a file: an ETag, a generation; "" if there is none."""
    checksum: str = ""
    """The requested and verified hash of the whole file, as `"sha256:…"`."""
    digest: str = ""
    """A digest that covers every byte; "" if there is none.

    `"zip:…"` is of a zip's whole directory with each member's checksum; `"sha256:…"` of all content; `"states:…"` of
    what a service reports of each file.
    """
    md5: str = ""
    """The MD5 that the client of a mounted Google Drive reports; "" if it reports none.

    For one file its MD5, for a folder a hash of all names and MD5s.
    """
    listing: str = ""
    """A hash of the names and sizes in a folder."""
    times: str = ""
    """The same with modification times."""
    clock: str = ""
    """A hash of times alone, to the second: 8 digits for each of up to 256 groups of files in the order of their
    names."""
    stamps: dict[str, int] = field(default_factory=dict)
    """The modification time in ns of each folder by name, which changes with every name in it."""
    inodes: str = ""
    """A hash of which file each name of a folder has, and the boot in which that held."""
    parts: tuple[SourceIdentity, ...] = ()
    """For `"many"`, the identity of each source, in order."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; unknown fields are left out, because there may be thousands of parts."""
        return _compact(asdict(self))

    @staticmethod
    def from_json(raw: Any) -> SourceIdentity | None:
        """Read it from JSON values; `None` for anything that is not an identity."""
        return read_fields(SourceIdentity, raw)

    @property
    def trusts_times(self) -> bool:
        """Return whether a different modification time means different content, and the same time the same content.

        A Google Drive mount may show other times after a remount, and downloaded files have the times of the download.
        """
        return not self.address.startswith(("drive:", "gdrive:", "kaggle:"))

    @property
    def is_downloaded(self) -> bool:
        """Return whether its times are those of its download, which say nothing about its content."""
        return self.address.startswith(("gdrive:", "kaggle:"))

    @property
    def fingerprint(self) -> str:
        """Return a text that changes when the content may have changed; "" if nothing would show that."""
        if self.kind == "many":
            parts = [part.fingerprint for part in self.parts]
            return hash_block("\n".join(parts).encode()) if all(parts) else ""
        if self.md5:
            return f"{self.address} {self.kind} {self.files} {self.nbytes} md5:{self.md5}"
        # The times of downloaded files say nothing.
        listed = self.listing if self.is_downloaded else self.times
        content = " ".join(filter(None, (self.version, self.digest, *(() if self.version else (self.ends, listed)))))
        if not content and not self.mtime_ns:
            return ""
        time_ns = self.mtime_ns if self.trusts_times else self.mtime_ns // _SECOND_NS
        return f"{self.address} {self.kind} {self.files} {self.nbytes} {time_ns} {content}"

    @property
    def without_stamps(self) -> SourceIdentity:
        """Return the same for a machine that has not seen the source, on which times of folders alone prove nothing."""
        return replace(self, stamps={}, inodes="", parts=tuple(part.without_stamps for part in self.parts))


def _compact(raw: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in raw.items() if value or name in ("files", "nbytes")}
    return {**known, "parts": [_compact(part) for part in raw["parts"]]} if raw["parts"] else known


def identify_archive(source: ByteSource, mtime_ns: int, *, address: str = "") -> SourceIdentity:
    """Return the identity of one file; reads its first and last 64 KiB, and the whole directory of a zip."""
    first = source.pread(_END_BYTES, 0)
    last = source.pread(_END_BYTES, max(0, source.size - _END_BYTES))
    # With the checksum of every member, it covers all bytes without reading them.
    directory = directory_bytes(source) if first.startswith(_ZIP_MARK) else None
    digest = "" if directory is None else f"zip:{hash_block(directory)}"
    ends = hash_block(first + last)
    return SourceIdentity("archive", 1, source.size, address=address, mtime_ns=mtime_ns, ends=ends, digest=digest)


def identify_remote(facts: RemoteFacts, size: int, *, address: str) -> SourceIdentity:
    """Return the identity of one file of a service that reports versions, or at least times; reads nothing."""
    return SourceIdentity("archive", 1, size, address=address, mtime_ns=facts.mtime_ns, version=facts.version)


def identify_tree(tree: Tree, *, address: str = "", digest: str = "", md5s: Sequence[str] = ()) -> SourceIdentity:
    """Return the identity of a folder that has been listed.

    `digest`: of all its content, if something stores it. `md5s`: of each file, if Drive's client reports them.
    """
    entries = FileEntries.of(tree.entries)
    # In groups, because a time for each of a million files would fill most of the record.
    seconds = (entries.mtimes_ns // _SECOND_NS).tolist()
    groups = min(len(seconds), _GROUPS)
    bounds = [number * len(seconds) // groups for number in range(groups + 1)] if groups else []
    parts = (seconds[first:after] for first, after in itertools.pairwise(bounds))
    return replace(
        identify_by_times(tree, address=address),
        digest=digest or _digest_of_states(tree),
        md5=_hash_lines(map("\t".join, zip(entries.names, md5s, strict=True))) if md5s else "",
        listing=_hash_lines(map("%s\t%d".__mod__, zip(entries.names, entries.sizes.tolist(), strict=True))),
        clock="".join(hash_block(repr(part).encode())[:_GROUP_DIGITS] for part in parts),
    )


def _digest_of_states(tree: Tree) -> str:
    """Return a hash of what a service reports of each file of a folder; "" if of one it reports nothing."""
    facts = tree.facts if isinstance(tree, RemoteFileTree) else {}
    if not facts or not all(one.names_its_state for one in facts.values()):
        return ""
    states = sorted((name, one.size, one.checksum or one.version or one.mtime_ns) for name, one in facts.items())
    return _STATES + _hash_lines(map("%s\t%d\t%s".__mod__, states))


def identify_by_times(tree: Tree, *, address: str = "") -> SourceIdentity:
    """Return what is compared for a folder with trusted times and without MD5s: half the work of `identify_tree`."""
    entries = FileEntries.of(tree.entries)
    times = entries.mtimes_ns.tolist()
    return SourceIdentity(
        "folder",
        len(entries),
        int(entries.sizes.sum()),
        address=address,
        times=_hash_lines(map("%s\t%d\t%d".__mod__, zip(entries.names, entries.sizes.tolist(), times, strict=True))),
        stamps={name: time for name, (time, _) in tree.listing_stamp().items()},
        inodes=f"{current_world()} {tree.inodes}" if tree.inodes else "",
    )


def identify_many(parts: Sequence[SourceIdentity], *, address: str) -> SourceIdentity:
    files, nbytes = sum(part.files for part in parts), sum(part.nbytes for part in parts)
    return SourceIdentity("many", files, nbytes, address=address, parts=tuple(parts))


def identify_files(files: RemoteFileTree, sources: Sequence[SingleSource]) -> list[SourceIdentity]:
    """Return the state of each file when it was listed; `sources` are theirs, in the order of `files`."""
    on_drive = {source.address: str(source.path) for source in sources if is_on_drive(source)}
    md5s = ask_md5s(list(on_drive.values())) if on_drive else []
    md5_of = dict(zip(on_drive, md5s, strict=False))
    found = []
    for facts, source in zip(files.facts.values(), sources, strict=True):
        one = identify_remote(facts, facts.size or 0, address=source.address)
        # The version of one on a mounted Drive is its time, which counts to the second.
        version = "" if is_on_drive(source) else one.version
        found.append(replace(one, kind="file", version=version, md5=md5_of.get(source.address, "")))
    return found


def _hash_lines(lines: Iterable[str]) -> str:
    # Names that are not UTF-8 are hashed as the file system has them.
    return hash_block("\n".join(lines).encode(errors="surrogateescape"))


class Look(NamedTuple):
    state: Verdict | Literal["unknown"]
    """How a source compares with its record now. `"unproved"`: only opening it tells; `"unknown"`: nothing does now."""
    detail: str = ""
    """What is unchanged, or the failure, in words."""


def _worst(looks: Sequence[Look]) -> Look:
    """Return the look at a list: if one part has changed, the whole has changed."""
    found = {look.state: look for look in reversed(looks)}
    order: tuple[str, ...] = ("changed", "unproved", "unknown")
    seen = "; ".join(dict.fromkeys(look.detail for look in looks))
    return next((found[state] for state in order if state in found), Look("same", seen))


def compare_states(recorded: SourceIdentity, now: SourceIdentity) -> Verdict:
    """Return whether two states have the same content, as far as they prove it."""
    verdict = _judge(recorded, now).state
    assert verdict != "unknown"
    return verdict


def _judge(recorded: SourceIdentity, now: SourceIdentity) -> Look:
    """Compare two states.

    A service's version decides, and a value that stands for every byte, if both states have it: the MD5 that Drive's
    client reports, or a digest. Otherwise all known facts must agree. `"unproved"`: names and sizes agree, and nothing
    else can tell: the times of many files on Google Drive have all changed, as after a remount, or are those of a
    download; the file was not read now, and its time differs; or its service reports nothing else.
    """
    if (recorded.kind, recorded.files, recorded.nbytes) != (now.kind, now.files, now.nbytes):
        return Look("changed")
    if recorded.kind == "many":
        other = [Look("changed")] if len(recorded.parts) != len(now.parts) else []
        return _worst([*other, *map(_judge, recorded.parts, now.parts)])
    before, after = _deciding_facts(recorded, now)
    if not before and not after:
        verdict, seen = _compare_folders(recorded, now) if recorded.kind == "folder" else _compare_files(recorded, now)
        return Look(verdict, seen if verdict == "same" else "")
    if before != after:
        return Look("changed")
    if now.version or after.startswith(_STATES):
        return Look("same", "its service reports the recorded version")
    proof = "MD5s that Drive's client reports" if recorded.md5 and now.md5 else "checksums of every byte"
    return Look("same", f"the {proof} are unchanged")


def _deciding_facts(recorded: SourceIdentity, now: SourceIdentity) -> tuple[str, str]:
    """Return the values of both that decide alone; empty if there are none."""
    # A version on one side only is a difference: the service would have reported it before. That of a shared folder is
    # of its names alone.
    if not (recorded.version or now.version) and recorded.md5 and now.md5:
        return recorded.md5, now.md5
    # A zip's directory and a hash of all content cannot be compared with each other.
    is_comparable = recorded.digest.partition(":")[0] == now.digest.partition(":")[0]
    before, after = (recorded.digest, now.digest) if is_comparable else ("", "")
    return recorded.version + before, now.version + after


def _compare_files(recorded: SourceIdentity, now: SourceIdentity) -> tuple[Verdict, str]:
    known = [("its size", True), ("time", now.mtime_ns), ("both ends", now.ends)]
    seen = f"{' and '.join(name for name, is_known in known if is_known)} are unchanged"
    # A quick look reads nothing.
    if bool(recorded.ends) != bool(now.ends) or not (now.ends or recorded.mtime_ns or now.mtime_ns):
        return "same" if now.mtime_ns and recorded.mtime_ns == now.mtime_ns else "unproved", seen
    if now.is_downloaded:
        return "unproved" if recorded.ends == now.ends else "changed", seen
    # Drive's mounts report times for the same file that differ within a second.
    unit = 1 if now.trusts_times else _SECOND_NS
    same_time = recorded.mtime_ns // unit == now.mtime_ns // unit
    return "same" if same_time and recorded.ends == now.ends else "changed", seen


def _compare_folders(recorded: SourceIdentity, now: SourceIdentity) -> tuple[Verdict, str]:
    seen = "names, sizes and times of all files are unchanged"
    if recorded.times == now.times:
        # Names may have other files than before; unknown after a reboot, when disks may renumber files.
        same_boot = recorded.inodes.rpartition(" ")[0] == now.inodes.rpartition(" ")[0]
        return "changed" if same_boot and recorded.inodes != now.inodes else "same", seen
    if now.trusts_times or recorded.listing != now.listing:
        return "changed", seen
    if now.is_downloaded or len(recorded.clock) != len(now.clock):
        return "unproved", seen
    starts = range(0, len(now.clock), _GROUP_DIGITS)
    other = sum(recorded.clock[at : at + _GROUP_DIGITS] != now.clock[at : at + _GROUP_DIGITS] for at in starts)
    # If some times differ, somebody changed files. If all differ, it may be a remount; a few files are simply read
    # again.
    may_be_remount = other == len(starts) and now.files > _GROUPS
    return "same" if not other else "unproved" if may_be_remount else "changed", seen


# Whether what was made from a source may still be used.


class Freshness(NamedTuple):
    """How a source compares with a recorded state."""

    same: bool
    """Whether what was made from that state may be used."""
    seen: str = ""
    """What was compared, for the report."""
    note: str = ""
    """What is not known of the source, in sentences; "" if nothing is missing."""
    proved: bool = False
    """Whether the source was opened and proved to be the same."""

    def __str__(self) -> str:
        return self.note or (f"{self.seen[0].upper()}{self.seen[1:]}." if self.seen else "")


def compare_source(
    source: Source,
    recorded: SourceIdentity,
    identify: Callable[[], SourceIdentity],
    *,
    checksum: Checksum | None,
    thorough: bool,
    unpack: bool,
    is_open: bool = False,
) -> Freshness:
    """Return whether a source is still in the recorded state; one that is missing does not count as changed.

    `identify` opens it and returns its present state: if a quick look does not tell, if `thorough`, or if the source
    `is_open` and knows more than that. `checksum`: the requested one.
    """
    if checksum is not None:
        as_asked = recorded.checksum == str(checksum)
        # The checksum names the content, so the source's present state does not matter.
        if not (as_asked and thorough):
            return Freshness(as_asked)
    # Sources on the network are not looked at while that is switched off.
    is_local = all(isinstance(part, LocalSource | TreeSource) for part in parts_of(source))
    look, is_proved = Look("unproved"), False
    if not thorough and not is_open and (is_local or not is_set(OFFLINE_VARIABLE)):
        look = check_freshness(source, recorded, unpack=unpack)
    if look.state == "unproved":
        try:
            look = _judge(recorded, identify())
        # A user whose account or network fails today wants to use what is here.
        except (SourceError, DriveError, ArchiveError) as error:
            look = Look("unknown", str(error))
        is_proved = look.state == "same"
    if look.state == "unproved":
        if thorough:
            return Freshness(False, "nothing proves that the source is unchanged")
        why = "its names and sizes are unchanged, and nothing else tells. verify='full' reads it again"
        look = Look("unknown", why)
    if look.state == "unknown":
        what = "Whether the source has changed is not known, and what was made from it before is used"
        return Freshness(True, note=ended(f"{what}: {look.detail}"))
    return Freshness(look.state == "same", look.detail and f"the source: {look.detail}", proved=is_proved)


# A quick look: whether a source is still the recorded one, by a few questions and under a deadline.


def check_freshness(source: Source, recorded: SourceIdentity, *, unpack: bool) -> Look:
    """Compare a source with its record by a few calls, until nothing has come for 20 seconds; of a folder on a local
    disk, all files are listed. `unpack`: as of `open_source`."""
    silence = silence_of(*paths_of(source))
    if silence is not None:
        return Look("unknown", str(silence))
    if isinstance(source, ObjectSource) and recorded.kind == "folder":
        # To look is to list it, as opening does.
        return Look("unproved")
    asker = _Asker()
    # A dead mount may never answer; a thread can be left behind, a blocked call cannot be interrupted.
    answer = in_thread(
        lambda: asker.ask(partial(expand_source, source, unpack=unpack, services=asker.services), recorded),
        "colabstage-look",
    )
    answer.add_done_callback(lambda _: asker.services.close())
    while not wait([answer], max(0.01, asker.responded_at + _SILENCE_S - time.monotonic())).done:
        if time.monotonic() - asker.responded_at >= _SILENCE_S:
            return Look("unknown", f"nothing arrived from it for {_SILENCE_S:.0f} s")
    return answer.result()


class _Asker:
    """Ask sources whether they are the recorded ones; `responded_at`: when the latest response came."""

    def __init__(self) -> None:
        self.responded_at = time.monotonic()
        self.services = Services()

    def on_response(self) -> None:
        self.responded_at = time.monotonic()

    def ask(self, expand: Callable[[], Source], recorded: SourceIdentity) -> Look:
        """Ask the source that `expand` returns. One that cannot be asked does not count as changed: the caller decides
        what to do with local data."""
        try:
            return self._ask(expand(), recorded)
        except ColabstageError as error:
            if isinstance(error, LEADS_NOWHERE) and recorded.version == NOTHING:
                return Look("same", "addresses that led nowhere still do")
            return Look("unknown", str(error))
        except OSError as error:
            named = f"'{error.filename}': " if error.filename else ""
            return Look("unknown", f"{named}{said_by(error)}.")
        finally:
            self.on_response()

    def _ask(self, source: Source, recorded: SourceIdentity) -> Look:
        match source:
            case LocalSource():
                return self._ask_disk(source.files, recorded, source.leave_out)
            case WebSource() | ObjectSource() | ShareSource():
                return _ask_service(source, recorded, self.services)
            case KaggleSource():
                return self._ask_kaggle(source, recorded)
            case ManySource():
                return self._ask_many(source.parts, recorded)
            case TreeSource():
                return Look("unproved")

    def _ask_disk(
        self, paths: Sequence[Path], recorded: SourceIdentity, leave_out: frozenset[str] = frozenset()
    ) -> Look:
        """Ask for a folder, or for the files that follow each other as one."""
        found = [path.stat() for path in paths]
        if recorded.kind in ("archive", "file"):
            return _ask_files(paths, found, recorded) if all(S_ISREG(one.st_mode) for one in found) else Look("changed")
        path = paths[0]
        if not path.is_dir():
            return Look("changed")
        # Listing everything would take minutes there, so its folders speak for it.
        if is_slow_mount(path) or not recorded.trusts_times:
            return self._ask_mounted(path, recorded)
        mounts = slow_mounts_below(path)
        tree = FolderTree(path, on_response=self.on_response, leave_out=leave_out, mounts=mounts, keeps_inodes=True)
        return _judge(recorded, identify_by_times(tree, address=recorded.address))

    def _ask_mounted(self, path: Path, recorded: SourceIdentity) -> Look:
        """Ask for the times of a folder's folders, unless MD5s tell more, which takes opening it."""
        # A remount may give folders new times, so others prove no change.
        if recorded.md5 or not recorded.stamps:
            return Look("unproved")
        stamps = folder_stamps(path, recorded.stamps, workers=SLOW_READERS, on_response=self.on_response)
        if stamps != recorded.stamps:
            return Look("unproved")
        seen = "the times of its folders are unchanged; a file rewritten under its name would not be noticed"
        return Look("same", seen)

    def _ask_kaggle(self, source: KaggleSource, recorded: SourceIdentity) -> Look:
        mounted = find_kaggle_folder(source)
        if mounted is not None and not mounted.version:
            return self._ask_disk([mounted.path], recorded)
        if source.version is not None:
            return Look("same", "a version of a dataset on Kaggle does not change")
        if not recorded.version:
            return Look("unknown", "which version was staged is not known")
        newest = str(newest_version(source, find_login()))
        return Look("same", f"version {newest} is the newest") if recorded.version == newest else Look("changed")

    def _ask_many(self, parts: Sequence[SingleSource], recorded: SourceIdentity) -> Look:
        # Another list is another dataset, in whatever state its parts are.
        if [part.address for part in parts] != [part.address for part in recorded.parts]:
            return Look("changed")
        far = sum(isinstance(part, WebSource | ObjectSource) for part in parts)
        if far > _MOST_ASKED:
            return Look("unknown", f"its {far:,} addresses were not asked, which verify='full' does")
        with DaemonPool(min(_ASKERS, len(parts)), "colabstage-look") as pool:
            pairs = list(zip(parts, recorded.parts, strict=True))
            looks = pool.run(lambda pair: self.ask(lambda: pair[0], pair[1]), pairs, stall_timeout_s=float("inf"))
        return _worst(looks)


def _ask_files(paths: Sequence[Path], found: Sequence[os.stat_result], recorded: SourceIdentity) -> Look:
    size, mtime_ns = sum(one.st_size for one in found), max(one.st_mtime_ns for one in found)
    # Another length is proof enough, whatever else agrees, so the client need not be asked.
    md5s = ask_md5s([str(path) for path in paths]) if recorded.md5 and size == recorded.nbytes else []
    now = SourceIdentity(recorded.kind, 1, size, recorded.address, mtime_ns, md5=" ".join(md5s))
    # The version of one file of a list is its time.
    return _judge(replace(recorded, version=""), now)


def _ask_service(source: WebSource | ObjectSource | ShareSource, recorded: SourceIdentity, services: Services) -> Look:
    # One try, because a look has a deadline, and the local data can be used without it.
    access = Access(policy=RetryPolicy(attempts=1), services=services)
    if isinstance(source, ShareSource):
        found: Any = open_share(source, access)
    elif recorded.kind in ("archive", "file"):
        found = open_remote(source, access)
    else:
        return Look("unproved")
    if isinstance(found, SharedFolder):
        seen = "the same files are shared; one that was replaced in place would not be noticed"
        return Look("same", seen) if found.version == recorded.version else Look("changed")
    found.close()
    if isinstance(found, RemoteFileTree):
        return Look("changed")
    facts, size = found.facts, recorded.nbytes if found.facts.size is None else found.facts.size
    look = _judge(recorded, replace(identify_remote(facts, size, address=recorded.address), kind=recorded.kind))
    # Opening a file could tell more by its ends; a server that gives no parts would be asked for everything again.
    can_tell = facts.ranges and recorded.kind != "file" and not recorded.is_downloaded
    if look.state != "unproved" or can_tell:
        return look
    return Look("unknown", "its service reports neither a version nor a time")

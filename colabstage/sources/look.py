"""A quick look at a source: whether it is still the recorded one, by a few requests and under a deadline."""

from __future__ import annotations

import time
from concurrent.futures import wait
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from colabstage.errors import ColabstageError, SourceReadError, said_by
from colabstage.io.files import RetryPolicy
from colabstage.io.pipeline import DaemonPool, in_thread
from colabstage.machine.drive_attributes import Md5Questions, ask_md5s
from colabstage.machine.mounts import is_slow_mount, silence_of, slow_mounts_below
from colabstage.sources.gdrive import SharedFolder, open_share
from colabstage.sources.identity import (
    MD5_PROOF,
    SourceIdentity,
    compare_states,
    identify_by_times,
    identify_tree,
    proof_of,
)
from colabstage.sources.kaggle import KaggleFolder, find_kaggle_folder, newest_version
from colabstage.sources.parse import (
    KaggleSource,
    LocalSource,
    ManySource,
    ObjectSource,
    ShareSource,
    Source,
    TreeSource,
    WebSource,
    expand_pattern,
    paths_of,
    whole_of,
)
from colabstage.sources.remote_files import RemoteFileTree, open_remote
from colabstage.trees.folder import FolderTree, folder_stamps

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.sources.identity import Verdict
    from colabstage.sources.parse import SingleSource

# How long nothing at all may come from a mount or a service. Whatever responds, however slowly, is waited for.
_SILENCE_S = 20.0
# How many parts of a list are checked at once.
_ASKERS = 16

# A service that is unreachable now counts as absent; nobody waits for it.
_ONE_TRY = RetryPolicy(attempts=1)


class Look(NamedTuple):
    """What a quick look at a source found."""

    state: Verdict | Literal["gone", "silent"]
    """What is known about it now.

    `"same"`: it is the recorded one, by what `detail` names. `"changed"`: it certainly differs. `"unproved"`: only
    opening it can tell. `"gone"`: it is missing, or refuses. `"silent"`: nothing came from it in time, so nothing is
    known.
    """
    detail: str = ""
    """What was compared, or what went wrong, in words."""


def check_freshness(source: Source, recorded: SourceIdentity, *, workers: int, silence_s: float | None = None) -> Look:
    """Compare a source with its record by a few calls; in a folder on a local disk, all files are listed.

    Ends when nothing has come for `silence_s` seconds, 20 by default.
    """
    silence = silence_of(*paths_of(source))
    if silence is not None:
        return Look("silent", str(silence))
    asker = _Asker(workers)
    # A dead mount may never respond; a thread can be abandoned, but a blocked call cannot be interrupted.
    answer = in_thread(lambda: asker.ask_typed(source, recorded), "colabstage-look")
    patience_s = _SILENCE_S if silence_s is None else silence_s
    while not wait([answer], max(0.01, asker.responded_at + patience_s - time.monotonic())).done:
        if time.monotonic() - asker.responded_at >= patience_s:
            return Look("silent", f"nothing arrived from it for {patience_s:.0f} s")
    return answer.result()


class _Asker:
    """Checks whether sources are the recorded ones; `responded_at`: when the latest response came."""

    def __init__(self, workers: int) -> None:
        self._workers, self.responded_at = workers, time.monotonic()

    def note_response(self) -> None:
        self.responded_at = time.monotonic()

    def ask_typed(self, source: Source, recorded: SourceIdentity) -> Look:
        """Check one source. One that cannot be checked does not count as changed: the caller decides about local
        data."""
        try:
            return self._ask(source, recorded)
        except ColabstageError as error:
            return Look("gone", str(error))
        except OSError as error:
            named = f"'{error.filename}': " if error.filename else ""
            return Look("gone", f"{named}{said_by(error)}.")
        finally:
            self.note_response()

    def _ask(self, source: Source, recorded: SourceIdentity) -> Look:
        match source if isinstance(source, LocalSource) else expand_pattern(source):
            case LocalSource() as source:
                return self._ask_local(source, recorded)
            case WebSource() | ObjectSource() as source:
                return _ask_service(source, recorded)
            case ShareSource() as source:
                return _ask_shared(source, recorded)
            case KaggleSource() as source:
                return self._ask_kaggle(source, recorded)
            case ManySource() as source:
                return self._ask_many(source.parts, recorded)
            case TreeSource():
                return Look("unproved")

    def _ask_local(self, source: LocalSource, recorded: SourceIdentity) -> Look:
        expanded = expand_pattern(source)
        whole = whole_of(expanded)
        # Fetching copies the parts as they are; staging records the whole that they belong to.
        if recorded.kind == "many" and isinstance(whole, ManySource):
            return self._ask_many(whole.parts, recorded)
        if recorded.kind != "many" and isinstance(whole, LocalSource) and whole.pieces:
            found = [piece.stat() for piece in whole.pieces]
            if sum(one.st_size for one in found) == recorded.nbytes:
                return _judge(recorded, mtime_ns=max(one.st_mtime_ns for one in found))
        if isinstance(expanded, ManySource):
            return self._ask_many(expanded.parts, recorded)
        return self._ask_disk(source.path, recorded, source.leave_out)

    def _ask_disk(self, path: Path, recorded: SourceIdentity, leave_out: frozenset[str] = frozenset()) -> Look:
        found = path.stat()
        if recorded.kind in ("archive", "file"):
            return _ask_file(path, found, recorded) if path.is_file() else Look("changed")
        if not path.is_dir():
            return Look("changed")
        # Listing everything would take minutes there, so its folders' times stand for it.
        if is_slow_mount(path) or not recorded.trusts_times:
            return self._ask_mounted(path, recorded, leave_out)
        mounts = slow_mounts_below(path)
        tree = FolderTree(path, on_response=self.note_response, leave_out=leave_out, mounts=mounts, keeps_inodes=True)
        return _compare(recorded, identify_by_times(tree, address=recorded.address))

    def _ask_mounted(self, path: Path, recorded: SourceIdentity, leave_out: frozenset[str]) -> Look:
        """Check the times of a folder's folders, and its files' MD5s if Drive's client reported them."""
        workers, on_response, stamps = self._workers, self.note_response, None
        if recorded.stamps:
            stamps = folder_stamps(path, recorded.stamps, workers=workers, on_response=on_response)
        # A remount may give folders new times, so different ones prove no change.
        if stamps is None or stamps != recorded.stamps:
            return Look("unproved")
        if not recorded.md5:
            seen = "the times of its folders are unchanged; a file rewritten under its name would not be noticed"
            return Look("same", seen)
        with Md5Questions(workers=workers, on_response=on_response) as questions:
            # Both wait for the client, and only its answers matter.
            tree = FolderTree(path, workers=workers, on_response=on_response, found=questions.ask, leave_out=leave_out)
            md5s, why = questions.answers(tree.paths)
        now = identify_tree(tree, address=recorded.address, md5s=md5s)
        if compare_states(recorded, now) != "same":
            # For the same files, another MD5 means other content. A listing may also have lacked a part; opening lists
            # again.
            return Look("changed" if md5s and now.listing == recorded.listing else "unproved")
        seen = f"names, sizes and times of all files are unchanged; {_no_md5(why)}"
        return Look("same", MD5_PROOF if md5s else seen)

    def _ask_kaggle(self, source: KaggleSource, recorded: SourceIdentity) -> Look:
        mounted = find_kaggle_folder(source.dataset)
        if mounted is not None and not mounted.version:
            return self._ask_disk(mounted.path, recorded)
        if source.dataset.version is not None:
            return Look("same", "a version of a dataset on Kaggle does not change")
        if not recorded.version:
            return Look("silent", "which version was staged is not known")
        newest = newest_version(source.dataset)
        if newest is None:
            return Look("silent", "Kaggle did not tell which version is the newest")
        return Look("same", f"version {newest} is the newest") if recorded.version == newest else Look("changed")

    def _ask_many(self, parts: Sequence[SingleSource], recorded: SourceIdentity) -> Look:
        # Another list is another dataset, whatever the state of its parts.
        if [part.address for part in parts] != [part.address for part in recorded.parts]:
            return Look("changed")
        with DaemonPool(min(_ASKERS, len(parts)), "colabstage-look") as pool:
            pairs = list(zip(parts, recorded.parts, strict=True))
            looks = pool.run(lambda pair: self.ask_typed(*pair), pairs, stall_timeout_s=float("inf"))
        found = {look.state: look for look in reversed(looks)}
        order: tuple[str, ...] = ("changed", "unproved", "silent", "gone")
        return next((found[state] for state in order if state in found), looks[0])


def _ask_file(path: Path, found: os.stat_result, recorded: SourceIdentity) -> Look:
    # A different length is proof enough, so the client need not be asked.
    md5s, why = ask_md5s([str(path)]) if recorded.md5 and found.st_size == recorded.nbytes else ([], "")
    # The version of one file of a list is its time.
    known = replace(recorded, version="")
    look = _judge(known, size=found.st_size, mtime_ns=found.st_mtime_ns, md5="".join(md5s))
    if why and look.state == "same":
        return Look("same", f"{look.detail}; {_no_md5(why)}")
    return look


def _judge(
    recorded: SourceIdentity, *, size: int | None = None, version: str = "", mtime_ns: int = 0, md5: str = ""
) -> Look:
    nbytes = recorded.nbytes if size is None else size
    now = SourceIdentity(recorded.kind, 1, nbytes, recorded.address, mtime_ns, version=version, md5=md5)
    return _compare(recorded, now)


def _compare(recorded: SourceIdentity, now: SourceIdentity) -> Look:
    verdict = compare_states(recorded, now)
    return Look(verdict, proof_of(recorded, now) if verdict == "same" else "")


def _no_md5(why: str) -> str:
    return f"Drive's client reports no MD5 to compare: {why}"


def _ask_service(source: WebSource | ObjectSource, recorded: SourceIdentity) -> Look:
    if recorded.kind != "archive":
        seen = "its address; of a list of single files none is asked again, and another would not be noticed"
        return Look("same", seen) if recorded.kind == "file" else Look("unproved")
    # One try: a look has a deadline, and local data can be used without it.
    found = open_remote(source, policy=_ONE_TRY)
    if not isinstance(found, KaggleFolder):
        found.close()
    if isinstance(found, RemoteFileTree | KaggleFolder):
        return Look("changed")
    facts = found.facts
    look = _judge(recorded, size=facts.size, version=facts.version, mtime_ns=facts.mtime_ns)
    if look.state == "unproved" and not facts.mtime_ns and not facts.ranges:
        # If a server reports neither and serves no parts, everything would have to be downloaded again.
        return Look("same", "its server reports neither a version nor a time, so new content would not be noticed")
    return look


def _ask_shared(source: ShareSource, recorded: SourceIdentity) -> Look:
    try:
        found = open_share(source.link, policy=_ONE_TRY)
    except SourceReadError:
        return Look("silent", "Drive gave no answer that could be used")
    if not isinstance(found, SharedFolder):
        found.close()
    version = found.version if isinstance(found, SharedFolder) else found.facts.version
    if version != recorded.version:
        return Look("changed")
    if not version:
        return Look("same", "Drive reports no version of it, so new content would not be noticed")
    if isinstance(found, SharedFolder):
        return Look("same", "the same files are shared; one that was replaced in place would not be noticed")
    return Look("same", "Drive reports the recorded version")

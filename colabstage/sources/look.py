"""A quick look at a source: whether it is still the recorded one, by a few questions and under a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, Literal, NamedTuple

from colabstage.errors import ColabstageError, SourceReadError, said_by
from colabstage.io.files import RetryPolicy
from colabstage.io.pipeline import DaemonPool, in_thread
from colabstage.machine.drive_attributes import Md5Questions, ask_client
from colabstage.machine.mounts import is_slow_mount, silence_of
from colabstage.sources.identity import MD5_PROOF, compare_states, drive_md5s, identify_by_times, identify_tree
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
from colabstage.sources.remote_files import open_remote
from colabstage.trees.folder import FolderTree, folder_stamps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from colabstage.sources.identity import SourceIdentity
    from colabstage.sources.parse import SingleSource

# How long nothing at all may come from a mount or a service. What answers, however slowly, is waited for.
_SILENCE_S = 20.0
# How many parts of a list are asked at once.
_ASKERS = 16

# Who is not there now counts as absent; nobody waits for that.
_ONE_TRY = RetryPolicy(attempts=1)

Heard = Callable[[], object]


class Look(NamedTuple):
    """What a quick look at a source found."""

    state: Literal["same", "unsure", "changed", "gone", "silent"]
    """What is known of it now.

    `"same"`: it is the recorded one by what `detail` says was compared. `"changed"`: it certainly differs.
    `"unsure"`: only opening it can tell. `"gone"`: it is not there, or refuses. `"silent"`: nothing came from it in
    time, so whether it is there, or the same, is not known.
    """
    detail: str = ""
    """What was compared, or what went wrong, in words."""


def check_freshness(source: Source, recorded: SourceIdentity, *, workers: int, silence_s: float | None = None) -> Look:
    """Compare a source with its record by a few calls; of a folder on a local disk, all files are listed.

    Ends when nothing has come for `silence_s` seconds, 20 by default.
    """
    silence = silence_of(*paths_of(source))
    if silence is not None:
        return Look("silent", str(silence))
    last = time.monotonic()

    def heard() -> None:
        nonlocal last
        last = time.monotonic()

    # A dead mount may never answer; a thread can be left behind, a blocked call cannot be interrupted.
    answer = in_thread(lambda: _look_typed(source, recorded, workers, heard), "colabstage-look")
    patience_s = _SILENCE_S if silence_s is None else silence_s
    while not wait([answer], max(0.01, last + patience_s - time.monotonic())).done:
        if time.monotonic() - last >= patience_s:
            return Look("silent", f"nothing arrived from it for {patience_s:.0f} s")
    return answer.result()


def _look_typed(source: Source, recorded: SourceIdentity, workers: int, heard: Heard) -> Look:
    try:
        return _ask_source(source, recorded, workers, heard)
    # A source that cannot be asked does not count as changed; the caller decides what to do with local data.
    except (OSError, ColabstageError) as error:
        if isinstance(error, ColabstageError):
            return Look("gone", str(error))
        named = f"'{error.filename}': " if error.filename else ""
        return Look("gone", f"{named}{said_by(error)}.")
    finally:
        heard()


def _ask_source(source: Source, recorded: SourceIdentity, workers: int, heard: Heard) -> Look:
    match source:
        case LocalSource():
            expanded = expand_pattern(source)
            whole = whole_of(expanded)
            # What was fetched was copied as it is; what was staged, as the whole.
            if recorded.kind == "many" and isinstance(whole, ManySource):
                answer = _ask_many(whole.parts, recorded, workers, heard)
            elif isinstance(whole, LocalSource) and whole.pieces and _size_of(whole.pieces) == recorded.nbytes:
                latest = max(piece.stat().st_mtime_ns for piece in whole.pieces)
                seen = "the sizes and times of its parts are unchanged"
                answer = Look("same", seen) if latest == recorded.mtime_ns else Look("unsure")
            elif isinstance(expanded, ManySource):
                answer = _ask_many(expanded.parts, recorded, workers, heard)
            else:
                answer = _ask_disk(source.path, recorded, workers, heard, source.leave_out)
        case WebSource() | ObjectSource():
            answer = _ask_service(source, recorded)
        case ShareSource():
            answer = _ask_shared(source, recorded)
        case KaggleSource():
            answer = _ask_kaggle(source, recorded, workers, heard)
        case ManySource():
            answer = _ask_many(source.parts, recorded, workers, heard)
        case TreeSource():
            answer = Look("unsure")
    return answer


def _size_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _ask_disk(
    place: Path, recorded: SourceIdentity, workers: int, heard: Heard, leave_out: frozenset[str] = frozenset()
) -> Look:
    found = place.stat()
    if recorded.kind in ("archive", "file"):
        # Another length is proof enough, whatever else agrees.
        if not place.is_file() or found.st_size != recorded.nbytes:
            return Look("changed")
        return _ask_file(place, recorded, found.st_mtime_ns)
    if not place.is_dir():
        return Look("changed")
    # Listing everything would take minutes there, so its folders speak for it.
    if is_slow_mount(place) or not recorded.trusts_times:
        return _ask_mounted(place, recorded, workers, heard, leave_out)
    now = identify_by_times(
        FolderTree(place, heard=heard, leave_out=leave_out, keeps_inodes=True), address=recorded.address
    )
    seen = "names, sizes and times of all files are unchanged"
    return Look("same", seen) if compare_states(recorded, now) == "same" else Look("changed")


def _ask_file(place: Path, recorded: SourceIdentity, mtime_ns: int) -> Look:
    seen = "its size and time are unchanged"
    if recorded.md5:
        told = ask_client(place)
        if told.md5:
            return Look("same", MD5_PROOF) if told.md5 == recorded.md5 else Look("changed")
        seen = f"{seen}; {_untold(told.why)}"
    return Look("same", seen) if mtime_ns == recorded.mtime_ns else Look("unsure")


def _ask_mounted(place: Path, recorded: SourceIdentity, workers: int, heard: Heard, leave_out: frozenset[str]) -> Look:
    """Ask for the times of a folder's folders, and where Drive's client told the MD5 of its files, for these."""
    stamps = folder_stamps(place, recorded.stamps, workers=workers, heard=heard) if recorded.stamps else None
    # A remount may give folders new times, so others prove no change.
    if stamps is None or stamps != recorded.stamps:
        return Look("unsure")
    if not recorded.md5:
        seen = "the times of its folders are unchanged; a file rewritten under its name would not be noticed"
        return Look("same", seen)
    with Md5Questions(workers=workers, heard=heard) as questions:
        # Both wait for the client, and its answers are all that is wanted.
        tree = FolderTree(place, workers=workers, heard=heard, found=questions.ask, leave_out=leave_out)
        md5s, why = drive_md5s(tree, questions)
    now = identify_tree(tree, address=recorded.address, md5s=md5s)
    if compare_states(recorded, now) != "same":
        # Of the same files another MD5 is another content. Else a listing may have lacked a part; opening lists again.
        return Look("changed" if md5s and now.listing == recorded.listing else "unsure")
    seen = f"names, sizes and times of all files are unchanged; {_untold(why)}"
    return Look("same", MD5_PROOF if md5s else seen)


def _untold(why: str) -> str:
    return f"Drive's client reports no MD5 to compare: {why}"


def _ask_service(source: WebSource | ObjectSource, recorded: SourceIdentity) -> Look:
    if recorded.kind != "archive":
        seen = "its address; of a list of single files none is asked again, and another would not be noticed"
        return Look("same", seen) if recorded.kind == "file" else Look("unsure")
    # One try: a look is under a deadline, and what is here can be used without it.
    file = open_remote(source, policy=_ONE_TRY)
    try:
        facts = file.facts
    finally:
        file.close()
    if facts.size is not None and facts.size != recorded.nbytes:
        return Look("changed")
    # Where only one of them has a version, the service speaks otherwise than it did: another state, or another server.
    if facts.version or recorded.version:
        same = facts.version == recorded.version
        return Look("same", "its service reports the recorded version") if same else Look("changed")
    if facts.mtime_ns or facts.ranges:
        same = bool(facts.mtime_ns) and facts.mtime_ns == recorded.mtime_ns
        return Look("same", "its size and time are unchanged") if same else Look("unsure")
    # A server that tells neither a version nor a time and gives no parts could only be asked for everything again.
    return Look("same", "its server reports neither a version nor a time, so new content would not be noticed")


def _ask_shared(source: ShareSource, recorded: SourceIdentity) -> Look:
    from colabstage.sources.gdrive import SharedFolder, open_share

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


def _ask_kaggle(source: KaggleSource, recorded: SourceIdentity, workers: int, heard: Heard) -> Look:
    from colabstage.sources.kaggle import find_kaggle_folder, newest_version

    mounted = find_kaggle_folder(source.dataset)
    if mounted is not None and not mounted.version:
        return _ask_disk(mounted.path, recorded, workers, heard)
    if source.dataset.version is not None:
        return Look("same", "a version of a dataset on Kaggle does not change")
    if not recorded.version:
        return Look("silent", "which version was staged is not known")
    newest = newest_version(source.dataset)
    if newest is None:
        return Look("silent", "Kaggle did not tell which version is the newest")
    return Look("same", f"version {newest} is the newest") if recorded.version == newest else Look("changed")


def _ask_many(parts: Sequence[SingleSource], recorded: SourceIdentity, workers: int, heard: Heard) -> Look:
    # Another list is another dataset, in whatever state its parts are.
    if [part.address for part in parts] != [part.address for part in recorded.parts]:
        return Look("changed")
    with DaemonPool(min(_ASKERS, len(parts)), "colabstage-look") as pool:
        pairs = list(zip(parts, recorded.parts, strict=True))
        looks = pool.run(lambda pair: _look_typed(*pair, workers, heard), pairs, stall_timeout_s=float("inf"))
    found = {look.state: look for look in reversed(looks)}
    order: tuple[str, ...] = ("changed", "unsure", "silent", "gone")
    return next((found[state] for state in order if state in found), looks[0])

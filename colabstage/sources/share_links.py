"""Files and folders behind Google Drive links, brought here by gdown: whole, checked, resumed after a kill.

Everything happens in an owned temporary folder inside the caller's. Whoever comes next takes over what a dead process
left there; only a result that is whole gets its own name.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import (
    ChecksumMismatchError,
    OptionError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.io.files import disk_use, hash_block, make_folder
from colabstage.io.progress import Cancellation
from colabstage.io.retry import RetryPolicy
from colabstage.io.temporaries import remove_own, rename_own
from colabstage.io.workspace import open_workspace
from colabstage.machine.resources import check_space
from colabstage.sources.remote import RemoteFacts, TransientError
from colabstage.sources.share_download import (
    FileTask,
    GdownRun,
    StopSignal,
    download_file,
    mismatch_path,
    require_gdown,
)
from colabstage.sources.share_pages import ShareLink, parse_share_link
from colabstage.sources.share_service import IN_FLIGHT, DriveWeb, SharedFile
from colabstage.trees.names import check_collisions, clean_member_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from colabstage.io.progress import Progress
    from colabstage.sources.remote import Checksum

__all__ = ["ShareLink", "download_share_link", "parse_share_link", "share_link_facts"]

_POLICY = RetryPolicy(attempts=4, first_wait_s=1.0)
# How often the calling thread looks at a cancellation while others download.
_LOOK_S = 0.25


def share_link_facts(
    link: ShareLink, *, cancellation: Cancellation | None = None, policy: RetryPolicy = _POLICY
) -> RemoteFacts | None:
    """Return name, size and version of what a link leads to, by one or two small requests.

    Args:
        link: a file or a folder. A folder's `size` is `None`, since only asking for each file would tell it; its
            `version` is another one when files come, go or are renamed, not when one changes in place.
        cancellation: looked at between requests.
        policy: how often a question is asked again.

    Returns:
        `None` where Drive gives no answer that could be used; the download may still succeed.

    Raises:
        OptionError, SourceAccessError, SourceNotFoundError, DriveQuotaError: Drive refuses, and would refuse later.
    """
    with DriveWeb(cancellation=cancellation or Cancellation(), policy=policy) as web:
        try:
            found = web.resolve(link)
            if found.kind == "folder":
                shared = web.list_folder(found)
                listing = "\n".join(f"{file.link.id} {file.name}" for file in shared.files)
                version = hash_block(listing.encode())
                return RemoteFacts(found.label, shared.name, None, version, ranges=False, connections=1)
            return web.facts(found)
        except (TransientError, SourceReadError):
            return None


def download_share_link(
    link: ShareLink,
    folder: Path,
    *,
    progress: Progress,
    cancellation: Cancellation,
    checksum: Checksum | None = None,
    policy: RetryPolicy = _POLICY,
    note: Callable[[str], None] = lambda _: None,
) -> Path:
    """Download a shared file, or a shared folder with everything in it.

    Args:
        link: what to download.
        folder: where it goes, under the name that it has on Drive. A call for the same link continues what an earlier
            one left unfinished there, as long as the files are still the same on Drive.
        progress: shows one step, in bytes.
        cancellation: looked at several times a second.
        checksum: of the file; not possible for a folder.
        policy: how often to try again where nothing comes at all; while bytes come, there is no limit.
        note: told of each document that was left out and each file that was renamed, in one sentence.

    Returns:
        The file or the folder, whole: each file as long as Drive said before.

    Raises:
        MissingDependencyError: gdown is missing, or too old to notice a download that broke off.
        OptionError: the link leads to a Google document, or a folder was given a checksum.
        DriveQuotaError: too many downloads of it, or too many requests from here.
        SourceAccessError, SourceNotFoundError: it is not shared with everyone, or not there.
        WebPageError: a page came in place of the data.
        ChecksumMismatchError, SourceChangedError, SourceReadError: it did not come as it should.
        TargetExistsError: `folder` has something of that name.
        NotEnoughSpaceError: it would not fit; raised before the first byte.
        CancelledError: the caller asked to stop; what came is kept for the next call.
    """
    # Before anything is asked or made: without it there is nothing to do.
    require_gdown()
    make_folder(folder)
    with DriveWeb(cancellation=cancellation, policy=policy) as web:
        call = _Call(folder, web, progress, cancellation, policy)
        found = web.resolve(link)
        if found.kind == "file":
            return _download_one(call, found, checksum)
        if checksum is not None:
            msg = f"'{found.label}' is a folder, and hash= is for one file. Leave it out; each length is checked."
            raise OptionError(msg)
        return _download_folder(call, found, note)


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments that everything below needs."""

    folder: Path
    """The caller's folder."""
    web: DriveWeb
    """Who asks Drive."""
    progress: Progress
    """Where the steps are shown."""
    cancellation: Cancellation
    """What stops the call."""
    policy: RetryPolicy
    """How often is tried again."""


def _download_one(call: _Call, link: ShareLink, checksum: Checksum | None) -> Path:
    facts = call.web.facts(link)
    target = _free_target(call.folder / facts.name, link)
    with _work_folder(call.folder, link) as work:
        task = _task(SharedFile(link, facts.name), facts, work, checksum)
        try:
            _download_all(call, [task], work)
        except ChecksumMismatchError:
            # Out of what the next call would clean away: it may be what was wanted after all.
            aside = mismatch_path(task.target)
            rename_own(aside, call.folder / aside.name)
            raise
        rename_own(task.target, target)
    return target


def _download_folder(call: _Call, link: ShareLink, note: Callable[[str], None]) -> Path:
    shared = call.web.list_folder(link)
    for sentence in shared.notes:
        note(sentence)
    # Drive allows any name; one that leads out of the folder is refused before the first byte.
    names = [clean_member_name(link.label, file.name) for file in shared.files]
    check_collisions(link.label, names, ())
    target = _free_target(call.folder / shared.name, link)
    facts = call.web.map_in_parallel(call.web.facts, [file.link for file in shared.files])
    with _work_folder(call.folder, link) as work:
        tasks = [_task(file, each, work, None) for file, each in zip(shared.files, facts, strict=True)]
        # Files that were removed or renamed on Drive since an interrupted call must not come along.
        wanted = {task.target for task in tasks}
        for path in (work / "files").rglob("*"):
            if path.is_file() and path not in wanted:
                remove_own(path)
        _download_all(call, tasks, work)
        _compare(work / "files", tasks, link)
        rename_own(work / "files", target)
    return target


@contextlib.contextmanager
def _work_folder(folder: Path, link: ShareLink) -> Iterator[Path]:
    """Yield the owned temporary folder of one link: `files/` what is whole, `parts/` what is not.

    Taken over from a dead process where one left it, and kept for the next call when it has bytes.
    """
    with open_workspace(folder / f"drive-{link.id}", keeps=lambda work, _: _holds_bytes(work)) as workspace:
        (workspace.path / "files").mkdir(exist_ok=True)
        yield workspace.path


def _holds_bytes(work: Path) -> bool:
    """Return whether anything was downloaded that the next call could use."""
    return any(path.is_file() and path.name != "facts.json" and path.stat().st_size > 0 for path in work.rglob("*"))


def _task(file: SharedFile, facts: RemoteFacts, work: Path, checksum: Checksum | None) -> FileTask:
    # One file may be in a folder under two names.
    part = f"{file.link.id}.{hash_block(file.name.encode())}"
    return FileTask(file.link, facts, work / "parts" / part, work / "files" / file.name, checksum)


def _free_target(target: Path, link: ShareLink) -> Path:
    # Asked before the download too, not only at its end, hours later.
    if os.path.lexists(target):
        msg = f"'{link.label}' would become '{target}', but that is there already. Remove it, or choose another folder."
        raise TargetExistsError(msg)
    return target


def _download_all(call: _Call, tasks: Sequence[FileTask], work: Path) -> None:
    """Download everything, several files at once; the first that fails stops the others."""
    sizes = [task.facts.size for task in tasks]
    # A size that nobody knows is found to be too much when the disk is full.
    total = sum(size or 0 for size in sizes)
    what = f"'{tasks[0].facts.name}'" if len(tasks) == 1 else f"The folder of {len(tasks)} files"
    check_space(call.folder, total - disk_use(work), what, remedy="Free some space, or choose another folder.")
    stop = StopSignal(call.cancellation)
    known = None if None in sizes else total
    with (
        call.progress.step("Download from Google Drive", total=known, unit="B") as step,
        ThreadPoolExecutor(min(IN_FLIGHT, max(1, len(tasks)))) as pool,
    ):
        run = GdownRun(call.web, step, stop, call.cancellation, call.policy)
        futures = [pool.submit(download_file, task, run) for task in tasks]
        try:
            _await_all(futures)
        # gdown cannot be interrupted, it has to look; the pool waits until it has.
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise


def _await_all(futures: Sequence[Future[None]]) -> None:
    """Wait for all; the first failure ends it. Each of them ends by itself: no wait inside is without a deadline."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()


def _compare(files: Path, tasks: Sequence[FileTask], link: ShareLink) -> None:
    """Check that exactly the listed files are there, each as long as announced."""
    here = {path: path.stat().st_size for path in files.rglob("*") if path.is_file()}
    wrong = [
        task.facts.name
        for task in tasks
        if task.target not in here or (task.facts.size is not None and here[task.target] != task.facts.size)
    ]
    if wrong or len(here) != len(tasks):
        names = ", ".join(wrong[:5])
        msg = f"'{link.label}' lists {len(tasks)} files; {len(here)} came, wrong or missing are: {names or 'none'}."
        raise SourceReadError(msg)

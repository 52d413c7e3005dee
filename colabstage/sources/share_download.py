"""Download files and folders behind Google Drive links completely, with checks, and resume after a kill.

A folder is downloaded into an owned temporary folder inside the caller's. The next call takes over what a dead process
left there; only a complete result gets its final name. A file is only continued with the same version, and its length
is checked.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from colabstage.errors import OptionError, SourceReadError, TargetExistsError, WebPageError
from colabstage.io.files import RetryPolicy, hash_block, make_folder, read_json, typed_write_errors, write_json
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import Cancellation
from colabstage.io.workspace import disk_use, find_orphans, open_workspace, remove_own, rename_own
from colabstage.machine.resources import check_space
from colabstage.sources.arriving import fetch_file
from colabstage.sources.remote import RemoteFacts, TransientError, given_up
from colabstage.sources.share_gdown import fetch_by_gdown, file_facts_by_gdown
from colabstage.sources.share_service import IN_FLIGHT, DriveWeb, open_shared
from colabstage.trees.names import check_collisions, clean_member_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from colabstage.io.progress import Progress, ProgressStep
    from colabstage.sources.remote import Checksum
    from colabstage.sources.share_pages import ShareLink, WebAnswer
    from colabstage.sources.share_service import SharedFile

_POLICY = RetryPolicy(attempts=4, first_wait_s=1.0)
_STEP = "Download from Google Drive"


def share_link_facts(
    link: ShareLink, *, cancellation: Cancellation | None = None, policy: RetryPolicy = _POLICY
) -> RemoteFacts | None:
    """Return name, size and version of a link's target, with one or two small requests.

    Args:
        link: a file or a folder. A folder's `size` is `None`, since only asking for each file would tell it; its
            `version` is another one when files come, go or are renamed, not when one changes in place.
        cancellation: looked at between requests.
        policy: how often a question is asked again.

    Returns:
        `None` if Drive gives no usable answer; the download may still succeed.

    Raises:
        OptionError, SourceAccessError, SourceNotFoundError, DriveQuotaError: Drive refuses, and would also refuse
            later.
    """
    with DriveWeb(cancellation=cancellation or Cancellation(), policy=policy) as web:
        try:
            found = web.resolve(link)
            if found.kind == "folder":
                shared = web.list_folder(found)
                listing = "\n".join(f"{file.link.id} {file.name}" for file in shared.files)
                version = hash_block(listing.encode())
                return RemoteFacts(found.label, shared.name, None, version, ranges=False, connections=1)
            return web.find(found)[0]
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
        OptionError: the link leads to a Google document, or a folder was given a checksum.
        DriveQuotaError: too many downloads of it, or too many requests from here.
        SourceAccessError, SourceNotFoundError: it is not shared with everyone, or not there.
        WebPageError: a web page arrived instead of the data.
        ChecksumMismatchError: it is complete but not the intended file; it is kept beside under another name.
        SourceChangedError, SourceReadError: it changed, or could not be read.
        TargetExistsError: `folder` has something of that name.
        NotEnoughSpaceError: it would not fit; raised before the first byte.
        CancelledError: the caller asked to stop; what came is kept for the next call.
    """
    make_folder(folder)
    with DriveWeb(cancellation=cancellation, policy=policy) as web:
        found = web.resolve(link)
        if found.kind == "folder":
            if checksum is not None:
                msg = f"'{found.label}' is a folder, and hash= is for one file. Leave it out; each length is checked."
                raise OptionError(msg)
            return _download_folder(
                found, folder, web, progress=progress, cancellation=cancellation, policy=policy, note=note
            )
        facts, answer = _find(web, found)
    target = _free_target(folder / facts.name, found)
    kept = sum(map(disk_use, find_orphans(target)))
    check_space(folder, (facts.size or 0) - kept, f"'{facts.name}'")
    with progress.step(_STEP, total=facts.size, unit="B") as step:
        facts = replace(facts, checksum=checksum)
        _fetch(found, facts, answer, target, step=step, cancellation=cancellation, policy=policy)
    return target


def _find(web: DriveWeb, link: ShareLink) -> tuple[RemoteFacts, WebAnswer | None]:
    """Return Drive's facts about a file, and its answer; no answer if only gdown knows the page."""
    try:
        return web.find(link)
    except WebPageError as unknown:
        return file_facts_by_gdown(link, unknown), None


def _free_target(target: Path, link: ShareLink) -> Path:
    # Checked before the download too, not only at its end, hours later.
    if os.path.lexists(target):
        msg = f"'{link.label}' would become '{target}', but that is there already. Remove it, or choose another folder."
        raise TargetExistsError(msg)
    return target


def _fetch(
    link: ShareLink,
    facts: RemoteFacts,
    answer: WebAnswer | None,
    target: Path,
    *,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
) -> None:
    """Download one file to `target`."""
    if answer is None:
        fetch_by_gdown(link, facts, target, step=step, cancellation=cancellation)
        return
    with given_up(), contextlib.closing(open_shared(link, facts, answer)) as file:
        # Otherwise a silent server would delay a cancellation.
        cancellation.follow(file.close)
        try:
            # Google counts requests, so there is one, and one more after each break.
            fetch_file(file, target, step=step, cancellation=cancellation, policy=policy, connections=1)
        except SourceReadError:
            # Closing the connection makes reads fail in many ways.
            cancellation.check()
            # A permanent refusal, such as for too many requests, only ends the tries; Drive gives the reason on
            # request.
            with DriveWeb(cancellation=cancellation, policy=policy) as web, contextlib.suppress(SourceReadError):
                web.find(link)
            raise


def _download_folder(
    link: ShareLink,
    folder: Path,
    web: DriveWeb,
    *,
    progress: Progress,
    cancellation: Cancellation,
    policy: RetryPolicy,
    note: Callable[[str], None],
) -> Path:
    """Download everything in a folder, several files at once; the first that fails stops the others."""
    shared = web.list_folder(link)
    for sentence in shared.notes:
        note(sentence)
    # Drive allows any name; a path outside the folder is refused before the first byte.
    names = [clean_member_name(link.label, file.name) for file in shared.files]
    check_collisions(link.label, names, ())
    target = _free_target(folder / shared.name, link)
    found = web.map_in_parallel(lambda link: _find(web, link), [file.link for file in shared.files])
    sizes = [facts.size for facts, _ in found]
    stopping = Cancellation()
    cancellation.follow(stopping.cancel)
    with _work_folder(folder, link) as work:
        # Files that were removed or renamed on Drive since an interrupted call must not be included.
        wanted = {work / "files" / file.name for file in shared.files}
        for path in (work / "files").rglob("*"):
            if path.is_file() and path not in wanted:
                remove_own(path)
        # An unknown size is only found to be too large when the disk is full.
        total = sum(size or 0 for size in sizes)
        check_space(folder, total - disk_use(work), f"The folder of {len(sizes)} files")

        def bring(file: SharedFile, facts: RemoteFacts, answer: WebAnswer | None) -> None:
            # Its unfinished bytes, perhaps from a dead process. A file may be in a folder under two names.
            part = work / "parts" / f"{file.link.id}.{hash_block(file.name.encode())}"
            whole, place = part / "data", work / "files" / file.name
            known, current = read_json(part / "facts.json"), {"size": facts.size, "version": facts.version}
            # Without a version it is unknown whether the local bytes are still the same.
            if known != current or not facts.version:
                remove_own(part)
                remove_own(place)
            with typed_write_errors(place):
                part.mkdir(parents=True, exist_ok=True)
                write_json(part / "facts.json", current)
                place.parent.mkdir(parents=True, exist_ok=True)
            # A final name is the proof: only complete and checked files have one.
            if here := next((path for path in (place, whole) if path.exists()), None):
                step.advance(here.stat().st_size)
            else:
                _fetch(file.link, facts, answer, whole, step=step, cancellation=stopping, policy=policy)
            if not place.exists():
                rename_own(whole, place)

        with (
            progress.step(_STEP, total=None if None in sizes else total, unit="B") as step,
            ThreadPoolExecutor(min(IN_FLIGHT, max(1, len(sizes)))) as pool,
        ):
            futures = [pool.submit(bring, file, *told) for file, told in zip(shared.files, found, strict=True)]
            try:
                # Each ends by itself: no wait inside is without a deadline.
                DaemonPool.results(futures, stall_timeout_s=float("inf"))
            except BaseException:
                stopping.cancel()
                for future in futures:
                    future.cancel()
                raise
        rename_own(work / "files", target)
    return target


@contextlib.contextmanager
def _work_folder(folder: Path, link: ShareLink) -> Iterator[Path]:
    """Yield the owned temporary folder of one link: `files/` for complete files, `parts/` for others.

    It is taken over from a dead process if there is one, and kept for the next call if it has bytes.
    """

    def holds_bytes(work: Path, _: BaseException) -> bool:
        files = (path for path in work.rglob("*") if path.is_file() and path.name != "facts.json")
        return any(path.stat().st_size > 0 for path in files)

    with open_workspace(folder / f"drive-{link.id}", keeps=holds_bytes) as workspace:
        (workspace.path / "files").mkdir(exist_ok=True)
        yield workspace.path

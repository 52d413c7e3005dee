"""Files and folders behind Google Drive links, brought here by gdown: whole, checked, resumed after a kill.

Everything happens in an owned temporary folder inside the caller's. Whoever comes next takes over what a dead process
left there; only a result that is whole gets its own name. Each file is the right version, continued only onto the same
content, and its length is checked.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from colabstage.errors import (
    ChecksumMismatchError,
    DriveQuotaError,
    MissingDependencyError,
    OptionError,
    SourceChangedError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.io.files import hash_block, make_folder, read_json, write_json
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import Cancellation
from colabstage.io.retry import RetryPolicy, translate_write_error, typed_write_errors
from colabstage.io.workspace import disk_use, open_workspace, remove_own, rename_own
from colabstage.machine.resources import check_space
from colabstage.sources.remote import RemoteFacts, TransientError
from colabstage.sources.share_pages import OWN_COPY, ShareLink, WebAnswer, judge_answer, parse_share_link
from colabstage.sources.share_service import (
    CONNECT_TIMEOUT_S,
    IN_FLIGHT,
    READ_TIMEOUT_S,
    DriveWeb,
    SharedFile,
    short_reason,
)
from colabstage.trees.entries import check_collisions, clean_member_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from colabstage.io.progress import Progress, ProgressStep
    from colabstage.sources.remote import Checksum, Hasher

__all__ = ["ShareLink", "download_share_link", "parse_share_link", "share_link_facts"]

_POLICY = RetryPolicy(attempts=4, first_wait_s=1.0)

# The first release that tries again, and that checks how much came.
_OLDEST = (6, 3)
UPGRADE_LINE = '%pip install -q -U "gdown>=6.3"'
# What gdown does by itself, within one call; whether more tries are due, the bytes that came decide.
_INNER_RETRIES = 2
_OUTPUT = "data"
_HASH_PIECE_BYTES = 4 * 1024 * 1024


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
        call = _Call(folder, web, progress, cancellation, policy, _StopSignal(cancellation))
        found = web.resolve(link)
        if found.kind == "file":
            return _download_one(call, found, checksum)
        if checksum is not None:
            msg = f"'{found.label}' is a folder, and hash= is for one file. Leave it out; each length is checked."
            raise OptionError(msg)
        return _download_folder(call, found, note)


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of one call, which everything below needs."""

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
    stop: _StopSignal
    """What gdown looks at while it waits."""


def _download_one(call: _Call, link: ShareLink, checksum: Checksum | None) -> Path:
    facts = call.web.facts(link)
    target = _free_target(call.folder / facts.name, link)
    with _work_folder(call.folder, link) as work:
        task = _task(SharedFile(link, facts.name), facts, work, checksum)
        try:
            _download_all(call, [task], work)
        except ChecksumMismatchError:
            # Out of what the next call would clean away: it may be what was wanted after all.
            aside = _mismatch_path(task.target)
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
        _check_all_came(work / "files", tasks, link)
        rename_own(work / "files", target)
    return target


@contextlib.contextmanager
def _work_folder(folder: Path, link: ShareLink) -> Iterator[Path]:
    """Yield the owned temporary folder of one link: `files/` what is whole, `parts/` what is not.

    Taken over from a dead process where one left it, and kept for the next call when it has bytes.
    """

    def holds_bytes(work: Path, _: BaseException) -> bool:
        files = (path for path in work.rglob("*") if path.is_file() and path.name != "facts.json")
        return any(path.stat().st_size > 0 for path in files)

    with open_workspace(folder / f"drive-{link.id}", keeps=holds_bytes) as workspace:
        (workspace.path / "files").mkdir(exist_ok=True)
        yield workspace.path


def _task(file: SharedFile, facts: RemoteFacts, work: Path, checksum: Checksum | None) -> _FileTask:
    # One file may be in a folder under two names.
    part = f"{file.link.id}.{hash_block(file.name.encode())}"
    return _FileTask(file.link, facts, work / "parts" / part, work / "files" / file.name, checksum)


def _free_target(target: Path, link: ShareLink) -> Path:
    # Asked before the download too, not only at its end, hours later.
    if os.path.lexists(target):
        msg = f"'{link.label}' would become '{target}', but that is there already. Remove it, or choose another folder."
        raise TargetExistsError(msg)
    return target


def _download_all(call: _Call, tasks: Sequence[_FileTask], work: Path) -> None:
    """Download everything, several files at once; the first that fails stops the others."""
    sizes = [task.facts.size for task in tasks]
    # A size that nobody knows is found to be too much when the disk is full.
    total = sum(size or 0 for size in sizes)
    what = f"'{tasks[0].facts.name}'" if len(tasks) == 1 else f"The folder of {len(tasks)} files"
    check_space(call.folder, total - disk_use(work), what, remedy="Free some space, or choose another folder.")
    known = None if None in sizes else total
    with (
        call.progress.step("Download from Google Drive", total=known, unit="B") as step,
        ThreadPoolExecutor(min(IN_FLIGHT, max(1, len(tasks)))) as pool,
    ):
        futures = [pool.submit(_download_file, task, call, step) for task in tasks]
        try:
            # Each ends by itself: no wait inside is without a deadline.
            DaemonPool.results(futures, stall_timeout_s=float("inf"))
        # gdown cannot be interrupted, it has to look; the pool waits until it has.
        except BaseException:
            call.stop.set()
            for future in futures:
                future.cancel()
            raise


def _check_all_came(files: Path, tasks: Sequence[_FileTask], link: ShareLink) -> None:
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


def gdown_problem(installed: str | None, imported: str | None) -> str | None:
    """Say what is wrong with the gdown that is here, and what to do; `None` when it is fine.

    Args:
        installed: the version that pip installed; `None` when there is none.
        imported: the version that this process has loaded already; `None` when it has not.
    """
    if installed is None and imported is None:
        return f"Google Drive links need the package gdown. Run: {UPGRADE_LINE.replace(' -U', '')}"
    if installed is not None and _version_numbers(installed) < _OLDEST:
        restart = ", then restart the session (Runtime, Restart session)" if imported else ""
        return (
            f"gdown {installed} is installed, which takes a download that broke off for a whole one; 6.3 or newer is "
            f"needed. Run: {UPGRADE_LINE}{restart}, and run this cell again."
        )
    if imported is not None and _version_numbers(imported) < _OLDEST:
        return (
            f"This session has loaded gdown {imported} already, and an upgrade counts only after a restart. Run: "
            f"{UPGRADE_LINE}, then restart the session (Runtime, Restart session) and run this cell again."
        )
    return None


def require_gdown() -> None:
    """Make sure that a gdown is here that checks what it downloads.

    Raises:
        MissingDependencyError: there is none, or an older one; the message has the upgrade line.
    """
    try:
        installed: str | None = metadata.version("gdown")
    except metadata.PackageNotFoundError:
        installed = None
    loaded = sys.modules.get("gdown")
    problem = gdown_problem(installed, None if loaded is None else getattr(loaded, "__version__", "0"))
    if problem:
        raise MissingDependencyError(problem)


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


class _StopSignal(threading.Event):
    """What gdown looks at while it waits: set by the caller's cancellation, or by a failure elsewhere."""

    def __init__(self, cancellation: Cancellation) -> None:
        super().__init__()
        self._cancellation = cancellation

    def is_set(self) -> bool:
        """Return whether to stop."""
        return self._cancellation.cancelled or super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = 0.1 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            super().wait(min(0.1, left))
        return True


@dataclass(frozen=True, slots=True)
class _FileTask:
    """One file to download."""

    link: ShareLink
    """The link to it."""
    facts: RemoteFacts
    """What Drive said about it."""
    folder: Path
    """Where its unfinished bytes and their facts lie; may hold those of a process that died."""
    target: Path
    """Where it goes once it is whole; on the same disk."""
    checksum: Checksum | None = None
    """The hash of the whole file; `None` where nobody gave one."""


def _download_file(task: _FileTask, call: _Call, step: ProgressStep) -> None:
    """Bring one file to `task.target`, continuing where an earlier process stopped if the file is still the same.

    Raises:
        CancelledError: the caller asked to stop; what came is kept in `task.folder`.
        ChecksumMismatchError: it is whole but not the file that was meant; kept beside the target as `NAME.mismatch`.
        SourceChangedError: it became another file meanwhile.
        DriveQuotaError, SourceAccessError, SourceNotFoundError, SourceReadError: Drive's side failed for good.
        NotEnoughSpaceError, TargetNotWritableError: this side failed.
    """
    known = read_json(task.folder / "facts.json")
    current = {"size": task.facts.size, "version": task.facts.version}
    if task.target.exists() and known == current:
        step.advance(task.target.stat().st_size)
        return
    if known != current or not task.facts.version:
        # Without a version nobody can say that the rest would fit what is here.
        remove_own(task.folder)
        remove_own(task.target)
    with typed_write_errors(task.target):
        task.folder.mkdir(parents=True, exist_ok=True)
        write_json(task.folder / "facts.json", current)
        task.target.parent.mkdir(parents=True, exist_ok=True)
    # The name is the proof: under it there is only what is whole and checked.
    _try_until_whole(task, call, step)
    rename_own(task.folder / _OUTPUT, task.target)


def _try_until_whole(task: _FileTask, call: _Call, step: ProgressStep) -> None:
    """Call gdown until the file is whole. Tries count only while nothing comes: Drive cuts off every hour or so."""
    # Drive cuts off a long download again and again: that is no reason to give up while it grows.
    tries = 0
    shown = _Shown(step)
    while True:
        before = _partial_bytes(task.folder)
        try:
            if _already_whole(task):
                shown.reached(task.facts.size or 0)
                _check_whole(task, None)
            else:
                hasher = task.checksum.new_hasher() if task.checksum else None
                _call_gdown(task, call, shown, hasher)
                _check_whole(task, hasher)
            return
        except TransientError as error:
            call.cancellation.check()
            tries = 1 if _partial_bytes(task.folder) > before else tries + 1
            if tries >= call.policy.attempts:
                msg = (
                    f"{error} Given up after {tries} tries without progress; what has arrived is kept for the next run."
                )
                raise SourceReadError(msg) from error
        call.cancellation.sleep(call.policy.first_wait_s * 2 ** (tries - 1))


class _Shown:
    """How far the progress step has been told; a download that starts over does not count twice."""

    def __init__(self, step: ProgressStep) -> None:
        self._step = step
        self._so_far = 0

    def reached(self, so_far: int) -> None:
        # gdown tells where it stands, which falls back when it starts over.
        if so_far > self._so_far:
            self._step.advance(so_far - self._so_far)
            self._so_far = so_far


def _partials(folder: Path) -> list[Path]:
    """Return gdown's unfinished files."""
    return sorted(folder.glob(f"{_OUTPUT}*.part"))


def _partial_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in _partials(folder))


def _already_whole(task: _FileTask) -> bool:
    """Return whether all bytes are here: gdown would ask for the rest of nothing, and fail on the answer."""
    output = task.folder / _OUTPUT
    if output.exists():
        return True
    partials = _partials(task.folder)
    # It died between the last byte and the rename.
    if len(partials) == 1 and partials[0].stat().st_size == task.facts.size:
        rename_own(partials[0], output)
        return True
    # gdown picks up one of several as it likes, and none of them can be longer than the file.
    if len(partials) > 1 or (
        partials and task.facts.size is not None and _partial_bytes(task.folder) > task.facts.size
    ):
        for path in partials:
            remove_own(path)
    return False


def _call_gdown(task: _FileTask, call: _Call, shown: _Shown, hasher: Hasher | None) -> None:
    import gdown
    import requests

    def told(so_far: int, total: int | None) -> None:
        if total is not None and task.facts.size is not None and total != task.facts.size:
            # It would be resumed onto another content.
            raise _changed_on_drive(task)
        shown.reached(so_far)

    feed: Any = hasher
    # Of any other address gdown keeps the id alone, so a resource key travels inside the id.
    key = f"%26resourcekey%3D{task.link.resource_key}" if task.link.resource_key else ""
    try:
        gdown.download(
            url=f"https://drive.google.com/uc?id={task.link.id}{key}",
            output=str(task.folder / _OUTPUT),
            quiet=True,
            # Cookies of a login would have to be in a file that several downloads rewrite at once.
            use_cookies=False,
            resume=True,
            progress=told,
            hasher=feed,
            timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
            retries=_INNER_RETRIES,
            cancel=call.stop,
        )
    except gdown.DownloadCancelled:
        call.cancellation.check()
        msg = f"Downloading '{task.link.label}' was stopped because another file of the folder failed."
        raise SourceReadError(msg) from None
    except gdown.FileURLRetrievalError as error:
        raise _refused(task, call, error) from error
    except gdown.DownloadError as error:
        raise _broken_off(task, call, error) from error
    except requests.HTTPError as error:
        status, url = error.response.status_code, error.response.url
        msg = f"Downloading '{task.link.label}' failed with status {status}."
        problem = judge_answer(task.link.label, WebAnswer(status, url, error.response.headers))
        raise (problem or SourceReadError(msg)) from error
    except requests.RequestException as error:
        msg = f"Downloading '{task.link.label}' failed: {short_reason(error)}."
        raise TransientError(msg) from error
    except SourceChangedError:
        raise
    except OSError as error:
        raise translate_write_error(error, task.target) from error


def _refused(task: _FileTask, call: _Call, error: Exception) -> Exception:
    """Return what a page in place of the file means: gdown has one text for all, so Drive is asked once more."""
    _ask_again(task, call)
    if "too many users" in str(error).lower():
        return DriveQuotaError(
            f"Google Drive does not hand out '{task.link.label}' for now: too many users have viewed or downloaded it. "
            f"{OWN_COPY}"
        )
    return TransientError(f"Google Drive gave a page in place of '{task.link.label}' ('{task.facts.name}').")


def _broken_off(task: _FileTask, call: _Call, error: Exception) -> Exception:
    if "byte range" not in str(error):
        return TransientError(f"Downloading '{task.link.label}' ('{task.facts.name}') broke off.")
    # A file that was replaced meanwhile answers the same way.
    _ask_again(task, call)
    # The other side does not give parts, so only a download from the beginning can succeed.
    for path in _partials(task.folder):
        remove_own(path)
    return TransientError(f"'{task.link.label}' ('{task.facts.name}') could not be resumed where it broke off.")


def _ask_again(task: _FileTask, call: _Call) -> None:
    """Raise what is wrong with a file, as Drive says now."""
    facts = call.web.facts(task.link)  # raises what it finds
    if (facts.size, facts.version) != (task.facts.size, task.facts.version):
        raise _changed_on_drive(task)


def _changed_on_drive(task: _FileTask) -> SourceChangedError:
    return SourceChangedError(
        f"'{task.link.label}' ('{task.facts.name}') became another file while it was downloaded. Run again to get the "
        "new one."
    )


def _check_whole(task: _FileTask, hasher: Hasher | None) -> None:
    """Compare length and hash of what came with what was announced and asked for."""
    output = task.folder / _OUTPUT
    size = output.stat().st_size
    if task.facts.size is not None and size != task.facts.size:
        # Nothing says which of its bytes are right, so the next try starts over.
        remove_own(output)
        msg = f"'{task.link.label}' ('{task.facts.name}') came with {size:,} bytes; expected {task.facts.size:,}."
        raise TransientError(msg)
    if task.checksum is None:
        return
    # It was whole before this call, so its bytes have passed nobody who could hash them.
    if hasher is None:
        hasher = task.checksum.new_hasher()
        with output.open("rb") as file:
            while piece := file.read(_HASH_PIECE_BYTES):
                hasher.update(piece)
    found = hasher.hexdigest()
    if found == task.checksum.digest:
        return
    aside = _mismatch_path(task.target)
    rename_own(output, aside)
    msg = (
        f"'{task.link.label}' ('{task.facts.name}') has the checksum {task.checksum.algorithm}:{found}; expected "
        f"{task.checksum}. If that was mistyped, correct hash=…; otherwise the shared file is not the one you want. "
        f"What came is kept as '{aside.name}'."
    )
    raise ChecksumMismatchError(msg)


def _mismatch_path(target: Path) -> Path:
    """Return where a whole file with the wrong checksum is kept."""
    return target.with_name(f"{target.name}.mismatch")

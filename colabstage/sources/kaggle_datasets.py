"""Read Kaggle's datasets where they are mounted, or download them with kagglehub in a watched process.

kagglehub waits for a mount without a deadline, and a waiting thread cannot be ended, so it runs in its own process. It
downloads to an owned temporary folder inside the caller's, from where the extracted tree is renamed: nothing is on the
disk twice, except that kagglehub itself keeps the archive until it is extracted. If the user has chosen kagglehub's
cache with `KAGGLEHUB_CACHE`, or the dataset is in it already, it stays there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from colabstage.errors import (
    ColabstageError,
    MissingDependencyError,
    NotEnoughSpaceError,
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.io.environment import require_online
from colabstage.io.files import RetryPolicy, make_folder
from colabstage.io.redaction import hide_secrets, show_address
from colabstage.io.workspace import disk_use, open_workspace, rename_own
from colabstage.machine.platforms import detect_platform, system_root
from colabstage.sources.remote import TransientError
from colabstage.sources.share_pages import page_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from colabstage.io.progress import Cancellation, Progress, ProgressStep

_POLICY = RetryPolicy(attempts=4, first_wait_s=1.0)
_SLUG = r"[A-Za-z0-9][-_A-Za-z0-9]*"
_HANDLE = re.compile(rf"({_SLUG})/({_SLUG})(?:/versions/([1-9]\d*))?/?")
_HOSTS = frozenset({"kaggle.com", "www.kaggle.com"})
# Tabs of a dataset's page that are part of the address people copy.
_TABS = re.compile(r"/(?:data|code|discussion|metadata|settings|suggestions|versions)?/?\Z")
_PASSING_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_PASSING_KINDS = frozenset(
    {"ConnectionError", "Timeout", "ChunkedEncodingError", "DataCorruptionError", "IncompleteRead"}
)
_ACCESS_KINDS = frozenset({"UnauthenticatedError", "CredentialError"})
_LOOK_S = 0.1
# How long to wait for the number of the newest version before it counts as unknown.
_NEWEST_S = 15.0


@dataclass(frozen=True, slots=True)
class KaggleDataset:
    """A dataset on Kaggle."""

    owner: str
    """Its owner."""
    name: str
    """Its name in the address."""
    version: int | None = None
    """The version's number; `None` for the newest."""

    @property
    def handle(self) -> str:
        """Return its name in kagglehub's form: `owner/name`, with `/versions/N` for a certain version."""
        return f"{self.owner}/{self.name}" + (f"/versions/{self.version}" if self.version else "")

    @property
    def label(self) -> str:
        """Return its name for messages."""
        return f"kaggle://{self.handle}"

    @property
    def page(self) -> str:
        """Return the web page on which its licence is accepted."""
        return f"https://www.kaggle.com/datasets/{self.owner}/{self.name}"


@dataclass(frozen=True, slots=True)
class KaggleFiles:
    """A dataset that can be read now."""

    path: Path
    """The folder that holds it."""
    notes: tuple[str, ...] = ()
    """How it got there, in sentences."""
    version: str = ""
    """Its version's number; "" if unknown."""


def parse_kaggle(text: str) -> KaggleDataset | None:
    """Read `kaggle://owner/dataset`, with `/versions/N` for a certain version, or the address of a dataset's page.

    Returns:
        `None` for anything that is not Kaggle's.

    Raises:
        OptionError: it is Kaggle's, but not a dataset.

    >>> parse_kaggle("kaggle://zalando-research/fashionmnist/versions/4").version
    4
    """
    cleaned = text.strip().strip("<>\"'")
    if cleaned.startswith("kaggle://"):
        match = _HANDLE.fullmatch(cleaned.removeprefix("kaggle://"))
    else:
        path = _page_path(cleaned)
        if path is None:
            return None
        match = _HANDLE.fullmatch(path)
    if match is None:
        msg = (
            f"'{show_address(cleaned)}' is not a dataset on Kaggle. Expected kaggle://owner/dataset, "
            "kaggle://owner/dataset/versions/N "
            "or https://www.kaggle.com/datasets/owner/dataset. Download a competition's or a model's files with "
            "kagglehub itself and stage their folder."
        )
        raise OptionError(msg)
    return KaggleDataset(match[1], match[2], int(match[3]) if match[3] else None)


def _page_path(text: str) -> str | None:
    """Return `owner/dataset…` from a page's address; "" for another page of Kaggle's, `None` for any other address."""
    parts = page_address(text, _HOSTS)
    if parts is None or not parts.path.startswith("/datasets/"):
        return None if parts is None else ""
    found = parts.path.removeprefix("/datasets/")
    version = urllib.parse.parse_qs(parts.query).get("datasetVersionNumber", [""])[0]
    if re.fullmatch(rf"{_SLUG}/{_SLUG}/versions/\d+/?", found) is None:
        found = _TABS.sub("", found)
    return f"{found}/versions/{version}" if version else found


def open_kaggle(
    dataset: KaggleDataset,
    folder: Path,
    *,
    progress: Progress,
    cancellation: Cancellation,
    stall_timeout_s: float = 180.0,
    policy: RetryPolicy = _POLICY,
) -> KaggleFiles:
    """Make a dataset's files available in the fastest way: where they are mounted, otherwise with kagglehub.

    Args:
        dataset: which one.
        folder: where the files go if they have to be downloaded, under the dataset's name. A call for the same dataset
            continues what an earlier one left unfinished there. On the disk at the peak: the archive and the tree.
        progress: shows one step, in bytes on the disk; Kaggle does not report the total.
        cancellation: looked at several times a second.
        stall_timeout_s: seconds in which something has to happen: bytes arrive, files are extracted, a mount appears.
        policy: how often to try again if nothing arrives at all.

    Raises:
        MissingDependencyError: kagglehub is not installed; the message has the install line.
        SourceAccessError: a token is missing, or the licence was not accepted; the message has the page.
        SourceNotFoundError: there is no such dataset or version.
        SourceReadError: the download failed, or nothing happened for `stall_timeout_s` seconds.
        TargetExistsError: `folder` has something of that name.
        NotEnoughSpaceError: the disk is full.
        CancelledError: the caller asked to stop; downloaded data is kept for the next call.
    """
    # Nothing is faster than a mount, and it needs no login.
    mounted = mounted_files(dataset, os.environ)
    if mounted is not None:
        return mounted
    require_online(dataset.label)
    if find_spec("kagglehub") is None:
        msg = f"'{dataset.label}' needs the package kagglehub. Run: %pip install -q kagglehub"
        raise MissingDependencyError(msg)
    target = folder / dataset.name
    if os.path.lexists(target):
        msg = f"'{dataset.label}' would become '{target}', which is there already. Remove it, or choose another folder."
        raise TargetExistsError(msg)
    make_folder(folder)
    lasting = folder / f"kaggle-{dataset.owner}-{dataset.name}"
    # An empty workspace would only make the next call try to continue it.
    with open_workspace(lasting, keeps=lambda work, _: disk_use(work / "cache") > 0) as workspace:
        work = workspace.path
        # If the user has a cache of datasets, this one is kept there too, once for all programs.
        theirs = kagglehub_cache(dataset, os.environ)
        cache = theirs or work / "cache"
        with progress.step("Download from Kaggle", total=None, unit="B") as step:
            watch = _DownloadWatch(cache / "datasets" / dataset.owner / dataset.name, step, stall_timeout_s)
            path = _download(
                dataset, cache, log=work / "log.txt", watch=watch, cancellation=cancellation, policy=policy
            )
        # kagglehub regards an empty upload as complete.
        if not any(path.iterdir()):
            msg = f"'{dataset.label}' is empty at '{path}'. Look at {dataset.page}: was it uploaded completely?"
            raise SourceReadError(msg)
        # kagglehub may mount a dataset elsewhere instead of downloading it to the given folder.
        if work not in path.parents:
            where = "in kagglehub's own cache" if theirs and theirs in path.parents else "where it is mounted"
            note = f"Kaggle's files are read {where}: '{path}'."
            return KaggleFiles(path, notes=(note,), version=_version_of(path))
        rename_own(path, target)
    return KaggleFiles(target, version=_version_of(path))


def _version_of(path: Path) -> str:
    """Return the version in a path of kagglehub's cache."""
    return path.name if path.parent.name == "versions" and path.name.isdigit() else ""


def newest_version(dataset: KaggleDataset) -> str | None:
    """Ask Kaggle for the number of a dataset's newest version; `None` if it does not answer."""
    if find_spec("kagglehub") is None:
        return None
    environ = {**_worker_environment(Path(os.devnull)), "PYTHONWARNINGS": "ignore"}
    # Kaggle has to be asked; the cache must not answer.
    environ.pop("KAGGLEHUB_CACHE")
    with _start_worker(["--newest", f"{dataset.owner}/{dataset.name}"], environ, subprocess.DEVNULL) as process:
        try:
            process.wait(_NEWEST_S)
            answer = json.loads(process.stdout.read() if process.stdout else b"")
        except (subprocess.TimeoutExpired, ValueError):
            return None
        # It may hang in a connection for longer than anybody would wait.
        finally:
            process.kill()
    version = answer.get("version") if isinstance(answer, dict) else None
    return None if version is None else str(version)


def mounted_files(dataset: KaggleDataset, environ: Mapping[str, str]) -> KaggleFiles | None:
    """Return the dataset's read-only mount in Kaggle's notebooks or Colab's cache; `None` without one.

    A certain version is never read from a mount, whose version is unknown; kagglehub can request it.
    """
    if dataset.version is not None:
        return None
    named = environ.get("KAGGLE_CACHE_MOUNT_FOLDER") or environ.get("COLAB_CACHE_MOUNT_FOLDER")
    inputs = Path(named) if named else system_root(environ) / "kaggle" / "input"
    exact = inputs / "datasets" / dataset.owner / dataset.name
    if _is_filled(exact):
        return KaggleFiles(exact, notes=(f"Kaggle's files are read where they are mounted: '{exact}'.",))
    by_name = inputs / dataset.name
    # On Colab such a folder may be any version, mounted for an earlier request of that one.
    if detect_platform(environ=environ).name != "kaggle" or not _is_filled(by_name):
        return None
    note = f"Kaggle's files are read where they are mounted: '{by_name}' (a path that does not tell their owner)."
    return KaggleFiles(by_name, notes=(note,))


def _is_filled(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(folder.iterdir())
    return False


def kagglehub_cache(dataset: KaggleDataset, environ: Mapping[str, str]) -> Path | None:
    """Return kagglehub's own cache if the dataset belongs there or is there already; otherwise `None`."""
    chosen = environ.get("KAGGLEHUB_CACHE")
    if chosen:
        return Path(chosen)
    cache = Path(environ.get("HOME") or Path.home()) / ".cache" / "kagglehub"
    wanted = str(dataset.version) if dataset.version else "*"
    # kagglehub's marker that everything is extracted.
    found = any((cache / "datasets" / dataset.owner / dataset.name).glob(f"{wanted}.complete"))
    return cache if found else None


class _DownloadWatch:
    """Watch a download grow on the disk: show it, and notice when nothing has changed for too long."""

    def __init__(self, folder: Path, step: ProgressStep, stall_timeout_s: float) -> None:
        self._folder = folder
        self._step = step
        self._stall_timeout_s = stall_timeout_s
        self.bytes = disk_use(folder)
        self._shown = 0
        self.begin()

    def begin(self) -> None:
        """Count the time from now."""
        self._changed_at = self._next_look = time.monotonic()

    def look(self) -> bool:
        """Measure, unless that was done a moment ago; return whether nothing has changed for too long."""
        now = time.monotonic()
        if now >= self._next_look:
            self.measure()
            # Measuring many files takes long; at most a tenth of the time goes into it.
            self._next_look = time.monotonic() + max(0.5, 10 * (time.monotonic() - now))
        return now - self._changed_at > self._stall_timeout_s

    def measure(self) -> int:
        """Return the bytes on the disk now."""
        used = disk_use(self._folder)
        if used != self.bytes:
            self.bytes = used
            self._changed_at = time.monotonic()
            # Extracting removes archives, so the use of the disk may shrink, but the shown progress must not.
            self._step.advance(max(0, used - self._shown))
            self._shown = max(self._shown, used)
        return used


def _worker_environment(cache: Path) -> dict[str, str]:
    environ = {**os.environ, **_credentials(), "KAGGLEHUB_CACHE": str(cache), "TQDM_DISABLE": "1"}
    # So that it finds the same modules as this session, however they got on the path.
    environ["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
    return environ


def _start_worker(arguments: list[str], environ: Mapping[str, str], errors: IO[bytes] | int) -> subprocess.Popen[bytes]:
    # -P: modules in the current folder must not be imported.
    command = [sys.executable, "-P", "-m", "colabstage.sources.kaggle_worker", *arguments]
    return subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
    )


def _download(
    dataset: KaggleDataset,
    cache: Path,
    *,
    log: Path,
    watch: _DownloadWatch,
    cancellation: Cancellation,
    policy: RetryPolicy,
) -> Path:
    """Run kagglehub until it succeeds; tries only count while nothing arrives."""
    environ = _worker_environment(cache)
    tries = 0
    while True:
        before = watch.measure()
        answer = _run_worker(dataset, environ, log, watch, cancellation)
        if "path" in answer:
            return Path(answer["path"])
        problem = judge_failure(dataset, answer)
        if not isinstance(problem, TransientError):
            raise problem
        # As long as something arrives, each failure counts as the first.
        tries = 1 if watch.measure() > before else tries + 1
        if tries >= policy.attempts:
            msg = f"{problem} Given up after {tries} tries without progress; what has arrived is kept for the next run."
            raise SourceReadError(msg)
        cancellation.sleep(policy.first_wait_s * 2 ** (tries - 1))


def _run_worker(
    dataset: KaggleDataset, environ: Mapping[str, str], log: Path, watch: _DownloadWatch, cancellation: Cancellation
) -> dict[str, Any]:
    """Run kagglehub once; return its answer."""
    watch.begin()
    with log.open("wb") as errors, _start_worker([dataset.handle], environ, errors) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
                    break
                cancellation.check()
                # A mount that never appears can only be told from a slow one by the time.
                if watch.look():
                    raise _stalled(dataset, log)
        finally:
            process.kill()
        output = process.stdout.read() if process.stdout else b""
    try:
        # A killed or crashed process leaves no answer, or half of one.
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        last = hide_secrets("\n".join(log.read_text("utf-8", "replace").splitlines()[-3:]), credentials_in(environ))
        return {"kinds": [], "message": f"its process ended with status {process.returncode}: {last}"}
    if "message" in answer:
        answer["message"] = hide_secrets(answer["message"], credentials_in(environ))
    return answer


def _stalled(dataset: KaggleDataset, log: Path) -> SourceReadError:
    if "Mounting files to" in log.read_text("utf-8", "replace"):
        return SourceReadError(
            f"Kaggle promised to mount '{dataset.label}', but the mount does not appear. Set the environment variable "
            "DISABLE_COLAB_CACHE=1 (on Kaggle: DISABLE_KAGGLE_CACHE=1) and run again, and it is downloaded instead; or "
            "restart the session."
        )
    return SourceReadError(
        f"No more of '{dataset.label}' arrived from Kaggle. Run again to continue where it stopped; if it happens "
        "again, check whether https://www.kaggle.com can be reached from here."
    )


def judge_failure(dataset: KaggleDataset, answer: Mapping[str, Any]) -> ColabstageError:
    """Return the error for kagglehub's failure; a `TransientError` if another try may succeed.

    Args:
        dataset: which one was asked for.
        answer: `kinds`, the names of the exception's classes; `message`; `status` of the web answer; `errno`.
    """
    # By names of classes, because the exceptions are in another process, and may be another version's.
    kinds = set(answer.get("kinds", ()))
    status = answer.get("status")
    message = " ".join(str(answer.get("message", "")).split())[:400]
    if status in (401, 403) or kinds & _ACCESS_KINDS:
        return SourceAccessError(
            f"Kaggle refuses '{dataset.label}'. Open {dataset.page} while logged in, see whether the name is right and "
            "accept the licence or rules it asks for. If it is private, create a token (your picture, Settings, API) "
            "and set KAGGLE_API_TOKEN in the environment or in Colab's secrets."
        )
    if status == 404 or "NotFoundError" in kinds:
        return SourceNotFoundError(
            f"Kaggle has no '{dataset.label}'. Compare the name and the version with {dataset.page}."
        )
    if answer.get("errno") in (errno.ENOSPC, errno.EDQUOT):
        return NotEnoughSpaceError(
            f"The disk is full while '{dataset.label}' is downloaded: kagglehub needs room for the archive and for "
            "what is in it. Free some space, or choose another folder."
        )
    if status in _PASSING_STATUS or kinds & _PASSING_KINDS:
        return TransientError(f"Downloading '{dataset.label}' failed: {message}.")
    return SourceReadError(f"kagglehub could not download '{dataset.label}': {message}.")


def credentials_in(environ: Mapping[str, str]) -> list[str]:
    """Return the credentials in an environment; they must not appear in kagglehub's messages."""
    names = ("KAGGLE_KEY", "KAGGLE_API_TOKEN", "KAGGLE_USER_SECRETS_TOKEN", "KAGGLE_DATA_PROXY_TOKEN")
    return [environ[name] for name in names if environ.get(name)]


def _credentials() -> dict[str, str]:
    """Return credentials that another process could not find: from `kagglehub.login()`, and Colab's secrets."""
    if "kagglehub" not in sys.modules and "google.colab" not in sys.modules:
        return {}
    from kagglehub.config import get_kaggle_credentials

    try:
        found = get_kaggle_credentials()
    except ValueError:  # a broken kaggle.json; kagglehub itself will say so
        return {}
    if found is None:
        return {}
    named = {"KAGGLE_USERNAME": found.username, "KAGGLE_KEY": found.key, "KAGGLE_API_TOKEN": found.api_key}
    return {name: value for name, value in named.items() if value}

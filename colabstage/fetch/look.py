"""A quick look at a source: whether it is still the recorded one, by a few questions and under a deadline."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import TYPE_CHECKING, Literal

from colabstage.errors import ColabstageError
from colabstage.fetch.globbing import expand_pattern
from colabstage.fetch.sources import (
    KaggleSource,
    LocalSource,
    ManySource,
    ObjectSource,
    ShareSource,
    Source,
    TreeSource,
    WebSource,
)
from colabstage.retry import RetryPolicy
from colabstage.trees.folder import folder_stamps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.fetch.identity import SourceIdentity
    from colabstage.fetch.remote import RemoteFile
    from colabstage.fetch.sources import SingleSource

# A mount or a service that does not answer in this time is treated as absent.
_LOOK_TIMEOUT_S = 20.0
# How many parts of a list are asked at once.
_ASKERS = 16

# Who is not there now counts as absent; nobody waits for that.
_ONE_TRY = RetryPolicy(attempts=1)

Look = Literal["same", "unsure", "changed", "gone"]


def look_quickly(source: Source, recorded: SourceIdentity, *, workers: int) -> Look:
    """Compare a source with its record by a few calls, under a deadline.

    Files that are a dataset only together, and what Kaggle's own tool brought here, are not asked again.

    Returns:
        `"same"`: an archive's size and time or version, or the times of all folders, are the recorded ones.
        `"changed"`: it certainly differs. `"unsure"`: only opening it can tell. `"gone"`: nothing answers there.
    """
    answers: list[Look] = []

    def look() -> None:
        answers.append(_look(source, recorded, workers))

    # A dead mount may never answer; a thread can be left behind, a blocked call cannot be interrupted.
    thread = threading.Thread(target=look, name="colabstage-look", daemon=True)
    thread.start()
    thread.join(_LOOK_TIMEOUT_S)
    return answers[0] if answers else "gone"


def _look(source: Source, recorded: SourceIdentity, workers: int) -> Look:
    try:
        return _ask(source, recorded, workers)
    except (OSError, ColabstageError):
        return "gone"


def _ask(source: Source, recorded: SourceIdentity, workers: int) -> Look:
    answer: Look = "unsure"
    match source:
        case LocalSource():
            expanded = expand_pattern(source)
            parts = expanded.parts if isinstance(expanded, ManySource) else ()
            answer = _ask_many(parts, recorded, workers) if parts else _ask_disk(source.path, recorded, workers)
        case WebSource() | ObjectSource():
            answer = _ask_service(source, recorded)
        case ShareSource():
            answer = _ask_shared(source, recorded)
        case KaggleSource():
            answer = _ask_kaggle(source, recorded, workers)
        case ManySource():
            answer = _ask_many(source.parts, recorded, workers)
        case TreeSource():
            pass
    return answer


def _ask_disk(place: Path, recorded: SourceIdentity, workers: int) -> Look:
    found = place.stat()
    if recorded.kind in ("archive", "file"):
        if not place.is_file() or found.st_size != recorded.nbytes:
            return "changed"
        return "same" if found.st_mtime_ns == recorded.mtime_ns else "unsure"
    if not place.is_dir():
        return "changed"
    if not recorded.stamps:
        return "unsure"
    stamps = folder_stamps(place, recorded.stamps, workers=workers)
    return "same" if stamps == recorded.stamps else "unsure"


def _ask_service(source: WebSource | ObjectSource, recorded: SourceIdentity) -> Look:
    if recorded.kind == "file":
        return "same"
    if recorded.kind != "archive":
        return "unsure"
    file = open_remote(source, policy=_ONE_TRY)
    try:
        facts = file.facts
    finally:
        file.close()
    if (facts.size or 0) != recorded.nbytes:
        return "changed"
    if facts.version or recorded.version:
        return "same" if facts.version == recorded.version else "changed"
    if facts.ranges and not facts.mtime_ns:
        return "unsure"
    # A server that tells neither a version nor a time and gives no parts could only be asked for everything again.
    return "same" if facts.mtime_ns == recorded.mtime_ns else "unsure"


def _ask_shared(source: ShareSource, recorded: SourceIdentity) -> Look:
    from colabstage.fetch.shared.link import share_link_facts

    facts = share_link_facts(source.link, policy=_ONE_TRY)
    if facts is None:
        return "gone"
    return "same" if facts.version == recorded.version else "changed"


def _ask_kaggle(source: KaggleSource, recorded: SourceIdentity, workers: int) -> Look:
    from colabstage.fetch.kaggle.dataset import mounted_files

    mounted = mounted_files(source.dataset, os.environ)
    return "same" if mounted is None else _ask_disk(mounted.path, recorded, workers)


def open_remote(source: WebSource | ObjectSource, *, policy: RetryPolicy | None = None) -> RemoteFile:
    """One file at an address; asks the service for its facts.

    Raises:
        As `open_http` and `open_object`.
    """
    if isinstance(source, WebSource):
        from colabstage.fetch.web.http import open_http

        return open_http(source.url, policy=policy)
    from colabstage.fetch.objects.open import open_object

    return open_object(source.url)


def _ask_many(parts: Sequence[SingleSource], recorded: SourceIdentity, workers: int) -> Look:
    if [part.address for part in parts] != [part.address for part in recorded.parts]:
        return "changed"
    with ThreadPoolExecutor(min(_ASKERS, len(parts)), thread_name_prefix="colabstage-look") as pool:
        looks = set(pool.map(_look, parts, recorded.parts, repeat(workers)))
    order: tuple[Look, ...] = ("changed", "unsure", "gone")
    return next((look for look in order if look in looks), "same")

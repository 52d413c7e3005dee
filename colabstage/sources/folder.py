"""A whole folder to its place: fetched beside, noted piece by piece, then put there in one step.

`.colabstage-NAME.OWNER.tmp/` holds `files`, and `ledger`: a line that says what is being fetched, then one for each
piece that is whole, with its hash. Who takes over what a dead process left hashes what the ledger names, keeps what
agrees, and reads only the rest.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import CancelledError, DriveError, SourceError, TargetExistsError
from colabstage.io.files import Closing, hash_ranges
from colabstage.io.ownership import put_folder
from colabstage.io.retry import typed_write_errors
from colabstage.io.temporaries import find_orphans, remove_own
from colabstage.io.workspace import Journal, only_for, open_workspace, read_journal
from colabstage.sources.tree import fetch_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.pipeline import PipelineLimits
    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.io.retry import RetryPolicy
    from colabstage.trees.tree import Tree

_FILES = "files"
_LEDGER = "ledger"
_FORMAT = 1
# Hashing what is in the system's cache needs a core, reading from a disk needs two requests in flight.
_HASH_THREADS = 2

_Span = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class FetchedFolder:
    """What was fetched."""

    files: int
    """How many files."""
    nbytes: int
    """Their bytes together."""
    kept_bytes: int
    """Of these, what an interrupted run had brought before."""
    deed: str
    """The name of the deed of what was put in place, as `ownership.look_at` finds it."""


class FolderLedger(Closing):
    """What of a folder is here. `kept_bytes`: what was found here and is right."""

    def __init__(self, workspace: Path, fingerprint: str) -> None:
        """Open the ledger of a workspace, which exists; whatever it knows of is hashed."""
        self._files = workspace / _FILES
        path = workspace / _LEDGER
        recorded = read_ledger(path, fingerprint) or {}
        with typed_write_errors(path):
            # What no ledger names cannot be told from half a file.
            if not recorded:
                remove_own(self._files)
            self._files.mkdir(exist_ok=True)
        # That a line was written says nothing of the bytes after a crash of the machine: only their hash does.
        with ThreadPoolExecutor(_HASH_THREADS, thread_name_prefix="colabstage-hash") as pool:
            found = zip(recorded, pool.map(self._hash, recorded), strict=True)
            self._kept = {span: digest for span, digest in found if recorded[span] == digest}
        self.kept_bytes = sum(length for _, _, length in self._kept)
        with typed_write_errors(path):
            self._journal = Journal(path, _head(fingerprint), ([*span, digest] for span, digest in self._kept.items()))

    def has(self, name: str, offset: int, length: int) -> bool:
        """Return whether these bytes of a file were noted before, and are right."""
        return (name, offset, length) in self._kept

    def note(self, name: str, offset: int, length: int, digest: str) -> None:
        """Note in one write that these bytes are on the disk: a kill leaves whole lines, and at most one cut."""
        with typed_write_errors(self._files):
            self._journal.append([name, offset, length, digest])

    def close(self) -> None:
        """Release the file. Calling it twice is fine."""
        self._journal.close()

    def _hash(self, span: _Span) -> str:
        name, offset, length = span
        try:
            # Shorter than it says, so there is nothing to hash.
            if (self._files / name).stat().st_size < offset + length:
                return ""
            return hash_ranges(self._files / name, [(offset, length)], threads=1)[0]
        except OSError:
            return ""


def read_ledger(path: Path, fingerprint: str) -> dict[_Span, str] | None:
    """Return what a ledger says is here, by name, offset and length; `None` when it is of something else, or none."""
    try:
        # Without a fingerprint nothing tells that the files are still those of the ledger.
        found = read_journal(path, _head(fingerprint)) if fingerprint else None
        return None if found is None else {(name, offset, length): digest for name, offset, length, digest in found}
    except (OSError, ValueError, TypeError):
        return None


def _head(fingerprint: str) -> dict[str, object]:
    return {"format": _FORMAT, "fingerprint": fingerprint}


def unfinished_bytes(target: Path, fingerprint: str) -> int:
    """Return bytes that an interrupted run left for a folder and that its ledger names; nothing is hashed."""
    ledgers = [read_ledger(orphan / _LEDGER, fingerprint) for orphan in find_orphans(target)]
    # Of several leftovers the next run takes over one, the one that holds most.
    return max((sum(length for _, _, length in ledger) for ledger in ledgers if ledger), default=0)


def fetch_folder(
    tree: Tree,
    target: Path,
    *,
    fingerprint: str,
    limits: PipelineLimits,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
    overwrite: bool = False,
    announce: Callable[[str], object] = lambda _: None,
) -> FetchedFolder:
    """Bring all files of a tree to `target`, a folder, replacing what is there only at the very end.

    Args:
        tree: the files.
        target: the folder to become; its parent exists.
        fingerprint: of the tree's state; what an interrupted run left of the same one is continued. "" where
            nothing can tell one state from another.
        limits, step, cancellation, policy: as for `fetch_tree`.
        overwrite: whether to replace what is there though it is not ours, or not as we made it.
        announce: told the name of the deed right before the folder is renamed to `target`.

    Raises:
        TargetExistsError: something is there that is not ours, or not as we made it.
        As `fetch_tree`; what stood at `target` is as it was.
    """
    with contextlib.ExitStack() as stack:
        # Only making the folder is the disk's: what the block raises has its type already.
        with typed_write_errors(target):
            workspace = stack.enter_context(
                open_workspace(
                    target,
                    accepts=lambda orphan: bool(read_ledger(orphan / _LEDGER, fingerprint)),
                    keeps=only_for(KeyboardInterrupt, CancelledError, SourceError, DriveError, TargetExistsError),
                )
            )
        with FolderLedger(workspace.path, fingerprint) as ledger:
            # Read here: the ledger is closed before the folder takes its place.
            kept = ledger.kept_bytes
            fetch_tree(
                tree,
                workspace.path / _FILES,
                limits=limits,
                step=step,
                cancellation=cancellation,
                policy=policy,
                ledger=ledger,
            )
        with typed_write_errors(target):
            deed = put_folder(workspace.path / _FILES, target, overwrite=overwrite, announce=announce)
    return FetchedFolder(len(tree.entries), sum(entry.size for entry in tree.entries), kept, deed)

"""The work of an extraction: what an earlier run left is kept, the rest is written by processes or threads."""

from __future__ import annotations

import contextlib
import marshal
import os
import threading
from typing import TYPE_CHECKING

from colabstage.io.files import Closing, hash_block
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.retry import RetryPolicy, read_with_retry, translate_write_error
from colabstage.io.temporaries import current_world, remove_own, rename_own
from colabstage.io.workspace import Journal, read_journal
from colabstage.sources.extract.batches import Place, job_chunks, read_block, write_batch, write_large, zip_job
from colabstage.sources.extract.processes import ProcessesNotStartedError, ProcessPool
from colabstage.sources.tree import make_folders
from colabstage.trees.archive_bytes import LocalBytes, TemporaryBytes, owners_bytes
from colabstage.trees.decompress import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.sources.extract.batches import Batch, ExtractPlan, Job
    from colabstage.trees.tree import ByteSource, FileEntry, Tree

# The part of a gap between members of a zip that is read along.
_GAP_BYTES = 64 * 1024
_JOURNAL = "journal"
_LOCAL_HEADER_BYTES = 30


def archive_ends(tree: Tree, entries: Sequence[FileEntry]) -> list[int]:
    """Return where each entry's bytes end in the bytes that its position counts in."""
    ends = []
    for entry in entries:
        member = tree.packing(entry)
        if member is None:
            ends.append(entry.position + entry.size)
            continue
        # The local header repeats the name and may hold fields that the directory does not tell: an estimate.
        least = member.offset + _LOCAL_HEADER_BYTES + len(member.stored_name) + member.packed_size
        ends.append(member.end if member.end - least <= _GAP_BYTES else least + 64)
    return ends


def released_by(tree: Tree) -> TemporaryBytes | None:
    """Return the bytes that a tree reads from, where they are our own and can be given back as they are used."""
    source = bytes_of(tree)
    return source if isinstance(source, TemporaryBytes) else None


def bytes_of(tree: Tree) -> ByteSource | None:
    """Return what a tree reads its members from, as its owner's own object; `None` where it has no such thing."""
    return None if tree.source is None else owners_bytes(tree.source)


class Extraction(Closing):
    """One extraction in the folder `work`, which it makes, or continues in; a context manager.

    `tree_path`: where the members are. `kept_members`, `kept_bytes`: what an earlier run finished.
    """

    def __init__(
        self, tree: Tree, entries: Sequence[FileEntry], plan: ExtractPlan, work: Path, *, fingerprint: str
    ) -> None:
        self._tree = tree
        self._entries = entries
        self._plan = plan
        self._own = released_by(tree)
        self._lock = threading.Lock()
        self.tree_path = work / "tree"
        try:
            self.tree_path.mkdir(parents=True, exist_ok=True)
            # The sizes of files are all that is compared, and a boot may have lost their content: hence the world.
            facts = [(entry.name, entry.size, entry.mtime_ns, entry.position) for entry in entries]
            head = {"fingerprint": fingerprint + hash_block(marshal.dumps(facts)), "world": current_world()}
            finished = [tuple(noted) for noted in read_journal(work / _JOURNAL, head) or () if isinstance(noted, list)]
            self._journal = Journal(work / _JOURNAL, head, finished)
        except OSError as error:
            raise translate_write_error(error, self.tree_path) from error
        with contextlib.ExitStack() as undo:
            undo.push(self._journal)
            # Members without a note may be half written.
            if not finished:
                remove_own(self.tree_path)
                self.tree_path.mkdir()
            undo.pop_all()
        # Another plan may have cut other batches: only those that are the same again count.
        noted = set(finished)
        self._kept = {
            batch for batch in plan.batches if (batch.first, batch.members) in noted and self._is_there(batch)
        }
        self._left = [batch for batch in plan.batches if batch not in self._kept]
        self._open = {batch.first: batch for batch in self._left}
        self.kept_members = sum(batch.members for batch in self._kept)
        self.kept_bytes = sum(batch.content_bytes for batch in self._kept)

    def close(self) -> None:
        """Release the journal."""
        self._journal.close()

    def _is_there(self, batch: Batch) -> bool:
        """Return whether the files of a batch have their sizes."""
        try:
            return all(os.lstat(f"{self.tree_path}/{entry.name}").st_size == entry.size for entry in self._of(batch))
        except OSError:
            return False

    def _of(self, batch: Batch) -> Sequence[FileEntry]:
        return self._entries[batch.first : batch.first + batch.members]

    def run(self, step: ProgressStep, cancellation: Cancellation, stall_timeout_s: float) -> None:
        """Write all members that are not there yet.

        Raises:
            As `extract_archive`.
        """
        cancellation.check()
        if self.kept_bytes:
            step.advance(self.kept_bytes)
        # All at once and before, so that nobody who writes a file has to look for its folder.
        make_folders(self.tree_path, (entry.name for entry in self._entries))
        if self._tree.unpacked is not None:
            self._move(self._tree.unpacked, step)
            return
        handle = os.open(self.tree_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        place = Place(handle, str(self.tree_path))
        try:
            # Where no process can be started, as inside another program, threads do the same work.
            if not (self._plan.processes and self._with_processes(place, step, cancellation, stall_timeout_s)):
                self._with_threads(place, step, cancellation, stall_timeout_s)
        finally:
            os.close(handle)

    def _move(self, unpacked: Path, step: ProgressStep) -> None:
        """Move what a tool has unpacked already, on the same disk."""
        for batch in self._left:
            for entry in self._of(batch):
                # Tools leave whatever mode the archive says; a dataset's file is one that everybody reads.
                (unpacked / entry.name).chmod(0o755 if entry.executable else 0o644)
                rename_own(unpacked / entry.name, self.tree_path / entry.name)
                step.advance(entry.size)
            self._finish(batch)

    def _source(self) -> ByteSource:
        source = bytes_of(self._tree)
        assert source is not None
        return source

    def _jobs(self, batch: Batch) -> list[Job]:
        return [
            (entry.name, entry.executable, entry.mtime_ns, entry.position, entry.size)
            if (member := self._tree.packing(entry)) is None
            else zip_job(entry.name, entry.executable, member)
            for entry in self._of(batch)
        ]

    def _finish(self, batch: Batch) -> None:
        """Note a batch, and give back the part of our own copy of the archive that nobody needs any more."""
        self._journal.append((batch.first, batch.members))
        self._open.pop(batch.first, None)
        if self._own is not None:
            # Several members may share bytes, so only what is before all that is left is free.
            first = min(self._open, default=None)
            self._own.release_before(self._own.size if first is None else self._open[first].start)

    def _with_processes(
        self, place: Place, step: ProgressStep, cancellation: Cancellation, stall_timeout_s: float
    ) -> bool:
        """Have processes do it; whether that was possible."""
        source = self._source()
        assert isinstance(source, LocalBytes)
        try:
            with ProcessPool(source.fileno(), source.label, place, workers=self._plan.workers) as pool:
                pool.run(
                    self._left,
                    self._jobs,
                    done=self._finish,
                    step=step,
                    cancellation=cancellation,
                    stall_timeout_s=stall_timeout_s,
                )
        except ProcessesNotStartedError:
            # What was answered for before is noted already.
            self._left = [batch for batch in self._left if batch.first in self._open]
            return False
        return True

    def _with_threads(
        self, place: Place, step: ProgressStep, cancellation: Cancellation, stall_timeout_s: float
    ) -> None:
        source = self._source()
        small = [batch for batch in self._left if not batch.is_large]
        policy = RetryPolicy()

        def read(number: int) -> bytes:
            batch = small[number]
            return read_with_retry(lambda: read_block(source, batch.start, batch.end), source.label, policy=policy)

        def use(number: int, data: bytes) -> None:
            batch = small[number]
            write_batch(source, batch.start, data, self._jobs(batch), place)
            with self._lock:
                self._finish(batch)
            step.advance(batch.content_bytes)

        run_pipeline(
            range(len(small)),
            read=read,
            use=use,
            cost=lambda number: small[number].end - small[number].start,
            limits=PipelineLimits(
                # Batches follow each other in the archive, so more readers would only make the disk seek.
                readers=1,
                max_readers=2,
                workers=self._plan.workers,
                stall_timeout_s=stall_timeout_s,
            ),
            cancellation=cancellation,
        )
        # Last, each alone: of these only pieces are held in memory.
        for batch in self._left:
            if batch.is_large:
                self._write_large(batch, place, step, cancellation, stall_timeout_s)

    def _write_large(
        self, batch: Batch, place: Place, step: ProgressStep, cancellation: Cancellation, stall_timeout_s: float
    ) -> None:
        """Write one member that is too large to be held: a thread unpacks it while this one writes."""
        (job,) = self._jobs(batch)

        def advance(done: int) -> None:
            cancellation.check()
            step.advance(done)

        with ReadAhead(job_chunks(self._source(), job), stall_timeout_s=stall_timeout_s) as pieces:
            write_large(job, place, iter(pieces), advance=advance)
        self._finish(batch)

"""The source of one call: opened once, when first needed, and compared with the state of an earlier call, at once or
during the copy of what was made from that state."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import ArchiveError, DriveError, SourceChangedError, SourceError
from colabstage.io.environment import OFFLINE_VARIABLE, is_set
from colabstage.io.files import Closing
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import Cancellation
from colabstage.io.units import format_count
from colabstage.sources.identity import check_freshness, compare_states, proof_of
from colabstage.sources.opening import SLOW_LISTERS, Opening, open_source
from colabstage.sources.parse import LocalSource, TreeSource, parts_of
from colabstage.stage.dataset import StageReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from colabstage.io.progress import Progress
    from colabstage.load.partial import PartialPack
    from colabstage.pack.arrival import PackStream
    from colabstage.sources.identity import SourceIdentity
    from colabstage.sources.opening import OpenedSource
    from colabstage.stage.request import StageRequest

# Waits are cut into pieces of this length, because Ctrl-C does not interrupt waiting for a future.
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class StageCall:
    """What all steps of one call of `stage_dataset` need."""

    request: StageRequest
    progress: Progress
    executor: Executor | None = None
    """The executor whose workers pack; `None` for this process."""
    report: StageReport = field(default_factory=StageReport)
    stream: PackStream | None = None
    """Lets readers in before everything is packed; `None` if they wait for the whole pack."""
    let_in: Callable[[PartialPack], object] | None = None
    """Called with a pack that is copied from the cache, once rows of it can be waited for; `None` as for `stream`."""

    @property
    def cancellation(self) -> Cancellation:
        """Return the cancellation of the call's progress."""
        return self.progress.cancellation


class SourceOnce(Closing):
    """The source of one call, opened once, when first needed; a context manager that closes it."""

    def __init__(self, call: StageCall) -> None:
        self._call = call
        self.opened: OpenedSource | None = None
        """The source, once it is open."""

    def open(self, report: StageReport | None = None, *, reads_next: bool = False) -> OpenedSource:
        """Return the open source; the step goes to `report`, by default that of the call. `reads_next`: whether all of
        it is read next."""
        if self.opened is not None:
            return self.opened
        request = self._call.request
        # Beside the dataset's own folder, so that the same source with other options finds what was downloaded.
        opening = Opening(
            request.folder.parent,
            self._call.progress,
            self._call.cancellation,
            only=request.options.parts,
            zip_encoding=request.options.zip_encoding,
            reads_next=reads_next and not request.options.parts,
            sparing=request.disk_limit is not None,
        )
        with (report or self._call.report).timed("open source", unit="B") as step:
            try:
                with contextlib.ExitStack() as undo:
                    source = open_source(request.source, opening, unpack=True)
                    undo.callback(source.close)
                    # Before anything is read: a write to the source meanwhile must show as a change.
                    files, step.amount = source.take_state()
                    undo.pop_all()
            except (SourceError, DriveError, ArchiveError) as error:
                step.unit, step.note = "", str(error)
                raise
            self.opened = source
            step.note = format_count(files, "files")
        return source

    def close(self) -> None:
        """Close it; `open` opens it again."""
        source, self.opened = self.opened, None
        if source is not None:
            source.close()


class SourceListingError(SourceChangedError):
    """A folder on a mount no longer lists the files that it listed when it was opened."""


def check_listing(source: OpenedSource) -> None:
    """Raise `SourceListingError` if names, sizes or times differ from what was read."""
    # A mounted Google Drive sometimes lists only a part of a folder, without an error.
    problem = source.changes()
    if problem:
        raise SourceListingError(problem)


class Freshness(NamedTuple):
    """How a source compares with a recorded state."""

    same: bool
    """Whether data made from that state may be used."""
    seen: str = ""
    """What was compared, for the report."""
    proved: bool = False
    """Whether the source was opened and proved to be the same."""


def compare_source(call: StageCall, source: SourceOnce, recorded: SourceIdentity) -> Freshness:
    """Return whether the source is still in the recorded state. A missing source does not count as changed."""
    request, report, is_fast = call.request, call.report, call.request.verify == "fast"
    if request.checksum is not None:
        as_asked = recorded.checksum == str(request.checksum)
        # The checksum names the content, so the source's present state does not matter.
        if not as_asked or is_fast:
            return Freshness(as_asked)
    # An open source knows its identity, which is more than the quick check could tell; and sources on the network are
    # not checked while that is switched off.
    is_local = all(isinstance(part, LocalSource | TreeSource) for part in parts_of(request.source))
    if is_fast and source.opened is None and (is_local or not is_set(OFFLINE_VARIABLE)):
        look = check_freshness(request.source, recorded, unpack=True, workers=SLOW_LISTERS if request.drive_path else 1)
        if look.state == "gone":
            report.note(f"The source cannot be reached now; what was made from it before is used. {look.detail}")
        if look.state == "silent":
            report.note(f"Whether the source has changed is not known ({look.detail}); what was made from it is used.")
        if look.state != "unproved":
            return Freshness(look.state != "changed", f"the source: {look.detail}" if look.state == "same" else "")
    try:
        now = source.open(report).identify()
    except (SourceError, DriveError, ArchiveError) as error:
        # A user whose account or network fails today wants to train on the local data.
        report.note(f"The source cannot be read now; what was made from it before is used. {error}")
        return Freshness(same=True)
    verdict = compare_states(recorded, now)
    if verdict == "same":
        return Freshness(True, f"the source: {proof_of(recorded, now)}", proved=True)
    if verdict == "unproved" and is_fast:
        report.note(
            "The source has the names and sizes that were staged, but nothing tells whether their content is the "
            "same: all times differ, as after a remount. verify='full' reads it again."
        )
        return Freshness(same=True)
    return Freshness(same=False)


class StateDiffersError(Exception):
    """The source is no longer in the state that it was compared with."""


class Comparison:
    """A comparison of a source with a recorded state, in a thread, beside work that is stopped if the two differ."""

    def __init__(self, call: StageCall, answer: Future[Freshness], report: StageReport) -> None:
        self.cancellation = Cancellation()
        """Stops the work beside it."""
        self._call, self._answer, self._report = call, answer, report
        answer.add_done_callback(self._stop_work)

    def _stop_work(self, answer: Future[Freshness]) -> None:
        if answer.exception() is not None or not answer.result().same:
            self.cancellation.cancel()

    def settle(self) -> None:
        """Wait for the end."""
        while not wait((self._answer,), _LOOK_S).done:
            self._call.cancellation.check()
        self._call.report.note(*self._report.notes)

    def agree(self) -> Freshness:
        """Wait for the result, and return it if the source is the same; otherwise raise `StateDiffersError`."""
        self.settle()
        if not self._answer.result().same:
            raise StateDiffersError
        self._call.cancellation.check()
        return self._answer.result()


@contextlib.contextmanager
def compared_beside(
    call: StageCall, source: SourceOnce, recorded: SourceIdentity, known: Freshness | None
) -> Iterator[Comparison]:
    """Compare a source while the block runs, unless the result is known.

    The source belongs to the comparison until the block has ended; after an error it is closed when the comparison
    ends, without waiting.
    """
    # Its steps count as time of the work beside it.
    report = StageReport()
    answer: Future[Freshness] = Future()
    if known is None:
        beside = replace(call, report=report)
        answer = in_thread(lambda: compare_source(beside, source, recorded), "colabstage-compare")
    else:
        answer.set_result(known)
    comparison = Comparison(call, answer, report)
    leave = call.cancellation.follow(comparison.cancellation.cancel)
    try:
        yield comparison
        comparison.settle()
    except BaseException:
        answer.add_done_callback(lambda _: source.close())
        raise
    finally:
        leave()

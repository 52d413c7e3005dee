"""The source of one call: opened once, when first needed, and compared with the state of an earlier call, at once or
during the copy of what was made from that state."""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from colabstage.errors import ArchiveError, DriveError, SourceError
from colabstage.io.files import Closing
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import Cancellation, Progress
from colabstage.io.units import format_count
from colabstage.sources.identity import Freshness, SourceIdentity, compare_source
from colabstage.sources.opening import OpenedSource, Opening, open_source
from colabstage.stage.dataset import StageReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.load.partial import PartialPack
    from colabstage.pack.arrival import PackStream
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
            only=request.options.parts,
            zip_encoding=request.options.zip_encoding,
            reads_next=reads_next and not request.options.parts,
            sparing=request.disk_limit is not None,
            skips=request.options.skip_share is not None,
        )
        timed = (report or self._call.report).timed("open source", unit="B", moves=False)
        with timed as step, self._call.progress.quiet_step("open source"):
            try:
                with contextlib.ExitStack() as undo:
                    source = open_source(request.source, opening, unpack=True)
                    undo.callback(source.close)
                    # Before anything is read: a write to the source meanwhile must show as a change.
                    files, step.amount = source.take_state()
                    # Some servers do not say how long a file is.
                    step.unit = step.unit if step.amount else ""
                    undo.pop_all()
            except (SourceError, DriveError, ArchiveError) as error:
                step.unit, step.note = "", str(error)
                raise
            self.opened = source
            step.note = format_count(files, "files")
        return source

    def compare(self, recorded: SourceIdentity, report: StageReport | None = None) -> Freshness:
        """Return whether it is still in a recorded state; what is not known of it is noted in the report."""
        request, report = self._call.request, report or self._call.report
        found = compare_source(
            request.source,
            recorded,
            lambda: self.open(report).identify(),
            checksum=request.checksum,
            thorough=request.verify == "full",
            unpack=True,
            is_open=self.opened is not None,
        )
        report.note(*filter(None, (found.note,)))
        return found

    def close(self) -> None:
        """Close it; `open` opens it again."""
        source, self.opened = self.opened, None
        if source is not None:
            source.close()


class StateDiffersError(Exception):
    """The source is no longer in the state that it was compared with."""


@contextlib.contextmanager
def compared_beside(
    call: StageCall, source: SourceOnce, recorded: SourceIdentity, known: Freshness | None
) -> Iterator[tuple[Cancellation, Callable[[], Freshness]]]:
    """Compare a source while the block runs, unless the result is known. Yields what stops the work in the block if the
    source differs, and a function that waits for the result, and raises `StateDiffersError` if it does.

    The source belongs to the comparison until the block has ended; after an error it is closed when the comparison
    ends, without waiting.
    """
    # Its steps count as time of the work beside it.
    report, stop = StageReport(), Cancellation()
    answer = in_thread(lambda: known or source.compare(recorded, report), "colabstage-compare")

    def stop_work(answer: Future[Freshness]) -> None:
        if answer.exception() is not None or not answer.result().same:
            stop.cancel()

    def settle() -> None:
        while not wait((answer,), _LOOK_S).done:
            call.cancellation.check()
        call.report.note(*report.notes)

    def agree() -> Freshness:
        settle()
        if not answer.result().same:
            raise StateDiffersError
        call.cancellation.check()
        return answer.result()

    answer.add_done_callback(stop_work)
    leave = call.cancellation.follow(stop.cancel)
    try:
        yield stop, agree
        settle()
    except BaseException:
        answer.add_done_callback(lambda _: source.close())
        raise
    finally:
        leave()

"""Run tasks on an executor whose workers may die; tasks of dead workers are submitted again."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from colabstage.errors import WorkersLostError
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Executor

Task = TypeVar("Task")
Result = TypeVar("Result")

# How often one task may lose its worker. Dask itself tries three times before it reports a loss.
_MOST_LOSSES = 4
_LOOK_S = 0.5
# Without a result or a sign of work for this long, the workers are gone. A busy cluster may keep tasks waiting.
_SILENCE_S = 1800.0
# Workers that are told to stop do so between two samples, which takes a moment on a slow source.
_END_S = 60.0


def run_tasks(
    executor: Executor,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    signs: Callable[[], object] = lambda: None,
    stop: Callable[[], None] = lambda: None,
    silence_s: float = _SILENCE_S,
) -> Generator[tuple[Task, Result]]:
    """Run `function(task)` on the executor for every task, and yield `(task, result)` in the order in which they end.

    Close the generator to stop early: that stops running tasks, and waits for them.

    A task whose worker died is submitted again. A broken process pool takes no more tasks, so it is replaced by a new
    one with as many processes.

    Args:
        executor: any executor; it stays open.
        function: picklable where the executor's workers are other processes; may be called again for a task.
        tasks: picklable in the same way.
        signs: returns another value whenever a worker has done something since the last call.
        stop: called when the results are no longer wanted, so that running tasks end.
        silence_s: after this many seconds without a result or a sign, the workers count as lost.
    """
    run = _PendingTasks(executor, function, tasks)
    sign, heard = signs(), time.monotonic()
    try:
        while run.pending:
            finished, _ = wait(run.pending, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            if finished or (now := signs()) != sign:
                sign, heard = sign if finished else now, time.monotonic()
            elif time.monotonic() - heard > silence_s:
                _refuse_silence(len(run.pending), silence_s)
            yield from run.collect(finished)
    except BaseException:
        stop()
        raise
    finally:
        run.close()


def _refuse_silence(tasks: int, silence_s: float) -> NoReturn:
    msg = (
        f"{tasks} tasks are with the executor, but for {silence_s:,.0f} s none has ended or written anything. Look at "
        "its workers, then start again: finished work is kept."
    )
    raise WorkersLostError(msg)


class _PendingTasks(Generic[Task, Result]):
    """The tasks under way, in `pending` by their futures."""

    def __init__(self, executor: Executor, function: Callable[[Task], Result], tasks: Sequence[Task]) -> None:
        self.pending: dict[Future[Result], int] = {}
        self._executor = executor
        self._own: ProcessPoolExecutor | None = None
        self._function = function
        self._tasks = tasks
        self._losses = [0] * len(tasks)
        for number in range(len(tasks)):
            self._submit(number)

    def collect(self, finished: set[Future[Result]]) -> Iterator[tuple[Task, Result]]:
        """Yield the results of finished tasks; those that lost their worker are submitted again."""
        lost: list[tuple[int, Exception]] = []
        for future in finished:
            number = self.pending.pop(future)
            try:
                result = future.result()
            except Exception as error:
                if not _is_loss(error):
                    raise
                # Submitted only after this loop: a broken pool fails all its futures, and is replaced once.
                lost.append((number, error))
            else:
                yield self._tasks[number], result
        for number, why in lost:
            self._losses[number] += 1
            if self._losses[number] >= _MOST_LOSSES:
                msg = (
                    f"The worker died {_MOST_LOSSES} times on the same task ({why}). It may have too little memory, "
                    "or one file crashes the decoder. Finished work is kept."
                )
                raise WorkersLostError(msg) from why
            self._submit(number)

    def _submit(self, number: int) -> None:
        try:
            future = self._executor.submit(self._function, self._tasks[number])
        except BrokenExecutor:
            self._replace()
            future = self._executor.submit(self._function, self._tasks[number])
        self.pending[future] = number

    def _replace(self) -> None:
        """Replace the broken pool with a new one of the same size."""
        # With spawned processes, since forking a process that has threads may hang the child.
        size = getattr(self._executor, "_max_workers", None) or usable_cores()
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)
        self._executor = self._own = ProcessPoolExecutor(size, mp_context=multiprocessing.get_context("spawn"))

    def close(self) -> None:
        """Cancel tasks that have not begun, and wait for the others."""
        for future in self.pending:
            future.cancel()
        with suppress(ValueError):  # raised by `wait` for an empty set
            wait(self.pending, timeout=_END_S)
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)


def _is_loss(error: Exception) -> bool:
    """Return whether the worker failed, and not the task."""
    if isinstance(error, BrokenExecutor | CancelledError):
        return True
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    # By the names of Dask's modules, so that it need not be imported, or installed. If a worker dies as its task ends,
    # the executor takes the result for the parts of an error, which is an error of its own.
    return type(error).__module__.partition(".")[0] == "distributed" or (
        innermost.f_globals.get("__name__") == "distributed.cfexecutor"
    )

"""A sampler of all threads' stacks: how long each stage took, how long a core was busy with it, and who held the GIL.

A thread looks a few hundred times a second at what every other thread is doing (`sys._current_frames`). It needs
Python's lock for that, and would get it where another thread lets go of it anyway: at reads and in numpy, never in
Python code that runs for less than the interpreter's switch interval. So that interval is short while it samples, and
no other times are taken in that run.

How long a thread had a core, and how long it had to wait for one, is the kernel's word. The same for the sampler itself
tells whether the lock was held: it wakes up late, and not because others had the cores.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from colabstage.diagnose.naming import StageNames, has_own_code, is_idle

if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType

    from colabstage.diagnose.facts import StageName

# Enough for 5 % of a stage in two seconds, and half a percent of one core.
_INTERVAL_S = 0.004
# What other threads may keep Python's lock for when the sampler wants it.
_SWITCH_S = 0.00002
# Waking up takes 0.05 to 0.1 ms by itself.
_LATE_S = 0.00015
_OWN = "colabstage-profile"
_OTHERS_OF_OURS = ("colabstage-profile", "colabstage-gpu")


@dataclass(slots=True)
class StageTime:
    """Seconds that threads were in a stage, that cores were busy with it, and that it held Python's lock."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    gil_s: float = 0.0


class StackSampler:
    """Samples while it is entered. `times` has what it saw; `own_cpu_s` what it cost."""

    def __init__(self, known: dict[CodeType, StageName], consumer: int | None) -> None:
        """`known`: stages of functions that the loader tells. `consumer`: the thread that takes batches, where its
        stack tells stages."""
        self.times: dict[StageName, StageTime] = {}
        self.own_cpu_s = 0.0
        self._names = StageNames(known)
        self._consumer = consumer
        # A thread that waits for a lock of C code shows only the frame that called it, so those that were here before,
        # a notebook's for example, count only where their stack names a stage. `threading` does not know all of them.
        self._before = set(sys._current_frames()) - {consumer}
        self._clocks: dict[int, _Clock] = {}
        self._switch_s = sys.getswitchinterval()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name=_OWN, daemon=True)

    def __enter__(self) -> Self:
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop = True
        self._thread.join(10.0)
        sys.setswitchinterval(self._switch_s)

    def _run(self) -> None:
        began = time.thread_time()
        own = _Clock(threading.get_native_id())
        last = time.perf_counter()
        try:
            while not self._stop:
                due = time.perf_counter() + _INTERVAL_S
                time.sleep(_INTERVAL_S)
                now = time.perf_counter()
                _, waited_s = own.passed()
                self._look(now - last, held=now - due - waited_s > _LATE_S)
                last = now
        finally:
            for clock in (own, *self._clocks.values()):
                clock.close()
        self.own_cpu_s = time.thread_time() - began

    def _look(self, passed_s: float, *, held: bool) -> None:
        own = threading.get_ident()
        frames = sys._current_frames()
        threads = {thread.ident: thread for thread in threading.enumerate()}
        for ident, frame in frames.items():
            thread = threads.get(ident)
            if ident == own or (thread is not None and thread.name.startswith(_OTHERS_OF_OURS)):
                continue
            if is_idle(frame):
                continue
            self._note(ident, frame, passed_s, self._core_s(None if thread is None else thread.native_id), held=held)
        del frames

    def _note(
        self, ident: int, frame: FrameType, passed_s: float, core_s: tuple[float, float] | None, *, held: bool
    ) -> None:
        stage = self._names.stage_of(frame)
        if stage is None and ident in self._before:
            return
        busy_s, waited_s = (passed_s, 0.0) if core_s is None else core_s
        if stage is None:
            stage = self._unnamed(frame, waits=busy_s + waited_s <= 0.3 * passed_s)
        entry = self.times.setdefault(stage, StageTime())
        entry.seconds += passed_s
        entry.cpu_s += min(passed_s, busy_s)
        # A thread that is kept waiting for a core keeps the lock meanwhile.
        entry.gil_s += min(passed_s, busy_s + waited_s) if held else 0.0

    @staticmethod
    def _unnamed(frame: FrameType, *, waits: bool) -> StageName:
        """Python on samples that says nothing of itself is work on them, and what uses no core waits for its input;
        where there is no code of the user's, a library gets batches together."""
        if not has_own_code(frame):
            return "collate"
        return "read" if waits else "transform"

    def _core_s(self, native_id: int | None) -> tuple[float, float] | None:
        """Seconds that a thread had a core, and waited for one, since the last look; `None` where nobody tells."""
        if native_id is None or not sys.platform.startswith("linux"):
            return None
        if native_id not in self._clocks:
            self._clocks[native_id] = _Clock(native_id)
        return self._clocks[native_id].passed()


class _Clock:
    """The kernel's account of one thread: time on a core, and time in the queue for one."""

    def __init__(self, native_id: int) -> None:
        try:
            self._file = os.open(f"/proc/self/task/{native_id}/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1
        self._last = self._read()

    def passed(self) -> tuple[float, float]:
        """Seconds on a core, and in the queue, since the last call."""
        now, before = self._read(), self._last
        self._last = now
        return now[0] - before[0], now[1] - before[1]

    def _read(self) -> tuple[float, float]:
        if self._file < 0:
            return 0.0, 0.0
        try:
            busy, queued, *_ = os.pread(self._file, 100, 0).split()
        except (OSError, ValueError):
            return getattr(self, "_last", (0.0, 0.0))  # the thread has ended
        return int(busy) / 1e9, int(queued) / 1e9

    def close(self) -> None:
        """Let go of the kernel's file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

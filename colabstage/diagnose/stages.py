"""How long each stage of a loader took, from samples of all threads' Python stacks.

A sampler examines stacks instead of wrapping functions in timers: nothing has to be patched, and the cost does not
depend on how often a function is called. The innermost conclusive frame decides: by its file, if it belongs to a
library with one purpose; by the text of the present call, which also names C functions; or by its own name. Names are
those that people use (`_read`, `augment`, `collate_fn`).
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Literal, Self

from colabstage.io.callers_code import is_of_library

if TYPE_CHECKING:
    from types import CodeType, FrameType

StageName = Literal["read", "decode", "transform", "collate", "step"]

# A file and a function in it (any if empty). First match wins.
_LIBRARIES: tuple[tuple[str, str, StageName], ...] = (
    (r"/PIL/Image\.py$", r"^(open|preinit|init|_open_core)$", "read"),
    (r"/PIL/(ImageFile|\w+ImagePlugin)\.py$", r"", "decode"),
    (r"/PIL/Image\.py$", r"^(load|tobytes|__array_interface__|frombytes|_decompression_bomb_check)$", "decode"),
    (r"/PIL/Image(Ops|Filter|Enhance|Chops|Transform)?\.py$", r"", "transform"),
    (r"/(simplejpeg|imageio|tifffile|soundfile|librosa|audioread|decord|pydicom|nibabel)(/|\.py$)", r"", "decode"),
    (r"/numpy/lib/_?(npyio|npyio_impl|format|_format_impl)\.py$", r"", "decode"),
    (r"/(pandas/io|pyarrow|json/decoder|pickle|csv)(/|\.py$)", r"", "decode"),
    (r"/colabstage/images/", r"", "decode"),
    (r"/(torchvision/transforms|monai/transforms|scipy/ndimage)/", r"", "transform"),
    (r"/(albumentations|kornia|skimage|imgaug)/", r"", "transform"),
    (r"/colabstage/load/augment\.py$", r"", "transform"),
    (r"/torch/utils/data/_utils/collate\.py$", r"", "collate"),
    (r"/numpy/_core/shape_base\.py$", r"^(stack|vstack|concatenate)$", "collate"),
    (r"/colabstage/load/(ahead|batch|batches|device|loader)\.py$", r"", "collate"),
    (r"/(h5py|zarr|lmdb|fsspec|s3fs|gcsfs|aiohttp|requests|urllib|urllib3|http)(/|\.py$)", r"", "read"),
    (r"/(zipfile|tarfile|gzip|bz2|lzma|pathlib|socket|ssl|shutil|tempfile|_pyio)(/|\.py$)", r"", "read"),
    (r"/colabstage/(load/reading|sources|trees|h5)/", r"", "read"),
)

# Names of functions. Decoding first, because `imread` does both and decoding is the larger part.
_NAMES: tuple[tuple[str, StageName], ...] = (
    (r"imread|im_?decode|decode|decompress|parse|frombuffer|np\.load|numpy\.load|loads\b|read_csv", "decode"),
    (r"collate|default_convert|pad_sequence|pad_batch|(^|[._])(stack|cat|concat(enate)?)$|make_batch", "collate"),
    (r"transform|augment|resi[sz]e|crop|flip|rotat|normali[sz]e|jitter|preprocess|to_?tensor|blur|astype", "transform"),
    (r"(^|[._])(read|pread|readv|open|fetch|load|download|recv|seek|get_?bytes|get_object)(_|$|[a-z]*\d*$)", "read"),
)

# Frames above the profiler belong to its caller.
_OURS = re.compile(r"/colabstage/diagnose/\w+\.py$")
_SLEEP = re.compile(r"(^|\.)sleep$")
_IDLE: tuple[tuple[str, frozenset[str]], ...] = (
    ("/threading.py", frozenset({"wait", "join", "_wait_for_tstate_lock", "acquire"})),
    ("/queue.py", frozenset({"get", "put"})),
    ("/concurrent/futures/thread.py", frozenset({"_worker"})),
    ("/selectors.py", frozenset({"select"})),
    # Servers for other processes, such as torch's for sharing tensors.
    ("/socket.py", frozenset({"accept"})),
    ("/multiprocessing/connection.py", frozenset({"_recv", "wait", "_poll"})),
    ("/multiprocessing/pool.py", frozenset({"worker", "wait", "_handle_tasks", "_handle_results", "next"})),
    ("/multiprocessing/queues.py", frozenset({"_feed", "get"})),
)
# Enough for 5 % of a stage in two seconds, and half a percent of one core.
_INTERVAL_S = 0.004
# How long other threads may keep Python's lock when the sampler wants it: at the usual interval it would only get it in
# reads and in numpy, where they release it anyway. No other times are measured in that run.
_SWITCH_S = 0.00002
_OWN = "colabstage-profile"
_OTHERS_OF_OURS = ("colabstage-profile", "colabstage-gpu")


def is_idle(frame: FrameType) -> bool:
    """Return whether a thread with this innermost frame waits for other threads."""
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    return any(file.endswith(tail) and name in names for tail, names in _IDLE)


class StackSampler:
    """Sample while entered; `seconds` has how long threads were in each stage."""

    def __init__(self, known: dict[CodeType, StageName], consumer: int | None) -> None:
        """Take functions whose stage the loader defines, and the thread that takes batches, if its stack shows
        stages."""
        self.seconds: dict[StageName, float] = {}
        self._known = known
        self._places: dict[tuple[CodeType, int], StageName | None] = {}
        # A thread that waits for a lock in C code shows only the frame that called it. So threads that existed before,
        # a notebook's for example, count only if their stack names a stage. `threading` does not know all of them.
        self._before = set(sys._current_frames()) - {consumer}
        self._core_s: dict[int, float] = {}
        self._switch_s = sys.getswitchinterval()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name=_OWN, daemon=True)

    def __enter__(self) -> Self:
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join(10.0)
        sys.setswitchinterval(self._switch_s)

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._stop:
            time.sleep(_INTERVAL_S)
            now = time.perf_counter()
            self._look(now - last)
            last = now

    def _look(self, passed_s: float) -> None:
        threads = {thread.ident: thread for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            thread = threads.get(ident)
            if (thread is not None and thread.name.startswith(_OTHERS_OF_OURS)) or is_idle(frame):
                continue
            stage, is_callers = self._stage_of(frame)
            if stage is None and ident in self._before:
                continue
            # Read each time, so that it is the share of this interval.
            waits = thread is not None and self._waits(thread.native_id, passed_s)
            if stage is None:
                # Python on samples is work on them, a thread that uses no core waits for its input, and if there is no
                # user code, a library collects batches.
                stage = "collate" if not is_callers else "read" if waits else "transform"
            self.seconds[stage] = self.seconds.get(stage, 0.0) + passed_s

    def _stage_of(self, frame: FrameType | None) -> tuple[StageName | None, bool]:
        """Return the stage of a thread with this innermost frame, `None` if nothing on its stack shows it; and whether
        code outside of libraries runs there, as far as was looked."""
        is_callers = False
        while frame is not None and not _OURS.search(frame.f_code.co_filename):
            place = (frame.f_code, frame.f_lasti)
            if place not in self._places:
                self._places[place] = self._known.get(frame.f_code) or _conclude(frame)
            if (found := self._places[place]) is not None:
                # Code of the caller's that tells nothing is not what the library that called it collates.
                is_theirs = is_callers and found == "collate" and place[0] not in self._known
                return None if is_theirs else found, is_callers
            is_callers = is_callers or not is_of_library(frame)
            frame = frame.f_back
        return None, is_callers

    def _waits(self, native_id: int | None, passed_s: float) -> bool:
        """Return whether a thread neither had a core nor wanted one, according to the kernel."""
        try:
            with open(f"/proc/self/task/{native_id}/schedstat", encoding="ascii") as file:
                busy, queued, *_ = file.read().split()
        except (OSError, ValueError):
            return False
        now = (int(busy) + int(queued)) / 1e9
        before, self._core_s[native_id or 0] = self._core_s.get(native_id or 0, now), now
        return now - before <= 0.3 * passed_s


def _conclude(frame: FrameType) -> StageName | None:
    code = frame.f_code
    path = code.co_filename.replace("\\", "/")
    for file, function, of_library in _LIBRARIES:
        if re.search(file, path) and re.search(function, code.co_name):
            return of_library
    if is_of_library(frame):
        return None
    call = called_name(frame)
    if call and not _SLEEP.search(call) and (named := _stage_of(call)):
        return named
    parts = [part for part in code.co_qualname.split(".") if part != "<locals>"]
    # Of `__call__` and `forward` the class's name says more.
    is_call = len(parts) > 1 and parts[-1] in {"__call__", "forward"}
    return _stage_of(parts[-2] if is_call else parts[-1])


def _stage_of(name: str) -> StageName | None:
    return next((stage for pattern, stage in _NAMES if re.search(pattern, name, re.IGNORECASE)), None)


def called_name(frame: FrameType) -> str:
    """Return the dotted name of what a frame is calling, from its source; empty without source."""
    positions = list(frame.f_code.co_positions())
    number = frame.f_lasti // 2
    if not 0 <= number < len(positions):
        return ""
    line, end_line, column, end_column = positions[number]
    if line is None or end_line is None or column is None or end_column is None:
        return ""
    text = linecache.getline(frame.f_code.co_filename, line).encode()
    segment = text[column : end_column if line == end_line else None].decode(errors="replace")
    match = re.match(r"\s*(?:await\s+)?([\w.\[\]'\"()]*?[\w\]])\s*\(", segment)
    return "" if match is None else match.group(1)

"""Which stage a thread is in, told from its Python stack.

A sampler looks at stacks instead of putting timers around functions: nothing has to be patched, which a user's code
might hold under another name already, and it costs the same however often a function is called. The innermost frame
that says something decides: by its file, where that is a library's with one purpose; by the text of the call that it is
at, which also names functions in C; or by its own name. Names are those that people use (`_read`, `augment`,
`collate_fn`). Python looks for waiting threads right after each call, so a call in C that holds Python's lock is seen
in the frame that made it, not in whatever comes next.
"""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from colabstage.diagnose.facts import StageName

# A file and a function in it (any if empty). First match wins.
_LIBRARY_STAGES: tuple[tuple[str, str, StageName], ...] = (
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
    (r"/colabstage/load/(augment|geometry)", r"", "transform"),
    (r"/torch/utils/data/_utils/collate\.py$", r"", "collate"),
    (r"/numpy/_core/shape_base\.py$", r"^(stack|vstack|concatenate)$", "collate"),
    (r"/colabstage/load/(batching|device)/", r"", "collate"),
    (r"/(h5py|zarr|lmdb|fsspec|s3fs|gcsfs|aiohttp|requests|urllib|urllib3|http)(/|\.py$)", r"", "read"),
    (r"/(zipfile|tarfile|gzip|bz2|lzma|pathlib|socket|ssl|shutil|tempfile|_pyio)(/|\.py$)", r"", "read"),
    (r"/colabstage/(load/reading|fetch|trees|simulate|h5)/", r"", "read"),
)
_LIBRARIES = tuple((re.compile(path), re.compile(function), stage) for path, function, stage in _LIBRARY_STAGES)

# What functions are called. Decoding first, for `imread` does both and decoding is the larger part.
_NAME_STAGES: tuple[tuple[str, StageName], ...] = (
    (r"imread|im_?decode|decode|decompress|parse|frombuffer|np\.load|numpy\.load|loads\b|read_csv", "decode"),
    (r"collate|default_convert|pad_sequence|pad_batch|(^|[._])(stack|cat|concat(enate)?)$|make_batch", "collate"),
    (r"transform|augment|resi[sz]e|crop|flip|rotat|normali[sz]e|jitter|preprocess|to_?tensor|blur|astype", "transform"),
    (r"(^|[._])(read|pread|readv|open|fetch|load|download|recv|seek|get_?bytes|get_object)(_|$|[a-z]*\d*$)", "read"),
)
_NAMES = tuple((re.compile(pattern, re.IGNORECASE), stage) for pattern, stage in _NAME_STAGES)

_LIBRARY_PATH = re.compile(r"/(site-packages|dist-packages|lib/python3[.\d]*)/|^<frozen ")
# Above the profiler itself, a stack tells of whoever called it.
_OURS = re.compile(r"/colabstage/diagnose/\w+\.py$")
_SLEEP = re.compile(r"(^|\.)sleep$")
_IDLE: tuple[tuple[str, frozenset[str]], ...] = (
    ("/threading.py", frozenset({"wait", "join", "_wait_for_tstate_lock", "acquire"})),
    ("/queue.py", frozenset({"get", "put"})),
    ("/concurrent/futures/thread.py", frozenset({"_worker"})),
    ("/selectors.py", frozenset({"select"})),
    # Servers for other processes, such as the one that torch hands tensors over with.
    ("/socket.py", frozenset({"accept"})),
    ("/multiprocessing/connection.py", frozenset({"_recv", "wait", "_poll"})),
    ("/multiprocessing/pool.py", frozenset({"worker", "wait", "_handle_tasks", "_handle_results", "next"})),
    ("/multiprocessing/queues.py", frozenset({"_feed", "get"})),
)


def is_idle(frame: FrameType) -> bool:
    """Whether a thread with this innermost frame waits for other threads."""
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    return any(file.endswith(tail) and name in names for tail, names in _IDLE)


def has_own_code(frame: FrameType | None) -> bool:
    """Whether a stack runs code that is in no library, below the profiler itself."""
    while frame is not None and not _OURS.search(frame.f_code.co_filename):
        if not _LIBRARY_PATH.search(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


class StageNames:
    """Names stages, and remembers what it found of each place in the code."""

    def __init__(self, known: dict[CodeType, StageName]) -> None:
        """`known`: functions whose stage the loader itself tells, such as its `collate_fn`."""
        self._known = known
        self._places: dict[tuple[CodeType, int], StageName | None] = {}

    def stage_of(self, frame: FrameType | None) -> StageName | None:
        """The stage of a thread with this innermost frame; `None` where nothing on its stack says."""
        while frame is not None and not _OURS.search(frame.f_code.co_filename):
            place = (frame.f_code, frame.f_lasti)
            if place not in self._places:
                self._places[place] = self._look(frame)
            if (found := self._places[place]) is not None:
                return found
            frame = frame.f_back
        return None

    def _look(self, frame: FrameType) -> StageName | None:
        code = frame.f_code
        if code in self._known:
            return self._known[code]
        path = code.co_filename.replace("\\", "/")
        for file, function, of_library in _LIBRARIES:
            if file.search(path) and function.search(code.co_name):
                return of_library
        if _LIBRARY_PATH.search(path):
            return None
        call = called_name(frame)
        if call and not _SLEEP.search(call) and (named := _named(call)):
            return named
        return _named(own_name(code))


def _named(name: str) -> StageName | None:
    return next((stage for pattern, stage in _NAMES if pattern.search(name)), None)


def own_name(code: CodeType) -> str:
    """A function's name; of `__call__` and `forward` the class's, which is what says something."""
    parts = [part for part in code.co_qualname.split(".") if part != "<locals>"]
    return parts[-2] if len(parts) > 1 and parts[-1] in {"__call__", "forward"} else parts[-1]


def called_name(frame: FrameType) -> str:
    """The dotted name of what a frame is calling, as its source has it; empty where there is no source."""
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

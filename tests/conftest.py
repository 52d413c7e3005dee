"""For every test: a clean environment, a guard against leaks, and skips that say which part is missing."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from tests.nurseries import Nurseries
    from tests.sources.servers import BucketService

# These identify notebook platforms (machine/platforms.py); a test that needs one sets it.
_PLATFORM_VARIABLES = re.compile(
    r"COLAB|KAGGLE|VERTEX_PRODUCT|TBE_|SAGEMAKER_|PAPERSPACE_|LIGHTNING_|DATABRICKS_|DEEPNOTE_|CODESPACES|"
    r"DATALORE_USER|HEX_PROJECT_ID|CLOUD_SHELL|JPY_PARENT_PID|CLOUDSDK_CONFIG"
)

# Examples for each property, unless it states its own number; `make test-all` runs `--hypothesis-profile=long`. There
# are no deadlines, because other tests run at the same time.
settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("long", max_examples=400, deadline=None)
settings.load_profile("quick")


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide all variables that steer colabstage or identify a notebook platform.

    Also hide Drives mounted by other tests, and the home folder of the person who runs the tests, where datasets are
    cached by default.
    """
    below = tmp_path_factory.getbasetemp()
    home = below / f"home{next(_numbers)}"
    home.mkdir()
    # In an empty home, Matplotlib would rebuild its list of fonts, which takes seconds.
    monkeypatch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache/matplotlib")))
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if _PLATFORM_VARIABLES.match(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(below / "no-drive"))
    yield
    shutil.rmtree(home, ignore_errors=True)


_folder = pytest.StashKey[Path]()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test's own folder, removed if the test passes.

    pytest's own fixture would search all folders of the run for a free name, and keep what every test wrote: tens of
    seconds, and gigabytes. `scripts/run_tests.py` keeps this one in memory, except for tests with the mark `disk`.
    """
    below = tmp_path_factory.getbasetemp()
    if request.node.get_closest_marker("disk"):
        below = Path(os.environ.get("TESTS_ON_DISK", below.parent), below.name)
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = below / f"{name}{next(_numbers)}"
    folder.mkdir(mode=0o700, parents=True)
    request.node.stash[_folder] = folder
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Remove the test's folder once all fixtures have ended and no system function is patched any more."""
    result = yield
    if _folder in item.stash and not item.stash.get(_failed, False):
        shutil.rmtree(item.stash[_folder], ignore_errors=True)
    return result


@pytest.fixture(scope="session")
def nurseries(tmp_path_factory: pytest.TempPathFactory) -> Nurseries:
    """Processes with a framework already imported, from which others are forked; all test processes of the run share
    them."""
    from tests.nurseries import Nurseries  # the smoke tests run where this package is missing

    folder = tmp_path_factory.getbasetemp()
    side_by_side = "PYTEST_XDIST_WORKER" in os.environ
    return Nurseries(folder.parent if side_by_side else folder, os.getppid() if side_by_side else os.getpid())


@pytest.fixture(scope="session", autouse=True)
def forked_drives() -> Iterator[None]:
    """Fork the clients of simulated Drives, unless others read how they were started."""
    if find_spec("simulated_drive") is None:  # where the smoke tests run
        yield
        return
    from simulated_drive import drive
    from tests.support.forked_drive import ForkedClient

    start = drive.start_client
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            drive,
            "start_client",
            lambda config, log: start(config, log) if config["readonly"] else ForkedClient(config, log),
        )
        yield


@pytest.fixture(scope="session")
def moto_server() -> Iterator[BucketService]:
    """One S3 server for all tests of a process, because it takes a second to start."""
    from tests.sources.servers import moto_service

    with moto_service() as service:
        yield service


@pytest.fixture
def s3(moto_server: BucketService, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketService]:
    """An S3 server with one empty bucket, and a login in the environment that it accepts."""
    from tests.sources.servers import use_login

    use_login(monkeypatch, moto_server)
    moto_server.backend.create_bucket(moto_server.bucket, "us-east-1")
    yield moto_server
    moto_server.demand_known_logins(wanted=False)
    moto_server.backend.reset()


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages logged during the test."""
    handler = _Records()
    logging.getLogger().addHandler(handler)
    yield handler.texts
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount disks of so many MB below the test's folder: real ones that can really be full."""
    disks: list[Path] = []

    def make(megabytes: int) -> Path:
        place = tmp_path / ("small" if not disks else f"small{len(disks)}")
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
        mounted = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        if mounted.returncode:
            pytest.skip(f"needs the right to mount a tmpfs (root): {mounted.stderr.strip()}")
        disks.append(place)
        return place

    yield make
    # Since Python 3.13, an error that left a context manager keeps the frames it came through, and their files.
    gc.collect()
    # A process of anybody's that looks at all mounts keeps each busy for a moment.
    deadline = time.monotonic() + _GRACE_S
    for place in disks:
        while subprocess.run(["umount", str(place)], check=time.monotonic() > deadline, timeout=30).returncode:
            time.sleep(0.05)


@pytest.fixture
def small_disk(make_disk: Callable[[int], Path]) -> Path:
    """A disk of 8 MB."""
    return make_disk(8)


_NO_TORCH = "needs torch: pip install -c constraints.txt torch"
_NO_GPU = "needs a CUDA device that torch can use"


class _ModuleWithoutTorch(pytest.Module):
    """A test module where torch is missing: skipped if it cannot be imported without it."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            if "No module named 'torch'" in str(error):
                pytest.skip(_NO_TORCH, allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Return a module that is skipped if it needs torch and there is none."""
    return None if find_spec("torch") else _ModuleWithoutTorch.from_parent(parent, path=module_path)


@cache
def _missing_part(mark: str) -> str | None:
    """Why tests with this mark cannot run here; `None` if they can."""
    if mark == "fuse":
        from simulated_drive.drive import fuse_problem

        return fuse_problem()
    if find_spec("torch") is None:
        return _NO_TORCH
    if mark == "gpu":
        import torch

        if not torch.cuda.is_available():
            return _NO_GPU
        # At its first use, the driver opens files and pipes of its own, which are not a test's leaks.
        torch.zeros(1, device="cuda")
    return None


def pytest_configure() -> None:
    """Make Ctrl-C work, here and in the processes that tests start, as it does on a terminal.

    A background job inherits that it is ignored. Also preload torch in Python's fork server, from which loaders'
    workers come: importing it would take each of them two seconds.
    """
    multiprocessing.set_forkserver_preload(["torch.utils.data", "h5py"])
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude everything imported with the tests from garbage collection: with torch, it is half a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # Collections took a twentieth of the run: what tests leave behind in cycles is little.
        gc.set_threshold(100_000, 50, 100)


def pytest_unconfigure() -> None:
    """Let the process end without a search for garbage among all that was imported, which takes seconds."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if a mark of it names a missing part."""
    for mark in ("fuse", "torch", "gpu"):
        reason = _missing_part(mark) if item.get_closest_marker(mark) else None
        if reason:
            pytest.skip(reason)


# Started once, by a debugger or by multiprocessing, and meant to live as long as the process. (Python does not know the
# thread pools of OpenMP and torch.) fsspec has one event loop in a daemon thread, and that loop has a pool for blocking
# calls.
_HARMLESS_THREADS = re.compile(r"pydevd|fsspecIO|asyncio_\d+$")
_HARMLESS_PROCESSES = re.compile(r"multiprocessing\.(?:resource_tracker|forkserver)")
_HARMLESS_FILES = re.compile(r"/dev/(?:u?random|null|nvidia)|/sys/devices/system/cpu")
# How long threads that were told to end may take on a busy machine; and processes, which may have to start first: one
# that its pool does not need any more imports its modules, and ends then.
_GRACE_S, _PROCESS_GRACE_S = 3.0, 30.0
# How long to wait before garbage is collected.
_PATIENCE_S = 0.1

_failed = pytest.StashKey[bool]()


# What this process holds: a description for each, by what identifies it.
Held = dict[tuple[str, object], str]


def _threads() -> Held:
    return {
        ("thread", thread.ident): f"thread {thread.name}"
        for thread in threading.enumerate()
        if not _HARMLESS_THREADS.search(thread.name)
    }


@cache
def _lists_children() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


def _children() -> Iterator[psutil.Process]:
    """Our child processes, from the kernel's own lists if it keeps them, which is far quicker."""
    if not _lists_children():
        yield from psutil.Process().children()
        return
    with os.scandir("/proc/self/task") as threads:
        for thread in threads:
            with suppress(FileNotFoundError), open(f"{thread.path}/children", "rb") as numbers:
                for number in numbers.read().split():  # the thread may have ended meanwhile
                    with suppress(psutil.NoSuchProcess):
                        yield psutil.Process(int(number))


def _processes() -> Held:
    held: Held = {}
    for child in _children():
        with suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline()) or f"[{child.name()}, {child.status()}]"
            if not _HARMLESS_PROCESSES.search(command):
                held["process", child.pid] = f"process {child.pid}: {command}"
    return held


def _files() -> Held:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    kept = {getattr(tracker, "_fd", None), getattr(server, "_forkserver_alive_fd", None), *_loop_files()}
    held: Held = {}
    with os.scandir("/proc/self/fd") as entries:
        numbers = [entry.name for entry in entries]
    for number in numbers:
        with suppress(OSError):  # the descriptor that lists this folder
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - as quick as can be: for every test
            if int(number) not in kept and not _HARMLESS_FILES.match(target):
                held["file", f"{number} {target}"] = f"file descriptor {number} of {target}"
    return held


def _loop_files() -> set[int]:
    """The descriptors that fsspec's event loop, which lives as long as the process, waits on and is woken by."""
    loop = getattr(sys.modules.get("fsspec.asyn"), "loop", [None])[0]
    parts = (getattr(loop, name, None) for name in ("_selector", "_ssock", "_csock"))
    return {part.fileno() for part in parts if part is not None}


def _mounts(below: Path) -> Held:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = file.read()
    # For almost every test nothing is mounted there.
    points = [line.split()[4] for line in mounts.splitlines() if f" {below}/" in line] if f" {below}/" in mounts else []
    return {("mount", point): f"mount at {point}" for point in points}


def _hdf5_ids() -> Held:
    if "h5py" not in sys.modules:
        return {}
    from h5py import h5f

    # Datatypes are left out: importing h5py registers some for good.
    kinds = h5f.OBJ_FILE | h5f.OBJ_DATASET | h5f.OBJ_GROUP | h5f.OBJ_ATTR
    return {("hdf5", number): "open HDF5 object" for number in range(h5f.get_obj_count(h5f.OBJ_ALL, kinds))}


def held_now(below: Path) -> Held:
    """Return what this process holds; of mounts only those below the folder `below`."""
    return _threads() | _processes() | _files() | _mounts(below) | _hdf5_ids()


def leaks_since(before: Held, below: Path) -> list[str]:
    """Return what is held in addition to `before`, after what is ending has had time for it."""
    start = time.monotonic()
    pause_s = 0.001
    # A test's objects are young, and young garbage is collected within a millisecond. A full collection takes as long
    # as a hundred looks; it comes after servers' threads have had the moment they need to end.
    collections = [(0.0, 1), (_PATIENCE_S, 2), (10 * _PATIENCE_S, 2)]
    while True:
        leaks = sorted(line for key, line in held_now(below).items() if key not in before)
        waited_s = time.monotonic() - start
        is_process = any(line.startswith("process") for line in leaks)
        if not leaks or waited_s > (_PROCESS_GRACE_S if is_process else _GRACE_S):
            return leaks
        if collections and waited_s >= collections[0][0]:
            gc.collect(collections.pop(0)[1])
            continue
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure, expected ones too: its traceback keeps objects alive, so leaks cannot be judged."""
    report = yield
    if call.excinfo is not None:
        item.stash[_failed] = True
    return report


# How many modules were imported when their objects were last excluded from garbage collection.
_modules = [0]
_MANY_MODULES = 50


def exclude_modules() -> None:
    """Exclude what tests have imported meanwhile: with frameworks, a full collection would take half a second."""
    if len(sys.modules) >= _modules[0] + _MANY_MODULES:
        gc.freeze()
        _modules[0] = len(sys.modules)


@pytest.fixture(autouse=True)
def leak_guard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves a thread, child process, file descriptor, mount or HDF5 handle behind."""
    exclude_modules()
    below = tmp_path_factory.getbasetemp()
    before = held_now(below)
    yield
    if request.node.stash.get(_failed, False):
        return
    leaks = leaks_since(before, below)
    if leaks:
        pytest.fail("The test left behind:\n  " + "\n  ".join(leaks), pytrace=False)

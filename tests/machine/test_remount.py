"""Work that survives one death of Drive's client, and what is never done about other trouble."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from colabstage import (
    compare_sources,
    extract_archive,
    fetch_files,
    list_datasets,
    list_runs,
    pack_dataset,
    plan_stage,
    publish_file,
    restore_file,
    stage_dataset,
    verify_file,
)
from colabstage.errors import DriveAuthError, DriveDisconnectedError, SourceReadError
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault
from tests.support.colab import ColabKnobs, SimulatedColab, simulated_colab
from tests.support.images import in_classes, make_tree
from tests.support.steps import Meanwhile

pytestmark = pytest.mark.fuse

FILES = {f"{number:02}.bin": bytes([number]) * 3000 for number in range(100)}


@pytest.fixture
def drive_knobs(request: pytest.FixtureRequest) -> DriveKnobs:
    """Without waiting times; the test's parameter may change settings."""
    return replace(DriveKnobs.quick(), **getattr(request, "param", {}))


@pytest.fixture
def drive(tmp_path: Path, drive_knobs: DriveKnobs) -> Iterator[SimulatedDrive]:
    """A Drive account with a few files."""
    with SimulatedDrive(tmp_path / "google", knobs=drive_knobs) as simulated:
        make_tree(simulated.cloud / "MyDrive/data", FILES)
        yield simulated


@pytest.fixture
def colab(tmp_path: Path, drive: SimulatedDrive) -> Iterator[SimulatedColab]:
    """A Colab notebook with that Drive mounted at its usual place."""
    with simulated_colab(tmp_path / "machine", drive=drive) as machine:
        drive.mount(machine.root / "content/drive")
        yield machine


def fetch(colab: SimulatedColab, happens: Callable[[], object]) -> Any:
    """Fetch the files; call `happens` at the start."""
    todo, target = [happens], colab.root / "here"
    report = fetch_files(
        colab.root / "content/drive/MyDrive/data", target, progress=Meanwhile(lambda: todo and todo.pop()())
    )
    assert {path.name: path.read_bytes() for path in target.iterdir()} == FILES
    return report


@pytest.mark.parametrize("drive_knobs", [{}, {"time_scale": 0.01, "death_enoent_s": 30.0}], indirect=True)
def test_work_goes_on_after_the_client_has_died(
    colab: SimulatedColab, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one mount, requested once, and the report says so, even if nothing exists for a moment. If the current
    folder is inside Drive, it is left and entered again: the client's shell would keep the mount busy for good."""
    inside = colab.root / "content/drive/MyDrive/data"
    monkeypatch.chdir(inside)
    report = fetch(colab, drive.kill)
    assert colab.calls.count("drive.mount") == 1
    assert [note for note in report.notes if "mounted again" in note]
    assert (Path.cwd(), colab.shells) == (inside, [])
    assert Path("07.bin").read_bytes() == FILES["07.bin"]


@pytest.mark.parametrize("drive_knobs", [{"death_after_opens": 6}], indirect=True)
def test_a_client_that_dies_again_is_left_dead(colab: SimulatedColab) -> None:
    """After the second death, the user decides."""
    with pytest.raises(DriveDisconnectedError, match=r"mount_drive\("):
        fetch(colab, lambda: None)
    assert colab.calls.count("drive.mount") == 1


def test_a_refused_permission_is_the_error(colab: SimulatedColab, drive: SimulatedDrive) -> None:
    """The first failure is its context."""
    colab.knobs = ColabKnobs(auth="refused")
    with pytest.raises(DriveAuthError) as caught:
        fetch(colab, drive.kill)
    assert isinstance(caught.value.__context__ or caught.value.__cause__, Exception)


@pytest.mark.parametrize("where", ["in a thread", "in a script"])
def test_only_a_notebooks_main_thread_mounts(colab: SimulatedColab, drive: SimulatedDrive, where: str) -> None:
    """Elsewhere the message says why nothing was done: Colab's notebooks do not show notes of exceptions."""
    if where == "in a script":
        sys.modules["IPython"].get_ipython = lambda: None  # type: ignore[attr-defined]
    call = partial(fetch, colab, drive.kill)
    with ThreadPoolExecutor(1) as threads, pytest.raises(DriveDisconnectedError, match="not mounted again") as caught:
        call() if where == "in a script" else threads.submit(call).result()
    assert not hasattr(caught.value, "__notes__")
    assert colab.calls == []


def test_a_living_drive_that_fails_is_not_touched(colab: SimulatedColab, drive: SimulatedDrive) -> None:
    """Errno 5 from a living client is not a death: pending uploads must not be lost for it."""
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="*/07.bin"),)))
    with pytest.raises(SourceReadError, match=r"07\.bin"):
        fetch(colab, lambda: None)
    assert colab.calls == []


def test_staging_goes_on_after_the_client_has_died_midway(
    tmp_path: Path, colab: SimulatedColab, drive: SimulatedDrive
) -> None:
    """Some images before the death and the others after it make the same pack as an undisturbed run."""
    # When some are in place for good, which is noted for eight at a time, not all others are read ahead: that is 32 for
    # each core, and 32 in flight.
    some = 40
    make_tree(drive.cloud / "MyDrive/photos", in_classes(some + 64 + 32 * len(os.sched_getaffinity(0))))
    photos = colab.root / "content/drive/MyDrive/photos"
    options: dict[str, Any] = {"cache_dir": None}
    truth = stage_dataset(photos, local_dir=tmp_path / "truth", progress=False, **options).path.read_bytes()
    advances = count(1)

    def advance() -> None:
        if next(advances) == some:
            drive.kill()

    staged = stage_dataset(photos, local_dir=tmp_path / "fast", progress=Meanwhile(advance, during="pack"), **options)
    assert [note for note in staged.report.notes if "mounted again" in note]
    assert "already in place" in str(staged.report)
    assert staged.path.read_bytes() == truth


# What asks the system about a path.
CALLS = "stat lstat open rename replace link unlink mkdir rmdir listdir scandir statvfs utime chmod truncate readlink"


def test_no_call_to_a_drive_is_made_by_the_callers_own_thread(
    colab: SimulatedColab, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that hangs could not be left behind there: also what only looks is watched."""
    make_tree(drive.cloud / "MyDrive/photos", in_classes(6))
    root, here = colab.root / "content/drive/MyDrive", colab.root / "here"
    quiet: dict[str, Any] = {"progress": False}
    places: dict[str, Any] = {"local_dir": here, "cache_dir": root / "cache"}
    calls: dict[str, Callable[[], Any]] = {
        "plan": lambda: plan_stage(root / "photos", **places),
        "stage": lambda: stage_dataset(root / "photos", **places, **quiet).wait_published(),
        "stage again": lambda: stage_dataset(root / "photos", **places, **quiet),
        "restore": lambda: stage_dataset(root / "photos", **{**places, "local_dir": colab.root / "other"}, **quiet),
        "list": lambda: list_datasets(**places),
        "pack": lambda: pack_dataset(root / "photos", root / "photos.h5", **quiet),
        "verify": lambda: verify_file(root / "photos.h5", **quiet),
        "compare": lambda: compare_sources(root / "photos", local_dir=colab.root / "some", budget_s=0.5, **quiet),
        "fetch": lambda: fetch_files(root / "photos", root / "copy", **quiet),
        "extract": lambda: extract_archive(root / "photos.zip", root / "out", **quiet),
        "publish": lambda: publish_file(root / "photos.h5", root / "again.h5", **quiet),
        "restore a file": lambda: restore_file(root / "again.h5", colab.root / "again.h5", **quiet),
        "runs": lambda: list_runs(root),
    }
    shutil.make_archive(str(drive.cloud / "MyDrive/photos"), "zip", drive.cloud / "MyDrive/photos")
    made, doing, caller = list[str](), list[str](), threading.current_thread()

    def watched(name: str) -> Any:
        real = getattr(os, name)

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is caller and str(path).startswith(str(root.parent)):
                made.append(f"{doing[-1]}: {name} {path}")
            return real(path, *arguments, **options)

        return call

    for name in CALLS.split():
        monkeypatch.setattr(os, name, watched(name))
    for what, work in calls.items():
        doing.append(what)
        work()
    monkeypatch.undo()
    assert not made


def test_a_client_that_hangs_in_a_write_is_an_error_in_time(
    colab: SimulatedColab, drive: SimulatedDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that never returns is abandoned, nothing was published, and the next call publishes it."""
    for name, seconds in {"_ASK_EVERY_S": 0.1, "_HANGS_S": 0.5, "_DIES_S": 0.1, "_PROBE_TIMEOUT_S": 0.5}.items():
        monkeypatch.setattr(f"colabstage.machine.watched.{name}", seconds)
    source, target = colab.root / "model.pt", colab.root / "content/drive/MyDrive/model.pt"
    source.write_bytes(bytes(range(256)) * 80_000)
    # Once: the abandoned call continues when the client does. And not after that: on a busy machine, the call may be
    # given up before it came so far.
    happens, lock = [drive.hang], threading.Lock()

    def hang() -> None:
        with lock:
            if happens:
                happens.pop()()

    began = time.monotonic()
    try:
        with pytest.raises(DriveDisconnectedError, match="has not answered"):
            publish_file(source, target, progress=Meanwhile(hang))
        assert time.monotonic() - began < 10
    finally:
        with lock:
            happens.clear()
        drive.go_on()
    assert not target.exists()
    publish_file(source, target, progress=False)
    assert target.read_bytes() == source.read_bytes()

"""`resumable`: however a session ends, the next one continues where it was, with the same final weights."""

import contextlib
import errno
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from colabstage import dataset_h5, list_runs, make_loader, pack_dataset, resumable, stage_dataset
from colabstage.errors import (
    DamagedPackError,
    DriveDisconnectedError,
    NotEnoughSpaceError,
    OptionError,
    RunInUseError,
    TargetExistsError,
)
from colabstage.transforms import RandomFlip, RandomResizedCrop
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.runs.training import ROWS, make_parts, train, train_step, write_data
from tests.support.deadlines import shorten_deadlines
from tests.support.images import in_classes, make_tree

STEPS = 36  # three epochs of twelve
LEASE = "run.json"
SILENT_S = 150.0  # without a sign of life for so long, another machine's session counts as gone


class DiedError(Exception):
    """Ends a session in the middle of a step."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "rows.h5")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The parts of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("whole")
    return train(folder / "run", data, folder / "out.pt")


def session(
    folder: Path, data: Path, *, until: int | None = None, saves: tuple[int, ...] = (), **options: Any
) -> tuple[dict[str, Any], Any]:
    """Run one session that dies in step `until`, or trains to the end; return its parts and its run. `saves`: steps
    after which it waits for a save."""
    parts = make_parts(data)
    rows: list[list[int]] = []
    run = resumable(folder, progress=False, **{"every": "7 steps", **parts, **options})
    try:
        with run:
            for _ in run.epochs(3):
                for (x, y), index in parts["loader"]:
                    loss = train_step(parts, x, y)
                    rows.append(index.tolist())
                    if run.steps + 1 == until:
                        raise DiedError  # noqa: TRY301 - as the user's code would, inside the block
                    run.step(loss=loss)
                    if run.steps in saves:
                        run.save()
                run.log(weight=parts["model"][1].weight.sum())
    except DiedError:
        pass
    return {**parts, "rows": rows}, run


def assert_same_weights(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part in ("model", "optimizer"):
        ours, theirs = flat(one[part].state_dict()), flat(other[part].state_dict())
        assert ours.keys() == theirs.keys()
        assert [key for key in ours if not torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(theirs[key]))] == []


def versions(folder: Path) -> Any:
    """The versions in a run's folder, newest first."""
    return list_runs(folder)[0].versions


def flip(file: Path) -> None:
    """Damage one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def leave_lease(data: Path, folder: Path, **facts: Any) -> dict[str, Any]:
    """Let a session write its lease, and change it as if it were another machine's, or had been killed."""
    if not (folder / LEASE).exists():
        with resumable(folder, progress=False, **make_parts(data)):
            pass
    lease = {**json.loads((folder / LEASE).read_text("utf-8")), "ended": False, **facts}
    (folder / LEASE).write_text(json.dumps(lease), "utf-8")
    return lease


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict | OrderedDict):
        return {key: value for at, item in state.items() for key, value in flat(item, f"{name}/{at}").items()}
    if isinstance(state, list | tuple):
        return {key: value for at, item in enumerate(state) for key, value in flat(item, f"{name}/{at}").items()}
    return {} if state is None else {name: state}


def test_weights_are_those_of_a_run_that_nothing_interrupted(data: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    """With dropout, moments and a schedule, after deaths in the middle of an epoch and at its edges."""
    for death in (1, 8, 8, 12, 13, 36):
        session(tmp_path, data, until=death)
    parts, run = session(tmp_path, data)
    assert_same_weights(parts, whole)
    assert run.steps == STEPS


@pytest.mark.parametrize("damage", ["flipped", "no manifest", "gone"])
def test_a_damaged_version_is_passed_over(data: Path, whole: dict[str, Any], tmp_path: Path, damage: str) -> None:
    """The previous one is used, and the run says so."""
    session(tmp_path, data, until=20, saves=(7, 14))
    newest, before = versions(tmp_path)
    file = tmp_path / newest.name
    if damage == "flipped":
        flip(file)
    elif damage == "no manifest":
        (tmp_path / f"{newest.name}.json").unlink()
    else:
        file.unlink()
        assert not versions(tmp_path)[0].complete
        (tmp_path / f"{newest.name}.json").unlink()
    parts, run = session(tmp_path, data)
    assert run.resumed_from is not None
    assert run.resumed_from.name == before.name
    assert damage == "gone" or any(newest.name in note for note in run.notes)
    assert_same_weights(parts, whole)


def test_what_does_not_fit_is_refused_before_anything_changes(data: Path, tmp_path: Path) -> None:
    """Another model, another optimizer, one of another model, other parts, another batch size, another number of rows,
    other labels."""
    session(tmp_path / "run", data, until=10)
    other, relabelled = write_data(tmp_path / "other.h5", rows=ROWS - 8), write_data(tmp_path / "relabelled.h5")
    with h5py.File(relabelled, "r+") as file:
        file["Y_train"][:] = file["Y_train"][:][::-1]
    fits = make_parts(data)
    for parts, name in [
        (make_parts(data, width=17), "model"),
        ({**fits, "optimizer": torch.optim.SGD(fits["model"].parameters())}, "optimizer"),
        ({**fits, "model": make_parts(data)["model"]}, "optimizer"),
        ({name: part for name, part in fits.items() if name != "scheduler"}, "scheduler"),
        (make_parts(data, batch_size=4), "loader"),
        (make_parts(other), "loader"),
        (make_parts(relabelled), "dataset"),
    ]:
        before = {key: value.clone() for key, value in parts["model"].state_dict().items()}
        with (
            pytest.raises(OptionError, match=name) as refused,
            resumable(tmp_path / "run", progress=False, **parts),
        ):
            pass
        assert all(torch.equal(value, before[key]) for key, value in parts["model"].state_dict().items())
        assert parts["loader"].state_dict()["batches_done"] == 0
    saved = eval(re.findall(r"torch\.load\(.*'parts'\]", str(refused.value))[0], {"torch": torch})
    assert saved.keys() == fits.keys()
    # Afterwards, the run continues as if nobody had tried.
    assert session(tmp_path / "run", data)[1].steps == STEPS


def test_a_second_session_is_refused_and_may_take_over(data: Path, tmp_path: Path) -> None:
    """The error helps to find the first one, which stops at its next step."""
    first, second = make_parts(data), make_parts(data)
    deadline = time.monotonic() + 60
    with (  # noqa: PT012 - whenever the first session notices it
        pytest.raises(RunInUseError, match="Session 2"),
        resumable(tmp_path, progress=False, every="1 steps", **first) as run,
    ):
        run.step()
        with pytest.raises(RunInUseError, match="session 1"), resumable(tmp_path, progress=False, **second):
            pass
        with resumable(tmp_path, progress=False, take_over=True, **second) as other:
            other.step()
        while time.monotonic() < deadline:
            run.step()
            time.sleep(0.01)
    assert versions(tmp_path)[0].session == 2


@pytest.mark.parametrize(
    "value",
    ["0.5", None, torch.ones(4), 10**400, torch.tensor(1j)],
    ids=["text", "nothing", "four numbers", "too large", "complex"],
)
def test_what_is_no_number_is_refused_at_its_step(tmp_path: Path, data: Path, value: object) -> None:
    """Not at the end of the epoch, which would be lost."""
    with resumable(tmp_path, progress=False, **make_parts(data)) as run:
        with pytest.raises(OptionError, match="accuracy"):
            run.step(accuracy=value)
        with pytest.raises(OptionError, match="accuracy"):
            run.log(accuracy=value)


class _Clock:
    """A clock that passes exactly as fast as it is waited for."""

    def __init__(self, each: Callable[[], object] = lambda: None) -> None:
        self.passed = 0.0
        self._each = each

    def now(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        self._each()

    def wait(self, condition: threading.Condition, timeout: float) -> bool:
        self.passed += timeout
        return condition.wait(0.001)


@pytest.mark.parametrize(("beats", "behind_s"), [(False, 0), (True, 0), (True, 300), (True, -300)])
def test_a_session_of_another_machine_is_listened_to(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: bool, behind_s: float
) -> None:
    """A silent one is gone; one that shows signs of life is training, whatever its clock says."""
    leave_lease(data, tmp_path, session=4, owner="0123abcd-7-99", host="a-machine", beat=time.time() - behind_s)

    def beat() -> None:
        if beats:
            leave_lease(data, tmp_path, beat=time.time() - behind_s + 1)

    clock = _Clock(beat)
    run = resumable(tmp_path, progress=False, **make_parts(data))
    monkeypatch.setattr(run, "_clock", clock)
    if beats:
        with pytest.raises(RunInUseError, match="a-machine"), run:
            pass
    else:
        with run:
            pass
        assert clock.passed >= SILENT_S - 5
        lease = json.loads((tmp_path / LEASE).read_text("utf-8"))
        assert (lease["session"], lease["ended"]) == (5, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_step_and_ends(
    data: Path, whole: dict[str, Any], tmp_path: Path, number: signal.Signals
) -> None:
    """At the end of the step, when the state is complete; afterwards, the caller's own handlers are restored."""
    parts = make_parts(data)
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    ends = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(ends), resumable(tmp_path, progress=False, every="1 h", **parts) as run:  # noqa: PT012
        for _ in run.epochs(3):
            for (x, y), _ in parts["loader"]:
                loss = train_step(parts, x, y)
                if run.steps == 16:
                    os.kill(os.getpid(), number)
                run.step(loss=loss)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    assert versions(tmp_path)[0].step == 17
    assert_same_weights(session(tmp_path, data)[0], whole)


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while opened.write(bytes(4096)):
            pass


def test_a_full_disk_costs_saves_and_no_training(
    data: Path, whole: dict[str, Any], make_disk: Callable[[int], Path]
) -> None:
    """The note says since when nothing was saved; once there is room again, it is saved."""
    disk = make_disk(1)
    filler = disk / "full"
    parts = make_parts(data)
    with resumable(disk / "run", progress=False, every=0.01, **parts) as run:
        for epoch in run.epochs(3):
            for number, ((x, y), _) in enumerate(parts["loader"]):
                # So that each step saves, the next version is due, and no save is in progress: one that ends on a full
                # disk makes room for others.
                time.sleep(0.02)
                deadline = time.monotonic() + 60
                while ">saving<" in run._repr_html_() and time.monotonic() < deadline:
                    time.sleep(0.005)
                if (epoch, number) == (1, 0):
                    fill(filler)
                if (epoch, number) == (2, 0):
                    filler.unlink()
                run.step(loss=train_step(parts, x, y))
    assert any("Nothing was saved since" in note for note in run.notes)
    assert versions(disk / "run")[0].step == STEPS
    assert_same_weights(parts, whole)


@pytest.mark.parametrize("when", ["before", "at the end"])
def test_a_run_that_cannot_be_saved_is_an_error(data: Path, make_disk: Callable[[int], Path], when: str) -> None:
    """Without its lease, its folder cannot show that a session trains; and no run may seem saved that is not."""
    disk = make_disk(1)
    (disk / "run").mkdir()
    if when == "before":
        fill(disk / "full")
    with (  # noqa: PT012 - at the end of the block
        pytest.raises(NotEnoughSpaceError),
        resumable(disk / "run", progress=False, every=0, **make_parts(data)) as run,
    ):
        fill(disk / "full")
        run.step()


def test_a_full_local_disk_is_an_error_at_the_end(
    data: Path, tmp_path: Path, make_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions are written there first; torch hides the disk's errors behind its own."""
    local = make_disk(1)
    fill(local / "full")
    os.truncate(local / "full", (local / "full").stat().st_size - 20_000)
    monkeypatch.setattr("tempfile.tempdir", str(local))
    with (
        pytest.raises(NotEnoughSpaceError, match=str(local)),
        resumable(tmp_path / "run", progress=False, every="1 steps", **make_parts(data)) as run,
    ):
        run.step()
    assert list_runs(tmp_path / "run")[0].versions == ()


def test_who_empties_the_folder_for_temporary_files_loses_no_save(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions are written there first."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with resumable(tmp_path / "run", progress=False, **make_parts(data)) as run:
        run.step()
        shutil.rmtree(tmp_path / "temporary")
        run.save()
    assert len(versions(tmp_path / "run")) == 1
    assert not list((tmp_path / "temporary").glob(".colabstage-run*"))


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_run_with_nothing_to_restore_is_not_begun_anew(data: Path, tmp_path: Path, damage: str) -> None:
    """The error names the version, which may come back, and which later versions would remove."""
    with resumable(tmp_path, progress=False, **make_parts(data)) as run:
        run.step()
    (version,) = versions(tmp_path)
    file = tmp_path / version.name
    if damage == "flipped":
        flip(file)
    else:
        file.unlink()
        (tmp_path / f"{version.name}.json").unlink()
    with pytest.raises(DamagedPackError, match=version.name), resumable(tmp_path, progress=False, **make_parts(data)):
        pass


@pytest.mark.parametrize("name", ["{}.pt", "Copy of {}.pt", "{} (1).pt", "Kopie von {}.pt.json"])
def test_a_version_that_was_copied_in_part_is_not_passed_over(data: Path, tmp_path: Path, name: str) -> None:
    """By hand, without its manifest or by another name; whole, it is where a run in another folder begins."""
    session(tmp_path / "run", data, until=9, saves=(7,))
    (tmp_path / "copy").mkdir()
    file = tmp_path / "run" / versions(tmp_path / "run")[0].name
    copy = Path(shutil.copy(file, tmp_path / "copy" / name.format(file.stem)))
    with pytest.raises(DamagedPackError, match=re.escape(copy.name)):
        session(tmp_path / "copy", data)
    copy.unlink()
    for one in (file, file.with_name(f"{file.name}.json")):
        shutil.copy(one, tmp_path / "copy")
    (tmp_path / "copy" / LEASE).unlink(missing_ok=True)
    assert session(tmp_path / "copy", data)[1].resumed_from.step == 7


def test_of_two_that_begin_at_the_same_moment_one_goes_on(data: Path, tmp_path: Path) -> None:
    """Both have the same number then; the one that wrote its name last continues."""
    with (  # noqa: PT012 - the second one comes in the block
        pytest.raises(RunInUseError, match="a-machine"),
        resumable(tmp_path, progress=False, **make_parts(data)) as run,
    ):
        leave_lease(data, tmp_path, owner="0123abcd-7-99", host="a-machine")
        run.save()
    assert versions(tmp_path) == ()


def test_an_interrupt_at_the_beginning_holds_no_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C while Drive writes the sign of life."""
    close, closes = os.close, itertools.count(1)

    def interrupted(handle: int) -> None:
        is_sign = Path(f"/proc/self/fd/{handle}").resolve().name == "run.json"
        close(handle)
        if is_sign and next(closes) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", interrupted)
    for ended in (KeyboardInterrupt, None):
        with (
            pytest.raises(ended) if ended is not None else contextlib.nullcontext(),
            resumable(tmp_path, progress=False, **make_parts(data)) as run,
        ):
            run.step()
    assert len(versions(tmp_path)) == 1


def test_a_signal_after_the_last_step_ends_the_process_as_well(data: Path, tmp_path: Path) -> None:
    """At the end of the block, once the run is saved; two versions of one step do not replace each other."""
    with pytest.raises(SystemExit), resumable(tmp_path, progress=False, **make_parts(data)) as run:  # noqa: PT012
        run.step()
        run.save()
        run.save()
        os.kill(os.getpid(), signal.SIGTERM)
    steps = [version.step for version in versions(tmp_path)]
    assert len(steps) >= 2
    assert set(steps) == {1}


def test_another_dataset_of_as_many_rows_is_refused(tmp_path: Path) -> None:
    """The remaining rows would be others; the same pack in another place is accepted."""
    packs = []
    for number in range(2):
        folder = make_tree(
            tmp_path / f"photos{number}", {f"{kind}/{i}.png": 10 * number + i for kind in "ab" for i in range(8)}
        )
        packs.append(tmp_path / f"{number}.h5")
        pack_dataset(folder, packs[-1], image_size=(8, 8), progress=False)
    for file in (packs[0], packs[0].with_name("0.h5.json")):
        shutil.copy2(file, tmp_path / file.name.replace("0", "copy", 1))
    model = nn.Linear(2, 2)
    for pack in (packs[0], tmp_path / "copy.h5", packs[1]):
        loader = make_loader(dataset_h5(pack), 4, seed=0)
        refused = pytest.raises(OptionError, match="dataset") if pack == packs[1] else contextlib.nullcontext()
        with refused, resumable(tmp_path / "run", progress=False, model=model, loader=loader) as run:
            run.save()


def test_a_mount_that_dies_while_a_version_is_saved_is_a_typed_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call notices it: listing the folder, or checking whether the version has arrived."""
    iterdir, is_file, folder = Path.iterdir, Path.is_file, tmp_path / "run"

    def answer(path: Path) -> Path:
        if path.is_relative_to(folder):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), str(path))
        return path

    with resumable(folder, **make_parts(data)) as run:
        with monkeypatch.context() as dead:
            dead.setattr(Path, "iterdir", lambda path: iterdir(answer(path)))
            dead.setattr(Path, "is_file", lambda path: is_file(answer(path)))
            with pytest.raises(DriveDisconnectedError, match=str(folder)):
                run.save()
        run.save()


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.filterwarnings("ignore:.*in_memory=True:UserWarning")
def test_a_mount_that_begins_to_hang_ends_a_save_and_a_loop(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads or writes there is left behind."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        shutil.copy(data, drive.cloud / "MyDrive" / "rows.h5")
        drive.mount(tmp_path / "content/drive")
        my_drive = tmp_path / "content/drive/MyDrive"
        parts = make_parts(my_drive / "rows.h5")
        with resumable(my_drive / "run", progress=False, every=9999, **parts) as run:
            for use in (run.save, lambda: list(parts["loader"])):
                drive.hang()
                try:
                    # Not before: a busy machine may take as long for what does answer.
                    with monkeypatch.context() as short:
                        for package, most_s in (("machine", 0.5), ("runs", 2.0), ("load", 2.0)):
                            shorten_deadlines(package, most_s, short.setattr)
                        with pytest.raises(DriveDisconnectedError, match="not answered"):
                            use()
                finally:
                    drive.go_on()
            run.save()


def test_a_dead_process_holds_no_run(data: Path, tmp_path: Path) -> None:
    """Nothing waits for a process of this machine that died without cleaning up."""
    lease = leave_lease(data, tmp_path)
    leave_lease(data, tmp_path, session=2, owner=f"{lease['owner'].split('-')[0]}-1-1")
    assert list_runs(tmp_path)[0].state == "silent"
    with resumable(tmp_path, progress=False, **make_parts(data)) as run:
        run.step()
        assert list_runs(tmp_path)[0].state == "training"
    assert versions(tmp_path)[0].session == 3
    assert list_runs(tmp_path)[0].state == "ended"


def test_only_so_many_versions_are_kept(data: Path, tmp_path: Path) -> None:
    """Only files that a run wrote, and that are unchanged, are removed."""
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    run = resumable(tmp_path, progress=False, keep=3, **make_parts(data))
    with run:
        for number in range(6):
            run.step()
            run.save()
            if number == 1:
                first = tmp_path / versions(tmp_path)[-1].name
                first.write_bytes(b"something else")
    assert [version.step for version in versions(tmp_path)] == [6, 5, 4, 1]
    assert first.read_bytes() == b"something else"
    assert (tmp_path / "notes.txt").read_text("utf-8") == "mine"
    assert {path.name for path in tmp_path.iterdir() if path.suffix == ".pt"} == {
        version.name for version in versions(tmp_path)
    }


def test_without_a_loader_it_goes_on_at_the_beginning_of_an_epoch(data: Path, tmp_path: Path) -> None:
    """The place in an epoch is unknown then, so a version holds whole epochs."""
    parts = make_parts(data)
    loader = parts.pop("loader")
    with pytest.raises(DiedError), resumable(tmp_path, progress=False, every=0, **parts) as run:  # noqa: PT012
        for epoch in run.epochs(3):
            for number, ((x, y), _) in enumerate(loader):
                run.step(loss=train_step(parts, x, y))
                if (epoch, number) == (1, 6):
                    raise DiedError
    again = make_parts(data)
    again.pop("loader")
    with resumable(tmp_path, progress=False, **again) as run:
        assert (run.epoch, run.steps) == (1, 12)


@pytest.mark.parametrize(
    ("known", "end", "logged"),
    [(False, signal.raise_signal, [0, 1]), (True, signal.raise_signal, [0, 1]), (True, None, [0, 0, 1])],
)
def test_an_epoch_whose_batches_are_done_is_not_repeated(
    data: Path, tmp_path: Path, known: bool, end: Any, logged: list[int]
) -> None:
    """After a signal or a save between its last batch and its end; what comes after the batches is done again."""
    seen: list[tuple[int, list[int]]] = []
    for is_first in (True, False):
        parts = make_parts(data)
        loader = parts["loader"] if known else parts.pop("loader")
        with contextlib.suppress(SystemExit, DiedError), resumable(tmp_path, progress=False, **parts) as run:
            for epoch in run.epochs(2):
                for _, rows in loader:
                    run.step()
                    seen.append((epoch, rows.tolist()))
                if is_first and end:
                    end(signal.SIGTERM)
                run.log(accuracy=0.5)
                if is_first and not end:
                    run.save()
                    raise DiedError
    assert [row["epoch"] for row in run.history if "accuracy" in row] == logged
    assert [epoch for epoch, _ in seen] == [0] * 12 + [1] * 12
    whole = make_parts(data)["loader"]
    assert not known or [rows for _, rows in seen] == [rows.tolist() for _ in range(2) for _, rows in whole]


def test_a_run_that_is_done_does_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and is listed with the epoch and step of the version that it started from; with more epochs it
    continues."""
    session(tmp_path, data)
    done = list_runs(tmp_path)[0]
    assert all(one.name in str(list_runs(tmp_path)) for one in done.versions)
    with resumable(tmp_path, **make_parts(data)) as run:
        assert list(run.epochs(3)) == []
        assert run.steps == STEPS
        assert (list_runs(tmp_path)[0].epoch, list_runs(tmp_path)[0].step) == (done.epoch, STEPS)
    after = list_runs(tmp_path)[0]
    assert (after.session, after.epoch, after.step, after.state) == (2, done.epoch, STEPS, "ended")
    with resumable(tmp_path, **make_parts(data)) as run:
        assert list(run.epochs(4)) == [3]
    assert "3 epochs" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "use",
    [
        lambda run: list(run.epochs(2)),
        lambda run: run.step(loss=1.0),
        lambda run: run.log(loss=1.0),
        lambda run: run.save(),
    ],
    ids=["epochs", "step", "log", "save"],
)
def test_a_loop_outside_the_block_is_refused(data: Path, tmp_path: Path, use: Any, when: str) -> None:
    """Nothing would be restored or saved, and nobody would notice before the machine is gone."""
    run = resumable(tmp_path / "run", progress=False, **make_parts(data))
    if when == "after":
        with run:
            run.step(loss=1.0)
    with pytest.raises(OptionError, match="with resumable"):
        use(run)


def test_a_value_of_some_steps_has_the_mean_of_these(data: Path, tmp_path: Path) -> None:
    """Such as a generator's loss that is computed in every fifth step."""
    with resumable(tmp_path / "run", progress=False, **make_parts(data)) as run:
        for number in range(99):
            half = torch.tensor(1000.0, dtype=torch.float16)
            loss = np.ones(1) if number % 2 else torch.ones(1)
            run.step(loss=loss, half=half, **({} if number % 5 else {"generator": 3.0}))
        run.end_epoch()
    assert (run.history[0]["loss"], run.history[0]["half"], run.history[0]["generator"]) == (1.0, 1000.0, 3.0)


@pytest.mark.parametrize("number", ["3", 2.5, -1])
def test_a_number_of_epochs_that_is_none(data: Path, tmp_path: Path, number: Any) -> None:
    """Instead of training for none, or with an error about text."""
    with resumable(tmp_path / "run", progress=False, **make_parts(data)) as run, pytest.raises(OptionError):
        list(run.epochs(number))


def test_a_run_that_streamed_goes_on_with_the_whole_pack(tmp_path: Path) -> None:
    """The first session trains while the source is packed, and dies; the next one finds the pack in the cache. It does
    not know which rows of the epoch are left, so it begins the epoch again, and says so."""
    source = make_tree(tmp_path / "set", in_classes(40))
    seen: list[int] = []

    def session(steps: int, number: int, *, streaming: bool) -> list[str]:
        data = stage_dataset(
            source,
            local_dir=tmp_path / f"local {number}",
            cache_dir=tmp_path / "cache",
            streaming=streaming,
            progress=False,
        )
        loader = data.loader("train", 8)
        seen.clear()
        with resumable(tmp_path / "run", model=nn.Linear(2, 2), loader=loader, progress=False) as run:
            for _ in run.epochs(2):
                for _, y in loader:
                    seen.append(len(y))
                    run.step()
                    if len(seen) == steps:
                        run.save()
                        data.wait()
                        data.wait_published()
                        return run.notes
        return run.notes

    assert session(3, 1, streaming=True) == []
    assert any("Epoch 0 begins again" in note for note in session(5, 2, streaming=False))
    # From the end of an epoch, it continues in any order.
    notes = session(100, 3, streaming=True)
    assert (notes, sum(seen)) == ([], 40)


@pytest.mark.parametrize(
    ("first", "later"),
    [(nn.DataParallel, torch.compile), (nn.DataParallel, lambda model: model), (lambda model: model, nn.DataParallel)],
    ids=["parallel, compiled", "parallel, plain", "plain, parallel"],
)
@pytest.mark.filterwarnings("default")
def test_a_model_goes_on_in_another_wrapper(tmp_path: Path, first: Any, later: Any) -> None:
    """As on a machine with more GPUs, or after compiling."""
    model, again = nn.Linear(2, 2), nn.Linear(2, 2)
    with resumable(tmp_path / "run", model=first(model), progress=False) as run:
        run.step()
    with resumable(tmp_path / "run", model=later(again), progress=False) as run:
        assert run.steps == 1
    torch.testing.assert_close(again.weight, model.weight)


def test_the_history_spans_all_sessions(data: Path, tmp_path: Path) -> None:
    """A table of plain numbers, in order, and a figure of it that marks each session."""
    session(tmp_path, data, until=20)
    _, run = session(tmp_path, data)
    assert {row["session"] for row in run.history} == {1, 2}
    assert [row["step"] for row in run.history] == sorted(row["step"] for row in run.history)
    assert [row["step"] for row in run.history if "weight" in row] == [12, 24, 36]
    json.dumps(run.history)
    with pytest.raises(OptionError, match="step"):
        run.log(step=1)
    figure = run.plot("loss")
    assert len(figure.axes) == 1
    assert [line.get_xdata()[0] for line in figure.axes[0].lines[1:]] == [run.resumed_from.step]
    with pytest.raises(OptionError, match="accuracy"):
        run.plot("accuracy")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"every": "often"}, "often"),
        ({"every": -1}, "-1"),
        ({"every": True}, "True"),
        ({"model": 5}, "model"),
        ({"model": nn.Linear}, "Linear"),
        ({"loader": [1, 2]}, "loader"),
        ({"keep": 1.5}, "keep"),
        ({"take_over": "yes"}, "take_over"),
        # As torch's, which needs a GPU: a state_dict() of one rank, or of all in vain.
        ({"model": type("FullyShardedDataParallel", (nn.Linear,), {})(1, 1)}, "several ranks"),
        ({"folder": "s3://bucket/run"}, "an address"),
        ({"folder": ""}, "names nothing"),
        ({"folder": "a\0b"}, "NUL"),
    ],
)
def test_arguments_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    """Before a folder is created."""
    with pytest.raises(OptionError, match=named):
        resumable(**{"folder": tmp_path / "run", "model": nn.Linear(2, 2), **options})
    assert not (tmp_path / "run").exists()
    # There would be nothing to continue with.
    with pytest.raises(OptionError, match="model=model"):
        resumable(tmp_path / "run")


def test_a_file_of_somebody_elses_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    """A folder with an unrelated `run.json` is not a run's, and hides none beside it."""
    (tmp_path / LEASE).write_text('{"lr": 0.1}', "utf-8")
    with pytest.raises(TargetExistsError, match=LEASE), resumable(tmp_path, progress=False, **make_parts(data)):
        pass
    assert (tmp_path / LEASE).read_text("utf-8") == '{"lr": 0.1}'
    session(tmp_path / "ours", data, until=3, saves=(2,))
    assert [one.folder.name for one in list_runs(tmp_path)] == ["ours"]


def test_a_sign_of_life_that_a_kill_has_cut_holds_no_run(data: Path, tmp_path: Path) -> None:
    """Empty, cut short, or one over another: it proves nothing, and the versions count."""
    with resumable(tmp_path, progress=False, **make_parts(data)) as run:
        run.step()
    whole = (tmp_path / LEASE).read_bytes().rstrip()
    # None is JSON by accident, whatever the machine is called.
    for cut in (b"", whole[:5], whole[: len(whole) // 2], b" " * len(whole), bytes(len(whole)), whole + whole[-20:]):
        (tmp_path / LEASE).write_bytes(cut)
        assert list_runs(tmp_path)[0].step == 0
        with resumable(tmp_path, progress=False, **make_parts(data)) as run:
            assert run.steps == 1


class Odd:
    """Has a state that only code could restore."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"deep": [self.state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["deep"][0]


def test_a_part_without_a_state_of_its_own_yet_is_refused_by_name(tmp_path: Path) -> None:
    """As a `Trainer` that has not begun, whose model is another one: there is nothing to put back."""
    with resumable(tmp_path, trainer=Odd(1), progress=False) as run:
        run.step()
    late: Any = Odd(1)
    late.state_dict, late.load_state_dict = dict, lambda state: (state["deep"], int("size mismatch"))
    with pytest.raises(OptionError, match="size mismatch"), resumable(tmp_path, trainer=late, progress=False):
        pass


class Mode(StrEnum):
    FAST = "fast"


@pytest.mark.parametrize(
    "state",
    [object(), Mode.FAST, {Mode.FAST: 1}, {object()}, np.datetime64("2026-01-01"), torch.ones(2, device="meta")],
    ids=["object", "enum", "key", "member", "date", "meta"],
)
def test_a_state_that_could_not_be_read_back_is_refused(tmp_path: Path, state: Any) -> None:
    """Before anything is trained, by the place where it is."""
    parts: dict[str, Any] = {"model": nn.Linear(2, 2), "ema": Odd(state)}
    with pytest.raises(OptionError, match=r"ema\['deep'\]\[0\]"), resumable(tmp_path / "run", progress=False, **parts):
        pass
    assert not (tmp_path / "run").exists()


def test_moments_follow_their_parameters(tmp_path: Path) -> None:
    """An optimizer numbers them by their order, which may be another one; other parameters, other groups, and the
    common state of LBFGS in another order, are refused."""

    def make(*groups: list[int], kind: Any = torch.optim.Adam) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
        chosen = [{"params": [[*model.parameters()][number] for number in own]} for own in groups]
        return {"model": model, "optimizer": kind(chosen)}

    def train(folder: str, parts: dict[str, Any]) -> dict[str, Any]:
        with resumable(tmp_path / folder, progress=False, **parts) as run:
            loss = parts["model"](torch.eye(2)).square().sum()
            torch.autograd.backward(loss)
            parts["optimizer"].step(lambda: loss)
            run.step()
        return parts

    train("LBFGS", make([0, 1, 2, 3], kind=torch.optim.LBFGS))
    train("groups", make([0, 2], [1, 3]))
    first, again = train("Adam", make([0, 1, 2, 3])), make([2, 3, 0, 1])
    with resumable(tmp_path / "Adam", progress=False, **again):
        for number in (0, 1):
            old, new = (parts["optimizer"].state[parts["model"][number].weight] for parts in (first, again))
            assert torch.equal(old["exp_avg"], new["exp_avg"])
    for folder, other in [
        ("Adam", make([0, 1, 4, 5])),
        ("LBFGS", make([2, 3, 0, 1], kind=torch.optim.LBFGS)),
        ("groups", make([1, 3], [0, 2])),
    ]:
        with pytest.raises(OptionError, match="optimizer"), resumable(tmp_path / folder, progress=False, **other):
            pass


def test_an_optimizer_follows_weights_that_parts_share(tmp_path: Path) -> None:
    """Such as an encoder and the model around it, whichever comes first; and tied layers."""
    for first, second in itertools.permutations(["encoder", "model"]):
        encoder = nn.Linear(2, 2)
        parts: dict[str, Any] = {"encoder": encoder, "model": nn.Sequential(encoder, nn.Linear(2, 2), encoder)}
        optimizer = torch.optim.SGD(parts["model"].parameters(), 1.0, momentum=0.5)
        given = {name: parts[name] for name in (first, second)}
        with resumable(tmp_path, **given, optimizer=optimizer, progress=False) as run:
            assert (encoder.weight in optimizer.state) == (first == "model")
            torch.autograd.backward(parts["model"](torch.eye(2)).square().sum())
            optimizer.step()
            run.step()


def test_layers_that_stay_frozen_are_noted(tmp_path: Path) -> None:
    """Where the cell thaws them in one epoch only. Those that are thawed by the epoch before the first step, or are
    frozen in every session, are not."""
    said = []
    for thawed in ("3", "3", "", "1", "13"):
        model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4))).requires_grad_(False)
        with resumable(tmp_path, model=model, progress=False) as run:
            for number in thawed:
                model[int(number)].requires_grad_(True)
            run.step()
            run.step()
        said.append([note for note in run.notes if "Frozen" in note])
    assert ["model.3.weight" in str(notes) for notes in said] == [False, False, True, False, False]
    assert [len(notes) for notes in said] == [0, 0, 1, 0, 0]


def test_numbers_that_no_state_has_are_noted(tmp_path: Path) -> None:
    """A count and a temperature begin again; what is set by the step, what a batch sets, a count of each epoch, and a
    constant do not. Nothing is saved of a part that counts without a state, and a loss has nothing to save."""
    said = []
    for session in range(2):
        moving: Any = nn.Linear(1, 1)
        moving.count, moving.tau, moving.by_step, moving.rows, moving.batches = 0, 1.0, 0.0, None, 0
        metric: Any = nn.Module()
        metric.seen = []
        with resumable(tmp_path, moving=moving, metric=metric, loss=nn.MSELoss(), progress=False) as run:
            for _ in run.epochs(2 * session + 2):
                moving.batches = 0
                for number in range(3):
                    moving.count, moving.by_step, moving.rows = moving.count + 1, run.steps / 9, (8, 8, 5)[number]
                    moving.batches += 1
                    run.step()
                moving.tau /= 2
        said.append([note for note in run.notes if "state_dict" in note])
    assert [[note.split()[0] for note in notes] for notes in said] == [["metric"], ["metric", "Not"]]
    assert re.findall(r"moving\.(\w+)", said[1][1]) == ["count", "tau"]


def test_a_run_on_a_disk_that_goes_with_its_machine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for platform, is_noted in (("colab", True), ("python", False)):
        monkeypatch.setenv("COLABSTAGE_PLATFORM", platform)
        with resumable(tmp_path / platform, model=nn.Linear(1, 1), progress=False) as run:
            pass
        assert ["mounted Drive" in note for note in run.notes] == [True] * is_noted


@pytest.mark.parametrize(("done", "noted"), [(2, True), (3, False)])
def test_a_rest_that_the_loop_does_not_get_is_noted(data: Path, tmp_path: Path, done: int, noted: bool) -> None:
    """As after a look at a batch, once the loader's place is restored; of a whole epoch nothing is left."""
    for look in (False, True):
        loader = make_loader(dataset_h5(data), 32, seed=0)
        assert len(loader) == 3
        with resumable(tmp_path / "run", model=nn.Linear(2, 2), loader=loader, progress=False) as run:
            if look:
                next(iter(loader), None)
            for _ in itertools.islice(loader, done):
                run.step()
    assert ["Epoch 0" in note for note in run.notes] == [True] * noted


def test_a_loop_over_another_loader_is_noted(data: Path, tmp_path: Path) -> None:
    """As where the loop reads what a library has wrapped, or a second loader: the next session would visit rows again.
    A loop over the run's own is not, nor one without a loader."""
    said = []
    for given, read in ((0, 1), (0, 0), (None, 1)):
        loaders = [make_loader(dataset_h5(data), 8) for _ in range(2)]
        loader = None if given is None else loaders[given]
        with resumable(tmp_path / f"{given}-{read}", model=nn.Linear(2, 2), loader=loader, progress=False) as run:
            for _ in itertools.islice(loaders[read], 2):
                run.step()
        said.append(run.notes)
    assert [len(notes) for notes in said] == [1, 0, 0]
    assert "loader=" in said[0][0]


@pytest.mark.parametrize("steps", [0, 1])
def test_epochs_without_a_step_are_noted_once(steps: int, data: Path, tmp_path: Path) -> None:
    """Of a loop that forgot it. After one step a loop that skips the others has its reasons."""
    loader = make_loader(dataset_h5(data), 8)
    with resumable(tmp_path / "run", model=nn.Linear(2, 2), loader=loader, progress=False) as run:
        for _ in run.epochs(3):
            for _ in loader:
                if run.steps < steps:
                    run.step()
    assert [note for note in run.notes if "without run.step()" in note] == run.notes
    assert len(run.notes) == 1 - steps


def test_who_catches_the_interrupt_trains_no_further(data: Path, tmp_path: Path) -> None:
    """As libraries do that return early from their loop then; its epoch is not done."""
    parts = make_parts(data)
    with pytest.raises(KeyboardInterrupt), resumable(tmp_path, progress=False, **parts) as run:  # noqa: PT012
        for _ in run.epochs(2):
            with contextlib.suppress(KeyboardInterrupt):
                for (x, y), _ in parts["loader"]:
                    train_step(parts, x, y)
                    if run.steps == 4:
                        signal.raise_signal(signal.SIGINT)
                    run.step()
    assert run.steps == 5
    with resumable(tmp_path, progress=False, **make_parts(data)) as again:
        assert (again.epoch, again.steps) == (0, 5)
    # The cell with the loop alone, run again.
    with run:
        run.step()
    assert run.steps == 6


@pytest.mark.parametrize(("steps", "last"), [((5, 10, 15, 20), False), ((5, 10, 17, 22), True)])
def test_gradients_of_the_last_batches_are_not_lost(
    data: Path, tmp_path: Path, steps: tuple[int, ...], last: bool
) -> None:
    """They are in no version, so the next one comes with the step that they belong to: in the next epoch, or after the
    last batch of theirs."""

    def train(folder: Path, *, stop: bool = False) -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        loader = make_loader(dataset_h5(data), 8, seed=5, dtype=torch.float32)
        parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
        with resumable(folder, every="1 steps", progress=False, **parts) as run:

            def update() -> None:
                optimizer.step()
                optimizer.zero_grad()
                run.step()

            for epoch in run.epochs(2):
                for number, (x, y) in enumerate(loader, 12 * epoch + loader.state_dict()["batches_done"] % 12 + 1):
                    torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
                    if number in steps:
                        update()
                if stop:
                    signal.raise_signal(signal.SIGTERM)
                if last and any(one.grad is not None for one in model.parameters()):
                    update()
        assert run.notes == []
        return parts

    with pytest.raises(SystemExit):
        train(tmp_path / "run", stop=True)
    assert_same_weights(train(tmp_path / "run"), train(tmp_path / "whole"))


@pytest.mark.parametrize(("counted", "noted"), [(12, True), (8, False)])
def test_an_epoch_that_goes_on_with_the_next_pass_is_noted(
    counted: int, noted: bool, data: Path, tmp_path: Path
) -> None:
    """As of engines that count an epoch's batches, and begin the loader again where it had fewer left."""
    for steps in (4, counted):
        loader = make_loader(dataset_h5(data), 8)
        with resumable(tmp_path / "run", model=nn.Linear(2, 2), loader=loader, progress=False) as run:
            batches = itertools.chain(loader, loader)
            for _ in run.epochs(1):
                for _ in itertools.islice(batches, steps):
                    run.step(loss=0.5)
                if steps == 4:
                    run.save()
                    break
    assert ["len(loader) - loader.state_dict()" in note for note in run.notes] == [True] * noted


def test_a_loader_without_a_place_is_refused(data: Path, tmp_path: Path) -> None:
    """As Accelerate's, whose method fails."""

    class Prepared(torch.utils.data.DataLoader[Any]):
        def state_dict(self) -> Any:
            return super().__getattribute__("absent")

        load_state_dict = print

    with pytest.raises(OptionError, match="Leave loader= out"):
        resumable(tmp_path, model=nn.Linear(2, 2), loader=Prepared(dataset_h5(data)))


def test_a_loader_that_is_older_than_its_ranks_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank would train on all samples."""
    made = {rank: make_loader(dataset_h5(data), 8, rank=rank, world_size=rank and 2) for rank in (None, 1)}
    for name, value in {"is_initialized": True, "get_rank": 1, "get_world_size": 2}.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    resumable(tmp_path, model=nn.Linear(2, 2), loader=made[1])
    with pytest.raises(OptionError, match="so each rank would train on all"):
        resumable(tmp_path, model=nn.Linear(2, 2), loader=made[None])


def test_an_optimizer_that_is_no_part_is_noted(tmp_path: Path) -> None:
    """It begins anew in each session, as does the schedule of one that is. One of another model has nothing to do with
    the run."""
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = {name: torch.optim.AdamW(one.parameters()) for name, one in [("own", model), ("other", other)]}
    wrapped = SimpleNamespace(optimizer=optimizers["own"], state_dict=dict, load_state_dict=dict)
    cases: list[dict[str, Any]] = [{"optimizer": optimizers["own"]}, {"wrapped": wrapped}, {}]
    for parts in cases:
        with resumable(tmp_path / f"run-{len(parts)}-{[*parts]}", model=model, **parts, progress=False) as run:
            for optimizer in optimizers.values():
                for _ in range(2):
                    optimizer.step()
            run.step()
        assert ["AdamW" in note for note in run.notes] == [True] * (not parts)
    optimizers["own"].step()
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizers["own"], [torch.optim.lr_scheduler.StepLR(optimizers["own"], 1) for _ in range(2)], [3]
    )
    held = SimpleNamespace(inner=schedule, state_dict=dict, load_state_dict=dict)
    cases = [{"scheduler": schedule}, {"held": held}, {}]
    plateau = torch.optim.AdamW(model.parameters())
    kept = torch.optim.lr_scheduler.ReduceLROnPlateau(plateau)
    cases_of_plateau: list[dict[str, Any]] = [{"scheduler": kept}, {}]
    for parts in cases_of_plateau:
        with resumable(tmp_path / f"{len(parts)}", model=model, optimizer=plateau, **parts, progress=False) as run:
            plateau.step()
            run.step()
        assert ["schedule" in note for note in run.notes] == [True] * (not parts)
    for number, parts in enumerate(cases):
        with resumable(
            tmp_path / f"schedule-{number}", model=model, optimizer=optimizers["own"], **parts, progress=False
        ) as run:
            optimizers["own"].step()
            run.step()
        assert ["schedule" in note for note in run.notes] == [True] * (not parts)
    # The schedule's state has nothing of the optimizer's.
    with resumable(tmp_path / "without", model=model, scheduler=schedule, progress=False) as run:
        optimizers["own"].step()
    assert ["AdamW" in note for note in run.notes] == [True]
    with pytest.raises(OptionError, match="scheduler sets the rates of an optimizer that is no part"):
        resumable(tmp_path / "two", model=model, optimizer=torch.optim.SGD(model.parameters()), scheduler=schedule)


def test_a_run_says_which_numbers_and_settings_it_keeps(data: Path, tmp_path: Path) -> None:
    """The state that is restored has the old ones, and the cell may have others: a rate, the length of a schedule where
    there are more epochs now, the direction of a metric, those in schedules of schedules. A loader's own are new.
    Nothing is said where they are the same."""
    schedules = torch.optim.lr_scheduler
    for mode, length in (("min", 5), ("min", 5), ("max", 6)):
        layers = [nn.Linear(2, 2), nn.Dropout(length / 10), [nn.ReLU(), nn.GELU()][mode == "max"]]
        model: Any = nn.Sequential(*layers, *([nn.Flatten()] if mode == "max" else []))
        model.temperature = model.training_changes = length
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(float(length)), amsgrad=mode == "max")
        warm = [schedules.LinearLR(optimizer, total_iters=5), schedules.CosineAnnealingLR(optimizer, 10 * length)]
        parts: dict[str, Any] = {
            "plateau": schedules.ReduceLROnPlateau(optimizer, mode),  # type: ignore[arg-type]
            "steps": schedules.MultiStepLR(optimizer, [1, length]),
            "warm": schedules.SequentialLR(optimizer, warm, [length]),
        }
        options: dict[str, Any] = {"dtype": "float32", "batch_transform": RandomFlip()} if mode == "max" else {}
        loader = make_loader(dataset_h5(data), 8, seed=0, **options)
        with resumable(tmp_path, model=model, optimizer=optimizer, loader=loader, **parts, progress=False) as run:
            assert (run.notes == []) == (mode == "min")
            next(iter(loader))
            model.training_changes += 1
            run.step()
    assert not any("training_changes is" in note for note in run.notes)
    for kept in (
        "model.temperature is 6 from here on, and was 5",
        "model.1 is Dropout(p=0.6, inplace=False) from",
        "model.2 is GELU(approximate='none') from here on, and was ReLU()",
        "len([*model.modules()]) is 5 from",
        "loader.batch_transform is RandomFlip(horizontal=0.5, vertical=0.0) from here on, and was None",
        "loader.dtype is torch.float32 from here on, and was None",
        "'initial_lr'] stays 5.0",
        "'amsgrad'] stays False",
        "plateau.mode stays min",
        "steps.milestones stays (1, 5)",
        "warm._milestones[0] stays 5",
        "warm._schedulers[1]['T_max'] stays 50",
    ):
        assert any(kept in note for note in run.notes)


def test_crops_that_are_decoded_alone_are_a_setting_too(tmp_path: Path) -> None:
    pack_dataset(make_tree(tmp_path / "src", in_classes(24)), tmp_path / "p.h5", encoding="encoded", progress=False)
    for scale in (0.1, 0.1, 0.5):
        crop = RandomResizedCrop(4, scale=(scale, 1.0))
        loader = make_loader(dataset_h5(tmp_path / "p.h5"), 4, seed=0, batch_transform=crop)
        assert loader.plan.decode is not None
        assert loader.plan.decode.name == "crops"
        with resumable(tmp_path / "run", model=nn.Linear(2, 2), loader=loader, progress=False) as run:
            next(iter(loader))
            run.step()
        assert [note.startswith("loader.batch_transform is RandomResizedCrop") for note in run.notes] == [True] * (
            scale > 0.1
        )


def test_accelerates_wrappers_are_what_they_wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for its classes: a run begins without, and says what it keeps with them."""

    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.optimizer = self.scheduler = inner

    for name in ("Optimizer", "Scheduler"):
        library = SimpleNamespace(**{f"Accelerated{name}": type(name, (Wrapper,), {})})
        monkeypatch.setitem(sys.modules, f"accelerate.{name.lower()}", library)
    for gamma in (0.9, 0.5):
        model = nn.Linear(2, 2)
        optimizer: Any = torch.optim.Adam(model.parameters())
        scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma)
        if gamma == 0.5:
            optimizer = sys.modules["accelerate.optimizer"].AcceleratedOptimizer(optimizer)
            scheduler = sys.modules["accelerate.scheduler"].AcceleratedScheduler(scheduler)
        with resumable(tmp_path, model=model, optimizer=optimizer, scheduler=scheduler, progress=False) as run:
            run.step()
    assert run.notes == ["scheduler.gamma stays 0.9, as the run began; for 0.5 begin a new run."]


def test_generators_of_ones_own_go_on(tmp_path: Path) -> None:
    """A part each; a kind whose state has arrays is refused."""
    drawn: list[Any] = []
    for _ in range(2):
        rng, own, python = np.random.default_rng(0), torch.Generator(), random.Random(0)
        with resumable(tmp_path, model=nn.Linear(2, 2), rng=rng, own=own, python=python, progress=False) as run:
            run.step()
            drawn.append((rng.random(), torch.rand(1, generator=own).item(), python.random()))
    rng, own, python = np.random.default_rng(0), torch.Generator(), random.Random(0)
    assert drawn == [(rng.random(), torch.rand(1, generator=own).item(), python.random()) for _ in range(2)]
    with (
        pytest.raises(OptionError, match="ndarray"),
        resumable(tmp_path / "arrays", rng=np.random.Generator(np.random.MT19937(0)), progress=False),
    ):
        pass


def test_an_epoch_that_begins_again_is_noted(data: Path, tmp_path: Path) -> None:
    """Where a session without loader= left it early, by itself; at its end, and with the loader's place, it is not."""
    for known, leave in itertools.product((False, True), (3, 12)):
        for _ in range(2):
            parts = make_parts(data)
            loader = parts["loader"] if known else parts.pop("loader")
            with resumable(tmp_path / f"{known} {leave}", progress=False, **parts) as run:
                for _ in run.epochs(1 + (run.steps > 0)):
                    for _ in itertools.islice(loader, leave):
                        run.step()
                    if leave == 3:
                        break
        assert ["Epoch 0 begins again" in note for note in run.notes] == [True] * (leave == 3 and not known)


def test_a_scaler_goes_on_where_it_is_enabled(tmp_path: Path) -> None:
    """After a session on a machine where it was not."""
    for enabled, given, scale in [(False, 4.0, 1.0), (True, 8.0, 8.0), (False, 4.0, 1.0), (True, 2.0, 8.0)]:
        scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=given)
        with resumable(tmp_path / "run", model=nn.Linear(2, 2), scaler=scaler, progress=False) as run:
            assert scaler.get_scale() == scale
            run.step()


def test_an_epoch_that_ends_by_break_is_done(data: Path, tmp_path: Path) -> None:
    """Where the loader is through with it; the next session trains the next one."""
    for last, steps in [(1, 12), (2, 3), (2, 12)]:
        parts = make_parts(data)
        with resumable(tmp_path, progress=False, **parts) as run:
            for epoch in run.epochs(9):
                for number, _ in enumerate(parts["loader"], 1):
                    run.step()
                    if (epoch, number) == (last, steps):
                        break
                if epoch == last:
                    break
    assert (run.epoch, run.steps) == (3, 36)


def test_an_epoch_that_the_loop_ends_is_counted_once(tmp_path: Path) -> None:
    seen = []
    with resumable(tmp_path, model=nn.Linear(1, 1), progress=False) as run:
        for epoch in run.epochs(3):
            seen.append(epoch)
            run.end_epoch()
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("own", [False, True])
def test_a_version_that_is_due_at_the_last_step_of_an_epoch(
    data: Path, whole: dict[str, Any], tmp_path: Path, own: bool
) -> None:
    """It is saved at the end of the epoch, where that is known, so the next session begins with a batch; in a loop of
    one's own at the step. Random numbers continue in both."""
    for until in (30, None):
        parts = make_parts(data)
        with contextlib.suppress(DiedError), resumable(tmp_path, progress=False, every="12 steps", **parts) as run:
            assert run.steps == (0 if until else 24)
            for _ in range(run.epoch, 3) if own else run.epochs(3):
                for (x, y), _ in parts["loader"]:
                    loss = train_step(parts, x, y)
                    if run.steps + 1 == until:
                        raise DiedError
                    run.step()
                    while run.saving:
                        time.sleep(0.001)
                if not own:
                    loss.item()
    assert_same_weights(parts, whole)


def test_an_epoch_that_is_left_early_is_over(data: Path, tmp_path: Path) -> None:
    """A loop that takes some batches of each epoch, or all of them and not the end, goes on with the next epoch."""
    seen: dict[tuple[int, str], list[Any]] = {}
    for steps, sessions in itertools.product((5, 12), ([4], [2, 3, 4])):
        folder = str(sessions)
        for epochs in sessions:
            parts = make_parts(data)
            with resumable(tmp_path / f"{steps} {folder}", progress=False, **parts) as run:
                for _ in run.epochs(epochs):
                    for _, (_, rows) in zip(range(steps), parts["loader"], strict=False):
                        seen.setdefault((steps, folder), []).append(rows.tolist())
                        run.step()
        assert len(seen[steps, folder]) == run.steps == 4 * steps
        assert seen[steps, folder] == seen[steps, "[4]"]


def test_a_forked_process_obeys_its_signals(tmp_path: Path) -> None:
    """A pool of processes ends by them."""
    with resumable(tmp_path, model=nn.Linear(2, 2), progress=False):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(10)
        assert child.exitcode == -signal.SIGTERM


def test_numbers_of_numpy_and_tied_weights_come_back(tmp_path: Path) -> None:
    """A scheduler may hold a numpy metric; shared memory is saved once, and never lent twice."""
    tied: Any = nn.Linear(300, 300)
    model: Any = nn.Sequential(tied, nn.Linear(300, 300))
    model[1].weight = tied.weight
    best = Odd(None)
    for number in range(3):
        with resumable(tmp_path, progress=False, model=model, best=best) as run:
            best.state = np.float64(number)
            with torch.no_grad():
                tied.weight.fill_(number)
            run.save()
            run.step()
    fresh: Any = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300))
    best = Odd(None)
    with resumable(tmp_path, progress=False, model=fresh, best=best):
        assert fresh[0].weight.min().item() == fresh[1].weight.max().item() == 2.0
    assert best.state == 2.0
    assert max(path.stat().st_size for path in tmp_path.glob("*.pt")) < 1.5 * tied.weight.nbytes


@pytest.mark.gpu
def test_random_numbers_of_the_gpu_go_on(tmp_path: Path) -> None:
    """After a version is restored, dropout draws there the same numbers as the session that saved it did next."""
    model = nn.Linear(2, 2).to("cuda")
    with resumable(tmp_path, progress=False, model=model) as run:
        run.save()
        expected = torch.rand(5, device="cuda").tolist()
    torch.cuda.manual_seed(7)
    with resumable(tmp_path, progress=False, model=model) as run:
        drawn = [torch.rand(5, device="cuda").tolist() for _ in run.epochs(1)]
    assert drawn == [expected]


def test_what_a_killed_session_left_half_copied_goes(data: Path, tmp_path: Path) -> None:
    """Once nothing has touched it for so long that nobody works in it; what is younger stays."""
    folder = tmp_path / "run"
    session(folder, data, until=9, saves=(7,))
    (newest, *_) = versions(folder)
    old, young = (folder / f".colabstage-session-{newest.name}.0000abcd-1-{number}.0.tmp" for number in (5, 6))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    session(folder, data, until=9)
    assert (old.exists(), young.exists()) == (False, True)

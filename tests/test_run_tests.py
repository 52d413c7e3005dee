"""How tests are run: what is tried again, what is kept, which a change concerns, which are gone."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from colabstage.machine.mounts import list_mounts
from colabstage.simulate.drive import SimulatedDrive
from colabstage.simulate.knobs import DriveKnobs
from scripts import run_tests
from scripts.compare_tests import TRACED, Gone, find_losses, read_traced
from scripts.run_tests import FIRST, MOST_TRIED_AGAIN, TELL_S, Outcome, Setup, had_before, own_folder, run_pass, settle
from scripts.touched_tests import costs_of, places_of, too_many, users_of
from tests.longest_first import longest_first

SHAKY = """
from pathlib import Path

def test_shaky():
    been_here = Path(__file__).with_suffix(".seen")
    seen, _ = been_here.exists(), been_here.touch()
    assert seen
"""


def outcome_of(folder: Path, code: str, side_by_side: int = 0, until: float = math.inf) -> Outcome:
    """Of the tests in `code`, and one more that passes."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_made.py").write_text(f"def test_good(): pass\n\n{code}")
    where = [f"--rootdir={folder}", "-c", f"{folder}/pytest.ini", str(folder)]
    return run_pass(Path(sys.executable), where, side_by_side, until)


@pytest.mark.slow
def test_what_passes_at_the_second_try_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It counts as passed, and only it is tried again."""
    found = outcome_of(tmp_path, SHAKY)
    assert found == Outcome(passed=2, shaky=("test_made::test_shaky",))
    assert found.good
    assert "1 passed" in capfd.readouterr().out


@pytest.mark.fuse
def test_what_killed_tests_leave_goes_with_their_folder(capfd: pytest.CaptureFixture[str]) -> None:
    """A mount whose client is dead, one whose client is stopped, and a process that waits."""
    with own_folder() as folder:
        drives = [SimulatedDrive(folder / name, knobs=DriveKnobs.quick()) for name in ("dead", "stopped")]
        for drive in drives:
            drive.mount(drive.cloud.parent / "mounted")
        drives[0].kill()
        assert drives[1]._server is not None
        drives[1]._server.send_signal(signal.SIGSTOP)
        waiting = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"{folder}/file"])
    assert waiting.wait(10) == -signal.SIGKILL
    assert not folder.exists()
    assert not [mount for mount in list_mounts() if mount.mountpoint.is_relative_to(folder)]
    assert capfd.readouterr().out.count("A test left a mount: ") == 2
    for drive in drives:
        drive.unmount()


@pytest.mark.long
def test_what_fails_twice_is_a_failure(tmp_path: Path) -> None:
    """Beside one that does not."""
    found = outcome_of(tmp_path, SHAKY + "\ndef test_bad(): assert False\n")
    assert found == Outcome(passed=2, failed=1, shaky=("test_made::test_shaky",))
    assert not found.good


@pytest.mark.parametrize(
    ("second", "again", "settled"),
    [
        (Outcome(passed=2), (), Outcome(passed=7, shaky=("a::x", "a::y"))),
        (Outcome(passed=1, failed=1), ("a::y",), Outcome(passed=6, failed=1, shaky=("a::x",))),
        (Outcome(failed=1, errors=1), ("a::x", "a::y"), Outcome(passed=5, failed=1, errors=1)),
        # Other tests than those that failed were tried, or none were, or the pass did not end.
        (Outcome(passed=5), (), Outcome(passed=5, failed=2)),
        (Outcome(), (), Outcome(passed=5, failed=2)),
        (Outcome(passed=2, broken=1), (), Outcome(passed=5, failed=2)),
    ],
)
def test_only_what_passed_the_second_time_counts_as_passed(
    second: Outcome, again: tuple[str, ...], settled: Outcome
) -> None:
    """No failure is lost between two tries."""
    found = settle(Outcome(passed=5, failed=2), ("a::x", "a::y"), second, again)
    assert found == settled
    assert found.good == (not settled.failed + settled.errors)


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    """They have a reason of their own."""
    many = "".join(
        SHAKY.replace("shaky", f"shaky_{n}").replace(".seen", f".seen{n}") for n in range(MOST_TRIED_AGAIN + 1)
    )
    assert outcome_of(tmp_path, many) == Outcome(passed=1, failed=MOST_TRIED_AGAIN + 1)


@pytest.mark.long
def test_a_module_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    """Both times."""
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    found = outcome_of(tmp_path, "")
    assert (found.errors, found.good) == (1, False)


@pytest.mark.long
def test_what_hangs_is_stopped_in_time_and_what_failed_before_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With processes side by side, and by the moment that was set; nothing is tried again then."""
    until = time.monotonic() + TELL_S + 20
    hangs = "\ndef test_hangs():\n    import time\n    time.sleep(300)\n\ndef test_hangs_too(): test_hangs()\n"
    found = outcome_of(tmp_path, f"def test_bad(): assert False\n{hangs}", 2, until)
    assert time.monotonic() < until + 1
    assert (found.failed, found.good) == (1, False)
    said = capfd.readouterr().out
    assert "Failed by then: test_made::test_bad" in said
    assert "again, alone" not in said


def test_without_time_nothing_runs_and_that_is_no_good_outcome(tmp_path: Path) -> None:
    """As after a pass that took all of it."""
    found = outcome_of(tmp_path, "", until=time.monotonic())
    assert (found.passed, found.good) == (0, False)


def test_what_needs_a_second_try_in_two_runs_is_told(tmp_path: Path) -> None:
    """Once is chance; what did so in an earlier run is a fault with a cause."""
    record = tmp_path / "build/second_tries.txt"
    assert had_before(("a::one", "a::two"), record) == []
    assert had_before((), record) == []
    assert had_before(("a::three", "a::two"), record) == ["a::two"]


def test_what_a_test_costs_is_written_down(tmp_path: Path) -> None:
    """Each phase and each fixture, by processes that run side by side; of a child process its computing too."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_made.py").write_text(
        "import pytest, subprocess, sys, time\n\n"
        "@pytest.fixture(scope='module')\ndef slow(): time.sleep(0.05)\n\n"
        "def test_child(slow): subprocess.run([sys.executable, '-c', 'sum(range(3_000_000))'], check=True)\n"
    )
    record = tmp_path / "made/durations.jsonl"
    where = [f"--rootdir={tmp_path}", "-c", f"{tmp_path}/pytest.ini", str(tmp_path)]
    assert run_pass(Path(sys.executable), ["-p", "tests.recorder", "--record", str(record), *where], 1).good
    found = {(one["kind"], one["name"]): one for one in map(json.loads, record.read_text().splitlines())}
    fixture, call = found["fixture", "slow"], found["call", "test_made.py::test_child"]
    assert fixture["wall_s"] >= 0.05 > fixture["cpu_s"]
    assert call["cpu_s"] > 0.03
    assert call["outcome"] == "passed"
    assert ("teardown", "test_made.py::test_child") in found
    assert costs_of(record)["test_made.py::test_child"] >= call["wall_s"]
    assert costs_of(tmp_path / "none.jsonl") == {}


def test_each_process_begins_with_what_takes_long() -> None:
    """Whoever waits for a browser or a framework first, then what is slow, by modules; nothing is lost or doubled."""

    def made(module: str, number: int, *, slow: bool = False, fixture: str = "tmp_path") -> Any:
        mark = "slow" if slow else None
        found = SimpleNamespace(name=f"{module}{number}", path=module, fixturenames=[fixture])
        found.get_closest_marker = lambda name: mark if name == mark else None
        return found

    quick = [made("a", number) for number in range(9)]
    slow = [made("b", 1, slow=True), made("b", 2, slow=True), made("a", 9, slow=True)]
    heavy = [made("c", 1, fixture="nurseries"), made("c", 2, fixture="nurseries"), made("d", 1, fixture="lab")]
    found = [item.name for item in longest_first([*quick, *slow, *heavy], 2)]
    first, second = ["c1", "c2", "b1", "b2", "a0", "a1", "a2"], ["d1", "a9", "a3", "a4", "a5", "a6", "a7", "a8"]
    assert found == [*first, *second]


def test_a_change_concerns_its_package_and_all_above_it() -> None:
    """Nearest first; what is below, or imports nothing of it, is left out; a test concerns itself."""
    users = users_of()
    assert users["stage"] == {"stage", "ui"}
    assert {"pack", "stage", "ui"} < users["layouts"]
    assert not {"trees", "sources", "h5"} & users["layouts"]
    places = list(places_of(["colabstage/layouts/coco.py", "tests/h5/test_info.py", "tests/sources/servers.py"]))
    assert places[:3] == ["tests/h5/test_info.py", "tests/sources", "tests/layouts"]
    assert places[-2:] == ["tests/ui", "tests/test_options.py"]
    assert "tests/trees" not in places
    assert "tests/io" in places_of(["colabstage/io/pipeline.py"])


@pytest.mark.parametrize(
    ("file", "places"),
    [
        ("README.md", ["tests/test_docs.py", "tests/test_readme.py", "tests/test_site.py"]),
        ("docs/loaders.md", ["tests/test_docs.py", "tests/test_site.py"]),
        ("mkdocs.yml", ["tests/test_site.py"]),
        ("Makefile", ["tests/test_readme.py"]),
        ("scripts/touched_tests.py", ["tests/test_run_tests.py"]),
        ("benchmarks/chart.py", ["tests/benchmarks"]),
        (
            "notebooks/keras.ipynb",
            [
                "tests/notebooks/test_notebooks.py::test_runs[keras-plain computer]",
                "tests/notebooks/test_notebooks.py::test_runs[keras-practice Colab]",
                "tests/notebooks/test_repository.py",
            ],
        ),
    ],
)
def test_what_is_no_code_of_the_package_has_tests_too(file: str, places: list[str]) -> None:
    """Pages, notebooks, scripts; what a test speaks of, as this one does of these, is its own too."""
    assert [place for place in places_of([file]) if place in places] == places


def test_a_check_takes_a_minute() -> None:
    """What is dear and far away is left out first; what was named itself, or was never run, is not."""
    costs = {
        "tests/a/test_x.py::a": 5.0,
        "tests/a/test_x.py::b": 1.0,
        "tests/b/test_y.py::c": 3.0,
        "tests/c.py::d": 99.0,
    }
    places = {"tests/c.py": -1, "tests/a": 0, "tests/b": 2}
    assert too_many(places, costs, 100.0) == []
    assert too_many(places, costs, 6.0) == ["tests/b/test_y.py::c"]
    assert too_many(places, costs, 0.5) == ["tests/a/test_x.py::b", "tests/a/test_x.py::a", "tests/b/test_y.py::c"]
    assert too_many({"tests/b": 0}, costs, 2.0) == ["tests/b/test_y.py::c"]
    assert too_many({"tests/b": 0}, {}, 2.0) == []


@pytest.mark.parametrize(
    ("traced", "losses"),
    [
        ([], ["a::one[1]", "a::one[2]", "a::two"]),
        ([Gone(("a::one[", "a::two"), now=("b::",), why="x")], []),
        ([Gone(("a::one",), moved="b::one"), Gone(("a::two",), now=("c::new",), why="x")], []),
        (
            [Gone(("a::",), moved="c::"), Gone(("a::one[",), now=("b::one",), why="x")],
            ["a::two: moved to c::two, which is not here"],
        ),
        (
            [Gone(("a::",), now=("c::new", "d::"), why="x")],
            ["a::one[1]: shown by d::, which is not here", "a::one[1] and others: 1 tests stand for 3"],
        ),
    ],
)
def test_a_test_that_is_gone_without_a_word_is_told(traced: list[Gone], losses: list[str]) -> None:
    """By beginnings of names, the longest first; what is said to stand for it has to be there, in as many tests."""
    old = {"a::kept", "a::one[1]", "a::one[2]", "a::two"}
    new = {"a::kept", "b::one[1]", "b::one[2]", "b::other", "c::new"}
    assert find_losses(old, new, traced) == losses


def test_what_is_traced_can_be_read() -> None:
    """Every entry says where its tests went; one that says nothing, or two things, is refused."""
    assert all(entry.moved or entry.why for entry in read_traced(TRACED))
    for wrong in ({}, {"moved": "b", "now": ("b",), "why": "x"}, {"now": ("b",)}, {"why": "x"}):
        with pytest.raises(ValueError, match="An entry has"):
            Gone(("a",), **wrong)


def test_the_second_run_with_the_same_shaky_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its exit code and in its last lines; each kind of run says what the other has that it has not."""
    outcomes = {FIRST.folder: Outcome(passed=3, shaky=("a::b",))}

    def ran(setup: Setup, *, everything: bool, until: float) -> Outcome:
        assert until == math.inf
        return outcomes.get(setup.folder, Outcome(passed=1))

    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "DURATIONS", tmp_path / "build/durations.jsonl")
    monkeypatch.setattr(run_tests, "SECOND_TRIES", tmp_path / "build/second_tries.txt")
    monkeypatch.setattr(run_tests, "run_setup", ran)
    monkeypatch.setattr(sys, "argv", ["run_tests.py"])
    assert run_tests.main() == 0
    said = capsys.readouterr().out
    assert "Passed only when it was tried again, alone: a::b" in said
    assert run_tests.ADDED in said
    assert "3 passed, 0 failed" in said
    assert run_tests.main() == 1
    assert "as in an earlier run" in capsys.readouterr().out
    outcomes[FIRST.folder] = Outcome(passed=3)
    assert run_tests.main() == 0
    (tmp_path / ".venv-colab").mkdir()
    (tmp_path / ".venv-colab/.installed").touch()
    monkeypatch.setattr(sys, "argv", ["run_tests.py", "--all"])
    capsys.readouterr()
    assert run_tests.main() == 0
    said = capsys.readouterr().out
    assert "There is no Python 3.13 here" in said
    assert run_tests.LEFT_OUT in said
    assert "4 passed, 0 failed" in said
    outcomes[".venv-colab"] = Outcome(passed=1, failed=1)
    assert run_tests.main() == 1

"""A pytest plugin that writes down what every test and fixture cost: `pytest -p tests.recorder --record FILE`.

One line of JSON for each phase of a test and each fixture's set-up, as it ends: `kind` (setup, call, teardown or
fixture), `name`, `outcome` of a phase, `wall_s`, and `cpu_s`: what this process and the child processes that it has
seen end have computed meanwhile. On a busy machine only the second says which test is expensive. A process that a
fixture keeps for all tests counts where it ends.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_TOO_SMALL_S = 0.001
_STARTED = pytest.StashKey[tuple[float, float]]()
_FIXTURES = pytest.StashKey[list[dict[str, Any]]]()


def _now() -> tuple[float, float]:
    """Wall clock, and CPU time of this process with its ended children, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), time.process_time() + children.ru_utime + children.ru_stime


def _since(start: tuple[float, float]) -> dict[str, float]:
    wall, cpu = _now()
    return {"wall_s": round(wall - start[0], 4), "cpu_s": round(cpu - start[1], 4)}


class Recorder:
    """Measures in the process that runs a test; writes in the one that started them all."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Time one fixture, without those that it asks for by name."""
        start = _now()
        try:
            return (yield)
        finally:
            cost = _since(start)
            item = getattr(request, "_pyfuncitem", None)
            if item is not None and cost["wall_s"] >= _TOO_SMALL_S:
                facts = {"kind": "fixture", "name": fixturedef.argname, "scope": fixturedef.scope}
                item.stash.setdefault(_FIXTURES, []).append({**facts, **cost})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Start the clocks of a phase."""
        item.stash[_STARTED] = _now()
        return (yield)

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hang the costs on the report, which travels to the process that writes."""
        report = yield
        phase = {"kind": call.when, "name": item.nodeid, "outcome": report.outcome, **_since(item.stash[_STARTED])}
        vars(report)["costs"] = [phase, *item.stash.setdefault(_FIXTURES, [])]
        item.stash[_FIXTURES].clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write what the report brought."""
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as out:
            for cost in getattr(report, "costs", ()):
                out.write(json.dumps({**cost, "test": report.nodeid} if cost["kind"] == "fixture" else cost) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record`."""
    parser.addoption("--record", type=Path, help="append the cost of every test and fixture to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Measure when asked to; a worker process of pytest-xdist hands on what it measured."""
    path: Path | None = config.getoption("record")
    if path is not None:
        config.pluginmanager.register(Recorder(None if hasattr(config, "workerinput") else path))

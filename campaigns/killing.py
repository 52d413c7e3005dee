"""Killing: start a worker, end it with SIGKILL at a random moment, look at what it left, start it again.

A moment is a time since the work began, or a step: the worker dies right before its n-th change of a name (rename,
remove, mkdir, truncate), which is where the seams of a protocol are and where a clock hardly ever hits. The choice of
moments is a function of the seed.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from campaigns.campaign import WrongError
from campaigns.known import campaign_class

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from campaigns.campaign import Campaign

# No run takes a tenth of this.
_RUN_S = 120.0
_LOOK_S = 0.001
# After so many kills a round is let through, so that ends are compared with the truth often.
_KILLS_A_ROUND = 6
# Of all the work, for each run: what manifests and records come to where bytes are counted, and the ends of ranges that
# one connection takes over from another.
_CRUMBS = 2e-3


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: `after_s` seconds after the work began, or before step number `step`, whichever is given."""

    after_s: float | None = None
    step: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one worker: whether it was killed, its `log`, the seconds it worked, and what it `said`."""

    killed: bool
    log: list[tuple[str, float]]
    seconds: float
    said: str

    def total(self, name: str) -> float:
        """The sum of what was noted under a name."""
        return sum(amount for found, amount in self.log if found == name)


@dataclass(slots=True)
class Outcome:
    """What a campaign found.

    `kills` that hit, of which `at_steps` at a seam; `rounds` that ended in verified data; `states` seen right after a
    kill; `needed` units of work in all rounds, `done` in all runs; `kept`: finished units that runs after a kill found
    and did not do again; `redone`: those they did; `worst`: most for one kill; `bound`: what one kill may cost; `more`:
    what else the campaign counted.
    """

    unit: str
    bound: float = 0.0
    kills: int = 0
    at_steps: int = 0
    rounds: int = 0
    states: dict[str, int] = field(default_factory=dict)
    needed: float = 0.0
    done: float = 0.0
    kept: float = 0.0
    redone: float = 0.0
    worst: float = 0.0
    seconds: float = 0.0
    more: dict[str, int] = field(default_factory=dict)


def run_campaign(
    name: str, home: Path, *, kills: int, seed: int, small: bool = False, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Kill the work of one campaign `kills` times.

    Args:
        name: which campaign.
        home: an empty folder on a local disk.
        kills: how many have to hit; a worker that ends before its moment does not count.
        seed: of the moments.
        small: on less data, for a test.
        say: told of every round.

    Raises:
        WrongError: a promise was broken; the message says which, after how many kills.
    """
    began = time.monotonic()
    campaign = campaign_class(name)(home, small=small)
    try:
        with _Workers(name, home) as workers:
            hunt = _Hunt(name, campaign, workers, kills, random.Random(seed))
            hunt.measure()
            while hunt.outcome.kills < kills:
                hunt.round()
                say(f"{name}: {hunt.outcome.kills} kills, {hunt.outcome.rounds} rounds")
    finally:
        campaign.close()
    hunt.outcome.seconds = time.monotonic() - began
    hunt.outcome.more = dict(campaign.counts)
    return hunt.outcome


class _Hunt:
    """One campaign under way."""

    def __init__(self, name: str, campaign: Campaign, workers: _Workers, kills: int, chance: random.Random) -> None:
        self._name = name
        self._campaign = campaign
        self._workers = workers
        self._kills = kills
        self._chance = chance
        self._number = 0
        self._pace: dict[int, tuple[float, int]] = {}
        self._history: list[str] = []
        self.outcome = Outcome(campaign.unit)

    def measure(self) -> None:
        """See how long an undisturbed run of each variant takes, and how many steps.

        The first variant runs once more at the end: in the very first run, modules were imported.
        """
        for _ in range(self._campaign.variants + 1):
            arguments = self._begin()
            run = self._run(arguments, Moment())
            self._end_round([self._campaign.done(run.log)], [])
            self._pace[self._variant] = run.seconds, max(1, int(run.total("steps")))

    @property
    def _variant(self) -> int:
        """Of the round that was begun last."""
        return (self._number - 1) % self._campaign.variants

    def round(self) -> None:
        """From a fresh place to verified data, with kills on the way."""
        arguments = self._begin()
        done: list[float] = []
        finished: list[float] = []
        self._history = []
        while True:
            moment = self._choose(len(finished))
            run = self._run(arguments, moment)
            done.append(self._campaign.done(run.log))
            self._history.append(f"{moment}: {'killed' if run.killed else 'ended'}, {done[-1]:,.1f} done; {run.said}")
            if not run.killed:
                break
            self.outcome.kills += 1
            state = self._campaign.look()
            self.outcome.states[state] = self.outcome.states.get(state, 0) + 1
            finished.append(sum(done))
        self._end_round(done, finished)

    def _begin(self) -> dict[str, Any]:
        arguments = self._campaign.begin(self._number)
        self._number += 1
        return arguments

    def _choose(self, kills_before: int) -> Moment:
        if kills_before >= _KILLS_A_ROUND or self.outcome.kills >= self._kills:
            return Moment()
        usual_s, steps = self._pace[self._variant]
        if self._chance.random() < 0.4:
            return Moment(step=self._chance.randint(1, steps))
        return Moment(after_s=self._chance.uniform(0, usual_s))

    def _end_round(self, done: list[float], finished: list[float]) -> None:
        """Compare with the truth, and add up."""
        self._campaign.check()
        outcome, needed = self.outcome, self._campaign.needed
        spread = self._campaign.spread
        if needed - spread <= sum(done) < needed:
            needed = sum(done)
        surplus = sum(done) - needed
        redone = max(0.0, surplus - spread) if surplus > _CRUMBS * needed * len(done) else 0.0
        outcome.rounds += 1
        outcome.needed += needed
        outcome.done += sum(done)
        outcome.redone += redone
        # Each run after a kill found finished what was finished before it, but for what had to be done again.
        outcome.kept += max(0.0, sum(finished) - redone)
        outcome.bound = max(outcome.bound, self._campaign.bound)
        if finished:
            outcome.worst = max(outcome.worst, redone / len(finished))
        if redone > len(finished) * self._campaign.bound:
            msg = (
                f"{self._name}: {redone:,.1f} {self._campaign.unit} were done again after {len(finished)} kills; at "
                f"most {self._campaign.bound:,.1f} a kill are promised. The runs of round {self._number - 1}:\n  "
                + "\n  ".join(self._history)
            )
            raise WrongError(msg)

    def _run(self, arguments: dict[str, Any], moment: Moment) -> Run:
        """One worker, from its start to its end."""
        run, exit_code = self._workers.run(arguments, moment)
        if not run.killed and exit_code:
            msg = f"{self._name}: the run after {self.outcome.kills} kills failed:\n{run.said}"
            raise WrongError(msg)
        if run.killed and moment.step:
            self.outcome.at_steps += 1
        return run


class _Workers:
    """Processes forked from one server that has loaded what the work of a campaign imports, one after the other."""

    def __init__(self, name: str, home: Path) -> None:
        self._home = home
        root = str(Path(__file__).resolve().parent.parent)
        environment = {
            **os.environ,
            "PYTHONPATH": root,
            # Only the mounts below this folder count as a machine's.
            "COLABSTAGE_SYSTEM_ROOT": str(home),
            # Which has threads otherwise, and what has threads is not to be forked.
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "campaigns.worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",
            text=True,
        )

    def run(self, arguments: dict[str, Any], moment: Moment) -> tuple[Run, int]:
        """Run one worker, killed at that moment, if it is still at work; returns its exit code, too."""
        log, said = self._home / "log", self._home / "said"
        log.unlink(missing_ok=True)
        paths = {"home": str(self._home), "log": str(log), "said": str(said)}
        number = self._ask(json.dumps({**arguments, **paths, "step": moment.step}))
        # Nobody else gets the number before the server is told to wait for its process.
        process = os.pidfd_open(number)
        try:
            began = _wait_until_begun(process, log)
            if moment.after_s is not None and not _has_ended(process, began + moment.after_s - time.monotonic()):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            if not _has_ended(process, _RUN_S):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                msg = f"The worker has not ended in {_RUN_S:.0f} s."
                raise WrongError(msg)
        finally:
            os.close(process)
        seconds = time.monotonic() - began
        exit_code = self._ask("")
        told = said.read_text(encoding="utf-8", errors="replace")
        return Run(exit_code == -signal.SIGKILL, _read_log(log), seconds, told), exit_code

    def _ask(self, line: str) -> int:
        """The server's answer to one line."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{line}\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server."""
        self._server.kill()
        self._server.communicate()


def _has_ended(process: int, within_s: float) -> bool:
    """Wait for the end of a process, so long at most; whether it has ended."""
    return bool(select.select([process], [], [], max(0.0, within_s))[0])


def _wait_until_begun(process: int, log: Path) -> float:
    deadline = time.monotonic() + _RUN_S
    while not log.exists() and not _has_ended(process, _LOOK_S):
        if time.monotonic() > deadline:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            msg = f"The worker has not begun in {_RUN_S:.0f} s."
            raise WrongError(msg)
    return time.monotonic()


def _read_log(path: Path) -> list[tuple[str, float]]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(name, float(amount)) for name, tab, amount in (line.partition("\t") for line in lines) if tab]

"""The verdict: what a pipeline is bound by, told from measured times. A pure function.

The measure is the head-room: the step alone, on a batch that is there, against the step with the loader. It holds also
where the step only orders work on a GPU and waiting shows elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from colabstage.diagnose.model import simulate
from colabstage.units import format_duration

if TYPE_CHECKING:
    from colabstage.diagnose.facts import Facts, StageName

Bound = Literal["input-bound", "compute-bound", "balanced"]
# work: the stage is slower than the step. prefetch: batches are made fast enough in the mean, but not when they are
# wanted. gil: threads wait for each other. cores: loading and step want more cores than there are. start: of epochs.
Cause = Literal["work", "prefetch", "gil", "cores", "start"]

# Less time lost than this is noise, and nobody would change a line for it.
_LOST = 0.10
# A loader this close to the step would be the next limit.
_CLOSE = 0.80
_SLOWER = 1.15

WHAT: dict[StageName, str] = {
    "read": "reading",
    "decode": "decoding",
    "transform": "transforms",
    "collate": "collating",
    "transfer": "the transfer to the device",
    "step": "the step",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a pipeline is bound by.

    `stage`: the one that takes most of the loading, `None` where the loader is not the limit. `cause`: why the step
    waits for it. `sentence`: all of it for a person.
    """

    bound: Bound
    stage: StageName | None
    cause: Cause | None
    sentence: str


def judge(facts: Facts) -> Verdict:
    """Say what the pipeline is bound by."""
    stage = heaviest(facts)
    if facts.step_alone_s is None:
        share = facts.seconds(stage) / facts.serial_s if facts.serial_s else 1.0
        sentence = (
            f"Of loading, {WHAT[stage]} take{_s(stage)} most: {share:.0%}. Without a step there is no more to say."
        )
        return Verdict("input-bound", stage, _threads_wait(facts) or "work", sentence)
    now_s = facts.cycle_s + facts.epoch_start_s
    lost = max(0.0, 1 - facts.step_alone_s / now_s)
    if lost < _LOST:
        return _not_input(facts)
    cause = _cause(facts, now_s)
    if cause == "work" and (facts.transfer_s or 0.0) > max(facts.seconds(stage), 0.5 * (now_s - facts.step_alone_s)):
        stage = "transfer"
    return Verdict("input-bound", stage, cause, f"Input-bound by {_reason(facts, stage, cause)}: {_lost(facts, lost)}.")


def heaviest(facts: Facts) -> StageName:
    """The stage of the loader that takes longest."""
    return max(facts.stages, key=lambda cost: cost.seconds).name if facts.stages else "read"


def _threads_wait(facts: Facts) -> Cause | None:
    setting = facts.setting
    shared = setting.workers > 1 and not setting.processes
    return "gil" if shared and facts.gil_s > 0.5 * facts.load_s else None


def _cause(facts: Facts, now_s: float) -> Cause:
    step_s = facts.step_alone_s or 0.0
    if facts.epoch_start_s > 0.5 * (now_s - step_s):
        return "start"
    if (waiting := _threads_wait(facts)) is not None:
        return waiting
    if facts.setting.overlapped and facts.cycle_s > _SLOWER * max(facts.load_s, step_s):
        if _queue_is_short(facts):
            return "prefetch"
        cores_s = (facts.cpu_s + facts.step_cpu_s) / facts.costs.cores
        return "cores" if cores_s > 0.85 * facts.cycle_s else "work"
    return "work"


def _queue_is_short(facts: Facts) -> bool:
    """Whether batches that come as these did would be there in time, if more of them might wait."""
    setting = facts.setting
    if not facts.produced_s or not setting.workers:
        return False
    as_is, longest = (
        simulate(facts.produced_s, facts.step_alone_s or 0.0, setting.workers, ahead)
        for ahead in (setting.prefetch, 64)
    )
    return as_is > _SLOWER * longest


def _not_input(facts: Facts) -> Verdict:
    step_s = facts.step_alone_s or 0.0
    if facts.load_s < _CLOSE * step_s:
        sentence = (
            f"Compute-bound: the step takes {format_duration(step_s)} a batch, and the loader could make one in "
            f"{format_duration(facts.load_s)}. Faster loading gains nothing."
        )
        return Verdict("compute-bound", None, None, sentence)
    sentence = (
        f"Balanced: the step takes {format_duration(step_s)} a batch, the loader {format_duration(facts.load_s)}, and "
        "they run side by side."
    )
    return Verdict("balanced", None, None, sentence)


def _reason(facts: Facts, stage: StageName, cause: Cause) -> str:
    what = WHAT[stage]
    if cause == "gil":
        return f"{what} ({facts.setting.workers} threads that wait for each other: it holds Python's lock)"
    if cause == "prefetch":
        return f"too short a queue ({what} is fast enough in the mean, but batches come in bursts)"
    if cause == "cores":
        return f"{what} (it and the step want more cores than the {facts.costs.cores:.1f} that are here)"
    if cause == "start":
        return f"starting each epoch ({format_duration(facts.start_s)} until its first batch)"
    return what if facts.setting.overlapped else f"{what} (nothing is loaded while the step runs)"


def _lost(facts: Facts, lost: float) -> str:
    rate = facts.setting.batch_samples / (facts.cycle_s + facts.epoch_start_s)
    headroom = facts.setting.batch_samples / (facts.step_alone_s or 1.0)
    return f"{lost:.0%} of the time is lost, {rate:,.0f} samples/s where the step could take {headroom:,.0f}"


def _s(stage: StageName) -> str:
    return "" if stage == "transform" else "s"

"""The verdict and the advice: pure functions of measured times."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from colabstage import LoaderProfile, profile_loader

DECODING: dict[str, Any] = {
    "kind": "torch",
    "batches": 100,
    "batch_samples": 8,
    "batch_bytes": 8000,
    "cores": 2,
    "load_s": 0.08,
    "both_s": 0.1,
    "wait_s": 0.08,
    "busy_s": 0.02,
    "step_s": 0.02,
    "stages": {"read": 0.01, "decode": 0.06, "transform": 0.01},
}
BESIDE = DECODING | {"workers": 2, "prefetch": 2, "load_s": 0.04, "both_s": 0.04, "wait_s": 0.02}
STARTING = BESIDE | {"load_s": 0.02, "both_s": 0.02, "start_s": 4.0}
BURSTS = BESIDE | {"load_s": 0.04, "step_s": 0.05, "both_s": 0.09, "busy_s": 0.05}
BY_BATCHES = "input-bound", "transform", "work"
CROWDED = BURSTS | {"busy_s": 0.08}


def other(facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same facts with changes."""
    return facts | changes


@cache
def measured() -> LoaderProfile:
    """Profile a loader that does nothing."""
    return profile_loader([np.zeros((1, 2))] * 9, budget_s=0.01)


def profile_of(facts: dict[str, Any], *notes: str) -> LoaderProfile:
    """Return a profile with these measurements."""
    plain: dict[str, Any] = {"has_gpu": False, "start_s": 0.0, "image_size": None, "batches": None, "stages": {}}
    return LoaderProfile.from_facts(replace(measured().facts, **{**plain, **facts}), notes)


def advised(facts: dict[str, Any]) -> Any:
    """Return the advice for these measurements."""
    return profile_of(facts).advice


@pytest.mark.parametrize(
    ("facts", "bound", "stage", "cause"),
    [
        (DECODING, "input-bound", "decode", "work"),
        (other(DECODING, step_s=None), "input-bound", "decode", "work"),
        (other(DECODING, stages={}), "input-bound", None, "work"),
        (BESIDE, "input-bound", "decode", "work"),
        (STARTING, "input-bound", "decode", "start"),
        (BURSTS, "input-bound", "decode", "prefetch"),
        (CROWDED, "input-bound", "decode", "cores"),
        # Other programs slowed the loop down, not the loading in it.
        (other(DECODING, both_s=0.1, step_s=0.08, load_s=0.001), "compute-bound", None, None),
        # Beside a step that takes nothing, nothing competes, and no queue is too short.
        (other(BESIDE, both_s=0.06, step_s=1e-6, busy_s=2e-6), "input-bound", "decode", "work"),
        (other(BESIDE, both_s=0.1), "input-bound", "decode", "work"),
        # The loop itself calls a batch_transform, which takes its time whatever comes in advance.
        (other(BURSTS, kind="colabstage", of_batches=True, stages={"transform": 0.04}), *BY_BATCHES),
        (other(BESIDE, both_s=0.1, step_s=0.098), "compute-bound", None, None),
        (other(BESIDE, both_s=0.1, step_s=0.098, load_s=0.095), "balanced", None, None),
        # A loop without work costs a microsecond or two.
        (other(DECODING, load_s=5e-7, both_s=2e-6, step_s=1e-6), "compute-bound", None, None),
    ],
)
def test_the_verdict_follows_from_loader_alone_step_alone_and_both(
    facts: dict[str, Any], bound: str, stage: str | None, cause: str | None
) -> None:
    """Which of them is the limit, at which stage, and why."""
    verdict = profile_of(facts).verdict
    assert (verdict.bound, verdict.stage, verdict.cause) == (bound, stage, cause), verdict.sentence
    assert verdict.sentence[0].isupper()
    assert verdict.sentence.endswith(".")
    assert advised(facts) == () or bound == "input-bound"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "DataLoader(..., num_workers=2, persistent_workers=True)"),
        ({"image_size": (224, 192)}, 'make_loader(stage_dataset(SOURCE, image_size=(224, 192))["train"], 8)'),
        ({}, 'make_loader(stage_dataset(SOURCE)["train"], 8)'),
        ({"stages": {"transform": 0.08}}, "batch_transform=f"),
        ({"kind": "colabstage"}, "autotune_loader(loader, 8, step=step)"),
        ({"kind": "keras"}, "PyDataset.__init__(workers=2, use_multiprocessing=False, max_queue_size=8)"),
        ({"kind": "keras", "stages": {"transform": 0.08}}, "use_multiprocessing=True"),
        ({"kind": "keras", "image_size": (24, 24)}, 'to_keras(stage_dataset(SOURCE, image_size=(24, 24))["train"], 8)'),
        ({"kind": "tf.data", "stages": {}}, ".prefetch(tf.data.AUTOTUNE)"),
        ({"kind": "tf.data", "stages": {}}, "num_parallel_calls=tf.data.AUTOTUNE"),
        ({"kind": "iterable", "has_gpu": True}, "CudaDataLoader(loader, device)"),
    ],
)
def test_advice_is_in_the_words_of_the_loader_at_hand(changes: dict[str, Any], words: str) -> None:
    """It names arguments of whatever made the loader."""
    advice = advised(other(DECODING, **changes))
    assert any(words in one.argument for one in advice), advice


def test_what_can_be_gained_is_bounded_by_what_was_measured() -> None:
    """By the step alone, the remaining stages, and no more workers than the work or the cores allow."""
    (workers,) = (one for one in advised(DECODING) if "num_workers" in one.options)
    assert workers.gain == pytest.approx(0.1 / 0.04)
    # Processes that mostly wait may outnumber the cores, as many as keep up with the step.
    waiting = other(DECODING, stages={"read": 0.08})
    assert next(one for one in advised(waiting) if one.options).options["num_workers"] == 4
    assert next(one for one in advised(other(waiting, step_s=0.03)) if one.options).options["num_workers"] == 3
    (pack,) = (one for one in advised(other(DECODING, image_size=(24, 24))) if "stage" in one.argument)
    assert pack.gain == pytest.approx(0.1 / 0.02)
    assert [one.gain for one in advised(DECODING)] == sorted((one.gain for one in advised(DECODING)), reverse=True)


@pytest.mark.parametrize(
    ("facts", "options"), [(STARTING, {"persistent_workers": True}), (BURSTS, {"prefetch_factor": 8})]
)
def test_other_causes_have_their_own_remedies(facts: dict[str, Any], options: dict[str, Any]) -> None:
    """Workers that restart, and a queue that is too short; only if that happens."""
    assert any(one.options == options for one in advised(facts))
    assert not any(one.options == options for one in advised(other(BESIDE, persistent=True)))
    assert not any(one.options == {"persistent_workers": True} for one in advised(other(facts, persistent=True)))


@pytest.mark.parametrize("kind", ["iterable", "colabstage"])
def test_nothing_is_advised_that_was_not_measured(kind: Any) -> None:
    """No copying to a GPU without one; no strategy of our loader that only a trial can compare; no pack of what hardly
    reads."""
    assert not any("stage" in one.argument for one in advised(other(DECODING, stages={"transform": 0.08})))
    facts = other(DECODING, kind=kind, stages={"read": 0.08})
    for one in advised(facts) + advised(other(facts, step_s=None, both_s=0.08)):
        assert "CudaDataLoader" not in one.argument
        assert "memory" not in one.argument


def test_a_stream_is_divided_among_processes_by_its_own_code() -> None:
    """Otherwise every process returns every sample."""
    assert any("get_worker_info" in one.why for one in advised(other(DECODING, stream=True)))
    assert not any("get_worker_info" in one.why for one in advised(DECODING))


def test_a_profile_shows_what_was_measured() -> None:
    """Stages and step as bars, rates as rows, advice below; short times are not shown as zero."""
    profile = profile_of(other(DECODING, start_s=0.5), "a note")
    assert [row.cells[0] for row in profile.tables[0].rows] == ["read", "decode", "transform", "step"]
    text = profile.summary()
    assert "80 samples/s" not in text  # the start of an epoch counts
    assert "76 samples/s" in text
    assert "400 samples/s" in text
    assert "a note" in text
    found = profile.to_dict()
    assert (found["verdict"]["stage"], found["facts"]["step_s"]) == ("decode", 0.02)
    short = str(profile_of({"kind": "colabstage", "load_s": 4e-7, "both_s": 4e-7, "stages": {"read": 4e-7}}))
    assert "0.4 µs" in short
    assert "0.00 ms" not in short
    # With a coarse clock, a batch may take no time.
    assert profile_of({"kind": "torch", "load_s": 0.0, "both_s": 0.0, "step_s": 0.0}).samples_per_s > 0

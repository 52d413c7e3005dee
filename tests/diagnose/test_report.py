"""A profile as text, HTML, JSON values and a picture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from colabstage.diagnose.advice import advise, judge
from colabstage.diagnose.facts import Costs, ProfileFacts, Setting, Span, StageCost
from colabstage.diagnose.profile import LoaderProfile

FACTS = ProfileFacts(
    Setting("torch", batches=100, batch_samples=8, batch_bytes=8000, source="<photos>"),
    (StageCost("decode", 0.06, 0.06),),
    load_s=0.06,
    cycle_s=0.08,
    wait_s=0.06,
    busy_s=0.02,
    step_alone_s=0.02,
    gpu_busy=0.25,
    costs=Costs(handover_s=0.001, gather_s=0.001, cores=2.0, core_count=2),
)
SPANS = tuple(Span(0.08 * number, 0.08 * number + 0.06, 0.08 * (number + 1)) for number in range(20))
PROFILE = LoaderProfile(FACTS, judge(FACTS), advise(FACTS), SPANS, ("a <note>",))


def test_the_summary_has_the_verdict_the_stages_and_the_advice() -> None:
    """In this order, with rates, shares and the head-room."""
    lines = PROFILE.summary().splitlines()
    assert lines[0].startswith("Input-bound by decoding")
    assert lines[1].split()[:3] == ["decode", "60.00", "ms"]
    text = "\n".join(lines)
    assert "100 samples/s, 100 kB/s" in text
    assert "400 samples/s" in text
    assert "consumer waits:         75% of the time" in text
    assert "GPU busy:               25%" in text
    assert "num_workers=" in text
    assert lines[-1] == "Note: a <note>"


def test_figures_are_there_as_numbers() -> None:
    """Rates of samples and bytes, head-room, stages."""
    assert PROFILE.samples_per_s == pytest.approx(100)
    assert PROFILE.bytes_per_s == pytest.approx(100_000)
    assert PROFILE.headroom_samples_per_s == pytest.approx(400)
    assert PROFILE.stage_seconds == {"decode": 0.06, "step": 0.02}


def test_html_is_escaped() -> None:
    """What the caller named is text."""
    assert "&lt;photos&gt;" in PROFILE._repr_html_()
    assert "<note>" not in PROFILE._repr_html_()


def test_everything_is_json() -> None:
    """Also spans and facts."""
    found = json.loads(json.dumps(PROFILE.to_dict()))
    assert found["verdict"]["stage"] == "decode"
    assert len(found["spans"]) == 20


def test_it_is_drawn() -> None:
    """Stages and a timeline; without a run, the stages."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    figure = PROFILE.plot()
    assert len(figure.axes) == 2
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["decode", "step"]
    assert len(LoaderProfile(FACTS, PROFILE.verdict, (), ()).plot().axes) == 1


def test_a_long_heading_fits_the_picture() -> None:
    """A sentence is broken where the picture ends, not beyond."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    sentence = (
        "Input-bound by transforms (nothing is loaded while the step runs): 92% of the time is lost, 216 samples/s "
        "where the step could take 2,623."
    )
    figure = LoaderProfile(FACTS, replace(PROFILE.verdict, sentence=sentence), (), ()).plot()
    (heading,) = figure.texts
    # 9 inches hold 97 characters of it. Measured once: drawing keeps font files open.
    assert max(map(len, heading.get_text().splitlines())) < 97
    assert heading.get_text().replace("\n", " ") == sentence

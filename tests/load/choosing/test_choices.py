"""How a plan of loading shows itself."""

from __future__ import annotations

from dataclasses import replace

from colabstage.load.plan import DecodeChoice, LoaderPlan, OrderChoice, ReasonedValue
from colabstage.load.reading.fields import EngineChoice

PLAN = LoaderPlan(
    strategy="direct",
    reason="a thread copies & waits",
    batch_size=64,
    batches=1200,
    workers=ReasonedValue(2, "one for each core"),
    prefetch=ReasonedValue(4, "as asked"),
    engine=EngineChoice("mapped", "all of it is in memory"),
    order=OrderChoice("file", "shuffle=False"),
)


def test_every_choice_is_shown_with_its_reason() -> None:
    """In the text, in the notebook's HTML, and one by one."""
    words = ("direct", "1,200", "64", "one for each core", "as asked", "mapped", "shuffle=False")
    for shown in (str(PLAN), PLAN._repr_html_(), str(PLAN.facts)):
        assert [word for word in words if word not in shown] == []
    assert "copies &amp; waits" in PLAN._repr_html_()


def test_decoding_is_shown_where_there_is_any() -> None:
    """And only there."""
    assert [name for name, _ in PLAN.facts][-1] == "order"
    more = replace(PLAN, decode=DecodeChoice("crops", "they are smaller"))
    assert [name for name, _ in more.facts][-1] == "decode"
    assert "they are smaller" in more._repr_html_()

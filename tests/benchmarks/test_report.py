"""Figures beside what is promised of them."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks._report import against

_FIGURES = st.floats(0, 1e6)


@given(limit=_FIGURES, value=_FIGURES, digits=st.integers(0, 3), is_near=st.booleans(), part=st.floats(-1e-3, 1e-3))
@example(limit=1.05, value=1.051, digits=2, is_near=False, part=0.0)
@example(limit=1 / 1.1, value=0.909, digits=2, is_near=False, part=0.0)
@example(limit=1.3, value=float("inf"), digits=2, is_near=False, part=0.0)
def test_the_figures_that_are_printed_agree_with_the_verdict(
    limit: float, value: float, digits: int, part: float, *, is_near: bool
) -> None:
    """Which of both is larger, or that they are equal, shows; also close to the limit, where promises are missed."""
    value = limit * (1 + part) if is_near else value
    ((shown, promised),) = re.findall(r"^(\S+) \(at most (\S+)\)$", against(value, limit, "at most", digits))
    assert (float(shown) > float(promised), float(shown) < float(promised)) == (value > limit, value < limit)
    assert float(promised) == limit or abs(float(promised) - limit) <= 10.0**-digits

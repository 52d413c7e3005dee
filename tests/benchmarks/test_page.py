"""The page of benchmarks: what is promised, made from what the benchmarks printed."""

import re

import pytest

from benchmarks._page import PAGE, RESULTS, Ratio, losses, make_page, promises, read_results


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("ok    make_loader / FFCV: 1.55 (at least 1.5)", [Ratio("make_loader / FFCV", "1.55", "at least 1.5", True)]),
        ("MISS  loader / 2 workers: 1.79 (at least 2.0)", [Ratio("loader / 2 workers", "1.79", "at least 2.0", False)]),
        ("ok: 3.5 times the loop (at least 3)", [Ratio("… times the loop", "3.5", "at least 3", True)]),
        ("MISS it is 12.0 times it (wanted: 20.0)", [Ratio("it is … times it", "12.0", "at least 20.0", False)]),
        (
            "ok   fit(a): times raw 5.5 (wanted: 5), of memory 0.63 (wanted: 0.7)",
            [
                Ratio("fit(a): times raw", "5.5", "at least 5", True),
                Ratio("fit(a): of memory", "0.63", "at least 0.7", False),
            ],
        ),
        ("zip of 2 GB   1.38 (at most 1) s    not run", [Ratio("zip of 2 GB", "1.38", "at most 1", False)]),
        ("MISSED: epoch 1: 1.05, promised 1.05", [Ratio("epoch 1", "1.05", "at most 1.05", False)]),
        ("ok: 74 bytes more (at most 125, or 8 MiB)", [Ratio("… bytes more", "74", "at most 125", True)]),
        ("  20.0 s  10.0 s   1.06 (at most 1.05)", []),
        ("make_loader      38,230    30,000    39,000", []),
        ("2,000 samples (of 5)", []),
    ],
)
def test_a_figure_with_its_promise_is_a_row(line: str, rows: list[Ratio]) -> None:
    """Whether it is kept follows from the figures, except where they are too close to show it."""
    assert promises(line) == rows


def test_what_is_faster_than_colabstage_is_in_the_page() -> None:
    """A peer that wins is a row in bold, like a promise that is missed."""
    output = """python -m benchmarks.made, 2026-01-02. Some CPU(R), 2 cores, 24 GiB; Linux 6.

images/s        median    lowest   highest
FFCV               344       344       344
make_loader        172       172       172

MISS  make_loader / FFCV: 0.50 (at least 1)
"""
    assert [(row.ratio, row.kept) for row in losses(output)] == [("2.00", False)]
    text = make_page({"made": output})
    assert "**2.00**" in text
    assert "**0.50** | at least 1" in text
    assert "Some CPU, 2 cores, 2026-01-02" in text


@pytest.mark.parametrize(
    ("last", "row"), [("1.40", "| zip of a … zip of e: 5 ratios | 0.90 to 1.40 |"), ("3.50", "| zip of a | 0.90 |")]
)
def test_many_kept_promises_of_one_bound_are_one_row(last: str, row: str) -> None:
    """Unless one of them is missed."""
    output = "".join(
        f"zip of {one} {ratio} (at most 3)\n" for one, ratio in zip("abcde", ["0.90"] * 4 + [last], strict=True)
    )
    assert row in make_page({"made": output})


def test_the_page_is_made_of_the_outputs_that_are_kept() -> None:
    """And those have no progress bars, and no paths of a machine."""
    outputs = read_results()
    assert PAGE.read_text(encoding="utf-8") == make_page(outputs)
    passing = re.compile(r"\d+%\|.*\||Warning: |site-packages|/(?:tmp|root|home|work)/")
    assert [line for text in outputs.values() for line in text.splitlines() if passing.search(line)] == []
    assert {f"{name}.txt" for name in outputs} == {path.name for path in RESULTS.iterdir()}

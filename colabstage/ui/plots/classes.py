"""How many samples each class has, split by split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.diagnose.drawing import new_figure
from colabstage.errors import OptionError
from colabstage.ui.plots.inks import INK, SERIES, add_title, plain_bars
from colabstage.ui.samples.labels import read_labels
from colabstage.ui.samples.source import open_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from colabstage.ui.samples.labels import Labels
    from colabstage.ui.samples.source import Samples

# More bars than this cannot be read on one page.
_MOST_CLASSES = 40


def plot_class_balance(data: Samples, *, title: str = "Samples of each class") -> Figure:
    """Draw how many samples of each class there are in every split. Only targets are read.

    >>> plot_class_balance(data)  # doctest: +SKIP

    Args:
        data: what `stage_dataset` returns, a `dataset_h5`, or the path of an HDF5 file or a pattern of several.
        title: the headline.

    Returns:
        A matplotlib figure on white that a notebook shows; of more than 40 classes the most and the least frequent.

    Raises:
        OptionError: targets are no classes; the message says what they are.
        MissingDependencyError: matplotlib is not installed.
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    source = open_source(data)
    labels = {split: read_labels(source, split) for split in source.rows}
    why = next((one.why_none for one in labels.values() if one.why_none), None)
    if why is not None:
        msg = f"'{source.name}' has no classes to count: {why}."
        raise OptionError(msg)
    counts = _counts(labels)
    shown, left = _shown(counts)
    figure = new_figure(min(11.0, 4.0 + 3.2 * len(labels)), 1.3 + 0.27 * max(3, len(shown)))
    add_title(figure, title, f"{left:,} classes of middling frequency are left out." if left else "")
    for number, (axis, split) in enumerate(
        zip(figure.subplots(1, len(labels), sharey=True, squeeze=False)[0], labels, strict=True)
    ):
        values = [counts[name].get(split, 0) for name in shown]
        bars = axis.barh(range(len(shown)), values, color=SERIES[number % len(SERIES)], height=0.7)
        axis.bar_label(bars, [f"{value:,}" for value in values], padding=4, color=INK, fontsize=9)
        axis.set_title(f"{split} ({source.rows[split]:,})", loc="left", color=INK, fontsize=10.5)
        axis.set_xlim(0, max(*values, 1) * 1.25)
        axis.set_yticks(range(len(shown)), shown)
        plain_bars(axis)
        axis.tick_params(axis="y", labelleft=number == 0)
        if number == 0:
            axis.invert_yaxis()
    return figure


def _counts(labels: dict[str, Labels]) -> dict[str, dict[str, int]]:
    """Samples of each class, by name, in each split; classes in label order."""
    counts: dict[str, dict[str, int]] = {}
    for split, one in labels.items():
        for name, count in zip(one.names, one.counts.tolist(), strict=True):
            counts.setdefault(name, {})[split] = count
    return counts


def _shown(counts: dict[str, dict[str, int]]) -> tuple[list[str], int]:
    """The classes that are drawn, and how many are not: all, or the most and the least frequent."""
    if len(counts) <= _MOST_CLASSES:
        return list(counts), 0
    by_count = sorted(counts, key=lambda name: -sum(counts[name].values()))
    half = _MOST_CLASSES // 2
    return [*by_count[:half], *by_count[-half:]], len(counts) - _MOST_CLASSES

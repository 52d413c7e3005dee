"""What was found, in words that a row of a table of datasets expects."""

from collections import Counter
from collections.abc import Sequence

from colabstage.options import Arrays, Boxes, Masks, SampleTable, Values

_ORDER = ("", "train", "val", "valid", "validation", "dev", "test")


def described(found: SampleTable) -> str:
    """Count the samples of each split, by what is said of them."""
    splits = found.splits or [""] * len(found)
    parts = []
    for split in sorted(set(splits), key=_ORDER.index):
        chosen = [number for number, one in enumerate(splits) if one == split]
        parts.append(f"{split}: {_said(found, chosen)}" if split else _said(found, chosen))
    return "; ".join(parts)


def _said(found: SampleTable, chosen: Sequence[int]) -> str:  # noqa: PLR0911
    count, targets = len(chosen), found.targets
    if targets is None:
        return f"{count} without labels"
    if isinstance(targets, Masks):
        names = f" of {', '.join(found.classes)}" if found.classes else ""
        return f"{count} masks{names}"
    if isinstance(targets, Boxes):
        parts = (slice(targets.offsets[number], targets.offsets[number + 1]) for number in chosen)
        labels = [label for part in parts for label in targets.columns["labels"][part].tolist()]
        return f"{count} images, {len(labels)} boxes" + (f": {_counts(found, labels)}" if labels else "")
    if isinstance(targets, Arrays):
        return f"{count} rows"
    assert isinstance(targets, Values)
    values = targets.values[chosen]
    if values.ndim == 2:
        if not found.classes:
            return f"{count} of {values.shape[1]} numbers"
        held = [place for row in values for place in row.nonzero()[0]]
        return f"{count} with several labels: {_counts(found, held)}"
    return _counts(found, values.tolist()) if found.classes else f"{count} numbers"


def _counts(found: SampleTable, labels: Sequence[int]) -> str:
    counts = Counter(found.classes[label] for label in labels)
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))

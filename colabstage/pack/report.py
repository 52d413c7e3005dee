"""What packing did, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import printable
from colabstage.io.page import notes, page
from colabstage.io.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from colabstage.images.resample import Resizer


@dataclass(frozen=True, slots=True)
class PackReport:
    """What packing did.

    `path`: the file; an address where the target is one. `encoding`, `reason`: how samples are stored, and why.
    `samples`: rows of each split. `classes`: class names in label order.
    `skipped`: one sentence for each sample that was left out.
    `nbytes`: length of the file. `seconds`: how long it took, `packing_s` of it reading, decoding and writing.
    `resumed`: samples that an earlier, interrupted run had already put in place.
    `readers`: reads in flight at the most. `notes`: what else a person should know.
    `files`: of shards, all of them; `path` is then a pattern that they match, which `dataset_h5` reads.
    `animated`: names of images that have further frames; the first one counts.
    `unit`: what samples are called where they are counted: images, clips of sound, rows, or just samples.
    `resizer`: `"torch"` or `"pillow"`, which scaled the images; `None` where they were not scaled.
    """

    path: Path | str
    encoding: str
    reason: str
    samples: Mapping[str, int]
    classes: tuple[str, ...]
    skipped: tuple[str, ...]
    nbytes: int
    seconds: float
    packing_s: float
    resumed: int
    readers: int
    notes: tuple[str, ...]
    files: tuple[Path | str, ...] = ()
    animated: tuple[str, ...] = ()
    resizer: Resizer | None = None
    unit: str = "samples"

    def __str__(self) -> str:
        total = sum(self.samples.values())
        rate = format_rate(total - self.resumed, self.packing_s, self.unit)
        stored = f"{total:,} {self.unit} in {format_bytes(self.nbytes)} ({self.encoding}: {self.reason})"
        lines = [f"{stored} in {format_duration(self.seconds)}, {rate}", *self.notes]
        if self.resizer == "torch":
            lines.append("resized by torch, within one grey level of Pillow")
        if self.resumed:
            lines.insert(1, f"{self.resumed:,} of them were in place from before")
        if self.skipped:
            lines.append(f"{len(self.skipped):,} left out: " + "; ".join(self.skipped[:3]))
        return "\n".join(map(printable, lines))

    def _repr_html_(self) -> str:
        headline, *further = str(self).splitlines()
        return page(headline, notes([*further, f"in {self.path}"]))

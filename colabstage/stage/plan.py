"""`StagePlan`: what staging would do, how much it would move, and the disk it would need at its peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import printable
from colabstage.io.page import COLOURS, facts_table, notes, page
from colabstage.io.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

Action = Literal["reuse", "restore", "stage"]

_SENTENCES = {
    "reuse": "is already staged on this machine; nothing would be read",
    "restore": "is in the cache; it would be copied from there and verified",
    "stage": "would be read from its source",
}


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Bytes that one staging moves.

    `source_bytes`: read from the source. `archive_bytes`: of an archive that is copied here first, 0 otherwise.
    `mount_bytes`: what of that is read through a mount that keeps a second copy of an open archive on the local disk,
    as Google Drive's does. `pack_bytes`: of the pack. `files_bytes`: of plain files kept.
    """

    source_bytes: int = 0
    archive_bytes: int = 0
    pack_bytes: int = 0
    files_bytes: int = 0
    mount_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """What the local disk must have free while it works.

        Small files that pass through a mount are dropped from its copy as the disk fills; an archive that is being
        read is not.
        """
        return self.archive_bytes + self.mount_bytes + self.pack_bytes + self.files_bytes


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What `stage_dataset` would do with the same arguments.

    `action`: `"reuse"` what is here, `"restore"` the cached pack, or `"stage"` the source.
    `reasons`: why, in sentences, one for each place that was looked at.
    `figures`: bytes it would move. `free_bytes`: what the disk has. `target`: what it would make.
    `cache`: where the pack would be, or is, cached; `None` for nowhere.
    `samples`: rows of each split, where known.
    """

    source: str
    action: Action
    reasons: tuple[str, ...]
    figures: StageFigures
    free_bytes: int
    target: Path
    cache: Path | None
    samples: dict[str, int]

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it."""
        return self.figures.peak_bytes <= self.free_bytes

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "source": self.source,
            "action": self.action,
            "reasons": list(self.reasons),
            "read_bytes": self.figures.source_bytes,
            "pack_bytes": self.figures.pack_bytes,
            "files_bytes": self.figures.files_bytes,
            "peak_bytes": self.figures.peak_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "target": str(self.target),
            "cache": None if self.cache is None else str(self.cache),
            "samples": self.samples,
        }

    def __str__(self) -> str:
        lines = [self._headline, *(f"  {reason}" for reason in self.reasons)]
        return "\n".join(map(printable, [*lines, *(f"  {name:<9}{value}" for name, value in self._facts())]))

    def _repr_html_(self) -> str:
        mark = "" if self.fits else f"<b style='color:{COLOURS['fail']}'>This does not fit on the disk.</b>"
        return page(self._headline, notes(self.reasons) + facts_table(self._facts()) + mark)

    @property
    def _headline(self) -> str:
        return f"'{self.source}' {_SENTENCES[self.action]}."

    def _facts(self) -> list[tuple[str, str]]:
        facts = []
        if self.samples:
            facts.append(("samples", ", ".join(f"{name} {rows:,}" for name, rows in self.samples.items())))
        if self.action != "reuse":
            figures = self.figures
            room = "" if self.fits else ": too little"
            facts += [
                ("read", format_bytes(figures.source_bytes)),
                ("write", f"{format_bytes(figures.pack_bytes + figures.files_bytes)} to '{self.target}'"),
                ("peak", f"{format_bytes(figures.peak_bytes)} of {format_bytes(self.free_bytes)} free{room}"),
            ]
        return facts if self.cache is None else [*facts, ("cache", f"'{self.cache}'")]

"""What a campaign is: one kind of work on real data that may be killed at any moment, and what must hold after it."""

from __future__ import annotations

import filecmp
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from campaigns.worker import ProgressLog

# What stands at the target: nothing that anybody trusts, what was there before, or the whole new thing.
State = Literal["nothing", "old", "whole"]


class WrongError(Exception):
    """A promise was broken."""


class Campaign(Protocol):
    """One kind of work.

    `title`: what is done, for the page. `unit`: what its progress is counted in. `bound`: how many units one kill may
    cost: finished, and done once more; why so many is said in `because`. `variants`: rounds differ, and do so again
    after so many.
    """

    title: ClassVar[str]
    unit: ClassVar[str]
    because: ClassVar[str]
    variants: ClassVar[int]

    def __init__(self, home: Path, *, small: bool) -> None:
        """Make the data in `home`; `small` for a short campaign."""

    @property
    def bound(self) -> float:
        """Units that one kill may cost."""

    @property
    def spread(self) -> float:
        """Units by which rounds of one kind differ without any kill."""

    def begin(self, number: int) -> dict[str, Any]:
        """Make a fresh place for the round of this number; returns what the worker needs to know."""

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Do the work; called in the worker."""

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Units that the run which has just ended finished, not counting what it found finished."""

    @property
    def needed(self) -> float:
        """Units in all of the work of this round."""

    def look(self) -> State:
        """What a reader finds now, right after a kill.

        Raises:
            WrongError: a part that could be taken for the whole.
        """

    def check(self) -> None:
        """Compare what the finished run left with the truth, byte by byte.

        Raises:
            WrongError: it differs, or something was left behind.
        """

    def close(self) -> None:
        """Let go of everything."""


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two files have the same content."""
    return filecmp.cmp(one, other, shallow=False)


def leftovers(folder: Path) -> list[str]:
    """What of colabstage's own is below a folder and has no business there once a call has succeeded.

    One inventory for each folder that was put in its place stays; no temporary does, no lock, and no second inventory.
    """
    found = sorted(folder.rglob(".colabstage-*"))
    inventories = [path for path in found if path.suffix == ".deed"]
    rightful = {(path.parent, path.name.rsplit(".", 3)[0]): path for path in inventories}.values()
    return [str(path.relative_to(folder)) for path in found if path not in rightful]


def same_tree(found: Path, truth: Path, who: str) -> None:
    """Compare two folders, file by file and byte by byte; hidden files beside the truth's do not count.

    Raises:
        WrongError: a file is missing, is one too many, or differs.
    """
    names = {path.relative_to(truth) for path in truth.rglob("*") if path.is_file()}
    there = {path.relative_to(found) for path in found.rglob("*") if path.is_file() and path.name[0] != "."}
    wrong = [name for name in names & there if not same_bytes(found / name, truth / name)]
    if names != there or wrong:
        msg = f"{who}: '{found.name}' has {len(there)} of {len(names)} files, {len(wrong)} of them with other content."
        raise WrongError(msg)

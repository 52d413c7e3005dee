"""What a campaign is: one kind of work on real data that may be killed at any moment, and what must hold after it."""

from __future__ import annotations

import filecmp
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from campaigns.worker import ProgressLog

# What stands at the target: nothing that anybody trusts, what was there before, or the whole new thing.
State = Literal["nothing", "old", "whole"]


class WrongError(Exception):
    """A promise was broken."""


class Campaign:
    """One kind of work.

    `name`: how it is called on the command line. `title`: what is done, for the page. `unit`: what its progress is
    counted in. `bound`: how many units one kill may cost: finished, and done once more; why so many is said in
    `because`. `needed`: units in all of the work of a round. `spread`: units by which rounds of one kind differ without
    any kill. `variants`: rounds differ, and do so again after so many.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[str]
    because: ClassVar[str]
    variants: ClassVar[int] = 1
    counts: Mapping[str, int] = MappingProxyType({})
    """What else was counted, for the page."""

    def __init__(self, home: Path, *, small: bool) -> None:
        """Make the data in `home`; `small` for a short campaign."""
        raise NotImplementedError

    @property
    def bound(self) -> float:
        raise NotImplementedError

    @property
    def needed(self) -> float:
        raise NotImplementedError

    @property
    def spread(self) -> float:
        return 0.0

    def begin(self, number: int) -> dict[str, Any]:
        """Make a fresh place for the round of this number; return what the worker needs to know."""
        raise NotImplementedError

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Do the work; called in the worker."""
        raise NotImplementedError

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Return the units that the run which has just ended finished, not counting what it found finished."""
        raise NotImplementedError

    def look(self) -> State:
        """Return what a reader finds right after a kill; fail where a part could be taken for the whole."""
        raise NotImplementedError

    def check(self) -> None:
        """Compare what the finished run left with the truth, byte by byte."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything."""

    def fail(self, message: str) -> NoReturn:
        """Say that a promise was broken.

        Raises:
            WrongError: always.
        """
        msg = f"{self.name}: {message}"
        raise WrongError(msg)

    def check_nothing_left(self, *folders: Path) -> None:
        """Fail where unfinished work, a lock or a draft is below a folder once a call has succeeded."""
        if found := [name for folder in folders for name in leftovers(folder)]:
            self.fail(f"left behind: {found}")


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two files have the same content."""
    return filecmp.cmp(one, other, shallow=False)


def leftovers(folder: Path) -> list[str]:
    """What of colabstage's own is below a folder and has no business there once a call has succeeded.

    One receipt beside each thing that was put in its place stays; no temporary does, no lock, and no second receipt.
    """
    found = sorted(folder.rglob(".colabstage-*"))
    receipts = [path for path in found if path.suffix == ".receipt"]
    rightful = {(path.parent, path.name.rsplit(".", 3)[0]): path for path in receipts}.values()
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

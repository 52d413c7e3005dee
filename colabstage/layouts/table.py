"""The table of samples that every layout makes of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import LayoutError
from colabstage.layouts.fields import Images
from colabstage.trees.entries import first_repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.fields import Inputs, Targets


class ClaimedTreeError(LayoutError):
    """The tree is of this layout beyond doubt, and something in it is wrong: no other layout is to be asked."""


class NearMissError(LayoutError):
    """Part of what makes this layout is there, and not enough of it: where nothing fits, the first thing to say."""


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Which content is which sample, with its target and split. N samples.

    Sequences of texts may be lists, tuples, or `trees.entries.StringArray`, which hold millions in little memory.

    `layout`: name of the layout that made the table.
    `keys`: what each sample is called, N unique names; splits and row order follow from them alone.
    `inputs`: x of each sample.
    `targets`: y of each sample; `None` where the source has none.
    `splits`: the split of each sample, N names, or `None` where the source has no splits.
    `groups`: what each sample belongs to (a patient, a scene), N names: samples of one group never end in two splits.
    `classes`: class names, in label order.
    `notes`: sentences a person should see about what was found or left out.
    """

    layout: str
    keys: Sequence[str]
    inputs: Inputs
    targets: Targets | None
    splits: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parts = {
            "inputs": self.inputs,
            "targets": self.targets,
            "splits": self.splits,
            "groups": self.groups,
        }
        wrong = {name: len(part) for name, part in parts.items() if part is not None and len(part) != len(self.keys)}
        if wrong:
            found = ", ".join(f"{count} {name}" for name, count in wrong.items())
            msg = f"A sample table needs one entry of each kind for each of its {len(self.keys)} keys, got {found}."
            raise LayoutError(msg)
        twice = first_repeated(self.keys)
        if twice is not None:
            msg = f"Two samples have the key {twice!r}; expected a name for each that no other has."
            raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def unit(self) -> str:
        """What its samples are called where they are counted."""
        if isinstance(self.inputs, Images):
            return "images"
        return {"audio": "clips", "tokens": "rows", "arrays": "rows"}.get(self.layout, "samples")

"""Receipts: the evidence that colabstage made what is at a place, and that it is unchanged since.

A receipt is one file beside its target, `.colabstage-NAME.OWNER.N.receipt`. It says which kind of work made the target,
what that work needs to know later (its source, and the source's state), and the target's own state: for a folder the
size and time of everything in it; for a file what changes when anything writes to it, and the hash of each block.

A receipt is written right before its target gets its name. So while one target replaces another there are two receipts,
and at any moment one of them is true: **only a true receipt counts**. Packs and published files have manifests instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import TargetExistsError
from colabstage.io import workspace
from colabstage.io.files import BLOCK_BYTES, Record, block_ranges, hash_ranges, read_fields, read_json
from colabstage.io.units import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_VERSION = 1
_MOST_NAME_BYTES = 255
_THREADS = 4
_EARLIER_HEAD = b"colabstage deed 1"
# Names listed in an error; the rest are counted.
_NAMES_SHOWN = 3

Seal = dict[str, int | str]
Inventory = dict[str, str]
"""The content of a folder by name: size and time of a file, the target of a link, or that it is a folder."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one piece of work made, and its state right afterwards."""

    kind: str
    about: dict[str, Any] = field(default_factory=dict)
    inventory: Inventory = field(default_factory=dict)
    seal: Seal = field(default_factory=dict)
    """For a file: what changes when anything writes to it; empty before it has its name."""
    hashes: tuple[str, ...] = ()
    """For a file: the xxh3-64 of each 8 MiB block."""

    def describes(self, file: Path, *, thorough: bool = False) -> bool:
        """Return whether a file is the described one: by its seal, or else, or if `thorough`, by its content."""
        sealed = bool(self.seal) and self.seal.items() <= file_seal(file).items()
        if not self.hashes or (sealed and not thorough):
            return sealed
        ranges = block_ranges(file.stat().st_size, BLOCK_BYTES)
        # Comparing their number is free, while hashing reads everything.
        return len(ranges) == len(self.hashes) and tuple(hash_ranges(file, ranges, threads=_THREADS)) == self.hashes


def file_seal(file: Path) -> Seal:
    """Return what changes when anything writes to a file, with the boot, which may lose what was not synced."""
    found = file.stat()
    return {
        "inode": found.st_ino,
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
        "world": workspace.current_world(),
    }


@dataclass(frozen=True, slots=True)
class Standing:
    """What is at a place, compared with its receipt."""

    kind: Literal["nothing", "empty folder", "folder", "file", "link"]
    receipt: Receipt | None = None
    """The receipt that fits best; `None` if there is none, or if everything that it lists is gone."""
    strange: tuple[str, ...] = ()
    """Names that are at the place but not in the receipt."""
    changed: tuple[str, ...] = ()
    """Names in both whose state differs."""
    gone: tuple[str, ...] = ()

    @property
    def is_as_made(self) -> bool:
        """Return whether everything that was put there is unchanged, and nothing else is there."""
        return self.receipt is not None and not (self.strange or self.changed or self.gone)

    @property
    def is_replaceable(self) -> bool:
        """Return whether removing it would lose nothing that belongs to others."""
        nothing_else = self.receipt is not None and not (self.strange or self.changed)
        return self.kind in ("nothing", "empty folder") or nothing_else

    def about(self, kind: str, record: type[Record]) -> Record | None:
        """Return what this kind of work noted about it; `None` if other work made it."""
        receipt = self.receipt
        return None if receipt is None or receipt.kind != kind else read_fields(record, receipt.about)

    def distance(self) -> tuple[bool, int, bool]:
        """Return how far it is from the receipt; without one, it is farthest."""
        nameless = self.receipt is None or not self.receipt.kind
        return self.receipt is None, len(self.strange) + len(self.changed) + len(self.gone), nameless

    def __str__(self) -> str:
        if self.receipt is None:
            return "was not made by colabstage"
        differs = {"not from colabstage": self.strange, "changed": self.changed, "gone": self.gone}
        parts = [f"{what}: {listed(names, _NAMES_SHOWN)}" for what, names in differs.items() if names]
        return f"was changed since it was made ({'; '.join(parts)})" if parts else "is as it was made"


def look_at(target: Path, *, thorough: bool = False) -> Standing:
    """Compare what is at `target` with its receipt; `thorough`: as for `Receipt.describes`."""
    try:
        found = target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Standing("nothing")
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and not stat.S_ISREG(found.st_mode):
        return Standing("link")
    if not workspace.is_made_here(target):
        return Standing("folder" if is_folder else "file")
    if is_folder and _is_empty(target):
        return Standing("empty folder")
    receipts = [receipt for receipt, _ in receipts_of(target)]
    # What no receipt speaks of may be a whole disk.
    there = _take_inventory(target) if is_folder and receipts else {}
    # One whose target never got its name fits worse than the one before it.
    compared = [
        _compared(receipt, there) if is_folder else _compared_file(receipt, target, thorough) for receipt in receipts
    ]
    return min(compared, key=Standing.distance, default=Standing("folder" if is_folder else "file"))


def _compared(receipt: Receipt, there: Inventory) -> Standing:
    listed = receipt.inventory
    strange, gone = sorted(there.keys() - listed.keys()), sorted(listed.keys() - there.keys())
    changed = sorted(name for name, facts in listed.items() if there.get(name, facts) != facts)
    # Nothing that it lists is here any more, or it is the receipt of a file.
    if len(changed) + len(gone) == len(listed):
        return Standing("folder")
    return Standing("folder", receipt, tuple(strange), tuple(changed), tuple(gone))


def _compared_file(receipt: Receipt, target: Path, thorough: bool) -> Standing:
    if receipt.inventory:
        return Standing("file")
    return Standing("file", receipt, changed=() if receipt.describes(target, thorough=thorough) else (target.name,))


def check_replaceable(target: Path, remedy: str = "Move that away, or choose another target.") -> None:
    """Refuse a target that colabstage may not replace; `remedy`: the sentence that says what to do."""
    here = look_at(target)
    if not here.is_replaceable:
        msg = f"'{target}' {here}. {remedy}"
        raise TargetExistsError(msg)


# --- receipts as files ---


def receipts_of(target: Path) -> Iterator[tuple[Receipt, Path]]:
    """Yield the receipts beside `target`, true or not, and the files that they are in; those of earlier versions
    too."""
    for one in workspace.owned_beside(target, workspace.RECEIPT):
        found = _read(one.path)
        if found is not None and found[0] == target.name:
            yield found[1], one.path
    yield from _written_before(target)


def find_receipts(folder: Path) -> dict[Path, Receipt]:
    """Return the receipts in a folder by their targets; if a target has several, any of them."""
    read = [_read(one.path) for one in workspace.find_owned(folder, suffixes=(workspace.RECEIPT,))]
    earlier = [
        path.name[1:].removesuffix(workspace.RECORD_SUFFIX) for path in folder.glob(f".*{workspace.RECORD_SUFFIX}")
    ]
    return {
        **{folder / name: receipt for name in earlier for receipt, _ in _written_before(folder / name)},
        **{folder / one[0]: one[1] for one in read if one is not None},
    }


def note_receipt(target: Path, receipt: Receipt) -> Path:
    """Write the receipt of what is about to get the name `target`; return the receipt's file."""
    path = workspace.owned_name(target, workspace.RECEIPT)
    # Its temporary is not named for the receipt, where nobody would look, nor for the target, which would adopt it.
    draft, values = path.with_suffix(workspace.DRAFT), {one.name: getattr(receipt, one.name) for one in fields(Receipt)}
    try:
        draft.write_bytes(json.dumps({**values, "receipt": _VERSION, "name": target.name}).encode())
        workspace.sync_file(draft)
        return workspace.rename_own(draft, path)
    except BaseException:
        workspace.remove_own(draft)
        raise


def settle_receipt(target: Path, receipt: Receipt, noted: Path | None = None) -> None:
    """Make a receipt, which was seen to be true, the only one of its target; those of other living processes stay.
    `noted`: the file that holds it, if there is one."""
    # Another thread that put the same there may have removed it.
    keep = noted if noted is not None and noted.exists() else note_receipt(target, receipt)
    for suffix in (workspace.RECEIPT, workspace.EARLIER_INVENTORY):
        for one in workspace.owned_beside(target, suffix):
            # A living process's receipt is for what it is about to put there.
            if one.path != keep and (one.owner == workspace.owner_token() or one.is_abandoned):
                workspace.remove_named(one.path)
    for path in _earlier_records(target):
        if workspace.is_made_here(path):
            workspace.remove_named(path)


def sweep_receipts(target: Path, here: Standing | None = None) -> None:
    """Remove what dead processes left beside the true receipt of an unchanged target, and seal a file again; a failure
    of the disk is ignored. `here`: what was found at the target; by default it is looked at if there are several."""
    with contextlib.suppress(OSError):
        if here is None and len(workspace.owned_beside(target, workspace.RECEIPT)) > 1:
            here = look_at(target)
        if here is not None and here.is_as_made and here.receipt is not None:
            # If its hashes proved it, as after a reboot or a death before it was sealed, the next check reads nothing.
            true = replace(here.receipt, seal=file_seal(target) if here.kind == "file" else {})
            held = [path for one, path in receipts_of(target) if one == true and path.suffix == workspace.RECEIPT]
            settle_receipt(target, true, held[0] if held else None)


def _read(path: Path) -> tuple[str, Receipt] | None:
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.pop("receipt", None) != _VERSION:
        return None
    # Checked as a whole, because it may have a million names.
    name, inventory = raw.pop("name", None), raw.pop("inventory", None)
    receipt = read_fields(Receipt, raw)
    if receipt is None or not isinstance(name, str) or not isinstance(inventory, dict):
        return None
    return name, replace(receipt, inventory=inventory)


# --- folders ---


def put_folder(made: Path, target: Path, receipt: Callable[[], Receipt], *, overwrite: bool = False) -> None:
    """Put a finished folder, which is one of our temporaries or inside one, in its place, with a receipt. `receipt` is
    called right before, and makes the receipt, to which the inventory is added, or raises."""
    workspace.check_own(made)
    # One that lists a part would make the rest, and so the whole folder, somebody else's.
    coming = replace(receipt(), inventory=_take_inventory(made, strict=True))
    noted = note_receipt(target, coming)

    def judge() -> bool:
        if not overwrite:
            check_replaceable(target)
        return overwrite

    try:
        workspace.exchange(made, target, judge)
    except TargetExistsError:  # raised before anything got the name; after any other error something may have
        workspace.remove_named(noted)
        raise
    settle_receipt(target, coming, noted)


def _is_empty(folder: Path) -> bool:
    try:
        with os.scandir(folder) as scan:
            return next(scan, None) is None
    except OSError:
        return False  # it cannot be examined


def _take_inventory(folder: Path, *, strict: bool = False) -> Inventory:
    """List all that is in a folder; `strict`: raise if something cannot be examined, which is otherwise listed so."""
    found: Inventory = {}
    todo = [""]
    while todo:
        prefix = todo.pop()
        try:
            with os.scandir(f"{folder}/{prefix}") as scan:
                for entry in scan:
                    name = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        found[name] = "folder"
                        todo.append(f"{name}/")
                    elif entry.is_symlink():
                        found[name] = f"link {os.readlink(entry.path)}"  # noqa: PTH115 - thousands of them
                    else:
                        about = entry.stat(follow_symlinks=False)
                        is_file = stat.S_ISREG(about.st_mode)
                        found[name] = f"{about.st_size} {about.st_mtime_ns}" if is_file else "device"
        except OSError as error:
            if strict:
                raise
            # It disappeared meanwhile, or cannot be examined; no receipt has this value.
            found[prefix or "."] = f"error {error.errno}"
    return found


# --- what version 0.1 wrote: inventories of folders, and records that name one by its digest or hold a file's seal ---


def _written_before(target: Path) -> Iterator[tuple[Receipt, Path]]:
    """Yield what version 0.1 noted about `target`, as receipts."""
    inventories = {digest: (path, inventory) for path, digest, inventory in _earlier_inventories(target)}
    for path in _earlier_records(target):
        raw = read_json(path) if workspace.is_made_here(path) else None
        for receipt, digest in [] if not isinstance(raw, dict) else _earlier_receipts(raw):
            if digest in inventories:
                yield replace(receipt, inventory=inventories[digest][1]), path
            elif not digest:
                yield receipt, path
    # Even without a record it proves who made the folder.
    yield from ((Receipt("", {}, inventory), path) for path, inventory in inventories.values())


def _earlier_records(target: Path) -> list[Path]:
    names = (
        f".{target.name}{workspace.RECORD_SUFFIX}",
        f".{target.name}{workspace.RECORD_SUFFIX}{workspace.ANNOUNCED_SUFFIX}",
    )
    return [target.parent / name for name in names if len(os.fsencode(name)) <= _MOST_NAME_BYTES]


def _earlier_receipts(raw: dict[str, Any]) -> Iterator[tuple[Receipt, str]]:
    if raw.pop("version", None) == 1 and isinstance(raw.get("seal"), dict):
        digest, hashes = str(raw["seal"].pop("deed", "")), raw.pop("hashes", [])
        seal = {name: value for name, value in raw.pop("seal").items() if isinstance(value, int | str)}
        yield Receipt("fetched", raw, {}, seal, tuple(map(str, hashes))), digest
    if raw.pop("format", None) == 2:
        digest = str(raw.pop("deed", "-"))
        yield Receipt("extracted", raw), digest


def _earlier_inventories(target: Path) -> Iterator[tuple[Path, str, Inventory]]:
    for one in workspace.owned_beside(target, workspace.EARLIER_INVENTORY):
        with contextlib.suppress(OSError):
            text = one.path.read_bytes()
            head, *parts = text.split(b"\0")
            if head == _EARLIER_HEAD and len(parts) % 2 == 0:
                inventory = dict(zip(map(os.fsdecode, parts[::2]), map(os.fsdecode, parts[1::2]), strict=True))
                yield one.path, hashlib.sha256(text).hexdigest()[:16], inventory

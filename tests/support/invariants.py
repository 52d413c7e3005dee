"""What holds after every call, whatever happened to it: nothing partial counts as whole, nothing is left behind,
nothing of the user's is touched, and the bytes are right.

    home = Home(tmp_path, theirs=["photos", "notes.txt"])
    fetch_files(tmp_path / "photos", tmp_path / "out/photos")
    home.check(finished=True)
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

# Folders' times are included: a temporary file in the user's folder would change one.
Tree = dict[str, "Entry"]
Contents = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """Everything a user may notice about one name on a disk."""

    kind: str
    mode: int
    mtime_ns: int
    links: int
    content: bytes | str


def snapshot(*roots: Path) -> Tree:
    """Return everything at and below these paths: names, bytes, modes, times, links."""
    found: Tree = {}
    for root in roots:
        for path in [root, *sorted(root.rglob("*"))] if os.path.lexists(root) else []:
            about = path.lstat()
            kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file"
            content: bytes | str = (
                path.read_bytes() if kind == "file" else str(path.readlink()) if kind == "link" else ""
            )
            links = about.st_nlink if kind == "file" else 1
            found[str(path)] = Entry(kind, stat.S_IMODE(about.st_mode), about.st_mtime_ns, links, content)
    return found


def contents(folder: Path) -> Contents:
    """Return the files that a user sees below a folder, by name: without hidden files and notes about files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".json" and not _is_hidden(path.relative_to(folder))
    }


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def left_behind(folder: Path) -> list[str]:
    """Return the names of unfinished work, locks and drafts below a folder, except one receipt beside each target."""
    patterns = (".colabstage-*", "*.unfinished")
    found = [path for pattern in patterns for path in sorted(folder.rglob(pattern))]
    receipts = {(path.parent, path.name.rsplit(".", 3)[0]): path for path in found if path.suffix == ".receipt"}
    return [str(path.relative_to(folder)) for path in found if path not in receipts.values()]


def unvouched(folder: Path, *, untouched: bool = False) -> list[str]:
    """Return the packs and published files below a folder whose bytes differ from the manifest beside them.
    `untouched`: only those with their manifest's time."""
    wrong = []
    for beside in folder.rglob("*.json"):
        path = beside.with_suffix("")
        if path.is_file():
            try:
                manifest = json.loads(beside.read_text(encoding="utf-8"))
                length = manifest["block_bytes"]
            except (ValueError, TypeError, KeyError):  # not a manifest, so the file beside it does not count
                continue
            if untouched and path.stat().st_mtime_ns != manifest.get("mtime_ns"):
                continue
            data = path.read_bytes()
            blocks = [data[start : start + length] for start in range(0, len(data), length)]
            if (len(data), [xxhash.xxh3_64_hexdigest(one) for one in blocks]) != (manifest["size"], manifest["hashes"]):
                wrong.append(str(path.relative_to(folder)))
    return wrong


def check_afterwards(folder: Path) -> None:
    """Fail if a test has left an incomplete file that counts as whole, or unfinished work that this process still holds
    after its calls ended."""
    # The name contains its owner's process: `.colabstage-NAME.WORLD-PID-START.NUMBER.tmp`.
    held = [str(one.relative_to(folder)) for one in folder.rglob(f".colabstage-*-{os.getpid()}-*.tmp")]
    wrong = unvouched(folder, untouched=True)
    assert not held, f"unfinished, and not let go: {held}"
    assert not wrong, f"not as the manifest says: {wrong}"


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the names whose entries in two trees differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


class Home:
    """A folder that calls work in, and the user's files in it: `theirs`, recorded when this was made."""

    def __init__(self, root: Path, *, theirs: Iterable[str]) -> None:
        self.root = root
        self._theirs = [root / name for name in theirs]
        self._before = snapshot(*self._theirs)
        assert self._before, "a check of nothing"

    def check(
        self,
        *,
        finished: bool,
        found: Mapping[str, object] | None = None,
        expected: Iterable[Mapping[str, object]] = (),
        about: str = "",
    ) -> None:
        """Fail if an invariant does not hold.

        Args:
            finished: whether the last call succeeded: only then is nothing left behind.
            found: what a reader gets now, of each thing that is whole or not by itself.
            expected: what it may get: of each of these things, what it is in one of these.
            about: what happened, for the message.
        """
        touched = differences(self._before, snapshot(*self._theirs))
        assert not touched, f"{about}: not ours, and changed: {touched}"
        allowed = list(expected)
        for name in {name for one in [found or {}, *allowed] for name in one} if found is not None else ():
            value, choices = (found or {}).get(name), [one.get(name) for one in allowed]
            assert value in choices, f"{about}: {name} is not what was meant: {_shown(value, choices)}"
        if finished:
            left, wrong = left_behind(self.root), unvouched(self.root)
            assert not left, f"{about}: left behind: {left}"
            assert not wrong, f"{about}: not as the manifest says: {wrong}"


def _shown(found: object, allowed: list[object]) -> object:
    """For trees, return the names that differ."""
    if not isinstance(found, dict):
        return f"{found!r:.80}"
    return [differences(found, one) if isinstance(one, dict) else one for one in allowed]


def open_files() -> dict[int, str]:
    """Return the path of each file that this process has open, by descriptor; threads may close some meanwhile."""
    found = {}
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[int(one.name)] = str(one.readlink())
    return found

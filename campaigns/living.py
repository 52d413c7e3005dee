"""A machine's life under fire: sources change, somebody keeps own files beside ours, and each verb in turn is killed.

The other campaigns count what a kill costs, and begin each round with a fresh place. Here the place lives on from round
to round, so that every call meets what the calls before it left, killed or not.
"""

from __future__ import annotations

import random
import shutil
import zipfile
from typing import TYPE_CHECKING, Any, ClassVar

from campaigns.campaign import Campaign, State
from colabstage import extract_archive
from colabstage.sources.fetching import fetch_files
from colabstage.stage.publish import previous_path, publish_file, restore_file
from colabstage.stage.purge import list_datasets, purge_datasets, sweep_leftovers
from colabstage.stage.run import stage_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from campaigns.worker import ProgressLog

_VERBS = ("stage", "extract", "fetch", "publish", "purge")
_MINE = "hours of work"


class Living(Campaign):
    """Calls of all verbs in one place that nobody clears up between them."""

    name: ClassVar[str] = "live"
    title: ClassVar[str] = (
        "`stage_dataset`, `extract_archive`, `fetch_files`, `publish_file` and `purge_datasets` in turn, in one place, "
        "on sources that change, beside files that colabstage did not make"
    )
    unit: ClassVar[str] = "calls"
    because: ClassVar[str] = "a call that was killed after its last byte is made again"
    variants: ClassVar[int] = len(_VERBS)

    def __init__(self, home: Path, *, small: bool) -> None:
        self._chance = random.Random(1)
        self._files = 20 if small else 200
        self._home, self._place = home, home / "place"
        self._content: dict[str, bytes] = {}
        self._versions: list[bytes] = []
        self._verb = ""
        self._before: dict[str, bytes] | None = None
        # What a person has beside ours: in the folder of datasets, beside a target, under a name like a version's.
        self._mine = [self._place / name for name in ("local/notes.txt", "it.txt", "to/model.pt.previous.txt", ".it")]
        for path in self._mine:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_MINE, encoding="utf-8")

    @property
    def bound(self) -> float:
        """Calls that one kill may cost."""
        return 1

    @property
    def needed(self) -> float:
        """One call a round."""
        return 1

    def begin(self, number: int) -> dict[str, Any]:
        """Change the source; the place stays as it is."""
        self._verb = _VERBS[number % len(_VERBS)]
        for _ in range(1 + self._files // 4 if self._content else self._files):
            name = f"{self._chance.choice('ab')}/{self._chance.randrange(self._files)}.bin"
            self._content[name] = self._chance.randbytes(self._chance.randrange(20_000))
        for name in self._chance.sample(sorted(self._content), 2):
            del self._content[name]
        source = self._home / "source"
        shutil.rmtree(source, ignore_errors=True)
        for name, data in self._content.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
        with zipfile.ZipFile(self._home / "source.zip", "w") as archive:
            for name, data in self._content.items():
                archive.writestr(name, data)
        self._versions = [*self._versions[-1:], self._chance.randbytes(100_000)]
        (self._home / "model.pt").write_bytes(self._versions[-1])
        self._before = self._served()
        return {"verb": self._verb, "place": str(self._place)}

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Make one call."""
        from pathlib import Path

        place = Path(arguments["place"])
        home, local = place.parent, place / "local"
        if arguments["verb"] == "stage":
            options: dict[str, Any] = {"local_dir": local, "cache_dir": None, "verify": "full", "progress": log}
            print(stage_dataset(home / "source", keep="files", **options).report)
        elif arguments["verb"] == "extract":
            print(extract_archive(home / "source.zip", place / "it", progress=log))
        elif arguments["verb"] == "fetch":
            print(fetch_files(home / "source", place / "fetched", verify="full", progress=log))
        elif arguments["verb"] == "publish":
            print(publish_file(home / "model.pt", place / "to" / "model.pt", progress=log))
        else:
            print(purge_datasets(list_datasets(local_dir=local, cache_dir=None)))
            print(sweep_leftovers(local_dir=local, cache_dir=None))

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Whether the call came to its end."""
        return float(any(name == "steps" for name, _ in log))

    def look(self) -> State:
        """What was there before, or what the source holds, whole; and all that is not ours."""
        self._check_mine()
        served = self._served()
        if served is None:
            # Where a folder makes room for another, and when a dataset is purged, there is none for a moment.
            return "nothing"
        if served == self._wanted():
            return "whole"
        if served != self._before:
            self.fail(f"what {self._verb} left after a kill is neither what was there nor what the source holds.")
        return "old"

    def check(self) -> None:
        """What is served is what the source holds, and nothing temporary is left."""
        self._check_mine()
        if self._served() != self._wanted():
            self.fail(f"after {self._verb} there is something else than the source holds.")
        self.check_nothing_left(self._place)

    def _wanted(self) -> dict[str, bytes] | None:
        """What the verb is to come to."""
        if self._verb == "publish":
            return {"model.pt": self._versions[-1]}
        return None if self._verb == "purge" else self._content

    def _served(self) -> dict[str, bytes] | None:
        """What a reader finds now."""
        if self._verb == "publish":
            return self._published()
        if self._verb in ("extract", "fetch"):
            folder = self._place / ("it" if self._verb == "extract" else "fetched")
        else:
            found = (path for path in (self._place / "local").glob("*/files") if path.parent.name[0] != ".")
            folder = next(found, self._place / "nothing")
        if not folder.is_dir():
            return None
        files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".colabstage-")]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def _published(self) -> dict[str, bytes] | None:
        target = self._place / "to" / "model.pt"
        if not target.exists() and not previous_path(target).exists():
            return None
        restored = self._home / "restored"
        shutil.rmtree(restored, ignore_errors=True)
        restore_file(target, restored / "model.pt", progress=False)
        return {"model.pt": (restored / "model.pt").read_bytes()}

    def _check_mine(self) -> None:
        for path in self._mine:
            if not path.is_file() or path.read_text(encoding="utf-8") != _MINE:
                self.fail(f"{self._verb} has changed '{path}', which colabstage did not make.")

"""Updating under fire: a source that has changed, with its earlier pack on this machine or in the cache."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, ClassVar

from campaigns.campaign import Campaign, State, same_bytes
from campaigns.material import write_photographs
from campaigns.packing import check_pack, look_at_pack
from colabstage.h5.manifest import manifest_path
from colabstage.pack.journal import BLOCK_SAMPLES
from colabstage.stage.run import stage_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from campaigns.worker import ProgressLog

_FORMS: dict[str, dict[str, Any]] = {"pixels": {"image_size": (64, 64)}, "encoded": {"encoding": "encoded"}}
_EDITED, _THREADS = 60, 5


class Updating(Campaign):
    """`stage_dataset` of a folder of which some files were added, removed and rewritten, counted in samples."""

    name: ClassVar[str] = "update"
    title: ClassVar[str] = (
        "`stage_dataset` of a folder that has changed: rows are taken over from the earlier pack, which is here or in "
        "the cache"
    )
    unit: ClassVar[str] = "samples"
    because: ClassVar[str] = (
        f"as for packing; and of a block of {BLOCK_SAMPLES} samples, rows that were taken over count as finished only "
        "when those that are read are"
    )
    variants: ClassVar[int] = 4

    def __init__(self, home: Path, *, small: bool) -> None:
        self._count = 300 if small else 1500
        self._home, self._source = home, home / "photos"
        write_photographs(self._source, self._count)
        for form in _FORMS:
            self._stage(form, home / f"earlier-{form}", home / f"cache-{form}")
        files = sorted(path for path in self._source.rglob("*") if path.is_file())
        step = self._count // 20
        for path in files[::step][:20]:
            path.unlink()
        for path, other in zip(files[1::step][:20], files[2::step], strict=False):
            shutil.copyfile(other, path)
        write_photographs(self._source, 20, first=90_000)
        self._truths = {form: self._stage(form, home / f"fresh-{form}", None) for form in _FORMS}
        self._form, self._in_cache = "", False
        self._fast, self._cache = home / "fast", home / "cache"

    def _stage(self, form: str, local: Path, cache: Path | None) -> Path:
        return stage_dataset(self._source, local_dir=local, cache_dir=cache, progress=False, **_FORMS[form]).path

    @property
    def bound(self) -> float:
        """Samples that one kill may cost."""
        return BLOCK_SAMPLES * (_EDITED + _THREADS)

    @property
    def needed(self) -> float:
        """All samples."""
        return self._count

    @property
    def _truth(self) -> Path:
        return self._truths[self._form]

    @property
    def _place(self) -> Path:
        return self._fast / self._truth.stem / self._truth.name

    def begin(self, number: int) -> dict[str, Any]:
        """The earlier pack, here or in the cache alone."""
        self._form, self._in_cache = ("pixels", "encoded")[number % 2], number % 4 >= 2
        for place in (self._fast, self._cache):
            shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self._home / f"cache-{self._form}", self._cache)
        if not self._in_cache:
            shutil.copytree(self._home / f"earlier-{self._form}", self._fast)
        return {"source": str(self._source), "fast": str(self._fast), "cache": str(self._cache), "form": self._form}

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Stage what has changed."""
        options = _FORMS[arguments["form"]]
        stage_dataset(
            arguments["source"], local_dir=arguments["fast"], cache_dir=arguments["cache"], progress=log, **options
        )

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Samples taken over, and those read: all advances of packing but the first, which is what was there."""
        taken = sum(amount for name, amount in log if name == "take over")
        return taken + sum([amount for name, amount in log if name == "pack"][1:])

    def look(self) -> State:
        """The earlier pack or the new one, here and in the cache; one with a manifest is whole."""
        earlier = self._home / f"earlier-{self._form}" / self._truth.stem / self._truth.name
        cached = self._cache / self._truth.name
        counts = cached.is_file() and manifest_path(cached).exists()
        if counts and not any(same_bytes(cached, pack) for pack in (earlier, self._truth)):
            self.fail("the cached pack has a manifest and is neither the earlier nor the new one.")
        return look_at_pack(self._place, self._truth, earlier)

    def check(self) -> None:
        """The bytes of a fresh staging, each pack with its own record, and nothing temporary left."""
        for pack in (self._place, self._cache / self._truth.name):
            check_pack(pack, self._truth)
            if len(list(pack.parent.glob("*.rows"))) != 1:
                self.fail(f"'{pack.parent}' does not have one record of rows.")
        self.check_nothing_left(self._fast, self._cache)

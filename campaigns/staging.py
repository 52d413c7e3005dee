"""Staging under fire: the one cell, from a folder, from a zip, and from the cached pack on a (simulated) Drive."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any, ClassVar

from campaigns.campaign import Campaign, State, same_bytes
from campaigns.material import write_photographs, zip_folder
from campaigns.packing import check_pack, look_at_pack
from colabstage.h5.manifest import manifest_path, read_manifest
from colabstage.pack.journal import BLOCK_SAMPLES
from colabstage.sources.to_folder import SLOW_READERS
from colabstage.stage.run import stage_dataset
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from campaigns.worker import ProgressLog

_KINDS = ("folder", "zip", "cache")
_WORKERS = 4
# What the Drive reads ahead of a reader, and what `copy_blocks` does, of the 8 MiB blocks of a pack.
_BLOCKS_IN_FLIGHT = 5
# An ordinary day made a little quicker, so that a round takes seconds.
_KNOBS = DriveKnobs(time_scale=0.1, upload_bytes_per_s=50e6)


class Staging(Campaign):
    """`stage_dataset`, counted in samples; from the cache, in the samples that the bytes read stand for."""

    name: ClassVar[str] = "stage"
    title: ClassVar[str] = (
        "`stage_dataset` from a simulated Google Drive: a folder, a zip, and the packed copy in the cache in turn; "
        "publishing to the cache included"
    )
    unit: ClassVar[str] = "samples"
    because: ClassVar[str] = (
        f"as for packing; from the cache the samples in the {_BLOCKS_IN_FLIGHT} blocks of 8 MiB that are on the way"
    )
    variants: ClassVar[int] = 3

    def __init__(self, home: Path, *, small: bool) -> None:
        self._count = 200 if small else 1200
        self._home = home
        self._stack = contextlib.ExitStack()
        self._drive = self._stack.enter_context(SimulatedDrive(home / "drive", knobs=_KNOBS))
        self._mountpoint = home / "content" / "drive"
        self._mountpoint.mkdir(parents=True)
        cloud = self._drive.cloud / "MyDrive"
        zip_folder(write_photographs(cloud / "photos", self._count), cloud / "photos.zip")
        self._read = 0
        self._kind = ""
        self._fast = home / "fast"
        self._cache = self._drive.cloud / "MyDrive" / "colabstage"
        self._truths: dict[str, Path] = {}
        try:
            self._truths.update((kind, self._make_truth(kind)) for kind in ("folder", "zip"))
        except BaseException:
            self.close()
            raise
        self._truths["cache"] = self._truths["folder"]

    def _make_truth(self, kind: str) -> Path:
        """What an undisturbed call makes."""
        self._begin_machine()
        staged = stage_dataset(self._source(kind), local_dir=self._fast, cache_dir=None, progress=False)
        truth = self._home / f"truth-{kind}" / staged.path.name
        truth.parent.mkdir()
        for file in (staged.path, manifest_path(staged.path)):
            shutil.copyfile(file, truth.parent / file.name)
        return truth

    def _source(self, kind: str) -> Path:
        return self._mountpoint / "MyDrive" / ("photos.zip" if kind == "zip" else "photos")

    def _begin_machine(self) -> None:
        """A fresh machine: nothing on its disk, Drive newly mounted."""
        self._drive.new_machine()
        shutil.rmtree(self._fast, ignore_errors=True)
        # Never fails, but has the reads of packs counted one by one, past the kernel's memory.
        watch = OpFault(op="read", pattern="MyDrive/colabstage/*.h5", every=1_000_000_000)
        self._drive.set_faults(DriveFaults(ops=(watch,)))
        self._drive.mount(self._mountpoint)

    @property
    def bound(self) -> float:
        """Samples that one kill may cost."""
        if self._kind == "cache":
            return _BLOCKS_IN_FLIGHT * self._samples_a_block
        return BLOCK_SAMPLES * (SLOW_READERS + _WORKERS + 1)

    @property
    def _samples_a_block(self) -> float:
        return self._count * 8 * 1024 * 1024 / self._truths["cache"].stat().st_size

    @property
    def needed(self) -> float:
        """All samples."""
        return self._count

    def begin(self, number: int) -> dict[str, Any]:
        """A machine that has staged nothing yet; the cache is empty, or has the pack."""
        self._kind = _KINDS[number % 3]
        shutil.rmtree(self._cache, ignore_errors=True)
        if self._kind == "cache":
            truth = self._truths["cache"]
            self._cache.mkdir()
            for file in (truth, manifest_path(truth)):
                shutil.copyfile(file, self._cache / file.name)
        self._begin_machine()
        self._read = 0
        return {"source": str(self._source(self._kind)), "fast": str(self._fast)}

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """The one cell."""
        print(stage_dataset(arguments["source"], local_dir=arguments["fast"], progress=log).report)

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Samples packed, or bytes of the pack that Drive's client handed out, in samples."""
        if self._kind != "cache":
            return sum([amount for name, amount in log if name == "pack"][1:])
        stats = self._drive.stats()
        read, before = stats.bytes_cold + stats.bytes_warm, self._read
        self._read = read
        return (read - before) / self._truths["cache"].stat().st_size * self._count

    @property
    def _place(self) -> Path:
        return self._fast / self._truths[self._kind].stem / self._truths[self._kind].name

    def look(self) -> State:
        """The local pack and the cached one: whole, or not counted."""
        truth = self._truths[self._kind]
        # Where the cache is only read from, looking at it through the mount would spare the next run its reads.
        folder = self._cache if self._kind == "cache" else self._mountpoint / "MyDrive" / "colabstage"
        cached = folder / truth.name
        manifest = read_manifest(cached)
        if manifest is not None and cached.is_file() and not same_bytes(cached, truth):
            self.fail("the cached pack has a manifest and is not whole after a kill.")
        return look_at_pack(self._place, truth, None)

    def check(self) -> None:
        """The pack is the undisturbed one, here, on the mount and in the cloud, and nothing temporary is left."""
        truth = self._truths[self._kind]
        check_pack(self._place, truth)
        if not self._drive.flush(timeout_s=60):
            self.fail("the uploads did not end.")
        check_pack(self._cache / truth.name, truth)
        self.check_nothing_left(self._fast, self._cache)

    def close(self) -> None:
        """Unmount."""
        self._stack.close()

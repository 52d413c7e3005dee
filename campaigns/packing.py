"""Packing under fire: a folder to pixels, a zip to encoded bytes, with and without an older pack in the place."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import h5py
import numpy as np
from PIL import Image

from campaigns.campaign import Campaign, State, WrongError, leftovers, same_bytes
from campaigns.material import write_photographs, zip_folder
from colabstage.h5.manifest import check_whole, manifest_path, read_manifest
from colabstage.io.progress import NullProgress, ProgressStep
from colabstage.pack.journal import BLOCK_SAMPLES
from colabstage.pack.run import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from campaigns.worker import ProgressLog

_THREADS = "threads"


class Packing(Campaign):
    """`pack_dataset`, counted in samples."""

    name: ClassVar[str] = "pack"
    title: ClassVar[str] = (
        "`pack_dataset`: a folder of JPEGs to pixels, a zip to encoded bytes; half over an older pack"
    )
    unit: ClassVar[str] = "samples"
    variants: ClassVar[int] = 4
    because: ClassVar[str] = (
        f"the journal records blocks of {BLOCK_SAMPLES} samples. Samples are read and stored in order, except those "
        f"that a thread is working on, so each thread, reader or worker, has at most one open block, in which at most "
        f"{BLOCK_SAMPLES - 1} samples are finished. The threads are counted in the runs; on a disk as fast as this "
        f"there are mostly four"
    )

    def __init__(self, home: Path, *, small: bool) -> None:
        self._count = 300 if small else 1500
        self._home = home
        folder = write_photographs(home / "photos", self._count)
        self._sources = {"pixels": folder, "encoded": zip_folder(folder, home / "photos.zip")}
        self._older = home / "older.h5"
        pack_dataset(write_photographs(home / "few", 40, first=90_000), self._older, progress=False)
        self._truths = {kind: self._make_truth(kind) for kind in self._sources}
        self._kind = ""
        self._over = False
        self._worked = False
        self._threads = 0
        self._place = home / "place"

    def _make_truth(self, kind: str) -> Path:
        """An undisturbed pack, itself compared with the photographs by Pillow and plain h5py."""
        truth = self._home / f"truth-{kind}.h5"
        pack_dataset(self._sources[kind], truth, encoding=kind, progress=False)
        with h5py.File(truth) as file:
            names = [name.decode() for name in file["key_train"][()].tolist()]
            for row in range(0, len(names), 7):
                photo = self._sources["pixels"] / names[row]
                if kind == "pixels":
                    right = np.array_equal(file["X_train"][row], np.asarray(Image.open(photo)))
                else:
                    start, end = file["X_train/offsets"][row : row + 2]
                    right = file["X_train/bytes"][start:end].tobytes() == photo.read_bytes()
                if not right:
                    self.fail(f"the undisturbed {kind} pack does not hold '{names[row]}'.")
        return truth

    @property
    def bound(self) -> float:
        """Samples that one kill may cost.

        A block with both finished and unfinished samples has one of them in a worker's hands, or had one in a reader's
        when the sample arrived that was taken up last: what arrives is used in the order of arrival. A reader that
        delivered that one leaves its share to the block up to which samples have been taken.
        """
        return (BLOCK_SAMPLES - 1) * self._threads

    @property
    def needed(self) -> float:
        """All samples."""
        return self._count

    @property
    def _out(self) -> Path:
        return self._place / "out.h5"

    def begin(self, number: int) -> dict[str, Any]:
        """An empty folder, or one with an older pack."""
        self._kind = ("pixels", "encoded")[number % 2]
        self._over = number % 4 >= 2
        self._threads = 0
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir()
        if self._over:
            shutil.copyfile(self._older, self._out)
            shutil.copyfile(manifest_path(self._older), manifest_path(self._out))
        source = str(self._sources[self._kind])
        return {"source": source, "out": str(self._out), "encoding": self._kind, "count": self._count}

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Pack, unless it is there: asked to replace a whole pack, `pack_dataset` makes it anew as it should."""
        out = Path(arguments["out"])
        manifest = read_manifest(out) if out.exists() else None
        if manifest is not None and sum(manifest.samples.values()) == arguments["count"]:
            return
        shown = _Counting(log)
        pack_dataset(arguments["source"], out, encoding=arguments["encoding"], overwrite=True, progress=shown)

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """All advances but the first, which is what was taken over."""
        self._worked = any(name == "pack" for name, _ in log)
        self._threads = max([self._threads, *(int(amount) for name, amount in log if name == _THREADS)])
        return sum([amount for name, amount in log if name == "pack"][1:])

    def look(self) -> State:
        """A pack counts with its manifest; without, its bytes must still be whole ones."""
        return look_at_pack(self._out, self._truths[self._kind], self._older if self._over else None)

    def check(self) -> None:
        """The very bytes of the undisturbed pack, and nothing beside it."""
        check_pack(self._out, self._truths[self._kind])
        # What a kill after the very last rename leaves stays until something is packed to that place again.
        if self._worked and (found := leftovers(self._place)):
            msg = f"pack: left behind: {found}"
            raise WrongError(msg)


class _Counting(NullProgress):
    """A progress log that also tells, with every sample, how many threads there are that may have one in hand."""

    def __init__(self, log: ProgressLog) -> None:
        self._log = log

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """A step of the progress log."""
        return _CountingStep(self._log, self._log.step(name, total=total, unit=unit))


class _CountingStep:
    def __init__(self, log: ProgressLog, step: ProgressStep) -> None:
        self._log = log
        self._step = step

    def advance(self, amount: int = 1) -> None:
        count = sum(thread.name == "colabstage-pipeline" for thread in threading.enumerate())
        self._log.note(f"{_THREADS}\t{count}")
        self._step.advance(amount)

    def __enter__(self) -> Self:
        self._step.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step.__exit__(kind, error, trace)


def look_at_pack(out: Path, truth: Path, older: Path | None) -> State:
    """What a reader finds at a pack's place.

    Raises:
        WrongError: a file that is neither the new nor the old one.
    """
    if not out.exists():
        return "nothing"
    states: list[tuple[State, Path | None]] = [("whole", truth), ("old", older)]
    state = next((state for state, file in states if file is not None and same_bytes(out, file)), None)
    if state is None:
        msg = f"'{out.name}' was neither the old nor the new file after a kill ({out.stat().st_size:,} bytes)."
        raise WrongError(msg)
    manifest = read_manifest(out)
    if manifest is None:
        return "nothing"
    check_whole(out, manifest)
    return state


def check_pack(out: Path, truth: Path) -> None:
    """The finished pack against the truth.

    Raises:
        WrongError: its bytes differ, or it has no manifest that agrees.
    """
    manifest = read_manifest(out)
    if manifest is None:
        msg = f"'{out}' has no manifest at the end."
        raise WrongError(msg)
    if not same_bytes(out, truth):
        msg = f"'{out}' is not the pack that an undisturbed run makes."
        raise WrongError(msg)
    check_whole(out, manifest)

"""The machines that the demo's sessions run on: a practice Colab with a mounted Drive, or what comes near where nothing
can be mounted."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from colabstage.ui.demo.train import FolderOfImages, ImagesOfTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from colabstage.simulate.colab import SimulatedColab
    from colabstage.simulate.knobs import DriveKnobs
    from colabstage.trees.tree import Tree
    from colabstage.ui.demo.train import GreyImages

_FLUSH_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A fresh machine, on which nothing has been read yet.

    `images`: gives the images of a split, read one by one from Drive; `workers`: processes that may read them.
    `source`, `zip_source`: what to stage; no zip where only reads of single files are simulated.
    `local_dir`, `cache_dir`: for `stage_dataset`.
    `flush`: waits for uploads and returns the seconds it took; nothing to wait for without a mount.
    """

    images: Callable[[str], GreyImages]
    workers: int
    source: Path | Tree
    zip_source: Path | None
    local_dir: Path | None
    cache_dir: Path | Literal["auto"]
    flush: Callable[[], float] | None


class Machines(Protocol):
    """Gives out fresh machines over one cloud."""

    def fresh(self) -> AbstractContextManager[Machine]:
        """A machine that is gone at the end, with all that is on its disk."""


@contextlib.contextmanager
def mounted_machines(home: Path, knobs: DriveKnobs, fill: Callable[[Path], None]) -> Iterator[Machines]:
    """Practice Colabs with a mounted Drive; `fill` is called with the `MyDrive` folder in the cloud."""
    from colabstage.simulate.colab import simulated_colab
    from colabstage.simulate.drive import SimulatedDrive

    with SimulatedDrive(home / "account", knobs=knobs) as drive:
        fill(drive.cloud / "MyDrive")
        with simulated_colab(home / "machine", drive=drive) as colab:
            yield _Colabs(colab)


@dataclass(frozen=True, slots=True)
class _Colabs:
    colab: SimulatedColab

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Machine]:
        from colabstage.machine.drive import mount_drive

        # The stand-in for google.colab says "Mounted at …", as the real one does; here it would only be noise.
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            my_drive = mount_drive(self.colab.marker("/content/drive"))
        try:
            yield Machine(
                images=lambda split: FolderOfImages(my_drive / "digits" / split),
                workers=2,
                source=my_drive / "digits",
                zip_source=my_drive / "digits.zip",
                local_dir=None,
                cache_dir="auto",
                flush=_flush,
            )
        finally:
            self.colab.delete_machine()


def _flush() -> float:
    from colabstage.machine.drive import flush_drive

    return flush_drive(timeout_s=_FLUSH_TIMEOUT_S, remount=False).seconds


@contextlib.contextmanager
def throttled_machines(home: Path, knobs: DriveKnobs, fill: Callable[[Path], None]) -> Iterator[Machines]:
    """Machines whose reads of single files take as long as on Drive; the cache is a plain folder."""
    cloud = home / "cloud"
    cloud.mkdir()
    fill(cloud)
    yield _Throttled(home, knobs)


@dataclass(frozen=True, slots=True)
class _Throttled:
    home: Path
    knobs: DriveKnobs

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Machine]:
        from colabstage.simulate.throttled import ThrottledTree
        from colabstage.trees.folder import FolderTree

        local = self.home / "local"
        with ThrottledTree(FolderTree(self.home / "cloud" / "digits"), self.knobs) as tree:
            try:
                yield Machine(
                    images=lambda split: ImagesOfTree(tree, split),
                    workers=0,  # other processes would not share what has been read
                    source=tree,
                    zip_source=None,
                    local_dir=local,
                    cache_dir=self.home / "cache",
                    flush=None,
                )
            finally:
                shutil.rmtree(local, ignore_errors=True)

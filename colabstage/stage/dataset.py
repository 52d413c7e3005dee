"""`StagedDataset`: a dataset that is local and ready."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import OptionError
from colabstage.io.page import facts_table, heading, page
from colabstage.io.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    import torch

    from colabstage.h5.info import PackInfo
    from colabstage.load.batches import Ragged
    from colabstage.load.choices import Decode, Shuffle, Strategy
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.loader import Loader
    from colabstage.stage.publish import PublishReport
    from colabstage.stage.report import StageReport

_CLASSES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class StagedDataset:
    """Hold what `stage_dataset` returns."""

    path: Path
    """The packed file; of `keep="files"` the folder of files."""
    files: Path | None
    """The folder of plain files, `None` unless they were kept."""
    report: StageReport
    """What was done to get it here, with times and rates."""
    info: PackInfo | None
    """What the packed file holds, `None` without one."""
    publishing: Future[PublishReport | None] | None = field(default=None, repr=False)
    """The copy to the cache that this call made, or, with `wait=False`, left running; `None` where it made none."""

    @property
    def splits(self) -> Mapping[str, int]:
        """Return number of samples of each split."""
        return {} if self.info is None else {name: split.rows for name, split in self.info.splits.items()}

    @property
    def classes(self) -> tuple[str, ...]:
        """Return class names, in label order."""
        return () if self.info is None else self.info.classes

    def __getitem__(self, split: str) -> dataset_h5:
        """Return the split as a `torch.utils.data.Dataset`.

        Raises:
            SplitNotFoundError: there is no such split; the message lists those there are.
            OptionError: only plain files were kept.
        """
        path = self._pack().path
        from colabstage.load.dataset import dataset_h5

        return dataset_h5(path, split=split)

    def loader(
        self,
        split: str,
        batch_size: int,
        *,
        device: str | torch.device | None = None,
        strategy: Strategy = "auto",
        shuffle: Shuffle | None = None,
        seed: int = 0,
        drop_last: bool = False,
        batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        dtype: torch.dtype | None = None,
        num_workers: int | Literal["auto"] = "auto",
        prefetch: int | Literal["auto"] = "auto",
        ragged: Ragged = "list",
        sampler: Iterable[int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        memory_budget: int | str | None = None,
        decode: Decode = "auto",
    ) -> Loader:
        """Return batches of a split, as fast as this machine can: `make_loader(data[split], batch_size, …)`.

        Args:
            shuffle: `None` shuffles `train` and nothing else. A torch sampler decides the order by itself.

        The other arguments are those of `make_loader`.

        Raises:
            SplitNotFoundError, OptionError, NotEnoughSpaceError: as `data[split]` and `make_loader`.
        """
        from colabstage.load.loader import make_loader

        return make_loader(
            self[split],
            batch_size,
            device=device,
            strategy=strategy,
            shuffle=("auto" if split == "train" else False) if shuffle is None else shuffle,
            seed=seed,
            drop_last=drop_last,
            batch_transform=batch_transform,
            dtype=dtype,
            num_workers=num_workers,
            prefetch=prefetch,
            ragged=ragged,
            sampler=sampler,
            rank=rank,
            world_size=world_size,
            memory_budget=memory_budget,
            decode=decode,
        )

    def wait_published(self, timeout_s: float = 3600.0) -> PublishReport | None:
        """Wait until the copy to the cache that this call made has arrived: copied, and on Drive also uploaded.

        Args:
            timeout_s: seconds for copying and uploading together.

        Returns:
            What was published, with its proof: `"uploaded"` where Drive's client tells it. `None` where nothing was
            published in this call; the dataset's report says why.

        Raises:
            TimeoutError: it is not copied after `timeout_s` seconds.
            DriveError: it is not uploaded by then.
            SourceChangedError: the packed file here is not the one that was published any more.
        """
        if self.publishing is None:
            return None
        began = time.monotonic()
        published = self.publishing.result(timeout_s)
        if published is None:
            return None
        from colabstage.stage.publish import await_upload

        left_s = max(0.0, timeout_s - (time.monotonic() - began))
        return await_upload(published, self.path, timeout_s=left_s)

    def _pack(self) -> PackInfo:
        if self.info is None:
            msg = f"Only plain files were kept ({self.path}); stage with keep='pack' or keep='both' to read batches."
            raise OptionError(msg)
        return self.info

    def __str__(self) -> str:
        if self.info is None:
            return f"Files in '{self.path}'"
        rows = ", ".join(f"{name} {count:,}" for name, count in self.splits.items())
        size = format_bytes(self.path.stat().st_size)
        return f"{rows} samples of {len(self.classes)} classes in '{self.path}' ({size})"

    def _repr_html_(self) -> str:
        report = heading(self.report.headline) + self.report.to_html_body()
        return page("StagedDataset", facts_table(self._facts()) + report)

    def _facts(self) -> list[tuple[str, str]]:
        files = [] if self.files is None else [("files", str(self.files))]
        if self.info is None:
            return files
        classes = ", ".join(self.classes[:_CLASSES_SHOWN])
        more = len(self.classes) - _CLASSES_SHOWN
        return [
            ("samples", ", ".join(f"{name} {count:,}" for name, count in self.splits.items())),
            ("classes", f"{len(self.classes)}: {classes}{f' and {more} more' if more > 0 else ''}")
            if self.classes
            else ("classes", "not named"),
            ("file", f"{self.path} ({format_bytes(self.path.stat().st_size)})"),
            *files,
        ]

"""`StagedDataset`, a dataset that is local and ready, and its `StageReport`: what was done, with times and rates."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from colabstage.errors import CancelledError, NotStagedError, OptionError, ended
from colabstage.h5.arrival import Readiness
from colabstage.io.boundary import public
from colabstage.io.environment import logger_of
from colabstage.io.packages import whole_imports
from colabstage.io.report import Report, Row, Shown, Table, facts, left_out_table
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.load.plan import ArrayArguments, ArrayOptions, LoaderArguments, LoaderOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from colabstage.h5.info import Found, PackInfo
    from colabstage.io.progress import Progress
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.frameworks.arrays import NumpyLoader
    from colabstage.load.frameworks.keras_dataset import KerasBatches
    from colabstage.load.loader import Loader
    from colabstage.load.partial import PartialPack
    from colabstage.load.reading.reader import SplitReader
    from colabstage.stage.publish import PublishReport
    from colabstage.stage.streaming import BackgroundPack


R = TypeVar("R")

_log = logger_of(__name__)


def which_file(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced or written."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


Origin = Literal["local", "cache", "source"]

_ORIGINS = {
    "local": "already on this machine",
    "cache": "from the packed copy in the cache",
    "source": "from the source",
}
# How times are worded, and bytes if there are any.
_TOOK = {
    "first_batch_s": "First batch after {}",
    "overlap_s": "{} of training while data arrived",
    "waited_s": "{} of waiting for batches",
}
_MOVED = {"fetched": "fetched", "kept": "here from before", "evicted": "evicted"}
_HEADLINES = {
    "done": "Staged {} in {}",
    "arriving": "Still staging {}, for {} so far",
    "stopped": "Staging {} was stopped after {}",
    "failed": "Staging {} failed after {}",
}


@dataclass(slots=True)
class StageStep:
    """What one step did."""

    name: str
    seconds: float = 0.0
    """How long it took, without the steps inside it."""
    amount: int = 0
    """How many of `unit` were processed."""
    unit: str = ""
    """`"B"` for bytes, otherwise what was counted."""
    note: str = ""
    """The result, in words."""
    moves: bool = True
    """Whether data was moved, so that a rate makes sense."""

    @property
    def quantity(self) -> str:
        """Return the amount as text; empty for steps that only decide something."""
        amount = format_bytes(self.amount) if self.unit == "B" else format_count(self.amount, self.unit)
        return amount if self.unit else ""

    @property
    def rate(self) -> str:
        """Return amount per time as text; empty for steps that moved nothing."""
        return format_rate(self.amount, self.seconds, self.unit) if self.moves and self.unit and self.amount else ""


@dataclass(slots=True, repr=False)
class StageReport(Shown):
    """All steps of one `stage_dataset`."""

    origin: Origin = "source"
    """Where the data came from: `"local"`, `"cache"` or `"source"`."""
    steps: list[StageStep] = field(default_factory=list)
    """The steps, in the order in which they ended."""
    skipped: tuple[str, ...] = ()
    """One sentence for each sample that was left out."""
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list, repr=False, compare=False)
    """Notes that are warnings too: what models that were trained with an earlier pack would get wrong."""
    arrival: Callable[[], Mapping[str, float]] | None = field(default=None, repr=False, compare=False)
    """Returns the progress of data that is used while it arrives: bytes `fetched`, `kept` from an earlier run and
    `evicted`; `first_batch_s` from the call, `overlap_s` of training while rows arrived, and `waited_s` of loops for
    their batches, including the first, once there was one. `None` if everything was local first."""
    found: Found = ()
    """Layout, classes and examples of the staged data, as named texts."""
    cached: str = ""
    """Whether the pack is in the cache, in words that begin with "yes" or "no"; "" without a pack, or while unknown."""
    state: Literal["done", "arriving", "stopped", "failed"] = "done"
    """The state of what `streaming=True` leaves to the background; `"done"` without it."""
    began_s: float = field(default_factory=time.monotonic, repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """Return the total time of all steps."""
        return sum(step.seconds for step in self.steps)

    @contextmanager
    def timed(self, name: str, *, unit: str = "", moves: bool = True) -> Iterator[StageStep]:
        """Time a step, without the steps inside it; the caller fills in its amount and note."""
        step = StageStep(name, unit=unit, moves=moves)
        # A step may contain others, as looking at the source contains opening it. Their time counts once.
        began, others_s = time.monotonic(), self.seconds
        try:
            yield step
        # Ctrl-C too: the report of a stopped call shows which step it was in.
        except BaseException as error:
            stopped = isinstance(error, CancelledError | KeyboardInterrupt)
            step.note = step.note or ("stopped" if stopped else "failed")
            raise
        finally:
            step.seconds = max(0.0, time.monotonic() - began - (self.seconds - others_s))
            # Equal checks, before and after taking the lock, are one line if their results are equal.
            same = [one for one in self.steps if not unit and (one.name, one.note) == (name, step.note)]
            if same:
                same[0].seconds += step.seconds
            else:
                self.steps.append(step)
                words = (step.name, format_duration(step.seconds), step.quantity, step.rate, step.note)
                _log.info("%s", "  ".join(filter(None, words)))

    def note(self, *sentences: str) -> None:
        """Add each sentence that is not yet among the notes."""
        for note in map(ended, sentences):
            # Checks before and after taking the lock would add the same note twice.
            if note not in self.notes:
                self.notes.append(note)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "origin": self.origin,
            "seconds": self.seconds,
            "steps": [
                {"name": s.name, "seconds": s.seconds, "amount": s.amount, "unit": s.unit, "note": s.note}
                for s in self.steps
            ],
            "skipped": list(self.skipped),
            "notes": list(self.notes),
            "arrival": None if self.arrival is None else dict(self.arrival()),
            "found": dict(self.found),
            "cached": self.cached,
        }

    @property
    def facts(self) -> Found:
        return (*self.found, *((("cached", self.cached),) if self.cached else ()))

    @property
    def arrived(self) -> str:
        """Return in a sentence how far data has arrived that is used meanwhile; "" if everything was local first."""
        figures = {} if self.arrival is None else self.arrival()
        parts = [words.format(format_duration(figures[name])) for name, words in _TOOK.items() if name in figures]
        moved = {words: int(figures[name]) for name, words in _MOVED.items() if figures.get(name)}
        parts += [f"{format_bytes(nbytes)} {words}" for words, nbytes in moved.items()]
        return f"{'; '.join(parts)}." if parts else ""

    def shown(self, *, found: bool = True) -> Report:
        """Return a report: headline, what was found (if wanted), steps, what was left out, and notes."""
        steps = (Row((s.name, format_duration(s.seconds), s.quantity, s.rate), s.note) for s in self.steps)
        tables = (
            facts(self.facts if found else ()),
            Table(tuple(steps), ("step", "time", "amount", "rate"), numbers=frozenset({1, 2, 3})),
            left_out_table(self.skipped, "report.skipped"),
        )
        return Report(self.headline, tables, tuple(filter(None, (*self.notes, self.arrived))))

    @property
    def headline(self) -> str:
        """Return where the data came from, and how long it took."""
        # The running step is not among the steps yet.
        seconds = time.monotonic() - self.began_s if self.state == "arriving" else self.seconds
        return _HEADLINES[self.state].format(_ORIGINS[self.origin], format_duration(seconds))


@dataclass(frozen=True, slots=True, repr=False)
class StagedDataset:
    """A dataset on the local disk: `data["train"]` is a `torch.utils.data.Dataset`, `data.loader("train", 64)` gives
    batches, and `data.report` says what staging did.
    """

    path: Path
    """The packed file; with `keep="files"` the folder of files; under `disk_limit` a part of the pack, which only
    `data[split]` and the other methods can read."""
    files: Path | None
    """The folder of plain files, `None` unless they were kept."""
    report: StageReport
    """What was done to get it here, with times and rates."""
    info: PackInfo | None
    """What the packed file holds, `None` without one."""
    published: Callable[[float], PublishReport[Any] | None] | None = field(default=None, repr=False, compare=False)
    """Waits at most so many seconds for the copy to the cache, and returns its report; `None` if none is made."""
    arriving: BackgroundPack | None = field(default=None, repr=False)
    """The work that continues with `streaming=True`; `None` if everything was local from the start."""
    state: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """Identifies the file of the pack, so that a replacement is not read instead; empty if none can replace it."""
    part: PartialPack | None = field(default=None, repr=False, compare=False)
    """The blocks and figures of a pack in the cache that is larger than `disk_limit`; with `streaming=True` and a pack
    that was complete from the start, what orders its first epoch. Otherwise `None`."""
    _opened: dict[str, dataset_h5] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def splits(self) -> Mapping[str, int]:
        """Return the number of samples in each split.

        While samples arrive, these are the planned numbers, from which `on_error="skip"` may take some.
        """
        if self.arriving is not None:
            return self.arriving.splits
        return {} if self.info is None else self.info.rows

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class names, in label order."""
        return () if self.info is None else self.info.classes

    def __getitem__(self, split: str) -> dataset_h5:
        """Return the split as a `torch.utils.data.Dataset`; the same each time, so that a `transform` that is set on it
        is that of its loaders. Its files stay open until its `close()`, or for as long as this object.

        Raises:
            SplitNotFoundError: there is no such split; the message lists the splits.
            OptionError: `split` is not a name, or only plain files were kept.
        """
        # `data[0]` is what people try first; the message has the line to write.
        asked: object = split
        if not isinstance(asked, str):
            # An existing split, so that the line can be pasted as it is.
            first, names = next(iter(self.splits), "train"), ", ".join(map(repr, self.splits)) or "none"
            line = f"data['{first}'] for samples, data.loader('{first}', 64) for batches"
            msg = f"data[{split!r}] names no split. Write {line}. Splits: {names}."
            raise OptionError(msg)
        self._pack()
        if self.arriving is not None:
            self.arriving.arrival.check()
        if split not in self._opened:
            # Imported late, because this imports torch, which staging does not need.
            with whole_imports():
                from colabstage.load.dataset import dataset_h5

            self._opened.setdefault(split, self._open(dataset_h5, split))
        return self._opened[split]

    def __contains__(self, split: object) -> bool:
        """Return whether there is a split of that name."""
        return split in self.splits

    @public(LoaderOptions)
    def loader(
        self, split: str, batch_size: int, *, options: LoaderOptions | None = None, **arguments: Unpack[LoaderArguments]
    ) -> Loader:
        """Return batches of a split, as fast as this machine can: `make_loader(data[split], batch_size, …)`.

        >>> train = data.loader("train", 64, device="cuda", dtype="float32")  # doctest: +SKIP

        `make_loader` says what a batch is: `x` `(B, C, H, W)` for images, `y` int64 `(B,)` for classes.

        Args:
            split: its name, such as `"train"`; `data.splits` has them.
            batch_size: samples in a batch; the last one of an epoch may have fewer.
            options: these arguments in one value, for several loaders; arguments given by name take precedence.
            **arguments: those of `colabstage.options.LoaderOptions`.

        Raises:
            SplitNotFoundError, OptionError, NotEnoughSpaceError, TypeError: as `data[split]` and `make_loader`.
        """
        with whole_imports():
            from colabstage.load.loader import make_loader

        return make_loader(self[split], batch_size, options=options, **arguments)

    @public(ArrayOptions)
    def to_keras(self, split: str, batch_size: int, **arguments: Unpack[ArrayArguments]) -> KerasBatches:
        """Return batches of a split for Keras, as `to_keras` makes them; without torch, unless that is the backend.

        >>> model.fit(data.to_keras("train", 64), validation_data=data.to_keras("dev", 64))  # doctest: +SKIP

        Args:
            split: its name, such as `"train"`; `data.splits` has them.
            batch_size: samples in a batch; the last one of an epoch may have fewer.
            **arguments: as of `colabstage.to_keras`.

        Raises:
            SplitNotFoundError, OptionError, MissingDependencyError: as `data[split]` and `to_keras`.
        """
        from colabstage.load.frameworks.arrays import to_keras

        return to_keras(self._reader(split), batch_size, **arguments)

    @public(ArrayOptions)
    def to_numpy(self, split: str, batch_size: int, **arguments: Unpack[ArrayArguments]) -> NumpyLoader:
        """Return batches of a split as numpy arrays, as `to_numpy` makes them; without torch.

        >>> for x, y in data.to_numpy("train", 64):  # doctest: +SKIP
        ...     state = train_step(state, x, y)

        Args:
            split: its name, such as `"train"`; `data.splits` has them.
            batch_size: samples in a batch; the last one of an epoch may have fewer.
            **arguments: as of `colabstage.to_numpy`.

        Raises:
            SplitNotFoundError, OptionError: as `data[split]` and `to_numpy`.
        """
        from colabstage.load.frameworks.arrays import to_numpy

        return to_numpy(self._reader(split), batch_size, **arguments)

    @public(ArrayOptions)
    def to_tf_data(self, split: str, batch_size: int, *, epoch: int = 0, **arguments: Unpack[ArrayArguments]) -> Any:
        """Return batches of a split as a `tf.data.Dataset`, as `to_tf_data` makes them; without torch.

        >>> train = data.to_tf_data("train", 64, drop_last=True)  # doctest: +SKIP

        Args:
            split: its name, such as `"train"`; `data.splits` has them.
            batch_size: samples in a batch; the last one of an epoch may have fewer.
            **arguments: as of `colabstage.to_tf_data`.
            epoch: epoch of the first iterator, to continue training after a restart.

        Raises:
            SplitNotFoundError, OptionError, MissingDependencyError: as `data[split]` and `to_tf_data`.
        """
        from colabstage.load.frameworks.tensorflow import to_tf_data

        return to_tf_data(self._reader(split), batch_size, epoch=epoch, **arguments)

    def _reader(self, split: str) -> SplitReader:
        """Return what reads a split without torch."""
        from colabstage.load.reading.reader import SplitReader

        return self._open(SplitReader, split)

    def _open(self, reader: Callable[..., R], split: str) -> R:
        info = self._pack()
        # Its file may still have a name that changes when the last row arrives.
        if self.arriving is not None:
            return self.arriving.open(reader, split)
        return reader(info.path if self.part is None else self.part.paths, split=split, arrival=self.part)

    @property
    def ready(self) -> Readiness:
        """Tell how many rows are here: `.rows` of `.total`, and `.fraction`.

        With `streaming=True` they become all of them; with `disk_limit=` never, but all can be read.
        """
        work, rows = self.arriving or self.part, sum(self.splits.values())
        return Readiness(rows, rows) if work is None else work.ready

    @property
    def figures(self) -> Mapping[str, float]:
        """Return what `streaming=True` or `disk_limit=` has moved so far; empty without them.

        In bytes: `fetched` and `evicted` since the call, and `kept` from earlier calls; with `disk_limit=` also local
        now (`here`) and used on the `disk`. With `streaming=True` also seconds, as in `StageReport.arrival`.
        """
        return {} if self.report.arrival is None else self.report.arrival()

    @public()
    def wait(self, timeout_s: float | None = None, *, progress: bool | Progress | None = None) -> StagedDataset:
        """Wait until all of a dataset that was staged with `streaming=True` is local.

        Ctrl-C ends the waiting and not the work; `cancel` ends the work.

        Args:
            timeout_s: seconds to wait at most; `None` for as long as it takes.
            progress: `True` for a bar, `False` for silence, or a `Progress`; by default silence where `stage_dataset`
                was called with that, and a bar otherwise.

        Returns:
            The dataset as `streaming=False` makes it, byte for byte. Existing loaders continue to work.

        Raises:
            TimeoutError: it is not here after `timeout_s` seconds; the message says how much is.
            CancelledError: `cancel` was called.
            Exception: as `stage_dataset`, what ended the work. Finished work is kept, and the next call continues.
        """
        return self if self.arriving is None else self.arriving.wait(timeout_s, progress)

    def cancel(self) -> None:
        """Stop what `streaming=True` left running. What is packed is kept, and the next `stage_dataset` continues."""
        if self.arriving is not None:
            self.arriving.cancel()

    @public()
    def wait_published(self, timeout_s: float = 3600.0) -> PublishReport[Any] | None:
        """Wait until the copy in the cache has arrived: copied, and on Drive also uploaded.

        That may be the copy of an earlier call, which may still be waiting to be uploaded.

        Args:
            timeout_s: seconds for copying and uploading together.

        Returns:
            What was published, with its proof: `"uploaded"` where Drive's client reports it. `None` where nothing was
            published, because no cache was wanted, or because it failed; the dataset's report says which.

        Raises:
            TimeoutError: it is not copied after `timeout_s` seconds.
            DriveError: it is not uploaded by then.
            SourceChangedError: the local packed file is no longer the one that was published.
            SourceNotFoundError: the copy of an earlier call is no longer in the cache, or the cache is not there.
        """
        if self.arriving is not None:
            return self.arriving.wait_published(timeout_s)
        began = time.monotonic()
        published = None if self.published is None else self.published(timeout_s)
        if published is None:
            return None
        from colabstage.stage.publish import await_upload

        # One timeout for both: a caller who allows a minute does not want to wait for two.
        left_s = max(0.0, timeout_s - (time.monotonic() - began))
        return await_upload(published, self.path, timeout_s=left_s)

    def _pack(self) -> PackInfo:
        if self.info is None:
            msg = f"Only plain files were kept ({self.path}); stage with keep='pack' or keep='both' to read batches."
            raise OptionError(msg)
        if self.state and self.path.exists() and which_file(self.path) != self.state:
            msg = (
                f"'{self.path}' was replaced since this dataset was staged, so its rows may be others now. Use what "
                "the later call returned, or call stage_dataset again."
            )
            raise NotStagedError(msg)
        return self.info

    def __repr__(self) -> str:
        # One line, without touching the disk: a repr also appears in tracebacks when everything else has failed.
        held = f": {self._samples}; {self._classes}" if self.info is not None else " (plain files)"
        return f"StagedDataset('{self.path}'{held})"

    @property
    def _samples(self) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in self.splits.items())

    @property
    def _classes(self) -> str:
        """Say how many classes have names: numbers, boxes and masks may have more without."""
        return format_count(len(self.classes), "classes") if self.classes else "no named classes"

    def _repr_html_(self) -> str:
        # What was found is among the facts.
        own, report = Report("StagedDataset", (facts(self._facts()),)), self.report.shown(found=False)
        return own._repr_html_() + report._repr_html_()

    def _facts(self) -> list[tuple[str, str]]:
        from colabstage.h5.info import found_in

        files = [] if self.files is None else [("files", str(self.files))]
        if self.info is None:
            return files
        return [
            ("samples", self._samples),
            *(self.report.found or found_in(self.info)),
            ("file", str(self.path)),
            *files,
        ]

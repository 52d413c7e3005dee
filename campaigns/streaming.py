"""Training under fire while data arrives, from a zip or the cache, or is here only in part."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from campaigns.campaign import Campaign, State, WrongError
from campaigns.material import write_photographs, zip_folder
from campaigns.packing import check_pack, look_at_pack
from colabstage.errors import OptionError
from colabstage.h5.manifest import manifest_path
from colabstage.io.files import BLOCK_BYTES
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.load.partial import open_partial
from colabstage.pack.journal import BLOCK_SAMPLES
from colabstage.stage.run import stage_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from campaigns.worker import ProgressLog
    from colabstage.load.loader import Loader
    from colabstage.load.partial import PartialPack
    from colabstage.stage.streaming import Arriving

_KINDS = ("packed", "copied", "limited")
_BATCH = 32
# What a limit has to leave room for, and a little more, so that blocks are evicted all the time.
_LIMIT_BLOCKS = 10
_LOOK_S = 0.005
_ARRAY = (64, 64, 3)
# Threads that read and decode; blocks of a file on a local disk that are fetched at once.
_PACKERS, _CONNECTIONS = 8, 2


class Streaming(Campaign):
    """One epoch of training, counted in samples that were packed or fetched."""

    name: ClassVar[str] = "stream"
    title: ClassVar[str] = (
        "One epoch on data that is not all here: a zip that is packed meanwhile, a pack that is copied from the cache "
        "meanwhile, and a pack of which `disk_limit` lets a part be here, in turn. Each run continues with the "
        "`state_dict` after the last batch of the run before. Every batch is compared with that of an undisturbed "
        "run, row by row, and the limit with what the disk holds, all the time and after each kill"
    )
    unit: ClassVar[str] = "samples"
    because: ClassVar[str] = (
        f"as for packing, with {_PACKERS} threads; of a copy the samples in the {_CONNECTIONS} blocks of 8 MiB that "
        "are on the way"
    )
    variants: ClassVar[int] = 3

    def __init__(self, home: Path, *, small: bool) -> None:
        self._home = home
        self._place = home / "place"
        self._rows = 8_000 if small else 30_000
        self._photographs = 300 if small else 1500
        self._zip = zip_folder(write_photographs(home / "photos", self._photographs), home / "photos.zip")
        self._arrays = home / "arrays.npz"
        values = np.random.default_rng(0).integers(0, 256, (self._rows, *_ARRAY), dtype=np.uint8)
        np.savez(self._arrays, x_train=values, y_train=np.arange(self._rows) % 10)
        self._truths = {"packed": self._make_truth(self._zip), "copied": self._make_truth(self._arrays)}
        self._truths["limited"] = self._truths["copied"]
        for kind in ("packed", "copied"):
            dataset = dataset_h5(self._truths[kind])
            digests = {_digest(np.asarray(x), int(y)) for x, y in map(dataset.__getitem__, range(len(dataset)))}
            _rows_file(home, kind).write_text("\n".join(sorted(digests)), encoding="utf-8")
        # The rows of each batch, by kind and order. The first run of each kind is never killed.
        self._orders: dict[str, dict[int, list[str]]] = {}
        # Bytes that a run fetches which is not killed, by kind.
        self._alone: dict[str, float] = {}
        self._kind = ""
        self.counts: dict[str, int] = {"batches compared": 0, "looks at the disk": 0}

    def _make_truth(self, source: Path) -> Path:
        """What a call without streaming makes."""
        folder = self._home / f"truth-{source.stem}"
        return stage_dataset(source, local_dir=folder, cache_dir=None, progress=False).path

    @property
    def bound(self) -> float:
        """Samples that one kill may cost."""
        if self._kind == "packed":
            return BLOCK_SAMPLES * _PACKERS
        return _CONNECTIONS * self._rows * BLOCK_BYTES / self._truth.stat().st_size

    @property
    def spread(self) -> float:
        """Samples by which rounds differ without any kill: below a limit a block more or less comes twice."""
        return self._rows * BLOCK_BYTES / self._truth.stat().st_size if self._kind == "limited" else 0.0

    @property
    def needed(self) -> float:
        """All samples."""
        return self._photographs if self._kind == "packed" else self._rows

    @property
    def _truth(self) -> Path:
        return self._truths[self._kind]

    @property
    def _pack(self) -> Path:
        return self._place / "local" / self._truth.stem / self._truth.name

    def begin(self, number: int) -> dict[str, Any]:
        """A place where nothing is yet; of a copy, the pack is in the cache."""
        self._kind = _KINDS[number % 3]
        shutil.rmtree(self._place, ignore_errors=True)
        cache = self._place / "cache"
        cache.mkdir(parents=True)
        if self._kind != "packed":
            for file in (self._truth, manifest_path(self._truth)):
                shutil.copyfile(file, cache / file.name)
        return {
            "kind": self._kind,
            "source": str(self._zip if self._kind == "packed" else self._arrays),
            "place": str(self._place),
            "pack": str(cache / self._truth.name),
            "limit": _LIMIT_BLOCKS * BLOCK_BYTES,
        }

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """The rest of the epoch, from the batch after the last one that was noted."""
        place = Path(arguments["place"])
        local = place / "local"
        if arguments["kind"] == "limited":
            part = open_partial(arguments["pack"], arguments["limit"], local_dir=local)
            with _watching(part, local, arguments["limit"], log):
                _train(make_loader(dataset_h5(part.path, arrival=part), _BATCH), "limited", place)
            return
        data = stage_dataset(
            arguments["source"],
            local_dir=local,
            cache_dir=None if arguments["kind"] == "packed" else place / "cache",
            streaming=True,
            progress=log,
        )
        # The first epoch of a finished pack comes in another order than that of one which is being packed.
        if data.arriving is None:
            _train(data.loader("train", _BATCH), "here", place)
            return
        with _watching(data.arriving.arrival, local, None, log):
            _train(data.loader("train", _BATCH), "arriving", place)
            data.wait(progress=False)

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Bytes that were fetched, in samples: those of the source, or of blocks of the pack."""
        self.counts["looks at the disk"] += sum(1 for name, _ in log if name == "disk")
        fetched = max([0.0, *(amount for name, amount in log if name == "fetched")])
        # Of the first run of each kind, which is not killed: below a limit a few blocks come twice in any run.
        return fetched / self._alone.setdefault(self._kind, fetched) * self.needed

    def look(self) -> State:
        """Batches so far are those of an undisturbed run; the pack is whole, or does not count; the limit holds."""
        self._compare(whole=False)
        if self._kind == "limited":
            _check_limit(self._place / "local", _LIMIT_BLOCKS * BLOCK_BYTES)
            return "nothing"
        return look_at_pack(self._pack, self._truth, None)

    def check(self) -> None:
        """All rows were trained on, once, in the order of an undisturbed run; and the pack is the undisturbed one."""
        self._compare(whole=True)
        if self._kind == "limited":
            _check_limit(self._place / "local", _LIMIT_BLOCKS * BLOCK_BYTES)
            return
        check_pack(self._pack, self._truth)
        self.check_nothing_left(self._place)

    def _compare(self, *, whole: bool) -> None:
        """Compare the batches that were noted with those of the other runs, and their rows with the dataset's.

        Raises:
            WrongError: a row is not the dataset's, a batch came in another place, or a finished epoch lacks a row.
        """
        rows = set(_rows_file(self._home, self._kind).read_text(encoding="utf-8").split())
        finished = False
        for order, batches in _read_batches(self._place).items():
            known = self._orders.setdefault(f"{self._kind} {order}", {})
            wrong = [number for number, batch in batches.items() if known.setdefault(number, batch) != batch]
            seen = [row for batch in batches.values() for row in batch]
            if wrong or not rows.issuperset(seen) or len(set(seen)) != len(seen):
                msg = (
                    f"stream: {self._kind}, {order}: batches {wrong} are not those of the other runs; "
                    f"{len(set(seen) - rows)} rows are not the dataset's; {len(seen) - len(set(seen))} came twice."
                )
                raise WrongError(msg)
            finished = finished or (len(seen) == len(rows) and sorted(batches) == list(range(len(batches))))
            self.counts["batches compared"] += len(batches)
        if whole and not finished:
            msg = f"stream: {self._kind}: the epoch ended without all rows."
            raise WrongError(msg)


def _train(loader: Loader, order: str, place: Path) -> None:
    """Go through the rest of an epoch, and note each batch and the place after it."""
    noted, number = place / "state", 0
    if noted.exists():
        # Rows of a pack that was finished meanwhile come in another order: its loader refuses the state.
        order_then, number_then, state = pickle.loads(noted.read_bytes())
        with contextlib.suppress(OptionError):
            loader.load_state_dict(state)
            order, number = order_then, number_then
    lines = os.open(place / "batches", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for x, y in loader:
        images = x.permute(0, 2, 3, 1).contiguous().numpy()
        digests = " ".join(_digest(one, int(label)) for one, label in zip(images, y, strict=True))
        os.write(lines, f"{order} {number} {digests}\n".encode())
        number += 1
        fresh = noted.with_suffix(".new")
        fresh.write_bytes(pickle.dumps((order, number, loader.state_dict())))
        fresh.replace(noted)
    os.close(lines)


def _digest(x: NDArray[Any], y: int) -> str:
    return hashlib.blake2b(x.tobytes() + bytes([int(y)]), digest_size=8).hexdigest()


def _rows_file(home: Path, kind: str) -> Path:
    return home / f"{'packed' if kind == 'packed' else 'copied'}.rows"


def _read_batches(place: Path) -> dict[str, dict[int, list[str]]]:
    """Return the rows of each batch that was noted, by order and number.

    Raises:
        WrongError: one batch came with two contents.
    """
    found: dict[str, dict[int, list[str]]] = {}
    path = place / "batches"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        order, number, *rows = line.split()
        if found.setdefault(order, {}).setdefault(int(number), rows) != rows:
            msg = f"stream: batch {number} came with two contents."
            raise WrongError(msg)
    return found


def _used(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    used = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # removed while the folder was listed
            used += path.stat().st_blocks * 512
    return used


def _check_limit(folder: Path, limit: int) -> None:
    used = _used(folder)
    if used > limit:
        msg = f"stream: {used:,} bytes are on the disk, more than the limit of {limit:,}."
        raise WrongError(msg)


@contextlib.contextmanager
def _watching(part: Arriving | PartialPack, folder: Path, limit: int | None, log: ProgressLog) -> Iterator[None]:
    """Note what is fetched and what the disk holds, every few milliseconds.

    Raises:
        WrongError: the disk held more than the limit.
    """
    ended = threading.Event()
    over: list[int] = []

    def watch() -> None:
        while True:
            last, used = ended.is_set(), _used(folder)
            log.note(f"fetched\t{part.figures['fetched']}\ndisk\t{used}")
            if limit is not None and used > limit:
                over.append(used)
            if last:
                return
            ended.wait(_LOOK_S)

    thread = threading.Thread(target=watch, name="campaign-watch")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if over and limit is not None:
        msg = f"stream: {max(over):,} bytes were on the disk, more than the limit of {limit:,}."
        raise WrongError(msg)

"""A pack that is remote, partly local or on its way: an `Arrival` brings its rows."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import ColabstageError, NotStagedError
from colabstage.h5.arrival import HandedOut, Readiness, Side, UnitLayout
from colabstage.h5.manifest import Manifest, read_manifest
from colabstage.h5.parts import check_files
from colabstage.io.files import BLOCK_BYTES, make_folder, write_json
from colabstage.io.pipeline import DaemonPool
from colabstage.io.units import format_bytes, parse_bytes
from colabstage.io.workspace import remove_vouched, short_digest
from colabstage.load.epoch import Order, RowOrder, digest_of, random_fractions, spread_order, stable_order
from colabstage.sources.blocks import is_part
from colabstage.sources.in_part import BlockwiseFile, Expected, FileOfSet, FileSet, WholeFile
from colabstage.sources.order import find_visits
from colabstage.sources.packs import (
    PackField,
    Places,
    bring_kept,
    find_fields,
    find_files,
    find_manifest,
    find_places,
    label_of,
    name_files,
    source_of,
)
from colabstage.sources.parse import SingleSource, local_source, read_local_dir
from colabstage.sources.remote import Services

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.parts import Files
    from colabstage.io.progress import Cancellation, ProgressStep


# The order in which an epoch visits rows that are still arriving, in units.
#
# It shuffles units, then rows within a window of some units. It depends only on seed, epoch and layout, never on what
# arrived first, so that what will be needed next is known in advance.


@dataclass(frozen=True, eq=False)
class FirstEpochOrder:
    """Visit the first epoch by units, while rows arrive, and all later ones in another order."""

    first: UnitOrder
    later: Order

    @property
    def count(self) -> int:
        return self.first.count

    def rows(self, seed: int, epoch: int) -> NDArray[np.intp]:
        return (self.later if epoch else self.first).rows(seed, epoch)

    def identity(self) -> dict[str, int]:
        return {**self.later.identity(), **self.first.identity()}


def order_of(layout: UnitLayout, split: str, subset: NDArray[np.intp] | None) -> Order:
    """Return the order by units of all rows or of `subset`, for as long as rows arrive."""
    by_units = UnitOrder(layout.units(split), layout.window_units, subset, layout.first_units, layout.together)
    if not layout.first_epoch_only:
        return by_units
    return FirstEpochOrder(by_units, RowOrder(by_units.count, shuffle=True, chosen=subset))


@dataclass(frozen=True, eq=False)
class UnitOrder:
    """Take units in random order, spread evenly over the file, and spread the rows of each over the window after it.

    Windows overlap: a row is visited while the next `window_units` units are taken. They grow from the first units,
    which are taken all at once, and shrink to a single unit at the end: so the first batch does not wait for a whole
    window, and little is left to visit once the last unit is local. Because units are spread, the classes of a sorted
    source are even in a batch as soon as a window has more units than there are classes.

    Each unit's rows are drawn in random order, one from each of as many equal parts of its window as it has rows: every
    moment is equally likely for each row, but no batch happens to have many rows of one unit and none of another.

    A row that spans two units comes after the later one. A machine's ranks all read the same window, fetched once.
    """

    units: NDArray[np.intp]
    """The unit of each row, `(N,)`, or its first and its last, `(N, 2)`; counted from 0."""
    window_units: int
    """The number of units whose rows a row is mixed with."""
    subset: NDArray[np.intp] | None = None
    """The visited rows, `None` for all."""
    first_units: int = 1
    together: int = 1
    """How many neighbours are visited close together."""

    @property
    def count(self) -> int:
        return len(self.units) if self.subset is None else len(self.subset)

    def rows(self, seed: int, epoch: int) -> NDArray[np.intp]:
        units = self.units if self.subset is None else self.units[self.subset]
        if not len(units):
            return np.arange(0)
        turns = np.empty(count := int(units.max()) + 1, np.intp)
        turns[visited_units(count, seed, epoch, self.together)] = np.arange(count)
        begins, widths = unit_windows(count, self.window_units, self.first_units)
        turn = turns[units] if units.ndim == 1 else turns[units].max(axis=1)
        # By unit, and shuffled within it.
        moments = random_fractions(len(units), seed, epoch, 4)
        moments += turn
        rows = stable_order(moments)
        turn = turn[rows]
        counts = np.bincount(turn, minlength=count)
        part = np.arange(len(rows)) - (np.cumsum(counts) - counts)[turn]
        # In place: allocating memory for millions of rows takes as long as filling it.
        moments = random_fractions(len(rows), seed, epoch, 5)
        moments += part
        moments /= counts[turn]
        moments *= widths[turn]
        moments += begins[turn]
        order = rows[stable_order(moments)]
        return order if self.subset is None else self.subset[order]

    def identity(self) -> dict[str, int]:
        # `unit_order` is raised whenever the same seed and layout give a new order, so that an older version's state is
        # refused: it would continue with other rows.
        found = {"unit_order": 3, "units": int(self.units.max(initial=-1)) + 1, "window_units": self.window_units}
        # Left out if it is 1, as before other values existed.
        found |= {"together": self.together} if self.together > 1 else {}
        return found if self.subset is None else {**found, "sampled": self.count, "rows": digest_of(self.subset)}


# Labels do not tell what else neighbours share, such as a camera. So a batch should come from at least this many
# places, and from more if that costs next to nothing: of this share of all units, half is left to train on at the end.
_LEAST_WINDOW, _CHEAP = 12, 40
# A tenth of what a window is longer than that is left once the last unit is here. With a hundred sorted classes a small
# network learned more by it in the first epoch (top-1 0.70 for 0.68, with windows twice as long 0.74 for 0.70); if
# training takes as long as arrival it costs nothing, because more than that is left anyway.
_LATE = 10
# Windows of up to a twentieth of all units leave nothing.
_NOT_LATE = 20


# As few stretches of neighbours as a window has units: any stretch is visited within a few windows.
_PLACES = 12


def visited_units(count: int, seed: int, epoch: int, together: int = 1) -> NDArray[np.intp]:
    """Return `count` units in the order in which an epoch visits them.

    With `together` above 1, units are cut into stretches of so many neighbours, twelve of which take turns, one unit of
    each: consecutive units are from different stretches, and neighbours can be fetched at once.
    """
    # The 3, and the 4 and 5 for rows, separate these draws from each other and from those of other orders.
    stretches = spread_order(-(-count // together), seed, epoch, 3)
    if together == 1:
        return stretches
    # Of each group of stretches their first units, then their second ones, and so on; the last group is filled up.
    units = np.full((-(-len(stretches) // _PLACES) * _PLACES, together), count, np.intp)
    units[: len(stretches)] = stretches[:, None] * together + np.arange(together)
    visited = units.reshape(-1, _PLACES, together).swapaxes(1, 2).ravel()
    return visited[visited < count]


def unit_windows(count: int, window_units: int, first_units: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return when the window of each of `count` units begins, by its turn, and how long it is; in units, intp each."""
    begins = np.maximum(np.arange(count) - first_units + 1, 0)
    # The last unit's window is one unit long, and all end with it; or some units later if a long window was wanted
    # because the classes follow each other: otherwise the last batches would hold only the last classes.
    after = max(0, min(window_units, count) - count // _NOT_LATE) // _LATE if first_units > 1 else 0
    left = count - np.maximum(np.arange(count), min(first_units, count) - 1) + after
    return begins, np.minimum(window_units, np.minimum(min(first_units, count) + begins, left))


# How even classes must be, by `mixing_of`, over stretches of at least this many rows. With thirty sorted classes a
# small network learned as much at 0.5 as above, and less at a third.
_EVEN, _STRETCH_ROWS = 0.5, 64
# Enough rows to tell: all rows of a large source would take as long as a round trip.
_MOST_ROWS = 2**15


def even_window(
    units: NDArray[np.intp], labels: NDArray[np.integer], most_units: int, first_units: int, together: int = 1
) -> int:
    """Return how many units a window needs for even classes, in a batch and over any longer stretch.

    A longer window costs time if training takes as long as arrival: up to half a window is left to train on when the
    last unit has come. The result depends only on layout and labels, not on what has arrived, so that the order is
    fixed. It is `most_units` where all labels are the same, and at most twice as many. `first_units`: how many the
    first batch may wait for. `together`: how many neighbours are visited shortly after each other.
    """
    every = max(1, -(-len(units) // _MOST_ROWS))
    units, labels = units[::every], labels[::every]
    if len(units) < 2 * _STRETCH_ROWS or labels.min() == labels.max():
        return most_units
    size = max(_LEAST_WINDOW, (int(units.max()) + 1) // _CHEAP)
    while size < 2 * most_units:
        order = UnitOrder(units, size, first_units=first_units, together=together).rows(0, 0)
        if _is_even(labels[order]):
            return size
        size += size // 2
    return 2 * most_units


def _is_even(labels: NDArray[np.integer]) -> bool:
    """Return whether classes are even in a batch, and over stretches of twice as many rows, four times, and so on."""
    sizes = [_STRETCH_ROWS << power for power in range(len(labels).bit_length())]
    return all(mixing_of(labels, size) >= _EVEN for size in sizes if size == _STRETCH_ROWS or 8 * size <= len(labels))


def mixing_of(labels: NDArray[np.integer], batch_size: int) -> float:
    """Return how even the classes are in consecutive batches of `labels`, in the order of visits: the variance of class
    counts after a full shuffle, divided by the actual variance."""
    classes, numbers = np.unique(labels, return_inverse=True)
    batches = numbers[: len(numbers) // batch_size * batch_size].reshape(-1, batch_size)
    if not len(batches):
        return 1.0
    share = np.bincount(numbers, minlength=len(classes)) / len(numbers)
    # Most of many classes are in no batch, so only those present are counted.
    places = np.arange(len(batches))[:, None] * len(classes) + batches
    counts = np.unique(places, return_counts=True)[1]
    # Drawn without replacement.
    left = (len(numbers) - batch_size) / max(1, len(numbers) - 1)
    expected = batch_size * (1 - (share**2).sum()) * left
    # The sum over classes of (count - expected count)², expanded.
    cross = (share[batches]).sum()
    found = ((counts.astype(np.float64) ** 2).sum() - 2 * batch_size * cross) / len(batches)
    found += batch_size**2 * (share**2).sum()
    return float(expected / found) if found > 1e-9 else 1.0


# A longer window mixes no better: a split's rows are already in hashed order in the pack.
_MOST_WINDOW = 16
# A window takes at most this fraction of the limit, because the next one is fetched while it is read.
_WINDOW_PART = 8
# How many manifests are fetched at once.
_OPENERS = 8
# The folder of partial packs among staged datasets, and the record in each that names its source.
PARTS, PART_RECORD = "partial", "part.json"
# Characters of the digest that separates contents.
_CONTENT_LENGTH = 8


class PartialPack:
    """The `Arrival` of a remote pack: `paths` are the local sparse files, which readers open, `file` their blocks;
    `place` is where the file will be once it is copied completely, `None` if a limit keeps it partial for ever."""

    # What happens to rows that makes them local.
    verb = "copied"

    def __init__(
        self,
        file: BlockwiseFile | WholeFile,
        fields: tuple[PackField, ...],
        window_units: int,
        place: Path | None = None,
    ) -> None:
        self.file, self._fields, self._window_units, self._place = file, fields, window_units, place
        self.paths, self.path = file.paths, file.paths[0]
        self.handed_out = HandedOut()
        self._places: dict[str, Places] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        if self._place is None or isinstance(self.file, WholeFile):
            return PartialPack, (self.file, self._fields, self._window_units, self._place)
        # When another process unpickles it, the copy may already be complete and in place.
        return _reopen, (self.file.__reduce__()[1], self._fields, self._window_units, self._place)

    @property
    def place(self) -> Path:
        return self._place or self.path

    @property
    def layout(self) -> UnitLayout:
        """Return the blocks that rows are in. The first batch may wait for one: its rows are of all classes."""
        files, limit = self.file.files, self.file.limit
        of_all = f"{format_bytes(files.size)} in {files.blocks:,} of them"
        why = "" if isinstance(self.file, WholeFile) else ", copied from the cache"
        why = why if limit is None else f", disk_limit={format_bytes(limit)}"
        return UnitLayout(
            lambda split: self._of(split).units,
            self._window_units,
            f"blocks of {format_bytes(files.block_bytes)}; {of_all}{why}",
            self._place,
            # Later epochs have the usual order if the whole file is local by then.
            first_epoch_only=self._place is not None,
        )

    @property
    def bar(self) -> tuple[str, int, str]:
        """Return what a progress bar shows of the copying: what is done, the total, and the unit."""
        return "copy from cache", self.file.files.size, "B"

    @property
    def moved(self) -> int:
        return self.figures["here"]

    @property
    def ready(self) -> Readiness:
        """Return how many rows are completely local."""
        splits = {field.split for field in self._fields}
        here = [self._of(split).count_here(self.file.state) for split in splits]
        return Readiness(sum(here), sum(len(self._of(split).units) for split in splits))

    def check(self) -> None:
        """Raise the error that ended fetching, if there is one."""
        self.file.check()

    def first_blocks(self) -> NDArray[np.int64]:
        """Return all blocks, in the order in which a loader of `train` with the default seed, the likeliest, needs
        them."""
        train = self._of("train")
        count = int(train.units.max(initial=-1)) + 1
        order = np.concatenate([train.low + visited_units(count, 0, 0), np.arange(self.file.blocks)])
        _, first = np.unique(order, return_index=True)
        return order[np.sort(first)]

    @property
    def complete(self) -> bool:
        """Return whether all of it is local for good, in its final place."""
        # Readers of a whole file keep its path, which is temporary until the copy has moved to its place.
        return self.file.complete and (self._place in (None, self.path) or not self.path.exists())

    @property
    def figures(self) -> dict[str, int]:
        """Return bytes `fetched` and `evicted` since this was opened, `kept` from before, `here`, and on the `disk`."""
        return self.file.figures

    @property
    def waits_for(self) -> str:
        """Return why nothing arrives at present although it is needed; "" if something does."""
        return self.file.waits_for

    def expect(
        self, split: str, rows: NDArray[np.intp], *, then: Callable[[], NDArray[np.intp]] | None = None
    ) -> Expectations:
        # If the whole file is copied, all of it is local by the time `then` would be read.
        return Expectations(self, self._of(split), rows, None if self._place is not None else then)

    def hold(
        self, split: str, rows: NDArray[np.intp], *, side: Side = "row", cancellation: Cancellation | None = None
    ) -> AbstractContextManager[None]:
        blocks, edges = self._of(split).needed(rows, targets_only=side == "targets")
        return self.file.hold(blocks, edges, cancellation)

    def close(self) -> None:
        """Stop fetching. Local blocks stay for the next time."""
        self.file.close()

    def _of(self, split: str) -> Places:
        # Two threads may both compute this, which costs a moment; a lock could be left locked by a fork.
        if split not in self._places:
            self._places[split] = find_places(self.file, [one for one in self._fields if one.split == split])
        return self._places[split]


class Expectations:
    """What one reader will read in this epoch and in the next one."""

    def __init__(
        self, pack: PartialPack, places: Places, rows: NDArray[np.intp], then: Callable[[], NDArray[np.intp]] | None
    ) -> None:
        self._pack, self._places, self._rows, self._then = pack, places, len(rows), then
        self._lock, self._done, self._closed = threading.Lock(), 0, False
        self._expected: list[Expected] = []
        self._expect(rows, 0)

    def reached(self, rows: int, waited_s: float = 0.0) -> None:
        self._pack.handed_out.note(max(0, rows - self._done), waited_s)
        then, self._then, self._done = self._then, None, rows
        for one in self._expected:
            one.reached(rows)
        if then is not None:
            # Neither the first nor the second batch should wait while the next epoch is ordered.
            threading.Thread(target=self._follow, args=(then,), name="colabstage-next-epoch", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed, self._then = True, None
            for one in self._expected:
                one.close()

    def _follow(self, then: Callable[[], NDArray[np.intp]]) -> None:
        # If this fails, as on a full disk, nothing is fetched ahead; whoever waits for the rows gets the error.
        with suppress(ColabstageError, OSError):
            self._expect(then(), self._rows)

    def _expect(self, rows: NDArray[np.intp], after: int) -> None:
        places, blocks = self._places.uses(rows)
        gap = self._places.gap * self._pack._window_units
        expected = self._pack.file.expect(find_visits(places + after, blocks, gap), later=after > 0)
        if expected is None:
            return
        with self._lock:
            if self._closed:
                expected.close()
                return
            self._expected.append(expected)
        expected.reached(self._done)


def open_partial(
    files: Files,
    disk_limit: int | str,
    *,
    local_dir: str | os.PathLike[str] | None = None,
    manifests: Sequence[Manifest] = (),
    step: ProgressStep | None = None,
) -> PartialPack:
    """Open a remote pack, with at most `disk_limit` bytes of it on the local disk at any time.

    Its index, labels and other small datasets are fetched now, and stay. Of several files, beside each of which is its
    manifest, the limit is for all together. `manifests`: of each file, where they are known. `step`: shows the bytes
    that are fetched now.
    """
    check_files(files)
    limit, base = parse_bytes(disk_limit, "disk_limit"), read_local_dir(local_dir)
    wanted_files = find_files(files)
    sources = [source for source, _ in wanted_files]
    with DaemonPool(_OPENERS, "colabstage-open") as pool, Services() as services:
        # In parallel, because each takes a round trip or more.
        manifests = manifests or pool.run(partial(find_manifest, services=services), wanted_files)
        wanted = FileSet(name_files(sources, manifests), label_of(files, sources))
        folder = _folder_of(sources, base, wanted.digest[:_CONTENT_LENGTH])
        make_folder(folder)
        # For the list of datasets: blocks alone do not tell their source.
        if not (folder / PART_RECORD).exists():
            write_json(folder / PART_RECORD, {"address": sources[0].address, "samples": wanted.samples})
        file = BlockwiseFile(wanted, folder, limit)
        file.step = step
        try:
            return open_pack(file)
        finally:
            file.step = None


def open_whole(place: Path) -> PartialPack | None:
    """Open a complete pack whose first epoch has the order of one that is being copied; `None` without a manifest."""
    manifest = read_manifest(place)
    return None if manifest is None else open_pack(_whole_file(place, manifest), place)


def lasting_layout(path: Path, layout: UnitLayout) -> UnitLayout:
    """Return the units of a file as every process finds them, also once all of it is local. For a file that is being
    packed, these are the blocks of the finished one, whose layout it has from the beginning."""
    place = layout.place or path
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        # It has been given its final name since it was opened.
        path, size = place, place.stat().st_size
    # Only the layout is used, so no hashes are needed.
    return open_pack(_whole_file(path, Manifest(size, BLOCK_BYTES, ("",) * -(-size // BLOCK_BYTES))), path).layout


def _whole_file(place: Path, manifest: Manifest) -> WholeFile:
    return WholeFile(place, FileSet([FileOfSet(local_source(place), place.name, manifest)]))


def _reopen(arguments: tuple[Any, ...], fields: tuple[PackField, ...], window_units: int, place: Path) -> PartialPack:
    """Open a pack in another process, while it is copied or in its place."""
    files, folder = arguments[:2]
    file: BlockwiseFile | WholeFile
    try:
        file = BlockwiseFile(*arguments)
    except OSError:
        if folder.is_dir():
            raise
        (manifest,) = (one.manifest for one in files.files)
        if read_manifest(place) != manifest:
            msg = f"The copying of '{place}' has ended. Call stage_dataset again, and make a new loader."
            raise NotStagedError(msg) from None
        file = _whole_file(place, manifest)
    return PartialPack(file, fields, window_units, place)


def forget_parts(files: Sequence[str | os.PathLike[str]], base: Path) -> None:
    """Remove the local parts of files below `base`, whatever content they belong to."""
    _folder_of([source_of(file) for file in files], base, "")


def _folder_of(sources: Sequence[SingleSource], base: Path, content: str) -> Path:
    """Return the folder for the local parts of files of this content; those of earlier contents are removed."""
    addresses = "\n".join(source.address for source in sources)
    mine = f"{sources[0].name}.part-{short_digest(addresses, 8)}-"
    folder = base / PARTS
    # Not by a pattern: a file may be called "photos[1].h5".
    for other in folder.iterdir() if folder.is_dir() else ():
        if other.name[:-_CONTENT_LENGTH] == mine and other.name != mine + content:
            remove_vouched(other, is_part)
    return folder / (mine + content)


def open_pack(file: BlockwiseFile | WholeFile, place: Path | None = None) -> PartialPack:
    """Open the pack that these blocks are of; `place`: where it is moved once all of it is local."""
    try:
        if isinstance(file, BlockwiseFile):
            # Nearly always the index and the labels; requested together, because each takes a round trip.
            file.wish(np.unique(np.array([0, file.blocks - 1])) if len(file.paths) == 1 else file.files.firsts)
        fields = find_fields(file)
        if isinstance(file, BlockwiseFile):
            bring_kept(file, fields)
        window = max(1, min(_MOST_WINDOW, file.capacity // _WINDOW_PART))
        return PartialPack(file, fields, 1 << (window.bit_length() - 1), place)
    except BaseException:
        file.close()
        raise

"""A pack that is elsewhere, here in part or on its way: an `Arrival` brings its rows."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import ColabstageError, NotStagedError
from colabstage.h5.arrival import HandedOut, Readiness, UnitLayout
from colabstage.h5.manifest import Manifest, read_manifest
from colabstage.h5.parts import check_files
from colabstage.io.files import BLOCK_BYTES, make_folder, write_json
from colabstage.io.ownership import remove_vouched
from colabstage.io.pipeline import DaemonPool
from colabstage.io.units import format_bytes, parse_bytes
from colabstage.io.workspace import short_digest
from colabstage.load.arrival import visited_units
from colabstage.sources.blocks import is_part
from colabstage.sources.in_part import BlockwiseFile, FileOfSet, FileSet, WholeFile
from colabstage.sources.order import find_visits
from colabstage.sources.pack_rows import bring_kept, find_fields, find_places
from colabstage.sources.packs import find_files, find_manifest, label_of, name_files, source_of
from colabstage.sources.parse import local_source, read_local_dir
from colabstage.sources.remote_files import remote_opener

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Side
    from colabstage.h5.parts import Files
    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.sources.in_part import Expected
    from colabstage.sources.pack_rows import PackField, Places
    from colabstage.sources.parse import SingleSource

# A window of more blocks mixes no better: rows of a split are in the order of a hash in the pack already.
_MOST_WINDOW = 16
# A window takes at most this fraction of the limit, because the next one is fetched while it is read.
_WINDOW_PART = 8
_LONGEST_BATCH_S = 3600.0
# Manifests that are asked for at once.
_OPENERS = 8
# The folder of partial packs among staged datasets, and the record in each that names its source.
PARTS, PART_RECORD = "partial", "part.json"
# Characters of a digest that tell contents apart.
_CONTENT_LENGTH = 8


class PartialPack:
    """The `Arrival` of a pack that is elsewhere.

    `paths`: the local sparse files, which readers open; `path`: the first of them. `file`: their blocks. `place`: where
    the file will be when it is copied completely; `None` where there is never more of it here than a limit.
    """

    # What is done with rows, so that they are here.
    verb = "copied"

    def __init__(
        self,
        file: BlockwiseFile | WholeFile,
        fields: tuple[PackField, ...],
        window_units: int,
        place: Path | None = None,
    ) -> None:
        """Take what `open_partial` or `open_restored` found out."""
        self.file, self._fields, self._window_units, self._place = file, fields, window_units, place
        self.paths, self.path = file.paths, file.paths[0]
        self.handed_out = HandedOut()
        self._places: dict[str, Places] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        if self._place is None or isinstance(self.file, WholeFile):
            return PartialPack, (self.file, self._fields, self._window_units, self._place)
        # By the time that another process unpickles it, the copy may be complete and in its place.
        return _reopen, (self.file.__reduce__()[1], self._fields, self._window_units, self._place)

    @property
    def place(self) -> Path:
        """Return where the file will be."""
        return self._place or self.path

    @property
    def layout(self) -> UnitLayout:
        """Return the blocks that rows are in. A batch may wait for one, whose rows are of all classes, and each is a
        request."""
        files, limit = self.file.files, self.file.limit
        of_all = f"{format_bytes(files.size)} in {files.blocks:,} of them"
        why = "" if isinstance(self.file, WholeFile) else ", copied from the cache"
        why = why if limit is None else f", disk_limit={format_bytes(limit)}"
        return UnitLayout(
            lambda split: self._of(split).units,
            self._window_units,
            f"blocks of {format_bytes(files.block_bytes)}; {of_all}{why}",
            self._place,
            # Later epochs are ordered as usual where all of the file is here by then.
            first_epoch_only=self._place is not None,
        )

    @property
    def bar(self) -> tuple[str, int, str]:
        """Return what a bar of the copying says: what is done, how much of it in all, and in which unit."""
        return "copy from cache", self.file.files.size, "B"

    @property
    def moved(self) -> int:
        """Return how much of that is done."""
        return self.figures["here"]

    @property
    def ready(self) -> Readiness:
        """Tell how many rows are here completely."""
        splits = {field.split for field in self._fields}
        here = [self._of(split).count_here(self.file.state) for split in splits]
        return Readiness(sum(here), sum(len(self._of(split).units) for split in splits))

    def check(self) -> None:
        """Raise the error that ended fetching, if there is one."""
        self.file.check()

    def fill(self, step: ProgressStep, cancellation: Cancellation, *, begun: Callable[[], object]) -> int:
        """Wait until all of it is here, and return how many bytes were fetched for it; as `BlockwiseFile.fill`."""
        return self.file.fill(self._first_blocks(), step, cancellation, begun=begun)

    def end(self, error: BaseException) -> None:
        """Stop fetching, and raise this error in all readers that wait."""
        self.file.end(error)

    def _first_blocks(self) -> NDArray[np.int64]:
        """Return all blocks, in the order in which a loader of `train` with the default seed needs them."""
        # Most likely that is the loader that will be made, and it can then start at once.
        train = self._of("train")
        count = int(train.units.max(initial=-1)) + 1
        order = np.concatenate([train.low + visited_units(count, 0, 0), np.arange(self.file.blocks)])
        _, first = np.unique(order, return_index=True)
        return order[np.sort(first)]

    @property
    def complete(self) -> bool:
        """Tell whether all of it is here, to stay, and where it will stay."""
        # Who takes it for whole keeps its path, under which it is only until the copy has moved to its place.
        return self.file.complete and (self._place in (None, self.path) or not self.path.exists())

    @property
    def figures(self) -> dict[str, int]:
        """Return bytes `fetched` and `evicted` since this was opened, `kept` from before, `here`, and on the `disk`."""
        return self.file.figures

    @property
    def waits_for(self) -> str:
        """Return why nothing comes at present although it is still asked for; "" where it does."""
        return self.file.waits_for

    def expect(
        self, split: str, rows: NDArray[np.intp], *, then: Callable[[], NDArray[np.intp]] | None = None
    ) -> Expectations:
        """Fetch rows in the order in which they will be read, as `Arrival.expect`."""
        # Where the whole file is copied, all of it is here by the time that `then` is read.
        return Expectations(self, self._of(split), rows, None if self._place is not None else then)

    def hold(
        self, split: str, rows: NDArray[np.intp], *, side: Side = "row", cancellation: Cancellation | None = None
    ) -> AbstractContextManager[None]:
        """Wait for rows and keep them, as `Arrival.hold`."""
        blocks, edges = self._of(split).needed(rows, targets_only=side == "targets")
        return self.file.hold(blocks, edges, cancellation)

    def close(self) -> None:
        """Stop fetching. Blocks that are here stay for the next time."""
        self.file.close()

    def _of(self, split: str) -> Places:
        # Two threads may both compute this, which costs a moment and needs no lock, which a fork could leave locked.
        if split not in self._places:
            self._places[split] = find_places(self.file, [one for one in self._fields if one.split == split])
        return self._places[split]


class Expectations:
    """What one reader will read in this epoch and in the next one."""

    def __init__(
        self,
        pack: PartialPack,
        places: Places,
        rows: NDArray[np.intp],
        then: Callable[[], NDArray[np.intp]] | None,
    ) -> None:
        self._pack, self._places, self._rows = pack, places, len(rows)
        self._begun, self._closed = threading.Event(), threading.Event()
        self._lock, self._done = threading.Lock(), 0
        told = self._tell(rows, 0)
        self._told: list[Expected] = [] if told is None else [told]
        if then is not None:
            threading.Thread(target=self._follow, args=(then,), name="colabstage-next-epoch", daemon=True).start()

    def reached(self, rows: int, waited_s: float = 0.0) -> None:
        """Record how many rows have been read."""
        self._pack.handed_out.note(max(0, rows - self._done), waited_s)
        # Kept, because the next epoch's expectation may be told only later.
        self._done = rows
        self._begun.set()
        for one in self._told:
            one.reached(rows)

    def close(self) -> None:
        """Withdraw them."""
        with self._lock:
            self._closed.set()
            self._begun.set()
            for one in self._told:
                one.close()

    def _follow(self, then: Callable[[], NDArray[np.intp]]) -> None:
        # Ordering the next epoch takes time that the first batch should not wait for.
        if not self._begun.wait(_LONGEST_BATCH_S) or self._closed.is_set():
            return
        told = None
        # On a full disk, say, nothing is fetched ahead of the next epoch; whoever waits for its rows is told why.
        with suppress(ColabstageError, OSError):
            told = self._tell(then(), self._rows)
        if told is None:
            return
        with self._lock:
            if self._closed.is_set():
                told.close()
            self._told.append(told)
        told.reached(self._done)

    def _tell(self, rows: NDArray[np.intp], after: int) -> Expected | None:
        places, blocks = self._places.uses(rows)
        gap = self._places.gap * self._pack._window_units
        return self._pack.file.expect(find_visits(places + after, blocks, gap))


def open_partial(
    files: Files,
    disk_limit: int | str,
    *,
    local_dir: str | os.PathLike[str] | None = None,
    manifests: Sequence[Manifest] = (),
    step: ProgressStep | None = None,
) -> PartialPack:
    """Open a pack that is elsewhere, with no more than `disk_limit` bytes of it on the local disk at any time.

    Its index, labels and other small datasets are fetched now, and stay.

    Args:
        files: the packed file: a path, for example on a mounted Drive, an http(s) address, or one of a bucket; of
            several, which are read as one, a list of these, a pattern of paths, or the address of all shards of a set,
            with `*` for their numbers: `"s3://bucket/photos-*-of-00008.h5"`. The manifest of each, `NAME.h5.json`, is
            beside it. Or the share link of a folder on Google Drive that holds one pack and its manifest.
        disk_limit: bytes, or text such as "20GB"; for all files together.
        local_dir: the folder on the local disk; `None` for the platform's fast folder.
        manifests: that of each file, where they are known: each takes a round trip or more.
        step: told of the bytes that are fetched now.

    Raises:
        OptionError: the limit is not a size, or an address does not name a file, or what is given is neither.
        SourceNotFoundError: a file has no manifest, so nothing would tell a block that is wrong.
        NotEnoughSpaceError: the limit is too low; the message says what would do.
        NotSupportedHereError: the local disk cannot give back parts of a file.
        SourceError, DriveError, PackFormatError, DamagedPackError: it cannot be read.
    """
    check_files(files)
    limit, base = parse_bytes(disk_limit, "disk_limit"), read_local_dir(local_dir)
    wanted_files = find_files(files)
    sources = [source for source, _ in wanted_files]
    first, opened = remote_opener(sources[0]), list[Any]()
    with DaemonPool(_OPENERS, "colabstage-open") as pool:
        # At the same time, because each takes a round trip or more.
        opening = pool.submit(lambda: opened.append(first()))
        try:
            manifests = manifests or pool.run(find_manifest, wanted_files)
            pool.results([opening])
            wanted = FileSet(name_files(sources, manifests), label_of(files, sources))
            folder = _folder_of(sources, base, wanted.digest[:_CONTENT_LENGTH])
            make_folder(folder)
            # For the list of datasets: blocks alone do not say what they are of.
            if not (folder / PART_RECORD).exists():
                write_json(folder / PART_RECORD, {"address": sources[0].address, "samples": wanted.samples})
            openers = [lambda: opened.pop() if opened else first(), *map(remote_opener, sources[1:])]
            file = BlockwiseFile(wanted, folder, limit, openers=openers)
            file.step = step
            try:
                return _open_pack(file)
            finally:
                file.step = None
        finally:
            # Where another process fetches, or something failed, it is not needed, now or once it is open.
            opening.add_done_callback(lambda _: [opened.pop().close() for _ in range(len(opened))])


def open_restored(source: SingleSource, manifest: Manifest, folder: Path, place: Path) -> PartialPack:
    """Open a packed file that is copied to `folder` completely and then moved to `place`; as `open_partial`."""
    return _open_pack(BlockwiseFile(_one_file(source, manifest, place.name), folder, None), place)


def open_whole(place: Path) -> PartialPack | None:
    """Open a complete pack whose first epoch has the order of one that is being copied; `None` without a manifest."""
    manifest = read_manifest(place)
    return None if manifest is None else _open_pack(_whole_file(place, manifest), place)


def lasting_layout(path: Path, layout: UnitLayout) -> UnitLayout:
    """Return the units of a file as every process finds them, also once all of it is here.

    Of a file that is being packed these are the blocks of the finished one, whose layout it has from the beginning.
    """
    place = layout.place or path
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        # It got its own name since it was opened.
        path, size = place, place.stat().st_size
    # Nobody reads rows by it, so hashes are not needed.
    return _open_pack(_whole_file(path, Manifest(size, BLOCK_BYTES, ("",) * -(-size // BLOCK_BYTES))), path).layout


def _one_file(source: SingleSource, manifest: Manifest, name: str) -> FileSet:
    return FileSet([FileOfSet(source, name, manifest)])


def _whole_file(place: Path, manifest: Manifest) -> WholeFile:
    return WholeFile(place, _one_file(local_source(place), manifest, place.name))


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
    """Remove what is here below `base` of files, of whatever content they were."""
    _folder_of([source_of(file) for file in files], base, "")


def _folder_of(sources: Sequence[SingleSource], base: Path, content: str) -> Path:
    """Return the folder of what is here of files of this content; those of what they were before are removed."""
    addresses = "\n".join(source.address for source in sources)
    mine = f"{sources[0].name}.part-{short_digest(addresses, 8)}-"
    folder = base / PARTS
    # By its beginning and not by a pattern: a file may be called "photos[1].h5".
    for other in folder.iterdir() if folder.is_dir() else ():
        if (
            other.name.startswith(mine)
            and len(other.name) == len(mine) + _CONTENT_LENGTH
            and other.name != mine + content
        ):
            remove_vouched(other, is_part)
    return folder / (mine + content)


def _open_pack(file: BlockwiseFile | WholeFile, place: Path | None = None) -> PartialPack:
    try:
        if isinstance(file, BlockwiseFile):
            # Nearly always the index and the labels; asked for together, as each takes a round trip.
            file.wish(np.unique(np.array([0, file.blocks - 1])) if len(file.paths) == 1 else file.files.firsts)
        fields = find_fields(file)
        if isinstance(file, BlockwiseFile):
            bring_kept(file, fields)
        window = max(1, min(_MOST_WINDOW, file.capacity // _WINDOW_PART))
        return PartialPack(file, fields, 1 << (window.bit_length() - 1), place)
    except BaseException:
        file.close()
        raise

"""`dataset_h5`: one split of an HDF5 file as a `torch.utils.data.Dataset`, and the facts on which loading depends."""

from __future__ import annotations

import ast
import contextlib
import copy
import multiprocessing
import operator
import pickle
import random
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import MissingDependencyError, OptionError, said_by
from colabstage.h5.info import NamedFields, read_info
from colabstage.io.arguments import check_argument, takes_names
from colabstage.io.page import facts_table, page
from colabstage.io.pipeline import ThreadPool
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.units import format_bytes
from colabstage.load.arrival import facts_of
from colabstage.load.calling import call_theirs, check_transform
from colabstage.load.plan import DeviceFacts, LoaderFacts, ProcessFacts, SampleCost
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.resources import free_shared_memory, read_resources

try:
    import torch
    from torch.utils.data import Dataset
except ImportError as error:
    _msg = "dataset_h5 and make_loader need torch. Install it with: pip install torch"
    raise MissingDependencyError(_msg) from error

from colabstage.load.batches import map_leaves
from colabstage.load.device import free_device_memory

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.h5.parts import Files
    from colabstage.io.progress import Clock
    from colabstage.load.arrival import Arrival
    from colabstage.load.epoch import Shard
    from colabstage.load.reading.engines import EngineChoice, Indices
    from colabstage.load.reading.rows import TargetBatch

    _Base = Dataset[Any]
else:
    _Base = Dataset


@takes_names
class dataset_h5(_Base):  # noqa: N801 - the name that people know from the recipe
    """Read one split of an HDF5 file with `X_<split>` and `Y_<split>`, whoever wrote it.

    Opens the file lazily in each process, so it works in a `DataLoader` with any number of workers, under fork and
    spawn, and pickles. `len(dataset)` is the number of samples.

    >>> train = dataset_h5("data.h5")  # doctest: +SKIP
    >>> x, y = train[0]  # doctest: +SKIP

    It has torchvision's attributes `targets`, `classes`, `class_to_idx` and `samples` as well.

    Attributes:
        transform: called with each x, `(H, W, C)` as stored, uint8 of images; with a PIL image instead where it is
            torchvision's and begins with one that takes no arrays. `target_transform` is called with each y.
        return_index: whether samples are `((x, y), index)`.
        reader: the `SplitReader` below, for reading without torch.
    """

    def __init__(
        self,
        in_file: Files,
        transform: Callable[[Any], Any] | None = None,
        *,
        split: str = "train",
        target_transform: Callable[[Any], Any] | None = None,
        return_index: bool = False,
        in_memory: bool = False,
        decode: bool = False,
        x: str | None = None,
        y: str | None = None,
        arrival: Arrival | None = None,
        disk_limit: int | str | None = None,
        local_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Look at the file; no sample is read, except with `in_memory`.

        Args:
            in_file: the HDF5 file; a pattern that several match, such as `"data-*.h5"`, or a list of files: they are
                read as one, in the order of shards, what was appended last.
            transform: called with each x, an array `(H, W, C)` as stored, or a PIL image where it is a transform of
                torchvision's that takes those, such as `Compose([RandomResizedCrop(224), ToTensor()])`; its result
                takes the place of x.
            split: which split: `"train"` reads `X_train` and `Y_train`.
            target_transform: called with each y.
            return_index: return `((x, y), index)` instead of `(x, y)`.
            in_memory: read all inputs into memory now. Worth it only where the system's cache cannot hold the file;
                it is refused when it does not fit.
            decode: decode inputs that are image files in rows of bytes of variable length (HDF5's variable-length
                uint8), to RGB at their own sizes, as files that colabstage packed encoded always are. Left as bytes by
                default.
            arrival: what brings the rows of a file of which some are not here yet; `stage_dataset` gives it.
            x, y: the datasets of inputs and targets in a file that has its own names for them, such as `x="images"`,
                `y="labels"`, or `y="labels.h5/y"` for targets in another file in the same folder; without `y` there are
                no targets. The split is called `split` then.
            disk_limit: never have more of the file on the local disk than that, bytes or a text such as `"20GB"`:
                `in_file` is then the path (on a mounted Drive, say) or the http(s) or bucket address of a file that
                colabstage packed, or of several: a list, a pattern of paths, or `"s3://bucket/data-*-of-00008.h5"` for
                all shards of a set; or the share link of a folder on Google Drive with one pack. Their blocks are
                fetched as they are needed, and verified. Datasets of the same files, and processes, share what is here;
                the limit that was given last holds.
            local_dir: where on the local disk the part is kept; by default in the platform's fast folder.

        Raises:
            OptionError: `y` without `x`.
            SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read, or with
                `decode` holds no image files; several are not alike (the message names the difference), or shards of
                them are missing.
            SplitNotFoundError: it has no such split; the message lists those it has.
            NotEnoughSpaceError: with `in_memory`, when the inputs do not fit.
        """
        check_argument("split", split, "text")
        called: dict[str, object] = {"transform": transform, "target_transform": target_transform}
        for name, given in called.items():
            if given is not None:
                check_transform(name, given)
        if x is None and y is not None:
            msg = f"y={y!r} without x; expected both names, such as dataset_h5(path, x='images', y='labels')."
            raise OptionError(msg)
        fields = None if x is None else NamedFields(split, x, y)
        if disk_limit is not None:
            from colabstage.load.partial import open_partial

            pack = open_partial(in_file, disk_limit, local_dir=local_dir)
            in_file, arrival = pack.paths, pack
        # Torch is imported anyway.
        self.reader = SplitReader(
            in_file, split, in_memory=in_memory, decode=decode, arrival=arrival, fields=fields, resizer="torch"
        )
        self.transform = transform
        self.target_transform = target_transform
        self.return_index = return_index
        # Told once, here, where the path is chosen: later it would only be slow.
        if self.reader.slow_mount is not None and not in_memory:
            warnings.warn(
                f"'{self.reader.path}' is on {self.reader.slow_mount}: every sample is fetched through it, in every "
                "epoch, which is many times slower than a local disk. Copy the file to a local disk first "
                "(stage_dataset does), or pass in_memory=True to read it once.",
                UserWarning,
                stacklevel=3,
            )

    @property
    def split(self) -> str:
        """Return the split's name."""
        return self.reader.split

    @property
    def classes(self) -> tuple[str, ...]:
        """Return class names in label order; empty when the file has none."""
        return self.reader.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Return the label of each class name, as torchvision's datasets do; empty when the file has no names."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> Any:
        """Read the targets of all samples, as stored, without `target_transform`: `(N,)` where they are numbers, -1
        where there are none; a list of N where each has its own shape.

        Read again each time, so keep it. `torch.as_tensor`, `numpy.bincount` and `Counter` take it.
        """
        return self.reader.read_y(np.arange(len(self)))

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """Read the name of the file that each sample was made from, with its target: `(name, target)` in the order of
        rows, as torchvision's datasets have it. Names are those in the source, not paths on this machine.

        Raises:
            PackFormatError: the file, which another program wrote, keeps no names.
        """
        found = self.targets
        return list(zip(self.reader.keys(), found.tolist() if isinstance(found, np.ndarray) else found, strict=True))

    @property
    def figures(self) -> dict[str, int]:
        """Return the bytes of what is read under `disk_limit`: `fetched` and `evicted` since it was opened, `kept` from
        before, `here` now and on the `disk`. Empty for a file that is here."""
        return dict(getattr(self.reader.arrival, "figures", {}))

    @property
    def per_sample(self) -> bool:
        """Tell whether Python of the caller's is called for each sample."""
        return self.transform is not None or self.target_transform is not None

    @property
    def engine(self) -> EngineChoice:
        """Tell how samples are read (`.name`) and why (`.reason`)."""
        return self.reader.engine

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int | slice) -> Any:
        """Return one sample: `(x, y)`, or `((x, y), index)` with `return_index`; for a slice, a list of samples.

        `x` is a writable array of its own, as stored, `(H, W, C)` for images, before `transform`. `y` is an int where
        targets are integers, a numpy scalar for other numbers, an array as stored where one target is more (`(1, 1)`
        for targets of shape `(N, 1, 1)`, uint8 `(H, W)` for masks), a dict of arrays for boxes (`boxes` float32
        `(M, 4)`, `labels` int64 `(M,)`, …), and -1 where the file has no targets. On either side a row of variable
        length is an array `(M,)`, and a text a `str`. A negative index counts from the end.

        Raises:
            IndexError: there is no such sample.
            OptionError: it is not an index; the message has the line for several samples.
            DecodeError: an encoded image is broken, or a text not UTF-8; the message names its row.
        """
        if isinstance(index, slice):
            return self._samples(range(*index.indices(len(self))))
        # True is 1 to Python, and one of a mask's values to whoever writes it here.
        if not hasattr(index, "__index__") or np.ndim(index) or isinstance(index, bool):
            msg = (
                f"dataset[…] takes a row or a slice, got {type(index).__name__}. Write "
                "torch.utils.data.Subset(dataset, rows) for samples of many rows, or x, y = dataset.read_batch(rows)."
            )
            raise OptionError(msg)
        # By way of the list, so that one sample and a batch cannot differ.
        return self._samples([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples by one read; `DataLoader` calls this for each batch. As `__getitem__` for each
        index, and by it where a subclass has its own: a `DataLoader` would never call that."""
        if type(self).__getitem__ is not dataset_h5.__getitem__:
            return [self[index] for index in indices]
        return self._samples(indices)

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        xs, ys = self.read_batch(indices)
        samples = [self.sample(x, y) for x, y in zip(xs, ys, strict=True)]
        if not self.return_index:
            return samples
        # Indices are given back as rows, so that the same sample has one number.
        count = len(self)
        rows = [operator.index(index) for index in indices]
        return [(sample, row + count if row < 0 else row) for sample, row in zip(samples, rows, strict=True)]

    def read_batch(
        self, indices: Indices, out: NDArray[Any] | None = None, *, threads: int = 1
    ) -> tuple[NDArray[Any] | list[Any], TargetBatch]:
        """Read a batch as stored, without the transforms: the fastest way to many samples.

        Args:
            indices: B of them, in the order wanted; negative ones count from the end, repeats are fine.
            out: array for the inputs, C-contiguous `(B, H, W, C)` of the stored dtype; a new one by default.
            threads: how many copy or decode at once.

        Returns:
            `(x, y)`: x is `(B, H, W, C)`, or a list of B arrays where images have different sizes; y is
            `(B, *target_shape)` as stored, or a list of B masks where images have different sizes, of B dicts of
            arrays where targets are boxes. On either side rows of variable length are a list of B arrays `(M,)`, and
            texts a list of B `str`.

        Raises:
            IndexError: there is no such sample.
            ValueError: `out` does not fit.
            DecodeError: an encoded image is broken; the message names its row.
        """
        # For this call only: a pool that stays would not survive a fork of the dataset.
        with ThreadPool(threads) as pool:
            return self.reader.read_x(indices, out, pool=pool), self.reader.read_y(indices, pool=pool)

    def close(self) -> None:
        """Release the file. Reading again opens it again."""
        self.reader.close()

    def sample(self, x: Any, y: NDArray[Any] | np.generic | dict[str, NDArray[Any]] | str) -> tuple[Any, Any]:
        """Turn one row of `read_batch` into the sample that `__getitem__` returns."""
        # Other scalars stay numpy's: a Python float would be collated to float64.
        value = y if isinstance(y, dict | str) or y.ndim > 0 or y.dtype.kind not in "biu" else y.item()
        if (change := self.transform) is not None:
            x = call_theirs("transform", change, _image(x) if _takes_images(change) else x)
        if self.target_transform is not None:
            value = call_theirs("target_transform", self.target_transform, value)
        return x, value

    def __repr__(self) -> str:
        facts = "; ".join(f"{name} {value}" for name, value in self._facts())
        return f"dataset_h5('{self.reader.path}', {self._which()}): {facts}"

    def _repr_html_(self) -> str:
        return page(f"dataset_h5, {self._which()}", facts_table([("file", str(self.reader.path)), *self._facts()]))

    def _which(self) -> str:
        """Return the arguments that say which samples of the file these are."""
        fields = self.reader.fields
        # A name that was not in the file would say nothing of which samples these are.
        return f"split={self.split!r}" if fields is None else f"x={fields.x!r}, y={fields.y!r}"

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("samples", f"{len(self):,}"),
            (
                "each",
                f"{self._row()}, {'encoded, ' if self.reader.encoded else ''}{format_bytes(self.reader.row_bytes)}",
            ),
            ("classes", f"{len(self.classes)}" if self.classes else "not named"),
            ("engine", str(self.engine)),
        ]

    def _row(self) -> str:
        """Describe one input in words."""
        shape, dtype = self.reader.row_shape, self.reader.row_dtype
        if shape is not None:
            return f"{' x '.join(map(str, shape))} {dtype}"
        if self.reader.encoded:
            return "images of their own sizes"
        return "a text" if dtype.hasobject else f"any number of {dtype}"


# Those of torchvision's transforms that take arrays, and what looks at a sample first and may be anybody's.
_TAKE_ARRAYS = frozenset({"ToTensor", "ToImage", "ToPILImage", "Lambda", "ToDtype", "ConvertImageDtype"})


def _takes_images(transform: object) -> bool:
    """Tell whether a transform is torchvision's and begins with one that takes PIL images but not arrays."""
    kind = type(transform)
    # By name: torchvision is not imported for this, and who passes one of its transforms has done it.
    if kind.__module__.partition(".")[0] != "torchvision":
        return False
    # `Compose`, and others of its kind: only the first one gets what is stored.
    parts: Any = getattr(transform, "transforms", None)
    if parts is not None:
        return any(_takes_images(one) for one in [*parts][:1])
    return kind.__name__ not in _TAKE_ARRAYS


def _image(x: Any) -> Any:
    """Return stored pixels as a PIL image; what is none (16 bits, fractions, other shapes) as it is."""
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim not in (2, 3):
        return x
    from PIL import Image

    channels = x.shape[2] if x.ndim == 3 else 1
    if channels not in (1, 3, 4):
        return x
    return Image.fromarray(x[..., 0] if x.ndim == 3 and channels == 1 else x)


def gather_facts(
    dataset: dataset_h5,
    *,
    device: torch.device | None,
    shard: Shard,
    epoch_rows: int | None,
    crop_size: tuple[int, int] | None = None,
    processes: bool = False,
) -> LoaderFacts:
    """Look at a dataset, this computer and this process. Reads no sample, but a few headers of encoded ones.

    `crop_size`: height and width of the random resized crops that the batch transform begins with. `processes`: whether
    some are asked for; without a transform they are never chosen.
    """
    # Now and not at import: a notebook's limits and free memory change.
    resources = read_resources()
    reader = dataset.reader
    # Devices that do not tell share this computer's memory.
    own_memory = None if device is None else free_device_memory(device)
    free = resources.free_memory_bytes if own_memory is None else own_memory
    # Rows of `train` are in random order where colabstage packed them. Only what reads row by row asks, because looking
    # means opening the file.
    asks = reader.engine.name == "read" and reader.split == "train"
    are_random = asks and read_info(reader.path, reader.fields).format_version is not None
    return LoaderFacts(
        rows=len(reader),
        row_bytes=reader.estimate_row_bytes(),
        stored_bytes=reader.stored_bytes,
        engine=reader.engine,
        encoded=reader.encoded,
        per_sample=dataset.per_sample,
        cores=resources.cores,
        free_memory_bytes=resources.free_memory_bytes,
        # Single integers become int64.
        target_bytes=max(8, reader.target_bytes or 0),
        decodes_targets=reader.decodes_targets,
        uniform=reader.target_bytes is not None and reader.row_shape is not None,
        random_rows=are_random,
        epoch_rows=epoch_rows,
        shard=shard,
        device=None if device is None else DeviceFacts(device.type, free),
        processes=ProcessFacts(
            threads=threading.active_count(),
            cuda_started=bool(torch.cuda.is_initialized()),  # type: ignore[no-untyped-call]
            unpicklable=_pickle_problem(dataset),
            methods=tuple(multiprocessing.get_all_start_methods()),
            shared_memory_bytes=free_shared_memory() or 0,
            runs_again=(processes or dataset.per_sample) and _runs_again(),
        ),
        crop_bytes=None if crop_size is None else crop_size[0] * crop_size[1] * reader.crop_channels,
        whole_reason=reader.whole_reason,
        arrival=None if reader.arrival is None else facts_of(reader.arrival),
    )


# A probe ends after these many samples or seconds, whichever comes first.
_PROBED = 64
_PROBE_S = 0.5


def measure_cost(dataset: dataset_h5, *, clock: Clock = SYSTEM_CLOCK) -> SampleCost | None:
    """Time a few samples with copies of their transforms, in this thread, for half a second or one sample.

    What the transforms draw from the generators of Python, numpy and torch is put back.

    Returns:
        `None` where the first one failed, or the transforms cannot be copied: it will again, where it is asked for.
    """
    # From all over the file, as neighbours are often alike.
    rows = np.linspace(0, len(dataset) - 1, min(_PROBED, len(dataset))).astype(np.intp).tolist()
    done, elapsed_s, nbytes = 0, 0.0, list[int]()
    # Whatever a transform raises is the loop's to raise, where it says which batch.
    with _rng_restored(), contextlib.suppress(Exception):
        probed = copy.copy(dataset)
        # What they count or draw on the way stays with the copies, as it does with those of processes.
        transforms = pickle.dumps((dataset.transform, dataset.target_transform))
        probed.transform, probed.target_transform = pickle.loads(transforms)
        start = clock.now()
        for row in rows:
            map_leaves(probed[row], lambda leaf: nbytes.append(int(getattr(leaf, "nbytes", 8))))
            done += 1
            elapsed_s = clock.now() - start
            if elapsed_s > _PROBE_S:
                break
    return SampleCost(elapsed_s / done, sum(nbytes) // done) if done else None


@contextlib.contextmanager
def _rng_restored() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what transforms draw from
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _pickle_problem(dataset: dataset_h5) -> str | None:
    """Return why the dataset's transforms cannot be sent to another process; `None` if they can."""
    try:
        pickle.dumps((dataset.transform, dataset.target_transform))
    except Exception as error:  # noqa: BLE001 - whatever a transform's own pickling raises
        return said_by(error).partition("\n")[0]
    # A class of a notebook pickles by its name, and fails where it is looked up.
    main = __import__("__main__")
    homes = {
        getattr(part, "__module__", type(part).__module__) for part in (dataset.transform, dataset.target_transform)
    }
    if "__main__" in homes and not hasattr(main, "__file__"):
        return "its transform is defined in a notebook, which another process cannot import"
    return None


def _runs_again() -> bool:
    """Tell whether a process that imports the main module would run the script that is running from its top."""
    main = sys.modules["__main__"]
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if path is None or (spec is not None and spec.name.endswith(".__main__")):
        return False  # a notebook, or a package that is run: other processes import neither
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        script = ast.parse(Path(path).read_bytes())
    # What cannot be read may have no guard: the careful answer.
    except (OSError, SyntaxError, ValueError):
        return True
    line = frame.f_lineno
    return not any(
        isinstance(part, ast.If)
        and any(isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(part.test))
        and part.body[0].lineno <= line <= (part.body[-1].end_lineno or 0)
        for part in ast.walk(script)
    )

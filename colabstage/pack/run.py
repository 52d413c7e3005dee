"""`pack_dataset`: a local folder or archive becomes one HDF5 file; `pack_tree`, the same for any tree."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import (
    CancelledError,
    DriveDisconnectedError,
    LayoutError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.fileops import adopt_orphan, disown, hash_block, make_folder, remove_any, sweep_orphans, temp_beside
from colabstage.h5.create import create_pack, reserved_offsets
from colabstage.h5.manifest import BLOCK_BYTES, Manifest, make_hashes, manifest_path, write_manifest
from colabstage.h5.names import FORMAT_VERSION
from colabstage.images.decode import probe_image
from colabstage.images.options import ImageOptions
from colabstage.layouts.detect import detect_layout
from colabstage.machine.mounts import is_slow_mount
from colabstage.machine.resources import check_space, free_space, usable_cores
from colabstage.pack.compact import copy_rows, without_samples
from colabstage.pack.journal import Journal
from colabstage.pack.options import PackOptions, split_fractions
from colabstage.pack.plan import PackPlan, needs_facts, pack_content, plan_pack, sample_places
from colabstage.pack.writer import MixedImagesError, WriteJob, write_samples
from colabstage.pipeline import PipelineLimits
from colabstage.progress import Cancellation, resolve_progress
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.trees.open import open_tree
from colabstage.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from colabstage.images.decode import ImageFacts
    from colabstage.images.options import ColorMode, Resize
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import Encoding, OnError
    from colabstage.progress import Progress
    from colabstage.trees.tree import Tree

# Enough to see that a folder holds images of many sizes; few enough to cost one round trip of parallel reads.
_PROBES = 16
# On a Drive mount, speed grows with the reads in flight up to about twenty, and falls off after thirty-two.
SLOW_READERS = 32
# File, journal and tables around the samples.
_OVERHEAD_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackReport:
    """What packing did.

    `path`: the file. `encoding`, `reason`: how samples are stored, and why.
    `samples`: rows of each split. `classes`: class names in label order.
    `skipped`: one sentence for each sample that was left out.
    `nbytes`: length of the file. `seconds`: how long it took, `packing_s` of it reading, decoding and writing.
    `resumed`: samples that an earlier, interrupted run had already put in place.
    `readers`: reads in flight at the most. `notes`: what else a person should know.
    """

    path: Path
    encoding: str
    reason: str
    samples: Mapping[str, int]
    classes: tuple[str, ...]
    skipped: tuple[str, ...]
    nbytes: int
    seconds: float
    packing_s: float
    resumed: int
    readers: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        total = sum(self.samples.values())
        rate = format_rate(total - self.resumed, self.packing_s, "images")
        stored = f"{total:,} samples in {format_bytes(self.nbytes)} ({self.encoding}: {self.reason})"
        lines = [f"{stored} in {format_duration(self.seconds)}, {rate}", *self.notes]
        if self.skipped:
            lines.append(f"{len(self.skipped)} left out: " + "; ".join(self.skipped[:3]))
        return "\n".join(lines)


def pack_dataset(
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    layout: str = "auto",
    image_size: tuple[int, int] | None = None,
    color_mode: ColorMode = "rgb",
    resize: Resize = "stretch",
    encoding: Encoding = "auto",
    splits: Mapping[str, float] | None = None,
    seed: int = 0,
    on_error: OnError = "raise",
    overwrite: bool = False,
    progress: bool | Progress = True,
) -> PackReport:
    """Convert a folder or archive on this machine to one HDF5 file; no Google Drive involved.

    Args:
        source: a folder, or a zip or tar that is read in place, never extracted.
        out: the file to make. Its manifest `OUT.json` is written beside it, last.
        layout: how files become samples; `"auto"` tries every layout there is.
        image_size: `(height, width)` in pixels of every image; `None` keeps each image's own.
        color_mode: `"rgb"`, `"grayscale"` or `"keep"`.
        resize: `"stretch"`, `"crop"` or `"pad"`.
        encoding: `"pixels"`, `"encoded"`, or `"auto"` for what fits.
        splits: fractions by split name, where the source has no split folders.
        seed: of the splits and of the row order of `train`.
        on_error: `"raise"` at the first image that cannot be decoded, or `"skip"` and report it.
        overwrite: replace a file that stands at `out`.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Raises:
        SourceNotFoundError, ArchiveError, LayoutError, DecodeError, OptionError, NotEnoughSpaceError,
        TargetExistsError, TargetNotWritableError: nothing at `out` has changed.
    """
    target = Path(out)
    options = PackOptions(
        layout=layout,
        image=ImageOptions(size=image_size, color_mode=color_mode, resize=resize),
        encoding=encoding,
        splits=split_fractions(splits),
        seed=seed,
        on_error=on_error,
    )
    if target.exists() and not overwrite:
        msg = f"'{target}' exists. Choose another name, or give overwrite=True to replace it."
        raise TargetExistsError(msg)
    place = Path(source)
    workers = SLOW_READERS if is_slow_mount(place) else 1
    make_folder(target.parent)
    with (
        tempfile.TemporaryDirectory(prefix=".colabstage-spool-", dir=target.parent) as spool,
        open_tree(place, spool=Path(spool), workers=workers) as tree,
    ):
        return pack_tree(
            tree, target, options, slow=workers > 1, progress=resolve_progress(progress), cancellation=Cancellation()
        )


def pack_tree(
    tree: Tree,
    out: Path,
    options: PackOptions,
    *,
    slow: bool,
    progress: Progress,
    cancellation: Cancellation,
    key: str = "",
    identity: Mapping[str, Any] | None = None,
) -> PackReport:
    """Pack the samples of `tree` into `out`, replacing what stands there only at the very end.

    Args:
        tree: the source.
        out: the file to make, in a folder that exists.
        options: what it should be.
        slow: whether the tree is known to answer slowly, so that many reads are started at once.
        progress, cancellation: where the work is shown, and how it is stopped.
        key, identity: what the manifest says of the source.

    Raises:
        As `pack_dataset`.
    """
    began = time.monotonic()
    table = detect_layout(tree, options.layout)
    facts = look_at_images(tree, table) if needs_facts(options) else ()
    plan = plan_pack(table, options, facts=facts, free_bytes=free_space(out.parent))
    try:
        run = _PackRun(tree, table, plan, options, out, slow, key, dict(identity or {}))
        return run.execute(progress, cancellation, began)
    except MixedImagesError as error:
        if options.encoding == "pixels":
            msg = f"These images cannot be stored as pixels: {error}."
            raise LayoutError(msg) from error
    # The few images that were looked at had one size and this one has not: what "auto" promises then is to keep
    # every image as it came.
    other = plan_pack(table, replace(options, encoding="encoded"), facts=(), free_bytes=None)
    plan = replace(other, reason="the images have many sizes, so they are kept as they came")
    run = _PackRun(tree, table, plan, options, out, slow, key, dict(identity or {}))
    return run.execute(progress, cancellation, began)


def look_at_images(tree: Tree, table: SampleTable) -> Sequence[ImageFacts]:
    """Read the headers of a few images, spread over a folder; of an archive the first, which arrive first."""
    entries = table.files
    if tree.kind == "folder":
        chosen = [entries[int(i)] for i in np.linspace(0, len(entries) - 1, min(_PROBES, len(entries)))]
    else:
        chosen = sorted(entries, key=lambda entry: entry.position)[:_PROBES]
    policy = RetryPolicy()
    with ThreadPoolExecutor(_PROBES) as pool:
        reads = pool.map(lambda entry: read_with_retry(lambda: tree.read(entry), entry.name, policy=policy), chosen)
        found = []
        for data in reads:
            # What cannot be read here is met again, and named, when it is packed.
            try:
                found.append(probe_image(data))
            except ValueError:
                continue
    return found


@dataclass(frozen=True, slots=True)
class _PackRun:
    """One attempt to write one plan."""

    tree: Tree
    table: SampleTable
    plan: PackPlan
    options: PackOptions
    out: Path
    slow: bool
    key: str
    identity: dict[str, Any]

    def execute(self, progress: Progress, cancellation: Cancellation, began: float) -> PackReport:
        """Write beside, then publish; what a passing failure leaves is kept for the next try."""
        workspace = temp_beside(self.out)
        adopted = adopt_orphan(self.out, workspace)
        try:
            sweep_orphans(self.out.parent, name=self.out.name)
            if not adopted:
                check_space(self.out.parent, self.plan.nbytes + _OVERHEAD_BYTES, f"The pack of '{self.tree.label}'")
                workspace.mkdir()
            report = self._fill(workspace, progress, cancellation, began)
        except (KeyboardInterrupt, CancelledError, SourceReadError, DriveDisconnectedError):
            disown(workspace)
            raise
        except BaseException:
            remove_any(workspace)
            raise
        remove_any(workspace)
        return report

    def _attributes(self) -> dict[str, Any]:
        return {"source": self.identity, "encoding": self.plan.encoding, "encoding_reason": self.plan.reason}

    def _fingerprint(self) -> str:
        listing = "\n".join(f"{entry.name}\t{entry.size}\t{entry.mtime_ns}" for entry in self.table.files)
        return f"{FORMAT_VERSION}-{self.options.fingerprint()}-{self.plan.encoding}-{hash_block(listing.encode())}"

    def _fill(self, workspace: Path, progress: Progress, cancellation: Cancellation, began: float) -> PackReport:
        data = workspace / "data.h5"
        content = pack_content(self.table, self.plan, self.options, attributes=self._attributes())
        order = np.argsort(np.array([entry.position for entry in self.table.files]), kind="stable")
        with Journal(workspace / "journal", fingerprint=self._fingerprint(), samples=len(order)) as journal:
            offsets = reserved_offsets(data, content) if journal.resumed else None
            if offsets is None:
                journal.forget()
                offsets = create_pack(data, content)
            places = sample_places(self.table, self.plan, offsets)
            job = WriteJob(self.tree, self.table, self.plan, self.options, order, places, data, RetryPolicy())
            resumed = sum(journal.is_finished(position) for position in range(len(order)))
            packing = time.monotonic()
            with progress.step("pack", total=len(order), unit="images") as step:
                result = write_samples(job, journal, limits=_limits(self.slow), step=step, cancellation=cancellation)
            packing_s = time.monotonic() - packing
            plan, final, skipped = self._close_gaps(workspace, journal, order, places)
        self._publish(final, plan, skipped)
        return PackReport(
            path=self.out,
            encoding=plan.encoding,
            reason=plan.reason,
            samples={split.name: len(split.samples) for split in plan.splits},
            classes=self.table.classes,
            skipped=skipped,
            nbytes=self.out.stat().st_size,
            seconds=time.monotonic() - began,
            packing_s=packing_s,
            resumed=resumed,
            readers=result.readers,
            notes=(*self.tree.notes, *self.table.notes),
        )

    def _close_gaps(
        self, workspace: Path, journal: Journal, order: NDArray[np.int64], places: NDArray[np.int64]
    ) -> tuple[PackPlan, Path, tuple[str, ...]]:
        """The final plan and file, once samples that were left out are gone from it."""
        data = workspace / "data.h5"
        positions = sorted(journal.skipped)
        skipped = tuple(journal.skipped[position] for position in positions)
        if not positions:
            return self.plan, data, ()
        plan = without_samples(self.table, self.plan, order[positions])
        if not plan.splits:
            msg = f"None of the {len(self.table)} images in {self.tree.label} can be decoded. The first: {skipped[0]}"
            raise LayoutError(msg)
        check_space(
            self.out.parent,
            plan.nbytes + _OVERHEAD_BYTES,
            f"The pack of '{self.tree.label}' without {len(skipped)} images",
        )
        final = workspace / "final.h5"
        copy_rows(
            self.table,
            plan,
            self.options,
            source=data,
            places=places,
            target=final,
            attributes=self._attributes(),
            skipped=skipped,
        )
        data.unlink()
        return plan, final, skipped

    def _publish(self, file: Path, plan: PackPlan, skipped: tuple[str, ...]) -> None:
        manifest = Manifest(
            size=file.stat().st_size,
            block_bytes=BLOCK_BYTES,
            hashes=make_hashes(file, threads=usable_cores()),
            key=self.key,
            identity=self.identity,
            samples={split.name: len(split.samples) for split in plan.splits},
            skipped=skipped,
            written_by=version("colabstage"),
        )
        # Without its manifest a pack does not count, so between these three steps there is either the old pack, or
        # none that anybody trusts.
        manifest_path(self.out).unlink(missing_ok=True)
        file.replace(self.out)
        write_manifest(self.out, manifest)


def _limits(slow: bool) -> PipelineLimits:
    cores = usable_cores()
    return PipelineLimits(readers=SLOW_READERS if slow else min(2, cores), max_readers=SLOW_READERS, workers=cores)

"""Writing a planned pack: beside its target, verified, then in its place."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import CancelledError, DriveDisconnectedError, LayoutError, SourceReadError
from colabstage.fileops import adopt_orphan, disown, hash_block, remove_any, sweep_orphans, temp_beside
from colabstage.h5.create import create_pack, reserved_offsets
from colabstage.h5.manifest import BLOCK_BYTES, Manifest, make_hashes, manifest_path, write_manifest
from colabstage.h5.names import FORMAT_VERSION
from colabstage.machine.resources import check_space, usable_cores
from colabstage.pack.compact import copy_rows, without_samples
from colabstage.pack.journal import Journal
from colabstage.pack.plan import PackPlan, pack_content, plan_pack, sample_places
from colabstage.pack.report import PackReport
from colabstage.pack.writer import MixedImagesError, WriteJob, write_samples
from colabstage.pipeline import PipelineLimits
from colabstage.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.pack.job import PackJob
    from colabstage.progress import Cancellation, Progress

# On a Drive mount, speed grows with the reads in flight up to about twenty, and falls off after thirty-two.
SLOW_READERS = 32
# File, journal and tables around the samples.
_OVERHEAD_BYTES = 4 * 1024 * 1024


def run_pack(
    job: PackJob,
    out: Path,
    *,
    slow: bool,
    progress: Progress,
    cancellation: Cancellation,
    key: str = "",
    identity: Mapping[str, Any] | None = None,
    address: str = "",
) -> PackReport:
    """Write a planned pack to `out`, replacing what stands there only at the very end.

    Args:
        job: the plan.
        out: the file to make, in a folder that exists.
        slow: whether the tree is known to answer slowly, so that many reads are started at once.
        progress, cancellation: where the work is shown, and how it is stopped.
        key, identity: what the manifest says of the source.
        address: what the file itself says of the source.

    Raises:
        As `pack_dataset`.
    """
    began = time.monotonic()
    origin = _Origin(key, dict(identity or {}), address or job.tree.label)
    try:
        return _PackRun(job, out, slow, origin).execute(progress, cancellation, began)
    except MixedImagesError as error:
        if job.options.encoding == "pixels":
            msg = f"These images cannot be stored as pixels: {error}."
            raise LayoutError(msg) from error
    # The few images that were looked at had one size and this one has not: what "auto" promises then is to keep
    # every image as it came.
    encoded = plan_pack(job.table, replace(job.options, encoding="encoded"), facts=(), free_bytes=None)
    plan = replace(encoded, reason="the images have many sizes, so they are kept as they came")
    return _PackRun(replace(job, plan=plan), out, slow, origin).execute(progress, cancellation, began)


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where the samples come from, as manifest and file say it."""

    key: str
    identity: dict[str, Any]
    address: str


@dataclass(frozen=True, slots=True)
class _PackRun:
    """One attempt to write one plan."""

    job: PackJob
    out: Path
    slow: bool
    origin: _Origin

    def execute(self, progress: Progress, cancellation: Cancellation, began: float) -> PackReport:
        """Write beside, then publish; what a passing failure leaves is kept for the next try."""
        workspace = temp_beside(self.out)
        adopted = adopt_orphan(self.out, workspace)
        try:
            sweep_orphans(self.out.parent, name=self.out.name)
            if not adopted:
                check_space(
                    self.out.parent, self.job.plan.nbytes + _OVERHEAD_BYTES, f"The pack of '{self.job.tree.label}'"
                )
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
        return {
            "source": self.origin.address,
            "encoding": self.job.plan.encoding,
            "encoding_reason": self.job.plan.reason,
        }

    def _fingerprint(self) -> str:
        listing = "\n".join(f"{entry.name}\t{entry.size}\t{entry.mtime_ns}" for entry in self.job.table.files)
        return f"{FORMAT_VERSION}-{self.job.options.fingerprint()}-{self.job.plan.encoding}-{hash_block(listing.encode(errors='surrogateescape'))}"

    def _fill(self, workspace: Path, progress: Progress, cancellation: Cancellation, began: float) -> PackReport:
        data = workspace / "data.h5"
        content = pack_content(self.job.table, self.job.plan, self.job.options, attributes=self._attributes())
        order = np.argsort(np.array([entry.position for entry in self.job.table.files]), kind="stable")
        with Journal(workspace / "journal", fingerprint=self._fingerprint(), samples=len(order)) as journal:
            offsets = reserved_offsets(data, content) if journal.resumed else None
            if offsets is None:
                journal.forget()
                offsets = create_pack(data, content)
            places = sample_places(self.job.table, self.job.plan, offsets)
            job = WriteJob(
                self.job.tree, self.job.table, self.job.plan, self.job.options, order, places, data, RetryPolicy()
            )
            resumed = sum(journal.is_finished(position) for position in range(len(order)))
            packing = time.monotonic()
            with progress.step("pack", total=len(order), unit="images") as step:
                result = write_samples(
                    job, journal, limits=pipeline_limits(self.slow), step=step, cancellation=cancellation
                )
            packing_s = time.monotonic() - packing
            plan, final, skipped = self._close_gaps(workspace, journal, order, places)
        self._publish(final, plan, skipped)
        return PackReport(
            path=self.out,
            encoding=plan.encoding,
            reason=plan.reason,
            samples={split.name: len(split.samples) for split in plan.splits},
            classes=self.job.table.classes,
            skipped=skipped,
            nbytes=self.out.stat().st_size,
            seconds=time.monotonic() - began,
            packing_s=packing_s,
            resumed=resumed,
            readers=result.readers,
            notes=(*self.job.tree.notes, *self.job.table.notes),
        )

    def _close_gaps(
        self, workspace: Path, journal: Journal, order: NDArray[np.int64], places: NDArray[np.int64]
    ) -> tuple[PackPlan, Path, tuple[str, ...]]:
        """The final plan and file, once samples that were left out are gone from it."""
        data = workspace / "data.h5"
        positions = sorted(journal.skipped)
        skipped = tuple(journal.skipped[position] for position in positions)
        if not positions:
            return self.job.plan, data, ()
        plan = without_samples(self.job.table, self.job.plan, order[positions])
        if not plan.splits:
            msg = f"None of the {len(self.job.table)} images can be decoded. The first: {skipped[0]}"
            raise LayoutError(msg)
        check_space(
            self.out.parent,
            plan.nbytes + _OVERHEAD_BYTES,
            f"The pack of '{self.job.tree.label}' without {len(skipped)} images",
        )
        final = workspace / "final.h5"
        copy_rows(
            self.job.table,
            plan,
            self.job.options,
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
            key=self.origin.key,
            identity=self.origin.identity,
            samples={split.name: len(split.samples) for split in plan.splits},
            skipped=skipped,
            written_by=version("colabstage"),
        )
        # Without its manifest a pack does not count, so between these three steps there is either the old pack, or
        # none that anybody trusts.
        manifest_path(self.out).unlink(missing_ok=True)
        file.replace(self.out)
        write_manifest(self.out, manifest)


def pipeline_limits(slow: bool) -> PipelineLimits:
    """How wide the pipeline is on this machine, for a source that is known to answer slowly or not."""
    cores = usable_cores()
    return PipelineLimits(readers=SLOW_READERS if slow else min(2, cores), max_readers=SLOW_READERS, workers=cores)

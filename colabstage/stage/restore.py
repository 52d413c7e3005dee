"""`restore_file`: what `publish_file` has brought to a lasting place, back here; the newest version that is whole.

Which version that is cannot be told from names. A session that ended at a bad moment, or an upload that never did,
leaves a file without its manifest, or with bytes that are not those of the manifest. So every block is compared on its
way, and the version before it is taken where one is wrong.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import DamagedPackError, SourceNotFoundError, TargetExistsError
from colabstage.h5.manifest import damaged_blocks, manifest_path, read_manifest
from colabstage.io.files import make_folder, target_file
from colabstage.io.ownership import atomic_path, sweep_orphans
from colabstage.io.progress import cancellation_of, resolve_progress
from colabstage.io.retry import RetryPolicy
from colabstage.io.units import format_bytes
from colabstage.machine.drive import drive_root
from colabstage.machine.mounts import require_answer
from colabstage.machine.remount import run_with_one_remount
from colabstage.machine.resources import check_space, usable_cores
from colabstage.sources.copy import copy_blocks
from colabstage.sources.parse import absolute_path
from colabstage.stage.publish import previous_path

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.h5.manifest import Manifest
    from colabstage.io.progress import Progress


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What restoring did.

    `path`: where the file is now. `source`: the version that it was made from. `nbytes`: its length.
    `passed_over`: one sentence for each newer version that is not whole, empty where the newest is.
    """

    path: Path
    source: Path
    nbytes: int
    passed_over: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"'{self.path}' is '{self.source}' ({format_bytes(self.nbytes)}), compared block by block."
        return " ".join([text, *(f"Passed over: {reason}" for reason in self.passed_over)])


def restore_file(
    published: str | os.PathLike[str],
    to: str | os.PathLike[str] = ".",
    *,
    overwrite: bool = False,
    progress: bool | Progress = True,
) -> RestoreReport:
    """Bring the newest whole version of a file that `publish_file` wrote back from its lasting place.

    >>> restore_file("/content/drive/MyDrive/checkpoints/model.pt")  # doctest: +SKIP

    Args:
        published: the file as it was published. Where it is damaged, or not all there, `NAME.previous` is taken, and
            the report says why.
        to: the file to become, or a folder, in which it keeps its name: one that exists, or whose name ends in a slash.
        overwrite: replace a file there that has other bytes; one that has the same is left as it is.
        progress: `True` for a bar, `False` for silence, or a `Progress`.

    Raises:
        SourceNotFoundError: nothing has been published under that name.
        DamagedPackError: no version there is whole; the message says what is wrong with each.
        TargetExistsError: something else stands at `to` already.
        SourceReadError, DriveDisconnectedError: the place failed; another version is not taken for that.
        NewerFormatError: a newer colabstage wrote the manifest.
        NotEnoughSpaceError, TargetNotWritableError: the copy could not be written.

    Whatever is raised, nothing at `to` has changed.
    """
    newest, place = absolute_path(published), absolute_path(to)
    # What ends in a slash is a folder, there or not.
    where = f"{place}{os.sep}" if os.fspath(to).endswith(os.sep) else str(place)
    shown = resolve_progress(progress)
    return run_with_one_remount(
        lambda: _restore(newest, where, overwrite=overwrite, shown=shown),
        place=newest if drive_root(newest) is not None else place,
        touches=(newest, place),
    )


def _restore(newest: Path, to: str, *, overwrite: bool, shown: Progress) -> RestoreReport:
    require_answer(newest, to)
    versions = [newest, previous_path(newest)]
    found = [version for version in versions if version.is_file()]
    if not found:
        msg = f"There is neither '{newest}' nor '{versions[1].name}' beside it. Publish one with publish_file first."
        raise SourceNotFoundError(msg)
    target = target_file(to, newest.name)
    reasons: list[str] = []
    for version in found:
        manifest, problem = _vouched(version)
        if manifest is not None:
            try:
                _bring(version, manifest, target, shown, overwrite=overwrite)
            except DamagedPackError as error:
                problem = str(error)
            else:
                return RestoreReport(target, version, manifest.size, tuple(reasons))
        reasons.append(problem)
    msg = f"No version of '{newest}' is whole. {' '.join(reasons)}"
    raise DamagedPackError(msg)


def _vouched(version: Path) -> tuple[Manifest | None, str]:
    """The manifest that speaks of a file of this length, or what is wrong."""
    manifest = read_manifest(version)
    if manifest is None:
        return None, f"'{version}' has no whole manifest '{manifest_path(version).name}', so nothing vouches for it."
    size = version.stat().st_size
    if size != manifest.size:
        return None, f"'{version}' has {size:,} bytes of {manifest.size:,}."
    return manifest, ""


def _bring(version: Path, manifest: Manifest, target: Path, progress: Progress, *, overwrite: bool) -> None:
    if target.exists() and _is_the_same(target, manifest):
        return
    if target.is_dir() or (target.exists() and not overwrite):
        msg = f"'{target}' exists and is not '{version}'. Rename it, restore to another name, or pass overwrite=True."
        raise TargetExistsError(msg)
    make_folder(target.parent)
    sweep_orphans(target.parent, name=target.name)
    # A mounted Drive keeps what passes through it on the same disk.
    copies = 2 if drive_root(version) is not None else 1
    check_space(target.parent, copies * manifest.size, f"The copy of '{version.name}'")
    with (
        progress.step(f"restore {version.name}", total=manifest.size, unit="B") as step,
        atomic_path(target, replaces=lambda _: overwrite) as temp,
    ):
        copy_blocks(
            version,
            temp,
            size=manifest.size,
            block_bytes=manifest.block_bytes,
            expected=manifest.hashes,
            step=step,
            cancellation=cancellation_of(progress),
            policy=RetryPolicy(),
        )


def _is_the_same(target: Path, manifest: Manifest) -> bool:
    if not target.is_file() or target.stat().st_size != manifest.size:
        return False
    return not damaged_blocks(target, manifest, threads=usable_cores())

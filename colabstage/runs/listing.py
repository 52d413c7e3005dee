"""The runs that a folder holds, and the versions of each: their names, their order, and which of them may go.

A version is named by the session that wrote it, the number of the save in this session, and the step that it holds.
Each session of a run has a higher number than all before it, so what a machine writes that another one has taken over
from sorts before everything that is newer. No two saves share a name, so nothing is ever replaced.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import OptionError, SourceNotFoundError, TargetExistsError
from colabstage.h5.manifest import manifest_path, read_manifest
from colabstage.io.arguments import absolute_path
from colabstage.io.boundary import public
from colabstage.io.report import COLOURS, INK, MUTED, Report, ResultList, Row, Table, new_figure, plain_axes
from colabstage.io.units import format_bytes, format_count, listed
from colabstage.io.workspace import owner_is_alive
from colabstage.machine.mounts import require_drive, run_watched
from colabstage.runs.lease import SILENT_S, Lease, read_lease

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

# What may be a version, under its own name or another.
COPY = re.compile(r"[^.].*?save-\d{4,}-step-\d{8,}.*")
_NAME = re.compile(r"session-(\d{4,})-save-(\d{4,})-step-(\d{8,})\.pt(?:\.json)?")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of a run; later ones are greater."""

    session: int
    """Number of the session that wrote it, from 1."""
    save: int
    """Number of the save in this session, from 1. A save that failed has a number, too."""
    step: int

    @property
    def name(self) -> str:
        return f"session-{self.session:04}-save-{self.save:04}-step-{self.step:08}.pt"


def list_versions(folder: Path, noted: Iterable[str] = ()) -> list[Version]:
    """Return the versions in a folder, the newest first. One that is not complete has its file or its manifest only.

    `noted`: names of files that may be there although the folder's listing is older, as on a mounted Drive.
    """
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    names |= {name for name in noted if name not in names and (folder / name).is_file()}
    found = {Version(*map(int, match.groups())) for name in names if (match := _NAME.fullmatch(name)) is not None}
    return sorted(found, reverse=True)


@dataclass(frozen=True, slots=True)
class RunVersion:
    """A version of a run, judged by names and lengths; its bytes are compared when it is restored."""

    name: str
    session: int
    step: int
    nbytes: int
    saved: float
    """In seconds since 1970."""
    complete: bool
    """Whether its manifest exists and states its length."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RunFacts(Report):
    """A run in a folder."""

    folder: Path
    session: int
    """Number of the last session, from 1."""
    epoch: int
    step: int
    state: str
    """`"training"`, `"ended"`, or `"silent"` when it has given no sign of life and has not left."""
    host: str
    """Where the last session ran."""
    versions: tuple[RunVersion, ...]


@public(reads=("folder",))
def list_runs(folder: str | os.PathLike[str]) -> ResultList[RunFacts]:
    """Return the run in a folder, or the runs in the folders in it, by name; they print as a table. Nothing is changed.

    Args:
        folder: as `resumable` gets it, or a folder with several of these.

    Returns:
        A `RunFacts` for each run, by name: session, epoch, step, state, and its versions, the newest first. Empty if
        there are none.

    Raises:
        SourceNotFoundError: there is no such folder.
        DriveNotMountedError: it is on Drive, and none is mounted there.
    """
    place = absolute_path(folder, "folder")
    require_drive(place)

    def report(runs: Sequence[RunFacts]) -> Report:
        rows = (
            Row(
                (one.folder.name, one.state, *map(str, (one.session, one.epoch, one.step)), one.host),
                below="; ".join("{0}, {2}, {3}".format(*_row(version).cells) for version in one.versions),
            )
            for one in runs
        )
        table = Table(tuple(rows), ("run", "state", "session", "epoch", "step", "host"), frozenset({2, 3, 4}))
        return Report(f"{format_count(len(runs), 'runs')} in '{place}'", (table,))

    return ResultList(run_watched(lambda: list(_runs_in(place)), place), report)


def _runs_in(place: Path) -> Iterator[RunFacts]:
    if not place.is_dir():
        msg = f"There is no folder '{place}'; expected one that resumable() saves to, or one that holds several."
        raise SourceNotFoundError(msg)
    for folder in [place, *sorted(entry for entry in place.iterdir() if entry.is_dir())]:
        versions = list_versions(folder)
        lease = None
        with contextlib.suppress(TargetExistsError, IsADirectoryError):  # other programs have a run.json as well
            lease = read_lease(folder)
        if lease is None and not versions:
            continue
        lease = lease or Lease(versions[0].session, "", "?", 0.0, 0.0, ended=True)
        found, state = tuple(_facts_of(folder, version) for version in versions), _state_of(lease)
        yield RunFacts(
            headline=f"{folder}: session {lease.session} on {lease.host}, {state}; epoch {lease.epoch}",
            tables=(Table(tuple(map(_row, found)), ("version", "step", "size", "saved"), frozenset({1, 2})),),
            folder=folder,
            session=lease.session,
            epoch=lease.epoch,
            step=lease.step,
            state=state,
            host=lease.host,
            versions=found,
        )


def _row(version: RunVersion) -> Row:
    name = version.name if version.complete else f"{version.name} (not complete)"
    saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(version.saved))
    return Row((name, f"{version.step:,}", format_bytes(version.nbytes), saved))


def _state_of(lease: Lease) -> str:
    if lease.ended:
        return "ended"
    alive = owner_is_alive(lease.owner)
    return "training" if alive or (alive is None and time.time() - lease.beat < SILENT_S) else "silent"


def _facts_of(folder: Path, version: Version) -> RunVersion:
    file = folder / version.name
    # A kill may leave a manifest alone.
    there = file.is_file()
    facts, manifest = (file if there else manifest_path(file)).stat(), read_manifest(file)
    nbytes = facts.st_size if there else 0
    complete = there and manifest is not None and manifest.size == nbytes
    return RunVersion(version.name, version.session, version.step, nbytes, facts.st_mtime, complete)


# The columns of every history row.
PLACES = ("session", "epoch", "step", "time")


def plot_history(history: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Figure:
    """Draw columns of a history over the steps, one below the other, with a dashed line where a session began."""
    columns = list(dict.fromkeys(name for row in history for name in row if name not in PLACES))
    if unknown := [name for name in names if name not in columns]:
        msg = f"The history has no column {unknown[0]!r}; it has {listed(columns) or 'no rows yet'}."
        raise OptionError(msg)
    shown = list(names) or columns
    figure = new_figure(8, 2.2 * max(1, len(shown)))
    # A version's history ends where it was saved, which is where the session that restored it began.
    begins = [before["step"] for before, row in itertools.pairwise(history) if row["session"] != before["session"]]
    axes = figure.subplots(max(1, len(shown)), sharex=True, squeeze=False)[:, 0]
    for axis, name in zip(axes, shown, strict=False):
        rows = [row for row in history if name in row]
        steps, values = [row["step"] for row in rows], [row[name] for row in rows]
        axis.plot(steps, values, marker="." if len(rows) < 50 else None, color=COLOURS["accent"])
        axis.set_ylabel(name, color=INK)
        plain_axes(axis)
        for step in begins:
            axis.axvline(step, linestyle="--", linewidth=1, color=MUTED)
    axes[-1].set_xlabel("step", color=INK)
    return figure

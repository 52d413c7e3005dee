"""`doctor`: what is wrong with this machine, or with the location of a dataset, and what to do about it.

Each check is a pure function from facts to a verdict. Its docstring is the remedy that the user reads if the verdict is
not `ok`, so it is addressed to the user and begins with what to do.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from colabstage.diagnose.machine_facts import MachineFacts, inspect_machine
from colabstage.io.arguments import absolute_path, check_argument
from colabstage.io.boundary import NOTHING_DONE, public
from colabstage.io.packages import ACCELERATORS
from colabstage.io.report import Report, Row, Status, Table
from colabstage.io.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


_GB = 1_000_000_000
# Less than this is used up by the first archive, or by a notebook's own downloads.
_LITTLE_DISK_BYTES = 5 * _GB
_NO_DISK_BYTES = 1 * _GB
# A healthy Drive mount answers in tenths of a second; after two seconds its client is busy with something else.
_SLOW_ANSWER_S = 2.0
# More than this is used by a desktop or an earlier kernel; on an unused GPU the driver holds a few hundred MB.
_BUSY = 0.1
_HELD_PART = 0.2
# Lower bounds of pyproject.toml.
OLDEST = {"numpy": "1.26", "h5py": "3.12", "torch": "2.4"}


@dataclass(frozen=True, slots=True)
class Finding:
    status: Status
    """`ok`; `warn`, it works but is slow or risky; `fail`, it does not work; `skip`, there was nothing to check."""
    message: str
    remedy: str = ""
    """What to do about it; empty if there is nothing to do. A check gives one if it differs from its general advice."""
    title: str = ""


def judge_platform(facts: MachineFacts) -> Finding:
    """Run it on Linux, with a folder on the machine's own disk that can be written to; another one is named with
    local_dir=… or the variable COLABSTAGE_LOCAL_DIR. Elsewhere reading falls back to slower ways."""
    what, fast = f"{facts.title}, Python {facts.python} on {facts.system}", facts.fast_dir
    if facts.fast_dir_problem is not None:
        return Finding("fail", f"{what}; nothing can be written to '{fast}': {facts.fast_dir_problem}")
    if facts.fast_dir_mount is not None:
        return Finding("warn", f"{what}; datasets are staged to '{fast}', which is {facts.fast_dir_mount}")
    return Finding("ok" if facts.system == "linux" else "warn", f"{what}; datasets are staged to '{fast}'")


def judge_disk(facts: MachineFacts) -> Finding:
    """Free some of the local disk: `colabstage cache purge` removes datasets that are staged here, `colabstage plan`
    says what one needs, and with disk_limit=… stage_dataset and dataset_h5 keep only a part of it here. Drive's client
    has a copy of all that was read through the mount: call flush_drive(remount=False), delete
    /root/.config/Google/DriveFS, and mount again. On Colab, 'Runtime, Disconnect and delete runtime' gives a fresh
    disk."""
    free = facts.free_bytes
    if free is None:
        return Finding("fail", f"The disk of '{facts.fast_dir}' does not say how much of it is free.")
    line = f"{format_bytes(free)} free where datasets are staged ('{facts.fast_dir}')"
    if free < _NO_DISK_BYTES:
        return Finding("fail", f"Only {line}.")
    return Finding("warn" if free < _LITTLE_DISK_BYTES else "ok", f"{line}.")


def judge_mount(facts: MachineFacts) -> Finding:
    """Mount it again: on Colab, mount_drive() starts a new client, which takes up what the old one had not uploaded.
    A mount that only takes long may be busy: wait a minute, then look again. Stage the dataset (stage_dataset) so that
    training does not depend on the mount."""
    if not facts.mounts:
        return Finding("skip", "Nothing is mounted here over a network or by a user-space client.")
    broken = [mount for mount in facts.mounts if mount.state != "alive"]
    if broken:
        line = "; ".join(
            f"'{mount.mountpoint}' ({mount.kind}): {mount.reason}, after {format_duration(mount.seconds)}"
            for mount in broken
        )
        return Finding("fail", f"{line}.")
    # One figure for all mounts: with ten mounts, the slow one is of interest.
    slowest = max(facts.mounts, key=lambda mount: mount.seconds)
    count = format_count(len(facts.mounts), "mounts")
    line = f"{count} answered, the slowest ('{slowest.mountpoint}', {slowest.kind}) after "
    return Finding("warn" if slowest.seconds > _SLOW_ANSWER_S else "ok", f"{line}{format_duration(slowest.seconds)}.")


def judge_current_folder(facts: MachineFacts) -> Finding:
    """Leave it: os.chdir('/content'). When the client behind a mount dies, every command of a notebook whose current
    folder is on it fails, even those that have nothing to do with it; and Drive cannot be flushed while it is used."""
    if facts.folder_mount is not None:
        return Finding("warn", f"The current folder '{facts.folder}' is on {facts.folder_mount}.")
    return Finding("ok", f"'{facts.folder}' is on a local disk.")


def judge_memory(facts: MachineFacts) -> Finding:
    """Nothing has to fit: make_loader reads the rows of files larger than memory from the disk, many at once. To make
    it fit, pack smaller images (image_size=…), keep them encoded (encoding="encoded"), or choose a machine with
    more memory. in_memory=True and strategy="memory" are refused where they do not fit."""
    free = facts.free_memory_bytes
    line = f"{format_bytes(free)} of {format_bytes(facts.memory_bytes)} free."
    return Finding("ok" if free > _GB else "warn", line)


def judge_network_mount(facts: MachineFacts) -> Finding:
    """Stage it: stage_dataset(path) reads it once, and every epoch reads from the local disk. On Drive a folder with
    10,000 entries or more may fail with 'Input/output error': put a zip of it there instead."""
    data = facts.dataset
    if data is None:
        return Finding("skip", "No path was given.")
    # Before the mount is checked: a misspelt path is no reason to stage anything.
    if data.state == "missing":
        check = "Check the spelling, and the current folder where the path is a relative one."
        return Finding("fail", f"There is nothing at '{data.path}'. {data.instead}".rstrip(), check)
    if data.state == "unreachable":
        check = "Check its permissions, and the mount that it is on: the line 'mounts' says whether it answers."
        return Finding("fail", f"'{data.path}' could not be looked at: {data.problem}.", check)
    if data.slow_mount is None:
        return Finding("ok", f"'{data.path}' is on a local disk.")
    # It costs time and breaks nothing: this is what people stage.
    return Finding("warn", f"'{data.path}' is on {data.slow_mount}.")


def judge_libraries(facts: MachineFacts) -> Finding:
    """Install newer ones: pip install -U "numpy>=1.26" "h5py>=3.12" "torch>=2.4", then restart the session. torch may
    be missing where Keras or TensorFlow trains."""
    versions = facts.versions
    line = ", ".join(f"{name} {versions.get(name) or 'missing'}" for name in OLDEST)
    old = [name for name, least in OLDEST.items() if (have := versions.get(name)) and numbers(have) < numbers(least)]
    # Packing, staging and training with Keras work without torch.
    lost = [name for name in OLDEST if name != "torch" and versions.get(name) is None]
    if old or lost:
        wanted = ", ".join(f"{name} {OLDEST[name]} or newer" for name in [*old, *lost])
        return Finding("fail", f"{line}; needed: {wanted}.")
    slower = [name for name in ACCELERATORS if name in versions and versions[name] is None]
    if slower:
        why = "; without ".join(f"{name}, {ACCELERATORS[name]}" for name in slower)
        return Finding("warn", f"{line}. Without {why}.", f"Install with: pip install {' '.join(slower)}")
    return Finding("ok", f"{line}.")


def judge_gpu(facts: MachineFacts) -> Finding:
    """Choose one: on Colab under 'Runtime, Change runtime type', on Kaggle under 'Settings, Accelerator'."""
    if not facts.gpus:
        # On Colab a GPU is one menu away, and often forgotten; other machines either have one or not.
        chosen_by_person = facts.platform in {"colab", "kaggle"}
        return Finding("warn" if chosen_by_person else "skip", facts.gpu_problem or "There is no NVIDIA GPU here.")
    names = ", ".join(f"{one.name} ({format_bytes(one.memory_total_bytes or 0)})" for one in facts.gpus)
    # By the version string, because importing torch takes seconds.
    torch = facts.versions.get("torch") or ""
    if torch.endswith("+cpu"):
        again = "Replace it: pip install -U torch --force-reinstall"
        return Finding("fail", f"{names}, but torch {torch} was built for CPUs only.", again)
    # Memory used by this notebook itself is not a problem.
    others = [one for one in facts.gpus if all(process.pid != facts.pid for process in one.processes)]
    full = [one for one in others if (one.memory_used_bytes or 0) > _HELD_PART * (one.memory_total_bytes or math.inf)]
    busy = [one for one in facts.gpus if (one.utilisation or 0) > _BUSY or one in full]
    if busy:
        used = (
            f"GPU {one.index} {one.utilisation or 0:.0%} busy, {format_bytes(one.memory_used_bytes or 0)} held"
            for one in busy
        )
        who = "`nvidia-smi` lists the processes; on Colab end an earlier notebook under 'Runtime, Manage sessions'."
        return Finding("warn", f"{names}; in use already: {', '.join(used)}.", who)
    return Finding("ok", f"{names}, idle.")


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version.

    >>> numbers("2.11.0+cpu") < numbers("2.4")
    False
    """
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


# The checks by title, in the order of the report.
CHECKS: dict[str, Callable[[MachineFacts], Finding]] = {
    "platform": judge_platform,
    "disk": judge_disk,
    "mounts": judge_mount,
    "current folder": judge_current_folder,
    "libraries": judge_libraries,
    "memory": judge_memory,
    "GPU": judge_gpu,
    "location": judge_network_mount,
}


@dataclass(frozen=True, kw_only=True, repr=False)
class DoctorReport(Report):
    """The findings of `doctor`. Prints as text, and as a table in a notebook."""

    findings: tuple[Finding, ...]
    facts: MachineFacts

    @classmethod
    def from_facts(cls, facts: MachineFacts) -> Self:
        findings = []
        for title, check in CHECKS.items():
            found = check(facts)
            # A remedy beside a good finding would look like a problem.
            needed = found.status in {"warn", "fail"}
            remedy = (found.remedy or " ".join((check.__doc__ or "").split())) if needed else ""
            findings.append(replace(found, title=title, remedy=remedy))
        statuses = [one.status for one in findings]
        fine = statuses.count("ok")
        bad = [(statuses.count("fail"), "problems"), (statuses.count("warn"), "warnings")]
        counted = " and ".join(format_count(count, nouns) for count, nouns in bad if count)
        return cls(
            headline=f"{counted}; {fine} fine." if counted else f"All {fine} checks passed.",
            tables=(Table(tuple(Row((one.title, one.message), one.remedy, one.status) for one in findings)),),
            findings=tuple(findings),
            facts=facts,
        )

    @property
    def exit_code(self) -> int:
        """Return the exit code of `colabstage doctor`: 0 if nothing is broken (there may be warnings), 1 otherwise."""
        return int(any(finding.status == "fail" for finding in self.findings))


@public(reads=("path",), stopped=NOTHING_DONE)
def doctor(
    path: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 10.0,
) -> DoctorReport:
    """Find problems here: the platform, the disk, the mounts, the versions, the GPU, and a dataset's location.

    It changes nothing. A mount that hangs costs no more than the deadline, because a child process checks it.

    Args:
        path: a dataset: a folder, an archive or an HDF5 file. `None` checks only the machine.
        timeout_s: seconds that each examination may take; they run in parallel.

    Returns:
        The findings, which `print` and notebooks show. `.exit_code` is 1 if something is broken.

    Raises:
        OptionError: `timeout_s` is not above 0; `path` is an address.

    >>> report = doctor("photos.zip")  # doctest: +SKIP
    >>> [finding.title for finding in report.findings if finding.status == "fail"]  # doctest: +SKIP
    []
    """
    # Before anything is examined, which takes up to the deadline.
    check_argument("timeout_s", timeout_s, "above zero")
    # As a path it would not be found, and the advice would be to check the spelling.
    if path is not None:
        check_argument("path", path, "path", remedy="Of what stage_dataset returns pass its .path.")
        remedy = (
            "plan_stage says of an address how large it is and whether it fits (in a shell: colabstage plan ADDRESS), "
            "and doctor without a path looks at the machine"
        )
        path = absolute_path(path, instead=remedy)
    facts = inspect_machine(path, timeout_s=timeout_s)
    return DoctorReport.from_facts(facts)

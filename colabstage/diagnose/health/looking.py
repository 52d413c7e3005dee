"""A first look at a dataset's path, in a process of its own: a path on a mount that hangs takes whoever touches it.

Run as a program: the path and the seconds that counting files may take; prints `DatasetFacts` as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from colabstage.diagnose.health.facts import DatasetFacts, PackFacts
from colabstage.errors import ColabstageError
from colabstage.fileops import read_json
from colabstage.machine.mounts import mount_of, slow_reason

_HDF5_MARK = b"\x89HDF\r\n\x1a\n"
_HDF5_SUFFIXES = {".h5", ".hdf5"}
_END_S = 1.0
# Of the deadline: the rest is for starting the process and for its answer.
_COUNTING_PART = 0.5


def look_at_dataset(path: Path, *, timeout_s: float) -> DatasetFacts:
    """Look at a path from a child process; never takes much longer than `timeout_s` seconds.

    Args:
        path: absolute.
        timeout_s: after so many seconds the child is ended, and the path is `unreachable`.
    """
    root = str(Path(__file__).parents[3])
    places = [place for place in (root, os.environ.get("PYTHONPATH")) if place]
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, os.fspath(path), str(timeout_s * _COUNTING_PART)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    try:
        answer, complaint = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return _unreachable(path, "no answer before the deadline")
    finally:
        _end_child(child)
    if child.returncode:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        return _unreachable(path, last[0] if last else f"exit code {child.returncode}")
    return dataset_from_json(json.loads(answer))


def dataset_from_json(raw: dict[str, Any]) -> DatasetFacts:
    """What `dataclasses.asdict` made JSON of."""
    pack = raw.pop("pack")
    return DatasetFacts(**raw, pack=None if pack is None else PackFacts(**pack))


def _unreachable(path: Path, why: str) -> DatasetFacts:
    return DatasetFacts(str(path), "unreachable", slow_mount=slow_reason(mount_of(path)), problem=why)


def _end_child(child: subprocess.Popen[bytes]) -> None:
    """Kill the child if it still runs. One that hangs in the kernel for good is left to the kernel."""
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_S)


def look_here(path: Path, *, counting_s: float) -> DatasetFacts:
    """Look at a path from this process; takes as long as its mount does."""
    slow = slow_reason(mount_of(path))
    facts = DatasetFacts(str(path), "missing", slow_mount=slow)
    try:
        if path.is_dir():
            return _look_at_folder(replace(facts, state="folder"), path, counting_s)
        if not path.exists():
            return facts
        facts = replace(facts, state="file", nbytes=path.stat().st_size, files=1)
        facts = replace(facts, resident=None if slow else _resident_part(path))
        return _look_at_pack(facts, path) if _is_hdf5(path) else facts
    except OSError as error:
        return replace(facts, state="unreachable", problem=error.strerror or str(error))


def _look_at_folder(facts: DatasetFacts, folder: Path, counting_s: float) -> DatasetFacts:
    """Count what is in a folder until the time is up."""
    deadline = time.monotonic() + counting_s
    nbytes = files = largest = 0
    todo, counted = [os.fspath(folder)], True
    while todo and counted:
        entries = 0
        with os.scandir(todo.pop()) as scan:
            for entry in scan:
                entries += 1
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif entry.is_file():
                    files += 1
                    nbytes += entry.stat().st_size
                if time.monotonic() > deadline:
                    counted = False
                    break
        largest = max(largest, entries)
    return replace(facts, nbytes=nbytes, files=files, largest_folder=largest, counted=counted)


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(len(_HDF5_MARK)) == _HDF5_MARK or path.suffix.lower() in _HDF5_SUFFIXES


def _resident_part(path: Path) -> float:
    import numpy as np

    from colabstage.load.reading.memory import resident_part

    if path.stat().st_size == 0:
        return 1.0
    return resident_part(np.memmap(path, np.uint8, "r"))


def _look_at_pack(facts: DatasetFacts, path: Path) -> DatasetFacts:
    from colabstage.fetch.record import file_seal
    from colabstage.h5.info import read_info
    from colabstage.h5.manifest import look_at_manifest
    from colabstage.load.reading.reader import SplitReader

    try:
        info = read_info(path)
        readers = [SplitReader(path, split) for split in info.splits]
        row_bytes = max(reader.estimate_row_bytes() for reader in readers)
    except ColabstageError as error:
        return replace(facts, problem=str(error))
    manifest = look_at_manifest(path, facts.nbytes)
    record = read_json(path.with_name("stage.json"))
    seal = record.get("seal") if isinstance(record, dict) else None
    pack = PackFacts(
        rows=sum(split.rows for split in info.splits.values()),
        row_bytes=row_bytes,
        ours=info.format_version is not None,
        manifest=manifest.state,
        manifest_detail=f"its manifest: {manifest.detail}",
        sealed=seal == file_seal(path) if seal else None,
    )
    for reader in readers:
        reader.close()
    return replace(facts, pack=pack)


def main() -> None:
    """Look at the path in the arguments and print what is there."""
    facts = look_here(Path(sys.argv[1]), counting_s=float(sys.argv[2]))
    sys.stdout.write(json.dumps(asdict(facts)))


if __name__ == "__main__":
    main()

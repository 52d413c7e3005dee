"""Is the advice of `profile_loader` worth following? Five published training loops, profiled, changed, and timed again.

    python -m benchmarks.advice [--seconds 6] [--loop NAME]

Each loop runs in a process of its own, over 192 images of 640x480 (JPEG or PNG): first as published, then with the
advice that may gain most. "At most" is the profile's bound, "gained" is timed without any profiling, the two loaders in
turn; the step sleeps for 4 ms, as the processor does while a GPU works. "Same" says whether the batches after a
profile, and the random numbers after them, are those of a run without one.

Ends with exit code 1 when a loop is not at least twice as fast, or differs. (Shuffling in tf.data moves on.)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._training_loops import NAMES, Loop, make_loop, step, write_images
from colabstage.diagnose.loaders import arrays_of, view_of


def batch_s(loader: Any, seconds: float) -> float:
    """Seconds from batch to batch of a plain training loop, over as many epochs as fit, without each one's start."""
    took, count = 0.0, 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or count < 4:
        marks = []
        for batch in _epoch(loader):
            step(batch)
            marks.append(time.perf_counter())
            if marks[-1] > deadline and len(marks) > 4:
                break
        took += marks[-1] - marks[0]
        count += len(marks) - 1
    return took / count


def _epoch(loader: Any) -> Any:
    return view_of(loader).start()


def seen(loop: Loop) -> str:
    """What an epoch and the rng after it look like, as one word."""
    digest = hashlib.sha256()
    for batch in _epoch(loop.loader):
        for array in arrays_of(batch):
            digest.update(np.ascontiguousarray(np.asarray(array)).tobytes())
    digest.update(repr((random.random(), np.random.random())).encode())  # noqa: NPY002 - what transforms use
    return digest.hexdigest()


def seed() -> None:
    """Every generator that loaders draw from."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - what transforms use
    for name in ("torch", "tensorflow"):
        module = sys.modules.get(name)
        if module is not None:
            (module.manual_seed if name == "torch" else module.random.set_seed)(1)


def run_loop(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Profile one loop, follow the first advice, and time both in turn."""
    from colabstage import profile_loader

    make_loop(name, folder)
    seed()
    without = seen(make_loop(name, folder))
    seed()
    loop = make_loop(name, folder)
    profile = profile_loader(loop.loader, step, restore=(), budget_s=seconds)
    same = seen(loop) == without
    advice = profile.advice[0]
    changed = loop.follow(advice)
    ratios = [batch_s(loop.loader, seconds / 4) / batch_s(changed, seconds / 4) for _ in range(3)]
    return {
        "loop": name,
        "verdict": f"{profile.verdict.bound} by {profile.verdict.stage}",
        "advice": advice.argument.replace(str(folder), "…"),
        "bound": advice.gain,
        "gained": statistics.median(ratios),
        "before_ms": 1000 * profile.batch_s,
        "same": same,
    }


def _in_child(name: str, folder: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.advice", "--loop", name, "--folder", folder, "--seconds", str(seconds)]
    variables = {
        "KERAS_BACKEND": "torch",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_HOME": folder,
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        return {"loop": name, "problem": done.stderr.strip().rpartition("\n")[2]}
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def is_kept(row: dict[str, Any]) -> bool:
    """Whether a loop's advice was worth following."""
    return bool((row["same"] or row["loop"] == "tf.data") and row["gained"] >= 2)


def main() -> int:
    """Measure and print; 1 when an advice was not worth it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--loop", choices=NAMES)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.folder:
        print(json.dumps(run_loop(options.loop, options.folder, options.seconds)))
        return 0
    with tempfile.TemporaryDirectory(prefix="advice-") as folder:
        write_images(Path(folder))
        rows = [_in_child(name, folder, options.seconds) for name in ([options.loop] if options.loop else NAMES)]
    print(f"{'loop':<20}{'verdict':<24}{'before':>10}{'at most':>10}{'gained':>8}  {'same':<5} advice")
    for row in rows:
        if "problem" in row:
            print(f"{row['loop']:<20}not measured: {row['problem']}")
            continue
        print(
            f"{row['loop']:<20}{row['verdict']:<24}{row['before_ms']:>7.1f} ms{row['bound']:>9.1f}x"
            f"{row['gained']:>7.1f}x  {'yes' if row['same'] else 'NO':<5} {row['advice']}"
        )
    missed = [row["loop"] for row in rows if "problem" in row or not is_kept(row)]
    if missed:
        print(f"Missed: {', '.join(missed)}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

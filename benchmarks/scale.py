"""A hundred thousand and a million samples: what planning, packing and opening take, and what grows with the number.

    python -m benchmarks.scale [--counts 100000 1000000] [--forms folder zip tar parquet] [--place FOLDER]

JPEGs of 8x8 pixels in ten classes, so small that what is measured is the work for each sample: as files in folders, in
a zip, in a tar, and in the rows of a parquet file. Each step runs once, in a process of its own, of which the largest
resident size is printed (`VmHWM`), and what it took of the processor, which other work hardly changes: planning opens
the source, finds the samples and decides how they are stored; packing is the whole call of `pack_dataset`; opening is
`dataset_h5` and its length, the first batch 64 rows from all over the file, both the quickest of nine, and the loader's
first batch is that of `make_loader`, shuffled, from its call on, once. At most 3 GB of disk are in use at a time, and
nothing is left.

Ends with exit code 1 when opening takes 20 ms, planning or packing a sample of the many takes 1.3 times as much of the
processor as one of the few, or a further sample 125 bytes of memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks._report import Promise, judge
from benchmarks._small_jpegs import tabulate_small_jpegs, tar_small_jpegs, write_small_jpegs, zip_small_jpegs

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE = 8
ALLOWED_GROWTH, OPEN_S = 1.3, 0.020
# A name of 19 bytes and 4 to find it; 17 for size, time and place, 18 for what a zip says besides; 56 for the label,
# the row, the order of reading and the place in the pack. The rest is what allocators keep.
ALLOWED_BYTES_EACH = 125
# A million small files take minutes on a slow disk.
_STEP_S = 7200
FORMS = {
    "folder": ("", write_small_jpegs),
    "zip": (".zip", zip_small_jpegs),
    "tar": (".tar", tar_small_jpegs),
    "parquet": (".parquet", tabulate_small_jpegs),
}
_HELPERS = """
import json, os, sys, time

def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024

def cpu_s():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
"""
_PACK = """
from colabstage.pack.run import pack_dataset
start = time.perf_counter()
samples = sum(pack_dataset(sys.argv[1], sys.argv[2], encoding="pixels", progress=False).samples.values())
found = {"samples": samples, "seconds": time.perf_counter() - start, "cpu_s": cpu_s(), "peak_bytes": peak()}
"""
_OPEN = """
import numpy as np
from colabstage import dataset_h5, make_loader
opened, first = [], []
for _ in range(9):
    start = time.perf_counter()
    dataset = dataset_h5(sys.argv[1])
    rows = len(dataset)
    opened.append(time.perf_counter() - start)
    dataset.read_batch(np.linspace(0, rows - 1, 64).astype(int))
    first.append(time.perf_counter() - start)
start = time.perf_counter()
next(iter(make_loader(dataset, 64)))
loader = time.perf_counter() - start
found = {"rows": rows, "open_s": min(opened), "batch_s": min(first), "loader_s": loader}
"""
_PLAN = """
from pathlib import Path
from colabstage.pack.job import open_source, plan_job
from colabstage.pack.options import PackOptions
start = time.perf_counter()
with open_source(sys.argv[1], PackOptions(), beside=Path(sys.argv[2])) as opened:
    samples = len(plan_job(opened.tree, opened.find(), PackOptions(), free_bytes=None).table)
    seconds = time.perf_counter() - start
    found = {"samples": samples, "seconds": seconds, "cpu_s": cpu_s(), "peak_bytes": peak()}
"""


class Step(NamedTuple):
    """What planning or packing took in a fresh process: seconds by the clock and of all cores, which other work hardly
    changes, and the largest resident size (`VmHWM`, which starts anew with the program that runs)."""

    samples: int
    seconds: float
    cpu_s: float
    peak_bytes: int


class Opening(NamedTuple):
    """How a pack opens: until the rows of `train` are counted, and until 64 from all over the file are there, each the
    quickest of nine; and from `make_loader` to its first batch, shuffled, once, imports included."""

    rows: int
    open_s: float
    batch_s: float
    loader_s: float


def run_step(code: str, *paths: Path) -> dict[str, Any]:
    """Run one step in a process of its own, and return what it calls `found`.

    `code` has `peak()` and `cpu_s()`, those of its process, and the paths as its arguments.
    """
    command = [sys.executable, "-c", f"{_HELPERS}\n{code}\nprint(json.dumps(found))", *map(str, paths)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_STEP_S)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def packing(source: Path, pack: Path) -> Step:
    """Pack to pixels in a process of its own."""
    return Step(**run_step(_PACK, source, pack))


def bytes_each(few: Step, many: Step) -> float:
    """How many bytes of memory each further image took."""
    return (many.peak_bytes - few.peak_bytes) / (many.samples - few.samples)


class Taken(NamedTuple):
    """What one form of so many samples took."""

    form: str
    """A key of `FORMS`."""
    samples: int
    """How many there are."""
    plan: Step
    """Of planning."""
    pack: Step
    """Of the whole call of `pack_dataset`."""
    opening: Opening
    """Of the pack."""

    def __str__(self) -> str:
        opening = self.opening
        steps = "".join(
            f"{one.seconds:>8.1f}{one.cpu_s:>8.1f}{one.peak_bytes / 2**20:>7,.0f}" for one in (self.plan, self.pack)
        )
        return (
            f"{self.form:<8}{self.samples:>10,}{steps}"
            f"{opening.open_s * 1000:>9.1f}{opening.batch_s * 1000:>9.1f}{opening.loader_s * 1000:>9.1f}"
        )


HEAD = (
    f"{'':8}{'samples':>10}{'plan s':>8}{'cpu s':>8}{'MiB':>7}{'pack s':>8}{'cpu s':>8}{'MiB':>7}"
    f"{'open ms':>9}{'batch ms':>9}{'loader ms':>10}"
)


def measure(form: str, count: int, place: Path | None) -> Taken:
    """Make the samples, plan, pack and open them, and remove all of it."""
    suffix, write = FORMS[form]
    with tempfile.TemporaryDirectory(prefix="scale-", dir=place) as name:
        source, pack = Path(name) / f"samples{suffix}", Path(name) / "pack" / "samples.h5"
        pack.parent.mkdir()
        write(source, count, side=SIDE)
        plan = Step(**run_step(_PLAN, source, pack))
        packed = packing(source, pack)
        if not plan.samples == packed.samples == count:
            sys.exit(f"{form}: {plan.samples:,} samples were planned and {packed.samples:,} packed of {count:,}")
        # Before the pack is opened, so that what is cached of the source does not take the memory.
        shutil.rmtree(source) if source.is_dir() else source.unlink()
        return Taken(form, count, plan, packed, Opening(**run_step(_OPEN, pack)))


def promised(few: Taken, many: Taken) -> Iterator[Promise]:
    """What is promised of one form."""
    for step, less, more in (("plan", few.plan, many.plan), ("pack", few.pack, many.pack)):
        growth = more.cpu_s / many.samples / (less.cpu_s / few.samples)
        yield Promise(
            f"{many.form}, {step}: each of the many takes, times what each of the few does",
            growth,
            "at most",
            ALLOWED_GROWTH,
        )
        each = bytes_each(less, more)
        yield Promise(f"{many.form}, {step}: of memory, in bytes", each, "at most", ALLOWED_BYTES_EACH, 0)
    opened_ms = many.opening.open_s * 1000
    yield Promise(f"{many.form}: {many.samples:,} rows open in ms", opened_ms, "less than", OPEN_S * 1000, 1)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--counts", type=int, nargs=2, default=[100_000, 1_000_000], help="few and many")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="which sources")
    parser.add_argument("--place", type=Path, help="a folder with room for 3 GB; the temporary one by default")
    arguments = parser.parse_args()
    print(f"\n{HEAD}")
    promises: list[Promise] = []
    for form in arguments.forms:
        both = []
        for count in arguments.counts:
            both.append(measure(form, count, arguments.place))
            print(both[-1], flush=True)
        promises += promised(*both)
    return judge(promises)


if __name__ == "__main__":
    sys.exit(main())

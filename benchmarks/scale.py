"""A hundred thousand and a million samples: what planning, packing and opening take, and what grows with the number.

    python -m benchmarks.scale [--counts 100000 1000000] [--forms folder zip tar parquet] [--place FOLDER]

JPEGs of 8x8 pixels in ten classes, so small that what is measured is the work for each sample: as files in folders, in
a zip, in a tar, and in the rows of a parquet file. Each step runs once, in a process of its own, of which the largest
resident size is printed (`VmHWM`), and what it took of the processor, which other work hardly changes: planning opens
the source, finds the samples and decides how they are stored; packing is the whole call of `pack_dataset`; opening is
`dataset_h5` and its length, the first batch 64 rows from all over the file, both the quickest of nine, and the loader's
first batch is that of `make_loader`, shuffled, from its call on, once. The limit of packing a folder is below it: one
thread lists the same names, and opens, reads and closes each file, and nothing else. What of the growth is the file
system's own shows there. At most 3 GB of disk are in use at a time, and
nothing is left.

Ends with exit code 1 when opening takes 20 ms, planning or packing a sample of the many takes 1.3 times as much of the
processor as one of the few, or a further sample 125 bytes of memory.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks._report import against, show_machine
from benchmarks._small_jpegs import tabulate_small_jpegs, tar_small_jpegs, write_small_jpegs, zip_small_jpegs
from benchmarks.pack_memory import OPEN_S, Opening, PackMemory, bytes_each, opening, packing, run_step

SIDE = 8
ALLOWED_GROWTH, ALLOWED_BYTES_EACH = 1.3, 125
FORMS = {
    "folder": ("", write_small_jpegs),
    "zip": (".zip", zip_small_jpegs),
    "tar": (".tar", tar_small_jpegs),
    "parquet": (".parquet", tabulate_small_jpegs),
}
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
_BARE = """
start = time.perf_counter()
samples = 0
for folder in sorted(os.listdir(sys.argv[1])):
    place = os.path.join(sys.argv[1], folder)
    for name in sorted(os.listdir(place)):
        handle = os.open(f"{place}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        os.read(handle, 1 << 20)
        os.close(handle)
        samples += 1
found = {"samples": samples, "seconds": time.perf_counter() - start, "cpu_s": cpu_s(), "peak_bytes": peak()}
"""


class Taken(NamedTuple):
    """What one form of so many samples took."""

    form: str
    """A key of `FORMS`."""
    samples: int
    """How many there are."""
    plan: PackMemory
    """Of planning."""
    pack: PackMemory
    """Of the whole call of `pack_dataset`."""
    opening: Opening
    """Of the pack."""
    bare: PackMemory | None
    """Of opening, reading and closing each file of a folder; `None` for other forms."""

    def __str__(self) -> str:
        opening = self.opening
        steps = "".join(
            f"{one.seconds:>8.1f}{one.cpu_s:>8.1f}{one.peak_bytes / 2**20:>7,.0f}" for one in (self.plan, self.pack)
        )
        row = (
            f"{self.form:<8}{self.samples:>10,}{steps}"
            f"{opening.open_s * 1000:>9.1f}{opening.batch_s * 1000:>9.1f}{opening.loader_s * 1000:>9.1f}"
        )
        if self.bare is None:
            return row
        limit = "  limit: open, read and close each file"
        rates = [self.samples / one.seconds for one in (self.pack, self.bare)]
        return (
            f"{row}\n{limit:<41}{self.bare.seconds:>8.1f}{self.bare.cpu_s:>8.1f}{self.bare.peak_bytes / 2**20:>7,.0f}"
            f"   {rates[0]:,.0f} of {rates[1]:,.0f} files/s"
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
        plan = PackMemory(**run_step(_PLAN, source, pack))
        packed = packing(source, pack)
        if not plan.samples == packed.samples == count:
            sys.exit(f"{form}: {plan.samples:,} samples were planned and {packed.samples:,} packed of {count:,}")
        bare = PackMemory(**run_step(_BARE, source, pack)) if source.is_dir() else None
        # Before the pack is opened, so that what is cached of the source does not take the memory.
        shutil.rmtree(source) if source.is_dir() else source.unlink()
        return Taken(form, count, plan, packed, opening(pack), bare)


def judge(few: Taken, many: Taken) -> list[tuple[bool, str]]:
    """Each promise about one form: whether it holds, and the figures."""
    found = []
    for step, less, more in (("plan", few.plan, many.plan), ("pack", few.pack, many.pack)):
        growth = more.cpu_s / many.samples / (less.cpu_s / few.samples)
        each = bytes_each(less, more)
        words = (
            f"{many.form}, {step}: each of the many takes, times what each of the few does, "
            f"{against(growth, ALLOWED_GROWTH, 'at most')}, and of memory, in bytes, "
            f"{against(each, ALLOWED_BYTES_EACH, 'at most', 0)}"
        )
        found.append((growth <= ALLOWED_GROWTH and each <= ALLOWED_BYTES_EACH, words))
    opened = many.opening.open_s
    words = f"{many.form}: {many.samples:,} rows open in ms: {against(opened * 1000, OPEN_S * 1000, 'less than', 1)}"
    return [*found, (opened < OPEN_S, words)]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--counts", type=int, nargs=2, default=[100_000, 1_000_000], help="few and many")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="which sources")
    parser.add_argument("--place", type=Path, help="a folder with room for 3 GB; the temporary one by default")
    arguments = parser.parse_args()
    show_machine()
    print(f"\n{HEAD}")
    verdicts = []
    for form in arguments.forms:
        both = []
        for count in arguments.counts:
            both.append(measure(form, count, arguments.place))
            print(both[-1], flush=True)
        verdicts += judge(*both)
    print()
    for holds, words in verdicts:
        print(f"{'ok  ' if holds else 'MISS'} {words}")
    return 0 if all(holds for holds, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

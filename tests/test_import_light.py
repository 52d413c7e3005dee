"""`import colabstage` is cheap: it loads nothing heavy, and takes almost no time."""

import resource
import statistics
import subprocess
import sys

HEAVY = ("torch", "h5py", "numpy", "PIL", "fsspec", "ipywidgets", "tqdm", "rich", "typer")


def run_python(code: str) -> str:
    """Return what `code` prints in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


# Each part runs in a fork of one new interpreter, which has imported nothing itself.
_LOADED = """
import os, sys
for line in sys.argv[2:]:
    sys.stdout.flush()
    if not os.fork():
        exec(line)
        print(line, *({*sys.argv[1].split()} & {*sys.modules}), sep=",", flush=True)
        os._exit(0)
    os.wait()
"""


def seconds_of(code: str) -> float:
    """Seconds of a processor that a new interpreter takes for `code`, start included: others' work is not in them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_python(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# What a first call, and a process that is started many times, may load: only what it needs. Staging and packing read
# array files, but open HDF5 only if there is one. Processes that unpack do not load package metadata, which takes as
# long as everything else they load: one is started for every core.
LOADED = {
    "import colabstage; dir(colabstage); colabstage.ColabstageError; colabstage.__version__": set[str](),
    "import colabstage; colabstage.StagedDataset": set[str](),
    # Public modules need no import of their own.
    "import colabstage; colabstage.errors; colabstage.options; dir(colabstage).index('transforms')": {"numpy"},
    **{
        f"import colabstage.{module}": heavy
        for module, heavy in {
            "stage.run": {"numpy"},
            "stage.plan": {"numpy"},
            "pack.run": {"numpy"},
            "sources.fetching": {"numpy"},
            "h5.manifest": set[str](),
            "runs.listing": set[str](),
            "machine.drive": set[str](),
            "notebook.form": set[str](),
            "diagnose.machine_facts": set[str](),
        }.items()
    },
}
UNPACKS = ".".join(("import colabstage", "sources", "members"))


def test_a_part_loads_only_what_it_works_with() -> None:
    """Otherwise, imports would be half of a first call's time, and of a process that unpacks."""
    command = [sys.executable, "-c", _LOADED, " ".join([*HEAVY, "importlib.metadata"]), *LOADED, UNPACKS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = {line: set(heavy) for line, *heavy in (one.split(",") for one in done.stdout.splitlines())}
    assert found.pop(UNPACKS) == set()
    assert {line: heavy - {"importlib.metadata"} for line, heavy in found.items()} == LOADED


def test_the_import_takes_less_than_100_ms() -> None:
    """More than starting the interpreter, by turns with it."""
    run_python("import colabstage")
    more = [seconds_of("import colabstage") - seconds_of("pass") for _ in range(7)]
    assert statistics.median(more) < 0.1

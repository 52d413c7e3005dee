"""`import colabstage` is cheap: nothing heavy is loaded, and next to no time goes by."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "h5py", "numpy", "PIL", "fsspec", "ipywidgets", "tqdm", "rich", "typer")


def run_python(code: str) -> str:
    """What `code` prints in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def heavy_after(code: str) -> set[str]:
    """Which heavy packages a new interpreter has loaded after `code`."""
    return set(run_python(f"import sys\n{code}\nprint(*({{*{HEAVY}}} & {{*sys.modules}}))").split())


def seconds_of(code: str) -> float:
    """Seconds that a new interpreter takes for `code`, start included: the median of seven."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        run_python(code)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def test_nothing_heavy_is_loaded() -> None:
    """The import, and asking for the names that there are, load none of the heavy packages."""
    assert (
        heavy_after("import colabstage; dir(colabstage); colabstage.ColabstageError; colabstage.__version__") == set()
    )


def test_what_staging_returns_is_light() -> None:
    """The class of a staged dataset, and with it the options of loaders, load none of them either."""
    assert heavy_after("import colabstage; colabstage.StagedDataset") == set()


# What a first call, and a process that is started many times, may load: the least that it works with. Staging and
# packing read files of arrays, but open HDF5 only where there is one.
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("stage.run", {"numpy"}),
        ("stage.plan", {"numpy"}),
        ("pack.run", {"numpy"}),
        ("sources.fetching", {"numpy"}),
        ("h5.verify", set()),
        ("runs.listing", set()),
        ("machine.drive", set()),
        ("notebook.form", set()),
        ("diagnose.machine_facts", set()),
        ("sources.members", set()),
    ],
)
def test_a_part_loads_only_what_it_works_with(module: str, heavy: set[str]) -> None:
    """Half of the time of a first call, and of a process that unpacks, would be imports otherwise."""
    assert heavy_after(f"import colabstage.{module}") == heavy


def test_a_process_that_unpacks_loads_no_descriptions_of_packages() -> None:
    """They take as long as all else that it loads; one of them is started for every core."""
    code = "import sys, colabstage.sources.members; print('importlib.metadata' in sys.modules)"
    assert run_python(code) == "False"


@pytest.mark.alone
def test_the_import_takes_less_than_100_ms() -> None:
    """It takes under 100 ms more than starting the interpreter."""
    assert seconds_of("import colabstage") - seconds_of("pass") < 0.1

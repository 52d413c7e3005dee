"""Functions are identified by the content of everything they can access, in this process and in any other."""

import enum
import functools
import itertools
import pickle
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage.options import PackOptions, folders, table_rows


def digest(function: Callable[..., Any]) -> str:
    options = PackOptions(prepare=function)
    assert options.incomparable == ()
    return options.fingerprint()


def holding(value: Any) -> Callable[[Any], Any]:
    return lambda x: (x, value)


class Kind(enum.Enum):
    A = 1
    B = 2


@dataclass
class Settings:
    size: int = 3
    names: list[str] = field(default_factory=list)
    kind: Kind = Kind.A


class Scaler:
    def __init__(self, options: Settings) -> None:
        self.options = options
        self.pattern = re.compile("a+")

    @property
    def half(self) -> float:
        return self.options.size / 2

    @functools.cached_property
    def double(self) -> int:
        return self.options.size * 2

    @functools.lru_cache(maxsize=4)  # noqa: B019 - its cache is what is looked at
    def slow(self, x: int) -> int:
        return x

    def __call__(self, x: Any) -> Any:
        return x * self.half

    def other(self, x: Any) -> Any:
        return x * self.double


LINES = itertools.count()
SAME_AND_OTHER: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "an array": (lambda: holding(np.arange(9_000)), lambda: holding(np.arange(9_000)[::-1])),
    "an array's dtype": (lambda: holding(np.zeros(4, "i4")), lambda: holding(np.zeros(4, "u4"))),
    "an array of objects": (
        lambda: holding(np.array(["a", None], object)),
        lambda: holding(np.array(["b", None], object)),
    ),
    "a type": (lambda: holding(1), lambda: holding(1.0)),
    "a set": (lambda: holding({"a", "b", "c"}), lambda: holding({"a", "b", "d"})),
    "a nested list": (lambda: holding([[1, [2]], {"a": (3,)}]), lambda: holding([[1, [2]], {"a": (4,)}])),
    "an object": (lambda: Scaler(Settings()), lambda: Scaler(Settings(size=4))),
    "an attribute's attribute": (lambda: Scaler(Settings(kind=Kind.A)), lambda: Scaler(Settings(kind=Kind.B))),
    "a method": (lambda: Scaler(Settings()).other, lambda: Scaler(Settings(names=["x"])).other),
    "a partial": (lambda: functools.partial(holding, value=1), lambda: functools.partial(holding, value=2)),
    "a random state": (lambda: holding(np.random.default_rng(1)), lambda: holding(np.random.default_rng(2))),
    "a function of a library": (lambda: np.mean, lambda: np.median),
    "code, on whatever line": (lambda: eval("\n" * next(LINES) + "lambda x: x + 1"), lambda: eval("lambda x: x + 2")),
    "a layout, as another process gets it": (
        lambda: pickle.loads(pickle.dumps(table_rows(["a"]))),
        lambda: table_rows(["b"]),
    ),
    "options of a layout": (lambda: folders(level=1), lambda: folders(level=-1)),
    "one built in": (lambda: len, lambda: abs),
    "a default": (lambda: eval("lambda x, y=1: x"), lambda: eval("lambda x, y=2: x")),
}


@pytest.mark.parametrize("name", SAME_AND_OTHER)
def test_what_it_holds_counts_by_content(name: str) -> None:
    """Equal values made separately are the same; a difference in one place makes another."""
    same, other = SAME_AND_OTHER[name]
    assert digest(same()) == digest(same())
    assert digest(same()) != digest(other())


def module_of(text: str) -> types.ModuleType:
    module = types.ModuleType("mine")
    exec(compile(text, "mine.py", "exec"), vars(module))
    return module


TEXT = """
import numpy as np
MEAN = {mean}
def helper(x):
    return x * {factor}
class Base:
    def run(self, x):
        return x - {base}
class Prepare(Base):
    def __call__(self, x):
        return self.run(helper(x)) - MEAN
def f(x):
    return [helper(one) for one in x]
def g(x):
    return Prepare()(x)
def recursive(x):
    return recursive(x - 1) if x else helper(x)
unused = {unused}
"""


def variant(**changes: object) -> types.ModuleType:
    return module_of(TEXT.format(**{"mean": "np.zeros(3)", "factor": 1, "base": 0, "unused": 0, **changes}))


@pytest.mark.parametrize(
    ("change", "affected"),
    [
        ({"mean": "np.ones(3)"}, {"g"}),
        ({"factor": 2}, {"f", "g", "recursive"}),
        ({"base": 5}, {"g"}),
        ({"unused": 5}, set()),
    ],
    ids=["a global array", "a helper", "a base class", "nothing that it names"],
)
def test_what_it_names_counts_and_nothing_else(change: dict[str, object], affected: set[str]) -> None:
    """The user's globals, helpers and classes, however indirect."""
    before, after = variant(), variant(**change)
    names = ("f", "g", "recursive")
    assert {name for name in names if digest(getattr(before, name)) != digest(getattr(after, name))} == affected


def test_another_process_says_the_same(tmp_path: Path) -> None:
    """A dataset's key must be found again on another day, so set order and memory addresses must not matter."""
    (tmp_path / "script.py").write_text(
        "import numpy as np, re\n"
        "from colabstage.options import PackOptions, table_rows\n"
        "NAMES = {'cat', 'dog', 'cow', 'hen'}\n"
        "class Prepare:\n"
        "    def __init__(self): self.table = np.arange(9); self.pattern = re.compile('x')\n"
        "    def __call__(self, x): return x if x in {'a', 'b', 'c'} or x in NAMES else np.clip(x, 0, 1)\n"
        "options = PackOptions(prepare=Prepare(), layout=table_rows(['a']))\n"
        "print(options.fingerprint(), options.incomparable)\n",
        encoding="utf-8",
    )
    said = {
        subprocess.run(
            [sys.executable, tmp_path / "script.py"], capture_output=True, check=True, timeout=60, text=True
        ).stdout
        for _ in range(2)
    }
    assert len(said) == 1
    assert said.pop().endswith(" ()\n")


def test_what_nobody_can_compare_is_named_and_never_the_same() -> None:
    """Locks, open files, generators: an interrupted run is not continued, and a key never matches."""
    lock = threading.Lock()

    def guarded(x: Any) -> Any:
        with lock:
            return x

    one, other = PackOptions(prepare=guarded), PackOptions(prepare=guarded)
    assert one.incomparable == ("_thread.lock",)
    assert one.fingerprint() == other.fingerprint()
    assert one.places_fingerprint() == one.places_fingerprint() != other.places_fingerprint()

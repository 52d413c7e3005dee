"""What `scripts/count_code.py` counts: modules and what they hold, and who meets how many of them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from scripts.count_code import ROOT, Counts, count_module, count_package, main, two_walks, walk

if TYPE_CHECKING:
    from pathlib import Path

MODULE = '''"""The head."""

# Why the number.
LIMIT = 3  # a comment beside code


@dataclass(frozen=True)
class Facts:
    """What is known."""

    size: int
    """In bytes."""


class Seam(typing.Protocol): ...


def outer(value):
    """Return something."""
    return _once(value) + _twice(value) + _twice(LIMIT)


def _once(value):
    """The value, or less."""
    return _once(value - 1) if value else 0


def _twice(value):
    return value
'''


def test_a_module_is_counted() -> None:
    """Docstrings are neither code nor comments, and a function's own call of itself is no caller."""
    found = count_module(MODULE)
    assert (found.modules, found.lines, found.short) == (1, len(MODULE.splitlines()), 1)
    assert (found.code_lines, found.comments) == (11, 2)
    assert (found.docstrings, found.begin_with_verb) == (2, 1)
    assert (found.called_once, found.records) == (1, 2)
    assert set(found.names) == {"Facts", "Seam", "outer", "_once", "_twice"}


def test_a_package_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    """Its sub-packages are counted apart; a name in two modules is counted once, as one that is there twice."""
    (tmp_path / "inner").mkdir()
    for name in ("one.py", "inner/two.py"):
        (tmp_path / name).write_text(MODULE)
    whole, parts = count_package(tmp_path)
    assert set(parts) == {"(root)", "inner"}
    assert (whole.modules, whole.comments) == (2, 4)
    assert [one.row()[-2] for one in (whole, *parts.values())] == ["5", "0", "0"]
    assert Counts().row()[0] == "0"


def test_a_walk_names_each_function_once(tmp_path: Path) -> None:
    """Coming back to a module for another function is a return, for the same one it is nothing."""
    made = dict[str, ModuleType]()
    for name, text in {
        "first": "def begin(second):\n    second.work()\n    second.work()\n    end()\ndef end(): pass\n",
        "second": "def work(): pass\n",
    }.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        made[name] = ModuleType(name)
        exec(compile(text, str(path), "exec"), vars(made[name]))
    before = sys.getprofile()
    found = walk(tmp_path, lambda: made["first"].begin(made["second"]))
    assert found.visits == ["first", "second", "first"]
    assert (found.modules, found.stays, found.returns) == ({"first", "second"}, 3, 1)
    assert sys.getprofile() is before


def test_what_an_import_runs_is_no_step_of_a_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default value made while a module is imported, in the middle of the work, is passed over; the work is not."""
    (tmp_path / "made_early.py").write_text("def make(): return []\n")
    (tmp_path / "walked_late.py").write_text(
        "from made_early import make\nDEFAULT = make()\ndef work(): return DEFAULT\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = walk(tmp_path, lambda: importlib.import_module("walked_late").work())
    assert found.visits == ["walked_late"]


def test_another_package_is_counted_without_walks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its table is printed; a folder without Python is refused."""
    (tmp_path / "one.py").write_text(MODULE)
    assert main([str(tmp_path)]) == 0
    assert tmp_path.name in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 1
    assert "There is no Python in" in capsys.readouterr().err


def test_a_name_is_defined_in_one_module_only() -> None:
    """Who searches the package for a function or class finds one, private ones too."""
    whole, _ = count_package(ROOT / "colabstage")
    assert not [name for name, modules in whole.names.items() if modules > 1]


@pytest.mark.torch
@pytest.mark.slow
def test_the_two_walks_are_walked(tmp_path: Path) -> None:
    """`stage_dataset` and `make_loader` are each traced through the modules of more than one package."""
    walks = two_walks(tmp_path)
    assert list(walks) == ["stage_dataset on a zip", "make_loader to its first batch"]
    for found in walks.values():
        assert len({module.split("/")[0] for module in found.visits}) > 1
        assert found.stays == len(set(found.visits)) + found.returns

"""The README's code runs as it stands, and what its badges and commands say is so."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.pages import README, ROOT, blocks, links
from tests.pictures import write_photos

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.torch
def test_the_python_examples_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block after the first, which is for Colab alone, runs with the names that those before it left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))
    write_photos(tmp_path / "photos")
    page = blocks(README, "python")
    assert [bool(block.why_not_run) for block in page] == [True, False]
    names: dict[str, object] = {}
    for block in page:
        block.run(names, {})
    assert "3, 64, 64])" in capsys.readouterr().out


def test_the_commands_are_targets() -> None:
    """Two of them, which the Makefile has; one of them runs this test."""
    lines = [line.split()[:2] for block in blocks(README, "bash") for line in block.code.splitlines()]
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert lines == [["make", "demo"], ["make", "test"]]
    assert {name for _, name in lines} <= {*targets}


def test_the_badges_tell_the_truth() -> None:
    """The Python versions and the licence are the package's own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    badges = ROOT / "docs" / "badges"
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    assert f"python: {' | '.join(versions)}<" in (badges / "python.svg").read_text(encoding="utf-8")
    assert f"licence: {project['license']}<" in (badges / "licence.svg").read_text(encoding="utf-8")


def test_every_notebook_is_linked() -> None:
    """From the README, from the page on notebooks, and from there into Colab."""
    names = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    page = links(README.parent / "docs" / "notebooks.md")
    colab = "https://colab.research.google.com/github/colabstage/colabstage/blob/main/"
    assert {link for link in links(README) if link.endswith(".ipynb") and "://" not in link} == names
    assert {link.removeprefix("../") for link in page if link.startswith("../notebooks/")} == names
    assert {link.removeprefix(colab) for link in page if link.startswith(colab)} == names

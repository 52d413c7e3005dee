"""The README's code runs as it stands, its figures are measured, and its other statements about the project are
true."""

import html
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.pages import README, ROOT, blocks, links
from tests.pictures import write_photos
from tests.support.archives import write_archive
from tests.support.colab import simulated_colab
from tests.support.images import read_tree

RESULTS = ROOT / "benchmarks" / "results"


def read_project() -> dict[str, Any]:
    """Read pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


@pytest.mark.torch
@pytest.mark.fuse
def test_the_first_cell_trains_from_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It mounts, stages a zip, and ends with a loss; afterwards the pack is on Drive."""
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))
    drive = SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick())
    write_photos(tmp_path / "photos")
    write_archive(drive.cloud / "MyDrive" / "photos.zip", read_tree(tmp_path / "photos"))
    places = {"/content/": f"{tmp_path}/content/", "mount_drive()": f'mount_drive("{tmp_path}/content/drive")'}
    names: dict[str, Any] = {}
    with simulated_colab(tmp_path, drive=drive):
        blocks(README, "python")[0].run(names, places)
        assert list((drive.cloud / "MyDrive/colabstage").glob("photos-*.h5"))
    assert re.search(r"^loss \d+\.\d{3}$", capsys.readouterr().out, re.MULTILINE)
    assert names["data"].splits == {"train": 40}


@pytest.mark.torch
def test_the_other_examples_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block after the first, which is for Colab, runs with the names that earlier ones left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))
    write_photos(tmp_path / "photos")
    page = blocks(README, "python")
    assert [bool(block.why_not_run) for block in page] == [False, False]
    names: dict[str, object] = {}
    for block in page[1:]:
        block.run(names, {})
    assert "3, 64, 64])" in capsys.readouterr().out


def test_the_film_is_of_the_same_cell() -> None:
    """`scripts/draw_cell.py` drew the cell above it, and it ends with a loss."""
    drawn = re.findall(r"<text[^>]*>(.*?)</text>", (ROOT / "docs" / "cell.svg").read_text("utf-8"))
    code = [line for line in blocks(README, "python")[0].code.splitlines() if not line.startswith("%")]
    assert [html.unescape(line) for line in drawn[: len(code)]] == code
    assert re.match(r"loss \d\.\d{3} ", drawn[-1])


def test_the_commands_are_targets() -> None:
    """The checkout's installation and two of the Makefile's targets, one of which runs this test."""
    lines = [line.split("#")[0].split() for block in blocks(README, "bash") for line in block.code.splitlines()]
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert lines == [["pip", "install", "."], ["make", "demo"], ["make", "test"]]
    assert {name for _, name in lines[1:]} <= {*targets}


def test_the_repository_has_one_address() -> None:
    """All files that mention our repository use the address in pyproject.toml."""
    address = read_project()["urls"]["Repository"]
    owner_and_name = address.removeprefix("https://github.com/")
    patterns = ("*.md", "*.toml", "*.yml", "*.cff", "docs/*.md", "scripts/*.py", ".github/**/*.*", "notebooks/*.ipynb")
    texts = [path for one in (*patterns, "colabstage/**/*.py") for path in ROOT.glob(one)]
    pattern = re.compile(r"(?:github|githubusercontent)\.com/(?:github/)?([\w.-]+/colabstage)\b")
    found = {name for path in texts for name in pattern.findall(path.read_text(encoding="utf-8"))}
    assert found == {owner_and_name}


INSTALLS = re.compile(r"pip3? install ([^`\n\"]*)")
# An option of pip without an argument here, or a requirement that is not ours.
OURS = re.compile(r"colabstage(?![\w./-]*\.whl)|git\+|^\.{1,2}(?:\[[\w,]+\])?$")


@pytest.mark.parametrize("kind", ["*.md", "docs/*.md", "notebooks/*.ipynb", "colabstage/**/*.py"])
def test_no_line_to_paste_names_what_nobody_owns(kind: str) -> None:
    """Until a release, we can only be installed from the checkout with this line: not from the index, nor the
    repository."""
    found = 0
    for path in ROOT.glob(kind):
        for line in INSTALLS.findall(path.read_text(encoding="utf-8").replace("\\n", "\n")):
            if line.startswith("--no-index --find-links"):  # only from wheels that the reader built
                continue
            for word in line.split("#")[0].replace("'", "").split():
                if OURS.search(word):
                    found += 1
                    place = (path.parent if path.suffix == ".ipynb" else ROOT) / word.partition("[")[0]
                    assert (place / "pyproject.toml").is_file(), (path.name, line)
    assert found or kind == "colabstage/**/*.py"


def test_figures_beside_others_are_in_the_benchmarks() -> None:
    """Each figure in a row of the table is in the output that the row links to; otherwise the row says that none was
    measured."""
    text = README.read_text(encoding="utf-8").partition("## How does it compare?")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    for row in rows:
        claims = re.findall(r"(.*?)\[(\w+)\]\(benchmarks/results/\2\.txt\)", row)
        assert claims or "not measured" in row, row
        for claim, name in claims:
            output = (RESULTS / f"{name}.txt").read_text(encoding="utf-8")
            measured = re.findall(r"\d+(?:\.\d+)?", output.replace(",", ""))
            assert {*re.findall(r"\d+(?:\.\d+)?", claim.replace(",", ""))} <= {*measured}, (claim, name)


def test_links_are_absolute_on_the_package_index() -> None:
    """The substitutions in pyproject.toml leave no link or picture that only works in a checkout."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
    text = README.read_text(encoding="utf-8")
    for one in hook["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 30
    assert [target for target in targets if not target.startswith("https://")] == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    assert {target.split("/")[2] for target in pictures} == {"raw.githubusercontent.com"}
    for target in targets:  # its target exists
        name = re.sub(r"https://(?:raw\.githubusercontent|github)\.com/[\w-]+/[\w-]+/(?:blob/)?main/", "", target)
        assert name.startswith("https://") or (ROOT / name.partition("#")[0]).exists(), target


def test_all_is_every_extra_that_is_no_framework() -> None:
    """`all` leaves out only frameworks, which people already have."""
    extras = read_project()["optional-dependencies"]
    (named,) = extras["all"]
    assert named == f"colabstage[{','.join(sorted({*extras} - {'all', 'torch', 'tf', 'keras'}))}]"


def test_the_citation_is_of_this_version() -> None:
    """Version, licence and address are the package's."""
    project = read_project()
    citation = dict(re.findall(r"^([\w-]+): (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE))
    assert (citation["version"], citation["license"], citation["repository-code"]) == (
        project["version"],
        project["license"],
        project["urls"]["Repository"],
    )


def test_actions_are_pinned() -> None:
    """By the hash of a commit, with its version beside it, the same in all workflows."""
    if not (ROOT / ".github").exists():
        pytest.skip("needs a git checkout: the package that is published has no workflows")
    used = [
        line.partition("uses: ")[2]
        for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses: " in line
    ]
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    assert len({one.partition("@")[0] for one in used}) == len({*used})


def test_the_badges_tell_the_truth() -> None:
    """The Python versions and the licence are the package's own."""
    project = read_project()
    badges = ROOT / "docs" / "badges"
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    assert f"python: {' | '.join(versions)}<" in (badges / "python.svg").read_text(encoding="utf-8")
    assert f"licence: {project['license']}<" in (badges / "licence.svg").read_text(encoding="utf-8")


def test_every_notebook_is_linked() -> None:
    """From the page on notebooks, and from there into Colab."""
    names = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    page = links(README.parent / "docs" / "notebooks.md")
    colab = "https://colab.research.google.com/github/colabstage/colabstage/blob/main/"
    assert {link.removeprefix("../") for link in page if link.startswith("../notebooks/")} == names
    assert {link.removeprefix(colab) for link in page if link.startswith(colab)} == names

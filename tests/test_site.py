"""The site that `make docs` builds: complete, with no dead link, and with no call to another machine."""

import ast
import inspect
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

import colabstage
from colabstage import errors
from scripts.site_reference import REFERENCE
from tests.pages import DOCS, README, ROOT, links

needs_mkdocs = pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None,
    reason="needs mkdocs-material and mkdocstrings: pip install -c constraints.txt --group site",
)
# What a page loads when opened, as opposed to what it links to.
_LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?P<a>(?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?P<b>(?:https?:)?//[^"'\s>]+)"""
    r"""|(?:@import\s*["']?|url\(["']?)(?P<c>(?:https?:)?//[^"')\s]+)"""
)

# Only made inside the package: by a decorator from the arguments, or for another part of it.
_INSIDE = {"StageRequest", "Arrival"}


def test_each_name_of_the_reference_is_there() -> None:
    """Also checked where the site cannot be built; nothing is imported, because some names need other packages."""
    names = [name for page in REFERENCE.values() for name in page.names if name != "colabstage.errors"]
    assert [name for name in names if not is_defined(*name.rpartition(".")[::2])] == []


def is_defined(module: str, name: str) -> bool:
    """Tell whether one of our modules defines a name, or exports it."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    wanted = rf'^(class|def) {name}\b|^    "{name}",$'
    return file.exists() and re.search(wanted, file.read_text(encoding="utf-8"), re.MULTILINE) is not None


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors, once for all processes of a test run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    shared = tmp_path_factory.getbasetemp() if run is None else tmp_path_factory.getbasetemp().parent
    folder = shared / f"site-{run}"
    with FileLock(folder.with_suffix(".lock"), timeout=100):
        if not folder.exists():
            build_site(folder)
    return folder


def build_site(folder: Path) -> None:
    """Build the site, or fail with mkdocs's output."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def names_in(site: Path) -> set[str]:
    """The dotted names that the reference documents."""
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((site / "reference").glob("*.html")))
    return set(re.findall(r'id="(colabstage\.[\w.]+)"', pages))


def classes_of_package() -> set[str]:
    """The names of all classes that colabstage defines."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "colabstage").rglob("*.py"))
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def taken_and_given(name: str) -> set[str]:
    """The words in a public function's annotations, or in those of a public class's methods; nothing is imported."""
    module = ROOT / "colabstage" / f"{colabstage._HOMES[name].replace('.', '/')}.py"
    path = module if module.exists() else module.with_suffix("") / "__init__.py"
    (found,) = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    ]
    functions = [
        node
        for node in ([found] if isinstance(found, ast.FunctionDef) else found.body)
        if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__")
    ]
    hints = [one.annotation for node in functions for one in (*node.args.args, *node.args.kwonlyargs)]
    return {
        word
        for hint in (*hints, *(node.returns for node in functions))
        if hint is not None
        for word in re.findall(r"\b[A-Z]\w+\b", ast.unparse(hint))
    }


@pytest.mark.long
@needs_mkdocs
def test_the_reference_has_every_public_name(site: Path) -> None:
    """Every name of the package, and every report, plan or options class that these take or return."""
    there = names_in(site)
    documented = {name.rpartition(".")[2] for name in there}
    homes = {name: f"colabstage.{home}.{name}" for name, home in colabstage._HOMES.items()}
    assert [name for name in colabstage.__all__ if not {f"colabstage.{name}", homes[name]} & there] == []
    needed = set().union(*map(taken_and_given, colabstage.__all__)) & classes_of_package()
    assert needed - documented - _INSIDE == set()


@pytest.mark.long
@needs_mkdocs
def test_every_error_is_in_the_reference(site: Path) -> None:
    """All classes of colabstage.errors."""
    classes = {name for name, one in vars(errors).items() if inspect.isclass(one)}
    assert {f"colabstage.errors.{name}" for name in classes} <= names_in(site)


@pytest.mark.long
@needs_mkdocs
def test_no_page_calls_another_machine(site: Path) -> None:
    """No script, picture, font or style sheet from elsewhere: the site can be read without a network."""
    called: dict[str, list[str]] = {}
    for path in sorted(site.rglob("*")):
        if path.suffix in {".html", ".css"}:
            found = [match[0] for match in _LOADS.finditer(path.read_text(encoding="utf-8"))]
            called |= {str(path.relative_to(site)): found} if found else {}
    assert called == {}


@pytest.mark.long
@needs_mkdocs
def test_every_page_is_on_the_site(site: Path) -> None:
    """All pages of docs/, under their own names, with both palettes."""
    for page in DOCS:
        built = (site / page.with_suffix(".html").name).read_text(encoding="utf-8")
        assert 'data-md-color-scheme="slate"' in built
        assert 'data-md-color-scheme="default"' in built


def test_links_to_elsewhere_are_these() -> None:
    """They are not followed here, but a new one shows up in this list."""
    hosts = {link.split("/")[2] for page in [README, *DOCS] for link in links(page) if link.startswith("http")}
    assert hosts <= {"colab.research.google.com", "docs.mlcommons.org", "github.com"}

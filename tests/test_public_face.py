"""The names that `import colabstage` provides."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import colabstage


def test_names_are_sorted_and_shadow_no_package() -> None:
    """`__all__` is sorted and without duplicates, and no name is also a sub-package or module."""
    modules = {module.name for module in pkgutil.iter_modules(colabstage.__path__)}
    assert sorted(set(colabstage.__all__)) == colabstage.__all__
    assert not modules & set(colabstage.__all__)
    public = {name for name in dir(colabstage) if not name.startswith("__")}
    assert public == {*colabstage.__all__, *NEED_TORCH, "errors", "options", "transforms"}


# A torch Dataset, and functions that make batches of tensors, cannot exist without torch.
NEED_TORCH = {"CudaDataLoader", "dataset_h5", "make_loader", "resumable"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.torch if name in NEED_TORCH else ()) for name in colabstage.__all__]
)
def test_a_name_resolves_and_is_documented(name: str) -> None:
    """Every public name exists and is documented."""
    assert inspect.getdoc(getattr(colabstage, name))


@pytest.mark.torch  # without it, a star imports fewer names
def test_type_checkers_see_the_same_names() -> None:
    """The imports for type checkers name the same modules as the lazy look-up."""
    tree = ast.parse(Path(colabstage.__file__).read_text(encoding="utf-8"))
    imports = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("colabstage.")
        for alias in node.names
    }
    assert imports == {name: f"colabstage.{home}" for name, home in colabstage._HOMES.items()}
    assert sorted(imports) == colabstage.__all__


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """A misspelt name fails as on any module, and the message has the one that was meant."""
    with pytest.raises(AttributeError, match=r"'stage_datset'. Did you mean 'stage_dataset'\?$"):
        _ = colabstage.stage_datset  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["errors", "options", pytest.param("transforms", marks=pytest.mark.torch)])
def test_a_public_module_offers_what_is_documented(module: str) -> None:
    """Each name exists and is documented."""
    public = importlib.import_module(f"colabstage.{module}")
    names = getattr(public, "__all__", [name for name in vars(public) if name.endswith("Error")])
    assert len(names) > 5
    assert all(inspect.getdoc(getattr(public, name)) for name in names)

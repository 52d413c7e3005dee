"""The options classes, and all that takes their fields as arguments: spelt once, alike everywhere."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

import colabstage
from colabstage.cli.options import PACK_FLAGS, STAGE_FLAGS
from colabstage.io.arguments import parameters
from colabstage.load.plan import ArrayArguments, ArrayOptions, LoaderArguments
from colabstage.options import LoaderOptions, PackOptions
from colabstage.pack.options import PackArguments
from colabstage.stage.request import PlaceArguments, make_request

if TYPE_CHECKING:
    from collections.abc import Callable


def given(kind: type[Any]) -> dict[str, object]:
    """Name and type of each field that a caller may give."""
    return {one.name: one.type for one in fields(kind) if one.init and one.name != "once"}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(LoaderOptions, LoaderArguments), (ArrayOptions, ArrayArguments), (PackOptions, PackArguments)],
)
def test_type_checkers_see_the_fields(kind: type[Any], arguments: type[Any]) -> None:
    """The `TypedDict` beside each class has the same names and types, and no others."""
    types = {name: one.__forward_arg__ for name, one in arguments.__annotations__.items()}
    assert types == given(kind)


def test_type_checkers_see_where_a_dataset_goes() -> None:
    """What a request takes besides a pack's options is in the `TypedDict` beside it, with the same types."""
    own = {
        one.name: one.annotation for one in parameters(make_request) if one.name not in {*given(PackOptions), "options"}
    }
    assert {name: one.__forward_arg__ for name, one in PlaceArguments.__annotations__.items()} == own


PACK = [*given(PackOptions)]
LOADER = [*given(LoaderOptions)]
PLACES = [*PlaceArguments.__annotations__]
TAKERS: list[tuple[Callable[..., Any], list[str]]] = [
    (colabstage.stage_dataset, [*PACK, *PLACES]),
    (colabstage.plan_stage, [*PACK, *PLACES]),
    (colabstage.pack_dataset, PACK),
    (colabstage.stage_form, [name for name in [*PACK, *PLACES] if name != "prepare"]),
    (colabstage.compare_sources, ["layout", "image_size", "color_mode", "resize", "encoding"]),
    pytest.param(lambda: colabstage.make_loader, LOADER, marks=pytest.mark.torch, id="make_loader"),  # type: ignore[list-item]
    (colabstage.StagedDataset.loader, LOADER),
]


@pytest.mark.parametrize(("function", "names"), TAKERS)
def test_verbs_show_the_arguments_with_one_default_and_one_text(function: Any, names: list[str]) -> None:
    """Whoever asks a notebook for a verb sees each argument, its default and what it means."""
    function = function() if function.__name__ == "<lambda>" else function
    usual = {one.name: one for kind in (PackOptions, LoaderOptions, make_request) for one in parameters(kind)}
    usual |= {one.name: one for one in parameters(LoaderOptions if names is LOADER else PackOptions)}
    shown = inspect.signature(function).parameters
    assert [name for name in shown if name in names] == names
    assert {shown[name].kind for name in names} == {inspect.Parameter.KEYWORD_ONLY}
    assert {name: (shown[name].default, shown[name].annotation) for name in names} == {
        name: (usual[name].default, usual[name].annotation) for name in names
    }
    doc = inspect.getdoc(function) or ""
    assert all(f"    {name}:" in doc or f"{name}, " in doc or f", {name}:" in doc for name in names)
    assert "**" not in doc


def test_the_command_line_has_them_too() -> None:
    """One option for each argument that can be written down."""
    assert set(PACK_FLAGS) == {*PACK} - {"prepare"}
    assert set(STAGE_FLAGS) == {*PACK, *PLACES} - {"prepare"}


def test_the_tab_key_offers_them() -> None:
    """IPython completes the arguments of a verb from its signature."""
    completing = pytest.importorskip("IPython.core.completer", reason="needs IPython: pip install ipython")
    completer = completing.IPCompleter(namespace={"stage_dataset": colabstage.stage_dataset})
    with completing.provisionalcompleter():
        offered = [one.text for one in completer.completions("stage_dataset('photos.zip', ima", 31)]
    assert offered == ["image_size="]

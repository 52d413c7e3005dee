"""The options classes, and everything that takes their fields as arguments: declared once, the same everywhere."""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import colabstage
from colabstage.options import LoaderOptions, PackOptions
from tests.support.command import run_command


def given(kind: type[Any]) -> dict[str, tuple[object, object]]:
    """Default and type of each field that a caller may set, by name."""
    return {one.name: (one.default, one.type) for one in fields(kind) if one.init and one.name != "once"}


def shown(function: Callable[..., Any]) -> dict[str, tuple[object, object]]:
    """Default and type of each keyword argument, as a notebook shows them."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: (one.default, one.annotation) for one in parameters if one.kind is one.KEYWORD_ONLY}


PACK, LOADER = [*given(PackOptions)], [*given(LoaderOptions)]
PLACES = ["keep", "local_dir", "cache_dir", "refresh", "verify", "hash", "disk_limit"]
TAKERS: dict[str, list[str]] = {
    "stage_dataset": [*PACK, *PLACES],
    "plan_stage": [*PACK, *PLACES],
    "pack_dataset": PACK,
    "stage_form": [name for name in [*PACK, *PLACES] if name != "prepare"],
    "compare_sources": ["layout", "image_size", "color_mode", "resize", "encoding"],
    "make_loader": LOADER,
    "StagedDataset.loader": LOADER,
}
ARRAYS = ["to_keras", "to_numpy", "to_tf_data"]


def taker(name: str) -> Any:
    """Return a verb by its name."""
    found: Any = colabstage
    for part in name.split("."):
        found = getattr(found, part)
    return found


def verbs(*names: str) -> list[Any]:
    """Return a test's parameters: the names, some of which need torch."""
    return [pytest.param(name, marks=pytest.mark.torch if name == "make_loader" else ()) for name in names]


@pytest.mark.parametrize("name", verbs(*TAKERS, *ARRAYS))
def test_type_checkers_see_what_people_see(name: str) -> None:
    """The `TypedDict` of a verb's `**arguments` has the names and types that its signature shows, and no others."""
    verb = taker(name)
    written = inspect.unwrap(verb)
    called = written.__annotations__["arguments"].removeprefix("Unpack[").removesuffix("]")
    loaded = [vars(module) for key, module in list(sys.modules.items()) if key.startswith("colabstage.")]
    typed = next(names[called] for names in loaded if called in names).__annotations__
    own = inspect.signature(written).parameters
    assert {field: one.__forward_arg__ for field, one in typed.items()} == {
        field: kind for field, (_, kind) in shown(verb).items() if field not in own
    }


@pytest.mark.parametrize("name", verbs(*TAKERS))
def test_verbs_show_the_arguments_with_one_default_and_one_text(name: str) -> None:
    """A notebook's help on a verb shows each argument, its default and its meaning."""
    verb, names = taker(name), TAKERS[name]
    usual = given(LoaderOptions) if names is LOADER else shown(colabstage.stage_dataset) | given(PackOptions)
    found = shown(verb)
    assert [one for one in found if one in names] == names
    assert {one: found[one] for one in names} == {one: usual[one] for one in names}


@pytest.mark.parametrize("name", verbs(*TAKERS, *ARRAYS, "StagedDataset.to_keras", "browse_dataset", "fetch_files"))
def test_help_describes_each_argument_once_and_in_order(name: str) -> None:
    """Where one entry describes several, it stands at the first of them."""
    arguments = (inspect.getdoc(taker(name)) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = [one.split(", ") for one in re.findall(r"^    (\S[^:]*):", arguments, re.MULTILINE)]
    parameters = [one for one in inspect.signature(taker(name)).parameters if one != "self"]
    described = [one for entry in entries for one in entry]
    assert sorted(described) == sorted(parameters)
    assert [entry[0] for entry in entries] == [one for one in parameters if one in {entry[0] for entry in entries}]


def test_array_options_are_alike_everywhere() -> None:
    """The three verbs that make arrays show the same options."""
    first, *others = ({name: shown(taker(verb))[name] for name in shown(colabstage.to_numpy)} for verb in ARRAYS)
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("command", "arguments", "others"),
    [
        ("pack", PACK, {"shards", "append_to", "overwrite"}),
        ("stage", [*PACK, *PLACES], set()),
        ("plan", [*PACK, *PLACES], set()),
    ],
)
def test_the_command_line_has_them_too(command: str, arguments: list[str], others: set[str]) -> None:
    """One option for each argument that can be written as text."""
    text = run_command(command, "--help").stdout
    options = {one.replace("-", "_") for one in re.findall(r"--([a-z-]+)", text)}
    assert options == {*arguments, *others, "json", "debug", "help"} - {"prepare"}


def test_the_tab_key_offers_them() -> None:
    """IPython completes a verb's arguments from its signature."""
    completing = pytest.importorskip("IPython.core.completer", reason="needs IPython: pip install ipython")
    completer = completing.IPCompleter(namespace={"stage_dataset": colabstage.stage_dataset})
    with completing.provisionalcompleter():
        offered = [one.text for one in completer.completions("stage_dataset('photos.zip', ima", 31)]
    assert offered == ["image_size="]

"""The staging form in a real kernel: what its fields say is what is staged, and it stays usable whatever happens."""

import threading
import time
from collections.abc import Iterator
from importlib.metadata import version as installed
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from colabstage import stage_form
from colabstage.errors import OptionError
from tests.cli.conftest import write_images
from tests.kernels import errors_in, run_cells, text_in, widgets_7
from tests.nurseries import Nurseries
from tests.support.steps import wait_until

# What a person does, by way of the buttons' own click; `wait` is the person's patience.
_PERSON = """
import time
from colabstage import stage_form
def wait(form):
    deadline = time.monotonic() + 60
    while form.busy and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not form.busy
def press(form, name):
    def find(widget):
        if getattr(widget, "description", "") == name and hasattr(widget, "click"):
            yield widget
        for child in getattr(widget, "children", ()):
            yield from find(child)
    (button,) = find(form.widget)
    assert not button.disabled, name
    button.click()
"""


needs_widgets = pytest.mark.skipif(
    find_spec("ipywidgets") is None, reason="needs ipywidgets: pip install --group notebooks"
)


@needs_widgets
@pytest.mark.parametrize(
    "arguments",
    [
        {"source": "a b.zip", "image_size": (64, 64)},
        {"source": 'it\'s "x"\\n.zip', "splits": {"train": 0.8, "dev": 0.2}, "group_by": r"patient\d+"},
        {"source": ["a.zip", "b.zip"], "cache_dir": None, "refresh": True, "encoding": "jpeg:90", "keep": "both"},
        {"source": "ä" * 100, "image_size": (1, 2), "local_dir": "/tmp/x y", "seed": 7, "disk_limit": "20GB"},
    ],
)
def test_the_line_means_what_the_fields_say(arguments: dict[str, Any]) -> None:
    """Whatever the characters, running the line passes exactly what differs from the defaults; no line is long."""
    form: Any = stage_form(**arguments)
    scope: dict[str, Any] = {"stage_dataset": lambda source, **others: {"source": source, **others}}
    exec(form.code.removeprefix("from colabstage import stage_dataset\n"), scope)
    assert scope["data"] == arguments
    assert max(map(len, form.code.splitlines())) <= 120


@needs_widgets
def test_fields_read_as_the_command_line_does() -> None:
    """Sizes, fractions and sources have one spelling everywhere; empty fields are the defaults."""
    form: Any = stage_form("a.zip", image_size=(48, 64), splits={"train": 0.75, "dev": 0.25})
    assert (form.fields["image_size"].value, form.fields["splits"].value) == ("48x64", "train=0.75,dev=0.25")
    typed = {"source": "'a.zip'\n\n \"b.zip\" ", "image_size": " ", "splits": "", "seed": "7", "disk_limit": " 20GB "}
    for name, text in typed.items():
        form.fields[name].value = text
    assert form.code.endswith("stage_dataset(['a.zip', 'b.zip'], seed=7, disk_limit='20GB')")
    for name, text in (("source", "\n"), ("image_size", "8x")):
        form = stage_form("a.zip")
        form.fields[name].value = text
        with pytest.raises(OptionError):
            _ = form.code


def stage_button(form: Any) -> Any:
    """The button of a form that stages."""

    def buttons(widget: Any) -> Iterator[Any]:
        if getattr(widget, "description", "") == "Stage" and hasattr(widget, "click"):
            yield widget
        for child in getattr(widget, "children", ()):
            yield from buttons(child)

    (button,) = buttons(form.widget)
    return button


def wait_for(form: Any) -> None:
    """Wait until nothing of a form runs."""
    wait_until(lambda: not form.busy)


@needs_widgets
def test_a_press_at_the_very_end_of_the_work_before_counts(tmp_path: Path) -> None:
    """The button is free before the thread that freed it has ended: what is pressed then runs, once."""
    form: Any = stage_form("missing", local_dir=str(tmp_path / "fast"), cache_dir=None)
    free = threading.Event()

    def hold_up(change: Any) -> None:
        if not change.new:
            free.set()
            time.sleep(0.05)  # as on a busy machine

    stage_button(form).observe(hold_up, "disabled")
    form.stage()
    assert free.wait(10)
    form.fields["source"].value = str(write_images(tmp_path / "photos", each=2))
    form.stage()
    wait_for(form)
    assert form.dataset.splits == {"train": 4}


@needs_widgets
def test_a_second_press_while_it_works_is_one_too_many(tmp_path: Path) -> None:
    """Nothing begins, and the press does not wait for the work."""
    photos = write_images(tmp_path / "photos", each=2)
    form: Any = stage_form(photos, local_dir=str(tmp_path / "fast"), cache_dir=None)
    pressed, began = list[bool](), list[threading.Thread]()

    def press_again(change: Any) -> None:
        pressed.append(change.new)
        if change.new and len(pressed) == 1:
            assert form.busy
            form.stage()
            began.extend(thread for thread in threading.enumerate() if thread.name == "colabstage-form")

    stage_button(form).observe(press_again, "disabled")
    form.stage()
    wait_for(form)
    assert (pressed, began, form.dataset.report.origin) == ([True, False], [], "source")


class Gone:
    """A widget whose page was closed."""

    @property
    def value(self) -> str:
        return ""

    @value.setter
    def value(self, text: str) -> None:
        raise RuntimeError(text)


@needs_widgets
def test_a_page_that_is_gone_ends_no_staging(tmp_path: Path) -> None:
    """What cannot be shown is not shown, and the dataset is there."""
    write_images(tmp_path / "photos", each=2)
    form: Any = stage_form(tmp_path / "photos", local_dir=str(tmp_path / "fast"), cache_dir=None)
    form._panel = form._outcome = form._stage_button = Gone()
    form.stage()
    wait_for(form)
    assert form.dataset.splits == {"train": 4}
    assert form.error is None


@pytest.mark.parametrize("version", [pytest.param("7", marks=pytest.mark.long), "8"])
def test_the_form_stages_what_it_says(tmp_path: Path, nurseries: Nurseries, version: str) -> None:
    """Errors are shown and leave it usable; plan, stage, and the dataset is there; on ipywidgets 7.7 and 8.

    Without ipywidgets the error says what to install.
    """
    if version == "8" and find_spec("ipywidgets") and not installed("ipywidgets").startswith("8."):
        pytest.skip(f"needs ipywidgets 8, and here is {installed('ipywidgets')}: make .venv/.tested")
    write_images(tmp_path / "photos", each=3)
    outputs = run_cells(
        _PERSON,
        f"import ipywidgets\nassert ipywidgets.__version__.startswith('{version}.'), ipywidgets.__version__",
        "form = stage_form('missing', local_dir='fast', cache_dir=None)\nform",
        "press(form, 'Plan'); wait(form)\nprint(type(form.error).__name__, form._outcome.value)",
        "form.dataset",
        "form.fields['image_size'].value = '8x'\nprint(form._line.value)\npress(form, 'Stage'); wait(form)\n"
        "print('[', form._outcome.value, ']')\nform.error",
        "form.fields['image_size'].value = '8'\nform.fields['source'].value = 'photos'\nprint(form.code)",
        "press(form, 'Plan'); wait(form)\nprint(form.error, form._outcome.value)",
        "press(form, 'Stage'); form.stage(); form.stage(); wait(form)\nprint(form.error, form._panel.value)",
        "print(form.dataset.splits, form.dataset.report.origin, form._outcome.value)",
        "exec(form.code)\nprint(data.report.origin)",
        "import sys\nsys.modules['ipywidgets'] = None\nstage_form()",
        folder=tmp_path,
        nurseries=nurseries,
        before=widgets_7() if version == "7" else None,
    )
    texts = [text_in(one) for one in outputs]
    early, missing = errors_in(outputs)
    assert early.startswith("NotStagedError: The form has staged nothing yet. Press its button Stage first")
    assert missing.startswith("MissingDependencyError: stage_form needs ipywidgets. Install it with: pip install ipyw")
    assert "The form of stage_form" in texts[2]
    picture, view = (one["data"] for one in outputs[2])
    assert "stage_dataset(" in picture["text/html"], "what is seen where no widget lives any more"
    assert "application/vnd.jupyter.widget-view+json" in view
    assert texts[3].startswith("SourceNotFoundError")
    assert ">SourceNotFoundError</b>: " in texts[3]
    assert "is not a size" in texts[5]
    assert "OptionError" in texts[5]
    assert "[  ]" in texts[5], "it is said once, where the code would be"
    assert "data = stage_dataset('photos', image_size=(8, 8), local_dir='fast', cache_dir=None)" in texts[6]
    assert "would be read from its source" in texts[7]
    assert texts[8].startswith("None")
    assert "cs-done" in texts[8]
    assert texts[8].count("cs-step") == 1, "three presses were one staging"
    assert "{'train': 6} source" in texts[9]
    assert "StagedDataset" in texts[9]
    assert texts[10].strip() == "local"

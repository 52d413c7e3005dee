"""The table of platforms, row by row, and its traps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import OptionError
from colabstage.machine.platforms import PLATFORM_NAMES, Platform, detect_platform
from tests.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

COLAB = {
    "COLAB_RELEASE_TAG": "release-colab_20250902-060100_RC00",
    "COLAB_BACKEND_VERSION": "next",
    "COLAB_GPU": "",
    "JPY_PARENT_PID": "94",
}
KERNEL = {"IPython": SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))}
CONSOLE = {"IPython": SimpleNamespace(get_ipython=lambda: None)}


def detect(
    environ: Mapping[str, str], paths: tuple[str, ...] = (), modules: Mapping[str, object] = CONSOLE
) -> Platform:
    """Detect on a machine that is described in full."""
    return detect_platform(
        environ={"HOME": "/home/ann"} | dict(environ), path_exists=paths.__contains__, modules=modules
    )


@pytest.mark.parametrize(
    ("environ", "name", "fast", "persistent"),
    [
        ({"VERTEX_PRODUCT": "COLAB_ENTERPRISE"} | COLAB, "colab-enterprise", "/home/ann", None),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Batch"} | COLAB, "kaggle", "/kaggle/temp", None),
        (COLAB, "colab", "/content", None),
        ({"COLAB_BACKEND_VERSION": "next"}, "colab", "/content", None),
        ({"HOME": "/home/studio-lab-user"}, "studio-lab", "/tmp", "/home/studio-lab-user"),
        ({"PAPERSPACE_CLUSTER_ID": "c"}, "paperspace", "/tmp", "/notebooks"),
        (
            {"LIGHTNING_CLOUD_PROJECT_ID": "p", "LIGHTNING_CLUSTER_ID": "c"},
            "lightning",
            "/tmp",
            "/teamspace/studios/this_studio",
        ),
        ({"JPY_PARENT_PID": "7"}, "jupyter", "/home/ann/.cache", "/home/ann"),
        ({}, "python", "/home/ann/.cache", "/home/ann"),
    ],
)
def test_each_platform_is_recognised(environ: dict[str, str], name: str, fast: str, persistent: str | None) -> None:
    """Every row of the table is reached by its own variables and names its folders."""
    found = detect(environ)
    assert (found.name, found.fast_dir, found.persistent_dir) == (
        name,
        Path(fast),
        Path(persistent) if persistent else None,
    )


def test_every_row_is_covered_by_a_test() -> None:
    """A platform added to the table must be added above."""
    mark = next(mark for mark in test_each_platform_is_recognised.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {case[1] for case in mark.args[1]} == set(PLATFORM_NAMES)


def test_folders_that_exist_are_preferred() -> None:
    """Where a platform has a better folder on some machines, it is taken when it is there."""
    assert detect({"VERTEX_PRODUCT": "COLAB_ENTERPRISE"}, ("/content",)).fast_dir == Path("/content")
    assert detect({"PAPERSPACE_CLUSTER_ID": "c"}, ("/storage", "/notebooks")).persistent_dir == Path("/storage")
    assert detect({"LIGHTNING_CLOUDSPACE_HOST": "h"}, ("/cache",)).fast_dir == Path("/cache")


def test_the_colab_package_makes_it_colab_only_on_a_machine_of_colabs() -> None:
    """It can be installed and imported on any laptop; `None` in sys.modules, which blocks the import, is no sign."""
    imported, marker = CONSOLE | {"google.colab": object()}, ("/var/colab/hostname",)
    assert detect({}, marker, imported).name == "colab"
    assert detect({}, (), imported).name == "python"
    assert detect({}, marker, CONSOLE | {"google.colab": None}).name == "python"


def test_kaggle_keeps_no_cache_by_itself_and_says_why() -> None:
    """The folder that lasts is the notebook's output; who wants it can name it."""
    kaggle = detect({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, ("/kaggle/working",))
    assert kaggle.persistent_dir is None
    assert "cache_dir='/kaggle/working/colabstage'" in kaggle.not_lasting


def test_a_kaggle_input_folder_does_not_make_it_kaggle() -> None:
    """On Colab kagglehub mounts its cache at /kaggle/input."""
    assert detect(COLAB, ("/kaggle/input", "/content")).name == "colab"


@pytest.mark.parametrize(
    ("paths", "modules", "mountable"),
    [
        (("/var/colab/hostname",), KERNEL, True),
        (("/var/colab/hostname",), CONSOLE, False),
        (("/var/colab/hostname",), {}, False),
        ((), KERNEL, False),
    ],
)
def test_drive_is_mountable_only_in_the_kernel_of_a_real_colab(
    paths: tuple[str, ...], modules: dict[str, object], mountable: bool
) -> None:
    """It takes the marker file of a Colab machine and a notebook kernel, not a script started by one."""
    assert detect(COLAB, paths, modules).drive_mountable is mountable


def test_a_run_request_declares_whether_a_dialogue_can_be_answered() -> None:
    """Command lines and schedulers allow no input, and neither does nbclient; a widget's message declares nothing."""
    for content, attended in (({"allow_stdin": False}, False), ({"allow_stdin": True}, True), ({"comm_id": "1"}, True)):
        kernel = SimpleNamespace(get_parent=partial(dict, content=content))
        shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=kernel))  # noqa: B023 - used in this turn
        found = detect(COLAB, ("/var/colab/hostname",), {"IPython": shell})
        assert (found.attended, found.drive_mountable) == (attended, attended)


def test_drive_is_not_mountable_on_kaggle_and_enterprise() -> None:
    """Both look like Colab and neither can mount Drive."""
    for more in ({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, {"VERTEX_PRODUCT": "COLAB_ENTERPRISE"}):
        assert not detect(COLAB | more, ("/var/colab/hostname",), KERNEL).drive_mountable


def test_a_kernel_without_variables_is_jupyter() -> None:
    """A kernel started by an editor sets no JPY_PARENT_PID."""
    assert detect({}, modules=KERNEL).name == "jupyter"


def test_the_override_wins_over_everything() -> None:
    """COLABSTAGE_PLATFORM decides, whatever else the machine looks like."""
    assert detect(COLAB | {"COLABSTAGE_PLATFORM": "kaggle"}).name == "kaggle"


def test_an_unknown_override_lists_the_known_names() -> None:
    """A typing error is answered with the words that would have worked."""
    with pytest.raises(OptionError, match=r"'collab' .*kaggle, colab"):
        detect({"COLABSTAGE_PLATFORM": "collab"})


def test_the_local_folder_can_be_chosen_by_variable() -> None:
    """COLABSTAGE_LOCAL_DIR replaces the fast folder on any platform."""
    assert detect(COLAB | {"COLABSTAGE_LOCAL_DIR": "/scratch/ann"}).fast_dir == Path("/scratch/ann")


def test_temporary_folders_follow_tmpdir() -> None:
    """TMPDIR is where the machine's owner wants bulky short-lived files."""
    for environ in ({}, {"JPY_PARENT_PID": "7"}, {"PAPERSPACE_CLUSTER_ID": "c"}):
        assert detect({"TMPDIR": "/scratch"} | environ).fast_dir == Path("/scratch")


def test_a_user_without_a_home_keeps_things_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was started with a number for its user."""

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert detect({"HOME": ""}).fast_dir == Path("/tmp")
    assert detect({"HOME": "/home/ann"}).fast_dir == Path("/home/ann/.cache")


def test_a_practice_machine_keeps_everything_under_its_root(tmp_path: Path) -> None:
    """With COLABSTAGE_SYSTEM_ROOT the marker is looked for, and the folders are named, under that root."""
    (tmp_path / "var/colab").mkdir(parents=True)
    (tmp_path / "var/colab/hostname").write_text("m-s-practice")
    found = detect_platform(environ=COLAB | {"COLABSTAGE_SYSTEM_ROOT": str(tmp_path)}, modules=KERNEL)
    assert (found.fast_dir, found.drive_mountable) == (tmp_path / "content", True)


def test_the_real_environment_is_read_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments the variables of this process count, as they are now."""
    for name in PLATFORM_NAMES:
        monkeypatch.setenv("COLABSTAGE_PLATFORM", name)
        assert detect_platform().name == name


@pytest.mark.parametrize("name", ["colab", "kaggle", "studio-lab", "paperspace", "lightning"])
def test_the_page_on_drive_has_each_platforms_folders(name: str) -> None:
    """In the row with its title; the home folder is named as such."""
    found = detect({"COLABSTAGE_PLATFORM": name}, ("/storage", "/cache"))
    page = (ROOT / "docs/drive.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {found.title} | `")]
    assert f"| `{found.fast_dir}`" in row
    if found.persistent_dir is not None:
        assert ("home folder" if found.persistent_dir == Path("/home/ann") else f"`{found.persistent_dir}`") in row

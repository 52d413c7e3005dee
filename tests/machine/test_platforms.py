"""The table of platforms, row by row, and its traps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import OptionError
from colabstage.machine.platforms import PLATFORM_NAMES, Platform, detect_platform
from tests.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

COLAB = {"COLAB_RELEASE_TAG": "release-colab_20250902-060100_RC00", "COLAB_GPU": "", "JPY_PARENT_PID": "94"}
KAGGLE = COLAB | {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}
LIGHTNING = {"LIGHTNING_CLOUD_PROJECT_ID": "p", "LIGHTNING_CLUSTER_ID": "c"}
STUDIO = "/teamspace/studios/this_studio"
MARKER = ("/var/colab/hostname",)


def kernel(**request: object) -> dict[str, Any]:
    """The modules of a notebook's kernel, and its current request to run code."""
    found = SimpleNamespace(get_parent=partial(dict, content=request)) if request else object()
    return {"IPython": SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=found))}


UNATTENDED = kernel(allow_stdin=False)
CONSOLE = {"IPython": SimpleNamespace(get_ipython=lambda: None)}


def detect(
    environ: Mapping[str, str], paths: tuple[str, ...] = (), modules: Mapping[str, object] = CONSOLE
) -> Platform:
    """Detect the platform of a fully described machine."""
    return detect_platform(
        environ={"HOME": "/home/ann"} | dict(environ), path_exists=paths.__contains__, modules=modules
    )


ROWS: list[tuple[dict[str, str], tuple[str, ...], str, str, str | None]] = [
    (KAGGLE, ("/kaggle/working",), "kaggle", "/kaggle/temp", None),
    # On Colab, kagglehub mounts its cache there.
    (COLAB, ("/kaggle/input",), "colab", "/content", None),
    ({"COLAB_BACKEND_VERSION": "next"}, (), "colab", "/content", None),
    ({"HOME": "/home/studio-lab-user"}, (), "studio-lab", "/tmp", "/home/studio-lab-user"),
    ({"PAPERSPACE_CLUSTER_ID": "c"}, ("/storage", "/notebooks"), "paperspace", "/tmp", "/storage"),
    (LIGHTNING, (), "lightning", "/tmp", STUDIO),
    ({"JPY_PARENT_PID": "7"}, (), "jupyter", "/home/ann/.cache", "/home/ann"),
    ({}, (), "python", "/home/ann/.cache", "/home/ann"),
    # Settings by the user, or the machine's owner.
    (COLAB | {"COLABSTAGE_PLATFORM": "kaggle"}, (), "kaggle", "/kaggle/temp", None),
    (COLAB | {"COLABSTAGE_LOCAL_DIR": "/scratch/ann"}, (), "colab", "/scratch/ann", None),
    ({"TMPDIR": "/scratch"}, (), "python", "/scratch", "/home/ann"),
    ({"TMPDIR": "/scratch", "PAPERSPACE_CLUSTER_ID": "c"}, (), "paperspace", "/scratch", "/notebooks"),
]


@pytest.mark.parametrize(("environ", "paths", "name", "fast", "persistent"), ROWS)
def test_each_platform_is_recognised(
    environ: dict[str, str], paths: tuple[str, ...], name: str, fast: str, persistent: str | None
) -> None:
    found = detect(environ, paths)
    assert (found.name, str(found.fast_dir)) == (name, fast)
    assert found.persistent_dir == (Path(persistent) if persistent else None)
    # Kaggle's lasting folder is the notebook's output, so only users who want it name it.
    assert ("cache_dir='/kaggle/working/colabstage'" in found.not_lasting) is (name == "kaggle")


@pytest.mark.parametrize(
    ("environ", "paths", "modules", "name", "mountable"),
    [
        (COLAB, MARKER, kernel(), "colab", True),
        # A widget's message declares nothing.
        (COLAB, MARKER, kernel(comm_id="1"), "colab", True),
        # Command lines and schedulers allow no input.
        (COLAB, MARKER, UNATTENDED, "colab", False),
        (COLAB, MARKER, CONSOLE, "colab", False),
        (COLAB, (), kernel(), "colab", False),
        (KAGGLE, MARKER, kernel(), "kaggle", False),
        # The package can be installed and imported on any laptop; `None`, which blocks its import, proves nothing.
        ({}, MARKER, CONSOLE | {"google.colab": object()}, "colab", False),
        ({}, MARKER, CONSOLE | {"google.colab": None}, "python", False),
        # A kernel started by an editor sets no variables.
        ({}, (), kernel(), "jupyter", False),
    ],
)
def test_drive_is_mountable_only_in_the_kernel_of_a_real_colab(
    environ: dict[str, str], paths: tuple[str, ...], modules: dict[str, object], name: str, mountable: bool
) -> None:
    found = detect(environ, paths, modules)
    assert (found.name, found.drive_mountable) == (name, mountable)
    assert found.attended is (modules is not UNATTENDED)


def test_an_unknown_override_lists_the_known_names() -> None:
    with pytest.raises(OptionError) as refused:
        detect({"COLABSTAGE_PLATFORM": "collab"})
    assert all(name in str(refused.value) for name in ("collab", *PLATFORM_NAMES))


def test_the_real_environment_is_read_when_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is now, and on a practice machine with everything under its root."""
    (tmp_path / "var/colab").mkdir(parents=True)
    (tmp_path / "var/colab/hostname").write_text("m-s-practice")
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    for name in PLATFORM_NAMES:
        monkeypatch.setenv("COLABSTAGE_PLATFORM", name)
        found = detect_platform(modules=kernel())
        assert (found.name, found.drive_mountable) == (name, name == "colab")
        assert name != "colab" or found.fast_dir == tmp_path / "content"


@pytest.mark.parametrize("name", ["colab", "kaggle", "studio-lab", "paperspace", "lightning"])
def test_the_page_on_drive_has_each_platforms_folders(name: str) -> None:
    """In the row with its title; the home folder is named as such."""
    found = detect({"COLABSTAGE_PLATFORM": name}, ("/storage", "/cache"))
    page = (ROOT / "docs/drive.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {found.title} | `")]
    assert f"| `{found.fast_dir}`" in row
    if found.persistent_dir is not None:
        assert ("home folder" if found.persistent_dir == Path("/home/ann") else f"`{found.persistent_dir}`") in row

"""The table of platforms, row by row, and its traps: what `doctor` says and where staging keeps things on each."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from colabstage import doctor, stage_dataset
from colabstage.errors import OptionError
from tests.pages import ROOT
from tests.support.images import in_classes, make_tree

Detect = Callable[..., tuple[str, str, str]]

COLAB = {"COLAB_RELEASE_TAG": "release-colab_20250902-060100_RC00", "COLAB_GPU": "", "JPY_PARENT_PID": "94"}
KAGGLE = COLAB | {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}
LIGHTNING = {"LIGHTNING_CLOUD_PROJECT_ID": "p", "LIGHTNING_CLUSTER_ID": "c"}
STUDIO = "/teamspace/studios/this_studio"
PLATFORMS = ("kaggle", "colab", "studio-lab", "paperspace", "lightning", "python")
SIGNS = re.compile(r"COLAB|KAGGLE|PAPERSPACE|LIGHTNING|JPY_|TMPDIR|XDG_CACHE_HOME")


CONSOLE = {"IPython": SimpleNamespace(get_ipython=lambda: None)}


@pytest.fixture
def detect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Detect:
    """Detect on a machine that is described in full: the platform's name, its fast folder, and what is said about one
    that lasts."""

    def look(
        environ: Mapping[str, str], paths: tuple[str, ...] = (), modules: Mapping[str, object] = CONSOLE
    ) -> tuple[str, str, str]:
        for name in filter(SIGNS.match, [*os.environ]):
            monkeypatch.delenv(name)
        root = tmp_path / "root"
        described = {"HOME": f"{root}/home/ann", "COLABSTAGE_SYSTEM_ROOT": f"{root}"} | dict(environ)
        for name, value in described.items():
            monkeypatch.setenv(name, value.replace("ROOT", str(root)))
        for path in ("/content", "/kaggle/temp", "/tmp", "/home/ann", STUDIO, *paths):
            (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for name in ("IPython", "google.colab"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        photos = make_tree(tmp_path / "photos", in_classes(2))
        facts = doctor(timeout_s=5.0).facts
        staged = stage_dataset(photos, image_size=4, progress=False)
        assert str(staged.path).startswith(facts.fast_dir)
        return facts.platform, facts.fast_dir.removeprefix(str(root)), str(staged.report).replace(str(root), "")

    return look


ROWS: list[tuple[dict[str, str], tuple[str, ...], str, str, str]] = [
    # The folder that lasts on Kaggle is the notebook's output: who wants it can name it.
    (KAGGLE, ("/kaggle/working",), "kaggle", "/kaggle/temp", "cache_dir='/kaggle/working/colabstage'"),
    # On Colab kagglehub mounts its cache there.
    (COLAB, ("/kaggle/input",), "colab", "/content", "no Drive is mounted"),
    ({"COLAB_BACKEND_VERSION": "next"}, (), "colab", "/content", "no Drive is mounted"),
    ({"HOME": "/home/studio-lab-user"}, (), "studio-lab", "/tmp", "SageMaker Studio Lab"),
    ({"PAPERSPACE_CLUSTER_ID": "c"}, ("/storage", "/notebooks"), "paperspace", "/tmp", "'/storage'"),
    ({"PAPERSPACE_CLUSTER_ID": "c"}, ("/notebooks",), "paperspace", "/tmp", "'/notebooks'"),
    (LIGHTNING, (), "lightning", "/tmp", f"'{STUDIO}'"),
    (LIGHTNING, ("/cache",), "lightning", "/cache", f"'{STUDIO}'"),
    ({}, (), "python", "/home/ann/.cache", "'/home/ann'"),
    # What the person, or the owner of the machine, says.
    (COLAB | {"COLABSTAGE_PLATFORM": "kaggle"}, (), "kaggle", "/kaggle/temp", "/kaggle/working"),
    (COLAB | {"COLABSTAGE_LOCAL_DIR": "ROOT/scratch/ann"}, (), "colab", "/scratch/ann", "no Drive is mounted"),
    ({"TMPDIR": "ROOT/scratch"}, (), "python", "/scratch", "'/home/ann'"),
    # A home that cannot be written to, as that of a user who is a number to a container, or of a service.
    ({"HOME": "ROOT/missing"}, (), "python", "/tmp", "no persistent folder"),
]


@pytest.mark.parametrize(("environ", "paths", "name", "fast", "lasting"), ROWS)
def test_each_platform_is_recognised(
    detect: Detect, environ: dict[str, str], paths: tuple[str, ...], name: str, fast: str, lasting: str
) -> None:
    found = detect(environ, paths)
    assert found[:2] == (name, fast)
    assert lasting in found[2]


@pytest.mark.parametrize(
    ("modules", "name"),
    [
        # The package can be installed and imported on any laptop; `None`, which blocks its import, is no sign.
        (CONSOLE | {"google.colab": object()}, "colab"),
        (CONSOLE | {"google.colab": None}, "python"),
    ],
)
def test_a_kernel_is_recognised_by_what_is_imported(detect: Detect, modules: dict[str, object], name: str) -> None:
    assert detect({}, ("/var/colab/hostname",), modules)[0] == name


def test_an_unknown_override_lists_the_known_names(detect: Detect) -> None:
    with pytest.raises(OptionError) as refused:
        detect({"COLABSTAGE_PLATFORM": "collab"})
    assert all(name in str(refused.value) for name in ("collab", *PLATFORMS))


@pytest.mark.parametrize("name", ["colab", "kaggle", "studio-lab", "paperspace", "lightning"])
def test_the_page_on_drive_has_each_platforms_folders(detect: Detect, name: str) -> None:
    """In the row with its title; the home folder is named as such."""
    found = detect({"COLABSTAGE_PLATFORM": name}, ("/storage", "/cache"))
    begin = f"| {doctor(timeout_s=5.0).facts.title} | `"
    page = (ROOT / "docs/drive.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(begin)]
    assert f"| `{found[1]}`" in row
    if lasting := re.search(r"a copy in '(.+?)' would be on the same disk", found[2]):
        assert ("home folder" if lasting[1] == "/home/ann" else f"`{lasting[1]}`") in row
    else:
        assert name in ("colab", "kaggle")

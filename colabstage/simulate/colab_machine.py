"""The outside of a simulated notebook machine: the variables, marker files and folders that each platform has.

Absolute paths of the platform (`/var/colab/hostname`, `/content`) lie under a root folder of the practice machine,
which `COLABSTAGE_SYSTEM_ROOT` makes known.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

from colabstage.errors import OptionError
from colabstage.machine.platforms import SYSTEM_ROOT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Preset = Literal["colab_cpu", "colab_gpu", "colab_enterprise", "colab_subprocess", "kaggle", "local"]

# What tells platforms apart, and so must not shine through from the machine that is practised on.
_TELLTALES = re.compile(
    "COLAB|KAGGLE|VERTEX_|TBE_|SAGEMAKER_|PAPERSPACE_|LIGHTNING_|DATABRICKS_|DEEPNOTE_|CODESPACES|DATALORE_|HEX_|"
    "CLOUD_SHELL|JPY_PARENT_PID|CLOUDSDK_CONFIG|USE_AUTH_EPHEM|ENABLE_DIRECTORYPREFETCHER"
)
_RELEASE = "release-colab_20250902-060100_RC00"


def check_preset(preset: str) -> None:
    """Refuse a word that names no preset.

    Raises:
        OptionError: the message lists the presets.
    """
    if preset not in get_args(Preset):
        msg = f"{preset!r} is no practice machine. There are: {', '.join(get_args(Preset))}."
        raise OptionError(msg)


def variables_of(preset: Preset, root: Path) -> dict[str, str]:
    """The environment variables that the platform sets, with its folders under `root`."""
    practice = {SYSTEM_ROOT_VARIABLE: str(root)}
    if preset == "local":
        return practice
    home = {"HOME": str(root / "root"), "COLAB_RELEASE_TAG": _RELEASE}
    if preset == "kaggle":
        proxy = {"KAGGLE_DATA_PROXY_URL": "https://dp.kaggle.net", "KAGGLE_URL_BASE": "https://www.kaggle.com"}
        return practice | home | proxy | {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "JPY_PARENT_PID": "9"}
    return practice | home | _colab_variables(preset, root)


def _colab_variables(preset: Preset, root: Path) -> dict[str, str]:
    variables = {
        "COLAB_GPU": "1" if preset == "colab_gpu" else "",  # set and empty on a machine without a GPU
        "COLAB_TPU_1VM": "",
        "COLAB_BACKEND_VERSION": "next",
        "COLAB_JUPYTER_TRANSPORT": "ipc",
        "COLAB_JUPYTER_IP": "172.28.0.12",
        "COLAB_NOTEBOOK_ID": "practice",
        "COLAB_FILE_HANDLER_ADDR": "localhost:3453",
        "TBE_CREDS_ADDR": "172.28.0.1:8008",
        "TBE_EPHEM_CREDS_ADDR": "172.28.0.1:8009",
        "TBE_RUNTIME_ADDR": "172.28.0.1:8011",
        "USE_AUTH_EPHEM": "1",
        "CLOUDSDK_CONFIG": str(root / "content/.config"),
        "ENABLE_DIRECTORYPREFETCHER": "1",
        "JPY_PARENT_PID": "94",
        "PYTHONUTF8": "1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    if find_spec("matplotlib_inline"):
        variables["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    if preset == "colab_enterprise":
        variables["VERTEX_PRODUCT"] = "COLAB_ENTERPRISE"
    return variables


def make_machine(preset: Preset, root: Path) -> None:
    """Create the folders and marker files of a fresh machine; what is there already stays."""
    root.mkdir(parents=True, exist_ok=True)
    if preset == "local":
        return
    folders = ("root", "kaggle/working", "kaggle/input") if preset == "kaggle" else ("root", "content/.config")
    for name in folders:
        (root / name).mkdir(parents=True, exist_ok=True)
    if preset != "kaggle":
        (root / "var/colab").mkdir(parents=True, exist_ok=True)
        (root / "var/colab/hostname").write_text("m-s-practice\n", encoding="ascii")


def wipe_machine(preset: Preset, root: Path) -> None:
    """Take the machine's own disk away, and give a fresh one."""
    for name in ("root", "content", "kaggle", "tmp", "var"):
        shutil.rmtree(root / name, ignore_errors=True)
    make_machine(preset, root)


@contextlib.contextmanager
def environment(preset: Preset, root: Path) -> Iterator[None]:
    """Give this process the platform's environment variables, and its own ones back afterwards."""
    before = dict(os.environ)
    try:
        for name in [name for name in os.environ if _TELLTALES.match(name)]:
            del os.environ[name]
        os.environ.update(variables_of(preset, root))
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

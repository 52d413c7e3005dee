"""Stage a dataset from slow storage once, and read it at memory speed in every epoch after.

    data = colabstage.stage_dataset("/content/drive/MyDrive/photos.zip", image_size=(224, 224))
    for x, y in data.loader("train", batch_size=64): ...

Public names, torch and h5py are imported on first use, so `import colabstage` takes almost no time.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colabstage import errors as errors
    from colabstage import options as options
    from colabstage import transforms as transforms
    from colabstage.diagnose.autotune import autotune_loader
    from colabstage.diagnose.compare import compare_sources
    from colabstage.diagnose.doctor import doctor
    from colabstage.diagnose.gpu import GpuMonitor
    from colabstage.diagnose.profile import LoaderProfile, profile_loader
    from colabstage.errors import ColabstageError
    from colabstage.h5.manifest import verify_file
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.device import CudaDataLoader
    from colabstage.load.frameworks.arrays import to_keras, to_numpy
    from colabstage.load.frameworks.hugging_face import to_hf
    from colabstage.load.frameworks.tensorflow import to_tf_data
    from colabstage.load.loader import make_loader
    from colabstage.machine.drive import flush_drive, mount_drive, refresh_drive
    from colabstage.notebook.browser import browse_dataset
    from colabstage.notebook.form import stage_form
    from colabstage.notebook.plots import plot_class_balance, plot_image_sizes
    from colabstage.pack.run import pack_dataset
    from colabstage.runs.listing import list_runs
    from colabstage.runs.run import resumable
    from colabstage.sources.fetching import extract_archive, fetch_files
    from colabstage.stage.dataset import StagedDataset
    from colabstage.stage.plan import plan_stage
    from colabstage.stage.publish import publish_file, restore_file
    from colabstage.stage.purge import list_datasets, purge_datasets
    from colabstage.stage.run import stage_dataset

    __version__: str

__all__ = [
    "ColabstageError",
    "CudaDataLoader",
    "GpuMonitor",
    "LoaderProfile",
    "StagedDataset",
    "autotune_loader",
    "browse_dataset",
    "compare_sources",
    "dataset_h5",
    "doctor",
    "extract_archive",
    "fetch_files",
    "flush_drive",
    "list_datasets",
    "list_runs",
    "make_loader",
    "mount_drive",
    "pack_dataset",
    "plan_stage",
    "plot_class_balance",
    "plot_image_sizes",
    "profile_loader",
    "publish_file",
    "purge_datasets",
    "refresh_drive",
    "restore_file",
    "resumable",
    "stage_dataset",
    "stage_form",
    "to_hf",
    "to_keras",
    "to_numpy",
    "to_tf_data",
    "verify_file",
]

_HOMES = {
    "ColabstageError": "errors",
    "CudaDataLoader": "load.device",
    "GpuMonitor": "diagnose.gpu",
    "LoaderProfile": "diagnose.profile",
    "StagedDataset": "stage.dataset",
    "autotune_loader": "diagnose.autotune",
    "browse_dataset": "notebook.browser",
    "compare_sources": "diagnose.compare",
    "dataset_h5": "load.dataset",
    "doctor": "diagnose.doctor",
    "extract_archive": "sources.fetching",
    "fetch_files": "sources.fetching",
    "flush_drive": "machine.drive",
    "list_datasets": "stage.purge",
    "list_runs": "runs.listing",
    "make_loader": "load.loader",
    "mount_drive": "machine.drive",
    "pack_dataset": "pack.run",
    "plan_stage": "stage.plan",
    "plot_class_balance": "notebook.plots",
    "plot_image_sizes": "notebook.plots",
    "profile_loader": "diagnose.profile",
    "publish_file": "stage.publish",
    "purge_datasets": "stage.purge",
    "refresh_drive": "machine.drive",
    "restore_file": "stage.publish",
    "resumable": "runs.run",
    "stage_dataset": "stage.run",
    "stage_form": "notebook.form",
    "to_hf": "load.frameworks.hugging_face",
    "to_keras": "load.frameworks.arrays",
    "to_numpy": "load.frameworks.arrays",
    "to_tf_data": "load.frameworks.tensorflow",
    "verify_file": "h5.manifest",
}

# Modules that need no import of their own.
_MODULES = ("errors", "options", "transforms")
_NEED_TORCH = ("CudaDataLoader", "dataset_h5", "make_loader", "resumable")

# Without torch, `from colabstage import *` leaves out the names that need it; importing one by name says why it fails.
if not TYPE_CHECKING and "torch" not in sys.modules and PathFinder.find_spec("torch") is None:
    __all__ = [name for name in __all__ if name not in _NEED_TORCH]


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *__all__, *_NEED_TORCH, *_MODULES, "__version__"})


# Hidden from type checkers, which would otherwise accept any misspelt name as this function's return type.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            value = version("colabstage")
        elif name in _MODULES:
            from importlib import import_module

            value = import_module(f"colabstage.{name}")
        elif name in _HOMES:
            from importlib import import_module

            whole_imports = import_module("colabstage.io.packages").whole_imports
            with whole_imports():
                value = getattr(import_module(f"colabstage.{_HOMES[name]}"), name)
        else:
            from difflib import get_close_matches

            # Here, because notebooks do not show what Python itself suggests.
            near = get_close_matches(name, __dir__(), 1)
            msg = f"module 'colabstage' has no attribute {name!r}" + "".join(f". Did you mean {one!r}?" for one in near)
            raise AttributeError(msg)
        globals()[name] = value
        return value

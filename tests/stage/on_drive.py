"""The public functions with a path on Drive: called with that path, a local file and a folder of images."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import colabstage

Verb = Callable[[Path, Path, Path], object]
SIZE = (8, 8)

VERBS: dict[str, Verb] = {
    "publish_file": lambda on, model, images: colabstage.publish_file(model, f"{on}/ck/", progress=False),
    "publish_file, waiting": lambda on, model, images: colabstage.publish_file(
        model, f"{on}/ck/", wait_uploaded=True, progress=False
    ),
    "publish_file, from Drive": lambda on, model, images: colabstage.publish_file(on / "m.pt", model, progress=False),
    "restore_file": lambda on, model, images: colabstage.restore_file(on / "m.pt", model, progress=False),
    "restore_file, to Drive": lambda on, model, images: colabstage.restore_file(model, on / "m.pt", progress=False),
    "stage_dataset": lambda on, model, images: colabstage.stage_dataset(
        on / "photos.zip", image_size=SIZE, progress=False
    ),
    "stage_dataset, pattern": lambda on, model, images: colabstage.stage_dataset(
        on / "part-*.zip", image_size=SIZE, progress=False
    ),
    "stage_dataset, cache_dir": lambda on, model, images: colabstage.stage_dataset(
        images, image_size=SIZE, cache_dir=on / "cache", progress=False
    ),
    "stage_dataset, local_dir": lambda on, model, images: colabstage.stage_dataset(
        images, image_size=SIZE, local_dir=on / "local", progress=False
    ),
    "plan_stage": lambda on, model, images: colabstage.plan_stage(on / "photos.zip", image_size=SIZE),
    "plan_stage, cache_dir": lambda on, model, images: colabstage.plan_stage(
        images, image_size=SIZE, cache_dir=on / "cache"
    ),
    "pack_dataset": lambda on, model, images: colabstage.pack_dataset(
        images, on / "pack.h5", image_size=SIZE, progress=False
    ),
    "pack_dataset, from Drive": lambda on, model, images: colabstage.pack_dataset(
        on / "photos", model.with_name("pack.h5"), image_size=SIZE, progress=False
    ),
    "pack_dataset, appending": lambda on, model, images: colabstage.pack_dataset(
        images, append_to=on / "pack.h5", image_size=SIZE, progress=False
    ),
    "pack_dataset, of a dataset": lambda on, model, images: colabstage.pack_dataset(
        [(number, 0) for number in range(4)], on / "pack.h5", progress=False
    ),
    "fetch_files": lambda on, model, images: colabstage.fetch_files(images, on / "copy", progress=False),
    "fetch_files, from Drive": lambda on, model, images: colabstage.fetch_files(
        on / "photos", model.with_name("copy"), progress=False
    ),
    "extract_archive": lambda on, model, images: colabstage.extract_archive(
        shutil.make_archive(str(images), "zip", images), on / "out", progress=False
    ),
    "extract_archive, from Drive": lambda on, model, images: colabstage.extract_archive(
        on / "photos.zip", model.with_name("out"), progress=False
    ),
    "dataset_h5": lambda on, model, images: colabstage.dataset_h5(on / "pack.h5"),
    "compare_sources": lambda on, model, images: colabstage.compare_sources(on / "photos", image_size=SIZE),
    "list_datasets": lambda on, model, images: colabstage.list_datasets(cache_dir=on / "cache"),
    "list_datasets, local_dir": lambda on, model, images: colabstage.list_datasets(
        local_dir=on / "local", cache_dir=None
    ),
}

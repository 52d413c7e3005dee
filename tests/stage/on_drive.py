"""The public functions that take a path on Drive, each as a call with paths on Drive and on the local disk.

make_places(cloud / "MyDrive", tmp_path)
for call in VERBS.values():
    call(On(mounted / "MyDrive", tmp_path))
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import colabstage
from tests.support.archives import zip_bytes
from tests.support.images import in_classes, make_tree

SIZE = (8, 8)


@dataclass(frozen=True)
class On:
    """Drive's folder, and a local folder with the same files."""

    drive: Path
    local: Path

    def stage(self, source: Path | str, function: Callable[..., Any] = colabstage.stage_dataset, **options: Any) -> Any:
        """Stage, or plan it, on the local disk unless the options say otherwise."""
        places = {"local_dir": self.local / "fast", "cache_dir": None, "image_size": SIZE}
        quiet = {} if function is colabstage.plan_stage else {"progress": False}
        return function(source, **{**places, **quiet, **options})


def make_places(drive: Path, local: Path) -> None:
    """Write the calls' inputs, on both sides."""
    files = make_tree(local, {**{f"photos/{name}": n for name, n in in_classes(4).items()}, "new.pt": "weights"})
    photos = {str(path.relative_to(local / "photos")): path.read_bytes() for path in files.rglob("*.png")}
    (local / "photos.zip").write_bytes(zip_bytes(photos))
    colabstage.pack_dataset(local / "photos", local / "pack.h5", image_size=SIZE, progress=False)
    colabstage.publish_file(local / "new.pt", local / "m.pt", progress=False)
    shutil.copytree(local, drive, dirs_exist_ok=True)
    shutil.copy(local / "photos.zip", drive / "part-1.zip")


def _from(verb: Callable[..., Any], name: str, **options: Any) -> Callable[[On], Any]:
    return lambda on: verb(on.drive / name, on.local / f"of-{name}", progress=False, **options)


def _to(verb: Callable[..., Any], name: str, target: str, **options: Any) -> Callable[[On], Any]:
    return lambda on: verb(on.local / name, f"{on.drive}/{target}", progress=False, **options)


VERBS: dict[str, Callable[[On], Any]] = {
    "publish_file": _to(colabstage.publish_file, "new.pt", "ck/"),
    "publish_file, waiting": _to(colabstage.publish_file, "new.pt", "waited/", wait_uploaded=True),
    "publish_file, from Drive": _from(colabstage.publish_file, "new.pt"),
    "restore_file": _from(colabstage.restore_file, "m.pt"),
    "restore_file, to Drive": _to(colabstage.restore_file, "m.pt", "restored.pt"),
    "stage_dataset": lambda on: on.stage(on.drive / "photos.zip"),
    "stage_dataset, pattern": lambda on: on.stage(on.drive / "part-*.zip"),
    "stage_dataset, cache_dir": lambda on: on.stage(on.local / "photos.zip", cache_dir=on.drive / "cache"),
    "stage_dataset, local_dir": lambda on: on.stage(on.local / "photos", local_dir=on.drive / "fast"),
    "plan_stage": lambda on: on.stage(on.drive / "photos", colabstage.plan_stage),
    "plan_stage, cache_dir": lambda on: on.stage(
        on.local / "photos", colabstage.plan_stage, cache_dir=on.drive / "cache"
    ),
    "pack_dataset": _to(colabstage.pack_dataset, "photos", "a.h5", image_size=SIZE),
    "pack_dataset, shards": _to(colabstage.pack_dataset, "photos", "b.h5", image_size=SIZE, shards=2),
    "pack_dataset, from Drive": lambda on: colabstage.pack_dataset(
        on.drive / "photos", on.local / "c.h5", image_size=SIZE, progress=False
    ),
    "pack_dataset, appending": lambda on: colabstage.pack_dataset(
        make_tree(on.local / "more", {"cat/9.png": 9, "dog/8.png": 8}),
        append_to=on.drive / "pack.h5",
        image_size=SIZE,
        progress=False,
    ),
    "pack_dataset, of a dataset": lambda on: colabstage.pack_dataset(
        [(float(number), number) for number in range(4)], on.drive / "d.h5", progress=False
    ),
    "fetch_files": _to(colabstage.fetch_files, "photos", "copy"),
    "fetch_files, from Drive": _from(colabstage.fetch_files, "photos"),
    "extract_archive": _to(colabstage.extract_archive, "photos.zip", "out"),
    "extract_archive, from Drive": _from(colabstage.extract_archive, "photos.zip"),
    "dataset_h5": lambda on: len(colabstage.dataset_h5(on.drive / "pack.h5", in_memory=True)),
    "compare_sources": lambda on: colabstage.compare_sources(on.drive / "photos", image_size=SIZE),
    "list_datasets": lambda on: colabstage.list_datasets(cache_dir=on.drive / "cache"),
    "list_datasets, local_dir": lambda on: colabstage.list_datasets(local_dir=on.drive / "fast", cache_dir=None),
}
# Without their cache, these continue with a note.
GO_ON = {"stage_dataset, cache_dir", "plan_stage, cache_dir"}

"""A dataset in a folder, a zip, tars, or a zip on the web, streamed or not, becomes the same pack."""

from __future__ import annotations

import io
import json
import random
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage.errors import ColabstageError
from colabstage.stage.run import stage_dataset
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Files = dict[str, bytes]
SIZE = (8, 10)


def image(number: int, kind: str = "PNG") -> bytes:
    """An image that no other number gives."""
    made = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (*SIZE, 3), np.uint8)
    Image.fromarray(pixels).save(made, kind)
    return made.getvalue()


def mask(number: int) -> bytes:
    """A mask of three classes."""
    made = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 3, SIZE, np.uint8)).save(made, "PNG")
    return made.getvalue()


def class_folders(names: Sequence[str]) -> Files:
    return {f"{('cat', 'Ärger', '10')[n % 3]}/{name}.png": image(n) for n, name in enumerate(names)}


def split_folders(names: Sequence[str]) -> Files:
    """JPEGs, in splits that are not called as colabstage calls them."""
    return {
        f"{('Train', 'valid')[n % 2]}/{('a', 'b')[n // 2 % 2]}/{name}.JPG": image(n, "JPEG")
        for n, name in enumerate(names)
    }


def table(names: Sequence[str]) -> Files:
    rows = "".join(f"{name}.png,{'xy'[n % 2]}\n" for n, name in enumerate(names))
    files = {f"images/{name}.png": image(n) for n, name in enumerate(names)}
    return {**files, "labels.csv": f"filename,label\n{rows}".encode()}


def pairs(names: Sequence[str]) -> Files:
    images = {f"images/{name}.png": image(n) for n, name in enumerate(names)}
    return {**images, **{f"masks/{name}.png": mask(n) for n, name in enumerate(names)}}


def yolo(names: Sequence[str]) -> Files:
    """Boxes, of some images none."""
    labels = {
        f"labels/{name}.txt": b"".join(b"%d 0.5 0.5 0.%d 0.4\n" % (k, 1 + n % 9) for k in range(n % 3))
        for n, name in enumerate(names)
    }
    images = {f"images/{name}.png": image(n) for n, name in enumerate(names)}
    return {**images, **labels, "classes.txt": b"a\nb\n"}


def coco(names: Sequence[str]) -> Files:
    """Boxes whose categories are not numbered from 0, of some images none."""
    images = [
        {"id": n, "file_name": f"{name}.png", "width": SIZE[1], "height": SIZE[0]} for n, name in enumerate(names)
    ]
    boxes = [
        {"id": n, "image_id": n, "category_id": 1 + 2 * (n % 2), "bbox": [1, 1, 2 + n % 3, 2]}
        for n in range(0, len(names), 2)
    ]
    said = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "p"}, {"id": 3, "name": "q"}]}
    return {**{f"images/{name}.png": image(n) for n, name in enumerate(names)}, "a.json": json.dumps(said).encode()}


def spoil(files: Files, how: str, victim: str) -> Files:
    """What is found in real datasets: leftovers of other systems, files that are not whole or not images, copies."""
    match how:
        case "leftovers":
            folder = victim.rpartition("/")[0]
            return {**files, f"__MACOSX/{folder}/._x.png": b"\0\5\x16\7" + bytes(99), f"{folder}/Thumbs.db": b"x"}
        case "empty":
            return {**files, victim: b""}
        case "cut off":
            return {**files, victim: files[victim][: len(files[victim]) // 2]}
        case "a page":
            return {**files, victim: b"<html>Sign in</html>"}
        case _:
            stem, _, extension = victim.rpartition(".")
            return {**files, f"{stem}_copy.{extension}": files[victim]}


def write_containers(files: Files, place: Path, order: random.Random) -> dict[str, Path]:
    """Write the files to a folder and into archives, in each of which they have another order."""
    made = {name: place / name for name in ("data", "data.zip", "data.tar", "data.tar.gz")}
    for name, data in files.items():
        path = made["data"] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    names = list(files)
    with zipfile.ZipFile(made["data.zip"], "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in order.sample(names, len(names)):
            zipped.writestr(name, files[name])
    for path, mode in ((made["data.tar"], "w"), (made["data.tar.gz"], "w:gz")):
        with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
            for name in order.sample(names, len(names)):
                tar.add(made["data"] / name, name)
    return made


def values_of(path: Path) -> dict[str, Any]:
    """Read every value in a pack with plain h5py, by its place in the file."""
    found: dict[str, Any] = {}

    def read(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()].tolist()

    with h5py.File(path, "r") as file:
        file.visititems(read)
    return found


def outcome(source: Path | str, place: Path, **options: Any) -> tuple[Any, ...]:
    """Every value in the pack, its splits and classes, how many were left out; or the type of the error."""
    try:
        data = stage_dataset(source, local_dir=place, cache_dir=None, progress=False, **options).wait(progress=False)
    except ColabstageError as error:
        return (type(error).__name__,)
    return values_of(data.path), data.splits, data.classes, len(data.report.skipped)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from([class_folders, split_folders, table, pairs, yolo, coco]),
    count=st.integers(8, 20),
    naming=st.sampled_from(["{}", "IMG {:03}", "ünï{}"]),
    above=st.sampled_from(["", "a/b/", "My photos é/"]),
    spoilt=st.none() | st.sampled_from(["leftovers", "empty", "cut off", "a page", "copied"]),
    options=st.fixed_dictionaries(
        {}, optional={"image_size": st.just((8, 8)), "on_error": st.just("skip"), "encoding": st.just("encoded")}
    ),
    seed=st.integers(0, 99),
)
def test_a_dataset_is_the_same_in_every_container_streamed_or_not(
    tmp_path: Path,
    form: Callable[[Sequence[str]], Files],
    count: int,
    naming: str,
    above: str,
    spoilt: str | None,
    options: dict[str, Any],
    seed: int,
) -> None:
    order = random.Random(seed)
    files = form([naming.format(n) for n in range(count)])
    if spoilt is not None:
        files = spoil(files, spoilt, order.choice([name for name in files if name.lower().endswith((".png", ".jpg"))]))
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    made = write_containers({above + name: data for name, data in files.items()}, place, order)
    with WebServer({"data.zip": made["data.zip"]}) as web:
        sources: dict[str, Path | str] = {**made, "web": web.url("data.zip")}
        found = {name: outcome(source, place / f"of {name}", **options) for name, source in sources.items()}
        for name in ("data", "data.zip", "web"):
            found[f"{name}, streamed"] = outcome(
                sources[name], place / f"streamed of {name}", streaming=True, **options
            )
    expected = found["data"]
    if spoilt in (None, "leftovers") or "on_error" in options:
        assert len(expected) == 4, expected
    for name, got in found.items():
        assert got == expected, name

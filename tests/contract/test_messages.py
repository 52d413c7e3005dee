"""The texts of errors: one table of failing calls, and one file of their messages. No other test pins wording.

A scenario is a line in `SCENARIOS`: its name, and the call. After changing the wording or adding a line, write the file
anew and review the diff:

    python -m tests.contract.test_messages
"""

import contextlib
import gzip
import importlib
import json
import re
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pytest

from colabstage import (
    compare_sources,
    dataset_h5,
    extract_archive,
    fetch_files,
    flush_drive,
    make_loader,
    mount_drive,
    pack_dataset,
    plan_stage,
    publish_file,
    refresh_drive,
    restore_file,
    resumable,
    stage_dataset,
    stage_form,
    to_hf,
)
from colabstage import errors as all_errors
from colabstage.errors import ColabstageError
from colabstage.options import LoaderOptions, table_rows
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.support.colab import ColabKnobs, simulated_colab
from tests.support.http_knobs import WebFault
from tests.support.http_server import WebServer
from tests.support.images import image, in_classes, make_tree
from tests.support.made_files import npy
from tests.support.share_links import DriveShares, SharedItem
from tests.support.steps import Meanwhile

TEXTS = Path(__file__).with_name("messages.txt")
AGAIN = "python -m tests.contract.test_messages"
FILE_ID = "1AbCdEfGhIjKlMnOpQrStUvWxYz012345"
LINK = f"https://drive.google.com/file/d/{FILE_ID}/view?usp=sharing"


class World:
    """A folder of small files, right and wrong; `world / "name"` is one of them, `world.new()` an unused target."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.server: WebServer
        self.shares: DriveShares
        self._count = 0
        make_files(home)

    def __truediv__(self, name: str) -> Path:
        return self.home / name

    def new(self) -> Path:
        self._count += 1
        return self.home / "out" / str(self._count)

    def stage(self, source: Any, **options: Any) -> Any:
        """Stage something in this folder; a string without `:` is a name in it."""
        is_name = isinstance(source, str) and ":" not in source
        places = {"local_dir": self.new(), "cache_dir": None, "progress": False}
        return stage_dataset(self / source if is_name else source, **{**places, **options})

    def pack(self, source: str, target: Path | Literal["new"] | None = "new", **options: Any) -> Any:
        to = f"{self.new()}.h5" if target == "new" else target
        return pack_dataset(self / source, to, **quiet(options))

    def tree(self, files: dict[str, Any], **options: Any) -> Any:
        return self.stage(make_tree(self.new() / "set", files), **options)

    def extract(self, name: str, **options: Any) -> Any:
        return extract_archive(self / name, self.new(), **quiet(options))

    def fetch(self, source: Any, **options: Any) -> Any:
        return fetch_files(source, str(self.new() / "file"), **quiet(options))

    def fetch_to(self, source: str, target: str, *, overwrite: bool = True) -> Any:
        return fetch_files(self / source, str(self / target), overwrite=overwrite, progress=False)

    def fetch_with(self, fault: WebFault, name: str = "photos.zip") -> Any:
        self.server.set_faults(fault)
        try:
            return self.fetch(self.server.url(name))
        finally:
            self.server.set_faults()

    def fetch_shared(self, state: Any) -> Any:
        self.shares.add(SharedItem(FILE_ID, "a.bin", content=b"a" * 100, state=state))
        return self.fetch(LINK)

    def open(self, name: str = "photos.h5", **options: Any) -> dataset_h5:
        return dataset_h5(self / name, **options)

    def loader(self, batch_size: Any = 2, **options: Any) -> Any:
        return make_loader(self.open(), batch_size, **options)

    def zip(self, *members: tuple[zipfile.ZipInfo | str, bytes]) -> Path:
        path = self.new().with_suffix(".zip")
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a name that occurs twice
            for name, content in members:
                archive.writestr(name, content)
        return path

    def h5(self, **datasets: Any) -> Path:
        path = self.new().with_suffix(".h5")
        path.parent.mkdir(exist_ok=True)
        with h5py.File(path, "w") as file:
            for name, values in datasets.items():
                file[name] = values
        return path


def quiet(options: dict[str, Any]) -> dict[str, Any]:
    return {"progress": False, **options}


def make_files(home: Path) -> None:
    make_tree(home / "photos", in_classes(8))
    make_tree(home / "one", {"cat/1.png": 1})
    make_tree(home / "texts", {"a.txt": "a", "b.md": "b"})
    make_tree(home / "broken", {**in_classes(4), "cat/broken.png": image(1)[:40]})
    make_tree(
        home, {"notes.txt": "notes\n", "empty.zip": "", "model.bin": "m" * 5000, "alone/photos.csv": "a,b\n1,2\n"}
    )
    make_tree(home, {"some.7z": b"7z\xbc\xaf\x27\x1c\0\4" + bytes(64)})
    for name in ("nothing", "out"):
        (home / name).mkdir()
    with zipfile.ZipFile(home / "photos.zip", "w") as zipped, tarfile.open(home / "photos.tar", "w") as tarred:
        for path in sorted((home / "photos").rglob("*.png")):
            zipped.writestr(zipfile.ZipInfo(str(path.relative_to(home / "photos"))), path.read_bytes())
            tarred.add(path, path.relative_to(home / "photos"))
    whole = (home / "photos.zip").read_bytes()
    (home / "cut.zip").write_bytes(whole[:600])
    (home / "cut.tar").write_bytes((home / "photos.tar").read_bytes()[:700])
    (home / "cut.gz").write_bytes(gzip.compress(bytes(5000), mtime=0)[:20])
    place = whole.index(image(0))
    (home / "flipped.zip").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    pack_dataset(home / "photos", home / "photos.h5", progress=False)
    pack_dataset(home / "photos", home / "cut.h5", progress=False)
    (home / "cut.h5").write_bytes((home / "cut.h5").read_bytes()[:2000])
    pack_dataset(home / "photos", home / "newer.h5", progress=False)
    with h5py.File(home / "newer.h5", "r+") as file:
        file.attrs["colabstage_format"] = 99
    (home / "notes.h5").write_bytes(b"no HDF5 at all")
    publish_file(home / "model.bin", home / "published.bin", progress=False)
    publish_file(home / "model.bin", home / "spoilt.bin", progress=False)
    (home / "spoilt.bin").write_bytes(b"n" * 5000)


def uninstalled(call: Callable[[], object], package: str) -> object:
    """Make a call as if this package were not installed, nor any tool."""
    was = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
    for name in was:
        del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", "/nowhere")
            return call()
    finally:
        del sys.modules[package]
        sys.modules.update(was)


def with_variable(name: str, value: str, call: Callable[[], object]) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        return call()


def in_colab(world: World, call: Callable[[Path], object], **knobs: Any) -> object:
    """Make a call on a practice Colab; its argument is where Drive would be mounted."""
    with simulated_colab(world.new(), knobs=ColabKnobs(**knobs)) as machine:
        return call(machine.root / "content/drive")


def on_drive(world: World, call: Callable[[Path], object], *, dies: bool = False) -> object:
    """Make a call on a machine with a mounted Drive, whose client may have died."""
    place = world.new() / "content/drive"
    with SimulatedDrive(world.new(), knobs=DriveKnobs.quick()) as drive:
        make_tree(drive.cloud / "MyDrive/photos", in_classes(4))
        drive.mount(place)
        if dies:
            drive.kill()
        return call(place / "MyDrive")


class Dying(Executor):
    """Workers that all die at once."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(CancelledError("A worker was terminated abruptly"))
        return future


def slowly(pixels: Any) -> Any:
    """Prepare a sample slowly, so that the call can be stopped meanwhile."""
    time.sleep(0.1)
    return pixels


def cancel(world: World) -> object:
    """Stop a dataset that is being staged in the background, and wait for it."""
    data = world.stage("photos", streaming=True, prepare=slowly)
    data.cancel()
    return data.wait(progress=False)


def rewrite(world: World) -> object:
    path = make_tree(world.new(), {"model.bin": "m" * 5000}) / "model.bin"
    return publish_file(path, world.new() / "model.bin", progress=Meanwhile(lambda: path.write_bytes(b"n" * 6000)))


def named(*names: str) -> Any:
    """Return arrays by name, as people mean a dataset of them."""
    return dict.fromkeys(names, np.zeros(4))


def table(text: str, **more: Any) -> dict[str, Any]:
    return {**{f"images/{number}.png": number for number in range(4)}, "labels.csv": text, **more}


def link(name: str, to: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.external_attr = 0o120777 << 16
    return member


ABC = "name,label\n0.png,cat\n1.png,dog\n2.png,cat\n3.png,dog\n"
TURNED = "name,label\n" + "".join(f"{name},{'dog' if 'cat' in name else 'cat'}\n" for name in in_classes(4))
SCENARIOS: dict[str, Callable[[World], object]] = {
    # --- sources ---
    "no such folder": lambda w: w.stage("nowhere"),
    "no such file, one with another spelling": lambda w: w.stage("Photos.zip"),
    "no such file to fetch": lambda w: w.fetch(w / "nowhere.zip"),
    "no such archive": lambda w: w.extract("nowhere.zip"),
    "no such source to pack": lambda w: w.pack("nowhere"),
    "a pattern to pack": lambda w: w.pack("photos/*/*.jpg"),
    "no such source to plan": lambda w: plan_stage(w / "nowhere", cache_dir=None),
    "no such sources to compare": lambda w: compare_sources(w / "nowhere"),
    "no such pack": lambda w: w.open("nowhere.h5"),
    "a pattern that matches nothing": lambda w: w.open("nowhere-*.h5"),
    "a pattern of archives that matches nothing": lambda w: w.stage(w / "nowhere-*.zip"),
    "an empty list of sources": lambda w: w.stage([]),
    "a source of another type": lambda w: w.stage(5),
    "an empty path": lambda w: stage_dataset("", cache_dir=None),
    "an unknown kind of address": lambda w: w.stage("nosuch://host/data.zip"),
    "a page of a shared folder's kind that is none": lambda w: w.stage("https://drive.google.com/drive/my-drive"),
    "a Kaggle address without a dataset": lambda w: w.stage("kaggle://ann"),
    "404": lambda w: w.fetch(w.server.url("nowhere.zip")),
    "403": lambda w: w.fetch_with(WebFault(kind="status", status=403)),
    "a server that cannot": lambda w: w.fetch_with(WebFault(kind="status", status=501)),
    "another length than promised": lambda w: w.fetch_with(WebFault(kind="length", delta=7)),
    "410": lambda w: w.fetch_with(WebFault(kind="status", status=410)),
    "a web page in place of the data": lambda w: w.fetch_with(WebFault(kind="html")),
    "a web page in place of a dataset": lambda w: w.stage(w.server.url("page.zip")),
    "a file that is not the one of the hash": lambda w: w.fetch(w.server.url("photos.zip"), hash="md5:" + "0" * 32),
    "a local file that is not the one of the hash": lambda w: w.fetch(w / "photos.zip", hash="md5:" + "0" * 32),
    "a hash of unknown kind": lambda w: w.fetch(w / "photos.zip", hash="crc:00"),
    "a hash of a wrong length": lambda w: w.fetch(w / "photos.zip", hash="abc"),
    "a hash of a folder": lambda w: w.fetch(w / "photos", hash="md5:" + "0" * 32),
    "a shared file that is not shared": lambda w: w.fetch_shared("private"),
    "a shared file over its quota": lambda w: w.fetch_shared("quota"),
    "too many requests to Drive": lambda w: w.fetch_shared("rate"),
    "a share link of nothing": lambda w: w.fetch(LINK.replace("1AbC", "1XyZ")),
    # --- targets ---
    "a file in the way of fetching": lambda w: w.fetch_to("photos", "notes.txt", overwrite=False),
    "a folder in the way of extracting": lambda w: extract_archive(w / "photos.zip", w / "one", progress=False),
    "a pack in the way of packing": lambda w: w.pack("photos", w / "photos.h5"),
    "a target that holds the source": lambda w: w.fetch_to("photos/cat", "photos"),
    "a target that is the source": lambda w: w.fetch_to("photos", "photos"),
    "a folder that is a file": lambda w: w.stage("photos", local_dir=w / "notes.txt"),
    "a target below a file": lambda w: w.pack("photos", w / "notes.txt/it.h5"),
    "a local_dir that is an address": lambda w: w.stage("photos", local_dir="s3://bucket/here"),
    "a cache_dir that is a web address": lambda w: w.stage("photos", cache_dir="https://example.org/cache"),
    "a variable for local_dir that is an address": lambda w: with_variable(
        "COLABSTAGE_LOCAL_DIR", "s3://bucket/here", lambda: w.stage("photos", local_dir=None)
    ),
    "a variable for cache_dir that is a web address": lambda w: with_variable(
        "COLABSTAGE_CACHE_DIR", "https://example.org/cache", lambda: w.stage("photos", cache_dir="auto")
    ),
    "a pack to append to that is not there": lambda w: w.pack("photos", None, append_to=w / "nowhere.h5"),
    "neither target nor append_to": lambda w: w.pack("photos", None),
    "both target and append_to": lambda w: w.pack("photos", append_to=w / "photos.h5"),
    # --- archives ---
    "an empty archive": lambda w: w.extract("empty.zip"),
    "a text that is no archive": lambda w: w.extract("notes.txt"),
    "a folder that is no archive": lambda w: w.extract("photos"),
    "a zip that ends early": lambda w: w.extract("cut.zip"),
    "a zip that ends early, staged": lambda w: w.stage("cut.zip"),
    "a tar that ends early": lambda w: w.extract("cut.tar"),
    "a gzip that ends early": lambda w: w.extract("cut.gz"),
    "a member that was damaged": lambda w: w.extract("flipped.zip"),
    "a member that was damaged, packed": lambda w: w.stage("flipped.zip"),
    "an archive inside an archive": lambda w: w.stage(str(w.zip(("a.zip", b""), ("b.zip", b"")))),
    "a member outside": lambda w: w.extract(str(w.zip(("../a.txt", b"a")))),
    "a link that leads outside": lambda w: w.extract(str(w.zip((link("a", "x"), b"../../etc/passwd")))),
    "names that are one on other disks": lambda w: w.extract(str(w.zip(("a/b", b"1"), ("a", b"2")))),
    "without py7zr or 7z": lambda w: uninstalled(lambda: w.extract("some.7z"), "py7zr"),
    # --- layouts ---
    "an empty folder": lambda w: w.stage("nothing"),
    "a folder without samples": lambda w: w.stage("texts"),
    "a layout of unknown name": lambda w: w.stage("photos", layout="image_folders"),
    "a layout that does not fit": lambda w: w.stage("photos", layout="detection"),
    "a layout that is not one": lambda w: w.stage("photos", layout=5),
    "an image that cannot be decoded": lambda w: w.stage("broken"),
    "too many images that cannot be decoded": lambda w: w.stage("broken", on_error="skip:1%"),
    "a table that names no file": lambda w: w.tree(table("name,label\nx.png,cat\ny.png,dog\n"), layout="table"),
    "a table with a file twice": lambda w: w.tree(table(ABC + "0.png,dog\n"), layout="table"),
    "a column that a table lacks": lambda w: w.tree(table(ABC), layout=table_rows(labels=["breed"])),
    "two tables": lambda w: w.tree(table(ABC, **{"other.csv": ABC.replace("cat", "cow")})),
    "labels in two ways": lambda w: w.tree({**in_classes(4), "labels.csv": TURNED}),
    "an empty table": lambda w: w.tree(table(""), layout="table"),
    "JSON that is broken": lambda w: w.tree({"images/0.png": 0, "a.json": '{"images": ['}, layout="detection"),
    "JSON without what COCO has": lambda w: w.tree({"images/0.png": 0, "a.json": '{"images": []}'}, layout="detection"),
    "arrays of other lengths": lambda w: w.tree({"x.npy": npy(np.zeros((4, 2))), "y.npy": npy(np.zeros(3))}),
    "an array of objects": lambda w: w.tree({"x.npy": npy(np.array([{}, {}]))}),
    "a single text file": lambda w: w.stage("alone/photos.csv"),
    "inputs and targets by name": lambda w: pack_dataset(named("x", "y"), f"{w.new()}.h5"),
    # --- options of packing ---
    "an argument that is misspelt": lambda w: w.stage("photos", image_sizes=8),
    "an argument that is nobody's": lambda w: w.stage("photos", colour=True),
    "an argument of torchvision": lambda w: w.stage("photos", transform=str),
    "an argument of Keras": lambda w: w.stage("photos", validation_split=0.2),
    "a part that is nearly called so": lambda w: w.stage("photos.zip", only="cats"),
    "an image size of zero": lambda w: w.stage("photos", image_size=(0, 64)),
    "an image size of three numbers": lambda w: w.stage("photos", image_size=(1, 2, 3)),
    "an image size in words": lambda w: w.stage("photos", image_size="big"),
    "a color mode of unknown name": lambda w: w.stage("photos", color_mode="colour"),
    "a way to resize of unknown name": lambda w: w.stage("photos", resize="fit"),
    "an encoding of unknown name": lambda w: w.stage("photos", encoding="webp"),
    "a quality that cannot be": lambda w: w.stage("photos", encoding="jpeg:500"),
    "splits that are more than all": lambda w: w.stage("photos", splits={"train": 0.8, "test": 0.4}),
    "splits of one number too small": lambda w: w.stage("photos", splits=0.1),
    "splits of a negative part": lambda w: w.stage("photos", splits={"train": 1.5, "test": -0.5}),
    "splits where there are some": lambda w: w.tree(
        {f"{split}/{name}": n for split in ("train", "test") for name, n in in_classes(4).items()}, splits=0.8
    ),
    "groups that no name has": lambda w: w.stage("photos", splits=0.5, group_by=r"patient\d+"),
    "groups by a broken expression": lambda w: w.stage("photos", splits=0.5, group_by="("),
    "prepare that gives other shapes": lambda w: w.tree(
        {"cat/0.png": 0, "dog/1.png": 1}, prepare=lambda x: x[: 1 + int(x[0, 0, 0])]
    ),
    "prepare that cannot be called": lambda w: w.stage("photos", prepare=5),
    "on_error of unknown name": lambda w: w.stage("photos", on_error="ignore"),
    "a seed that is a word": lambda w: w.stage("photos", seed="one"),
    "options of another kind": lambda w: w.stage("photos", options=LoaderOptions()),
    "keep of unknown name": lambda w: w.stage("photos", keep="zip"),
    "verify of unknown name": lambda w: w.stage("photos", verify="never"),
    "a disk limit that is a word": lambda w: w.stage("photos", disk_limit="small"),
    "a disk limit that is too small": lambda w: w.stage("photos", disk_limit="1kB", image_size=512, cache_dir=w.new()),
    "a disk limit without a cache": lambda w: w.stage("photos.zip", disk_limit="1MB", image_size=1024),
    "streaming plain files": lambda w: w.stage("photos", streaming=True, keep="files"),
    "staging that is cancelled": cancel,
    "no shards at all": lambda w: w.pack("photos", shards=0),
    "more shards than samples": lambda w: w.pack("photos", shards=50),
    "progress that is a word": lambda w: w.pack("photos", progress="yes"),
    "workers that die": lambda w: w.pack("photos", shards=2, executor=Dying()),
    # --- packs and datasets ---
    "a pack that ends early": lambda w: w.open("cut.h5"),
    "a pack of a newer colabstage": lambda w: w.open("newer.h5"),
    "a file that is no HDF5": lambda w: w.open("notes.h5"),
    "an archive in place of a pack": lambda w: w.open("photos.zip"),
    "a folder in place of a pack": lambda w: w.open("photos"),
    "HDF5 without inputs": lambda w: dataset_h5(w.h5(images=np.zeros(3))),
    "HDF5 with more targets than inputs": lambda w: dataset_h5(w.h5(X_train=np.zeros((3, 2)), Y_train=np.zeros(4))),
    "HDF5 that leads to another file": lambda w: dataset_h5(
        w.h5(X_train=h5py.ExternalLink(str(w / "photos.h5"), "X_train"))
    ),
    "a split by position": lambda w: dataset_h5(w / "photos.h5", "test"),  # type: ignore[arg-type]
    "a name that an HDF5 file lacks": lambda w: dataset_h5(w.h5(images=np.zeros((3, 2))), x="pictures"),
    "a split that is not there": lambda w: w.open(split="test"),
    "a split of a staged dataset": lambda w: w.stage("photos")["validation"],
    "a row by its name": lambda w: w.open()["cat"],  # type: ignore[index]
    "a dataset by number": lambda w: w.stage("photos")[0],
    "a disk limit for a file that is no pack": lambda w: dataset_h5(w / "notes.h5", disk_limit="1MB"),
    "a report in place of a pack": lambda w: dataset_h5(w.pack("photos")),
    "an argument of a dataset that is misspelt": lambda w: w.open(splits="train"),
    # --- checkpoints ---
    "no such file to publish": lambda w: publish_file(w / "nowhere.bin", w.new(), progress=False),
    "a folder to publish": lambda w: publish_file(w / "photos", w.new(), progress=False),
    "a target to publish to that is not ours": lambda w: publish_file(w / "model.bin", w / "notes.txt", progress=False),
    "a file that is written to while it is published": rewrite,
    "an address to publish to": lambda w: publish_file(w / "model.bin", "s3://bucket/model.bin", progress=False),
    "a file to publish to itself": lambda w: publish_file(w / "model.bin", w / "model.bin", progress=False),
    "a checkpoint that was not published": lambda w: restore_file(w / "model.bin", str(w.new()), progress=False),
    "nothing published": lambda w: restore_file(w / "nowhere.bin", str(w.new()), progress=False),
    "a published file that is damaged": lambda w: restore_file(w / "spoilt.bin", str(w.new()), progress=False),
    "another file where to restore": lambda w: restore_file(w / "published.bin", w / "notes.txt", progress=False),
    # --- Drive and the machine ---
    "mount_drive outside Colab": lambda w: mount_drive(),
    "refresh_drive outside Colab": lambda w: refresh_drive(),
    "flush_drive without a mount": lambda w: in_colab(w, lambda _: flush_drive()),
    "a path on Drive without a mount": lambda w: in_colab(w, lambda drive: w.stage(drive / "MyDrive/photos.zip")),
    "access to Drive refused": lambda w: in_colab(w, mount_drive, auth="refused"),
    "access to Drive not answered": lambda w: in_colab(w, mount_drive, auth="silent"),
    "Drive forbidden by an administrator": lambda w: in_colab(w, mount_drive, mount="policy_disabled"),
    "a Drive with too many files": lambda w: in_colab(w, mount_drive, mount="root_too_large"),
    "a client that ends": lambda w: in_colab(w, mount_drive, mount="client_exits"),
    # --- what is not installed, and the rest ---
    "without datasets": lambda w: uninstalled(lambda: to_hf(w.open()), "datasets"),
    "without ipywidgets": lambda w: uninstalled(stage_form, "ipywidgets"),
    "without pyarrow": lambda w: uninstalled(lambda: w.tree({"a.parquet": b"PAR1" + bytes(20) + b"PAR1"}), "pyarrow"),
    "a form that has staged nothing": lambda w: stage_form().dataset,
}  # fmt: skip


def linear(width: int = 2) -> Any:
    import torch

    return torch.nn.Linear(width, 2)


def another_model(world: World) -> None:
    folder = world.new()
    for width in (2, 3):
        with resumable(folder, progress=False, model=linear(width)) as run:
            run.save()


def run_in_use(world: World) -> None:
    """The previous session left its lease as if it were still training, with a time that is always 0 s ago."""
    folder = world.new()
    for _ in range(2):
        with resumable(folder, progress=False, model=linear()):
            pass
        lease = json.loads((folder / "run.json").read_text("utf-8"))
        (folder / "run.json").write_text(json.dumps({**lease, "ended": False, "beat": 9e9}), "utf-8")


def of_torch(name: str) -> Any:
    """One of torch's own samplers and the like; the scenarios above run without it."""
    return getattr(importlib.import_module("torch.utils.data"), name)


def cropped(shape: tuple[int, ...], *, listed: bool = False) -> object:
    import torch

    from colabstage.transforms import RandomCrop

    x = torch.zeros(shape)
    return RandomCrop((9, 8))([x] if listed else x, None)


def normalized_bytes(world: World) -> object:
    from colabstage.transforms import Normalize

    return world.loader(dtype="float32", batch_transform=Normalize((123, 117, 104), (58, 57, 57)))


WITH_TORCH: dict[str, Callable[[World], object]] = {
    # --- loaders ---
    "no batch size": lambda w: w.loader(0),
    "a batch size that is a word": lambda w: w.loader("64"),
    "a path in place of a dataset": lambda w: make_loader(w / "photos.h5", 2),  # type: ignore[arg-type]
    "a strategy of unknown name": lambda w: w.loader(strategy="threads"),
    "shuffle of unknown name": lambda w: w.loader(shuffle="yes"),
    "a loader's argument that is misspelt": lambda w: w.loader(suffle=True),
    "an argument of torch's loader": lambda w: w.loader(pin_memory=True),
    "a function of torch's loader": lambda w: w.loader(collate_fn=list),
    "a generator for the order": lambda w: w.loader(generator=None),
    "one that is needed, misspelt": lambda w: make_loader(w.open(), batch=4),  # type: ignore[call-arg]
    "a dtype that is none": lambda w: w.loader(dtype="float33"),
    "a dtype of whole numbers": lambda w: w.loader(dtype="int64"),
    "a device that is none": lambda w: w.loader(device="gpu"),
    "fewer workers than none": lambda w: w.loader(num_workers=-1),
    "rank without world_size": lambda w: w.loader(rank=1),
    "a rank beyond the world": lambda w: w.loader(rank=2, world_size=2),
    "a sampler with rows that are not there": lambda w: w.loader(sampler=[0, 99]),
    "a subset for Hugging Face": lambda w: to_hf(of_torch("Subset")(w.open(), [0])),
    "batches as a sampler": lambda w: w.loader(sampler=[[0, 1, 2], [3]]),
    "no rows at all": lambda w: w.loader(sampler=[]),
    "no full batch": lambda w: w.loader(9, drop_last=True),
    "a crop of images that are smaller": lambda _: cropped((2, 3, 8, 12)),
    "a crop of images without channels": lambda _: cropped((2, 8, 8)),
    "a crop of vectors": lambda _: cropped((2, 8)),
    "a crop of images of their own sizes": lambda _: cropped((3, 8, 8), listed=True),
    "shuffle beside a sampler that decides": lambda w: w.loader(
        sampler=of_torch("RandomSampler")(w.open()), shuffle=True
    ),
    "ranks beside a sampler of ranks": lambda w: w.loader(
        sampler=of_torch("DistributedSampler")(w.open(), 2, 0), rank=0, world_size=2
    ),
    "a mean of bytes": normalized_bytes,
    "a memory budget that is a word": lambda w: w.loader(memory_budget="much"),
    "ragged of unknown name": lambda w: w.loader(ragged="dense"),
    "batches of a subset shuffled by auto": lambda w: w.loader(sampler=[0, 1], shuffle=None),
    "a batch transform that fails": lambda w: list(w.loader(batch_transform=lambda x, y: x.nothing)),
    "a transform that fails": lambda w: list(
        make_loader(dataset_h5(w / "photos.h5", lambda x: x.nothing), 2, shuffle=False)
    ),
    "state of another loader": lambda w: w.loader(2, seed=0).load_state_dict({"epoch": 0}),
    "an epoch below none": lambda w: w.loader(2).set_epoch(-1),
    # --- runs ---
    "a run without parts": lambda w: resumable(w.new()),
    "a run of something without a state": lambda w: resumable(w.new(), model=5),
    "an interval that is none": lambda w: resumable(w.new(), model=linear(), every="often"),
    "a run of another model": another_model,
    "a run that another session has": run_in_use,
}  # fmt: skip
WITH_FUSE: dict[str, Callable[[World], object]] = {
    "a Drive that died": lambda w: on_drive(w, lambda drive: w.stage(drive / "photos"), dies=True),
    "a Drive that died, to publish to": lambda w: on_drive(
        w, lambda drive: publish_file(w / "model.bin", drive / "model.bin", progress=False), dies=True
    ),
    "a file that Drive does not have": lambda w: on_drive(w, lambda drive: w.stage(drive / "photo")),
}  # fmt: skip
ALL = SCENARIOS | WITH_TORCH | WITH_FUSE
# Only their subclasses are raised.
BASES = {"ColabstageError", "SourceError"}


def home_of(world: World, text: str) -> str:
    """Mask what differs in each run: the folder, the port, process numbers, free space, times."""
    text = text.replace(str(world.home), "HOME").replace(str(world.home.name), "HOME")
    for pattern, stands_for in (
        (r"127\.0\.0\.1:\d+", "SERVER"),
        (r"\bout/\d+", "out/N"),
        (r"\b(?!0{32})[0-9a-f]{32}\b", "DIGEST"),
        (r"\b\d+-(?=[0-9a-f]{8}\b)|(?<=-)[0-9a-f]{8}\b", "KEY"),
        (r"[\d.,]+ [kMGT]?B (?=(?:is |are )?free)", "some B "),
        (r"[\d.,]+ (?:ms|s)\b", "some s"),
    ):
        text = re.sub(pattern, stands_for, text)
    return text


def said(world: World, name: str) -> str:
    """Make the call of a scenario; return the class and the text of its error."""
    try:
        ALL[name](world)
    except ColabstageError as error:
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == all_errors.__name__)
        return f"{kind.__name__}: {home_of(world, str(error))}"
    pytest.fail(f"{name}: no error")


@contextlib.contextmanager
def world_in(folder: Path) -> Iterator[World]:
    """Files and servers, on a machine that knows only these."""
    world = World(folder / "home")
    page = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please.</body></html>"
    files = {"photos.zip": (world / "photos.zip").read_bytes(), "page.zip": page}
    with WebServer(files) as world.server, DriveShares(folder) as world.shares, pytest.MonkeyPatch.context() as patch:
        world.shares.hosts.lead(patch, folder)
        patch.setenv("COLABSTAGE_SYSTEM_ROOT", str(world.home))
        yield world


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    # As short a path as in `main`: with a long one, a message may show only the class.
    with tempfile.TemporaryDirectory() as folder, world_in(Path(folder)) as made:
        yield made


def written() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", TEXTS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize(
    "name",
    [
        *SCENARIOS,
        *(pytest.param(name, marks=pytest.mark.torch) for name in WITH_TORCH),
        *(pytest.param(name, marks=pytest.mark.fuse) for name in WITH_FUSE),
    ],
)
def test_what_is_said(name: str, world: World) -> None:
    assert said(world, name) == written()[name], f"Another text than in {TEXTS.name}. If it is meant: {AGAIN}"


def test_each_class_and_each_scenario_is_in_the_file() -> None:
    texts = written()
    assert list(texts) == list(ALL)
    classes = {kind.__name__ for kind in vars(all_errors).values() if isinstance(kind, type)}
    assert classes - {text.partition(":")[0] for text in texts.values()} == BASES


def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as folder, world_in(Path(folder)) as world:
        texts = [f"## {name}\n{said(world, name)}\n" for name in ALL]
    TEXTS.write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()

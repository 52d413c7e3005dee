"""For each kind of source: a second call reuses local data, a change is noticed, and the report says if nothing proves
that the source is unchanged."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from colabstage import fetch_files, plan_stage, stage_dataset
from colabstage.errors import ColabstageError
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.contract.served import numbers_in
from tests.sources.servers import BucketService
from tests.support.archives import MAKERS
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.images import image, in_classes, make_tree
from tests.support.invariants import contents, left_behind

pytestmark = pytest.mark.usefixtures("moto_server")

BEFORE = in_classes(6, suffix=".bmp")
# Names and sizes stay; one file is rewritten, one is replaced by another.
AFTER = {
    **{name: number for name, number in BEFORE.items() if name != "cat/004.bmp"},
    "cat/000.bmp": 77,
    "cat/9.bmp": 4,
}


class Source(Protocol):
    """Where a dataset is: it can write the data, and gives the argument for `stage_dataset`."""

    @property
    def argument(self) -> Any:
        """The argument for `stage_dataset`."""

    def write(self, numbers: dict[str, int]) -> None:
        """Make it hold these images."""


def files_of(numbers: dict[str, int]) -> dict[str, bytes]:
    return {name: image(number, suffix=".bmp") for name, number in numbers.items()}


class Folder:
    """A local folder."""

    def __init__(self, root: Path) -> None:
        self.argument = root / "photos"

    def write(self, numbers: dict[str, int]) -> None:
        for path in self.argument.rglob("*.bmp"):
            if str(path.relative_to(self.argument)) not in numbers:
                path.unlink()
        make_tree(self.argument, files_of(numbers))


class Archive:
    """A local archive."""

    def __init__(self, root: Path, kind: str) -> None:
        self.kind = kind
        self.argument = root / f"photos{kind}"

    def write(self, numbers: dict[str, int]) -> None:
        self.argument.write_bytes(MAKERS[self.kind](files_of(numbers)))


class Several:
    """A folder and an archive staged as one."""

    def __init__(self, root: Path) -> None:
        self.parts: tuple[Source, Source] = Folder(root), Archive(root, ".zip")
        self.argument = [part.argument for part in self.parts]

    def write(self, numbers: dict[str, int]) -> None:
        for number, part in enumerate(self.parts):
            part.write({name: n for at, (name, n) in enumerate(sorted(numbers.items())) if (at // 2) % 2 == number})


class Pieces:
    """A list of the pieces of an archive."""

    def __init__(self, root: Path) -> None:
        self.argument = [root / f"photos.zip.00{number}" for number in (1, 2, 3)]

    def write(self, numbers: dict[str, int]) -> None:
        content = MAKERS[".zip"](files_of(numbers))
        for at, path in enumerate(self.argument):
            path.write_bytes(content[at * len(content) // 3 : (at + 1) * len(content) // 3])


class Web:
    """An archive on a web server."""

    def __init__(self, server: WebServer) -> None:
        self.server = server
        self.argument = server.url("photos.zip")

    def write(self, numbers: dict[str, int]) -> None:
        self.server.put("photos.zip", MAKERS[".zip"](files_of(numbers)))


class Bucket:
    """A folder, or an archive, in a bucket."""

    def __init__(self, service: BucketService, name: str) -> None:
        self.service = service
        self.name = name
        self.argument = f"s3://{service.bucket}/{name}"

    def write(self, numbers: dict[str, int]) -> None:
        if self.name.endswith(".zip"):
            self.service.put(self.name, MAKERS[".zip"](files_of(numbers)))
            return
        for key in list(self.service.backend.buckets[self.service.bucket].keys):
            self.service.remove(key)
        for name, content in files_of(numbers).items():
            self.service.put(f"{self.name}/{name}", content)


KINDS = ["folder", "zip", "tar", "tar.gz", "several", "pieces"]
KINDS += ["web", "web without ranges", "bucket folder", "bucket zip"]


@pytest.fixture
def make_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make a source of a kind."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    with contextlib.ExitStack() as stack:

        def make(kind: str, **knobs: Any) -> Source:
            if kind == "folder":
                return Folder(tmp_path)
            if kind == "several":
                return Several(tmp_path)
            if kind == "pieces":
                return Pieces(tmp_path)
            if kind.startswith("web"):
                more = {"ranges": "none"} if kind.endswith("ranges") else {}
                return Web(stack.enter_context(WebServer({"photos.zip": b""}, knobs=WebKnobs(**{**more, **knobs}))))
            if kind.startswith("bucket"):
                return Bucket(request.getfixturevalue("s3"), "photos.zip" if kind.endswith("zip") else "photos")
            return Archive(tmp_path, f".{kind}")

        yield make


def names(numbers: dict[str, int]) -> dict[str, int]:
    """The names without the folders that a list's parts add in front."""
    return {"/".join(name.split("/")[-2:]): number for name, number in numbers.items()}


# What is compared in full is the pack, wherever its source is: once for each way of comparing sources, otherwise long.
@pytest.mark.parametrize(
    ("kind", "verify"),
    [
        *((kind, "fast") for kind in KINDS),
        *((kind, "full") for kind in ("folder", "zip", "web")),
        *(pytest.param(kind, "full", marks=pytest.mark.long) for kind in KINDS if kind not in ("folder", "zip", "web")),
    ],
)
def test_staged_again(kind: str, verify: Any, make_source: Any, tmp_path: Path) -> None:
    source: Source = make_source(kind)
    source.write(BEFORE)

    def stage() -> Any:
        data = stage_dataset(
            source.argument, verify=verify, local_dir=tmp_path / "local", cache_dir=None, progress=False
        )
        assert not left_behind(tmp_path / "local")
        return data

    first = stage()
    assert (first.report.origin, names(numbers_in(first.path))) == ("source", BEFORE)
    about = first.path.stat()
    again = stage()
    assert (again.report.origin, again.path) == ("local", first.path)
    assert (again.path.stat().st_ino, again.path.stat().st_mtime_ns) == (about.st_ino, about.st_mtime_ns)
    assert not re.search("unproved|has changed", str(again.report))
    source.write(AFTER)
    changed = stage()
    assert (changed.report.origin, names(numbers_in(changed.path))) == ("source", AFTER)
    assert stage().report.origin == "local"


@pytest.mark.parametrize("kind", ["folder", "zip", "web", "bucket folder", "bucket zip"])
def test_fetched_again(kind: str, make_source: Any, tmp_path: Path) -> None:
    source: Source = make_source(kind)
    target = tmp_path / "out/it"
    written = str(target)

    def fetched() -> Any:
        report = fetch_files(source.argument, written, progress=False)
        assert not left_behind(tmp_path / "out")
        return report, contents(target) if target.is_dir() else target.read_bytes(), target.stat().st_ino

    for numbers in (BEFORE, AFTER):
        source.write(numbers)
        _, content, inode = fetched()
        meant = files_of(numbers)
        assert content == (meant if target.is_dir() else MAKERS[".zip"](meant))
        assert fetched()[1:] == (content, inode)


@pytest.mark.fuse
def test_each_piece_on_a_drive_counts(tmp_path: Path) -> None:
    """By the MD5s that Drive's client reports: one in the middle is rewritten, with its size and time as before."""
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:

        def write(numbers: dict[str, int]) -> None:
            content = MAKERS[".tar"](files_of(numbers))
            for at in range(3):
                path = drive.cloud / f"MyDrive/photos.tar.00{at + 1}"
                path.write_bytes(content[at * len(content) // 3 : (at + 1) * len(content) // 3])
                os.utime(path, (1e9, 1e9))

        def stage() -> Any:
            source = tmp_path / "drive/MyDrive/photos.tar.001"
            return stage_dataset(source, local_dir=tmp_path / "local", cache_dir=None, progress=False)

        many = in_classes(40, suffix=".bmp")
        for numbers in (many, {**many, sorted(many)[20]: 77}):
            write(numbers)
            drive.new_machine()
            drive.mount(tmp_path / "drive")
            first = stage()
            assert (first.report.origin, numbers_in(first.path)) == ("source", numbers)
            assert stage().report.origin == "local"


@pytest.mark.parametrize("ranges", ["honoured", "none"])
def test_each_address_of_a_list_is_asked(tmp_path: Path, ranges: Any) -> None:
    options: Any = {"cache_dir": None, "layout": "images", "progress": False}

    def call() -> tuple[str, bool]:
        staged = stage_dataset(addresses, local_dir=tmp_path / "local", **options)
        report = fetch_files(addresses, tmp_path / "copy", progress=False)
        assert contents(tmp_path / "copy") == files
        return staged.report.origin, report.fetched_bytes > 0

    files = {f"{number}.bmp": image(number, suffix=".bmp") for number in range(5)}
    with WebServer(files, knobs=WebKnobs(ranges=ranges)) as server:
        addresses = [server.url(name) for name in files]
        assert call() == ("source", True)
        assert call() == ("local", False)
        files = {**files, "3.bmp": image(77, suffix=".bmp")}
        server.put("3.bmp", files["3.bmp"])
        assert call() == ("source", True)
        assert call() == ("local", False)


@pytest.mark.parametrize("length", ["told", "close"])
@pytest.mark.parametrize("many", [False, True])
def test_a_server_that_proves_nothing(make_source: Any, tmp_path: Path, length: str, many: bool) -> None:
    """With no version, time or ranges, what is here is used, and each report and plan says that a change would go
    unnoticed; `verify="full"` reads all of it again."""
    source = make_source("web", etag="none", last_modified=False, ranges="none", length=length)
    argument = [source.server.url(name) for name in BEFORE] if many else source.argument
    swapped = {**BEFORE, "cat/000.bmp": BEFORE["cat/002.bmp"], "cat/002.bmp": BEFORE["cat/000.bmp"]}

    def write(numbers: dict[str, int]) -> None:
        source.write(numbers)
        for name, content in files_of(numbers).items():
            source.server.put(name, content)

    def stage(**more: Any) -> tuple[Any, dict[str, int], str]:
        data = stage_dataset(argument, **places, **more)
        report = fetch_files(argument, f"{tmp_path}/out", progress=False, **more)
        numbers = {name: numbers_in(data.path)[name] for name in BEFORE}
        held = contents(tmp_path / "out") if many else (tmp_path / "out").read_bytes()
        assert held == (files_of(numbers) if many else MAKERS[".zip"](files_of(numbers)))
        return data.report.origin, numbers, f"{data.report} {report}"

    places: Any = {"local_dir": tmp_path / "local", "cache_dir": tmp_path / "cache", "progress": False}
    write(BEFORE)
    assert stage()[:2] == ("source", BEFORE)
    write(swapped)
    plan = plan_stage(argument, local_dir=tmp_path / "local", cache_dir=tmp_path / "cache")
    assert (plan.action, str(plan).count("is not known")) == ("reuse", 1)
    for local, origin in (("local", "local"), ("elsewhere", "cache")):
        places["local_dir"] = tmp_path / local
        found, numbers, said = stage()
        assert (found, numbers, said.count("is not known")) == (origin, BEFORE, 2)
    assert stage(verify="full")[:2] == ("source", swapped)


def test_of_what_proves_nothing_no_part_is_continued(make_source: Any, tmp_path: Path) -> None:
    """The file may be another one meanwhile: what an interrupted call left of it is not used."""
    source = make_source("web", etag="none", last_modified=False)
    content = MAKERS[".tar"]({f"{number:03}.bin": bytes([number]) * 2**20 for number in range(20)})
    source.server.put("photos.zip", content)
    source.server.set_faults(WebFault(kind="status", status=403, min_bytes=100_000, after=1))
    with pytest.raises(ColabstageError, match="403"):
        fetch_files(source.argument, f"{tmp_path}/out", progress=False)
    source.server.set_faults()
    source.server.put("photos.zip", content[::-1])
    assert fetch_files(source.argument, f"{tmp_path}/out", progress=False).kept_bytes == 0
    assert (tmp_path / "out").read_bytes() == content[::-1]

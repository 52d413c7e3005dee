"""How often a source is asked: each call makes the requests and opens that it needs, and fetches no byte twice."""

import contextlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, plan_stage, stage_dataset
from colabstage.io.progress import Cancellation, LateStep, Progress
from colabstage.sources.arriving import STRETCH_BYTES, ArchiveWalk, StreamingCopy
from colabstage.sources.http_file import open_http
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.open import open_archive
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.sources.servers import BucketService
from tests.support.archives import stored_zip, tar_bytes
from tests.support.far import POLICY
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.images import in_classes, make_tree, noise
from tests.support.share_links import DriveShares, SharedItem

# Stages each source, and prints how often each file below the folder of all is opened; then again without the local
# copy. An audit hook cannot be removed: hence a process.
_COUNTED = """
import collections, json, os, shutil, sys
local, cache, home, *sources = sys.argv[1:]
opened = collections.Counter()

def look(event, found):
    if event == "open" and isinstance(found[0], (str, os.PathLike)) and str(found[0]).startswith(home):
        if os.path.isfile(found[0]):
            opened[os.path.relpath(str(found[0]), home)] += 1

from colabstage import stage_dataset
sys.addaudithook(look)
for source in sources * 2:
    staged = stage_dataset(source, local_dir=local, cache_dir=cache, image_size=8, progress=False)
    staged.wait_published()
    print(json.dumps(opened))
    opened.clear()
    shutil.rmtree(local)
"""


LABELLED: dict[str, Any] = {
    "images": in_classes(30),
    # Labels are read to see what they are, and for their boxes.
    "boxes": {f"images/{number}.png": number for number in range(15)}
    | {f"labels/{number}.txt": b"0 0.5 0.5 0.5 0.5\n" for number in range(15)},
}


def test_addresses_in_a_bucket_share_a_client(
    s3: BucketService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make one takes longer than to read an image. The facts of each are requested, then its content."""
    from s3fs import S3FileSystem

    made, make = [], S3FileSystem.__init__
    monkeypatch.setattr(
        S3FileSystem, "__init__", lambda self, *given, **named: made.append(make(self, *given, **named))
    )
    for name in (names := [f"{kind}/{number}.png" for kind in ("cat", "dog") for number in range(10)]):
        s3.put(name, noise(7))
    found = []
    addresses = [f"s3://{s3.bucket}/{name}" for name in ("cat/none.png", *names)]
    for most in (2 * len(names) + 12, len(names) + 12):
        s3.hold(most, lambda: None)
        data = stage_dataset(
            addresses, local_dir=tmp_path, cache_dir=None, image_size=8, progress=False, on_error="skip"
        )
        found.append((data.report.origin, len(made), s3.is_holding))
    assert found == [("source", 1, True), ("local", 2, True)]
    assert data.report.skipped == (f"cat/none.png: There is nothing at '{addresses[0]}'",)


def test_addresses_of_a_web_server_share_connections(tmp_path: Path) -> None:
    """To connect takes two round trips or three, to ask takes one; each of the sixteen that ask keeps its own."""
    files = {f"{'cat' if number % 2 else 'dog'}/{number}.png": noise(number) for number in range(60)}
    with WebServer(files, knobs=WebKnobs(latency_s=0.01)) as server:
        for calls in range(2):
            server.forget_requests()
            addresses = [server.url(name) for name in files]
            data = stage_dataset(addresses, local_dir=tmp_path, cache_dir=None, image_size=8, progress=False)
            assert data.report.origin == ("local" if calls else "source")
            assert len(server.requests) <= len(files) + 1
            assert len({request.connection for request in server.requests}) <= 17


def test_a_folder_with_a_star_is_listed_once(
    s3: BucketService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the next call, whose look it is."""
    from s3fs import S3FileSystem

    listed, find = list[str](), S3FileSystem._find

    def note(self: Any, path: str, **options: Any) -> Any:
        listed.append(path)
        return find(self, path, **options)

    monkeypatch.setattr(S3FileSystem, "_find", note)
    for number in range(6):
        s3.put(f"pets/{'cat' if number % 2 else 'dog'}/a{number}.png", noise(number))
    for calls in (1, 2):
        stage_dataset(f"s3://{s3.bucket}/pets/*/a*", local_dir=tmp_path, cache_dir=None, image_size=8, progress=False)
        assert len(listed) == calls


def test_each_file_of_a_folder_and_of_the_cache_is_opened_once(tmp_path: Path) -> None:
    """A second call, here or with the pack from the cache, opens none of the source."""
    sources = {kind: make_tree(tmp_path / kind / "photos", files) for kind, files in LABELLED.items()}
    arguments = [tmp_path / "local", tmp_path / "cache", tmp_path, *sources.values()]

    def opens() -> list[dict[str, int]]:
        command = [sys.executable, "-c", _COUNTED, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def below(found: dict[str, int], *names: str) -> list[int]:
        return [count for path, count in found.items() if path.startswith(names)]

    found = [*opens(), *opens()]
    for kind, first in zip(sources, found, strict=False):
        assert below(first, f"{kind}/") == [1] * 30
    for restored in found[len(sources) :]:
        assert below(restored, *sources) == []
        assert [count for path, count in restored.items() if path.startswith("cache/") and path.endswith(".h5")] == [1]


@pytest.fixture
def zipped() -> bytes:
    """A zip of images that takes more than one block."""
    return stored_zip({name: noise(number, size=(320, 320)) for name, number in in_classes(40).items()})


@pytest.mark.parametrize("way", ["fetch", "stage"])
def test_a_file_on_the_web_comes_once(tmp_path: Path, zipped: bytes, way: str) -> None:
    """Beside it come only both ends of a zip, which are looked at first; a second call asks one question. Where each
    connection is cut early, also that of the first question, it comes all the same."""
    quiet: dict[str, Any] = {"progress": False}

    def call(server: WebServer, place: Path) -> None:
        if way == "fetch":
            fetch_files(server.url("photos.zip"), place / "copy.zip", **quiet)
            assert (place / "copy.zip").read_bytes() == zipped
        else:
            staged = stage_dataset(server.url("photos.zip"), local_dir=place, cache_dir=None, image_size=8, **quiet)
            assert staged.splits == {"train": 40}

    with WebServer({"photos.zip": zipped}) as server:
        call(server, tmp_path / "one")
        # A connection whose end another one takes over has a little more of it in flight.
        assert server.bytes_sent <= 1.25 * len(zipped)
        assert len(server.requests) < 24
        server.forget_requests()
        call(server, tmp_path / "one")
        assert len(server.requests) == 1
        server.set_faults(WebFault(kind="truncate", at_byte=200_000))
        call(server, tmp_path / "two")


@pytest.mark.fuse
def test_what_comes_is_what_the_plan_said(tmp_path: Path, zipped: bytes) -> None:
    """Plan and call together read each byte of the source, or of the cached pack, once, and open each file once; an
    archive and a pack by a few readers. A second call opens nothing."""
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        make_tree(drive.cloud / "MyDrive/photos", in_classes(30))
        (drive.cloud / "MyDrive/photos.zip").write_bytes(zipped)
        drive.mount(tmp_path / "drive")
        options: dict[str, Any] = {"cache_dir": tmp_path / "drive/MyDrive/cache", "image_size": 8}

        def compare(source: str, action: str, nbytes: int) -> tuple[int, int]:
            place = tmp_path / f"local-{len(list(tmp_path.iterdir()))}"
            before = drive.stats()
            plan = plan_stage(tmp_path / "drive/MyDrive" / source, local_dir=place, **options)
            staged = stage_dataset(tmp_path / "drive/MyDrive" / source, local_dir=place, progress=False, **options)
            now = drive.stats()
            assert plan.action == action
            assert plan.figures.source_bytes == nbytes
            assert nbytes <= now.bytes_cold - before.bytes_cold <= nbytes + 10_000
            staged.wait_published()
            opens = drive.stats().cold_opens + drive.stats().warm_opens
            stage_dataset(tmp_path / "drive/MyDrive" / source, local_dir=place, progress=False, **options)
            assert drive.stats().cold_opens + drive.stats().warm_opens == opens
            drive.flush(timeout_s=30)
            drive.new_machine()
            drive.mount(tmp_path / "drive")
            return staged.path.stat().st_size, now.cold_opens - before.cold_opens

        folder = sum(file.stat().st_size for file in (drive.cloud / "MyDrive/photos").rglob("*.png"))
        for source, nbytes, files in (("photos", folder, 30), ("photos.zip", len(zipped), 4)):
            packed, opens = compare(source, "stage", nbytes)
            assert opens <= files
            # The pack, and the notes beside it.
            _, opens = compare(source, "restore", packed)
            assert opens <= 4


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, moto_server: object
) -> Iterator[Any]:
    """Serve a zip or a folder; return its address, and what says how many bytes and answers came so far."""
    with contextlib.ExitStack() as stack:

        def serve(kind: str, files: dict[str, bytes], archive: bytes) -> tuple[Any, Callable[[], tuple[int, int]]]:
            if kind.startswith("web"):
                served = {"photos.zip": archive} if kind == "web zip" else files
                server = stack.enter_context(WebServer(served))
                urls = [server.url(name) for name in served]
                return urls[0] if kind == "web zip" else urls, lambda: (server.bytes_sent, len(server.requests))
            if kind.startswith("bucket"):
                return serve_bucket(kind, files, archive)
            shares = stack.enter_context(DriveShares(tmp_path))
            shares.hosts.lead(monkeypatch)
            items = {f"1File{number:028d}": one for number, one in enumerate(files.items())}
            for one, (name, content) in items.items():
                shares.add(SharedItem(one, name, content=content))
            shares.add(SharedItem("1Zip" + 28 * "a", "photos.zip", content=archive))
            halves = {"1Cats" + 28 * "a": tuple(items)[::2], "1Dogs" + 28 * "a": tuple(items)[1::2]}
            shares.add(*(SharedItem(one, one, kind="folder", entries=half) for one, half in halves.items()))
            shares.add(SharedItem("1Pets" + 28 * "a", "pets", kind="folder", entries=tuple(halves)))
            link = "file/d/1Zip" if kind == "shared zip" else "drive/folders/1Pets"
            return f"https://drive.google.com/{link}{28 * 'a'}", lambda: (
                shares.hosts.bytes_sent,
                shares.count("/download") + shares.count("/embeddedfolderview"),
            )

        def serve_bucket(kind: str, files: dict[str, bytes], archive: bytes) -> tuple[str, Callable[[], Any]]:
            import aiohttp

            service, came, answers = request.getfixturevalue("s3"), list[int](), list[str]()
            for name, content in {"photos.zip": archive, **{f"photos/{one}": files[one] for one in files}}.items():
                service.put(name, content)
            feed, ask = aiohttp.StreamReader.feed_data, aiohttp.ClientSession._request

            def count(reader: Any, data: bytes, *size: int) -> None:
                came.append(len(data))
                feed(reader, data, *size)

            async def ask_counted(session: Any, method: str, *arguments: Any, **options: Any) -> Any:
                answers.append(method)
                return await ask(session, method, *arguments, **options)

            monkeypatch.setattr(aiohttp.StreamReader, "feed_data", count)
            monkeypatch.setattr(aiohttp.ClientSession, "_request", ask_counted)
            name = "photos.zip" if kind.endswith("zip") else "photos"
            return f"s3://{service.bucket}/{name}", lambda: (sum(came), len(answers))

        yield serve


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("web zip", (2, 24, 1)),
        ("shared zip", (2, 12, 1)),
        # The first of a list is asked twice, because it says what kind of list it is.
        ("web list", (1 + 20, 1 + 20, 20)),
        ("web list with a table", (2 + 20, 2 + 20, 1 + 20)),
        # One for each folder and each file, because Google counts requests.
        ("shared folder", (3 + 20, 3 + 20, 3)),
        ("bucket zip", (6, 30, 4)),
        ("bucket folder", (3, 3 + 2 * 20, 3)),
    ],
)
def test_what_comes_from_a_service_is_what_the_plan_said(
    served: Any, tmp_path: Path, zipped: bytes, kind: str, answers: tuple[int, int, int]
) -> None:
    """Each byte once, beside listings and the ends of a zip, which the plan reads, too; and few answers to the plan,
    to the call, and to a second one."""
    files = {f"{number}.png": noise(number, size=(96, 96)) for number in range(20)}
    if kind.endswith("table"):
        files = {"labels.csv": b"file,label\n" + b"".join(b"%s,cat\n" % name.encode() for name in files)} | files
    address, came = served(kind, files, zipped)
    options: dict[str, Any] = {"local_dir": tmp_path / "local", "cache_dir": None, "image_size": 8, "layout": "images"}
    plan = plan_stage(address, **options)
    looked, asked = came()
    nbytes = len(zipped) if kind.endswith("zip") else sum(map(len, files.values()))
    assert plan.figures.source_bytes == nbytes
    assert looked < max(0.25 * nbytes, 200_000)
    assert asked <= answers[0]
    staged = stage_dataset(address, progress=False, **options)
    assert staged.splits == {"train": 40 if kind.endswith("zip") else 20}
    sent, told = came()
    assert nbytes <= sent - looked <= 1.25 * nbytes + 100_000
    assert told - asked <= answers[1]
    stage_dataset(address, progress=False, **options)
    assert came()[1] - told <= answers[2]


def test_the_contents_of_a_long_zip_come_once(tmp_path: Path) -> None:
    """They are its state, where its server reports no version, and say what is in it."""
    content, archive = noise(0, size=(2, 2)), tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for number in range(4_600):
            name = f"{('cat', 'dog')[number % 2]}/{'deep' * 60}/{'deep' * 60}/{'deep' * 60}/{number:0200}.png"
            made.writestr(zipfile.ZipInfo(name), content)
        contents_at = made.start_dir
    nbytes = archive.stat().st_size - contents_at
    assert nbytes > 4 << 20
    knobs = WebKnobs(etag="none", last_modified=False)
    with WebServer({"photos.zip": archive.read_bytes()}, knobs=knobs) as server:
        plan_stage(server.url("photos.zip"), local_dir=tmp_path / "local", cache_dir=None, image_size=8)
        assert nbytes < server.bytes_sent < 1.5 * nbytes


MB = 1_000_000
SIZES = {"small": [5_000] * 1000, "mixed": [5_000] * 300 + [20 * MB, 3, 0] * 2 + [5_000] * 300}


@pytest.mark.parametrize("kind", list(SIZES))
def test_headers_are_found_with_few_requests(tmp_path: Path, kind: str) -> None:
    """Small members are read through in stretches, large ones are passed over."""
    path, sizes = tmp_path / "photos.tar", SIZES[kind]
    path.write_bytes(tar_bytes({f"folder/{number:05}.bin": bytes(size) for number, size in enumerate(sizes)}))
    size = path.stat().st_size
    with WebServer({"photos.tar": path}) as server:
        file = open_http(server.url("photos.tar"))
        copy = StreamingCopy(
            file,
            tmp_path / "copy",
            step=Progress().step("copy", total=size, unit="B"),
            policy=POLICY,
            cancellation=Cancellation(),
        )
        with (
            ArchiveWalk(copy, LateStep(Progress(), "look", size)) as walk,
            open_archive(walk, spool=tmp_path) as tree,
            open_archive(LocalBytes(path), spool=tmp_path) as here,
        ):
            assert [*tree.entries] == [*here.entries]
            walk.end()
            assert walk.pread(512, 0) == path.read_bytes()[:512]
        file.close()
        sent = sum(1 for one in server.requests if one.method == "GET")
    # One for each stretch of small members, two or three for a large one, and what was on its way when one came.
    large = sum(one > STRETCH_BYTES for one in sizes)
    assert sent < size / STRETCH_BYTES + 20 if not large else sent < 60

"""A list of addresses as a tree of files."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colabstage import StagedDataset, fetch_files, stage_dataset
from colabstage.errors import DecodeError, SourceError, SourceNotFoundError
from tests.support.http_knobs import WebFault
from tests.support.http_server import WebServer
from tests.support.images import make_tree, noise, read_tree

FILES = {f"pets/{kind}/{n}.bin": f"{kind}{n}".encode() * 1000 for kind in ("cat", "dog") for n in range(3)}


def fetched(addresses: list[Any], out: Path) -> dict[str, bytes]:
    """What is in the folder that the addresses are fetched to."""
    fetch_files(addresses, out, progress=False)
    return read_tree(out)


@pytest.mark.parametrize(
    ("addresses", "names"),
    [
        (["p/cat/1.jpg", "p/dog/1.jpg"], ["cat/1.jpg", "dog/1.jpg"]),
        (["p/1.jpg?a=1", "p/1.jpg?a=2"], ["1.jpg", "1-2.jpg"]),
        (["a%20b/1.jpg", "2.jpg"], ["a b/1.jpg", "2.jpg"]),
        (["../../etc/passwd.jpg", "x/1.jpg"], ["etc/passwd.jpg", "x/1.jpg"]),
        (["/d/cat/1.jpg", "/d/dog/1.JPG", "/d/dog/1.jpg"], ["cat/1.jpg", "dog/1.JPG", "dog/1-2.jpg"]),
    ],
)
def test_names_are_what_addresses_do_not_share(tmp_path: Path, addresses: list[str], names: list[str]) -> None:
    """The folders that files do not have in common stay; no name is there twice, none leads out."""
    contents = [b"\0%d" % number for number in range(len(addresses))]
    paths = [address.partition("?")[0].replace("%20", " ").replace("../", "") for address in addresses]
    if addresses[0].startswith("/"):
        make_tree(tmp_path, {path.lstrip("/"): content for path, content in zip(paths, contents, strict=True)})
        found = fetched([tmp_path / path.lstrip("/") for path in paths], tmp_path / "out")
    else:
        with WebServer(dict(zip(paths, contents, strict=True))) as server:
            found = fetched([f"{server.url('')}{address}" for address in addresses], tmp_path / "out")
    assert sorted(found) == sorted(names)
    assert all(
        "?" in address or found[name] == content
        for address, name, content in zip(addresses, names, contents, strict=True)
    )


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A web server with six files in two folders."""
    with WebServer(FILES) as running:
        yield running


def test_a_list_that_lacks_one_is_refused(server: WebServer, tmp_path: Path) -> None:
    """What else comes of lists, from servers of any kind, is in tests/contract/test_same.py."""
    server.set_faults(WebFault(kind="status", path="pets/dog/2.bin", status=404))
    with pytest.raises(SourceNotFoundError, match=r"dog/2\.bin"):
        fetched([server.url(name) for name in FILES], tmp_path / "other")
    # Requests for the others, whose connections were closed meanwhile, are tried again for some seconds.
    for thread in threading.enumerate():
        if thread.name == "colabstage-list":
            thread.join(10)


def test_a_long_file_of_a_list_comes_with_one_request(server: WebServer, tmp_path: Path) -> None:
    """After the one for its facts: another for each part would be a round trip each."""
    content = bytes(40 * 1024 * 1024)
    server.put("pets/long.bin", content)
    found = fetched([server.url("pets/long.bin"), server.url("pets/cat/1.bin")], tmp_path / "out")
    assert found["long.bin"] == content
    assert sum(request.path == "pets/long.bin" for request in server.requests) == 2


@pytest.mark.parametrize(("ending", "fault"), [(".png", {"kind": "html"}), ("", {"kind": "status", "status": 404})])
def test_addresses_that_lead_nowhere_are_left_out_as_broken_images_are(
    tmp_path: Path, ending: str, fault: dict[str, Any]
) -> None:
    """The report names each; a later call asks again, and has the one that came back."""
    names = [f"{kind}/{kind[0]}{number}{ending}" for kind in ("cat", "dog") for number in range(10)]
    with WebServer({name: noise(number) for number, name in enumerate(names)}) as server:
        dead = [WebFault(path=name, **fault) for name in (names[0], names[13])]
        server.set_faults(*dead)

        def stage(on_error: str) -> StagedDataset:
            where: dict[str, Any] = {"local_dir": tmp_path, "cache_dir": None, "progress": False}
            return stage_dataset([server.url(name) for name in names], image_size=8, on_error=on_error, **where)

        with pytest.raises(SourceError, match="on_error='skip'"):
            stage("raise")
        with pytest.raises(DecodeError, match="2 of 20 samples cannot be used"):
            stage("skip:5%")
        data = stage("skip")
        assert [why.partition(": ")[0] for why in data.report.skipped] == ["cat/c0.png", "dog/d3.png"]
        assert (data.splits, data.report.origin) == ({"train": 18}, "source")
        again = stage("skip")
        assert (again.report.origin, again.report.notes) == ("local", [])
        server.set_faults(dead[1])
        assert stage("skip").splits == {"train": 19}
        server.set_faults(WebFault(**fault))
        with pytest.raises(SourceError):
            stage_dataset([server.url(name) for name in names[1:]], local_dir=tmp_path, progress=False, on_error="skip")

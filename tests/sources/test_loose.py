"""A list of addresses as a tree of files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import SourceNotFoundError, SourceReadError
from colabstage.io.files import RetryPolicy
from colabstage.sources.http_file import open_http
from colabstage.sources.remote_files import RemoteFileTree, name_remote_files
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator


QUICK = RetryPolicy(attempts=2, first_wait_s=0.01)
FILES = {f"pets/{kind}/{n}.bin": f"{kind}{n}".encode() * 1000 for kind in ("cat", "dog") for n in range(3)}


@pytest.mark.parametrize(
    ("addresses", "names"),
    [
        (["https://x.org/p/cat/1.jpg", "https://x.org/p/dog/1.jpg"], ["cat/1.jpg", "dog/1.jpg"]),
        (["https://x.org/p/1.jpg?a=1", "https://x.org/p/1.jpg?a=2"], ["1.jpg", "1-2.jpg"]),
        (["https://x.org/1.jpg", "https://y.org/1.jpg"], ["x.org/1.jpg", "y.org/1.jpg"]),
        (["https://x.org/a%20b/1.jpg", "https://x.org/2.jpg"], ["a b/1.jpg", "2.jpg"]),
        (["/d/cat/1.jpg", "/d/dog/1.JPG", "/d/dog/1.jpg"], ["cat/1.jpg", "dog/1.JPG", "dog/1-2.jpg"]),
        (["https://x.org/../../etc/passwd"], ["passwd"]),
    ],
)
def test_names_are_what_addresses_do_not_share(addresses: list[str], names: list[str]) -> None:
    """The folders that files do not have in common stay; no name is there twice, none leads out."""
    assert name_remote_files(addresses) == names


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A web server with six files in two folders."""
    with WebServer(FILES) as running:
        yield running


def open_all(server: WebServer) -> RemoteFileTree:
    """All files of the server as a tree."""

    files = [(name.removeprefix("pets/"), partial(open_http, server.url(name), policy=QUICK)) for name in FILES]
    return RemoteFileTree("six files", files, policy=QUICK)


@pytest.mark.parametrize("knobs", [WebKnobs(), WebKnobs(length="chunked", ranges="none")], ids=["ranges", "none"])
def test_files_are_read_from_any_server(server: WebServer, knobs: WebKnobs) -> None:
    """Sizes and contents are right, whole, in parts and in pieces; what changes, or lacks one, is refused."""
    server.set_knobs(knobs)
    with open_all(server) as tree:
        assert {f"pets/{entry.name}": entry.size for entry in tree.entries} == {
            name: len(content) for name, content in FILES.items()
        }
        for entry in tree.entries:
            content = FILES[f"pets/{entry.name}"]
            assert tree.read(entry) == content
            assert tree.read_part(entry, 5, 7) == content[5:12]
            assert b"".join(tree.chunks(entry)) == content
        assert tree.kind == "folder"
        server.put("pets/cat/1.bin", b"something else")
        with pytest.raises(SourceReadError, match="another file"):
            tree.read(tree.entries[1])
    server.set_faults(WebFault(kind="status", path="pets/dog/2.bin", status=404))
    with pytest.raises(SourceNotFoundError, match=r"dog/2\.bin"):
        open_all(server)


def test_a_file_that_is_read_in_order_is_opened_once(server: WebServer) -> None:
    """However long it is: a look for each part of it would be a round trip each."""
    content = bytes(40 * 1024 * 1024)
    server.put("long.bin", content)
    with RemoteFileTree("one", [("long.bin", lambda: open_http(server.url("long.bin")))]) as tree:
        server.forget_requests()
        assert sum(map(len, tree.chunks(tree.entries[0]))) == len(content)
        # The look, and all of it.
        assert len(server.requests) == 2

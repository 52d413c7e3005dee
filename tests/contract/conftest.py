"""What the matrices share: processes that make calls, and a web server."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.contract.matrix import Walk
from tests.support.http_server import WebServer
from tests.support.moments import Processes


@pytest.fixture(scope="package")
def processes() -> Iterator[Processes]:
    with Processes("tests.contract.cases:run") as started:
        yield started


@pytest.fixture(scope="package")
def walk_of(tmp_path_factory: pytest.TempPathFactory, processes: Processes, address: str) -> Callable[[str], Walk]:
    """The walks of the cases, by name: undisturbed, each is walked once for all matrices."""
    return cache(lambda name: Walk(name, tmp_path_factory.mktemp("walk"), processes, address))


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    with WebServer({"model.bin": b"m" * 5000}) as started:
        yield started.url("model.bin")

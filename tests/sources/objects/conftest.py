"""A place for objects in each kind of service."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sources.servers import BucketService, FolderService


class Place:
    """`url(key)` is what `put(key, content)` wrote."""

    def __init__(self, address: str, put: Any, remove: Any) -> None:
        self.address = address
        self.put = put
        self.remove = remove

    def url(self, key: str) -> str:
        return f"{self.address}/{key}"


@pytest.fixture(params=["s3", "sftp", "memory"])
def place(request: pytest.FixtureRequest, moto_server: BucketService) -> Iterator[Place]:
    """A place for objects in each of the services. (The server named here has to start before the guard on leaks.)"""
    if request.param == "s3":
        bucket: BucketService = request.getfixturevalue("s3")
        yield Place(f"s3://{bucket.bucket}", bucket.put, bucket.remove)
    elif request.param == "memory":
        import fsspec

        files = fsspec.filesystem("memory")
        files.store.clear()
        yield Place(
            "memory://top", lambda key, data: files.pipe_file(f"/top/{key}", data), lambda key: files.rm(f"/top/{key}")
        )
        files.store.clear()
        files.pseudo_dirs[:] = [""]
    else:
        service: FolderService = request.getfixturevalue(request.param)

        def put(key: str, data: bytes) -> None:
            path = service.root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            older = path.stat().st_mtime if path.exists() else None
            path.write_bytes(data)
            if older is not None:  # SFTP tells whole seconds
                os.utime(path, (older + 2, older + 2))

        yield Place(service.login_address, put, lambda key: (service.root / key).unlink())

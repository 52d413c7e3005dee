"""`drive://MyDrive/…`: the mounted Google Drive as an fsspec filesystem, wherever it is mounted on this machine.

The entry point in `pyproject.toml` registers it for everything that uses fsspec: pandas, `datasets`, Dask, zarr. It
does not mount anything.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from colabstage.errors import DriveNotMountedError
from colabstage.machine.drive import list_drives


class DriveFileSystem(DirFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Paths below the mount point of Google Drive.

    >>> with fsspec.open("drive://MyDrive/notes.txt") as file: ...  # doctest: +SKIP

    Raises:
        DriveNotMountedError: no Drive is mounted.
    """

    protocol: ClassVar[Any] = "drive"
    # A Drive that is mounted again elsewhere needs a new object.
    cachable = False

    def __init__(self, **options: Any) -> None:
        found = list_drives()
        if not found:
            msg = "drive:// needs a mounted Google Drive, and none is mounted. Call mount_drive() first."
            raise DriveNotMountedError(msg)
        super().__init__(path=str(found[0]), fs=LocalFileSystem(), **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        # A path with a slash before it is the same file, and has the same name in listings.
        found = super()._strip_protocol(path)
        return found if isinstance(found, list) else found.lstrip("/")

"""Files and folders of every service that fsspec knows: buckets, hubs, FTP and SFTP servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import SourceReadError
from colabstage.fetch.objects.file import ObjectFile, checksum_of, mtime_ns_of, size_of, version_of
from colabstage.fetch.objects.store import ObjectStore
from colabstage.fetch.objects.tree import ObjectTree
from colabstage.fetch.remote import RemoteFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from colabstage.fetch.checksum import Checksum

__all__ = ["ObjectFile", "ObjectTree", "object_kind", "open_object"]


def open_object(
    url: str, *, checksum: Checksum | None = None, storage_options: Mapping[str, Any] | None = None
) -> ObjectFile:
    """Open one file of a service that fsspec knows.

    Args:
        url: such as `s3://bucket/data.zip`.
        checksum: what its whole content must hash to; otherwise what the service offers, where that is certain.
        storage_options: for fsspec's file system. Logins need none: the backend finds them in the environment, and a
            bucket that is open to anybody is read without.

    Raises:
        OptionError: not an address that fsspec knows.
        MissingDependencyError: the protocol's package is not installed.
        SourceNotFoundError: there is nothing; the message says what is there instead.
        SourceAccessError: a login or a permission is missing; the message says how to give it.
        PassingError: the service does not answer for now.
        SourceReadError: it is a folder, or the service fails otherwise.
    """
    store = ObjectStore(url, storage_options)
    try:
        facts = _facts(store, checksum)
    except BaseException:
        store.close()
        raise
    return ObjectFile(store, store.path, facts)


def object_kind(url: str, *, storage_options: Mapping[str, Any] | None = None) -> Literal["file", "folder"]:
    """Whether an address is a file's or a folder's.

    Where a bucket has both, an address that ends in a slash is the folder's, and an empty object is its marker.

    Raises:
        OptionError, MissingDependencyError, SourceNotFoundError, SourceAccessError, PassingError, SourceReadError: as
            for `open_object`.
    """
    store = ObjectStore(url, storage_options)
    try:
        info = store.info()
        if info.get("type") == "directory":
            return "folder"
        may_be_marker = store.folders_are_prefixes and (url.endswith("/") or size_of(info) == 0)
        return "folder" if may_be_marker and store.list_folder(store.path) else "file"
    finally:
        store.close()


def _facts(store: ObjectStore, checksum: Checksum | None) -> RemoteFacts:
    info = store.info()
    if info.get("type") == "directory":
        msg = f"'{store.label}' is a folder, not a file."
        raise SourceReadError(msg)
    size = size_of(info)
    return RemoteFacts(
        label=store.label,
        name=store.path.rstrip("/").rpartition("/")[2],
        size=size,
        version=version_of(info),
        mtime_ns=mtime_ns_of(info),
        checksum=checksum or checksum_of(info),
        ranges=size is not None and store.has_ranges(),
        connections=store.backend.connections if size is not None else 1,
    )

"""Services beyond those of this package: what installed packages add, and what fsspec knows.

An entry point in the group "colabstage.sources" has the name of a scheme, and leads to a function from an address to
the file or the files that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from colabstage.errors import OptionError
from colabstage.io.packages import added_by_packages
from colabstage.io.redaction import show_address
from colabstage.sources.remote import RemoteFile

# A file; or for each file of a folder its name in it, and what opens it, any number of times.
Found: TypeAlias = RemoteFile | Mapping[str, Callable[[], RemoteFile]]

# fsspec's file systems behind others: they would copy everything that is read to the very disk that has to be spared.
_WRAPPERS = frozenset(
    {"simplecache", "filecache", "blockcache", "cached", "reference", "generic", "dir", "async_wrapper"}
)


def service_of(address: str) -> Callable[[str], Found] | None:
    """Return what opens the addresses of a scheme; `None` where no package adds it."""
    scheme = address.partition("://")[0].lower()
    found = next(iter(added_by_packages("colabstage.sources").select(name=scheme)), None)
    if found is None:
        return None
    opener: Callable[[str], Found] = found.load()
    return opener


def protocol_of(address: str) -> str:
    """Return the protocol of a complete remote address.

    Raises:
        OptionError: it is not one, or leads through one of fsspec's caches or wrappers.
    """
    protocol, mark, rest = address.partition("://")
    if "::" in protocol or "::" in rest.partition("/")[0] or protocol.lower() in _WRAPPERS:
        msg = f"'{show_address(address)}' goes through another file system; give the address of the data itself."
        raise OptionError(msg)
    if not mark or not rest.strip("/"):
        msg = f"'{show_address(address)}' is not a remote address; expected one such as s3://bucket/folder."
        raise OptionError(msg)
    return protocol.lower()

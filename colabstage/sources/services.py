"""Services that installed packages add: an entry point in the group "colabstage.sources" has the name of a scheme, and
leads to a function from an address to the file or the files that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from colabstage.io.packages import added_by_packages
from colabstage.sources.remote import RemoteFile

# A file; or for each file of a folder its name in it, and what opens it, any number of times.
Found: TypeAlias = RemoteFile | Mapping[str, Callable[[], RemoteFile]]


def service_of(address: str) -> Callable[[str], Found] | None:
    """Return what opens the addresses of a scheme; `None` where no package adds it."""
    scheme = address.partition("://")[0].lower()
    found = next(iter(added_by_packages("colabstage.sources").select(name=scheme)), None)
    if found is None:
        return None
    opener: Callable[[str], Found] = found.load()
    return opener

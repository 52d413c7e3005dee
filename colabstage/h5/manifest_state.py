"""What the manifest beside a file is worth, as far as a glance tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from colabstage.errors import NewerFormatError
from colabstage.h5.manifest import manifest_path, read_manifest

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ManifestState:
    """What the manifest beside a file is worth.

    `state`: `agrees`, by the file's length; `differs`, by its length; `missing`; `unreadable`; `newer` than this
    version reads. `detail`: the same in a sentence. `written_by`: the version of colabstage.
    """

    state: Literal["agrees", "differs", "missing", "unreadable", "newer"]
    detail: str
    written_by: str = ""


def look_at_manifest(path: Path, nbytes: int) -> ManifestState:
    """Judge the manifest beside a file of `nbytes` bytes by its length alone; no block is read."""
    sidecar = manifest_path(path)
    if not sidecar.exists():
        return ManifestState("missing", f"none beside it ('{sidecar.name}'), so nothing vouches for its bytes")
    try:
        manifest = read_manifest(path)
    except NewerFormatError as error:
        return ManifestState("newer", str(error))
    if manifest is None:
        return ManifestState("unreadable", f"'{sidecar.name}' is there, but is not a whole manifest")
    if manifest.size != nbytes:
        detail = f"says {manifest.size:,} bytes, but the file has {nbytes:,}: it is damaged"
        return ManifestState("differs", detail, manifest.written_by)
    detail = "agrees with the file's length; 'colabstage verify' compares every byte"
    return ManifestState("agrees", detail, manifest.written_by)

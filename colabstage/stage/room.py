"""How much of the local disk staging takes, and what to do where that is more than is free or than the disk limit."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from colabstage.errors import NotEnoughSpaceError
from colabstage.io.units import format_bytes

if TYPE_CHECKING:
    from colabstage.stage.request import StageRequest

# A smaller limit is no useful advice.
_LEAST_LIMIT_BYTES = 10_000
# What to do with a source that has to be here whole.
_INSTEAD = (
    "Unpack it into a folder, a zip or an uncompressed tar, on your Drive or in a bucket: that is read where it "
    "is. Or make the pack smaller: image_size=, encoding='jpeg:90'."
)


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The bytes that one staging moves."""

    source_bytes: int = 0
    """Bytes read from the source."""
    archive_bytes: int = 0
    """Size of an archive that is copied here first; 0 otherwise."""
    pack_bytes: int = 0
    """Size of the pack."""
    files_bytes: int = 0
    """Size of the plain files that are kept."""
    mount_bytes: int = 0
    """How much is read through a mount that keeps a second copy on the same disk, as Google Drive's does."""

    @property
    def peak_bytes(self) -> int:
        """Return how much free space the local disk needs during the work."""
        # Drive's client drops small files from its cache as the disk fills, but not an archive that is being read.
        return self.archive_bytes + self.mount_bytes + self.pack_bytes + self.files_bytes


def exceeds(request: StageRequest, figures: StageFigures) -> bool:
    """Tell whether what staging takes here is more than the disk limit."""
    # The peak and not the pack alone: an archive and what is made of it are on the disk at one time.
    return request.disk_limit is not None and figures.peak_bytes > request.disk_limit


def less_room(request: StageRequest, free_bytes: int) -> str:
    """Return what takes less space on the local disk than the whole dataset, as the end of a sentence."""
    larger = "give local_dir= on a larger disk"
    # Plain files are here whole.
    if request.keep != "pack" or request.disk_limit is not None or free_bytes < _LEAST_LIMIT_BYTES:
        return larger
    # Not all of the space: other files need some. Without a blank, which a shell would take for the next argument.
    limit = format_bytes(int(0.8 * free_bytes)).replace(" ", "")
    cache = "" if request.cache_dir is not None else " and a cache_dir= with room for it"
    return f"{larger}, or disk_limit='{limit}'{cache}: then a part of the pack is here, and all of it in the cache"


def beyond_limit(request: StageRequest) -> list[str]:
    """Return a sentence where the pack that is here whole takes more than the disk limit; otherwise nothing."""
    limit = request.disk_limit
    # Used all the same: the space is taken, and an earlier call asked for all of it.
    if limit is None or (size := request.pack_path.stat().st_size) <= limit:
        return []
    where = f"--only here --yes --local-dir {quote(str(request.folder.parent))}"
    said = (
        f"All {format_bytes(size)} of the pack are here already, which is more than disk_limit={format_bytes(limit)}, "
        f"and are used as they are. Remove it here (colabstage cache purge {quote(request.name)} {where}) and call "
        "again, and it is read in part."
    )
    return [said]


def check_disk_limit(request: StageRequest, figures: StageFigures | None) -> None:
    """Refuse to make what the disk limit does not allow here, and which cannot be made in shards either.

    `figures`: what it takes; `None` where that is known only once all of it is here.
    """
    limit = request.disk_limit
    if limit is None or (figures is not None and not exceeds(request, figures)):
        return
    takes = "as much of the local disk as shows once it is here and unpacked"
    if figures is not None:
        takes = f"{format_bytes(figures.peak_bytes)} of the local disk"
    msg = (
        f"Packing '{request.source.name}' takes {takes}, and disk_limit={format_bytes(limit)}. No pack of it is in the "
        f"cache yet. {_INSTEAD} Or stage it once where there is room, without disk_limit=; every later "
        "call opens that pack in part."
    )
    raise NotEnoughSpaceError(msg)

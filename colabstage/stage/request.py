"""The arguments of `stage_dataset`, checked, as one frozen value."""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, TypedDict, Union, Unpack, cast

from colabstage.errors import OptionError
from colabstage.io.arguments import absolute_path, check_choice, read_options, text_of_path
from colabstage.io.boundary import public
from colabstage.io.environment import CACHE_DIR_VARIABLE, value_and_name
from colabstage.io.files import lock_for
from colabstage.io.units import parse_bytes, show_address
from colabstage.io.workspace import short_digest
from colabstage.machine.mounts import drive_root, place_in, require_drive
from colabstage.machine.platforms import detect_platform
from colabstage.pack.options import PackArguments, PackOptions, WrittenArguments
from colabstage.sources.parse import (
    LocalSource,
    ManySource,
    ObjectSource,
    SingleSource,
    Source,
    SourceArgument,
    parse_source,
    paths_of,
    read_local_dir,
    refuse_file,
)
from colabstage.sources.remote import Checksum, parse_checksum

if TYPE_CHECKING:
    import os

Keep = Literal["pack", "files", "both"]
Verify = Literal["fast", "full"]
RECORD_NAME, LOCK_NAME = "stage.json", ".colabstage-{}.lock"
FILES_REMEDY = "Move what is yours out of it, or delete it if nothing there is, then stage again."
SOURCE_REMEDIES = {"source": 'Write the dataset\'s path or address first: "photos.zip".'}
# A folder, a prefix in a bucket, this platform's default, or none.
CacheDir = Union[Path, ObjectSource, Literal["auto"], None]  # noqa: UP007 - read at run time


@dataclass(frozen=True, slots=True)
class StageRequest:
    source: Source
    key: str
    """16 hexadecimal digits that change with the source and with every option."""
    name: str
    """The readable and unique name of the local folder, and of the file in the cache."""
    options: PackOptions
    keep: Keep
    folder: Path
    """The folder of everything that belongs to this dataset on the local disk."""
    cache_dir: CacheDir
    refresh: bool
    """Whether existing data must not be used: on request, or because `prepare=` or `layout=` cannot be compared."""
    verify: Verify
    """How thoroughly existing data is checked."""
    checksum: Checksum | None = None
    disk_limit: int | None = None
    """How many bytes of the pack may be on the local disk; `None` for no limit."""

    @property
    def pack_path(self) -> Path:
        return self.folder / f"{self.name}.h5"

    @property
    def copy_path(self) -> Path:
        """Return the path that an unfinished copy of the cached pack is named for."""
        # Not the pack's own: packing continues leftovers of that name, and would take a copy for its own work.
        return self.folder / f"{self.name}.h5.copy"

    @property
    def files_path(self) -> Path:
        return self.folder / "files"

    @property
    def touched_paths(self) -> list[Path]:
        """Return the paths that staging needs: those of the source and the dataset's folder."""
        return [*paths_of(self.source), self.folder]

    @property
    def path_for_workers(self) -> Path | None:
        """Return the path by which any process can open what is packed; `None` if there is none."""
        if self.wants_files:
            return self.files_path
        source = self.source
        return source.path if isinstance(source, LocalSource) and not glob.has_magic(str(source.path)) else None

    @property
    def wants_pack(self) -> bool:
        return self.keep in ("pack", "both")

    @property
    def wants_files(self) -> bool:
        return self.keep in ("files", "both")


class PlaceArguments(TypedDict, total=False):
    """The arguments of `make_request` besides a pack's options, for type checkers; a test compares the two."""

    keep: Keep
    local_dir: str | os.PathLike[str] | None
    cache_dir: str | os.PathLike[str] | None
    refresh: bool
    verify: Verify
    hash: str | None
    disk_limit: int | str | None


class FormArguments(WrittenArguments, PlaceArguments, total=False):
    """Those arguments of `stage_dataset` that can be written down."""


class StageArguments(PackArguments, PlaceArguments, total=False):
    """The arguments of `stage_dataset` that say what is staged."""


@public(PackOptions, reads=("source",), writes=("local_dir", "cache_dir"))
def make_request(
    source: SourceArgument,
    *,
    keep: Keep = "pack",
    local_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = "auto",
    refresh: bool = False,
    verify: Verify = "fast",
    hash: str | None = None,  # noqa: A002 - the word that people know from downloaders
    disk_limit: int | str | None = None,
    options: PackOptions | None = None,
    **arguments: Unpack[PackArguments],
) -> StageRequest:
    """Check the arguments of `stage_dataset` and name the dataset, without touching samples or writing anything.

    Args:
        source: where the dataset is, as for `stage_dataset`.
        keep: `"pack"` for one HDF5 file, `"files"` for a plain local tree, or `"both"`.
        local_dir: the folder on the local disk; `None` for `colabstage` in the platform's fast folder.
        cache_dir: the folder of packs for later sessions, or its address in a bucket (`"s3://bucket/cache"`); `"auto"`
            for `MyDrive/colabstage` on a mounted Drive, otherwise in the platform's persistent folder if that is
            another disk; `None` for no cache.
        refresh: stage again, even if the dataset is local or cached.
        verify: `"fast"` trusts unchanged times and sizes, on a mount those of folders only (there it does not notice a
            file that was rewritten under its name); `"full"` lists the source again and hashes every block of the
            local pack. The report says what was compared.
        hash: the checksum of the source, a single archive, as `"sha256:…"`, `"md5:…"` or the digest alone.
        disk_limit: maximum size of the pack on the local disk, in bytes or as text such as `"20GB"`. A larger pack in
            the cache is opened in part: loaders fetch its blocks when they need them, and evict others. A dataset that
            is not cached is packed in shards; each is moved to the cache when it is finished.
        options: how the pack is made, in one value, for several datasets; arguments given by name take precedence.
        **arguments: those of `colabstage.options.PackOptions`.

    Raises:
        OptionError: an argument has a value that cannot work.
        TypeError: there is no such argument.
    """
    # All mistakes in arguments are found before the source is touched, which may take minutes.
    check_choice("keep", keep, Keep)
    check_choice("verify", verify, Verify)
    limit = None if disk_limit is None else parse_bytes(disk_limit, "disk_limit")
    if limit is not None and keep != "pack":
        msg = f"disk_limit= is for keep='pack', and keep={keep!r} makes plain files, never in part. Leave out one."
        raise OptionError(msg)
    # Imported late: the command line builds options even to show its help, and layouts need numpy.
    from colabstage.layouts.detect import is_table_file
    from colabstage.layouts.options import table_rows

    packing = read_options(PackOptions, options, arguments)
    parsed = parse_source(source)
    if isinstance(parsed, LocalSource) and is_table_file(parsed.path, packing.layout):
        # The files that a table names are beside it.
        beside = cast("LocalSource", parse_source(parsed.path.parent))
        packing = replace(packing, layout=table_rows(table=parsed.path.name))
        # Named for the table, not for the folder, which may hold several.
        parsed = replace(beside, name=parsed.path.stem)
    # From the source and the options, never from where the pack is made: any machine must find it in the cache.
    key = short_digest(f"{parsed.address}\n{packing.fingerprint()}")
    name = f"{parsed.name}-{key[:8]}"
    base = read_local_dir(local_dir)
    cache = read_cache_dir(cache_dir)
    parsed = _without_ours(parsed, base, name, cache)
    wanted = None if hash is None else parse_checksum(hash)
    if wanted is not None and isinstance(parsed, ManySource):
        msg = "hash= is for one archive, and source is a list. Leave it out, or stage the archive alone."
        raise OptionError(msg)
    # Nothing tells whether a lock or an open file is the same as yesterday, so data made with one is not reused.
    again = refresh or bool(packing.incomparable)
    return StageRequest(parsed, key, name, packing, keep, base / name, cache, again, verify, wanted, limit)


def staged_folders(base: Path) -> list[Path]:
    """Return the folders of datasets below a `local_dir=`, found by their records."""
    return sorted(record.parent for record in base.glob(f"*-{'[0-9a-f]' * 8}/{RECORD_NAME}"))


def _without_ours(source: Source, base: Path, name: str, cache: CacheDir) -> Source:
    """Return the source without what colabstage keeps in it: staged datasets and the cache."""
    # Found by records, if datasets are in the source folder itself. Nothing on a slow mount is checked, because it
    # could hang the check of arguments.
    if isinstance(source, ManySource):
        return replace(source, parts=tuple(_without_ours_in(part, base, name, cache) for part in source.parts))
    return _without_ours_in(source, base, name, cache)


def _without_ours_in(source: SingleSource, base: Path, name: str, cache: CacheDir) -> SingleSource:
    if isinstance(source, ObjectSource) and isinstance(cache, ObjectSource):
        if f"{cache.address}/".startswith(f"{source.address}/"):
            raise OptionError(_cache_in_source(cache.label, source, "another prefix, or another bucket"))
        return source
    if not isinstance(source, LocalSource) or glob.has_magic(str(source.path)):
        return source
    # One walk for each path, which finds the links that lead there.
    inside = [place_in(base, source.path)]
    if inside == [PurePath()]:
        inside = [place_in(place, source.path) for place in (base / name, *staged_folders(base))]
    places: list[Path] = []
    if isinstance(cache, Path):
        places.append(cache)
    elif cache == "auto":
        drive, lasting = drive_root(source.path), detect_platform().persistent_dir
        places += [] if drive is None else [drive / "MyDrive" / "colabstage"]
        places += [] if lasting is None else [lasting / "colabstage"]
    # Staging a folder that contains the cache would otherwise pack yesterday's packs.
    for place in places:
        if (found := place_in(place, source.path)) == PurePath():
            raise OptionError(_cache_in_source(str(place), source, f"a folder of its own, '{place / 'cache'}'"))
        inside.append(found)
    return replace(source, leave_out=frozenset(str(place) for place in inside if place is not None and place.parts))


def _cache_in_source(cache: str, source: SingleSource, instead: str) -> str:
    what = f"is inside the source '{source.label}'" if cache != source.label else "is the source itself"
    return f"The cache '{cache}' {what}, so packs would be taken for a part of the dataset. Give cache_dir= {instead}."


def check_for_workers(request: StageRequest) -> None:
    """Make sure that an executor's workers can open what is packed."""
    if request.path_for_workers is None:
        msg = (
            f"The workers of executor= open one folder or archive by its path, and '{request.source.label}' has none. "
            "Leave it out, or give keep='both', which copies the files first."
        )
        raise OptionError(msg)


def check_for_streaming(request: StageRequest, *, has_executor: bool) -> None:
    """Make sure that rows can be read while the others are packed."""
    others = {
        "executor=": has_executor,
        f"keep='{request.keep}'": request.keep != "pack",
        "disk_limit=": request.disk_limit is not None,
    }
    clash = next((name for name, is_given in others.items() if is_given), None)
    if clash is not None:
        msg = f"streaming=True makes all of one pack here, which {clash} forbids. Leave out one."
        raise OptionError(msg)


def lock_path(folder: Path) -> Path:
    """Return the path of the lock of a dataset's folder: beside it, because purging removes the folder while it holds
    the lock; on Drive, which has no locks, in the folder for temporary files."""
    return folder.with_name(LOCK_NAME.format(folder.name)) if drive_root(folder) is None else lock_for(folder)


def read_cache_dir(cache_dir: str | os.PathLike[str] | None) -> CacheDir:
    if cache_dir is None:
        return None
    given = text_of_path(cache_dir, "cache_dir")
    text, name = value_and_name("cache_dir", given, "auto", CACHE_DIR_VARIABLE)
    # Neither a shell nor a variable has Python's None; a folder called "none" is written `./none`.
    if text.lower() in ("auto", "none"):
        return "auto" if text.lower() == "auto" else None
    if "://" in text:
        return _read_address(text, name)
    cache = absolute_path(text, name, instead="an address has both slashes")
    require_drive(cache)
    refuse_file(name, cache)
    return cache


def _read_address(text: str, name: str) -> ObjectSource | Path:
    source = parse_source(text)
    if isinstance(source, LocalSource):
        return source.path
    if not isinstance(source, ObjectSource) or re.search(r"[?*\[#]", text):
        msg = (
            f"{name}='{show_address(text)}' is not a place that packs can be written to; expected a folder, or an "
            "address as 's3://bucket/cache', without a pattern or a query."
        )
        raise OptionError(msg)
    return source

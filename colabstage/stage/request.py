"""What the caller of `stage_dataset` asked for, checked and in one frozen value."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from colabstage.errors import OptionError
from colabstage.machine.drive import drive_root, normalise_drive_path
from colabstage.machine.platforms import detect_platform

if TYPE_CHECKING:
    from colabstage.pack.options import PackOptions
    from colabstage.trees.tree import Tree

Keep = Literal["pack", "files", "both"]
Verify = Literal["fast", "full"]

_SUFFIXES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One dataset to stage.

    `place`: where the source is; the label of `tree` when the caller brought one.
    `address`: how the source is named in keys and manifests; on Google Drive independent of where Drive is mounted.
    `key`: 16 hexadecimal digits, different for another source or other options.
    `name`: readable and unique: of the local folder, and of the file in the cache.
    `folder`: everything of this dataset on the local disk.
    `cache_dir`: as the caller gave it.
    """

    place: Path
    tree: Tree | None
    address: str
    key: str
    name: str
    options: PackOptions
    keep: Keep
    folder: Path
    cache_dir: Path | Literal["auto"] | None
    refresh: bool
    verify: Verify

    @property
    def pack_path(self) -> Path:
        """The packed file on the local disk."""
        return self.folder / f"{self.name}.h5"

    @property
    def files_path(self) -> Path:
        """The plain tree of files on the local disk."""
        return self.folder / "files"

    @property
    def on_drive(self) -> bool:
        """Whether the source lies on a mounted Google Drive."""
        return self.tree is None and self.address.startswith("drive:")

    @property
    def wants_pack(self) -> bool:
        return self.keep in ("pack", "both")

    @property
    def wants_files(self) -> bool:
        return self.keep in ("files", "both")


def make_request(
    source: str | os.PathLike[str] | Tree,
    *,
    options: PackOptions,
    keep: Keep,
    local_dir: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
    refresh: bool,
    verify: Verify,
) -> StageRequest:
    """Check the arguments and name the dataset. Touches no sample and writes nothing.

    Raises:
        OptionError: an argument cannot work.
    """
    for value, kind, name in ((keep, Keep, "keep"), (verify, Verify, "verify")):
        if value not in get_args(kind):
            msg = f"{name}={value!r} is unknown; expected one of {', '.join(map(repr, get_args(kind)))}."
            raise OptionError(msg)
    if not isinstance(source, (str, os.PathLike)):
        place, tree, address = Path(source.label), source, f"tree:{source.label}"
    else:
        place, tree = _absolute(source), None
        address = source_address(place)
    key = hashlib.sha256(f"{address}\n{options.fingerprint()}".encode(errors="surrogateescape")).hexdigest()[:16]
    name = f"{_readable(place)}-{key[:8]}"
    base = detect_platform().fast_dir / "colabstage" if local_dir is None else _absolute(local_dir)
    cache: Path | Literal["auto"] | None = None
    if cache_dir is not None:
        cache = "auto" if cache_dir == "auto" else _absolute(cache_dir)
    return StageRequest(place, tree, address, key, name, options, keep, base / name, cache, refresh, verify)


def source_address(place: Path) -> str:
    """The name of a source: its path, or on Google Drive its path from Drive's own root."""
    root = drive_root(place)
    if root is None:
        return str(place)
    return f"drive:{normalise_drive_path(place).relative_to(root.resolve())}"


def _absolute(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if "://" in text:
        scheme = text.partition("://")[0]
        msg = (
            f"{text!r} is a {scheme} address; expected a folder or an archive on this machine or on a mounted Drive. "
            "Download it first, then stage the local path."
        )
        raise OptionError(msg)
    return Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100 - resolve() would follow links into Drive


def _readable(place: Path) -> str:
    """The part of a name that a person recognises: `kitti` for `/content/drive/MyDrive/kitti.tar.gz`."""
    name = place.name
    while name.lower().endswith(_SUFFIXES) and "." in name[1:]:
        name = name[: name.rindex(".")]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:60] or "dataset"

"""Find the files of a pack, each with its manifest: by paths, addresses, a pattern or a share link."""

from __future__ import annotations

import glob
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import OptionError, SourceNotFoundError
from colabstage.h5.info import size_of_file
from colabstage.h5.manifest import Manifest, manifest_path, parse_manifest, read_manifest
from colabstage.h5.parts import PartName, find_parts
from colabstage.io.redaction import show_address
from colabstage.io.units import NAMES_SHOWN, format_names
from colabstage.sources.in_part import FileOfSet
from colabstage.sources.parse import LocalSource, ShareSource, parse_source, share_source
from colabstage.sources.remote import given_up
from colabstage.sources.remote_files import FileSource, read_small_file, remote_opener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.h5.parts import Files
    from colabstage.sources.parse import SingleSource

# The address of all shards of a set, as packing reports it, or with a star.
_SHARDS = re.compile(r"(?P<stem>.+)-(?:\*|\?{5})-of-(?P<count>\d{5})(?P<rest>.*)", re.DOTALL)


def find_files(files: Files) -> list[tuple[SingleSource, SingleSource]]:
    """Find the files of a pack, each with its manifest; a link to a shared folder is opened for that. With a file on
    this machine or a mount it is the file once more, since its manifest is found by its path."""
    addresses = _addresses_of(files)
    sources = [source_of(address) for address in addresses]
    if len(sources) == 1 and isinstance(sources[0], ShareSource):
        return _find_shared(sources[0])
    return [(source, _beside(source, address)) for source, address in zip(sources, addresses, strict=True)]


def _addresses_of(files: Files) -> list[str | os.PathLike[str]]:
    """Return the path or address of each file."""
    if not isinstance(files, str | os.PathLike):
        found = list(files)
        if not found:
            msg = "The list of files is empty; expected at least one packed file."
            raise OptionError(msg)
        return found
    text = os.fspath(files)
    if "://" not in text:
        return [*find_parts(files)] if glob.has_magic(text) else [files]
    # An address cannot be listed everywhere, but that of a set tells how many files there are.
    shards = _SHARDS.fullmatch(text)
    if shards is None:
        return [files]
    count = int(shards["count"])
    if not count:
        msg = f"'{show_address(text)}' names a set of no files."
        raise OptionError(msg)
    return [f"{shards['stem']}-{number:05}-of-{count:05}{shards['rest']}" for number in range(count)]


def source_of(address: str | os.PathLike[str]) -> FileSource:
    """Return the source of one file; an OptionError where an address is of anything else."""
    source = parse_source(address)
    if not isinstance(source, FileSource):
        msg = f"disk_limit= is for packed files; '{source.label}' is none. Give its path or address."
        raise OptionError(msg)
    return source


def _beside(source: SingleSource, address: str | os.PathLike[str]) -> SingleSource:
    """Return where the manifest of a file is."""
    if isinstance(source, LocalSource):
        return source
    if isinstance(source, ShareSource):
        msg = (
            f"'{source.label}' is a share link in a list. Give the link to the shared folder that has all files, alone."
        )
        raise OptionError(msg)
    # Signed addresses have their signature behind the path, and it has to stay there.
    before, mark, query = os.fspath(address).partition("?")
    return source_of(f"{before}.json{mark}{query}")


def _find_shared(source: ShareSource) -> list[tuple[SingleSource, SingleSource]]:
    """Find the one pack in a shared folder, or all shards of the one set."""
    from colabstage.sources.gdrive import SharedFolder, open_share

    with given_up():
        found = open_share(source.link)
    if not isinstance(found, SharedFolder):
        found.close()
    files = found.files if isinstance(found, SharedFolder) else {}
    shared = {name: share_source(link) for name, link in files.items()}
    packs = {name: one for name, one in shared.items() if f"{name}.json" in shared}
    sets = {PartName.of(Path(name)).dataset for name in packs}
    if not packs:
        msg = (
            f"'{source.label}' leads to no packed file with its manifest. Share a folder that holds both, NAME.h5 and "
            "NAME.h5.json, and give the link to that folder."
        )
        raise SourceNotFoundError(msg)
    if len(sets) > 1:
        some = format_names(sorted(packs)[:NAMES_SHOWN], len(packs))
        msg = f"'{source.label}' holds several packs ({some}). Share a folder that holds one, and give its link."
        raise OptionError(msg)
    in_order = sorted(packs, key=lambda name: PartName.of(Path(name)))
    return [(packs[name], shared[f"{name}.json"]) for name in in_order]


def find_manifest(wanted: tuple[SingleSource, SingleSource]) -> Manifest:
    """Read the manifest of a packed file, as `find_files` found both; an error where one is missing."""
    source, beside = wanted
    if isinstance(source, LocalSource):
        found, label = read_manifest(source.path), str(manifest_path(source.path))
    else:
        label, told = beside.label, None
        # A manifest of another version has hashes that the blocks do not have.
        with suppress(SourceNotFoundError, ValueError, RecursionError):
            told = json.loads(read_small_file(beside))
        found = parse_manifest(told, label)
    if found is None:
        # Where the file is missing too, that is what is wrong: of a bucket or address it also says what is there.
        if isinstance(source, LocalSource):
            size_of_file(source.path)
        else:
            remote_opener(source)().close()
        msg = (
            f"'{label}' is not there, or is incomplete, so nothing would tell a block of '{source.label}' that "
            "came wrong. Publish both files together; packs that colabstage made have one beside them."
        )
        raise SourceNotFoundError(msg)
    return found


def label_of(files: Files, sources: Sequence[SingleSource]) -> str:
    """Return what files are called in messages."""
    # Of a shared folder that is its link, and not that of a file in it.
    if isinstance(files, str | os.PathLike) and isinstance(sources[0], ShareSource):
        return source_of(files).label
    more = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
    return f"{sources[0].label}{more}"


def name_files(sources: Sequence[SingleSource], manifests: Sequence[Manifest]) -> list[FileOfSet]:
    """Give each file the name of its local part, which no other one has."""
    names = [f"{one.name.removesuffix('.h5')}.h5" for one in sources]
    if len(sources) == 1:
        names = [f"{sources[0].name}.h5"]
    elif len(set(names)) < len(names):
        names = [f"{number:05}-{name}" for number, name in enumerate(names)]
    return [FileOfSet(*one) for one in zip(sources, names, manifests, strict=True)]

"""Parse `source` arguments: paths, patterns, share links, URLs, datasets of a service, or several of these. Nothing is
opened here. Each source gets the address that identifies it in keys and manifests. That address contains no password,
token or signature, and stays the same when only those change.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeGuard, Union
from urllib.parse import SplitResult, parse_qs, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from colabstage.errors import OptionError, SourceNotFoundError
from colabstage.io.arguments import absolute_path, show_value, text_of_path, whereabouts
from colabstage.io.environment import LOCAL_DIR_VARIABLE, value_and_name
from colabstage.io.units import names_secret, show_address
from colabstage.io.workspace import short_digest
from colabstage.machine.mounts import (
    DEFAULT_MOUNTPOINT,
    DRIVE_SPELLINGS,
    drive_root,
    path_on_drive,
    place_in,
    require_answer,
    require_drive,
)
from colabstage.machine.platforms import detect_platform
from colabstage.trees.bytes import ARCHIVE_SUFFIXES
from colabstage.trees.names import is_piece, may_be_part
from colabstage.trees.names import parts_of as parts_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from colabstage.sources.remote import Services
    from colabstage.trees.listing import Tree


_EXPECTED = (
    "a folder, a file or a pattern such as 'part-*.zip' on this machine or on a mounted Drive, a Google Drive share "
    "link, an https:// address, an address such as s3:// or gs://, kaggle://owner/dataset, or a list of these"
)
# The second form is fsspec's for a file system behind another one.
_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)"
# WebDataset's addresses of shards are written like this.
_ROW = r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}"
_MOST_IN_A_ROW = 100_000
# Public: keys have to be the same on every machine.
_SALT = b"colabstage address"
# Parameters that sign a request and do not identify its object: those of Amazon and Google (by prefix), of CloudFront,
# the older forms of both and Alibaba (with `Signature`), and of Azure (with `sig`). It is documented that the object
# does not depend on them. Nothing else is left out of a key, whatever its name: a `token` may identify the object.
_SIGNING_PREFIXES = ("x-amz-", "x-goog-")
_WITH_SIGNATURE = frozenset(
    {"signature", "expires", "policy", "key-pair-id", "awsaccesskeyid", "googleaccessid", "ossaccesskeyid"}
)
_WITH_SIG = frozenset(
    "sv ss srt sp se st spr sig sr sip si skoid sktid skt ske sks skv saoid suoid scid ses sdd".split()  # noqa: SIM905
)


ShareKind = Literal["file", "folder", "unknown"]


@dataclass(frozen=True, slots=True)
class _SourceBase:
    address: str
    """Its name in keys and manifests; contains no secret."""
    name: str
    """A readable name, for folders and files made from it."""
    label: str
    """Its name in messages and reports; contains no secret."""


@dataclass(frozen=True, slots=True)
class LocalSource(_SourceBase):
    """A folder, a file, or a pattern of several, on this machine or on a mounted Drive."""

    path: Path
    leave_out: frozenset[str] = frozenset()
    """Names of folders in it that are not part of it, such as earlier output of colabstage."""
    pieces: tuple[Path, ...] = ()
    """The files that make up the archive when they follow each other; `path` is the first."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files whose bytes it has, one after the other, where it is no folder."""
        return self.pieces or (self.path,)


@dataclass(frozen=True, slots=True)
class WebSource(_SourceBase):
    url: str = field(repr=False)
    """The full address, with any credentials in it."""


@dataclass(frozen=True, slots=True)
class ObjectSource(_SourceBase):
    """A file or folder at an address that fsspec knows."""

    url: str = field(repr=False)
    """The full address, with any credentials in it."""


@dataclass(frozen=True, slots=True)
class ShareSource:
    """A file or folder shared by a Google Drive link."""

    kind: ShareKind
    """Its target; "unknown" for links such as `open?id=`, which do not say it, so that Drive has to be asked."""
    id: str
    resource_key: str = field(default="", repr=False)
    """The resource key in links to items shared before 2021; "" for all others."""

    @property
    def address(self) -> str:
        return f"gdrive:{self.id}"

    @property
    def name(self) -> str:
        return f"gdrive-{self.id[:12].strip('-_')}"

    @property
    def label(self) -> str:
        """Return the link as shown in messages, without its resource key."""
        if self.kind == "folder":
            return f"https://drive.google.com/drive/folders/{self.id}"
        return f"https://drive.google.com/file/d/{self.id}" if self.kind == "file" else f"gdrive://{self.id}"

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters that identify it in any of Drive's addresses."""
        return {"id": self.id, **({"resourcekey": self.resource_key} if self.resource_key else {})}


@dataclass(frozen=True, slots=True)
class KaggleSource:
    owner: str
    dataset: str
    version: int | None = None
    """The version's number; `None` for the newest."""

    @property
    def address(self) -> str:
        return f"kaggle:{self.handle}"

    @property
    def name(self) -> str:
        return readable_name(self.dataset)

    @property
    def label(self) -> str:
        return f"kaggle://{self.handle}"

    @property
    def handle(self) -> str:
        """Return its name in kagglehub's form: `owner/name`, with `/versions/N` for a certain version."""
        return f"{self.owner}/{self.dataset}" + (f"/versions/{self.version}" if self.version else "")

    @property
    def page(self) -> str:
        """Return the web page on which its licence is accepted."""
        return f"https://www.kaggle.com/datasets/{self.owner}/{self.dataset}"


@dataclass(frozen=True, slots=True)
class TreeSource(_SourceBase):
    """Files that the caller has opened as a tree."""

    tree: Tree = field(repr=False)
    """The tree; the caller closes it."""
    digest: str = ""
    """A hash of all their content, for files without modification times."""


@dataclass(frozen=True, slots=True)
class ManySource(_SourceBase):
    parts: tuple[SingleSource, ...]


SingleSource = Union[LocalSource, WebSource, ObjectSource, ShareSource, KaggleSource, TreeSource]  # noqa: UP007 - read at run time
Source = Union[SingleSource, ManySource]  # noqa: UP007 - as above
SourceArgument = Union["str | os.PathLike[str] | Tree", "Sequence[str | os.PathLike[str] | Tree]"]


def parse_source(source: SourceArgument) -> Source:
    """Parse a `source` argument. Opens nothing; checks the mount table.

    Raises:
        OptionError: it cannot be a source; the message says what can.
    """
    if not isinstance(source, (list, tuple)):
        return _parse_one(source)
    if not source:
        raise _no_source(source)
    parts = tuple(_parse_one(part) for part in source)
    if len(parts) == 1:
        return parts[0]
    digest = short_digest("\n".join(part.address for part in parts))
    # The common beginning of their names: `part` for `part-000`, `part-001`.
    common = os.path.commonprefix([part.name for part in parts]).rstrip("0123456789-_.")  # noqa: RUF071 - by character
    name = common if len(common) > 2 else f"{parts[0].name}-and-{len(parts) - 1}-more"
    return ManySource(f"list:{digest}", name, f"{parts[0].label} and {len(parts) - 1:,} more", parts)


def _parse_one(source: object) -> SingleSource:
    if isinstance(source, (str, os.PathLike)):
        return _parse_text(source)
    # Imported late: the command line asks this module for names, and must not load numpy for its help.
    from colabstage.trees.listing import Tree

    if isinstance(source, Tree):
        # Callers choose labels freely, so trees in memory are distinguished by their contents.
        digest = _content_digest(source)
        address = f"tree:{source.label}" + (f"?{digest}" if digest else "")
        return TreeSource(address, readable_name(source.label), source.label, source, digest)
    raise _no_source(source)


def _no_source(source: object) -> OptionError:
    return OptionError(f"source={show_value(source)} names nothing to read; expected {_EXPECTED}.")


def _content_digest(tree: Tree) -> str:
    """Return a hash of all names and bytes of a tree if some files have no modification time; otherwise ""."""
    if all(entry.mtime_ns for entry in tree.entries):
        return ""
    hasher = hashlib.sha256()
    for entry in tree.entries:
        content = hashlib.sha256(tree.read(entry)).hexdigest()
        hasher.update(f"{entry.name}\t{content}\n".encode(errors="surrogateescape"))
    return f"sha256:{hasher.hexdigest()[:16]}"


def _parse_text(source: str | os.PathLike[str]) -> SingleSource:
    text = text_of_path(source, "source")
    if not text.strip():
        raise _no_source(source)
    if not isinstance(source, str) and re.match(_SCHEME, text) is None:
        return local_source(text)
    # Links may be pasted with quotation marks or angle brackets around them.
    pasted = text.strip().strip("<>\"'").strip()
    if (service := parse_service(pasted)) is not None:
        return service
    found = re.match(_SCHEME, pasted)
    if found is None:
        return local_source(text)
    text, scheme = pasted, found[1].lower()
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            msg = f"'{show_address(text)}' names another machine; expected a file of this one: file:///folder/name."
            raise OptionError(msg)
        return local_source(unquote(parts.path))
    return _web(text) if scheme in ("http", "https") else _object(text, scheme)


def local_source(path: str | os.PathLike[str]) -> LocalSource:
    """Return the source at a path, or of all paths that match a pattern."""
    path = absolute_path(path, "source", instead="an address is text, with both slashes, as 'https://…'")
    return LocalSource(local_address(path), readable_name(path.name), str(path), path)


def read_local_dir(local_dir: str | os.PathLike[str] | None) -> Path:
    """Return the parent folder of this machine's datasets, given the public argument `local_dir`."""
    value, name = value_and_name("local_dir", local_dir, None, LOCAL_DIR_VARIABLE)
    usual = detect_platform().fast_dir
    base = absolute_path(usual if value is None else value, name)
    require_drive(base)
    refuse_file(name, base)
    return base / "colabstage" if local_dir is None else base


def refuse_file(argument: str, folder: Path) -> None:
    """Refuse a file where a folder is expected. Nothing on a mount is checked, because it could hang the check."""
    if drive_root(folder) is None and folder.is_file():
        msg = f"{argument}='{folder}' is a file; expected a folder, which is made if there is none."
        raise OptionError(msg)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a file should go: its own path, or a folder in which it keeps its name."""

    path: Path
    is_folder: bool
    """Whether it ends in a slash, which means a folder, existing or not."""
    is_open: bool
    """Whether it is a `Path`, which drops that slash."""

    @classmethod
    def read(cls, target: str | os.PathLike[str]) -> Target:
        """Check the public argument `target`. The file system is not accessed."""
        path = absolute_path(target, "target")
        return cls(path, os.fspath(target).endswith(os.sep), not isinstance(target, str))

    def file(self, name: str) -> Path:
        if self.is_folder or self.path.is_dir():
            return self.path / name
        if self.is_open and Path(name).suffix and not self.path.suffix and not os.path.lexists(self.path):
            msg = (
                f"target={self.path!r} may name a file or a folder. For a folder make it first, or write "
                f"'{self.path}/'; for a file write it as text, '{self.path}'."
            )
            raise OptionError(msg)
        return self.path


def check_outside(sources: Iterable[Path], target: Path, argument: str = "target") -> None:
    """Refuse to write into a source: its files would be copied into themselves, or the copies become samples next time.

    A target that is a source itself is left to the caller, unless a pattern matches it.
    """
    for source in (Path(path) for one in sources for path in _expand_rows(str(one))):
        found = place_in(target, source)
        # Not expanded, because that lists folders. Here a star matches slashes too, which refuses slightly too much.
        fits = glob.has_magic(str(source)) and any(
            fnmatch.fnmatchcase(str(place), str(source)) for place in (target, *target.parents)
        )
        if fits or (found is not None and found.parts):
            beside = (whole := absolute_path(source)).parent / f"{whole.name}-{target.name}"
            # Nothing is beside the root.
            instead = "somewhere else" if fits or not whole.name else f"beside it, for example '{beside}'"
            msg = (
                f"{argument}='{target}' is inside the source '{source}', and would be taken for a part of it. Choose a "
                f"place {instead}."
            )
            raise OptionError(msg)


def local_address(path: Path) -> str:
    """Return the address of an absolute path: itself, or on Google Drive the path from Drive's own root."""
    if (inside := path_on_drive(path)) is not None:
        return f"drive:{inside}"
    if path.is_relative_to(DEFAULT_MOUNTPOINT):
        first, *rest = (*path.relative_to(DEFAULT_MOUNTPOINT).parts, "")
        folder = DRIVE_SPELLINGS.get(first, first)
        if folder in DRIVE_SPELLINGS.values():
            return f"drive:{PurePosixPath(folder, *rest)}"
    return str(path)


def _web(text: str) -> WebSource:
    try:
        parts = urlsplit(text)
        hostname, port = parts.hostname, parts.port
    except ValueError:
        # The parser's own message quotes the address, including the password.
        hostname = port = None
    if not hostname:
        msg = (
            f"'{show_address(text)}' names no server; expected https://server/path. In a user or password write the "
            "characters @ : / ? # [ ] as %40 %3A %2F %3F %23 %5B %5D, and a port as a number up to 65535."
        )
        raise OptionError(msg)
    host = hostname if port in (None, 80, 443) else f"{hostname}:{port}"
    bare = urlunsplit((parts.scheme.lower(), host, parts.path or "/", "", ""))
    shown = show_address(bare)
    hidden = re.sub(r"(;[^;/=]*=)([^;/]+)", lambda pair: pair[1] + _stretched(pair[2], host), bare)
    address = _keyed(shown, hidden if shown != bare else "", _lasting_query(parts.query, host))
    name = readable_name(unquote(PurePosixPath(parts.path).name) or hostname)
    return WebSource(address, name, show_address(text), text)


def _object(text: str, scheme: str) -> ObjectSource:
    # A scheme alone is another kind of mistake.
    protocol_of(text)
    label = show_address(text).rstrip("/")
    shown, mark, query = label.partition("?")
    # Without a value it is a key that contains a question mark.
    if "=" not in query:
        shown, mark = label, ""
    place, written = shown.partition("://")[2].rstrip("/"), text.partition("://")[2]
    # The content of a server depends on the user (a home folder, a bucket's view), not on the password.
    user = "" if written.startswith(place) else re.split("[:@/]", written)[0]
    server = f"{scheme}://{place.partition('/')[0]}"
    lasting = _lasting_query(text.partition("?")[2] if mark else "", server)
    address = _keyed(f"{scheme}://{place}", user and f"user {_stretched(user, server)}", lasting)
    return ObjectSource(address, readable_name(PurePosixPath(place).name or place), label, text)


def _keyed(shown: str, *rest: str) -> str:
    """Return the address for keys: the part that may be shown, and a digest of the rest that distinguishes it."""
    hidden = "\n".join(filter(None, rest))
    return f"{shown}?{short_digest(hidden, 12)}" if hidden else shown


@functools.cache
def _stretched(secret: str, server: str) -> str:
    """Return a deliberately slow digest (20 ms of a core) of a token or user, the same on every machine."""
    # Addresses are in manifests, which people publish: with a fast digest, all short secrets could be tried in seconds.
    # The server is included so that digests tried for one server are useless for others; the whole address is not,
    # because lists have thousands of addresses with one token.
    raw = f"{server}\n{secret}".encode(errors="surrogateescape")
    return hashlib.scrypt(raw, salt=_SALT, n=2**13, r=8, p=1, dklen=16).hex()


def _lasting_query(query: str, server: str) -> str:
    """Return a query without signatures, which change from day to day, and with digests in place of secrets."""
    pairs = parse_qsl(query, keep_blank_values=True)
    names = {name.lower() for name, _ in pairs}
    signing: frozenset[str] = _WITH_SIGNATURE if "signature" in names else frozenset()
    if "sig" in names and names & {"se", "sp", "sv"}:
        signing |= _WITH_SIG
    lasting = (
        (name, _stretched(value, server) if value and names_secret(name) else value)
        for name, value in pairs
        if name.lower() not in signing and not name.lower().startswith(_SIGNING_PREFIXES)
    )
    return urlencode(list(lasting))


def parts_of(source: Source) -> tuple[SingleSource, ...]:
    """Return the sources that a source consists of: itself, or those of a list."""
    return source.parts if isinstance(source, ManySource) else (source,)


def is_on_drive(source: SingleSource) -> TypeGuard[LocalSource]:
    """Return whether a source is on a Google Drive, whose client knows the MD5 of its files."""
    return isinstance(source, LocalSource) and source.address.startswith("drive:")


def paths_of(source: Source) -> list[Path]:
    return [part.path for part in parts_of(source) if isinstance(part, LocalSource)]


def readable_name(name: str) -> str:
    """Return the recognisable part of a name, `kitti` for `kitti.tar.gz`, in characters that any disk accepts."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", _without_suffixes(name)).strip("-.")[:60] or "dataset"


def name_in_list(source: SingleSource) -> str:
    """Return the name of a source's folder in a list of several; it may become the name of a class."""
    if not isinstance(source, LocalSource):
        return source.name
    # Kept in its own script: otherwise two folders with Chinese names would be called dataset and dataset-2.
    name = _without_suffixes(source.path.name)
    return name if name.isprintable() and name.strip(" .") == name != "" and "\\" not in name else source.name


def _without_suffixes(name: str) -> str:
    name = name.rstrip("/").rpartition("/")[2]
    while name.lower().endswith(ARCHIVE_SUFFIXES) and "." in name[1:]:
        name = name[: name.rindex(".")]
    return name


def expand_source(source: Source, *, unpack: bool, services: Services | None = None) -> Source:
    """Return all that a source stands for; with `unpack`, whose caller takes the files in archives, whole archives."""
    expanded = expand_pattern(source, services)
    return whole_of(expanded) if unpack else expanded


def whole_of(source: Source) -> Source:
    """Return the whole that a source is a part of, by the names beside it: an archive that was cut into pieces, or a
    folder that Google Drive downloaded as several zips."""
    files = [part.path for part in parts_of(source) if isinstance(part, LocalSource)]
    if not any(may_be_part(path.name) for path in files) or len(files) < len(parts_of(source)):
        return source
    found: dict[Path, tuple[Path, ...]] = {}
    for path in files:
        names = parts_of_file(path.name, os.listdir(path.parent) if may_be_part(path.name) else ())  # noqa: PTH208 - names
        group = tuple(path.with_name(name) for name in names)
        found.update(dict.fromkeys([group[0]] if is_piece(path.name) else group, group))
    parts = tuple(
        replace(local_source(path), pieces=group) if is_piece(path.name) else local_source(path)
        for path, group in found.items()
    )
    if len(parts) == 1:
        return replace(parts[0], address=source.address, name=source.name, label=source.label)
    return _list_of(source, parts)


def expand_pattern(source: Source, services: Services | None = None) -> Source:
    """Return a source itself, or everything that it stands for: the parts of a list, the files of a row such as
    `train-{000..146}.tar` in its order, or what matches a pattern, sorted by name. At a service, a pattern of other
    files than archives stays one source, which is listed as a folder is.

    Existing files, and folders on the way to them, whose names merely look like a pattern are taken literally (`[2024]
    photos/part-*.zip`). `**` stands for any number of folders.

    Raises:
        OptionError: it stands for too many files.
        SourceNotFoundError: it is a pattern, and nothing matches.
        DriveDisconnectedError: its mount is dead, or does not answer.
    """
    if isinstance(source, ManySource):
        # Checking for each of thousands of files whether its mount responds would take minutes.
        parts = [part if _is_plain(part) else expand_pattern(part, services) for part in source.parts]
    elif isinstance(source, LocalSource):
        require_answer(source.path)
        if _is_plain(source) or os.path.lexists(source.path):
            return source
        if len(paths := _expand_rows(str(source.path))) == 1:
            return _matches(source)
        parts = [expand_pattern(local_source(path)) for path in paths]
    elif isinstance(source, WebSource | ObjectSource) and not _is_plain(source):
        if (urls := _expand_rows(source.url)) == [source.url]:
            # Imported late: it imports this module, and other sources do not need what it loads.
            from colabstage.sources.objects import archives_matching

            urls = archives_matching(source.url, services)
        parts = [expand_pattern(_parse_one(url), services) for url in urls]
    else:
        return source
    return _list_of(source, (one for part in parts for one in parts_of(part))) if parts else source


def _list_of(source: Source, parts: Iterable[SingleSource]) -> ManySource:
    """Return the list of these, under the name that the caller wrote."""
    return ManySource(source.address, source.name, source.label, tuple(parts))


def _is_plain(source: SingleSource) -> bool:
    """Return whether a source stands for itself, without a row or pattern in it."""
    if isinstance(source, LocalSource):
        return not glob.has_magic(str(source.path)) and re.search(_ROW, str(source.path)) is None
    if isinstance(source, ObjectSource) and "*" in source.url:
        return False
    return not isinstance(source, WebSource | ObjectSource) or re.search(_ROW, source.url) is None


def split_pattern(url: str) -> tuple[str, str]:
    """Return the folder of a service's address with a star, and the pattern below it; "" in an address without one."""
    folder = url.partition("*")[0].rpartition("/")[0]
    return (folder, url[len(folder) + 1 :]) if "*" in url else (url, "")


def _expand_rows(text: str) -> list[str]:
    """Return a path or address for each number of the rows in it, written as in a shell: `{000..146}`."""
    row = re.search(_ROW, text)
    if row is None:
        return [text]
    first, last = int(row[1]), int(row[2])
    width = len(row[1]) if row[1] != str(first) else 0
    rest = _expand_rows(text[row.end() :])
    if (last - first + 1) * len(rest) > _MOST_IN_A_ROW:
        msg = f"'{show_address(text)}' stands for too many files; expected at most {_MOST_IN_A_ROW:,}."
        raise OptionError(msg)
    numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return [f"{text[: row.start()]}{number:0{width}}{end}" for number in numbers for end in rest]


def _matches(source: LocalSource) -> LocalSource | ManySource:
    text = str(source.path)
    literal = next(folder for folder in source.path.parents if os.path.lexists(folder))
    pattern = str(source.path.relative_to(literal))
    if not glob.has_magic(pattern):
        return source
    found = sorted(glob.glob(f"{glob.escape(str(literal))}/{pattern}", recursive=True))  # noqa: PTH207 - Path.glob wants the pattern apart from its folder
    if not found:
        msg = f"Nothing fits the pattern '{text}'. {whereabouts(source.path)}"
        raise SourceNotFoundError(msg)
    return _list_of(source, map(local_source, found))


# The meaning of services' addresses, and of the pages that people copy.


_DRIVE_HOSTS = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "www.drive.google.com")
_ID = r"[-\w]{10,}"
# What the path of a link says of its target. Addresses of Google Workspace begin with the domain:
# /a/example.org/file/d/…
_DRIVE_PATHS: tuple[tuple[ShareKind, str], ...] = (
    ("file", rf"/file(?:/u/\d+)?/d/({_ID})"),
    ("folder", rf"/(?:drive|folders?)(?:/u/\d+)?(?:/mobile)?/(?:folders/)?(?!my-drive|shared-)({_ID})"),
)
_DRIVE_QUERIES: dict[str, ShareKind] = {
    **dict.fromkeys(("/folderview", "/embeddedfolderview"), "folder"),
    **dict.fromkeys(("/uc", "/download"), "file"),
}
_NATIVE = r"/(document|spreadsheets|presentation|forms|drawings|drawing|script)(?:/u/\d+)?/d/"
_EXPORT = r"/export\?.*\b(?:format|exportFormat)=|/export/\w+|/pub\?.*\boutput=|/gviz/tq\?.*\bout:"
_SLUG = r"[A-Za-z0-9][-_A-Za-z0-9]*"
# A dataset's page, with the tabs that are part of the address people copy; or the download that it shows for curl.
_KAGGLE_PAGE = (
    rf"(?:/api/v1)?/datasets/(?:download/)?({_SLUG})/({_SLUG})(?:/versions/([1-9]\d*))?"
    r"(?:/(?:data|code|discussion|download|metadata|settings|suggestions|versions))?/?"
)
_COMPETITION = rf"(?:kaggle:/|.*kaggle\.com)/(?:c|competitions)/({_SLUG})(?:/.*)?"
# The address of any other page, without its scheme, and that of the data it shows. What follows a "#" is no part of
# either.
_PAGES = (
    (r"github\.com/([^/]+/[^/]+)/blob/([^?]+).*", r"https://github.com/\1/raw/\2"),
    (r"github\.com/([^/?]+/[^/?]+?)(?:\.git)?/?", r"https://github.com/\1/archive/HEAD.zip"),
    (r"github\.com/([^/]+/[^/]+)/tree/([^/?]+)/?", r"https://github.com/\1/archive/\2.zip"),
    (
        r"raw\.githubusercontent\.com/([^/]+/[^/]+)/(?:refs/heads/)?([^?]+).*",
        r"https://media.githubusercontent.com/media/\1/\2",
    ),
    (r"huggingface\.co/(.+)/(?:blob|raw)/([^?]+).*", r"https://huggingface.co/\1/resolve/\2"),
    (r"huggingface\.co/(datasets/[^/?]+/[^/?]+)/(?:tree|resolve)/([^/?]+)(/[^?]*)?.*", r"hf://\1@\2\3"),
    (r"huggingface\.co/(datasets/[^/?]+/[^/?]+)(?:/viewer\b.*)?/?", r"hf://\1"),
    (
        r"(?:[\w-]+\.)*console\.aws\.amazon\.com/s3/(?:buckets|object)/([^?]+?)/?(?:\?(?:.*&)?prefix=([^&]*).*|\?.*)?",
        r"s3://\1/\2",
    ),
    (r"console\.cloud\.google\.com/storage/browser/(?:_details/)?([^?;]+).*", r"gs://\1"),
    (r"storage\.(?:cloud\.google|googleapis)\.com/([^?]+).*", r"gs://\1"),
    (r"([^/]+)\.storage\.googleapis\.com/([^?]*).*", r"gs://\1/\2"),
    (r"([^/]+)\.s3[.-](?:[\w-]+\.)*amazonaws\.com/([^?]*).*", r"s3://\1/\2"),
    (r"s3[.-](?:[\w-]+\.)*amazonaws\.com/([^?]+).*", r"s3://\1"),
    (r"([^/]+/.+)/-/blob/([^?]+).*", r"https://\1/-/raw/\2"),  # GitLab, on any host
    (r"(zenodo\.org/records?/\d+)/preview/([^?]+).*", r"https://\1/files/\2"),
    (r"zenodo\.org/records?/(\d+)/?(?:\?.*)?", r"https://zenodo.org/api/records/\1/files-archive"),
    # Figshare's own host, and those of universities, answer browsers only.
    (r"[^/]+/ndownloader/(files/\d+|articles/\d+/versions/\d+)", r"https://ndownloader.figshare.com/\1"),
)
# The address of these services' pages, which may carry a key, gives the file with one more parameter.
_PARAMETERS = ((r"(?:.*\.)?dropbox\.com", "dl=1"), (r".*\.sharepoint\.com", "download=1"))


def parse_service(text: str) -> ShareSource | KaggleSource | None:
    """Read what people paste of Google Drive and Kaggle, a scheme of ours or a page; `None` for everything else.

    Raises:
        OptionError: it is theirs, but neither a file, a folder nor a dataset.

    >>> parse_service("https://drive.google.com/file/d/1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvW/view?usp=sharing").kind
    'file'
    >>> parse_service("kaggle://zalando-research/fashionmnist/versions/4").version
    4
    """
    # Links may be pasted without their scheme.
    is_bare = "://" not in text and text.partition("/")[0].lower() in _SERVICES
    whole = f"https://{text}" if is_bare else text
    try:
        parts = urlsplit(whole)
        service = parts.hostname if parts.scheme in ("http", "https") else f"{parts.scheme}:"
    except ValueError:
        return None
    read = _SERVICES.get(service or "") if "://" in whole else None
    return None if read is None else read(parts, text)


def _share_of_id(_: SplitResult, text: str) -> ShareSource:
    match = re.fullmatch(rf"gdrive://(?:(file|folder)s?/)?({_ID})/?(?:\?resourcekey=([-\w]+))?", text)
    if match is None:
        msg = (
            f"'{show_address(text)}' is not a link to Google Drive. Write gdrive://ID, or gdrive://folders/ID "
            "for a folder."
        )
        raise OptionError(msg)
    kind: ShareKind = "folder" if match[1] == "folder" else "file" if match[1] else "unknown"
    return ShareSource(kind, match[2], match[3] or "")


def _share_of_page(parts: SplitResult, text: str) -> ShareSource | None:
    # When a parameter is given twice, Drive takes the first one.
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    path = re.sub(r"\A/a/[^/]+", "", parts.path)
    if re.match(_NATIVE, path):
        # The address of a document as a file of another kind is one on the web.
        if re.search(_EXPORT, f"{path}?{parts.query}"):
            return None
        msg = (
            f"'{show_address(text).partition('?')[0]}' is a Google document, not a file that can be downloaded. Open "
            "it, choose File and Download to make one, put that on Google Drive and share it."
        )
        raise OptionError(msg)
    key = query.get("resourcekey", "")
    for kind, pattern in _DRIVE_PATHS:
        if found := re.match(pattern, path):
            return ShareSource(kind, found[1], key)
    if re.fullmatch(_ID, identity := query.get("id", "")):
        return ShareSource(_DRIVE_QUERIES.get(path, "unknown"), identity, key)
    msg = (
        f"'{show_address(text)}' leads to Google Drive, but not to one file or folder. Open it there, choose "
        "Share and Copy link; for your own Drive, mount it and give the path."
    )
    raise OptionError(msg)


def _kaggle_dataset(parts: SplitResult, text: str) -> KaggleSource:
    if competition := re.fullmatch(_COMPETITION, text.partition("?")[0]):
        msg = (
            f"'{show_address(text)}' is a competition on Kaggle, not a dataset. Accept its rules on its page, and "
            f"stage the folder that kagglehub.competition_download({competition[1]!r}) returns."
        )
        raise OptionError(msg)
    path = f"/datasets/{parts.netloc}{parts.path}" if parts.scheme == "kaggle" else parts.path
    found = re.fullmatch(_KAGGLE_PAGE, path)
    version = parse_qs(parts.query).get("datasetVersionNumber", [""])[0] or (found and found[3]) or ""
    if found is None or not re.fullmatch(r"(?:[1-9]\d*)?", version):
        msg = (
            f"'{show_address(text)}' is not a dataset on Kaggle. Expected kaggle://owner/dataset, "
            "kaggle://owner/dataset/versions/N or https://www.kaggle.com/datasets/owner/dataset. Download other things "
            "with kagglehub itself and stage their folder."
        )
        raise OptionError(msg)
    return KaggleSource(found[1], found[2], int(version) if version else None)


# By scheme, or by the host of their pages.
_SERVICES: dict[str, Callable[[SplitResult, str], ShareSource | KaggleSource | None]] = {
    "gdrive:": _share_of_id,
    **dict.fromkeys(_DRIVE_HOSTS, _share_of_page),
    **dict.fromkeys(("kaggle:", "kaggle.com", "www.kaggle.com"), _kaggle_dataset),
}


def page_remedy(*urls: str) -> str:
    """Return what to do about a page: the address of what it shows, for the services whose addresses tell it. `urls`:
    its address, and where the redirects from there ended."""
    if where := data_address(*urls):
        return f"Give {where!r}."
    parts = urlsplit(urls[0])
    for host, parameter in _PARAMETERS:
        if re.fullmatch(host, parts.hostname or "") and parameter not in parts.query:
            mark = "&" if parts.query else "?"
            return f"Write '{mark}{parameter}' at the end of the address, in place of '{parameter[:-1]}0'."
    return "Open it in a browser, and copy the link of the download itself; of several files, a list of their links."


def data_address(*urls: str) -> str:
    """Return the address of what a service's page shows, by the first address that tells it; "" for a page of unknown
    kind."""
    pages = [url.partition("://")[2].partition("#")[0].removeprefix("www.") for url in urls]
    known = ((data, re.fullmatch(pattern, page)) for page in pages for pattern, data in _PAGES)
    found = next(((data, match) for data, match in known if match), None)
    if found is None:
        return ""
    where = found[1].expand(found[0]).rstrip("/")
    # Names in buckets are written as they are.
    return show_address(where if where.startswith("https:") else unquote(where))


# fsspec's file systems that wrap others: they would copy everything to the very disk that should be spared.
_WRAPPERS = frozenset(
    {"simplecache", "filecache", "blockcache", "cached", "reference", "generic", "dir", "async_wrapper"}
)


def protocol_of(address: str) -> str:
    protocol, mark, rest = address.partition("://")
    if "::" in protocol or "::" in rest.partition("/")[0] or protocol.lower() in _WRAPPERS:
        msg = f"'{show_address(address)}' goes through another file system; give the address of the data itself."
        raise OptionError(msg)
    if not mark or not rest.strip("/"):
        msg = f"'{show_address(address)}' is not a remote address; expected one such as s3://bucket/folder."
        raise OptionError(msg)
    return protocol.lower()

"""Bytes of files in a tree: at any place of one, the first of one, and many small ones at once; texts of them, and what
these state: a statement for each line, or key of JSON.

Layouts touch a tree only through this and the index of names in `lists`.
"""

from __future__ import annotations

import codecs
import copy
import json
import posixpath
import re
import tempfile
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from colabstage.errors import CorruptArchiveError, DecodeError
from colabstage.io.files import read_with_retry, stand_in, temporary_folder
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.progress import Cancellation
from colabstage.layouts.columns import show
from colabstage.layouts.table import BrokenDatasetError, Content, SampleSource, TreeFiles
from colabstage.layouts.words import IMAGES, SOUNDS, TEXTS, is_foreign, normal
from colabstage.machine.resources import check_space
from colabstage.trees.bytes import HEAD_BYTES, ByteSource, LocalBytes, compression_of
from colabstage.trees.compressed import unpack_into
from colabstage.trees.listing import DEFAULT_LIMITS, FileEntries, FileEntry, Tree, only_line
from colabstage.trees.names import extension_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


T = TypeVar("T")
# A Git LFS pointer is shorter, and few data files are as short.
_POINTER_BYTES = 1024
# On a Drive mount, speed grows with the reads in flight up to about twenty, and falls off after thirty-two.
_MAX_READERS = 32
# Shorter files are kept in memory while a layout is detected, because several formats read them.
_HELD_BYTES = 1 << 20
_MOST_HELD = 64
# Enough to recognise a file's content, and little enough for a slow mount.
BEGINNING_BYTES = 64 * 1024
# Texts that do not state their encoding, as XML does.
_TEXTS = tuple({*TEXTS, ".names"} - {".xml"})
# Nobody writes more parts than this into an argument.
_MOST_PARTS = 8


def open_member(tree: Tree, entry: FileEntry) -> ByteSource:
    """Return the bytes of one file of a tree, to be read at any place, from any thread.

    If a tree cannot open it that way, because it is packed or only its whole has a checksum, it is unpacked into an
    unnamed file on the local disk; the system drops that once nothing reads from it any more.
    """
    refuse_stand_in(tree, entry)
    tree, entry = tree.origin(entry)
    # Callers read at random, to which a service responds slowly, so the whole file is copied.
    source = None if tree.by_request else tree.open(entry)
    return _spool(tree, entry) if source is None else source


def open_unpacked(tree: Tree, entry: FileEntry, *, from_start: bool = False) -> ByteSource:
    """Open a file as `open_member` does; one that is compressed as a whole (.tfrecord.gz) as its content. `from_start`:
    it is read from its beginning, and part by part if it is remote."""
    refuse_stand_in(tree, entry)
    opened = tree.open(entry) if from_start else open_member(tree, entry)
    source = _spool(tree, entry) if opened is None else opened
    head = read_with_retry(lambda: source.pread(HEAD_BYTES, 0), entry.name)
    if compression_of(head) is None:
        return source
    with closing(source):
        return unpack_into(spool_folder(0, entry.name), source, DEFAULT_LIMITS)


def _spool(tree: Tree, entry: FileEntry) -> LocalBytes:
    with copy_of(tree, entry) as file:
        return LocalBytes(Path(file.name), label=f"{tree.label}: {entry.name}")


def copy_of(tree: Tree, entry: FileEntry) -> IO[bytes]:
    """Return a copy of a file in the folder for temporary files, which is removed when it is closed."""
    folder = spool_folder(entry.size, f"'{entry.name}' of '{tree.label}', unpacked,")
    file = tempfile.NamedTemporaryFile(dir=folder, prefix="colabstage-")  # noqa: SIM115 - closed by the caller
    try:
        # Piece by piece, because a member may be larger than memory.
        file.writelines(tree.chunks(entry))
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def spool_folder(needed_bytes: int, what: str) -> Path:
    """Return the folder for temporary files, which has this much space."""
    folder = temporary_folder()
    check_space(folder, needed_bytes, what, remedy="set TMPDIR to a folder on a larger disk")
    return folder


def read_head(tree: Tree, entry: FileEntry, length: int) -> bytes:
    """Return the first bytes of one file, `length` of them or all there are, without reading the rest if possible."""
    source = tree.open(entry)
    if source is None:
        return next(iter(tree.chunks(entry)), b"")[:length]
    with closing(source):
        return source.pread(length, 0)


def refuse_stand_in(tree: Tree, entry: FileEntry) -> None:
    """Refuse a short file that holds something else than its name says, such as a Git LFS pointer."""
    if 0 < entry.size < _POINTER_BYTES:
        in_place(entry.name, read_head(tree, entry, HEAD_BYTES))


def in_place(name: str, content: bytes) -> bytes:
    """Return the content of a file; raise if it is only a stand-in."""
    instead = stand_in(content[:HEAD_BYTES])
    if instead:
        msg = f"'{name}' is {instead}."
        raise BrokenDatasetError(msg)
    return content


def decode_text(content: bytes) -> str:
    """Return the text of a file that a person or a person's program wrote, or of its beginning."""
    # The encoding of spreadsheets' "Unicode text", and of lists of names from Windows' shell.
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    try:
        # A beginning may end inside a character, which is left out.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(content)
    except UnicodeDecodeError:
        return content.decode("latin-1")  # what spreadsheets of western Europe still write


def read_each(
    source: SampleSource,
    chosen: Sequence[int],
    make: Callable[[int, Content], T],
    *,
    readers: int = 2,
    skip_broken: bool = False,
    in_caller: bool = False,
) -> list[T]:
    """Return `make(index, content)` for the chosen contents, in their order, made in one thread as they arrive.

    `readers`: reads in flight at the start; up to 32 if they prove slow, or none beside this thread `in_caller`.
    `skip_broken`: leave out damaged contents, which packing will name.
    """
    passed_over = (CorruptArchiveError, DecodeError) if skip_broken else ()
    found: dict[int, T] = {}

    def read(place: int) -> Content | None:
        index = chosen[place]
        with suppress(*passed_over):
            return read_with_retry(lambda: source.read(index), source.name(index))
        return None

    def use(place: int, content: Content | None) -> None:
        if content is not None:
            with suppress(*passed_over):
                found[place] = make(chosen[place], content)

    positions = source.positions
    run_pipeline(
        # In the order of the medium: few are read, and they may be anywhere.
        sorted(range(len(chosen)), key=lambda place: int(positions[chosen[place]])),
        read=read,
        use=use,
        cost=lambda place: int(source.sizes[chosen[place]]),
        limits=PipelineLimits(
            readers=readers, max_readers=max(readers, _MAX_READERS), workers=1, caller_reads=in_caller
        ),
        cancellation=Cancellation(),
    )
    return [found[place] for place in sorted(found)]


def files_aside(files: FileEntries) -> FileEntries:
    """Return the files in hidden folders, and in those of file managers and network drives, such as thumbnails and what
    was deleted; but not if all files of their kind are there."""
    inside = files.in_folders(lambda folder: any(map(is_foreign, folder.split("/"))))
    others = files.without({*inside.names}) if inside else inside
    kinds = (IMAGES, SOUNDS, *((extension_of(ending),) for ending in inside.endings[0]))
    return inside.ending_in({ending for kind in kinds if others.ending_in(kind) for ending in kind})


class Source:
    """The files of a tree while its layout is detected, but those aside: each short one is read at most once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.label = tree.label
        every = FileEntries.of(tree.entries)
        self.aside = files_aside(every)
        self.files = every.without({*self.aside.names}) if self.aside else every
        self._held: dict[str, bytes] = {}
        self._heads: dict[str, bytes] = {}
        self._guessed: dict[str, str] = {}
        self._made: dict[tuple[object, object], Any] = {}
        self._by_extensions: dict[tuple[str, ...], FileEntries] = {}

    def without(self, names: Collection[str]) -> Source:
        """Return the source as if it lacked some files; they share what has been read."""
        rest = copy.copy(self)
        rest.files, rest._by_extensions = self.files.without(names), {}
        return rest

    def ending_in(self, extensions: tuple[str, ...]) -> FileEntries:
        # Every layout asks for the images, and their folders.
        if extensions not in self._by_extensions:
            self._by_extensions[extensions] = self.files.ending_in(extensions)
        return self._by_extensions[extensions]

    def addresses(self, entries: FileEntries) -> tuple[str, list[str]]:
        """Return what to pass as sources for the folder and for some of its files; 'FOLDER' and names in it if they
        must be extracted first."""
        found = [self.tree.address_of(entry) for entry in entries]
        if not all(found):
            return "FOLDER", [f"FOLDER/{name}" for name in entries.names]
        end = f"/{entries.names[0]}"
        return found[0].removesuffix(end) if found[0].endswith(end) else self.label, found

    def only(self, names: Iterable[str], left_out: Collection[str]) -> str:
        """Return the argument that selects some files and not others, by their endings, folders or names; "" if nobody
        would write as many."""
        tops = {name.partition("/")[0] for name in left_out}
        endings = {"", *(posixpath.splitext(name)[1] for name in left_out)}
        parts = set[str]()
        for name in names:
            top, ending = name.partition("/")[0], posixpath.splitext(name)[1]
            parts.add(f"**/*{ending}" if ending not in endings else name if top in tops else top)
        return only_line(self.tree, *sorted(parts)) if 0 < len(parts) <= _MOST_PARTS else ""

    def read(self, entry: FileEntry) -> bytes:
        """Return one whole file; a read that fails temporarily is tried again."""
        held = self._held.get(entry.name)
        return self._hold(entry, read_with_retry(lambda: self.tree.read(entry), entry.name)) if held is None else held

    def text(self, entry: FileEntry) -> str:
        return decode_text(self.read(entry))

    def head(self, entry: FileEntry, length: int) -> bytes:
        if entry.name in self._held or entry.size <= min(length, _HELD_BYTES):
            return self.read(entry)[:length]
        head = self._heads.get(entry.name, b"")
        if length > len(head):
            head = read_head(self.tree, entry, length)
            if len(self._heads) < _MOST_HELD:
                self._heads[entry.name] = head
        return head[:length]

    def parse(self, entries: Iterable[FileEntry], make: Callable[[FileEntry, bytes], T]) -> dict[str, T]:
        """Return `make(entry, content)` for some files by name, in their order; if slow, with many reads in flight."""
        wanted = FileEntries.of(entries)
        held = wanted.where(self._held.__contains__)
        found = {entry.name: make(entry, self._held[entry.name]) for entry in held}
        unread = TreeFiles(self.tree, wanted.without(found))

        def use(index: int, content: Content) -> None:
            entry = unread.entries[index]
            found[entry.name] = make(entry, self._hold(entry, bytes(content)))

        read_each(unread, range(len(unread)), use)
        return {name: found[name] for name in wanted.names}

    def parse_once(self, entries: Iterable[FileEntry], make: Callable[[str, bytes], T]) -> dict[str, T]:
        """Return `make(name, content)` for some files by name, in their order; each is read and made at most once."""
        wanted = FileEntries.of(entries)
        unread = wanted.where(lambda name: (make, name) not in self._made)
        for name, made in self.parse(unread, lambda entry, content: make(entry.name, content)).items():
            self._made[make, name] = made
        return {name: self._made[make, name] for name in wanted.names}

    def made_of(self, files: FileEntries, make: Callable[[FileEntries], T]) -> T:
        """Return `make(files)`, made at most once of one listing."""
        return self._made_once(make, files, files)

    def once(self, make: Callable[[Source], T]) -> T:
        """Return `make(self)`, made at most once of the same files."""
        return self._made_once(make, self.files, self)

    def _made_once(self, make: Callable[[Any], T], files: FileEntries, argument: object) -> T:
        if (make, files) not in self._made:
            self._made[make, files] = make(argument)
        made: T = self._made[make, files]
        return made

    def texts(self, entries: Iterable[FileEntry]) -> dict[str, str]:
        return self.parse(entries, lambda _, content: decode_text(content))

    def notes_on_encodings(self, names: Collection[str]) -> Iterator[str]:
        """Yield a note for each of some texts that was read as Latin-1, although another encoding may be meant."""
        for name, line in self._guessed.items():
            if name in names:
                yield f"'{name}' is not in UTF-8 and was read as Latin-1 ('{show(line)}'); or save it as UTF-8."

    def _hold(self, entry: FileEntry, content: bytes) -> bytes:
        if entry.name.lower().endswith(_TEXTS) and not content.isascii():
            text = decode_text(content)
            # Only in an encoding of one byte for each character.
            if len(text) == len(content):
                self._guessed[entry.name] = next(line for line in text.splitlines() if not line.isascii())
        if len(content) <= _HELD_BYTES and len(self._held) < _MOST_HELD:
            self._held[entry.name] = content
        elif len(content) > _HELD_BYTES:
            self._heads[entry.name] = content[:BEGINNING_BYTES]
        return in_place(entry.name, content)


# What texts state.

_WORD = re.compile(r"[^\s,;|\"'<>\[\]{}()=:]+")
_CELL = re.compile(r"[^,;\t|\"<>]+")
# "# file label", "#file label"; but #1.jpg is a name.
_COMMENT = re.compile(r"#(\s|[^.]*$)")


class Statement:
    """One line of a text, or one key or item of JSON."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = _WORD.findall(text)
        """What is between blanks, quotes and delimiters."""
        # And between delimiters alone, where names have blanks.
        cells = (*self.words, *map(str.strip, _CELL.findall(text)))
        self.parts = {part for cell in cells for part in _split_path(cell)}
        """The folders and base names in those."""

    @cached_property
    def paths(self) -> dict[str, str]:
        """Return the words by their base names."""
        return {_split_path(word)[-1]: word for word in self.words}

    def beside(self, name: str) -> list[str]:
        """Return the words beside a name."""
        rest = [word for word in self.words if name not in _split_path(word)]
        return rest if len(rest) < len(self.words) else _WORD.findall(self.text.replace(name, "", 1))


def _split_path(word: str) -> list[str]:
    return word.replace("\\", "/").split("/")


def is_comment(line: str) -> bool:
    return line.startswith("#") and _COMMENT.match(line) is not None


def lines_of(text: str) -> list[str]:
    """Return the lines of a text that are neither empty nor comments.

    >>> lines_of("# file label\\n1.jpg cat\\n\\n#1.jpg dog")
    ['1.jpg cat', '#1.jpg dog']
    """
    lines = map(str.strip, text.splitlines())
    return [line for line in lines if line and not is_comment(line)]


def items_of(text: str) -> list[Any] | None:
    """Return the items of JSON, or its keys with their values; `None` for another text."""
    try:
        found = json.loads(text) if text.lstrip().startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        found = None
    return inner_items(found)


def inner_items(found: Any) -> list[Any] | None:
    """Return the items of a list, or the keys of a mapping with their values, of the innermost that is alone in others:
    {"classes": {"cat": 0}}; `None` for anything else."""
    while isinstance(found, dict) and len(found) == 1 and isinstance(inner := next(iter(found.values())), dict | list):
        found = inner
    return [*found.items()] if isinstance(found, dict) else found if isinstance(found, list) else None


def load_yaml(text: str) -> Any:
    """Return what YAML holds, in texts, lists and mappings alone; a `ValueError` if it cannot be read."""
    # PyYAML, because people use all of YAML there: quotes, apostrophes, comments, multi-line lists.
    import yaml

    try:
        # Without types, so that a class called no, or 1, is a word.
        return yaml.load(text, Loader=yaml.BaseLoader)  # creates only texts, lists and mappings
    except (yaml.YAMLError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error


def statements_of(text: str) -> list[Statement]:
    """Return what a text states in each line, of JSON in each item."""
    items = items_of(normal(text))
    found = (json.dumps(dict([one]) if isinstance(one, tuple) else one, ensure_ascii=False) for one in items or ())
    return list(map(Statement, lines_of(normal(text)) if items is None else found))


def joins_classes(beside: Sequence[str]) -> bool:
    """Tell whether what is written beside each class is one for several of them and another for others, as labels of
    folders are, and not a name, a number or a remark."""
    return 1 < len(set(beside)) < len(beside)


# XML of annotations, read element by element.


_ENCODING = re.compile(rb"""<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")


def parse_xml(name: str, content: bytes, root: str, take: Callable[[Element], None]) -> None:
    """Call `take` with each element right below the root of a file, and drop it: a file may have millions. Anything
    wrong, including what `take` raises, is an error that names the file and the line."""
    parser, builder = expat.ParserCreate(), TreeBuilder()
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth == 1 and tag != root:
            msg = f"it is a file of '{show(tag)}', expected '{root}'"
            raise ValueError(msg)
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        element = builder.end(tag)
        if depth == 1:
            take(element)
            element.clear()

    def refuse_entity(*_: object) -> NoReturn:
        # With entities, a small file could grow to gigabytes, or read other files.
        msg = "it declares an entity, which no annotation needs; refused"
        raise ValueError(msg)

    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = refuse_entity
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    try:
        # Python knows more encodings than expat, such as those of Chinese, Japanese and Korean.
        declared = _ENCODING.match(content)
        parser.Parse(content if declared is None else content.decode(declared[1].decode()), True)
    except (expat.ExpatError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        is_xml = not isinstance(error, expat.ExpatError)
        reason = show(error) if is_xml else f"it is not XML ({error})"
        raise broken(name, reason, line=parser.CurrentLineNumber) from error


# Errors for broken parts of a dataset: where, what is there, and what was expected.


def broken(where: str, found: str, expected: str = "", *, line: int = 0) -> BrokenDatasetError:
    """Return the error for a part of a dataset that cannot be used.

    >>> str(broken("a.txt", "'x y' is not a box", "four numbers", line=3))
    "'a.txt', line 3: 'x y' is not a box; expected four numbers."
    """
    place = f"'{where}'{f', line {line}' if line else ''}"
    return BrokenDatasetError(f"{place}: {found}{f'; expected {expected}' if expected else ''}.")

"""Rows of tokens, cut from streams: files of tokens, and text that is tokenized piece by piece."""

from __future__ import annotations

import codecs
import hashlib
import json
import posixpath
import re
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import LayoutError, OptionError, kind_of
from colabstage.io.arguments import check_choice, whole_number
from colabstage.io.files import read_with_retry
from colabstage.io.units import format_count, listed
from colabstage.io.workspace import short_digest
from colabstage.layouts import words
from colabstage.layouts.columns import NUMBER, show
from colabstage.layouts.evidence import Evidence, Found, described_splits, near, require_files
from colabstage.layouts.formats.tables import even_marks
from colabstage.layouts.names import BEFORE_NUMBER, parts_of_names
from colabstage.layouts.reading import Source, broken, decode_text, is_comment, items_of, open_member, spool_folder
from colabstage.layouts.records import ShardFile, scan_each
from colabstage.layouts.table import Arrays, SampleTable, join_samples, rows_of_file, stamp_of
from colabstage.trees.bytes import HEAD_BYTES, ByteSource, JoinedBytes, LocalBytes, RequestedBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.listing import FileEntries, FileEntry, Tree

TokenDtype = Literal["uint16", "uint32"]

NAME = "tokens"
TOKENS = (".bin",)
TEXTS = (".txt", ".jsonl")
# Words in the names of files that hold something else.
_ARRAY_WORDS = frozenset(("x", "y", "image", "images", "label", "labels", "target", "targets", "batch"))
# Files that may be beside them without changing the layout.
_BESIDE = (".md", ".pkl", ".json", ".py", ".rst", ".yaml", ".yml", ".log")
# Text is passed to a tokenizer in pieces of about this size, which end at a line end. Large enough for a tokenizer call
# to be worthwhile, small enough for its result to fit in memory.
_PIECE_BYTES = 1024 * 1024
# llm.c writes 256 int32 before its tokens; the first is one of these.
_HEADERS: dict[int, TokenDtype] = {20240520: "uint16", 20240801: "uint32"}
_HEADER_BYTES = 1024
_BOM = codecs.BOM_UTF8
# The upper halves of uint32 tokens, of vocabularies up to a quarter of a million, in as many tokens as are examined.
_MOST_UPPER, _FEW, _LOOKED_AT_BYTES = 3, 32, 4096


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """How text becomes rows: the options of `token_blocks`, which documents them."""

    length: int = 1024
    next_tokens: bool = True
    dtype: TokenDtype = "uint16"
    tokenizer: Callable[[str], Sequence[int]] | None = None
    """Receives at least a megabyte of a file at a time, cut at a line end, or one document of a .jsonl."""
    separator: int | None = None
    field: str = "text"

    def __post_init__(self) -> None:
        whole_number("length", self.length, least=1)
        check_choice("dtype", self.dtype, TokenDtype)
        # numpy would wrap it around to another token.
        if self.separator is not None and not 0 <= self.separator <= np.iinfo(self.dtype).max:
            msg = f"separator={self.separator} does not fit in {self.dtype}."
            raise OptionError(msg)


def tokens_state(
    source: Source, *, options: TokenOptions = TokenOptions(), card: tuple[str, Mapping[str, str]] = ("", {})
) -> Found:  # frozen
    """Read tokens or text.

    Files train.bin and val.bin are tokens as nanoGPT and llm.c write them, and are used unchanged; otherwise .txt and
    .jsonl files are text. Each split is one stream, its files sorted by name, cut into rows of one length; the
    remainder at its end is left out. `card`: a README, and the split of each file that it names.
    """
    tree = source.tree
    tokens, texts = _with(source, TOKENS), _with(source, TEXTS)
    require_files(tokens or texts, source, f"tokens (.bin) and no text ({', '.join(TEXTS)})")
    # .bin says nothing about the content, so a name such as train.bin or train/tokens.bin is required: point clouds are
    # training/000000.bin, and STL10's files train_X.bin.
    own = {name: name if "token" in name.lower() else posixpath.basename(name) for name in tokens.names}
    named = tokens.where(lambda name: bool(words.split_of_file(own[name])))
    odd = tokens.where(lambda name: not _ARRAY_WORDS.isdisjoint(words.words_of(words.stem_of(name))))
    in_splits = any(map(words.split_of_file, tokens.names))
    odd = odd or tokens.without(set(named.names) if in_splits or not texts else set(tokens.names))
    if odd:
        return near(
            f"'{odd[0].name}' may hold anything; expected tokens in train.bin and val.bin, arrays in .npy files."
        )
    if named:
        streams = {split: [_tokens_of_file(source, entry, options) for entry in entries]
                   for split, entries in _by_split(named, card).items()}  # fmt: skip
        return Evidence(_token_table(tree, streams, options), "text", frozenset(named.names))
    # A stand-in is as short, and refused.
    heads = scan_each(texts, lambda _, entry: read_with_retry(lambda: source.head(entry, HEAD_BYTES), entry.name))
    for name, head in zip(texts.names, heads, strict=True):
        # Other texts have no zeros.
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or 0 in head:
            raise broken(name, "it is text in UTF-16, or none", "UTF-8")
    some = [(one, source.head(one, _HEAD_BYTES)) for one in texts.ending_in((".jsonl",))[:_LOOKED_AT]]
    firsts = [(one, head.partition(b"\n")[0]) for one, head in some if b"\n" in head or len(head) < _HEAD_BYTES]
    for one, line in firsts:
        next(_documents(iter((line,)), one, options.field), "")
    by_split = _by_split(texts, card)
    streams = {split: [_bytes_of_texts(tree, entries)] for split, entries in by_split.items()}
    table = _token_table(tree, streams, options)
    items = (one for _, line in firsts for one in items_of(decode_text(line)) or ())
    if fields := {one[0] for one in items if isinstance(one, tuple)} - {options.field}:
        table = replace(table, notes=(*table.notes, f"Not used: the fields {listed(sorted(fields))}."))
    if options.separator is None and any(name.lower().endswith(".jsonl") for name in texts.names):
        how = f"token_blocks(separator={256 if options.tokenizer is None else 'TOKEN'})"
        between = f"No token stands between the texts of two lines, unless the tokenizer writes one; {how} does."
        table = replace(table, notes=(*table.notes, between))
    is_marked = any(head.startswith(_BOM) for head in heads)
    is_plain = options.tokenizer is None and options.separator is None and not is_marked
    # Where their bytes are not the tokens, to be read in place: planning must not tokenize, which takes time, nor store
    # the result, which takes space.
    if not is_plain or any(name.lower().endswith(".jsonl") for name in texts.names):
        most = f"At most {len(table):,} rows of {options.length:,} tokens; how many shows once the text is tokenized."
        complete = partial(_tokenized, tree, by_split, options, estimate=most)
        table = replace(table, notes=(most, *table.notes[1:]), complete=complete)
    return Evidence(table, "text", frozenset(texts.names))


def data_beside(source: Source) -> FileEntries:
    """Return the files beside text and tokens that may hold data: not LICENSE and Makefile, without an extension."""
    others = source.files.not_ending_in((*TOKENS, *TEXTS, *_BESIDE))
    has_text = bool(_with(source, (*TOKENS, *TEXTS)))
    return others.where(lambda name: has_text and "." in posixpath.basename(name))


def _with(source: Source, extensions: tuple[str, ...]) -> FileEntries:
    return source.ending_in(extensions).where(lambda name: not words.is_note(name))


def _by_split(entries: FileEntries, card: tuple[str, Mapping[str, str]]) -> dict[str, list[FileEntry]]:
    """Return the files by split, in the usual order; files without a split in their name are for training."""
    found: dict[str, list[FileEntry]] = {}
    names = [*map(words.split_of_file, entries.names)]
    own = names if all(names) else None
    stated = described_splits(card, entries.names, own, who="the files' names", layout=NAME)
    # All in train is what a source without splits has too.
    for entry, split in zip(entries, stated if {*stated} - {"train"} else names, strict=True):
        found.setdefault(split, []).append(entry)
    if len(found) > 1 and "" in found:
        if odd := next((entry.name for entry in found[""] if words.is_almost_split(entry.name)), ""):
            raise broken(odd, "it is called almost as a split is, beside others", "train, val or test in its name")
        # Beside a val.txt, files without a split are for training.
        found["train"] = sorted(found.pop("") + found.get("train", []), key=lambda entry: entry.name)
    return dict(sorted(found.items(), key=lambda item: words.SPLIT_ORDER.get(item[0], len(words.SPLIT_ORDER))))


# --- streams ----------------------------------------------------------------------------------------------------------


class TokenStream(NamedTuple):
    """Consecutive tokens in one file."""

    name: str
    content: ByteSource
    start: int
    total: int
    dtype: np.dtype[Any]
    """Of text, that of its bytes."""
    stamp: str


def _tokens_of_file(source: Source, entry: FileEntry, options: TokenOptions) -> TokenStream:
    """Return a .bin file of tokens: as from numpy's `tofile`, or with the header of llm.c."""
    head = read_with_retry(lambda: source.head(entry, _LOOKED_AT_BYTES), entry.name)
    known = _HEADERS.get(int.from_bytes(head[:4], "little"))
    start = _HEADER_BYTES if known else 0
    dtype = np.dtype(known or options.dtype).newbyteorder("<")
    count, over = divmod(entry.size - start, dtype.itemsize)
    stated = int.from_bytes(head[8:12], "little") if known else count
    # Half a token at the end means a different dtype, with which all tokens would be different.
    if over or count < 0 or stated > count:
        number = f"the {stated:,} of its header, as" if stated > count else "a whole number of"
        raise broken(entry.name, f"it has {entry.size:,} bytes", f"{number} {dtype.name} tokens")
    lower, upper = np.frombuffer(head[: len(head) // 4 * 4], "<u2").reshape(-1, 2).T
    if not known and dtype.itemsize == 2 and len(upper) > _FEW and upper.max() <= _MOST_UPPER < lower.max():
        what = f"of every two of its numbers, as uint16, the second is at most {upper.max()}, as in tokens of uint32"
        raise broken(entry.name, what, f'layout=token_blocks({options.length}, dtype="uint32")')
    return TokenStream(entry.name, _joined(source.tree, [entry]), start, count, dtype, stamp_of(entry))


def _bytes_of_texts(tree: Tree, entries: Sequence[FileEntry]) -> TokenStream:
    """Return the bytes of all texts in sequence; a tokenizer makes no more tokens than these."""
    stamp, joined = short_digest(" ".join(map(stamp_of, entries))), _joined(tree, entries)
    return TokenStream(entries[0].name, joined, 0, joined.size, np.dtype(np.uint8), stamp)


def _tokenized(
    tree: Tree, by_split: Mapping[str, Sequence[FileEntry]], options: TokenOptions, table: SampleTable, *, estimate: str
) -> SampleTable:
    """Return the table with the rows that the texts make, and a note of their number instead of the estimate."""
    streams = {split: [_tokens_of_texts(tree, entries, options)] for split, entries in by_split.items()}
    made = _token_table(tree, streams, options)
    return replace(
        made, told_by=table.told_by, notes=(*made.notes, *(note for note in table.notes if note != estimate))
    )


def _tokens_of_texts(tree: Tree, entries: Sequence[FileEntry], options: TokenOptions) -> TokenStream:
    """Return the tokens of all texts in sequence, in an unnamed file on the local disk."""
    name, dtype = entries[0].name, np.dtype(options.dtype).newbyteorder("<")
    needed = dtype.itemsize * sum(entry.size for entry in entries)  # a tokenizer returns at most one token per byte
    count, digest = 0, hashlib.blake2b(digest_size=16)
    folder = spool_folder(needed, f"The tokens of '{tree.label}'")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="colabstage-", buffering=1 << 20) as file:
        for tokens in (tokens for entry in entries for tokens in _tokens_of_text(tree, entry, options)):
            data = tokens.astype(dtype).tobytes()
            digest.update(data)
            count += len(tokens)
            file.write(data)
        file.flush()
        content = LocalBytes(Path(file.name), label=f"tokens of {tree.label}")
    # By the tokens themselves: nothing else tells two states of a tokenizer apart.
    return TokenStream(name, content, 0, count, dtype, digest.hexdigest())


def _joined(tree: Tree, entries: Sequence[FileEntry]) -> ByteSource:
    """Return the bytes of some files in sequence, each opened when first read."""
    files = [ShardFile(entry.name, stamp_of(entry), partial(open_member, tree, entry)) for entry in entries]
    parts = [
        RequestedBytes(file.pread, entry.size, label=entry.name) for file, entry in zip(files, entries, strict=True)
    ]
    return JoinedBytes(entries[0].name, parts)


def _tokens_of_text(tree: Tree, entry: FileEntry, options: TokenOptions) -> Iterator[NDArray[Any]]:
    """Yield the tokens of a text file, read piece by piece, with a separator after each document."""
    separator = [] if options.separator is None else [np.array([options.separator], np.int64)]
    is_jsonl = entry.name.lower().endswith(".jsonl")
    if options.tokenizer is None and not is_jsonl:
        # Bytes are the tokens, so the text need not be decoded or kept in memory.
        yield from (np.frombuffer(piece, np.uint8) for piece in _chunks(tree, entry))
    else:
        pieces = _pieces(tree, entry)
        for text in _documents(pieces, entry, options.field) if is_jsonl else (_decoded(one, entry) for one in pieces):
            tokens = text.encode() if options.tokenizer is None else options.tokenizer(text)
            yield np.frombuffer(tokens, np.uint8) if isinstance(tokens, bytes) else _checked(tokens, entry, options)
            yield from separator if is_jsonl else ()
    yield from () if is_jsonl else separator


def _chunks(tree: Tree, entry: FileEntry) -> Iterator[bytes]:
    chunks = tree.chunks(entry)
    yield next(chunks, b"").removeprefix(_BOM)
    yield from chunks


def _pieces(tree: Tree, entry: FileEntry) -> Iterator[bytes]:
    """Yield the content in pieces that end after a line, or at the end of the file."""
    held = bytearray()
    for chunk in _chunks(tree, entry):
        for start in range(0, len(chunk), _PIECE_BYTES):
            part = chunk[start : start + _PIECE_BYTES]
            held += part
            # A tokenizer must not receive half a word, or half a character.
            end = held.rfind(b"\n", len(held) - len(part)) + 1
            if end >= _PIECE_BYTES:
                yield bytes(held[:end])
                del held[:end]
    if held:
        yield bytes(held)


def _decoded(data: bytes, entry: FileEntry) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise broken(entry.name, f"it is not text in UTF-8 ({error})") from error


def _documents(pieces: Iterator[bytes], entry: FileEntry, field: str) -> Iterator[str]:
    """Yield the field's text in each line of a .jsonl."""
    lines = (line for piece in pieces for line in piece.removesuffix(b"\n").split(b"\n"))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise broken(entry.name, f"it is not JSON ({show(error)})", line=number) from error
        text = found.get(field) if isinstance(found, dict) else found
        if not isinstance(text, str):
            fields = found if isinstance(found, dict) else {}
            # The longest is the text; unless that is a chat.
            name = max(fields, key=lambda name: len(str(fields[name])), default="")
            own = f", layout=token_blocks(field={name!r}), from colabstage.options"
            how = f"text{own * isinstance(fields.get(name), str)}, or for chats and pairs of texts {_AS_OBJECT}"
            raise broken(entry.name, f"it has {kind_of(text)} under '{field}'", how, line=number)
        yield text


def _checked(tokens: Sequence[int], entry: FileEntry, options: TokenOptions) -> NDArray[Any]:
    # Tokenizers return lists, arrays, or numbers of a special type.
    values = np.asarray(tokens)
    # An empty text has no tokens, so no minimum to check.
    if not values.size:
        return np.zeros(0, np.int64)
    limit = int(np.iinfo(options.dtype).max)
    whole = values.ndim == 1 and values.dtype.kind in "iu"
    # A token that does not fit would silently wrap around to another one.
    if whole and 0 <= int(values.min()) <= int(values.max()) <= limit:
        return values
    odd = f"from {values.min()} to {values.max()}" if whole else f"{values.dtype} of shape {values.shape}"
    more = ', or pass dtype="uint32"' if options.dtype == "uint16" else ""
    msg = f"The tokenizer made tokens {odd} of '{entry.name}'; expected whole numbers from 0 to {limit:,}{more}."
    raise LayoutError(msg)


def _token_table(tree: Tree, streams: dict[str, list[TokenStream]], options: TokenOptions) -> SampleTable:
    extra, length = (1 if options.next_tokens else 0), options.length
    every = [(split, one, (one.total - extra) // length) for split, parts in streams.items() for one in parts]
    # A stream shorter than a row has no rows, and is left out.
    rows = [(split, stream, count) for split, stream, count in every if count > 0]
    for split in [split for split in streams if split not in {of_row for of_row, _, _ in rows}]:
        which = f"The split '{split}' of '{tree.label}'" if split else f"'{tree.label}'"
        held = format_count(sum(one.total for one in streams[split]), "tokens")
        how = "Choose a shorter row: layout=token_blocks(LENGTH), from colabstage.options."
        msg = f"{which} holds {held}, too few for a row of {length:,}. {how}"
        raise LayoutError(msg)
    total = sum(stream.total for _, stream, _ in every)
    # One array holds all rows, so of uint16 and uint32 the larger is used.
    types = {options.dtype if one.dtype == np.uint8 else one.dtype for _, one, _ in rows}
    dtype = np.result_type(*types).newbyteorder("=")

    def side(shift: int) -> Arrays:
        # Targets are the same bytes shifted by one token, so they are read in place and not copied.
        starts = [one.start + shift * one.dtype.itemsize for _, one, _ in rows]
        parts = [
            rows_of_file(one.content, start, count, (length,), one.dtype, stamp=one.stamp, wanted=dtype)
            for start, (_, one, count) in zip(starts, rows, strict=True)
        ]
        return Arrays(join_samples(parts), (length,), dtype)

    used = sum(count for _, _, count in rows)
    targets = ", with the next ones as targets" if options.next_tokens else ""
    note = f"{total:,} tokens are {used:,} rows of {length:,} {dtype} tokens{targets}"
    return SampleTable(
        layout=NAME,
        keys=tuple(f"{stream.name}[{row}]" for _, stream, count in rows for row in range(count)),
        inputs=side(0),
        targets=side(1) if options.next_tokens else None,
        splits=tuple(split for split, _, count in rows for _ in range(count)) if rows[0][0] else None,
        notes=(f"{note}; {total - used * length:,} at the ends were left out.",),
    )


# --- texts that are not language --------------------------------------------------------------------------------------

# In how many texts the first lines are checked, because a list of images is not text to learn from.
_LOOKED_AT = 4
_HEAD_BYTES = 16 * 1024
_LINES = 50
# Fewer lines may be of one form by chance.
_FEWEST_ROWS = 8
# A text with a larger share of numbers is a table.
_MOSTLY = 0.8
# ::: and +++$+++ between cells.
_RULE = re.compile(r"(?<= )[^\w\s]{3,}(?= )")
_CELL = re.compile(r"[\s\"',;|]+")
_IMAGE_NAME = re.compile(rf".+({'|'.join(map(re.escape, words.IMAGES))})(#\d+)?", re.IGNORECASE)


def why_no_text(source: Source) -> str:
    """Return what texts hold instead of language, and what to write: classes in folders, names of images, numbers; ""
    if they may be text to learn from."""
    texts = _with(source, () if _with(source, TOKENS) else TEXTS)
    # The largest, because small ones are about the others.
    for entry in texts.take(np.argsort(-texts.sizes, kind="stable")[:_LOOKED_AT]):
        if what := _what_else(entry.name, source.head(entry, _HEAD_BYTES)):
            return f"'{entry.name}' {what}; layout=\"tokens\" takes it as text to learn from."
    folders = sorted(one for one in {*map(words.folder_of, texts.names)} if one and not words.is_split(one))
    # Parts of one text are numbered too, and dates.
    named = {" ".join(words.letters_of(one)) for one in parts_of_names(texts.names, BEFORE_NUMBER)}
    named = {one for one in named if not words.split_name(one).split} or {*words.sides_of_texts(texts.names)}
    if 1 < len(folders) < len(texts) or len(named) > 1:
        only = source.only(texts.names[:1], texts.names[1:])
        where = f"in folders ({listed(folders)})" if len(folders) > 1 else f"called after {listed(sorted(named))}"
        return (
            f"'{source.label}' holds {len(texts):,} texts {where}. {AS_CLASSES}; layout=token_blocks() "
            f"reads all text as one stream, to predict the next token{only and f'; {only} takes one'}."
        )
    return ""


_AS_OBJECT = "a dataset object whose items are (tokens, target), padded to one length"
AS_CLASSES = f"To classify or translate text give pack_dataset {_AS_OBJECT}"
AS_TEXT = f"To predict the next token write it into a .jsonl, with 'text' in each line. {AS_CLASSES}."


def _columns_in(lines: Sequence[str]) -> str:
    """Return what lines hold if they are the rows of a table instead of language; "" if they are not."""
    rows = [line for line in dict.fromkeys(lines) if not is_comment(line)]
    if rows and all(line.startswith("__label__") for line in rows):
        return "has a label before each text, as fastText writes them"
    if len(rows) < _FEWEST_ROWS:
        return ""
    marks = even_marks(rows, ["\t", ";", "|", *_RULE.findall(rows[0])])
    cells = [line.split() for line in rows]
    # Words with their tags repeat some of these; pairs of words, and verses of one length, do not.
    columns = [*zip(*cells, strict=True)] if len({*map(len, cells)}) == 1 else []
    are_tagged = len(columns) > 1 and any(2 <= len({*column}) <= len(rows) / 2 for column in columns)
    count = rows[0].count(marks[0]) + 1 if marks else len(columns) * are_tagged
    return f"has {count} cells in each line, as a table has" if count else ""


def _what_else(name: str, head: bytes) -> str:
    """Return what the beginning of a file holds instead of language, and what to write; "" if it is language."""
    try:
        # The last character may be cut.
        (head[:-4] if len(head) == _HEAD_BYTES else head).decode("utf-8")
        is_text = b"\0" not in head
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        return "is no text in UTF-8, and its bytes would be the tokens. Save it as UTF-8"
    lines = [line for line in decode_text(head).splitlines()[:_LINES] if line]
    if 2 * sum(any(map(_IMAGE_NAME.fullmatch, _CELL.split(line))) for line in lines) > len(lines):
        return (
            f"names images in its lines ('{lines[0][:60]}'). Give the folder that holds both, and save a list as a "
            "table in it, with path,label as its first line"
        )
    found = items_of(lines[0]) if lines and name.lower().endswith(".jsonl") else None
    if labels := words.label_names(one[0] for one in found or () if isinstance(one, tuple)):
        return f"has {listed(labels)} beside the text of each line. {AS_CLASSES}"
    cells = [word for line in lines for word in _CELL.split(line) if word]
    if _MOSTLY * len(cells) < sum(NUMBER.fullmatch(word) is not None for word in cells):
        how = "Read them by numpy.loadtxt or pandas.read_csv, and save arrays: numpy.savez('data.npz', x=x, y=y)"
        return f"holds numbers, not text ('{lines[0].strip()[:60]}'). {how}"
    what = "" if found else _columns_in(lines)
    return what and f"{what} ('{lines[0][:60]}'). {AS_CLASSES}"

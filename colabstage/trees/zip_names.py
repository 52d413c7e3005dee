"""The names in a zip: decoded as the format says, and what else they may be if it does not say.

A zip marks names in UTF-8. By the format, names without the mark are cp437, but archivers on Windows write them in the
code page of the machine: cp932 in Japan, gbk in China. Only a person can tell which of several readings is meant, so
names are read as cp437, which keeps different names different, and a note shows the others.
"""

from __future__ import annotations

import unicodedata
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from colabstage.io.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FLAG_UTF8 = 0x800
# Systems in "version made by" whose archivers write names as the file system has them, which is UTF-8.
UNIX_SYSTEMS = frozenset({3, 19})
_DEFAULT = "cp437"
# The code pages of machines that write names of other alphabets, and UTF-8, which some tools forget to mark.
_OTHERS = ("utf-8", "cp932", "gbk", "big5", "cp949", "cp866")
# Enough to rule out an encoding; a directory may hold millions.
_MOST_NAMES = 1_000


class DecodedName(NamedTuple):
    """The name of a member."""

    text: str
    """The name, uncleaned."""
    declared: bool = True
    """Whether the archive says how it is encoded, or there is only one reading of it."""


@dataclass(slots=True)
class UnixNames:
    """Whether the names that a Unix wrote into an archive, without saying how they are encoded, are UTF-8.

    Unix's archivers write names as the file system has them, macOS's without saying so. One name in UTF-8 may be
    chance, as of two Chinese characters in GBK: either all of an archive are, or none is taken for it.
    """

    are_utf8: bool = True
    """Whether all that have been seen are."""
    were_taken: bool = False
    """Whether some beyond ASCII have been read as UTF-8. Where `are_utf8` is found to be wrong after that, the archive
    has to be read again."""

    def see(self, names: Iterable[bytes]) -> None:
        """Take the names of some more members into account, before they are read."""
        # Each ends where it ends: half a character of one must not be completed by the next.
        joined = b"\0".join(names)
        self.are_utf8 = self.are_utf8 and _decoded(joined) is not None
        self.were_taken |= self.are_utf8 and not joined.isascii()


def decode_names(
    stored: Sequence[bytes], fields: Sequence[bytes | None], is_utf8: Sequence[bool | None], unix: UnixNames
) -> list[DecodedName]:
    """Decode the names of some members.

    Args:
        stored: their bytes in the directory.
        fields: of each, Info-ZIP's field with the name in UTF-8, `None` without one.
        is_utf8: of each, whether the archive says that it is UTF-8; `None` where it says nothing, but a Unix made it.
        unix: what is known of the latter, which takes these into account.
    """
    unix.see(name for name, said in zip(stored, is_utf8, strict=True) if said is None)
    return [
        _decode_name(name, field, unix.are_utf8 if said is None else said)
        for name, field, said in zip(stored, fields, is_utf8, strict=True)
    ]


def _decode_name(stored: bytes, field: bytes | None, is_utf8: bool) -> DecodedName:
    # The field is of this name only if it has its checksum: other tools rename members and leave the field.
    if field is not None and field[:1] == b"\1" and int.from_bytes(field[1:5], "little") == zlib.crc32(stored):
        stored, is_utf8 = field[5:], True
    text = _decoded(stored) if is_utf8 else None
    return DecodedName(stored.decode(_DEFAULT), stored.isascii()) if text is None else DecodedName(text)


def _decoded(stored: bytes) -> str | None:
    try:
        return stored.decode("utf-8")
    except UnicodeDecodeError:
        return None


def other_readings(names: Iterable[bytes]) -> dict[str, str]:
    """Return the encodings in which all of some names are words, each with the first name as it is read then.

    Only the first thousand are looked at.
    """
    stored = [name for name, _ in zip(names, range(_MOST_NAMES), strict=False)]
    found: dict[str, str] = {}
    for encoding in _OTHERS:
        try:
            texts = [name.decode(encoding) for name in stored]
        except UnicodeDecodeError:
            continue
        if texts and all(map(_is_words, texts)):
            found[encoding] = texts[0]
    return found


def _is_words(text: str) -> bool:
    """Tell whether everything beyond ASCII is a letter, a mark, a number or punctuation, as in names that people
    give."""
    return all(char.isascii() or unicodedata.category(char)[0] in "LMNP" for char in text)


def undeclared_note(names: Sequence[bytes]) -> str:
    """Say that an archive does not tell how some names are encoded, how they were read, and what to do if that is
    wrong; `names` are their bytes."""
    read_as = names[0].decode(_DEFAULT)
    said = (
        f"The zip does not say how {format_count(len(names), 'names')} in it {'is' if len(names) == 1 else 'are'} "
        f"encoded; read as {_DEFAULT}, the format's default, {'it' if len(names) == 1 else 'the first'} is '{read_as}'."
    )
    return f"{said} {undeclared_remedy(names)}"


def undeclared_remedy(names: Iterable[bytes]) -> str:
    """Say how to get the names right that an archive does not declare, with every reading that is possible."""
    found = other_readings(names)
    readings = " or ".join(f"{encoding} ('{text}')" for encoding, text in found.items())
    chosen = next(iter(found), "cp932")
    meant = f"If it is {readings}" if found else "If it is in another encoding"
    return (
        f'{meant}, unpack the zip with Python\'s zipfile.ZipFile(path, metadata_encoding="{chosen}")'
        '.extractall("folder"), and stage the folder.'
    )

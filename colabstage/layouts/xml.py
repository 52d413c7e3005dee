"""An XML parser for annotations."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, NoReturn
from xml.parsers import expat

if TYPE_CHECKING:
    from collections.abc import Callable

_ENCODING = re.compile(rb"""<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
# What Python calls the encodings whose characters have several bytes, which expat does not know.
_MULTI_BYTE = (
    "gb",
    "big5",
    "shift_jis",
    "euc_",
    "iso2022_",
    "cp932",
    "cp949",
    "cp950",
    "johab",
    "hz",
    "utf-7",
    "utf-32",
)


def xml_parser(refuse: Callable[[str], NoReturn]) -> expat.XMLParserType:
    """Return an XML parser that refuses entities, with which a small file could grow to gigabytes or read other files;
    `refuse` raises the reason."""
    parser = expat.ParserCreate()

    def meet_entity(*_: object) -> NoReturn:
        refuse("it declares an entity, which no annotation needs; refused")

    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = meet_entity
    return parser


def xml_text(content: bytes) -> bytes | str:
    """Return XML as expat takes it: decoded, if it declares one of the encodings of Chinese, Japanese and Korean."""
    found = _ENCODING.match(content)
    try:
        name = codecs.lookup(found[1].decode()).name if found else ""
    except LookupError:
        # Expat says so too.
        return content
    return content.decode(name) if name.startswith(_MULTI_BYTE) else content

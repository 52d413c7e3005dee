"""An XML parser for annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from xml.parsers import expat

if TYPE_CHECKING:
    from collections.abc import Callable


def xml_parser(refuse: Callable[[str], NoReturn]) -> expat.XMLParserType:
    """Return an XML parser that refuses entities, with which a small file could grow to gigabytes or read other files;
    `refuse` raises the reason."""
    parser = expat.ParserCreate()

    def meet_entity(*_: object) -> NoReturn:
        refuse("it declares an entity, which no annotation needs; refused")

    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = meet_entity
    return parser

"""XML of annotations, read element by element."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn
from xml.etree.ElementTree import TreeBuilder
from xml.parsers import expat

from colabstage.layouts.columns import show
from colabstage.layouts.faults import broken

if TYPE_CHECKING:
    from collections.abc import Callable
    from xml.etree.ElementTree import Element

_ENCODING = re.compile(rb"""<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")


def parse_xml(name: str, content: bytes, root: str, take: Callable[[Element], None]) -> None:
    """Call `take` with each element right below the root of a file, and forget it: a file may have millions. Whatever
    is wrong, also what `take` raises, is an error that names the file and the line."""
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
        # With entities a small file could grow to gigabytes, or read other files.
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

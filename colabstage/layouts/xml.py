"""XML of annotations, read element by element."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn
from xml.etree.ElementTree import TreeBuilder
from xml.parsers import expat

from colabstage.layouts.columns import show
from colabstage.layouts.table import BrokenDatasetError

if TYPE_CHECKING:
    from collections.abc import Callable
    from xml.etree.ElementTree import Element

_ENCODING = re.compile(rb"""<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_MAX_DEPTH = 32


def parse_xml(name: str, content: bytes, root: str, take: Callable[[Element], None]) -> None:
    """Call `take` with each element right below the root of a file, and forget it: a file may have millions. Whatever
    is wrong, also what `take` raises, is an error that names the file and the line."""
    parser, builder = expat.ParserCreate(), TreeBuilder()
    depth = 0

    def fail(reason: str, line: int = 0, cause: Exception | None = None) -> NoReturn:
        msg = f"'{name}', line {line or parser.CurrentLineNumber}: {reason}."
        raise BrokenDatasetError(msg) from cause

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth == 1 and tag != root:
            fail(f"it is a file of '{show(tag)}', expected '{root}'")
        if depth > _MAX_DEPTH:
            fail(f"elements are nested {_MAX_DEPTH} deep")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        element = builder.end(tag)
        if depth == 1:
            try:
                take(element)
            except (ValueError, LookupError, TypeError, ArithmeticError) as error:
                fail(show(error), cause=error)
            element.clear()

    def meet_entity(*_: object) -> NoReturn:
        # With entities a small file could grow to gigabytes, or read other files.
        fail("it declares an entity, which no annotation needs; refused")

    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = meet_entity
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    try:
        # Python knows more encodings than expat, such as those of Chinese, Japanese and Korean.
        declared = _ENCODING.match(content)
        parser.Parse(content if declared is None else content.decode(declared[1].decode()), True)
    except expat.ExpatError as error:
        fail(f"it is not XML ({expat.ErrorString(error.code)})", error.lineno, error)
    except BrokenDatasetError:
        raise
    except (ValueError, LookupError) as error:
        fail(f"it is not text in the encoding that it declares ({show(error)})", 1, error)

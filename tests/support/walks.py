"""A reader's walk: the modules that a call enters, in the order of their functions' first calls.

Entering another function of an earlier module is a return. Code that runs during imports does not count.
"""

import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import colabstage

PACKAGE = Path(colabstage.__file__).parent


@dataclass(slots=True)
class Walk:
    """The modules that were entered."""

    visits: list[str] = field(default_factory=list)
    """The module of each function that the calling thread entered, in order."""
    elsewhere: set[str] = field(default_factory=set)
    """The modules that other threads entered."""


def walk(work: Callable[[], object]) -> Walk:
    """Run `work`, and return the modules of the package that it enters."""
    found, seen, imports = Walk(), set[CodeType](), threading.local()

    def module_of(frame: FrameType, event: str) -> str | None:
        code, depth = frame.f_code, getattr(imports, "depth", 0)
        if code.co_name == "<module>":
            imports.depth = max(0, depth + {"call": 1, "return": -1}.get(event, 0))
        # A class body is not a function, and unnamed code belongs to the function entered before it.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event != "call" or depth or code in seen or not is_function or not code.co_filename.startswith(f"{PACKAGE}"):
            return None
        seen.add(code)
        return Path(code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix()

    def here(frame: FrameType, event: str, _: object) -> None:
        if module := module_of(frame, event):
            found.visits.append(module)

    def there(frame: FrameType, event: str, _: object) -> None:
        if module := module_of(frame, event):
            found.elsewhere.add(module)

    threading.setprofile(there)
    sys.setprofile(here)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found

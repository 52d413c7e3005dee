"""Read what staging left in a folder, to compare it file by file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def contents(place: Path) -> dict[str, bytes | dict[str, Any]]:
    """Return every file below a folder; of a record all but when and where it was written."""
    found: dict[str, bytes | dict[str, Any]] = {}
    for path in sorted(path for path in place.rglob("*") if path.is_file()):
        name, data = str(path.relative_to(place)), path.read_bytes()
        found[name] = data if path.name != "stage.json" else {**json.loads(data), "seal": None}
    return found

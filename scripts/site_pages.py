"""Add to the pages of docs/ for mkdocs: the reference, pages of the root, and links that leave the folder.

They are not files in docs/, because the source of a reference is not readable on GitHub.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from scripts.site_reference import REFERENCE

_SOURCE = "https://github.com/colabstage/colabstage/blob/main/"
_ROOT = Path(__file__).resolve().parent.parent
_LEAVES_DOCS = re.compile(r"\]\(\.\./([^)\s]+)\)")
# Pages that stand at the root of the repository, and have another name on the site.
_FROM_ROOT = {"CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    from mkdocs.structure.files import File

    for name, page in REFERENCE.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page.markdown))
    for path, name in _FROM_ROOT.items():
        content = (_ROOT / path).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(
            File.generated(config, name, content=re.sub(r"\]\(((?:SECURITY|CHANGELOG)\.md)", r"](../\1", content))
        )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links to files outside docs/ lead to GitHub."""
    if page.file.src_uri.startswith("reference/"):
        return markdown
    for path, name in _FROM_ROOT.items():
        markdown = markdown.replace(f"](../{path}", f"]({name}")
    return _LEAVES_DOCS.sub(rf"]({_SOURCE}\1)", markdown)

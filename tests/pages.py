"""What the README and the pages of docs/ hold: code blocks with what is said about them, links, and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))

# The fence of a block, and a comment in the line before it, which readers of the page do not see.
_BLOCK = re.compile(r"^(?:<!-- (?P<note>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)|!\[[^\]]*\]\((?P<picture>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)
_NOT_RUN = "not run: "
_NEEDS = "needs "


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page. `line`: its first, in the page. `note`: the HTML comment in the line before it."""

    page: Path
    language: str
    code: str
    line: int
    note: str

    @property
    def why_not_run(self) -> str:
        """Why it is only compiled; empty where it is run."""
        return self.note.removeprefix(_NOT_RUN) if self.note.startswith(_NOT_RUN) else ""

    @property
    def missing(self) -> str:
        """The package that only this block needs, where it is not installed here; else empty."""
        package = self.note.removeprefix(_NEEDS) if self.note.startswith(_NEEDS) else ""
        return package if package and find_spec(package) is None else ""

    def run(self, names: dict[str, object], places: Mapping[str, str]) -> None:
        """Run it with the names that those before it left; or compile it, as its page says or for want of a package.

        `places`: where on this machine that is which a reader has elsewhere, by what is written.
        """
        code = self.code.replace("%pip", "# %pip")
        for written, meant in places.items():
            code = code.replace(written, meant)
        # With as many empty lines before it, a traceback has the line of the page.
        made = compile("\n" * (self.line - 1) + code, str(self.page), "exec")
        if not self.why_not_run and not self.missing:
            exec(made, names)


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of a page in one language, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, language, found["code"], text.count("\n", 0, found.start("code")) + 1, found["note"] or "")
        for found in _BLOCK.finditer(text)
        if found["language"] == language
    ]


def links(page: Path) -> list[str]:
    """Where the links and pictures of a page lead; code is left out."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return [found["target"] or found["picture"] for found in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`, made of the headings as GitHub makes it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in _HEADING.findall(text)}

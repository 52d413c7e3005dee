"""The content of the README and of docs/: code blocks with the notes about them, links, and headings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))

# The fence of a block, and an HTML comment in the line before it, which readers of the page do not see.
_BLOCK = re.compile(r"^(?:<!-- (?P<note>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)|!\[[^\]]*\]\((?P<picture>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)
_NOT_RUN = "not run: "
_NEEDS = "needs "


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page. `line`: its first line in the page. `note`: the HTML comment in the line before it."""

    page: Path
    language: str
    code: str
    line: int
    note: str

    @property
    def why_not_run(self) -> str:
        """Why it is only compiled; "" if it is run."""
        return self.note.removeprefix(_NOT_RUN) if self.note.startswith(_NOT_RUN) else ""

    @property
    def missing(self) -> str:
        """The package that only this block needs, if it is not installed; otherwise ""."""
        package = self.note.removeprefix(_NEEDS) if self.note.startswith(_NEEDS) else ""
        return package if package and find_spec(package) is None else ""

    def run(self, names: dict[str, object], places: Mapping[str, str]) -> None:
        """Run it with the names that earlier blocks left; only compile it if its page says so, or a package is missing.

        `places`: paths on this machine, by the text that the page has instead.
        """
        code = self.code.replace("%pip", "# %pip")
        for written, meant in places.items():
            code = code.replace(written, meant)
        # With the empty lines in front, a traceback shows the page's own line numbers.
        made = compile("\n" * (self.line - 1) + code, str(self.page), "exec")
        if not self.why_not_run and not self.missing:
            exec(made, names)


def blocks(page: Path, language: str) -> list[Block]:
    """A page's blocks in one language, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, language, found["code"], text.count("\n", 0, found.start("code")) + 1, found["note"] or "")
        for found in _BLOCK.finditer(text)
        if found["language"] == language
    ]


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures, except those in code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return [found["target"] or found["picture"] for found in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """The names a link may have after `#`, derived from the headings as GitHub does."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names = [re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in _HEADING.findall(text)]
    assert len({*names}) == len(names), f"two headings of {page.name} are the same"  # a link would lead to the first
    return {*names}

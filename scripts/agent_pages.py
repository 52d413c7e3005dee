"""Write llms.txt and skills/colabstage/SKILL.md, for coding agents, from the pages: `python -m scripts.agent_pages`."""

from __future__ import annotations

import json
import posixpath
import re
from typing import TYPE_CHECKING

from tests.pages import DOCS, README, ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

# Each shown by its first code block that runs.
_SHOWN = (("sources", "python"), ("drive", "python"), ("loaders", "python"), ("command_line", "bash"))
_LAST = """\
An error says what failed, what was expected and what to do next: follow it. `plan_stage` takes the arguments of
`stage_dataset` and changes nothing. All pages are listed in [llms.txt](../../llms.txt)."""
_ROW = re.compile(r"^\| (?P<question>[^|]+) \| (?P<pages>.*\]\(.*) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def made_pages() -> dict[Path, str]:
    """Return the text of each page for agents, by its place."""
    return {ROOT / "llms.txt": _index(), ROOT / "skills/colabstage/SKILL.md": _skill()}


def _index() -> str:
    """Return the list of pages, in the form of llmstxt.org: each with the question that it answers."""
    listed = {
        posixpath.normpath(f"docs/{target}"): f"[{title}]({posixpath.normpath(f'docs/{target}')}): {row['question']}"
        for row in _ROW.finditer((ROOT / "docs/index.md").read_text(encoding="utf-8"))
        for title, target in _LINK.findall(row["pages"])
    }
    others = [path for path in DOCS if f"docs/{path.name}" not in listed and path.stem != "index"]
    pages = [*listed.values(), *(f"[{_title(path)}](docs/{path.name})" for path in others)]
    head = ["# colabstage", "", f"> {_summary()}", "", _section(README, "Install"), "", "## Pages", ""]
    return "\n".join([*head, *(f"- {page}" for page in pages), ""])


def _skill() -> str:
    """Return the calls that most work needs, as the pages show them."""
    parts = [
        f"---\nname: colabstage\ndescription: {json.dumps(_summary(), ensure_ascii=False)}\n---",
        f"# colabstage\n\n{_section(README, 'Install')}",
        *(_shown(name, language) for name, language in _SHOWN),
        _LAST,
    ]
    return "\n\n".join(parts) + "\n"


def _summary() -> str:
    """Return the sentence in bold that the README begins with."""
    found = re.search(r"^\*\*(.+?)\*\*$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return " ".join(found[1].split())


def _section(page: Path, heading: str) -> str:
    """Return what is below a heading, its links as words: they would lead elsewhere from another folder."""
    text = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n\n")[2].partition("\n## ")[0].strip()
    assert text, f"{page.name} has no section {heading}"
    return _LINK.sub(r"\1", text)


def _shown(name: str, language: str) -> str:
    page = ROOT / f"docs/{name}.md"
    code = next(block.code for block in blocks(page, language) if not block.why_not_run)
    return f"## [{_title(page)}](../../docs/{name}.md)\n\n```{language}\n{code}```"


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


if __name__ == "__main__":
    for path, text in made_pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
